// SPDX-License-Identifier: GPL-2.0-only
/*
 * The end of long work: a table build ends when its CPU time is used up, when its task is killed, and when
 * the module is being unloaded. In between, others run.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/time64.h>

#include "internal.h"

/* The most CPU time of one table build, in nanoseconds. */
#define BUILD_TIME (2 * NSEC_PER_SEC)

bool sfu_is_stopping;

/* The CPU time of the current task, in nanoseconds, as of the last tick. */
static uint64_t cpu_time(void)
{
	return READ_ONCE(current->se.sum_exec_runtime);
}

uint64_t sfu_build_deadline(void)
{
	return cpu_time() + BUILD_TIME;
}

int sfu_build_pause(uint64_t deadline)
{
	/* A kworker that never sleeps would keep RCU-tasks from ending a grace period, for all of its users. */
	cond_resched_tasks_rcu_qs();
	if (fatal_signal_pending(current) || READ_ONCE(sfu_is_stopping))
		return -EINTR;
	return cpu_time() < deadline ? 0 : -ETIME;
}

void sfu_random_key(uint64_t *key)
{
	get_random_bytes(key, 2 * sizeof(*key));
}
