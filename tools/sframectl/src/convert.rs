// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl convert`: makes a section from .eh_frame, Go's pclntab, or the instructions.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{
        self,
        Read,
        Write, //
    },
    path::Path, //
};

use convert::{
    DropReason,
    FramePointers,
    Report, //
};
use serde::Serialize;

use crate::rows;

/// The line that `--json` prints.
#[derive(Serialize)]
struct ConversionLine<'a> {
    file: &'a Path,
    section: &'a Path,
    eh_frame_bytes: u64,
    eh_frame_rows: u64,
    rows_encoded: u64,
    section_bytes: usize,
    section_functions: u32,
    section_functions_flexible: u32,
    section_rows: u32,
    extra_rows: u32,
    own_section_code_bytes: u64,
    analyzed_code_bytes: u64,
    /// The code that no row covers, before its instructions are analysed.
    #[serde(skip_serializing_if = "Option::is_none")]
    uncovered: Option<Uncovered>,
    rows_dropped: BTreeMap<&'static str, Dropped>,
}

#[derive(Serialize)]
struct Uncovered {
    code_bytes: u64,
    calls: u64,
    calls_in_frames: u64,
    frame_pointers: &'static str,
}

#[derive(Serialize)]
struct Dropped {
    rows: u64,
    code_bytes: u64,
}

/// Converts `file` and writes the section to `out`. Returns the report as text.
pub(crate) fn run(
    file: &Path,
    out: &Path,
    extra_rows: Option<&Path>,
    confined: bool,
    json: bool,
) -> Result<String, String> {
    let dash = Path::new("-");
    let text_of = |error: io::Error| error.to_string();
    let print = |bytes: &[u8]| {
        let printed = io::stdout().lock().write_all(bytes);
        printed.map(|()| String::new()).map_err(text_of)
    };
    let convert = |bytes: &[u8]| convert::convert(bytes).map_err(|error| error.to_string());
    if confined {
        let bytes = rows::map_confined()?;
        let converted = match rows::check_headers(&bytes).and_then(|()| convert(&bytes)) {
            Ok(converted) => converted,
            Err(error) => rows::exit_without_rows(&error),
        };
        let (head, section, extra_rows) = rows::packed_parts(&converted);
        for part in [&head, section, extra_rows] {
            print(part)?;
        }
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    if file == dash {
        io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .map_err(text_of)?;
    } else {
        bytes = fs::read(file).map_err(text_of)?;
    }
    let converted = convert(&bytes)?;
    if let Some(path) = extra_rows {
        fs::write(path, &converted.extra_rows).map_err(|error| {
            format!("cannot write the extra rows to {}: {error}", path.display())
        })?;
    }
    if out == dash {
        return print(&converted.section);
    }
    fs::write(out, &converted.section)
        .map_err(|error| format!("cannot write the section to {}: {error}", out.display()))?;
    let report = &converted.report;
    Ok(if json {
        as_json(file, out, report, converted.section.len())
    } else {
        as_text(file, report, converted.section.len())
    })
}

fn as_json(file: &Path, section: &Path, report: &Report, len: usize) -> String {
    let rows_dropped = |(reason, (rows, code_bytes)): (&DropReason, &(u64, u64))| {
        let (rows, code_bytes) = (*rows, *code_bytes);
        (reason.name(), Dropped { rows, code_bytes })
    };
    let uncovered = report.uncovered.map(|found| Uncovered {
        code_bytes: found.code,
        calls: found.calls,
        calls_in_frames: found.in_frames,
        frame_pointers: match found.frame_pointers() {
            FramePointers::Kept => "kept",
            FramePointers::Unsure => "unsure",
            FramePointers::NotKept => "not-kept",
        },
    });
    let converted = ConversionLine {
        file,
        section,
        eh_frame_bytes: report.eh_frame,
        eh_frame_rows: report.rows,
        rows_encoded: report.encoded,
        section_bytes: len,
        section_functions: report.functions,
        section_functions_flexible: report.flexible,
        section_rows: report.section_rows,
        extra_rows: report.extra_rows,
        own_section_code_bytes: report.own_section,
        analyzed_code_bytes: report.analyzed_code,
        uncovered,
        rows_dropped: report.dropped.iter().map(rows_dropped).collect(),
    };
    let text = serde_json::to_string(&converted).expect("numbers and names are JSON");
    text + "\n"
}

fn as_text(file: &Path, report: &Report, len: usize) -> String {
    let share = match report.rows {
        0 => 100.0,
        rows => 100.0 * report.encoded as f64 / rows as f64,
    };
    let mut text = format!(
        "{}: {} of {} rows encoded ({share:.2} %), in {} functions ({} flexible) with {} rows\n\
         {len} bytes; .eh_frame has {}\n",
        file.display(),
        report.encoded,
        report.rows,
        report.functions,
        report.flexible,
        report.section_rows,
        report.eh_frame,
    );
    if report.extra_rows != 0 {
        writeln!(text, "{} extra rows", report.extra_rows)
            .expect("writing to a string does not fail");
    }
    if report.own_section != 0 {
        writeln!(
            text,
            "{} bytes of code without an .eh_frame entry: rows of the file's own .sframe",
            report.own_section
        )
        .expect("writing to a string does not fail");
    }
    if report.analyzed_code != 0 {
        writeln!(
            text,
            "{} bytes of code without an .eh_frame entry: rows from their instructions",
            report.analyzed_code
        )
        .expect("writing to a string does not fail");
    }
    if let Some(found) = report.uncovered {
        let verdict = match found.frame_pointers() {
            FramePointers::Kept => "it keeps frame pointers",
            FramePointers::Unsure => "it may keep frame pointers",
            FramePointers::NotKept => "it keeps no frame pointers",
        };
        writeln!(
            text,
            "{} bytes of code without unwind information: {verdict} ({} of {} calls)",
            found.code, found.in_frames, found.calls
        )
        .expect("writing to a string does not fail");
    }
    for (reason, (rows, bytes)) in &report.dropped {
        let reason = explain(*reason);
        writeln!(
            text,
            "dropped: {rows} rows, for {bytes} bytes of code: {reason}"
        )
        .expect("writing to a string does not fail");
    }
    text
}

fn explain(reason: DropReason) -> &'static str {
    match reason {
        DropReason::CfaFromMemory => {
            "the CFA is computed from a value in memory in a form that no row supports"
        }
        DropReason::CfaExpression => "the CFA is an unsupported expression",
        DropReason::ReturnAddress => "no row can encode the return address's location",
        DropReason::FramePointer => {
            "no row can encode the frame pointer's location, or it is undefined"
        }
        DropReason::StackPointer => "the caller's stack pointer is not the CFA",
        DropReason::OffsetTooLarge => "an offset exceeds 32 bits",
        DropReason::InvalidEntry => "the .eh_frame entry is invalid from there on",
        DropReason::WorkLimit => "more work than for a file of this size is allowed",
    }
}
