// SPDX-License-Identifier: GPL-2.0-only
/*
 * The program executes itself again and again. Some samples have hardly any
 * stack: in exec, in exit, and in the loader.
 */
#define _GNU_SOURCE
#include "chain.h"
#include "work.h"

#include <unistd.h>

#include "sys.h"

CHAINED static void execute(void)
{
	CHAIN_ENTER();
	static const char *const arguments[] = { "exec", "0.02", "again", 0 };
	char path[4096] = { 0 };

	/* Not /proc/self/exe itself: the process would be called "exe". */
	sys_call3(SYS_readlink, (long)"/proc/self/exe", (long)path, sizeof(path) - 1);
	sys_call3(SYS_execve, (long)path, (long)arguments, (long)environ);
	sys_exit(126);
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	long child;

	spin();
	if (again)
		return;
	child = sys_call(SYS_fork);
	if (child == 0)
		execute();
	sys_call6(SYS_wait4, child, 0, 0, 0, 0, 0);
}
