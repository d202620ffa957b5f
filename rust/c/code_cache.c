// SPDX-License-Identifier: GPL-2.0-only
/* The code caches of each CPU: the ranges of code that the walks of the CPU used last. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/irq_work.h>
#include <linux/jiffies.h>
#include <linux/mm_types.h>
#include <linux/mmap_lock.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/workqueue.h>

#include "files.h"
#include "mappings.h"
#include "walk_lock.h"

/*
 * The processes whose ranges a CPU keeps. All static per-CPU data of modules has 8 KiB, so the code
 * caches are allocated when the module is loaded.
 */
struct code_caches {
	struct sfu_code_cache of[4];
	/*
	 * The rules that the walks of the CPU have kept: 64 KiB, allocated after its first walk.
	 * They are the worker's in the state RULES_WANTED, and the CPU's in all other states.
	 */
	struct sfu_kept_rule *rules;
	enum { RULES_NONE, RULES_WANTED, RULES_EMPTY, RULES_USED } state;
	/* The number of generations that were given since the rules were empty. */
	uint32_t generations;
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
/* The calls of note_use(), one a second, after which ranges that no walk uses are dropped. */
#define DROP_AFTER 16

/* What is checked in a range that is no file's, or has to be looked up: no range has this state. */
static const struct inode nothing;

static const struct sfu_code_range unused = {
	.end = U64_MAX, .start = U64_MAX, .checked = &nothing, .changed = 1,
};

/*
 * The nanoseconds of the time of change as they are in the inode, which cost less: since 6.13 they
 * have a bit that tells whether anybody has read the time.
 */
static __always_inline uint32_t raw_changed_nsec(const struct inode *inode)
{
#ifdef I_CTIME_QUERIED
	return READ_ONCE(inode->i_ctime_nsec);
#else
	return inode_get_ctime_nsec(inode);
#endif
}

/*
 * 0 if the file of a range is still in the state that the range's table was built for. Where the
 * size changes, the time of change does. Else the file has perhaps changed: see begin_to_check().
 * The mapping still has the inode, so the inode is alive and is the one of the range: see
 * sfu_code_cache_enter().
 */
static __always_inline uint64_t changes_of(const struct sfu_code_range *range)
{
	const struct inode *inode = range->checked;

	return (inode_get_ctime_sec(inode) ^ range->changed) |
	       (raw_changed_nsec(inode) ^ range->changed_nsec) |
	       (unsigned int)atomic_read(&inode->i_data.i_mmap_writable);
}

/*
 * Begins to check the file of a range in each walk. The range's mapping has the inode now, and the
 * caller is an RCU reader.
 */
static bool begin_to_check(struct sfu_code_range *range)
{
	const struct inode *inode = (struct inode *)(uintptr_t)range->inode;
	const struct sfu_file_key *key = range->key;

	/* The vDSO has no file. The state of the mappings is all that it depends on. */
	if (range->inode == SFU_NO_FILE) {
		range->walk = U64_MAX;
		return true;
	}
	/* Only file systems for clusters, and devices, share the pages of another inode. */
	if (inode->i_mapping != &inode->i_data)
		return false;
	range->changed_nsec = raw_changed_nsec(inode);
	if (inode_get_ctime_nsec(inode) != READ_ONCE(key->changed_nsec) ||
	    inode_get_ctime_sec(inode) != READ_ONCE(key->changed) || is_written_to(inode))
		return false;
	range->changed = READ_ONCE(key->changed);
	range->checked = inode;
	range->walk = U64_MAX;
	return true;
}

/*
 * A generation from 1 to SFU_KEPT_RULES - 1. The factor is odd, so all are given before one is
 * given again. Two generations in sequence have their rules far apart.
 */
static uint32_t next_generation(struct code_caches *all)
{
	return ++all->generations * 2731 % SFU_KEPT_RULES;
}

/* Makes and empties rules: it takes too long for a walk. */
static void prepare_rules(struct work_struct *work)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct code_caches *all = per_cpu_ptr(code_caches, cpu);
		uint64_t i;

		/* Pairs with want_rules(): no walk uses the rules. */
		if (smp_load_acquire(&all->state) != RULES_WANTED)
			continue;
		if (!all->rules)
			all->rules = kvmalloc_node(SFU_KEPT_RULES * sizeof(*all->rules),
						   GFP_KERNEL | __GFP_NOWARN, cpu_to_node(cpu));
		if (!all->rules) {
			/* A later walk tries again. Pairs with rules_of(). */
			smp_store_release(&all->state, RULES_NONE);
			continue;
		}
		for (i = 0; i < SFU_KEPT_RULES; i++)
			all->rules[i] = (struct sfu_kept_rule){ .key = i << 4 };
		/* Pairs with rules_of(): the rules are empty. */
		smp_store_release(&all->state, RULES_EMPTY);
	}
}
static DECLARE_WORK(preparation, prepare_rules);

static void schedule_preparation(struct irq_work *work)
{
	schedule_work(&preparation);
}
static DEFINE_IRQ_WORK(preparation_request, schedule_preparation);

static void want_rules(struct code_caches *all)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(all->of); i++)
		all->of[i].rules = NULL;
	/* Pairs with prepare_rules(). */
	smp_store_release(&all->state, RULES_WANTED);
	irq_work_queue(&preparation_request);
}

/*
 * Gives a code cache of this CPU a new generation. When all have been given, the rules of the CPU
 * are emptied before one is given again; until then, none are kept.
 */
void sfu_code_cache_renew(struct sfu_code_cache *own)
{
	struct code_caches *all = this_cpu_ptr(code_caches);

	if (unlikely(all->generations == SFU_KEPT_RULES - 1)) {
		if (READ_ONCE(all->state) == RULES_USED)
			want_rules(all);
	} else {
		own->generation = next_generation(all);
	}
}

/* The rules of this CPU; NULL if they are being prepared. */
static struct sfu_kept_rule *rules_of(struct code_caches *all)
{
	unsigned int i;

	/* Pairs with prepare_rules(). */
	switch (smp_load_acquire(&all->state)) {
	case RULES_USED:
		return all->rules;
	case RULES_NONE:
		want_rules(all);
		break;
	case RULES_EMPTY:
		all->generations = 0;
		for (i = 0; i < ARRAY_SIZE(all->of); i++)
			all->of[i].generation = next_generation(all);
		WRITE_ONCE(all->state, RULES_USED);
		return all->rules;
	case RULES_WANTED:
		break;
	}
	return NULL;
}

/* Where a file was changed, drops the range. Returns the range to check next. */
static noinline struct sfu_code_range *examine(struct sfu_code_cache *own,
					       struct sfu_code_range *range)
{
	struct sfu_code_range *last = &own->ranges[SFU_CODE_RANGES];

	if (begin_to_check(range))
		return range + 1;
	memmove(range, range + 1, (char *)last - (char *)range);
	/* The rules of the range must not be used any more. */
	sfu_code_cache_renew(own);
	return range;
}

/*
 * Checks the files of all ranges, for this walk. Regions are left to the walk: they may have a
 * guard in the task's memory. Ranges with SFU_DOUBTFUL are left to sfu_code_range_at().
 */
static __always_inline void check_ranges(struct sfu_code_cache *own)
{
	struct sfu_code_range *range = own->ranges;

	own->walk++;
	for (;;) {
		uint64_t changes;

		/* Ten instructions for each file. */
		do {
			changes = changes_of(range++);
		} while (likely(!changes));
		range--;
		/* The last range is never used. */
		if (likely(range->start == U64_MAX))
			break;
		if (range->checked == &nothing)
			range++;
		else
			range = examine(own, range);
	}
}

static void forget_ranges(struct sfu_code_cache *own)
{
	struct sfu_code_range *range;

	for (range = own->ranges; range != own->ranges + ARRAY_SIZE(own->ranges); range++)
		*range = unused;
}

/*
 * Keeps the ranges that a walk has used since the state of the mappings before. They have
 * SFU_DOUBTFUL until look_up(). The caller calls sfu_code_cache_renew() or look_up_all(): a walk
 * uses the rules of a range before it uses the range. Regions are not kept.
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
		kept->checked = &nothing;
		kept->changed = unused.changed;
		kept->walk = 0;
		kept++;
	}
	for (; kept != range; kept++)
		*kept = unused;
}

/*
 * Notes that the tables of all ranges are in use. Walks do not tell which ranges they use. So each
 * DROP_AFTERth call puts all ranges in doubt, and drops the ranges that no walk has used since the
 * ranges were in doubt before.
 */
static void note_use(struct sfu_code_cache *own)
{
	struct sfu_code_range *range;

	for (range = own->ranges; range->start != U64_MAX; range++) {
		if (!(range->inode & (SFU_REGION | SFU_DOUBTFUL)))
			sfu_table_used(range->key);
	}
	if (!(++own->uses % DROP_AFTER)) {
		doubt_ranges(own);
		sfu_code_cache_renew(own);
	}
}

/*
 * Looks up the mapping of a range that has SFU_DOUBTFUL. Its table is published, because the
 * generation of tables is still that of the range.
 */
static void look_up(struct sfu_code_cache *own, struct sfu_code_range *range, struct ma_state *mas)
{
	if (!sfu_is_mapped_still(range, own->sequence, mas))
		return;
	range->inode &= ~(uint64_t)SFU_DOUBTFUL;
	sfu_table_used(range->key);
	if (!begin_to_check(range))
		range->inode |= SFU_DOUBTFUL;
}

static noinline void look_up_one(struct sfu_code_cache *own, struct sfu_code_range *range)
{
	MA_STATE(mas, &current->mm->mm_mt, 0, 0);

	/* Preemption is off, but the tree asks for this. */
	rcu_read_lock();
	look_up(own, range, &mas);
	rcu_read_unlock();
}

/*
 * Whether all ranges are mapped as they were, in a new state of the mappings. Their inodes are
 * alive then, so check_ranges() may check the files: as in begin_to_check(), an inode with the
 * file's time of change is that of the file. A range that this walk does not use costs up to 260
 * instructions in vain; one that it does use would cost twice as much later, and its rules would
 * have to be found anew.
 */
static __always_inline bool are_mapped_still(struct sfu_code_cache *own, struct ma_state *mas)
{
	const struct sfu_code_range *range;

	for (range = own->ranges; range->start != U64_MAX; range++) {
		const struct inode *inode = range->checked;

		if (unlikely(range->inode & (SFU_REGION | SFU_DOUBTFUL)) ||
		    !sfu_is_mapped_still(range, own->sequence, mas) ||
		    (inode != &nothing && inode->i_mapping != &inode->i_data))
			return false;
	}
	return true;
}

/* Looks up all ranges in a new state of the mappings. The generation stays if all have come. */
static noinline struct sfu_code_cache *look_up_all(struct sfu_code_cache *own)
{
	MA_STATE(mas, &current->mm->mm_mt, 0, 0);
	struct sfu_code_range *range;

	rcu_read_lock();
	if (unlikely(!are_mapped_still(own, &mas))) {
		doubt_ranges(own);
		for (range = own->ranges; range->start != U64_MAX; range++) {
			look_up(own, range, &mas);
			if (range->inode & SFU_DOUBTFUL) {
				sfu_code_cache_renew(own);
				break;
			}
		}
	}
	rcu_read_unlock();
	return own;
}

/* Takes the code cache of the process `id`, in this state of its mappings and of all tables. */
static noinline struct sfu_code_cache *take(uint64_t id, uint64_t sequence)
{
	struct code_caches *caches = this_cpu_ptr(code_caches);
	struct sfu_code_cache *all = caches->of, *own = all;
	bool is_changed = false;
	unsigned int i;

	/* A code cache that is not used is the first to expire. */
	for (i = 0; i < ARRAY_SIZE(code_caches->of) && own->id != id; i++) {
		if (all[i].id == id || time_before64(all[i].until, own->until))
			own = &all[i];
	}
	/* The number of a table that was removed is not used again. */
	if (own->id != id || (own->sequence ^ sequence) >> 32 ||
	    time_after64(get_jiffies_64(), own->until)) {
		forget_ranges(own);
		sfu_code_cache_renew(own);
		own->balance = 0;
	} else if (own->sequence == (sequence | 1)) {
		note_use(own);
	} else {
		is_changed = own->sequence != sequence;
	}
	own->rules = rules_of(caches);
	own->id = id;
	own->sequence = sequence;
	own->until = get_jiffies_64() + RANGES_HOLD;
	this_cpu_write(last_code_cache, own);
	/* At the end, where the stack of this function is free again. */
	return is_changed ? look_up_all(own) : own;
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

bool sfu_code_cache_may_have(uint64_t ra)
{
	const struct sfu_code_range *range = this_cpu_read(last_code_cache)->ranges;

	/* A walk on this CPU may change the ranges meanwhile, but never the last one. */
	while (ra > READ_ONCE(range->end))
		range++;
	return ra > READ_ONCE(range->start) && !(READ_ONCE(range->inode) & SFU_REGION);
}

struct sfu_code_range *sfu_code_range_at(struct sfu_code_cache *own, uint64_t ra)
{
	struct sfu_code_range *range = own->ranges;

	/* An unused range ends at U64_MAX. */
	while (ra > range->end)
		range++;
	own->places[(ra >> 16) % SFU_CODE_PLACES] = (char *)range - (char *)own->ranges;
	if (unlikely(range->inode & SFU_DOUBTFUL) && !(range->inode & SFU_REGION))
		look_up_one(own, range);
	return range;
}

bool sfu_code_range_find_table(struct sfu_code_range *range, uint64_t number)
{
	range->checked = unused.checked;
	range->changed = unused.changed;
	range->walk = 0;
	if (!sfu_table_of_range(range, number))
		return false;
	/* A region is checked by the walks that use it. */
	return range->inode & SFU_REGION || begin_to_check(range);
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
		/*
		 * No state of mappings in which a walk uses ranges has an odd number. take() knows
		 * the state by the other bits.
		 */
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
	int cpu;

	irq_work_sync(&preparation_request);
	cancel_work_sync(&preparation);
	for_each_possible_cpu(cpu)
		kvfree(per_cpu_ptr(code_caches, cpu)->rules);
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

/* The generation of the running test's code cache on this CPU; 0 if the cache cannot be taken. */
static uint32_t generation_of_test(void)
{
	struct sfu_code_cache *own = sfu_code_cache_enter();
	uint32_t generation = own ? own->generation : 0;

	if (own)
		sfu_code_cache_leave(own);
	return generation;
}

bool sfu_test_generations_differ(void)
{
	const uint64_t ra = 0x7f1234567895;
	struct sfu_code_cache *own;
	struct code_caches *all;
	bool differ = true;
	unsigned int i, k;

	migrate_disable();
	all = this_cpu_ptr(code_caches);
	own = &all->of[2];
	this_cpu_write(code_cache_is_busy, true);
	/* Each generation is given several times. */
	for (i = 0; differ && i < 3 * SFU_KEPT_RULES; i++) {
		struct sfu_kept_rule *rule;

		sfu_code_cache_renew(own);
		while (!rules_of(all))
			msleep(20);
		rule = &all->rules[((ra >> 4) + 2 * own->generation) % SFU_KEPT_RULES];
		differ = own->generation > 0 && own->generation < SFU_KEPT_RULES &&
			 rule->key != ra + 16ull * own->generation;
		for (k = 0; k < ARRAY_SIZE(all->of); k++)
			differ = differ && (own == &all->of[k] ||
					    own->generation != all->of[k].generation);
		rule->key = ra + 16ull * own->generation;
	}
	/* The rules of the test have no CFA. */
	want_rules(all);
	this_cpu_write(code_cache_is_busy, false);
	migrate_enable();
	return differ;
}

/* Puts the code of a file at `address` into a place of the running test's code cache. */
static bool put_test_range(unsigned int place, const struct sfu_file_key *key, uint64_t address)
{
	struct sfu_code_cache *own = sfu_code_cache_enter();
	struct sfu_code_range range = unused;
	struct sfu_mapping mapping;
	bool put = false;

	if (!own)
		return false;
	range.start = address;
	range.end = address + PAGE_SIZE;
	range.key = key;
	if (!sfu_find_mapping(address, &mapping)) {
		range.inode = mapping.inode;
		range.to_offset = mapping.offset - mapping.start;
		put = begin_to_check(&range);
		if (put)
			own->ranges[place] = range;
	}
	sfu_code_cache_leave(own);
	return put;
}

/* Whether the code cache of the running test uses the range in a place, and its generation. */
static bool has_test_range(unsigned int place, uint32_t generation)
{
	struct sfu_code_cache *own = sfu_code_cache_enter();
	bool has;

	if (!own)
		return false;
	has = own->ranges[place].walk == U64_MAX && own->generation == generation;
	sfu_code_cache_leave(own);
	return has;
}

bool sfu_test_renews_generation(const struct sfu_file_key *key, uint64_t address)
{
	static const uint8_t code[64];
	struct sfu_file_key second_key, other_key;
	int64_t second = sfu_test_map_file(0, code, sizeof(code), &second_key);
	uint32_t first;
	bool kept, renewed;

	if (second < 0)
		return false;
	migrate_disable();
	kept = put_test_range(0, key, address) && put_test_range(1, &second_key, second);
	first = generation_of_test();
	sfu_code_cache_forget();
	kept = kept && first && has_test_range(0, first) && has_test_range(1, first);
	/* The start of a walk looks up both. */
	kept = kept && sfu_test_map(PAGE_SIZE, false) > 0 && has_test_range(0, first) &&
	       has_test_range(1, first);
	renewed = sfu_test_map_file(second, code, sizeof(code), &other_key) == second &&
		  generation_of_test() != first && has_test_range(0, generation_of_test()) &&
		  !has_test_range(1, generation_of_test());
	migrate_enable();
	return kept && renewed;
}

bool sfu_test_checks_files(const struct sfu_file_key *key, uint64_t address)
{
	struct sfu_mapping mapping;
	struct inode *inode;
	uint32_t first, second;
	bool checks;

	if (sfu_find_mapping(address, &mapping))
		return false;
	inode = (struct inode *)(uintptr_t)mapping.inode;
	migrate_disable();
	checks = put_test_range(0, key, address);
	first = generation_of_test();
	checks = checks && first && has_test_range(0, first);
	/* Somebody may write to the file through a mapping. */
	checks = checks && !mapping_map_writable(inode->i_mapping);
	checks = checks && !has_test_range(0, first);
	mapping_unmap_writable(inode->i_mapping);
	second = generation_of_test();
	checks = checks && second != first && !has_test_range(0, second);
	/* Somebody has read the time of change: that is no change. */
	checks = checks && put_test_range(0, key, address) && has_test_range(0, second);
	fill_mg_cmtime(&(struct kstat){}, STATX_CTIME, inode);
	checks = checks && has_test_range(0, second);
	/* The file was changed. */
	inode_set_ctime(inode, key->changed, key->changed_nsec ^ 1);
	checks = checks && !has_test_range(0, second) && generation_of_test() != second;
	migrate_enable();
	return checks;
}
#endif
