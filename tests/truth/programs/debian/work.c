/* SPDX-License-Identifier: GPL-2.0-only */
/* Input for compilers, without headers, so that it is equal everywhere. */
typedef unsigned long word;

struct node {
	struct node *left, *right;
	word key, weight;
	double value;
};

static word mixed(word from, unsigned int by)
{
	from ^= from >> (by % 63 + 1);
	return from * 0x9e3779b97f4a7c15ul;
}

static struct node *inserted(struct node *root, struct node *new)
{
	struct node **at = &root;

	while (*at) {
		(*at)->weight++;
		at = new->key < (*at)->key ? &(*at)->left : &(*at)->right;
	}
	*at = new;
	return root;
}

double sum_of(const struct node *root, double (*of)(const struct node *))
{
	return root ? sum_of(root->left, of) + of(root) + sum_of(root->right, of) : 0;
}

static double weighed(const struct node *node)
{
	return node->value * node->weight;
}

double all_of(struct node *nodes, unsigned int count)
{
	struct node *root = 0;

	for (unsigned int at = 0; at < count; at++) {
		nodes[at].key = mixed(at, count);
		nodes[at].value = at % 3 ? 1.5 * at : -0.5 / (at + 1);
		root = inserted(root, &nodes[at]);
	}
	return sum_of(root, weighed);
}

int matrix(double (*out)[64], const double (*a)[64], const double (*b)[64], int size)
{
	for (int row = 0; row < size; row++)
		for (int column = 0; column < size; column++) {
			double sum = 0;

			for (int at = 0; at < size; at++)
				sum += a[row][at] * b[at][column];
			out[row][column] = sum;
		}
	switch (size & 7) {
	case 1:
		return mixed(size, 3) & 0xff;
	case 2:
	case 5:
		return -size;
	case 7:
		return matrix(out, b, a, size - 1);
	default:
		return size / 3 + size % 5;
	}
}
