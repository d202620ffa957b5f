// SPDX-License-Identifier: GPL-2.0-only
/* Formulas: made up at random, parsed, simplified, evaluated. */
#include "chain.h"
#include "demo.h"

/*
 * sum = product { ("+" | "-") product }; product = atom { ("*" | "/") atom };
 * atom = number | "x" | "(" sum ")" | name "(" sum ")"
 */
struct expression {
	char kind;		/* one of: 0 (number) x + - * / s (square) m (modulus) */
	long value;
	struct expression *part[2];
};

struct parser {
	const char *at;
	struct expression *pool;
	int used;
};

/* Making formulas up */

static void write_sum(struct lib_text *text, unsigned long *random, int depth);

CHAINED static void write_atom(struct lib_text *text, unsigned long *random, int depth)
{
	CHAIN_ENTER();
	unsigned long dice = lib_random(random) % 8;

	if (depth > 0 && dice < 5) {
		lib_text_add(text, dice < 3 ? "(" : dice < 4 ? "square(" : "modulus(");
		write_sum(text, random, depth - 1);
		lib_text_add(text, ")");
	} else if (dice < 6) {
		lib_text_add(text, "x");
	} else {
		lib_text_number(text, lib_random(random) % 100);
	}
}

CHAINED static void write_product(struct lib_text *text, unsigned long *random, int depth)
{
	CHAIN_ENTER();
	for (int factor = lib_random(random) % 2; factor >= 0; factor--) {
		write_atom(text, random, depth);
		if (factor)
			lib_text_add(text, lib_random(random) % 4 ? " * " : " / ");
	}
}

CHAINED static void write_sum(struct lib_text *text, unsigned long *random, int depth)
{
	CHAIN_ENTER();
	for (int term = lib_random(random) % 3; term >= 0; term--) {
		write_product(text, random, depth);
		if (term)
			lib_text_add(text, lib_random(random) % 2 ? " + " : " - ");
	}
}

CHAINED void write_formula(struct lib_text *text, unsigned long *random)
{
	CHAIN_ENTER();
	text->length = 0;
	write_sum(text, random, 2);
}

/* Parsing */

CHAINED static struct expression *new_expression(struct parser *parser, char kind, long value,
						 struct expression *left, struct expression *right)
{
	CHAIN_ENTER();
	struct expression *new = parser->pool + parser->used++;

	new->kind = kind;
	new->value = value;
	new->part[0] = left;
	new->part[1] = right;
	return new;
}

CHAINED static char next_character(struct parser *parser)
{
	CHAIN_ENTER();
	while (*parser->at == ' ')
		parser->at++;
	return *parser->at;
}

CHAINED static long read_number(struct parser *parser)
{
	CHAIN_ENTER();
	long number = 0;

	while (*parser->at >= '0' && *parser->at <= '9')
		number = number * 10 + *parser->at++ - '0';
	return number;
}

/* The first letter tells the functions apart. */
CHAINED static char read_name(struct parser *parser)
{
	CHAIN_ENTER();
	char name = *parser->at;

	while (*parser->at >= 'a' && *parser->at <= 'z')
		parser->at++;
	return name;
}

static struct expression *parse_sum(struct parser *parser);

CHAINED static struct expression *parse_atom(struct parser *parser)
{
	CHAIN_ENTER();
	char character = next_character(parser);
	struct expression *inner;
	char name = 0;

	if (character >= '0' && character <= '9')
		return new_expression(parser, 0, read_number(parser), 0, 0);
	if (character != '(')
		name = read_name(parser);
	if (name == 'x')
		return new_expression(parser, 'x', 0, 0, 0);
	/* A cut off formula ends in the middle of something. */
	if (next_character(parser) != '(')
		return new_expression(parser, 0, 0, 0, 0);
	parser->at++;
	inner = parse_sum(parser);
	if (next_character(parser) == ')')
		parser->at++;
	return name ? new_expression(parser, name, 0, inner, 0) : inner;
}

CHAINED static struct expression *parse_product(struct parser *parser)
{
	CHAIN_ENTER();
	struct expression *product = 0;
	char operator = 0;

	do {
		struct expression *factor = parse_atom(parser);

		product = operator ? new_expression(parser, operator, 0, product, factor) : factor;
		operator = next_character(parser);
	} while ((operator == '*' || operator == '/') && parser->at++);
	return product;
}

CHAINED static struct expression *parse_sum(struct parser *parser)
{
	CHAIN_ENTER();
	struct expression *sum = 0;
	char operator = 0;

	do {
		struct expression *term = parse_product(parser);

		sum = operator ? new_expression(parser, operator, 0, sum, term) : term;
		operator = next_character(parser);
	} while ((operator == '+' || operator == '-') && parser->at++);
	return sum;
}

/* Evaluating: a table of functions, so that all calls of them are indirect. */

typedef long (*evaluator)(const struct expression *expression, long x);

static long evaluate(const struct expression *expression, long x);

CHAINED static long evaluate_sum(const struct expression *expression, long x)
{
	CHAIN_ENTER();
	long value = 0;

	for (int i = 0; i < 2; i++) {
		long part = evaluate(expression->part[i], x);

		value += i && expression->kind == '-' ? -part : part;
	}
	return value;
}

CHAINED static long evaluate_product(const struct expression *expression, long x)
{
	CHAIN_ENTER();
	long value[2];

	for (int i = 0; i < 2; i++)
		value[i] = evaluate(expression->part[i], x);
	if (expression->kind == '*')
		return value[0] * value[1] % 1000003;
	return value[1] ? value[0] / value[1] : 0;
}

CHAINED static long evaluate_function(const struct expression *expression, long x)
{
	CHAIN_ENTER();
	long value = evaluate(expression->part[0], x);

	if (expression->kind == 's')
		return value * value % 1000003;
	return value < 0 ? -value : value;
}

CHAINED static long evaluate_leaf(const struct expression *expression, long x)
{
	CHAIN_ENTER();
	return expression->kind == 'x' ? x : expression->value;
}

CHAINED static evaluator evaluator_of(char kind)
{
	CHAIN_ENTER();
	switch (kind) {
	case '+':
	case '-':
		return evaluate_sum;
	case '*':
	case '/':
		return evaluate_product;
	case 's':
	case 'm':
		return evaluate_function;
	default:
		return evaluate_leaf;
	}
}

CHAINED static long evaluate(const struct expression *expression, long x)
{
	CHAIN_ENTER();
	return evaluator_of(expression->kind)(expression, x);
}

/* Simplifying: what does not depend on x becomes a number. */

CHAINED static int is_constant(const struct expression *expression)
{
	CHAIN_ENTER();
	for (int i = 0; i < 2; i++)
		if (expression->part[i] && expression->part[i]->kind)
			return 0;
	return expression->kind != 'x';
}

static void simplify(struct expression *expression);

CHAINED static void simplify_parts(struct expression *expression)
{
	CHAIN_ENTER();
	for (int i = 0; i < 2; i++)
		if (expression->part[i])
			simplify(expression->part[i]);
}

CHAINED static void simplify(struct expression *expression)
{
	CHAIN_ENTER();
	simplify_parts(expression);
	if (is_constant(expression)) {
		expression->value = evaluate(expression, 0);
		expression->kind = 0;
		expression->part[0] = expression->part[1] = 0;
	}
}

CHAINED static int formula_length(const char *formula)
{
	CHAIN_ENTER();
	int length = 0;

	while (formula[length])
		length++;
	return length;
}

CHAINED long value_of_formula(const char *formula, const long *x, int count)
{
	CHAIN_ENTER();
	/* A character makes one expression at most; an empty formula needs two. */
	struct expression *pool = __builtin_alloca(sizeof(*pool) * (formula_length(formula) + 2));
	struct parser parser = { .at = formula, .pool = pool };
	struct expression *root = parse_sum(&parser);
	long sum = 0;

	simplify(root);
	for (int i = 0; i < count; i++)
		sum += evaluate(root, x[i]);
	return sum;
}
