// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Where the rows of mapped code are, by the ELF headers of its file or image.

use crate::sframe::{
    elf::program::{
        self,
        ElfError,
        LoadedSegment, //
    },
    format::bytes::{
        Fault,
        Source, //
    },
    walk::task::FunctionTable, //
};

/// The location of the rows of mapped code. Addresses are link-time addresses plus the bias with
/// which it was made.
#[derive(Clone, Copy, Debug)]
pub enum RowsLocation {
    /// The rows are in the section of the file or image.
    Section {
        /// The address of the section.
        address: u64,
        /// Its length, in bytes.
        len: u64,
    },
    /// There is no section for the code.
    None(FunctionTable),
}

impl RowsLocation {
    /// Finds the rows for the code at a run-time address. The code is the byte at `offset` in
    /// `head`, a file or an image, in bytes. Segments may share a page of a file, so the offset of
    /// the exact byte is needed, not that of its mapping. The result has run-time addresses.
    ///
    /// # Errors
    ///
    /// A header cannot be read.
    #[inline(always)]
    pub fn find<S: Source + ?Sized>(head: &S, offset: u64, address: u64) -> Result<Self, Fault> {
        match program::find_sframe(head, offset) {
            Ok(found) => {
                let bias = address.wrapping_sub(found.link_address(offset));
                Ok(Self::of(&found, bias))
            }
            Err(ElfError::Fault { .. }) => Err(Fault),
            Err(_) => Ok(Self::None(FunctionTable::NONE)),
        }
    }

    /// The location of the rows for the code of a segment, with the value to add to link-time
    /// addresses.
    #[inline(always)]
    pub fn of(found: &LoadedSegment, bias: u64) -> Self {
        match (found.sframe, found.functions) {
            (Some(section), _) if found.executable => Self::Section {
                address: section.vaddr.wrapping_add(bias),
                len: section.memsz,
            },
            (None, Some((vaddr, len))) => Self::None(FunctionTable {
                address: vaddr.wrapping_add(bias),
                len,
            }),
            _ => Self::None(FunctionTable::NONE),
        }
    }
}
