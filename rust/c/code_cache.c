// SPDX-License-Identifier: GPL-2.0-only
/* The code cache of each CPU: the ranges of code that the walks of the CPU used last. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "files.h"
#include "mappings.h"
#include "walk_lock.h"

static DEFINE_PER_CPU(struct sfu_code_cache, code_cache);
/*
 * Whether the code cache is in use. This is not a field of the structure, because an NMI reads it
 * while Rust has exclusive access to the structure.
 */
static DEFINE_PER_CPU(bool, code_cache_is_busy);
/*
 * The time in jiffies at which cached ranges expire. Sequence numbers repeat after 2^31 changes of
 * the mappings, which take longer than RANGES_HOLD.
 */
static DEFINE_PER_CPU(unsigned long, code_cache_until);
#define RANGES_HOLD (30 * HZ)

/* Whether the file of a range is still in the state that the range's table was built for. */
static __always_inline bool is_current(const struct sfu_code_range *range)
{
	const struct sfu_file_key *key = range->key;
	/*
	 * The mapping still has the inode, so the inode is alive and is the one of the range: see
	 * sfu_code_cache_enter().
	 */
	const struct inode *inode = (struct inode *)(uintptr_t)range->inode;

	/*
	 * Where the size changes, the time of change does. That the table is used is known well
	 * enough from sfu_find_table(): the code cache is emptied about once a second.
	 */
	return inode_get_ctime_nsec(inode) == READ_ONCE(key->changed_nsec) &&
	       inode_get_ctime_sec(inode) == READ_ONCE(key->changed) &&
	       !is_written_to(inode);
}

/*
 * Checks the files of all ranges, for this walk. The walk uses no range of a file that was written
 * to. Regions are left to the walk: they may have a guard in the task's memory.
 */
static __always_inline void check_ranges(struct sfu_code_cache *own)
{
	struct sfu_code_range *range;
	uint64_t walk = ++own->walk;

	/* The last range is never used. */
	for (range = own->ranges; likely(range->start != U64_MAX); range++) {
		if (unlikely(range->inode & (SFU_NO_FILE | SFU_REGION))) {
			if (range->inode == SFU_NO_FILE)
				range->walk = walk;
		} else if (likely(is_current(range))) {
			range->walk = walk;
		}
	}
}

struct sfu_code_cache *sfu_code_cache_enter(void)
{
	struct sfu_code_cache *own;
	uint64_t id = sfu_mm_id(current->mm), sequence;
	/*
	 * A deferred walk may run on another CPU than its decision, which emptied only the cache of
	 * its own CPU.
	 */
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
	 * Preemption is off, so the caller is an RCU reader from here on: an inode that a mapping
	 * has now, and a table that is published now, are freed only after sfu_code_cache_leave().
	 * Therefore the state is read here and not before.
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
	if (!(sequence & 1)) {
		check_ranges(own);
		return own;
	}
	sfu_code_cache_leave(own);
	return NULL;
}

struct sfu_code_range *sfu_code_range_at(struct sfu_code_cache *own, uint64_t ra)
{
	struct sfu_code_range *range = own->ranges;

	/* An unused range ends at U64_MAX. */
	while (ra > range->end)
		range++;
	own->places[(ra >> 16) % SFU_CODE_PLACES] = (char *)range - (char *)own->ranges;
	return range;
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
