/* SPDX-License-Identifier: GPL-2.0-only */
/* x86-64: the functions of arch.h that are in line. */
#ifndef _SFRAME_UNWIND_MACHINE_H
#define _SFRAME_UNWIND_MACHINE_H

#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/uprobes.h>
#include <asm/cpufeature.h>
#include <asm/msr.h>
#include <asm/page_types.h>
#include <asm/processor.h>

/* 6.3: the number of a CPU feature became 32 bits wide. See rust/x86_64/asm/user_access.rs. */
#define SFU_ALTERNATIVE_SIZE (SFU_HAS_LONG_ALTERNATIVES ? 14 : 12)

/* 6.16. */
#ifndef rdmsrq
#define rdmsrq(msr, value) rdmsrl(msr, value)
#endif

/* 6.9: earlier kernels do not use FRED. */
#ifdef X86_FEATURE_FRED
#define SFU_HAS_FRED cpu_feature_enabled(X86_FEATURE_FRED)
#else
#define SFU_HAS_FRED false
#endif

static inline uint64_t sfu_mm_id(const struct mm_struct *mm)
{
	return mm->context.ctx_id;
}

static inline bool is_unwindable(struct pt_regs *regs)
{
	return current->mm && !(current->flags & (PF_KTHREAD | PF_USER_WORKER | PF_VCPU)) &&
	       user_mode(regs) && user_64bit_mode(regs) && !(regs->flags & X86_VM_MASK);
}

static inline bool is_in_system_call(const struct pt_regs *regs)
{
	return regs->orig_ax != -1ul;
}

static inline bool is_virtual_machine(void)
{
	return boot_cpu_has(X86_FEATURE_HYPERVISOR);
}

/*
 * The code that saves a task's registers, set when the module is loaded. No symbol of it is
 * exported. Without FRED it is the section .entry.text: 5 KiB around the entry point of system
 * calls, most of it behind the entry point. Code of other sections may be nearby. For interrupts
 * and exceptions, sync_regs(), which is in another section, copies the registers: it runs on the
 * CPU's entry stack, like the code before it. With FRED it is the page at the one entry point.
 */
extern unsigned long sfu_entry_text, sfu_entry_size;
#define ENTRY_TEXT_BEFORE (4 << 10)
#define ENTRY_TEXT_BEHIND (8 << 10)

struct interrupted {
	unsigned long ip, sp;
};

/*
 * What the processor has written to the end of the NMI's stack: ip, cs, flags, sp and ss; with
 * FRED, two words of information behind them.
 */
static inline struct interrupted interrupted_by_nmi(const unsigned long *end, bool fred)
{
	const unsigned long *frame = end - (fred ? 7 : 5);

	return (struct interrupted){ .ip = frame[0], .sp = frame[3] };
}

/*
 * Whether an NMI that interrupted `ip`, with the kernel's stack pointer at `sp`, may have done so
 * while the kernel saved the registers of the task: then task_pt_regs() has registers of the
 * previous system call, or registers of both. `entry_end` is the end of the CPU's entry stack,
 * which is one page, and `stack_end` the end of the NMI's stack. If an NMI came during this NMI,
 * the frame of the first NMI is lost: then `sp` lies on that stack.
 */
static inline bool is_saving_registers(unsigned long ip, unsigned long sp, unsigned long entry_end,
				       unsigned long stack_end)
{
	return ip - sfu_entry_text < sfu_entry_size || entry_end - sp <= PAGE_SIZE ||
	       stack_end - sp <= EXCEPTION_STKSZ;
}

/*
 * The processor writes the interrupted registers to the end of the NMI's stack. An NMI from user
 * space runs on the task's stack, and its registers are good. Breakpoints and watchpoints in the
 * kernel, which in_nmi() takes for NMIs, run on other stacks: meanwhile the end of the NMI's stack
 * holds the registers of an earlier NMI. With Xen PV, sp0 is the end of the task's stack.
 */
static inline bool nmi_is_saving_registers(void)
{
	struct interrupted at;
	unsigned long end;

	if (cpu_feature_enabled(X86_FEATURE_XENPV))
		return false;
	end = this_cpu_read(cpu_tss_rw.x86_tss.ist[IST_INDEX_NMI]);
	if (end - current_stack_pointer > EXCEPTION_STKSZ)
		return false;
	at = interrupted_by_nmi((const unsigned long *)end, SFU_HAS_FRED);
	return is_saving_registers(at.ip, at.sp, this_cpu_read(cpu_tss_rw.x86_tss.sp0), end);
}

/* copy_from_user_nofault() compares. */
static inline bool sfu_has_own_page_tables(void)
{
	return true;
}

/* The module sees tagged addresses nowhere: no instruction at a tagged address can be executed. */
static inline uint64_t sfu_untagged(uint64_t address)
{
	return address;
}

static inline void sfu_begin_reads(void)
{
}

static inline void sfu_end_reads(void)
{
}

static inline uint64_t sfu_breakpoint_pc(uint64_t pc)
{
	return test_thread_flag(TIF_UPROBE) ? pc - UPROBE_SWBP_INSN_SIZE : pc;
}

static inline uint64_t sfu_vdso_address(const struct mm_struct *mm)
{
	return (uintptr_t)mm->context.vdso;
}

static inline const void *sfu_vdso_image(const struct mm_struct *mm)
{
	return mm->context.vdso_image;
}

#endif
