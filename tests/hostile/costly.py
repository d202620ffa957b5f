#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Make a small program whose SFrame section takes long to convert into a table, or whose walks take
long.

usage: costly.py KIND FILE

KIND `collisions`: 16,384 rules that an unkeyed hash put into one slot, and a function that repeats
the last of them for each byte of 16 MiB. `rows`: 64 MiB of rows. `functions`: 3,000,000 functions
in falling order. `toggled`: a walk needs a second walk from the innermost frame, for rbx, while
another thread changes the innermost frame's return address. One of the two addresses leads to rows
that count the return address from rbp and leave the stack pointer as it is. The program loops until
it is killed.
"""

import struct
import sys

BASE = 0x400000
CODE = 0x1000
# AMD64 version 2: sorted, or not; start addresses count from the start of the section.
SORTED, UNSORTED = 1, 0
ADDR1, ADDR2, ADDR4, PCMASK = 0, 1, 2, 0x10


def packed(version, flags, fdes, rows, functions, count):
    """A section with this number of functions, and of rows."""
    return struct.pack("<HBBBbbBIIIII", 0xDEE2, version, flags, 3, 0, -8, 0, functions, count,
                       len(rows), 0, len(fdes)) + fdes + rows


def section(address, functions, rows, flags=SORTED):
    """`functions`: (start, size, offset of the rows, number of rows, info, size of a block),
    sorted."""
    fdes = b"".join(struct.pack("<iIIIBBH", start - address, *rest, 0)
                    for start, *rest in functions)
    return packed(2, flags, fdes, rows, len(functions), sum(function[3] for function in functions))


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


# The functions of `toggled`, 32 bytes each, with the words of their only row. The last two are
# flexible: the CFA is rbx+8; the CFA is rsp, and the return address is rbp.
CHILD, INNERMOST, MIDDLE, BY_RBX, STAYS = (BASE + CODE + at for at in range(0x40, 0xE0, 0x20))
TOGGLED = {INNERMOST: bytes([3, 8]), MIDDLE: bytes([3, 16]), BY_RBX: bytes([4, 0x19, 8]),
           STAYS: bytes([8, 0x39, 0, 0x31, 0])}
SLOT = 0x10000000
LOOP = b"\xeb\xfe"  # jmp to itself


def toggled(address, _code):
    rows, fdes = b"", b""
    for number, (start, row) in enumerate(TOGGLED.items()):
        fdes += struct.pack("<qII", start - (address + 28 + 16 * number), 32, len(rows))
        rows += struct.pack("<HBBBB", 1, 0, row[0] in (4, 8), 0, 0) + row
    # Start addresses count from their field.
    return packed(3, SORTED | 4, fdes, rows, len(TOGGLED), len(TOGGLED))


def toggled_code():
    def store(word, at):  # movq $word, at
        return b"\x48\xc7\x04\x25" + struct.pack("<II", at, word)
    # clone(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD, stack, 0, 0, 0)
    start = b"\xb8" + struct.pack("<I", 56) + b"\xbf" + struct.pack("<I", 0x10F00)
    start += b"\xbe" + struct.pack("<I", SLOT + 0x1000)
    start += b"\x31\xd2\x45\x31\xd2\x45\x31\xc0\x0f\x05"
    # test %eax,%eax; je CHILD; mov $SLOT,%esp; mov $STAYS+1,%ebp
    start += b"\x85\xc0\x74" + bytes([CHILD - BASE - CODE - len(start) - 4])
    start += b"\xbc" + struct.pack("<I", SLOT) + b"\xbd" + struct.pack("<I", STAYS + 1)
    start += store(BY_RBX + 1, SLOT + 16)
    start += b"\xeb" + bytes([INNERMOST - BASE - CODE - len(start) - 2])
    child = store(MIDDLE + 1, SLOT) + store(STAYS + 1, SLOT) + b"\xeb\xe6"
    return start.ljust(0x40, b"\xcc") + child.ljust(0x20, b"\xcc") + LOOP


KINDS = {
    "toggled": (toggled, toggled_code()),
    "collisions": (collisions, LOOP),
    "rows": (many_rows, LOOP),
    "functions": (many_functions, LOOP),
}


def main():
    kind, path = sys.argv[1:]
    make, code = KINDS[kind]
    code_size = 64 << 20
    at = CODE + code_size
    data = make(BASE + at, BASE + CODE)
    load, note = 1, 0x6474E554
    segments = [
        # type, flags, offset, virtual and physical address, size in the file and in memory,
        # alignment
        (load, 5, 0, BASE, BASE, at, at, 0x1000),
        (note, 4, at, BASE + at, BASE + at, len(data), len(data), 8),
        (load, 6, 0, SLOT, SLOT, 0, 0x2000, 0x1000),
    ]
    header = b"\x7fELF\2\1\1" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, BASE + CODE, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    with open(path, "wb") as file:
        file.write(header + b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments))
        file.seek(CODE)
        file.write(code)
        file.seek(at)
        file.write(data)


if __name__ == "__main__":
    main()
