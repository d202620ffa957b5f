// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The reasons why a section gave no answer.
//!
//! The kind of an error decides the caller's next action. After a fault, a repeated call may
//! succeed. A malformed or unsupported section never gives an answer. After [`Error::TooLong`], the
//! caller may repeat the search in a context that has more time. Each kind has a name that does not
//! change, for counters and tools.

/// The reason why a section gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A read failed. The error makes no statement about the section.
    Fault {
        /// The start of the read, in bytes from the section's start. The read was at most
        /// [`MAX_READ`](crate::sframe::format::bytes::MAX_READ) bytes long, and any of its bytes
        /// may be the missing byte.
        offset: u32,
    },
    /// The section contradicts the specification or itself.
    Malformed {
        /// The contradiction.
        what: Malformed,
        /// The offset of the contradiction, in bytes from the section's start.
        offset: u32,
    },
    /// The section may be correct, but this code cannot read it.
    Unsupported {
        /// The feature that this code does not know.
        what: Unsupported,
    },
    /// The search takes longer than the caller may run, so the search gave up: see
    /// [`Search::Bounded`](crate::sframe::format::section::Search::Bounded).
    TooLong,
}

impl Error {
    /// A short name of the kind, for counters and tools. It never changes.
    #[inline]
    pub const fn name(self) -> &'static str {
        match self {
            Error::Fault { .. } => "fault",
            Error::Malformed { what, .. } => what.name(),
            Error::Unsupported { what } => what.name(),
            Error::TooLong => "too-long",
        }
    }
}

/// The contradiction between a section and the specification, or within a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The section is shorter than a header.
    HeaderShort,
    /// The first two bytes are not the magic number of SFrame.
    Magic,
    /// The auxiliary header does not fit into the section.
    AuxHeader,
    /// The array of function descriptor entries does not fit before the rows.
    Functions,
    /// The rows do not fit into the section.
    Rows,
    /// The ABI has the other byte order.
    AbiOrder,
    /// The header says that the functions are sorted by address, but they are not.
    Unsorted,
    /// The type of a function's rows is undefined.
    RowType,
    /// A function consists of repeated blocks, but the block size is zero.
    RepeatZero,
    /// A function's rows begin after the end of the section's rows.
    RowsStart,
    /// A row does not fit into the section.
    RowPastEnd,
    /// A row does not begin after the row before it.
    RowsNotRising,
    /// The size of a row's words is undefined.
    WordSize,
    /// The number of a row's words differs from the number that its rule uses.
    WordCount,
    /// The offset of a row's CFA is out of range.
    CfaOffset,
    /// A flexible row does not count the CFA from a register.
    FlexCfa,
    /// The header's number of rows differs from the sum over all functions.
    RowTotal,
}

impl Malformed {
    /// A short name of the kind, for counters and tools. It never changes.
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
        Error::Malformed { what: self, offset }
    }
}

/// The reason why this code cannot read a section that may be correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// An unknown version of the format, with its number.
    Version(u8),
    /// Unknown flags in the section's header, with the unknown bits.
    Flags(u8),
    /// An unknown ABI, with its number.
    Abi(u8),
    /// An unknown type of a function descriptor entry, with its number.
    FunctionType(u8),
    /// The section is larger than 4 GiB.
    Size,
}

impl Unsupported {
    /// A short name of the reason, for counters and tools. It never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Unsupported::Version(_) => "version",
            Unsupported::Flags(_) => "flags",
            Unsupported::Abi(_) => "abi",
            Unsupported::FunctionType(_) => "function-type",
            Unsupported::Size => "size",
        }
    }

    /// The unknown value; `None` for [`Unsupported::Size`].
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
    use crate::sframe::table::TableError;
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
        // One register.
        assert!(size_of::<Error>() <= 8);
        assert!(size_of::<Result<u16, TableError>>() <= 8);
    }
}
