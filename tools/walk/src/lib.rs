// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The kernel module's walk, on the host: the stack of a process that is stopped, or of a copy of
//! one, by the core and the files that are mapped.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod process;
pub mod registers;
pub mod table;
pub mod walker;
