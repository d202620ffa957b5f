// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The frame pointer around a call of SBCL, a compiler of Common Lisp. AMD64 only.
//!
//! The caller makes the callee's frame: it saves its own frame pointer in the new frame, sets the
//! frame pointer to the new frame, and calls. The callee's first instruction moves the return
//! address from the stack to the frame. So the frame pointer is the callee's already in the last
//! instructions of the caller, and the new frame has no return address until the first instruction
//! of the callee is over (`src/compiler/x86-64/call.lisp` in SBCL's source).

use crate::sframe::{
    format::bytes::Source,
    unwind::step::{
        Frame,
        Memory, //
    },
    x86_64::{
        decode::{
            instruction,
            Effect,
            DECODING, //
        },
        insn::{
            CALL_RELATIVE,
            GROUP_5,
            INT3,
            JMP_SHORT,
            PUSH_RBP, //
        }, //
    }, //
};

/// `pop 8(%rbp)`
const POP_RETURN_ADDRESS: [u8; 3] = [0x8f, 0x45, 0x08];

/// mov 9(%rip),%rax; jmp *-3(%rax): the code in the object of a generic function, which a caller
/// calls in place of the function.
const TO_FUNCTION: [u8; 10] = [0x48, 0x8b, 0x05, 9, 0, 0, 0, 0xff, 0x60, 0xfd];

/// The bytes before a PC that are looked at.
const IN_FRONT: usize = 24;
/// The bytes from a PC on that are looked at.
const BEHIND: usize = 3;

/// The words that a routine may have pushed, and the return address.
const PUSHED_WORDS: u64 = 4;
/// The maximum size of a routine, in bytes.
const ROUTINE: u64 = 256;
/// The maximum distance from a routine to the code that calls it, in bytes.
const NEAR_CODE: u64 = 1 << 30;

/// The work of comparing the bytes before a PC with the known instructions, in instructions.
const SEARCH: u32 = 700;

/// Where a PC is in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    /// In a function whose frame pointer is its own: the caller before it changes the frame
    /// pointer; the callee after `lea -N(%rbp),%rsp`; or a function that has pushed its return
    /// address for a tail call.
    Framed,
    /// Behind the end of an allocation. In a function, as `Framed`; but a routine in assembly may
    /// allocate, too.
    Allocating,
    /// In the caller. The frame pointer is the callee's, and leads to the caller's frame pointer.
    Calling,
    /// In the code that leaves frames for an outer one. The frame pointer is the outer frame's, as
    /// far as that frame is reached: `mov N(%rax),%rbp` is before the PC.
    Unwinding,
    /// Before or at the first instruction of the callee. The return address is on top of the stack,
    /// and the frame pointer leads to the caller's frame pointer.
    Called,
}

/// Whether a frame may be of one of SBCL's routines in assembly, which make no frame. Their return
/// address is one of the words on top of the stack. They are called directly, or through an address
/// in low memory or beside the code: call *NUMBER, call *DISTANCE(%rip).
#[inline(never)]
pub(super) fn is_routine<M: Memory + Source + ?Sized>(frame: &Frame, memory: &M) -> bool {
    (0..PUSHED_WORDS).any(|word| {
        let slot = frame.sp.wrapping_add(8 * word);
        // The frame pointer is the caller's, so the return address is below the caller's frame.
        let return_address = memory.read_word(slot).ok().filter(|_| slot < frame.fp);
        let Some(return_address) = return_address.filter(|at| at.abs_diff(frame.pc) < NEAR_CODE)
        else {
            return false;
        };
        let Ok([first, second, third, number @ ..]) =
            memory.read::<7>(return_address.wrapping_sub(7))
        else {
            return false;
        };
        let number = i32::from_le_bytes(number);
        let behind = return_address.wrapping_add_signed(number.into());
        let start = match (first, second, third) {
            (_, _, CALL_RELATIVE) => Ok(behind),
            (_, GROUP_5, 0x15) => memory.read_word(behind),
            (GROUP_5, 0x14, 0x25) => memory.read_word((number as u32).into()),
            _ => return false,
        };
        start.is_ok_and(|start| {
            frame.pc.wrapping_sub(start) < ROUTINE && memory.read(start) != Ok(POP_RETURN_ADDRESS)
        })
    })
}

/// Whether the frame pointer of the innermost frame leads to a frame that its caller has made, as
/// the code in front of the return address shows. False in a routine in assembly.
#[inline(never)]
pub(super) fn is_made_by_caller<M: Memory + Source + ?Sized>(frame: &Frame, memory: &M) -> bool {
    let Ok(return_address) = memory.read_word(frame.fp.wrapping_add(8)) else {
        return false;
    };
    let Ok(call) = memory.read(return_address.wrapping_sub(7)) else {
        return false;
    };
    let len = match call {
        [_, _, CALL_RELATIVE, _, _, _, _] => 5,
        [_, GROUP_5, 0x15 | 0x90..=0x97, _, _, _, _] => 6,
        [GROUP_5, 0x14, 0x25, _, _, _, _] => 7,
        [_, _, _, _, GROUP_5, 0x50..=0x57, _] => 3,
        _ => return false,
    };
    call_state(return_address.wrapping_sub(len), memory) == Some(CallState::Calling)
        && !is_routine(frame, memory)
}

/// Whether `code` ends with mov %REGISTER,%rbp, which is no function's prologue.
fn sets_frame_pointer(code: &[u8]) -> bool {
    matches!(*code, [.., last, 0x48 | 0x49, 0x8b, 0xe8..=0xef] if last != PUSH_RBP)
}

/// Where the run-time address `pc` is in a call of SBCL's; `None` if it is outside of the
/// instructions around a call, or if the code cannot be read.
#[inline(never)]
pub(super) fn call_state<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<CallState> {
    let code: [u8; IN_FRONT + BEHIND] = memory.read(pc.wrapping_sub(IN_FRONT as u64)).ok()?;
    let (before, at) = code.split_at(IN_FRONT);
    if at == POP_RETURN_ADDRESS || to_function(pc, &code, memory) {
        return Some(CallState::Called);
    }
    let is_call = matches!(*at, [CALL_RELATIVE, ..])
        || matches!(*at, [GROUP_5, operand, _] if operand & 0x38 == 0x10);
    // The caller's frame pointer is in the new frame already.
    if is_call && sets_frame_pointer(before) {
        return Some(CallState::Calling);
    }
    match *before {
        // je over call; jmp over the call at the PC, which is after them.
        [.., 0x74, 7, CALL_RELATIVE, _, _, _, _, JMP_SHORT, 3]
        | [.., 0x74, 9, GROUP_5, 0x14, 0x25, _, _, _, _, JMP_SHORT, 3]
            if is_call =>
        {
            return Some(CallState::Calling);
        }
        [.., 0x74, 7, CALL_RELATIVE, _, _, _, _]
        | [.., 0x74, 9, GROUP_5, 0x14, 0x25, _, _, _, _]
            if matches!(*at, [JMP_SHORT, 3, ..]) =>
        {
            return Some(CallState::Calling);
        }
        _ => {}
    }
    memory.spend(SEARCH).ok()?;
    (0..IN_FRONT).find_map(|start| state_behind(code.get(start..)?, memory))
}

/// Whether `pc` is in the code of a generic function's object. `code` are the bytes around `pc`.
fn to_function<S: Source + ?Sized>(pc: u64, code: &[u8; IN_FRONT + BEHIND], memory: &S) -> bool {
    let (before, at) = code.split_at(IN_FRONT);
    let (mov, jmp) = TO_FUNCTION.split_at(7);
    (at == jmp && before.ends_with(mov))
        || (mov.starts_with(at) && memory.read(pc) == Ok(TO_FUNCTION))
}

/// The length of the instructions at the start of `code` that save the frame pointer in the
/// callee's frame, and set the frame pointer to that frame: mov %rbp,(%REGISTER); mov
/// %REGISTER,%rbp. `None` if other instructions are there.
pub(super) fn makes_frame(code: &[u8]) -> Option<usize> {
    match *code {
        [0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec, ..] => Some(7),
        [prefix @ (0x48 | 0x49), 0x89, slot @ 0x28..=0x2f, other, 0x8b, to @ 0xe8..=0xef, ..]
            if prefix == other && slot & 7 == to & 7 =>
        {
            Some(6)
        }
        _ => None,
    }
}

/// The state that the instruction at the start of `code` proves for the PC, which is [`BEHIND`]
/// bytes before the end of `code`. In between are only instructions that change neither the stack
/// pointer nor the frame pointer.
fn state_behind<S: Source + ?Sized>(code: &[u8], memory: &S) -> Option<CallState> {
    let (len, state) = match *code {
        [0xff, 0x75, 0x08, ..] => (3, CallState::Framed),
        [0x48, 0x8d, 0x65, 0x80..=0xff, ..] => (4, CallState::Framed),
        // The end of an allocation: xor %rbp,NUMBER(%r13), or xor %r13,NUMBER(%r13); je over the
        // next two bytes; int3; a byte for its handler.
        [0x49 | 0x4d, 0x31, 0x6d, _, 0x74, 2, INT3, _, ..] => (8, CallState::Allocating),
        [0x48, 0x8b, 0x68, _, ..] => (4, CallState::Unwinding),
        _ => (makes_frame(code)?, CallState::Calling),
    };
    let mut behind = code.get(len..)?;
    while behind.len() > BEHIND {
        memory.spend(DECODING).ok()?;
        match instruction(behind)? {
            (len, Effect::Other | Effect::Local) => behind = behind.get(len as usize..)?,
            _ => return None,
        }
    }
    match (behind.len(), state) {
        (BEHIND, _) => Some(state),
        // Before the change of the frame pointer, an instruction of three bytes.
        (0, CallState::Calling) => Some(CallState::Framed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::format::bytes::Fault;
    use iced_x86::{
        Decoder,
        DecoderOptions, //
    };
    use std::{
        vec,
        vec::Vec, //
    };

    /// Code of SBCL 2.5: sub $16,%rsp; mov $2,%ecx; mov %rbp,(%rsp); mov %rsp,%rbp; call *-3(%rax)
    const CALL: [u8; 19] = [
        0x48, 0x83, 0xec, 0x10, 0xb9, 2, 0, 0, 0, 0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec, 0xff,
        0x50, 0xfd,
    ];
    /// mov %rbp,(%r9); mov %r9,%rbp; lea -11(%rax),%ebx; test $15,%bl; je; call; jmp; call
    /// *-3(%rax)
    const UNKNOWN_CALL: [u8; 26] = [
        0x49, 0x89, 0x29, 0x49, 0x8b, 0xe9, 0x8d, 0x58, 0xf5, 0xf6, 0xc3, 0x0f, 0x74, 0x07, 0xe8,
        1, 2, 3, 4, 0xeb, 3, 0xff, 0x50, 0xfd, 0x90, 0x90,
    ];
    /// mov %r10,(%r9); mov %r9,%rbp; call
    const LOCAL_CALL: [u8; 11] = [0x4d, 0x89, 0x11, 0x49, 0x8b, 0xe9, 0xe8, 1, 2, 3, 4];
    /// push %rbp; mov %rsp,%rbp; call
    const PROLOGUE: [u8; 9] = [PUSH_RBP, 0x48, 0x8b, 0xec, 0xe8, 1, 2, 3, 4];

    /// The address of the code.
    const START: u64 = 0x1000;

    struct MadeCode<'a>(&'a [u8]);

    impl Source for MadeCode<'_> {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            let byte = |at: u64| {
                let at = at
                    .checked_sub(START)
                    .and_then(|at| usize::try_from(at).ok());
                at.and_then(|at| self.0.get(at)).copied().unwrap_or(0x90)
            };
            Ok(std::array::from_fn(|at| byte(offset + at as u64)))
        }
    }

    /// The states at the instructions of `code`.
    fn states(code: &[u8]) -> Vec<(u64, CallState)> {
        let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
        let starts = std::iter::from_fn(|| decoder.can_decode().then(|| decoder.decode().ip()));
        starts
            .filter_map(|at| Some((at, call_state(START + at, &MadeCode(code))?)))
            .collect()
    }

    #[test]
    fn the_frame_pointer_is_the_callees_in_front_of_a_call() {
        assert_eq!(
            states(&CALL),
            [(13, CallState::Framed), (16, CallState::Calling)]
        );
        assert_eq!(states(&LOCAL_CALL), [(6, CallState::Calling)]);
        let mut expected = vec![(3, CallState::Framed)];
        expected.extend([6, 9, 12, 14, 19, 21].map(|at| (at, CallState::Calling)));
        assert_eq!(states(&UNKNOWN_CALL), expected);
        // The same, with a call by an address in low memory.
        let code = [
            &UNKNOWN_CALL[..12],
            &[
                0x74, 0x09, 0xff, 0x14, 0x25, 0xc8, 4, 0, 0x50, 0xeb, 3, 0xff, 0x50, 0xfd,
            ],
        ];
        let mut expected = vec![(3, CallState::Framed)];
        expected.extend([6, 9, 12, 14, 21, 23].map(|at| (at, CallState::Calling)));
        assert_eq!(states(&code.concat()), expected);
        // The frame pointer is saved in another place than in the new frame.
        let mut code = UNKNOWN_CALL;
        code[2] = 0x28;
        assert_eq!(states(&code[..14]), []);
        assert_eq!(states(&PROLOGUE), []);
    }

    #[test]
    fn a_frame_pointer_may_be_proved_by_earlier_instructions() {
        let framed = |at| (at, CallState::Framed);
        // lea -16(%rbp),%rsp; mov %rdx,%r15; call; mov %rdx,%r15
        let code = [
            0x48, 0x8d, 0x65, 0xf0, 0x4c, 0x8b, 0xfa, 0xe8, 1, 2, 3, 4, 0x4c, 0x8b, 0xfa,
        ];
        assert_eq!(states(&code), [framed(4), framed(7)]);
        // xor %rbp,40(%r13); je; int3; 9; mov %rdx,%r15
        let code = [0x49, 0x31, 0x6d, 0x28, 0x74, 2, 0xcc, 9, 0x4c, 0x8b, 0xfa];
        assert_eq!(
            call_state(START + 8, &MadeCode(&code)),
            Some(CallState::Allocating)
        );
        // The same with xor %r13,40(%r13)
        let code = [0x4d, 0x31, 0x6d, 0x28, 0x74, 2, 0xcc, 9, 0x4c, 0x8b, 0xfa];
        assert_eq!(
            call_state(START + 8, &MadeCode(&code)),
            Some(CallState::Allocating)
        );
        // push 8(%rbp); mov -16(%r13),%rax; jmp *1688(%rax)
        let code = [
            0xff, 0x75, 8, 0x49, 0x8b, 0x45, 0xf0, 0xff, 0xa0, 0x98, 6, 0, 0,
        ];
        assert_eq!(states(&code), [framed(3), framed(7)]);
    }

    #[test]
    fn frames_may_be_left() {
        // mov 8(%rax),%rbp; mov 32(%rax),%rsi; jmp *16(%rax)
        let code = [
            0x48, 0x8b, 0x68, 8, 0x48, 0x8b, 0x70, 0x20, 0xff, 0x60, 0x10,
        ];
        let expected = [4, 8].map(|at| (at, CallState::Unwinding));
        assert_eq!(states(&code), expected);
    }

    #[test]
    fn a_callee_moves_its_return_address_first() {
        assert_eq!(
            states(&[0x90, 0x8f, 0x45, 0x08, 0x90]),
            [(1, CallState::Called)]
        );
        assert_eq!(states(&[0x8f, 0x45, 0x10]), []);
    }

    #[test]
    fn a_generic_function_is_called_through_its_object() {
        let called = [0, 7].map(|at| (at, CallState::Called));
        assert_eq!(states(&TO_FUNCTION), called);
        for (at, byte) in [(3, 8), (8, 0x20), (9, 0xfc)] {
            let mut code = TO_FUNCTION;
            code[at] = byte;
            assert_eq!(states(&code), [], "{at}");
        }
    }
}
