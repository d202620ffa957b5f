/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Events that take the caller's own user stack at each getppid(): as many walks as there are
 * events, at the cost of one system call. Nothing is mapped of an event, so the kernel takes the
 * stack and drops the sample.
 */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <linux/perf_event.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The number of the tracepoint SYSTEM/NAME; 0 if there is none. */
static inline unsigned long tracepoint(const char *name)
{
	char path[128];
	unsigned long number = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/tracing/events/%s/id", name);
	file = fopen(path, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%lu", &number) != 1)
		number = 0;
	fclose(file);
	return number;
}

/*
 * attr.defer_callchain, which older headers do not have; the flags lie before attr.wakeup_events.
 */
#define DEFER_CALLCHAIN (1ull << 38)

/* Opens an event of the current thread; its descriptor, or -1. */
static inline int sample_each_syscall(int deferred)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
		.config = tracepoint("syscalls/sys_enter_getppid"),
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_CALLCHAIN,
		.exclude_callchain_kernel = 1,
	};

	if (!attr.config)
		return -1;
	if (deferred) {
		char *flags_at = (char *)&attr + offsetof(struct perf_event_attr, wakeup_events) -
				 sizeof(uint64_t);
		uint64_t flags;

		memcpy(&flags, flags_at, sizeof(flags));
		flags |= DEFER_CALLCHAIN;
		memcpy(flags_at, &flags, sizeof(flags));
	}
	return syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

#endif
