# SPDX-License-Identifier: GPL-2.0-only
"""Lines of the Test Anything Protocol, as the tests print them: `ok - NAME`, `ok - NAME # SKIP
REASON` or `not ok - NAME`, each followed by its details, lines that begin with `#`."""

import re
import threading

RESULT = re.compile(r"(not )?ok - ")
SKIPPED = re.compile(r"ok - .*# SKIP")


class Blocks:
    """Joins lines to blocks: a result with its details, or details that stand alone. Calls `emit`
    with each whole block, so that blocks of several sources never mix."""

    def __init__(self, emit):
        self.emit, self.block = emit, []

    def feed(self, line):
        """Takes one line, without its end. A line of another form is not part of the protocol."""
        if RESULT.match(line):
            self.close()
        elif not line.startswith("#"):
            return
        self.block.append(line)

    def close(self):
        """Emits the last block: its source has ended."""
        if self.block:
            self.emit(self.block)
        self.block = []


class Report:
    """The blocks of all sources, in the order in which they became whole. Prints each to `out`."""

    def __init__(self, out):
        self.out, self.blocks, self.lock = out, [], threading.Lock()

    def add(self, block):
        with self.lock:
            self.blocks.append(block)
            print("\n".join(block), file=self.out, flush=True)

    def failures(self):
        return [block for block in self.blocks if block[0].startswith("not ok")]

    def counts(self):
        """The numbers of tests that passed, failed and were skipped."""
        results = [block[0] for block in self.blocks if RESULT.match(block[0])]
        failed = len(self.failures())
        skipped = sum(bool(SKIPPED.match(line)) for line in results)
        return len(results) - failed - skipped, failed, skipped
