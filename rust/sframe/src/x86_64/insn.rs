// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Recognised instructions of AMD64: calls before a return address, jumps, and loads of the stack
//! pointer.
//!
//! The AMD64 Architecture Programmer's Manual, volume 3, describes the instructions.

/// The number of bytes before a return address that [`ends_with_call`] examines. The longest
/// recognised call has seven; eight are read at once.
pub const CALL_WINDOW: usize = 8;

pub(in crate::sframe) const PUSH_RBP: u8 = 0x55;

/// `int3`. A uprobe or a debugger puts it in place of the first byte of an instruction.
pub(in crate::sframe) const INT3: u8 = 0xcc;

pub(in crate::sframe) const LEAVE: u8 = 0xc9;

pub(in crate::sframe) const RET: u8 = 0xc3;

pub(in crate::sframe) const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// `mov %rsp, %rbp`, in its two encodings.
pub(in crate::sframe) const MOV_RSP_RBP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];

/// The number of bytes of code that
/// [`clears_and_returns`](crate::sframe::x86_64::prologue::clears_and_returns) and other functions
/// examine.
pub const ENDING: usize = 32;

pub(in crate::sframe) const XOR: u8 = 0x31;

/// Whether `code` is `endbr64`. A uprobe may have replaced its first byte.
pub(in crate::sframe) fn is_endbr64(code: [u8; 4]) -> bool {
    let ([first, rest @ ..], [endbr64, others @ ..]) = (code, ENDBR64);
    (first == endbr64 || first == INT3) && rest == others
}

pub(in crate::sframe) const RET_AND_POP: u8 = 0xc2;

pub(in crate::sframe) const JMP_RELATIVE: u8 = 0xe9;

pub(in crate::sframe) const JMP_SHORT: u8 = 0xeb;

pub(in crate::sframe) const BND: u8 = 0xf2;

/// The number of bytes before a PC or return address that [`takes_stack`] examines.
pub const TAKES_STACK: usize = 48;

/// Whether a function may have changed to another stack. `code` is the code before the PC or return
/// address. True if it contains `mov N(%REGISTER), %rsp`, or `mov %REGISTER, %rsp` with any
/// register but rbp.
///
/// The frame of such a function is at its frame pointer, and may be below the stack pointer. Go's
/// runtime.systemstack is an example.
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

pub(in crate::sframe) const CALL_RELATIVE: u8 = 0xe8;

pub(in crate::sframe) const GROUP_5: u8 = 0xff;

const CALL_NEAR: u8 = 2;

/// Whether the instruction is `call ADDRESS` or `call *%REGISTER`, from rax to rdi, and an
/// instruction that [`frees_stack`] follows. `word` is the first eight bytes of the code,
/// little-endian.
pub(in crate::sframe) fn is_call_before_freeing(word: u64) -> bool {
    let behind = match word & 0xf8ff {
        0xd0ff => word >> 16,
        _ if word as u8 == CALL_RELATIVE => word >> 40,
        _ => 0,
    };
    frees_stack(behind as u32)
}

/// Whether the instruction pops a register other than the stack pointer and the frame pointer, or
/// is `add $N,%rsp`. `word` is the first bytes of the code, little-endian; three of them are looked
/// at.
pub(in crate::sframe) fn frees_stack(word: u32) -> bool {
    word & 0xf8 == 0x58 && word & 6 != 4 || word & 0xf8ff == 0x5841 || word & 0xff_fdff == 0xc4_8148
}

/// Whether `code`, the AMD64 code before a return address, may end with a near call.
///
/// Prefixes are before the recognised bytes and do not matter. There are false positives: other
/// code may look like a call. There are no false negatives. See "CALL" in volume 3 of the AMD64
/// Architecture Programmer's Manual.
pub fn ends_with_call(code: &[u8; CALL_WINDOW]) -> bool {
    // FF /2 whose ModRM and SIB bytes give exactly the length up to the return address.
    let is_indirect = |len: u32| {
        // The last `len` bytes. The amount of a shift counts modulo 64.
        let at = u64::from_le_bytes(*code).wrapping_shr(8u32.wrapping_mul(len).wrapping_neg());
        let [opcode, modrm, sib, ..] = at.to_le_bytes();
        opcode == GROUP_5 && length(modrm, sib) == Some(len)
    };
    // E8 with an offset of four bytes.
    matches!(code, [_, _, _, CALL_RELATIVE, ..]) || (2..8).any(is_indirect)
}

/// The length in bytes of the instruction of opcode FF with this ModRM byte; `None` if the
/// instruction is not a near call. `sib` is the byte after the ModRM byte.
fn length(modrm: u8, sib: u8) -> Option<u32> {
    /// By the bits of the ModRM byte, without those in the middle.
    const LENGTHS: [u8; 32] = [
        2, 2, 2, 2, 3, 6, 2, 2, 3, 3, 3, 3, 4, 3, 3, 3, 6, 6, 6, 6, 7, 6, 6, 6, 2, 2, 2, 2, 2, 2,
        2, 2,
    ];
    if (modrm >> 3) & 7 != CALL_NEAR {
        return None;
    }
    let bits = (modrm >> 3) & 0x18 | modrm & 7;
    // A SIB byte without a base has four bytes of offset.
    let without_base = if bits == 4 && sib & 7 == 5 { 4 } else { 0 };
    let length = LENGTHS.get(usize::from(bits))?;
    Some(u32::from(length.wrapping_add(without_base)))
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
        // mov 0x38(%r14),%rsp; mov %rdx,%rsp; mov %r12,%rsp; the last two again, in the encoding
        // that Go uses.
        for code in [
            b"\x49\x8b\x66\x38",
            b"\x48\x89\xd4\x90",
            b"\x4c\x89\xe4\x90",
            b"\x48\x8b\xe2\x90",
            b"\x49\x8b\xe4\x90",
        ] {
            assert!(takes(code), "{code:x?}");
        }
        // mov 0x38(%rdx),%rdi; mov %rsp,0x38(%rdx); mov 0x38(%rsp),%rdx; mov %rbp,%rsp, in both
        // encodings; mov %rsp,%rbp; sub $16,%rsp; lea 0x38(%rdx),%rsp, which does not load a saved
        // stack pointer.
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
        let mut code = [0x90; CALL_WINDOW];
        code[CALL_WINDOW - instruction.len()..].copy_from_slice(instruction);
        ends_with_call(&code)
    }

    // The bytes are the output of GNU as. Each line quotes the assembled instruction.
    #[test]
    fn calls_are_recognised() {
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
    fn other_instructions_are_no_calls() {
        assert!(!ends(&[0x90; CALL_WINDOW]));
        assert!(!ends(&[0xff, 0xe0])); // jmp *%rax
        assert!(!ends(&[0xff, 0x25, 1, 2, 3, 4])); // jmp *f@GOTPCREL(%rip)
        assert!(!ends(&[0xff, 0x33])); // push (%rbx)
        assert!(!ends(&[0x0f, 0x05])); // syscall
        assert!(!ends(&[0xc3])); // ret
        assert!(!ends(&[0x48, 0x89, 0xe5])); // mov %rsp,%rbp
    }
}
