// SPDX-License-Identifier: GPL-2.0-only
/* The other side of shapes.c and plugins.c: called through a PLT, and calls back. */
#include "load.h"
#include "shapes.h"

APART long library_leaf(long value)
{
	return value * 3 + 1;
}

APART long library_fold(const long *values, int count, long (*fold)(long sum, long value))
{
	long sum = 0;

	for (int at = 0; at < count; at++)
		sum = fold(sum, values[at]);
	return sum;
}

APART long library_many(long a, long b, long c, long d, long e, long f, long g, long h, long i)
{
	return library_leaf(a + 2 * b + 3 * c) + library_leaf(d + 4 * e + 5 * f) +
	       g + 6 * h + 7 * i;
}

APART long library_wide(struct wide value)
{
	long sum = 0;

	for (int at = 0; at < 9; at++)
		sum += library_leaf(value.words[at]);
	return sum;
}

/* A heap sort, so that it needs no libc, which has no .sframe. */
static void sift(long *values, int at, int count, int (*order)(const long *, const long *))
{
	for (;;) {
		int child = 2 * at + 1;
		long value;

		if (child >= count)
			return;
		if (child + 1 < count && order(&values[child], &values[child + 1]) < 0)
			child++;
		if (order(&values[at], &values[child]) >= 0)
			return;
		value = values[at];
		values[at] = values[child];
		values[child] = value;
		at = child;
	}
}

APART void library_sort(long *values, int count, int (*order)(const long *left, const long *right))
{
	for (int at = count / 2; at-- > 0;)
		sift(values, at, count, order);
	for (int last = count; last-- > 1;) {
		long value = values[0];

		values[0] = values[last];
		values[last] = value;
		sift(values, 0, last, order);
	}
}

/* A tail call through a pointer. */
APART int library_tail(int depth, int (*back)(int depth))
{
	return back(depth - 1);
}
