# SPDX-License-Identifier: GPL-2.0-only
"""A load for PyPy, without an end: loops that its compiler compiles, calls, recursion, allocation,
exceptions."""
import itertools
import json


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Shape:
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side * self.side


def loop(n):
    total = 0
    for i in range(n):
        if i % 3 == 0:
            total += Shape(i % 10).area()
        elif i % 7 == 0:
            total ^= i
        else:
            total += len(str(i))
    return total


def throwing(n):
    total = 0
    for i in range(n):
        try:
            if i % 2:
                raise ValueError(i)
        except ValueError as error:
            total += error.args[0]
    return total


for turn in itertools.count():
    fibonacci(18)
    loop(20000)
    throwing(2000)
    sorted(range(3000), key=lambda n: n * 7919 % 1009 + loop(n % 3))
    json.loads(json.dumps({str(i): [i] * 3 for i in range(300)}))
