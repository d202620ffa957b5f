// SPDX-License-Identifier: GPL-2.0-only
/* User memory for KUnit tests. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kconfig.h>

#include "files.h"
#include "mappings.h"

#ifdef CONFIG_KUNIT

#include <kunit/test.h>
#include <kunit/test-bug.h>
#include <linux/file.h>
#include <linux/mman.h>
#include <linux/shmem_fs.h>

int64_t sfu_test_map(uint64_t len, bool executable)
{
	return kunit_vm_mmap(kunit_get_current_test(), NULL, 0, len,
			     PROT_READ | PROT_WRITE | (executable ? PROT_EXEC : 0),
			     MAP_ANONYMOUS | MAP_PRIVATE, 0);
}

int64_t sfu_test_map_file(uint64_t at, const void *code, uint64_t len, struct sfu_file_key *key)
{
	struct file *file = shmem_file_setup("kunit", len, EMPTY_VMA_FLAGS);
	int64_t address;
	loff_t pos = 0;

	if (IS_ERR(file))
		return PTR_ERR(file);
	address = kernel_write(file, code, len, &pos);
	if (address == len) {
		read_key(file_inode(file), key);
		address = kunit_vm_mmap(kunit_get_current_test(), file, at, len,
					PROT_READ | PROT_EXEC,
					MAP_PRIVATE | MAP_POPULATE | (at ? MAP_FIXED : 0), 0);
	}
	fput(file);
	return address;
}

int sfu_test_publish(const struct sfu_file_key *key)
{
	const struct sfu_table_state state = {
		.origin = SFRAME_UNWIND_ADDED,
		.keeps_frame_pointer = true,
	};

	return sfu_table_publish(key, &state, NULL);
}

uint64_t sfu_test_cuts(const struct sfu_file_key *key)
{
	struct sframe_unwind_table table = {};

	while (!sfu_table_next(table.number, &table))
		if (table.inode == key->number && table.inode_generation == key->inode_generation)
			return table.cuts;
	return U64_MAX;
}

void sfu_test_count_reader(bool more)
{
	atomic_add(more ? 1 : -1, &sfu_request_readers);
}

uint64_t sfu_test_mappings_sequence(void)
{
	return sfu_mappings_sequence();
}

int sfu_test_unmap(uint64_t address, uint64_t len)
{
	return vm_munmap(address, len);
}

int sfu_test_write(uint64_t address, const void *from, unsigned int len)
{
	return copy_to_user((void __user *)address, from, len) ? -EFAULT : 0;
}

#endif
