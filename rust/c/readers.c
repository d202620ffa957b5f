// SPDX-License-Identifier: GPL-2.0-only
/*
 * Readers bring bytes of files into memory, and fault in pages, for the worker. A reader may wait
 * for ever in a file system or in a block device, and cannot be stopped. So each reader is a work
 * of its own, a file system has one at most, and their number is limited. A reader holds a
 * reference to the module: rmmod fails with EBUSY instead of waiting for the reader.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fadvise.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/spinlock.h>

#include "files.h"

/*
 * The most readers in all, of all users other than root, and of one such user. Root's files come
 * into memory even if all other users have file systems that hang.
 */
#define READERS 16
#define READERS_OF_USERS 8
#define READERS_OF_USER 2

static struct reader {
	struct work_struct work;
	/* NULL: the reader is free. */
	struct file *file;
	uint64_t offset;
	uint64_t len;
	uint32_t user;
	/* The page to fault in; no `mm` if there is none. */
	struct mm_struct *mm;
	unsigned long address;
} readers[READERS];

static DEFINE_SPINLOCK(readers_lock);

/*
 * Only a page that is in memory: the fault holds the task's mmap_lock, and must not drop it (hence
 * NULL), or another thread could map another file there meanwhile. Pages of tmpfs that are not in
 * memory are on a swap device.
 */
static void fault_in(const struct reader *reader)
{
	const struct super_block *super = file_inode(reader->file)->i_sb;

	if (super->s_magic != TMPFS_MAGIC && !sfu_is_cached(reader->file, reader->offset, 1))
		return;
	if (!mmget_not_zero(reader->mm))
		return;
	if (mmap_read_trylock(reader->mm)) {
		sfu_get_user_pages_remote(reader->mm, reader->address, 1, FOLL_NOWAIT, NULL, NULL);
		mmap_read_unlock(reader->mm);
	}
	/* mmput_async(): the last user of the mm may wait for a file system that hangs. */
	mmput_async(reader->mm);
}

/*
 * The bytes that one call reads ahead: by default the kernel reads no more. A reader brings at
 * least so many, because the next read is probably near.
 */
#define PIECE (128 << 10)

static void run(struct work_struct *work)
{
	struct reader *reader = container_of(work, struct reader, work);
	struct file *file = reader->file;
	bool is_first_page_cached;
	uint64_t done;

	for (done = 0; done < reader->len && !READ_ONCE(sfu_is_stopping); done += PIECE)
		vfs_fadvise(file, reader->offset + done, PIECE, POSIX_FADV_WILLNEED);
	if (reader->mm) {
		fault_in(reader);
		mmdrop(reader->mm);
	}
	is_first_page_cached = sfu_is_cached(file, reader->offset, 1);
	spin_lock(&readers_lock);
	reader->file = NULL;
	spin_unlock(&readers_lock);
	/*
	 * Pages of this file system wait for the reader. If it has brought nothing, they wait for
	 * the next try, or else a file system that fails would keep the worker busy.
	 */
	if (is_first_page_cached)
		sfu_queue_reader_ends();
	fput(file);
	module_put(THIS_MODULE);
}

bool sfu_may_read_ahead(const struct file *file)
{
	/* Its bytes are not there before a process has permitted a read. */
	return !FMODE_FSNOTIFY_HSM(file->f_mode);
}

/* A free reader, if a reader of this file system may start for a user. */
static struct reader *free_reader(const struct super_block *super, uint32_t user)
{
	struct reader *reader, *found = NULL;
	int of_users = 0, its = 0;

	lockdep_assert_held(&readers_lock);
	for (reader = readers; reader < readers + READERS; reader++) {
		if (!reader->file) {
			found = reader;
			continue;
		}
		if (file_inode(reader->file)->i_sb == super)
			return NULL;
		of_users += !!reader->user;
		its += reader->user == user;
	}
	if (user && (of_users >= READERS_OF_USERS || its >= READERS_OF_USER))
		return NULL;
	return found;
}

bool sfu_read_ahead(struct file *file, uint64_t offset, uint64_t len, const struct sfu_job *job,
		    bool fault_in)
{
	struct reader *reader;

	if (!try_module_get(THIS_MODULE))
		return false;
	spin_lock(&readers_lock);
	reader = free_reader(file_inode(file)->i_sb, job->user);
	if (reader)
		reader->file = get_file(file);
	spin_unlock(&readers_lock);
	if (!reader) {
		module_put(THIS_MODULE);
		return false;
	}
	reader->offset = offset;
	reader->len = len;
	reader->user = job->user;
	reader->mm = NULL;
	if (fault_in) {
		mmgrab(job->mm);
		reader->mm = job->mm;
		reader->address = job->what & PAGE_MASK;
	}
	INIT_WORK(&reader->work, run);
	sfu_queue_reader(&reader->work);
	return true;
}
