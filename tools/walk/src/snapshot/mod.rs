// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Snapshots: a stack of a real program as a file, which the core's walk can walk again.
//!
//! A snapshot has all that a walk asked for: registers, mappings with their rows and regions, and
//! the bytes of memory that it read. It also has the frames and the stop reason that the walk has
//! to find. [`record`] makes one while a process is stopped, and [`replay`] walks one. Neither
//! needs an installed file.
//!
//! `Documentation/testing.rst` says how a file of `tests/snapshots/` is saved and kept.

mod format;
mod record;
mod region;
mod replay;
mod rule_text;
mod text;

pub use format::{
    Architecture,
    Hex,
    NamedRegisters,
    Snapshot,
    SparseBytes,
    StackOrigin,
    StoredMapping,
    StoredRows,
    FORMAT, //
};
pub use record::record;
pub use replay::{
    replay,
    Replayed, //
};
