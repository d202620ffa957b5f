// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Functions that return to another frame by `__builtin_eh_return`: those of libgcc that throw,
//! resume and unwind.
//!
//! Near its end such a function overwrites its saved registers, the return address among them, with
//! those of a handler's frame. The rows of .eh_frame do not change there, so they give the
//! handler's frame a wrong stack pointer. From there up to the next correct .eh_frame row, the
//! handler's CFA is in the function's own frame: it is an argument of `_Unwind_DebugHook`, an empty
//! function for debuggers, which is called there.

use iced_x86::{
    FlowControl,
    Instruction,
    Mnemonic,
    OpKind,
    Register, //
};
use sframe::{
    rule::{
        Base,
        Cfa,
        Location,
        Rule, //
    },
    x86_64::registers::RCX, //
};

use crate::{
    code::CodeBytes,
    encode,
    function::ConvertedFunction, //
};

/// The code of `_Unwind_DebugHook`: `endbr64; ret`, or only `ret`.
const EMPTY_FUNCTION: &[u8] = b"\xf3\x0f\x1e\xfa\xc3";

/// Adds the row to each function that is recognised as one with `__builtin_eh_return`.
pub(crate) fn add_rows(functions: &mut [ConvertedFunction], code: &CodeBytes<'_>) {
    for function in functions {
        if let Some((index, start, rule)) = row(function, code) {
            function.rows.insert(index, (start, rule));
        }
    }
}

/// The row to add: its index, its offset in bytes, and its rule.
fn row(function: &ConvertedFunction, code: &CodeBytes<'_>) -> Option<(usize, u32, Rule)> {
    // The last rows compute the CFA, the handler's stack pointer, from rcx.
    let by_rcx = |rule: &Rule| {
        rule.cfa.base == Base::Register(RCX) && !rule.cfa.deref && rule.ra == Location::AtCfa(-8)
    };
    let index = function.rows.iter().position(|(_, rule)| by_rcx(rule))?;
    let end = function.start + u64::from(function.rows[index].0);
    let (before, rule) = function.rows.get(index.checked_sub(1)?)?;
    let (Base::Fp, false, Location::AtCfa(fp)) = (rule.cfa.base, rule.cfa.deref, rule.fp) else {
        return None;
    };

    // The last two calls: the function that copies the registers, and the debug hook.
    let instructions: Vec<_> = code.instructions(function.start, end).collect();
    let is_call = |instruction: &Instruction| instruction.is_call_near();
    let hook = instructions.iter().rposition(is_call)?;
    let copy = instructions[..hook].iter().rposition(is_call)?;
    let callee = code.at(instructions[hook].near_branch_target());
    if !callee.starts_with(EMPTY_FUNCTION) && !callee.starts_with(&EMPTY_FUNCTION[4..]) {
        return None;
    }
    let between = &instructions[copy + 1..hook];
    if (between.iter()).any(|instruction| instruction.flow_control() != FlowControl::Next) {
        return None;
    }
    // The hook's arguments are the CFA and the handler, which lies 8 bytes above it.
    let writes_rdi = |instruction: &&Instruction| instruction.op0_register() == Register::RDI;
    let cfa = between.iter().rfind(writes_rdi).and_then(loaded)?;
    let handler = cfa.checked_add(8)?;
    if !(between.iter()).any(|instruction| loaded(instruction) == Some(handler)) {
        return None;
    }
    // The code after the copy must be reached only through the copy.
    let start = instructions[copy].next_ip();
    let jumps_in = |instruction: &Instruction| {
        let target = instruction.near_branch_target();
        instruction.ip() < start && start <= target && target < end
    };
    let offset = u32::try_from(start - function.start).ok()?;
    if instructions.iter().any(jumps_in) || offset <= *before {
        return None;
    }
    let rule = Rule {
        cfa: Cfa {
            base: Base::Fp,
            offset: cfa,
            deref: true,
            plus: 0,
        },
        fp: Location::At(Base::Fp, rule.cfa.offset.checked_add(fp)?),
        ..*rule
    };
    encode::can_encode(&rule).then_some((index, offset, rule))
}

/// The offset from the frame pointer, in bytes, from which an instruction loads a register.
fn loaded(instruction: &Instruction) -> Option<i32> {
    let is_load = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register().is_gpr64()
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RBP
        && instruction.memory_index() == Register::None;
    is_load.then(|| instruction.memory_displacement64() as i32)
}
