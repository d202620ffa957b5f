// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Instructions of AMD64, as far as they are recognised: calls in front of a return address, jumps,
//! and what loads the stack pointer.
//!
//! The instructions are those of the AMD64 Architecture Programmer's Manual, volume 3.

/// The length in bytes of the longest call instruction that is recognised.
pub const LONGEST: usize = 7;

pub(super) const PUSH_RBP: u8 = 0x55;

/// What a uprobe, or a debugger, has put in place of an instruction's first byte.
pub(super) const INT3: u8 = 0xcc;

pub(super) const POP_RBP: u8 = 0x5d;

pub(super) const LEAVE: u8 = 0xc9;

pub(super) const RET: u8 = 0xc3;

pub(super) const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// `mov %rsp, %rbp`, in its two encodings.
pub(super) const MOV_RSP_RBP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];

/// The size of what is looked at for [`clears_and_returns`](super::prologue::clears_and_returns) and others, in bytes.
pub const ENDING: usize = 32;

pub(super) const XOR: u8 = 0x31;

pub(super) const NOP: u8 = 0x90;

/// Where the code at a PC jumps to, if it is a jump: what has its own beginning at its end, as V8's
/// regular expressions have, begins with one.
pub fn jumps_to(code: &[u8; ENDING], pc: u64) -> Option<u64> {
    let [JMP_RELATIVE, a, b, c, d, ..] = *code else {
        return None;
    };
    let distance = i32::from_le_bytes([a, b, c, d]);
    Some(pc.wrapping_add(5).wrapping_add_signed(distance.into()))
}

/// Whether `code` is `endbr64`; there may be a uprobe at its start.
pub(super) fn is_endbr64(code: [u8; 4]) -> bool {
    let ([first, rest @ ..], [endbr64, others @ ..]) = (code, ENDBR64);
    (first == endbr64 || first == INT3) && rest == others
}

pub(super) const RET_AND_POP: u8 = 0xc2;

pub(super) const JMP_RELATIVE: u8 = 0xe9;

pub(super) const JMP_SHORT: u8 = 0xeb;

pub(super) const PREFIX_NOTRACK: u8 = 0x3e;

pub(super) const BND: u8 = 0xf2;

/// How many bytes in front of a PC or return address [`takes_stack`] looks at.
pub const TAKES_STACK: usize = 48;

/// Whether a function may have taken another stack than its own: whether there is, in `code`, which is
/// what lies in front of the PC or return address, `mov N(%REGISTER), %rsp`, or `mov %REGISTER, %rsp` of
/// any register but rbp.
///
/// Its frame is where its frame pointer points to, and that may be below the stack pointer. Go's
/// runtime.systemstack is such a function.
pub fn takes_stack(code: &[u8; TAKES_STACK]) -> bool {
    const RSP: u8 = 4;
    const RBP: u8 = 5;

    code.windows(3).any(|bytes| {
        let [prefix, opcode, operands] = *bytes else {
            return false;
        };
        let (mode, first, second) = (operands >> 6, (operands >> 3) & 7, operands & 7);
        match (prefix, opcode, mode) {
            (0x48 | 0x49, 0x8b, 1) => first == RSP && second != RSP,
            (0x48, 0x8b, 3) => first == RSP && second != RBP,
            (0x49, 0x8b, 3) => first == RSP,
            (0x48, 0x89, 3) => second == RSP && first != RBP,
            (0x4c, 0x89, 3) => second == RSP,
            _ => false,
        }
    })
}

pub(super) const CALL_RELATIVE: u8 = 0xe8;

pub(super) const GROUP_5: u8 = 0xff;

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

    #[test]
    fn stacks_are_taken_from_elsewhere() {
        let takes = |code: &[u8]| {
            let mut before = [0x90; TAKES_STACK];
            before[TAKES_STACK - code.len()..].copy_from_slice(code);
            takes_stack(&before)
        };
        // runtime.systemstack: mov 0x38(%rdx),%rsp; mov %rdi,%rdx; mov (%rdi),%rdi; call *%rdi
        assert!(takes(b"\x48\x8b\x62\x38\x48\x89\xfa\x48\x8b\x3f\xff\xd7"));
        // mov 0x38(%r14),%rsp; mov %rdx,%rsp; mov %r12,%rsp; the last two once more, as Go writes them.
        for code in [
            b"\x49\x8b\x66\x38",
            b"\x48\x89\xd4\x90",
            b"\x4c\x89\xe4\x90",
            b"\x48\x8b\xe2\x90",
            b"\x49\x8b\xe4\x90",
        ] {
            assert!(takes(code), "{code:x?}");
        }
        // mov 0x38(%rdx),%rdi; mov %rsp,0x38(%rdx); mov 0x38(%rsp),%rdx; mov %rbp,%rsp, both ways; mov
        // %rsp,%rbp; sub $16,%rsp; lea 0x38(%rdx),%rsp, which is no stack that anyone has kept.
        for code in [
            b"\x48\x8b\x7a\x38",
            b"\x48\x89\x62\x38",
            b"\x48\x8b\x54\x24",
            b"\x48\x89\xec\x90",
            b"\x48\x8b\xe5\x90",
            b"\x48\x89\xe5\x90",
            b"\x48\x83\xec\x10",
            b"\x48\x8d\x62\x38",
        ] {
            assert!(!takes(code), "{code:x?}");
        }
    }

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
