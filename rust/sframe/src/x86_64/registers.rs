// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The DWARF numbers of AMD64's registers ("DWARF Register Number Mapping" in the System V ABI,
//! AMD64 supplement).

/// %rax.
pub const RAX: u8 = 0;
/// %rdx.
pub const RDX: u8 = 1;
/// %rcx.
pub const RCX: u8 = 2;
/// %rbx.
pub const RBX: u8 = 3;
/// %rsi.
pub const RSI: u8 = 4;
/// %rdi.
pub const RDI: u8 = 5;
/// %rbp.
pub const RBP: u8 = 6;
/// %rsp.
pub const RSP: u8 = 7;
/// %r8.
pub const R8: u8 = 8;
/// %r9.
pub const R9: u8 = 9;
/// %r10.
pub const R10: u8 = 10;
/// %r11.
pub const R11: u8 = 11;
/// %r12.
pub const R12: u8 = 12;
/// %r13.
pub const R13: u8 = 13;
/// %r14.
pub const R14: u8 = 14;
/// %r15.
pub const R15: u8 = 15;
/// The number of general registers. Their DWARF numbers are less than this number.
pub const COUNT: u8 = 16;
/// The return address, which takes the place of %rip.
pub const RETURN_ADDRESS: u8 = 16;

/// The stack pointer.
pub const SP: u8 = RSP;
/// The frame pointer.
pub const FP: u8 = RBP;
/// The result of a system call.
pub const RESULT: u8 = RAX;
/// The register whose value a walk can follow to a caller: see
/// [`SavedRbx`](crate::sframe::rule::SavedRbx).
pub const FOLLOWED: u8 = RBX;
