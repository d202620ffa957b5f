// SPDX-License-Identifier: GPL-2.0-only
/*
 * usage: until [-k] [-s SECONDS] SAMPLES FILE OPTION...
 *
 * Runs `perf record -o FILE OPTION...` until FILE has SAMPLES samples. perf then ends the program
 * that it records, by SIGTERM. So a recording is as long as it needs to be, on a fast host and on a
 * busy one.
 *
 *   -k  counts only samples of which the truth is known: they have a word of chain.h, as r12 is one
 *   -s  ends the recording after so many seconds (300), which is a failure; perf then has as many
 *       to end
 *
 * Exit status: 0 if there were enough samples, and perf and the program ended as they should.
 *
 * perf reads the kernel's buffers when they are half full, or when it is woken. So it is woken ten
 * times a second, through the pipe of its option --control. It reads no command while it finds new
 * samples each time that it looks, as from many threads on a slow kernel. Then the signal ends the
 * program, and perf ends behind it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* That of chain.h. */
#define CHAIN_MAGIC 0xc4a14eUL

/* The place of data.offset in the header of FILE, and the header's beginning. */
#define DATA_OFFSET 40
#define HEADER ((ssize_t)(DATA_OFFSET + sizeof(uint64_t)))
#define MAGIC "PERFILE2"

/* How long perf may take to read a command, in seconds. */
#define HEARS 10

static bool only_known;
static uint64_t samples;

__attribute__((noreturn)) static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static bool is_known(const struct perf_event_header *record)
{
	uint64_t word;

	for (size_t at = sizeof(*record); at + sizeof(word) <= record->size; at += sizeof(word)) {
		memcpy(&word, (const char *)record + at, sizeof(word));
		if (word >> 40 == CHAIN_MAGIC)
			return true;
	}
	return false;
}

/* Counts the whole records that perf has written since the last call. */
static void follow(const char *path)
{
	static char buffer[1 << 20];
	static int file = -1;
	static uint64_t place;
	ssize_t length;

	if (file < 0)
		file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return;
	if (!place) {
		length = pread(file, buffer, HEADER, 0);
		if (length < HEADER || memcmp(buffer, MAGIC, strlen(MAGIC)))
			return;
		memcpy(&place, buffer + DATA_OFFSET, sizeof(place));
	}
	while (place && (length = pread(file, buffer, sizeof(buffer), place)) > 0) {
		ssize_t at = 0;

		while (at + (ssize_t)sizeof(struct perf_event_header) <= length) {
			const struct perf_event_header *record = (const void *)(buffer + at);

			if (record->size < sizeof(*record) || at + record->size > length)
				break;
			if (record->type == PERF_RECORD_SAMPLE && (!only_known || is_known(record)))
				samples++;
			at += record->size;
		}
		if (!at)
			break;
		place += at;
	}
}

/* Becomes `perf record` with these options, and reads commands from this file. */
__attribute__((noreturn)) static void record(int control, const char *path, char **options,
					     int count)
{
	const char *arguments[count + 6];
	char option[32];
	int length = 0;

	snprintf(option, sizeof(option), "--control=fd:%d", control);
	arguments[length++] = "perf";
	arguments[length++] = "record";
	arguments[length++] = option;
	arguments[length++] = "-o";
	arguments[length++] = path;
	memcpy(arguments + length, options, (count + 1) * sizeof(*options));
	/* A group of its own, to end all of it. */
	setpgid(0, 0);
	execvp("perf", (char **)arguments);
	fail("perf");
}

static void tell(int control, const char *command)
{
	/* A pipe that is full wakes perf as well; perf may have ended. */
	if (write(control, command, strlen(command)) < 0)
		return;
}

int main(int argc, char **argv)
{
	double limit = 300, end, told = 0;
	bool is_late = false, is_told = false, is_ended = false;
	int option, status, control[2];
	uint64_t enough;
	pid_t perf;

	while ((option = getopt(argc, argv, "+ks:")) != -1) {
		if (option == 'k')
			only_known = true;
		else if (option == 's')
			limit = atof(optarg);
		else
			return 2;
	}
	if (argc - optind < 3) {
		fputs("usage: until [-k] [-s SECONDS] SAMPLES FILE OPTION...\n", stderr);
		return 2;
	}
	enough = strtoull(argv[optind], NULL, 10);
	const char *path = argv[optind + 1];

	unlink(path);
	signal(SIGPIPE, SIG_IGN);
	if (pipe(control) || fcntl(control[1], F_SETFD, FD_CLOEXEC) ||
	    fcntl(control[1], F_SETFL, O_NONBLOCK))
		fail("pipe");
	perf = fork();
	if (perf < 0)
		fail("fork");
	if (!perf) {
		signal(SIGPIPE, SIG_DFL);
		record(control[0], path, argv + optind + 2, argc - optind - 2);
	}
	close(control[0]);

	end = now() + limit;
	while (waitpid(perf, &status, WNOHANG) == 0) {
		nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
		if (is_told) {
			if (now() > end) {
				kill(-perf, SIGKILL);
			} else if (!is_ended && now() > told + HEARS) {
				kill(-perf, SIGTERM);
				is_ended = true;
			}
			continue;
		}
		follow(path);
		is_late = samples < enough && now() > end;
		is_told = samples >= enough || is_late;
		/* Without new samples perf ends at once. */
		tell(control[1], is_told ? "disable\nstop\n" : "ping\n");
		if (is_told) {
			told = now();
			end = told + limit;
		}
	}
	follow(path);
	if (samples < enough) {
		fprintf(stderr, "until: %" PRIu64 " of %" PRIu64 " samples ", samples, enough);
		if (is_late)
			fprintf(stderr, "after %.0f s\n", limit);
		else
			fputs("when the program had ended\n", stderr);
		return 1;
	}
	if (is_told && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		fprintf(stderr, "until: perf did not end within %.0f s\n", limit);
	/* perf ends by the signal by which its program has ended. */
	return WIFSIGNALED(status) ? WTERMSIG(status) != SIGTERM : WEXITSTATUS(status);
}
