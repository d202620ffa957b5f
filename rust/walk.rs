// SPDX-License-Identifier: GPL-2.0-only

//! One walk, for all contexts: from the registers, frame by frame, to the outermost frame or to a
//! reason to stop.
//!
//! Each step goes by the row that covers the PC. Where a file has no rows the code and the frame
//! pointer are tried, and believed only if they prove it: a wrong frame is worse than a missing one.

use crate::{
    mapping::{
        self,
        Mapping,
        Rows, //
    },
    probes,
    sframe::{
        bytes::Fault,
        code,
        error::Error,
        fallback::{
            self,
            FramePointer, //
        },
        fde::Function,
        plain::{
            self,
            Walked,
            Words, //
        },
        rule::{
            Base,
            Rule, //
        },
        section::Search,
        unwind::{
            self,
            Frame,
            Interrupted,
            Memory,
            Step,
            Stop, //
        }, //
    },
    sink::Sink,
    stats::{
        Reason,
        Source,
        Tally, //
    },
    sys::{
        self,
        Begin,
        Places,
        Registers, //
    },
    tables::{
        self,
        Said,
        NATIVE, //
    },
    user_memory::{
        Part,
        UserMemory, //
    }, //
};
use kernel::prelude::*;

/// Walks the current task's user stack, puts the run-time addresses into the room that there is, from
/// its start on, and returns how many they are. Any context that fits `memory`.
///
/// It ends: each step but that to what a signal interrupted rises on the stack, and room, `memory` and
/// signals are bounded.
#[inline(always)]
pub(crate) fn walk(begin: Begin<'_>, memory: &UserMemory) -> usize {
    let Begin {
        mut frame,
        registers,
        is_probed: probed,
        context,
        room,
    } = begin;
    let mut tally = Tally::new(context);
    let mut sink = Sink::new(room);
    let mut known = true;
    if probed {
        known = !probes::is_changing(&frame, &registers, memory);
        frame.pc = sys::in_line(frame.pc);
        known = known && probes::leave(&mut frame, memory);
    }
    let reason = if !sink.store(frame.pc) {
        Reason::Full
    } else if known {
        frames(frame, probed, &registers, memory, &mut sink, &mut tally)
    } else {
        Reason::Uprobe
    };
    tally.end(reason);
    sink.len()
}

/// Walks on from the innermost frame.
#[inline(always)]
fn frames(
    mut frame: Frame,
    probed: bool,
    registers: &Registers<'_>,
    memory: &UserMemory,
    sink: &mut Sink<'_>,
    tally: &mut Tally,
) -> Reason {
    let mut known = Known::All(registers);
    // From where on the stack is in use.
    let mut lowest = frame.sp;
    // A uprobe may have taken a return address.
    if !probed {
        match by_plain_rules(&mut frame, true, memory, sink, tally) {
            Ok(true) => known = Known::Called(lowest),
            Ok(false) => {}
            Err(reason) => return reason,
        }
    }
    let mut signals = unwind::MAX_SIGNALS;
    let mut mapping = Mapping::NOWHERE;

    loop {
        if let Err(reason) = find(&mut mapping, known.look_up(frame.pc), memory) {
            return reason;
        }
        let context = frame.sp;
        let (signal, source) = match rule_at(frame.pc, &known, &mapping, memory) {
            Ok(Some(rule)) => {
                let mut stepped = by_rule(&rule, &mut frame, &known, memory);
                if stepped == Err(Reason::CfaNotRising) && has_left_a_stack(&rule, &frame, memory) {
                    signals = match signals.checked_sub(1) {
                        Some(left) => left,
                        None => return Reason::Signals,
                    };
                    frame.sp = frame.fp;
                    lowest = frame.sp;
                    stepped = by_rule(&rule, &mut frame, &known, memory);
                }
                match stepped {
                    Ok(()) => (rule.signal, Source::Rows),
                    Err(reason) => return reason,
                }
            }
            Ok(None) => match without_rows(&mut frame, !known.has_called(), &mapping, memory) {
                Ok(()) => (false, Source::FramePointer),
                Err(reason) => return reason,
            },
            Err(reason) => return reason,
        };
        if probed && !probes::put_back(&mut frame) {
            return Reason::Uprobe;
        }
        known = Known::Called(lowest);
        if signal {
            // Other steps rise on the stack, this one goes where it likes.
            signals = match signals.checked_sub(1) {
                Some(left) => left,
                None => return Reason::Signals,
            };
            known = Known::Interrupted(context);
            lowest = frame.sp;
            if probed && !probes::leave(&mut frame, memory) {
                return Reason::Uprobe;
            }
        }

        match find(&mut mapping, known.look_up(frame.pc), memory) {
            Ok(()) if mapping.executable => {}
            Ok(()) => return Reason::NotExecutable,
            Err(reason) => return reason,
        }
        if !sink.store(frame.pc) {
            return Reason::Full;
        }
        tally.frames(source, 1);
        // What a signal has interrupted is rare.
        if !probed && !signal && !mapping.lacks_table(known.look_up(frame.pc)) {
            if let Err(reason) = by_plain_rules(&mut frame, false, memory, sink, tally) {
                return reason;
            }
        }
    }
}

/// Walks on as far as all that is needed is at hand; false if that is nowhere. `is_exact` says that the
/// frame is the innermost one, which has not called.
#[inline(never)]
fn by_plain_rules(
    frame: &mut Frame,
    is_exact: bool,
    memory: &UserMemory,
    sink: &mut Sink<'_>,
    tally: &mut Tally,
) -> Result<bool, Reason> {
    let Some(words) = memory.words() else {
        return Ok(false);
    };
    // Where the code tells more than rows do, others look at it.
    if is_exact && !is_ordinary(frame.pc, &words) {
        return Ok(false);
    }
    let Some(mut places) = Places::enter() else {
        return Ok(false);
    };
    let mut walked = Walked::to(*frame);
    let found = plain::walk(
        &mut walked,
        is_exact,
        &mut places.codes(),
        &words,
        sink.left(),
    );
    drop(places);
    sink.stored(found);
    tally.frames(Source::Rows, found as u32);
    if walked.is_outermost {
        return Err(Reason::Outermost);
    }
    *frame = walked.frame;
    if walked.fp_at != 0 {
        let read = memory.read_word(walked.fp_at);
        frame.fp = read.map_err(|Fault| stack_fault(memory))?;
    }
    Ok(found != 0)
}

/// Whether the code at a PC and right in front of it can be no part of a signal's trampoline, and is
/// not behind a system call that starts a thread.
#[inline(always)]
fn is_ordinary(pc: u64, words: &impl Words) -> bool {
    let before = words.word(pc.wrapping_sub(code::CLONE_BEHIND));
    let at = words.word(pc);
    before != 0 && at != 0 && code::is_ordinary(before, at)
}

/// What is known of the registers of a frame, beside those that each [`Frame`] has.
enum Known<'a> {
    /// All of the innermost.
    All(&'a Registers<'a>),
    /// All that a signal interrupted, in the `struct ucontext` at this run-time address.
    Interrupted(u64),
    /// Nothing. The frame has called, and its stack is in use from this run-time address on.
    Called(u64),
}

impl Known<'_> {
    fn has_called(&self) -> bool {
        matches!(self, Known::Called(_))
    }

    /// The address whose rule holds. A return address is behind its call, which may be the last
    /// instruction of its function.
    fn look_up(&self, pc: u64) -> u64 {
        if self.has_called() {
            pc.wrapping_sub(1)
        } else {
            pc
        }
    }
}

/// Those of a frame, with the memory that some of them are in.
struct KnownIn<'a>(&'a Known<'a>, &'a UserMemory);

impl unwind::Registers for KnownIn<'_> {
    #[inline(never)]
    fn register(&self, number: u8) -> Option<u64> {
        match *self.0 {
            Known::All(registers) => registers.register(number),
            Known::Interrupted(context) => Interrupted {
                context,
                memory: self.1,
            }
            .register(number),
            Known::Called(_) => None,
        }
    }

    fn lowest(&self) -> u64 {
        match *self.0 {
            Known::Called(lowest) => lowest,
            _ => 0,
        }
    }
}

/// Has `mapping` be the one at a run-time address.
#[inline(never)]
fn find(mapping: &mut Mapping, address: u64, memory: &UserMemory) -> Result<(), Reason> {
    if mapping.covers(address) {
        return Ok(());
    }
    mapping.find(address, memory).map_err(|error| {
        if error == ENOENT {
            Reason::NotMapped
        } else {
            Reason::MappingMoved
        }
    })
}

/// The row's rule for a frame at a run-time address; `None` if there are no rows for it.
#[inline(never)]
fn rule_at(
    pc: u64,
    known: &Known<'_>,
    mapping: &Mapping,
    memory: &UserMemory,
) -> Result<Option<Rule>, Reason> {
    let section = match mapping.rows {
        Rows::None(_) | Rows::Unknown => return Ok(rule_of_trampoline(pc, known, memory)),
        Rows::Replaced => return Err(Reason::TextReplaced),
        Rows::Section(ref section) => section,
        Rows::Bad(error) => return Err(section_reason(error, memory)),
        Rows::Table { number, to_offset } => {
            return rule_of_table(number, to_offset, pc, known, memory);
        }
    };
    let search = if memory.may_sleep() {
        Search::Thorough
    } else {
        Search::Bounded
    };
    let bytes = Part {
        memory,
        address: section.address(),
        len: section.opened_len().into(),
    };
    let reason = |error| section_reason(error, memory);
    let at = known.look_up(pc);
    let Some(function) = section.find_function(&bytes, at, search).map_err(reason)? else {
        return Ok(rule_of_trampoline(pc, known, memory));
    };
    if let Some(rule) = rule_of_code(&function, known, pc, memory) {
        return Ok(Some(rule));
    }
    section
        .find_rule(&bytes, &function, at, search)
        .map_err(reason)
}

/// The same from the table of a file.
#[inline(never)]
fn rule_of_table(
    number: u64,
    to_offset: u64,
    pc: u64,
    known: &Known<'_>,
    memory: &UserMemory,
) -> Result<Option<Rule>, Reason> {
    // Behind its system call a trampoline may end, and another function's rows begin.
    if !known.has_called() {
        if let Some(rule) = rule_of_trampoline(pc, known, memory) {
            return Ok(Some(rule));
        }
    }
    match tables::rule_at(number, known.look_up(pc).wrapping_add(to_offset)) {
        Said::Rule(rule) => Ok(Some(rule)),
        Said::Nothing if known.has_called() => Ok(rule_of_trampoline(pc, known, memory)),
        Said::Nothing => Ok(None),
        Said::Gone => Err(Reason::MappingMoved),
    }
}

/// What the code says where a function's rows are wrong, or another function's.
#[inline(never)]
fn rule_of_code(
    function: &Function,
    known: &Known<'_>,
    pc: u64,
    memory: &UserMemory,
) -> Option<Rule> {
    if known.has_called() {
        // What is behind the end of a function is called from its end, or is no return address.
        if function.covers(pc) {
            return None;
        }
    } else if let Some((stub, offset)) = function.stub(pc) {
        // Nothing is called from a PLT.
        return code::rule_of_stub(&memory.read(stub).ok()?, offset);
    }
    // musl has rows for its trampoline, as for any function.
    rule_of_trampoline(pc, known, memory)
}

/// DWARF's number of rax.
const RAX: u8 = 0;

/// A signal's handler returns to a trampoline, of which tables seldom tell; nor do they of what is
/// behind the system call that starts a thread.
#[inline(never)]
fn rule_of_trampoline(pc: u64, known: &Known<'_>, memory: &UserMemory) -> Option<Rule> {
    let code = memory.read(pc.wrapping_sub(code::TRAMPOLINE_BEFORE)).ok()?;
    // Another function may begin behind it.
    let returning = match known {
        Known::All(registers) if registers.in_sigreturn() => {
            code::is_behind_signal_trampoline(&code)
        }
        _ => false,
    };
    if returning || code::is_signal_trampoline(&code) {
        return Some(code::INTERRUPTED);
    }
    // A thread that begins here has a result of zero.
    match known {
        Known::All(registers)
            if code::is_behind_clone(&code)
                && unwind::Registers::register(*registers, RAX) != Some(0) =>
        {
            Some(code::BEHIND_CLONE)
        }
        _ => None,
    }
}

fn section_reason(error: Error, memory: &UserMemory) -> Reason {
    match error {
        Error::Fault { .. } if memory.is_spent() => Reason::Budget,
        Error::Fault { .. } => Reason::SectionFault,
        Error::Malformed { .. } => Reason::Malformed,
        Error::Unsupported { .. } => Reason::Unsupported,
        Error::TooLong => Reason::SearchTooLong,
    }
}

/// Why the stack could not be read.
fn stack_fault(memory: &UserMemory) -> Reason {
    if memory.is_spent() {
        Reason::Budget
    } else {
        Reason::StackFault
    }
}

/// Makes `frame` its caller. Its own end, too, is a reason to stop.
#[inline(never)]
fn by_rule(
    rule: &Rule,
    frame: &mut Frame,
    known: &Known<'_>,
    memory: &UserMemory,
) -> Result<(), Reason> {
    let registers = KnownIn(known, memory);
    let step =
        unwind::step(NATIVE, rule, frame, &registers, memory).map_err(|stop| match stop {
            Stop::CfaNotRising => Reason::CfaNotRising,
            Stop::CfaMisaligned => Reason::CfaMisaligned,
            Stop::CfaOverflow => Reason::CfaOverflow,
            Stop::RegisterUnknown => Reason::RegisterUnknown,
            Stop::Fault { .. } => stack_fault(memory),
            // Those of the frame pointer alone.
            Stop::FpZero | Stop::FpBelowSp | Stop::FpMisaligned => Reason::NoRows,
        })?;
    take(step, frame)
}

/// Whether a frame is on another stack than its stack pointer, and its frame pointer points to it.
#[inline(never)]
fn has_left_a_stack(rule: &Rule, frame: &Frame, memory: &UserMemory) -> bool {
    let code = frame.pc.wrapping_sub(const { code::TAKES_STACK as u64 });
    rule.cfa.base == Base::Fp && memory.read(code).is_ok_and(|code| code::takes_stack(&code))
}

fn take(step: Step, frame: &mut Frame) -> Result<(), Reason> {
    match step {
        Step::Caller(caller) => {
            *frame = caller;
            Ok(())
        }
        Step::Outermost => Err(Reason::Outermost),
    }
}

/// The same where there are no rows.
#[inline(never)]
fn without_rows(
    frame: &mut Frame,
    innermost: bool,
    mapping: &Mapping,
    memory: &UserMemory,
) -> Result<(), Reason> {
    let frame_pointer = match mapping.rows {
        Rows::Section(ref section) if section.frame_pointer() => FramePointer::Kept,
        // A file with a section was made without a frame pointer, or says so. What its rows leave
        // out may use that register for anything, a caller's frame included.
        Rows::Section(_) | Rows::Table { .. } => return Err(Reason::NoRows),
        _ if mapping.is_image => FramePointer::Unknown,
        _ => FramePointer::Likely,
    };
    let step = fallback::step(
        frame,
        innermost,
        frame_pointer,
        |at| match mapping.rows {
            Rows::None(ref functions) => functions.start_at(at, memory),
            _ => None,
        },
        mapping::end_of(frame.sp),
        memory,
    );
    take(step.ok_or(Reason::NoRows)?, frame)
}
