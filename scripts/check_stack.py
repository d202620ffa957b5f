#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Check that a walk needs little stack.

usage: check_stack.py OBJECT LIMIT ENTRY...

Adds up, over the calls within OBJECT, what each function takes of the stack, and fails if the
deepest chain from any ENTRY needs more than LIMIT bytes. What the kernel's own functions need is
not counted: an NMI has 8 KiB for all of it.
"""

import re
import subprocess
import sys

FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
ADJUST = re.compile(r"\b(sub|add)\s+\$0x([0-9a-f]+),%rsp")
PUSH = re.compile(r"\bpush\s+%")
CALL = re.compile(r"\b(?:call|jmp|j[a-z]+)\s+[0-9a-f]+ <([^>+]+)(?:\+0x[0-9a-f]+)?>")
RELOCATION = re.compile(r"R_X86_64_(?:PLT32|PC32)\s+(\S+?)(?:[-+]0x[0-9a-f]+)?$")
SECTION = re.compile(r"^Disassembly of section (\S+):")


def read(path):
    """Bytes of stack and callees of each function of an object."""
    listing = subprocess.run(["objdump", "-dr", "--no-show-raw-insn", path], check=True,
                             capture_output=True, text=True).stdout
    size, callees = {}, {}
    name, transfer = None, False
    for line in listing.splitlines():
        start = FUNCTION.match(line)
        if start:
            name = start.group(1)
            size[name], callees[name] = 8, set()  # the return address
            continue
        if name is None:
            continue
        relocation = RELOCATION.search(line)
        if relocation and transfer:
            callees[name].add(relocation.group(1))
        elif PUSH.search(line):
            size[name] += 8
        elif ADJUST.search(line):
            # `add $-128` takes as `sub $128` does, and the other way round for giving back.
            verb, number = ADJUST.search(line).groups()
            taken = (int(number, 16) ^ 1 << 63) - (1 << 63) if len(number) == 16 else int(number, 16)
            size[name] += max(0, taken if verb == "sub" else -taken)
        if not relocation:
            call = CALL.search(line)
            transfer = re.search(r"\b(call|jmp|j[a-z]+)\s", line) is not None
            if call:
                callees[name].add(call.group(1))
    return size, callees


def deepest(name, size, callees, above=()):
    """The chain of functions from NAME that needs most, and its bytes."""
    if name in above:
        sys.exit(f"check_stack.py: {' -> '.join(above + (name,))} is a recursion")
    best, most = (), 0
    for callee in callees[name] - {name}:
        if callee in size:
            chain, need = deepest(callee, size, callees, above + (name,))
            if need > most:
                best, most = chain, need
    return ((name, size[name]),) + best, most + size[name]


def main():
    path, limit, entries = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    size, callees = read(path)
    failed = False
    for entry in entries:
        if entry not in size:
            sys.exit(f"check_stack.py: {path} has no function {entry}")
        chain, need = deepest(entry, size, callees)
        print(f"{entry}: {need} bytes of {limit}")
        for name, own in chain:
            print(f"  {own:5} {name}")
        failed |= need > limit
    return failed


if __name__ == "__main__":
    sys.exit(main())
