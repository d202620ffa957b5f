#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Whether stacks reach the instructions that a program begins with, as addresses alone tell.

usage: whole.py FILE... <TEXT

FILEs are the program and ld.so. TEXT is what `perf script --show-mmap-events -F comm,time,event,ip`
prints; or a process's maps, and then stacks in that form, as bpftrace prints them.

Prints how many stacks there are, how many of them are whole, and how long after the first stack the last
one is that is not, in milliseconds; -1 if all are.
"""

import re
import subprocess
import sys

# The most code that a program begins with, in bytes.
BEGINNING = 96

MAPPED = (re.compile(r"PERF_RECORD_MMAP2? .*\[0x(?P<start>[0-9a-f]+)\(.* @ (0x)?(?P<offset>[0-9a-f]+) .*/(?P<name>\S+)$"),
          re.compile(r"(?P<start>[0-9a-f]+)-[0-9a-f]+ r.xp (?P<offset>[0-9a-f]+) .*/(?P<name>\S+)$"))
STACK = re.compile(r"\s*\S+\s+(?P<time>[0-9.]+):\s+\S")
ADDRESS = re.compile(r"\s*(0x)?(?P<address>[0-9a-f]+)\s*$")


def main():
    entries = {}
    for path in sys.argv[1:]:
        header = subprocess.run(["readelf", "-hW", path], capture_output=True, text=True, check=True).stdout
        entries[path.rsplit("/", 1)[1]] = int(re.search(r"Entry point address:\s*(0x[0-9a-f]+)", header)[1], 16)
    starts, stacks = [], []
    for line in sys.stdin:
        line = line.rstrip()
        mapped = next(filter(None, (form.search(line) for form in MAPPED)), None)
        if mapped and mapped["name"] in entries:
            # These files lie in memory as they do in the file.
            starts.append(int(mapped["start"], 16) - int(mapped["offset"], 16) + entries[mapped["name"]])
        elif found := STACK.match(line):
            stacks.append((float(found["time"]), []))
        elif (found := ADDRESS.match(line)) and stacks:
            stacks[-1][1].append(int(found["address"], 16))
    stacks = [(time, any(0 <= chain[-1] - start < BEGINNING for start in starts)) for time, chain in stacks if chain]
    if not stacks:
        sys.exit("no stacks")
    missing = [int((time - stacks[0][0]) * 1000) for time, whole in stacks if not whole]
    print(len(stacks), len(stacks) - len(missing), max([-1, *missing]))


main()
