// SPDX-License-Identifier: GPL-2.0-only
/* Counters, one set for each CPU, and the tracepoint. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/percpu.h>

#include "internal.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

DEFINE_PER_CPU(uint64_t[SFU_COUNTERS], sfu_counter);

uint64_t *const sfu_counters = (uint64_t *)(uintptr_t)&sfu_counter[0];

uint64_t sfu_counted(unsigned int first, unsigned int count)
{
	uint64_t sum = 0;
	unsigned int i;
	int cpu;

	for_each_possible_cpu(cpu)
		for (i = first; i < first + count && i < SFU_COUNTERS; i++)
			sum += READ_ONCE(per_cpu(sfu_counter, cpu)[i]);
	return sum;
}

void *const *const sfu_walk_listeners =
	(void *const *)(uintptr_t)&__tracepoint_sframe_unwind_walk.funcs;

void sfu_trace_walk(const char *context, unsigned int frames, const char *reason)
{
	trace_sframe_unwind_walk(context, frames, reason);
}
