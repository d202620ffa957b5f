// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The rule for a frame: from a row of a section or a table, or from the instructions at places
//! where rows are missing or wrong.

use crate::sframe::{
    arch::{
        plt,
        registers::RESULT,
        signal, //
    },
    format::{
        bytes::Source,
        fde::Function, //
    },
    rule::Rule,
    unwind::step::RegisterSource,
    walk::{
        registers::FrameKind,
        stop_reason::StopReason,
        task::{
            KeptOrigin,
            MappedRows,
            MappingOf,
            Origin,
            RuleOrigin,
            TableAnswer,
            Task, //
        }, //
    }, //
};

/// The rule for a frame with this PC, a run-time address; `None` if neither a row nor an
/// instruction gives a rule.
#[inline(never)]
pub(super) fn rule_at<T: Task>(
    task: &T,
    pc: u64,
    kind: FrameKind,
    mapping: &MappingOf<T>,
) -> Result<Option<(Rule, Origin<T>)>, StopReason> {
    match mapping.rows {
        MappedRows::None(_) | MappedRows::Unknown => Ok(rule_of_system_call(task, pc, kind, false)),
        MappedRows::Region(_) => Ok(None),
        MappedRows::Replaced => Err(StopReason::TextReplaced),
        MappedRows::Bad(error) => Err(StopReason::of_section(error, task.is_spent())),
        MappedRows::Section(ref section) => rule_of_section(task, section, pc, kind),
        MappedRows::Table(ref table) => rule_of_table(task, table, pc, kind),
    }
}

/// The work of a frame in a file with a section of its own, without the reads, in instructions.
const SECTION_FRAME: u32 = 800;

/// The rule for a frame in a file with a section of its own.
#[inline(always)]
fn rule_of_section<T: Task>(
    task: &T,
    section: &T::Section,
    pc: u64,
    kind: FrameKind,
) -> Result<Option<(Rule, Origin<T>)>, StopReason> {
    let (section, bytes) = task.section(section);
    // If nothing is left, the read that follows fails.
    let _ = task.memory().spend(SECTION_FRAME);
    let search = task.search();
    let reason = |error| StopReason::of_section(error, task.is_spent());
    let lookup_address = kind.lookup_address(pc);
    let Some(function) = section
        .find_function(&bytes, lookup_address, search)
        .map_err(reason)?
    else {
        return Ok(rule_of_system_call(task, pc, kind, false));
    };
    if let Some(found) = rule_of_code(task, &function, pc, kind) {
        return Ok(Some(found));
    }
    let rule = section
        .find_rule(&bytes, &function, lookup_address, search)
        .map_err(reason)?;
    Ok(rule.map(|rule| (rule, Origin::<T>::keep(RuleOrigin::Section))))
}

/// The rule for a frame in a file with a table.
#[inline(never)]
fn rule_of_table<T: Task>(
    task: &T,
    table: &T::Table,
    pc: u64,
    kind: FrameKind,
) -> Result<Option<(Rule, Origin<T>)>, StopReason> {
    // A trampoline may end with its system call, and the rows of another function begin right after
    // it.
    if !kind.has_called() {
        if let Some(found) = rule_of_system_call(task, pc, kind, true) {
            return Ok(Some(found));
        }
    }
    match task.look_up(table, kind.lookup_address(pc)) {
        TableAnswer::Rule(rule, origin) => Ok(Some((rule, origin))),
        TableAnswer::NoRow if kind.has_called() || !T::KNOWS_SYSTEM_CALL => {
            Ok(rule_of_system_call(task, pc, kind, false))
        }
        TableAnswer::NoRow => Ok(None),
        TableAnswer::Gone => Err(StopReason::MappingMoved),
    }
}

/// The rule from instructions, at places where the rows of `function` are wrong or belong to
/// another function.
#[inline(never)]
pub(super) fn rule_of_code<T: Task>(
    task: &T,
    function: &Function,
    pc: u64,
    kind: FrameKind,
) -> Option<(Rule, Origin<T>)> {
    if kind.has_called() {
        // A return address at the end of the function follows a call that is its last instruction,
        // or is not a return address of a call: it may be the start of a trampoline.
        if function.covers(pc) {
            return None;
        }
    } else if let Some((stub, offset)) = function.stub(pc) {
        // A PLT has no calls, so a return address never lies in a PLT stub.
        if let Some(rule) = plt::rule_of_stub(&task.memory().read(stub).ok()?, offset) {
            return Some((rule, Origin::<T>::keep(RuleOrigin::PltStub)));
        }
    }
    // musl has rows for its trampoline like for an ordinary function, and they are wrong.
    rule_of_system_call(task, pc, kind, true)
}

/// The rule for a frame at the system call that ends a signal handler, or after the system call
/// that starts a thread. Rows seldom cover the former, and are wrong for the latter.
///
/// `is_covered` is true if a row may cover the PC.
#[inline(never)]
fn rule_of_system_call<T: Task>(
    task: &T,
    pc: u64,
    kind: FrameKind,
    is_covered: bool,
) -> Option<(Rule, Origin<T>)> {
    let bytes = task
        .memory()
        .read(pc.wrapping_sub(signal::TRAMPOLINE_BEFORE))
        .ok()?;
    // Another function may begin after the system call. Whether the task is in the system call
    // decides.
    let is_innermost = kind == FrameKind::Innermost;
    let is_returning = is_innermost
        && (task.in_sigreturn() || !(T::KNOWS_SYSTEM_CALL || is_covered))
        && signal::is_behind_signal_trampoline(&bytes);
    if is_returning || signal::is_signal_trampoline(&bytes) {
        return Some((
            signal::INTERRUPTED,
            Origin::<T>::keep(RuleOrigin::SignalTrampoline),
        ));
    }
    if !is_covered {
        if let Some(rule) = plt::rule_without_rows(pc, kind.has_called(), task.memory()) {
            return Some((rule, Origin::<T>::keep(RuleOrigin::PltStub)));
        }
    }
    // A new thread begins here with a result of zero. Its stack does not have the caller's frame.
    let is_clone = is_innermost
        && signal::is_behind_clone(&bytes)
        && (task.registers().register(RESULT)).is_some_and(|result| result != 0);
    is_clone.then_some((signal::BEHIND_CLONE, Origin::<T>::keep(RuleOrigin::Clone)))
}
