/* SPDX-License-Identifier: GPL-2.0-only */
/* Reads of the current task's memory. */
#ifndef _SFRAME_UNWIND_USER_MEMORY_H
#define _SFRAME_UNWIND_USER_MEMORY_H

#include <linux/preempt.h>
#include <linux/uaccess.h>

#include "internal.h"

/*
 * Whether a byte of the current task's memory can be read, by a function that checks whose page
 * tables are loaded.
 */
bool sfu_is_readable(uint64_t address);

/*
 * Whether the memory that is there may be another task's: nothing tells whether this context has
 * interrupted a change of address spaces. Such changes run with interrupts off, and calls of the
 * firmware, which has an address space of its own, with interrupts on: a softirq may run in one.
 * Only copy_from_user_nofault() finds out. An interrupt of user space has interrupted no change.
 */
static __always_inline bool is_unsure(void)
{
	if (in_nmi())
		return true;
	if (in_hardirq())
		return !sfu_interrupted_user_space();
	return irqs_disabled() || in_serving_softirq();
}

/* As sfu_peek_enter(), in line. */
static __always_inline uint64_t sfu_peek(uint64_t address)
{
	pagefault_disable();
	sfu_begin_reads();
	if (is_unsure())
		return sfu_is_readable(address) ? TASK_SIZE_MAX : 0;
	return TASK_SIZE_MAX;
}

/* As sfu_peek_leave(), in line. */
static __always_inline void sfu_peek_end(void)
{
	sfu_end_reads();
	pagefault_enable();
}

#endif
