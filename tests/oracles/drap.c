// SPDX-License-Identifier: GPL-2.0-only
/*
 * Functions that align their stack to more than the ABI requires. No headers: it is also built for
 * machines without a libc.
 */
void use(void *one, void *two);

void aligned(void)
{
	char one[64] __attribute__((aligned(64)));

	use(one, 0);
}

void aligned_and_variable(int n, int a, int b, int c, int d, int e, int f, int g)
{
	char one[256] __attribute__((aligned(128)));
	char *two = __builtin_alloca(n + a + b + c + d + e + f + g);

	use(one, two);
	use(two, one);
}

int after_a_call(int n)
{
	int sum = 0;

	for (int i = 0; i < n; i++) {
		char one[512] __attribute__((aligned(256)));

		use(one, &sum);
		sum += one[i];
	}
	return sum;
}
