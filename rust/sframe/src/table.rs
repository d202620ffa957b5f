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
//! rule there is [`LAST`], which no address is behind. So how many there are need not be known.
//!
//! To make one, in a place that may take its time: [`Functions::collect`] reads all functions,
//! [`plan`] tells what code they span, and [`fill`] goes through all rows and writes the table. The
//! caller has the memory. Each of them ends in time that is bounded by the section's length and the size
//! of the code it speaks of, which [`MAX_SPAN`] bounds.

use super::{
    bytes::Source,
    code,
    error::Error,
    fde::Function,
    plain::Plain,
    rule::{
        Base,
        Location,
        Rule, //
    },
    section::Section, //
};

/// The size of a page of code, in bytes.
pub const PAGE: u64 = 256;

/// The most code that a table covers, in bytes from the first function's start to the last one's
/// end. The largest programs have a quarter of it.
pub const MAX_SPAN: u64 = 1 << 30;

/// The most rules that differ.
pub const MAX_RULES: usize = u16::MAX as usize;

/// How many rows and sections are looked at. The largest programs have some millions.
const MAX_WORK: u32 = 1 << 24;

/// The number that stands for code without a row.
const NO_RULE: u16 = 0;

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The section is of no use.
    Section(Error),
    /// The code lies further apart than [`MAX_SPAN`].
    Span,
    /// It took too long: of what a file may say, this is nonsense.
    TooLong,
    /// There are more rules that differ than [`MAX_RULES`], or than there is room for.
    Rules,
    /// What the caller has made room for is too small: another section was planned.
    Room,
    /// There is no memory for more.
    Memory,
    /// A row beside the section is none.
    ExtraRow,
}

impl From<Error> for TableError {
    fn from(error: Error) -> TableError {
        TableError::Section(error)
    }
}

/// A row that SFrame cannot say, beside a section: its CFA is what is in memory, plus something. The
/// return address is right below the CFA, as AMD64 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraRow {
    /// The address of the first byte of code that it holds for.
    pub start: u64,
    /// For how much code it holds, in bytes.
    pub size: u32,
    /// What holds there.
    pub rule: Rule,
}

/// The size of such a row as it is written, in bytes.
pub const EXTRA_ROW_SIZE: usize = 24;

impl ExtraRow {
    /// Reads one. All is little-endian: `start` in 8 bytes, `size` in 4, then in 4 each what is to
    /// be added to a register for where the CFA is, and to the CFA for where the frame pointer is;
    /// in a byte each the register's DWARF number, what is to be added to what is in memory there,
    /// 1 if the frame pointer is saved and 0 if it is unchanged; and a zero.
    ///
    /// # Errors
    ///
    /// [`TableError::ExtraRow`]: there is no such register, or a field has none of its values.
    pub fn read(bytes: &[u8; EXTRA_ROW_SIZE]) -> Result<ExtraRow, TableError> {
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, rest @ ..] = *bytes;
        let [c0, c1, c2, c3, f0, f1, f2, f3, register, plus, is_saved, zero] = rest;
        let fp = match (is_saved, i32::from_le_bytes([f0, f1, f2, f3]), zero) {
            (0, 0, 0) => Location::Unchanged,
            (1, offset, 0) => Location::AtCfa(offset),
            _ => return Err(TableError::ExtraRow),
        };
        let base = match register {
            FP => Base::Fp,
            SP => Base::Sp,
            0..GENERAL => Base::Register(register),
            _ => return Err(TableError::ExtraRow),
        };
        let mut rule = Rule::amd64(base, i32::from_le_bytes([c0, c1, c2, c3]), fp);
        rule.cfa.deref = true;
        rule.cfa.plus = i8::from_le_bytes([plus]);
        Ok(ExtraRow {
            start: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            size: u32::from_le_bytes([n0, n1, n2, n3]),
            rule,
        })
    }

    /// Writes it as [`ExtraRow::read`] reads it; `None` if it is no such row.
    pub fn write(&self) -> Option<[u8; EXTRA_ROW_SIZE]> {
        let cfa = self.rule.cfa;
        let (is_saved, fp_offset) = match self.rule.fp {
            Location::Unchanged => (0, 0),
            Location::AtCfa(offset) => (1, offset),
            _ => return None,
        };
        let register = match cfa.base {
            Base::Fp => FP,
            Base::Sp => SP,
            Base::Register(number) => number,
        };
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.start.to_le_bytes();
        let [n0, n1, n2, n3] = self.size.to_le_bytes();
        let [c0, c1, c2, c3] = cfa.offset.to_le_bytes();
        let [f0, f1, f2, f3] = fp_offset.to_le_bytes();
        let [plus] = cfa.plus.to_le_bytes();
        let bytes = [
            s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, c0, c1, c2, c3, f0, f1, f2, f3,
            register, plus, is_saved, 0,
        ];
        (ExtraRow::read(&bytes) == Ok(*self)).then_some(bytes)
    }
}

/// DWARF's numbers, on AMD64, of frame pointer and stack pointer, and how many registers there are.
const FP: u8 = 6;
const SP: u8 = 7;
const GENERAL: u8 = 16;

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
            let stub = stub.and_then(|(stub, _)| self.code.read::<{ code::STUB }>(stub).ok());
            if let Some(stub) = stub.filter(|stub| code::rule_of_stub(stub, 0).is_some()) {
                for offset in 0..code::STUB as u32 {
                    put(offset, code::rule_of_stub(&stub, offset))?;
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
    plain: &'a mut [Plain],
    others: &'a mut [Rule],
    used: usize,
    used_others: usize,
    /// Numbers, by what rules are mixed to; 0 where there is none.
    numbers: &'a mut [u16],
}

impl<'a> Rules<'a> {
    /// No rules yet. There is to be as much room in `others` as in `plain`, and more in `numbers`, which is
    /// to be zeros.
    pub fn new(
        plain: &'a mut [Plain],
        others: &'a mut [Rule],
        numbers: &'a mut [u16],
    ) -> Rules<'a> {
        let mut new = Rules {
            plain,
            others,
            used: 0,
            used_others: 0,
            numbers,
        };
        if let Some(none) = new.plain.first_mut() {
            *none = Plain::NONE;
            new.used = 1;
        }
        new
    }

    /// All of them, by number.
    pub fn plain(&self) -> &[Plain] {
        self.plain.get(..self.used).unwrap_or_default()
    }

    /// Those that are not plain.
    pub fn others(&self) -> &[Rule] {
        self.others.get(..self.used_others).unwrap_or_default()
    }

    fn number(&mut self, rule: Option<Rule>) -> Result<u16, TableError> {
        let Some(rule) = rule else {
            return Ok(NO_RULE);
        };
        let plain = Plain::of(&rule);
        let mix = match plain {
            Some(plain) => mixed(0, plain.bits()),
            None => mixed_parts(&rule),
        };
        let len = self.numbers.len();
        let mut at = ((mix >> 32) as usize)
            .checked_rem(len)
            .ok_or(TableError::Rules)?;
        for _ in 0..len {
            let number = *self.numbers.get(at).ok_or(TableError::Rules)?;
            if number == NO_RULE {
                let number = self.add(rule, plain)?;
                *self.numbers.get_mut(at).ok_or(TableError::Rules)? = number;
                return Ok(number);
            }
            let there = self.plain.get(usize::from(number)).copied();
            let is_it = match plain {
                Some(_) => there == plain,
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

    fn add(&mut self, rule: Rule, plain: Option<Plain>) -> Result<u16, TableError> {
        let number = u16::try_from(self.used).map_err(|_| TableError::Rules)?;
        let slot = self.plain.get_mut(self.used).ok_or(TableError::Rules)?;
        *slot = match plain {
            Some(plain) => plain,
            None => {
                let other = u16::try_from(self.used_others).map_err(|_| TableError::Rules)?;
                let slot = self.others.get_mut(self.used_others);
                *slot.ok_or(TableError::Rules)? = rule;
                self.used_others = self.used_others.wrapping_add(1);
                Plain::other(other)
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

/// The same of a rule that is not plain.
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
/// The size of a row, in bytes: the number of a rule, and up to which low byte it holds.
pub const ROW: usize = 3;
/// The size of a rule's number, in bytes.
pub const NUMBER: usize = 2;
/// What is behind the last row of a block.
const LAST: u8 = 0xff;

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

/// A table. It is safe to search whatever it holds, but true only as [`fill`] has made it.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// The address that the first page begins at.
    pub base: u64,
    /// Where in the blocks the first low byte of each page is.
    pub pages: &'a [u32],
    /// The blocks.
    pub blocks: &'a [u8],
    /// The rules, by number; the first one stands for none.
    pub plain: &'a [Plain],
    /// Those of them that are not plain.
    pub others: &'a [Rule],
}

impl Table<'_> {
    /// For how much code it has rows, or knows that there are none, in bytes from the base on.
    pub fn span(&self) -> u64 {
        (self.pages.len() as u64).wrapping_mul(PAGE)
    }

    /// Whether each page has a block that ends within the blocks, and each number in it is of a rule. Who
    /// knows that need not check it at each look-up.
    pub fn is_sound(&self) -> bool {
        self.pages.iter().all(|at| {
            let block = (*at as usize)
                .checked_sub(NUMBER)
                .and_then(|from| self.blocks.get(from..));
            // Up to LAST, which has to be there.
            for row in block.unwrap_or_default().chunks_exact(ROW) {
                match *row {
                    [a, b, low] if usize::from(u16::from_le_bytes([a, b])) < self.plain.len() => {
                        if low == LAST {
                            return true;
                        }
                    }
                    _ => return false,
                }
            }
            false
        })
    }

    /// The rule that holds at `pc`; `None` if there is none. Any context.
    #[inline]
    pub fn find(&self, pc: u64) -> Option<Rule> {
        let distance = pc.wrapping_sub(self.base);
        let block = self.block(distance)?;
        self.plain(block, distance).rule(self.others)
    }

    /// Where the rows are for the page at a distance in bytes from the base. Any context.
    #[inline(always)]
    pub fn block(&self, distance: u64) -> Option<u32> {
        self.pages.get((distance / PAGE) as usize).copied()
    }

    /// What holds at a distance in bytes from the base, of which the page's rows are at `block`. Any
    /// context.
    #[inline(always)]
    pub fn plain(&self, block: u32, distance: u64) -> Plain {
        let plain = |number: u16| self.plain.get(usize::from(number)).copied();
        let number = self.row(block, distance).and_then(|at| {
            let number = self.blocks.get(at.checked_sub(NUMBER)?..)?;
            number.first_chunk().copied().map(u16::from_le_bytes)
        });
        number.and_then(plain).unwrap_or(Plain::NONE)
    }

    /// The same, but where in the blocks that is: the low byte up to which it holds. The number of the
    /// rule is right in front.
    #[inline]
    pub fn row(&self, block: u32, distance: u64) -> Option<usize> {
        let lows = self.blocks.get(block as usize..)?.iter().step_by(ROW);
        let before = lows.take_while(|last| **last < distance as u8).count();
        let at = (block as usize).wrapping_add(before.wrapping_mul(ROW));
        (at < self.blocks.len()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra_rows(base: Base, plus: i8, fp: Location) -> ExtraRow {
        let mut rule = Rule::amd64(base, -64, fp);
        rule.cfa.deref = true;
        rule.cfa.plus = plus;
        ExtraRow {
            start: 0x1234_5678_9abc,
            size: 0x10_0001,
            rule,
        }
    }

    #[test]
    fn rows_beside_a_section_are_read_as_they_were_written() {
        for base in [Base::Sp, Base::Fp, Base::Register(0), Base::Register(15)] {
            for plus in [0, 8, 127, -128] {
                for fp in [
                    Location::Unchanged,
                    Location::AtCfa(0),
                    Location::AtCfa(-16),
                ] {
                    let row = extra_rows(base, plus, fp);
                    let bytes = row.write().unwrap();
                    assert_eq!(ExtraRow::read(&bytes), Ok(row));
                }
            }
        }
        // As Documentation/device.rst has it.
        let bytes = extra_rows(Base::Sp, 8, Location::AtCfa(-16))
            .write()
            .unwrap();
        let mut expected = 0x1234_5678_9abc_u64.to_le_bytes().to_vec();
        expected.extend(0x10_0001_u32.to_le_bytes());
        expected.extend((-64_i32).to_le_bytes());
        expected.extend((-16_i32).to_le_bytes());
        expected.extend([7, 8, 1, 0]);
        assert_eq!(bytes.to_vec(), expected);
    }

    #[test]
    fn what_is_no_row_is_refused() {
        let good = extra_rows(Base::Sp, 8, Location::Unchanged)
            .write()
            .unwrap();
        for (at, value) in [(20, 16), (20, 255), (22, 2), (23, 1), (16, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(ExtraRow::read(&bytes), Err(TableError::ExtraRow), "{at}");
        }
        let no_rows = [
            extra_rows(Base::Sp, 8, Location::Undefined),
            extra_rows(Base::Register(6), 8, Location::Unchanged),
            extra_rows(Base::Register(16), 8, Location::Unchanged),
            ExtraRow {
                rule: Rule::OUTERMOST,
                ..extra_rows(Base::Sp, 8, Location::Unchanged)
            },
        ];
        for row in no_rows {
            assert_eq!(row.write(), None, "{row:?}");
        }
    }
}
