// SPDX-License-Identifier: GPL-2.0-only
/*
 * The hook: ftrace calls ftrace_handler() at the entry of perf_callchain_user() and of
 * unwind_user(). The handler redirects the call to the module's function, or leaves the task to the
 * kernel.
 *
 * A task without rows is left to the kernel: decisions.c.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/ptrace.h>
#include <linux/sched/clock.h>
#include <linux/sched/task_stack.h>
#include <linux/srcu.h>

#include "decisions.h"
#include "user_memory.h"
#include "walk_lock.h"

/*
 * The version in Cargo.toml and CHANGELOG.md. The `kernel` crate sets the other fields of the
 * module's information.
 */
MODULE_VERSION("0.1.0");

/* Parameters are in C: a parameter of the `kernel` crate has no file in sysfs. */
static bool enabled = true;
module_param(enabled, bool, 0644);
MODULE_PARM_DESC(enabled,
		 "Unwind user stacks (off: the kernel's own chains from the next sample on)");

static bool hooks_immediate = true;
module_param_named(immediate, hooks_immediate, bool, 0444);
MODULE_PARM_DESC(immediate, "Hook perf_callchain_user: stacks of perf samples and of BPF");

static bool hooks_deferred = true;
module_param_named(deferred, hooks_deferred, bool, 0444);
MODULE_PARM_DESC(deferred, "Hook unwind_user: stacks taken on the way back to user space");

/*
 * On a virtual machine, or under an emulator, the time in which the host runs something else would
 * count as time of the walk.
 */
static int walk_us = -1;
module_param(walk_us, int, 0644);
MODULE_PARM_DESC(walk_us,
		 "Limit of a walk in interrupts, in us; 0: none (150; on virtual machines 0)");

static unsigned long immediate_address, deferred_address;
static struct srcu_struct deferred_walks;

/*
 * ftrace calls the handler with the address of the function's entry. The
 * address lies a few bytes behind the entry if indirect branches need an instruction there.
 */
static bool is_entry_of(unsigned long ip, unsigned long function)
{
	return function && ip - function < 16;
}

/*
 * Whether the task is in exec, with the new program's memory and the old program's registers. exec
 * sets start_code shortly before it sets the registers.
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
 * Replaces perf_callchain_user() where the module must not read the task's mappings. The kernel's
 * own walk by frame pointers would make false frames for a task with rows.
 */
static void innermost_callchain(struct perf_callchain_entry_ctx *entry, struct pt_regs *regs)
{
	perf_callchain_store(entry, instruction_pointer(regs));
}

/*
 * Each replacement has the prototype of the function that it replaces. A kernel with another
 * prototype does not build.
 */
static_assert(__same_type(empty_callchain, perf_callchain_user));
static_assert(__same_type(innermost_callchain, perf_callchain_user));
static_assert(__same_type(sframe_unwind_immediate, perf_callchain_user));
#ifdef CONFIG_UNWIND_USER
static_assert(__same_type(sframe_unwind_deferred, unwind_user));
#endif

/*
 * NMI, IRQ or task. Unless the handler changes the instruction pointer, the kernel's own function
 * runs.
 */
static void notrace ftrace_handler(unsigned long ip, unsigned long parent_ip,
				   struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct pt_regs *regs;
	unsigned long target;
	bool immediate = is_entry_of(ip, immediate_address);

	if (!READ_ONCE(enabled))
		return;
	if (immediate) {
		regs = (struct pt_regs *)ftrace_regs_get_argument(fregs, 1);
		target = (unsigned long)sframe_unwind_immediate;
	} else if (is_entry_of(ip, deferred_address)) {
		regs = task_pt_regs(current);
		target = (unsigned long)sframe_unwind_deferred;
	} else {
		return;
	}

	preempt_disable_notrace();
	if (is_unwindable(regs)) {
		if (immediate && unlikely(in_nmi()) && nmi_is_saving_registers()) {
			this_cpu_inc(sfu_counter[SFU_IN_ENTRY]);
			ftrace_regs_set_instruction_pointer(fregs, (unsigned long)empty_callchain);
		} else if (immediate && is_between_programs()) {
			this_cpu_inc(sfu_counter[SFU_IN_EXEC]);
			ftrace_regs_set_instruction_pointer(fregs, (unsigned long)empty_callchain);
		} else {
			switch (sfu_decision_for(regs, ip, parent_ip)) {
			case SFU_WALK:
				ftrace_regs_set_instruction_pointer(fregs, target);
				break;
			case SFU_CUT:
				/*
				 * Only on kernels without deferred stacks; sfu_hook_install()
				 * asserts this.
				 */
				this_cpu_inc(sfu_counter[SFU_LOCKED]);
				target = (unsigned long)innermost_callchain;
				ftrace_regs_set_instruction_pointer(fregs, target);
				break;
			case SFU_LEAVE:
				this_cpu_inc(sfu_counter[SFU_LEFT_TO_KERNEL]);
			}
		}
	}
	preempt_enable_notrace();
}

static struct ftrace_ops ops = {
	.func = ftrace_handler,
	/*
	 * IPMODIFY: no other user may change the instruction pointer of the two functions.
	 * PERMANENT: ftrace_enabled cannot be switched off.
	 */
	.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT,
};

/*
 * The address of a function. kallsyms_lookup_name() is not exported; a kprobe knows the address.
 * The kprobe is never armed, so its removal allocates nothing and cannot fail.
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
	ret = -ENOENT;
	if (*address)
		ret = ftrace_set_filter(&ops, (unsigned char *)function, strlen(function), reset);
	if (ret)
		pr_err("cannot hook %s: %s (%d)\n", function,
		       *address ? "ftrace does not know it" : "this kernel has no such function",
		       ret);
	return ret;
}

int sfu_hook_install(void)
{
	bool deferred = hooks_deferred && IS_ENABLED(CONFIG_UNWIND_USER);
	int ret;

	/* Deferred walks sleep, and look up mappings without a lock. */
	BUILD_BUG_ON(IS_ENABLED(CONFIG_UNWIND_USER) && !SFU_HAS_SEQUENCE);
	if (!SFU_HAS_SEQUENCE && IS_ENABLED(CONFIG_PREEMPT_RT)) {
		pr_err("cannot hook: with PREEMPT_RT, walks need a kernel of 6.12 or later\n");
		return -EOPNOTSUPP;
	}
	if (walk_us < 0)
		walk_us = is_virtual_machine() ? 0 : 150;
	if (deferred != hooks_deferred)
		pr_info("this kernel takes no deferred stacks; immediate stacks are unwound\n");
	ret = sfu_code_caches_start();
	if (ret)
		return ret;
	ret = init_srcu_struct(&deferred_walks);
	if (ret) {
		sfu_code_caches_stop();
		return ret;
	}
	if (!SFU_HAS_SEQUENCE)
		sfu_locks_start();
	sfu_entry_text_find();
	if (hooks_immediate)
		ret = filter("perf_callchain_user", &immediate_address, true);
	if (!ret && deferred)
		ret = filter("unwind_user", &deferred_address, !hooks_immediate);
	if (!ret && (hooks_immediate || deferred)) {
		ret = register_ftrace_function(&ops);
		if (ret == -EBUSY)
			pr_err("cannot hook: another module or a live patch already replaces perf_callchain_user or unwind_user (%d)\n",
			       ret);
		else if (ret)
			pr_err("cannot hook: ftrace refuses (%d)\n", ret);
	}
	if (ret) {
		ftrace_free_filter(&ops);
		cleanup_srcu_struct(&deferred_walks);
		sfu_code_caches_stop();
	}
	return ret;
}

void sfu_hook_remove(void)
{
	WRITE_ONCE(enabled, false);
	if (immediate_address || deferred_address)
		sfu_ftrace_remove(&ops);
	/* First wait for the deferred walks, which may sleep, then for their last instructions. */
	synchronize_srcu(&deferred_walks);
	synchronize_rcu_tasks();
	if (!SFU_HAS_SEQUENCE)
		sfu_locks_stop();
	cleanup_srcu_struct(&deferred_walks);
	sfu_code_caches_stop();
}


/* The redirected calls. */

/* This CPU's clock, in units of 1,024 ns. */
static uint32_t now(void)
{
	return local_clock() >> 10;
}

uint32_t sfu_walk_end(void)
{
	int limit = READ_ONCE(walk_us);
	uint32_t end;

	if (limit <= 0)
		return SFU_NO_END;
	/* A number of at most 2^30: half of the clock's range. */
	end = now() + min_t(uint64_t, (uint64_t)limit * NSEC_PER_USEC >> 10, 1u << 30);
	return end == 0 || end == SFU_NO_END ? 1 : end;
}

bool sfu_is_past(uint32_t end)
{
	return (int32_t)(now() - end) >= 0;
}

static noinline struct sfu_code_cache *begin(struct pt_regs *regs, struct sfu_call *call)
{
	call->pc = instruction_pointer(regs);
	call->sp = user_stack_pointer(regs);
	call->fp = frame_pointer(regs);
	call->registers = regs;
	call->spent = sfu_scan_spent();
	call->is_probed = current->utask || mm_flags_test(MMF_HAS_UPROBES, current->mm);
	/* Last, because it may call a function. */
	call->limit = sfu_peek(call->sp);
	if (likely(call->limit && !call->is_probed && !is_in_system_call(regs)))
		return sfu_code_cache_enter();
	return NULL;
}

struct sfu_code_cache *sfu_immediate_enter(struct perf_callchain_entry_ctx *to,
					   struct pt_regs *regs, struct sfu_call *call)
{
	call->context = in_nmi() ? SFU_NMI : in_task() ? SFU_TASK : SFU_IRQ;
	call->buffer = &to->entry->ip[to->entry->nr];
	call->left = to->nr < to->max_stack && !to->contexts_maxed ? to->max_stack - to->nr : 0;
	return begin(regs, call);
}

void sfu_immediate_leave(struct perf_callchain_entry_ctx *to, unsigned int count)
{
	to->nr += count;
	to->entry->nr += count;
	sfu_peek_end();
	sfu_unlock_mappings();
}

struct sfu_code_cache *sfu_deferred_enter(struct unwind_stacktrace *to, unsigned int max_entries,
					  struct sfu_call *call)
{
	/* The token, until the walk has ended. */
	to->nr = srcu_read_lock(&deferred_walks);
	call->context = SFU_DEFERRED;
	call->buffer = (uint64_t *)to->entries;
	call->left = max_entries;
	return begin(task_pt_regs(current), call);
}

void sfu_deferred_leave(struct unwind_stacktrace *to, unsigned int count)
{
	int token = to->nr;

	to->nr = count;
	sfu_peek_end();
	srcu_read_unlock(&deferred_walks, token);
}
