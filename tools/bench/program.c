// SPDX-License-Identifier: GPL-2.0-only
/*
 * usage: program DEPTH TURNS
 *
 * In each turn draws DEPTH functions of all parts at random, lets each call the next one, and stays
 * in the last one for about 60 microseconds. With a sample every 100 microseconds nearly all
 * samples are taken there, and no two in sequence have equal stacks. Prints the run time in
 * nanoseconds. With REGION, the functions are in anonymous memory, and in a region of that kind.
 * With INNER, most turns draw only the INNER innermost functions. With MAPS, each turn changes the
 * mappings.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#ifdef REGION
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "sframe_unwind.h"
#endif

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

#ifdef REGION
/* Puts a copy of the functions, which are a library of their own, in their place. */
static int make_region(void)
{
	static unsigned long guard = 0x5ca1ab1e;
	unsigned char *start = part_0.start;
	size_t size = (part_0.end - start + 4095) & ~4095ul;
	void *copy = malloc(size);
	struct sframe_unwind_region region = {
		.size = sizeof(region),
		.version = SFRAME_UNWIND_VERSION,
		.pid = getpid(),
		.start = (unsigned long)start,
		.end = (unsigned long)part_0.end,
		.guard = (unsigned long)&guard,
		.guard_value = guard,
		.kind = REGION,
	};

	if (REGION == SFRAME_UNWIND_REGION_FIXED) {
		region.fp_saved = SFRAME_UNWIND_FP_UNCHANGED;
		/* The return address, and what a small function pushes. */
		region.cfa_offset = 16;
	} else {
		Dl_info library;

		if (!dladdr(start, &library))
			return -1;
		region.rows_file = open(library.dli_fname, O_RDONLY);
		region.rows_offset = start - part_0.file;
	}
	memcpy(copy, start, size);
	if (mmap(start, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0) == MAP_FAILED)
		return -1;
	memcpy(start, copy, size);
	free(copy);
	if (mprotect(start, size, PROT_READ | PROT_EXEC))
		return -1;
	return ioctl(open("/dev/sframe_unwind", O_RDWR), SFRAME_UNWIND_REGION, &region);
}
#endif

/*
 * The first function of a turn that is drawn anew. With INNER, these are only the innermost INNER
 * ones, or half of them for INNER 0, and all of them in each hundredth turn.
 */
static int first_of_turn(int depth, int turns)
{
#ifdef INNER
	static int is_drawn;
	int inner = INNER && INNER < depth / 2 ? INNER : depth / 2;

	if (turns % 100 && is_drawn)
		return depth - inner;
	is_drawn = 1;
#endif
#ifdef MAPS
	munmap(mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
#endif
	return 0;
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
#ifdef REGION
	if (make_region()) {
		perror("program: no region");
		return 1;
	}
#endif
	while (turns--) {
		struct walk walk = { called + 1, 48 };
		int at = first_of_turn(depth, turns);

		for (; at < depth; at++) {
			struct part *part = parts[drawn(&state) % PARTS];

			called[at] = part->functions[drawn(&state) % part->count];
		}
		called[depth] = last;
		sum += called[0](&walk);
	}
	printf("%ld\n", now() - begun);
	return sum == 1;
}
