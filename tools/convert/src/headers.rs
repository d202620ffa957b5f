// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Limits of a file's headers. Code that looks up a segment or a section by its name may then go
//! through all of them.

use object::{
    read::elf::{
        ElfFile64,
        FileHeader,
        SectionHeader, //
    },
    Endianness,
    Object,
    ObjectSection,
    SectionIndex, //
};

use crate::report::ConvertError;

/// The maximum number of program headers, and of sections. Linkers make some tens.
pub const MAX_HEADERS: usize = 4096;

/// Checks the headers of a file of `len` bytes.
///
/// # Errors
///
/// [`ConvertError::TooManyHeaders`], and [`ConvertError::SharedBytes`] if reading all names of
/// sections would take longer than reading the file.
pub(crate) fn check(file: &ElfFile64<'_, Endianness>, len: usize) -> Result<(), ConvertError> {
    let headers = file.elf_program_headers().len();
    if headers.max(file.elf_section_table().len()) > MAX_HEADERS {
        return Err(ConvertError::TooManyHeaders);
    }
    let endian = file.endian();
    let strings = file.elf_header().shstrndx(endian, file.data());
    let strings = SectionIndex(strings.map_or(0, |index| index as usize));
    let strings = file.elf_section_table().section(strings);
    let strings = strings.map_or(0, |strings| strings.sh_size(endian));
    let mut names = 0_u64;
    for section in file.sections() {
        // The end of a name that has none is searched for in all of the names.
        let name = section.name_bytes();
        names = names.saturating_add(name.map_or(strings, |name| name.len() as u64));
        if names > len as u64 {
            return Err(ConvertError::SharedBytes);
        }
    }
    Ok(())
}
