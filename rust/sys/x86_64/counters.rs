// SPDX-License-Identifier: GPL-2.0-only

//! Additions to per-CPU counters, relative to %gs.

use core::arch::asm;

/// Adds `amount` to number `counter` of a per-CPU array. Any context.
///
/// # Safety
///
/// `counters` is the per-CPU address of an array of numbers of 64 bits, relative to %gs. The array has a number
/// `counter`.
#[inline(always)]
pub(crate) unsafe fn add_to_counter(counters: *mut u64, counter: u32, amount: u32) {
    // SAFETY: By the contract of this function, the array has the number. One instruction adds to the number, so
    // no interrupt comes in between. The instruction changes nothing else but the flags.
    unsafe {
        asm!(
            "add qword ptr gs:[{counters} + 8 * {counter}], {amount}",
            counters = in(reg) counters,
            counter = in(reg) u64::from(counter),
            amount = in(reg) u64::from(amount),
            options(nostack),
        );
    }
}
