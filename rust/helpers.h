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

#include "uapi.h"

/* How many counters there are room for. */
#define SFU_COUNTERS 64

/* Where a walk runs. */
#define SFU_TASK 0
#define SFU_IRQ 1
#define SFU_NMI 2
#define SFU_DEFERRED 3

/* What C counts: tasks that were left to the kernel, and those in exec, without a stack. */
#define SFU_LEFT_TO_KERNEL 0
#define SFU_IN_EXEC 1

/* What a walk begins with. */
struct sfu_call {
	/* Of the user task, and a struct pt_regs with all of its registers. */
	uint64_t pc;
	uint64_t sp;
	uint64_t fp;
	const void *registers;
	/* Where the addresses of its stack go, and for how many there is room. */
	uint64_t *room;
	uint32_t left;
	/* One of the above. */
	uint32_t context;
	/* Whether there may be uprobes. */
	bool is_probed;
};

/* One mapping of the current task. All addresses are run-time addresses. */
struct sfu_mapping {
	uint64_t start;
	uint64_t end;
	/* Of the file, in bytes, at `start`. */
	uint64_t offset;
	/*
	 * Where the same file is mapped from its offset 0, and how much of it, in bytes; 0, 0 if nowhere
	 * near. Of code that is of no file: the next file below.
	 */
	uint64_t head;
	uint32_t head_size;
	/* Of which state of the task's mappings this was proved; an odd number if of none. */
	uint32_t sequence;
	/* The number of the table with the rows of its file; 0 if there is none. */
	uint64_t table;
	/* Its file's inode, or SFU_NO_FILE: a number, and nothing to look behind. */
	uint64_t inode;
	/* Whether no more can be known of its file by asking. */
	bool is_known;
	bool executable;
	bool is_file;
};

/* What tells a file, as it is now, from all others. */
struct sfu_file_key {
	uint64_t number;
	int64_t size;
	int64_t modified;
	uint32_t modified_nsec;
	uint32_t device;
	uint32_t generation;
	uint32_t zero;
};

/* The longest path that is told, in bytes, with the 0 at its end. */
#define SFU_PATH 256

/* In `inode` of struct sfu_mapping: code that is of no file. */
#define SFU_NO_FILE 1

/* All code of a table: from `start` to the run-time address in front of `end`. */
struct sfu_place {
	uint64_t end;
	uint64_t start;
	/* The rows, and the walk that has found them to be those of the file as it is. */
	const void *rows;
	uint64_t walk;
	/* As in struct sfu_mapping; and C's own. */
	uint64_t inode;
	void *table;
};

#define SFU_PLACES 16

/* The code that was met last, of one state of one task's mappings and of all tables; of this CPU. */
struct sfu_places {
	uint64_t id;
	uint64_t sequence;
	uint64_t tables;
	/* Another number for each walk. */
	uint64_t walk;
	bool busy;
	/* By address; what there is not is at UINT64_MAX. */
	struct sfu_place places[SFU_PLACES];
};

/* What is known of a file, beside its rows. */
struct sfu_table_state {
	/* Of memory, and how many rows. */
	uint64_t bytes;
	uint64_t rows;
	/* Where a task has it mapped. */
	uint64_t start;
	uint64_t end;
	uint32_t pid;
	/* To whom it counts, and who but root may change it. */
	uint32_t user;
	uint32_t owner;
	/* One of enum sframe_unwind_origin. */
	uint32_t origin;
	/* A positive errno, or 0. */
	uint32_t error;
	uint32_t build_id_len;
	uint8_t build_id[32];
	/* Where the file may be found again, or NULL; for as long as the call lasts. */
	const char *path;
};

/*
 * Hooks. After sfu_hook_install(), sframe_unwind_wanted() is asked in place of the kernel's
 * functions and, where it says yes, one of the other two runs in their stead.
 */
int sfu_hook_install(bool immediate, bool deferred);
/* Returns once no hooked call is running or can start. Never returns if ftrace refuses. */
void sfu_hook_remove(void);

/*
 * Whether the current task, which has a mm, has rows; asked where no verdict was kept. NMI, IRQ or
 * task, preemption off; must not sleep.
 */
bool sframe_unwind_wanted(void);
/* Replaces perf_callchain_user(). NMI, IRQ or task; must not sleep. */
void sframe_unwind_immediate(void *entry, const void *regs);
/* Replaces unwind_user(). Task; may sleep. */
int sframe_unwind_deferred(void *trace, unsigned int max_entries);

/* What such a call begins with; and that it ends, with so many addresses in its room. Any context. */
void sfu_immediate_enter(void *entry, const void *regs, struct sfu_call *call);
void sfu_immediate_leave(void *entry, unsigned int count);
/*
 * The same. Between these two the task may sleep and sfu_hook_remove() waits for it; the result of the
 * first is for the second.
 */
int sfu_deferred_enter(void *trace, unsigned int max_entries, struct sfu_call *call);
void sfu_deferred_leave(void *trace, unsigned int count, int token);

/*
 * The register of this DWARF number, of `regs`, a struct pt_regs of user space; any context. False
 * if there is no such register.
 */
bool sfu_register(const void *regs, unsigned int number, uint64_t *value);
/* Whether `regs`, the same, are of a task in the system call that ends a signal's handler. */
bool sfu_in_sigreturn(const void *regs);

/*
 * Uprobes of the current task; any context. The address of the instruction under a uprobe that is
 * about to be run by other means than at the user's PC, which is `pc`, else `pc`; and the return
 * address that a uretprobe took from the stack at `slot`, if one did.
 */
uint64_t sfu_in_line(uint64_t pc);
bool sfu_taken_by_uretprobe(uint64_t slot, uint64_t *address);

/*
 * The places of this CPU, for the current task, until sfu_places_leave(); any context. Between these
 * two nothing may sleep, and only there may the rows of places be used. NULL if they cannot be had
 * here: the mappings are changing, or a walk was interrupted that has them.
 */
struct sfu_places *sfu_places_enter(void);
void sfu_places_leave(struct sfu_places *places);
/* Between the same two: puts in what a number stands for, if it does; and whether a file is what it was. */
bool sfu_place_put_in(struct sfu_place *place, uint64_t number);
bool sfu_place_is_current(const struct sfu_place *place);

/*
 * User memory; any context. Between these two no fault is served, and if the first says so
 * __get_user_1() to __get_user_8() may be called, which check the address. If not the task's memory
 * may not be what is there, or `address`, of its stack or its code, cannot be read.
 */
bool sfu_peek_enter(uint64_t address);
void sfu_peek_leave(void);
/* The same for any that cannot call those. Checks the address; never faults in. 0 or -EFAULT. */
int sfu_read_user(void *to, uint64_t address, unsigned int len);
/*
 * Task that may sleep, between the same two. Faults the bytes in; holds the module meanwhile. 0 or a
 * negative error.
 */
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

/* Remembers, per CPU, whether there are rows in a state of mappings; preemption off. */
void sfu_keep_verdict(uint64_t id, uint64_t sequence, bool verdict);

/*
 * Files. Task that may sleep: opens by a descriptor of the current task, for no longer than a call
 * lasts; only regular files. 0 or a negative error.
 */
int sfu_file_open(int descriptor, void **file);
void sfu_file_close(void *file);
void sfu_file_key_of(const void *file, struct sfu_file_key *key);
/* Reads all of it, or fails. */
int sfu_file_read(void *file, uint64_t offset, void *to, unsigned int len);
/* Where the current task has the vDSO; 0 if it has none. */
uint64_t sfu_vdso(void);

/*
 * Tables by file. `rows`, which may be NULL, are Rust's, and given back by
 * sframe_unwind_free_rows() when no reader can have them any more. Task that may sleep. 0 or a
 * negative error: -ENOSPC if there is no room, -EEXIST if it is another user's, -ENOENT if there
 * was none, -EACCES if it is another user's.
 */
int sfu_tables_start(void);
/* After all that could find or publish is gone. */
void sfu_tables_stop(void);
int sfu_table_publish(const struct sfu_file_key *key, const struct sfu_table_state *state, void *rows);
int sfu_table_remove(const struct sfu_file_key *key, uint32_t user);
/* What has the next number after `after`, or -ENOENT. */
int sfu_table_next(uint64_t after, struct sframe_unwind_table *next);
/* Any context but NMI. */
void sframe_unwind_free_rows(void *rows);

/*
 * Any context, and the caller is an RCU reader: puts what is known of a mapping's file, of whose
 * inode the caller has proved that it is the file's, into it; and the rows of a number, or NULL.
 */
void sfu_find_table(struct sfu_mapping *mapping);
const void *sfu_table_rows(uint64_t number);
/* Is another one when there are more tables, or fewer. Any context; READ_ONCE(). */
extern uint64_t sfu_tables_given;
bool sfu_is_known(const struct sfu_file_key *key);

/* Any context. Asks the worker to look at the file mapped at an address of the current task. */
bool sfu_queue_file(uint64_t address);
/*
 * The worker met this file, whose reads end by themselves if `may_read`; `met` says where. Task;
 * sleeps.
 */
void sframe_unwind_meet(void *file, const struct sfu_table_state *met, bool may_read);

/* The device. Task; sleeps. `user` is the effective one in the initial user namespace. */
int sfu_device_start(void);
void sfu_device_stop(void);
int sframe_unwind_control(unsigned int command, uint64_t argument, uint32_t user);

/* The address of all SFU_COUNTERS, per CPU: an offset from the start of %gs. */
extern uint64_t *const sfu_counters;
/* What all CPUs have counted. Any context. */
uint64_t sfu_counted(unsigned int counter);

/* Fires the tracepoint sframe_unwind:sframe_unwind_walk. `reason` and `context` are NUL-terminated. */
void sfu_trace_walk(const char *context, unsigned int frames, const char *reason);

/* For KUnit: gives the running test user memory; returns its address or a negative error. */
int64_t sfu_test_map(uint64_t len, bool executable);
int sfu_test_unmap(uint64_t address, uint64_t len);
int sfu_test_write(uint64_t address, const void *from, unsigned int len);

#endif
