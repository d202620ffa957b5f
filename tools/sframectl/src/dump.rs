// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl dump`: prints all functions and rows.

use std::fmt::Write;

use serde::Serialize;
use sframe::section::Section;

use crate::{
    file::{
        check_rows,
        InputFile, //
    },
    raw::{
        self,
        Raw, //
    },
    readelf_notation::{
        self,
        explain,
        RuleText, //
    }, //
};

/// The output of `--json`.
#[derive(Serialize)]
struct Dump {
    blobs: Vec<JsonSection>,
}

/// One complete section. A linker without SFrame support concatenates several.
#[derive(Serialize)]
struct JsonSection {
    /// The offset in the ELF section, in bytes.
    offset: u32,
    version: u8,
    flags: Vec<&'static str>,
    abi: &'static str,
    functions: Vec<JsonFunction>,
    #[serde(skip)]
    fixed: (i8, i8),
}

#[derive(Serialize)]
struct JsonFunction {
    start: u64,
    /// In bytes.
    size: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    pc_type: &'static str,
    /// The size of a repeated block, in bytes; 0 for pcinc.
    rep_size: u8,
    signal: bool,
    rows: Vec<JsonRow>,
    /// The section of code, in relocatable files.
    #[serde(skip)]
    area: Option<String>,
    #[serde(skip)]
    key_b: bool,
}

#[derive(Serialize)]
struct JsonRow {
    pc: u64,
    cfa: Option<String>,
    ra: String,
    fp: Option<String>,
}

/// The text to print.
pub(crate) fn run(file: &InputFile, json: bool) -> Result<String, String> {
    let (blobs, stop) = file.blobs();
    let invalid = |(offset, what): (u64, String)| {
        format!("offset {offset:#x} of .sframe: {what} (run sframectl check for all faults)")
    };
    let mut dump = Dump { blobs: Vec::new() };
    for blob in &blobs {
        dump.blobs.push(read(file, &blob.section).map_err(invalid)?);
    }
    if let Some(stop) = stop {
        return Err(invalid(stop));
    }
    if json {
        let text = serde_json::to_string(&dump).map_err(|error| error.to_string())?;
        return Ok(text + "\n");
    }
    Ok(print(&dump))
}

fn read(file: &InputFile, section: &Section) -> Result<JsonSection, (u64, String)> {
    let bytes = &file.bytes[..];
    let raw = Raw::of(bytes, section);
    check_rows(bytes, section)?;
    let mut functions = Vec::new();
    for index in 0..section.num_fdes() {
        let entry = section.entry_offset(index);
        let function = section
            .function(bytes, index)
            .map_err(|error| explain(error, entry))?;
        let mut rows = Vec::new();
        for (row, raw) in section
            .rows(bytes, &function)
            .zip(raw::rows(raw, &function))
        {
            let row = row.map_err(|error| explain(error, entry))?;
            let text = RuleText::of_row(section, &function, &raw, &row.rule);
            let start = u64::from(row.start);
            rows.push(JsonRow {
                pc: match function.repeat() {
                    Some(_) => start,
                    None => function.start().wrapping_add(start),
                },
                cfa: text.cfa,
                ra: text.ra,
                fp: text.fp,
            });
        }
        functions.push(JsonFunction {
            start: function.start(),
            size: function.size(),
            kind: if function.is_flexible() {
                "flex"
            } else {
                "default"
            },
            pc_type: if function.repeat().is_some() {
                "pcmask"
            } else {
                "pcinc"
            },
            rep_size: function.repeat().map_or(0, |size| size.get()),
            signal: function.is_signal(),
            rows,
            area: file
                .area_of(section, index)
                .map(|area| file.areas[area].name.clone()),
            key_b: function.has_key_b() && section.abi().may_mangle(),
        });
    }
    Ok(JsonSection {
        offset: section.offset(),
        version: section.version().number(),
        flags: readelf_notation::flags(section.flags()),
        abi: readelf_notation::abi(section.abi()),
        functions,
        fixed: (section.fixed_ra_offset(), section.fixed_fp_offset()),
    })
}

/// The dump as text.
fn print(dump: &Dump) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{}", arguments.to_string().trim_end());
    };
    if dump.blobs.is_empty() {
        line(format_args!("no SFrame section"));
    }
    for (number, blob) in dump.blobs.iter().enumerate() {
        if number != 0 {
            line(format_args!(""));
        }
        let rows: usize = blob.functions.iter().map(|f| f.rows.len()).sum();
        line(format_args!(
            "SFrame version {} at offset {:#x}, {}",
            blob.version, blob.offset, blob.abi
        ));
        let flags = match blob.flags[..] {
            [] => "none".into(),
            _ => blob.flags.join(", "),
        };
        line(format_args!("  flags: {flags}"));
        for (name, offset) in [("RA", blob.fixed.0), ("FP", blob.fixed.1)] {
            if offset != 0 {
                line(format_args!("  {name} always at: c{offset:+}"));
            }
        }
        line(format_args!(
            "  functions: {}, rows: {rows}",
            blob.functions.len()
        ));
        for (index, function) in blob.functions.iter().enumerate() {
            let mut notes = String::new();
            if let Some(area) = &function.area {
                notes += &format!(", in {area}");
            }
            if function.pc_type == "pcmask" {
                notes += &format!(", blocks of {} bytes", function.rep_size);
            }
            for (is, note) in [
                (function.kind == "flex", ", flexible"),
                (function.signal, ", signal trampoline"),
                (function.key_b, ", pauth = B key"),
            ] {
                if is {
                    notes += note;
                }
            }
            line(format_args!(""));
            line(format_args!(
                "  func idx [{index}]: pc = {:#x}, size = {} bytes{notes}",
                function.start, function.size
            ));
            let mask = if function.pc_type == "pcmask" {
                "[m]"
            } else {
                ""
            };
            line(format_args!(
                "  {:<18}{:<10}{:<10}RA",
                format!("STARTPC{mask}"),
                "CFA",
                "FP"
            ));
            for row in &function.rows {
                match (&row.cfa, &row.fp) {
                    (Some(cfa), Some(fp)) => line(format_args!(
                        "  {:016x}  {cfa:<10}{fp:<10}{}",
                        row.pc, row.ra
                    )),
                    _ => line(format_args!("  {:016x}  {}", row.pc, row.ra)),
                }
            }
        }
    }
    text
}
