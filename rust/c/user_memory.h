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
 * As sfu_peek_enter(), in line. If this may have interrupted a change of address spaces, which runs
 * with interrupts off, the memory that is there may be another task's. Only
 * copy_from_user_nofault() finds out.
 */
static __always_inline uint64_t sfu_peek(uint64_t address)
{
	pagefault_disable();
	if (in_nmi() || (!in_hardirq() && irqs_disabled()))
		return sfu_is_readable(address) ? TASK_SIZE_MAX : 0;
	return TASK_SIZE_MAX;
}

#endif
