// SPDX-License-Identifier: GPL-2.0-only

//! What the shim has to know about AArch64.

/// The size of a page, in bytes. `rust/c/aarch64/machine.h` refuses kernels with other pages.
pub const PAGE_SIZE: usize = 4096;
