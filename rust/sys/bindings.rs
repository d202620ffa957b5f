// SPDX-License-Identifier: GPL-2.0-only

//! Declarations of the C functions and structures, generated from `c/helpers.h`.

// What bindgen writes differs between its versions, and so do the lints that it breaks.
#![allow(
    unreachable_pub,
    dead_code,
    non_camel_case_types,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

include!(env!("SFRAME_UNWIND_BINDINGS"));
