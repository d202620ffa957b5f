// SPDX-License-Identifier: GPL-2.0-only
/*
 * Splits one mapping into hundreds and joins them again, so that the tree of mappings grows and
 * shrinks by whole nodes, and samples interrupt the changes.
 */
#include "chain.h"
#include "work.h"

#include <sys/mman.h>

#include "sys.h"

#define PAGE 4096L
#define PAGES 600

CHAINED static void protect(long start, long pages, long how)
{
	CHAIN_ENTER();
	sys_call3(SYS_mprotect, start, pages * PAGE, how);
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	static long start;

	if (!start)
		start = sys_call6(SYS_mmap, 0, PAGES * PAGE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (long page = 1; page < PAGES; page += 2)
		protect(start + page * PAGE, 1, PROT_READ);
	protect(start, PAGES, PROT_READ | PROT_WRITE);
}
