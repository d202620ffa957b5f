/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * usage: edges 0|1|2
 *
 * Runs in a function whose return address on the stack is 0: the first byte of the program's code,
 * with no code before it; 1: an address in the code; 2: after the first byte after the code. The
 * code fills one page, and is at 0x401000. Without libc.
 */
	.globl _start
	.text
_start:
	.cfi_startproc
	.cfi_undefined rip
	movq 16(%rsp), %rax
	movzbl (%rax), %eax
	movl $_start, %edx
	cmpb $'0', %al
	je 1f
	movl $_start + 0xf00, %edx
	cmpb $'1', %al
	je 1f
	movl $_start + 0x1001, %edx
1:	call spin
	movl $60, %eax
	xorl %edi, %edi
	syscall
	hlt
	.cfi_endproc

spin:
	.cfi_startproc
	movq (%rsp), %r8
	movq %rdx, (%rsp)
	movl $400000000, %ecx
1:	decl %ecx
	jnz 1b
	movq %r8, (%rsp)
	ret
	.cfi_endproc

last:
	.cfi_startproc
	.fill 0x1000 - (. - _start), 1, 0x90
	.cfi_endproc

	.section .note.GNU-stack, "", @progbits
