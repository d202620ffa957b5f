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
            UprobeTrampoline, //
        },
        fallback,
        unwind::{
            Frame,
            Memory, //
        },
        x86_64::registers::{
            R11,
            RAX,
            RCX, //
        }, //
    },
    sys::{
        self,
        Registers, //
    },
    user_memory::UserMemory, //
};
use kernel::page::PAGE_SIZE;

/// The distance from a return address on the stack to the CFA, in bytes.
const BELOW_CFA: u64 = 8;

/// Whether the kernel is just about to give the task other registers, or its own ones back, around
/// what it does for a uprobe: PC and stack pointer may then not belong together. Any context.
#[inline(never)]
pub(crate) fn is_changing(frame: &Frame, registers: &Registers<'_>, memory: &UserMemory) -> bool {
    use crate::sframe::unwind::Registers as _;

    // For a uretprobe the PC goes last: on the way in it is still the trampoline's.
    let saved_at = if trampoline_at(frame.pc).is_some() {
        frame.sp.wrapping_sub(code::UPROBE_SAVED as u64)
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
        .is_ok_and(|saved| code::is_saved_by_uprobe(&saved, rax, rcx, r11))
}

/// Leaves what the kernel has mapped for uprobes: if the PC of the innermost frame, or of one that a
/// signal interrupted, is there, `frame` becomes the one of the program that it is there for. False
/// if that cannot be told. Any context.
///
/// (A trampoline's own address would be taken for a return address by the kernel, which replaces
/// those in a chain.)
#[inline(never)]
pub(crate) fn leave(frame: &mut Frame, memory: &UserMemory) -> bool {
    let Some(start) = trampoline_at(frame.pc) else {
        spare_red_zone(frame, memory);
        return true;
    };
    let place = memory
        .read(start)
        .ok()
        .and_then(|code| code::uprobe_trampoline(&code, frame.pc.wrapping_sub(start)));
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

/// The frame that was left for the trampoline.
fn before(place: UprobeTrampoline, frame: &Frame, memory: &UserMemory) -> Option<Frame> {
    let (pc, sp) = match place {
        UprobeTrampoline::Returned { sp, resolved } => {
            let sp = frame.sp.checked_add(sp)?;
            let slot = sp.checked_sub(BELOW_CFA)?;
            let pc = match sys::uretprobe_orig_ra(slot) {
                Some(original) => original,
                None if resolved => {
                    let pc = memory.read_word(slot).ok()?;
                    // The kernel may be about to put it there.
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

/// Puts right a return address that a uretprobe took. False if the kernel is just about to note
/// what it took. Any context.
#[inline(never)]
pub(crate) fn put_back(frame: &mut Frame) -> bool {
    // The trampoline is the first thing in a page of its own.
    if frame.pc % PAGE_SIZE as u64 != 0 || trampoline_at(frame.pc) != Some(frame.pc) {
        return true;
    }
    match sys::uretprobe_orig_ra(frame.sp.wrapping_sub(BELOW_CFA)) {
        Some(original) => {
            frame.pc = original;
            true
        }
        None => false,
    }
}

/// Where the mapping at an address begins, if it is code and of no file, as the kernel's own are.
fn trampoline_at(address: u64) -> Option<u64> {
    let mut mapping = sys::Mapping::default();
    sys::find_mapping(address, &mut mapping).ok()?;
    (mapping.executable && !mapping.is_file).then_some(mapping.start)
}
