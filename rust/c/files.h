/* SPDX-License-Identifier: GPL-2.0-only */
/* Keys of files. */
#ifndef _SFRAME_UNWIND_FILES_H
#define _SFRAME_UNWIND_FILES_H

#include <linux/fs.h>
#include <linux/mm.h>

#include "internal.h"

/*
 * The number of unmounts since module load of file systems on this device, or on a device that
 * shares the counter. Any context.
 */
uint32_t sfu_unmounts(const struct super_block *super);
/* Counts unmounts from now on. Task; sleeps. 0 or a negative error. */
int sfu_unmounts_start(void);
/* At module unload, after everything that reads keys. Task; sleeps. */
void sfu_unmounts_stop(void);

/* Whether bytes of a file are in memory, where the file has them. Task. */
bool sfu_is_cached(const struct file *file, uint64_t offset, uint64_t len);
/*
 * The worker: the bytes that a read missed in memory since the last call. Their number; 0 if there
 * are none.
 */
uint64_t sfu_take_missing(uint64_t *offset);

/*
 * Reads the key of a file. The time of change is a part of the key, because users can set the time
 * of modification to any value. The number of unmounts is a part, because the times in an image can
 * be set, too: another image on the same device may have equal numbers, and even an equal UUID. The
 * address of the inode is no part: the kernel may drop the inode and read it again although the
 * file has not changed, and may give the address to an inode of another file. Any context; the
 * caller ensures that the inode is alive.
 */
static inline void read_key(struct inode *inode, struct sfu_file_key *key)
{
	const struct super_block *super = inode->i_sb;
	uint64_t uuid[2];

	memcpy(uuid, &super->s_uuid, sizeof(uuid));
	*key = (struct sfu_file_key){
		.number = inode->i_ino,
		.file_system = uuid[0] ^ uuid[1],
		.size = i_size_read(inode),
		.changed = inode_get_ctime_sec(inode),
		.changed_nsec = inode_get_ctime_nsec(inode),
		.modified = inode_get_mtime_sec(inode),
		.modified_nsec = inode_get_mtime_nsec(inode),
		.device = super->s_dev,
		.unmounts = sfu_unmounts(super),
		.inode_generation = inode->i_generation,
	};
}

/*
 * Whether the contents of a file may change without a trace. Writes through a mapping take no fault
 * in shmem; and on disks none from the first one on, until the page is written back.
 */
static inline bool is_written_to(const struct inode *inode)
{
	return mapping_writably_mapped(inode->i_mapping);
}

#endif
