// SPDX-License-Identifier: GPL-2.0-only

//! Counters of each CPU, and the tracepoint.
//!
//! C side: `rust/c/stats.c`.

use super::bindings;
use crate::arch::asm;
use core::ffi::CStr;
use kernel::prelude::*;

pub(crate) use bindings::SFU_COUNTERS;

/// The counters of the current CPU: each use takes those of the CPU that it runs on.
#[derive(Clone, Copy)]
pub(crate) struct Counters(*mut u64);

impl Counters {
    /// The counters. Any context.
    #[inline(always)]
    pub(crate) fn here() -> Self {
        // SAFETY: `sfu_counters` is a constant of the C side, which nobody changes.
        Self(unsafe { bindings::sfu_counters })
    }

    /// Adds 1 to the counter `FIRST + index`. Any context. Numbers from [`SFU_COUNTERS`] on are
    /// ignored.
    #[inline(always)]
    pub(crate) fn increment<const FIRST: u32>(self, index: u32) {
        if index >= const { SFU_COUNTERS - FIRST } {
            return;
        }
        // SAFETY: As in `add`.
        unsafe { asm::increment_counter::<FIRST>(self.0, index) };
    }

    /// Adds to the counter `FIRST + index`. Any context. Numbers from [`SFU_COUNTERS`] on are
    /// ignored.
    #[inline(always)]
    pub(crate) fn add<const FIRST: u32>(self, index: u32, amount: u32) {
        if index >= const { SFU_COUNTERS - FIRST } {
            return;
        }
        // SAFETY: The C side defines an array of `SFU_COUNTERS` numbers for each CPU, and `index`
        // was checked.
        unsafe { asm::add_to_counter::<FIRST>(self.0, index, amount) };
    }
}

/// Adds to a counter of this CPU. Any context.
#[inline(always)]
pub(crate) fn count(counter: u32, amount: u32) {
    Counters::here().add::<0>(counter, amount);
}

/// The sum of `count` counters, from number `first` on, over all CPUs.
pub(crate) fn counted(first: u32, count: u32) -> u64 {
    // SAFETY: `sfu_counted` checks the numbers, and reads counters that exist as long as the
    // module.
    unsafe { bindings::sfu_counted(first, count) }
}

/// Whether a listener is attached to the tracepoint. Any context.
#[inline(always)]
pub(crate) fn walks_are_traced() -> bool {
    // SAFETY: `sfu_walk_listeners` is a constant of the C side, which nobody changes. The pointer
    // that it points to may change at any time, so the read is volatile.
    unsafe { !bindings::sfu_walk_listeners.read_volatile().is_null() }
}

/// Fires the tracepoint `sframe_unwind:sframe_unwind_walk`. Any context.
pub(crate) fn trace_walk(context: &CStr, frames: u32, reason: &CStr) {
    // SAFETY: A `CStr` ends with NUL, and both are borrowed for the whole call.
    unsafe { bindings::sfu_trace_walk(context.as_char_ptr(), frames, reason.as_char_ptr()) };
}
