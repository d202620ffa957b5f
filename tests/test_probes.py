# SPDX-License-Identifier: GPL-2.0-only
"""Tests of rust/c/probes.sh, and of who asks what about a kernel. The stage `headers` has the
answers about kernels."""

import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "rust/c/probes.sh"
PROBES = (ROOT / "rust/c/probes.c").read_text()

HEADER = "static inline int new(int a, int b) { return a + b; }\n"
QUESTIONS = """
#include "header.h"
#if NEEDED
#error "the kernel lacks a thing"
#endif
#ifdef SFU_HAS_NOTHING
static inline int probe(void) { return none(); }
#endif
#ifdef SFU_HAS_NEW
static inline int probe(void) { return new(1, 2); }
#endif
#ifdef SFU_HAS_NEWER
static inline int probe(void) { return new(1); }
#endif
#ifdef SFU_HAS_POINTER
static int (*probe)(long) = new;
#endif
#ifdef SFU_HAS_WARNING
static int probe;
#endif
"""


def sources():
    """The module's files, as pairs of a name and a text."""
    files = [path for pattern in ("*.[ch]", "*.mk", "*.rs") for path in
             sorted((ROOT / "rust").rglob(pattern)) if "target" not in path.parts]
    return {path.relative_to(ROOT).as_posix(): path.read_text()
            for path in [ROOT / "Kbuild", *files]}


class Script(unittest.TestCase):
    def ask(self, *compiler):
        """Runs the script over QUESTIONS: its status, output and errors, and the dependencies."""
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            (place / "header.h").write_text(HEADER)
            (place / "questions.c").write_text(QUESTIONS)
            ran = subprocess.run(["sh", SCRIPT, "a kernel", place / "depends",
                                  place / "questions.c", *compiler],
                                 capture_output=True, text=True, check=False)
            depends = place / "depends"
            return ran, depends.read_text() if depends.exists() else ""

    def test_answers(self):
        ran, depends = self.ask("gcc", "-Wall", "-Werror")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout.splitlines(), [
            "/* Made by rust/c/probes.sh for Linux a kernel */",
            "#define SFU_HAS_NEW 1", "#define SFU_HAS_NEWER 0", "#define SFU_HAS_NOTHING 0",
            "#define SFU_HAS_POINTER 0", "#define SFU_HAS_WARNING 1"])
        self.assertIn("header.h", depends)

    def test_a_kernel_that_lacks_what_is_needed_is_refused(self):
        ran, _ = self.ask("gcc", "-DNEEDED")
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("the kernel lacks a thing", ran.stderr)

    def test_a_compiler_that_permits_everything_is_refused(self):
        ran, _ = self.ask("true")
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("compiles even what does not exist", ran.stderr)


class Questions(unittest.TestCase):
    def test_each_question_is_asked_and_its_answer_used(self):
        asked = set(re.findall(r"^#ifdef (SFU_HAS_\w+)", PROBES, re.MULTILINE))
        own = {"SFU_HAS_FRED", "SFU_HAS_WHOLE_URETPROBES"}
        used = {name for file, text in sources().items() if file != "rust/c/probes.c"
                for name in re.findall(r"\bSFU_HAS_\w+(?<!_)", text)}
        self.assertEqual(used - own, asked - {"SFU_HAS_NOTHING"})

    def test_only_one_file_asks_for_the_version(self):
        version = re.compile(r"LINUX_VERSION_CODE|KERNEL_VERSION|\$\((VERSION|PATCHLEVEL)\)")
        self.assertEqual([file for file, text in sources().items() if version.search(text)],
                         ["rust/c/compat.h"])

    def test_dkms_asks_for_the_same_options(self):
        dkms = (ROOT / "dkms.conf").read_text()
        options = re.search(r'^BUILD_EXCLUSIVE_CONFIG="(.*)"', dkms, re.MULTILINE)[1].split()
        self.assertEqual(sorted(re.findall(r"!defined\((CONFIG_\w+)\)", PROBES)), sorted(options))


if __name__ == "__main__":
    unittest.main()
