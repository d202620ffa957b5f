// SPDX-License-Identifier: GPL-2.0-only

//! Undoes the changes that uretprobes make to return addresses.
//!
//! A uretprobe replaces x30 at the entry of a function by the address of a trampoline; the kernel
//! keeps a list of the replaced addresses. The function itself stores the trampoline's address. No
//! row describes this change. (An instruction with a uprobe may run elsewhere, "out of line": see
//! `sfu_uprobe_orig_pc`.)

use crate::{
    sframe::{
        aarch64::KEY_ABOVE_SP,
        unwind::Frame, //
    },
    sys::{
        self,
        PtRegs, //
    },
    user_memory::{
        UserMemory,
        VISIT, //
    }, //
};
use kernel::page::PAGE_SIZE;

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

/// The work of [`put_back`] at the beginning of a page: a search of the kernel's list of
/// uretprobes, which has up to 64 entries.
const PUT_BACK: u32 = 130;

/// Restores a return address that a uretprobe replaced. False if the kernel does not know the
/// address, or if no budget is left. Any context.
#[inline(never)]
pub(crate) fn put_back(frame: &mut Frame, memory: &UserMemory) -> bool {
    // The trampoline begins a page of its own.
    if frame.pc % PAGE_SIZE as u64 != 0 {
        return true;
    }
    if memory.take(PUT_BACK).is_err() {
        return false;
    }
    if !is_trampoline(frame.pc, memory) {
        return true;
    }
    match sys::uretprobe_orig_ra(frame.sp.wrapping_add(KEY_ABOVE_SP)) {
        Some(original) => {
            frame.pc = original;
            true
        }
        None => false,
    }
}

/// Whether a mapping begins at a run-time address that is executable and has no file, like the
/// kernel's own trampoline. False, too, if no budget is left.
#[inline(never)]
fn is_trampoline(address: u64, memory: &UserMemory) -> bool {
    let mut mapping = sys::Mapping::default();
    memory.take(VISIT).is_ok()
        && sys::find_mapping(address, &mut mapping).is_ok()
        && mapping.executable
        && !mapping.is_file
        && mapping.start == address
}
