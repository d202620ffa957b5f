#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Computes the costs of walks, whole runs and table builds from the files that tools/bench/guest
writes.

usage: fit.py DIRECTORY OUT [PICTURES]

For each case in DIRECTORY, a line is fitted to the medians of the case's walks at each depth: its
slope is the cost of a frame, its intercept the cost of a sample. The median, because the first walk
after a change of the mappings or of the tables costs up to 7,000 more, and how often that happens
in a run depends on the machine. `rare`: by how much the mean cost of a walk exceeds the median.
Writes OUT as JSON, PICTURES-kernel.svg if DIRECTORY has all cases, and PICTURES-depth.svg if it has
`fp`, `hot` and `three`. Prints the results as tables.
"""

import collections
import json
import math
import os
import statistics
import sys

DEPTHS = 4, 16, 64, 120
WALKS = ("fp orc untouched hot hot_100 hot_40000 hot_8_files direct direct_100 direct_40000 "
         "deferred_fp deferred_hot rows fixed java changing_4 changing_half mapping_change "
         "mapping_change_8_files three").split()
SAMPLES = "sample_fp sample_hot sample_direct sample_dwarf".split()


def calls(path):
    """The instructions of each walk, by the number of frames that the walk found."""
    found = collections.defaultdict(list)
    with open(path, encoding="ascii") as file:
        for line in file:
            frames, taken = map(int, line.split())
            found[frames].append(taken)
    return found


def points(directory, case):
    """For each number of frames: the number, and the median and the mean cost of a walk. For each
    depth, only the walks from the innermost function count, which are most walks; walks from the
    program's other code are left out."""
    if case == "orc":
        # Kernel stacks of one depth differ, so their mean counts.
        walks = calls(os.path.join(directory, "orc.0"))
        return [(frames, statistics.mean(taken), statistics.mean(taken))
                for frames, taken in walks.items() if frames and len(taken) >= 20]
    found = []
    # In direct mode, the budget of a sample is for fewer frames than the last depth.
    for depth in DEPTHS[:3] if case.startswith("direct") else DEPTHS:
        walks = calls(os.path.join(directory, f"{case}.{depth}"))
        frames, taken = max(walks.items(), key=lambda item: len(item[1]))
        if len(taken) < 100 or frames < depth and case not in SAMPLES:
            sys.exit(f"{case}: {len(taken)} walks of {frames} frames at depth {depth}: too few")
        found.append((frames or depth, statistics.median(taken), statistics.mean(taken)))
    return found


def lines_of(path):
    """The words of each line of a file; none if there is no such file."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [line.split() for line in file]


def show_runs(path):
    """Prints and returns the costs of whole runs."""
    runs = {}
    for name, taken, samples, lost, size, script in lines_of(path):
        runs[name] = {
            "nanoseconds": int(taken), "samples": int(samples), "lost": int(lost),
            "bytes_a_sample": round(int(size) / int(samples), 1), "script_nanoseconds": int(script)}
    if runs:
        print(f"\n{'':14} {'ms':>8} {'samples':>8} {'lost':>5} {'bytes/sample':>13} "
              f"{'perf script, ms':>16}")
    for name, run in runs.items():
        print(f"{name:14} {run['nanoseconds'] / 1e6:8.1f} {run['samples']:8} {run['lost']:5} "
              f"{run['bytes_a_sample']:13.1f} {run['script_nanoseconds'] / 1e6:16.0f}")
    if "fp" in runs and "sframe" in runs:
        print(f"sframe over fp: {runs['sframe']['nanoseconds'] / runs['fp']['nanoseconds']:.3f}")
    return runs


def show_tables(path):
    """Prints and returns the costs of table builds."""
    tables = {}
    for name, taken, rows, size in lines_of(path):
        tables[name] = {"rows": int(rows), "instructions_a_row": round(int(taken) / int(rows), 1),
                        "bytes_a_row": round(int(size) / int(rows), 2)}
    if tables:
        print(f"\n{'':24} {'rows':>9} {'instructions/row':>17} {'bytes/row':>10}")
    for name, table in tables.items():
        print(f"{name:24} {table['rows']:9} {table['instructions_a_row']:17.1f} "
              f"{table['bytes_a_row']:10.2f}")
    return tables


def show_worst(path):
    """Prints and returns the costs of walks of programs that are made to be slow to walk."""
    programs = {}
    for name, count, median, most, of_all in lines_of(path):
        programs[name] = {"walks": int(count), "median": int(median), "most": int(most),
                          "most_of_all": int(of_all)}
    if programs:
        print(f"\n{'':22} {'walks':>6} {'median':>8} {'most':>8} {'of all':>8}")
    for name, its in programs.items():
        print(f"{name:22} {its['walks']:6} {its['median']:8} {its['most']:8} "
              f"{its['most_of_all']:8}")
    if programs:
        worst = max(its["most_of_all"] for its in programs.values())
        more = max(its["most"] - programs["kernel_" + name]["most"]
                   for name, its in programs.items()
                   if "kernel_" + name in programs)
        print(f"\nworst {worst}\nworst_untouched {more}")
    return programs


def show_programs(directory, kernel):
    """Prints and returns the mean costs of the walks of real programs, and what the kernel's walk
    by frame pointers takes for as many frames: `kernel` is its line."""
    programs = {}
    for file in sorted(os.listdir(directory)):
        name = file.removeprefix("program.")
        walks = calls(os.path.join(directory, file)) if name != file else {}
        count = sum(len(taken) for taken in walks.values())
        if not count:
            continue
        frames = sum(frames * len(taken) for frames, taken in walks.items()) / count
        programs[name] = {
            "walks": count, "frames": round(frames, 1),
            "kernel": round(kernel.intercept + kernel.slope * frames),
            "module": round(sum(sum(taken) for taken in walks.values()) / count)}
    if programs:
        print(f"\n{'':14} {'walks':>6} {'frames':>7} {'kernel':>8} {'module':>8}")
    for name, its in programs.items():
        print(f"{name:14} {its['walks']:6} {its['frames']:7} {its['kernel']:8} {its['module']:8}")
    return programs


def show_lines(path):
    """Prints and returns the numbers of cache lines of a table that a lookup touches."""
    lines = {name: {"mean": float(mean), "three_or_fewer": float(few)}
             for name, mean, few in lines_of(path)}
    if lines:
        print(f"\n{'cache lines':14} {'a lookup':>10} {'<= 3, %':>8}")
    for name, its in lines.items():
        print(f"{name:14} {its['mean']:10.2f} {its['three_or_fewer']:8.1f}")
    return lines


def show_touched(directory, found):
    """Prints and returns the lines of cache that walks touch, for each frame: of the user's memory,
    and of the kernel's; and the lines of code of the deepest walk."""
    labels = collections.defaultdict(list)
    for label, *lines in lines_of(os.path.join(directory, "touched")):
        labels[label].append(tuple(map(int, lines)))
    touched = {}
    for case, its in found.items():
        medians = [[statistics.median(kind) for kind in zip(*labels[f"{case}.{depth}"])]
                   for depth in DEPTHS if f"{case}.{depth}" in labels]
        if len(medians) == len(its):
            frames = [frames for frames, _ in its]
            user, kernel, _ = (statistics.linear_regression(frames, kind).slope
                               for kind in zip(*medians))
            touched[case] = {"user": round(user, 2), "kernel": round(kernel, 2),
                             "code": round(medians[-1][2])}
    if touched:
        print(f"\n{'lines touched':14} {'user':>6} {'kernel':>7} {'code':>5}")
    for case, its in touched.items():
        print(f"{case:14} {its['user']:6.2f} {its['kernel']:7.2f} {its['code']:5}")
    return touched


COLOURS = {"fp": "#777777", "hot": "#0060c0", "three": "#208030", "direct": "#c05000",
           "dwarf": "#a01030"}


def drawn(*diagrams):
    """Diagrams side by side, as SVG. A diagram has a title, a text below, two axes and curves. An
    axis is a function from values to 0..1, and marks; a curve is a list of points."""
    width = 20 + 370 * len(diagrams)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 360" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="360" fill="white"/>']
    for number, (title, below, across, up, curves) in enumerate(diagrams):
        left = 70 + 370 * number
        (place_x, marks_x), (place_y, marks_y) = across, up
        x_of = lambda value, left=left, place=place_x: left + 270 * place(value)
        y_of = lambda value, place=place_y: 310 - 250 * place(value)
        out.append(f'<text x="{left}" y="30" font-size="14">{title}</text>')
        out.append(f'<text x="{left + 135}" y="350" text-anchor="middle">{below}</text>')
        for mark in marks_y:
            out.append(f'<path d="M{left} {y_of(mark):.1f}h270" stroke="#dddddd"/>'
                       f'<text x="{left - 6}" y="{y_of(mark) + 4:.1f}" '
                       f'text-anchor="end">{mark:,}</text>')
        for mark in marks_x:
            out.append(f'<text x="{x_of(mark):.1f}" y="328" text-anchor="middle">{mark:,}</text>')
        for name, curve in curves.items():
            way = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in curve)
            out.append(f'<polyline points="{way}" '
                       f'fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
            x, y = curve[-1]
            out.append(f'<text x="{x_of(x) + 5:.1f}" y="{y_of(y) + 4:.1f}" '
                       f'fill="{COLOURS[name]}">{name}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def depths(found):
    """A picture of the cost of a walk over the number of its frames."""
    linear = lambda most: lambda value: value / most
    return drawn(("Instructions a walk", "frames", (linear(140), (9, 21, 69, 125)),
                  (linear(6_000), range(0, 6_001, 1_000)),
                  {case: found[case] for case in ("fp", "hot", "three")}))


def picture(found, per_frame):
    """Two diagrams: the cost of a sample over the depth of the stack, and the cost of a frame over
    the number of functions in the frame's file."""
    def logarithmic(least, most):
        return lambda value: (math.log10(value) - least) / (most - least)

    samples = {case.removeprefix("sample_"): list(zip(DEPTHS, (taken for _, taken in found[case])))
               for case in SAMPLES}
    sizes = 100, 4_000, 40_000
    across_files = {"fp": [(size, per_frame["fp"]) for size in sizes]}
    for case in "hot", "direct":
        costs = per_frame[f"{case}_100"], per_frame[case], per_frame[f"{case}_40000"]
        across_files[case] = list(zip(sizes, costs))
    return drawn(
        ("Instructions a sample", "functions deep", (lambda value: value / 130, DEPTHS),
         (logarithmic(3, 6), (1_000, 10_000, 100_000, 1_000_000)), samples),
        ("Instructions a frame", "functions of the file", (logarithmic(1.7, 4.9), sizes),
         (logarithmic(1, 4), (10, 100, 1_000, 10_000)), across_files))


def main():
    directory, out, *pictures = sys.argv[1:]
    found = {case: points(directory, case) for case in WALKS + SAMPLES
             if any(name.startswith(case + ".") for name in os.listdir(directory))}
    rare = {case: statistics.mean(mean - median for _, median, mean in its)
            for case, its in found.items()}
    found = {case: [(frames, median) for frames, median, _ in its] for case, its in found.items()}
    lines = {case: statistics.linear_regression(*zip(*its)) for case, its in found.items()}
    print(f"{'':14} {'per frame':>10} {'per sample':>11} {'rare':>6}")
    for case, line in lines.items():
        print(f"{case:14} {line.slope:10.1f} {line.intercept:11.0f} {rare[case]:6.0f}")
    result = {
        "per_frame": {case: round(line.slope, 2) for case, line in lines.items()},
        "per_sample": {case + "_fixed": round(line.intercept) for case, line in lines.items()},
    }
    result["rare"] = {case: round(its) for case, its in rare.items()}
    if {"untouched", "fp"} <= found.keys():
        more = [with_module - without
                for (_, with_module), (_, without) in zip(found["untouched"], found["fp"])]
        result["per_sample"]["untouched_task"] = round(statistics.mean(more))
        print("\nwhere there is nothing to gain, above the kernel's own: "
              f"{statistics.mean(more):.0f}")
    result["programs"] = show_programs(directory, lines["fp"]) if "fp" in lines else {}
    result["cache_lines"] = show_lines(os.path.join(directory, "lines"))
    result["touched"] = show_touched(directory, found)
    result["worst"] = show_worst(os.path.join(directory, "worst"))
    result["runs"] = show_runs(os.path.join(directory, "runs"))
    result["tables"] = show_tables(os.path.join(directory, "tables"))
    with open(out, "w", encoding="ascii") as file:
        json.dump(result, file, indent="\t")
        file.write("\n")
    drawings = {}
    if all(case in found for case in WALKS + SAMPLES):
        drawings["kernel"] = picture(found, result["per_frame"])
    if {"fp", "hot", "three"} <= found.keys():
        drawings["depth"] = depths(found)
    for name, drawing in drawings.items():
        if pictures:
            with open(f"{pictures[0]}-{name}.svg", "w", encoding="ascii") as file:
                file.write(drawing)


if __name__ == "__main__":
    main()
