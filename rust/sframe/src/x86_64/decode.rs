// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Decodes instructions: their lengths, and their effects on the stack pointer, the frame pointer
//! and the PC.
//!
//! The lengths of instructions are from the AMD64 Architecture Programmer's Manual, volume 3,
//! appendix A.

use crate::sframe::x86_64::insn::*;

/// The most work of decoding an instruction, which may have 14 prefixes, and of looking at it; in
/// instructions.
pub(in crate::sframe) const DECODING: u32 = 400;

/// The length of the longest instruction, in bytes.
pub(in crate::sframe) const LONGEST_INSTRUCTION: usize = 15;

/// The effect of an instruction on the stack pointer, on the frame pointer and on the PC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sframe) enum Effect {
    /// The instruction changes none of them, or is a conditional jump.
    Other,
    /// Adds a number of bytes to the stack pointer.
    AddSp(i32),
    /// `push %rbp`
    PushFp,
    /// `pop %rbp`
    PopFp,
    /// `mov %rsp, %rbp`
    SetUp,
    /// `leave`, `mov %rbp, %rsp` or `lea N(%rbp), %rsp`
    GiveUp,
    /// Another change of the stack pointer.
    OtherSp,
    /// The operand is in memory below the address in the frame pointer, where a frame's local
    /// variables are. The instruction changes neither the stack pointer nor the PC.
    Local,
    /// A jump over a number of bytes.
    Jump(i32),
    Call,
    Return,
    /// The instruction is unknown, or what follows it is not executed next.
    End,
}

/// The class of an opcode: the length of its immediate in bytes, or one of the constants below.
type OpcodeClass = u8;

/// The immediate has four bytes; two with an operand size prefix; eight in `mov` to a register of
/// 64 bits.
const NUMBER: OpcodeClass = 7;
const BYTE: OpcodeClass = 1;
/// The instruction is unknown, or the next one is not executed.
const END: OpcodeClass = 6;
/// The bits of the length, or of one of the constants above.
const SIZE: OpcodeClass = 0xf;
/// Added: there is a ModRM byte.
const MODRM: OpcodeClass = 0x10;
/// Added: the instruction may write the 64 bits of the register in the ModRM byte's field `rm`, or
/// `reg`.
const TO_RM: OpcodeClass = 0x20 | MODRM;
const TO_REG: OpcodeClass = 0x40 | MODRM;

/// Classes of opcodes, from ranges of opcodes with the same class.
const fn classes(rest: OpcodeClass, ranges: &[(u8, u8, OpcodeClass)]) -> [OpcodeClass; 256] {
    let mut all = [rest; 256];
    let mut at = 0;
    while at < ranges.len() {
        let (first, last, class) = ranges[at];
        let mut op = first as usize;
        while op <= last as usize {
            all[op] = class;
            op += 1;
        }
        at += 1;
    }
    all
}

/// The opcodes of one byte, by the manual's table A-1. Prefixes are not among them.
static ONE_BYTE: [OpcodeClass; 256] = {
    let mut all = classes(
        END,
        &[
            (0x50, 0x5f, 0),
            (0x63, 0x63, TO_REG),
            (0x68, 0x68, NUMBER),
            (0x69, 0x69, TO_REG | NUMBER),
            (0x6a, 0x6a, BYTE),
            (0x6b, 0x6b, TO_REG | BYTE),
            (0x70, 0x7f, BYTE),
            (0x80, 0x80, MODRM | BYTE),
            (0x81, 0x81, TO_RM | NUMBER),
            (0x83, 0x83, TO_RM | BYTE),
            (0x84, 0x8f, MODRM),
            (0x87, 0x87, TO_RM | TO_REG),
            (0x89, 0x89, TO_RM),
            (0x8b, 0x8b, TO_REG),
            (0x8d, 0x8d, TO_REG),
            (0x8f, 0x8f, TO_RM),
            (0x90, 0x99, 0),
            (0x9b, 0x9f, 0),
            (0xa0, 0xa3, 8),
            (0xa4, 0xa7, 0),
            (0xa8, 0xa8, BYTE),
            (0xa9, 0xa9, NUMBER),
            (0xaa, 0xaf, 0),
            (0xb0, 0xb7, BYTE),
            (0xb8, 0xbf, NUMBER),
            (0xc0, 0xc0, MODRM | BYTE),
            (0xc1, 0xc1, TO_RM | BYTE),
            (RET_AND_POP, RET_AND_POP, 2),
            (RET, RET, 0),
            (0xc6, 0xc6, MODRM | BYTE),
            (0xc7, 0xc7, TO_RM | NUMBER),
            (LEAVE, LEAVE, 0),
            (0xd0, 0xd3, MODRM),
            (0xd1, 0xd1, TO_RM),
            (0xd3, 0xd3, TO_RM),
            (0xd8, 0xdf, MODRM),
            (0xe0, 0xe3, BYTE),
            (CALL_RELATIVE, JMP_RELATIVE, 4),
            (JMP_SHORT, JMP_SHORT, BYTE),
            (0xf5, 0xf5, 0),
            (0xf6, 0xf6, MODRM),
            (0xf7, 0xf7, TO_RM),
            (0xf8, 0xfd, 0),
            (0xfe, GROUP_5, MODRM),
        ],
    );
    let mut op = 0;
    while op < 0x40 {
        all[op] = match op & 7 {
            // cmp writes no register.
            0..=3 if op >= 0x38 => MODRM,
            1 => TO_RM,
            3 => TO_REG,
            0 | 2 => MODRM,
            4 => BYTE,
            5 => NUMBER,
            _ => END,
        };
        op += 1;
    }
    all
};

/// The opcodes of two bytes, by the second byte, by the manual's table A-2. System calls and
/// undefined instructions are the end.
static TWO_BYTES: [OpcodeClass; 256] = classes(
    MODRM,
    &[
        (0x04, 0x0c, END),
        (0x30, 0x37, 0),
        (0x70, 0x73, MODRM | BYTE),
        (0x77, 0x77, 0),
        (0x80, 0x8f, 4),
        (0xa0, 0xa2, 0),
        (0xa4, 0xa4, MODRM | BYTE),
        (0xa8, 0xaa, 0),
        (0xac, 0xac, MODRM | BYTE),
        (0xba, 0xba, MODRM | BYTE),
        (0xc2, 0xc2, MODRM | BYTE),
        (0xc4, 0xc6, MODRM | BYTE),
        (0xc8, 0xcf, 0),
    ],
);

/// The length in bytes of the instruction at the start of `code`, and its effect; `None` if it does
/// not lie completely in `code`.
pub(in crate::sframe) fn instruction(code: &[u8]) -> Option<(u64, Effect)> {
    // mov %rsp, %rbp after a push that a uprobe has replaced.
    if let [INT3, a, b, c, ..] = code {
        if MOV_RSP_RBP.contains(&[*a, *b, *c]) {
            return Some((1, Effect::PushFp));
        }
    }
    let mut at = 0usize;
    let mut next = || {
        let byte = code.get(at).copied();
        at = at.wrapping_add(1);
        byte
    };
    let mut is_short = false;
    let mut op = next()?;
    while matches!(
        op,
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | BND | 0xf3
    ) {
        is_short |= op == 0x66;
        op = next()?;
    }
    let mut rex = 0;
    if op & 0xf0 == 0x40 {
        rex = op;
        op = next()?;
    }
    let is_wide = rex & 8 != 0;
    let is_vex = matches!(op, 0xc4 | 0xc5);
    // The opcode map: 0 for opcodes of one byte.
    let mut map = 0;
    match op {
        0x0f => {
            map = 1;
            op = next()?;
            if op == 0x38 || op == 0x3a {
                map = if op == 0x38 { 2 } else { 3 };
                op = next()?;
            }
        }
        // VEX
        0xc5 => {
            map = 1;
            next()?;
            op = next()?;
        }
        0xc4 => {
            map = next()? & 0x1f;
            next()?;
            op = next()?;
        }
        _ => {}
    }
    let class = match map {
        0 => ONE_BYTE.get(usize::from(op)),
        1 => TWO_BYTES.get(usize::from(op)),
        2 => Some(&MODRM),
        3 => Some(&(MODRM | BYTE)),
        _ => None,
    };
    let class = class.copied().unwrap_or(END);
    let number = if is_short && !is_wide { 2 } else { 4 };
    let mut immediate = match class & SIZE {
        END => return Some((0, Effect::End)),
        NUMBER if is_wide && op & 0xf8 == 0xb8 => 8,
        NUMBER => number,
        bytes => usize::from(bytes),
    };
    let mut modrm = 0;
    let mut base = 0;
    let mut displacement = 0;
    if class & MODRM != 0 {
        modrm = next()?;
        let has_sib = modrm >> 6 != 3 && modrm & 7 == 4;
        base = if has_sib { next()? & 7 } else { modrm & 7 };
        displacement = match modrm >> 6 {
            0 if base == 5 => {
                // There is no base register.
                base = 0;
                4
            }
            1 => 1,
            2 => 4,
            _ => 0,
        };
        match (map, op, (modrm >> 3) & 7) {
            // test
            (0, 0xf6, 0 | 1) => immediate = 1,
            (0, 0xf7, 0 | 1) => immediate = number,
            // XOP
            (0, 0x8f, 1..) => return Some((0, Effect::End)),
            _ => {}
        }
    }
    let behind = at.checked_add(displacement)?.checked_add(immediate)?;
    let operand = code.get(at.checked_add(displacement)?..behind)?;
    // The high byte of the displacement has its sign. VEX has the bit of the base register
    // elsewhere.
    let has_negative = matches!(displacement, 1 | 4)
        && code.get(at.wrapping_add(displacement).wrapping_sub(1))? & 0x80 != 0;
    let is_local = has_negative && modrm & 7 == 5 && modrm >> 6 != 0 && rex & 1 == 0 && !is_vex;
    let value = match *operand {
        [a] => i32::from(a as i8),
        [a, b, c, d] => i32::from_le_bytes([a, b, c, d]),
        _ => 0,
    };
    let effect = if map == 0 {
        effect(op, class, rex, modrm, base, value)
    } else {
        Effect::Other
    };
    let effect = match effect {
        Effect::Other if is_local => Effect::Local,
        _ => effect,
    };
    Some((behind as u64, effect))
}

/// The effect of an instruction with an opcode of one byte. `base` is the low part of the number of
/// the base register.
fn effect(op: u8, class: OpcodeClass, rex: u8, modrm: u8, base: u8, value: i32) -> Effect {
    const RSP: u8 = 4;
    const RBP: u8 = 5;
    // The register operands: their numbers, with the bit of the prefix.
    let field = (modrm >> 3) & 7;
    let reg = field | ((rex & 4) << 1);
    let high = (rex & 1) << 3;
    let rm = base | high;
    let is_register = modrm >> 6 == 3;
    let one = (op & 7) | high;
    match (op, field) {
        (0x58..=0x5f, _) if one == RBP => return Effect::PopFp,
        (0x58..=0x5f, _) if one != RSP => return Effect::AddSp(8),
        (0x50..=0x57, _) if one == RBP => return Effect::PushFp,
        (0x50..=0x57 | 0x68 | 0x6a | 0x9c, _) | (GROUP_5, 6) => return Effect::AddSp(-8),
        // pop of a register, and xchg
        (0x58..=0x5f | 0x94, _) if one == RSP => return Effect::OtherSp,
        (RET | RET_AND_POP, _) => return Effect::Return,
        (LEAVE, _) => return Effect::GiveUp,
        (CALL_RELATIVE, _) | (GROUP_5, 2 | 3) => return Effect::Call,
        (JMP_RELATIVE | JMP_SHORT, _) => return Effect::Jump(value),
        (GROUP_5, 4 | 5) => return Effect::End,
        _ => {}
    }
    let writes_sp = (class & TO_REG == TO_REG && reg == RSP)
        || (class & TO_RM == TO_RM && is_register && rm == RSP);
    let is_wide = rex & 8 != 0;
    match (op, field) {
        (0x89, _) if is_wide && is_register && (rm, reg) == (RBP, RSP) => Effect::SetUp,
        (0x8b, _) if is_wide && is_register && (reg, rm) == (RBP, RSP) => Effect::SetUp,
        _ if !writes_sp => match op {
            0x8f | 0x9d => Effect::AddSp(8),
            _ => Effect::Other,
        },
        _ if !is_wide => Effect::OtherSp,
        (0x89, RBP) if rex & 4 == 0 => Effect::GiveUp,
        (0x8b, _) if is_register && rm == RBP => Effect::GiveUp,
        (0x8d, _) if rm == RBP => Effect::GiveUp,
        // add, sub and cmp with a number
        (0x81 | 0x83, 0) => Effect::AddSp(value),
        (0x81 | 0x83, 5) => Effect::AddSp(value.wrapping_neg()),
        (0x81 | 0x83, 7) => Effect::Other,
        _ => Effect::OtherSp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{
        Code,
        Decoder,
        DecoderOptions,
        FlowControl,
        InstructionInfoFactory,
        Mnemonic,
        OpAccess,
        Register, //
    };
    use object::{
        Object,
        ObjectSection, //
    };
    use std::vec;

    /// The effect of an instruction by iced-x86.
    fn effect_by_iced(it: &iced_x86::Instruction, factory: &mut InstructionInfoFactory) -> Effect {
        let is = |first, second| it.op0_register() == first && it.op1_register() == second;
        match it.flow_control() {
            FlowControl::Return => return Effect::Return,
            FlowControl::Call | FlowControl::IndirectCall => return Effect::Call,
            FlowControl::UnconditionalBranch => {
                let distance = it.near_branch_target().wrapping_sub(it.next_ip());
                return Effect::Jump(distance as i32);
            }
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {}
            _ => return Effect::End,
        }
        match it.mnemonic() {
            Mnemonic::Leave => return Effect::GiveUp,
            Mnemonic::Push if it.op0_register() == Register::RBP => return Effect::PushFp,
            Mnemonic::Pop if it.op0_register() == Register::RBP => return Effect::PopFp,
            Mnemonic::Push | Mnemonic::Pop if it.op0_register() != Register::RSP => {
                return Effect::AddSp(it.stack_pointer_increment());
            }
            Mnemonic::Mov if is(Register::RBP, Register::RSP) => return Effect::SetUp,
            Mnemonic::Mov if is(Register::RSP, Register::RBP) => return Effect::GiveUp,
            Mnemonic::Lea
                if it.op0_register() == Register::RSP && it.memory_base() == Register::RBP =>
            {
                return Effect::GiveUp;
            }
            Mnemonic::Add | Mnemonic::Sub
                if it.op0_register() == Register::RSP && it.op1_register() == Register::None =>
            {
                let value = it.immediate(1) as i32;
                let is_add = it.mnemonic() == Mnemonic::Add;
                return Effect::AddSp(if is_add { value } else { -value });
            }
            _ => {}
        }
        let writes = factory.info(it).used_registers().iter().any(|used| {
            used.register().full_register() == Register::RSP
                && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
        });
        let is_vex = it.encoding() == iced_x86::EncodingKind::VEX;
        let is_local = it.memory_base() == Register::RBP
            && it.memory_index() == Register::None
            && (it.memory_displacement64() as i64) < 0
            && !is_vex;
        match (it.stack_pointer_increment(), writes) {
            (0, false) if is_local => Effect::Local,
            (0, false) => Effect::Other,
            (0, true) => Effect::OtherSp,
            (bytes, _) => Effect::AddSp(bytes),
        }
    }

    /// Compares all instructions of the files in `AHEAD`, or of this test, with iced-x86.
    #[test]
    fn instructions_are_those_of_iced() {
        let files = std::env::var("AHEAD").map_or_else(
            |_| vec![std::env::current_exe().unwrap()],
            |files| files.split(':').map(Into::into).collect(),
        );
        let mut factory = InstructionInfoFactory::new();
        let (mut known, mut unknown) = (0, 0);
        for path in files {
            let data = std::fs::read(path).unwrap();
            let file = object::File::parse(&*data).unwrap();
            let text = file.section_by_name(".text").unwrap();
            let text = text.data().unwrap();
            let mut decoder = Decoder::with_ip(64, text, 0, DecoderOptions::NONE);
            while decoder.can_decode() {
                let at = decoder.position();
                let it = decoder.decode();
                if it.code() == Code::INVALID {
                    continue;
                }
                let code = &text[at..];
                let found = instruction(&code[..code.len().min(LONGEST_INSTRUCTION)]);
                let Some((len, effect)) = found else {
                    panic!("{code:x?} is cut");
                };
                let expected = effect_by_iced(&it, &mut factory);
                if effect == Effect::End {
                    unknown += usize::from(expected != Effect::End);
                    continue;
                }
                let code = &code[..it.len()];
                assert_eq!(len, it.len() as u64, "{code:02x?} {:?}", it.code());
                assert_eq!(effect, expected, "{code:02x?} {:?}", it.code());
                known += 1;
            }
        }
        std::println!("{known} instructions, and {unknown} that are not known");
        assert!(known > 100_000 && unknown < known / 20);
    }
}
