// SPDX-License-Identifier: GPL-2.0-only
/*
 * churn PROGRAM DIRECTORY SECONDS [SEED] - changes files while they are mapped and run. Children
 * run copies of PROGRAM, a program with rows, in DIRECTORY and in memfds; meanwhile each copy is
 * written, cut off, extended, renamed, given another time, written through a shared mapping, or
 * replaced. What happens to the children does not matter: many die of it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILES 4

static char *program;
static size_t size;
static unsigned long changes;

/* A copy, or -1. */
static int copy_to(const char *path)
{
	int file = path ? open(path, O_RDWR | O_CREAT | O_TRUNC, 0755) : memfd_create("churn", 0);

	if (file >= 0 && write(file, program, size) != (ssize_t)size) {
		close(file);
		return -1;
	}
	return file;
}

/*
 * A child that is in the file's code: it maps the file, as exec would refuse while it is open for
 * writing.
 */
static pid_t visitor(int file)
{
	pid_t child = fork();

	if (child)
		return child;
	alarm(5);
	char *code = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
	unsigned long turns = 0;

	if (code == MAP_FAILED)
		_exit(1);
	for (;;) {
		/*
		 * Reads through all pages, so that they are in memory, and stays in system calls
		 * and user code.
		 */
		for (size_t at = 0; at < size; at += 4096)
			turns += ((volatile char *)code)[at];
		if (turns++ % 16 == 0) {
			char *again = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);

			mprotect(code, 4096, PROT_READ | PROT_EXEC);
			if (again != MAP_FAILED)
				munmap(again, size);
		}
	}
}

/* A child that runs the file by the loader, since exec refuses files that are open for writing. */
static pid_t runner(int file)
{
	char loader[] = "/lib64/ld-linux-x86-64.so.2", link[64];
	char *const arguments[] = { loader, link, "0.3", NULL };
	char *const environment[] = { "CHAIN_FILE=/dev/null", NULL };
	pid_t child;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
	child = fork();
	if (child)
		return child;
	alarm(5);
	close(1);
	close(2);
	execve(loader, arguments, environment);
	_exit(1);
}

static sigjmp_buf out;
static void fault(int signal)
{
	siglongjmp(out, signal);
}

static void change(int file, const char *path)
{
	char other[256];
	struct timespec times[2] = {
		{ .tv_sec = random() },
		{ .tv_sec = random(), .tv_nsec = random() % 1000000000 },
	};
	size_t at = random() % size;
	size_t length = random() % (size - at) % 20000 + 1;

	changes++;
	switch (random() % 9) {
	case 0:
		(void)!pwrite(file, program + random() % (size - length + 1), length, at);
		break;
	case 1:
		(void)!pwrite(file, program + at, length, at);
		break;
	case 2:
		(void)!ftruncate(file, at);
		break;
	case 3:
		(void)!ftruncate(file, size + random() % 100000);
		break;
	case 4:
		futimens(file, times);
		break;
	case 5:
		if (path) {
			snprintf(other, sizeof(other), "%s.old", path);
			if (!rename(path, other) && random() % 2)
				(void)!rename(other, path);
		}
		break;
	case 6:
		(void)!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at & ~4095ul,
				 8192);
		break;
	default: {
		char *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

		if (shared == MAP_FAILED)
			break;
		if (!sigsetjmp(out, 1))
			for (int i = 0; i < 50; i++)
				shared[random() % size] = random();
		munmap(shared, size);
	}
	}
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	int from = open(argv[1], O_RDONLY);
	time_t end = time(NULL) + atoi(argv[3]);
	struct stat status;

	srandom(argc > 4 ? atoi(argv[4]) : 1);
	if (from < 0 || fstat(from, &status))
		return 1;
	size = status.st_size;
	program = malloc(size);
	if (!program || read(from, program, size) != (ssize_t)size || chdir(argv[2]))
		return 1;
	signal(SIGBUS, fault);
	signal(SIGSEGV, fault);
	while (time(NULL) < end) {
		pid_t children[2 * FILES];
		int files[FILES], n = 0;
		char path[FILES][64];

		for (int i = 0; i < FILES; i++) {
			snprintf(path[i], sizeof(path[i]), "churn.%d.%d", getpid(), i);
			files[i] = copy_to(i % 2 ? path[i] : NULL);
			if (files[i] < 0) {
				perror("copy");
				return 1;
			}
		}
		for (int i = 0; i < FILES; i++) {
			children[n] = visitor(files[i]);
			n += children[n] > 0;
			children[n] = runner(files[i]);
			n += children[n] > 0;
		}
		usleep(50000);
		for (int turn = 0; turn < 40; turn++) {
			int which = random() % FILES;

			change(files[which], which % 2 ? path[which] : NULL);
			if (turn % 8 == 7)
				usleep(20000);
		}
		for (int i = 0; i < n; i++)
			kill(children[i], SIGKILL);
		while (wait(NULL) > 0 || errno == EINTR)
			;
		for (int i = 0; i < FILES; i++) {
			char other[80];

			snprintf(other, sizeof(other), "%s.old", path[i]);
			unlink(path[i]);
			unlink(other);
			close(files[i]);
		}
	}
	printf("%lu changes\n", changes);
	return 0;
}
