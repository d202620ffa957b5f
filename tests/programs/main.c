// SPDX-License-Identifier: GPL-2.0-only
/*
 * PROGRAM [SECONDS] - calls act() from DEPTH levels down, again and again, in
 * THREADS threads. Appends its tree of calls to the file that CHAIN_FILE names.
 */
#include "chain.h"
#include "work.h"

#include <pthread.h>
#include <stdlib.h>

#include "sys.h"

int again;

static double end;
static int running = THREADS;

CHAINED static void run(void)
{
	CHAIN_ENTER();
	while (sys_now() < end)
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

	end = sys_now() + (argc > 1 ? atof(argv[1]) : 5);
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
