// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rows for code that a return address leads to without a call before it: trampolines that signal
//! handlers return to, and the code at the root of a fiber's stack.

use iced_x86::{
    FlowControl,
    Mnemonic, //
};

use sframe::{
    rule::{
        Base,
        Location,
        Rule,
        SavedRbx, //
    },
    x86_64::{
        ends_with_call,
        CALL_WINDOW, //
    }, //
};

use crate::{
    code::CodeBytes,
    eh_frame::takes_stack,
    function::ConvertedFunction, //
};

/// Corrects the rows of functions, which are sorted and do not overlap.
///
/// The root of a fiber of `makecontext` has the row of a function that was just called: it becomes
/// outermost. A row is looked up one byte before the return address. So where a signal trampoline
/// or an outermost frame begins, the row also covers the byte before, if no other row covers it,
/// and no call ends there. No return address leads to the program's `entry`.
pub(crate) fn add_rows(functions: &mut [ConvertedFunction], entry: u64, code: &CodeBytes<'_>) {
    let mut end = 0;
    for function in functions {
        if forgets_stack(function, code) {
            function.rows = vec![(0, Rule::OUTERMOST)];
            function.rbx = SavedRbx::UNKNOWN;
        }
        let is_root = matches!(function.rows.first(), Some(&(0, rule)) if rule == Rule::OUTERMOST);
        let start = function.start;
        if (function.signal || is_root)
            && start != entry
            && end < start
            && code.holds(start - 1, start)
            && !is_behind_call(start, code)
        {
            function.start -= 1;
            function.size += 1;
            function
                .rows
                .iter_mut()
                .skip(1)
                .for_each(|(at, _)| *at += 1);
        }
        end = function.end();
    }
}

/// Whether the instruction before an address may be a call.
fn is_behind_call(address: u64, code: &CodeBytes<'_>) -> bool {
    let before = code.at(address.saturating_sub(CALL_WINDOW as u64));
    before.first_chunk().is_some_and(ends_with_call)
}

/// Whether a function, by its row, was just called, but loads the stack pointer at once and does
/// not return. So the word at the stack pointer is no return address.
fn forgets_stack(function: &ConvertedFunction, code: &CodeBytes<'_>) -> bool {
    const CALLED: Rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);
    if !matches!(function.rows[..], [(0, CALLED)]) || function.repeat.is_some() {
        return false;
    }
    let range = function.start..function.end();
    let mut instructions = code.instructions(range.start, range.end);
    if !instructions.next().is_some_and(|first| takes_stack(&first)) {
        return false;
    }
    let mut goes_on = true;
    for instruction in instructions {
        let stays = match instruction.flow_control() {
            _ if instruction.is_invalid() => false,
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                range.contains(&instruction.near_branch_target())
            }
            FlowControl::Return | FlowControl::IndirectBranch => false,
            _ => true,
        };
        if !stays {
            return false;
        }
        goes_on = instruction.mnemonic() != Mnemonic::Hlt
            && matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            );
    }
    !goes_on
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::tests::{
        function,
        plain, //
    };
    use sframe::x86_64::INTERRUPTED;

    /// The program's entry point.
    const ENTRY: u64 = 0x1080;

    /// The functions with their rows corrected, in text at 0x1000.
    fn corrected(text: &[u8], mut functions: Vec<ConvertedFunction>) -> Vec<ConvertedFunction> {
        let code = CodeBytes {
            segments: vec![(0x1000, 0x1000 + text.len() as u64, text)],
        };
        add_rows(&mut functions, ENTRY, &code);
        functions
    }

    #[test]
    fn rows_where_no_call_leads_to_begin_a_byte_earlier() {
        let signal = |start, size, rows: &[(u32, Rule)]| ConvertedFunction {
            signal: true,
            ..function(start, size, rows)
        };
        let root = |start, size| function(start, size, &[(0, Rule::OUTERMOST), (4, plain(8))]);
        let mut text = [0xcc; 0x100];
        let trampoline = signal(0x1040, 16, &[(0, INTERRUPTED), (9, plain(8))]);
        let earlier = signal(0x103f, 17, &[(0, INTERRUPTED), (10, plain(8))]);
        let found = corrected(&text, vec![trampoline.clone()]);
        assert_eq!(found[0], earlier);
        let found = corrected(&text, vec![root(0x1040, 16)]);
        let rows = [(0, Rule::OUTERMOST), (5, plain(8))];
        assert_eq!(found, [function(0x103f, 17, &rows)]);
        // Other rows stay, and rows at the program's entry and at the start of the code.
        let other = function(0x1040, 16, &[(0, plain(8))]);
        assert_eq!(corrected(&text, vec![other.clone()]), [other]);
        assert_eq!(corrected(&text, vec![root(0x1000, 16)]), [root(0x1000, 16)]);
        assert_eq!(corrected(&text, vec![root(ENTRY, 16)]), [root(ENTRY, 16)]);
        // A row covers the byte before, or not quite.
        let before = |size| function(0x1020, size, &[(0, plain(8))]);
        let both = [before(0x20), trampoline.clone()];
        assert_eq!(corrected(&text, both.to_vec()), both);
        let both = [before(0x1f), trampoline.clone()];
        assert_eq!(corrected(&text, both.to_vec()), [before(0x1f), earlier]);
        // call *%rax
        text[0x3e..0x40].copy_from_slice(b"\xff\xd0");
        let found = corrected(&text, vec![trampoline.clone()]);
        assert_eq!(found, [trampoline]);
    }

    #[test]
    fn code_that_forgets_its_stack_is_outermost() {
        // mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je 1f; call; mov %rax,%rdi; 1: call; hlt
        const START: &[u8] = b"\x48\x89\xdc\x48\x8b\x3c\x24\x48\x85\xff\x74\x08\xe8\0\0\0\0\
            \x48\x89\xc7\xe8\0\0\0\0\xf4";
        let rules = |code: &[u8], size: usize| {
            let text = [&[0xcc; 16], code, &[0xcc; 16]].concat();
            let found = corrected(&text, vec![function(0x1010, size as u32, &[(0, plain(8))])]);
            (found[0].start, found[0].rows[0].1)
        };
        let (root, called) = ((0x100f, Rule::OUTERMOST), (0x1010, plain(8)));
        assert_eq!(rules(START, START.len()), root);
        // Without hlt, or without the end of the call.
        assert_eq!(rules(START, START.len() - 1), root);
        assert_eq!(rules(START, START.len() - 2), called);
        let with = |at: usize, bytes: &[u8]| {
            let mut code = START.to_vec();
            code[at..at + bytes.len()].copy_from_slice(bytes);
            rules(&code, code.len())
        };
        // mov %rbp,%rsp; a return; a jump to other code; an indirect jump; no end
        assert_eq!(with(0, b"\x48\x89\xec"), called);
        assert_eq!(with(17, b"\x90\x90\xc3"), called);
        assert_eq!(with(10, b"\x74\x40"), called);
        assert_eq!(with(17, b"\x90\xff\xe0"), called);
        assert_eq!(with(25, b"\x90"), called);
    }
}
