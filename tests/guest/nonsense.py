# SPDX-License-Identifier: GPL-2.0-only
"""usage: nonsense.py SECONDS

Passes random structures and sections to /dev/sframe_unwind for SECONDS. The exit status is 0 only
if Documentation/device.rst lists each errno that the device returned, and if the device refused
structures of other versions of the interface, and told its own version.
"""

import collections
import ctypes
import errno
import os
import random
import struct
import subprocess
import sys
import time

ADD, REMOVE, LIST, STATS = 0xC0385380, 0xC0385381, 0xC0505382, 0xC0305383
VERSION = 2
ALLOWED = {
    ADD: {0, errno.EBADF, errno.EINVAL, errno.E2BIG, errno.EFAULT, errno.EFBIG, errno.ENOEXEC,
          errno.EBADMSG, errno.EOPNOTSUPP, errno.ENOSPC, errno.EIO, errno.ENOMEM, errno.ENOENT,
          errno.ESTALE},
    REMOVE: {0, errno.EBADF, errno.EINVAL, errno.E2BIG, errno.EFAULT, errno.ENOENT},
    LIST: {0, errno.EINVAL, errno.E2BIG, errno.EFAULT, errno.ENOENT},
    STATS: {0, errno.EINVAL, errno.E2BIG, errno.EFAULT, errno.ENOENT},
}

random.seed(1)
device = os.open("/dev/sframe_unwind", os.O_RDWR | os.O_NONBLOCK)
# The rows are added to a copy of a program, so that no Debian program keeps made-up rows.
program = os.memfd_create("copy")
with open("/usr/bin/sleep", "rb") as sleep:
    os.write(program, sleep.read())
text = os.memfd_create("text")
os.write(text, b"no program")
# The kernel warns if a file is read that is not open for reading.
closed = [os.open("/usr/bin/sleep", os.O_PATH), os.open("/tmp/written", os.O_WRONLY | os.O_CREAT)]
descriptors = [program, program, program, text, device, -1, 0, 1 << 30, *closed]
section = subprocess.run(["/src/build/tools/sframectl", "convert", "/usr/bin/sleep", "-o", "-"],
                         check=True, stdout=subprocess.PIPE).stdout
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(1 << 16)
seen = collections.Counter()


def some_section():
    """A section that is spoilt, cut off, or whole; or random bytes."""
    bytes_ = bytearray(section if random.random() < 0.8
                       else random.randbytes(random.randrange(200)))
    for _ in range(random.choice((0, 1, 2, 8))):
        if bytes_:
            at = random.randrange(min(len(bytes_), random.choice((40, 400, len(bytes_)))))
            bytes_[at] = random.randrange(256)
    return bytes(bytes_[:random.randrange(len(bytes_) + 1)] if random.random() < 0.2 else bytes_)


def changed(descriptor):
    """The time of change of a file, in seconds and nanoseconds."""
    try:
        return divmod(os.fstat(descriptor).st_ctime_ns, 10 ** 9)
    except OSError:
        return 0, 0


def row():
    """An extra row, whose fields are mostly valid."""
    return struct.pack("=QIiiBbBB", random.choice((0x3000, 0x4000, random.getrandbits(64))),
                       random.choice((1, 16, random.getrandbits(32))), random.randrange(-64, 64),
                       random.randrange(-64, 64) * random.randrange(2), random.randrange(18),
                       random.randrange(-128, 128), random.choice((0, 1, 1, 2)), 0)


def structure(size):
    """A random structure whose size field is right, too small, or too large. The bytes behind it
    are mostly zeros."""
    body = bytearray(random.randbytes(size))
    any_number = random.getrandbits(16)
    told = random.choice((size,) * 30 + (0, 4, size - 1, size + 8, 4096, 5000, any_number))
    version = random.choice((VERSION,) * 30 + (0, VERSION + 1, VERSION << 8, any_number))
    body += bytes(8192 - size)
    if random.random() < 0.2:
        body[size + random.randrange(4)] = 1
    body[:4] = struct.pack("HH", told, version)
    return body


def is_enough():
    refused = sum(seen[command, errno.EPROTONOSUPPORT] for command in ALLOWED)
    return (seen[ADD, 0] >= 10 and seen[ADD, errno.EBADMSG] >= 10 and refused >= 10
            and sum(seen.values()) >= 500)


started = time.monotonic()
# On a busy host the guest needs longer.
seconds = int(sys.argv[1])
while (taken := time.monotonic() - started) < seconds or taken < 10 * seconds and not is_enough():
    command = random.choice((ADD, ADD, ADD, REMOVE, LIST, STATS, random.getrandbits(32)))
    # The kernel matches type and number alone.
    command = {known & 0xFFFF: known for known in ALLOWED}.get(command & 0xFFFF, command)
    body = structure({ADD: 56, REMOVE: 56, LIST: 80, STATS: 48}.get(command, 24))
    if command in (ADD, REMOVE) and random.random() < 0.9:
        bytes_ = some_section()
        keep = ctypes.create_string_buffer(bytes_, max(len(bytes_), 1))
        address = random.choice((ctypes.addressof(keep),) * 8
                                + (0, 1 << 63, random.getrandbits(64)))
        length = random.choice((len(bytes_),) * 8 + (0, random.getrandbits(32)))
        # No flag for the vDSO, whose rows all programs need.
        extra_rows = random.choice((b"", b"", row(), row() + row(), row()[:23],
                                    random.randbytes(48)))
        keep_too = ctypes.create_string_buffer(extra_rows, max(len(extra_rows), 1))
        file = random.choice(descriptors)
        body[4:56] = struct.pack("=iQIIQIIqII", file, address, length,
                                 random.choice((0, 0, 0, 2, 4)), ctypes.addressof(keep_too),
                                 len(extra_rows), random.choice((0,) * 9 + (1,)),
                                 *(changed(file) if random.random() < 0.9 else (1, 1)),
                                 random.choice((0,) * 30 + (1,)))
    elif command in (ADD, REMOVE) and body[20] & 1:
        body[20] &= 0xFE
    if command == STATS and random.random() < 0.9:
        body[4:8] = struct.pack("I", random.randrange(80))
    buffer[:len(body)] = bytes(body)
    where = random.choice((ctypes.addressof(buffer),) * 9 + (random.getrandbits(64),))
    # `where` is an address and not an object, because Python would copy an object.
    # In a later header a structure may be longer, and then the command contains another size.
    sent = command + (random.choice((0, 0, 8, 64)) << 16 if command in ALLOWED else 0)
    result = libc.ioctl(device, ctypes.c_ulong(sent), ctypes.c_ulong(where))
    number = ctypes.get_errno() if result < 0 else 0
    seen[command if command in ALLOWED else "other", number] += 1
    (version,), (told,) = struct.unpack("H", body[2:4]), struct.unpack("H", buffer[2:4])
    allowed = {errno.ENOTTY}
    if command in ALLOWED and version == VERSION:
        allowed = ALLOWED[command]
    elif command in ALLOWED:
        allowed = {errno.EFAULT, errno.EPROTONOSUPPORT}
    if number not in allowed or number == errno.EPROTONOSUPPORT and told != VERSION:
        sys.exit(f"command {command:#x}: errno {number} ({os.strerror(number)}), version {told}, "
                 f"of {bytes(body[:80]).hex()}")
    if random.random() < 0.05:
        try:
            os.read(device, random.randrange(2000))
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EINVAL:
                sys.exit(f"read: {error}")
for (command, number), count in sorted(seen.items(), key=str):
    print(f"{command if command == 'other' else hex(command)}: "
          f"{errno.errorcode.get(number, number)}: {count}")
if not is_enough():
    sys.exit("hardly anything was told")
