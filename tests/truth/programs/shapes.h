/* SPDX-License-Identifier: GPL-2.0-only */
/* What shapes.c and plugins.c call in another file, which may be a shared library. */
#ifndef SHAPES_H
#define SHAPES_H

struct wide {
	long words[9];
};

long library_leaf(long value);
long library_fold(const long *values, int count, long (*fold)(long sum, long value));
long library_many(long a, long b, long c, long d, long e, long f, long g, long h, long i);
long library_wide(struct wide value);
void library_sort(long *values, int count, int (*order)(const long *left, const long *right));
int library_tail(int depth, int (*back)(int depth));

#endif
