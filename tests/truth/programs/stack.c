// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frames of every size: variable ones, some larger than 64 KiB, and more of them than a sample of
 * perf can hold.
 */
#include <alloca.h>
#include <string.h>
#include "load.h"

const unsigned int rounds = 10;

static APART long sum_of(const unsigned char *bytes, long count)
{
	long sum = 0;

	for (long at = 0; at < count; at += 13)
		sum += bytes[at];
	return sum;
}

static APART void fill(unsigned char *bytes, long count, int value)
{
	for (long at = 0; at < count; at += 13)
		bytes[at] = (unsigned char)value;
}

static APART long variable_array(long count)
{
	unsigned char bytes[count];

	fill(bytes, count, 1);
	return sum_of(bytes, count);
}

/* The stack grows on each turn, and the frame pointer is all that is left of the frame. */
static APART long alloca_in_loop(int turns)
{
	unsigned char *last = NULL;
	long sum = 0;

	for (int turn = 1; turn <= turns; turn++) {
		last = alloca((size_t)turn * 24);
		fill(last, turn * 24, turn);
		sum += sum_of(last, turn * 24);
	}
	return sum + last[0];
}

/* The array ends before the function does: the stack pointer goes up in the middle. */
static APART long array_in_block(long count)
{
	long sum = variable_array(count);

	for (long part = 1; part < 4; part++) {
		unsigned char bytes[count * part];

		fill(bytes, count * part, 2);
		sum += sum_of(bytes, count * part);
	}
	return sum + variable_array(count);
}

/* Probed page by page with -fstack-clash-protection: unrolled, and as a loop. */
static APART long few_pages(int value)
{
	unsigned char bytes[3 * 4096 + 100];

	fill(bytes, sizeof(bytes), value);
	return sum_of(bytes, sizeof(bytes));
}

static APART long many_pages(int value)
{
	unsigned char bytes[100000];

	fill(bytes, sizeof(bytes), value);
	return sum_of(bytes, sizeof(bytes)) + few_pages(value);
}

static APART long deep(int depth)
{
	unsigned char bytes[40];
	long sum;

	fill(bytes, sizeof(bytes), depth & 15);
	sum = depth ? deep(depth - 1) : variable_array(3000);
	return sum + sum_of(bytes, sizeof(bytes));
}

void work(unsigned int round)
{
	long sum = 0;

	if (variable_array(1300) != 100)
		wrong("variable_array");
	sum += alloca_in_loop(40);
	sum += array_in_block(500 + round % 7);
	if (few_pages(1) != (3 * 4096 + 100 + 12) / 13)
		wrong("few_pages");
	sum += many_pages((int)(round & 15));
	sum += deep(300);
	sink += (unsigned long)sum;
}
