// SPDX-License-Identifier: GPL-2.0-only
/* Built with frame pointers and without .sframe. */
#include "chain.h"
#include "work.h"

CHAINED static void cross(void (*back)(void), int steps)
{
	CHAIN_ENTER();
	while (steps-- > 0)
		back();
}

CHAINED void bridge(void (*back)(void))
{
	CHAIN_ENTER();
	cross(back, 3);
}
