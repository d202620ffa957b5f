// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The second walk, for rows that count from rbx.

use crate::sframe::{
    format::bytes::Source,
    rule::{
        Rule,
        SavedRbx, //
    },
    unwind::step::{
        Frame,
        Memory,
        RegisterSource, //
    },
    walk::task::Task,
    x86_64::registers::{
        RBP,
        RBX,
        RETURN_ADDRESS,
        RSP, //
    }, //
};

/// The second walk from the innermost frame to a frame whose row counts from rbx. It finds the value of rbx there: the
/// frame that is nearest to that frame and has saved rbx has the value. If none has saved rbx, rbx still has the value.
pub(super) struct Replay {
    /// The stack pointer of the frame whose row counts from rbx; 0 if there is no second walk, and
    /// [`ENDED`](Self::ENDED) if it has just ended at that frame.
    pub(super) caller: u64,
    /// During the second walk, the run-time address of the slot; or 0 if the value is in rbx, and 1 if it is not known
    /// where. Then the value.
    pub(super) place: u64,
}

impl Replay {
    pub(super) const NONE: Replay = Replay {
        caller: 0,
        place: 0,
    };

    /// No stack pointer, because it is odd.
    pub(super) const ENDED: u64 = 1;

    /// The cost of a step of the second walk, in instructions. A page of a table with a row for each byte costs 2,000
    /// more.
    const STEP: u32 = 800;

    /// Begins the second walk, to `frame`: replaces `frame` by the innermost frame. False if that is not known.
    #[inline(never)]
    pub(super) fn begin<T: Task>(&mut self, task: &T, frame: &mut Frame) -> bool {
        let register = |number| task.registers().register(number);
        if frame.sp <= Replay::ENDED {
            return false;
        }
        *self = Replay {
            caller: frame.sp,
            place: 0,
        };
        let (Some(pc), Some(sp), Some(fp)) =
            (register(RETURN_ADDRESS), register(RSP), register(RBP))
        else {
            return false;
        };
        *frame = Frame { pc, sp, fp };
        true
    }

    /// Notes the step by a rule from a frame with the stack pointer `sp` to its caller, `frame`. False if the second
    /// walk does not lead to the value.
    #[inline(never)]
    pub(super) fn step<T: Task>(&mut self, task: &T, rule: &Rule, sp: u64, frame: &Frame) -> bool {
        let SavedRbx(slots) = rule.extra.rbx;
        let slot = frame.sp.wrapping_sub(u64::from(slots).wrapping_mul(8));
        match rule.extra.rbx {
            SavedRbx::UNKNOWN => self.place = 1,
            SavedRbx::KEPT => {}
            _ if slot < sp => {}
            _ => self.place = slot,
        }
        // Other threads may change the stack between the two walks. So each step has to rise and takes budget, because
        // a step may read no memory, and the second walk stores no frame.
        if rule.signal
            || rule.extra.changes_stack
            || frame.sp <= sp
            || frame.sp > self.caller
            || task.memory().spend(Replay::STEP).is_err()
        {
            return false;
        }
        if frame.sp == self.caller {
            let value = match self.place {
                0 => task.registers().register(RBX),
                1 => None,
                slot => task.memory().read_word(slot).ok(),
            };
            let Some(value) = value else {
                return false;
            };
            *self = Replay {
                caller: Replay::ENDED,
                place: value,
            };
        }
        true
    }
}
