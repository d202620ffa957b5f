// SPDX-License-Identifier: GPL-2.0-only
/*
 * The worker does three jobs. It faults in pages that a walk missed and could not wait for. It
 * looks for rows in seen files that have no entry in tables.c, and requests regions for code of no
 * file. It scans the mappings of tasks that have too many mappings for a sample.
 *
 * Policy that stays in C: fs_is_trusted() reads super blocks. See
 * Documentation/decisions/policy-in-c.rst.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/blkdev.h>
#include <linux/dcache.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kthread.h>
#include <linux/magic.h>
#include <linux/major.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/userfaultfd_k.h>

#include "decisions.h"

/*
 * Whether page faults in a mapped file, and reads of the file if `reads` is set, end without the
 * help of a process. Nobody can stop the worker while it waits for FUSE, for a server, or for a
 * listener of fanotify. Block devices that a process may serve are not trusted either, nor are
 * their partitions: a loop device may lie on a file of FUSE, and so may an image of erofs without a
 * block device. Pages of other files come in when a task needs them. (EXT4_SUPER_MAGIC is the magic
 * number of ext2 and ext3 too.)
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

static void fault_in_page(struct vm_area_struct *vma, const struct sfu_job *job)
{
	/*
	 * NULL: the fault must not drop the lock. Otherwise another thread could map a file of FUSE
	 * there meanwhile.
	 */
	if (vma && fs_is_trusted(vma, false))
		fixup_user_fault(job->mm, job->what, FAULT_FLAG_REMOTE, NULL);
	mmap_read_unlock(job->mm);
}

static void look_at_file(struct vm_area_struct *vma, const struct sfu_job *job)
{
	uint64_t started = ktime_get_ns();
	struct sfu_table_state seen = {
		.user = job->user, .owner = job->user, .pid = job->pid,
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
	mmap_read_unlock(job->mm);
	if (!file && !is_made)
		return;
	if (file) {
		/* `path` is static: only one work looks at files. */
		seen.path = d_path(file_user_path(file), path, sizeof(path));
		if (IS_ERR(seen.path))
			seen.path = NULL;
	}
	if (sfu_has_allowance(job->user)) {
		if (file)
			sframe_unwind_index_file(file, &seen, may_read);
		if (is_made)
			sfu_region_request(sfu_mm_id(job->mm), job->pid, job->user, seen.start,
					   seen.end);
	}
	sfu_take_allowance(job->user, started);
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
static int look_at_mappings(const struct sfu_job *job)
{
	struct sfu_scan scan = {};
	uint32_t found = SFU_UNFINISHED;
	uint64_t id, sequence;
	int i, ret = 0;
	uint64_t started = ktime_get_ns();

	sfu_queue_for(job);
	kthread_use_mm(job->mm);
	id = sfu_mm_id(job->mm);
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
	kthread_unuse_mm(job->mm);
	sfu_queue_for(NULL);
	sfu_take_allowance(job->user, started);
	if (!ret)
		sfu_answer(id, sequence, found == SFU_ROWS);
	return ret;
}

/*
 * -EAGAIN if the task's mappings were locked. The worker never waits for the lock: its owner may
 * sleep for long.
 */
static int process(const struct sfu_job *job)
{
	struct vm_area_struct *vma;
	int ret = 0;

	if (!mmget_not_zero(job->mm))
		return 0;
	if (job->what == SFU_JOB_MAPPINGS) {
		ret = look_at_mappings(job);
	} else if (mmap_read_trylock(job->mm)) {
		vma = vma_lookup(job->mm, job->what & PAGE_MASK);
		if (job->what & SFU_JOB_FILE)
			look_at_file(vma, job);
		else
			fault_in_page(vma, job);
	} else {
		ret = -EAGAIN;
	}
	/* mmput_async(): the last user of the mm may wait for a file system that hangs. */
	mmput_async(job->mm);
	return ret;
}

int sfu_worker_start(void)
{
	return sfu_queue_start(process);
}

void sfu_worker_stop(void)
{
	sfu_queue_stop();
}
