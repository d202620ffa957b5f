// SPDX-License-Identifier: GPL-2.0-only

//! The tables of files: added and removed through the device, or built from a file's own section.

mod build;
mod cache;

use crate::{
    sframe::elf::{
        self,
        ElfError, //
    },
    stats,
    sys::{
        self,
        BuildMemory,
        Errno,
        FileKey,
        OpenFile,
        TableState, //
    },
    user_memory::{
        Part,
        UserMemory, //
    }, //
};
use kernel::prelude::*;

#[cfg(any(sfu_compare, CONFIG_KUNIT = "y"))]
pub(crate) use self::cache::Ranges;
pub(crate) use self::{
    build::{
        FileTable,
        TableImage, //
    },
    cache::{
        keep_range,
        known_code,
        next_table,
        rule_at,
        CodeCache,
        RegionGuard,
        TableOrigin, //
    }, //
};

/// The longest accepted section, in bytes.
pub(crate) const MAX_SECTION: usize = 64 << 20;
/// The number of bytes of the vDSO that a table build reads.
const MAX_VDSO: u64 = 64 << 10;

/// The target of added rows.
pub(crate) enum TableTarget {
    /// One file, and its time of change before the caller read the file.
    File(OpenFile, (i64, u32)),
    /// The vDSO of all tasks.
    Vdso,
}

impl TableTarget {
    #[inline(never)]
    fn key(&self) -> Result<FileKey> {
        match self {
            TableTarget::File(file, _) => FileKey::of(file),
            TableTarget::Vdso => Ok(FileKey::vdso()),
        }
    }
}

/// Adds the rows of a section, at link-time address 0, and extra rows. They replace the rows that
/// were added before. An empty section adds no rows, and the file is not requested again. `state`
/// has the owner, the charged user, and whether the file keeps frame pointers. `memory` belongs to
/// this build. Task; sleeps.
///
/// # Errors
///
/// See [`FileTable::new`], [`cache::publish`] and [`FileKey::of`]. `ESTALE`: the file was written
/// to since the caller began to read it.
pub(crate) fn add(
    section: &KVVec<u8>,
    extra_rows: &KVVec<u8>,
    target: &TableTarget,
    mut state: TableState,
    memory: BuildMemory,
) -> Result {
    let key = target.key()?;
    // After the key: a write from here on changes the key, which is read again below.
    if let TableTarget::File(file, changed) = target {
        if file.changed()? != *changed {
            return Err(Errno::Stale.into());
        }
    }
    let rows = match target {
        _ if section.is_empty() => None,
        TableTarget::File(file, _) => {
            let image = TableImage::File(file);
            Some(FileTable::new(section, 0, extra_rows, &image, &memory)?)
        }
        TableTarget::Vdso => {
            let vdso = UserMemory::sleeping(0);
            let image = TableImage::Vdso(Part {
                memory: &vdso,
                address: sys::vdso().ok_or(ENOENT)?,
                len: MAX_VDSO,
            });
            Some(FileTable::new(section, 0, extra_rows, &image, &memory)?)
        }
    };
    // From now on the memory counts as memory of a table, not of a build.
    drop(memory);
    if target.key()? != key {
        return Err(Errno::Stale.into());
    }
    state.origin = TableOrigin::Added as u32;
    if let TableTarget::File(file, _) = target {
        state.set_build_id(file);
        state.file = file.as_ptr();
    }
    publish(&key, state, rows)
}

/// Removes the rows of a file. Task; sleeps.
///
/// # Errors
///
/// See [`cache::withdraw`] and [`FileKey::of`].
pub(crate) fn remove(target: &TableTarget, user: u32) -> Result {
    cache::withdraw(&target.key()?, user)
}

/// Builds a table from a file's own section, if it has one, and publishes the result, also that
/// there are no rows. The result expires if the file could not be read. If bytes of the file are
/// not in memory, publishes nothing: the worker tries again. Task; sleeps.
pub(crate) fn index_file(file: &OpenFile, seen: &TableState, may_read: bool) {
    // If the file is being written to, a later sample sees it again.
    let Ok(key) = FileKey::of(file) else {
        return;
    };
    if key.is_known() {
        return;
    }
    let mut state = *seen;
    state.is_unread = !may_read;
    let rows = own_rows(file, may_read, &mut state);
    if file.lacks_bytes() {
        return;
    }
    let rows = match rows {
        Ok(rows) => rows,
        // These errors are temporary.
        Err(error) if [EIO, ENOMEM, ENOSPC, EBUSY, EINTR].contains(&error) => {
            state.origin = TableOrigin::Unreadable as u32;
            None
        }
        Err(error) => {
            stats::bad_section();
            state.error = error.to_errno().unsigned_abs();
            None
        }
    };
    if rows.is_some() {
        state.origin = TableOrigin::Section as u32;
    } else if state.origin == 0 {
        state.origin = TableOrigin::NoRows as u32;
    }
    // If the file was written to meanwhile, a later sample sees it again, with another key.
    if FileKey::of(file) == Ok(key) && publish(&key, state, rows).is_err() {
        // The limits of tables are reached. Without an entry, each sample would build the table
        // again, for nothing.
        state.origin = TableOrigin::Unreadable as u32;
        let _ = publish(&key, state, None);
    }
}

/// The table of a file's own section; `None` if the file has no section, or if `may_read` forbids
/// to read the file.
fn own_rows(
    file: &OpenFile,
    may_read: bool,
    state: &mut TableState,
) -> Result<Option<KBox<FileTable>>> {
    if !may_read {
        return Ok(None);
    }
    let image = TableImage::File(file);
    let place = match elf::section_of_file(&image) {
        Ok(place) => place,
        Err(ElfError::Fault { .. }) => return Err(EIO),
        Err(_) => return Ok(None),
    };
    state.set_build_id(file);
    let Some(place) = place else {
        return Ok(None);
    };
    let len = usize::try_from(place.filesz)?;
    if len > MAX_SECTION {
        return Err(EFBIG);
    }
    // The program headers may name more bytes than the file has.
    if !file.has(place.offset, place.filesz) {
        return Err(Errno::Malformed.into());
    }
    // Before memory is allocated.
    if !file.is_at_hand(place.offset, place.filesz) {
        return Err(EIO);
    }
    let memory = BuildMemory::of_build(state.user, false)?;
    let mut section = build::zeros::<u8>(len, &memory)?;
    file.read_into(place.offset, &mut section)
        .map_err(|error| {
            // The file may be shorter than its headers say.
            if error == Errno::NoData.into() {
                Errno::Malformed.into()
            } else {
                EIO
            }
        })?;
    FileTable::new(&section, place.vaddr, &[], &image, &memory).map(Some)
}

impl TableState {
    /// Stores the build ID of a file, if it has one.
    fn set_build_id(&mut self, file: &OpenFile) {
        if let Ok((id, len)) = elf::build_id(&TableImage::File(file)) {
            self.build_id = id;
            self.build_id_len = len as u32;
        }
    }
}

// Not inlined, because it is called in several places.
#[inline(never)]
fn publish(key: &FileKey, mut state: TableState, rows: Option<KBox<FileTable>>) -> Result {
    if let Some(rows) = &rows {
        state.bytes = rows.bytes() as u64;
        state.rows = rows.count as u64;
    }
    cache::publish(key, &state, rows)
}
