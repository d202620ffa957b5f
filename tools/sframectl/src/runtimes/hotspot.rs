// SPDX-License-Identifier: GPL-2.0-only

//! HotSpot, the Java virtual machine: OpenJDK from version 17 on.
//!
//! HotSpot puts code into heaps: each piece of code is a `CodeBlob` in a block, and a map of the heap's segments leads
//! from an address to the block. The library exports tables that describe its structures, for debuggers; all
//! addresses, offsets and sizes come from these tables in the memory of the process, where they are complete.

use std::collections::{
    HashMap,
    HashSet, //
};

use object::elf;

use super::{
    offset,
    Library,
    Memory, //
};
use crate::{
    device::Region,
    uapi, //
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
/// The maximum number of blocks that are searched for adapters. OpenJDK 21 has 400 in this heap.
const MAX_BLOCKS: usize = 16384;
/// The sizes of a segment that are accepted: 2 ^ log2 bytes. It is 2 ^ 7 in OpenJDK 17 to 25.
const SEGMENT_LOG2: std::ops::RangeInclusive<u32> = 4..=16;
/// The maximum number of program headers, dynamic entries, and symbols with one hash.
const MAX_HEADERS: u64 = 64;
const MAX_DYNAMIC: u64 = 256;
const MAX_CHAIN: u32 = 1024;
/// The maximum size of the library's constants that are searched for a string, in bytes. OpenJDK 21 has 10 MiB.
const MAX_CONSTANTS: u64 = 64 << 20;
/// The end of the addresses of a process, which has 57 bits at most.
const MAX_ADDRESS: u64 = 1 << 56;

/// The names of the blobs whose code has no frame, before `CodeBlob::_kind` existed.
const FRAMELESS_NAMES: [&[u8]; 2] = [b"I2C/C2I adapters", b"vtable chunks"];

/// The regions of a process that has mapped libjvm.so: one for each heap, by address, with `pid` 0. `None` if the
/// virtual machine is starting, and has no heaps or no interpreter yet.
pub(super) fn regions(
    memory: &impl Memory,
    library: &Library<'_>,
) -> Result<Option<Vec<Region>>, String> {
    let tables = Tables::read(memory, &Symbols::read(memory, library.base)?)?;
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
        kind: uapi::SFRAME_UNWIND_REGION_HOTSPOT as u8,
        guard: heaps_at,
        guard_value: heaps,
        interpreter_start,
        interpreter_end: offset(interpreter_start, interpreter_len.into())?,
        ..tables.layout()?
    };
    check_range(region.interpreter_start, region.interpreter_end)?;
    let mut found = read_heaps(memory, &tables, heaps, &region)?;
    let has_interpreter =
        |heap: &&Region| heap.start <= interpreter_start && interpreter_start < heap.end;
    let heap = found
        .iter()
        .find(has_interpreter)
        .ok_or("no heap has the interpreter")?;
    (region.kind_mask, region.frameless_kinds) = match tables.frameless_kinds()? {
        Some(kinds) => (0xff, kinds),
        None => (u64::MAX, frameless_names(memory, library, &tables, heap)?),
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
    memory: &impl Memory,
    tables: &Tables,
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
    memory: &impl Memory,
    tables: &Tables,
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

/// The addresses of the names that adapters and vtable stubs have. All blobs of one of the two have the very same name.
fn frameless_names(
    memory: &impl Memory,
    library: &Library<'_>,
    tables: &Tables,
    heap: &Region,
) -> Result<[u64; 2], String> {
    let mut names = [0; 2];
    let mut seen = HashSet::new();
    for block in blocks(memory, tables, heap)?.take(MAX_BLOCKS) {
        let block = block?;
        if !block.is_used {
            continue;
        }
        let name = memory.u64(offset(block.blob, heap.kind_offset.into())?)?;
        if !seen.insert(name) || name == 0 {
            continue;
        }
        let text = memory.string(name)?;
        if let Some(index) = FRAMELESS_NAMES.iter().position(|known| *known == text) {
            names[index] = name;
        }
        if !names.contains(&0) {
            break;
        }
    }
    // A virtual machine that has just started may have no vtable stubs yet.
    for (name, text) in names.iter_mut().zip(FRAMELESS_NAMES) {
        if *name == 0 {
            *name = find_constant(memory, library, text).unwrap_or_default();
        }
    }
    match names {
        [0, _] => Err("the code heap has no adapters".to_owned()),
        [adapters, 0] => Ok([adapters; 2]),
        names => Ok(names),
    }
}

/// A block of a heap.
struct Block {
    /// The address of the block's `CodeBlob`.
    blob: u64,
    is_used: bool,
}

/// The blocks of a heap, by address, up to the first segment that was never in use.
fn blocks<'a, M: Memory>(
    memory: &'a M,
    tables: &Tables,
    heap: &'a Region,
) -> Result<impl Iterator<Item = Result<Block, String>> + 'a, String> {
    let length = tables.field("HeapBlock::Header", "_length")?;
    let length_at = header_offset(tables, length)?;
    let is_long = match &length.kind[..] {
        b"size_t" => true,
        b"uint32_t" => false,
        _ => return Err("HeapBlock::Header::_length has an unknown type".to_owned()),
    };
    let mut at = heap.start;
    let mut next = move || -> Result<Option<Block>, String> {
        let segment = (at - heap.start) >> heap.segment_log2;
        if at >= heap.end || memory.bytes(offset(heap.segment_map, segment)?)? != [0] {
            return Ok(None);
        }
        let length_at = offset(at, length_at)?;
        let segments = match is_long {
            true => memory.u64(length_at)?,
            false => memory.u32(length_at)?.into(),
        };
        let block = Block {
            blob: offset(at, heap.blob_offset.into())?,
            is_used: memory.bytes(offset(at, heap.used_offset.into())?)? == [1],
        };
        if segments == 0 || segments > (heap.end - at) >> heap.segment_log2 {
            return Err(format!("the block at {at:#x} has {segments:#x} segments"));
        }
        at += segments << heap.segment_log2;
        Ok(Some(block))
    };
    Ok(std::iter::from_fn(move || next().transpose()))
}

/// The offset in a block of a field of its header, in bytes.
fn header_offset(tables: &Tables, field: &Field) -> Result<u64, String> {
    offset(tables.offset("HeapBlock", "_header")?, field.value)
}

/// The address of a string that is in the library's constants exactly once.
fn find_constant(memory: &impl Memory, library: &Library<'_>, text: &[u8]) -> Option<u64> {
    let mut left = MAX_CONSTANTS;
    let mut found = Vec::new();
    for mapping in &library.mappings {
        let len = mapping.end.saturating_sub(mapping.start).min(left);
        left -= len;
        let mut bytes = vec![0; len as usize];
        // A mapping may be longer than its file, and what is behind the file cannot be read.
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
struct Tables {
    fields: HashMap<(Vec<u8>, Vec<u8>), Field>,
    /// The sizes of types, in bytes.
    sizes: HashMap<Vec<u8>, u64>,
    constants: HashMap<Vec<u8>, u32>,
}

impl Tables {
    fn read(memory: &impl Memory, symbols: &Symbols) -> Result<Tables, String> {
        let mut tables = Tables {
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
        let table = Table::open(memory, symbols, "VMStruct", columns)?;
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
        let table = Table::open(memory, symbols, "VMType", ["TypeName", "Size"])?;
        for entry in table.entries(memory) {
            let entry = entry?;
            let [name, size] = table.columns;
            tables
                .sizes
                .insert(entry.string(memory, name)?, entry.u64(size)?);
        }
        let table = Table::open(memory, symbols, "VMIntConstant", ["Name", "Value"])?;
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
        memory: &impl Memory,
        address: u64,
        structure: &str,
        field: &str,
    ) -> Result<u64, String> {
        memory.u64(offset(address, self.offset(structure, field)?)?)
    }

    /// A field of the structure at `address`.
    fn u32(
        &self,
        memory: &impl Memory,
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
            blob_offset: small(*size)?,
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

    /// The values of `CodeBlob::_kind` of code without a frame; `None` if there is no such field.
    fn frameless_kinds(&self) -> Result<Option<[u64; 2]>, String> {
        if self.find("CodeBlob", "_kind").is_none() {
            return Ok(None);
        }
        let constant = |name: &str| {
            let value = self.constants.get(name.as_bytes());
            value
                .map(|value| u64::from(*value))
                .ok_or_else(|| format!("libjvm.so does not describe {name}"))
        };
        Ok(Some([
            constant("CodeBlobKind::Adapter")?,
            constant("CodeBlobKind::Vtable")?,
        ]))
    }
}

/// An offset or a size in a block or a blob, in bytes.
fn small(value: u64) -> Result<u8, String> {
    u8::try_from(value).map_err(|_| format!("{value:#x} is no offset in a CodeBlob"))
}

/// One of the exported tables, with the offsets in bytes of the `N` columns that are read.
struct Table<const N: usize> {
    start: u64,
    entry_size: usize,
    columns: [usize; N],
}

/// An entry of a table.
struct Entry(Vec<u8>);

impl<const N: usize> Table<N> {
    /// `name` is the name of an entry in the names of the exported variables. The first column is a name, which is
    /// absent in the entry that ends the table.
    fn open(
        memory: &impl Memory,
        symbols: &Symbols,
        name: &str,
        columns: [&str; N],
    ) -> Result<Table<N>, String> {
        let variable = |what: &str| memory.u64(symbols.find(memory, &format!("gHotSpot{what}"))?);
        let entry_size = variable(&format!("{name}EntryArrayStride"))?;
        let entry_size = usize::try_from(entry_size).unwrap_or(usize::MAX);
        if !(1..=MAX_ENTRY).contains(&entry_size) {
            return Err(format!("gHotSpot{name}s has entries of {entry_size} bytes"));
        }
        let mut table = Table {
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
        memory: &'a impl Memory,
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
    fn string(&self, memory: &impl Memory, at: usize) -> Result<Vec<u8>, String> {
        match self.u64(at)? {
            0 => Ok(Vec::new()),
            address => memory.string(address),
        }
    }
}

/// The dynamic symbols of the library, in the memory of the process.
struct Symbols {
    /// The difference between run-time and link-time addresses.
    bias: u64,
    /// Run-time addresses.
    symbols: u64,
    strings: u64,
    hashes: u64,
}

impl Symbols {
    /// Finds the symbols of the library whose ELF header is at `base`.
    fn read(memory: &impl Memory, base: u64) -> Result<Symbols, String> {
        let header: [u8; 64] = memory.bytes(base)?;
        let (ident, machine) = (&header[..6], u16::from_le_bytes([header[18], header[19]]));
        if ident != [0x7f, b'E', b'L', b'F', elf::ELFCLASS64, elf::ELFDATA2LSB]
            || machine != elf::EM_X86_64
        {
            return Err("libjvm.so is not of AMD64".to_owned());
        }
        let headers = offset(base, memory.u64(offset(base, 32)?)?)?;
        let count = u64::from(u16::from_le_bytes([header[56], header[57]]));
        let mut bias = None;
        let mut dynamic = None;
        for index in 0..count.min(MAX_HEADERS) {
            let at = offset(headers, index * 56)?;
            let (in_file, address) = (memory.u64(offset(at, 8)?)?, memory.u64(offset(at, 16)?)?);
            match memory.u32(at)? {
                elf::PT_LOAD if bias.is_none() => {
                    bias = Some(base.wrapping_add(in_file).wrapping_sub(address));
                }
                elf::PT_DYNAMIC => dynamic = Some(address),
                _ => {}
            }
        }
        let (Some(bias), Some(dynamic)) = (bias, dynamic) else {
            return Err("libjvm.so has no dynamic section".to_owned());
        };
        let dynamic = dynamic.wrapping_add(bias);
        let (mut symbols, mut strings, mut hashes) = (0, 0, 0);
        for index in 0..MAX_DYNAMIC {
            let at = offset(dynamic, index * 16)?;
            let tag = memory.u64(at)?;
            let place = match u32::try_from(tag) {
                Ok(elf::DT_NULL) => break,
                Ok(elf::DT_SYMTAB) => &mut symbols,
                Ok(elf::DT_STRTAB) => &mut strings,
                Ok(elf::DT_GNU_HASH) => &mut hashes,
                _ => continue,
            };
            // The C library of GNU makes run-time addresses of link-time addresses there, others do not.
            let address = memory.u64(offset(at, 8)?)?;
            *place = match address < bias {
                true => address.wrapping_add(bias),
                false => address,
            };
        }
        if symbols == 0 || strings == 0 || hashes == 0 {
            return Err("libjvm.so has no dynamic symbols with DT_GNU_HASH".to_owned());
        }
        Ok(Symbols {
            bias,
            symbols,
            strings,
            hashes,
        })
    }

    /// The run-time address of a symbol.
    fn find(&self, memory: &impl Memory, name: &str) -> Result<u64, String> {
        let missing = || format!("libjvm.so does not export {name}");
        let hash = elf::gnu_hash(name.as_bytes());
        let [buckets, first, words] =
            [0, 4, 8].map(|at| memory.u32(offset(self.hashes, at)?));
        let (buckets, first, words) = (buckets?, first?, words?);
        let start = offset(self.hashes, 16 + 8 * u64::from(words))?;
        let bucket = hash.checked_rem(buckets).ok_or_else(missing)?;
        let chains = offset(start, 4 * u64::from(buckets))?;
        let mut index = memory.u32(offset(start, 4 * u64::from(bucket))?)?;
        for _ in 0..MAX_CHAIN {
            let in_chain = index.checked_sub(first).ok_or_else(missing)?;
            let found = memory.u32(offset(chains, 4 * u64::from(in_chain))?)?;
            if found | 1 == hash | 1 {
                let symbol = offset(self.symbols, 24 * u64::from(index))?;
                let at = offset(self.strings, memory.u32(symbol)?.into())?;
                if memory.string(at)? == name.as_bytes() {
                    return Ok(memory.u64(offset(symbol, 8)?)?.wrapping_add(self.bias));
                }
            }
            if found & 1 != 0 {
                break;
            }
            index = index.checked_add(1).ok_or_else(missing)?;
        }
        Err(missing())
    }
}
