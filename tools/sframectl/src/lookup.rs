// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl lookup`: the rule for a PC, and the rule's source.

use std::fmt::Write;

use sframe::{
    abi::Abi,
    fde::Function,
    rule::Rule,
    section::{
        Search,
        Section, //
    },
    x86_64::{
        rule_of_stub,
        STUB, //
    }, //
};

use crate::{
    file::{
        FileKind, //
        InputFile,
    },
    raw::{
        self,
        Raw, //
    },
    readelf_notation::{
        self,
        contradiction,
        explain,
        RuleText, //
    }, //
};

/// An address to look up.
struct LookupTarget {
    address: u64,
    /// In relocatable files, the index of the code area; `None` selects all areas.
    area: Option<usize>,
}

/// The text to print, and whether there is a rule for each of `pcs`.
pub(crate) fn run(file: &InputFile, pcs: &[String]) -> Result<(String, bool), String> {
    let (blobs, stop) = file.blobs();
    if let Some((offset, what)) = stop {
        return Err(format!("offset {offset:#x} of .sframe: {what}"));
    }
    let sections: Vec<Section> = blobs.iter().map(|blob| blob.section).collect();
    let mut text = String::new();
    let mut all = true;
    for pc in pcs {
        for target in targets(file, pc)? {
            all &= look_up(file, &sections, pc, &target, &mut text)?;
        }
    }
    Ok((text, all))
}

/// All addresses that `pc` may refer to: several functions may have one name.
fn targets(file: &InputFile, pc: &str) -> Result<Vec<LookupTarget>, String> {
    if let Some(address) = number(pc) {
        return Ok(vec![LookupTarget {
            address,
            area: None,
        }]);
    }
    let (name, offset) = match pc.rsplit_once('+') {
        Some((name, offset)) => (name, number(offset)),
        None => (pc, Some(0)),
    };
    let Some(offset) = offset else {
        return Err(format!(
            "{pc}: expected 0xHEX, a decimal number, SYMBOL or SYMBOL+OFFSET"
        ));
    };
    let mut found: Vec<(Option<usize>, u64)> = file
        .symbols
        .iter()
        .filter(|symbol| symbol.name == name)
        .map(|symbol| (symbol.area, symbol.address.wrapping_add(offset)))
        .collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Err(format!(
            "there is no function {name} (a stripped file has no names: use an address)"
        ));
    }
    Ok(found
        .into_iter()
        .map(|(area, address)| LookupTarget { address, area })
        .collect())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A function that covers a PC.
struct Hit {
    blob: usize,
    index: u32,
    function: Function,
    area: Option<usize>,
}

/// Appends the rule at `target` to `text`. Returns whether there is one.
fn look_up(
    file: &InputFile,
    sections: &[Section],
    name: &str,
    target: &LookupTarget,
    text: &mut String,
) -> Result<bool, String> {
    let bytes = &file.bytes[..];
    let pc = target.address;
    let mut hits: Vec<Hit> = Vec::new();
    for (blob, section) in sections.iter().enumerate() {
        for index in 0..section.num_fdes() {
            let function = section.function(bytes, index).map_err(|error| {
                let (offset, what) = explain(error, section.entry_offset(index));
                format!("offset {offset:#x} of .sframe: {what}")
            })?;
            let area = file.area_of(section, index);
            if !function.covers(pc) || (target.area.is_some() && target.area != area) {
                continue;
            }
            // Of overlapping functions the one that starts last applies, as in the core.
            match hits.iter_mut().find(|hit| hit.area == area) {
                Some(hit) if hit.function.start() >= function.start() => {}
                Some(hit) => {
                    *hit = Hit {
                        blob,
                        index,
                        function,
                        area,
                    }
                }
                None => hits.push(Hit {
                    blob,
                    index,
                    function,
                    area,
                }),
            }
        }
    }
    let same = number(name) == Some(pc) && name.starts_with("0x");
    let title = if same {
        String::new()
    } else {
        format!(" = {pc:#x}")
    };
    if hits.is_empty() {
        let why = match sections {
            [] => "the file has no SFrame section",
            _ => "no function of the section covers the PC",
        };
        let _ = writeln!(text, "{name}{title}: no rule: {why}");
        return Ok(false);
    }
    let mut all = true;
    for hit in &hits {
        let _ = write!(text, "{name}{title}");
        if let Some(area) = hit.area {
            let _ = write!(text, " in {}", file.areas[area].name);
        }
        text.push_str(":\n");
        let section = &sections[hit.blob];
        all &= describe(file, section, pc, hit, text)
            .map_err(|(offset, what)| format!("offset {offset:#x} of .sframe: {what}"))?;
    }
    Ok(all)
}

/// Appends the rule of `hit` at `pc` to `text`. Returns whether there is one.
fn describe(
    file: &InputFile,
    section: &Section,
    pc: u64,
    hit: &Hit,
    text: &mut String,
) -> Result<bool, (u64, String)> {
    let bytes = &file.bytes[..];
    let (function, abi) = (&hit.function, section.abi());
    let entry = section.entry_offset(hit.index);
    let offset = pc.wrapping_sub(function.start());
    let offset = match function.repeat() {
        Some(block) => offset % u64::from(block.get()),
        None => offset,
    };
    let by_rows = section
        .find_rule(bytes, function, pc, Search::Thorough)
        .map_err(|error| explain(error, entry))?;
    let mut row = None;
    let raw_rows = raw::rows(Raw::of(bytes, section), function);
    for (index, (decoded, raw)) in section.rows(bytes, function).zip(raw_rows).enumerate() {
        let decoded = decoded.map_err(|error| explain(error, entry))?;
        if u64::from(decoded.start) > offset {
            break;
        }
        row = Some((index, decoded, raw));
    }
    // If the row does not contradict the instructions, the row is shown.
    let by_instructions = stub_rule(file, abi, function, pc).and_then(|rule| match &by_rows {
        Some(row) => contradiction(abi, row, &rule).map(|(row, _)| (rule, row)),
        None => Some((rule, "nothing".to_owned())),
    });

    let rule = match (&by_instructions, &row, &by_rows) {
        (Some((rule, _)), _, _) => Some(RuleText::of_rule(abi, rule)),
        (None, Some((_, decoded, raw)), Some(_)) => {
            Some(RuleText::of_row(section, function, raw, &decoded.rule))
        }
        (None, _, rule) => rule.as_ref().map(|rule| RuleText::of_rule(abi, rule)),
    };
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "  {name:<9} {what}");
    };
    match &rule {
        Some(RuleText {
            cfa: Some(cfa),
            fp: Some(fp),
            ra,
        }) => line("rule", format!("cfa {cfa}, fp {fp}, ra {ra}")),
        Some(_) => line(
            "rule",
            "RA undefined: the outermost frame, without a caller".into(),
        ),
        None => {
            let why = match function.num_rows() {
                0 if function.is_signal() => "a signal trampoline without rows",
                0 => "the function has no rows",
                _ => "the function's first row starts after the PC",
            };
            line("no rule", why.into());
        }
    }
    if let Some((_, of_row)) = by_instructions {
        line(
            "source",
            format!(
                "instructions of the PLT stub, for the innermost frame; the row has {of_row} \
                 (GNU ld writes wrong rows for some stubs)"
            ),
        );
    }
    match &row {
        Some((index, decoded, raw)) => line(
            "row",
            format!(
                "{index} of {} at .sframe+{:#x}, from {:#x}",
                function.num_rows(),
                raw.at,
                match function.repeat() {
                    Some(_) => u64::from(decoded.start),
                    None => function.start().wrapping_add(decoded.start.into()),
                }
            ),
        ),
        None => line("row", format!("none of {}", function.num_rows())),
    }
    let mut notes = String::new();
    if let Some(block) = function.repeat() {
        notes += &format!(", pcmask: {offset:#x} bytes into a block of {block}");
    }
    if function.is_flexible() {
        notes += ", flexible";
    }
    if function.is_signal() {
        notes += ", signal trampoline";
    }
    line(
        "function",
        format!(
            "{} at .sframe+{entry:#x}: {:#x}, {} bytes{notes}",
            hit.index,
            function.start(),
            function.size()
        ),
    );
    let flags = readelf_notation::flags(section.flags());
    line(
        "blob",
        format!(
            "{} at .sframe+{:#x}: version {}, {}, flags {}",
            hit.blob,
            section.offset(),
            section.version().number(),
            readelf_notation::abi(abi),
            if flags.is_empty() {
                "none".into()
            } else {
                flags.join(", ")
            }
        ),
    );
    if file.relocated.is_empty() {
        let found = section.find_function(bytes, pc, Search::Thorough);
        if found != Ok(Some(*function)) {
            line(
                "warning",
                "a binary search does not find the function: the functions are unsorted or overlap"
                    .into(),
            );
        }
    }
    Ok(rule.is_some())
}

/// The rule from the instructions of a PLT stub, if `pc` lies in one.
pub(crate) fn stub_rule(file: &InputFile, abi: Abi, function: &Function, pc: u64) -> Option<Rule> {
    if abi != Abi::Amd64 || file.kind != FileKind::Linked {
        return None;
    }
    let (stub, offset) = function.stub(pc)?;
    let code: [u8; STUB] = file.code(stub)?;
    rule_of_stub(&code, offset)
}
