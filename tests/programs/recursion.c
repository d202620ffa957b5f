// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls itself DEPTH levels deep, and runs there. It has no libc, so that the file has no other
 * functions. With ROWS, one function has unwind information.
 */
#ifdef ROWS
asm(".text; .cfi_startproc; ret; .cfi_endproc");
#endif

static volatile unsigned long turns;

static int descend(int depth)
{
	if (depth)
		descend(depth - 1);
	else
		while (++turns)
			;
	return ++turns;
}

/* Of fewer than 200 calls, nobody can tell whether code keeps frame pointers. */
#define FOUR(sum) (sum + sum + sum + sum)
int unused(void)
{
	return FOUR(FOUR(FOUR(FOUR(descend(0)))));
}

__attribute__((force_align_arg_pointer)) void _start(void)
{
	descend(DEPTH);
}
