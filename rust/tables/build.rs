// SPDX-License-Identifier: GPL-2.0-only

//! Tables: built from a section in a task that may sleep, searched in any context.
//!
//! A build reads and checks all data of the table: a search reads no page of the file.

use crate::{
    arch::asm,
    sframe::{
        arch::machine::NATIVE,
        bytes::{
            Fault,
            Source, //
        },
        compact_rule::CompactRule,
        elf::{
            self,
            ElfError,
            ExecutableSegment,
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
            BlockStore,
            FunctionSpan,
            Functions,
            Indexes,
            Plan,
            Rules,
            Table,
            TableError,
            Work,
            MAX_RULES, //
        }, //
    },
    sys::{
        self,
        BuildMemory,
        Deadline,
        Errno,
        OpenFile, //
    },
    user_memory::Part, //
};
use kernel::{
    alloc::{
        flags::{
            GFP_KERNEL_ACCOUNT,
            __GFP_NOWARN,
            __GFP_ZERO, //
        },
        Flags, //
    },
    page::PAGE_SIZE,
    prelude::*, //
};

use core::{
    mem::{
        offset_of,
        MaybeUninit, //
    },
    ptr, //
};

/// The number of different rules for which a build has memory at first: libc has 325. A file with
/// more rules is built again, with memory for [`MAX_RULES`].
const FEW_RULES: usize = 4096;

/// The number of pages of a new table that are checked before other tasks may run.
const CHECKED_PAGES: usize = 1024;

/// The rows of a file, and the locations of its code.
///
/// The fast path searches a table without checks. It relies on three invariants:
///
/// * Each value comes from [`FileTable::new`], which requires [`Table::is_sound`] of the very
///   memory that the value keeps. What a section says cannot lead out of it: hostile rows give a
///   table that is sound, or none.
/// * Nothing changes the vectors of a value or their elements until the value is dropped. The
///   fields that a search uses are private to this file, and no function here takes a `FileTable`
///   by `&mut`. A move of the value into its box does not move the memory of its vectors, so the
///   addresses in `chunks` remain addresses in `blocks`.
/// * A value is published as a whole, by one pointer, and replaced by another value. C frees it,
///   with all its vectors, a grace period of RCU after it was withdrawn. So a reader in an NMI sees
///   the old table, the new one, or none, and what it has found stays until it is no reader any
///   more.
// In this order, so that the fast path's instructions are short.
#[repr(C)]
pub(crate) struct FileTable {
    /// The length of `pages`.
    pages_bound: asm::IndexBound,
    base: u64,
    /// The size of the code, in bytes from `base` on.
    span: u64,
    /// The page index of [`Table`].
    pages: KVVec<u16>,
    /// The chunk index of [`Table`]: addresses of bytes in `blocks`, as numbers. They own nothing,
    /// and no other table has them.
    chunks: KVVec<u64>,
    /// The blocks of [`Table`], from the beginning of a cache line on.
    blocks: KVVec<u8>,
    /// The rules of [`Table`].
    compact: KVVec<CompactRule>,
    others: KVVec<Rule>,
    /// The number of rows, without those that begin with a page of code.
    pub(crate) count: usize,
    segments: KVVec<ExecutableSegment>,
}

impl FileTable {
    /// The rule for the code at an offset in the file, in bytes, `None` if there is no row; and the
    /// number of rows that were searched.
    pub(crate) fn search(&self, offset: u64) -> (Option<Rule>, u32) {
        self.table().search(offset)
    }

    fn table(&self) -> Table<'_> {
        Table {
            base: self.base,
            chunks: &self.chunks,
            origin: self.blocks.as_ptr() as u64,
            pages: &self.pages,
            blocks: &self.blocks,
            compact: &self.compact,
            others: &self.others,
        }
    }

    /// The range of code that the table has rows for: its start as an offset in the file, and its
    /// size, both in bytes. `offset` is an offset in the file that selects a segment. `None` if
    /// part of the range is in another segment.
    pub(crate) fn code(&self, offset: u64) -> Option<(u64, u64)> {
        let (start, size) = Executables(&self.segments).segment(offset)?;
        let distance = self.base.wrapping_sub(start);
        let span = self.span;
        // A segment is mapped in whole pages of memory, so the rest of its first and last page
        // belongs to it.
        let first = start % PAGE_SIZE as u64;
        let before = distance.wrapping_add(first);
        let all = first
            .wrapping_add(size)
            .checked_next_multiple_of(PAGE_SIZE as u64)?;
        let is_within = before <= all && span <= all.wrapping_sub(before);
        is_within.then(|| (start.wrapping_add(distance), span))
    }

    /// Builds a table for an image from a section at a link-time address, and from extra rows.
    /// Task; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOEXEC`: `image` is no program or library for this machine. `EBADMSG`: the section, or an
    /// extra row, is malformed. `EOPNOTSUPP`: the kind of section is not supported. `EFBIG`: the
    /// rows exceed the size of a table, or the build takes too many steps or too much time.
    /// `EINTR`: the task was killed, or the module is being unloaded. `ENOMEM`. `ENOSPC`: `memory`
    /// is used up. `EIO`: `image` cannot be read.
    #[cfg_attr(sfu_size, optimize(size))]
    pub(crate) fn new(
        section: &KVVec<u8>,
        address: u64,
        extra_rows: &[u8],
        image: &TableImage<'_>,
        memory: &BuildMemory,
    ) -> Result<KBox<Self>> {
        let bytes = &section[..];
        let segments = segments(image, memory)?;
        let executables = Executables(&segments);
        let mut first =
            Section::open_for(bytes, address, bytes.len() as u64, NATIVE).map_err(section_errno)?;
        let code = ImageCode { image, executables };
        first
            .settle_starts(bytes, |at| code.executables.holds(at, at))
            .map_err(section_errno)?;
        let deadline = Deadline::of_build();
        let ask = || {
            deadline.check().map_err(|error| {
                if error == EINTR {
                    TableError::Ended
                } else {
                    TableError::TooLong
                }
            })
        };
        let len = bytes.len().saturating_add(extra_rows.len());
        let mut work = Work::new(len, ask);
        let most = table::count(bytes, &first, extra_rows, &mut work).map_err(errno)?;
        let mut places = zeros::<FunctionSpan>(most, memory)?;
        // A search of the table takes an offset in the file.
        let place = |start, last| {
            let executables = &code.executables;
            let offset = executables.offset(start);
            offset.filter(|_| executables.holds(start, last))
        };
        let functions =
            Functions::collect(bytes, &first, extra_rows, &mut places, place, &mut work)
                .map_err(errno)?;
        // Each rule comes from at least two bytes of a section, or from an extra row.
        let most = (bytes.len() / 2).saturating_add(extra_rows.len() / table::EXTRA_ROW_SIZE);
        let most = MAX_RULES.min(most);
        let key = sys::random_key();
        let plan = table::plan(&functions).map_err(errno)?;
        // A row of a table takes three bytes, as the end of a block does. The header may lie.
        let rows = (first.num_fres() as usize).min(bytes.len() / 2);
        let expected = rows.saturating_add(plan.pages).saturating_mul(table::ROW);
        let mut parts = Parts::new(&plan, expected, memory)?;
        let mut capacity = most.min(FEW_RULES);
        let (count, compact, others) = loop {
            // Two numbers stand for no rule of their own.
            let slots = capacity.saturating_add(2);
            let mut compact = zeros::<CompactRule>(slots, memory)?;
            let mut others = outermost(slots, memory)?;
            let mut numbers = zeros::<u16>(slots.saturating_mul(2), memory)?;
            let mut rules = Rules::new(&mut compact, &mut others, &mut numbers, key);
            let filled = table::fill(
                bytes,
                &code,
                &functions,
                &mut rules,
                &plan,
                &mut Indexes {
                    pages: &mut parts.pages,
                    chunks: &mut parts.chunks,
                    shared: parts.shared.first_chunk_mut().ok_or(ENOMEM)?,
                },
                &mut work,
                &mut parts.blocks,
            );
            if matches!(filled, Err(TableError::Rules)) && capacity < most {
                capacity = most;
                parts.blocks.used = 0;
                continue;
            }
            let count = filled.map_err(errno)?;
            break (
                count,
                with_copy(zeros(rules.compact().len(), memory)?, rules.compact()),
                with_copy(outermost(rules.others().len(), memory)?, rules.others()),
            );
        };
        let blocks = resized(&parts.blocks.bytes, parts.blocks.used, memory)?;
        // The vector is not changed any more, so its address is final. The cast exposes the
        // address.
        for chunk in parts.chunks.iter_mut() {
            *chunk = chunk.wrapping_add(blocks.as_ptr() as u64);
        }
        let made = Self {
            segments,
            base: plan.base,
            span: plan.span,
            pages_bound: asm::IndexBound::new(parts.pages.len()),
            pages: parts.pages,
            chunks: parts.chunks,
            blocks,
            compact,
            others,
            count,
        };
        for from in (0..made.pages.len()).step_by(CHECKED_PAGES) {
            ask().map_err(errno)?;
            let to = from.saturating_add(CHECKED_PAGES).min(made.pages.len());
            if !made.table().is_sound(from..to) {
                return Err(Errno::Malformed.into());
            }
        }
        Ok(KBox::new(made, GFP_KERNEL)?)
    }

    /// The memory of the rows, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self)
            .wrapping_add(size_of_val(&*self.pages))
            .wrapping_add(size_of_val(&*self.chunks))
            .wrapping_add(self.blocks.len())
            .wrapping_add(size_of_val(&*self.compact))
            .wrapping_add(size_of_val(&*self.others))
            .wrapping_add(size_of_val(&*self.segments))
    }
}

/// Flags for the allocations of builds. A failed allocation is expected, and not logged: the user
/// chooses the size.
fn gfp() -> Flags {
    GFP_KERNEL_ACCOUNT | __GFP_NOWARN
}

/// Types that have a value whose bytes are all 0.
///
/// # Safety
///
/// If all bytes of a value are 0, the value is valid.
pub(crate) unsafe trait ZeroBytes: Copy {}

macro_rules! zero_bytes {
    ($($type:ty)*) => {
        $(
            // SAFETY: The type is an integer, or a structure of integers: 0 is a value of each
            // field.
            unsafe impl ZeroBytes for $type {}
        )*
    };
}

zero_bytes! { u8 u16 u64 ExecutableSegment CompactRule FunctionSpan }

/// `count` values of zeros.
pub(crate) fn zeros<T: ZeroBytes>(count: usize, memory: &BuildMemory) -> Result<KVVec<T>> {
    memory.take::<T>(count)?;
    let all = KVVec::with_capacity(count, gfp() | __GFP_ZERO)?;
    let (values, _, capacity) = all.into_raw_parts();
    // SAFETY: The parts come from `into_raw_parts`. The capacity is at least `count`, and the
    // allocator has filled the memory with zeros, which are a value of a `ZeroBytes`.
    Ok(unsafe { KVVec::from_raw_parts(values, count, capacity) })
}

/// `count` equal rules. The function for this in the `kernel` crate can panic.
#[inline(never)]
fn outermost(count: usize, memory: &BuildMemory) -> Result<KVVec<Rule>> {
    memory.take::<Rule>(count)?;
    let mut all = KVVec::with_capacity(count, gfp())?;
    let spare = all.spare_capacity_mut();
    spare
        .get_mut(..count)
        .ok_or(ENOMEM)?
        .fill(MaybeUninit::new(Rule::OUTERMOST));
    let (values, _, capacity) = all.into_raw_parts();
    // SAFETY: The parts come from `into_raw_parts`. The capacity is at least `count`, and the first
    // `count` values were written.
    Ok(unsafe { KVVec::from_raw_parts(values, count, capacity) })
}

/// `to` with the first values of `from`.
fn with_copy<T: Copy>(mut to: KVVec<T>, from: &[T]) -> KVVec<T> {
    copy(&mut to, from);
    to
}

/// The executable segments of an image.
#[inline(never)]
fn segments(image: &TableImage<'_>, memory: &BuildMemory) -> Result<KVVec<ExecutableSegment>> {
    let count = elf::executables(image, &mut []).map_err(elf_errno)?;
    let mut found = zeros(count, memory)?;
    // A writer of the file may have changed its headers: segments of size 0 hold nothing.
    elf::executables(image, &mut found).map_err(elf_errno)?;
    Ok(found)
}

/// The parts of a table that is being built, apart from the rules.
struct Parts<'a> {
    pages: KVVec<u16>,
    chunks: KVVec<u64>,
    shared: KVVec<u64>,
    blocks: Blocks<'a>,
}

impl<'a> Parts<'a> {
    /// Parts with memory for `expected` bytes of blocks.
    #[inline(never)]
    fn new(plan: &Plan, expected: usize, memory: &'a BuildMemory) -> Result<Self> {
        Ok(Self {
            pages: zeros(plan.pages, memory)?,
            chunks: zeros(plan.chunks(), memory)?,
            shared: zeros(table::SHARED, memory)?,
            blocks: Blocks {
                bytes: zeros(expected, memory)?,
                used: 0,
                memory,
            },
        })
    }
}

/// The blocks of a table that is being built.
struct Blocks<'a> {
    /// The blocks, followed by zeros.
    bytes: KVVec<u8>,
    /// The end of the last block, in bytes.
    used: usize,
    memory: &'a BuildMemory,
}

impl BlockStore for Blocks<'_> {
    fn put(&mut self, at: usize, block: &[u8]) -> Option<()> {
        let end = at.saturating_add(block.len());
        if self.bytes.len() < end {
            let len = self.bytes.len().saturating_mul(2).max(end).max(PAGE_SIZE);
            let longer = resized(&self.bytes, len, self.memory).ok()?;
            self.memory.give::<u8>(self.bytes.len());
            self.bytes = longer;
        }
        copy(self.bytes.get_mut(at..).unwrap_or_default(), block);
        self.used = self.used.max(end);
        Some(())
    }

    fn get(&self, at: usize, len: usize) -> Option<&[u8]> {
        self.bytes.get(at..)?.get(..len)
    }
}

/// A copy of `from` with `len` bytes: cut there, or filled up with zeros.
#[inline(never)]
fn resized(from: &[u8], len: usize, memory: &BuildMemory) -> Result<KVVec<u8>> {
    Ok(with_copy(zeros(len, memory)?, from))
}

/// Copies up to the end of the shorter slice.
fn copy<T: Copy>(to: &mut [T], from: &[T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

fn elf_errno(error: ElfError) -> Error {
    match error {
        ElfError::Fault { .. } => EIO,
        _ => ENOEXEC,
    }
}

#[inline(never)]
fn section_errno(error: SectionError) -> Error {
    errno(error.into())
}

#[inline(never)]
fn errno(error: TableError) -> Error {
    match error {
        TableError::Section(SectionError::Unsupported {
            what: Unsupported::Size,
        })
        | TableError::Span
        | TableError::Rules
        | TableError::TooLong => EFBIG,
        TableError::Ended => EINTR,
        TableError::Memory => ENOMEM,
        TableError::Section(SectionError::Unsupported { .. }) => Errno::NotSupported.into(),
        TableError::Section(_) | TableError::BufferTooSmall | TableError::ExtraRow => {
            Errno::Malformed.into()
        }
    }
}

/// The code of an image, at link-time addresses.
struct ImageCode<'a> {
    image: &'a TableImage<'a>,
    executables: Executables<'a>,
}

impl Source for ImageCode<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.image
            .read(self.executables.offset(offset).ok_or(Fault)?)
    }
}

/// An image as bytes from its start. An enum, so that a table build is compiled once only. Task;
/// sleeps.
pub(crate) enum TableImage<'a> {
    /// A file.
    File(&'a OpenFile),
    /// The vDSO, as the current task has it mapped.
    Vdso(Part<'a>),
}

impl TableImage<'_> {
    /// Reads all of `bytes` at `offset`, in bytes.
    #[inline(never)]
    fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        match self {
            TableImage::File(file) => file.read_into(offset, bytes).map_err(|_| Fault),
            TableImage::Vdso(part) => part.read_into(offset, bytes),
        }
    }
}

impl Source for TableImage<'_> {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.read_into(offset, &mut bytes)?;
        Ok(bytes)
    }
}

impl fast_path::RowSource for FileTable {
    type Block<'a> = BlockRef<'a>;

    #[inline(always)]
    fn block(&self, distance: u64) -> Option<BlockRef<'_>> {
        let page = (distance / table::PAGE) as usize;
        if page >= self.pages_bound.len() {
            return None;
        }
        // User memory is open to the processor's guesses here.
        // SAFETY: The bound is a field of `self`.
        let page = unsafe {
            asm::below::<{ offset_of!(FileTable, pages_bound) }>(page, ptr::from_ref(self).cast())
        };
        // SAFETY: `page` is below the length of `pages`, and nobody changes `pages`.
        let at = unsafe { *self.pages.as_ptr().add(page) };
        // SAFETY: `pages` has the entry `page`. By the invariants of `FileTable` the table is sound
        // as it is, so `chunks` has an entry for the chunk of each page, and that entry plus `at`,
        // modulo 2^64, is the address of a byte in `blocks`: `is_sound` has computed the same sum.
        // `new` has exposed the address of `blocks`, which lives as long as `self`.
        let first = unsafe {
            let chunk = *self.chunks.as_ptr().add(page / table::CHUNK);
            chunk.wrapping_add(at.into()) as *const u8
        };
        Some(BlockRef { rows: self, first })
    }

    #[inline(always)]
    fn holds(&self, distance: u64) -> bool {
        distance.wrapping_sub(1) < self.span
    }
}

/// A block of a table.
pub(crate) struct BlockRef<'a> {
    rows: &'a FileTable,
    /// The low byte of the block's first row: a byte of `rows.blocks`, which lives as long as `'a`.
    first: *const u8,
}

impl fast_path::Block for BlockRef<'_> {
    /// Like [`Table::compact_rule`], but without checks that `FileTable::new` has already made.
    /// They would cost a sixth of the instructions of a frame.
    #[inline(always)]
    fn compact_rule(&self, ra: u64) -> CompactRule {
        // The low byte of the distance, because ranges start at multiples of a page of code.
        let low = ra as u8;
        // SAFETY: `first` belongs to a page of `rows`, a sound table by the invariants of
        // `FileTable`. So `first`, and each third byte behind it up to the first one with the
        // highest value, is a byte of `blocks`. No value of `low` is higher than the highest, so
        // the loop ends there at the latest. In front of each of these bytes are two more bytes of
        // `blocks`, a number below the length of `compact`.
        unsafe {
            let mut last = self.first;
            // Six rows in a turn: two instructions a row.
            let number = 'found: loop {
                for _ in 0..6 {
                    if *last >= low {
                        break 'found u16::from_le(last.cast::<u16>().sub(1).read_unaligned());
                    }
                    last = last.add(table::ROW);
                }
            };
            *self.rows.compact.as_ptr().add(usize::from(number))
        }
    }
}
