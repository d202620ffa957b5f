// SPDX-License-Identifier: GPL-2.0-only
/*
 * demo [SECONDS] - a program without frame pointers, busy in many functions.
 *
 * It ends after SECONDS (5), or at the end of the day at which SIGTERM comes.
 * Appends its tree of calls to the file that CHAIN_FILE names, if it is set.
 */
#include "chain.h"
#include "demo.h"

#include <stdlib.h>

#include "sys.h"

CHAINED static void morning(struct day *day)
{
	CHAIN_ENTER();
	take_orders(day);
	price_orders(day);
}

CHAINED static void evening(struct day *day)
{
	CHAIN_ENTER();
	rank_orders(day);
	report_orders(day);
	forecast(day);
}

CHAINED static void live_day(struct day *day)
{
	CHAIN_ENTER();
	/* The days repeat, or the tree of calls would grow for ever. */
	day->random = 88172645463325252 + day->number % 4;
	morning(day);
	evening(day);
}

CHAINED static void live(struct day *day, double seconds)
{
	CHAIN_ENTER();
	double end = sys_now() + seconds;

	for (; sys_now() < end && !sys_is_terminated(); day->number++)
		live_day(day);
}

int main(int argc, char **argv)
{
	const char *path = getenv("CHAIN_FILE");
	double seconds = argc > 1 ? atof(argv[1]) : 5;
	static struct day day;

	sys_hold_sigterm();
	day.null_fd = sys_open("/dev/null", O_WRONLY, 0);
	day.zero_fd = sys_open("/dev/zero", O_RDONLY, 0);
	chain_start();
	CHAIN_ROOT();
	chain_populate();
	live(&day, seconds);
	chain_write(path);
	sys_exit(0);
}
