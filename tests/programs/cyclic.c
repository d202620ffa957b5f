// SPDX-License-Identifier: GPL-2.0-only
/*
 * cyclic SECONDS WHERE - computes with an invalid frame pointer, in a function whose rows use it:
 * one that points to itself, to the kernel, or to no address at all. SECONDS are CPU time, and
 * count from the start of main(). A busy machine and a slow start of the program take no samples
 * away.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long work;

/* The row's CFA is rbp + 16. */
__attribute__((naked, noipa)) static void spin_on(unsigned long frame_pointer, unsigned long turns)
{
	(void)frame_pointer;
	(void)turns;
	__asm__("push %rbp\n"
		".cfi_def_cfa_offset 16\n"
		".cfi_offset rbp, -16\n"
		"mov %rdi, %rbp\n"
		".cfi_def_cfa_register rbp\n"
		"1: dec %rsi\n"
		"jnz 1b\n"
		"pop %rbp\n"
		".cfi_def_cfa rsp, 8\n"
		"ret");
}

int main(int argc, char **argv)
{
	clock_t until = clock() + (argc > 1 ? atoi(argv[1]) : 1) * CLOCKS_PER_SEC;
	/* Two frames that point to each other, and one that points to itself. */
	unsigned long there[4] __attribute__((aligned(16))) = {
		(unsigned long)&there[2], (unsigned long)main + 4,
		(unsigned long)&there[0], (unsigned long)main + 4,
	};
	const struct { const char *name; unsigned long at; } places[] = {
		{ "cycle", (unsigned long)&there[0] },
		{ "kernel", 0xffffffff81000000 },
		{ "end", -16UL },
		{ "wraps", -8UL },
		{ "hole", 0x0000800000000000 },
		{ "odd", (unsigned long)&there[0] + 3 },
		{ "low", 8 },
	};

	for (unsigned long i = 0; argc > 2 && i < sizeof(places) / sizeof(*places); i++)
		if (!strcmp(argv[2], places[i].name))
			while (clock() < until)
				spin_on(places[i].at, 10000000);
	return work;
}
