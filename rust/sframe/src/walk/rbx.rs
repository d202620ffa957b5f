// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The second walk, for rows that count from rbx.

use crate::sframe::{
    arch::registers::{
        FOLLOWED,
        FP,
        RETURN_ADDRESS,
        SP, //
    },
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
    walk::task::Task, //
};

/// The second walk from the innermost frame to a frame whose row counts from rbx. It finds the
/// value of rbx there: the frame that is nearest to that frame and has saved rbx has the value. If
/// none has saved rbx, rbx still has the value.
#[derive(Clone, Copy)]
pub(super) enum Replay {
    /// There is no second walk.
    None,
    /// The second walk is on its way.
    Running {
        /// The stack pointer of the frame whose row counts from rbx.
        caller: u64,
        /// Where the value is, as far as the second walk has come.
        place: RbxPlace,
    },
    /// The second walk has just ended at the frame whose row counts from rbx. The register has this
    /// value there.
    Found(u64),
}

/// Where a value of rbx is.
#[derive(Clone, Copy)]
pub(super) enum RbxPlace {
    /// In rbx.
    InRegister,
    /// Not known.
    Unknown,
    /// In memory, at this run-time address.
    Slot(u64),
}

/// The work of a step of the second walk, in instructions, in addition to that of a frame of the
/// first walk.
const STEP: u32 = 400;

impl Replay {
    /// Begins the second walk, to `frame`: replaces `frame` by the innermost frame. `None` if that
    /// is not known.
    #[inline(never)]
    pub(super) fn begin<T: Task>(task: &T, frame: &mut Frame) -> Option<Replay> {
        let register = |number| task.registers().register(number);
        let caller = frame.sp;
        *frame = Frame {
            pc: register(RETURN_ADDRESS)?,
            sp: register(SP)?,
            fp: register(FP)?,
        };
        Some(Replay::Running {
            caller,
            place: RbxPlace::InRegister,
        })
    }

    /// Notes the step by a rule from a frame with the stack pointer `sp` to its caller, `frame`.
    /// False if the second walk does not lead to the value.
    #[inline(never)]
    pub(super) fn step<T: Task>(&mut self, task: &T, rule: &Rule, sp: u64, frame: &Frame) -> bool {
        let Replay::Running { caller, place } = self else {
            return false;
        };
        match rule.extra.rbx {
            SavedRbx::UNKNOWN => *place = RbxPlace::Unknown,
            SavedRbx::KEPT => {}
            SavedRbx(slots) => {
                let slot = frame.sp.wrapping_sub(u64::from(slots).wrapping_mul(8));
                if slot >= sp {
                    *place = RbxPlace::Slot(slot);
                }
            }
        }
        // Other threads may change the stack between the two walks. So each step has to rise and
        // takes budget, because a step may read no memory, and the second walk stores no frame.
        if rule.signal
            || rule.extra.changes_stack
            || frame.sp <= sp
            || frame.sp > *caller
            || task.memory().spend(STEP).is_err()
        {
            return false;
        }
        if frame.sp == *caller {
            let value = match *place {
                RbxPlace::InRegister => task.registers().register(FOLLOWED),
                RbxPlace::Unknown => None,
                RbxPlace::Slot(slot) => task.memory().read_word(slot).ok(),
            };
            let Some(value) = value else {
                return false;
            };
            *self = Replay::Found(value);
        }
        true
    }
}
