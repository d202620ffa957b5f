// SPDX-License-Identifier: GPL-2.0-only
/* x86-64: the functions of arch.h and helpers.h that are not in line. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ptrace.h>
#include <linux/unistd.h>
#include <asm/alternative.h>
#include <asm/extable.h>
#include <asm/msr.h>

#include "../internal.h"

/* What rust/x86_64/asm/user_access.rs writes to the tables of alternatives and of exceptions. */
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
