#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Find lines of more than 100 columns.

usage: check_columns.py FILE...

A tab ends at a multiple of eight. Of Rust only lines of comments count: rustfmt sets the code.
Nothing can break a row of a table in Markdown, nor an address of the web: neither counts. A message
of the kernel module is one string, so that it can be searched, and does not count. LATER are
places that still have long lines: a place that has none any more has to leave the list.
"""

import pathlib
import re
import sys

COLUMNS = 100
TABLE = re.compile(r"\s*\|")
MESSAGE = re.compile(r"\s*pr_\w+\(\"")
ADDRESS = re.compile(r"\S*https?://\S*")
# Beginnings of paths.
LATER = (
    # Others read the options as one line.
    "dkms.conf", "tools/sframectl/sframectl.service",
    # PostgreSQL without a server takes a line for a query.
    "tests/programs/runtimes/load.sql",
    # Their checksums name what is made from them: a changed comment makes it anew.
    "scripts/clang.config", "scripts/debug.config", "scripts/kcsan.config", "scripts/prepare-lint",
    "scripts/prepare-machine", "scripts/prepare-programs", "scripts/prepare-toolchain",
    "tests/truth/programs/real.mk",
)


def counts(path, line):
    """Whether a line of this file has to keep to the limit."""
    if path.endswith(".rs"):
        return line.lstrip().startswith("//")
    if path.startswith("rust/c/") and MESSAGE.match(line):
        return False
    return not (path.endswith(".md") and TABLE.match(line))


def long_lines(path):
    """The numbers and widths of a file's long lines."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    for number, line in enumerate(text.split("\n"), 1):
        width = len(ADDRESS.sub("", line).expandtabs(8))
        if width > COLUMNS and counts(path, line):
            yield number, width


def main():
    found, later = [], dict.fromkeys(LATER, 0)
    for path in sys.argv[1:]:
        place = next((place for place in LATER if path.startswith(place)), None)
        for number, width in long_lines(path):
            if place:
                later[place] += 1
            else:
                found.append(f"{path}:{number}: {width} columns, more than {COLUMNS}")
    for place, count in later.items():
        if count:
            print(f"{place}: {count} long lines, later", file=sys.stderr)
        else:
            found.append(f"{place}: it has no long line any more: remove it from LATER")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


sys.exit(main())
