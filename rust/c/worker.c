// SPDX-License-Identifier: GPL-2.0-only
/*
 * The worker does three jobs. It has pages faulted in that a walk missed and could not wait for. It
 * looks for rows in seen files that have no entry in tables.c, and requests regions for code of no
 * file. It scans the mappings of tasks that have too many mappings for a sample.
 *
 * The worker enters no file system, because nobody could stop it while it waits for FUSE, for a
 * server, or for a block device that a process serves. It reads bytes of files that are in memory;
 * readers.c brings the others there, and the worker tries again.
 *
 * Policy that stays in C: which mappings have pages that can be faulted in. See
 * Documentation/decisions/policy-in-c.rst.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hugetlb.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/userfaultfd_k.h>

#include "decisions.h"
#include "files.h"

/*
 * Whether a page of this mapping can be faulted in by its file's bytes. A fault in a mapping that
 * userfaultfd watches waits for a process. Pages of hugetlbfs are counted in huge pages.
 */
static bool has_file_pages(struct vm_area_struct *vma)
{
	return vma && vma->vm_file && S_ISREG(file_inode(vma->vm_file)->i_mode) &&
	       !(vma->vm_flags & (VM_IO | VM_PFNMAP)) && !is_vm_hugetlb_page(vma) &&
	       !userfaultfd_armed(vma);
}

/* -EAGAIN until a reader has faulted in a page whose bytes were in memory. */
static int fault_in_page(struct vm_area_struct *vma, const struct sfu_job *job)
{
	unsigned long address = job->what & PAGE_MASK;
	struct file *file = NULL;
	uint64_t offset = 0;
	bool cached, started;

	if (has_file_pages(vma) && sfu_may_read_ahead(vma->vm_file)) {
		file = get_file(vma->vm_file);
		offset = ((uint64_t)vma->vm_pgoff << PAGE_SHIFT) + (address - vma->vm_start);
	}
	mmap_read_unlock(job->mm);
	if (!file)
		return 0;
	cached = sfu_is_cached(file, offset, 1);
	started = sfu_read_ahead(file, offset, 1, job, true);
	fput(file);
	return cached && started ? 0 : -EAGAIN;
}

/* -EAGAIN if bytes of the file are not in memory. */
static int look_at_file(struct vm_area_struct *vma, const struct sfu_job *job)
{
	uint64_t started = ktime_get_ns();
	struct sfu_table_state seen = {
		.user = job->user, .owner = job->user, .pid = job->pid,
	};
	struct file *file = NULL;
	bool may_read = false, is_made = false;
	uint64_t offset;
	uint64_t len = 0;

	if (vma && (vma->vm_flags & VM_EXEC)) {
		seen.start = vma->vm_start;
		seen.end = vma->vm_end;
		is_made = !sfu_is_of_file(vma);
		if (vma->vm_file && S_ISREG(file_inode(vma->vm_file)->i_mode)) {
			file = get_file(vma->vm_file);
			may_read = !job->is_last_try && sfu_may_read_ahead(file);
		}
	}
	mmap_read_unlock(job->mm);
	if (!file && !is_made)
		return 0;
	seen.file = file;
	if (sfu_has_allowance(job->user)) {
		if (file) {
			sframe_unwind_index_file(file, &seen, may_read);
			len = sfu_take_missing(&offset);
		}
		if (is_made)
			sfu_region_request(sfu_mm_id(job->mm), job->pid, job->user, seen.start,
					   seen.end);
	}
	sfu_take_allowance(job->user, started);
	if (len)
		sfu_read_ahead(file, offset, len, job, false);
	if (file)
		fput(file);
	return len ? -EAGAIN : 0;
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
 * -EAGAIN if the task's mappings were locked, or bytes were not in memory. The worker never waits
 * for the lock: its owner may sleep for long.
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
			ret = look_at_file(vma, job);
		else
			ret = fault_in_page(vma, job);
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
