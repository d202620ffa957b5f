// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compares chains of addresses with true stacks.

use std::path::Path;

use sframe::{
    stop_reason::StopReason,
    unwind::{
        self,
        Memory,
        Step, //
    },
    walk::FrameSource, //
};
use truth::{
    dwarf::{
        UnwindError, //
        Unwinder,
    },
    limits::{
        self,
        Class,
        FrameDifference,
        Limit, //
    }, //
};
use walk::{
    process::{
        Files,
        MappedFile,
        Process, //
        ProcessMapping,
    },
    registers::{
        RegisterFile,
        RBP, //
    },
    walker::{
        self,
        WalkedFrame,
        Walker, //
    }, //
};

use crate::{
    function_code,
    recording::{
        Event,
        RecordedSample, //
        Recording,
        SampleContext,
    },
    stack::{
        self,
        End,
        StackCopy,
        TruthFrame,
        TruthStack, //
    }, //
};

/// The size of the stack copy that perf makes by default (`--call-graph dwarf`), in bytes.
pub(crate) const PERF_DWARF: usize = 8192;

/// The result of the comparison of a chain with the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ChainVerdict {
    /// All frames are present and true, as far as the truth is known.
    Identical,
    /// All frames are true, and all that .sframe covers are present.
    Covered,
    /// All frames are true, and the chain has the maximum length.
    Full,
    /// All frames are true, but frames that .sframe covers are missing at the end.
    Shorter,
    /// Frames are missing between true ones: the index of the first wrong frame.
    Skips(usize),
    /// The frame with this index is not true.
    Different(usize),
    /// The true stack is complete without this frame.
    Longer(usize),
    /// The truth ends at a known limit, or in code without an entry, and the frames beyond have
    /// possible return addresses.
    BeyondGap,
    /// The truth ends at the end of the copied stack, and the chain has more frames.
    BeyondCopy,
}

impl ChainVerdict {
    /// Whether a frame is false.
    pub(crate) const fn is_false(self) -> bool {
        matches!(
            self,
            ChainVerdict::Skips(_) | ChainVerdict::Different(_) | ChainVerdict::Longer(_)
        )
    }

    /// Whether all frames are true and present, as far as .sframe covers and the maximum length
    /// allows.
    pub(crate) const fn is_identical(self) -> bool {
        matches!(
            self,
            ChainVerdict::Identical
                | ChainVerdict::Covered
                | ChainVerdict::Full
                | ChainVerdict::BeyondGap
                | ChainVerdict::BeyondCopy
        )
    }

    /// The index of the first wrong frame of a chain of `len` frames.
    pub(crate) const fn wrong(self, len: usize) -> Option<usize> {
        match self {
            ChainVerdict::Skips(at) | ChainVerdict::Different(at) | ChainVerdict::Longer(at) => {
                Some(at)
            }
            ChainVerdict::Shorter => Some(len),
            _ => None,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            ChainVerdict::Identical => "identical",
            ChainVerdict::Covered => "covered",
            ChainVerdict::Full => "full",
            ChainVerdict::Shorter => "shorter",
            ChainVerdict::Skips(_) => "skips",
            ChainVerdict::Different(_) => "different",
            ChainVerdict::Longer(_) => "longer",
            ChainVerdict::BeyondGap => "beyond-gap",
            ChainVerdict::BeyondCopy => "beyond-copy",
        }
    }
}

/// The true stack that a chain is compared with.
pub(crate) struct Truth<'a> {
    /// The true frames, as far as they are known.
    pub(crate) stack: &'a TruthStack,
    /// The number of frames that must be present.
    pub(crate) covered: usize,
    /// Whether the truth ends at a known limit.
    pub(crate) at_gap: bool,
}

/// Compares a chain with the truth. `capacity` is the maximum number of frames; `is_behind_call`
/// returns whether an address is a possible return address.
pub(crate) fn compare(
    chain: &[u64],
    truth: &Truth<'_>,
    capacity: usize,
    is_behind_call: impl Fn(u64) -> bool,
) -> ChainVerdict {
    let frames = &truth.stack.frames;
    let same = chain
        .iter()
        .zip(frames)
        .take_while(|(found, frame)| **found == frame.pc)
        .count();
    if same < chain.len() && same < frames.len() {
        // Frames may be missing before true ones.
        let mut rest = frames[same..].iter();
        let mut beyond = chain[same..].iter();
        let in_order = beyond.all(|found| rest.any(|frame| frame.pc == *found));
        return if in_order {
            ChainVerdict::Skips(same)
        } else {
            ChainVerdict::Different(same)
        };
    }
    if same < chain.len() {
        return match truth.stack.end {
            End::Copy | End::NotCopied => ChainVerdict::BeyondCopy,
            _ if truth.at_gap && chain[same..].iter().all(|found| is_behind_call(*found)) => {
                ChainVerdict::BeyondGap
            }
            _ => ChainVerdict::Longer(same),
        };
    }
    if same == frames.len() {
        ChainVerdict::Identical
    } else if same >= truth.covered {
        ChainVerdict::Covered
    } else if same >= capacity {
        ChainVerdict::Full
    } else {
        ChainVerdict::Shorter
    }
}

/// Whether an address is a possible return address. JIT code is not recorded: any executable
/// address in it is accepted.
fn may_be_behind_call(process: &Process, address: u64, copy: &StackCopy<'_>) -> bool {
    let before = address.wrapping_sub(1);
    walker::is_behind_call(process, address, copy)
        || stack::is_beginning(process, before)
        || process
            .at(before)
            .is_some_and(|mapping| mapping.executable && mapping.name.is_empty())
}

/// The caller with this PC of a frame in unknown code.
fn without_code(registers: &RegisterFile, pc: u64, copy: &StackCopy<'_>) -> Option<unwind::Frame> {
    let (sp, fp) = (registers.sp(), registers.get(RBP)?);
    let word = |address: u64| copy.read_word(address).ok();
    if word(fp.checked_add(8)?) == Some(pc) {
        return Some(unwind::Frame {
            pc,
            sp: fp.checked_add(16)?,
            fp: word(fp)?,
        });
    }
    // Before the frame pointer is set up, or after it is restored.
    if word(sp)? != pc {
        return None;
    }
    let sp = sp.checked_add(8)?;
    Some(unwind::Frame { pc, sp, fp })
}

/// A chain by frame pointers. `first` is the innermost caller, if it is not found by the frame
/// pointer.
pub(crate) fn by_frame_pointers(
    process: &Process,
    registers: &RegisterFile,
    first: Option<unwind::Frame>,
    copy: &StackCopy<'_>,
) -> Vec<u64> {
    let mut frame = unwind::Frame {
        pc: registers.pc(),
        sp: registers.sp(),
        fp: registers.get(RBP).unwrap_or(0),
    };
    let mut chain = vec![frame.pc];
    let is_code = |pc| process.at(pc).is_some_and(|mapping| mapping.executable);
    if let Some(caller) = first {
        if !is_code(caller.pc) {
            return chain;
        }
        frame = caller;
        chain.push(frame.pc);
    }
    while let Ok(Step::Caller(caller)) = unwind::step_by_frame_pointer(&frame, copy) {
        if !is_code(caller.pc) {
            break;
        }
        frame = caller;
        chain.push(frame.pc);
    }
    chain
}

/// A chain and its verdict.
pub(crate) struct JudgedChain {
    pub(crate) chain: Vec<u64>,
    pub(crate) verdict: ChainVerdict,
}

/// The results for a sample whose truth is known for at least one step.
pub(crate) struct Judged<'a> {
    pub(crate) process: &'a Process,
    pub(crate) truth: TruthStack,
    /// The number of true frames that .sframe covers.
    pub(crate) covered: usize,
    /// The number of frames up to main or a thread's function, if known.
    pub(crate) to_main: Option<usize>,
    /// The chain that the kernel reported.
    pub(crate) reported: JudgedChain,
    /// The chain of the module's walk, offline: from the files, without page faults.
    pub(crate) offline: JudgedChain,
    /// The chain by frame pointers, offline.
    pub(crate) fp: JudgedChain,
    /// The chain by frame pointers, prologues and epilogues, offline.
    pub(crate) prologues: JudgedChain,
    /// The rows of .sframe and .eh_frame for a wrong step of the module, in the kernel's chain or
    /// else in the offline one.
    pub(crate) rows: Option<String>,
    /// The number of frames that perf's dwarf mode would find in the first 8 KiB of the stack.
    pub(crate) dwarf_len: usize,
    pub(crate) dwarf_end: End,
}

impl Judged<'_> {
    /// Whether a chain is complete: equal to the truth, or, if that ends early, up to a frame
    /// without a caller.
    pub(crate) fn is_whole(&self, walked: &JudgedChain) -> bool {
        let is_beginning = |last: &u64| stack::is_beginning(self.process, last.wrapping_sub(1));
        match walked.verdict {
            ChainVerdict::Identical if self.truth.end == End::Outermost => true,
            ChainVerdict::Identical | ChainVerdict::BeyondCopy | ChainVerdict::BeyondGap => {
                walked.chain.last().is_some_and(is_beginning)
            }
            _ => false,
        }
    }

    /// Whether the first `len` true frames reach main or a thread's function.
    pub(crate) fn reaches_main(&self, len: usize) -> bool {
        self.to_main.is_some_and(|to_main| len >= to_main)
    }
}

/// The finding for a sample.
pub(crate) enum Finding<'a> {
    /// There are no user registers, or not of 64-bit code.
    NoRegisters,
    /// The deferred stack is missing.
    NoChain,
    /// The deferred stack belongs to other registers: the system call has changed them (execve,
    /// rt_sigreturn), or a signal handler was entered.
    OtherRegisters,
    /// The innermost frame's caller is unknown, and none was reported, or the needed memory was not
    /// copied.
    NoTruth(End, &'a Process, TruthFrame),
    /// There is a difference from a known limit.
    Limit(&'static Limit),
    /// It was judged.
    Judged(Box<Judged<'a>>),
}

/// The state that is shared by recordings: files and their tables.
pub(crate) struct SampleJudge {
    files: Files,
    unwinder: Unwinder,
    pub(crate) walker: Walker,
    found: Vec<WalkedFrame>,
}

impl SampleJudge {
    /// A judge in which files have the rows that `walker` has.
    pub(crate) fn new(walker: Walker) -> SampleJudge {
        SampleJudge {
            files: Files::new(),
            unwinder: Unwinder::new(),
            walker,
            found: Vec::new(),
        }
    }

    /// Judges all samples of a recording, in the order of time. Files are read below `root`, or
    /// where `translations` (from, to) say.
    pub(crate) fn judge(
        &mut self,
        recording: &Recording<'_>,
        root: &Path,
        translations: &[(String, String)],
        mut each: impl FnMut(&RecordedSample<'_>, Finding<'_>),
    ) {
        let vdso = self.files.add(Path::new("[vdso]"), recording.vdso.to_vec());
        let mut processes = std::collections::HashMap::<u32, Process>::new();
        for event in &recording.events {
            match event {
                Event::Map {
                    pid,
                    start,
                    end,
                    offset,
                    executable,
                    name,
                } => {
                    let file: Option<&'static MappedFile> = if name == "[vdso]" {
                        vdso.as_ref().ok().copied()
                    } else if name.starts_with('/') {
                        let path = stack::translated(name, translations, root);
                        let path = Path::new(&path);
                        let is_file = path.metadata().is_ok_and(|data| data.is_file());
                        is_file.then(|| self.files.open(path)).flatten()
                    } else {
                        None
                    };
                    processes.entry(*pid).or_default().map(ProcessMapping {
                        start: *start,
                        end: *end,
                        offset: *offset,
                        executable: *executable,
                        writable: false,
                        is_file: file.is_some() && name.starts_with('/'),
                        name: name.clone(),
                        file,
                    });
                }
                Event::Fork { pid, parent } => {
                    let copy = processes.get(parent).cloned().unwrap_or_default();
                    processes.insert(*pid, copy);
                }
                Event::Exec { pid } => {
                    processes.insert(*pid, Process::new());
                }
                Event::Sample(sample) => {
                    let process = processes.entry(sample.pid).or_default();
                    let finding = self.sample(recording, process, sample);
                    each(sample, finding);
                }
            }
        }
    }

    fn sample<'a>(
        &mut self,
        recording: &Recording<'_>,
        process: &'a Process,
        sample: &'a RecordedSample<'_>,
    ) -> Finding<'a> {
        let Some(registers) = &sample.registers else {
            return Finding::NoRegisters;
        };
        let Some(chain) = &sample.chain.frames else {
            return Finding::NoChain;
        };
        let is_other = chain.first().is_some_and(|pc| *pc != registers.pc());
        if is_other && sample.chain.context == SampleContext::Deferred {
            return Finding::OtherRegisters;
        }
        let copy = stack::memory(process, registers, sample.stack);
        let truth = stack::truth(&mut self.unwinder, process, registers, &copy);
        let may_be_false = match truth.end {
            End::Outermost => true,
            End::Unknown(_) => recording.module && chain.len() > 1,
            End::Copy | End::NotCopied => false,
        };
        if truth.frames.len() == 1 && !may_be_false {
            return Finding::NoTruth(truth.end, process, truth.frames[0]);
        }
        let covered = stack::covered(&mut self.walker, process, &truth.frames);
        let behind_call = |address| may_be_behind_call(process, address, &copy);
        let reason = self.walker.walk(process, registers, &copy, &mut self.found);
        let reason = match &sample.chain.walk {
            Some(walk) => &walk.reason,
            None => reason.as_str(),
        };
        let offline: Vec<u64> = self.found.iter().map(|found| found.frame.pc).collect();
        // The chain that is compared for the module.
        let (judged, capacity) = match sample.chain.context {
            _ if !recording.module => (&offline, walker::MOST_FRAMES),
            context => (chain, recording.most_frames(context)),
        };
        let mut expected = Truth {
            stack: &truth,
            covered,
            at_gap: false,
        };
        let verdict = compare(judged, &expected, capacity, behind_call);
        if let Some(limit) = self.limit(process, &truth, verdict, judged.len(), reason) {
            if !matches!(verdict, ChainVerdict::Longer(_)) {
                return Finding::Limit(limit);
            }
            expected.at_gap = true;
        }
        if let ChainVerdict::Longer(same) = verdict {
            let beyond = judged.get(same..).unwrap_or_default();
            expected.at_gap |= self.is_told_by_code(process, registers, &truth, beyond, &copy);
        }
        let walked = |chain: Vec<u64>, expected: &Truth<'_>, capacity| JudgedChain {
            verdict: compare(&chain, expected, capacity, behind_call),
            chain,
        };
        let reported = walked(chain.clone(), &expected, capacity);
        let offline = walked(offline, &expected, walker::MOST_FRAMES);
        let answerable = if recording.module {
            &reported
        } else {
            &offline
        };
        let rows = answerable
            .verdict
            .wrong(answerable.chain.len())
            .and_then(|wrong| self.rows(process, &truth, wrong));

        // The other chains must be complete even without rows.
        let whole = Truth {
            covered: truth.frames.len(),
            ..expected
        };
        let fp = by_frame_pointers(process, registers, None, &copy);
        let innermost = unwind::Frame {
            pc: registers.pc(),
            sp: registers.sp(),
            fp: registers.get(RBP).unwrap_or(0),
        };
        let first = function_code::function(process, registers.pc())
            .and_then(|function| function.caller(&innermost, &copy));
        let prologues = by_frame_pointers(process, registers, first, &copy);
        let (fp, prologues) = (
            walked(fp, &whole, usize::MAX),
            walked(prologues, &whole, usize::MAX),
        );
        let dwarf = stack::truth(
            &mut self.unwinder,
            process,
            registers,
            &copy.shortened(PERF_DWARF),
        );
        Finding::Judged(Box::new(Judged {
            process,
            covered,
            to_main: stack::to_main(process, &truth),
            reported,
            offline,
            fp,
            prologues,
            rows,
            dwarf_len: dwarf.frames.len(),
            dwarf_end: dwarf.end,
            truth,
        }))
    }

    /// Whether the truth ends in code without an .eh_frame entry that has rows from instruction
    /// analysis, or in JIT code, where the innermost frame's caller is at the frame pointer or on
    /// top of the stack; and whether the chain is true from that caller on.
    fn is_told_by_code(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        truth: &TruthStack,
        beyond: &[u64],
        copy: &StackCopy<'_>,
    ) -> bool {
        let Some(pc) = beyond.first().copied() else {
            return false;
        };
        let caller = match truth.end {
            End::Unknown(UnwindError::NoEntry) => (self.found.get(truth.frames.len()))
                .filter(|caller| caller.source == FrameSource::Rows)
                .map(|caller| caller.frame)
                .filter(|caller| caller.pc == pc),
            End::Unknown(UnwindError::NoFile) if truth.frames.len() == 1 => {
                without_code(registers, pc, copy)
            }
            _ => None,
        };
        let Some(caller) = caller else {
            return false;
        };
        let stack = stack::behind(&mut self.unwinder, process, caller, copy);
        let behind = Truth {
            stack: &stack,
            covered: 0,
            at_gap: stack.end != End::Outermost,
        };
        let behind_call = |address| may_be_behind_call(process, address, copy);
        let verdict = compare(beyond, &behind, usize::MAX, behind_call);
        !verdict.is_false()
    }

    /// The known limit that a difference comes from, if any. (Frames that frame pointers skip are
    /// no limit: such a stack is false.)
    fn limit(
        &mut self,
        process: &Process,
        truth: &TruthStack,
        verdict: ChainVerdict,
        len: usize,
        reason: &str,
    ) -> Option<&'static Limit> {
        let class = match verdict {
            ChainVerdict::Longer(_) => Class::Longer,
            ChainVerdict::Different(_) => Class::Pc,
            ChainVerdict::Skips(_) => Class::Skip,
            ChainVerdict::Shorter if reason == StopReason::Outermost.as_str() => Class::FalseEnd,
            ChainVerdict::Shorter => Class::Stop,
            _ => return None,
        };
        let from = verdict.wrong(len)?.checked_sub(1)?;
        let frame = truth.frames.get(from)?;
        let mapping = process.at(frame.at)?;
        let (file, address) = mapping.link_address(frame.at)?;
        let rule = self
            .walker
            .rule_at(frame.at, mapping)
            .ok()?
            .map(|(rule, _)| rule);
        let row = self.unwinder.row(file, address);
        let by = match (self.found.get(from + 1), rule) {
            (Some(found), _) => found.source,
            (None, Some(_)) => FrameSource::Rows,
            (None, None) => FrameSource::FramePointer,
        };
        limits::explain(&FrameDifference {
            class,
            by,
            file,
            address,
            rule,
            truth: row.as_deref().map_err(|why| *why),
            is_loaded: false,
            end: None,
        })
    }

    /// The rows of both tables for the step to frame `wrong`, one on each line.
    fn rows(&mut self, process: &Process, truth: &TruthStack, wrong: usize) -> Option<String> {
        let from = wrong.checked_sub(1)?;
        let at = truth.frames.get(from)?.at;
        let rule = self.walker.rule_at(at, process.at(at)?);
        let rule = match rule {
            Ok(None) => "nothing".to_owned(),
            Ok(Some((rule, _))) => format!(
                "cfa={:?}{:+}{} ra={:?} fp={:?}{}",
                rule.cfa.base,
                rule.cfa.offset,
                if rule.cfa.deref { " deref" } else { "" },
                rule.ra,
                rule.fp,
                if rule.signal { " signal" } else { "" },
            ),
            Err(error) => error.to_string(),
        };
        let row = match self.unwinder.row_at(process, at) {
            Ok(row) => row.to_string(),
            Err(why) => why.to_string(),
        };
        Some(format!(
            "at {}\n.sframe: {rule}\n.eh_frame: {row}",
            process.describe(at)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walk::registers::{
        PC,
        RSP, //
    };

    fn stack(pcs: &[u64], end: End) -> TruthStack {
        let frames = pcs.iter().map(|pc| TruthFrame { pc: *pc, at: *pc });
        TruthStack {
            frames: frames.collect(),
            end,
        }
    }

    fn judged(chain: &[u64], truth: &[u64], covered: usize) -> ChainVerdict {
        let stack = stack(truth, End::Outermost);
        let truth = Truth {
            stack: &stack,
            covered,
            at_gap: false,
        };
        compare(chain, &truth, 5, |_| true)
    }

    const TRUE: &[u64] = &[1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn chains_that_are_true() {
        assert_eq!(judged(TRUE, TRUE, 7), ChainVerdict::Identical);
        assert_eq!(judged(&TRUE[..3], TRUE, 3), ChainVerdict::Covered);
        assert_eq!(judged(&TRUE[..4], TRUE, 3), ChainVerdict::Covered);
        assert_eq!(judged(&TRUE[..5], TRUE, 7), ChainVerdict::Full);
        assert_eq!(judged(&TRUE[..2], TRUE, 3), ChainVerdict::Shorter);
        assert_eq!(judged(&[], TRUE, 3), ChainVerdict::Shorter);
        for verdict in [
            ChainVerdict::Identical,
            ChainVerdict::Covered,
            ChainVerdict::Full,
        ] {
            assert!(verdict.is_identical() && !verdict.is_false());
        }
        assert!(!ChainVerdict::Shorter.is_identical() && !ChainVerdict::Shorter.is_false());
    }

    #[test]
    fn chains_that_are_false() {
        assert_eq!(judged(&[1, 2, 9, 4], TRUE, 2), ChainVerdict::Different(2));
        assert_eq!(judged(&[9], TRUE, 2), ChainVerdict::Different(0));
        assert_eq!(judged(&[1, 3, 4], TRUE, 2), ChainVerdict::Skips(1));
        assert_eq!(judged(&[1, 4, 3], TRUE, 2), ChainVerdict::Different(1));
        assert_eq!(judged(&[1, 3, 3], TRUE, 2), ChainVerdict::Different(1));
        assert_eq!(
            judged(&[1, 2, 3, 4, 5, 6, 7, 8], TRUE, 2),
            ChainVerdict::Longer(7)
        );
        for verdict in [
            ChainVerdict::Different(0),
            ChainVerdict::Skips(0),
            ChainVerdict::Longer(0),
        ] {
            assert!(verdict.is_false() && !verdict.is_identical());
        }
    }

    #[test]
    fn the_truth_restarts_after_code_without_an_entry() {
        let (process, plain) = stack::tests::assembled(
            "no-entry",
            ".text\nplain: ret\n\
             outer: .cfi_startproc\n push %rbx\n .cfi_adjust_cfa_offset 8\n call plain\n pop %rbx\n\
             .cfi_adjust_cfa_offset -8\n ret\n .cfi_endproc\n\
             top: .cfi_startproc\n push %rbx\n .cfi_adjust_cfa_offset 8\n call outer\n pop %rbx\n\
             .cfi_adjust_cfa_offset -8\n ret\n .cfi_endproc\n",
        );
        let (in_outer, in_top) = (plain + 7, plain + 15);
        let words: Vec<u8> = [in_outer, 0, in_top, 0, 0]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        let copy = StackCopy::new(0x1000, &words);
        let found = |pc, sp, source| WalkedFrame {
            frame: unwind::Frame { pc, sp, fp: 0 },
            source,
            at: pc,
            rule: None,
        };
        let mut judge = SampleJudge::new(Walker::new());
        let mut registers = RegisterFile::default();
        registers.set(PC, plain);
        registers.set(RSP, 0x1000);
        let truth = stack::truth(&mut judge.unwinder, &process, &registers, &copy);
        assert_eq!(truth.frames.len(), 1);
        let mut told = |by, beyond: &[u64]| {
            judge.found = vec![found(plain, 0x1000, by), found(in_outer, 0x1008, by)];
            judge.is_told_by_code(&process, &registers, &truth, beyond, &copy)
        };
        assert!(told(FrameSource::Rows, &[in_outer, in_top]));
        assert!(!told(FrameSource::Rows, &[in_outer, in_outer]));
        assert!(!told(FrameSource::Rows, &[in_outer, in_top, plain]));
        assert!(!told(FrameSource::Rows, &[in_top]));
        assert!(!told(FrameSource::FramePointer, &[in_outer, in_top]));
    }

    #[test]
    fn the_truth_restarts_after_jit_code() {
        let (mut process, start) = stack::tests::assembled(
            "no-file",
            ".text\ntop: .cfi_startproc\n push %rbx\n .cfi_adjust_cfa_offset 8\n call *%rax\n pop %rbx\n\
             .cfi_adjust_cfa_offset -8\n ret\n .cfi_endproc\n",
        );
        let made = 0x7000_0000;
        process.map(ProcessMapping {
            start: made,
            end: made + 0x1000,
            offset: 0,
            executable: true,
            writable: false,
            is_file: false,
            name: String::new(),
            file: None,
        });
        let in_top = start + 3;
        let words: Vec<u8> = [0, 0, in_top, 0, in_top, 0, 0]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        let copy = StackCopy::new(0x1000, &words);
        let mut judge = SampleJudge::new(Walker::new());
        let mut told = |sp, fp, beyond: &[u64]| {
            let mut registers = RegisterFile::default();
            for (number, value) in [(PC, made), (RSP, sp), (RBP, fp)] {
                registers.set(number, value);
            }
            let truth = stack::truth(&mut judge.unwinder, &process, &registers, &copy);
            assert_eq!(truth.end, End::Unknown(UnwindError::NoFile));
            judge.is_told_by_code(&process, &registers, &truth, beyond, &copy)
        };
        // By the frame pointer, and from the top of the stack.
        assert!(told(0x1000, 0x1008, &[in_top, in_top]));
        assert!(told(0x1010, 0x1000, &[in_top, in_top]));
        assert!(!told(0x1000, 0x1008, &[in_top, in_top, in_top]));
        assert!(!told(0x1000, 0x1000, &[in_top, in_top]));
        assert!(!told(0x1000, 0x1008, &[start]));
    }

    #[test]
    fn jit_code_is_not_recorded() {
        let mut process = Process::new();
        for (start, executable, name) in [
            (0x1000, true, ""),
            (0x2000, false, ""),
            (0x3000, true, "/memfd:doublemapper (deleted)"),
        ] {
            process.map(ProcessMapping {
                start,
                end: start + 0x1000,
                offset: 0,
                executable,
                writable: false,
                is_file: false,
                name: name.to_owned(),
                file: None,
            });
        }
        let copy = StackCopy::new(0x8000, &[]);
        let may_be = |address| may_be_behind_call(&process, address, &copy);
        assert!(may_be(0x1001) && may_be(0x2000));
        assert!(!may_be(0x1000) && !may_be(0x2001) && !may_be(0x3001) && !may_be(0x4001));
    }

    #[test]
    fn frames_beyond_the_truth() {
        let beyond = |end, at_gap, is_behind_call: fn(u64) -> bool| {
            let stack = stack(&[1, 2], end);
            let truth = Truth {
                stack: &stack,
                covered: 2,
                at_gap,
            };
            compare(&[1, 2, 3, 4], &truth, 127, is_behind_call)
        };
        let gap = End::Unknown(UnwindError::NoEntry);
        assert_eq!(
            beyond(End::Copy, false, |_| false),
            ChainVerdict::BeyondCopy
        );
        assert_eq!(beyond(gap, true, |_| true), ChainVerdict::BeyondGap);
        assert_eq!(beyond(gap, true, |pc| pc == 3), ChainVerdict::Longer(2));
        assert_eq!(beyond(gap, false, |_| true), ChainVerdict::Longer(2));
        assert_eq!(
            beyond(End::Outermost, false, |_| true),
            ChainVerdict::Longer(2)
        );
    }

    #[test]
    fn chains_by_frame_pointers() {
        let mut process = Process::new();
        process.map(ProcessMapping {
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            executable: true,
            writable: false,
            is_file: false,
            name: String::new(),
            file: None,
        });
        // Two frames, and a third whose return address is not code.
        let words = [
            0u64, 0, 0x8020, 0x1100, // at 0x8010
            0x8030, 0x1200, // at 0x8020
            0x8040, 0x5000, // at 0x8030
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut values = [0; walk::registers::COUNT];
        values[usize::from(walk::registers::PC)] = 0x1010;
        values[usize::from(walk::registers::RSP)] = 0x8000;
        values[usize::from(RBP)] = 0x8010;
        let copy = StackCopy::new(0x8000, &bytes);
        let registers = RegisterFile::new(values);
        let chain = by_frame_pointers(&process, &registers, None, &copy);
        assert_eq!(chain, [0x1010, 0x1100, 0x1200]);
        let caller = |pc| unwind::Frame {
            pc,
            sp: 0x8008,
            fp: 0x8020,
        };
        let chain = by_frame_pointers(&process, &registers, Some(caller(0x1300)), &copy);
        assert_eq!(chain, [0x1010, 0x1300, 0x1200]);
        let chain = by_frame_pointers(&process, &registers, Some(caller(0x3000)), &copy);
        assert_eq!(chain, [0x1010]);
    }
}
