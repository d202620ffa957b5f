// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Derives rules from the instructions of code without unwind information: assembly without
//! .eh_frame entries, and code that a program's own compiler generated at build time, such as the
//! builtins of a scripting language.
//!
//! At a function's start the return address is on top of the stack. From there the analysis follows
//! all paths, and tracks the effect of each instruction on the stack pointer and the frame pointer.
//! Function starts come from symbols and calls, or are guessed: after the end of another function
//! and padding to a multiple of 16 bytes. A function is dropped if two paths to an instruction
//! disagree, or if it returns to anything but the return address. Guesses without a proof are
//! dropped, and also code that makes system calls, because a system call may change any register.
//!
//! A return at which the stack pointer, followed from the guess, is at the return address proves a
//! guess: the return address was then on top of the stack at the guess, too. A call on that path
//! has to return, or to be made with something on the stack: otherwise another function may begin
//! after the call. A jump to a function that is proved is as good as a return.
//!
//! Handwritten assembly calls parts of functions that change the frame pointer. The analysis learns
//! in each round which functions return, and which change the frame pointer, and uses that in the
//! next round. The rows of such a part say where the frame pointer is lost ([`Location::LOST`]). So
//! do the rows of a function that sets up the frame of its caller, up to there: the caller has no
//! frame yet, and by the frame pointer the walk would leave out the caller's caller.

mod evidence;
mod state;

use iced_x86::{
    Decoder,
    DecoderOptions,
    FlowControl,
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    Register, //
};
use sframe::rule::{
    Base,
    Location,
    Rule,
    SavedRbx, //
};
use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    mem,
    ops::Range, //
};

use self::{
    evidence::*,
    state::*, //
};
use crate::{
    code::CodeBytes,
    eh_frame::extend,
    function::ConvertedFunction,
    report::{
        DropReason,
        Report, //
    },
    work::ConversionWork, //
};

/// The alignment of functions, in bytes.
const ALIGNMENT: u64 = 16;
/// The alignment of functions with traps between them, in bytes.
const TRAPPED_ALIGNMENT: u64 = 64;
/// The maximum size of an analysed gap, in bytes. Such builtins take a tenth.
pub(crate) const MAX_GAP: u64 = 16 << 20;
/// `push %rbp; mov %rsp,%rbp`
const PROLOGUE: &[u8] = b"\x55\x48\x89\xe5";
/// The maximum number of rounds of analysis. Wrong starts are dropped after each round.
const MAX_ROUNDS: usize = 32;
/// The maximum number of instructions that are read in a gap to learn which registers functions
/// preserve.
const MAX_PRESERVED: usize = 1 << 20;

/// The functions found in `gaps`, which are ranges of link-time addresses without unwind
/// information. `symbols` are known function starts; `entry` is the program's entry point, which is
/// not a function. A gap for which the work does not suffice gets no rows.
pub(crate) fn functions(
    gaps: &[Range<u64>],
    symbols: &BTreeSet<u64>,
    entry: u64,
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
    report: &mut Report,
) -> Vec<ConvertedFunction> {
    let mut functions = Vec::new();
    for gap in gaps {
        let len = gap.end - gap.start;
        let bytes = code.at(gap.start);
        if let Some(bytes) = bytes.get(..len as usize).filter(|_| len <= MAX_GAP) {
            let mut gap = Gap::new(gap.start, bytes, entry, work);
            gap.find_starts(symbols);
            gap.analyse();
            match gap.is_over {
                true => report.count_dropped(DropReason::WorkLimit, len),
                false => gap.emit(&mut functions),
            }
        }
    }
    functions
}

/// A range of code without unwind information.
struct Gap<'a> {
    address: u64,
    bytes: &'a [u8],
    /// The function starts.
    starts: BTreeMap<u64, Evidence>,
    /// Addresses that were rejected as function starts.
    rejected: BTreeSet<u64>,
    /// Those that are called, or are symbols: functions, or parts of functions, that the analysis
    /// does not understand.
    unclear: BTreeSet<u64>,
    /// The starts of functions that return, by the last round.
    returning: BTreeSet<u64>,
    /// The starts of functions that never return, by the last round.
    endless: BTreeSet<u64>,
    /// The starts of functions that change their caller's frame pointer, by all rounds.
    clobbering: BTreeSet<u64>,
    /// Whether functions preserve registers, by the function's start.
    preserved: BTreeMap<(u64, Register), bool>,
    /// The number of instructions that were read for that.
    preserved_by: usize,
    /// The addresses of calls of functions that keep the register which has a copy of the stack
    /// pointer, although the ABI does not demand that.
    keeping: BTreeSet<u64>,
    reached: Vec<Reached>,
    /// The rules that the end of a function shows, by the address of the instruction.
    by_end: BTreeMap<u64, Rule>,
    /// For each byte, the index in `reached` of its instruction plus one, or 0; and the flag
    /// [`IS_START`].
    index: Vec<u32>,
    decoder: Decoder<'a>,
    work: &'a mut ConversionWork,
    /// Whether no work was left for the gap.
    is_over: bool,
}

/// Flag in `Gap::index`: a function starts here.
const IS_START: u32 = 1 << 31;

impl<'a> Gap<'a> {
    fn new(address: u64, bytes: &'a [u8], entry: u64, work: &'a mut ConversionWork) -> Gap<'a> {
        Gap {
            address,
            bytes,
            starts: BTreeMap::new(),
            rejected: BTreeSet::from([entry]),
            unclear: BTreeSet::new(),
            returning: BTreeSet::new(),
            endless: BTreeSet::new(),
            clobbering: BTreeSet::new(),
            preserved: BTreeMap::new(),
            preserved_by: 0,
            keeping: BTreeSet::new(),
            reached: Vec::new(),
            by_end: BTreeMap::new(),
            index: vec![0; bytes.len()],
            decoder: Decoder::with_ip(64, bytes, address, DecoderOptions::NONE),
            work,
            is_over: false,
        }
    }

    /// Takes a step of work. Returns whether the analysis goes on.
    fn take_step(&mut self) -> bool {
        self.is_over |= !self.work.take(1);
        !self.is_over
    }

    fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }

    fn holds(&self, address: u64) -> bool {
        (self.address..self.end()).contains(&address)
    }

    /// The instruction at an address in the gap.
    fn decode(&mut self, at: u64) -> Instruction {
        let there = self.decoder.set_position((at - self.address) as usize);
        debug_assert!(there.is_ok());
        self.decoder.set_ip(at);
        self.decoder.decode()
    }

    fn start(&mut self, at: u64, why: Evidence) {
        if !self.rejected.contains(&at) {
            let known = self.starts.entry(at).or_insert(why);
            *known = why.max(*known);
        }
    }

    /// Finds possible function starts.
    fn find_starts(&mut self, symbols: &BTreeSet<u64>) {
        self.is_over = !self.work.take(self.bytes.len() as u64);
        for symbol in symbols.range(self.address..self.end()) {
            self.start(*symbol, Evidence::Symbol);
        }
        let mut has_ended = true;
        let mut trapped = false;
        let all = Decoder::with_ip(64, self.bytes, self.address, DecoderOptions::NONE);
        for instruction in all {
            let at = instruction.ip();
            let traps = instruction.mnemonic() == Mnemonic::Int3;
            if has_ended && (traps || instruction.mnemonic() == Mnemonic::Nop) {
                trapped = traps;
                continue;
            }
            if has_ended && at % ALIGNMENT == 0 {
                let why = match trapped && at % TRAPPED_ALIGNMENT == 0 {
                    true => Evidence::Trapped,
                    false => Evidence::Guessed,
                };
                self.start(at, why);
            }
            trapped = traps;
            has_ended = matches!(
                instruction.flow_control(),
                FlowControl::Return
                    | FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Interrupt
                    | FlowControl::Exception
            );
        }
    }

    /// Analyses the gap until no start is contradicted. `reached` then holds the instructions of
    /// the confirmed functions.
    fn analyse(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let findings = self.round();
            if self.is_over {
                return;
            }
            let is_bad = findings.any_of_group(|number| findings.bad[number]);
            let is_proved = findings.are_proved();
            let is_unsettled = self.add_called(&findings, &is_proved)
                || self.drop_bad(&findings, &is_bad)
                || self.learn(&findings);
            if is_unsettled {
                // Nothing is certain before all of it is.
                self.reached.clear();
                continue;
            }
            let unclear = self.reached_from_unclear();
            self.reached.retain(|reached| {
                is_proved[reached.from] && !is_bad[reached.from] && !unclear.contains(&reached.at)
            });
            self.reached.sort_by_key(|reached| reached.at);
            self.follow_ends();
            let frames_caller = findings.any_of_group(|number| findings.frames_caller[number]);
            for reached in &mut self.reached {
                if frames_caller[reached.from] {
                    reached.state.lose_fp_of_caller();
                }
            }
            return;
        }
    }

    /// The instructions to which flow may lead from the starts that are unclear, up to another
    /// start.
    fn reached_from_unclear(&mut self) -> BTreeSet<u64> {
        let mut todo: Vec<u64> = self.unclear.iter().copied().collect();
        let mut seen = BTreeSet::new();
        while let Some(at) = todo.pop() {
            if !self.take_step() {
                break;
            }
            let is_other = self.starts.contains_key(&at);
            if !self.holds(at) || is_other || !seen.insert(at) {
                continue;
            }
            let instruction = self.decode(at);
            let (next, target) = (instruction.next_ip(), instruction.near_branch_target());
            match instruction.flow_control() {
                _ if instruction.is_invalid() => {}
                FlowControl::ConditionalBranch => todo.extend([next, target]),
                FlowControl::UnconditionalBranch => todo.push(target),
                FlowControl::Return | FlowControl::IndirectBranch => {}
                _ => todo.push(next),
            }
        }
        seen
    }

    /// Adds call targets as starts. Returns whether there was any that is new, or has new evidence.
    fn add_called(&mut self, findings: &RoundFindings, is_proved: &[bool]) -> bool {
        let mut is_new = false;
        for (call, from) in &findings.called {
            let why = match is_proved[*from] {
                true => Evidence::Called,
                false => Evidence::Presumed,
            };
            let is_known = self.starts.get(call).is_some_and(|known| *known >= why);
            if !is_known && !self.rejected.contains(call) {
                self.start(*call, why);
                is_new = true;
            }
        }
        is_new
    }

    /// Takes over what the round found on functions as callees. Returns whether that is new.
    fn learn(&mut self, findings: &RoundFindings) -> bool {
        let (goes_on, may_go_on) = (&findings.goes_on, &findings.may_go_on);
        let returning = findings.with_those_that(goes_on, &findings.returns);
        let all = || goes_on.iter().chain(may_go_on);
        let clobbering = findings.with_those_that(all(), &findings.clobbers);
        let may_return = findings.with_those_that(all(), &findings.may_return);
        let starts = findings.starts.iter().map(|(at, _)| *at);
        let endless = starts.filter(|at| !may_return.contains(at)).collect();
        let known = self.clobbering.len();
        self.clobbering.extend(clobbering);
        let is_new = self.clobbering.len() != known;
        let were = (
            mem::replace(&mut self.returning, returning),
            mem::replace(&mut self.endless, endless),
        );
        is_new || were.0 != self.returning || were.1 != self.endless
    }

    /// Rejects bad starts, and the starts with the weakest evidence among those that share code
    /// with them. Returns whether there were any.
    fn drop_bad(&mut self, findings: &RoundFindings, is_bad: &[bool]) -> bool {
        let mut weakest = BTreeMap::new();
        for (number, (_, evidence)) in findings.starts.iter().enumerate() {
            let least = weakest.entry(findings.group(number)).or_insert(*evidence);
            *least = (*least).min(*evidence);
        }
        for (number, (start, evidence)) in findings.starts.iter().enumerate() {
            let is_weakest = weakest[&findings.group(number)] == *evidence;
            if findings.bad[number] || (is_bad[number] && is_weakest) {
                if *evidence >= Evidence::Called {
                    self.unclear.insert(*start);
                }
                self.starts.remove(start);
                self.rejected.insert(*start);
            }
        }
        is_bad.contains(&true)
    }

    /// Analyses all code that is reachable from the starts.
    fn round(&mut self) -> RoundFindings {
        let starts: Vec<_> = self.starts.iter().map(|(at, why)| (*at, *why)).collect();
        let mut findings = RoundFindings {
            parent: (0..starts.len()).collect(),
            bad: vec![false; starts.len()],
            proved: vec![false; starts.len()],
            conflicts: Vec::new(),
            called: BTreeSet::new(),
            returns: vec![false; starts.len()],
            may_return: vec![false; starts.len()],
            clobbers: vec![false; starts.len()],
            frames_caller: vec![false; starts.len()],
            goes_on: Vec::new(),
            may_go_on: Vec::new(),
            jumps: Vec::new(),
            starts,
        };
        self.reached.clear();
        self.index.fill(0);
        // Code may go on at a presumed start, which is presumed to be one because a guess may be
        // wrong.
        let is_presumed = |number: &usize| findings.starts[*number].1 == Evidence::Presumed;
        let (last, first): (Vec<usize>, Vec<usize>) =
            (0..findings.starts.len()).partition(is_presumed);
        for number in &first {
            self.index[(findings.starts[*number].0 - self.address) as usize] = IS_START;
        }
        let mut factory = InstructionInfoFactory::new();
        let mut todo = Vec::new();
        // Code after a call comes last, because the call may not return.
        let mut later = Vec::new();
        for number in first.into_iter().chain(last) {
            todo.push(Path {
                at: findings.starts[number].0,
                state: FrameState::ENTRY,
                by: ReachedBy::Start,
                proves: true,
            });
            while let Some(path) = todo.pop().or_else(|| later.pop()) {
                if !self.take_step() {
                    break;
                }
                for path in self
                    .reach(path, number, &mut findings, &mut factory)
                    .into_iter()
                    .flatten()
                {
                    match path.by {
                        ReachedBy::Return => later.push(path),
                        _ => todo.push(path),
                    }
                }
            }
        }
        findings.resolve_conflicts();
        findings
    }

    /// Applies the instruction at `path`, reached from a start, and returns its successors.
    fn reach(
        &mut self,
        path: Path,
        from: usize,
        findings: &mut RoundFindings,
        factory: &mut InstructionInfoFactory,
    ) -> [Option<Path>; 2] {
        const NOWHERE: [Option<Path>; 2] = [None; 2];
        let Path {
            at,
            mut state,
            by,
            mut proves,
        } = path;
        let index = at.wrapping_sub(self.address) as usize;
        let mark = self.index.get(index).copied();
        // A part of a function may go on in another part, with the frame pointer changed.
        let is_part = findings.starts[from].1 >= Evidence::Called && state.clobbers_fp();
        let is_start =
            by != ReachedBy::Start && !is_part && mark.is_some_and(|mark| mark & IS_START != 0);
        if is_start || mark.is_none() {
            // A tail call: the code belongs to the other function.
            let is_dropped = state.ra == ReturnAddress::Dropped && state.sp == Some(8);
            let goes_on = state.is_restored() || is_dropped || state.ra == ReturnAddress::Unknown;
            let other = findings.starts.partition_point(|(start, _)| *start < at);
            match by {
                _ if !goes_on => {}
                ReachedBy::Return if is_start => findings.may_go_on.push((from, other)),
                _ if is_start => {
                    findings.goes_on.push((from, other));
                    if proves && state.is_restored() && state.sp == Some(8) {
                        findings.jumps.push((from, other));
                    }
                }
                // Code outside of the gap keeps the rules of all functions.
                ReachedBy::Return => findings.may_return[from] = true,
                _ => {
                    findings.returns[from] |= proves;
                    findings.may_return[from] = true;
                }
            }
            if by == ReachedBy::Return || goes_on {
                return NOWHERE;
            }
            match state.fp {
                _ if !is_start => findings.bad[from] = true,
                // The other start lies within the function that set up this frame.
                FpState::Frame(_) => findings.bad[other] = true,
                _ => findings.conflicts.push((from, other)),
            }
            return NOWHERE;
        }
        let known = mark.unwrap_or(0) & !IS_START;
        let known = known.checked_sub(1).map(|known| known as usize);
        if let Some(known) = known {
            let Reached {
                state: other,
                from: other_from,
                ..
            } = self.reached[known];
            let Some(joined) = other.join(state) else {
                if by != ReachedBy::Return {
                    findings.conflicts.push((from, other_from));
                }
                return NOWHERE;
            };
            match by {
                ReachedBy::Return => findings.may_go_on.push((from, other_from)),
                _ => findings.goes_on.push((from, other_from)),
            }
            findings.unite(from, other_from);
            if joined == other {
                return NOWHERE;
            }
            state = joined;
        }
        let instruction = self.decode(at);
        let flow = instruction.flow_control();
        // Padding after a call that does not return, or the start of another function.
        let is_padding = matches!(
            instruction.mnemonic(),
            Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Endbr64
        );
        // A function sets up its frame once.
        let is_prologue = matches!(state.fp, FpState::Frame(_))
            && self
                .bytes
                .get(index..)
                .unwrap_or_default()
                .starts_with(PROLOGUE);
        if by == ReachedBy::Return && (is_padding || is_prologue) {
            return NOWHERE;
        }
        if instruction.is_invalid() {
            findings.bad[from] = true;
            return NOWHERE;
        }
        // The stack pointer tells that the start was right, if it was followed from there.
        proves &= flow != FlowControl::Return || state.sp.is_some();
        // At a return, the stack pointer points to the return address, even if its distance from
        // the CFA was unknown.
        if flow == FlowControl::Return && state.is_restored() {
            state.sp = Some(8);
            if !state.is_lost() {
                state.saved = None;
            }
        }
        let reached = Reached {
            at,
            len: instruction.len() as u8,
            state,
            from,
        };
        match known {
            Some(known) => self.reached[known].state = state,
            None => {
                self.add(reached);
                if let Some(next) = self.skip_move_of_stack(&reached, &instruction) {
                    state = state.at_entry();
                    return [
                        Some(Path {
                            at: next,
                            state,
                            by: ReachedBy::Flow,
                            proves,
                        }),
                        None,
                    ];
                }
            }
        }
        let go = |at, state, by, proves| {
            Some(Path {
                at,
                state,
                by,
                proves,
            })
        };
        let next = instruction.next_ip();
        let target = instruction.near_branch_target();
        match flow {
            FlowControl::Next if instruction.mnemonic() == Mnemonic::Hlt => NOWHERE,
            FlowControl::Next => {
                let was = state;
                let is_broken = state.step(&instruction, factory).is_err();
                // A guessed start is the tail of another function if the code discards the return
                // address, or leaves a frame that it has not made.
                let is_tail = state.ra == ReturnAddress::Dropped
                    || was.fp == FpState::Callers && leaves_frame(&instruction);
                if is_broken || is_tail && findings.starts[from].1 == Evidence::Guessed {
                    findings.bad[from] = true;
                    return NOWHERE;
                }
                // The code may find its caller's stack pointer in a register: lea 8(%r15),%rsp;
                // push of the register.
                if let (ReturnAddress::Popped(_), ReturnAddress::PoppedEarlier(register)) =
                    (was.ra, state.ra)
                {
                    let behind = self.holds(next).then(|| self.decode(next));
                    let is_pushed = behind.is_some_and(|behind| {
                        behind.mnemonic() == Mnemonic::Push && behind.op0_register() == register
                    });
                    if is_pushed && instruction.mnemonic() == Mnemonic::Lea {
                        state.ra = was.ra;
                    }
                }
                findings.frames_caller[from] |= state.has_framed_caller && !was.has_framed_caller;
                // A prologue confirms the start.
                findings.proved[from] |=
                    state.is_new_frame() && !was.is_lost() && !matches!(was.fp, FpState::Frame(_));
                [go(next, state, ReachedBy::Flow, proves), None]
            }
            FlowControl::ConditionalBranch => [
                go(next, state, ReachedBy::Flow, proves),
                go(target, state, ReachedBy::Flow, proves),
            ],
            FlowControl::UnconditionalBranch => [go(target, state, ReachedBy::Flow, proves), None],
            FlowControl::Return => {
                findings.may_return[from] = true;
                let is_called = findings.starts[from].1 >= Evidence::Called;
                if state.is_restored() {
                    findings.proved[from] |= proves;
                    findings.returns[from] |= proves;
                } else if is_called && state.clobbers_fp() {
                    // A part of a function, which the function calls.
                    findings.clobbers[from] = true;
                    findings.returns[from] |= proves;
                } else if !state.is_jump() && state.ra != ReturnAddress::Unknown {
                    findings.bad[from] = true;
                }
                NOWHERE
            }
            FlowControl::Call | FlowControl::IndirectCall
                if instruction.mnemonic() == Mnemonic::Call =>
            {
                let is_initial = state == FrameState::ENTRY;
                state = state.behind_call();
                let mut may_not_return = true;
                if let Some((register, _)) = state.copy {
                    let keeps = match flow {
                        FlowControl::Call if self.holds(target) => {
                            self.preserves(target, register, factory)
                        }
                        _ => is_preserved(register),
                    };
                    state.copy = state.copy.filter(|_| keeps);
                    match keeps && !is_preserved(register) {
                        true => self.keeping.insert(at),
                        false => self.keeping.remove(&at),
                    };
                }
                if flow == FlowControl::Call && self.unclear.contains(&target) {
                    findings.may_return[from] = true;
                    return NOWHERE;
                }
                if flow == FlowControl::Call && self.holds(target) {
                    findings.called.insert((target, from));
                    if self.endless.contains(&target) {
                        return NOWHERE;
                    }
                    may_not_return = !self.returning.contains(&target);
                    if self.clobbering.contains(&target) {
                        state.fp = FpState::Other;
                    }
                }
                proves &= !(is_initial && may_not_return);
                [go(next, state, ReachedBy::Return, proves), None]
            }
            FlowControl::IndirectBranch => {
                findings.may_return[from] = true;
                NOWHERE
            }
            FlowControl::Interrupt | FlowControl::Exception => NOWHERE,
            // System calls and similar instructions.
            _ => {
                findings.bad[from] = true;
                NOWHERE
            }
        }
    }

    /// Finds the rules that functions show at their end: where a function has left its frame, and
    /// the distance from the stack pointer to the CFA is unknown because functions that it called
    /// may have removed arguments. At a return, and at a jump to another function, the return
    /// address is on top of the stack. From there, the instructions are followed backwards.
    fn follow_ends(&mut self) {
        let reached = mem::take(&mut self.reached);
        let mut factory = InstructionInfoFactory::new();
        for (number, last) in reached.iter().enumerate() {
            let is_at_end = last.state.is_restored() && last.state.sp == Some(8);
            if !last.state.has_left_frame() && !is_at_end {
                continue;
            }
            let instruction = self.decode(last.at);
            let target = instruction.near_branch_target();
            let is_end = match instruction.flow_control() {
                FlowControl::Return => true,
                FlowControl::UnconditionalBranch => self.starts.contains_key(&target),
                FlowControl::IndirectBranch => instruction.op0_register() != Register::None,
                _ => false,
            };
            if !is_end {
                continue;
            }
            let mut end = FunctionEnd::default();
            let mut rules = Vec::new();
            // A jump to an address in a register is one to another function if the function has
            // made a frame.
            let mut is_proved = instruction.flow_control() != FlowControl::IndirectBranch;
            let mut behind = last.at + u64::from(last.len);
            for one in reached[..=number].iter().rev() {
                let is_next = one.at + u64::from(one.len) == behind;
                if !is_next || !(one.state.has_left_frame() || one.at == last.at) {
                    break;
                }
                if !self.take_step() {
                    break;
                }
                let instruction = self.decode(one.at);
                if one.at != last.at && end.go_back(&instruction, &mut factory).is_err() {
                    break;
                }
                behind = one.at;
                is_proved |= one.state.saved.is_some();
                rules.extend(end.rules(one.at));
            }
            if is_proved {
                self.by_end.extend(rules);
            }
        }
        self.reached = reached;
    }

    /// Adds an instruction that has not been reached before.
    fn add(&mut self, reached: Reached) {
        self.reached.push(reached);
        self.index[(reached.at - self.address) as usize] |= self.reached.len() as u32;
    }

    /// If `before` clears the index of a loop that moves the top of the stack down, reaches the
    /// loop's instructions, and returns the address after the loop. Functions with optional
    /// arguments make room for missing ones in this way. The loop begins with the return address,
    /// to which a register points. In its first turn, the return address is still there; later, it
    /// is on top of the stack, and arguments may have overwritten the old place.
    fn skip_move_of_stack(&mut self, before: &Reached, clears: &Instruction) -> Option<u64> {
        let FrameState {
            fp: FpState::Callers,
            saved: None,
            ra: ReturnAddress::Kept,
            copy: Some((from, 8)),
            ..
        } = before.state
        else {
            return None;
        };
        let is_clear =
            clears.mnemonic() == Mnemonic::Xor && clears.op0_register() == clears.op1_register();
        let counter = clears.op0_register().full_register();
        if !is_clear || counter == from || dwarf_number(counter).is_none() {
            return None;
        }
        let mut at = clears.next_ip();
        let first = at;
        let mut next = || {
            let reached = self.holds(at) && self.index[(at - self.address) as usize] != 0;
            let instruction = (self.holds(at) && !reached).then(|| self.decode(at))?;
            at = instruction.next_ip();
            Some(instruction)
        };
        let body = [next()?, next()?, next()?, next()?, next()?];
        let [load, store, count, compare, repeat] = &body;
        let is_word = |instruction: &Instruction, base| {
            let place = (
                instruction.mnemonic(),
                instruction.memory_base(),
                instruction.memory_index(),
                instruction.memory_index_scale(),
                instruction.memory_displacement64(),
            );
            place == (Mnemonic::Mov, base, counter, 8, 0) && !instruction.has_segment_prefix()
        };
        let word = load.op0_register();
        let is_move = is_word(load, from)
            && is_word(store, Register::RSP)
            && word.is_gpr64()
            && store.op1_register() == word
            && word != counter;
        let is_loop = count.mnemonic() == Mnemonic::Inc
            && count.op0_register() == counter
            && compare.mnemonic() == Mnemonic::Cmp
            && repeat.flow_control() == FlowControl::ConditionalBranch
            && repeat.near_branch_target() == first;
        if !is_move || !is_loop {
            return None;
        }
        let unknown = FrameState {
            sp: None,
            copy: None,
            ..before.state
        };
        for (number, instruction) in body.iter().enumerate() {
            self.add(Reached {
                at: instruction.ip(),
                len: instruction.len() as u8,
                state: if number < 2 {
                    unknown
                } else {
                    FrameState::ENTRY
                },
                from: before.from,
            });
        }
        Some(at)
    }

    /// Whether the function at an address in the gap preserves a register: no instruction on any
    /// path from there writes it, and no path leaves the gap.
    fn preserves(
        &mut self,
        function: u64,
        register: Register,
        factory: &mut InstructionInfoFactory,
    ) -> bool {
        if let Some(known) = self.preserved.get(&(function, register)) {
            return *known;
        }
        let mut todo = vec![function];
        let mut seen = BTreeSet::new();
        let mut preserves = true;
        while let Some(at) = todo.pop().filter(|_| preserves) {
            if !seen.insert(at) {
                continue;
            }
            self.preserved_by += 1;
            if !self.take_step() || !self.holds(at) || self.preserved_by > MAX_PRESERVED {
                preserves = false;
                break;
            }
            let instruction = self.decode(at);
            let (next, target) = (instruction.next_ip(), instruction.near_branch_target());
            preserves = !instruction.is_invalid() && !writes(&instruction, register, factory);
            match instruction.flow_control() {
                FlowControl::Next => todo.push(next),
                FlowControl::ConditionalBranch | FlowControl::Call => todo.extend([next, target]),
                FlowControl::UnconditionalBranch => todo.push(target),
                FlowControl::Return => {}
                _ => preserves = false,
            }
        }
        self.preserved.insert((function, register), preserves);
        preserves
    }

    /// Appends the functions that were found.
    fn emit(&self, functions: &mut Vec<ConvertedFunction>) {
        let mut open = None;
        let before = functions.len();
        for reached in &self.reached {
            let Reached { at, len, state, .. } = *reached;
            let end = at + u64::from(len);
            // While the callee runs, the frame pointer is no longer the one that the callee began
            // with. A register that has a copy of the stack pointer is the one that it was if the
            // callee keeps it: the rule tells that by a return address whose place counts from the
            // register, too.
            let rule = state.rule().or_else(|| self.by_end.get(&at).copied());
            let kept = rule.filter(|_| self.keeping.contains(&at));
            let kept = kept.and_then(|rule| match rule.cfa.base {
                base @ Base::Register(_) => Some(Rule {
                    ra: Location::At(base, rule.cfa.offset.checked_sub(8)?),
                    ..rule
                }),
                _ => None,
            });
            let first = match state.fp {
                FpState::Callees(_) => at + 1,
                _ if kept.is_some() => at + 1,
                _ => end,
            };
            let in_call = kept.or_else(|| state.behind_call().rule());
            for (start, end, rule) in [(at, first, rule), (first, end, in_call)] {
                if let Some(rule) = rule.filter(|_| start < end) {
                    extend(&mut open, functions, start, end, false, rule);
                }
            }
        }
        functions.extend(open);
        for function in functions.iter_mut().skip(before) {
            self.mark_kept(function);
        }
    }

    /// Marks a function with rows of calls that keep a register: by [`SavedRbx::KEPT`], which only
    /// sections that are made by this crate have. If the function writes rbx, the rows become usual
    /// ones.
    fn mark_kept(&self, function: &mut ConvertedFunction) {
        let is_kept = |rule: &Rule| matches!(rule.ra, Location::At(Base::Register(_), _));
        if !function.rows.iter().any(|(_, rule)| is_kept(rule)) {
            return;
        }
        let bytes = self.bytes.get((function.start - self.address) as usize..);
        let bytes = bytes.and_then(|bytes| bytes.get(..function.size as usize));
        let mut factory = InstructionInfoFactory::new();
        let all = Decoder::with_ip(
            64,
            bytes.unwrap_or_default(),
            function.start,
            DecoderOptions::NONE,
        );
        let mut all = all.into_iter();
        if !all.any(|instruction| writes(&instruction, Register::RBX, &mut factory)) {
            function.rbx = SavedRbx::KEPT;
            return;
        }
        for (_, rule) in &mut function.rows {
            if is_kept(rule) {
                rule.ra = Location::AtCfa(-8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x1000;

    /// The rule at each of `offsets`: the CFA, and the offset from the CFA of the saved frame
    /// pointer; or the register that has the return address.
    fn rules_at(text: &[u8], symbols: &[u64], offsets: &[u64]) -> Vec<String> {
        let end = START + text.len() as u64;
        let code = CodeBytes {
            segments: vec![(START, end, text)],
        };
        let symbols = symbols.iter().map(|offset| START + offset).collect();
        let (work, report) = (&mut ConversionWork::new(text), &mut Report::default());
        let gap = START..end;
        let gaps = std::slice::from_ref(&gap);
        let functions = functions(gaps, &symbols, 0, &code, work, report);
        let rule_at = |at: u64| {
            let function = functions
                .iter()
                .find(|function| (function.start..function.end()).contains(&at))?;
            let rows = function.rows.iter().rev();
            rows.map(|(start, rule)| (function.start + u64::from(*start), rule))
                .find_map(|(start, rule)| (start <= at).then_some(*rule))
                .inspect(|rule| {
                    let is_kept = matches!(rule.ra, Location::At(..));
                    assert!(!is_kept || function.rbx == SavedRbx::KEPT);
                })
        };
        let text = |rule: Rule| {
            let Rule { cfa, fp, ra, .. } = rule;
            if let Location::Of(Base::Register(number), 0) = ra {
                let mut on_top = Rule::amd64(Base::Sp, 0, Location::Unchanged);
                on_top.ra = ra;
                assert_eq!(rule, on_top);
                return format!("in r{number}");
            }
            if let Location::At(base, at) = ra {
                let same = Rule {
                    ra: Location::AtCfa(-8),
                    ..rule
                };
                assert_eq!(
                    (base, at, same),
                    (cfa.base, cfa.offset - 8, Rule::amd64(base, at + 8, fp))
                );
                let Base::Register(number) = base else {
                    panic!("{rule:?}")
                };
                return format!("kept r{number}+{}", cfa.offset);
            }
            let (Location::AtCfa(return_address), true) = (
                ra,
                rule == (Rule {
                    ra,
                    ..Rule::amd64(cfa.base, cfa.offset, fp)
                }),
            ) else {
                panic!("{rule:?}");
            };
            let base = match cfa.base {
                Base::Sp => "sp".to_owned(),
                Base::Fp => "fp".to_owned(),
                Base::Register(number) => format!("r{number}"),
            };
            match fp {
                Location::LOST => format!("{base}+{} lost", cfa.offset),
                _ if return_address != -8 => format!("{base}+{} ra {return_address}", cfa.offset),
                Location::AtCfa(saved) => format!("{base}+{} {saved}", cfa.offset),
                _ => format!("{base}+{}", cfa.offset),
            }
        };
        offsets
            .iter()
            .map(|offset| rule_at(START + offset).map_or("-".to_owned(), text))
            .collect()
    }

    /// [`rules_at`] with a symbol at the start.
    fn rules_of(text: &[u8], offsets: &[u64]) -> Vec<String> {
        rules_at(text, &[0], offsets)
    }

    // The bytes are the output of GNU as; comments quote the source.
    #[test]
    fn the_stack_pointer_is_followed() {
        // push %rbx; sub $16,%rsp; call; add $16,%rsp; pop %rbx; ret
        let text = b"\x53\x48\x83\xec\x10\xe8\xfb\0\0\0\x48\x83\xc4\x10\x5b\xc3";
        assert_eq!(
            rules_of(text, &[0, 1, 5, 10, 14, 15, 16]),
            ["sp+8", "sp+16", "sp+32", "sp+32", "sp+16", "sp+8", "-"]
        );
    }

    #[test]
    fn a_caller_may_make_the_frame_of_its_callee() {
        // push %rbp; mov %rsp,%rbp; push %rbx; push %rbp; push %rbp; mov %rsp,%rbp; mov
        // (%r12),%r12; call *-3(%rax); pop %rbx; leave; ret
        let text =
            b"\x55\x48\x89\xe5\x53\x55\x55\x48\x89\xe5\x4d\x8b\x24\x24\xff\x50\xfd\x5b\xc9\xc3";
        let frame = "fp+16 -16";
        assert_eq!(
            rules_of(text, &[1, 4, 7, 10, 14, 16, 17, 18, 19]),
            [
                "sp+16 -16",
                frame,
                frame,
                // The frame pointer is the callee's.
                "sp+40 -16",
                "sp+40 -16",
                // It is not at the end of the call, where the return address is looked up.
                frame,
                frame,
                frame,
                "sp+8"
            ]
        );
        // push %rbp; mov %rsp,%rbp; mov (%rax),%rsp; push %rbp; push %rbp; mov %rsp,%rbp; call
        // *-3(%rax); leave; ret
        let text = b"\x55\x48\x89\xe5\x48\x8b\x20\x55\x55\x48\x89\xe5\xff\x50\xfd\xc9\xc3";
        assert_eq!(
            rules_of(text, &[9, 12, 14, 15, 16]),
            [frame, "-", frame, frame, "sp+8"]
        );
    }

    #[test]
    fn a_frame_pointer_is_followed() {
        // push %rbp; mov %rsp,%rbp; push %rbx; and $-32,%rsp; call; lea -8(%rbp),%rsp; pop %rbx;
        // pop %rbp; ret
        let text =
            b"\x55\x48\x89\xe5\x53\x48\x83\xe4\xe0\xe8\xfb\0\0\0\x48\x8d\x65\xf8\x5b\x5d\xc3";
        let frame = "fp+16 -16";
        assert_eq!(
            rules_of(text, &[0, 1, 4, 5, 9, 14, 18, 19, 20]),
            [
                "sp+8",
                "sp+16 -16",
                frame,
                frame,
                frame,
                frame,
                frame,
                frame,
                "sp+8"
            ]
        );
        // A callee may pop its arguments, as V8's functions do:
        // push %rbp; mov %rsp,%rbp; call; leave; pop %rcx; lea 8(%rsp,%rax,8),%rsp; push %rcx; ret
        let text = b"\x55\x48\x89\xe5\xe8\xfb\0\0\0\xc9\x59\x48\x8d\x64\xc4\x08\x51\xc3";
        assert_eq!(
            rules_of(text, &[4, 9, 10, 11, 16, 17]),
            [frame, frame, "sp+8", "in r2", "in r2", "sp+8"]
        );
    }

    #[test]
    fn a_register_may_hold_the_return_address() {
        // pop %r10; lea (%rsp,%rcx,8),%rsp; push %r10; ret
        let text = b"\x41\x5a\x48\x8d\x24\xcc\x41\x52\xc3";
        let at = [0, 2, 6, 8];
        assert_eq!(rules_of(text, &at), ["sp+8", "in r10", "in r10", "sp+8"]);
        // Something is pushed: pop %r10; push %rdx; push %r10; ret
        let text = b"\x41\x5a\x52\x41\x52\xc3";
        assert_eq!(
            rules_of(text, &[0, 2, 3, 5]),
            ["sp+8", "in r10", "-", "sp+8"]
        );
        // Another stack: pop %r10; mov (%rdi),%rsp; push %r10; ret
        let text = b"\x41\x5a\x48\x8b\x27\x41\x52\xc3";
        assert_eq!(rules_of(text, &[2, 5, 7]), ["in r10", "-", "sp+8"]);
        // The arguments end where another register points: pop %rcx; lea 8(%r15),%rsp; push %rcx;
        // ret
        let text = b"\x59\x49\x8d\x67\x08\x51\xc3";
        assert_eq!(rules_of(text, &[1, 5, 6]), ["in r2", "in r2", "sp+8"]);
        // The next instruction is another one: pop %rcx; lea 8(%r15),%rsp; nop; push %rcx; ret
        let text = b"\x59\x49\x8d\x67\x08\x90\x51\xc3";
        assert_eq!(rules_of(text, &[1, 5, 6, 7]), ["in r2", "-", "-", "sp+8"]);
        // A callee may change the register: pop %r15; call; push %r15; ret. And mov $7,%ecx does.
        let text = b"\x41\x5f\xe8\0\x10\0\0\x41\x57\xc3";
        assert_eq!(rules_of(text, &[2, 7, 9]), ["in r15", "-", "sp+8"]);
        let text = b"\x59\xb9\x07\0\0\0\xff\xe1";
        assert_eq!(rules_of(text, &[1, 6]), ["in r2", "-"]);
    }

    #[test]
    fn the_end_of_a_function_shows_its_return_address() {
        // push %rbp; mov %rsp,%rbp; sub $16,%rsp; call; mov (%rbp),%rbp; what `end` has. It jumps
        // to the second function, xor %eax,%eax; ret.
        let rules = |end: &[u8], offsets: &[u64]| {
            let first = [
                b"\x55\x48\x89\xe5\x48\x83\xec\x10\xe8\xf3\x0f\0\0\x48\x8b\x6d\0",
                end,
            ]
            .concat();
            let text = text_of(&[&first, b"\x31\xc0\xc3"], 64, 0xcc);
            rules_of(&text, offsets)
        };
        // mov %rax,%rbx; add $24,%rsp; jmp
        let jumps = b"\x48\x89\xc3\x48\x83\xc4\x18\xe9\x23\0\0\0";
        assert_eq!(
            rules(jumps, &[13, 17, 20, 24]),
            ["fp+16 -16", "sp+32", "sp+32", "sp+8"]
        );
        // pop %rbx; pop %rcx; ret. And pop %rbx; jmp *%rcx.
        assert_eq!(
            rules(b"\x5b\x59\xc3", &[17, 18, 19]),
            ["sp+24", "sp+16", "sp+8"]
        );
        assert_eq!(rules(b"\x5b\xff\xe1", &[17, 18]), ["sp+16", "sp+8"]);
        // mov 24(%rsp),%r10; mov %r10,8(%rsp); mov %rdx,24(%rsp); add $8,%rsp; jmp *%rcx
        let moves =
            b"\x4c\x8b\x54\x24\x18\x4c\x89\x54\x24\x08\x48\x89\x54\x24\x18\x48\x83\xc4\x08\xff\xe1";
        let at = [17, 22, 27, 32, 36];
        assert_eq!(
            rules(moves, &at),
            ["sp+32", "sp+32", "sp+16", "sp+16", "sp+8"]
        );
        // The second store is of the other half of the place; the register is changed in between:
        // mov %edx,12(%rsp). xor %r10d,%r10d.
        let mut other = *moves;
        other[10..15].copy_from_slice(b"\x89\x54\x24\x0c\x90");
        assert_eq!(rules(&other, &at), ["-", "-", "-", "sp+16", "sp+8"]);
        let changes = [&moves[..5], b"\x45\x31\xd2", &moves[5..]].concat();
        assert_eq!(rules(&changes, &[17, 22, 25, 30]), ["-", "-", "-", "sp+16"]);
        // The stack pointer is another one: mov %rcx,%rsp; ret. A system call, or nothing known,
        // follows.
        assert_eq!(
            rules(b"\x90\x48\x89\xcc\xc3", &[17, 18, 21]),
            ["-", "-", "sp+8"]
        );
        assert_eq!(rules(b"\x90\xeb\xfe", &[17, 18]), ["-", "-"]);
        // Without a frame, a jump to an address in a register proves nothing: and $-32,%rsp; xor
        // %eax,%eax; jmp *%rcx
        let text = b"\x48\x83\xe4\xe0\x31\xc0\xff\xe1";
        assert_eq!(rules_of(text, &[0, 4, 6]), ["sp+8", "-", "-"]);
    }

    #[test]
    fn the_return_address_may_be_moved_down() {
        // push %rbx; push %rbx; mov 16(%rsp),%r10; mov %r10,8(%rsp); mov %rdx,16(%rsp); nop; add
        // $8,%rsp; jmp
        let text =
            b"\x53\x53\x4c\x8b\x54\x24\x10\x4c\x89\x54\x24\x08\x48\x89\x54\x24\x10\x90\x48\x83\xc4\x08\xe9\xfb\x0f\0\0";
        assert_eq!(
            rules_of(text, &[2, 7, 12, 17, 18, 22]),
            [
                "sp+24",
                "sp+24",
                "sp+24",
                "sp+24 ra -16",
                "sp+24 ra -16",
                "sp+8"
            ]
        );
        // The new place is overwritten instead: mov %rdx,8(%rsp). And then the old one, too.
        let mut other = text.to_vec();
        other[16] = 8;
        other[22..].copy_from_slice(b"\xc3\x90\x90\x90\x90");
        assert_eq!(rules_of(&other, &[2, 17, 22]), ["-"; 3]);
        // After the move, the old place tells no more: push 16(%rsp); ret
        let mut other = text.to_vec();
        other[18..23].copy_from_slice(b"\xff\x74\x24\x10\xc3");
        assert_eq!(rules_of(&other, &[2, 18, 22]), ["-"; 3]);
    }

    #[test]
    fn a_guess_does_not_leave_a_frame_of_another_function() {
        // push %rbp; mov %rsp,%rbp; je; call of other code; int3; 16: mov %rbp,%rsp; pop %rbp; 20:
        // jmp *%rcx
        let text =
            b"\x74\x12\x55\x48\x89\xe5\x90\x90\x90\x90\xe8\0\x10\0\0\xcc\x48\x89\xec\x5d\xff\xe1";
        assert_eq!(
            rules_of(text, &[0, 3, 10, 16, 19, 20]),
            ["sp+8", "sp+16 -16", "fp+16 -16", "-", "-", "sp+8"]
        );
    }

    #[test]
    fn the_top_of_the_stack_may_be_moved_down() {
        let loop_of = |load: [u8; 4], count: u8, back: u8| {
            // cmp $2,%rbx; je; mov %rsp,%r8; sub %r10,%rsp; xor %r11d,%r11d
            let mut text = b"\x48\x83\xfb\x02\x74\x19\x49\x89\xe0\x4c\x29\xd4\x45\x33\xdb".to_vec();
            text.extend(load);
            // mov %r10,(%rsp,%r11,8); inc %r11; cmp %r9,%r11; jl; xor %r8d,%r8d; jmp *%rcx
            text.extend(b"\x4e\x89\x14\xdc\x49\xff");
            text.extend([
                count, 0x4d, 0x3b, 0xd9, 0x7c, back, 0x45, 0x33, 0xc0, 0xff, 0xe1,
            ]);
            rules_of(&text, &[6, 9, 12, 15, 19, 23, 26, 29, 31, 34])
        };
        // mov (%r8,%r11,8),%r10
        let load = [0x4f, 0x8b, 0x14, 0xd8];
        let (entry, copy, nothing) = ("sp+8", "r8+8", "-");
        let moved = [
            entry, entry, copy, nothing, nothing, entry, entry, entry, entry, entry,
        ];
        assert_eq!(loop_of(load, 0xc3, 0xf0), moved);
        // Otherwise the return address is where it was, as far as the register tells where that is.
        let other = [
            entry, entry, copy, copy, copy, copy, copy, copy, nothing, nothing,
        ];
        // mov (%r9,%r11,8),%r10. mov 8(%r8,%r11,8),... is longer; here dec %r11; and a loop from
        // the store on.
        for text in [
            loop_of([0x4f, 0x8b, 0x14, 0xd9], 0xc3, 0xf0),
            loop_of(load, 0xcb, 0xf0),
            loop_of(load, 0xc3, 0xf4),
        ] {
            assert_eq!(text, other);
        }
    }

    #[test]
    fn rbp_may_hold_any_value() {
        // push %rbp; mov $7,%ebp; pop %rbp; ret
        let text = b"\x55\xbd\x07\0\0\0\x5d\xc3";
        assert_eq!(
            rules_of(text, &[1, 6, 7]),
            ["sp+16 -16", "sp+16 -16", "sp+8"]
        );
        // sub $24,%rsp; mov %rbp,8(%rsp); mov $7,%ebp; mov 8(%rsp),%rbp; add $24,%rsp; ret
        let text = b"\x48\x83\xec\x18\x48\x89\x6c\x24\x08\xbd\x07\0\0\0\x48\x8b\x6c\x24\x08\
            \x48\x83\xc4\x18\xc3";
        assert_eq!(
            rules_of(text, &[4, 9, 14, 19, 23]),
            ["sp+32", "sp+32 -24", "sp+32 -24", "sp+32 -24", "sp+8"]
        );
        // A part of a function, which does not save rbp: mov $7,%ebp; ret. A guess is not enough
        // for that.
        let text = b"\xbd\x07\0\0\0\xc3";
        assert_eq!(rules_of(text, &[0, 5]), ["sp+8", "sp+8 lost"]);
        assert_eq!(rules_at(text, &[], &[0, 5]), ["-", "-"]);
    }

    #[test]
    fn parts_of_functions_may_change_rbp() {
        const PART: &[u8] = b"\xbd\x07\0\0\0\xc3"; // mov $7,%ebp; ret
                                                   // push %rbp; call of the part; pop %rbp; ret
        let text = text_of(&[b"\x55\xe8\x0a\0\0\0\x5d\xc3", PART], 16, 0x90);
        assert_eq!(
            rules_of(&text, &[0, 1, 6, 7, 16, 21]),
            [
                "sp+8",
                "sp+16 -16",
                "sp+16 -16",
                "sp+8",
                "sp+8",
                "sp+8 lost"
            ]
        );
        // call of the part; mov %edx,%eax; ret: a part, too
        let text = text_of(&[b"\xe8\x0b\0\0\0\x89\xd0\xc3", PART], 16, 0x90);
        assert_eq!(
            rules_of(&text, &[0, 5, 7, 16, 21]),
            ["sp+8", "sp+8 lost", "sp+8 lost", "sp+8", "sp+8 lost"]
        );
        // push %rbp; call of the first part; call of the second; pop %rbp; ret. The first, mov
        // $7,%ebp, goes on in the second, xor %eax,%eax; ret.
        let parts = b"\xbd\x07\0\0\0\x31\xc0\xc3";
        let both = text_of(
            &[b"\x55\xe8\x0a\0\0\0\xe8\x0a\0\0\0\x5d\xc3", parts],
            16,
            0x90,
        );
        assert_eq!(
            rules_of(&both, &[1, 6, 11, 12, 16, 21, 23]),
            [
                "sp+16 -16",
                "sp+16 -16",
                "sp+16 -16",
                "sp+8",
                "sp+8",
                "sp+8 lost",
                "sp+8 lost"
            ]
        );
        // push %rbp; call of the second part; pop %rbp; ret
        let one = text_of(&[b"\x55\xe8\x0f\0\0\0\x5d\xc3", parts], 16, 0x90);
        assert_eq!(rules_of(&one, &[21, 23]), ["sp+8", "sp+8"]);
        // push %rbp; call of the part; pop %rbp; ret. The part: push %rbx; mov $7,%ebp; sub
        // $16,%rsp; add $16,%rsp; pop %rbx; ret
        let part = b"\x53\xbd\x07\0\0\0\x48\x83\xec\x10\x48\x83\xc4\x10\x5b\xc3";
        let text = text_of(&[b"\x55\xe8\x0a\0\0\0\x5d\xc3", part], 16, 0x90);
        assert_eq!(
            rules_of(&text, &[17, 22, 26, 30, 31]),
            [
                "sp+16",
                "sp+16 lost",
                "sp+32 lost",
                "sp+16 lost",
                "sp+8 lost"
            ]
        );
        // The stack pointer is lost, too: mov $7,%ebp; and $-32,%rsp; jmp to itself
        let part = b"\xbd\x07\0\0\0\x48\x83\xe4\xe0\xeb\xfe";
        assert_eq!(rules_of(part, &[0, 5, 9]), ["sp+8", "sp+8 lost", "-"]);
    }

    #[test]
    fn callees_that_return_confirm_guesses() {
        // call; jmp to the tail of the second function
        const JUMPS: &[u8] = b"\xe8\x1b\0\0\0\xeb\x0e";
        const TAIL: &[u8] = b"\xe8\x0b\0\0\0\x89\xd0\xc3"; // call; mov %edx,%eax; ret
        let at = [0, 5, 16, 21];
        // The callee is xor %eax,%eax; ret.
        let text = text_of(&[JUMPS, TAIL, b"\x31\xc0\xc3"], 16, 0x90);
        assert_eq!(rules_at(&text, &[], &at), ["sp+8"; 4]);
        // The callee does not return: jmp to itself
        let text = text_of(&[JUMPS, TAIL, b"\xeb\xfe"], 16, 0x90);
        assert_eq!(rules_at(&text, &[], &at), ["-"; 4]);
        // The callee is other code, which may not return.
        let text = text_of(&[JUMPS, TAIL], 16, 0x90);
        assert_eq!(rules_at(&text, &[], &at), ["-"; 4]);
        // The callee returns to another function.
        let text = text_of(&[JUMPS, TAIL, b"\x58\x58\xc3"], 16, 0x90);
        assert_eq!(rules_at(&text, &[], &at), ["-"; 4]);
    }

    #[test]
    fn a_prologue_after_a_call_is_of_another_function() {
        // push %rbp; mov %rsp,%rbp; je 1f; pop %rbp; ret; 1: call of other code
        let calls = b"\x55\x48\x89\xe5\x74\x02\x5d\xc3\xe8\0\x10\0\0";
        let frame = "fp+16 -16";
        // push %rbp; mov %rsp,%rbp; pop %rbp; ret
        let text = [&calls[..], b"\x55\x48\x89\xe5\x5d\xc3"].concat();
        assert_eq!(
            rules_of(&text, &[8, 13, 14, 17, 18]),
            [frame, "-", "-", "-", "-"]
        );
        assert_eq!(
            rules_at(&text, &[0, 13], &[8, 13, 14, 17, 18]),
            [frame, "sp+8", "sp+16 -16", frame, "sp+8"]
        );
        // The function may go on with push %rbp; pop %rcx; jmp to its end
        let text = [&calls[..], b"\x55\x59\xeb\xf5"].concat();
        assert_eq!(
            rules_of(&text, &[8, 13, 14, 15]),
            [frame, frame, frame, frame]
        );
    }

    #[test]
    fn functions_that_are_jumped_to_confirm_guesses() {
        // jne to the second function; jmp to the third, which jumps to the second, xor %eax,%eax;
        // ret
        const JUMPS: &[u8] = b"\x75\x0e\xeb\x1c";
        let text = |second| text_of(&[JUMPS, second, b"\xeb\xee"], 16, 0x90);
        let at = [0, 2, 16, 18, 32];
        assert_eq!(rules_at(&text(b"\x31\xc0\xc3"), &[], &at), ["sp+8"; 5]);
        // The second function is not proved: jmp *%rax
        assert_eq!(rules_at(&text(b"\xff\xe0"), &[], &at), ["-"; 5]);
        // A guess with something on the stack proves nothing: push %rax; jmp to the second function
        let text = text_of(&[b"\x50\xeb\x0d", b"\x31\xc0\xc3"], 16, 0x90);
        assert_eq!(rules_at(&text, &[], &[0, 1]), ["-", "-"]);
    }

    #[test]
    fn a_register_may_hold_the_stack_pointer() {
        // mov %rsp,%rcx; and $-32,%rsp; sub $96,%rsp; call; mov %rcx,%rsp; ret
        const ALIGNS: &[u8] =
            b"\x48\x89\xe1\x48\x83\xe4\xe0\x48\x83\xec\x60\xe8\x10\0\0\0\x48\x89\xcc\xc3";
        let at = [3, 7, 11, 16, 19];
        // The callee is xor %eax,%eax; ret.
        let text = text_of(&[ALIGNS, b"\x31\xc0\xc3"], 32, 0x90);
        assert_eq!(
            rules_at(&text, &[], &at),
            ["sp+8", "r2+8", "r2+8", "r2+8", "sp+8"]
        );
        // While the callee runs, the register is known.
        assert_eq!(rules_at(&text, &[], &[12, 15]), ["kept r2+8"; 2]);
        // The function writes rbx, which no kept register goes with: mov $7,%bl in place of sub
        // $96,%rsp.
        let mut other = text.clone();
        other[7..11].copy_from_slice(b"\xb3\x07\x90\x90");
        assert_eq!(rules_at(&other, &[], &[12, 15]), ["r2+8"; 2]);
        // The callee changes the register: xor %ecx,%ecx; ret
        let text = text_of(&[ALIGNS, b"\x31\xc9\xc3"], 32, 0x90);
        assert_eq!(rules_of(&text, &at), ["sp+8", "r2+8", "r2+8", "-", "sp+8"]);
        assert_eq!(rules_of(&text, &[12, 15]), ["r2+8"; 2]);
        // Nothing tells then that the start was right.
        assert_eq!(rules_at(&text, &[], &at), ["-"; 5]);
        // Other code may change it.
        let text = text_of(&[ALIGNS], 32, 0x90);
        assert_eq!(rules_of(&text, &[11, 16]), ["r2+8", "-"]);
        // mov %rsp,%rbx; and $-32,%rsp; call; mov %rbx,%rsp; ret: other code may not change rbx
        let text = b"\x48\x89\xe3\x48\x83\xe4\xe0\xe8\0\x10\0\0\x48\x89\xdc\xc3";
        assert_eq!(rules_at(text, &[], &[7, 12, 15]), ["r3+8", "r3+8", "sp+8"]);
        // mov %rsp,%rcx; and $-32,%rsp; mov $7,%cl; nop; mov %rcx,%rsp; ret
        let text = b"\x48\x89\xe1\x48\x83\xe4\xe0\xb1\x07\x90\x48\x89\xcc\xc3";
        assert_eq!(rules_of(text, &[7, 9]), ["r2+8", "-"]);
    }

    #[test]
    fn functions_that_are_not_understood_spoil_what_they_reach() {
        const CALLS: &[u8] = b"\x53\xe8\x0a\0\0\0\x5b\xc3"; // push %rbx; call; pop %rbx; ret
        const TAIL: &[u8] = b"\x31\xc0\x89\xd0\xc3"; // xor %eax,%eax; mov %edx,%eax; ret
                                                     // The callee is push %rbx; jmp into the third
                                                     // function, which returns with one word more
                                                     // on the stack.
        let text = text_of(&[CALLS, b"\x53\xeb\x0f", TAIL], 16, 0x90);
        assert_eq!(
            rules_at(&text, &[0, 32], &[1, 6, 16, 17, 32, 34]),
            ["sp+16", "-", "-", "-", "sp+8", "-"]
        );
        assert_eq!(rules_at(&text, &[32], &[32, 34]), ["sp+8", "-"]);
    }

    #[test]
    fn the_return_address_may_be_moved() {
        // push %rdx; push 8(%rsp); mov %rdi,16(%rsp); jmp: adds an argument
        let text = b"\x52\xff\x74\x24\x08\x48\x89\x7c\x24\x10\xe9\xfb\x0f\0\0";
        assert_eq!(
            rules_of(text, &[0, 1, 5, 10]),
            ["sp+8", "sp+16", "sp+8", "sp+8"]
        );
        // push %rdx; mov 8(%rsp),%r10; mov %r10,16(%rsp); add $16,%rsp; jmp: removes an argument
        let text = b"\x52\x4c\x8b\x54\x24\x08\x4c\x89\x54\x24\x10\x48\x83\xc4\x10\xe9\xfb\x0f\0\0";
        assert_eq!(
            rules_of(text, &[1, 6, 11, 15]),
            ["sp+16", "sp+16", "sp+16", "sp+8"]
        );
        // mov %rax,(%rsp); ret: jumps to rax.
        assert_eq!(rules_of(b"\x48\x89\x04\x24\xc3", &[0, 4]), ["sp+8", "-"]);
        // push %rbx; movups %xmm0,(%rsp); ret
        let text = b"\x53\x0f\x11\x04\x24\xc3";
        assert_eq!(rules_of(text, &[1, 5]), ["sp+16", "-"]);
    }

    /// V8's entry to interpreted code does this: it sets up its caller's frame, or returns to its
    /// caller's caller.
    #[test]
    fn a_function_may_set_up_its_callers_frame_or_discard_it() {
        // test $0x3e,%cl; jne 1f; pop %r15; push %rbp; mov %rsp,%rbp; push %rsi; cmp %rax,%rsp; jb
        // 2f; push %r15; nop; ret
        let mut text = b"\xf6\xc1\x3e\x75\x10\x41\x5f\x55\x48\x89\xe5\x56\x48\x39\xc4\x72\x19\
            \x41\x57\x90\xc3"
            .to_vec();
        // 1: add $8,%rsp; push %rbp; mov %rsp,%rbp; push %rdi; call; pop %rdi; mov %rbp,%rsp; pop
        // %rbp; push %rcx; ret
        text.extend_from_slice(
            b"\x48\x83\xc4\x08\x55\x48\x89\xe5\x57\xe8\xfb\x0f\0\0\x5f\x48\x89\xec\x5d\x51\xc3",
        );
        // 2: push %r15; push %rbp; mov %rsp,%rbp; call; mov %rbp,%rsp; pop %rbp; ret
        text.extend_from_slice(b"\x41\x57\x55\x48\x89\xe5\xe8\xfb\x0f\0\0\x48\x89\xec\x5d\xc3");
        let (entry, nothing, frame) = ("sp+8", "-", "fp+16 -16");
        // The frame pointer is that of the caller's caller, and the caller has no frame.
        assert_eq!(
            rules_of(&text, &[0, 3, 5, 0x15]),
            ["sp+8 lost", "sp+8 lost", "sp+8 lost", "sp+8 lost"]
        );
        assert_eq!(
            rules_of(&text, &[7, 8, 0xb, 0xc, 0x11, 0x13, 0x14]),
            [nothing, nothing, nothing, nothing, nothing, entry, entry]
        );
        assert_eq!(
            rules_of(&text, &[0x19, 0x1a, 0x1d, 0x23, 0x27, 0x28, 0x29]),
            [nothing, nothing, frame, frame, frame, entry, "sp+16"]
        );
        assert_eq!(
            rules_of(&text, &[0x2a, 0x2c, 0x2d, 0x30, 0x35, 0x39]),
            [nothing, entry, "sp+16 -16", frame, frame, entry]
        );
        // Without a symbol, this code is the tail of a function: add $8,%rsp; push %rbp;
        // mov %rsp,%rbp; leave; ret
        let text = b"\x48\x83\xc4\x08\x55\x48\x89\xe5\xc9\xc3";
        assert_eq!(rules_of(text, &[0, 4, 8]), ["sp+8 lost", nothing, frame]);
        assert_eq!(rules_at(text, &[], &[0, 4, 8]), [nothing; 3]);
        // The pushed word is not at the place of the return address: push %rbx; push %rcx; ret
        assert_eq!(rules_of(b"\x53\x51\xc3", &[0, 1, 2]), [nothing; 3]);
    }

    #[test]
    fn contradictory_code_gets_no_rules() {
        // xor %eax,%eax; pop %rbx; ret: the tail of another function.
        assert_eq!(rules_of(b"\x31\xc0\x5b\xc3", &[0, 2, 3]), ["-", "-", "-"]);
        // test %edi,%edi; je over it; push %rax; pop %rax; ret
        assert_eq!(
            rules_of(b"\x85\xff\x74\x01\x50\x58\xc3", &[0, 5]),
            ["-", "-"]
        );
        // mov $15,%eax; syscall; ret
        assert_eq!(rules_of(b"\xb8\x0f\0\0\0\x0f\x05\xc3", &[0, 7]), ["-", "-"]);
        // leave; ret. And an invalid instruction.
        assert_eq!(rules_of(b"\xc9\xc3", &[0, 1]), ["-", "-"]);
        assert_eq!(rules_of(b"\x06\xc3", &[0]), ["-"]);
        // mov (%rdi),%rsp; ret: switches to another stack, and returns to the address on top of it.
        assert_eq!(rules_of(b"\x48\x8b\x27\xc3", &[0, 3]), ["sp+8", "sp+8"]);
    }

    /// Concatenates functions, padded with `fill` to multiples of `align`.
    fn text_of(functions: &[&[u8]], align: usize, fill: u8) -> Vec<u8> {
        let mut text = Vec::new();
        for function in functions {
            text.extend_from_slice(function);
            text.resize(text.len().next_multiple_of(align), fill);
        }
        text
    }

    #[test]
    fn functions_are_guessed() {
        const PUSHES: &[u8] = b"\x53\xe8\xfb\x0f\0\0\x5b\xc3"; // push %rbx; call; pop %rbx; ret
        let text = text_of(&[PUSHES, PUSHES], 16, 0x90);
        assert_eq!(rules_at(&text, &[], &[1, 17, 8]), ["sp+16", "sp+16", "-"]);
        // jmp *%rax confirms nothing: it may use a jump table. After padding that traps, it ends a
        // function.
        const JUMPS: &[u8] = b"\x31\xc0\xff\xe0"; // xor %eax,%eax; jmp *%rax
        let text = text_of(&[PUSHES, JUMPS], 64, 0x90);
        assert_eq!(rules_at(&text, &[], &[1, 64]), ["sp+16", "-"]);
        assert_eq!(rules_at(&text, &[64], &[64]), ["sp+8"]);
        let text = text_of(&[PUSHES, JUMPS], 64, 0xcc);
        assert_eq!(rules_at(&text, &[], &[1, 64]), ["sp+16", "sp+8"]);
        // The tail of another function, after its jump: pop %rbx; ret
        let text = text_of(&[JUMPS, b"\x5b\xc3"], 16, 0x90);
        assert_eq!(rules_at(&text, &[0], &[0, 16]), ["sp+8", "-"]);
    }

    #[test]
    fn code_within_a_function_is_not_a_start() {
        // push %rbp; mov %rsp,%rbp; jmp across padding that traps, to: leave; ret
        let text = text_of(&[b"\x55\x48\x89\xe5\xeb\x3a", b"\xc9\xc3"], 64, 0xcc);
        assert_eq!(
            rules_at(&text, &[], &[4, 64, 65]),
            ["fp+16 -16", "fp+16 -16", "sp+8"]
        );
        // After a call that does not return, another function begins: push %rbx; call; and push
        // %rax; pop %rax; ret
        let text = text_of(&[b"\x53\xe8\xfb\x0f\0\0", b"\x50\x58\xc3"], 16, 0x90);
        assert_eq!(
            rules_at(&text, &[0, 16], &[1, 6, 17]),
            ["sp+16", "-", "sp+16"]
        );
        // Without symbols the first function is rejected.
        assert_eq!(rules_at(&text, &[], &[1, 6, 17]), ["-", "-", "-"]);
    }

    #[test]
    fn the_entry_point_is_not_a_start() {
        // mov %rsp,%rdi; call; ret
        let text = b"\x48\x89\xe7\xe8\xfb\x0f\0\0\xc3";
        let code = CodeBytes {
            segments: vec![(START, START + 9, text)],
        };
        let gap = START..START + 9;
        for (entry, found) in [(START, 0), (0, 1)] {
            let gaps = std::slice::from_ref(&gap);
            let symbols = BTreeSet::from([START]);
            let (work, report) = (&mut ConversionWork::new(text), &mut Report::default());
            let functions = functions(gaps, &symbols, entry, &code, work, report);
            assert_eq!(functions.len(), found);
        }
    }
}
