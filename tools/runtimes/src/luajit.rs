// SPDX-License-Identifier: GPL-2.0-only

//! LuaJIT 2.1: traces.
//!
//! A trace runs in the frame of the interpreter, which it enlarges by as many bytes as it needs.
//! The size is constant in a trace, but for its first and its last instructions. LuaJIT keeps it in
//! the description of the trace, `GCtrace`. The descriptions are found through `jit_State`, and
//! this by the place and the size of the machine code, which it contains. A description is used
//! only if the code agrees with it.
//!
//! Machine code lies in areas. New traces are put below the older ones; none is moved, and none is
//! replaced: LuaJIT frees all areas at once. So an area needs a new description only when it has a
//! new trace.
//!
//! The layouts are those of `lj_obj.h`, `lj_jit.h`, `lj_frame.h` and `lj_asm_x86.h` with `LJ_GC64`,
//! which is the default for this architecture.

use std::ops::Range;

use walk::process::{
    FileId,
    ProcessMapping, //
};

use crate::{
    eh_frame::CodeObject,
    process::ProcessMemory,
    uapi,
    Region, //
};

/// The name of the runtime.
pub(super) const NAME: &str = "luajit";

/// The `.eh_frame` after the two words of an area: the length of the first entry, its number, and
/// the augmentation "zPR". It says nothing of the frames.
const EH_FRAME: [u8; 13] = *b"\x1c\0\0\0\0\0\0\0\x01zPR\0";
/// The bytes of an area before its code.
const AREA_HEAD: u64 = 16 + EH_FRAME.len() as u64;
/// The maximum size of an area, in bytes, and of all areas of a process. By default LuaJIT makes
/// areas of 64 KiB, and at most 2 MiB.
const MAX_AREA: u64 = 8 << 20;
const MAX_AREAS: u64 = 32 << 20;
/// The most mappings that are looked at.
const MAX_MAPPINGS: usize = 1 << 16;
/// The most bytes that are searched for `jit_State`, in all and at each end of a mapping. LuaJIT
/// allocates it first of all.
const MAX_SEARCHED: u64 = 128 << 20;
const MAX_AT_END: u64 = 8 << 20;
const CHUNK: u64 = 1 << 16;
/// The most places that are tried as `jit_State`, and the most descriptions of traces that are
/// read, in one process.
const MAX_MACHINES: usize = 32;
const MAX_DESCRIPTIONS: usize = 1 << 18;
/// The most bytes at the start of a trace that move registers and enlarge the frame.
const MAX_HEAD: usize = 512;
/// The distance in `jit_State` from the array of traces to the areas is less than this, in bytes.
const MAX_DISTANCE: u64 = 1 << 14;
/// The maximum length of the array of traces; a trace's number has 16 bits.
const MAX_TRACES: u32 = 1 << 16;
/// The most places in one `jit_State` that are tried as the array of traces.
const MAX_ARRAYS: usize = 16;
/// The most regions of code of one process. The module keeps 32 regions of all kinds.
const MAX_RUNS: usize = 12;

/// `CFRAME_SIZE_JIT`: the distance from the stack pointer to the CFA in a trace that does not
/// enlarge the frame: that of the interpreter, and two registers.
const FRAME: i32 = 80 + 16;
/// Where registers are saved, below the CFA, in words: DWARF's number of the register, and the
/// place.
const SAVED: [(u8, u8); 7] = [
    (16, 1),
    (6, 2),
    (3, 3),
    (15, 4),
    (14, 5),
    (12, 10),
    (13, 11),
];
/// Where the frame pointer is saved, from the CFA.
const SAVED_FP: i32 = -16;
/// DWARF's number of the stack pointer.
const RSP: u8 = 7;

/// `sizeof(GCtrace)`, and the offsets of fields: `gct`, which has this value; `szmcode`, `mcode`,
/// `spadjust`, `traceno`, and `root`.
const TRACE: usize = 112;
const GCT: usize = 9;
const GCT_TRACE: u8 = 9;
const CODE_SIZE: usize = 84;
const CODE: usize = 88;
const STACK_ADJUST: usize = 102;
const NUMBER: usize = 104;
const ROOT: usize = 108;

/// A trace stores its number in `vmstate`, a field of LuaJIT's global state: mov dword
/// [r14+offset], number
const STORES_NUMBER: [u8; 3] = [0x41, 0xc7, 0x86];
const STORES_NUMBER_LEN: usize = 11;

/// Instructions that have one distance from the stack pointer to the CFA. Run-time addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TracePart {
    start: u64,
    end: u64,
    /// The distance, in bytes.
    cfa: i32,
}

/// A trace whose code agrees with its description.
struct Trace {
    /// The parts of the code, by address.
    parts: Vec<TracePart>,
    /// The address of a word that contains the number of the trace, and the value of this word.
    guard: (u64, u64),
}

/// Areas of machine code of one instance of LuaJIT without a gap between them.
struct AreaRun {
    start: u64,
    code: Vec<u8>,
    /// By address.
    traces: Vec<Trace>,
    /// The address of the word that changes with each new trace, and its value.
    newest: (u64, u64),
}

/// Whether an area of LuaJIT's machine code begins in the code from `start` up to `end`, a part of
/// one mapping or more.
pub(super) fn is_code(
    memory: &impl ProcessMemory,
    maps: &[(ProcessMapping, FileId)],
    start: u64,
    end: u64,
) -> bool {
    anonymous(maps)
        .filter(|mapping| mapping.start < end && start < mapping.end)
        .any(|mapping| area_len(memory, mapping.start).is_some())
}

/// The code of each run of areas, with the rows of its traces; and regions for the rest of the
/// areas, from which no walk goes on.
pub(super) fn objects(
    memory: &impl ProcessMemory,
    maps: &[(ProcessMapping, FileId)],
) -> (Vec<CodeObject>, Vec<Region>) {
    let mut objects = Vec::new();
    let mut regions = Vec::new();
    for run in runs(memory, maps) {
        let object = run.object();
        let end = run.start + run.code.len() as u64;
        regions.push(Region {
            start: run.start,
            end: object.as_ref().map_or(end, |object| object.start),
            guard: run.newest.0,
            guard_value: run.newest.1,
            kind: uapi::SFRAME_UNWIND_REGION_STOP as u8,
            ..Region::default()
        });
        objects.extend(object);
    }
    (objects, regions)
}

/// The parts of all traces as regions, for a walk on the host.
pub(super) fn regions(
    memory: &impl ProcessMemory,
    maps: &[(ProcessMapping, FileId)],
) -> Vec<Region> {
    let runs = runs(memory, maps);
    let of_trace = |trace: &Trace| {
        let (guard, guard_value) = trace.guard;
        let region = move |part: &TracePart| Region {
            start: part.start,
            end: part.end,
            guard,
            guard_value,
            kind: uapi::SFRAME_UNWIND_REGION_FIXED as u8,
            fp_saved: uapi::SFRAME_UNWIND_FP_AT_CFA as u8,
            cfa_offset: part.cfa,
            fp_offset: SAVED_FP,
            ..Region::default()
        };
        trace.parts.iter().map(region).collect::<Vec<_>>()
    };
    runs.iter()
        .flat_map(|run| run.traces.iter().flat_map(of_trace))
        .collect()
}

/// The mappings without a file that may have been allocated.
fn anonymous(maps: &[(ProcessMapping, FileId)]) -> impl Iterator<Item = &ProcessMapping> {
    let is_allocated =
        |name: &str| name.is_empty() || name == "[heap]" || name.starts_with("[anon");
    maps.iter()
        .take(MAX_MAPPINGS)
        .filter(move |(mapping, file)| file.inode == 0 && is_allocated(&mapping.name))
        .map(|(mapping, _)| mapping)
}

/// The size of the area at an address; `None` if there is none.
fn area_len(memory: &impl ProcessMemory, start: u64) -> Option<u64> {
    let head: [u8; AREA_HEAD as usize] = memory.bytes(start).ok()?;
    let len = word(&head, 8)?;
    let is_area = len % 4096 == 0 && len != 0 && head.ends_with(&EH_FRAME);
    (is_area && len <= MAX_AREA).then_some(len)
}

/// All areas of the process that begin where a mapping begins, or after such an area.
fn areas(memory: &impl ProcessMemory, maps: &[(ProcessMapping, FileId)]) -> Vec<Range<u64>> {
    let mut areas = Vec::new();
    let mut left = MAX_AREAS;
    for mapping in anonymous(maps) {
        let mut at = mapping.start;
        while let Some(len) = area_len(memory, at) {
            let Some(rest) = left.checked_sub(len) else {
                return areas;
            };
            let Some(end) = at.checked_add(len) else {
                break;
            };
            left = rest;
            areas.push(at..end);
            at = end;
            // Another mapping has its turn.
            if at >= mapping.end {
                break;
            }
        }
    }
    areas.sort_by_key(|area| area.start);
    areas.dedup_by(|next, area| next.start < area.end);
    areas
}

/// The runs of all instances.
fn runs(memory: &impl ProcessMemory, maps: &[(ProcessMapping, FileId)]) -> Vec<AreaRun> {
    let areas = areas(memory, maps);
    let mut runs = Vec::new();
    if areas.is_empty() {
        return runs;
    }
    let mut left = areas.clone();
    for machine in machines(memory, maps, &areas) {
        let of_machine = chain(memory, &mut left, machine.newest_area);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for area in of_machine {
            match ranges.last_mut() {
                Some(last) if last.end == area.start => last.end = area.end,
                _ => ranges.push(area),
            }
        }
        for range in ranges {
            let mut code = vec![0; (range.end - range.start) as usize];
            if runs.len() == MAX_RUNS || memory.fill(range.start, &mut code).is_err() {
                continue;
            }
            let mut traces: Vec<_> = machine
                .traces
                .iter()
                .filter_map(|description| trace(description, &code, range.start))
                .collect();
            traces.sort_by_key(Trace::start);
            traces.dedup_by(|next, trace| next.start() < trace.end());
            runs.push(AreaRun {
                start: range.start,
                code,
                traces,
                newest: machine.newest,
            });
        }
    }
    runs
}

/// Takes the areas of one instance from `left`, and returns them by address. Each area names the
/// one that was made before it.
fn chain(memory: &impl ProcessMemory, left: &mut Vec<Range<u64>>, newest: u64) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = newest;
    while let Some(index) = left.iter().position(|area| area.start == at) {
        found.push(left.swap_remove(index));
        at = memory.u64(at).unwrap_or(0);
    }
    found.sort_by_key(|area| area.start);
    found
}

/// An instance of LuaJIT.
struct LuaState {
    newest_area: u64,
    /// As in [`AreaRun`].
    newest: (u64, u64),
    /// The descriptions of its traces.
    traces: Vec<[u8; TRACE]>,
}

/// Searches the memory for the fields `mcarea`, `mctop`, `mcbot`, `szmcarea` and `szallmcarea` of
/// `jit_State`.
fn machines(
    memory: &impl ProcessMemory,
    maps: &[(ProcessMapping, FileId)],
    areas: &[Range<u64>],
) -> Vec<LuaState> {
    const FIELDS: u64 = 5 * 8;
    let mut found = Vec::new();
    let mut tried = Vec::new();
    let mut left_traces = MAX_DESCRIPTIONS;
    let mut left = MAX_SEARCHED;
    let mut chunk = vec![0; (CHUNK + FIELDS) as usize];
    for mapping in anonymous(maps).filter(|mapping| !mapping.executable) {
        let first = mapping.start..mapping.end.min(mapping.start.saturating_add(MAX_AT_END));
        let last = first.end.max(mapping.end.saturating_sub(MAX_AT_END))..mapping.end;
        for range in [first, last] {
            for at in range.step_by(CHUNK as usize) {
                let len = (mapping.end - at).min(CHUNK + FIELDS);
                let Some(rest) = left.checked_sub(len) else {
                    return found;
                };
                let bytes = &mut chunk[..len as usize];
                // Memory that may not be read contains no data.
                if memory.fill(at, bytes).is_err() {
                    break;
                }
                left = rest;
                for offset in (0..bytes.len().saturating_sub(FIELDS as usize - 1)).step_by(8) {
                    let Some(newest) = newest_area(&bytes[offset..], areas) else {
                        continue;
                    };
                    let place = at + offset as u64;
                    // Chunks overlap.
                    if tried.contains(&place) {
                        continue;
                    }
                    if tried.len() == MAX_MACHINES {
                        return found;
                    }
                    tried.push(place);
                    found.extend(machine(
                        memory,
                        areas,
                        place,
                        mapping.start,
                        newest,
                        &mut left_traces,
                    ));
                }
            }
        }
    }
    found
}

/// The newest area and the end of its unused part, if these bytes are the fields of `jit_State`.
fn newest_area(bytes: &[u8], areas: &[Range<u64>]) -> Option<(u64, u64)> {
    let area = word(bytes, 0)?;
    let index = areas.binary_search_by_key(&area, |area| area.start).ok()?;
    let area = areas.get(index)?;
    let [top, bottom, len, all] = [8, 16, 24, 32].map(|at| word(bytes, at));
    let (top, bottom, all) = (top?, bottom?, all?);
    let is_newest = len == Some(area.end - area.start)
        && area.start < bottom
        && bottom <= top
        && top <= area.end
        && all >= area.end - area.start
        && all % 4096 == 0;
    is_newest.then_some((area.start, top))
}

/// The instance whose `jit_State` has the field `mcarea` at `place`. `lowest` is the lowest address
/// of its memory.
fn machine(
    memory: &impl ProcessMemory,
    areas: &[Range<u64>],
    place: u64,
    lowest: u64,
    (newest_area, top): (u64, u64),
    left_traces: &mut usize,
) -> Option<LuaState> {
    let from = lowest.max(place.saturating_sub(MAX_DISTANCE));
    let mut bytes = vec![0; place.checked_sub(from)? as usize];
    memory.fill(from, &mut bytes).ok()?;
    // The array, `freetrace` and `sizetrace`.
    let arrays = (0..bytes.len()).step_by(8).rev().filter_map(|at| {
        let array = word(&bytes, at).filter(|array| array % 8 == 0 && *array >= 4096)?;
        let sizes = word(&bytes, at + 8)?;
        let (free, len) = (sizes as u32, (sizes >> 32) as u32);
        (free <= len && (2..=MAX_TRACES).contains(&len)).then_some((array, len))
    });
    let traces = arrays
        .take(MAX_ARRAYS)
        .find_map(|(array, len)| traces(memory, areas, array, len, left_traces))?;
    Some(LuaState {
        newest_area,
        newest: (place + 8, top),
        traces,
    })
}

/// The descriptions of the traces of an array. `None` if it is no array of traces, or has none, or
/// if more than `left` would be read.
fn traces(
    memory: &impl ProcessMemory,
    areas: &[Range<u64>],
    array: u64,
    len: u32,
    left: &mut usize,
) -> Option<Vec<[u8; TRACE]>> {
    let mut bytes = vec![0; len as usize * 8];
    memory.fill(array, &mut bytes).ok()?;
    let mut traces = Vec::new();
    for (number, bytes) in bytes.chunks_exact(8).enumerate() {
        let at = word(bytes, 0)?;
        if at == 0 {
            continue;
        }
        *left = left.checked_sub(1)?;
        let trace: [u8; TRACE] = memory.bytes(at).ok()?;
        if number == 0 || trace[GCT] != GCT_TRACE {
            return None;
        }
        // A trace that is being recorded has no code yet.
        let code = word(&trace, CODE)?;
        let is_done = areas.iter().any(|area| area.contains(&code));
        if is_done && usize::from(half(&trace, NUMBER)?) == number {
            traces.push(trace);
        }
    }
    (!traces.is_empty()).then_some(traces)
}

/// The trace with this description, if its code lies in `code`, which has the run-time address
/// `base`, and agrees with the description.
fn trace(description: &[u8; TRACE], code: &[u8], base: u64) -> Option<Trace> {
    let start = word(description, CODE)?;
    let len = double(description, CODE_SIZE)? as usize;
    let from = usize::try_from(start.checked_sub(base)?).ok()?;
    let code = code.get(from..from.checked_add(len)?)?;
    let number = u32::from(half(description, NUMBER)?);
    let larger = i32::from(half(description, STACK_ADJUST)?);
    let head = &code[..len.min(MAX_HEAD)];
    let stored = head
        .windows(STORES_NUMBER_LEN)
        .position(|part| part.starts_with(&STORES_NUMBER) && part[7..] == number.to_le_bytes())?;
    // A trace that continues another one, in its frame, enlarges the frame further, or leaves it as
    // it is.
    let (add_len, added) = addition(&code[..stored]);
    let inherited = larger
        .checked_add(added)
        .filter(|size| (0..=larger).contains(size))?;
    let is_root = half(description, ROOT)? == 0;
    if is_root && (stored, inherited) != (add_len, 0) {
        return None;
    }
    let end = start.checked_add(len as u64)?;
    let enlarged = start + stored as u64;
    let left = end - jump_behind_addition(code, larger) as u64;
    let part = |start, end, size| TracePart {
        start,
        end,
        cfa: FRAME + size,
    };
    let parts = merged(
        [
            part(start, enlarged, inherited),
            part(enlarged, left, larger),
            part(left, end, 0),
        ]
        .into_iter(),
    );
    let guard = stored + STORES_NUMBER_LEN - 4;
    Some(Trace {
        parts,
        guard: (start + guard as u64, word(code, guard)?),
    })
}

/// The length of the instruction at the end of `code` that adds a constant to the stack pointer,
/// and the constant; 0 if there is none.
fn addition(code: &[u8]) -> (usize, i32) {
    match code {
        [.., 0x48, 0x83, 0xc4, added] => (4, i32::from(*added as i8)),
        [.., 0x48, 0x81, 0xc4, a, b, c, d] => (7, i32::from_le_bytes([*a, *b, *c, *d])),
        _ => (0, 0),
    }
}

/// The length of the jump at the end of `code`, if it is after an instruction that adds `size` to
/// the stack pointer; 0 if it is not.
fn jump_behind_addition(code: &[u8], size: i32) -> usize {
    match code {
        [rest @ .., 0xe9, _, _, _, _] if size != 0 && addition(rest).1 == size => 5,
        _ => 0,
    }
}

/// The parts without those that are empty. Neighbours with the same rule become one part.
fn merged(parts: impl Iterator<Item = TracePart>) -> Vec<TracePart> {
    let mut merged: Vec<TracePart> = Vec::new();
    for part in parts.filter(|part| part.start < part.end) {
        match merged.last_mut() {
            Some(last) if (last.end, last.cfa) == (part.start, part.cfa) => last.end = part.end,
            _ => merged.push(part),
        }
    }
    merged
}

impl Trace {
    fn start(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.start)
    }

    fn end(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.end)
    }
}

impl AreaRun {
    /// The code with the rows of its traces. `None` if there is no trace.
    fn object(&self) -> Option<CodeObject> {
        let (start, end) = (self.traces.first()?.start(), self.traces.last()?.end());
        let offset = |address: u64| usize::try_from(address.checked_sub(self.start)?).ok();
        let code = self.code.get(offset(start)?..offset(end)?)?;
        let parts = merged(
            self.traces
                .iter()
                .flat_map(|trace| trace.parts.iter().copied()),
        );
        let guard = self.traces.first()?.guard;
        let text = Range { start, end };
        CodeObject::new(code, start, &[text], guard, |_| eh_frame(&parts))
    }
}

/// An `.eh_frame` section for these parts.
fn eh_frame(parts: &[TracePart]) -> Vec<u8> {
    /// DW_CFA_advance_loc4, DW_CFA_def_cfa, DW_CFA_def_cfa_offset, and DW_CFA_offset of register 0
    const ADVANCE: u8 = 0x04;
    const CFA: u8 = 0x0c;
    const CFA_OFFSET: u8 = 0x0e;
    const OFFSET: u8 = 0x80;
    // Version 1, the augmentation "zR", factors 1 and -8, the return address's register, and
    // addresses of 8 bytes.
    let mut cie = vec![1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, CFA, RSP];
    uleb128(&mut cie, FRAME);
    cie.extend(
        SAVED
            .iter()
            .flat_map(|(register, place)| [OFFSET | register, *place]),
    );
    let mut section = Vec::new();
    entry(&mut section, 0, &cie);
    for run in parts.chunk_by(|part, next| part.end == next.start) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        let mut fde = [first.start, last.end - first.start]
            .map(u64::to_le_bytes)
            .concat();
        // No augmentation data.
        fde.push(0);
        let mut at = first.start;
        for part in run {
            if part.start != at {
                fde.push(ADVANCE);
                fde.extend(((part.start - at) as u32).to_le_bytes());
                at = part.start;
            }
            fde.push(CFA_OFFSET);
            uleb128(&mut fde, part.cfa);
        }
        // The distance to the CIE.
        let distance = section.len() as u32 + 4;
        entry(&mut section, distance, &fde);
    }
    section.extend([0; 4]);
    section
}

/// Adds an entry to a section: its length, the number that tells its kind, its contents, and
/// DW_CFA_nop up to a multiple of eight bytes.
fn entry(section: &mut Vec<u8>, kind: u32, contents: &[u8]) {
    let len = (8 + contents.len()).next_multiple_of(8) - 4;
    let end = section.len() + 4 + len;
    section.extend((len as u32).to_le_bytes());
    section.extend(kind.to_le_bytes());
    section.extend(contents);
    section.resize(end, 0);
}

/// Adds a number that is not negative.
fn uleb128(bytes: &mut Vec<u8>, number: i32) {
    let mut left = number;
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
}

/// The word at an offset in `bytes`.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The 32-bit integer at an offset in `bytes`.
fn double(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The 16-bit integer at an offset in `bytes`.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::super::fake::{
        fill_from,
        mapping, //
    };
    use super::*;
    use gimli::{
        BaseAddresses,
        CfaRule,
        EhFrame,
        LittleEndian,
        Register,
        RegisterRule,
        UnwindContext,
        UnwindSection, //
    };
    use object::{
        Object,
        ObjectSection, //
    };

    const DATA: u64 = 0x7f00_0001_0000;
    const AREA: u64 = 0x5500_0001_0000;
    const AREA_LEN: u64 = 0x2000;
    /// Offsets in the data: the array of traces with its sizes, the areas, the array itself, and
    /// the traces.
    const SIZES: usize = 0x100;
    const AREAS: usize = 0x400;
    const ARRAY: usize = 0x800;
    const TRACES: usize = 0x1000;
    const COUNT: u32 = 8;

    /// A process with two mappings.
    struct LuaMemory {
        data: Vec<u8>,
        area: Vec<u8>,
    }

    impl ProcessMemory for LuaMemory {
        fn fill(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
            let parts = [(DATA, &self.data[..]), (AREA, &self.area[..])];
            fill_from(parts.into_iter(), address, bytes)
        }
    }

    fn maps() -> Vec<(ProcessMapping, FileId)> {
        vec![
            mapping(AREA, AREA_LEN, true, "", 0),
            mapping(DATA, 0x2000, false, "", 0),
        ]
    }

    fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// A trace: its code, `spadjust`, and `root`.
    struct TraceCode(Vec<u8>, u16, u16);

    /// mov dword [r14-0xef8], number
    fn stores(number: u8) -> Vec<u8> {
        vec![0x41, 0xc7, 0x86, 0x08, 0xf1, 0xff, 0xff, number, 0, 0, 0]
    }

    /// The first trace does not enlarge the frame. The second one does, and ends: add $-48,%rsp;
    /// ...; add $48,%rsp; jmp. The third one continues the second one, and enlarges the frame by
    /// 256 bytes: mov %rax,%rcx; add $-256,%rsp; ...; jmp.
    fn traces() -> Vec<TraceCode> {
        let jump = [0xe9, 0, 1, 0, 0];
        vec![
            TraceCode([&stores(1)[..], &jump].concat(), 0, 0),
            TraceCode(
                [
                    &[0x48, 0x83, 0xc4, 0xd0],
                    &stores(2)[..],
                    &[0x90, 0x48, 0x83, 0xc4, 0x30],
                    &jump,
                ]
                .concat(),
                48,
                0,
            ),
            TraceCode(
                [
                    &[0x48, 0x89, 0xc1, 0x48, 0x81, 0xc4, 0, 0xff, 0xff, 0xff],
                    &stores(3)[..],
                    &jump,
                ]
                .concat(),
                48 + 256,
                2,
            ),
        ]
    }

    /// The process that has made these traces, and the addresses of their code.
    fn process(traces: &[TraceCode]) -> (LuaMemory, Vec<u64>) {
        let mut area = vec![0; AREA_LEN as usize];
        let mut data = vec![0; 0x2000];
        put(&mut area, 8, &AREA_LEN.to_le_bytes());
        put(&mut area, 16, &EH_FRAME);
        let mut top = AREA + AREA_LEN;
        let mut starts = Vec::new();
        for (index, TraceCode(code, adjust, root)) in traces.iter().enumerate() {
            top -= code.len() as u64;
            starts.push(top);
            put(&mut area, (top - AREA) as usize, code);
            let (number, at) = (index + 1, TRACES + index * 0x100);
            data[at + GCT] = GCT_TRACE;
            put(
                &mut data,
                at + CODE_SIZE,
                &(code.len() as u32).to_le_bytes(),
            );
            put(&mut data, at + CODE, &top.to_le_bytes());
            put(&mut data, at + STACK_ADJUST, &adjust.to_le_bytes());
            put(&mut data, at + NUMBER, &(number as u16).to_le_bytes());
            put(&mut data, at + ROOT, &root.to_le_bytes());
            put(
                &mut data,
                ARRAY + number * 8,
                &(DATA + at as u64).to_le_bytes(),
            );
        }
        put(&mut data, SIZES, &(DATA + ARRAY as u64).to_le_bytes());
        put(&mut data, SIZES + 8, &2u32.to_le_bytes());
        put(&mut data, SIZES + 12, &COUNT.to_le_bytes());
        let fields = [AREA, top, AREA + 0x100, AREA_LEN, AREA_LEN];
        put(&mut data, AREAS, &fields.map(u64::to_le_bytes).concat());
        (LuaMemory { data, area }, starts)
    }

    /// The parts of all traces.
    fn parts(memory: &LuaMemory) -> Vec<(u64, u64, i32)> {
        let regions = regions(memory, &maps());
        let part = |region: &Region| (region.start, region.end, region.cfa_offset);
        regions.iter().map(part).collect()
    }

    #[test]
    fn a_trace_has_the_frame_of_its_description() {
        let (memory, starts) = process(&traces());
        let [first, second, third] = starts[..] else {
            panic!("{starts:x?}");
        };
        let expected = [
            // Up to the end of the addition, in the frame of the second trace.
            (third, third + 10, 96 + 48),
            (third + 10, second, 96 + 304),
            (second, second + 4, 96),
            (second + 4, first - 5, 96 + 48),
            (first - 5, first, 96),
            (first, AREA + AREA_LEN, 96),
        ];
        assert_eq!(parts(&memory), expected);
        // The number of the trace, and the code after it.
        let region = &regions(&memory, &maps())[5];
        assert_eq!(region.guard, first + 7);
        assert_eq!(region.guard_value, 0x0001_00e9_0000_0001);
        assert!(is_code(&memory, &maps(), AREA, AREA + AREA_LEN));
        assert!(!is_code(&memory, &maps(), DATA, DATA + 0x2000));
    }

    #[test]
    fn code_that_contradicts_its_description_is_left_out() {
        let whole = process(&traces()).0;
        let third = parts(&whole)[0].0;
        let without = |change: &dyn Fn(&mut Vec<TraceCode>, &mut LuaMemory)| {
            let mut made = traces();
            change(&mut made, &mut process(&traces()).0);
            let mut memory = process(&made).0;
            change(&mut traces(), &mut memory);
            parts(&memory)
        };
        assert_eq!(without(&|_, _| {}).len(), 6);
        // A root trace that does not enlarge the frame by all of it, or not at its start.
        assert_eq!(without(&|made, _| made[1].1 = 64).len(), 3);
        assert_eq!(without(&|made, _| made[2].2 = 0).len(), 4);
        // A frame that is larger than all of it.
        assert_eq!(without(&|made, _| made[2].1 = 240).len(), 4);
        // Another number in the code; then another number in the description.
        let number = (third - AREA) as usize + 10 + 7;
        assert_eq!(without(&|_, memory| memory.area[number] = 9).len(), 4);
        let number = TRACES + 0x200 + NUMBER;
        assert_eq!(without(&|_, memory| memory.data[number] = 9).len(), 4);
        // Code outside of the area.
        let code = TRACES + 0x200 + CODE + 4;
        assert_eq!(without(&|_, memory| memory.data[code] = 9).len(), 4);
        // No trace, no area, and another one.
        assert_eq!(without(&|_, memory| memory.data[TRACES + GCT] = 8), []);
        assert_eq!(without(&|_, memory| memory.area[17] = 1), []);
        assert_eq!(without(&|_, memory| memory.data[AREAS + 24] = 1), []);
    }

    #[test]
    fn an_object_has_the_rows_of_all_traces() {
        let (memory, starts) = process(&traces());
        let (objects, regions) = objects(&memory, &maps());
        let ([object], [rest]) = (&objects[..], &regions[..]) else {
            panic!("{objects:x?}");
        };
        assert_eq!((object.start, object.end), (starts[2], AREA + AREA_LEN));
        assert_eq!(object.guard, starts[2] + 17);
        // The end of the unused part of the area changes with the next trace.
        assert_eq!((rest.start, rest.end), (AREA, starts[2]));
        assert_eq!(
            (rest.guard, rest.guard_value),
            (DATA + AREAS as u64 + 8, starts[2])
        );
        assert_eq!(u32::from(rest.kind), uapi::SFRAME_UNWIND_REGION_STOP);

        let file = object::File::parse(&*object.file).unwrap();
        let text = file.section_by_name(".text").unwrap();
        assert_eq!(text.address(), object.start);
        assert_eq!(text.file_range().map(|(at, _)| at), Some(object.offset));
        let section = file.section_by_name(".eh_frame").unwrap();
        let eh_frame = EhFrame::new(section.data().unwrap(), LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        let mut context = UnwindContext::new();
        for (start, end, cfa) in parts(&memory) {
            for address in [start, end - 1] {
                let find = EhFrame::cie_from_offset;
                let row = eh_frame.unwind_info_for_address(&bases, &mut context, address, find);
                let row = row.unwrap();
                let expected = CfaRule::RegisterAndOffset {
                    register: Register(RSP.into()),
                    offset: cfa.into(),
                };
                assert_eq!(*row.cfa(), expected, "{address:#x}");
                for (register, offset) in [(6, -16), (3, -24), (16, -8)] {
                    let place = row.register(Register(register));
                    assert_eq!(place, RegisterRule::Offset(offset));
                }
            }
        }
    }

    #[test]
    fn a_gap_between_traces_has_no_rows() {
        let (mut memory, starts) = process(&traces());
        // The second trace was freed.
        put(&mut memory.data, ARRAY + 16, &[0; 8]);
        let (objects, _) = objects(&memory, &maps());
        let file = object::File::parse(&*objects[0].file).unwrap();
        let section = file.section_by_name(".eh_frame").unwrap();
        let eh_frame = EhFrame::new(section.data().unwrap(), LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        let has_row = |address| {
            let (mut context, find) = (UnwindContext::new(), EhFrame::cie_from_offset);
            let row = eh_frame.unwind_info_for_address(&bases, &mut context, address, find);
            row.is_ok()
        };
        assert!(has_row(starts[2]) && has_row(starts[1] - 1) && has_row(starts[0]));
        assert!(!has_row(starts[1]) && !has_row(starts[0] - 1));
    }

    #[test]
    fn areas_in_one_mapping_are_one_run() {
        let (memory, starts) = process(&traces());
        // The area that was made first lies above the newest one, and has no traces.
        let mut two = LuaMemory {
            data: memory.data,
            area: memory.area,
        };
        let mut upper = vec![0; AREA_LEN as usize];
        put(&mut upper, 8, &AREA_LEN.to_le_bytes());
        put(&mut upper, 16, &EH_FRAME);
        two.area.extend(upper);
        put(&mut two.area, 0, &(AREA + AREA_LEN).to_le_bytes());
        put(&mut two.data, AREAS + 32, &(2 * AREA_LEN).to_le_bytes());
        let mut maps = maps();
        maps[0].0.end += AREA_LEN;
        let found = runs(&two, &maps);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].start, found[0].code.len()),
            (AREA, 2 * AREA_LEN as usize)
        );
        assert_eq!(found[0].traces.len(), 3);
        assert_eq!(found[0].object().unwrap().start, starts[2]);
        // A chain that leads back to itself.
        put(&mut two.area, 0, &AREA.to_le_bytes());
        assert_eq!(runs(&two, &maps)[0].code.len(), AREA_LEN as usize);
    }

    #[test]
    fn hostile_memory_is_harmless() {
        let whole = || process(&traces()).0;
        let check = |memory: &LuaMemory| {
            for (start, end, cfa) in parts(memory) {
                assert!(AREA <= start && start < end && end <= AREA + AREA_LEN);
                assert!((FRAME..FRAME + 0x1_0000).contains(&cfa));
            }
            let (objects, regions) = objects(memory, &maps());
            for object in objects {
                assert!(AREA <= object.start && object.end <= AREA + AREA_LEN);
            }
            for region in regions {
                assert!(AREA <= region.start && region.end <= AREA + AREA_LEN);
            }
        };
        let fields = [SIZES..SIZES + 16, AREAS..AREAS + 40, ARRAY..ARRAY + 40];
        let traces = (0..3).map(|index| TRACES + index * 0x100..TRACES + index * 0x100 + TRACE);
        for at in fields.into_iter().chain(traces).flatten() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut memory = whole();
                memory.data[at] = byte;
                check(&memory);
            }
        }
        let code = AREA_LEN as usize - 80..AREA_LEN as usize;
        for at in (0..AREA_HEAD as usize).chain(code) {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut memory = whole();
                memory.area[at] = byte;
                check(&memory);
            }
        }
        for len in [
            0,
            1,
            AREAS,
            AREAS + 39,
            ARRAY + 1,
            TRACES,
            TRACES + TRACE - 1,
        ] {
            let mut memory = whole();
            memory.data.truncate(len);
            check(&memory);
        }
        // Fields of `jit_State` everywhere.
        let mut memory = whole();
        let fields = memory.data[AREAS..AREAS + 40].to_vec();
        memory.data = fields.repeat(0x2000 / 40 + 1);
        memory.data.truncate(0x2000);
        check(&memory);
    }
}
