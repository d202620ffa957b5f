// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Corrects .eh_frame for functions that return to another frame by `__builtin_eh_return`, such as
//! those of libgcc that throw.
//!
//! Such a function overwrites its own saved registers, the return address included, with those of
//! the target frame. The distance from its own CFA to the target's moves between registers, and
//! ends in rcx, which .eh_frame describes. This module follows it back from there, instruction by
//! instruction, to the call that returned it.

use gimli::{
    EndianSlice,
    Expression,
    LittleEndian, //
};
use iced_x86::{
    Decoder,
    DecoderOptions,
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    OpAccess,
    OpKind,
    Register, //
};
use walk::{
    process::MappedFile,
    registers::{
        PC,
        RBP,
        RCX, //
    }, //
};

use crate::dwarf::{
    dwarf_number,
    CfaLocation,
    Cfi,
    CfiRow, //
    RegisterLocation,
};

/// A function that changes no register: `endbr64; ret`.
const EMPTY_FUNCTION: &[u8] = b"\xf3\x0f\x1e\xfa\xc3";

/// The maximum distance that is searched, in bytes.
const MAX_DISTANCE: u64 = 0x100;

/// The correct row at a link-time address for which .eh_frame has `row`.
pub(crate) fn correct_row(
    file: &MappedFile,
    cfi: &Cfi,
    address: u64,
    row: CfiRow,
    row_at: impl FnMut(u64) -> Option<CfiRow>,
) -> CfiRow {
    let is_empty_function = |at| file.bytes_at(at).starts_with(EMPTY_FUNCTION);
    if is_empty_function(address) || is_empty_function(address.wrapping_sub(4)) {
        return CfiRow {
            kept: (1 << PC) - 1,
            ..row
        };
    }
    if row.cfa != CfaLocation::Register(RBP, 16) || !row.is_eh_return() {
        return row;
    }
    let Some(cfa) = cfa_at(file, cfi, address, row_at) else {
        return row;
    };
    // The saved registers stay in location; the return address is below the target frame's CFA.
    let saved = |location: &RegisterLocation| match location {
        RegisterLocation::At(offset) => RegisterLocation::AtExpression(from_rbp(16 + offset)),
        other => other.clone(),
    };
    let rules = row.rules.iter().map(|(number, location)| match *number {
        PC => (PC, RegisterLocation::At(-8)),
        number => (number, saved(location)),
    });
    CfiRow {
        cfa,
        rules: rules.collect(),
        ..row
    }
}

/// The target frame's CFA.
fn cfa_at(
    file: &MappedFile,
    cfi: &Cfi,
    address: u64,
    mut row_at: impl FnMut(u64) -> Option<CfiRow>,
) -> Option<CfaLocation> {
    let (start, end) = cfi.function_at(address)?;
    let known = (address + 1..end.min(address + MAX_DISTANCE))
        .find(|at| row_at(*at).is_some_and(|row| row.cfa == CfaLocation::Register(RCX, 8)))?;
    let bytes = file.bytes_at(start).get(..(known - start) as usize)?;
    let all = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let instructions: Vec<Instruction> = all.into_iter().collect();
    let mut factory = InstructionInfoFactory::new();
    // The register, and whether it is eight bytes below the CFA; or else that CFA less this one.
    let (mut register, mut points) = (Register::RCX, true);
    for instruction in instructions.iter().rev() {
        let is_mov = instruction.mnemonic() == Mnemonic::Mov;
        if instruction.is_call_near() || instruction.is_call_near_indirect() {
            if !(file.bytes_at(instruction.near_branch_target())).starts_with(EMPTY_FUNCTION) {
                return None;
            }
        } else if points && is_sum(instruction, register) {
            (register, points) = (instruction.memory_index(), false);
        } else if is_mov
            && instruction.op0_register() == register
            && instruction.op1_kind() == OpKind::Register
        {
            register = instruction.op1_register();
        } else {
            let used = factory.info(instruction).used_registers();
            let writes = |access| !matches!(access, OpAccess::Read | OpAccess::CondRead);
            if (used.iter())
                .any(|used| used.register().full_register() == register && writes(used.access()))
            {
                return None;
            }
        }
        if instruction.ip() <= address {
            let number = dwarf_number(register)?;
            return Some(match points {
                true => CfaLocation::Register(number, 8),
                false => CfaLocation::Expression(sum(number)),
            });
        }
    }
    None
}

/// `lea 8(%rbp,...), register`.
fn is_sum(instruction: &Instruction, register: Register) -> bool {
    instruction.mnemonic() == Mnemonic::Lea
        && instruction.op0_register() == register
        && instruction.memory_base() == Register::RBP
        && instruction.memory_index().is_gpr64()
        && instruction.memory_index_scale() == 1
        && instruction.memory_displacement64() == 8
}

const DW_OP_PLUS: u8 = 0x22;
const DW_OP_CONST2S: u8 = 0x0b;
const DW_OP_BREG0: u8 = 0x70;

/// rbp plus an offset in bytes.
fn from_rbp(offset: i64) -> Expression<EndianSlice<'static, LittleEndian>> {
    let [low, high] = (offset as i16).to_le_bytes();
    expression(&[DW_OP_BREG0 + RBP, 0, DW_OP_CONST2S, low, high, DW_OP_PLUS])
}

/// The frame's own CFA plus a register.
fn sum(number: u8) -> Expression<EndianSlice<'static, LittleEndian>> {
    expression(&[DW_OP_BREG0 + RBP, 16, DW_OP_BREG0 + number, 0, DW_OP_PLUS])
}

/// Few, and kept as long as the program runs, as files are.
fn expression(operations: &[u8]) -> Expression<EndianSlice<'static, LittleEndian>> {
    let operations: &'static [u8] = Box::leak(operations.into());
    Expression(EndianSlice::new(operations, LittleEndian))
}
