#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Compares counted instructions with the recorded ones; prints TAP lines.

usage: gate.py [--record] JSON KERNEL BUILD RELEASE RUSTC COMPILER

JSON is the output of tools/bench/run. The other words say what was counted: a kernel of scripts/vm,
the build of the module (`kernel` or `own`), and the versions of the kernel, of rustc and of the C
compiler. They are added to JSON, for scripts/results.py.
tools/bench/recorded.csv has a line for each of these and each case. --record writes the lines anew.

Counts repeat, so the cost of a frame and the cost of a sample may be at most 2 % above the record.
If the kernel or a compiler has changed since, the last record of this kernel and build counts, with
a limit of 5 %, and the change is reported: then look at the figures, and record them.
"""

import csv
import json
import pathlib
import sys

RECORDED = pathlib.Path(__file__).parent / "recorded.csv"
KEY = ["kernel", "build", "release", "rustc", "compiler"]
FIELDS = KEY + ["case", "frame", "sample"]
# Cases of the module; `fp` is of the kernel itself.
CASES = ("hot",)


def read(path):
    """The lines of the record, as dictionaries."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="ascii") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def write(path, lines):
    with open(path, "w", newline="", encoding="ascii") as file:
        file.write("# SPDX-License-Identifier: GPL-2.0-only\n")
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def counted(result, key):
    """The lines that a result would be recorded by."""
    return [key | {"case": case, "frame": str(frame),
                   "sample": str(result["per_sample"][case + "_fixed"])}
            for case, frame in result["per_frame"].items() if case in ("fp",) + CASES]


def judge(lines, now):
    """The TAP lines for one line of the result."""
    name = f"bench: {now['kernel']}, build {now['build']}: {now['case']}"
    same = [line for line in lines
            if all(line[field] == now[field] for field in ("kernel", "build", "case"))]
    if not same:
        return [f"not ok - {name} is recorded",
                "# There is no record of this kernel and build: run tools/bench/run --record"]
    exact = [line for line in same if all(line[field] == now[field] for field in KEY)]
    was, limit = (exact or same)[-1], 1.02 if exact else 1.05
    bad = [field for field in ("frame", "sample") if float(now[field]) > limit * float(was[field])]
    out = [f"{'not ok' if bad else 'ok'} - {name} costs at most {100 * limit - 100:.0f} % more "
           f"than recorded ({now['frame']} + {now['sample']}, "
           f"recorded {was['frame']} + {was['sample']})"]
    if not exact:
        was, now = (", ".join(line[field] for field in KEY[2:]) for line in (was, now))
        out += [f"# The record is of {was}; this is {now}.",
                "# Look at the figures, and run tools/bench/run --record"]
    return out


def main(arguments):
    record = arguments[:1] == ["--record"]
    path, *words = arguments[record:]
    with open(path, encoding="ascii") as file:
        result = json.load(file)
    result["of"] = dict(zip(KEY, words))
    with open(path, "w", encoding="ascii") as file:
        json.dump(result, file, indent="\t")
        file.write("\n")
    found, lines = counted(result, result["of"]), read(RECORDED)
    if record:
        known = [[line[field] for field in KEY + ["case"]] for line in found]
        lines = [line for line in lines if [line[field] for field in KEY + ["case"]] not in known]
        write(RECORDED, sorted(lines + found,
                               key=lambda line: [line[field] for field in ("kernel", "build")]))
        return
    for line in found:
        if line["case"] in CASES:
            print("\n".join(judge(lines, line)))


if __name__ == "__main__":
    main(sys.argv[1:])
