/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Code without rows, in which a jump follows the byte of `pop %rbp`, the last one of another
 * instruction. The word on top of the stack is an old return address, 0x401f00. Without libc.
 */
	.globl _start
	.text
_start:
	xorl %ebp, %ebp
	call outer
	hlt

outer:
	pushq %rbx
	call rowless
	hlt

helper:
	ret

	.org 0xef0, 0xcc
	.type rowless, @function
rowless:
	pushq %rbp
	movq %rsp, %rbp
	subq $32, %rsp
	.org 0xefb, 0x90
	call helper
	subq $8, %rsp
	leaq words, %rdx
	# An emulator takes interrupts where a jump leads to, so to the second jump.
1:	testq %rdx, %rdx
	jnz 2f
	movq 0x5d(%rdx), %rax
2:	jmp 1b
	.size rowless, . - rowless

	.bss
words:	.skip 128
	.section .note.GNU-stack, "", @progbits
