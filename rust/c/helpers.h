/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the Rust side needs of the kernel and the `kernel` crate has no face for.
 *
 * All layouts of kernel structures stay in the C files: what passes here is numbers, the plain
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

#include "../uapi/sframe_unwind.h"

/* How many counters there are room for. */
#define SFU_COUNTERS 64

/* Where a walk runs. */
#define SFU_TASK 0
#define SFU_IRQ 1
#define SFU_NMI 2
#define SFU_DEFERRED 3

/* The counters that C adds to: samples left to the kernel, and samples in exec, which have no stack. */
#define SFU_LEFT_TO_KERNEL 0
#define SFU_IN_EXEC 1

/* What a walk begins with. */
struct sfu_call {
	/* Of the user task, and a struct pt_regs with all of its registers. */
	uint64_t pc;
	uint64_t sp;
	uint64_t fp;
	const void *registers;
	/* The buffer for the addresses of its stack, and how many of them it has space for. */
	uint64_t *buffer;
	uint32_t left;
	/* SFU_TASK, SFU_IRQ, SFU_NMI or SFU_DEFERRED. */
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

/* A range of code with one table: from `start` to the run-time address in front of `end`. */
struct sfu_code_range {
	uint64_t end;
	uint64_t start;
	/* The rows, and the walk that has found them to be those of the file as it is. */
	const void *rows;
	uint64_t walk;
	/* As in struct sfu_mapping; and C's own. */
	uint64_t inode;
	void *table;
};

#define SFU_CODE_RANGES 16

/* The code cache of a CPU: the ranges used last, in one state of one task's mappings and of all tables. */
struct sfu_code_cache {
	uint64_t id;
	uint64_t sequence;
	uint64_t tables;
	/* Another number for each walk. */
	uint64_t walk;
	bool busy;
	/* By address. An unused range starts at UINT64_MAX. */
	struct sfu_code_range ranges[SFU_CODE_RANGES];
};

/* What is known of a file, besides its rows. */
struct sfu_table_state {
	/* Of memory, and how many rows. */
	uint64_t bytes;
	uint64_t rows;
	/* Where a task has it mapped. */
	uint64_t start;
	uint64_t end;
	uint32_t pid;
	/* The charged user, and the owner, who besides root may change it. */
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
 * bindgen sees no type of the kernel. C sees the real ones, so that hook.c can compare each replacement with
 * the function that it replaces.
 */
#ifdef __BINDGEN__
#define SFU_CHAIN void
#define SFU_REGISTERS const void
#define SFU_TRACE void
#else
struct perf_callchain_entry_ctx;
struct pt_regs;
struct unwind_stacktrace;
#define SFU_CHAIN struct perf_callchain_entry_ctx
#define SFU_REGISTERS struct pt_regs
#define SFU_TRACE struct unwind_stacktrace
#endif

/*
 * Hooks. After sfu_hook_install(), ftrace enters the module in place of the kernel's functions. For a task
 * that is to be walked, sframe_unwind_immediate() or sframe_unwind_deferred() runs in their stead.
 */
int sfu_hook_install(bool immediate, bool deferred);
/* Returns once no hooked call is running or can start. Never returns if ftrace refuses. */
void sfu_hook_remove(void);

/*
 * Whether the current task, which has a mm, has rows; asked where the decision cache does not know. NMI, IRQ
 * or task, preemption off; must not sleep.
 */
bool sframe_unwind_wanted(void);
/* Replaces perf_callchain_user(). NMI, IRQ or task; must not sleep. */
void sframe_unwind_immediate(SFU_CHAIN *chain, SFU_REGISTERS *regs);
/* Replaces unwind_user(). Task; may sleep. */
int sframe_unwind_deferred(SFU_TRACE *trace, unsigned int max_entries);

/* Describes a call of perf_callchain_user() in `call`. Any context. */
void sfu_immediate_enter(SFU_CHAIN *chain, SFU_REGISTERS *regs, struct sfu_call *call);
/* Ends that call, with `count` addresses in the buffer of `call`. */
void sfu_immediate_leave(SFU_CHAIN *chain, unsigned int count);
/*
 * Describes a call of unwind_user() in `call`. Until sfu_deferred_leave(), which takes the returned token, the
 * task may sleep and sfu_hook_remove() waits for it.
 */
int sfu_deferred_enter(SFU_TRACE *trace, unsigned int max_entries, struct sfu_call *call);
void sfu_deferred_leave(SFU_TRACE *trace, unsigned int count, int token);

/*
 * Reads the register of this DWARF number from `regs`, a struct pt_regs of user space; any context. False
 * if there is no such register.
 */
bool sfu_register(const void *regs, unsigned int number, uint64_t *value);
/* Whether `regs`, a struct pt_regs of user space, is of a task in the system call rt_sigreturn. Any context. */
bool sfu_in_sigreturn(const void *regs);

/*
 * Uprobes of the current task; any context. sfu_uprobe_orig_pc() returns the address of the probed
 * instruction if the task, whose user PC is `pc`, runs it out of line or is about to; else `pc`.
 * sfu_uretprobe_orig_ra() gives the return address that a uretprobe took from the stack at `slot`.
 */
uint64_t sfu_uprobe_orig_pc(uint64_t pc);
bool sfu_uretprobe_orig_ra(uint64_t slot, uint64_t *address);

/*
 * Gives the code cache of this CPU to the caller, for the current task, until sfu_code_cache_leave(); any
 * context. Between the two calls the caller may not sleep, and only there may it use the rows of ranges.
 * NULL if the mappings are changing, or if this interrupted a walk that has the cache.
 */
struct sfu_code_cache *sfu_code_cache_enter(void);
void sfu_code_cache_leave(struct sfu_code_cache *cache);
/* Between those two calls: puts the table of this number into a range; false if the table is gone. */
bool sfu_code_range_find_table(struct sfu_code_range *place, uint64_t number);
/* Between those two calls: whether the file of a range is the one that its table was made for. */
bool sfu_code_range_is_current(const struct sfu_code_range *place);

/*
 * User memory; any context. Between these two no fault is served, and if the first says so
 * __get_user_1() to __get_user_8() may be called, which check the address. If not the task's memory
 * may not be what is there, or `address`, of its stack or its code, cannot be read.
 */
bool sfu_peek_enter(uint64_t address);
void sfu_peek_leave(void);
/* Reads user memory in any context. Checks the address; never faults in. 0 or -EFAULT. */
int sfu_read_user(void *to, uint64_t address, unsigned int len);
/*
 * Faults bytes in. Task that may sleep, between sfu_peek_enter() and sfu_peek_leave(); holds the module
 * meanwhile. 0 or a negative error.
 */
int sfu_fault_in(uint64_t address, unsigned int len);
/* Any context. Asks the worker to fault in the page of the current task; may forget to. */
bool sfu_queue_fault_in(uint64_t address);
int sfu_worker_start(void);
/* Task. After the hooks are gone. */
void sfu_worker_stop(void);

/*
 * Mappings of the current task, without its locks; any context. 0, -ENOENT if there is none, or
 * -EAGAIN if it was moving.
 */
int sfu_find_mapping(uint64_t address, struct sfu_mapping *mapping);
/* The next executable mapping of a file that ends above `address`; looks at `limit` mappings. */
int sfu_next_executable(uint64_t address, unsigned int limit, struct sfu_mapping *mapping);
/*
 * Tells two states of the current task's mappings, and of all tables, apart. `id` is of the mm, and no other
 * mm has it. `sequence` has 32 bits of mm_lock_seq and 32 bits of the table generation, so it repeats.
 */
void sfu_mappings_version(uint64_t *id, uint64_t *sequence);

/* Remembers, per CPU, whether there are rows in a state of mappings; preemption off. */
void sfu_keep_decision(uint64_t id, uint64_t sequence, bool has_rows);

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
/* The table generation: changes when a table is added or removed. Any context; READ_ONCE(). */
extern uint64_t sfu_table_generation;
bool sfu_is_known(const struct sfu_file_key *key);

/* Any context. Asks the worker to look at the file mapped at an address of the current task. */
bool sfu_queue_file(uint64_t address);
/*
 * The worker looks at a file that was seen in a stack. `may_read`: its file system is trusted. `seen`: where
 * the file was seen. Task; sleeps.
 */
void sframe_unwind_index_file(void *file, const struct sfu_table_state *seen, bool may_read);

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
