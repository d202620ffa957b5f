// SPDX-License-Identifier: GPL-2.0-only
/*
 * The C side of the shim of the `kernel` crate: wrappers of macros and inline functions, and the
 * module's name, which the real crate's module! would declare.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bug.h>
#include <linux/debugfs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/printk.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "glue.h"

/* As in module! of main.rs. */
MODULE_AUTHOR("The sframe_unwind authors");
MODULE_DESCRIPTION("Unwinds user stacks by SFrame, for perf and BPF");
MODULE_LICENSE("GPL");

static gfp_t gfp_of(uint32_t flags)
{
	return GFP_KERNEL | (flags & SFK_GFP_ACCOUNT ? __GFP_ACCOUNT : 0) |
	       (flags & SFK_GFP_NOWARN ? __GFP_NOWARN : 0) |
	       (flags & SFK_GFP_ZERO ? __GFP_ZERO : 0);
}

void *sfk_kmalloc(size_t size, uint32_t flags)
{
	return kmalloc(size, gfp_of(flags));
}

void *sfk_kvmalloc(size_t size, uint32_t flags)
{
	return kvmalloc(size, gfp_of(flags));
}

void sfk_kfree(void *memory)
{
	kfree(memory);
}

void sfk_kvfree(void *memory)
{
	kvfree(memory);
}

void sfk_rcu_read_lock(void)
{
	rcu_read_lock();
}

void sfk_rcu_read_unlock(void)
{
	rcu_read_unlock();
}

bool sfk_copy_from_user(void *to, uintptr_t from, size_t len)
{
	return !copy_from_user(to, (const void __user *)from, len);
}

bool sfk_copy_to_user(uintptr_t to, const void *from, size_t len)
{
	return !copy_to_user((void __user *)to, from, len);
}

static int file_show(struct seq_file *seq, void *unused)
{
	sfk_show(seq, seq->private);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(file);

void *sfk_debugfs_directory(const char *name)
{
	return debugfs_create_dir(name, NULL);
}

void *sfk_debugfs_file(const char *name, void *directory, const void *show)
{
	return debugfs_create_file(name, 0444, directory, (void *)show, &file_fops);
}

void sfk_debugfs_remove(void *entry)
{
	debugfs_remove(entry);
}

void sfk_seq_write(void *seq, const void *text, size_t len)
{
	seq_write(seq, text, len);
}

void sfk_log_panic(const char *text, size_t len)
{
	pr_emerg("%.*s", (int)min_t(size_t, len, INT_MAX), text);
}

void sfk_panic(void)
{
	BUG();
}

static int __init glue_init(void)
{
	return sfk_module_init();
}
module_init(glue_init);

static void __exit glue_exit(void)
{
	sfk_module_exit();
}
module_exit(glue_exit);
