#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Check that a walk needs little stack.

usage: check_stack.py OBJECT LIMIT ENTRY...

Adds up, over the calls within OBJECT, the bytes of stack that each function takes, and fails if the
deepest chain from any ENTRY needs more than LIMIT bytes. Before a function jumps to another one at
its end, it gives the bytes back, which objtool checks; but not before it jumps to its own cold
part. The stack of the kernel's own functions is not counted: an NMI has 8 KiB for all of it.
"""

import re
import subprocess
import sys

FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
ADJUST = re.compile(r"\b(sub|add)\s+\$0x([0-9a-f]+),%rsp")
PUSH = re.compile(r"\bpush\s+%")
CALL = re.compile(r"\b(call|j[a-z]+)\s+[0-9a-f]+ <([^>+]+)(?:\+0x[0-9a-f]+)?>")
TRANSFER = re.compile(r"\b(call|j[a-z]+)\s")
RELOCATION = re.compile(r"R_X86_64_(?:PLT32|PC32)\s+(\S+?)(?:([-+]0x[0-9a-f]+))?$")
SECTION = re.compile(r"^Disassembly of section (\S+):")


def read(path):
    """Bytes of stack of each function of an object, and its callees: whether each is called, not
    jumped to."""
    listing = subprocess.run(["objdump", "-dr", "--no-show-raw-insn", path], check=True,
                             capture_output=True, text=True).stdout
    size, callees = {}, {}
    # Functions by section and address, and callees that are known by those.
    places, unnamed = {}, []
    section, name, verb, target = None, None, None, None

    def add(caller, callee, is_call):
        is_call = is_call or callee.startswith(caller.split(".")[0] + ".")
        callees[caller][callee] = callees[caller].get(callee, False) or is_call

    for line in listing.splitlines() + [""]:
        relocation = RELOCATION.search(line)
        if target and not relocation:
            # With a relocation, the operand of the instruction itself has no meaning.
            add(name, target, verb == "call")
        target = None
        if SECTION.match(line):
            section = SECTION.match(line).group(1)
        start = FUNCTION.match(line)
        if start:
            name, verb = start.group(2), None
            places[section, int(start.group(1), 16)] = name
            size[name], callees[name] = 8, {}  # the return address
            continue
        if name is None:
            continue
        if relocation:
            if verb:
                add(name, relocation.group(1), verb == "call")
                # Relative to the end of the instruction, which ends with the address.
                address = int(relocation.group(2) or "0", 16) + 4
                unnamed.append((name, relocation.group(1), address, verb == "call"))
            continue
        if PUSH.search(line):
            size[name] += 8
        elif ADJUST.search(line):
            # `add $-128` takes stack as `sub $128` does, and `sub $-128` gives it back.
            which, number = ADJUST.search(line).groups()
            taken = int(number, 16)
            if len(number) == 16:
                taken = (taken ^ 1 << 63) - (1 << 63)
            size[name] += max(0, taken if which == "sub" else -taken)
        verb = TRANSFER.search(line).group(1) if TRANSFER.search(line) else None
        target = CALL.search(line).group(2) if CALL.search(line) else None
    for caller, where, address, is_call in unnamed:
        if (where, address) in places:
            add(caller, places[where, address], is_call)
    return size, callees


def deepest(name, size, callees, above=()):
    """The chain of functions from NAME that needs most, and its bytes."""
    if name in above:
        sys.exit(f"check_stack.py: {' -> '.join(above + (name,))} is a recursion")
    best, most = ((name, size[name]),), size[name]
    for callee, is_call in callees[name].items():
        if callee in size and callee != name:
            chain, need = deepest(callee, size, callees, above + (name,))
            own = size[name] if is_call else 0
            if need + own > most:
                best, most = ((name, own),) + chain, need + own
    return best, most


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
