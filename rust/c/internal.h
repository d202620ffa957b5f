/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The interface between the C files: what needs no function of theirs in line. FILE.h has the
 * functions in line that belong to FILE.c. helpers.h is the interface between C and Rust.
 */
#ifndef _SFRAME_UNWIND_INTERNAL_H
#define _SFRAME_UNWIND_INTERNAL_H

#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/siphash.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <asm/irq_regs.h>

#include "helpers.h"
#include "compat.h"
#include "arch.h"

/*
 * The key of the hashes; files.c. Users choose the numbers of their files, and can guess the
 * numbers of processes.
 */
extern siphash_key_t sfu_secret;

/* The counters of each CPU; stats.c. */
DECLARE_PER_CPU(uint64_t[SFU_COUNTERS], sfu_counter);

/*
 * Removes a hook. Waits for tasks that were preempted behind the hook, and for CPUs that run there.
 * If ftrace has shut itself down, it keeps the hook, so the module has to stay loaded, and the
 * function never returns. Task; sleeps.
 */
static inline void sfu_ftrace_remove(struct ftrace_ops *ops)
{
	if (WARN(unregister_ftrace_function(ops),
		 "sframe_unwind: ftrace will not let go of a hook; the module stays\n"))
		for (;;)
			schedule_timeout_uninterruptible(MAX_SCHEDULE_TIMEOUT);
	ftrace_free_filter(ops);
}

/* Whether the interrupt that is being handled has interrupted the task in user space. Hard IRQ. */
static inline bool sfu_interrupted_user_space(void)
{
	const struct pt_regs *regs = get_irq_regs();

	return regs && user_mode((struct pt_regs *)regs);
}

/* Whether a VMA of the current task that starts at `start` is the vDSO; vdso.c. Any context. */
bool sfu_is_vdso(const struct vm_area_struct *vma, unsigned long start);

/* The limit of the bytes of all tables. Any context. */
uint64_t sfu_tables_limit(void);
/* True for a while after memory was short: a table would be freed again soon. Any context. */
bool sfu_tables_were_shrunk(void);

/* Requests of tables.c for device.c. Task; may sleep. */
extern wait_queue_head_t sfu_requests_wait;
/* The number of open devices whose requests are read. Changed by device.c. */
extern atomic_t sfu_request_readers;
/* Takes the request with the lowest number out of the queue; false if there is none. */
bool sfu_next_request(struct sframe_unwind_request *request);
bool sfu_has_requests(void);

/*
 * The number of the table with rows of an open file; 0 if there is none. Task; a descriptor of the
 * current task.
 */
uint64_t sfu_table_of_descriptor(int descriptor);
/* Whether there is a table of this number. Then the table was used. Any context; under RCU. */
bool sfu_use_table(uint64_t number);

/*
 * Requests of regions.c for device.c, as above. sfu_region_request() makes a request for code of no
 * file, from `start` to `end`, in the process `pid` of `user`.
 */
bool sfu_next_region_request(struct sframe_unwind_request *request);
bool sfu_has_region_requests(void);
void sfu_region_request(uint64_t mm_id, pid_t pid, uint32_t user, uint64_t start, uint64_t end);

/*
 * The next walk of the current task on this CPU notes that the tables of its ranges are in use;
 * code_cache.c. Each decision calls this function. Any context.
 */
void sfu_code_cache_forget(void);
/* Before the hooks are installed, and after their removal; code_cache.c. Task; may sleep. */
int sfu_code_caches_start(void);
void sfu_code_caches_stop(void);
/*
 * Whether a range is still code of the same mapping and file as when its table was looked up;
 * mappings.c. The mappings are in the state `sequence` during the call, or the result is false.
 * `mas` is new, or that of a call before, in the tree of the current task's mappings. Any context;
 * since `mas` was new, the caller is an RCU reader.
 */
bool sfu_is_mapped_still(const struct sfu_code_range *range, uint64_t sequence,
			 struct ma_state *mas);
/* Notes that a table is in use; `key` is the key of a published table. Any context; tables.c. */
void sfu_table_used(const struct sfu_file_key *key);
/*
 * Between sfu_code_cache_enter() and sfu_code_cache_leave(): puts the rows and the key of the table
 * with this number into a range; false if the table is gone; tables.c.
 */
bool sfu_table_of_range(struct sfu_code_range *range, uint64_t number);

/* A job of the worker; queue.c. */
struct sfu_job {
	struct mm_struct *mm;
	/*
	 * The address of a missing page; or an address in the mapping of a file that was seen, with
	 * SFU_JOB_FILE; or SFU_JOB_MAPPINGS, for a scan of the mappings.
	 */
	unsigned long what;
	/* The charged user, and the process. */
	uint32_t user;
	pid_t pid;
	/* If this try fails too, the job ends. */
	bool is_last_try;
};

#define SFU_JOB_FILE 1
#define SFU_JOB_MAPPINGS 2

/*
 * Starts the queue: `of_worker` does a job, and returns an error if the job is to be tried again.
 * Task; sleeps. 0 or a negative error.
 */
int sfu_queue_start(int (*of_worker)(const struct sfu_job *job));
/* Task; after the hooks are removed; sleeps. */
void sfu_queue_stop(void);
/* The worker: starts a reader on the queue's workqueue, which ends when the queue stops. */
void sfu_queue_reader(struct work_struct *reader);
/* A reader, before it releases the module: the worker tries pages again now. May not sleep. */
void sfu_queue_reader_ends(void);
/*
 * The worker: a reader brings bytes of the file into memory, for the user of `job`; then it faults
 * in the page of `job`, if `fault_in` is set. False if no reader may start now; readers.c.
 */
bool sfu_read_ahead(struct file *file, uint64_t offset, uint64_t len, const struct sfu_job *job,
		    bool fault_in);
/* Whether a reader may read a file at all. Any context. */
bool sfu_may_read_ahead(const struct file *file);
/* Any context. Asks the worker to scan the current task's mappings; false if too much is queued. */
bool sfu_queue_mappings(void);
/*
 * The worker: from now on, jobs that the current task queues are for the user and process of `job`;
 * NULL ends this.
 */
void sfu_queue_for(const struct sfu_job *job);
/* Whether the worker may spend time for a user. Any context. */
bool sfu_has_allowance(uint32_t user);
/* The worker: takes the time since `started`, a ktime, from a user's allowance. */
void sfu_take_allowance(uint32_t user, uint64_t started);

/*
 * The charged user for a task with these credentials and namespaces: 0 for an administrator of the
 * system, the number of a container, or a user; users.c. `spaces` may be NULL, and stays during the
 * call. Any context.
 */
uint32_t sfu_charged_user(const struct cred *cred, const struct nsproxy *spaces);
/*
 * The number of a charged user, below `count`: users share numbers by a secret hash, but root alone
 * has 0; users.c. Any context.
 */
unsigned int sfu_number_of_user(uint32_t user, unsigned int count);

/* Whether the module is being unloaded, so that long work has to end. Set once. */
extern bool sfu_is_stopping;

#endif
