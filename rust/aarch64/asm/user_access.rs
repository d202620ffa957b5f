// SPDX-License-Identifier: GPL-2.0-only

//! Many reads of user memory in a row. They cost no less than single reads: see [`get_user`].

use super::get_user::get_user;
use core::marker::PhantomData;

extern "C" {
    fn sfu_code_mask() -> u64;
}

/// The bits of a return address that are bits of the address. The others are a pointer
/// authentication code. Any context.
#[inline(always)]
pub(crate) fn code_mask() -> u64 {
    // SAFETY: The C function has no preconditions.
    unsafe { sfu_code_mask() }
}

/// User memory that is read in a row.
pub(crate) struct UserAccess<'a>(PhantomData<&'a ()>);

impl UserAccess<'_> {
    /// Permits reads of user memory. Any context.
    ///
    /// # Safety
    ///
    /// Page faults are off for the lifetime of the result, and the memory is the current task's.
    #[inline(always)]
    pub(crate) unsafe fn begin(_limit: u64) -> Self {
        Self(PhantomData)
    }

    /// The eight bytes at a run-time address of any value; 0 if they cannot be read.
    #[inline(always)]
    pub(crate) fn word(&self, address: u64) -> u64 {
        get_user!(address, u64).1
    }

    /// As [`word`](Self::word), for an address below 2^63. Ignores the top bit of `address`, and
    /// returns the address without it.
    #[inline(always)]
    pub(crate) fn lower_word(&self, address: u64) -> (u64, u64) {
        let lower = address & const { u64::MAX >> 1 };
        (self.word(lower), lower)
    }
}
