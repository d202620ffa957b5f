# SPDX-License-Identifier: GPL-2.0-only
"""Tests of scripts/results.py, and of the documents whose tables it makes."""

import contextlib
import csv
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import results  # pylint: disable=import-error,wrong-import-position

FILE = "# licence\n# command\ncase,kernel,build,commit,release,a frame,a sample\n"
WALKS = FILE + "fp,debian,own,7860910,7.3,39.0,775\nhot,debian,own,0c389db,7.3,43.9,5770\n"
DOCUMENT = "Text.\n\n.. results: walks\n\nold\n\n.. end of results\n\nMore text.\n"


class Tables(unittest.TestCase):
    def test_a_table_is_made_between_its_marks(self):
        new = results.rendered(DOCUMENT, {"walks": WALKS}.__getitem__)
        self.assertEqual(new, """\
Text.

.. results: walks

==== ======= ======= ========
case commit  a frame a sample
==== ======= ======= ========
fp   7860910    39.0      775
hot  0c389db    43.9    5,770
==== ======= ======= ========

.. end of results

More text.
""")
        self.assertEqual(results.rendered(new, {"walks": WALKS}.__getitem__), new)

    def test_a_row_may_become_a_column(self):
        table = results.TABLES["readme"]
        head = ["program", "tool", "commit", *list(table.columns)[1:]]
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerows([
            head, ["perl", "perf-fp-module", "c", *"fghi"], ["node", "perf-fp", "c", *"xxxx"],
            ["perl", "perf-dwarf-8192", "c", *"klmn"], ["perl", "perf-fp", "c", *"abcd"]])
        text = "<!-- results: readme -->\n<!-- end of results -->\n"
        made = results.rendered(text, lambda _: file.getvalue(), is_markdown=True)
        lines = made.splitlines()
        self.assertIn("| frame pointers | `--call-graph dwarf` | sframe_unwind |", lines[2])
        self.assertEqual(lines[4], f"| {table.columns['complete %']} | a | k | f |")

    def test_an_unknown_table_column_or_row_is_an_error(self):
        for text, file in ((DOCUMENT.replace("walks", "walk"), WALKS),
                           (DOCUMENT, WALKS.replace("a frame", "frame")),
                           (DOCUMENT, WALKS.replace("debian", "forky")),
                           (DOCUMENT, WALKS.replace("hot", ""))):
            with self.assertRaises(SystemExit):
                results.rendered(text, {"walks": file}.__getitem__)


class Records(unittest.TestCase):
    FIELDS = ["case", "kernel", "commit", "a frame"]
    OLD = [{"case": "fp", "kernel": "debian", "commit": "a", "a frame": "1"},
           {"case": "hot", "kernel": "debian", "commit": "a", "a frame": "2"}]

    def test_a_row_replaces_the_row_of_its_name(self):
        new = [{"case": "hot", "kernel": "debian", "commit": "b", "a frame": 3},
               {"case": "hot", "kernel": "trixie", "commit": "b", "a frame": 4}]
        merged = results.merged(self.FIELDS, self.OLD, new)
        self.assertEqual([list(row.values()) for row in merged], [
            ["fp", "debian", "a", "1"], ["hot", "debian", "b", "3"], ["hot", "trixie", "b", "4"]])

    def test_a_cell_without_a_new_figure_is_kept(self):
        new = [{"case": "fp", "kernel": "debian", "commit": "b"}]
        merged = results.merged(self.FIELDS, self.OLD, new)
        self.assertEqual(merged[0]["a frame"], "1")

    def test_an_unknown_column_is_an_error(self):
        new = [{"case": "fp", "kernel": "debian", "commit": "b", "cost": 1}]
        with self.assertRaises(ValueError):
            results.merged(self.FIELDS, self.OLD, new)


class Measurements(unittest.TestCase):
    """Each measurement's output becomes rows with the columns of its files."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(directory.cleanup)
        self.build = pathlib.Path(directory.name)

    def put(self, path, content):
        path = self.build / path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")

    def rows_of(self, measurement, directory):
        if directory:
            self.put(f"{directory}/commit", "abc\n")
            self.put(f"{directory}/release", "7.3\n")
        found = results.MEASUREMENTS[measurement](self.build)
        for name, rows in found.items():
            text = (ROOT / results.RESULTS / f"{name}.csv").read_text(encoding="utf-8")
            _, fields, _ = results.read(text)
            self.assertTrue(rows, name)
            self.assertIsNotNone(results.merged(fields, [], rows), name)
        return found

    def test_samples(self):
        def group(program, by, context, judged, complete):
            way = {"to_main": 90.0, "false": 10.0, "complete": complete}
            return {"program": program, "by": by, "context": context, "judged": judged,
                    "identical": 99.0, "reported": way, "frame_pointers": way,
                    "frame_pointers_and_prologues": way, "dwarf_8_kib": way,
                    "frames_reported": 30, "frames_dwarf_8_kib": 20,
                    "reasons": [{"reason": "no_rows", "samples": 1}]}
        self.put("truth/samples/json", {"groups": [
            group("v2/bash", "module", "immediate", 1, 80.0),
            group("v2/bash", "kernel", "immediate", 1, 0.0),
            group("debian/perl", "module", "immediate", 10, 100.0),
            group("debian/perl", "module", "deferred", 30, 50.0),
            group("debian/perl", "kernel", "immediate", 10, 2.0),
            group("debian/dash", "module", "immediate", 10, 100.0),
            group("debian-fp/perl", "module", "immediate", 10, 90.0),
            group("debian-fp/perl", "kernel", "immediate", 10, 70.0)]})
        self.put("truth/samples/bpftrace",
                 "debian/dash 100 100 0\ndebian/perl 200 150 0\ndebian-fp/perl 200 180 0\n")
        found = self.rows_of("samples", "truth/samples")
        self.assertEqual([row["program"] for row in found["debian"]], ["dash", "perl", "all"])
        with_frame_pointers = found["frame-pointers"]
        self.assertEqual([row["program"] for row in with_frame_pointers], ["perl"])
        self.assertEqual([with_frame_pointers[0][name] for name in (
            "immediate %", "bpftrace %", "frame pointers %")], ["90.00", "90.00", "70.00"])
        perl = found["debian"][1]
        self.assertEqual([perl[name] for name in (
            "samples", "immediate %", "deferred %", "bpftrace %", "false", "no row %", "frames",
            "frame pointers %", "commit")],
            [40, "100.00", "50.00", "75.00", 4, "5.00", "1.50", "2.00", "abc"])
        bash = found["samples"][0]
        self.assertEqual([bash["identical %"], bash["kernel false %"], bash["dwarf to main %"]],
                         ["99.00", "10.0", "90.0"])

    def test_steps(self):
        program = {"steps": 5, "covered": 4, "frames": 30, "signals": 1, "explained": 0,
                   "unexplained": 0}
        self.put("truth/steps/v2.json", {"programs": [program, program]})
        self.put("truth/steps/seed", "3\n")
        row = self.rows_of("steps", "truth/steps")["steps"][0]
        self.assertEqual([row["version"], row["seed"], row["programs"], row["equal frames"]],
                         ["v2", "3", 2, 60])

    def test_runtimes(self):
        self.put("truth/runtimes/wanted", "commit abc\nsteps 1000\nseed 7\n"
                                          "program java key\nprogram perl key\n")
        self.put("truth/runtimes/java.key", "key abc\n")
        callers = {"right": 99, "skipped": 1, "none": 0, "other": 0}
        walk = {"true": 9, "false": 3, "innermost": callers, "second": callers}
        self.put("truth/runtimes/java.json", {"programs": [{
            "steps": 1000, "threads": 2, "unexplained": 0, "explained": 1, "frames": 12345,
            "frames_by_calls": 30, "presumed": 10, "frames_in_loaded_by_calls": 1, "complete": 900,
            "ends": {"outermost": 999}, "kinds": [], "early_ends": {},
            "kernel": {"steps": 800, "worse": 2, "better": 80, "module": walk,
                       "kernel": walk}}]})
        found = self.rows_of("runtimes", None)
        row = found["runtimes"][0]
        self.assertEqual([row[name] for name in (
            "program", "seed", "commit", "frames", "by calls", "outermost %")],
            ["java", 7, "abc", "12345", "21", "99.90"])
        beside = found["kernel-walk"][0]
        self.assertEqual([beside[name] for name in (
            "program", "commit", "steps", "worse %", "right %", "kernel skipped %", "false")],
            ["java", "abc", 800, "0.250", "99.000", "1.000", 3])

    def test_programs(self):
        self.put("results/tap", "\n".join([
            "# node: complete stacks in each two of the first 20 seconds, % (of stacks): "
            "- (0) 0 (12) 99.5 (30)",
            "# node fp: 99.94 % of 1737 stacks are complete; no_rows 1",
            "ok - node, fp: at least 97 % of stacks",
            "# node fp,defer: 99.88 % of 1733 stacks are complete; ",
            "# node: sframectl watch took 555 ticks of 10 ms in 61 seconds of samples"]))
        row = self.rows_of("programs", "results/programs")["programs"][0]
        self.assertEqual(row, {
            "program": "node", "commit": "abc", "release": "7.3", "immediate %": "99.94",
            "immediate walks": "1737", "deferred %": "99.88", "deferred walks": "1733",
            "watch CPU s": "5.55", "measured s": "61", "at 2 s %": "", "at 4 s %": "0",
            "at 6 s %": "99.5"})

    def test_no_harm(self):
        self.put("results/tap", "# zig, from the start: 603 samples compared, 1 not; same 532, "
                                "better 71, worse 0 (0.00 %); complete 91.87 %; frames a sample: "
                                "5.5, the kernel's own 5.4\nok - another test\n")
        row = self.rows_of("no-harm", "results/no-harm")["no-harm"][0]
        self.assertEqual([row[name] for name in (
            "program", "stacks", "samples", "better", "worse %", "kernel frames", "commit")],
            ["zig", "from the start", "603", "71", "0.00", "5.4", "abc"])

    def test_witness(self):
        self.put("results/tap", "ok - OpenJDK 21: default: 40 of 41 stacks are equal, 2284 methods "
                                "by 513 interpreted and 746 compiled frames\nok - another test\n")
        row = self.rows_of("witness", "results/witness")["witness"][0]
        self.assertEqual([row[name] for name in (
            "virtual machine", "mode", "stacks", "equal stacks", "compiled frames", "commit")],
            ["OpenJDK 21", "default", "41", "40", "746", "abc"])

    def test_convert(self):
        self.put("bench/convert/json", {
            "perl": {"seconds": 0.028, "bytes": 12 << 20, "instructions": 58234567},
            "prepare": {"seconds": 12.7, "bytes": 186 << 20, "instructions": None}})
        perl, prepare = self.rows_of("convert", "bench/convert")["convert"]
        self.assertEqual([perl["CPU ms"], perl["MiB"], perl["million instructions"]],
                         ["28", "12", "58.2"])
        self.assertEqual([prepare["CPU ms"], prepare["million instructions"]], ["12700", ""])

    def test_bench(self):
        self.put("bench/kernel.json", {
            "of": {"kernel": "debian", "build": "own", "release": "7.3.4"},
            "per_frame": {"fp": 39.02}, "per_sample": {"fp_fixed": 775, "untouched_task": 114},
            "worst": {"rows_120": {"walks": 1, "median": 2, "most": 3, "most_of_all": 4}},
            "runs": {"fp": {"nanoseconds": 633900000, "samples": 1, "lost": 0,
                            "bytes_a_sample": 183.6, "script_nanoseconds": 784000000}},
            "tables": {"libc.so.6": {"rows": 1, "instructions_a_row": 373.9, "bytes_a_row": 3.97}},
            "cache_lines": {"100": {"mean": 4.03, "three_or_fewer": 0.0}},
            "programs": {"perl": {"walks": 802, "frames": 9.3, "kernel": 1137, "module": 801}},
            "touched": {"hot": {"user": 1.02, "kernel": 0.98, "code": 93}}})
        found = self.rows_of("bench", "bench")
        self.assertEqual(found["walks"][0], {
            "case": "fp", "a frame": "39.0", "a sample": 775, "kernel": "debian", "build": "own",
            "commit": "abc", "release": "7.3.4"})
        self.assertEqual(found["runs"][0]["ms"], "633.9")
        self.assertEqual(found["prices"][0]["saved %"], "30")
        self.assertEqual(found["touched"][0]["user lines a frame"], "1.02")

    def test_peers(self):
        self.put("bench/peers/peers.json", {"programs": {"perl": {"perf-fp": {
            "samples": 2000, "lost": 0, "complete_percent": 0.0, "script_us_a_sample": None,
            "later_samples": 400, "later_complete_percent": 50.0, "later_last_incomplete": 400}}}})
        row = self.rows_of("peers", "bench/peers")["peers"][0]
        self.assertEqual([row[name] for name in (
            "tool", "samples", "perf script us a sample", "later complete %",
            "later complete from")], ["perf-fp", "2000", "", "50.00", ""])


class Documents(unittest.TestCase):
    def test_tables_are_made_from_their_figures(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            results.render(ROOT, is_check=True)
        self.assertEqual(out.getvalue(), "")

    def test_each_table_is_shown(self):
        shown = {match["name"] for path in results.documents(ROOT)
                 for match in results.MARKED.finditer(path.read_text(encoding="utf-8"))}
        self.assertEqual(shown, set(results.TABLES))

    def test_each_row_has_a_name_of_its_own_and_a_commit(self):
        for path in sorted((ROOT / results.RESULTS).glob("*.csv")):
            with self.subTest(path.name):
                comments, fields, rows = results.read(path.read_text(encoding="utf-8"))
                self.assertEqual(len(comments), 2)
                key = fields[:fields.index("commit")]
                names = [tuple(row[name] for name in key) for row in rows]
                self.assertEqual(len(set(names)), len(names))
                for row in rows:
                    self.assertRegex(row["commit"], r"^[0-9a-f]{7,12}$")
                    self.assertNotIn(None, row, "a row has as many cells as the head")
                    self.assertNotIn(None, row.values(), "a row has as many cells as the head")


if __name__ == "__main__":
    unittest.main()
