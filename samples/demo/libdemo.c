// SPDX-License-Identifier: GPL-2.0-only
#include "chain.h"
#include "libdemo.h"

#include "sys.h"

/* Sorting */

CHAINED static void copy_items(void **to, void **from, int count)
{
	CHAIN_ENTER();
	for (int i = 0; i < count; i++)
		to[i] = from[i];
}

CHAINED static void insertion_sort(void **items, int count, lib_compare compare)
{
	CHAIN_ENTER();
	for (int i = 1; i < count; i++) {
		void *item = items[i];
		int at = i;

		for (; at > 0 && compare(items[at - 1], item) > 0; at--)
			items[at] = items[at - 1];
		items[at] = item;
	}
}

CHAINED static void merge_halves(void **items, int half, int count, lib_compare compare)
{
	CHAIN_ENTER();
	void *left[half];	/* a variable length: the frame's size is not fixed */
	int a = 0, b = half, to = 0;

	copy_items(left, items, half);
	while (a < half && b < count)
		items[to++] = compare(left[a], items[b]) <= 0 ? left[a++] : items[b++];
	copy_items(items + to, left + a, half - a);
}

CHAINED static void sort_halves(void **items, int half, int count, lib_compare compare)
{
	CHAIN_ENTER();
	for (int start = 0; start <= half; start += half)
		lib_sort(items + start, start ? count - half : half, compare);
}

CHAINED void lib_sort(void **items, int count, lib_compare compare)
{
	CHAIN_ENTER();
	if (count <= 6) {
		insertion_sort(items, count, compare);
		return;
	}
	sort_halves(items, count / 2, count, compare);
	merge_halves(items, count / 2, count, compare);
}

/* Search trees */

CHAINED static struct lib_node *new_node(struct lib_tree *tree, void *item)
{
	CHAIN_ENTER();
	struct lib_node *node = tree->pool + tree->used++;

	node->item = item;
	node->side[0] = node->side[1] = 0;
	return node;
}

static struct lib_node **find_place(struct lib_node **place, const void *item,
				    lib_compare compare);

CHAINED static struct lib_node **find_below(struct lib_node *node, const void *item,
					    lib_compare compare)
{
	CHAIN_ENTER();
	return find_place(&node->side[compare(item, node->item) > 0], item, compare);
}

CHAINED static struct lib_node **find_place(struct lib_node **place, const void *item,
					    lib_compare compare)
{
	CHAIN_ENTER();
	return *place ? find_below(*place, item, compare) : place;
}

CHAINED void lib_tree_add(struct lib_tree *tree, void *item, lib_compare compare)
{
	CHAIN_ENTER();
	struct lib_node **place = find_place(&tree->root, item, compare);

	*place = new_node(tree, item);
}

static void visit_node(const struct lib_node *node, lib_visit visit, void *context);

CHAINED static void visit_side(const struct lib_node *node, lib_visit visit, void *context)
{
	CHAIN_ENTER();
	if (node)
		visit_node(node, visit, context);
}

CHAINED static void visit_node(const struct lib_node *node, lib_visit visit, void *context)
{
	CHAIN_ENTER();
	visit_side(node->side[0], visit, context);
	visit(node->item, context);
	visit_side(node->side[1], visit, context);
}

CHAINED void lib_tree_visit(const struct lib_tree *tree, lib_visit visit, void *context)
{
	CHAIN_ENTER();
	visit_side(tree->root, visit, context);
}

/* Tables */

CHAINED void *lib_table_put(struct lib_table *table, void *item, lib_key key)
{
	CHAIN_ENTER();
	unsigned long wanted = key(item);

	for (unsigned long slot = wanted;; slot++) {
		void **place = table->items + slot % LIB_TABLE_SIZE;

		if (!*place)
			*place = item;
		if (key(*place) == wanted)
			return *place;
	}
}

/* Text */

CHAINED void lib_text_add(struct lib_text *text, const char *string)
{
	CHAIN_ENTER();
	int length = text->length;

	while (*string && length < (int)sizeof(text->data) - 1)
		text->data[length++] = *string++;
	text->data[length] = 0;
	text->length = length;
}

CHAINED static char *put_digits(char *end, unsigned long number)
{
	CHAIN_ENTER();
	do {
		*--end = '0' + number % 10;
		number /= 10;
	} while (number);
	return end;
}

CHAINED void lib_text_number(struct lib_text *text, long number)
{
	CHAIN_ENTER();
	char digits[24];
	char *start;

	digits[sizeof(digits) - 1] = 0;
	start = put_digits(digits + sizeof(digits) - 1, number < 0 ? -number : number);
	if (number < 0)
		*--start = '-';
	lib_text_add(text, start);
}

CHAINED static int column_of(const struct lib_text *text)
{
	CHAIN_ENTER();
	int start = text->length;

	while (start > 0 && text->data[start - 1] != '\n')
		start--;
	return text->length - start;
}

CHAINED void lib_text_pad(struct lib_text *text, int column)
{
	CHAIN_ENTER();
	for (int missing = column - column_of(text); missing > 0; missing--)
		lib_text_add(text, " ");
}

CHAINED void lib_text_write(struct lib_text *text, int fd)
{
	CHAIN_ENTER();
	sys_write(fd, text->data, text->length);
	text->length = 0;
}

CHAINED unsigned long lib_hash(const char *string)
{
	CHAIN_ENTER();
	unsigned long hash = 0xcbf29ce484222325;

	while (*string)
		hash = (hash ^ (unsigned char)*string++) * 0x100000001b3;
	return hash;
}

CHAINED int lib_compare_strings(const char *a, const char *b)
{
	CHAIN_ENTER();
	while (*a && *a == *b)
		a++, b++;
	return (unsigned char)*a - (unsigned char)*b;
}

CHAINED unsigned long lib_random(unsigned long *state)
{
	CHAIN_ENTER();
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Digests */

CHAINED static unsigned int mix(unsigned int a, unsigned int b, unsigned int c, unsigned int word)
{
	CHAIN_ENTER();
	for (int turn = 0; turn < 8; turn++) {
		a += word ^ ((b & c) | (~b & a));
		a = a << 7 | a >> 25;
		word = word * 5 + 0x9e3779b9;
	}
	return a;
}

CHAINED static void digest_block(unsigned int state[4], const unsigned int words[16])
{
	CHAIN_ENTER();
	for (int i = 0; i < 16; i++)
		state[i % 4] = mix(state[i % 4], state[(i + 1) % 4], state[(i + 2) % 4], words[i]);
}

/* The last, incomplete block is filled up with zeros. */
CHAINED static void digest_rest(unsigned int state[4], const unsigned char *data, int size)
{
	CHAIN_ENTER();
	unsigned int words[16];

	for (int i = 0; i < 64; i++)
		((unsigned char *)words)[i] = i < size ? data[i] : 0;
	digest_block(state, words);
}

CHAINED void lib_digest(const void *data, int size, unsigned int digest[4])
{
	CHAIN_ENTER();
	const unsigned char *bytes = data;

	for (int i = 0; i < 4; i++)
		digest[i] = 0x67452301u * (i + 1);
	for (; size >= 64; size -= 64, bytes += 64)
		digest_block(digest, (const unsigned int *)bytes);
	digest_rest(digest, bytes, size);
}
