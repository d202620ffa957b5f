#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Judges the recordings that tests/guest/* left in a directory; prints TAP lines.

usage: verdicts.py DIRECTORY KERNEL

DIRECTORY/cases has a line for each recording: its name and its verdict. On the debug kernel, and on
the one with KCSAN, rows and pages that are missing at first take long: there fewer samples are
enough, and more of them may be short.
"""

import collections
import itertools
import os
import sys

import judge


def known(count):
    """The number of samples whose truth the program knows."""
    return count.samples - count.kinds["no-truth"] - count.kinds["lost"]


def share(count, kind):
    """The share of one kind among them, in percent."""
    return 100 * count.kinds[kind] / known(count) if known(count) else 0.0


def without_truth(kinds):
    """The share of samples without a known truth, in percent, from the first sample with one to the
    last. A host may take any time for a program's start and end. KINDS are those of the samples, in
    their order."""
    known = [number for number, kind in enumerate(kinds) if kind not in ("no-truth", "lost")]
    if not known:
        return 100.0
    within = kinds[known[0]:known[-1] + 1]
    return 100 * within.count("no-truth") / len(within)


DEBUG = sys.argv[2:3] in (["debug"], ["kcsan"])


def before_rows(judgements):
    """The number of short stacks that end in a function whose rows were not there yet: no earlier
    complete stack has the function, and a later one has it. JUDGEMENTS are pairs of a kind and the
    functions, innermost first."""
    ended, walked, number = collections.Counter(), set(), 0
    for kind, functions in judgements:
        if kind == "complete":
            number += sum(ended.pop(function, 0) for function in set(functions))
            walked.update(functions)
        elif kind == "short" and functions[-1] not in walked:
            ended[functions[-1]] += 1
    return number


def nearly_all(count):
    """All but the very first, whose pages were not there yet: five, or one in 200. Those from
    before the rows were there do not count, as a host decides how soon the module's worker runs
    (the stage `start` counts that in instructions), up to one in 20. On the debug kernel, where few
    samples are enough and rows may take any time: three in 100, and at most half before the rows
    were there."""
    missing = known(count) - count.kinds["complete"]
    allowed = 0.03 * known(count) if DEBUG else max(5, 0.005 * known(count))
    allowed = min(allowed + count.before_rows, (0.5 if DEBUG else 0.05) * known(count))
    return missing <= allowed and count.kinds["false"] == 0


def few_are_lost(count):
    """Of deferred samples, those are lost that were taken when the task's stack had been delivered
    and the task was not in user space again yet: perf waits for a second record of that cookie,
    which never comes. The longer tasks wait for a CPU there, the more are lost, so a busy host has
    more of them (9 % were seen)."""
    return count.percent("lost") <= 25


# The verdicts on samples whose truth may be unknown.
WITHOUT_TRUTH = ("ended", "untold", "never-false")

# The conditions for a recording to pass: the minimum number of samples, with a known truth but for
# the verdicts above; and a test of them.
VERDICTS = {
    "complete": (300, lambda count: nearly_all(count) and few_are_lost(count)
                 and (known(count) >= 15 if DEBUG else count.without_truth <= 10)),
    # Of processes that live for some 20 samples: a child of fork has no page of the file in its
    # tables, and immediate stacks are complete when the worker has brought them in.
    "forked": (300, lambda count: share(count, "complete") >= 90 and count.kinds["false"] == 0),
    # Deferred: the task waits for a missing page.
    "forked-deferred": (300, lambda count: nearly_all(count) and few_are_lost(count)),
    # A program's first and last moments: the truth may be unknown, but no frame is false.
    "ended": (20, lambda count: count.kinds["false"] == 0),
    # Between two programs, when there is no stack.
    "untold": (20, lambda count: count.depth == 0),
    # After the pages of a section were evicted once: a few consecutive stacks are truncated.
    "evicted": (1000, lambda count: share(count, "complete") >= 97 and count.kinds["false"] == 0),
    # Of all processes, when the memory that is there is one's own no more, or not yet.
    "switched": (20, lambda count: known(count) >= 20 and count.kinds["false"] == 0),
    "never-false": (20, lambda count: count.kinds["false"] == 0),
    # Taken where perf has no user registers, so that the truth is any chain of the program's.
    "in-tree": (20, lambda count: share(count, "complete") >= (80 if DEBUG else 95)
                and count.kinds["false"] == 0),
    # With uprobes in the program, and uretprobes, which replace return addresses. For a moment the
    # kernel has replaced an address and not yet recorded it, or has not yet restored it. On the
    # debug kernel these moments are longer.
    "probed": (200, lambda count: share(count, "complete") >= (90 if DEBUG else 95)
               and count.kinds["false"] == 0),
    # The same, on kernels whose list of replaced addresses is not read at each sample.
    "probed-in-part": (200, lambda count: count.kinds["complete"] > 0
                       and count.kinds["false"] == 0),
    "bpf": (100, lambda count: share(count, "complete") >= 99.5 and count.kinds["false"] == 0),
    # Not the module's, which is not asked: perf unwinds its copy. A few of some 200 it gives up.
    "dwarf": (100, lambda count: share(count, "complete") >= 95 and count.kinds["false"] == 0),
    # Frame pointers of a program that has them: only callers of functions that have just begun
    # are missing.
    "frame-pointers": (300, lambda count: share(count, "complete") >= 80),
    # Frame pointers of a program that has none.
    "incomplete": (300, lambda count: share(count, "complete") <= 5),
}


def judge_in_tree(sample, tree, chains):
    """The verdict on a sample whose r12 is not known, but whose end is: main's return address."""
    if not sample.frames:
        return judge.Verdict("empty")
    callers = [frame.address for frame in sample.frames[1:]]
    for length, caller in enumerate(callers):
        node = chains.get(tuple(callers[:length]))
        if node and caller == tree.root(node):
            return judge.Verdict("complete", callers[:length])
    # Start-up has no chain.
    known = any(address in tree.addresses for address in callers)
    return judge.Verdict("short" if known else "no-truth")


def judged(directory, name, verdict):
    with open(os.path.join(directory, name + ".chain"), encoding="ascii") as file:
        tree = judge.Tree(file)
    if verdict.startswith("probed"):
        tree.find_taken()
    count = judge.Count()
    if verdict == "bpf":
        with open(os.path.join(directory, name + ".text"), encoding="ascii") as file:
            samples = list(judge.read_bpftrace(file, count))
    else:
        samples = judge.read_perf(judge.perf_script(os.path.join(directory, name + ".data")),
                                  less_one=verdict == "dwarf")
    if verdict == "in-tree":
        program = name.split("-")[-1]
        samples = (sample for sample in samples if sample.title.startswith(program))
        # Within exec, with which each program begins, there is no stack.
        samples = itertools.dropwhile(lambda sample: not sample.frames, samples)
        chains = {tuple(tree.chain(node)): node for node in tree.nodes}
        tree.addresses = {node.address for node in tree.nodes.values()}
        with open(os.path.join(directory, name + ".in_entry"), encoding="ascii") as file:
            without_stack = int(file.read())
    bad, judgements = [], []
    for sample in samples:
        if verdict == "in-tree":
            found = judge_in_tree(sample, tree, chains)
            # The module counts the samples in whose NMI the registers were being saved.
            if found.kind == "empty" and without_stack:
                without_stack -= 1
                continue
            count.kinds[found.kind] += 1
            continue
        found = judge.judge(sample, tree)
        count.add(sample, found, tree)
        functions = [judge.function_name(frame.symbol) for frame in sample.frames]
        judgements.append((found.kind, functions))
        if found.kind in ("false", "short", "empty"):
            bad.append((found.kind != "false", judge.describe(sample, found)))
    count.before_rows = before_rows(judgements)
    count.without_truth = without_truth([kind for kind, _ in judgements])
    return count, sorted(bad, key=lambda entry: entry[0])


def main():
    # Where the guest had them.
    for name in os.listdir("/src/build"):
        if name.startswith("programs") and not os.path.exists("/tmp/" + name):
            os.symlink("/src/build/" + name, "/tmp/" + name)
    directory = sys.argv[1]
    failed = False
    with open(os.path.join(directory, "cases"), encoding="ascii") as file:
        cases = [line.split() for line in file]
    for name, verdict in cases:
        enough, passes = VERDICTS[verdict]
        count, bad = judged(directory, name, verdict)
        number = count.samples if verdict in WITHOUT_TRUTH else known(count)
        passed = number >= (enough / 20 if DEBUG else enough) and passes(count)
        failed |= not passed
        print(f"{'ok' if passed else 'not ok'} - {sys.argv[2]}: {name} is {verdict}")
        print(f"# {count.text().splitlines()[0]}, {count.before_rows} before the rows were there")
        if verdict == "evicted":
            print(f"# complete again after {count.kinds['short']} samples")
        if not passed:
            for _, text in bad[:3]:
                print("\n".join("# " + line for line in text.splitlines()))
    return failed


if __name__ == "__main__":
    sys.exit(main())
