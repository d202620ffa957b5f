// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Runtimes that make code: one file for each, and the only `match` over them.
//!
//! A region tells how the frames in a range of code are laid out; somebody has registered it for
//! the process. Its description and the memory of the process are not trusted. A step is accepted
//! only if it leads after a call, or to where the runtime's own file proves that its frames may
//! lead.

mod code;
mod erlang;
pub mod hotspot;
mod hotspot_interpreter;
mod jsc;
mod sbcl;
mod steps;
pub mod unknown;
mod v8;

pub use self::{
    erlang::TaggedStack,
    hotspot::CodeHeap, //
};

use self::steps::{
    call_before,
    run_steps, //
};
use crate::sframe::{
    format::bytes::Source,
    unwind::step::{
        Frame,
        Memory,
        RegisterSource,
        Step,
        WordReader, //
    },
    x86_64::{
        fallback::behind_call,
        insn::{
            CALL_RELATIVE,
            GROUP_5, //
        },
        prologue::FixedRule, //
    }, //
};
use core::ops::Range;

/// The most work of a step of [`run_fast`], in instructions.
const STEP: u32 = 240;

/// The layout of the frames in a region.
#[derive(Clone, Copy, Debug)]
pub enum Region {
    /// No step is taken.
    Stop,
    /// All frames have this rule.
    Fixed(FixedRule),
    /// A heap of sized blocks with a segment map: HotSpot's.
    CodeHeap(CodeHeap),
    /// Code whose stack has tagged words: Erlang's.
    TaggedStack(TaggedStack),
}

impl Region {
    /// Whether the fast path may begin at a frame of the region that a step by rows has led to.
    /// HotSpot's compiled code may have saved registers below its frame for a call of other code,
    /// and the fast path does not look for this.
    pub const fn is_fast_after_rows(&self) -> bool {
        !matches!(self, Region::CodeHeap(_))
    }
}

/// Takes a step from a frame in a region; `None` if no step can be trusted. `code` is the part of
/// the region around the PC.
///
/// `registers` are the registers of the innermost frame, or of a frame that a signal interrupted;
/// `None` for other frames.
#[inline(always)]
pub fn step<M: Memory + Source + ?Sized, R: RegisterSource + ?Sized>(
    region: &Region,
    code: Range<u64>,
    frame: &Frame,
    registers: Option<&R>,
    memory: &M,
) -> Option<Step> {
    match region {
        Region::Stop => None,
        Region::Fixed(rule) => behind_call(*rule, frame, memory),
        Region::CodeHeap(heap) => heap.step(frame, registers, memory),
        Region::TaggedStack(erlang) => erlang.step(code, frame, registers, memory),
    }
}

/// The fast path in a region: takes steps from `frame`, which has made a call. Stops at a frame
/// that is neither of compiled code of HotSpot nor of a fixed rule, or whose caller is outside of
/// `code`, a range of run-time addresses. Stores the return addresses of the found frames in
/// `buffer`, from its start on, and returns their number; `frame` becomes the last one. Each step
/// has the result of [`step`]; steps that this function is too simple for are left to it.
///
/// `memory` has the budget, and `words` the same memory. Context: any in which both may be used.
#[inline]
pub fn run_fast<S: Source + ?Sized, W: WordReader>(
    region: &Region,
    code: Range<u64>,
    frame: &mut Frame,
    memory: &S,
    words: &W,
    buffer: &mut [u64],
) -> usize {
    let Range { start, end } = match region {
        Region::CodeHeap(heap) => heap.compiled_part(code, frame.pc),
        Region::Fixed(rule) if rule.keeps_aligned() => code,
        _ => return 0,
    };
    run_steps(start..end, STEP, frame, memory, buffer, |last| {
        let open = words.open();
        let caller = match region {
            Region::CodeHeap(heap) => heap.compiled_caller(last, &open),
            Region::Fixed(rule) => rule.caller_of_aligned(last, &open),
            _ => None,
        }?;
        // Most calls are relative, or by a register. All others are left to `step`.
        matches!(
            open.word(call_before(caller.pc)).to_le_bytes(),
            [_, _, _, CALL_RELATIVE, ..] | [.., GROUP_5, 0x10..=0x13 | 0xd0..=0xd7]
        )
        .then_some(caller)
    })
}

#[cfg(test)]
mod tests {
    use super::{
        hotspot::tests::{
            frame,
            process,
            step,
            to,
            Locals,
            CALLER,
            CODE,
            PUSHES,
            STACK, //
        },
        *, //
    };

    #[test]
    fn a_fixed_rule_holds_everywhere_in_its_region() {
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x1f8, CALLER);
        memory.word(STACK + 0x1e0, 0x44);
        let region = Region::Fixed(FixedRule::new(0x100, -32));
        let found = step(&region, &frame(CODE), None::<&Locals>, &memory);
        assert_eq!(to(found), Some((0x200, 0x44)));
        memory.word(STACK + 0x1f8, CALLER + 1);
        assert_eq!(step(&region, &frame(CODE), None::<&Locals>, &memory), None);
        let stop = step(&Region::Stop, &frame(CODE), None::<&Locals>, &memory);
        assert_eq!(stop, None);
    }
}
