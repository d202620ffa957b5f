// SPDX-License-Identifier: GPL-2.0-only
/*
 * Signals: handlers on the stack and on another one, one in the other, and interrupted functions of
 * all kinds. In a short run they come by instructions that fault, so always at fixed places; in
 * a long one a timer sends more, at any instruction.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#include "load.h"

#define PAGE 4096
#define ALTERNATE (64 * 1024)

const unsigned int rounds = 50;

long traps_pushed(long value);
long traps_framed(long value);
long traps_leaf(long value);
long traps_before(long value);

static char alternate[ALTERNATE] __attribute__((aligned(16)));
static volatile int trapped, nested, faulted, ticks;
static char *hidden;
static sigjmp_buf escape;

static APART long mix(long value, int depth)
{
	volatile long frame[3] = {value, depth, 1};

	if (depth == 0)
		return frame[0] * 5 + frame[2];
	return mix(value + 1, depth - 1) ^ frame[1];
}

/* Goes on after `ud2`. Every eighth time another signal comes in between. */
static void on_trap(int number, siginfo_t *info, void *context)
{
	ucontext_t *interrupted = context;

	(void)info;
	sink += (unsigned long)mix(number, 6);
	if (++trapped % 8 == 0)
		raise(SIGUSR1);
	interrupted->uc_mcontext.gregs[REG_RIP] += 2;
}

/* Comes again within itself. */
static void on_nested(int number)
{
	int before = nested;

	sink += (unsigned long)mix(number, 3);
	if (nested < 4) {
		nested++;
		raise(number);
		nested = before;
	}
}

/* Makes the page readable, so that the instruction is repeated; or does not come back. */
static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	sink += (unsigned long)mix(number, 4);
	faulted++;
	if (info->si_addr == hidden)
		mprotect(hidden, PAGE, PROT_READ | PROT_WRITE);
	else
		siglongjmp(escape, 1);
}

/* The load of a leaf faults. */
static APART long peek(const volatile char *at)
{
	return at[0] + at[1];
}

/* Faults at a push or a store of its beginning, when the stack is used up. */
static APART long overflow(long depth)
{
	volatile char frame[200];

	frame[depth % 200] = (char)depth;
	if (depth < 0)
		return 0;
	return overflow(depth + 1) + frame[depth % 200];
}

/* On a stack that is soon used up. */
long on_stack(long (*call)(long), long argument, char *end);

static APART long use_up(long result)
{
	if (sigsetjmp(escape, 1) == 0)
		sink += (unsigned long)overflow(0);
	return result;
}

static void on_tick(int number)
{
	sink += (unsigned long)mix(number, 3);
	ticks++;
}

/* A call that is interrupted, and begun again by the kernel (SA_RESTART). */
static APART void restarted(void)
{
	struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
	int ends[2], before = ticks;
	char byte;

	if (pipe(ends))
		wrong("pipe");
	setitimer(ITIMER_REAL, &often, NULL);
	/* The timer interrupts the calls below. */
	for (int turn = 0; turn < 50; turn++) {
		sink += (unsigned long)traps_framed(turn) + (unsigned long)mix(turn, 200);
		if (write(ends[1], "", 1) != 1 || read(ends[0], &byte, 1) != 1)
			wrong("a call that was interrupted");
	}
	while (ticks == before)
		sink += (unsigned long)mix(1, 1000);
	setitimer(ITIMER_REAL, &never, NULL);
	close(ends[0]);
	close(ends[1]);
}

static void handle(int number, void *handler, int flags)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	if (flags & SA_SIGINFO)
		action.sa_sigaction = (void (*)(int, siginfo_t *, void *))handler;
	else
		action.sa_handler = (void (*)(int))handler;
	action.sa_flags = flags;
	if (sigaction(number, &action, NULL))
		wrong("sigaction");
}

void work(unsigned int round)
{
	int elsewhere = round & 1 ? SA_ONSTACK : 0;
	stack_t stack = {.ss_sp = alternate, .ss_size = ALTERNATE};
	static char *narrow_stack;

	if (!hidden) {
		hidden = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		narrow_stack = mmap(NULL, 5 * PAGE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (hidden == MAP_FAILED || narrow_stack == MAP_FAILED ||
		    mprotect(narrow_stack, PAGE, PROT_NONE))
			wrong("mmap");
		if (sigaltstack(&stack, NULL))
			wrong("sigaltstack");
	}
	handle(SIGILL, (void *)on_trap, SA_SIGINFO | elsewhere);
	handle(SIGUSR1, (void *)on_nested, SA_NODEFER);
	handle(SIGSEGV, (void *)on_fault, SA_SIGINFO | SA_ONSTACK);
	handle(SIGALRM, (void *)on_tick, SA_RESTART | elsewhere);

	trapped = nested = faulted = 0;
	for (long at = 0; at < 20; at++)
		if (traps_pushed(at) != at + 1 || traps_framed(at) != at + 1 ||
		    traps_leaf(at) != at + 1 || traps_before(at) != at + 1)
			wrong("interrupted functions");
	if (trapped != 20 * (11 + 4 + 7 + 4 + 4 + 1))
		wrong("traps");

	mprotect(hidden, PAGE, PROT_NONE);
	if (peek(hidden) != 0 || faulted != 1)
		wrong("peek");
	if (on_stack(use_up, 3, narrow_stack + 5 * PAGE) != 3 || faulted != 2)
		wrong("overflow");
	if (endless)
		restarted();
}
