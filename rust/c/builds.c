// SPDX-License-Identifier: GPL-2.0-only
/*
 * The bounds of table builds. The number of builds and their memory are limited. A build ends when
 * its CPU time is used up, when its task is killed, and when the module is being unloaded. A build
 * by the worker also ends when bytes of the file are not in memory. Other tasks run meanwhile.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mutex.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/time64.h>

#include "internal.h"

/*
 * The most CPU time of one table build, in nanoseconds. A checker makes a build about ten times as
 * long, and a busy host makes a guest count time in which the guest did not run.
 */
#define BUILD_TIME ((IS_ENABLED(CONFIG_KASAN) || IS_ENABLED(CONFIG_KCSAN) ? 20 : 2) * NSEC_PER_SEC)

/*
 * The running builds. The worker has one, and each task that adds rows another. The limit of the
 * bytes of all tables is also the limit of the bytes of all builds. Builds of added rows for users
 * other than root may take half of this limit.
 */
#define BUILDS 16
#define BUILDS_OF_USER 4
static struct build {
	uint64_t bytes;
	uint32_t user;
	bool is_used;
	bool added;
} builds[BUILDS];
static DEFINE_MUTEX(builds_lock);

int sfu_build_begin(uint32_t user, bool added)
{
	int i, its = 0, found = -EBUSY;

	if (!added && sfu_tables_were_shrunk())
		return -EBUSY;
	mutex_lock(&builds_lock);
	for (i = 0; i < BUILDS; i++) {
		if (!builds[i].is_used)
			found = i;
		else if (builds[i].user == user)
			its++;
	}
	if (user && its >= BUILDS_OF_USER)
		found = -EBUSY;
	if (found >= 0)
		builds[found] = (struct build){ .user = user, .added = added, .is_used = true };
	mutex_unlock(&builds_lock);
	return found;
}

int sfu_build_take(int build, uint64_t bytes)
{
	uint64_t limit = sfu_tables_limit(), all = bytes, of_users = bytes;
	int i, ret = 0;

	/* Not beyond, so that the sums do not wrap. */
	if (bytes > limit)
		return -ENOSPC;
	mutex_lock(&builds_lock);
	for (i = 0; i < BUILDS; i++) {
		all += builds[i].bytes;
		if (builds[i].added && builds[i].user)
			of_users += builds[i].bytes;
	}
	if (all > limit || (builds[build].added && builds[build].user && of_users > limit / 2))
		ret = -ENOSPC;
	else
		builds[build].bytes += bytes;
	mutex_unlock(&builds_lock);
	return ret;
}

void sfu_build_give(int build, uint64_t bytes)
{
	mutex_lock(&builds_lock);
	builds[build].bytes -= bytes;
	mutex_unlock(&builds_lock);
}

void sfu_build_end(int build)
{
	mutex_lock(&builds_lock);
	builds[build] = (struct build){};
	mutex_unlock(&builds_lock);
}

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
	/*
	 * A kworker that never sleeps would keep RCU-tasks from ending a grace period, for all of
	 * its users.
	 */
	cond_resched_tasks_rcu_qs();
	if (fatal_signal_pending(current) || READ_ONCE(sfu_is_stopping) ||
	    ((current->flags & PF_WQ_WORKER) && sfu_lacks_bytes()))
		return -EINTR;
	return cpu_time() < deadline ? 0 : -ETIME;
}

void sfu_random_key(uint64_t *key)
{
	get_random_bytes(key, 2 * sizeof(*key));
}
