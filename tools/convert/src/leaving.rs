// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Functions that go on in another frame, by `__builtin_eh_return`: those of libgcc that throw, resume
//! and unwind.
//!
//! Near their end they put the registers of a handler's frame in the place of their own saved ones, the
//! return address among them, and .eh_frame goes on to say that all is where it was. What that leads to is
//! a frame with the stack pointer of another one. From there on, and up to where .eh_frame knows better,
//! the CFA is in the function's own memory: it is what `_Unwind_DebugHook` is called with, which is
//! there for debuggers and does nothing.

use iced_x86::{
    FlowControl,
    Instruction,
    Mnemonic,
    OpKind,
    Register, //
};
use sframe::rule::{
    Base,
    Cfa,
    Location,
    Rule, //
};

use crate::{
    write,
    Code,
    Function, //
};

/// DWARF's number of the register that has the other frame's stack pointer in the end: rcx.
const RCX: u8 = 2;

/// `endbr64; ret`, the first of which is not everywhere.
const NOTHING: &[u8] = b"\xf3\x0f\x1e\xfa\xc3";

/// Has it said of functions that are known to do so.
pub(crate) fn say_leaving(functions: &mut [Function], code: &Code<'_>) {
    for function in functions {
        if let Some((index, start, rule)) = row(function, code) {
            function.rows.insert(index, (start, rule));
        }
    }
}

/// The row, by its index, offset and rule.
fn row(function: &Function, code: &Code<'_>) -> Option<(usize, u32, Rule)> {
    let by_rcx = |rule: &Rule| {
        rule.cfa.base == Base::Register(RCX) && !rule.cfa.deref && rule.ra == Location::AtCfa(-8)
    };
    let index = function.rows.iter().position(|(_, rule)| by_rcx(rule))?;
    let end = function.start + u64::from(function.rows[index].0);
    let (before, rule) = function.rows.get(index.checked_sub(1)?)?;
    let (Base::Fp, false, Location::AtCfa(fp)) = (rule.cfa.base, rule.cfa.deref, rule.fp) else {
        return None;
    };

    // The last two calls: of what copies, and of what is told of it.
    let instructions: Vec<_> = code.instructions(function.start, end).collect();
    let is_call = |instruction: &Instruction| instruction.is_call_near();
    let told = instructions.iter().rposition(is_call)?;
    let copies = instructions[..told].iter().rposition(is_call)?;
    let nothing = code.at(instructions[told].near_branch_target());
    if !nothing.starts_with(NOTHING) && !nothing.starts_with(&NOTHING[4..]) {
        return None;
    }
    let between = &instructions[copies + 1..told];
    if (between.iter()).any(|instruction| instruction.flow_control() != FlowControl::Next) {
        return None;
    }
    // It is told the CFA, and the handler, which lies behind that.
    let writes_rdi = |instruction: &&Instruction| instruction.op0_register() == Register::RDI;
    let cfa = between.iter().rfind(writes_rdi).and_then(loaded)?;
    let handler = cfa.checked_add(8)?;
    if !(between.iter()).any(|instruction| loaded(instruction) == Some(handler)) {
        return None;
    }
    // Who comes there has come by the one that copies.
    let start = instructions[copies].next_ip();
    let comes_otherwise = |instruction: &Instruction| {
        let target = instruction.near_branch_target();
        instruction.ip() < start && start <= target && target < end
    };
    let offset = u32::try_from(start - function.start).ok()?;
    if instructions.iter().any(comes_otherwise) || offset <= *before {
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
    write::can_say(&rule).then_some((index, offset, rule))
}

/// From where, counted from the frame pointer in bytes, an instruction loads a register.
fn loaded(instruction: &Instruction) -> Option<i32> {
    let is_load = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register().is_gpr64()
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RBP
        && instruction.memory_index() == Register::None;
    is_load.then(|| instruction.memory_displacement64() as i32)
}
