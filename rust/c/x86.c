// SPDX-License-Identifier: GPL-2.0-only
/*
 * Registers, uprobes and vDSO of an x86-64 task. The functions depend on the architecture and need the kernel's
 * layouts. x86.h has the functions that are in line.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/uprobes.h>
#include <linux/unistd.h>
#include <asm/alternative.h>
#include <asm/extable.h>
#include <asm/irq_regs.h>
#include <asm/msr.h>

#include "internal.h"

/* What rust/sys/x86_64/user_access.rs writes to the tables of alternatives and of exceptions. */
static_assert(sizeof(struct alt_instr) == SFU_ALTERNATIVE_SIZE);
static_assert(sizeof(struct exception_table_entry) == 12 && EX_TYPE_UACCESS == 3);
static_assert(X86_FEATURE_SMAP == 9 * 32 + 20);

unsigned long sfu_entry_text;

void sfu_entry_text_find(void)
{
	rdmsrq(MSR_LSTAR, sfu_entry_text);
}

bool sfu_in_sigreturn(const void *regs)
{
	return ((const struct pt_regs *)regs)->orig_ax == __NR_rt_sigreturn;
}

bool sfu_register(const void *regs, unsigned int number, uint64_t *value)
{
	/* In the order of DWARF's register numbers, by the psABI. */
	static const unsigned char places[] = {
		offsetof(struct pt_regs, ax),  offsetof(struct pt_regs, dx),
		offsetof(struct pt_regs, cx),  offsetof(struct pt_regs, bx),
		offsetof(struct pt_regs, si),  offsetof(struct pt_regs, di),
		offsetof(struct pt_regs, bp),  offsetof(struct pt_regs, sp),
		offsetof(struct pt_regs, r8),  offsetof(struct pt_regs, r9),
		offsetof(struct pt_regs, r10), offsetof(struct pt_regs, r11),
		offsetof(struct pt_regs, r12), offsetof(struct pt_regs, r13),
		offsetof(struct pt_regs, r14), offsetof(struct pt_regs, r15),
		offsetof(struct pt_regs, ip),
	};

	if (number >= ARRAY_SIZE(places))
		return false;
	*value = *(const unsigned long *)(regs + places[number]);
	return true;
}

/* More return instances than the kernel lets a task have. */
#define URETPROBES 128

/*
 * The task itself writes its uprobe state, in an order that is consistent for an interrupt, and frees it
 * itself or after a grace period.
 */
uint64_t sfu_uprobe_orig_pc(uint64_t pc)
{
	const struct uprobe_task *utask = READ_ONCE(current->utask);
	uint64_t offset;

	if (!utask || !READ_ONCE(utask->active_uprobe))
		/* The task hit the breakpoint, and the kernel has not yet moved the PC back to it. */
		return test_thread_flag(TIF_UPROBE) ? pc - UPROBE_SWBP_INSN_SIZE : pc;
	offset = pc - READ_ONCE(utask->xol_vaddr);
	return offset < UPROBE_XOL_SLOT_BYTES ? READ_ONCE(utask->vaddr) + offset : pc;
}

/*
 * Whether the list of uretprobes has no instance that was freed: see SFU_PEEK(). Only the task itself changes the
 * list, in the kernel. So nobody does while an interrupt has interrupted the task in user space. (For NMIs nothing
 * tells this for sure: some exceptions count as NMIs.)
 */
static bool has_whole_list(void)
{
	struct pt_regs *regs;

	if (!SFU_BEFORE(6, 11))
		return true;
	if (!in_hardirq() || in_nmi())
		return false;
	regs = get_irq_regs();
	return regs && user_mode(regs);
}

bool sfu_uretprobe_orig_ra(uint64_t slot, uint64_t *address)
{
	const struct uprobe_task *utask = READ_ONCE(current->utask);
	const struct return_instance *instance;
	bool found = false;
	int limit = URETPROBES;

	if (!utask || !has_whole_list())
		return false;
	rcu_read_lock();
	for (instance = READ_ONCE(utask->return_instances); instance && limit; limit--) {
		if (SFU_PEEK(instance->stack) == slot) {
			*address = SFU_PEEK(instance->orig_ret_vaddr);
			found = true;
			break;
		}
		instance = SFU_PEEK(instance->next);
	}
	rcu_read_unlock();
	return found;
}

/*
 * The vm_private_data of a vDSO's mapping, and the image of the vDSO. A task may unmap the vDSO and
 * map something else there, or another image.
 */
static uint64_t vdso_special;
static const void *vdso_image;

uint64_t sfu_vdso(void)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	uint64_t address = 0;

	if (mmap_read_lock_killable(mm))
		return 0;
	vma = vma_lookup(mm, (uintptr_t)mm->context.vdso);
	if (vma && vma->vm_start == (uintptr_t)mm->context.vdso && !vma->vm_file && vma->vm_private_data) {
		address = vma->vm_start;
		WRITE_ONCE(vdso_image, mm->context.vdso_image);
		WRITE_ONCE(vdso_special, (uintptr_t)vma->vm_private_data);
	}
	mmap_read_unlock(mm);
	return address;
}

bool sfu_is_vdso(const struct vm_area_struct *vma, unsigned long start)
{
	const struct mm_struct *mm = current->mm;
	uint64_t special = (uintptr_t)READ_ONCE(vma->vm_private_data);

	return special && special == READ_ONCE(vdso_special) && start == (uintptr_t)mm->context.vdso &&
	       mm->context.vdso_image == READ_ONCE(vdso_image);
}
