#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Judge whether sampled user stacks are true and complete.

The sampled program must have been built with samples/demo/chain.h: register
r12 of every sample then names the chain of calls that the program itself knows
it is in, and a file written by the program (CHAIN_FILE) spells that chain out.

    CHAIN_FILE=chain perf record --user-regs=r12 --call-graph fp ./demo
    judge.py --chain chain perf.data

Every sample counts, whether taken in user or in kernel mode. Each is one of

    complete  all frames up to main (or the thread's function) are there and true
    short     the frames that are there are true, but the stack ends before main
    false     a frame before main is not the true one
    empty     there is no user frame at all
    no-truth  r12 does not say where the program is (start-up and exit)
    lost      perf did not get, or not find, the deferred stack of this sample

Of the complete ones, the ambiguous were taken in a function that calls itself,
or in one without a known name: there, one missing or surplus call of it right
at the sampled function would go unnoticed. Frames beyond main count for
nothing, but the judge reports whether the first of them is main's return address.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys

MAGIC = 0xC4A14E
KINDS = ("complete", "short", "false", "empty", "no-truth", "lost")

Node = collections.namedtuple("Node", "parent address name")
Frame = collections.namedtuple("Frame", "address symbol object", defaults=("",))


class Sample:
    """One sample: user frames, innermost first, and register r12 (or None)."""

    def __init__(self, title, frames=(), r12=None):
        self.title = title
        self.frames = list(frames)
        self.kernel_frames = 0
        self.lost = False
        self.r12 = r12

    def add(self, frame):
        # The stand-in for a deferred stack that never came, with or without a name: the number
        # of the stack, which grows into the kernel's half, above the number of the CPU, from 1.
        if frame.symbol == "(cookie)" or (
                not self.frames and frame.symbol == "[unknown]" and frame.address >> 32
                and 0 < frame.address & 0xFFFFFFFF <= 4096):
            self.lost = True
        # Kernel frames come first; later ones in their half are false user frames.
        elif frame.address >> 47 and not self.frames:
            self.kernel_frames += 1
        else:
            self.frames.append(frame)


class Tree:
    """The chains of calls that the programs wrote down."""

    def __init__(self, lines):
        self.nodes = {}
        self.taken = {}	# nodes to the addresses that may have been there
        self.children = collections.defaultdict(list)
        for line in lines:
            tree, node, parent, address, name = line.split()
            base = MAGIC << 40 | int(tree) << 16
            self.nodes[base | int(node)] = Node(base | int(parent), int(address, 16), name)
            self.children[base | int(parent)].append(base | int(node))

    def chain(self, r12, seen=()):
        """Return addresses from node r12 outwards; the root's is not one of them.

        Where more than one would be right, it is the one that was seen, if any.
        """
        addresses = []
        while self.nodes[r12].parent in self.nodes:
            right = self.taken.get(r12)
            there = seen[len(addresses):len(addresses) + 1]
            addresses.append(self.nodes[r12].address if not right
                             else there[0] if right.issuperset(there) and there else min(right))
            r12 = self.nodes[r12].parent
        return addresses

    def find_taken(self):
        """Finds the nodes that were recorded after a uretprobe had replaced a return address.

        Such a node has the trampoline's address, which is the start of a page. The program made
        these calls without the probe, too: those nodes give the return address, or the two possible
        ones.
        """
        before = collections.defaultdict(set)
        for number, node in self.nodes.items():
            if node.address % 4096:
                before[self.path(number)].add(node.address)
        for number, node in self.nodes.items():
            if node.address % 4096 == 0:
                self.taken[number] = before[self.path(number)]

    def path(self, r12):
        """The names of functions from node r12 outwards."""
        names = []
        while r12 in self.nodes:
            names.append(self.nodes[r12].name)
            r12 = self.nodes[r12].parent
        return tuple(names)

    def root(self, r12):
        """The address that the root returns to."""
        while self.nodes[r12].parent in self.nodes:
            r12 = self.nodes[r12].parent
        return self.nodes[r12].address

    def candidates(self, r12, symbol):
        """The nodes that a sample with this r12, taken in this function, can be at.

        r12 is the caller's at the two ends of a function, where it is not yet
        set or already reset, and in the PLT stub that leads to the function.
        """
        name = function_name(symbol)
        entered = [r12] if name in (None, self.nodes[r12].name) else []
        return entered + [child for child in self.children[r12]
                          if name in (None, self.nodes[child].name)]


def function_name(symbol):
    """The name as the source has it; None if the symbol is not known."""
    name = re.split(r"[.@+]", symbol)[0]
    # bpftrace prints the address if there is no name.
    return None if name in ("", "[unknown]") or name.startswith("0x") else name


class Verdict:
    def __init__(self, kind, truth=(), beyond=(), ambiguous=False):
        self.kind = kind
        self.truth = list(truth)	# of the candidate that fits best
        self.beyond = list(beyond)	# frames past the root
        self.ambiguous = ambiguous


def judge(sample, tree):
    if sample.r12 not in tree.nodes:
        return Verdict("no-truth")
    if sample.lost and not sample.frames:
        return Verdict("lost")
    symbol = sample.frames[0].symbol if sample.frames else ""
    callers = [frame.address for frame in sample.frames[1:]]
    candidates = tree.candidates(sample.r12, symbol)
    # No truth to compare with: show the program's record.
    if not sample.frames or not candidates:
        return Verdict("false" if sample.frames else "empty", tree.chain(sample.r12))
    truth = max((tree.chain(candidate, callers) for candidate in candidates),
                key=lambda chain: len(os.path.commonprefix([chain, callers])))
    if callers[:len(truth)] == truth:
        # If the function calls itself or is not known, its ends look like its middle.
        ambiguous = sample.r12 in candidates and len(candidates) > 1
        return Verdict("complete", truth, sample.frames[1 + len(truth):], ambiguous)
    if truth[:len(callers)] == callers:
        return Verdict("short", truth)
    return Verdict("false", truth)


class Count:
    """The counts over all samples."""

    def __init__(self):
        self.kinds = dict.fromkeys(KINDS, 0)
        self.skipped = 0	# text of bpftrace only
        self.kernel = self.depth = self.ambiguous = 0
        self.beyond = self.beyond_false = 0

    @property
    def samples(self):
        return sum(self.kinds.values())

    def percent(self, kind):
        return 100 * self.kinds[kind] / self.samples if self.samples else 0.0

    def add(self, sample, verdict, tree):
        self.kinds[verdict.kind] += 1
        self.kernel += sample.kernel_frames > 0
        self.depth += len(sample.frames)
        self.ambiguous += verdict.ambiguous
        self.beyond += len(verdict.beyond)
        if verdict.beyond:
            self.beyond_false += verdict.beyond[0].address != tree.root(sample.r12)

    def numbers(self):
        return {
            "samples": self.samples,
            **self.kinds,
            "complete_percent": round(self.percent("complete"), 3),
            "false_percent": round(self.percent("false"), 3),
            "in_kernel": self.kernel,
            "mean_depth": round(self.depth / max(self.samples, 1), 2),
            "ambiguous": self.ambiguous,
            "beyond_frames": self.beyond,
            "beyond_false": self.beyond_false,
            "skipped": self.skipped,
        }

    def text(self):
        kinds = ", ".join(f"{kind} {self.kinds[kind]}" for kind in KINDS)
        return (f"{self.percent('complete'):.2f} % of {self.samples} samples complete ({kinds})\n"
                f"{self.kernel} in the kernel, {self.skipped} skipped, "
                f"mean depth {self.depth / max(self.samples, 1):.1f}, "
                f"{self.ambiguous} ambiguous, "
                f"{self.beyond} frames beyond main, first of them false in {self.beyond_false}")


PERF_FIELDS = "comm,pid,tid,time,event,ip,sym,dso,uregs"
PERF_HEAD = re.compile(r"\s*\S.*?\s+\d+/\d+\s+\d+\.\d+:\s+\S+:")
PERF_FRAME = re.compile(r"\s+([0-9a-f]+) (\S+)(?: \((.*)\))?\s*$")
PERF_REGISTER = re.compile(r"\bR12:0x([0-9a-f]+)")


def read_perf(lines, less_one=False):
    """Samples from the text of `perf script -F PERF_FIELDS`."""
    sample = None
    for line in lines:
        head = PERF_HEAD.match(line)
        if head:
            if sample:
                yield sample
            sample = Sample(head.group().strip())
        if sample is None:
            continue
        register = PERF_REGISTER.search(line)
        frame = PERF_FRAME.match(line)
        if register:
            sample.r12 = int(register.group(1), 16)
        # Without a callchain, perf prints the sampled address on the first line.
        elif frame and not head:
            address, symbol, where = frame.groups()
            less = bool(sample.frames) and less_one
            sample.add(Frame(int(address, 16) + less, symbol, where or ""))
    if sample:
        yield sample


BPF_FRAME = re.compile(r"\s+([0-9a-f]+) (\S+)")


def read_bpftrace(lines, count):
    """Samples from the text that judge.bt prints; it says how many it skipped."""
    sample = None
    for line in lines:
        if line.startswith("sample "):
            if sample:
                yield sample
            sample = Sample(line.strip(), r12=int(line.split()[1], 16))
        elif line.startswith("@skipped:"):
            count.skipped = int(line.split()[1])
        elif sample and BPF_FRAME.match(line):
            address, symbol = BPF_FRAME.match(line).groups()
            sample.add(Frame(int(address, 16), symbol))
    if sample:
        yield sample


def perf_script(path):
    """The lines that perf prints for a recording."""
    command = ["perf", "script", "-i", path, "--no-inline", "-F", PERF_FIELDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as perf:
        yield from perf.stdout
    if perf.returncode:
        sys.exit(f"judge: perf script failed on {path}")


def describe(sample, verdict):
    """The reported frames next to the true addresses."""
    lines = [f"{verdict.kind}: {sample.title} r12 {sample.r12 or 0:x}"]
    for i in range(max(len(sample.frames), len(verdict.truth) + 1)):
        frame = sample.frames[i] if i < len(sample.frames) else None
        if i == 0:
            truth = "(here)"
        elif i <= len(verdict.truth):
            truth = f"{verdict.truth[i - 1]:x}"
        else:
            truth = "(beyond main)" if verdict.truth else ""
        reported = f"{frame.address:x} {frame.symbol} {frame.object}" if frame else "-"
        wrong = 0 < i <= len(verdict.truth) and (not frame or reported.split()[0] != truth)
        lines.append(f"  {'*' if wrong else ' '} {truth:>16}  {reported}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="perf.data, or - for text on standard input: "
                        f"of perf script -F {PERF_FIELDS}, or with --bpftrace of judge.bt")
    parser.add_argument("--chain", action="append", required=True, metavar="FILE",
                        help="the file that the program wrote, its CHAIN_FILE; may be repeated")
    parser.add_argument("--bpftrace", action="store_true", help="the input is the text of judge.bt")
    parser.add_argument("--less-one", action="store_true",
                        help="callers are return addresses less one, "
                        "as perf prints them for --call-graph dwarf")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--show", type=int, default=0, metavar="N",
                        help="print N samples that are not complete, next to the truth")
    parser.add_argument("--one", action="store_true", help="print one deep, complete stack")
    parser.add_argument("--expect-complete", type=float, metavar="PCT",
                        help="fail unless at least PCT %% are complete")
    parser.add_argument("--expect-at-most", type=float, metavar="PCT",
                        help="fail if more than PCT %% are complete")
    parser.add_argument("--expect-false-at-most", type=float, metavar="PCT",
                        help="fail if more than PCT %% are false")
    options = parser.parse_args()

    lines = []
    for path in options.chain:
        with open(path, encoding="ascii") as file:
            lines += file
    tree = Tree(lines)
    count = Count()
    lines = sys.stdin if options.input == "-" else perf_script(options.input)
    if options.bpftrace:
        samples = read_bpftrace(lines, count)
    else:
        samples = read_perf(lines, options.less_one)

    shown, deepest, depth = 0, None, 0
    for sample in samples:
        verdict = judge(sample, tree)
        count.add(sample, verdict, tree)
        if verdict.kind != "complete":
            if shown < options.show:
                print(describe(sample, verdict))
            shown += 1
        elif deepest is None or len(verdict.truth) > depth:
            deepest, depth = (sample, verdict), len(verdict.truth)
    if options.one and deepest is not None:
        print(describe(*deepest))
    print(json.dumps(count.numbers()) if options.json else count.text())

    failures = []
    if not count.samples:
        failures.append("no samples")
    complete = count.percent("complete")
    if options.expect_complete is not None and complete < options.expect_complete:
        failures.append(f"{complete:.3f} % complete, expected {options.expect_complete} % or more")
    if options.expect_at_most is not None and complete > options.expect_at_most:
        failures.append(f"{complete:.3f} % complete, expected {options.expect_at_most} % or less")
    false = count.percent("false")
    if options.expect_false_at_most is not None and false > options.expect_false_at_most:
        failures.append(f"{false:.3f} % false, expected {options.expect_false_at_most} % or less")
    for failure in failures:
        print(f"judge: {failure}", file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
