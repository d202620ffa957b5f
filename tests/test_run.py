# SPDX-License-Identifier: GPL-2.0-only
"""Tests of the test runner: tests/lib/{tap,stages,scheduler,guest}.py."""

import contextlib
import fcntl
import io
import os
import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))

# pylint: disable=wrong-import-position
import guest
import scheduler
import stages
import tap

STAGE = ("#!/bin/bash\n# proves: {proves}\n"
         "# kernel: host; minutes: 1; tier: {tier}; needs: {needs}\n{body}\n")


class Checkout:
    """A directory like a checkout, with stages of its own."""

    def __init__(self, place, build="true"):
        self.root = pathlib.Path(place)
        (self.root / "tests/stages").mkdir(parents=True)
        (self.root / "tests/lib").mkdir()
        self.program("tests/lib/build", "#!/bin/sh\n" + build)

    def program(self, name, text):
        (self.root / name).write_text(text, encoding="utf-8")
        (self.root / name).chmod(0o755)

    def stage(self, name, body, tier="change", needs="nothing"):
        text = STAGE.format(proves=name, tier=tier, needs=needs, body=body)
        self.program("tests/stages/" + name, text)

    def run(self, *arguments, **environment):
        """Runs the stages: the exit status, and the lines of the output."""
        out = io.StringIO()
        with contextlib.redirect_stderr(io.StringIO()), mock.patch.dict(os.environ, environment):
            status = scheduler.main(list(arguments), self.root, out)
        return status, out.getvalue().splitlines()


class RunTest(unittest.TestCase):
    def setUp(self):
        # pylint: disable-next=consider-using-with
        place = self.enterContext(tempfile.TemporaryDirectory())
        self.checkout = Checkout(place)

    def test_results_are_counted(self):
        self.checkout.stage("one", "echo 'ok - a'; echo 'ok - b # SKIP no reason'; echo noise")
        self.checkout.stage("two", "echo 'ok - c'")
        self.checkout.stage("later", "echo 'not ok - d'", tier="night")
        status, lines = self.checkout.run()
        self.assertEqual((status, lines[-1]), (0, "2 passed, 0 failed, 1 skipped"))
        self.assertEqual(self.checkout.run("--night")[1][-1], "0 passed, 1 failed, 0 skipped")
        self.assertEqual(self.checkout.run("t*", "later")[1][-1], "1 passed, 1 failed, 0 skipped")

    def test_details_of_two_stages_do_not_mix(self):
        for name in "ab":
            lines = f"for n in 1 2 3 4; do sleep 0.1; echo '# {name}'; done"
            self.checkout.stage(name, f"echo 'not ok - {name}'; {lines}")
        status, lines = self.checkout.run()
        self.assertEqual(status, 1)
        shown = lines[:lines.index("The failures:")]
        for name in "ab":
            at = shown.index(f"not ok - {name}")
            self.assertEqual(shown[at + 1:at + 5], [f"# {name}"] * 4)
        self.assertEqual(lines[-1], "0 passed, 2 failed, 0 skipped")

    def test_a_stage_that_fails_by_itself_is_a_failure(self):
        self.checkout.stage("one", "echo 'ok - a'; exit 3")
        status, lines = self.checkout.run()
        self.assertEqual(status, 1)
        self.assertIn("not ok - one", lines)

    def test_a_run_without_a_result_is_a_failure(self):
        self.checkout.stage("one", "true")
        self.assertEqual(self.checkout.run(), (1, ["0 passed, 0 failed, 0 skipped"]))

    def test_time_that_is_over_skips(self):
        self.checkout.stage("one", "echo 'ok - a'")
        status, lines = self.checkout.run(TEST_SECONDS="30")
        self.assertEqual(status, 1)
        self.assertRegex(lines[0], r"^ok - one # SKIP it takes 1 minutes, and [01] were left$")

    def test_a_stage_that_does_not_end_is_ended_with_its_children(self):
        self.checkout.stage("one", "echo 'ok - a'; sleep 100 & wait")
        begun = time.monotonic()
        with mock.patch.object(scheduler, "MINUTE", 0.1):
            # By the end of all time, which is no fault of the stage; and by its own limit.
            status, lines = self.checkout.run(TEST_SECONDS="0.9")
            self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
            status, lines = self.checkout.run()
            self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertLess(time.monotonic() - begun, 90)

    def test_stages_wait_for_their_programs(self):
        place = self.checkout.root
        self.checkout.program("tests/lib/build", f"#!/bin/sh\nsleep 0.5; touch '{place}/built'")
        self.checkout.stage("needs", f"test -e '{place}/built' && echo 'ok - needs'",
                            needs="programs")
        self.checkout.stage("free", f"test ! -e '{place}/built' && echo 'ok - free'")
        self.assertEqual(self.checkout.run()[1][-1], "2 passed, 0 failed, 0 skipped")

    def test_programs_are_built_for_each_architecture(self):
        place = self.checkout.root
        self.checkout.program("tests/lib/build", f"#!/bin/sh\necho $* >'{place}/built'")
        for name, arch in (("a", "amd64"), ("b", "arm64"), ("c", "s390x")):
            needs = "nothing" if name == "c" else f"programs\n# arch: {arch}"
            self.checkout.stage(name, "echo 'ok - it'", needs=needs)
        self.assertEqual(self.checkout.run()[0], 0)
        self.assertEqual((place / "built").read_text(encoding="ascii"), "amd64 arm64\n")

    def test_a_build_that_fails_skips_what_needs_it(self):
        self.checkout.program("tests/lib/build", "#!/bin/sh\nfalse")
        self.checkout.stage("needs", "echo 'ok - needs'", needs="programs")
        self.checkout.stage("free", "echo 'ok - free'")
        status, lines = self.checkout.run()
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 1 skipped"))

    def test_two_runs_of_one_checkout_do_not_meet(self):
        self.checkout.stage("one", "echo 'ok - a'")
        (self.checkout.root / "build").mkdir()
        with open(self.checkout.root / "build/results.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with self.assertRaises(SystemExit):
                self.checkout.run()
        self.assertEqual(self.checkout.run()[0], 0)

    def test_unknown_names_are_refused(self):
        self.checkout.stage("one", "echo 'ok - a'")
        with self.assertRaises(SystemExit):
            self.checkout.run("other")
        with self.assertRaises(SystemExit):
            self.checkout.run("--all")


class StagesTest(unittest.TestCase):
    def read(self, *lines):
        with tempfile.TemporaryDirectory() as place:
            file = pathlib.Path(place) / "name"
            file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            return list(stages.read(file))

    def test_each_kernel_is_a_stage(self):
        found = self.read("# proves: a: b", "# script: s x", "# cpus: 2",
                          "# kernel: debian; minutes: 3; tier: change",
                          "# kernel: debug; minutes: 8; tier: night; script: s")
        self.assertEqual([(stage.name, stage.minutes, stage.tier, stage.script, stage.cpus)
                          for stage in found],
                         [("name", 3, "change", "s x", 2), ("debug:name", 8, "night", "s", 2)])
        self.assertEqual(found[0].proves, "a: b")

    def test_incomplete_fields_are_refused(self):
        for lines in (["# kernel: debian; minutes: 3; tier: change"], ["# proves: a"],
                      ["# proves: a", "# kernel: debian; minutes: 3"],
                      ["# proves: a", "# kernel: debian; minutes: soon; tier: change"],
                      ["# proves: a", "# kernel: debian; minutes: 3; tier: change; colour: red"],
                      ["# proves: a", "# kernel: debian; minutes: 3; tier: change; also"]):
            with self.assertRaises(stages.BadStage, msg=lines):
                self.read(*lines)

    def test_guests_of_a_kind_share_boots(self):
        def stage(name, minutes, **changed):
            fields = {"kernel": "debian", "arch": "amd64", "tier": "change", "proves": "",
                      "script": name, "cpus": 1, "clock": None,
                      "packages": None, "boot": None, "needs": None} | changed
            return stages.Stage(name=name, file=None, minutes=minutes, **fields)
        groups = stages.boots([stage("a", 5), stage("b", 5), stage("c", 5),
                               stage("d", 1, kernel="debug"),
                               stage("e", 1, boot="own"), stage("f", 1, cpus=2),
                               stage("g", 1, clock="icount"), stage("h", 1, arch="arm64")])
        self.assertEqual([[stage.name for stage in group] for group in groups],
                         [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"], ["h"]])

    def test_stages_of_another_architecture(self):
        alone, = self.read("# proves: a", "# script: s", "# arch: arm64", "# needs: nothing",
                           "# kernel: debian; minutes: 5; tier: night")
        self.assertEqual((alone.name, alone.arch), ("name", "arm64"))
        found = self.read("# proves: a", "# kernel: debian; minutes: 3; tier: change",
                          "# kernel: debian; arch: arm64; minutes: 3; tier: night",
                          "# kernel: trixie; arch: arm64; minutes: 3; tier: night")
        self.assertEqual([stage.name for stage in found],
                         ["name", "arm64:name", "arm64:trixie:name"])
        guest_job, program_job = stages.jobs([alone, found[1]], "guest")
        self.assertEqual((guest_job.command[:3], guest_job.needs_programs),
                         (["guest", "--arch", "arm64"], False))
        self.assertEqual((program_job.environment["STAGE_ARCH"], program_job.needs_programs),
                         ("arm64", True))

    def test_the_stages_of_this_checkout(self):
        found = stages.read_all(scheduler.ROOT / "tests/stages")
        self.assertGreater(len(found), 40)
        for stage in found.values():
            if stage.script:
                script = scheduler.ROOT / "tests/guest" / stage.script.split()[0]
                self.assertTrue(script.exists(), stage)
            else:
                self.assertTrue(os.access(stage.file, os.X_OK), stage)


# What a guest prints, in place of scripts/vm.
class FakeGuest(guest.Guest):
    boots = []

    def boot(self):
        self.share.mkdir(parents=True, exist_ok=True)
        status, error, lines = FakeGuest.boots.pop(0)
        self.read(line + "\n" for line in lines)
        return status, error


class GuestTest(unittest.TestCase):
    def run_scripts(self, scripts, *boots, arch="amd64"):
        FakeGuest.boots = list(boots)
        out = io.StringIO()
        report = tap.Report(out)
        options = mock.Mock(arch=arch, kernel="debian", cpus=1, icount=False, minutes=1,
                            scripts=scripts)
        with tempfile.TemporaryDirectory() as place, \
                mock.patch.object(guest, "RESULTS", pathlib.Path(place)), \
                mock.patch.object(guest, "Guest", FakeGuest):
            guest.run(options, report)
        self.assertEqual(FakeGuest.boots, [])
        return out.getvalue().splitlines()

    def test_names_get_the_kernel(self):
        self.assertEqual(self.run_scripts(["a"], (0, "", ["ok - x", "not ok - y", "# why"])),
                         ["ok - debian: x", "not ok - debian: y", "# why"])
        self.assertEqual(self.run_scripts(["a"], (0, "", ["ok - x"]), arch="arm64"),
                         ["ok - arm64-debian: x"])

    def test_a_script_that_fails_in_a_shared_boot_runs_alone(self):
        shared = ["# begin: a", "ok - x", "# end: a, status 0, 1 s",
                  "# begin: b", "not ok - y", "# end: b, status 0, 1 s"]
        lines = self.run_scripts(["a", "b"], (0, "", shared), (0, "", ["ok - y"]))
        # It has failed all the same.
        self.assertIn("not ok - debian: y", lines)
        self.assertIn("# alone: ok - debian: y", lines)
        self.assertIn("it passes", lines[-1])
        lines = self.run_scripts(["a", "b"], (0, "", shared), (0, "", ["not ok - y"]))
        self.assertIn("it fails, too", lines[-1])
        self.assertEqual(sum(line.startswith("not ok") for line in lines), 1)

    def test_scripts_after_a_death_run_in_another_guest(self):
        died = ["# begin: a", "ok - x", "# end: a, status 0, 1 s", "# begin: b", "ok - y"]
        lines = self.run_scripts(["a", "b", "c"], (125, "log", died), (0, "", ["ok - y"]),
                                 (0, "", ["ok - z"]))
        self.assertIn("not ok - debian: b: the guest ended with status 125", lines)
        self.assertIn("ok - debian: z", lines)

    def test_a_guest_that_says_nothing_is_booted_once_more(self):
        lines = self.run_scripts(["a"], (125, "", []), (0, "", ["ok - x"]))
        self.assertEqual(lines[1:], ["ok - debian: x"])
        lines = self.run_scripts(["a"], (125, "", []), (125, "", []))
        self.assertTrue(lines[-1].startswith("not ok - debian: a"))

    def test_only_a_signal_boots_again_after_a_test(self):
        killed = "vm: QEMU ended with status 139 (124: the time limit of 9 s)\n"
        lines = self.run_scripts(["a"], (125, killed, ["ok - x"]), (0, "", ["ok - x"]))
        self.assertEqual(sum(line == "ok - debian: x" for line in lines), 2)
        lines = self.run_scripts(["a"], (125, "", ["ok - x"]))
        self.assertEqual(sum(line.startswith("not ok") for line in lines), 1)


if __name__ == "__main__":
    unittest.main()
