// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rows of runtimes and languages that .eh_frame does not describe, or describes wrongly: one file for
//! each.

pub(crate) mod ghc;
pub(crate) mod go;
pub(crate) mod luajit;
