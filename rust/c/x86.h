/* SPDX-License-Identifier: GPL-2.0-only */
/* The x86-64 part of the hook's handler, in line. */
#ifndef _SFRAME_UNWIND_X86_H
#define _SFRAME_UNWIND_X86_H

#include <linux/ptrace.h>
#include <linux/sched.h>

/*
 * Whether the module can walk a stack with these registers. Tasks without user memory, tasks with 32-bit
 * or VM86 stacks, and guests (PF_VCPU: their memory is not the task's; perf_guest_state() is not exported)
 * are left to the kernel. Any context.
 */
static inline bool is_unwindable(const struct pt_regs *regs)
{
	return current->mm && !(current->flags & (PF_KTHREAD | PF_USER_WORKER | PF_VCPU)) &&
	       user_mode((struct pt_regs *)regs) && user_64bit_mode((struct pt_regs *)regs) &&
	       !(regs->flags & X86_VM_MASK);
}

#endif
