// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Tables: the rows of all of a file, checked once and laid out flat, so that an interrupt finds
//! the rule of a PC in constant time and without trusting a byte.
//!
//! Code is divided into pages of [`PAGE`] bytes. For each there is a block: the rule that comes in from
//! the page before; and in rising order, for each address at which another rule begins to hold, the low
//! byte of that and the rule. Rules are numbers, and the same rule has the same number. So a look-up
//! touches an entry of the page index, a block and a rule: three cache lines, as no block lies over two
//! lines that fits into one. What a line has left is for later, smaller blocks; and pages in which the same
//! rule holds throughout share a block.
//!
//! Each low byte is written as one less, as what begins with a page comes in, and behind the last
//! rule there is `LAST`, which no address is behind. So how many there are need not be known.
//!
//! To make one, in a place that may take its time: [`Functions::collect`] reads all functions,
//! [`plan`] tells what code they span, and [`fill`] goes through all rows and writes the table. The
//! caller has the memory. Each of them ends in time that is bounded by the section's length and the size
//! of the code it speaks of, which [`MAX_SPAN`] bounds.

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
    }, //
};

/// The most code that a table covers, in bytes from the first function's start to the last one's
/// end. The largest programs have a quarter of it.
pub const MAX_SPAN: u64 = 1 << 30;

/// The most rules that differ.
pub const MAX_RULES: usize = u16::MAX as usize;

/// How many rows and sections are looked at. The largest programs have some millions.
const MAX_WORK: u32 = 1 << 24;

/// The number that stands for code without a row.
const NO_RULE: u16 = 0;

/// A function as it is sorted: 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The address of its first byte.
    start: u64,
    /// Its size, in bytes.
    size: u32,
    /// Which entry it is.
    index: u32,
    /// In which section, by its offset.
    section: u32,
}

impl Place {
    fn key(&self) -> (u64, u32, u32) {
        (self.start, self.section, self.index)
    }
}

/// Of a row beside the sections, in which it is.
const BESIDE: u32 = u32::MAX;

/// How many functions there are in all sections, and rows beside them, whatever they cover.
///
/// # Errors
///
/// A header is malformed or unsupported.
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

/// The functions of a file, by address.
#[derive(Debug)]
pub struct Functions<'a> {
    first: Section,
    extra_rows: &'a [u8],
    places: &'a [Place],
}

impl<'a> Functions<'a> {
    /// Reads the functions of all sections, of which `first` is the first, and the rows `beside`
    /// them, one behind the other, into `room`, which is to hold [`count`] of them, and sorts them.
    /// Those that cover nothing and those that `is_code` does not know, given the first address and
    /// the last one, are left out: linkers leave what is left of discarded code.
    ///
    /// # Errors
    ///
    /// [`TableError::Section`], [`TableError::ExtraRow`], [`TableError::Room`].
    pub fn collect<S: Source + ?Sized>(
        bytes: &S,
        first: &Section,
        extra_rows: &'a [u8],
        room: &'a mut [Place],
        is_code: impl Fn(u64, u64) -> bool,
    ) -> Result<Functions<'a>, TableError> {
        let mut used = 0usize;
        let mut put = |place: Place| {
            let Place { start, size, .. } = place;
            let last = start.wrapping_add(u64::from(size)).wrapping_sub(1);
            if size != 0 && last >= start && is_code(start, last) {
                *room.get_mut(used).ok_or(TableError::Room)? = place;
                used = used.wrapping_add(1);
            }
            Ok::<_, TableError>(())
        };
        let mut section = Some(*first);
        while let Some(this) = section {
            for index in 0..this.num_fdes() {
                let function = this.function(bytes, index)?;
                put(Place {
                    start: function.start(),
                    size: function.size(),
                    index,
                    section: this.offset(),
                })?;
            }
            section = this.next(bytes)?;
        }
        let mut rest = extra_rows;
        let mut index = 0u32;
        while let Some((row, behind)) = rest.split_first_chunk() {
            let row = ExtraRow::read(row)?;
            put(Place {
                start: row.start,
                size: row.size,
                index,
                section: BESIDE,
            })?;
            index = index.wrapping_add(1);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(TableError::ExtraRow);
        }
        let places = room.get_mut(..used).ok_or(TableError::Room)?;
        sort(places);
        Ok(Functions {
            first: *first,
            extra_rows,
            places,
        })
    }

    /// The first address, and the one behind the last; both 0 if there are no functions.
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

    /// Goes through all changes of the rule that holds, by rising address. Of functions that
    /// overlap the one that begins last has the code, and behind its end there is no rule.
    fn changes<S, C>(
        &self,
        bytes: &S,
        code: &C,
        mut change: impl FnMut(u64, Option<Rule>) -> Result<(), TableError>,
    ) -> Result<(), TableError>
    where
        S: Source + ?Sized,
        C: Source + ?Sized,
    {
        let mut section = self.first;
        let mut work = Work(MAX_WORK);
        let mut places = self.places;
        while let Some((place, behind)) = places.split_first() {
            places = behind;
            let own_end = place.start.saturating_add(place.size.into());
            let end = behind
                .first()
                .map_or(own_end, |next| next.start.min(own_end));
            if place.section == BESIDE {
                change(place.start, Some(self.extra_rows(place.index)?.rule))?;
                change(end, None)?;
                continue;
            }
            if place.section != section.offset() {
                section = self.section(bytes, place.section, &mut work)?;
            }
            let function = section.function(bytes, place.index)?;
            if end > place.start {
                let rows = Rows {
                    bytes,
                    code,
                    section: &section,
                    function: &function,
                    end,
                };
                rows.all(&mut work, &mut change)?;
                change(end, None)?;
            }
        }
        Ok(())
    }

    /// The row of that number beside the sections.
    fn extra_rows(&self, index: u32) -> Result<ExtraRow, TableError> {
        let at = (index as usize).saturating_mul(EXTRA_ROW_SIZE);
        let row = self.extra_rows.get(at..).and_then(<[u8]>::first_chunk);
        ExtraRow::read(row.ok_or(TableError::ExtraRow)?)
    }

    /// The section at an offset.
    fn section<S: Source + ?Sized>(
        &self,
        bytes: &S,
        offset: u32,
        work: &mut Work,
    ) -> Result<Section, TableError> {
        let mut section = self.first;
        while section.offset() != offset {
            work.one()?;
            match section.next(bytes)? {
                Some(next) => section = next,
                None => break,
            }
        }
        Ok(section)
    }
}

/// How much may still be done.
struct Work(u32);

impl Work {
    fn one(&mut self) -> Result<(), TableError> {
        self.0 = self.0.checked_sub(1).ok_or(TableError::TooLong)?;
        Ok(())
    }
}

/// The rules of a function, up to `end`.
struct Rows<'a, S: ?Sized, C: ?Sized> {
    bytes: &'a S,
    code: &'a C,
    section: &'a Section,
    function: &'a Function,
    end: u64,
}

impl<S: Source + ?Sized, C: Source + ?Sized> Rows<'_, S, C> {
    fn all(
        &self,
        work: &mut Work,
        change: &mut impl FnMut(u64, Option<Rule>) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let block = match self.function.repeat() {
            Some(block) => u32::from(block.get()),
            None => self.function.size(),
        };
        let mut at = self.function.start();
        while at < self.end {
            let mut put = |offset: u32, rule| {
                work.one()?;
                let address = at.saturating_add(offset.into());
                if offset < block && address < self.end {
                    change(address, rule)?;
                }
                Ok::<_, TableError>(())
            };
            // Linkers' rows of PLTs are wrong at times, their code is not.
            let stub = self.function.stub(at);
            let stub = stub.and_then(|(stub, _)| self.code.read::<{ plt::STUB }>(stub).ok());
            if let Some(stub) = stub.filter(|stub| plt::rule_of_stub(stub, 0).is_some()) {
                for offset in 0..plt::STUB as u32 {
                    put(offset, plt::rule_of_stub(&stub, offset))?;
                }
            } else if let Some(rule) = self.section.rule_without_rows(self.function) {
                put(0, Some(rule))?;
            } else {
                // In front of the first row there is none.
                put(0, None)?;
                for row in self.section.rows(self.bytes, self.function) {
                    let row = row?;
                    put(row.start, Some(row.rule))?;
                }
            }
            at = at.saturating_add(u64::from(block.max(1)));
        }
        Ok(())
    }
}

/// Sorts by address, in the order of sections and entries where that is the same. It is heapsort:
/// that of the library can panic. Linkers have sorted most.
fn sort(places: &mut [Place]) {
    if places.is_sorted_by_key(Place::key) {
        return;
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
}

fn key_at(places: &[Place], at: usize) -> (u64, u32, u32) {
    places.get(at).map_or((0, 0, 0), Place::key)
}

fn exchange(places: &mut [Place], a: usize, b: usize) {
    if let (Some(first), Some(second)) = (places.get(a).copied(), places.get(b).copied()) {
        if let Some(place) = places.get_mut(a) {
            *place = second;
        }
        if let Some(place) = places.get_mut(b) {
            *place = first;
        }
    }
}

/// Rules that differ, by number. Number 0 is none.
#[derive(Debug)]
pub struct Rules<'a> {
    compact: &'a mut [CompactRule],
    others: &'a mut [Rule],
    used: usize,
    used_others: usize,
    /// Numbers, by what rules are mixed to; 0 where there is none.
    numbers: &'a mut [u16],
}

impl<'a> Rules<'a> {
    /// No rules yet. There is to be as much room in `others` as in `compact`, and more in `numbers`, which is
    /// to be zeros.
    pub fn new(
        compact: &'a mut [CompactRule],
        others: &'a mut [Rule],
        numbers: &'a mut [u16],
    ) -> Rules<'a> {
        let mut new = Rules {
            compact,
            others,
            used: 0,
            used_others: 0,
            numbers,
        };
        if let Some(none) = new.compact.first_mut() {
            *none = CompactRule::NONE;
            new.used = 1;
        }
        new
    }

    /// All of them, by number.
    pub fn compact(&self) -> &[CompactRule] {
        self.compact.get(..self.used).unwrap_or_default()
    }

    /// Those that are not compact.
    pub fn others(&self) -> &[Rule] {
        self.others.get(..self.used_others).unwrap_or_default()
    }

    fn number(&mut self, rule: Option<Rule>) -> Result<u16, TableError> {
        let Some(rule) = rule else {
            return Ok(NO_RULE);
        };
        let compact = CompactRule::of(&rule);
        let mix = match compact {
            Some(compact) => mixed(0, compact.bits()),
            None => mixed_parts(&rule),
        };
        let len = self.numbers.len();
        let mut at = ((mix >> 32) as usize)
            .checked_rem(len)
            .ok_or(TableError::Rules)?;
        for _ in 0..len {
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

/// A number that is another one for most other parts; its upper half is the better one.
fn mixed(mix: u64, part: u64) -> u64 {
    (mix.rotate_left(5) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The same of a rule that is not compact.
fn mixed_parts(rule: &Rule) -> u64 {
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
    let mut mix = u64::from(rule.mangled) | (u64::from(rule.signal) << 1);
    for part in [
        (base(rule.cfa.base) << 1) | u64::from(rule.cfa.deref),
        u64::from(rule.cfa.offset as u32) | (u64::from(rule.cfa.plus as u8) << 32),
        ra,
        u64::from(ra_offset as u32),
        fp,
        u64::from(fp_offset as u32),
    ] {
        mix = mixed(mix, part);
    }
    mix
}

/// What code a table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The address that the first page begins at.
    pub base: u64,
    /// The length of the page index: how many pages there are.
    pub pages: usize,
}

/// What code the functions span.
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

/// The size of a block without rows, in bytes: the number of the rule that comes in, and [`LAST`].
const BLOCK: usize = 3;

/// The size of the largest block.
const MAX_BLOCK: usize = PAGE as usize * ROW;

/// The size of a cache line, in bytes.
const LINE: u32 = 64;

/// How many lines that have some bytes left are kept in mind.
const GAPS: usize = 32;

/// How many blocks without rows are kept in mind, to be shared.
const WHOLE: usize = 32;

/// Where there is no block.
const NOWHERE: u32 = u32::MAX;

/// Leaves out changes that change nothing, and all but the last at an address.
#[derive(Default)]
struct Changes {
    /// What holds in front of `next`.
    before: u16,
    /// The address of the last change, and what holds from there on.
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

/// Goes through all rows, collects the rules that differ, and writes the table that [`plan`] has
/// planned: the page index to `pages`, which is to be as long as it says, and the blocks by `put`, which
/// is told where each goes, in bytes from the first one's beginning, a multiple of 64. They come in no order;
/// what is between them is of no meaning. `code` is what is loaded, by the addresses that the section was
/// opened in: rows of PLTs are believed only where the code is none that is known. Returns how many rows the
/// table has, but for those that begin with a page.
///
/// # Errors
///
/// See [`TableError`], and those of `put`.
pub fn fill<S, C>(
    bytes: &S,
    code: &C,
    functions: &Functions<'_>,
    rules: &mut Rules<'_>,
    plan: &Plan,
    pages: &mut [u32],
    put: impl FnMut(usize, &[u8]) -> Result<(), TableError>,
) -> Result<usize, TableError>
where
    S: Source + ?Sized,
    C: Source + ?Sized,
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
        gaps: [0; GAPS],
        whole: [(NO_RULE, NOWHERE); WHOLE],
        rows: 0,
    };
    let mut changes = Changes::default();
    functions.changes(bytes, code, |at, rule| {
        let number = rules.number(rule)?;
        changes.change(at, number, |at, number| filler.change(at, number))
    })?;
    changes.end(|at, number| filler.change(at, number))?;
    while filler.page < filler.pages.len() {
        filler.close()?;
    }
    Ok(filler.rows)
}

struct Filler<'a, P> {
    base: u64,
    pages: &'a mut [u32],
    put: P,
    /// Which page is being made.
    page: usize,
    /// Its block, and how long that is by now.
    block: [u8; MAX_BLOCK],
    len: usize,
    /// What holds up to the next change.
    holds: u16,
    /// The end of all lines that have been begun, in bytes.
    end: u32,
    /// What some of them have left begins there; 0 is nothing.
    gaps: [u32; GAPS],
    /// Rules, and where the block is that has nothing else.
    whole: [(u16, u32); WHOLE],
    /// How many rows there are by now.
    rows: usize,
}

impl<P: FnMut(usize, &[u8]) -> Result<(), TableError>> Filler<'_, P> {
    fn change(&mut self, at: u64, number: u16) -> Result<(), TableError> {
        let offset = at.wrapping_sub(self.base);
        let page = (offset / PAGE) as usize;
        // The end of the last function may be that of the last page.
        if page >= self.pages.len() {
            return Ok(());
        }
        while self.page < page {
            self.close()?;
        }
        if let Some(low) = ((offset % PAGE) as u8).checked_sub(1) {
            self.up_to(low)?;
            self.rows = self.rows.saturating_add(1);
        }
        self.holds = number;
        Ok(())
    }

    /// Ends the block of a page.
    fn close(&mut self) -> Result<(), TableError> {
        self.up_to(LAST)?;
        let at = self.put_block()?;
        if let Some(page) = self.pages.get_mut(self.page) {
            *page = at.checked_add(NUMBER as u32).ok_or(TableError::Room)?;
        }
        self.page = self.page.wrapping_add(1);
        self.len = 0;
        Ok(())
    }

    fn up_to(&mut self, low: u8) -> Result<(), TableError> {
        let [a, b] = self.holds.to_le_bytes();
        let rest = self.block.get_mut(self.len..).unwrap_or_default();
        *rest.first_chunk_mut().ok_or(TableError::Room)? = [a, b, low];
        self.len = self.len.wrapping_add(ROW);
        Ok(())
    }

    /// Puts the block, or finds one that is the same, and returns where it is.
    fn put_block(&mut self) -> Result<u32, TableError> {
        let has_rows = self.len > BLOCK;
        let whole = usize::from(self.holds) % WHOLE;
        match self.whole.get(whole) {
            Some((number, at)) if !has_rows && *number == self.holds && *at != NOWHERE => {
                return Ok(*at);
            }
            _ => {}
        }
        let at = self.room().ok_or(TableError::Room)?;
        (self.put)(at as usize, self.block.get(..self.len).unwrap_or_default())?;
        if let Some(whole) = self.whole.get_mut(whole).filter(|_| !has_rows) {
            *whole = (self.holds, at);
        }
        Ok(at)
    }

    /// Where the block goes: to the line that has the least left of those that have enough, else to a new
    /// one.
    fn room(&mut self) -> Option<u32> {
        let left = |at: u32| at.wrapping_neg() % LINE;
        let len = self.len as u32;
        let enough = self.gaps.iter_mut().filter(|gap| left(**gap) >= len);
        let at = match enough.min_by_key(|gap| left(**gap)) {
            Some(gap) => core::mem::take(gap),
            None => self.end,
        };
        let behind = at.checked_add(len)?;
        self.end = self.end.max(behind.checked_next_multiple_of(LINE)?);
        // In place of none, or of the one that has the least.
        if let Some(gap) = self.gaps.iter_mut().min_by_key(|gap| left(**gap)) {
            if left(*gap) < left(behind) {
                *gap = behind;
            }
        }
        Some(at)
    }
}
