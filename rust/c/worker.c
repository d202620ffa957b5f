// SPDX-License-Identifier: GPL-2.0-only
/*
 * The worker does three jobs. It faults in pages that a walk missed and could not wait for. It
 * looks for rows in seen files that have no entry in tables.c, and requests regions for code of
 * no file. It scans the mappings of tasks that have too many mappings for a sample.
 *
 * Policy that stays in C: fs_is_trusted() reads super blocks. Slots and allowances are here because any
 * context fills slots without calling Rust. See Documentation/decisions/policy-in-c.rst.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/blkdev.h>
#include <linux/dcache.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/irq_work.h>
#include <linux/jhash.h>
#include <linux/kthread.h>
#include <linux/magic.h>
#include <linux/major.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/userfaultfd_k.h>
#include <linux/workqueue.h>

#include "internal.h"

/*
 * Missed pages, seen files and tasks, one in each slot. A slot is taken by its `state`, so any
 * context can fill a slot while the worker empties another. If all slots are taken, a page, file or
 * task is not queued.
 */
#define MISSING_SLOTS 64
/* The most slots that one user other than root may fill. */
#define MISSING_SLOTS_OF_USER 32
#define MISSING_TRIES 10

enum { SLOT_FREE, SLOT_BUSY, SLOT_READY };

#define WHAT_FILE 1
#define WHAT_MAPPINGS 2

static struct missing {
	atomic_t state;
	unsigned int tries;
	uint32_t user;
	pid_t pid;
	struct mm_struct *mm;
	/*
	 * The address of the page; or an address in the file's mapping, with WHAT_FILE; or
	 * WHAT_MAPPINGS.
	 */
	unsigned long what;
} missing[MISSING_SLOTS];

bool sfu_is_stopping;

static struct workqueue_struct *workqueue;
static struct delayed_work page_work, file_work;

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

/* The slot whose task's mappings the worker scans, and the worker's task during this scan. */
static const struct missing *scanned;
static const struct task_struct *scanner;

/*
 * The charged user, and below the process, that a slot is filled for: while the worker scans, those
 * of the scanned slot.
 */
static uint32_t current_user_id(void)
{
	return READ_ONCE(scanner) == current ? scanned->user : sfu_charged_user(current_cred());
}

static pid_t current_pid_of_slot(void)
{
	return READ_ONCE(scanner) == current ? scanned->pid : task_tgid_nr(current);
}

/*
 * is_queued() and queue() are two functions, so that each needs little stack. is_queued() returns 0
 * if the caller may fill a slot, 1 if a slot already has this page or file, or -ENOSPC.
 */
static noinline int is_queued(unsigned long what, uint32_t user)
{
	int left = user ? MISSING_SLOTS_OF_USER : MISSING_SLOTS;
	const struct missing *slot;

	for (slot = missing; slot < missing + MISSING_SLOTS; slot++) {
		if (atomic_read(&slot->state) != SLOT_READY)
			continue;
		if (READ_ONCE(slot->mm) == current->mm && READ_ONCE(slot->what) == what)
			return 1;
		left -= READ_ONCE(slot->user) == user;
	}
	return left > 0 ? 0 : -ENOSPC;
}

static noinline bool queue(unsigned long what, uint32_t user)
{
	struct missing *slot;

	for (slot = missing; slot < missing + MISSING_SLOTS; slot++) {
		if (atomic_cmpxchg(&slot->state, SLOT_FREE, SLOT_BUSY) != SLOT_FREE)
			continue;
		mmgrab(current->mm);
		slot->mm = current->mm;
		slot->what = what;
		slot->user = user;
		slot->pid = current_pid_of_slot();
		slot->tries = 0;
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
 * Whether page faults in a mapped file, and reads of the file if `reads` is set, end without the
 * help of a process. Nobody can stop the worker while it waits for FUSE, for a server, or for a
 * listener of fanotify. Block devices that a process may serve are not trusted either, nor are their
 * partitions: a loop device may lie on a file of FUSE, and so may an image of erofs without a block
 * device. Pages of other files come in when a task needs them.
 * (EXT4_SUPER_MAGIC is the magic number of ext2 and ext3 too.)
 */
static bool fs_is_trusted(struct vm_area_struct *vma, bool reads)
{
	const struct super_block *super;

	if (!vma->vm_file || (vma->vm_flags & (VM_IO | VM_PFNMAP)) || userfaultfd_armed(vma))
		return false;
	if (sfu_awaits_permission(vma->vm_file, reads))
		return false;
	super = file_inode(vma->vm_file)->i_sb;
	if (super->s_bdev) {
		switch (super->s_bdev->bd_disk->major) {
		case LOOP_MAJOR:
		case NBD_MAJOR:
			return false;
		}
	}
	switch (super->s_magic) {
	case EROFS_SUPER_MAGIC_V1:
		return super->s_bdev;
	case BTRFS_SUPER_MAGIC:
	case EXT4_SUPER_MAGIC:
	case F2FS_SUPER_MAGIC:
	case SQUASHFS_MAGIC:
	case TMPFS_MAGIC:
	case XFS_SUPER_MAGIC:
		return true;
	}
	return false;
}

static void fault_in_page(struct vm_area_struct *vma, const struct missing *slot)
{
	/*
	 * NULL: the fault must not drop the lock. Otherwise another thread could map a file of FUSE
	 * there meanwhile.
	 */
	if (vma && fs_is_trusted(vma, false))
		fixup_user_fault(slot->mm, slot->what, FAULT_FLAG_REMOTE, NULL);
	mmap_read_unlock(slot->mm);
}

/*
 * The time that the worker spends on files of one user: a tenth of all time, and up to a second
 * without a pause. A user who has used more waits. Without this limit a user with large files would
 * keep the worker from all others. Users share an allowance by a secret hash, but root has its own.
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

static uint32_t allowance_key;

static struct allowance *allowance_of(uint32_t user)
{
	return &allowances[user ? 1 + jhash_1word(user, allowance_key) % (ALLOWANCES - 1) : 0];
}

/* Any context. */
static bool has_allowance(uint32_t user)
{
	unsigned long until = READ_ONCE(allowance_of(user)->empty_until);

	return !until || time_after(jiffies, until);
}

/* Takes the time since `started`, a ktime. Only the worker calls this function. */
static void take_allowance(uint32_t user, uint64_t started)
{
	struct allowance *allowance = allowance_of(user);
	uint64_t now = ktime_get_ns(), waited = min(now - allowance->when, (uint64_t)100 * NSEC_PER_SEC);

	allowance->left = min(allowance->left + (int64_t)waited / ALLOWANCE_PART, (int64_t)ALLOWANCE_MOST) -
			  (int64_t)(now - started);
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
	return has_allowance(current_user_id()) && queue_once((address & PAGE_MASK) | WHAT_FILE);
}

bool sfu_queue_mappings(void)
{
	return has_allowance(current_user_id()) && queue_once(WHAT_MAPPINGS);
}

static void look_at_file(struct vm_area_struct *vma, const struct missing *slot)
{
	uint64_t started = ktime_get_ns();
	struct sfu_table_state seen = {
		.user = slot->user, .owner = slot->user, .pid = slot->pid,
	};
	static char path[SFU_PATH];
	struct file *file = NULL;
	bool may_read = false, is_made = false;

	if (vma && (vma->vm_flags & VM_EXEC)) {
		seen.start = vma->vm_start;
		seen.end = vma->vm_end;
		is_made = !sfu_is_of_file(vma);
		if (vma->vm_file && S_ISREG(file_inode(vma->vm_file)->i_mode)) {
			file = get_file(vma->vm_file);
			may_read = fs_is_trusted(vma, true);
		}
	}
	mmap_read_unlock(slot->mm);
	if (!file && !is_made)
		return;
	if (file) {
		/* `path` is static: only one work looks at files. */
		seen.path = d_path(file_user_path(file), path, sizeof(path));
		if (IS_ERR(seen.path))
			seen.path = NULL;
	}
	if (has_allowance(slot->user)) {
		if (file)
			sframe_unwind_index_file(file, &seen, may_read);
		if (is_made)
			sfu_region_request(sfu_mm_id(slot->mm), slot->pid, slot->user, seen.start, seen.end);
	}
	take_allowance(slot->user, started);
	if (file)
		fput(file);
}

/*
 * The work of a scan between two points at which other tasks run, and the number of such parts in a
 * whole scan: all mappings, twice.
 */
#define SCAN_WORK 1024
#define SCANS 256

/*
 * Scans a task's mappings like the task's own scan in a sample, but to the end. It waits for no
 * lock. -EAGAIN if the mappings were locked, on kernels where a walk has to lock them.
 */
static int look_at_mappings(const struct missing *slot)
{
	struct sfu_scan scan = {};
	uint32_t found = SFU_UNFINISHED;
	uint64_t id, sequence;
	int i, ret = 0;
	uint64_t started = ktime_get_ns();

	scanned = slot;
	WRITE_ONCE(scanner, current);
	kthread_use_mm(slot->mm);
	id = sfu_mm_id(slot->mm);
	sequence = sfu_mappings_sequence();
	for (i = 0; i < SCANS && found == SFU_UNFINISHED && !READ_ONCE(sfu_is_stopping); i++) {
		if (!sfu_lock_mappings()) {
			ret = -EAGAIN;
			break;
		}
		scan.left = SCAN_WORK;
		found = sframe_unwind_scan(&scan);
		sfu_unlock_mappings();
		cond_resched_tasks_rcu_qs();
	}
	kthread_unuse_mm(slot->mm);
	WRITE_ONCE(scanner, NULL);
	take_allowance(slot->user, started);
	if (!ret)
		sfu_answer(id, sequence, found == SFU_ROWS);
	return ret;
}

/*
 * -EAGAIN if the task's mappings were locked. The worker never waits for the lock: its owner may
 * sleep for long.
 */
static int process_slot(const struct missing *slot)
{
	struct vm_area_struct *vma;
	int ret = 0;

	if (!mmget_not_zero(slot->mm))
		return 0;
	if (slot->what == WHAT_MAPPINGS) {
		ret = look_at_mappings(slot);
	} else if (mmap_read_trylock(slot->mm)) {
		vma = vma_lookup(slot->mm, slot->what & PAGE_MASK);
		if (slot->what & WHAT_FILE)
			look_at_file(vma, slot);
		else
			fault_in_page(vma, slot);
	} else {
		ret = -EAGAIN;
	}
	/* mmput_async(): the last user of the mm may wait for a file system that hangs. */
	mmput_async(slot->mm);
	return ret;
}

static void process_slots(struct work_struct *work)
{
	struct delayed_work *own = to_delayed_work(work);
	bool again = false;
	int i;

	for (i = 0; i < MISSING_SLOTS; i++) {
		struct missing *slot = &missing[i];

		if (atomic_read_acquire(&slot->state) != SLOT_READY || !(slot->what & ~PAGE_MASK) != (own == &page_work))
			continue;
		if (process_slot(slot) && ++slot->tries < MISSING_TRIES) {
			again = true;
			continue;
		}
		atomic_set(&slot->state, SLOT_BUSY);
		mmdrop(slot->mm);
		WRITE_ONCE(slot->mm, NULL);
		atomic_set_release(&slot->state, SLOT_FREE);
	}
	/* A slot that was filled meanwhile has itself queued the work. */
	if (again)
		queue_delayed_work(workqueue, own, HZ / 50 + 1);
}

int sfu_worker_start(void)
{
	get_random_bytes(&allowance_key, sizeof(allowance_key));
	INIT_DELAYED_WORK(&page_work, process_slots);
	INIT_DELAYED_WORK(&file_work, process_slots);
	/*
	 * No limit on active works, so that a page does not wait for a file. A work that runs and
	 * is queued again counts twice.
	 */
	workqueue = alloc_workqueue("sframe_unwind", WQ_UNBOUND, 0);
	return workqueue ? 0 : -ENOMEM;
}

void sfu_worker_stop(void)
{
	int i;

	WRITE_ONCE(sfu_is_stopping, true);
	/*
	 * A scan of mappings that runs now may still queue a page. So file_work ends first, then the kicks, which
	 * queue works, then both works: now nothing is queued any more.
	 */
	cancel_delayed_work_sync(&file_work);
	irq_work_sync(&page_kick);
	irq_work_sync(&file_kick);
	cancel_delayed_work_sync(&page_work);
	cancel_delayed_work_sync(&file_work);
	destroy_workqueue(workqueue);
	for (i = 0; i < MISSING_SLOTS; i++)
		if (atomic_read(&missing[i].state) == SLOT_READY)
			mmdrop(missing[i].mm);
}
