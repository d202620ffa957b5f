# SPDX-License-Identifier: GPL-2.0-only
"""Tests of tools/bench/gate.py."""

import importlib.util
import pathlib
import unittest

PLACE = pathlib.Path(__file__).resolve().parent.parent / "tools/bench/gate.py"
SPEC = importlib.util.spec_from_file_location("gate", PLACE)
gate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gate)

KEY = dict(zip(gate.KEY, ["debian", "kernel", "7.3.4", "1.85.1", "gcc-14"]))
RECORDED = [KEY | {"case": "hot", "frame": "40.0", "sample": "600"}]


class GateTest(unittest.TestCase):
    def verdict(self, frame, sample, **changed):
        now = KEY | changed | {"case": "hot", "frame": str(frame), "sample": str(sample)}
        return gate.judge(RECORDED, now)

    def test_two_percent_are_allowed(self):
        self.assertTrue(self.verdict(40.7, 611)[0].startswith("ok"))
        self.assertTrue(self.verdict(20, 300)[0].startswith("ok"))

    def test_more_is_a_failure_of_either_figure(self):
        self.assertTrue(self.verdict(40.9, 600)[0].startswith("not ok"))
        self.assertTrue(self.verdict(40, 613)[0].startswith("not ok"))

    def test_another_compiler_is_reported_and_has_a_limit(self):
        lines = self.verdict(41.9, 600, rustc="1.86.0")
        self.assertTrue(lines[0].startswith("ok"))
        self.assertIn("1.85.1", lines[1])
        self.assertIn("1.86.0", lines[1])
        self.assertTrue(self.verdict(42.1, 600, rustc="1.86.0")[0].startswith("not ok"))

    def test_an_unknown_kernel_is_a_failure(self):
        self.assertTrue(self.verdict(40, 600, kernel="other")[0].startswith("not ok"))

    def test_the_record_is_readable(self):
        lines = gate.read(gate.RECORDED)
        self.assertTrue(lines)
        for line in lines:
            self.assertEqual(list(line), gate.FIELDS)
            self.assertGreater(float(line["frame"]), 0)


if __name__ == "__main__":
    unittest.main()
