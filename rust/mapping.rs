// SPDX-License-Identifier: GPL-2.0-only

//! Finds the file that is mapped at a PC, and the file's table or SFrame section.
//!
//! A walk keeps only numbers of a file: it finds the section through the ELF headers that the
//! task itself has mapped, and reads the section from the task's memory.

use crate::{
    sframe::{
        arch::machine::NATIVE,
        bytes::Fault,
        elf::{
            self,
            ElfError, //
        },
        runtimes::Region,
        section::Section,
        stop_reason::StopReason,
        table::PAGE,
        walk::{
            self,
            locate::RowsLocation,
            FramePointerUse,
            FunctionTable,
            MappedRows, //
        }, //
    },
    sys::{
        self,
        RegionDescription, //
    },
    tables::{
        self,
        RegionGuard, //
    },
    user_memory::{
        Part,
        UserMemory,
        CODE_CACHE,
        VISIT, //
    }, //
};
use core::{
    cell::Cell,
    ops::Range, //
};
use kernel::prelude::*;

/// The work of asking the worker for a file: the user's credentials, and a search of 64 slots.
const QUEUE: u32 = 120;
/// The work of finding the table of a file, and of keeping its range in the code cache.
const TABLE: u32 = 80;
/// The work of the search for a region. With the most entries of one hash, it is three times as
/// large.
const REGION: u32 = 20;
/// The work that a scan leaves to the walk of the same sample.
const FOR_WALK: u32 = 2_200;

/// The table of a file, as a walk finds it.
#[derive(Clone, Copy)]
pub(crate) struct TableRef {
    /// The number of the table.
    pub(crate) number: u64,
    /// The value to add to a run-time address to get an offset in the file, in bytes.
    pub(crate) to_offset: u64,
}

/// The rows of a mapping of the current task.
pub(crate) type TaskRows = MappedRows<Section, TableRef>;
/// A mapping of the current task.
pub(crate) type TaskMapping = walk::Mapping<Section, TableRef>;

/// Code without rows in which walks follow the frame pointer: the first 4 GiB of it.
// 16 bytes, because a walk has few bytes of stack to spare.
#[derive(Clone, Copy)]
pub(crate) struct PlainCode {
    /// The run-time address of the start.
    pub(crate) start: u64,
    /// The length in bytes.
    pub(crate) len: u32,
    frame_pointer: FramePointerUse,
}

impl PlainCode {
    /// No code.
    pub(crate) const NONE: Self = Self {
        start: 0,
        len: 0,
        frame_pointer: FramePointerUse::MayKeep,
    };
}

/// Sets `mapping` to the mapping at a run-time address. `plain_code` is the plain code that a call
/// found last; the caller initialises it. Any context.
///
/// # Errors
///
/// [`StopReason::NotMapped`], [`StopReason::MappingMoved`], [`StopReason::Budget`]. Then `mapping`
/// covers nothing.
#[inline(never)]
pub(crate) fn find(
    mapping: &mut TaskMapping,
    address: u64,
    memory: &UserMemory,
    plain_code: &Cell<PlainCode>,
) -> Result<(), StopReason> {
    let known = plain_code.get();
    if address.wrapping_sub(known.start) < known.len.into() {
        *mapping = TaskMapping {
            start: known.start,
            end: known.start.wrapping_add(known.len.into()),
            rows: MappedRows::None(FunctionTable::NONE),
            frame_pointer: known.frame_pointer,
            executable: true,
        };
        return Ok(());
    }
    mapping.end = 0;
    if find_known(mapping, address, memory) {
        return Ok(());
    }
    let mut found = sys::Mapping::none();
    let result = sys::find_mapping(address, &mut found);
    let of_table = if found.is_file { TABLE } else { 0 };
    take_visits(&mut found, memory, of_table)?;
    result.map_err(reason_of)?;
    if !found.is_known {
        queue(address, memory);
    }
    mapping.start = 0;
    mapping.end = u64::MAX;
    let mut region = RegionCheck::None;
    if !found.has_rows {
        region = region_at(address, &mut found, memory, mapping);
        // Without the budget, the region is not known.
        if memory.is_spent() {
            mapping.end = 0;
            return Err(StopReason::Budget);
        }
    } else {
        tables::keep_range(address, &found, RegionGuard::default());
    }
    if found.has_rows {
        mapping.rows = MappedRows::Table(TableRef {
            number: found.table,
            to_offset: found.offset.wrapping_sub(found.start),
        });
    } else if region != RegionCheck::Found {
        if found.executable && !found.is_file {
            let result = sys::find_lower_file(&mut found);
            let result = take_visits(&mut found, memory, 0).and(result.map_err(reason_of));
            if result.is_err() {
                mapping.end = 0;
                return result;
            }
        }
        mapping.rows = MappedRows::None(FunctionTable::NONE);
        if !found.keeps_frame_pointer {
            rows_of(address, &found, memory, &mut mapping.rows);
        }
        if mapping.rows.are_none() && region == RegionCheck::Unknown {
            mapping.rows = MappedRows::Region(Region::Stop);
        }
    }
    mapping.start = mapping.start.max(found.start);
    mapping.end = mapping.end.min(found.end);
    mapping.frame_pointer = match found.keeps_frame_pointer {
        true => FramePointerUse::Keeps,
        false => mapping.rows.frame_pointer_use(found.is_file),
    };
    mapping.executable = found.executable;
    if mapping.frame_pointer != FramePointerUse::Unknown
        && mapping.executable
        && matches!(mapping.rows, MappedRows::None(_))
    {
        plain_code.set(PlainCode {
            start: mapping.start,
            len: u32::try_from(mapping.end.wrapping_sub(mapping.start)).unwrap_or(u32::MAX),
            frame_pointer: mapping.frame_pointer,
        });
    }
    Ok(())
}

/// As [`find`], for the code of a file that this CPU's code cache has. False for other code.
#[inline(never)]
fn find_known(mapping: &mut TaskMapping, address: u64, memory: &UserMemory) -> bool {
    if memory.take(CODE_CACHE).is_err() {
        return false;
    }
    let Some(known) = tables::known_code(address) else {
        return false;
    };
    let rows = MappedRows::Table(TableRef {
        number: known.table,
        to_offset: known.to_offset,
    });
    *mapping = TaskMapping {
        start: known.code.start,
        end: known.code.end,
        frame_pointer: match known.keeps_frame_pointer {
            true => FramePointerUse::Keeps,
            false => rows.frame_pointer_use(known.is_file),
        },
        executable: true,
        rows,
    };
    true
}

/// Checks that code is mapped at a run-time address. Returns the range of the mapping. Any context.
///
/// # Errors
///
/// [`StopReason::NotExecutable`], and the errors of [`find`].
#[cold]
#[inline(never)]
pub(crate) fn check_code(address: u64, memory: &UserMemory) -> Result<Range<u64>, StopReason> {
    let mut found = sys::Mapping::none();
    let result = sys::find_mapping(address, &mut found);
    take_visits(&mut found, memory, 0)?;
    result.map_err(reason_of)?;
    found
        .executable
        .then_some(found.start..found.end)
        .ok_or(StopReason::NotExecutable)
}

/// Counts a walk that was cut in the code at a run-time address, for the code's file. True if user
/// space has not answered about that file, and may do so. Any context.
#[cold]
#[inline(never)]
pub(crate) fn count_cut(address: u64, memory: &UserMemory) -> bool {
    let mut found = sys::Mapping::none();
    let result = sys::find_mapping(address, &mut found);
    if take_visits(&mut found, memory, TABLE).is_err() || result.is_err() {
        return false;
    }
    if found.table != 0 {
        sys::count_cut(found.table);
    }
    found.is_file && found.is_awaited
}

/// The reason to stop where no mapping was found.
fn reason_of(error: kernel::error::Error) -> StopReason {
    if error == ENOENT {
        StopReason::NotMapped
    } else {
        StopReason::MappingMoved
    }
}

/// Takes the work of reading mappings, and `more` work.
#[inline(never)]
fn take_visits(
    mapping: &mut sys::Mapping,
    memory: &UserMemory,
    more: u32,
) -> Result<(), StopReason> {
    let visits = core::mem::take(&mut mapping.visits);
    memory
        .take(u32::from(visits).wrapping_mul(VISIT).wrapping_add(more))
        .map_err(|Fault| StopReason::Budget)
}

/// What is known of the regions at an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RegionCheck {
    /// There is a region.
    Found,
    /// There is none.
    None,
    /// There is none yet, but the process has others: it has a runtime whose code need not set up
    /// frame pointers. So a walk ends there until user space says that there is no region.
    Unknown,
}

/// As [`search_region`]. If the region has rows, its range is kept with the region's guard.
// Two functions: the search has the region's description on the stack, which is free again here.
#[inline(never)]
fn region_at(
    address: u64,
    mapping: &mut sys::Mapping,
    memory: &UserMemory,
    to: &mut TaskMapping,
) -> RegionCheck {
    match search_region(address, mapping, memory, to) {
        Ok(guard) => {
            tables::keep_range(address, mapping, guard);
            RegionCheck::Found
        }
        Err(without_rows) => without_rows,
    }
}

/// Finds the region of code of no file at a run-time address. `to` gets the range of the region, or
/// of the code between two regions. If the region has rows, `mapping` becomes the region's part of
/// it, in the table's file, and the result is the region's guard; otherwise `to` gets the region.
#[inline(never)]
fn search_region(
    address: u64,
    mapping: &mut sys::Mapping,
    memory: &UserMemory,
    to: &mut TaskMapping,
) -> Result<RegionGuard, RegionCheck> {
    if mapping.is_file || mapping.is_vdso || !mapping.executable {
        return Err(RegionCheck::None);
    }
    let mut found = RegionDescription::default();
    if memory.take(REGION).is_err() {
        return Err(RegionCheck::None);
    }
    let answer = sys::find_region(address, mapping, &mut found);
    to.start = found.start;
    to.end = found.end;
    let holds = || {
        found.guard == 0
            || memory
                .read(found.guard)
                .is_ok_and(|word| u64::from_ne_bytes(word) == found.guard_value)
    };
    let is_described = u32::from(found.kind) != sys::REGION_NONE;
    if !is_described || !holds() {
        if !answer.is_asked() && !memory.is_spent() {
            // A region whose guard has changed is wanted anew.
            queue(address, memory);
        }
        return Err(if is_described || !answer.is_plain() {
            RegionCheck::Unknown
        } else {
            RegionCheck::None
        });
    }
    if u32::from(found.kind) == sys::REGION_ROWS {
        // The range in the code cache is whole pages of the table. It has to lie in the mapping.
        let start = mapping.start.max(found.start & !(PAGE - 1));
        let last = found.end.wrapping_sub(1) | (PAGE - 1);
        if last < mapping.end {
            mapping.end = last.wrapping_add(1);
        }
        mapping.offset = found
            .rows_offset
            .wrapping_add(start.wrapping_sub(found.start));
        mapping.start = start;
        mapping.table = found.table;
        mapping.has_rows = true;
        return Ok(RegionGuard {
            address: found.guard,
            value: found.guard_value,
        });
    }
    to.rows = MappedRows::Region(found.region());
    Err(RegionCheck::Found)
}

/// The run-time address at which the mapping at `address` ends; 0 if nothing is mapped there, or if
/// `memory` has no work left. Any context.
#[inline(never)]
pub(crate) fn end_of(address: u64, memory: &UserMemory) -> u64 {
    let mut mapping = sys::Mapping::none();
    let result = sys::find_mapping(address, &mut mapping);
    let is_paid = take_visits(&mut mapping, memory, 0).is_ok();
    if is_paid && result.is_ok() {
        mapping.end
    } else {
        0
    }
}

/// Whether a task has rows.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ScanResult {
    /// The task has rows.
    Rows = sys::SFU_ROWS,
    /// The task has no rows.
    NoRows = sys::SFU_NO_ROWS,
    /// All mappings were seen, but nothing is known yet about some of their files.
    Unsure = sys::SFU_UNSURE,
    /// No work is left, or the mappings are changing.
    Unfinished = sys::SFU_UNFINISHED,
}

/// Asks the worker for the file at a run-time address. Whether the file is known, or will be.
fn queue(address: u64, memory: &UserMemory) -> bool {
    memory.take(QUEUE).is_ok() && sys::queue_file(address)
}

/// Continues a scan of the current task's mappings for rows. Any context; never sleeps.
pub(crate) fn scan(scan: &mut sys::Scan) -> ScanResult {
    let memory = UserMemory::atomic(0, 0);
    let result = scan_with(&memory, scan);
    scan.spent = memory.spent();
    result
}

/// As [`scan`]. `memory` has the budget of the scan and of the walk of this sample.
fn scan_with(memory: &UserMemory, scan: &mut sys::Scan) -> ScanResult {
    let pc = core::mem::take(&mut scan.pc);
    if pc != 0 {
        // Most tasks with rows have rows for the code at the PC.
        let mut mapping = sys::Mapping::none();
        let is_found = sys::find_mapping(pc, &mut mapping).is_ok() && mapping.is_file;
        if take_visits(&mut mapping, memory, 0).is_ok()
            && is_found
            && look_at(&mapping, memory, scan)
        {
            return ScanResult::Rows;
        }
    }
    loop {
        // No more mappings than the budget pays for. A mapping that was found is always looked at:
        // a later scan goes on behind it.
        let most = memory.left().saturating_sub(FOR_WALK) / VISIT;
        let left = scan.left.min(most);
        scan.left = left;
        let next = sys::next_of_scan(scan);
        let visits = left.saturating_sub(scan.left);
        let _ = memory.take(visits.saturating_mul(VISIT));
        match next {
            Ok(mapping) if look_at(&mapping, memory, scan) => return ScanResult::Rows,
            Ok(_) => {}
            Err(ENOENT) if scan.is_unsure => return ScanResult::Unsure,
            Err(ENOENT) => return ScanResult::NoRows,
            Err(_) => return ScanResult::Unfinished,
        }
    }
}

/// Whether the file of a mapping has rows.
fn look_at(mapping: &sys::Mapping, memory: &UserMemory, scan: &mut sys::Scan) -> bool {
    if mapping.has_rows || mapping.keeps_frame_pointer {
        return true;
    }
    // The worker or user space may find rows that the headers do not show.
    if !mapping.is_known && !queue(mapping.start, memory) {
        scan.is_unsure = true;
    }
    match head_of(mapping, memory).map(|head| elf::has_sframe(&head)) {
        Some(Ok(has_sframe)) => has_sframe,
        Some(Err(ElfError::Fault { .. })) => {
            scan.is_unsure = true;
            false
        }
        Some(Err(_)) | None => false,
    }
}

/// The headers of the mapping's file, as the task has them mapped; `None` if they are not mapped
/// near.
fn head_of<'a>(mapping: &sys::Mapping, memory: &'a UserMemory) -> Option<Part<'a>> {
    (mapping.is_file && mapping.head_size != 0).then(|| Part {
        memory,
        address: mapping.head,
        len: mapping.head_size.into(),
    })
}

/// Finds the file's own rows for the code at a run-time address in the mapping, and sets `rows` to
/// them.
// Not inlined, and neither are its callees, so that each callee's stack is free for the next one.
// They set `rows` in place: returned values took 200 bytes of stack more, and a walk then needed
// 1,208.
#[inline(never)]
fn rows_of(address: u64, mapping: &sys::Mapping, memory: &UserMemory, rows: &mut TaskRows) {
    match rows_location(address, mapping, memory) {
        Ok(RowsLocation::Section { address, len }) => {
            open(address, len, memory, rows);
            settle_starts(mapping, memory, rows);
        }
        Ok(RowsLocation::None(_)) if is_replaced(mapping, memory) => *rows = MappedRows::Replaced,
        Ok(RowsLocation::None(functions)) => *rows = MappedRows::None(functions),
        Err(Fault) => *rows = MappedRows::Unknown,
    }
}

/// Whether the mapping is code that belongs to no file, at the address of a file's code.
#[inline(never)]
fn is_replaced(mapping: &sys::Mapping, memory: &UserMemory) -> bool {
    if mapping.is_file || !mapping.executable {
        return false;
    }
    let head = Part {
        memory,
        address: mapping.head,
        len: mapping.head_size.into(),
    };
    elf::loads_code(&head, mapping.start.wrapping_sub(mapping.head)).unwrap_or(false)
}

/// The location of the rows for the code at a run-time address. `Fault`: a header cannot be read
/// now.
#[inline(never)]
fn rows_location(
    address: u64,
    mapping: &sys::Mapping,
    memory: &UserMemory,
) -> Result<RowsLocation, Fault> {
    let distance = address.wrapping_sub(mapping.start);
    let (head, offset) = match head_of(mapping, memory) {
        Some(head) => (head, distance.wrapping_add(mapping.offset)),
        // The vDSO is mapped as a whole ELF image, and belongs to no file.
        None if mapping.executable && !mapping.is_file => {
            let image = Part {
                memory,
                address: mapping.start,
                len: mapping.end.wrapping_sub(mapping.start),
            };
            (image, distance)
        }
        None => return Ok(RowsLocation::None(FunctionTable::NONE)),
    };
    RowsLocation::find(&head, offset, address)
}

#[inline(never)]
fn open(address: u64, len: u64, memory: &UserMemory, rows: &mut TaskRows) {
    let bytes = Part {
        memory,
        address,
        len,
    };
    *rows = match Section::open_for(&bytes, address, len, NATIVE) {
        Ok(section) => MappedRows::Section(section),
        Err(error) => MappedRows::Bad(error),
    };
}

/// Decides the origin of the section's start addresses, if its flags leave the origin open. Only
/// this mapping is known as the file's code here.
#[inline(never)]
fn settle_starts(mapping: &sys::Mapping, memory: &UserMemory, rows: &mut TaskRows) {
    let MappedRows::Section(section) = rows else {
        return;
    };
    let bytes = Part {
        memory,
        address: section.address(),
        len: section.opened_len().into(),
    };
    if let Err(error) = section.settle_starts(&bytes, |at| mapping.start <= at && at < mapping.end)
    {
        *rows = MappedRows::Bad(error);
    }
}
