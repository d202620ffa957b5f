/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the Rust side needs of the kernel and the `kernel` crate has no face for.
 *
 * All layouts of kernel structures stay in helpers.c: what passes here is numbers, the plain
 * structures below, and pointers that Rust never looks behind. bindgen reads this file by
 * itself, so it includes nothing of the kernel.
 */
#ifndef _SFRAME_UNWIND_HELPERS_H
#define _SFRAME_UNWIND_HELPERS_H

#ifdef __BINDGEN__
#include <stdbool.h>
#include <stdint.h>
#else
#include <linux/types.h>
#endif

/* How many counters there are room for. */
#define SFU_COUNTERS 64

/* In which context this runs. */
enum sfu_context {
	SFU_TASK,
	SFU_IRQ,
	SFU_NMI,
};

/* The registers of a user task that a walk starts from. */
struct sfu_registers {
	uint64_t pc;
	uint64_t sp;
	uint64_t fp;
};

/* One mapping of the current task. All addresses are run-time addresses. */
struct sfu_mapping {
	uint64_t start;
	uint64_t end;
	/* Of the file, in bytes, at `start`. */
	uint64_t offset;
	/*
	 * Where the same file is mapped from its offset 0, up to `head_end`; 0, 0 if nowhere near. Of
	 * code that is of no file: the next file below.
	 */
	uint64_t head;
	uint64_t head_end;
	bool executable;
	bool is_file;
};

/*
 * Hooks. After sfu_hook_install(), sframe_unwind_wanted() is asked in place of the kernel's
 * functions and, where it says yes, one of the other two runs in their stead.
 */
int sfu_hook_install(bool immediate, bool deferred);
/* Returns once no hooked call is running or can start. Never returns if ftrace refuses. */
void sfu_hook_remove(void);

/* NMI, IRQ or task, preemption off; must not sleep. For the current task, which has a mm. */
bool sframe_unwind_wanted(void);
/* Replaces perf_callchain_user(). NMI, IRQ or task; must not sleep. */
void sframe_unwind_immediate(void *entry, const void *regs);
/* Replaces unwind_user(). Task; may sleep. */
int sframe_unwind_deferred(void *trace, unsigned int max_entries);

/* Any context. */
enum sfu_context sfu_current_context(void);
void sfu_registers_of(const void *regs, struct sfu_registers *registers);
const void *sfu_registers_of_current(struct sfu_registers *registers);

/*
 * The register of this DWARF number, of `regs`, a struct pt_regs of user space; any context. False
 * if there is no such register.
 */
bool sfu_register(const void *regs, unsigned int number, uint64_t *value);
/* Whether `regs`, the same, are of a task in the system call that ends a signal's handler. */
bool sfu_in_sigreturn(const void *regs);

/*
 * Uprobes of the current task; any context. Whether there may be any; the address of the
 * instruction under a uprobe that is about to be run by other means than at the user's PC, which
 * is `pc`, else `pc`; and the return address that a uretprobe took from the stack at `slot`, if
 * one did.
 */
bool sfu_is_probed(void);
uint64_t sfu_in_line(uint64_t pc);
bool sfu_taken_by_uretprobe(uint64_t slot, uint64_t *address);

/* Sinks; any context. False if there is no more room. */
bool sfu_store_immediate(void *entry, uint64_t address);
bool sfu_store_deferred(void *trace, unsigned int max_entries, uint64_t address);

/*
 * Between these two, a deferred walk may sleep and sfu_hook_remove() waits for it. The first
 * empties the trace; its result is for the second.
 */
int sfu_deferred_enter(void *trace);
void sfu_deferred_leave(int token);

/* User memory. Checks the address; any context; never faults in. 0 or -EFAULT. */
int sfu_read_user(void *to, uint64_t address, unsigned int len);
/* Task that may sleep. Faults the bytes in; holds the module meanwhile. 0 or a negative error. */
int sfu_fault_in(uint64_t address, unsigned int len);
/* Any context. Asks the worker to fault in the page of the current task; may forget to. */
bool sfu_queue_fault_in(uint64_t address);
int sfu_faults_start(void);
/* Task. After the hooks are gone. */
void sfu_faults_stop(void);

/*
 * Mappings of the current task, without its locks; any context. 0, -ENOENT if there is none, or
 * -EAGAIN if it was moving.
 */
int sfu_find_mapping(uint64_t address, struct sfu_mapping *mapping);
/* The next executable mapping of a file that ends above `address`; looks at `limit` mappings. */
int sfu_next_executable(uint64_t address, unsigned int limit, struct sfu_mapping *mapping);
/* What tells two states of the current task's mappings apart: never the same pair again. */
void sfu_mappings_version(uint64_t *id, uint64_t *sequence);

/* The verdict on a state of mappings, remembered per CPU; preemption off. -1 if not known. */
int sfu_recall_verdict(uint64_t id, uint64_t sequence);
void sfu_keep_verdict(uint64_t id, uint64_t sequence, bool verdict);

/* Counters, per CPU; any context. */
void sfu_count(unsigned int counter, uint64_t amount);
uint64_t sfu_counted(unsigned int counter);

/* Fires the tracepoint sframe_unwind:walk. `reason` and `context` are NUL-terminated. */
void sfu_trace_walk(const char *context, unsigned int frames, const char *reason);

/* For KUnit: gives the running test user memory; returns its address or a negative error. */
int64_t sfu_test_map(uint64_t len, bool executable);
int sfu_test_unmap(uint64_t address, uint64_t len);
int sfu_test_write(uint64_t address, const void *from, unsigned int len);

#endif
