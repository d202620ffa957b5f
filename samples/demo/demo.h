/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The demo: a shop that lives through one small day after the other. Its
 * orders carry formulas as text, which are parsed, simplified and evaluated.
 */
#ifndef DEMO_H
#define DEMO_H

#include "libdemo.h"

/* expression.c */
void write_formula(struct lib_text *text, unsigned long *random);
/* The value of a formula for each of COUNT values of x, as a sum. */
long value_of_formula(const char *formula, const long *x, int count);

/* orders.c */
#define ORDERS 40

struct order {
	char customer[16];
	char formula[96];
	int amount;
	long total;
	unsigned int digest[4];
};

struct day {
	int number;
	unsigned long random;
	int null_fd, zero_fd;
	struct order orders[ORDERS];
};

void take_orders(struct day *day);
void price_orders(struct day *day);
void rank_orders(struct day *day);
void report_orders(struct day *day);
void forecast(struct day *day);

#endif
