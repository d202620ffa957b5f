/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * /dev/sframe_unwind: rows for files that have no rows of their own, or no rows that the kernel can
 * read by itself. Opening the device requires CAP_PERFMON in the initial user namespace. See
 * Documentation/device.rst.
 *
 * Each structure begins with its own size in bytes and the version of the interface. A structure
 * may grow at its end within a version: if a structure is longer than the kernel knows, all bytes
 * behind the known fields must be zero (else E2BIG). Everything else that changes makes a new
 * version. If a structure has another version than the kernel, the command fails with
 * EPROTONOSUPPORT, and the kernel writes its own version to the structure. These two fields and
 * this rule are of all versions.
 */
#ifndef _UAPI_SFRAME_UNWIND_H
#define _UAPI_SFRAME_UNWIND_H

#ifdef __BINDGEN__
#include <stdint.h>
typedef uint64_t __u64;
typedef int64_t __s64;
typedef uint32_t __u32;
typedef int32_t __s32;
typedef uint16_t __u16;
typedef uint8_t __u8;
typedef int8_t __s8;
#else
#include <linux/ioctl.h>
#include <linux/types.h>
#endif

/* The version of the interface that this header describes. */
#define SFRAME_UNWIND_VERSION 2

/* The rows are for the vDSO and not for a file; `file` has no meaning. */
#define SFRAME_UNWIND_VDSO 1
/*
 * Code of the file that no row covers keeps a frame pointer. Walks follow it there, also if the
 * file has no rows at all.
 */
#define SFRAME_UNWIND_KEEPS_FP 2

struct sframe_unwind_add {
	__u16 size;
	__u16 version;
	/* A descriptor of the file that the rows are for, open for reading. */
	__s32 file;
	/*
	 * Address and length in bytes of a section, which is encoded for the link-time address 0.
	 * Length 0: the file has no rows, and is not requested again.
	 */
	__u64 section;
	__u32 section_len;
	/* 0, SFRAME_UNWIND_VDSO, or to add rows SFRAME_UNWIND_KEEPS_FP. */
	__u32 flags;
	/*
	 * Address and length in bytes of rows that a section cannot encode: struct
	 * sframe_unwind_extra_row.
	 */
	__u64 extra_rows;
	__u32 extra_rows_len;
	/*
	 * If root adds rows: the charged user. Ignored for other callers, who are charged
	 * themselves.
	 */
	__u32 user;
	/*
	 * The file's st_ctime and its nanoseconds, as fstat() told them before anything else was
	 * read of the file. If they differ by now, the rows may be of other contents: ESTALE. Not
	 * compared for the vDSO, and to remove rows.
	 */
	__s64 changed;
	__u32 changed_nsec;
	__u32 reserved;
};

/*
 * The caller's PC is the address of the next instruction to run, as in a frame that a signal
 * interrupted, and not the return address of a call.
 */
#define SFRAME_UNWIND_ROW_SIGNAL 1
/* The caller may be on another stack. */
#define SFRAME_UNWIND_ROW_CHANGES_STACK 2
/* CFA = **(REGISTER + cfa_offset) + cfa_addend */
#define SFRAME_UNWIND_ROW_DEREF_TWICE 4
/* CFA = REGISTER + cfa_offset: not a value in memory. cfa_addend is 0. */
#define SFRAME_UNWIND_ROW_NO_DEREF 8

/* The frame pointer is unchanged. */
#define SFRAME_UNWIND_FP_UNCHANGED 0
/* The frame pointer is saved at CFA + fp_offset. */
#define SFRAME_UNWIND_FP_AT_CFA 1
/* The frame pointer is saved at REGISTER + fp_offset. */
#define SFRAME_UNWIND_FP_AT_REGISTER 2

/*
 * An extra row: the CFA is a value in memory plus a constant, or a register plus a constant, and
 * the return address is right below the CFA. Addresses are link-time addresses. Where an extra row
 * overlaps a function of the section, or another extra row, the entry that starts last covers the
 * code.
 */
struct sframe_unwind_extra_row {
	/*
	 * The link-time address of the code that the row covers, and the size of the code in bytes.
	 */
	__u64 start;
	__u32 code_size;
	/*
	 * CFA = *(REGISTER + cfa_offset) + cfa_addend; cfa_register is REGISTER's DWARF number, 0
	 * to 15. If cfa_addend is not 0, the two low bits of the value in memory count as 0: a
	 * pointer may have flags there.
	 */
	__s32 cfa_offset;
	/* The offset of the saved frame pointer, from the origin that `fp_saved` names. */
	__s32 fp_offset;
	__u8 cfa_register;
	__s8 cfa_addend;
	/* SFRAME_UNWIND_FP_... */
	__u8 fp_saved;
	/* SFRAME_UNWIND_ROW_... */
	__u8 flags;
};

/* The origin of a file's rows, or the reason why the file has none. */
enum sframe_unwind_origin {
	/* The rows were added. */
	SFRAME_UNWIND_ADDED = 1,
	/* The rows come from the file's own section. */
	SFRAME_UNWIND_SECTION = 2,
	/*
	 * The file has no section or an unusable section, or its file system is left to user space.
	 */
	SFRAME_UNWIND_NO_ROWS = 3,
	/* The file could not be read. The kernel will try again. */
	SFRAME_UNWIND_UNREADABLE = 4,
};

struct sframe_unwind_table {
	__u16 size;
	__u16 version;
	__u32 origin;
	/*
	 * In: the table with the lowest number above this one is requested. Out: the number of that
	 * table.
	 */
	__u64 number;
	/* The fields down to `inode_generation` identify the file; all 0: the vDSO. */
	__u64 inode;
	__s64 file_size;
	__s64 modified;
	__u32 modified_nsec;
	__u32 device_major;
	__u32 device_minor;
	__u32 inode_generation;
	/* The reason why the file's own section is unusable: an errno, or 0. */
	__u32 error;
	/*
	 * The charged user: the one whose task had the file mapped, or for whom the rows were
	 * added.
	 */
	__u32 user;
	__u64 rows;
	/* The size of the table in memory, in bytes. */
	__u64 bytes;
	/*
	 * The walks that ended in the file's code and not at the outermost frame, since the table
	 * was made. Walks that a limit ended (`full`, `budget`) do not count.
	 */
	__u64 cuts;
	/* 0 or SFRAME_UNWIND_KEEPS_FP. */
	__u32 flags;
	__u32 reserved;
	/* As in struct sframe_unwind_request. */
	__u8 path[256];
};

/* A counter of /sys/kernel/debug/sframe_unwind/stats. */
struct sframe_unwind_counter {
	__u16 size;
	__u16 version;
	/* In: the index of the counter, from 0. */
	__u32 index;
	__u64 value;
	/* NUL-terminated. */
	__u8 name[32];
};

/*
 * A request: a file without rows, or anonymous code, was seen in a task. For anonymous code all
 * fields from `inode` on but `user` are 0. read() returns one or more requests at once, and each
 * request once. If nothing is added for the file within two seconds, and the file is seen again,
 * there is a new request.
 */
struct sframe_unwind_request {
	__u16 size;
	__u16 version;
	/*
	 * The process that has, or had, the file mapped from `start` to `end`, by its number in the
	 * initial PID namespace.
	 */
	__s32 pid;
	__u64 start;
	__u64 end;
	__u64 inode;
	__s64 file_size;
	__u32 device_major;
	__u32 device_minor;
	/* As in struct sframe_unwind_table. */
	__u32 error;
	/* 0 if the build ID is not known. */
	__u32 build_id_len;
	/*
	 * The charged user of the process: its user; the user who made its user namespace; the
	 * number of its container's cgroup namespace; or 4294967294 for root without capabilities.
	 */
	__u32 user;
	__u32 reserved;
	__u8 build_id[32];
	/*
	 * NUL-terminated; empty if it is not known. The path in the initial mount namespace, where
	 * another file may have this path by now, or may always have had it.
	 */
	__u8 path[256];
};

/*
 * The process has no region from `start` to `end`: it is not requested for a while, and walks
 * follow frame pointers there even if the process has other regions. Regions that overlap are
 * removed, unless the range is that of a request: then regions of other kinds stay.
 */
#define SFRAME_UNWIND_REGION_NONE 0
/* No walk goes beyond a frame in this code. */
#define SFRAME_UNWIND_REGION_STOP 1
/* All frames in this code have one rule: CFA = stack pointer + cfa_offset. */
#define SFRAME_UNWIND_REGION_FIXED 2
/*
 * The code is a heap of blocks. A map tells in which block a segment of the heap is. The header of
 * a block tells the size of the frames of the block's code.
 */
#define SFRAME_UNWIND_REGION_CODE_HEAP 3
/* The code is a copy of a part of a file's code. Walks use the rows of that file. */
#define SFRAME_UNWIND_REGION_ROWS 4
/*
 * Schedulers run processes of their own, each with a stack of words whose low bits tell return
 * addresses from values.
 */
#define SFRAME_UNWIND_REGION_TAGGED_STACK 5

/*
 * A region: anonymous code of a process, which belongs to no file. Addresses are run-time
 * addresses. Regions of one process do not overlap: a new region replaces those that it overlaps. A
 * region ends with exec and with the process; a child process does not inherit it.
 */
struct sframe_unwind_region {
	__u16 size;
	__u16 version;
	/* The process, by its number in the caller's PID namespace. */
	__s32 pid;
	/* The code, from `start` up to but excluding `end`. */
	__u64 start;
	__u64 end;
	/*
	 * The guard: a walk uses the region only while the eight bytes at `guard`, in the memory of
	 * the process, have the value `guard_value`. `guard` 0: there is no guard.
	 */
	__u64 guard;
	__u64 guard_value;
	/* SFRAME_UNWIND_REGION_... */
	__u8 kind;
	/*
	 * FIXED: SFRAME_UNWIND_FP_UNCHANGED or SFRAME_UNWIND_FP_AT_CFA. The fields from here on are
	 * 0 for other kinds.
	 */
	__u8 fp_saved;
	/*
	 * CODE_HEAP, down to the next comment that names a kind: the size of a segment of the heap,
	 * in bytes, is 2 ^ segment_log2.
	 */
	__u8 segment_log2;
	/*
	 * Offsets in bytes in a block: the byte that is 1 while the block is used, and the header.
	 */
	__u8 used_offset;
	__u8 header_offset;
	/*
	 * Offsets in bytes in a header: the number of words of a frame, in 4 bytes; and the offset
	 * in the code from which on the frame is complete, with the size of this field (2 or 4).
	 */
	__u8 frame_size_offset;
	__u8 frame_complete_offset;
	__u8 frame_complete_size;
	/*
	 * The field with the start of the code: an address (size 8), or an offset from the header
	 * (size 4).
	 */
	__u8 code_offset;
	__u8 code_size;
	/* The field that tells the block's kind, an unaligned word. */
	__u8 kind_offset;
	__u8 reserved[5];
	/*
	 * FIXED: the CFA, and the place of the saved frame pointer relative to the CFA, in bytes.
	 */
	__s32 cfa_offset;
	__s32 fp_offset;
	/* CODE_HEAP: the segment map, which has one byte for each segment from `start` on. */
	__u64 segment_map;
	/* CODE_HEAP: the code of the interpreter, in this heap or in another one. */
	__u64 interpreter_start;
	__u64 interpreter_end;
	/*
	 * CODE_HEAP: the code of a block with a frame size of 0 has no frame if (the word at
	 * kind_offset & kind_mask) is one of these.
	 */
	__u64 kind_mask;
	__u64 frameless_kinds[4];
	/*
	 * ROWS: a descriptor of a file that rows were added for, and the offset in bytes of `start`
	 * in the file. The region ends when the rows are removed or evicted. `table` is 0; the
	 * kernel keeps a number there.
	 */
	__s32 rows_file;
	__u32 reserved2;
	__u64 rows_offset;
	__u64 table;
	/*
	 * TAGGED_STACK, down to the end: the code that the first function of each process returns
	 * to. The function that runs the processes, which has a frame on the scheduler's own stack:
	 * its start, its return address, and the size of its frame in bytes, without the bytes that
	 * align the frame.
	 */
	__u64 exit_address;
	__u64 main_start;
	__u64 main_return;
	__u32 main_frame;
	/* The distance in bytes from the stack pointer of this function to the address in rbx. */
	__u32 registers_offset;
	/*
	 * The array of the schedulers' data, the number of its elements, and the size of an element
	 * in bytes. The first field of an element is the stack pointer of the function that runs
	 * the processes. The field at process_offset is the address of the running process's
	 * structure.
	 */
	__u64 schedulers;
	__u32 scheduler_count;
	__u32 scheduler_size;
	__u32 process_offset;
	__u32 reserved3;
};

/* The numbers of the commands of ioctl(). */
#define SFRAME_UNWIND_NR_ADD 0x80
#define SFRAME_UNWIND_NR_REMOVE 0x81
#define SFRAME_UNWIND_NR_LIST 0x82
#define SFRAME_UNWIND_NR_STATS 0x83
#define SFRAME_UNWIND_NR_REGION 0x84

/*
 * The commands. The kernel compares only their type and number, because a structure may grow. All
 * commands write: the kernel's version, if the versions differ.
 */
#define SFRAME_UNWIND_TYPE 'S'
/* Adds rows for a file. They replace rows that were added before. */
#define SFRAME_UNWIND_ADD \
	_IOWR(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_ADD, struct sframe_unwind_add)
/* Removes the rows of a file; `section` is ignored. ENOENT if the file has no rows. */
#define SFRAME_UNWIND_REMOVE \
	_IOWR(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_REMOVE, struct sframe_unwind_add)
/* Describes the table of the next file. ENOENT if there is none. */
#define SFRAME_UNWIND_LIST \
	_IOWR(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_LIST, struct sframe_unwind_table)
/* Reads the next counter. ENOENT if there is none. */
#define SFRAME_UNWIND_STATS \
	_IOWR(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_STATS, struct sframe_unwind_counter)
/* Registers a region of code that a process made at run time. ESRCH if there is no such process. */
#define SFRAME_UNWIND_REGION \
	_IOWR(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_REGION, struct sframe_unwind_region)

#endif
