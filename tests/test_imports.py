# SPDX-License-Identifier: GPL-2.0-only
"""Imports go down: layers.txt lists the source files, top first, and a file imports only from files
below it.

A source file that the list lacks is a failure, and so is a file that the list has and the tree has
not.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def listed():
    """The source files in the order of layers.txt."""
    lines = (ROOT / "tests/layers.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def in_tree():
    """The source files that there are."""
    found = [path for pattern in ("rust/*.rs", "rust/sys/**/*.rs", "rust/tables/*.rs", "rust/x86_64/*.rs",
                                  "rust/c/*.[ch]", "rust/kernel-shim/*.rs", "rust/kernel-shim/*.[ch]",
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
    root = next((root,) for root in ("rust/sframe/src", "rust/kernel-shim", "rust") if file.startswith(root + "/"))
    parts = path.relative_to(root[0]).with_suffix("").parts
    if parts in (("main",), ("lib",), ("mod",)):
        return root
    return root + (parts[:-1] if parts[-1] == "mod" else parts)


class Imports(unittest.TestCase):
    def setUp(self):
        self.order = listed()
        self.modules = {}
        for file in self.order:
            if file.endswith(".rs") and not file.endswith(("/lib.rs", "rust/main.rs")):
                self.modules[module_of(file)] = file

    def target(self, file, path):
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
            best = self.modules.get(at, best)
        if best is None and parts and at[0] == "rust/sframe/src":
            # The root has the modules of all folders by their own names, too.
            best = next((name for module, name in self.modules.items()
                         if module[0] == at[0] and module[-1] == parts[0]), None)
        return best

    def test_the_list_is_complete(self):
        self.assertEqual(sorted(self.order), sorted(set(self.order)), "a file is listed twice")
        self.assertEqual(set(self.order), in_tree(), "the list in layers.txt is not the tree's")

    def test_imports_go_down(self):
        place = {file: number for number, file in enumerate(self.order)}
        upward, checked = [], 0
        for file in self.order:
            text = (ROOT / file).read_text()
            if file.endswith(".rs"):
                targets = {self.target(file, path) for path in paths_of(text)}
            else:
                names = re.findall(r'#include "([^"]+)"', text)
                targets = {str((ROOT / file).parent.joinpath(name).resolve().relative_to(ROOT))
                           for name in names}
            for target in targets - {None, file}:
                checked += 1
                # The roots of the core re-export all of it; a folder's root is above what is in it.
                if place[target] < place[file] and not target.endswith("src/mod.rs"):
                    upward.append(f"{file} imports from {target}, which is above it")
        self.assertGreater(checked, 50, "hardly any import was found: is the parser wrong?")
        self.assertEqual(upward, [])


class Parser(unittest.TestCase):
    def test_nested_uses_are_expanded(self):
        text = "use crate::{\n a, // x\n b::{self, c as d, //\n },\n};\npub(in crate::e) fn f() { super::g::h() }"
        self.assertEqual(set(paths_of(text)), {("crate", "a"), ("crate", "b"), ("crate", "b", "c"),
                                               ("super", "g", "h")})


if __name__ == "__main__":
    unittest.main()
