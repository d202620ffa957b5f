// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl check`: lists violations of the format, contradictions, and rows that contradict the
//! code.

use std::{
    collections::BTreeSet,
    fmt::Write,
    path::Path, //
};

use object::elf;
use sframe::{
    abi::Abi,
    fde::Function,
    header::{
        Version,
        FUNC_START_PCREL,
        HEADER_SIZE,
        SORTED, //
    },
    section::Section, //
};

use crate::{
    file::{
        Blob,
        FileKind, //
        InputFile,
    },
    lookup::stub_rule,
    raw::{
        self,
        Raw,
        RawRow, //
    },
    readelf_notation::{
        self,
        contradiction,
        explain, //
    }, //
};

/// Bits of info bytes that are unused in all versions.
const UNUSED: u8 = 0x40;
/// Bits of the second info byte of version 3 that the specification leaves unused. `convert` keeps
/// [`SavedRbx`](sframe::rule::SavedRbx) there.
const UNUSED2: u8 = 0xe0;
const PAC_KEY_B: u8 = 0x20;
const SIGNAL: u8 = 0x80;
const MANGLED: u8 = 0x80;
/// The unused bit of a flexible row's control word.
const UNUSED_CONTROL: u32 = 4;

/// The findings, by offset.
struct CheckFindings<'a> {
    file: &'a InputFile,
    in_section: BTreeSet<(u64, String)>,
    functions: u64,
    rows: u64,
}

/// A function and the position of its entry.
struct FunctionEntry {
    at: u32,
    index: u32,
    area: Option<usize>,
    function: Function,
}

/// The findings as text, and whether there are none.
pub(crate) fn run(file: &InputFile, path: &Path) -> (String, bool) {
    let (blobs, stop) = file.blobs();
    let mut findings = CheckFindings {
        file,
        in_section: stop.into_iter().collect(),
        functions: 0,
        rows: 0,
    };
    for (index, blob) in blobs.iter().enumerate() {
        findings.blob(blob);
        if index == 1 {
            findings.report(
                blob.section.offset(),
                format!(
                    "{} concatenated sections, from a linker without SFrame support: many readers \
                     read only the first",
                    blobs.len()
                ),
            );
        }
    }
    findings.tails(&blobs);
    findings.relocations(&blobs);

    let path = path.display();
    let mut text = String::new();
    for (at, what) in &file.header_findings {
        let _ = writeln!(text, "{path}: {at:#x}: {what}");
    }
    for (at, what) in &findings.in_section {
        let _ = writeln!(text, "{path}: .sframe+{at:#x}: {what}");
    }
    let count = file.header_findings.len() + findings.in_section.len();
    let _ = writeln!(
        text,
        "{path}: sections: {}, functions: {}, rows: {}, findings: {count}",
        blobs.len(),
        findings.functions,
        findings.rows
    );
    (text, count == 0)
}

impl CheckFindings<'_> {
    fn report(&mut self, at: u32, what: impl Into<String>) {
        self.in_section.insert((at.into(), what.into()));
    }

    fn blob(&mut self, blob: &Blob) {
        let section = &blob.section;
        let bytes = &self.file.bytes[..];
        self.header(blob);

        let mut entries = Vec::new();
        let mut total = 0u64;
        let mut previous: Option<u64> = None;
        for index in 0..section.num_fdes() {
            let at = section.entry_offset(index);
            let function = match section.function(bytes, index) {
                Ok(function) => function,
                Err(error) => {
                    self.in_section.insert(explain(error, at));
                    continue;
                }
            };
            total += u64::from(function.num_rows());
            // Distances from the section do not wrap around.
            let start = function.start().wrapping_sub(section.address());
            if section.flags() & SORTED != 0 && self.file.relocated.is_empty() {
                if previous.is_some_and(|previous| (previous as i64) > (start as i64)) {
                    let what = "the flag SORTED is set, but the function starts before the one in front of it";
                    self.report(at, format!("function {index}: {what}"));
                }
                previous = Some(start);
            }
            entries.push(FunctionEntry {
                at,
                index,
                area: self.file.area_of(section, index),
                function,
            });
        }
        self.functions += u64::from(section.num_fdes());

        // A row takes at least two bytes. No more rows than fit are read, whatever the entries
        // claim.
        let mut left = u64::from(section.end() - section.rows_offset()) / 2;
        let mut ranges = Vec::new();
        for entry in &entries {
            self.entry(section, entry);
            let rows = u64::from(entry.function.num_rows());
            if rows > left {
                self.report(
                    entry.at,
                    format!(
                        "function {}: {rows} rows do not fit into the section",
                        entry.index
                    ),
                );
                continue;
            }
            left -= rows;
            ranges.extend(self.rows(section, entry));
        }
        if total != u64::from(section.num_fres()) {
            self.report(
                section.offset() + 12,
                format!(
                    "the header has {} rows, the functions have {total}",
                    section.num_fres()
                ),
            );
        }
        if entries.len() == section.num_fdes() as usize {
            self.row_ranges(section, ranges);
        }
        self.overlaps(&mut entries);
    }

    fn header(&mut self, blob: &Blob) {
        let section = &blob.section;
        let raw = Raw::of(&self.file.bytes, section);
        let at = section.offset();
        let field = |offset| raw.number(at + offset, 4).unwrap_or(0);
        let aux = u32::from(raw.byte(at + 7).unwrap_or(0));
        let behind = at + HEADER_SIZE + aux;

        if aux != 0 {
            self.report(at + 7, format!("unknown auxiliary header of {aux} bytes"));
        }
        if section.version() == Version::V3 && section.flags() & FUNC_START_PCREL == 0 {
            self.report(at + 3, "version 3 without the flag FUNC_START_PCREL");
        }
        if blob.starts_corrected && self.file.kind == FileKind::Linked {
            self.report(
                at + 3,
                "the flags state that starts are relative to the section, but then no start lies in \
                 code: starts are taken as relative to their fields",
            );
        }
        if self.file.kind == FileKind::Relocatable && section.flags() & SORTED != 0 {
            self.report(
                at + 3,
                "the flag SORTED is set, but a relocatable file has no addresses yet",
            );
        }
        let (ra, fp) = (section.fixed_ra_offset(), section.fixed_fp_offset());
        let usual = if section.abi() == Abi::Amd64 { -8 } else { 0 };
        if ra != usual {
            self.report(
                at + 6,
                format!("the fixed RA offset is {ra}; the ABI's is {usual}"),
            );
        }
        if fp != 0 {
            self.report(
                at + 5,
                format!("the fixed FP offset is {fp}; the ABI's is 0"),
            );
        }
        let machine = match section.abi() {
            Abi::Amd64 => elf::EM_X86_64,
            Abi::Aarch64 | Abi::Aarch64Big => elf::EM_AARCH64,
            Abi::S390x => elf::EM_S390,
        };
        if self.file.kind != FileKind::Bare && self.file.machine != machine {
            self.report(
                at + 4,
                format!(
                    "the ABI is {}, but the file is for machine {}",
                    readelf_notation::abi(section.abi()),
                    self.file.machine
                ),
            );
        }
        let functions = section.entry_offset(0) - behind;
        if functions != 0 {
            self.report(
                at + 20,
                format!("{functions} bytes between header and functions"),
            );
        }
        let gap = section.rows_offset() - section.entry_offset(section.num_fdes());
        if gap != 0 {
            self.report(at + 24, format!("{gap} bytes between functions and rows"));
        }
        if section.end() - section.rows_offset() != field(16) {
            self.report(at + 16, "the length of the rows differs from the header's");
        }
    }

    /// Checks an entry's fields, and that the function lies in code.
    fn entry(&mut self, section: &Section, entry: &FunctionEntry) {
        let raw = Raw::of(&self.file.bytes, section);
        let function = &entry.function;
        let name = format!("function {}", entry.index);
        let byte = |at| raw.byte(at).unwrap_or(0);
        // The positions of the info byte and of the block size.
        let (info_at, block_at) = match section.version() {
            Version::V1 => (entry.at + 16, None),
            Version::V2 => (entry.at + 16, Some(entry.at + 17)),
            Version::V3 => (function.rows_at() - 3, Some(function.rows_at() - 1)),
        };
        let mut unused = UNUSED;
        if section.version() != Version::V3 {
            unused |= SIGNAL;
        }
        if !section.abi().may_mangle() {
            unused |= PAC_KEY_B;
        }
        let info = byte(info_at);
        if info & unused != 0 {
            let bits = info & unused;
            self.report(
                info_at,
                format!("{name}: unused bits {bits:#x} of the info byte are set"),
            );
        }
        let may_tell_rbx =
            section.abi() == Abi::Amd64 && function.repeat().is_none() && !function.is_signal();
        if section.version() == Version::V3 && byte(info_at + 1) & UNUSED2 != 0 && !may_tell_rbx {
            let bits = byte(info_at + 1) & UNUSED2;
            self.report(
                info_at + 1,
                format!("{name}: unused bits {bits:#x} of the second info byte are set"),
            );
        }
        if section.version() == Version::V2 {
            let padding = raw.number(entry.at + 18, 2).unwrap_or(0);
            if padding != 0 {
                self.report(
                    entry.at + 18,
                    format!("{name}: the padding is {padding:#x}, not zero"),
                );
            }
        }
        match (function.repeat(), block_at) {
            (Some(block), _) if function.size() % u32::from(block.get()) != 0 => self.report(
                entry.at,
                format!(
                    "{name}: its size, {}, is not a multiple of its block size, {block}",
                    function.size()
                ),
            ),
            (None, Some(at)) if byte(at) != 0 => {
                let block = byte(at);
                self.report(at, format!("{name}: is pcinc, but has block size {block}"));
            }
            _ => {}
        }
        self.function_range(entry, &name);
    }

    /// Checks that the function lies in code.
    fn function_range(&mut self, entry: &FunctionEntry, name: &str) {
        let function = &entry.function;
        let (start, size) = (function.start(), u64::from(function.size()));
        let inside = |area: &crate::file::Area| {
            let offset = start.wrapping_sub(area.range.start);
            let length = area.range.end - area.range.start;
            offset <= length && size <= length - offset
        };
        let found = match self.file.kind {
            FileKind::Bare => true,
            FileKind::Linked => self.file.areas.iter().any(inside),
            // A missing relocation is reported by `relocations`.
            FileKind::Relocatable => match self.file.relocated.get(&entry.at.into()) {
                None => true,
                Some(area) => area.is_some_and(|area| inside(&self.file.areas[area])),
            },
        };
        if !found {
            self.report(
                entry.at,
                format!("{name}: {start:#x}, {size} bytes, lies outside all code (discarded by the linker?)"),
            );
        }
    }

    /// Checks the rows of a function. Returns the range of the rows and their attributes, and the
    /// function's index.
    fn rows(&mut self, section: &Section, entry: &FunctionEntry) -> Option<(u32, u32, u32)> {
        let bytes = &self.file.bytes[..];
        let function = &entry.function;
        let name = format!("function {}", entry.index);
        let limit = match function.repeat() {
            Some(block) => block.get().into(),
            None => function.size(),
        };
        let mut end = function.rows_at();
        let mut rows = Vec::new();
        let raw_rows = raw::rows(Raw::of(bytes, section), function);
        for (number, (row, raw)) in section.rows(bytes, function).zip(raw_rows).enumerate() {
            let row = match row {
                Ok(row) => row,
                Err(error) => {
                    let (at, what) = explain(error, raw.at);
                    self.in_section
                        .insert((at, format!("{name}, row {number}: {what}")));
                    return None;
                }
            };
            self.rows += 1;
            let name = format!("{name}, row {number}");
            if row.start >= limit && limit != 0 {
                self.report(
                    raw.at,
                    format!(
                        "{name}: starts at {:#x}, past the end of its {limit} bytes",
                        row.start
                    ),
                );
            }
            self.row(section, function, &raw, &name);
            end = raw.next()?;
            rows.push(row);
        }
        self.stubs(section, entry, &rows);
        let in_front = if section.version() == Version::V3 {
            5
        } else {
            0
        };
        Some((function.rows_at() - in_front, end, entry.index))
    }

    fn row(&mut self, section: &Section, function: &Function, row: &RawRow<'_>, name: &str) {
        let mut unused = if section.abi().may_mangle() {
            0
        } else {
            MANGLED
        };
        if row.count() == 0 {
            unused = 0xff;
        } else if function.is_flexible() {
            unused |= 1;
        }
        if row.info & unused != 0 {
            let bits = row.info & unused;
            self.report(
                row.at,
                format!("{name}: unused bits {bits:#x} of the info byte are set"),
            );
        }
        if !function.is_flexible() {
            return;
        }
        // Pairs of words, or a zero word in place of a pair.
        let mut next = 0;
        while let Some(control) = row.word(next) {
            if control & UNUSED_CONTROL != 0 {
                self.report(
                    row.at,
                    format!("{name}: control word {control:#x} has an unused bit set"),
                );
            }
            next += if control == 0 { 1 } else { 2 };
        }
    }

    /// Checks the rows of PLT stubs against their instructions.
    fn stubs(&mut self, section: &Section, entry: &FunctionEntry, rows: &[sframe::fre::Row]) {
        let function = &entry.function;
        let block = match function.repeat() {
            Some(block) => u32::from(block.get()),
            None => function.size(),
        };
        // All blocks have one set of rows: the first block is checked.
        for offset in 0..block.min(function.size()).min(64) {
            let pc = function.start().wrapping_add(offset.into());
            let Some(code) = stub_rule(self.file, section.abi(), function, pc) else {
                continue;
            };
            let behind = rows.partition_point(|row| row.start <= offset);
            let row = behind.checked_sub(1).and_then(|index| rows.get(index));
            let what = match row {
                Some(row) => contradiction(section.abi(), &row.rule, &code).map(|(row, code)| {
                    format!("its row has {row}, but the instructions of the PLT stub have {code}")
                }),
                None => Some("it has no row, but is in a PLT stub".to_owned()),
            };
            if let Some(what) = what {
                self.report(
                    entry.at,
                    format!("function {}: at {pc:#x} {what}", entry.index),
                );
                return;
            }
        }
    }

    /// Checks that each byte of the rows belongs to exactly one function.
    fn row_ranges(&mut self, section: &Section, mut ranges: Vec<(u32, u32, u32)>) {
        ranges.sort_unstable();
        let known = ranges.len() == section.num_fdes() as usize;
        let mut covered = section.rows_offset();
        for (start, end, index) in ranges {
            if start < covered && start < end {
                self.report(
                    start,
                    format!("function {index}: shares rows with another function"),
                );
            } else if start > covered && known {
                let gap = start - covered;
                self.report(
                    covered,
                    format!("{gap} bytes of the rows belong to no function"),
                );
            }
            covered = covered.max(end);
        }
        if covered < section.end() && known {
            let gap = section.end() - covered;
            self.report(
                covered,
                format!("{gap} bytes of the rows belong to no function"),
            );
        }
    }

    fn overlaps(&mut self, entries: &mut [FunctionEntry]) {
        entries.sort_by_key(|entry| (entry.area, entry.function.start(), entry.index));
        let mut last: Option<&FunctionEntry> = None;
        for entry in entries.iter().filter(|entry| entry.function.size() != 0) {
            if let Some(other) = last.filter(|other| {
                other.area == entry.area && other.function.covers(entry.function.start())
            }) {
                let (start, other_index) = (entry.function.start(), other.index);
                let how = if other.function.start() == start {
                    format!("starts where function {other_index} does")
                } else {
                    format!("overlaps function {other_index}")
                };
                self.report(
                    entry.at,
                    format!("function {}: {how}, at {start:#x}", entry.index),
                );
            }
            let end = |entry: &FunctionEntry| {
                u128::from(entry.function.start()) + u128::from(entry.function.size())
            };
            if last.is_none_or(|other| other.area != entry.area || end(other) < end(entry)) {
                last = Some(entry);
            }
        }
    }

    /// Checks that the bytes between and after the sections are zero.
    fn tails(&mut self, blobs: &[Blob]) {
        let bytes = &self.file.bytes;
        for (index, blob) in blobs.iter().enumerate() {
            let start = blob.section.end() as usize;
            let next = blobs.get(index + 1);
            let end = next.map_or(bytes.len(), |next| next.section.offset() as usize);
            let tail = bytes.get(start..end).unwrap_or_default();
            if let Some(nonzero) = tail.iter().position(|&byte| byte != 0) {
                let at = (start + nonzero) as u64;
                let what = "bytes after the rows are not zero".to_owned();
                self.in_section.insert((at, what));
            }
        }
    }

    /// Checks that each function's start has a relocation, and that there is no other relocation.
    fn relocations(&mut self, blobs: &[Blob]) {
        if self.file.kind != FileKind::Relocatable {
            return;
        }
        let starts: BTreeSet<u64> = blobs
            .iter()
            .flat_map(|blob| {
                let section = blob.section;
                (0..section.num_fdes()).map(move |index| section.entry_offset(index).into())
            })
            .collect();
        for &at in starts
            .iter()
            .filter(|at| !self.file.relocated.contains_key(at))
        {
            let what = "the function's start has no relocation".to_owned();
            self.in_section.insert((at, what));
        }
        for &at in self.file.relocated.keys().filter(|at| !starts.contains(at)) {
            let what = "a relocation of a field that is not a function's start".to_owned();
            self.in_section.insert((at, what));
        }
    }
}
