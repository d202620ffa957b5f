# SPDX-License-Identifier: GPL-2.0-only
"""usage: crowd.py COUNT USER...

As root, adds rows for COUNT files to /dev/sframe_unwind in the name of each user, and records for
COUNT further files that they have no rows. Each file is closed right after the addition, and so
deleted.
"""

import ctypes
import fcntl
import os
import struct
import subprocess
import sys

ADD = 0xC0385380
PROGRAM = "/usr/bin/true"

device = os.open("/dev/sframe_unwind", os.O_RDWR)
with open(PROGRAM, "rb") as file:
    program = file.read()
section = subprocess.run(["/src/build/tools/sframectl", "convert", PROGRAM, "-o", "-"],
                         check=True, stdout=subprocess.PIPE).stdout
buffer = ctypes.create_string_buffer(section, len(section))


def add(user, length):
    file = os.memfd_create("one of many")
    os.write(file, program)
    address = ctypes.addressof(buffer)
    changed = divmod(os.fstat(file).st_ctime_ns, 10 ** 9)
    fcntl.ioctl(device, ADD,
                struct.pack("=HHiQIIQIIqII", 56, 2, file, address, length, 0, 0, 0, user, *changed,
                            0))
    os.close(file)


for user in map(int, sys.argv[2:]):
    for _ in range(int(sys.argv[1])):
        add(user, len(section))
        add(user, 0)
