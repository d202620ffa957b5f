// SPDX-License-Identifier: GPL-2.0-only
/*
 * A thread whose stack has a page that belongs to a userfaultfd without a handler. A walk of this
 * stack that may wait, waits for ever. Prints "ready" when the thread has reached that state.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096UL

/* Uses this many bytes of the stack. */
#define FILL(bytes) char space[bytes]; __asm__ volatile("" : : "r"(space) : "memory")

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void withhold(unsigned long page)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = {
		.range = { .start = page, .len = PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		fail("userfaultfd");
	if (ioctl(fd, UFFDIO_REGISTER, &range))
		fail("UFFDIO_REGISTER");
	if (madvise((void *)page, PAGE, MADV_DONTNEED))
		fail("madvise");
}

static volatile unsigned long spins;

__attribute__((noipa)) static void inner(unsigned long page)
{
	FILL(3 * PAGE);
	withhold(page);
	puts("ready");
	fflush(stdout);
	for (;;)
		spins++;
}

/* Its return address is on the page, far from both ends of the stack. */
__attribute__((noipa)) static void outer(void)
{
	FILL(3 * PAGE);
	inner(((unsigned long)__builtin_dwarf_cfa() - 8) & ~(PAGE - 1));
	__asm__ volatile(""); /* no tail call */
}

static void *run(void *unused)
{
	FILL(5 * PAGE);
	outer();
	__asm__ volatile(""); /* no tail call */
	return unused;
}

int main(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, NULL))
		fail("pthread_create");
	pthread_join(thread, NULL);
	return 0;
}
