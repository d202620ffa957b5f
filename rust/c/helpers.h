/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's functions that the Rust side needs and that the `kernel` crate does not offer.
 *
 * All layouts of kernel structures stay in the C files: only numbers, the plain structures below,
 * and pointers that Rust never dereferences pass through this interface. bindgen reads this file
 * alone, so the file includes no header of the kernel.
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

/* The maximum number of counters. */
#define SFU_COUNTERS 64

/* The context of a walk. */
#define SFU_TASK 0
#define SFU_IRQ 1
#define SFU_NMI 2
#define SFU_DEFERRED 3

/*
 * The counters that C increments: samples that are left to the kernel; and samples without a stack,
 * in exec and in NMIs while the task's registers were being saved.
 */
#define SFU_LEFT_TO_KERNEL 0
#define SFU_IN_EXEC 1
#define SFU_IN_ENTRY 2
/*
 * Stacks cut to the innermost frame: the lock of the mappings was taken, on kernels where walks
 * need it.
 */
#define SFU_LOCKED 3
/* Described regions of living processes that made way, or found no place. */
#define SFU_REGIONS_FULL 4
/* Walks that went on as the kernel's own, because user space has not answered about a file. */
#define SFU_BEFORE_ANSWER 5

#define SFU_VISIT 18

/* The input of a walk. */
struct sfu_call {
	/* Registers of the user task, and a struct pt_regs with all of the task's registers. */
	uint64_t pc;
	uint64_t sp;
	uint64_t fp;
	const void *registers;
	/*
	 * The buffer for the addresses of the stack, and the number of addresses that fit into it.
	 */
	uint64_t *buffer;
	uint32_t left;
	/* SFU_TASK, SFU_IRQ, SFU_NMI or SFU_DEFERRED. */
	uint32_t context;
	/*
	 * The work of scans in this sample, in units of a walk's budget.
	 */
	uint32_t spent;
	/* As sfu_peek_enter() returns it. */
	uint64_t limit;
	/* Whether the task may have uprobes. */
	bool is_probed;
};

/* One mapping of the current task. All addresses are run-time addresses. */
struct sfu_mapping {
	uint64_t start;
	uint64_t end;
	/* The offset in the file of the byte at `start`, in bytes. */
	uint64_t offset;
	/*
	 * The run-time address at which the mapping's file is mapped from offset 0, and the length
	 * of that mapping, in bytes; 0 and 0 if no such mapping is near, or if the file has a
	 * table. For code of no file: 0 and 0, until sfu_find_lower_file() sets both.
	 */
	uint64_t head;
	uint32_t head_size;
	/*
	 * The sequence number of the task's mappings at the proof; odd if two equal reads are the
	 * proof.
	 */
	uint32_t sequence;
	/* The number of the table of the mapping's file; 0 if there is none. */
	uint64_t table;
	/*
	 * The inode of the mapping's file, or SFU_NO_FILE or SFU_REGION: a number, which is not
	 * dereferenced.
	 */
	uint64_t inode;
	/* The number of mappings that the lookup has read. */
	uint16_t visits;
	/* Whether the worker could find out nothing more about the mapping's file. */
	bool is_known;
	/* Whether user space has not answered about the file, and may do so. */
	bool is_awaited;
	/* Whether the table has rows, and whether code without a row keeps its frame pointer. */
	bool has_rows;
	bool keeps_frame_pointer;
	bool executable;
	bool is_file;
	bool is_vdso;
};

#define SFU_ROWS 0
#define SFU_NO_ROWS 1
#define SFU_UNSURE 2
#define SFU_UNFINISHED 3

/* A scan of a task's mappings. */
struct sfu_scan {
	/* The PC, whose mapping is examined first; 0 if the PC is not known, or was examined. */
	uint64_t pc;
	/* The run-time address of the next mapping. */
	uint64_t address;
	/* The mappings that may still be looked at. */
	uint32_t left;
	/* The work that was taken, in units of a walk's budget: by sframe_unwind_scan(). */
	uint32_t spent;
	/* Whether some file was seen that nothing is known about yet. */
	bool is_unsure;
	/*
	 * Private to C: the file that was seen last; and the last file that was mapped from its
	 * start, with the run-time address and the length in bytes of that mapping.
	 */
	uint64_t file;
	uint64_t head_file;
	uint64_t head;
	uint32_t head_size;
};

/*
 * The key of a file in its present state. No other file, and no other state of this file, has this
 * key.
 */
struct sfu_file_key {
	uint64_t number;
	/* From the file system's UUID. */
	uint64_t file_system;
	int64_t size;
	/*
	 * The time of any change of the file, and the time at which users see that its contents
	 * were modified.
	 */
	int64_t changed;
	int64_t modified;
	uint32_t changed_nsec;
	uint32_t modified_nsec;
	uint32_t device;
	/*
	 * sfu_unmounts(): differs for two file systems that were mounted from one device, one after
	 * the other.
	 */
	uint32_t unmounts;
	uint32_t inode_generation;
};

/*
 * The charged user for root without CAP_SYS_ADMIN and CAP_SYS_MODULE: root in a container. No user
 * has this number.
 */
#define SFU_CONTAINED_ROOT 0xfffffffeu

/* The maximum length of a path in a request, in bytes, with the 0 at the end. */
#define SFU_PATH 256

/* In `inode` of struct sfu_mapping: code that belongs to no file. */
#define SFU_NO_FILE 1
/* Such a number too: the code of a region. The bits above are the generation of regions. */
#define SFU_REGION 2
/*
 * In `inode` of struct sfu_code_range, beside the inode of a file or SFU_NO_FILE: the mappings were
 * changed since the range was looked up.
 */
#define SFU_DOUBTFUL 4

/*
 * A kept rule. `key`: the return address plus 16 times the generation of a code cache. The rule is
 * in the place of bits 4 to 15 of the key plus 16 times the generation; without a rule, a place has
 * the key of generation 0. See rust/sframe/src/table/kept_rules.rs.
 */
struct sfu_kept_rule {
	uint64_t key;
	uint64_t rule;
};
#define SFU_KEPT_RULES 4096

/* A range of code with one table: the run-time addresses from `start` up to but excluding `end`. */
struct sfu_code_range {
	uint64_t end;
	uint64_t start;
	/* A return address plus this value is its distance from `start`, in bytes. */
	uint64_t to_distance;
	/* A run-time address in the range plus this value is its offset in the file, in bytes. */
	uint64_t to_offset;
	/* The rows. */
	const void *rows;
	/*
	 * The range is of use to a walk whose number is not higher. UINT64_MAX for a file that each
	 * walk checks when it begins; the number of the last walk that checked a region; else 0.
	 */
	uint64_t walk;
	/*
	 * The inode as in struct sfu_mapping; and the key of the state of the file that the table
	 * was built for.
	 */
	uint64_t inode;
	const struct sfu_file_key *key;
	/*
	 * What each walk checks: the inode, or one that never passes; and the time of change that
	 * the inode must have. The bits of the nanoseconds are those that the inode has.
	 */
	const void *checked;
	int64_t changed;
	uint32_t changed_nsec;
	/* The guard of the range's region, as in struct sframe_unwind_region. */
	uint64_t guard;
	uint64_t guard_value;
};

#define SFU_CODE_RANGES 16
#define SFU_CODE_PLACES 256

/*
 * A code cache of a CPU: the ranges that were used last, for one state of one task's mappings and
 * of all tables.
 */
struct sfu_code_cache {
	uint64_t id;
	uint64_t sequence;
	/* In jiffies: after this time, the ranges have expired. */
	uint64_t until;
	/* The number of the present walk: each has a higher one. */
	uint64_t walk;
	/* How often, in all, the tables of the ranges were noted as used. */
	uint32_t uses;
	/*
	 * The generation of this code cache. No other code cache of the CPU has the same one. The
	 * generation changes when a range is dropped, or is not known to be mapped as before.
	 */
	uint32_t generation;
	/* Whether walks find most rules kept: `Balance` of kept_rules.rs; 0 at first. */
	uint32_t balance;
	/* The kept rules of the CPU, SFU_KEPT_RULES of them; NULL if there are none yet. */
	struct sfu_kept_rule *rules;
	/*
	 * The ranges, ordered by address. An unused range starts at UINT64_MAX. The last one is
	 * never used.
	 */
	struct sfu_code_range ranges[SFU_CODE_RANGES + 1];
	/*
	 * For return addresses, by a hash (bits 16 to 23), the range that was found last: its
	 * distance from the first range, in bytes. 0 if none was found.
	 */
	uint16_t places[SFU_CODE_PLACES];
};

/* The module's knowledge about a file, apart from the rows. */
struct sfu_table_state {
	/* The size of the table in memory, in bytes, and the number of its rows. */
	uint64_t bytes;
	uint64_t rows;
	/* The run-time addresses at which a task has the file mapped, and the task's process. */
	uint64_t start;
	uint64_t end;
	uint32_t pid;
	/*
	 * The charged user; and the owner, the only user besides root who may replace or remove the
	 * table.
	 */
	uint32_t user;
	uint32_t owner;
	/* One of enum sframe_unwind_origin. */
	uint32_t origin;
	/* A positive errno, or 0. */
	uint32_t error;
	/* Nobody has read the file; it is tried again. */
	bool is_unread;
	/* SFRAME_UNWIND_KEEPS_FP was set. */
	bool keeps_frame_pointer;
	uint32_t build_id_len;
	uint8_t build_id[32];
	/* The open file, which gives the path, or NULL. Valid for the duration of the call. */
	const void *file;
};

/*
 * bindgen sees no type of the kernel. C sees the kernel's types, so that hook.c can compare the
 * type of each replacement with the type of the function that it replaces.
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
 * Hooks. After sfu_hook_install(), ftrace enters the module in place of the kernel's functions. For
 * a task whose stack the module walks, sframe_unwind_immediate() or sframe_unwind_deferred() runs
 * in their place.
 */
int sfu_hook_install(void);
/* Returns once no hooked call is running or can start. Never returns if ftrace refuses. */
void sfu_hook_remove(void);

/*
 * Continues a scan of the current task's mappings for rows. Returns SFU_ROWS, SFU_NO_ROWS,
 * SFU_UNSURE (all mappings were seen, but nothing is known yet about some of their files), or
 * SFU_UNFINISHED (no work is left, or the mappings are changing). The task has a mm. Any context;
 * does not sleep.
 */
uint32_t sframe_unwind_scan(struct sfu_scan *scan);
/* Replaces perf_callchain_user(). NMI, IRQ or task; must not sleep. */
void sframe_unwind_immediate(SFU_CHAIN *chain, SFU_REGISTERS *regs);
/* Replaces unwind_user(). Task; may sleep. */
int sframe_unwind_deferred(SFU_TRACE *trace, unsigned int max_entries);

/*
 * Describes a call of perf_callchain_user() in `call`. Any context. Until sfu_immediate_leave(),
 * the caller is also between sfu_peek_enter() and sfu_peek_leave(). Returns what
 * sfu_code_cache_enter() returns; NULL too if `limit` is 0, and where the fast path is of no use:
 * the task may have uprobes, or is in a system call.
 */
struct sfu_code_cache *sfu_immediate_enter(SFU_CHAIN *chain, SFU_REGISTERS *regs,
					   struct sfu_call *call);
/* Ends that call, with `count` addresses in the buffer of `call`. */
void sfu_immediate_leave(SFU_CHAIN *chain, unsigned int count);
/*
 * As above, for a call of unwind_user(). Until sfu_deferred_leave(), sfu_hook_remove() waits for
 * the task, which may sleep when it has left the code cache.
 */
struct sfu_code_cache *sfu_deferred_enter(SFU_TRACE *trace, unsigned int max_entries,
					  struct sfu_call *call);
void sfu_deferred_leave(SFU_TRACE *trace, unsigned int count);

/*
 * Reads the register with this DWARF number from `regs`, a struct pt_regs of user space. Any
 * context. False if there is no such register.
 */
bool sfu_register(const void *regs, unsigned int number, uint64_t *value);
/*
 * Whether `regs`, a struct pt_regs of user space, belongs to a task in the system call
 * rt_sigreturn. Any context.
 */
bool sfu_in_sigreturn(const void *regs);

/*
 * Uprobes of the current task; any context. sfu_uprobe_orig_pc() returns the address of the probed
 * instruction if the task, whose user PC is `pc`, runs that instruction out of line or is about to;
 * else `pc`. sfu_uretprobe_orig_ra() gives the return address that a uretprobe took from the stack
 * at `slot`.
 */
uint64_t sfu_uprobe_orig_pc(uint64_t pc);
bool sfu_uretprobe_orig_ra(uint64_t slot, uint64_t *address);

/*
 * Gives a code cache of this CPU to the caller, for the current task, until
 * sfu_code_cache_leave(). Any context. Between the two calls the caller must not sleep. The rows of
 * ranges may be used only between the two calls. NULL if the mappings are changing, or if the
 * caller interrupted a walk that has the cache. The function checks the files of all ranges. A
 * check of each file at its first use would cost more. If the file is still in the state that the
 * range's table was built for, `walk` of the range becomes that of the cache. After a change of the
 * mappings, sfu_code_range_at() does so at the first use of a range.
 */
struct sfu_code_cache *sfu_code_cache_enter(void);
/*
 * Whether the code cache that this CPU used last seems to have the byte in front of `ra` as the
 * code of a file. The code cache may be that of another process. Any context.
 */
bool sfu_code_cache_may_have(uint64_t ra);
void sfu_code_cache_leave(struct sfu_code_cache *cache);
/*
 * Between enter and leave: the range that contains the byte in front of the return address `ra`, or
 * a range behind `ra`, or an unused range. The range becomes that of the place of `ra`.
 */
struct sfu_code_range *sfu_code_range_at(struct sfu_code_cache *cache, uint64_t ra);
/* Between enter and leave: from now on, no rule is kept for this code cache. */
void sfu_code_cache_renew(struct sfu_code_cache *cache);
/*
 * Between enter and leave, in the state of the mappings in which the range was found: puts the
 * table with this number into a range; false if the table is gone, or the file was changed.
 */
bool sfu_code_range_find_table(struct sfu_code_range *range, uint64_t number);
/*
 * The number of the table of a range that the current walk may use. `keeps_frame_pointer` becomes
 * true if the file's code without rows is known to keep a frame pointer. Between
 * sfu_code_cache_enter() and sfu_code_cache_leave().
 */
uint64_t sfu_code_range_table(const struct sfu_code_range *range, bool *keeps_frame_pointer);
/* Between enter and leave: whether the region of a range still exists. */
bool sfu_code_range_has_region(const struct sfu_code_range *range);

/*
 * User memory; any context. Between sfu_peek_enter() and sfu_peek_leave() no page fault is served.
 * If sfu_peek_enter() returns TASK_SIZE_MAX, the functions of get_user() may be called, which check
 * the address; and other code may read below that address, in the way of the architecture. 0:
 * another task's memory may be mapped, or `address`, in the task's stack or code, cannot be read.
 */
uint64_t sfu_peek_enter(uint64_t address);
void sfu_peek_leave(void);
/*
 * Reads user memory at an address of any value. Any context. Checks the address, and that the
 * memory is the current task's; never faults in. 0 or -EFAULT.
 */
int sfu_read_user(void *to, uint64_t address, unsigned int len);
/*
 * Faults bytes in. Task that may sleep, possibly for ever, between sfu_peek_enter() and
 * sfu_peek_leave(). Holds a reference to the module until it returns. 0, or a negative error:
 * nothing is mapped there, the task is exiting, or the module is being unloaded.
 */
int sfu_fault_in(uint64_t address, unsigned int len);
/*
 * Any context. Asks the worker to fault in the page of the current task at a run-time address.
 * False if too many pages are queued: then the worker is not asked.
 */
bool sfu_queue_fault_in(uint64_t address);
int sfu_worker_start(void);
/* Task; after the hooks are removed. */
void sfu_worker_stop(void);

/*
 * Finds the mapping of the current task at a run-time address, without taking a lock. Any context.
 * 0, -ENOENT if nothing is mapped there, or -EAGAIN if the mappings were changing.
 */
int sfu_find_mapping(uint64_t address, struct sfu_mapping *mapping);
/*
 * Finds the next mapping from offset 0 of a file below a mapping that sfu_find_mapping() has found,
 * and adds the number of mappings that were read to `visits`. Any context. 0, or -EAGAIN if the
 * mappings were changing.
 */
int sfu_find_lower_file(struct sfu_mapping *mapping);
/*
 * Finds the next executable mapping in a scan whose file differs from the file before; takes work
 * for each mapping. -ENOENT: there is no further mapping. -EAGAIN: no work is left, or the mappings
 * are changing.
 */
int sfu_scan_next(struct sfu_scan *scan, struct sfu_mapping *mapping);
/*
 * Files; task that may sleep. Takes a reference to the file of a descriptor of the current task,
 * which sfu_file_close() gives back before the system call returns. Only regular files that are
 * open for reading. 0 or a negative error.
 */
int sfu_file_open(int descriptor, void **file);
void sfu_file_close(void *file);
/*
 * Reads the key of a file; a later write to the file changes the key. -EAGAIN: the file was changed
 * so recently that a later change would not change the key. Sleeps for a few ticks.
 */
int sfu_file_key_of(const void *file, struct sfu_file_key *key);
/*
 * The time of change of a file, as fstat() tells it: in an overlay it may be that of another inode
 * than the key's. 0 or a negative error.
 */
int sfu_file_changed(const void *file, int64_t *changed, uint32_t *changed_nsec);
uint64_t sfu_file_size(const void *file);
/*
 * Reads all `len` bytes, or fails. The worker reads only bytes that are in memory: -EAGAIN if one
 * is not there. sfu_file_is_at_hand() tells whether a read would return -EAGAIN now.
 * sfu_lacks_bytes(): either found, since the worker began with this file, that bytes are not in
 * memory.
 */
bool sfu_file_is_at_hand(const void *file, uint64_t offset, uint64_t len);
bool sfu_lacks_bytes(void);
int sfu_file_read(void *file, uint64_t offset, void *to, unsigned int len);
/*
 * The run-time address of the current task's vDSO; 0 if the task has none. From the call on,
 * mappings of this vDSO are recognised in all tasks. Task; may sleep.
 */
uint64_t sfu_vdso(void);

/*
 * The tables of files. `rows`, which may be NULL, belong to Rust: sframe_unwind_free_rows() gives
 * them back when no reader can use them any more. Task that may sleep. 0 or a negative error.
 * sfu_table_publish(): -ENOSPC if the limits of tables are reached; -EEXIST if the file has added
 * rows that may not be replaced, because another user added them or because the new rows were not
 * added. sfu_table_remove(): -ENOENT if the file has no rows, -EACCES if another user is the owner.
 */
int sfu_tables_start(void);
/* Task; after the hooks, the worker and the device, which find and publish tables, are gone. */
void sfu_tables_stop(void);
int sfu_table_publish(const struct sfu_file_key *key, const struct sfu_table_state *state,
		      void *rows);
int sfu_table_remove(const struct sfu_file_key *key, uint32_t user);
/* Describes the table with the lowest number above `after`; -ENOENT if there is none. */
int sfu_table_next(uint64_t after, struct sframe_unwind_table *next);
/* Any context but NMI. */
void sframe_unwind_free_rows(void *rows);

/*
 * Any context; the caller is an RCU reader. sfu_find_table() sets `table` and `is_known` of a
 * mapping; the caller has proved that `inode` is the inode of the mapping's file. sfu_table_rows()
 * returns the rows of the table with this number, or NULL.
 */
void sfu_find_table(struct sfu_mapping *mapping);
const void *sfu_table_rows(uint64_t number);
/* Counts a walk that was cut in the file of the table with this number. Any context. */
void sfu_count_cut(uint64_t number);
/* The table generation: changes when a table is added or removed. Any context; READ_ONCE(). */
extern uint64_t sfu_table_generation;
bool sfu_is_known(const struct sfu_file_key *key);

/* User space was asked for this code not long ago. */
#define SFU_CODE_ASKED 1
/*
 * Where there is no region, a walk may take a frame pointer: the process has no regions at all, or
 * user space has said that there is none.
 */
#define SFU_CODE_PLAIN 2

/*
 * Regions of code that processes made. sfu_find_region() finds the region of the current task that
 * contains a run-time address; any context. If no region contains the address, `kind` is NONE, and
 * `start` and `end` are those of the code between two regions. `inode` of `mapping`, the mapping of
 * the address, becomes the number of the code of regions. The function returns SFU_CODE_... bits.
 * sfu_region_add() adds a region, whose fields the caller has checked; task; sleeps; -ESRCH if
 * there is no such process. `own_only`: -EPERM unless the process is the current one and the region
 * has no rows. sfu_regions_stop(): at module unload, after the hooks, the worker and the device are
 * gone.
 */
int sfu_find_region(uint64_t address, struct sfu_mapping *mapping,
		    struct sframe_unwind_region *region);
int sfu_region_add(struct sframe_unwind_region *region, bool own_only);
void sfu_regions_stop(void);

/*
 * Any context. Asks the worker to look for rows in the file that the current task has mapped at a
 * run-time address, or to request a region for code of no file. False if too many files are queued:
 * then the worker is not asked.
 */
bool sfu_queue_file(uint64_t address);
/*
 * The worker examines a seen file. `may_read`: the worker may read the file; else the file is
 * requested from user space. `seen`: the task and the mapping in which the file was seen. If bytes
 * of the file are not in memory, nothing is published: see sfu_lacks_bytes(). Task; sleeps.
 */
void sframe_unwind_index_file(void *file, const struct sfu_table_state *seen, bool may_read);

/*
 * The limit of a walk's time; IRQ and NMI. sfu_walk_end() returns the time of this CPU's clock at
 * which a walk that begins now has to end, in units of 1,024 ns, modulo 2^32: it takes little of a
 * walk's stack. SFU_NO_END if there is no limit; never 0. sfu_is_past() says whether the time `end`
 * is over.
 */
#define SFU_NO_END 0xffffffffu
uint32_t sfu_walk_end(void);
bool sfu_is_past(uint32_t end);

/*
 * The memory of table builds is bounded. sfu_build_begin() returns the build's number, which the
 * other three functions take, or -EBUSY if too many builds are running. sfu_build_take() is called
 * before `bytes` are allocated; -ENOSPC if that would exceed the limit. sfu_build_give() gives
 * bytes back. `added`: the rows come from a program. Task; sleeps.
 */
int sfu_build_begin(uint32_t user, bool added);
int sfu_build_take(int build, uint64_t bytes);
void sfu_build_give(int build, uint64_t bytes);
void sfu_build_end(int build);
/*
 * The end of a table build; task. sfu_build_deadline() returns the CPU time of the current task at
 * which the build has to end. sfu_build_pause() sleeps if other tasks want the CPU; 0, -ETIME after
 * the deadline, or -EINTR if the task was killed, if the module is being unloaded, or if the worker
 * has waited for too long.
 */
uint64_t sfu_build_deadline(void);
int sfu_build_pause(uint64_t deadline);
/* Two random numbers. Any context. */
void sfu_random_key(uint64_t *key);

/*
 * The device. Task; sleeps. `user`: the charged user of the process that opened the device; 0 is an
 * administrator. `own_only`: the command is to add a region, and the process may do so for itself
 * only.
 */
int sfu_device_start(void);
void sfu_device_stop(void);
int sframe_unwind_control(unsigned int command, uint64_t argument, uint32_t user, bool own_only);

/* The per-CPU address of the array of SFU_COUNTERS counters. */
extern uint64_t *const sfu_counters;
/* The sum of `count` counters, from number `first` on, over all CPUs. Any context. */
uint64_t sfu_counted(unsigned int first, unsigned int count);

/* The address of a pointer that is NULL while nobody listens to the tracepoint. */
extern void *const *const sfu_walk_listeners;
/*
 * Fires the tracepoint sframe_unwind:sframe_unwind_walk. `reason` and `context` are NUL-terminated.
 */
void sfu_trace_walk(const char *context, unsigned int frames, const char *reason);

/*
 * For KUnit: maps user memory for the running test; returns the memory's address or a negative
 * error.
 */
int64_t sfu_test_map(uint64_t len, bool executable);
/*
 * Maps the code of a new file with these bytes, at the address `at` if this is not 0. `key` becomes
 * the file's key.
 */
int64_t sfu_test_map_file(uint64_t at, const void *code, uint64_t len, struct sfu_file_key *key);
/* Makes a new entry of a file: no rows, and code that keeps a frame pointer. 0 or an error. */
int sfu_test_publish(const struct sfu_file_key *key);
/* The walks that were cut in a file, as SFRAME_UNWIND_LIST tells them; UINT64_MAX if unknown. */
uint64_t sfu_test_cuts(const struct sfu_file_key *key);
/* Counts somebody more, or less, who reads requests. */
void sfu_test_count_reader(bool more);
/* The state of the running test's mappings. */
uint64_t sfu_test_mappings_sequence(void);
int sfu_test_unmap(uint64_t address, uint64_t len);
/*
 * Whether the code cache of the running test, which was forgotten, can be taken while the mappings
 * are being changed. False on kernels whose mappings have no sequence count.
 */
bool sfu_test_enters_in_change(void);
/*
 * Whether the code cache of the running test has a new generation where another file is mapped at
 * the place of the second of two ranges, and the same one where other memory is mapped. The file of
 * the first range, with this key, is mapped at `address`.
 */
bool sfu_test_renews_generation(const struct sfu_file_key *key, uint64_t address);
/* Whether a new generation has no rules, and is that of no other code cache. */
bool sfu_test_generations_differ(void);
/*
 * Whether a range of a file in the code cache of the running test is dropped when the file is
 * changed, and the code cache has a new generation then. The file, with this key, is mapped at
 * `address`.
 */
bool sfu_test_checks_files(const struct sfu_file_key *key, uint64_t address);
/*
 * Adds a region of the running test, or of another process: `other` is its number, or 0. `user` is
 * charged. The region's `pid` is ignored.
 */
int sfu_test_add_region(const struct sframe_unwind_region *description, uint64_t other,
			uint32_t user);
/* Whether there is a region of the running test from a run-time address on, found or not. */
bool sfu_test_has_region(uint64_t start);
int sfu_test_write(uint64_t address, const void *from, unsigned int len);
/* Whether interrupts of code that saves registers are told from others. */
bool sfu_test_saving_registers(void);

#endif
