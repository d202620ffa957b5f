// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The unwind tables of files that are mapped.

use std::cell::OnceCell;

use object::{
    Object,
    ObjectSection, //
};
use walk::{
    process::File,
    walker::Made, //
};

use crate::dwarf::{
    Cfi,
    DebugCfi, //
};

/// What a file has for debuggers and for exceptions, read once.
pub trait Tables {
    /// The unwind tables in .eh_frame.
    ///
    /// # Errors
    ///
    /// What is wrong with them, or that there are none.
    fn cfi(&self) -> Result<&Cfi, &str>;

    /// The unwind tables in .debug_frame, if there are some that can be read.
    fn debug_cfi(&self) -> Option<&DebugCfi>;

    /// Where the function begins that holds an address, by .eh_frame or by its symbol; else the
    /// address itself.
    fn function_start(&self, address: u64) -> u64;
}

/// The rows that can be made of .eh_frame.
pub fn made(file: &File) -> Option<Made> {
    let convert::Converted {
        section,
        extra_rows,
        ..
    } = convert::convert(file.bytes).ok()?;
    Some(Made {
        section: section.leak(),
        extra_rows: extra_rows.leak(),
    })
}

/// What is kept of a file.
#[derive(Default)]
struct Known {
    cfi: OnceCell<Result<Cfi, String>>,
    debug_cfi: OnceCell<Option<DebugCfi>>,
}

fn known(file: &File) -> &Known {
    file.kept
        .get_or_init(|| Box::new(Known::default()))
        .downcast_ref()
        .expect("nobody else keeps anything")
}

impl Tables for File {
    fn cfi(&self) -> Result<&Cfi, &str> {
        let cfi = known(self).cfi.get_or_init(|| {
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
        let cfi = known(self).debug_cfi.get_or_init(|| {
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
