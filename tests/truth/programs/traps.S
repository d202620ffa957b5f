# SPDX-License-Identifier: GPL-2.0-only
#
# Functions that are interrupted between any two of their instructions: by `ud2`, whose handler
# continues after it. So signals come at fixed places: before the frame exists, while it is made,
# and while it is removed. Each function returns its argument plus one.

	.text

# Pushes, and a frame below them.
	.globl	traps_pushed
	.type	traps_pushed, @function
traps_pushed:
	.cfi_startproc
	ud2
	push	%rbx
	.cfi_def_cfa_offset 16
	.cfi_offset 3, -16
	ud2
	push	%rbp
	.cfi_def_cfa_offset 24
	.cfi_offset 6, -24
	ud2
	xor	%ebp, %ebp
	ud2
	sub	$24, %rsp
	.cfi_def_cfa_offset 48
	ud2
	mov	%rdi, %rbx
	ud2
	call	traps_leaf
	ud2
	cmp	%rax, %rbx
	je	1f
	ud2
	add	$24, %rsp
	.cfi_remember_state
	.cfi_def_cfa_offset 24
	ud2
	pop	%rbp
	.cfi_restore 6
	.cfi_def_cfa_offset 16
	ud2
	pop	%rbx
	.cfi_restore 3
	.cfi_def_cfa_offset 8
	ud2
	ret
	.cfi_restore_state
1:	mov	$-1, %rax
	add	$24, %rsp
	.cfi_def_cfa_offset 24
	pop	%rbp
	.cfi_restore 6
	.cfi_def_cfa_offset 16
	pop	%rbx
	.cfi_restore 3
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	traps_pushed, . - traps_pushed

# A frame pointer.
	.globl	traps_framed
	.type	traps_framed, @function
traps_framed:
	.cfi_startproc
	ud2
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset 6, -16
	ud2
	mov	%rsp, %rbp
	.cfi_def_cfa_register 6
	ud2
	sub	$40, %rsp
	ud2
	and	$-64, %rsp
	ud2
	call	traps_leaf
	ud2
	leave
	.cfi_restore 6
	.cfi_def_cfa 7, 8
	ud2
	ret
	.cfi_endproc
	.size	traps_framed, . - traps_framed

# No frame, and values below the stack pointer, which the handler's frame has to spare.
	.globl	traps_leaf
	.type	traps_leaf, @function
traps_leaf:
	.cfi_startproc
	ud2
	mov	%rdi, -8(%rsp)
	mov	%rdi, -128(%rsp)
	ud2
	mov	-8(%rsp), %rax
	ud2
	cmp	-128(%rsp), %rax
	jne	1f
	lea	1(%rax), %rax
	ud2
	ret
1:	xor	%eax, %eax
	ret
	.cfi_endproc
	.size	traps_leaf, . - traps_leaf

# The first instruction of a function faults, directly after the last call of the function before
# it: nothing may be subtracted from an interrupted address.
	.globl	traps_before
	.type	traps_before, @function
traps_before:
	.cfi_startproc
	sub	$72, %rsp
	.cfi_def_cfa_offset 80
	call	traps_first
	add	$72, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	traps_before, . - traps_before
	.type	traps_deeper, @function
traps_deeper:
	.cfi_startproc
	sub	$200, %rsp
	.cfi_def_cfa_offset 208
	hlt
	.cfi_endproc
	.size	traps_deeper, . - traps_deeper
	.globl	traps_first
	.type	traps_first, @function
traps_first:
	.cfi_startproc
	ud2
	lea	1(%rdi), %rax
	ret
	.cfi_endproc
	.size	traps_first, . - traps_first

	.section .note.GNU-stack, "", @progbits
