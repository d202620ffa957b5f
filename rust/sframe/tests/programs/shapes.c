// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Functions with different frames. The reader of SFrame has to understand the rows that gcc makes
 * for them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline, noclone))

NOINLINE int leaf(int x)
{
	return x * 3 + 1;
}

/* A few saved registers and a small frame: offsets of one byte. */
NOINLINE int small(int a, int b, int c, int d, int e, int f)
{
	int sum = 0;

	for (int i = 0; i < a; i++)
		sum += leaf(b + i) * leaf(c) + leaf(d) * e + f;
	return sum;
}

/* A frame whose size takes two bytes. */
NOINLINE int middling(int x)
{
	char buffer[600];

	memset(buffer, x, sizeof(buffer));
	return leaf(buffer[x & 511]) + puts(buffer);
}

/* A frame whose size takes four bytes. */
NOINLINE int large(int x)
{
	char buffer[70000];

	memset(buffer, x, sizeof(buffer));
	return middling(buffer[x & 65535]);
}

/* A frame of variable size: the CFA counts from the frame pointer. */
NOINLINE int variable(int n)
{
	char *p = __builtin_alloca(n);

	memset(p, n, n);
	return middling(p[n / 2]);
}

/* More arguments than registers: pushes around the call. */
NOINLINE int arguments(int a, int b, int c, int d, int e, int f, int g, int h, int i)
{
	return small(a, b, c, d, e, f) + small(g, h, i, a, b, c);
}

NOINLINE int recursive(int n)
{
	return n < 2 ? n : recursive(n - 1) + recursive(n - 2);
}

/* A cold part, which gcc places apart from the rest of the function. */
NOINLINE int cold(int x)
{
	if (__builtin_expect(x == 42, 0)) {
		fprintf(stderr, "%d\n", leaf(x));
		abort();
	}
	return leaf(x) + 1;
}

/* A call that does not return, as the last instruction. */
NOINLINE __attribute__((noreturn)) void fails(int x)
{
	exit(leaf(x));
}

/* More than 64 KiB of code, so that start offsets take four bytes. */
NOINLINE int long_code(int x)
{
	int sum = leaf(x);

	__asm__ volatile(".skip 70000, 0x90");
	return sum + leaf(x + 1);
}

int shapes(int x, char **argv)
{
	if (x > 1000)
		fails(x);
	return arguments(x, 2, 3, 4, 5, 6, 7, 8, 9) + large(x) + variable(x * 16) +
	       recursive(x) + cold(x) + long_code(x) + atoi(argv[0]);
}

#ifdef MAIN
int main(int argc, char **argv)
{
	return shapes(argc, argv);
}
#endif
