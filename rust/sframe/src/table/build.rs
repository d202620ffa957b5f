// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Builds tables: all rows of a file, checked once and laid out flat. An interrupt finds the rule of a PC
//! in constant time, and needs no further check of the data.
//!
//! Code is divided into pages of [`PAGE`] bytes. Each page has a block. A block holds the number of the rule that
//! covers the page's first byte. Then follows, in rising order, one row for each address at which another rule
//! begins: the low byte of the address, and the number of the rule. Equal rules have equal numbers. So a lookup
//! touches an entry of the page index, a block and a rule: three cache lines, as a block that fits into one line
//! never crosses a line. Later, smaller blocks use the rest of a line. Pages that the same rule covers throughout
//! may share a block.
//!
//! Each low byte is stored minus one, and is the last low byte that the rule in front of it covers. Low byte 0 needs
//! no row, because the block begins with the rule of the page's first byte. Behind the last row is `LAST`, up to
//! which the last rule covers the page. So a block needs no length.
//!
//! The addresses of a table are any numbers that identify the code of a file: link-time addresses, or offsets in the
//! file. Segments that are far apart in memory are close to each other by offsets.
//!
//! A build has three steps: [`Functions::collect`] reads all functions, [`plan`] computes the range of their code,
//! and [`fill`] reads all rows and writes the table. The caller provides the memory. The section's length and the
//! size of the range bound the time of each step; [`MAX_SPAN`] bounds the size of the range.

use super::{
    super::{
        format::{
            bytes::Source,
            error::Error,
            fde::Function,
            section::Section, //
        },
        unwind::rule::{
            Base,
            Location,
            Rule, //
        },
        x86_64::plt, //
    },
    compact_rule::CompactRule,
    error::TableError,
    extra_row::{
        ExtraRow,
        EXTRA_ROW_SIZE, //
    },
    lookup::{
        LAST,
        NUMBER,
        PAGE,
        ROW, //
    },
    work::{
        Ask,
        Work, //
    }, //
};

/// The largest range of code of a table, in bytes, from the first function's start to the last function's end. The
/// code of the largest programs spans a quarter of this range.
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
    /// The offset of the function's section, in bytes from the first section; [`EXTRA_ROW`] for an extra row.
    section: u32,
}

impl FunctionSpan {
    /// The sort key: the address, then the section and the entry. One number, because a comparison of numbers is
    /// smaller than one of tuples.
    fn key(&self) -> u128 {
        (u128::from(self.start) << 64) | (u128::from(self.section) << 32) | u128::from(self.index)
    }
}

/// The value of `FunctionSpan::section` for an extra row.
const EXTRA_ROW: u32 = u32::MAX;

/// The number of functions in all sections, plus the number of extra rows. Functions and extra rows that cover no
/// code count, too.
///
/// # Errors
///
/// The errors of [`Section::next`]: a header cannot be read, or is malformed or unsupported.
pub fn count<S: Source + ?Sized>(
    bytes: &S,
    first: &Section,
    extra_rows: &[u8],
) -> Result<usize, Error> {
    let mut count = extra_rows.len() / EXTRA_ROW_SIZE;
    let mut section = Some(*first);
    while let Some(this) = section {
        count = count.saturating_add(this.num_fdes() as usize);
        section = this.next(bytes)?;
    }
    Ok(count)
}

/// The functions of a file, sorted by address.
#[derive(Debug)]
pub struct Functions<'a> {
    first: Section,
    extra_rows: &'a [u8],
    places: &'a [FunctionSpan],
}

impl<'a> Functions<'a> {
    /// Reads the functions of all sections and the encoded extra rows into `buffer`, and sorts them. `first` is the
    /// first section, and `buffer` has to hold [`count`] functions. `place` converts the addresses of a function's
    /// first and last byte to the address of the first byte in the table. Functions with size 0, and functions that
    /// `place` returns `None` for, are left out: linkers leave entries of discarded code.
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
        let mut put = |at: u64, function: FunctionSpan| {
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
            for index in 0..this.num_fdes() {
                let function = this.function(bytes, index)?;
                let place = FunctionSpan {
                    start: 0,
                    size: function.size(),
                    index,
                    section: this.offset(),
                };
                put(function.start(), place)?;
            }
            section = this.next(bytes)?;
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
            put(row.start, place)?;
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

    /// The first address of the functions, and the address behind their last byte; both 0 if there are no functions.
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

    /// Calls `change` for each address at which the rule may change, by rising address. Where functions overlap, the
    /// function that begins last covers the code. Behind that function's end, up to the next function, there is no
    /// rule.
    fn changes<S, C, A>(
        &self,
        bytes: &S,
        code: &C,
        work: &mut Work<A>,
        mut change: impl FnMut(u64, Option<Rule>, &mut Work<A>) -> Result<(), TableError>,
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
                change(place.start, Some(self.extra_row(place.index)?.rule), work)?;
                change(end, None, work)?;
                continue;
            }
            if place.section != section.offset() {
                section = self.section(bytes, &section, place.section, work)?;
            }
            let function = section.function(bytes, place.index)?;
            if end > place.start {
                let rows = SectionRows {
                    bytes,
                    code,
                    section: &section,
                    function: &function,
                    len: end.wrapping_sub(place.start),
                };
                rows.all(work, |offset, rule, work| {
                    change(place.start.saturating_add(offset), rule, work)
                })?;
                change(end, None, work)?;
            }
        }
        Ok(())
    }

    /// Decodes extra row `index`, counted from zero.
    fn extra_row(&self, index: u32) -> Result<ExtraRow, TableError> {
        let at = (index as usize).saturating_mul(EXTRA_ROW_SIZE);
        let row = self.extra_rows.get(at..).and_then(<[u8]>::first_chunk);
        ExtraRow::read(row.ok_or(TableError::ExtraRow)?)
    }

    /// Finds the section at `offset`, in bytes from the first section. Linkers put code and sections in one order, so
    /// the wanted section is mostly the section behind `current`.
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
            match section.next(bytes)? {
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
    /// Calls `change` for each change of the rule, with the distance from the function's start, in bytes.
    fn all<A: Ask>(
        &self,
        work: &mut Work<A>,
        mut change: impl FnMut(u64, Option<Rule>, &mut Work<A>) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let block = match self.function.repeat() {
            Some(block) => u32::from(block.get()),
            None => self.function.size(),
        };
        let mut from = 0u64;
        while from < self.len {
            let at = self.function.start().saturating_add(from);
            let mut put = |offset: u32, rule| {
                work.step()?;
                let distance = from.saturating_add(offset.into());
                if offset < block && distance < self.len {
                    change(distance, rule, work)?;
                }
                Ok::<_, TableError>(())
            };
            // The rows that linkers write for PLTs are sometimes wrong. The code of a PLT is not wrong.
            let stub = self.function.stub(at);
            let stub = stub.and_then(|(stub, _)| self.code.read::<{ plt::STUB }>(stub).ok());
            if let Some(stub) = stub.filter(|stub| plt::rule_of_stub(stub, 0).is_some()) {
                for offset in 0..plt::STUB as u32 {
                    put(offset, plt::rule_of_stub(&stub, offset))?;
                }
            } else {
                // No row covers the code in front of the first row. A function with a rule without rows has no rows.
                put(0, self.section.rule_without_rows(self.function))?;
                for row in self.section.rows(self.bytes, self.function) {
                    let row = row?;
                    put(row.start, Some(row.rule))?;
                }
            }
            from = from.saturating_add(u64::from(block.max(1)));
        }
        Ok(())
    }
}

/// Sorts by address, then by section and entry. The method is heapsort, because the library's sort can panic. Most
/// inputs need no sort, because the linker has sorted the functions.
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

/// The different rules, by number. Number 0 stands for no rule.
#[derive(Debug)]
pub struct Rules<'a> {
    compact: &'a mut [CompactRule],
    others: &'a mut [Rule],
    used: usize,
    used_others: usize,
    /// The hash table: numbers of rules; 0 is a free slot.
    numbers: &'a mut [u16],
    /// The key of the hash. The author of a section does not know the key, and so cannot choose rules that probe
    /// many slots.
    key: [u64; 2],
}

impl<'a> Rules<'a> {
    /// An empty set of rules. The caller provides `others` as long as `compact`, `numbers` longer than `compact` and
    /// all zero, and a random `key`.
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
            key,
        };
        if let Some(none) = new.compact.first_mut() {
            *none = CompactRule::NONE;
            new.used = 1;
        }
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
                None => there.and_then(|there| there.rule(self.others)) == Some(rule),
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

/// A keyed hash of `part` and of `hash`, the hash of the previous parts. The function combines both halves of a
/// product.
fn mixed(key: [u64; 2], hash: u64, part: u64) -> u64 {
    let [first, second] = key;
    let product =
        u128::from(hash.rotate_left(5) ^ part ^ first).wrapping_mul(u128::from(second | 1));
    let high = product.wrapping_shr(64) as u64;
    // A second product, so that the upper bits depend on all bits of `part`.
    (high ^ product as u64 ^ second).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The keyed hash of a rule that is not compact.
fn mixed_parts(key: [u64; 2], rule: &Rule) -> u64 {
    let base = |base| match base {
        Base::Sp => 256,
        Base::Fp => 257,
        Base::Register(number) => u64::from(number),
    };
    let place = |location| match location {
        Location::Unchanged => (0, 0),
        Location::Undefined => (1, 0),
        Location::AtCfa(offset) => (2, offset),
        Location::OfCfa(offset) => (3, offset),
        Location::At(register, offset) => (4_u64.wrapping_add(base(register) << 4), offset),
        Location::Of(register, offset) => (5_u64.wrapping_add(base(register) << 4), offset),
    };
    let ((ra, ra_offset), (fp, fp_offset)) = (place(rule.ra), place(rule.fp));
    let mut hash = u64::from(rule.mangled)
        | (u64::from(rule.signal) << 1)
        | (u64::from(rule.extra.twice) << 2)
        | (u64::from(rule.extra.changes_stack) << 3);
    for part in [
        (base(rule.cfa.base) << 1) | u64::from(rule.cfa.deref),
        u64::from(rule.cfa.offset as u32) | (u64::from(rule.cfa.plus as u8) << 32),
        ra,
        u64::from(ra_offset as u32),
        fp,
        u64::from(fp_offset as u32),
    ] {
        hash = mixed(key, hash, part);
    }
    hash
}

/// The range of code that a table covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The address of the first page, in the table's addresses.
    pub base: u64,
    /// The length of the page index, in pages.
    pub pages: usize,
}

/// Computes the range of code of the functions.
///
/// # Errors
///
/// [`TableError::Span`].
pub fn plan(functions: &Functions<'_>) -> Result<Plan, TableError> {
    let (start, end) = functions.span()?;
    let base = start & !(PAGE - 1);
    Ok(Plan {
        base,
        pages: end.wrapping_sub(base).div_ceil(PAGE) as usize,
    })
}

/// The size of a block without rows, in bytes: the number of the first byte's rule, and [`LAST`].
const BLOCK: usize = 3;

/// The size of the largest block, in bytes.
const MAX_BLOCK: usize = PAGE as usize * ROW;

/// The size of a cache line, in bytes.
const LINE: u32 = 64;

/// The number of cache lines whose free bytes are remembered.
const GAPS: usize = 32;

/// The number of blocks without rows that are remembered, so that later pages share them.
const WHOLE: usize = 32;

/// The position that stands for no block.
const NOWHERE: u32 = u32::MAX;

/// Filters changes: drops each change to the rule that is already valid, and all but the last change at an address.
#[derive(Default)]
struct Changes {
    /// The number of the rule in front of `next`.
    before: u16,
    /// The address of the last change, and the number of the rule from that address on.
    next: Option<(u64, u16)>,
}

impl Changes {
    fn change(
        &mut self,
        at: u64,
        number: u16,
        put: impl FnMut(u64, u16) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        if self.next.is_some_and(|(last, _)| last != at) {
            self.end(put)?;
        }
        self.next = Some((at, number));
        Ok(())
    }

    fn end(
        &mut self,
        mut put: impl FnMut(u64, u16) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        match self.next.take() {
            Some((at, number)) if number != self.before => {
                self.before = number;
                put(at, number)
            }
            _ => Ok(()),
        }
    }
}

/// Reads all rows, collects the different rules, and writes the table that [`plan`] has planned. The page index
/// goes to `pages`, whose length is in the plan. `put` writes a block: its arguments are the block's position, in
/// bytes from the start of the first block, and the block's contents. The layout assumes that the first block starts
/// at a multiple of 64. Calls of `put` are in no order of positions, and bytes between the blocks have no meaning.
/// `code` is the loaded image, by the addresses that the section was opened with: the build uses the rows of a PLT
/// only if the PLT's code has no known form. Returns the number of rows in the table, without rows that begin with a
/// page.
///
/// # Errors
///
/// See [`TableError`], and the errors of `put`.
#[allow(clippy::too_many_arguments)]
pub fn fill<S, C, A>(
    bytes: &S,
    code: &C,
    functions: &Functions<'_>,
    rules: &mut Rules<'_>,
    plan: &Plan,
    pages: &mut [u32],
    work: &mut Work<A>,
    put: impl FnMut(usize, &[u8]) -> Result<(), TableError>,
) -> Result<usize, TableError>
where
    S: Source + ?Sized,
    C: Source + ?Sized,
    A: Ask,
{
    let mut filler = Filler {
        base: plan.base,
        pages,
        put,
        page: 0,
        block: [0; MAX_BLOCK],
        len: 0,
        holds: NO_RULE,
        end: 0,
        former: Former::NONE,
        rows: 0,
    };
    let mut changes = Changes::default();
    functions.changes(bytes, code, work, |at, rule, work| {
        let number = rules.number(rule, work)?;
        changes.change(at, number, |at, number| filler.change(at, number, work))
    })?;
    changes.end(|at, number| filler.change(at, number, work))?;
    while filler.page < filler.pages.len() {
        work.step()?;
        filler.close()?;
    }
    Ok(filler.rows)
}

struct Filler<'a, P> {
    base: u64,
    pages: &'a mut [u32],
    put: P,
    /// The number of the current page.
    page: usize,
    /// The block of the current page, and the length of the block so far, in bytes.
    block: [u8; MAX_BLOCK],
    len: usize,
    /// The number of the rule up to the next change.
    holds: u16,
    /// The end of all cache lines that contain a block, in bytes from the first block.
    end: u32,
    /// The earlier blocks that are remembered.
    former: Former,
    /// The number of rows so far.
    rows: usize,
}

/// The earlier blocks that a [`Filler`] remembers.
struct Former {
    /// The positions of the first free byte in some lines; 0 stands for no position.
    gaps: [u32; GAPS],
    /// Numbers of rules, each with the position of a block that contains this rule only.
    whole: [(u16, u32); WHOLE],
}

impl Former {
    /// No block. A constant, so that the compiler copies it instead of writing each element.
    const NONE: Former = Former {
        gaps: [0; GAPS],
        whole: [(NO_RULE, NOWHERE); WHOLE],
    };
}

impl<P: FnMut(usize, &[u8]) -> Result<(), TableError>> Filler<'_, P> {
    fn change<A: Ask>(
        &mut self,
        at: u64,
        number: u16,
        work: &mut Work<A>,
    ) -> Result<(), TableError> {
        let offset = at.wrapping_sub(self.base);
        let page = (offset / PAGE) as usize;
        // The last function may end at the end of the last page.
        if page >= self.pages.len() {
            return Ok(());
        }
        while self.page < page {
            work.step()?;
            self.close()?;
        }
        if let Some(low) = ((offset % PAGE) as u8).checked_sub(1) {
            self.up_to(low)?;
            self.rows = self.rows.saturating_add(1);
        }
        self.holds = number;
        Ok(())
    }

    /// Ends the block of the current page, and begins the next page.
    fn close(&mut self) -> Result<(), TableError> {
        self.up_to(LAST)?;
        let at = self.put_block()?;
        if let Some(page) = self.pages.get_mut(self.page) {
            *page = at
                .checked_add(NUMBER as u32)
                .ok_or(TableError::BufferTooSmall)?;
        }
        self.page = self.page.wrapping_add(1);
        self.len = 0;
        Ok(())
    }

    fn up_to(&mut self, low: u8) -> Result<(), TableError> {
        let [a, b] = self.holds.to_le_bytes();
        let rest = self.block.get_mut(self.len..).unwrap_or_default();
        *rest.first_chunk_mut().ok_or(TableError::BufferTooSmall)? = [a, b, low];
        self.len = self.len.wrapping_add(ROW);
        Ok(())
    }

    /// Writes the current block, or finds an equal block without rows. Returns the block's position.
    fn put_block(&mut self) -> Result<u32, TableError> {
        let has_rows = self.len > BLOCK;
        let whole = usize::from(self.holds) % WHOLE;
        match self.former.whole.get(whole) {
            Some((number, at)) if !has_rows && *number == self.holds && *at != NOWHERE => {
                return Ok(*at);
            }
            _ => {}
        }
        let at = self.position().ok_or(TableError::BufferTooSmall)?;
        (self.put)(at as usize, self.block.get(..self.len).unwrap_or_default())?;
        if let Some(whole) = self.former.whole.get_mut(whole).filter(|_| !has_rows) {
            *whole = (self.holds, at);
        }
        Ok(at)
    }

    /// The position for the current block: in the remembered line with the fewest free bytes that suffice, otherwise
    /// in a new line. `None` if the position or the end does not fit into 32 bits.
    fn position(&mut self) -> Option<u32> {
        let left = |at: u32| at.wrapping_neg() % LINE;
        let len = self.len as u32;
        let enough = self.former.gaps.iter_mut().filter(|gap| left(**gap) >= len);
        let at = match enough.min_by_key(|gap| left(**gap)) {
            Some(gap) => core::mem::take(gap),
            None => self.end,
        };
        let behind = at.checked_add(len)?;
        self.end = self.end.max(behind.checked_next_multiple_of(LINE)?);
        // Remembers the rest of this line in place of an empty entry, or of the line with the fewest free bytes.
        if let Some(gap) = self.former.gaps.iter_mut().min_by_key(|gap| left(**gap)) {
            if left(*gap) < left(behind) {
                *gap = behind;
            }
        }
        Some(at)
    }
}
