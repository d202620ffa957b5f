// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Makes an SFrame section, version 3, from a file's .eh_frame or from Go's pclntab; and from the
//! instructions for code without an .eh_frame entry, among it the Haskell code of GHC's programs.
//!
//! The section is not part of the file. Its address is 0, so that a reader looks up link-time
//! addresses.
//!
//! Each row encodes its rule exactly. A rule that SFrame cannot encode is dropped: the section has no
//! function for that code, and the [`Report`] counts the reason.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod callee_saved;
mod eh_frame;
mod eh_return;
mod encode;
mod ghc;
mod go;
mod insn_analysis;
mod luajit;
#[cfg(test)]
#[path = "../../../rust/sframe/tests/support/requirement.rs"]
mod requirement;
mod saved_rbx;
mod table;

pub use self::table::OwnedTable;

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    fmt,
    ops::Range,
    thread, //
};

use iced_x86::{
    Decoder,
    DecoderOptions,
    FlowControl,
    Instruction, //
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
    SectionKind,
    SymbolKind, //
};
use sframe::{
    rule::{
        Base,
        Location,
        Rule,
        SavedRbx, //
    },
    x86_64::registers, //
};

/// The reason why a file cannot be converted.
#[derive(Debug)]
pub enum ConvertError {
    /// The file is not a readable ELF file.
    NotElf(object::Error),
    /// The file is not a little-endian file for AMD64.
    Machine,
    /// The file has no loadable code, for example because it is an object file.
    NoCode,
    /// The file has neither .eh_frame nor Go's pclntab.
    NoUnwindInfo,
    /// .eh_frame is invalid.
    InvalidEhFrame(gimli::Error),
    /// The functions span more addresses, or have more rows, than one section can hold.
    TooLarge,
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConvertError::NotElf(error) => write!(f, "not a readable ELF file: {error}"),
            ConvertError::Machine => {
                f.write_str("not for AMD64: only AMD64 files can be converted")
            }
            ConvertError::NoCode => f.write_str("no loadable code (an object file?)"),
            ConvertError::NoUnwindInfo => f.write_str(
                "no unwind information: neither .eh_frame nor the pclntab of Go 1.20 or later",
            ),
            ConvertError::InvalidEhFrame(error) => write!(f, ".eh_frame is invalid: {error}"),
            ConvertError::TooLarge => {
                f.write_str("too many rows or too large an address range for one SFrame section")
            }
        }
    }
}

impl std::error::Error for ConvertError {}

/// The reason why a row is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// The CFA is computed from a value in memory in a form that no row supports.
    CfaFromMemory,
    /// The CFA is an unsupported expression.
    CfaExpression,
    /// No row can encode the return address's location.
    ReturnAddress,
    /// No row can encode the location of the caller's frame pointer, or it is undefined.
    FramePointer,
    /// The caller's stack pointer is not the CFA.
    StackPointer,
    /// An offset exceeds 32 bits.
    OffsetTooLarge,
    /// The entry is invalid from the row's start on.
    InvalidEntry,
}

impl DropReason {
    /// A short name, for reports.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::CfaFromMemory => "cfa-from-memory",
            DropReason::CfaExpression => "cfa-expression",
            DropReason::ReturnAddress => "return-address",
            DropReason::FramePointer => "frame-pointer",
            DropReason::StackPointer => "stack-pointer",
            DropReason::OffsetTooLarge => "offset-too-large",
            DropReason::InvalidEntry => "invalid-entry",
        }
    }
}

/// Statistics of a conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The size of .eh_frame, in bytes.
    pub eh_frame: u64,
    /// The rows of .eh_frame. Rows that differ only in registers that SFrame does not describe count
    /// separately.
    pub rows: u64,
    /// The rows of .eh_frame that are encoded.
    pub encoded: u64,
    /// The dropped rows by reason: their number, and the bytes of code that they cover.
    pub dropped: BTreeMap<DropReason, (u64, u64)>,
    /// The functions of the section.
    pub functions: u32,
    /// The flexible functions of the section.
    pub flexible: u32,
    /// The rows of the section.
    pub section_rows: u32,
    /// The extra rows.
    pub extra_rows: u32,
    /// The bytes of code whose rows come from the instructions.
    pub analyzed_code: u64,
}

impl Report {
    fn count_dropped(&mut self, reason: DropReason, bytes: u64) {
        let (rows, all) = self.dropped.entry(reason).or_default();
        *rows += 1;
        *all += bytes;
    }

    fn add(&mut self, other: &Report) {
        self.rows += other.rows;
        self.encoded += other.encoded;
        for (reason, (rows, bytes)) in &other.dropped {
            let (all_rows, all_bytes) = self.dropped.entry(*reason).or_default();
            *all_rows += rows;
            *all_bytes += bytes;
        }
    }
}

/// A row of .eh_frame that is dropped. Addresses are link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedRow {
    /// The address of the first byte that the row covers.
    pub start: u64,
    /// The address after the last byte that the row covers.
    pub end: u64,
    /// The reason why the row is dropped. `None`: the row is kept, but it covers a call, and its rule counts from
    /// a register that is known only in the innermost frame.
    pub reason: Option<DropReason>,
    /// The row's rules for the CFA, the frame pointer, the stack pointer and the return address. The frame
    /// pointer's slot is left out.
    pub rule: String,
}

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The section; its address is 0.
    pub section: Vec<u8>,
    /// Rows that a section cannot encode: an array of
    /// [`ExtraRow`](sframe::table::ExtraRow).
    pub extra_rows: Vec<u8>,
    /// The statistics.
    pub report: Report,
}

/// A function, or an encodable part of a function. Addresses are link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConvertedFunction {
    start: u64,
    size: u32,
    /// For a PLT, the size in bytes of the blocks that share the rows.
    repeat: Option<u8>,
    signal: bool,
    /// Where the function keeps its caller's value of rbx.
    rbx: SavedRbx,
    /// The offset in bytes from which each rule applies, in ascending order.
    rows: Vec<(u32, Rule)>,
}

impl ConvertedFunction {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.size.into())
    }

    /// Truncates the function at `end`.
    fn truncate(&mut self, end: u64) {
        if end < self.end() {
            self.size = end.saturating_sub(self.start) as u32;
            let size = self.size;
            if self.repeat.is_none() {
                self.rows.retain(|(start, _)| *start < size);
            }
        }
    }

    /// Truncates the function at `at`, and returns the rest. `at` lies in the function or is its end; the
    /// function is not a PLT.
    fn split_off(&mut self, at: u64) -> ConvertedFunction {
        let offset = (at - self.start) as u32;
        let current = self.rows.iter().rev().find(|(start, _)| *start <= offset);
        let following = self.rows.iter().filter(|(start, _)| *start > offset);
        let rows = current.map(|(_, rule)| (0, *rule)).into_iter();
        let rest = ConvertedFunction {
            start: at,
            size: self.size - offset,
            repeat: None,
            signal: self.signal,
            rbx: self.rbx,
            rows: rows
                .chain(following.map(|(start, rule)| (start - offset, *rule)))
                .collect(),
        };
        self.truncate(at);
        rest
    }
}

/// The code of a file: its executable segments.
#[derive(Clone, Debug)]
pub struct CodeBytes<'a> {
    /// The link-time start and end address of each segment, and its bytes in the file.
    segments: Vec<(u64, u64, &'a [u8])>,
}

impl<'a> CodeBytes<'a> {
    /// The code of an ELF file for AMD64.
    ///
    /// # Errors
    ///
    /// [`ConvertError::NotElf`], [`ConvertError::Machine`], [`ConvertError::NoCode`].
    pub fn of(bytes: &'a [u8]) -> Result<CodeBytes<'a>, ConvertError> {
        CodeBytes::of_elf(&parse(bytes)?)
    }

    fn of_elf(file: &ElfFile64<'a, Endianness>) -> Result<CodeBytes<'a>, ConvertError> {
        let endian = file.endian();
        let headers = file.elf_program_headers().iter().filter(|header| {
            header.p_type(endian) == elf::PT_LOAD && header.p_flags(endian) & elf::PF_X != 0
        });
        let segments: Vec<_> = headers
            .map(|header| {
                let start = header.p_vaddr(endian);
                let end = start.saturating_add(header.p_memsz(endian));
                let bytes = header.data(endian, file.data()).unwrap_or_default();
                (start, end, bytes)
            })
            .collect();
        if segments.is_empty() {
            return Err(ConvertError::NoCode);
        }
        Ok(CodeBytes { segments })
    }

    /// The bytes from a link-time address to the end of its segment.
    fn at(&self, address: u64) -> &'a [u8] {
        let mut segments = self.segments.iter();
        segments
            .find_map(|(start, _, bytes)| {
                bytes.get(usize::try_from(address.checked_sub(*start)?).ok()?..)
            })
            .unwrap_or_default()
    }

    /// The instructions between two link-time addresses.
    fn instructions(&self, start: u64, end: u64) -> impl Iterator<Item = Instruction> + 'a {
        let bytes = self.at(start);
        let len = usize::try_from(end - start).unwrap_or(usize::MAX);
        let bytes = &bytes[..len.min(bytes.len())];
        Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter()
    }

    /// Whether one segment contains both link-time addresses and all between them.
    fn holds(&self, first: u64, last: u64) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|(start, end, _)| *start <= first && first <= last && last < *end)
    }
}

fn parse(bytes: &[u8]) -> Result<ElfFile64<'_, Endianness>, ConvertError> {
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(ConvertError::NotElf)?;
    if file.architecture() != object::Architecture::X86_64 || file.endian() != Endianness::Little {
        return Err(ConvertError::Machine);
    }
    Ok(file)
}

/// Converts an ELF file, or an image of an ELF file such as the vDSO: .eh_frame, the pclntab of a Go program,
/// and the instructions of code that neither covers.
///
/// # Errors
///
/// See [`ConvertError`].
pub fn convert(bytes: &[u8]) -> Result<Converted, ConvertError> {
    let file = parse(bytes)?;
    let code = CodeBytes::of_elf(&file)?;
    let (mut functions, mut report) = go::functions(&file, &code);
    let is_go = !functions.is_empty();
    let eh_frame = match eh_frame::EhFrameTable::find(&file) {
        Ok(eh_frame) => Some(eh_frame),
        Err(ConvertError::NoUnwindInfo) if is_go => None,
        Err(error) => return Err(error),
    };
    let mut covered = Vec::new();
    if let Some(eh_frame) = eh_frame {
        report.eh_frame = eh_frame.len();
        let entries = eh_frame.entries(&code)?;
        convert_entries(&eh_frame, &entries, &code, &mut functions, &mut report);
        eh_return::add_rows(&mut functions, &code);
        luajit::correct(&mut functions, &code);
        callee_saved::add_rows(&mut functions, &eh_frame, &entries, &code);
        // Code whose rows are dropped is not analysed either.
        covered.extend(
            entries
                .iter()
                .map(|entry| entry.initial_address()..entry.end_address()),
        );
    }
    sort_and_trim(&mut functions);
    add_entry_point(&mut functions, file.entry(), &code);
    for section in [".init", ".fini"] {
        if let Some(section) = file.section_by_name(section) {
            add_init_or_fini(&mut functions, section.address(), &code);
        }
    }
    covered.extend(
        functions
            .iter()
            .map(|function| function.start..function.end()),
    );
    // pclntab lists all functions of a Go program. Functions that got no rows must stay without rows.
    if !is_go {
        let mut gaps = gaps(&file, covered);
        if let Some(found) = ghc::functions(&file, &gaps, &code) {
            // Haskell code has no functions as the analysis below knows them.
            gaps = found.unused;
            report.analyzed_code = size_of_all(&found.functions);
            functions.retain(|function| function.start != found.run.start);
            functions.push(found.run);
            functions.extend(found.functions);
        }
        let found = insn_analysis::functions(&gaps, &symbols(&file), file.entry(), &code);
        report.analyzed_code += size_of_all(&found);
        functions.extend(found);
        sort_and_trim(&mut functions);
    }
    let mut extra_rows = Vec::new();
    functions.retain(|function| {
        let row = match function.rows[..] {
            [(0, rule)] if encode::needs_extra_row(&rule) => {
                encode::extra_row(function.start, function.size, &rule)
            }
            _ => None,
        };
        extra_rows.extend(row.into_iter().flatten());
        report.extra_rows += u32::from(row.is_some());
        row.is_none()
    });
    let section = encode::section(&functions, &mut report)?;
    Ok(Converted {
        section,
        extra_rows,
        report,
    })
}

/// The rows of .eh_frame that [`convert`] drops and that no row of another origin replaces; and the rows whose
/// rules cannot be used in frames that have called.
///
/// # Errors
///
/// See [`ConvertError`].
pub fn dropped_rows(bytes: &[u8]) -> Result<Vec<DroppedRow>, ConvertError> {
    let file = parse(bytes)?;
    let code = CodeBytes::of_elf(&file)?;
    let converted = convert(bytes)?;
    let eh_frame = match eh_frame::EhFrameTable::find(&file) {
        Ok(eh_frame) => eh_frame,
        // A Go program.
        Err(ConvertError::NoUnwindInfo) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let table = OwnedTable::new(&converted.section, &converted.extra_rows, &code).ok();
    let rule_at = |at| table.as_ref()?.table().find(at);
    let entries = eh_frame.entries(&code)?;
    let rows = entries.iter().flat_map(|entry| eh_frame.dropped(entry));
    // The walk follows rbx if the called function tells where it keeps rbx.
    let tells_rbx =
        |target| rule_at(target).is_some_and(|rule| rule.extra.rbx != SavedRbx::UNKNOWN);
    let is_lost = |call: &Instruction| match rule_at(call.next_ip() - 1).map(|rule| rule.cfa.base) {
        Some(Base::Register(registers::RBX)) => !tells_rbx(call.near_branch_target()),
        Some(Base::Register(_)) => true,
        _ => false,
    };
    Ok(rows
        .filter(|row| match row.reason {
            Some(_) => rule_at(row.start).is_none(),
            None => code
                .instructions(row.start, row.end)
                .any(|instruction| is_call(&instruction) && is_lost(&instruction)),
        })
        .collect())
}

/// Whether an instruction calls.
fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

/// The ranges of the code sections that are not `covered`. PLTs are skipped: only the linker makes rows for
/// them.
fn gaps(file: &ElfFile64<'_, Endianness>, mut covered: Vec<Range<u64>>) -> Vec<Range<u64>> {
    covered.sort_by_key(|range| range.start);
    let mut found = Vec::new();
    for section in file.sections() {
        let name = section.name().unwrap_or_default();
        if section.kind() != SectionKind::Text || name.starts_with(".plt") {
            continue;
        }
        let (mut at, end) = (
            section.address(),
            section.address().saturating_add(section.size()),
        );
        for range in &covered {
            if at < range.start.min(end) {
                found.push(at..range.start.min(end));
            }
            at = at.max(range.end);
        }
        if at < end {
            found.push(at..end);
        }
    }
    found
}

/// The addresses of function symbols.
fn symbols(file: &ElfFile64<'_, Endianness>) -> BTreeSet<u64> {
    file.symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .map(|symbol| symbol.address())
        .collect()
}

/// Converts only by instruction analysis, as if the file had no unwind information. Tests use this to
/// compare the analysis with .eh_frame.
///
/// # Errors
///
/// See [`ConvertError`].
pub fn convert_code(bytes: &[u8]) -> Result<Converted, ConvertError> {
    let file = parse(bytes)?;
    let code = CodeBytes::of_elf(&file)?;
    let mut report = Report::default();
    let functions = insn_analysis::functions(
        &gaps(&file, Vec::new()),
        &BTreeSet::new(),
        file.entry(),
        &code,
    );
    Ok(Converted {
        section: encode::section(&functions, &mut report)?,
        extra_rows: Vec::new(),
        report,
    })
}

/// Converts entries in parallel, because this takes most of the time of a conversion.
fn convert_entries<'a>(
    eh_frame: &eh_frame::EhFrameTable<'a>,
    entries: &[eh_frame::FdeEntry<'a>],
    code: &CodeBytes<'_>,
    functions: &mut Vec<ConvertedFunction>,
    report: &mut Report,
) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let each = entries.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let parts: Vec<_> = entries
            .chunks(each)
            .map(|part| scope.spawn(|| eh_frame.functions(part, code)))
            .collect();
        for part in parts {
            let (found, part_report) = part.join().expect("reading entries does not panic");
            functions.extend(found);
            report.add(&part_report);
        }
    });
}

/// The first instructions of an entry point, which passes the initial stack pointer on: in ld.so, and in musl,
/// which clears the frame pointer first.
const ENTRY_POINTS: [&[u8]; 3] = [
    b"\x48\x89\xe7",             // mov %rsp,%rdi
    b"\x31\xed\x48\x89\xe7",     // xor %ebp,%ebp; mov %rsp,%rdi
    b"\x48\x31\xed\x48\x89\xe7", // xor %rbp,%rbp; mov %rsp,%rdi
];

/// The maximum size of an entry point's code, in bytes. The code of ld.so has 61 bytes.
pub const MAX_ENTRY_POINT: u64 = 96;

/// Adds an outermost row for an entry point without an .eh_frame entry. An entry point has no caller. Such entry
/// points are written in assembly.
fn add_entry_point(functions: &mut Vec<ConvertedFunction>, entry: u64, code: &CodeBytes<'_>) {
    let is_entry_point = ENTRY_POINTS
        .iter()
        .any(|bytes| code.at(entry).starts_with(bytes));
    if is_entry_point {
        let size = MAX_ENTRY_POINT.min(code.at(entry).len() as u64);
        insert(functions, entry, size as u32, vec![(0, Rule::OUTERMOST)]);
    }
}

/// Adds rows for `_init` or `_fini` of crti.o and crtn.o, which have no .eh_frame entry: `sub $8,%rsp`,
/// calls, `add $8,%rsp; ret`.
fn add_init_or_fini(functions: &mut Vec<ConvertedFunction>, address: u64, code: &CodeBytes<'_>) {
    let bytes = code.at(address);
    let pushed = if bytes.starts_with(b"\xf3\x0f\x1e\xfa") {
        8
    } else {
        4
    };
    if !bytes[..bytes.len().min(pushed)].ends_with(b"\x48\x83\xec\x08") {
        return;
    }
    let mut at = pushed;
    loop {
        at += match bytes.get(at..).unwrap_or_default() {
            [0x48, 0x83, 0xc4, 0x08, 0xc3, ..] => break,
            [0x48, 0x8b, 0x05, ..] => 7,       // mov ...(%rip),%rax
            [0x48, 0xc7, 0xc0, ..] => 7,       // mov $...,%rax
            [0x48, 0x85, 0xc0, ..] => 3,       // test %rax,%rax
            [0x74, 0x02, 0xff, 0xd0, ..] => 4, // jz over it; call *%rax
            [0xe8, ..] => 5,                   // call ...
            _ => return,
        };
    }
    let row = |from: usize, cfa| (from as u32, Rule::amd64(Base::Sp, cfa, Location::Unchanged));
    let rows = vec![row(0, 8), row(pushed, 16), row(at + 4, 8)];
    insert(functions, address, at as u32 + 5, rows);
}

/// Inserts a function, truncated at the next one, unless another function covers its start.
fn insert(functions: &mut Vec<ConvertedFunction>, start: u64, size: u32, rows: Vec<(u32, Rule)>) {
    let next = functions.partition_point(|function| function.start <= start);
    if next > 0 && functions[next - 1].end() > start {
        return;
    }
    let mut function = ConvertedFunction {
        start,
        size,
        repeat: None,
        signal: false,
        rbx: SavedRbx::UNKNOWN,
        rows,
    };
    if let Some(next) = functions.get(next) {
        function.truncate(next.start);
    }
    functions.insert(next, function);
}

/// The size of functions together, in bytes.
fn size_of_all(functions: &[ConvertedFunction]) -> u64 {
    let sizes = functions.iter().map(|function| u64::from(function.size));
    sizes.sum()
}

/// Sorts functions, and truncates each at the start of the next one. Of overlapping functions the one that
/// starts last covers the code.
fn sort_and_trim(functions: &mut Vec<ConvertedFunction>) {
    functions.retain(|function| function.size != 0);
    functions.sort_by_key(|function| function.start);
    let mut next = u64::MAX;
    for function in functions.iter_mut().rev() {
        function.truncate(next);
        next = function.start;
    }
    functions.retain(|function| function.size != 0);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sframe::{
        rule::Cfa,
        section::{
            Search,
            Section, //
        },
    };

    /// A function without anything special.
    pub(crate) fn function(start: u64, size: u32, rows: &[(u32, Rule)]) -> ConvertedFunction {
        ConvertedFunction {
            start,
            size,
            repeat: None,
            signal: false,
            rbx: SavedRbx::UNKNOWN,
            rows: rows.to_vec(),
        }
    }

    #[test]
    fn entry_points_have_outermost_rows() {
        let mut text = vec![0x90; 0x200];
        text[0x80..0x83].copy_from_slice(b"\x48\x89\xe7");
        text[0x180..0x186].copy_from_slice(b"\x48\x31\xed\x48\x89\xe7");
        let code = CodeBytes {
            segments: vec![(0x1000, 0x1200, &text)],
        };
        let rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);
        let others = [
            function(0x1000, 0x40, &[(0, rule)]),
            function(0x10a0, 0x20, &[(0, rule)]),
        ];
        let begun = |entry| {
            let mut functions = others.to_vec();
            add_entry_point(&mut functions, entry, &code);
            sort_and_trim(&mut functions);
            functions
                .into_iter()
                .find(|function| function.rows[0].1.is_outermost())
                .map(|function| (function.start, function.size))
        };
        assert_eq!(begun(0x1080), Some((0x1080, 0x20)));
        assert_eq!(begun(0x1180), Some((0x1180, 0x60)));
        // No rows for: other instructions, an address that a function covers, an address outside of the code.
        assert_eq!(begun(0x1081), None);
        assert_eq!(begun(0x1000), None);
        assert_eq!(begun(0), None);
        text[..3].copy_from_slice(b"\x48\x89\xe7");
        let code = CodeBytes {
            segments: vec![(0x1000, 0x1200, &text)],
        };
        let mut functions = others.to_vec();
        add_entry_point(&mut functions, 0x1000, &code);
        assert_eq!(functions, others);
    }

    #[test]
    fn init_and_fini_have_rows() {
        // The bytes of Debian 13's libcrypto, and the bytes of code compiled with endbr64.
        let init = b"\x48\x83\xec\x08\x48\x8b\x05\x01\x02\x03\x04\x48\x85\xc0\x74\x02\xff\xd0\
            \xe8\x01\x02\x03\x04\x48\x83\xc4\x08\xc3";
        let fini = b"\xf3\x0f\x1e\xfa\x48\x83\xec\x08\x48\x83\xc4\x08\xc3";
        let made = |text: &[u8]| {
            let code = CodeBytes {
                segments: vec![(0x1000, 0x1000 + text.len() as u64, text)],
            };
            let mut functions = Vec::new();
            add_init_or_fini(&mut functions, 0x1000, &code);
            functions
        };
        let rows = [(0, plain(8)), (4, plain(16)), (27, plain(8))];
        assert_eq!(made(init), [function(0x1000, 28, &rows)]);
        let rows = [(0, plain(8)), (8, plain(16)), (12, plain(8))];
        assert_eq!(made(fini), [function(0x1000, 13, &rows)]);
        // A change of any byte, or truncation, prevents rows.
        for byte in (0..4).chain(4..7).chain(11..19).chain(23..28) {
            let mut other = *init;
            other[byte] ^= 0x10;
            assert_eq!(made(&other), [], "{byte}");
            assert_eq!(made(&init[..byte]), [], "{byte}");
        }
        // An existing function is not replaced.
        let mut functions = vec![function(0xff0, 0x11, &[(0, plain(24))])];
        let code = CodeBytes {
            segments: vec![(0x1000, 0x101c, init)],
        };
        add_init_or_fini(&mut functions, 0x1000, &code);
        assert_eq!(functions.len(), 1);
    }

    /// Encodes functions and opens the section.
    fn written(functions: &[ConvertedFunction]) -> (Vec<u8>, Section, Report) {
        let mut report = Report::default();
        let bytes = encode::section(functions, &mut report).unwrap();
        let section = Section::open(&bytes[..], 0, bytes.len() as u64).unwrap();
        section.verify(&bytes[..]).unwrap();
        (bytes, section, report)
    }

    fn found(functions: &[ConvertedFunction], pc: u64) -> Option<Rule> {
        let (bytes, section, _) = written(functions);
        section.find(&bytes[..], pc, Search::Bounded).unwrap()
    }

    fn plain(offset: i32) -> Rule {
        Rule::amd64(Base::Sp, offset, Location::Unchanged)
    }

    #[test]
    fn written_rules_are_read() {
        let bases = [Base::Sp, Base::Fp, Base::Register(3), Base::Register(15)];
        let offsets = [
            0,
            -8,
            127,
            -128,
            128,
            32767,
            -32768,
            32768,
            i32::MAX,
            i32::MIN,
        ];
        let mut places = vec![Location::Unchanged, Location::LOST_FP];
        for offset in offsets {
            places.push(Location::AtCfa(offset));
            for base in bases {
                places.extend([Location::At(base, offset), Location::Of(base, offset)]);
            }
        }
        let mut rules = vec![Rule::OUTERMOST];
        for base in bases {
            for offset in offsets {
                for fp in &places {
                    for ra in [Location::AtCfa(-8), Location::AtCfa(-16), places[3]] {
                        for deref in [false, true] {
                            rules.push(Rule {
                                cfa: Cfa {
                                    base,
                                    offset,
                                    deref,
                                    plus: 0,
                                },
                                ra,
                                fp: *fp,
                                mangled: false,
                                signal: false,
                                extra: sframe::rule::Extra::NONE,
                            });
                        }
                    }
                }
            }
        }
        for part in rules.chunks(100) {
            let rows: Vec<_> = (0..).step_by(3).zip(part.iter().copied()).collect();
            let function = function(0x40_0000, 300, &rows);
            let (bytes, section, _) = written(&[function]);
            for (start, rule) in rows {
                for at in start..(start + 3).min(300) {
                    let pc = 0x40_0000 + u64::from(at);
                    let read = section.find(&bytes[..], pc, Search::Bounded);
                    assert_eq!(read, Ok(Some(rule)));
                }
            }
        }
    }

    #[test]
    fn rules_that_no_row_can_encode_are_detected() {
        assert!(encode::can_encode(&plain(8)));
        for fp in [Location::Undefined, Location::OfCfa(0)] {
            assert!(!encode::can_encode(&Rule { fp, ..plain(8) }));
        }
        let ra = Location::OfCfa(-8);
        assert!(!encode::can_encode(&Rule { ra, ..plain(8) }));
    }

    #[test]
    fn rows_begin_where_they_should_in_small_and_large_functions() {
        for size in [255, 256, 65535, 65536, 1 << 20] {
            let functions = [function(
                0x1000,
                size,
                &[(0, plain(8)), (size - 1, plain(16))],
            )];
            assert_eq!(found(&functions, 0x1000), Some(plain(8)));
            let last = 0x1000 + u64::from(size) - 1;
            assert_eq!(found(&functions, last - 1), Some(plain(8)));
            assert_eq!(found(&functions, last), Some(plain(16)));
            assert_eq!(found(&functions, last + 1), None);
            assert_eq!(found(&functions, 0xfff), None);
        }
    }

    #[test]
    fn a_function_of_too_many_rows_becomes_two() {
        let rows: Vec<_> = (0..70_000)
            .map(|at| (at, plain(8 + 8 * (at % 2) as i32)))
            .collect();
        let functions = [function(0x1000, 70_000, &rows)];
        let (bytes, section, report) = written(&functions);
        assert_eq!((report.functions, report.section_rows), (2, 70_000));
        for (at, rule) in rows.into_iter().skip(65_000).step_by(500) {
            let pc = 0x1000 + u64::from(at);
            let read = section.find(&bytes[..], pc, Search::Thorough);
            assert_eq!(read, Ok(Some(rule)), "{at}");
        }
    }

    #[test]
    fn of_overlapping_functions_the_later_start_applies() {
        let mut functions = vec![
            function(0x1020, 0x10, &[(0, plain(16))]),
            function(0x1000, 0x100, &[(0, plain(8)), (0x30, plain(24))]),
            function(0x1020, 0, &[]),
        ];
        sort_and_trim(&mut functions);
        assert_eq!(functions.len(), 2);
        assert_eq!(found(&functions, 0x101f), Some(plain(8)));
        assert_eq!(found(&functions, 0x1020), Some(plain(16)));
        // The earlier function was truncated.
        assert_eq!(found(&functions, 0x1030), None);
    }

    #[test]
    fn blocks_are_repeated() {
        let functions = [ConvertedFunction {
            repeat: Some(16),
            ..function(0x1010, 64, &[(0, plain(8)), (11, plain(16))])
        }];
        for at in 0..64 {
            let offset = if at % 16 < 11 { 8 } else { 16 };
            assert_eq!(found(&functions, 0x1010 + at), Some(plain(offset)));
        }
    }

    #[test]
    fn files_that_are_not_elf_are_refused() {
        assert!(matches!(convert(b""), Err(ConvertError::NotElf(_))));
        assert!(matches!(convert(&[0; 100]), Err(ConvertError::NotElf(_))));
    }
}
