// SPDX-License-Identifier: GPL-2.0-only

//! Indexes that a user chooses, in an execution that the processor has only guessed.

use core::arch::asm;

/// The bound of an index, as [`below`] reads it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IndexBound {
    len: usize,
}

impl IndexBound {
    /// The bound of the indexes of `len` elements.
    pub(crate) const fn new(len: usize) -> Self {
        Self { len }
    }

    /// The number of elements.
    #[inline(always)]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

/// `index`, or 0 if it is not below the bound, also in a speculative execution behind a wrong guess
/// of a branch that has compared the two, as the kernel's `array_index_nospec`. The barrier is
/// necessary where the processor guesses the result of `csel`.
///
/// `AT` is the offset of the bound in the structure at `of`, in bytes.
///
/// # Safety
///
/// An [`IndexBound`] can be read there.
#[inline(always)]
pub(crate) unsafe fn below<const AT: usize>(index: usize, of: *const u8) -> usize {
    let mut below = index;
    // SAFETY: By the contract of this function, the number can be read.
    unsafe {
        asm!(
            "ldr {len}, [{of}, #{at}]",
            "cmp {index}, {len}",
            "csel {index}, {index}, xzr, lo",
            "csdb",
            index = inout(reg) below,
            len = out(reg) _,
            of = in(reg) of,
            at = const AT,
            options(nostack, readonly, pure),
        );
    }
    below
}
