# SPDX-License-Identifier: GPL-2.0-only
"""A file system that stops answering.

usage: silent.py DIRECTORY FILE TRIGGER [read]

Mounts a FUSE file system at DIRECTORY, with one file, `file`, which has the bytes of FILE. As soon
as TRIGGER exists, requests to open a file (with `read`: to read) are not answered any more. The
file system ends when this program is killed.
"""

import ctypes
import os
import stat
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE = 1, 2, 3, 14, 15, 18
FLUSH, INIT, OPENDIR, RELEASEDIR, ACCESS, INTERRUPT = 25, 26, 27, 29, 34, 36
ENOENT, ENOSYS = 2, 38
DIRECTORY, FILE = 1, 2
FOR_EVER = 1 << 30


def attributes(node, size):
    """struct fuse_attr."""
    mode = stat.S_IFDIR | 0o755 if node == DIRECTORY else stat.S_IFREG | 0o755
    return struct.pack("<6Q10I", node, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0,
                       0, 4096, 0)


def answer(opcode, node, body, content):
    """The body of the answer, or a negative errno."""
    size = len(content) if node == FILE else 0
    if opcode == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, 0, 16, 12, 1 << 17, 1, 32, 0, *[0] * 8)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"file":
            return -ENOENT
        found = struct.pack("<4Q2I", FILE, 0, FOR_EVER, FOR_EVER, 0, 0)
        return found + attributes(FILE, len(content))
    if opcode == GETATTR:
        return struct.pack("<Q2I", FOR_EVER, 0, 0) + attributes(node, size)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<Q2I", 0, 2, 0)  # FOPEN_KEEP_CACHE
    if opcode == READ:
        _, offset, length = struct.unpack_from("<2QI", body)
        return content[offset:offset + length]
    if opcode in (RELEASE, RELEASEDIR, FLUSH, ACCESS):
        return b""
    return -ENOSYS


def main():
    directory, file, trigger, *options = sys.argv[1:]
    silent = READ if options == ["read"] else OPEN
    with open(file, "rb") as opened:
        content = opened.read()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", directory.encode(), b"fuse", 0, options.encode()):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    while True:
        request = os.read(device, 1 << 18)
        _, opcode, unique, node = struct.unpack_from("<2I2Q", request)
        if opcode in (FORGET, INTERRUPT) or opcode == silent and os.path.exists(trigger):
            continue
        output = answer(opcode, node, request[40:], content)
        error, output = (output, b"") if isinstance(output, int) else (0, output)
        os.write(device, struct.pack("<IiQ", 16 + len(output), error, unique) + output)


main()
