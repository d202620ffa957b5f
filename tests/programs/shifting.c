// SPDX-License-Identifier: GPL-2.0-only
/*
 * shifting SECONDS - a thread computes while another one constantly unmaps the program's SFrame
 * section and ELF headers, replaces them with other bytes, and restores them.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

extern const char __ehdr_start[];

static volatile unsigned long work;

__attribute__((noipa)) static void down(int depth)
{
	if (depth)
		down(depth - 1);
	else
		for (int i = 0; i < 100000; i++)
			work += i;
	__asm__ volatile("");
}

static void *compute(void *unused)
{
	for (;;)
		down(20);
	return unused;
}

int main(int argc, char **argv)
{
	/* The segment that contains both. */
	const ElfW(Ehdr) *header = (const void *)__ehdr_start;
	const ElfW(Phdr) *segments = (const void *)(__ehdr_start + header->e_phoff);
	unsigned long page = sysconf(_SC_PAGESIZE), sframe = 0, end = 0;
	time_t until = time(NULL) + (argc > 1 ? atoi(argv[1]) : 2);
	pthread_t thread;

	for (int i = 0; i < header->e_phnum; i++)
		if (segments[i].p_type == 0x6474e554) {
			sframe = (unsigned long)__ehdr_start + segments[i].p_vaddr;
			end = sframe + segments[i].p_memsz;
		}
	if (!sframe || pthread_create(&thread, NULL, compute, NULL))
		return 1;

	unsigned long first[2] = { (unsigned long)__ehdr_start, sframe & ~(page - 1) };
	unsigned long length[2] = { page, ((end + page - 1) & ~(page - 1)) - first[1] };
	char *copy[2] = { malloc(length[0]), malloc(length[1]) };

	memcpy(copy[0], (void *)first[0], length[0]);
	memcpy(copy[1], (void *)first[1], length[1]);
	for (unsigned int turn = 0; time(NULL) < until; turn++) {
		int which = turn & 1;
		void *at = (void *)first[which];
		unsigned long size = length[which];

		switch (turn / 2 % 4) {
		case 0: /* unmapped */
			munmap(at, size);
			break;
		case 1: /* not readable */
			mprotect(at, size, PROT_NONE);
			break;
		case 2: /* other bytes, at once and one by one */
			mprotect(at, size, PROT_READ | PROT_WRITE);
			memset(at, turn & 0x7f, size);
			for (unsigned long i = 0; i < size; i += 7)
				((char *)at)[i] = rand() & 0x7f;
			break;
		case 3: /* zeros */
			madvise(at, size, MADV_DONTNEED);
			break;
		}
		usleep(200);
		mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		     -1, 0);
		memcpy(at, copy[which], size);
		mprotect(at, size, PROT_READ);
		usleep(200);
	}
	_exit(0);
}
