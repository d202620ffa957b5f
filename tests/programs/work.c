// SPDX-License-Identifier: GPL-2.0-only
/* A chain of calls through frames of all kinds. */
#include "chain.h"
#include "work.h"

struct job {
	void (*act)(void);
	unsigned long sum;
};

static void next(struct job *job, int depth);

/* Spends time, with an effect that cannot be optimised away. */
static inline __attribute__((always_inline)) unsigned long stir(unsigned long value, int turns)
{
	while (turns-- > 0)
		value = (value ^ value >> 29) * 0xbf58476d1ce4e5b9;
	return value;
}

CHAINED static void plain(struct job *job, int depth)
{
	CHAIN_ENTER();
	job->sum = stir(job->sum, 40);
	next(job, depth);
	job->sum = stir(job->sum, 20);
}

/* The frame's size is known at run time only: rbp points to the frame. */
CHAINED static void with_variable_array(struct job *job, int depth)
{
	CHAIN_ENTER();
	volatile unsigned char bytes[depth * 16 + 8];

	for (int i = 0; i < depth * 16 + 8; i += 8)
		bytes[i] = job->sum >> i % 64;
	next(job, depth);
	job->sum = stir(job->sum + bytes[0], 30);
}

/* More values than registers: all callee-saved registers are in use, rbp too. */
CHAINED static void with_all_registers(struct job *job, int depth)
{
	CHAIN_ENTER();
	unsigned long a = job->sum, b = stir(a, 3), c = stir(b, 5), d = stir(c, 7);
	unsigned long e = stir(d, 9), f = stir(e, 11), g = stir(f, 13);

	next(job, depth);
	job->sum += a ^ b * 3 ^ c * 5 ^ d * 7 ^ e * 9 ^ f * 11 ^ g * 13;
}

CHAINED static unsigned long nine(struct job *job, int depth, unsigned long c, unsigned long d,
				  unsigned long e, unsigned long f, unsigned long g,
				  unsigned long h, unsigned long i)
{
	CHAIN_ENTER();
	next(job, depth);
	return stir(c + d * 2 + e * 3 + f * 4 + g * 5 + h * 6 + i * 7, 20);
}

/* Arguments on the stack: the stack pointer changes within the function. */
CHAINED static void with_arguments(struct job *job, int depth)
{
	CHAIN_ENTER();
	unsigned long s = stir(job->sum, 10);

	job->sum = nine(job, depth, s, s + 1, s + 2, s + 3, s + 4, s + 5, s + 6);
}

/* A frame whose size does not fit into a byte. */
CHAINED static void with_large_array(struct job *job, int depth)
{
	CHAIN_ENTER();
	volatile unsigned long words[100];

	for (int i = 0; i < 100; i += 4)
		words[i] = job->sum + i;
	next(job, depth);
	job->sum = stir(words[job->sum % 25 * 4], 30);
}

CHAINED static void bottom(struct job *job)
{
	CHAIN_ENTER();
	job->act();
	job->sum++;
}

CHAINED static void next(struct job *job, int depth)
{
	CHAIN_ENTER();
	static void (*const ways[])(struct job *job, int depth) = {
		plain, with_variable_array, with_all_registers, with_arguments, with_large_array,
	};

	if (depth == 0)
		bottom(job);
	else
		ways[depth % 5](job, depth - 1);
}

/* A frame whose size does not fit into two bytes. */
CHAINED void work(int depth, void (*act)(void))
{
	CHAIN_ENTER();
	volatile char huge[40000];
	struct job job = { .act = act, .sum = depth };

	/* Touches all of its pages, so that the stack has no hole. */
	for (int i = 0; i < (int)sizeof(huge); i += 4000)
		huge[i] = depth;
	next(&job, depth);
	job.sum += huge[0];
}
