# SPDX-License-Identifier: GPL-2.0-only
"""Only the folders of an architecture know it: other files name neither x86-64, nor AArch64, nor
their registers and instructions, in code and in comments. So a new architecture is a folder in each
layer, as rust/arch.rs lists them. The names of ABIs (AMD64, AArch64) may stand anywhere.

The test reads Kbuild and all source files in rust/. It leaves out tests.
"""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))

# pylint: disable=wrong-import-position
import rooms

# pylint: enable=wrong-import-position

WORDS = ("[re]?[abcd]x", "[re][sd]i", "[re][sb]p", "[re]ip", "r[89]", "r1[0-5]d?", "[fg]s:",
         "stac", "clac", "smap", "rdmsr[lq]?", "cmov[a-z]*", "endbr(64)?", "ist", "fred", "wrmsr",
         "x86([_-]64)?", "retpoline", "elf_x86_64", "__get_user_[1248]")
# Words, and parts of names that are joined by underlines, in any spelling: MACHINE_X86_64.
NAMED = re.compile(r"(?<![a-z0-9])(" + "|".join(WORDS) + r")(?![a-z0-9])", re.IGNORECASE)
# Parts of names that begin with a capital: SavedRbx.
IN_CAMEL_CASE = re.compile(r"(?<=[a-z])(R[abcd]x|R[sd]i|R[sb]p|X86)(?![a-z])")

PLACES = ("rust/x86_64/", "rust/c/x86_64/", "rust/sframe/src/x86_64/", "rust/kernel-shim/x86_64.",
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
ROOMS = rooms.Rooms((NAMED, IN_CAMEL_CASE), PLACES, TESTS, ALLOWED)

# Of AArch64: registers, instructions, and the folders' name, which is in small letters.
AARCH64_WORDS = ("x(?:29|30)", "ldtr[bh]?", "ttbr[01]?", "(?:pac|aut)i[ab]sp", "pstate", "tco",
                 "arm64", "csdb", "bti")
OF_AARCH64 = (re.compile(r"(?<![a-z0-9])(" + "|".join(AARCH64_WORDS) + r")(?![a-z0-9])",
                         re.IGNORECASE),
              re.compile(r"(?<![a-z0-9])(aarch64)(?![a-z0-9])"))
AARCH64_PLACES = tuple(place.replace("x86_64", "aarch64") for place in PLACES if "x86_64" in place)
CHOICE_OF_AARCH64 = ({"aarch64"}, "chooses the architecture")
AARCH64_ALLOWED = {
    "Kbuild": ({"aarch64", "arm64"}, "chooses the architecture"),
    "rust/arch.rs": CHOICE_OF_AARCH64,
    "rust/kernel-shim/lib.rs": CHOICE_OF_AARCH64,
    "rust/sframe/src/mod.rs": CHOICE_OF_AARCH64,
    "rust/c/probes.c": ({"arm64"}, "its older kernels have another option for the hook"),
}
AARCH64_ROOMS = rooms.Rooms(OF_AARCH64, AARCH64_PLACES, TESTS, AARCH64_ALLOWED)


class Architectures(unittest.TestCase):
    def test_only_the_rooms_name_an_architecture(self):
        files = rooms.sources(["rust"], "*.rs", "*.[ch]", "*.mk", "*.lds")
        ROOMS.check(self, ["Kbuild", *files])
        AARCH64_ROOMS.check(self, ["Kbuild", *files])


class Patterns(unittest.TestCase):
    def test_x86_is_found_in_any_spelling(self):
        for text in ("%rax", "RAX", "saved_rbx", "SavedRbx", "Rbx(u64)", "MACHINE_X86_64", "x86",
                     "x86-64", "X86_FEATURE", "`stac`", "gs:[0]", "R11", "r10", "endbr64",
                     "%eax", "CONFIG_X86_64", "__get_user_8"):
            self.assertEqual(len(ROOMS.names(text)), 1, text)

    def test_aarch64_is_found(self):
        for text in ("x30", "LDTR", "TTBR0_EL1", "paciasp", "rust/aarch64/", "CONFIG_ARM64"):
            self.assertEqual(len(AARCH64_ROOMS.names(text)), 1, text)
        self.assertEqual(AARCH64_ROOMS.names("AArch64 Abi::Aarch64Big x3 x301 bit"), set())

    def test_other_words_are_no_x86(self):
        text = "AMD64 exception axis index descriptor x30 r0 sip list"
        self.assertEqual(ROOMS.names(text), set())
        self.assertEqual(ROOMS.names("fn f() {}\n#[cfg(test)]\nmod tests { // rax\n}\n"), set())


if __name__ == "__main__":
    unittest.main()
