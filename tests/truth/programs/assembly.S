# SPDX-License-Identifier: GPL-2.0-only
#
# What people write by hand and describe rightly: no compiler makes these. See assembly.c.

	.text

# Arguments that are pushed for a call, which comes back with them.
	.globl	by_hand_pushes
	.type	by_hand_pushes, @function
by_hand_pushes:
	.cfi_startproc
	endbr64
	push	%rdi
	.cfi_adjust_cfa_offset 8
	push	%rsi
	.cfi_adjust_cfa_offset 8
	push	%rdx
	.cfi_adjust_cfa_offset 8
	pushfq
	.cfi_adjust_cfa_offset 8
	sub	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	by_hand_sum
	lea	8(%rsp), %rsp
	.cfi_adjust_cfa_offset -8
	popfq
	.cfi_adjust_cfa_offset -8
	add	$24, %rsp
	.cfi_adjust_cfa_offset -24
	ret
	.cfi_endproc
	.size	by_hand_pushes, . - by_hand_pushes

	.type	by_hand_sum, @function
by_hand_sum:
	.cfi_startproc
	mov	24(%rsp), %rax
	add	32(%rsp), %rax
	add	40(%rsp), %rax
	ret
	.cfi_endproc
	.size	by_hand_sum, . - by_hand_sum

# Where am I? A call that is no call.
	.globl	by_hand_where
	.type	by_hand_where, @function
by_hand_where:
	.cfi_startproc
	call	1f
	.cfi_adjust_cfa_offset 8
1:	pop	%rax
	.cfi_adjust_cfa_offset -8
	lea	1b(%rip), %rcx
	sub	%rcx, %rax
	ret
	.cfi_endproc
	.size	by_hand_where, . - by_hand_where

# Two entries, one frame; the second one begins in the middle, and is no function of its own.
	.globl	by_hand_entry, by_hand_other_entry
	.type	by_hand_entry, @function
by_hand_entry:
	.cfi_startproc
	mov	$100, %edi
by_hand_other_entry:
	enter	$32, $0
	.cfi_def_cfa 6, 16
	.cfi_offset 6, -16
	mov	%rdi, -8(%rbp)
	call	by_hand_where
	add	-8(%rbp), %rax
	leave
	.cfi_def_cfa 7, 8
	.cfi_restore 6
	ret
	.cfi_endproc
	.size	by_hand_entry, . - by_hand_entry

# A loop that jumps into the middle of another section, and a way out of it from there.
	.globl	by_hand_split
	.type	by_hand_split, @function
by_hand_split:
	.cfi_startproc
	push	%rbx
	.cfi_def_cfa_offset 16
	.cfi_offset 3, -16
	sub	$128, %rsp
	.cfi_def_cfa_offset 144
	mov	%rdi, %rbx
	xor	%eax, %eax
1:	add	%rbx, %rax
	test	$7, %bl
	jz	by_hand_split_cold
2:	dec	%rbx
	jns	1b
	add	$128, %rsp
	.cfi_def_cfa_offset 16
	pop	%rbx
	.cfi_restore 3
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	by_hand_split, . - by_hand_split

	.section .text.unlikely, "ax", @progbits
	.type	by_hand_split_cold, @function
by_hand_split_cold:
	.cfi_startproc
	.cfi_def_cfa_offset 144
	.cfi_offset 3, -16
	mov	%rax, (%rsp)
	mov	%rbx, %rdi
	call	by_hand_where
	add	(%rsp), %rax
	jmp	2b
	.cfi_endproc
	.size	by_hand_split_cold, . - by_hand_split_cold

# A jump table, and parts of different depth that fall into each other.
	.text
	.globl	by_hand_table
	.type	by_hand_table, @function
by_hand_table:
	.cfi_startproc
	endbr64
	and	$3, %edi
	lea	4f(%rip), %rcx
	movslq	(%rcx,%rdi,4), %rax
	add	%rcx, %rax
	notrack jmp *%rax
0:	push	$1
	.cfi_def_cfa_offset 16
	push	$2
	.cfi_def_cfa_offset 24
	call	by_hand_where
	pop	%rax
	.cfi_def_cfa_offset 16
	pop	%rcx
	.cfi_def_cfa_offset 8
	add	%rcx, %rax
	ret
1:	sub	$4096, %rsp
	.cfi_def_cfa_offset 4104
	orq	$0, (%rsp)
	sub	$904, %rsp
	.cfi_def_cfa_offset 5008
	call	by_hand_where
	add	$5000, %rsp
	.cfi_def_cfa_offset 8
2:	mov	$7, %eax
	ret
3:	jmp	by_hand_where
	.cfi_endproc
	.size	by_hand_table, . - by_hand_table
	.section .rodata
	.align	4
4:	.long	0b - 4b, 1b - 4b, 2b - 4b, 3b - 4b

# Ends with a call that does not come back: to longjmp(), with %rdi and %rsi.
	.text
	.globl	by_hand_never
	.type	by_hand_never, @function
by_hand_never:
	.cfi_startproc
	sub	$24, %rsp
	.cfi_def_cfa_offset 32
	call	by_hand_jump
	.cfi_endproc
	.size	by_hand_never, . - by_hand_never
	.type	by_hand_after, @function
by_hand_after:
	.cfi_startproc
	hlt
	.cfi_endproc
	.size	by_hand_after, . - by_hand_after

	.section .note.GNU-stack, "", @progbits
