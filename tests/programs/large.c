// SPDX-License-Identifier: GPL-2.0-only
/*
 * large SECONDS - computes in several functions, in a file with so many rows that building its
 * table takes a while.
 */
#include <stdlib.h>
#include <time.h>

static volatile unsigned long work;

#define PAGE __attribute__((noipa, aligned(4096)))

PAGE static void here(void)
{
	for (int i = 0; i < 100000; i++)
		work += i;
}

PAGE static void there(void)
{
	for (int i = 0; i < 100000; i++)
		work -= i;
}

/* Functions that are never called. */
__asm__(".pushsection .text\n"
	".rept 100000\n"
	"	.cfi_startproc\n"
	"	push %rbx\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pop %rbx\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".endr\n"
	".popsection");

int main(int argc, char **argv)
{
	time_t until = time(NULL) + (argc > 1 ? atoi(argv[1]) : 2);

	while (time(NULL) < until) {
		here();
		there();
	}
	return 0;
}
