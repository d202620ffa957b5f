// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reads of the current task's memory: reads that fail where a page is missing, in any context, and
 * reads that wait for the page, in a task that may sleep.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "user_memory.h"

noinline bool sfu_is_readable(uint64_t address)
{
	uint8_t byte;

	return sfu_has_own_page_tables() &&
	       !copy_from_user_nofault(&byte, (const void __user *)address, sizeof(byte));
}

uint64_t sfu_peek_enter(uint64_t address)
{
	return sfu_peek(address);
}

void sfu_peek_leave(void)
{
	sfu_peek_end();
}

int sfu_read_user(void *to, uint64_t address, unsigned int len)
{
	if (!sfu_has_own_page_tables() ||
	    copy_from_user_nofault(to, (const void __user *)address, len))
		return -EFAULT;
	return 0;
}

int sfu_fault_in(uint64_t address, unsigned int len)
{
	size_t left;

	/*
	 * A fault may last for ever (userfaultfd, FUSE). While the module is held, rmmod fails with
	 * EBUSY at once instead of waiting for the fault.
	 */
	/* A task that exits cannot be killed any more, so it must not wait for a page. */
	if (current->flags & PF_EXITING)
		return -EFAULT;
	if (!try_module_get(THIS_MODULE))
		return -ESHUTDOWN;
	sfu_peek_end();
	left = fault_in_readable((const char __user *)address, len);
	pagefault_disable();
	sfu_begin_reads();
	module_put(THIS_MODULE);
	return left ? -EFAULT : 0;
}
