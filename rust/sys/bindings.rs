// SPDX-License-Identifier: GPL-2.0-only

//! Declarations of the C functions and structures, generated from `c/helpers.h`.

#![expect(unreachable_pub, dead_code, non_camel_case_types, clippy::all)]

include!(env!("SFRAME_UNWIND_BINDINGS"));
