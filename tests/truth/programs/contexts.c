// SPDX-License-Identifier: GPL-2.0-only
/*
 * Several stacks in one thread: contexts that pass a turn around (makecontext, swapcontext), each
 * some calls deep, the last one's end by uc_link.
 */
#include <stdlib.h>
#include <ucontext.h>
#include "load.h"

#define CONTEXTS 5
#define STACK (64 * 1024)

const unsigned int rounds = 80;

static ucontext_t home, contexts[CONTEXTS];
static char stacks[CONTEXTS][STACK];
static unsigned int turns, finished;

static APART void pass_on(int self)
{
	turns++;
	if (swapcontext(&contexts[self], &contexts[(self + 1) % CONTEXTS]))
		wrong("swapcontext");
}

static APART long descend(int self, int depth)
{
	volatile char frame[56];

	frame[depth] = (char)self;
	pass_on(self);
	if (depth)
		return descend(self, depth - 1) + frame[depth];
	return frame[0];
}

/* What makecontext() starts: its caller is libc's __start_context. */
static void body(int self)
{
	if (descend(self, 20) != 21L * self)
		wrong("frames");
	finished++;
}

void work(unsigned int round)
{
	(void)round;
	turns = finished = 0;
	for (int self = 0; self < CONTEXTS; self++) {
		getcontext(&contexts[self]);
		contexts[self].uc_stack.ss_sp = stacks[self];
		contexts[self].uc_stack.ss_size = STACK;
		contexts[self].uc_link = self + 1 < CONTEXTS ? &contexts[self + 1] : &home;
		makecontext(&contexts[self], (void (*)(void))body, 1, self);
	}
	if (swapcontext(&home, &contexts[0]))
		wrong("swapcontext");
	if (turns != CONTEXTS * 21 || finished != CONTEXTS)
		wrong("turns");
}
