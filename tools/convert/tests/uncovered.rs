// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Files with much code that no entry of .eh_frame covers.

#[path = "../../../rust/sframe/tests/support/encode.rs"]
#[expect(dead_code, reason = "the core's tests use all of it")]
mod encode;
mod program;

use convert::{
    convert,
    ConvertError,
    FramePointers, //
};
use sframe::rule::{
    Base,
    Location,
    Rule, //
};

use encode::{
    EncodedFunction,
    EncodedSection,
    SP, //
};
use program::{
    plain,
    rules,
    Program, //
};

/// push %rbp; mov %rsp,%rbp; pop %rbp; ret
const FRAMED: &[u8] = b"\x55\x48\x89\xe5\x5d\xc3";

/// The row where [`FRAMED`] has set up its frame.
fn framed() -> Option<Rule> {
    Some(Rule::amd64(Base::Fp, 16, Location::AtCfa(-16)))
}

/// Dart's compiler writes one entry for all code of a file.
#[test]
fn one_row_by_the_frame_pointer_for_much_code_is_no_row() {
    const SIZE: u32 = 64 << 10;
    // cfa=rbp+16, rbp=c-16
    const FRAME: &[u8] = &[0x0c, 6, 16, 0x86, 2];
    let rules = |size: u32, instructions: &[u8]| {
        let mut program = Program::new(SIZE as usize);
        program.text[..FRAMED.len()].copy_from_slice(FRAMED);
        program.fde(0, size, instructions);
        // An entry in the code of the other one.
        program.fde(32, 16, &[0x0e, 24]);
        let file = program.bytes();
        rules(&file, &convert(&file).unwrap(), &[0, 4, 6, 32])
    };
    let by_instructions = [plain(8), framed(), None, plain(24)];
    assert_eq!(rules(SIZE, FRAME), by_instructions);
    let by_entry = [framed(), framed(), framed(), plain(24)];
    assert_eq!(rules(SIZE - 1, FRAME), by_entry);
    // A compiler's entry has a row for the function's start.
    let with_start = [&[0x0e, 8, 0x44], FRAME].concat();
    let by_entry = [plain(8), framed(), framed(), plain(24)];
    assert_eq!(rules(SIZE, &with_start), by_entry);
    // Another frame is no claim.
    let other = Some(Rule::amd64(Base::Fp, 24, Location::AtCfa(-24)));
    assert_eq!(rules(SIZE, &[0x0c, 6, 24, 0x86, 3])[..2], [other; 2]);
}

#[test]
fn a_file_without_eh_frame_has_rows_by_its_instructions() {
    let mut program = Program::new(0x1000);
    program.has_eh_frame = false;
    program.text[..FRAMED.len()].copy_from_slice(FRAMED);
    let file = program.bytes();
    let converted = convert(&file).unwrap();
    assert_eq!(converted.report.eh_frame, 0);
    assert_eq!(converted.report.analyzed_code, FRAMED.len() as u64);
    assert_eq!(
        rules(&file, &converted, &[0, 4, 6]),
        [plain(8), framed(), None]
    );
}

#[test]
fn a_file_that_tells_no_rows_is_an_error() {
    let has_none = |program: &Program| {
        let converted = convert(&program.bytes());
        matches!(converted, Err(ConvertError::NoUnwindInfo))
    };
    let mut program = Program::new(0x1000);
    program.has_eh_frame = false;
    assert!(has_none(&program));
    program.text[..FRAMED.len()].copy_from_slice(FRAMED);
    assert!(!has_none(&program));
    // A pclntab of a version that is not read: Go's assembly would get false rows.
    program.has_eh_frame = true;
    program.eh_frame_name = ".gopclntab";
    assert!(has_none(&program));
}

/// A program of functions of 32 bytes, of which each calls the next one.
fn many_functions(count: usize, before: &[u8], after: &[u8]) -> Program {
    const SIZE: usize = 32;
    // nopl 0(%rax,%rax,1)
    const PADDING: &[u8] = b"\x0f\x1f\x84\0\0\0\0\0";
    let distance = (SIZE - before.len() - 5) as u8;
    let mut function = [before, &[0xe8, distance, 0, 0, 0], after].concat();
    function.resize(function.len().next_multiple_of(PADDING.len()), 0x90);
    function.extend(PADDING.iter().cycle().take(SIZE - function.len()));
    let mut program = Program::new(0);
    program.text = function.repeat(count);
    program
}

/// Functions that set up frames.
fn many_framed() -> Program {
    many_functions(4096, &FRAMED[..4], &FRAMED[4..])
}

fn frame_pointers(program: &Program) -> Option<FramePointers> {
    let report = convert(&program.bytes()).unwrap().report;
    report.uncovered.map(|calls| calls.frame_pointers())
}

#[test]
fn code_without_entries_may_keep_frame_pointers() {
    let mut program = many_framed();
    assert_eq!(frame_pointers(&program), Some(FramePointers::Kept));
    program.has_eh_frame = false;
    assert_eq!(frame_pointers(&program), Some(FramePointers::Kept));
    program.sections = 0;
    assert_eq!(frame_pointers(&program), Some(FramePointers::Kept));
    // push %rbx; ...; pop %rbx; ret
    let other = many_functions(4096, b"\x53", b"\x5b\xc3");
    assert_eq!(frame_pointers(&other), Some(FramePointers::NotKept));
    // With entries the same is no question.
    let mut program = many_framed();
    program.fde(0, 1 << 16, &[]);
    assert_eq!(frame_pointers(&program), Some(FramePointers::Kept));
    program.fde(1 << 16, (1 << 16) - 48, &[]);
    assert_eq!(frame_pointers(&program), None);
    // Go's functions are listed, whether the list is read or not.
    let mut program = many_framed();
    program.eh_frame_name = ".gopclntab";
    assert!(matches!(
        convert(&program.bytes()),
        Err(ConvertError::NoUnwindInfo)
    ));
}

#[test]
fn code_that_is_not_in_the_file_is_not_looked_at() {
    let mut program = many_framed();
    program.claimed = 4 << 30;
    for sections in [1, 0] {
        program.sections = sections;
        let found = convert(&program.bytes()).unwrap().report.uncovered.unwrap();
        assert_eq!(found.code, program.text.len() as u64);
        assert_eq!(found.frame_pointers(), FramePointers::Kept);
    }
}

/// In much code that keeps frame pointers, only assembly is analysed.
#[test]
fn islands_of_assembly_get_rows() {
    // push %rbp; mov $1,%ebp, four times; pop %rbp; ret
    let assembly = [b"\x55", &b"\xbd\x01\0\0\0".repeat(4)[..], b"\x5d\xc3\x90"].concat();
    let pushed = Some(Rule::amd64(Base::Sp, 16, Location::AtCfa(-16)));
    let with = |count: usize| {
        let mut program = many_functions(count, &FRAMED[..4], &FRAMED[4..]);
        let at = program.text.len() / 2;
        program.text[at..][..assembly.len()].copy_from_slice(&assembly);
        let file = program.bytes();
        let converted = convert(&file).unwrap();
        assert!(converted.report.keeps_frame_pointers());
        let at = at as u64;
        let rules = rules(&file, &converted, &[at, at + 1, at + 22, at + 32, 0]);
        (rules, converted.report.analyzed_code)
    };
    const SMALL: usize = 4096;
    const LARGE: usize = 600_000;
    let (small, analyzed) = with(SMALL);
    assert_eq!(small, [plain(8), pushed, plain(8), plain(8), plain(8)]);
    assert!(analyzed > 11 * (SMALL as u64 - 1), "{analyzed}");
    let (large, analyzed) = with(LARGE);
    assert_eq!(large, [plain(8), pushed, plain(8), plain(8), None]);
    assert!((500..1 << 15).contains(&analyzed), "{analyzed}");

    // A call from outside leads to a function there that nothing else tells: traps are around it.
    let mut program = many_functions(LARGE, &FRAMED[..4], &FRAMED[4..]);
    let at = program.text.len() / 2;
    program.text[at..][..assembly.len()].copy_from_slice(&assembly);
    let function = at + 72;
    program.text[at + 64..at + 96].fill(0xcc);
    program.text[function..][..FRAMED.len()].copy_from_slice(FRAMED);
    let file = program.bytes();
    let at = [function as u64, function as u64 + 4];
    assert_eq!(rules(&file, &convert(&file).unwrap(), &at), [None, None]);
    program.text[5..9].copy_from_slice(&(function as u32 - 9).to_le_bytes());
    let file = program.bytes();
    let expected = [plain(8), framed()];
    assert_eq!(rules(&file, &convert(&file).unwrap(), &at), expected);
}

/// The file's own section with functions: offset in the text, size, and CFA.
fn own_section(functions: &[(i64, u32, i32)]) -> Vec<u8> {
    let function = |&(start, size, cfa): &(i64, u32, i32)| {
        EncodedFunction::new(start, size, &[(0, SP, &[cfa])])
    };
    EncodedSection::of(functions.iter().map(function).collect()).bytes()
}

#[test]
fn code_without_entries_has_the_rows_of_the_own_section() {
    let mut program = Program::new(0x1000);
    program.fde(0x100, 0x100, &[0x0e, 16]);
    // The first function is in .eh_frame, too, the third one reaches into the entry of another,
    // and the last one ends outside of the code.
    program.sframe = own_section(&[
        (0x100, 0x100, 24),
        (0x200, 0x40, 32),
        (0x300, 0x200, 40),
        (0x600, 0x10, 48),
        (0xff0, 0x20, 56),
    ]);
    program.fde(0x400, 0x10, &[]);
    let offsets = [0x100, 0x200, 0x23f, 0x240, 0x300, 0x400, 0x600, 0xff0];
    let found = |program: &Program| {
        let file = program.bytes();
        let converted = convert(&file).unwrap();
        let rules = rules(&file, &converted, &offsets);
        (rules, converted.report.own_section)
    };
    let (with_entries, size) = found(&program);
    let own = [plain(32), plain(32), None, None, plain(8), plain(48), None];
    assert_eq!(with_entries, [&[plain(16)], &own[..]].concat());
    assert_eq!(size, 0x50);

    program.has_eh_frame = false;
    let (without, size) = found(&program);
    let own = [24, 32, 32, 0, 40, 40, 48, 0].map(|cfa| plain(cfa).filter(|_| cfa != 0));
    assert_eq!(without, own);
    assert_eq!(size, 0x350);

    // A section that cannot be read costs nothing else.
    program.has_eh_frame = true;
    program.sframe[0] ^= 1;
    let (unread, size) = found(&program);
    assert_eq!((unread[0], unread[1], size), (plain(16), None, 0));
}
