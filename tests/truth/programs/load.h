/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What all programs of the corpus share: a load that is repeated.
 *
 * usage: PROGRAM SECONDS
 *
 * With 0 the load runs `rounds` times, which takes about a million instructions or more, always the
 * same ones. Otherwise it runs until that many seconds have passed. A program checks its own
 * results, and exits with 0 only if they are right: who watches it must not change what it does.
 */
#ifndef LOAD_H
#define LOAD_H

/* A function that stays one: neither inlined nor cloned, and nothing is known of it elsewhere. */
#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* How often work() is called in a short run. */
extern const unsigned int rounds;

/* Some 100,000 instructions of the program's load; rounds are counted from 0. */
void work(unsigned int round);

/* Whether it is a long run, of which nobody expects that each is like the other. */
extern int endless;

/* Says what is wrong, and ends the program with status 1. */
void __attribute__((noreturn, cold)) wrong(const char *what);

/* What is written here is not optimised away. */
extern volatile unsigned long sink;

#ifdef __cplusplus
}
#endif

#endif
