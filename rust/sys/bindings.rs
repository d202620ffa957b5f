// SPDX-License-Identifier: GPL-2.0-only

//! Declarations of the C functions and structures, generated from `c/helpers.h`
//! (`scripts/update-bindings`).

// bindgen's output, and the lints that it breaks, differ between versions of bindgen.
#![allow(
    unreachable_pub,
    dead_code,
    non_camel_case_types,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

use crate::uapi::{
    sframe_unwind_region,
    sframe_unwind_table, //
};

include!("helpers_generated.rs");
