# SPDX-License-Identifier: GPL-2.0-only
"""Another load for Python, without an end, of the kinds of work that programs do most: classes,
closures, generators, text, regular expressions, JSON, sorting with keys, exceptions, threads."""

import collections
import functools
import itertools
import json
import random
import re
import threading

RANDOM = random.Random(7)


class Node:
    """A node of a binary search tree."""

    def __init__(self, key):
        self.key, self.left, self.right = key, None, None

    def insert(self, key):
        side = "left" if key < self.key else "right"
        child = getattr(self, side)
        if child is None:
            setattr(self, side, Node(key))
        else:
            child.insert(key)

    def __iter__(self):
        for part in (self.left, (self.key,), self.right):
            yield from part or ()


def trees():
    root = Node(500)
    for _ in range(300):
        root.insert(RANDOM.randrange(1000))
    return sum(itertools.islice(root, 100))


def text():
    words = [f"{RANDOM.randrange(65536):04x}-{number}" for number in range(300)]
    joined = ";".join(words)
    found = re.findall(r"([0-9a-f]{2})+-(\d+)", joined)
    counts = collections.Counter(joined)
    changed = re.sub(r"\d+", lambda match: match.group()[::-1], joined)
    return len(found) + counts["f"] + len(changed.upper().split(";"))


def records():
    rows = [{"id": number, "name": f"n{number * 7919 % 1009}", "tags": ["a", "b", number % 7]}
            for number in range(200)]
    again = json.loads(json.dumps(rows, sort_keys=True))
    again.sort(key=lambda row: (row["tags"][2], row["name"]))
    groups = itertools.groupby(again, key=lambda row: row["tags"][2])
    return sum(len(list(group)) for _, group in groups)


def failing(depth):
    if not depth:
        return json.loads("[1,")
    try:
        return failing(depth - 1)
    except ValueError as error:
        raise ValueError(f"level {depth}") from error


def exceptions():
    depth = 0
    try:
        failing(12)
    except ValueError as error:
        while error:
            error, depth = error.__cause__, depth + 1
    return depth


def adders(count):
    def adder(number):
        return lambda value: value + number

    return functools.reduce(lambda value, add: add(value), map(adder, range(count)), 0)


def sieve(limit):
    prime = [True] * limit
    for number in range(2, limit):
        if prime[number]:
            for multiple in range(number * number, limit, number):
                prime[multiple] = False
    return sum(prime)


def work():
    total = 0
    while True:
        for task in (trees, text, records, exceptions, lambda: adders(200), lambda: sieve(3000)):
            total += task()


for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
work()
