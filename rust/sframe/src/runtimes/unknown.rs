// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step from code without rows that keeps a frame pointer: anonymous code outside of all
//! regions, and code of files that user space has examined. AMD64 only.
//!
//! The frame pointer is followed, unless the code shows that the frame is elsewhere: a function
//! that returns before it calls shows where its return address is. Where the code shows nothing,
//! the call of the function may. Some sequences of V8's and SBCL's code are known, which mislead
//! other checks.

use crate::sframe::{
    format::bytes::Source,
    runtimes::{
        jsc,
        sbcl::{
            self,
            CallState, //
        },
        steps::{
            call_before,
            run_steps, //
        },
        v8, //
    },
    unwind::step::{
        step_by_frame_pointer,
        Frame,
        Memory,
        Step,
        WordReader, //
    },
    x86_64::{
        decode::{
            instruction,
            Effect,
            DECODING,
            LONGEST_INSTRUCTION, //
        },
        fallback::{
            behind_call,
            is_call_before,
            is_returning,
            BEGINNING_SEARCH, //
        },
        insn::{
            ends_with_call,
            frees_stack,
            is_call_before_freeing,
            CALL_RELATIVE,
            GROUP_5,
            MOV_RSP_RBP, //
        },
        prologue::{
            prologue,
            FixedRule,
            ON_TOP, //
        },
        signal, //
    }, //
};
use core::{
    mem,
    ops::Range, //
};

/// The largest number of instructions that are followed, before a conditional jump that is taken
/// and after it.
const MOST: usize = 40;

/// The number of bytes of code that [`ahead`] reads at once.
const BYTES: usize = 24;

/// Takes a step from a frame in such code; `None` if no step can be trusted.
///
/// `innermost` is true for the innermost frame. `is_examined`: the code is a file's, which is known
/// to keep a frame pointer; so the call of a function proves more. `stack_end` is the end of the
/// mapping of the stack: the two words at the frame pointer have to lie below it. `memory` is the
/// memory of the process. All addresses are run-time addresses.
pub fn step<M: Memory + Source + ?Sized>(
    frame: &Frame,
    innermost: bool,
    is_examined: bool,
    stack_end: u64,
    memory: &M,
) -> Option<Step> {
    let mut frame = *frame;
    let call_state = match innermost {
        true => sbcl::call_state(frame.pc, memory)
            .filter(|state| *state != CallState::Allocating || !sbcl::is_routine(&frame, memory)),
        false => None,
    };
    if let Some(state) = call_state {
        match state {
            CallState::Framed | CallState::Allocating => {}
            CallState::Unwinding => return None,
            CallState::Calling | CallState::Called => {
                frame.fp = memory.read_word(frame.fp).ok()?;
            }
        }
        if state == CallState::Called {
            return behind_call(ON_TOP, &frame, memory);
        }
    }
    if let Some(step) = jsc::step_behind_call(&frame, memory) {
        return step;
    }
    // A function without a frame frees what it has on the stack after a call.
    let is_shown = call_state.is_none()
        && (innermost
            || (memory.read(frame.pc)).is_ok_and(|code| frees_stack(u32::from_le_bytes(code))));
    if is_shown {
        match ahead(frame.pc, memory) {
            // The return address is not stored yet.
            Ahead::Rule(rule) if jsc::stores(frame.pc, rule, memory) => return None,
            Ahead::Rule(rule) => match behind_call(rule, &frame, memory) {
                // Code behind a call that frees the stack may set up another frame, as Dart's does.
                None if is_examined && !innermost => {}
                step => return step,
            },
            Ahead::Lost if !innermost => return None,
            // The return address may be proved, but not that of the caller.
            Ahead::ForCaller => return None,
            _ if !innermost => {}
            Ahead::Framed | Ahead::Calls if sbcl::is_routine(&frame, memory) => return None,
            Ahead::Framed => {}
            // If the code cannot be read, its page is missing: the call of its function may prove.
            Ahead::Unknown if is_returning(frame.pc, memory).or(is_examined.then_some(false))? => {
                return behind_call(ON_TOP, &frame, memory);
            }
            // A function that has not set up its frame pointer has its return address on top of the
            // stack. The frame pointer is then its caller's, and would leave out the caller. A
            // function that calls may have no frame pointer, either: V8's functions without a frame
            // call a write barrier.
            found @ (Ahead::Lost | Ahead::Calls | Ahead::Unknown) => {
                let proof = match is_examined {
                    true => proof_by_call(&frame, memory),
                    false => None,
                };
                let on_top = || behind_call(ON_TOP, &frame, memory);
                match proof {
                    // A tail call: the function has given up its frame.
                    Some(Proof::AtFp) if jumps_by_value(frame.pc, memory) && on_top().is_some() => {
                        return None;
                    }
                    Some(Proof::AtFp) => {}
                    Some(Proof::AtSp) => return on_top(),
                    None => {
                        let rule = match is_examined {
                            true => rule_from_start(frame.pc, memory),
                            false => None,
                        };
                        if let Some(rule) = rule {
                            return behind_call(rule, &frame, memory);
                        }
                        if (found == Ahead::Lost || on_top().is_some())
                            && !sbcl::is_made_by_caller(&frame, memory)
                        {
                            return None;
                        }
                    }
                }
            }
        }
    }
    let end = frame.fp.checked_add(16)?;
    if frame.fp < frame.sp || end > stack_end {
        return None;
    }
    // A process that has just begun, or was forked, lacks many pages of code. A frame that has made
    // a call, in code that is known to keep a frame pointer, needs no further proof.
    let if_missing = is_examined && !innermost;
    match step_by_frame_pointer(&frame, memory).ok()? {
        Step::Caller(caller) if is_call_before(caller.pc, memory).unwrap_or(if_missing) => {
            Some(Step::Caller(caller))
        }
        // A zero in place of the return address does not prove that the frame is the outermost
        // frame.
        _ => None,
    }
}

/// The most work of a step of [`run_fast`], without that of `has_other_rule`, in instructions.
const STEP: u32 = 140;

/// The size of the pages of memory, in bytes.
const MEMORY_PAGE: u64 = 4096;

/// The fast path in such code, like [`runtimes::run_fast`](super::run_fast): takes steps by the
/// frame pointer. Stops at a frame for whose lookup address, a run-time address, a row
/// `has_other_rule`. `stack_end` is as for [`step`].
#[inline]
pub fn run_fast<S: Source + ?Sized, W: WordReader>(
    (code, stack_end): (Range<u64>, u64),
    has_other_rule: impl Fn(u64) -> bool,
    frame: &mut Frame,
    memory: &S,
    words: &W,
    buffer: &mut [u64],
) -> usize {
    let last_fp = stack_end.saturating_sub(16);
    run_steps(code, STEP, frame, memory, buffer, |last| {
        let Frame { pc, sp, fp } = *last;
        let is_on_stack = sp <= fp && fp <= last_fp && fp % 8 == 0;
        // Of the eight bytes at the PC, those that matter may be in front of a missing page.
        let is_in_page = pc % MEMORY_PAGE <= const { MEMORY_PAGE - 8 };
        if !is_on_stack || !is_in_page || has_other_rule(pc.wrapping_sub(1)) {
            return None;
        }
        let open = words.open();
        let ahead = open.word(pc);
        if frees_stack(ahead as u32)
            || jsc::rule_behind_call(ahead, last).is_some()
            || signal::may_be_trampoline(ahead)
        {
            return None;
        }
        let caller = Frame {
            pc: open.word(fp.wrapping_add(8)),
            sp: fp.wrapping_add(16),
            fp: open.word(fp),
        };
        let call = open.word(call_before(caller.pc));
        drop(open);
        // A word that cannot be read is 0.
        (caller.fp != 0 && ends_with_call(&call.to_le_bytes())).then_some(caller)
    })
}

/// Where the return address of the innermost frame is, as the call of its function proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// At the stack pointer.
    AtSp,
    /// Above the saved frame pointer, where the frame pointer leads to.
    AtFp,
}

/// The greatest distance from the start of a function to a PC in it, in bytes.
const REACH: u64 = 64 << 10;

/// Examines the two words that may be the return address. The word is proved if the call in front
/// of it is direct, and leads to the function of the PC, which sets up a frame pointer if and only
/// if the word is where a frame pointer leads to.
///
/// Where both calls are direct, the nearer function is that of the PC. At the first instruction of
/// a function nothing else has to be read.
#[inline(never)]
fn proof_by_call<M: Memory + Source + ?Sized>(frame: &Frame, memory: &M) -> Option<Proof> {
    let called = |at: u64| {
        let return_address = memory.read_word(at).ok()?;
        called_function(return_address, frame.pc, memory)
    };
    let (start, proof) = match (called(frame.sp), called(frame.fp.wrapping_add(8))) {
        (Some(on_top), Some(framed)) if framed > on_top => (framed, Proof::AtFp),
        (Some(on_top), _) => (on_top, Proof::AtSp),
        (None, Some(framed)) => (framed, Proof::AtFp),
        (None, None) => return None,
    };
    if start == frame.pc {
        return (proof == Proof::AtSp).then_some(proof);
    }
    (sets_up(start, memory) == Some(proof == Proof::AtFp)).then_some(proof)
}

/// The start of the function that the direct call in front of `return_address` leads to; `None` if
/// there is no such call, or if the function does not contain `pc`, or ends before it, as far as
/// the code shows. All are run-time addresses.
#[inline(never)]
fn called_function<M: Memory + Source + ?Sized>(
    return_address: u64,
    pc: u64,
    memory: &M,
) -> Option<u64> {
    let [opcode, distance @ ..]: [u8; 5] = memory.read(return_address.wrapping_sub(5)).ok()?;
    if opcode != CALL_RELATIVE {
        return None;
    }
    let contains = |start: u64| pc.wrapping_sub(start) < REACH;
    let mut start = return_address.wrapping_add_signed(i32::from_le_bytes(distance).into());
    if !contains(start) {
        start = end_of_stub(start, memory)?;
    }
    (contains(start) && padded_start(pc, start, memory).is_none()).then_some(start)
}

/// Whether the function at the run-time address `start` sets up a frame pointer; `None` if it may
/// do so later than at its start, or if its code cannot be read.
// Not inlined, so that its stack is free for the decoder of stubs.
#[inline(never)]
fn sets_up<S: Source + ?Sized>(start: u64, memory: &S) -> Option<bool> {
    memory.spend(BEGINNING_SEARCH).ok()?;
    // Borrowed, so that there is one copy on the stack.
    let Ok(beginning) = &memory.read(start) else {
        return None;
    };
    if prologue(beginning).is_some() {
        return Some(true);
    }
    let is_mov = |code: &[u8]| MOV_RSP_RBP.iter().any(|mov| code == mov);
    (!beginning.windows(3).any(is_mov)).then_some(false)
}

/// The alignment of functions whose start [`padded_start`] finds, and the padding in front of such
/// a function, as V8's built-in functions have it: int3.
const START_ALIGNMENT: u64 = 64;
const PADDING: u64 = u64::from_le_bytes([0xcc; 8]);
/// The number of aligned addresses at which [`padded_start`] searches.
const STARTS: u64 = 8;
/// The work of [`padded_start`], without that of its reads, in instructions.
const PADDING_SEARCH: u32 = 100;
/// The largest number of instructions that are followed from a function's start on.
const FROM_START: usize = 24;

/// The start of the function that contains `pc`, if it is above `lowest`, has padding in front of
/// it, and is near. All are run-time addresses.
#[inline(never)]
fn padded_start<M: Memory + Source + ?Sized>(pc: u64, lowest: u64, memory: &M) -> Option<u64> {
    memory.spend(PADDING_SEARCH).ok()?;
    let last = pc & const { !(START_ALIGNMENT - 1) };
    for back in 0..STARTS {
        let start = last.wrapping_sub(back.wrapping_mul(START_ALIGNMENT));
        if start <= lowest {
            break;
        }
        // A search through a missing page would take work that no read pays for.
        if memory.read_word(start.wrapping_sub(8)).ok()? == PADDING {
            return Some(start);
        }
    }
    None
}

/// The rule of the innermost frame at the run-time address `pc`. The instructions from the
/// function's start up to `pc` show what the function has put on the stack. `None` if one of them
/// jumps, calls, returns or sets up a frame. V8's built-in functions without a frame are mostly
/// called by an address in a register or in a table, so that their calls prove nothing.
#[inline(never)]
fn rule_from_start<M: Memory + Source + ?Sized>(pc: u64, memory: &M) -> Option<FixedRule> {
    let mut at = padded_start(pc, 0, memory)?;
    // As at the function's start, in bytes: the stack pointer is 0, and the CFA 8.
    let mut sp = 0i32;
    let mut fp = 0;
    for _ in 0..=FROM_START {
        if at >= pc {
            return (at == pc && sp <= 0).then(|| FixedRule::new(8i32.wrapping_sub(sp), fp));
        }
        memory.spend(DECODING).ok()?;
        let code: [u8; LONGEST_INSTRUCTION] = memory.read(at).ok()?;
        let (len, effect) = instruction(&code)?;
        at = at.wrapping_add(len);
        match effect {
            Effect::Other | Effect::Local => {}
            Effect::AddSp(bytes) => sp = sp.wrapping_add(bytes),
            Effect::PushFp => {
                sp = sp.wrapping_sub(8);
                fp = sp.wrapping_sub(8);
            }
            // Behind a jump or a return, another path through the function has led to the PC.
            _ => return None,
        }
    }
    None
}

/// Where a stub at the run-time address `start` jumps to: code of up to three instructions that
/// ends with a direct jump, as Dart's. `None` if the code is no stub.
#[inline(never)]
fn end_of_stub<S: Source + ?Sized>(start: u64, memory: &S) -> Option<u64> {
    let mut at = start;
    for _ in 0..3 {
        memory.spend(DECODING).ok()?;
        let code: [u8; LONGEST_INSTRUCTION] = memory.read(at).ok()?;
        let (len, effect) = instruction(&code)?;
        at = at.wrapping_add(len);
        match effect {
            Effect::Jump(distance) => return Some(at.wrapping_add_signed(distance.into())),
            Effect::Other => {}
            _ => return None,
        }
    }
    None
}

/// What the instructions ahead of a PC show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// The rule of the frame: the function sets up a frame pointer later, or returns.
    Rule(FixedRule),
    /// The function uses or gives up a frame that its frame pointer leads to.
    Framed,
    /// The function calls before it returns. Most functions that call have a frame that their frame
    /// pointer leads to.
    Calls,
    /// The stack pointer gets a value that does not follow from its present value; or the function
    /// pushes the frame pointer, sets none up, and calls.
    Lost,
    /// The function sets up the frame of its caller, which has no frame yet.
    ForCaller,
    /// Too many instructions, a jump to an address in a register or in memory, code that cannot be
    /// read, or no budget left.
    Unknown,
}

/// Follows the instructions from the run-time address `pc` on. Conditional jumps are not taken, but
/// for one: if the instructions show nothing, the last conditional jump is taken at which the stack
/// is as at `pc`.
#[inline(never)]
pub(super) fn ahead<S: Source + ?Sized>(pc: u64, memory: &S) -> Ahead {
    let mut pc = pc;
    // The bytes of code from `start` on, if they have been read.
    let mut start = pc.wrapping_add(1);
    let mut bytes = [0u8; BYTES];
    let mut branch = 0;
    // The stack pointer ahead of an instruction, and where the frame pointer was pushed, in bytes
    // from the present stack pointer.
    let mut sp = 0i32;
    let mut pushed = None;
    let mut popped = None;
    // The stack pointer is not known any more. The allocation is the function's own if the function
    // finds its frame by the frame pointer later. V8's code without a frame allocates, too, and
    // pushes arguments for another function.
    let mut has_allocated = false;
    for left in (0..2 * MOST).rev() {
        if memory.spend(DECODING).is_err() {
            break;
        }
        if pc.wrapping_sub(start) > const { (BYTES - LONGEST_INSTRUCTION) as u64 } {
            let Ok(read) = memory.read(pc) else {
                break;
            };
            (start, bytes) = (pc, read);
        }
        let code = bytes.get(pc.wrapping_sub(start) as usize..);
        let Some(code) = code.and_then(<[u8]>::first_chunk::<LONGEST_INSTRUCTION>) else {
            break;
        };
        let Some((len, effect)) = instruction(code) else {
            break;
        };
        if has_allocated {
            pc = pc.wrapping_add(len);
            match effect {
                Effect::Local | Effect::GiveUp => return Ahead::Framed,
                // The callee returns, or the bytes behind the call begin another function.
                Effect::Other | Effect::Call | Effect::AddSp(_) => {}
                Effect::Jump(distance) => pc = pc.wrapping_add_signed(distance.into()),
                _ => break,
            }
            continue;
        }
        if sbcl::makes_frame(code).is_some() || v8::clears_and_restores_sp(code) {
            return Ahead::Framed;
        }
        let [a, b, c, d, e, f, g, h, ..] = *code;
        let word = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        if let Some(distance) = sets_up_by_lea(word) {
            return on_top(
                pushed.unwrap_or(sp.wrapping_add(distance)).wrapping_add(8),
                popped,
            );
        }
        if sp >= 0 && jsc::enters_target(word) {
            return on_top(sp, popped);
        }
        // Not behind pushes: a stub that binds a function lazily pushes words for the loader.
        if sp >= 0 && jumps_through_memory(word) {
            return on_top(sp, popped);
        }
        if v8::enters_code(word) {
            return match sp {
                0.. => on_top(sp, popped),
                // The return address may be among the words that are pushed ahead.
                _ => Ahead::Lost,
            };
        }
        // Where there are enough arguments, the code makes no space.
        let is_branch_needed = branch != 0 && v8::makes_space(word);
        if left == MOST || effect == Effect::End || is_branch_needed {
            if branch == 0 {
                break;
            }
            pc = mem::take(&mut branch);
            (sp, pushed, popped) = (0, None, None);
            continue;
        }
        pc = pc.wrapping_add(len);
        if v8::sets_up_for_caller(word) {
            return Ahead::ForCaller;
        }
        if v8::moves_stack(word) || v8::pushes_arguments(word) {
            return Ahead::Lost;
        }
        match effect {
            Effect::Other
                if (v8::restores_fp(word) || v8::checks_stack(word))
                    && pushed.or(popped).is_none() =>
            {
                return Ahead::Framed;
            }
            Effect::Other => {
                if let Some(distance) = condition(word) {
                    if left > MOST && sp == 0 && pushed.or(popped).is_none() {
                        branch = pc.wrapping_add_signed(distance);
                        if jsc::leaves_search(word) {
                            mem::swap(&mut branch, &mut pc);
                        }
                    }
                }
            }
            Effect::Local if pushed.or(popped).is_none() => return Ahead::Framed,
            Effect::Local => {}
            Effect::AddSp(_)
                if v8::returns_by_register(word) || jsc::takes_return_address(word) =>
            {
                return on_top(sp, popped);
            }
            Effect::AddSp(bytes) => sp = sp.wrapping_add(bytes),
            Effect::PushFp => {
                sp = sp.wrapping_sub(8);
                pushed = Some(sp);
            }
            Effect::PopFp => {
                // What was pushed ahead is what the register holds now.
                popped = (pushed != Some(sp)).then_some(sp);
                sp = sp.wrapping_add(8);
            }
            Effect::SetUp => {
                // If the push is after the PC, the caller's frame pointer is still in its register,
                // unless the code pops it, and jumps to the function that sets up the frame.
                return on_top(pushed.unwrap_or(sp).wrapping_add(8), popped);
            }
            // The return address is in the register that the code pushes: as `v8::enters_code`.
            Effect::Return if sp < 0 => return Ahead::Lost,
            Effect::Return => return on_top(sp, popped),
            // The function has saved the frame pointer as any other register, and is about to use
            // it.
            Effect::Call if pushed.is_some() => return Ahead::Lost,
            // A function without a frame may save registers for a call, too.
            Effect::Call if is_call_before_freeing(word) => {}
            Effect::Call => {
                return match jsc::stored_before_call(code) {
                    Some(distance) if sp == 0 => on_top(distance, None),
                    _ => Ahead::Calls,
                };
            }
            Effect::GiveUp => return Ahead::Framed,
            Effect::OtherSp if pushed.or(popped).is_none() && allocates(code) => {
                has_allocated = true;
            }
            Effect::OtherSp => {
                let is_call = v8::aligns_sp(word) || v8::restores_sp_and_clears(word);
                return if is_call { Ahead::Framed } else { Ahead::Lost };
            }
            Effect::Jump(distance) => pc = pc.wrapping_add_signed(distance.into()),
            Effect::End => {}
        }
    }
    match has_allocated {
        true => Ahead::Lost,
        false => Ahead::Unknown,
    }
}

/// Whether `code` begins with `sub REGISTER,%rsp`.
fn allocates(code: &[u8]) -> bool {
    matches!(code, [0x48 | 0x4c, 0x29, modrm, ..] if modrm & 0xc7 == 0xc4)
}

/// Whether `word`, the first bytes of the code, begins with a jump to an address in the file's or
/// the code's own data: `jmp *N(%rip)`, with or without a `bnd` prefix. Such a jump leaves the
/// function, as a stub of a PLT does.
fn jumps_through_memory(word: u64) -> bool {
    word & 0xffff == 0x25ff || word & 0xff_ffff == 0x25_fff2
}

/// Whether the instruction at `pc`, a run-time address, jumps to an address in a register or in
/// memory. True if the code cannot be read.
fn jumps_by_value<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    let Ok([first, second, third]) = memory.read(pc) else {
        return true;
    };
    // With a prefix, as for the registers from r8 on.
    let (opcode, operand) = match first {
        GROUP_5 => (first, second),
        _ => (second, third),
    };
    opcode == GROUP_5 && operand & 0x38 == 0x20
}

/// The rule at the PC, from an instruction ahead that finds the return address on top of the stack.
/// There the stack pointer is `sp` bytes above its present value. `popped`: where the code up to
/// there pops the caller's frame pointer, in bytes from the present stack pointer.
fn on_top(sp: i32, popped: Option<i32>) -> Ahead {
    let cfa = sp.wrapping_add(8);
    let fp = popped.map_or(0, |popped| popped.wrapping_sub(cfa));
    Ahead::Rule(FixedRule::new(cfa, fp))
}

/// The address that `lea N(%rsp), %rbp` at the start of `word` gives to the frame pointer, in bytes
/// from the stack pointer; `None` if another instruction is there. .NET sets up its frames so.
fn sets_up_by_lea(word: u64) -> Option<i32> {
    let number = (word >> 32) as i32;
    match word as u32 {
        0x242c_8d48 => Some(0),
        0x246c_8d48 => Some(i32::from(number as i8)),
        0x24ac_8d48 => Some(number),
        _ => None,
    }
}

/// The distance of the conditional jump at the start of `word`, in bytes; `None` if another
/// instruction is there.
fn condition(word: u64) -> Option<i64> {
    match word & 0xf0ff {
        0x800f => Some(i64::from((word >> 16) as i32)),
        _ if word & 0xf0 == 0x70 => Some(i64::from((word >> 8) as i8)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::{
        unwind::step::{
            Words,
            LOST_FP, //
        },
        x86_64::fallback::tests::{
            called,
            MockProcess,
            CALLER,
            FUNCTION,
            LIBRARY,
            PC,
            PROGRAM,
            SETS_UP,
            STACK, //
        }, //
    };
    use std::vec::Vec;

    /// What `code`, followed by nops, shows from its start on.
    fn from(code: &[u8]) -> Ahead {
        let mut all = code.to_vec();
        all.resize(256, 0x90);
        ahead(0, &all[..])
    }

    fn rule(cfa: i32, fp: i32) -> Ahead {
        Ahead::Rule(FixedRule::new(cfa, fp))
    }

    #[test]
    fn a_function_that_returns_shows_its_return_address() {
        // ret; ret $8; add $16,%rsp; pop %rbx; ret. pop %rbp; ret. add $8,%rsp; pop %rbp; pop %r12;
        // ret
        assert_eq!(from(&[0xc3]), rule(8, 0));
        assert_eq!(from(&[0xc2, 8, 0]), rule(8, 0));
        assert_eq!(from(&[0x48, 0x83, 0xc4, 0x10, 0x5b, 0xc3]), rule(32, 0));
        assert_eq!(from(&[0x5d, 0xc3]), rule(16, -16));
        let code = [0x48, 0x83, 0xc4, 8, 0x5d, 0x41, 0x5c, 0xc3];
        assert_eq!(from(&code), rule(32, -24));
        // push %rbp; mov (%rax),%ebp; pop %rbp; ret
        assert_eq!(from(&[0x55, 0x8b, 0x28, 0x5d, 0xc3]), rule(8, 0));
        // jg; jmp 1 byte ahead; int3; ret
        assert_eq!(from(&[0x7f, 3, 0xeb, 1, 0xcc, 0xc3]), rule(8, 0));
    }

    #[test]
    fn an_allocation_on_the_stack_is_in_a_frame_that_is_used_later() {
        // mov %rax,%rcx; sub %rcx,%rsp; call; mov -8(%rbp),%rbx. sub %r9,%rsp; lea -24(%rbp),%rsp
        let call = [0xe8, 1, 2, 3, 4];
        let own = [
            &[0x48, 0x89, 0xc1, 0x48, 0x29, 0xcc][..],
            &call,
            &[0x48, 0x8b, 0x5d, 0xf8],
        ]
        .concat();
        assert_eq!(from(&own), Ahead::Framed);
        assert_eq!(
            from(&[0x4c, 0x29, 0xcc, 0x48, 0x8d, 0x65, 0xe8]),
            Ahead::Framed
        );
        // The code behind the call is another function: push %rbp; mov %rsp,%rbp; mov -8(%rbp).
        let other = [
            &own[..11],
            &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x5d, 0xf8],
        ]
        .concat();
        assert_eq!(from(&other), Ahead::Lost);
        // sub %rcx,%rsp; jmp *%rax; and a return.
        assert_eq!(
            from(&[0x48, 0x29, 0xcc, 0xff, 0xe0, 0x48, 0x8b, 0x5d, 0xf8]),
            Ahead::Lost
        );
        assert_eq!(from(&[0x48, 0x29, 0xcc, 0xc3]), Ahead::Lost);
        // push %rbp; sub %rcx,%rsp; mov -8(%rbp),%rbx: no frame of this function.
        assert_eq!(
            from(&[0x55, 0x48, 0x29, 0xcc, 0x48, 0x8b, 0x5d, 0xf8]),
            Ahead::Lost
        );
    }

    #[test]
    fn a_function_may_set_up_its_frame_pointer_later() {
        // cmp; jne; push %rbp; mov %rsp,%rbp. The immediate looks like a call.
        let code = [
            0x81, 0xf9, 0xe8, 0xff, 0x90, 0xc9, 0x0f, 0x85, 1, 2, 3, 4, 0x55, 0x48, 0x89, 0xe5,
        ];
        assert_eq!(from(&code), rule(8, 0));
        assert_eq!(from(&code[6..]), rule(8, 0));
        assert_eq!(from(&code[12..]), rule(8, 0));
        // The caller's frame pointer is on the stack, and still in the register.
        assert_eq!(from(&code[13..]), rule(16, 0));
        // A uprobe in place of the push.
        assert_eq!(from(&[0xcc, 0x48, 0x89, 0xe5]), rule(8, 0));
        // push %rbp; push %rbx; mov %rsp,%rbp
        assert_eq!(from(&[0x55, 0x53, 0x48, 0x8b, 0xec]), rule(8, 0));
        // .NET: push %rbp; sub $48,%rsp; lea 48(%rsp),%rbp; mov %rdi,-8(%rbp). push %rbp; push
        // %rbx; lea 8(%rsp),%rbp; call
        let code = [
            0x55, 0x48, 0x83, 0xec, 0x30, 0x48, 0x8d, 0x6c, 0x24, 0x30, 0x48, 0x89, 0x7d, 0xf8,
        ];
        assert_eq!(from(&code), rule(8, 0));
        assert_eq!(from(&code[1..]), rule(16, 0));
        assert_eq!(from(&code[5..]), rule(64, 0));
        assert_eq!(from(&code[10..]), Ahead::Framed);
        let code = [0x55, 0x53, 0x48, 0x8d, 0x6c, 0x24, 8, 0xe8, 1, 2, 3, 4];
        assert_eq!(from(&code), rule(8, 0));
        assert_eq!(from(&code[1..]), rule(16, 0));
        assert_eq!(from(&code[2..]), rule(24, 0));
        // A tail call: pop %rbp; jmp; push %rbp; mov %rsp,%rbp, or lea (%rsp),%rbp. The caller's
        // frame pointer is in the popped slot.
        let mut code = [
            0x5d, 0xeb, 1, 0xcc, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x2c, 0x24,
        ];
        assert_eq!(from(&code), rule(16, -16));
        assert_eq!(from(&code[1..]), rule(8, 0));
        code[5..8].copy_from_slice(&[0x90; 3]);
        assert_eq!(from(&code), rule(16, -16));
        // lea (%rsp),%rbp; lea 0x80(%rsp),%rbp
        assert_eq!(from(&[0x48, 0x8d, 0x2c, 0x24]), rule(16, 0));
        assert_eq!(
            from(&[0x48, 0x8d, 0xac, 0x24, 0x80, 0, 0, 0]),
            rule(0x90, 0)
        );
    }

    #[test]
    fn a_function_that_uses_a_frame_has_one() {
        for code in [
            &[0xe8, 1, 2, 3, 4][..],
            &[0x41, 0xff, 0xd2],
            &[0x90, 0x51, 0xff, 0x55, 0x10],
        ] {
            assert_eq!(from(code), Ahead::Calls, "{code:x?}");
        }
        for code in [
            &[0xc9][..],
            &[0x48, 0x89, 0xec],
            &[0x48, 0x8d, 0x65, 0xf0],
            // lea -32(%rbp,%rdx,4),%rsp
            &[0x4a, 0x8d, 0x64, 0x95, 0xe0],
            // mov -32(%rbp),%rdx; movsd %xmm0,-256(%rbp)
            &[0x48, 0x8b, 0x55, 0xe0],
            &[0xf2, 0x0f, 0x11, 0x85, 0, 0xff, 0xff, 0xff],
            // SBCL's sub $16,%rsp; mov %rbp,(%rsp); mov %rsp,%rbp
            &[
                0x48, 0x83, 0xec, 0x10, 0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec,
            ],
        ] {
            assert_eq!(from(code), Ahead::Framed, "{code:x?}");
        }
    }

    #[test]
    fn one_conditional_jump_is_taken() {
        // A function of V8: mov -8(%rcx),%rbx; testb $1,53(%rbx); je; movabs $0,%r10; jmp *%r10
        let checks = [
            0x48, 0x8b, 0x59, 0xf8, 0xf6, 0x43, 0x35, 1, 0x74, 0x0d, 0x49, 0xba, 0, 0, 0, 0, 0, 0,
            0, 0, 0x41, 0xff, 0xe2,
        ];
        // push %rbp; mov %rsp,%rbp
        let sets_up = [&checks[..], &[0x55, 0x48, 0x89, 0xe5]].concat();
        for at in [0, 4, 8, 23] {
            assert_eq!(from(&sets_up[at..]), rule(8, 0), "{at}");
        }
        assert_eq!(from(&sets_up[10..]), Ahead::Unknown);
        // It leads back to the jump. And pop %rbx; je; jmp *%r10: the stack is another one.
        let mut back = checks;
        back[9] = 0xfe;
        assert_eq!(from(&back), Ahead::Unknown);
        let popped = [0x5b, 0x74, 3, 0x41, 0xff, 0xe2, 0xc3];
        assert_eq!(from(&popped), Ahead::Unknown);
        assert_eq!(from(&popped[1..]), rule(8, 0));
        // After 38 instructions: ja 50 bytes ahead, where mov -72(%rbp),%rcx is.
        let mut far = [0x90; 150];
        far[38..44].copy_from_slice(&[0x0f, 0x87, 50, 0, 0, 0]);
        assert_eq!(from(&far), Ahead::Unknown);
        far[94..98].copy_from_slice(&[0x48, 0x8b, 0x4d, 0xb8]);
        assert_eq!(from(&far), Ahead::Framed);
        // The second jump is not taken.
        far[94..96].copy_from_slice(&[0x74, 10]);
        far[96..98].copy_from_slice(&[0x90; 2]);
        far[106] = 0xc3;
        assert_eq!(from(&far), rule(8, 0));
        far[96..99].copy_from_slice(&[0x41, 0xff, 0xe2]);
        assert_eq!(from(&far), Ahead::Unknown);
    }

    #[test]
    fn a_tail_call_to_another_file_shows_the_return_address() {
        // add $8,%rsp; pop %rbx; pop %rbp; jmp 3 bytes ahead, to a stub: endbr64; bnd jmp *1(%rip)
        let code = [
            0x48, 0x83, 0xc4, 8, 0x5b, 0x5d, 0xe9, 3, 0, 0, 0, 0xcc, 0xcc, 0xcc, 0xf3, 0x0f, 0x1e,
            0xfa, 0xf2, 0xff, 0x25, 1, 0, 0, 0,
        ];
        assert_eq!(from(&code), rule(32, -16));
        assert_eq!(from(&code[5..]), rule(16, -16));
        for at in [6, 14, 18, 19] {
            assert_eq!(from(&code[at..]), rule(8, 0), "{at}");
        }
        // Lazy binding: push $1; jmp; push 1(%rip); jmp *1(%rip)
        let lazy = [
            0x68, 1, 0, 0, 0, 0xeb, 0, 0xff, 0x35, 1, 0, 0, 0, 0xff, 0x25, 1, 0, 0, 0,
        ];
        for at in [0, 5, 7] {
            assert_eq!(from(&lazy[at..]), Ahead::Unknown, "{at}");
        }
        // jmp *1(%rax)
        assert_eq!(from(&[0x5b, 0xff, 0x60, 1]), Ahead::Unknown);
    }

    #[test]
    fn functions_of_v8_without_a_frame_may_call() {
        // push %rbx; push %rdi; mov %rdi,%rbx; call; pop %rdi; pop %rbx; jmp; ret
        let calls = [
            0x53, 0x57, 0x48, 0x8b, 0xdf, 0xe8, 1, 2, 3, 4, 0x5f, 0x5b, 0xeb, 1, 0xcc, 0xc3,
        ];
        for (at, cfa) in [
            (0, 8),
            (1, 16),
            (2, 24),
            (5, 24),
            (10, 24),
            (11, 16),
            (12, 8),
        ] {
            assert_eq!(from(&calls[at..]), rule(cfa, 0), "{at}");
        }
        // A function with a frame does it, too: leave, and a local variable.
        for end in [&[0xc9][..], &[0x48, 0x8b, 0x5d, 0xf0]] {
            let framed = [&calls[..15], end].concat();
            assert_eq!(from(&framed), Ahead::Framed);
        }
        // pop %r8. pop %rbp, pop %rsp and other instructions after the call; a call by memory
        let mut other = calls;
        (other[10], other[11]) = (0x41, 0x58);
        assert_eq!(from(&other[1..]), rule(8, 0));
        for pop in [0x5d, 0x5c, 0x90] {
            other[10] = pop;
            assert_eq!(from(&other), Ahead::Calls, "{pop}");
        }
        assert_eq!(from(&[0x90, 0xff, 0x10, 0x5f, 0xc3]), Ahead::Calls);
    }

    #[test]
    fn a_trampoline_of_python_calls_without_a_frame() {
        // sub $8,%rsp; call *%rcx; add $8,%rsp; ret
        let code = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];
        for (at, cfa) in [(0, 8), (4, 16), (6, 16), (10, 8)] {
            assert_eq!(from(&code[at..]), rule(cfa, 0), "{at}");
        }
        // add $8,%rbx
        let mut other = code;
        other[8] = 0xc3;
        assert_eq!(from(&other), Ahead::Calls);
    }

    #[test]
    fn a_tail_call_of_v8_has_its_frame_until_it_restores_the_frame_pointer() {
        // mov 0(%rbp),%rbp; mov %rcx,%rbx; add $80,%rsp; jmp; ret
        let leaves = [
            0x48, 0x8b, 0x6d, 0, 0x48, 0x8b, 0xd9, 0x48, 0x83, 0xc4, 0x50, 0xeb, 0, 0xc3,
        ];
        assert_eq!(from(&leaves), Ahead::Framed);
        assert_eq!(from(&leaves[4..]), rule(88, 0));
        // mov 8(%rbp),%rbp; mov 0(%rbp),%rbx
        for (at, value) in [(3, 8), (2, 0x5d)] {
            let mut other = leaves;
            other[at] = value;
            assert_eq!(from(&other), rule(88, 0), "{at}");
        }
    }

    #[test]
    fn a_function_of_v8_that_makes_space_for_arguments_has_no_known_frame() {
        // xor %r11d,%r11d; mov (%r8,%r11,8),%r10; mov %r10,(%rsp,%r11,8); ret
        let copies = [
            0x45, 0x33, 0xdb, 0x4f, 0x8b, 0x14, 0xd8, 0x4e, 0x89, 0x14, 0xdc, 0xc3,
        ];
        for at in [0, 3, 7] {
            assert_eq!(from(&copies[at..]), Ahead::Lost, "{at}");
        }
        assert_eq!(from(&copies[11..]), rule(8, 0));
        // jle over the next instruction; sub %r10,%rsp; ret: where there are enough arguments, no
        // space is made.
        let mut checks = [0x7e, 3, 0x49, 0x2b, 0xe2, 0xc3];
        assert_eq!(from(&checks), rule(8, 0));
        assert_eq!(from(&checks[2..]), Ahead::Lost);
        // sub %r11,%rsp
        checks[4] = 0xe3;
        assert_eq!(from(&checks), Ahead::Lost);
        // xor %r12d,%r12d; mov %r10,(%rsp,%r12,8); lea 8(%rsp,%rax,8),%r8; ret
        let copies_bound = [
            0x45, 0x31, 0xe4, 0x4e, 0x89, 0x14, 0xe4, 0x4c, 0x8d, 0x44, 0xc4, 8, 0xc3,
        ];
        for at in [0, 3, 7] {
            assert_eq!(from(&copies_bound[at..]), Ahead::Lost, "{at}");
        }
        assert_eq!(from(&copies_bound[12..]), rule(8, 0));
        // mov %r10,(%rsp)
        let mut other = copies;
        (other[9], other[10]) = (0x14, 0x24);
        assert_eq!(from(&other), rule(8, 0));
    }

    #[test]
    fn code_of_javascriptcore_stores_its_return_address_for_a_call() {
        // vmovsd %xmm0,48(%rsp); pop %rax; mov %rax,32(%rsp); mov $N,%r11d; call *%r11; mov
        // 32(%rsp),%r10; push %r10; vmovsd 48(%rsp),%xmm0; ret
        let code = [
            &[0xc5, 0xfb, 0x11, 0x44, 0x24, 0x30, 0x58][..],
            &[0x48, 0x89, 0x44, 0x24, 0x20, 0x41, 0xbb, 1, 2, 3, 4],
            &[0x41, 0xff, 0xd3, 0x4c, 0x8b, 0x54, 0x24, 0x20, 0x41, 0x52],
            &[0xc5, 0xfb, 0x10, 0x44, 0x24, 0x30, 0xc3],
        ]
        .concat();
        for at in [0, 6] {
            assert_eq!(from(&code[at..]), rule(8, 0), "{at}");
        }
        for at in [7, 12, 18] {
            assert_eq!(from(&code[at..]), rule(0x28, 0), "{at}");
        }
        assert_eq!(from(&code[28..]), rule(8, 0));
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        process.call(on_top).word(STACK + 0x120, on_top);
        // Before the store, the return address is in a register only.
        for (at, expected) in [(7, None), (12, Some(on_top))] {
            process.write(PC, &code[at..]);
            assert_eq!(step_in(&process, PC, true), expected);
        }
        // After the call, as in any frame.
        process.write(PC, &code[21..]);
        for innermost in [true, false] {
            assert_eq!(step_in(&process, PC, innermost), Some(on_top));
        }
        // pop %rbp; jmp
        process
            .write(PC, &[0x5d, 0xe9, 1, 2, 3, 4])
            .word(STACK + 0x108, on_top);
        assert_eq!(step_in(&process, PC, false), Some(on_top));
        // mov 16(%r10),%r8; mov 24(%r10),%r10; mov %r10,8(%rsp); jmp *%r8
        let jumps = [
            0x4d, 0x8b, 0x42, 0x10, 0x4d, 0x8b, 0x52, 0x18, 0x4c, 0x89, 0x54, 0x24, 8, 0x41, 0xff,
            0xe0,
        ];
        assert_eq!(from(&jumps), rule(8, 0));
        // je to the jump; jmp to the je
        let searches = [&[0x0f, 0x84, 2, 0, 0, 0, 0xeb, 0xf8][..], &jumps].concat();
        assert_eq!(from(&searches), rule(8, 0));
    }

    #[test]
    fn a_function_of_v8_that_checks_the_stack_has_a_frame() {
        // push %rax; sub $8,%rsp; cmp -96(%r13),%rsp; jae over the call; movabs; call; ret
        let checks = [
            0x50, 0x48, 0x83, 0xec, 8, 0x49, 0x3b, 0x65, 0xa0, 0x73, 15, 0x48, 0xb8, 1, 2, 3, 4, 5,
            6, 7, 8, 0xe8, 1, 2, 3, 4, 0xc3,
        ];
        for at in [0, 1, 5] {
            assert_eq!(from(&checks[at..]), Ahead::Framed, "{at}");
        }
        // push %rbp; mov %rsp,%rbp, in front of it
        let prologue = [&SETS_UP[..], &checks].concat();
        assert_eq!(from(&prologue), rule(8, 0));
        // cmp -96(%r13),%rbp
        let mut other = checks;
        other[7] = 0x6d;
        assert_eq!(from(&other[5..]), Ahead::Calls);
    }

    #[test]
    fn code_of_v8_that_enters_other_code_has_its_return_address_on_top() {
        // add $88,%rsp; mov 39(%r8),%r8; jmp *%r8
        let tail_call = [
            0x48, 0x83, 0xc4, 0x58, 0x4d, 0x8b, 0x40, 0x27, 0x41, 0xff, 0xe0,
        ];
        assert_eq!(from(&tail_call), rule(0x60, 0));
        assert_eq!(from(&tail_call[4..]), rule(8, 0));
        // mov 47(%rdi),%rcx; mov 39(%rcx),%rcx; jmp *%rcx
        let enters = [0x48, 0x8b, 0x4f, 0x2f, 0x48, 0x8b, 0x49, 0x27, 0xff, 0xe1];
        for at in [0, 4] {
            assert_eq!(from(&enters[at..]), rule(8, 0), "{at}");
        }
        assert_eq!(from(&[&[0x5b], &enters[..]].concat()), rule(16, 0));
        // push %rax: the return address was in this register.
        assert_eq!(from(&[&[0x50], &enters[..]].concat()), Ahead::Lost);
        // pop %rax; dec %rcx; jl; push 15(%rbx,%rcx,8); jmp back
        let pushes = [
            0x58, 0x48, 0xff, 0xc9, 0x7c, 6, 0xff, 0x74, 0xcb, 0x0f, 0xeb, 0xf5, 0x50, 0xc3,
        ];
        let all = [&pushes[..], &[0x90; 256]].concat();
        for at in [0, 1, 4, 6, 10] {
            assert_eq!(ahead(at, &all[..]), Ahead::Lost, "{at}");
        }
        // By a table: mov 0x1f0(%r13),%r10; shl $4,%ecx; mov (%r10,%rcx),%rcx; jmp *%rcx
        let by_table = [
            0x4d, 0x8b, 0x95, 0xf0, 1, 0, 0, 0xc1, 0xe1, 4, 0x49, 0x8b, 0x0c, 0x0a, 0xff, 0xe1,
        ];
        for at in [0, 7, 10] {
            assert_eq!(from(&by_table[at..]), rule(8, 0), "{at}");
        }
        // mov 39(%rdx),%rcx; and jmp *%rdx
        for (at, value) in [(6, 0x4a), (9, 0xe2)] {
            let mut other = enters;
            other[at] = value;
            assert_eq!(from(&other), Ahead::Unknown, "{at}");
        }
    }

    #[test]
    fn a_routine_of_v8_sets_up_the_frame_of_its_caller() {
        // incl 11(%r8); pop %r15; push %rbp; mov %rsp,%rbp
        let code = [0x41, 0xff, 0x40, 0x0b, 0x41, 0x5f, 0x55, 0x48, 0x89, 0xe5];
        assert_eq!(from(&code), Ahead::ForCaller);
        assert_eq!(from(&code[4..]), Ahead::ForCaller);
        // pop %r11
        let mut other = code;
        other[5] = 0x5b;
        assert_eq!(from(&other), Ahead::ForCaller);
        // pop %rbx
        other[4] = 0x90;
        assert_eq!(from(&other), rule(16, 0));
    }

    #[test]
    fn code_of_v8_is_known() {
        // pop %r10; lea (%rsp,%rcx,8),%rsp; push %r10; ret
        let returns = [0x41, 0x5a, 0x48, 0x8d, 0x24, 0xcc, 0x41, 0x52, 0xc3];
        assert_eq!(from(&returns), rule(8, 0));
        // mov %rbp,%rsp; pop %rbp; pop %r10; ...
        assert_eq!(from(&[&[0x5d], &returns[..]].concat()), rule(16, -16));
        // mov %rsp,%r10; sub $8,%rsp; and $-16,%rsp; mov %r10,(%rsp); mov %rax,-64(%rbp); mov
        // %rbp,104(%r13); call *%rax; movq $0,104(%r13); mov (%rsp),%rsp
        let calls = [
            0x49, 0x89, 0xe2, 0x48, 0x83, 0xec, 8, 0x48, 0x83, 0xe4, 0xf0, 0x4c, 0x89, 0x14, 0x24,
            0x48, 0x89, 0x45, 0xc0, 0x49, 0x89, 0x6d, 0x68, 0xff, 0xd0, 0x49, 0xc7, 0x45, 0x68, 0,
            0, 0, 0, 0x48, 0x8b, 0x24, 0x24,
        ];
        for at in [0, 3, 7, 11, 25] {
            assert_eq!(from(&calls[at..]), Ahead::Framed, "{at}");
        }
        assert_eq!(from(&calls[23..]), Ahead::Calls);
        // At mov (%rsp),%rsp nothing shows that the field was cleared, unless this follows: movq
        // $0,104(%r13), or movq $0,176(%r13).
        assert_eq!(from(&calls[33..]), Ahead::Lost);
        for field in [&[0x45, 0x68][..], &[0x85, 0xb0, 0, 0, 0]] {
            let restores = [&calls[33..], &[0x49, 0xc7], field, &[0; 4]].concat();
            assert_eq!(from(&restores), Ahead::Framed);
            let other = [&calls[33..], &[0x48, 0xc7], field, &[0; 4]].concat();
            assert_eq!(from(&other), Ahead::Lost);
        }
        // and $-32,%rsp. mov %r11,(%rsp). Another register has the old stack pointer: mov
        // %rbx,(%rsp)
        for (at, value) in [(10, 0xe0), (13, 0x1c), (11, 0x48)] {
            let mut other = calls;
            other[at] = value;
            assert_eq!(from(&other), Ahead::Lost, "{at}");
        }
        // Another value than 0, or a field that another register points to, is before mov
        // (%rsp),%rsp.
        for (at, value) in [(29, 1), (25, 0x48), (27, 0x46)] {
            let mut other = calls;
            other[at] = value;
            assert_eq!(from(&other[25..]), Ahead::Lost, "{at}");
        }
        // An instruction is in between; and mov 8(%rsp),%rsp.
        let mut other = calls[25..].to_vec();
        other.insert(8, 0x90);
        assert_eq!(from(&other), Ahead::Lost);
        let restores = [&calls[25..35], &[0x64, 0x24, 8]].concat();
        assert_eq!(from(&restores), Ahead::Framed);
        // Another register is pushed: pop %r10; lea (%rsp,%rcx,8),%rsp; push %r11; and other
        // instructions.
        for (at, value) in [(7, 0x53), (6, 0x90), (3, 0x8b), (4, 0x64)] {
            let mut other = returns;
            other[at] = value;
            assert_eq!(from(&other), Ahead::Lost, "{at}");
        }
        // pop %r8; lea (%rsp,%r12,8),%rsp; push %r8
        assert_eq!(
            from(&[0x41, 0x58, 0x4a, 0x8d, 0x24, 0xe4, 0x41, 0x50]),
            rule(8, 0)
        );
    }

    #[test]
    fn other_code_shows_no_frame() {
        // lea (%rsp,%rcx,8),%rsp; push %r10; ret. mov %rdx,%rsp. mov 8(%rdi),%rsp. xchg %rax,%rsp
        for code in [
            &[0x48, 0x8d, 0x24, 0xcc, 0x41, 0x52, 0xc3][..],
            &[0x48, 0x89, 0xd4],
            &[0x48, 0x8b, 0x67, 8],
            &[0x48, 0x94],
            &[0x48, 0x83, 0xe4, 0xf0],
            // mov %ebp,%esp; add $8,%esp
            &[0x89, 0xec],
            &[0x83, 0xc4, 8],
            // push %r11; ret: the word below the stack may be anything.
            &[0x41, 0x53, 0xc3],
        ] {
            assert_eq!(from(code), Ahead::Lost, "{code:x?}");
        }
        // push %r15; push %rbp; push %rbx; mov %rdi,%rbp; call: the frame pointer is saved as any
        // other register.
        let saves = [0x41, 0x57, 0x55, 0x53, 0x48, 0x89, 0xfd, 0xe8, 1, 2, 3, 4];
        assert_eq!(from(&saves), Ahead::Lost);
        assert_eq!(from(&saves[3..]), Ahead::Calls);
        // mov %esp,%ebp
        assert_eq!(from(&[0x89, 0xe5, 0xc3]), rule(8, 0));
        // jmp *%rcx; ud2; syscall; a loop; nops; code that cannot be read.
        for code in [
            &[0xff, 0xe1][..],
            &[0x0f, 0x0b],
            &[0x0f, 5],
            &[0xeb, 0xfe],
            &[],
        ] {
            assert_eq!(from(code), Ahead::Unknown, "{code:x?}");
        }
        assert_eq!(ahead(0, &[0xc3; BYTES - 1][..]), Ahead::Unknown);
    }

    /// The PC of the caller; 0 for the outermost frame.
    fn step_in(process: &MockProcess, pc: u64, innermost: bool) -> Option<u64> {
        let frame = Frame {
            pc,
            sp: STACK + 0x100,
            fp: STACK + 0x200,
        };
        match step(&frame, innermost, false, STACK + 0x1000, process)? {
            Step::Caller(caller) => Some(caller.pc),
            Step::Outermost => Some(0),
        }
    }

    #[test]
    fn jit_code_may_check_before_it_sets_up_a_frame() {
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        // jne; push %rbp; mov %rsp,%rbp
        process
            .write(PC, &[0x0f, 0x85, 1, 2, 3, 4])
            .write(PC + 6, &SETS_UP);
        let step = |process: &MockProcess| step_in(process, PC, true);
        // The word on top of the stack is not after a call.
        assert_eq!(step(&process), None);
        process.call(on_top).word(STACK + 0x100, on_top);
        assert_eq!(step(&process), Some(on_top));
        // A function that has called has set up its frame pointer.
        assert_eq!(step_in(&process, PC, false), Some(CALLER));
        // In a file, the prologue may be the start of another function.
        assert_eq!(process.innermost(PC), None);
        process.write(PC, &[0xc9]);
        assert_eq!(step(&process), Some(CALLER));
        // A jmp to the prologue, which is the first instruction of V8's regular expressions.
        process
            .write(PC, &[0xe9, 0x7b, 0, 0, 0])
            .write(PC + 0x80, &SETS_UP);
        assert_eq!(step(&process), Some(on_top));
        // The jump does not lead to a prologue: the frame pointer may be the caller's, and would
        // leave out `on_top`.
        process.write(PC + 0x80, &[0x90; 4]);
        assert_eq!(step(&process), None);
        process.word(STACK + 0x100, 1);
        assert_eq!(step(&process), Some(CALLER));
    }

    #[test]
    fn the_frame_pointer_may_be_the_callees_already() {
        let (on_top, caller_fp) = (PROGRAM + 0x600, STACK + 0x300);
        let mut process = called();
        process
            .word(STACK + 0x200, caller_fp)
            .word(caller_fp, STACK + 0x400)
            .word(caller_fp + 8, on_top);
        let step = |process: &MockProcess| step_in(process, PC, true);
        // mov %rbp,(%rsp); mov %rsp,%rbp; call. The new frame holds the frame pointer of the
        // caller, which is the innermost frame.
        process
            .write(
                PC - 7,
                &[0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec, 0xff, 0x50, 0xfd],
            )
            .write(FUNCTION, &SETS_UP);
        assert_eq!(step(&process), None);
        process.call(on_top);
        assert_eq!(step(&process), Some(on_top));
        assert_eq!(process.innermost(PC), Some(CALLER));
        // pop 8(%rbp): the return address is on top of the stack.
        let mut process = called();
        process
            .write(PC, &[0x8f, 0x45, 0x08])
            .word(STACK + 0x100, on_top);
        assert_eq!(step(&process), None);
        process.call(on_top);
        assert_eq!(step(&process), Some(on_top));
    }

    #[test]
    fn a_caller_of_sbcl_makes_the_frame() {
        let mut process = called();
        // and $-16,%rsp: the code ahead proves nothing. A word on top of the stack is after a call.
        process
            .write(PC, &[0x48, 0x83, 0xe4, 0xf0])
            .word(STACK + 0x100, CALLER);
        let step = |process: &MockProcess| step_in(process, PC, true);
        assert_eq!(step(&process), None);
        // mov %rbp,(%rsp); mov %rsp,%rbp; mov -16(%r13),%rax; call *N(%rax)
        let call = [
            0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec, 0x49, 0x8b, 0x45, 0xf0, 0xff, 0x90, 1, 2, 0,
            0,
        ];
        process.write(CALLER - 17, &call);
        assert_eq!(step(&process), Some(CALLER));
        // A routine in assembly has no frame. A function begins with pop 8(%rbp).
        let return_address = LIBRARY + 0x900;
        let distance = (FUNCTION as i32).wrapping_sub(return_address as i32);
        let direct = [&[CALL_RELATIVE][..], &distance.to_le_bytes()].concat();
        process
            .write(return_address - 5, &direct)
            .word(STACK + 0x108, return_address);
        assert_eq!(step(&process), None);
        process.write(FUNCTION, &[0x8f, 0x45, 8]);
        assert_eq!(step(&process), Some(CALLER));
        // The end of an allocation, xor %r13,40(%r13) and what follows, in a function and in a
        // routine.
        let allocates = [0x4d, 0x31, 0x6d, 0x28, 0x74, 2, 0xcc, 9];
        process.write(PC - 8, &allocates);
        assert_eq!(step(&process), Some(CALLER));
        process.write(FUNCTION, &[0x90]);
        assert_eq!(step(&process), None);
    }

    #[test]
    fn a_routine_that_calls_may_have_no_frame() {
        const SLOT: u64 = STACK + 0x800;
        let return_address = LIBRARY + 0x900;
        let mut process = called();
        let call = [&[0xff, 0x14, 0x25][..], &(SLOT as u32).to_le_bytes()].concat();
        let step = |process: &MockProcess| step_in(process, PC, true);
        // call *0x10(%rsi), three words below the return address
        process
            .write(PC, &[0xff, 0x56, 0x10])
            .write(return_address - 7, &call)
            .word(STACK + 0x118, return_address)
            .word(SLOT, FUNCTION);
        assert_eq!(step(&process), None);
        // That call leads elsewhere.
        process.word(SLOT, FUNCTION - 0x100);
        assert_eq!(step(&process), Some(CALLER));
    }

    #[test]
    fn the_call_of_a_function_proves_where_its_return_address_is() {
        let (on_top, framed) = (PROGRAM + 0x600, CALLER);
        let mut process = called();
        let step_at = |pc: u64, is_examined, process: &MockProcess| {
            let frame = Frame {
                pc,
                sp: STACK + 0x100,
                fp: STACK + 0x200,
            };
            match step(&frame, true, is_examined, STACK + 0x1000, process)? {
                Step::Caller(caller) => Some(caller.pc),
                Step::Outermost => Some(0),
            }
        };
        let step = |process: &MockProcess| step_at(PC, true, process);
        let direct = |process: &mut MockProcess, return_address: u64, target: u64| {
            let distance = target.wrapping_sub(return_address) as u32;
            process
                .write(return_address - 5, &[0xe8])
                .write(return_address - 4, &distance.to_le_bytes());
        };
        // The code shows nothing; both words follow a call.
        process.call(on_top).word(STACK + 0x100, on_top);
        assert_eq!(step(&process), None);
        // A function without a prologue, called by the code of the word on top.
        direct(&mut process, on_top, FUNCTION);
        assert_eq!(step(&process), Some(on_top));
        // With a prologue, the word on top is another one.
        process.write(FUNCTION, &SETS_UP);
        assert_eq!(step(&process), None);
        // If both calls lead to the function, it may have given up its frame again.
        direct(&mut process, framed, FUNCTION);
        assert_eq!(step(&process), None);
        process.call(on_top);
        assert_eq!(step(&process), Some(framed));
        // The call of the word on top leads to a nearer function.
        direct(&mut process, on_top, FUNCTION + 0x10);
        process.write(FUNCTION + 0x10, &SETS_UP);
        assert_eq!(step(&process), None);
        // A function that may set up its frame pointer later: test %rdi,%rdi; je; push; mov.
        direct(&mut process, on_top, FUNCTION);
        process.write(FUNCTION, &[0x48, 0x85, 0xff, 0x74, 9]);
        process.write(FUNCTION + 5, &SETS_UP);
        assert_eq!(step(&process), None);
        process.write(FUNCTION, &SETS_UP).call(on_top);
        // At the first instruction, whose page is missing, the word on top is proved.
        const MISSING: u64 = PROGRAM + 0x40000;
        direct(&mut process, on_top, MISSING);
        assert_eq!(step_at(MISSING, true, &process), Some(on_top));
        assert_eq!(step_at(MISSING, false, &process), None);
        process.call(on_top);
        assert_eq!(step_at(MISSING, true, &process), None);
        // Without a return address on top, the code goes on from the page in front.
        process.word(STACK + 0x100, 1);
        assert_eq!(step_at(MISSING, true, &process), Some(framed));
        process.word(STACK + 0x100, on_top);
        // Behind the function that the call leads to, another one begins.
        direct(&mut process, framed, FUNCTION);
        assert_eq!(step(&process), Some(framed));
        let other = FUNCTION + 0x40;
        process.write(other - 8, &[0xcc; 8]).write(other, &[0xc3]);
        assert_eq!(step(&process), None);
        process.write(other - 8, &[0x90; 9]);
        // The call leads to another function; or through a stub: mov $1,%r8d; jmp.
        direct(&mut process, framed, PC + 1);
        assert_eq!(step(&process), None);
        let stub = PROGRAM + 0x100;
        direct(&mut process, framed, stub);
        process.write(stub, &[0x41, 0xb8, 1, 0, 0, 0, 0xe9]);
        let distance = FUNCTION.wrapping_sub(stub + 11) as u32;
        process.write(stub + 7, &distance.to_le_bytes());
        assert_eq!(step(&process), Some(framed));
        // jmp *16(%rdx,%rcx,8), jmp *40(%r8): the function may have given up its frame.
        for code in [&[0xff, 0x64, 0xca, 0x10][..], &[0x41, 0xff, 0x60, 0x28]] {
            process.write(PC, code);
            assert_eq!(step(&process), None);
        }
        // mov %rdx,%rsp: the frame is lost, but for this proof.
        process.write(PC, &[0x48, 0x89, 0xd4]);
        assert_eq!(step(&process), Some(framed));
        process.call(framed);
        assert_eq!(step(&process), None);
        // jmp *1(%rip), bnd jmp *1(%rip)
        for code in [
            &[0xff, 0x25, 1, 0, 0, 0][..],
            &[0xf2, 0xff, 0x25, 1, 0, 0, 0],
        ] {
            process.write(PC, code);
            assert_eq!(step(&process), Some(on_top));
        }
    }

    #[test]
    fn the_start_of_a_function_shows_its_frame_until_it_calls() {
        const START: u64 = LIBRARY + 0x280;
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        // mov -1(%rax),%r8; push %rbp; push %rbx; sub $16,%rsp; jne; xor %ebp,%ebp; jmp *%rcx
        let code = [
            0x4c, 0x8b, 0x40, 0xff, 0x55, 0x53, 0x48, 0x83, 0xec, 0x10, 0x75, 0x20, 0x31, 0xed,
            0xff, 0xe1,
        ];
        process.write(START - 8, &[0xcc; 8]).write(START, &code);
        let step = |process: &MockProcess, pc, is_examined| {
            let frame = Frame {
                pc,
                sp: STACK + 0x100,
                fp: STACK + 0x200,
            };
            match step(&frame, true, is_examined, STACK + 0x1000, process)? {
                Step::Caller(caller) => Some((caller.pc, caller.fp)),
                Step::Outermost => None,
            }
        };
        process.call(on_top).word(STACK + 0x100, on_top);
        // Both words follow a call.
        for at in [0, 4] {
            let found = step(&process, START + at, true);
            assert_eq!(found, Some((on_top, STACK + 0x200)), "{at}");
            assert_eq!(step(&process, START + at, false), None, "{at}");
        }
        // Between instructions there is no PC.
        assert_eq!(step(&process, START + 15, true), None);
        process
            .word(STACK + 0x100, 1)
            .word(STACK + 0x118, 0x1234)
            .word(STACK + 0x120, on_top);
        for at in [10, 12, 14] {
            let found = step(&process, START + at, true);
            assert_eq!(found, Some((on_top, 0x1234)), "{at}");
        }
        // The function follows a jump of another path; or it is not known where it begins.
        process.word(STACK + 0x100, on_top);
        for other in [&[0xeb, 0, 0x90, 0x90][..], &[0xe8, 0, 0, 0]] {
            process.write(START, other);
            assert_eq!(step(&process, START + 14, true), None, "{other:x?}");
        }
        process.write(START, &code).write(START - 8, &[0xcc; 7]);
        assert_eq!(step(&process, START, true), Some((on_top, STACK + 0x200)));
        process.write(START - 1, &[0x90]);
        assert_eq!(step(&process, START, true), None);
    }

    #[test]
    fn a_caller_without_a_frame_is_not_shown() {
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        // call PC
        let distance = (PC as u32).wrapping_sub(on_top as u32);
        process
            .write(on_top - 5, &[CALL_RELATIVE])
            .write(on_top - 4, &distance.to_le_bytes())
            .word(STACK + 0x100, on_top);
        let step = |process: &MockProcess| {
            let frame = Frame {
                pc: PC,
                sp: STACK + 0x100,
                fp: STACK + 0x200,
            };
            step(&frame, true, true, STACK + 0x1000, process).is_some()
        };
        assert!(step(&process));
        // pop %r15; push %rbp; mov %rsp,%rbp: the caller's return address lies above this one, and
        // the frame pointer leads to the frame of the caller's caller.
        process.write(PC, &[0x41, 0x5f, 0x55, 0x48, 0x89, 0xe5]);
        assert!(!step(&process));
    }

    #[test]
    fn jit_code_may_have_no_frame() {
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        process.call(on_top).word(STACK + 0x108, on_top);
        let step = |process: &MockProcess| step_in(process, PC, true);
        // pop %rbx; ret. With another word in the place of the return address, it is no return.
        process.write(PC, &[0x5b, 0xc3]);
        assert_eq!(step(&process), Some(on_top));
        process.word(STACK + 0x108, 1);
        assert_eq!(step(&process), None);
        // pop %r10; lea (%rsp,%rcx,8),%rsp; push %r10; ret, after the pop: the return address is in
        // a register.
        process.write(PC, &[0x48, 0x8d, 0x24, 0xcc, 0x41, 0x52, 0xc3]);
        assert_eq!(step(&process), None);
        // xor %ecx,%ecx; jmp over two bytes; leave: the last byte of the first instruction is no
        // leave.
        process
            .word(STACK + 0x100, on_top)
            .write(PC - 2, &[0x31, 0xc9, 0xeb, 2, 0, 0, 0xc9]);
        assert_eq!(step(&process), Some(CALLER));
        // leave; jmp *%rcx: the byte before the jump may also be the end of another instruction.
        process.write(PC - 1, &[0xc9, 0xff, 0xe1]);
        assert_eq!(step(&process), None);
        process.word(STACK + 0x100, 1);
        assert_eq!(step(&process), Some(CALLER));
        // call: the function has a frame, or is one of V8's without a frame, whose return address
        // is on top of the stack.
        process
            .write(PC, &[0xe8, 1, 2, 3, 4])
            .word(STACK + 0x100, on_top);
        assert_eq!(step(&process), None);
        process.word(STACK + 0x100, 1);
        assert_eq!(step(&process), Some(CALLER));
    }

    #[test]
    fn a_caller_may_have_saved_registers_without_a_frame() {
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        process.call(on_top).word(STACK + 0x110, on_top);
        let step = |process: &MockProcess| step_in(process, PC, false);
        // pop %rdi; pop %rbx; ret. Another word is in the place of the return address.
        process.write(PC, &[0x5f, 0x5b, 0xc3]);
        assert_eq!(step(&process), Some(on_top));
        process.word(STACK + 0x110, 1);
        assert_eq!(step(&process), None);
        // The trampoline of Python's option -X perf, after its call: add $8,%rsp; ret
        process
            .word(STACK + 0x108, on_top)
            .write(PC, &[0x48, 0x83, 0xc4, 8, 0xc3]);
        assert_eq!(step(&process), Some(on_top));
        // pop %rdi; pop %rbx; leave. pop %rdi; call. pop %rdi; jmp *%rax. ret
        for code in [
            &[0x5f, 0x5b, 0xc9][..],
            &[0x5f, 0xe8, 1, 2, 3, 4],
            &[0x5f, 0xff, 0xe0],
            &[0xc3],
        ] {
            process.write(PC, code);
            assert_eq!(step(&process), Some(CALLER), "{code:x?}");
        }
    }

    #[test]
    fn a_prologue_may_begin_anywhere() {
        let on_top = PROGRAM + 0x600;
        let mut process = MockProcess::new();
        process.call(on_top).word(STACK + 0x100, on_top);
        process.write(PC, &SETS_UP);
        assert_eq!(step_in(&process, PC, true), Some(on_top));
    }

    #[test]
    fn a_frame_pointer_is_followed_behind_a_call_alone() {
        assert_eq!(step_in(&called(), PC, false), Some(CALLER));
        let mut process = MockProcess::new();
        process.write(FUNCTION, &SETS_UP);
        // A zero does not end the stack.
        assert_eq!(step_in(&process, PC, false), None);
        process.word(STACK + 0x208, CALLER);
        assert_eq!(step_in(&process, PC, false), None);
    }

    #[test]
    fn a_missing_page_of_code_proves_nothing_against_an_examined_file() {
        let mut process = MockProcess::new();
        // Neither code nor stack is there.
        let missing = LIBRARY + 0x10_0000;
        process.word(STACK + 0x208, missing);
        let frame = Frame {
            pc: PC,
            sp: STACK + 0x100,
            fp: STACK + 0x200,
        };
        let found = |(innermost, is_examined)| {
            let step = step(&frame, innermost, is_examined, STACK + 0x1000, &process);
            step.is_some()
        };
        assert!(found((false, true)));
        // The function of the innermost frame may not have set up its frame yet, and would be left
        // out: nothing shows that the word on top of the stack is no return address, either.
        for others in [(false, false), (true, true), (true, false)] {
            assert!(!found(others), "{others:?}");
        }
        process.word(STACK + 0x208, CALLER);
        assert_eq!(step(&frame, false, true, STACK + 0x1000, &process), None);
    }

    #[test]
    fn a_lost_frame_pointer_leads_nowhere() {
        let mut process = called();
        process.write(FUNCTION, &SETS_UP);
        for (fp, found) in [(STACK + 0x200, true), (LOST_FP, false)] {
            for end in [STACK + 0x1000, u64::MAX] {
                let frame = Frame {
                    pc: PC,
                    sp: STACK + 0x100,
                    fp,
                };
                let step = step(&frame, false, false, end, &process);
                assert_eq!(step.is_some(), found, "{fp:#x}");
            }
        }
    }

    /// The PCs that [`run_fast`] finds from PC on, in the code of the library. A row has another
    /// rule for the lookup address `covered`.
    fn run_to(process: &MockProcess, pc: u64, covered: u64, stack_end: u64) -> Vec<u64> {
        let mut buffer = [0; 8];
        let start = Frame {
            pc,
            sp: STACK + 0x100,
            fp: STACK + 0x200,
        };
        let mut last = start;
        let found = run_fast(
            (LIBRARY..LIBRARY + 0x1000, stack_end),
            |address| address == covered,
            &mut last,
            process,
            &Words(process),
            &mut buffer,
        );
        let mut frame = start;
        for pc in &buffer[..found] {
            match step(&frame, false, true, stack_end, process) {
                Some(Step::Caller(caller)) if caller.pc == *pc => frame = caller,
                other => panic!("{other:x?} and not {pc:#x}"),
            }
        }
        assert_eq!(last, frame);
        buffer[..found].to_vec()
    }

    #[test]
    fn the_fast_path_follows_frame_pointers() {
        const CALLERS: [u64; 4] = [PC + 0x20, PC + 0x40, PC + 0x60, CALLER];
        const END: u64 = STACK + 0x1000;
        let mut process = MockProcess::new();
        for (number, caller) in CALLERS.into_iter().enumerate() {
            let at = STACK + 0x200 + 0x40 * number as u64;
            process
                .word(at, at + 0x40)
                .word(at + 8, caller)
                .call(caller);
        }
        // The last caller is outside of the code.
        let found = |process: &MockProcess, end| run_to(process, PC, 0, end);
        assert_eq!(found(&process, END), CALLERS[..3]);
        assert_eq!(found(&process, STACK + 0x250), CALLERS[..2]);
        assert_eq!(found(&process, 0), []);
        assert_eq!(run_to(&process, PC, CALLERS[1] - 1, END), CALLERS[..2]);
        // call *16(%rax)
        process.write(CALLERS[1] - 3, &[0xff, 0x50, 16]);
        assert_eq!(found(&process, END), CALLERS[..3]);
        // pop %rdi. mov $15,%rax; syscall
        for code in [&[0x5f][..], &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 5]] {
            process.write(CALLERS[1], code);
            assert_eq!(found(&process, END), CALLERS[..2], "{code:x?}");
        }
        process.write(CALLERS[1] - 3, &[0x90; 3]);
        assert_eq!(found(&process, END), CALLERS[..1]);
        // The code at the first PC may be in two pages.
        let near = LIBRARY + 0xffc;
        process.call(near).word(STACK + 0x208, near);
        assert_eq!(found(&process, END), [near]);
        // The chain does not rise, is not aligned, and ends.
        for fp in [STACK + 0x200, STACK + 0x234, 0] {
            process
                .word(STACK + 0x200, fp)
                .word(STACK + 0x208, CALLERS[0]);
            let all: &[u64] = if fp == 0 { &[] } else { &CALLERS[..1] };
            assert_eq!(found(&process, END), all, "{fp:#x}");
        }
    }
}
