// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! One step, from a frame to its caller.
//!
//! The rule, the registers and the stack are not trusted. Therefore each step has to rise on the
//! stack, and a walk always ends. Two kinds of steps may lead to any stack: a step to a frame that
//! a signal interrupted, because the handler may have a stack of its own, and a step to a caller on
//! another stack, which a rule
//! ([`Extra::changes_stack`](crate::sframe::rule::Extra::changes_stack)) or the code
//! ([`takes_stack`](crate::sframe::arch::takes_stack)) shows. The walk bounds the number of such
//! steps by [`MAX_SIGNALS`]. A step does not check whether the resulting PC lies in code: the walk
//! has to.

use crate::sframe::{
    format::{
        abi::Abi,
        bytes::Fault, //
    },
    rule::{
        Base,
        Location,
        Rule, //
    }, //
};

/// The size of a stack slot, and the alignment of the CFA, in bytes.
const SLOT: u64 = 8;

/// The frame pointer of a frame whose value of the register is lost. A step that needs the value
/// stops: the kernel maps nothing for a process within 2 GiB of this address, the maximum offset of
/// a rule, nor at any other address with the top bit set; and a CFA that counts from this address
/// is misaligned.
pub const LOST_FP: u64 = 0xc000_0000_0000_0001;

/// The largest number of steps in one walk that need not rise: steps by a rule with
/// [`Rule::signal`], and steps to another stack at a lower address. Handlers are rarely nested.
pub const MAX_SIGNALS: u32 = 16;

/// The memory of the process whose stack is unwound, at run-time addresses.
pub trait Memory {
    /// Reads the eight bytes at `address`, which may have any value and alignment.
    ///
    /// # Errors
    ///
    /// [`Fault`] if the bytes are not available.
    fn read_word(&self, address: u64) -> Result<u64, Fault>;

    /// Reads the eight bytes at `first` and the eight bytes at `second`.
    ///
    /// One call for both words may be cheaper than two calls of [`Memory::read_word`].
    ///
    /// # Errors
    ///
    /// [`Fault`] if any of the bytes is not available.
    #[inline]
    fn read_two(&self, first: u64, second: u64) -> Result<(u64, u64), Fault> {
        Ok((self.read_word(first)?, self.read_word(second)?))
    }

    /// The bits of a return address that are bits of the address: all bits, but those of pointer
    /// authentication codes, where there are some. On AArch64 the size of addresses decides, which
    /// differs between machines; 48 bits are usual.
    #[inline(always)]
    fn code_mask(&self) -> u64 {
        (1 << 48) - 1
    }
}

/// The memory of a process, for the fast paths. Reads fail where a page is not present.
pub trait WordReader {
    /// The memory while it is open.
    type Open<'a>: WordReader
    where
        Self: 'a;

    /// The eight bytes at a run-time address; 0 if the bytes are zero or cannot be read. `address`
    /// may have any value and alignment.
    fn word(&self, address: u64) -> u64;

    /// The eight bytes at a run-time address below 2^63, as by [`word`](Self::word), in fewer
    /// instructions, and the address. The top bit of `address` is ignored, also in the result.
    #[inline(always)]
    fn lower_word(&self, address: u64) -> (u64, u64) {
        let address = address & (u64::MAX >> 1);
        (self.word(address), address)
    }

    /// Opens the memory for many reads, which cost less than reads of `self`. Until the result is
    /// dropped, the caller calls no function that is not inlined.
    fn open(&self) -> Self::Open<'_>;
}

/// The words of any memory, each by a read of its own: the memory of a fast path on the host.
pub struct Words<'a, M: ?Sized>(pub &'a M);

impl<M: Memory + ?Sized> WordReader for Words<'_, M> {
    type Open<'a>
        = &'a Self
    where
        Self: 'a;

    fn word(&self, address: u64) -> u64 {
        self.0.read_word(address).unwrap_or_default()
    }

    fn open(&self) -> &Self {
        self
    }
}

impl<W: WordReader> WordReader for &W {
    type Open<'a>
        = W::Open<'a>
    where
        Self: 'a;

    #[inline]
    fn word(&self, address: u64) -> u64 {
        (**self).word(address)
    }

    #[inline]
    fn open(&self) -> W::Open<'_> {
        (**self).open()
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

    #[inline(always)]
    fn code_mask(&self) -> u64 {
        (**self).code_mask()
    }
}

/// The registers of a frame beyond those in [`Frame`].
pub trait RegisterSource {
    /// The value of the register with this DWARF number; `None` if the value is not known.
    fn register(&self, number: u8) -> Option<u64>;

    /// The lowest run-time address of the frame's stack that is in use. Memory below it may have
    /// been overwritten since the frame wrote it. 0 if the address is not known.
    #[inline]
    fn lowest(&self) -> u64 {
        0
    }
}

/// The registers of a frame that has called: only those in [`Frame`] are known.
#[derive(Clone, Copy, Debug)]
pub struct NoRegisters;

impl RegisterSource for NoRegisters {
    #[inline]
    fn register(&self, _number: u8) -> Option<u64> {
        None
    }
}

/// Like [`NoRegisters`], with the lowest run-time address in use on the frame's stack
/// ([`RegisterSource::lowest`]).
#[derive(Clone, Copy, Debug)]
pub struct CallerStack(pub u64);

impl RegisterSource for CallerStack {
    #[inline]
    fn register(&self, _number: u8) -> Option<u64> {
        None
    }

    #[inline]
    fn lowest(&self) -> u64 {
        self.0
    }
}

impl<R: RegisterSource> RegisterSource for Option<&R> {
    #[inline]
    fn register(&self, number: u8) -> Option<u64> {
        (*self)?.register(number)
    }

    #[inline]
    fn lowest(&self) -> u64 {
        self.map_or(0, R::lowest)
    }
}

/// The registers of one frame that each step needs. All are run-time addresses, and none is
/// trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The program counter. It is a return address in all frames except the innermost frame and the
    /// frames that a signal interrupted.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The value of the frame pointer's register. The code may use that register for other values.
    /// [`LOST_FP`] if the value is lost.
    pub fp: u64,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The caller's frame.
    Caller(Frame),
    /// The frame has no caller. The walk is complete.
    Outermost,
}

/// The reason why a step cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The CFA is not above the stack pointer.
    CfaNotRising,
    /// The CFA does not have the alignment that the ABI requires.
    CfaMisaligned,
    /// The CFA, or the address of a slot, is outside the address space.
    CfaOverflow,
    /// The rule needs an unknown value: a register other than stack pointer and frame pointer, in a
    /// frame that is neither the innermost frame nor interrupted by a signal; or a word below the
    /// part of the stack that is in use, where a function that the frame called saved the word and
    /// may have removed it. An unknown value that only the caller's frame pointer needs is no
    /// reason to stop.
    RegisterUnknown,
    /// The frame pointer is zero: code set it to zero at the outermost frame, or uses the register
    /// for other values.
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

/// Takes one step by `rule`. The caller passes the rule for the frame's lookup address.
///
/// `registers` are the CPU's registers for the innermost frame,
/// [`Interrupted`](crate::sframe::arch::signal::Interrupted) for a frame that a signal interrupted,
/// and [`CallerStack`] for any other frame, or [`NoRegisters`] if the part of the stack in use is
/// not known.
///
/// The caller's frame pointer is [`LOST_FP`] if its location counts from a register that is not
/// known. The caller may have saved its own caller's frame pointer, so the walk can go on.
///
/// # Errors
///
/// See [`Stop`].
#[inline]
pub fn step<M: Memory + ?Sized, R: RegisterSource + ?Sized>(
    abi: Abi,
    rule: &Rule,
    frame: &Frame,
    registers: &R,
    memory: &M,
) -> Result<Step, Stop> {
    if rule.is_outermost() {
        return Ok(Step::Outermost);
    }
    let value = |base| match base {
        Base::Sp => Ok(frame.sp),
        Base::Fp => Ok(frame.fp),
        Base::Register(number) => registers.register(number).ok_or(Stop::RegisterUnknown),
    };

    let mut cfa = slot(value(rule.cfa.base)?, rule.cfa.offset)?;
    if rule.cfa.deref {
        if rule.cfa.base == Base::Sp && cfa < registers.lowest() {
            return Err(Stop::RegisterUnknown);
        }
        cfa = read_word(memory, cfa)?;
        if rule.extra.deref_twice {
            cfa = read_word(memory, cfa)?;
        }
        if rule.cfa.is_tagged() {
            cfa &= !3;
        }
        cfa = slot(cfa, rule.cfa.plus.into())?;
    }
    let sp = slot(cfa, abi.sp_below_cfa().wrapping_neg())?;
    // If the return address is still in its register, the frame may be empty: the caller's stack
    // pointer may be equal to the frame's.
    let at_least = match rule.ra {
        Location::AtCfa(_) | Location::At(..) => frame.sp.saturating_add(1),
        _ => frame.sp,
    };
    // A signal may come at any value of the stack pointer, and its handler may run on another
    // stack.
    if !rule.signal {
        if sp < at_least && !rule.extra.changes_stack {
            return Err(Stop::CfaNotRising);
        }
        if cfa % abi.alignment() != 0 {
            return Err(Stop::CfaMisaligned);
        }
    }

    let place = |location| {
        Ok(match location {
            Location::AtCfa(offset) => Evaluated::At(slot(cfa, offset)?),
            Location::OfCfa(offset) => Evaluated::Is(slot(cfa, offset)?),
            Location::At(base, offset) => Evaluated::At(slot(value(base)?, offset)?),
            Location::Of(base, offset) => Evaluated::Is(slot(value(base)?, offset)?),
            Location::Unchanged | Location::Undefined => Evaluated::None,
        })
    };
    let ra = match (place(rule.ra)?, abi.ra()) {
        (Evaluated::None, Some(number)) => {
            Evaluated::Is(registers.register(number).ok_or(Stop::RegisterUnknown)?)
        }
        (Evaluated::None, None) => return Err(Stop::RegisterUnknown),
        (place, _) => place,
    };

    let fp = match place(rule.fp) {
        Err(Stop::RegisterUnknown) => Evaluated::Is(LOST_FP),
        place => place?,
    };
    let (pc, fp) = match (ra, fp) {
        (Evaluated::At(ra), Evaluated::At(fp)) => read_two(memory, ra, fp)?,
        (ra, fp) => (ra.read(memory, 0)?, fp.read(memory, frame.fp)?),
    };
    // Rows mark the return addresses that carry a code, but not all files have these marks. An
    // interrupted PC is not a return address.
    let pc = if abi.may_mangle() && !rule.signal {
        pc & memory.code_mask()
    } else {
        pc
    };
    // A signal may interrupt a call of a null pointer. A PC of zero does not mark the outermost
    // frame here.
    if rule.signal {
        return Ok(Step::Caller(Frame { pc, sp, fp }));
    }
    Ok(caller(pc, sp, fp))
}

/// A [`Location`] evaluated in one frame.
#[derive(Clone, Copy)]
enum Evaluated {
    /// The value is in memory, at this run-time address.
    At(u64),
    /// The value itself.
    Is(u64),
    /// The location names no place: the register is unchanged or undefined.
    None,
}

impl Evaluated {
    #[inline]
    fn read<M: Memory + ?Sized>(self, memory: &M, unchanged: u64) -> Result<u64, Stop> {
        match self {
            Evaluated::At(address) => read_word(memory, address),
            Evaluated::Is(value) => Ok(value),
            Evaluated::None => Ok(unchanged),
        }
    }
}

/// Takes one step by the frame pointer, for code that is known or expected to keep a frame pointer.
/// The frame pointer points to the caller's frame pointer, with the return address in the word
/// above.
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
    // A zero in place of the return address marks a frame without a caller: start code pushes a
    // zero, or the kernel has left a zero there.
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

/// Reads two words at once. If that fails, it reads them one after the other, so that the error
/// names the missing word. A caller that brings in the memory of a word that is not missing would
/// never proceed.
#[inline]
fn read_two<M: Memory + ?Sized>(memory: &M, first: u64, second: u64) -> Result<(u64, u64), Stop> {
    match memory.read_two(first, second) {
        Ok(both) => Ok(both),
        Err(Fault) => Ok((read_word(memory, first)?, read_word(memory, second)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::{
        arch::signal::Interrupted,
        rule::Cfa, //
    };
    use core::cell::Cell;

    /// A stack on which each slot holds its own address. Slots that `missing` selects cannot be
    /// read.
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

    const RULE: Rule = Rule::amd64(Base::Sp, 0x100, Location::AtCfa(-0x40));

    #[test]
    fn two_words_are_read_at_once() {
        let memory = Slots::new(|_| false);
        let caller = Frame {
            pc: 0x80f8,
            sp: 0x8100,
            fp: 0x80c0,
        };
        assert_eq!(
            step(Abi::Amd64, &RULE, &FRAME, &NoRegisters, &memory),
            Ok(Step::Caller(caller))
        );
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
                step(
                    Abi::Amd64,
                    &Rule { fp, ..RULE },
                    &FRAME,
                    &NoRegisters,
                    &memory
                ),
                Ok(Step::Caller(caller))
            );
            assert_eq!((memory.reads.get(), memory.pairs.get()), (1, 0));
        }
    }

    #[test]
    fn faults_name_the_word_that_is_missing() {
        let stop = |address| Err(Stop::Fault { address });
        let missing = |missing| {
            step(
                Abi::Amd64,
                &RULE,
                &FRAME,
                &NoRegisters,
                &Slots::new(missing),
            )
        };
        assert_eq!(missing(|address| address == 0x80f8), stop(0x80f8));
        assert_eq!(missing(|address| address == 0x80c0), stop(0x80c0));
        assert_eq!(missing(|_| true), stop(0x80f8));
    }

    /// Each register holds 0x1000 times its number.
    struct NumberedRegisters;

    impl RegisterSource for NumberedRegisters {
        fn register(&self, number: u8) -> Option<u64> {
            Some(u64::from(number) << 12)
        }
    }

    fn innermost(abi: Abi, rule: &Rule) -> Result<Step, Stop> {
        step(
            abi,
            rule,
            &FRAME,
            &NumberedRegisters,
            &Slots::new(|_| false),
        )
    }

    fn further_out(abi: Abi, rule: &Rule) -> Result<Step, Stop> {
        step(abi, rule, &FRAME, &NoRegisters, &Slots::new(|_| false))
    }

    fn to(pc: u64, sp: u64, fp: u64) -> Result<Step, Stop> {
        Ok(Step::Caller(Frame { pc, sp, fp }))
    }

    #[test]
    fn only_the_innermost_frame_has_a_return_address_in_its_register() {
        let rule = Rule {
            ra: Location::Unchanged,
            fp: Location::Unchanged,
            ..RULE
        };
        assert_eq!(innermost(Abi::Amd64, &rule), Err(Stop::RegisterUnknown));
        assert_eq!(innermost(Abi::Aarch64, &rule), to(0x1e000, 0x8100, 0x9000));
        assert_eq!(
            innermost(Abi::S390x, &rule),
            to(0xe000, 0x8100 - 160, 0x9000)
        );
        for abi in [Abi::Amd64, Abi::Aarch64, Abi::S390x] {
            assert_eq!(further_out(abi, &rule), Err(Stop::RegisterUnknown));
        }
    }

    #[test]
    fn saved_words_are_read_within_the_stack_in_use() {
        let mut rule = Rule::amd64(Base::Sp, -48, Location::Unchanged);
        rule.cfa.deref = true;
        rule.cfa.plus = 32;
        struct SavedWords;
        impl Memory for SavedWords {
            fn read_word(&self, address: u64) -> Result<u64, Fault> {
                match address {
                    0x7fd0 => Ok(0x8400),
                    0x8418 => Ok(0x77),
                    _ => Err(Fault),
                }
            }
        }
        let with = |lowest| step(Abi::Amd64, &rule, &FRAME, &CallerStack(lowest), &SavedWords);
        let found = to(0x77, 0x8420, 0x9000);
        assert_eq!(with(0x7fd0), found);
        assert_eq!(with(0x1000), found);
        // The saved word is below the stack in use: it is not saved yet, or was removed.
        assert_eq!(with(0x7fd1), Err(Stop::RegisterUnknown));
        assert_eq!(with(0x8000), Err(Stop::RegisterUnknown));
        // The check does not apply to a CFA that counts from the frame pointer.
        rule.cfa.base = Base::Fp;
        rule.cfa.offset = 0x7fd0 - 0x9000;
        assert_eq!(
            step(Abi::Amd64, &rule, &FRAME, &CallerStack(0x8000), &SavedWords),
            found
        );
    }

    #[test]
    fn the_low_bits_of_a_saved_pointer_are_flags() {
        struct Flagged(u64);
        impl Memory for Flagged {
            fn read_word(&self, address: u64) -> Result<u64, Fault> {
                match address {
                    0x9050 => Ok(0x8400 | self.0),
                    0x8448 => Ok(0x77),
                    _ => Err(Fault),
                }
            }
        }
        // LuaJIT's handler of a trace's exit, in a coroutine.
        let mut rule = Rule::amd64(Base::Fp, 0x50, Location::Unchanged);
        rule.cfa.deref = true;
        rule.cfa.plus = 80;
        let with = |rule, flags| step(Abi::Amd64, &rule, &FRAME, &NoRegisters, &Flagged(flags));
        for flags in 0..4 {
            assert_eq!(with(rule, flags), to(0x77, 0x8450, 0x9000));
        }
        assert_eq!(with(rule, 4), Err(Stop::CfaMisaligned));
        // Without a constant the word is the CFA itself, as where a signal has come.
        rule.cfa.plus = 0;
        assert_eq!(with(rule, 1), Err(Stop::CfaMisaligned));
    }

    #[test]
    fn a_leaf_need_not_have_touched_the_stack() {
        let mut rule = Rule {
            ra: Location::Unchanged,
            fp: Location::Unchanged,
            ..RULE
        };
        rule.cfa.offset = 0;
        assert_eq!(innermost(Abi::Aarch64, &rule), to(0x1e000, 0x8000, 0x9000));
        rule.cfa.offset = 160;
        assert_eq!(innermost(Abi::S390x, &rule), to(0xe000, 0x8000, 0x9000));
        // A return address that was saved on the stack needs a slot: the step has to rise.
        rule.ra = Location::AtCfa(-48);
        assert_eq!(innermost(Abi::S390x, &rule), Err(Stop::CfaNotRising));
        rule.cfa.offset = 0;
        assert_eq!(innermost(Abi::S390x, &rule), Err(Stop::CfaNotRising));
    }

    #[test]
    fn registers_are_known_in_the_innermost_frame_alone() {
        // The rules of a stack that gcc realigns: the CFA is in r10, and later in memory.
        let mut rule = RULE;
        rule.cfa = Cfa {
            base: Base::Register(10),
            offset: 0,
            deref: false,
            plus: 0,
        };
        rule.fp = Location::At(Base::Fp, 0);
        assert_eq!(innermost(Abi::Amd64, &rule), to(0x9ff8, 0xa000, 0x9000));
        assert_eq!(further_out(Abi::Amd64, &rule), Err(Stop::RegisterUnknown));

        rule.cfa = Cfa {
            base: Base::Fp,
            offset: -8,
            deref: true,
            plus: 0,
        };
        assert_eq!(further_out(Abi::Amd64, &rule), to(0x8ff0, 0x8ff8, 0x9000));
        // OpenSSL saves its caller's stack pointer in this way: the word in memory is the address
        // of the return address.
        rule.cfa.plus = 8;
        assert_eq!(further_out(Abi::Amd64, &rule), to(0x8ff8, 0x9000, 0x9000));
        rule.cfa.plus = 4;
        assert_eq!(further_out(Abi::Amd64, &rule), Err(Stop::CfaMisaligned));
    }

    #[test]
    fn a_frame_pointer_in_an_unknown_register_is_lost() {
        let mut rule = RULE;
        let lost = to(0x80f8, 0x8100, LOST_FP);
        for fp in [
            Location::Of(Base::Register(10), 0),
            Location::At(Base::Register(10), -16),
        ] {
            rule.fp = fp;
            assert_eq!(further_out(Abi::Amd64, &rule), lost);
            assert_ne!(innermost(Abi::Amd64, &rule), lost);
        }
        rule.fp = Location::LOST;
        assert_eq!(further_out(Abi::Amd64, &rule), lost);
        // The registers of a frame that a signal interrupted do not have that register, either.
        let memory = Slots::new(|_| false);
        let registers = Interrupted {
            context: 0x8000,
            memory: &memory,
        };
        assert_eq!(step(Abi::Amd64, &rule, &FRAME, &registers, &memory), lost);
        // The return address has to be known.
        rule.ra = Location::LOST;
        assert_eq!(further_out(Abi::Amd64, &rule), Err(Stop::RegisterUnknown));
    }

    #[test]
    fn steps_that_need_a_lost_frame_pointer_stop() {
        // All addresses of a process can be read, and have what looks like a frame.
        let memory = Slots::new(|address| address >> 63 != 0);
        let frame = Frame {
            fp: LOST_FP,
            ..FRAME
        };
        let from = |rule: &Rule| step(Abi::Amd64, rule, &frame, &NoRegisters, &memory);
        // The code may leave the register alone, or may have saved it.
        let to_caller = |fp| to(0x80f8, 0x8100, fp);
        assert_eq!(
            from(&Rule {
                fp: Location::Unchanged,
                ..RULE
            }),
            to_caller(LOST_FP)
        );
        assert_eq!(from(&RULE), to_caller(0x80c0));
        assert_eq!(
            step_by_frame_pointer(&frame, &memory),
            Err(Stop::FpMisaligned)
        );
        for offset in [0, 1, 7, 8, -7, 16, 0x1000, i32::MAX, i32::MIN, i32::MIN + 7] {
            let base = Base::Fp;
            let counts = |deref| Rule {
                cfa: Cfa {
                    base,
                    offset,
                    deref,
                    plus: 0,
                },
                ..RULE
            };
            let at_fp = Location::At(base, offset);
            let rules = [
                counts(false),
                counts(true),
                Rule { ra: at_fp, ..RULE },
                Rule { fp: at_fp, ..RULE },
            ];
            for mut rule in rules {
                for extra in 0..8 {
                    rule.extra.changes_stack = extra & 1 != 0;
                    rule.extra.deref_twice = extra & 2 != 0;
                    rule.signal = extra & 4 != 0;
                    assert!(from(&rule).is_err(), "{rule:?}");
                }
            }
        }
    }

    #[test]
    fn another_stack_is_taken_only_if_the_rule_says_so() {
        // A case of OCaml's runtime: the pointer to the other stack is in memory, and that stack
        // may be at any address.
        struct Left;
        impl Memory for Left {
            fn read_word(&self, address: u64) -> Result<u64, Fault> {
                match address {
                    0x8038 => Ok(0x2000),
                    0x2000 => Ok(0x3000),
                    0x2008 => Ok(0x88),
                    0x3008 => Ok(0x99),
                    _ => Err(Fault),
                }
            }
        }
        let mut rule = Rule::amd64(Base::Sp, 0x38, Location::Unchanged);
        rule.cfa.deref = true;
        rule.cfa.plus = 16;
        let taken = |rule| step(Abi::Amd64, &rule, &FRAME, &NoRegisters, &Left);
        assert_eq!(taken(rule), Err(Stop::CfaNotRising));
        rule.extra.changes_stack = true;
        assert_eq!(taken(rule), to(0x88, 0x2010, 0x9000));
        rule.extra.deref_twice = true;
        assert_eq!(taken(rule), to(0x99, 0x3010, 0x9000));
        rule.extra.changes_stack = false;
        assert_eq!(taken(rule), Err(Stop::CfaNotRising));
        rule.extra.changes_stack = true;
        rule.cfa.plus = 9;
        assert_eq!(taken(rule), Err(Stop::CfaMisaligned));
        // The second word is missing.
        rule.cfa.offset = 0x40;
        assert_eq!(taken(rule), Err(Stop::Fault { address: 0x8040 }));
    }

    #[test]
    fn values_may_be_given_instead_of_places() {
        let mut rule = RULE;
        rule.ra = Location::Of(Base::Register(2), 4);
        rule.fp = Location::OfCfa(-16);
        assert_eq!(innermost(Abi::S390x, &rule), to(0x2004, 0x8060, 0x80f0));
        assert_eq!(further_out(Abi::S390x, &rule), Err(Stop::RegisterUnknown));
        rule.ra = Location::At(Base::Sp, 0x40);
        assert_eq!(further_out(Abi::S390x, &rule), to(0x8040, 0x8060, 0x80f0));
    }

    #[test]
    fn mangled_return_addresses_are_stripped() {
        struct Signed;
        impl Memory for Signed {
            fn read_word(&self, address: u64) -> Result<u64, Fault> {
                Ok(0x0035_0000_0000_0000 | address)
            }
        }
        /// Of a machine with addresses of 52 bits.
        struct Long;
        impl Memory for Long {
            fn read_word(&self, address: u64) -> Result<u64, Fault> {
                Ok(0x003f_0000_0000_0000 | address)
            }
            fn code_mask(&self) -> u64 {
                (1 << 52) - 1
            }
        }
        let mut rule = Rule {
            ra: Location::AtCfa(-8),
            fp: Location::Unchanged,
            mangled: true,
            ..RULE
        };
        assert_eq!(
            step(Abi::Aarch64, &rule, &FRAME, &NoRegisters, &Signed),
            to(0x80f8, 0x8100, 0x9000)
        );
        assert_eq!(
            step(Abi::Aarch64, &rule, &FRAME, &NoRegisters, &&Long),
            to(0x000f_0000_0000_80f8, 0x8100, 0x9000)
        );
        // Without the mark, too; but not an interrupted PC, nor on other machines.
        rule.mangled = false;
        assert_eq!(
            step(Abi::Aarch64, &rule, &FRAME, &NoRegisters, &Signed),
            to(0x80f8, 0x8100, 0x9000)
        );
        rule.signal = true;
        assert_eq!(
            step(Abi::Aarch64, &rule, &FRAME, &NoRegisters, &Signed),
            to(0x0035_0000_0000_80f8, 0x8100, 0x9000)
        );
        rule.signal = false;
        assert_eq!(
            step(Abi::Amd64, &rule, &FRAME, &NoRegisters, &Signed),
            to(0x0035_0000_0000_80f8, 0x8100, 0x9000)
        );
    }

    #[test]
    fn the_cfa_has_the_alignment_of_the_abi() {
        let mut rule = RULE;
        rule.cfa.offset = 0x108;
        assert!(further_out(Abi::Amd64, &rule).is_ok());
        assert!(further_out(Abi::S390x, &rule).is_ok());
        assert_eq!(further_out(Abi::Aarch64, &rule), Err(Stop::CfaMisaligned));
        rule.cfa.offset = 0x104;
        assert_eq!(further_out(Abi::Amd64, &rule), Err(Stop::CfaMisaligned));
    }

    #[test]
    fn popped_return_addresses_are_not_read() {
        // A case of musl's vfork: the child shares the stack and may have overwritten the popped
        // word.
        let popped = Rule::amd64(Base::Sp, 0, Location::Unchanged);
        assert_eq!(innermost(Abi::Amd64, &popped), Err(Stop::CfaNotRising));
        assert_eq!(further_out(Abi::Amd64, &popped), Err(Stop::CfaNotRising));
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
