# SPDX-License-Identifier: GPL-2.0-only
#
# What compilers seldom write: an outermost frame, a trampoline, a function of no size, and a state
# that is remembered where it has only just been set.

	.text

	.globl	corner_outermost
	.type	corner_outermost, @function
corner_outermost:
	.cfi_startproc
	.cfi_undefined 16
	xor	%ebp, %ebp
	call	corner_trampoline
	hlt
	.cfi_endproc
	.size	corner_outermost, . - corner_outermost

	.globl	corner_trampoline
	.type	corner_trampoline, @function
corner_trampoline:
	.cfi_startproc
	.cfi_signal_frame
	push	%rbx
	.cfi_def_cfa_offset 16
	.cfi_offset 3, -16
	call	corner_empty
	pop	%rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	corner_trampoline, . - corner_trampoline

	.globl	corner_empty
	.type	corner_empty, @function
corner_empty:
	.cfi_startproc
	.cfi_endproc
	.size	corner_empty, . - corner_empty

	.globl	corner_frame
	.type	corner_frame, @function
corner_frame:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset 6, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register 6
	.cfi_remember_state
	leave
	.cfi_restore 6
	.cfi_def_cfa 7, 8
	ret
	.cfi_restore_state
	ud2
	.cfi_endproc
	.size	corner_frame, . - corner_frame

	.section .note.GNU-stack, "", @progbits
