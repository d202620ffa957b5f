#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Compares stacks of Java, as the core walks them, with the stacks that the virtual machine itself
prints.

usage: start-runtime java-21 java_witness.py SFRAMECTL ROUNDS

start-runtime adds the command of a Java program. This script runs Witness with it, in the modes of
MODES. In each round the thread "witness" waits at the end of a chain of calls. Then `sframectl
explain` walks its stack, `jcmd PID Thread.print` prints the methods of all its frames, and `jcmd
PID Compiler.perfmap` names the compiled code.

An interpreted frame stands for one method. A frame of compiled code stands for its own method and
the methods that the compiler has put into it; the machine prints these in front of it. The stack is
equal if the found frames stand for the printed methods, all of them and in their order, and each
compiled frame's own method has the name of its code.
"""

import bisect
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

# The options of each mode, and whether a compiled frame may stand for several methods.
MODES = {
    "default": ([], True),
    "no inlining": (["-XX:-Inline", "-XX:-InlineSynchronizedMethods"], False),
    "-Xint": (["-Xint"], False),
}
INTERPRETED = "interpreted"


def methods_of(dump, thread):
    """The methods in a dump of all threads, from the innermost on, and the number of the thread; a
    method is CLASS.NAME. None if there is no such thread."""
    for part in dump.split("\n\n"):
        head = re.match(rf'"{re.escape(thread)}" .*\bnid=(\w+)', part)
        if head:
            lines = re.findall(r"^\tat ([^(\n]+)\(", part, re.MULTILINE)
            # A class of a named module is printed as MODULE@VERSION/CLASS, a hidden class as
            # CLASS/0xADDRESS.
            names = [re.sub(r"^[\w.@]+/(?=[\w.$]+[./])", "", line) for line in lines]
            return [re.sub(r"[/+]0x[0-9a-f]+", "", name) for name in names], int(head[1], 0)
    return None


def code_of(perfmap):
    """The code in a map of perf: sorted (start, end, name). The name of a method is CLASS.NAME."""
    code = []
    for line in perfmap.splitlines():
        start, size, name = line.split(" ", 2)
        method = re.match(r"(?:.* )?([\w.$/+]+)\(", name)
        name = re.sub(r"[/+]0x[0-9a-f]+", "", method[1]) if method else name
        code.append((int(start, 16), int(start, 16) + int(size, 16), name, bool(method)))
    return sorted(code)


def java_frames(pcs, code):
    """The Java frames among the found frames: INTERPRETED, or the name of the method whose code it
    is."""
    starts = [start for start, _, _, _ in code]
    frames = []
    for innermost, pc in enumerate(pcs):
        # A return address may be the first one after the code.
        at = pc - (innermost > 0)
        index = bisect.bisect_right(starts, at) - 1
        if index < 0 or at >= code[index][1]:
            continue
        _, _, name, is_method = code[index]
        if name == "Interpreter":
            frames.append(INTERPRETED)
        elif is_method:
            frames.append(name)
    return frames


def stands_for(frames, methods, inlines):
    """Whether `frames` stand for `methods`: for all of them, in their order."""
    # The numbers of methods for which the frames so far may stand.
    counts = {0}
    for frame in frames:
        behind = set()
        for count in counts:
            if frame == INTERPRETED:
                behind.add(count + 1)
                continue
            last = len(methods) if inlines else count + 1
            behind.update(end + 1 for end in range(count, min(last, len(methods)))
                          if methods[end] == frame)
        counts = {count for count in behind if count <= len(methods)}
    return len(methods) in counts


class Machine:
    """A running Java virtual machine with the program Witness."""

    def __init__(self, java, options, sframectl):
        self.sframectl, self.jcmd = sframectl, str(pathlib.Path(java[0]).with_name("jcmd"))
        # Hidden frames are those of lambdas and method handles.
        shown = ["-XX:+UnlockDiagnosticVMOptions", "-XX:+ShowHiddenFrames"]
        command = [java[0], *shown, *options, *java[1:-1], "Witness"]
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def says(self, *command):
        """The output of jcmd."""
        pid = str(self.process.pid)
        return subprocess.run([self.jcmd, pid, *command], check=True, capture_output=True,
                              text=True).stdout

    def round(self):
        """The next round: the Java frames that were found, the methods of the machine, and why the
        walk ended."""
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"Witness ended, or printed {line!r}")
        methods, task = methods_of(self.says("Thread.print"), "witness")
        # The rows of converted files are kept there.
        environment = {**os.environ, "CACHE_DIRECTORY": "/tmp"}
        explained = subprocess.run([self.sframectl, "explain", str(task), "--json"], check=True,
                                   capture_output=True, text=True, env=environment)
        walk = json.loads(explained.stdout)
        self.says("Compiler.perfmap")
        names = pathlib.Path(f"/tmp/perf-{self.process.pid}.map")
        code = code_of(names.read_text(encoding="utf-8"))
        self.process.stdin.write(line.split()[1] + "\n")
        self.process.stdin.flush()
        frames = java_frames([frame["pc"] for frame in walk["frames"]], code)
        return frames, methods, walk["stop_reason"]

    def end(self):
        """Ends the machine."""
        self.process.kill()
        self.process.wait()


def main(arguments):
    """Runs all modes; returns the exit status."""
    sframectl, rounds = arguments[0], int(arguments[1])
    is_java = [word.endswith("/bin/java") for word in arguments]
    java = arguments[is_java.index(True):]
    status = 0
    for mode, (options, inlines) in MODES.items():
        machine = Machine(java, options, sframectl)
        count, wrong = collections.Counter(), []
        try:
            for number in range(rounds):
                frames, methods, end = machine.round()
                equal = end == "outermost" and stands_for(frames, methods, inlines)
                count["equal"] += equal
                count["methods"] += len(methods)
                count["interpreted"] += frames.count(INTERPRETED)
                count["compiled"] += len(frames) - frames.count(INTERPRETED)
                if not equal:
                    wrong.append((number, end, frames, methods))
        finally:
            machine.end()
        is_ok = not wrong and count["equal"] == rounds
        print(f"{'' if is_ok else 'not '}ok - witness: {mode}: {count['equal']} of {rounds} "
              f"stacks are equal, {count['methods']} methods by {count['interpreted']} interpreted "
              f"and {count['compiled']} compiled frames", flush=True)
        for number, end, frames, methods in wrong[:3]:
            print(f"# round {number} ended as {end}\n#   found:   {frames}\n#   printed: {methods}")
        status |= not is_ok
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
