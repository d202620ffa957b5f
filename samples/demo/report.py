#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Report what `record` recorded: one stack side by side, and how many are complete."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/lib"))
import judge  # pylint: disable=wrong-import-position

SAMPLES = 500  # at least, of each recording
FRAME_POINTERS = 5.0  # percent complete, at most
SFRAME = 99.0  # percent complete, at least


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
        print(f"{left[i] if i < len(left) else '':<32}  {right[i] if i < len(right) else ''}".rstrip())
    print()


def main():
    results = sys.argv[1]
    recordings = {name: read(results, name)
                  for name in ("fp", "fp-deferred", "sframe", "sframe-deferred")}
    side_by_side(recordings["fp"][0], recordings["sframe"][0])

    complete = {}
    for name, (_, count) in recordings.items():
        complete[name] = count.percent("complete")
        print(f"{name + ':':<17} {count.text().splitlines()[0]}")
    # Of the two modes, the one that speaks against us.
    total = sum(count.samples for _, count in recordings.values())
    frame_pointers = max(complete["fp"], complete["fp-deferred"])
    sframe = min(complete["sframe"], complete["sframe-deferred"])
    print(f"demo: {total} samples, complete user stacks: "
          f"frame pointers {frame_pointers:.2f} %, sframe {sframe:.2f} %")
    enough = all(count.samples >= SAMPLES for _, count in recordings.values())
    return not (enough and frame_pointers <= FRAME_POINTERS and sframe >= SFRAME)


if __name__ == "__main__":
    sys.exit(main())
