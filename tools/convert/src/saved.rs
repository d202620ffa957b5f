// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Frames whose CFA is by a register that others save, as the loader's resolver has them: it aligns its
//! stack, keeps the old stack pointer in rbx, and calls.
//!
//! At such a call the register is nowhere but where the called function saves it, and where that is its
//! own entry tells. So what holds at the call is a row beside the section: the CFA is what is in memory
//! there, plus something. It is the called function's whole frame that this is right for, from where
//! the stack pointer has come below that place; a walk knows whether it has.

use iced_x86::FlowControl;
use sframe::rule::{
    Base,
    Cfa,
    Location,
    Rule, //
};
use std::{
    collections::BTreeMap,
    mem, //
};

use crate::{
    dwarf::{
        Entry,
        Table, //
    },
    write,
    Code,
    Function, //
};

/// DWARF's numbers of the registers that a function leaves as they were, but for the frame pointer and
/// the stack pointer: rbx, r12 to r15.
const PRESERVED: [u8; 5] = [3, 12, 13, 14, 15];
/// How many entries one function may have: it and its cold part, mostly.
const MAX_PARTS: usize = 8;

/// Has the calls in such frames said, in functions of which entries of `table` tell.
pub(crate) fn say_calls<'a>(
    functions: &mut Vec<Function>,
    table: &Table<'a>,
    entries: &[Entry<'a>],
    code: &Code<'_>,
) {
    if !functions
        .iter()
        .any(|function| frames(function).next().is_some())
    {
        return;
    }
    let entries = entries
        .iter()
        .map(|entry| (entry.initial_address(), entry))
        .collect();
    let callees = Callees {
        table,
        entries,
        code,
    };
    for mut function in mem::take(functions) {
        let calls: Vec<_> = frames(&function)
            .flat_map(|frame| callees.calls(&frame))
            .collect();
        for (at, rule) in calls {
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

/// Code for which one such rule holds, by link-time addresses.
struct Frame {
    start: u64,
    end: u64,
    rule: Rule,
    /// The register's DWARF number.
    register: u8,
}

/// Those of a function.
fn frames(function: &Function) -> impl Iterator<Item = Frame> + '_ {
    let starts = function.rows.iter().map(|(start, _)| *start);
    let ends = starts.skip(1).chain([function.size]);
    let rows = function.rows.iter().zip(ends);
    rows.filter_map(|(&(start, rule), end)| {
        let Base::Register(register) = rule.cfa.base else {
            return None;
        };
        let is_one = !function.signal
            && function.repeat.is_none()
            && !rule.cfa.deref
            && rule.ra == Location::AtCfa(-8)
            && PRESERVED.contains(&register);
        is_one.then(|| Frame {
            start: function.start + u64::from(start),
            end: function.start + u64::from(end),
            rule,
            register,
        })
    })
}

/// What is called.
struct Callees<'a, 't> {
    table: &'t Table<'a>,
    /// By first address.
    entries: BTreeMap<u64, &'t Entry<'a>>,
    code: &'t Code<'t>,
}

impl Callees<'_, '_> {
    /// The last bytes of calls in a frame, by which their return addresses are looked up, and what holds
    /// there.
    fn calls(&self, frame: &Frame) -> Vec<(u64, Rule)> {
        let mut found = Vec::new();
        for instruction in self.code.instructions(frame.start, frame.end) {
            if !instruction.is_call_near() || instruction.next_ip() > frame.end {
                continue;
            }
            let saved = self.saved(instruction.near_branch_target(), frame.register);
            let rule = saved.and_then(|saved| by_memory(&frame.rule, saved));
            let at = instruction.next_ip() - 1;
            found.extend(
                rule.filter(|rule| write::extra_rows(at, 1, rule).is_some())
                    .map(|rule| (at, rule)),
            );
        }
        found
    }

    /// Where the function at an address saves a register, from its CFA on, in bytes: whenever its stack
    /// pointer is not above that place, the register is there.
    fn saved(&self, address: u64, register: u8) -> Option<i64> {
        let mut parts = vec![*self.entries.get(&address)?];
        let mut at = None;
        let mut deepest = 0;
        let mut next = 0;
        while let Some(part) = parts.get(next).copied() {
            next += 1;
            let saves = self.table.saves(part, register)?;
            if at.is_some() && saves.at.is_some() && at != saves.at {
                return None;
            }
            at = at.or(saves.at);
            deepest = deepest.max(saves.deepest);
            // What it jumps to has its frame, or has taken its place.
            for target in self.jumps(part)? {
                let (_, part) = self.entries.range(..=target).next_back()?;
                if target >= part.end_address() || parts.len() == MAX_PARTS {
                    return None;
                }
                if !parts.iter().any(|known| known.offset() == part.offset()) {
                    parts.push(*part);
                }
            }
        }
        at.filter(|at| *at % 8 == 0 && deepest < -at)
    }

    /// Where the code of an entry jumps to outside of it; `None` if that is not known.
    fn jumps(&self, part: &Entry<'_>) -> Option<Vec<u64>> {
        let (start, end) = (part.initial_address(), part.end_address());
        let mut found = Vec::new();
        let mut goes_on = true;
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
            goes_on = matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch);
        }
        (!goes_on).then_some(found)
    }
}

/// What a rule by a register is while that register is `saved` bytes above the stack pointer.
fn by_memory(rule: &Rule, saved: i64) -> Option<Rule> {
    let cfa = Cfa {
        base: Base::Sp,
        offset: i32::try_from(saved).ok()?,
        deref: true,
        plus: i8::try_from(rule.cfa.offset).ok()?,
    };
    (cfa.plus != 0).then_some(Rule { cfa, ..*rule })
}
