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
        Rows,
        NATIVE, //
    },
    probes,
    sframe::{
        code,
        error::Error,
        fallback::{
            self,
            Code,
            FramePointer, //
        },
        fde::Function,
        rule::Rule,
        section::Search,
        unwind::{
            self,
            Frame,
            Step,
            Stop, //
        }, //
    },
    sink::Sink,
    stats::{
        Context,
        Reason,
        Source,
        Tally, //
    },
    sys::{
        self,
        Registers, //
    },
    user_memory::{
        Part,
        UserMemory, //
    }, //
};
use kernel::prelude::*;

/// Walks the current task's user stack into `sink`. Any context that fits `memory`.
///
/// It ends: each step rises on the stack, and `sink` and `memory` are bounded.
pub(crate) fn walk(
    context: Context,
    registers: &Registers<'_>,
    memory: &UserMemory,
    sink: &mut impl Sink,
) {
    let mut tally = Tally::new(context);
    let mut frame = Frame {
        pc: registers.pc,
        sp: registers.sp,
        fp: registers.fp,
    };
    let probed = sys::is_probed();
    let known = !probed || probes::leave(&mut frame, memory);
    let reason = if !sink.store(frame.pc) {
        Reason::Full
    } else if known {
        frames(frame, probed, registers, memory, sink, &mut tally)
    } else {
        Reason::Uprobe
    };
    tally.end(reason);
}

/// Walks on from the innermost frame.
fn frames(
    mut frame: Frame,
    probed: bool,
    registers: &Registers<'_>,
    memory: &UserMemory,
    sink: &mut impl Sink,
    tally: &mut Tally,
) -> Reason {
    // A return address is behind its call, which may be the last instruction of its function.
    let mut at = frame.pc;
    let mut innermost = true;
    // But what a signal interrupted is not behind a call.
    let mut exact;
    let mut mappings = Mappings {
        first: Mapping::NOWHERE,
        second: Mapping::NOWHERE,
        second_is_older: false,
    };

    loop {
        let mapping = match mappings.at(at, memory) {
            Ok(mapping) => mapping,
            Err(reason) => return reason,
        };
        let source = match rule_at(at, innermost, mapping, memory) {
            Ok(Some(rule)) => {
                exact = rule.signal;
                let registers = innermost.then_some(registers);
                match by_rule(&rule, &mut frame, registers, memory) {
                    Ok(()) => Source::Rows,
                    Err(reason) => return reason,
                }
            }
            Ok(None) => {
                exact = false;
                match without_rows(&mut frame, innermost, mapping, memory) {
                    Ok(()) => Source::FramePointer,
                    Err(reason) => return reason,
                }
            }
            Err(reason) => return reason,
        };
        if probed && !probes::put_back(&mut frame) {
            return Reason::Uprobe;
        }

        innermost = false;
        at = if exact {
            frame.pc
        } else {
            frame.pc.wrapping_sub(1)
        };
        match mappings.at(at, memory) {
            Ok(mapping) if mapping.executable => {}
            Ok(_) => return Reason::NotExecutable,
            Err(reason) => return reason,
        }
        if !sink.store(frame.pc) {
            return Reason::Full;
        }
        tally.frame(source);
    }
}

/// The mappings met last. Stacks go to and fro between a program and a library.
struct Mappings {
    first: Mapping,
    second: Mapping,
    /// Which of the two was not the last to be asked for.
    second_is_older: bool,
}

impl Mappings {
    #[inline(never)]
    fn at(&mut self, address: u64, memory: &UserMemory) -> Result<&Mapping, Reason> {
        let known = if self.first.covers(address) {
            self.second_is_older = true;
            true
        } else if self.second.covers(address) {
            self.second_is_older = false;
            true
        } else {
            self.second_is_older = !self.second_is_older;
            false
        };
        let mapping = if self.second_is_older {
            &mut self.first
        } else {
            &mut self.second
        };
        if !known {
            mapping.find(address, memory).map_err(|error| {
                if error == ENOENT {
                    Reason::NotMapped
                } else {
                    Reason::MappingMoved
                }
            })?;
        }
        Ok(mapping)
    }
}

/// The row's rule at a run-time address; `None` if there are no rows for it.
#[inline(never)]
fn rule_at(
    at: u64,
    innermost: bool,
    mapping: &Mapping,
    memory: &UserMemory,
) -> Result<Option<Rule>, Reason> {
    let section = match mapping.rows {
        Rows::None | Rows::Unknown => return Ok(None),
        Rows::Replaced => return Err(Reason::TextReplaced),
        Rows::Section(ref section) => section,
        Rows::Bad(error) => return Err(section_reason(error, memory)),
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
    let Some(function) = section.find_function(&bytes, at, search).map_err(reason)? else {
        return Ok(None);
    };
    // Nothing is called from a PLT.
    if innermost && function.stub(at).is_some() {
        if let Some(rule) = rule_of_stub(&function, at, memory) {
            return Ok(Some(rule));
        }
    }
    section
        .find_rule(&bytes, &function, at, search)
        .map_err(reason)
}

#[inline(never)]
fn rule_of_stub(function: &Function, at: u64, memory: &UserMemory) -> Option<Rule> {
    let (stub, offset) = function.stub(at)?;
    code::rule_of_stub(&memory.read(stub).ok()?, offset)
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

/// Makes `frame` its caller. Its own end, too, is a reason to stop.
#[inline(never)]
fn by_rule(
    rule: &Rule,
    frame: &mut Frame,
    registers: Option<&Registers<'_>>,
    memory: &UserMemory,
) -> Result<(), Reason> {
    let step =
        unwind::step(NATIVE, rule, frame, &registers, memory).map_err(|stop| match stop {
            Stop::CfaNotRising => Reason::CfaNotRising,
            Stop::CfaMisaligned => Reason::CfaMisaligned,
            Stop::CfaOverflow => Reason::CfaOverflow,
            Stop::RegisterUnknown => Reason::RegisterUnknown,
            Stop::Fault { .. } if memory.is_spent() => Reason::Budget,
            Stop::Fault { .. } => Reason::StackFault,
            // Those of the frame pointer alone.
            Stop::FpZero | Stop::FpBelowSp | Stop::FpMisaligned => Reason::NoRows,
        })?;
    take(step, frame)
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
        Rows::Section(_) => return Err(Reason::NoRows),
        _ if mapping.is_file => FramePointer::Unknown,
        _ => FramePointer::Likely,
    };
    let code = Code {
        start: mapping.start,
        end: mapping.end,
        frame_pointer,
    };
    let step = fallback::step(frame, innermost, &code, mapping::end_of(frame.sp), memory);
    take(step.ok_or(Reason::NoRows)?, frame)
}
