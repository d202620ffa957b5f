// SPDX-License-Identifier: GPL-2.0-only

//! Undoes the changes that uprobes make to a task's registers.
//!
//! A uretprobe replaces x30 at the entry of a function. The function itself stores the trampoline's
//! address. (An instruction with a uprobe may run elsewhere, "out of line": see
//! `sfu_uprobe_orig_pc`.)

use crate::{
    sframe::unwind::Frame,
    sys::PtRegs,
    uretprobes::put_back,
    user_memory::UserMemory, //
};

/// Whether the kernel is about to set the task's registers for a uprobe, or to restore them: never,
/// because the trampoline is one breakpoint and changes no register but the PC. Any context.
#[inline(always)]
pub(crate) fn is_changing(_frame: &Frame, _registers: &PtRegs<'_>, _memory: &UserMemory) -> bool {
    false
}

/// Leaves the trampoline of uretprobes: if the PC of `frame` is there, `frame` becomes the frame
/// that the probed function has returned to. `frame` is the innermost frame, or one that a signal
/// interrupted. False if that frame cannot be determined. Any context.
#[inline(always)]
pub(crate) fn leave(frame: &mut Frame, memory: &UserMemory) -> bool {
    put_back(frame, memory)
}
