// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The SFrame format: sections, functions and rows, read and checked.

pub mod abi;
pub mod bytes;
pub mod error;
pub mod fde;
pub mod fre;
pub mod header;
pub mod section;
pub mod version;
