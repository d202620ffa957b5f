// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step without rows, by the instructions from the function's beginning on and around the PC.
//!
//! A frame record, to which x29 points, has the caller's x29 and the return address. It does not
//! show the caller's stack pointer, from which the caller's row may count. The function's beginning
//! shows the distance: `stp x29, x30, [sp, #-N]!; mov x29, sp` and its variants. Where the
//! instructions do not prove a rule, there is no step.

use super::{
    insn::{
        effect,
        is_call,
        InsnEffect,
        CLEAR_FP,
        MOV_CLONE,
        MOV_RT_SIGRETURN,
        SIZE,
        SVC, //
    },
    machine::{
        usual_rule,
        NATIVE, //
    },
    plt::UNTOUCHED,
    registers::LINK, //
};
use crate::sframe::{
    format::bytes::Source,
    rule::{
        Base,
        Location,
        Rule, //
    },
    unwind::step::{
        self as unwind,
        Frame,
        Memory,
        RegisterSource,
        Step, //
    }, //
};

/// The most instructions of a function that are searched for its beginning.
const BEGINNING: u32 = 128;
/// The most instructions that are followed from the PC on.
const AHEAD: u32 = 64;
/// The most instructions before the PC that are examined.
const BEHIND: u32 = 16;
/// The most instructions between `mov x29, #0` and the call of a thread's function.
const START: u32 = 8;
/// The work of examining one instruction, without its read, in instructions.
const WORK: u32 = 20;

/// Whether [`step`] reads registers.
pub const NEEDS_REGISTERS: bool = true;

/// Whether code without rows keeps a frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePointer {
    /// Yes: the section's flag states that all functions keep a frame pointer.
    Kept,
    /// Not known. Only the starts of functions are known.
    Unknown,
}

/// Takes a step from a frame whose lookup address no row covers; `None` if no step can be trusted.
///
/// `innermost` is true for the innermost frame, and for a frame that a signal interrupted. Then
/// `registers` has its x30. `function` returns the start of the function that covers an address.
/// `stack_end` is the end of the mapping of the stack: the two words at the frame pointer have to
/// lie below it. `memory` is the memory of the process. All addresses are run-time addresses.
///
/// A frame pointer alone proves no step, because it does not show the caller's stack pointer. So
/// `FramePointer::Kept` has no effect.
pub fn step<M: Memory + Source + ?Sized, R: RegisterSource>(
    frame: &Frame,
    innermost: bool,
    _frame_pointer: FramePointer,
    function: impl FnOnce(u64) -> Option<u64>,
    stack_end: u64,
    registers: Option<&R>,
    memory: &M,
) -> Option<Step> {
    if !innermost && frame.fp == 0 {
        return begins_thread(frame.pc, memory).then_some(Step::Outermost);
    }
    let at = match innermost {
        true => frame.pc,
        false => frame.pc.wrapping_sub(SIZE),
    };
    let start = function(at)?;
    if frame.pc % SIZE != 0 || start % SIZE != 0 {
        return None;
    }
    let rule = match beginning(start, at, memory)? {
        Beginning::Rule(rule) if innermost => rule,
        // A function that has not stored its return address cannot call.
        Beginning::Rule(_) => return None,
        Beginning::Framed { end, above } => match innermost {
            true => rule_in_body(frame.pc, end, above, memory)?,
            false if at < end => return None,
            false => framed(above),
        },
    };
    if rule.ra == Location::Unchanged && is_behind_plt(&rule, frame, registers, memory)? {
        return None;
    }
    // The stack is read below the end of its mapping only.
    let record_end = frame.fp.checked_add(16)?;
    if rule.cfa.base == Base::Fp && (frame.fp < frame.sp || record_end > stack_end) {
        return None;
    }
    match unwind::step(NATIVE, &rule, frame, &registers, memory).ok()? {
        Step::Caller(caller) if may_be_returned_to(caller.pc, memory) => Some(Step::Caller(caller)),
        _ => None,
    }
}

/// Whether the function may have come from the first stub of a PLT, which has pushed x16 and x30:
/// the word above the CFA has the return address, too. That is the linker's resolver, whose code
/// looks like any other's, and whose caller's stack pointer is further up. `None` if the word
/// cannot be read. A function that has just called itself looks the same.
#[inline(never)]
fn is_behind_plt<M: Memory + ?Sized, R: RegisterSource>(
    rule: &Rule,
    frame: &Frame,
    registers: Option<&R>,
    memory: &M,
) -> Option<bool> {
    let pushed_at = frame
        .sp
        .checked_add_signed(rule.cfa.offset.into())?
        .checked_add(8)?;
    let pushed = memory.read_word(pushed_at).ok()?;
    let link = registers.register(LINK)?;
    Some((pushed ^ link) & memory.code_mask() == 0)
}

/// The rule of a function whose x29 points to its frame record, `above` bytes below the CFA.
fn framed(above: i32) -> Rule {
    usual_rule(Base::Fp, above, Location::AtCfa(above.wrapping_neg()))
}

/// What the beginning of a function shows.
enum Beginning {
    /// The rule at the PC. The function has not set x29 yet.
    Rule(Rule),
    /// The function sets x29 in front of the run-time address `end`. Then its frame record is at
    /// x29, `above` bytes below the CFA.
    Framed { end: u64, above: i32 },
}

/// The instruction at a run-time address.
fn instruction<S: Source + ?Sized>(at: u64, memory: &S) -> Option<u32> {
    memory.spend(WORK).ok()?;
    memory.read(at).ok().map(u32::from_le_bytes)
}

/// Follows the instructions of the function at `start`, up to `pc`, or until x29 is set. `None` if
/// they do not show where the return address is at `pc`.
///
/// Until the function touches the stack pointer, x29 or x30, it may jump forward, and all places to
/// which it has come so far have the same rule. From there on, it may not jump.
#[inline(never)]
fn beginning<S: Source + ?Sized>(start: u64, pc: u64, memory: &S) -> Option<Beginning> {
    let mut targets = 0u128;
    let mut is_reached = true;
    let mut before = 0;
    let mut at = start;
    for index in 0..BEGINNING {
        let target = 1u128.checked_shl(index)?;
        is_reached |= targets & target != 0;
        if at == pc {
            return is_reached.then_some(Beginning::Rule(UNTOUCHED));
        }
        let word = instruction(at, memory)?;
        let mut jump_to = |distance: i32| {
            let target = (distance / const { SIZE as i32 })
                .checked_add_unsigned(index)
                .and_then(|target| u32::try_from(target).ok())
                .filter(|target| *target > index);
            if let Some(bit) = target.and_then(|target| 1u128.checked_shl(target)) {
                targets |= bit;
            }
        };
        match effect(word) {
            // Code to which nothing has led yet proves nothing.
            _ if !is_reached => {}
            InsnEffect::Other => {}
            InsnEffect::Branches(distance) => jump_to(distance),
            InsnEffect::Jumps(distance) => {
                jump_to(distance);
                is_reached = false;
            }
            InsnEffect::Leaves => is_reached = false,
            // A new thread begins behind it, on another stack.
            InsnEffect::SystemCall if MOV_CLONE.contains(&before) => is_reached = false,
            InsnEffect::SystemCall => {}
            _ => return prologue(at, pc, memory),
        }
        before = word;
        at = at.checked_add(SIZE)?;
    }
    None
}

/// Follows the instructions from `at` on, the first one that touches the stack pointer, x29 or x30,
/// up to `pc`, or until x29 is set.
fn prologue<S: Source + ?Sized>(mut at: u64, pc: u64, memory: &S) -> Option<Beginning> {
    // The distance from the stack pointer up to the CFA, and from the frame record up to the CFA.
    let mut pushed = 0i32;
    let mut record: Option<i32> = None;
    for _ in 0..BEGINNING {
        if at == pc {
            let fp = match record {
                Some(above) => Location::AtCfa(above.checked_neg()?),
                None => Location::Unchanged,
            };
            return Some(Beginning::Rule(usual_rule(Base::Sp, pushed, fp)));
        }
        match effect(instruction(at, memory)?) {
            InsnEffect::Other => {}
            // Memory below the stack pointer belongs to nobody.
            InsnEffect::MovesSp(distance) => {
                pushed = pushed.checked_sub(distance)?;
                if pushed < 0 || record.is_some_and(|above| above > pushed) {
                    return None;
                }
            }
            InsnEffect::PushesRecord(distance) if record.is_none() && distance < 0 => {
                pushed = pushed.checked_sub(distance)?;
                record = Some(pushed);
            }
            InsnEffect::StoresRecord(distance) if record.is_none() && distance >= 0 => {
                record = Some(pushed.checked_sub(distance)?);
            }
            InsnEffect::SetsFp(distance) => {
                let above = record?;
                // At least the record itself is below the CFA.
                return (pushed.checked_sub(distance)? == above && above >= 16).then_some(
                    Beginning::Framed {
                        end: at.checked_add(SIZE)?,
                        above,
                    },
                );
            }
            _ => return None,
        }
        at = at.checked_add(SIZE)?;
    }
    None
}

/// The rule at `pc`, behind the end of the prologue at `end`. `above` is as for
/// [`Beginning::Framed`]. `None` if it is not clear whether the function has restored x29 and x30.
#[inline(never)]
fn rule_in_body<S: Source + ?Sized>(pc: u64, end: u64, above: i32, memory: &S) -> Option<Rule> {
    if pc < end {
        return None;
    }
    if let Some(rule) = rule_behind_load(pc, end, above, memory)? {
        return Some(rule);
    }
    has_record(pc, end, memory).then(|| framed(above))
}

/// The rule at `pc`, if the function has just restored x29 and x30: an instruction that loads the
/// frame record is before `pc`, and no jump is in between.
fn rule_behind_load<S: Source + ?Sized>(
    pc: u64,
    end: u64,
    above: i32,
    memory: &S,
) -> Option<Option<Rule>> {
    // How far the stack pointer has moved up since.
    let mut moved = 0i32;
    let mut at = pc;
    for _ in 0..BEHIND {
        if at <= end {
            break;
        }
        at = at.checked_sub(SIZE)?;
        let cfa = match effect(instruction(at, memory)?) {
            InsnEffect::Other => continue,
            InsnEffect::MovesSp(distance) => {
                moved = moved.checked_add(distance)?;
                continue;
            }
            // The record was at the stack pointer.
            InsnEffect::PopsRecord(distance) => above.checked_sub(distance)?,
            InsnEffect::LoadsRecord(distance) => above.checked_add(distance)?,
            _ => break,
        };
        // x29 and x30 are the caller's again.
        let cfa = cfa.checked_sub(moved)?;
        return Some(Some(usual_rule(Base::Sp, cfa, Location::Unchanged)));
    }
    Some(None)
}

/// Whether x29 still points to the function's frame record at `pc`: the code from there on loads
/// the record, or calls, or takes the stack pointer from x29. After the load of the record, a
/// function only returns or jumps to another function.
fn has_record<S: Source + ?Sized>(pc: u64, end: u64, memory: &S) -> bool {
    let mut at = pc;
    // Where a branch on the way may lead to, with the same frame.
    let mut branch = None;
    for _ in 0..AHEAD {
        let Some(word) = instruction(at, memory) else {
            return false;
        };
        at = match effect(word) {
            InsnEffect::Calls
            | InsnEffect::PopsRecord(_)
            | InsnEffect::LoadsRecord(_)
            | InsnEffect::RestoresSp => return true,
            InsnEffect::Other | InsnEffect::MovesSp(_) | InsnEffect::SystemCall => {
                at.wrapping_add(SIZE)
            }
            // Where the code does not branch, it comes to the next instruction.
            InsnEffect::Branches(distance) => {
                branch.get_or_insert(at.wrapping_add_signed(distance.into()));
                at.wrapping_add(SIZE)
            }
            // A jump may leave the function. Backwards, but not in front of the body, is surely the
            // same function, and may be a loop that ends with a branch.
            InsnEffect::Jumps(distance) => {
                let target = at.wrapping_add_signed(distance.into());
                let is_inside = end <= target && target <= pc;
                match branch.take().or(is_inside.then_some(target)) {
                    Some(next) => next,
                    None => return false,
                }
            }
            _ => return false,
        };
    }
    false
}

/// Whether the code before `pc`, a return address, has set x29 to 0 and then called: a new thread's
/// first frame. x29 is 0 at the outermost frame ("The Frame Pointer" in the procedure call
/// standard), but code that keeps no frame pointer may hold a 0 in it, too.
fn begins_thread<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    let mut at = pc;
    for before in 0..START {
        at = at.wrapping_sub(SIZE);
        let Some(word) = instruction(at, memory) else {
            return false;
        };
        match effect(word) {
            InsnEffect::Calls if before == 0 => {}
            _ if word == CLEAR_FP => return before != 0,
            InsnEffect::Other if before != 0 => {}
            _ => return false,
        }
    }
    false
}

/// Whether `pc` may be a return address: it is behind a call, or it is the signal trampoline. False
/// if the code cannot be read.
fn may_be_returned_to<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    const TRAMPOLINE: [u32; 2] = [MOV_RT_SIGRETURN, SVC];

    is_behind_call(pc, memory)
        || instruction(pc, memory) == Some(TRAMPOLINE[0])
            && instruction(pc.wrapping_add(SIZE), memory) == Some(TRAMPOLINE[1])
}

/// Whether the code before `pc`, a return address, is a call. False if the code cannot be read.
pub fn is_behind_call<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    is_call_before(pc, memory) == Some(true)
}

/// As [`is_behind_call`]; `None` if the code cannot be read.
pub fn is_call_before<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<bool> {
    let bytes = memory.read(pc.wrapping_sub(SIZE)).ok()?;
    Some(pc % SIZE == 0 && is_call(u32::from_le_bytes(bytes)))
}

#[cfg(test)]
pub(in crate::sframe) mod tests {
    use super::*;
    use crate::sframe::{
        aarch64::registers,
        format::bytes::Fault,
        unwind::step::NoRegisters, //
    };
    use std::vec;
    use std::vec::Vec;

    /// The run-time addresses of a program, a library and a stack.
    pub(in crate::sframe) const PROGRAM: u64 = 0x40_0000;
    const LIBRARY: u64 = 0x7f00_0000;
    const STACK: u64 = 0x8000_0000;
    const SIZE_OF_PART: usize = 0x2000;

    /// A process whose code is `nop`, with zeros on its stack.
    pub(in crate::sframe) struct MockCode {
        parts: Vec<(u64, Vec<u8>)>,
    }

    impl MockCode {
        pub(in crate::sframe) fn new() -> MockCode {
            let nops: Vec<u8> = NOP.to_le_bytes().repeat(SIZE_OF_PART / 4);
            MockCode {
                parts: vec![
                    (PROGRAM, nops.clone()),
                    (LIBRARY, nops),
                    (STACK, vec![0; SIZE_OF_PART]),
                ],
            }
        }

        pub(in crate::sframe) fn write(&mut self, address: u64, bytes: &[u8]) -> &mut MockCode {
            for (start, part) in &mut self.parts {
                let at = address.checked_sub(*start).map(|at| at as usize);
                if let Some(at) = at.filter(|at| *at < SIZE_OF_PART) {
                    part[at..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            self
        }

        pub(in crate::sframe) fn word(&mut self, address: u64, word: u64) -> &mut MockCode {
            self.write(address, &word.to_le_bytes())
        }

        pub(in crate::sframe) fn code(&mut self, address: u64, code: &[u32]) -> &mut MockCode {
            for (at, word) in (address..).step_by(4).zip(code) {
                self.write(at, &word.to_le_bytes());
            }
            self
        }

        fn step(&self, pc: u64, innermost: bool, sp: u64, fp: u64) -> Option<Step> {
            let frame = Frame { pc, sp, fp };
            let function = |at| {
                (FUNCTION..LIBRARY + 0x1000)
                    .contains(&at)
                    .then_some(FUNCTION)
            };
            let known = FramePointer::Unknown;
            let end = STACK + 0x1000;
            match innermost {
                true => step(
                    &frame,
                    true,
                    known,
                    function,
                    end,
                    Some(&Link(SIGNED_LEAF)),
                    self,
                ),
                false => step(
                    &frame,
                    false,
                    known,
                    function,
                    end,
                    Some(&NoRegisters),
                    self,
                ),
            }
        }
    }

    impl Source for MockCode {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            self.parts
                .iter()
                .filter_map(|(start, part)| part.get(offset.checked_sub(*start)? as usize..))
                .find_map(|rest| rest.first_chunk().copied())
                .ok_or(Fault)
        }
    }

    impl Memory for MockCode {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            self.read(address).map(u64::from_le_bytes)
        }
    }

    /// x30 alone.
    struct Link(u64);

    impl RegisterSource for Link {
        fn register(&self, number: u8) -> Option<u64> {
            (number == registers::LINK).then_some(self.0)
        }
    }

    const NOP: u32 = 0xd503_201f;
    const PACIASP: u32 = 0xd503_233f;
    const AUTIASP: u32 = 0xd503_23bf;
    const RET: u32 = 0xd65f_03c0;
    const CALL: u32 = 0x9400_0000;
    /// stp x29, x30, [sp, #-48]!; mov x29, sp
    const PUSH: u32 = 0xa9bd_7bfd;
    const SET: u32 = 0x9100_03fd;
    /// ldp x29, x30, [sp], #48
    const POP: u32 = 0xa8c3_7bfd;
    const FUNCTION: u64 = LIBRARY + 0x400;
    /// The return address in x30, and on the stack. The former is signed.
    const LEAF: u64 = PROGRAM + 0x600;
    const SIGNED_LEAF: u64 = 0x0035_0000_0000_0000 | LEAF;
    const CALLER: u64 = PROGRAM + 0x800;
    const SIGNED_CALLER: u64 = 0x002a_0000_0000_0000 | CALLER;
    const SP: u64 = STACK + 0x100;
    /// The frame pointer, and the caller's, which is where the record says.
    const FP: u64 = STACK + 0x200;
    const CALLERS_FP: u64 = STACK + 0x300;

    /// A process with a record at FP, and calls before both return addresses.
    fn process(code: &[u32]) -> MockCode {
        let mut process = MockCode::new();
        process
            .code(FUNCTION, code)
            .code(LEAF - 4, &[CALL])
            .code(CALLER - 4, &[CALL])
            .word(FP, CALLERS_FP)
            .word(FP + 8, SIGNED_CALLER);
        process
    }

    /// The innermost frame is at the instruction with this index.
    fn innermost(process: &MockCode, index: u64) -> Option<Step> {
        process.step(FUNCTION + 4 * index, true, SP, FP)
    }

    fn caller(process: &MockCode, index: u64) -> Option<Step> {
        process.step(FUNCTION + 4 * index, false, SP, FP)
    }

    fn frame(pc: u64, sp: u64, fp: u64) -> Option<Step> {
        Some(Step::Caller(Frame { pc, sp, fp }))
    }

    /// The caller of a function that has touched nothing but the stack pointer.
    fn by_link(sp: u64) -> Option<Step> {
        frame(LEAF, sp, FP)
    }

    /// The caller, by the record at FP, which is this far below the CFA.
    fn by_record(above: u64) -> Option<Step> {
        frame(CALLER, FP + above, CALLERS_FP)
    }

    #[test]
    fn a_function_with_a_record() {
        let code = [
            PACIASP,
            PUSH,
            0xa901_53f3,
            SET,
            NOP,
            CALL,
            NOP,
            0xa941_53f3,
            POP,
            AUTIASP,
            RET,
        ];
        let mut process = process(&code);
        assert_eq!(innermost(&process, 0), by_link(SP));
        assert_eq!(innermost(&process, 1), by_link(SP));
        // The record is on top of the stack, and the frame pointer still is the caller's.
        process.word(SP, FP).word(SP + 8, SIGNED_CALLER);
        for index in 2..4 {
            assert_eq!(innermost(&process, index), frame(CALLER, SP + 48, FP));
        }
        for index in 4..9 {
            assert_eq!(innermost(&process, index), by_record(48));
        }
        for index in 9..11 {
            assert_eq!(innermost(&process, index), by_link(SP));
        }
        // The return address of the call.
        assert_eq!(caller(&process, 6), by_record(48));
        // No call is possible in front of it.
        assert_eq!(caller(&process, 2), None);
        // A PC in the midst of an instruction.
        assert_eq!(process.step(FUNCTION + 26, false, SP, FP), None);
    }

    #[test]
    fn the_record_may_be_anywhere_in_the_frame() {
        // sub sp, sp, #96; stp x29, x30, [sp, #64]; add x29, sp, #64; bl; ldp x29, x30, [sp, #64];
        // add sp, sp, #96; ret
        let code = [
            0xd101_83ff,
            0xa904_7bfd,
            0x9101_03fd,
            CALL,
            0xa944_7bfd,
            0x9101_83ff,
            RET,
        ];
        let mut process = process(&code);
        assert_eq!(innermost(&process, 1), by_link(SP + 96));
        process.word(SP + 64, FP).word(SP + 72, SIGNED_CALLER);
        assert_eq!(innermost(&process, 2), frame(CALLER, SP + 96, FP));
        assert_eq!(innermost(&process, 3), by_record(32));
        assert_eq!(innermost(&process, 4), by_record(32));
        assert_eq!(innermost(&process, 5), by_link(SP + 96));
        assert_eq!(innermost(&process, 6), by_link(SP));
        assert_eq!(caller(&process, 4), by_record(32));
        // x29 does not point to the record.
        process.code(FUNCTION + 8, &[0x9100_c3fd]);
        assert_eq!(caller(&process, 4), None);
    }

    #[test]
    fn a_leaf_function_has_no_record() {
        // cbz x0, +16; ldr x0, [x0]; ret; add x0, x0, #1 (not reached); mov x0, x1; ret
        let code = [0xb400_0080, 0xf940_0000, RET, 0x9100_0400, 0xaa01_03e0, RET];
        let process = process(&code);
        for index in [0, 1, 2, 4, 5] {
            assert_eq!(innermost(&process, index), by_link(SP), "{index}");
        }
        assert_eq!(innermost(&process, 3), None);
        assert_eq!(innermost(&process, 6), None);
        assert_eq!(caller(&process, 1), None);
    }

    #[test]
    fn a_function_may_return_before_it_makes_its_frame() {
        // cbz x0, to the second return; the frame; a call; the end; mov x0, #0; ret
        let code = [
            0xb400_00e0,
            PUSH,
            SET,
            CALL,
            POP,
            RET,
            NOP,
            0xd280_0000,
            RET,
        ];
        let process = process(&code);
        assert_eq!(innermost(&process, 0), by_link(SP));
        assert_eq!(innermost(&process, 3), by_record(48));
        assert_eq!(innermost(&process, 5), by_link(SP));
        // The code does not show that there is no frame any more, or none yet.
        assert_eq!(innermost(&process, 7), None);
        assert_eq!(innermost(&process, 8), None);
        assert_eq!(caller(&process, 4), by_record(48));
    }

    #[test]
    fn loops_are_followed_backwards_only() {
        // The frame; mov sp, x29 ends the loop: cbz; add; b -8; b +8
        let code = [
            PUSH,
            SET,
            0xb400_0060,
            0x9100_0400,
            0x17ff_fffe,
            0x9100_03bf,
            POP,
            RET,
        ];
        let mut process = process(&code);
        for index in 2..7 {
            assert_eq!(innermost(&process, index), by_record(48), "{index}");
        }
        // A jump forward may leave the function.
        process.code(FUNCTION + 16, &[0x1400_0002]);
        assert_eq!(innermost(&process, 3), None);
        // So may a jump to the function's beginning.
        process.code(FUNCTION + 16, &[0x17ff_fffc]);
        assert_eq!(innermost(&process, 3), None);
        // A loop without an end.
        process.code(FUNCTION + 12, &[0x1400_0000]);
        assert_eq!(innermost(&process, 3), None);
    }

    #[test]
    fn the_resolver_of_symbols_is_behind_a_push() {
        // stp x8, x9, [sp, #-208]!
        let mut process = process(&[0xa9b3_27e8, NOP, NOP]);
        for (index, cfa) in [(0, SP), (1, SP + 208)] {
            assert_eq!(innermost(&process, index), by_link(cfa));
            process.word(cfa + 8, LEAF);
            assert_eq!(innermost(&process, index), None);
        }
    }

    #[test]
    fn x30_has_to_be_a_return_address() {
        let mut process = process(&[NOP, RET]);
        process.code(LEAF - 4, &[NOP]);
        assert_eq!(innermost(&process, 0), None);
        // The signal trampoline, which no call is before.
        process.code(LEAF, &[MOV_RT_SIGRETURN, SVC]);
        assert_eq!(innermost(&process, 0), by_link(SP));
    }

    #[test]
    fn a_new_thread_has_no_caller() {
        // mov x8, #220; svc #0; cmp x0, #0: the new thread begins behind the system call.
        let code = [0xd280_1b88, SVC, 0xf100_001f, 0x5400_0040, RET];
        let mut process = process(&code);
        assert_eq!(innermost(&process, 1), by_link(SP));
        assert_eq!(innermost(&process, 2), None);
        // Another system call.
        process.code(FUNCTION, &[0xd280_0ba8]);
        assert_eq!(innermost(&process, 2), by_link(SP));
        // mov x29, #0; mov x0, x12; blr x10
        process.code(PROGRAM, &[CLEAR_FP, 0xaa0c_03e0, 0xd63f_0140]);
        let at = |process: &MockCode, fp| process.step(PROGRAM + 12, false, SP, fp);
        assert_eq!(at(&process, 0), Some(Step::Outermost));
        assert_eq!(at(&process, FP), None);
        process.code(PROGRAM + 4, &[0x5400_0040]);
        assert_eq!(at(&process, 0), None);
    }

    #[test]
    fn the_record_is_on_the_stack() {
        let process = process(&[PUSH, SET, CALL, POP, RET]);
        let pc = FUNCTION + 12;
        assert_eq!(process.step(pc, false, SP, FP), by_record(48));
        // Below the stack pointer, and behind the stack.
        assert_eq!(process.step(pc, false, FP + 16, FP), None);
        assert_eq!(process.step(pc, false, SP, STACK + 0xff8), None);
        assert_eq!(process.step(pc, false, SP, u64::MAX - 7), None);
    }

    #[test]
    fn any_code_gives_an_answer() {
        let interesting = [
            PACIASP,
            PUSH,
            SET,
            POP,
            RET,
            CALL,
            NOP,
            SVC,
            CLEAR_FP,
            0xb400_0080,
            0x17ff_fffe,
            0x1400_0002,
            0xd101_83ff,
            0xa904_7bfd,
            0x9101_03fd,
            0xa944_7bfd,
            0x9101_83ff,
        ];
        let mut state = 1u64;
        let mut draw = |count: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % count
        };
        let mut found = 0;
        for _ in 0..20_000 {
            let mut code = [NOP; 40];
            for word in &mut code {
                *word = interesting[draw(interesting.len())];
            }
            let process = process(&code);
            let (index, sp) = (draw(40) as u64, STACK + 16 * draw(64) as u64);
            for is_innermost in [true, false] {
                let step = process.step(FUNCTION + 4 * index, is_innermost, sp, FP);
                if let Some(Step::Caller(caller)) = step {
                    assert!(caller.sp >= sp && (caller.pc == LEAF || caller.pc == CALLER));
                    found += 1;
                }
            }
        }
        assert!(found > 100, "{found}");
    }
}
