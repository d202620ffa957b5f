/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * /dev/sframe_unwind: rows for files that have none of their own, or none that the kernel can read
 * by itself. To open it takes CAP_PERFMON in the initial user namespace. See
 * Documentation/device.rst.
 *
 * Each structure that is given begins with its size in bytes. One that is longer than the kernel
 * knows is taken if all that it does not know is zero (else E2BIG).
 */
#ifndef _UAPI_SFRAME_UNWIND_H
#define _UAPI_SFRAME_UNWIND_H

#ifdef __BINDGEN__
#include <stdint.h>
typedef uint64_t __u64;
typedef int64_t __s64;
typedef uint32_t __u32;
typedef int32_t __s32;
typedef uint8_t __u8;
typedef int8_t __s8;
#else
#include <linux/ioctl.h>
#include <linux/types.h>
#endif

/* Not a file's rows but those of the vDSO; `file` is of no meaning. */
#define SFRAME_UNWIND_VDSO 1

struct sframe_unwind_add {
	__u32 size;
	/* An open descriptor of the file that the rows are for. It need not be open for reading. */
	__s32 file;
	/*
	 * Address and length in bytes of a section, which is as if at link-time address 0. Without
	 * length: there are no rows, which is not asked for again.
	 */
	__u64 section;
	__u32 section_len;
	/* 0 or SFRAME_UNWIND_VDSO. */
	__u32 flags;
	/* Address and length in bytes of rows that a section cannot say: struct sframe_unwind_extra_row. */
	__u64 extra_rows;
	__u32 extra_rows_len;
	/* If root adds, the user to whom it counts. Whoever else adds, it counts to that one. */
	__u32 user;
};

/*
 * The CFA is what is in memory, plus something, and the return address is right below it. Addresses
 * are link-time addresses. Where it overlaps a function of the section, or another row, what begins
 * last has the code.
 */
struct sframe_unwind_extra_row {
	/* The code for which it holds, in bytes. */
	__u64 start;
	__u32 code_size;
	/* CFA = *(REGISTER + cfa_offset) + cfa_addend; of DWARF's registers 0 to 15 this number. */
	__s32 cfa_offset;
	/* If fp_saved is 1, not 0, the frame pointer is at CFA + fp_offset. */
	__s32 fp_offset;
	__u8 cfa_register;
	__s8 cfa_addend;
	__u8 fp_saved;
	__u8 zero;
};

/* What is known of a file. */
enum sframe_unwind_origin {
	/* Its rows were added. */
	SFRAME_UNWIND_ADDED = 1,
	/* Its rows are its own section's. */
	SFRAME_UNWIND_SECTION = 2,
	/* It has no section, or one of no use; or its file system is left to user space. */
	SFRAME_UNWIND_NO_ROWS = 3,
	/* It could not be read. That will be tried again. */
	SFRAME_UNWIND_UNREADABLE = 4,
};

struct sframe_unwind_table {
	__u32 size;
	__u32 origin;
	/* In: what is wanted has a higher number. Out: its number. */
	__u64 number;
	/* What tells the file from all others: all 0 is the vDSO. */
	__u64 inode;
	__s64 file_size;
	__s64 modified;
	__u32 modified_nsec;
	__u32 device_major;
	__u32 device_minor;
	__u32 generation;
	/* Why its own section is of no use: an errno, or 0. */
	__u32 error;
	/* To whom it counts: whose task had it mapped, or for whom it was added. */
	__u32 user;
	__u64 rows;
	/* Of memory. */
	__u64 bytes;
};

/* A counter of /sys/kernel/debug/sframe_unwind/stats. */
struct sframe_unwind_counter {
	__u32 size;
	/* In: 0 for the first. */
	__u32 index;
	__u64 value;
	/* Ends with a 0. */
	__u8 name[32];
};

/*
 * What read() gives, one or more at once: a file of which there are no rows was met in a task. It
 * is given once; if nothing is added for the file within two seconds, and it is met again, once
 * more.
 */
struct sframe_unwind_request {
	__u32 size;
	/* The process, in the initial PID namespace, that has it mapped there; or had it. */
	__s32 pid;
	__u64 start;
	__u64 end;
	__u64 inode;
	__s64 file_size;
	__u32 device_major;
	__u32 device_minor;
	/* As in struct sframe_unwind_table. */
	__u32 error;
	/* 0 if it is not known. */
	__u32 build_id_len;
	/* Whose task it was, by the number in the initial user namespace. */
	__u32 user;
	__u32 zero;
	__u8 build_id[32];
	/*
	 * Ends with a 0; empty if it is not known. As seen from the first mount namespace, where
	 * another file may be there by now, or have been all along.
	 */
	__u8 path[256];
};

/* The numbers of the commands of ioctl(). */
#define SFRAME_UNWIND_NR_ADD 0x80
#define SFRAME_UNWIND_NR_REMOVE 0x81
#define SFRAME_UNWIND_NR_LIST 0x82
#define SFRAME_UNWIND_NR_STATS 0x83

/*
 * The commands. The kernel matches their type and number alone: a structure may grow, and its first field
 * tells the size of the one that was given.
 */
#define SFRAME_UNWIND_TYPE 'S'
/* Adds rows for a file, in place of those that were added before. */
#define SFRAME_UNWIND_ADD _IOW(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_ADD, struct sframe_unwind_add)
/* Removes the rows of a file; takes no section. ENOENT if there are none. */
#define SFRAME_UNWIND_REMOVE _IOW(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_REMOVE, struct sframe_unwind_add)
/* Tells what is known of the next file. ENOENT if there is none. */
#define SFRAME_UNWIND_LIST _IOWR(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_LIST, struct sframe_unwind_table)
/* Reads the next counter. ENOENT if there is none. */
#define SFRAME_UNWIND_STATS _IOWR(SFRAME_UNWIND_TYPE, SFRAME_UNWIND_NR_STATS, struct sframe_unwind_counter)

#endif
