// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The rows of mappings of all kinds, as the module finds them.

#[path = "../../../rust/sframe/tests/support/encode.rs"]
#[expect(dead_code, reason = "the core's tests use all of it")]
mod encode;

use std::path::Path;

use sframe::{
    bytes::Fault,
    elf::MAX_PROGRAM_HEADERS,
    rule::Rule,
    stop_reason::StopReason,
    unwind::Memory,
    walk::RuleOrigin, //
};
use walk::{
    process::{
        Files,
        MappedFile,
        Process,
        ProcessMapping, //
    },
    registers::{
        RegisterFile,
        PC,
        RSP, //
    },
    walker::{
        MadeSection,
        WalkedFrame,
        Walker, //
    }, //
};

use encode::{
    EncodedFunction,
    EncodedSection,
    SP, //
};

const LOAD: u32 = 1;
const SFRAME: u32 = 0x6474_e554;
const READ: u32 = 4;
const CODE: u32 = 5;

/// A program header: type, flags, offset, link-time address, size.
type TestHeader = (u32, u32, u64, u64, u64);

/// An ELF file of two pages.
fn elf(headers: &[TestHeader]) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    for value in [0, 64, 0] {
        bytes.extend(u64::to_le_bytes(value));
    }
    bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, headers.len() as u8, 0]);
    bytes.resize(64, 0);
    for &(kind, flags, offset, address, size) in headers {
        bytes.extend([kind, flags].map(u32::to_le_bytes).concat());
        for value in [offset, address, address, size, size, 0x1000] {
            bytes.extend(u64::to_le_bytes(value));
        }
    }
    bytes.resize(0x2000, 0);
    bytes
}

fn file(name: &str, bytes: Vec<u8>) -> &'static MappedFile {
    Files::new()
        .add(Path::new(name), bytes)
        .expect("an ELF file")
}

/// A mapping of a page.
fn mapping(start: u64, offset: u64, file: Option<&'static MappedFile>) -> ProcessMapping {
    let name = file.map_or(String::new(), |file| file.path.display().to_string());
    ProcessMapping {
        start,
        end: start + 0x1000,
        offset,
        executable: true,
        writable: false,
        is_file: file.is_some(),
        name,
        file,
    }
}

/// A section with a row for the code of a size at an address.
fn section(start: i64, size: u32) -> Vec<u8> {
    EncodedSection::of(vec![EncodedFunction::new(start, size, &[(0, SP, &[24])])]).bytes()
}

/// A walker with a made section for each file.
fn with_made(section: Vec<u8>) -> Walker {
    let made = MadeSection {
        section: section.leak(),
        extra_rows: &[],
        keeps_frame_pointer: false,
    };
    Walker::with(move |_| Some(made))
}

fn rule_at(walker: &mut Walker, at: u64, mapping: &ProcessMapping) -> Option<Rule> {
    let found = walker.rule_at(at, mapping).expect("a valid section");
    found.map(|(rule, _)| rule)
}

/// As lld lays out a file: the first page of code begins with the end of another segment.
const SHARED: [TestHeader; 2] = [
    (LOAD, READ, 0, 0, 0x6f0),
    (LOAD, CODE, 0x6f0, 0x16f0, 0x100),
];

#[test]
fn two_segments_may_share_a_page() {
    let mapped = mapping(0x10_1000, 0, Some(file("/made", elf(&SHARED))));
    let mut walker = with_made(section(0x16f0, 0x100));
    let rule = rule_at(&mut walker, 0x10_16f0, &mapped).expect("a row");
    assert_eq!(rule.cfa.offset, 24);
    assert_eq!(rule_at(&mut walker, 0x10_16ef, &mapped), None);

    let own = section(0x16f0 - 0x600, 0x100);
    let header = (SFRAME, READ, 0x600, 0x600, own.len() as u64);
    let mut bytes = elf(&[&SHARED[..], &[header]].concat());
    bytes[0x600..][..own.len()].copy_from_slice(&own);
    let mapped = mapping(0x10_1000, 0, Some(file("/own", bytes)));
    let mut walker = Walker::new();
    assert_eq!(rule_at(&mut walker, 0x10_17ef, &mapped), Some(rule));
    assert_eq!(rule_at(&mut walker, 0x10_17f0, &mapped), None);
}

#[test]
fn a_made_section_may_be_empty() {
    let mapped = mapping(0x10_1000, 0, Some(file("/made", elf(&SHARED))));
    assert_eq!(
        rule_at(&mut with_made(Vec::new()), 0x10_16f0, &mapped),
        None
    );
}

#[test]
fn the_module_has_no_table_of_a_file_with_too_many_program_headers() {
    let code = |at| (LOAD, CODE, at, at, 0x20);
    let most = MAX_PROGRAM_HEADERS.into();
    let headers: Vec<TestHeader> = (0..=most).map(|number| code(0x20 * number)).collect();
    let rule_with = |headers: &[TestHeader]| {
        let mapped = mapping(0x10_0000, 0, Some(file("/made", elf(headers))));
        rule_at(&mut with_made(section(0, 0x800)), 0x10_0000, &mapped)
    };
    let (_, fewer) = headers.split_last().expect("more than one");
    assert!(rule_with(fewer).is_some());
    assert_eq!(rule_with(&headers), None);
}

/// The bytes of memory from an address on.
struct PlainMemory(u64, Vec<u8>);

impl Memory for PlainMemory {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let at = address.checked_sub(self.0).ok_or(Fault)?;
        let word = self.1.get(at as usize..).and_then(<[u8]>::first_chunk);
        word.copied().map(u64::from_le_bytes).ok_or(Fault)
    }
}

/// The innermost frame of a stack, and why the walk ends there.
fn walked(
    walker: &mut Walker,
    mappings: &[&ProcessMapping],
    pc: u64,
    memory: &PlainMemory,
) -> (WalkedFrame, StopReason) {
    let mut process = Process::new();
    for mapping in mappings {
        process.map((*mapping).clone());
    }
    let mut registers = RegisterFile::default();
    registers.set(PC, pc);
    registers.set(RSP, 0x8000);
    let mut frames = Vec::new();
    let reason = walker.walk(&process, &registers, memory, &mut frames);
    (frames[0], reason)
}

/// A file with code in its second page.
fn two_pages() -> &'static MappedFile {
    file(
        "/prog",
        elf(&[
            (LOAD, READ, 0, 0, 0x1000),
            (LOAD, CODE, 0x1000, 0x1000, 0x1000),
        ]),
    )
}

#[test]
fn anonymous_code_in_the_place_of_a_file_is_no_code_of_a_runtime() {
    let head = mapping(0x10_0000, 0, Some(two_pages()));
    let reason = |start: u64| {
        let anonymous = mapping(start, 0, None);
        let mappings = [&head, &anonymous];
        walked(
            &mut Walker::new(),
            &mappings,
            start + 8,
            &PlainMemory(start, vec![0; 64]),
        )
        .1
    };
    assert_eq!(reason(0x10_1000), StopReason::TextReplaced);
    assert_eq!(reason(0x10_2000), StopReason::NoRows);
}

#[test]
fn code_of_a_file_that_may_change_has_rows_or_counts_as_replaced() {
    let head = mapping(0x10_0000, 0, Some(two_pages()));
    let code = ProcessMapping {
        is_file: false,
        ..mapping(0x10_1000, 0x1000, head.file)
    };
    let mappings = [&head, &code];
    let memory = PlainMemory(0x10_1000, vec![0; 64]);
    let walk = |mut walker: Walker| walked(&mut walker, &mappings, 0x10_1008, &memory);
    assert!(walk(with_made(section(0x1000, 0x1000))).0.rule.is_some());
    assert_eq!(walk(Walker::new()).1, StopReason::TextReplaced);
}

#[test]
fn an_image_in_anonymous_memory_has_its_own_section() {
    let own = section(0x100 - 0x600, 0x100);
    let header = (SFRAME, READ, 0x600, 0x600, own.len() as u64);
    let mut bytes = elf(&[(LOAD, CODE, 0, 0, 0x1000), header]);
    bytes[0x600..][..own.len()].copy_from_slice(&own);
    let memory = PlainMemory(0x10_0000, bytes);
    let anonymous = mapping(0x10_0000, 0, None);
    let rule_at = |pc| {
        walked(&mut Walker::new(), &[&anonymous], pc, &memory)
            .0
            .rule
    };
    let (rule, origin) = rule_at(0x10_0100).expect("a row");
    assert_eq!((rule.cfa.offset, origin), (24, RuleOrigin::Section));
    assert!(rule_at(0x10_0200).is_none());
}
