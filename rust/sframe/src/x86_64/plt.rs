// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Stubs of a procedure linkage table (PLT): the rule at each of their instructions.

use crate::sframe::{
    format::bytes::Source,
    rule::{
        Base,
        Location,
        Rule,
        SavedRbx, //
    },
    x86_64::insn::{
        BND,
        ENDBR64,
        JMP_RELATIVE, //
    }, //
};

/// The number of bytes of a PLT stub that [`rule_of_stub`] examines.
pub const STUB: usize = 16;

const PUSH_IMMEDIATE: u8 = 0x68;

/// `push x(%rip)`. The first stub of .plt pushes GOT[1] by it.
const PUSH_RIP: [u8; 2] = [0xff, 0x35];

const JMP_RIP: [u8; 2] = [0xff, 0x25];

/// The rule at `offset` bytes from the start of a PLT stub, from the stub's instructions; `None` if
/// the instructions are not those of a PLT stub.
///
/// `code` is the stub, and the bytes after it if the stub is shorter. The instructions decide
/// because GNU ld writes wrong rows for some stubs. Versions up to 2.47 write "sp+16" for .plt.got,
/// although these stubs push nothing. Version 2.40 writes the rows of .plt for .plt.sec; and for
/// stubs that begin with `endbr64` it places the row after the push two bytes too far.
pub fn rule_of_stub(code: &[u8; STUB], offset: u32) -> Option<Rule> {
    let pushes = |before: i32, at: u32| {
        let pushed = if offset < at { 0 } else { 8 };
        let cfa = before.wrapping_add(pushed);
        let mut rule = Rule::amd64(Base::Sp, cfa, Location::Unchanged);
        rule.extra.rbx = SavedRbx::KEPT;
        Some(rule)
    };
    match *code {
        // The first stub of .plt: another stub has pushed a word, and the first stub pushes a
        // second word.
        [a, b, _, _, _, _, c, d, ..] if [a, b] == PUSH_RIP && [c, d] == JMP_RIP => pushes(16, 6),
        [a, b, _, _, _, _, BND, c, d, ..] if [a, b] == PUSH_RIP && [c, d] == JMP_RIP => {
            pushes(16, 6)
        }
        // A lazy stub: a jump, or a push and a jump to the first stub.
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
        // A stub that only jumps.
        [a, b, ..] | [BND, a, b, ..] if [a, b] == JMP_RIP => pushes(8, u32::MAX),
        [a, b, c, d, e, f, ..] | [a, b, c, d, BND, e, f, ..]
            if [a, b, c, d] == ENDBR64 && [e, f] == JMP_RIP =>
        {
            pushes(8, u32::MAX)
        }
        _ => None,
    }
}

/// The rule of code that no row covers, if its instructions show it: none on AMD64, whose linkers
/// write rows of PLT stubs. `pc` is a run-time address; `has_called`: it is a return address.
#[inline(always)]
pub fn rule_without_rows<S: Source + ?Sized>(
    _pc: u64,
    _has_called: bool,
    _memory: &S,
) -> Option<Rule> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CFA minus the stack pointer, in bytes, at each offset.
    fn stub(code: &[u8], offsets: &[u32]) -> std::vec::Vec<Option<i32>> {
        let mut stub = [0x90; STUB];
        stub[..code.len()].copy_from_slice(code);
        offsets
            .iter()
            .map(|offset| rule_of_stub(&stub, *offset).map(|rule| rule.cfa.offset))
            .collect()
    }

    // GNU ld 2.40 and 2.44 write these bytes.
    #[test]
    fn stubs_of_plts() {
        // push GOT+8(%rip); jmp *GOT+16(%rip)
        let first = [0xff, 0x35, 0xca, 0x2f, 0, 0, 0xff, 0x25, 0xcc, 0x2f, 0, 0];
        assert_eq!(stub(&first, &[0, 6]), [Some(16), Some(24)]);
        // The first stub with bnd jmp.
        let first = [0xff, 0x35, 1, 0, 0, 0, 0xf2, 0xff, 0x25, 1, 0, 0, 0];
        assert_eq!(stub(&first, &[0, 6]), [Some(16), Some(24)]);
        // jmp *GOT+24(%rip); push $0; jmp .plt
        let lazy = [
            0xff, 0x25, 0xca, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff,
        ];
        assert_eq!(stub(&lazy, &[0, 6, 11]), [Some(8), Some(8), Some(16)]);
        // endbr64; push $0; jmp .plt. GNU ld 2.40 writes "sp+16" only from 11 on.
        let ibt = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x68, 0, 0, 0, 0, 0xe9, 0xe2, 0xff, 0xff, 0xff, 0x66, 0x90,
        ];
        assert_eq!(stub(&ibt, &[0, 4, 9]), [Some(8), Some(8), Some(16)]);
        // endbr64; jmp *GOT(%rip), in .plt.sec. GNU ld 2.40 writes "sp+16" and "sp+24".
        let second = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0x2e, 0x2f, 0, 0];
        assert_eq!(stub(&second, &[0, 4]), [Some(8), Some(8)]);
        // jmp *GOT(%rip); xchg %ax,%ax, in .plt.got. GNU ld up to 2.47 writes "sp+16".
        let got = [0xff, 0x25, 0x12, 0x2f, 0, 0, 0x66, 0x90];
        assert_eq!(stub(&got, &[0]), [Some(8)]);
        // push %rbp; mov %rsp,%rbp
        assert_eq!(stub(&[0x55, 0x48, 0x89, 0xe5], &[0, 1]), [None, None]);
        assert_eq!(stub(&[0xff; STUB], &[0]), [None]);
    }
}
