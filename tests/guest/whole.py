#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Checks by addresses alone whether stacks reach the first instructions of a program or a thread.

usage: whole.py FILE... <TEXT

FILEs are the program and ld.so. TEXT is the output of `perf script --show-mmap-events -F
comm,time,event,ip`; or the text of /proc/PID/maps, and then stacks in perf's form, as bpftrace
prints them. A thread begins behind the system call in libc that makes the thread, and continues
behind the call that follows.

Prints the number of stacks, the number of complete stacks, and the time from the first incomplete
stack to the last one, in milliseconds; -1 if all stacks are complete. The first incomplete stack is
the first request for rows. A program may have stacks in known files before, and wait for a disk.
"""

import functools
import re
import subprocess
import sys

# The maximum size of the code at a program's entry point, in bytes.
BEGINNING = 96

MAPPED = (re.compile(r"PERF_RECORD_MMAP2? .*\[0x(?P<start>[0-9a-f]+)\(.* @ "
                     r"(0x)?(?P<offset>[0-9a-f]+) .* (?P<path>/\S+)$"),
          re.compile(r"(?P<start>[0-9a-f]+)-[0-9a-f]+ r.xp (?P<offset>[0-9a-f]+) "
                     r".* (?P<path>/\S+)$"))
SEGMENT = re.compile(r"\s+LOAD\s+(0x[0-9a-f]+) (0x[0-9a-f]+) \S+ (0x[0-9a-f]+) \S+ R.E")
GO = re.compile(r"\s+[0-9]+: ([0-9a-f]+) +([0-9]+) FUNC .* "
                r"runtime\.(?:goexit|rt0_go|clone|mcall|morestack)(?:\.abi0)?\n")
# The code that makes a thread: syscall; and, on the new stack, call *%rdx.
THREAD = re.compile(rb"\x0f\x05.{1,48}?\xff\xd2", re.DOTALL)
# A heading, and not the line of a mapping that MAPPED does not take, as that of the vDSO.
STACK = re.compile(r"\s*(?P<who>\S+)\s+(?P<time>[0-9.]+):\s+(?!PERF_RECORD_)\S")
ADDRESS = re.compile(r"\s*(0x)?(?P<address>[0-9a-f]+)\s*$")


def beginnings(path):
    """The places in the file in which stacks begin: the program's first instructions, and Go's
    outermost functions. Each place is an offset in the file and a length, in bytes."""
    text = subprocess.run(["readelf", "-hlsW", path], capture_output=True, text=True,
                          check=True).stdout
    segments = [[int(number, 16) for number in found] for found in SEGMENT.findall(text)]
    begin = [(int(re.search(r"Entry point address:\s*(0x[0-9a-f]+)", text)[1], 16), BEGINNING)]
    begin += [(int(address, 16), int(size)) for address, size in GO.findall(text)]
    found = [(address - start + offset, length) for address, length in begin
             for offset, start, size in segments if 0 <= address - start < size]
    return found or sys.exit(f"{path}: no segment has the entry point")


@functools.cache
def thread_beginnings(path):
    """The offsets in libc at which threads begin, and at which they continue. Each program maps
    libc, so the result is cached."""
    with open(path, "rb") as file:
        return [(found.start() + len(b"\x0f\x05"), found.end())
                for found in THREAD.finditer(file.read())]


def judged(lines, files):
    """Judges the stacks of a text. Returns a list of tuples: the first word of the stack's heading;
    its time, in seconds; whether it is complete, None for a stack without frames."""
    known = {path.rsplit("/", 1)[1]: beginnings(path) for path in files}
    starts, new, threads, stacks = [], set(), set(), []
    for line in lines:
        line = line.rstrip()
        mapped = next(filter(None, (form.search(line) for form in MAPPED)), None)
        if mapped:
            name = mapped["path"].rsplit("/", 1)[1]
            base = int(mapped["start"], 16) - int(mapped["offset"], 16)
            starts += [(base + offset, length) for offset, length in known.get(name, [])]
            if name.startswith("libc.so"):
                for begin, go_on in thread_beginnings(mapped["path"]):
                    new.add(base + begin)
                    threads.add(base + go_on)
        elif found := STACK.match(line):
            stacks.append((found["who"], float(found["time"]), []))
        elif (found := ADDRESS.match(line)) and stacks:
            stacks[-1][2].append(int(found["address"], 16))

    def is_whole(chain):
        return (any(0 <= chain[-1] - start < length for start, length in starts)
                or chain[-1] in (threads if len(chain) > 1 else new))
    return [(who, time, is_whole(chain) if chain else None) for who, time, chain in stacks]


def main():
    stacks = [(time, whole) for _, time, whole in judged(sys.stdin, sys.argv[1:])
              if whole is not None]
    if not stacks:
        sys.exit("no stacks")
    missing = [time for time, whole in stacks if not whole]
    print(len(stacks), len(stacks) - len(missing),
          int((missing[-1] - missing[0]) * 1000) if missing else -1)


if __name__ == "__main__":
    main()
