# SPDX-License-Identifier: GPL-2.0-only OR MIT
#
# The program whose section src/test_vectors.rs contains as bytes.

	.text

	.globl	leaf
	.type	leaf, @function
leaf:	.cfi_startproc
	ret
	.cfi_endproc
	.size	leaf, . - leaf

	.globl	keeps_fp
	.type	keeps_fp, @function
keeps_fp:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset 6, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register 6
	call	elsewhere@PLT
	call	nowhere@PLT
	pop	%rbp
	.cfi_def_cfa 7, 8
	.cfi_restore 6
	ret
	.cfi_endproc
	.size	keeps_fp, . - keeps_fp

	# A function without bytes, at the start of the next function.
	.globl	empty
	.type	empty, @function
empty:	.cfi_startproc
	.cfi_endproc
	.size	empty, . - empty

	# Start offsets of two bytes, words of four.
	.globl	large
	.type	large, @function
large:	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset 6, -16
	sub	$70000, %rsp
	.cfi_def_cfa_offset 70016
	.skip	300, 0x90
	add	$70000, %rsp
	.cfi_def_cfa_offset 16
	pop	%rbp
	.cfi_def_cfa_offset 8
	.cfi_restore 6
	ret
	.cfi_endproc
	.size	large, . - large

	# Bytes that belong to no function.
	.skip	16, 0xcc

	# Words of two bytes.
	.globl	medium
	.type	medium, @function
medium:	.cfi_startproc
	sub	$504, %rsp
	.cfi_def_cfa_offset 512
	add	$504, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	medium, . - medium

	.section .note.GNU-stack, "", @progbits
