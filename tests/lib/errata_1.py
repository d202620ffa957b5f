#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Turn the .sframe of ELF files into version 2 errata 1, in place.

usage: errata_1.py FILE...

Binutils up to 2.44 count start addresses from the section; from 2.45 on, and in clang, they count
from their own fields, and a flag says so. Nothing else is different, so a file of the one is made
into a file of the other without moving a byte. Of the distributions' toolchains none writes it.
"""

import struct
import sys

SHT_HEADER = struct.Struct("<IIQQQQIIQQ")
SORTED, PCREL, ENTRY = 1, 4, 20


def sections(data):
    """The name, offset and size of each section."""
    table, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [SHT_HEADER.unpack_from(data, table + size * i) for i in range(count)]
    strings = headers[names][4]
    for header in headers:
        end = data.index(0, strings + header[0])
        yield data[strings + header[0]:end].decode(), header[4], header[5]


def convert(path):
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        for name, at, _ in sections(data):
            if name != ".sframe":
                continue
            magic, version, flags = struct.unpack_from("<HBB", data, at)
            if (magic, version, flags & (SORTED | PCREL)) != (0xdee2, 2, SORTED):
                sys.exit(f"errata_1.py: {path}: not as Debian 13's linker writes it: "
                         f"{data[at:at + 4].hex()}")
            data[at + 3] |= PCREL
            count, _, _, offset, _ = struct.unpack_from("<IIIII", data, at + 8)
            first = 28 + data[at + 7] + offset
            for entry in range(first, first + count * ENTRY, ENTRY):
                start, = struct.unpack_from("<i", data, at + entry)
                struct.pack_into("<i", data, at + entry, start - entry)
        file.seek(0)
        file.write(data)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        convert(argument)
