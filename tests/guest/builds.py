# SPDX-License-Identifier: GPL-2.0-only
"""usage: builds.py PROGRAM SECTION COUNT

COUNT processes add the rows of SECTION to /dev/sframe_unwind at once, each for a copy of PROGRAM. Prints the number of
processes for each result: `0`, or the name of an errno.
"""

import collections
import ctypes
import errno
import fcntl
import os
import struct
import sys

ADD = 0x40285380

with open(sys.argv[1], "rb") as file:
    program = file.read()
with open(sys.argv[2], "rb") as file:
    section = file.read()
buffer = ctypes.create_string_buffer(section, len(section))


def add():
    """Adds the rows, and returns 0 or an errno."""
    copy = os.memfd_create("copy")
    os.write(copy, program)
    device = os.open("/dev/sframe_unwind", os.O_RDWR)
    # All processes wait until the parent closes its end of the pipe.
    os.close(go)
    os.read(ready, 1)
    try:
        fcntl.ioctl(device, ADD, struct.pack("=IiQIIQII", 40, copy, ctypes.addressof(buffer), len(section), 0, 0, 0, 0))
    except OSError as error:
        return error.errno
    return 0


ready, go = os.pipe()
children = []
for _ in range(int(sys.argv[3])):
    child = os.fork()
    if child == 0:
        os._exit(add())
    children.append(child)
os.close(go)
results = collections.Counter(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
for number, count in sorted(results.items()):
    print(errno.errorcode.get(number, number), count)
