/* SPDX-License-Identifier: GPL-2.0-only */
/* What the C files share with each other and not with Rust. helpers.h is what they share with Rust. */
#ifndef _SFRAME_UNWIND_INTERNAL_H
#define _SFRAME_UNWIND_INTERNAL_H

#include <linux/fs.h>
#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/seqlock.h>
#include <linux/wait.h>

#include "helpers.h"

/* The counters of each CPU; stats.c. */
DECLARE_PER_CPU(uint64_t[SFU_COUNTERS], sfu_counter);

/*
 * Tells two states of the current task's mappings, and of all tables, apart. In line, as the hook's handler
 * calls it for each sample. Any context; the current task has a mm.
 */
static inline void mappings_version(uint64_t *id, uint64_t *sequence)
{
	*id = current->mm->context.ctx_id;
	/* A table that is added or removed may change the decision, too. */
	*sequence = raw_read_seqcount(&current->mm->mm_lock_seq) | READ_ONCE(sfu_table_generation) << 32;
}

/*
 * The key of a file. The address of the inode is no part of it: where memory is short, the kernel forgets
 * the inode and reads it again, and the file has not changed. Any context; the inode is known to be alive.
 */
static inline void read_key(struct inode *inode, struct sfu_file_key *key)
{
	struct timespec64 modified = inode_get_mtime(inode);

	*key = (struct sfu_file_key){
		.number = inode->i_ino,
		.size = i_size_read(inode),
		.modified = modified.tv_sec,
		.modified_nsec = modified.tv_nsec,
		.device = inode->i_sb->s_dev,
		.generation = inode->i_generation,
	};
}

/* Requests of tables.c for device.c. Task; may sleep. */
extern wait_queue_head_t sfu_requests_wait;
/* The request with the lowest number, which then is no request any more; false if there is none. */
bool sfu_next_request(struct sframe_unwind_request *request);
bool sfu_has_requests(void);

#endif
