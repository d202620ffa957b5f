/* SPDX-License-Identifier: GPL-2.0-only */
/* Shared by the parts of the benchmark's program. */
#ifndef FUNCTIONS_H
#define FUNCTIONS_H

struct walk;
typedef unsigned long (*function)(struct walk *walk);

/* The calls of one turn. */
struct walk {
	/* The next function to call; samples are taken in the last one. */
	function *next;
	/* Always 48, but the compiler does not know that. */
	unsigned long size;
};

/*
 * With REGION, all functions are in a section of their own; PLACE is its place, and that of the
 * file.
 */
#ifdef REGION
#define CODE __attribute__((section("code")))
__asm__(".pushsection code, \"ax\"\n.balign 4096\n.popsection");
extern unsigned char __start_code[] __attribute__((visibility("hidden")));
extern unsigned char __stop_code[] __attribute__((visibility("hidden")));
extern unsigned char __ehdr_start[] __attribute__((visibility("hidden")));
#define PLACE __start_code, __stop_code, __ehdr_start
#else
#define CODE
#define PLACE
#endif

/*
 * All kinds of frames that compilers make: a small one; one that saves registers, among them rbp,
 * which then is a general register; a large one; and one whose size is known only at run time, with
 * a frame pointer.
 */
/*
 * Code that never runs, so that the number of rows for each 256 bytes of code equals libc's: 4.6.
 */
#define BODY __asm__ volatile("jmp 1f\n.skip 144, 0x90\n1:")

#define SMALL(n)						\
	CODE static unsigned long small_##n(struct walk *walk)	\
	{							\
		BODY;						\
		return (*walk->next++)(walk) + n;		\
	}
#define SAVING(n)						\
	CODE static unsigned long saving_##n(struct walk *walk)	\
	{							\
		BODY;						\
		unsigned long a = walk->size * n, b = walk->size ^ n, c = walk->size + n;\
		__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c));		\
		return (*walk->next++)(walk) + a * b + c;	\
	}
#define LARGE(n)						\
	CODE static unsigned long large_##n(struct walk *walk)	\
	{							\
		BODY;						\
		volatile char space[64 + n % 500];		\
		space[0] = 1;					\
		return (*walk->next++)(walk) + space[0];	\
	}
#define GROWING(n)						\
	CODE static unsigned long growing_##n(struct walk *walk)	\
	{							\
		BODY;						\
		volatile char *space = __builtin_alloca(walk->size);	\
		space[0] = 1;					\
		return (*walk->next++)(walk) + space[0];	\
	}

/* The functions of a part, and their number. */
struct part {
	function *functions;
	unsigned long count;
	unsigned char *start, *end, *file;
};

#endif
