// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The walk: from the innermost frame, frame by frame, to the outermost frame or to a reason to
//! stop.
//!
//! The kernel module and the host run this one loop. Both implement [`Task`]: reads of memory, the
//! mappings of the task, and the rows of files.
//!
//! Each step uses the row that covers the lookup address. If no row covers it, the walk examines
//! the code and the frame pointer. It takes a step by them only if they prove the step: a wrong
//! frame is worse than a missing frame.
//!
//! The walk always ends: each step rises on the stack, except for steps to another stack, and the
//! number of those is bounded.

pub mod locate;
mod rbx;
mod registers;
mod rules;
pub mod stop_reason;
pub mod task;

pub use self::task::*;

use self::{
    rbx::Replay,
    registers::{
        FrameKind,
        KnownRegisters,
        RegistersIn, //
    },
    rules::rule_at,
    stop_reason::StopReason, //
};
use crate::sframe::{
    arch::{
        fallback::{
            self,
            FramePointer, //
        },
        insn,
        machine::HAS_REGIONS,
        registers::FOLLOWED,
        signal,
        unknown, //
    },
    format::bytes::{
        Fault,
        Source, //
    },
    rule::{
        Base,
        Location,
        Rule,
        SavedRbx, //
    },
    runtimes::{
        self,
        Region, //
    },
    unwind::step::{
        self,
        Frame,
        Step,
        Stop,
        MAX_SIGNALS, //
    }, //
};

/// Walks from the innermost frame, which the caller has already stored, and returns the stop
/// reason. `frame` becomes the last frame that the walk reached. Context: any in which the methods
/// of `task` may run.
#[inline(always)]
pub fn walk<T: Task>(task: &T, frame: &mut Frame, sink: &mut T::Sink) -> StopReason {
    run_loop(task, frame.sp, false, frame, sink)
}

/// Walks on from `frame`. `has_called`: the fast path has led from the innermost frame to `frame`;
/// else `frame` still is the innermost frame. `lowest` is the stack pointer of the innermost frame.
/// Apart from that, as [`walk`].
#[inline(always)]
pub fn run_loop<T: Task>(
    task: &T,
    lowest: u64,
    has_called: bool,
    frame: &mut Frame,
    sink: &mut T::Sink,
) -> StopReason {
    let mut walk = WalkState::<T> {
        kind: match has_called {
            true => FrameKind::Caller { lowest },
            false => FrameKind::Innermost,
        },
        replay: Replay::None,
        stack_changes: MAX_SIGNALS,
        mapping: Mapping::NOWHERE,
        stack_end: 0,
    };
    loop {
        if let Err(reason) = walk.turn(task, frame, sink) {
            return reason;
        }
    }
}

/// The work of a frame for which there is no rule, without the reads and the searches of code, in
/// instructions.
const FRAME_WITHOUT_RULE: u32 = 220;

/// The state of a walk, apart from its last frame.
struct WalkState<T: Task> {
    /// How the walk has come to the frame.
    kind: FrameKind,
    replay: Replay,
    /// How many steps to other stacks may follow.
    stack_changes: u32,
    /// The last mapping that was needed.
    mapping: MappingOf<T>,
    /// The end of the stack's mapping, a run-time address; 0 if it is not known.
    stack_end: u64,
}

/// The frame that a step has led to.
enum Next {
    /// The caller, on the same stack.
    Caller,
    /// The caller, on another stack.
    OtherStack,
    /// The frame that a signal interrupted. The walk has its kind already.
    Interrupted,
    /// The first or the next frame of the second walk.
    Replay,
}

// Each value that the loop keeps over a call of `find`, `rule_at` or `step_in_region`, whose stacks
// are the deepest, counts against the 1,024 bytes of stack. So `by_rule`, after which the stack is
// less deep, is a call, and the others are not.
impl<T: Task> WalkState<T> {
    /// Takes a step from `frame`, which becomes the frame that the step leads to, and stores it.
    #[inline(always)]
    fn turn(&mut self, task: &T, frame: &mut Frame, sink: &mut T::Sink) -> Result<(), StopReason> {
        if task.is_late() {
            return Err(StopReason::Budget);
        }
        let sp = frame.sp;
        find(task, &mut self.mapping, self.kind.lookup_address(frame.pc))?;
        let (next, source) = match &mut rule_at(task, frame.pc, self.kind, &self.mapping) {
            Ok(Some((rule, origin))) => {
                let next = self.by_rule(task, rule, *origin, frame, sink)?;
                (next, FrameSource::Rows)
            }
            Ok(None) => (self.without_rule(task, frame)?, FrameSource::FramePointer),
            Err(reason) => return Err(*reason),
        };
        match next {
            Next::Replay => return Ok(()),
            Next::Interrupted => {}
            Next::Caller => self.kind = self.kind.caller(sp),
            Next::OtherStack => {
                self.kind = FrameKind::Caller { lowest: frame.sp };
                // A step that rises does not count against the bound.
                self.leave_stack(frame.sp <= sp)?;
            }
        }
        if task.is_probed() && !task.undo_uretprobe(frame) {
            return Err(StopReason::Uprobe);
        }
        if !self.kind.has_called() {
            self.leave_stack(true)?;
            if task.is_probed() && !task.leave_uprobe(frame) {
                return Err(StopReason::Uprobe);
            }
        }

        let lookup_address = self.kind.lookup_address(frame.pc);
        find(task, &mut self.mapping, lookup_address)?;
        if !self.mapping.executable {
            return Err(StopReason::NotExecutable);
        }
        if !sink.store(frame, lookup_address, source) {
            return Err(StopReason::Full);
        }
        // Frames that a signal interrupted are rare. The fast paths do not support them.
        if task.is_probed() || !self.kind.has_called() {
            return Ok(());
        }
        let code = self.mapping.start..self.mapping.end;
        let frame_pointer = self.mapping.frame_pointer;
        match &self.mapping.rows {
            // Where code keeps its frame pointer, the caller of a frame without a row seldom has
            // one.
            MappedRows::Table(_)
                if source == FrameSource::Rows || frame_pointer != FramePointerUse::Keeps =>
            {
                return task.run_fast_path(frame, sink);
            }
            MappedRows::Table(table) => {
                task.run_frame_pointers(Some(table), (code, self.stack_end), frame, sink);
            }
            MappedRows::None(_)
                if source != FrameSource::Rows && frame_pointer != FramePointerUse::Unknown =>
            {
                task.run_frame_pointers(None, (code, self.stack_end), frame, sink);
            }
            MappedRows::Region(region)
                if HAS_REGIONS && (source != FrameSource::Rows || region.is_fast_after_rows()) =>
            {
                task.run_region(region, code, frame, sink);
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes a step to another stack. `counts`: the step counts against the bound on such steps.
    #[inline(always)]
    fn leave_stack(&mut self, counts: bool) -> Result<(), StopReason> {
        self.stack_end = 0;
        let left = self.stack_changes.checked_sub(counts.into());
        self.stack_changes = left.ok_or(StopReason::Signals)?;
        Ok(())
    }

    /// The registers of the frame that are known.
    #[inline(always)]
    fn registers<'a>(&self, task: &'a T) -> KnownRegisters<'a, T::Registers> {
        registers_of(task, self.kind)
    }

    /// Takes a step by the rule of a frame.
    #[inline(never)]
    fn by_rule(
        &mut self,
        task: &T,
        rule: &mut Rule,
        origin: Origin<T>,
        frame: &mut Frame,
        sink: &mut T::Sink,
    ) -> Result<Next, StopReason> {
        let sp = frame.sp;
        let context = match rule.signal {
            true => signal_context(task, rule, sp)?,
            false => 0,
        };
        let mut registers = self.registers(task);
        // Such a rule, in sections that `sframectl` makes, covers a call of functions that keep the
        // register.
        let is_kept = matches!(rule.ra, Location::At(Base::Register(_), _))
            && rule.extra.rbx != SavedRbx::UNKNOWN;
        if self.kind.has_called() && rule.cfa.base == Base::Register(FOLLOWED) {
            match self.replay {
                Replay::None if !task.is_probed() => {
                    let begun = Replay::begin(task, frame);
                    self.replay = begun.ok_or(StopReason::RegisterUnknown)?;
                    self.kind = FrameKind::Innermost;
                    return Ok(Next::Replay);
                }
                Replay::Found(rbx) => registers = KnownRegisters::Rbx(rbx),
                _ => return Err(StopReason::RegisterUnknown),
            }
            self.replay = Replay::None;
        } else if self.kind.has_called() && is_kept && self.stack_changes == MAX_SIGNALS {
            // No signal has interrupted the frames below.
            registers = KnownRegisters::All(task.registers());
        }
        let is_second_walk = !matches!(self.replay, Replay::None);
        if !is_second_walk {
            sink.rule(rule, origin);
        }
        step_by_rule(task, rule, frame, registers)?;
        if is_second_walk {
            if !self.replay.step(task, rule, sp, frame) {
                return Err(StopReason::RegisterUnknown);
            }
            self.kind = self.kind.caller(sp);
            return Ok(Next::Replay);
        }
        Ok(if rule.signal {
            self.kind = FrameKind::Interrupted(context);
            Next::Interrupted
        } else if rule.extra.changes_stack {
            Next::OtherStack
        } else {
            Next::Caller
        })
    }

    /// Takes a step from a frame for which there is no rule: by its region, by the code, or by the
    /// frame pointer.
    #[inline(always)]
    fn without_rule(&mut self, task: &T, frame: &mut Frame) -> Result<Next, StopReason> {
        let sp = frame.sp;
        if !matches!(self.replay, Replay::None) {
            return Err(StopReason::RegisterUnknown);
        }
        // If nothing is left, the read that follows fails.
        let _ = task.memory().spend(FRAME_WITHOUT_RULE);
        let step = match &self.mapping.rows {
            MappedRows::Region(region) => {
                let registers = (!self.kind.has_called()).then(|| self.registers(task));
                step_in_region(task, frame, registers, region, &self.mapping)
            }
            _ => {
                // Found here, where less of the kernel's stack is in use. The walk rises on one
                // stack.
                if sp >= self.stack_end {
                    self.stack_end = task.end_of_stack(sp);
                }
                let is_innermost = !self.kind.has_called();
                let kind = fallback::NEEDS_REGISTERS.then_some(self.kind);
                let stack_end = self.stack_end;
                step_without_rows(task, frame, is_innermost, kind, stack_end, &self.mapping)
            }
        };
        // Found here, where less of the kernel's stack is in use.
        step.map_err(|reason| reason.or_budget(task.is_spent()))?;
        // A region may lead to another stack.
        Ok(match frame.sp < sp {
            true => Next::OtherStack,
            false => Next::Caller,
        })
    }
}

/// The registers of a frame of this kind that are known.
#[inline(always)]
fn registers_of<T: Task>(task: &T, kind: FrameKind) -> KnownRegisters<'_, T::Registers> {
    match kind {
        FrameKind::Innermost => KnownRegisters::All(task.registers()),
        FrameKind::Interrupted(context) => KnownRegisters::Interrupted(context),
        FrameKind::Caller { lowest } => KnownRegisters::Lost(lowest),
    }
}

/// Makes sure that `mapping` is the mapping that covers `address`, a run-time address.
#[inline(never)]
fn find<T: Task>(task: &T, mapping: &mut MappingOf<T>, address: u64) -> Result<(), StopReason> {
    if mapping.covers(address) {
        return Ok(());
    }
    task.find_mapping(mapping, address)
}

/// Replaces `frame` by its caller, by a rule. The outermost frame is an error like other stop
/// reasons.
///
/// If the code shows that the caller is on another stack, `rule.extra.changes_stack` becomes true.
#[inline(never)]
fn step_by_rule<T: Task>(
    task: &T,
    rule: &mut Rule,
    frame: &mut Frame,
    registers: KnownRegisters<'_, T::Registers>,
) -> Result<(), StopReason> {
    let registers = RegistersIn(registers, task.memory());
    let mut step = step::step(T::ABI, rule, frame, &registers, task.memory());
    if step == Err(Stop::CfaNotRising) && has_left_stack(task, rule, frame) {
        rule.extra.changes_stack = true;
        step = step::step(T::ABI, rule, frame, &registers, task.memory());
    }
    let step = step.map_err(|stop| StopReason::of_step(stop, task.is_spent()))?;
    take(step, frame)
}

/// The run-time address of the `struct ucontext` of a frame with a rule for signals and with the
/// stack pointer `sp`; 0 if it has none.
#[inline(never)]
fn signal_context<T: Task>(task: &T, rule: &Rule, sp: u64) -> Result<u64, StopReason> {
    match signal::is_context(sp, task.memory()) {
        Ok(true) => Ok(sp),
        // A row may mark code that is not the signal trampoline as a signal frame. Such code has no
        // `struct ucontext` with the caller's registers.
        Ok(false) if *rule != signal::INTERRUPTED => Ok(0),
        Ok(false) => Err(StopReason::NoContext),
        Err(Fault) => Err(StopReason::of_stack_fault(task.is_spent())),
    }
}

/// Whether a frame may be on another stack than its stack pointer: its CFA does not count from the
/// stack pointer, and the code before the PC loads the stack pointer.
#[inline(never)]
fn has_left_stack<T: Task>(task: &T, rule: &Rule, frame: &Frame) -> bool {
    let address = frame.pc.wrapping_sub(const { insn::TAKES_STACK as u64 });
    rule.cfa.base != Base::Sp
        && task
            .memory()
            .read(address)
            .is_ok_and(|bytes| insn::takes_stack(&bytes))
}

fn take(step: Step, frame: &mut Frame) -> Result<(), StopReason> {
    match step {
        Step::Caller(caller) => {
            *frame = caller;
            Ok(())
        }
        Step::Outermost => Err(StopReason::Outermost),
    }
}

/// Replaces `frame` by its caller in a region. The outermost frame is an error like other stop
/// reasons.
#[inline(never)]
fn step_in_region<T: Task>(
    task: &T,
    frame: &mut Frame,
    registers: Option<KnownRegisters<'_, T::Registers>>,
    region: &Region,
    mapping: &MappingOf<T>,
) -> Result<(), StopReason> {
    if !HAS_REGIONS {
        return Err(StopReason::RegionUnknown);
    }
    let registers = registers.map(|known| RegistersIn(known, task.memory()));
    let code = mapping.start..mapping.end;
    let step = runtimes::step(region, code, frame, registers.as_ref(), task.memory());
    take(step.ok_or(StopReason::RegionUnknown)?, frame)
}

/// Replaces `frame` by its caller if no row covers the lookup address. `stack_end` is the run-time
/// address at which the stack's mapping ends. `kind` is the frame's, if [`fallback`] needs
/// registers: a constant decides, so that the stack of other architectures has no room for it.
#[inline(never)]
fn step_without_rows<T: Task>(
    task: &T,
    frame: &mut Frame,
    is_innermost: bool,
    kind: Option<FrameKind>,
    stack_end: u64,
    mapping: &MappingOf<T>,
) -> Result<(), StopReason> {
    let frame_pointer = match mapping.rows {
        MappedRows::Section(ref section) if task.section(section).0.frame_pointer() => {
            FramePointer::Kept
        }
        // The code of a file with rows is compiled without a frame pointer, unless the section's
        // flag for frame pointers is set, or user space has examined the code. Code that the rows
        // do not cover may hold any value in that register, such as the address of a caller's
        // frame.
        MappedRows::Section(_) => return Err(StopReason::NoRows),
        _ => match mapping.frame_pointer {
            FramePointerUse::Unknown if matches!(mapping.rows, MappedRows::Table(_)) => {
                return Err(StopReason::NoRows);
            }
            FramePointerUse::Unknown => FramePointer::Unknown,
            known => {
                let is_examined = known == FramePointerUse::Keeps;
                let memory = task.memory();
                let step = unknown::step(frame, is_innermost, is_examined, stack_end, memory);
                return take(step.ok_or(StopReason::NoRows)?, frame);
            }
        },
    };
    let step = fallback::step(
        frame,
        is_innermost,
        frame_pointer,
        |at| match mapping.rows {
            MappedRows::None(ref functions) => functions.start_at(at, task.memory()),
            _ => None,
        },
        stack_end,
        kind.map(|kind| RegistersIn(registers_of(task, kind), task.memory()))
            .as_ref(),
        task.memory(),
    );
    take(step.ok_or(StopReason::NoRows)?, frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::{
        arch::registers::{
            COUNT,
            RETURN_ADDRESS,
            SP, //
        },
        format::{
            abi::Abi,
            fde::tests::function,
            section::{
                Search,
                Section, //
            }, //
        },
        runtimes::CodeHeap,
        unwind::step::{
            Memory,
            RegisterSource,
            LOST_FP, //
        },
        walk::rules::rule_of_code, //
    };
    use core::ops::Range;
    use std::{
        cell::{
            Cell,
            RefCell, //
        },
        collections::BTreeMap,
        vec::Vec, //
    };

    /// A task with one rule for each listed lookup address, and the listed words in memory.
    #[derive(Default)]
    struct Mock {
        rules: BTreeMap<u64, Rule>,
        words: MockWords,
        /// The code from this address on is anonymous, and has no rows. 0: there is no such code.
        anonymous_code: u64,
        /// That code is this region.
        region: Option<Region>,
        /// The PCs of the frames from which the fast path of a region was taken.
        fast_from: RefCell<Vec<u64>>,
        is_spent: bool,
        /// The stack pointers for which the walk has asked for the end of the stack.
        ends_of: RefCell<Vec<u64>>,
    }

    #[derive(Default)]
    struct MockWords {
        words: BTreeMap<u64, u64>,
        /// A word that another thread changes after it was read, and what the word then is.
        changing: Cell<Option<(u64, u64)>>,
        /// The instructions that were spent.
        spent: Cell<u32>,
    }

    impl<T: Into<BTreeMap<u64, u64>>> From<T> for MockWords {
        fn from(words: T) -> Self {
            MockWords {
                words: words.into(),
                ..MockWords::default()
            }
        }
    }

    impl Memory for MockWords {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            let word = self.words.get(&address).copied().ok_or(Fault)?;
            match self.changing.get() {
                Some((changing, changed)) if changing == address => {
                    self.changing.set(Some((address | 1, changed)));
                    Ok(word)
                }
                Some((changing, changed)) if changing == address | 1 => Ok(changed),
                _ => Ok(word),
            }
        }
    }

    impl Source for MockWords {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            let mut bytes = [0; N];
            for (to, at) in bytes.iter_mut().zip(offset..) {
                *to = self.read_word(at & !7)?.to_le_bytes()[at as usize % 8];
            }
            Ok(bytes)
        }

        fn spend(&self, instructions: u32) -> Result<(), Fault> {
            self.spent.set(self.spent.get() + instructions);
            (self.spent.get() < 250_000).then_some(()).ok_or(Fault)
        }
    }

    struct MockRegisters;

    impl RegisterSource for MockRegisters {
        fn register(&self, number: u8) -> Option<u64> {
            match number {
                SP => Some(0x8000),
                RETURN_ADDRESS => Some(0x200),
                _ => (number < COUNT).then_some(u64::from(number) << 12),
            }
        }
    }

    impl Sink for RefCell<Vec<Frame>> {
        type Origin = ();

        fn store(&mut self, frame: &Frame, _lookup_address: u64, _source: FrameSource) -> bool {
            self.get_mut().push(*frame);
            self.get_mut().len() < 1000
        }
    }

    impl Task for Mock {
        const ABI: Abi = Abi::Amd64;
        const KNOWS_SYSTEM_CALL: bool = true;
        type Memory = MockWords;
        type Registers = MockRegisters;
        type Section = ();
        type SectionBytes<'a> = &'static [u8];
        type Table = ();
        type Sink = RefCell<Vec<Frame>>;

        fn memory(&self) -> &MockWords {
            &self.words
        }

        fn registers(&self) -> &MockRegisters {
            &MockRegisters
        }

        fn in_sigreturn(&self) -> bool {
            false
        }

        fn is_spent(&self) -> bool {
            self.is_spent
        }

        fn search(&self) -> Search {
            Search::Bounded
        }

        fn find_mapping(
            &self,
            mapping: &mut MappingOf<Self>,
            address: u64,
        ) -> Result<(), StopReason> {
            let is_anonymous = self.anonymous_code != 0 && address >= self.anonymous_code;
            let (start, end, rows) = if is_anonymous {
                let none = MappedRows::None(FunctionTable::NONE);
                let rows = self.region.map_or(none, MappedRows::Region);
                (self.anonymous_code, u64::MAX, rows)
            } else {
                (
                    0,
                    self.anonymous_code.wrapping_sub(1),
                    MappedRows::Table(()),
                )
            };
            *mapping = Mapping {
                start,
                end,
                frame_pointer: match is_anonymous {
                    true => FramePointerUse::MayKeep,
                    false => FramePointerUse::Unknown,
                },
                executable: true,
                rows,
            };
            Ok(())
        }

        /// Stacks are 64 KiB each.
        fn end_of_stack(&self, sp: u64) -> u64 {
            self.ends_of.borrow_mut().push(sp);
            (sp | 0xffff) + 1
        }

        fn run_region(
            &self,
            _region: &Region,
            _code: Range<u64>,
            frame: &mut Frame,
            _sink: &mut Self::Sink,
        ) {
            self.fast_from.borrow_mut().push(frame.pc);
        }

        fn section<'a>(&'a self, _section: &'a ()) -> (&'a Section, &'static [u8]) {
            unreachable!("there is a table")
        }

        fn look_up(&self, _table: &(), lookup_address: u64) -> TableAnswer<()> {
            match self.rules.get(&lookup_address) {
                Some(rule) => TableAnswer::Rule(*rule, ()),
                None => TableAnswer::NoRow,
            }
        }
    }

    /// The rule of code that has changed the stack. The pointer to the old stack is in the word at
    /// its stack pointer.
    fn changes_stack() -> Rule {
        let mut rule = Rule::amd64(Base::Sp, 0, Location::Unchanged);
        rule.cfa.deref = true;
        rule.cfa.plus = 8;
        rule.extra.changes_stack = true;
        rule
    }

    /// Walks between two stacks that lead to each other. The last frame's lookup address is 0x100,
    /// the outermost frame.
    fn between_stacks(rule: Rule, steps: u64) -> (StopReason, Vec<Frame>) {
        let mut words = BTreeMap::new();
        for step in 0..steps {
            // Both stacks rise, but each step to the first stack falls.
            let sp = |step: u64| 0x10_0000 * (1 + step % 2) + 0x40 * step;
            words.insert(sp(step), sp(step + 1) - 8);
            let is_last = step + 1 == steps;
            words.insert(sp(step + 1) - 8, if is_last { 0x101 } else { 0x201 });
        }
        // The lookup address of a return address is the return address minus one.
        let rules = BTreeMap::from([(0x200, rule), (0x100, Rule::OUTERMOST)]);
        let innermost = Frame {
            pc: 0x200,
            sp: 0x10_0000,
            fp: 7,
        };
        walked_from(innermost, rules, words.into())
    }

    #[test]
    fn falling_steps_between_stacks_are_counted() {
        let most = u64::from(MAX_SIGNALS);
        for steps in [1, 2, 7, 2 * most, 2 * most + 1] {
            let (reason, frames) = between_stacks(changes_stack(), steps);
            assert_eq!(
                (reason, frames.len() as u64),
                (StopReason::Outermost, steps)
            );
        }
        let (reason, frames) = between_stacks(changes_stack(), 1000);
        assert_eq!(reason, StopReason::Signals);
        assert_eq!(frames.len() as u64, 2 * most + 1);
        // If the row does not allow a change of the stack, the walk ends at the first step that
        // falls.
        let mut rule = changes_stack();
        rule.extra.changes_stack = false;
        let (reason, frames) = between_stacks(rule, 8);
        assert_eq!((reason, frames.len()), (StopReason::CfaNotRising, 1));
    }

    #[test]
    fn a_trampoline_may_be_as_long_as_a_plt_stub() {
        // mov $15,%rax; syscall, between nops
        let mut bytes = [0x90; 0x40];
        bytes[0x10..0x19].copy_from_slice(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05]);
        let words = (0x0ff8..).step_by(8).zip(bytes.chunks(8));
        let task = Mock {
            words: words
                .map(|(at, word)| (at, u64::from_le_bytes(word.try_into().unwrap())))
                .collect::<BTreeMap<_, _>>()
                .into(),
            ..Mock::default()
        };
        let rule = |function, pc| {
            let found = rule_of_code(&task, &function, pc, FrameKind::Innermost);
            found.map(|(rule, ())| rule)
        };
        assert_eq!(rule(function(16, 0), 0x1008), Some(signal::INTERRUPTED));
        assert_eq!(rule(function(17, 0), 0x1008), Some(signal::INTERRUPTED));
        assert_eq!(rule(function(16, 0), 0x1014), None);
    }

    #[test]
    fn other_code_returns_to_a_code_heap_without_the_fast_path() {
        const RETURN: u64 = 0x1_0001;
        let called_from = |region| {
            let task = Mock {
                rules: BTreeMap::from([(0x200, Rule::amd64(Base::Sp, 16, Location::Unchanged))]),
                words: [(0x8008, RETURN)].into(),
                anonymous_code: 0x1_0000,
                region: Some(region),
                ..Mock::default()
            };
            let mut frame = Frame {
                pc: 0x200,
                sp: 0x8000,
                fp: 0,
            };
            let mut sink = RefCell::new(Vec::new());
            let reason = run_loop(&task, 0x8000, false, &mut frame, &mut sink);
            assert_eq!(reason, StopReason::RegionUnknown);
            task.fast_from.take()
        };
        let heap = Region::CodeHeap(CodeHeap::default());
        assert_eq!(called_from(heap), []);
        assert_eq!(called_from(Region::Stop), [RETURN]);
    }

    #[test]
    fn the_end_of_the_budget_is_the_reason_in_a_region_too() {
        let reason = |is_spent| {
            let task = Mock {
                anonymous_code: 1,
                region: Some(Region::Stop),
                is_spent,
                ..Mock::default()
            };
            let mut innermost = Frame {
                pc: 0x200,
                sp: 0x8000,
                fp: 7,
            };
            walk(&task, &mut innermost, &mut RefCell::new(Vec::new()))
        };
        assert_eq!(reason(false), StopReason::RegionUnknown);
        assert_eq!(reason(true), StopReason::Budget);
    }

    #[test]
    fn the_end_of_a_stack_is_asked_for_once() {
        const CODE: u64 = 0x5000;
        let mut words = BTreeMap::new();
        // call *%rax, four times
        let calls = u64::from_le_bytes([0xff, 0xd0, 0xff, 0xd0, 0xff, 0xd0, 0xff, 0xd0]);
        words.extend((CODE..CODE + 0x100).step_by(8).map(|at| (at, calls)));
        // Frames by the frame pointer, on two stacks: three on the first one, then code with rows
        // that changes the stack, and two on the second one.
        let mut chain = |fp: u64, next: u64, ra: u64| words.extend([(fp, next), (fp + 8, ra)]);
        chain(0x2_8010, 0x2_8030, CODE + 8);
        chain(0x2_8030, 0x2_8050, CODE + 16);
        chain(0x2_8050, 0x1_8010, 0x202);
        chain(0x1_8010, 0x1_8030, CODE + 24);
        chain(0x1_8030, 0, 0x101);
        // The code with rows finds its return address, and the other stack, here.
        words.extend([(0x2_8060, 0x1_7ff8), (0x1_7ff8, CODE + 32)]);
        // call *%rax, before the return addresses in code with rows
        words.extend([
            (0xf8, calls.rotate_left(8)),
            (0x1f8, calls),
            (0x200, 0xd0ff),
            (0x100, 0xd0),
        ]);
        let task = Mock {
            rules: BTreeMap::from([(0x201, changes_stack()), (0x100, Rule::OUTERMOST)]),
            words: words.into(),
            anonymous_code: CODE,
            ..Mock::default()
        };
        let mut frame = Frame {
            pc: CODE + 40,
            sp: 0x2_8000,
            fp: 0x2_8010,
        };
        let mut sink = RefCell::new(Vec::new());
        let reason = run_loop(&task, frame.sp, true, &mut frame, &mut sink);
        let pcs: Vec<_> = sink.into_inner().iter().map(|frame| frame.pc).collect();
        let found = [CODE + 8, CODE + 16, 0x202, CODE + 32, CODE + 24, 0x101];
        assert_eq!((reason, &pcs[..]), (StopReason::Outermost, &found[..]));
        assert_eq!(task.ends_of.take(), [0x2_8000, 0x1_8000]);
    }

    /// The stop reason and the frames of a walk from PC 0x200, on the stack at 0x8000.
    fn walked(rules: BTreeMap<u64, Rule>, words: MockWords) -> (StopReason, Vec<Frame>) {
        let innermost = Frame {
            pc: 0x200,
            sp: 0x8000,
            fp: 7,
        };
        walked_from(innermost, rules, words)
    }

    /// The stop reason and the frames of a walk from `innermost`.
    fn walked_from(
        mut innermost: Frame,
        rules: BTreeMap<u64, Rule>,
        words: MockWords,
    ) -> (StopReason, Vec<Frame>) {
        let task = Mock {
            rules,
            words,
            ..Mock::default()
        };
        let mut sink = RefCell::new(Vec::new());
        let reason = walk(&task, &mut innermost, &mut sink);
        (reason, sink.into_inner())
    }

    #[test]
    fn signal_frames_without_a_context_have_no_registers() {
        // The caller's rule counts from rbx, which is known in a frame that a signal interrupted.
        let mut returns = changes_stack();
        returns.signal = true;
        let by_register = Rule::amd64(Base::Register(3), 8, Location::Unchanged);
        let words = |segment| {
            MockWords::from(BTreeMap::from([
                (0x8000, 0x9000),
                (0x9000, 0x300),
                (0x8000 + 184, segment),
                (0x8000 + 128, 0xa000),
                (0xa000, 0x101),
            ]))
        };
        let end = |segment| {
            let rules = BTreeMap::from([
                (0x200, returns),
                (0x300, by_register),
                (0x100, Rule::OUTERMOST),
            ]);
            walked(rules, words(segment)).0
        };
        assert_eq!(end(0x33), StopReason::Outermost);
        assert_eq!(end(0), StopReason::RegisterUnknown);
    }

    /// The stop reason and the frames of a walk to a frame whose rule counts from rbx. `callees`
    /// are the frames that lead to it, from the innermost one on: where each keeps rbx, and its
    /// size in words. Register number 3 of the innermost frame has the value 0x3000. Each word of
    /// the stack at 0x8000 is its own address, unless it is a return address.
    /// `more` are other words.
    fn to_rbx_with(
        callees: &[(u8, u64)],
        change: impl Fn(usize, &mut Rule),
        more: &[(u64, u64)],
    ) -> (StopReason, Vec<Frame>) {
        let mut rules = BTreeMap::new();
        let mut words: BTreeMap<_, _> = (0x7000..0x9000).step_by(8).map(|at| (at, at)).collect();
        let mut sp = 0x8000;
        // The lookup addresses are 0x200, 0x300, and so on.
        for (number, (rbx, size)) in callees.iter().enumerate() {
            let mut rule = Rule::amd64(Base::Sp, 8 * *size as i32, Location::Unchanged);
            rule.extra.rbx = SavedRbx(*rbx);
            change(number, &mut rule);
            let at = 0x200 + 0x100 * number as u64;
            rules.insert(at, rule);
            // The lookup address of a frame that a signal interrupted is its PC.
            rules.insert(at + 1, rule);
            sp += 8 * size;
            words.insert(sp - 8, at + 0x101);
        }
        let at = 0x200 + 0x100 * callees.len() as u64;
        let mut by_rbx = Rule::amd64(Base::Register(FOLLOWED), 0x20, Location::Unchanged);
        by_rbx.extra.changes_stack = true;
        rules.insert(at, by_rbx);
        rules.insert(0x100, Rule::OUTERMOST);
        // The return address of the frame whose rule counts from rbx, for each possible value of
        // rbx.
        words.insert(0x3018, 0x101);
        words.extend(more.iter().copied());
        walked(rules, words.into())
    }

    fn to_rbx(
        callees: &[(u8, u64)],
        change: impl Fn(usize, &mut Rule),
    ) -> (StopReason, Vec<Frame>) {
        to_rbx_with(callees, change, &[])
    }

    #[test]
    fn a_lost_frame_pointer_is_found_again_where_it_was_saved() {
        // The innermost frame has lost its caller's frame pointer.
        let end = |outer: Rule| {
            let unchanged = Rule::amd64(Base::Sp, 16, Location::Unchanged);
            let lost = Rule::amd64(Base::Sp, 16, Location::LOST);
            let by_register = Rule::amd64(Base::Fp, 16, Location::AtCfa(-16));
            let rules = [
                (0x201, lost),
                (0x300, unchanged),
                (0x400, outer),
                (0x500, by_register),
                (0x100, Rule::OUTERMOST),
            ];
            let words = [
                (0x8008, 0x301),
                (0x8018, 0x401),
                (0x8020, 0x9000),
                (0x8028, 0x501),
                (0x9000, 0xa000),
                (0x9008, 0x101),
            ];
            let innermost = Frame {
                pc: 0x201,
                sp: 0x8000,
                // The code has overwritten it by what looks like a frame.
                fp: 0x9000,
            };
            let (reason, found) = walked_from(innermost, rules.into(), words.into());
            (
                reason,
                found.iter().map(|frame| frame.fp).collect::<Vec<_>>(),
            )
        };
        let saves = Rule::amd64(Base::Sp, 16, Location::AtCfa(-16));
        assert_eq!(
            end(saves),
            (
                StopReason::Outermost,
                [LOST_FP, LOST_FP, 0x9000, 0xa000].to_vec()
            )
        );
        for rule in [
            Rule::amd64(Base::Sp, 16, Location::Unchanged),
            Rule::amd64(Base::Fp, 16, Location::AtCfa(-16)),
        ] {
            let (reason, found) = end(rule);
            assert_eq!(reason, StopReason::CfaMisaligned);
            assert!(found.iter().all(|fp| *fp == LOST_FP), "{found:x?}");
        }
    }

    #[test]
    fn a_register_may_be_kept_during_a_call() {
        // Register number 9 of the innermost frame has the value 0x9000. The caller's rule counts
        // from it.
        let end = |ra, rbx, is_signal: bool| {
            let inner = Rule::amd64(Base::Sp, 16, Location::Unchanged);
            let mut middle = inner;
            middle.signal = is_signal;
            let mut caller = Rule::amd64(Base::Register(9), 16, Location::Unchanged);
            caller.ra = ra;
            caller.extra.rbx = rbx;
            let rules = [
                (0x200, inner),
                (0x300, middle),
                (0x400, caller),
                (0x401, caller),
            ];
            let words = [
                (0x8008, 0x301),
                (0x8018, 0x401),
                (0x9008, 0x101),
                // A `struct ucontext` that has another value of the register.
                (0x8010 + 184, 0x33),
            ];
            let task = Mock {
                rules: rules
                    .into_iter()
                    .chain([(0x100, Rule::OUTERMOST)])
                    .collect(),
                words: words.into(),
                ..Mock::default()
            };
            let mut sink = RefCell::new(Vec::new());
            let mut innermost = Frame {
                pc: 0x200,
                sp: 0x8000,
                fp: 7,
            };
            (walk(&task, &mut innermost, &mut sink), innermost)
        };
        let kept = Location::At(Base::Register(9), 8);
        let last = Frame {
            pc: 0x101,
            sp: 0x9010,
            fp: 7,
        };
        assert_eq!(
            end(kept, SavedRbx::KEPT, false),
            (StopReason::Outermost, last)
        );
        // A usual rule does not tell that the callees keep the register; and the registers of a
        // frame that a signal interrupted are others.
        let usual = Location::AtCfa(-8);
        assert_eq!(
            end(usual, SavedRbx::KEPT, false).0,
            StopReason::RegisterUnknown
        );
        // Nor does one of another section.
        assert_eq!(
            end(kept, SavedRbx::UNKNOWN, false).0,
            StopReason::RegisterUnknown
        );
        assert_ne!(end(kept, SavedRbx::KEPT, true).1, last);
    }

    #[test]
    fn rbx_is_followed_to_a_caller() {
        let unchanged = |_: usize, _: &mut Rule| {};
        // rbx is still in its register.
        for callees in [
            &[(1, 1)][..],
            &[(1, 4), (1, 1), (1, 9)],
            // Functions that would save rbx in a slot below their stack pointers have not done so
            // yet.
            &[(2, 1)],
            &[(7, 6), (3, 2)],
        ] {
            let (reason, frames) = to_rbx(callees, unchanged);
            assert_eq!(reason, StopReason::Outermost, "{callees:?}");
            let last = frames.last().unwrap();
            assert_eq!((last.pc, last.sp), (0x101, 0x3020), "{callees:?}");
        }
        // Where a frame keeps rbx is not known, and no frame nearer to the caller has saved it.
        for callees in [
            &[(0, 1)][..],
            &[(1, 2), (0, 1), (1, 2)],
            &[(2, 2), (0, 3), (3, 2)],
        ] {
            let (reason, frames) = to_rbx(callees, unchanged);
            assert_eq!(reason, StopReason::RegisterUnknown, "{callees:?}");
            assert_eq!(frames.len(), callees.len(), "{callees:?}");
        }
        // The slot of the nearest frame that has saved rbx: a word that is its own address. The
        // word there that the caller's rule takes for the return address leads nowhere.
        for (callees, slot) in [
            (&[(2, 2)][..], 0x8000),
            (&[(1, 1), (2, 6)], 0x8008 + 32),
            (&[(2, 2), (2, 3), (1, 1)], 0x8010 + 8),
            (&[(0, 2), (3, 3)], 0x8010),
            (&[(7, 7), (3, 2)], 0x8000),
        ] {
            let (reason, frames) = to_rbx(callees, unchanged);
            assert_eq!(frames.len(), callees.len() + 1, "{callees:?}");
            assert_eq!(frames.last().unwrap().sp, slot + 0x20, "{callees:?}");
            assert_eq!(reason, StopReason::NoRows, "{callees:?}");
        }
    }

    #[test]
    fn rbx_is_followed_once_and_by_rising_steps() {
        let (reason, frames) = to_rbx(&std::vec![(1, 2); 100], |_, _| {});
        assert_eq!((reason, frames.len()), (StopReason::Outermost, 101));
        // The frame whose rule counts from rbx is its own caller. No frame is stored twice.
        let (reason, frames) = to_rbx_with(&[(1, 2)], |_, _| {}, &[(0x3018, 0x301)]);
        assert_eq!((reason, frames.len()), (StopReason::RegisterUnknown, 2));
        // A step to another stack.
        let changes = |number: usize, rule: &mut Rule| rule.extra.changes_stack = number == 1;
        let (reason, _) = to_rbx(&[(1, 2), (1, 2)], changes);
        assert_eq!(reason, StopReason::RegisterUnknown);
        // No step of the second walk stays where it is. Another thread has changed the innermost
        // frame's return address since the first walk: it now leads to a row with a return address
        // that is no word of memory, but 0x6000 in rbp. Each such step leads to itself.
        for (size, spent) in [(0, 0), (8, 250_000)] {
            let mut stays = Rule::amd64(Base::Sp, size, Location::Unchanged);
            stays.ra = Location::Of(Base::Fp, 0);
            stays.extra.rbx = SavedRbx::KEPT;
            let mut high = Rule::amd64(Base::Sp, 0x1000_0000, Location::Unchanged);
            high.ra = Location::Of(Base::Fp, 0x401 - 0x6000);
            let by_rbx = Rule::amd64(Base::Register(FOLLOWED), 0x20, Location::Unchanged);
            let task = Mock {
                rules: BTreeMap::from([
                    (0x200, Rule::amd64(Base::Sp, 16, Location::Unchanged)),
                    (0x300, high),
                    (0x400, by_rbx),
                    (0x5fff, stays),
                ]),
                words: MockWords {
                    changing: Cell::new(Some((0x8008, 0x6000))),
                    ..MockWords::from([(0x8008, 0x301)])
                },
                ..Mock::default()
            };
            let mut innermost = Frame {
                pc: 0x200,
                sp: 0x8000,
                fp: 0x6000,
            };
            let reason = walk(&task, &mut innermost, &mut RefCell::new(Vec::new()));
            assert_eq!(reason, StopReason::RegisterUnknown);
            assert!(task.words.spent.get() >= spent);
        }
        // Not through a frame that another register than rsp leads from, nor through a frame
        // without a row.
        let callees = [(1, 2), (1, 2)];
        let lost = |number: usize, rule: &mut Rule| {
            if number == 1 {
                rule.cfa.base = Base::Register(12);
            }
        };
        assert_eq!(to_rbx(&callees, lost).0, StopReason::RegisterUnknown);
    }

    #[test]
    fn rbx_is_not_followed_through_a_signal() {
        let signal = |number: usize, rule: &mut Rule| rule.signal = number == 1;
        // The value of rbx in the interrupted frame is not the present value of the register.
        let (reason, frames) = to_rbx(&[(1, 2), (1, 2), (1, 2)], signal);
        assert_eq!((reason, frames.len()), (StopReason::RegisterUnknown, 3));
        // With a `struct ucontext`, at the stack pointer of the signal trampoline.
        let more = [(0x8010 + 184, 0x33), (0x8010 + 128, 0x3000)];
        let (reason, frames) = to_rbx_with(&[(1, 2), (1, 2), (1, 2)], signal, &more);
        assert_eq!((reason, frames.len()), (StopReason::RegisterUnknown, 3));
    }
}
