// SPDX-License-Identifier: GPL-2.0-only

//! Input files: the SFrame section with its relocations applied, the code areas and the symbols.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::Path, //
};

use object::{
    elf,
    read::elf::{
        ElfFile,
        FileHeader,
        ProgramHeader,
        SectionHeader, //
    },
    Endianness,
    Object,
    ObjectSection,
    ObjectSymbol,
    RelocationFlags,
    RelocationTarget,
    SectionIndex,
    SymbolKind, //
};
use sframe::{
    error::{
        Error,
        Malformed, //
    },
    header::Starts,
    section::Section, //
};

use crate::readelf_notation::explain;

/// The kind of an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// A bare section.
    Bare,
    /// An object file, from the assembler or `ld -r`.
    Relocatable,
    /// A program or a shared library.
    Linked,
}

/// An area of code: an executable segment, or an executable section of a relocatable file.
pub(crate) struct Area {
    /// The section's name; empty for segments.
    pub(crate) name: String,
    section: Option<SectionIndex>,
    /// Link-time addresses.
    pub(crate) range: Range<u64>,
    /// Offsets in the file, in bytes.
    file_range: Range<u64>,
}

/// A named address in the code.
pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) address: u64,
    /// In relocatable files, the index in [`InputFile::areas`].
    pub(crate) area: Option<usize>,
}

/// An input file and its section.
pub(crate) struct InputFile {
    pub(crate) kind: FileKind,
    data: Vec<u8>,
    /// The section, with relocations applied; empty if there is none.
    pub(crate) bytes: Vec<u8>,
    /// The section's link-time address.
    pub(crate) address: u64,
    /// The machine from the ELF header; 0 for a bare section.
    pub(crate) machine: u16,
    pub(crate) areas: Vec<Area>,
    pub(crate) symbols: Vec<Symbol>,
    /// The relocated fields, by offset in the section, with the index of the area that contains the
    /// target; `None` if the target is not code.
    pub(crate) relocated: BTreeMap<u64, Option<usize>>,
    /// The findings of `check` in the ELF headers: file offset and text.
    pub(crate) header_findings: Vec<(u64, String)>,
}

/// One of the concatenated sections, opened.
pub(crate) struct Blob {
    pub(crate) section: Section,
    /// Whether start addresses have another base than the flags state.
    pub(crate) starts_corrected: bool,
}

impl InputFile {
    pub(crate) fn read(path: &Path) -> Result<InputFile, String> {
        let data = fs::read(path).map_err(|error| error.to_string())?;
        match data[..] {
            [0xe2, 0xde, ..] | [0xde, 0xe2, ..] => Ok(InputFile {
                kind: FileKind::Bare,
                bytes: data,
                data: Vec::new(),
                address: 0,
                machine: 0,
                areas: Vec::new(),
                symbols: Vec::new(),
                relocated: BTreeMap::new(),
                header_findings: Vec::new(),
            }),
            [0x7f, b'E', b'L', b'F', 1, ..] => load::<elf::FileHeader32<Endianness>>(data),
            [0x7f, b'E', b'L', b'F', ..] => load::<elf::FileHeader64<Endianness>>(data),
            _ => Err("offset 0x0: neither an ELF file nor an SFrame section".into()),
        }
    }

    /// All concatenated sections, in order, and the error that ended the search, if any.
    pub(crate) fn blobs(&self) -> (Vec<Blob>, Option<(u64, String)>) {
        let mut blobs: Vec<Blob> = Vec::new();
        if self.bytes.is_empty() {
            return (blobs, None);
        }
        let bytes = &self.bytes[..];
        loop {
            let (at, next) = match blobs.last() {
                None => {
                    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    (0, Section::open(bytes, self.address, len).map(Some))
                }
                Some(blob) => (blob.section.next_offset(), blob.section.next(bytes)),
            };
            match next.and_then(|section| section.map(|section| self.settle(section)).transpose()) {
                Ok(Some(blob)) => blobs.push(blob),
                Ok(None) => return (blobs, None),
                Err(error) => return (blobs, Some(explain(error, at))),
            }
        }
    }

    /// Determines the base of start addresses.
    fn settle(&self, section: Section) -> Result<Blob, Error> {
        let starts = section.starts();
        let mut section = section;
        if !self.relocated.is_empty() {
            section = section.with_starts(Starts::Field);
        } else if self.kind == FileKind::Linked {
            section.settle_starts(&self.bytes[..], |address| {
                self.areas.iter().any(|area| area.range.contains(&address))
            })?;
        }
        Ok(Blob {
            section,
            starts_corrected: section.starts() != starts,
        })
    }

    /// The index of the area that contains the function of entry `index`. `None` without
    /// relocations: then there is a single address space.
    pub(crate) fn area_of(&self, section: &Section, index: u32) -> Option<usize> {
        *self.relocated.get(&section.entry_offset(index).into())?
    }

    /// `N` bytes of code at the link-time address `address`, padded with zeros at the area's end.
    pub(crate) fn code<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let area = self
            .areas
            .iter()
            .find(|area| area.range.contains(&address))?;
        let at = area
            .file_range
            .start
            .checked_add(address - area.range.start)?;
        let end = area.file_range.end.min(at.checked_add(N as u64)?);
        let bytes = self
            .data
            .get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)?;
        let mut code = [0; N];
        code.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(code)
    }
}

/// Checks the number of rows, so that an invalid section cannot cause more memory or time to be
/// used than a valid one of its size: a row takes at least two bytes and belongs to one function.
pub(crate) fn check_rows(bytes: &[u8], section: &Section) -> Result<(), (u64, String)> {
    let header_field = section.offset().saturating_add(12);
    let wrong = || explain_total(header_field);
    let mut rows = 0u32;
    for index in 0..section.num_fdes() {
        let function = section
            .function(bytes, index)
            .map_err(|error| explain(error, section.entry_offset(index)))?;
        rows = rows.checked_add(function.num_rows()).ok_or_else(wrong)?;
    }
    let most = section.end().saturating_sub(section.rows_offset()) / 2;
    if rows != section.num_fres() || rows > most {
        return Err(wrong());
    }
    Ok(())
}

fn explain_total(offset: u32) -> (u64, String) {
    let what = Malformed::RowTotal;
    explain(Error::Malformed { what, offset }, 0)
}

fn load<Elf: FileHeader<Endian = Endianness>>(data: Vec<u8>) -> Result<InputFile, String> {
    let unread = |error: object::Error| {
        let size = data.len();
        format!("not a readable ELF file ({size:#x} bytes; truncated?): {error}")
    };
    let elf = ElfFile::<Elf>::parse(&data[..]).map_err(unread)?;
    let endian = elf.endian();
    let header = elf.elf_header();
    let kind = match header.e_type(endian) {
        elf::ET_REL => FileKind::Relocatable,
        _ => FileKind::Linked,
    };
    let machine = header.e_machine(endian);
    let mut file = InputFile {
        kind,
        data: Vec::new(),
        bytes: Vec::new(),
        address: 0,
        machine,
        areas: areas(&elf, kind),
        symbols: Vec::new(),
        relocated: BTreeMap::new(),
        header_findings: Vec::new(),
    };

    let section_header_at = |index: SectionIndex| {
        let at = u64::from(header.e_shentsize(endian)).wrapping_mul(index.0 as u64);
        header.e_shoff(endian).into().wrapping_add(at)
    };
    let is_sframe = |section: &object::read::elf::ElfSection<'_, '_, Elf>| {
        section.name() == Ok(".sframe")
            || section.elf_section_header().sh_type(endian) == elf::SHT_GNU_SFRAME
    };
    let mut section = None;
    for other in elf.sections().filter(is_sframe) {
        if section.is_some() {
            let at = section_header_at(other.index());
            let remark = "a second SFrame section, which is ignored".into();
            file.header_findings.push((at, remark));
        } else {
            section = Some(other);
        }
    }
    let segments = segments(&elf);
    let mut place = None;
    if let Some(section) = &section {
        let range = section.file_range().unwrap_or_default();
        file.address = section.address();
        file.bytes = part(&data, "section .sframe", range)?.to_vec();
        if section.elf_section_header().sh_type(endian) == elf::SHT_NOBITS && section.size() != 0 {
            let remark = "the section has no bytes in this file (a debug information file?)";
            let at = section_header_at(section.index());
            file.header_findings.push((at, remark.into()));
        }
        if kind == FileKind::Relocatable {
            relocate(&elf, section, &mut file)?;
        }
        place = Some(range);
        let flags = section.elf_section_header().sh_flags(endian).into();
        if !file.bytes.is_empty() {
            let at = section_header_at(section.index());
            if flags & u64::from(elf::SHF_ALLOC) == 0 {
                let remark = "the section lacks SHF_ALLOC: it is not mapped at run time";
                file.header_findings.push((at, remark.into()));
            }
            if section.address() % 8 != 0 {
                let remark = format!(
                    "the section's address {:#x} is not a multiple of 8",
                    file.address
                );
                file.header_findings.push((at, remark));
            }
        }
    } else if let Some(segment) = segments.sframe.first() {
        // The file has no section headers.
        file.address = segment.address;
        file.bytes = part(&data, "segment PT_GNU_SFRAME", segment.file)?.to_vec();
    }
    if kind == FileKind::Linked {
        compare(&data, &file, place, &segments)
            .into_iter()
            .for_each(|remark| file.header_findings.push(remark));
    }
    file.symbols = symbols(&elf, &file.areas, kind);
    file.data = data;
    Ok(file)
}

fn part<'a>(data: &'a [u8], what: &str, (at, size): (u64, u64)) -> Result<&'a [u8], String> {
    let end = at.checked_add(size);
    end.and_then(|end| data.get(usize::try_from(at).ok()?..usize::try_from(end).ok()?))
        .ok_or_else(|| {
            format!(
                "offset {at:#x}: {what} of {size:#x} bytes extends past the file's {:#x} bytes (truncated?)",
                data.len()
            )
        })
}

/// A program header.
struct LoadSegment {
    /// The file offset of the program header.
    header: u64,
    /// Offset and size in the file.
    file: (u64, u64),
    address: u64,
}

/// The program headers that are checked.
#[derive(Default)]
struct Segments {
    sframe: Vec<LoadSegment>,
    load: Vec<LoadSegment>,
    /// The file offset of the program headers.
    at: u64,
}

fn segments<Elf: FileHeader<Endian = Endianness>>(elf: &ElfFile<'_, Elf>) -> Segments {
    let endian = elf.endian();
    let header = elf.elf_header();
    let mut segments = Segments {
        at: header.e_phoff(endian).into(),
        ..Segments::default()
    };
    let mut at = segments.at;
    for segment in elf.elf_program_headers() {
        let found = LoadSegment {
            header: at,
            file: segment.file_range(endian),
            address: segment.p_vaddr(endian).into(),
        };
        match segment.p_type(endian) {
            elf::PT_GNU_SFRAME => segments.sframe.push(found),
            elf::PT_LOAD => segments.load.push(found),
            _ => {}
        }
        at = at.wrapping_add(header.e_phentsize(endian).into());
    }
    segments
}

/// Contradictions between the program headers of a linked file and its section.
fn compare(
    data: &[u8],
    file: &InputFile,
    section: Option<(u64, u64)>,
    segments: &Segments,
) -> Vec<(u64, String)> {
    let mut header_findings = Vec::new();
    let mut remark = |at, what: &str| header_findings.push((at, what.to_owned()));
    let size = file.bytes.len() as u64;
    let Some(segment) = segments.sframe.first() else {
        if size != 0 {
            remark(
                segments.at,
                "no segment PT_GNU_SFRAME: the section cannot be found at run time",
            );
        }
        return header_findings;
    };
    if let Some(more) = segments.sframe.get(1) {
        remark(more.header, "a second segment PT_GNU_SFRAME");
    }
    let (at, segment_size) = segment.file;
    if let Some((section_at, section_size)) = section {
        if (section_at, file.address) != (at, segment.address) {
            remark(
                segment.header,
                &format!(
                    "PT_GNU_SFRAME is at {at:#x}, address {:#x}, but section .sframe at \
                     {section_at:#x}, address {:#x}",
                    segment.address, file.address
                ),
            );
        } else if segment_size < section_size {
            remark(
                segment.header,
                &format!(
                    "PT_GNU_SFRAME has {segment_size:#x} bytes, but section .sframe has \
                     {section_size:#x}"
                ),
            );
        } else if let Ok(bytes) = part(data, "", (at, segment_size)) {
            let tail = bytes.iter().skip(file.bytes.len()).position(|&b| b != 0);
            if let Some(nonzero) = tail {
                remark(
                    at.wrapping_add(section_size).wrapping_add(nonzero as u64),
                    "PT_GNU_SFRAME extends past section .sframe with bytes that are not zero",
                );
            }
        }
    }
    let loaded = segments.load.iter().any(|load| {
        let offset = at.wrapping_sub(load.file.0);
        offset < load.file.1
            && segment_size <= load.file.1 - offset
            && load.address.wrapping_add(offset) == segment.address
    });
    if segment_size != 0 && !loaded {
        remark(segment.header, "PT_GNU_SFRAME lies in no PT_LOAD segment");
    }
    header_findings
}

fn areas<Elf: FileHeader<Endian = Endianness>>(
    elf: &ElfFile<'_, Elf>,
    kind: FileKind,
) -> Vec<Area> {
    let endian = elf.endian();
    let end = |(at, size): (u64, u64)| at..at.saturating_add(size);
    if kind == FileKind::Relocatable {
        return elf
            .sections()
            .filter(|section| {
                let flags: u64 = section.elf_section_header().sh_flags(endian).into();
                flags & u64::from(elf::SHF_EXECINSTR) != 0
            })
            .map(|section| Area {
                name: section.name().unwrap_or_default().to_owned(),
                section: Some(section.index()),
                range: end((section.address(), section.size())),
                file_range: end(section.file_range().unwrap_or_default()),
            })
            .collect();
    }
    elf.elf_program_headers()
        .iter()
        .filter(|segment| {
            segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X != 0
        })
        .map(|segment| Area {
            name: String::new(),
            section: None,
            range: end((
                segment.p_vaddr(endian).into(),
                segment.p_memsz(endian).into(),
            )),
            file_range: end(segment.file_range(endian)),
        })
        .collect()
}

fn symbols<Elf: FileHeader<Endian = Endianness>>(
    elf: &ElfFile<'_, Elf>,
    areas: &[Area],
    kind: FileKind,
) -> Vec<Symbol> {
    let area_of = |section| areas.iter().position(|area| area.section == Some(section));
    let mut symbols: Vec<Symbol> = elf
        .symbols()
        .chain(elf.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() != SymbolKind::Data)
        .filter_map(|symbol| {
            let area = symbol.section_index().and_then(area_of);
            Some(Symbol {
                name: symbol.name().ok()?.to_owned(),
                address: symbol.address(),
                area: if kind == FileKind::Relocatable {
                    Some(area?)
                } else {
                    None
                },
            })
        })
        .collect();
    if kind == FileKind::Relocatable {
        symbols.extend(areas.iter().enumerate().map(|(index, area)| Symbol {
            name: area.name.clone(),
            address: area.range.start,
            area: Some(index),
        }));
    }
    symbols
}

/// Applies the section's relocations: each is the distance from the field to a code address.
fn relocate<Elf: FileHeader<Endian = Endianness>>(
    elf: &ElfFile<'_, Elf>,
    section: &object::read::elf::ElfSection<'_, '_, Elf>,
    file: &mut InputFile,
) -> Result<(), String> {
    for (at, relocation) in section.relocations() {
        let RelocationFlags::Elf { r_type } = relocation.flags() else {
            continue;
        };
        let width = match (file.machine, r_type) {
            (elf::EM_X86_64, elf::R_X86_64_PC32)
            | (elf::EM_AARCH64, elf::R_AARCH64_PREL32)
            | (elf::EM_S390, elf::R_390_PC32) => 4,
            (elf::EM_X86_64, elf::R_X86_64_PC64)
            | (elf::EM_AARCH64, elf::R_AARCH64_PREL64)
            | (elf::EM_S390, elf::R_390_PC64) => 8,
            (machine, r_type) => {
                return Err(format!(
                    "offset {at:#x} of .sframe: unsupported relocation type {r_type} (machine \
                     {machine})"
                ))
            }
        };
        let symbol = match relocation.target() {
            RelocationTarget::Symbol(index) => elf.symbol_by_index(index).ok(),
            _ => None,
        };
        let Some(symbol) =
            symbol.filter(|symbol| symbol.is_definition() || symbol.kind() == SymbolKind::Section)
        else {
            return Err(format!(
                "offset {at:#x} of .sframe: the relocation's symbol is not defined in this file"
            ));
        };
        let value = symbol
            .address()
            .wrapping_add_signed(relocation.addend())
            .wrapping_sub(file.address.wrapping_add(at));
        let field = usize::try_from(at)
            .ok()
            .and_then(|at| file.bytes.get_mut(at..at.checked_add(width)?));
        let Some(field) = field else {
            return Err(format!(
                "offset {at:#x} of .sframe: the relocation lies past the section's end"
            ));
        };
        match elf.endian() {
            Endianness::Little => field.copy_from_slice(&value.to_le_bytes()[..width]),
            Endianness::Big => field.copy_from_slice(&value.to_be_bytes()[8 - width..]),
        }
        let area = symbol
            .section_index()
            .and_then(|index| file.areas.iter().position(|a| a.section == Some(index)));
        file.relocated.insert(at, area);
    }
    Ok(())
}
