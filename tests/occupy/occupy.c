// SPDX-License-Identifier: GPL-2.0-only
/*
 * Takes the place that sframe_unwind needs, as a live patch might: only one may change where
 * perf_callchain_user goes. It changes nothing.
 */
#include <linux/ftrace.h>
#include <linux/module.h>

static void notrace leave(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			  struct ftrace_regs *fregs)
{
}

static struct ftrace_ops ops = { .func = leave, .flags = FTRACE_OPS_FL_IPMODIFY };
static unsigned char function[] = "perf_callchain_user";

static int __init occupy_init(void)
{
	int ret = ftrace_set_filter(&ops, function, sizeof(function) - 1, 1);

	return ret ?: register_ftrace_function(&ops);
}

static void __exit occupy_exit(void)
{
	unregister_ftrace_function(&ops);
}

module_init(occupy_init);
module_exit(occupy_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Occupies perf_callchain_user, for the tests of sframe_unwind");
