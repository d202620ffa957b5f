// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Why a section gave no answer.
//!
//! The kinds are kept apart by what the caller does next: after a fault the same question may
//! succeed later; a malformed or unsupported section will never do; after "too long" the question
//! may be asked where there is more time. Each kind has a name that does not change, for counters
//! and tools.

/// Why a section gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Reading failed. It says nothing about the section.
    Fault {
        /// Where the read began, in bytes from the section's start. It was at most
        /// [`MAX_READ`](super::bytes::MAX_READ) bytes long, and any of them may be the one that is
        /// not there.
        offset: u64,
    },
    /// The section contradicts the specification or itself.
    Malformed {
        /// In which way.
        what: Malformed,
        /// Where, in bytes from the section's start.
        offset: u64,
    },
    /// The section may be right, but is none that this code can read.
    Unsupported {
        /// For what reason.
        what: Unsupported,
    },
    /// The answer may be there, but to find it takes longer than the caller may run: see
    /// [`Search::Bounded`](super::section::Search::Bounded).
    TooLong,
}

impl Error {
    /// A short name of the kind, for counters and tools. It stays as it is.
    pub const fn name(self) -> &'static str {
        match self {
            Error::Fault { .. } => "fault",
            Error::Malformed { what, .. } => what.name(),
            Error::Unsupported { what } => what.name(),
            Error::TooLong => "too-long",
        }
    }
}

/// In which way a section contradicts the specification or itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The section is shorter than a header.
    HeaderShort,
    /// The first two bytes are not SFrame's.
    Magic,
    /// The auxiliary header does not fit into the section.
    AuxHeader,
    /// The array of function descriptor entries does not fit in front of the rows.
    Functions,
    /// The rows do not fit into the section.
    Rows,
    /// The ABI is one of the other byte order.
    AbiOrder,
    /// The header says that the functions are sorted by address, but they are not.
    Unsorted,
    /// A function's rows are of an undefined type.
    RowType,
    /// A function consists of repeated blocks, but their size is zero.
    RepeatZero,
    /// A function's rows begin behind the end of all rows.
    RowsStart,
    /// A row does not fit into the section.
    RowPastEnd,
    /// A row does not begin behind the row before it.
    RowsNotRising,
    /// A row's words are of an undefined size.
    WordSize,
    /// A row has another number of words than there are uses for.
    WordCount,
    /// The offset of a row's CFA is out of range.
    CfaOffset,
    /// A flexible row does not count the CFA from a register.
    FlexCfa,
    /// The functions have together another number of rows than the header says.
    RowTotal,
}

impl Malformed {
    /// A short name of the kind, for counters and tools. It stays as it is.
    pub const fn name(self) -> &'static str {
        match self {
            Malformed::HeaderShort => "header-short",
            Malformed::Magic => "magic",
            Malformed::AuxHeader => "aux-header",
            Malformed::Functions => "functions",
            Malformed::Rows => "rows",
            Malformed::AbiOrder => "abi-order",
            Malformed::Unsorted => "unsorted",
            Malformed::RowType => "row-type",
            Malformed::RepeatZero => "repeat-zero",
            Malformed::RowsStart => "rows-start",
            Malformed::RowPastEnd => "row-past-end",
            Malformed::RowsNotRising => "rows-not-rising",
            Malformed::WordSize => "word-size",
            Malformed::WordCount => "word-count",
            Malformed::CfaOffset => "cfa-offset",
            Malformed::FlexCfa => "flex-cfa",
            Malformed::RowTotal => "row-total",
        }
    }

    /// This kind as an [`Error`] found at `offset` bytes from the section's start.
    pub(super) const fn at(self, offset: u32) -> Error {
        Error::Malformed {
            what: self,
            offset: offset as u64,
        }
    }
}

/// For what reason a section cannot be read, although it may be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The version of the format, of this number.
    Version(u8),
    /// Flags in the section's header; the unknown bits are given.
    Flags(u8),
    /// The ABI and architecture, of this number.
    Abi(u8),
    /// The type of a function descriptor entry, of this number.
    FunctionType(u8),
    /// The section is larger than 4 GiB.
    Size,
}

impl Unsupported {
    /// A short name of the reason, for counters and tools. It stays as it is.
    pub const fn name(self) -> &'static str {
        match self {
            Unsupported::Version(_) => "version",
            Unsupported::Flags(_) => "flags",
            Unsupported::Abi(_) => "abi",
            Unsupported::FunctionType(_) => "function-type",
            Unsupported::Size => "size",
        }
    }

    /// The value that was met, where there is one.
    pub const fn value(self) -> Option<u8> {
        match self {
            Unsupported::Version(value)
            | Unsupported::Flags(value)
            | Unsupported::Abi(value)
            | Unsupported::FunctionType(value) => Some(value),
            Unsupported::Size => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::BTreeSet,
        format,
        string::ToString, //
    };

    #[test]
    fn names_tell_errors_apart() {
        let malformed = [
            Malformed::HeaderShort,
            Malformed::Magic,
            Malformed::AuxHeader,
            Malformed::Functions,
            Malformed::Rows,
            Malformed::AbiOrder,
            Malformed::Unsorted,
            Malformed::RowType,
            Malformed::RepeatZero,
            Malformed::RowsStart,
            Malformed::RowPastEnd,
            Malformed::RowsNotRising,
            Malformed::WordSize,
            Malformed::WordCount,
            Malformed::CfaOffset,
            Malformed::FlexCfa,
            Malformed::RowTotal,
        ]
        .map(|what| what.at(7).name());
        let unsupported = [
            Unsupported::Version(4),
            Unsupported::Flags(8),
            Unsupported::Abi(5),
            Unsupported::FunctionType(2),
            Unsupported::Size,
        ]
        .map(|what| Error::Unsupported { what }.name());
        let others = [Error::Fault { offset: 7 }.name(), Error::TooLong.name()];
        let names: BTreeSet<&str> = [&malformed[..], &unsupported, &others]
            .concat()
            .into_iter()
            .collect();
        assert_eq!(
            names.len(),
            malformed.len() + unsupported.len() + others.len()
        );
    }

    #[test]
    fn people_read_numbers_too() {
        assert_eq!(
            Malformed::RowType.at(0x2c).to_string(),
            "malformed: row-type at 0x2c"
        );
        assert_eq!(
            format!("{}", Error::Fault { offset: 0x1000 }),
            "offset 0x1000 cannot be read"
        );
    }

    #[test]
    fn errors_are_small() {
        assert!(size_of::<Error>() <= 16);
        assert!(size_of::<Result<(), Error>>() <= 16);
    }
}
