// SPDX-License-Identifier: GPL-2.0-only

//! Counters: one for each context, each source of a frame, and each stop reason.
//!
//! An increment is one instruction on memory of the current CPU, in any context.

use crate::{
    sframe::{
        stop_reason::StopReason,
        walk::FrameSource, //
    },
    sys::{
        self,
        WalkContext, //
    }, //
};
use core::ffi::CStr;
use kernel::fmt;

impl WalkContext {
    const ALL: [WalkContext; 4] = [
        WalkContext::Task,
        WalkContext::Irq,
        WalkContext::Nmi,
        WalkContext::Deferred,
    ];

    /// The name in counters and in the tracepoint.
    pub(crate) const fn name(self) -> &'static CStr {
        match self {
            WalkContext::Task => c"task",
            WalkContext::Irq => c"irq",
            WalkContext::Nmi => c"nmi",
            WalkContext::Deferred => c"deferred",
        }
    }
}

// The order of the counters: samples of tasks left to the kernel, samples in exec, samples in entry
// code, walks cut by locked mappings, displaced regions, walks before an answer, walks by context,
// frames by context, frames by source, stop reasons, and the four below.
const WALKS: u32 = sys::SFU_BEFORE_ANSWER + 1;
const FRAMES_IN: u32 = WALKS + WalkContext::ALL.len() as u32;
const FRAMES_BY: u32 = FRAMES_IN + WalkContext::ALL.len() as u32;
const STOPS: u32 = FRAMES_BY + FrameSource::ALL.len() as u32;
const FAULTS_QUEUED: u32 = STOPS + StopReason::ALL.len() as u32;
const FAULTS_TAKEN: u32 = FAULTS_QUEUED + 1;
const BAD_SECTIONS: u32 = FAULTS_TAKEN + 1;
const SECTION_SEARCHES: u32 = BAD_SECTIONS + 1;
/// Walks by kept rules that were compared with walks by tables, and those that differed: see
/// `compare.rs`.
const COMPARED: u32 = SECTION_SEARCHES + 1;
const DIFFERENT: u32 = COMPARED + 1;
const COMPARES: bool = cfg!(any(sfu_compare, CONFIG_KUNIT = "y"));
const ALL: u32 = COMPARED + if COMPARES { 2 } else { 0 };
const _: () = assert!(ALL <= sys::SFU_COUNTERS);

/// The end of a walk.
pub(crate) struct Walked {
    /// The number of stored addresses.
    pub(crate) stored: usize,
    /// The number of frames, with the innermost frame.
    pub(crate) frames: u32,
    pub(crate) context: WalkContext,
    pub(crate) reason: StopReason,
}

impl Walked {
    /// Counts the walk, fires the tracepoint, and returns the number of stored addresses. Any
    /// context.
    #[inline(always)]
    pub(crate) fn count(self) -> usize {
        let context = self.context as u32;
        let counters = sys::Counters::here();
        counters.increment::<WALKS>(context);
        counters.add::<FRAMES_IN>(context, self.frames);
        counters.increment::<STOPS>(self.reason as u32);
        if sys::walks_are_traced() {
            trace(self.context, self.frames, self.reason);
        }
        self.stored
    }
}

/// Counts frames of a walk that were found by [`FrameSource::FramePointer`]. All other frames of
/// walks, but for the innermost ones, are found by rows. Any context.
pub(crate) fn by_frame_pointer(count: u32) {
    if count != 0 {
        sys::count(FRAMES_BY + FrameSource::FramePointer as u32, count);
    }
}

/// Fires the tracepoint. Any context.
#[cold]
#[inline(never)]
fn trace(context: WalkContext, frames: u32, reason: StopReason) {
    sys::trace_walk(context.name(), frames, reason.name());
}

/// Counts a page that was missing in a context that cannot wait for it. Any context.
pub(crate) fn fault_queued() {
    sys::count(FAULTS_QUEUED, 1);
}

/// Counts a page that was missing and that the task waited for. Task.
pub(crate) fn fault_taken() {
    sys::count(FAULTS_TAKEN, 1);
}

/// Counts a walk that went on as the kernel's own, because user space has not answered about a
/// file. Any context.
pub(crate) fn before_answer() {
    sys::count(sys::SFU_BEFORE_ANSWER, 1);
}

/// Counts a file whose own section cannot be used.
pub(crate) fn bad_section() {
    sys::count(BAD_SECTIONS, 1);
}

/// Counts a search in a section that the walk reads itself, because the file has no table. Any
/// context.
pub(crate) fn section_search() {
    sys::count(SECTION_SEARCHES, 1);
}

/// Counts a walk by kept rules that was compared with a walk by tables. Any context.
#[cfg(any(sfu_compare, CONFIG_KUNIT = "y"))]
pub(crate) fn compared(is_equal: bool) {
    sys::count(if is_equal { COMPARED } else { DIFFERENT }, 1);
}

/// Writes all counters, one `name value` line each. Task.
pub(crate) fn show(_: &(), f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut index = 0;
    while let Some(([kind, name], value)) = counter(index) {
        for part in [kind, name, " "] {
            f.write_str(part)?;
        }
        write_decimal(value, f)?;
        f.write_str("\n")?;
        index = index.wrapping_add(1);
    }
    Ok(())
}

/// Writes a number. `core`'s formatting would add 3 KB of code, for widths and alignments that
/// nobody needs.
fn write_decimal(value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // 10 ^ 19 is the highest power of ten that is a `u64`.
    let mut power = 10_000_000_000_000_000_000;
    let mut is_leading = true;
    while power != 0 {
        let digit = (value / power % 10) as usize;
        is_leading = is_leading && digit == 0 && power != 1;
        if !is_leading {
            f.write_str(DIGITS.get(digit).copied().unwrap_or_default())?;
        }
        power /= 10;
    }
    Ok(())
}

static DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// The counter with number `index`, from 0 on: its name in two parts, and its value. Task.
// Not inlined, because it is called in several places.
#[inline(never)]
pub(crate) fn counter(index: u32) -> Option<([&'static str; 2], u64)> {
    let name = NAMES.get(usize::try_from(index).ok()?)?;
    Some((*name, value_of(index)))
}

/// The value of the counter with number `index`.
fn value_of(index: u32) -> u64 {
    const CONTEXTS: u32 = WalkContext::ALL.len() as u32;
    const BY_REGISTERS: u32 = FRAMES_BY + FrameSource::Registers as u32;
    const BY_ROWS: u32 = FRAMES_BY + FrameSource::Rows as u32;
    // Each walk takes one frame from registers.
    let walks = || sys::counted(WALKS, CONTEXTS);
    match index {
        BY_REGISTERS => walks(),
        // All frames but those from registers and by the frame pointer. A walk may end between two
        // reads.
        BY_ROWS => sys::counted(FRAMES_IN, CONTEXTS)
            .saturating_sub(walks())
            .saturating_sub(sys::counted(
                FRAMES_BY + FrameSource::FramePointer as u32,
                1,
            )),
        _ => sys::counted(index, 1),
    }
}

/// The name of each counter, in two parts. Not a `match`, which would compile to a comparison for
/// each counter.
static NAMES: [[&str; 2]; ALL as usize] = {
    let mut names = [[""; 2]; ALL as usize];
    names[sys::SFU_LEFT_TO_KERNEL as usize][1] = "left_to_kernel";
    names[sys::SFU_IN_EXEC as usize][1] = "in_exec";
    names[sys::SFU_IN_ENTRY as usize][1] = "in_entry";
    names[sys::SFU_LOCKED as usize][1] = "locked";
    names[sys::SFU_REGIONS_FULL as usize][1] = "regions_full";
    names[sys::SFU_BEFORE_ANSWER as usize][1] = "before_answer";
    names[FAULTS_QUEUED as usize][1] = "faults_queued";
    names[FAULTS_TAKEN as usize][1] = "faults_taken";
    names[BAD_SECTIONS as usize][1] = "bad_sections";
    names[SECTION_SEARCHES as usize][1] = "section_searches";
    if COMPARES {
        names[COMPARED as usize][1] = "compared";
        names[DIFFERENT as usize][1] = "different";
    }
    let mut nth = 0;
    while nth < WalkContext::ALL.len() {
        let name = text(WalkContext::ALL[nth].name());
        names[WALKS as usize + nth] = ["walks_", name];
        names[FRAMES_IN as usize + nth] = ["frames_in_", name];
        nth += 1;
    }
    nth = 0;
    while nth < FrameSource::ALL.len() {
        names[FRAMES_BY as usize + nth] = ["frames_by_", text(FrameSource::ALL[nth].name())];
        nth += 1;
    }
    nth = 0;
    while nth < StopReason::ALL.len() {
        names[STOPS as usize + nth] = ["stop_", text(StopReason::ALL[nth].name())];
        nth += 1;
    }
    names
};

/// `name` as a string.
const fn text(name: &CStr) -> &str {
    match name.to_str() {
        Ok(text) => text,
        Err(_) => panic!("a name is not a string"),
    }
}
