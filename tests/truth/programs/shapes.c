// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls of every shape that a C compiler makes, with next to no help of libc: leaves with and
 * without a frame, tail calls, calls through pointers and PLTs, arguments on the stack, cold parts,
 * early returns, and functions whose last instruction is a call that does not return.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include "load.h"
#include "shapes.h"

const unsigned int rounds = 10;

/* A leaf in the red zone: its values lie below the stack pointer. */
static APART long leaf(const long *values)
{
	volatile long copy[8];
	long sum = 0;

	for (int at = 0; at < 8; at++)
		copy[at] = values[at];
	for (int at = 0; at < 8; at++)
		sum = sum * 5 + copy[at];
	return sum;
}

/* Needs all registers that have to be kept: six pushes. */
static APART long hungry(const long *values, long (*each)(long value))
{
	long a = values[0], b = values[1], c = values[2], d = values[3];
	long e = values[4], f = values[5], g = values[6], h = values[7];

	for (int turn = 0; turn < 4; turn++) {
		a += each(b);
		b ^= each(c) + d;
		c -= each(d);
		d += each(e) ^ a;
		e += each(f);
		f ^= each(g) - h;
		g += each(h);
		h ^= each(a);
	}
	return a + b + c + d + e + f + g + h;
}

/* Tail calls: to oneself, to another, through a pointer, and one with a frame before it. */
static APART int odd(int count);
static APART int even(int count)
{
	return count == 0 ? 1 : odd(count - 1);
}
static APART int odd(int count)
{
	return count == 0 ? 0 : even(count - 1);
}

static APART int tail_after_frame(int depth)
{
	char text[48];

	memset(text, depth, sizeof(text));
	sink += text[depth & 31];
	if (depth <= 0)
		return 7;
	return library_tail(depth, tail_after_frame);
}

/* A part that is seldom run, with calls of its own: gcc puts it elsewhere, as NAME.cold. */
static void __attribute__((cold, noinline)) seldom(long value)
{
	sink += value * 17;
}

static APART long with_cold_part(const long *values, int count)
{
	long sum = 0;

	for (int at = 0; at < count; at++) {
		if (__builtin_expect(values[at] % 61 == 0, 0)) {
			long local[6];

			for (int i = 0; i < 6; i++)
				local[i] = library_leaf(values[at] + i);
			seldom(leaf((long[]){local[0], local[1], local[2], local[3],
					     local[4], local[5], 7, 8}));
			sum -= local[5];
		}
		sum += library_leaf(values[at]);
	}
	return sum;
}

/* Returns before it has a frame; else it has one. */
static APART long shrink_wrapped(long value)
{
	struct wide wide;

	if (__builtin_expect(value & 1, 1))
		return value;
	for (int at = 0; at < 9; at++)
		wide.words[at] = value + at;
	return library_wide(wide);
}

/* Functions that end with a call: the return address is the next function's first byte. */
static jmp_buf back;

static void __attribute__((noreturn, noinline)) give_up(long value)
{
	sink += value;
	longjmp(back, 1);
}

static APART void __attribute__((noreturn)) refuse(long value)
{
	char text[40];

	memset(text, (int)value, sizeof(text));
	sink += text[value & 15];
	give_up(value);
}

static APART long may_refuse(long value)
{
	if (value % 3 == 0)
		refuse(value);
	return library_leaf(value);
}

static APART long refused(long value)
{
	if (_setjmp(back))
		return -1;
	return may_refuse(value);
}

static APART long variadic(int count, ...)
{
	va_list list;
	long sum = 0;

	va_start(list, count);
	for (int at = 0; at < count; at++)
		sum += va_arg(list, long);
	va_end(list);
	return sum;
}

static APART double floating(double value, int depth)
{
	if (depth == 0)
		return value;
	return floating(value / 2, depth - 1) + floating(value / 3, depth - 1);
}

static APART long switched(long kind, long value)
{
	switch (kind) {
	case 0: return leaf((long[8]){value});
	case 1: return library_leaf(value);
	case 2: return shrink_wrapped(value);
	case 3: return library_leaf(value) + library_leaf(value + 1);
	case 4: return variadic(3, value, value, value);
	case 5: return (long)floating((double)value, 2);
	case 6: return even((int)(value & 7));
	case 7: return value;
	default: return refused(value);
	}
}

static APART long fibonacci(int number)
{
	return number < 2 ? number : fibonacci(number - 1) + fibonacci(number - 2);
}

static long add(long sum, long value)
{
	return sum + value;
}

static APART int ascending(const long *left, const long *right)
{
	return (*left > *right) - (*left < *right);
}

static void in_order(const long *values, int count)
{
	for (int at = 1; at < count; at++)
		if (values[at - 1] > values[at])
			wrong("library_sort");
}

void work(unsigned int round)
{
	long values[256], sum = 0;
	unsigned long random = round + 1;

	for (int at = 0; at < 256; at++) {
		random = random * 6364136223846793005UL + 1442695040888963407UL;
		values[at] = (long)(random >> 40);
	}
	sum += leaf(values);
	sum += hungry(values, library_leaf);
	sum += hungry(values, shrink_wrapped);
	sum += library_fold(values, 256, add);
	if (!even(200) || tail_after_frame(40) != 7)
		wrong("tail calls");
	sum += with_cold_part(values, 256);
	for (int at = 0; at < 256; at++)
		sum += switched(at % 9, values[at]);
	if (refused(6) != -1 || refused(7) != 22)
		wrong("calls that do not return");
	if (variadic(9, 1L, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L) != 45)
		wrong("variadic");
	if (library_many(1, 2, 3, 4, 5, 6, 7, 8, 9) != 3 * 14 + 1 + 3 * 54 + 1 + 7 + 48 + 63)
		wrong("library_many");
	if (fibonacci(15) != 610)
		wrong("fibonacci");
	library_sort(values, 256, ascending);
	in_order(values, 256);
	sink += (unsigned long)sum;
}
