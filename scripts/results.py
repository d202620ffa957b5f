#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Keeps the figures of the documents: in Documentation/results/*.csv, and in tables made from them.

usage: results.py                  writes the tables into the documents
       results.py --check          exits with 1 if a table differs from its figures
       results.py --record WHAT    takes the figures that a measurement has left in build/, too

WHAT is samples, steps, runtimes, programs, no-harm, witness, bench, convert or peers.

The first lines of a CSV file are its licence and the command that measures. Then follow the names
of the columns. The columns before `commit` name a row: --record replaces the row of that name.

A table in a document stands between two marks, `results: NAME` and `end of results`. TABLES has all
names, with the columns that are shown.
"""

import csv
import json
import pathlib
import re
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = "Documentation/results"
HISTORY = "tools/bench/history.csv"
MARKED = re.compile(
    r"^(?P<begin>(?:\.\. |<!-- )results: (?P<name>[\w-]+)(?: -->)?\n)"
    r".*?^(?P<end>(?:\.\. |<!-- )end of results(?: -->)?)$", re.MULTILINE | re.DOTALL)


class Table(NamedTuple):
    """A table of a document."""
    # The name of the CSV file, without its end.
    source: str
    # The titles of the shown columns, by the columns' names.
    columns: dict
    # The values that a shown row has, by the columns' names: one value, or several in their order.
    rows: dict = {}
    # Whether each row of the CSV file is a column of the table.
    is_turned: bool = False


def same(*names):
    """Columns whose titles are their names."""
    return {name: name for name in names}


DEBIAN = {
    "program": "program", "samples": "samples",
    "immediate %": "immediate", "deferred %": "deferred", "bpftrace %": "bpftrace",
    "identical %": "identical", "false": "false", "frames": "frames",
    "dwarf frames": "dwarf", "frame pointers %": "kernel"}
TABLES = {
    "readme": Table("peers", {
        "tool": "Debian's perl, unmodified",
        "complete %": "complete stacks, %",
        "bytes a sample": "bytes of output a sample",
        "kernel instructions a sample": "kernel's instructions a sample",
        "perf script us a sample": "CPU time of `perf script` a sample, µs",
    }, {"program": ["perl"], "tool": ["perf-fp", "perf-dwarf-8192", "perf-fp-module"]}, True),
    "samples": Table("samples", {
        "program": "program", "identical %": "identical",
        "false %": "false", "to main %": "to main", "kernel to main %": "kernel",
        "kernel false %": "(false)", "frame pointers to main %": "fp",
        "frame pointers false %": "(false)", "prologues to main %": "prologues",
        "prologues false %": "(false)", "dwarf to main %": "dwarf"}),
    "debian": Table("debian", DEBIAN),
    "frame-pointers": Table("frame-pointers", DEBIAN),
    "readme-frame-pointers": Table("frame-pointers", {
        "program": "built with frame pointers: complete stacks, %",
        "frame pointers %": "frame pointers", "immediate %": "sframe_unwind"},
        {"program": ["perl", "sqlite3", "all"]}),
    "steps": Table("steps", same(
        "version", "programs", "instructions", "covered", "equal frames", "interrupted",
        "explained", "unexplained")),
    "programs": Table("programs", {
        "title": "program", "commit": "commit", "immediate %": "immediate",
        "deferred %": "deferred", "bpftrace %": "bpftrace", "before regions %": "before"}),
    "runtimes": Table("runtimes", {
        "program": "program", "seed": "seed", "commit": "commit", "unexplained": "wrong",
        "explained": "explained", "outermost %": "outermost", "judged whole %": "whole",
        "frames": "frames", "by calls": "by calls", "presumed": "presumed"}),
    "kernel-walk": Table("kernel-walk", {
        "program": "program", "commit": "commit", "worse %": "worse", "better %": "better",
        "right %": "right", "skipped %": "skipped", "second right %": "second",
        "second skipped %": "skipped", "false": "false", "kernel right %": "kernel",
        "kernel skipped %": "skipped", "kernel second %": "second", "kernel false": "false"}),
    "no-harm": Table("no-harm", same(
        "program", "stacks", "commit", "samples", "same", "better", "worse", "worse %",
        "complete %", "frames") | {"kernel frames": "kernel's"}),
    "witness": Table("witness", {
        "virtual machine": "virtual machine", "mode": "mode", "commit": "commit",
        "stacks": "stacks", "equal stacks": "equal", "methods": "methods",
        "interpreted frames": "interpreted", "compiled frames": "compiled"}),
    "walks": Table("walks", same("case", "commit", "a frame", "a sample"),
                   {"kernel": ["debian"], "build": ["own"]}),
    "prices": Table("prices", same(
        "program", "commit", "walks", "frames", "kernel", "module", "saved %")),
    "readme-prices": Table("prices", {
        "program": "instructions a stack", "frames": "frames", "kernel": "frame pointers",
        "module": "sframe_unwind"}),
    "touched": Table("touched", {
        "case": "case", "commit": "commit", "user lines a frame": "user",
        "kernel lines a frame": "kernel", "code": "code"}),
    "kernels": Table("walks", same("release", "build", "commit", "case", "a frame", "a sample"),
                     {"case": ["fp", "hot"]}),
    "hostile": Table("hostile", same(
        "program", "commit", "walks", "median", "most", "most of all")),
    "peers": Table("peers", {
        "program": "program", "tool": "tool", "samples": "samples", "complete %": "complete",
        "kernel instructions a sample": "kernel", "ms of CPU to the first sample": "start",
        "tool us a sample": "tool", "perf script us a sample": "script", "tool MiB": "MiB",
        "bytes a sample": "bytes", "later complete %": "later"}),
    "long": Table("long", same("test", "of", "number", "problems")),
    "lookups": Table("lookups", same("reader", "commit", "instructions", "ns"),
                     {"file": ["libsqlite3.so"]}),
}

# Titles of rows and columns that a reader of the README does not know.
README_WORDS = {"perf-fp": "frame pointers", "perf-dwarf-8192": "`--call-graph dwarf`",
                "perf-fp-module": "sframe_unwind", "all": "all of twelve programs"}


def read(text):
    """The comments, the names of the columns, and the rows of a CSV file."""
    lines = text.splitlines(keepends=True)
    comments = [line for line in lines if line.startswith("#")]
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    return comments, reader.fieldnames, list(reader)


def chosen(table, fields, rows):
    """The cells of a table; the first row is its head."""
    missing = [name for name in [*table.columns, *table.rows] if name not in fields]
    if missing:
        sys.exit(f"results: {table.source}.csv has no column {missing[0]}")
    rows = [row for row in rows if all(row[name] in values for name, values in table.rows.items())]
    for name, values in table.rows.items():
        rows.sort(key=lambda row: values.index(row[name]))
    if not rows:
        sys.exit(f"results: {table.source}.csv has no row of a table")
    first = next(iter(table.columns))
    if not all(row[first] for row in rows):
        # A measurement of a new program gives no title.
        sys.exit(f"results: {table.source}.csv has a row without {first}")
    cells = [list(table.columns.values())]
    cells += [[shown(name, row[name]) for name in table.columns] for row in rows]
    return [list(column) for column in zip(*cells)] if table.is_turned else cells


def shown(name, value):
    """A cell as readers see it: large numbers with commas. A commit may look like a number."""
    is_large = name != "commit" and re.fullmatch(r"\d{4,}", value)
    return f"{int(value):,}" if is_large else value


def is_number(value):
    """Whether a cell belongs on the right."""
    return re.fullmatch(r"-?[\d,.]*", value) is not None


def aligned(cells):
    """The cells, filled with blanks to columns of equal width, and these widths."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    on_the_right = [all(map(is_number, column[1:])) for column in zip(*cells)]
    return [[cell.rjust(width) if right else cell.ljust(width)
             for cell, width, right in zip(row, widths, on_the_right)] for row in cells], widths


def in_rst(cells):
    """A simple table of reStructuredText."""
    cells, widths = aligned(cells)
    rule = " ".join("=" * width for width in widths)
    lines = [" ".join(row).rstrip() for row in cells]
    return "\n".join(["", rule, lines[0], rule, *lines[1:], rule, "", ""])


def in_markdown(cells):
    """A table of Markdown."""
    head, *rows = [[README_WORDS.get(cell, cell) for cell in row] for row in cells]
    lines = [" | ".join(["", *row, ""]).strip() for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(["", *lines, "", ""])


def rendered(text, sources, is_markdown=False):
    """A document with its tables made anew. `sources` gives the text of a CSV file by its name."""
    def replaced(match):
        name = match["name"]
        if name not in TABLES:
            sys.exit(f"results: there is no table {name}")
        _, fields, rows = read(sources(TABLES[name].source))
        cells = chosen(TABLES[name], fields, rows)
        return match["begin"] + (in_markdown if is_markdown else in_rst)(cells) + match["end"]
    return MARKED.sub(replaced, text)


def documents(root):
    """The files that may have tables."""
    return [root / "README.md", *sorted((root / "Documentation").rglob("*.rst"))]


def render(root, is_check):
    """Writes all tables, or names those that differ. Returns the exit status."""
    def source(name):
        return (root / RESULTS / f"{name}.csv").read_text(encoding="utf-8")
    status = 0
    for path in documents(root):
        old = path.read_text(encoding="utf-8")
        new = rendered(old, source, path.suffix == ".md")
        if new == old:
            continue
        if is_check:
            print(f"{path.relative_to(root)}: a table differs from its figures; "
                  "run scripts/results.py")
            status = 1
        else:
            path.write_text(new, encoding="utf-8")
    return status


def merged(fields, old, new):
    """Rows with new figures. A new row takes the place of the row with its name, and keeps the
    cells that a measurement does not give."""
    key = fields[:fields.index("commit")]
    rows = {tuple(row[name] for name in key): row for row in old}
    for row in new:
        row = {name: str(value) for name, value in row.items()}
        unknown = [name for name in row if name not in fields]
        if unknown:
            raise ValueError(f"there is no column {unknown[0]}")
        name = tuple(row[name] for name in key)
        rows[name] = dict.fromkeys(fields, "") | rows.get(name, {}) | row
    return list(rows.values())


def record(root, name, new):
    """Writes new rows to a CSV file."""
    path = root / RESULTS / f"{name}.csv"
    comments, fields, rows = read(path.read_text(encoding="utf-8"))
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.writelines(comments)
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(merged(fields, rows, new))


def remember(root, walks):
    """Adds walks on Debian's newest kernel to the history, whose rows stay."""
    path = root / HISTORY
    _, fields, _ = read(path.read_text(encoding="utf-8"))
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n", extrasaction="ignore")
        writer.writerows(row for row in walks if row["kernel"] == "debian")


def measured(directory):
    """What a measurement is of, by `measured` of scripts/lib.sh."""
    return {name: (directory / name).read_text(encoding="ascii").strip()
            for name in ("commit", "release")}


def mean(groups, value):
    """The mean of a figure over all judged samples of groups."""
    judged = sum(group["judged"] for group in groups)
    return sum(group["judged"] * value(group) for group in groups) / judged if judged else 0.0


def of_samples(groups, of):
    """Rows of samples.csv, both contexts together."""
    for program in sorted({group["program"] for group in groups}):
        ours, kernels = ([group for group in groups
                          if group["program"] == program and group["by"] == by]
                         for by in ("module", "kernel"))
        row = {"program": program, **of, "judged": sum(group["judged"] for group in ours),
               "identical %": f"{mean(ours, lambda group: group['identical']):.2f}",
               "false %": f"{mean(ours, lambda group: group['reported']['false']):.2f}"}
        for title, its, way in (
                ("", ours, "reported"), ("kernel ", kernels, "reported"),
                ("frame pointers ", ours, "frame_pointers"),
                ("prologues ", ours, "frame_pointers_and_prologues"),
                ("dwarf ", ours, "dwarf_8_kib")):
            row[title + "to main %"] = f"{mean(its, lambda group: group[way]['to_main']):.1f}"
            if title not in ("", "dwarf "):
                row[title + "false %"] = f"{mean(its, lambda group: group[way]['false']):.1f}"
        yield row


def of_debian(groups, bpftrace, of):
    """Rows of debian.csv or frame-pointers.csv: the programs, and all of them if there are more
    than one."""
    by_bpf = {name: (int(stacks), int(whole)) for name, stacks, whole, _ in
              (line.split() for line in bpftrace)}
    by_bpf["all"] = tuple(sum(numbers) for numbers in zip(*by_bpf.values()))
    programs = sorted({group["program"] for group in groups})
    for program in [*programs, *(["all"] if len(programs) > 1 else [])]:
        every = [group for group in groups if program in ("all", group["program"])]
        ours = [group for group in every if group["by"] == "module"]

        def complete(its):
            return f"{mean(its, lambda group: group['reported']['complete']):.2f}" if its else ""

        def context(name):
            return [group for group in ours if group["context"] == name]

        judged = sum(group["judged"] for group in ours) or 1
        no_row = sum(reason["samples"] for group in ours for reason in group["reasons"]
                     if reason["reason"] == "no_rows")
        stacks, whole = by_bpf.get(program, (0, 0))
        yield {
            "program": program, **of, "samples": judged,
            "immediate %": complete(context("immediate")),
            "deferred %": complete(context("deferred")),
            "bpftrace %": f"{100 * whole / stacks:.2f}" if stacks else "",
            "identical %": f"{mean(ours, lambda group: group['identical']):.2f}",
            "false": sum(round(group["judged"] * group["reported"]["false"] / 100)
                         for group in ours),
            "no row %": f"{100 * no_row / judged:.2f}",
            "frames": f"{sum(group['frames_reported'] for group in ours) / judged:.2f}",
            "dwarf frames": f"{sum(group['frames_dwarf_8_kib'] for group in ours) / judged:.2f}",
            "frame pointers %": complete([group for group in every if group["by"] == "kernel"])}


def from_samples(build):
    """The figures of tests/truth/samples.sh."""
    directory = build / "truth/samples"
    of = measured(directory)
    groups = json.loads((directory / "json").read_text(encoding="utf-8"))["groups"]
    ours = [group for group in groups if not group["program"].startswith("debian")]
    figures = {"samples": list(of_samples(ours, of))}
    for name, start in (("debian", "debian/"), ("frame-pointers", "debian-fp/")):
        its = [group | {"program": group["program"].removeprefix(start)} for group in groups
               if group["program"].startswith(start)]
        if its:
            lines = (directory / "bpftrace").read_text(encoding="ascii").splitlines()
            figures[name] = list(of_debian(its, [line.removeprefix(start) for line in lines
                                                 if line.startswith(start)], of))
    return figures


def from_steps(build):
    """The figures of tests/truth/steps.sh."""
    directory = build / "truth/steps"
    sums = {"instructions": "steps", "covered": "covered", "equal frames": "frames",
            "interrupted": "signals", "explained": "explained", "unexplained": "unexplained"}
    rows = []
    for path in sorted(directory.glob("*.json")):
        programs = json.loads(path.read_text(encoding="utf-8"))["programs"]
        rows.append({"version": path.stem, "commit": measured(directory)["commit"],
                     "seed": (directory / "seed").read_text(encoding="ascii").strip(),
                     "programs": len(programs)}
                    | {title: sum(program[name] for program in programs)
                       for title, name in sums.items()})
    return {"steps": rows}


def from_runtimes(build):
    """The figures of `tests/truth/steps.sh STEPS runtimes`."""
    sys.path.insert(0, str(ROOT / "tests/truth"))
    import runtimes  # pylint: disable=import-outside-toplevel
    wanted = runtimes.Wanted(build / "truth/runtimes")
    titles = ("program", "steps", "threads", "unexplained", "explained", "outermost %",
              "judged whole %", "frames", "by calls", "presumed")
    rows, kernel_rows = [], []
    for name in wanted.keys:
        report, _ = wanted.result(name)
        if report:
            cells = [re.sub(r",| %", "", cell) for cell in runtimes.row(name, report)[1:]]
            of = {"seed": wanted.seed, "commit": wanted.commit_of(name)}
            rows.append(of | dict(zip(titles, [name, *cells])))
            kernel_rows.append({"program": name} | of | beside_kernel(report["kernel"]))
    return {"runtimes": rows, "kernel-walk": kernel_rows}


def beside_kernel(found):
    """The comparison of a program's walks with the kernel's own walk, in percent of the judged
    steps."""
    def percent(part, whole):
        return f"{100 * part / whole:.3f}" if whole else "-"

    def of(callers, which):
        return percent(callers[which], sum(callers.values()))
    module, kernel = found["module"], found["kernel"]
    return {
        "steps": found["steps"], "worse %": percent(found["worse"], found["steps"]),
        "better %": percent(found["better"], found["steps"]),
        "right %": of(module["innermost"], "right"),
        "skipped %": of(module["innermost"], "skipped"),
        "second right %": of(module["second"], "right"),
        "second skipped %": of(module["second"], "skipped"), "false": module["false"],
        "kernel right %": of(kernel["innermost"], "right"),
        "kernel skipped %": of(kernel["innermost"], "skipped"),
        "kernel second %": of(kernel["second"], "right"), "kernel false": kernel["false"]}


def from_programs(build):
    """The figures of stage `programs`."""
    directory = build / "results/programs"
    rows = {}
    for line in (build / "results/tap").read_text(encoding="utf-8").splitlines():
        found = re.match(r"# (\S+) (fp|fp,defer|bpftrace): ([\d.]+) % of (\d+) stacks", line)
        if found:
            name, way, share, walks = found.groups()
            way = {"fp": "immediate", "fp,defer": "deferred"}.get(way, way)
            rows.setdefault(name, {}).update({f"{way} %": share, f"{way} walks": walks})
        found = re.match(r"# (\S+): sframectl watch took (\d+) ticks of 10 ms in (\d+) s", line)
        if found:
            name, ticks, seconds = found.groups()
            rows.setdefault(name, {}).update(
                {"watch CPU s": f"{int(ticks) / 100:.2f}", "measured s": seconds})
        found = re.match(r"# (\S+): complete stacks in each two of the first 20 s.*stacks\): (.*)",
                         line)
        if found:
            shares = re.findall(r"(\S+) \(\d+\)", found[2])
            rows.setdefault(found[1], {}).update(
                {f"at {2 * at + 2} s %": share.strip("-") for at, share in enumerate(shares)})
    of = measured(directory)
    return {"programs": [{"program": name, **of} | row for name, row in rows.items()]}


def from_no_harm(build):
    """The figures of stage `no-harm`."""
    compared = re.compile(
        r"# (\S+), (immediate|deferred|from the start): (\d+) samples compared, \d+ not; "
        r"same (\d+), better (\d+), worse (\d+) \(([\d.]+) %\); complete ([\d.]+) %; "
        r"frames a sample: ([\d.]+), the kernel's own ([\d.]+)")
    names = ("program", "stacks", "samples", "same", "better", "worse", "worse %", "complete %",
             "frames", "kernel frames")
    of = measured(build / "results/no-harm")
    lines = (build / "results/tap").read_text(encoding="utf-8").splitlines()
    found = filter(None, map(compared.match, lines))
    return {"no-harm": [dict(zip(names, match.groups())) | of for match in found]}


def from_witness(build):
    """The figures of stage `witness`."""
    of = measured(build / "results/witness")["commit"]
    titles = ("virtual machine", "mode", "equal stacks", "stacks", "methods", "interpreted frames",
              "compiled frames")
    found = re.findall(
        r"^(?:not )?ok - (OpenJDK \d+): (.*): (\d+) of (\d+) stacks are equal, (\d+) methods "
        r"by (\d+) interpreted and (\d+) compiled frames",
        (build / "results/tap").read_text(encoding="utf-8"), re.MULTILINE)
    return {"witness": [dict(zip(titles, cells)) | {"commit": of} for cells in found]}


def from_convert(build):
    """The figures of tools/bench/convert."""
    result = json.loads((build / "bench/convert/json").read_text(encoding="ascii"))
    of = measured(build / "bench/convert")["commit"]
    return {"convert": [
        {"file": name, "commit": of, "CPU ms": f"{1000 * its['seconds']:.0f}",
         "MiB": f"{its['bytes'] / 2**20:.0f}",
         "million instructions": f"{its['instructions'] / 1e6:.1f}" if its["instructions"] else ""}
        for name, its in result.items()]}


def from_bench(build):
    """The figures of tools/bench/run."""
    result = json.loads((build / "bench/kernel.json").read_text(encoding="ascii"))
    of = result["of"]
    known = {"commit": measured(build / "bench")["commit"], "release": of["release"]}
    of_walk = {"kernel": of["kernel"], "build": of["build"]} | known
    known["build"] = of["build"]
    samples = result["per_sample"]
    walks = [{"case": case, "a frame": f"{frame:.1f}", "a sample": samples[case + "_fixed"]}
             | of_walk for case, frame in result["per_frame"].items()]
    if "untouched_task" in samples:
        walks.append({"case": "untouched_task", "a sample": samples["untouched_task"]} | of_walk)
    return {
        "walks": walks,
        "hostile": [{"program": name, "walks": its["walks"], "median": its["median"],
                     "most": its["most"], "most of all": its["most_of_all"]} | known
                    for name, its in result["worst"].items()],
        "runs": [{"stacks": name, "ms": f"{its['nanoseconds'] / 1e6:.1f}",
                  "samples": its["samples"], "lost": its["lost"],
                  "bytes a sample": its["bytes_a_sample"],
                  "perf script ms": f"{its['script_nanoseconds'] / 1e6:.0f}"} | known
                 for name, its in result["runs"].items()],
        "builds": [{"file": name, "rows": its["rows"],
                    "instructions a row": its["instructions_a_row"],
                    "bytes a row": f"{its['bytes_a_row']:.2f}"} | known
                   for name, its in result["tables"].items()],
        "lines": [{"file": name, "commit": known["commit"],
                   "cache lines a lookup": f"{its['mean']:.2f}",
                   "at most 3 %": f"{its['three_or_fewer']:.1f}"}
                  for name, its in result["cache_lines"].items()],
        "prices": [{"program": name, "walks": its["walks"], "frames": f"{its['frames']:.1f}",
                    "kernel": its["kernel"], "module": its["module"],
                    "saved %": f"{100 - 100 * its['module'] / its['kernel']:.0f}"} | known
                   for name, its in result["programs"].items()],
        "touched": [{"case": case, "user lines a frame": f"{its['user']:.2f}",
                     "kernel lines a frame": f"{its['kernel']:.2f}", "code": its["code"]} | known
                    for case, its in result["touched"].items()]}


PEERS = {
    "samples": ("samples", ".0f"), "lost": ("lost", ".0f"),
    "complete_percent": ("complete %", ".2f"),
    "kernel_instructions": ("kernel instructions a sample", ".0f"),
    "tool_ms_to_first_sample": ("ms of CPU to the first sample", ".0f"),
    "ms_to_first_complete": ("ms to the first complete stack", ".0f"),
    "tool_us_a_sample": ("tool us a sample", ".1f"),
    "script_us_a_sample": ("perf script us a sample", ".0f"), "tool_mib": ("tool MiB", ".0f"),
    "script_mib": ("perf script MiB", ".0f"), "bytes_a_sample": ("bytes a sample", ".0f"),
    "later_samples": ("later samples", ".0f"),
    "later_complete_percent": ("later complete %", ".2f"),
}


def from_peers(build):
    """The figures of tools/bench/peers."""
    directory = build / "bench/peers"
    of = measured(directory)
    result = json.loads((directory / "peers.json").read_text(encoding="ascii"))
    rows = []
    for program, its in result["programs"].items():
        for tool, columns in its.items():
            row = {"program": program, "tool": tool, **of}
            for name, (title, form) in PEERS.items():
                value = columns.get(name)
                row[title] = "" if value is None else format(value, form)
            if "later_samples" in columns:
                samples, begin = columns["later_samples"], columns["later_last_incomplete"] + 1
                row["later complete from"] = begin if begin <= samples else ""
            rows.append(row)
    return {"peers": rows}


MEASUREMENTS = {"samples": from_samples, "steps": from_steps, "runtimes": from_runtimes,
                "programs": from_programs, "no-harm": from_no_harm, "witness": from_witness,
                "bench": from_bench, "convert": from_convert, "peers": from_peers}


def main(arguments):
    """Runs the command line. Returns the exit status."""
    if len(arguments) == 2 and arguments[0] == "--record" and arguments[1] in MEASUREMENTS:
        figures = MEASUREMENTS[arguments[1]](ROOT / "build")
        for name, rows in figures.items():
            record(ROOT, name, rows)
        remember(ROOT, figures.get("walks", []))
    elif arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    return render(ROOT, arguments == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
