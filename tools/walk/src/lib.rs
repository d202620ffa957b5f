// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The kernel module's walk, on the host: the core walks the stack of a stopped process, or of a
//! copy of a process, with the files that the process has mapped.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod address_map;
pub mod process;
pub mod registers;
pub mod snapshot;
pub mod walker;
