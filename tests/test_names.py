# SPDX-License-Identifier: GPL-2.0-only
"""Each type of the Rust code has a name of its own: a reader, or a search, finds one meaning for
one name.

The test covers structs, enums, unions, traits and type aliases in rust/, tools/ and tests/, also
those of test modules. Associated types are no definitions of this kind: they belong to a trait.
"""

import collections
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFINED = re.compile(r"^([ \t]*)(?:pub(?:\([^)]*\))?[ \t]+)?(?:unsafe[ \t]+)?"
                     r"(struct|enum|union|trait|type)[ \t]+([A-Z]\w*)", re.MULTILINE)
# Files whose names others have chosen: the kernel's crate `kernel`, and the output of bindgen.
FOREIGN = re.compile(r"^rust/kernel-shim/|_generated\.rs$|^rust/uapi/generated\.rs$")
# Programs of the tests that are input: names of one program do not meet names of others.
INPUT = re.compile(r"^tests/truth/programs/")
# Names with several definitions of one thing, and the reason.
OF_ARCHITECTURES = "each architecture has one, and a module has one architecture"
ALLOWED = {
    "FramePointer": OF_ARCHITECTURES,
    "IndexBound": OF_ARCHITECTURES,
    "Interrupted": OF_ARCHITECTURES,
    "UserAccess": OF_ARCHITECTURES,
}


def definitions(text):
    """The names that a source file defines."""
    for indent, kind, name in DEFINED.findall(text):
        # An indented alias is an associated type.
        if not (kind == "type" and indent):
            yield name


def sources():
    """The source files, as paths below the root."""
    found = [path.relative_to(ROOT).as_posix() for top in ("rust", "tools", "tests")
             for path in sorted((ROOT / top).rglob("*.rs")) if "target" not in path.parts]
    return [path for path in found if not FOREIGN.search(path) and not INPUT.search(path)]


class Names(unittest.TestCase):
    def test_each_name_has_one_definition(self):
        places = collections.defaultdict(list)
        for file in sources():
            for name in definitions((ROOT / file).read_text()):
                places[name].append(file)
        self.assertGreater(len(places), 100,
                           "hardly any definition was found: is the pattern wrong?")
        several = {name for name, files in places.items() if len(files) > 1}
        self.assertEqual([f"{name}: {', '.join(places[name])}"
                          for name in sorted(several - set(ALLOWED))], [])
        self.assertEqual(sorted(set(ALLOWED) - several), [],
                         "the list of exceptions is out of date")


class Parser(unittest.TestCase):
    def test_definitions_are_found(self):
        text = ("pub struct A<T> {\n    type B = u8;\n}\npub(crate) type C = u8;\n"
                "    pub(super) enum D {\n// struct E\nunsafe trait F {}\nstruct G;\n")
        self.assertEqual(list(definitions(text)), ["A", "C", "D", "F", "G"])


if __name__ == "__main__":
    unittest.main()
