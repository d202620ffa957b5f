// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Records the calls that are executed: the reference for code without unwind information.
//!
//! A return address may move: HotSpot's adapters and the entries of interpreted methods take it off
//! the stack, put arguments or local variables there, and put it back. HotSpot's interpreter calls
//! by a push of the return address and a jump, and returns by a jump. SBCL's functions move it into
//! their frame, which the caller has made; the frame pointer is the callee's already when the
//! caller calls. To leave frames for an outer one, SBCL sets the frame pointer to that of the outer
//! frame, and then calls the clean-up code of that frame; the frames in between are left. When a
//! virtual thread leaves its carrier, HotSpot copies the thread's frames to the heap of objects,
//! and takes the frame in which the carrier entered the thread; so the thread's calls are gone.
//! Erlang's compiled code leaves the stack of its process for that of the thread when it calls C
//! functions. The stack of the process may have moved when the code comes back, or another process
//! runs.
//!
//! The calls that began unseen are presumed from a walk. A presumed call is confirmed when its
//! function returns.

use std::collections::HashMap;

use sframe::{
    runtimes::{
        Region,
        TaggedStack, //
    },
    unwind::{
        Frame,
        Memory,
        LOST_FP, //
    },
    x86_64::registers::R13, //
};
use walk::{
    process::Process,
    registers::{
        RegisterFile,
        PC,
        RBP,
        RSP, //
    },
    walker, //
};

use crate::ptrace::TaskId;

/// The maximum length of a call, and of any instruction, in bytes.
const LONGEST_CALL: u64 = 7;
const LONGEST: u64 = 15;
const CALL_RELATIVE: u8 = 0xe8;
const RET: u8 = 0xc3;
const PUSH_RDX: u8 = 0x52;
/// lea -0x40(%rbx),%rsp
const LEAVES_STACK: [u8; 4] = [0x48, 0x8d, 0x63, 0xc0];
/// The fields of the structure of a process of Erlang, in words, among which its stack pointer is.
const PROCESS_FIELDS: u64 = 32;
/// The maximum change of the stack pointer by one instruction, in bytes; more is a switch to
/// another stack or to a signal handler, if the instruction does not add or subtract a constant.
const FARTHEST: u64 = 4096;

/// A call that has not returned.
#[derive(Clone, Copy, Debug)]
struct Call {
    return_address: u64,
    /// The run-time address of the return address on the stack; `None` while it is in a register
    /// only.
    slot: Option<u64>,
    /// The run-time address at which the call put the return address.
    first_slot: u64,
    /// The caller's frame pointer.
    fp: Option<u64>,
    /// How often a frame was equal to this call, if the call was not seen but presumed.
    presumed: Option<u64>,
}

/// The caller of a frame, by a recorded call.
pub(crate) struct RecordedCaller {
    /// The caller's registers, as far as they are known.
    pub(crate) registers: RegisterFile,
    /// The stack pointers that the caller may have: without the return address at its present and
    /// at its first place.
    pub(crate) sps: [u64; 2],
    /// Which call it was.
    pub(crate) which: usize,
    /// Whether the call was not seen but presumed.
    pub(crate) presumed: bool,
    /// Whether the return address is no longer where the call put it.
    pub(crate) is_moved: bool,
}

/// What became of presumed calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Presumed {
    /// Presumed calls that returned to where they were presumed to return.
    pub(crate) confirmed: u64,
    /// Frames that were equal to these calls before they returned.
    pub(crate) frames: u64,
    /// Returns to an address to which no recorded or presumed call returns.
    pub(crate) unknown: u64,
}

/// Where code of Erlang has left the stack of a process for that of the thread.
#[derive(Clone, Copy, Debug)]
struct LeftStack {
    /// The number of calls then.
    calls: usize,
    /// The stack pointers before and after it. The first one changes when the stack moves.
    from: u64,
    to: u64,
    /// The run-time address of the field of the process that has the first one, if the code has
    /// stored it.
    field: Option<u64>,
}

/// The calls of a thread that have not returned.
#[derive(Debug)]
struct ThreadCalls {
    before: RegisterFile,
    calls: Vec<Call>,
    left: Option<LeftStack>,
}

/// The calls of each thread that have not returned.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    threads: HashMap<TaskId, ThreadCalls>,
    /// What became of presumed calls.
    pub(crate) presumed: Presumed,
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
        process: &Process,
        memory: &M,
    ) {
        let Some(ThreadCalls {
            before,
            calls,
            left,
        }) = self.threads.get_mut(&thread)
        else {
            let new = ThreadCalls {
                before: *now,
                calls: Vec::new(),
                left: None,
            };
            self.threads.insert(thread, new);
            return;
        };
        let before = std::mem::replace(before, *now);
        let word = |at| memory.read_word(at).ok();
        // SBCL calls some functions through code that jumps to them.
        if let Some(last) = calls.last_mut() {
            if last.slot == Some(now.sp()) && is_callee(word(now.pc())) {
                last.fp = now.get(RBP).and_then(word);
            }
        }
        // JavaScriptCore's handler of an exception finds its frame by the frame pointer.
        let found_sp = sp_from_fp(word(now.pc()))
            .and_then(|distance| Some(now.get(RBP)?.wrapping_add_signed(distance)));
        if let Some(sp) = found_sp.filter(|sp| *sp > now.sp()) {
            calls.retain(|call| call.slot.is_none_or(|slot| slot >= sp));
        }
        if let Some(left) = left {
            // Calls that were forgotten since are not those of the process.
            left.calls = left.calls.min(calls.len());
        }
        if let Some(erlang) = erlang_at(process, before.pc()) {
            let code = word(before.pc()).unwrap_or(0).to_le_bytes();
            let leaves = code.starts_with(&LEAVES_STACK);
            if erlang.is_main(now.pc()) && (leaves || left.is_some_and(|left| now.sp() == left.to))
            {
                // The function process_main, and what leads to it, choose the next process.
                (*calls, *left) = (Vec::new(), None);
                return;
            }
            if leaves {
                let is_stored = |field: &u64| word(*field) == Some(before.sp());
                let fields = before.get(R13).into_iter().flat_map(|process| {
                    (0..PROCESS_FIELDS).map(move |field| process.wrapping_add(8 * field))
                });
                *left = Some(LeftStack {
                    calls: calls.len(),
                    from: before.sp(),
                    to: now.sp(),
                    field: fields.into_iter().find(is_stored),
                });
                return;
            }
            // mov %rbp,%rsp; mov N(%r13),%rsp
            if matches!(code, [0x48, 0x89, 0xec, ..] | [0x49, 0x8b, 0x65, ..]) {
                come_back(calls, left.take(), now.sp(), word);
                return;
            }
        }
        if let Some(left) = left {
            let sp = left.field.and_then(word).filter(|sp| *sp != left.from);
            let moved = sp.and_then(|sp| {
                let distance = sp.wrapping_sub(left.from);
                moved(calls.get(..left.calls)?, distance, sp, word)
            });
            if let (Some(sp), Some(moved)) = (sp, moved) {
                let count = moved.len();
                calls.splice(..left.calls, moved);
                (left.calls, left.from) = (count, sp);
            }
        }
        let code_at = |at| word(at).map(|code| code.to_le_bytes()[0]);
        let is_near = (1..=LONGEST).contains(&now.pc().wrapping_sub(before.pc()));
        // A call may lead to the function after the caller, and a function that is in front of the
        // call returns there.
        let goes_on = is_near && !matches!(code_at(before.pc()), Some(CALL_RELATIVE | RET));
        let is_far = now.sp().abs_diff(before.sp()) > FARTHEST && !moves_sp(word(before.pc()));
        if is_far || (!goes_on && now.sp() < before.sp().wrapping_sub(8)) {
            calls.clear();
            return;
        }
        // A call whose return address is on top of the stack.
        let call = |return_address, fp| Call {
            return_address,
            slot: Some(now.sp()),
            first_slot: now.sp(),
            fp,
            presumed: None,
        };
        if goes_on {
            let is_region = process.layout_at(before.pc()).is_some();
            if returns_to_thawed(word(before.pc())) {
                calls.clear();
                return;
            }
            if takes_entry(word(before.pc())) && is_region {
                calls.retain(|call| call.slot.is_some_and(|slot| slot >= now.sp()));
            }
            if leaves_frames(word(before.pc())) && now.sp() > before.sp() {
                calls.retain(|call| call.slot.is_none_or(|slot| slot >= now.sp()));
            }
            let code = word(before.pc()).unwrap_or(0) & 0xff_ffff;
            // HotSpot's stubs for deoptimisation remove a compiled frame, by add %rcx,%rsp, and
            // push the return addresses of interpreted frames, by push (%rcx). The first one is
            // that of the removed frame.
            if is_region && code == 0xe1_0348 {
                calls.retain(|call| call.slot.is_some_and(|slot| slot >= now.sp()));
            }
            let return_address = word(now.sp()).filter(|_| is_region && code == 0x31_ff48);
            if let Some(return_address) = return_address {
                match calls.last_mut() {
                    Some(last) if last.slot.is_none() && last.return_address == return_address => {
                        last.slot = Some(now.sp());
                    }
                    _ => calls.push(call(return_address, before.get(RBP))),
                }
                return;
            }
            if takes_outer_frame(word(before.pc())) {
                calls.retain(|call| call.slot >= now.get(RBP));
            }
            if let Some(last) = calls.last_mut() {
                follow(last, &before, now, word);
                // Guile's compiled code calls and pops to learn its own address. Only HotSpot's
                // code returns through a register.
                let is_own = |layout: &Region| matches!(layout, Region::Fixed(_));
                if last.slot.is_none() && process.layout_at(before.pc()).is_some_and(is_own) {
                    calls.pop();
                }
            }
            // HotSpot's code for exceptions pushes the address after the call that threw, which is
            // the caller's PC.
            let pushed = word(now.sp()).filter(|_| now.sp() == before.sp().wrapping_sub(8));
            let is_thrown = |pushed: &u64| {
                code_at(before.pc()) == Some(PUSH_RDX)
                    && is_region
                    && !process.is_interpreter(before.pc())
                    && process.layout_at(*pushed).is_some()
                    && walker::is_behind_call(process, *pushed, memory)
                    && calls.last().is_none_or(|last| last.slot != Some(now.sp()))
            };
            if let Some(return_address) = pushed.filter(is_thrown) {
                calls.push(call(return_address, before.get(RBP)));
            }
            return;
        }
        if calls_cleanup(&[word(before.pc()), word(before.pc().wrapping_add(3))]) {
            calls.retain(|call| call.slot >= now.get(RBP));
            return;
        }
        let in_register = calls.last().is_some_and(|last| last.slot.is_none());
        let fp = before.get(RBP).filter(|_| !is_callee(word(now.pc())));
        // No function of Erlang has a frame pointer or saves the register.
        let fp = match erlang_at(process, before.pc()) {
            Some(_) => None,
            None => fp.or_else(|| word(before.get(RBP)?)),
        };
        let new = |return_address| call(return_address, fp);
        let presumed = &mut self.presumed;
        let mut confirm = |call: &Call| {
            if let Some(frames) = call.presumed {
                presumed.confirmed += 1;
                presumed.frames += frames;
            }
        };
        if now.sp() == before.sp().wrapping_sub(8) {
            let behind = word(now.sp()).map(|to| (to, to.wrapping_sub(before.pc())));
            // Where the interpreter calls its own code directly, it goes on in the frame of the
            // same method.
            let is_own = process.is_interpreter(before.pc())
                && process.is_interpreter(now.pc())
                && code_at(before.pc()) == Some(CALL_RELATIVE);
            match behind {
                Some(_) if is_own => {}
                Some((return_address, 2..=LONGEST_CALL)) if !in_register => {
                    calls.push(new(return_address));
                }
                _ => calls.clear(),
            }
        } else if now.sp() > before.sp() {
            if word(before.sp()) != Some(now.pc()) {
                calls.clear();
                return;
            }
            if returns_inside(calls, &before, process, memory) {
                return;
            }
            let is_last = (calls.last()).is_some_and(|call| call.slot == Some(before.sp()));
            let returned = match is_last {
                true => calls.len().checked_sub(1),
                false => calls
                    .iter()
                    .rposition(|call| call.return_address == now.pc()),
            };
            match returned {
                Some(index) => confirm(&calls[index]),
                None => presumed.unknown += u64::from(!calls.is_empty()),
            }
            calls.truncate(returned.unwrap_or(0));
        } else if in_register {
            let last = calls.last();
            if let Some(last) = last.filter(|last| last.return_address == now.pc()) {
                confirm(last);
                calls.pop();
            } else if jumps_indirectly(word(before.pc())) {
                // Otherwise the jump leads to the caller's handler of an exception.
                calls.pop();
            }
        } else if process.is_interpreter(before.pc()) && jumps_indirectly(word(before.pc())) {
            // A jump to the word on top of the stack is a return. A method handle had removed an
            // argument, and the word is what was the return address.
            let is_pushed = |pushed: &u64| process.is_interpreter(*pushed) && *pushed != now.pc();
            let pushed = word(now.sp()).filter(is_pushed);
            let is_known = calls.last().is_some_and(|last| last.slot == Some(now.sp()));
            if let Some(pushed) = pushed.filter(|_| !is_known) {
                calls.push(new(pushed));
            }
        }
    }

    /// Presumes the calls of a stack that was walked, if none is known. The innermost frame is the
    /// first.
    pub(crate) fn presume<M: Memory + ?Sized>(
        &mut self,
        thread: TaskId,
        frames: &[Frame],
        process: &Process,
        memory: &M,
    ) {
        let Some(ThreadCalls { calls, left, .. }) = self.threads.get_mut(&thread) else {
            return;
        };
        // Code of Erlang may have left its stack unseen.
        let is_erlang = |frame: &Frame| erlang_at(process, frame.pc).is_some();
        let has_left = !frames.first().is_some_and(is_erlang) && frames.iter().any(is_erlang);
        if !calls.is_empty() || left.is_some() || has_left {
            return;
        }
        for pair in frames.windows(2) {
            let (of, caller) = (pair[0], pair[1]);
            // The second is that of an interpreted frame, unless the frame pointer is the caller's
            // already.
            let slots = [caller.sp.wrapping_sub(8), of.fp.wrapping_add(8)];
            let is_slot = |slot: &u64| {
                memory.read_word(*slot) == Ok(caller.pc)
                    && (*slot == slots[0] || of.fp != caller.fp)
            };
            let Some(slot) = slots.into_iter().find(is_slot) else {
                break;
            };
            calls.push(Call {
                return_address: caller.pc,
                // Code may have taken its return address from the stack already.
                slot: (slot >= of.sp).then_some(slot),
                first_slot: caller.sp.wrapping_sub(8),
                fp: (!is_erlang(&caller) && caller.fp != LOST_FP).then_some(caller.fp),
                presumed: Some(0),
            });
        }
        calls.reverse();
    }

    /// Counts a frame that is equal to a presumed call.
    pub(crate) fn count(&mut self, thread: TaskId, which: usize) {
        if let Some(ThreadCalls { calls, .. }) = self.threads.get_mut(&thread) {
            if let Some(Call {
                presumed: Some(frames),
                ..
            }) = calls.get_mut(which)
            {
                *frames += 1;
            }
        }
    }

    /// The caller, if the call was seen and its return address is still where it was. `inner` is
    /// the call that told the last frame that was told by one.
    pub(crate) fn caller<M: Memory + ?Sized>(
        &self,
        thread: TaskId,
        of: &RegisterFile,
        innermost: bool,
        inner: Option<usize>,
        process: &Process,
        memory: &M,
    ) -> Option<RecordedCaller> {
        let ThreadCalls { calls, left, .. } = self.threads.get(&thread)?;
        let code = memory.read_word(of.pc()).unwrap_or(0);
        if innermost && code.to_le_bytes()[0] == RET && !returns_inside(calls, of, process, memory)
        {
            let mut registers = *of;
            registers.set(PC, memory.read_word(of.sp()).ok()?);
            registers.set(RSP, of.sp().wrapping_add(8));
            let is_return = |call: &Call| call.slot.is_some_and(|slot| slot <= of.sp());
            // The return address may have been pushed anew.
            let is_last = |call: &&Call| call.return_address == registers.pc();
            let others = calls.len() - usize::from(calls.last().filter(is_last).is_some());
            return Some(RecordedCaller {
                registers,
                sps: [registers.sp(); 2],
                which: calls.iter().position(is_return).unwrap_or(others),
                presumed: false,
                is_moved: false,
            });
        }
        let calls = &calls[..inner.unwrap_or(calls.len())];
        let which = if innermost {
            calls.len().checked_sub(1)?
        } else if let Some(left) = left.filter(|left| left.to == of.sp()) {
            left.calls.checked_sub(1)?
        } else {
            (calls.iter()).rposition(|call| call.slot.is_some_and(|slot| slot >= of.sp()))?
        };
        let call = *calls.get(which)?;
        let slot = call.slot.unwrap_or(call.first_slot);
        if call.slot.is_some() && memory.read_word(slot) != Ok(call.return_address) {
            return None;
        }
        let mut registers = RegisterFile::default();
        registers.set(PC, call.return_address);
        registers.set(RSP, slot.wrapping_add(8));
        if let Some(fp) = call.fp {
            registers.set(RBP, fp);
        }
        Some(RecordedCaller {
            registers,
            sps: [slot.wrapping_add(8), call.first_slot.wrapping_add(8)],
            which,
            presumed: call.presumed.is_some(),
            is_moved: call.slot != Some(call.first_slot),
        })
    }

    /// The last recorded calls of a thread, as text.
    pub(crate) fn describe(&self, thread: TaskId) -> String {
        let Some(ThreadCalls { calls, .. }) = self.threads.get(&thread) else {
            return String::new();
        };
        let lines = calls.iter().rev().take(12).map(|call| {
            let Call {
                return_address,
                slot,
                first_slot,
                fp,
                presumed,
            } = call;
            format!(
                "  call with the return address {return_address:#x} at {:#x}, first at {first_slot:#x}, fp {:#x}{}\n",
                slot.unwrap_or(0),
                fp.unwrap_or(0),
                if presumed.is_some() { ", presumed" } else { "" }
            )
        });
        lines.collect()
    }
}

/// Whether the thread returns to where HotSpot's interpreter has called its own code, with a direct
/// call, to have a return address on the stack. This is no call of a method.
fn returns_inside<M: Memory + ?Sized>(
    calls: &[Call],
    at: &RegisterFile,
    process: &Process,
    memory: &M,
) -> bool {
    let to = memory.read_word(at.sp());
    let is_behind = |call: &Call| call.slot.is_some_and(|slot| slot > at.sp());
    process.is_interpreter(at.pc())
        && to.is_ok_and(|to| process.is_interpreter(to))
        && calls.last().is_some_and(is_behind)
}

/// The region at a run-time address, if it is code of Erlang.
fn erlang_at(process: &Process, pc: u64) -> Option<TaggedStack> {
    match process.layout_at(pc)? {
        Region::TaggedStack(erlang) => Some(*erlang),
        _ => None,
    }
}

/// Code of Erlang is on the stack of a process again: `calls` become those of this process, as far
/// as they are known.
fn come_back(
    calls: &mut Vec<Call>,
    left: Option<LeftStack>,
    sp: u64,
    word: impl Fn(u64) -> Option<u64>,
) {
    let Some(left) = left else {
        calls.clear();
        return;
    };
    calls.truncate(left.calls);
    // Functions may have been left, or the stack has moved.
    let distances = [0, sp.wrapping_sub(left.from)];
    *calls = (distances.into_iter())
        .find_map(|distance| moved(calls, distance, sp, &word))
        .unwrap_or_default();
}

/// The calls of a process of Erlang whose stack pointer is `sp` and whose stack was moved by
/// `distance` bytes. `None` if their return addresses are not there.
fn moved(
    calls: &[Call],
    distance: u64,
    sp: u64,
    word: impl Fn(u64) -> Option<u64>,
) -> Option<Vec<Call>> {
    let moved: Vec<Call> = (calls.iter())
        .filter_map(|call| {
            let slot = call.slot?.wrapping_add(distance);
            (slot >= sp).then_some(Call {
                slot: Some(slot),
                first_slot: slot,
                ..*call
            })
        })
        .collect();
    let is_there = |call: &Call| call.slot.and_then(&word) == Some(call.return_address);
    (!moved.is_empty() && moved.iter().all(is_there)).then_some(moved)
}

/// Whether an instruction that begins with these bytes is `pop 8(%rbp)`, which SBCL's functions
/// begin with.
fn moves_return_address(code: Option<u64>) -> bool {
    matches!(code.unwrap_or(0).to_le_bytes(), [0x8f, 0x45, 0x08, ..])
}

/// Whether the code that begins with these bytes is a function of SBCL's, or the code of a generic
/// function's object, which jumps to one: mov 9(%rip),%rax; jmp *-3(%rax).
fn is_callee(code: Option<u64>) -> bool {
    const TO_FUNCTION: [u8; 8] = [0x48, 0x8b, 0x05, 9, 0, 0, 0, 0xff];
    moves_return_address(code) || code == Some(u64::from_le_bytes(TO_FUNCTION))
}

/// Follows the return address of the last call, when an instruction without a jump was executed.
fn follow(
    last: &mut Call,
    before: &RegisterFile,
    now: &RegisterFile,
    word: impl Fn(u64) -> Option<u64>,
) {
    let is_return_address = |at: u64| word(at) == Some(last.return_address);
    if now.sp() == before.sp() {
        let stored = stores_at(word(before.pc())).map(|distance| now.sp().wrapping_add(distance));
        if let (None, Some(at)) = (last.slot, stored.filter(|at| is_return_address(*at))) {
            last.slot = Some(at);
        }
        return;
    }
    if let Some(at) = now.get(RBP).map(|fp| fp.wrapping_add(8)) {
        if moves_return_address(word(before.pc())) && is_return_address(at) {
            (last.slot, last.first_slot) = (Some(at), at);
            last.fp = word(at.wrapping_sub(8));
            return;
        }
    }
    // push 8(%rbp), for a tail call.
    let pushes_again = word(before.pc()).is_some_and(|code| code & 0xff_ffff == 0x08_75ff);
    if pushes_again && is_return_address(now.sp()) {
        last.first_slot = now.sp();
        return;
    }
    let slot = last.slot.filter(|slot| *slot >= now.sp());
    let is_push = now.sp() == before.sp().wrapping_sub(8) && pushes(word(before.pc()));
    if is_push && !slot.is_some_and(is_return_address) && is_return_address(now.sp()) {
        last.slot = Some(now.sp());
    } else if slot.is_none() {
        last.slot = None;
    }
}

/// The distance from the stack pointer, in bytes, at which an instruction that begins with these
/// bytes stores a register, if the instruction is mov %REGISTER,N(%rsp). JavaScriptCore's code for
/// calls of C functions pops its return address, and stores it so.
fn stores_at(code: Option<u64>) -> Option<u64> {
    match code.unwrap_or(0).to_le_bytes() {
        [0x48 | 0x4c, 0x89, register, 0x24, distance @ 0..=0x7f, ..] if register & 0xc7 == 0x44 => {
            Some(distance.into())
        }
        _ => None,
    }
}

/// Whether the instructions in these bytes are SBCL's call *16(%rsi); pop %rcx; pop %rbx; pop %rax.
fn calls_cleanup(code: &[Option<u64>; 2]) -> bool {
    let [call, behind] = code.map(|code| code.unwrap_or(0) & 0xff_ffff);
    (call, behind) == (0x10_56_ff, 0x58_5b_59)
}

/// Whether an instruction that begins with these bytes is mov %rcx,%rsp, mov %rdi,%rsp, mov
/// N(%r13),%rsp or mov N(%rdi),%rsp. By these LuaJIT leaves the frames of a trace's exit, and of an
/// error, V8 those up to the handler of an exception, and Free Pascal those up to a setjmp; return
/// addresses below the new stack pointer are lost.
fn leaves_frames(code: Option<u64>) -> bool {
    matches!(
        code.unwrap_or(0).to_le_bytes(),
        [0x48, 0x89, 0xcc | 0xfc, ..] | [0x49, 0x8b, 0xa5, ..] | [0x48, 0x8b, 0x67, ..]
    )
}

/// N of an instruction that begins with these bytes, if the instruction is lea N(%rbp),%rsp.
fn sp_from_fp(code: Option<u64>) -> Option<i64> {
    match code?.to_le_bytes() {
        [0x48, 0x8d, 0x65, distance, ..] => Some((distance as i8).into()),
        [0x48, 0x8d, 0xa5, a, b, c, d, _] => Some(i32::from_le_bytes([a, b, c, d]).into()),
        _ => None,
    }
}

/// Whether the instructions in these bytes are SBCL's mov 8(%rsi),%rbp; mov 32(%rsi),%rax or mov
/// 8(%rax),%rbp; mov 32(%rax),%rsi. By these SBCL leaves frames for an outer one, before it calls
/// the clean-up code of that frame, or goes on in it.
fn takes_outer_frame(code: Option<u64>) -> bool {
    matches!(
        code.unwrap_or(0).to_le_bytes(),
        [0x48, 0x8b, 0x6e, 0x08, 0x48, 0x8b, 0x46, 0x20]
            | [0x48, 0x8b, 0x68, 0x08, 0x48, 0x8b, 0x70, 0x20]
    )
}

/// Whether an instruction that begins with these bytes pushes a register.
fn pushes(code: Option<u64>) -> bool {
    let code = code.unwrap_or(0).to_le_bytes();
    matches!(code, [0x50..=0x57, ..] | [0x41, 0x50..=0x57, ..])
}

/// Whether an instruction that begins with these bytes adds a constant to the stack pointer, or
/// subtracts one.
fn moves_sp(code: Option<u64>) -> bool {
    matches!(
        code.unwrap_or(0).to_le_bytes(),
        [0x48, 0x81, 0xc4 | 0xec, ..]
    )
}

/// Whether an instruction that begins with these bytes is HotSpot's mov offset(%r15),%rsp, which
/// takes the frame in which a carrier entered a virtual thread.
fn takes_entry(code: Option<u64>) -> bool {
    matches!(code.unwrap_or(0).to_le_bytes(), [0x49, 0x8b, 0xa7, ..])
}

/// Whether the instructions in these bytes are HotSpot's sub $16,%rsp; pop %rbp; ret, by which the
/// return barrier returns to frames of a virtual thread that it has just copied back from the heap
/// of objects. No call of these frames is known.
fn returns_to_thawed(code: Option<u64>) -> bool {
    code.unwrap_or(0) & 0xffff_ffff_ffff == 0xc35d_10ec_8348
}

/// Whether an instruction that begins with these bytes jumps to an address in a register or in
/// memory.
fn jumps_indirectly(code: Option<u64>) -> bool {
    let code = code.unwrap_or(0).to_le_bytes();
    let code = match code[0] {
        0x40..=0x4f => &code[1..],
        _ => &code[..],
    };
    code[0] == 0xff && (code[1] >> 3) & 7 == 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use sframe::{
        bytes::Fault,
        runtimes::CodeHeap, //
    };
    use walk::process::{
        CodeLayout,
        CodeRegion,
        ProcessMapping, //
    };

    struct StackWords(Vec<(u64, u64)>);

    impl Memory for StackWords {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            let word = self.0.iter().find(|(at, _)| *at == address);
            word.map(|(_, word)| *word).ok_or(Fault)
        }
    }

    /// The registers of a thread; without a frame pointer if it is not given.
    fn registers(pc: u64, sp: u64, fp: Option<u64>) -> RegisterFile {
        let mut registers = RegisterFile::default();
        registers.set(PC, pc);
        registers.set(RSP, sp);
        if let Some(fp) = fp {
            registers.set(RBP, fp);
        }
        registers
    }

    /// The PC of the caller that the calls tell, after a thread had these registers one after the
    /// other.
    fn caller_after(
        states: &[RegisterFile],
        process: &Process,
        memory: &StackWords,
    ) -> Option<u64> {
        let mut calls = Calls::default();
        for state in states {
            calls.note(TaskId::default(), state, process, memory);
        }
        let caller = calls.caller(
            TaskId::default(),
            states.last()?,
            true,
            None,
            process,
            memory,
        )?;
        Some(caller.registers.pc())
    }

    #[test]
    fn calls_of_frames_that_sbcl_leaves_are_gone() {
        // mov 8(%rsi),%rbp; mov 8(%rax),%rbp; mov 8(%rsi),%rbp with other code after it
        for (code, expected) in [
            (0x2046_8b48_086e_8b48, Some(0x1005)),
            (0x2070_8b48_0868_8b48, Some(0x1005)),
            (0x2146_8b48_086e_8b48, Some(0x2005)),
        ] {
            let memory = StackWords(vec![
                (0x7ff8, 0x1005),
                (0x7fe0, 0x2005),
                (0x1000, 0xe8),
                (0x2000, 0xe8),
                (0x3000, code),
            ]);
            let states = [
                (0x1000, 0x8000, 0x8100),
                (0x1ff8, 0x7ff8, 0x7ff0),
                (0x2000, 0x7fe8, 0x7ff0),
                (0x3000, 0x7fe0, 0x7fd8),
                (0x3004, 0x7fe0, 0x7ff0),
            ];
            let states = states.map(|(pc, sp, fp)| registers(pc, sp, Some(fp)));
            assert_eq!(caller_after(&states, &Process::new(), &memory), expected);
        }
    }

    #[test]
    fn sbcl_may_call_a_function_through_code_that_jumps_to_it() {
        // mov 9(%rip),%rax; jmp *-3(%rax). pop 8(%rbp)
        let memory = StackWords(vec![
            (0x7ff8, 0x1003),
            (0x8000, 0x8100),
            (0x3000, 0xff00_0000_0905_8b48),
            (0x3007, 0xfd60ff),
            (0x4000, 0x08458f),
        ]);
        let states = [0x1000, 0x3000, 0x3007, 0x4000].map(|pc| {
            let sp = if pc == 0x1000 { 0x8000 } else { 0x7ff8 };
            registers(pc, sp, Some(0x8000))
        });
        for seen in 2..=4 {
            let mut calls = Calls::default();
            let (thread, process) = (TaskId::default(), Process::new());
            for state in &states[..seen] {
                calls.note(thread, state, &process, &memory);
            }
            let caller = calls.caller(thread, &states[seen - 1], true, None, &process, &memory);
            let fp = caller.and_then(|caller| caller.registers.get(RBP));
            assert_eq!(fp, Some(0x8100), "{seen}");
        }
    }

    #[test]
    fn a_handler_finds_its_frame_by_the_frame_pointer() {
        // lea -16(%rbp),%rsp, and with another kind of distance
        for code in [0xf065_8d48, 0xff_ffff_f0a5_8d48] {
            let memory = StackWords(vec![
                (0x7ff8, 0x1005),
                (0x7fd8, 0x2005),
                (0x1000, 0xe8),
                (0x2000, 0xe8),
                (0x3000, code),
            ]);
            let states = [
                (0x1000, 0x8000),
                (0x1ff8, 0x7ff8),
                (0x2000, 0x7fe0),
                (0x2ff8, 0x7fd8),
                (0x3000, 0x7fd8),
            ];
            let states = states.map(|(pc, sp)| registers(pc, sp, Some(0x7ff0)));
            let caller = |states: &[_]| caller_after(states, &Process::new(), &memory);
            assert_eq!(caller(&states[..4]), Some(0x2005));
            assert_eq!(caller(&states), Some(0x1005));
        }
    }

    #[test]
    fn a_return_may_lead_to_a_call_near_it() {
        // call to 10 bytes in front of the return address; ret
        let memory = StackWords(vec![(0x7ff8, 0x100a), (0x1005, 0xe8), (0x1000, 0xc3)]);
        let states = [(0x1005, 0x8000), (0x1000, 0x7ff8), (0x100a, 0x8000)];
        let states = states.map(|(pc, sp)| registers(pc, sp, None));
        let caller = |states: &[_]| caller_after(states, &Process::new(), &memory);
        assert_eq!(caller(&states[..2]), Some(0x100a));
        assert_eq!(caller(&states), None);
    }

    #[test]
    fn a_return_address_may_be_stored_for_a_call() {
        // pop %rax; mov %rax,32(%rsp); call *%r11; mov 32(%rsp),%r10; push %r10; ret
        let memory = StackWords(vec![
            (0x7ff8, 0x1005),
            (0x8020, 0x1005),
            (0x7ff0, 0x2009),
            (0x1000, 0xe8),
            (0x2000, 0x2024_4489_4858),
            (0x2001, 0x20_2444_8948),
            (0x2006, 0xd3ff41),
            (0x2009, 0x52_4120_2454_8b4c),
            (0x200e, 0xc3_5241),
            (0x2010, 0xc3),
        ]);
        let at = |pc, sp| registers(pc, sp, None);
        let states = [
            at(0x1000, 0x8000),
            at(0x2000, 0x7ff8),
            at(0x2001, 0x8000),
            at(0x2006, 0x8000),
            at(0x2009, 0x8000),
            at(0x200e, 0x8000),
            at(0x2010, 0x7ff8),
        ];
        for seen in 2..=states.len() {
            let caller = caller_after(&states[..seen], &Process::new(), &memory);
            assert_eq!(caller, Some(0x1005), "{seen}");
        }
        // The return address counts once.
        let mut calls = Calls::default();
        let (thread, process) = (TaskId::default(), Process::new());
        for state in &states {
            calls.note(thread, state, &process, &memory);
        }
        let caller =
            |of, innermost, inner| calls.caller(thread, of, innermost, inner, &process, &memory);
        let first = caller(&states[6], true, None).expect("the caller");
        assert!(caller(&first.registers, false, Some(first.which)).is_none());
    }

    #[test]
    fn calls_of_frames_that_longjmp_leaves_are_gone() {
        // mov 48(%rdi),%rsp
        let memory = StackWords(vec![
            (0x7ff8, 0x1005),
            (0x7fe0, 0x2005),
            (0x1000, 0xe8),
            (0x2000, 0xe8),
            (0x3000, 0x3067_8b48),
        ]);
        let states = [
            (0x1000, 0x8000),
            (0x1ff8, 0x7ff8),
            (0x2000, 0x7fe8),
            (0x3000, 0x7fe0),
            (0x3004, 0x7ff0),
        ];
        let states = states.map(|(pc, sp)| registers(pc, sp, None));
        let caller = |states: &[_]| caller_after(states, &Process::new(), &memory);
        assert_eq!(caller(&states[..4]), Some(0x2005));
        assert_eq!(caller(&states), Some(0x1005));
    }

    #[test]
    fn calls_are_forgotten_where_frames_were_copied_back() {
        // sub $16,%rsp; pop %rbp; ret. sub $24,%rsp; pop %rbp; ret
        for (code, expected) in [(0xc35d_10ec_8348, None), (0xc35d_18ec_8348, Some(0x1005))] {
            let memory = StackWords(vec![(0x7ff8, 0x1005), (0x1000, 0xe8), (0x3000, code)]);
            let states = [(0x1000, 0x8000), (0x3000, 0x7ff8), (0x3004, 0x7fe8)];
            let states = states.map(|(pc, sp)| registers(pc, sp, None));
            assert_eq!(caller_after(&states, &Process::new(), &memory), expected);
        }
    }

    /// The caller of a thread at 0x1000, after a walk has found this frame and its caller.
    fn presumed_caller(fp: u64, caller: Frame, slot: u64) -> Option<RecordedCaller> {
        let memory = StackWords(vec![(slot, caller.pc)]);
        let mut calls = Calls::default();
        let (process, registers) = (Process::new(), registers(0x1000, 0x7f00, None));
        calls.note(TaskId::default(), &registers, &process, &memory);
        let (pc, sp) = (registers.pc(), registers.sp());
        let frames = [Frame { pc, sp, fp }, caller];
        calls.presume(TaskId::default(), &frames, &process, &memory);
        calls.caller(TaskId::default(), &registers, true, None, &process, &memory)
    }

    #[test]
    fn a_lost_frame_pointer_is_not_presumed() {
        for (fp, expected) in [(0x7fe0, Some(0x7fe0)), (LOST_FP, None)] {
            let (pc, sp) = (0x2005, 0x8000);
            let caller = presumed_caller(0x7f80, Frame { pc, sp, fp }, 0x7ff8);
            let caller = caller.expect("a presumed call");
            assert!(caller.presumed);
            assert_eq!(caller.registers.pc(), 0x2005);
            assert_eq!(caller.registers.get(RBP), expected);
        }
    }

    #[test]
    fn a_return_address_of_the_caller_is_not_presumed() {
        // The caller's return address, in the slot above its frame pointer, equals its PC: the
        // function calls itself.
        for (fp, expected) in [(0x7fe0, false), (0x7ff0, true)] {
            let (pc, sp) = (0x2005, 0x7f10);
            let caller = presumed_caller(0x7fe0, Frame { pc, sp, fp }, 0x7fe8);
            assert_eq!(caller.is_some(), expected);
        }
    }

    #[test]
    fn calls_below_a_restored_stack_pointer_are_gone() {
        // mov %rcx,%rsp; mov 208(%r13),%rsp; mov %rcx,%rdx; mov 208(%r13),%rbp
        for (code, expected) in [
            (0xcc_8948, Some(0x1005)),
            (0xd0a5_8b49, Some(0x1005)),
            (0xca_8948, None),
            (0xd0ad_8b49, None),
        ] {
            let memory = StackWords(vec![
                (0x7ff8, 0x1005),
                (0x7ff0, 0x2005),
                (0x1000, 0xe8),
                (0x2000, 0xe8),
                (0x3000, code),
            ]);
            let states = [
                (0x1000, 0x8000),
                (0x2000, 0x7ff8),
                (0x3000, 0x7ff0),
                (0x3003, 0x7ff8),
            ];
            let states = states.map(|(pc, sp)| registers(pc, sp, None));
            let found = caller_after(&states, &Process::new(), &memory);
            assert_eq!(found.filter(|found| *found == 0x1005), expected);
        }
    }

    /// A process whose code from 0x2000 to 0x3000 is HotSpot's interpreter.
    fn interpreter() -> Process {
        let heap = CodeHeap {
            interpreter_start: 0x2000,
            interpreter_len: 0x1000,
            ..CodeHeap::default()
        };
        let mut process = Process::new();
        process.map(ProcessMapping {
            start: 0x2000,
            end: 0x3000,
            offset: 0,
            executable: true,
            writable: false,
            is_file: false,
            name: String::new(),
            file: None,
        });
        process.set_regions(vec![CodeRegion {
            start: 0x2000,
            end: 0x3000,
            guard: None,
            layout: CodeLayout::Frames(Region::CodeHeap(heap)),
        }]);
        process
    }

    #[test]
    fn a_direct_call_inside_the_interpreter_is_none() {
        let process = interpreter();
        // call; call *%r11. They lead to another instruction, or to ret.
        for (code, inner, expected) in [
            (0xe8, 0x90, 0x1005),
            (0xe8, RET, 0x1005),
            (0xd3_ff41, 0x90, 0x2005),
            (0xd3_ff41, RET, 0x2005),
        ] {
            let memory = StackWords(vec![
                (0x7ff8, 0x1005),
                (0x7ff0, 0x2005),
                (0x1000, 0xe8),
                (0x2000, code),
                (0x2100, inner.into()),
            ]);
            let states = [(0x1000, 0x8000), (0x2000, 0x7ff8), (0x2100, 0x7ff0)];
            let states = states.map(|(pc, sp)| registers(pc, sp, None));
            assert_eq!(caller_after(&states, &process, &memory), Some(expected));
        }
    }

    #[test]
    fn a_return_of_the_interpreter_is_no_call() {
        let process = interpreter();
        // jmp *%r13: to the word on top of the stack, and elsewhere
        for (to, expected) in [(0x2105, None), (0x2200, Some(0x2105))] {
            let memory = StackWords(vec![(0x7ff0, 0x2105), (0x2100, 0xe5_ff41)]);
            let states = [(0x2100, 0x7ff0), (to, 0x7ff0)];
            let states = states.map(|(pc, sp)| registers(pc, sp, None));
            assert_eq!(caller_after(&states, &process, &memory), expected);
        }
    }

    #[test]
    fn deoptimisation_replaces_calls() {
        let process = interpreter();
        // add %rcx,%rsp; pop %rax; push (%rcx); sub %rbx,%rsp; push (%rcx)
        let memory = StackWords(vec![
            (0x1000, 0xe8),
            (0x1500, 0xe8),
            (0x7ff8, 0x1005),
            (0x7ff0, 0x1505),
            (0x2000, 0xe1_0348),
            (0x2003, 0x58),
            (0x2004, 0x31_ff48),
            (0x2007, 0xe3_2b48),
            (0x200a, 0x31_ff48),
            (0x7fe0, 0x2ff0),
        ]);
        let states = [
            (0x1000, 0x8000),
            (0x1500, 0x7ff8),
            (0x2000, 0x7ff0),
            (0x2003, 0x7ff8),
            (0x2004, 0x8000),
            (0x2007, 0x7ff8),
            (0x200a, 0x7fe8),
            (0x200d, 0x7fe0),
        ];
        let states = states.map(|(pc, sp)| registers(pc, sp, None));
        for (count, expected) in [(3, 0x1505), (4, 0x1005), (6, 0x1005), (8, 0x2ff0)] {
            let found = caller_after(&states[..count], &process, &memory);
            assert_eq!(found, Some(expected), "{count}");
        }
    }
}
