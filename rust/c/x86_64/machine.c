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
static_assert(sizeof(struct exception_table_entry) == 12 && EX_TYPE_UACCESS == 3 &&
	      EX_TYPE_DEFAULT_MCE_SAFE == 14);
static_assert(X86_FEATURE_SMAP == 9 * 32 + 20);

unsigned long sfu_entry_text, sfu_entry_size;

void sfu_entry_text_find(void)
{
	unsigned long entry;

#ifdef X86_FEATURE_FRED
	if (SFU_HAS_FRED) {
		rdmsrq(MSR_IA32_FRED_CONFIG, entry);
		sfu_entry_text = entry & PAGE_MASK;
		sfu_entry_size = PAGE_SIZE;
		return;
	}
#endif
	rdmsrq(MSR_LSTAR, entry);
	sfu_entry_text = entry - ENTRY_TEXT_BEFORE;
	sfu_entry_size = ENTRY_TEXT_BEFORE + ENTRY_TEXT_BEHIND;
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

#ifdef CONFIG_KUNIT
bool sfu_test_saving_registers(void)
{
	const unsigned long entry_end = 0xfffffe0000003000, nmi_end = 0xfffffe0000009000;
	const unsigned long task = 0xffffc90000123000, text = sfu_entry_text + (1 << 20);
	const struct {
		unsigned long ip, sp;
		bool saves;
	} cases[] = {
		{ text, task, false },
		{ sfu_entry_text, task, true },
		{ sfu_entry_text + sfu_entry_size - 1, task, true },
		{ sfu_entry_text + sfu_entry_size, task, false },
		/* sync_regs() and the code before it. */
		{ text, entry_end - 200, true },
		{ text, entry_end - PAGE_SIZE - 8, false },
		{ text, entry_end + 8, false },
		/* An NMI in an NMI. */
		{ text, nmi_end - 200, true },
		{ text, nmi_end - EXCEPTION_STKSZ - 8, false },
	};
	/* The end of the NMI's stack, as the processor has written it. */
	const unsigned long iret[] = { 0, 0, 0, text, __KERNEL_CS, 2, task, __KERNEL_DS };
	const unsigned long fred[] = { -1ul, text, __KERNEL_CS, 2, task, __KERNEL_DS, 0, 0 };
	const struct interrupted at[] = {
		interrupted_by_nmi(iret + ARRAY_SIZE(iret), false),
		interrupted_by_nmi(fred + ARRAY_SIZE(fred), true),
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(at); i++)
		if (at[i].ip != text || at[i].sp != task)
			return false;
	for (i = 0; i < ARRAY_SIZE(cases); i++)
		if (is_saving_registers(cases[i].ip, cases[i].sp, entry_end, nmi_end) !=
		    cases[i].saves)
			return false;
	return true;
}
#endif
