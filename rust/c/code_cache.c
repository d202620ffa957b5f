// SPDX-License-Identifier: GPL-2.0-only
/* The code caches of each CPU: the ranges of code that the walks of the CPU used last. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/mm_types.h>
#include <linux/mmap_lock.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "files.h"
#include "mappings.h"
#include "walk_lock.h"

/*
 * The processes whose ranges a CPU keeps. All static per-CPU data of modules has 8 KiB, so the code
 * caches are allocated when the module is loaded.
 */
struct code_caches {
	struct sfu_code_cache of[4];
};
static struct code_caches __percpu *code_caches;
/* The code cache that was used last. */
static DEFINE_PER_CPU(struct sfu_code_cache *, last_code_cache);
/*
 * Whether a code cache is in use. This is not a field of the structure, because an NMI reads it
 * while Rust has exclusive access to the structure.
 */
static DEFINE_PER_CPU(bool, code_cache_is_busy);
/*
 * After this time in jiffies, ranges have expired. Sequence numbers repeat after 2^31 changes of
 * the mappings, which take longer.
 */
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
	 * enough from sfu_is_mapped_still(): each range is looked up again about once a second.
	 */
	return inode_get_ctime_nsec(inode) == READ_ONCE(key->changed_nsec) &&
	       inode_get_ctime_sec(inode) == READ_ONCE(key->changed) &&
	       !is_written_to(inode);
}

/*
 * Checks the files of all ranges, for this walk. The walk uses no range of a file that was written
 * to. Regions are left to the walk: they may have a guard in the task's memory. Ranges with
 * SFU_DOUBTFUL are left to sfu_code_range_at().
 */
static __always_inline void check_ranges(struct sfu_code_cache *own)
{
	struct sfu_code_range *range;
	uint64_t walk = ++own->walk;

	/* The last range is never used. */
	for (range = own->ranges; likely(range->start != U64_MAX); range++) {
		if (unlikely(range->inode & (SFU_NO_FILE | SFU_REGION | SFU_DOUBTFUL))) {
			if (range->inode == SFU_NO_FILE)
				range->walk = walk;
		} else if (likely(is_current(range))) {
			range->walk = walk;
		}
	}
}

static void forget_ranges(struct sfu_code_cache *own)
{
	memset(own->ranges, 0xff, sizeof(own->ranges));
}

/*
 * Keeps the ranges that a walk has used since the state of the mappings before. The first use in
 * this state looks up the mapping of a range. Regions are not kept.
 */
static void doubt_ranges(struct sfu_code_cache *own)
{
	struct sfu_code_range *range, *kept = own->ranges;

	for (range = own->ranges; range->start != U64_MAX; range++) {
		if (range->inode & (SFU_REGION | SFU_DOUBTFUL))
			continue;
		if (kept != range)
			*kept = *range;
		kept->inode |= SFU_DOUBTFUL;
		kept++;
	}
	memset(kept, 0xff, (char *)range - (char *)kept);
}

/* Takes the code cache of the process `id`, in this state of its mappings and of all tables. */
static noinline struct sfu_code_cache *take(uint64_t id, uint64_t sequence)
{
	struct sfu_code_cache *all = this_cpu_ptr(code_caches)->of, *own = all;
	unsigned int i;

	/* A code cache that is not used is the first to expire. */
	for (i = 0; i < ARRAY_SIZE(code_caches->of) && own->id != id; i++) {
		if (all[i].id == id || time_before64(all[i].until, own->until))
			own = &all[i];
	}
	/* The number of a table that was removed is not used again. */
	if (own->id != id || (own->sequence ^ sequence) >> 32 ||
	    time_after64(get_jiffies_64(), own->until))
		forget_ranges(own);
	else if (own->sequence != sequence)
		doubt_ranges(own);
	own->id = id;
	own->sequence = sequence;
	own->until = get_jiffies_64() + RANGES_HOLD;
	this_cpu_write(last_code_cache, own);
	return own;
}

struct sfu_code_cache *sfu_code_cache_enter(void)
{
	struct sfu_code_cache *own;
	uint64_t id = sfu_mm_id(current->mm), sequence;
	/*
	 * A deferred walk may run on another CPU than its decision, which calls
	 * sfu_code_cache_forget() only on its own CPU.
	 */
	bool may_have_moved = !preempt_count();

	preempt_disable();
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
	own = this_cpu_read(last_code_cache);
	/* While the mappings are being changed, the number is odd, and their ranges stay. */
	if (unlikely(sequence & 1)) {
		sfu_code_cache_leave(own);
		return NULL;
	}
	if (own->id != id || own->sequence != sequence ||
	    (unlikely(may_have_moved) && time_after64(get_jiffies_64(), own->until)))
		own = take(id, sequence);
	check_ranges(own);
	return own;
}

/*
 * Checks a range that has SFU_DOUBTFUL, for this walk. Its table is published, because the
 * generation of tables is still that of the range.
 */
static noinline void look_up(struct sfu_code_cache *own, struct sfu_code_range *range)
{
	if (!sfu_is_mapped_still(range, own->sequence))
		return;
	range->inode &= ~(uint64_t)SFU_DOUBTFUL;
	sfu_table_used(range->key);
	if (range->inode == SFU_NO_FILE || is_current(range))
		range->walk = own->walk;
}

struct sfu_code_range *sfu_code_range_at(struct sfu_code_cache *own, uint64_t ra)
{
	struct sfu_code_range *range = own->ranges;

	/* An unused range ends at U64_MAX. */
	while (ra > range->end)
		range++;
	own->places[(ra >> 16) % SFU_CODE_PLACES] = (char *)range - (char *)own->ranges;
	if (unlikely(range->inode & SFU_DOUBTFUL) && !(range->inode & SFU_REGION))
		look_up(own, range);
	return range;
}

void sfu_code_cache_forget(void)
{
	uint64_t id = sfu_mm_id(current->mm);
	struct sfu_code_cache *all;
	unsigned int i;

	preempt_disable();
	all = this_cpu_ptr(code_caches)->of;
	/* If the caller interrupted a walk, the ranges are not older than that walk. */
	for (i = 0; i < ARRAY_SIZE(code_caches->of) && !this_cpu_read(code_cache_is_busy); i++) {
		/* No state of mappings in which a walk uses ranges has an odd number. */
		if (all[i].id == id)
			all[i].sequence |= 1;
	}
	preempt_enable();
}

void sfu_code_cache_leave(struct sfu_code_cache *own)
{
	barrier();
	this_cpu_write(code_cache_is_busy, false);
	preempt_enable();
}

int sfu_code_caches_start(void)
{
	int cpu;
	unsigned int i;

	code_caches = alloc_percpu(struct code_caches);
	if (!code_caches)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		struct code_caches *all = per_cpu_ptr(code_caches, cpu);

		for (i = 0; i < ARRAY_SIZE(all->of); i++)
			forget_ranges(&all->of[i]);
		per_cpu(last_code_cache, cpu) = all->of;
	}
	return 0;
}

void sfu_code_caches_stop(void)
{
	free_percpu(code_caches);
}

#ifdef CONFIG_KUNIT
bool sfu_test_enters_in_change(void)
{
	struct sfu_code_cache *own;
	bool entered = false;

	migrate_disable();
	own = sfu_code_cache_enter();
	if (own)
		sfu_code_cache_leave(own);
	sfu_code_cache_forget();
	if (SFU_HAS_SEQUENCE) {
		mmap_write_lock(current->mm);
		own = sfu_code_cache_enter();
		entered = own;
		if (own)
			sfu_code_cache_leave(own);
		mmap_write_unlock(current->mm);
	}
	migrate_enable();
	return entered;
}
#endif
