/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WORK_H
#define WORK_H

/* Goes DEPTH levels (of two frames each) down and calls act() from there. */
void work(int depth, void (*act)(void));

/* Computes for a while, in some functions. */
void spin(void);

/* What this program is about, called from far down. */
void act(void);

/* Non-zero in a process that the program made by executing itself again. */
extern int again;

/* mixed only: goes through a library of another make, and calls back. */
void bridge(void (*back)(void));

#endif
