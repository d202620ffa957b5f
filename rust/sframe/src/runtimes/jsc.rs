// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Code that JavaScriptCore makes for calls of C functions. AMD64 only.
//!
//! The code has no frame, and the frame pointer is its caller's. Before the call it takes its
//! return address from the stack, and stores it among the caller's arguments: pop %rax; mov
//! %rax,N(%rsp). After the call it puts the address back: mov N(%rsp),%r10; push %r10
//! (`Source/JavaScriptCore/ftl/FTLThunks.cpp` in WebKit's source). Other code gives up a frame that
//! has only the saved frame pointer, and jumps: pop %rbp; jmp.
//!
//! A call whose target differs leads to code that searches for the target, and jumps to it. The
//! return address stays on top of the stack (`Source/JavaScriptCore/jit/ThunkGenerators.cpp`).

use crate::sframe::{
    format::bytes::Source,
    unwind::step::{
        Frame,
        Memory,
        Step, //
    },
    x86_64::{
        fallback::behind_call,
        prologue::FixedRule, //
    }, //
};

/// The step from a frame after a call; `None` if the frame's code is not of this kind.
// Not inlined, and reads the code by itself: the caller's stack has no room for a word of code.
#[inline(never)]
pub(super) fn step_behind_call<M: Memory + Source + ?Sized>(
    frame: &Frame,
    memory: &M,
) -> Option<Option<Step>> {
    let code = memory.read(frame.pc).map(u64::from_le_bytes).ok()?;
    Some(behind_call(rule_behind_call(code, frame)?, frame, memory))
}

/// The rule of a frame after a call, from the first bytes of its code; `None` if other code is
/// there.
#[inline]
pub(super) fn rule_behind_call(code: u64, frame: &Frame) -> Option<FixedRule> {
    // Where the frame pointer leads to the same words, the two rules are one.
    if code as u16 == 0xe95d && frame.fp != frame.sp {
        return Some(FixedRule::new(16, -16));
    }
    // The stored return address takes the place of one on top of the stack.
    stored_at(code).map(|distance| FixedRule::new(distance.wrapping_add(8), 0))
}

/// N of mov N(%rsp),%r10; push %r10, at the start of `code`.
fn stored_at(code: u64) -> Option<i32> {
    let distance = (code >> 32) as i8;
    (code & 0xff_ff00_ffff_ffff == 0x52_4100_2454_8b4c && distance >= 0).then_some(distance.into())
}

/// The distance of the return address from the stack pointer, in bytes, before the call at the
/// start of `code`, which is call *%r11; `None` if the code after the call is not of this kind.
// Not inlined: the caller's stack is the deepest.
#[inline(never)]
pub(super) fn stored_before_call(code: &[u8]) -> Option<i32> {
    match code {
        [0x41, 0xff, 0xd3, code @ ..] => stored_at(u64::from_le_bytes(*code.first_chunk()?)),
        _ => None,
    }
}

/// Whether `code` begins with mov %r10,8(%rsp); jmp *%r8, by which the target of a call is entered.
pub(super) fn enters_target(code: u64) -> bool {
    code == 0xe0ff_4108_2454_894c
}

/// Whether `code` begins with a je over less than 64 bytes, in the long form. The code that
/// searches for the target of a call leaves its loop so.
pub(super) fn leaves_search(code: u64) -> bool {
    code as u16 == 0x840f && (code >> 16) as u32 <= 63
}

/// Whether `code` begins with pop %rax; mov %rax,N(%rsp).
pub(super) fn takes_return_address(code: u64) -> bool {
    code as u8 == 0x58 && stores_return_address(code >> 8)
}

/// Whether the instruction at the run-time address `pc` stores the return address of `rule`: mov
/// %rax,N(%rsp).
#[inline(never)]
pub(super) fn stores<S: Source + ?Sized>(pc: u64, rule: FixedRule, memory: &S) -> bool {
    let Ok(code) = memory.read(pc).map(u64::from_le_bytes) else {
        return false;
    };
    stores_return_address(code) && (code >> 32) as u8 == rule.cfa.wrapping_sub(8) as u8
}

/// Whether `code` begins with mov %rax,N(%rsp).
fn stores_return_address(code: u64) -> bool {
    code as u32 == 0x2444_8948
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(code: &[u8]) -> u64 {
        let mut bytes = [0x90; 8];
        bytes[..code.len()].copy_from_slice(code);
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn a_return_address_may_be_among_the_callers_arguments() {
        let frame = Frame {
            pc: 0,
            sp: 0x100,
            fp: 0x200,
        };
        let put_back = [0x4c, 0x8b, 0x54, 0x24, 0x20, 0x41, 0x52];
        let rule = Some(FixedRule::new(0x28, 0));
        assert_eq!(rule_behind_call(word(&put_back), &frame), rule);
        // call *%r11
        let called = [&[0x41, 0xff, 0xd3][..], &put_back, &[0x90; 5]].concat();
        assert_eq!(stored_before_call(&called), Some(0x20));
        assert_eq!(stored_before_call(&called[..10]), None);
        // call *%r10
        let called = [&[0x41, 0xff, 0xd2][..], &called[3..]].concat();
        assert_eq!(stored_before_call(&called), None);
        for (at, byte) in [(0, 0x48), (1, 0x89), (4, 0x80), (5, 0x90), (6, 0x53)] {
            let mut code = put_back;
            code[at] = byte;
            assert_eq!(rule_behind_call(word(&code), &frame), None, "{at}");
        }
        let code = [0x58, 0x48, 0x89, 0x44, 0x24, 0x20];
        assert!(takes_return_address(word(&code)) && !takes_return_address(word(&code[1..])));
        let code = [&code[..], &[0x90; 8]].concat();
        let stores = |at: u64, cfa| stores(at, FixedRule::new(cfa, 0), &code[..]);
        assert!(stores(1, 0x28) && !stores(1, 0x30) && !stores(0, 0x28));
    }

    #[test]
    fn a_call_may_search_for_its_target() {
        let enters = [0x4c, 0x89, 0x54, 0x24, 0x08, 0x41, 0xff, 0xe0];
        assert!(enters_target(word(&enters)) && !enters_target(word(&enters[..7])));
        for (code, expected) in [
            (&[0x0f, 0x84, 63, 0, 0, 0], true),
            (&[0x0f, 0x84, 64, 0, 0, 0], false),
            (&[0x0f, 0x85, 63, 0, 0, 0], false),
            (&[0x0f, 0x84, 63, 0, 0, 0x80], false),
        ] {
            assert_eq!(leaves_search(word(code)), expected, "{code:x?}");
        }
    }

    #[test]
    fn a_frame_may_be_given_up_by_a_jump() {
        let code = word(&[0x5d, 0xe9, 1, 2, 3, 4]);
        let frame = |fp| Frame {
            pc: 0,
            sp: 0x100,
            fp,
        };
        let rule = FixedRule::new(16, -16);
        assert_eq!(rule_behind_call(code, &frame(0x200)), Some(rule));
        assert_eq!(rule_behind_call(code, &frame(0x100)), None);
        assert_eq!(rule_behind_call(word(&[0x5d, 0xc3]), &frame(0x200)), None);
    }
}
