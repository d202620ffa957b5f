// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What a conversion says besides its section: errors, dropped rows, statistics.

use std::{
    collections::BTreeMap,
    fmt, //
};

use crate::{
    frame_pointers::{
        FramePointers,
        SampledCalls, //
    },
    headers::MAX_HEADERS, //
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
    /// The file has more program headers or sections than
    /// [`MAX_HEADERS`](crate::MAX_HEADERS).
    TooManyHeaders,
    /// Code segments, or the names of sections, share bytes of the file, so that they are longer
    /// than the file.
    SharedBytes,
    /// The file has neither .eh_frame nor a pclntab that is supported, its instructions tell no
    /// rows, and it does not keep frame pointers.
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
            ConvertError::TooManyHeaders => {
                write!(f, "more than {MAX_HEADERS} program headers or sections")
            }
            ConvertError::SharedBytes => {
                f.write_str("code segments, or names of sections, are longer than the file")
            }
            ConvertError::NoUnwindInfo => f.write_str(
                "no unwind information: neither .eh_frame, nor the pclntab of Go 1.20 or later, \
                 nor code that can be analysed",
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
    /// What is left of the file would take more work than the file's size allows. Counts an entry,
    /// a call or a range of code as one row.
    WorkLimit,
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
            DropReason::WorkLimit => "work-limit",
        }
    }
}

/// Statistics of a conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The size of .eh_frame, in bytes.
    pub eh_frame: u64,
    /// The rows of .eh_frame. Rows that differ only in registers that SFrame does not describe
    /// count separately.
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
    /// The bytes of code whose rows come from the file's own SFrame section.
    pub own_section: u64,
    /// The bytes of code whose rows come from the instructions.
    pub analyzed_code: u64,
    /// The sampled calls of code that neither .eh_frame nor another table covers; `None` if there
    /// is little of it.
    pub uncovered: Option<SampledCalls>,
    /// The steps of work that the conversion took, of [`max_steps`](crate::max_steps).
    pub steps: u64,
}

impl Report {
    /// Whether code that no row covers keeps frame pointers.
    pub fn keeps_frame_pointers(&self) -> bool {
        let uncovered = self.uncovered.map(|calls| calls.frame_pointers());
        uncovered == Some(FramePointers::Kept)
    }

    pub(crate) fn count_dropped(&mut self, reason: DropReason, bytes: u64) {
        let (rows, all) = self.dropped.entry(reason).or_default();
        *rows += 1;
        *all += bytes;
    }

    pub(crate) fn add(&mut self, other: &Report) {
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
    /// The reason why the row is dropped. `None`: the row is kept, but it covers a call, and its
    /// rule counts from a register that is known only in the innermost frame.
    pub reason: Option<DropReason>,
    /// The row's rules for the CFA, the frame pointer, the stack pointer and the return address.
    /// The frame pointer's slot is left out.
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
