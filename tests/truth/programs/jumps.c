// SPDX-License-Identifier: GPL-2.0-only
/* setjmp() and longjmp(): out of deep calls, again and again, and by the ABI's own functions. */
#include <setjmp.h>
#include "load.h"

const unsigned int rounds = 50;

static jmp_buf outer, inner;

static APART void __attribute__((noreturn)) leave(int depth)
{
	sink += (unsigned long)depth;
	if (depth & 1)
		longjmp(outer, depth);
	longjmp(inner, depth);
}

static APART int descend(int depth, int levels)
{
	volatile char frame[24];

	frame[depth % 24] = (char)depth;
	if (levels == 0)
		leave(depth);
	if (levels < 0)
		return 0;
	return descend(depth, levels - 1) + frame[depth % 24];
}

/* longjmp() with an even value ends here, up to twice at one setjmp(). */
static APART int catch_even(int depth)
{
	volatile int times = 0;
	int value = setjmp(inner);

	if (value == 0)
		return descend(depth, depth);
	times++;
	if (times == 1 && value < 40)
		return descend(value + 20, 5);
	return value;
}

static APART int catch_all(int depth)
{
	int value = _setjmp(outer);

	return value ? -value : catch_even(depth);
}

void work(unsigned int round)
{
	(void)round;
	for (int depth = 1; depth < 40; depth++) {
		int expected = depth & 1 ? -depth : depth + 20;

		if (catch_all(depth) != expected)
			wrong("longjmp");
	}
}
