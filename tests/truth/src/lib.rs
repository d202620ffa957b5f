// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The truth about a stack, as .eh_frame tells it, and what the instruments that judge by it share.

#![deny(missing_docs)]

pub mod dwarf;
pub mod files;
mod leaving;
pub mod limits;
