// SPDX-License-Identifier: GPL-2.0-only
/* Executes an instruction that the kernel replaces with a call if it has a uprobe. */
#include "chain.h"
#include "work.h"

CHAINED static void marked(void)
{
	CHAIN_ENTER();
	asm volatile("marked.site: .byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0");
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	for (int i = 0; i < 100; i++)
		marked();
	spin();
}
