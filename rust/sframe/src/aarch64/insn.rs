// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Instructions of AArch64: what they do to the stack pointer, to x29 and x30, and to the flow of
//! control.
//!
//! The Arm Architecture Reference Manual, chapter C4, describes the encodings.

use super::registers::{
    FP,
    LINK,
    SP, //
};

/// The size of an instruction, in bytes.
pub const SIZE: u64 = 4;

/// `mov x8, #139`: the number of rt_sigreturn.
pub(in crate::sframe) const MOV_RT_SIGRETURN: u32 = 0xd280_1168;
/// `svc #0`.
pub(in crate::sframe) const SVC: u32 = 0xd400_0001;
/// `mov x29, #0`.
pub(in crate::sframe) const CLEAR_FP: u32 = 0xd280_001d;
/// `mov x30, #0`.
pub(in crate::sframe) const CLEAR_LINK: u32 = 0xd280_001e;
/// `bti c`.
pub(in crate::sframe) const BTI_C: u32 = 0xd503_245f;
/// `br x17`.
pub(in crate::sframe) const BR_X17: u32 = 0xd61f_0220;
/// `stp x16, x30, [sp, #-16]!`.
pub(in crate::sframe) const PUSH_X16_LINK: u32 = 0xa9bf_7bf0;

/// `mov x8, #220` and `mov x8, #435`: the numbers of clone and clone3.
pub(in crate::sframe) const MOV_CLONE: [u32; 2] = [0xd280_1b88, 0xd280_3668];

/// What an instruction does. Distances are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sframe) enum InsnEffect {
    /// Changes neither the stack pointer, nor x29 and x30, nor the flow of control. May sign x30,
    /// or remove the signature.
    Other,
    /// Adds a number to the stack pointer.
    MovesSp(i32),
    /// `stp x29, x30, [sp, #n]!`, with this n.
    PushesRecord(i32),
    /// `stp x29, x30, [sp, #n]`, with this n.
    StoresRecord(i32),
    /// `ldp x29, x30, [sp], #n`, with this n.
    PopsRecord(i32),
    /// `ldp x29, x30, [sp, #n]`, with this n.
    LoadsRecord(i32),
    /// `add x29, sp, #n`, with this n.
    SetsFp(i32),
    /// `add sp, x29, #n` or `sub sp, x29, #n`: the function uses its frame pointer.
    RestoresSp,
    /// Calls.
    Calls,
    /// A system call.
    SystemCall,
    /// May jump to this distance.
    Branches(i32),
    /// Jumps to this distance.
    Jumps(i32),
    /// Returns, jumps to an address in a register, or traps.
    Leaves,
    /// May do anything.
    Unknown,
}

/// The bits from `low` on, `count` of them.
const fn bits(word: u32, low: u32, count: u32) -> u32 {
    (word >> low) & ((1 << count) - 1)
}

/// The same, as a signed number.
const fn signed(word: u32, low: u32, count: u32) -> i32 {
    ((word << (32 - low - count)) as i32) >> (32 - count)
}

/// Whether a register is x29 or x30.
const fn is_frame(register: u32) -> bool {
    register == FP as u32 || register == LINK as u32
}

const fn is_sp(register: u32) -> bool {
    register == SP as u32
}

/// What the instruction does. An encoding that this function does not know is
/// [`InsnEffect::Unknown`].
pub(in crate::sframe) fn effect(word: u32) -> InsnEffect {
    let unless = |is_known: bool| match is_known {
        true => InsnEffect::Unknown,
        false => InsnEffect::Other,
    };
    let target = bits(word, 0, 5);
    match bits(word, 25, 4) {
        // SVE. Some instructions write a general register, or add to the stack pointer.
        0b0010 => unless(target >= FP.into()),
        0b1000 | 0b1001 => immediate(word),
        0b1010 | 0b1011 => branch(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word),
        // Data processing with registers.
        0b0101 | 0b1101 => {
            let is_extended = word & 0x3fe0_0000 == 0x0b20_0000;
            let is_tag = word & 0xffe0_fc00 == 0x9ac0_1000;
            unless(is_frame(target) || is_sp(target) && (is_extended || is_tag))
        }
        // Floating point. Some instructions move to a general register.
        0b0111 | 0b1111 => {
            let is_general = word & 0x7f20_fc00 == 0x1e20_0000
                || word & 0x7f20_0000 == 0x1e00_0000
                || matches!(word & 0xbfe0_fc00, 0x0e00_2c00 | 0x0e00_3c00)
                || matches!(word & 0xbfe0_fc00 & !0x001f_0000, 0x0e00_2c00 | 0x0e00_3c00);
            unless(is_general && is_frame(target))
        }
        _ => InsnEffect::Unknown,
    }
}

/// Data processing with an immediate number.
fn immediate(word: u32) -> InsnEffect {
    let (target, base) = (bits(word, 0, 5), bits(word, 5, 5));
    let is_add = word & 0x1f80_0000 == 0x1100_0000;
    let sets_flags = bits(word, 29, 1) != 0;
    if is_add && !sets_flags {
        let mut number = bits(word, 10, 12) as i32;
        if bits(word, 22, 1) != 0 {
            number <<= 12;
        }
        if bits(word, 30, 1) != 0 {
            number = number.wrapping_neg();
        }
        let is_long = bits(word, 31, 1) != 0;
        return match (target, base) {
            _ if !is_long && (is_sp(target) || is_frame(target)) => InsnEffect::Unknown,
            _ if is_sp(target) && is_sp(base) => InsnEffect::MovesSp(number),
            _ if is_sp(target) && base == FP.into() => InsnEffect::RestoresSp,
            _ if is_sp(target) => InsnEffect::Unknown,
            _ if target == FP.into() && is_sp(base) && number >= 0 => InsnEffect::SetsFp(number),
            _ if is_frame(target) => InsnEffect::Unknown,
            _ => InsnEffect::Other,
        };
    }
    // Logical operations but `tst`, and additions of tags, may write the stack pointer.
    let writes_sp = (word & 0x1f80_0000 == 0x1200_0000 && bits(word, 29, 2) != 3)
        || word & 0x1f80_0000 == 0x1180_0000;
    match is_frame(target) || writes_sp && is_sp(target) {
        true => InsnEffect::Unknown,
        false => InsnEffect::Other,
    }
}

/// Branches, exceptions and system instructions.
fn branch(word: u32) -> InsnEffect {
    let target = bits(word, 0, 5);
    match word >> 24 {
        0x14..=0x17 => InsnEffect::Jumps(signed(word, 0, 26).wrapping_mul(4)),
        0x94..=0x97 => InsnEffect::Calls,
        0x34 | 0x35 | 0xb4 | 0xb5 | 0x54 => {
            InsnEffect::Branches(signed(word, 5, 19).wrapping_mul(4))
        }
        0x36 | 0x37 | 0xb6 | 0xb7 => InsnEffect::Branches(signed(word, 5, 14).wrapping_mul(4)),
        0xd4 if word == SVC => InsnEffect::SystemCall,
        0xd4 => InsnEffect::Leaves,
        // `mrs` and `sysl` write a register.
        0xd5 if bits(word, 21, 1) != 0 && is_frame(target) => InsnEffect::Unknown,
        0xd5 => InsnEffect::Other,
        0xd6 | 0xd7 => match bits(word, 21, 3) {
            1 => InsnEffect::Calls,
            0 | 2 => InsnEffect::Leaves,
            _ => InsnEffect::Unknown,
        },
        _ => InsnEffect::Unknown,
    }
}

/// Loads and stores.
fn memory(word: u32) -> InsnEffect {
    let (target, base) = (bits(word, 0, 5), bits(word, 5, 5));
    let is_vector = bits(word, 26, 1) != 0;
    // A pair.
    if word & 0x3a00_0000 == 0x2800_0000 {
        return pair(word);
    }
    let is_load = bits(word, 22, 2) != 0;
    let takes_frame = !is_vector && is_frame(target);
    match word & 0x3b00_0000 {
        // One register, at an offset. A store of x29 changes nothing.
        0x3900_0000 if takes_frame && (is_load || target == LINK.into()) => InsnEffect::Unknown,
        0x3900_0000 => InsnEffect::Other,
        // With bits 10 and 11 clear or 2 (bit 21 is clear) nothing is written back.
        0x3800_0000 if bits(word, 21, 1) == 0 => match bits(word, 10, 2) {
            _ if takes_frame && (is_load || target == LINK.into()) => InsnEffect::Unknown,
            0 | 2 => InsnEffect::Other,
            _ if is_sp(base) => InsnEffect::MovesSp(signed(word, 12, 9)),
            _ if is_frame(base) => InsnEffect::Unknown,
            _ => InsnEffect::Other,
        },
        // An offset in a register.
        0x3800_0000 if bits(word, 10, 2) == 2 => match takes_frame {
            true => InsnEffect::Unknown,
            false => InsnEffect::Other,
        },
        // Atomic operations, and loads by signed pointers.
        0x3800_0000 if takes_frame || base >= FP.into() && bits(word, 10, 1) != 0 => {
            InsnEffect::Unknown
        }
        0x3800_0000 => InsnEffect::Other,
        // Relative to the PC; bits 30 and 31 may be a prefetch.
        0x1800_0000 if takes_frame => InsnEffect::Unknown,
        0x1800_0000 => InsnEffect::Other,
        // Exclusive, ordered, compare-and-swap: up to three registers are written.
        0x0800_0000 if !is_vector => {
            // `casp` writes two registers from each number on.
            let takes = |register| is_frame(register) || register == const { FP as u32 - 1 };
            match [target, bits(word, 10, 5), bits(word, 16, 5)].map(takes) {
                [false, false, false] => InsnEffect::Other,
                _ => InsnEffect::Unknown,
            }
        }
        // Vectors; bit 23: the base is written back.
        0x0800_0000 | 0x0900_0000 if word & 0xbe00_0000 == 0x0c00_0000 => {
            match bits(word, 23, 1) != 0 && base >= FP.into() {
                true => InsnEffect::Unknown,
                false => InsnEffect::Other,
            }
        }
        _ => InsnEffect::Unknown,
    }
}

/// Loads and stores of pairs of registers.
fn pair(word: u32) -> InsnEffect {
    let (first, base, second) = (bits(word, 0, 5), bits(word, 5, 5), bits(word, 10, 5));
    let is_vector = bits(word, 26, 1) != 0;
    let is_load = bits(word, 22, 1) != 0;
    let shift = match (is_vector, bits(word, 30, 2)) {
        (true, size @ 0..=2) => 2 + size,
        (false, 0) => 2,
        (false, 1) if is_load => 2,
        (false, 1) => 4,
        (false, 2) => 3,
        _ => return InsnEffect::Unknown,
    };
    let offset = signed(word, 15, 7) << shift;
    // 1: behind the access, 3: in front of it.
    let mode = bits(word, 23, 2);
    let writes_back = mode % 2 != 0;
    let is_record = !is_vector
        && bits(word, 30, 2) == 2
        && (first, second) == (FP.into(), LINK.into())
        && is_sp(base);
    match (is_record, is_load, mode) {
        (true, false, 3) => return InsnEffect::PushesRecord(offset),
        (true, false, 0 | 2) => return InsnEffect::StoresRecord(offset),
        (true, true, 1) => return InsnEffect::PopsRecord(offset),
        (true, true, 0 | 2) => return InsnEffect::LoadsRecord(offset),
        (true, ..) => return InsnEffect::Unknown,
        _ => {}
    }
    let is_link = |register| register == LINK.into();
    let takes_frame = match is_load {
        true => is_frame(first) || is_frame(second),
        // A store of x29 alone changes nothing.
        false => is_link(first) || is_link(second),
    };
    if !is_vector && takes_frame || writes_back && is_frame(base) {
        return InsnEffect::Unknown;
    }
    match writes_back && is_sp(base) {
        true => InsnEffect::MovesSp(offset),
        false => InsnEffect::Other,
    }
}

/// Whether the instruction is a call: `bl`, `blr`, or a `blr` that authenticates.
pub(in crate::sframe) fn is_call(word: u32) -> bool {
    effect(word) == InsnEffect::Calls
}

/// The number of bytes before a PC or return address that [`takes_stack`] examines.
pub const TAKES_STACK: usize = 48;

/// Whether a function may have changed to another stack. `code` is the code before the PC or return
/// address. True if it contains `mov sp, xN` with any register but x29.
pub fn takes_stack(code: &[u8; TAKES_STACK]) -> bool {
    code.chunks_exact(4).any(|bytes| {
        let word = bytes.try_into().map_or(0, u32::from_le_bytes);
        let from = bits(word, 5, 5);
        word & 0xffff_fc1f == 0x9100_001f && from != FP.into() && !is_sp(from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // GNU as 2.44 writes these words.
    #[test]
    fn effects_of_instructions() {
        use InsnEffect::*;
        for (word, expected) in [
            (0xd503_233f, Other), // paciasp
            (0xd503_23bf, Other), // autiasp
            (0xd503_245f, Other), // bti c
            (0xd503_201f, Other), // nop
            (0xa9bd_7bfd, PushesRecord(-48)),
            (0xa901_7bfd, StoresRecord(16)),
            (0xa8c3_7bfd, PopsRecord(48)),
            (0xa941_7bfd, LoadsRecord(16)),
            (0x9100_03fd, SetsFp(0)),      // mov x29, sp
            (0x9100_83fd, SetsFp(32)),     // add x29, sp, #32
            (0xd100_c3ff, MovesSp(-48)),   // sub sp, sp, #48
            (0x9100_c3ff, MovesSp(48)),    // add sp, sp, #48
            (0xd140_07ff, MovesSp(-4096)), // sub sp, sp, #1, lsl #12
            (0xa9be_53f3, MovesSp(-32)),   // stp x19, x20, [sp, #-32]!
            (0x6dbf_27e8, MovesSp(-16)),   // stp d8, d9, [sp, #-16]!
            (0xf81f_0ff3, MovesSp(-16)),   // str x19, [sp, #-16]!
            (0xf841_07f3, MovesSp(16)),    // ldr x19, [sp], #16
            (0xa901_53f3, Other),          // stp x19, x20, [sp, #16]
            (0xf900_0bf3, Other),          // str x19, [sp, #16]
            (0x9100_03bf, RestoresSp),     // mov sp, x29
            (0xf81f_0ffe, Unknown),        // str x30, [sp, #-16]!
            (0xf840_07fe, Unknown),        // ldr x30, [sp], #0
            (0xa9bf_4ffe, Unknown),        // stp x30, x19, [sp, #-16]!
            (0xa940_7bf3, Unknown),        // ldp x19, x30, [sp]
            (0x9100_003f, Unknown),        // mov sp, x1
            (0xaa00_03fd, Unknown),        // mov x29, x0
            (0xd280_001d, Unknown),        // mov x29, #0
            (0x8b20_63ff, Unknown),        // add sp, sp, x0
            (0xcb21_63ff, Unknown),        // sub sp, sp, x1
            (0x927c_ec1f, Unknown),        // and sp, x0, #-16
            (0xeb01_001f, Other),          // cmp x0, x1
            (0xf100_041f, Other),          // cmp x0, #1
            (0x9400_0010, Calls),          // bl
            (0xd63f_0040, Calls),          // blr x2
            (0xd73f_0841, Calls),          // blraa x2, x1
            (0xd63f_085f, Calls),          // blraaz x2
            (0xd65f_03c0, Leaves),         // ret
            (0xd65f_0bff, Leaves),         // retaa
            (0xd61f_0220, Leaves),         // br x17
            (0xd420_0000, Leaves),         // brk #0
            (0xd400_0001, SystemCall),
            (0x17ff_fffe, Jumps(-8)),
            (0x5400_0080, Branches(16)), // b.eq
            (0xb4ff_ffc0, Branches(-8)), // cbz x0
            (0x3600_0060, Branches(12)), // tbz w0, #0
            (0xf940_0000, Other),        // ldr x0, [x0]
            (0x3dc0_003e, Other),        // ldr q30, [x1]
            (0x4cdf_7020, Other),        // ld1 {v0.16b}, [x1], #16
            (0x4cdf_73e0, Unknown),      // ld1 {v0.16b}, [sp], #16
            (0xc85f_7c1d, Unknown),      // ldxr x29, [x0]
            (0xc85f_7c02, Other),        // ldxr x2, [x0]
            (0xf820_0041, Other),        // ldadd x0, x1, [x2]
            (0x9e66_001d, Unknown),      // fmov x29, d0
            (0x9e67_001d, Unknown),      // fmov d29, x0: taken for the other direction
            (0x0420_5fff, Unknown),      // addvl sp, x0, #31
            (0xd53b_d05d, Unknown),      // mrs x29, tpidr_el0
            (0xd53b_d041, Other),        // mrs x1, tpidr_el0
            (0x0000_0000, Unknown),      // udf #0
        ] {
            assert_eq!(effect(word), expected, "{word:#x}");
        }
    }

    #[test]
    fn loads_of_the_stack_pointer() {
        let code = |word: u32| {
            let mut code = [0; TAKES_STACK];
            code[16..20].copy_from_slice(&word.to_le_bytes());
            takes_stack(&code)
        };
        // mov sp, x1; mov sp, x29; mov x1, sp; add sp, x1, #16
        let taken = [0x9100_003f, 0x9100_03bf, 0x9100_03e1, 0x9100_403f].map(code);
        assert_eq!(taken, [true, false, false, false]);
    }

    #[test]
    fn no_word_panics() {
        let mut state = 1u32;
        for _ in 0..2_000_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            effect(state);
        }
    }
}
