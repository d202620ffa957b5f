// SPDX-License-Identifier: GPL-2.0-only
/*
 * Replaces the mapping of its code with an anonymous copy, as programs do to get huge pages: then
 * the code's file is unknown.
 */
#define _GNU_SOURCE // for mremap's flags
#include "chain.h"
#include "work.h"

#include <elf.h>
#include <sys/mman.h>

#include "sys.h"

#define PAGE 4096L

extern const Elf64_Ehdr __ehdr_start;

CHAINED static void remap(void)
{
	CHAIN_ENTER();
	const Elf64_Phdr *segment = (const void *)((long)&__ehdr_start + __ehdr_start.e_phoff);
	long base = __ehdr_start.e_type == ET_DYN ? (long)&__ehdr_start : 0;

	while (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X))
		segment++;

	long start = (base + segment->p_vaddr) & -PAGE;
	long end = (base + segment->p_vaddr + segment->p_memsz + PAGE - 1) & -PAGE;
	long copy = sys_call6(SYS_mmap, 0, end - start, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (long i = 0; i < end - start; i += sizeof(long))
		*(long *)(copy + i) = *(long *)(start + i);
	sys_call3(SYS_mprotect, copy, end - start, PROT_READ | PROT_EXEC);
	sys_call6(SYS_mremap, copy, end - start, end - start, MREMAP_MAYMOVE | MREMAP_FIXED,
		  start, 0);
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	static int done;

	if (!done)
		remap();
	done = 1;
	spin();
}
