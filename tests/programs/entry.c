// SPDX-License-Identifier: GPL-2.0-only
/*
 * usage: entry SECONDS
 *
 * Makes system calls from two stacks in turn. While a system call begins, the kernel's copy of the
 * registers is that of the call before: a stack that has functions of both was walked from there,
 * and is false.
 */
#include <alloca.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>

static inline void system_call(void)
{
	long number = SYS_getppid;

	__asm__ volatile("syscall" : "+a"(number) : : "rcx", "r11", "memory");
}

#define FUNCTION(name, next)							\
	__attribute__((noinline, noclone)) static void name(int size)		\
	{									\
		volatile char *buffer = alloca(size);				\
										\
		/* Else the compiler would make one function of some. */			\
		buffer[0] = __LINE__;						\
		next;								\
		buffer[size - 1] = 0;						\
	}

FUNCTION(left_4, system_call())
FUNCTION(left_3, left_4(16))
FUNCTION(left_2, left_3(16))
FUNCTION(left_1, left_2(size))
FUNCTION(right_8, system_call())
FUNCTION(right_7, right_8(16))
FUNCTION(right_6, right_7(16))
FUNCTION(right_5, right_6(16))
FUNCTION(right_4, right_5(16))
FUNCTION(right_3, right_4(16))
FUNCTION(right_2, right_3(16))
FUNCTION(right_1, right_2(size))

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
	int size = 16, turn;

	do {
		for (turn = 0; turn < 10000; turn++, size = size % 256 + 16) {
			left_1(size);
			right_1(272 - size);
		}
	} while (time(NULL) < end);
	return 0;
}
