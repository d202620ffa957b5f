// SPDX-License-Identifier: GPL-2.0-only
/* Calls into a library with frame pointers and no .sframe, and is called back. */
#include "chain.h"
#include "work.h"

CHAINED static void back(void)
{
	CHAIN_ENTER();
	spin();
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	bridge(back);
}
