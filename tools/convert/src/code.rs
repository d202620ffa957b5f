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

/// The link-time start and end address of a segment, and its bytes in the file.
type SegmentBytes<'a> = (u64, u64, &'a [u8]);

/// The code of a file: its executable segments.
#[derive(Clone, Debug)]
pub struct CodeBytes<'a> {
    /// The segments, sorted and without overlaps.
    pub(crate) segments: Vec<SegmentBytes<'a>>,
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
        let mut segments: Vec<_> = headers
            .map(|header| {
                let start = header.p_vaddr(endian);
                let end = start.saturating_add(header.p_memsz(endian));
                let bytes = header.data(endian, file.data()).unwrap_or_default();
                (start, end, bytes)
            })
            .filter(|(start, end, _)| start < end)
            .collect();
        if segments.is_empty() {
            return Err(ConvertError::NoCode);
        }
        let all = segments.iter().map(|(_, _, bytes)| bytes.len());
        if all.sum::<usize>() > file.data().len() {
            return Err(ConvertError::SharedBytes);
        }
        sort_and_trim(&mut segments);
        Ok(CodeBytes { segments })
    }

    /// The bytes from a link-time address to the end of its segment.
    pub(crate) fn at(&self, address: u64) -> &'a [u8] {
        let bytes = self.segment(address).and_then(|(start, _, bytes)| {
            bytes.get(usize::try_from(address.checked_sub(*start)?).ok()?..)
        });
        bytes.unwrap_or_default()
    }

    /// The last segment that begins at or before a link-time address.
    fn segment(&self, address: u64) -> Option<&SegmentBytes<'a>> {
        let behind = self
            .segments
            .partition_point(|(start, _, _)| *start <= address);
        self.segments.get(behind.checked_sub(1)?)
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
        self.segment(first)
            .is_some_and(|(_, end, _)| first <= last && last < *end)
    }
}

/// Sorts segments, and ends each at the start of the next one.
fn sort_and_trim(segments: &mut [SegmentBytes<'_>]) {
    segments.sort_by_key(|(start, _, _)| *start);
    let mut next = u64::MAX;
    for (start, end, bytes) in segments.iter_mut().rev() {
        *end = next.min(*end);
        let len = usize::try_from(*end - *start).unwrap_or(usize::MAX);
        *bytes = &bytes[..len.min(bytes.len())];
        next = *start;
    }
}
