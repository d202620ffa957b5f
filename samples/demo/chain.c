// SPDX-License-Identifier: GPL-2.0-only
/* Making the tree of calls, and writing it down. */
#include "chain.h"

#include <sys/mman.h>

#include "sys.h"

void chain_start(void)
{
	long tree = sys_call6(SYS_mmap, (long)CHAIN_TREE, CHAIN_NODES * sizeof(struct chain_node),
			      PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (tree != (long)CHAIN_TREE)
		sys_exit(125);
	CHAIN_TREE->key = CHAIN_MAGIC << 40 | sys_call(SYS_getpid) << 16;
}

CHAINED void chain_populate(void)
{
	CHAIN_ENTER();
	sys_call3(SYS_madvise, (long)CHAIN_TREE, CHAIN_NODES * sizeof(struct chain_node),
		  MADV_POPULATE_WRITE);
}

static inline __attribute__((always_inline)) char *
put_number(char *to, unsigned long value, unsigned int base, char end)
{
	char digits[24];
	int count = 0;

	do {
		digits[count++] = "0123456789abcdef"[value % base];
		value /= base;
	} while (value);
	while (count)
		*to++ = digits[--count];
	*to++ = end;
	return to;
}

CHAINED void chain_write(const char *path)
{
	CHAIN_ENTER();
	static char text[65536];
	char *to = text;
	unsigned long tree = CHAIN_TREE->key >> 16 & 0xffffff;
	int fd = path ? sys_open(path, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;

	for (unsigned long node = 1; fd >= 0 && node < CHAIN_NODES; node++) {
		const struct chain_node *slot = CHAIN_TREE + node;

		if (!slot->key || !slot->name)
			continue;
		to = put_number(to, tree, 10, ' ');
		to = put_number(to, node, 10, ' ');
		to = put_number(to, slot->key & 0xffff, 10, ' ');
		to = put_number(to, slot->key >> 16, 16, ' ');
		for (const char *name = slot->name; *name; name++)
			*to++ = *name;
		*to++ = '\n';
		/* Whole lines at a time, as others may append to the same file. */
		if (to - text > (long)sizeof(text) - 256) {
			sys_write(fd, text, to - text);
			to = text;
		}
	}
	sys_write(fd, text, to - text);
	sys_close(fd);
}
