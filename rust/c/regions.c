// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regions: code that processes make at run time, by process. Readers in any context find a region
 * without a lock. Tasks that may sleep change regions under regions_lock. A region names its
 * process by the ID of the process's mm: no other mm ever has this ID, so a region of a process
 * that has exited, or has called exec, is never found again.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/rculist.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/siphash.h>
#include <linux/slab.h>

#include "internal.h"

/*
 * The most regions, and the most of one process. A user other than root is charged at most half of
 * all.
 */
#define REGIONS 1024
#define REGIONS_OF_PROCESS 32
/* The most regions of one hash bucket that a reader looks at. */
#define REGIONS_LOOKED_AT 64
/*
 * The time that user space has to answer a request, and the time for which its answer "no region"
 * holds.
 */
#define ASK_AGAIN (2 * HZ)
#define NONE_HOLDS (10 * HZ)

struct region {
	struct hlist_node by_process;
	struct list_head of_all;
	uint64_t mm_id;
	struct sframe_unwind_region description;
	/* The process; NULL for requests. */
	struct pid *process;
	uint32_t user;
	/* In jiffies: the last use, and the end of a description of kind NONE. */
	unsigned long used;
	unsigned long until;
	/* Nobody has read the request for this code. */
	bool requested;
	/* Kind NONE: user space has said so, of this code or of earlier code here. */
	bool plain;
	struct rcu_head rcu;
};

static DEFINE_HASHTABLE(regions_by_process, 8);
static LIST_HEAD(regions);
/* Protects both. Readers use RCU. */
static DEFINE_MUTEX(regions_lock);
/* Changes when a region with rows is withdrawn. */
static uint64_t regions_generation;

static uint64_t hash_of(uint64_t mm_id)
{
	return siphash_1u64(mm_id, &sfu_secret);
}

int sfu_find_region(uint64_t address, struct sfu_mapping *mapping,
		    struct sframe_unwind_region *found)
{
	uint64_t id = sfu_mm_id(current->mm);
	int left = REGIONS_LOOKED_AT, answer = 0;
	bool has_regions = false;
	struct region *region;

	/*
	 * Before the search: if a region that it finds is withdrawn, now or later, the generation
	 * is another.
	 */
	mapping->inode = smp_load_acquire(&regions_generation) << 2 | SFU_REGION;
	found->kind = SFRAME_UNWIND_REGION_NONE;
	found->start = 0;
	found->end = U64_MAX;
	rcu_read_lock();
	hash_for_each_possible_rcu(regions_by_process, region, by_process, hash_of(id)) {
		const struct sframe_unwind_region *description = &region->description;

		if (!left--)
			break;
		if (region->mm_id != id)
			continue;
		has_regions |= description->kind != SFRAME_UNWIND_REGION_NONE;
		if (address - description->start < description->end - description->start) {
			if (description->kind) {
				if (description->kind != SFRAME_UNWIND_REGION_ROWS ||
				    sfu_use_table(description->table))
					*found = *description;
			} else if (time_before(jiffies, READ_ONCE(region->until))) {
				answer |= SFU_CODE_ASKED;
			}
			if (region->plain) {
				answer |= SFU_CODE_PLAIN;
				if (!found->kind) {
					found->start = max(found->start, description->start);
					found->end = min(found->end, description->end);
				}
			}
			if (READ_ONCE(region->used) != jiffies)
				WRITE_ONCE(region->used, jiffies);
		} else if ((description->kind || region->plain) && !found->kind) {
			if (description->start > address)
				found->end = min(found->end, description->start);
			else
				found->start = max(found->start, description->end);
		}
	}
	rcu_read_unlock();
	return has_regions ? answer : answer | SFU_CODE_PLAIN;
}

bool sfu_code_range_has_region(const struct sfu_code_range *range)
{
	return range->inode == (READ_ONCE(regions_generation) << 2 | SFU_REGION);
}

static void withdraw(struct region *region)
{
	lockdep_assert_held(&regions_lock);
	hash_del_rcu(&region->by_process);
	list_del_rcu(&region->of_all);
	if (region->description.kind == SFRAME_UNWIND_REGION_ROWS)
		/* After the removal: see sfu_find_region(). */
		smp_store_release(&regions_generation, regions_generation + 1);
	put_pid(region->process);
	kfree_rcu(region, rcu);
}

/* Whether user space was asked for exactly this range. */
static bool was_requested(const struct region *new)
{
	const struct region *region;

	lockdep_assert_held(&regions_lock);
	list_for_each_entry(region, &regions, of_all)
		if (region->mm_id == new->mm_id && !region->description.kind &&
		    region->description.start == new->description.start &&
		    region->description.end == new->description.end)
			return true;
	return false;
}

/* Whether user space has said that there is no region in all of this range. */
static bool is_plain(const struct region *new)
{
	const struct region *region;

	lockdep_assert_held(&regions_lock);
	list_for_each_entry(region, &regions, of_all)
		if (region->mm_id == new->mm_id && region->plain &&
		    region->description.start <= new->description.start &&
		    new->description.end <= region->description.end)
			return true;
	return false;
}

/*
 * Removes the regions that a new one replaces. A request, and the answer that there is no region,
 * keep regions of other kinds: their range is a whole mapping, and the process may have described a
 * part of it. A request also keeps the answer that a part of the mapping has no region.
 */
static void replace(const struct region *new)
{
	struct region *region, *next;
	bool keeps = new->requested || (!new->description.kind && was_requested(new));

	lockdep_assert_held(&regions_lock);
	list_for_each_entry_safe(region, next, &regions, of_all)
		if (region->mm_id == new->mm_id &&
		    region->description.start < new->description.end &&
		    new->description.start < region->description.end &&
		    !(keeps && region->description.kind) &&
		    !(new->requested && region->plain && !new->plain))
			withdraw(region);
}

static bool is_older(const struct region *a, const struct region *b)
{
	return time_before(READ_ONCE(a->used), READ_ONCE(b->used));
}

/*
 * The region that was used least recently, if there are `most` or more: of the process with this
 * mm, unless `mm_id` is 0; of this user, unless `user` is 0.
 */
static noinline struct region *least_used(uint64_t mm_id, uint32_t user, unsigned int most)
{
	struct region *region, *least = NULL;

	lockdep_assert_held(&regions_lock);
	list_for_each_entry(region, &regions, of_all) {
		if ((mm_id && region->mm_id != mm_id) || (user && region->user != user))
			continue;
		most -= !!most;
		if (!least || is_older(region, least))
			least = region;
	}
	return most ? NULL : least;
}

static bool has_exited(const struct region *region)
{
	bool exited;

	rcu_read_lock();
	exited = region->process && !pid_task(region->process, PIDTYPE_TGID);
	rcu_read_unlock();
	return exited;
}

/* Users share a count: see sfu_number_of_user(). */
#define USERS 256

/*
 * The region that makes way if all are used; -ENOSPC if none may. Regions of processes that have
 * exited go first; then requests, and answers that there is no region. A request displaces nothing
 * else. A described region displaces one of the user who has the most of them, so that no user can
 * displace all regions of others. Regions of root make way for regions of root only.
 */
static noinline struct region *makes_way(const struct region *new)
{
	static uint16_t counts[USERS];
	struct region *region, *least = NULL;
	unsigned int all = 0, most = 0, count;

	lockdep_assert_held(&regions_lock);
	memset(counts, 0, sizeof(counts));
	list_for_each_entry(region, &regions, of_all) {
		all++;
		if (region->description.kind)
			counts[sfu_number_of_user(region->user, USERS)]++;
		else if (!least || is_older(region, least))
			least = region;
	}
	if (all < REGIONS)
		return NULL;
	list_for_each_entry(region, &regions, of_all)
		if (has_exited(region))
			return region;
	if (least)
		return least;
	if (!new->description.kind)
		return ERR_PTR(-ENOSPC);
	list_for_each_entry(region, &regions, of_all) {
		if (!region->user && new->user)
			continue;
		count = region->user ? counts[sfu_number_of_user(region->user, USERS)] : 0;
		if (least && (count < most || (count == most && !is_older(region, least))))
			continue;
		least = region;
		most = count;
	}
	return least ?: ERR_PTR(-ENOSPC);
}

/* Removes a region if a bound is reached. */
static int make_room(const struct region *new)
{
	struct region *least = least_used(new->mm_id, 0, REGIONS_OF_PROCESS);

	if (!least && new->user)
		least = least_used(0, new->user, REGIONS / 2);
	least = least ?: makes_way(new);
	if (IS_ERR(least) ? new->description.kind :
	    least && least->description.kind && !has_exited(least))
		this_cpu_inc(sfu_counter[SFU_REGIONS_FULL]);
	if (IS_ERR(least))
		return PTR_ERR(least);
	if (least)
		withdraw(least);
	return 0;
}

/* `process` is NULL for a request. */
static int add(uint64_t mm_id, struct pid *process, uint32_t user,
	       const struct sframe_unwind_region *description)
{
	struct region *new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	bool requested = !process;
	int ret;

	if (!new)
		return -ENOMEM;
	new->mm_id = mm_id;
	new->user = user;
	new->description = *description;
	new->requested = requested;
	new->process = get_pid(process);
	new->used = jiffies;
	new->until = jiffies + (requested ? ASK_AGAIN : NONE_HOLDS);
	mutex_lock(&regions_lock);
	/* A request does not withdraw an earlier answer. */
	new->plain = requested ? is_plain(new) : !description->kind;
	replace(new);
	ret = make_room(new);
	if (!ret) {
		hash_add_rcu(regions_by_process, &new->by_process, hash_of(mm_id));
		list_add_tail_rcu(&new->of_all, &regions);
	}
	mutex_unlock(&regions_lock);
	if (ret) {
		put_pid(new->process);
		kfree(new);
	} else if (requested) {
		wake_up_interruptible(&sfu_requests_wait);
	}
	return ret;
}

int sfu_region_add(struct sframe_unwind_region *description, bool own_only)
{
	const struct cred *cred;
	struct task_struct *task;
	struct mm_struct *mm;
	struct pid *process;
	uint32_t user;
	int ret;

	/* The removal of a region with rows makes the next walks of all processes slower. */
	if (own_only && (description->kind == SFRAME_UNWIND_REGION_ROWS ||
			 description->pid != task_tgid_vnr(current)))
		return -EPERM;
	if (description->kind == SFRAME_UNWIND_REGION_ROWS) {
		description->table = sfu_table_of_descriptor(description->rows_file);
		if (!description->table)
			return -ENOENT;
	}
	process = find_get_pid(description->pid);
	task = get_pid_task(process, PIDTYPE_TGID);
	if (!task) {
		put_pid(process);
		return -ESRCH;
	}
	cred = get_task_cred(task);
	task_lock(task);
	user = sfu_charged_user(cred, task->nsproxy);
	task_unlock(task);
	put_cred(cred);
	mm = get_task_mm(task);
	put_task_struct(task);
	ret = -ESRCH;
	if (mm) {
		ret = add(sfu_mm_id(mm), process, user, description);
		/* The last user of the mm may wait for a file system that hangs. */
		mmput_async(mm);
	}
	put_pid(process);
	return ret;
}

#ifdef CONFIG_KUNIT
/* The ID of the running test's mm, or one that no mm has. */
static uint64_t test_mm_id(uint64_t other)
{
	return sfu_mm_id(current->mm) ^ other << 48;
}

int sfu_test_add_region(const struct sframe_unwind_region *description, uint64_t other,
			uint32_t user)
{
	return add(test_mm_id(other), task_pid(current), user, description);
}

bool sfu_test_has_region(uint64_t start)
{
	const struct region *region;
	bool has = false;

	mutex_lock(&regions_lock);
	list_for_each_entry(region, &regions, of_all)
		has |= region->mm_id == test_mm_id(0) && region->description.start == start;
	mutex_unlock(&regions_lock);
	return has;
}
#endif

void sfu_region_request(uint64_t mm_id, pid_t pid, uint32_t user, uint64_t start, uint64_t end)
{
	const struct sframe_unwind_region description = { .pid = pid, .start = start, .end = end };

	/* If there is no memory or no room, the code is requested again. */
	add(mm_id, NULL, user, &description);
}

bool sfu_next_region_request(struct sframe_unwind_request *request)
{
	struct region *region;
	bool found = false;

	mutex_lock(&regions_lock);
	list_for_each_entry(region, &regions, of_all) {
		if (!region->requested)
			continue;
		WRITE_ONCE(region->requested, false);
		WRITE_ONCE(region->until, jiffies + ASK_AGAIN);
		*request = (struct sframe_unwind_request){
			.pid = region->description.pid,
			.start = region->description.start,
			.end = region->description.end,
			.user = region->user,
		};
		found = true;
		break;
	}
	mutex_unlock(&regions_lock);
	return found;
}

bool sfu_has_region_requests(void)
{
	const struct region *region;
	bool has = false;

	rcu_read_lock();
	list_for_each_entry_rcu(region, &regions, of_all)
		has = has || READ_ONCE(region->requested);
	rcu_read_unlock();
	return has;
}

void sfu_regions_stop(void)
{
	struct region *region, *next;

	mutex_lock(&regions_lock);
	list_for_each_entry_safe(region, next, &regions, of_all)
		withdraw(region);
	mutex_unlock(&regions_lock);
}
