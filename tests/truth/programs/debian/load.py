# SPDX-License-Identifier: GPL-2.0-only
"""Without end: what Python does in C: JSON, patterns, sorting, compression, exceptions, threads."""

import json
import random
import re
import threading
import zlib


def depth(number):
    return 0 if number == 0 else 1 + depth(number - 1)


def turn(number):
    data = [{"a": number, "b": [str(n) for n in range(20)]}, None, 1.5, "\u00e4" * 9]
    assert json.loads(json.dumps(data)) == data
    words = re.sub(r"(\w)(\w+)", lambda found: found[2] + found[1],
                   "the quick brown fox " * 9).split()
    words.sort(key=lambda word: (len(word), word))
    zlib.decompress(zlib.compress(" ".join(words).encode()))
    numbers = sorted(random.random() for _ in range(100))
    try:
        int("x" * (number % 3))
    except ValueError as error:
        numbers.append(len(str(error)))
    return sum(numbers) + depth(50) + 10 ** 200 // 7 ** 90


def load():
    number = 0
    while True:
        turn(number)
        number += 1


threading.Thread(target=load, daemon=True).start()
load()
