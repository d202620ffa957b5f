/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The C functions that the shim of the `kernel` crate calls, and the Rust functions that glue.c
 * calls. bindgen reads this file alone, so it includes no header of the kernel.
 */
#ifndef _SFRAME_UNWIND_GLUE_H
#define _SFRAME_UNWIND_GLUE_H

#ifdef __BINDGEN__
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#else
#include <linux/types.h>
#endif

/*
 * Flags of allocations, in addition to GFP_KERNEL. The kernel's own numbers differ between
 * versions.
 */
#define SFK_GFP_ACCOUNT 1
#define SFK_GFP_NOWARN 2
#define SFK_GFP_ZERO 4

/*
 * Allocates `size` bytes, not 0, by kmalloc() or by kvmalloc(); NULL if that fails. Memory whose
 * size is a power of two is aligned to its size, or to a page if that is less. Task; sleeps.
 */
void *sfk_kmalloc(size_t size, uint32_t flags);
void *sfk_kvmalloc(size_t size, uint32_t flags);
/* Frees memory of sfk_kmalloc(), or of sfk_kvmalloc(). Any context but NMI. */
void sfk_kfree(void *memory);
void sfk_kvfree(void *memory);

/* Any context. */
void sfk_rcu_read_lock(void);
void sfk_rcu_read_unlock(void);

/*
 * Copies from and to the current task's memory; checks the user address. False unless all was
 * copied. Task; sleeps.
 */
bool sfk_copy_from_user(void *to, uintptr_t from, size_t len);
bool sfk_copy_to_user(uintptr_t to, const void *from, size_t len);

/*
 * Files of debugfs. Results need no check: these functions accept a directory or file that could
 * not be made. `show` is passed to sfk_show() when the file is read, until sfk_debugfs_remove(),
 * which waits for readers. Task; sleeps.
 */
void *sfk_debugfs_directory(const char *name);
void *sfk_debugfs_file(const char *name, void *directory, const void *show);
void sfk_debugfs_remove(void *entry);
/* Writes the contents of a file of debugfs to `seq`, a struct seq_file. Task; sleeps. */
void sfk_show(void *seq, const void *show);
void sfk_seq_write(void *seq, const void *text, size_t len);

/* Starts and stops the module. Task; sleeps. 0 or a negative error. */
int sfk_module_init(void);
void sfk_module_exit(void);

/*
 * Called in a panic of Rust: the first logs text, the second stops the task, or the machine. Any
 * context.
 */
void sfk_log_panic(const char *text, size_t len);
void sfk_panic(void);

#endif
