// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The loop of the fast paths through code of runtimes, and through code that keeps its frame
//! pointer.

use crate::sframe::{
    format::bytes::Source,
    unwind::step::Frame,
    x86_64::insn::CALL_WINDOW, //
};
use core::ops::Range;

/// The run-time address of the [`CALL_WINDOW`] bytes in front of the return address `pc`.
#[inline(always)]
pub(super) const fn call_before(pc: u64) -> u64 {
    pc.wrapping_sub(const { CALL_WINDOW as u64 })
}

/// Takes steps by `caller` from `frame`, which has made a call, as long as they lead to run-time
/// addresses in `code`. `caller` takes at most `work` instructions, which are taken from the budget
/// of `memory`. Stores the return addresses of the found frames in `buffer`, from its start on, and
/// returns their number; `frame` becomes the last one.
#[inline(always)]
pub(super) fn run_steps<S: Source + ?Sized>(
    code: Range<u64>,
    work: u32,
    frame: &mut Frame,
    memory: &S,
    buffer: &mut [u64],
    caller: impl Fn(&Frame) -> Option<Frame>,
) -> usize {
    let Range { start, end } = code;
    if frame.sp % 8 != 0 || !(start..end).contains(&frame.pc.wrapping_sub(1)) {
        return 0;
    }
    let code_len = end.wrapping_sub(start);
    let len = buffer.len();
    let mut slots = buffer.iter_mut();
    let mut last = *frame;
    while memory.spend(work).is_ok() {
        let Some(caller) = caller(&last) else {
            break;
        };
        if caller.pc.wrapping_sub(1).wrapping_sub(start) >= code_len {
            break;
        }
        let Some(slot) = slots.next() else {
            break;
        };
        *slot = caller.pc;
        last = caller;
    }
    *frame = last;
    len.wrapping_sub(slots.len())
}
