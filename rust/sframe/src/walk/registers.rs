// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! How the walk has come to a frame, and which registers of the frame it knows.

use crate::sframe::{
    arch::{
        registers::FOLLOWED,
        signal, //
    },
    unwind::step::{
        Memory,
        RegisterSource, //
    }, //
};

/// How the walk has come to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// The walk begins with the frame: the task is at its PC.
    Innermost,
    /// A signal interrupted the frame at its PC. The `struct ucontext` with its registers is at
    /// this run-time address; 0: there is none, because a row marks other code than a signal
    /// trampoline as a signal frame.
    Interrupted(u64),
    /// The frame has called. Its PC is a return address.
    Caller {
        /// The lowest run-time address of the frame's stack that is in use.
        lowest: u64,
    },
}

impl FrameKind {
    pub(super) fn has_called(self) -> bool {
        matches!(self, FrameKind::Caller { .. })
    }

    /// The kind of the caller of this frame, on the same stack. `sp` is the stack pointer of this
    /// frame.
    pub(super) fn caller(self, sp: u64) -> FrameKind {
        match self {
            FrameKind::Caller { .. } => self,
            _ => FrameKind::Caller { lowest: sp },
        }
    }

    /// The lookup address for a PC. For a return address it is the PC minus one: a return address
    /// is after its call, and the call may be the last instruction of its function.
    pub(super) fn lookup_address(self, pc: u64) -> u64 {
        pc.wrapping_sub(self.has_called().into())
    }
}

/// Which registers of a frame are known, apart from those in
/// [`Frame`](crate::sframe::unwind::step::Frame).
pub(super) enum KnownRegisters<'a, R> {
    /// All, as the task has them.
    All(&'a R),
    /// All: they are in the `struct ucontext` at this run-time address; none if the address is 0.
    Interrupted(u64),
    /// Only rbx, which has this value.
    Rbx(u64),
    /// None. The stack is in use from this run-time address on.
    Lost(u64),
}

/// The registers of a frame, with the memory that may hold the `struct ucontext`.
pub(super) struct RegistersIn<'a, R, M>(pub(super) KnownRegisters<'a, R>, pub(super) &'a M);

impl<R: RegisterSource, M: Memory> RegisterSource for RegistersIn<'_, R, M> {
    #[inline(never)]
    fn register(&self, number: u8) -> Option<u64> {
        match self.0 {
            KnownRegisters::All(registers) => registers.register(number),
            KnownRegisters::Rbx(rbx) if number == FOLLOWED => Some(rbx),
            KnownRegisters::Interrupted(0) | KnownRegisters::Rbx(_) | KnownRegisters::Lost(_) => {
                None
            }
            KnownRegisters::Interrupted(context) => signal::Interrupted {
                context,
                memory: self.1,
            }
            .register(number),
        }
    }

    fn lowest(&self) -> u64 {
        match self.0 {
            KnownRegisters::Lost(lowest) => lowest,
            _ => 0,
        }
    }
}
