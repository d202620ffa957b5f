/* SPDX-License-Identifier: GPL-2.0-only */
/* The demo's shared library: sorting, search trees, tables, text, digests. */
#ifndef LIBDEMO_H
#define LIBDEMO_H

typedef int (*lib_compare)(const void *a, const void *b);
typedef void (*lib_visit)(void *item, void *context);
typedef unsigned long (*lib_key)(const void *item);

/* Merge sort of COUNT pointers. */
void lib_sort(void **items, int count, lib_compare compare);

/* An unbalanced search tree over memory that the caller provides. */
struct lib_node {
	void *item;
	struct lib_node *side[2];
};

struct lib_tree {
	struct lib_node *root;
	struct lib_node *pool;
	int used;
};

void lib_tree_add(struct lib_tree *tree, void *item, lib_compare compare);
void lib_tree_visit(const struct lib_tree *tree, lib_visit visit, void *context);

/* An open-addressed hash table of items by key. */
#define LIB_TABLE_SIZE 256

struct lib_table {
	void *items[LIB_TABLE_SIZE];
};

/* The item in the table whose key is ITEM's; ITEM itself if there was none. */
void *lib_table_put(struct lib_table *table, void *item, lib_key key);

/* Text that grows at its end, cut off when it is full. */
struct lib_text {
	int length;
	char data[1024];
};

void lib_text_add(struct lib_text *text, const char *string);
void lib_text_number(struct lib_text *text, long number);
void lib_text_pad(struct lib_text *text, int column);
void lib_text_write(struct lib_text *text, int fd);

unsigned long lib_hash(const char *string);
int lib_compare_strings(const char *a, const char *b);
unsigned long lib_random(unsigned long *state);

/* A digest of SIZE bytes: of no cryptographic worth, but as much work as one. */
void lib_digest(const void *data, int size, unsigned int digest[4]);

#endif
