// SPDX-License-Identifier: GPL-2.0-only

//! One walk, for all contexts: from the registers, frame by frame, to the outermost frame or to a
//! reason to stop.
//!
//! Each step goes by the row that covers the PC. Where a file has no rows the frame pointer is
//! tried, and believed only if it passes the checks: a wrong frame is worse than a missing one.

use crate::{
    mapping::{
        Mapping,
        Rows,
        Stack, //
    },
    sframe::{
        call,
        error::Error,
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
    sys::Registers,
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
    registers: &Registers,
    memory: &UserMemory,
    sink: &mut impl Sink,
) {
    let mut tally = Tally::new(context);
    let frame = Frame {
        pc: registers.pc,
        sp: registers.sp,
        fp: registers.fp,
    };
    let reason = if sink.store(frame.pc) {
        frames(frame, memory, sink, &mut tally)
    } else {
        Reason::Full
    };
    tally.end(reason);
}

/// Walks on from the innermost frame.
fn frames(
    mut frame: Frame,
    memory: &UserMemory,
    sink: &mut impl Sink,
    tally: &mut Tally,
) -> Reason {
    // A return address is behind its call, which may be the last instruction of its function.
    let mut at = frame.pc;
    let mut mappings = Mappings::new();

    loop {
        let mapping = match mappings.at(at, memory) {
            Ok(mapping) => mapping,
            Err(reason) => return reason,
        };
        let (step, source) = match rule_at(at, mapping, memory) {
            Ok(Some(rule)) => (by_rule(&rule, &frame, memory), Source::Rows),
            Ok(None) => (
                by_frame_pointer(&frame, mapping, memory),
                Source::FramePointer,
            ),
            Err(reason) => return reason,
        };
        match step {
            Ok(Step::Caller(caller)) => frame = caller,
            Ok(Step::Outermost) => return Reason::Outermost,
            Err(reason) => return reason,
        }

        at = frame.pc.wrapping_sub(1);
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
    latest: Mapping,
    earlier: Mapping,
}

impl Mappings {
    fn new() -> Self {
        Self {
            latest: Mapping::NOWHERE,
            earlier: Mapping::NOWHERE,
        }
    }

    #[inline(never)]
    fn at(&mut self, address: u64, memory: &UserMemory) -> Result<&Mapping, Reason> {
        if !self.latest.covers(address) {
            core::mem::swap(&mut self.latest, &mut self.earlier);
            if !self.latest.covers(address) {
                self.latest = Mapping::find(address, memory).map_err(|error| {
                    if error == ENOENT {
                        Reason::NotMapped
                    } else {
                        Reason::MappingMoved
                    }
                })?;
            }
        }
        Ok(&self.latest)
    }
}

/// The row's rule at a run-time address; `None` if there are no rows for it.
#[inline(never)]
fn rule_at(at: u64, mapping: &Mapping, memory: &UserMemory) -> Result<Option<Rule>, Reason> {
    let (section, address, len) = match mapping.rows {
        Rows::None | Rows::Unknown => return Ok(None),
        Rows::Section(ref section, address, len) => (section, address, len),
        Rows::Bad(error) => return Err(section_reason(error, memory)),
    };
    let search = if memory.may_sleep() {
        Search::Thorough
    } else {
        Search::Bounded
    };
    let bytes = Part {
        memory,
        address,
        len,
    };
    section
        .find(&bytes, at, search)
        .map_err(|error| section_reason(error, memory))
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

#[inline(never)]
fn by_rule(rule: &Rule, frame: &Frame, memory: &UserMemory) -> Result<Step, Reason> {
    unwind::step(rule, frame, memory).map_err(|stop| match stop {
        Stop::CfaNotRising => Reason::CfaNotRising,
        Stop::CfaMisaligned => Reason::CfaMisaligned,
        Stop::CfaOverflow => Reason::CfaOverflow,
        Stop::RaInRegister => Reason::RaInRegister,
        Stop::Fault { .. } if memory.is_spent() => Reason::Budget,
        Stop::Fault { .. } => Reason::StackFault,
        // Those of the frame pointer alone.
        Stop::FpZero | Stop::FpBelowSp | Stop::FpMisaligned => Reason::NoRows,
    })
}

/// Where nothing says that there is a frame pointer, it has to point to two words of the stack, the
/// second of which is an address behind a call. (That it is executable is seen by the caller.)
#[inline(never)]
fn by_frame_pointer(
    frame: &Frame,
    mapping: &Mapping,
    memory: &UserMemory,
) -> Result<Step, Reason> {
    if !Stack::at(frame.sp).has_two_words(frame.fp) {
        return Err(Reason::NoRows);
    }
    let Ok(step) = unwind::step_by_frame_pointer(frame, memory) else {
        return Err(Reason::NoRows);
    };
    if let Step::Caller(caller) = step {
        let keeps_frame_pointer =
            matches!(mapping.rows, Rows::Section(section, ..) if section.frame_pointer());
        if !keeps_frame_pointer && !is_behind_call(caller.pc, memory) {
            return Err(Reason::NoRows);
        }
    }
    Ok(step)
}

fn is_behind_call(pc: u64, memory: &UserMemory) -> bool {
    memory
        .read(pc.wrapping_sub(const { call::LONGEST as u64 }))
        .is_ok_and(|code| call::ends_with_call(&code))
}
