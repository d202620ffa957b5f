// SPDX-License-Identifier: GPL-2.0-only

//! What the shim has to know about x86-64.

/// The size of a page, in bytes.
pub const PAGE_SIZE: usize = 4096;
