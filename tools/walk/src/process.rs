// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The mappings of a process, and their files.
//!
//! A file is read once, as a whole, and stays in memory: the number of files is small, and no value
//! made from a file needs a lifetime.

use std::{
    any::Any,
    cell::OnceCell,
    collections::HashMap,
    fmt,
    fs,
    io::{
        self,
        Read, //
    },
    ops::Range,
    path::{
        Path,
        PathBuf, //
    }, //
};

use object::{
    elf,
    read::elf::{
        ElfFile64,
        ProgramHeader, //
    },
    Endianness,
    Object,
    ObjectSection,
    ObjectSymbol,
    SymbolKind, //
};
use sframe::runtimes::Region;

/// A segment of an ELF file.
#[derive(Clone, Copy, Debug)]
pub struct ElfSegment {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The size in the file, in bytes.
    pub size: u64,
    /// Its link-time address.
    pub address: u64,
    /// Whether the segment is executable.
    pub executable: bool,
}

/// A section of an ELF file.
#[derive(Clone, Debug)]
pub struct ElfSection {
    /// The name.
    pub name: String,
    /// Its link-time address.
    pub address: u64,
    /// Its size, in bytes.
    pub size: u64,
}

#[derive(Debug)]
struct ElfSymbol {
    address: u64,
    size: u64,
    name: String,
}

/// An ELF file, or an image of one. Addresses are link-time addresses.
pub struct MappedFile {
    /// The number of the file, by which tables refer to it.
    pub number: usize,
    /// The path; for an image, its name.
    pub path: PathBuf,
    /// The bytes of the whole file.
    pub bytes: &'static [u8],
    /// The open file; `None` for an image.
    pub open: Option<fs::File>,
    /// Its mapped segments.
    pub segments: Vec<ElfSegment>,
    /// Its sections; empty if the section headers were stripped.
    pub sections: Vec<ElfSection>,
    symbols: OnceCell<Vec<ElfSymbol>>,
    /// Data that a user of this crate keeps for the file.
    pub kept: OnceCell<Box<dyn Any>>,
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl MappedFile {
    fn new(
        number: usize,
        path: &Path,
        bytes: &'static [u8],
        open: Option<fs::File>,
    ) -> Result<MappedFile, object::Error> {
        let elf = ElfFile64::<Endianness>::parse(bytes)?;
        let endian = elf.endian();
        let segments = elf.elf_program_headers().iter();
        let segments = segments
            .filter(|header| header.p_type(endian) == elf::PT_LOAD)
            .map(|header| ElfSegment {
                offset: header.p_offset(endian),
                size: header.p_filesz(endian),
                address: header.p_vaddr(endian),
                executable: header.p_flags(endian) & elf::PF_X != 0,
            })
            .collect();
        let sections = elf.sections().map(|section| ElfSection {
            name: section.name().unwrap_or_default().to_owned(),
            address: section.address(),
            size: section.size(),
        });
        Ok(MappedFile {
            number,
            path: path.to_owned(),
            bytes,
            open,
            segments,
            sections: sections.collect(),
            symbols: OnceCell::new(),
            kept: OnceCell::new(),
        })
    }

    /// The whole file, as an object of the crate `object`.
    pub fn elf(&self) -> ElfFile64<'static> {
        ElfFile64::parse(self.bytes).expect("a file that was parsed once")
    }

    /// The bytes from `address` on, to the end of their segment.
    pub fn bytes_at(&self, address: u64) -> &'static [u8] {
        let segment = self
            .segments
            .iter()
            .find(|segment| address.wrapping_sub(segment.address) < segment.size);
        segment
            .and_then(|segment| {
                let start = address - segment.address + segment.offset;
                let end = segment.offset + segment.size;
                self.bytes
                    .get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
            })
            .unwrap_or_default()
    }

    /// The section that contains an address, if it is known.
    pub fn section(&self, address: u64) -> Option<&ElfSection> {
        self.sections.iter().find(|section| {
            section.address != 0 && address.wrapping_sub(section.address) < section.size
        })
    }

    /// The name of the section that contains an address; "" if it is not known.
    pub fn section_at(&self, address: u64) -> &str {
        self.section(address).map_or("", |section| &section.name)
    }

    /// The function that contains an address, and the offset in the function, in bytes.
    pub fn function_at(&self, address: u64) -> Option<(&str, u64)> {
        let symbols = self.symbols.get_or_init(|| self.read_symbols());
        let index = symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = symbols.get(index.checked_sub(1)?)?;
        let offset = address - symbol.address;
        (offset < symbol.size || symbol.size == 0).then_some((&*symbol.name, offset))
    }

    fn read_symbols(&self) -> Vec<ElfSymbol> {
        let elf = self.elf();
        let mut symbols: Vec<ElfSymbol> = elf
            .symbols()
            .chain(elf.dynamic_symbols())
            .filter(|symbol| {
                symbol.is_definition()
                    && (symbol.kind() == SymbolKind::Text
                        // Symbols of assembly code often have no type.
                        || symbol.size() == 0 && symbol.kind() == SymbolKind::Unknown)
            })
            .map(|symbol| ElfSymbol {
                address: symbol.address(),
                size: symbol.size(),
                name: symbol.name().unwrap_or_default().to_owned(),
            })
            .collect();
        // Of several symbols at one address, the order is: symbols with a size first, then by name.
        symbols.sort_by(|a, b| (a.address, b.size, &a.name).cmp(&(b.address, a.size, &b.name)));
        symbols.dedup_by_key(|symbol| symbol.address);
        symbols
    }
}

/// All opened files.
#[derive(Debug, Default)]
pub struct Files {
    /// The files by path, and by ID if it is known, because several files may have had one path.
    by_path: HashMap<(PathBuf, Option<FileId>), Option<&'static MappedFile>>,
    count: usize,
}

impl Files {
    /// A set without files.
    pub fn new() -> Files {
        Files::default()
    }

    /// The file at a path; `None` if it cannot be read or is no ELF file of 64 bits.
    pub fn open(&mut self, path: &Path) -> Option<&'static MappedFile> {
        self.open_any(path, None, &[path])
    }

    /// The file with this path and ID, read from the first of `places` that can be read; `None` if
    /// it is no ELF file of 64 bits.
    fn open_any(
        &mut self,
        path: &Path,
        id: Option<FileId>,
        places: &[&Path],
    ) -> Option<&'static MappedFile> {
        let key = (path.to_owned(), id);
        if let Some(known) = self.by_path.get(&key) {
            return *known;
        }
        // Only regular files are read, not devices that a program has mapped.
        let mut read = places.iter().filter_map(|place| {
            let is_file = fs::metadata(place).is_ok_and(|data| data.is_file());
            let mut file = is_file.then(|| fs::File::open(place).ok())??;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).ok()?;
            Some((file, bytes))
        });
        let file = read
            .next()
            .and_then(|(file, bytes)| self.insert(path, bytes, Some(file)).ok());
        self.by_path.insert(key, file);
        file
    }

    /// Adds an image that is no file, like the vDSO. Images with equal bytes become one file.
    ///
    /// # Errors
    ///
    /// The image is no ELF file of 64 bits.
    pub fn add(
        &mut self,
        path: &Path,
        bytes: Vec<u8>,
    ) -> Result<&'static MappedFile, object::Error> {
        let key = (path.to_owned(), None);
        if let Some(Some(known)) = self.by_path.get(&key) {
            if known.bytes == bytes {
                return Ok(known);
            }
        }
        let file = self.insert(path, bytes, None)?;
        self.by_path.insert(key, Some(file));
        Ok(file)
    }

    fn insert(
        &mut self,
        path: &Path,
        bytes: Vec<u8>,
        open: Option<fs::File>,
    ) -> Result<&'static MappedFile, object::Error> {
        let file = MappedFile::new(self.count, path, bytes.leak(), open)?;
        self.count += 1;
        Ok(Box::leak(Box::new(file)))
    }
}

/// A mapping: a range of run-time addresses.
#[derive(Clone, Debug)]
pub struct ProcessMapping {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// The offset of the mapping's start in the file, in bytes.
    pub offset: u64,
    /// Whether the mapping is executable.
    pub executable: bool,
    /// Whether the process may write to it.
    pub writable: bool,
    /// Whether the module takes the memory for that of a file. Executable memory that is writable
    /// or shared counts as anonymous: the process may write code there.
    pub is_file: bool,
    /// The file's path, or the kernel's name for the mapping: `[stack]`, or "" for anonymous
    /// memory.
    pub name: String,
    /// The file, if it could be read.
    pub file: Option<&'static MappedFile>,
}

impl ProcessMapping {
    /// The file and the link-time address of a run-time address.
    pub fn link_address(&self, address: u64) -> Option<(&'static MappedFile, u64)> {
        let file = self.file?;
        let offset = address.wrapping_sub(self.start).wrapping_add(self.offset);
        let loaded = |segment: &&ElfSegment| offset.wrapping_sub(segment.offset) < segment.size;
        // Two segments may share a page of the file; the segment with the mapping's permission goes
        // first.
        let segment = file
            .segments
            .iter()
            .filter(loaded)
            .max_by_key(|segment| segment.executable == self.executable)?;
        Some((file, offset - segment.offset + segment.address))
    }
}

/// How the walk takes a step from the code of a region.
#[derive(Clone, Debug)]
pub enum CodeLayout {
    /// By the layout of the frames.
    Frames(Region),
    /// By the rows of a file. This is the mapping that the code would have if the process had
    /// mapped the file.
    Rows(ProcessMapping),
}

/// A region of code that a process makes at run time. Addresses are run-time addresses.
#[derive(Clone, Debug)]
pub struct CodeRegion {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// The address of a word in the memory of the process, and its value while the region is valid.
    pub guard: Option<(u64, u64)>,
    /// How the walk takes a step from the code.
    pub layout: CodeLayout,
}

impl CodeRegion {
    /// Whether an address is in the interpreter, whose return addresses are not after calls.
    pub fn is_interpreter(&self, address: u64) -> bool {
        match self.layout {
            CodeLayout::Frames(Region::CodeHeap(heap)) => {
                address.wrapping_sub(heap.interpreter_start) < heap.interpreter_len.into()
            }
            _ => false,
        }
    }
}

/// The mappings of a process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Sorted by address, without overlaps.
    mappings: Vec<ProcessMapping>,
    /// The regions of the code that the process makes.
    regions: Vec<CodeRegion>,
    /// See [`Process::set_without_region`].
    without_region: Option<Vec<Range<u64>>>,
}

impl Process {
    /// A process without mappings.
    pub fn new() -> Process {
        Process::default()
    }

    /// The present mappings of the process with this ID. The vDSO is read from its memory.
    ///
    /// # Errors
    ///
    /// The process's files in /proc cannot be read.
    pub fn read(pid: u32, files: &mut Files) -> io::Result<Process> {
        let mut process = Process::new();
        for (mut mapping, id) in maps(pid)? {
            if mapping.name == "[vdso]" {
                let len = (mapping.end - mapping.start) as usize;
                let bytes = read_memory(pid, mapping.start, len)?;
                mapping.file = files.add(Path::new("[vdso]"), bytes).ok();
            } else if mapping.name.starts_with('/') {
                // Otherwise the file with this name in this process's namespace.
                let mapped = map_file(pid, mapping.start, mapping.end);
                let name = Path::new(&mapping.name);
                mapping.file = files.open_any(name, Some(id), &[&mapped, name]);
            }
            process.mappings.push(mapping);
        }
        Ok(process)
    }

    /// Adds a mapping, which replaces older mappings of its range.
    pub fn map(&mut self, mapping: ProcessMapping) {
        let mut kept = Vec::with_capacity(self.mappings.len() + 2);
        for old in self.mappings.drain(..) {
            if old.start < mapping.start {
                kept.push(ProcessMapping {
                    end: old.end.min(mapping.start),
                    ..old.clone()
                });
            }
            if old.end > mapping.end {
                let start = old.start.max(mapping.end);
                kept.push(ProcessMapping {
                    start,
                    offset: old.offset + (start - old.start),
                    ..old
                });
            }
        }
        kept.push(mapping);
        kept.sort_by_key(|mapping| mapping.start);
        self.mappings = kept;
    }

    /// The mapping at a run-time address.
    pub fn at(&self, address: u64) -> Option<&ProcessMapping> {
        let index = self
            .mappings
            .partition_point(|mapping| mapping.start <= address);
        let mapping = &self.mappings[index.checked_sub(1)?];
        (address < mapping.end).then_some(mapping)
    }

    /// Replaces the regions of the code that the process makes.
    pub fn set_regions(&mut self, regions: Vec<CodeRegion>) {
        self.regions = regions;
    }

    /// Sets the run-time addresses at which there is known to be no region. If the process has
    /// regions, a walk ends in anonymous code that is neither there nor in a region. Without a call
    /// of this function, there is no such code.
    pub fn set_without_region(&mut self, ranges: Vec<Range<u64>>) {
        self.without_region = Some(ranges);
    }

    /// Whether it is not known if there is a region at a run-time address.
    pub(crate) fn is_unknown(&self, address: u64) -> bool {
        let has_none =
            |ranges: &Vec<Range<u64>>| ranges.iter().any(|range| range.contains(&address));
        !self.regions.is_empty()
            && self
                .without_region
                .as_ref()
                .is_some_and(|ranges| !has_none(ranges))
            && self.made_code_at(address).is_some()
    }

    /// The region at a run-time address, if anonymous code is there. The region's guard is not
    /// checked.
    pub fn region_at(&self, address: u64) -> Option<&CodeRegion> {
        let found =
            (self.regions.iter()).find(|region| (region.start..region.end).contains(&address))?;
        self.made_code_at(address).map(|_| found)
    }

    /// The layout of the frames at a run-time address, if a region with a layout is there. The
    /// region's guard is not checked.
    pub fn layout_at(&self, address: u64) -> Option<&Region> {
        match &self.region_at(address)?.layout {
            CodeLayout::Frames(region) => Some(region),
            CodeLayout::Rows(_) => None,
        }
    }

    /// The range around a run-time address in which there is no other region: that of its region,
    /// or what is between two regions, or ranges that are known to have none.
    pub(crate) fn part_at(&self, address: u64) -> Range<u64> {
        let mut part = 0..u64::MAX;
        for region in &self.regions {
            if (region.start..region.end).contains(&address) {
                return region.start..region.end;
            }
            if region.start > address {
                part.end = part.end.min(region.start);
            } else {
                part.start = part.start.max(region.end);
            }
        }
        for range in self.without_region.iter().flatten() {
            if range.start > address {
                part.end = part.end.min(range.start);
            } else if range.end <= address {
                part.start = part.start.max(range.end);
            } else {
                part = part.start.max(range.start)..part.end.min(range.end);
            }
        }
        part
    }

    /// The mapping at a run-time address, if it is anonymous code.
    pub fn made_code_at(&self, address: u64) -> Option<&ProcessMapping> {
        self.at(address)
            .filter(|mapping| mapping.executable && !mapping.is_file && mapping.file.is_none())
    }

    /// The mapping of the beginning of the next file at or below a mapping, as the module finds it.
    pub(crate) fn lower_file(&self, mapping: &ProcessMapping) -> Option<&ProcessMapping> {
        /// As `HEAD_DISTANCE` and `HEAD_SPAN` in `rust/c/mappings.c`.
        const MOST: usize = 16;
        const SPAN: u64 = 4 << 30;
        let mut name = None;
        let mut address = mapping.start;
        // Mappings, and gaps between them.
        for _ in 0..=MOST {
            let below = self
                .mappings
                .partition_point(|other| other.start <= address);
            let below = below.checked_sub(1).map(|index| &self.mappings[index]);
            let covers = |other: &&ProcessMapping| address < other.end;
            let (start, found) = match below {
                Some(other) if covers(&other) => (other.start, Some(other)),
                Some(other) => (other.end, None),
                None => (0, None),
            };
            if let Some(found) = found.filter(|other| other.name.starts_with('/')) {
                let is_same = *name.get_or_insert(&found.name) == &found.name;
                if is_same && found.offset == 0 {
                    return Some(found);
                }
            }
            if mapping.start - start > SPAN {
                return None;
            }
            address = start.checked_sub(1)?;
        }
        None
    }

    /// Whether a run-time address is in an interpreter, whose return addresses are not after calls.
    pub fn is_interpreter(&self, address: u64) -> bool {
        self.region_at(address)
            .is_some_and(|region| region.is_interpreter(address))
    }

    /// All mappings, by address.
    pub fn mappings(&self) -> &[ProcessMapping] {
        &self.mappings
    }

    /// A run-time address as text for people: file, function and offset.
    pub fn describe(&self, address: u64) -> String {
        let Some(mapping) = self.at(address) else {
            return format!("{address:#x}, where nothing is mapped");
        };
        let Some((file, link)) = mapping.link_address(address) else {
            return format!("{address:#x} in {}", name_or_anonymous(&mapping.name));
        };
        let name = file.path.file_name().unwrap_or(file.path.as_os_str());
        let name = name.to_string_lossy();
        match file.function_at(link) {
            Some((function, offset)) => format!("{name}:{function}+{offset:#x} ({link:#x})"),
            None => format!("{name}:{} {link:#x}", file.section_at(link)),
        }
    }
}

fn name_or_anonymous(name: &str) -> &str {
    if name.is_empty() {
        "anonymous memory"
    } else {
        name
    }
}

/// The path in /proc of the file that a process has mapped from `start` to `end`. It leads to this
/// file, also if the file was renamed or is in another namespace.
pub fn map_file(pid: u32, start: u64, end: u64) -> PathBuf {
    format!("/proc/{pid}/map_files/{start:x}-{end:x}").into()
}

/// The maximum length of a text of mappings, in bytes. A process has at most 65,530 mappings by
/// default; the names of files have seldom more than 100 bytes.
pub const MAX_MAPS: u64 = 32 << 20;

/// Identifies a file independently of its name, by device (major and minor number) and inode. The
/// inode is 0 if there is no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The file system's device.
    pub device: (u32, u32),
    /// The inode's number.
    pub inode: u64,
}

/// The mappings of a process, by address, each with its file, which is not opened.
///
/// # Errors
///
/// There is no such process, or its mappings may not be read.
pub fn maps(pid: u32) -> io::Result<Vec<(ProcessMapping, FileId)>> {
    parse_maps(&maps_text(pid)?)
}

/// The mappings of a process as text, as the kernel shows them. What is no UTF-8 in the names of
/// files is replaced.
///
/// # Errors
///
/// There is no such process, or its mappings may not be read, or the text has more than
/// [`MAX_MAPS`] bytes.
pub fn maps_text(pid: u32) -> io::Result<String> {
    // The kernel returns a page of memory at a time, and most processes have a few.
    let mut bytes = Vec::with_capacity(4 << 12);
    let file = fs::File::open(format!("/proc/{pid}/maps"))?;
    file.take(MAX_MAPS + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_MAPS {
        return Err(io::Error::other("the process has too many mappings"));
    }
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The mappings in a text of [`maps_text`].
///
/// # Errors
///
/// A line describes no mapping.
pub fn parse_maps(text: &str) -> io::Result<Vec<(ProcessMapping, FileId)>> {
    text.lines().map(parse_maps_line_or_fail).collect()
}

/// The executable mappings in a text of [`maps_text`]. Other lines are not parsed.
///
/// # Errors
///
/// A line describes no mapping.
pub fn parse_executable(text: &str) -> io::Result<Vec<(ProcessMapping, FileId)>> {
    // The permissions are after the first space: `r-xp`.
    let may_be = |line: &&str| {
        let mut behind = line.bytes().skip_while(|byte| *byte != b' ');
        behind.nth(3) != Some(b'-')
    };
    let parsed = text.lines().filter(may_be).map(parse_maps_line_or_fail);
    let is_executable = |found: &io::Result<(ProcessMapping, FileId)>| {
        found
            .as_ref()
            .map_or(true, |(mapping, _)| mapping.executable)
    };
    parsed.filter(is_executable).collect()
}

fn parse_maps_line_or_fail(line: &str) -> io::Result<(ProcessMapping, FileId)> {
    parse_maps_line(line)
        .ok_or_else(|| io::Error::other(format!("no mapping is in the line {line:?}")))
}

/// The run-time addresses of the mappings that the kernel module takes for anonymous memory, by
/// address. `text` is one of [`maps_text`].
pub fn anonymous_memory(text: &str) -> Vec<Range<u64>> {
    let found = text.lines().filter_map(parse_maps_line);
    let anonymous = found.filter(|(mapping, _)| !mapping.is_file);
    anonymous
        .map(|(mapping, _)| mapping.start..mapping.end)
        .collect()
}

/// Reads bytes of a process's memory.
///
/// # Errors
///
/// Nothing is mapped there, or the memory may not be read.
pub fn read_memory(pid: u32, address: u64, len: usize) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;

    let mut bytes = vec![0; len];
    fs::File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, address)?;
    Ok(bytes)
}

/// `START-END PERMISSIONS OFFSET DEVICE INODE NAME`, the name possibly with spaces or absent.
fn parse_maps_line(line: &str) -> Option<(ProcessMapping, FileId)> {
    let mut rest = line;
    let mut field = || {
        let (field, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = behind;
        field
    };
    let (start, end) = field().split_once('-')?;
    let permissions = field();
    let offset = field();
    let (major, minor) = field().split_once(':')?;
    let device = |number| u32::from_str_radix(number, 16);
    let file = FileId {
        device: (device(major).ok()?, device(minor).ok()?),
        inode: field().parse().ok()?,
    };
    let name = rest.trim_start();
    let executable = permissions.contains('x');
    let mapping = ProcessMapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        executable,
        writable: permissions.contains('w'),
        is_file: file.inode != 0 && !(executable && permissions.contains(['w', 's'])),
        name: name.to_owned(),
        file: None,
    };
    Some((mapping, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, offset: u64, name: &str) -> ProcessMapping {
        ProcessMapping {
            start,
            end,
            offset,
            executable: true,
            writable: false,
            is_file: name.starts_with('/'),
            name: name.to_owned(),
            file: None,
        }
    }

    #[test]
    fn the_next_file_below_is_found() {
        let mut process = Process::new();
        process.map(mapping(0x1000, 0x2000, 0, "/a"));
        process.map(mapping(0x2000, 0x3000, 0x1000, "/a"));
        process.map(mapping(0x5000, 0x6000, 0x7000, "/b"));
        process.map(mapping(0x8000, 0x9000, 0, ""));
        process.map(mapping(0xa000, 0xb000, 0, ""));
        process.map(mapping(6 << 30, (6 << 30) + 0x1000, 0, ""));
        let start = |address| {
            let from = process.at(address).unwrap();
            process.lower_file(from).map(|found| found.start)
        };
        assert_eq!(start(0x2000), Some(0x1000));
        // Offset 0 of the next file is not mapped.
        assert_eq!(start(0x5000), None);
        assert_eq!(start(0x8000), None);
        process.map(mapping(0x4000, 0x5000, 0, "/b"));
        let start = |process: &Process, address| {
            let from = process.at(address).unwrap();
            process.lower_file(from).map(|found| found.start)
        };
        assert_eq!(start(&process, 0xa000), Some(0x4000));
        // It is more than 4 GiB away.
        assert_eq!(start(&process, 6 << 30), None);
        // Six gaps and seven mappings, from the second one on.
        for number in 0..6 {
            process.map(mapping(
                0x10_000 + 0x2000 * number,
                0x11_000 + 0x2000 * number,
                0,
                "",
            ));
        }
        assert_eq!(start(&process, 0x18_000), Some(0x4000));
        assert_eq!(start(&process, 0x1a_000), None);
    }

    #[test]
    fn lines_of_maps() {
        let line = "7f00-8f00 r-xp 00001000 fe:01 123456     /usr/lib/with space.so";
        let (found, file) = parse_maps_line(line).unwrap();
        assert_eq!((file.device, file.inode), ((0xfe, 1), 123_456));
        assert_eq!(
            (found.start, found.end, found.offset),
            (0x7f00, 0x8f00, 0x1000)
        );
        assert_eq!(found.name, "/usr/lib/with space.so");
        assert!(found.executable && found.is_file);
        let text = format!("1000-2000 rw-p 00000000 00:00 0 \n{line}\n2000-3000 r--p 0 0:0 0 \n");
        let parsed: Vec<_> = parse_executable(&text).unwrap();
        let parsed: Vec<_> = (parsed.iter())
            .map(|(found, file)| (&found.name[..], *file))
            .collect();
        assert_eq!(parsed, [(&found.name[..], file)]);
        assert!(parse_executable("nonsense").is_err());
        let (found, _) = parse_maps_line("1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!(found.name, "");
        assert!(!found.executable);
        assert!(parse_maps_line("nonsense").is_none());
        assert!(parse_maps("1000-2000 rw-p 00000000 00:00 0 \nnonsense\n").is_err());
    }

    #[test]
    fn code_that_may_change_is_anonymous() {
        let text = "\
            1000-2000 r-xp 00000000 fe:01 9 /usr/bin/env\n\
            2000-3000 rw-p 00000000 fe:01 9 /usr/bin/env\n\
            3000-4000 r-xp 00000000 00:00 0 \n\
            4000-5000 rwxp 00000000 fe:01 9 /usr/bin/env\n\
            5000-6000 r-xs 00000000 00:01 7 /memfd:vmem (deleted)\n\
            6000-7000 rw-s 00000000 00:01 7 /memfd:vmem (deleted)\n\
            7000-8000 rw-p 00000000 00:00 0 [heap]\n";
        let starts: Vec<u64> = anonymous_memory(text)
            .iter()
            .map(|part| part.start)
            .collect();
        assert_eq!(starts, [0x3000, 0x4000, 0x5000, 0x7000]);
    }

    #[test]
    fn a_mapping_replaces_what_was_there() {
        let mut process = Process::new();
        process.map(mapping(0x1000, 0x5000, 0, "a"));
        process.map(mapping(0x2000, 0x3000, 0x9000, "b"));
        process.map(mapping(0x4000, 0x6000, 0, "c"));
        let seen: Vec<_> = process
            .mappings()
            .iter()
            .map(|mapping| (mapping.start, mapping.end, mapping.offset, &*mapping.name))
            .collect();
        assert_eq!(
            seen,
            [
                (0x1000, 0x2000, 0, "a"),
                (0x2000, 0x3000, 0x9000, "b"),
                (0x3000, 0x4000, 0x2000, "a"),
                (0x4000, 0x6000, 0, "c"),
            ]
        );
        assert!(process.at(0xfff).is_none());
        assert_eq!(process.at(0x3fff).unwrap().name, "a");
        assert!(process.at(0x6000).is_none());
    }

    #[test]
    fn this_very_process() {
        let mut files = Files::new();
        let process = Process::read(std::process::id(), &mut files).unwrap();
        let address = this_very_process as fn() as usize as u64;
        let (file, link) = process.at(address).unwrap().link_address(address).unwrap();
        assert_eq!(file.path, std::env::current_exe().unwrap());
        let (function, 0) = file.function_at(link).unwrap() else {
            panic!("{link:#x} is the start of a function");
        };
        assert!(function.contains("this_very_process"), "{function}");
        assert_eq!(file.section_at(link), ".text");
        // The code in the file is equal to the code that runs.
        let start = file.bytes_at(link);
        let memory = read_memory(std::process::id(), address, 16).unwrap();
        assert_eq!(start[..16], memory);
        let vdso = process
            .mappings()
            .iter()
            .find(|mapping| mapping.name == "[vdso]");
        if let Some(vdso) = vdso {
            assert!(vdso.file.unwrap().function_at(0).is_none());
        }
    }
}
