// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The general registers of AMD64, by DWARF number.

use sframe::unwind;

pub use sframe::x86_64::registers::{
    RAX,
    RBP,
    RCX,
    RDX,
    RETURN_ADDRESS as PC,
    RSP, //
};

/// The number of registers: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, and the PC.
pub const COUNT: usize = 17;

/// The general registers of AMD64 at one frame, as far as they are known, by DWARF number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterFile {
    values: [u64; COUNT],
    known: u32,
}

impl RegisterFile {
    /// All registers: by DWARF number, the PC last.
    pub const fn new(values: [u64; COUNT]) -> RegisterFile {
        RegisterFile {
            values,
            known: (1 << COUNT) - 1,
        }
    }

    /// The value of a register, if it is known.
    #[inline]
    pub fn get(&self, number: u8) -> Option<u64> {
        let value = *self.values.get(usize::from(number))?;
        ((self.known >> number) & 1 != 0).then_some(value)
    }

    /// Sets the value of a register, which is known from then on. The number is below [`COUNT`].
    #[inline]
    pub fn set(&mut self, number: u8, value: u64) {
        self.values[usize::from(number)] = value;
        self.known |= 1 << number;
    }

    /// Keeps the registers whose bit, by number, is set in `kept`; all others become unknown.
    #[inline]
    pub fn keep(&mut self, kept: u32) {
        self.known &= kept;
    }

    /// The program counter.
    #[inline]
    pub fn pc(&self) -> u64 {
        self.values[usize::from(PC)]
    }

    /// The stack pointer.
    #[inline]
    pub fn sp(&self) -> u64 {
        self.values[usize::from(RSP)]
    }
}

impl unwind::RegisterSource for RegisterFile {
    #[inline]
    fn register(&self, number: u8) -> Option<u64> {
        self.get(number)
    }
}
