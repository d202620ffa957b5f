#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""usage: calls.py FUNCTIONS <DUMP

Judges the stacks of tests/programs/calls.c. FUNCTIONS is the file that the program has written, and
DUMP the output of `perf script -D`: perf itself adds frames to the stacks that it shows, so the
recorded addresses are judged. Prints the numbers of complete stacks, of complete stacks through the
signal handler, of short ones and of false ones, and false ones as examples.

The innermost function may be any of a chain: a sample may come before its call or after it. A
complete stack has all functions of its chain from there on, in their order, and ends with the
program's start.
"""

import collections
import re
import sys

CHAIN = ["leaf", "fourth", "third", "second", "first", "main"]
OF_HANDLER = CHAIN[:3] + ["handler"]
# More bytes than a function has.
SIZE = 512
# The end of user addresses. Above it are the kernel's, and marks of perf between both.
USER = 1 << 55


def stacks(lines):
    """The lists of user addresses."""
    stack = None
    for line in lines:
        address = re.match(r"\.+ +\d+: ([0-9a-f]{16})$", line)
        if "FP chain" in line:
            stack = []
        elif stack is not None and address:
            stack.append(int(address[1], 16))
        elif stack is not None:
            yield [address for address in stack if address < USER]
            stack = None


def is_end(names, chain):
    """Whether the names are those of a chain, from one of its functions on."""
    return bool(names) and names == chain[-len(names):]


def split(names):
    """The functions in front of the code between handler and interrupted code, and behind it; and
    behind main."""
    if "handler" in names:
        at = names.index("handler") + 1
        return names[:at], names[at + 1:], names[at:at + 1]
    return None, names, None


def kind(names):
    """What a stack is. `names` has None for each address in no function of the program."""
    handled, rest, trampoline = split(names)
    if handled is not None:
        if not is_end(handled, OF_HANDLER):
            return "false"
        if not rest:
            return "short"
        if trampoline != [None]:
            return "false"
    # In start-up, in system calls, in the linker: not judged.
    if not rest or rest[0] in (None, "_start"):
        return "other"
    if "main" not in rest:
        return "short" if any(rest == CHAIN[at:at + len(rest)] for at in range(6)) else "false"
    at = rest.index("main") + 1
    if not is_end(rest[:at], CHAIN):
        return "false"
    behind = rest[at:]
    if behind[-1:] != ["_start"]:
        return "short" if not any(behind) else "false"
    if any(behind[:-1]):
        return "false"
    return "complete" if handled is None else "handled"


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        starts = [(int(address, 16), name) for name, address in map(str.split, file)
                  if name != "file"]

    def name_of(address):
        return next((name for start, name in starts if start <= address < start + SIZE and
                     not any(start < other <= address for other, _ in starts)), None)

    found = collections.Counter()
    for stack in stacks(sys.stdin):
        names = [name_of(address) for address in stack]
        found[kind(names)] += 1
        if kind(names) == "false" and found["false"] <= 3:
            print(f"# false: {names} {[hex(address) for address in stack]}", file=sys.stderr)
    print(*(found[name] for name in ("complete", "handled", "short", "false")))


if __name__ == "__main__":
    main()
