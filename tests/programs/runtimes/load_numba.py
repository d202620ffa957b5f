# SPDX-License-Identifier: GPL-2.0-only
"""A load for numba, without an end: sorting by recursion, numeric loops, strings, calls of
functions that are not inlined, exceptions, and callbacks from C."""
import ctypes
import itertools

# scripts/prepare-programs unpacks both.
# pylint: disable-next=import-error
import numba
# pylint: disable-next=import-error
import numpy

LIBC = ctypes.CDLL(None)


@numba.njit
def swap(values, a, b):
    values[a], values[b] = values[b], values[a]


@numba.njit
def sort(values, low, high):
    """Quicksort."""
    if high - low < 2:
        return
    pivot = values[(low + high) // 2]
    i, j = low, high - 1
    while i <= j:
        while values[i] < pivot:
            i += 1
        while values[j] > pivot:
            j -= 1
        if i <= j:
            swap(values, i, j)
            i += 1
            j -= 1
    sort(values, low, j + 1)
    sort(values, i, high)


@numba.njit
def escapes(x, y, most):
    z = c = complex(x, y)
    for n in range(most):
        if z.real * z.real + z.imag * z.imag > 4:
            return n
        z = z * z + c
    return most


@numba.njit
def mandelbrot(size, most):
    total = 0
    for row in range(size):
        for column in range(size):
            total += escapes(column * 3 / size - 2, row * 2 / size - 1, most)
    return total


@numba.njit
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@numba.njit
def words(n):
    text = ""
    for i in range(n):
        text += "word" + str(i) + " "
    found = [word for word in text.upper().split() if word.endswith("7")]
    return len("-".join(found)) + text.find("d99 ")


@numba.njit
def check(n):
    if n % 3 == 0:
        raise ValueError("a multiple of 3")
    return n


@numba.njit
def throwing(n):
    total = 0
    for i in range(n):
        try:
            total += check(i)
        # It catches no other.
        except Exception:  # pylint: disable=broad-exception-caught
            total -= 1
    return total


@numba.cfunc("int32(CPointer(int64), CPointer(int64))")
def compare(a, b):
    return (a[0] > b[0]) - (a[0] < b[0])


@numba.vectorize(["float64(float64)"])
def wave(x):
    return numpy.sin(x) + numpy.sqrt(abs(x))


for turn in itertools.count():
    numbers = numpy.arange(3000) * 7919 % 1009
    sort(numbers.copy(), 0, len(numbers))
    mandelbrot(40, 50)
    fibonacci(18)
    words(100)
    throwing(300)
    LIBC.qsort(numbers.ctypes.data_as(ctypes.c_void_p), len(numbers), 8,
               ctypes.cast(compare.address, ctypes.c_void_p))
    wave(numbers.astype(float)).sum()
