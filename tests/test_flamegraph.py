# SPDX-License-Identifier: GPL-2.0-only
"""samples/flamegraph.sh, with stubs in place of perf and inferno."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "samples/flamegraph.sh"
ENABLED = pathlib.Path("/sys/module/sframe_unwind/parameters/enabled")

PERF = """#!/bin/sh
echo "$*" >>"$STUBS/perf.log"
case $1 in
record)
	while [ "$1" != -o ]; do shift; done
	echo recorded >"$2"
	while [ "$1" != -- ]; do shift; done
	shift
	"$@"
	;;
script)
	[ "$3" != missing ] || exit 1
	cat "$STUBS/samples"
	;;
esac
"""
COLLAPSE = """#!/bin/sh
cat "$2" >"$STUBS/stacks"
echo "main 1"
"""
FLAMEGRAPH = """#!/bin/sh
echo "<svg> $*"
"""

# leaf has an address of eight digits. The addresses ffff... after user frames are false frames.
SAMPLES = """\
         program  7/7  1.000000: cpu-clock:
\tffffffff81000010 syscall_enter ([kernel.kallsyms])
\tffffffffc0000020 [unknown] ([module])
\t        ffff0000 leaf (program)
\t    555500001000 main (program)
\tffff888000000000 [unknown] ([unknown])

         program  7/8  2.000000: cpu-clock:
\t        ffff0000 leaf (program)
\tffffffff81000010 syscall_enter ([kernel.kallsyms])

         program  7/8  3.000000: cpu-clock:
\tffffffff81000010 syscall_enter ([kernel.kallsyms])

"""
STACKS = """\
         program  7/7  1.000000: cpu-clock:
\tffffffffffffffff kernel ([kernel.kallsyms])
\t        ffff0000 leaf (program)
\t    555500001000 main (program)
\tffff888000000000 [unknown] ([unknown])

         program  7/8  2.000000: cpu-clock:
\t        ffff0000 leaf (program)
\tffffffff81000010 syscall_enter ([kernel.kallsyms])

         program  7/8  3.000000: cpu-clock:
\tffffffffffffffff kernel ([kernel.kallsyms])

"""


class Flamegraph(unittest.TestCase):
    """Each test has a directory for the stubs, in which the script runs."""

    def setUp(self):
        self.stubs = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.stubs)
        self.executable("perf", PERF)
        self.executable("inferno-collapse-perf", COLLAPSE)
        self.executable("inferno-flamegraph", FLAMEGRAPH)
        (self.stubs / "samples").write_text(SAMPLES)

    def executable(self, name, text):
        """Makes a shell script."""
        path = self.stubs / name
        path.write_text(text)
        path.chmod(0o755)

    def run_script(self, *arguments):
        """Runs flamegraph.sh."""
        return subprocess.run([SCRIPT, *arguments], cwd=self.stubs, text=True, capture_output=True,
                              check=False,
                              env={"PATH": f"{self.stubs}:/usr/bin:/bin", "STUBS": str(self.stubs)})

    def perf_calls(self):
        """The arguments of each call of perf."""
        return (self.stubs / "perf.log").read_text().splitlines()

    @staticmethod
    def svg(program):
        """The name of the file for a program."""
        enabled = ENABLED.exists() and ENABLED.read_text("ascii").strip() == "Y"
        return f"{program}-sframe.svg" if enabled else f"{program}-frame-pointers.svg"

    def test_a_program_is_recorded_and_drawn(self):
        self.executable("program", '#!/bin/sh\nprintf "%s|" "$@" >"$STUBS/arguments"\n')
        done = self.run_script("./program", "a b", "-c")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, self.svg("program") + "\n")
        self.assertEqual((self.stubs / "arguments").read_text(), "a b|-c|")
        record, script = self.perf_calls()
        self.assertRegex(record, r"^record -q -F 999 --call-graph fp -o \S+/perf\.data -- "
                                 r"\./program a b -c$")
        self.assertRegex(script, r"^script -i \S+/perf\.data ")
        svg = (self.stubs / self.svg("program")).read_text()
        self.assertIn("--title program: stacks by ", svg)

    def test_a_program_that_fails_is_drawn(self):
        done = self.run_script("sh", "-c", "exit 3")
        self.assertEqual(done.returncode, 0)
        self.assertIn("perf record ended with status 3", done.stderr)
        self.assertTrue((self.stubs / self.svg("sh")).exists())

    def test_a_recording_is_drawn(self):
        done = self.run_script("--data", "data", "out.svg", "A title")
        self.assertEqual((done.returncode, done.stdout), (0, "out.svg\n"))
        calls = self.perf_calls()
        self.assertEqual(len(calls), 1)
        self.assertRegex(calls[0], "^script -i data ")
        self.assertIn("--title A title", (self.stubs / "out.svg").read_text())

    def test_only_leading_kernel_frames_are_merged(self):
        self.run_script("--data", "data", "out.svg", "A title")
        self.assertEqual((self.stubs / "stacks").read_text(), STACKS)

    def test_an_unreadable_recording_is_an_error(self):
        done = self.run_script("--data", "missing", "out.svg", "A title")
        self.assertNotEqual(done.returncode, 0)
        self.assertFalse((self.stubs / "out.svg").exists())

    def test_wrong_usage_is_an_error(self):
        for arguments in [], ["--help"], ["--data", "data"]:
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertTrue(done.stderr.startswith("usage: "), done.stderr)

    def test_a_missing_tool_is_an_error(self):
        (self.stubs / "inferno-flamegraph").unlink()
        done = self.run_script("--data", "data", "out.svg", "A title")
        self.assertEqual(done.returncode, 1)
        self.assertIn("inferno-flamegraph is not in PATH", done.stderr)
