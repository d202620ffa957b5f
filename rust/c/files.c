// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files: how a file is told from all others, and how its bytes are read. Task; may sleep.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dcache.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/stat.h>

#include "internal.h"

/* The inode that is mapped: for a file of an overlay, the real file's. */
static struct inode *mapped_inode(const struct file *file)
{
	return d_real_inode(file->f_path.dentry);
}

int sfu_file_open(int descriptor, void **file)
{
	struct file *found = fget_raw(descriptor);

	if (!found)
		return -EBADF;
	if (!S_ISREG(mapped_inode(found)->i_mode)) {
		fput(found);
		return -EINVAL;
	}
	*file = found;
	return 0;
}

void sfu_file_close(void *file)
{
	fput(file);
}

void sfu_file_key_of(const void *file, struct sfu_file_key *key)
{
	struct inode *inode = mapped_inode(file);
	struct kstat stat = {};

	/* From now on a write changes the times, however soon it comes. */
	if (is_mgtime(inode))
		fill_mg_cmtime(&stat, STATX_CTIME | STATX_MTIME, inode);
	read_key(inode, key);
}

int sfu_file_read(void *file, uint64_t offset, void *to, unsigned int len)
{
	loff_t at = offset;
	ssize_t read = offset > LLONG_MAX - len ? -EINVAL : kernel_read(file, to, len, &at);

	return read == len ? 0 : read < 0 ? read : -ENODATA;
}

uint64_t sfu_vdso(void)
{
	return (uintptr_t)current->mm->context.vdso;
}
