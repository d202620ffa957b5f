// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The unwind tables of files that are mapped.

use std::cell::OnceCell;

use object::{
    Object,
    ObjectSection, //
};
use sframe::elf;
use walk::{
    process::MappedFile,
    walker::MadeSection, //
};

use crate::dwarf::{
    Cfi,
    DebugCfi, //
};

/// The unwind tables of a file, read once.
pub trait CfiTables {
    /// The unwind tables in .eh_frame.
    ///
    /// # Errors
    ///
    /// There are none, or they cannot be read; the text says which.
    fn cfi(&self) -> Result<&Cfi, &str>;

    /// The unwind tables in .debug_frame; `None` if there are none or they cannot be read.
    fn debug_cfi(&self) -> Option<&DebugCfi>;

    /// The start of the function at a link-time address, from .eh_frame or the symbol table; if
    /// unknown, the address itself.
    fn function_start(&self, address: u64) -> u64;
}

/// The rows that `convert` makes of a file without rows of its own, which are judged as they are.
pub fn made(file: &MappedFile) -> Option<MadeSection> {
    if elf::has_sframe(file.bytes).unwrap_or(false) {
        return None;
    }
    let convert::Converted {
        section,
        extra_rows,
        report,
    } = convert::convert(file.bytes).ok()?;
    Some(MadeSection {
        section: section.leak(),
        extra_rows: extra_rows.leak(),
        keeps_frame_pointer: report.keeps_frame_pointers(),
    })
}

/// The cached tables of a file.
#[derive(Default)]
struct CachedTables {
    cfi: OnceCell<Result<Cfi, String>>,
    debug_cfi: OnceCell<Option<DebugCfi>>,
}

fn cached_tables(file: &MappedFile) -> &CachedTables {
    file.kept
        .get_or_init(|| Box::new(CachedTables::default()))
        .downcast_ref()
        .expect("only this module uses the slot")
}

impl CfiTables for MappedFile {
    fn cfi(&self) -> Result<&Cfi, &str> {
        let cfi = cached_tables(self).cfi.get_or_init(|| {
            let elf = self.elf();
            let section = elf
                .section_by_name(".eh_frame")
                .ok_or_else(|| "there is no .eh_frame".to_owned())?;
            let data = section.data().map_err(|error| error.to_string())?;
            let address_of = |name| elf.section_by_name(name).map_or(0, |found| found.address());
            Cfi::new(
                data,
                section.address(),
                address_of(".text"),
                address_of(".got"),
            )
            .map_err(|error| error.to_string())
        });
        cfi.as_ref().map_err(|error| &**error)
    }

    fn debug_cfi(&self) -> Option<&DebugCfi> {
        let cfi = cached_tables(self).debug_cfi.get_or_init(|| {
            let elf = self.elf();
            let section = elf.section_by_name(".debug_frame")?;
            DebugCfi::debug(section.data().ok()?).ok()
        });
        cfi.as_ref()
    }

    fn function_start(&self, address: u64) -> u64 {
        match self.cfi().ok().and_then(|cfi| cfi.function_at(address)) {
            Some((start, _)) => start,
            None => address - self.function_at(address).map_or(0, |(_, offset)| offset),
        }
    }
}
