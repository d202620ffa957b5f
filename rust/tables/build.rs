// SPDX-License-Identifier: GPL-2.0-only

//! Tables: made of a section where one may sleep, searched in any context.
//!
//! A table holds only what was read and checked when it was made: a search reads no page of the file.

use crate::{
    sframe::{
        abi::Abi,
        bytes::{
            Fault,
            Source, //
        },
        compact_rule::CompactRule,
        elf::{
            self,
            ElfError,
            Executables, //
        },
        error::{
            Error as SectionError,
            Unsupported, //
        },
        fast_path,
        rule::Rule,
        section::Section,
        table::{
            self,
            Functions,
            Place,
            Rules,
            Table,
            TableError,
            MAX_RULES, //
        }, //
    },
    sys::{
        Errno,
        File, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// The ABI of this machine, whose sections alone are of use.
pub(crate) const NATIVE: Abi = Abi::Amd64;

/// The rows of a file, and where its code is.
pub(crate) struct Rows {
    executables: Executables,
    base: u64,
    pages: KVVec<u32>,
    /// Those of [`Table`], from the beginning of a cache line on.
    blocks: KVVec<u8>,
    compact: KVVec<CompactRule>,
    others: KVVec<Rule>,
    /// How many rows it has, but for those that begin with a page.
    pub(crate) count: usize,
}

impl Rows {
    /// The rule for the code at an offset in the file, in bytes; `None` if there is no row.
    pub(crate) fn find(&self, offset: u64) -> Option<Rule> {
        self.table().find(self.executables.link_address(offset)?)
    }

    fn table(&self) -> Table<'_> {
        Table {
            base: self.base,
            pages: &self.pages,
            blocks: &self.blocks,
            compact: &self.compact,
            others: &self.others,
        }
    }

    /// All code that it has rows for, of the segment that has an offset in the file: where in the file it
    /// begins, and its size, both in bytes. `None` if some is of another segment.
    pub(crate) fn code(&self, offset: u64) -> Option<(u64, u64)> {
        let (start, size) = self.executables.segment(offset)?;
        let link = self.executables.link_address(start)?;
        let distance = self.base.wrapping_sub(link);
        let span = self.table().span();
        // As far as pages of memory go, all that is mapped is of the segment.
        let first = link % PAGE_SIZE as u64;
        let before = distance.wrapping_add(first);
        let all = first
            .wrapping_add(size)
            .checked_next_multiple_of(PAGE_SIZE as u64)?;
        let is_within = before <= all && span <= all.wrapping_sub(before);
        is_within.then(|| (start.wrapping_add(distance), span))
    }

    /// Makes a table of a section at a link-time address, and of the rows beside it, for an image.
    /// Task; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOEXEC`: `image` is no program or library for this machine. `EBADMSG`: the section, or a row
    /// beside it, is malformed. `EOPNOTSUPP`: it is of a kind that is not known. `EFBIG`: there is more than a
    /// table can hold. `ENOMEM`. `EIO`: `image` cannot be read.
    pub(crate) fn new<S: Source>(
        section: &KVVec<u8>,
        address: u64,
        extra_rows: &[u8],
        image: &S,
    ) -> Result<KBox<Self>> {
        let bytes = &section[..];
        let executables = elf::executables(image).map_err(elf_errno)?;
        let mut first = Section::open(bytes, address, bytes.len() as u64).map_err(section_errno)?;
        if first.abi() != NATIVE {
            return Err(Errno::NotSupported.into());
        }
        let code = Code { image, executables };
        first
            .settle_starts(bytes, |at| code.executables.holds(at, at))
            .map_err(section_errno)?;
        let most = table::count(bytes, &first, extra_rows).map_err(section_errno)?;
        let mut places = KVVec::from_elem(Place::default(), most, GFP_KERNEL)?;
        let is_code = |start, last| code.executables.holds(start, last);
        let functions =
            Functions::collect(bytes, &first, extra_rows, &mut places, is_code).map_err(errno)?;
        // A rule takes some bytes of a row.
        let most = (bytes.len() / 2).saturating_add(extra_rows.len() / table::EXTRA_ROW_SIZE);
        let room = MAX_RULES.min(most).saturating_add(1);
        let mut compact = repeated(CompactRule::NONE, room)?;
        let mut others = repeated(Rule::OUTERMOST, room)?;
        let mut numbers = KVVec::from_elem(0u16, room.saturating_mul(2), GFP_KERNEL)?;
        let mut rules = Rules::new(&mut compact, &mut others, &mut numbers);
        let plan = table::plan(&functions).map_err(errno)?;
        let mut pages = KVVec::from_elem(0u32, plan.pages, GFP_KERNEL)?;
        let mut blocks = KVVec::new();
        let count = table::fill(
            bytes,
            &code,
            &functions,
            &mut rules,
            &plan,
            &mut pages,
            |at, block| put(&mut blocks, at, block).map_err(|_| TableError::Memory),
        )
        .map_err(errno)?;
        let blocks = copied(&blocks, blocks.len())?;
        let (compact, others) = (rules.compact(), rules.others());
        let compact = copied(compact, compact.len())?;
        let others = copied(others, others.len())?;
        let made = Self {
            executables: code.executables,
            base: plan.base,
            pages,
            blocks,
            compact,
            others,
            count,
        };
        if !made.table().is_sound() {
            return Err(Errno::Malformed.into());
        }
        Ok(KBox::new(made, GFP_KERNEL)?)
    }

    /// How much memory it takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self)
            .wrapping_add(size_of_val(&*self.pages))
            .wrapping_add(self.blocks.len())
            .wrapping_add(size_of_val(&*self.compact))
            .wrapping_add(size_of_val(&*self.others))
    }
}

/// So many of the same. The `kernel` crate's own way to that is not free of panics for a `Rule`.
fn repeated<T: Copy>(one: T, count: usize) -> Result<KVVec<T>> {
    let mut all = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        push(&mut all, one)?;
    }
    Ok(all)
}

/// The same, with room for so many in all.
fn copied<T: Copy>(from: &[T], room: usize) -> Result<KVVec<T>> {
    let mut all = KVVec::with_capacity(room, GFP_KERNEL)?;
    for one in from {
        push(&mut all, *one)?;
    }
    Ok(all)
}

/// Writes a part that begins at `at`, and makes room for that. Nor is the `kernel` crate's way to that free
/// of panics.
fn put(all: &mut KVVec<u8>, at: usize, part: &[u8]) -> Result {
    let end = at.saturating_add(part.len());
    if all.capacity() < end {
        let room = all.capacity().saturating_mul(2).max(end).max(PAGE_SIZE);
        *all = copied(all, room)?;
    }
    while all.len() < end {
        push(all, 0)?;
    }
    let room = all.get_mut(at..).unwrap_or_default();
    for (to, from) in room.iter_mut().zip(part) {
        *to = *from;
    }
    Ok(())
}

/// Appends where there is room.
fn push<T>(all: &mut KVVec<T>, one: T) -> Result {
    all.push_within_capacity(one).map_err(|_| ENOMEM)
}

fn elf_errno(error: ElfError) -> Error {
    match error {
        ElfError::Fault { .. } => EIO,
        _ => ENOEXEC,
    }
}

fn section_errno(error: SectionError) -> Error {
    errno(error.into())
}

fn errno(error: TableError) -> Error {
    match error {
        TableError::Section(SectionError::Unsupported {
            what: Unsupported::Size,
        })
        | TableError::Span
        | TableError::Rules
        | TableError::TooLong => EFBIG,
        TableError::Memory => ENOMEM,
        TableError::Section(SectionError::Unsupported { .. }) => Errno::NotSupported.into(),
        TableError::Section(_) | TableError::Room | TableError::ExtraRow => Errno::Malformed.into(),
    }
}

/// The code of an image, at link-time addresses.
struct Code<'a, S> {
    image: &'a S,
    executables: Executables,
}

impl<S: Source> Source for Code<'_, S> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.image
            .read(self.executables.offset(offset).ok_or(Fault)?)
    }
}

/// A file as bytes from its start. Task; sleeps.
impl Source for File {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.read_into(offset, &mut bytes).map_err(|_| Fault)?;
        Ok(bytes)
    }
}

impl fast_path::Rows for Rows {
    type Block<'a> = Block<'a>;

    #[inline(always)]
    fn block(&self, distance: u64) -> Option<Block<'_>> {
        let at = self.table().block(distance)?;
        Some(Block { rows: self, at })
    }
}

/// Rows of a page of code, which begin at `at`: one of the pages'.
pub(crate) struct Block<'a> {
    rows: &'a Rows,
    at: u32,
}

impl fast_path::Block for Block<'_> {
    /// As [`Table::compact_rule`], but without looking again at what `Rows::new` has looked at: that is a sixth of
    /// all that a frame takes.
    #[inline(always)]
    fn compact_rule(&self, distance: u64) -> CompactRule {
        let low = distance as u8;
        // SAFETY: The table is sound, or `Rows::new` would have failed, and nothing changes it. So at `at`,
        // and at each third byte behind it up to one that is not less than any other, there is a byte
        // with a number of a rule in front of it.
        unsafe {
            let mut last = self.rows.blocks.as_ptr().add(self.at as usize);
            while *last < low {
                last = last.add(table::ROW);
            }
            let number = last.cast::<u16>().sub(1).read_unaligned();
            *self.rows.compact.as_ptr().add(usize::from(number))
        }
    }
}
