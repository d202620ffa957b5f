// SPDX-License-Identifier: GPL-2.0-only
/*
 * The worker's queue of jobs. Hooks and walks fill it. A workqueue empties it, by a function of
 * worker.c.
 *
 * Policy that stays in C: slots and allowances, because any context fills slots without calling
 * Rust. See Documentation/decisions/policy-in-c.rst.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>

#include "internal.h"

/*
 * One job in each slot. A slot is taken by its `state`, so any context can fill a slot while the
 * worker empties another. If all slots are taken, a job is not queued.
 */
#define SLOTS 64
/* The most slots that one user other than root may fill. */
#define SLOTS_OF_USER 32
/*
 * A job that fails is tried again after a 50th of a second, for two seconds after its first try.
 * Pages are also tried again when a reader ends.
 */
#define TRY_AGAIN_AFTER (HZ / 50 + 1)
#define TRY_FOR (2 * HZ)

enum { SLOT_FREE, SLOT_BUSY, SLOT_READY };

static struct slot {
	atomic_t state;
	/* In jiffies: a try after this time is the last one. 0: no try yet. */
	unsigned long until;
	struct sfu_job job;
} slots[SLOTS];

bool sfu_is_stopping;

static struct workqueue_struct *workqueue;
static struct delayed_work page_work, file_work;
/* The worker's function. */
static int (*process)(const struct sfu_job *job);

static void kick_pages(struct irq_work *work)
{
	mod_delayed_work(workqueue, &page_work, 0);
}

static void kick_files(struct irq_work *work)
{
	mod_delayed_work(workqueue, &file_work, 0);
}

static struct irq_work page_kick = IRQ_WORK_INIT(kick_pages);
static struct irq_work file_kick = IRQ_WORK_INIT(kick_files);

/* The job of a scan, and the worker's task during this scan: see sfu_queue_for(). */
static const struct sfu_job *scanned;
static const struct task_struct *scanner;

void sfu_queue_for(const struct sfu_job *job)
{
	if (job)
		scanned = job;
	WRITE_ONCE(scanner, job ? current : NULL);
}

/*
 * The charged user, and below the process, that a slot is filled for: while the worker scans, those
 * of the scan's job.
 */
static uint32_t current_user_id(void)
{
	return READ_ONCE(scanner) == current ?
	       scanned->user : sfu_charged_user(current_cred(), READ_ONCE(current->nsproxy));
}

static pid_t current_pid_of_job(void)
{
	return READ_ONCE(scanner) == current ? scanned->pid : task_tgid_nr(current);
}

/*
 * is_queued() and queue() are two functions, so that each needs little stack. is_queued() returns 0
 * if the caller may fill a slot, 1 if a slot already has this job, or -ENOSPC.
 */
static noinline int is_queued(unsigned long what, uint32_t user)
{
	int left = user ? SLOTS_OF_USER : SLOTS;
	const struct slot *slot;

	for (slot = slots; slot < slots + SLOTS; slot++) {
		if (atomic_read(&slot->state) != SLOT_READY)
			continue;
		if (READ_ONCE(slot->job.mm) == current->mm && READ_ONCE(slot->job.what) == what)
			return 1;
		left -= READ_ONCE(slot->job.user) == user;
	}
	return left > 0 ? 0 : -ENOSPC;
}

static noinline bool queue(unsigned long what, uint32_t user)
{
	struct slot *slot;

	for (slot = slots; slot < slots + SLOTS; slot++) {
		if (atomic_cmpxchg(&slot->state, SLOT_FREE, SLOT_BUSY) != SLOT_FREE)
			continue;
		mmgrab(current->mm);
		slot->job.mm = current->mm;
		slot->job.what = what;
		slot->job.user = user;
		slot->job.pid = current_pid_of_job();
		slot->until = 0;
		atomic_set_release(&slot->state, SLOT_READY);
		irq_work_queue(what & ~PAGE_MASK ? &file_kick : &page_kick);
		return true;
	}
	return false;
}

static bool queue_once(unsigned long what)
{
	uint32_t user = current_user_id();
	int queued;

	if (!current->mm || what >= TASK_SIZE_MAX || READ_ONCE(sfu_is_stopping))
		return false;
	queued = is_queued(what, user);
	return queued ? queued > 0 : queue(what, user);
}

/*
 * The time that the worker spends on files of one user: a tenth of all time, and up to a second
 * without a pause. A user who has used more waits. Without this limit a user with large files would
 * keep the worker from all others. Users share an allowance: see sfu_number_of_user().
 */
#define ALLOWANCES 256
#define ALLOWANCE_PART 10
#define ALLOWANCE_MOST NSEC_PER_SEC

static struct allowance {
	/* In nanoseconds, at `when`, which is a ktime. Negative if the user has overdrawn it. */
	int64_t left;
	uint64_t when;
	/* In jiffies: the allowance is empty until then. 0: it is not empty. */
	unsigned long empty_until;
} allowances[ALLOWANCES];

static struct allowance *allowance_of(uint32_t user)
{
	return &allowances[sfu_number_of_user(user, ALLOWANCES)];
}

bool sfu_has_allowance(uint32_t user)
{
	unsigned long until = READ_ONCE(allowance_of(user)->empty_until);

	return !until || time_after(jiffies, until);
}

void sfu_take_allowance(uint32_t user, uint64_t started)
{
	struct allowance *allowance = allowance_of(user);
	uint64_t now = ktime_get_ns();
	uint64_t waited = min(now - allowance->when, (uint64_t)100 * NSEC_PER_SEC);
	int64_t earned = allowance->left + (int64_t)waited / ALLOWANCE_PART;

	allowance->left = min_t(int64_t, earned, ALLOWANCE_MOST) - (int64_t)(now - started);
	allowance->when = now;
	WRITE_ONCE(allowance->empty_until, allowance->left > 0 ? 0 :
		   (jiffies + nsecs_to_jiffies(-allowance->left * ALLOWANCE_PART)) ?: 1);
}

bool sfu_queue_fault_in(uint64_t address)
{
	return queue_once(address & PAGE_MASK);
}

bool sfu_queue_file(uint64_t address)
{
	return sfu_has_allowance(current_user_id()) &&
	       queue_once((address & PAGE_MASK) | SFU_JOB_FILE);
}

bool sfu_queue_mappings(void)
{
	return sfu_has_allowance(current_user_id()) && queue_once(SFU_JOB_MAPPINGS);
}

static void process_slots(struct work_struct *work)
{
	struct delayed_work *own = to_delayed_work(work);
	bool again = false;
	int i;

	for (i = 0; i < SLOTS; i++) {
		struct slot *slot = &slots[i];

		if (atomic_read_acquire(&slot->state) != SLOT_READY ||
		    !(slot->job.what & ~PAGE_MASK) != (own == &page_work))
			continue;
		if (!slot->until)
			slot->until = (jiffies + TRY_FOR) ?: 1;
		slot->job.is_last_try = time_after(jiffies, slot->until);
		if (process(&slot->job) && !slot->job.is_last_try) {
			again = true;
			continue;
		}
		atomic_set(&slot->state, SLOT_BUSY);
		mmdrop(slot->job.mm);
		WRITE_ONCE(slot->job.mm, NULL);
		atomic_set_release(&slot->state, SLOT_FREE);
	}
	/* A slot that was filled meanwhile has itself queued the work. */
	if (again)
		queue_delayed_work(workqueue, own, TRY_AGAIN_AFTER);
}

void sfu_queue_reader(struct work_struct *reader)
{
	queue_work(workqueue, reader);
}

void sfu_queue_reader_ends(void)
{
	mod_delayed_work(workqueue, &page_work, 0);
}

int sfu_queue_start(int (*of_worker)(const struct sfu_job *job))
{
	process = of_worker;
	INIT_DELAYED_WORK(&page_work, process_slots);
	INIT_DELAYED_WORK(&file_work, process_slots);
	/*
	 * No limit on active works, so that a page does not wait for a file. A work that runs and
	 * is queued again counts twice.
	 */
	workqueue = alloc_workqueue("sframe_unwind", WQ_UNBOUND, 0);
	return workqueue ? 0 : -ENOMEM;
}

void sfu_queue_stop(void)
{
	int i;

	WRITE_ONCE(sfu_is_stopping, true);
	/*
	 * A scan of mappings that runs now may still queue a page. So file_work ends first, then
	 * the kicks, which queue works, then both works: now nothing is queued any more.
	 */
	cancel_delayed_work_sync(&file_work);
	irq_work_sync(&page_kick);
	irq_work_sync(&file_kick);
	cancel_delayed_work_sync(&page_work);
	cancel_delayed_work_sync(&file_work);
	destroy_workqueue(workqueue);
	for (i = 0; i < SLOTS; i++)
		if (atomic_read(&slots[i].state) == SLOT_READY)
			mmdrop(slots[i].job.mm);
}
