// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Builds tables: all rows of a file, checked once and laid out flat. An interrupt finds the rule
//! of a PC in constant time, and needs no further check of the data.
//!
//! Code is divided into pages of [`PAGE`] bytes. Each page has a block. A block holds the number of
//! the rule that covers the page's first byte. Then follows, in rising order, one row for each
//! address at which another rule begins: the low byte of the address, and the number of the rule.
//! Equal rules have equal numbers. So a lookup touches an entry of the page index and of the chunk
//! index, a block and a rule. A block that fits into one cache line never crosses a line. Later,
//! smaller blocks use the rest of a line.
//!
//! Each low byte is stored minus one, and is the last low byte that the rule before it covers. Low
//! byte 0 needs no row, because the block begins with the rule of the page's first byte. After the
//! last row is `LAST`, up to which the last rule covers the page. So a block needs no length, and a
//! block that equals the end of another block is stored only once.
//!
//! A page with more than [`MOST_ROWS`] rows has a dense block.
//!
//! An entry of the page index has 16 bits. It counts from an entry of the chunk index, which
//! [`CHUNK`] pages share. Blocks of these pages therefore have to lie near each other. The entry of
//! the chunk index is a position 16 KiB before the end of all blocks at the beginning of the chunk.
//! No block of the chunk is placed before that position, or found there again. So the entries of
//! the pages fit into 16 bits, also if each byte of the code has a rule of its own.
//!
//! The addresses of a table are any numbers that identify the code of a file: link-time addresses,
//! or offsets in the file. Segments that are far apart in memory are close to each other by
//! offsets.
//!
//! A build has three steps: [`Functions::collect`] reads all functions, [`plan`] computes the range
//! of their code, and [`fill`] reads all rows and writes the table. The caller provides the memory.
//! The section's length and the size of the range bound the time of each step; [`MAX_SPAN`] bounds
//! the size of the range.

use crate::sframe::{
    arch::plt,
    format::{
        bytes::Source,
        error::Error,
        fde::Function,
        fre::{
            RowIter,
            UndecodedRow, //
        },
        section::Section, //
    },
    rule::{
        Base,
        Location,
        Rule, //
    },
    table::{
        compact_rule::CompactRule,
        error::TableError,
        extra_row::{
            ExtraRow,
            EXTRA_ROW_SIZE, //
        },
        lookup::{
            CHUNK,
            DENSE,
            LAST,
            MOST_ROWS,
            NUMBER,
            PAGE,
            ROW, //
        },
        work::{
            Ask,
            Work, //
        }, //
    }, //
};

/// The largest range of code of a table, in bytes, from the first function's start to the last
/// function's end. The code of the largest programs spans a quarter of this range.
pub const MAX_SPAN: u64 = 1 << 30;

/// The largest number of different rules of a table.
pub const MAX_RULES: usize = u16::MAX as usize;

/// The number that stands for no rule, for code without a row.
const NO_RULE: u16 = 0;

/// A function or an extra row, in the form in which the build sorts them: 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionSpan {
    /// The address of the function's first byte, in the table's addresses.
    start: u64,
    /// The function's size, in bytes.
    size: u32,
    /// The number of the function's entry in its section, or of the extra row.
    index: u32,
    /// The offset of the function's section, in bytes from the first section; [`EXTRA_ROW`] for an
    /// extra row.
    section: u32,
}

impl FunctionSpan {
    /// The sort key: the address, then the section and the entry. One number, because a comparison
    /// of numbers is smaller than one of tuples.
    fn key(&self) -> u128 {
        (u128::from(self.start) << 64) | (u128::from(self.section) << 32) | u128::from(self.index)
    }
}

/// The value of `FunctionSpan::section` for an extra row.
const EXTRA_ROW: u32 = u32::MAX;

/// The number of functions in all sections, plus the number of extra rows. Functions and extra rows
/// that cover no code count, too.
///
/// # Errors
///
/// The errors of [`Section::next`]: a header cannot be read, or is malformed or unsupported. The
/// errors of [`Work::step`].
pub fn count<S: Source + ?Sized, A: Ask>(
    bytes: &S,
    first: &Section,
    extra_rows: &[u8],
    work: &mut Work<A>,
) -> Result<usize, TableError> {
    let mut count = extra_rows.len() / EXTRA_ROW_SIZE;
    let mut section = Some(*first);
    while let Some(this) = section {
        work.step()?;
        count = count.saturating_add(this.num_fdes() as usize);
        section = next_section(bytes, &this)?;
    }
    Ok(count)
}

/// [`Section::next`]. Not inlined, because it is called in several places.
#[inline(never)]
fn next_section<S: Source + ?Sized>(
    bytes: &S,
    section: &Section,
) -> Result<Option<Section>, Error> {
    section.next(bytes)
}

/// The functions of a file, sorted by address.
#[derive(Debug)]
pub struct Functions<'a> {
    first: Section,
    extra_rows: &'a [u8],
    places: &'a [FunctionSpan],
}

impl<'a> Functions<'a> {
    /// Reads the functions of all sections and the encoded extra rows into `buffer`, and sorts
    /// them. `first` is the first section, and `buffer` has to hold [`count`] functions. `place`
    /// converts the addresses of a function's first and last byte to the address of the first byte
    /// in the table. Functions with size 0, and functions that `place` returns `None` for, are left
    /// out: linkers leave entries of discarded code.
    ///
    /// # Errors
    ///
    /// [`TableError::Section`], [`TableError::ExtraRow`], [`TableError::BufferTooSmall`].
    pub fn collect<S: Source + ?Sized, A: Ask>(
        bytes: &S,
        first: &Section,
        extra_rows: &'a [u8],
        buffer: &'a mut [FunctionSpan],
        place: impl Fn(u64, u64) -> Option<u64>,
        work: &mut Work<A>,
    ) -> Result<Functions<'a>, TableError> {
        let mut used = 0usize;
        let mut put = |at: u64, function: FunctionSpan, work: &mut Work<A>| {
            work.step()?;
            let size = function.size;
            let last = at.wrapping_add(u64::from(size)).wrapping_sub(1);
            if size == 0 || last < at {
                return Ok(());
            }
            if let Some(start) = place(at, last) {
                *buffer.get_mut(used).ok_or(TableError::BufferTooSmall)? =
                    FunctionSpan { start, ..function };
                used = used.wrapping_add(1);
            }
            Ok::<_, TableError>(())
        };
        let mut section = Some(*first);
        while let Some(this) = section {
            work.step()?;
            for index in 0..this.num_fdes() {
                let function = this.function(bytes, index)?;
                let place = FunctionSpan {
                    start: 0,
                    size: function.size(),
                    index,
                    section: this.offset(),
                };
                put(function.start(), place, work)?;
            }
            section = next_section(bytes, &this)?;
        }
        let mut rest = extra_rows;
        let mut index = 0u32;
        while let Some((row, behind)) = rest.split_first_chunk() {
            let row = ExtraRow::read(row)?;
            let place = FunctionSpan {
                start: 0,
                size: row.size,
                index,
                section: EXTRA_ROW,
            };
            put(row.start, place, work)?;
            index = index.wrapping_add(1);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(TableError::ExtraRow);
        }
        let places = buffer.get_mut(..used).ok_or(TableError::BufferTooSmall)?;
        sort(places, work)?;
        Ok(Functions {
            first: *first,
            extra_rows,
            places,
        })
    }

    /// The first address of the functions, and the address after their last byte; both 0 if there
    /// are no functions.
    fn span(&self) -> Result<(u64, u64), TableError> {
        let start = self.places.first().map_or(0, |place| place.start);
        let end = self
            .places
            .iter()
            .map(|place| place.start.saturating_add(place.size.into()))
            .max()
            .unwrap_or(0);
        if end.wrapping_sub(start) > MAX_SPAN {
            return Err(TableError::Span);
        }
        Ok((start, end))
    }

    /// Calls `change` for each address at which the rule may change, by rising address, with the
    /// rule's number in `rules`. Where functions overlap, the function that begins last covers the
    /// code. After that function's end, up to the next function, there is no rule.
    fn changes<S, C, A>(
        &self,
        bytes: &S,
        code: &C,
        rules: &mut Rules<'_>,
        work: &mut Work<A>,
        mut change: impl FnMut(u64, u16, &mut Work<A>) -> Result<(), TableError>,
    ) -> Result<(), TableError>
    where
        S: Source + ?Sized,
        C: Source + ?Sized,
        A: Ask,
    {
        let mut section = self.first;
        let mut places = self.places;
        while let Some((place, behind)) = places.split_first() {
            places = behind;
            work.step()?;
            let own_end = place.start.saturating_add(place.size.into());
            let end = behind
                .first()
                .map_or(own_end, |next| next.start.min(own_end));
            if place.section == EXTRA_ROW {
                let number = rules.number(Some(self.extra_row(place.index)?.rule), work)?;
                change(place.start, number, work)?;
            } else {
                if place.section != section.offset() {
                    let next = self.section(bytes, &section, place.section, work)?;
                    if !next.decodes_like(&section) {
                        rules.known = KnownRows::NONE;
                    }
                    section = next;
                }
                let function = section.function(bytes, place.index)?;
                let rows = SectionRows {
                    bytes,
                    code,
                    section: &section,
                    function: &function,
                    len: end.wrapping_sub(place.start),
                };
                rows.all(rules, work, |offset, number, work| {
                    change(place.start.saturating_add(offset), number, work)
                })?;
            }
            change(end, NO_RULE, work)?;
        }
        Ok(())
    }

    /// Decodes extra row `index`, counted from zero.
    fn extra_row(&self, index: u32) -> Result<ExtraRow, TableError> {
        let at = (index as usize).saturating_mul(EXTRA_ROW_SIZE);
        let row = self.extra_rows.get(at..).and_then(<[u8]>::first_chunk);
        ExtraRow::read(row.ok_or(TableError::ExtraRow)?)
    }

    /// Finds the section at `offset`, in bytes from the first section. Linkers put code and
    /// sections in one order, so the wanted section is mostly the section after `current`.
    fn section<S: Source + ?Sized, A: Ask>(
        &self,
        bytes: &S,
        current: &Section,
        offset: u32,
        work: &mut Work<A>,
    ) -> Result<Section, TableError> {
        let is_behind = current.offset() < offset;
        let mut section = if is_behind { *current } else { self.first };
        while section.offset() != offset {
            work.step()?;
            match next_section(bytes, &section)? {
                Some(next) => section = next,
                None => break,
            }
        }
        Ok(section)
    }
}

/// The rules of the first `len` bytes of a function.
struct SectionRows<'a, S: ?Sized, C: ?Sized> {
    bytes: &'a S,
    code: &'a C,
    section: &'a Section,
    function: &'a Function,
    len: u64,
}

impl<S: Source + ?Sized, C: Source + ?Sized> SectionRows<'_, S, C> {
    /// Calls `change` for each change of the rule, with the distance from the function's start, in
    /// bytes, and the rule's number in `rules`.
    fn all<A: Ask>(
        &self,
        rules: &mut Rules<'_>,
        work: &mut Work<A>,
        mut change: impl FnMut(u64, u16, &mut Work<A>) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let block = match self.function.repeat() {
            Some(block) => u32::from(block.get()),
            None => self.function.size(),
        };
        let mut from = 0u64;
        while from < self.len {
            let at = self.function.start().saturating_add(from);
            // The rows that linkers write for PLTs are sometimes wrong. The code of a PLT is not
            // wrong.
            let stub = self.function.stub(at);
            let stub = stub.and_then(|(stub, _)| {
                work.ask_soon();
                self.code.read::<{ plt::STUB }>(stub).ok()
            });
            let stub = stub.filter(|stub| plt::rule_of_stub(stub, 0).is_some());
            let mut rows = self.section.rows(self.bytes, self.function);
            // No row covers the code before the first row. A function with a rule without rows has
            // no rows.
            let rule = match &stub {
                Some(stub) => plt::rule_of_stub(stub, 0),
                None => self.section.rule_without_rows(self.function),
            };
            let (mut offset, mut number) = (0, rules.number(rule, work)?);
            loop {
                work.step()?;
                let distance = from.saturating_add(offset.into());
                if offset < block && distance < self.len {
                    change(distance, number, work)?;
                }
                if let Some(stub) = &stub {
                    offset = offset.wrapping_add(1);
                    if offset >= plt::STUB as u32 {
                        break;
                    }
                    number = rules.number(plt::rule_of_stub(stub, offset), work)?;
                } else {
                    let Some(row) = rows.next_undecoded() else {
                        break;
                    };
                    let row = row?;
                    offset = row.start;
                    number = rules.number_of_row(&rows, &row, work)?;
                }
            }
            from = from.saturating_add(u64::from(block.max(1)));
        }
        Ok(())
    }
}

/// Sorts by address, then by section and entry. The method is heapsort, because the library's sort
/// can panic. Most inputs need no sort, because the linker has sorted the functions.
fn sort<A: Ask>(places: &mut [FunctionSpan], work: &mut Work<A>) -> Result<(), TableError> {
    if places.is_sorted_by_key(FunctionSpan::key) {
        return Ok(());
    }
    let len = places.len();
    let mut root = len / 2;
    let mut end = len;
    while end > 1 {
        if root > 0 {
            root = root.wrapping_sub(1);
        } else {
            end = end.wrapping_sub(1);
            exchange(places, 0, end);
        }
        let mut at = root;
        loop {
            work.step()?;
            let mut child = at.saturating_mul(2).saturating_add(1);
            if child >= end {
                break;
            }
            let other = child.wrapping_add(1);
            if other < end && key_at(places, child) < key_at(places, other) {
                child = other;
            }
            if key_at(places, at) >= key_at(places, child) {
                break;
            }
            exchange(places, at, child);
            at = child;
        }
    }
    Ok(())
}

fn key_at(places: &[FunctionSpan], at: usize) -> u128 {
    places.get(at).map_or(0, FunctionSpan::key)
}

fn exchange(places: &mut [FunctionSpan], a: usize, b: usize) {
    if let (Some(first), Some(second)) = (places.get(a).copied(), places.get(b).copied()) {
        if let Some(place) = places.get_mut(a) {
            *place = second;
        }
        if let Some(place) = places.get_mut(b) {
            *place = first;
        }
    }
}

/// The number of rows that a build remembers, as a power of two.
const KNOWN_ROWS_LOG2: u32 = 7;

/// Rows that need not be decoded again, each in the slot of the hash of its words.
#[derive(Debug)]
struct KnownRows {
    /// See [`RowIter::words`]; 0 stands for no row.
    words: [u64; 1 << KNOWN_ROWS_LOG2],
    /// The numbers of the rows' rules.
    numbers: [u16; 1 << KNOWN_ROWS_LOG2],
}

impl KnownRows {
    const NONE: KnownRows = KnownRows {
        words: [0; 1 << KNOWN_ROWS_LOG2],
        numbers: [NO_RULE; 1 << KNOWN_ROWS_LOG2],
    };
}

/// The different rules, by number. Number 0 stands for no rule.
#[derive(Debug)]
pub struct Rules<'a> {
    compact: &'a mut [CompactRule],
    others: &'a mut [Rule],
    used: usize,
    used_others: usize,
    /// The hash table: numbers of rules; 0 is a free slot.
    numbers: &'a mut [u16],
    known: KnownRows,
    /// The key of the hash. The author of a section does not know the key, and so cannot choose
    /// rules that probe many slots.
    key: [u64; 2],
}

impl<'a> Rules<'a> {
    /// An empty set of rules. The caller provides `others` as long as `compact`, `numbers` longer
    /// than `compact` and all zero, and a random `key`.
    pub fn new(
        compact: &'a mut [CompactRule],
        others: &'a mut [Rule],
        numbers: &'a mut [u16],
        key: [u64; 2],
    ) -> Rules<'a> {
        let mut new = Rules {
            compact,
            others,
            used: 0,
            used_others: 0,
            numbers,
            known: KnownRows::NONE,
            key,
        };
        let words = [CompactRule::NONE, CompactRule::DENSE];
        for (slot, word) in new.compact.iter_mut().zip(words) {
            *slot = word;
        }
        new.used = words.len();
        new
    }

    /// All rules, by number.
    pub fn compact(&self) -> &[CompactRule] {
        self.compact.get(..self.used).unwrap_or_default()
    }

    /// The rules that are not compact.
    pub fn others(&self) -> &[Rule] {
        self.others.get(..self.used_others).unwrap_or_default()
    }

    /// The number of the rule of a row. Most rows have the words of an earlier row.
    #[inline]
    fn number_of_row<S: Source + ?Sized, A: Ask>(
        &mut self,
        rows: &RowIter<'_, S>,
        row: &UndecodedRow,
        work: &mut Work<A>,
    ) -> Result<u16, TableError> {
        let words = rows.words(row).unwrap_or(0);
        let slot = words.wrapping_mul(MIXER).wrapping_shr(64 - KNOWN_ROWS_LOG2) as usize;
        let known = &mut self.known;
        let slots = (known.words.get(slot), known.numbers.get(slot));
        if let (Some(there), Some(number)) = slots {
            if *there == words && words != 0 {
                return Ok(*number);
            }
        }
        let number = self.number(Some(rows.decode(row)?), work)?;
        let known = &mut self.known;
        let slots = (known.words.get_mut(slot), known.numbers.get_mut(slot));
        if let (Some(there), Some(its)) = slots {
            (*there, *its) = (words, number);
        }
        Ok(number)
    }

    /// The number of a rule; [`NO_RULE`] for no rule.
    #[inline(never)]
    fn number<A: Ask>(
        &mut self,
        rule: Option<Rule>,
        work: &mut Work<A>,
    ) -> Result<u16, TableError> {
        let Some(rule) = rule else {
            return Ok(NO_RULE);
        };
        let compact = CompactRule::of(&rule);
        let hash = match compact {
            Some(compact) => mixed(self.key, 0, compact.bits()),
            None => mixed_parts(self.key, &rule),
        };
        let len = self.numbers.len();
        let mut at = (hash >> 32).wrapping_mul(len as u64) as usize;
        at = at.checked_shr(32).unwrap_or(0);
        for _ in 0..len {
            work.step()?;
            let number = *self.numbers.get(at).ok_or(TableError::Rules)?;
            if number == NO_RULE {
                let number = self.add(rule, compact)?;
                *self.numbers.get_mut(at).ok_or(TableError::Rules)? = number;
                return Ok(number);
            }
            let there = self.compact.get(usize::from(number)).copied();
            let is_it = match compact {
                Some(_) => there == compact,
                None => there.and_then(|there| there.other_rule(self.others)) == Some(&rule),
            };
            if is_it {
                return Ok(number);
            }
            at = at.wrapping_add(1);
            if at >= len {
                at = 0;
            }
        }
        Err(TableError::Rules)
    }

    fn add(&mut self, rule: Rule, compact: Option<CompactRule>) -> Result<u16, TableError> {
        let number = u16::try_from(self.used).map_err(|_| TableError::Rules)?;
        let slot = self.compact.get_mut(self.used).ok_or(TableError::Rules)?;
        *slot = match compact {
            Some(compact) => compact,
            None => {
                let other = u16::try_from(self.used_others).map_err(|_| TableError::Rules)?;
                let slot = self.others.get_mut(self.used_others);
                *slot.ok_or(TableError::Rules)? = rule;
                self.used_others = self.used_others.wrapping_add(1);
                CompactRule::other(other)
            }
        };
        self.used = self.used.wrapping_add(1);
        Ok(number)
    }
}

/// A factor whose product has upper bits that depend on all lower bits: 2^64 divided by the golden
/// ratio.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A keyed hash of `part` and of `hash`, the hash of the previous parts. The function combines both
/// halves of a product.
#[inline]
fn mixed(key: [u64; 2], hash: u64, part: u64) -> u64 {
    let [first, second] = key;
    let product =
        u128::from(hash.rotate_left(5) ^ part ^ first).wrapping_mul(u128::from(second | 1));
    let high = product.wrapping_shr(64) as u64;
    // A second product, so that the upper bits depend on all bits of `part`.
    (high ^ product as u64 ^ second).wrapping_mul(MIXER)
}

/// A keyed hash of a location and of `hash`.
#[inline(never)]
fn mixed_location(key: [u64; 2], hash: u64, location: Location) -> u64 {
    let (kind, base, offset) = match location {
        Location::Unchanged => (0, Base::Sp, 0),
        Location::Undefined => (1, Base::Sp, 0),
        Location::AtCfa(offset) => (2, Base::Sp, offset),
        Location::OfCfa(offset) => (3, Base::Sp, offset),
        Location::At(base, offset) => (4, base, offset),
        Location::Of(base, offset) => (5, base, offset),
    };
    let base: u16 = match base {
        Base::Sp => 256,
        Base::Fp => 257,
        Base::Register(number) => number.into(),
    };
    let part = u64::from(offset as u32) | (u64::from(base) << 32) | (kind << 48);
    mixed(key, hash, part)
}

/// The keyed hash of a rule that is not compact.
fn mixed_parts(key: [u64; 2], rule: &Rule) -> u64 {
    let flags = u64::from(rule.mangled)
        | (u64::from(rule.signal) << 1)
        | (u64::from(rule.extra.deref_twice) << 2)
        | (u64::from(rule.extra.changes_stack) << 3)
        | (u64::from(rule.cfa.deref) << 4)
        | (u64::from(rule.cfa.plus as u8) << 8);
    let cfa = Location::Of(rule.cfa.base, rule.cfa.offset);
    let hash = mixed_location(key, flags, cfa);
    let hash = mixed_location(key, hash, rule.ra);
    mixed_location(key, hash, rule.fp)
}

/// The range of code that a table covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The address from which distances count (see [`Table`](crate::sframe::table::lookup::Table)),
    /// in the table's addresses.
    pub base: u64,
    /// The length of the page index, in pages.
    pub pages: usize,
    /// The size of the code, in bytes from `base` on, as a multiple of [`PAGE`].
    pub span: u64,
}

impl Plan {
    /// The length of the chunk index, in chunks.
    pub const fn chunks(&self) -> usize {
        self.pages.div_ceil(CHUNK)
    }
}

/// Computes the range of code of the functions.
///
/// # Errors
///
/// [`TableError::Span`].
pub fn plan(functions: &Functions<'_>) -> Result<Plan, TableError> {
    let (start, end) = functions.span()?;
    let base = start & !(PAGE - 1);
    let size = end.wrapping_sub(base);
    Ok(Plan {
        base,
        // The distance of the last byte is the size.
        pages: (size / PAGE).wrapping_add(1) as usize,
        span: size.div_ceil(PAGE).wrapping_mul(PAGE),
    })
}

/// The size of a cache line, in bytes.
const LINE: u32 = 64;

/// The number of bytes by which the blocks grow for one page at most: lines for a block with a row
/// for each byte.
const MOST_OF_PAGE: u32 = (PAGE as u32 * ROW as u32).next_multiple_of(LINE);

/// How far the blocks of a chunk may lie before the end of all blocks at the beginning of the
/// chunk, in bytes. The distance of each block of the chunk from there fits into 16 bits, however
/// large the later blocks become.
const MOST_BACK: u32 = u16::MAX as u32 - NUMBER as u32 - CHUNK as u32 * MOST_OF_PAGE;

/// The number of positions of blocks that a build remembers, to store equal ends of blocks once
/// only: a power of two.
pub const SHARED: usize = 4096;

/// The most rows of an end of a block that other blocks may share, unless it is a whole block.
const MOST_SHARED: usize = 4;

/// The memory of the blocks of a table that is being built.
pub trait BlockStore {
    /// Writes a block. `at` is the block's position, in bytes from the start of the first block.
    /// `None` if there is no memory for the block; the build then ends with [`TableError::Memory`].
    fn put(&mut self, at: usize, block: &[u8]) -> Option<()>;

    /// The `len` bytes at `at`, a position in a block that was written.
    fn get(&self, at: usize, len: usize) -> Option<&[u8]>;
}

/// The memory of the indexes of a table that is being built. The caller provides it.
#[derive(Debug)]
pub struct Indexes<'a> {
    /// The page index: [`Plan::pages`] entries.
    pub pages: &'a mut [u16],
    /// The chunk index: [`Plan::chunks`] entries. They count from the start of the first block.
    pub chunks: &'a mut [u64],
    /// The positions of earlier ends of blocks, by hash; 0 stands for no position.
    pub shared: &'a mut [u64; SHARED],
}

impl Indexes<'_> {
    /// The slot in `shared` for a hash.
    #[inline]
    fn shared(&mut self, hash: u64) -> Option<&mut u64> {
        let slot = hash.wrapping_shr(u64::BITS.wrapping_sub(SHARED.trailing_zeros()));
        self.shared.get_mut(slot as usize)
    }
}

/// Reads all rows, collects the different rules, and writes the table that [`plan`] has planned:
/// the indexes, and to `blocks` the blocks. The layout assumes that the first block starts at a
/// multiple of 64. Blocks are written in no order of positions, and bytes between the blocks have
/// no meaning. `code` is the loaded image, by the addresses that the section was opened with: the
/// build uses the rows of a PLT only if the PLT's code has no known form. Returns the number of
/// rows in the table, without rows that begin with a page.
///
/// # Errors
///
/// See [`TableError`].
#[allow(clippy::too_many_arguments)]
pub fn fill<S, C, A>(
    bytes: &S,
    code: &C,
    functions: &Functions<'_>,
    rules: &mut Rules<'_>,
    plan: &Plan,
    indexes: &mut Indexes<'_>,
    work: &mut Work<A>,
    blocks: &mut impl BlockStore,
) -> Result<usize, TableError>
where
    S: Source + ?Sized,
    C: Source + ?Sized,
    A: Ask,
{
    indexes.shared.fill(0);
    let mut filler = Filler {
        base: plan.base,
        indexes,
        blocks,
        page: 0,
        block: [[0; ROW]; PAGE as usize],
        len: 0,
        numbers: [[0; NUMBER]; PAGE as usize],
        holds: NO_RULE,
        next: (plan.base, NO_RULE),
        end: 0,
        rests: Rests::NONE,
        chunk: 0,
        rows: 0,
    };
    functions.changes(bytes, code, rules, work, |at, number, work| {
        filler.change(at, number, work)
    })?;
    // Writes the row of the last change.
    filler.change(u64::MAX, NO_RULE, work)?;
    while filler.page < filler.indexes.pages.len() {
        work.step()?;
        filler.close().ok_or(TableError::Memory)?;
    }
    Ok(filler.rows)
}

struct Filler<'a, 'b, B> {
    base: u64,
    indexes: &'a mut Indexes<'b>,
    blocks: &'a mut B,
    /// The number of the current page.
    page: usize,
    /// The block of the current page, and its number of rows so far.
    block: [[u8; ROW]; PAGE as usize],
    len: usize,
    /// The numbers of the rules of the bytes of a page with a dense block.
    numbers: [[u8; NUMBER]; PAGE as usize],
    /// The number of the rule up to the next change.
    holds: u16,
    /// The address of the last change, and the number of the rule from that address on. `holds` is
    /// valid up to there.
    next: (u64, u16),
    /// The end of all cache lines that contain a block, in bytes from the first block.
    end: u32,
    rests: Rests,
    /// The lowest position for a block of the current chunk, in bytes from the first block. The
    /// entries of the chunk's pages count from there.
    chunk: u32,
    /// The number of rows so far.
    rows: usize,
}

/// The number of rests of lines that are remembered for each number of rows that have space in a
/// rest.
const RESTS: usize = 6;

/// The most rows that have space in the rest of a line: one row of the line is used.
const MOST_LEFT: usize = (LINE as usize - ROW) / ROW;

/// The rests of lines that are remembered: cache lines whose last bytes are free.
struct Rests {
    /// The positions of the first free bytes of rests with space for at least one row, at least two
    /// rows, and so on. Of each array, the first ones are in use.
    places: [[u32; RESTS]; MOST_LEFT],
    /// How many elements of each of these arrays are in use.
    used: [u8; MOST_LEFT],
    /// For each of these arrays a bit: whether an element is in use.
    some: u32,
}

impl Rests {
    const NONE: Rests = Rests {
        places: [[0; RESTS]; MOST_LEFT],
        used: [0; MOST_LEFT],
        some: 0,
    };

    /// Takes a rest that has space for `rows` rows and begins at `lowest` or above; one with little
    /// more space, if there is a choice. Forgets the rests below `lowest` that it meets, so that a
    /// call meets a rest once only.
    fn take(&mut self, rows: usize, lowest: u32) -> Option<u32> {
        if rows > MOST_LEFT {
            return None;
        }
        let enough = u32::MAX.wrapping_shl(rows.wrapping_sub(1) as u32);
        loop {
            let number = (self.some & enough).trailing_zeros();
            let used = self.used.get_mut(number as usize)?;
            *used = used.wrapping_sub(1);
            if *used == 0 {
                self.some ^= 1u32.wrapping_shl(number);
            }
            let places = self.places.get(number as usize)?;
            let at = *places.get(usize::from(*used))?;
            if at >= lowest {
                return Some(at);
            }
        }
    }

    /// Remembers the rest of a line from `at` on. If there are too many rests with as much space,
    /// the rest counts as one with less space.
    fn put(&mut self, at: u32) {
        let rows = (at.wrapping_neg() % LINE) as usize / ROW;
        let mut number = rows.min(MOST_LEFT);
        while let Some(less) = number.checked_sub(1) {
            number = less;
            let slots = (self.used.get_mut(number), self.places.get_mut(number));
            if let (Some(used), Some(places)) = slots {
                if let Some(place) = places.get_mut(usize::from(*used)) {
                    *place = at;
                    *used = used.wrapping_add(1);
                    self.some |= 1u32.wrapping_shl(number as u32);
                    return;
                }
            }
        }
    }
}

/// The hash of a block, from its last row on. `hash` is the hash of the rows after `row`.
#[inline]
fn hash_of_rows(hash: u64, row: [u8; ROW]) -> u64 {
    let [a, b, low] = row;
    (hash ^ u64::from(u32::from_le_bytes([a, b, low, 1]))).wrapping_mul(MIXER)
}

impl<B: BlockStore> Filler<'_, '_, B> {
    /// Takes a change of the rule at `at`. Drops changes to the rule that is already valid, and all
    /// but the last change at an address. Not inlined, because it is called in several places.
    #[inline(never)]
    fn change<A: Ask>(
        &mut self,
        at: u64,
        number: u16,
        work: &mut Work<A>,
    ) -> Result<(), TableError> {
        let (last, next) = self.next;
        self.next = (at, number);
        if at == last || next == self.holds {
            return Ok(());
        }
        let distance = last.wrapping_sub(self.base).wrapping_add(1);
        let page = (distance / PAGE) as usize;
        // The last function may end at the end of the last page.
        if page >= self.indexes.pages.len() {
            return Ok(());
        }
        while self.page < page {
            work.step()?;
            self.close().ok_or(TableError::Memory)?;
        }
        if let Some(low) = ((distance % PAGE) as u8).checked_sub(1) {
            self.up_to(low).ok_or(TableError::BufferTooSmall)?;
            self.rows = self.rows.saturating_add(1);
        }
        self.holds = next;
        Ok(())
    }

    /// Ends the block of the current page, and begins the next page. `None` if there is no memory
    /// for the block.
    fn close(&mut self) -> Option<()> {
        if self.page % CHUNK == 0 {
            self.chunk = self.end.saturating_sub(MOST_BACK);
            *self.indexes.chunks.get_mut(self.page / CHUNK)? = self.chunk.into();
        }
        self.up_to(LAST)?;
        if self.len > MOST_ROWS {
            self.make_dense()?;
        }
        let at = self.put_block()?;
        let first_low = at.checked_add(NUMBER as u32)?;
        let distance = u16::try_from(first_low.wrapping_sub(self.chunk)).ok()?;
        *self.indexes.pages.get_mut(self.page)? = distance;
        self.page = self.page.wrapping_add(1);
        self.len = 0;
        Some(())
    }

    /// Adds a row to the current block. `None` if the block has a row for each byte.
    fn up_to(&mut self, low: u8) -> Option<()> {
        let [a, b] = self.holds.to_le_bytes();
        *self.block.get_mut(self.len)? = [a, b, low];
        self.len = self.len.wrapping_add(1);
        Some(())
    }

    /// Makes the current block a dense one.
    fn make_dense(&mut self) -> Option<()> {
        let mut rows = self.block.iter().take(self.len);
        let mut row = rows.next()?;
        for (number, low) in self.numbers.iter_mut().zip(0..=LAST) {
            while row[2] < low {
                row = rows.next()?;
            }
            *number = [row[0], row[1]];
        }
        let [a, b] = DENSE.to_le_bytes();
        *self.block.first_mut()? = [a, b, LAST];
        let behind = self.block.get_mut(1..)?.as_flattened_mut();
        let numbers = self.numbers.as_flattened();
        behind.get_mut(..numbers.len())?.copy_from_slice(numbers);
        self.len = numbers.len().div_ceil(ROW).wrapping_add(1);
        Some(())
    }

    /// Writes the current block, or finds a block that ends with it. Returns the block's position.
    /// `shared` may hold the position of a block with another length and the same hash. Its bytes,
    /// and any bytes after it, then differ from the current block: in a block the last low byte is
    /// `LAST`, and no other one is.
    fn put_block(&mut self) -> Option<u32> {
        let block = self.block.get(..self.len).unwrap_or_default();
        // The hashes of the last row, of the last two rows, and so on.
        let mut hashes = [0; MOST_SHARED];
        let mut rows = block.iter().rev();
        let mut hash = 0;
        for (there, row) in hashes.iter_mut().zip(&mut rows) {
            hash = hash_of_rows(hash, *row);
            *there = hash;
        }
        for row in rows {
            hash = hash_of_rows(hash, *row);
        }
        let block = block.as_flattened();
        let there = self.indexes.shared(hash).map_or(0, |at| *at as u32);
        if there != 0
            && there >= self.chunk
            && self.blocks.get(there as usize, block.len()) == Some(block)
        {
            return Some(there);
        }
        let at = self.position()?;
        let block = self.block.get(..self.len).unwrap_or_default();
        self.blocks.put(at as usize, block.as_flattened())?;
        if let Some(slot) = self.indexes.shared(hash) {
            *slot = at.into();
        }
        let end = at.wrapping_add(self.len.wrapping_mul(ROW) as u32);
        let mut from = end;
        for hash in hashes.iter().take(self.len) {
            from = from.wrapping_sub(ROW as u32);
            // The end of a long block may cross a line, where a block of its own would not.
            if from / LINE != end.wrapping_sub(1) / LINE {
                break;
            }
            if let Some(slot) = self.indexes.shared(*hash) {
                *slot = from.into();
            }
        }
        Some(at)
    }

    /// The position for the current block: in the remembered rest of a line that has space and
    /// begins within reach of the chunk, if there is one; otherwise in a new line. `None` if the
    /// position or the end does not fit into 32 bits.
    fn position(&mut self) -> Option<u32> {
        let at = self.rests.take(self.len, self.chunk).unwrap_or(self.end);
        let behind = at.checked_add(self.len.wrapping_mul(ROW) as u32)?;
        self.end = self.end.max(behind.checked_next_multiple_of(LINE)?);
        self.rests.put(behind);
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::table::compact_rule::tests::drawn;
    use std::{
        collections::BTreeMap,
        vec::Vec, //
    };

    #[test]
    fn a_rest_is_taken_once_and_has_space() {
        let mut state = 88_172_645_463_325_252;
        let mut rests = Rests::NONE;
        // The rests that were put and not taken, by position, with the rows that have space there.
        let mut all = BTreeMap::new();
        let (mut lowest, mut taken) = (0u32, 0);
        for line in 1..200_000u32 {
            let used = 1 + drawn(&mut state) as u32 % 63;
            let at = line * LINE + used;
            rests.put(at);
            all.insert(at, (LINE - used) as usize / ROW);
            if drawn(&mut state) % 64 == 0 {
                lowest = at.saturating_sub(drawn(&mut state) as u32 % 0x4000);
            }
            let rows = 1 + drawn(&mut state) as usize % 30;
            let Some(at) = rests.take(rows, lowest) else {
                continue;
            };
            let space = all.remove(&at);
            assert!(at >= lowest && space >= Some(rows), "{at:#x} {space:?}");
            taken += 1;
        }
        assert!(taken > 50_000, "{taken}");
        // What is left is found, each rest once, and nothing else.
        let left: Vec<_> = core::iter::from_fn(|| rests.take(1, 0)).collect();
        assert!(left.iter().all(|at| all.remove(at).is_some()));
        assert_eq!((rests.some, rests.used), (0, [0; MOST_LEFT]));
    }

    #[test]
    fn the_rest_with_the_least_space_is_taken() {
        let mut rests = Rests::NONE;
        // Space for 20, 5 and 7 rows, and for no row.
        for at in [3, 64 + 49, 128 + 43, 192 + 62] {
            rests.put(at);
        }
        let mut take = |rows| rests.take(rows, 0);
        assert_eq!(
            [take(21), take(6), take(1), take(1), take(1)],
            [None, Some(128 + 43), Some(64 + 49), Some(3), None]
        );
        // A rest that is too low is forgotten.
        rests.put(3);
        assert_eq!((rests.take(1, 4), rests.take(1, 0)), (None, None));
        // Of many equal rests some are kept as rests with less space.
        for line in 0..RESTS as u32 + 2 {
            rests.put(64 * line + 49);
        }
        let of_five = core::iter::from_fn(|| rests.take(5, 0)).count();
        let others = core::iter::from_fn(|| rests.take(1, 0)).count();
        assert_eq!((of_five, others), (RESTS, 2));
    }
}
