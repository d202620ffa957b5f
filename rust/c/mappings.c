// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finds mappings of the current task in any context: without a lock where mappings have a sequence
 * count, else under mmap_lock.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>

#include "mappings.h"
#include "walk_lock.h"

/*
 * The maximum number of mappings between the mapping that is looked up and the first mapping of its
 * file.
 */
#define HEAD_DISTANCE 16
/*
 * The file below code of no file matters only if the code lies among the file's segments: some
 * programs replace their own code by memory with huge pages. A larger gap, in bytes, separates the
 * code from any file.
 */
#define HEAD_SPAN (4ULL << 30)

/*
 * The mapping, or NULL for a gap, that the tree holds at `address`, and the first and the last
 * address of the mapping or gap. Each search starts at the root of the tree. mas_find() and
 * mas_prev() go up by a node's parent, and try again for as long as the parent is out of the tree.
 * The writer that would put the parent back may be the task that was interrupted here, and then
 * would never run. From the root down, no search meets a node that is out of the tree: the writer
 * takes a node out before it marks the node.
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
 * The inode of a mapping: a number, which must not be dereferenced until the caller has proved that
 * the mapping has this file.
 */
static uint64_t inode_of(const struct vm_area_struct *vma)
{
	const struct file *file = READ_ONCE(vma->vm_file);

	if (!(READ_ONCE(vma->vm_flags) & VM_EXEC))
		return 0;
	/* Of an overlay, the file may have been freed: see SFU_PEEK(). */
	return file ? (uintptr_t)SFU_PEEK(file->f_inode) : SFU_NO_FILE;
}

/*
 * Reads a VMA that the tree holds from `first` to `last`. The VMA may be freed and reused during
 * the read (under RCU its memory stays that of a VMA), so the caller has to prove the fields. False
 * if the VMA's addresses are not `first` and `last`: an interrupted writer may have changed only
 * the tree or only the VMA.
 */
static bool read_mapping(struct vm_area_struct *vma, unsigned long first, unsigned long last,
			 struct sfu_mapping *mapping)
{
	*mapping = (struct sfu_mapping){
		.start = READ_ONCE(vma->vm_start),
		.end = READ_ONCE(vma->vm_end),
		.offset = (uint64_t)READ_ONCE(vma->vm_pgoff) << PAGE_SHIFT,
		.executable = READ_ONCE(vma->vm_flags) & VM_EXEC,
		.is_file = sfu_is_of_file(vma),
		.inode = inode_of(vma),
	};
	mapping->is_vdso = mapping->inode == SFU_NO_FILE && sfu_is_vdso(vma, first);
	return mapping->start == first && mapping->end - 1 == last;
}

static bool read_at(struct mm_struct *mm, unsigned long address, struct sfu_mapping *mapping)
{
	unsigned long first, last;
	struct vm_area_struct *vma = mapping_at(mm, address, &first, &last);

	return vma && read_mapping(vma, first, last, mapping);
}

/*
 * Whether a second read of a mapping has an equal result. Compares fields: a copy would need more
 * stack.
 */
static noinline bool is_read_again(struct mm_struct *mm, unsigned long address,
				   const struct sfu_mapping *mapping, bool found)
{
	unsigned long first, last;
	const struct vm_area_struct *vma = mapping_at(mm, address, &first, &last);

	if (!vma || READ_ONCE(vma->vm_start) != first || READ_ONCE(vma->vm_end) - 1 != last)
		return !found;
	return found && mapping->start == first && mapping->end - 1 == last &&
	       mapping->offset == (uint64_t)READ_ONCE(vma->vm_pgoff) << PAGE_SHIFT &&
	       mapping->executable == !!(READ_ONCE(vma->vm_flags) & VM_EXEC) &&
	       mapping->is_file == sfu_is_of_file(vma) && mapping->inode == inode_of(vma) &&
	       mapping->is_vdso == (mapping->inode == SFU_NO_FILE && sfu_is_vdso(vma, first));
}

/* Finds the mapping from offset 0 of a mapping's file, or of the next file below. */
static noinline void read_head(struct mm_struct *mm, unsigned long address,
			       struct sfu_mapping *mapping)
{
	unsigned long first, last;
	struct file *file = NULL;
	uint32_t i;

	mapping->head = mapping->head_size = 0;
	/*
	 * The loader maps all segments of a file by one open file, so all have one struct file. Its
	 * pointer is compared and never dereferenced.
	 */
	for (i = 0; i <= HEAD_DISTANCE; i++, address = first - 1) {
		struct vm_area_struct *vma = mapping_at(mm, address, &first, &last);

		mapping->visits++;
		if (!file && vma)
			file = READ_ONCE(vma->vm_file);
		if (file && vma && READ_ONCE(vma->vm_file) == file && !READ_ONCE(vma->vm_pgoff)) {
			mapping->head = READ_ONCE(vma->vm_start);
			mapping->head_size = min(READ_ONCE(vma->vm_end) - mapping->head, U32_MAX);
			break;
		}
		if (!first || (!mapping->is_file && mapping->start - first > HEAD_SPAN))
			break;
	}
}

/* Under RCU. The head is that of the mapping's state at `mapping->sequence`, or was read twice. */
static __always_inline int find_head(struct mm_struct *mm, uint64_t address,
				     struct sfu_mapping *mapping)
{
	uint64_t head;
	uint32_t size;

	read_head(mm, address, mapping);
	if (!(mapping->sequence & 1) && !mmap_lock_speculate_retry(mm, mapping->sequence))
		return 0;
	head = mapping->head;
	size = mapping->head_size;
	read_head(mm, address, mapping);
	return head == mapping->head && size == mapping->head_size ? 0 : -EAGAIN;
}

int sfu_find_lower_file(struct sfu_mapping *mapping)
{
	int ret;

	rcu_read_lock();
	ret = find_head(current->mm, mapping->start, mapping);
	rcu_read_unlock();
	return ret;
}

int sfu_find_mapping(uint64_t address, struct sfu_mapping *mapping)
{
	struct mm_struct *mm = current->mm;
	int tries, ret = -EAGAIN;
	uint16_t visits = 0;
	unsigned int sequence;

	mapping->visits = 0;
	address = sfu_untagged(address);
	if (!mm || address >= TASK_SIZE_MAX)
		return -ENOENT;
	rcu_read_lock();
	for (tries = 0; tries < 3; tries++) {
		bool calm = mmap_lock_speculate_try_begin(mm, &sequence);
		bool found = read_at(mm, address, mapping);

		visits++;
		if (!calm || mmap_lock_speculate_retry(mm, sequence)) {
			/*
			 * The lock is held for writing, perhaps by the interrupted task, and for a
			 * long time in fork. Two equal reads count as a proof.
			 */
			visits++;
			if (!is_read_again(mm, address, mapping, found))
				continue;
			sequence = 1;
		}
		ret = found ? 0 : -ENOENT;
		break;
	}
	mapping->visits = visits;
	if (!ret) {
		mapping->sequence = sequence;
		sfu_find_table(mapping);
	}
	/* With a table, the headers are not needed. */
	if (!ret && !mapping->has_rows && !mapping->keeps_frame_pointer && mapping->is_file)
		ret = find_head(mm, address, mapping);
	rcu_read_unlock();
	return ret;
}

/* Compares fields, as is_read_again() does. */
bool sfu_is_mapped_still(const struct sfu_code_range *range, uint64_t sequence,
			 struct ma_state *mas)
{
	uint64_t inode = range->inode & ~(uint64_t)SFU_DOUBTFUL;
	const struct vm_area_struct *vma;

	/*
	 * The node in which the search before ended is often that of this range, too. From a node
	 * that is out of the tree, mas_walk() goes to the root: see mapping_at().
	 */
	if (range->start < mas->min || range->start > mas->max)
		mas_reset(mas);
	mas->index = mas->last = range->start;
	vma = mas_walk(mas);
	return vma && READ_ONCE(vma->vm_start) == mas->index &&
	       READ_ONCE(vma->vm_end) - 1 == mas->last && range->end - 1 <= mas->last &&
	       inode_of(vma) == inode &&
	       ((uint64_t)READ_ONCE(vma->vm_pgoff) << PAGE_SHIFT) - mas->index ==
		       range->to_offset &&
	       (sfu_is_of_file(vma) || (inode == SFU_NO_FILE && sfu_is_vdso(vma, mas->index))) &&
	       !mmap_lock_speculate_retry(current->mm, sequence);
}

int sfu_scan_next(struct sfu_scan *scan, struct sfu_mapping *mapping)
{
	struct mm_struct *mm = current->mm;
	unsigned long first, last;
	unsigned int sequence;
	int ret = -EAGAIN;

	rcu_read_lock();
	while (scan->left) {
		bool calm = mmap_lock_speculate_try_begin(mm, &sequence);
		struct vm_area_struct *vma = mapping_at(mm, scan->address, &first, &last);
		struct file *file = vma ? READ_ONCE(vma->vm_file) : NULL;

		scan->left--;
		if (last < scan->address)
			break;
		if (file && !READ_ONCE(vma->vm_pgoff)) {
			scan->head_file = (uintptr_t)file;
			scan->head = first;
			scan->head_size = min(last - first + 1, U32_MAX);
		}
		if (file && (uintptr_t)file != scan->file && (READ_ONCE(vma->vm_flags) & VM_EXEC)) {
			if (!read_mapping(vma, first, last, mapping))
				break;
			/* As in sfu_find_mapping(). */
			if ((!calm || mmap_lock_speculate_retry(mm, sequence)) &&
			    !is_read_again(mm, first, mapping, true))
				break;
			scan->file = (uintptr_t)file;
			if (scan->head_file == scan->file) {
				mapping->head = scan->head;
				mapping->head_size = scan->head_size;
			}
			sfu_find_table(mapping);
			ret = 0;
		}
		scan->address = last + 1;
		if (!ret)
			break;
		if (last >= TASK_SIZE_MAX - 1) {
			ret = -ENOENT;
			break;
		}
	}
	rcu_read_unlock();
	return ret;
}
