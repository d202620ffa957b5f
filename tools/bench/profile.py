#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Counts the instructions of a sample in each function.

usage: profile.py [CASE]

CASE (default: hot) is a case of tools/bench/guest that samples by get_perf_callchain. QEMU logs
each instruction while the case runs with stacks of 4 functions (java: of 4 methods, and of the
virtual machine's functions). The output: the mean number of instructions of a sample in each
function. `tools/bench/run CASE` must have run before, for the programs. build/bench/profile/trace
keeps the instructions of the sample with the median number of instructions: address and function,
in order.
"""

import bisect
import collections
import os
import re
import shutil
import socket
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARE = os.path.join(ROOT, "build/bench/profile")
# The size of QEMU's log, in bytes: about fifty samples, and the program between them.
ENOUGH = 400_000_000


def monitor(*commands):
    """Gives commands to QEMU's monitor."""
    with socket.socket(socket.AF_UNIX) as its:
        # The path of a socket may have 107 bytes at most.
        here = os.open(SHARE, os.O_PATH)
        its.connect(f"/proc/self/fd/{here}/monitor")
        os.close(here)
        for command in ("", *commands):
            if command:
                its.sendall(command.encode() + b"\n")
            answer = b""
            while not answer.endswith(b"(qemu) "):
                more = its.recv(4096)
                if not more:
                    return
                answer += more


def take_log(case):
    """Runs the guest, and writes the guest's log of instructions and symbols to SHARE."""
    shutil.rmtree(SHARE, ignore_errors=True)
    os.makedirs(SHARE)
    with open(os.path.join(SHARE, "profile"), "w", encoding="ascii"):
        pass
    environment = os.environ | {
        "VM_MONITOR": "monitor", "VM_TIMEOUT": "1200", "VM_LOG": os.path.join(SHARE, "kernel.log")}
    output = os.path.join(SHARE, "output")
    with open(output, "wb") as out, subprocess.Popen(
            [os.path.join(ROOT, "scripts/vm"), "--icount", "--share", SHARE, "--",
             "/src/tools/bench/guest", case],
            env=environment, stdout=out, stderr=out) as guest:
        symbols, log = os.path.join(SHARE, "symbols"), os.path.join(SHARE, "log")
        while not os.path.exists(symbols):
            if guest.poll() is not None:
                sys.exit(f"profile: the guest ended before case {case} began; see {output}")
            time.sleep(1)
        # perf starts, and the code caches fill.
        time.sleep(40)
        monitor("one-insn-per-tb on", "logfile /share/log", "log exec,nochain")
        while (os.path.getsize(log) if os.path.exists(log) else 0) < ENOUGH:
            if guest.poll() is not None:
                sys.exit(f"profile: the guest ended before enough was logged; see {output}")
            time.sleep(0.2)
        monitor("stop", "log none", "quit")


def read_symbols():
    """The sorted addresses of the guest's functions, and their names."""
    found = {}
    with open(os.path.join(SHARE, "symbols"), encoding="utf-8") as lines:
        for line in lines:
            address, kind, name = line.split()[:3]
            if kind in "tTwW":
                found.setdefault(int(address, 16), name)
    addresses = sorted(found)
    return addresses, [found[address] for address in addresses]


def samples(addresses, names):
    """The instructions of each call of get_perf_callchain: a list of (address, function)."""
    entry = addresses[names.index("get_perf_callchain")]
    trace = re.compile(r"^Trace \d+: 0x[0-9a-f]+ \[[0-9a-f]+/([0-9a-f]+)/")
    before = caller = None
    taken = []
    with open(os.path.join(SHARE, "log"), encoding="ascii", errors="replace") as log:
        for line in log:
            match = trace.match(line)
            if not match:
                continue
            pc = int(match[1], 16)
            if pc == entry:
                caller, taken = before, []
            name = names[max(bisect.bisect_right(addresses, pc) - 1, 0)]
            if caller is not None:
                if name == caller:
                    yield taken
                    caller = None
                else:
                    taken.append((pc, name))
            before = name


def main():
    case = sys.argv[1] if len(sys.argv) > 1 else "hot"
    take_log(case)
    found = list(samples(*read_symbols()))
    if len(found) < 5:
        sys.exit(f"profile: only {len(found)} samples were logged")
    functions = collections.Counter(name for its in found for _, name in its)
    with open(os.path.join(SHARE, "trace"), "w", encoding="ascii") as out:
        out.writelines(f"{pc:x} {name}\n" for pc, name in sorted(found, key=len)[len(found) // 2])
    os.remove(os.path.join(SHARE, "log"))
    for name, count in functions.most_common():
        print(f"{count / len(found):8.1f}  {name}")
    print(f"{functions.total() / len(found):8.1f}  in all; {len(found)} samples")


main()
