// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The root of the crate `sframe`, which reads SFrame sections in user space. The crate is built
//! from source files of the kernel module.
//!
//! This file holds the crate attributes and the modules that only the host needs. All other modules
//! are in `mod.rs`, which the kernel module includes as one of its modules. The module has the same
//! name in both crates: `crate::sframe` is the path of the core in all files.

#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
extern crate std;

mod display;
#[cfg(test)]
#[path = "../tests/support/requirement.rs"]
mod requirement;

#[path = "mod.rs"]
mod sframe;

pub use self::sframe::*;

/// The only ABI whose sections can be read. `None`: all ABIs. The kernel module has one.
const ONLY_ABI: Option<abi::Abi> = None;
