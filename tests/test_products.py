# SPDX-License-Identifier: GPL-2.0-only
"""Only the files of runtimes know products: in the core, in the crate that makes rows, and in the
crate that finds code in processes. All other code of the module and of the tools names none,
neither in code nor in comments. So a new runtime is one file in each layer, and an entry or an arm
there.

The test reads all source files in rust/ and in the sources of four tools. It leaves out tests,
which may name an example. Formats that several products have, or that tools read by name, are no
products: .eh_frame, GDB's interface, Go's pclntab.
"""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))

# pylint: disable=wrong-import-position
import rooms

# pylint: enable=wrong-import-position

PRODUCTS = ("HotSpot", "Java", "JVM", "OpenJDK", "JDK", "Erlang", "Elixir", "BEAM", "SBCL", "V8",
            "Node.js", "nodejs", "LuaJIT", "OCaml", "GHC", "Haskell", "PyPy", "Python", "Guile",
            "PHP", "Ruby", "RJIT", "PostgreSQL", "numba", ".NET", "QEMU")
ANY = "(" + "|".join(re.escape(name) for name in PRODUCTS) + ")"
# Words, and parts of names that are joined by underlines, in any spelling. `node` alone is not
# searched for: trees have nodes.
NAMED = re.compile(r"(?<![a-z])" + ANY + r"(?![a-z])", re.IGNORECASE)
# Parts of names that begin with a capital: ErlangCode, IsErlang.
IN_CAMEL_CASE = re.compile(r"(?<![A-Z])" + ANY + r"(?![a-z])")

PLACES = ("rust/sframe/src/runtimes/", "tools/convert/src/runtimes/",
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
ROOMS = rooms.Rooms((NAMED, IN_CAMEL_CASE), PLACES, TESTS, ALLOWED)


class Products(unittest.TestCase):
    def test_only_the_rooms_of_runtimes_name_products(self):
        tools = (f"tools/{tool}/src" for tool in ("convert", "runtimes", "sframectl", "walk"))
        ROOMS.check(self, rooms.sources(["rust", *tools], "*.rs", "*.[ch]", "*.mk"))

    def test_the_rooms_name_them(self):
        expected = {"rust/sframe/src/runtimes/": {"hotspot", "erlang", "sbcl", "v8"},
                    "tools/convert/src/runtimes/": {"ghc", "luajit"},
                    "tools/runtimes/src/hotspot.rs": {"hotspot"}}
        files = rooms.sources(["rust", "tools"], "*.rs")
        for place, products in expected.items():
            texts = ((rooms.ROOT / file).read_text() for file in files if file.startswith(place))
            self.assertLessEqual(products, set().union(*map(ROOMS.names, texts)), place)


class Patterns(unittest.TestCase):
    def test_products_are_found_in_any_spelling(self):
        for text in ("HotSpot's", "Region::HotSpot(_)", "REGION_HOTSPOT", "erlang::exit",
                     "ErlangCode", "IsErlang", "// code of V8", "v8::f()", "mod hotspot;",
                     "hotspot_interpreter", "Node.js", "the JDK"):
            self.assertEqual(len(ROOMS.names(text)), 1, text)

    def test_other_words_are_no_products(self):
        self.assertEqual(ROOMS.names("beams javascript a node of a tree, phpa, jvms"), set())
        self.assertEqual(ROOMS.names("fn f() {}\n#[cfg(test)]\nmod tests { // HotSpot\n}\n"), set())


if __name__ == "__main__":
    unittest.main()
