// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! AArch64 under Linux: rules from a few instructions at a PC, for places where rows are missing.
//!
//! All instructions have four bytes, so code can be read in both directions.

pub mod fallback;
pub mod insn;
pub mod machine;
pub mod plt;
pub mod registers;
pub mod signal;
pub mod unknown;
pub mod uprobe;

pub use self::{
    insn::*,
    plt::*,
    signal::*,
    uprobe::*, //
};
