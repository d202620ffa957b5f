#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Make programs whose SFrame section, or the way to it, is hostile.

usage: mangle.py PROGRAM DIRECTORY

Each case is a copy of PROGRAM with a few bytes changed. DIRECTORY/list has for each: its name,
whether its rows may still lead to wrong frames (`lies`) or not (`true`), and those counters of the
module, one or more of which must grow (`-`: any).
"""

import os
import random
import struct
import sys

PT_LOAD, PT_GNU_SFRAME = 1, 0x6474E554
HEADER, FDE = 28, 20


class Program:
    def __init__(self, data):
        self.data = bytearray(data)
        phoff, = struct.unpack_from("<Q", data, 32)
        phentsize, phnum = struct.unpack_from("<HH", data, 54)
        for at in range(phoff, phoff + phentsize * phnum, phentsize):
            if struct.unpack_from("<I", data, at)[0] == PT_GNU_SFRAME:
                self.phdr = at
        self.at, = struct.unpack_from("<Q", data, self.phdr + 8)
        self.size, = struct.unpack_from("<Q", data, self.phdr + 32)
        self.fdes, self.rows, self.rows_size = struct.unpack_from("<III", data, self.at + 8)
        self.fde_at = self.at + HEADER
        self.row_at = self.fde_at + FDE * self.fdes

    def put(self, at, form, *values):
        struct.pack_into("<" + form, self.data, at, *values)

    def every_fde(self, offset, form, value):
        for i in range(self.fdes):
            self.put(self.fde_at + FDE * i + offset, form, value)

    def each_row(self):
        """Offset in the file, width of the start, info byte and place of the words of each row."""
        for i in range(self.fdes):
            at, count, info = struct.unpack_from("<IIB", self.data, self.fde_at + FDE * i + 8)
            at += self.row_at
            width = 1 << (info & 15)
            for _ in range(count):
                row = self.data[at + width]
                words = (row >> 1) & 15
                yield at, width, row, at + width + 1, 1 << ((row >> 5) & 3)
                at += width + 1 + words * (1 << ((row >> 5) & 3))

    def cfa(self, value):
        """Sets the CFA's offset in all rows, as far as it fits into the row's words."""
        for _, _, row, words, size in self.each_row():
            if row & 0x1E:
                bits = 8 * size - 1
                fits = max(-(1 << bits), min((1 << bits) - 1, value))
                self.put(words, {1: "b", 2: "h", 4: "i"}[size], fits)


def header(offset, form, value):
    return lambda p: p.put(p.at + offset, form, value)


def fdes(offset, form, value):
    return lambda p: p.every_fde(offset, form, value)


def segment(offset, form, value):
    return lambda p: p.put(p.phdr + offset, form, value)


def backwards(p):
    entries = [bytes(p.data[p.fde_at + FDE * i:p.fde_at + FDE * (i + 1)]) for i in range(p.fdes)]
    p.data[p.fde_at:p.row_at] = b"".join(reversed(entries))


def rows_that_stand_still(p):
    for at, width, *_ in p.each_row():
        p.data[at:at + width] = bytes(width)


def base_fp(p):
    for at, width, row, *_ in p.each_row():
        p.data[at + width] = row & ~1


def noise(seed, begin, end):
    def change(p):
        dice = random.Random(seed)
        for at in range(p.at + begin, p.at + min(end, p.size)):
            p.data[at] = dice.randrange(256)
    return change


def sprinkle(seed):
    def change(p):
        dice = random.Random(seed)
        for _ in range(20):
            p.data[p.at + HEADER + dice.randrange(p.size - HEADER)] = dice.randrange(256)
    return change


BAD = "malformed unsupported section_fault search_too_long no_rows not_mapped"
STEP = ("cfa_not_rising cfa_misaligned cfa_overflow stack_fault not_executable not_mapped no_rows "
        "outermost")

CASES = {
    # The header.
    "magic": (header(0, "H", 0), "true", "malformed"),
    "big-endian": (header(0, "H", 0xE2DE), "true", "malformed"),
    **{f"version-{v}": (header(2, "B", v), "true", "unsupported") for v in (0, 255)},
    # Known ones, whose entries have other sizes.
    **{f"version-{v}": (header(2, "B", v), "true", "malformed") for v in (1, 3)},
    "flags": (header(3, "B", 0xF8), "true", "unsupported"),
    "unsorted-flag": (header(3, "B", 0), "lies", BAD),
    "start-at-field": (header(3, "B", 5), "lies", BAD),
    "abi": (header(4, "B", 2), "true", "unsupported"),
    # Says that the rows carry the return address.
    "fixed-ra-0": (header(6, "b", 0), "lies", f"{STEP} register_unknown"),
    "fixed-ra-up": (header(6, "b", 8), "lies", STEP),
    "aux-255": (header(7, "B", 255), "lies", BAD),
    "fdes-0": (header(8, "I", 0), "true", "no_rows"),
    "fdes-max": (header(8, "I", 0xFFFFFFFF), "true", BAD),
    "fdes-one-more": (lambda p: p.put(p.at + 8, "I", p.fdes + 1), "lies", BAD),
    "fres-max": (header(12, "I", 0xFFFFFFFF), "lies", "-"),
    "row-bytes-0": (header(16, "I", 0), "true", BAD),
    "row-bytes-max": (header(16, "I", 0xFFFFFFFF), "true", BAD),
    "fdeoff-max": (header(20, "I", 0xFFFFFFFF), "true", BAD),
    "fdeoff-1": (header(20, "I", 1), "lies", BAD),
    "freoff-max": (header(24, "I", 0xFFFFFFFF), "true", BAD),
    "freoff-0": (header(24, "I", 0), "true", BAD),
    # Functions.
    "backwards": (backwards, "lies", BAD),
    "size-0": (fdes(4, "I", 0), "true", BAD),
    "size-max": (fdes(4, "I", 0xFFFFFFFF), "lies", "-"),
    "rows-at-max": (fdes(8, "I", 0xFFFFFFFF), "true", BAD),
    "rows-at-0": (fdes(8, "I", 0), "lies", "-"),
    "num-rows-0": (fdes(12, "I", 0), "true", BAD),
    "num-rows-max": (fdes(12, "I", 0xFFFFFFFF), "true", BAD),
    "row-type-15": (fdes(16, "B", 15), "true", "malformed"),
    "repeat-0": (lambda p: (p.every_fde(16, "B", 0x10), p.every_fde(17, "B", 0)), "true",
                 "malformed"),
    "repeat-1": (lambda p: (p.every_fde(16, "B", 0x10), p.every_fde(17, "B", 1)), "lies", "-"),
    # Rows.
    "still": (rows_that_stand_still, "true", BAD),
    "cfa-0": (lambda p: p.cfa(0), "true", "cfa_not_rising"),
    "cfa-negative": (lambda p: p.cfa(-64), "true", "cfa_not_rising"),
    "cfa-odd": (lambda p: p.cfa(13), "true", "cfa_misaligned cfa_not_rising"),
    "cfa-8": (lambda p: p.cfa(8), "lies", STEP),
    "cfa-far": (lambda p: p.cfa(0x7FFFFFF8), "lies", STEP),
    "cfa-lowest": (lambda p: p.cfa(-0x80000000), "true", STEP),
    "base-fp": (base_fp, "lies", STEP),
    # All of it.
    "zeros": (lambda p: p.data.__setitem__(slice(p.at, p.at + p.size), bytes(p.size)), "true",
              "malformed"),
    **{f"noise-{s}": (noise(s, 0, 1 << 30), "lies", BAD) for s in range(3)},
    **{f"noise-behind-header-{s}": (noise(s, HEADER, 1 << 30), "lies", "-") for s in range(5)},
    **{f"noise-in-rows-{s}": (noise(s, 600, 1 << 30), "lies", "-") for s in range(5)},
    **{f"sprinkle-{s}": (sprinkle(s), "lies", "-") for s in range(10)},
    # The way there.
    "section-in-kernel": (segment(16, "Q", 0xFFFF800000000000), "true", "section_fault"),
    "section-at-the-end": (segment(16, "Q", 0xFFFFFFFFFFFFFFF0), "true", "section_fault malformed"),
    "section-nowhere": (segment(16, "Q", 0x100000000000), "true", "section_fault"),
    "section-not-canonical": (segment(16, "Q", 0x7FFFFFFFFFFF0000), "true", "section_fault"),
    "section-short": (segment(40, "Q", 64), "true", BAD),
    "section-empty": (segment(40, "Q", 0), "true", BAD),
    "section-huge": (segment(40, "Q", 1 << 63), "lies", "-"),
    "section-endless": (segment(40, "Q", (1 << 64) - 1), "lies", "-"),
}


def main():
    with open(sys.argv[1], "rb") as file:
        good = file.read()
    with open(os.path.join(sys.argv[2], "list"), "w", encoding="ascii") as names:
        for name, (change, truth, reasons) in CASES.items():
            program = Program(good)
            change(program)
            path = os.path.join(sys.argv[2], name)
            with open(path, "wb") as file:
                file.write(program.data)
            os.chmod(path, 0o755)
            print(name, truth, reasons, file=names)


if __name__ == "__main__":
    main()
