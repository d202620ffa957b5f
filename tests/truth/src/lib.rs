// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The reference unwinder ("the truth"): stacks by .eh_frame; and code shared by the programs that
//! compare with it.

#![deny(missing_docs)]

pub mod dwarf;
pub mod files;
mod handler_truth;
pub mod kernel_walk;
pub mod limits;
