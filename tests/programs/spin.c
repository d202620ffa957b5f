// SPDX-License-Identifier: GPL-2.0-only
#include "chain.h"
#include "work.h"

#include "sys.h"

static unsigned long seed = 1;

CHAINED static int count_bits(unsigned long value)
{
	CHAIN_ENTER();
	int bits = 0;

	for (; value; value &= value - 1)
		bits++;
	return bits;
}

CHAINED static unsigned long reverse(unsigned long value)
{
	CHAIN_ENTER();
	unsigned long reversed = 0;

	for (int i = 0; i < 64; i++)
		reversed = reversed << 1 | (value >> i & 1);
	return reversed;
}

CHAINED static int collatz(unsigned long value)
{
	CHAIN_ENTER();
	int steps = 0;

	for (; value > 1; steps++)
		value = value % 2 ? value * 3 + 1 : value / 2;
	return steps;
}

CHAINED static unsigned long combine(unsigned long value)
{
	CHAIN_ENTER();
	return reverse(value) + count_bits(value) + collatz(value % 1000);
}

CHAINED void spin(void)
{
	CHAIN_ENTER();
	for (int i = 0; i < 8; i++)
		seed = seed * 6364136223846793005 + combine(seed);
	sys_call(SYS_getppid);
}
