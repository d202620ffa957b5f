/* SPDX-License-Identifier: GPL-2.0-only */
/* The x86-64 part of the C files, in line. x86.c has the functions that need not be in line. */
#ifndef _SFRAME_UNWIND_X86_H
#define _SFRAME_UNWIND_X86_H

#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <asm/cpufeature.h>
#include <asm/page_types.h>
#include <asm/processor.h>

#include "compat.h"

/* The ID of a mm, which no other mm has. Any context. */
static inline uint64_t sfu_mm_id(const struct mm_struct *mm)
{
	return mm->context.ctx_id;
}

/* Whether a VMA of the current task that starts at `start` is the vDSO. Any context. */
bool sfu_is_vdso(const struct vm_area_struct *vma, unsigned long start);

/*
 * Whether the module can walk a stack with these registers. Tasks without user memory, tasks with 32-bit
 * or VM86 stacks, and guests (PF_VCPU: their memory is not the task's; perf_guest_state() is not exported)
 * are left to the kernel. Any context.
 */
static inline bool is_unwindable(struct pt_regs *regs)
{
	return current->mm && !(current->flags & (PF_KTHREAD | PF_USER_WORKER | PF_VCPU)) &&
	       user_mode(regs) && user_64bit_mode(regs) && !(regs->flags & X86_VM_MASK);
}

/*
 * Whether a user task with these registers is in a system call. Then the PC is right behind the system call, where only
 * the code tells the rule. Any context.
 */
static inline bool is_in_system_call(const struct pt_regs *regs)
{
	return regs->orig_ax != -1ul;
}

/*
 * The entry point of system calls, set when the module is loaded. All code that saves a task's registers lies
 * around it, in the section .entry.text: 5 KiB, most of it behind the entry point. No symbol of this section is
 * exported. Code of other sections may be nearby.
 */
extern unsigned long sfu_entry_text;
/* Sets `sfu_entry_text`. Called at module load. */
void sfu_entry_text_find(void);
#define ENTRY_TEXT_BEFORE (4 << 10)
#define ENTRY_TEXT_BEHIND (8 << 10)

/*
 * Whether an NMI that interrupted `ip`, with the kernel's stack pointer at `sp`, may have done so while the
 * kernel saved the registers of the task: then task_pt_regs() has registers of the previous system call, or
 * registers of both. `stack_end` is the end of the NMI's stack. If an NMI came during this NMI, the frame of
 * the first NMI is lost: then `sp` lies on that stack.
 */
static inline bool is_saving_registers(unsigned long ip, unsigned long sp, unsigned long stack_end)
{
	return ip - sfu_entry_text + ENTRY_TEXT_BEFORE < ENTRY_TEXT_BEFORE + ENTRY_TEXT_BEHIND ||
	       stack_end - sp <= EXCEPTION_STKSZ;
}

/*
 * Whether the NMI that this code runs in interrupted such code. `regs` are the task's registers. The processor
 * writes the interrupted registers to the end of the NMI's stack. If user space was interrupted, `ip` is low.
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
