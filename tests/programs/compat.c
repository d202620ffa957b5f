// SPDX-License-Identifier: GPL-2.0-only
/*
 * A 32-bit or x32 program with frame pointers and without libc, which the toolchain here need not
 * have.
 *
 * usage: compat-32 [SECONDS]
 */

#if __SIZEOF_POINTER__ != 4
#error "compat.c is for -m32 and -mx32"
#endif

#ifdef __x86_64__
#define X32 0x40000000
static long call(long number, long a, long b)
{
	long result;

	asm volatile("syscall" : "=a"(result) : "0"((number ? 228 : 60) | X32), "D"(a), "S"(b)
		     : "rcx", "r11", "memory");
	return result;
}
#else
static long call(long number, long a, long b)
{
	long result;

	asm volatile("int $0x80" : "=a"(result) : "0"(number ? 403 : 1), "b"(a), "c"(b) : "memory");
	return result;
}
#endif

#define DEPTH 8

/*
 * The seconds of the monotonic clock. Number 403 is clock_gettime64: not all kernels have its
 * predecessor.
 */
static unsigned int now(void)
{
	unsigned int time[4] = { 0 };

	call(1, 1, (long)time);
	return time[0];
}

static volatile unsigned int work;

/* The loop is long, so that few samples are of system calls. */
__attribute__((noipa)) static void spin(unsigned int end)
{
	while (now() < end)
		for (int i = 0; i < 3000000; i++)
			work += i;
}

__attribute__((noipa)) static void down(int depth, unsigned int end)
{
	if (depth == 0)
		spin(end);
	else
		down(depth - 1, end);
	work++;
}

__attribute__((noipa, used)) static void start(unsigned int *stack)
{
	unsigned int seconds = 0;

	/* argc and argv are words of the program's size. */
	if (stack[0] > 1)
		for (const char *digit = (const char *)stack[2]; *digit; digit++)
			seconds = 10 * seconds + (*digit - '0');
	down(DEPTH, now() + seconds);
	call(0, 0, 0);
}

#ifdef __x86_64__
asm(".globl _start\n_start: xor %ebp, %ebp; mov %esp, %edi; and $-16, %esp; call start");
#else
asm(".globl _start\n_start: xor %ebp, %ebp; mov %esp, %eax; and $-16, %esp;"
	" push %eax; push %eax; push %eax; push %eax; call start");
#endif
