// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Finds the SFrame section in an ELF file or image, and the relation of its addresses to offsets
//! in the file.
//!
//! Most functions read only the ELF header and the program headers, which a loader needs, too: an
//! image in memory has no other headers. These headers normally lie in the first page.

use crate::sframe::{
    arch::machine::ELF_MACHINE,
    format::bytes::{
        Fault,
        Source, //
    }, //
};

/// The largest number of program headers that are read. Real files have about a dozen.
pub const MAX_PROGRAM_HEADERS: u16 = 64;

const MAGIC: [u8; 4] = *b"\x7fELF";
const CLASS_64: u8 = 2;
const DATA_LITTLE_ENDIAN: u8 = 1;
const VERSION_CURRENT: u8 = 1;
const TYPE_EXECUTABLE: u16 = 2;
const TYPE_SHARED: u16 = 3;
const PROGRAM_HEADER_SIZE: u16 = 56;
const SEGMENT_LOAD: u32 = 1;
/// PT_GNU_SFRAME.
const SEGMENT_SFRAME: u32 = 0x6474_e554;
/// PT_GNU_EH_FRAME.
const SEGMENT_EH_FRAME: u32 = 0x6474_e550;
const SEGMENT_NOTE: u32 = 4;
const FLAG_EXECUTABLE: u8 = 1;
const SECTION_HEADER_SIZE: u16 = 64;
const SECTION_ALLOCATED: u64 = 2;
const SECTION_NO_BITS: u32 = 8;
/// SHT_GNU_SFRAME.
const SECTION_SFRAME: u32 = 0x6fff_fff4;
/// The largest number of section headers that are read. Real files that are loaded have some
/// dozens.
pub const MAX_SECTION_HEADERS: u16 = 1024;
/// NT_GNU_BUILD_ID.
const NOTE_BUILD_ID: u32 = 3;
/// The largest number of notes that are read from one segment.
const MAX_NOTES: u32 = 16;

/// The reason why an ELF file or image has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// A read failed. The file itself may be well-formed.
    Fault {
        /// The offset of the read in the file, in bytes. Its length was at most
        /// [`MAX_READ`](crate::sframe::format::bytes::MAX_READ) bytes.
        offset: u64,
    },
    /// The file is not an ELF file.
    NotElf,
    /// The file is not a 64-bit file.
    Class,
    /// The file is not little-endian.
    ByteOrder,
    /// The file has an unknown version of ELF.
    Version,
    /// The file is neither a program nor a shared object.
    Type,
    /// The file is for another machine.
    Machine,
    /// The program headers have an unknown size.
    HeaderSize,
    /// The file has more than [`MAX_PROGRAM_HEADERS`] program headers.
    TooManyHeaders,
    /// The offset of a program header or section header does not fit into 64 bits.
    HeaderOffset,
    /// No segment is loaded from the requested offset.
    NotLoaded,
}

impl ElfError {
    /// A short name of the reason, for counters and tools. It never changes.
    pub const fn name(self) -> &'static str {
        match self {
            ElfError::Fault { .. } => "elf-fault",
            ElfError::NotElf => "elf-not-elf",
            ElfError::Class => "elf-class",
            ElfError::ByteOrder => "elf-byte-order",
            ElfError::Version => "elf-version",
            ElfError::Type => "elf-type",
            ElfError::Machine => "elf-machine",
            ElfError::HeaderSize => "elf-header-size",
            ElfError::TooManyHeaders => "elf-too-many-headers",
            ElfError::HeaderOffset => "elf-header-offset",
            ElfError::NotLoaded => "elf-not-loaded",
        }
    }
}

/// The location of the SFrame section, from PT_GNU_SFRAME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionLocation {
    /// The section's link-time address.
    pub vaddr: u64,
    /// The section's offset in the file, in bytes.
    pub offset: u64,
    /// The section's size in the file, in bytes; often with a tail of zeros.
    pub filesz: u64,
    /// The section's size in memory, in bytes; often with a tail of zeros.
    pub memsz: u64,
}

/// The segment that is loaded from the requested offset of an ELF file or image, and the file's
/// unwind data. The values are from the file, and are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedSegment {
    /// The segment's link-time address.
    pub load_vaddr: u64,
    /// The segment's offset in the file, in bytes.
    pub load_offset: u64,
    /// The segment's size in the file, in bytes.
    pub load_filesz: u64,
    /// Whether the segment is executable.
    pub executable: bool,
    /// The SFrame section, if there is one.
    pub sframe: Option<SectionLocation>,
    /// The link-time address of `.eh_frame_hdr` and its size in memory, in bytes, if there is one.
    pub functions: Option<(u64, u64)>,
}

impl LoadedSegment {
    /// The link-time address of the byte at `offset` in the file, in bytes. The result is true only
    /// if the offset is within the segment.
    #[inline]
    pub const fn link_address(&self, offset: u64) -> u64 {
        offset
            .wrapping_sub(self.load_offset)
            .wrapping_add(self.load_vaddr)
    }
}

/// Finds the SFrame section, `.eh_frame_hdr`, and the segment that contains the offset
/// `at_file_offset` in the file, in bytes.
///
/// Offset 0 of `bytes` is offset 0 of the file. If several segments contain `at_file_offset`, the
/// first executable segment has precedence.
///
/// # Errors
///
/// See [`ElfError`].
pub fn find_sframe<S: Source + ?Sized>(
    bytes: &S,
    at_file_offset: u64,
) -> Result<LoadedSegment, ElfError> {
    let headers = Headers::read(bytes)?;
    let mut load: Option<Load> = None;
    let mut sframe = None;
    let mut functions = None;

    for header in headers.all(bytes) {
        // Most headers are of other types. Their other fields are not read.
        let (kind, flags, at) = header?;
        if !matches!(kind, SEGMENT_LOAD | SEGMENT_SFRAME | SEGMENT_EH_FRAME) {
            continue;
        }
        // One call for all three types, because each further call would take its own stack space.
        let place = read_place(bytes, at)?;
        let executable = flags & FLAG_EXECUTABLE != 0;
        match kind {
            SEGMENT_LOAD => {
                let better = match load {
                    None => true,
                    Some(other) => executable && !other.executable,
                };
                if better && at_file_offset.wrapping_sub(place.offset) < place.filesz {
                    load = Some(Load { place, executable });
                }
            }
            // A file with more than one such header is invalid. The first such header is used.
            SEGMENT_SFRAME if sframe.is_none() => sframe = Some(place),
            SEGMENT_EH_FRAME if functions.is_none() => {
                functions = Some((place.vaddr, place.memsz));
            }
            _ => {}
        }
    }

    let load = load.ok_or(ElfError::NotLoaded)?;
    Ok(LoadedSegment {
        load_vaddr: load.place.vaddr,
        load_offset: load.place.offset,
        load_filesz: load.place.filesz,
        executable: load.executable,
        sframe,
        functions,
    })
}

/// Whether there is an SFrame section.
///
/// # Errors
///
/// See [`ElfError`], without [`ElfError::NotLoaded`].
pub fn has_sframe<S: Source + ?Sized>(bytes: &S) -> Result<bool, ElfError> {
    let found = Headers::read(bytes)?.find(bytes, SEGMENT_SFRAME)?;
    Ok(found.is_some())
}

/// Whether an executable segment covers the address `distance` bytes behind the address at which
/// the file's offset 0 is loaded.
///
/// # Errors
///
/// See [`ElfError`], without [`ElfError::NotLoaded`].
pub fn loads_code<S: Source + ?Sized>(bytes: &S, distance: u64) -> Result<bool, ElfError> {
    let headers = Headers::read(bytes)?;
    let mut first = None;

    for header in headers.all(bytes) {
        let (kind, flags, at) = header?;
        if kind == SEGMENT_LOAD {
            let place = read_place(bytes, at)?;
            // The link-time address of the file's offset 0. Segments are in the order of their
            // addresses, and the first segment contains the headers.
            let first = *first.get_or_insert(place.vaddr.wrapping_sub(place.offset));
            let link_address = first.wrapping_add(distance);
            if flags & FLAG_EXECUTABLE != 0 && link_address.wrapping_sub(place.vaddr) < place.memsz
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// A segment of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutableSegment {
    /// The segment's link-time address.
    address: u64,
    /// The segment's offset in the file, in bytes.
    offset: u64,
    /// The segment's size in the file, in bytes.
    size: u64,
}

/// The locations of a file's code, in the file and in memory: its executable segments.
#[derive(Clone, Copy, Debug)]
pub struct Executables<'a>(pub &'a [ExecutableSegment]);

impl Executables<'_> {
    /// Finds the executable segment that contains `offset` in the file. Returns the segment's
    /// offset and size in the file, both in bytes.
    pub fn segment(&self, offset: u64) -> Option<(u64, u64)> {
        self.0
            .iter()
            .find(|code| offset.wrapping_sub(code.offset) < code.size)
            .map(|code| (code.offset, code.size))
    }

    /// The offset in the file, in bytes, of the code at `link_address`; `None` if no code of the
    /// file lies there.
    #[inline(never)]
    pub fn offset(&self, link_address: u64) -> Option<u64> {
        self.0.iter().find_map(|code| {
            let distance = link_address.wrapping_sub(code.address);
            (distance < code.size).then(|| code.offset.wrapping_add(distance))
        })
    }

    /// Whether one executable segment contains the range from the link-time address `first` to the
    /// link-time address `last`, both included, and the file contains the bytes of that range.
    #[inline(never)]
    pub fn holds(&self, first: u64, last: u64) -> bool {
        self.0.iter().any(|code| {
            let distance = |address: u64| address.wrapping_sub(code.address);
            first <= last && distance(first) < code.size && distance(last) < code.size
        })
    }
}

/// Finds the executable segments of a file, and writes them to `found`, as many as have room there.
/// Returns the number of all.
///
/// # Errors
///
/// See [`ElfError`]; [`ElfError::NotLoaded`] if the file has no executable segment.
pub fn executables<S: Source + ?Sized>(
    bytes: &S,
    found: &mut [ExecutableSegment],
) -> Result<usize, ElfError> {
    let headers = Headers::read(bytes)?;
    let mut count = 0usize;

    for header in headers.all(bytes) {
        let (kind, flags, at) = header?;
        if kind == SEGMENT_LOAD && flags & FLAG_EXECUTABLE != 0 {
            if let Some(to) = found.get_mut(count) {
                let place = read_place(bytes, at)?;
                *to = ExecutableSegment {
                    address: place.vaddr,
                    offset: place.offset,
                    size: place.filesz,
                };
            }
            count = count.wrapping_add(1);
        }
    }
    if count == 0 {
        return Err(ElfError::NotLoaded);
    }
    Ok(count)
}

/// Finds the SFrame section of a file: by PT_GNU_SFRAME, or, where a linker made no such header, by
/// the section headers. `None` also for an empty section: a linker that drops all input leaves an
/// empty section. At most [`MAX_SECTION_HEADERS`] section headers are read.
///
/// # Errors
///
/// See [`ElfError`], without [`ElfError::NotLoaded`].
pub fn section_of_file<S: Source + ?Sized>(bytes: &S) -> Result<Option<SectionLocation>, ElfError> {
    let is_empty = |place: &SectionLocation| place.filesz == 0;
    if let Some(at) = Headers::read(bytes)?.find(bytes, SEGMENT_SFRAME)? {
        return read_place(bytes, at).map(|place| Some(place).filter(|place| !is_empty(place)));
    }
    let headers = u64::from_le_bytes(read_at(bytes, 40)?);
    let raw: [u8; 6] = read_at(bytes, 58)?;
    let [size, count, names] = [0, 2, 4].map(|at| match raw.get(at..) {
        Some(&[low, high, ..]) => u16::from_le_bytes([low, high]),
        _ => 0,
    });
    if headers == 0 || size != SECTION_HEADER_SIZE || names >= count {
        return Ok(None);
    }
    let header = |number: u16| {
        u64::from(number)
            .wrapping_mul(u64::from(SECTION_HEADER_SIZE))
            .checked_add(headers)
            .ok_or(ElfError::HeaderOffset)
    };
    let names = read_section(bytes, header(names)?)?.place.offset;
    for number in 0..count.min(MAX_SECTION_HEADERS) {
        let section = read_section(bytes, header(number)?)?;
        if section.flags & SECTION_ALLOCATED == 0
            || section.kind == SECTION_NO_BITS
            || is_empty(&section.place)
        {
            continue;
        }
        // Linkers that do not know the type of an SFrame section keep the section's name.
        let name = names.checked_add(section.name.into());
        if section.kind == SECTION_SFRAME
            || name.is_some_and(|at| bytes.read(at) == Ok(*b".sframe\0"))
        {
            return Ok(Some(section.place));
        }
    }
    Ok(None)
}

/// The build ID of a file and the length of the build ID in bytes, at most 32. The length is 0 if
/// the file has no build ID, or a longer build ID.
///
/// # Errors
///
/// See [`ElfError`], without [`ElfError::NotLoaded`].
pub fn build_id<S: Source + ?Sized>(bytes: &S) -> Result<([u8; 32], usize), ElfError> {
    let headers = Headers::read(bytes)?;
    let mut id = [0; 32];

    for header in headers.all(bytes) {
        let (kind, _, at) = header?;
        if kind == SEGMENT_NOTE {
            let place = read_place(bytes, at)?;
            let mut note = place.offset;
            let end = place.offset.saturating_add(place.filesz);
            for _ in 0..MAX_NOTES {
                if note.saturating_add(16) > end {
                    break;
                }
                let Ok(head) = bytes.read::<16>(note) else {
                    return Err(ElfError::Fault { offset: note });
                };
                let [name_len, len, kind] = [0, 4, 8].map(|at| match head.get(at..) {
                    Some(&[a, b, c, d, ..]) => u32::from_le_bytes([a, b, c, d]),
                    _ => 0,
                });
                let is_id = name_len == 4 && kind == NOTE_BUILD_ID && head.ends_with(b"GNU\0");
                if let (true, Some(id_bytes)) = (is_id, id.get_mut(..len as usize)) {
                    let mut from = note.saturating_add(16);
                    for to in id_bytes {
                        [*to] = read_at(bytes, from)?;
                        from = from.wrapping_add(1);
                    }
                    return Ok((id, len as usize));
                }
                let aligned = |len: u32| u64::from(len).wrapping_add(3) & !3;
                note = note
                    .saturating_add(12)
                    .saturating_add(aligned(name_len))
                    .saturating_add(aligned(len));
            }
        }
    }
    Ok((id, 0))
}

#[derive(Clone, Copy)]
struct Load {
    place: SectionLocation,
    executable: bool,
}

/// The location of the program headers: the offset of the first header, in bytes, and the number of
/// headers.
struct Headers {
    at: u64,
    count: u16,
}

impl Headers {
    // Not inlined, because several functions need the headers.
    #[inline(never)]
    fn read<S: Source + ?Sized>(bytes: &S) -> Result<Headers, ElfError> {
        // Separate reads of the needed fields take less stack than one read of the whole header.
        check(&read_at(bytes, 0)?)?;
        let at = u64::from_le_bytes(read_at(bytes, 32)?);
        let raw: [u8; 4] = read_at(bytes, 54)?;
        let size = u16::from_le_bytes([raw[0], raw[1]]);
        let count = u16::from_le_bytes([raw[2], raw[3]]);
        if count > MAX_PROGRAM_HEADERS {
            return Err(ElfError::TooManyHeaders);
        }
        // A file without program headers may have 0 in the field for the size of a header.
        if count != 0 && size != PROGRAM_HEADER_SIZE {
            return Err(ElfError::HeaderSize);
        }
        Ok(Headers { at, count })
    }

    /// The type, the lowest byte of the flags, and the offset in `bytes`, of each program header.
    fn all<'a, S: Source + ?Sized>(
        &self,
        bytes: &'a S,
    ) -> impl Iterator<Item = Result<(u32, u8, u64), ElfError>> + 'a {
        let first = self.at;
        (0..self.count).map(move |number| Headers::read_one(bytes, first, number))
    }

    /// Reads header `number`, like [`all`](Headers::all). `first` is the offset of the first header
    /// in `bytes`.
    #[inline(never)]
    fn read_one<S: Source + ?Sized>(
        bytes: &S,
        first: u64,
        number: u16,
    ) -> Result<(u32, u8, u64), ElfError> {
        let distance = u64::from(number).wrapping_mul(PROGRAM_HEADER_SIZE.into());
        let at = first.checked_add(distance).ok_or(ElfError::HeaderOffset)?;
        let [a, b, c, d, flags, ..]: [u8; 8] = read_at(bytes, at)?;
        Ok((u32::from_le_bytes([a, b, c, d]), flags, at))
    }

    /// The offset in `bytes` of the first program header of type `kind`.
    fn find<S: Source + ?Sized>(&self, bytes: &S, kind: u32) -> Result<Option<u64>, ElfError> {
        for header in self.all(bytes) {
            let (its, _, at) = header?;
            if its == kind {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }
}

/// Checks the start of an ELF header. Not inlined, because all sources share this function.
#[inline(never)]
fn check(raw: &[u8; 24]) -> Result<(), ElfError> {
    if [raw[0], raw[1], raw[2], raw[3]] != MAGIC {
        return Err(ElfError::NotElf);
    }
    if raw[4] != CLASS_64 {
        return Err(ElfError::Class);
    }
    if raw[5] != DATA_LITTLE_ENDIAN {
        return Err(ElfError::ByteOrder);
    }
    if raw[6] != VERSION_CURRENT {
        return Err(ElfError::Version);
    }
    if !matches!(
        u16::from_le_bytes([raw[16], raw[17]]),
        TYPE_EXECUTABLE | TYPE_SHARED
    ) {
        return Err(ElfError::Type);
    }
    if u16::from_le_bytes([raw[18], raw[19]]) != ELF_MACHINE {
        return Err(ElfError::Machine);
    }
    Ok(())
}

/// Reads the offset, the address and the sizes of a segment from the program header at `at`.
#[inline(never)]
fn read_place<S: Source + ?Sized>(bytes: &S, at: u64) -> Result<SectionLocation, ElfError> {
    // The header from the offset on to the size in memory. The physical address is not needed.
    let at = at.checked_add(8).ok_or(ElfError::HeaderOffset)?;
    let Ok(raw) = bytes.read(at) else {
        return Err(ElfError::Fault { offset: at });
    };
    Ok(SectionLocation {
        offset: word::<0>(&raw),
        vaddr: word::<8>(&raw),
        filesz: word::<24>(&raw),
        memsz: word::<32>(&raw),
    })
}

/// The fields of a section header.
struct SectionHeader {
    /// The offset of the name in the section of names, in bytes.
    name: u32,
    kind: u32,
    flags: u64,
    place: SectionLocation,
}

/// Reads the section header at `at`.
#[inline(never)]
fn read_section<S: Source + ?Sized>(bytes: &S, at: u64) -> Result<SectionHeader, ElfError> {
    let Ok(raw) = bytes.read(at) else {
        return Err(ElfError::Fault { offset: at });
    };
    let size = word::<32>(&raw);
    Ok(SectionHeader {
        name: word::<0>(&raw) as u32,
        kind: (word::<0>(&raw) >> 32) as u32,
        flags: word::<8>(&raw),
        place: SectionLocation {
            vaddr: word::<16>(&raw),
            offset: word::<24>(&raw),
            filesz: size,
            memsz: size,
        },
    })
}

/// The little-endian word of eight bytes at offset `AT`, which is at most 32.
#[inline]
fn word<const AT: usize>(raw: &[u8; 40]) -> u64 {
    u64::from_le_bytes([
        raw[AT],
        raw[AT + 1],
        raw[AT + 2],
        raw[AT + 3],
        raw[AT + 4],
        raw[AT + 5],
        raw[AT + 6],
        raw[AT + 7],
    ])
}

fn read_at<const N: usize, S: Source + ?Sized>(
    bytes: &S,
    offset: u64,
) -> Result<[u8; N], ElfError> {
    bytes
        .read(offset)
        .map_err(|Fault| ElfError::Fault { offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SEGMENT_OTHER: u32 = 6;

    /// A program header: type, flags, offset, address, size.
    type TestHeader = (u32, u32, u64, u64, u64);

    fn image(headers_at: u64, headers: &[TestHeader]) -> Vec<u8> {
        let mut bytes = Vec::from(*b"\x7fELF\x02\x01\x01");
        bytes.resize(16, 0);
        bytes.extend([3, 0, 62, 0, 1, 0, 0, 0]);
        bytes.resize(32, 0);
        bytes.extend(headers_at.to_le_bytes());
        bytes.resize(54, 0);
        bytes.extend([56, 0, headers.len() as u8, 0]);
        bytes.resize(headers_at.clamp(64, 4096) as usize, 0);
        for &(kind, flags, offset, vaddr, size) in headers {
            bytes.extend(kind.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            for value in [offset, vaddr, 0, size, size + 1, 4096] {
                bytes.extend(value.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn segments_share_pages_but_not_bytes() {
        // The layout of LLD: the code begins in the page of the file in which the constants end.
        let bytes = image(
            64,
            &[
                (SEGMENT_OTHER, 4, 64, 64, 0x100),
                (SEGMENT_LOAD, 4, 0, 0, 0x6f0),
                (SEGMENT_LOAD, 5, 0x6f0, 0x16f0, 0x100),
                (SEGMENT_SFRAME, 4, 0x600, 0x600, 0x40),
            ],
        );
        let found = find_sframe(&*bytes, 0x6ef).unwrap();
        assert!(!found.executable);
        assert_eq!(found.link_address(0x6ef), 0x6ef);
        let found = find_sframe(&*bytes, 0x6f0).unwrap();
        assert!(found.executable);
        assert_eq!(found.link_address(0x6f0), 0x16f0);
        assert_eq!(found.load_filesz, 0x100);
        assert_eq!(
            found.sframe,
            Some(SectionLocation {
                vaddr: 0x600,
                offset: 0x600,
                filesz: 0x40,
                memsz: 0x41
            })
        );
        assert_eq!(find_sframe(&*bytes, 0x7f0), Err(ElfError::NotLoaded));
    }

    /// Appends section headers to a file. `sections` are name, type, flags, address, offset, size.
    /// A further section, the last one, contains the names. Its contents precede the headers.
    fn with_sections(mut bytes: Vec<u8>, sections: &[(u32, u32, u64, u64, u64, u64)]) -> Vec<u8> {
        let names = bytes.len() as u64;
        bytes.extend(*b"\0.sframe\0.other\0");
        let at = bytes.len() as u64;
        bytes[40..48].copy_from_slice(&at.to_le_bytes());
        let count = sections.len() as u8 + 1;
        bytes[58..64].copy_from_slice(&[64, 0, count, 0, count - 1, 0]);
        let last = (0, 3, 0, 0, names, 17);
        for &(name, kind, flags, vaddr, offset, size) in sections.iter().chain([&last]) {
            bytes.extend(name.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            for value in [flags, vaddr, offset, size, 0, 0, 0] {
                bytes.extend(value.to_le_bytes());
            }
        }
        bytes
    }

    #[test]
    fn a_section_without_a_segment_is_found_by_its_header() {
        let load = (SEGMENT_LOAD, 5, 0, 0, 0x1000);
        let segment = (SEGMENT_SFRAME, 4, 0x600, 0x1600, 0x40);
        let address = |segments: &[TestHeader], sections: &[_]| {
            let bytes = with_sections(image(64, segments), sections);
            section_of_file(&*bytes).map(|place| place.map(|place| (place.vaddr, place.filesz)))
        };
        let named = (1, 1, 2, 0x2700, 0x700, 0x50);
        let typed = (9, SECTION_SFRAME, 2, 0x2800, 0x800, 0x60);
        let other = (9, 1, 2, 0x2900, 0x900, 0x70);
        assert_eq!(address(&[load], &[other, named]), Ok(Some((0x2700, 0x50))));
        assert_eq!(address(&[load], &[other, typed]), Ok(Some((0x2800, 0x60))));
        // A loader uses the segment.
        assert_eq!(
            address(&[load, segment], &[other, named]),
            Ok(Some((0x1600, 0x40)))
        );
        // A section that is not loaded, or has no contents in the file, does not count.
        let not_loaded = (1, 1, 0, 0, 0x700, 0x50);
        let not_there = (1, SECTION_NO_BITS, 2, 0x2700, 0x700, 0x50);
        assert_eq!(address(&[load], &[other, not_loaded, not_there]), Ok(None));
        assert_eq!(section_of_file(&*image(64, &[load])), Ok(None));
        let bytes = with_sections(image(64, &[load]), &[named]);
        for len in 64..bytes.len() {
            assert_ne!(section_of_file(&bytes[..len]), Ok(None), "{len}");
        }
    }

    #[test]
    fn build_ids() {
        let notes = |notes: &[u8]| {
            let at = 64 + 2 * 56;
            let load = (SEGMENT_LOAD, 5, 0, 0, 0x1000);
            let mut bytes = image(64, &[load, (SEGMENT_NOTE, 4, at, at, notes.len() as u64)]);
            bytes.extend(notes);
            build_id(&*bytes).map(|(id, len)| id[..len].to_vec())
        };
        let id = b"\x04\0\0\0\x05\0\0\0\x03\0\0\0GNU\0abcde\0\0\0";
        let property = b"\x04\0\0\0\x03\0\0\0\x05\0\0\0GNU\0abc\0";
        assert_eq!(notes(id), Ok(b"abcde".to_vec()));
        assert_eq!(notes(&[&property[..], id].concat()), Ok(b"abcde".to_vec()));
        assert_eq!(notes(property), Ok(Vec::new()));
        assert_eq!(notes(b""), Ok(Vec::new()));
        // Build IDs that are too long, or extend beyond the end of the file.
        let long = b"\x04\0\0\0\xff\xff\xff\xff\x03\0\0\0GNU\0abcde\0\0\0";
        assert_eq!(notes(long), Ok(Vec::new()));
        assert!(notes(&id[..18]).is_err());
        let load = (SEGMENT_LOAD, 5, 0, 0, 0x1000);
        let away = (SEGMENT_NOTE, 4, u64::MAX - 8, 0, 0x1000);
        assert!(build_id(&*image(64, &[load, away])).is_err());
    }

    #[test]
    fn code_is_found_by_offset_and_by_address() {
        let bytes = image(
            64,
            &[
                (SEGMENT_LOAD, 4, 0, 0, 0x600),
                (SEGMENT_LOAD, 5, 0x600, 0x1600, 0x100),
                (SEGMENT_LOAD, 5, 0x800, 0x2800, 0x100),
            ],
        );
        let mut found = [ExecutableSegment::default(); 3];
        assert_eq!(executables(&*bytes, &mut found), Ok(2));
        let code = Executables(&found);
        assert_eq!(code.offset(0x15ff), None);
        assert_eq!(code.offset(0x1600), Some(0x600));
        assert_eq!(code.offset(0x2800), Some(0x800));
        assert_eq!(code.offset(0x1700), None);
        assert!(code.holds(0x1600, 0x16ff));
        assert!(!code.holds(0x1600, 0x1700));
        assert!(!code.holds(0x16ff, 0x2800));
        assert!(!code.holds(0x16ff, 0x1600));
        assert_eq!(code.segment(0x8ff), Some((0x800, 0x100)));
        assert_eq!(code.segment(0x5ff), None);
        // All are counted.
        let mut one = [ExecutableSegment::default()];
        assert_eq!(executables(&*bytes, &mut one), Ok(2));
        assert_eq!(one, found[..1]);
        assert_eq!(
            executables(&*image(64, &[(SEGMENT_LOAD, 4, 0, 0, 0x600)]), &mut []),
            Err(ElfError::NotLoaded)
        );
    }

    #[test]
    fn as_many_segments_of_code_are_found_as_headers_are_read() {
        let most = usize::from(MAX_PROGRAM_HEADERS);
        let at = |number: usize| 0x1000 * number as u64;
        let headers = |count: usize| {
            let code = |number| (SEGMENT_LOAD, 5, at(number), at(number) + 0x40_0000, 0x600);
            (0..count).map(code).collect::<Vec<TestHeader>>()
        };
        let mut found = std::vec![ExecutableSegment::default(); most];
        assert_eq!(
            executables(&*image(64, &headers(most)), &mut found),
            Ok(most)
        );
        let last = at(most - 1);
        assert_eq!(Executables(&found).offset(last + 0x40_0000), Some(last));
        assert_eq!(
            executables(&*image(64, &headers(most + 1)), &mut found),
            Err(ElfError::TooManyHeaders)
        );
    }

    #[test]
    fn a_section_is_there_or_not() {
        let load = (SEGMENT_LOAD, 5, 0, 0, 0x1000);
        let sframe = (SEGMENT_SFRAME, 4, 0x600, 0x600, 0x40);
        assert_eq!(has_sframe(&*image(64, &[load])), Ok(false));
        assert_eq!(has_sframe(&*image(64, &[load, sframe])), Ok(true));
        assert_eq!(
            has_sframe(&image(64, &[load, load])[..100]),
            Err(ElfError::Fault { offset: 120 })
        );
    }

    #[test]
    fn the_table_of_functions_is_found() {
        let load = (SEGMENT_LOAD, 5, 0, 0, 0x1000);
        let table = (SEGMENT_EH_FRAME, 4, 0x700, 0x1700, 0x40);
        let functions =
            |headers: &[TestHeader]| find_sframe(&*image(64, headers), 0).unwrap().functions;
        assert_eq!(functions(&[load]), None);
        assert_eq!(functions(&[load, table]), Some((0x1700, 0x41)));
    }

    #[test]
    fn code_is_loaded_at_its_distance() {
        for base in [0, 0x40_0000] {
            let bytes = image(
                64,
                &[
                    (SEGMENT_OTHER, 5, 64, base + 64, 0x100),
                    (SEGMENT_LOAD, 4, 0, base, 0x600),
                    (SEGMENT_LOAD, 5, 0x1000, base + 0x2000, 0x800),
                    (SEGMENT_LOAD, 6, 0x1800, base + 0x4800, 0x100),
                ],
            );
            let inside = |distance| loads_code(&*bytes, distance).unwrap();
            assert!(inside(0x2000) && inside(0x2800));
            assert!(!inside(0) && !inside(0x1fff) && !inside(0x2801) && !inside(0x4800));
        }
    }

    #[test]
    fn code_goes_first_where_segments_overlap() {
        let data = (SEGMENT_LOAD, 6, 0, 0x1000, 0x2000);
        let code = (SEGMENT_LOAD, 5, 0x1000, 0x8000, 0x1000);
        let more = (SEGMENT_LOAD, 5, 0x1000, 0x9000, 0x1000);
        for headers in [[data, code, more], [code, data, more], [code, more, data]] {
            let found = find_sframe(&*image(64, &headers), 0x1800).unwrap();
            assert_eq!(found.link_address(0x1800), 0x8800);
            assert_eq!(found.sframe, None);
        }
    }

    #[test]
    fn headers_may_be_anywhere() {
        let load = [(SEGMENT_LOAD, 5, 0, 0, 0x1000)];
        assert!(find_sframe(&*image(1000, &load), 0).is_ok());
        let offset = u64::MAX - 7;
        assert_eq!(
            find_sframe(&*image(offset, &load), 0),
            Err(ElfError::Fault { offset })
        );

        /// A file with zeros behind the bytes of `image`.
        struct EndlessFile(Vec<u8>);
        impl Source for EndlessFile {
            fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
                Ok(self.0.read(offset).unwrap_or([0; N]))
            }
        }
        let many = image(offset, &[load[0]; 3]);
        assert_eq!(
            find_sframe(&EndlessFile(many), 0),
            Err(ElfError::HeaderOffset)
        );
    }

    #[test]
    fn addresses_may_be_anything() {
        let bytes = image(64, &[(SEGMENT_LOAD, 5, u64::MAX - 9, u64::MAX - 2, 8)]);
        assert_eq!(find_sframe(&*bytes, 0), Err(ElfError::NotLoaded));
        let found = find_sframe(&*bytes, u64::MAX - 5).unwrap();
        assert_eq!(found.link_address(u64::MAX - 5), 1);
    }

    #[test]
    fn the_first_section_counts() {
        let bytes = image(
            64,
            &[
                (SEGMENT_SFRAME, 4, 0x600, 0x600, 0x40),
                (SEGMENT_SFRAME, 4, 0x700, 0x700, 0x40),
                (SEGMENT_LOAD, 5, 0, 0, 0x1000),
            ],
        );
        let place = find_sframe(&*bytes, 0).unwrap().sframe.unwrap();
        assert_eq!(place.offset, 0x600);
    }

    #[test]
    fn too_many_headers() {
        let load = (SEGMENT_LOAD, 5, 0, 0, 0x1000);
        let most = usize::from(MAX_PROGRAM_HEADERS);
        let last = [
            std::vec![(SEGMENT_OTHER, 0, 0, 0, 0); most - 1],
            std::vec![load],
        ]
        .concat();
        assert!(find_sframe(&*image(64, &last), 0).is_ok());
        assert_eq!(
            find_sframe(&*image(64, &std::vec![load; most + 1]), 0),
            Err(ElfError::TooManyHeaders)
        );
    }
}
