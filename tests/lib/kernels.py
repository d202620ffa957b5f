#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Write the table of kernels from the TAP lines that the stages `kernel` have kept.

usage: kernels.py DIRECTORY [RST]

DIRECTORY has a file for each kernel. Prints a table in Markdown; or puts it, as a list, into the
file RST, between its two comments that say so. Kernels that are in RST and not in DIRECTORY
keep their results there.

A cell has the number of its tests that passed, with the lowest share of complete stacks among them,
of the samples whose truth is known; or the failed tests; or the reason why there is nothing to
test. Every test belongs to a column: those of no other are in `other stacks`.
"""

import os
import re
import sys
import textwrap

# A test belongs to the first column whose expression matches its name.
COLUMNS = (
    ("object", r"^(the module cannot panic|a walk needs|no indirect|no return|functions whose|"
               r"a kCFI hash|reads of user memory|check-object|"
               r"the code (of the fast path is small|is at most))"),
    ("log", r"log is clean"),
    ("load", r"the module (un)?loads|ended with status"),
    ("deferred", r"deferred|fp,defer"),
    ("demo", r"demo"),
    ("bpftrace", r"bpf"),
    ("python3", r"python3"),
    ("perl", r"^perl"),
    ("signals", r"^signals"),
    ("uprobes", r"probe"),
    ("hostile", r"hostile|lies|comes and goes|sections of no use"),
    ("reloads", r"loaded and unloaded|hook is taken|without the hook"),
    ("other stacks", r""),
)
LINE = re.compile(r"(?P<bad>not )?ok - (?P<kernel>[^:]+): (?P<name>[^#]*)"
                  r"(?:# SKIP (?P<reason>.*))?")
SHARE = re.compile(r"# [0-9.]+ % of [0-9]+ samples complete "
                   r"\(complete (?P<complete>\d+), short (?P<short>\d+), "
                   r"false (?P<false>\d+), empty (?P<empty>\d+),")
STACKS = re.compile(r"# (?P<complete>[0-9]+) of (?P<all>[0-9]+) stacks are complete")
RELEASE = re.compile(r"# (?P<release>[0-9]+\.[0-9]\S+), [0-9]+ bytes")
# Stacks that must be complete; for others any share is accepted.
COMPLETE = re.compile(r" is (complete|bpf)\b|stacks are complete")


class Cell:
    """What the tests of a column have found."""

    def __init__(self):
        self.passed, self.failed, self.reasons, self.shares = 0, [], [], []

    def text(self):
        if self.failed:
            return f"{len(self.failed)} FAILED: {'; '.join(self.failed)}"
        if not self.passed:
            return "; ".join(dict.fromkeys(self.reasons)) or "not run"
        share = f", {min(self.shares):.2f} %" if self.shares else ""
        return f"{self.passed} passed{share}"


def row(path):
    """The cells of one kernel."""
    cells = {name: Cell() for name, _ in COLUMNS}
    release, commit, last = "release not recorded", "", None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number == 0:
                commit = line.lstrip("# ").strip()
            elif found := RELEASE.match(line):
                release = found["release"]
            elif found := LINE.match(line):
                name = found["name"].strip()
                cell = cells[next(column for column, form in COLUMNS if re.search(form, name))]
                last = None
                if found["bad"]:
                    cell.failed.append(name)
                elif found["reason"]:
                    cell.reasons.append(found["reason"])
                else:
                    cell.passed += 1
                    last = cell if COMPLETE.search(name) else None
            elif last and (found := SHARE.match(line)):
                numbers = [int(number) for number in found.groups()]
                last.shares.append(100 * numbers[0] / max(sum(numbers), 1))
            elif last and (found := STACKS.match(line)):
                last.shares.append(100 * int(found["complete"]) / int(found["all"]))
    return [os.path.basename(path), release, *(cells[name].text() for name, _ in COLUMNS), commit]


def release_of(text):
    """The numbers of a kernel's release, from the first line of a text that ends with it."""
    return [int(part) for part in re.findall(r"\d+", text.split("\n")[0].split(": ")[-1])]


def main():
    directory = sys.argv[1]
    head = ["kernel", "release", *(name for name, _ in COLUMNS), "tested at"]
    rows = [row(os.path.join(directory, name)) for name in os.listdir(directory)]
    rows.sort(key=lambda cells: release_of(cells[1]))
    if len(sys.argv) == 2:
        for cells in [head, ["---"] * len(head), *rows]:
            print(f"| {' | '.join(cells)} |")
        return
    with open(sys.argv[2], encoding="utf-8") as file:
        text = file.read()
    before, kept, after = re.split(
        r"(?s)(?<=\.\. The table begins\.\n)(.*)(?=\.\. The table ends\.\n)", text)
    # A page is too narrow for the table, so there each kernel is an entry of a list.
    texts = {found[1]: found[0].strip()
             for found in re.finditer(r"(?ms)^``(\S+)``: .*?(?=^``|\Z)", kept)}
    for cells in rows:
        texts[cells[0]] = f"``{cells[0]}``: {cells[1]}\n" + textwrap.fill(
            "; ".join(f"{name}: {cell}" for name, cell in zip(head[2:], cells[2:])), 100,
            initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("\n\n".join([before.rstrip(), *sorted(texts.values(), key=release_of), after]))


main()
