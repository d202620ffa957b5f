/* SPDX-License-Identifier: GPL-2.0-only */
/* The interface between the C files. helpers.h is the interface between C and Rust. */
#ifndef _SFRAME_UNWIND_INTERNAL_H
#define _SFRAME_UNWIND_INTERNAL_H

#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/jiffies.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/seqlock.h>
#include <linux/siphash.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "helpers.h"

/* The number of the walk that holds mmap_lock on this CPU, on kernels where walks take it; walk_lock.c. */
uint32_t sfu_lock_number(void);

#include "compat.h"
#include "x86.h"

/* The key of the hashes; tables.c. Users choose the numbers of their files, and can guess the numbers of processes. */
extern siphash_key_t sfu_secret;

/* The counters of each CPU; stats.c. */
DECLARE_PER_CPU(uint64_t[SFU_COUNTERS], sfu_counter);

/*
 * A number for the state of the current task's mappings and of all tables: two different states have different
 * numbers. The number is odd while the mappings are being changed. The function is in line, because the hook's
 * handler calls it for each sample. Any context; the current task has a mm.
 */
static inline uint64_t sfu_mappings_sequence(void)
{
	/* A table that is added or removed may change the decision, too. */
	return sfu_mm_state(current->mm) | READ_ONCE(sfu_table_generation) << 32;
}

/*
 * Whether the code of a mapping is that of a file. Code that the process may write is code that the process makes, even
 * if a file was its beginning: SBCL maps its image in this way. PHP and Erlang share the memory of their code, which
 * they write through another mapping. Any context; the VMA may be freed meanwhile, under RCU.
 */
static inline bool sfu_is_of_file(const struct vm_area_struct *vma)
{
	unsigned long flags = READ_ONCE(vma->vm_flags);

	return READ_ONCE(vma->vm_file) && !((flags & VM_EXEC) && (flags & (VM_WRITE | VM_SHARED)));
}

/*
 * On kernels whose mappings have no sequence count (compat.h), a scan or a walk holds mmap_lock for reading from its
 * start to its end. Any context, but not on PREEMPT_RT; the current task has a mm. Preemption is off between the two
 * calls. False if the lock is held for writing, if the caller interrupted another walk on this CPU, or if the lock of
 * another mm is not released yet.
 */
bool sfu_lock_mappings_by_lock(void);
void sfu_unlock_mappings_by_lock(void);
/* Called at module load, and at module unload after all walks. Task; sleeps. */
void sfu_locks_start(void);
void sfu_locks_stop(void);

static __always_inline bool sfu_lock_mappings(void)
{
	return SFU_HAS_SEQUENCE || sfu_lock_mappings_by_lock();
}

static __always_inline void sfu_unlock_mappings(void)
{
	if (!SFU_HAS_SEQUENCE)
		sfu_unlock_mappings_by_lock();
}

/*
 * A decision whether a task has rows; decisions.c. A writer clears `id` first and sets it last, so an NMI in
 * between finds no entry rather than a mixed one. An NMI itself writes its entry without interruption.
 */
struct sfu_decision {
	/* sfu_mm_id(). */
	uint64_t id;
	/* The state of the mappings. The decision "has rows" is used in later states, too: this costs only time. */
	uint64_t sequence;
	/* The time in jiffies from which on the decision is not used. */
	unsigned long until;
	bool has_rows;
};

#define SFU_DECISIONS 8

DECLARE_PER_CPU(struct sfu_decision[SFU_DECISIONS], sfu_decisions);

/*
 * The work of this CPU's scans since the last walk, as in struct sfu_call: a scan and the walk of its sample
 * share a budget.
 */
DECLARE_PER_CPU(uint32_t, sfu_scan_work);

static inline uint32_t sfu_scan_spent(void)
{
	uint32_t spent = this_cpu_read(sfu_scan_work);

	if (unlikely(spent))
		this_cpu_write(sfu_scan_work, 0);
	return spent;
}

/*
 * The decision about a stack: it is left to the kernel; or walked, with the mappings locked until
 * sfu_unlock_mappings(); or cut to its innermost frame, because the mappings cannot be locked.
 */
enum sfu_decided { SFU_LEAVE, SFU_WALK, SFU_CUT };

static __always_inline enum sfu_decided sfu_walk_locked(void)
{
	return sfu_lock_mappings() ? SFU_WALK : SFU_CUT;
}

/* Decides if the CPU has no valid decision for the task. Arguments and context as for sfu_decision_for(). */
enum sfu_decided sfu_decide(struct pt_regs *regs, unsigned long ip, unsigned long parent_ip);

/*
 * Decides whether the module walks the current task's stack. `regs` are the task's registers at the sample; `ip` and
 * `parent_ip` are arguments of the ftrace handler. NMI, IRQ or task; preemption is off.
 */
static __always_inline enum sfu_decided sfu_decision_for(struct pt_regs *regs, unsigned long ip,
							    unsigned long parent_ip)
{
	uint64_t id = sfu_mm_id(current->mm);
	const struct sfu_decision *entry = this_cpu_ptr(&sfu_decisions[id % SFU_DECISIONS]);

	if (READ_ONCE(entry->id) == id && time_before(jiffies, READ_ONCE(entry->until))) {
		if (READ_ONCE(entry->has_rows))
			return sfu_walk_locked();
		/* While the mappings are being changed, the decision for the state before the change holds. */
		if (READ_ONCE(entry->sequence) == (sfu_mappings_sequence() & ~1ull))
			return SFU_LEAVE;
	}
	return sfu_decide(regs, ip, parent_ip);
}

/*
 * Removes a hook. Waits for tasks that were preempted behind the hook, and for CPUs that run there. If ftrace has shut
 * itself down, it keeps the hook, so the module has to stay loaded, and the function never returns. Task; sleeps.
 */
static inline void sfu_ftrace_remove(struct ftrace_ops *ops)
{
	if (WARN(unregister_ftrace_function(ops), "sframe_unwind: ftrace will not let go of a hook; the module stays\n"))
		for (;;)
			schedule_timeout_uninterruptible(MAX_SCHEDULE_TIMEOUT);
	ftrace_free_filter(ops);
}

/*
 * The number of unmounts since module load of file systems on this device, or on a device that shares the counter. Any
 * context.
 */
uint32_t sfu_unmounts(const struct super_block *super);
/* Counts unmounts from now on. Task; sleeps. 0 or a negative error. */
int sfu_unmounts_start(void);
/* At module unload, after everything that reads keys. Task; sleeps. */
void sfu_unmounts_stop(void);

/*
 * Reads the key of a file. The time of change is a part of the key, because users can set the time of modification to
 * any value. The number of unmounts is a part, because the times in an image can be set, too: another image on the same
 * device may have equal numbers, and even an equal UUID. The address of the inode is no part: the kernel may drop the
 * inode and read it again although the file has not changed, and may give the address to an inode of another file. Any
 * context; the caller ensures that the inode is alive.
 */
static inline void read_key(struct inode *inode, struct sfu_file_key *key)
{
	const struct super_block *super = inode->i_sb;
	uint64_t uuid[2];

	memcpy(uuid, &super->s_uuid, sizeof(uuid));
	*key = (struct sfu_file_key){
		.number = inode->i_ino,
		.file_system = uuid[0] ^ uuid[1],
		.size = i_size_read(inode),
		.changed = inode_get_ctime_sec(inode),
		.changed_nsec = inode_get_ctime_nsec(inode),
		.modified = inode_get_mtime_sec(inode),
		.modified_nsec = inode_get_mtime_nsec(inode),
		.device = super->s_dev,
		.unmounts = sfu_unmounts(super),
		.inode_generation = inode->i_generation,
		.is_shmem = super->s_magic == TMPFS_MAGIC,
	};
}

/* Whether the contents of a shmem file may change without a trace: writes through a mapping take no fault. */
static inline bool is_written_to(const struct inode *inode)
{
	return mapping_writably_mapped(inode->i_mapping);
}

/* Whether a byte of the current task's memory can be read, by a function that checks whose page tables are loaded. */
bool sfu_is_readable(uint64_t address);

/*
 * As sfu_peek_enter(), in line. If this may have interrupted a change of address spaces, which runs with interrupts
 * off, the memory that is there may be another task's. Only copy_from_user_nofault() finds out.
 */
static __always_inline uint64_t sfu_peek(uint64_t address)
{
	pagefault_disable();
	if (in_nmi() || (!in_hardirq() && irqs_disabled()))
		return sfu_is_readable(address) ? TASK_SIZE_MAX : 0;
	return TASK_SIZE_MAX;
}

/* The limit of the bytes of all tables. Any context. */
uint64_t sfu_tables_limit(void);
/* True for a while after memory was short: a table would be freed again soon. Any context. */
bool sfu_tables_were_shrunk(void);

/* Requests of tables.c for device.c. Task; may sleep. */
extern wait_queue_head_t sfu_requests_wait;
/* Takes the request with the lowest number out of the queue; false if there is none. */
bool sfu_next_request(struct sframe_unwind_request *request);
bool sfu_has_requests(void);

/* The number of the table with rows of an open file; 0 if there is none. Task; a descriptor of the current task. */
uint64_t sfu_table_of_descriptor(int descriptor);
/* Whether there is a table of this number. Then the table was used. Any context; under RCU. */
bool sfu_use_table(uint64_t number);

/*
 * Requests of regions.c for device.c, as above. sfu_region_request() makes a request for code of no file, from `start`
 * to `end`, in the process `pid` of `user`.
 */
bool sfu_next_region_request(struct sframe_unwind_request *request);
bool sfu_has_region_requests(void);
void sfu_region_request(uint64_t mm_id, pid_t pid, uint32_t user, uint64_t start, uint64_t end);

/*
 * Empties this CPU's code cache; code_cache.c. Each decision calls it, which limits the age of cached ranges. Any
 * context.
 */
void sfu_code_cache_forget(void);

/* A job of the worker; queue.c. */
struct sfu_job {
	struct mm_struct *mm;
	/*
	 * The address of a missing page; or an address in the mapping of a file that was seen, with SFU_JOB_FILE; or
	 * SFU_JOB_MAPPINGS, for a scan of the mappings.
	 */
	unsigned long what;
	/* The charged user, and the process. */
	uint32_t user;
	pid_t pid;
};

#define SFU_JOB_FILE 1
#define SFU_JOB_MAPPINGS 2

/*
 * Starts the queue: `of_worker` does a job, and returns an error if the job is to be tried again. Task; sleeps. 0 or a
 * negative error.
 */
int sfu_queue_start(int (*of_worker)(const struct sfu_job *job));
/* Task; after the hooks are removed; sleeps. */
void sfu_queue_stop(void);
/* Any context. Asks the worker to scan the current task's mappings; false if too much is queued. */
bool sfu_queue_mappings(void);
/* The worker: from now on, jobs that the current task queues are for the user and process of `job`; NULL ends this. */
void sfu_queue_for(const struct sfu_job *job);
/* Whether the worker may spend time for a user. Any context. */
bool sfu_has_allowance(uint32_t user);
/* The worker: takes the time since `started`, a ktime, from a user's allowance. */
void sfu_take_allowance(uint32_t user, uint64_t started);

/* Stores the worker's result: whether the task with this mm has rows, in this state of its mappings. Task. */
void sfu_answer(uint64_t id, uint64_t sequence, bool has_rows);

/* The charged user for a task with these credentials; 0 for an administrator of the system; users.c. Any context. */
uint32_t sfu_charged_user(const struct cred *cred);

/* Whether the module is being unloaded, so that long work has to end. Set once. */
extern bool sfu_is_stopping;

#endif
