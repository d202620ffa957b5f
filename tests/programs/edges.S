/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * usage: edges 0|1|2
 *
 * Stays in a function whose return address on the stack is 0: the first byte of the program's code,
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
	hlt
	.cfi_endproc

spin:
	.cfi_startproc
	movq %rdx, (%rsp)
1:	pause
	jmp 1b
	.cfi_endproc

last:
	.cfi_startproc
	.fill 0x1000 - (. - _start), 1, 0x90
	.cfi_endproc

	.section .note.GNU-stack, "", @progbits
