// SPDX-License-Identifier: GPL-2.0-only
/*
 * Measures a function of the kernel from its entry to its exit, by the time stamp counter. In a
 * guest that counts (scripts/vm --icount) a tick is an instruction. One probe serves all functions,
 * so its own cost is constant and can be subtracted: `empty` is called to measure it.
 *
 * Parameter `function` names it. /sys/kernel/debug/count/calls has a line for each call: the number
 * of frames, for get_perf_callchain and unwind_user_faultable, and the cost. At most CALLS are
 * kept; 0 written to /sys/kernel/debug/count/count forgets them.
 */
#include <linux/debugfs.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/perf_event.h>
#include <linux/seq_file.h>
#ifdef CONFIG_UNWIND_USER
#include <linux/unwind_user_types.h>
#endif
#include <linux/vmalloc.h>
#include <asm/msr.h>

#define CALLS (1 << 18)
#define EMPTY_CALLS 1000

struct call {
	u32 frames;
	u32 taken;
};

struct entered {
	u64 at;
	void *argument;
};

static char *function = "get_perf_callchain";
module_param(function, charp, 0444);
MODULE_PARM_DESC(function, "the function to measure");

static struct call *calls;
static atomic_t count;
static u32 least = U32_MAX;
static bool is_immediate, is_deferred;

static noinline int empty(void)
{
	/* Without an effect that the compiler can see, it could drop the calls. */
	asm volatile("");
	return 0;
}

static int entered(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct entered *entered = (void *)instance->data;

	entered->argument = (void *)regs->di;
	entered->at = rdtsc();
	return 0;
}
NOKPROBE_SYMBOL(entered);

static int left_empty(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	u64 taken = rdtsc() - ((struct entered *)instance->data)->at;

	least = min_t(u64, least, taken);
	return 0;
}
NOKPROBE_SYMBOL(left_empty);

/* The number of frames that a call has found. */
static u32 frames_of(void *argument, struct pt_regs *regs)
{
	if (is_immediate) {
		struct perf_callchain_entry *entry = (void *)regs_return_value(regs);

		/* The number of entries without PERF_CONTEXT_USER. */
		return entry && entry->nr ? entry->nr - 1 : 0;
	}
#ifdef CONFIG_UNWIND_USER
	if (is_deferred)
		return ((struct unwind_stacktrace *)argument)->nr;
#endif
	return 0;
}
NOKPROBE_SYMBOL(frames_of);

static int left(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	u64 taken = rdtsc() - ((struct entered *)instance->data)->at;
	struct entered *entered = (void *)instance->data;
	int index = atomic_inc_return(&count) - 1;

	if (index < CALLS)
		calls[index] = (struct call) { frames_of(entered->argument, regs), taken };
	return 0;
}
NOKPROBE_SYMBOL(left);

static struct kretprobe probe = {
	.entry_handler = entered,
	.handler = left_empty,
	.data_size = sizeof(struct entered),
	.maxactive = 64,
};

static int calls_show(struct seq_file *file, void *data)
{
	int index, all = min(atomic_read(&count), CALLS);

	for (index = 0; index < all; index++)
		seq_printf(file, "%u %d\n", calls[index].frames, (int)(calls[index].taken - least));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(calls);

static struct dentry *directory;

static int __init count_init(void)
{
	int ret, turn;

	is_deferred = !strcmp(function, "unwind_user_faultable");
	is_immediate = !strcmp(function, "get_perf_callchain");
	calls = vzalloc(array_size(CALLS, sizeof(*calls)));
	if (!calls)
		return -ENOMEM;

	probe.kp.addr = (void *)empty;
	ret = register_kretprobe(&probe);
	if (ret)
		goto free;
	for (turn = 0; turn < EMPTY_CALLS; turn++)
		empty();
	unregister_kretprobe(&probe);
	pr_info("count: the probe itself takes %u\n", least);

	probe = (struct kretprobe) {
		.kp.symbol_name = function,
		.entry_handler = entered,
		.handler = left,
		.data_size = sizeof(struct entered),
		.maxactive = 64,
	};
	ret = register_kretprobe(&probe);
	if (ret)
		goto free;
	directory = debugfs_create_dir("count", NULL);
	debugfs_create_atomic_t("count", 0600, directory, &count);
	debugfs_create_file("calls", 0400, directory, NULL, &calls_fops);
	return 0;
free:
	vfree(calls);
	return ret;
}

static void __exit count_exit(void)
{
	debugfs_remove_recursive(directory);
	unregister_kretprobe(&probe);
	vfree(calls);
}

module_init(count_init);
module_exit(count_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Counts what functions of the kernel take, for the bench of sframe_unwind");
