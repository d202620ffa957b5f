// SPDX-License-Identifier: GPL-2.0-only
/*
 * Questions about the kernel whose headers are at hand. A kernel's version does not answer them,
 * because distributions carry changes back. Kbuild has probes.sh compile this file, against these
 * headers, once without a name defined, and once with each name SFU_HAS_... defined. The answer is
 * 1 if the file compiles then, and else 0. The header sfu_probes.h defines the names as the
 * answers; compat.h has the code for both.
 *
 * Each part begins with the version of Linux that brought what the part looks for. The answer 1
 * must prove that the kernel has it. 0 must be safe on each kernel on which the module compiles.
 */
#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>
#include <linux/sched/coredump.h>
#include <linux/seqlock.h>
#include <linux/shrinker.h>
#include <linux/stat.h>
#include <asm/alternative.h>

/*
 * What the module needs. BUILD_EXCLUSIVE_CONFIG in dkms.conf names the same options. On AArch64,
 * kernels before 6.5 have DYNAMIC_FTRACE_WITH_REGS in place of the first one.
 */
#if !defined(CONFIG_DYNAMIC_FTRACE_WITH_ARGS) && \
	!(defined(CONFIG_ARM64) && defined(CONFIG_DYNAMIC_FTRACE_WITH_REGS))
#error "sframe_unwind needs DYNAMIC_FTRACE_WITH_ARGS in the kernel"
#endif
#if !defined(CONFIG_PERF_EVENTS) || !defined(CONFIG_KPROBES) || !defined(CONFIG_UPROBES)
#error "sframe_unwind needs PERF_EVENTS, KPROBES, UPROBES in the kernel"
#endif

/* 6.1.37: before, a stack grows with mmap_lock held for reading. No lookup of a mapping is safe. */
static_assert(__same_type(expand_stack, struct vm_area_struct *(struct mm_struct *, unsigned long)),
	      "sframe_unwind needs a kernel whose stacks grow under mmap_lock for writing: 6.1.37");

/* The answer has to be 0: else the compiler's flags permit everything. */
#ifdef SFU_HAS_NOTHING
static inline int probe(struct mm_struct *mm)
{
	return sfu_no_such_function(mm);
}
#endif

/*
 * 6.13, and 6.12.y: the sequence count of the mappings, which is odd while mmap_lock is held for
 * writing. From 6.4 on there was a plain number with this name, which changes when the lock is
 * released; before 6.4 there was no number. Reads without the lock need nodes of the tree that are
 * freed after a grace period.
 */
#ifdef SFU_HAS_SEQUENCE
static inline seqcount_t *probe(struct mm_struct *mm)
{
	mm_lock_seqcount_begin(mm);
	mm_lock_seqcount_end(mm);
	return &mm->mm_lock_seq;
}
static_assert(MM_MT_FLAGS & MT_FLAGS_USE_RCU);
#endif

/* 6.14. */
#ifdef SFU_HAS_SPECULATION
static inline bool probe(struct mm_struct *mm, unsigned int *sequence)
{
	return mmap_lock_speculate_try_begin(mm, sequence) &&
	       mmap_lock_speculate_retry(mm, *sequence);
}
#endif

/* 6.18. */
#ifdef SFU_HAS_MM_FLAGS_TEST
static inline bool probe(struct mm_struct *mm)
{
	return mm_flags_test(MMF_HAS_UPROBES, mm);
}
#endif

/* 6.2. */
#ifdef SFU_HAS_FTRACE_REGS_FUNCTIONS
static inline unsigned long probe(struct ftrace_regs *fregs)
{
	ftrace_regs_set_instruction_pointer(fregs, 0);
	return ftrace_regs_get_argument(fregs, 0);
}
#endif

/* 6.10: before, __assign_str() takes the source a second time. */
#ifdef SFU_HAS_SHORT_ASSIGN_STR
#include <trace/stages/stage6_event_callback.h>
static_assert(sizeof(__stringify(__assign_str(field))));
#endif

/* 6.8: before, the mapped file of an overlay itself has the overlay's path. */
#ifdef SFU_HAS_FILE_USER_PATH
static inline const struct path *probe(struct file *file)
{
	return file_user_path(file);
}
#endif

/* 6.6, and 6.1.y. */
#ifdef SFU_HAS_INODE_CTIME
static inline struct timespec64 probe(struct inode *inode)
{
	return inode_get_ctime(inode);
}
#endif

/* 6.7. */
#ifdef SFU_HAS_INODE_SECONDS
static inline time64_t probe(struct inode *inode)
{
	return inode_get_ctime_sec(inode) + inode_get_ctime_nsec(inode) +
	       inode_get_mtime_sec(inode) + inode_get_mtime_nsec(inode);
}
#endif

/* 6.13: multigrain times, which change with each write after the times were read. */
#ifdef SFU_HAS_MULTIGRAIN_TIMES
static inline bool probe(struct kstat *stat, struct inode *inode)
{
	fill_mg_cmtime(stat, STATX_CTIME | STATX_MTIME, inode);
	return is_mgtime(inode);
}
#endif

/* 6.5: before, the function had one more argument. */
#ifdef SFU_HAS_SHORT_REMOTE_PAGES
static inline long probe(struct mm_struct *mm, struct page **pages, int *locked)
{
	return get_user_pages_remote(mm, 0, 1, FOLL_NOWAIT, pages, locked);
}
#endif

/* 6.7: before, the user of a shrinker provides its memory. */
#ifdef SFU_HAS_SHRINKER_ALLOC
static inline void probe(struct shrinker *shrinker)
{
	shrinker = shrinker_alloc(0, "probe");
	shrinker_register(shrinker);
	shrinker_free(shrinker);
}
#endif

/* 6.3: in the table of alternatives, the number of a CPU feature became 32 bits wide. */
#ifdef SFU_HAS_LONG_ALTERNATIVES
static_assert(sizeof(struct alt_instr) == 14 && offsetof(struct alt_instr, instrlen) == 12);
#endif
