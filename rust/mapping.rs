// SPDX-License-Identifier: GPL-2.0-only

//! From a PC to the file that is mapped there and its SFrame section.
//!
//! Nothing is kept of a file but numbers: the section is found through the ELF headers that the
//! task itself has mapped, and read as that task's memory.

use crate::{
    sframe::{
        bytes::Fault,
        elf::{
            self,
            ElfError, //
        },
        error::{
            Error,
            Unsupported, //
        },
        section::Section,
        stop_reason::StopReason,
        walk::{
            self,
            FunctionTable,
            MappedRows, //
        }, //
    },
    sys,
    tables::{
        self,
        NATIVE, //
    },
    user_memory::{
        Part,
        UserMemory, //
    }, //
};
use kernel::prelude::*;

/// How many executable mappings are looked at before a task is taken to have rows.
const EXECUTABLES: u32 = 64;
/// How many mappings of any kind are passed over for it, each time.
const PASSED_OVER: u32 = 1024;

/// The table of a file, as a walk finds it.
#[derive(Clone, Copy)]
pub(crate) struct MappedTable {
    /// The number of the table.
    pub(crate) number: u64,
    /// From a run-time address to an offset in the file, in bytes.
    pub(crate) to_offset: u64,
}

/// The rows of a mapping of the current task.
pub(crate) type Rows = MappedRows<Section, MappedTable>;
/// A mapping of the current task.
pub(crate) type Mapping = walk::Mapping<Section, MappedTable>;

/// Makes `mapping` the one at a run-time address. Any context.
///
/// # Errors
///
/// [`StopReason::NotMapped`], [`StopReason::MappingMoved`]. Then `mapping` covers nothing.
#[inline(never)]
pub(crate) fn find(
    mapping: &mut Mapping,
    address: u64,
    memory: &UserMemory,
) -> Result<(), StopReason> {
    mapping.end = 0;
    let mut found = sys::Mapping::default();
    sys::find_mapping(address, &mut found).map_err(|error| {
        if error == ENOENT {
            StopReason::NotMapped
        } else {
            StopReason::MappingMoved
        }
    })?;
    if !found.is_known {
        sys::queue_file(address);
    }
    if found.table != 0 {
        tables::keep_range(address, &found);
        mapping.rows = MappedRows::Table(MappedTable {
            number: found.table,
            to_offset: found.offset.wrapping_sub(found.start),
        });
    } else {
        rows_of(address, &found, memory, &mut mapping.rows);
    }
    mapping.start = found.start;
    mapping.end = found.end;
    mapping.is_image = found.is_file
        || matches!(
            mapping.rows,
            MappedRows::None(FunctionTable { len: 1.., .. })
        );
    mapping.executable = found.executable;
    Ok(())
}

/// Where the mapping at a run-time address ends; 0 if nothing is mapped there. Any context.
pub(crate) fn end_of(address: u64) -> u64 {
    let mut mapping = sys::Mapping::default();
    sys::find_mapping(address, &mut mapping).map_or(0, |()| mapping.end)
}

/// Whether the current task has rows anywhere. Unsure is yes. Keeps what it finds. NMI, IRQ or task,
/// preemption off.
///
/// A task that has none is left to the kernel, whose chains then are as they always were.
pub(crate) fn has_rows() -> bool {
    let now = sys::MappingsVersion::now();
    match look_for_rows() {
        Some(decision) => {
            if !now.is_moving() && sys::MappingsVersion::now() == now {
                now.keep_decision(decision);
            }
            decision
        }
        None => true,
    }
}

/// `None` if it is not known.
fn look_for_rows() -> Option<bool> {
    let memory = UserMemory::atomic(0);
    let mut address = 0;
    let mut sure = true;

    for _ in 0..EXECUTABLES {
        match sys::next_executable(address, PASSED_OVER) {
            Ok(mapping) => {
                // Here it is proved whose file it is.
                let mut proved = sys::Mapping::default();
                if sys::find_mapping(mapping.start, &mut proved).is_ok() {
                    if proved.table != 0 {
                        return Some(true);
                    }
                    // The worker, or user space, may know better than what is read here.
                    if !proved.is_known && !sys::queue_file(mapping.start) {
                        sure = false;
                    }
                }
                match head_of(&mapping, &memory).map(|head| elf::has_sframe(&head)) {
                    Some(Ok(true)) => return Some(true),
                    Some(Err(ElfError::Fault { .. })) => sure = false,
                    Some(Ok(false) | Err(_)) | None => {}
                }
                address = mapping.end;
            }
            Err(ENOENT) => return sure.then_some(false),
            Err(_) => return None,
        }
    }
    None
}

/// The headers of the mapping's file, as the task has them mapped; `None` if nowhere near.
fn head_of<'a>(mapping: &sys::Mapping, memory: &'a UserMemory) -> Option<Part<'a>> {
    (mapping.is_file && mapping.head_size != 0).then(|| Part {
        memory,
        address: mapping.head,
        len: mapping.head_size.into(),
    })
}

/// The rows that the file says to have for the code at a run-time address in the mapping.
// Not inlined, as what it calls: what one step needs of the stack is free for the next.
#[inline(never)]
fn rows_of(address: u64, mapping: &sys::Mapping, memory: &UserMemory, rows: &mut Rows) {
    match place_of(address, mapping, memory) {
        Ok(Place::Section { address, len }) => {
            open(address, len, memory, rows);
            settle(mapping, memory, rows);
        }
        Ok(Place::None(_)) if is_replaced(mapping, memory) => *rows = MappedRows::Replaced,
        Ok(Place::None(functions)) => *rows = MappedRows::None(functions),
        Err(Fault) => *rows = MappedRows::Unknown,
    }
}

/// Whether this is code of no file in the place of a file's code.
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

/// Where the rows of a file are.
enum Place {
    /// In the section at this run-time address, of this length in bytes.
    Section { address: u64, len: u64 },
    /// Nowhere.
    None(FunctionTable),
}

/// Where the rows are for the code at a run-time address.
#[inline(never)]
fn place_of(address: u64, mapping: &sys::Mapping, memory: &UserMemory) -> Result<Place, Fault> {
    // Segments may share a page of the file, so it has to be the very byte.
    let distance = address.wrapping_sub(mapping.start);
    let (head, offset) = match head_of(mapping, memory) {
        Some(head) => (head, distance.wrapping_add(mapping.offset)),
        // The vDSO is a whole image, and no file.
        None if mapping.executable && !mapping.is_file => {
            let image = Part {
                memory,
                address: mapping.start,
                len: mapping.end.wrapping_sub(mapping.start),
            };
            (image, distance)
        }
        None => return Ok(Place::None(FunctionTable::NONE)),
    };
    let found = match elf::find_sframe(&head, offset) {
        Ok(found) => found,
        Err(ElfError::Fault { .. }) => return Err(Fault),
        Err(_) => return Ok(Place::None(FunctionTable::NONE)),
    };
    let bias = address.wrapping_sub(found.link_address(offset));
    Ok(match (found.sframe, found.functions) {
        (Some(place), _) if found.executable => Place::Section {
            address: place.vaddr.wrapping_add(bias),
            len: place.memsz,
        },
        (None, Some((vaddr, len))) => Place::None(FunctionTable {
            address: vaddr.wrapping_add(bias),
            len,
        }),
        _ => Place::None(FunctionTable::NONE),
    })
}

#[inline(never)]
fn open(address: u64, len: u64, memory: &UserMemory, rows: &mut Rows) {
    let bytes = Part {
        memory,
        address,
        len,
    };
    *rows = match Section::open(&bytes, address, len) {
        Ok(section) if section.abi() != NATIVE => MappedRows::Bad(Error::Unsupported {
            what: Unsupported::Abi(section.abi().number()),
        }),
        Ok(section) => MappedRows::Section(section),
        Err(error) => MappedRows::Bad(error),
    };
}

/// Decides what the section counts from, where it leaves that open. Of the file's code only this
/// mapping is known here.
#[inline(never)]
fn settle(mapping: &sys::Mapping, memory: &UserMemory, rows: &mut Rows) {
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
