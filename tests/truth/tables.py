#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Print the tables of Documentation/accuracy.rst, from the output of `make truth` in build/truth.

With `debian`, print the table of Documentation/accuracy-debian.rst instead, from the files that
`tests/truth/samples.sh N debian` left there.
"""

import json
import os
import sys

TRUTH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/truth")


def table(widths, rows):
    """A table in reStructuredText; the first row is its head."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: " + widths, ""]
    for row in rows:
        lines += [("     - " if at else "   * - ") + str(cell) for at, cell in enumerate(row)]
    return "\n".join(lines)


def read(path):
    """A JSON file of build/truth; exits with a message if it is missing."""
    try:
        with open(os.path.join(TRUTH, path), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        sys.exit(f"build/truth/{path} is not there; run: make truth")


def steps():
    """Instrument 2, by version."""
    rows = ["Version Programs Instructions covered".split()
            + ["equal frames", "interrupted", "explained", "unexplained"]]
    for version in "v1 v2 v2e1 v3 debian".split():
        programs = read(f"steps/{version}.json")["programs"]
        sums = [sum(program[what] for program in programs) for what in
                ("steps", "covered", "frames", "signals", "explained", "unexplained")]
        rows.append([version] + [f"{number:,}" for number in [len(programs)] + sums])
    return table("10 10 15 15 16 14 10 10", rows)


def samples():
    """Instrument 1, by program, both contexts together."""
    groups = read("samples/json")["groups"]
    rows = [["Program", "Judged", "identical", "false", "to main", "kernel",
             "frame pointers", "fp and prologues", "dwarf, 8 KiB"]]
    for program in sorted({group["program"] for group in groups}):
        def share(way, what, who="module"):
            of = [group for group in groups if group["program"] == program and group["by"] == who]
            shares = [group["judged"] * (group[way][what] if what else group[way]) for group in of]
            return sum(shares) / sum(group["judged"] for group in of)

        def both(way, who="module"):
            return f"{share(way, 'to_main', who):.1f} / {share(way, 'false', who):.1f}"

        judged = sum(group["judged"] for group in groups
                     if group["program"] == program and group["by"] == "module")
        rows.append([program, f"{judged:,}", f"{share('identical', None):.2f}",
                     f"{share('reported', 'false'):.2f}", f"{share('reported', 'to_main'):.1f}",
                     both("reported", "kernel"), both("frame_pointers"),
                     both("frame_pointers_and_prologues"),
                     f"{share('dwarf_8_kib', 'to_main'):.1f}"])
    return table("18 9 9 7 8 14 13 13 9", rows)


def debian():
    """Debian's own programs, in Markdown."""
    groups = [group for group in read("samples/json")["groups"] if group["program"].startswith("debian/")]
    with open(os.path.join(TRUTH, "samples/bpftrace"), encoding="ascii") as file:
        lines = [line.split() for line in file]
    by_bpf = {name: (int(stacks), int(whole)) for name, stacks, whole, _ in lines}
    by_bpf[""] = [sum(numbers) for numbers in zip(*by_bpf.values())]

    rows = [["program", "samples", "immediate", "deferred", "bpftrace", "identical", "false", "no row",
             "frames", "dwarf frames", "kernel"]]
    for program in sorted({group["program"] for group in groups}) + [""]:
        every = [group for group in groups if program in ("", group["program"])]
        ours = [group for group in every if group["by"] == "module"]

        def mean(of, value):
            judged = sum(group["judged"] for group in of)
            return sum(group["judged"] * value(group) for group in of) / judged if judged else 0.0

        def complete(of):
            return f"{mean(of, lambda group: group['reported']['complete']):.2f}" if of else "-"

        def context(name):
            return [group for group in ours if group["context"] == name]

        judged = sum(group["judged"] for group in ours) or 1
        # Samples that ended where there is no row.
        no_row = sum(reason["samples"] for group in ours for reason in group["reasons"]
                     if reason["reason"] == "no_rows")
        stacks, whole = by_bpf.get(program.removeprefix("debian/"), (0, 0))
        rows.append([
            program.removeprefix("debian/") or "all",
            f"{sum(group['judged'] for group in ours):,}",
            complete(context("immediate")), complete(context("deferred")),
            f"{100 * whole / stacks:.2f}" if stacks else "-",
            f"{mean(ours, lambda group: group['identical']):.2f}",
            f"{sum(round(group['judged'] * group['reported']['false'] / 100) for group in ours)}",
            f"{100 * no_row / judged:.2f}",
            f"{sum(group['frames_reported'] for group in ours) / judged:.2f}",
            f"{sum(group['frames_dwarf_8_kib'] for group in ours) / judged:.2f}",
            complete([group for group in every if group["by"] == "kernel"]),
        ])
    return table("18 9 8 8 8 8 7 8 8 9 9", rows)


print(debian() if sys.argv[1:] == ["debian"] else steps() + "\n\n" + samples())
