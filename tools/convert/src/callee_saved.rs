// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Frames whose CFA is relative to a callee-saved register, as in the loader's resolver: it aligns
//! its stack, keeps the old stack pointer in rbx, and calls.
//!
//! During such a call the register's value is where the called function saves it, as that
//! function's .eh_frame entry states. So the rule at the call is an extra row: the CFA is the saved
//! value plus an offset. The row is correct while the stack pointer is not above the saved value;
//! the walk checks that.

use iced_x86::FlowControl;
use sframe::{
    rule::{
        Base,
        Cfa,
        Location,
        Rule,
        SavedRbx, //
    },
    x86_64::registers, //
};
use std::{
    collections::{
        BTreeMap,
        BTreeSet,
        HashMap, //
    },
    mem, //
};

use crate::{
    code::CodeBytes,
    eh_frame::{
        self,
        EhFrameTable, //
    },
    encode,
    entries::EhFrameEntry,
    function::ConvertedFunction,
    report::{
        DropReason,
        Report, //
    },
    work::ConversionWork, //
};

/// The DWARF numbers of the callee-saved registers without the frame pointer and the stack pointer:
/// rbx, r12 to r15.
const CALLEE_SAVED: [u8; 5] = [3, 12, 13, 14, 15];
/// The maximum number of entries of one function. Most have one, and one for the cold part.
const MAX_PARTS: usize = 8;

/// Adds rows for the calls in such frames.
pub(crate) fn add_rows<'a>(
    functions: &mut Vec<ConvertedFunction>,
    eh_frame: &EhFrameTable<'a>,
    entries: &[EhFrameEntry<'a>],
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
    report: &mut Report,
) {
    if !functions
        .iter()
        .any(|function| frames(function).next().is_some())
    {
        return;
    }
    let entries = entries.iter().map(|entry| (entry.start(), entry)).collect();
    let mut callees = Callees {
        eh_frame,
        entries,
        code,
        slots: HashMap::new(),
        work,
        report,
    };
    // The walk follows rbx itself where the called function tells where it keeps rbx.
    let tell: BTreeSet<u64> = (functions.iter())
        .filter(|function| function.rbx != SavedRbx::UNKNOWN)
        .map(|function| function.start)
        .collect();
    for mut function in mem::take(functions) {
        let calls: Vec<_> = frames(&function)
            .flat_map(|frame| callees.calls(&frame, &tell))
            .collect();
        for (at, rule) in calls {
            // Both parts are copied.
            if !callees.work.take(function.rows.len() as u64) {
                callees.report.count_dropped(DropReason::WorkLimit, 1);
                break;
            }
            let rest = function.split_off(at);
            functions.push(mem::replace(&mut function, rest));
            let rest = function.split_off(at + 1);
            function.rows = vec![(0, rule)];
            functions.push(mem::replace(&mut function, rest));
        }
        functions.push(function);
    }
    functions.retain(|function| function.size != 0);
}

/// A range of code, in link-time addresses, whose CFA is relative to a callee-saved register.
struct RegisterFrame {
    start: u64,
    end: u64,
    rule: Rule,
    /// The DWARF number of the register.
    register: u8,
}

/// The ranges of a function whose CFA is relative to a callee-saved register.
fn frames(function: &ConvertedFunction) -> impl Iterator<Item = RegisterFrame> + '_ {
    function.ranges().filter_map(|(range, rule)| {
        let Base::Register(register) = rule.cfa.base else {
            return None;
        };
        let is_supported = !function.signal
            && function.repeat.is_none()
            && !rule.cfa.deref
            && rule.ra == Location::AtCfa(-8)
            && CALLEE_SAVED.contains(&register);
        is_supported.then(|| RegisterFrame {
            start: function.start + u64::from(range.start),
            end: function.start + u64::from(range.end),
            rule,
            register,
        })
    })
}

/// The called functions.
struct Callees<'a, 't> {
    eh_frame: &'t EhFrameTable<'a>,
    /// The entries by start address.
    entries: BTreeMap<u64, &'t EhFrameEntry<'a>>,
    code: &'t CodeBytes<'t>,
    /// The slots that [`Callees::save_slot`] has found, by address and register.
    slots: HashMap<(u64, u8), Option<i64>>,
    work: &'t mut ConversionWork,
    report: &'t mut Report,
}

impl Callees<'_, '_> {
    /// The rules for the calls in a frame. The address is that of the call's last byte, which is
    /// the lookup address of the return address.
    ///
    /// No rules for calls of the functions in `tell` on another stack, in a frame that counts from
    /// rbx.
    fn calls(&mut self, frame: &RegisterFrame, tell: &BTreeSet<u64>) -> Vec<(u64, Rule)> {
        let mut found = Vec::new();
        // Whether calls are made on another stack than the frame is on.
        let mut changes_stack = false;
        for instruction in self.code.instructions(frame.start, frame.end) {
            changes_stack |= eh_frame::takes_stack(&instruction);
            if !instruction.is_call_near() || instruction.next_ip() > frame.end {
                continue;
            }
            let target = instruction.near_branch_target();
            // The walk does not follow rbx through a signal, so a slot is better where the stack
            // stays.
            if changes_stack && frame.register == registers::RBX && tell.contains(&target) {
                continue;
            }
            let slot = self.save_slot(target, frame.register);
            let mut rule = slot.and_then(|slot| rule_from_slot(&frame.rule, slot));
            if let Some(rule) = &mut rule {
                rule.extra.changes_stack = changes_stack;
            }
            let at = instruction.next_ip() - 1;
            found.extend(
                rule.filter(|rule| encode::extra_row(at, 1, rule).is_some())
                    .map(|rule| (at, rule)),
            );
        }
        found
    }

    /// The slot in which the function at an address saves a register, in bytes from its CFA:
    /// whenever the stack pointer is not above the slot, the register is saved.
    fn save_slot(&mut self, address: u64, register: u8) -> Option<i64> {
        if let Some(known) = self.slots.get(&(address, register)) {
            return *known;
        }
        let slot = self.find_slot(address, register);
        self.slots.insert((address, register), slot);
        slot
    }

    fn find_slot(&mut self, address: u64, register: u8) -> Option<i64> {
        let mut parts = vec![*self.entries.get(&address)?];
        let mut slot = None;
        let mut deepest = 0;
        let mut next = 0;
        while let Some(part) = parts.get(next).copied() {
            next += 1;
            if !self.work.take(part.steps()) {
                self.report.count_dropped(DropReason::WorkLimit, 1);
                return None;
            }
            let saves = self.eh_frame.saves(part, register)?;
            if slot.is_some() && saves.slot.is_some() && slot != saves.slot {
                return None;
            }
            slot = slot.or(saves.slot);
            deepest = deepest.max(saves.deepest);
            // The target of a jump shares the frame, or is a tail call.
            for target in self.jumps(part)? {
                let (_, part) = self.entries.range(..=target).next_back()?;
                if target >= part.end() || parts.len() == MAX_PARTS {
                    return None;
                }
                if !parts.iter().any(|known| known.start() == part.start()) {
                    parts.push(*part);
                }
            }
        }
        slot.filter(|slot| *slot % 8 == 0 && deepest < -slot)
    }

    /// The jump targets outside of an entry's code; `None` if they are unknown.
    fn jumps(&self, part: &EhFrameEntry<'_>) -> Option<Vec<u64>> {
        let (start, end) = (part.start(), part.end());
        let mut found = Vec::new();
        let mut falls_through = true;
        for instruction in self.code.instructions(start, end) {
            let flow = instruction.flow_control();
            match flow {
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    let target = instruction.near_branch_target();
                    if !(start..end).contains(&target) {
                        found.push(target);
                    }
                }
                FlowControl::Next
                | FlowControl::Call
                | FlowControl::IndirectCall
                | FlowControl::Return
                | FlowControl::Exception => {}
                FlowControl::IndirectBranch
                | FlowControl::Interrupt
                | FlowControl::XbeginXabortXend => return None,
            }
            if instruction.is_invalid() {
                return None;
            }
            falls_through = matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch);
        }
        (!falls_through).then_some(found)
    }
}

/// The rule of a frame whose register is saved `slot` bytes from the callee's CFA, which is the
/// stack pointer after the return.
fn rule_from_slot(rule: &Rule, slot: i64) -> Option<Rule> {
    let cfa = Cfa {
        base: Base::Sp,
        offset: i32::try_from(slot).ok()?,
        deref: true,
        plus: i8::try_from(rule.cfa.offset).ok()?,
    };
    (cfa.plus != 0).then_some(Rule { cfa, ..*rule })
}
