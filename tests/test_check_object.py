# SPDX-License-Identifier: GPL-2.0-only
"""scripts/check-object finds missing mitigations of an object, and code that is too large."""

import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = """
static long one(long n) { return n + 1; }
static long two(long n) { return n + 2; }
static long three(long n) { return n + 3; }
long (*volatile functions[])(long) = { one, two, three };
/* At the address of the first function, but in .text.unlikely. */
__attribute__((cold, noinline)) static long seldom(long n) { return functions[0](n) + 1; }
long ftrace_handler(long n) { return functions[n](n) + (n ? 1 : seldom(n)); }
/* The fast path, under names as rustc gives them. */
#define WALK(name) _RNvNtCsagoGuhBLkdI_13sframe_unwind4walk##name
#ifdef BY_ROWS
long WALK(10run_ranges)(long n) {
	asm volatile(".skip %c0, 0x90" : : "i"(BY_ROWS));
	return n;
}
#endif
long WALK(15store_by_region)(long n) {
	asm volatile(".skip %c0, 0x90" : : "i"(BY_REGION));
	return n;
}
long sframe_unwind_immediate(long n) { return ftrace_handler(n) + 1; }
long sframe_unwind_deferred(long n) { return ftrace_handler(n) + 1; }
#ifdef ENTRIES
asm(".pushsection .text\\n2: nop\\n.popsection\\n"
    ".pushsection .altinstr_replacement,\\"ax\\"\\n3: stac\\nclac\\n.popsection\\n"
    ".pushsection .altinstructions,\\"a\\"\\n.long 2b - ., 3b - .\\n.popsection\\n"
    ".pushsection __ex_table,\\"a\\"\\n.long 2b - .\\n.popsection\\n");
#endif
char large[LARGE + 1] __attribute__((section(".text.large,\\"ax\\",@progbits#")));
"""
CONFIG = "CONFIG_MITIGATION_RETPOLINE=y\nCONFIG_RETHUNK=y\nCONFIG_X86_KERNEL_IBT=y\n"
CALLS = ["-mindirect-branch=thunk-extern", "-mindirect-branch-register"]
RETURNS = ["-mfunction-return=thunk-extern"]
ENDBR = ["-fcf-protection=branch"]
ENTRIES = ["-DENTRIES"]
CFI_CONFIG = CONFIG + "CONFIG_CFI_CLANG=y\n"
CLANG = ["-mretpoline-external-thunk", *RETURNS, *ENDBR]
HASHES = ["-fsanitize=kcfi"]


class CheckObject(unittest.TestCase):
    def found(self, flags, large=0, entries=True, compiler="gcc", config=CONFIG,
              by_rows=800, by_region=1000):
        """The checks that fail for an object that is compiled with these flags."""
        with tempfile.TemporaryDirectory() as name:
            build = pathlib.Path(name)
            (build / "rust").mkdir()
            (build / "tree").mkdir()
            (build / "tree/.config").write_text(config)
            (build / "a.c").write_text(SOURCE)
            subprocess.run([compiler, "-O1", "-c", "-fno-pic", "-mcmodel=kernel",
                            "-fcf-protection=none", *flags, *(ENTRIES if entries else []),
                            *([] if by_rows is None else [f"-DBY_ROWS={by_rows}"]),
                            f"-DBY_REGION={by_region}",
                            f"-DLARGE={large}", "-o", build / "rust/main.o", build / "a.c"],
                           check=True)
            # In a linked module all code is in .text.
            (build / "link.lds").write_text("SECTIONS { .text : { *(.text .text.*) } }\n")
            subprocess.run(["ld", "-r", "-T", build / "link.lds", "-o", build / "sframe_unwind.ko",
                            build / "rust/main.o"], check=True)
            (build / "sframe_unwind.o").write_bytes((build / "rust/main.o").read_bytes())
            run = subprocess.run([ROOT / "scripts/check-object", build], check=False,
                                 capture_output=True, text=True)
            lines = run.stdout.splitlines()
            checks = 9 if "CFI" in config else 8
            self.assertEqual(sum(line.startswith(("ok", "not ok")) for line in lines), checks,
                             run.stdout + run.stderr)
            bad = {line.removeprefix("not ok - ") for line in lines if line.startswith("not ok")}
            self.assertEqual(run.returncode, 1 if bad else 0)
            return bad

    def test_a_good_object(self):
        self.assertEqual(self.found(CALLS + RETURNS + ENDBR), set())

    def test_missing_protections(self):
        self.assertEqual(self.found(RETURNS + ENDBR), {"no indirect call or jump without a thunk"})
        self.assertEqual(self.found(CALLS + ENDBR), {"no return without a thunk"})
        self.assertEqual(self.found(CALLS + RETURNS),
                         {"functions whose address is taken begin with ENDBR64"})

    def test_missing_hashes(self):
        missing = {"a kCFI hash is in front of functions that begin with ENDBR64"}
        self.assertEqual(self.found(CLANG + HASHES, compiler="clang", config=CFI_CONFIG), set())
        self.assertEqual(self.found(CLANG, compiler="clang", config=CFI_CONFIG), missing)

    def test_missing_entries(self):
        self.assertEqual(self.found(CALLS + RETURNS + ENDBR, entries=False),
                         {"reads of user memory have their alternatives and exceptions"})

    def test_too_large(self):
        self.assertEqual(self.found(CALLS + RETURNS + ENDBR, 163840),
                         {"the code is at most 160 KiB"})

    def test_a_large_fast_path(self):
        small = "the code of the fast path is small"
        self.assertEqual(self.found(CALLS + RETURNS + ENDBR, by_rows=2304), {small})
        self.assertEqual(self.found(CALLS + RETURNS + ENDBR, by_region=1152), {small})
        # A function that was not found, because it has another name or was inlined, is not small.
        self.assertEqual(self.found(CALLS + RETURNS + ENDBR, by_rows=None), {small})


if __name__ == "__main__":
    unittest.main()
