// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Round trips for each version, ABI, byte order and width: random sections are written by the
//! rules of the specification, and the results of the reader are compared with a simple model of
//! each section. Spoilt copies of these sections must do no harm.

mod support;

use std::env;

use proptest::{
    collection::vec,
    prelude::*,
    sample::{
        select,
        Index, //
    }, //
};
use sframe::{
    abi::Abi,
    bytes::Order,
    error::Error,
    fde::RowStart,
    header::Starts,
    rule::{
        Base,
        Cfa,
        Extra,
        Location,
        Rule, //
    },
    section::{
        Search,
        Section,
        MAX_EMPTY_BOUNDED, //
    }, //
};

use support::{
    encode::{
        self,
        concatenated,
        EncodedFunction,
        Saved,
        Value,
        AARCH64,
        AARCH64_BIG,
        AMD64,
        FLEX,
        FP,
        KEY_B,
        MASK,
        PCREL,
        S390X,
        SIGNAL,
        SORTED,
        SP, //
    },
    fuzzed,
    source::Watched, //
};

const ADDRESS: u64 = 0x7f00_0000_0000;

/// The expected contents of a function.
#[derive(Clone, Debug)]
struct FunctionModel {
    start: i64,
    size: u32,
    /// The size of a repeated block, in bytes.
    block: Option<u32>,
    info: u8,
    info2: u8,
    rows: Vec<(u32, Rule)>,
    /// The rule of a function without rows.
    without: Option<Rule>,
}

impl FunctionModel {
    fn covers(&self, at: i64) -> bool {
        (self.start..self.start + i64::from(self.size)).contains(&at)
    }

    /// The rule at `at`, which the function covers.
    fn rule(&self, at: i64) -> Option<Rule> {
        if self.rows.is_empty() {
            return self.without;
        }
        let mut offset = (at - self.start) as u32;
        if let Some(block) = self.block {
            offset %= block;
        }
        let row = self.rows.iter().rev().find(|row| row.0 <= offset)?;
        Some(row.1)
    }
}

/// The random parts of a function.
#[derive(Clone, Debug)]
struct FunctionSeed {
    /// The distance from the end of the function before, in bytes.
    gap: u32,
    size: u32,
    row_type: u8,
    block: Option<u8>,
    key_b: bool,
    signal: bool,
    flexible: bool,
    rows: Vec<RowSeed>,
}

/// The random parts of a row.
#[derive(Clone, Debug)]
struct RowSeed {
    /// One less than the distance from the start of the row before, in bytes.
    gap: u32,
    outermost: bool,
    /// CFA, return address and frame pointer.
    values: [ValueSeed; 3],
    mangled: bool,
    least_log2: u8,
}

#[derive(Clone, Debug)]
struct ValueSeed {
    there: bool,
    /// The DWARF number of a register.
    register: u8,
    of_cfa: bool,
    deref: bool,
    offset: i32,
}

fn value_seed() -> impl Strategy<Value = ValueSeed> {
    let offset = prop_oneof![-128..128, -32768..32768, any::<i32>()];
    (any::<bool>(), 0u8..32, any::<bool>(), any::<bool>(), offset).prop_map(
        |(there, register, of_cfa, deref, offset)| ValueSeed {
            there,
            register,
            of_cfa,
            deref,
            offset,
        },
    )
}

fn row_seed() -> impl Strategy<Value = RowSeed> {
    (
        prop_oneof![8 => 0u32..20, 1 => 0u32..5000],
        prop::bool::weighted(0.1),
        [value_seed(), value_seed(), value_seed()],
        any::<bool>(),
        0u8..3,
    )
        .prop_map(|(gap, outermost, values, mangled, least_log2)| RowSeed {
            gap,
            outermost,
            values,
            mangled,
            least_log2,
        })
}

fn function_seed() -> impl Strategy<Value = FunctionSeed> {
    (
        0u32..40,
        prop_oneof![1 => Just(0u32), 8 => 1u32..300, 2 => 300u32..70_000],
        0u8..3,
        prop::option::weighted(0.25, 1u8..),
        any::<bool>(),
        prop::bool::weighted(0.2),
        any::<bool>(),
        vec(row_seed(), 0..8),
    )
        .prop_map(
            |(gap, size, row_type, block, key_b, signal, flexible, rows)| FunctionSeed {
                gap,
                size,
                row_type,
                block,
                key_b,
                signal,
                flexible,
                rows,
            },
        )
}

/// The DWARF numbers of stack pointer and frame pointer ("ABI/arch-specific Definition").
fn numbers(abi: u8) -> (u8, u8) {
    match abi {
        AMD64 => (7, 6),
        S390X => (15, 11),
        _ => (31, 29),
    }
}

fn base(abi: u8, register: u8) -> Base {
    match numbers(abi) {
        (sp, _) if register == sp => Base::Sp,
        (_, fp) if register == fp => Base::Fp,
        _ => Base::Register(register),
    }
}

/// A CFA offset that the ABI can encode: s390x encodes multiples of eight alone.
fn cfa_offset(abi: u8, offset: i32) -> i32 {
    match abi {
        S390X => (offset / 16) * 8,
        _ => offset,
    }
}

/// The location of a register by its fixed offset in the header; 0 means that no offset is fixed.
fn fixed(offset: i8) -> Location {
    match offset {
        0 => Location::Unchanged,
        offset => Location::AtCfa(offset.into()),
    }
}

/// A row of a function that is not flexible, and the row's rule.
fn default_row(section: &encode::EncodedSection, seed: &RowSeed) -> (encode::EncodedRow, Rule) {
    let abi = section.abi;
    let [cfa, ra, fp] = &seed.values;
    let from_sp = cfa.deref;
    let offset = cfa_offset(abi, cfa.offset);
    let saved = |value: &ValueSeed| {
        if abi == S390X && section.version == 2 && value.of_cfa {
            return (
                Saved::In(value.register),
                Location::Of(base(abi, value.register), 0),
            );
        }
        let mut offset = value.offset;
        if abi == S390X {
            // In version 2, an odd word is a register; zero is a placeholder.
            offset = (offset & !1) | 2;
        }
        (Saved::At(offset), Location::AtCfa(offset))
    };
    // A fixed RA has no word. If RA is not fixed, FP has a word only after the word of RA, except
    // on s390x.
    let ra = (ra.there && section.fixed_ra == 0).then(|| saved(ra));
    let after_ra = section.fixed_ra != 0 || ra.is_some() || abi == S390X;
    let fp = (fp.there && section.fixed_fp == 0 && after_ra).then(|| saved(fp));
    let row = encode::EncodedRow::Default {
        base: if from_sp { SP } else { FP },
        cfa: offset,
        ra: ra.map(|ra| ra.0),
        fp: fp.map(|fp| fp.0),
        mangled: seed.mangled,
    };
    let rule = Rule {
        cfa: Cfa {
            base: if from_sp { Base::Sp } else { Base::Fp },
            offset,
            deref: false,
            plus: 0,
        },
        ra: ra.map_or(fixed(section.fixed_ra), |ra| ra.1),
        fp: fp.map_or(fixed(section.fixed_fp), |fp| fp.1),
        mangled: seed.mangled && matches!(abi, AARCH64 | AARCH64_BIG),
        signal: false,
        extra: Extra::NONE,
    };
    (row, rule)
}

/// A row of a flexible function, and the row's rule.
fn flexible_row(section: &encode::EncodedSection, seed: &RowSeed) -> (encode::EncodedRow, Rule) {
    let abi = section.abi;
    let [cfa, ra, fp] = &seed.values;
    let offset = cfa_offset(abi, cfa.offset);
    let value = |seed: &ValueSeed| {
        // A control word of 0 (neither a register nor memory) would mean "no rule", apart from its
        // offset. So a value without a register is always in memory here.
        let register = (!seed.of_cfa || !seed.deref).then_some(seed.register);
        let location = match (register.map(|number| base(abi, number)), seed.deref) {
            (None, _) => Location::AtCfa(seed.offset),
            (Some(base), true) => Location::At(base, seed.offset),
            (Some(base), false) => Location::Of(base, seed.offset),
        };
        let value = Value {
            register,
            deref: seed.deref,
            offset: seed.offset,
        };
        (value, location)
    };
    let ra = ra.there.then(|| value(ra));
    let fp = fp.there.then(|| value(fp));
    let row = encode::EncodedRow::Flex {
        cfa: Value {
            register: Some(cfa.register),
            deref: cfa.deref,
            offset,
        },
        ra: ra.map(|ra| ra.0),
        fp: fp.map(|fp| fp.0),
    };
    let rule = Rule {
        cfa: Cfa {
            base: base(abi, cfa.register),
            offset,
            deref: cfa.deref,
            plus: 0,
        },
        ra: ra.map_or(fixed(section.fixed_ra), |ra| ra.1),
        fp: fp.map_or(fixed(section.fixed_fp), |fp| fp.1),
        mangled: false,
        signal: false,
        extra: Extra::NONE,
    };
    (row, rule)
}

/// A function at `start`, and its expected contents.
fn function(
    section: &encode::EncodedSection,
    start: i64,
    seed: &FunctionSeed,
) -> (EncodedFunction, FunctionModel) {
    let version = section.version;
    let flexible = seed.flexible && version == 3;
    let signal = seed.signal && version == 3;
    let info = seed.row_type
        | if seed.block.is_some() { MASK } else { 0 }
        | if seed.key_b { KEY_B } else { 0 }
        | if signal { SIGNAL } else { 0 };
    let most = [0xff, 0xffff, u32::MAX][usize::from(seed.row_type)];

    let mut bytes = Vec::new();
    let mut rows = Vec::new();
    let mut next = 0;
    for row in &seed.rows {
        let at = next + row.gap;
        next = at + 1;
        if at > most {
            break;
        }
        // Version 1 cannot mark the outermost frame.
        let (written, rule) = if row.outermost && version != 1 {
            (encode::EncodedRow::Outermost, Rule::OUTERMOST)
        } else if flexible {
            flexible_row(section, row)
        } else {
            default_row(section, row)
        };
        bytes.extend(written.bytes(section, info, at, row.least_log2));
        rows.push((at, Rule { signal, ..rule }));
    }
    let function = EncodedFunction {
        start,
        size: seed.size,
        info,
        info2: if flexible { FLEX } else { 0 },
        rep: seed.block.unwrap_or(0),
        num_rows: rows.len() as u32,
        rows: bytes,
    };
    let model = FunctionModel {
        start,
        size: seed.size,
        // Version 1 has no field for the block size, and repeats rows only for stubs of 16 bytes.
        block: seed
            .block
            .map(|block| if version == 1 { 16 } else { block.into() }),
        info,
        info2: function.info2,
        rows,
        // In version 3 a function without rows is outermost, unless it is a signal trampoline.
        without: (version == 3 && !flexible && !signal).then_some(Rule::OUTERMOST),
    };
    (function, model)
}

fn flags(version: u8) -> Vec<u8> {
    match version {
        1 => vec![0, SORTED],
        2 => vec![0, SORTED, PCREL, PCREL | SORTED],
        _ => vec![PCREL, PCREL | SORTED],
    }
}

prop_compose! {
    /// A section of any version and ABI, and the expected contents of its functions.
    fn sections()(
        (version, flags) in (1u8..=3).prop_flat_map(|v| (Just(v), select(flags(v)))),
        abi in select(vec![AMD64, AARCH64, AARCH64_BIG, S390X]),
        fixed_fp in prop_oneof![4 => Just(0i8), 1 => any::<i8>()],
        fixed_ra in prop_oneof![4 => Just(None), 1 => any::<i8>().prop_map(Some)],
        aux in vec(any::<u8>(), 0..9),
        gap in 0usize..5,
        rows_reversed in any::<bool>(),
        tail in 0usize..20,
        near in -5000i64..5000,
        far in prop_oneof![3 => Just(0i64), 1 => -0x1_0000_0000_0000..0x1_0000_0000_0000i64],
        seeds in vec(function_seed(), 0..16),
        rotation in any::<Index>(),
    ) -> (encode::EncodedSection, Vec<FunctionModel>) {
        let mut section = encode::EncodedSection {
            version,
            abi,
            flags,
            fixed_fp,
            fixed_ra: fixed_ra.unwrap_or(if abi == AMD64 { -8 } else { 0 }),
            aux,
            gap,
            rows_reversed,
            tail,
            ..encode::EncodedSection::default()
        };
        // Only version 3 has start addresses of 64 bits.
        let mut next = near + if version == 3 { far } else { 0 };
        let mut both = Vec::new();
        for seed in &seeds {
            let start = next + i64::from(seed.gap);
            next = start + i64::from(seed.size);
            both.push(function(&section, start, seed));
        }
        if flags & SORTED == 0 && !both.is_empty() {
            let by = rotation.index(both.len());
            both.rotate_left(by);
        }
        let models;
        (section.functions, models) = both.into_iter().unzip();
        (section, models)
    }
}

/// Compares all results of the reader for a section with the section's model.
fn compare(
    read: &Section,
    watched: &Watched<'_>,
    written: &encode::EncodedSection,
    models: &[FunctionModel],
) {
    assert_eq!(read.version().number(), written.version);
    assert_eq!(read.abi().number(), written.abi);
    assert_eq!(
        read.abi().order() == Order::Big,
        matches!(read.abi(), Abi::Aarch64Big | Abi::S390x)
    );
    assert_eq!(read.flags(), written.flags);
    assert_eq!(read.is_sorted(), written.flags & SORTED != 0);
    assert_eq!(read.fixed_ra_offset(), written.fixed_ra);
    assert_eq!(read.fixed_fp_offset(), written.fixed_fp);
    assert_eq!(read.num_fdes() as usize, models.len());
    assert_eq!(read.verify(watched), Ok(()));

    let mut places = vec![-0x2_0000_0000_0000, -6000, 0, 0x2_0000_0000_0000];
    for (index, model) in models.iter().enumerate() {
        let function = read.function(watched, index as u32).unwrap();
        assert_eq!(function.start(), ADDRESS.wrapping_add_signed(model.start));
        assert_eq!(function.size(), model.size);
        assert_eq!(
            function.repeat().map(|block| block.get().into()),
            model.block
        );
        assert_eq!(function.has_key_b(), model.info & KEY_B != 0);
        assert_eq!(function.is_signal(), model.info & SIGNAL != 0);
        assert_eq!(function.is_flexible(), model.info2 == FLEX);
        let width = [RowStart::Addr1, RowStart::Addr2, RowStart::Addr4];
        assert_eq!(function.row_start(), width[usize::from(model.info & 3)]);
        let rows: Vec<(u32, Rule)> = read
            .rows(watched, &function)
            .map(|row| row.map(|row| (row.start, row.rule)).unwrap())
            .collect();
        assert_eq!(rows, model.rows);

        let end = model.start + i64::from(model.size);
        places.extend([model.start - 1, model.start, end - 1, end]);
        places.push(model.start + i64::from(model.size / 2));
        // All rows, in the first block and in the last.
        let last = model.block.map_or(0, |block| model.size / block * block);
        for (start, _) in &model.rows {
            for block in [0, last] {
                let at = model.start + i64::from(block) + i64::from(*start);
                places.extend([at - 1, at, at + 1]);
            }
        }
    }
    let empty = models.iter().filter(|model| model.size == 0).count();
    for place in places {
        let expected = models
            .iter()
            .find(|model| model.covers(place))
            .and_then(|model| model.rule(place));
        let pc = ADDRESS.wrapping_add_signed(place);
        assert_eq!(
            read.find(watched, pc, Search::Thorough),
            Ok(expected),
            "{place}"
        );
        watched.reads();
        match read.find(watched, pc, Search::Bounded) {
            Err(Error::TooLong) => {
                assert!(!read.is_sorted() || empty > MAX_EMPTY_BOUNDED as usize);
            }
            found => assert_eq!(found, Ok(expected)),
        }
        assert!(watched.reads() < 60);
    }
}

/// The number of cases of each test. (`PROPTEST_CASES` has no effect on an explicit number, so it
/// is read here.)
fn cases() -> u32 {
    match env::var("PROPTEST_CASES") {
        Ok(cases) => cases.parse().expect("PROPTEST_CASES is a number"),
        Err(_) => 2000,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn written_sections_are_read((section, models) in sections()) {
        let bytes = section.bytes();
        let watched = Watched::new(&bytes);
        let read = Section::open(&watched, ADDRESS, bytes.len() as u64).unwrap();
        prop_assert_eq!(read.end() as usize, bytes.len() - section.tail);
        compare(&read, &watched, &section, &models);
        // Zeros behind the section are not another section.
        prop_assert!(read.next(&watched).unwrap().is_none());
    }

    #[test]
    fn sections_behind_others_are_read(both in vec(sections(), 1..4)) {
        // A tail would be read as the padding before the next section.
        let (sections, models): (Vec<_>, Vec<_>) = both
            .into_iter()
            .enumerate()
            .map(|(index, (section, models))| {
                // A linker that concatenates sections relocates each start relative to the start's
                // own field.
                let by_section = section.flags & (SORTED | PCREL) == SORTED;
                let flags = section.flags ^ if index != 0 && by_section { SORTED } else { 0 };
                (encode::EncodedSection { tail: 0, flags, ..section }, models)
            })
            .unzip();
        let (bytes, at) = concatenated(&sections);
        let watched = Watched::new(&bytes);
        let mut next = Some(Section::open(&watched, ADDRESS, bytes.len() as u64).unwrap());
        for (index, section) in sections.iter().enumerate() {
            let read = next.expect("all of them");
            prop_assert_eq!(read.offset() as usize, at[index]);
            compare(&read, &watched, section, &models[index]);
            next = read.next(&watched).unwrap();
        }
        prop_assert!(next.is_none());
    }

    /// `settle_starts` finds the origin of start addresses by the addresses of code.
    #[test]
    fn starts_settle_where_code_is((section, models) in sections()) {
        let bytes = section.bytes();
        let mut read = Section::open(&*bytes, ADDRESS, bytes.len() as u64).unwrap();
        let starts: Vec<u64> = models
            .iter()
            .map(|model| ADDRESS.wrapping_add_signed(model.start))
            .collect();
        read.settle_starts(&*bytes, |address| starts.contains(&address)).unwrap();
        prop_assert_eq!(read.is_sorted(), section.flags & SORTED != 0);

        // Again with a sorted flag that is not true, as files made by `ld -r` have it.
        if section.version < 3 && section.flags == 0 && !models.is_empty() {
            let mut bytes = bytes;
            bytes[3] |= SORTED;
            let mut read = Section::open(&*bytes, ADDRESS, bytes.len() as u64).unwrap();
            prop_assert_eq!(read.starts(), Starts::Section);
            read.settle_starts(&*bytes, |address| starts.contains(&address)).unwrap();
            prop_assert_eq!(read.starts(), Starts::Field);
            for (index, start) in starts.iter().enumerate() {
                let function = read.function(&*bytes, index as u32).unwrap();
                prop_assert_eq!(function.start(), *start);
            }
        }
    }

    /// With any bytes flipped, the reader does not panic, does not read outside of the section, and
    /// keeps its bounds on reads.
    #[test]
    fn spoilt_bytes_do_no_harm(
        both in vec(sections(), 1..3),
        changes in vec((any::<Index>(), any::<u8>(), any::<bool>()), 1..12),
    ) {
        let sections: Vec<_> = both.into_iter().map(|both| both.0).collect();
        let mut bytes = concatenated(&sections).0;
        for (index, value, in_front) in changes {
            // The header's fields have the largest effect.
            let end = if in_front { 28 } else { bytes.len() };
            let at = index.index(end);
            bytes[at] ^= value;
        }
        fuzzed::section(&bytes);
    }
}
