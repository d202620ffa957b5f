// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tables by file. Readers in any context find a table without a lock. Tasks that may sleep change
 * tables under tables_lock.
 *
 * Policy that stays in C, because it works on the list under its lock: limits of tables and bytes,
 * quotas of users, and eviction (make_room(), least_used()). See
 * Documentation/decisions/policy-in-c.rst.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dcache.h>
#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/shrinker.h>
#include <linux/siphash.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/wait.h>

#include "files.h"

static int tables_mib_set(const char *text, const struct kernel_param *param);

static unsigned int tables_mib = 128;
static const struct kernel_param_ops tables_mib_ops = {
	.set = tables_mib_set,
	.get = param_get_uint,
};
module_param_cb(tables_mib, &tables_mib_ops, &tables_mib, 0644);
__MODULE_PARM_TYPE(tables_mib, "uint");
MODULE_PARM_DESC(tables_mib, "The most memory for tables of files' rows, in MiB (128)");

/*
 * The maximum number of known files. A table's number is its slot plus a multiple of TABLES, and
 * no number is given twice.
 */
#define TABLES 4096
/* The most tables of one hash bucket that a reader looks at. */
#define TABLES_LOOKED_AT 64
/* The time for which a file that could not be read is not tried again. */
#define TRY_AGAIN (10 * HZ)
/* The time that user space has to answer a request before the file is requested again. */
#define ASK_AGAIN (2 * HZ)

uint64_t sfu_tables_limit(void)
{
	return (uint64_t)READ_ONCE(tables_mib) << 20;
}

struct table {
	struct hlist_node by_file;
	struct sfu_file_key key;
	uint64_t number;
	/* NULL if the file has no rows. */
	void *rows;
	struct sfu_table_state state;
	/* The path, or NULL. */
	char *path;
	/* In jiffies: the last use, and the end of what is known; 0 is no end. */
	unsigned long used;
	unsigned long until;
	/* The walks that were cut in this file. */
	atomic64_t cuts;
	/* Nobody has read the request for rows of this file. */
	bool requested;
	/* The file was mapped so that it can be written to without a trace. */
	bool is_doubtful;
	struct rcu_head rcu;
};

static DEFINE_HASHTABLE(tables_by_file, 10);
static struct table __rcu *tables[TABLES];
uint64_t sfu_table_generation;
/* Protects the published tables. Readers use RCU. */
static DEFINE_MUTEX(tables_lock);
/* The bytes of all tables, and the bytes of tables that were not added. Under the lock. */
static uint64_t bytes_of_all, bytes_of_files;
/* The number of tables with a request. Changed under the lock. */
static unsigned int requests;
DECLARE_WAIT_QUEUE_HEAD(sfu_requests_wait);
atomic_t sfu_request_readers;

/* In jiffies: when the shrinker last freed a table, or 0. */
static unsigned long shrunk;

/*
 * Whether both are of one inode, perhaps with other contents, or perhaps in another image on the
 * device.
 */
static bool is_same_inode(const struct sfu_file_key *a, const struct sfu_file_key *b)
{
	return a->number == b->number && a->file_system == b->file_system &&
	       a->device == b->device && a->inode_generation == b->inode_generation;
}

static bool is_same(const struct sfu_file_key *a, const struct sfu_file_key *b)
{
	return is_same_inode(a, b) && READ_ONCE(a->unmounts) == b->unmounts && a->size == b->size &&
	       READ_ONCE(a->changed) == b->changed && READ_ONCE(a->changed_nsec) == b->changed_nsec;
}

/*
 * Whether a file that was renamed, linked, given other rights, or mounted again has the contents
 * for which rows were added: nobody says that the contents were modified, and the build ID is the
 * same.
 */
static bool is_still(const struct table *old, const struct table *new)
{
	return is_same_inode(&old->key, &new->key) && old->key.size == new->key.size &&
	       old->key.modified == new->key.modified &&
	       old->key.modified_nsec == new->key.modified_nsec &&
	       new->state.build_id_len && old->state.build_id_len == new->state.build_id_len &&
	       !memcmp(old->state.build_id, new->state.build_id, sizeof(old->state.build_id));
}

static uint64_t hash_of(const struct sfu_file_key *key)
{
	return siphash_3u64(key->number, (uint64_t)key->device << 32 | key->inode_generation,
			    key->file_system, &sfu_secret);
}

static struct table *table_of_file(const struct sfu_file_key *key)
{
	int left = TABLES_LOOKED_AT;
	struct table *table;

	hash_for_each_possible_rcu(tables_by_file, table, by_file, hash_of(key),
				   lockdep_is_held(&tables_lock)) {
		if (is_same(&table->key, key))
			return table;
		if (!--left)
			break;
	}
	return NULL;
}

/*
 * The table of the same inode, perhaps with other contents. Files of different subvolumes may have
 * the same number, and hardly have the same generation.
 */
static struct table *table_of_inode(const struct sfu_file_key *key)
{
	struct table *table;

	lockdep_assert_held(&tables_lock);
	hash_for_each_possible(tables_by_file, table, by_file, hash_of(key))
		if (is_same_inode(&table->key, key))
			return table;
	return NULL;
}

/* The entry of a file, if the entry has not expired. */
static struct table *known_table(const struct sfu_file_key *key)
{
	struct table *table = table_of_file(key);
	unsigned long until = table ? READ_ONCE(table->until) : 0;

	if (!table || READ_ONCE(table->is_doubtful) || (until && time_after(jiffies, until)))
		return NULL;
	return table;
}

/* The table of a number. The caller has RCU, or preemption off. */
static struct table *table_of_number(uint64_t number)
{
	struct table *table = rcu_dereference_check(tables[number % TABLES],
						    rcu_read_lock_sched_held());

	return table && table->number == number ? table : NULL;
}

static void is_used(struct table *table)
{
	if (READ_ONCE(table->used) != jiffies)
		WRITE_ONCE(table->used, jiffies);
}

/* Whether somebody may still tell of a file; @table: what is known of it, or NULL. */
static bool is_awaited(const struct table *table)
{
	if (table && (table->rows || table->state.origin == SFRAME_UNWIND_ADDED))
		return false;
	return atomic_read(&sfu_request_readers);
}

void sfu_find_table(struct sfu_mapping *mapping)
{
	struct inode *inode = (struct inode *)(uintptr_t)mapping->inode;
	struct sfu_file_key key = {};
	struct table *table;

	mapping->table = 0;
	mapping->has_rows = mapping->keeps_frame_pointer = mapping->is_awaited = false;
	mapping->is_known = true;
	if (!inode || !READ_ONCE(sfu_table_generation)) {
		mapping->is_known = !inode;
		mapping->is_awaited = is_awaited(NULL);
		return;
	}
	if ((uintptr_t)inode != SFU_NO_FILE)
		read_key(inode, &key);
	else if (!mapping->is_vdso)
		return;
	table = known_table(&key);
	if ((uintptr_t)inode != SFU_NO_FILE && is_written_to(inode)) {
		/* Its section is read as the task's memory. */
		if (table && table->rows)
			WRITE_ONCE(table->is_doubtful, true);
		return;
	}
	mapping->is_awaited = is_awaited(table);
	if (!table) {
		mapping->is_known = false;
		return;
	}
	is_used(table);
	mapping->table = table->number;
	mapping->has_rows = table->rows;
	mapping->keeps_frame_pointer = table->state.keeps_frame_pointer;
}

void sfu_table_used(const struct sfu_file_key *key)
{
	is_used(container_of(key, struct table, key));
}

uint64_t sfu_code_range_table(const struct sfu_code_range *range, bool *keeps_frame_pointer)
{
	const struct table *table = container_of(range->key, struct table, key);

	*keeps_frame_pointer = table->state.keeps_frame_pointer;
	return table->number;
}

bool sfu_table_of_range(struct sfu_code_range *range, uint64_t number)
{
	/*
	 * A table that is removed meanwhile changes sfu_table_generation afterwards, and so empties
	 * the code cache.
	 */
	struct table *table = table_of_number(number);

	if (!table || !table->rows)
		return false;
	range->key = &table->key;
	range->rows = table->rows;
	return true;
}

uint64_t sfu_table_of_descriptor(int descriptor)
{
	struct file *file = fget(descriptor);
	const struct table *table;
	struct sfu_file_key key;
	uint64_t number;

	if (!file)
		return 0;
	read_key(file_inode(file), &key);
	rcu_read_lock();
	table = known_table(&key);
	number = table && table->rows ? table->number : 0;
	rcu_read_unlock();
	fput(file);
	return number;
}

bool sfu_use_table(uint64_t number)
{
	struct table *table = table_of_number(number);

	if (table)
		is_used(table);
	return table;
}

const void *sfu_table_rows(uint64_t number)
{
	const struct table *table = table_of_number(number);

	return table ? table->rows : NULL;
}

void sfu_count_cut(uint64_t number)
{
	struct table *table;

	rcu_read_lock();
	table = table_of_number(number);
	if (table)
		atomic64_inc(&table->cuts);
	rcu_read_unlock();
}

bool sfu_is_known(const struct sfu_file_key *key)
{
	bool known;

	rcu_read_lock();
	known = known_table(key);
	rcu_read_unlock();
	return known;
}

static void free_table(struct rcu_head *rcu)
{
	struct table *table = container_of(rcu, struct table, rcu);

	if (table->rows)
		sframe_unwind_free_rows(table->rows);
	kfree(table->path);
	kfree(table);
}

static struct table *table_at(unsigned int slot)
{
	return rcu_dereference_protected(tables[slot], lockdep_is_held(&tables_lock));
}

/* Whether a table tells walks something. */
static bool is_useful(const struct table *table)
{
	return table->rows || table->state.keeps_frame_pointer;
}

/*
 * Whether a table makes way for added rows only. An added answer "no rows" makes way for any table.
 */
static bool is_kept(const struct table *table)
{
	return table->state.origin == SFRAME_UNWIND_ADDED && is_useful(table);
}

/* Adds the bytes of a table to the totals, or subtracts them. */
static void account(const struct table *table, bool less)
{
	lockdep_assert_held(&tables_lock);
	uint64_t bytes = less ? -table->state.bytes : table->state.bytes;

	bytes_of_all += bytes;
	if (table->state.origin != SFRAME_UNWIND_ADDED)
		bytes_of_files += bytes;
}

static void withdraw(struct table *table)
{
	lockdep_assert_held(&tables_lock);
	hash_del_rcu(&table->by_file);
	RCU_INIT_POINTER(tables[table->number % TABLES], NULL);
	account(table, true);
	if (table->requested)
		WRITE_ONCE(requests, requests - 1);
	WRITE_ONCE(sfu_table_generation, sfu_table_generation + 1);
	call_rcu(&table->rcu, free_table);
}

/*
 * The table that makes way: the least recently used one. Added rows make way for added rows only.
 * `bytes`: memory is short, so only tables that use memory are candidates. `user`: only tables
 * charged to this user are candidates.
 */
static struct table *least_used(bool added, bool bytes, const uint32_t *user)
{
	struct table *least = NULL;
	int i;

	lockdep_assert_held(&tables_lock);
	for (i = 0; i < TABLES; i++) {
		struct table *table = table_at(i);

		if (!table || (bytes && !table->state.bytes) ||
		    (user && table->state.user != *user))
			continue;
		/*
		 * Where slots are short, added rows of users other than root make way for any
		 * table. Else many users, or one with many user IDs, could fill all slots, and no
		 * file that is seen would be requested.
		 */
		if (is_kept(table) && !added && (bytes || !table->state.user))
			continue;
		/* A table that was not added makes way before any that was. */
		if (least && is_kept(least) != is_kept(table)) {
			if (is_kept(table))
				continue;
		} else if (least && !time_before(READ_ONCE(table->used), READ_ONCE(least->used))) {
			continue;
		}
		least = table;
	}
	return least;
}

/* The bytes and tables charged to a user. Root has no quota, so its are not counted. */
static void count_tables(uint32_t user, uint64_t *bytes, unsigned int *count)
{
	int i;

	lockdep_assert_held(&tables_lock);
	*bytes = *count = 0;
	for (i = 0; user && i < TABLES; i++) {
		const struct table *table = table_at(i);

		if (table && table->state.user == user) {
			*bytes += table->state.bytes;
			++*count;
		}
	}
}

static int free_slot(void)
{
	int i;

	lockdep_assert_held(&tables_lock);
	for (i = 0; i < TABLES; i++) {
		WRITE_ONCE(sfu_table_generation, sfu_table_generation + 1);
		if (!table_at(sfu_table_generation % TABLES))
			return 0;
	}
	return -ENOSPC;
}

/*
 * Makes space for a new table. A user other than root is charged at most half of all slots and
 * bytes, so no user can evict all tables of others.
 */
static int make_room(const struct table *new)
{
	uint64_t limit = sfu_tables_limit(), bytes = new->state.bytes;
	uint32_t user = new->state.user;
	/* A table that cannot fit evicts nothing. */
	bool fits = bytes <= (user ? limit / 2 : limit), added = is_kept(new);

	lockdep_assert_held(&tables_lock);
	for (;;) {
		struct table *least;
		uint64_t its_bytes;
		unsigned int its;

		count_tables(user, &its_bytes, &its);
		if (user && fits && bytes && its_bytes + bytes > limit / 2)
			least = least_used(added, true, &user);
		else if (fits && its >= TABLES / 2)
			least = least_used(added, false, &user);
		else if (bytes && bytes_of_all + (fits ? bytes : 0) > limit)
			least = least_used(added, true, NULL);
		else if (!fits)
			return -ENOSPC;
		else if (free_slot())
			least = least_used(added, false, NULL);
		else
			return 0;
		if (!least)
			return -ENOSPC;
		withdraw(least);
		cond_resched();
	}
}

/* A lower limit holds at once. */
static int tables_mib_set(const char *text, const struct kernel_param *param)
{
	int ret = param_set_uint(text, param);
	uint64_t limit = sfu_tables_limit();
	struct table *least;

	mutex_lock(&tables_lock);
	while (bytes_of_all > limit) {
		least = least_used(true, true, NULL);
		if (!least)
			break;
		withdraw(least);
		cond_resched();
	}
	mutex_unlock(&tables_lock);
	return ret;
}

/* NULL if it is too long, or without memory. */
static char *path_of(const struct file *file)
{
	char *space = kmalloc(SFU_PATH, GFP_KERNEL), *path;

	if (!space)
		return NULL;
	path = d_path(file_user_path((struct file *)file), space, SFU_PATH);
	path = IS_ERR(path) ? NULL : kstrdup(path, GFP_KERNEL);
	kfree(space);
	return path;
}

int sfu_table_publish(const struct sfu_file_key *key, const struct sfu_table_state *state,
		      void *rows)
{
	struct table *new = kzalloc(sizeof(*new), GFP_KERNEL), *old;
	bool requested;
	int ret;

	if (!new)
		return -ENOMEM;
	new->key = *key;
	new->rows = rows;
	new->state = *state;
	/* A table without rows takes little memory, and its number is bounded. */
	if (rows)
		new->state.bytes += sizeof(*new);
	new->used = jiffies;
	if (state->origin == SFRAME_UNWIND_UNREADABLE || state->is_unread)
		new->until = (jiffies + TRY_AGAIN) ?: 1;
	/* .eh_frame may have functions that the file's own section lacks. */
	new->requested = state->origin == SFRAME_UNWIND_NO_ROWS ||
			 state->origin == SFRAME_UNWIND_SECTION;
	requested = new->requested;
	if (state->file)
		new->path = path_of(state->file);
	new->state.file = NULL;
	mutex_lock(&tables_lock);
	old = table_of_inode(key);
	if (old && is_kept(old) && state->origin != SFRAME_UNWIND_ADDED && !old->is_doubtful &&
	    !is_same(&old->key, key) && is_still(old, new)) {
		/* A reader in between finds nothing. */
		WRITE_ONCE(old->key.unmounts, key->unmounts);
		WRITE_ONCE(old->key.changed_nsec, key->changed_nsec);
		WRITE_ONCE(old->key.changed, key->changed);
		ret = -EEXIST;
	} else if (old && old->state.origin == SFRAME_UNWIND_ADDED && is_same(&old->key, key) &&
		   !old->is_doubtful &&
		   (state->origin != SFRAME_UNWIND_ADDED ||
		    (state->owner && old->state.owner != state->owner))) {
		ret = -EEXIST;
	} else {
		if (old)
			withdraw(old);
		ret = make_room(new);
	}
	if (!ret) {
		new->number = sfu_table_generation;
		account(new, false);
		if (new->requested)
			WRITE_ONCE(requests, requests + 1);
		rcu_assign_pointer(tables[new->number % TABLES], new);
		hash_add_rcu(tables_by_file, &new->by_file, hash_of(key));
	}
	mutex_unlock(&tables_lock);
	if (ret) {
		kfree(new->path);
		kfree(new);
	} else if (requested) {
		wake_up_interruptible(&sfu_requests_wait);
	}
	return ret;
}

int sfu_table_remove(const struct sfu_file_key *key, uint32_t user)
{
	struct table *table;
	int ret = 0;

	mutex_lock(&tables_lock);
	table = table_of_inode(key);
	if (!table || !is_useful(table))
		ret = -ENOENT;
	else if (user && table->state.owner != user)
		ret = -EACCES;
	else
		withdraw(table);
	mutex_unlock(&tables_lock);
	return ret;
}

/* The table with the lowest number above `after`, of all tables or of those with a request. */
static struct table *next_table(uint64_t after, bool requested)
{
	struct table *next = NULL;
	int i;

	for (i = 0; i < TABLES; i++) {
		struct table *table = table_at(i);

		if (table && table->number > after && (!requested || table->requested) &&
		    (!next || table->number < next->number))
			next = table;
	}
	return next;
}

static void copy_path(uint8_t to[SFU_PATH], const struct table *table)
{
	if (table->path)
		strscpy((char *)to, table->path, SFU_PATH);
}

int sfu_table_next(uint64_t after, struct sframe_unwind_table *next)
{
	const struct table *found;

	mutex_lock(&tables_lock);
	found = next_table(after, false);
	if (found) {
		*next = (struct sframe_unwind_table){
			.number = found->number,
			.inode = found->key.number,
			.file_size = found->key.size,
			.modified = found->key.modified,
			.modified_nsec = found->key.modified_nsec,
			.device_major = MAJOR(found->key.device),
			.device_minor = MINOR(found->key.device),
			.inode_generation = found->key.inode_generation,
			.origin = found->state.origin,
			.error = found->state.error,
			.user = found->state.user,
			.rows = found->state.rows,
			.bytes = found->state.bytes,
			.cuts = atomic64_read(&found->cuts),
			.flags = found->state.keeps_frame_pointer ? SFRAME_UNWIND_KEEPS_FP : 0,
		};
		copy_path(next->path, found);
	}
	mutex_unlock(&tables_lock);
	return found ? 0 : -ENOENT;
}

static struct shrinker *shrinker;

bool sfu_tables_were_shrunk(void)
{
	unsigned long when = READ_ONCE(shrunk);

	return when && !time_after(jiffies, when + TRY_AGAIN);
}

static unsigned long count_objects(struct shrinker *shrinker, struct shrink_control *control)
{
	return READ_ONCE(bytes_of_files) >> PAGE_SHIFT ?: SHRINK_EMPTY;
}

static unsigned long scan_objects(struct shrinker *shrinker, struct shrink_control *control)
{
	uint64_t freed = 0;

	/* The owner of the lock may be waiting for this very memory. */
	if (!mutex_trylock(&tables_lock))
		return SHRINK_STOP;
	while (freed >> PAGE_SHIFT < control->nr_to_scan) {
		struct table *table = least_used(false, true, NULL);

		if (!table)
			break;
		freed += table->state.bytes;
		withdraw(table);
	}
	mutex_unlock(&tables_lock);
	if (freed)
		WRITE_ONCE(shrunk, jiffies ?: 1);
	return freed >> PAGE_SHIFT ?: SHRINK_STOP;
}

/* The request with the lowest number, which then is no request any more. */
bool sfu_next_request(struct sframe_unwind_request *request)
{
	struct table *found;

	mutex_lock(&tables_lock);
	found = requests ? next_table(0, true) : NULL;
	if (found) {
		found->requested = false;
		WRITE_ONCE(requests, requests - 1);
		if (!found->rows)
			WRITE_ONCE(found->until, (jiffies + ASK_AGAIN) ?: 1);
		*request = (struct sframe_unwind_request){
			.pid = found->state.pid,
			.start = found->state.start,
			.end = found->state.end,
			.inode = found->key.number,
			.file_size = found->key.size,
			.device_major = MAJOR(found->key.device),
			.device_minor = MINOR(found->key.device),
			.error = found->state.error,
			.build_id_len = found->state.build_id_len,
			.user = found->state.user,
		};
		memcpy(request->build_id, found->state.build_id, sizeof(request->build_id));
		copy_path(request->path, found);
	}
	mutex_unlock(&tables_lock);
	return found;
}

bool sfu_has_requests(void)
{
	return READ_ONCE(requests);
}

int sfu_tables_start(void)
{
	int ret;

	shrinker = shrinker_alloc(0, KBUILD_MODNAME);
	if (!shrinker)
		return -ENOMEM;
	shrinker->count_objects = count_objects;
	shrinker->scan_objects = scan_objects;
	shrinker->seeks = DEFAULT_SEEKS;
	ret = sfu_shrinker_register(shrinker);
	if (!ret)
		ret = sfu_unmounts_start();
	if (ret)
		shrinker_free(shrinker);
	return ret;
}

void sfu_tables_stop(void)
{
	int i;

	sfu_unmounts_stop();
	shrinker_free(shrinker);
	mutex_lock(&tables_lock);
	for (i = 0; i < TABLES; i++)
		if (table_at(i))
			withdraw(table_at(i));
	mutex_unlock(&tables_lock);
	rcu_barrier();
}
