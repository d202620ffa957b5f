// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Stubs of a procedure linkage table (PLT), and the start of a program: the rule at each of their
//! instructions. The linker writes no rows for these stubs.
//!
//! A stub loads x16 and x17, and jumps to x17: "PLT entries" in "ELF for the Arm 64-bit
//! Architecture". Only the first stub, for symbols that are not bound yet, pushes x16 and x30.

use super::{
    insn::{
        effect,
        is_call,
        InsnEffect,
        BR_X17,
        BTI_C,
        CLEAR_FP,
        CLEAR_LINK,
        PUSH_X16_LINK,
        SIZE, //
    },
    machine::usual_rule, //
};
use crate::sframe::{
    format::bytes::Source,
    rule::{
        Base,
        Location,
        Rule, //
    }, //
};

/// The number of bytes of a PLT stub that [`rule_of_stub`] examines.
pub const STUB: usize = 16;

/// The rule of a function that has touched neither the stack nor x29 and x30.
pub const UNTOUCHED: Rule = usual_rule(Base::Sp, 0, Location::Unchanged);

/// The rule of the first stub, behind its push.
const PUSHED: Rule = Rule {
    ra: Location::AtCfa(-8),
    ..usual_rule(Base::Sp, 16, Location::Unchanged)
};

const fn is_adrp_x16(word: u32) -> bool {
    word & 0x9f00_001f == 0x9000_0010
}

/// `ldr x17, [x16, #n]`.
const fn is_ldr_x17(word: u32) -> bool {
    word & 0xffc0_03ff == 0xf940_0211
}

/// `add x16, x16, #n`.
const fn is_add_x16(word: u32) -> bool {
    word & 0xffc0_03ff == 0x9100_0210
}

/// Whether four instructions load x16 and x17 and jump to x17. A stub that authenticates has
/// `autia1716` before the jump, and `br` ends it, too.
const fn is_jump(words: [u32; 4]) -> bool {
    let [page, load, place, jump] = words;
    is_adrp_x16(page) && is_ldr_x17(load) && is_add_x16(place) && jump == BR_X17
}

fn words<const N: usize>(code: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(code.chunks_exact(4)) {
        *word = bytes.try_into().map_or(0, u32::from_le_bytes);
    }
    words
}

/// The rule at `offset` bytes from the start of a PLT stub, from the stub's instructions; `None` if
/// the instructions are not those of a PLT stub. `code` is the stub.
pub fn rule_of_stub(code: &[u8; STUB], offset: u32) -> Option<Rule> {
    let words: [u32; 4] = words(code);
    match words {
        [PUSH_X16_LINK, page, load, place]
            if is_adrp_x16(page) && is_ldr_x17(load) && is_add_x16(place) =>
        {
            Some(if offset == 0 { UNTOUCHED } else { PUSHED })
        }
        [BTI_C, page, load, place]
            if is_adrp_x16(page) && is_ldr_x17(load) && is_add_x16(place) =>
        {
            Some(UNTOUCHED)
        }
        words => is_jump(words).then_some(UNTOUCHED),
    }
}

/// The instructions before the PC, and from the PC on, that [`rule_without_rows`] examines.
const BEFORE: usize = 5;
const AROUND: usize = BEFORE + 5;
/// The instructions of a program's start, up to the return address of its call, that
/// [`rule_without_rows`] examines.
const START: usize = 16;

/// The rule of code that no row covers, if its instructions show it. `pc` is a run-time address;
/// `has_called`: it is a return address. Any context in which `memory` may be read.
///
/// Without a call: the rule of a PLT stub. Behind a call: the outermost frame, if the code has set
/// x29 and x30 to 0, as a program's `_start` does.
#[inline(never)]
pub fn rule_without_rows<S: Source + ?Sized>(
    pc: u64,
    has_called: bool,
    memory: &S,
) -> Option<Rule> {
    if has_called {
        return is_start(pc, memory).then_some(Rule::OUTERMOST);
    }
    let before = const { BEFORE as u64 * SIZE };
    let code: [u8; AROUND * SIZE as usize] = memory.read(pc.wrapping_sub(before)).ok()?;
    let words: [u32; AROUND] = words(&code);
    // The four instructions begin up to three instructions before the PC, or right behind it.
    (2..=6).find_map(|at: usize| {
        let jump = words.get(at..)?.first_chunk()?;
        if !is_jump(*jump) {
            return None;
        }
        match (words.get(at.wrapping_sub(1)), at <= BEFORE) {
            (Some(&PUSH_X16_LINK), true) => Some(PUSHED),
            (Some(&(PUSH_X16_LINK | BTI_C)), false) | (_, true) => Some(UNTOUCHED),
            _ => None,
        }
    })
}

/// Whether the code before `pc`, a return address, is the start of a program: it sets x29 and x30
/// to 0, and then calls without a jump in between.
fn is_start<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    let Ok(code) =
        memory.read::<{ START * SIZE as usize }>(pc.wrapping_sub(const { START as u64 * SIZE }))
    else {
        return false;
    };
    let words: [u32; START] = words(&code);
    let [before @ .., call] = words;
    if !is_call(call) {
        return false;
    }
    let (mut clears_fp, mut clears_link) = (false, false);
    for word in before.iter().rev() {
        match (*word, effect(*word)) {
            (CLEAR_FP, _) => clears_fp = true,
            (CLEAR_LINK, _) => clears_link = true,
            (_, InsnEffect::Other | InsnEffect::MovesSp(_)) => {}
            _ => return false,
        }
        if clears_fp && clears_link {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::aarch64::fallback::tests::{
        MockCode,
        PROGRAM, //
    };

    const NOP: u32 = 0xd503_201f;
    /// adrp x16; ldr x17, [x16, #8]; add x16, x16, #8; br x17
    const LOADS: [u32; 4] = [0xb000_0010, 0xf940_0611, 0x9100_2210, 0xd61f_0220];
    const PC: u64 = PROGRAM + 0x100;

    fn bytes(words: &[u32]) -> [u8; STUB] {
        let mut bytes = [0; STUB];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn stubs_of_plts() {
        let stub = bytes(&LOADS);
        assert_eq!(rule_of_stub(&stub, 0), Some(UNTOUCHED));
        assert_eq!(rule_of_stub(&stub, 12), Some(UNTOUCHED));
        let [page, load, place, _] = LOADS;
        let first = bytes(&[PUSH_X16_LINK, page, load, place]);
        assert_eq!(rule_of_stub(&first, 0), Some(UNTOUCHED));
        assert_eq!(rule_of_stub(&first, 4), Some(PUSHED));
        assert_eq!(
            rule_of_stub(&bytes(&[BTI_C, page, load, place]), 8),
            Some(UNTOUCHED)
        );
        assert_eq!(rule_of_stub(&bytes(&[NOP; 4]), 0), None);
        // br x16
        assert_eq!(
            rule_of_stub(&bytes(&[page, load, place, 0xd61f_0200]), 0),
            None
        );
    }

    #[test]
    fn stubs_without_rows() {
        let mut process = MockCode::new();
        process
            .code(PC, &[NOP])
            .code(PC + 4, &LOADS)
            .code(PC + 20, &[NOP]);
        let found =
            |process: &MockCode, index: u64| rule_without_rows(PC + 4 * index, false, process);
        let of_stub = [
            None,
            Some(UNTOUCHED),
            Some(UNTOUCHED),
            Some(UNTOUCHED),
            Some(UNTOUCHED),
        ];
        for (index, expected) in (0..).zip(of_stub) {
            assert_eq!(found(&process, index), expected, "{index}");
        }
        assert_eq!(found(&process, 5), None);
        assert_eq!(rule_without_rows(PC + 8, true, &process), None);
        process.code(PC, &[BTI_C]);
        assert_eq!(found(&process, 0), Some(UNTOUCHED));
        process.code(PC, &[PUSH_X16_LINK]);
        assert_eq!(found(&process, 0), Some(UNTOUCHED));
        for index in 1..5 {
            assert_eq!(found(&process, index), Some(PUSHED), "{index}");
        }
    }

    #[test]
    fn a_program_begins_without_a_frame() {
        // The code of Debian 13's _start: nop; mov x29, #0; mov x30, #0; mov x5, x0; ldr x1, [sp];
        // add x2, sp, #8; mov x6, sp; adrp x0; ldr x0, [x0, #4056]; mov x3, #0; mov x4, #0; bl; bl
        let code = [
            NOP,
            CLEAR_FP,
            CLEAR_LINK,
            0xaa00_03e5,
            0xf940_03e1,
            0x9100_23e2,
            0x9100_03e6,
            0xb000_00e0,
            0xf947_ec00,
            0xd280_0003,
            0xd280_0004,
            0x97ff_fff1,
            0x97ff_fff4,
        ];
        let mut process = MockCode::new();
        let rule =
            |process: &MockCode, index: u64| rule_without_rows(PC + 4 * index, true, process);
        process.code(PC, &code);
        assert_eq!(rule(&process, 12), Some(Rule::OUTERMOST));
        // Behind an instruction that does not call, and behind the second call.
        assert_eq!(rule(&process, 11), None);
        assert_eq!(rule(&process, 13), None);
        for (index, word) in [(1, NOP), (2, NOP), (5, 0x5400_0080), (5, 0xd65f_03c0)] {
            process.code(PC, &code).code(PC + 4 * index, &[word]);
            assert_eq!(rule(&process, 12), None);
        }
    }
}
