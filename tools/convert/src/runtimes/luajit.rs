// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Corrects the rows of LuaJIT's interpreter (`src/vm_x64.dasc` in LuaJIT's source, with
//! `LJ_GC64`).
//!
//! The interpreter is one function of assembly. Its .eh_frame has one row for all of it: that of
//! the frame in which bytecode is interpreted. The row is wrong where the interpreter makes this
//! frame and leaves it, where it enlarges the frame for a trace, and where a trace exits: there the
//! stack pointer is below the trace's frame, whose size is not known. The handler of exits loads
//! the state of the running coroutine into rbp. Its field `cframe` is the stack pointer of the
//! interpreter.

use std::{
    mem,
    ops::Range, //
};

use iced_x86::{
    FlowControl,
    Mnemonic,
    Register, //
};
use sframe::{
    rule::{
        Base,
        Cfa,
        Location,
        Rule,
        SavedRbx, //
    },
    x86_64::registers::RCX, //
};

use crate::{
    code::CodeBytes,
    encode,
    function::ConvertedFunction, //
};

/// The size of the interpreter's frame, in bytes, and where it saves the frame pointer, from the
/// CFA.
const FRAME: i32 = 80;
const FP: Location = Location::AtCfa(-16);

/// push %rbp; push %rbx; push %r15; push %r14; sub $40,%rsp
const ENTERS: &[u8] = b"\x55\x53\x41\x57\x41\x56\x48\x83\xec\x28";
/// add $40,%rsp; pop %r14; pop %r15; pop %rbx; pop %rbp; ret
const LEAVES: &[u8] = b"\x48\x83\xc4\x28\x41\x5e\x41\x5f\x5b\x5d\xc3";
/// sub $16,%rsp; mov %r12,16(%rsp); mov %r13,8(%rsp); jmp *%rax
const ENTERS_TRACE: &[u8] = b"\x48\x83\xec\x10\x4c\x89\x64\x24\x10\x4c\x89\x6c\x24\x08\xff\xe0";
/// The handler of exits: pushes of %r13 to %r8, %rdi, %rsi and %rbp; lea 88(%rsp),%rbp; pushes of
/// %rbp, %rbx, %rdx, %rcx and %rax; movzbl -8(%rbp),%eax
const HANDLES_EXIT: &[u8] =
    b"\x41\x55\x41\x54\x41\x53\x41\x52\x41\x51\x41\x50\x57\x56\x55\x48\x8d\x6c\x24\x58\
    \x55\x53\x52\x51\x50\x0f\xb6\x45\xf8";
/// mov offset(%r14),%rbp, without the offset
const LOADS_STATE: &[u8] = b"\x49\x8b\xae";
/// The code of the handler after its call, after `mov cframe(%rbp),%rcx`: and $-4,%rcx; mov
/// %rbp,16(%rcx)
const HAS_CFRAME: &[u8] = b"\x48\x83\xe1\xfc\x48\x89\x69\x10";
/// mov cframe(%rbp),%rcx, without the offset of one byte
const LOADS_CFRAME: &[u8] = b"\x48\x8b\x4d";
/// lea 16(%rsp),%rcx; mov -8(%rcx),%r13; mov (%rcx),%r12; mov %rcx,%rsp. The handler jumps to the
/// second instruction, and traces that end jump to the first one.
const LEAVES_TRACE: &[u8] = b"\x48\x8d\x4c\x24\x10\x4c\x8b\x69\xf8\x4c\x8b\x21\x48\x89\xcc";
/// mov %eax,%esi; mov %rbp,%rdi; neg %esi; call of a function that does not return, without the
/// target. After it are functions that the interpreter and traces call.
const BEFORE_HELPERS: &[u8] = b"\x89\xc6\x48\x89\xef\xf7\xde\xe8";
/// The entry for callbacks after these functions, where the frame pointer has been pushed: push
/// %rbx; push %r15; push %r14; sub $40,%rsp
const ENTERS_CALLBACK: &[u8] = b"\x53\x41\x57\x41\x56\x48\x83\xec\x28";
/// A function that pops its return address, pop %rbp; mov %rbp,(%rsp), and pushes it again: mov
/// (%rsp),%rbp; push %rbp; ret
const POPS_ADDRESS: &[u8] = b"\x5d\x48\x89\x2c\x24";
const PUSHES_ADDRESS: &[u8] = b"\x48\x8b\x2c\x24\x55\xc3";
/// The maximum size of the handler, in bytes.
const MAX_HANDLER: usize = 512;

/// Code, by offsets in the function, and its rule; `None` if there is none.
type Correction = (Range<usize>, Option<Rule>);

/// Corrects the rows of the interpreter if there is one.
pub(super) fn correct(functions: &mut Vec<ConvertedFunction>, code: &CodeBytes<'_>) {
    let found = functions.iter().enumerate().find_map(|(index, function)| {
        let corrections = corrections(function, code)?;
        Some((index, corrections))
    });
    let Some((index, corrections)) = found else {
        return;
    };
    let mut function = functions.swap_remove(index);
    let start = function.start;
    for (range, rule) in corrections {
        let rest = function.split_off(start + range.start as u64);
        functions.push(mem::replace(&mut function, rest));
        let rest = function.split_off(start + range.end as u64);
        if let Some(rule) = rule {
            functions.push(ConvertedFunction {
                rbx: SavedRbx::UNKNOWN,
                rows: vec![(0, rule)],
                ..function
            });
        }
        function = rest;
    }
    functions.push(function);
    functions.retain(|function| function.size != 0);
}

/// The corrections of a function in the order of their code; `None` if it is not the interpreter.
fn corrections(function: &ConvertedFunction, code: &CodeBytes<'_>) -> Option<Vec<Correction>> {
    let of_frame = Rule::amd64(Base::Sp, FRAME, FP);
    let [(0, rule)] = function.rows[..] else {
        return None;
    };
    if (rule.cfa, rule.fp, rule.ra) != (of_frame.cfa, of_frame.fp, of_frame.ra) {
        return None;
    }
    let bytes = code.at(function.start);
    let bytes = bytes.get(..function.size as usize)?;
    let handler = only(places(bytes, HANDLES_EXIT))?;
    let mut corrections = exits(function.start, bytes, handler, code)?;
    let by_sp = |range: Range<usize>, cfa, fp| (range, Some(Rule::amd64(Base::Sp, cfa, fp)));
    for at in places(bytes, ENTERS) {
        corrections.push(by_sp(at..at + 1, 8, Location::Unchanged));
        for (range, cfa) in [(1..2, 16), (2..4, 24), (4..6, 32), (6..10, 40)] {
            corrections.push(by_sp(at + range.start..at + range.end, cfa, FP));
        }
    }
    for at in places(bytes, LEAVES) {
        for (range, cfa) in [(4..6, 40), (6..8, 32), (8..9, 24), (9..10, 16)] {
            corrections.push(by_sp(at + range.start..at + range.end, cfa, FP));
        }
        corrections.push(by_sp(at + 10..at + 11, 8, Location::Unchanged));
    }
    for at in places(bytes, ENTERS_TRACE) {
        corrections.push(by_sp(at + 4..at + ENTERS_TRACE.len(), FRAME + 16, FP));
    }
    for at in places(bytes, ENTERS_CALLBACK).filter(|at| !bytes[..*at].ends_with(&ENTERS[..1])) {
        for (range, cfa) in [(0..1, 16), (1..3, 24), (3..5, 32), (5..9, 40)] {
            corrections.push(by_sp(at + range.start..at + range.end, cfa, FP));
        }
    }
    for at in places(bytes, POPS_ADDRESS) {
        corrections.push(by_sp(at..at + 1, FRAME + 8, FP));
    }
    for at in places(bytes, PUSHES_ADDRESS) {
        corrections.push(by_sp(at + 5..at + 6, FRAME + 8, FP));
    }
    if let Some(at) = only(places(bytes, BEFORE_HELPERS)) {
        let start = at + BEFORE_HELPERS.len() + 4;
        for (range, cfa) in helpers(function.start, start, bytes.len(), code)? {
            corrections.push(by_sp(range, cfa, Location::Unchanged));
        }
    }
    corrections.sort_by_key(|(range, _)| range.start);
    let is_apart = |pair: &[Correction]| pair[0].0.end <= pair[1].0.start;
    corrections.windows(2).all(is_apart).then_some(corrections)
}

/// The corrections at exits of traces. `handler` is the offset of the handler, and `start` the
/// address of the function.
fn exits(
    start: u64,
    bytes: &[u8],
    handler: usize,
    code: &CodeBytes<'_>,
) -> Option<Vec<Correction>> {
    let bytes = &bytes[..bytes.len().min(handler + MAX_HANDLER)];
    let behind = |pattern| places(bytes, pattern).find(|at| *at > handler);
    let loads_state = behind(LOADS_STATE)?;
    let has_cframe = behind(HAS_CFRAME)?;
    let leaves = behind(LEAVES_TRACE)?;
    let loaded = loads_state + LOADS_STATE.len() + 4;
    let [load @ .., cframe] = bytes.get(has_cframe.checked_sub(4)?..has_cframe)? else {
        return None;
    };
    if load != LOADS_CFRAME || loaded > has_cframe || has_cframe >= leaves {
        return None;
    }
    // rbp has the state up to the end of the handler.
    let keeps_state = code
        .instructions(start + loaded as u64, start + leaves as u64)
        .all(|instruction| {
            !instruction.is_invalid() && instruction.op0_register() != Register::RBP
        });
    if !keeps_state {
        return None;
    }
    let by_state = Rule {
        cfa: Cfa {
            base: Base::Fp,
            offset: i32::from(*cframe as i8),
            deref: true,
            plus: i8::try_from(FRAME).ok()?,
        },
        ..Rule::amd64(Base::Sp, FRAME, FP)
    };
    let corrections = vec![
        (handler..loaded, None),
        (loaded..leaves, Some(by_state)),
        (
            leaves..leaves + 5,
            Some(Rule::amd64(Base::Sp, FRAME + 16, FP)),
        ),
        (
            leaves + 5..leaves + LEAVES_TRACE.len(),
            Some(Rule::amd64(Base::Register(RCX), FRAME, FP)),
        ),
    ];
    encode::extra_row(start, 1, &by_state)?;
    Some(corrections)
}

/// The code of functions without a frame from the offset `from` on, in the function at the address
/// `start`, and the distance of the CFA from the stack pointer there. Each ends with ret; one saves
/// a register by a push. The first instruction that is none of theirs ends the code. `None` if the
/// distance is not known.
fn helpers(
    start: u64,
    from: usize,
    len: usize,
    code: &CodeBytes<'_>,
) -> Option<Vec<(Range<usize>, i32)>> {
    if from > len {
        return None;
    }
    let mut found: Vec<(Range<usize>, i32)> = Vec::new();
    let mut cfa = 8;
    for instruction in code.instructions(start + from as u64, start + len as u64) {
        let at = (instruction.ip() - start) as usize;
        let end = (instruction.next_ip() - start) as usize;
        if code.at(instruction.ip()).starts_with(ENTERS_CALLBACK) && cfa == 8
            || instruction.mnemonic() == Mnemonic::Int3
        {
            break;
        }
        match found.last_mut() {
            Some((range, last)) if *last == cfa => range.end = end,
            _ => found.push((at..end, cfa)),
        }
        match (instruction.mnemonic(), instruction.flow_control()) {
            (Mnemonic::Push, _) => cfa += 8,
            (Mnemonic::Pop, _) => cfa -= 8,
            (Mnemonic::Ret, _) if cfa == 8 => {}
            (_, FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch) if cfa == 8 => {}
            (_, FlowControl::Next)
                if !instruction.is_stack_instruction()
                    && instruction.op0_register() != Register::RSP => {}
            _ => return None,
        }
    }
    (cfa == 8).then_some(found)
}

/// The offsets of `pattern` in `bytes`.
fn places<'a>(bytes: &'a [u8], pattern: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let windows = bytes.windows(pattern.len()).enumerate();
    windows.filter_map(move |(at, part)| (part == pattern).then_some(at))
}

/// The only item.
fn only(mut items: impl Iterator<Item = usize>) -> Option<usize> {
    let item = items.next()?;
    items.next().is_none().then_some(item)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::sort_and_trim;

    const START: u64 = 0x1000;
    /// mov 8(%r14),%rbp; mov %rsp,%rsi; call; mov 80(%rbp),%rcx; and $-4,%rcx; mov %rbp,16(%rcx);
    /// jmp
    const EXIT: &[u8] =
        b"\x49\x8b\xae\x08\0\0\0\x48\x89\xe6\xe8\0\0\0\0\x48\x8b\x4d\x50\x48\x83\xe1\xfc\x48\x89\x69\x10\xeb\x05";

    /// A call; ret; push %rbx; cpuid; pop %rbx; jmp; ret; int3; and the entry for callbacks
    const HELPERS: &[u8] =
        b"\x89\xc6\x48\x89\xef\xf7\xde\xe8\0\0\0\0\xc3\x53\x0f\xa2\x5b\xeb\0\xc3\xcc\
        \x53\x41\x57\x41\x56\x48\x83\xec\x28";

    /// An interpreter with this code between the parts, and the offset of each part.
    fn interpreter(exit: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        let mut places = Vec::new();
        for part in [
            ENTERS,
            LEAVES,
            ENTERS_TRACE,
            HANDLES_EXIT,
            exit,
            LEAVES_TRACE,
            POPS_ADDRESS,
            PUSHES_ADDRESS,
            HELPERS,
        ] {
            bytes.extend([0x90; 3]);
            places.push(bytes.len());
            bytes.extend(part);
        }
        bytes.extend([0x90; 3]);
        (bytes, places)
    }

    fn corrected(bytes: &[u8], rule: Rule) -> Vec<ConvertedFunction> {
        let mut functions = vec![ConvertedFunction {
            start: START,
            size: bytes.len() as u32,
            repeat: None,
            signal: false,
            rbx: SavedRbx::UNKNOWN,
            rows: vec![(0, rule)],
        }];
        let code = CodeBytes {
            segments: vec![(START, START + bytes.len() as u64, bytes)],
        };
        correct(&mut functions, &code);
        sort_and_trim(&mut functions);
        functions
    }

    /// The rule at an offset.
    fn at(functions: &[ConvertedFunction], offset: usize) -> Option<Rule> {
        let address = START + offset as u64;
        let holds = |it: &&ConvertedFunction| it.start <= address && address < it.end();
        Some(functions.iter().find(holds)?.rows[0].1)
    }

    #[test]
    fn rows_are_corrected_where_the_stack_pointer_moves() {
        let of_frame = Rule::amd64(Base::Sp, FRAME, FP);
        let (bytes, places) = interpreter(EXIT);
        let [enters, leaves, enters_trace, handler, exit, leaves_trace, pops, pushes, helpers] =
            places[..]
        else {
            panic!("{places:?}");
        };
        let functions = corrected(&bytes, of_frame);
        let cfa = |offset| at(&functions, offset).map(|rule| (rule.cfa.base, rule.cfa.offset));
        let by_sp = |cfa| Some((Base::Sp, cfa));
        for (offset, expected) in [
            (0, 80),
            (enters, 8),
            (enters + 1, 16),
            (enters + 2, 24),
            (enters + 4, 32),
            (enters + 6, 40),
            (enters + 10, 80),
            (leaves, 80),
            (leaves + 4, 40),
            (leaves + 6, 32),
            (leaves + 8, 24),
            (leaves + 9, 16),
            (leaves + 10, 8),
            (leaves + 11, 80),
            (enters_trace, 80),
            (enters_trace + 4, 96),
            (enters_trace + 14, 96),
            (enters_trace + 16, 80),
            (handler - 1, 80),
            (leaves_trace, 96),
            (pops, 88),
            (pops + 1, 80),
            (pushes + 4, 80),
            (pushes + 5, 88),
            (helpers + 11, 80),
            (helpers + 12, 8),
            (helpers + 13, 8),
            (helpers + 14, 16),
            (helpers + 16, 16),
            (helpers + 17, 8),
            (helpers + 19, 8),
            (helpers + 20, 80),
            (helpers + 21, 16),
            (helpers + 22, 24),
            (helpers + 24, 32),
            (helpers + 26, 40),
            (helpers + 30, 80),
            (bytes.len() - 1, 80),
        ] {
            assert_eq!(cfa(offset), by_sp(expected), "{offset:#x}");
        }
        // Before the push of rbp, and after its pop, the frame pointer is the caller's.
        for (offset, expected) in [(enters, Location::Unchanged), (enters + 1, FP)] {
            assert_eq!(at(&functions, offset).unwrap().fp, expected);
        }
        assert_eq!(at(&functions, leaves + 9).unwrap().fp, FP);
        assert_eq!(at(&functions, leaves + 10).unwrap().fp, Location::Unchanged);
        // The size of the trace's frame is not known before the state is loaded.
        assert_eq!(cfa(handler), None);
        assert_eq!(cfa(exit), None);
        for offset in [exit + 7, exit + 14, leaves_trace - 1] {
            let rule = at(&functions, offset).unwrap();
            let expected = Cfa {
                base: Base::Fp,
                offset: 0x50,
                deref: true,
                plus: 80,
            };
            assert_eq!((rule.cfa, rule.fp), (expected, FP));
        }
        assert_eq!(cfa(leaves_trace + 5), Some((Base::Register(RCX), 80)));
        assert_eq!(cfa(leaves_trace + 14), Some((Base::Register(RCX), 80)));
    }

    #[test]
    fn other_functions_are_unchanged() {
        let of_frame = Rule::amd64(Base::Sp, FRAME, FP);
        let (bytes, _) = interpreter(EXIT);
        let larger = Rule::amd64(Base::Sp, FRAME + 8, FP);
        assert_eq!(corrected(&bytes, larger).len(), 1);
        // The state's register changes: mov %rsp,%rbp
        let (bytes, _) = interpreter(&[&EXIT[..7], b"\x48\x89\xe5", &EXIT[10..]].concat());
        assert_eq!(corrected(&bytes, of_frame).len(), 1);
        // The state is loaded after its use, or not at all.
        let (bytes, _) = interpreter(&[&EXIT[7..], &EXIT[..7]].concat());
        assert_eq!(corrected(&bytes, of_frame).len(), 1);
        let (bytes, _) = interpreter(&EXIT[7..]);
        assert_eq!(corrected(&bytes, of_frame).len(), 1);
        // A helper that returns above its return address.
        let (bytes, places) = interpreter(EXIT);
        let mut bad = bytes.clone();
        bad[places[8] + 13] = 0x90;
        assert_eq!(corrected(&bad, of_frame).len(), 1);
        // Two handlers.
        let (bytes, _) = interpreter(EXIT);
        assert_eq!(corrected(&bytes.repeat(2), of_frame).len(), 1);
        for len in 0..bytes.len() {
            corrected(&bytes[..len], of_frame);
        }
    }
}
