// SPDX-License-Identifier: GPL-2.0-only

//! Code with `.eh_frame` beside it: what LLVM's JIT compilers load, as in PostgreSQL and numba, and
//! any other runtime that puts `.eh_frame` in memory for exceptions and debuggers.
//!
//! The place of `.eh_frame` is known to libgcc alone. It is found by its contents: an entry of the
//! kind that compilers write, followed by entries that describe executable memory of no file. It
//! lies in memory next to the code: in the same run of mappings of no file, without a hole, and at
//! most two mappings away from one with code. Memory that is writable and not executable counts
//! last.
//!
//! The code of a mapping is one object. Of a process with many such mappings, the code of a run is
//! one object. The object becomes an ELF file, with the entries of its functions, which is
//! converted and added like any other. LLVM makes no entries for functions that throw no
//! exceptions; so the object has all code of the mappings, and the instructions may tell the rest.

use std::{
    collections::{
        BTreeMap,
        BTreeSet,
        HashMap, //
    },
    ops::Range,
    path::PathBuf,
    rc::Rc, //
};

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

use crate::process::{
    ProcessMemory,
    PAGE, //
};

/// The name of what makes such code.
pub(super) const NAME: &str = "eh_frame";

/// The most bytes of code of one object, and of one mapping that is searched.
const MAX_OBJECT: u64 = 16 << 20;
/// The most bytes that are searched for one request.
const MAX_SEARCHED: u64 = 64 << 20;
/// The size of the largest mapping that is searched although it is writable and not executable.
/// Such memory lies beside heaps.
const MAX_WRITABLE: u64 = 1 << 20;
/// The most functions with entries that are read for one request.
const MAX_FUNCTIONS: usize = 1 << 16;
/// The most objects of one request; the module keeps 32 regions of a process.
pub(super) const MAX_OBJECTS: usize = 24;
/// The most sections with code of an object's file.
const MAX_TEXT: usize = 1024;
/// The distance of `.eh_frame` from a mapping with code, in mappings.
const NEAR: usize = 2;
/// The alignment of functions, in bytes.
const ALIGNMENT: usize = 16;
/// What follows the length of a section's first entry: the number of a CIE, the version, and the
/// first letter of the augmentation.
const CIE: &[u8] = b"\0\0\0\0\x01z";
/// The maximum length of a CIE, in bytes. Compilers write 20 to 40.
const MAX_CIE: usize = 256;
/// The most CIEs of a section. Compilers write one or two.
const MAX_CIES: usize = 1024;
/// The maximum length of an entry of a function, in bytes.
const MAX_FDE: usize = 1 << 16;

/// An object with code and `.eh_frame`. Addresses are run-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeObject {
    /// The first address of the code.
    pub start: u64,
    /// The address after the code.
    pub end: u64,
    /// The address of a word that changes with the code: of `.eh_frame`, the place and the size of
    /// a function; or of the code.
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
    /// The object of `code` at the run-time address `start`. `text` are the addresses of its
    /// sections, and `guard` is the address and the value of a word. `eh_frame` makes the section
    /// `.eh_frame` for its address. `None` if no address is left for that section.
    pub(super) fn new(
        code: &[u8],
        start: u64,
        text: &[Range<u64>],
        (guard, guard_value): (u64, u64),
        eh_frame: impl FnOnce(u64) -> Vec<u8>,
    ) -> Option<CodeObject> {
        let end = start.checked_add(code.len() as u64)?;
        // The file needs an address for the section that nothing else has.
        let eh_frame_at = end.checked_next_multiple_of(PAGE)?;
        let (file, offset) = elf_file(code, start, text, &eh_frame(eh_frame_at), eh_frame_at);
        Some(CodeObject {
            start,
            end,
            guard,
            guard_value,
            file,
            offset,
            rows: Vec::new(),
        })
    }

    /// Whether code of the object is in the range from `start` to `end`, run-time addresses.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }

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
    let (_, functions) = chain(bytes, address, MAX_FUNCTIONS);
    let low = functions.iter().map(|function| function.start).min()?;
    let high = functions.iter().map(|function| function.end).max()?;
    let part = CodePart {
        start: low,
        end: high,
        functions,
    };
    (start <= low && high <= end).then(|| object(memory, &[part]))?
}

/// Adds the objects that are found by their contents, those nearest to the range from `start` to
/// `end` first.
pub(super) fn add_objects(
    memory: &impl ProcessMemory,
    maps: &[(ProcessMapping, FileId)],
    start: u64,
    end: u64,
    objects: &mut Vec<CodeObject>,
) {
    let distance = |first: u64, behind: u64| match first < end && start < behind {
        true => 0,
        false => first.abs_diff(end).min(behind.abs_diff(start)),
    };
    let mut runs = runs(maps);
    let of_run = |run: &Vec<&ProcessMapping>| {
        let ends = run.first().zip(run.last());
        ends.map_or(u64::MAX, |(first, last)| distance(first.start, last.end))
    };
    runs.sort_by_key(of_run);
    let mut search = EhFrameSearch::new(&runs);
    for is_writable in [false, true] {
        search.described = search.found.keys().copied().collect();
        for run in &runs {
            search.run(memory, run, is_writable);
        }
    }
    let parts = search.parts(&runs, objects);
    let is_one_each = parts.iter().map(Vec::len).sum::<usize>() + objects.len() <= MAX_OBJECTS;
    let mut groups: Vec<&[CodePart]> = Vec::new();
    for of_run in &parts {
        match is_one_each {
            true => groups.extend(of_run.chunks(1)),
            false => split(of_run, &mut groups),
        }
    }
    groups.sort_by_key(|group| {
        let ends = group.first().zip(group.last());
        ends.map_or(u64::MAX, |(first, last)| distance(first.start, last.end))
    });
    let mut left = MAX_SEARCHED;
    for group in groups {
        let ends = group.first().zip(group.last());
        let rest = ends.and_then(|(first, last)| left.checked_sub(last.end - first.start));
        let (Some(rest), true) = (rest, objects.len() < MAX_OBJECTS) else {
            break;
        };
        left = rest;
        add_new(objects, object(memory, group));
    }
}

/// Adds an object, unless it overlaps one that is there, or there are enough.
pub(super) fn add_new(objects: &mut Vec<CodeObject>, new: impl IntoIterator<Item = CodeObject>) {
    for new in new {
        let overlaps = |other: &CodeObject| other.overlaps(new.start, new.end);
        if objects.len() < MAX_OBJECTS && !objects.iter().any(overlaps) {
            objects.push(new);
        }
    }
}

/// The runs of mappings of no file, without holes, that have code.
fn runs(maps: &[(ProcessMapping, FileId)]) -> Vec<Vec<&ProcessMapping>> {
    let is_anonymous = |mapping: &ProcessMapping| {
        let is_special = mapping.name.starts_with('[') && !mapping.name.starts_with("[anon");
        !mapping.is_file && !is_special
    };
    let anonymous: Vec<_> = maps
        .iter()
        .map(|(mapping, _)| mapping)
        .filter(|mapping| is_anonymous(mapping))
        .collect();
    anonymous
        .chunk_by(|mapping, next| mapping.end == next.start)
        .filter(|run| run.iter().any(|mapping| mapping.executable))
        .map(<[_]>::to_vec)
        .collect()
}

/// Parts of a run as groups of at most [`MAX_OBJECT`] bytes.
fn split<'a>(mut parts: &'a [CodePart], groups: &mut Vec<&'a [CodePart]>) {
    while let Some(first) = parts.first() {
        let fits = |part: &CodePart| part.end - first.start <= MAX_OBJECT;
        let (group, rest) = parts.split_at(parts.partition_point(fits).max(1));
        groups.push(group);
        parts = rest;
    }
}

/// The code of a mapping, or a part of it, with the functions that have entries.
struct CodePart {
    start: u64,
    end: u64,
    functions: Vec<LoadedFunction>,
}

/// A function with an entry of `.eh_frame`.
struct LoadedFunction {
    start: u64,
    end: u64,
    /// The address of the guard.
    guard: u64,
    guard_value: u64,
    cie: Rc<[u8]>,
    fde: Vec<u8>,
    /// Whether the entry has the function's address relative to its own, and the size of the
    /// address in bytes.
    is_relative: bool,
    size: usize,
}

/// A search for `.eh_frame`.
struct EhFrameSearch<'a> {
    /// The mappings with code, by address.
    code: Vec<&'a ProcessMapping>,
    /// The functions that were found, by the start of the mapping.
    found: BTreeMap<u64, Vec<LoadedFunction>>,
    /// The starts of the mappings whose further functions are not wanted.
    described: BTreeSet<u64>,
    /// The bytes and the functions that may still be read.
    bytes: u64,
    functions: usize,
    // One for all mappings: the pages of a new one would take longer than the search.
    buffer: Vec<u8>,
}

impl<'a> EhFrameSearch<'a> {
    fn new(runs: &[Vec<&'a ProcessMapping>]) -> EhFrameSearch<'a> {
        let all = runs.iter().flatten().copied();
        let mut code: Vec<_> = all.filter(|mapping| mapping.executable).collect();
        code.sort_by_key(|mapping| mapping.start);
        EhFrameSearch {
            code,
            found: BTreeMap::new(),
            described: BTreeSet::new(),
            bytes: MAX_SEARCHED,
            functions: MAX_FUNCTIONS,
            buffer: Vec::new(),
        }
    }

    /// The mapping of code that contains this range.
    fn mapping_of(&self, start: u64, end: u64) -> Option<&'a ProcessMapping> {
        let behind = self.code.partition_point(|mapping| mapping.start <= start);
        let mapping = *self.code.get(behind.checked_sub(1)?)?;
        (start < end && end <= mapping.end).then_some(mapping)
    }

    /// Searches the mappings of a run that are writable and not executable, or all others.
    fn run(&mut self, memory: &impl ProcessMemory, run: &[&ProcessMapping], is_writable: bool) {
        for (index, mapping) in run.iter().enumerate() {
            let near = &run[index.saturating_sub(NEAR)..run.len().min(index + NEAR + 1)];
            let is_near = near.iter().any(|mapping| mapping.executable);
            let is_kind = (mapping.writable && !mapping.executable) == is_writable;
            let len = mapping.end - mapping.start;
            let most = if is_writable {
                MAX_WRITABLE
            } else {
                MAX_OBJECT
            };
            if !is_near || !is_kind || len > most {
                continue;
            }
            let Some(left) = self.bytes.checked_sub(len) else {
                return;
            };
            self.bytes = left;
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize(buffer.len().max(len as usize), 0);
            let bytes = &mut buffer[..len as usize];
            // Memory that may not be read has no `.eh_frame`.
            if memory.fill(mapping.start, bytes).is_ok() {
                self.mapping(bytes, mapping.start);
            }
            self.buffer = buffer;
        }
    }

    /// Searches the bytes of a mapping at a run-time address.
    fn mapping(&mut self, bytes: &[u8], address: u64) {
        let mut at = 0;
        while let Some(first) = next_section(bytes, at) {
            let from = address + first as u64;
            let (len, functions) = chain(&bytes[first..], from, self.functions);
            at = first + len.max(4);
            self.functions -= functions.len();
            for function in functions {
                let mapping = self.mapping_of(function.start, function.end);
                let start = mapping.map(|mapping| mapping.start);
                if let Some(start) = start.filter(|start| !self.described.contains(start)) {
                    self.found.entry(start).or_default().push(function);
                }
            }
        }
    }

    /// The code of each run with `.eh_frame`, by address, apart from code of `known` objects. All
    /// code of the run that the process does not change: not all functions have entries.
    fn parts(mut self, runs: &[Vec<&ProcessMapping>], known: &[CodeObject]) -> Vec<Vec<CodePart>> {
        let is_new = |function: &LoadedFunction| {
            !(known.iter()).any(|object| object.overlaps(function.start, function.end))
        };
        for functions in self.found.values_mut() {
            functions.retain(is_new);
            functions.sort_by_key(|function| function.start);
        }
        self.found.retain(|_, functions| !functions.is_empty());
        let mut all = Vec::new();
        for run in runs {
            let code = || run.iter().filter(|mapping| mapping.executable);
            if !code().any(|mapping| self.found.contains_key(&mapping.start)) {
                continue;
            }
            let parts = code().filter_map(|mapping| {
                let functions = self.found.remove(&mapping.start).unwrap_or_default();
                let is_known = |object: &CodeObject| object.overlaps(mapping.start, mapping.end);
                if functions.is_empty() && (mapping.writable || known.iter().any(is_known)) {
                    return None;
                }
                // Of much code only the part that is described.
                let (mut start, mut end) = (mapping.start, mapping.end);
                if end - start > MAX_OBJECT || known.iter().any(is_known) {
                    start = functions.first()?.start;
                    end = functions.iter().map(|function| function.end).max()?;
                }
                Some(CodePart {
                    start,
                    end,
                    functions,
                })
            });
            all.push(parts.collect());
        }
        all
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
                && len
                    .is_some_and(|len| (8..MAX_CIE).contains(&(u32::from_le_bytes(*len) as usize)))
        })
}

/// Reads the entries at the start of `bytes`, which have the run-time address `address`, up to one
/// that cannot be read, or refers to none of these CIEs: the length of all in bytes, and at most
/// `most` functions.
fn chain(bytes: &[u8], address: u64, most: usize) -> (usize, Vec<LoadedFunction>) {
    let section = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut entries = section.entries(&bases);
    let mut cies = HashMap::new();
    let mut len = 0;
    let mut functions = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        match entry {
            CieOrFde::Cie(cie) => {
                let entry = entry_at(bytes, cie.offset(), cie.entry_len());
                let fits = |entry: &&[u8]| entry.len() <= MAX_CIE && cies.len() < MAX_CIES;
                let Some(entry) = entry.filter(fits) else {
                    break;
                };
                len = cie.offset() + entry.len();
                cies.insert(cie.offset(), (Rc::from(entry), cie));
            }
            CieOrFde::Fde(partial) => {
                let cie_of = |_: &_, _: &_, at: gimli::EhFrameOffset<usize>| match cies.get(&at.0) {
                    Some((_, cie)) => Ok(cie.clone()),
                    None => Err(gimli::Error::NotCiePointer),
                };
                let Ok(fde) = partial.parse(cie_of) else {
                    break;
                };
                let function = entry_at(bytes, fde.offset(), fde.entry_len())
                    .zip(cies.get(&fde.cie().offset()))
                    .filter(|(entry, _)| entry.len() <= MAX_FDE && functions.len() < most)
                    .and_then(|(entry, (cie, _))| LoadedFunction::new(&fde, cie, entry, address));
                let Some(function) = function else {
                    break;
                };
                len = fde.offset() + function.fde.len();
                functions.push(function);
            }
        }
    }
    (len.min(bytes.len()), functions)
}

/// The entry at an offset, with its length, which has four bytes.
fn entry_at(bytes: &[u8], offset: usize, len: usize) -> Option<&[u8]> {
    let entry = bytes.get(offset..)?.get(..len.checked_add(4)?)?;
    let written = u32::from_le_bytes(*entry.first_chunk()?);
    (written as usize == len).then_some(entry)
}

impl LoadedFunction {
    /// The function of an entry, whose bytes are `entry`, in a section at the run-time address
    /// `address`. `None` if the function's address is encoded in a way that compilers do not use.
    fn new(
        fde: &gimli::FrameDescriptionEntry<gimli::EndianSlice<'_, LittleEndian>>,
        cie: &Rc<[u8]>,
        entry: &[u8],
        address: u64,
    ) -> Option<LoadedFunction> {
        let encoding = fde.cie().fde_address_encoding();
        let encoding = encoding.unwrap_or(gimli::DW_EH_PE_absptr);
        let size = match encoding.format() {
            gimli::DW_EH_PE_absptr | gimli::DW_EH_PE_udata8 | gimli::DW_EH_PE_sdata8 => 8,
            gimli::DW_EH_PE_udata4 | gimli::DW_EH_PE_sdata4 => 4,
            _ => return None,
        };
        let is_relative = match encoding.application() {
            gimli::DW_EH_PE_absptr => false,
            gimli::DW_EH_PE_pcrel => true,
            _ => return None,
        };
        if encoding.is_indirect() {
            return None;
        }
        let start = fde.initial_address();
        // The address and the size of the function are after the length and the pointer to the CIE.
        // Of two words, the second one is the size.
        let guard = ADDRESS_AT + size / 8 * 8;
        Some(LoadedFunction {
            start,
            end: start.checked_add(fde.len())?,
            guard: address.checked_add((fde.offset() + guard) as u64)?,
            guard_value: u64::from_le_bytes(*entry.get(guard..)?.first_chunk()?),
            cie: Rc::clone(cie),
            fde: entry.to_vec(),
            is_relative,
            size,
        })
    }

    /// Adds the function's entry to a section at the run-time address `address`. `cie` is the
    /// offset of the CIE in the section.
    fn write(&self, section: &mut Vec<u8>, cie: usize, address: u64) {
        let at = section.len();
        section.extend(&self.fde);
        section[at + 4..at + 8].copy_from_slice(&((at + 4 - cie) as u32).to_le_bytes());
        if self.is_relative {
            let from = address + (at + ADDRESS_AT) as u64;
            let distance = self.start.wrapping_sub(from).to_le_bytes();
            section[at + ADDRESS_AT..][..self.size].copy_from_slice(&distance[..self.size]);
        }
    }
}

/// The offset of the function's address in its entry, after the length and the pointer to the CIE.
const ADDRESS_AT: usize = 8;

/// An `.eh_frame` section at the run-time address `address`, with the entries of all functions.
fn eh_frame(parts: &[CodePart], address: u64) -> Vec<u8> {
    let mut section = Vec::new();
    let mut cies = HashMap::new();
    for function in parts.iter().flat_map(|part| &part.functions) {
        let cie = *cies.entry(&function.cie).or_insert_with(|| {
            let at = section.len();
            section.extend(&*function.cie);
            at
        });
        function.write(&mut section, cie, address);
    }
    section.extend([0; 4]);
    section
}

/// The object of these parts, in the order of their addresses. `None` if there is no code, or if it
/// is too large or cannot be read.
fn object(memory: &impl ProcessMemory, parts: &[CodePart]) -> Option<CodeObject> {
    let start = parts.first()?.start;
    let len = parts.last()?.end.checked_sub(start)?;
    if len == 0 || len > MAX_OBJECT {
        return None;
    }
    let mut code = vec![0; len as usize];
    let mut text = Vec::new();
    for part in parts {
        let range = (part.start - start) as usize..(part.end - start) as usize;
        let bytes = code.get_mut(range.clone())?;
        memory.fill(part.start, bytes).ok()?;
        let shifted = |part: Range<usize>| range.start + part.start..range.start + part.end;
        text.extend(filled(bytes, part).into_iter().map(shifted));
    }
    code.truncate(text.last()?.end);
    text.truncate(MAX_TEXT);
    let text: Vec<_> = text
        .iter()
        .map(|part| start + part.start as u64..start + part.end as u64)
        .collect();
    let mut functions = parts.iter().flat_map(|part| &part.functions);
    let (guard, guard_value) = match functions.next_back() {
        Some(function) => (function.guard, function.guard_value),
        // The middle of the code: functions begin and end alike.
        None => {
            let middle = text.first()?;
            let at = (middle.start + (middle.end - middle.start) / 2) & !7;
            let word = code
                .get((at.checked_sub(start)?) as usize..)?
                .first_chunk()?;
            (at, u64::from_le_bytes(*word))
        }
    };
    let eh_frame = |address| eh_frame(parts, address);
    CodeObject::new(&code, start, &text, (guard, guard_value), eh_frame)
}

/// The offsets of the code in the bytes of a part: up to its last byte that is not 0. Where zeros
/// fill up a page, the next page begins with a function.
fn filled(bytes: &[u8], part: &CodePart) -> Vec<Range<usize>> {
    let offset = |address: u64| address.saturating_sub(part.start) as usize;
    let described = part.functions.iter().map(|function| offset(function.end));
    let described: BTreeSet<usize> = described.collect();
    let is_filled_up = |page: &usize| {
        let before = bytes.get(page.wrapping_sub(ALIGNMENT)..*page);
        before.is_some_and(|before| before.iter().all(|byte| *byte == 0))
    };
    let pages = (offset(part.start.next_multiple_of(PAGE))..bytes.len()).step_by(PAGE as usize);
    let mut starts = vec![0];
    starts.extend(pages.filter(is_filled_up));
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    let used = |(start, end): (&usize, usize)| {
        let last = bytes[*start..end].iter().rposition(|byte| *byte != 0)?;
        let used = (start + last + 1).next_multiple_of(ALIGNMENT).min(end);
        // The last bytes of an instruction may be 0.
        let described = described.range(..=end).next_back();
        Some(*start..described.map_or(used, |described| used.max(*described)))
    };
    starts.iter().zip(ends).filter_map(used).collect()
}

/// An ELF file with these sections at these addresses, and the offset of the code. `text` are the
/// addresses of the sections of the code.
fn elf_file(
    code: &[u8],
    code_at: u64,
    text: &[Range<u64>],
    eh_frame: &[u8],
    eh_frame_at: u64,
) -> (Vec<u8>, u64) {
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
    let texts = text.len() as u64;
    let sizes = [HEADER, SEGMENT, 2, SECTION, texts + 3, texts + 2];
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
    let mut sections = vec![(0u32, 0u32, 0u64, 0, 0, 0)];
    sections.extend(text.iter().map(|part| {
        let offset = code_offset + (part.start - code_at);
        (
            1,
            1,
            6,
            part.start,
            offset,
            (part.end - part.start) as usize,
        )
    }));
    sections.extend([
        (7, 1, 2, eh_frame_at, eh_frame_offset, eh_frame.len()),
        (17, 3, 0, 0, names_offset, NAMES.len()),
    ]);
    for (name, kind, flags, address, offset, len) in sections {
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

    const CODE: u64 = 0x7f00_0001_0000;
    /// The mapping behind the code, and the offset of the section in it.
    const DATA: u64 = CODE + 0x1000;
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

    /// A process with these mappings: the address, the permissions and the bytes of each.
    struct FakeMappings(Vec<(u64, &'static str, Vec<u8>)>);

    impl FakeMappings {
        fn maps(&self) -> Vec<(ProcessMapping, FileId)> {
            let maps = self.0.iter().map(|(start, permissions, bytes)| {
                let executable = permissions.contains('x');
                let mut found = mapping(*start, bytes.len() as u64, executable, "", 0);
                found.0.writable = permissions.contains('w');
                found
            });
            maps.collect()
        }

        /// The objects, for a request of this mapping.
        fn objects_at(&self, start: u64) -> Vec<CodeObject> {
            let parts = self.0.iter();
            let parts = parts.map(|(start, _, bytes)| (*start, bytes.clone()));
            let mut objects = Vec::new();
            let memory = MemoryParts(parts.collect());
            add_objects(&memory, &self.maps(), start, start + 0x1000, &mut objects);
            objects
        }

        fn objects(&self) -> Vec<CodeObject> {
            self.objects_at(CODE)
        }
    }

    /// A page of code: 0x90 bytes, and then zeros.
    fn code() -> Vec<u8> {
        page(&[vec![0x90; 0x90]])
    }

    /// These bytes, and then zeros up to the end of the page.
    fn page(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = parts.concat();
        bytes.resize(bytes.len().next_multiple_of(0x1000), 0);
        bytes
    }

    /// Constants, a section, and what follows it.
    fn data(sections: &[Vec<u8>]) -> Vec<u8> {
        page(&[vec![0x11; AT], sections.concat()])
    }

    /// A page of code with a function, and a page with its section behind it.
    fn beside(sections: &[Vec<u8>]) -> FakeMappings {
        FakeMappings(vec![(CODE, "r-x", code()), (DATA, "r--", data(sections))])
    }

    /// The addresses of the functions in the file of an object.
    fn functions(object: &CodeObject) -> Vec<(u64, u64)> {
        let file = object::File::parse(&*object.file).unwrap();
        let section = file.section_by_name(".eh_frame").unwrap();
        let (_, functions) = chain(section.data().unwrap(), section.address(), 100);
        let ends = functions
            .iter()
            .map(|function| (function.start, function.end));
        ends.collect()
    }

    fn ranges(objects: &[CodeObject]) -> Vec<(u64, u64)> {
        objects
            .iter()
            .map(|object| (object.start, object.end))
            .collect()
    }

    #[test]
    fn eh_frame_is_found_by_its_contents() {
        let at = DATA + AT as u64;
        let found = beside(&[section(CODE + 0x20, 0x40, at)]).objects();
        let [object] = &found[..] else {
            panic!("{found:x?}");
        };
        // All code of the mapping, and not the zeros behind it.
        assert_eq!((object.start, object.end), (CODE, CODE + 0x90));
        // The address and the size of the function.
        assert_eq!(object.guard, at + 32);
        assert_eq!(object.guard_value >> 32, 0x40);
        let file = object::File::parse(&*object.file).unwrap();
        let text = file.section_by_name(".text").unwrap();
        assert_eq!(text.address(), object.start);
        assert_eq!(text.file_range(), Some((object.offset, 0x90)));
        assert_eq!(text.data(), Ok(&[0x90; 0x90][..]));
        assert_eq!(functions(object), [(CODE + 0x20, CODE + 0x60)]);
    }

    #[test]
    fn eh_frame_is_found_in_each_layout() {
        let function = (CODE + 0x20, CODE + 0x60);
        let plain = || page(&[vec![0x22; 0x10]]);
        let holds = |at| page(&[section(function.0, 0x40, at)]);
        let (next, third) = (DATA + 0x1000, DATA + 0x2000);
        let found = |layout: &[(u64, &'static str, Vec<u8>)]| {
            let mut maps = layout.to_vec();
            maps.push((CODE, "r-x", code()));
            maps.sort_by_key(|(start, ..)| *start);
            let found = FakeMappings(maps).objects();
            found.iter().flat_map(functions).collect::<Vec<_>>()
        };
        let front = CODE - 0x1000;
        for layout in [
            // At the start of a mapping, behind or in front of the code.
            &[(DATA, "r--", holds(DATA))][..],
            &[(front, "r--", holds(front))],
            // In memory that may be written.
            &[(DATA, "rw-", holds(DATA))],
            &[(DATA, "rwx", holds(DATA))],
            // Behind constants or data.
            &[(DATA, "r--", plain()), (next, "r--", holds(next))],
            &[(DATA, "rw-", plain()), (next, "r--", holds(next))],
        ] {
            assert_eq!(found(layout), [function]);
        }
        let mut heap = holds(DATA);
        heap.resize(MAX_WRITABLE as usize + 0x1000, 0);
        for layout in [
            // In a heap, behind a hole, and too far away.
            &[(DATA, "rw-", heap)][..],
            &[(next, "r--", holds(next))],
            &[
                (DATA, "rw-", plain()),
                (next, "r--", plain()),
                (third, "r--", holds(third)),
            ],
        ] {
            assert_eq!(found(layout), []);
        }
        // Read-only memory counts.
        let old = page(&[section(CODE + 0x30, 0x20, DATA)]);
        let both = [(DATA, "rw-", old), (next, "r--", holds(next))];
        assert_eq!(found(&both), [function]);
    }

    #[test]
    fn several_sections_and_other_code() {
        let mut both = section(CODE, 0x40, DATA + AT as u64);
        both.extend([0; 4]);
        let second = DATA + (AT + both.len()) as u64;
        both.extend(section(CODE + 0x50, 0x40, second));
        let found = beside(&[both]).objects();
        assert_eq!(ranges(&found), [(CODE, CODE + 0x90)]);
        let expected = [(CODE, CODE + 0x40), (CODE + 0x50, CODE + 0x90)];
        assert_eq!(functions(&found[0]), expected);
        // Of memory that is not executable or not there, across the end, or of no size.
        for (function, size) in [
            (DATA, 0x40),
            (CODE - 1, 0x40),
            (CODE + 0xff0, 0x40),
            (CODE, 0),
        ] {
            let section = section(function, size, DATA + AT as u64);
            assert_eq!(beside(&[section]).objects(), []);
        }
        // Next to such an entry.
        let mut mixed = section(CODE - 1, 0x40, DATA + AT as u64);
        let second = DATA + (AT + mixed.len()) as u64;
        mixed.extend(section(CODE, 0x40, second));
        assert_eq!(
            functions(&beside(&[mixed]).objects()[0]),
            [(CODE, CODE + 0x40)]
        );
    }

    /// A run of `count` pages of code, each with a page of `.eh_frame`, from `start` on.
    fn run(start: u64, count: u64) -> Vec<(u64, &'static str, Vec<u8>)> {
        let pages = (0..count).flat_map(|number| {
            let at = start + number * 0x2000;
            let section = section(at + 0x10, 0x40, at + 0x1000);
            [(at, "r-x", code()), (at + 0x1000, "r--", page(&[section]))]
        });
        pages.collect()
    }

    #[test]
    fn a_run_of_many_mappings_is_one_object() {
        let other = CODE + 0x100_0000;
        let few = MAX_OBJECTS as u64 - 2;
        let few = FakeMappings([run(CODE, few), run(other, 2)].concat());
        assert_eq!(few.objects().len(), MAX_OBJECTS);
        let many = MAX_OBJECTS as u64;
        let many = FakeMappings([run(CODE, many), run(other, 2)].concat());
        let found = many.objects();
        let last = CODE + (MAX_OBJECTS as u64 - 1) * 0x2000;
        let of_other = (other, other + 0x2090);
        assert_eq!(ranges(&found), [(CODE, last + 0x90), of_other]);
        assert_eq!(functions(&found[0]).len(), MAX_OBJECTS);
        // The pages between the code are no code of the file.
        let text = text_of(&found[0]);
        assert_eq!(text.len(), MAX_OBJECTS);
        assert_eq!(text[1], (CODE + 0x2000, 0x90));
        // What was requested comes first, and there are not too many.
        assert_eq!(ranges(&many.objects_at(other))[0], of_other);
        let runs = (0..40).flat_map(|number| run(CODE + number * 0x10_0000, 1));
        let found = FakeMappings(runs.collect()).objects_at(CODE + 30 * 0x10_0000);
        assert_eq!(found.len(), MAX_OBJECTS);
        assert_eq!(found[0].start, CODE + 30 * 0x10_0000);
    }

    /// Address and size of each section of code.
    fn text_of(object: &CodeObject) -> Vec<(u64, u64)> {
        let file = object::File::parse(&*object.file).unwrap();
        let text = file
            .sections()
            .filter(|section| section.name() == Ok(".text"));
        text.map(|section| (section.address(), section.size()))
            .collect()
    }

    #[test]
    fn code_without_entries_belongs_to_its_run() {
        let mut maps = run(CODE, 1);
        // Code of LLVM, and code that the process changes.
        maps.push((CODE + 0x2000, "r-x", code()));
        maps.push((CODE + 0x3000, "rwx", code()));
        maps.push((CODE + 0x5000, "r-x", code()));
        let found = FakeMappings(maps).objects();
        let bare = CODE + 0x2000;
        assert_eq!(ranges(&found), [(CODE, CODE + 0x90), (bare, bare + 0x90)]);
        assert_eq!(functions(&found[1]), []);
        // A word of the code is the guard.
        assert_eq!(found[1].guard, bare + 0x48);
        assert_eq!(found[1].guard_value, u64::from_le_bytes([0x90; 8]));
    }

    #[test]
    fn a_page_behind_zeros_begins_with_a_function() {
        let described = section(CODE + 0x2000, 0x40, CODE + 0x3000);
        let bytes = [code(), vec![0x90; 0x1000], code()].concat();
        let maps = vec![
            (CODE, "r-x", bytes),
            (CODE + 0x3000, "r--", page(&[described])),
        ];
        let found = FakeMappings(maps).objects();
        let text = text_of(&found[0]);
        assert_eq!(text, [(CODE, 0x90), (CODE + 0x1000, 0x1090)]);
    }

    #[test]
    fn code_that_a_debugger_knows_is_not_found_again() {
        let maps = FakeMappings(run(CODE, 2));
        let mut known = maps.objects();
        known.truncate(1);
        known[0].guard = 7;
        let memory = maps
            .0
            .iter()
            .map(|(start, _, bytes)| (*start, bytes.clone()));
        let memory = MemoryParts(memory.collect());
        add_objects(&memory, &maps.maps(), CODE, CODE + 0x1000, &mut known);
        assert_eq!(
            ranges(&known),
            [(CODE, CODE + 0x90), (CODE + 0x2000, CODE + 0x2090)]
        );
        assert_eq!(known[0].guard, 7);
    }

    #[test]
    fn hostile_memory_is_harmless() {
        let good = data(&[section(CODE, 0x40, DATA + AT as u64)]);
        let found =
            |bytes| FakeMappings(vec![(CODE, "r-x", code()), (DATA, "r--", bytes)]).objects();
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
        // More CIEs than a section may have.
        let many = cie[..24].repeat(2 * MAX_CIES);
        assert_eq!(chain(&many, DATA, 1).0, 24 * MAX_CIES);
        // A long chain, whose entries refer to one CIE, and one whose length is of 64 bits.
        let mut long = cie.clone();
        for number in 1..2000u32 {
            let at = long.len();
            long.extend_from_within(24..48);
            long[at + 4..at + 8].copy_from_slice(&(28 + number * 24).to_le_bytes());
        }
        long[24..32].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 20, 0, 0, 0]);
        assert_eq!(found(data(&[long])), []);
    }

    #[test]
    fn what_is_read_is_limited() {
        let mut long = section(CODE, 0x40, DATA);
        for number in 1..2 * MAX_FUNCTIONS {
            let at = long.len();
            long.extend_from_within(24..48);
            let cie = (28 + number * 24) as u32;
            let function = CODE.wrapping_sub(DATA + at as u64 + 8) as u32;
            long[at + 4..at + 12].copy_from_slice(&[cie, function].map(u32::to_le_bytes).concat());
        }
        let (_, all) = chain(&long, DATA, usize::MAX);
        assert_eq!(all.len(), 2 * MAX_FUNCTIONS);
        let large = || vec![0x90; MAX_OBJECT as usize];
        let maps = vec![(CODE, "r-x", code()), (DATA, "r--", page(&[long]))];
        let found = FakeMappings(maps).objects();
        assert_eq!(found.len(), 1);
        let file = object::File::parse(&*found[0].file).unwrap();
        let section = file.section_by_name(".eh_frame").unwrap();
        let (_, read) = chain(section.data().unwrap(), section.address(), usize::MAX);
        assert_eq!(read.len(), MAX_FUNCTIONS);
        // A run with more code than one object has, and one with more than is read.
        let end = CODE + MAX_OBJECT;
        let maps = vec![
            (CODE, "r-x", large()),
            (end, "r--", page(&[section_of(CODE, end)])),
            (end + 0x1000, "r-x", large()),
        ];
        assert_eq!(ranges(&FakeMappings(maps).objects())[0], (CODE, end));
        let (behind, size) = (CODE + 4 * MAX_OBJECT, MAX_OBJECT);
        let mut maps: Vec<_> = (0..4)
            .map(|at| (CODE + at * size, "r-x", large()))
            .collect();
        maps.push((behind, "r--", page(&[section_of(CODE, behind)])));
        assert_eq!(FakeMappings(maps).objects(), []);
    }

    fn section_of(function: u64, address: u64) -> Vec<u8> {
        section(function, 0x40, address)
    }
}
