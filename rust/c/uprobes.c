// SPDX-License-Identifier: GPL-2.0-only
/* Uprobes of the current task. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/uprobes.h>

#include "internal.h"

/* More return instances than the kernel lets a task have. */
#define URETPROBES 128

/*
 * The task itself writes its uprobe state, in an order that is consistent for an interrupt, and
 * frees it itself or after a grace period.
 */
uint64_t sfu_uprobe_orig_pc(uint64_t pc)
{
	const struct uprobe_task *utask = READ_ONCE(current->utask);
	uint64_t offset;

	if (!utask || !READ_ONCE(utask->active_uprobe))
		return sfu_breakpoint_pc(pc);
	offset = pc - READ_ONCE(utask->xol_vaddr);
	return offset < UPROBE_XOL_SLOT_BYTES ? READ_ONCE(utask->vaddr) + offset : pc;
}

/*
 * Whether the list of uretprobes has no instance that was freed: see SFU_PEEK(). Only the task
 * itself changes the list, in the kernel. So nobody does while an interrupt has interrupted the
 * task in user space. (For NMIs nothing tells this for sure: some exceptions count as NMIs.)
 */
static bool has_whole_list(void)
{
	if (SFU_HAS_WHOLE_URETPROBES)
		return true;
	return in_hardirq() && !in_nmi() && sfu_interrupted_user_space();
}

bool sfu_uretprobe_orig_ra(uint64_t slot, uint64_t *address)
{
	const struct uprobe_task *utask = READ_ONCE(current->utask);
	const struct return_instance *instance;
	bool found = false;
	int limit = URETPROBES;

	if (!utask || !has_whole_list())
		return false;
	rcu_read_lock();
	for (instance = READ_ONCE(utask->return_instances); instance && limit; limit--) {
		if (SFU_PEEK(instance->stack) == slot) {
			*address = SFU_PEEK(instance->orig_ret_vaddr);
			found = true;
			break;
		}
		instance = SFU_PEEK(instance->next);
	}
	rcu_read_unlock();
	return found;
}
