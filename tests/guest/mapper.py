# SPDX-License-Identifier: GPL-2.0-only
"""Makes a device of the device mapper, as dmsetup does: all of a block device, read only.

usage: mapper.py DEVICE

Prints the path of the new device.
"""

import fcntl
import os
import struct
import sys

CREATE, SUSPEND, LOAD = 3, 6, 9
READ_ONLY = 1
# struct dm_ioctl and struct dm_target_spec; BLKGETSIZE64.
HEAD = struct.Struct("<3I2IIi3IQ128s129s7x")
TARGET = struct.Struct("<2QiI16s")
SIZE_OF_DEVICE = 0x80081272


def call(control, command, name, flags=0, target=b""):
    request = HEAD.pack(4, 0, 0, HEAD.size + len(target), HEAD.size, bool(target), 0, flags, 0, 0,
                        0, name, b"") + target
    number = 3 << 30 | HEAD.size << 16 | 0xfd << 8 | command
    return fcntl.ioctl(control, number, bytearray(request).ljust(1024, b"\0"))


def main():
    device, = sys.argv[1:]
    with open(device, "rb") as opened:
        size = struct.unpack("<Q", fcntl.ioctl(opened, SIZE_OF_DEVICE, bytes(8)))[0]
    place = f"{device} 0\0".encode().ljust(64, b"\0")
    target = TARGET.pack(0, size // 512, 0, TARGET.size + len(place), b"linear") + place
    with open("/dev/mapper/control", "rb") as control:
        call(control, CREATE, b"test")
        call(control, LOAD, b"test", READ_ONLY, target)
        call(control, SUSPEND, b"test")
    holder, = os.listdir(f"/sys/class/block/{os.path.basename(device)}/holders")
    print(f"/dev/{holder}")


main()
