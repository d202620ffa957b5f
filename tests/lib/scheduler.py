# SPDX-License-Identifier: GPL-2.0-only
"""Runs stages side by side, and reports their tests as one run."""

import fcntl
import fnmatch
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import stages as stage_files
import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
USAGE = """usage: run [--list | --night | NAME...]

Without an argument, the command runs the stages of the tier `change`; with --night, the stages of
the tier `night`; with NAMEs, the stages of these names. A NAME may be a pattern, as '*:stacks'.
--list prints all stages. Each test is a TAP line. The last line is `N passed, N failed, N skipped`.

TEST_SECONDS is the time for all stages. A stage that would take longer than the rest of this time
is not begun. A stage that runs at its end is ended. The report says that both were skipped."""
# A guest keeps little more than one CPU busy.
WORKERS = 2
# Seconds; tests have shorter minutes.
MINUTE = 60
# A job is ended after so many times its minutes: some machines have half the speed, and run other
# things.
PATIENCE = 10


class Scheduler:
    """The state of one run. Workers are threads, and each waits for one job's process at a time."""

    def __init__(self, jobs, report, seconds, build=None):
        self.queue, self.report, self.build = list(jobs), report, build
        self.lock = threading.Condition()
        self.built = build is None
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.times, self.processes = [], set()

    def say(self, text):
        print(f"run: {text} ({time.monotonic() - self.started:.0f} s)", file=sys.stderr, flush=True)

    def skip(self, job, reason):
        for stage in job.stages:
            self.report.add([f"ok - {stage.name} # SKIP {reason}"])

    def next(self):
        """The next job that may begin, None at the end. Waits while jobs need programs that are
        being built."""
        with self.lock:
            while self.queue:
                for number, job in enumerate(self.queue):
                    if self.built or not job.needs_programs:
                        return self.queue.pop(number)
                self.lock.wait()
        return None

    def work(self):
        while job := self.next():
            names = " ".join(stage.name for stage in job.stages)
            left = self.deadline - time.monotonic()
            if left < MINUTE * job.minutes:
                self.skip(job, f"it takes {job.minutes} minutes, and {max(left, 0) / MINUTE:.0f} "
                               "were left")
                continue
            self.say(names)
            self.run(job, names)

    def run(self, job, names):
        """Runs one job to its end, and reports it if it ends in another way than by itself."""
        begun, blocks = time.monotonic(), tap.Blocks(self.report.add)
        # In a process group of its own, so that all of it can be ended.
        with subprocess.Popen(job.command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              text=True,
                              errors="replace", start_new_session=True,
                              env=os.environ | job.environment) as process:
            limit = PATIENCE * MINUTE * job.minutes
            left = self.deadline - begun
            timer = threading.Timer(min(limit, left), os.killpg, (process.pid, signal.SIGKILL))
            timer.start()
            self.processes.add(process.pid)
            try:
                for line in process.stdout:
                    blocks.feed(line.rstrip("\n"))
                status = process.wait()
            finally:
                timer.cancel()
                self.processes.discard(process.pid)
        blocks.close()
        took = time.monotonic() - begun
        self.times.append((names, took, job.minutes))
        self.say(f"{names}: the end, after {took:.0f} s of {MINUTE * job.minutes} s")
        if status == -signal.SIGKILL and took >= left:
            self.skip(job, "there was no time left for its end")
        elif status == -signal.SIGKILL and took >= limit:
            self.report.add([f"not ok - {names}", f"# It was ended after {took:.0f} s."])
        elif status != 0:
            self.report.add([f"not ok - {names}",
                             f"# It ended with status {status}, before its end."])

    def make_programs(self):
        """Builds what most stages need. Without it they cannot run."""
        self.say("building the test programs and sframectl")
        # Messages of the build go to standard error.
        status = subprocess.run(self.build, stdout=2, stdin=subprocess.DEVNULL,
                                check=False).returncode
        with self.lock:
            self.built = True
            if status != 0:
                self.report.add(["not ok - build",
                                 f"# {self.build} ended with status {status}; see above."])
                for job in [job for job in self.queue if job.needs_programs]:
                    self.queue.remove(job)
                    self.skip(job, "its programs were not built")
            self.lock.notify_all()

    def worker(self, is_first):
        """What a thread does. Another worker may wait for the programs, whatever happens here."""
        try:
            if is_first and not self.built:
                self.make_programs()
            self.work()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self.report.add(["not ok - the test runner", f"# {type(error).__name__}: {error}"])
            raise
        finally:
            with self.lock:
                self.built = True
                self.lock.notify_all()

    def go(self):
        workers = [threading.Thread(target=self.worker, args=(number == 0,))
                   for number in range(WORKERS)]
        signal.signal(signal.SIGTERM, self.interrupted)
        signal.signal(signal.SIGINT, self.interrupted)
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.say("done")

    def interrupted(self, number, _frame):
        """Ends all that runs, with this process. Jobs are in process groups of their own."""
        for process in list(self.processes):
            os.killpg(process, signal.SIGKILL)
        os._exit(128 + number)


def selected(stages, arguments):
    """The stages that the command line asks for."""
    if arguments in ([], ["--night"]):
        tier = "night" if arguments else "change"
        return [stage for stage in stages.values() if stage.tier == tier]
    names = []
    for pattern in arguments:
        found = fnmatch.filter(stages, pattern)
        if not found:
            sys.exit(f"run: there is no stage {pattern}; run --list shows all\n{USAGE}")
        names += [name for name in found if name not in names]
    return [stages[name] for name in names]


def print_list(stages):
    for tier, when in stage_files.TIERS.items():
        of_tier = [stage for stage in stages.values() if stage.tier == tier]
        print(f"{tier} ({when}), {sum(stage.minutes for stage in of_tier)} minutes of stages:")
        for stage in of_tier:
            print(f"  {stage.name:24} {stage.minutes:4} min  {stage.proves}")


def main(arguments, root=ROOT, out=sys.stdout):
    """Runs the command line; the exit status. `root` is the checkout, or in tests a directory like
    it."""
    try:
        stages = stage_files.read_all(root / "tests/stages")
    except stage_files.BadStage as error:
        sys.exit(f"run: {error}")
    if arguments == ["--list"]:
        print_list(stages)
        return 0
    if any(argument.startswith("-") for argument in arguments) and arguments != ["--night"]:
        sys.exit(USAGE)
    jobs = stage_files.jobs(selected(stages, arguments), root / "tests/lib/guest.py")
    results = root / "build/results"
    results.parent.mkdir(exist_ok=True)
    # Held until this process ends. Both runs would write their results to one place.
    # pylint: disable-next=consider-using-with
    lock = open(root / "build/results.lock", "w", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("run: another tests/run of this checkout is at work; wait for its end, or use "
                 "another checkout")
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    report = tap.Report(out)
    needy = [job for job in jobs if job.needs_programs]
    architectures = sorted({stage.arch for job in needy for stage in job.stages})
    build = [str(root / "tests/lib/build"), *architectures] if architectures else None
    scheduler = Scheduler(jobs, report, float(os.environ.get("TEST_SECONDS") or "inf"), build)
    scheduler.go()
    with open(results / "tap", "w", encoding="utf-8") as file:
        file.writelines("\n".join(block) + "\n" for block in report.blocks)
    with open(results / "times", "w", encoding="utf-8") as file:
        for names, took, minutes in scheduler.times:
            file.write(f"{took:.0f} s\t{minutes} min\t{names}\n")
    passed, failed, skipped = report.counts()
    if failed:
        print("\nThe failures:", file=out)
        for block in report.failures():
            print("\n".join(block), file=out)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", file=out)
    lock.close()
    return 0 if passed and not failed else 1
