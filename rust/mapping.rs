// SPDX-License-Identifier: GPL-2.0-only

//! From a PC to the file that is mapped there and its SFrame section.
//!
//! Nothing is kept of a file but numbers: the section is found through the ELF headers that the
//! task itself has mapped, and read as that task's memory.

use crate::{
    sframe::{
        bytes::Fault,
        eh_frame_hdr,
        elf::{
            self,
            ElfError, //
        },
        error::{
            Error,
            Unsupported, //
        },
        section::Section, //
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

/// What is known of rows for a mapping.
#[derive(Clone, Copy)]
pub(crate) enum Rows {
    /// The file has none, or it is not a file.
    None(Functions),
    /// The headers of the file could not be read: it is not known.
    Unknown,
    /// There was a file's code before, and now there is memory that only looks like it.
    Replaced,
    /// The section, at its run-time address.
    Section(Section),
    /// The table of the file.
    Table {
        /// Its number.
        number: u64,
        /// From a run-time address to an offset in the file, in bytes.
        to_offset: u64,
    },
    /// There is a section, and it is of no use.
    Bad(Error),
}

/// The table of a file's functions, `.eh_frame_hdr`; of no length if there is none.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    /// Its run-time address.
    address: u64,
    /// Its length in bytes.
    len: u64,
}

impl Functions {
    const NONE: Self = Self { address: 0, len: 0 };

    /// Where the function begins that covers a run-time address; `None` if the table does not tell.
    /// Any context that fits `memory`.
    #[inline(never)]
    pub(crate) fn start_at(&self, address: u64, memory: &UserMemory) -> Option<u64> {
        eh_frame_hdr::function_start(memory, self.address, self.len, address)
    }
}

/// A mapping of the current task. Addresses are run-time addresses.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    start: u64,
    end: u64,
    /// Whether a file is mapped there, or an image that has a table of functions.
    pub(crate) is_image: bool,
    /// Whether code may run there.
    pub(crate) executable: bool,
    /// The rows of its file.
    pub(crate) rows: Rows,
}

impl Mapping {
    /// A mapping that covers nothing.
    pub(crate) const NOWHERE: Self = Self {
        start: 0,
        end: 0,
        is_image: false,
        executable: false,
        rows: Rows::None(Functions::NONE),
    };

    /// Whether it covers a run-time address.
    #[inline]
    pub(crate) const fn covers(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Whether it covers a run-time address and its file has no table.
    #[inline]
    pub(crate) const fn lacks_table(&self, address: u64) -> bool {
        self.covers(address) && !matches!(self.rows, Rows::Table { .. })
    }

    /// Becomes the mapping at a run-time address. Any context.
    ///
    /// # Errors
    ///
    /// `ENOENT` if nothing is mapped there, `EAGAIN` if the mappings were changing.
    #[inline(never)]
    pub(crate) fn find(&mut self, address: u64, memory: &UserMemory) -> Result {
        // If it fails it is nowhere.
        self.end = 0;
        let mut mapping = sys::Mapping::default();
        sys::find_mapping(address, &mut mapping)?;
        if !mapping.is_known {
            sys::queue_file(address);
        }
        if mapping.table != 0 {
            tables::keep_place(address, &mapping);
            self.rows = Rows::Table {
                number: mapping.table,
                to_offset: mapping.offset.wrapping_sub(mapping.start),
            };
        } else {
            rows_of(address, &mapping, memory, &mut self.rows);
        }
        self.start = mapping.start;
        self.end = mapping.end;
        self.is_image =
            mapping.is_file || matches!(self.rows, Rows::None(Functions { len: 1.., .. }));
        self.executable = mapping.executable;
        Ok(())
    }
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
        Some(verdict) => {
            if !now.is_moving() && sys::MappingsVersion::now() == now {
                now.keep_verdict(verdict);
            }
            verdict
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
        Ok(Place::None(_)) if is_replaced(mapping, memory) => *rows = Rows::Replaced,
        Ok(Place::None(functions)) => *rows = Rows::None(functions),
        Err(Fault) => *rows = Rows::Unknown,
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
    None(Functions),
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
        None => return Ok(Place::None(Functions::NONE)),
    };
    let found = match elf::find_sframe(&head, offset) {
        Ok(found) => found,
        Err(ElfError::Fault { .. }) => return Err(Fault),
        Err(_) => return Ok(Place::None(Functions::NONE)),
    };
    let bias = address.wrapping_sub(found.link_address(offset));
    Ok(match (found.sframe, found.functions) {
        (Some(place), _) if found.executable => Place::Section {
            address: place.vaddr.wrapping_add(bias),
            len: place.memsz,
        },
        (None, Some((vaddr, len))) => Place::None(Functions {
            address: vaddr.wrapping_add(bias),
            len,
        }),
        _ => Place::None(Functions::NONE),
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
        Ok(section) if section.abi() != NATIVE => Rows::Bad(Error::Unsupported {
            what: Unsupported::Abi(section.abi().number()),
        }),
        Ok(section) => Rows::Section(section),
        Err(error) => Rows::Bad(error),
    };
}

/// Decides what the section counts from, where it leaves that open. Of the file's code only this
/// mapping is known here.
#[inline(never)]
fn settle(mapping: &sys::Mapping, memory: &UserMemory, rows: &mut Rows) {
    let Rows::Section(section) = rows else {
        return;
    };
    let bytes = Part {
        memory,
        address: section.address(),
        len: section.opened_len().into(),
    };
    if let Err(error) = section.settle_starts(&bytes, |at| mapping.start <= at && at < mapping.end)
    {
        *rows = Rows::Bad(error);
    }
}
