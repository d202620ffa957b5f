# SPDX-License-Identifier: GPL-2.0-only
"""The module, the tools, the core and the changelog have one version."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = {
    "CHANGELOG.md": r"^## \[(\d+\.\d+\.\d+)\]",
    "rust/c/hook.c": r'^MODULE_VERSION\("(.*)"\);',
    "rust/sframe/Cargo.toml": r'^version = "(.*)"',
    "tools/convert/Cargo.toml": r'^version = "(.*)"',
    "tools/sframectl/Cargo.toml": r'^version = "(.*)"',
    "tools/walk/Cargo.toml": r'^version = "(.*)"',
}


class Version(unittest.TestCase):
    def test_all_places_have_one_version(self):
        found = {}
        for place, pattern in PLACES.items():
            match = re.search(pattern, (ROOT / place).read_text(), re.MULTILINE)
            self.assertIsNotNone(match, f"{place} has no version")
            found[place] = match[1]
        self.assertEqual(len(set(found.values())), 1, found)


if __name__ == "__main__":
    unittest.main()
