# SPDX-License-Identifier: GPL-2.0-only
"""Tests of tools/bench/gate.py and tools/bench/fit.py."""

import importlib.util
import pathlib
import tempfile
import unittest

PLACE = pathlib.Path(__file__).resolve().parent.parent / "tools/bench"


def program(name):
    """A program of tools/bench, as a module."""
    spec = importlib.util.spec_from_file_location(name, PLACE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gate, fit = program("gate"), program("fit")

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


class FitTest(unittest.TestCase):
    def test_rare_walks_do_not_change_the_cost_of_a_sample(self):
        with tempfile.TemporaryDirectory() as directory:
            for slow in 1, 40:
                text = "9 7000\n" * slow + "9 980\n9 986\n9 992\n" * 500 + "4 735\n" * 200
                pathlib.Path(directory, "hot.4").write_text(text, encoding="ascii")
                for depth in fit.DEPTHS[1:]:
                    pathlib.Path(directory, f"hot.{depth}").write_text(
                        f"{depth + 5} {986 + 46 * (depth - 4)}\n" * 1000, encoding="ascii")
                points = fit.points(directory, "hot")
                self.assertEqual([(9, 986), (21, 1538)], [point[:2] for point in points[:2]])
                mean = points[0][2]
                self.assertAlmostEqual(mean, 986 + 6014 * slow / (1500 + slow))


if __name__ == "__main__":
    unittest.main()
