// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mappings of the current task, found in any context and without a lock; and the code cache: the ranges
 * of code that the walks of a CPU used last.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>

#include "internal.h"

/* The maximum number of mappings between the mapping that is looked up and the first mapping of its file. */
#define HEAD_DISTANCE 16

#if SFU_BEFORE(6, 14)
/*
 * On kernels whose mappings have no sequence count, a walk holds mmap_lock. A walk never waits for the lock. The
 * caller of a walk may have interrupts off and hold a lock that the wake-up of a waiter takes. Then an irq_work
 * releases mmap_lock, as BPF does for its stacks. Until the irq_work runs, further walks of this mm on this CPU use
 * the lock that is held: the timer of perf may take several samples in one interrupt.
 */
enum { LOCK_FREE, LOCK_IN_USE, LOCK_PENDING, LOCK_IN_RELEASE };

static DEFINE_PER_CPU(struct walk_lock {
	/*
	 * Not LOCK_FREE from before mmap_lock is taken until after it is released. Only this CPU changes the state,
	 * except for `drop`. An interrupt restores the state, or does not use the lock.
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
	/* Pairs with cmpxchg() of the next user: a user that reads this state reads the other fields as they are now. */
	smp_store_release(&own->state, state);
}

uint32_t sfu_lock_number(void)
{
	return this_cpu_read(walk_lock.number);
}

/* The release of the lock may wake a task that frees the mm, so this CPU holds the mm until after the release. */
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

	/* If an NMI right before this used the lock, too, it queued the work again, and the work runs twice. */
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
	if (irqs_disabled() && READ_ONCE(own->mm) == mm && cmpxchg(&own->state, LOCK_PENDING, LOCK_IN_USE) == LOCK_PENDING)
		return true;
	if (cmpxchg(&own->state, LOCK_FREE, LOCK_IN_USE) == LOCK_FREE) {
		if (mmap_read_trylock(mm)) {
			own->is_released_later = irqs_disabled();
			if (own->is_released_later) {
				mmgrab(mm);
				/* For lockdep, released here: later an irq_work releases the lock, and no task. */
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

/*
 * The mapping, or NULL for a gap, that the tree holds at `address`, and the first and the last address of the
 * mapping or gap. Each search starts at the root of the tree. mas_find() and mas_prev() go up by a node's parent,
 * and try again for as long as the parent is out of the tree. The writer that would put the parent back may be
 * the task that was interrupted here, and then would never run. From the root down, no search meets a node that
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
 * The inode of a mapping: a number, which must not be dereferenced until the caller has proved that the mapping
 * has this file.
 */
static uint64_t inode_of(const struct vm_area_struct *vma)
{
	const struct file *file = READ_ONCE(vma->vm_file);

	if (!(READ_ONCE(vma->vm_flags) & VM_EXEC))
		return 0;
	return file ? (uintptr_t)READ_ONCE(file->f_inode) : SFU_NO_FILE;
}

/*
 * Reads a VMA that the tree holds from `first` to `last`. The VMA may be freed and reused during the read (under
 * RCU its memory stays that of a VMA), so the caller has to prove the fields. False if the VMA's addresses are not
 * `first` and `last`: an interrupted writer may have changed only the tree or only the VMA.
 */
static bool read_mapping(struct vm_area_struct *vma, unsigned long first, unsigned long last,
			 struct sfu_mapping *mapping)
{
	*mapping = (struct sfu_mapping){
		.start = READ_ONCE(vma->vm_start),
		.end = READ_ONCE(vma->vm_end),
		.offset = (uint64_t)READ_ONCE(vma->vm_pgoff) << PAGE_SHIFT,
		.executable = READ_ONCE(vma->vm_flags) & VM_EXEC,
		.is_file = READ_ONCE(vma->vm_file),
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

/* Whether a second read of a mapping has an equal result. Compares fields: a copy would need more stack. */
static noinline bool is_read_again(struct mm_struct *mm, unsigned long address, const struct sfu_mapping *mapping,
				   bool found)
{
	unsigned long first, last;
	const struct vm_area_struct *vma = mapping_at(mm, address, &first, &last);

	if (!vma || READ_ONCE(vma->vm_start) != first || READ_ONCE(vma->vm_end) - 1 != last)
		return !found;
	return found && mapping->start == first && mapping->end - 1 == last &&
	       mapping->offset == (uint64_t)READ_ONCE(vma->vm_pgoff) << PAGE_SHIFT &&
	       mapping->executable == !!(READ_ONCE(vma->vm_flags) & VM_EXEC) &&
	       mapping->is_file == !!READ_ONCE(vma->vm_file) && mapping->inode == inode_of(vma) &&
	       mapping->is_vdso == (mapping->inode == SFU_NO_FILE && sfu_is_vdso(vma, first));
}

/* Finds the mapping from offset 0 of a mapping's file, or of the next file below. */
static void read_head(struct mm_struct *mm, unsigned long address, struct sfu_mapping *mapping)
{
	unsigned long first, last;
	struct file *file = NULL;
	uint32_t i;

	mapping->head = mapping->head_size = 0;
	/*
	 * The loader maps all segments of a file by one open file, so all have one struct file. Its pointer is
	 * compared and never dereferenced.
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
		if (!first)
			break;
	}
}

int sfu_find_mapping(uint64_t address, struct sfu_mapping *mapping)
{
	struct mm_struct *mm = current->mm;
	int tries, ret = -EAGAIN;
	uint32_t visits = 0, size;
	uint64_t head;
	unsigned int sequence;

	mapping->visits = 0;
	if (!mm || address >= TASK_SIZE_MAX)
		return -ENOENT;
	rcu_read_lock();
	for (tries = 0; tries < 3; tries++) {
		bool calm = mmap_lock_speculate_try_begin(mm, &sequence);
		bool found = read_at(mm, address, mapping);

		visits++;
		if (!calm || mmap_lock_speculate_retry(mm, sequence)) {
			/*
			 * The lock is held for writing, perhaps by the interrupted task, and for a long time in
			 * fork. Two equal reads count as a proof.
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
	/* A table needs no headers. */
	if (!ret && !mapping->table && (mapping->is_file || mapping->executable)) {
		read_head(mm, address, mapping);
		if (sequence & 1 || mmap_lock_speculate_retry(mm, sequence)) {
			head = mapping->head;
			size = mapping->head_size;
			read_head(mm, address, mapping);
			if (head != mapping->head || size != mapping->head_size)
				ret = -EAGAIN;
		}
	}
	rcu_read_unlock();
	return ret;
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

static DEFINE_PER_CPU(struct sfu_code_cache, code_cache);
/*
 * Whether the code cache is in use. This is not a field of the structure, because an NMI reads it while Rust has
 * exclusive access to the structure.
 */
static DEFINE_PER_CPU(bool, code_cache_is_busy);
/*
 * The time in jiffies at which cached ranges expire. Sequence numbers repeat after 2^31 changes of the mappings,
 * which take longer than RANGES_HOLD.
 */
static DEFINE_PER_CPU(unsigned long, code_cache_until);
#define RANGES_HOLD (30 * HZ)

struct sfu_code_cache *sfu_code_cache_enter(void)
{
	struct sfu_code_cache *own;
	uint64_t id = sfu_mm_id(current->mm), sequence;
	/* A deferred walk may run on another CPU than its decision, which emptied only the cache of its own CPU. */
	bool may_have_moved = !preempt_count();

	preempt_disable();
	own = this_cpu_ptr(&code_cache);
	if (this_cpu_read(code_cache_is_busy)) {
		preempt_enable();
		return NULL;
	}
	this_cpu_write(code_cache_is_busy, true);
	barrier();
	/*
	 * Preemption is off, so the caller is an RCU reader from here on: an inode that a mapping has now, and a
	 * table that is published now, are freed only after sfu_code_cache_leave(). Therefore the state is read
	 * here and not before.
	 */
	sequence = SFU_HAS_SEQUENCE ? sfu_mappings_sequence() :
				      sfu_lock_number() | READ_ONCE(sfu_table_generation) << 32;
	if (own->id != id || own->sequence != sequence ||
	    (unlikely(may_have_moved) && time_after(jiffies, this_cpu_read(code_cache_until)))) {
		this_cpu_write(code_cache_until, jiffies + RANGES_HOLD);
		own->id = id;
		own->sequence = sequence;
		memset(own->ranges, 0xff, sizeof(own->ranges));
	}
	own->walk++;
	if (!(sequence & 1))
		return own;
	sfu_code_cache_leave(own);
	return NULL;
}

void sfu_code_cache_forget(void)
{
	struct sfu_code_cache *own;

	preempt_disable();
	own = this_cpu_ptr(&code_cache);
	/* If the caller interrupted a walk, the cache is not older than that walk. */
	if (!this_cpu_read(code_cache_is_busy))
		own->id = 0;
	preempt_enable();
}

void sfu_code_cache_leave(struct sfu_code_cache *own)
{
	barrier();
	this_cpu_write(code_cache_is_busy, false);
	preempt_enable();
}
