/* SPDX-License-Identifier: GPL-2.0-only */
/* Decisions: the part that is in line, because the hook's handler decides for each sample. */
#ifndef _SFRAME_UNWIND_DECISIONS_H
#define _SFRAME_UNWIND_DECISIONS_H

#include <linux/jiffies.h>
#include <linux/percpu.h>
#include <linux/sched.h>

#include "mappings.h"
#include "walk_lock.h"

/*
 * A decision whether a task has rows; decisions.c. A writer clears `id` first and sets it last, so
 * an NMI in between finds no entry rather than a mixed one. An NMI itself writes its entry without
 * interruption.
 */
struct sfu_decision {
	/* sfu_mm_id(). */
	uint64_t id;
	/*
	 * The state of the mappings. The decision "has rows" is used in later states, too: this
	 * costs only time.
	 */
	uint64_t sequence;
	/* The time in jiffies from which on the decision is not used. */
	unsigned long until;
	bool has_rows;
};

#define SFU_DECISIONS 8

DECLARE_PER_CPU(struct sfu_decision[SFU_DECISIONS], sfu_decisions);

/*
 * The work of this CPU's scans since the last walk, as in struct sfu_call: a scan and the walk of
 * its sample share a budget.
 */
DECLARE_PER_CPU(uint32_t, sfu_scan_work);

static inline uint32_t sfu_scan_spent(void)
{
	uint32_t spent = this_cpu_read(sfu_scan_work);

	if (unlikely(spent))
		this_cpu_write(sfu_scan_work, 0);
	return spent;
}

/*
 * The decision about a stack: it is left to the kernel; or walked, with the mappings locked until
 * sfu_unlock_mappings(); or cut to its innermost frame, because the mappings cannot be locked.
 */
enum sfu_decided { SFU_LEAVE, SFU_WALK, SFU_CUT };

static __always_inline enum sfu_decided sfu_walk_locked(void)
{
	return sfu_lock_mappings() ? SFU_WALK : SFU_CUT;
}

/*
 * Decides if the CPU has no valid decision for the task. Arguments and context as for
 * sfu_decision_for().
 */
enum sfu_decided sfu_decide(struct pt_regs *regs, unsigned long ip, unsigned long parent_ip);

/*
 * Decides whether the module walks the current task's stack. `regs` are the task's registers at the
 * sample; `ip` and `parent_ip` are arguments of the ftrace handler. NMI, IRQ or task; preemption is
 * off.
 */
static __always_inline enum sfu_decided sfu_decision_for(struct pt_regs *regs, unsigned long ip,
							    unsigned long parent_ip)
{
	uint64_t id = sfu_mm_id(current->mm);
	const struct sfu_decision *entry = this_cpu_ptr(&sfu_decisions[id % SFU_DECISIONS]);

	if (READ_ONCE(entry->id) == id && time_before(jiffies, READ_ONCE(entry->until))) {
		if (READ_ONCE(entry->has_rows))
			return sfu_walk_locked();
		/*
		 * While the mappings are being changed, the decision for the state before the
		 * change holds.
		 */
		if (READ_ONCE(entry->sequence) == (sfu_mappings_sequence() & ~1ull))
			return SFU_LEAVE;
	}
	return sfu_decide(regs, ip, parent_ip);
}

/*
 * Stores the worker's result: whether the task with this mm has rows, in this state of its
 * mappings. Task.
 */
void sfu_answer(uint64_t id, uint64_t sequence, bool has_rows);

#endif
