// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Random sections. Correct sections give the results of a simple model. Spoilt sections cause no
//! panic, no read outside of the section, and no endless search.

mod support;

use std::{
    cell::Cell,
    collections::HashMap,
    fs,
    sync::OnceLock, //
};

use convert::OwnedTable;
use object::{
    Object,
    ObjectSection, //
};
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
    bytes::{
        Fault,
        Source, //
    },
    elf::find_sframe,
    error::Error,
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
    unwind::{
        step,
        step_by_frame_pointer,
        Frame,
        Memory,
        NoRegisters,
        Step, //
    }, //
};

use support::{
    build::{
        gcc,
        workdir, //
    },
    encode::{
        self,
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
        Changing,
        Watched, //
    }, //
};

const ADDRESS: u64 = 0x7f00_0000_0000;

/// The most reads of a bounded search: the bisection of 32 bits, the functions at its end, the
/// rows, and the words of the chosen row.
const MOST_READS: u64 = 32 + 1 + MAX_EMPTY_BOUNDED as u64 + MAX_ROWS_BOUNDED as u64 + 1;

/// The random parts of a row: its distance from the row before, in bytes; whether its base is SP;
/// its words.
type RandomRowSeed = (u32, bool, Vec<i32>);

/// A row: its start offset in the function, in bytes, and its rule.
type RandomRow = (u32, Rule);

/// The expected contents of a function.
#[derive(Clone, Debug)]
struct RandomFunction {
    start: i32,
    size: u32,
    rep: Option<u32>,
    rows: Vec<RandomRow>,
}

impl RandomFunction {
    fn rule(&self, offset: u32) -> Option<Rule> {
        let offset = offset % self.rep.unwrap_or(u32::MAX);
        let row = self.rows.iter().rev().find(|row| row.0 <= offset)?;
        Some(row.1)
    }
}

fn rule(base: u8, words: &[i32]) -> Rule {
    let (offset, fp) = match *words {
        [] => return Rule::OUTERMOST,
        [offset] => (offset, Location::Unchanged),
        [offset, saved, ..] => (offset, Location::AtCfa(saved)),
    };
    Rule::amd64(if base == SP { Base::Sp } else { Base::Fp }, offset, fp)
}

fn row_seed() -> impl Strategy<Value = RandomRowSeed> {
    let word = prop_oneof![-128..128, -32768..32768, any::<i32>()];
    (0u32..20, any::<bool>(), vec(word, 0..3))
}

/// A function at `start`, and its expected contents.
fn function(
    start: i32,
    size: u32,
    info: u8,
    rep: u8,
    seeds: &[RandomRowSeed],
) -> (EncodedFunction, RandomFunction) {
    let mut bytes = Vec::new();
    let mut rows: Vec<RandomRow> = Vec::new();
    let mut next = 0u32;
    for (gap, from_sp, words) in seeds {
        let at = next + gap;
        next = at + 1;
        if info & 3 == ADDR1 && at > 255 {
            break;
        }
        let base = if *from_sp { SP } else { FP };
        let size_log2 = [i32::from(i8::MAX), i32::from(i16::MAX), i32::MAX]
            .iter()
            .position(|&most| words.iter().all(|&word| (!most..=most).contains(&word)))
            .unwrap() as u8;
        let row = EncodedFunction::typed(0, 0, info, size_log2, &[(at, base, words)]);
        bytes.extend(row.rows);
        rows.push((at, rule(base, words)));
    }
    let function = EncodedFunction {
        start: start.into(),
        size,
        info,
        rep,
        num_rows: rows.len() as u32,
        rows: bytes,
        ..EncodedFunction::default()
    };
    let model = RandomFunction {
        start,
        size,
        rep: (info & MASK != 0).then_some(rep.into()),
        rows,
    };
    (function, model)
}

prop_compose! {
    /// A section, and the expected contents of its functions.
    fn sections()(
        flags in select(vec![SORTED, SORTED | PCREL, PCREL, 0]),
        aux in vec(any::<u8>(), 0..9),
        tail in 0usize..20,
        first in -5000i32..5000,
        seeds in vec(
            (
                0u32..40,
                prop_oneof![1 => Just(0u32), 8 => 1u32..300],
                select(vec![ADDR1, ADDR2, ADDR4]),
                prop_oneof![3 => Just(None), 1 => (1u8..).prop_map(Some)],
                vec(row_seed(), 0..12),
            ),
            0..24,
        ),
        rotation in any::<Index>(),
    ) -> (encode::EncodedSection, Vec<RandomFunction>) {
        let mut next = first;
        let mut both: Vec<_> = seeds
            .iter()
            .map(|(gap, size, info, rep, rows)| {
                let start = next + *gap as i32;
                next = start + *size as i32;
                let info = info | if rep.is_some() { MASK } else { 0 };
                function(start, *size, info, rep.unwrap_or(0), rows)
            })
            .collect();
        if flags & SORTED == 0 && !both.is_empty() {
            let by = rotation.index(both.len());
            both.rotate_left(by);
        }
        let (functions, models) = both.into_iter().unzip();
        let section = encode::EncodedSection {
            flags,
            aux,
            tail,
            functions,
            ..encode::EncodedSection::default()
        };
        (section, models)
    }
}

/// A section that the toolchain made, and the first 4,096 bytes of the section's file.
fn real() -> &'static (Vec<u8>, Vec<u8>) {
    static REAL: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    REAL.get_or_init(|| {
        let args = ["-shared", "-fPIC", "-Wl,-z,lazy", "shapes.c"];
        let file = fs::read(gcc(&workdir("random"), "real.so", &args)).unwrap();
        let elf = object::File::parse(&*file).unwrap();
        let section = elf.section_by_name(".sframe").unwrap();
        let bytes = section.data().unwrap().to_vec();
        assert!(bytes.len() > 400);
        (bytes, file[..4096].to_vec())
    })
}

/// No code bytes: a table build that gets these does not check rows of PLTs against the code.
const NO_CODE: &[u8] = &[];

/// Calls all functions of a section and of its table. The results do not matter, but the bounds do.
fn ask_all<S: Source>(bytes: &S, len: u64, pcs: &[u64], reads: impl Fn() -> u64) {
    let Ok(section) = Section::open(bytes, ADDRESS, len) else {
        return;
    };
    assert!(u64::from(section.end()) <= len);
    let _ = section.verify(bytes);
    let table = OwnedTable::of(bytes, &section, &[], NO_CODE, |first, _| Some(first), 20);
    let mut interesting = pcs.to_vec();
    for function in section.functions(bytes).flatten().take(100) {
        interesting.extend([
            function.start(),
            function.start().wrapping_add(function.size().into()),
            function
                .start()
                .wrapping_add(u64::from(function.size() / 2)),
        ]);
        assert!(u64::from(function.rows_at()) <= len);
        let mut rows = section.rows(bytes, &function);
        let mut last = None;
        for row in rows.by_ref().map_while(Result::ok) {
            assert!(last < Some(row.start), "rows have to rise");
            last = Some(row.start);
        }
        // The iterator yields nothing after an error or after the end.
        assert!(rows.next().is_none());
    }
    reads();
    for &pc in &interesting {
        let found = section.find(bytes, pc, Search::Bounded);
        let count = reads();
        assert!(count <= MOST_READS, "{count} reads");
        if !section.is_sorted() {
            assert_eq!(found, Err(Error::TooLong));
        }
        let _ = section.find(bytes, pc, Search::Thorough);
        let _ = section
            .with_starts(Starts::Section)
            .find(bytes, pc, Search::Thorough);
        reads();
        if let Ok(made) = &table {
            let _ = made.table().find(pc);
        }
    }
}

fn ask_all_of(bytes: &[u8], pcs: &[u64]) {
    let watched = Watched::new(bytes);
    ask_all(&watched, bytes.len() as u64, pcs, || watched.reads());
}

/// Spoils bytes. Each change has a place, a kind and a value.
fn spoil(bytes: &mut Vec<u8>, changes: &[(Index, u8, u8)]) {
    for (index, kind, value) in changes {
        if bytes.is_empty() {
            return;
        }
        let at = index.index(bytes.len());
        match kind % 6 {
            0 => bytes[at] = *value,
            1 => bytes[at] ^= 1 << (value & 7),
            // Numbers that are likely limits.
            2 => {
                let number = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 28][usize::from(value % 6)];
                for (byte, new) in bytes[at..].iter_mut().zip(number.to_le_bytes()) {
                    *byte = new;
                }
            }
            3 => bytes.truncate(at),
            4 => {
                let from = usize::from(*value) % bytes.len();
                for i in 0..20.min(bytes.len() - at.max(from)) {
                    bytes[at + i] = bytes[from + i];
                }
            }
            // The header, whose fields have the largest effect.
            _ => bytes[at % 28] = *value,
        }
    }
}

fn pcs() -> impl Strategy<Value = Vec<u64>> {
    let near = (-0x20000i64..0x20000).prop_map(|offset| ADDRESS.wrapping_add_signed(offset));
    vec(prop_oneof![4 => near, 1 => any::<u64>()], 8)
}

fn changes(most: usize) -> impl Strategy<Value = Vec<(Index, u8, u8)>> {
    vec(any::<(Index, u8, u8)>(), 1..most)
}

/// Memory that holds some words, and one random word at all other addresses. If `other` is `None`,
/// all other addresses cannot be read.
struct Noise {
    words: HashMap<u64, u64>,
    other: Option<u64>,
}

impl Memory for Noise {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        self.words
            .get(&address)
            .copied()
            .or(self.other)
            .ok_or(Fault)
    }
}

fn locations() -> impl Strategy<Value = Location> {
    prop_oneof![
        Just(Location::Unchanged),
        Just(Location::Undefined),
        (-64..64i32).prop_map(Location::AtCfa),
        any::<i32>().prop_map(Location::AtCfa),
    ]
}

fn addresses() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0u64..64).prop_map(|n| 0x7ffe_0000 + 8 * n),
        0u64..64,
        (0u64..64).prop_map(|n| u64::MAX - n),
        any::<u64>(),
    ]
}

/// A build remembers the words of rows. Rows with equal words have different rules where the
/// headers of their sections differ.
#[test]
fn equal_words_of_two_sections() {
    let encoded = |start, fixed_fp| encode::EncodedSection {
        flags: 0,
        fixed_fp,
        ..encode::EncodedSection::of(vec![EncodedFunction::new(start, 16, &[(0, SP, &[16])])])
    };
    let mut bytes = encoded(0x1000, 0).bytes();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let second = bytes.len() as u64;
    bytes.extend(encoded(0x200, -24).bytes());
    let first = Section::open(&*bytes, ADDRESS, bytes.len() as u64).unwrap();
    let table = OwnedTable::of(&*bytes, &first, &[], NO_CODE, |first, _| Some(first), 3).unwrap();
    for (at, fp) in [
        (0x1000, Location::Unchanged),
        (second + 0x200, Location::AtCfa(-24)),
    ] {
        let rule = Rule::amd64(Base::Sp, 16, fp);
        assert_eq!(table.table().find(ADDRESS + at), Some(rule));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn right_sections_are_read_rightly((section, models) in sections()) {
        let bytes = section.bytes();
        let watched = Watched::new(&bytes);
        let read = Section::open(&watched, ADDRESS, bytes.len() as u64).unwrap();
        prop_assert_eq!(read.end() as usize, bytes.len() - section.tail);
        prop_assert_eq!(read.num_fdes() as usize, models.len());
        prop_assert_eq!(read.verify(&watched), Ok(()));

        let mut pcs = vec![-6000i32, 20000];
        for (index, model) in models.iter().enumerate() {
            let function = read.function(&watched, index as u32).unwrap();
            prop_assert_eq!(function.start(), ADDRESS.wrapping_add_signed(model.start.into()));
            prop_assert_eq!(function.size(), model.size);
            prop_assert_eq!(function.repeat().map(|rep| rep.get().into()), model.rep);
            let rows: Vec<RandomRow> = read
                .rows(&watched, &function)
                .map(|row| row.map(|row| (row.start, row.rule)).unwrap())
                .collect();
            prop_assert_eq!(&rows, &model.rows);
            let end = model.start + model.size as i32;
            pcs.extend(model.start - 1..end.min(model.start + 40));
            pcs.extend(end - 2..end + 2);
        }
        // Each row may have its own rule. Rule number 0 means no rule.
        let most = 1 + models.iter().map(|model| model.rows.len()).sum::<usize>();
        let table = OwnedTable::of(&watched, &read, &[], NO_CODE, |first, _| Some(first), most).unwrap();
        for pc in pcs {
            let expected = models
                .iter()
                .find(|model| (pc.wrapping_sub(model.start) as u32) < model.size)
                .and_then(|model| model.rule((pc - model.start) as u32));
            let at = ADDRESS.wrapping_add_signed(pc.into());
            prop_assert_eq!(read.find(&watched, at, Search::Thorough), Ok(expected));
            prop_assert_eq!(table.table().find(at), expected, "{:#x}", at);
            watched.reads();
            match read.find(&watched, at, Search::Bounded) {
                Err(Error::TooLong) => {
                    let empty = models.iter().filter(|model| model.size == 0).count();
                    prop_assert!(!read.is_sorted() || empty > MAX_EMPTY_BOUNDED as usize);
                }
                found => prop_assert_eq!(found, Ok(expected)),
            }
            prop_assert!(watched.reads() < 40);
        }
    }

    #[test]
    fn spoilt_sections(
        (section, _) in sections(),
        changes in changes(8),
        pcs in pcs(),
    ) {
        let mut bytes = section.bytes();
        spoil(&mut bytes, &changes);
        ask_all_of(&bytes, &pcs);
    }

    #[test]
    fn spoilt_real_sections(changes in changes(12), pcs in pcs()) {
        let mut bytes = real().0.clone();
        spoil(&mut bytes, &changes);
        ask_all_of(&bytes, &pcs);
    }

    #[test]
    fn random_bytes(mut bytes in vec(any::<u8>(), 0..300), flags in 0u8..8, pcs in pcs()) {
        ask_all_of(&bytes, &pcs);
        // Again with a plausible header, so that the rest of the bytes is read.
        let header = encode::EncodedSection { flags, ..encode::EncodedSection::default() }.bytes();
        for (byte, header) in bytes.iter_mut().zip(&header[..8]) {
            *byte = *header;
        }
        for field in [8, 12, 16, 20, 24] {
            for at in [field + 1, field + 2, field + 3] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = 0;
                }
            }
        }
        ask_all_of(&bytes, &pcs);
    }

    #[test]
    fn sections_that_change_while_they_are_read(
        (section, _) in sections(),
        use_real in any::<bool>(),
        state in 1u64..,
        unrest in any::<u8>(),
        pcs in pcs(),
    ) {
        let bytes = if use_real { real().0.clone() } else { section.bytes() };
        // With low unrest, the header is mostly read unchanged, so the rest of the section is read
        // too.
        for unrest in [0, unrest / 16, unrest] {
            let changing = Changing {
                bytes: Watched::new(&bytes),
                state: Cell::new(state),
                unrest,
            };
            ask_all(&changing, bytes.len() as u64, &pcs, || changing.bytes.reads());
        }
    }

    #[test]
    fn spoilt_images(changes in changes(8), offset in 0u64..0x20000) {
        let mut bytes = real().1.clone();
        let _ = find_sframe(&*bytes, offset);
        spoil(&mut bytes, &changes);
        let _ = find_sframe(&*bytes, offset);
        let mut head = real().1[..1024].to_vec();
        spoil(&mut head, &changes);
        let found = find_sframe(&*head, offset);
        if let Ok(found) = found {
            prop_assert!(offset.wrapping_sub(found.load_offset) < found.load_filesz);
        }
    }

    #[test]
    fn steps_rise_or_stop(
        base in select(vec![Base::Sp, Base::Fp]),
        offset in prop_oneof![-256..256i32, any::<i32>()],
        ra in locations(),
        fp in locations(),
        frame in (addresses(), addresses(), addresses()),
        other in any::<Option<u64>>(),
    ) {
        let rule = Rule { ra, ..Rule::amd64(base, offset, fp) };
        let frame = Frame { pc: frame.0, sp: frame.1, fp: frame.2 };
        let memory = Noise { words: HashMap::new(), other };
        for (by_rule, step) in [
            (true, step(Abi::Amd64, &rule, &frame, &NoRegisters, &memory)),
            (false, step_by_frame_pointer(&frame, &memory)),
        ] {
            if let Ok(Step::Caller(caller)) = step {
                prop_assert!(caller.sp > frame.sp);
                prop_assert_eq!(caller.sp % 8, 0);
                prop_assert_ne!(caller.pc, 0);
                prop_assert_eq!(Some(caller.pc), other);
                if by_rule {
                    let base = if base == Base::Sp { frame.sp } else { frame.fp };
                    prop_assert_eq!(caller.sp, base.wrapping_add_signed(offset.into()));
                } else {
                    prop_assert_eq!(caller.sp, frame.fp + 16);
                }
            }
        }
    }

    #[test]
    fn a_step_reads_what_the_rule_says(
        slots in 1i32..100,
        saved in 2i32..100,
        ra in 1u64..,
        fp in any::<u64>(),
    ) {
        let frame = Frame { pc: 1, sp: 0x7ffe_0000, fp: 5 };
        let cfa = frame.sp + 8 * slots as u64;
        let fp_at = cfa.wrapping_add_signed(i64::from(-8 * saved));
        let memory = Noise { words: HashMap::from([(cfa - 8, ra), (fp_at, fp)]), other: None };
        let rule = Rule::amd64(Base::Sp, 8 * slots, Location::AtCfa(-8 * saved));
        prop_assert_eq!(
            step(Abi::Amd64, &rule, &frame, &NoRegisters, &memory),
            Ok(Step::Caller(Frame { pc: ra, sp: cfa, fp }))
        );
        let unchanged = Rule { fp: Location::Unchanged, ..rule };
        prop_assert_eq!(
            step(Abi::Amd64, &unchanged, &frame, &NoRegisters, &memory),
            Ok(Step::Caller(Frame { pc: ra, sp: cfa, fp: 5 }))
        );
    }
}
