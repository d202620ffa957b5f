// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! A lookup table that owns its memory.

use sframe::{
    bytes::{
        Fault,
        Source, //
    },
    compact_rule::CompactRule,
    rule::Rule,
    section::Section,
    table::{
        self,
        BlockStore,
        FunctionSpan,
        Functions,
        Indexes,
        Rules,
        Table,
        TableError,
        Work,
        MAX_RULES, //
    },
};

use crate::code::CodeBytes;

/// The lookup table that the module builds from a section.
#[derive(Clone, Debug)]
pub struct OwnedTable {
    base: u64,
    pages: Vec<u16>,
    chunks: Vec<u64>,
    blocks: Vec<u8>,
    compact: Vec<CompactRule>,
    others: Vec<Rule>,
}

impl OwnedTable {
    /// Builds a table from a section whose address is 0, the sections that follow it in `bytes`,
    /// and extra rows. Functions and rows outside of `code` are skipped.
    ///
    /// # Errors
    ///
    /// See [`TableError`].
    pub fn new(
        bytes: &[u8],
        extra_rows: &[u8],
        code: &CodeBytes<'_>,
    ) -> Result<OwnedTable, TableError> {
        let section = Section::open(bytes, 0, bytes.len() as u64)?;
        let place = |first, last| code.holds(first, last).then_some(first);
        let most = MAX_RULES.min(bytes.len() + extra_rows.len());
        OwnedTable::of(bytes, &section, extra_rows, code, place, most)
    }

    /// Builds a table from all sections from the first one on, with up to `most` rules. `place`
    /// tells where in the table code is, as for [`Functions::collect`].
    ///
    /// # Errors
    ///
    /// See [`TableError`].
    pub fn of<S: Source + ?Sized, C: Source + ?Sized>(
        bytes: &S,
        first: &Section,
        extra_rows: &[u8],
        code: &C,
        place: impl Fn(u64, u64) -> Option<u64>,
        most: usize,
    ) -> Result<OwnedTable, TableError> {
        // The length of `bytes` is not known here, so the bound is that of the longest section.
        let mut work = Work::new(usize::MAX, || Ok(()));
        let count = table::count(bytes, first, extra_rows, &mut work)?;
        let mut places = vec![FunctionSpan::default(); count];
        let functions =
            Functions::collect(bytes, first, extra_rows, &mut places, place, &mut work)?;
        // Two numbers stand for no rule of their own.
        let most = most + 2;
        let mut compact = vec![CompactRule::NONE; most];
        let mut others = vec![Rule::OUTERMOST; most];
        let mut numbers = vec![0; 2 * most];
        let mut rules = Rules::new(&mut compact, &mut others, &mut numbers, [0, 0]);
        let plan = table::plan(&functions)?;
        let (mut pages, mut chunks) = (vec![0; plan.pages], vec![0; plan.chunks()]);
        let mut blocks = OwnedBlocks(Vec::new());
        table::fill(
            bytes,
            code,
            &functions,
            &mut rules,
            &plan,
            &mut Indexes {
                pages: &mut pages,
                chunks: &mut chunks,
                shared: &mut [0; table::SHARED],
            },
            &mut work,
            &mut blocks,
        )?;
        let (compact, others) = (rules.compact().to_vec(), rules.others().to_vec());
        Ok(OwnedTable {
            base: plan.base,
            pages,
            chunks,
            blocks: blocks.0,
            compact,
            others,
        })
    }

    /// Borrows the table.
    pub fn table(&self) -> Table<'_> {
        Table {
            base: self.base,
            chunks: &self.chunks,
            origin: 0,
            pages: &self.pages,
            blocks: &self.blocks,
            compact: &self.compact,
            others: &self.others,
        }
    }

    /// The table's memory, in bytes.
    pub fn size(&self) -> usize {
        size_of_val(&*self.pages)
            + size_of_val(&*self.chunks)
            + self.blocks.len()
            + size_of_val(&*self.compact)
            + size_of_val(&*self.others)
    }
}

struct OwnedBlocks(Vec<u8>);

impl BlockStore for OwnedBlocks {
    fn put(&mut self, at: usize, block: &[u8]) -> Option<()> {
        let end = at + block.len();
        self.0.resize(end.max(self.0.len()), 0);
        self.0[at..end].copy_from_slice(block);
        Some(())
    }

    fn get(&self, at: usize, len: usize) -> Option<&[u8]> {
        self.0.get(at..)?.get(..len)
    }
}

/// The code by link-time address.
impl Source for CodeBytes<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.at(offset).first_chunk().copied().ok_or(Fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        encode,
        function::{
            tests::function,
            ConvertedFunction, //
        },
        report::Report, //
    };
    use sframe::{
        rule::{
            Base,
            Location,
            SavedRbx, //
        },
        section::Search,
        table::{
            ExtraRow,
            CHUNK,
            MOST_ROWS,
            NUMBER,
            PAGE, //
        }, //
    };
    use std::collections::BTreeSet;

    #[test]
    fn extra_rows_are_found_between_the_functions_of_a_section() {
        let compact = Rule::amd64(Base::Sp, 8, Location::Unchanged);
        let section = encode::section(
            &[0x1000, 0x1200].map(|start| function(start, 0x10, &[(0, compact)])),
            &mut Report::default(),
        )
        .unwrap();
        let mut rule = Rule::amd64(Base::Sp, 64, Location::AtCfa(-16));
        rule.cfa.deref = true;
        rule.cfa.plus = 8;
        let row = |start, size| ExtraRow { start, size, rule }.write().unwrap();
        // The second row is truncated by a function, the third is outside of the code, the fourth
        // is empty.
        let extra_rows = [
            row(0x1010, 0x20),
            row(0x11f0, 0x20),
            row(0x3000, 0x10),
            row(0x1100, 0),
        ]
        .concat();
        let code = CodeBytes {
            segments: vec![(0x1000, 0x2000, &[])],
        };
        let owned = OwnedTable::new(&section, &extra_rows, &code).unwrap();
        let find = |at| owned.table().find(at);
        for (at, expected) in [
            (0xfff, None),
            (0x1000, Some(compact)),
            (0x100f, Some(compact)),
            (0x1010, Some(rule)),
            (0x102f, Some(rule)),
            (0x1030, None),
            (0x1100, None),
            (0x11f0, Some(rule)),
            (0x11ff, Some(rule)),
            (0x1200, Some(compact)),
            (0x1210, None),
            (0x3000, None),
        ] {
            assert_eq!(find(at), expected, "{at:#x}");
        }
        assert_eq!(
            OwnedTable::new(&section, &extra_rows[1..], &code).err(),
            Some(TableError::ExtraRow)
        );
    }

    #[test]
    fn rows_with_equal_words_differ_by_where_rbx_is() {
        // Compact and flexible rules, each in functions with each value of the bits.
        let compact = Rule::amd64(Base::Sp, 8, Location::Unchanged);
        let flexible = Rule::amd64(Base::Register(10), 16, Location::AtCfa(-16));
        let start = |number: usize| 0x1000 + 0x10 * number as u64;
        let expected: Vec<_> = (0..16)
            .map(|number| {
                let mut rule = if number < 8 { compact } else { flexible };
                rule.extra.rbx = SavedRbx(number as u8 % 8);
                rule
            })
            .collect();
        let functions: Vec<_> = (expected.iter().enumerate())
            .map(|(number, rule)| crate::function::ConvertedFunction {
                start: start(number),
                size: 0x10,
                repeat: None,
                signal: false,
                rbx: rule.extra.rbx,
                rows: vec![(0, *rule)],
            })
            .collect();
        let section = encode::section(&functions, &mut Report::default()).unwrap();
        let code = CodeBytes {
            segments: vec![(0x1000, 0x2000, &[])],
        };
        let owned = OwnedTable::new(&section, &[], &code).unwrap();
        let opened = Section::open(&section[..], 0, section.len() as u64).unwrap();
        for (number, rule) in expected.iter().enumerate() {
            let at = start(number) + 5;
            assert_eq!(owned.table().find(at), Some(*rule), "{number}");
            let found = opened.find(&section[..], at, Search::Bounded);
            assert_eq!(found, Ok(Some(*rule)), "{number}");
        }
    }

    /// A table of functions that begin at 0x1000, one behind the other, and its code.
    fn table_of(functions: &[ConvertedFunction]) -> OwnedTable {
        let section = encode::section(functions, &mut Report::default()).unwrap();
        let code = CodeBytes {
            segments: vec![(0x1000, 0x100_0000, &[])],
        };
        let owned = OwnedTable::new(&section, &[], &code).unwrap();
        assert!(owned.table().is_sound(0..owned.pages.len()));
        owned
    }

    fn rule(number: u32) -> Rule {
        Rule::amd64(Base::Sp, 8 * (1 + number as i32), Location::Unchanged)
    }

    #[test]
    fn each_byte_of_many_chunks_may_have_a_rule_of_its_own() {
        const SIZE: u32 = 256 * 150 + 77;
        // No two pages are equal.
        let number = |at: u32| at % 3001;
        let rows: Vec<_> = (0..SIZE).map(|at| (at, rule(number(at)))).collect();
        let owned = table_of(&[function(0x1000, SIZE, &rows)]);
        let find = |at: u32| owned.table().find(0x1000 + u64::from(at));
        for at in 0..SIZE {
            assert_eq!(find(at), Some(rule(number(at))), "{at:#x}");
        }
        assert_eq!((find(SIZE), owned.table().find(0xfff)), (None, None));
        // The blocks alone: three bytes for each row and for the end of each block, in lines of 64
        // bytes.
        assert!(owned.table().blocks.len() < SIZE as usize * 3 * 103 / 100);
    }

    #[test]
    fn no_search_takes_long() {
        // Pages with a row for each byte, for each second one, and so on.
        let mut functions = Vec::new();
        let mut expected = Vec::new();
        for step in 1..12 {
            let rows: Vec<_> = (0..512 / step).map(|n| (n * step, rule(n % 90))).collect();
            let start = 0x1000 + expected.len() as u64;
            for at in 0..512 {
                let (_, rule) = rows[rows.len().min((at / step) as usize + 1) - 1];
                expected.push(rule);
            }
            functions.push(function(start, 512, &rows));
        }
        let owned = table_of(&functions);
        let table = owned.table();
        let (mut dense, mut usual) = (0, 0);
        for (at, rule) in (0x1000..).zip(&expected) {
            let (found, searched) = table.search(at);
            assert_eq!(found, Some(*rule), "{at:#x}");
            assert!(searched < MOST_ROWS as u32, "{at:#x}: {searched}");
            // The fast path ends at dense blocks.
            let distance = at - table.base + 1;
            let fast = table.compact_rule(table.block(distance).unwrap(), distance);
            match fast.rule(table.others) {
                None => dense += 1,
                found => {
                    assert_eq!(found, Some(*rule), "{at:#x}");
                    usual += 1;
                }
            }
        }
        // A row for each fifth byte, and for less, makes a page dense.
        assert!(dense > 2000 && usual > 2500, "{dense} {usual}");
    }

    #[test]
    fn equal_ends_of_blocks_are_stored_once() {
        // The same five rows in each page, for a chunk and a half. In every third page only the
        // last three.
        let functions: Vec<_> = (0..100u32)
            .map(|page| {
                let first = if page % 3 == 0 { 3 } else { 0 };
                let rows = (first..5).map(|row| (40 * (row - first), rule(row)));
                let skipped = 40 * first;
                let start = 0x1000 + 256 * page + skipped;
                function(start.into(), 200 - skipped, &rows.collect::<Vec<_>>())
            })
            .collect();
        let owned = table_of(&functions);
        for page in 0..100u32 {
            for at in 0..256 {
                let is_covered = at < 200 && (page % 3 != 0 || at >= 120);
                let found = owned.table().find(u64::from(0x1000 + 256 * page + at));
                assert_eq!(found, is_covered.then(|| rule(at / 40)), "{page} {at}");
            }
        }
        assert!(
            owned.table().blocks.len() <= 128,
            "{}",
            owned.table().blocks.len()
        );
    }

    /// The next number of a sequence that looks random.
    fn drawn(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Functions in a row, with gaps, and the rule of each byte of their code.
    fn drawn_functions(state: &mut u64) -> (Vec<ConvertedFunction>, Vec<Option<Rule>>) {
        let mut functions = Vec::new();
        let mut expected = Vec::new();
        // Some programs have few different rows and many equal blocks, others have many rows.
        let (rules, most) = (1 + drawn(state) as u32 % 60, 1 + drawn(state) % 40);
        for _ in 0..drawn(state) % 400 {
            let gap = if drawn(state) % 8 == 0 {
                drawn(state) % 2000
            } else {
                0
            };
            expected.resize(expected.len() + gap as usize, None);
            let start = 0x1000 + expected.len() as u64;
            let mut rows = Vec::new();
            let mut at = 0u32;
            for _ in 0..=drawn(state) % most {
                let row = rule(drawn(state) as u32 % rules);
                rows.push((at, row));
                let len = 1 + drawn(state) as u32 % if drawn(state) % 16 == 0 { 900 } else { 30 };
                expected.resize(expected.len() + len as usize, Some(row));
                at += len;
            }
            functions.push(function(start, at, &rows));
        }
        (functions, expected)
    }

    #[test]
    fn drawn_tables_have_the_rules_of_their_functions() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let mut shared = 0;
        for _ in 0..60 {
            let (functions, expected) = drawn_functions(&mut state);
            let owned = table_of(&functions);
            let table = owned.table();
            for (at, rule) in expected.iter().enumerate() {
                assert_eq!(table.find(0x1000 + at as u64), *rule, "{at:#x}");
            }
            for at in [0, 0xfff, 0x1000 + expected.len() as u64, u64::MAX] {
                assert_eq!(table.find(at), None, "{at:#x}");
            }
            let mut seen = BTreeSet::new();
            for page in 0..table.pages.len() as u64 {
                let block = table.block(page * PAGE).unwrap();
                let (from, last) = (block - NUMBER, table.row(block, 0xff).unwrap());
                shared += usize::from(!seen.insert(last));
                // A block that fits into a line crosses no line.
                if last - from < 64 {
                    assert_eq!(from / 64, last / 64, "{from:#x}");
                }
            }
        }
        assert!(shared > 1000, "{shared}");
    }

    #[test]
    fn an_unchecked_search_of_a_sound_table_stays_in_it() {
        let mut state = 0x2545_f491_4f6c_dd1d;
        let (mut sound, mut unsound) = (0, 0);
        for _ in 0..3000 {
            let mut owned = table_of(
                &(0..80)
                    .map(|n| {
                        let rows: Vec<_> = (0..=n % 7).map(|row| (row * 9, rule(row))).collect();
                        function(u64::from(0x1000 + 300 * n), 290, &rows)
                    })
                    .collect::<Vec<_>>(),
            );
            // The numbers for which the blocks may be at the end of the addresses, and their sum at
            // the start.
            let origin =
                [0, 0xffff_8880_1234_5000, 0u64.wrapping_sub(20)][drawn(&mut state) as usize % 3];
            for chunk in &mut owned.chunks {
                *chunk = chunk.wrapping_add(origin);
            }
            for _ in 0..1 + drawn(&mut state) % 2 {
                let (number, place) = (drawn(&mut state), drawn(&mut state) as usize);
                match drawn(&mut state) % 6 {
                    0 => {
                        let place = place % owned.pages.len();
                        owned.pages[place] = number as u16;
                    }
                    1 => {
                        let small = number % 200;
                        let place = place % owned.chunks.len().max(1);
                        if let Some(chunk) = owned.chunks.get_mut(place) {
                            let (less, more) =
                                (chunk.wrapping_sub(small), chunk.wrapping_add(small));
                            *chunk = [number, less, more][number as usize % 3];
                        }
                    }
                    2 => owned.chunks.truncate(place % (owned.chunks.len() + 1)),
                    3 => {
                        let place = place % owned.blocks.len();
                        owned.blocks[place] = number as u8;
                    }
                    4 => {
                        let len = owned.blocks.len();
                        owned.blocks.truncate(len - place % 5);
                    }
                    _ => owned.compact.truncate(1 + place % owned.compact.len()),
                }
            }
            let table = Table {
                origin,
                ..owned.table()
            };
            if !table.is_sound(0..table.pages.len()) {
                unsound += 1;
                continue;
            }
            sound += 1;
            // The fast path of the module, which checks the number of the page only.
            for (page, at) in table.pages.iter().enumerate() {
                let address = table.chunks[page / CHUNK].wrapping_add(u64::from(*at));
                for low in 0..=u8::MAX {
                    let mut last = address.wrapping_sub(origin) as usize;
                    while table.blocks[last] < low {
                        last += 3;
                    }
                    let number = [table.blocks[last - 2], table.blocks[last - 1]];
                    assert!(usize::from(u16::from_le_bytes(number)) < table.compact.len());
                }
            }
        }
        assert!(sound > 100 && unsound > 1000, "{sound} {unsound}");
    }
}
