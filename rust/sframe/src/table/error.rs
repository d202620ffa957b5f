// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Why there is no table.

use super::super::format::error::Error;

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The section is of no use.
    Section(Error),
    /// The code lies further apart than [`MAX_SPAN`](super::build::MAX_SPAN).
    Span,
    /// It took too long: of what a file may say, this is nonsense.
    TooLong,
    /// There are more rules that differ than [`MAX_RULES`](super::build::MAX_RULES), or than there is room for.
    Rules,
    /// What the caller has made room for is too small: another section was planned.
    Room,
    /// There is no memory for more.
    Memory,
    /// A row beside the section is none.
    ExtraRow,
}

impl From<Error> for TableError {
    fn from(error: Error) -> TableError {
        TableError::Section(error)
    }
}
