/* SPDX-License-Identifier: GPL-2.0-only */
/* The x86-64 part of the hook's handler, in line. */
#ifndef _SFRAME_UNWIND_X86_H
#define _SFRAME_UNWIND_X86_H

#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <asm/cpufeature.h>
#include <asm/page_types.h>
#include <asm/processor.h>

#include "compat.h"

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

/*
 * The entry point of system calls, set when the module is loaded. All code that saves a task's registers lies
 * around it, in the section .entry.text, of which no symbol is exported: 5 KiB, most of it behind the entry
 * point. Code of other sections may be nearby.
 */
extern unsigned long sfu_entry_text;
#define ENTRY_TEXT_BEFORE (4 << 10)
#define ENTRY_TEXT_BEHIND (8 << 10)

/*
 * Whether an NMI that interrupted `ip`, with the kernel's stack pointer at `sp`, may have done so while the
 * registers of the task were being saved: then task_pt_regs() has those of the system call before, or some of
 * each. `stack_end` is the end of the NMI's stack. If an NMI came during this NMI, the frame of the first one
 * is lost: then `sp` lies on that stack.
 */
static inline bool is_saving_registers(unsigned long ip, unsigned long sp, unsigned long stack_end)
{
	return ip - sfu_entry_text + ENTRY_TEXT_BEFORE < ENTRY_TEXT_BEFORE + ENTRY_TEXT_BEHIND ||
	       stack_end - sp <= EXCEPTION_STKSZ;
}

/*
 * The same of the NMI that this code runs in, where `regs` are the task's. The processor writes the interrupted
 * registers to the end of the NMI's stack; also if it interrupted user space, where `ip` is low.
 * Processors with FRED use no such stack: there nothing is known.
 */
static inline bool nmi_is_saving_registers(void)
{
	unsigned long end;
	const unsigned long *frame;

	if (SFU_HAS_FRED)
		return false;
	end = this_cpu_read(cpu_tss_rw.x86_tss.ist[IST_INDEX_NMI]);
	frame = (const unsigned long *)end - 5;
	return is_saving_registers(frame[0], frame[3], end);
}

#endif
