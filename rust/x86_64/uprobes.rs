// SPDX-License-Identifier: GPL-2.0-only

//! Undoes the changes that uprobes make to a task's stack and PC.
//!
//! A uretprobe replaces a function's return address on the stack by the address of a trampoline;
//! the kernel keeps a list of the replaced addresses. An instruction with a uprobe may run
//! elsewhere ("out of line"). An optimised uprobe is a call of another trampoline. No row describes
//! these changes.

use crate::{
    sframe::{
        fallback,
        unwind::{
            Frame,
            Memory, //
        },
        x86_64::{
            self,
            registers::{
                R11,
                RAX,
                RCX, //
            },
            UprobeTrampoline, //
        }, //
    },
    sys::{
        self,
        PtRegs, //
    },
    uretprobes::trampoline_at,
    user_memory::UserMemory, //
};

/// Whether the kernel is about to set the task's registers for a uprobe, or to restore them: the PC
/// and the stack pointer may then not belong together. Any context.
#[inline(never)]
pub(crate) fn is_changing(frame: &Frame, registers: &PtRegs<'_>, memory: &UserMemory) -> bool {
    use crate::sframe::unwind::RegisterSource as _;

    // For a uretprobe the kernel sets the PC last: on the way in, the PC is still in the
    // trampoline.
    let saved_at = if trampoline_at(frame.pc, memory).is_some() {
        frame.sp.wrapping_sub(x86_64::UPROBE_SAVED as u64)
    } else {
        frame.sp
    };
    let [Some(rax), Some(rcx), Some(r11)] =
        [RAX, RCX, R11].map(|number| registers.register(number))
    else {
        return false;
    };
    memory
        .read(saved_at)
        .is_ok_and(|saved| x86_64::is_saved_by_uprobe(&saved, rax, rcx, r11))
}

/// Leaves the trampolines that the kernel has mapped for uprobes: if the PC of `frame` is in a
/// trampoline, `frame` becomes the program's frame that entered the trampoline. `frame` is the
/// innermost frame, or one that a signal interrupted. False if the program's frame cannot be
/// determined. Any context.
///
/// (The kernel replaces the address of a uretprobe's trampoline in a chain by the return address.
/// It would do so for the PC of such a frame too.)
#[inline(never)]
pub(crate) fn leave(frame: &mut Frame, memory: &UserMemory) -> bool {
    let Some(start) = trampoline_at(frame.pc, memory) else {
        spare_red_zone(frame, memory);
        return true;
    };
    let place = memory
        .read(start)
        .ok()
        .and_then(|code| x86_64::uprobe_trampoline(&code, frame.pc.wrapping_sub(start)));
    let Some(place) = place else {
        return true;
    };
    match before(place, frame, memory) {
        Some(left) => {
            *frame = left;
            true
        }
        None => false,
    }
}

/// The program's frame that entered the trampoline; `None` if it cannot be determined.
fn before(place: UprobeTrampoline, frame: &Frame, memory: &UserMemory) -> Option<Frame> {
    let (pc, sp) = match place {
        UprobeTrampoline::Returned { sp, resolved } => {
            let sp = frame.sp.checked_add(sp)?;
            let slot = sp.checked_sub(x86_64::KEY_BELOW_SP)?;
            let pc = match sys::uretprobe_orig_ra(slot) {
                Some(original) => original,
                None if resolved => {
                    let pc = memory.read_word(slot).ok()?;
                    // The kernel may be about to write the original address there.
                    fallback::is_behind_call(pc, memory).then_some(pc)?
                }
                None => return None,
            };
            (pc, sp)
        }
        UprobeTrampoline::Called { ra, sp } => {
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

/// Between the two instructions of an optimised uprobe, the first has already moved the stack
/// pointer below the red zone: moves it back.
fn spare_red_zone(frame: &mut Frame, memory: &UserMemory) {
    const BEFORE: u64 = x86_64::OPTIMISED as u64 / 2;

    let target = memory
        .read(frame.pc.wrapping_sub(BEFORE))
        .ok()
        .and_then(|code| x86_64::shifted_by_uprobe(&code, frame.pc));
    if target.is_some_and(|target| trampoline_at(target, memory) == Some(target)) {
        frame.sp = frame.sp.wrapping_add(x86_64::RED_ZONE);
    }
}
