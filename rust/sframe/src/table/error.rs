// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Errors of a table build.

use crate::sframe::format::error::Error;

/// The reason why a table was not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The section cannot be read, or is malformed or unsupported.
    Section(Error),
    /// The range of the code is larger than [`MAX_SPAN`](crate::sframe::table::build::MAX_SPAN).
    Span,
    /// The build took more steps than the limit for the length of the input: see
    /// [`Work`](crate::sframe::table::work::Work). The caller's function may return this error,
    /// too.
    TooLong,
    /// The caller ended the build.
    Ended,
    /// There are more different rules than [`MAX_RULES`](crate::sframe::table::build::MAX_RULES),
    /// or than the buffers hold.
    Rules,
    /// A buffer of the caller is too small, because it was planned for another section; or the
    /// blocks are too large for 32-bit positions.
    BufferTooSmall,
    /// No memory is left.
    Memory,
    /// An extra row is malformed.
    ExtraRow,
}

impl From<Error> for TableError {
    fn from(error: Error) -> TableError {
        TableError::Section(error)
    }
}
