// SPDX-License-Identifier: GPL-2.0-only

//! Code with `.eh_frame` beside it: what LLVM's JIT compilers load, as in PostgreSQL, and any other
//! runtime that puts `.eh_frame` in memory for exceptions and debuggers.
//!
//! The place of `.eh_frame` is known to libgcc alone. It is found by its contents, in the anonymous
//! memory near the code: an entry of the kind that compilers write, followed by entries that
//! describe the code. Each such section is one object. The object becomes an ELF file, which is
//! converted and added like any other.

use std::path::PathBuf;

use gimli::{
    BaseAddresses,
    CieOrFde,
    EhFrame,
    LittleEndian,
    UnwindSection, //
};
use memchr::memmem;
use walk::process::{
    CodeLayout,
    CodeRegion,
    FileId,
    Files,
    ProcessMapping, //
};

use crate::process::ProcessMemory;

/// The name of what makes such code.
pub(super) const NAME: &str = "eh_frame";

/// The most bytes of code of one object, and of one mapping that is searched.
const MAX_OBJECT: u64 = 16 << 20;
/// The most bytes that are searched for one request.
const MAX_SEARCHED: u64 = 64 << 20;
/// The most objects of one request; the module keeps 32 regions of a process.
pub(super) const MAX_OBJECTS: usize = 24;
/// The maximum distance from the code to `.eh_frame`, in bytes: relative addresses have four bytes.
const NEAR: u64 = 1 << 31;
/// The distance within which all `.eh_frame` is searched for, in bytes. Beyond it, none is searched
/// for once some is found.
const BESIDE: u64 = 4 << 20;
/// What follows the length of a section's first entry: the number of a CIE, the version, and the
/// first letter of the augmentation.
const CIE: &[u8] = b"\0\0\0\0\x01z";
/// The maximum length of the first entry of a section, in bytes. Compilers write 20 to 40.
const MAX_CIE: u32 = 256;

/// An object with code and `.eh_frame`. Addresses are run-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeObject {
    /// The first address of the code.
    pub start: u64,
    /// The address after the code.
    pub end: u64,
    /// The address of a word of `.eh_frame` that tells the place and the size of a function.
    pub guard: u64,
    /// The value of that word.
    pub guard_value: u64,
    /// An ELF file with the code and `.eh_frame`. Its link-time addresses are the run-time
    /// addresses.
    pub file: Vec<u8>,
    /// The offset of the code in the file, in bytes.
    pub offset: u64,
    /// The rows of the file, if its reader has converted it, in the reader's own format.
    pub rows: Vec<u8>,
}

impl CodeObject {
    /// The region of the object, for a walk on the host. The object's file is added to `files`.
    ///
    /// # Errors
    ///
    /// The object's file is no ELF file.
    pub fn region(&self, files: &mut Files) -> Result<CodeRegion, String> {
        let path = PathBuf::from(format!("code at {:#x}", self.start));
        let file = files
            .add(&path, self.file.clone())
            .map_err(|error| error.to_string())?;
        let code = ProcessMapping {
            start: self.start,
            end: self.end,
            offset: self.offset,
            executable: true,
            writable: false,
            is_file: true,
            name: String::new(),
            file: Some(file),
        };
        Ok(CodeRegion {
            start: self.start,
            end: self.end,
            guard: Some((self.guard, self.guard_value)),
            layout: CodeLayout::Rows(code),
        })
    }
}

/// The object of the section `bytes`, which has the run-time address `address`. `None` if a
/// function of the section is not in the range from `start` to `end`, or if the code is too large,
/// or cannot be read.
pub(super) fn object_at(
    memory: &impl ProcessMemory,
    bytes: &[u8],
    address: u64,
    start: u64,
    end: u64,
) -> Option<CodeObject> {
    let (len, section) = section_at(bytes, address, start, end);
    section?.object(memory, bytes.get(..len)?, address)
}

/// The objects with code in the mapping from `start` to `end`.
pub(super) fn objects(
    memory: &impl ProcessMemory,
    maps: &[(ProcessMapping, FileId)],
    start: u64,
    end: u64,
) -> Vec<CodeObject> {
    let distance =
        |mapping: &ProcessMapping| mapping.start.abs_diff(end).min(mapping.end.abs_diff(start));
    let mut near: Vec<_> = maps
        .iter()
        .filter(|(_, file)| file.inode == 0)
        .map(|(mapping, _)| mapping)
        .filter(|mapping| !mapping.name.starts_with('[') || mapping.name.starts_with("[anon"))
        .filter(|mapping| distance(mapping) < NEAR && mapping.end - mapping.start <= MAX_OBJECT)
        .collect();
    near.sort_by_key(|mapping| distance(mapping));
    let mut found: Vec<CodeObject> = Vec::new();
    let mut left = MAX_SEARCHED;
    // One for all mappings: the pages of a new one would take longer than the search.
    let mut buffer = Vec::new();
    for mapping in near {
        if !found.is_empty() && distance(mapping) > BESIDE {
            break;
        }
        let len = mapping.end - mapping.start;
        let Some(rest) = left.checked_sub(len) else {
            break;
        };
        buffer.resize(buffer.len().max(len as usize), 0);
        let bytes = &mut buffer[..len as usize];
        // Memory that may not be read has no `.eh_frame`.
        if memory.fill(mapping.start, bytes).is_err() {
            continue;
        }
        left = rest;
        let mut at = 0;
        while let Some(first) = next_section(bytes, at) {
            let (len, section) =
                section_at(&bytes[first..], mapping.start + first as u64, start, end);
            at = first + len.max(4);
            if found.len() == MAX_OBJECTS {
                return found;
            }
            let object = section.and_then(|section| {
                let from = mapping.start + first as u64;
                let part = &bytes[first..][..len];
                section.object(memory, part, from)
            });
            add_new(&mut found, object);
        }
    }
    found
}

/// Adds an object, unless it overlaps one that is there, or there are enough.
pub(super) fn add_new(objects: &mut Vec<CodeObject>, new: impl IntoIterator<Item = CodeObject>) {
    for new in new {
        let overlaps = |other: &CodeObject| other.start < new.end && new.start < other.end;
        if objects.len() < MAX_OBJECTS && !objects.iter().any(overlaps) {
            objects.push(new);
        }
    }
}

/// The offset of the next bytes, from `at` on, that may begin `.eh_frame`: an entry of the first
/// version, with an augmentation.
fn next_section(bytes: &[u8], at: usize) -> Option<usize> {
    let at = at.next_multiple_of(4);
    memmem::find_iter(bytes.get(at + 4..)?, CIE)
        .map(|found| at + found)
        .find(|first| {
            let len = bytes.get(*first..).and_then(<[u8]>::first_chunk);
            first % 4 == 0
                && len.is_some_and(|len| (8..=MAX_CIE).contains(&u32::from_le_bytes(*len)))
        })
}

/// The functions of a section that lie in the code.
struct LoadedSection {
    start: u64,
    end: u64,
    /// The offset of the guard in the section, in bytes.
    guard: usize,
}

/// Reads the section at the start of `bytes`, which has the run-time address `address`: its length
/// in bytes, without the entry that ends it, and its functions, if all lie from `start` to `end`.
fn section_at(bytes: &[u8], address: u64, start: u64, end: u64) -> (usize, Option<LoadedSection>) {
    let section = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut entries = section.entries(&bases);
    let mut len = 0;
    let mut found: Option<LoadedSection> = None;
    let mut is_of_code = true;
    while let Ok(Some(entry)) = entries.next() {
        let (offset, entry_len) = match entry {
            CieOrFde::Cie(cie) => (cie.offset(), cie.entry_len()),
            CieOrFde::Fde(partial) => {
                let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else {
                    break;
                };
                let first = fde.initial_address();
                let Some(behind) = first.checked_add(fde.len()) else {
                    break;
                };
                is_of_code = is_of_code && start <= first && behind <= end && first < behind;
                // The address and the size of the function are after the length and the pointer to
                // the CIE. They have four bytes each, or eight: then the second word is the size.
                let has_words = fde.cie().fde_address_encoding().is_some_and(|encoding| {
                    matches!(
                        encoding.format(),
                        gimli::DW_EH_PE_absptr | gimli::DW_EH_PE_udata8 | gimli::DW_EH_PE_sdata8
                    )
                });
                let guard = fde.offset() + if has_words { 16 } else { 8 };
                let (low, high) = found.map_or((first, behind), |it| (it.start, it.end));
                found = Some(LoadedSection {
                    start: low.min(first),
                    end: high.max(behind),
                    guard,
                });
                (fde.offset(), fde.entry_len())
            }
        };
        len = offset + entry_len + 4;
    }
    (
        len.min(bytes.len()),
        found.filter(|_| is_of_code && len <= bytes.len()),
    )
}

impl LoadedSection {
    /// The object of this section, whose bytes are `eh_frame`, at the run-time address `address`.
    /// `None` if the code is too large, or cannot be read.
    fn object(
        &self,
        memory: &impl ProcessMemory,
        eh_frame: &[u8],
        address: u64,
    ) -> Option<CodeObject> {
        let len = self.end - self.start;
        if len > MAX_OBJECT {
            return None;
        }
        let mut code = vec![0; len as usize];
        memory.fill(self.start, &mut code).ok()?;
        let guard = eh_frame.get(self.guard..)?.first_chunk()?;
        let (file, offset) = elf_file(&code, self.start, eh_frame, address);
        Some(CodeObject {
            start: self.start,
            end: self.end,
            guard: address + self.guard as u64,
            guard_value: u64::from_le_bytes(*guard),
            file,
            offset,
            rows: Vec::new(),
        })
    }
}

/// An ELF file with these sections at these addresses, and the offset of the code.
pub(super) fn elf_file(
    code: &[u8],
    code_at: u64,
    eh_frame: &[u8],
    eh_frame_at: u64,
) -> (Vec<u8>, u64) {
    const PAGE: u64 = 4096;
    const NAMES: &[u8] = b"\0.text\0.eh_frame\0.shstrtab\0";
    const HEADER: u64 = 64;
    const SEGMENT: u64 = 56;
    const SECTION: u64 = 64;
    // An offset in the file is, but for whole pages, equal to its address.
    let place = |from: u64, address: u64| from.next_multiple_of(PAGE) + address % PAGE;
    let code_offset = place(HEADER + 2 * SEGMENT, code_at);
    let eh_frame_offset = place(code_offset + code.len() as u64, eh_frame_at);
    let names_offset = eh_frame_offset + eh_frame.len() as u64;
    let sections_offset = (names_offset + NAMES.len() as u64).next_multiple_of(8);
    let mut file = Vec::new();
    // ELF of 64 bits, little-endian; a shared object for AMD64.
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0");
    file.extend([0, HEADER, sections_offset].map(u64::to_le_bytes).concat());
    file.extend([0; 4]);
    let sizes = [HEADER, SEGMENT, 2, SECTION, 4, 3];
    file.extend(sizes.map(|size| (size as u16).to_le_bytes()).concat());
    // PT_LOAD; readable, and the code executable.
    for (flags, offset, address, len) in [
        (5u32, code_offset, code_at, code.len()),
        (4, eh_frame_offset, eh_frame_at, eh_frame.len()),
    ] {
        file.extend([1, flags].map(u32::to_le_bytes).concat());
        let len = len as u64;
        let words = [offset, address, address, len, len, PAGE];
        file.extend(words.map(u64::to_le_bytes).concat());
    }
    for (offset, bytes) in [
        (code_offset, code),
        (eh_frame_offset, eh_frame),
        (names_offset, NAMES),
    ] {
        file.resize(offset as usize, 0);
        file.extend(bytes);
    }
    file.resize(sections_offset as usize, 0);
    // SHT_NULL, SHT_PROGBITS, SHT_STRTAB; SHF_ALLOC, SHF_EXECINSTR
    for (name, kind, flags, address, offset, len) in [
        (0u32, 0u32, 0u64, 0, 0, 0),
        (1, 1, 6, code_at, code_offset, code.len()),
        (7, 1, 2, eh_frame_at, eh_frame_offset, eh_frame.len()),
        (17, 3, 0, 0, names_offset, NAMES.len()),
    ] {
        file.extend([name, kind].map(u32::to_le_bytes).concat());
        let words = [flags, address, offset, len as u64, 0, 1, 0];
        file.extend(words.map(u64::to_le_bytes).concat());
    }
    (file, code_offset)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{
        mapping,
        MemoryParts, //
    };
    use super::*;
    use object::{
        Object,
        ObjectSection, //
    };

    const DATA: u64 = 0x7f00_0001_0000;
    const CODE: u64 = 0x7f00_0002_0000;
    /// The offset of the section in the data.
    const AT: usize = 0x40;

    /// The entries that LLVM 19 writes for a function that saves nothing: a CIE, and an FDE with
    /// relative addresses.
    fn section(function: u64, size: u32, address: u64) -> Vec<u8> {
        let mut bytes = vec![
            20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b,
        ];
        // DW_CFA_def_cfa rsp+8; the return address is at CFA-8.
        bytes.extend([12, 7, 8, 0x90, 1, 0, 0]);
        bytes.extend([20, 0, 0, 0, 28, 0, 0, 0]);
        let at = address + bytes.len() as u64;
        bytes.extend((function.wrapping_sub(at) as u32).to_le_bytes());
        bytes.extend(size.to_le_bytes());
        // DW_CFA_advance_loc 1; DW_CFA_def_cfa_offset 16
        bytes.extend([0, 0x41, 14, 16, 0, 0, 0, 0]);
        bytes
    }

    fn found(data: Vec<u8>) -> Vec<CodeObject> {
        let maps = [
            mapping(DATA, data.len() as u64, false, "", 0),
            mapping(CODE, 0x1000, true, "", 0),
        ];
        let memory = MemoryParts(vec![(DATA, data), (CODE, vec![0x90; 0x1000])]);
        objects(&memory, &maps, CODE, CODE + 0x1000)
    }

    fn data(sections: &[Vec<u8>]) -> Vec<u8> {
        let mut data = vec![0; AT];
        data.extend(sections.concat());
        data.resize(0x1000, 0);
        data
    }

    #[test]
    fn eh_frame_is_found_by_its_contents() {
        let first = section(CODE + 0x120, 0x40, DATA + AT as u64);
        let objects = found(data(std::slice::from_ref(&first)));
        let [object] = &objects[..] else {
            panic!("{objects:x?}");
        };
        assert_eq!((object.start, object.end), (CODE + 0x120, CODE + 0x160));
        // The address and the size of the function.
        assert_eq!(object.guard, DATA + AT as u64 + 32);
        assert_eq!(object.guard_value >> 32, 0x40);
        let file = object::File::parse(&*object.file).unwrap();
        let text = file.section_by_name(".text").unwrap();
        assert_eq!(text.address(), object.start);
        assert_eq!(text.file_range(), Some((object.offset, 0x40)));
        assert_eq!(text.data(), Ok(&[0x90; 0x40][..]));
        let eh_frame = file.section_by_name(".eh_frame").unwrap();
        assert_eq!(eh_frame.address(), DATA + AT as u64);
        assert_eq!(eh_frame.data(), Ok(&first[..]));
    }

    #[test]
    fn each_object_has_a_file_and_other_code_has_none() {
        let mut both = section(CODE, 0x40, DATA + AT as u64);
        both.extend([0; 4]);
        let second = DATA + (AT + both.len()) as u64;
        both.extend(section(CODE + 0x100, 0x40, second));
        assert_eq!(found(data(&[both])).len(), 2);
        // Of another mapping, or of no size.
        for (function, size) in [(CODE + 0x2000, 0x40), (CODE - 1, 0x40), (CODE, 0)] {
            let section = section(function, size, DATA + AT as u64);
            assert_eq!(found(data(&[section])), []);
        }
    }

    #[test]
    fn hostile_memory_is_harmless() {
        let good = data(&[section(CODE, 0x40, DATA + AT as u64)]);
        for at in AT..AT + 48 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                let objects = found(bad);
                assert!(objects
                    .iter()
                    .all(|it| CODE <= it.start && it.end <= CODE + 0x1000));
            }
        }
        // Entries at each place.
        let cie = section(CODE, 0x40, DATA + AT as u64);
        let many = cie[..24].repeat(40);
        assert_eq!(found(data(&[many])), []);
        assert!(found(good[..AT + 30].to_vec()).is_empty());
    }
}
