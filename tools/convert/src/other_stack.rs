// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Functions that go on on another stack while their frame stays on the old one, as `__morestack`
//! of gcc's split stacks does.
//!
//! The frame is found by the frame pointer, so the rows of .eh_frame do not change there. But the
//! caller may be at a lower address than the stack pointer, which is an error on one stack. So the
//! code from the load of the stack pointer up to its restoration from the frame pointer, or to the
//! next jump, gets extra rows with [`changes_stack`](sframe::rule::Extra::changes_stack).

use iced_x86::{
    FlowControl,
    Instruction,
    Mnemonic,
    Register, //
};
use sframe::rule::{
    Base,
    Location,
    Rule, //
};
use std::{
    mem,
    ops::Range, //
};

use crate::{
    code::CodeBytes,
    eh_frame,
    encode,
    function::ConvertedFunction,
    report::{
        DropReason,
        Report, //
    },
    work::ConversionWork, //
};

/// Marks the rows of such functions. `functions` are sorted, and do not overlap.
pub(crate) fn mark_rows(
    functions: &mut Vec<ConvertedFunction>,
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
    report: &mut Report,
) {
    let is_candidate = |function: &ConvertedFunction| {
        !function.signal
            && function.repeat.is_none()
            && has_own_start(function)
            && function.rows.iter().any(|(_, rule)| is_markable(rule))
            && may_take_stack(bytes_of(function, code))
    };
    let mut out = Vec::with_capacity(functions.len());
    for mut function in mem::take(functions) {
        if !is_candidate(&function) {
            out.push(function);
            continue;
        }
        for part in on_other_stack(&function, code) {
            // The rows behind the part are copied.
            if !work.take(function.rows.len() as u64) {
                report.count_dropped(DropReason::WorkLimit, part.end - part.start);
                break;
            }
            let middle = function.split_off(part.start);
            out.push(mem::replace(&mut function, middle));
            let rest = function.split_off(part.end);
            out.extend(marked(&mem::replace(&mut function, rest)));
        }
        out.push(function);
    }
    out.retain(|function| function.size != 0);
    *functions = out;
}

/// Whether the function sets up its frame. A part of a function that its compiler has moved away
/// does not; the copy of the stack pointer that such a part loads may be made in the other part.
fn has_own_start(function: &ConvertedFunction) -> bool {
    (function.rows.first()).is_some_and(|(_, rule)| rule.cfa.base == Base::Sp)
}

/// Whether the frame of a rule is found by the frame pointer.
fn is_markable(rule: &Rule) -> bool {
    let mut marked = *rule;
    marked.extra.changes_stack = true;
    rule.cfa.base == Base::Fp
        && rule.ra == Location::AtCfa(-8)
        && encode::extra_row(0, 1, &marked).is_some()
}

/// A function as functions of one row each, because an extra row stands alone. Rows whose frame is
/// found by the frame pointer are marked.
fn marked(function: &ConvertedFunction) -> impl Iterator<Item = ConvertedFunction> + '_ {
    function.ranges().map(|(range, mut rule)| {
        if is_markable(&rule) {
            rule.extra.changes_stack = true;
        }
        ConvertedFunction {
            start: function.start + u64::from(range.start),
            size: range.end - range.start,
            repeat: function.repeat,
            signal: function.signal,
            rbx: function.rbx,
            rows: vec![(0, rule)],
        }
    })
}

/// The code of a function.
fn bytes_of<'a>(function: &ConvertedFunction, code: &CodeBytes<'a>) -> &'a [u8] {
    let bytes = code.at(function.start);
    &bytes[..bytes.len().min(function.size as usize)]
}

/// Whether code may have an instruction that takes another stack: the bytes of `mov` or `lea` to
/// rsp from anything but the frame pointer and an address on the stack, or of `xchg` with rsp.
/// Most functions have none, and need not be decoded.
fn may_take_stack(code: &[u8]) -> bool {
    /// The bits of a ModRM byte: the two operands, and the second one with the mode.
    const FIRST: u8 = 0x38;
    const SECOND: u8 = 0xc7;
    const RSP_FIRST: u8 = 0x20;
    const RSP_SECOND: u8 = 0xc4;

    code.windows(3).any(|bytes| match *bytes {
        // mov %rbp,%rsp, in both encodings
        [0x48, 0x89, 0xec] | [0x48, 0x8b, 0xe5] => false,
        [0x48 | 0x4c, 0x89 | 0x87, operands] => operands & SECOND == RSP_SECOND,
        [0x48 | 0x49, 0x8b, operands] => operands & FIRST == RSP_FIRST,
        // Of lea N(%rbp),%rsp and lea N(%rsp),%rsp, each function with a frame pointer has one.
        [0x48, 0x8d, operands] => operands & FIRST == RSP_FIRST && !matches!(operands & 7, 4 | 5),
        [0x49, 0x8d, operands] => operands & FIRST == RSP_FIRST,
        [0x48 | 0x49, 0x94, _] => true,
        _ => false,
    })
}

/// The ranges of link-time addresses in a function at which it runs on another stack. None if the
/// function copies its stack pointer: what it loads later may be the copy, which frees what it has
/// allocated.
fn on_other_stack(function: &ConvertedFunction, code: &CodeBytes<'_>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut taken = None;
    for instruction in code.instructions(function.start, function.end()) {
        if copies_stack_pointer(&instruction) {
            return Vec::new();
        }
        // Behind a jump or a return, other paths through the function go on.
        let is_left = matches!(
            instruction.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        );
        if is_left || restores_stack_pointer(&instruction) {
            let end = instruction.next_ip().min(function.end());
            found.extend(taken.take().map(|start| start..end));
        } else if taken.is_none() && gets_other_value(&instruction) {
            taken = Some(instruction.next_ip());
        }
    }
    found.extend(taken.map(|start| start..function.end()));
    found.retain(|part| part.start < part.end);
    found
}

/// Whether an instruction copies the stack pointer to another place than the frame pointer.
fn copies_stack_pointer(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op1_register() == Register::RSP
        && instruction.op0_register() != Register::RBP
}

/// Whether an instruction sets the stack pointer to an address in the frame: `mov %rbp,%rsp`, `lea
/// N(%rbp),%rsp` or `leave`.
fn restores_stack_pointer(instruction: &Instruction) -> bool {
    let is_set = instruction.op0_register() == Register::RSP;
    match instruction.mnemonic() {
        Mnemonic::Mov => is_set && instruction.op1_register() == Register::RBP,
        Mnemonic::Lea => is_set && instruction.memory_base() == Register::RBP,
        Mnemonic::Leave => true,
        _ => false,
    }
}

/// Whether an instruction gives the stack pointer a value that does not follow from itself or from
/// the frame pointer.
fn gets_other_value(instruction: &Instruction) -> bool {
    let is_set = instruction.op0_register() == Register::RSP;
    let is_of_frame = matches!(instruction.memory_base(), Register::RSP | Register::RBP);
    match instruction.mnemonic() {
        Mnemonic::Lea => is_set && !is_of_frame,
        Mnemonic::Xchg => is_set || instruction.op1_register() == Register::RSP,
        _ => eh_frame::takes_stack(instruction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::tests::{
        function,
        plain, //
    };

    const START: u64 = 0x1000;
    /// push %rbp; mov %rsp,%rbp
    const PROLOGUE: &[u8] = b"\x55\x48\x89\xe5";
    /// call; mov %rbp,%rsp; pop %rbp; ret
    const REST: &[u8] = b"\xe8\0\0\0\0\x48\x89\xec\x5d\xc3";

    /// The marked parts of a function with a frame pointer: start and end of each, in bytes from
    /// the function's start.
    fn marks(middle: &[u8]) -> Vec<(u64, u64)> {
        marks_of(middle, &[(0, plain(8)), (1, plain(16))])
    }

    fn marks_of(middle: &[u8], beginning: &[(u32, Rule)]) -> Vec<(u64, u64)> {
        let text = [PROLOGUE, middle, REST].concat();
        let end = text.len() as u32;
        let by_fp = Rule::amd64(Base::Fp, 16, Location::AtCfa(-16));
        let rows = [beginning, &[(4, by_fp), (end - 1, plain(8))]].concat();
        let mut functions = vec![
            function(START - 16, 16, &[(0, plain(8))]),
            function(START, end, &rows),
        ];
        let before = functions.clone();
        let code = CodeBytes {
            segments: vec![(START, START + u64::from(end), &text)],
        };
        let mut work = ConversionWork::new(&text);
        mark_rows(&mut functions, &code, &mut work, &mut Report::default());
        // All code has the rule that it had before, but for the mark.
        let rule_at = |functions: &[ConvertedFunction], at: u64| {
            let function = functions
                .iter()
                .find(|function| (function.start..function.end()).contains(&at))?;
            let offset = (at - function.start) as u32;
            let row = function.rows.iter().rfind(|(start, _)| *start <= offset);
            row.map(|(_, rule)| *rule)
        };
        for at in START - 16..START + u64::from(end) {
            let mut rule = rule_at(&functions, at).unwrap();
            rule.extra.changes_stack = false;
            assert_eq!(Some(rule), rule_at(&before, at), "{at:#x}");
        }
        functions
            .iter()
            .filter(|function| function.rows[0].1.extra.changes_stack)
            .map(|function| (function.start - START, function.end() - START))
            .collect()
    }

    #[test]
    fn code_behind_a_load_of_the_stack_pointer_is_marked() {
        // mov %rax,%rsp; mov %r11,%rsp; mov 8(%rdi),%rsp; mov (%rdi),%rsp; mov N(%rip),%rsp; lea
        // -64(%rdi),%rsp; lea -64(%r12),%rsp; xchg %rax,%rsp; xchg %rsp,%r10. The mark ends behind
        // mov %rbp,%rsp.
        for load in [
            &b"\x48\x89\xc4"[..],
            b"\x4c\x89\xdc",
            b"\x48\x8b\x67\x08",
            b"\x48\x8b\x27",
            b"\x48\x8b\x25\0\0\0\0",
            b"\x48\x8d\x67\xc0",
            b"\x49\x8d\x64\x24\xc0",
            b"\x48\x94",
            b"\x4c\x87\xd4",
        ] {
            let start = 4 + load.len() as u64;
            assert_eq!(marks(load), [(start, start + 8)], "{load:x?}");
        }
        // mov %rcx,%rsp; pop %rcx; jmp *%rcx, as libgcc leaves for the handler of an exception; and
        // with jmp 0
        for jump in [&b"\xff\xe1"[..], b"\xeb\0"] {
            let code = [b"\x48\x89\xcc\x59", jump].concat();
            assert_eq!(marks(&code), [(7, 10)], "{jump:x?}");
        }
    }

    #[test]
    fn a_function_on_one_stack_is_not_marked() {
        // Nothing; lea -40(%rbp),%rsp; lea 40(%rsp),%rsp; sub %rax,%rsp; and $-32,%rsp; and the
        // restoration of a copy: mov %rsp,%r12 … mov %r12,%rsp, mov %rsp,-8(%rbp) … mov
        // -8(%rbp),%rsp
        for middle in [
            &b""[..],
            b"\x48\x8d\x65\xd8",
            b"\x48\x8d\x64\x24\x28",
            b"\x48\x29\xc4",
            b"\x48\x83\xe4\xe0",
            b"\x49\x89\xe4\x4c\x89\xe4",
            b"\x48\x89\x65\xf8\x48\x8b\x65\xf8",
        ] {
            assert_eq!(marks(middle), [], "{middle:x?}");
        }
        // A part whose frame another part has set up: mov %r12,%rsp
        let by_fp = Rule::amd64(Base::Fp, 16, Location::AtCfa(-16));
        assert_eq!(marks_of(b"\x4c\x89\xe4", &[(0, by_fp)]), []);
    }
}
