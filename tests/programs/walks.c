// SPDX-License-Identifier: GPL-2.0-only
/*
 * walks EVENTS SECONDS [UID] - takes its own stack as often as it can, for so long: at each system
 * call once for each of EVENTS events, the last of which is deferred. The stack is 2 to 30 calls
 * deep. Opens the events as root, then becomes UID.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "sample.h"

#define TURNS 64

/* Not in libc, which has no rows. */
static inline __attribute__((always_inline)) void getppid_here(void)
{
	long result = SYS_getppid;

	__asm__ volatile("syscall" : "+a"(result) : : "rcx", "r11", "memory");
}

static volatile unsigned long sum;

__attribute__((noipa)) static void take(void)
{
	for (int i = 0; i < TURNS; i++)
		getppid_here();
	sum++;
}

__attribute__((noipa)) static void down(int depth)
{
	/* A frame whose size is known at run time only, now and then. */
	if (depth % 8 == 7) {
		volatile char *buffer = __builtin_alloca(16 + depth);

		buffer[0] = depth;
	}
	if (depth)
		down(depth - 1);
	else
		take();
	sum++;
}

int main(int argc, char **argv)
{
	int events = argc > 1 ? atoi(argv[1]) : 8;
	double seconds = argc > 2 ? atof(argv[2]) : 5;
	struct timespec now;
	double end;

	for (int i = 0; i < events; i++)
		if (sample_each_syscall(i == events - 1) < 0) {
			perror("perf_event_open");
			return 1;
		}
	if (argc > 3 && setuid(atoi(argv[3])))
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec + now.tv_nsec / 1e9 + seconds;
	for (unsigned int turn = 0; now.tv_sec + now.tv_nsec / 1e9 < end; turn++) {
		down(1 + turn % 29);
		clock_gettime(CLOCK_MONOTONIC, &now);
	}
	return 0;
}
