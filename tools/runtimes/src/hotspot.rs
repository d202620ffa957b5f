// SPDX-License-Identifier: GPL-2.0-only

//! HotSpot, the Java virtual machine: OpenJDK from version 17 on.
//!
//! HotSpot puts code into heaps: each piece of code is a `CodeBlob` in a block, and a map of the
//! heap's segments leads from an address to the block. The library exports tables that describe its
//! structures, for debuggers; all addresses, offsets and sizes come from these tables in the memory
//! of the process, where they are complete.

use std::{
    collections::{
        HashMap,
        HashSet, //
    },
    fs::File, //
};

use crate::{
    process::{
        library,
        offset,
        Library,
        ProcessMemory, //
    },
    symbols::Symbols,
    uapi,
    FileId,
    Found,
    ProcessMapping,
    Region, //
};

/// The name of this runtime.
pub(super) const NAME: &str = "hotspot";

/// The maximum number of entries of a table. OpenJDK 21 has 826 fields.
const MAX_ENTRIES: usize = 8192;
/// The maximum size of an entry of a table, in bytes. It is 48 in OpenJDK 17 to 25.
const MAX_ENTRY: usize = 128;
/// The maximum number of heaps. OpenJDK has three.
const MAX_HEAPS: u32 = 16;
/// The maximum size of a heap, in bytes. The code cache of OpenJDK has at most 2 GiB.
const MAX_HEAP: u64 = 2 << 30;
/// The maximum number of blocks of a heap that are searched for names. OpenJDK 21 has 400 in the
/// heap with the interpreter; in the other heaps the first blocks suffice.
const MAX_BLOCKS: usize = 16384;
/// The sizes of a segment that are accepted: 2 ^ log2 bytes. It is 2 ^ 7 in OpenJDK 17 to 25.
const SEGMENT_LOG2: std::ops::RangeInclusive<u32> = 4..=16;
/// The maximum size of the library's constants that are searched for a string, in bytes. OpenJDK 21
/// has 10 MiB.
const MAX_CONSTANTS: u64 = 64 << 20;
/// The end of the addresses of a process, which has 57 bits at most.
const MAX_ADDRESS: u64 = 1 << 56;

/// The names of the blobs whose code has no frame if their frame size is 0, before
/// `CodeBlob::_kind` existed. The interpreter calls the intrinsics of method handles in the
/// adapters. Compiled methods call them as native methods without a frame.
const FRAMELESS_NAMES: [&[u8]; 4] = [
    b"I2C/C2I adapters",
    b"vtable chunks",
    b"native nmethod",
    b"MethodHandles adapters",
];

/// Finds the virtual machine of a process.
pub(super) fn find(memory: &File, maps: &[(ProcessMapping, FileId)]) -> Result<Found, String> {
    let Some(library) = library(maps, "libjvm.so") else {
        return Ok(None);
    };
    let regions = regions(memory, &library)?;
    Ok(Some((NAME, regions.unwrap_or_default())))
}

/// The regions of a process that has mapped libjvm.so: one for each heap, by address. `None` if the
/// virtual machine is starting, and has no heaps or no interpreter yet.
fn regions(
    memory: &impl ProcessMemory,
    library: &Library<'_>,
) -> Result<Option<Vec<Region>>, String> {
    let tables = VmStructs::read(memory, &Symbols::read(memory, "libjvm.so", library.base)?)?;
    let heaps_at = tables.address("CodeCache", "_heaps")?;
    let interpreter_at = tables.address("AbstractInterpreter", "_code")?;
    if heaps_at == 0 || interpreter_at == 0 {
        // The library's constructors fill the tables.
        return Ok(None);
    }
    let heaps = memory.u64(heaps_at)?;
    // The interpreter's code is made after all heaps.
    let interpreter = memory.u64(interpreter_at)?;
    if heaps == 0 || interpreter == 0 {
        return Ok(None);
    }
    let interpreter_start = tables.u64(memory, interpreter, "StubQueue", "_stub_buffer")?;
    let interpreter_len = tables.u32(memory, interpreter, "StubQueue", "_buffer_limit")?;
    let mut region = Region {
        kind: uapi::SFRAME_UNWIND_REGION_CODE_HEAP as u8,
        guard: heaps_at,
        guard_value: heaps,
        interpreter_start,
        interpreter_end: offset(interpreter_start, interpreter_len.into())?,
        ..tables.layout()?
    };
    check_range(region.interpreter_start, region.interpreter_end)?;
    let mut found = read_heaps(memory, &tables, heaps, &region)?;
    (region.kind_mask, region.frameless_kinds) = match tables.frameless_kinds()? {
        Some(kinds) => (0xff, kinds),
        None => (
            u64::MAX,
            frameless_names(memory, library, &tables, &found, interpreter_start)?,
        ),
    };
    for heap in &mut found {
        heap.kind_mask = region.kind_mask;
        heap.frameless_kinds = region.frameless_kinds;
    }
    Ok(Some(found))
}

fn check_range(start: u64, end: u64) -> Result<(), String> {
    if start == 0 || start >= end || end - start > MAX_HEAP || end > MAX_ADDRESS {
        return Err(format!("{start:#x}-{end:#x} is no range of code"));
    }
    Ok(())
}

/// The heaps of `CodeCache::_heaps`, by address. `layout` has the fields that all heaps share.
fn read_heaps(
    memory: &impl ProcessMemory,
    tables: &VmStructs,
    heaps: u64,
    layout: &Region,
) -> Result<Vec<Region>, String> {
    let count = tables.u32(memory, heaps, "GrowableArrayBase", "_len")?;
    if count == 0 || count > MAX_HEAPS {
        return Err(format!("{count} code heaps"));
    }
    let data = tables.u64(memory, heaps, "GrowableArray<int>", "_data")?;
    let mut found: Vec<Region> = Vec::new();
    for index in 0..count {
        let heap = memory.u64(offset(data, u64::from(index) * 8)?)?;
        let (start, end) = reserved(memory, tables, heap, "_memory")?;
        let (segment_map, map_end) = reserved(memory, tables, heap, "_segmap")?;
        let log2 = tables.u32(memory, heap, "CodeHeap", "_log2_segment_size")?;
        if !SEGMENT_LOG2.contains(&log2) || map_end - segment_map < (end - start) >> log2 {
            return Err(format!(
                "a segment map of {:#x} bytes for {:#x} bytes of code in segments of 2^{log2} bytes",
                map_end - segment_map,
                end - start
            ));
        }
        found.push(Region {
            start,
            end,
            segment_map,
            segment_log2: log2 as u8,
            ..*layout
        });
    }
    found.sort_by_key(|heap| heap.start);
    if found.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err("code heaps overlap".to_owned());
    }
    Ok(found)
}

/// The start and the end of the memory that is reserved for a `VirtualSpace` of a heap.
fn reserved(
    memory: &impl ProcessMemory,
    tables: &VmStructs,
    heap: u64,
    field: &str,
) -> Result<(u64, u64), String> {
    let space = offset(heap, tables.offset("CodeHeap", field)?)?;
    let read = |field| tables.u64(memory, space, "VirtualSpace", field);
    let (start, end) = (read("_low_boundary")?, read("_high_boundary")?);
    check_range(start, end)?;
    if read("_low")? != start {
        return Err(format!("CodeHeap::{field} does not begin at its boundary"));
    }
    Ok((start, end))
}

/// The addresses of [`FRAMELESS_NAMES`]. All blobs of one kind have the very same name. A name that
/// is not found is replaced by another one.
fn frameless_names(
    memory: &impl ProcessMemory,
    library: &Library<'_>,
    tables: &VmStructs,
    heaps: &[Region],
    interpreter: u64,
) -> Result<[u64; 4], String> {
    let mut names = [0; 4];
    let mut seen = HashSet::new();
    // Adapters are in the heap of the interpreter; other heaps may have very many blocks.
    let mut heaps: Vec<_> = heaps.iter().collect();
    heaps.sort_by_key(|heap| !(heap.start..heap.end).contains(&interpreter));
    for heap in heaps {
        for block in blocks(memory, tables, heap)?.filter(|block| block.is_used) {
            let name = offset(block.blob, heap.kind_offset.into()).and_then(|at| memory.u64(at));
            let Some(name) = name.ok().filter(|name| seen.insert(*name)) else {
                continue;
            };
            // A block that is being made has no name yet.
            let text = memory.string(name).unwrap_or_default();
            if let Some(index) = FRAMELESS_NAMES.iter().position(|known| *known == text) {
                names[index] = name;
            }
            if !names.contains(&0) {
                return Ok(names);
            }
        }
    }
    // A virtual machine that has just started has no blobs of some kinds yet.
    for (name, text) in names.iter_mut().zip(FRAMELESS_NAMES) {
        if *name == 0 {
            *name = find_constant(memory, library, text).unwrap_or_default();
        }
    }
    let known = names.into_iter().find(|name| *name != 0);
    let known = known.ok_or("the code heaps have no blobs of known names")?;
    Ok(names.map(|name| if name == 0 { known } else { name }))
}

/// A block of a heap.
struct HeapBlock {
    /// The address of the block's `CodeBlob`.
    blob: u64,
    is_used: bool,
}

/// The first [`MAX_BLOCKS`] blocks of a heap, by address. The virtual machine may change the blocks
/// meanwhile, so the last block is the one before what is no block.
fn blocks<'a>(
    memory: &'a impl ProcessMemory,
    tables: &VmStructs,
    heap: &'a Region,
) -> Result<impl Iterator<Item = HeapBlock> + 'a, String> {
    let length = tables.field("HeapBlock::Header", "_length")?;
    let length_at = header_offset(tables, length)?;
    let is_long = match &length.kind[..] {
        b"size_t" => true,
        b"uint32_t" => false,
        _ => return Err("HeapBlock::Header::_length has an unknown type".to_owned()),
    };
    let mut at = heap.start;
    let next = move || {
        let segment = (at - heap.start) >> heap.segment_log2;
        if at >= heap.end || memory.bytes(offset(heap.segment_map, segment).ok()?) != Ok([0]) {
            return None;
        }
        let length_at = offset(at, length_at).ok()?;
        let segments = match is_long {
            true => memory.u64(length_at).ok()?,
            false => memory.u32(length_at).ok()?.into(),
        };
        let used = memory.bytes(offset(at, heap.used_offset.into()).ok()?);
        let block = HeapBlock {
            blob: offset(at, heap.header_offset.into()).ok()?,
            is_used: used == Ok([1]),
        };
        if segments == 0 || segments > (heap.end - at) >> heap.segment_log2 {
            return None;
        }
        at += segments << heap.segment_log2;
        Some(block)
    };
    Ok(std::iter::from_fn(next).take(MAX_BLOCKS))
}

/// The offset in a block of a field of its header, in bytes.
fn header_offset(tables: &VmStructs, field: &Field) -> Result<u64, String> {
    offset(tables.offset("HeapBlock", "_header")?, field.value)
}

/// The address of a string that is in the library's constants exactly once.
fn find_constant(memory: &impl ProcessMemory, library: &Library<'_>, text: &[u8]) -> Option<u64> {
    let mut left = MAX_CONSTANTS;
    let mut found = Vec::new();
    for mapping in &library.mappings {
        let len = mapping.end.saturating_sub(mapping.start).min(left);
        left -= len;
        let mut bytes = vec![0; len as usize];
        // A mapping may be longer than its file, and what is after the file cannot be read.
        if memory.fill(mapping.start, &mut bytes).is_err() {
            continue;
        }
        let mut address = mapping.start;
        for string in bytes.split(|byte| *byte == 0) {
            if string == text {
                found.push(address);
            }
            address += string.len() as u64 + 1;
        }
    }
    match found[..] {
        [address] => Some(address),
        _ => None,
    }
}

/// An entry of `gHotSpotVMStructs`.
struct Field {
    /// The type as text, like `int`.
    kind: Vec<u8>,
    is_static: bool,
    /// The offset in the structure, in bytes; the address of a static field.
    value: u64,
}

/// The tables that describe HotSpot's structures.
struct VmStructs {
    fields: HashMap<(Vec<u8>, Vec<u8>), Field>,
    /// The sizes of types, in bytes.
    sizes: HashMap<Vec<u8>, u64>,
    constants: HashMap<Vec<u8>, u32>,
}

impl VmStructs {
    fn read(memory: &impl ProcessMemory, symbols: &Symbols<'_>) -> Result<VmStructs, String> {
        let mut tables = VmStructs {
            fields: HashMap::new(),
            sizes: HashMap::new(),
            constants: HashMap::new(),
        };
        let columns = [
            "TypeName",
            "FieldName",
            "TypeString",
            "IsStatic",
            "Offset",
            "Address",
        ];
        let table = VmTable::open(memory, symbols, "VMStruct", columns)?;
        for entry in table.entries(memory) {
            let entry = entry?;
            let [type_name, field_name, kind, is_static, in_type, address] = table.columns;
            let is_static = entry.u32(is_static)? != 0;
            let field = Field {
                kind: entry.string(memory, kind)?,
                is_static,
                value: entry.u64(if is_static { address } else { in_type })?,
            };
            let name = (
                entry.string(memory, type_name)?,
                entry.string(memory, field_name)?,
            );
            tables.fields.insert(name, field);
        }
        let table = VmTable::open(memory, symbols, "VMType", ["TypeName", "Size"])?;
        for entry in table.entries(memory) {
            let entry = entry?;
            let [name, size] = table.columns;
            tables
                .sizes
                .insert(entry.string(memory, name)?, entry.u64(size)?);
        }
        let table = VmTable::open(memory, symbols, "VMIntConstant", ["Name", "Value"])?;
        for entry in table.entries(memory) {
            let entry = entry?;
            let [name, value] = table.columns;
            tables
                .constants
                .insert(entry.string(memory, name)?, entry.u32(value)?);
        }
        Ok(tables)
    }

    fn find(&self, structure: &str, field: &str) -> Option<&Field> {
        self.fields.get(&(structure.into(), field.into()))
    }

    fn field(&self, structure: &str, field: &str) -> Result<&Field, String> {
        self.find(structure, field)
            .ok_or_else(|| format!("libjvm.so does not describe {structure}::{field}"))
    }

    /// The offset of a field in its structure, in bytes.
    fn offset(&self, structure: &str, name: &str) -> Result<u64, String> {
        let field = self.field(structure, name)?;
        match field.is_static {
            false => Ok(field.value),
            true => Err(format!("{structure}::{name} is static")),
        }
    }

    /// The address of a static field; 0 if it is not known yet.
    fn address(&self, structure: &str, name: &str) -> Result<u64, String> {
        let field = self.field(structure, name)?;
        match field.is_static {
            true => Ok(field.value),
            false => Err(format!("{structure}::{name} is not static")),
        }
    }

    /// A field of the structure at `address`.
    fn u64(
        &self,
        memory: &impl ProcessMemory,
        address: u64,
        structure: &str,
        field: &str,
    ) -> Result<u64, String> {
        memory.u64(offset(address, self.offset(structure, field)?)?)
    }

    /// A field of the structure at `address`.
    fn u32(
        &self,
        memory: &impl ProcessMemory,
        address: u64,
        structure: &str,
        field: &str,
    ) -> Result<u32, String> {
        memory.u32(offset(address, self.offset(structure, field)?)?)
    }

    /// A region that has nothing but the layout of blocks and blobs.
    fn layout(&self) -> Result<Region, String> {
        let blob = |name: &str| small(self.offset("CodeBlob", name)?);
        let complete = self.field("CodeBlob", "_frame_complete_offset")?;
        let (code_offset, code_size) = match self.find("CodeBlob", "_code_begin") {
            Some(_) => (blob("_code_begin")?, 8),
            None => (blob("_code_offset")?, 4),
        };
        let kind_field = match self.find("CodeBlob", "_kind") {
            Some(_) => "_kind",
            None => "_name",
        };
        let size = self.sizes.get(&b"HeapBlock"[..]);
        let size = size.ok_or("libjvm.so does not describe HeapBlock")?;
        Ok(Region {
            used_offset: small(header_offset(
                self,
                self.field("HeapBlock::Header", "_used")?,
            )?)?,
            header_offset: small(*size)?,
            frame_size_offset: blob("_frame_size")?,
            frame_complete_offset: blob("_frame_complete_offset")?,
            frame_complete_size: match &complete.kind[..] {
                b"int16_t" => 2,
                b"int" => 4,
                _ => return Err("CodeBlob::_frame_complete_offset has an unknown type".to_owned()),
            },
            code_offset,
            code_size,
            kind_offset: blob(kind_field)?,
            ..Region::default()
        })
    }

    /// The values of `CodeBlob::_kind` of code that has no frame if its frame size is 0; `None` if
    /// there is no such field.
    fn frameless_kinds(&self) -> Result<Option<[u64; 4]>, String> {
        if self.find("CodeBlob", "_kind").is_none() {
            return Ok(None);
        }
        let constant = |name: &str| {
            let value = self.constants.get(name.as_bytes());
            value
                .map(|value| u64::from(*value))
                .ok_or_else(|| format!("libjvm.so does not describe {name}"))
        };
        // As in `FRAMELESS_NAMES`.
        Ok(Some([
            constant("CodeBlobKind::Adapter")?,
            constant("CodeBlobKind::Vtable")?,
            constant("CodeBlobKind::Nmethod")?,
            constant("CodeBlobKind::MHAdapter")?,
        ]))
    }
}

/// An offset or a size in a block or a blob, in bytes.
fn small(value: u64) -> Result<u8, String> {
    u8::try_from(value).map_err(|_| format!("{value:#x} is no offset in a CodeBlob"))
}

/// One of the exported tables, with the offsets in bytes of the `N` columns that are read.
struct VmTable<const N: usize> {
    start: u64,
    entry_size: usize,
    columns: [usize; N],
}

/// An entry of a table.
struct Entry(Vec<u8>);

impl<const N: usize> VmTable<N> {
    /// `name` is the name of an entry in the names of the exported variables. The first column is a
    /// name, which is absent in the entry that ends the table.
    fn open(
        memory: &impl ProcessMemory,
        symbols: &Symbols<'_>,
        name: &str,
        columns: [&str; N],
    ) -> Result<VmTable<N>, String> {
        let variable = |what: &str| memory.u64(symbols.find(memory, &format!("gHotSpot{what}"))?);
        let entry_size = variable(&format!("{name}EntryArrayStride"))?;
        let entry_size = usize::try_from(entry_size).unwrap_or(usize::MAX);
        if !(1..=MAX_ENTRY).contains(&entry_size) {
            return Err(format!("gHotSpot{name}s has entries of {entry_size} bytes"));
        }
        let mut table = VmTable {
            start: variable(&format!("{name}s"))?,
            entry_size,
            columns: [0; N],
        };
        for (column, place) in columns.iter().zip(&mut table.columns) {
            let at = variable(&format!("{name}Entry{column}Offset"))?;
            *place = usize::try_from(at).unwrap_or(usize::MAX);
        }
        Ok(table)
    }

    fn entries<'a>(
        &'a self,
        memory: &'a impl ProcessMemory,
    ) -> impl Iterator<Item = Result<Entry, String>> + 'a {
        let entry = |index: usize| {
            if index >= MAX_ENTRIES {
                return Err(format!("a table has more than {MAX_ENTRIES} entries"));
            }
            let mut bytes = vec![0; self.entry_size];
            memory.fill(
                offset(self.start, (index * self.entry_size) as u64)?,
                &mut bytes,
            )?;
            let entry = Entry(bytes);
            let is_end = entry.u64(self.columns[0])? == 0;
            Ok((!is_end).then_some(entry))
        };
        (0..=MAX_ENTRIES).map_while(move |index| entry(index).transpose())
    }
}

impl Entry {
    fn field<const L: usize>(&self, at: usize) -> Result<[u8; L], String> {
        let bytes = self.0.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes
            .copied()
            .ok_or_else(|| "a column lies behind its table's entries".to_owned())
    }

    fn u64(&self, at: usize) -> Result<u64, String> {
        self.field(at).map(u64::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Result<u32, String> {
        self.field(at).map(u32::from_le_bytes)
    }

    /// The string whose address is in the column at `at`; empty if there is none.
    fn string(&self, memory: &impl ProcessMemory, at: usize) -> Result<Vec<u8>, String> {
        match self.u64(at)? {
            0 => Ok(Vec::new()),
            address => memory.string(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        fs::File, //
    };

    use walk::process::ProcessMapping;

    use super::super::fake::{
        FakeMemory,
        BASE, //
    };
    use super::*;

    /// Of the mapping of the library's constants, which begins with the names.
    const NAMES: u64 = BASE + 0x10_0000;
    const HEAPS: u64 = 0x5500_0000_0000;
    const CODE: u64 = 0x7e00_0000_0000;
    const SEGMENT_MAPS: u64 = 0x7d00_0000_0000;
    const HEAP_SIZE: u64 = 0x1_0000;

    /// A fake process with libjvm.so.
    struct FakeProcess {
        memory: FakeMemory,
        library: ProcessMapping,
        /// The end of the strings that were written.
        strings: u64,
        symbols: Vec<(String, u64)>,
    }

    impl FakeProcess {
        fn new() -> FakeProcess {
            FakeProcess {
                memory: FakeMemory::default(),
                library: ProcessMapping {
                    start: NAMES,
                    end: NAMES + 0x1000,
                    offset: 0,
                    executable: false,
                    writable: false,
                    is_file: true,
                    name: "/usr/lib/libjvm.so".to_owned(),
                    file: None,
                },
                strings: NAMES + 0x2000,
                symbols: Vec::new(),
            }
        }

        fn string(&mut self, text: &str) -> u64 {
            let at = self.strings;
            self.memory.put(at, text.as_bytes());
            // A reader may read up to the end of the page.
            self.memory.put(at + text.len() as u64, &[0; 256]);
            self.strings += text.len() as u64 + 1;
            at
        }

        fn symbol(&mut self, name: &str, address: u64, value: u64) {
            self.memory.put_u64(address, value);
            self.symbols.push((name.to_owned(), address));
        }

        /// Exports a table whose columns are words at multiples of 8.
        fn table(&mut self, at: u64, name: &str, columns: &[&str], entries: &[Vec<u64>]) {
            let size = 8 * columns.len() as u64;
            let variables = at;
            self.symbol(&format!("gHotSpot{name}s"), variables, at + 0x100);
            self.symbol(
                &format!("gHotSpot{name}EntryArrayStride"),
                variables + 8,
                size,
            );
            for (index, column) in (0..).zip(columns) {
                let symbol = format!("gHotSpot{name}Entry{column}Offset");
                self.symbol(&symbol, variables + 16 + 8 * index, 8 * index);
            }
            let end = vec![0; columns.len()];
            for (row, entry) in (0..).zip(entries.iter().chain([&end])) {
                for (column, value) in (0..).zip(entry) {
                    self.memory
                        .put_u64(at + 0x100 + size * row + 8 * column, *value);
                }
            }
        }

        fn regions(&self) -> Result<Option<Vec<Region>>, String> {
            let library = Library {
                base: BASE,
                mappings: vec![&self.library],
            };
            self.memory.reads.set(0);
            regions(&self.memory, &library)
        }
    }

    /// A process with two heaps: of methods, and of other code. The layout is that of OpenJDK 25
    /// or 21.
    fn process(is_25: bool) -> FakeProcess {
        let mut process = FakeProcess::new();
        let mut fields = vec![
            ("CodeHeap", "_memory", "VirtualSpace", 0),
            ("CodeHeap", "_segmap", "VirtualSpace", 112),
            ("CodeHeap", "_log2_segment_size", "int", 248),
            ("VirtualSpace", "_low_boundary", "char*", 0),
            ("VirtualSpace", "_high_boundary", "char*", 8),
            ("VirtualSpace", "_low", "char*", 16),
            ("GrowableArrayBase", "_len", "int", 0),
            ("GrowableArray<int>", "_data", "int*", 8),
            ("HeapBlock", "_header", "HeapBlock::Header", 0),
            ("StubQueue", "_stub_buffer", "address", 8),
            ("StubQueue", "_buffer_limit", "int", 20),
            ("CodeCache", "_heaps", "GrowableArray<CodeHeap*>*", HEAPS),
            ("AbstractInterpreter", "_code", "StubQueue*", HEAPS + 8),
        ];
        fields.extend(match is_25 {
            true => [
                ("HeapBlock::Header", "_length", "uint32_t", 0),
                ("HeapBlock::Header", "_used", "bool", 4),
                ("CodeBlob", "_name", "const char*", 8),
                ("CodeBlob", "_frame_size", "int", 44),
                ("CodeBlob", "_frame_complete_offset", "int16_t", 54),
                ("CodeBlob", "_code_offset", "int", 36),
                ("CodeBlob", "_kind", "CodeBlobKind", 56),
            ],
            false => [
                ("HeapBlock::Header", "_length", "size_t", 0),
                ("HeapBlock::Header", "_used", "bool", 8),
                ("CodeBlob", "_name", "const char*", 64),
                ("CodeBlob", "_frame_size", "int", 88),
                ("CodeBlob", "_frame_complete_offset", "int", 80),
                ("CodeBlob", "_code_begin", "address", 8),
                ("CodeBlob", "_size", "int", 72),
            ],
        });
        let fields: Vec<Vec<u64>> = fields
            .into_iter()
            .map(|(structure, field, kind, value)| {
                let is_static = u64::from(value >= HEAPS);
                let names = [structure, field, kind].map(|text| process.string(text));
                let place = [value * (1 - is_static), value * is_static];
                [&names[..], &[is_static], &place].concat()
            })
            .collect();
        let columns = [
            "TypeName",
            "FieldName",
            "TypeString",
            "IsStatic",
            "Offset",
            "Address",
        ];
        process.table(BASE + 0x2_0000, "VMStruct", &columns, &fields);
        let header = if is_25 { 8 } else { 16 };
        let sizes = [vec![process.string("HeapBlock"), header]];
        process.table(BASE + 0x3_0000, "VMType", &["TypeName", "Size"], &sizes);
        let constants = [
            ("Nmethod", 1),
            ("Adapter", 3),
            ("Vtable", 4),
            ("MHAdapter", 5),
        ]
        .map(|(name, value)| vec![process.string(&format!("CodeBlobKind::{name}")), value]);
        let columns = ["Name", "Value"];
        process.table(BASE + 0x4_0000, "VMIntConstant", &columns, &constants);
        process.memory.link(&process.symbols);

        let memory = &mut process.memory;
        let (array, heaps, queue) = (HEAPS + 0x100, HEAPS + 0x200, HEAPS + 0x300);
        memory.put_u64(HEAPS, array);
        memory.put_u64(HEAPS + 8, queue);
        memory.put_u32(array, 2);
        memory.put_u64(array + 8, heaps);
        memory.put_u64(queue + 8, CODE + 0x200);
        memory.put_u32(queue + 20, 0x400);
        // The heap with the higher address is the first of the list.
        for (index, number) in [(0, 1), (1, 0)] {
            let heap = HEAPS + 0x1000 + 0x200 * index;
            memory.put_u64(heaps + 8 * index, heap);
            let (start, map) = (CODE + HEAP_SIZE * number, SEGMENT_MAPS + HEAP_SIZE * number);
            for (at, value) in [(0, start), (8, start + HEAP_SIZE), (16, start)] {
                memory.put_u64(heap + at, value);
            }
            for (at, value) in [(0, map), (8, map + HEAP_SIZE / 128), (16, map)] {
                memory.put_u64(heap + 112 + at, value);
            }
            memory.put_u32(heap + 248, 7);
        }
        process
    }

    /// Adds blocks to the heap with this number: the number of segments, whether the block is used,
    /// and the address of the name. The layout is that of OpenJDK 21.
    fn add_blocks(memory: &mut FakeMemory, number: u64, blocks: &[(u64, u8, u64)]) {
        let (heap, map) = (CODE + HEAP_SIZE * number, SEGMENT_MAPS + HEAP_SIZE * number);
        let mut segment = 0;
        for (segments, used, name) in blocks {
            memory.put_u64(heap + segment * 128, *segments);
            memory.put(heap + segment * 128 + 8, &[*used]);
            memory.put_u64(heap + segment * 128 + 16 + 64, *name);
            for at in 0..*segments {
                memory.put(map + segment + at, &[at as u8]);
            }
            segment += segments;
        }
        memory.put(map + segment, &[0xff]);
    }

    #[test]
    fn heaps_of_openjdk_25() {
        let regions = process(true).regions().unwrap().unwrap();
        let [low, high] = &regions[..] else {
            panic!("two heaps");
        };
        assert_eq!((low.start, low.end), (CODE, CODE + HEAP_SIZE));
        assert_eq!((high.start, high.end), (low.end, low.end + HEAP_SIZE));
        assert_eq!(high.segment_map, SEGMENT_MAPS + HEAP_SIZE);
        assert_eq!((low.guard, low.guard_value), (HEAPS, HEAPS + 0x100));
        assert_eq!(u32::from(low.kind), uapi::SFRAME_UNWIND_REGION_CODE_HEAP);
        assert_eq!(low.segment_log2, 7);
        assert_eq!((low.used_offset, low.header_offset), (4, 8));
        assert_eq!(low.frame_size_offset, 44);
        assert_eq!(
            (low.frame_complete_offset, low.frame_complete_size),
            (54, 2)
        );
        assert_eq!((low.code_offset, low.code_size), (36, 4));
        assert_eq!((low.kind_offset, low.kind_mask), (56, 0xff));
        assert_eq!(low.frameless_kinds, [3, 4, 1, 5]);
        assert_eq!(low.interpreter_start, CODE + 0x200);
        assert_eq!(low.interpreter_end, CODE + 0x600);
    }

    #[test]
    fn names_of_openjdk_21() {
        let mut process = process(false);
        let memory = &mut process.memory;
        memory.put(NAMES, &[0; 0x1000]);
        memory.put(
            NAMES + 1,
            b"vtable chunks\0native nmethod\0I2C/C2I adapters",
        );
        let [vtable, native, adapters] = [1, 15, 30].map(|at| NAMES + at);
        add_blocks(
            memory,
            0,
            &[(9, 1, NAMES), (2, 0, 1), (3, 1, adapters), (1, 1, adapters)],
        );
        add_blocks(memory, 1, &[(4, 1, native)]);
        let regions = process.regions().unwrap().unwrap();
        let region = &regions[1];
        assert_eq!((region.used_offset, region.header_offset), (8, 16));
        assert_eq!(
            (region.frame_complete_offset, region.frame_complete_size),
            (80, 4)
        );
        assert_eq!((region.code_offset, region.code_size), (8, 8));
        assert_eq!((region.kind_offset, region.kind_mask), (64, u64::MAX));
        // The name of vtable stubs is found among the constants; that of compiled methods is
        // nowhere.
        assert_eq!(region.frameless_kinds, [adapters, vtable, native, adapters]);
        // No name at all.
        add_blocks(&mut process.memory, 0, &[(9, 1, NAMES)]);
        add_blocks(&mut process.memory, 1, &[]);
        process.memory.put(NAMES, &[0; 0x1000]);
        assert!(process.regions().is_err());
    }

    #[test]
    fn a_virtual_machine_that_starts_has_no_regions_yet() {
        for at in [HEAPS, HEAPS + 8] {
            let mut process = process(true);
            process.memory.put_u64(at, 0);
            assert_eq!(process.regions().map(|found| found.is_none()), Ok(true));
        }
    }

    #[test]
    fn impossible_heaps_are_refused() {
        let heap = HEAPS + 0x1000;
        let lies = [
            ("_low is not _low_boundary", heap + 16, CODE),
            ("a heap without code", heap + 8, CODE + HEAP_SIZE),
            ("a heap of 4 GiB", heap + 8, CODE + (4 << 30)),
            ("a heap of the kernel", heap, 0xffff_8000_0000_0000),
            (
                "the map is too short",
                heap + 120,
                SEGMENT_MAPS + HEAP_SIZE + 8,
            ),
            ("large segments", heap + 248, 64),
            ("no heaps", HEAPS + 0x100, 0),
            ("many heaps", HEAPS + 0x100, u64::MAX),
            ("heaps overlap", HEAPS + 0x200, heap + 0x200),
            ("the interpreter is nowhere", HEAPS + 0x308, u64::MAX - 8),
        ];
        for (lie, at, value) in lies {
            let mut process = process(true);
            process.memory.put_u64(at, value);
            assert!(process.regions().is_err(), "{lie}");
        }
    }

    #[test]
    fn tables_and_blocks_without_an_end_are_refused() {
        // All entries are equal.
        for table in [0x2_0000, 0x3_0000, 0x4_0000] {
            let mut process = process(true);
            process.memory.put_u64(BASE + table + 8, 0);
            assert!(process.regions().is_err());
            let name = process.string("HeapBlock");
            process.memory.put_u64(BASE + table + 8, 1);
            process.memory.put(BASE + table + 0x100, &[0x11; 0x4000]);
            let names = name.to_le_bytes().repeat(0x800);
            process.memory.put(BASE + table + 0x100, &names);
            process.memory.put_u64(BASE + table + 8, 8);
            process.memory.elsewhere = Some(1);
            assert!(process.regions().is_err());
        }
        // A block of no segments, and one that is longer than the heap.
        for segments in [0, HEAP_SIZE / 128 + 1, u64::MAX] {
            let mut process = process(false);
            add_blocks(&mut process.memory, 0, &[(1, 0, 0)]);
            process.memory.put_u64(CODE, segments);
            assert!(process.regions().is_err());
        }
    }

    #[test]
    fn any_content_ends_soon_and_without_a_panic() {
        let library = ProcessMapping {
            start: BASE,
            end: BASE + 0x100,
            ..process(true).library
        };
        // A memory of one byte value.
        for value in 0..=u8::MAX {
            let memory = FakeMemory {
                elsewhere: Some(value),
                ..FakeMemory::default()
            };
            let library = Library {
                base: BASE,
                mappings: vec![&library],
            };
            assert!(regions(&memory, &library).is_err());
        }
        // One byte of a valid memory is changed.
        for is_25 in [true, false] {
            let mut process = process(is_25);
            add_blocks(&mut process.memory, 0, &[(9, 1, NAMES + 1), (2, 0, 1)]);
            process.memory.put(NAMES, &[0; 0x1000]);
            process.memory.put(NAMES + 1, b"I2C/C2I adapters");
            assert!(process.regions().is_ok());
            let places: Vec<u64> = process.memory.bytes.keys().copied().collect();
            for (index, at) in places.into_iter().enumerate() {
                // Many bytes are of names.
                if index % 61 != 0 && at >> 32 == BASE >> 32 {
                    continue;
                }
                let old = process.memory.bytes[&at];
                let new = [0, 0xff, 0x80, old ^ 1][index % 4];
                process.memory.put(at, &[new]);
                process.memory.elsewhere = Some(index as u8).filter(|_| index % 3 == 0);
                let _ = process.regions();
                process.memory.put(at, &[old]);
            }
        }
    }

    /// Looks code up as the kernel does, in a virtual machine that runs, and checks it:
    /// `JVM_PID=123 cargo test -p runtimes -- --ignored running`.
    #[test]
    #[ignore = "needs a Java virtual machine"]
    fn methods_of_a_running_virtual_machine_have_prologues() {
        let pid: i32 = env::var("JVM_PID").unwrap().parse().unwrap();
        let crate::Code::Regions(_, regions) =
            crate::OpenProcess::open(pid).unwrap().find().unwrap()
        else {
            panic!("no regions");
        };
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        let (mut methods, mut frameless) = (0, 0);
        for region in regions {
            assert_eq!(memory.u64(region.guard).unwrap(), region.guard_value);
            let mut last = 0;
            for number in 0..(region.end - region.start) >> region.segment_log2 {
                let mut segment = number;
                let mut hops = 0;
                let is_allocated = loop {
                    let Ok([hop]) = memory.bytes(region.segment_map + segment) else {
                        break false;
                    };
                    match hop {
                        0 => break true,
                        0xff => break false,
                        hop => segment -= u64::from(hop),
                    }
                    hops += 1;
                    assert!(hops < 64);
                };
                let block = region.start + (segment << region.segment_log2);
                if !is_allocated || block == last {
                    continue;
                }
                last = block;
                let used: [u8; 1] = memory.bytes(block + u64::from(region.used_offset)).unwrap();
                if used != [1] {
                    continue;
                }
                let blob = block + u64::from(region.header_offset);
                let kind = memory.u64(blob + u64::from(region.kind_offset)).unwrap();
                let size = memory.u32(blob + u64::from(region.frame_size_offset));
                let size = size.unwrap().wrapping_mul(8);
                let is_method = match region.kind_mask {
                    u64::MAX => memory.string(kind).unwrap().ends_with(b"nmethod"),
                    mask => kind & mask == region.frameless_kinds[2],
                };
                if !is_method {
                    continue;
                }
                let code = blob + u64::from(region.code_offset);
                let code = match region.code_size {
                    8 => memory.u64(code).unwrap(),
                    _ => blob + u64::from(memory.u32(code).unwrap()),
                };
                let complete = blob + u64::from(region.frame_complete_offset);
                let complete = match region.frame_complete_size {
                    2 => u16::from_le_bytes(memory.bytes(complete).unwrap()).into(),
                    _ => memory.u32(complete).unwrap(),
                };
                if size == 0 {
                    frameless += 1;
                    continue;
                }
                let end = code + u64::from(complete);
                let prologue: [u8; 64] = memory.bytes(end - 64).unwrap();
                assert!(
                    (0..64).any(|at| has_frame(&prologue[at..], size)),
                    "{size} bytes at {code:#x}+{complete}: {prologue:02x?}"
                );
                methods += 1;
            }
        }
        println!("{methods} methods with prologues, {frameless} without a frame");
        assert!(methods > 50 && frameless > 0);
    }

    /// Whether the code sets up a frame of `size` bytes.
    fn has_frame(code: &[u8], size: u32) -> bool {
        let subtracted = |code: &[u8]| match *code {
            [0x48, 0x83, 0xec, by, ..] => Some(u32::from(by)),
            [0x48, 0x81, 0xec, a, b, c, d, ..] => Some(u32::from_le_bytes([a, b, c, d])),
            _ => None,
        };
        match code {
            // push %rbp; mov %rsp,%rbp
            [0x55, 0x48, 0x8b, 0xec, code @ ..] => {
                subtracted(code).map_or(size == 16, |by| by + 16 == size)
            }
            [0x55, code @ ..] => subtracted(code).is_some_and(|by| by + 16 == size),
            // sub; mov %rbp,offset(%rsp)
            [0x48, 0x81, 0xec, _, _, _, _, 0x48, 0x89, 0x6c | 0xac, 0x24, ..] => {
                subtracted(code).is_some_and(|by| by + 8 == size)
            }
            _ => false,
        }
    }
}
