# SPDX-License-Identifier: GPL-2.0-only
"""usage: tenants.py SECONDS

Four users, while `sframectl watch` and perf run. Three run copies of a program, one after the
other, each copy another file, and many short processes. The fourth one, who is hostile, maps one
file after the other, and runs programs of a file system that stops answering.

Prints for each of the three users the number of files and of short processes, and the milliseconds
from the start of a copy until the module has its rows: the median, the longest time, and how many
took more than two seconds. Then the memory of `watch` in a quarter of the time and at the end, in
bytes, and the number of its stuck threads when the file system has gone. The exit status is 1 if a
file got no rows, if the memory has grown by a quarter, or if a thread is stuck.
"""

import ctypes
import fcntl
import json
import os
import statistics
import struct
import subprocess
import sys
import threading
import time

PROGRAM = ["/usr/bin/mawk", "BEGIN { for (;;) x = x * 3 % 7 }"]
PROGRAMS = "/tmp/programs/"
HONEST, HOSTILE = (1001, 1002, 1003), 1004
# The two seconds of the bar, and the longest wait for rows.
LATE, PATIENCE = 2.0, 60.0
SHORT_PROCESSES = 10
# struct sframe_unwind_table.
LIST, TABLE = 0xC1605382, struct.Struct("=HHIQQ")
DEVICE_AT, ROWS_AT, SIZE = 44, 64, 352


def run(user, *command):
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            user=user, group=user, extra_groups=[])


class Tables(threading.Thread):
    """Asks the module for new tables all the time. `when` has the time at which rows of a file were
    there first, by device and inode."""

    def __init__(self):
        super().__init__(daemon=True)
        self.device = os.open("/dev/sframe_unwind", os.O_RDWR)
        self.when = {}

    def run(self):
        last = 0
        while True:
            table = bytearray(SIZE)
            TABLE.pack_into(table, 0, SIZE, 2, 0, last, 0)
            try:
                fcntl.ioctl(self.device, LIST, table)
            except FileNotFoundError:
                time.sleep(0.02)
                continue
            _, _, _, last, inode = TABLE.unpack_from(table)
            device = struct.unpack_from("=II", table, DEVICE_AT)
            if struct.unpack_from("=Q", table, ROWS_AT)[0]:
                self.when.setdefault((device, inode), time.monotonic())


def honest(user, tables, end, result):
    """One file after the other."""
    directory = f"/tmp/tenants/{user}"
    os.makedirs(directory)
    with open(PROGRAM[0], "rb") as file:
        content = file.read()
    number = 0
    while time.monotonic() < end:
        number += 1
        path = f"{directory}/{number}"
        with open(path, "wb") as file:
            file.write(content + f"{user} {number}".encode())
            stat = os.fstat(file.fileno())
            key = (os.major(stat.st_dev), os.minor(stat.st_dev)), stat.st_ino
        os.chmod(path, 0o755)
        started = time.monotonic()
        process = run(user, path, *PROGRAM[1:])
        while key not in tables.when and time.monotonic() < started + PATIENCE:
            time.sleep(0.02)
        process.kill()
        process.wait()
        result.append(tables.when.get(key, float("inf")) - started)
        for _ in range(SHORT_PROCESSES):
            run(user, path, "BEGIN { exit }").wait()
        os.remove(path)
        # Another file may have the number of the inode.
        tables.when.pop(key, None)


def hostile(end, running):
    """Ends when the file system has gone."""
    trigger, directory = "/tmp/trigger", "/tmp/silent"
    os.makedirs(directory)
    os.makedirs("/tmp/many")
    os.chmod("/tmp/many", 0o777)
    server = run(0, "python3", "/src/tests/guest/silent.py", directory, "/usr/bin/perl", trigger)
    while not os.path.exists(f"{directory}/file"):
        time.sleep(0.1)
    silent = run(HOSTILE, f"{directory}/file", "-e", "while (1) { }")
    time.sleep(5)
    with open(trigger, "w", encoding="ascii"):
        pass
    while time.monotonic() < end:
        running[0] = run(HOSTILE, PROGRAMS + "manyfiles", "/tmp/many", "100000")
        while running[0].poll() is None and time.monotonic() < end:
            time.sleep(0.5)
        running[0].kill()
        running[0].wait()
    server.kill()
    silent.kill()
    ctypes.CDLL(None).umount2(directory.encode(), 2)


def state():
    status = subprocess.run(["sframectl", "status", "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(status.stdout)


def main():
    seconds = float(sys.argv[1])
    end = time.monotonic() + seconds
    tables = Tables()
    tables.start()
    results = {user: [] for user in HONEST}
    threads = [threading.Thread(target=honest, args=(user, tables, end, results[user]))
               for user in HONEST]
    threads.append(threading.Thread(target=hostile, args=(end, [None])))
    for thread in threads:
        thread.start()
    time.sleep(seconds / 4)
    early = state()["daemon"]["memory_bytes"]
    for thread in threads:
        thread.join()
    good = True
    for user, waits in results.items():
        known = [wait for wait in waits if wait < PATIENCE]
        lost = len(waits) - len(known)
        late = sum(wait > LATE for wait in known)
        good = good and known and not lost
        print(f"# user {user}: {len(waits)} files, {SHORT_PROCESSES * len(waits)} short processes; "
              f"rows after {1000 * statistics.median(known or [0]):.0f} ms, "
              f"at most {1000 * max(known or [0]):.0f} ms; {late} late, {lost} lost")
    # A thread that has waited for the file system needs a moment.
    time.sleep(10)
    last = state()
    memory, stuck = last["daemon"]["memory_bytes"], last["queue"]["stuck"]
    counters = last["counters"]
    print(f"# memory {early} bytes, then {memory}; {stuck} stuck; "
          f"{counters['requests']} requests, {counters['answered']} answered, "
          f"dropped {counters['dropped']}")
    return 0 if good and memory <= 1.25 * early and stuck == 0 else 1


sys.exit(main())
