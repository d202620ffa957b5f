# SPDX-License-Identifier: GPL-2.0-only
"""Tests of tests/lib/kernels.py."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

TOOL = os.path.join(os.path.dirname(__file__), "lib/kernels.py")


class KernelsTest(unittest.TestCase):
    def test_kernels_that_did_not_run_keep_their_results(self):
        with tempfile.TemporaryDirectory() as place:
            rst = os.path.join(place, "kernels.rst")
            with open(rst, "w", encoding="utf-8") as file:
                file.write("Results\n\n.. The table begins.\n.. The table ends.\n")
            for kernel, release, passed in (("new", "6.12.1", 1), ("old", "6.1.9", 2),
                                            ("new", "6.12.1", 3)):
                directory = tempfile.mkdtemp(dir=place)
                with open(os.path.join(directory, kernel), "w", encoding="utf-8") as file:
                    file.write("# abc, 2026-11-25\n")
                    file.write(f"ok - {kernel}: the module loads\n" * passed)
                    file.write(f"# {release}, 5 bytes\n")
                subprocess.run([sys.executable, TOOL, directory, rst], check=True)
            with open(rst, encoding="utf-8") as file:
                text = file.read()
        self.assertEqual(re.findall(r"(?m)^Results$|^\.\. .*$|^``.*$|\bload: [^;]*", text), [
            "Results", ".. The table begins.", "``old``: 6.1.9", "load: 2 passed",
            "``new``: 6.12.1", "load: 3 passed", ".. The table ends."])


if __name__ == "__main__":
    unittest.main()
