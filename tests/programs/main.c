// SPDX-License-Identifier: GPL-2.0-only
/*
 * PROGRAM [SECONDS] - calls act() from DEPTH levels down, at least twice, in
 * THREADS threads, until SIGTERM comes, or for SECONDS. Appends its tree of
 * calls to the file that CHAIN_FILE names.
 */
#include "chain.h"
#include "work.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "sys.h"

int again;

static double end;
static int running = THREADS;

CHAINED static void run(void)
{
	CHAIN_ENTER();
	/* In the second turn all nodes of the tree are there, and functions take another path. */
	for (int turn = 0; turn < 2 || (sys_now() < end && !sys_is_terminated()); turn += turn < 2)
		work(DEPTH, act);
	__atomic_sub_fetch(&running, 1, __ATOMIC_RELEASE);
}

CHAINED static void *run_thread(void *unused)
{
	CHAIN_ROOT();
	run();
	return unused;
}

/* Not pthread_join, which would wait in libc. */
CHAINED static void wait_for_threads(void)
{
	CHAIN_ENTER();
	struct timespec moment = { .tv_nsec = 1000000 };

	while (__atomic_load_n(&running, __ATOMIC_ACQUIRE))
		sys_call3(SYS_nanosleep, (long)&moment, 0, 0);
}

int main(int argc, char **argv)
{
	const char *path = getenv("CHAIN_FILE");
	pthread_t thread;

	sys_hold_sigterm();
	end = argc > 1 ? sys_now() + atof(argv[1]) : INFINITY;
	again = argc > 2;
	chain_start();
	for (int i = 1; i < THREADS; i++)
		if (pthread_create(&thread, NULL, run_thread, NULL))
			abort();
	CHAIN_ROOT();
	chain_populate();
	run();
	wait_for_threads();
	chain_write(path);
	sys_exit(0);
}
