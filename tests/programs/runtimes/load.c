// SPDX-License-Identifier: GPL-2.0-only
/*
 * load TURNS - for lli, which compiles it as it runs: recursion through trees, calls of the C
 * library, and calls back from it.
 */
#include <stdio.h>
#include <stdlib.h>

struct node {
	struct node *left, *right;
	long value;
};

static struct node *build(int depth, long value)
{
	struct node *node = malloc(sizeof(*node));

	if (!node)
		abort();
	node->value = value;
	node->left = depth ? build(depth - 1, value * 3 + 1) : NULL;
	node->right = depth ? build(depth - 1, value * 5 + 2) : NULL;
	return node;
}

static long sum(const struct node *node, long depth)
{
	char text[64];

	if (!node)
		return depth;
	snprintf(text, sizeof(text), "%ld", node->value);
	return node->value + text[0] + sum(node->left, depth + 1) * sum(node->right, depth + 1);
}

static void drop(struct node *node)
{
	if (!node)
		return;
	drop(node->left);
	drop(node->right);
	free(node);
}

static int compare(const void *first, const void *second)
{
	unsigned int a = *(const unsigned int *)first, b = *(const unsigned int *)second;

	return (a > b) - (a < b);
}

static unsigned int sort(unsigned int seed)
{
	unsigned int values[256];

	for (int i = 0; i < 256; i++)
		values[i] = seed = seed * 1664525 + 1013904223;
	qsort(values, 256, sizeof(*values), compare);
	return values[seed % 256];
}

int main(int argc, char **argv)
{
	long turns = argc > 1 ? atol(argv[1]) : 1;
	unsigned long all = 0;

	for (long i = 0; i < turns; i++) {
		struct node *tree = build(8, i % 1000);

		all += sum(tree, 0) + sort(all);
		drop(tree);
	}
	printf("%lu\n", all);
	return 0;
}
