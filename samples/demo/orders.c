// SPDX-License-Identifier: GPL-2.0-only
/* What happens to the orders of a day. */
#include "chain.h"
#include "demo.h"

#include "sys.h"

/* Taking orders */

CHAINED static void write_customer(struct order *order, unsigned long *random)
{
	CHAIN_ENTER();
	static const char *const syllables[] = { "an", "ber", "do", "ka", "li", "mo", "ri", "ta" };
	int length = 0;

	for (int i = 0; i < 3; i++) {
		const char *syllable = syllables[lib_random(random) % 8];

		while (*syllable)
			order->customer[length++] = *syllable++;
	}
	order->customer[length] = 0;
}

CHAINED static void copy_formula(struct order *order, const struct lib_text *text)
{
	CHAIN_ENTER();
	int length = 0;

	for (; length < text->length && length < (int)sizeof(order->formula) - 1; length++)
		order->formula[length] = text->data[length];
	order->formula[length] = 0;
}

CHAINED static void take_order(struct order *order, unsigned long *random)
{
	CHAIN_ENTER();
	struct lib_text text;

	write_customer(order, random);
	write_formula(&text, random);
	copy_formula(order, &text);
	order->amount = 1 + lib_random(random) % 6;
}

CHAINED void take_orders(struct day *day)
{
	CHAIN_ENTER();
	for (int i = 0; i < ORDERS; i++)
		take_order(day->orders + i, &day->random);
}

/* Pricing them */

CHAINED static void price_order(struct order *order)
{
	CHAIN_ENTER();
	long x[order->amount];

	for (int i = 0; i < order->amount; i++)
		x[i] = i + 1;
	order->total = value_of_formula(order->formula, x, order->amount);
}

CHAINED static void sign_order(struct order *order)
{
	CHAIN_ENTER();
	lib_digest(order->formula, sizeof(order->formula), order->digest);
}

CHAINED void price_orders(struct day *day)
{
	CHAIN_ENTER();
	for (int i = 0; i < ORDERS; i++) {
		price_order(day->orders + i);
		sign_order(day->orders + i);
	}
}

/* Ranking them: functions that the library calls back */

CHAINED static int compare_totals(const void *a, const void *b)
{
	CHAIN_ENTER();
	const struct order *left = a, *right = b;

	return (left->total > right->total) - (left->total < right->total);
}

CHAINED static int compare_customers(const void *a, const void *b)
{
	CHAIN_ENTER();
	const struct order *left = a, *right = b;
	int order = lib_compare_strings(left->customer, right->customer);

	return order ? order : compare_totals(a, b);
}

CHAINED static unsigned long customer_key(const void *item)
{
	CHAIN_ENTER();
	return lib_hash(((const struct order *)item)->customer);
}

CHAINED static void count_customers(struct day *day, struct lib_table *table)
{
	CHAIN_ENTER();
	for (int i = 0; i < LIB_TABLE_SIZE; i++)
		table->items[i] = 0;
	for (int i = 0; i < ORDERS; i++) {
		struct order *first = lib_table_put(table, day->orders + i, customer_key);

		if (first != day->orders + i)
			first->amount += day->orders[i].amount;
	}
}

CHAINED void rank_orders(struct day *day)
{
	CHAIN_ENTER();
	static const lib_compare ways[] = { compare_totals, compare_customers };
	void *ranked[ORDERS];
	struct lib_table table;

	for (int i = 0; i < ORDERS; i++)
		ranked[i] = day->orders + i;
	for (int way = 0; way < 2; way++)
		lib_sort(ranked, ORDERS, ways[way]);
	count_customers(day, &table);
}

/* Reporting them */

struct report {
	struct day *day;
	struct lib_text text;
};

CHAINED static void report_digest(struct lib_text *text, const struct order *order)
{
	CHAIN_ENTER();
	for (int i = 0; i < 2; i++) {
		lib_text_add(text, i ? "-" : " ");
		lib_text_number(text, order->digest[i]);
	}
}

CHAINED static void report_order(void *item, void *context)
{
	CHAIN_ENTER();
	const struct order *order = item;
	struct report *report = context;

	lib_text_add(&report->text, order->customer);
	lib_text_pad(&report->text, 16);
	lib_text_number(&report->text, order->total);
	lib_text_pad(&report->text, 32);
	report_digest(&report->text, order);
	lib_text_add(&report->text, "\n");
	if (report->text.length > 512)
		lib_text_write(&report->text, report->day->null_fd);
}

CHAINED void report_orders(struct day *day)
{
	CHAIN_ENTER();
	struct lib_node pool[ORDERS];
	struct lib_tree tree = { .pool = pool };
	struct report report;

	report.day = day;
	report.text.length = 0;
	for (int i = 0; i < ORDERS; i++)
		lib_tree_add(&tree, day->orders + i, compare_customers);
	lib_tree_visit(&tree, report_order, &report);
	lib_text_write(&report.text, day->null_fd);
}

/* Looking ahead: a matrix, with some help from the kernel */

#define SIDE 12

CHAINED static void fill_matrix(struct day *day, double matrix[SIDE][SIDE])
{
	CHAIN_ENTER();
	for (int row = 0; row < SIDE; row++)
		for (int column = 0; column < SIDE; column++)
			matrix[row][column] = day->orders[(row + column) % ORDERS].amount / 20.0;
}

CHAINED static double inner_product(const double *row, double other[SIDE][SIDE], int column)
{
	CHAIN_ENTER();
	double sum = 0;

	for (int i = 0; i < SIDE; i++)
		sum += row[i] * other[i][column];
	return sum;
}

CHAINED static void multiply(double to[SIDE][SIDE], double a[SIDE][SIDE], double b[SIDE][SIDE])
{
	CHAIN_ENTER();
	for (int row = 0; row < SIDE; row++)
		for (int column = 0; column < SIDE; column++)
			to[row][column] = inner_product(a[row], b, column) / SIDE;
}

CHAINED static int read_noise(struct day *day)
{
	CHAIN_ENTER();
	char noise[2048];
	int sum = 0;

	sys_read(day->zero_fd, noise, sizeof(noise));
	for (int i = 0; i < (int)sizeof(noise); i += 64)
		sum += noise[i];
	return sum;
}

CHAINED static int ask_kernel(struct day *day, int times)
{
	CHAIN_ENTER();
	int sum = 0;

	while (times-- > 0)
		sum += sys_call(SYS_getpid) + read_noise(day);
	return sum;
}

CHAINED void forecast(struct day *day)
{
	CHAIN_ENTER();
	double a[SIDE][SIDE], b[SIDE][SIDE];

	fill_matrix(day, a);
	multiply(b, a, a);
	multiply(a, b, b);
	day->orders[0].amount = 1 + (ask_kernel(day, 60) + (int)a[0][0]) % 20;
}
