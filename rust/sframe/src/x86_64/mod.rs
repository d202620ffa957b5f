// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! AMD64 under Linux: rules from a few bytes of code at a PC, for places where rows are missing or
//! wrong.

pub(in crate::sframe) mod decode;
pub mod fallback;
pub mod insn;
pub mod machine;
pub(in crate::sframe) mod pattern;
pub mod plt;
pub mod prologue;
pub mod registers;
pub mod signal;
pub mod unknown;
pub mod uprobe;

pub use self::{
    insn::*,
    plt::*,
    prologue::*,
    signal::*,
    uprobe::*, //
};
