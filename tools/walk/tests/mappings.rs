// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The rows of mappings of all kinds, as the module finds them.

#[path = "../../../rust/sframe/tests/support/encode.rs"]
#[expect(dead_code, reason = "the core's tests use all of it")]
mod encode;

use std::path::Path;

use sframe::rule::Rule;
use walk::{
    process::{
        Files,
        MappedFile,
        ProcessMapping, //
    },
    walker::{
        MadeSection,
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
fn the_module_has_no_table_of_a_file_with_too_many_segments() {
    let code = |at| (LOAD, CODE, at, at, 0x100);
    let four = [0, 0x200, 0x400, 0x600].map(code);
    let rule_with = |headers: &[TestHeader]| {
        let mapped = mapping(0x10_0000, 0, Some(file("/made", elf(headers))));
        rule_at(&mut with_made(section(0, 0x800)), 0x10_0000, &mapped)
    };
    assert!(rule_with(&four).is_some());
    assert_eq!(rule_with(&[&four[..], &[code(0x800)]].concat()), None);
}
