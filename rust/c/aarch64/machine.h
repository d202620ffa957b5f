/* SPDX-License-Identifier: GPL-2.0-only */
/* AArch64: the functions of arch.h that are in line. */
#ifndef _SFRAME_UNWIND_MACHINE_H
#define _SFRAME_UNWIND_MACHINE_H

#include <linux/mm.h>
#include <linux/mm_types.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/uprobes.h>
#include <asm/alternative.h>
#include <asm/memory.h>
#include <asm/mmu.h>
#include <asm/pgtable.h>
#include <asm/sysreg.h>
#include <asm/virt.h>

/* The Rust part has constants for these. */
#if PAGE_SIZE != 4096 || defined(CONFIG_CPU_BIG_ENDIAN)
#error "sframe_unwind needs a little-endian kernel with pages of 4 KiB"
#endif

/* rust/aarch64/asm/get_user.rs reads by the task's own page tables. */
#ifdef CONFIG_ARM64_SW_TTBR0_PAN
#error "sframe_unwind cannot read user memory of a kernel with ARM64_SW_TTBR0_PAN"
#endif

/*
 * 6.2: before, without live patches, ftrace_instruction_pointer_set() does nothing. ftrace
 * continues at the PC in the registers that it gives to each handler.
 */
#if !SFU_HAS_FTRACE_REGS_FUNCTIONS
#undef ftrace_regs_set_instruction_pointer
#define ftrace_regs_set_instruction_pointer(fregs, target) ((fregs)->regs.pc = (target))
#endif

/*
 * The ASID and its generation. Two mms never have the same number: an ASID is used again only in a
 * new generation. A mm gets a new number with a new generation. Then caches of the mm are
 * forgotten, and regions of the mm are not found any more; walks do not step through them anyway.
 */
static inline uint64_t sfu_mm_id(const struct mm_struct *mm)
{
	return atomic64_read(&mm->context.id);
}

static inline bool is_unwindable(struct pt_regs *regs)
{
	return current->mm && !(current->flags & (PF_KTHREAD | PF_USER_WORKER | PF_VCPU)) &&
	       user_mode(regs) && !compat_user_mode(regs);
}

static inline bool is_in_system_call(const struct pt_regs *regs)
{
	return in_syscall(regs);
}

/*
 * A kernel on a virtual machine runs at EL1. So does the kernel of a machine without VHE, whose
 * walks then have no limit of time.
 */
static inline bool is_virtual_machine(void)
{
	return !is_kernel_in_hyp_mode();
}

/*
 * Interrupts and pseudo-NMIs are masked at each entry to the kernel, until the entry code has saved
 * all registers. What else counts as a NMI (SError, SDEI) takes no samples.
 */
static inline bool nmi_is_saving_registers(void)
{
	return false;
}

/* nmi_uaccess_okay() is always true: the page tables for user addresses have to be compared. */
static inline bool sfu_has_own_page_tables(void)
{
	uint64_t own = phys_to_ttbr(virt_to_phys(current->mm->pgd));

	/* Without the ASID, and without the bit that says that CPUs share the tables. */
	return !((read_sysreg(ttbr0_el1) ^ own) & GENMASK_ULL(47, 1));
}

static inline uint64_t sfu_untagged(uint64_t address)
{
	return untagged_addr(address);
}

/*
 * Without checks of the memory's tags (MTE): a check that fails would end the task later. The tags
 * of an address that a walk reads may be wrong, because the walk computes the address.
 */
static inline void sfu_begin_reads(void)
{
	asm volatile(ALTERNATIVE("nop", SET_PSTATE_TCO(1), ARM64_MTE));
}

static inline void sfu_end_reads(void)
{
	asm volatile(ALTERNATIVE("nop", SET_PSTATE_TCO(0), ARM64_MTE));
}

/* The PC of a breakpoint is the breakpoint's address. */
static inline uint64_t sfu_breakpoint_pc(uint64_t pc)
{
	return pc;
}

static inline uint64_t sfu_vdso_address(const struct mm_struct *mm)
{
	return (uintptr_t)mm->context.vdso;
}

/* There is one image. */
static inline const void *sfu_vdso_image(const struct mm_struct *mm)
{
	return NULL;
}

/*
 * Of rust/aarch64/asm. sfu_count() adds to a per-CPU number. sfu_code_mask() returns the bits of a
 * user address: a pointer authentication code has the others. Any context.
 */
void sfu_count(uint64_t *counter, uint64_t amount);
uint64_t sfu_code_mask(void);

#endif
