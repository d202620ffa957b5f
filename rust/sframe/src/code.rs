// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What a few bytes of AMD64 code tell, where there are no rows: how far a function that keeps a
//! frame pointer has got with it, and whether code may have called.
//!
//! The instructions are those of the AMD64 Architecture Programmer's Manual, volume 3.

use super::rule::{
    Base,
    Location,
    Rule, //
};

/// The length in bytes of the longest call instruction that is recognised.
pub const LONGEST: usize = 7;

const PUSH_RBP: u8 = 0x55;
const RET: u8 = 0xc3;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `mov %rsp, %rbp`, in its two encodings.
const MOV_RSP_RBP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];

/// The rule of an innermost frame whose function has not yet set up a frame pointer, or has
/// already put it back; `None` if the code does not look like that.
///
/// `code` are the byte before the PC and the four from the PC on. A `push %rbp` may also stand
/// further on in a function, so the return address that comes out has to be checked.
pub fn rule_without_frame_pointer(code: &[u8; 5]) -> Option<Rule> {
    let [before, at @ ..] = *code;
    let [first, second, third, _] = at;

    if first == RET || first == PUSH_RBP || at == ENDBR64 {
        Some(Rule::amd64(Base::Sp, 8, Location::Unchanged))
    } else if before == PUSH_RBP && MOV_RSP_RBP.contains(&[first, second, third]) {
        Some(Rule::amd64(Base::Sp, 16, Location::AtCfa(-16)))
    } else {
        None
    }
}

const CALL_RELATIVE: u8 = 0xe8;
const GROUP_5: u8 = 0xff;
const CALL_NEAR: u8 = 2;

/// Whether `code`, the AMD64 code before a return address, may end with a near call.
///
/// Prefixes go before all that is looked at. Code that is no call may look like one; a call never
/// looks like none. See "CALL" in volume 3 of the AMD64 Architecture Programmer's Manual.
pub fn ends_with_call(code: &[u8; LONGEST]) -> bool {
    let [b7, b6, b5, b4, b3, b2, b1] = *code;

    // E8 with an offset of four bytes, or FF /2 with a ModRM byte that asks for as many bytes
    // more as there are.
    b5 == CALL_RELATIVE
        || (b2 == GROUP_5 && length(b1, 0) == Some(2))
        || (b3 == GROUP_5 && length(b2, b1) == Some(3))
        || (b4 == GROUP_5 && length(b3, b2) == Some(4))
        || (b6 == GROUP_5 && length(b5, b4) == Some(6))
        || (b7 == GROUP_5 && length(b6, b5) == Some(7))
}

/// The length in bytes of FF with this ModRM byte, if that is a near call. `sib` is the byte
/// behind it.
fn length(modrm: u8, sib: u8) -> Option<usize> {
    if (modrm >> 3) & 7 != CALL_NEAR {
        return None;
    }
    let has_sib = modrm & 7 == 4;
    Some(match modrm >> 6 {
        0 if modrm & 7 == 5 => 6,
        0 if has_sib && sib & 7 == 5 => 7,
        0 if has_sib => 3,
        0 => 2,
        1 if has_sib => 4,
        1 => 3,
        2 if has_sib => 7,
        2 => 6,
        _ => 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(instruction: &[u8]) -> bool {
        let mut code = [0x90; LONGEST];
        code[LONGEST - instruction.len()..].copy_from_slice(instruction);
        ends_with_call(&code)
    }

    // The bytes are those of GNU as, quoted with what was assembled.
    #[test]
    fn calls_are_calls() {
        assert!(ends(&[0xe8, 1, 2, 3, 4])); // call f
        assert!(ends(&[0xff, 0xd0])); // call *%rax
        assert!(ends(&[0x41, 0xff, 0xd4])); // call *%r12
        assert!(ends(&[0xff, 0x13])); // call *(%rbx)
        assert!(ends(&[0xff, 0x53, 0x18])); // call *0x18(%rbx)
        assert!(ends(&[0xff, 0x93, 1, 2, 0, 0])); // call *0x201(%rbx)
        assert!(ends(&[0xff, 0x15, 1, 2, 3, 4])); // call *f@GOTPCREL(%rip)
        assert!(ends(&[0x41, 0xff, 0x14, 0x24])); // call *(%r12)
        assert!(ends(&[0xff, 0x54, 0x24, 0x08])); // call *8(%rsp)
        assert!(ends(&[0xff, 0x94, 0x24, 0, 1, 0, 0])); // call *0x100(%rsp)
        assert!(ends(&[0xff, 0x14, 0xc5, 1, 2, 3, 4])); // call *0x4030201(,%rax,8)
        assert!(ends(&[0x3e, 0xff, 0xd0])); // notrack call *%rax
    }

    #[test]
    fn ends_of_functions_have_their_return_address_on_top() {
        let top = Some(Rule::amd64(Base::Sp, 8, Location::Unchanged));
        assert_eq!(
            rule_without_frame_pointer(&[0x90, 0x55, 0x48, 0x89, 0xe5]),
            top
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x90, 0xf3, 0x0f, 0x1e, 0xfa]),
            top
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x5d, 0xc3, 0x66, 0x90, 0x90]),
            top
        );

        let pushed = Some(Rule::amd64(Base::Sp, 16, Location::AtCfa(-16)));
        assert_eq!(
            rule_without_frame_pointer(&[0x55, 0x48, 0x89, 0xe5, 0x53]),
            pushed
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x55, 0x48, 0x8b, 0xec, 0x53]),
            pushed
        );

        // mov %rsp, %rbp after something else; the middle of a function; pop %rbp.
        assert_eq!(
            rule_without_frame_pointer(&[0x53, 0x48, 0x89, 0xe5, 0x53]),
            None
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x55, 0x48, 0x83, 0xec, 0x18]),
            None
        );
        assert_eq!(
            rule_without_frame_pointer(&[0xc9, 0x5d, 0xc3, 0x90, 0x90]),
            None
        );
    }

    #[test]
    fn others_are_not() {
        assert!(!ends(&[0x90; LONGEST]));
        assert!(!ends(&[0xff, 0xe0])); // jmp *%rax
        assert!(!ends(&[0xff, 0x25, 1, 2, 3, 4])); // jmp *f@GOTPCREL(%rip)
        assert!(!ends(&[0xff, 0x33])); // push (%rbx)
        assert!(!ends(&[0x0f, 0x05])); // syscall
        assert!(!ends(&[0xc3])); // ret
        assert!(!ends(&[0x48, 0x89, 0xe5])); // mov %rsp,%rbp
    }
}
