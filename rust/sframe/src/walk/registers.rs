// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Which registers of a frame the walk knows.

use crate::sframe::{
    unwind::step::{
        Memory,
        RegisterSource, //
    },
    x86_64::{
        registers::RBX,
        signal, //
    }, //
};

/// Which registers of a frame are known, apart from those in [`Frame`].
pub(super) enum CallerRegisters<'a, R> {
    /// All registers: the frame is the innermost frame.
    All(&'a R),
    /// All registers: a signal interrupted the frame, and the `struct ucontext` at this run-time address holds
    /// them. No registers if the address is 0: code that a row marks as a signal frame, and that has no
    /// `struct ucontext`, returned to the frame.
    Interrupted(u64),
    /// No registers: the frame has called. The stack is in use from this run-time address on.
    CallerStack(u64),
    /// Only rbx, which has this value: the frame has called.
    Rbx(u64),
}

impl<R> CallerRegisters<'_, R> {
    pub(super) fn are_lost(&self) -> bool {
        matches!(self, CallerRegisters::CallerStack(_))
    }

    /// The lookup address for a PC. For a return address it is the PC minus one: a return address is
    /// behind its call, and the call may be the last instruction of its function.
    pub(super) fn lookup_address(&self, pc: u64) -> u64 {
        if self.are_lost() {
            pc.wrapping_sub(1)
        } else {
            pc
        }
    }
}

/// The registers of a frame, with the memory that may hold the `struct ucontext`.
pub(super) struct RegistersIn<'a, R, M>(pub(super) &'a CallerRegisters<'a, R>, pub(super) &'a M);

impl<R: RegisterSource, M: Memory> RegisterSource for RegistersIn<'_, R, M> {
    #[inline(never)]
    fn register(&self, number: u8) -> Option<u64> {
        match *self.0 {
            CallerRegisters::All(registers) => registers.register(number),
            CallerRegisters::Rbx(rbx) if number == RBX => Some(rbx),
            CallerRegisters::Interrupted(0)
            | CallerRegisters::CallerStack(_)
            | CallerRegisters::Rbx(_) => None,
            CallerRegisters::Interrupted(context) => signal::Interrupted {
                context,
                memory: self.1,
            }
            .register(number),
        }
    }

    fn lowest(&self) -> u64 {
        match *self.0 {
            CallerRegisters::CallerStack(lowest) => lowest,
            _ => 0,
        }
    }
}
