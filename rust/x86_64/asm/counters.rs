// SPDX-License-Identifier: GPL-2.0-only

//! Additions to per-CPU counters, relative to %gs.

use core::arch::asm;

/// Adds `amount` to number `FIRST + index` of a per-CPU array. Any context.
///
/// # Safety
///
/// `counters` is the per-CPU address of an array of numbers of 64 bits, relative to %gs. The array
/// has a number `FIRST + index`.
#[inline(always)]
pub(crate) unsafe fn add_to_counter<const FIRST: u32>(counters: *mut u64, index: u32, amount: u32) {
    // SAFETY: By the contract of this function, the array has the number. One instruction adds to
    // the number, so no interrupt comes in between. The instruction changes nothing else but the
    // flags.
    unsafe {
        asm!(
            "add qword ptr gs:[{counters} + 8 * {index} + 8 * {first}], {amount}",
            counters = in(reg) counters,
            index = in(reg) u64::from(index),
            first = const FIRST,
            amount = in(reg) u64::from(amount),
            options(nostack),
        );
    }
}

/// Adds 1, as [`add_to_counter`].
///
/// # Safety
///
/// As for [`add_to_counter`].
#[inline(always)]
pub(crate) unsafe fn increment_counter<const FIRST: u32>(counters: *mut u64, index: u32) {
    // SAFETY: As in `add_to_counter`.
    unsafe {
        asm!(
            "inc qword ptr gs:[{counters} + 8 * {index} + 8 * {first}]",
            counters = in(reg) counters,
            index = in(reg) u64::from(index),
            first = const FIRST,
            options(nostack),
        );
    }
}
