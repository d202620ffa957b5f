// SPDX-License-Identifier: GPL-2.0-only
/* Switches to another stack, and from there to a part of its first stack: up, and down again. */
#include "chain.h"
#include "work.h"

static char other[64 * 1024] __attribute__((aligned(16)));
static char *own_end;

/*
 * The frame's size is known at run time only, so rbp points to it, wherever the stack pointer is.
 */
CHAINED static void on_stack(void (*call)(void), char *end, int size)
{
	CHAIN_ENTER();
	volatile char frame[size];

	(void)frame[0];
	asm volatile("mov %%rsp, %%rbx\n\tmov %1, %%rsp\n\tcall *%0\n\tmov %%rbx, %%rsp"
		     :
		     : "r"(call), "r"(end)
		     : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc",
		       "memory");
}

CHAINED static void back(void)
{
	CHAIN_ENTER();
	on_stack(spin, own_end, 8);
}

CHAINED void act(void)
{
	CHAIN_ENTER();
	char own[8 * 1024] __attribute__((aligned(16)));

	own_end = own + sizeof(own);
	on_stack(back, other + sizeof(other), 8);
}
