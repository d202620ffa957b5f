// SPDX-License-Identifier: GPL-2.0-only

//! Tables by file: made where one may sleep, found from any context.
//!
//! A table holds nothing but what was read and checked when it was made: to search it takes no page
//! of the file.

use crate::{
    sframe::{
        abi::Abi,
        bytes::{
            Fault,
            Source, //
        },
        elf::{
            self,
            ElfError,
            Executables, //
        },
        error::{
            Error as SectionError,
            Unsupported, //
        },
        plain::{
            self,
            Plain, //
        },
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
        },
        walk::TableAnswer, //
    },
    stats,
    sys::{
        self,
        Errno,
        File,
        FileKey,
        Origin,
        TableState, //
    },
    user_memory::{
        Part,
        UserMemory, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::rcu, //
};

/// The ABI of this machine, whose sections alone are of use.
pub(crate) const NATIVE: Abi = Abi::Amd64;

/// The longest section that is taken, in bytes.
pub(crate) const MAX_SECTION: usize = 64 << 20;
/// How much of the vDSO is looked at, in bytes.
const MAX_VDSO: u64 = 64 << 10;

/// The rows of a file, and where its code is.
pub(crate) struct Rows {
    executables: Executables,
    base: u64,
    pages: KVVec<u32>,
    /// Those of [`Table`], from the beginning of a cache line on.
    blocks: KVVec<u8>,
    plain: KVVec<Plain>,
    others: KVVec<Rule>,
    /// How many rows it has, but for those that begin with a page.
    count: usize,
}

impl Rows {
    /// The rule for the code at an offset in the file, in bytes; `None` if there is no row.
    fn find(&self, offset: u64) -> Option<Rule> {
        self.table().find(self.executables.link_address(offset)?)
    }

    fn table(&self) -> Table<'_> {
        Table {
            base: self.base,
            pages: &self.pages,
            blocks: &self.blocks,
            plain: &self.plain,
            others: &self.others,
        }
    }

    /// All code that it has rows for, of the segment that has an offset in the file: where in the file it
    /// begins, and its size, both in bytes. `None` if some is of another segment.
    fn code(&self, offset: u64) -> Option<(u64, u64)> {
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
    fn new<S: Source>(
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
        let mut plain = repeated(Plain::NONE, room)?;
        let mut others = repeated(Rule::OUTERMOST, room)?;
        let mut numbers = KVVec::from_elem(0u16, room.saturating_mul(2), GFP_KERNEL)?;
        let mut rules = Rules::new(&mut plain, &mut others, &mut numbers);
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
        let (plain, others) = (rules.plain(), rules.others());
        let plain = copied(plain, plain.len())?;
        let others = copied(others, others.len())?;
        let made = Self {
            executables: code.executables,
            base: plan.base,
            pages,
            blocks,
            plain,
            others,
            count,
        };
        if !made.table().is_sound() {
            return Err(Errno::Malformed.into());
        }
        Ok(KBox::new(made, GFP_KERNEL)?)
    }

    /// How much memory it takes, in bytes.
    fn bytes(&self) -> usize {
        size_of_val(self)
            .wrapping_add(size_of_val(&*self.pages))
            .wrapping_add(self.blocks.len())
            .wrapping_add(size_of_val(&*self.plain))
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

impl plain::Rows for Rows {
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

impl plain::Block for Block<'_> {
    /// As [`Table::plain`], but without looking again at what `Rows::new` has looked at: that is a sixth of
    /// all that a frame takes.
    #[inline(always)]
    fn plain(&self, distance: u64) -> Plain {
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
            *self.rows.plain.as_ptr().add(usize::from(number))
        }
    }
}

/// Has walks of this CPU find the code at a run-time address in a mapping of the current task that has
/// a table. Any context.
#[inline(never)]
pub(crate) fn keep_place(address: u64, mapping: &sys::Mapping) {
    let guard = rcu::read_lock();
    let to_offset = mapping.offset.wrapping_sub(mapping.start);
    let code = sys::table_rows(mapping.table, &guard)
        .and_then(|rows| rows.code(address.wrapping_add(to_offset)));
    let Some((offset, size)) = code else {
        return;
    };
    let start = offset.wrapping_sub(to_offset);
    let distance = start.wrapping_sub(mapping.start);
    let len = mapping.end.wrapping_sub(mapping.start);
    if distance > len || size > len.wrapping_sub(distance) {
        return;
    }
    if let Some(mut places) = sys::Places::enter() {
        places.put(start, size, mapping);
    }
}

/// What the table of this number says of the code at an offset in its file, in bytes. Any context.
#[inline(never)]
pub(crate) fn rule_at(number: u64, offset: u64) -> TableAnswer<()> {
    let guard = rcu::read_lock();
    match sys::table_rows(number, &guard) {
        None => TableAnswer::Gone,
        Some(rows) => match rows.find(offset) {
            Some(rule) => TableAnswer::Rule(rule, ()),
            None => TableAnswer::NoRow,
        },
    }
}

/// What rows are added for.
pub(crate) enum Target {
    /// This file.
    File(File),
    /// The vDSO of all tasks.
    Vdso,
}

impl Target {
    fn key(&self) -> FileKey {
        match self {
            Target::File(file) => FileKey::of(file),
            Target::Vdso => FileKey::vdso(),
        }
    }
}

/// Adds the rows of a section that is as if at link-time address 0, and those beside it, in place of
/// those that there were; of an empty one none, and none will be asked for. They are of the user `owner`, and
/// count to `user`. Task; sleeps.
///
/// # Errors
///
/// See [`Rows::new`] and [`sys::publish`]; `ESTALE` if the file was written to meanwhile.
pub(crate) fn add(
    section: &KVVec<u8>,
    extra_rows: &KVVec<u8>,
    target: &Target,
    owner: u32,
    user: u32,
) -> Result {
    let key = target.key();
    let rows = match target {
        _ if section.is_empty() => None,
        Target::File(file) => Some(Rows::new(section, 0, extra_rows, file)?),
        Target::Vdso => {
            let memory = UserMemory::sleeping(0);
            let image = Part {
                memory: &memory,
                address: sys::vdso().ok_or(ENOENT)?,
                len: MAX_VDSO,
            };
            Some(Rows::new(section, 0, extra_rows, &image)?)
        }
    };
    if target.key() != key {
        return Err(Errno::Stale.into());
    }
    let state = TableState {
        origin: Origin::Added as u32,
        user,
        owner,
        ..TableState::default()
    };
    publish(&key, state, rows)
}

/// Takes the rows of a file away. Task; sleeps.
///
/// # Errors
///
/// See [`sys::withdraw`].
pub(crate) fn remove(target: &Target, user: u32) -> Result {
    sys::withdraw(&target.key(), user)
}

/// Makes a table of a file's own section, if it has one. What is found is remembered either way,
/// but for a while if the file cannot be read. Task; sleeps.
pub(crate) fn meet(file: &File, met: &TableState, may_read: bool) {
    let key = FileKey::of(file);
    if key.is_known() {
        return;
    }
    let mut state = *met;
    let rows = match own_rows(file, may_read, &mut state) {
        Ok(rows) => rows,
        // Not now.
        Err(error) if error == EIO || error == ENOMEM => {
            state.origin = Origin::Unreadable as u32;
            None
        }
        Err(error) => {
            stats::bad_section();
            state.error = error.to_errno().unsigned_abs();
            None
        }
    };
    if rows.is_some() {
        state.origin = Origin::Section as u32;
    } else if state.origin == 0 {
        state.origin = Origin::NoRows as u32;
    }
    // Written to meanwhile, it is met again as another one.
    if FileKey::of(file) == key && publish(&key, state, rows).is_err() {
        // There is no room. To make the table with each sample, for nothing, would be worse.
        state.origin = Origin::Unreadable as u32;
        let _ = publish(&key, state, None);
    }
}

/// The table of a file's own section; `None` if there is none, or none that may be read here.
fn own_rows(file: &File, may_read: bool, state: &mut TableState) -> Result<Option<KBox<Rows>>> {
    if !may_read {
        return Ok(None);
    }
    let place = match elf::section_of_file(file) {
        Ok(place) => place,
        Err(ElfError::Fault { .. }) => return Err(EIO),
        Err(_) => return Ok(None),
    };
    if let Ok((id, len)) = elf::build_id(file) {
        state.build_id = id;
        state.build_id_len = len as u32;
    }
    let Some(place) = place else {
        return Ok(None);
    };
    let len = usize::try_from(place.filesz)?;
    if len > MAX_SECTION {
        return Err(EFBIG);
    }
    let mut section = KVVec::from_elem(0u8, len, GFP_KERNEL)?;
    file.read_into(place.offset, &mut section)
        .map_err(|error| {
            // The file may be shorter than it says.
            if error == Errno::NoData.into() {
                Errno::Malformed.into()
            } else {
                EIO
            }
        })?;
    Rows::new(&section, place.vaddr, &[], file).map(Some)
}

fn publish(key: &FileKey, mut state: TableState, rows: Option<KBox<Rows>>) -> Result {
    if let Some(rows) = &rows {
        state.bytes = rows.bytes() as u64;
        state.rows = rows.count as u64;
    }
    sys::publish(key, &state, rows)
}
