/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an architecture provides to the C files, in a folder that Kbuild adds to the places of
 * headers. machine.h there has the functions in line, and machine.c has the others. rust/arch.rs
 * lists all parts of an architecture.
 */
#ifndef _SFRAME_UNWIND_ARCH_H
#define _SFRAME_UNWIND_ARCH_H

#include <linux/mm_types.h>
#include <linux/ptrace.h>
#include <linux/types.h>

#include "compat.h"

/*
 * The ID of a mm. No other mm has this number, and no earlier mm had it. The ID of a mm may change:
 * then the module forgets the ranges and regions of the mm. Any context.
 */
static inline uint64_t sfu_mm_id(const struct mm_struct *mm);

/*
 * Whether the module can walk a stack with these registers. Tasks without user memory, tasks whose
 * stack is of another ABI, and guests (PF_VCPU: their memory is not the task's; perf_guest_state()
 * is not exported) are left to the kernel. Any context.
 */
static inline bool is_unwindable(struct pt_regs *regs);

/*
 * Whether a user task with these registers is in a system call. Then the PC is right behind the
 * system call, where only the code tells the rule. Any context.
 */
static inline bool is_in_system_call(const struct pt_regs *regs);

/*
 * Whether the NMI that this code runs in interrupted the kernel while it saved the task's
 * registers: then task_pt_regs() has registers of the previous system call, or registers of both.
 */
static inline bool nmi_is_saving_registers(void);
/* Prepares nmi_is_saving_registers(). Called at module load. */
void sfu_entry_text_find(void);

/* Whether the kernel knows that it runs on a virtual machine. */
static inline bool is_virtual_machine(void);

/*
 * Whether the page tables of the current task are loaded. True, too, where
 * copy_from_user_nofault() itself compares the page tables. The task has a mm. Any context.
 */
static inline bool sfu_has_own_page_tables(void);

/* A user address without a tag. Any value; any context. */
static inline uint64_t sfu_untagged(uint64_t address);

/* Around reads of user memory, with page faults off. The code in between does not sleep. */
static inline void sfu_begin_reads(void);
static inline void sfu_end_reads(void);

/*
 * The address of the breakpoint of a uprobe that the current task has hit, if the kernel has not
 * yet moved the task's user PC `pc` back to it; else `pc`. Any context.
 */
static inline uint64_t sfu_breakpoint_pc(uint64_t pc);

/*
 * The run-time address of a mm's vDSO, and a value that differs between images of the vDSO. Any
 * context.
 */
static inline uint64_t sfu_vdso_address(const struct mm_struct *mm);
static inline const void *sfu_vdso_image(const struct mm_struct *mm);

/* For sfu_register() and sfu_in_sigreturn() of machine.c see helpers.h. */

#include "machine.h"

#endif
