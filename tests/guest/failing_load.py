#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Loads the module again and again, each time with another allocation that fails.

usage: failing_load.py MODULE HOW-MANY

The module's own allocations are the last ones of a load, so the last HOW-MANY allocations fail, one
in each load. Whether a load fails or not, nothing may be left of it. Needs a kernel with
CONFIG_FAILSLAB.
"""

import ctypes
import os
import sys

FINIT_MODULE, DELETE_MODULE = 313, 176
NEVER = 1 << 20

libc = ctypes.CDLL(None, use_errno=True)
module, how_many = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
fail_nth = os.open("/proc/thread-self/fail-nth", os.O_RDWR)


def load(nth):
    """Whether the module loaded while allocation NTH failed, and the number of allocations left
    until NTH."""
    os.pwrite(fail_nth, str(nth).encode(), 0)
    result = libc.syscall(FINIT_MODULE, module, b"", 0)
    left = int(os.pread(fail_nth, 20, 0).split(b"\0")[0])
    os.pwrite(fail_nth, b"0", 0)
    if result == 0 and libc.syscall(DELETE_MODULE, b"sframe_unwind", os.O_NONBLOCK):
        sys.exit(f"allocation {nth}: it loaded and does not unload")
    for place in ("/sys/module/sframe_unwind", "/sys/kernel/debug/sframe_unwind"):
        if os.path.exists(place):
            sys.exit(f"allocation {nth}: {place} is left")
    return result == 0, left


loaded, left = load(NEVER)
if not loaded:
    sys.exit("it does not load at all")
total = NEVER - left
failed = sum(not load(nth)[0] for nth in range(max(1, total - how_many), total))
print(f"{total} allocations, {failed} of the last {how_many} keep it from loading")
if not failed:
    sys.exit("no failure had any effect")
