// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! One step, from a frame to its caller.
//!
//! Neither the rule nor the registers nor the stack can be trusted. So each step has to rise on
//! the stack: a walk always ends. Whether an address that comes out of it lies in code is for the
//! caller to find out.

use super::{
    bytes::Fault,
    rule::{
        Base,
        Location,
        Rule, //
    }, //
};

/// The size of a stack slot, and the alignment of the CFA, in bytes.
const SLOT: u64 = 8;

/// Reads the memory of the process that is unwound, at run-time addresses.
pub trait Memory {
    /// Reads the eight bytes at `address`, which may have any value and alignment.
    ///
    /// # Errors
    ///
    /// [`Fault`] if they cannot be had.
    fn read_word(&self, address: u64) -> Result<u64, Fault>;

    /// Reads the eight bytes at `first` and those at `second`.
    ///
    /// To read both at once may be cheaper than one after the other.
    ///
    /// # Errors
    ///
    /// [`Fault`] if any of them cannot be had.
    #[inline]
    fn read_two(&self, first: u64, second: u64) -> Result<(u64, u64), Fault> {
        Ok((self.read_word(first)?, self.read_word(second)?))
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    #[inline]
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        (**self).read_word(address)
    }

    #[inline]
    fn read_two(&self, first: u64, second: u64) -> Result<(u64, u64), Fault> {
        (**self).read_two(first, second)
    }
}

/// The registers that matter, at one frame. All are run-time addresses, none is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The program counter; a return address in all frames but the innermost and those that a
    /// signal interrupted.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer, whatever the code uses that register for.
    pub fp: u64,
}

/// Where a step has led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the caller.
    Caller(Frame),
    /// Nowhere, because there is no caller. The walk is complete.
    Outermost,
}

/// Why a step cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The CFA is not above the stack pointer.
    CfaNotRising,
    /// The CFA is not a multiple of eight.
    CfaMisaligned,
    /// The CFA, or the address of a slot, is not in the address space.
    CfaOverflow,
    /// The rule leaves the return address in a register, which AMD64 never does.
    RaInRegister,
    /// The frame pointer is zero: it was set so at the end of the stack, or is used otherwise.
    FpZero,
    /// The frame pointer is below the stack pointer.
    FpBelowSp,
    /// The frame pointer is not a multiple of eight.
    FpMisaligned,
    /// Memory could not be read.
    Fault {
        /// The address of the eight bytes.
        address: u64,
    },
}

impl Stop {
    /// A short name of the reason, for counters and tools. It stays as it is.
    pub const fn name(self) -> &'static str {
        match self {
            Stop::CfaNotRising => "cfa-not-rising",
            Stop::CfaMisaligned => "cfa-misaligned",
            Stop::CfaOverflow => "cfa-overflow",
            Stop::RaInRegister => "ra-in-register",
            Stop::FpZero => "fp-zero",
            Stop::FpBelowSp => "fp-below-sp",
            Stop::FpMisaligned => "fp-misaligned",
            Stop::Fault { .. } => "stack-fault",
        }
    }
}

/// Takes one step by `rule`, which is to be the rule that holds at the frame's PC.
///
/// # Errors
///
/// See [`Stop`].
#[inline]
pub fn step<M: Memory + ?Sized>(rule: &Rule, frame: &Frame, memory: &M) -> Result<Step, Stop> {
    let ra_offset = match rule.ra {
        Location::AtCfa(offset) => offset,
        Location::Undefined => return Ok(Step::Outermost),
        Location::Unchanged => return Err(Stop::RaInRegister),
    };
    let base = match rule.cfa.base {
        Base::Sp => frame.sp,
        Base::Fp => frame.fp,
    };
    let cfa = slot(base, rule.cfa.offset)?;
    if cfa <= frame.sp {
        return Err(Stop::CfaNotRising);
    }
    if cfa % SLOT != 0 {
        return Err(Stop::CfaMisaligned);
    }

    let ra_at = slot(cfa, ra_offset)?;
    let (pc, fp) = match rule.fp {
        Location::AtCfa(offset) => read_two(memory, ra_at, slot(cfa, offset)?)?,
        Location::Unchanged | Location::Undefined => (read_word(memory, ra_at)?, frame.fp),
    };
    Ok(caller(pc, cfa, fp))
}

/// Takes one step by the frame pointer, for code that is known or believed to keep one: the return
/// address and the caller's frame pointer are where it points to.
///
/// # Errors
///
/// See [`Stop`].
#[inline]
pub fn step_by_frame_pointer<M: Memory + ?Sized>(frame: &Frame, memory: &M) -> Result<Step, Stop> {
    if frame.fp == 0 {
        return Err(Stop::FpZero);
    }
    if frame.fp < frame.sp {
        return Err(Stop::FpBelowSp);
    }
    if frame.fp % SLOT != 0 {
        return Err(Stop::FpMisaligned);
    }
    let ra_at = slot(frame.fp, 8)?;
    let cfa = slot(frame.fp, 16)?;
    let (pc, fp) = read_two(memory, ra_at, frame.fp)?;
    Ok(caller(pc, cfa, fp))
}

#[inline]
fn caller(pc: u64, sp: u64, fp: u64) -> Step {
    // Where nothing called, the start code pushes a zero, or the kernel has left one.
    if pc == 0 {
        Step::Outermost
    } else {
        Step::Caller(Frame { pc, sp, fp })
    }
}

#[inline]
fn slot(base: u64, offset: i32) -> Result<u64, Stop> {
    base.checked_add_signed(i64::from(offset))
        .ok_or(Stop::CfaOverflow)
}

#[inline]
fn read_word<M: Memory + ?Sized>(memory: &M, address: u64) -> Result<u64, Stop> {
    memory
        .read_word(address)
        .map_err(|Fault| Stop::Fault { address })
}

/// Reads two words at once. If that fails, it reads one after the other, to tell which it was: who
/// brings in the memory of the other one would never get on.
#[inline]
fn read_two<M: Memory + ?Sized>(memory: &M, first: u64, second: u64) -> Result<(u64, u64), Stop> {
    match memory.read_two(first, second) {
        Ok(both) => Ok(both),
        Err(Fault) => Ok((read_word(memory, first)?, read_word(memory, second)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::Cfa;
    use super::*;
    use core::cell::Cell;

    /// A stack of which each slot holds its own address, and of which some cannot be read.
    struct Slots {
        missing: fn(u64) -> bool,
        reads: Cell<u32>,
        pairs: Cell<u32>,
    }

    impl Slots {
        fn new(missing: fn(u64) -> bool) -> Slots {
            Slots {
                missing,
                reads: Cell::new(0),
                pairs: Cell::new(0),
            }
        }
    }

    impl Memory for Slots {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            self.reads.set(self.reads.get() + 1);
            if (self.missing)(address) {
                Err(Fault)
            } else {
                Ok(address)
            }
        }

        fn read_two(&self, first: u64, second: u64) -> Result<(u64, u64), Fault> {
            self.pairs.set(self.pairs.get() + 1);
            if (self.missing)(first) || (self.missing)(second) {
                Err(Fault)
            } else {
                Ok((first, second))
            }
        }
    }

    const FRAME: Frame = Frame {
        pc: 1,
        sp: 0x8000,
        fp: 0x9000,
    };
    const RULE: Rule = Rule {
        cfa: Cfa {
            base: Base::Sp,
            offset: 0x100,
        },
        ra: Location::AtCfa(-8),
        fp: Location::AtCfa(-0x40),
    };

    #[test]
    fn both_words_come_in_one_go() {
        let memory = Slots::new(|_| false);
        let caller = Frame {
            pc: 0x80f8,
            sp: 0x8100,
            fp: 0x80c0,
        };
        assert_eq!(step(&RULE, &FRAME, &memory), Ok(Step::Caller(caller)));
        assert_eq!((memory.reads.get(), memory.pairs.get()), (0, 1));

        let memory = Slots::new(|_| false);
        let caller = Frame {
            pc: 0x9008,
            sp: 0x9010,
            fp: 0x9000,
        };
        assert_eq!(
            step_by_frame_pointer(&FRAME, &memory),
            Ok(Step::Caller(caller))
        );
        assert_eq!((memory.reads.get(), memory.pairs.get()), (0, 1));
    }

    #[test]
    fn one_word_where_the_frame_pointer_is_unchanged() {
        for fp in [Location::Unchanged, Location::Undefined] {
            let memory = Slots::new(|_| false);
            let caller = Frame {
                pc: 0x80f8,
                sp: 0x8100,
                fp: 0x9000,
            };
            assert_eq!(
                step(&Rule { fp, ..RULE }, &FRAME, &memory),
                Ok(Step::Caller(caller))
            );
            assert_eq!((memory.reads.get(), memory.pairs.get()), (1, 0));
        }
    }

    #[test]
    fn faults_name_the_word_that_is_missing() {
        let stop = |address| Err(Stop::Fault { address });
        let missing = |missing| step(&RULE, &FRAME, &Slots::new(missing));
        assert_eq!(missing(|address| address == 0x80f8), stop(0x80f8));
        assert_eq!(missing(|address| address == 0x80c0), stop(0x80c0));
        assert_eq!(missing(|_| true), stop(0x80f8));
    }

    #[test]
    fn a_return_address_in_a_register_is_none_of_amd64() {
        let rule = Rule {
            ra: Location::Unchanged,
            ..RULE
        };
        assert_eq!(
            step(&rule, &FRAME, &Slots::new(|_| false)),
            Err(Stop::RaInRegister)
        );
    }

    #[test]
    fn the_default_reads_one_after_the_other() {
        struct Plain;
        impl Memory for Plain {
            fn read_word(&self, address: u64) -> Result<u64, Fault> {
                if address == 3 {
                    Err(Fault)
                } else {
                    Ok(address + 1)
                }
            }
        }
        assert_eq!(Plain.read_two(1, 2), Ok((2, 3)));
        assert_eq!(<&Plain as Memory>::read_two(&&Plain, 1, 2), Ok((2, 3)));
        assert_eq!(<&Plain as Memory>::read_word(&&Plain, 3), Err(Fault));
        assert_eq!(Plain.read_two(3, 2), Err(Fault));
        assert_eq!(Plain.read_two(1, 3), Err(Fault));
    }
}
