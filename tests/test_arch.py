# SPDX-License-Identifier: GPL-2.0-only
"""Only the folders of an architecture know it: other files name neither x86-64 nor its registers
and instructions, in code and in comments. So a new architecture is a folder in each layer, as
rust/arch.rs lists them. The name of an ABI (AMD64) may stand anywhere.

The test reads Kbuild and all source files in rust/. It leaves out tests.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = ("[re]?[abcd]x", "[re][sd]i", "[re][sb]p", "[re]ip", "r[89]", "r1[0-5]d?", "[fg]s:",
         "stac", "clac", "smap", "rdmsr[lq]?", "cmov[a-z]*", "endbr(64)?", "ist", "fred", "wrmsr",
         "x86([_-]64)?", "retpoline", "elf_x86_64", "__get_user_[1248]")
# Words, and parts of names that are joined by underlines, in any spelling: MACHINE_X86_64.
NAMED = re.compile(r"(?<![a-z0-9])(" + "|".join(WORDS) + r")(?![a-z0-9])", re.IGNORECASE)
# Parts of names that begin with a capital: SavedRbx.
IN_CAMEL_CASE = re.compile(r"(?<=[a-z])(R[abcd]x|R[sd]i|R[sb]p|X86)(?![a-z])")

ROOMS = ("rust/x86_64/", "rust/c/x86_64/", "rust/sframe/src/x86_64/", "rust/kernel-shim/x86_64.",
         # Regions exist on AMD64 only, and their code decodes its instructions.
         "rust/sframe/src/runtimes/")
# Input and instruments of tests.
TESTS = ("rust/kunit.rs", "rust/sframe/src/test_vectors.rs", "rust/sframe/tests/",
         "rust/sframe/fuzz/", "rust/sframe/examples/")
CHOICE = ({"x86_64"}, "chooses the architecture")
RBX = ({"rbx"}, "sections of AMD64 have bits for rbx, which other architectures leave 0")
# What a file outside of the rooms may name, and why.
ALLOWED = {
    "Kbuild": CHOICE,
    "rust/arch.rs": CHOICE,
    "rust/kernel-shim/lib.rs": CHOICE,
    "rust/sframe/src/mod.rs": CHOICE,
    "rust/sframe/src/format/fde.rs": RBX,
    "rust/sframe/src/format/fre.rs": RBX,
    "rust/sframe/src/rule.rs": RBX,
    "rust/sframe/src/table/compact_rule.rs": RBX,
    "rust/sframe/src/table/extra_row.rs": RBX,
    "rust/sframe/src/walk/mod.rs": RBX,
    "rust/sframe/src/walk/rbx.rs": RBX,
    "rust/sframe/src/walk/registers.rs": RBX,
    "rust/uapi/sframe_unwind.h": ({"rbx"}, "the register of a runtime, in a region of AMD64"),
    "rust/uapi/mod.rs": ({"x86_64"}, "makes regions, which exist on AMD64 only"),
}


def names(text):
    """What a text names of x86-64, in small letters, without its test module."""
    tests = r"#\[cfg\(test\)\]\n(?:pub\([^)]*\) )?mod tests"
    text = re.split(tests, text, maxsplit=1)[0]
    return {found[1].lower() for pattern in (NAMED, IN_CAMEL_CASE)
            for found in pattern.finditer(text)}


def sources():
    """The source files of the module outside of the rooms, as paths below the root."""
    found = [path.relative_to(ROOT).as_posix() for pattern in ("*.rs", "*.[ch]", "*.mk", "*.lds")
             for path in sorted((ROOT / "rust").rglob(pattern)) if "target" not in path.parts]
    return [path for path in ["Kbuild", *found] if not path.startswith(ROOMS + TESTS)]


class Architectures(unittest.TestCase):
    def test_only_the_rooms_name_an_architecture(self):
        named = {file: found for file in sources() if (found := names((ROOT / file).read_text()))}
        allowed = {file: words for file, (words, _) in ALLOWED.items()}
        bad = {file: found for file, found in named.items() if found - allowed.get(file, set())}
        self.assertEqual(bad, {})
        self.assertEqual(allowed, named, "the list of exceptions is out of date")

    def test_the_rooms_name_it(self):
        for room in ROOMS:
            files = [path for pattern in ("*.rs", "*.[ch]", "*.mk") for path in
                     (ROOT / "rust").rglob(pattern)
                     if path.relative_to(ROOT).as_posix().startswith(room)]
            named = set().union(*(names(path.read_text()) for path in files))
            self.assertNotEqual(named, set(), room)


class Patterns(unittest.TestCase):
    def test_x86_is_found_in_any_spelling(self):
        for text in ("%rax", "RAX", "saved_rbx", "SavedRbx", "Rbx(u64)", "MACHINE_X86_64", "x86",
                     "x86-64", "X86_FEATURE", "`stac`", "gs:[0]", "R11", "r10", "endbr64",
                     "%eax", "CONFIG_X86_64", "__get_user_8"):
            self.assertEqual(len(names(text)), 1, text)

    def test_other_words_are_no_x86(self):
        self.assertEqual(names("AMD64 exception axis index descriptor x30 r0 sip list"), set())
        self.assertEqual(names("fn f() {}\n#[cfg(test)]\nmod tests { // rax\n}\n"), set())


if __name__ == "__main__":
    unittest.main()
