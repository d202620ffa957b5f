// SPDX-License-Identifier: GPL-2.0-only
/*
 * The hook: ftrace calls ftrace_handler() at the entry of perf_callchain_user() and of unwind_user(), and
 * the handler runs the module's function in their stead, or leaves the task to the kernel.
 *
 * Whether a task is left to the kernel is decided here, in C, because the handler may not call Rust for
 * each sample: the decision cache is on the hot path. What the cache does not know is decided in Rust
 * (sframe_unwind_wanted()).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/sched/task_stack.h>
#include <linux/srcu.h>
#include <linux/unwind_user.h>

#include "internal.h"
#include "x86.h"

/* The version of Cargo.toml and CHANGELOG.md; the `kernel` crate sets the rest of the module's information. */
MODULE_VERSION("0.1.0");

/* A parameter in C: the `kernel` crate has no parameters that can be written at run time. */
static bool enabled = true;
module_param(enabled, bool, 0644);
MODULE_PARM_DESC(enabled, "Unwind user stacks (off: the kernel's own chains from the next sample on)");

static unsigned long immediate_address, deferred_address;
static struct srcu_struct deferred_walks;

/*
 * ftrace calls the handler with the address of the function's entry, or a few bytes after it where the
 * entry has an ENDBR.
 */
static bool is_entry_of(unsigned long ip, unsigned long function)
{
	return function && ip - function < 16;
}

/*
 * Whether the task is in exec, with the new program's memory and the old program's registers. exec sets
 * start_code shortly before it sets the registers.
 */
static bool is_between_programs(void)
{
	return current->in_execve && !current->mm->start_code;
}

/* Replaces perf_callchain_user() where there is no user stack. */
static void empty_callchain(struct perf_callchain_entry_ctx *entry, struct pt_regs *regs)
{
}

/*
 * Each replacement has the prototype of the function that it replaces. A kernel with another prototype
 * does not build.
 */
static_assert(__same_type(empty_callchain, perf_callchain_user));
static_assert(__same_type(sframe_unwind_immediate, perf_callchain_user));
static_assert(__same_type(sframe_unwind_deferred, unwind_user));

/*
 * The decision cache: a few decisions for each CPU, whether a task has rows anywhere, in one state of its
 * mappings. A writer clears `id` first and sets it last, so an NMI in between finds no entry rather than a
 * mixture. The NMI itself writes an entry whole.
 */
#define DECISIONS 8

struct decision {
	uint64_t id;
	uint64_t sequence;
	bool has_rows;
};

static DEFINE_PER_CPU(struct decision[DECISIONS], decisions);

void sfu_keep_decision(uint64_t id, uint64_t sequence, bool has_rows)
{
	struct decision *entry = this_cpu_ptr(&decisions[id % DECISIONS]);

	WRITE_ONCE(entry->id, 0);
	barrier();
	WRITE_ONCE(entry->sequence, sequence);
	WRITE_ONCE(entry->has_rows, has_rows);
	barrier();
	WRITE_ONCE(entry->id, id);
}

/*
 * Asks Rust. Rust looks at the task's mappings and reads its memory. A fault in there may ask for a stack
 * again: that stack is left to the kernel.
 */
static noinline bool decide(unsigned long ip, unsigned long parent_ip)
{
	int bit = ftrace_test_recursion_trylock(ip, parent_ip);
	bool wanted;

	if (bit < 0)
		return false;
	wanted = sframe_unwind_wanted();
	ftrace_test_recursion_unlock(bit);
	return wanted;
}

/* Whether the current task's stack is walked here. Preemption off. */
static bool is_to_be_walked(unsigned long ip, unsigned long parent_ip)
{
	const struct decision *entry;
	uint64_t id, sequence;
	bool wanted;

	sfu_mappings_version(&id, &sequence);
	entry = this_cpu_ptr(&decisions[id % DECISIONS]);
	/* While the mappings are being changed, the decision for the state before the change holds. */
	if (READ_ONCE(entry->id) == id && READ_ONCE(entry->sequence) == (sequence & ~1ull))
		wanted = READ_ONCE(entry->has_rows);
	else
		wanted = decide(ip, parent_ip);
	if (!wanted)
		this_cpu_inc(sfu_counter[SFU_LEFT_TO_KERNEL]);
	return wanted;
}

/*
 * NMI, IRQ or task. If the handler does not change the instruction pointer, the kernel's own function
 * runs.
 */
static void notrace ftrace_handler(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			     struct ftrace_regs *fregs)
{
	const struct pt_regs *regs;
	unsigned long target;
	bool immediate = is_entry_of(ip, immediate_address);

	if (!READ_ONCE(enabled))
		return;
	if (immediate) {
		regs = (const struct pt_regs *)ftrace_regs_get_argument(fregs, 1);
		target = (unsigned long)sframe_unwind_immediate;
	} else if (is_entry_of(ip, deferred_address)) {
		regs = task_pt_regs(current);
		target = (unsigned long)sframe_unwind_deferred;
	} else {
		return;
	}

	preempt_disable_notrace();
	if (is_unwindable(regs)) {
		if (immediate && is_between_programs()) {
			this_cpu_inc(sfu_counter[SFU_IN_EXEC]);
			ftrace_regs_set_instruction_pointer(fregs, (unsigned long)empty_callchain);
		} else if (is_to_be_walked(ip, parent_ip)) {
			ftrace_regs_set_instruction_pointer(fregs, target);
		}
	}
	preempt_enable_notrace();
}

static struct ftrace_ops ops = {
	.func = ftrace_handler,
	/*
	 * IPMODIFY: no other user may change the instruction pointer of the two functions. PERMANENT:
	 * ftrace_enabled cannot be switched off.
	 */
	.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT,
};

/*
 * The address of a function. kallsyms_lookup_name() is not exported; a kprobe knows the address. The
 * kprobe is never armed, so its removal allocates nothing and cannot fail.
 */
static unsigned long address_of(const char *function)
{
	struct kprobe probe = { .symbol_name = function, .flags = KPROBE_FLAG_DISABLED };
	unsigned long address;

	if (register_kprobe(&probe))
		return 0;
	address = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	return address;
}

static int filter(const char *function, unsigned long *address, bool reset)
{
	int ret;

	*address = address_of(function);
	ret = *address ? ftrace_set_filter(&ops, (unsigned char *)function, strlen(function), reset) : -ENOENT;
	if (ret)
		pr_err("cannot hook %s: %s (%d)\n", function,
		       *address ? "ftrace does not know it" : "this kernel has no such function", ret);
	return ret;
}

int sfu_hook_install(bool immediate, bool deferred)
{
	int ret = init_srcu_struct(&deferred_walks);

	if (ret)
		return ret;
	if (immediate)
		ret = filter("perf_callchain_user", &immediate_address, true);
	if (!ret && deferred)
		ret = filter("unwind_user", &deferred_address, !immediate);
	if (!ret && (immediate || deferred)) {
		ret = register_ftrace_function(&ops);
		if (ret == -EBUSY)
			pr_err("cannot hook: another module or a live patch already replaces perf_callchain_user or unwind_user (%d)\n", ret);
		else if (ret)
			pr_err("cannot hook: ftrace refuses (%d)\n", ret);
	}
	if (ret) {
		ftrace_free_filter(&ops);
		cleanup_srcu_struct(&deferred_walks);
	}
	return ret;
}

void sfu_hook_remove(void)
{
	WRITE_ONCE(enabled, false);
	if (immediate_address || deferred_address) {
		/*
		 * Waits for tasks that were preempted in a walk and for CPUs that are in one. If ftrace
		 * has shut itself down, the hook stays in, and the module has to stay, too.
		 */
		if (WARN(unregister_ftrace_function(&ops), "sframe_unwind: ftrace will not let go of the hook; the module stays\n"))
			for (;;)
				schedule_timeout_uninterruptible(MAX_SCHEDULE_TIMEOUT);
	}
	/* First the deferred walks, which may sleep, then their last instructions. */
	synchronize_srcu(&deferred_walks);
	synchronize_rcu_tasks();
	ftrace_free_filter(&ops);
	cleanup_srcu_struct(&deferred_walks);
}


/* The calls that were redirected. */

static void begin(const struct pt_regs *regs, uint32_t context, struct sfu_call *call)
{
	call->context = context;
	call->pc = regs->ip;
	call->sp = regs->sp;
	call->fp = regs->bp;
	call->registers = regs;
	call->is_probed = current->utask || mm_flags_test(MMF_HAS_UPROBES, current->mm);
}

void sfu_immediate_enter(struct perf_callchain_entry_ctx *to, struct pt_regs *regs, struct sfu_call *call)
{
	begin(regs, in_nmi() ? SFU_NMI : in_task() ? SFU_TASK : SFU_IRQ, call);
	call->buffer = &to->entry->ip[to->entry->nr];
	call->left = to->nr < to->max_stack && !to->contexts_maxed ? to->max_stack - to->nr : 0;
}

void sfu_immediate_leave(struct perf_callchain_entry_ctx *to, unsigned int count)
{
	to->nr += count;
	to->entry->nr += count;
}

int sfu_deferred_enter(struct unwind_stacktrace *to, unsigned int max_entries, struct sfu_call *call)
{
	begin(task_pt_regs(current), SFU_DEFERRED, call);
	to->nr = 0;
	call->buffer = (uint64_t *)to->entries;
	call->left = max_entries;
	return srcu_read_lock(&deferred_walks);
}

void sfu_deferred_leave(struct unwind_stacktrace *to, unsigned int count, int token)
{
	to->nr = count;
	srcu_read_unlock(&deferred_walks, token);
}
