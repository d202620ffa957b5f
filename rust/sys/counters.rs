// SPDX-License-Identifier: GPL-2.0-only

//! Counters of each CPU, and the tracepoint.
//!
//! C side: `rust/c/stats.c`.

use super::bindings;
use core::{
    arch::asm,
    ffi::CStr, //
};
use kernel::prelude::*;

pub(crate) use bindings::SFU_COUNTERS;

/// Adds to a counter of this CPU. Any context. Counters beyond [`SFU_COUNTERS`] are not there.
#[inline(always)]
pub(crate) fn count(counter: u32, amount: u32) {
    if counter >= SFU_COUNTERS {
        return;
    }
    // SAFETY: Each CPU has that many numbers there, from where its %gs points on, and this is one
    // instruction. The flags are all else that it changes.
    unsafe {
        asm!(
            "add qword ptr gs:[{place}], {amount}",
            place = in(reg) bindings::sfu_counters.wrapping_add(counter as usize),
            amount = in(reg) u64::from(amount),
            options(nostack),
        );
    }
}

/// The sum of a counter over all CPUs.
pub(crate) fn counted(counter: u32) -> u64 {
    // SAFETY: The C function takes any number.
    unsafe { bindings::sfu_counted(counter) }
}

/// Fires the tracepoint `sframe_unwind:sframe_unwind_walk`. Any context.
pub(crate) fn trace_walk(context: &CStr, frames: u32, reason: &CStr) {
    // SAFETY: A `CStr` ends with NUL, and both are borrowed for the whole call.
    unsafe { bindings::sfu_trace_walk(context.as_char_ptr(), frames, reason.as_char_ptr()) };
}
