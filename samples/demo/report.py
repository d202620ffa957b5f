#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Report what `record` recorded: one stack side by side, how many are complete, and flame
graphs."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/lib"))
import judge  # pylint: disable=wrong-import-position

SAMPLES = 500  # at least, of each recording
FRAME_POINTERS = 5.0  # percent complete, at most
SFRAME = 99.0  # percent complete, at least
# Percent of a flame graph's samples that lie under main. Unlike complete stacks, they include those
# of start-up, and those whose frames above main are false.
UNDER_MAIN_FRAME_POINTERS = 10.0  # at most
UNDER_MAIN_SFRAME = 95.0  # at least


def read(results, name):
    """The samples of a recording with their verdicts, and their counts."""
    with open(os.path.join(results, "chain." + name), encoding="ascii") as file:
        tree = judge.Tree(file)
    count = judge.Count()
    samples = []
    for sample in judge.read_perf(judge.perf_script(os.path.join(results, "perf." + name))):
        verdict = judge.judge(sample, tree)
        count.add(sample, verdict, tree)
        samples.append((sample, verdict))
    return samples, count


def names(sample):
    return [frame.symbol for frame in sample.frames]


def side_by_side(without, with_module):
    """The deepest stack with the module, next to one taken at the same place without it."""
    places = {names(sample)[0]: sample for sample, _ in without if sample.frames}
    both = [sample for sample, verdict in with_module
            if verdict.kind == "complete" and names(sample)[0] in places]
    if not both:
        return
    deep = max(both, key=lambda sample: len(sample.frames))
    left, right = names(places[names(deep)[0]]), names(deep)
    print(f"{'frame pointers':<32}  sframe")
    for i in range(max(len(left), len(right))):
        one, other = (side[i] if i < len(side) else "" for side in (left, right))
        print(f"{one:<32}  {other}".rstrip())
    print()


def under_main(results, name):
    """The percentage of samples under frames named main, by the titles of a flame graph's frames.

    A flame graph has no frame for less than half a percent.
    """
    with open(os.path.join(results, name + ".svg"), encoding="utf-8") as file:
        titles = re.findall(r"<title>(.*?) \([0-9,]+ samples, ([0-9.]+)%\)</title>", file.read())
    if ("all", "100") not in titles:
        sys.exit(f"report: {name}.svg is not a flame graph")
    return sum(float(percent) for function, percent in titles if function == "main")


def main():
    results = sys.argv[1]
    deferred = os.path.exists(os.path.join(results, "perf.sframe-deferred"))
    kinds = ("fp", "fp-deferred", "sframe", "sframe-deferred") if deferred else ("fp", "sframe")
    recordings = {name: read(results, name) for name in kinds}
    side_by_side(recordings["fp"][0], recordings["sframe"][0])

    complete = {}
    for name, (_, count) in recordings.items():
        complete[name] = count.percent("complete")
        print(f"{name + ':':<17} {count.text().splitlines()[0]}")
    if not deferred:
        print("deferred:         this kernel defers no stacks")
    drawn = {name: under_main(results, name) for name in ("frame-pointers", "sframe")}
    print("flame graphs: samples under main: "
          f"frame-pointers.svg {drawn['frame-pointers']:.2f} %, sframe.svg {drawn['sframe']:.2f} %")
    pictures = (drawn["frame-pointers"] <= UNDER_MAIN_FRAME_POINTERS
                and drawn["sframe"] >= UNDER_MAIN_SFRAME)
    # The mode with the lower share counts.
    total = sum(count.samples for _, count in recordings.values())
    frame_pointers = max(complete[name] for name in kinds if name.startswith("fp"))
    sframe = min(complete[name] for name in kinds if name.startswith("sframe"))
    print(f"demo: {total} samples, complete user stacks: "
          f"frame pointers {frame_pointers:.2f} %, sframe {sframe:.2f} %")
    enough = all(count.samples >= SAMPLES for _, count in recordings.values())
    return not (enough and pictures and frame_pointers <= FRAME_POINTERS and sframe >= SFRAME)


if __name__ == "__main__":
    sys.exit(main())
