/* SPDX-License-Identifier: GPL-2.0-only */
/* The tracepoint sframe_unwind:sframe_unwind_walk, which fires at the end of each walk. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM sframe_unwind

#if !defined(_SFRAME_UNWIND_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _SFRAME_UNWIND_TRACE_H

#include <linux/sched.h>
#include <linux/tracepoint.h>

TRACE_EVENT(sframe_unwind_walk,
	TP_PROTO(const char *context, unsigned int frames, const char *reason),
	TP_ARGS(context, frames, reason),
	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(unsigned int, frames)
		__string(context, context)
		__string(reason, reason)
	),
	TP_fast_assign(
		__entry->pid = current->pid;
		__entry->frames = frames;
		SFU_ASSIGN_STR(context);
		SFU_ASSIGN_STR(reason);
	),
	TP_printk("pid=%d context=%s frames=%u reason=%s",
		__entry->pid, __get_str(context), __entry->frames, __get_str(reason))
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
