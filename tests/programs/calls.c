// SPDX-License-Identifier: GPL-2.0-only
/*
 * usage: calls ROUNDS [signals]
 *
 * Calls a chain of functions in each round, and spends its time in the innermost function. With
 * `signals`, a handler that calls a part of the chain interrupts it. Writes the names and addresses
 * of the functions, and the address of the file's start, to the file CHAIN_FILE. For architectures
 * on which chain.h does not build.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#define FUNCTION __attribute__((noinline, noclone))

static volatile unsigned long sum;

static FUNCTION unsigned long leaf(unsigned long turns)
{
	for (unsigned long turn = 0; turn < turns; turn++)
		sum += turn;
	return sum;
}

/* Each function uses the result of the function it calls: no call is a jump. */
static FUNCTION unsigned long fourth(unsigned long turns)
{
	return leaf(turns) + 4;
}

static FUNCTION unsigned long third(unsigned long turns)
{
	/* Of variable size: the CFA counts from the frame pointer, also without frame pointers. */
	volatile char room[turns % 64 + 1];

	room[0] = 1;
	return fourth(turns) + room[0] + 3;
}

static FUNCTION unsigned long second(unsigned long turns)
{
	return third(turns) + 2;
}

static FUNCTION unsigned long first(unsigned long turns)
{
	return second(turns) + 1;
}

static FUNCTION void handler(int number)
{
	sum += third(300000) + number;
}

static void write_functions(const char *path, void *entry)
{
	extern char _start[], __ehdr_start[];
	FILE *file = path ? fopen(path, "w") : NULL;

	if (!file)
		return;
	fprintf(file, "leaf %p\nfourth %p\nthird %p\nsecond %p\nfirst %p\n", (void *)leaf,
		(void *)fourth, (void *)third, (void *)second, (void *)first);
	fprintf(file, "handler %p\nmain %p\n_start %p\nfile %p\n", (void *)handler, entry,
		(void *)_start, (void *)__ehdr_start);
	fclose(file);
}

int main(int argc, char **argv)
{
	const struct itimerval often = { { 0, 2000 }, { 0, 2000 } };
	const struct sigaction action = { .sa_handler = handler };
	unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 0) : 1;

	write_functions(getenv("CHAIN_FILE"), (void *)main);
	if (argc > 2) {
		sigaction(SIGPROF, &action, NULL);
		setitimer(ITIMER_PROF, &often, NULL);
	}
	for (unsigned long round = 0; round < rounds; round++)
		sum += first(100000);
	return 0;
}
