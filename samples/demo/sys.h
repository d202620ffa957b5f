/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * System calls without libc: a stack that passes through libc cannot be
 * unwound by SFrame as long as libc is built without .sframe.
 */
#ifndef SYS_H
#define SYS_H

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

static inline __attribute__((always_inline)) long
sys_call6(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 asm("r10") = d;
	register long r8 asm("r8") = e;
	register long r9 asm("r9") = f;

	asm volatile("syscall"
		     : "+a"(number)
		     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		     : "rcx", "r11", "memory");
	return number;
}

static inline __attribute__((always_inline)) long
sys_call3(long number, long a, long b, long c)
{
	asm volatile("syscall"
		     : "+a"(number)
		     : "D"(a), "S"(b), "d"(c)
		     : "rcx", "r11", "memory");
	return number;
}

#define sys_call(number) sys_call3(number, 0, 0, 0)
#define sys_open(path, flags, mode) sys_call3(SYS_open, (long)(path), flags, mode)
#define sys_close(fd) sys_call3(SYS_close, fd, 0, 0)
#define sys_read(fd, to, size) sys_call3(SYS_read, fd, (long)(to), size)
#define sys_write(fd, from, size) sys_call3(SYS_write, fd, (long)(from), size)

/* Seconds, from the system call itself and not from the vDSO. */
static inline __attribute__((always_inline)) double sys_now(void)
{
	struct timespec now;

	sys_call3(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&now, 0);
	return now.tv_sec + now.tv_nsec / 1e9;
}

#define SYS_SIGTERM (1UL << (SIGTERM - 1))

/* SIGTERM waits until the program asks for it, so that no handler's frame is in a stack. */
static inline __attribute__((always_inline)) void sys_hold_sigterm(void)
{
	unsigned long signals = SYS_SIGTERM;

	sys_call6(SYS_rt_sigprocmask, SIG_BLOCK, (long)&signals, 0, sizeof(signals), 0, 0);
}

static inline __attribute__((always_inline)) int sys_is_terminated(void)
{
	unsigned long signals = 0;

	sys_call3(SYS_rt_sigpending, (long)&signals, sizeof(signals), 0);
	return !!(signals & SYS_SIGTERM);
}

/* Ends all threads at once, without libc's exit handlers. */
static inline __attribute__((noreturn, always_inline)) void sys_exit(int status)
{
	for (;;)
		sys_call3(SYS_exit_group, status, 0, 0);
}

#endif
