// SPDX-License-Identifier: GPL-2.0-only
/*
 * A library that comes and goes: dlopen(), calls into it and back, dlclose(). Between two rounds
 * another mapping may take its place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>
#include "load.h"
#include "shapes.h"

const unsigned int rounds = 15;

static long sum_up(long sum, long value)
{
	return sum * 3 + value;
}

static APART int count_down(int depth)
{
	return depth <= 0 ? 11 : depth - 1;
}

static APART void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		wrong(name);
	return found;
}

void work(unsigned int round)
{
	void *library = dlopen("libshapes.so", round & 1 ? RTLD_LAZY : RTLD_NOW);
	static void *in_the_way;
	static unsigned long size;
	long values[64], sum = 0;

	if (!library)
		wrong(dlerror());
	__typeof__(library_fold) *fold = symbol(library, "library_fold");
	__typeof__(library_wide) *wide = symbol(library, "library_wide");
	__typeof__(library_tail) *tail = symbol(library, "library_tail");

	for (int at = 0; at < 64; at++)
		values[at] = at * 7;
	for (int turn = 0; turn < 100; turn++) {
		sum += fold(values, 64, sum_up);
		sum += wide((struct wide){{sum, 2, 3, 4, 5, 6, 7, 8, turn}});
	}
	if (tail(9, count_down) != 7)
		wrong("tail call");
	sink += (unsigned long)sum;
	if (dlclose(library))
		wrong("dlclose");
	/* Moves the library to another address. */
	if (in_the_way)
		munmap(in_the_way, size);
	size = 64 * 1024 * (1 + round % 3);
	in_the_way = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (in_the_way == MAP_FAILED)
		wrong("mmap");
}
