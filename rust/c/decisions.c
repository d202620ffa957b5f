// SPDX-License-Identifier: GPL-2.0-only
/*
 * Decisions: whether the current task has rows anywhere. A task without rows is left to the kernel.
 *
 * Each CPU keeps a few decisions. For other tasks, sframe_unwind_scan() in Rust scans the task's
 * mappings and decides. One bound limits the work of a scan in a sample. A second bound limits the
 * work of all scans of a CPU in a tick. The worker scans a task that has more mappings than the
 * first bound allows; its answer serves all CPUs.
 *
 * This is in C because the hook's handler may not call Rust for each sample.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ftrace.h>
#include <linux/jiffies.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/seqlock.h>

#include "decisions.h"

DEFINE_PER_CPU(struct sfu_decision[SFU_DECISIONS], sfu_decisions);

/*
 * The time for which decisions hold. `sequence` repeats after 2^31 changes of the mappings, which
 * take minutes.
 */
#define ROWS_HOLD HZ
/* Without a sequence count, two states of the mappings may have equal numbers by chance. */
#define NO_ROWS_HOLD (SFU_HAS_SEQUENCE ? 30 * HZ : HZ)
/* An unsure decision holds for a tick; an outdated answer until the worker has answered again. */
#define UNSURE_HOLD 1
#define ANSWER_HOLD (HZ / 10 + 1)

/* The work of one scan in a sample, and of all scans of a CPU in a tick; see sfu_scan_next(). */
#define SCAN_WORK 512
#define SCAN_WORK_PER_TICK (4 * SCAN_WORK)

struct scan_budget {
	unsigned long tick;
	uint32_t left;
};

static DEFINE_PER_CPU(struct scan_budget, scan_budget);
DEFINE_PER_CPU(uint32_t, sfu_scan_work);

/* The worker's answers, by `id`. One writer; a reader in an NMI does not wait for it. */
#define ANSWERS 256

static struct answer {
	seqcount_t lock;
	uint64_t id;
	uint64_t sequence;
	unsigned long when;
	bool has_rows;
} answers[ANSWERS] = { [0 ... ANSWERS - 1] = { .lock = SEQCNT_ZERO(answers) } };

void sfu_answer(uint64_t id, uint64_t sequence, bool has_rows)
{
	struct answer *answer = &answers[id % ANSWERS];

	preempt_disable();
	write_seqcount_begin(&answer->lock);
	answer->id = id;
	answer->sequence = sequence;
	answer->when = jiffies;
	answer->has_rows = has_rows;
	write_seqcount_end(&answer->lock);
	preempt_enable();
}

/* False if there is no answer, or if it is being written. */
static bool find_answer(uint64_t id, struct answer *found)
{
	const struct answer *answer = &answers[id % ANSWERS];
	unsigned int sequence = raw_read_seqcount(&answer->lock);

	*found = *answer;
	return !(sequence & 1) && !read_seqcount_retry(&answer->lock, sequence) && found->id == id;
}

static void keep(struct sfu_decision *entry, uint64_t id, uint64_t sequence, unsigned long until,
		 bool has_rows)
{
	WRITE_ONCE(entry->id, 0);
	barrier();
	WRITE_ONCE(entry->sequence, sequence & ~1ull);
	WRITE_ONCE(entry->until, until);
	WRITE_ONCE(entry->has_rows, has_rows);
	barrier();
	WRITE_ONCE(entry->id, id);
}

/*
 * The work that this CPU has left in this tick. An NMI in between may take from it too: the bound
 * is then a few times as large.
 */
static uint32_t work_left(void)
{
	struct scan_budget *budget = this_cpu_ptr(&scan_budget);

	if (READ_ONCE(budget->tick) != jiffies) {
		WRITE_ONCE(budget->tick, jiffies);
		WRITE_ONCE(budget->left, SCAN_WORK_PER_TICK);
	}
	return READ_ONCE(budget->left);
}

static void take_work(uint32_t work)
{
	struct scan_budget *budget = this_cpu_ptr(&scan_budget);
	uint32_t left = READ_ONCE(budget->left);

	WRITE_ONCE(budget->left, left - min(left, work));
}

/*
 * Decides by the worker's answer or by a scan. A scan reads the task's memory. A fault in this read
 * may itself request a stack: that stack is left to the kernel.
 */
enum sfu_decided sfu_decide(struct pt_regs *regs, unsigned long ip, unsigned long parent_ip)
{
	uint64_t id = sfu_mm_id(current->mm), sequence = sfu_mappings_sequence();
	struct sfu_decision *entry = this_cpu_ptr(&sfu_decisions[id % SFU_DECISIONS]);
	bool was_known = READ_ONCE(entry->id) == id, has_rows;
	bool had_rows = was_known && READ_ONCE(entry->has_rows);
	struct sfu_scan scan = { .pc = instruction_pointer(regs), .left = SCAN_WORK };
	unsigned long hold = UNSURE_HOLD;
	struct answer answer;
	int bit;

	sfu_code_cache_forget();
	if (find_answer(id, &answer) && time_before(jiffies, answer.when + NO_ROWS_HOLD)) {
		/*
		 * A task with rows keeps its answer. A task whose mappings change is scanned ten
		 * times a second.
		 */
		if (!answer.has_rows && answer.sequence != sequence &&
		    time_after(jiffies, answer.when + ANSWER_HOLD))
			sfu_queue_mappings();
		keep(entry, id, sequence, jiffies + ANSWER_HOLD, answer.has_rows);
		return answer.has_rows ? sfu_walk_locked() : SFU_LEAVE;
	}
	/*
	 * No work is left for a scan. A walk is safe, because each walk has its own bound, and it
	 * makes the stack of a task without rows no worse. A scan with less than SCAN_WORK would
	 * end early for a task of any size, and that task would be left to the kernel until the
	 * worker has answered.
	 */
	if (work_left() < SCAN_WORK)
		return !was_known || had_rows ? sfu_walk_locked() : SFU_LEAVE;
	bit = ftrace_test_recursion_trylock(ip, parent_ip);
	if (bit < 0)
		return SFU_LEAVE;
	if (!sfu_lock_mappings()) {
		ftrace_test_recursion_unlock(bit);
		return !was_known || had_rows ? SFU_CUT : SFU_LEAVE;
	}
	switch (sframe_unwind_scan(&scan)) {
	case SFU_ROWS:
		has_rows = true;
		hold = ROWS_HOLD;
		break;
	case SFU_NO_ROWS:
		has_rows = false;
		hold = NO_ROWS_HOLD;
		break;
	case SFU_UNSURE:
		has_rows = true;
		break;
	default:
		has_rows = had_rows;
		if (sfu_queue_mappings())
			hold = ANSWER_HOLD;
	}
	ftrace_test_recursion_unlock(bit);
	take_work(scan.spent / SFU_VISIT);
	/*
	 * Only the walk of this sample pays for the scan, not the next walk on this CPU, of another
	 * task.
	 */
	this_cpu_write(sfu_scan_work, has_rows ? scan.spent : 0);
	if (sfu_mappings_sequence() != sequence || (sequence & 1))
		hold = UNSURE_HOLD;
	keep(entry, id, sequence, jiffies + hold, has_rows);
	if (has_rows)
		return SFU_WALK;
	sfu_unlock_mappings();
	return SFU_LEAVE;
}
