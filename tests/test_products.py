# SPDX-License-Identifier: GPL-2.0-only
"""Only the folder of the runtimes knows products: the walk's loop, the adapter to the kernel and
the code for AMD64 name none, neither in code nor in comments. So a new runtime is a file of that
folder.

The test reads all source files in rust/. It leaves out tests, which may name an example.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCTS = ("HotSpot", "Java", "JVM", "OpenJDK", "JDK", "Erlang", "Elixir", "BEAM", "SBCL", "V8",
            "Node.js", "nodejs", "LuaJIT", "OCaml", "GHC", "Haskell", "PyPy", "Python", "Guile",
            "PHP", "Ruby", "RJIT", "PostgreSQL", ".NET")
ANY = "(" + "|".join(re.escape(name) for name in PRODUCTS) + ")"
# Words, and parts of names that are joined by underlines, in any spelling. `node` alone is not
# searched for: trees have nodes.
NAMED = re.compile(r"(?<![a-z])" + ANY + r"(?![a-z])", re.IGNORECASE)
# Parts of names that begin with a capital: ErlangCode, IsErlang.
IN_CAMEL_CASE = re.compile(r"(?<![A-Z])" + ANY + r"(?![a-z])")

ROOMS = ("rust/sframe/src/runtimes/",)
# Input and instruments of tests.
TESTS = ("rust/kunit.rs", "rust/sframe/src/test_vectors.rs", "rust/sframe/tests/",
         "rust/sframe/fuzz/")
# The products that a file outside of the rooms may name, and why.
ALLOWED = {
    "rust/c/internal.h": ({"sbcl", "php", "erlang"}, "programs that map files in an unusual way"),
}


def names(text):
    """The products that a text names, in small letters, without its test module."""
    tests = r"#\[cfg\(test\)\]\n(?:pub\([^)]*\) )?mod tests"
    text = re.split(tests, text, maxsplit=1)[0]
    return {found.lower() for pattern in (NAMED, IN_CAMEL_CASE) for found in pattern.findall(text)}


def sources():
    """The source files of the module outside of the rooms, as paths below the root."""
    found = [path.relative_to(ROOT).as_posix() for pattern in ("*.rs", "*.[ch]", "*.mk")
             for path in sorted((ROOT / "rust").rglob(pattern)) if "target" not in path.parts]
    return [path for path in found if not path.startswith(ROOMS + TESTS)]


class Products(unittest.TestCase):
    def test_only_the_rooms_of_runtimes_name_products(self):
        named = {file: found for file in sources() if (found := names((ROOT / file).read_text()))}
        allowed = {file: products for file, (products, _) in ALLOWED.items()}
        bad = {file: found for file, found in named.items() if found - allowed.get(file, set())}
        self.assertEqual(bad, {})
        self.assertEqual(allowed, named, "the list of exceptions is out of date")

    def test_the_rooms_name_them(self):
        files = [path for room in ROOMS for path in (ROOT / room).glob("*.rs")]
        named = set().union(*(names(path.read_text()) for path in files))
        self.assertLessEqual({"hotspot", "erlang", "sbcl", "v8"}, named)


class Patterns(unittest.TestCase):
    def test_products_are_found_in_any_spelling(self):
        for text in ("HotSpot's", "Region::HotSpot(_)", "REGION_HOTSPOT", "erlang::exit",
                     "ErlangCode", "IsErlang", "// code of V8", "v8::f()", "mod hotspot;",
                     "hotspot_interpreter", "Node.js", "the JDK"):
            self.assertEqual(len(names(text)), 1, text)

    def test_other_words_are_no_products(self):
        self.assertEqual(names("beams javascript a node of a tree, phpa, jvms"), set())
        self.assertEqual(names("fn f() {}\n#[cfg(test)]\nmod tests { // HotSpot\n}\n"), set())


if __name__ == "__main__":
    unittest.main()
