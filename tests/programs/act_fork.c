// SPDX-License-Identifier: GPL-2.0-only
/* A forked child without exec continues the work of its parent. */
#include "chain.h"
#include "work.h"

#include "sys.h"

/* For 20 ms, and on a busy host for as much work as takes half of that on a quiet one. */
CHAINED static void spin_for_a_while(void)
{
	CHAIN_ENTER();
	double end = sys_now() + 0.02;

	for (int turn = 0; turn < 500 || sys_now() < end; turn++)
		spin();
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	long child = sys_call(SYS_fork);

	spin_for_a_while();
	if (child == 0)
		sys_exit(0);
	sys_call6(SYS_wait4, child, 0, 0, 0, 0, 0);
}
