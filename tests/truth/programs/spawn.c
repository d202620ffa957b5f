// SPDX-License-Identifier: GPL-2.0-only
/* Children by fork(), vfork() and posix_spawn(): two tasks in one memory, and a new program. */
#define _GNU_SOURCE
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "load.h"

const unsigned int rounds = 10;

extern char **environ;

static APART long mix(long value, int depth)
{
	volatile long frame[3] = {value, depth, 1};

	if (depth == 0)
		return frame[0] * 5 + frame[2];
	return mix(value + 1, depth - 1) ^ frame[1];
}

static void expect(pid_t child, int status)
{
	int found;

	if (child < 0 || waitpid(child, &found, 0) != child || !WIFEXITED(found) ||
	    WEXITSTATUS(found) != status)
		wrong("a child");
}

static APART void by_fork(int status)
{
	pid_t child = fork();

	if (child == 0) {
		sink += (unsigned long)mix(status, 30);
		_exit(status);
	}
	expect(child, status);
}

/* The parent waits in vfork() while the child runs on its stack, and below. */
static APART void by_vfork(int status)
{
	pid_t child = vfork();

	if (child == 0) {
		sink += (unsigned long)mix(status, 30);
		_exit(status);
	}
	expect(child, status);
}

static APART void by_spawn(void)
{
	static char *arguments[] = {"spawn-child", NULL};
	pid_t child;

	/* Without an argument it shows its usage, and ends with status 2. */
	posix_spawn_file_actions_t quiet;

	posix_spawn_file_actions_init(&quiet);
	posix_spawn_file_actions_addclose(&quiet, 2);
	if (posix_spawn(&child, "/proc/self/exe", &quiet, NULL, arguments, environ))
		wrong("posix_spawn");
	posix_spawn_file_actions_destroy(&quiet);
	expect(child, 2);
}

void work(unsigned int round)
{
	long sum = 0;

	for (int at = 0; at < 500; at++)
		sum += mix(at, 30);
	sink += (unsigned long)sum;
	by_fork((int)(round & 7));
	by_vfork((int)(round & 7));
	by_spawn();
}
