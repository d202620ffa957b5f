// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Records the calls that are executed: the reference for code without unwind information.

use std::collections::HashMap;

use sframe::{
    unwind::Memory,
    x86_64, //
};
use walk::registers::{
    RegisterFile,
    PC,
    RBP,
    RSP, //
};

use crate::ptrace::TaskId;

/// The maximum length of a call, and of any instruction, in bytes.
const LONGEST_CALL: u64 = x86_64::LONGEST as u64;
const LONGEST: u64 = 15;
/// The maximum change of the stack pointer by one instruction, in bytes; more is a switch to
/// another stack or to a signal handler.
const FARTHEST: u64 = 4096;

/// A call that has not returned.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// The return address and its run-time address on the stack.
    slot: u64,
    return_address: u64,
    /// The caller's frame pointer.
    fp: Option<u64>,
}

/// The calls of each thread that have not returned.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    threads: HashMap<TaskId, (RegisterFile, Vec<Call>)>,
}

impl Calls {
    /// Discards all calls, because instructions were executed unseen.
    pub(crate) fn forget(&mut self) {
        self.threads.clear();
    }

    /// Records the effect of an instruction; `now` are the registers after it.
    pub(crate) fn note<M: Memory + ?Sized>(
        &mut self,
        thread: TaskId,
        now: &RegisterFile,
        memory: &M,
    ) {
        let Some((before, calls)) = self.threads.get_mut(&thread) else {
            self.threads.insert(thread, (*now, Vec::new()));
            return;
        };
        let before = std::mem::replace(before, *now);
        let goes_on = (1..=LONGEST).contains(&now.pc().wrapping_sub(before.pc()));
        let is_far = now.sp().abs_diff(before.sp()) > FARTHEST;
        let top = |sp| memory.read_word(sp).ok();
        if is_far || (!goes_on && now.sp() < before.sp().wrapping_sub(8)) {
            calls.clear();
            return;
        }
        if goes_on {
            return;
        }
        if now.sp() == before.sp().wrapping_sub(8) {
            let behind = top(now.sp()).map(|to| (to, to.wrapping_sub(before.pc())));
            match behind {
                Some((return_address, 2..=LONGEST_CALL)) => calls.push(Call {
                    slot: now.sp(),
                    return_address,
                    fp: before.get(RBP),
                }),
                _ => calls.clear(),
            }
        } else if now.sp() > before.sp() && top(before.sp()) == Some(now.pc()) {
            let returned = calls
                .iter()
                .rposition(|call| call.return_address == now.pc());
            calls.truncate(returned.unwrap_or(0));
        }
    }

    /// The caller's registers, if the call was seen and its return address is still where it was; and
    /// which call it was. `inner` is that of the last frame that was told by one. If there is one behind
    /// that of the `innermost` frame, the return address was moved.
    pub(crate) fn caller<M: Memory + ?Sized>(
        &self,
        thread: TaskId,
        of: &RegisterFile,
        innermost: bool,
        inner: Option<usize>,
        memory: &M,
    ) -> Option<(RegisterFile, usize)> {
        let (_, calls) = self.threads.get(&thread)?;
        let calls = &calls[..inner.unwrap_or(calls.len())];
        let last = calls.iter().rposition(|call| call.slot >= of.sp())?;
        let call = calls[last];
        let is_moved = innermost && last + 1 != calls.len();
        if is_moved || memory.read_word(call.slot) != Ok(call.return_address) {
            return None;
        }
        let mut caller = RegisterFile::default();
        caller.set(PC, call.return_address);
        caller.set(RSP, call.slot.wrapping_add(8));
        if let Some(fp) = call.fp {
            caller.set(RBP, fp);
        }
        Some((caller, last))
    }
}
