# SPDX-License-Identifier: GPL-2.0-only
#
# Calls a function (%rdi) with %rsi on the stack that ends at %rdx; the frame pointer leads back.

	.text
	.globl	on_stack
	.type	on_stack, @function
on_stack:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset 6, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register 6
	mov	%rdx, %rsp
	mov	%rdi, %rax
	mov	%rsi, %rdi
	call	*%rax
	mov	%rbp, %rsp
	pop	%rbp
	.cfi_restore 6
	.cfi_def_cfa 7, 8
	ret
	.cfi_endproc
	.size	on_stack, . - on_stack

	.section .note.GNU-stack, "", @progbits
