// SPDX-License-Identifier: GPL-2.0-only

//! GDB's interface for code that processes make: what LLVM's compilers tell a debugger, as
//! PostgreSQL does with `jit_debugging_support=on`, and `lli`.
//!
//! A library exports `__jit_debug_descriptor`. From there a list leads to an entry for each object,
//! and each entry to an ELF file in the memory of the process. The sections that are loaded have
//! run-time addresses. The `.eh_frame` in the ELF file is not relocated; the loaded one is, and has
//! the functions.

use std::{
    cell::RefCell,
    collections::{
        BTreeSet,
        HashMap, //
    }, //
};

use object::elf;
use walk::process::{
    FileId,
    ProcessMapping, //
};

use crate::{
    eh_frame::{
        self,
        CodeObject,
        MAX_OBJECTS, //
    },
    process::{
        file_name,
        offset,
        ProcessMemory,
        PAGE, //
    },
    symbols::Symbols, //
};

/// The name of the interface.
pub(super) const NAME: &str = "gdb_jit";

const DESCRIPTOR: &str = "__jit_debug_descriptor";
/// The only version.
const VERSION: u32 = 1;
/// Offsets in `struct jit_descriptor`, in bytes: `version` and `first_entry`.
const VERSION_AT: u64 = 0;
const FIRST_AT: u64 = 16;
/// The size of `struct jit_code_entry`, and offsets in it: `next_entry`, `symfile_addr` and
/// `symfile_size`.
const ENTRY: usize = 32;
const NEXT_AT: usize = 0;
const FILE_AT: usize = 16;
const FILE_SIZE_AT: usize = 24;

/// The most mapped files that are searched for a descriptor.
const MAX_FILES: usize = 512;
/// The most entries of all lists of a process.
const MAX_ENTRIES: usize = 4096;
/// The maximum size of an ELF file in memory, and of its `.eh_frame`, in bytes.
const MAX_FILE: u64 = 256 << 20;
const MAX_EH_FRAME: u64 = 16 << 20;
/// The most sections of an ELF file, and of all files of one request.
const MAX_SECTIONS: usize = 1 << 14;
const MAX_ALL_SECTIONS: usize = 1 << 18;
/// The most pages of memory that are kept while a request is answered.
const MAX_PAGES: usize = 1 << 13;

/// The objects with code in the mapping from `start` to `end`, the newest first.
pub(super) fn objects(
    memory: &impl ProcessMemory,
    maps: &[(ProcessMapping, FileId)],
    start: u64,
    end: u64,
) -> Vec<CodeObject> {
    let memory = &PageCache::new(memory);
    let mut found: Vec<CodeObject> = Vec::new();
    let mut entries = MAX_ENTRIES;
    let mut sections = MAX_ALL_SECTIONS;
    for descriptor in descriptors(memory, maps) {
        let mut at = match first_entry(memory, descriptor) {
            Ok(at) => at,
            Err(_) => continue,
        };
        while at != 0 && found.len() < MAX_OBJECTS {
            // A process that is changing the list misleads this reader for a moment.
            let (Some(rest), Ok(entry)) = (entries.checked_sub(1), memory.bytes::<ENTRY>(at))
            else {
                break;
            };
            entries = rest;
            let [next, file, size] = [NEXT_AT, FILE_AT, FILE_SIZE_AT].map(|at| word(&entry, at));
            let object = loaded_eh_frame(memory, file, size, &mut sections, start, end)
                .ok()
                .flatten();
            eh_frame::add_new(&mut found, object);
            at = next;
        }
    }
    found
}

/// The run-time addresses of the descriptors that mapped files export.
fn descriptors(memory: &impl ProcessMemory, maps: &[(ProcessMapping, FileId)]) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let heads = (maps.iter()).filter(|(mapping, file)| file.inode != 0 && mapping.offset == 0);
    for (mapping, _) in heads.filter(|(_, file)| seen.insert(*file)).take(MAX_FILES) {
        let descriptor = Symbols::read(memory, file_name(mapping), mapping.start)
            .and_then(|symbols| symbols.find(memory, DESCRIPTOR));
        found.extend(descriptor);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The address of the first entry; 0 if there is none.
fn first_entry(memory: &impl ProcessMemory, descriptor: u64) -> Result<u64, String> {
    match memory.u32(offset(descriptor, VERSION_AT)?)? {
        VERSION => memory.u64(offset(descriptor, FIRST_AT)?),
        version => Err(format!("{DESCRIPTOR} has the version {version}")),
    }
}

/// The object whose ELF file is at the address `file`, from its loaded `.eh_frame`. `None` if it
/// has none, or has code outside of the range from `start` to `end`, or code that is in none of its
/// loaded sections.
fn loaded_eh_frame(
    memory: &impl ProcessMemory,
    file: u64,
    size: u64,
    left: &mut usize,
    start: u64,
    end: u64,
) -> Result<Option<CodeObject>, String> {
    let header: [u8; 64] = memory.bytes(file)?;
    let is_elf = header[..6] == [0x7f, b'E', b'L', b'F', elf::ELFCLASS64, elf::ELFDATA2LSB];
    let (sections_at, count) = (word(&header, 40), usize::from(half(&header, 60)));
    let (entry_len, names) = (half(&header, 58), usize::from(half(&header, 62)));
    let len = count as u64 * SECTION as u64;
    let is_inside = |at: u64, len: u64| at.checked_add(len).is_some_and(|end| end <= size);
    if !is_elf
        || half(&header, 18) != elf::EM_X86_64
        || usize::from(entry_len) != SECTION
        || size > MAX_FILE
        || count > MAX_SECTIONS
        || names >= count
        || !is_inside(sections_at, len)
    {
        return Ok(None);
    }
    *left = left.checked_sub(count).ok_or("too many sections")?;
    let mut bytes = vec![0; len as usize];
    memory.fill(offset(file, sections_at)?, &mut bytes)?;
    let sections: Vec<ObjectSection> = bytes
        .chunks_exact(SECTION)
        .map(ObjectSection::new)
        .collect();
    let names = sections.get(names).map_or(0, |names| names.offset);
    // The first and the last address of the code. The sections of an object may lie apart from each
    // other.
    let code = sections
        .iter()
        .filter(|section| section.is_loaded(elf::SHF_EXECINSTR));
    let (low, high) = code.fold((u64::MAX, 0), |(low, high), section| {
        (low.min(section.address), high.max(section.end()))
    });
    let (low, high) = (low.max(start), high.min(end));
    for section in &sections {
        if low >= high || !section.is_loaded(0) || section.size > MAX_EH_FRAME {
            continue;
        }
        let name_at = names.saturating_add(section.name.into());
        if !is_inside(name_at, EH_FRAME.len() as u64) {
            continue;
        }
        let name: [u8; EH_FRAME.len()] = memory.bytes(offset(file, name_at)?)?;
        if name != *EH_FRAME {
            continue;
        }
        let mut bytes = vec![0; section.size as usize];
        memory.fill(section.address, &mut bytes)?;
        return Ok(eh_frame::object_at(
            memory,
            &bytes,
            section.address,
            low,
            high,
        ));
    }
    Ok(None)
}

/// Memory that is read page by page, and each page once. The symbols of a library are hundreds of
/// words.
struct PageCache<'a, M> {
    memory: &'a M,
    pages: RefCell<HashMap<u64, Vec<u8>>>,
}

impl<'a, M: ProcessMemory> PageCache<'a, M> {
    fn new(memory: &'a M) -> Self {
        let pages = RefCell::default();
        PageCache { memory, pages }
    }
}

impl<M: ProcessMemory> ProcessMemory for PageCache<'_, M> {
    fn fill(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        let (start, at) = (address - address % PAGE, (address % PAGE) as usize);
        // What lies on two pages is read directly.
        if at + bytes.len() > PAGE as usize {
            return self.memory.fill(address, bytes);
        }
        let mut pages = self.pages.borrow_mut();
        if !pages.contains_key(&start) && pages.len() < MAX_PAGES {
            let mut page = vec![0; PAGE as usize];
            if self.memory.fill(start, &mut page).is_ok() {
                pages.insert(start, page);
            }
        }
        match pages
            .get(&start)
            .and_then(|page| page.get(at..at + bytes.len()))
        {
            Some(part) => {
                bytes.copy_from_slice(part);
                Ok(())
            }
            None => self.memory.fill(address, bytes),
        }
    }
}

/// The name of the section, with its end.
const EH_FRAME: &[u8; 10] = b".eh_frame\0";

/// The size of a section header, in bytes.
const SECTION: usize = 64;

/// A section of an ELF file in memory.
struct ObjectSection {
    /// The offset of its name, in bytes.
    name: u32,
    flags: u64,
    /// The run-time address; 0 if it is not loaded.
    address: u64,
    /// The offset in the file, and the size, in bytes.
    offset: u64,
    size: u64,
}

impl ObjectSection {
    fn new(header: &[u8]) -> ObjectSection {
        ObjectSection {
            name: word(header, 0) as u32,
            flags: word(header, 8),
            address: word(header, 16),
            offset: word(header, 24),
            size: word(header, 32),
        }
    }

    /// Whether the section was loaded, and has this flag, too.
    fn is_loaded(&self, flag: u32) -> bool {
        let flags = u64::from(elf::SHF_ALLOC | flag);
        self.address != 0 && self.size != 0 && self.flags & flags == flags
    }

    /// The address after the section.
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// The integer of 64 bits at an offset in `bytes`; 0 after their end.
fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// The integer of 16 bits at an offset in `bytes`; 0 after their end.
fn half(bytes: &[u8], at: usize) -> u16 {
    let half = bytes.get(at..).and_then(|rest| rest.first_chunk());
    half.map_or(0, |half| u16::from_le_bytes(*half))
}

#[cfg(test)]
mod tests {
    use super::super::fake::{
        mapping,
        FakeMemory,
        BASE, //
    };
    use super::*;
    use object::{
        Object,
        ObjectSection, //
    };

    const DESCRIPTOR_AT: u64 = BASE + 0x9_0000;
    const CODE: u64 = 0x7e00_0000_0000;
    const DATA: u64 = CODE + 0x1_0000;
    /// The entries of the list, and the ELF files.
    const ENTRIES: u64 = 0x5500_0000_0000;
    const FILES: u64 = ENTRIES + 0x1000;
    const FILE_LEN: u64 = 0x400;

    /// The entries that LLVM writes for a function, with relative addresses.
    fn eh_frame(function: u64, size: u32, address: u64) -> Vec<u8> {
        let mut bytes = vec![
            20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 12, 7, 8, 0x90, 1, 0,
            0,
        ];
        bytes.extend([20, 0, 0, 0, 28, 0, 0, 0]);
        let at = address + bytes.len() as u64;
        bytes.extend((function.wrapping_sub(at) as u32).to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend([0; 8]);
        bytes
    }

    /// An ELF file as LLVM gives it to a debugger: the sections have run-time addresses,
    /// `.eh_frame` is not relocated.
    fn elf_file(code: u64, code_len: u64, eh_frame_at: u64, eh_frame_len: u64) -> Vec<u8> {
        const NAMES: &[u8] = b"\0.text\0.eh_frame\0.strtab\0";
        let mut file = vec![0; FILE_LEN as usize];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[16] = 1;
        file[18] = 62;
        file[40..48].copy_from_slice(&0x100u64.to_le_bytes());
        file[58..64].copy_from_slice(&[64, 0, 4, 0, 3, 0]);
        file[0x80..0x80 + NAMES.len()].copy_from_slice(NAMES);
        let sections = [
            [0, 0, 0, 0, 0],
            [1, 6, code, 0x40, code_len],
            [7, 2, eh_frame_at, 0x60, eh_frame_len],
            [17, 0, 0, 0x80, NAMES.len() as u64],
        ];
        for (at, [name, flags, address, offset, size]) in (0x100..).step_by(SECTION).zip(sections) {
            let words = [name, flags, address, offset, size];
            file[at..at + 40].copy_from_slice(&words.map(u64::to_le_bytes).concat());
        }
        file
    }

    /// A process with so many objects, the newest one first in the list, each with 0x40 bytes of
    /// code.
    fn process(count: u64) -> FakeMemory {
        let mut memory = FakeMemory::default();
        memory.put(DESCRIPTOR_AT, &[0; 24]);
        memory.put_u32(DESCRIPTOR_AT, VERSION);
        memory.link(&[(DESCRIPTOR.to_owned(), DESCRIPTOR_AT)]);
        memory.put(CODE, &[0x90; 0x1000]);
        for index in 0..count {
            let (entry, file) = (ENTRIES + index * 0x20, FILES + index * FILE_LEN);
            let (code, section_at) = (CODE + index * 0x40, DATA + index * 0x80);
            let section = eh_frame(code, 0x40, section_at);
            memory.put(section_at, &section);
            memory.put(
                file,
                &elf_file(code, 0x40, section_at, section.len() as u64),
            );
            memory.put_u64(entry, memory_word(&memory, DESCRIPTOR_AT + FIRST_AT));
            memory.put_u64(entry + 8, 0);
            memory.put_u64(entry + FILE_AT as u64, file);
            memory.put_u64(entry + FILE_SIZE_AT as u64, FILE_LEN);
            memory.put_u64(DESCRIPTOR_AT + FIRST_AT, entry);
        }
        memory
    }

    fn memory_word(memory: &FakeMemory, at: u64) -> u64 {
        memory.u64(at).unwrap()
    }

    fn found(memory: &FakeMemory) -> Vec<CodeObject> {
        let maps = [
            mapping(BASE, 0x10_0000, false, "/usr/lib/libLLVM.so.19.1", 5),
            mapping(CODE, 0x1000, true, "", 0),
        ];
        memory.reads.set(0);
        objects(memory, &maps, CODE, CODE + 0x1000)
    }

    #[test]
    fn objects_are_found_by_the_list_of_the_debugger() {
        assert_eq!(found(&process(0)), []);
        let memory = process(3);
        let objects = found(&memory);
        let starts: Vec<_> = objects.iter().map(|it| (it.start, it.end)).collect();
        let expected = [2, 1, 0].map(|index| (CODE + 0x40 * index, CODE + 0x40 * (index + 1)));
        assert_eq!(starts, expected);
        // The address and the size of the function.
        assert_eq!(objects[0].guard, DATA + 0x100 + 32);
        assert_eq!(objects[0].guard_value >> 32, 0x40);
        let file = object::File::parse(&*objects[0].file).unwrap();
        let text = file.section_by_name(".text").unwrap();
        assert_eq!((text.address(), text.size()), (objects[0].start, 0x40));
        let section = file.section_by_name(".eh_frame").unwrap();
        let mut expected = eh_frame(CODE + 0x80, 0x40, section.address());
        // The end of the section.
        expected.extend([0; 4]);
        assert_eq!(section.data(), Ok(&expected[..]));
        // There may be many: the newest ones are taken.
        let objects = found(&process(40));
        assert_eq!(objects.len(), MAX_OBJECTS);
        assert_eq!(objects[0].start, CODE + 0x40 * 39);
    }

    #[test]
    fn a_page_is_read_once() {
        let mut memory = FakeMemory::default();
        let page: Vec<u8> = (0..=u8::MAX).cycle().take(PAGE as usize).collect();
        memory.put(BASE, &page);
        // The next page is there in part.
        memory.put(BASE + PAGE, &[7; 16]);
        let cache = PageCache::new(&memory);
        for at in [0, 0x123, PAGE - 8] {
            let expected = &page[at as usize..][..8];
            assert_eq!(
                cache.bytes::<8>(BASE + at).as_ref().map(|it| &it[..]),
                Ok(expected)
            );
        }
        assert_eq!(memory.reads.get(), 1);
        assert_eq!(cache.bytes(BASE + PAGE - 2), Ok([0xfe, 0xff, 7, 7]));
        assert_eq!(cache.bytes(BASE + PAGE + 8), Ok([7; 8]));
        assert!(cache.bytes::<8>(BASE + PAGE + 9).is_err());
        assert!(cache.bytes::<8>(u64::MAX - 3).is_err());
    }

    #[test]
    fn what_contradicts_itself_is_no_object() {
        let without = |change: &dyn Fn(&mut FakeMemory)| {
            let mut memory = process(2);
            change(&mut memory);
            found(&memory).len()
        };
        let (section, text) = (FILES + 0x100 + 2 * 64, FILES + 0x100 + 64);
        assert_eq!(without(&|_| {}), 2);
        assert_eq!(without(&|memory| memory.put_u32(DESCRIPTOR_AT, 2)), 0);
        assert_eq!(
            without(&|memory| memory.put_u64(DESCRIPTOR_AT + FIRST_AT, 1)),
            0
        );
        // A file of another machine, with other sections, or that is too short.
        assert_eq!(without(&|memory| memory.put(FILES + 18, &[183])), 1);
        assert_eq!(without(&|memory| memory.put(FILES + 58, &[56])), 1);
        let size = ENTRIES + FILE_SIZE_AT as u64;
        assert_eq!(without(&|memory| memory.put_u64(size, 0x180)), 1);
        assert_eq!(without(&|memory| memory.put_u64(size, u64::MAX)), 1);
        // Sections that are not loaded, another name, and no code.
        assert_eq!(without(&|memory| memory.put_u64(section + 16, 0)), 1);
        assert_eq!(without(&|memory| memory.put_u32(section, 1)), 1);
        assert_eq!(without(&|memory| memory.put_u64(text + 8, 2)), 1);
        // Functions that are not in the code of the object, or not in the mapping.
        assert_eq!(without(&|memory| memory.put_u64(text + 32, 0x3f)), 1);
        assert_eq!(without(&|memory| memory.put_u64(text + 16, CODE + 1)), 1);
        let outside = eh_frame(CODE - 0x40, 0x40, DATA);
        assert_eq!(without(&|memory| memory.put(DATA, &outside)), 1);
        // A list that leads back to itself, or to nothing.
        assert_eq!(
            without(&|memory| memory.put_u64(ENTRIES, ENTRIES + 0x20)),
            2
        );
        assert_eq!(without(&|memory| memory.put_u64(ENTRIES + 0x20, 1)), 1);
    }

    #[test]
    fn hostile_memory_is_harmless() {
        let mut memory = process(2);
        let places = memory.bytes.keys().copied();
        let places: Vec<u64> = places.filter(|at| !(CODE..DATA).contains(at)).collect();
        for (index, at) in places.into_iter().enumerate() {
            let old = memory.bytes[&at];
            memory.put(at, &[[0, 0xff, 0x80, old ^ 1][index % 4]]);
            memory.elsewhere = Some(index as u8).filter(|_| index % 3 == 0);
            for object in found(&memory) {
                assert!(CODE <= object.start && object.end <= CODE + 0x1000);
            }
            memory.put(at, &[old]);
        }
        for value in 0..=u8::MAX {
            let elsewhere = Some(value);
            let mut memory = FakeMemory {
                elsewhere,
                ..FakeMemory::default()
            };
            assert_eq!(found(&memory), []);
            // A good list, whose files and entries are bytes of one value.
            memory.link(&[(DESCRIPTOR.to_owned(), DESCRIPTOR_AT)]);
            memory.put_u32(DESCRIPTOR_AT, VERSION);
            assert_eq!(found(&memory), []);
        }
    }
}
