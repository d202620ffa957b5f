// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! SFrame: which rule leads from a frame to its caller, and one step by that rule.
//!
//! Bytes go in by [`bytes::Source`], a [`section::Section`] is opened over them, and
//! [`section::Section::find`] answers for a program counter (PC) with a small [`rule::Rule`], by
//! which [`unwind::step`] goes to the caller. [`elf::find_sframe`] tells where in a file or image
//! the section lies.
//!
//! # Promises
//!
//! This code runs in interrupts and NMIs, on bytes that an unprivileged user may have written and
//! may be changing meanwhile. So: no allocation, no `unsafe`, no recursion, no panic on any input,
//! every loop bounded by what was checked before, and no read outside of the length that
//! [`section::Section::open`] was given. Nothing is kept between two calls but small `Copy`
//! values; a reader that sees other bytes at each read gets a wrong answer or an error, no worse.
//!
//! # Roots
//!
//! These files are compiled twice: as the crate `sframe` (root: `lib.rs`) and as a module of the
//! kernel module (root: this file). Paths in them are therefore relative.
//!
//! # Specification
//!
//! "The SFrame Format", part of the documentation of GNU binutils. Section names in the comments
//! are those of the text for version 2.

pub mod elf;
pub mod format;
pub mod table;
#[cfg(any(test, CONFIG_KUNIT))]
pub mod test_vectors;
pub mod unwind;
pub mod x86_64;

// Short paths.
pub use self::{
    elf::eh_frame_hdr,
    format::{
        abi,
        bytes,
        error,
        fde,
        fre,
        header,
        section,
        version, //
    },
    table::{
        compact_rule,
        fast_path, //
    },
    unwind::{
        rule,
        stop_reason,
        walk, //
    },
    x86_64::{
        self as code,
        fallback, //
    }, //
};
