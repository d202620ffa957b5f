// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compares, at one instruction, the stack as the kernel module walks it with the truth.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    process::Command, //
};

use sframe::{
    bytes::Source,
    rule::{
        Base,
        Location,
        Rule, //
    },
    runtimes::{
        hotspot,
        Region, //
    },
    stop_reason::StopReason,
    unwind::{
        Frame,
        Memory,
        LOST_FP, //
    },
    walk::FrameSource, //
};
use truth::{
    dwarf::{
        CfaLocation,
        CfiStep,
        UnwindError, //
        Unwinder,
    },
    files::{
        self,
        CfiTables, //
    },
    limits::{
        self,
        Class,
        FrameDifference,
        Limit, //
    }, //
};
use walk::{
    process::Process,
    registers::{
        RegisterFile,
        PC,
        RBP,
        RSP, //
    },
    snapshot::{
        self,
        Snapshot, //
    },
    walker::{
        self,
        WalkedFrame,
        Walker, //
    }, //
};

use crate::{
    calls::{
        Calls,
        Presumed,
        RecordedCaller, //
    },
    kernel::{
        KernelCounts,
        TrueCaller, //
    }, //
};

/// The size of the part of `StgRun`'s frame that Haskell code may use, in bytes.
const STG_RUN_FRAME: i32 = 16384;

/// The number of lines of disassembly that are shown before and after the instruction.
const LINES: usize = 8;

/// Differences of one kind: of one class, in one function, and from one limit or none.
pub(crate) struct DifferenceKind {
    /// The class of the differences.
    pub(crate) class: Class,
    /// The function of the frame whose caller is wrong.
    pub(crate) place: String,
    /// The number of steps with such a difference.
    pub(crate) steps: u64,
    /// The limit it comes from.
    pub(crate) limit: Option<&'static Limit>,
    /// The first difference, as text.
    pub(crate) example: String,
}

/// The identity of a kind: the class, the file's number, the function's start, and the limit.
type DifferenceKey = (Class, usize, u64, Option<&'static str>);

/// The results for one program.
#[derive(Default)]
pub(crate) struct StepCounts {
    /// Instructions.
    pub(crate) steps: u64,
    /// How often the program was started.
    pub(crate) starts: u64,
    /// The largest number of threads that were stepped in one run of the program.
    pub(crate) threads: u64,
    /// Stacks that are equal up to the outermost frame.
    pub(crate) complete: u64,
    /// Stacks whose innermost frame is in code with rows.
    pub(crate) covered: u64,
    /// Frames that are equal, without the innermost.
    pub(crate) frames: u64,
    /// Equal frames by the source of the frame.
    pub(crate) by: BTreeMap<&'static str, u64>,
    /// Frames that are equal to recorded calls, where .eh_frame has no entry.
    pub(crate) called: u64,
    /// Frames found by regions that are equal to recorded calls.
    pub(crate) in_regions: u64,
    /// Instructions with at least one such frame.
    pub(crate) steps_in_regions: u64,
    /// Frames that are equal to presumed calls, which are the frames of an earlier walk. Their
    /// callees are in anonymous code, with a region or without, or in Haskell code.
    pub(crate) presumed: u64,
    /// Frames found by regions that are not judged, and frames further out: their calls were not
    /// seen.
    pub(crate) not_judged: u64,
    /// Frames found by regions whose frame pointer is not judged: it is no address of the stack at
    /// the call, and another one now. Compiled code keeps objects in it, and the garbage collector
    /// moves objects.
    pub(crate) objects: u64,
    /// Equal frames whose frame pointer is lost by the walk and known by the truth. The program
    /// counter and the stack pointer of these frames are judged, and all of the frames further out.
    pub(crate) lost_fp: u64,
    /// Frames whose callee is in code with `.eh_frame` in memory, and that are equal by it.
    pub(crate) in_loaded: u64,
    /// Such frames that are equal to recorded calls, too.
    pub(crate) loaded_by_calls: u64,
    /// Instructions with at least one such frame.
    pub(crate) steps_in_loaded: u64,
    /// Places in anonymous code with rows at which walks ended, as text.
    pub(crate) region_ends: BTreeMap<String, u64>,
    /// Frames that a signal interrupted, and that are equal.
    pub(crate) signals: u64,
    /// How many walks ended for each stop reason.
    pub(crate) ends: BTreeMap<&'static str, u64>,
    /// Where walks ended that are not complete: the stop reason, the function of the last frame,
    /// and the functions of its callee and of the innermost frame, as text.
    pub(crate) early_ends: BTreeMap<String, u64>,
    /// Places at which the truth is unknown and the module's walk continues, by reason.
    pub(crate) gaps: BTreeMap<(&'static str, String), u64>,
    /// Functions without rows in files with rows.
    pub(crate) without_rows: BTreeMap<String, u64>,
    /// Steps with an explained difference.
    pub(crate) explained: u64,
    /// Steps with an unexplained difference.
    pub(crate) unexplained: u64,
    /// All kinds of differences.
    pub(crate) kinds: BTreeMap<DifferenceKey, DifferenceKind>,
    /// The comparison with the kernel's own walk.
    pub(crate) kernel: KernelCounts,
    /// The text of the last unexplained difference, if it was the first one of its kind.
    pub(crate) new_difference: Option<String>,
}

/// The position of a step, for reports.
pub(crate) struct StepContext<'a> {
    /// The program with its arguments.
    pub(crate) program: &'a str,
    /// The number of the step, from 1.
    pub(crate) step: u64,
    /// The thread's id.
    pub(crate) thread: i32,
    /// The mappings of the process, with the files of code that has `.eh_frame` in memory.
    pub(crate) truth: &'a Process,
}

/// Compares stacks, and caches what it has read of files.
#[derive(Default)]
pub(crate) struct StepJudge {
    unwinder: Unwinder,
    walker: Walker,
    calls: Calls,
    found: Vec<WalkedFrame>,
    reason: Option<StopReason>,
    /// The reason for which the last judged walk ended, as text.
    ended_by: &'static str,
    truth: Vec<RegisterFile>,
}

/// The first difference of two stacks.
struct Difference {
    class: Class,
    /// The number of the frame whose caller differs; the innermost is 0.
    callee: usize,
}

impl StepJudge {
    /// A judge for which files without rows are converted.
    pub(crate) fn with_converted() -> StepJudge {
        StepJudge {
            walker: Walker::with(files::made),
            ..StepJudge::default()
        }
    }

    /// Instructions were executed unseen since the last window.
    pub(crate) fn begin_window(&mut self) {
        self.calls.forget();
    }

    /// What became of the presumed calls of all programs.
    pub(crate) fn presumed(&self) -> Presumed {
        self.calls.presumed
    }

    /// Walks the stack of a stopped thread.
    pub(crate) fn walk<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
    ) {
        let reason = (self.walker).walk(process, registers, memory, &mut self.found);
        self.reason = Some(reason);
    }

    /// The frames of the last walk.
    pub(crate) fn found(&self) -> &[WalkedFrame] {
        &self.found
    }

    /// The reason for which the last judged walk ended, as text.
    pub(crate) fn ended_by(&self) -> &'static str {
        self.ended_by
    }

    /// Walks the stack of a stopped thread once more, and makes a snapshot of it: see
    /// [`snapshot::record`].
    pub(crate) fn record<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        program: &str,
        saved_by: &str,
    ) -> Result<Snapshot, String> {
        let walker = &mut self.walker;
        snapshot::record(walker, process, registers, memory, program, saved_by)
    }

    /// The run-time addresses of anonymous code at which the last walk has frames.
    pub(crate) fn made_code(&self, process: &Process) -> Vec<u64> {
        let all = self.found.iter().map(|it| it.at);
        all.filter(|at| process.made_code_at(*at).is_some())
            .collect()
    }

    /// Compares the last walk with the truth.
    pub(crate) fn step<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        context: &StepContext<'_>,
        count: &mut StepCounts,
    ) {
        count.steps += 1;
        self.calls.note(context.thread, registers, process, memory);
        let found = std::mem::take(&mut self.found);
        let Some(reason) = self.reason.take() else {
            return;
        };
        self.ended_by = reason.as_str();
        // Calls are presumed in code without unwind information: anonymous code, and Haskell code.
        let is_presumed = |it: &WalkedFrame| {
            process.layout_at(it.at).is_some()
                || context.truth.made_code_at(it.at).is_some()
                || is_haskell(it)
        };
        if found.iter().any(is_presumed) {
            let frames: Vec<Frame> = found.iter().map(|it| it.frame).collect();
            self.calls.presume(context.thread, &frames, process, memory);
        }
        let difference = self.compare(process, registers, memory, &found, reason, context, count);
        if let Some(difference) = difference {
            self.report(process, memory, &found, reason, &difference, context, count);
        }
        self.found = found;
    }

    #[expect(clippy::too_many_arguments)]
    fn compare<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        found: &[WalkedFrame],
        reason: StopReason,
        context: &StepContext<'_>,
        count: &mut StepCounts,
    ) -> Option<Difference> {
        *count.ends.entry(reason.as_str()).or_default() += 1;
        if reason != StopReason::Outermost {
            let place = place_of_end(context.truth, found, reason);
            *count.early_ends.entry(place).or_default() += 1;
        }
        if found.len() > 1 || reason == StopReason::Outermost {
            count.covered += 1;
        }
        self.truth.clear();
        self.truth.push(*registers);
        let mut exact = true;
        let mut at = *registers;
        let mut call = None;
        let mut judged_in_region = false;
        let mut judged_in_loaded = false;
        let truth = context.truth;
        let is_seen = |caller: &RecordedCaller| !caller.presumed && !caller.is_moved;

        for (callee, pair) in found.windows(2).enumerate() {
            let frame = &pair[1].frame;
            let differs = |class| Some(Difference { class, callee });
            let mut by_calls = false;
            let mut is_presumed = false;
            let in_region = process.layout_at(pair[0].at).is_some();
            let is_haskell = is_haskell(&pair[0]);
            let is_made = truth.made_code_at(pair[0].at).is_some();
            let in_loaded = is_loaded(process, truth, pair[0].at);
            let mut loaded_by_call = false;
            match self.true_step(truth, &at, memory, exact) {
                Ok(CfiStep::Caller { registers, signal }) => {
                    let called = in_loaded && !signal;
                    let called = called.then(|| {
                        (self.calls).caller(context.thread, &at, callee == 0, call, process, memory)
                    });
                    at = registers;
                    exact = signal;
                    if signal {
                        // The calls that are known began in the handler.
                        call = Some(0);
                    }
                    if let Some(caller) = called.flatten().filter(is_seen) {
                        // A call that was seen is true, whatever .eh_frame says.
                        for register in [PC, RSP, RBP] {
                            if let Some(value) = caller.registers.get(register) {
                                at.set(register, value);
                            }
                        }
                        call = Some(caller.which);
                        loaded_by_call = true;
                    }
                }
                Ok(CfiStep::Outermost) => return differs(Class::Longer),
                Err(why) => {
                    let innermost = callee == 0;
                    let called =
                        (self.calls).caller(context.thread, &at, innermost, call, process, memory);
                    // Outside of regions, a return address that code has moved is not judged.
                    let called = called.filter(|caller| in_region || !caller.is_moved);
                    let Some(caller) = called.filter(|_| why.has_no_unwind_info()) else {
                        let place = match in_region {
                            true => "code of a region".to_owned(),
                            false => truth.describe(pair[0].at),
                        };
                        *count.gaps.entry((why.name(), place)).or_default() += 1;
                        if in_region {
                            count.not_judged += (found.len() - 1 - callee) as u64;
                        }
                        // What is beyond cannot be judged, unless it is nothing that was called.
                        let called = walker::is_behind_call(process, frame.pc, memory)
                            || process.is_interpreter(frame.pc)
                            || is_return_place(process, frame.pc, memory)
                            || is_end_of_process(process, frame.pc);
                        return differs(Class::Longer).filter(|_| !called);
                    };
                    at = caller.registers;
                    call = Some(caller.which);
                    is_presumed = caller.presumed;
                    // Arguments may have been taken off the stack, before or after it.
                    let is_exact = in_region || is_haskell;
                    // The stack pointer of an interpreted frame is what its callee's frame says.
                    // The callee may have removed arguments, and HotSpot changes the word while it
                    // fills new frames. No step depends on it.
                    let is_of_interpreter = process.is_interpreter(frame.pc)
                        && (caller.sps[0].wrapping_sub(8)..=frame.fp).contains(&frame.sp);
                    if frame.pc == at.pc()
                        && (!is_exact || is_of_interpreter || caller.sps.contains(&frame.sp))
                    {
                        at.set(RSP, frame.sp);
                    }
                    let is_object = |fp: u64| match process.at(frame.sp) {
                        Some(stack) => !(stack.start..stack.end).contains(&fp),
                        None => true,
                    };
                    if in_region
                        && at.get(RBP).is_some_and(|fp| {
                            fp != frame.fp && is_object(fp) && is_object(frame.fp)
                        })
                    {
                        count.objects += 1;
                        at.set(RBP, frame.fp);
                    }
                    exact = false;
                    by_calls = true;
                }
            }
            self.truth.push(at);
            if frame.pc != at.pc() {
                let skips = self.is_further_out(truth, at, memory, exact, frame);
                return differs(if skips { Class::Skip } else { Class::Pc });
            }
            if frame.sp != at.sp() {
                return differs(Class::Sp);
            }
            match judged_fp(at.get(RBP), frame.fp) {
                JudgedFp::Differs => return differs(Class::Fp),
                JudgedFp::Lost => count.lost_fp += 1,
                JudgedFp::Equal | JudgedFp::Unknown => {}
            }
            count.frames += 1;
            count.called += u64::from(by_calls);
            if let (true, true, Some(which)) =
                (is_presumed, in_region || is_made || is_haskell, call)
            {
                self.calls.count(context.thread, which);
                count.presumed += 1;
            } else if by_calls && in_region {
                count.steps_in_regions += u64::from(!judged_in_region);
                judged_in_region = true;
                count.in_regions += 1;
            }
            if in_loaded {
                count.steps_in_loaded += u64::from(!judged_in_loaded);
                judged_in_loaded = true;
                count.in_loaded += 1;
                count.loaded_by_calls += u64::from(loaded_by_call);
            }
            count.signals += u64::from(exact);
            *count.by.entry(pair[1].source.as_str()).or_default() += 1;
        }

        let last = found.last()?;
        let callee = found.len() - 1;
        if reason == StopReason::Full {
            return None;
        }
        if reason == StopReason::RegionUnknown {
            let place = place_in_region(process, memory, last, callee == 0);
            *count.region_ends.entry(place).or_default() += 1;
            return None;
        }
        if reason == StopReason::NoRows {
            let mapping = process.at(last.at)?;
            if self.walker.has_rows(last.at, mapping) {
                let (file, link) = mapping.link_address(last.at)?;
                let function = match file.function_at(link) {
                    Some((function, _)) => function.to_owned(),
                    None => format!("{} {link:#x}", file.section_at(link)),
                };
                let function = format!("{}:{function}", file.path.display());
                *count.without_rows.entry(function).or_default() += 1;
            } else {
                let place = place_in_region(process, memory, last, callee == 0);
                *count.region_ends.entry(place).or_default() += 1;
            }
            return None;
        }
        let class = if reason == StopReason::Outermost {
            Class::FalseEnd
        } else {
            Class::Stop
        };
        if is_end_of_process(process, at.pc()) {
            count.complete += u64::from(class == Class::FalseEnd);
            return None;
        }
        // A call that was seen has a caller, whatever .eh_frame says.
        let called = is_loaded(process, truth, last.at)
            .then(|| (self.calls).caller(context.thread, &at, callee == 0, call, process, memory))
            .flatten()
            .filter(is_seen);
        match self.true_step(truth, &at, memory, exact) {
            Ok(CfiStep::Caller { registers, .. }) => {
                self.truth.push(registers);
                Some(Difference { class, callee })
            }
            _ if called.is_some() => {
                self.truth.extend(called.map(|caller| caller.registers));
                Some(Difference { class, callee })
            }
            Ok(CfiStep::Outermost) => {
                count.complete += u64::from(class == Class::FalseEnd);
                None
            }
            Err(why) => {
                let gap = (why.name(), truth.describe(last.at));
                *count.gaps.entry(gap).or_default() += 1;
                None
            }
        }
    }

    /// Compares the last judged walk with the kernel's own walk.
    pub(crate) fn beside_kernel<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        context: &StepContext<'_>,
        count: &mut StepCounts,
    ) {
        let truth = self.true_callers(process, registers, memory, context);
        let (found, ended_by) = (&self.found, self.ended_by);
        let place = |right: usize| {
            let at = found.get(right).map_or(0, |it| it.at);
            let end = match right + 1 < found.len() {
                true => "another caller",
                false => ended_by,
            };
            format!("{end}: {}", context.truth.describe(at))
        };
        (count.kernel).step(registers, memory, found, &truth, place);
    }

    /// The callers of a thread, from the innermost frame on, as far as they are known: by the calls
    /// that were seen, and by `.eh_frame` where there are none.
    fn true_callers<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        context: &StepContext<'_>,
    ) -> Vec<TrueCaller> {
        let mut callers = Vec::new();
        let (mut at, mut exact, mut call) = (*registers, true, None);
        while callers.len() + 1 < walker::MOST_FRAMES {
            let innermost = callers.is_empty();
            let seen = (self.calls).caller(context.thread, &at, innermost, call, process, memory);
            if let Some(caller) = seen.filter(|caller| !caller.presumed) {
                at = caller.registers;
                call = Some(caller.which);
                exact = false;
                callers.push(TrueCaller {
                    pc: at.pc(),
                    sps: caller.sps,
                });
                continue;
            }
            let step = self.true_step(context.truth, &at, memory, exact);
            let Ok(CfiStep::Caller { registers, signal }) = step else {
                break;
            };
            at = registers;
            exact = signal;
            callers.push(TrueCaller {
                pc: at.pc(),
                sps: [at.sp(); 2],
            });
        }
        callers
    }

    /// One step by the truth. A step to an address that is not code, or down the stack from a
    /// caller, is an error.
    fn true_step<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        exact: bool,
    ) -> Result<CfiStep, UnwindError> {
        let outcome = self.unwinder.step(process, registers, memory, exact)?;
        let CfiStep::Caller {
            registers: caller,
            signal: false,
        } = outcome
        else {
            return Ok(outcome);
        };
        // A row that takes the CFA from another register than the stack pointer and the frame
        // pointer may lead to another stack, as where OCaml calls C.
        if !exact && caller.sp() <= registers.sp() {
            let row = self
                .unwinder
                .row_at(process, registers.pc().wrapping_sub(1))?;
            match row.cfa {
                CfaLocation::Register(RSP | RBP, _) => return Err(UnwindError::NotRising),
                _ if walker::is_behind_call(process, caller.pc(), memory) => {}
                _ => return Err(UnwindError::NotRising),
            }
        }
        match process.at(caller.pc()) {
            Some(mapping) if mapping.executable => Ok(outcome),
            _ => Err(UnwindError::NotCode),
        }
    }

    /// Whether a frame is one of the callers of the one with these registers.
    fn is_further_out<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        mut registers: RegisterFile,
        memory: &M,
        mut exact: bool,
        frame: &Frame,
    ) -> bool {
        for _ in 0..walker::MOST_FRAMES {
            let step = self.true_step(process, &registers, memory, exact);
            let Ok(CfiStep::Caller {
                registers: caller,
                signal,
            }) = step
            else {
                break;
            };
            if (caller.pc(), caller.sp()) == (frame.pc, frame.sp) {
                return true;
            }
            registers = caller;
            exact = signal;
        }
        false
    }

    #[expect(clippy::too_many_arguments)]
    fn report<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        memory: &M,
        found: &[WalkedFrame],
        reason: StopReason,
        difference: &Difference,
        context: &StepContext<'_>,
        count: &mut StepCounts,
    ) {
        let &Difference { class, callee } = difference;
        let by = found.get(callee + 1).map(|it| it.source);
        let at = found[callee].at;
        let place = (context.truth)
            .at(at)
            .and_then(|mapping| Some((mapping, mapping.link_address(at)?)));
        let limit = place.and_then(|(_, (file, address))| {
            let truth = self.unwinder.row(file, address);
            let rule = found[callee].rule;
            limits::explain(&FrameDifference {
                class,
                by: by.unwrap_or(FrameSource::Rows),
                file,
                address,
                rule: rule.map(|(rule, _)| rule),
                truth: truth.as_deref().map_err(|why| *why),
                is_loaded: is_loaded(process, context.truth, at),
                end: Some(reason),
            })
        });
        let name = limit.map(|limit| limit.name);
        let key = match place {
            Some((_, (file, link))) => (class, file.number, file.function_start(link), name),
            None => (class, usize::MAX, at, name),
        };
        let kind = count.kinds.entry(key).or_insert_with(|| DifferenceKind {
            class,
            place: context.truth.describe(at),
            steps: 0,
            limit,
            example: self.example(process, memory, found, reason, difference, context),
        });
        kind.steps += 1;
        if kind.limit.is_some() {
            count.explained += 1;
        } else {
            count.unexplained += 1;
            count.new_difference = (kind.steps == 1).then(|| kind.example.clone());
        }
    }

    /// The details of a difference, as text.
    fn example<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        memory: &M,
        found: &[WalkedFrame],
        reason: StopReason,
        difference: &Difference,
        context: &StepContext<'_>,
    ) -> String {
        let &Difference { class, callee } = difference;
        let at = found[callee].at;
        let mut text = String::new();
        let mut line = |words: String| {
            text.push_str(&words);
            text.push('\n');
        };
        line(format!(
            "{} differs: the caller of frame {callee}, at {}",
            class.name(),
            context.truth.describe(at)
        ));
        line(format!(
            "  {}: step {} of thread {}; the walk ended by {reason}",
            context.program, context.step, context.thread
        ));
        match found[callee].rule {
            Some(rule) => line(format!("  the core:  {rule:?}")),
            None => line(format!("  the core:  no row ({reason})")),
        }
        match self.unwinder.row_at(context.truth, at) {
            Ok(row) => line(format!("  .eh_frame: {row}")),
            Err(why) => line(format!("  .eh_frame: {why}")),
        }
        let shown = found.len().max(self.truth.len()).min(callee + 4);
        for index in 0..shown {
            if let Some(it) = found.get(index) {
                let frame = &it.frame;
                line(format!(
                    "  {index:3} module pc {:#x} sp {:#x} fp {:#x} by {}: {}",
                    frame.pc,
                    frame.sp,
                    frame.fp,
                    it.source.as_str(),
                    context.truth.describe(it.at)
                ));
            }
            if let Some(it) = self.truth.get(index) {
                let fp = it
                    .get(RBP)
                    .map_or("unknown".to_owned(), |fp| format!("{fp:#x}"));
                line(format!(
                    "      truth  pc {:#x} sp {:#x} fp {fp}: {}",
                    it.pc(),
                    it.sp(),
                    context.truth.describe(it.pc())
                ));
            }
        }
        if process.layout_at(at).is_some() {
            let place = place_in_region(process, memory, &found[callee], callee == 0);
            text.push_str(&format!("  in a region: {place}\n"));
            text.push_str(&self.calls.describe(context.thread));
        }
        let instructions = disassembly(context.truth, at)
            .or_else(|| instructions_from(at, &walker::All::new(process, memory)));
        text.push_str(&instructions.unwrap_or_default());
        text
    }
}

/// Whether a run-time address is in anonymous code that has `.eh_frame` in memory: for the truth it
/// has a file.
fn is_loaded(process: &Process, truth: &Process, at: u64) -> bool {
    let has_file =
        |process: &Process| (process.at(at)).is_some_and(|mapping| mapping.file.is_some());
    has_file(truth) && !has_file(process)
}

/// Whether processes of Erlang end at a run-time address.
fn is_end_of_process(process: &Process, pc: u64) -> bool {
    matches!(process.layout_at(pc), Some(Region::TaggedStack(erlang)) if erlang.is_exit(pc))
}

/// Whether a frame is one of Haskell code: code of GHC's has no unwind information, and its frame
/// contains that of `StgRun`, of 16 KiB.
fn is_haskell(frame: &WalkedFrame) -> bool {
    let is_large = |rule: &Rule| {
        rule.cfa.base == Base::Sp && !rule.cfa.deref && rule.cfa.offset > STG_RUN_FRAME
    };
    (frame.rule).is_some_and(|(rule, _)| is_large(&rule) && matches!(rule.fp, Location::AtCfa(_)))
}

/// The frame pointer of a walk, compared with the truth.
#[derive(Debug, PartialEq, Eq)]
enum JudgedFp {
    Equal,
    Differs,
    /// The walk knows that it does not know the frame pointer, and the truth is known.
    Lost,
    /// The truth is unknown.
    Unknown,
}

/// Compares the frame pointer `walked` with the true value.
fn judged_fp(truth: Option<u64>, walked: u64) -> JudgedFp {
    match truth {
        None => JudgedFp::Unknown,
        Some(truth) if truth == walked => JudgedFp::Equal,
        Some(_) if walked == LOST_FP => JudgedFp::Lost,
        Some(_) => JudgedFp::Differs,
    }
}

/// Whether a run-time address is one that HotSpot uses as a return address: of a poll, if the poll
/// faults, of the return barrier, or of a handler of deoptimisation.
fn is_return_place<M: Memory + ?Sized>(process: &Process, pc: u64, memory: &M) -> bool {
    let all = walker::All::new(process, memory);
    process.layout_at(pc).is_some()
        && [
            hotspot::is_poll,
            hotspot::is_barrier,
            hotspot::is_deopt_handler,
        ]
        .iter()
        .any(|is_place| is_place(pc, &all))
}

/// The names of the values of HotSpot's `CodeBlob::_kind`, from OpenJDK 25 on.
const KINDS: [&str; 12] = [
    "none",
    "nmethod",
    "buffer",
    "adapter",
    "vtable",
    "method handle adapter",
    "runtime stub",
    "deoptimization",
    "safepoint",
    "exception",
    "uncommon trap",
    "upcall",
];

/// Where a walk ended: the stop reason, and the functions of the last frame, of its callee, and of
/// the innermost frame.
fn place_of_end(process: &Process, found: &[WalkedFrame], reason: StopReason) -> String {
    let function = |frame: Option<&WalkedFrame>| {
        let place = frame.map_or_else(String::new, |frame| process.describe(frame.at));
        place.split('+').next().unwrap_or_default().to_owned()
    };
    let mut text = format!("{} in {}", reason.as_str(), function(found.last()));
    if let [.., callee, _] = found {
        let _ = write!(text, ", called {}", function(Some(callee)));
    }
    if found.len() > 2 {
        let _ = write!(text, ", innermost {}", function(found.first()));
    }
    text
}

/// The place of a frame as text.
pub(crate) fn place<M: Memory + ?Sized>(
    process: &Process,
    memory: &M,
    found: &[WalkedFrame],
    index: usize,
) -> String {
    let frame = &found[index];
    let place = match process.made_code_at(frame.at) {
        Some(_) => place_in_region(process, memory, frame, index == 0),
        None => process.describe(frame.at),
    };
    match index {
        0 => format!("innermost {place}"),
        _ => place,
    }
}

/// A place in a region as text: the kind or the name of the code, and the bytes at the PC.
fn place_in_region<M: Memory + ?Sized>(
    process: &Process,
    memory: &M,
    found: &WalkedFrame,
    is_innermost: bool,
) -> String {
    let pc = found.frame.pc;
    let mut text = match is_innermost {
        true => String::new(),
        false => "caller in ".to_owned(),
    };
    let all = walker::All::new(process, memory);
    let region = process.layout_at(found.at);
    match region {
        Some(Region::CodeHeap(heap)) if process.is_interpreter(found.at) => {
            let _ = write!(text, "interpreter+{:#x}", pc - heap.interpreter_start);
        }
        Some(Region::CodeHeap(heap)) => match heap.blob_at(found.at, &all) {
            Some(blob) => {
                let word = |offset: u8| all.read_word(blob + u64::from(offset)).unwrap_or(0);
                let kind = match heap.kind_mask {
                    // An address.
                    u32::MAX => word(heap.kind_offset),
                    mask => word(heap.kind_offset) & u64::from(mask),
                };
                let name = match KINDS.get(kind as usize) {
                    Some(name) => (*name).to_owned(),
                    None => string_at(&all, kind),
                };
                let size = word(heap.frame_size_offset) as i32;
                let _ = write!(text, "{name}, frame size {size}");
                if !name.contains("nmethod") {
                    let _ = write!(text, ", blob+{:#x}", pc - blob);
                }
            }
            None => text.push_str("no blob"),
        },
        Some(_) => text.push_str("a region"),
        None => {
            let _ = write!(text, "no region, at {}", process.describe(pc));
        }
    }
    // Many stubs keep a frame pointer.
    let caller = all.read_word(found.frame.fp.wrapping_add(8)).unwrap_or(0);
    if is_innermost {
        let bytes: [u8; 13] = all.read(caller.wrapping_sub(13)).unwrap_or_default();
        let _ = write!(text, ", fp leads behind {bytes:02x?}");
    } else {
        let bytes: [u8; 8] = all.read(caller).unwrap_or_default();
        let _ = write!(text, ", fp leads to {bytes:02x?}");
    }
    let bytes: [u8; 24] = all.read(pc.wrapping_sub(8)).unwrap_or_default();
    text.push_str(", bytes ");
    for (index, byte) in bytes.iter().enumerate() {
        let _ = write!(text, "{}{byte:02x}", if index == 8 { "| " } else { "" });
    }
    text
}

/// A string in memory.
fn string_at<M: Memory + ?Sized>(memory: &M, address: u64) -> String {
    let words = (0..8).map_while(|index| memory.read_word(address.wrapping_add(8 * index)).ok());
    let bytes = words.flat_map(u64::to_le_bytes);
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The instructions of no file from a run-time address on, from objdump.
fn instructions_from<S: Source + ?Sized>(at: u64, memory: &S) -> Option<String> {
    let code: [u8; 64] = memory.read(at).ok()?;
    let path = std::env::temp_dir().join(format!("steps-{}", std::process::id()));
    std::fs::write(&path, code).ok()?;
    let output = Command::new("objdump")
        .args(["-D", "-b", "binary", "-m", "i386:x86-64"])
        .arg(format!("--adjust-vma={at:#x}"))
        .arg(&path)
        .output();
    let _ = std::fs::remove_file(&path);
    let output = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
    let mut text = String::new();
    for line in output
        .lines()
        .filter(|line| line.contains(":\t"))
        .take(2 * LINES)
    {
        let _ = writeln!(text, "     {}", line.trim());
    }
    Some(text)
}

/// The instructions around a run-time address, from objdump.
fn disassembly(process: &Process, at: u64) -> Option<String> {
    let (file, link) = process.at(at)?.link_address(at)?;
    let start = file.function_start(link);
    let output = Command::new("objdump")
        .arg("-d")
        .arg(format!("--start-address={start:#x}"))
        .arg(format!("--stop-address={:#x}", link + 64))
        .arg(&file.path)
        .output()
        .ok()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<(u64, &str)> = output
        .lines()
        .filter_map(|line| {
            let (address, rest) = line.trim_start().split_once(':')?;
            rest.starts_with('\t').then_some(())?;
            Some((u64::from_str_radix(address, 16).ok()?, line))
        })
        .collect();
    // The instruction that contains the byte.
    let here = lines.partition_point(|(address, _)| *address <= link);
    let here = here.checked_sub(1)?;
    let mut text = String::new();
    let last = (here + LINES).min(lines.len());
    for (index, (_, line)) in lines[..last]
        .iter()
        .enumerate()
        .skip(here.saturating_sub(LINES))
    {
        let mark = if index == here { "=>" } else { "  " };
        let _ = writeln!(text, "  {mark} {}", line.trim());
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_frame_pointer_may_differ() {
        assert_eq!(judged_fp(Some(8), 8), JudgedFp::Equal);
        assert_eq!(judged_fp(Some(8), LOST_FP), JudgedFp::Lost);
        for other in [0, 1, 9, 16, LOST_FP - 1, LOST_FP + 8, u64::MAX] {
            assert_eq!(judged_fp(Some(8), other), JudgedFp::Differs);
        }
        assert_eq!(judged_fp(None, 8), JudgedFp::Unknown);
    }
}
