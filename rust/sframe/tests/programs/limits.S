# SPDX-License-Identifier: GPL-2.0-only OR MIT
#
# Functions right below, at and above the sizes where a row's start offset becomes wider, frames
# right below, at and above the sizes where a row's words become wider, and some corner cases.

	.text

	.macro	sized name, size
	.globl	\name
	.type	\name, @function
\name:	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset 6, -16
	.skip	\size - 3, 0x90
	pop	%rbp
	.cfi_def_cfa_offset 8
	.cfi_restore 6
	ret
	.cfi_endproc
	.size	\name, . - \name
	.endm

	sized	size_255, 255
	sized	size_256, 256
	sized	size_257, 257
	sized	size_65535, 65535
	sized	size_65536, 65536
	sized	size_65537, 65537

	.macro	framed name, cfa
	.globl	\name
	.type	\name, @function
\name:	.cfi_startproc
	sub	$\cfa - 8, %rsp
	.cfi_def_cfa_offset \cfa
	nop
	add	$\cfa - 8, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	\name, . - \name
	.endm

	framed	frame_127, 127
	framed	frame_128, 128
	framed	frame_32767, 32767
	framed	frame_32768, 32768
	framed	frame_huge, 0x7fffff00

	# A frame pointer, saved far from the CFA: the wider of a row's two words sets the size of
	# both.
	.globl	far_fp
	.type	far_fp, @function
far_fp:	.cfi_startproc
	sub	$400, %rsp
	.cfi_def_cfa_offset 408
	mov	%rbp, (%rsp)
	.cfi_offset 6, -408
	nop
	mov	(%rsp), %rbp
	.cfi_restore 6
	add	$400, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	far_fp, . - far_fp

	# A function without bytes, at the start of the next function.
	.globl	empty
	.type	empty, @function
empty:	.cfi_startproc
	.cfi_endproc
	.size	empty, . - empty

	.globl	after_empty
	.type	after_empty, @function
after_empty:
	.cfi_startproc
	ret
	.cfi_endproc
	.size	after_empty, . - after_empty

	# Bytes that belong to no function.
	.skip	32, 0xcc

	.globl	before_empty
	.type	before_empty, @function
before_empty:
	.cfi_startproc
	push	%rbx
	.cfi_def_cfa_offset 16
	pop	%rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	before_empty, . - before_empty

	# A function without bytes, at the end of the section.
	.globl	last_empty
	.type	last_empty, @function
last_empty:
	.cfi_startproc
	.cfi_endproc
	.size	last_empty, . - last_empty

	.section .note.GNU-stack, "", @progbits
