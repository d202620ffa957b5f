// SPDX-License-Identifier: GPL-2.0-only

//! Return addresses that uretprobes have replaced.
//!
//! A uretprobe replaces a function's return address by the address of a trampoline. The kernel
//! keeps a list of the replaced addresses. No row describes this change.

use crate::{
    sframe::{
        arch::uprobe::KEY_BELOW_SP,
        unwind::Frame, //
    },
    sys,
    user_memory::{
        UserMemory,
        VISIT, //
    }, //
};
use kernel::page::PAGE_SIZE;

/// The work of [`put_back`] at the beginning of a page: a search of the kernel's list of
/// uretprobes, which has up to 64 entries.
const PUT_BACK: u32 = 130;

/// Restores a return address that a uretprobe replaced. False if the kernel does not know the
/// address, as when it is just about to note it, or if no budget is left. Any context.
#[inline(never)]
pub(crate) fn put_back(frame: &mut Frame, memory: &UserMemory) -> bool {
    // The trampoline begins a page of its own.
    if frame.pc % PAGE_SIZE as u64 != 0 {
        return true;
    }
    if memory.take(PUT_BACK).is_err() {
        return false;
    }
    if trampoline_at(frame.pc, memory) != Some(frame.pc) {
        return true;
    }
    match sys::uretprobe_orig_ra(frame.sp.wrapping_sub(KEY_BELOW_SP)) {
        Some(original) => {
            frame.pc = original;
            true
        }
        None => false,
    }
}

/// The start of the mapping at an address, as a run-time address, if the mapping is executable and
/// has no file, like the kernel's own trampolines. None, too, if no budget is left.
#[inline(never)]
pub(crate) fn trampoline_at(address: u64, memory: &UserMemory) -> Option<u64> {
    memory.take(VISIT).ok()?;
    let mut mapping = sys::Mapping::default();
    sys::find_mapping(address, &mut mapping).ok()?;
    (mapping.executable && !mapping.is_file).then_some(mapping.start)
}
