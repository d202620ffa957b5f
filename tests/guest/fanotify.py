# SPDX-License-Identifier: GPL-2.0-only
"""A fanotify listener that stops answering.

usage: fanotify.py FILE READY TRIGGER

Makes the kernel ask this program for a permission at each read of FILE, creates the file READY, and
gives each permission until TRIGGER exists. Later reads of FILE wait until this program is killed.
"""

import ctypes
import os
import struct
import sys
import time

FAN_CLASS_CONTENT, FAN_MARK_ADD, FAN_ACCESS_PERM, FAN_ALLOW = 4, 1, 0x20000, 1
AT_FDCWD = -100
# struct fanotify_event_metadata
EVENT = struct.Struct("<IBBHQii")


def main():
    file, ready, trigger = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    listener = libc.fanotify_init(FAN_CLASS_CONTENT, os.O_RDONLY)
    if listener < 0:
        sys.exit(f"fanotify_init: {os.strerror(ctypes.get_errno())}")
    if libc.fanotify_mark(listener, FAN_MARK_ADD, ctypes.c_uint64(FAN_ACCESS_PERM), AT_FDCWD,
                          file.encode()):
        sys.exit(f"fanotify_mark: {os.strerror(ctypes.get_errno())}")
    with open(ready, "w", encoding="ascii"):
        pass
    while True:
        events = os.read(listener, 4096)
        if os.path.exists(trigger):
            time.sleep(3600)
        while len(events) >= EVENT.size:
            length, _, _, _, _, descriptor, _ = EVENT.unpack_from(events)
            os.write(listener, struct.pack("<iI", descriptor, FAN_ALLOW))
            os.close(descriptor)
            events = events[length:]


main()
