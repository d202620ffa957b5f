#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What a walk takes, by frame and by sample: a line through the walks of a case.

usage: fit.py DIRECTORY OUT

DIRECTORY has CASE.DEPTH, as tools/bench/guest leaves it; OUT is written as JSON. A table is printed,
and last what a frame takes with the module's tables, over what it takes by frame pointers.
"""

import collections
import json
import os
import statistics
import sys

DEPTHS = 4, 16, 64, 120
CASES = "fp orc untouched hot hot_100 hot_40000 hot_8_files direct deferred_fp deferred_hot".split()


def calls(path):
    """Instructions of each walk, by how many frames it has found."""
    found = collections.defaultdict(list)
    with open(path, encoding="ascii") as file:
        for line in file:
            frames, taken = map(int, line.split())
            found[frames].append(taken)
    return found


def points(directory, case):
    """How many frames, and what they take on the average. Of each depth, the walks from the innermost
    function: most are; those of the program's other code are left out."""
    if case == "orc":
        walks = calls(os.path.join(directory, "orc.0"))
        return [(frames, statistics.mean(taken)) for frames, taken in walks.items() if frames and len(taken) >= 20]
    found = []
    for depth in DEPTHS:
        walks = calls(os.path.join(directory, f"{case}.{depth}"))
        frames, taken = max(walks.items(), key=lambda item: len(item[1]))
        if len(taken) < 100 or frames < depth:
            sys.exit(f"{case}: {len(taken)} walks of {frames} frames at depth {depth}: too few")
        found.append((frames, statistics.mean(taken)))
    return found


def main():
    directory, out = sys.argv[1:]
    found = {case: points(directory, case) for case in CASES
             if any(name.startswith(case + ".") for name in os.listdir(directory))}
    lines = {case: statistics.linear_regression(*zip(*its)) for case, its in found.items()}
    print(f"{'':14} {'per frame':>10} {'per sample':>11}")
    for case, line in lines.items():
        print(f"{case:14} {line.slope:10.1f} {line.intercept:11.0f}")
    result = {
        "per_frame": {case: round(line.slope, 2) for case, line in lines.items()},
        "per_sample": {case + "_fixed": round(line.intercept) for case, line in lines.items()},
    }
    if "untouched" in found:
        more = [with_module - without for (_, with_module), (_, without) in zip(found["untouched"], found["fp"])]
        result["per_sample"]["untouched_task"] = round(statistics.mean(more))
        print(f"\nwhere there is nothing to gain, above the kernel's own: {statistics.mean(more):.0f}")
    result["ratio"] = round(lines["hot"].slope / lines["fp"].slope, 3)
    with open(out, "w", encoding="ascii") as file:
        json.dump(result, file, indent="\t")
        file.write("\n")
    print(f"\nratio {result['ratio']}")


main()
