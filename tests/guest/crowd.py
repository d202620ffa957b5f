# SPDX-License-Identifier: GPL-2.0-only
"""usage: crowd.py COUNT USER...

Tells /dev/sframe_unwind, as root, of COUNT files of each user that have rows, and of as many that
have none. Each is gone right behind.
"""

import ctypes
import fcntl
import os
import struct
import subprocess
import sys

ADD = 0x40285380
PROGRAM = "/usr/bin/true"

device = os.open("/dev/sframe_unwind", os.O_RDWR)
with open(PROGRAM, "rb") as file:
    program = file.read()
section = subprocess.run(["/src/build/tools/sframectl", "convert", PROGRAM, "-o", "-"],
                         check=True, stdout=subprocess.PIPE).stdout
room = ctypes.create_string_buffer(section, len(section))


def add(user, length):
    file = os.memfd_create("one of many")
    os.write(file, program)
    fcntl.ioctl(device, ADD, struct.pack("=IiQIIQII", 40, file, ctypes.addressof(room), length, 0, 0, 0, user))
    os.close(file)


for user in map(int, sys.argv[2:]):
    for _ in range(int(sys.argv[1])):
        add(user, len(section))
        add(user, 0)
