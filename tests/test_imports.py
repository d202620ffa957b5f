# SPDX-License-Identifier: GPL-2.0-only
"""Imports go down: layers.txt lists the source files, top first, and a file imports only from files
below it. A C file imports what it includes, and the functions and variables of other C files that
it names. A function in line and a macro import for their header. FILE.c and FILE.h are one.

A source file that the list lacks is a failure, and so is a file that the list has and the tree has
not.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The folders of `arch` in each layer: see rust/arch.rs. A module has one of them.
ARCHES = ("x86_64", "aarch64")


def listed():
    """The source files in the order of layers.txt."""
    lines = (ROOT / "tests/layers.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def in_tree():
    """The source files that there are."""
    found = [path for pattern in ("rust/*.rs", "rust/sys/**/*.rs", "rust/tables/*.rs",
                                  *(f"rust/{arch}/**/*.rs" for arch in ARCHES), "rust/c/**/*.[ch]",
                                  "rust/kernel-shim/*.rs", "rust/kernel-shim/*.[ch]",
                                  "rust/uapi/*.h", "rust/uapi/*.rs", "rust/sframe/src/**/*.rs")
             for path in ROOT.glob(pattern)]
    return {str(path.relative_to(ROOT)) for path in found if not path.name.endswith("generated.rs")}


def expand(tree, prefix=()):
    """The paths of a `use`: `a::{b, c::{self, d}}` is a::b, a::c and a::c::d."""
    head, brace, rest = tree.partition("{")
    path = prefix + tuple(part for part in head.strip().split("::") if part)
    if not brace:
        name = path[-1].split(" as ")[0].strip() if path else ""
        yield path[:-1] if name in ("self", "*") else path[:-1] + (name,)
        return
    depth, start, body = 0, 0, rest[:rest.rindex("}")]
    for at, char in enumerate(body + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if body[start:at].strip():
                yield from expand(body[start:at].strip(), path)
            start = at + 1


def paths_of(text):
    """All paths that begin with crate, super or self, in `use` statements and in code."""
    code = re.sub(r"//[^\n]*", "", text)
    # What only tests import is no part of the module.
    code = re.split(r"#\[cfg\(test\)\]\n(?:pub\([^)]*\) )?mod tests", code, maxsplit=1)[0]
    uses = re.findall(r"\buse\s+((?:crate|super|self)::[^;]*);", code)
    for use in uses:
        yield from expand(re.sub(r"\s+", " ", use))
    # A path that limits who sees an item is no import, either.
    rest = re.sub(r"\buse\s+[^;]*;|\bpub\(in [^)]*\)", "", code)
    for path in re.findall(r"\b(?:crate|super)(?:::\w+)+", rest):
        yield tuple(path.split("::"))


def module_of(file):
    """The path of a file's module, and the directory that its children are in."""
    path = pathlib.PurePath(file)
    root = next((root,) for root in ("rust/sframe/src", "rust/kernel-shim", "rust")
                if file.startswith(root + "/"))
    parts = path.relative_to(root[0]).with_suffix("").parts
    if parts in (("main",), ("lib",), ("mod",)):
        return root
    return root + (parts[:-1] if parts[-1] == "mod" else parts)


def c_code(text):
    """C code without comments and strings."""
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', " ", text, flags=re.DOTALL)


def c_defined(text):
    """The functions and variables that a C file defines for other files."""
    start = r"^(?!static\b|extern\b|typedef\b|return\b)"
    kinds = (start + r"\w[\w \t*]*?\b(\w+)\([^;{}]*\)\s*\{",
             start + r"\w[\w \t*]*[ *](\w+)(?:\[[^;=]*\])?(?:\s*=[^;]*)?;",
             r"^(?:DEFINE|DECLARE)_\w+\((?:[^;]*,\s*)?(\w+)\);")
    return {name for kind in kinds for name in re.findall(kind, c_code(text), re.MULTILINE)}


def c_named(file, text):
    """All names in the code of a C file; in a header, those in functions and macros."""
    code = c_code(text)
    if file.endswith(".h"):
        bodies = re.findall(r"^\{.*?^\}|^#define(?:[^\n]*\\\n)*[^\n]*", code, re.M | re.DOTALL)
        code = "\n".join(bodies)
    return set(re.findall(r"\b[a-zA-Z_]\w*", code))


def c_imports(texts):
    """Pairs of files: the first one names a function or variable that the second one defines."""
    places = {name: file for file, text in texts.items() if file.endswith(".c")
              for name in c_defined(text)}
    stem = {file: file.rsplit(".", 1)[0] for file in texts}
    return {(file, places[name]) for file, text in texts.items()
            for name in places.keys() & c_named(file, text) if stem[file] != stem[places[name]]}


def is_of(arch, file):
    """Whether a file belongs to a module of an architecture."""
    return not any(f"/{other}/" in file for other in ARCHES if other != arch)


def upward(order, pairs):
    """The pairs whose second file is listed above the first one."""
    place = {file: number for number, file in enumerate(order)}
    return [f"{file} imports from {target}, which is above it"
            for file, target in sorted(pairs) if place[target] < place[file]]


class Imports(unittest.TestCase):
    def setUp(self):
        self.order = listed()
        self.modules = {}
        for file in self.order:
            if file.endswith(".rs") and not file.endswith(("/lib.rs", "rust/main.rs")):
                self.modules[module_of(file)] = file

    def target(self, file, path, arch):
        """The file that a path names; None if that is no module of ours, or the core as a whole."""
        at = module_of(file)
        parts = list(path)
        if parts[0] == "crate":
            at, parts = ("rust/kernel-shim" if at[0] == "rust/kernel-shim" else "rust",), parts[1:]
            if parts and parts[0] == "sframe":
                at, parts = ("rust/sframe/src",), parts[1:]
        else:
            while parts and parts[0] in ("super", "self"):
                at, parts = (at[:-1] if parts[0] == "super" else at), parts[1:]
        best = None
        for part in parts:
            at += (part,)
            chosen = tuple(arch if name == "arch" else name for name in at)
            best = self.modules.get(at, self.modules.get(chosen, best))
        if best is None and parts and at[0] == "rust/sframe/src":
            # The root has the modules of all folders by their own names, too.
            best = next((name for module, name in self.modules.items()
                         if module[0] == at[0] and module[-1] == parts[0]), None)
        return best

    def test_the_list_is_complete(self):
        self.assertEqual(sorted(self.order), sorted(set(self.order)), "a file is listed twice")
        self.assertEqual(set(self.order), in_tree(), "the list in layers.txt is not the tree's")

    def test_imports_go_down(self):
        pairs = set()
        for arch, file in ((arch, file) for arch in ARCHES for file in self.order
                           if is_of(arch, file)):
            text = (ROOT / file).read_text()
            if file.endswith(".rs"):
                targets = {self.target(file, path, arch) for path in paths_of(text)}
            else:
                names = re.findall(r'#include "([^"]+)"', text)
                folder = (ROOT / file).parent
                targets = {next((str(path.resolve().relative_to(ROOT)) for path in
                                 (folder / name, folder / arch / name) if path.exists()), name)
                           for name in names}
            # The roots of the core re-export all of it; a folder's root is above what is in it.
            pairs |= {(file, target) for target in targets - {None, file}
                      if not target.endswith("src/mod.rs")}
        self.assertGreater(len(pairs), 50, "hardly any import was found: is the parser wrong?")
        self.assertEqual(upward(self.order, pairs), [])

    def test_calls_between_c_files_go_down(self):
        for arch in ARCHES:
            texts = {file: (ROOT / file).read_text() for file in self.order
                     if file.startswith("rust/c/") and is_of(arch, file)}
            pairs = c_imports(texts)
            self.assertGreater(len(pairs), 20, "hardly any call was found: is the parser wrong?")
            self.assertEqual(upward(self.order, pairs), [], arch)


class Parser(unittest.TestCase):
    def test_nested_uses_are_expanded(self):
        text = ("use crate::{\n a, // x\n b::{self, c as d, //\n },\n};\n"
                "pub(in crate::e) fn f() { super::g::h() }")
        self.assertEqual(set(paths_of(text)), {("crate", "a"), ("crate", "b"), ("crate", "b", "c"),
                                               ("super", "g", "h")})

    def test_a_knot_of_c_files_is_found(self):
        texts = {
            "a.h": "int a_read(int);\nstatic inline int a_get(void)\n{\n\treturn a_read(0);\n}\n",
            "a.c": "int a_read(int of)\n{\n\treturn b_size;\n}\nstatic int own(void)\n{\n}\n",
            "b.h": "extern int b_size;\n#define TWICE(n) \\\n\tc_add(n, n)\n",
            "b.c": "int b_size = 1;\nint b_run(void)\n{\n\treturn own + c_all; /* a_read */\n}\n",
            "c.h": "int c_add(int, int);\nint a_read(int);\n",
            "c.c": "DEFINE_PER_CPU(int, c_all);\nint c_add(int one,\n\t  int two)\n{\n}\n",
        }
        pairs = {("a.c", "b.c"), ("b.h", "c.c"), ("b.c", "c.c")}
        self.assertEqual(c_imports(texts), pairs)
        self.assertEqual(upward(["a.c", "a.h", "b.c", "b.h", "c.c", "c.h"], pairs), [])

        # The knot: c.c calls back by a pointer.
        texts["c.c"] += "int (*back)(int) = a_read;\n"
        knot = c_imports(texts)
        self.assertEqual(knot - pairs, {("c.c", "a.c")})
        for order in (["a.c", "b.c", "b.h", "c.c"], ["c.c", "a.c", "b.c", "b.h"]):
            self.assertNotEqual(upward(order, knot), [])

        # A function in line calls for its header.
        texts["c.h"] += "static inline int c_peek(void)\n{\n\treturn b_run();\n}\n"
        self.assertIn(("c.h", "b.c"), c_imports(texts))


if __name__ == "__main__":
    unittest.main()
