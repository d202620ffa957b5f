// SPDX-License-Identifier: GPL-2.0-only
/*
 * hog MIB SECONDS - takes so much memory in pieces, writes to all of it again and again, and gives
 * back and takes anew a piece each time.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PIECE (4ul << 20)

int main(int argc, char **argv)
{
	unsigned long pieces = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) / 4;
	time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 5);
	char **memory = calloc(pieces, sizeof(*memory));
	unsigned long value = 0;

	if (!memory || !pieces)
		return 1;
	for (unsigned long which = 0; time(NULL) < end; which = (which + 1) % pieces) {
		if (memory[which])
			munmap(memory[which], PIECE);
		memory[which] = mmap(NULL, PIECE, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory[which] == MAP_FAILED)
			return 1;
		for (unsigned long other = 0; other < pieces; other++)
			if (memory[other] && (other == which || other % 8 == which % 8))
				for (unsigned long at = 0; at < PIECE; at += 4096)
					memory[other][at] = value++;
	}
	return 0;
}
