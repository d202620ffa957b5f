#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""`steps.sh STEPS runtimes`: what it refuses, what it repeats, and what its table shows."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TRUTH = pathlib.Path(__file__).resolve().parent / "truth"
sys.path.insert(0, str(TRUTH))
import runtimes  # pylint: disable=wrong-import-position


def report(steps=1000, unexplained=0, **others):
    """A report of `steps` for one program."""
    kind = {"limit": None, "steps": unexplained, "example": "pc differs: the caller of frame 0\n"}
    kinds = [kind] if unexplained else []
    return {"steps": steps, "threads": 2, "unexplained": unexplained, "explained": 0,
            "ends": {"outermost": steps}, "complete": steps // 4, "frames": 9000,
            "frames_by_calls": 80, "frames_in_loaded_by_calls": 5,
            "presumed": 15,
            "early_ends": {}, "kinds": kinds, **others}


class Results(unittest.TestCase):
    def setUp(self):
        # pylint: disable-next=consider-using-with
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.want("commit 123abc with changes", "steps 1000", "seed 7", "program java key1",
                  "program perl key2")

    def want(self, *lines):
        (self.directory / "wanted").write_text("\n".join(lines) + "\n", encoding="ascii")
        self.wanted = runtimes.Wanted(self.directory)

    def leave(self, name, *programs):
        """What `steps` leaves."""
        (self.directory / f"{name}.json").write_text(json.dumps({"programs": programs}),
                                                     encoding="ascii")

    def table(self):
        lines, is_good = runtimes.table(self.wanted)
        return "\n".join(lines), is_good

    def test_a_finished_program_is_not_repeated(self):
        self.assertEqual(self.wanted.unfinished(), ["java", "perl"])
        self.leave("java", report())
        self.assertEqual(self.wanted.unfinished(), ["java", "perl"], "the stepper may be running")
        self.assertIsNone(self.wanted.keep("java", 0))
        self.assertEqual(self.wanted.unfinished(), ["perl"])
        self.leave("perl", report(unexplained=4))
        self.assertIsNone(self.wanted.keep("perl", 1))
        self.assertEqual(self.wanted.unfinished(), [])

    def test_other_sources_or_options_repeat_a_program(self):
        self.leave("java", report())
        self.wanted.keep("java", 0)
        self.want("commit 456def", "steps 1000", "program java key1")
        self.assertEqual(self.wanted.unfinished(), [])
        self.assertIn("commit 123abc with changes", self.table()[0],
                      "the commit is that of the result")
        self.want("steps 1000", "program java key3")
        self.assertEqual(self.wanted.unfinished(), ["java"])
        self.want("steps 1001", "program java key1")
        self.assertEqual(self.wanted.unfinished(), ["java"])

    def test_what_was_not_stepped_to_its_end_is_a_failure(self):
        self.leave("java", report())
        self.wanted.keep("java", 0)
        for programs, status, why in (((), 2, "status 2"),
                                      ((report(999),), 0, "999 instructions until the time limit"),
                                      ((report(),), 139, "status 139"),
                                      ((report(),), 1, "status 1, and 0 unexplained"),
                                      ((report(unexplained=1),), 0, "status 0, and 1 unexplained")):
            self.leave("perl", *programs)
            self.assertIn(why, self.wanted.keep("perl", status))
            self.assertEqual(self.wanted.unfinished(), ["perl"])
            text, is_good = self.table()
            self.assertFalse(is_good)
            self.assertIn("NOT FINISHED: perl: " + why, text)
            self.assertIn("1 of 2 programs", text)
        (self.directory / "perl.json").write_text("{", encoding="ascii")
        self.assertIn("cannot be read", self.wanted.keep("perl", 0))
        (self.directory / "perl.json").unlink()
        self.assertIn("not started", self.wanted.keep("perl", 0))
        self.leave("perl", report())
        self.assertIsNone(self.wanted.keep("perl", 0))
        self.assertTrue(self.table()[1])

    def test_the_table_shows_all(self):
        ends = {"outermost": 899, "region_unknown": 100, "full": 1}
        early = {"region_unknown in 0x1000 in anonymous memory": 60,
                 "region_unknown in 0x2000 in anonymous memory": 40,
                 "full in a.so:.text 0x8d07": 1, "full in code at 0x70:.text 0x7f": 1,
                 "full in h": 1}
        explained = [{"limit": "no-region-yet", "steps": 14, "example": ""}] * 2
        self.leave("java", report(explained=28, ends=ends, early_ends=early, kinds=explained))
        self.leave("perl", report())
        for name in ("java", "perl"):
            self.wanted.keep(name, 0)
        text, is_good = self.table()
        self.assertTrue(is_good)
        for part in ("explained, java: 28 no-region-yet", "java: 103 walks ended early:",
                     "89.90 %  ", "100.00 %       25.00 %   9,000        70        15\n",
                     "      100 region_unknown in anonymous memory\n", "        1 full in a.so\n",
                     "1 at 1 other places",
                     "runtimes: 2 of 2 programs, 2000 instructions, 0 unexplained differences, "
                     "28 explained; seed 7, commit 123abc with changes"):
            self.assertIn(part, text)
        self.assertNotIn("perl:", text)

    def test_an_unexplained_difference_is_shown_and_a_failure(self):
        self.leave("java", report(unexplained=3))
        self.leave("perl", report())
        self.wanted.keep("java", 1)
        self.wanted.keep("perl", 0)
        text, is_good = self.table()
        self.assertFalse(is_good)
        self.assertIn("UNEXPLAINED, java, 3 steps:\npc differs: the caller of frame 0\n", text)
        self.assertIn("3 unexplained differences", text)

    def test_a_share_is_never_rounded_up_to_all(self):
        self.assertEqual(runtimes.share(999_999, 1_000_000), "99.99")
        self.assertEqual(runtimes.share(5, 5), "100.00")
        self.assertEqual(runtimes.share(0, 0), "0.00")


def run(script, *arguments, **environment):
    """Runs a script that refuses its arguments before it enters the prepared root."""
    found = subprocess.run(["bash", TRUTH / script, *arguments], capture_output=True, text=True,
                           check=False, env={**os.environ, **environment})
    return found.returncode, found.stdout, found.stderr


class Arguments(unittest.TestCase):
    def test_wrong_arguments_are_refused(self):
        for arguments, environment, error in ((["many"], {}, "not many"), (["0"], {}, "not 0"),
                                              (["-1", "v2"], {}, "not -1"),
                                              (["5", "runtimes"], {"SEED": "x"},
                                               "SEED is a number, not x"),
                                              (["5", "runtimes", "jav"], {}, "has no program jav;"),
                                              (["5", "runtimes", "R", ""], {}, "has no program ;"),
                                              (["5", "runtimes", ".*"], {}, "has no program .*;")):
            status, _, found = run("steps.sh", *arguments, **environment)
            self.assertEqual(status, 1, found)
            self.assertIn(error, found)
        status, _, found = run("start-runtime", "jav", "true")
        self.assertEqual(status, 2, found)
        self.assertIn("there is no program jav", found)

    def test_each_program_depends_on_its_own_part_of_the_file(self):
        status, names, _ = run("start-runtime", "--list")
        self.assertEqual(status, 0)
        names = names.split()
        self.assertIn("java-25-virtual", names)
        self.assertEqual(len(names), len(set(names)))
        shown = {name: run("start-runtime", "--show", name)[1] for name in names}
        self.assertEqual(len(set(shown.values())), len(names), "a key is of one program")
        for text in shown.values():
            self.assertIn("--warm-up", text)
        # The function that the program calls, and no other one.
        self.assertIn("javac", shown["java-21"])
        self.assertIn("initdb", shown["postgres-plain"])
        self.assertIn("Renviron", shown["openblas"])
        self.assertIn("ocamlopt", shown["ocaml-effects"])
        self.assertIn("opcache.jit", shown["php-function"])
        self.assertNotIn("javac", shown["guile"])


if __name__ == "__main__":
    unittest.main()
