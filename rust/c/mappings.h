/* SPDX-License-Identifier: GPL-2.0-only */
/* The parts of mappings.c that are in line. */
#ifndef _SFRAME_UNWIND_MAPPINGS_H
#define _SFRAME_UNWIND_MAPPINGS_H

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched.h>

#include "internal.h"

/*
 * A number for the state of the current task's mappings and of all tables: two different states
 * have different numbers. The number is odd while the mappings are being changed. The function is
 * in line, because the hook's handler calls it for each sample. Any context; the current task has a
 * mm.
 */
static inline uint64_t sfu_mappings_sequence(void)
{
	/* A table that is added or removed may change the decision, too. */
	return sfu_mm_state(current->mm) | READ_ONCE(sfu_table_generation) << 32;
}

/*
 * Whether the code of a mapping is that of a file. Code that the process may write is code that the
 * process makes, even if a file was its beginning: SBCL maps its image in this way. PHP and Erlang
 * share the memory of their code, which they write through another mapping. Any context; the VMA
 * may be freed meanwhile, under RCU.
 */
static inline bool sfu_is_of_file(const struct vm_area_struct *vma)
{
	unsigned long flags = READ_ONCE(vma->vm_flags);

	return READ_ONCE(vma->vm_file) && !((flags & VM_EXEC) && (flags & (VM_WRITE | VM_SHARED)));
}

#endif
