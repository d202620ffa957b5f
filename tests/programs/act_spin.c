// SPDX-License-Identifier: GPL-2.0-only
#include "chain.h"
#include "work.h"

CHAINED void act(void)
{
	CHAIN_ENTER();
	spin();
}
