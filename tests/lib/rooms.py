# SPDX-License-Identifier: GPL-2.0-only
"""Checks that only some places, the rooms, name certain things: products, or an architecture."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\n(?:pub\([^)]*\) )?mod tests")


class Rooms:
    """`patterns`: expressions whose first group is a name. `places`: beginnings of paths of the
    rooms. `tests`: the same of tests, which are not read. `allowed`: what other files may name, as
    {file: (names, reason)}."""

    def __init__(self, patterns, places, tests, allowed):
        self.patterns = patterns
        self.places = places
        self.tests = tests
        self.allowed = {file: names for file, (names, _) in allowed.items()}

    def names(self, text):
        """What a text names, in small letters, without its test module."""
        text = TEST_MODULE.split(text, maxsplit=1)[0]
        return {found[1].lower() for pattern in self.patterns for found in pattern.finditer(text)}

    def check(self, test, files):
        """Fails if a file outside of the rooms names what it may not, or no longer names what it
        may, or if a room names nothing. `files`: paths below the root."""
        named = {file: self.names((ROOT / file).read_text()) for file in files
                 if not file.startswith(self.tests)}
        outside = {file: names for file, names in named.items()
                   if names and not file.startswith(self.places)}
        bad = {file: names for file, names in outside.items()
               if names - self.allowed.get(file, set())}
        test.assertEqual(bad, {})
        test.assertEqual(self.allowed, outside, "the list of exceptions is out of date")
        for place in self.places:
            inside = [names for file, names in named.items() if file.startswith(place)]
            test.assertTrue(any(inside), f"{place} names nothing")


def sources(folders, *patterns):
    """The source files in some folders, as paths below the root."""
    return [path.relative_to(ROOT).as_posix() for folder in folders for pattern in patterns
            for path in sorted((ROOT / folder).rglob(pattern)) if "target" not in path.parts]
