// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The frame of an innermost function, from the instructions ahead of the PC: a function that returns before it calls
//! shows where its return address is. AMD64 only.
//!
//! The lengths of instructions are from the AMD64 Architecture Programmer's Manual, volume 3, appendix A.

use crate::sframe::{
    format::bytes::Source,
    x86_64::{
        insn::*,
        prologue::FrameRule,
        v8, //
    }, //
};
use core::mem;

/// The largest number of instructions that are followed, in front of a conditional jump that is taken and behind it.
const MOST: usize = 40;

/// The work of decoding an instruction, in instructions.
pub(in crate::sframe) const DECODING: u32 = 120;

/// The length of the longest instruction, in bytes.
pub(in crate::sframe) const LONGEST_INSTRUCTION: usize = 15;

/// The number of bytes of code that [`ahead`] reads at once.
const BYTES: usize = 24;

/// What the instructions ahead of a PC show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// The rule of the frame: the function sets up a frame pointer later, or returns.
    Rule(FrameRule),
    /// The function uses or gives up a frame that its frame pointer leads to.
    Framed,
    /// The function calls before it returns. Most functions that call have a frame that their frame pointer leads to.
    Calls,
    /// The stack pointer gets a value that does not follow from its present value; or the function pushes the frame
    /// pointer, sets none up, and calls.
    Lost,
    /// Too many instructions, a jump to an address in a register or in memory, code that cannot be read, or no
    /// budget left.
    Unknown,
}

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
    /// The operand is in memory below the address in the frame pointer, where a frame's local variables are. The
    /// instruction changes neither the stack pointer nor the PC.
    Local,
    /// A jump over a number of bytes.
    Jump(i32),
    Call,
    Return,
    /// The instruction is unknown, or what follows it is not executed next.
    End,
}

/// Follows the instructions from the run-time address `pc` on. Conditional jumps are not taken, but for one: if the
/// instructions show nothing, the last conditional jump is taken at which the stack is as at `pc`.
#[inline(never)]
pub fn ahead<S: Source + ?Sized>(pc: u64, memory: &S) -> Ahead {
    let mut pc = pc;
    // The bytes of code from `start` on, if they have been read.
    let mut start = pc.wrapping_add(1);
    let mut bytes = [0u8; BYTES];
    let mut branch = 0;
    // The stack pointer ahead of an instruction, and where the frame pointer was pushed, in bytes from the present
    // stack pointer.
    let mut sp = 0i32;
    let mut pushed = None;
    let mut popped = None;
    let mut is_behind_clear = false;
    for left in (0..2 * MOST).rev() {
        if memory.spend(DECODING).is_err() {
            break;
        }
        if pc.wrapping_sub(start) > const { (BYTES - LONGEST_INSTRUCTION) as u64 } {
            let Ok(read) = memory.read_seldom(pc) else {
                break;
            };
            (start, bytes) = (pc, read);
        }
        let code = bytes.get(pc.wrapping_sub(start) as usize..);
        let Some(code) = code.and_then(<[u8]>::first_chunk::<LONGEST_INSTRUCTION>) else {
            break;
        };
        let Some((len, effect)) = instruction(code) else {
            break;
        };
        if makes_frame(code).is_some() {
            return Ahead::Framed;
        }
        let [a, b, c, d, e, f, g, h, ..] = *code;
        let word = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        if let Some(distance) = sets_up_by_lea(word) {
            return on_top(
                pushed.unwrap_or(sp.wrapping_add(distance)).wrapping_add(8),
                None,
            );
        }
        if v8::enters_code(word) {
            return match sp {
                0.. => on_top(sp, popped),
                // The return address may be among the words that are pushed ahead.
                _ => Ahead::Lost,
            };
        }
        // Where there are enough arguments, the code makes no space.
        let is_branch_needed = branch != 0 && v8::makes_space(word);
        if left == MOST || effect == Effect::End || is_branch_needed {
            if branch == 0 {
                break;
            }
            pc = mem::take(&mut branch);
            (sp, pushed, popped, is_behind_clear) = (0, None, None, false);
            continue;
        }
        pc = pc.wrapping_add(len);
        if v8::moves_stack(word) || v8::sets_up_for_caller(word) || v8::pushes_arguments(word) {
            return Ahead::Lost;
        }
        match effect {
            Effect::Other if v8::restores_fp(word) && pushed.or(popped).is_none() => {
                return Ahead::Framed;
            }
            Effect::Other => {
                if let Some(distance) = condition(word) {
                    if left > MOST && sp == 0 && pushed.or(popped).is_none() {
                        branch = pc.wrapping_add_signed(distance);
                    }
                }
            }
            Effect::Local if pushed.or(popped).is_none() => return Ahead::Framed,
            Effect::Local => {}
            Effect::AddSp(_) if v8::returns_by_register(word) => {
                return on_top(sp, popped);
            }
            Effect::AddSp(bytes) => sp = sp.wrapping_add(bytes),
            Effect::PushFp => {
                sp = sp.wrapping_sub(8);
                pushed = Some(sp);
            }
            Effect::PopFp => {
                // What was pushed ahead is what the register holds now.
                popped = (pushed != Some(sp)).then_some(sp);
                sp = sp.wrapping_add(8);
            }
            Effect::SetUp => {
                // If the push is behind the PC, the caller's frame pointer is still in its register.
                return on_top(pushed.unwrap_or(sp).wrapping_add(8), None);
            }
            Effect::Return => return on_top(sp, popped),
            // The function has saved the frame pointer as any other register, and is about to use it.
            Effect::Call if pushed.is_some() => return Ahead::Lost,
            // A function without a frame may save registers for a call, too.
            Effect::Call if is_call_before_freeing(word) => {}
            Effect::Call => return Ahead::Calls,
            Effect::GiveUp => return Ahead::Framed,
            Effect::OtherSp => {
                let is_call = is_behind_clear && v8::restores_sp(word) || v8::aligns_sp(word);
                return if is_call { Ahead::Framed } else { Ahead::Lost };
            }
            Effect::Jump(distance) => pc = pc.wrapping_add_signed(distance.into()),
            Effect::End => {}
        }
        is_behind_clear = v8::clears_field(word);
    }
    Ahead::Unknown
}

/// The rule at the PC, from an instruction ahead that finds the return address on top of the stack. There the stack
/// pointer is `sp` bytes above its present value. `popped`: where the code up to there pops the caller's frame pointer,
/// in bytes from the present stack pointer.
fn on_top(sp: i32, popped: Option<i32>) -> Ahead {
    let cfa = sp.wrapping_add(8);
    let fp = popped.map_or(0, |popped| popped.wrapping_sub(cfa));
    Ahead::Rule(FrameRule::new(cfa, fp))
}

/// The address that `lea N(%rsp), %rbp` at the start of `word` gives to the frame pointer, in bytes from the stack
/// pointer; `None` if another instruction is there. .NET sets up its frames so.
fn sets_up_by_lea(word: u64) -> Option<i32> {
    let number = (word >> 32) as i32;
    match word as u32 {
        0x242c_8d48 => Some(0),
        0x246c_8d48 => Some(i32::from(number as i8)),
        0x24ac_8d48 => Some(number),
        _ => None,
    }
}

/// The distance of the conditional jump at the start of `word`, in bytes; `None` if another instruction is there.
fn condition(word: u64) -> Option<i64> {
    match word & 0xf0ff {
        0x800f => Some(i64::from((word >> 16) as i32)),
        _ if word & 0xf0 == 0x70 => Some(i64::from((word >> 8) as i8)),
        _ => None,
    }
}

/// The class of an opcode: the length of its immediate in bytes, or one of the constants below.
type OpcodeClass = u8;

/// The immediate has four bytes; two with an operand size prefix; eight in `mov` to a register of 64 bits.
const NUMBER: OpcodeClass = 7;
const BYTE: OpcodeClass = 1;
/// The instruction is unknown, or the next one is not executed.
const END: OpcodeClass = 6;
/// The bits of the length, or of one of the constants above.
const SIZE: OpcodeClass = 0xf;
/// Added: there is a ModRM byte.
const MODRM: OpcodeClass = 0x10;
/// Added: the instruction may write the 64 bits of the register in the ModRM byte's field `rm`, or `reg`.
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

/// The opcodes of two bytes, by the second byte, by the manual's table A-2. System calls and undefined instructions are
/// the end.
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

/// The length in bytes of the instruction at the start of `code`, and its effect; `None` if it does not lie completely
/// in `code`.
pub(in crate::sframe) fn instruction(code: &[u8]) -> Option<(u64, Effect)> {
    // mov %rsp, %rbp behind a push that a uprobe has replaced.
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
    // The high byte of the displacement has its sign. VEX has the bit of the base register elsewhere.
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

/// The effect of an instruction with an opcode of one byte. `base` is the low part of the number of the base register.
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

    /// What `code`, followed by nops, shows from its start on.
    fn from(code: &[u8]) -> Ahead {
        let mut all = code.to_vec();
        all.resize(256, 0x90);
        ahead(0, &all[..])
    }

    fn rule(cfa: i32, fp: i32) -> Ahead {
        Ahead::Rule(FrameRule::new(cfa, fp))
    }

    #[test]
    fn a_function_that_returns_shows_its_return_address() {
        // ret; ret $8; add $16,%rsp; pop %rbx; ret. pop %rbp; ret. add $8,%rsp; pop %rbp; pop %r12; ret
        assert_eq!(from(&[0xc3]), rule(8, 0));
        assert_eq!(from(&[0xc2, 8, 0]), rule(8, 0));
        assert_eq!(from(&[0x48, 0x83, 0xc4, 0x10, 0x5b, 0xc3]), rule(32, 0));
        assert_eq!(from(&[0x5d, 0xc3]), rule(16, -16));
        let code = [0x48, 0x83, 0xc4, 8, 0x5d, 0x41, 0x5c, 0xc3];
        assert_eq!(from(&code), rule(32, -24));
        // push %rbp; mov (%rax),%ebp; pop %rbp; ret
        assert_eq!(from(&[0x55, 0x8b, 0x28, 0x5d, 0xc3]), rule(8, 0));
        // jg; jmp 1 byte ahead; int3; ret
        assert_eq!(from(&[0x7f, 3, 0xeb, 1, 0xcc, 0xc3]), rule(8, 0));
    }

    #[test]
    fn a_function_may_set_up_its_frame_pointer_later() {
        // cmp; jne; push %rbp; mov %rsp,%rbp. The immediate looks like a call.
        let code = [
            0x81, 0xf9, 0xe8, 0xff, 0x90, 0xc9, 0x0f, 0x85, 1, 2, 3, 4, 0x55, 0x48, 0x89, 0xe5,
        ];
        assert_eq!(from(&code), rule(8, 0));
        assert_eq!(from(&code[6..]), rule(8, 0));
        assert_eq!(from(&code[12..]), rule(8, 0));
        // The caller's frame pointer is on the stack, and still in the register.
        assert_eq!(from(&code[13..]), rule(16, 0));
        // A uprobe in place of the push.
        assert_eq!(from(&[0xcc, 0x48, 0x89, 0xe5]), rule(8, 0));
        // push %rbp; push %rbx; mov %rsp,%rbp
        assert_eq!(from(&[0x55, 0x53, 0x48, 0x8b, 0xec]), rule(8, 0));
        // .NET: push %rbp; sub $48,%rsp; lea 48(%rsp),%rbp; mov %rdi,-8(%rbp). push %rbp; push %rbx; lea 8(%rsp),%rbp; call
        let code = [
            0x55, 0x48, 0x83, 0xec, 0x30, 0x48, 0x8d, 0x6c, 0x24, 0x30, 0x48, 0x89, 0x7d, 0xf8,
        ];
        assert_eq!(from(&code), rule(8, 0));
        assert_eq!(from(&code[1..]), rule(16, 0));
        assert_eq!(from(&code[5..]), rule(64, 0));
        assert_eq!(from(&code[10..]), Ahead::Framed);
        let code = [0x55, 0x53, 0x48, 0x8d, 0x6c, 0x24, 8, 0xe8, 1, 2, 3, 4];
        assert_eq!(from(&code), rule(8, 0));
        assert_eq!(from(&code[1..]), rule(16, 0));
        assert_eq!(from(&code[2..]), rule(24, 0));
        // lea (%rsp),%rbp; lea 0x80(%rsp),%rbp
        assert_eq!(from(&[0x48, 0x8d, 0x2c, 0x24]), rule(16, 0));
        assert_eq!(
            from(&[0x48, 0x8d, 0xac, 0x24, 0x80, 0, 0, 0]),
            rule(0x90, 0)
        );
    }

    #[test]
    fn a_function_that_uses_a_frame_has_one() {
        for code in [
            &[0xe8, 1, 2, 3, 4][..],
            &[0x41, 0xff, 0xd2],
            &[0x90, 0x51, 0xff, 0x55, 0x10],
        ] {
            assert_eq!(from(code), Ahead::Calls, "{code:x?}");
        }
        for code in [
            &[0xc9][..],
            &[0x48, 0x89, 0xec],
            &[0x48, 0x8d, 0x65, 0xf0],
            // lea -32(%rbp,%rdx,4),%rsp
            &[0x4a, 0x8d, 0x64, 0x95, 0xe0],
            // mov -32(%rbp),%rdx; movsd %xmm0,-256(%rbp)
            &[0x48, 0x8b, 0x55, 0xe0],
            &[0xf2, 0x0f, 0x11, 0x85, 0, 0xff, 0xff, 0xff],
            // SBCL's sub $16,%rsp; mov %rbp,(%rsp); mov %rsp,%rbp
            &[
                0x48, 0x83, 0xec, 0x10, 0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec,
            ],
        ] {
            assert_eq!(from(code), Ahead::Framed, "{code:x?}");
        }
    }

    #[test]
    fn one_conditional_jump_is_taken() {
        // A function of V8: mov -8(%rcx),%rbx; testb $1,53(%rbx); je; movabs $0,%r10; jmp *%r10
        let checks = [
            0x48, 0x8b, 0x59, 0xf8, 0xf6, 0x43, 0x35, 1, 0x74, 0x0d, 0x49, 0xba, 0, 0, 0, 0, 0, 0,
            0, 0, 0x41, 0xff, 0xe2,
        ];
        // push %rbp; mov %rsp,%rbp
        let sets_up = [&checks[..], &[0x55, 0x48, 0x89, 0xe5]].concat();
        for at in [0, 4, 8, 23] {
            assert_eq!(from(&sets_up[at..]), rule(8, 0), "{at}");
        }
        assert_eq!(from(&sets_up[10..]), Ahead::Unknown);
        // It leads back to the jump. And pop %rbx; je; jmp *%r10: the stack is another one.
        let mut back = checks;
        back[9] = 0xfe;
        assert_eq!(from(&back), Ahead::Unknown);
        let popped = [0x5b, 0x74, 3, 0x41, 0xff, 0xe2, 0xc3];
        assert_eq!(from(&popped), Ahead::Unknown);
        assert_eq!(from(&popped[1..]), rule(8, 0));
        // Behind 38 instructions: ja 50 bytes ahead, where mov -72(%rbp),%rcx is.
        let mut far = [0x90; 150];
        far[38..44].copy_from_slice(&[0x0f, 0x87, 50, 0, 0, 0]);
        assert_eq!(from(&far), Ahead::Unknown);
        far[94..98].copy_from_slice(&[0x48, 0x8b, 0x4d, 0xb8]);
        assert_eq!(from(&far), Ahead::Framed);
        // The second jump is not taken.
        far[94..96].copy_from_slice(&[0x74, 10]);
        far[96..98].copy_from_slice(&[0x90; 2]);
        far[106] = 0xc3;
        assert_eq!(from(&far), rule(8, 0));
        far[96..99].copy_from_slice(&[0x41, 0xff, 0xe2]);
        assert_eq!(from(&far), Ahead::Unknown);
    }

    #[test]
    fn functions_of_v8_without_a_frame_may_call() {
        // push %rbx; push %rdi; mov %rdi,%rbx; call; pop %rdi; pop %rbx; jmp; ret
        let calls = [
            0x53, 0x57, 0x48, 0x8b, 0xdf, 0xe8, 1, 2, 3, 4, 0x5f, 0x5b, 0xeb, 1, 0xcc, 0xc3,
        ];
        for (at, cfa) in [
            (0, 8),
            (1, 16),
            (2, 24),
            (5, 24),
            (10, 24),
            (11, 16),
            (12, 8),
        ] {
            assert_eq!(from(&calls[at..]), rule(cfa, 0), "{at}");
        }
        // A function with a frame does it, too: leave, and a local variable.
        for end in [&[0xc9][..], &[0x48, 0x8b, 0x5d, 0xf0]] {
            let framed = [&calls[..15], end].concat();
            assert_eq!(from(&framed), Ahead::Framed);
        }
        // pop %r8. pop %rbp, pop %rsp and other instructions behind the call; a call by memory
        let mut other = calls;
        (other[10], other[11]) = (0x41, 0x58);
        assert_eq!(from(&other[1..]), rule(8, 0));
        for pop in [0x5d, 0x5c, 0x90] {
            other[10] = pop;
            assert_eq!(from(&other), Ahead::Calls, "{pop}");
        }
        assert_eq!(from(&[0x90, 0xff, 0x10, 0x5f, 0xc3]), Ahead::Calls);
    }

    #[test]
    fn a_trampoline_of_python_calls_without_a_frame() {
        // sub $8,%rsp; call *%rcx; add $8,%rsp; ret
        let code = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];
        for (at, cfa) in [(0, 8), (4, 16), (6, 16), (10, 8)] {
            assert_eq!(from(&code[at..]), rule(cfa, 0), "{at}");
        }
        // add $8,%rbx
        let mut other = code;
        other[8] = 0xc3;
        assert_eq!(from(&other), Ahead::Calls);
    }

    #[test]
    fn a_tail_call_of_v8_has_its_frame_until_it_restores_the_frame_pointer() {
        // mov 0(%rbp),%rbp; mov %rcx,%rbx; add $80,%rsp; jmp; ret
        let leaves = [
            0x48, 0x8b, 0x6d, 0, 0x48, 0x8b, 0xd9, 0x48, 0x83, 0xc4, 0x50, 0xeb, 0, 0xc3,
        ];
        assert_eq!(from(&leaves), Ahead::Framed);
        assert_eq!(from(&leaves[4..]), rule(88, 0));
        // mov 8(%rbp),%rbp; mov 0(%rbp),%rbx
        for (at, value) in [(3, 8), (2, 0x5d)] {
            let mut other = leaves;
            other[at] = value;
            assert_eq!(from(&other), rule(88, 0), "{at}");
        }
    }

    #[test]
    fn a_function_of_v8_that_makes_space_for_arguments_has_no_known_frame() {
        // xor %r11d,%r11d; mov (%r8,%r11,8),%r10; mov %r10,(%rsp,%r11,8); ret
        let copies = [
            0x45, 0x33, 0xdb, 0x4f, 0x8b, 0x14, 0xd8, 0x4e, 0x89, 0x14, 0xdc, 0xc3,
        ];
        for at in [0, 3, 7] {
            assert_eq!(from(&copies[at..]), Ahead::Lost, "{at}");
        }
        assert_eq!(from(&copies[11..]), rule(8, 0));
        // jle over the next instruction; sub %r10,%rsp; ret: where there are enough arguments, no space is made.
        let mut checks = [0x7e, 3, 0x49, 0x2b, 0xe2, 0xc3];
        assert_eq!(from(&checks), rule(8, 0));
        assert_eq!(from(&checks[2..]), Ahead::Lost);
        // sub %r11,%rsp
        checks[4] = 0xe3;
        assert_eq!(from(&checks), Ahead::Lost);
        // mov %r10,(%rsp)
        let mut other = copies;
        (other[9], other[10]) = (0x14, 0x24);
        assert_eq!(from(&other), rule(8, 0));
    }

    #[test]
    fn code_of_v8_that_enters_other_code_has_its_return_address_on_top() {
        // mov 47(%rdi),%rcx; mov 39(%rcx),%rcx; jmp *%rcx
        let enters = [0x48, 0x8b, 0x4f, 0x2f, 0x48, 0x8b, 0x49, 0x27, 0xff, 0xe1];
        for at in [0, 4] {
            assert_eq!(from(&enters[at..]), rule(8, 0), "{at}");
        }
        assert_eq!(from(&[&[0x5b], &enters[..]].concat()), rule(16, 0));
        // push %rax: the return address was in this register.
        assert_eq!(from(&[&[0x50], &enters[..]].concat()), Ahead::Lost);
        // pop %rax; dec %rcx; jl; push 15(%rbx,%rcx,8); jmp back
        let pushes = [
            0x58, 0x48, 0xff, 0xc9, 0x7c, 6, 0xff, 0x74, 0xcb, 0x0f, 0xeb, 0xf5, 0x50, 0xc3,
        ];
        let all = [&pushes[..], &[0x90; 256]].concat();
        for at in [0, 1, 4, 6, 10] {
            assert_eq!(ahead(at, &all[..]), Ahead::Lost, "{at}");
        }
        // mov 39(%rdx),%rcx; and jmp *%rdx
        for (at, value) in [(6, 0x4a), (9, 0xe2)] {
            let mut other = enters;
            other[at] = value;
            assert_eq!(from(&other), Ahead::Unknown, "{at}");
        }
    }

    #[test]
    fn a_routine_of_v8_sets_up_the_frame_of_its_caller() {
        // incl 11(%r8); pop %r15; push %rbp; mov %rsp,%rbp
        let code = [0x41, 0xff, 0x40, 0x0b, 0x41, 0x5f, 0x55, 0x48, 0x89, 0xe5];
        assert_eq!(from(&code), Ahead::Lost);
        assert_eq!(from(&code[4..]), Ahead::Lost);
        // pop %r14
        let mut other = code;
        other[5] = 0x5e;
        assert_eq!(from(&other), rule(16, 0));
    }

    #[test]
    fn code_of_v8_is_known() {
        // pop %r10; lea (%rsp,%rcx,8),%rsp; push %r10; ret
        let returns = [0x41, 0x5a, 0x48, 0x8d, 0x24, 0xcc, 0x41, 0x52, 0xc3];
        assert_eq!(from(&returns), rule(8, 0));
        // mov %rbp,%rsp; pop %rbp; pop %r10; ...
        assert_eq!(from(&[&[0x5d], &returns[..]].concat()), rule(16, -16));
        // mov %rsp,%r10; sub $8,%rsp; and $-16,%rsp; mov %r10,(%rsp); mov %rax,-64(%rbp); mov %rbp,104(%r13);
        // call *%rax; movq $0,104(%r13); mov (%rsp),%rsp
        let calls = [
            0x49, 0x89, 0xe2, 0x48, 0x83, 0xec, 8, 0x48, 0x83, 0xe4, 0xf0, 0x4c, 0x89, 0x14, 0x24,
            0x48, 0x89, 0x45, 0xc0, 0x49, 0x89, 0x6d, 0x68, 0xff, 0xd0, 0x49, 0xc7, 0x45, 0x68, 0,
            0, 0, 0, 0x48, 0x8b, 0x24, 0x24,
        ];
        for at in [0, 3, 7, 11, 25] {
            assert_eq!(from(&calls[at..]), Ahead::Framed, "{at}");
        }
        assert_eq!(from(&calls[23..]), Ahead::Calls);
        // At mov (%rsp),%rsp nothing shows that the field was cleared.
        assert_eq!(from(&calls[33..]), Ahead::Lost);
        // and $-32,%rsp. mov %r11,(%rsp). Another register has the old stack pointer: mov %rbx,(%rsp)
        for (at, value) in [(10, 0xe0), (13, 0x1c), (11, 0x48)] {
            let mut other = calls;
            other[at] = value;
            assert_eq!(from(&other), Ahead::Lost, "{at}");
        }
        // Another value than 0, or a field that another register points to, is in front of mov (%rsp),%rsp.
        for (at, value) in [(29, 1), (25, 0x48), (27, 0x46)] {
            let mut other = calls;
            other[at] = value;
            assert_eq!(from(&other[25..]), Ahead::Lost, "{at}");
        }
        // An instruction is in between; and mov 8(%rsp),%rsp.
        let mut other = calls[25..].to_vec();
        other.insert(8, 0x90);
        assert_eq!(from(&other), Ahead::Lost);
        let restores = [&calls[25..35], &[0x64, 0x24, 8]].concat();
        assert_eq!(from(&restores), Ahead::Framed);
        // Another register is pushed: pop %r10; lea (%rsp,%rcx,8),%rsp; push %r11; and other instructions.
        for (at, value) in [(7, 0x53), (6, 0x90), (3, 0x8b), (4, 0x64)] {
            let mut other = returns;
            other[at] = value;
            assert_eq!(from(&other), Ahead::Lost, "{at}");
        }
        // pop %r8; lea (%rsp,%r12,8),%rsp; push %r8
        assert_eq!(
            from(&[0x41, 0x58, 0x4a, 0x8d, 0x24, 0xe4, 0x41, 0x50]),
            rule(8, 0)
        );
    }

    #[test]
    fn other_code_shows_no_frame() {
        // lea (%rsp,%rcx,8),%rsp; push %r10; ret. mov %rdx,%rsp. mov 8(%rdi),%rsp. xchg %rax,%rsp
        for code in [
            &[0x48, 0x8d, 0x24, 0xcc, 0x41, 0x52, 0xc3][..],
            &[0x48, 0x89, 0xd4],
            &[0x48, 0x8b, 0x67, 8],
            &[0x48, 0x94],
            &[0x48, 0x83, 0xe4, 0xf0],
            // mov %ebp,%esp; add $8,%esp
            &[0x89, 0xec],
            &[0x83, 0xc4, 8],
        ] {
            assert_eq!(from(code), Ahead::Lost, "{code:x?}");
        }
        // push %r15; push %rbp; push %rbx; mov %rdi,%rbp; call: the frame pointer is saved as any other register.
        let saves = [0x41, 0x57, 0x55, 0x53, 0x48, 0x89, 0xfd, 0xe8, 1, 2, 3, 4];
        assert_eq!(from(&saves), Ahead::Lost);
        assert_eq!(from(&saves[3..]), Ahead::Calls);
        // mov %esp,%ebp
        assert_eq!(from(&[0x89, 0xe5, 0xc3]), rule(8, 0));
        // jmp *%rcx; ud2; syscall; a loop; nops; code that cannot be read.
        for code in [
            &[0xff, 0xe1][..],
            &[0x0f, 0x0b],
            &[0x0f, 5],
            &[0xeb, 0xfe],
            &[],
        ] {
            assert_eq!(from(code), Ahead::Unknown, "{code:x?}");
        }
        assert_eq!(ahead(0, &[0xc3; BYTES - 1][..]), Ahead::Unknown);
    }

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
