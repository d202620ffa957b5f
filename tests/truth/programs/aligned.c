// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frames that are aligned to more than the ABI asks for: gcc keeps the CFA in r10, and saves r10
 * next to the frame pointer (DRAP). Versions 1 and 2 of SFrame cannot encode this, and have no rows
 * for these functions; version 3 can.
 */
#include <alloca.h>
#include "load.h"

const unsigned int rounds = 120;

static APART long sum_of(const unsigned char *bytes, long count)
{
	long sum = 0;

	for (long at = 0; at < count; at++)
		sum += bytes[at];
	return sum;
}

static APART void fill(unsigned char *bytes, long count, int value)
{
	if ((unsigned long)bytes % 16)
		wrong("alignment");
	for (long at = 0; at < count; at++)
		bytes[at] = (unsigned char)value;
}

static APART long aligned(int depth)
{
	_Alignas(64) unsigned char bytes[192];

	if ((unsigned long)bytes % 64)
		wrong("alignment");
	fill(bytes, sizeof(bytes), depth);
	return sum_of(bytes, sizeof(bytes)) + (depth ? aligned(depth - 1) : 0);
}

static APART long aligned_and_variable(long count, long a, long b, long c, long d, long e, long f)
{
	_Alignas(128) unsigned char bytes[256];
	unsigned char *more = alloca((size_t)(count + f));

	fill(bytes, sizeof(bytes), 3);
	fill(more, count, 4);
	return sum_of(bytes, sizeof(bytes)) + sum_of(more, count) + a + b + c + d + e;
}

/* Between two that are not aligned. */
static APART long between(long count)
{
	unsigned char bytes[40];

	fill(bytes, sizeof(bytes), 1);
	return aligned_and_variable(count, 1, 2, 3, 4, 5, 6) + sum_of(bytes, sizeof(bytes));
}

void work(unsigned int round)
{
	if (aligned(8) != 192 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8))
		wrong("aligned");
	if (between(300 + round % 3) != 256 * 3 + (300 + round % 3) * 4 + 15 + 40)
		wrong("between");
}
