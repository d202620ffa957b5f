// SPDX-License-Identifier: GPL-2.0-only
/*
 * usage: program DEPTH TURNS
 *
 * In each turn draws DEPTH functions of all parts at random, lets each call the next one, and stays in the
 * last one for about 60 microseconds. With a sample every 100 microseconds nearly all samples are taken
 * there, and no two in sequence have equal stacks. Prints the run time in nanoseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "functions.h"

#define MOST 512

#ifndef PARTS
#define PARTS 1
#endif

extern struct part part_0, part_1, part_2, part_3, part_4, part_5, part_6, part_7;
static struct part *const parts[] = {
	&part_0,
#if PARTS == 8
	&part_1, &part_2, &part_3, &part_4, &part_5, &part_6, &part_7,
#endif
};

/* xorshift64*: the same numbers in each run. */
static unsigned long drawn(unsigned long *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dul;
}

static unsigned long last(struct walk *walk)
{
	unsigned long turns = 20000;

	/* Three instructions for each pass of the loop. */
	do
		__asm__ volatile("nop" : "+r"(turns));
	while (--turns);
	return walk->size;
}

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int argc, char **argv)
{
	int depth = argc == 3 ? atoi(argv[1]) : 0;
	long begun = now(), turns = argc == 3 ? atoi(argv[2]) : 0;
	unsigned long state = 88172645463325252ul, sum = 0;
	function called[MOST];

	if (depth < 1 || depth >= MOST) {
		fprintf(stderr, "usage: program DEPTH TURNS\n");
		return 2;
	}
	while (turns--) {
		struct walk walk = { called + 1, 48 };
		int at;

		for (at = 0; at < depth; at++) {
			struct part *part = parts[drawn(&state) % PARTS];

			called[at] = part->functions[drawn(&state) % part->count];
		}
		called[depth] = last;
		sum += called[0](&walk);
	}
	printf("%ld\n", now() - begun);
	return sum == 1;
}
