// SPDX-License-Identifier: GPL-2.0-only

//! The crate `compiler_builtins`, which the compiler adds to all crates without `std`.
//!
//! It is empty. The functions of the real crate serve `core`'s floating-point and 128-bit code,
//! which the linker drops. If other code needed such a function, modpost would report an undefined
//! symbol.

#![allow(internal_features)]
#![feature(compiler_builtins)]
#![compiler_builtins]
#![no_builtins]
#![no_std]
