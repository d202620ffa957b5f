// SPDX-License-Identifier: GPL-2.0-only
/* Touches fresh memory, page after page: made for the page-faults event. */
#include "chain.h"
#include "work.h"

#include <sys/mman.h>

#include "sys.h"

#define PAGE 4096L
#define PAGES 64

CHAINED static void touch(volatile char *page)
{
	CHAIN_ENTER();
	*page = 1;
}

CHAINED static void touch_all(volatile char *pages)
{
	CHAIN_ENTER();
	for (int i = 0; i < PAGES; i++)
		touch(pages + i * PAGE);
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	long pages = sys_call6(SYS_mmap, 0, PAGES * PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	touch_all((volatile char *)pages);
	sys_call3(SYS_munmap, pages, PAGES * PAGE, 0);
}
