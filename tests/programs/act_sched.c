// SPDX-License-Identifier: GPL-2.0-only
/* Threads that give up the processor in several ways: made for sched_switch. */
#include "chain.h"
#include "work.h"

#include <linux/futex.h>

#include "sys.h"

static int turn;

CHAINED static void yield(void)
{
	CHAIN_ENTER();
	sys_call(SYS_sched_yield);
}

CHAINED static void doze(void)
{
	CHAIN_ENTER();
	struct timespec moment = { .tv_nsec = 100000 };

	sys_call3(SYS_nanosleep, (long)&moment, 0, 0);
}

/* Wakes the others and waits for them, for a limited time: they may have exited. */
CHAINED static void pass_on(void)
{
	CHAIN_ENTER();
	struct timespec limit = { .tv_nsec = 1000000 };
	int seen = __atomic_add_fetch(&turn, 1, __ATOMIC_RELAXED);

	sys_call3(SYS_futex, (long)&turn, FUTEX_WAKE_PRIVATE, 1);
	sys_call6(SYS_futex, (long)&turn, FUTEX_WAIT_PRIVATE, seen, (long)&limit, 0, 0);
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	yield();
	doze();
	pass_on();
	spin();
}
