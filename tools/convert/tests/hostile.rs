// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Files that are made to cost much, or to lose much. The tests count steps of work, never time.

#[path = "../../../rust/sframe/tests/support/encode.rs"]
#[expect(dead_code, reason = "the core's tests use all of it")]
mod encode;
mod program;

use convert::{
    convert,
    max_steps,
    ConvertError,
    Converted,
    DropReason,
    MAX_HEADERS, //
};

use encode::{
    EncodedFunction,
    EncodedSection,
    ADDR2,
    SP, //
};
use program::{
    dropped,
    plain,
    rules,
    Program,
    PLAIN, //
};

/// The conversion of a file that takes at most `steps` for each byte, and loses nothing for it.
fn converted(file: &[u8], steps: u64) -> Converted {
    let converted = convert(file).unwrap();
    assert_eq!(dropped(&converted, DropReason::WorkLimit), 0);
    let most = steps * file.len() as u64;
    assert!(converted.report.steps <= most, "{}", converted.report.steps);
    converted
}

#[test]
fn of_entries_with_one_start_one_is_read() {
    let mut program = Program::new(1 << 16);
    for number in 1..=20_000_u32 {
        // cfa=rsp+16, or rsp+24
        program.fde(0, 1 << 16, &[0x0e, 16 + 8 * (number % 2) as u8]);
    }
    let file = program.bytes();
    let converted = converted(&file, 2);
    assert_eq!(converted.report.rows, 1);
    assert_eq!(rules(&file, &converted, &[0, 0xffff]), [plain(16); 2]);
}

#[test]
fn overlapping_entries_share_the_work_for_their_code() {
    const SIZE: u32 = 1 << 20;
    let mut program = Program::new(SIZE as usize);
    for number in 0..20_000 {
        program.fde(4 * number, SIZE - 4 * number as u32, &[]);
    }
    let file = program.bytes();
    let converted = converted(&file, 2);
    assert_eq!(converted.report.functions, 20_000);
    let last = u64::from(SIZE) - 1;
    assert_eq!(rules(&file, &converted, &[3, 4, last]), [plain(8); 3]);
}

#[test]
fn rows_end_where_their_entry_ends() {
    let mut program = Program::new(0x1000);
    // From 4 on cfa=rsp+16; from 4 + 0x10000 on rsp+24.
    program.fde(0, 16, &[0x44, 0x0e, 16, 0x04, 0, 0, 1, 0, 0x0e, 24]);
    let file = program.bytes();
    let rules = rules(&file, &converted(&file, 2), &[0, 4, 15, 16, 0xfff]);
    assert_eq!(rules, [plain(8), plain(16), plain(16), None, None]);
}

#[test]
fn headers_are_limited() {
    let with = |headers, sections| {
        let mut program = Program::new(0x1000);
        (program.headers, program.sections) = (headers, sections);
        program.fde(0, 0x1000, &[]);
        let file = program.bytes();
        convert(&file).map(|converted| rules(&file, &converted, &[0xfff]))
    };
    for (headers, sections) in [(60_000, 1), (MAX_HEADERS + 1, 1), (1, MAX_HEADERS - 2)] {
        let error = with(headers, sections).unwrap_err();
        assert!(matches!(error, ConvertError::TooManyHeaders), "{error}");
    }
    assert_eq!(with(MAX_HEADERS, 1).unwrap(), [plain(8)]);
    assert_eq!(with(1, MAX_HEADERS - 3).unwrap(), [plain(8)]);
}

#[test]
fn sections_that_overlap_are_searched_once_for_code_without_entries() {
    let mut program = Program::new(1 << 17);
    program.sections = MAX_HEADERS - 3;
    for number in 0..10_000 {
        program.fde(8 * number, 4, &[]);
    }
    let file = program.bytes();
    // Each of the 10,000 gaps is one step, and one for each byte of the gap.
    let converted = converted(&file, 2);
    assert_eq!(converted.report.functions, 10_000);
}

#[test]
fn names_and_segments_must_not_share_bytes() {
    // One name for all sections, with as many bytes as the code.
    let mut program = Program::new(1 << 12);
    program.sections = 1000;
    let mut file = program.bytes();
    let is_shared = |file: &[u8]| matches!(convert(file), Err(ConvertError::SharedBytes));
    let sections_at = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    let names = sections_at + 64 * (program.sections + 2);
    assert!(!is_shared(&file));
    file[names + 24..][..8].copy_from_slice(&120_u64.to_le_bytes());
    file[names + 32..][..8].copy_from_slice(&0x1100_u64.to_le_bytes());
    assert!(is_shared(&file));

    let mut program = Program::new(1 << 12);
    program.headers = 100;
    let mut file = program.bytes();
    assert!(!is_shared(&file));
    for header in 0..100 {
        let sizes = [0x1000_u64.to_le_bytes(); 2].concat();
        file[64 + 56 * header + 32..][..16].copy_from_slice(&sizes);
    }
    assert!(is_shared(&file));
}

#[test]
fn a_long_program_of_a_cie_costs_its_own_entries() {
    let mut program = Program::new(1 << 16);
    program.fde(0, 16, &[]);
    program.cie("zR", &[PLAIN, &[0; 1 << 18][..]].concat());
    for number in 1..1000 {
        program.fde(16 * number, 16, &[]);
    }
    program.cie("zR", PLAIN);
    program.fde(16_000, 16, &[]);
    let file = program.bytes();
    let converted = convert(&file).unwrap();
    assert!(converted.report.steps <= max_steps(file.len() as u64));
    let lost = dropped(&converted, DropReason::WorkLimit);
    assert!((900..999).contains(&lost), "{lost}");
    let rules = rules(&file, &converted, &[0, 16, 15_984, 16_000]);
    assert_eq!(rules, [plain(8), plain(8), None, plain(8)]);
}

#[test]
fn long_expressions_are_not_read() {
    let mut program = Program::new(1 << 12);
    // def_cfa_expression of rsp+8, and 300 times nop.
    let expression = [&[0x0f, 0xae, 0x02, 0x77, 8][..], &[0x96; 300]].concat();
    program.fde(0, 16, &expression);
    // The same without nop.
    program.fde(16, 16, &[0x0f, 2, 0x77, 8]);
    let file = program.bytes();
    let converted = convert(&file).unwrap();
    assert_eq!(dropped(&converted, DropReason::CfaExpression), 1);
    assert_eq!(rules(&file, &converted, &[0, 16]), [None, plain(8)]);
}

#[test]
fn a_called_function_is_read_once_for_all_calls_from_a_register_frame() {
    const CALLED: usize = 1 << 16;
    let mut program = Program::new(2 * CALLED);
    for number in 0..2000 {
        call(&mut program.text, 5 * number, CALLED);
    }
    *program.text.last_mut().unwrap() = RET;
    // cfa=rbx+16, and a function that has saved rbx at its first instruction.
    program.fde(0, 10_000, &[0x0c, 3, 16]);
    program.fde(CALLED as u64, CALLED as u32, &[0x83, 2]);
    let converted = converted(&program.bytes(), 2);
    assert_eq!(converted.report.extra_rows, 2000);
}

#[test]
fn code_that_is_followed_again_and_again_gets_no_rows() {
    const FUNCTIONS: usize = 1500;
    const JUMPS: usize = 16 * FUNCTIONS;
    const END: usize = JUMPS + 5 * FUNCTIONS;
    // mov %rsp,%r10; call of a jump; ret. For each call the analysis follows all further jumps, to
    // learn whether they keep r10.
    let mut code = vec![0x90; END + 4];
    for number in 0..FUNCTIONS {
        let at = 16 * number;
        code[at..at + 3].copy_from_slice(b"\x49\x89\xe2");
        call(&mut code, at + 3, JUMPS + 5 * number);
        code[at + 8] = RET;
        let jump = JUMPS + 5 * number;
        code[jump..jump + 5].copy_from_slice(b"\xe9\0\0\0\0");
    }
    code[END..].fill(RET);
    let mut program = Program::new(0);
    for _ in 0..2 {
        program.fde(program.text.len() as u64, 16, &[]);
        program.text.extend([RET; 16]);
        program.text.extend(&code);
    }
    let file = program.bytes();
    let converted = convert(&file).unwrap();
    assert!(converted.report.steps <= max_steps(file.len() as u64));
    assert_eq!(dropped(&converted, DropReason::WorkLimit), 1);
    let second = (16 + code.len()) as u64;
    let rules = rules(&file, &converted, &[0, 16, second, second + 16]);
    assert_eq!(rules, [plain(8), plain(8), plain(8), None]);
}

const RET: u8 = 0xc3;

/// Writes a call at an offset.
fn call(text: &mut [u8], at: usize, target: usize) {
    let distance = (target as i32) - (at as i32 + 5);
    text[at] = 0xe8;
    text[at + 1..at + 5].copy_from_slice(&distance.to_le_bytes());
}

#[test]
fn an_entry_that_cannot_be_read_costs_its_own_function() {
    let mut program = Program::new(1 << 12);
    program.fde(0, 16, &[]);
    program.cie("zX", PLAIN);
    program.fde(16, 16, &[]);
    program.fde(32, 16, &[]);
    program.cie("zR", PLAIN);
    program.fde(48, 16, &[]);
    // A CIE at this offset does not exist.
    program.cie += 1 << 20;
    program.fde(64, 16, &[]);
    program.cie -= 1 << 20;
    program.fde(80, 16, &[]);
    let file = program.bytes();
    let converted = convert(&file).unwrap();
    assert_eq!(dropped(&converted, DropReason::InvalidEntry), 3);
    let rules = rules(&file, &converted, &[0, 16, 32, 48, 64, 80]);
    assert_eq!(rules, [plain(8), None, None, plain(8), None, plain(8)]);
}

#[test]
fn states_are_remembered_sixteen_deep() {
    let with = |depth: usize| {
        let mut program = Program::new(1 << 12);
        // From 1 on cfa=rsp+16, then as at first, after so many pairs of remember and restore.
        let instructions = [
            &vec![0x0a; depth][..],
            &[0x41, 0x0e, 16, 0x41],
            &vec![0x0b; depth],
        ];
        program.fde(0, 16, &instructions.concat());
        let file = program.bytes();
        let converted = convert(&file).unwrap();
        let lost = dropped(&converted, DropReason::InvalidEntry);
        (lost, rules(&file, &converted, &[0, 1, 2]))
    };
    for depth in [1, 3, 4, 5, 16] {
        assert_eq!(with(depth), (0, vec![plain(8), plain(16), plain(8)]));
    }
    assert_eq!(with(100).0, 1);
}

#[test]
fn a_cfa_expression_may_add_constants_to_a_register() {
    let mut program = Program::new(1 << 12);
    let expressions: [&[u8]; 8] = [
        // breg7+8; plus_uconst 16
        &[0x77, 8, 0x23, 16],
        // breg7+8; lit16; plus
        &[0x77, 8, 0x40, 0x22],
        // const1u 32; breg7-8; plus
        &[0x08, 32, 0x77, 0x78, 0x22],
        // breg7+40; const1s 16; minus
        &[0x77, 40, 0x09, 16, 0x1c],
        // breg7+0; const8u -8; plus; plus_uconst 32
        &[
            0x77, 0, 0x0e, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x22, 0x23, 32,
        ],
        // Not these: the sum of two registers, a difference from a constant, a constant.
        &[0x77, 8, 0x77, 16, 0x22],
        &[0x40, 0x77, 8, 0x1c],
        &[0x40, 0x23, 8],
    ];
    for (number, expression) in (0..).zip(expressions) {
        let instruction = [&[0x0f, expression.len() as u8], expression].concat();
        program.fde(16 * number, 16, &instruction);
    }
    let file = program.bytes();
    let converted = convert(&file).unwrap();
    assert_eq!(dropped(&converted, DropReason::CfaExpression), 3);
    let offsets: Vec<u64> = (0..8).map(|number| 16 * number).collect();
    let rules = rules(&file, &converted, &offsets);
    assert_eq!(rules[..5], [plain(24); 5]);
    assert_eq!(rules[5..], [None; 3]);
}

#[test]
fn functions_of_the_own_section_that_share_rows_cost_work_each() {
    const ROWS: u32 = 60_000;
    let rows: Vec<(u32, u8, &[i32])> = (0..ROWS).map(|at| (at, SP, &[16][..])).collect();
    let mut functions = vec![EncodedFunction::typed(0, 1 << 16, ADDR2, 0, &rows)];
    for number in 1..1000 {
        functions.push(EncodedFunction {
            num_rows: ROWS,
            rows: Vec::new(),
            ..EncodedFunction::typed(number << 16, 1 << 16, ADDR2, 0, &[])
        });
    }
    let mut section = EncodedSection::of(functions).bytes();
    // All have the rows of the first.
    for index in 1..1000 {
        let at = EncodedSection::default().entry(index) + 8;
        section[at..at + 4].fill(0);
    }
    let mut program = Program::new(1 << 16);
    program.claimed = 1000 << 16;
    program.has_eh_frame = false;
    program.sframe = section;
    let file = program.bytes();
    let converted = convert(&file).unwrap();
    assert_eq!(dropped(&converted, DropReason::WorkLimit), 1);
    assert!(converted.report.steps <= max_steps(file.len() as u64));
    assert!(converted.report.own_section < 1000 << 16);
}
