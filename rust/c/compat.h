/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Differences between kernels, from 6.1 on. The other C files are written for Linux 7.3. Each part
 * begins with the version that brought the feature or API of the part. SFU_HAS_... are answers of
 * probes.c, which looks at the headers.
 */
#ifndef _SFRAME_UNWIND_COMPAT_H
#define _SFRAME_UNWIND_COMPAT_H

#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/seqlock.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/stat.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include <sfu_probes.h>

/* 6.17: deferred stacks. Without them `deferred` has nothing to hook. */
#ifdef CONFIG_UNWIND_USER
#include <linux/unwind_user.h>
#else
struct unwind_stacktrace {
	unsigned int nr;
	unsigned long *entries;
};
#endif

/*
 * 6.13, and 6.12.y: the sequence count of the mappings, which is odd while mmap_lock is held for
 * writing. From 6.4 on there was a plain number with this name, which changes when the lock is
 * released; before 6.4 there was no number.
 *
 * Without the sequence count, walks hold mmap_lock for reading (walk_lock.c). sfu_mm_state() is
 * then made of numbers that most changes of mappings change. It is used only where a wrong guess
 * costs no more than time.
 */
#if SFU_HAS_SEQUENCE
#define SFU_SEQUENCE(mm) ((const seqcount_t *)&(mm)->mm_lock_seq)
#else
#define SFU_SEQUENCE(mm) ((const seqcount_t *)NULL)
#endif

static inline uint32_t sfu_mm_state(struct mm_struct *mm)
{
	if (SFU_HAS_SEQUENCE)
		return raw_read_seqcount(SFU_SEQUENCE(mm));
	return (READ_ONCE(mm->map_count) * 0x9e3779b1u ^
		(uint32_t)READ_ONCE(mm->total_vm) * 0x85ebca6bu ^
		(uint32_t)READ_ONCE(mm->exec_vm) * 0xc2b2ae35u) << 1;
}

/* 6.18. */
#if !SFU_HAS_MM_FLAGS_TEST
#define mm_flags_test(flag, mm) test_bit(flag, &(mm)->flags)
#endif

/* 6.4: vhost's workers have this flag too. */
#ifndef PF_USER_WORKER
#define PF_USER_WORKER PF_IO_WORKER
#endif

/*
 * 6.2. A handler that does not request all registers gets the arguments and the instruction pointer
 * in older kernels too.
 */
#if !SFU_HAS_FTRACE_REGS_FUNCTIONS
#define ftrace_regs_get_argument(fregs, n) regs_get_kernel_argument(&(fregs)->regs, n)
#define ftrace_regs_set_instruction_pointer(fregs, ip) ftrace_instruction_pointer_set(fregs, ip)
#endif

/* 6.10: before, __assign_str() takes the source a second time. */
#if SFU_HAS_SHORT_ASSIGN_STR
#define SFU_ASSIGN_STR(field) __assign_str(field)
#else
#define SFU_ASSIGN_STR(field) __assign_str(field, field)
#endif

/* 6.8: before, the mapped file of an overlay itself has the overlay's path. */
#if !SFU_HAS_FILE_USER_PATH
#define file_user_path(file) (&(file)->f_path)
#endif

/* 6.7; inode_get_ctime() is of 6.6, which renamed i_ctime, and of 6.1.y, which did not. */
#if !SFU_HAS_INODE_SECONDS
#if !SFU_HAS_INODE_CTIME
#define inode_get_ctime(inode) ((inode)->i_ctime)
#endif
#define inode_get_ctime_sec(inode) (inode_get_ctime(inode).tv_sec)
#define inode_get_ctime_nsec(inode) ((uint32_t)inode_get_ctime(inode).tv_nsec)
#define inode_get_mtime_sec(inode) ((inode)->i_mtime.tv_sec)
#define inode_get_mtime_nsec(inode) ((uint32_t)(inode)->i_mtime.tv_nsec)
#endif

/* 6.13: multigrain times, which change with each write after the times were read. */
#if !SFU_HAS_MULTIGRAIN_TIMES
#ifdef FS_MGTIME
#error "sframe_unwind does not know the multigrain times of this kernel"
#endif
#define is_mgtime(inode) ((void)(inode), false)
#define fill_mg_cmtime(stat, mask, inode) ((void)(stat))
#endif

/* 6.14: the bytes of a file may come from a process (fanotify) at the first read. */
#ifndef FMODE_FSNOTIFY_HSM
#define FMODE_FSNOTIFY_HSM(mode) 0
#endif

/* 6.5: before, the function had one more argument. */
#if SFU_HAS_SHORT_REMOTE_PAGES
#define sfu_get_user_pages_remote get_user_pages_remote
#else
#define sfu_get_user_pages_remote(mm, start, nr, flags, pages, locked)	\
	get_user_pages_remote(mm, start, nr, flags, pages, NULL, locked)
#endif

/* 6.7: before, the user of a shrinker provides its memory. */
#if !SFU_HAS_SHRINKER_ALLOC
static inline struct shrinker *sfu_shrinker_alloc(void)
{
	return kzalloc(sizeof(struct shrinker), GFP_KERNEL);
}

static inline void sfu_shrinker_free(struct shrinker *shrinker)
{
	unregister_shrinker(shrinker);
	kfree(shrinker);
}
#define shrinker_alloc(flags, name) sfu_shrinker_alloc()
#define sfu_shrinker_register(shrinker) register_shrinker(shrinker, KBUILD_MODNAME)
#define shrinker_free sfu_shrinker_free
#else
static inline int sfu_shrinker_register(struct shrinker *shrinker)
{
	shrinker_register(shrinker);
	return 0;
}
#endif

/*
 * 6.13: the kernel removes an instance of a uretprobe from its task's list before it frees the
 * instance. In 6.11 and 6.12 instances that longjmp() has left are an exception; there the kernel
 * itself reads the list at each sample, as this module does. Before 6.11 the list may contain freed
 * instances whenever the task is in the kernel. The file of a mapping of an overlay, a struct
 * backing_file, was freed without a grace period, too.
 *
 * Freed memory may have been reused or unmapped.
 *
 * No header shows this, so the version decides: a distribution adds changes to its version and
 * removes none. If it has added these changes, reads are more careful than is needed.
 */
#define SFU_IS_FROM(major, minor) (LINUX_VERSION_CODE >= KERNEL_VERSION(major, minor, 0))
#define SFU_HAS_WHOLE_URETPROBES SFU_IS_FROM(6, 11)
#if !SFU_IS_FROM(6, 13)
#define SFU_PEEK(place) ({						\
	typeof(1 ? (place) : (place)) __is;				\
	BUILD_BUG_ON(sizeof(__is) != sizeof(place));			\
	if (copy_from_kernel_nofault(&__is, &(place), sizeof(__is)))	\
		__is = 0;						\
	__is;								\
})
#else
#define SFU_PEEK(place) READ_ONCE(place)
#endif

#endif
