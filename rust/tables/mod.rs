// SPDX-License-Identifier: GPL-2.0-only

//! Tables by file: what is added, removed, and found in files' own sections.

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
        Errno,
        File,
        FileKey,
        TableState, //
    },
    user_memory::{
        Part,
        UserMemory, //
    }, //
};
use kernel::prelude::*;

pub(crate) use self::{
    build::{
        Rows,
        NATIVE, //
    },
    cache::{
        keep_range,
        next_table,
        rule_at,
        CodeCache,
        Origin, //
    }, //
};

/// The longest section that is taken, in bytes.
pub(crate) const MAX_SECTION: usize = 64 << 20;
/// How much of the vDSO is looked at, in bytes.
const MAX_VDSO: u64 = 64 << 10;

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

/// Adds the rows of a section, as if it lay at link-time address 0, and extra rows, in place of the rows that were
/// added before. An empty section adds no rows, and the file is not requested again. `owner` may replace the
/// rows; `user` is charged for them. Task; sleeps.
///
/// # Errors
///
/// See [`Rows::new`] and [`cache::publish`]; `ESTALE` if the file was written to meanwhile.
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
/// See [`cache::withdraw`].
pub(crate) fn remove(target: &Target, user: u32) -> Result {
    cache::withdraw(&target.key(), user)
}

/// Makes a table of a file's own section, if it has one. What is found is remembered either way,
/// but for a while if the file cannot be read. Task; sleeps.
pub(crate) fn index_file(file: &File, seen: &TableState, may_read: bool) {
    let key = FileKey::of(file);
    if key.is_known() {
        return;
    }
    let mut state = *seen;
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
    // Written to meanwhile, it is seen again as another one.
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
    cache::publish(key, &state, rows)
}
