// SPDX-License-Identifier: GPL-2.0-only
/* AArch64: functions of helpers.h, and functions that rust/aarch64 calls. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/unistd.h>
#include <asm/asm-extable.h>
#include <asm/extable.h>
#include <asm/memory.h>

#include "../internal.h"

/* What rust/aarch64/asm/get_user.rs writes to the table of exceptions. */
static_assert(sizeof(struct exception_table_entry) == 12 && EX_TYPE_UACCESS_ERR_ZERO == 2 &&
	      EX_DATA_REG_ERR_SHIFT == 0 && EX_DATA_REG_ZERO_SHIFT == 5);

void sfu_count(uint64_t *counter, uint64_t amount)
{
	this_cpu_add(*(uint64_t __percpu *)counter, amount);
}

uint64_t sfu_code_mask(void)
{
	return GENMASK_ULL(vabits_actual - 1, 0);
}

/* See nmi_is_saving_registers(). */
void sfu_entry_text_find(void)
{
}

bool sfu_in_sigreturn(const void *regs)
{
	return ((const struct pt_regs *)regs)->syscallno == __NR_rt_sigreturn;
}

bool sfu_register(const void *regs, unsigned int number, uint64_t *value)
{
	const struct user_pt_regs *all = &((const struct pt_regs *)regs)->user_regs;

	/* In the order of DWARF's register numbers: x0 to x30, the stack pointer, the PC. */
	static_assert(offsetof(struct user_pt_regs, sp) == 31 * 8 &&
		      offsetof(struct user_pt_regs, pc) == 32 * 8);
	if (number > 32)
		return false;
	*value = ((const uint64_t *)all)[number];
	return true;
}

#ifdef CONFIG_KUNIT
/* See nmi_is_saving_registers(). */
bool sfu_test_saving_registers(void)
{
	return true;
}
#endif
