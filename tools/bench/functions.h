/* SPDX-License-Identifier: GPL-2.0-only */
/* What the parts of the bench's program share. */
#ifndef FUNCTIONS_H
#define FUNCTIONS_H

struct walk;
typedef unsigned long (*function)(struct walk *walk);

/* A walk down: which functions call which. */
struct walk {
	/* The next one; the last one is where samples are taken. */
	function *next;
	/* As the compiler cannot know: 48. */
	unsigned long size;
};

/*
 * All rules that compilers make use of: a frame of fixed size; one with registers saved, rbp among
 * them, which is then any register; one of some size; and one whose size is known only as it runs,
 * which goes by the frame pointer.
 */
/* Code that is not met, so that there are as many rows for it as libc has: 4.6 in 256 bytes. */
#define BODY __asm__ volatile("jmp 1f\n.skip 144, 0x90\n1:")

#define SMALL(n)						\
	static unsigned long small_##n(struct walk *walk)		\
	{							\
		BODY;						\
		return (*walk->next++)(walk) + n;		\
	}
#define SAVING(n)						\
	static unsigned long saving_##n(struct walk *walk)		\
	{							\
		BODY;						\
		unsigned long a = walk->size * n, b = walk->size ^ n, c = walk->size + n;\
		__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c));		\
		return (*walk->next++)(walk) + a * b + c;	\
	}
#define LARGE(n)						\
	static unsigned long large_##n(struct walk *walk)		\
	{							\
		BODY;						\
		volatile char space[64 + n % 500];		\
		space[0] = 1;					\
		return (*walk->next++)(walk) + space[0];	\
	}
#define GROWING(n)						\
	static unsigned long growing_##n(struct walk *walk)		\
	{							\
		BODY;						\
		volatile char *space = __builtin_alloca(walk->size);	\
		space[0] = 1;					\
		return (*walk->next++)(walk) + space[0];	\
	}

/* The functions of a part, and how many they are. */
struct part {
	function *functions;
	unsigned long count;
};

#endif
