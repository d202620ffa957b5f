// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! AMD64 under Linux: rules from a few bytes of code at a PC, for places where rows are missing or wrong.

pub mod ahead;
pub mod fallback;
pub mod insn;
pub mod plt;
pub mod prologue;
pub mod registers;
mod sbcl;
pub mod signal;
pub mod uprobe;
mod v8;

pub use self::{
    insn::*,
    plt::*,
    prologue::*,
    signal::*,
    uprobe::*, //
};
