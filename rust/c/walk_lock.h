/* SPDX-License-Identifier: GPL-2.0-only */
/* The lock of the mappings on kernels whose mappings have no sequence count. */
#ifndef _SFRAME_UNWIND_WALK_LOCK_H
#define _SFRAME_UNWIND_WALK_LOCK_H

#include <linux/mm_types.h>
#include <linux/seqlock.h>

#include "internal.h"

/*
 * The number of the walk that holds mmap_lock on this CPU, on kernels where walks take it;
 * walk_lock.c.
 */
uint32_t sfu_lock_number(void);

/*
 * 6.14. Without the sequence count the caller holds mmap_lock, and the lock's number is `sequence`.
 */
#define SFU_SPECULATES (SFU_HAS_SPECULATION && SFU_HAS_SEQUENCE)
#if !SFU_SPECULATES
static inline bool sfu_speculate_try_begin(struct mm_struct *mm, unsigned int *sequence)
{
	if (!SFU_HAS_SEQUENCE) {
		*sequence = sfu_lock_number();
		return true;
	}
	*sequence = raw_read_seqcount(SFU_SEQUENCE(mm));
	return !(*sequence & 1);
}

static inline bool sfu_speculate_retry(struct mm_struct *mm, unsigned int sequence)
{
	return SFU_HAS_SEQUENCE && read_seqcount_retry(SFU_SEQUENCE(mm), sequence);
}
#define mmap_lock_speculate_try_begin sfu_speculate_try_begin
#define mmap_lock_speculate_retry sfu_speculate_retry
#endif

/*
 * On kernels whose mappings have no sequence count (compat.h), a scan or a walk holds mmap_lock for
 * reading from its start to its end. Any context, but not on PREEMPT_RT; the current task has a mm.
 * Preemption is off between the two calls. False if the lock is held for writing, if the caller
 * interrupted another walk on this CPU, or if the lock of another mm is not released yet.
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

#endif
