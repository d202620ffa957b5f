#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Make a small program whose SFrame section takes long to convert into a table.

usage: costly.py KIND FILE

KIND `collisions`: 16,384 rules that an unkeyed hash put into one slot, and a function that repeats the
last of them for each byte of 16 MiB. `rows`: 64 MiB of rows. `functions`: 3,000,000 functions in falling
order. The program loops until it is killed.
"""

import struct
import sys

BASE = 0x400000
CODE = 0x1000
# AMD64 version 2: sorted, or not; start addresses count from the start of the section.
SORTED, UNSORTED = 1, 0
ADDR1, ADDR2, ADDR4, PCMASK = 0, 1, 2, 0x10


def section(address, functions, rows, flags=SORTED):
    """`functions`: (start, size, offset of the rows, number of rows, info, size of a block), sorted."""
    fdes = b"".join(struct.pack("<iIIIBBH", start - address, *rest, 0) for start, *rest in functions)
    count = sum(function[3] for function in functions)
    return struct.pack("<HBBBbbBIIIII", 0xDEE2, 2, flags, 3, 0, -8, 0, len(functions), count, len(rows),
                       0, len(fdes)) + fdes + rows


def collisions(address, code):
    # A row: start (2 bytes), info (one word of 4 bytes, CFA from SP), CFA offset.
    row = struct.Struct("<HBi")
    offsets = [8 + (k << 17) for k in range(16384)]
    rows = b"".join(row.pack(2 * k, 0x43, offset) for k, offset in enumerate(offsets))
    repeated = struct.pack("<BBi", 0, 0x43, offsets[-1])
    size = 2 * len(offsets)
    return section(address, [
        (code, size, 0, len(offsets), ADDR2, 0),
        (code + size, 16 << 20, len(rows), 1, ADDR1 | PCMASK, 1),
    ], rows + repeated)


def many_rows(address, code):
    row = struct.Struct("<IBb")
    count = (63 << 20) // row.size
    rows = b"".join(row.pack(k, 3, 8 * (1 + k % 15)) for k in range(count))
    return section(address, [(code, count, 0, count, ADDR4, 0)], rows)


def many_functions(address, code):
    count = 3_000_000
    rows = struct.pack("<BBb", 0, 3, 8)
    functions = [(code + 16 * k, 16, 0, 1, ADDR1, 0) for k in reversed(range(count))]
    return section(address, functions, rows, UNSORTED)


KINDS = {"collisions": collisions, "rows": many_rows, "functions": many_functions}


def main():
    kind, path = sys.argv[1:]
    code_size = 64 << 20
    at = CODE + code_size
    data = KINDS[kind](BASE + at, BASE + CODE)
    load, note = 1, 0x6474E554
    segments = [
        # type, flags, offset, virtual and physical address, size in the file and in memory, alignment
        (load, 5, 0, BASE, BASE, at, at, 0x1000),
        (note, 4, at, BASE + at, BASE + at, len(data), len(data), 8),
    ]
    header = b"\x7fELF\2\1\1" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, BASE + CODE, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    with open(path, "wb") as file:
        file.write(header + b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments))
        file.seek(CODE)
        file.write(b"\xeb\xfe")  # jmp to itself
        file.seek(at)
        file.write(data)


if __name__ == "__main__":
    main()
