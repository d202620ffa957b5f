// SPDX-License-Identifier: GPL-2.0-only
/* main() of the programs of the corpus: see load.h. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "load.h"

volatile unsigned long sink;
int endless;

void wrong(const char *what)
{
	fprintf(stderr, "wrong: %s\n", what);
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double seconds = argc == 2 ? atof(argv[1]) : -1;
	unsigned int round = 0;

	if (seconds < 0) {
		fprintf(stderr, "usage: %s SECONDS\n", argv[0]);
		return 2;
	}
	if (seconds == 0) {
		while (round < rounds)
			work(round++);
	} else {
		double end = now() + seconds;

		endless = 1;
		while (now() < end)
			work(round++);
	}
	return 0;
}
