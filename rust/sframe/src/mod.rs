// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! SFrame: finds the rule that leads from a frame to its caller, and takes one step by that rule.
//!
//! [`bytes::Source`] provides the bytes, and a [`section::Section`] is opened over them.
//! [`section::Section::find`] returns a small [`rule::Rule`] for a program counter (PC).
//! [`unwind::step`] takes the step to the caller by that rule. [`elf::find_sframe`] finds the
//! section in an ELF file or image.
//!
//! # Promises
//!
//! This code runs in interrupts and NMIs, on bytes that an unprivileged user may have written and
//! may change at any time. So: no allocation, no `unsafe`, no recursion, no panic on any input.
//! Every loop has a bound that was checked before the loop. No read of a section lies outside of
//! the length given to [`section::Section::open`]. State between two calls consists of small `Copy`
//! values only. A source whose bytes change between two reads causes a wrong answer or an error,
//! and no other harm.
//!
//! # Roots
//!
//! These files are compiled twice: as the crate `sframe` (root: `lib.rs`) and as a module of the
//! kernel module (root: this file). In both, the path of this module is `crate::sframe`, and the
//! paths in these files begin with it. Each of the crates also has a constant `crate::ONLY_ABI`,
//! the only ABI whose sections can be read.
//!
//! # Specification
//!
//! "The SFrame Format", a part of the documentation of GNU binutils. The comments cite sections of
//! the text for version 2.

#[cfg(any(test, target_arch = "aarch64"))]
pub mod aarch64;
pub mod elf;
pub mod format;
pub mod rule;
pub mod runtimes;
pub mod table;
#[cfg(any(test, CONFIG_KUNIT))]
pub mod test_vectors;
pub mod unwind;
pub mod walk;
pub mod x86_64;

/// The architecture of this machine: `rust/arch.rs` of the kernel module lists what it provides.
#[cfg(target_arch = "aarch64")]
pub use self::aarch64 as arch;
#[cfg(target_arch = "x86_64")]
pub use self::x86_64 as arch;

// Short paths for other modules and for users of the crate.
pub use self::{
    arch::fallback,
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
        fast_path,
        kept_rules, //
    },
    walk::stop_reason, //
};
