// SPDX-License-Identifier: GPL-2.0-only

//! What uprobes do to a task's stack, undone.
//!
//! A uretprobe takes the return address of a function and puts that of a trampoline in its place;
//! the kernel keeps a list of what it took. An instruction under a uprobe may run elsewhere ("out of
//! line"). An optimised uprobe is a call of another trampoline. None of that is in any row.

use crate::{
    sframe::{
        code::{
            self,
            Trampoline, //
        },
        unwind::{
            Frame,
            Memory, //
        }, //
    },
    sys,
    user_memory::UserMemory, //
};

/// The distance from a return address on the stack to the CFA, in bytes.
const BELOW_CFA: u64 = 8;

/// Leaves what the kernel has mapped for uprobes: if the innermost frame's PC is in a trampoline,
/// `frame` becomes the one that was left for it. False if it is not, and the frame is complete as it
/// is. Any context.
#[inline(never)]
pub(crate) fn leave_trampoline(frame: &mut Frame, memory: &UserMemory) -> bool {
    let Some(start) = trampoline_at(frame.pc) else {
        spare_red_zone(frame, memory);
        return false;
    };
    let left = memory
        .read(start)
        .ok()
        .and_then(|code| code::trampoline(&code, frame.pc.wrapping_sub(start)))
        .and_then(|place| before(place, frame, memory));
    if let Some(caller) = left {
        *frame = caller;
    }
    left.is_some()
}

/// The frame that was left for the trampoline.
fn before(place: Trampoline, frame: &Frame, memory: &UserMemory) -> Option<Frame> {
    let (pc, sp) = match place {
        Trampoline::Returned { sp, resolved } => {
            let sp = frame.sp.checked_add(sp)?;
            let slot = sp.checked_sub(BELOW_CFA)?;
            let pc = match sys::taken_by_uretprobe(slot) {
                Some(original) => original,
                None if resolved => memory.read_word(slot).ok()?,
                None => return None,
            };
            (pc, sp)
        }
        Trampoline::Called { ra, sp } => {
            let slot = frame.sp.checked_add(ra)?;
            (memory.read_word(slot).ok()?, slot.checked_add(sp)?)
        }
    };
    Some(Frame {
        pc,
        sp,
        fp: frame.fp,
    })
}

/// Between the two instructions of an optimised uprobe the stack pointer has been moved already.
fn spare_red_zone(frame: &mut Frame, memory: &UserMemory) {
    const BEFORE: u64 = code::OPTIMISED as u64 / 2;

    let target = memory
        .read(frame.pc.wrapping_sub(BEFORE))
        .ok()
        .and_then(|code| code::shifted_by_uprobe(&code, frame.pc));
    if target.is_some_and(|target| trampoline_at(target) == Some(target)) {
        frame.sp = frame.sp.wrapping_add(code::RED_ZONE);
    }
}

/// Puts right a return address that a uretprobe took. Any context.
#[inline(never)]
pub(crate) fn put_back(frame: &mut Frame) {
    if let Some(original) = sys::taken_by_uretprobe(frame.sp.wrapping_sub(BELOW_CFA)) {
        // What the list says of a slot may be old.
        if trampoline_at(frame.pc) == Some(frame.pc) {
            frame.pc = original;
        }
    }
}

/// Where the mapping at an address begins, if it is code and of no file, as the kernel's own are.
fn trampoline_at(address: u64) -> Option<u64> {
    let mut mapping = sys::Mapping::default();
    sys::find_mapping(address, &mut mapping).ok()?;
    (mapping.executable && !mapping.is_file).then_some(mapping.start)
}
