# SPDX-License-Identifier: GPL-2.0-only
"""Only the files of runtimes know products: in the core, in the crate that makes rows, and in the
crate that finds code in processes. All other code of the module and of the tools names none,
neither in code nor in comments. So a new runtime is one file in each layer, and an entry or an arm
there.

The test reads all source files in rust/ and in the sources of four tools. It leaves out tests,
which may name an example. Formats that several products have, or that tools read by name, are no
products: .eh_frame, GDB's interface, Go's pclntab.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCTS = ("HotSpot", "Java", "JVM", "OpenJDK", "JDK", "Erlang", "Elixir", "BEAM", "SBCL", "V8",
            "Node.js", "nodejs", "LuaJIT", "OCaml", "GHC", "Haskell", "PyPy", "Python", "Guile",
            "PHP", "Ruby", "RJIT", "PostgreSQL", ".NET", "QEMU")
ANY = "(" + "|".join(re.escape(name) for name in PRODUCTS) + ")"
# Words, and parts of names that are joined by underlines, in any spelling. `node` alone is not
# searched for: trees have nodes.
NAMED = re.compile(r"(?<![a-z])" + ANY + r"(?![a-z])", re.IGNORECASE)
# Parts of names that begin with a capital: ErlangCode, IsErlang.
IN_CAMEL_CASE = re.compile(r"(?<![A-Z])" + ANY + r"(?![a-z])")

ROOMS = ("rust/sframe/src/runtimes/", "tools/convert/src/runtimes/",
         *(f"tools/runtimes/src/{finder}.rs"
           for finder in ("eh_frame", "erlang", "fixed", "gdb_jit", "hotspot", "luajit")))
# Input and instruments of tests.
TESTS = ("rust/kunit.rs", "rust/sframe/src/test_vectors.rs", "rust/sframe/tests/",
         "rust/sframe/fuzz/")
# The products that a file outside of the rooms may name, and why.
ALLOWED = {
    "rust/c/mappings.h": ({"sbcl", "php", "erlang"}, "programs that map files in an unusual way"),
    "tools/runtimes/src/lib.rs": ({"hotspot", "erlang", "luajit"}, "lists the finders"),
    "tools/sframectl/src/main.rs": (
        {"hotspot", "java", "openjdk", "erlang", "luajit", "qemu", "pypy", "guile", "ruby", "rjit"},
        "the help lists the known runtimes"),
}


def names(text):
    """The products that a text names, in small letters, without its test module."""
    tests = r"#\[cfg\(test\)\]\n(?:pub\([^)]*\) )?mod tests"
    text = re.split(tests, text, maxsplit=1)[0]
    return {found.lower() for pattern in (NAMED, IN_CAMEL_CASE) for found in pattern.findall(text)}


def sources():
    """The source files outside of the rooms, as paths below the root."""
    tools = ("convert", "runtimes", "sframectl", "walk")
    folders = ["rust", *(f"tools/{tool}/src" for tool in tools)]
    found = [path.relative_to(ROOT).as_posix() for pattern in ("*.rs", "*.[ch]", "*.mk")
             for folder in folders for path in sorted((ROOT / folder).rglob(pattern))
             if "target" not in path.parts]
    return [path for path in found if not path.startswith(ROOMS + TESTS)]


class Products(unittest.TestCase):
    def test_only_the_rooms_of_runtimes_name_products(self):
        named = {file: found for file in sources() if (found := names((ROOT / file).read_text()))}
        allowed = {file: products for file, (products, _) in ALLOWED.items()}
        bad = {file: found for file, found in named.items() if found - allowed.get(file, set())}
        self.assertEqual(bad, {})
        self.assertEqual(allowed, named, "the list of exceptions is out of date")

    def test_the_rooms_name_them(self):
        expected = {"rust/sframe/src/runtimes/": {"hotspot", "erlang", "sbcl", "v8"},
                    "tools/convert/src/runtimes/": {"ghc", "luajit"},
                    "tools/runtimes/src/hotspot.rs": {"hotspot"}}
        for room in ROOMS:
            files = [ROOT / room] if room.endswith(".rs") else list((ROOT / room).glob("*.rs"))
            named = set().union(*(names(path.read_text()) for path in files))
            self.assertTrue(named, f"{room} names no product")
            self.assertLessEqual(expected.get(room, set()), named)


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
