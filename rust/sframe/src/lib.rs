// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Reads SFrame sections, in user space, from the same files that the kernel module is built from.
//!
//! This file is the root for cargo. It holds what only a crate can say, and what only the host
//! needs; everything else is in `mod.rs`, which the kernel module takes in as one of its modules.

#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
extern crate std;

mod display;

#[path = "mod.rs"]
mod root;

pub use self::root::*;
