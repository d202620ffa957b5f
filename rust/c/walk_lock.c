// SPDX-License-Identifier: GPL-2.0-only
/*
 * On kernels whose mappings have no sequence count, a walk holds mmap_lock. A walk never waits for
 * the lock. The caller of a walk may have interrupts off and hold a lock that the wake-up of a
 * waiter takes. Then an irq_work releases mmap_lock, as BPF does for its stacks. Until the irq_work
 * runs, further walks of this mm on this CPU use the lock that is held: the timer of perf may take
 * several samples in one interrupt.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>

#include "walk_lock.h"

#if !SFU_SPECULATES
enum { LOCK_FREE, LOCK_IN_USE, LOCK_PENDING, LOCK_IN_RELEASE };

static DEFINE_PER_CPU(struct walk_lock {
	/*
	 * Not LOCK_FREE from before mmap_lock is taken until after it is released. Only this CPU
	 * changes the state, except for `drop`. An interrupt restores the state, or does not use
	 * the lock.
	 */
	int state;
	bool is_released_later;
	/* A number that differs for each time the lock is taken on this CPU; even. */
	uint32_t number;
	struct mm_struct *mm;
	struct irq_work release;
	struct work_struct drop;
}, walk_lock);

static void set_state(struct walk_lock *own, int state)
{
	/*
	 * Pairs with cmpxchg() of the next user: a user that reads this state reads the other
	 * fields as they are now.
	 */
	smp_store_release(&own->state, state);
}

uint32_t sfu_lock_number(void)
{
	return this_cpu_read(walk_lock.number);
}

/*
 * The release of the lock may wake a task that frees the mm, so this CPU holds the mm until after
 * the release.
 */
static void drop_mm(struct work_struct *work)
{
	struct walk_lock *own = container_of(work, struct walk_lock, drop);

	mmdrop(own->mm);
	set_state(own, LOCK_FREE);
}

static void release_later(struct irq_work *work)
{
	struct walk_lock *own = container_of(work, struct walk_lock, release);
	struct mm_struct *mm = own->mm;

	/*
	 * If an NMI right before this used the lock, too, it queued the work again, and the work
	 * runs twice.
	 */
	if (cmpxchg(&own->state, LOCK_PENDING, LOCK_IN_RELEASE) != LOCK_PENDING)
		return;
	mmap_read_unlock_non_owner(mm);
	/* An interrupt cannot free a mm. */
	if (atomic_add_unless(&mm->mm_count, -1, 1))
		set_state(own, LOCK_FREE);
	else
		schedule_work(&own->drop);
}

void sfu_locks_start(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct walk_lock *own = per_cpu_ptr(&walk_lock, cpu);

		init_irq_work(&own->release, release_later);
		INIT_WORK(&own->drop, drop_mm);
	}
}

void sfu_locks_stop(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		irq_work_sync(&per_cpu_ptr(&walk_lock, cpu)->release);
		flush_work(&per_cpu_ptr(&walk_lock, cpu)->drop);
	}
}

bool sfu_lock_mappings_by_lock(void)
{
	struct mm_struct *mm = current->mm;
	struct walk_lock *own;

	preempt_disable();
	own = this_cpu_ptr(&walk_lock);
	/* With interrupts off, this CPU's irq_work does not run until the walk has ended. */
	if (irqs_disabled() && READ_ONCE(own->mm) == mm &&
	    cmpxchg(&own->state, LOCK_PENDING, LOCK_IN_USE) == LOCK_PENDING)
		return true;
	if (cmpxchg(&own->state, LOCK_FREE, LOCK_IN_USE) == LOCK_FREE) {
		if (mmap_read_trylock(mm)) {
			own->is_released_later = irqs_disabled();
			if (own->is_released_later) {
				mmgrab(mm);
				/*
				 * For lockdep, released here: later an irq_work releases the lock,
				 * and no task.
				 */
				rwsem_release(&mm->mmap_lock.dep_map, _RET_IP_);
			}
			WRITE_ONCE(own->mm, mm);
			own->number += 2;
			return true;
		}
		set_state(own, LOCK_FREE);
	}
	preempt_enable();
	return false;
}

void sfu_unlock_mappings_by_lock(void)
{
	struct walk_lock *own = this_cpu_ptr(&walk_lock);

	if (own->is_released_later) {
		set_state(own, LOCK_PENDING);
		irq_work_queue(&own->release);
	} else {
		mmap_read_unlock(own->mm);
		set_state(own, LOCK_FREE);
	}
	preempt_enable();
}
#endif
