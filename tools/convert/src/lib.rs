// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Makes an SFrame section, version 3, from a file's .eh_frame or from Go's pclntab; for code that
//! neither covers, from the file's own SFrame section, and from the instructions.
//!
//! The section is not part of the file. Its address is 0, so that a reader looks up link-time
//! addresses.
//!
//! Each row encodes its rule exactly. A rule that SFrame cannot encode is dropped: the section has
//! no function for that code, and the [`Report`] counts the reason.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod analysis;
mod callee_saved;
mod code;
mod debug_frame;
mod eh_frame;
mod eh_return;
mod encode;
mod entries;
mod frame_pointers;
mod function;
mod headers;
mod other_stack;
mod own_section;
mod plt;
mod report;
#[cfg(test)]
#[path = "../../../rust/sframe/tests/support/requirement.rs"]
mod requirement;
mod runtimes;
mod saved_rbx;
mod startup;
mod table;
mod trampolines;
mod undefined;
mod work;

pub use self::{
    code::CodeBytes,
    frame_pointers::{
        FramePointers,
        SampledCalls, //
    },
    headers::MAX_HEADERS,
    report::{
        ConvertError,
        Converted,
        DropReason,
        DroppedRow,
        Report, //
    },
    startup::MAX_ENTRY_POINT,
    table::OwnedTable,
    work::max_steps, //
};

use self::{
    frame_pointers::UncoveredCode,
    function::{
        size_of_all,
        sort_and_trim,
        ConvertedFunction, //
    },
    startup::{
        add_entry_point,
        add_init_or_fini, //
    },
    work::ConversionWork, //
};

use std::{
    collections::BTreeSet,
    ops::Range,
    thread, //
};

use iced_x86::{
    FlowControl,
    Instruction, //
};
use object::{
    read::elf::ElfFile64,
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
        SavedRbx, //
    },
    x86_64::registers, //
};

/// A number for all that decides which rows are made, as another number may make other rows: the
/// sources of this crate and of the core, and the versions of other crates.
pub const SOURCES: &str = env!("CONVERT_SOURCES");

fn parse(bytes: &[u8]) -> Result<ElfFile64<'_, Endianness>, ConvertError> {
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(ConvertError::NotElf)?;
    if file.architecture() != object::Architecture::X86_64 || file.endian() != Endianness::Little {
        return Err(ConvertError::Machine);
    }
    headers::check(&file, bytes.len())?;
    Ok(file)
}

/// Converts an ELF file, or an image of an ELF file such as the vDSO: .eh_frame, .debug_frame, the
/// pclntab of a Go program, the file's own section, and the instructions of code that none of these
/// covers.
///
/// # Errors
///
/// See [`ConvertError`].
pub fn convert(bytes: &[u8]) -> Result<Converted, ConvertError> {
    let file = parse(bytes)?;
    let code = CodeBytes::of_elf(&file)?;
    let mut work = ConversionWork::new(bytes);
    let (mut functions, mut report) = runtimes::listed(&file, &code, &mut work);
    let has_list = runtimes::has_list(&file);
    let eh_frame = match eh_frame::EhFrameTable::find(&file) {
        Ok(eh_frame) => Some(eh_frame),
        Err(ConvertError::NoUnwindInfo) => None,
        Err(error) => return Err(error),
    };
    let mut covered = Vec::new();
    if let Some(eh_frame) = eh_frame {
        report.eh_frame = eh_frame.len();
        // Code whose rows are dropped is not analysed either.
        let entries;
        (entries, covered) = eh_frame.entries(&code, &mut work, &mut report)?;
        convert_entries(&eh_frame, &entries, &code, &mut functions, &mut report);
        sort_and_trim(&mut functions);
        eh_return::add_rows(&mut functions, &code);
        runtimes::correct(&mut functions, &code);
        callee_saved::add_rows(
            &mut functions,
            &eh_frame,
            &entries,
            &code,
            &mut work,
            &mut report,
        );
        if !has_list {
            other_stack::mark_rows(&mut functions, &code, &mut work, &mut report);
        }
    }
    let debug_frame = match has_list {
        true => Vec::new(),
        false => debug_frame::as_eh_frame(&file),
    };
    if !debug_frame.is_empty() {
        let table = eh_frame::EhFrameTable::of_absolute(&debug_frame);
        let (mut entries, more) = table.entries(&code, &mut work, &mut report)?;
        covered.sort_by_key(|range: &Range<u64>| range.start);
        entries.retain(|entry| {
            let behind = covered.partition_point(|range| range.start <= entry.start());
            behind == 0 || covered[behind - 1].end <= entry.start()
        });
        convert_entries(&table, &entries, &code, &mut functions, &mut report);
        covered.extend(more);
    }
    sort_and_trim(&mut functions);
    add_entry_point(&mut functions, file.entry(), &code);
    for section in [".init", ".fini"] {
        if let Some(section) = file.section_by_name(section) {
            add_init_or_fini(&mut functions, section.address(), &code);
        }
    }
    for section in plt::SECTIONS {
        if let Some(section) = file.section_by_name(section) {
            plt::add_stubs(&mut functions, section.address(), section.size(), &code);
        }
    }
    let own = own_section::functions(bytes, &functions, &code, &mut work, &mut report);
    report.own_section = size_of_all(&own);
    functions.extend(own);
    sort_and_trim(&mut functions);
    covered.extend(
        functions
            .iter()
            .map(|function| function.start..function.end()),
    );
    // Listed functions that got no rows must stay without rows.
    if !has_list {
        let mut gaps = gaps(&file, &code, covered, &mut work, &mut report);
        if let Some(found) = runtimes::in_gaps(&file, &gaps, &code, &mut work) {
            // This code has no functions as the analysis below knows them.
            gaps = found.unused;
            report.analyzed_code = size_of_all(&found.functions);
            functions.retain(|function| function.start != found.run.start);
            functions.push(found.run);
            functions.extend(found.functions);
        }
        let uncovered = UncoveredCode::of(&gaps, &code);
        report.uncovered = uncovered.calls(&mut work);
        let mut starts = symbols(&file);
        if report.keeps_frame_pointers() && uncovered.len() > analysis::MAX_GAP {
            let mut found = || {
                let islands = uncovered.islands(&mut work)?;
                let functions = uncovered.functions_in(&islands, &mut work)?;
                Some((islands, functions))
            };
            let (islands, functions) = found().unwrap_or_else(|| {
                report.count_dropped(DropReason::WorkLimit, uncovered.len());
                Default::default()
            });
            gaps = islands;
            starts.extend(functions);
        }
        let found =
            analysis::functions(&gaps, &starts, file.entry(), &code, &mut work, &mut report);
        report.analyzed_code += size_of_all(&found);
        functions.extend(found);
        sort_and_trim(&mut functions);
    }
    // Where a listed function changes stacks in its middle, no return address leads to.
    if !has_list {
        trampolines::add_rows(&mut functions, file.entry(), &code);
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
    let has_rows = !functions.is_empty() || !extra_rows.is_empty();
    if !has_rows && report.eh_frame == 0 && !report.keeps_frame_pointers() {
        return Err(ConvertError::NoUnwindInfo);
    }
    let section = encode::section(&functions, &mut report)?;
    report.steps = work.taken();
    Ok(Converted {
        section,
        extra_rows,
        report,
    })
}

/// The rows of .eh_frame that [`convert`] drops and that no row of another origin replaces; and the
/// rows whose rules cannot be used in frames that have called.
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
        // It has no row that could be dropped.
        Err(ConvertError::NoUnwindInfo) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let table = OwnedTable::new(&converted.section, &converted.extra_rows, &code).ok();
    let rule_at = |at| table.as_ref()?.table().find(at);
    let (entries, _) = eh_frame.entries(
        &code,
        &mut ConversionWork::new(bytes),
        &mut Report::default(),
    )?;
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

/// The ranges of the code sections that are not `covered`; of the code, if the file has no section
/// headers. PLTs are skipped: only the linker makes rows for them. Takes a step for each section,
/// and for each covered range in each section.
fn gaps(
    file: &ElfFile64<'_, Endianness>,
    code: &CodeBytes<'_>,
    mut covered: Vec<Range<u64>>,
    work: &mut ConversionWork,
    report: &mut Report,
) -> Vec<Range<u64>> {
    merge(&mut covered);
    let mut sections: Vec<_> = file
        .sections()
        .filter(|section| {
            let name = section.name().unwrap_or_default();
            section.kind() == SectionKind::Text && !name.starts_with(".plt")
        })
        .map(|section| section.address()..section.address().saturating_add(section.size()))
        .collect();
    if file.elf_section_table().is_empty() {
        let segments = code.segments.iter();
        let in_file = segments.map(|(start, _, bytes)| *start..*start + bytes.len() as u64);
        sections = in_file.collect();
    }
    sections.sort_by_key(|section| section.start);
    let mut found = Vec::new();
    let mut at = 0;
    for Range { start, end } in sections {
        // Sections may overlap.
        at = start.max(at);
        let next = covered.partition_point(|range| range.end <= at);
        for range in covered[next..].iter().take_while(|range| range.start < end) {
            if !work.take(1) {
                report.count_dropped(DropReason::WorkLimit, end - at);
                return found;
            }
            if at < range.start {
                found.push(at..range.start);
            }
            at = range.end;
        }
        if at < end {
            found.push(at..end);
            at = end;
        }
    }
    found
}

/// Sorts ranges, and makes one of those that overlap or touch.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|range, before| {
        let is_apart = before.end < range.start;
        if !is_apart {
            before.end = before.end.max(range.end);
        }
        !is_apart
    });
}

/// The addresses of function symbols.
fn symbols(file: &ElfFile64<'_, Endianness>) -> BTreeSet<u64> {
    file.symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .map(|symbol| symbol.address())
        .collect()
}

/// Converts only by instruction analysis, as if the file had no unwind information. Tests use this
/// to compare the analysis with .eh_frame.
///
/// # Errors
///
/// See [`ConvertError`].
pub fn convert_code(bytes: &[u8]) -> Result<Converted, ConvertError> {
    let file = parse(bytes)?;
    let code = CodeBytes::of_elf(&file)?;
    let mut report = Report::default();
    let mut work = ConversionWork::new(bytes);
    let gaps = gaps(&file, &code, Vec::new(), &mut work, &mut report);
    report.uncovered = UncoveredCode::of(&gaps, &code).calls(&mut work);
    let functions = analysis::functions(
        &gaps,
        &BTreeSet::new(),
        file.entry(),
        &code,
        &mut work,
        &mut report,
    );
    report.steps = work.taken();
    Ok(Converted {
        section: encode::section(&functions, &mut report)?,
        extra_rows: Vec::new(),
        report,
    })
}

/// Converts entries in parallel, because this takes most of the time of a conversion.
fn convert_entries<'a>(
    eh_frame: &eh_frame::EhFrameTable<'a>,
    entries: &[entries::EhFrameEntry<'a>],
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::tests::{
        function,
        plain, //
    };
    use sframe::{
        rule::{
            Cfa,
            Location,
            Rule, //
        },
        section::{
            Search,
            Section, //
        },
    };

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
        let mut places = vec![Location::Unchanged, Location::LOST];
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
