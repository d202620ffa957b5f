// SPDX-License-Identifier: GPL-2.0-only
/* Changes mappings constantly, by mmap, mprotect, munmap and fork. */
#include "chain.h"
#include "work.h"

#include <sys/mman.h>

#include "sys.h"

#define PAGE 4096L
#define PAGES 16

CHAINED static char *map(void)
{
	CHAIN_ENTER();
	return (char *)sys_call6(SYS_mmap, 0, PAGES * PAGE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Splits a mapping into three. */
CHAINED static void split(char *pages)
{
	CHAIN_ENTER();
	pages[0] = 1;
	sys_call3(SYS_mprotect, (long)pages + 4 * PAGE, 4 * PAGE, PROT_READ);
}

CHAINED static void unmap(char *pages)
{
	CHAIN_ENTER();
	sys_call3(SYS_munmap, (long)pages, PAGES * PAGE, 0);
}

CHAINED static void fork_once(void)
{
	CHAIN_ENTER();
	long child = sys_call(SYS_fork);

	if (child == 0)
		sys_exit(0);
	sys_call6(SYS_wait4, child, 0, 0, 0, 0, 0);
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	for (int i = 0; i < 50; i++) {
		char *pages = map();

		split(pages);
		unmap(pages);
	}
	fork_once();
}
