// SPDX-License-Identifier: GPL-2.0-only
/* User memory for KUnit tests. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kconfig.h>

#include "mappings.h"

#ifdef CONFIG_KUNIT

#include <kunit/test.h>
#include <kunit/test-bug.h>
#include <linux/mman.h>

int64_t sfu_test_map(uint64_t len, bool executable)
{
	return kunit_vm_mmap(kunit_get_current_test(), NULL, 0, len,
			     PROT_READ | PROT_WRITE | (executable ? PROT_EXEC : 0),
			     MAP_ANONYMOUS | MAP_PRIVATE, 0);
}

uint64_t sfu_test_mappings_sequence(void)
{
	return sfu_mappings_sequence();
}

int sfu_test_unmap(uint64_t address, uint64_t len)
{
	return vm_munmap(address, len);
}

int sfu_test_write(uint64_t address, const void *from, unsigned int len)
{
	return copy_to_user((void __user *)address, from, len) ? -EFAULT : 0;
}

#endif
