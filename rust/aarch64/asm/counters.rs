// SPDX-License-Identifier: GPL-2.0-only

//! Additions to per-CPU counters. The kernel patches such additions for the CPU, so they are C's.

extern "C" {
    fn sfu_count(counter: *mut u64, amount: u64);
}

/// Adds `amount` to number `FIRST + index` of a per-CPU array. Any context.
///
/// # Safety
///
/// `counters` is the per-CPU address of an array of numbers of 64 bits. The array has a number
/// `FIRST + index`.
#[inline(always)]
pub(crate) unsafe fn add_to_counter<const FIRST: u32>(counters: *mut u64, index: u32, amount: u32) {
    let counter = counters.wrapping_add(index.wrapping_add(FIRST) as usize);
    // SAFETY: By the contract of this function, it is the per-CPU address of a number.
    unsafe { sfu_count(counter, amount.into()) };
}

/// Adds 1, as [`add_to_counter`].
///
/// # Safety
///
/// As for [`add_to_counter`].
#[inline(always)]
pub(crate) unsafe fn increment_counter<const FIRST: u32>(counters: *mut u64, index: u32) {
    // SAFETY: By the contract of this function.
    unsafe { add_to_counter::<FIRST>(counters, index, 1) };
}
