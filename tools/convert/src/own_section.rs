// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rows of the file's own SFrame section, for code that no other source covers. Assemblers leave
//! functions out of their sections, so such a section is not enough.

use sframe::{
    abi::Abi,
    elf,
    error::Error,
    fde::Function,
    rule::{
        Extra,
        Rule,
        SavedRbx, //
    },
    section::{
        Search,
        Section, //
    }, //
};

use crate::{
    code::CodeBytes,
    encode,
    function::{
        sort_and_trim,
        ConvertedFunction, //
    },
    report::{
        DropReason,
        Report, //
    },
    work::ConversionWork, //
};

/// The steps of work that a row takes. Each has two bytes at least, but functions may share rows.
const ROW_STEPS: u64 = 4;

/// The functions of the file's own section that share no code with `others`, which are sorted and
/// do not overlap. A section that cannot be read has none from there on.
pub(crate) fn functions(
    bytes: &[u8],
    others: &[ConvertedFunction],
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
    report: &mut Report,
) -> Vec<ConvertedFunction> {
    let mut found = Vec::new();
    // What is read up to an error is right.
    let _ = read(bytes, code, work, report, |function| {
        let next = others.partition_point(|other| other.start < function.end());
        let before = others[..next].last();
        if before.is_none_or(|other| other.end() <= function.start) {
            found.push(function);
        }
    });
    sort_and_trim(&mut found);
    found
}

/// Calls `add` for each function of the file's own section whose rows can be encoded.
fn read(
    bytes: &[u8],
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
    report: &mut Report,
    mut add: impl FnMut(ConvertedFunction),
) -> Result<(), Error> {
    let Ok(Some(place)) = elf::section_of_file(bytes) else {
        return Ok(());
    };
    let start = usize::try_from(place.offset).unwrap_or(usize::MAX);
    let bytes = bytes.get(start..).unwrap_or_default();
    let len = usize::try_from(place.filesz).unwrap_or(usize::MAX);
    let bytes = &bytes[..len.min(bytes.len())];
    let mut first = Section::open_for(bytes, place.vaddr, bytes.len() as u64, Abi::Amd64)?;
    first.settle_starts(bytes, |at| code.holds(at, at))?;
    let mut next = Some(first);
    while let Some(section) = next {
        for function in section.functions(bytes) {
            let function = function?;
            let last = u64::from(function.size()).wrapping_sub(1);
            let last = function.start().wrapping_add(last);
            let is_code = function.size() != 0 && code.holds(function.start(), last);
            if !work.take(1 + ROW_STEPS * u64::from(function.num_rows())) {
                report.count_dropped(DropReason::WorkLimit, function.size().into());
                return Ok(());
            }
            if is_code {
                let rows = rows(bytes, &section, &function)?;
                if rows.iter().all(|(_, rule)| encode::can_encode(rule)) && !rows.is_empty() {
                    add(ConvertedFunction {
                        start: function.start(),
                        size: function.size(),
                        repeat: function.repeat().map(u8::from),
                        signal: function.is_signal(),
                        rbx: SavedRbx::UNKNOWN,
                        rows,
                    });
                }
            }
        }
        next = section.next(bytes)?;
    }
    Ok(())
}

/// The rows of a function. If it has none, a reader makes one rule, which is one row here.
fn rows(bytes: &[u8], section: &Section, function: &Function) -> Result<Vec<(u32, Rule)>, Error> {
    let plain = |rule| Rule {
        extra: Extra::NONE,
        ..rule
    };
    if function.num_rows() == 0 {
        let rule = section.find_rule(bytes, function, function.start(), Search::Thorough)?;
        return Ok(rule.into_iter().map(|rule| (0, plain(rule))).collect());
    }
    let rows = section.rows(bytes, function);
    let rows = rows.map(|row| row.map(|row| (row.start, plain(row.rule))));
    let mut rows: Vec<_> = rows.collect::<Result<_, _>>()?;
    rows.retain(|(start, _)| *start < function.size());
    Ok(rows)
}
