/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A function that never returns says that rbp is lost, and overwrites rbp. rbp then leads to a
 * frame with the return address 0x401f00, which is in a function that nobody calls. Its true
 * caller, at 0x401e00, finds its own frame by rbp. Without libc.
 */
	.globl _start
	.text
_start:
	.cfi_startproc
	.cfi_undefined rip
	pushq $0x401f00
	pushq $0
	movq %rsp, %rbx
	call outer
	hlt
	.cfi_endproc

worker:
	.cfi_startproc
	.cfi_undefined rbp
	subq $24, %rsp
	.cfi_adjust_cfa_offset 24
	movq %rbx, %rbp
	call spin
	hlt
	.cfi_endproc

spin:
	.cfi_startproc
1:	pause
	jmp 1b
	.cfi_endproc

	.org 0xdf0, 0xcc
outer:
	.cfi_startproc
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register rbp
	.org 0xdfb, 0x90
	call worker
	hlt
	.cfi_endproc

	.org 0xef0, 0xcc
never:
	.cfi_startproc
	.org 0xefb, 0x90
	call worker
	hlt
	.cfi_endproc

	.section .note.GNU-stack, "", @progbits
