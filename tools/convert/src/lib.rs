// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Makes an SFrame section, version 3, of what a file's .eh_frame says; or what Go knows of its programs;
//! and of what code itself tells of which .eh_frame has no entry.
//!
//! The section is one of its own, beside the file: it is as if it lay at address 0, so that a
//! reader that opens it there is asked by link-time addresses.
//!
//! What SFrame cannot say is left out, never said otherwise: there is no function then where the
//! row would hold, and the [`Report`] counts why.

mod code;
mod dwarf;
mod go;
mod leaving;
mod saved;
mod table;
mod write;

pub use self::table::Owned;

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
use sframe::rule::{
    Base,
    Location,
    Rule, //
};

/// Why there is no section.
#[derive(Debug)]
pub enum Error {
    /// It is no ELF file that can be read.
    NotElf(object::Error),
    /// It is not a little-endian file for AMD64.
    Machine,
    /// No code of it is loaded, as of an object file.
    NoCode,
    /// There is no .eh_frame, and not what Go has instead.
    NoTable,
    /// .eh_frame is broken.
    Broken(gimli::Error),
    /// Its functions lie further apart, or have more rows, than a section can hold.
    TooLarge,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotElf(error) => write!(f, "not a readable ELF file: {error}"),
            Error::Machine => f.write_str("not for AMD64: only AMD64 files can be converted"),
            Error::NoCode => f.write_str("no loadable code (an object file?)"),
            Error::NoTable => f.write_str(
                "no unwind information: neither .eh_frame nor the pclntab of Go 1.20 or later",
            ),
            Error::Broken(error) => write!(f, ".eh_frame is invalid: {error}"),
            Error::TooLarge => {
                f.write_str("too many rows or too large an address range for one SFrame section")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Why a row cannot be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unsaid {
    /// The CFA is what is in memory, plus something.
    CfaOfMemory,
    /// The CFA is an expression, and none of those that are known.
    CfaExpression,
    /// The return address is somewhere else than rows can tell.
    ReturnAddress,
    /// The caller's frame pointer is somewhere else than rows can tell, or lost.
    FramePointer,
    /// The caller's stack pointer is not the CFA.
    StackPointer,
    /// An offset of more than 32 bits.
    Offset,
    /// The entry itself is broken from there on.
    Entry,
}

impl Unsaid {
    /// A short name, for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Unsaid::CfaOfMemory => "cfa-of-memory",
            Unsaid::CfaExpression => "cfa-expression",
            Unsaid::ReturnAddress => "return-address",
            Unsaid::FramePointer => "frame-pointer",
            Unsaid::StackPointer => "stack-pointer",
            Unsaid::Offset => "offset",
            Unsaid::Entry => "entry",
        }
    }
}

/// What was made of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The size of .eh_frame, in bytes.
    pub eh_frame: u64,
    /// Its rows. Two that differ in nothing that SFrame speaks of are two.
    pub rows: u64,
    /// Those of them that were said.
    pub said: u64,
    /// By reason, those that were not, and the bytes of code that they are for.
    pub unsaid: BTreeMap<Unsaid, (u64, u64)>,
    /// The functions of the section.
    pub functions: u32,
    /// Those of them that are flexible.
    pub flexible: u32,
    /// The rows of the section.
    pub section_rows: u32,
    /// The rows beside it.
    pub extra_rows: u32,
    /// How many bytes of code only the code itself told of.
    pub by_code: u64,
}

impl Report {
    fn leave_out(&mut self, why: Unsaid, bytes: u64) {
        let (rows, all) = self.unsaid.entry(why).or_default();
        *rows += 1;
        *all += bytes;
    }

    fn add(&mut self, other: &Report) {
        self.rows += other.rows;
        self.said += other.said;
        for (why, (rows, bytes)) in &other.unsaid {
            let (all_rows, all_bytes) = self.unsaid.entry(*why).or_default();
            *all_rows += rows;
            *all_bytes += bytes;
        }
    }
}

/// A section and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The section, as if at address 0.
    pub section: Vec<u8>,
    /// Rows that it cannot say, one behind the other
    /// ([`ExtraRow`](sframe::table::ExtraRow)).
    pub extra_rows: Vec<u8>,
    /// What it says, and what not.
    pub report: Report,
}

/// A function, or that part of one that can be said. Addresses are link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    start: u64,
    size: u32,
    /// The size of the blocks that all follow the same rows, in bytes: a PLT.
    repeat: Option<u8>,
    signal: bool,
    /// From which offset on what holds, in rising order.
    rows: Vec<(u32, Rule)>,
}

impl Function {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.size.into())
    }

    /// Ends before `end`.
    fn cut(&mut self, end: u64) {
        if end < self.end() {
            self.size = end.saturating_sub(self.start) as u32;
            let size = self.size;
            if self.repeat.is_none() {
                self.rows.retain(|(start, _)| *start < size);
            }
        }
    }

    /// Ends before `at`, which is in it, or its end, and is no PLT; returns what is there and behind it.
    fn split_off(&mut self, at: u64) -> Function {
        let offset = (at - self.start) as u32;
        let held = self.rows.iter().rev().find(|(start, _)| *start <= offset);
        let behind = self.rows.iter().filter(|(start, _)| *start > offset);
        let rows = held.map(|(_, rule)| (0, *rule)).into_iter();
        let rest = Function {
            start: at,
            size: self.size - offset,
            repeat: None,
            signal: self.signal,
            rows: rows
                .chain(behind.map(|(start, rule)| (start - offset, *rule)))
                .collect(),
        };
        self.cut(at);
        rest
    }
}

/// The code of a file: its executable segments.
#[derive(Clone, Debug)]
pub struct Code<'a> {
    /// First link-time address, the one behind the last, and what is in the file.
    segments: Vec<(u64, u64, &'a [u8])>,
}

impl<'a> Code<'a> {
    /// That of an ELF file for AMD64.
    ///
    /// # Errors
    ///
    /// [`Error::NotElf`], [`Error::Machine`], [`Error::NoCode`].
    pub fn of(bytes: &'a [u8]) -> Result<Code<'a>, Error> {
        Code::of_elf(&parse(bytes)?)
    }

    fn of_elf(file: &ElfFile64<'a, Endianness>) -> Result<Code<'a>, Error> {
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
            return Err(Error::NoCode);
        }
        Ok(Code { segments })
    }

    /// The code from a link-time address on.
    fn at(&self, address: u64) -> &'a [u8] {
        let mut segments = self.segments.iter();
        segments
            .find_map(|(start, _, bytes)| {
                bytes.get(usize::try_from(address.checked_sub(*start)?).ok()?..)
            })
            .unwrap_or_default()
    }

    /// The instructions from one address to another.
    fn instructions(&self, start: u64, end: u64) -> impl Iterator<Item = Instruction> + 'a {
        let bytes = self.at(start);
        let len = usize::try_from(end - start).unwrap_or(usize::MAX);
        let bytes = &bytes[..len.min(bytes.len())];
        Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter()
    }

    /// Whether all is code from the first address to the last.
    fn holds(&self, first: u64, last: u64) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|(start, end, _)| *start <= first && first <= last && last < *end)
    }
}

fn parse(bytes: &[u8]) -> Result<ElfFile64<'_, Endianness>, Error> {
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(Error::NotElf)?;
    if file.architecture() != object::Architecture::X86_64 || file.endian() != Endianness::Little {
        return Err(Error::Machine);
    }
    Ok(file)
}

/// Makes a section of the .eh_frame of an ELF file, or of an image of one, as the vDSO is; of what Go
/// knows of its functions; and of what code tells of which nothing else does.
///
/// # Errors
///
/// See [`Error`].
pub fn convert(bytes: &[u8]) -> Result<Converted, Error> {
    let file = parse(bytes)?;
    let code = Code::of_elf(&file)?;
    let (mut functions, mut report) = go::functions(&file, &code);
    let is_go = !functions.is_empty();
    let table = match dwarf::Table::find(&file) {
        Ok(table) => Some(table),
        Err(Error::NoTable) if is_go => None,
        Err(error) => return Err(error),
    };
    let mut spoken_of = Vec::new();
    if let Some(table) = table {
        report.eh_frame = table.len();
        let entries = table.entries(&code)?;
        by_entries(&table, &entries, &mut functions, &mut report);
        leaving::say_leaving(&mut functions, &code);
        saved::say_calls(&mut functions, &table, &entries, &code);
        // What cannot be said is not guessed either.
        spoken_of.extend(
            entries
                .iter()
                .map(|entry| entry.initial_address()..entry.end_address()),
        );
    }
    order(&mut functions);
    begin(&mut functions, file.entry(), &code);
    for section in [".init", ".fini"] {
        if let Some(section) = file.section_by_name(section) {
            begin_and_end(&mut functions, section.address(), &code);
        }
    }
    spoken_of.extend(
        functions
            .iter()
            .map(|function| function.start..function.end()),
    );
    // Go knows all of its functions, and why it does not tell of some.
    if !is_go {
        let gaps = gaps(&file, spoken_of);
        let found = code::functions(&gaps, &symbols(&file), file.entry(), &code);
        report.by_code = found.iter().map(|function| u64::from(function.size)).sum();
        functions.extend(found);
        order(&mut functions);
    }
    let mut extra_rows = Vec::new();
    functions.retain(|function| {
        let row = match function.rows[..] {
            [(0, rule)] if rule.cfa.plus != 0 => {
                write::extra_rows(function.start, function.size, &rule)
            }
            _ => None,
        };
        extra_rows.extend(row.into_iter().flatten());
        report.extra_rows += u32::from(row.is_some());
        row.is_none()
    });
    let section = write::section(&functions, &mut report)?;
    Ok(Converted {
        section,
        extra_rows,
        report,
    })
}

/// What a file's sections hold of code that lies in none of the ranges `spoken_of`. PLTs are told from
/// by linkers, or not at all.
fn gaps(file: &ElfFile64<'_, Endianness>, mut spoken_of: Vec<Range<u64>>) -> Vec<Range<u64>> {
    spoken_of.sort_by_key(|range| range.start);
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
        for range in &spoken_of {
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

/// Where symbols say that functions begin.
fn symbols(file: &ElfFile64<'_, Endianness>) -> BTreeSet<u64> {
    file.symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .map(|symbol| symbol.address())
        .collect()
}

/// Makes a section of what the code alone tells, as if nothing else told of it: for who wants to know
/// how true that is.
///
/// # Errors
///
/// See [`Error`].
pub fn convert_code(bytes: &[u8]) -> Result<Converted, Error> {
    let file = parse(bytes)?;
    let code = Code::of_elf(&file)?;
    let mut report = Report::default();
    let functions = code::functions(
        &gaps(&file, Vec::new()),
        &BTreeSet::new(),
        file.entry(),
        &code,
    );
    Ok(Converted {
        section: write::section(&functions, &mut report)?,
        extra_rows: Vec::new(),
        report,
    })
}

/// Entry by entry, side by side: most of the time goes there.
fn by_entries<'a>(
    table: &dwarf::Table<'a>,
    entries: &[dwarf::Entry<'a>],
    functions: &mut Vec<Function>,
    report: &mut Report,
) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let each = entries.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let parts: Vec<_> = entries
            .chunks(each)
            .map(|part| scope.spawn(|| table.functions(part)))
            .collect();
        for part in parts {
            let (found, its) = part.join().expect("reading entries does not panic");
            functions.extend(found);
            report.add(&its);
        }
    });
}

/// How a program begins: what it was started with is where the stack pointer is. As in ld.so, and in
/// musl, where that register's end of the chain comes first.
const BEGINNINGS: [&[u8]; 3] = [
    b"\x48\x89\xe7",             // mov %rsp,%rdi
    b"\x31\xed\x48\x89\xe7",     // xor %ebp,%ebp; mov %rsp,%rdi
    b"\x48\x31\xed\x48\x89\xe7", // xor %rbp,%rbp; mov %rsp,%rdi
];

/// The most code that a program begins with, in bytes. ld.so has 61.
pub const MAX_BEGINNING: u64 = 96;

/// Nothing has called what a program begins with. Where that is written by hand no entry says so.
fn begin(functions: &mut Vec<Function>, entry: u64, code: &Code<'_>) {
    let begins = BEGINNINGS
        .iter()
        .any(|bytes| code.at(entry).starts_with(bytes));
    if begins {
        let size = MAX_BEGINNING.min(code.at(entry).len() as u64);
        insert(functions, entry, size as u32, vec![(0, Rule::OUTERMOST)]);
    }
}

/// What files are linked with to be called first and last, `_init` and `_fini` of crti.o and crtn.o,
/// and of which no entry tells: `sub $8,%rsp`, calls, `add $8,%rsp; ret`.
fn begin_and_end(functions: &mut Vec<Function>, address: u64, code: &Code<'_>) {
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

/// Has it said what nothing says yet, as far as that goes.
fn insert(functions: &mut Vec<Function>, start: u64, size: u32, rows: Vec<(u32, Rule)>) {
    let next = functions.partition_point(|function| function.start <= start);
    if next > 0 && functions[next - 1].end() > start {
        return;
    }
    let mut function = Function {
        start,
        size,
        repeat: None,
        signal: false,
        rows,
    };
    if let Some(next) = functions.get(next) {
        function.cut(next.start);
    }
    functions.insert(next, function);
}

/// Sorts functions, and cuts what lies over another one: the one that begins last has it.
fn order(functions: &mut Vec<Function>) {
    functions.retain(|function| function.size != 0);
    functions.sort_by_key(|function| function.start);
    let mut next = u64::MAX;
    for function in functions.iter_mut().rev() {
        function.cut(next);
        next = function.start;
    }
    functions.retain(|function| function.size != 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use sframe::{
        rule::Cfa,
        section::{
            Search,
            Section, //
        },
    };

    fn function(start: u64, size: u32, rows: &[(u32, Rule)]) -> Function {
        Function {
            start,
            size,
            repeat: None,
            signal: false,
            rows: rows.to_vec(),
        }
    }

    #[test]
    fn nothing_has_called_what_a_program_begins_with() {
        let mut text = vec![0x90; 0x200];
        text[0x80..0x83].copy_from_slice(b"\x48\x89\xe7");
        text[0x180..0x186].copy_from_slice(b"\x48\x31\xed\x48\x89\xe7");
        let code = Code {
            segments: vec![(0x1000, 0x1200, &text)],
        };
        let rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);
        let others = [
            function(0x1000, 0x40, &[(0, rule)]),
            function(0x10a0, 0x20, &[(0, rule)]),
        ];
        let begun = |entry| {
            let mut functions = others.to_vec();
            begin(&mut functions, entry, &code);
            order(&mut functions);
            functions
                .into_iter()
                .find(|function| function.rows[0].1.is_outermost())
                .map(|function| (function.start, function.size))
        };
        assert_eq!(begun(0x1080), Some((0x1080, 0x20)));
        assert_eq!(begun(0x1180), Some((0x1180, 0x60)));
        // Begins otherwise, has an entry, is nowhere.
        assert_eq!(begun(0x1081), None);
        assert_eq!(begun(0x1000), None);
        assert_eq!(begun(0), None);
        text[..3].copy_from_slice(b"\x48\x89\xe7");
        let code = Code {
            segments: vec![(0x1000, 0x1200, &text)],
        };
        let mut functions = others.to_vec();
        begin(&mut functions, 0x1000, &code);
        assert_eq!(functions, others);
    }

    #[test]
    fn what_is_called_first_and_last_has_rows() {
        // As in Debian 13's libcrypto, and as compilers that mark what is jumped to have it.
        let init = b"\x48\x83\xec\x08\x48\x8b\x05\x01\x02\x03\x04\x48\x85\xc0\x74\x02\xff\xd0\
            \xe8\x01\x02\x03\x04\x48\x83\xc4\x08\xc3";
        let fini = b"\xf3\x0f\x1e\xfa\x48\x83\xec\x08\x48\x83\xc4\x08\xc3";
        let made = |text: &[u8]| {
            let code = Code {
                segments: vec![(0x1000, 0x1000 + text.len() as u64, text)],
            };
            let mut functions = Vec::new();
            begin_and_end(&mut functions, 0x1000, &code);
            functions
        };
        let rows = [(0, plain(8)), (4, plain(16)), (27, plain(8))];
        assert_eq!(made(init), [function(0x1000, 28, &rows)]);
        let rows = [(0, plain(8)), (8, plain(16)), (12, plain(8))];
        assert_eq!(made(fini), [function(0x1000, 13, &rows)]);
        // Each byte of the instructions counts, and each of them.
        for byte in (0..4).chain(4..7).chain(11..19).chain(23..28) {
            let mut other = *init;
            other[byte] ^= 0x10;
            assert_eq!(made(&other), [], "{byte}");
            assert_eq!(made(&init[..byte]), [], "{byte}");
        }
        // What an entry tells is left.
        let mut functions = vec![function(0xff0, 0x11, &[(0, plain(24))])];
        let code = Code {
            segments: vec![(0x1000, 0x101c, init)],
        };
        begin_and_end(&mut functions, 0x1000, &code);
        assert_eq!(functions.len(), 1);
    }

    /// Writes, and reads again.
    fn written(functions: &[Function]) -> (Vec<u8>, Section, Report) {
        let mut report = Report::default();
        let bytes = write::section(functions, &mut report).unwrap();
        let section = Section::open(&bytes[..], 0, bytes.len() as u64).unwrap();
        section.verify(&bytes[..]).unwrap();
        (bytes, section, report)
    }

    fn found(functions: &[Function], pc: u64) -> Option<Rule> {
        let (bytes, section, _) = written(functions);
        section.find(&bytes[..], pc, Search::Bounded).unwrap()
    }

    fn plain(offset: i32) -> Rule {
        Rule::amd64(Base::Sp, offset, Location::Unchanged)
    }

    #[test]
    fn each_rule_is_read_as_it_was_written() {
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
        let mut places = vec![Location::Unchanged];
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
                    for ra in [Location::AtCfa(-8), Location::AtCfa(-16), places[2]] {
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
    fn what_no_row_can_tell_is_known() {
        assert!(write::can_say(&plain(8)));
        for fp in [Location::Undefined, Location::OfCfa(0)] {
            assert!(!write::can_say(&Rule { fp, ..plain(8) }));
        }
        let ra = Location::OfCfa(-8);
        assert!(!write::can_say(&Rule { ra, ..plain(8) }));
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
    fn of_two_that_overlap_the_later_one_counts() {
        let mut functions = vec![
            function(0x1020, 0x10, &[(0, plain(16))]),
            function(0x1000, 0x100, &[(0, plain(8)), (0x30, plain(24))]),
            function(0x1020, 0, &[]),
        ];
        order(&mut functions);
        assert_eq!(functions.len(), 2);
        assert_eq!(found(&functions, 0x101f), Some(plain(8)));
        assert_eq!(found(&functions, 0x1020), Some(plain(16)));
        // Nobody knows whose it is.
        assert_eq!(found(&functions, 0x1030), None);
    }

    #[test]
    fn blocks_are_repeated() {
        let functions = [Function {
            repeat: Some(16),
            ..function(0x1010, 64, &[(0, plain(8)), (11, plain(16))])
        }];
        for at in 0..64 {
            let offset = if at % 16 < 11 { 8 } else { 16 };
            assert_eq!(found(&functions, 0x1010 + at), Some(plain(offset)));
        }
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(matches!(convert(b""), Err(Error::NotElf(_))));
        assert!(matches!(convert(&[0; 100]), Err(Error::NotElf(_))));
    }
}
