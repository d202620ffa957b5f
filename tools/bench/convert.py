#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Counts what conversions cost on the host: CPU time, memory, and instructions.

usage: convert.py [FILE...]

tools/bench/convert runs this script in the prepared root. For each file (default: libc, perl,
libpython, libLLVM and node's library), `sframectl convert` runs five times; the table has the least
CPU time, user and system, and the largest resident size. valgrind counts the instructions of one
more run. Without files, `sframectl prepare` converts all files of the root, too. Writes
build/bench/convert/json, for scripts/results.py.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

SFRAMECTL = "/src/build/tools/sframectl"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
FILES = [f"{LIBRARIES}/libc.so.6", "/usr/bin/perl", f"{LIBRARIES}/libpython3.13.so.1.0",
         f"{LIBRARIES}/libLLVM.so.19*", f"{LIBRARIES}/libnode.so.*"]
RUNS = 5


def run(*command, **environment):
    """The CPU time of a command in seconds, and its largest resident size in bytes."""
    pid = os.posix_spawn(command[0], command, {**os.environ, **environment},
                         file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"convert: {' '.join(command)} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def instructions(*command):
    """The number of instructions of a command, as valgrind counts them."""
    counted = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
                              *command], check=True, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    return int(re.search(r"Collected : (\d+)", counted.stderr)[1])


def main(files):
    """Prints the table, and writes its figures."""
    found = {}
    print(f"{'':24}{'CPU, ms':>10}{'MiB':>8}{'million instructions':>22}")
    with tempfile.TemporaryDirectory() as directory:
        for pattern in files or FILES:
            path = os.path.realpath(glob.glob(pattern)[0])
            command = [SFRAMECTL, "convert", path, "-o", f"{directory}/rows"]
            times, sizes = zip(*(run(*command) for _ in range(RUNS)))
            count = instructions(*command)
            name = os.path.basename(path)
            print(f"{name:24}{1000 * min(times):10.0f}{max(sizes) / 2**20:8.0f}{count / 1e6:22.1f}",
                  flush=True)
            found[name] = {"seconds": min(times), "bytes": max(sizes), "instructions": count}
        if not files:
            os.mkdir(f"{directory}/cache")
            time, size = run(SFRAMECTL, "prepare", CACHE_DIRECTORY=f"{directory}/cache")
            count = len(glob.glob(f"{directory}/cache/*"))
            print(f"prepare, {count} files: {time:.1f} s of CPU time, "
                  f"{size / 2**20:.0f} MiB in its largest process")
            found["prepare"] = {"seconds": time, "bytes": size, "instructions": None}
    with open("/src/build/bench/convert/json", "w", encoding="ascii") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1:])
