// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Sections that are wrong, or correct in unusual ways. Each is made for one question. Some
//! questions come from bugs of other readers.

mod support;

use sframe::{
    bytes::{
        Source,
        Tail, //
    },
    error::{
        Error,
        Malformed,
        Unsupported, //
    },
    header::Starts,
    rule::{
        Base,
        Location,
        Rule, //
    },
    section::{
        Search,
        Section,
        MAX_EMPTY_BOUNDED,
        MAX_ROWS_BOUNDED, //
    },
    table::{
        self,
        BlockStore,
        CompactRule,
        FunctionSpan,
        Functions,
        Indexes,
        Rules,
        TableError,
        Work, //
    }, //
};

use support::{
    encode::{
        self,
        patch,
        EncodedFunction,
        ADDR1,
        ADDR2,
        ADDR4,
        FP,
        MASK,
        PCREL,
        SORTED,
        SP, //
    },
    source::{
        Missing,
        Watched, //
    }, //
};

const ADDRESS: u64 = 0x10_0000;

fn sp(offset: i32) -> Rule {
    Rule::amd64(Base::Sp, offset, Location::Unchanged)
}

fn open(bytes: &[u8]) -> Section {
    Section::open(&Watched::new(bytes), ADDRESS, bytes.len() as u64).expect("a correct header")
}

/// Looks up the address `offset` bytes from the section's address.
fn find(bytes: &[u8], offset: i64, search: Search) -> Result<Option<Rule>, Error> {
    let pc = ADDRESS.wrapping_add_signed(offset);
    open(bytes).find(&Watched::new(bytes), pc, search)
}

fn bounded(bytes: &[u8], offset: i64) -> Result<Option<Rule>, Error> {
    find(bytes, offset, Search::Bounded)
}

fn malformed<T>(what: Malformed, offset: usize) -> Result<T, Error> {
    Err(Error::Malformed {
        what,
        offset: offset as u32,
    })
}

/// Three functions with two rows each.
fn three() -> encode::EncodedSection {
    let rows: &[(u32, u8, &[i32])] = &[(0, SP, &[8]), (4, SP, &[16])];
    encode::EncodedSection::of(vec![
        EncodedFunction::new(0x100, 16, rows),
        EncodedFunction::new(0x200, 16, rows),
        EncodedFunction::new(0x300, 16, rows),
    ])
}

#[test]
fn repeated_blocks_of_size_zero() {
    let mut section = three();
    section.functions[1].info = MASK;
    let bytes = section.bytes();
    let at = section.entry(1) + 17;
    assert_eq!(bounded(&bytes, 0x204), malformed(Malformed::RepeatZero, at));
    assert_eq!(
        open(&bytes).verify(&*bytes),
        malformed(Malformed::RepeatZero, at)
    );
    // The other functions are unchanged.
    assert_eq!(bounded(&bytes, 0x104), Ok(Some(sp(16))));
    assert_eq!(bounded(&bytes, 0x304), Ok(Some(sp(16))));
}

#[test]
fn repeated_blocks_are_counted_from_the_function() {
    let rows: &[(u32, u8, &[i32])] = &[(0, SP, &[8]), (12, SP, &[16])];
    for (start, rep) in [(0x228, 32), (0x231, 17), (-0x7f3, 255), (-5, 1)] {
        let mut function = EncodedFunction::new(start, 4 * rep, rows);
        function.info = MASK | ADDR1;
        function.rep = rep as u8;
        let bytes = encode::EncodedSection::of(vec![function]).bytes();
        for offset in 0..4 * rep {
            let expected = if offset % rep < 12 { sp(8) } else { sp(16) };
            let pc = i64::from(start) + i64::from(offset);
            assert_eq!(
                bounded(&bytes, pc),
                Ok(Some(expected)),
                "{start} + {offset}"
            );
        }
        assert_eq!(bounded(&bytes, i64::from(start) - 1), Ok(None));
        assert_eq!(
            bounded(&bytes, i64::from(start) + 4 * i64::from(rep)),
            Ok(None)
        );
    }
}

#[test]
fn a_block_size_without_blocks_is_ignored() {
    let mut section = three();
    section.functions[0].rep = 3;
    assert_eq!(bounded(&section.bytes(), 0x107), Ok(Some(sp(16))));
}

#[test]
fn functions_that_are_not_sorted() {
    let mut section = three();
    section.functions.swap(0, 2);
    let bytes = section.bytes();
    // 0x300 0x200 0x100: the search detects the order at the first probe outside of its bounds.
    assert_eq!(
        bounded(&bytes, 0x204),
        malformed(Malformed::Unsorted, section.entry(2))
    );
    assert_eq!(
        bounded(&bytes, 0x104),
        malformed(Malformed::Unsorted, section.entry(0))
    );
    assert_eq!(
        open(&bytes).verify(&*bytes),
        malformed(Malformed::Unsorted, section.entry(1))
    );

    // Without the flag, only a linear search is possible. (Starts count from their own fields
    // then.)
    section.flags = 0;
    let bytes = section.bytes();
    assert_eq!(bounded(&bytes, 0x204), Err(Error::TooLong));
    for pc in [0x104, 0x204, 0x304] {
        assert_eq!(find(&bytes, pc, Search::Thorough), Ok(Some(sp(16))));
    }
    assert_eq!(find(&bytes, 0x110, Search::Thorough), Ok(None));
    assert_eq!(open(&bytes).verify(&*bytes), Ok(()));
}

#[test]
fn rows_that_do_not_rise() {
    for second in [0, 4] {
        let mut section = three();
        section.functions[1] = EncodedFunction::new(
            0x200,
            16,
            &[
                (0, SP, &[8]),
                (4, SP, &[16]),
                (second, SP, &[24]),
                (9, SP, &[32]),
            ],
        );
        let bytes = section.bytes();
        let at = section.rows() + 12;
        assert_eq!(
            bounded(&bytes, 0x20a),
            malformed(Malformed::RowsNotRising, at)
        );
        assert_eq!(
            open(&bytes).verify(&*bytes),
            malformed(Malformed::RowsNotRising, at)
        );
        assert_eq!(bounded(&bytes, 0x304), Ok(Some(sp(16))));
    }
}

#[test]
fn rows_outside_of_the_rows() {
    let section = three();
    for offset in [19, 1000, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        let mut bytes = section.bytes();
        let at = section.entry(1) + 8;
        patch(&mut bytes, at, offset.to_le_bytes());
        assert_eq!(bounded(&bytes, 0x204), malformed(Malformed::RowsStart, at));
        assert_eq!(bounded(&bytes, 0x104), Ok(Some(sp(16))));
    }
    // At the end of the section there are no bytes for a row. That is an error only if the function
    // has rows.
    let mut bytes = section.bytes();
    let end = bytes.len();
    patch(&mut bytes, section.entry(1) + 8, 18u32.to_le_bytes());
    assert_eq!(
        bounded(&bytes, 0x204),
        malformed(Malformed::RowPastEnd, end)
    );
    patch(&mut bytes, section.entry(1) + 12, 0u32.to_le_bytes());
    assert_eq!(bounded(&bytes, 0x204), Ok(None));
}

#[test]
fn rows_that_are_cut_off() {
    // Rows of different widths, each at the end of the section, cut to each length that is too
    // short.
    let whole: [(u8, u8, &[i32]); 5] = [
        (ADDR1, 0, &[8]),
        (ADDR2, 0, &[8, -16]),
        (ADDR4, 1, &[300, -16]),
        (ADDR4, 2, &[70000, -16]),
        (ADDR1, 2, &[70000, -16]),
    ];
    for (info, size_log2, words) in whole {
        let function = EncodedFunction::typed(0x200, 16, info, size_log2, &[(0, SP, words)]);
        let len = function.rows.len();
        for kept in 0..len {
            let mut function = function.clone();
            function.rows.truncate(kept);
            let section = encode::EncodedSection::of(vec![function]);
            let bytes = section.bytes();
            let expected = malformed(Malformed::RowPastEnd, section.rows());
            assert_eq!(bounded(&bytes, 0x204), expected, "{kept} of {len}");
            // Bytes behind the section do not count.
            let mut bytes = bytes;
            bytes.extend([0; 64]);
            assert_eq!(bounded(&bytes, 0x204), expected, "{kept} of {len}");
        }
    }
}

#[test]
fn every_width_of_rows_and_words() {
    let values: [(u8, &[i32]); 3] = [
        (0, &[0, 8, 127, -128, -1]),
        (1, &[0, 128, 32767, -32768, -129]),
        (2, &[0, 32768, i32::MAX, i32::MIN, -32769]),
    ];
    for info in [ADDR1, ADDR2, ADDR4] {
        let last: u32 = [0xff, 0xffff, 0xffff_fff0][usize::from(info)];
        for (size_log2, values) in values {
            for (&first, &second) in values.iter().zip(values.iter().rev()) {
                for (base, words) in [(SP, vec![first]), (FP, vec![first, second])] {
                    let rows: &[(u32, u8, &[i32])] = &[(0, SP, &[8]), (last, base, &words)];
                    let function = EncodedFunction::typed(0, u32::MAX, info, size_log2, rows);
                    let bytes = encode::EncodedSection::of(vec![function]).bytes();
                    let base = if base == SP { Base::Sp } else { Base::Fp };
                    let fp = match words[..] {
                        [_, saved] => Location::AtCfa(saved),
                        _ => Location::Unchanged,
                    };
                    let expected = Rule::amd64(base, first, fp);
                    let last = i64::from(last);
                    assert_eq!(bounded(&bytes, last - 1), Ok(Some(sp(8))));
                    assert_eq!(bounded(&bytes, last), Ok(Some(expected)));
                    assert_eq!(bounded(&bytes, last + 5), Ok(Some(expected)));
                    assert_eq!(open(&bytes).verify(&Watched::new(&bytes)), Ok(()));
                }
            }
        }
    }
}

#[test]
fn words_that_amd64_has_no_use_for() {
    for count in 0..16 {
        let words = vec![8; count];
        let mut section = three();
        section.functions[1] = EncodedFunction::new(0x200, 16, &[(0, SP, &[8]), (4, SP, &words)]);
        let bytes = section.bytes();
        let found = bounded(&bytes, 0x204);
        match count {
            0 => assert_eq!(found, Ok(Some(Rule::OUTERMOST))),
            1 => assert_eq!(found, Ok(Some(sp(8)))),
            2 => assert!(found.is_ok_and(|rule| rule.unwrap().fp == Location::AtCfa(8))),
            _ => assert_eq!(found, malformed(Malformed::WordCount, section.rows() + 9)),
        }
        // The number of words in a skipped row is not checked.
        assert_eq!(bounded(&bytes, 0x203), Ok(Some(sp(8))));
    }
}

#[test]
fn words_of_undefined_size() {
    let section = three();
    let mut bytes = section.bytes();
    let at = section.rows() + 6;
    bytes[at + 1] |= 3 << 5;
    assert_eq!(bounded(&bytes, 0x200), malformed(Malformed::WordSize, at));
    assert_eq!(bounded(&bytes, 0x100), Ok(Some(sp(8))));
}

#[test]
fn undefined_types_of_rows() {
    let section = three();
    for kind in 3..16 {
        let mut bytes = section.bytes();
        let at = section.entry(1) + 16;
        bytes[at] = kind;
        assert_eq!(bounded(&bytes, 0x204), malformed(Malformed::RowType, at));
        assert_eq!(bounded(&bytes, 0x304), Ok(Some(sp(16))));
    }
    // Bits 5 to 7 have no meaning on AMD64 in version 2: neither a key nor a signal frame.
    let mut bytes = section.bytes();
    bytes[section.entry(1) + 16] |= 0xe0;
    assert_eq!(bounded(&bytes, 0x204), Ok(Some(sp(16))));
}

#[test]
fn a_fault_is_no_verdict_on_the_section() {
    let rows: &[(u32, u8, &[i32])] = &[(0, SP, &[8]), (4, SP, &[16])];
    let section = encode::EncodedSection::of(
        (0..5)
            .map(|i| EncodedFunction::new(0x100 * i, 16, rows))
            .collect(),
    );
    let bytes = section.bytes();
    let opened = open(&bytes);
    // The rows of the function in the middle cannot be read.
    let at = section.rows() as u64 + 12;
    let missing = Missing {
        bytes: &bytes,
        range: at..at + 6,
    };
    let found = opened.find(&missing, ADDRESS + 0x204, Search::Bounded);
    let offset = at as u32;
    assert_eq!(found, Err(Error::Fault { offset }));
    for pc in [0x004, 0x404] {
        assert_eq!(
            opened.find(&missing, ADDRESS + pc, Search::Bounded),
            Ok(Some(sp(16)))
        );
    }
    // As soon as they can be read, the rule is found.
    assert_eq!(
        opened.find(&*bytes, ADDRESS + 0x204, Search::Bounded),
        Ok(Some(sp(16)))
    );

    // Each byte of the section in turn cannot be read: the result is the rule or the fault, and
    // nothing else.
    for at in 0..bytes.len() as u64 {
        let missing = Missing {
            bytes: &bytes,
            range: at..at + 1,
        };
        let found = Section::open(&missing, ADDRESS, bytes.len() as u64)
            .and_then(|section| section.find(&missing, ADDRESS + 0x204, Search::Bounded));
        match found {
            Ok(rule) => assert_eq!(rule, Some(sp(16))),
            Err(Error::Fault { offset }) => {
                let offset = u64::from(offset);
                assert!(offset <= at && at < offset + 64);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_base_of_start_addresses() {
    for (flags, starts) in [
        (SORTED, Starts::Section),
        (SORTED | PCREL, Starts::Field),
        (PCREL, Starts::Field),
        (0, Starts::Field),
    ] {
        let mut section = three();
        section.flags = flags;
        let bytes = section.bytes();
        let opened = open(&bytes);
        assert_eq!(opened.starts(), starts, "{flags}");
        assert_eq!(opened.is_sorted(), flags & SORTED != 0);
        let functions: Vec<u64> = opened
            .functions(&*bytes)
            .map(|function| function.unwrap().start() - ADDRESS)
            .collect();
        assert_eq!(functions, [0x100, 0x200, 0x300], "{flags}");

        // With the other origin, the start addresses differ, and the section does not count as
        // sorted.
        let other = match starts {
            Starts::Field => Starts::Section,
            Starts::Section => Starts::Field,
        };
        let misread = opened.with_starts(other);
        let first = misread.function(&*bytes, 1).unwrap().start() - ADDRESS;
        assert_ne!(first, 0x200);
        assert!(!misread.is_sorted());
        assert_eq!(opened.with_starts(starts).is_sorted(), opened.is_sorted());
    }
}

#[test]
fn a_sorted_flag_left_over_from_another_linker() {
    // Starts count from their own fields and are not sorted, but the flags claim the opposite of
    // both.
    let mut section = three();
    section.functions.swap(0, 2);
    section.flags = 0;
    let mut bytes = section.bytes();
    bytes[3] = SORTED;
    let found =
        open(&bytes)
            .with_starts(Starts::Field)
            .find(&*bytes, ADDRESS + 0x204, Search::Thorough);
    assert_eq!(found, Ok(Some(sp(16))));
}

#[test]
fn functions_without_bytes() {
    let rows: &[(u32, u8, &[i32])] = &[(0, SP, &[8])];
    let empty = |start| EncodedFunction::new(start, 0, &[(0, SP, &[99])]);
    let bytes = encode::EncodedSection::of(vec![
        empty(0x80),
        empty(0x100),
        EncodedFunction::new(0x100, 16, rows),
        empty(0x100),
        empty(0x108),
        empty(0x110),
        EncodedFunction::new(0x110, 16, rows),
        empty(0x120),
    ])
    .bytes();
    for pc in [0x7f, 0x80, 0xff, 0x120, 0x121] {
        assert_eq!(bounded(&bytes, pc), Ok(None), "{pc:#x}");
    }
    for pc in 0x100..0x120 {
        assert_eq!(bounded(&bytes, pc), Ok(Some(sp(8))), "{pc:#x}");
    }
    assert_eq!(open(&bytes).verify(&*bytes), Ok(()));

    // No tool writes this many empty functions. A bounded search, which may run in an interrupt,
    // does not skip them all.
    let mut functions = vec![EncodedFunction::new(0x100, 16, rows)];
    functions.resize(1 + MAX_EMPTY_BOUNDED as usize, empty(0x108));
    let most = encode::EncodedSection::of(functions.clone()).bytes();
    assert_eq!(bounded(&most, 0x10c), Ok(Some(sp(8))));
    functions.push(empty(0x108));
    let more = encode::EncodedSection::of(functions).bytes();
    assert_eq!(bounded(&more, 0x10c), Err(Error::TooLong));
    assert_eq!(find(&more, 0x10c, Search::Thorough), Ok(Some(sp(8))));
}

#[test]
fn functions_with_many_rows() {
    let most = MAX_ROWS_BOUNDED;
    let rows = |count: u32| -> Vec<u8> {
        (0..count)
            .flat_map(|start| {
                let [low, high, ..] = start.to_le_bytes();
                [low, high, 3, if start % 2 == 0 { 8 } else { 16 }]
            })
            .collect()
    };
    let section = |count| {
        encode::EncodedSection::of(vec![EncodedFunction {
            start: 0,
            size: 0x10000,
            info: ADDR2,
            num_rows: count,
            rows: rows(count),
            ..EncodedFunction::default()
        }])
        .bytes()
    };
    let expected = |row: u32| Ok(Some(sp(if row % 2 == 0 { 8 } else { 16 })));

    // As many rows as a bounded search reads: every row is found.
    let bytes = section(most);
    assert_eq!(bounded(&bytes, i64::from(most) - 1), expected(most - 1));
    assert_eq!(bounded(&bytes, 0xffff), expected(most - 1));
    // One row more: a row is found only if the search also reads the row after it.
    let bytes = section(most + 1);
    assert_eq!(bounded(&bytes, i64::from(most) - 2), expected(most - 2));
    assert_eq!(bounded(&bytes, i64::from(most) - 1), Err(Error::TooLong));
    assert_eq!(bounded(&bytes, 0xffff), Err(Error::TooLong));
    for pc in [0, most - 1, most, 0xffff] {
        assert_eq!(
            find(&bytes, pc.into(), Search::Thorough),
            expected(pc.min(most))
        );
    }
}

#[test]
fn rows_that_begin_late() {
    let bytes = encode::EncodedSection::of(vec![
        EncodedFunction::new(0x100, 16, &[(4, SP, &[8])]),
        EncodedFunction::new(0x110, 16, &[]),
        // The last row starts at the end of the function, as some assemblers write it.
        EncodedFunction::new(0x120, 16, &[(0, SP, &[8]), (16, SP, &[24])]),
    ])
    .bytes();
    assert_eq!(bounded(&bytes, 0x103), Ok(None));
    assert_eq!(bounded(&bytes, 0x104), Ok(Some(sp(8))));
    assert_eq!(bounded(&bytes, 0x118), Ok(None));
    assert_eq!(bounded(&bytes, 0x12f), Ok(Some(sp(8))));
    assert_eq!(bounded(&bytes, 0x130), Ok(None));
    assert_eq!(open(&bytes).verify(&*bytes), Ok(()));
}

#[test]
fn a_frame_pointer_at_a_fixed_place() {
    let mut section = encode::EncodedSection::of(vec![EncodedFunction::new(
        0x100,
        16,
        &[(0, SP, &[16]), (4, SP, &[16, -24]), (8, SP, &[])],
    )]);
    section.fixed_fp = -16;
    let bytes = section.bytes();
    let fixed = Rule {
        fp: Location::AtCfa(-16),
        ..sp(16)
    };
    assert_eq!(bounded(&bytes, 0x100), Ok(Some(fixed)));
    // A second word has no defined meaning if the frame pointer's offset is fixed.
    assert_eq!(
        bounded(&bytes, 0x104),
        malformed(Malformed::WordCount, section.rows() + 3)
    );
    assert_eq!(bounded(&bytes, 0x108), Ok(Some(Rule::OUTERMOST)));
}

#[test]
fn other_places_of_the_return_address() {
    let mut section = three();
    section.fixed_ra = -16;
    let bytes = section.bytes();
    let expected = Rule {
        ra: Location::AtCfa(-16),
        ..sp(16)
    };
    assert_eq!(bounded(&bytes, 0x104), Ok(Some(expected)));
    assert_eq!(open(&bytes).fixed_ra_offset(), -16);
}

#[test]
fn an_auxiliary_header() {
    for len in [1, 7, 255] {
        let mut section = three();
        section.aux = vec![0xa5; len];
        for flags in [SORTED, SORTED | PCREL] {
            section.flags = flags;
            assert_eq!(bounded(&section.bytes(), 0x204), Ok(Some(sp(16))));
        }
    }
}

#[test]
fn parts_that_do_not_fit() {
    let section = three();
    let good = section.bytes();
    let opened =
        |bytes: &[u8]| Section::open(&Watched::new(bytes), ADDRESS, bytes.len() as u64).map(|_| ());
    assert_eq!(opened(&good), Ok(()));
    for len in 0..good.len() {
        let what = match len {
            0..28 => malformed(Malformed::HeaderShort, 0),
            _ => malformed(Malformed::Rows, 24),
        };
        assert_eq!(opened(&good[..len]), what, "{len} bytes");
    }

    let patched = |at: usize, value: u32| {
        let mut bytes = good.clone();
        patch(&mut bytes, at, value.to_le_bytes());
        opened(&bytes)
    };
    let huge = [u32::MAX, u32::MAX - 28, 0x8000_0000, 0x7fff_ffff];
    // More functions than fit; also numbers whose size in bytes does not fit into 32 bits.
    for count in [4, 0x1000_0000, 0x0ccc_cccd, 0xcccc_cccd]
        .into_iter()
        .chain(huge)
    {
        assert_eq!(
            patched(8, count),
            malformed(Malformed::Functions, 20),
            "{count}"
        );
    }
    for len in [19].into_iter().chain(huge) {
        assert_eq!(patched(16, len), malformed(Malformed::Rows, 24), "{len}");
    }
    for offset in [1, 60, 61].into_iter().chain(huge) {
        assert_eq!(
            patched(20, offset),
            malformed(Malformed::Functions, 20),
            "{offset}"
        );
    }
    for offset in [61].into_iter().chain(huge) {
        assert_eq!(
            patched(24, offset),
            malformed(Malformed::Rows, 24),
            "{offset}"
        );
    }
    for offset in [0, 59] {
        assert_eq!(
            patched(24, offset),
            malformed(Malformed::Functions, 20),
            "{offset}"
        );
    }
    // A wrong total of rows cannot be detected from the header alone.
    assert_eq!(patched(12, 5), Ok(()));
    let mut bytes = good.clone();
    patch(&mut bytes, 12, 5u32.to_le_bytes());
    assert_eq!(
        open(&bytes).verify(&*bytes),
        malformed(Malformed::RowTotal, 12)
    );
}

#[test]
fn unreadable_offsets_are_named() {
    let good = three().bytes();
    let refused = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Section::open(&Watched::new(&bytes), ADDRESS, bytes.len() as u64)
            .map(|_| ())
            .unwrap_err()
    };
    let unsupported = |what| Error::Unsupported { what };
    for version in [0, 4, 255] {
        assert_eq!(
            refused(2, version),
            unsupported(Unsupported::Version(version))
        );
    }
    for abi in [0, 5, 255] {
        assert_eq!(refused(4, abi), unsupported(Unsupported::Abi(abi)));
    }
    for bit in 3..8 {
        assert_eq!(
            refused(3, SORTED | (1 << bit)),
            unsupported(Unsupported::Flags(1 << bit))
        );
    }
    // AMD64 has one byte order only.
    let mut bytes = good.clone();
    bytes.swap(0, 1);
    assert_eq!(
        Section::open(&*bytes, ADDRESS, bytes.len() as u64).unwrap_err(),
        malformed::<()>(Malformed::AbiOrder, 4).unwrap_err()
    );
    assert_eq!(
        refused(1, 0),
        malformed::<()>(Malformed::Magic, 0).unwrap_err()
    );
    assert_eq!(
        unsupported(Unsupported::Version(4)).to_string(),
        "unsupported: version (0x4)"
    );
}

#[test]
fn larger_than_32_bits() {
    /// A header, followed by zeros without end.
    struct EndlessSection([u8; 28]);
    impl Source for EndlessSection {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], sframe::bytes::Fault> {
            if offset == 0 {
                self.0.read(offset)
            } else {
                Ok([0; N])
            }
        }
    }
    let mut header: [u8; 28] = three().bytes()[..28].try_into().unwrap();
    patch(&mut header, 16, u32::MAX.to_le_bytes());
    let error = Section::open(&EndlessSection(header), ADDRESS, 1 << 40).unwrap_err();
    assert_eq!(
        error,
        Error::Unsupported {
            what: Unsupported::Size
        }
    );
    // The largest section that can be read.
    patch(&mut header, 16, (u32::MAX - 28 - 60).to_le_bytes());
    let section = Section::open(&EndlessSection(header), ADDRESS, 1 << 40).unwrap();
    assert_eq!(section.end(), u32::MAX);
    assert_eq!(
        section.find(&EndlessSection(header), ADDRESS, Search::Bounded),
        Ok(None)
    );
}

#[test]
fn functions_far_from_the_section() {
    for start in [i32::MIN, i32::MIN + 1, -1, 0, i32::MAX - 15, i32::MAX] {
        let bytes =
            encode::EncodedSection::of(vec![EncodedFunction::new(start, 16, &[(0, SP, &[8])])])
                .bytes();
        for (address, pc) in [(0x4000_0000_0000, start), (0, start), (u64::MAX, start)]
            .map(|(address, start)| (address, u64::wrapping_add_signed(address, start.into())))
        {
            let section = Section::open(&*bytes, address, bytes.len() as u64).unwrap();
            assert_eq!(section.function(&*bytes, 0).unwrap().start(), pc);
            let find = |pc| section.find(&*bytes, pc, Search::Bounded);
            assert_eq!(find(pc), Ok(Some(sp(8))));
            assert_eq!(find(pc.wrapping_add(15)), Ok(Some(sp(8))));
            assert_eq!(find(pc.wrapping_add(16)), Ok(None));
            assert_eq!(find(pc.wrapping_sub(1)), Ok(None));
        }
    }
}

#[test]
fn sections_one_behind_the_other() {
    let mut one = three();
    one.flags = 0;
    let mut two = one.clone();
    two.tail = 3;
    for function in &mut two.functions {
        function.start += 0x1000;
    }
    let mut bytes = two.bytes();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let second = bytes.len() as u64;
    bytes.extend(one.bytes());

    let first = open(&bytes);
    assert_eq!(u64::from(first.end()).next_multiple_of(8), second);
    let next = first.next(&*bytes).unwrap().unwrap();
    assert_eq!(u64::from(next.offset()), second);
    let pc = ADDRESS + second + 0x204;
    assert_eq!(next.find(&*bytes, pc, Search::Thorough), Ok(Some(sp(16))));
    assert!(next.next(&*bytes).unwrap().is_none());
    // The second section, read alone.
    let tail = Tail {
        bytes: &*bytes,
        start: second,
    };
    let next = Section::open(&tail, ADDRESS + second, bytes.len() as u64 - second).unwrap();
    assert_eq!(next.find(&tail, pc, Search::Thorough), Ok(Some(sp(16))));
    assert_eq!(first.find(&*bytes, pc, Search::Thorough), Ok(None));
    assert_eq!(
        first.find(&*bytes, ADDRESS + 0x1204, Search::Thorough),
        Ok(Some(sp(16)))
    );
    let behind = Tail {
        bytes: &*bytes,
        start: u64::MAX,
    };
    assert_eq!(behind.read::<4>(1), Err(sframe::bytes::Fault));
}

#[test]
fn the_cost_of_a_search() {
    let functions = (0..1000)
        .map(|i| {
            EncodedFunction::new(
                i * 16,
                16,
                &[(0, SP, &[8]), (4, SP, &[16, -16]), (8, SP, &[8])],
            )
        })
        .collect();
    let bytes = encode::EncodedSection::of(functions).bytes();
    let watched = Watched::new(&bytes);
    let section = Section::open(&watched, ADDRESS, bytes.len() as u64).unwrap();
    assert_eq!(watched.reads(), 1);
    for pc in 0..16000 {
        let found = section.find(&watched, ADDRESS + pc, Search::Bounded);
        assert!(found.unwrap().is_some());
        // Ten probes, the function, and up to three rows, whose words take no reads of their own.
        let reads = watched.reads();
        assert!(reads <= 14, "{reads} reads for {pc:#x}");
    }
}

/// Blocks that are not kept.
struct NoBlocks;

impl BlockStore for NoBlocks {
    fn put(&mut self, _at: usize, _block: &[u8]) -> Option<()> {
        Some(())
    }

    fn get(&self, _at: usize, _len: usize) -> Option<&[u8]> {
        None
    }
}

/// Builds a table of a section. Returns the steps of the build and its result.
fn build_steps(bytes: &[u8], key: [u64; 2]) -> (u64, Result<usize, TableError>) {
    let first = Section::open(bytes, 0, bytes.len() as u64).expect("a correct header");
    let mut work = Work::new(bytes.len(), || Ok(()));
    let count = table::count(bytes, &first, &[], &mut work).expect("a count");
    let mut places = vec![FunctionSpan::default(); count];
    let before = work.left();
    let functions = Functions::collect(
        bytes,
        &first,
        &[],
        &mut places,
        |first, _| Some(first),
        &mut work,
    )
    .expect("functions");
    let capacity = 1 << 16;
    let (mut compact, mut others) = (
        vec![CompactRule::NONE; capacity],
        vec![Rule::OUTERMOST; capacity],
    );
    let mut numbers = vec![0; 2 * capacity];
    let mut rules = Rules::new(&mut compact, &mut others, &mut numbers, key);
    let plan = table::plan(&functions).expect("a plan");
    let (mut pages, mut chunks) = (vec![0; plan.pages], vec![0; plan.chunks()]);
    let filled = table::fill(
        bytes,
        bytes,
        &functions,
        &mut rules,
        &plan,
        &mut Indexes {
            pages: &mut pages,
            chunks: &mut chunks,
            shared: &mut [0; table::SHARED],
        },
        &mut work,
        &mut NoBlocks,
    );
    (before - work.left(), filled)
}

/// A function whose rules an unkeyed multiplication would put into one slot of a hash table with
/// 2^17 slots: their offsets from the stack pointer differ by multiples of 2^17.
fn colliding_rules() -> Vec<EncodedFunction> {
    let offsets: Vec<[i32; 1]> = (0..16384).map(|k| [8 + (k << 17)]).collect();
    let rows: Vec<(u32, u8, &[i32])> = offsets
        .iter()
        .zip(0..)
        .map(|(offset, start)| (2 * start, SP, &offset[..]))
        .collect();
    vec![EncodedFunction::typed(0, 32768, ADDR2, 2, &rows)]
}

#[test]
fn colliding_rules_take_few_probes() {
    let bytes = encode::EncodedSection::of(colliding_rules()).bytes();
    for key in [[1, 2], [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]] {
        let (steps, filled) = build_steps(&bytes, key);
        // One row for each rule, and one for the end of the function.
        assert_eq!(filled, Ok(16384 + 1));
        // Each row takes one step, and one more for each of one or two probes. Sorting and pages
        // take few.
        assert!(steps < 4 * 16384, "{steps} steps for 16,384 rules");
    }
}

/// A function that repeats a row for each byte of its code: the length of the section bounds the
/// steps of the build, not the size of the code.
#[test]
fn a_short_section_is_no_long_work() {
    let function = EncodedFunction {
        info: ADDR1 | MASK,
        rep: 1,
        ..EncodedFunction::new(0, 1 << 30, &[(0, SP, &[8])])
    };
    let bytes = encode::EncodedSection::of(vec![function]).bytes();
    let (steps, filled) = build_steps(&bytes, [1, 2]);
    assert_eq!(filled, Err(TableError::TooLong));
    assert!(steps < 2 << 20, "{steps} steps for {} bytes", bytes.len());
}

#[test]
fn the_caller_can_end_a_build() {
    let bytes = encode::EncodedSection::of(colliding_rules()).bytes();
    let first = Section::open(&bytes[..], 0, bytes.len() as u64).expect("a correct header");
    let mut asked = 0;
    let mut work = Work::new(bytes.len(), || {
        asked += 1;
        Err(TableError::Ended)
    });
    let steps = (0..10_000).take_while(|_| work.step().is_ok()).count();
    assert_eq!((steps, asked), (4096, 1));
    let mut places = [FunctionSpan::default(); 1];
    let mut ended = Work::new(bytes.len(), || Err(TableError::Ended));
    while ended.step().is_ok() {}
    // A build that has ended stays so, as long as the caller's answer is the same.
    assert_eq!(ended.step(), Err(TableError::Ended));
    let collected = Functions::collect(
        &bytes[..],
        &first,
        &[],
        &mut places,
        |first, _| Some(first),
        &mut ended,
    );
    assert_eq!(collected.err(), Some(TableError::Ended));
}
