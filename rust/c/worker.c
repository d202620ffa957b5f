// SPDX-License-Identifier: GPL-2.0-only
/*
 * The worker: it faults in pages that a walk missed where it could not wait, and looks at files that a
 * walk has seen and of which nothing is known.
 *
 * Policy that stays in C, as each part reads the kernel's layouts: which file systems are trusted
 * (fs_is_trusted()), how many slots one user may fill, and how much time is spent on one user's files.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/irq_work.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/userfaultfd_k.h>
#include <linux/workqueue.h>

#include "internal.h"

/*
 * Pages that a walk in IRQ or NMI missed, and files that a walk has seen and of which nothing is known. A
 * slot is taken by its `state`, so any context can fill a slot while the worker empties another. If all
 * slots are taken, a page or file is not noted.
 */
#define MISSING_SLOTS 64
/* The most slots that one user other than root may fill. */
#define MISSING_SLOTS_OF_USER 32
#define MISSING_TRIES 10

enum { SLOT_FREE, SLOT_BUSY, SLOT_READY };

#define WHAT_FILE 1

static struct missing {
	atomic_t state;
	unsigned int tries;
	uint32_t user;
	pid_t pid;
	struct mm_struct *mm;
	/* The address of the page; or an address in the file's mapping, and WHAT_FILE. */
	unsigned long what;
} missing[MISSING_SLOTS];

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

static uint32_t current_user_id(void)
{
	return from_kuid(&init_user_ns, current_uid());
}

/*
 * Two functions, so that each needs little stack. 0: a slot may be filled. 1: a slot has the same page or
 * file.
 */
static noinline int is_queued(unsigned long what)
{
	uint32_t user = current_user_id();
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

static noinline bool queue(unsigned long what)
{
	struct missing *slot;

	for (slot = missing; slot < missing + MISSING_SLOTS; slot++) {
		if (atomic_cmpxchg(&slot->state, SLOT_FREE, SLOT_BUSY) != SLOT_FREE)
			continue;
		mmgrab(current->mm);
		slot->mm = current->mm;
		slot->what = what;
		slot->user = current_user_id();
		slot->pid = task_tgid_nr(current);
		slot->tries = 0;
		atomic_set_release(&slot->state, SLOT_READY);
		irq_work_queue(what & WHAT_FILE ? &file_kick : &page_kick);
		return true;
	}
	return false;
}

static bool queue_once(unsigned long what)
{
	int queued;

	if (!current->mm || what >= TASK_SIZE_MAX)
		return false;
	queued = is_queued(what);
	return queued ? queued > 0 : queue(what);
}

bool sfu_queue_fault_in(uint64_t address)
{
	return queue_once(address & PAGE_MASK);
}

bool sfu_queue_file(uint64_t address)
{
	return queue_once((address & PAGE_MASK) | WHAT_FILE);
}

/*
 * File systems that no user controls. A worker that waits for FUSE or for a server cannot be stopped by
 * anyone. Pages of files on other file systems come in when a task needs them. (EXT4_SUPER_MAGIC is the
 * magic number of ext2 and ext3, too.)
 */
static bool fs_is_trusted(struct vm_area_struct *vma)
{
	if (!vma->vm_file || (vma->vm_flags & (VM_IO | VM_PFNMAP)) || userfaultfd_armed(vma))
		return false;
	switch (file_inode(vma->vm_file)->i_sb->s_magic) {
	case BTRFS_SUPER_MAGIC:
	case EROFS_SUPER_MAGIC_V1:
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
	bool unlocked = false;

	if (vma && fs_is_trusted(vma))
		fixup_user_fault(slot->mm, slot->what, FAULT_FLAG_REMOTE, &unlocked);
	mmap_read_unlock(slot->mm);
}

/*
 * The time that the worker spends on files of one user: at most a tenth of each interval. Without this
 * limit a user with large files would keep the worker from all others. Users whose numbers are equal
 * modulo USERS share the time.
 */
#define USERS 64
#define WHILE (10 * HZ)

static struct {
	unsigned long since;
	unsigned long spent;
} users[USERS];

static void look_at_file(struct vm_area_struct *vma, const struct missing *slot)
{
	unsigned long started = jiffies;
	typeof(&users[0]) user = &users[slot->user % USERS];
	struct sfu_table_state seen = {
		.user = slot->user, .owner = slot->user, .pid = slot->pid,
	};
	static char path[SFU_PATH];
	struct file *file = NULL;
	bool may_read = false;

	if (vma && vma->vm_file && (vma->vm_flags & VM_EXEC) &&
	    S_ISREG(file_inode(vma->vm_file)->i_mode)) {
		file = get_file(vma->vm_file);
		may_read = fs_is_trusted(vma);
		seen.start = vma->vm_start;
		seen.end = vma->vm_end;
	}
	mmap_read_unlock(slot->mm);
	if (!file)
		return;
	if (time_after(jiffies, user->since + WHILE)) {
		user->since = jiffies;
		user->spent = 0;
	}
	/* `path` is static: only one work looks at files. */
	seen.path = d_path(file_user_path(file), path, sizeof(path));
	if (IS_ERR(seen.path))
		seen.path = NULL;
	if (user->spent < WHILE / 10)
		sframe_unwind_index_file(file, &seen, may_read);
	user->spent += jiffies - started;
	fput(file);
}

/*
 * -EAGAIN if the task's mappings were locked. The worker never waits for the lock: its owner may sleep for
 * long.
 */
static int process_slot(const struct missing *slot)
{
	struct vm_area_struct *vma;
	int ret = 0;

	if (!mmget_not_zero(slot->mm))
		return 0;
	if (mmap_read_trylock(slot->mm)) {
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

		if (atomic_read_acquire(&slot->state) != SLOT_READY || (slot->what & WHAT_FILE) != (own == &file_work))
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
	/* A slot that was filled meanwhile has queued the work by itself. */
	if (again)
		queue_delayed_work(workqueue, own, HZ / 50 + 1);
}

int sfu_worker_start(void)
{
	INIT_DELAYED_WORK(&page_work, process_slots);
	INIT_DELAYED_WORK(&file_work, process_slots);
	/*
	 * No limit on active works: a page does not wait for a file. A work that runs and is queued again counts
	 * as two.
	 */
	workqueue = alloc_workqueue("sframe_unwind", WQ_UNBOUND, 0);
	return workqueue ? 0 : -ENOMEM;
}

void sfu_worker_stop(void)
{
	int i;

	irq_work_sync(&page_kick);
	irq_work_sync(&file_kick);
	cancel_delayed_work_sync(&page_work);
	cancel_delayed_work_sync(&file_work);
	destroy_workqueue(workqueue);
	for (i = 0; i < MISSING_SLOTS; i++)
		if (atomic_read(&missing[i].state) == SLOT_READY)
			mmdrop(missing[i].mm);
}
