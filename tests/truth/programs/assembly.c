// SPDX-License-Identifier: GPL-2.0-only
/* Calls the functions of assembly.S and on_stack.S, and checks their results. */
#include <setjmp.h>
#include "load.h"

const unsigned int rounds = 200;

long by_hand_pushes(long a, long b, long c);
long by_hand_where(void);
long by_hand_entry(void);
long by_hand_other_entry(long value);
long on_stack(long (*call)(long), long argument, char *end);
long by_hand_split(long count);
long by_hand_table(long kind);
void __attribute__((noreturn)) by_hand_never(long value, jmp_buf *back);
void __attribute__((noreturn)) by_hand_jump(long value, jmp_buf *back);

/* Below the thread's own stack, so that frames rise from one to the other. */
static char other[32 * 1024] __attribute__((aligned(16)));

static APART long descend(long depth)
{
	volatile char frame[24];

	frame[depth % 24] = 1;
	return depth ? descend(depth - 1) + frame[depth % 24] : by_hand_split(8);
}

/* From there on a part of the thread's own one again: frames fall from that to the other. */
static char *own_end;

static APART long back(long depth)
{
	return on_stack(descend, depth, own_end) + 1;
}

void by_hand_jump(long value, jmp_buf *back)
{
	sink += (unsigned long)value;
	longjmp(*back, 1);
}

static APART int never(long value)
{
	jmp_buf back;

	if (setjmp(back))
		return 1;
	by_hand_never(value, &back);
}

void work(unsigned int round)
{
	char own[8 * 1024] __attribute__((aligned(16)));

	own_end = own + sizeof(own);
	if (by_hand_pushes(round, 2, 3) != (long)round + 5 || by_hand_where() != 0)
		wrong("calls by hand");
	if (by_hand_entry() != 100 || by_hand_other_entry(5) != 5)
		wrong("entries");
	if (on_stack(descend, 40, other + sizeof(other)) != 76)
		wrong("another stack");
	if (on_stack(back, 40, other + sizeof(other)) != 77)
		wrong("a stack in another one");
	if (by_hand_split(1000) != 500500 || !never(round))
		wrong("ends");
	if (by_hand_table(0) != 3 || by_hand_table(1) != 7 || by_hand_table(2) != 7 ||
	    by_hand_table(3) != 0)
		wrong("a table");
}
