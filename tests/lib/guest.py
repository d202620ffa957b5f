#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs test scripts in one guest, and judges their recordings. Prints TAP lines.

usage: guest.py [--arch ARCH] [--kernel NAME] [--cpus N] [--icount] [--packages SET]
                [--minutes N] SCRIPT...

A SCRIPT is a name in tests/guest with its arguments, one word of the command line: 'lifetime 20'.
Several scripts run in one boot, one after the other (tests/guest/several). MINUTES bound the
guest's life: it is ended after eight times as long.

A guest that never got to a test is booted once more, and a guest whose QEMU was ended by a signal;
the run says so. No test is tried again. But a script that fails in a shared boot runs once more,
alone in a new guest: then the report tells whether it fails by itself, or by what another script
left behind. It has failed in both cases.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
import stages
import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "build/results"
# The exit status of scripts/vm if the guest did not get to the end of the script.
DIED = 125
SIGNAL = re.compile(r"^vm: QEMU ended with status (12[89]|1[3-9][0-9]) ", re.MULTILINE)
# The lines of tests/guest/several.
BEGIN, END = re.compile(r"# begin: (.*)"), re.compile(r"# end: (.*), status (\d+), (\d+) s")


def in_root(*command):
    """The command line that runs a command in the prepared root."""
    return ["bash", "-c", f'. "{ROOT}/scripts/lib.sh"; in_root "$@"', "in_root", *command]


def label(script):
    """The name of a script with arguments, in names of files."""
    return script.replace(" ", "-").replace("/", "-")


def kernel_name(options):
    """The name of a guest's kernel in names of tests and files."""
    return options.kernel if options.arch == stages.ARCH else f"{options.arch}-{options.kernel}"


class Guest:
    """One boot for some scripts. Threads judge recordings while the guest runs on."""

    def __init__(self, options, scripts, report):
        self.options, self.scripts, self.report = options, scripts, report
        self.judges, self.failed, self.ended, self.begun = [], set(), [], []
        more = f"-and-{len(scripts) - 1}-more" if len(scripts) > 1 else ""
        self.name = kernel_name(options)
        self.share = RESULTS / f"{self.name}-{label(scripts[0])}{more}"

    def add(self, script, block):
        """Reports a block of a script."""
        if block[0].startswith("not ok"):
            self.failed.add(script)
        self.report.add(block)

    def emit(self, script, block):
        """Reports a block of a script, with the kernel's name."""
        named = re.sub(r"^((?:not )?ok - )", rf"\1{self.name}: ", block[0])
        self.add(script, [named, *block[1:]])

    def judge(self, script, share):
        """Judges the recordings that a script left in its directory."""
        cases = share / "cases"
        count = len(cases.read_text(encoding="utf-8").splitlines()) if cases.exists() else 0
        if count:
            place = "/src/" + str(share.relative_to(ROOT))
            run = subprocess.run(in_root("python3", "/src/tests/lib/verdicts.py", place,
                                         self.options.kernel),
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT,
                                 text=True, errors="replace", check=False)
            (share / "verdicts").write_text(run.stdout, encoding="utf-8")
            judged = 0

            def emit(block):
                nonlocal judged
                judged += tap.RESULT.match(block[0]) is not None
                self.add(script, block)
            blocks = tap.Blocks(emit)
            for line in run.stdout.splitlines():
                blocks.feed(line)
            blocks.close()
            if judged != count:
                self.emit(script, [f"not ok - {script}: only {judged} of {count} recordings were "
                                   "judged",
                                   *("# " + line for line in run.stdout.splitlines()[-20:])])
        # Recordings are large, and the failures in them have been shown.
        for data in share.glob("*.data*"):
            data.unlink()

    def start_judge(self, script, share):
        thread = threading.Thread(target=self.judge, args=(script, share))
        thread.start()
        self.judges.append(thread)

    def boot(self):
        """Boots, and reads the scripts' lines. Returns the exit status, and the guest's error
        output."""
        subprocess.run(["rm", "-rf", self.share], check=True)
        self.share.mkdir(parents=True)
        words = self.scripts[0].split() if len(self.scripts) == 1 else ["several", *self.scripts]
        vm = [ROOT / "scripts/vm", "--arch", self.options.arch, "--kernel", self.options.kernel,
              "--cpus", str(self.options.cpus)]
        vm += ["--icount"] if self.options.icount else []
        environment = os.environ | {"VM_TIMEOUT": str(self.options.minutes * 480),
                                    "VM_LOG": str(self.share / "kernel.log")}
        vm += ["--share", self.share, "--", f"/src/tests/guest/{words[0]}", *words[1:]]
        with open(self.share / "err", "w", encoding="utf-8") as err, \
                subprocess.Popen(vm, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                                 text=True, errors="replace", env=environment) as process:
            self.read(process.stdout)
            status = process.wait()
        error = (self.share / "err").read_text(encoding="utf-8", errors="replace")
        sys.stderr.write(error)
        return status, error

    def read(self, lines):
        """Reports what the scripts print, keeps it in a file, and has their recordings judged."""
        script, shared = self.scripts[0], len(self.scripts) > 1
        if not shared:
            self.begun = [script]
        blocks = tap.Blocks(lambda block: self.emit(script, block))
        with open(self.share / "log", "w", encoding="utf-8") as log:
            for line in lines:
                log.write(line)
                line = line.rstrip("\n")
                if shared and (found := BEGIN.fullmatch(line)):
                    blocks.close()
                    script = found[1]
                    self.begun.append(script)
                elif shared and (found := END.fullmatch(line)):
                    blocks.close()
                    self.ended.append(script)
                    if found[2] != "0":
                        self.emit(script, [f"not ok - {script} ended with status {found[2]}"])
                    self.report.add([f"# {self.name}: {script}: {found[3]} s"])
                    self.start_judge(script, self.share / label(script))
                else:
                    blocks.feed(line)
        blocks.close()

    def run(self):
        """Runs the scripts; boots a second time if the first boot says nothing about them."""
        for last in (False, True):
            before = len(self.report.blocks)
            self.begun, self.ended = [], []
            # A boot makes the directory anew that recordings are judged in.
            self.join_judges()
            status, error = self.boot()
            is_signal = SIGNAL.search(error)
            nothing_said = not any(tap.RESULT.match(block[0])
                                   for block in self.report.blocks[before:])
            if last or status != DIED or not (is_signal or nothing_said):
                break
            why = "QEMU was ended by a signal" if is_signal else "no test began"
            self.report.add([f"# {self.name}: {why}; the guest is booted once more"])
        if status != 0:
            current = next((script for script in self.begun if script not in self.ended),
                           self.scripts[0])
            self.emit(current, [f"not ok - {current}: the guest ended with status {status}",
                                *("# " + line for line in error.splitlines()[-40:])])
        if len(self.scripts) == 1:
            self.start_judge(self.scripts[0], self.share)
        self.join_judges()

    def join_judges(self):
        for judge in self.judges:
            judge.join()
        self.judges = []


class Indented:
    """A report for a second run of a failed script: its lines become details."""

    def __init__(self, report):
        self.report, self.blocks = report, []

    def add(self, block):
        self.blocks.append(block)
        self.report.add(["# alone: " + line for line in block])


def run(options, report):
    left = list(options.scripts)
    while left:
        guest = Guest(options, left, report)
        guest.run()
        # A guest that died took later scripts with it: they run in another one.
        left = [script for script in left if script not in guest.begun] if len(left) > 1 else []
        if len(guest.scripts) > 1:
            for script in sorted(guest.failed):
                report.add([f"# {kernel_name(options)}: {script} has failed in a shared boot; it "
                            "now runs alone"])
                alone = Guest(options, [script], Indented(report))
                alone.run()
                report.add([f"# {kernel_name(options)}: {script} alone: " +
                            ("it fails, too" if alone.failed else
                             "it passes, so look for what the scripts before it leave behind")])
        if not guest.begun:
            return


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("--arch", default=stages.ARCH)
    parser.add_argument("--kernel", default="debian")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--icount", action="store_true")
    parser.add_argument("--packages", action="append", default=[])
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("scripts", nargs="+")
    RESULTS.mkdir(parents=True, exist_ok=True)
    options = parser.parse_args()
    for packages in options.packages:
        subprocess.run([ROOT / "scripts/prepare-programs", packages], stdout=subprocess.DEVNULL,
                       check=True)
    run(options, tap.Report(sys.stdout))


if __name__ == "__main__":
    main()
