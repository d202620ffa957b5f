// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mappings of the current task, found in any context and without a lock, and the code cache: the ranges
 * of code that walks of a CPU used last.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>

#include "internal.h"

/* The most mappings between the one asked for and the first mapping of its file. */
#define HEAD_DISTANCE 16

/*
 * The mapping, or NULL for a gap, that the tree holds at `address`, and the first and the last address of
 * it. Each walk of the tree starts at the root. mas_find() and mas_prev() go up by a node's parent, and
 * try again for as long as the parent is out of the tree; the writer that would put the parent back may be
 * the task that was interrupted here, which then never runs. From the root down, no walk meets a node that
 * is out of the tree: the writer takes a node out before it marks the node.
 */
static struct vm_area_struct *mapping_at(struct mm_struct *mm, unsigned long address,
					 unsigned long *first, unsigned long *last)
{
	MA_STATE(mas, &mm->mm_mt, address, address);
	struct vm_area_struct *vma = mas_walk(&mas);

	*first = mas.index;
	*last = mas.last;
	return vma;
}

/*
 * Reads a VMA. The VMA may be freed and reused meanwhile (under RCU its memory stays that of a VMA), so
 * the caller has to prove what was read.
 */
static void read_mapping(struct mm_struct *mm, struct vm_area_struct *vma, unsigned long first,
			 struct sfu_mapping *mapping)
{
	struct file *file = READ_ONCE(vma->vm_file);
	unsigned long last;
	int i;

	memset(mapping, 0, sizeof(*mapping));
	/*
	 * The inode is a number, which nobody may dereference, until the caller has proved that the
	 * mapping has this file.
	 */
	if (READ_ONCE(vma->vm_flags) & VM_EXEC)
		mapping->inode = file ? (uintptr_t)READ_ONCE(file->f_inode) : SFU_NO_FILE;
	mapping->start = READ_ONCE(vma->vm_start);
	mapping->end = READ_ONCE(vma->vm_end);
	mapping->offset = (uint64_t)READ_ONCE(vma->vm_pgoff) << PAGE_SHIFT;
	mapping->executable = READ_ONCE(vma->vm_flags) & VM_EXEC;
	mapping->is_file = file;

	/*
	 * The loader maps all segments of a file by one open file. The pointer is compared and never
	 * dereferenced.
	 */
	for (i = 0; (file || mapping->executable) && i <= HEAD_DISTANCE; i++) {
		if (!file && vma)
			file = READ_ONCE(vma->vm_file);
		if (file && vma && READ_ONCE(vma->vm_file) == file && !READ_ONCE(vma->vm_pgoff)) {
			mapping->head = READ_ONCE(vma->vm_start);
			mapping->head_size = min(READ_ONCE(vma->vm_end) - mapping->head, U32_MAX);
			break;
		}
		if (!first)
			break;
		vma = mapping_at(mm, first - 1, &first, &last);
	}
}

static bool read_at(struct mm_struct *mm, unsigned long address, struct sfu_mapping *mapping)
{
	unsigned long first, last;
	struct vm_area_struct *vma = mapping_at(mm, address, &first, &last);

	if (!vma)
		return false;
	read_mapping(mm, vma, first, mapping);
	return address >= mapping->start && address < mapping->end;
}

int sfu_find_mapping(uint64_t address, struct sfu_mapping *mapping)
{
	struct mm_struct *mm = current->mm;
	struct sfu_mapping again;
	int tries, ret = -EAGAIN;
	unsigned int sequence;

	if (!mm || address >= TASK_SIZE_MAX)
		return -ENOENT;
	rcu_read_lock();
	for (tries = 0; tries < 3; tries++) {
		bool calm = mmap_lock_speculate_try_begin(mm, &sequence);
		bool found = read_at(mm, address, mapping);

		if (!calm || mmap_lock_speculate_retry(mm, sequence)) {
			/*
			 * The lock is held for writing, perhaps by the interrupted task, and in fork for
			 * long. Two equal readings are believed.
			 */
			if (read_at(mm, address, &again) != found ||
			    (found && memcmp(mapping, &again, sizeof(again))))
				continue;
			sequence = 1;
		}
		mapping->sequence = sequence;
		ret = found ? 0 : -ENOENT;
		break;
	}
	if (!ret)
		sfu_find_table(mapping);
	rcu_read_unlock();
	return ret;
}

int sfu_next_executable(uint64_t address, unsigned int limit, struct sfu_mapping *mapping)
{
	struct mm_struct *mm = current->mm;
	unsigned long at, first, last;
	int ret = -EAGAIN;

	rcu_read_lock();
	for (at = address; limit; limit--, at = last + 1) {
		struct vm_area_struct *vma = mapping_at(mm, at, &first, &last);

		if (vma && (READ_ONCE(vma->vm_flags) & VM_EXEC) && READ_ONCE(vma->vm_file)) {
			read_mapping(mm, vma, first, mapping);
			/* The inode was not proved. */
			mapping->inode = 0;
			if (mapping->end > address)
				ret = 0;
			break;
		}
		if (last < at)
			break;
		if (last >= TASK_SIZE_MAX - 1) {
			ret = -ENOENT;
			break;
		}
	}
	rcu_read_unlock();
	return ret;
}

static DEFINE_PER_CPU(struct sfu_code_cache, code_cache);

struct sfu_code_cache *sfu_code_cache_enter(void)
{
	struct sfu_code_cache *own;
	uint64_t id, sequence, tables;

	preempt_disable();
	own = this_cpu_ptr(&code_cache);
	if (own->busy) {
		preempt_enable();
		return NULL;
	}
	WRITE_ONCE(own->busy, true);
	barrier();
	/*
	 * Preemption is off, so this is an RCU reader from here on: an inode that a mapping has now, and a
	 * table that is published now, are freed after sfu_code_cache_leave(). So the state is read here
	 * and not before.
	 */
	sfu_mappings_version(&id, &sequence);
	tables = READ_ONCE(sfu_table_generation);
	if (own->id != id || own->sequence != sequence || own->tables != tables) {
		own->id = id;
		own->sequence = sequence;
		own->tables = tables;
		memset(own->ranges, 0xff, sizeof(own->ranges));
	}
	own->walk++;
	if (!(sequence & 1))
		return own;
	sfu_code_cache_leave(own);
	return NULL;
}

void sfu_code_cache_leave(struct sfu_code_cache *own)
{
	barrier();
	WRITE_ONCE(own->busy, false);
	preempt_enable();
}

void sfu_mappings_version(uint64_t *id, uint64_t *sequence)
{
	mappings_version(id, sequence);
}
