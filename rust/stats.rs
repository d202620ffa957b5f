// SPDX-License-Identifier: GPL-2.0-only

//! Counters: one for each context, source of a frame, and reason to stop.
//!
//! Counting is one instruction on memory of the own CPU, in any context.

use crate::{
    sframe::{
        stop_reason::StopReason,
        walk::FrameSource, //
    },
    sys::{
        self,
        Context, //
    }, //
};
use core::ffi::CStr;
use kernel::fmt;

impl Context {
    const ALL: [Context; 4] = [Context::Task, Context::Irq, Context::Nmi, Context::Deferred];

    /// As counters and the tracepoint name it.
    pub(crate) const fn name(self) -> &'static CStr {
        match self {
            Context::Task => c"task",
            Context::Irq => c"irq",
            Context::Nmi => c"nmi",
            Context::Deferred => c"deferred",
        }
    }
}

// Counters lie one behind the other: tasks left alone, samples in exec, walks by context, frames by context,
// frames by source, reasons, and these.
const WALKS: u32 = sys::SFU_IN_EXEC + 1;
const FRAMES_IN: u32 = WALKS + Context::ALL.len() as u32;
const FRAMES_BY: u32 = FRAMES_IN + Context::ALL.len() as u32;
const STOPS: u32 = FRAMES_BY + FrameSource::ALL.len() as u32;
const FAULTS_QUEUED: u32 = STOPS + StopReason::ALL.len() as u32;
const FAULTS_TAKEN: u32 = FAULTS_QUEUED + 1;
const BAD_SECTIONS: u32 = FAULTS_TAKEN + 1;
const _: () = assert!(BAD_SECTIONS < sys::SFU_COUNTERS);

/// What one walk has done. Told once, at its end.
pub(crate) struct Tally {
    context: Context,
    by_rows: u32,
    by_frame_pointer: u32,
}

impl Tally {
    /// A walk begins.
    pub(crate) fn new(context: Context) -> Self {
        Self {
            context,
            by_rows: 0,
            by_frame_pointer: 0,
        }
    }

    /// So many frames were found beyond the innermost.
    pub(crate) fn frames(&mut self, source: FrameSource, count: u32) {
        match source {
            FrameSource::Rows => self.by_rows = self.by_rows.wrapping_add(count),
            FrameSource::FramePointer => {
                self.by_frame_pointer = self.by_frame_pointer.wrapping_add(count);
            }
            FrameSource::Registers => {}
        }
    }

    /// The walk has ended: counts it and fires the tracepoint. Any context.
    pub(crate) fn end(self, reason: StopReason) {
        let frames = self
            .by_rows
            .wrapping_add(self.by_frame_pointer)
            .wrapping_add(1);
        let context = self.context as u32;

        sys::count(WALKS + context, 1);
        sys::count(FRAMES_IN + context, frames);
        sys::count(FRAMES_BY + FrameSource::Rows as u32, self.by_rows);
        if self.by_frame_pointer != 0 {
            sys::count(
                FRAMES_BY + FrameSource::FramePointer as u32,
                self.by_frame_pointer,
            );
        }
        sys::count(STOPS + reason as u32, 1);
        sys::trace_walk(self.context.name(), frames, reason.name());
    }
}

/// A page was missing in a context that cannot wait for it. Any context.
pub(crate) fn fault_queued() {
    sys::count(FAULTS_QUEUED, 1);
}

/// A page was missing and the task waited for it.
pub(crate) fn fault_taken() {
    sys::count(FAULTS_TAKEN, 1);
}

/// Files whose own sections are of no use.
pub(crate) fn bad_section() {
    sys::count(BAD_SECTIONS, 1);
}

/// Writes all counters, one `name value` line each. Task.
pub(crate) fn show(_: &(), f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = |name: &'static CStr| name.to_str().unwrap_or_default();

    let mut index = 0;
    while let Some((kind, name)) = name_of(index) {
        writeln!(f, "{}{} {}", text(kind), text(name), value_of(index))?;
        index = index.wrapping_add(1);
    }
    Ok(())
}

/// The counter of a number, from 0 on: its name, in two parts that end with a 0, and its value. Task.
pub(crate) fn counter(index: u32) -> Option<([&'static [u8]; 2], u64)> {
    let (kind, name) = name_of(index)?;
    let name = [kind.to_bytes_with_nul(), name.to_bytes_with_nul()];
    Some((name, value_of(index)))
}

/// The value of a counter.
fn value_of(index: u32) -> u64 {
    if index != FRAMES_BY + FrameSource::Registers as u32 {
        return sys::counted(index);
    }
    // Each walk has one.
    let mut walks = 0u64;
    for index in WALKS..FRAMES_IN {
        walks = walks.wrapping_add(sys::counted(index));
    }
    walks
}

/// The name of a counter, in two parts.
fn name_of(index: u32) -> Option<(&'static CStr, &'static CStr)> {
    let nth = |first: u32| usize::try_from(index.wrapping_sub(first)).unwrap_or(usize::MAX);

    Some(match index {
        sys::SFU_LEFT_TO_KERNEL => (c"", c"left_to_kernel"),
        sys::SFU_IN_EXEC => (c"", c"in_exec"),
        WALKS..FRAMES_IN => (c"walks_", Context::ALL.get(nth(WALKS))?.name()),
        FRAMES_IN..FRAMES_BY => (c"frames_in_", Context::ALL.get(nth(FRAMES_IN))?.name()),
        FRAMES_BY..STOPS => (c"frames_by_", FrameSource::ALL.get(nth(FRAMES_BY))?.name()),
        STOPS..FAULTS_QUEUED => (c"stop_", StopReason::ALL.get(nth(STOPS))?.name()),
        FAULTS_QUEUED => (c"", c"faults_queued"),
        FAULTS_TAKEN => (c"", c"faults_taken"),
        BAD_SECTIONS => (c"", c"bad_sections"),
        _ => return None,
    })
}
