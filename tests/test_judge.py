#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The judge itself on trial: it must see every way in which a stack can be wrong."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import judge  # pylint: disable=wrong-import-position
import verdicts  # pylint: disable=wrong-import-position

# main calls run; run calls walk, which calls itself twice; walk calls leaf.
CHAIN = """\
77 1 0 7f0000000100 main
77 2 1 1010 run
77 3 2 1020 walk
77 4 3 1030 walk
77 5 4 1030 walk
77 6 5 1040 leaf
77 7 2 1021 helper
"""
LIBC = (0x7F0000000100, "libc_start")


def r12(node, tree=77):
    return judge.MAGIC << 40 | tree << 16 | node


def perf_text(register, *frames):
    """What perf script prints for one sample."""
    lines = ["demo   77/77   12.345678:   cpu-clock: "]
    lines += [f"\t{address:16x} {symbol} (/tmp/a b/demo (deleted))" for address, symbol in frames]
    lines += [f" ABI:2    R12:0x{register:x} "]
    return "\n".join(lines) + "\n"


def verdict(register, *frames, **options):
    tree = judge.Tree(CHAIN.splitlines())
    samples = list(judge.read_perf(perf_text(register, *frames).splitlines(), **options))
    assert len(samples) == 1
    return judge.judge(samples[0], tree)


MAIN = (0x1010, "main")
RUN = (0x1020, "run")
WALK = (0x1030, "walk")
LAST_WALK = (0x1040, "walk")
LEAF = (0x500, "leaf")
# The truth in leaf, below three walks.
TRUE = (LEAF, LAST_WALK, WALK, WALK, RUN, MAIN)


class Stacks(unittest.TestCase):
    def expect(self, kind, register, *frames, **options):
        self.assertEqual(verdict(register, *frames, **options).kind, kind)

    def test_true_stack(self):
        self.expect("complete", r12(6), *TRUE)

    def test_missing_caller(self):
        self.expect("false", r12(6), LEAF, WALK, WALK, RUN, MAIN)
        self.expect("false", r12(6), LEAF, LAST_WALK, WALK, RUN, MAIN)

    def test_taken_return_addresses(self):
        taken = CHAIN.replace("77 ", "78 ").replace("1020 walk", "7ffffffff000 walk")
        kind = lambda lines, *frames: self.kind_of(lines, r12(6, 78), *frames)
        self.assertEqual(kind(CHAIN + taken, *TRUE), "complete")
        self.assertEqual(kind(taken, *TRUE), "false")
        # The same function was called from two places.
        both = CHAIN + taken + "77 8 2 1028 walk\n"
        other = (*TRUE[:4], (0x1028, "run"), MAIN)
        self.assertEqual(kind(both, *TRUE), "complete")
        self.assertEqual(kind(both, *other), "complete")
        self.assertEqual(kind(both, *TRUE[:4], (0x1029, "run"), MAIN), "false")
        self.assertEqual(kind(CHAIN + taken, *other), "false")

    def kind_of(self, lines, register, *frames):
        tree = judge.Tree(lines.splitlines())
        tree.find_taken()
        sample, = judge.read_perf(perf_text(register, *frames).splitlines())
        return judge.judge(sample, tree).kind

    def test_missing_root(self):
        self.expect("short", r12(6), *TRUE[:-1])

    def test_duplicated_frame(self):
        for i in range(len(TRUE) - 1):
            self.expect("false", r12(6), *TRUE[:i + 1], *TRUE[i:])

    def test_false_frame(self):
        for i in range(1, len(TRUE)):
            self.expect("false", r12(6), *TRUE[:i], (TRUE[i][0] + 1, "walk"), *TRUE[i + 1:])

    def test_short_stack(self):
        self.expect("short", r12(6), LEAF)

    def test_truncated(self):
        for length in range(1, len(TRUE)):
            self.expect("short", r12(6), *TRUE[:length])

    def test_wrong_root(self):
        self.expect("false", r12(6), *TRUE[:-1], LIBC)
        self.expect("false", r12(6), *TRUE[:-1], (0x9999, "main"), LIBC)

    def test_missing_innermost_frame(self):
        self.expect("false", r12(6), *TRUE[1:])

    def test_false_high_address_is_no_kernel_frame(self):
        self.expect("false", r12(6), LEAF, (0xFFFF800000000000, "x"), *TRUE[1:])
        self.expect("false", r12(6), *TRUE[:2], (1 << 47, "x"), *TRUE[2:])

    def test_empty(self):
        self.expect("empty", r12(6))
        self.expect("empty", r12(6), (0xFFFFFFFF81000000, "schedule"))

    def test_kernel_frames_are_dropped(self):
        self.expect("complete", r12(6), (0xFFFFFFFF81000000, "schedule"), *TRUE)

    def test_deferred_stack_that_never_came(self):
        self.expect("lost", r12(6), (0xFFFFFFFF81000000, "schedule"), (0x300000001, "(cookie)"))

    def test_so_many_deferred_stacks_that_their_numbers_are_like_the_kernels(self):
        self.expect("lost", r12(6), (0xFFFFFFFF81000000, "schedule"), (0x800100000002, "[unknown]"))

    def test_no_truth(self):
        self.expect("no-truth", 0, *TRUE)
        self.expect("no-truth", r12(6, tree=78), *TRUE)
        self.expect("no-truth", r12(0), *TRUE)

    def test_beyond_main(self):
        true = verdict(r12(6), *TRUE, LIBC, (0x7F0000000200, "_start"))
        self.assertEqual((true.kind, len(true.beyond)), ("complete", 2))

    def test_callers_less_one(self):
        less = [LEAF] + [(address - 1, symbol) for address, symbol in TRUE[1:]]
        self.expect("complete", r12(6), *less, less_one=True)
        self.expect("false", r12(6), *less)


class BeforeRows(unittest.TestCase):
    """verdicts.before_rows() counts the short stacks that end in a function before its rows are
    there."""

    SHORT, COMPLETE = ("short", ["leaf", "walk"]), ("complete", ["leaf", "walk", "main"])

    def test_short_stacks_count_before_the_first_complete_one(self):
        self.assertEqual(verdicts.before_rows([self.SHORT, self.SHORT, self.COMPLETE]), 2)

    def test_later_ones_do_not(self):
        self.assertEqual(verdicts.before_rows([self.COMPLETE, self.SHORT, self.COMPLETE]), 0)

    def test_a_function_that_never_gets_rows_does_not(self):
        self.assertEqual(verdicts.before_rows([self.SHORT, ("complete", ["leaf", "main"])]), 0)

    def test_false_stacks_do_not(self):
        self.assertEqual(verdicts.before_rows([("false", ["leaf", "walk"]), self.COMPLETE]), 0)


class NearlyAll(unittest.TestCase):
    """verdicts.nearly_all() lets few stacks be short."""

    def nearly_all(self, complete, short, before_rows=0, false=0):
        count = judge.Count()
        count.kinds |= {"complete": complete, "short": short, "false": false}
        count.before_rows = before_rows
        return verdicts.nearly_all(count)

    def test_five_or_one_in_200(self):
        self.assertTrue(self.nearly_all(795, 5))
        self.assertFalse(self.nearly_all(794, 6))
        self.assertTrue(self.nearly_all(1990, 10))
        self.assertFalse(self.nearly_all(1989, 11))

    def test_those_before_the_rows_do_not_count_up_to_one_in_20(self):
        self.assertTrue(self.nearly_all(784, 15, before_rows=15))
        self.assertFalse(self.nearly_all(784, 15, before_rows=9))
        self.assertTrue(self.nearly_all(760, 40, before_rows=40))
        self.assertFalse(self.nearly_all(759, 41, before_rows=41))

    def test_no_false_one(self):
        self.assertFalse(self.nearly_all(799, 0, false=1))


class WithoutTruth(unittest.TestCase):
    """verdicts.without_truth() leaves out the samples of start-up and exit."""

    def test_start_up_and_exit_do_not_count(self):
        kinds = ["no-truth"] * 9 + ["complete", "short"] + ["no-truth"]
        self.assertEqual(verdicts.without_truth(kinds), 0)

    def test_samples_between_others_do(self):
        kinds = ["complete", "no-truth", "no-truth", "complete"]
        self.assertEqual(verdicts.without_truth(kinds), 50)

    def test_a_lost_stack_has_no_truth_to_tell(self):
        kinds = ["no-truth", "lost", "complete", "lost", "complete"]
        self.assertEqual(verdicts.without_truth(kinds), 0)

    def test_nothing_is_known(self):
        self.assertEqual(verdicts.without_truth(["no-truth", "lost"]), 100)
        self.assertEqual(verdicts.without_truth([]), 100)


class Boundaries(unittest.TestCase):
    """r12 still or again is the caller's."""

    expect = Stacks.expect

    def test_both_ends_of_a_function(self):
        self.expect("complete", r12(5), *TRUE)

    def test_missing_caller_at_an_end(self):
        # What frame pointers make of it.
        self.expect("false", r12(5), LEAF, WALK, WALK, RUN, MAIN)

    def test_the_caller_of_a_callee_is_no_truth_for_other_samples(self):
        self.expect("false", r12(5), (0x700, "helper"), *TRUE[1:])
        self.expect("false", r12(6), (0x700, "helper"), *TRUE[1:])

    def test_plt(self):
        self.expect("complete", r12(5), (0x400, "leaf@plt"), *TRUE[1:])
        self.expect("complete", r12(5), (0x400, "[unknown]"), *TRUE[1:])
        self.expect("false", r12(5), (0x400, "leaf@plt"), *TRUE[2:])
        self.expect("false", r12(5), (0x400, "helper@plt"), *TRUE[1:])

    def test_part_of_a_function(self):
        self.expect("complete", r12(6), (0x500, "leaf.cold"), *TRUE[1:])

    def test_recursion(self):
        middle = verdict(r12(4), (0x600, "walk"), WALK, RUN, MAIN)
        end = verdict(r12(4), (0x600, "walk"), WALK, WALK, RUN, MAIN)
        self.assertEqual((middle.kind, middle.ambiguous), ("complete", True))
        self.assertEqual((end.kind, end.ambiguous), ("complete", True))
        self.expect("false", r12(4), (0x600, "walk"), RUN, MAIN)
        self.expect("false", r12(4), (0x600, "walk"), WALK, WALK, WALK, RUN, MAIN)

    def test_no_ambiguity_where_recursion_ends(self):
        true = verdict(r12(5), (0x600, "walk"), WALK, WALK, RUN, MAIN)
        self.assertEqual((true.kind, true.ambiguous), ("complete", False))
        self.expect("false", r12(5), (0x600, "walk"), WALK, RUN, MAIN)


class Program(unittest.TestCase):
    """The text formats, the numbers and the exit status."""

    def run_judge(self, text, *arguments):
        with tempfile.TemporaryDirectory() as directory:
            chain = os.path.join(directory, "chain")
            with open(chain, "w", encoding="ascii") as file:
                file.write(CHAIN)
            output = io.StringIO()
            with mock.patch.object(sys, "argv", ["judge", "-", "--chain", chain, *arguments]), \
                    mock.patch.object(sys, "stdin", io.StringIO(text)), \
                    contextlib.redirect_stdout(output), \
                    contextlib.redirect_stderr(io.StringIO()):
                status = judge.main()
        return bool(status), output.getvalue()

    def test_numbers(self):
        text = (perf_text(r12(6), *TRUE, LIBC) * 2 + "\n" + perf_text(r12(6), LEAF)
                + perf_text(r12(6), *TRUE, (0x1234, "junk"))
                + perf_text(0, LEAF) + perf_text(r12(6), LEAF, RUN))
        _, output = self.run_judge(text, "--json")
        numbers = json.loads(output)
        wanted = {"samples": 6, "complete": 3, "short": 1, "false": 1, "no-truth": 1, "empty": 0,
                  "complete_percent": 50.0, "beyond_frames": 3, "beyond_false": 1}
        self.assertEqual({key: numbers[key] for key in wanted}, wanted)

    def test_sample_without_callchain(self):
        line = f"demo 77/77 1.5: cpu-clock:      500 leaf (/tmp/demo) ABI:2 R12:0x{r12(6):x}\n"
        self.assertIn('"empty": 1', self.run_judge(line, "--json")[1])

    def test_exit_status(self):
        good, bad = perf_text(r12(6), *TRUE), perf_text(r12(6), LEAF, RUN)
        for text, arguments, fails in (
                (good + bad, ["--expect-complete", "50"], False),
                (good + bad, ["--expect-complete", "51"], True),
                (good + bad, ["--expect-at-most", "50"], False),
                (good + bad, ["--expect-at-most", "49"], True),
                (good + bad, ["--expect-false-at-most", "50"], False),
                (good + bad, ["--expect-false-at-most", "49"], True),
                ("", [], True)):
            self.assertEqual(self.run_judge(text, *arguments)[0], fails, arguments)

    def test_show_and_one(self):
        text = perf_text(r12(6), *TRUE) + perf_text(r12(6), LEAF, RUN)
        _, output = self.run_judge(text, "--show", "1", "--one")
        self.assertIn("false: demo", output)
        self.assertIn("complete: demo", output)

    def test_bpftrace(self):
        def sample(register, *frames):
            return f"sample {register:x}\n" + "".join(
                f"\t{address:x} {symbol}+4 (/tmp/demo)\n" for address, symbol in frames) + "\n"

        text = ("Attaching 1 probe...\n" + sample(r12(6), *TRUE) + sample(r12(6), LEAF, RUN)
                + sample(r12(5), (0x400, "0x400"), *TRUE[1:]) + sample(r12(6)) + "\n@skipped: 3\n")
        numbers = json.loads(self.run_judge(text, "--bpftrace", "--json")[1])
        wanted = {"samples": 4, "complete": 2, "false": 1, "empty": 1, "skipped": 3}
        self.assertEqual({key: numbers[key] for key in wanted}, wanted)


if __name__ == "__main__":
    unittest.main()
