// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The DWARF numbers of AArch64's registers ("DWARF register names" in "DWARF for the Arm 64-bit
//! Architecture").

/// x0, the result of a system call.
pub const RESULT: u8 = 0;
/// x29, the frame pointer.
pub const FP: u8 = 29;
/// x30, in which a call leaves the return address.
pub const LINK: u8 = 30;
/// The stack pointer.
pub const SP: u8 = 31;
/// The PC.
pub const RETURN_ADDRESS: u8 = 32;
/// The number of general registers. Their DWARF numbers are less than this number.
pub const COUNT: u8 = 32;
/// The register whose value a walk can follow to a caller: none. No row counts from a register with
/// this number.
pub const FOLLOWED: u8 = u8::MAX;
