// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files: keys that identify a file, the count of unmounts, which is a part of a key, and reads of a
 * file's bytes. Task; may sleep. Reads of the worker wait for no file system.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dcache.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/stat.h>

#include "files.h"

siphash_key_t sfu_secret;

#define UNMOUNT_COUNTERS 1024
static atomic_t unmounts[UNMOUNT_COUNTERS];

/*
 * No user knows the key of the hash, and so cannot choose a device, as a loop device, that has the
 * counter of another one.
 */
static atomic_t *unmounts_of(const struct super_block *super)
{
	uint64_t hash = siphash_1u64(super->s_dev, &sfu_secret);

	return &unmounts[hash % UNMOUNT_COUNTERS];
}

uint32_t sfu_unmounts(const struct super_block *super)
{
	return atomic_read(unmounts_of(super));
}

/*
 * The entry of generic_shutdown_super(super). Until it returns, nothing else is mounted from the
 * device. Users may unmount only file systems that they may mount, and these are not counted: a
 * user could make the tables of other users' files useless.
 */
static void notrace count_unmount(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
				  struct ftrace_regs *fregs)
{
	const struct super_block *super =
		(const struct super_block *)ftrace_regs_get_argument(fregs, 0);

	if (!(super->s_type->fs_flags & FS_USERNS_MOUNT))
		atomic_inc(unmounts_of(super));
}

static struct ftrace_ops unmount_ops = {
	.func = count_unmount,
	/* PERMANENT: ftrace_enabled cannot be switched off. */
	.flags = FTRACE_OPS_FL_PERMANENT,
};

int sfu_unmounts_start(void)
{
	int ret;

	get_random_bytes(&sfu_secret, sizeof(sfu_secret));
	ret = ftrace_set_filter_ip(&unmount_ops, (unsigned long)generic_shutdown_super, 0, 1);
	if (!ret)
		ret = register_ftrace_function(&unmount_ops);
	if (!ret)
		return 0;
	pr_err("cannot hook generic_shutdown_super: ftrace refuses (%d)\n", ret);
	ftrace_free_filter(&unmount_ops);
	return ret;
}

void sfu_unmounts_stop(void)
{
	sfu_ftrace_remove(&unmount_ops);
}

/* The mapped inode: for a file of an overlay, the real file's inode. */
static struct inode *mapped_inode(const struct file *file)
{
	return d_real_inode(file->f_path.dentry);
}

int sfu_file_open(int descriptor, void **file)
{
	/* fget() finds no file that was opened with O_PATH. */
	struct file *found = fget(descriptor);

	if (!found)
		return -EBADF;
	if (!(found->f_mode & FMODE_READ)) {
		fput(found);
		return -EBADF;
	}
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

/*
 * Whether a change from now on changes the file's time of change. That time has the resolution of a
 * tick or of the file system; the tick or unit that it names must be over.
 */
static bool is_over(struct inode *inode)
{
	struct timespec64 now = current_time(inode);

	return inode_get_ctime_sec(inode) != now.tv_sec ||
	       inode_get_ctime_nsec(inode) != now.tv_nsec;
}

int sfu_file_key_of(const void *file, struct sfu_file_key *key)
{
	struct inode *inode = mapped_inode(file);
	struct kstat stat = {};
	int tries = 3;

	if (is_mgtime(inode)) {
		/* From now on each write changes the times, however soon it comes. */
		fill_mg_cmtime(&stat, STATX_CTIME | STATX_MTIME, inode);
	} else {
		while (!is_over(inode)) {
			if (!tries--)
				return -EAGAIN;
			schedule_timeout_uninterruptible(1);
		}
	}
	read_key(inode, key);
	return 0;
}

int sfu_file_changed(const void *file, int64_t *changed, uint32_t *changed_nsec)
{
	const struct file *opened = file;
	struct kstat stat;
	int ret = vfs_getattr(&opened->f_path, &stat, STATX_CTIME, AT_STATX_SYNC_AS_STAT);

	if (ret)
		return ret;
	*changed = stat.ctime.tv_sec;
	*changed_nsec = stat.ctime.tv_nsec;
	return 0;
}

uint64_t sfu_file_size(const void *file)
{
	return i_size_read(mapped_inode(file));
}

/*
 * The bytes that the worker missed in memory, of the one file that it looks at. No bytes: `len` is
 * 0.
 */
static struct {
	uint64_t offset;
	uint64_t len;
} missing;

uint64_t sfu_take_missing(uint64_t *offset)
{
	uint64_t len = missing.len;

	*offset = missing.offset;
	missing.len = 0;
	return len;
}

bool sfu_lacks_bytes(void)
{
	return missing.len;
}

/*
 * Copies bytes of one page that is in memory; to nowhere if `to` is NULL. Enters no file system.
 * False if the page is not there.
 */
static bool copy_cached(const struct file *file, uint64_t offset, void *to, unsigned int len)
{
	struct folio *folio = filemap_get_folio(file->f_mapping, offset >> PAGE_SHIFT);
	bool is_there;

	if (IS_ERR_OR_NULL(folio))
		return false;
	is_there = folio_test_uptodate(folio);
	if (is_there && to)
		memcpy(to, folio_address(folio) + offset_in_folio(folio, offset), len);
	folio_put(folio);
	return is_there;
}

/* As copy_cached(), of any bytes. Returns how many of them were copied, from the first one on. */
static uint64_t copy_all_cached(const struct file *file, uint64_t offset, void *to, uint64_t len)
{
	uint64_t done = 0;

	while (done < len) {
		uint64_t at = offset + done;
		unsigned int part = min_t(uint64_t, len - done, PAGE_SIZE - offset_in_page(at));

		if (!copy_cached(file, at, to ? to + done : NULL, part))
			break;
		done += part;
		cond_resched();
	}
	return done;
}

bool sfu_is_cached(const struct file *file, uint64_t offset, uint64_t len)
{
	return copy_all_cached(file, offset, NULL, len) == len;
}

/* The worker: copies bytes, to nowhere if `to` is NULL, or notes the missing ones. */
static bool copy_or_miss(const struct file *file, uint64_t offset, void *to, uint64_t len)
{
	uint64_t done = copy_all_cached(file, offset, to, len);

	if (done == len)
		return true;
	missing.offset = offset + done;
	missing.len = len - done;
	return false;
}

static int read_cached(const struct file *file, uint64_t offset, void *to, unsigned int len)
{
	if (offset + len > i_size_read(mapped_inode(file)))
		return -ENODATA;
	return copy_or_miss(file, offset, to, len) ? 0 : -EAGAIN;
}

bool sfu_file_is_at_hand(const void *file, uint64_t offset, uint64_t len)
{
	return !(current->flags & PF_WQ_WORKER) || copy_or_miss(file, offset, NULL, len);
}

int sfu_file_read(void *file, uint64_t offset, void *to, unsigned int len)
{
	loff_t at = offset;
	ssize_t read;

	if (offset > LLONG_MAX - len)
		return -EINVAL;
	if (current->flags & PF_WQ_WORKER)
		return read_cached(file, offset, to, len);
	read = kernel_read(file, to, len, &at);
	return read == len ? 0 : read < 0 ? read : -ENODATA;
}
