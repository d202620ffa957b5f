// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Stubs of a procedure linkage table (PLT): the rule at each of their instructions.

use super::{
    super::unwind::rule::{
        Base,
        Location,
        Rule, //
    },
    insn::{
        BND,
        ENDBR64,
        JMP_RELATIVE, //
    }, //
};

/// The size of what is looked at of a stub of a PLT, in bytes.
pub const STUB: usize = 16;

const PUSH_IMMEDIATE: u8 = 0x68;

/// Of GOT[1]: `push x(%rip)`.
const PUSH_RIP: [u8; 2] = [0xff, 0x35];

const JMP_RIP: [u8; 2] = [0xff, 0x25];

/// The rule at `offset` bytes from the start of a stub of a PLT, by what its instructions do;
/// `None` if they are none of a PLT.
///
/// `code` is the stub, and what follows if it is shorter. GNU ld up to 2.47 writes wrong rows for
/// some of them: for .plt.got "sp+16", as if something had been pushed; and version 2.40 for
/// .plt.sec the rows of .plt, and for stubs that begin with `endbr64` that the push is two bytes
/// further on than it is.
pub fn rule_of_stub(code: &[u8; STUB], offset: u32) -> Option<Rule> {
    let pushes = |before: i32, at: u32| {
        let pushed = if offset < at { 0 } else { 8 };
        let cfa = before.wrapping_add(pushed);
        Some(Rule::amd64(Base::Sp, cfa, Location::Unchanged))
    };
    match *code {
        // The first stub of .plt: what the others have pushed, and one more.
        [a, b, _, _, _, _, c, d, ..] if [a, b] == PUSH_RIP && [c, d] == JMP_RIP => pushes(16, 6),
        [a, b, _, _, _, _, BND, c, d, ..] if [a, b] == PUSH_RIP && [c, d] == JMP_RIP => {
            pushes(16, 6)
        }
        // A lazy stub: jump, or push and jump to the first.
        [a, b, _, _, _, _, PUSH_IMMEDIATE, _, _, _, _, JMP_RELATIVE, ..] if [a, b] == JMP_RIP => {
            pushes(8, 11)
        }
        [PUSH_IMMEDIATE, _, _, _, _, JMP_RELATIVE, ..]
        | [PUSH_IMMEDIATE, _, _, _, _, BND, JMP_RELATIVE, ..] => pushes(8, 5),
        [a, b, c, d, PUSH_IMMEDIATE, _, _, _, _, JMP_RELATIVE, ..]
        | [a, b, c, d, PUSH_IMMEDIATE, _, _, _, _, BND, JMP_RELATIVE, ..]
            if [a, b, c, d] == ENDBR64 =>
        {
            pushes(8, 9)
        }
        // Nothing but a jump.
        [a, b, ..] | [BND, a, b, ..] if [a, b] == JMP_RIP => pushes(8, u32::MAX),
        [a, b, c, d, e, f, ..] | [a, b, c, d, BND, e, f, ..]
            if [a, b, c, d] == ENDBR64 && [e, f] == JMP_RIP =>
        {
            pushes(8, u32::MAX)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CFA less the stack pointer, at each offset.
    fn stub(code: &[u8], offsets: &[u32]) -> std::vec::Vec<Option<i32>> {
        let mut stub = [0x90; STUB];
        stub[..code.len()].copy_from_slice(code);
        offsets
            .iter()
            .map(|offset| rule_of_stub(&stub, *offset).map(|rule| rule.cfa.offset))
            .collect()
    }

    // The bytes are those that GNU ld 2.40 and 2.44 write.
    #[test]
    fn stubs_of_plts() {
        // push GOT+8(%rip); jmp *GOT+16(%rip)
        let first = [0xff, 0x35, 0xca, 0x2f, 0, 0, 0xff, 0x25, 0xcc, 0x2f, 0, 0];
        assert_eq!(stub(&first, &[0, 6]), [Some(16), Some(24)]);
        // The same with bnd jmp.
        let first = [0xff, 0x35, 1, 0, 0, 0, 0xf2, 0xff, 0x25, 1, 0, 0, 0];
        assert_eq!(stub(&first, &[0, 6]), [Some(16), Some(24)]);
        // jmp *GOT+24(%rip); push $0; jmp .plt
        let lazy = [
            0xff, 0x25, 0xca, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff,
        ];
        assert_eq!(stub(&lazy, &[0, 6, 11]), [Some(8), Some(8), Some(16)]);
        // endbr64; push $0; jmp .plt: 2.40 has "sp+16" from 11 on only.
        let ibt = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x68, 0, 0, 0, 0, 0xe9, 0xe2, 0xff, 0xff, 0xff, 0x66, 0x90,
        ];
        assert_eq!(stub(&ibt, &[0, 4, 9]), [Some(8), Some(8), Some(16)]);
        // endbr64; jmp *GOT(%rip), in .plt.sec: 2.40 has "sp+16" and "sp+24".
        let second = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0x2e, 0x2f, 0, 0];
        assert_eq!(stub(&second, &[0, 4]), [Some(8), Some(8)]);
        // jmp *GOT(%rip); xchg %ax,%ax, in .plt.got: up to 2.47 "sp+16".
        let got = [0xff, 0x25, 0x12, 0x2f, 0, 0, 0x66, 0x90];
        assert_eq!(stub(&got, &[0]), [Some(8)]);
        // push %rbp; mov %rsp,%rbp
        assert_eq!(stub(&[0x55, 0x48, 0x89, 0xe5], &[0, 1]), [None, None]);
        assert_eq!(stub(&[0xff; STUB], &[0]), [None]);
    }
}
