// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The code of a file, by link-time address.

use iced_x86::{
    Decoder,
    DecoderOptions,
    Instruction, //
};
use object::{
    elf,
    read::elf::{
        ElfFile64,
        ProgramHeader, //
    },
    Endianness, //
};

use crate::report::ConvertError;

/// The code of a file: its executable segments.
#[derive(Clone, Debug)]
pub struct CodeBytes<'a> {
    /// The link-time start and end address of each segment, and its bytes in the file.
    pub(crate) segments: Vec<(u64, u64, &'a [u8])>,
}

impl<'a> CodeBytes<'a> {
    /// The code of an ELF file for AMD64.
    ///
    /// # Errors
    ///
    /// [`ConvertError::NotElf`], [`ConvertError::Machine`], [`ConvertError::NoCode`].
    pub fn of(bytes: &'a [u8]) -> Result<CodeBytes<'a>, ConvertError> {
        CodeBytes::of_elf(&crate::parse(bytes)?)
    }

    pub(crate) fn of_elf(file: &ElfFile64<'a, Endianness>) -> Result<CodeBytes<'a>, ConvertError> {
        let endian = file.endian();
        let headers = file.elf_program_headers().iter().filter(|header| {
            header.p_type(endian) == elf::PT_LOAD && header.p_flags(endian) & elf::PF_X != 0
        });
        let segments: Vec<_> = headers
            .map(|header| {
                let start = header.p_vaddr(endian);
                let end = start.saturating_add(header.p_memsz(endian));
                let bytes = header.data(endian, file.data()).unwrap_or_default();
                (start, end, bytes)
            })
            .collect();
        if segments.is_empty() {
            return Err(ConvertError::NoCode);
        }
        Ok(CodeBytes { segments })
    }

    /// The bytes from a link-time address to the end of its segment.
    pub(crate) fn at(&self, address: u64) -> &'a [u8] {
        let mut segments = self.segments.iter();
        segments
            .find_map(|(start, _, bytes)| {
                bytes.get(usize::try_from(address.checked_sub(*start)?).ok()?..)
            })
            .unwrap_or_default()
    }

    /// The instructions between two link-time addresses.
    pub(crate) fn instructions(
        &self,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = Instruction> + 'a {
        let bytes = self.at(start);
        let len = usize::try_from(end - start).unwrap_or(usize::MAX);
        let bytes = &bytes[..len.min(bytes.len())];
        Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter()
    }

    /// Whether one segment contains both link-time addresses and all between them.
    pub(crate) fn holds(&self, first: u64, last: u64) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|(start, end, _)| *start <= first && first <= last && last < *end)
    }
}
