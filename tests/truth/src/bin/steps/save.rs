// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Saves stacks as snapshots: those with an unexplained difference, and chosen ones.

use std::{
    collections::BTreeSet,
    fs,
    io,
    path::PathBuf, //
};

use clap::Args;
use sframe::{
    runtimes::Region, //
    unwind::Memory,
    walk::FrameSource,
};
use walk::{
    process::Process,
    registers::RegisterFile,
    walker::WalkedFrame, //
};

use crate::judge::{
    self,
    StepContext,
    StepJudge, //
};

/// The bytes of code around each PC, and of the stack after the last frame, that are saved with a
/// difference. A walk that goes another way may read them.
const AROUND: u64 = 64;
/// The most bytes of the stack that are saved with a difference.
const MOST_STACK: u64 = 4096;

/// The options that choose stacks.
#[derive(Args)]
pub(crate) struct SaveOptions {
    /// Save the first stack of each kind of unexplained difference in a directory, as a snapshot
    /// (Documentation/testing.rst)
    #[arg(long, value_name = "DIRECTORY")]
    save: Option<PathBuf>,

    /// Save each Nth stack, too
    #[arg(long, value_name = "N", requires = "save", value_parser = clap::value_parser!(u64).range(1..))]
    save_each: Option<u64>,

    /// Save the first stack of each stop reason and of each set of ways to find frames, too
    #[arg(long, requires = "save")]
    save_kinds: bool,

    /// Save the first stack that has a place with all of these texts, which are joined by &&, too.
    /// The text of a place is as in the report of a difference, after "innermost " for the
    /// innermost frame
    #[arg(long, value_name = "TEXT", requires = "save")]
    save_at: Vec<String>,
}

/// Saves stacks.
pub(crate) struct Saver<'a> {
    options: &'a SaveOptions,
    /// The kinds that are saved, by program.
    kinds: BTreeSet<String>,
    /// The texts of places that are found.
    found: BTreeSet<String>,
}

impl<'a> Saver<'a> {
    /// Saves the stacks that the options choose.
    pub(crate) fn new(options: &'a SaveOptions) -> Saver<'a> {
        Saver {
            options,
            kinds: BTreeSet::new(),
            found: BTreeSet::new(),
        }
    }

    /// Saves the stack of a step that was judged, if it is to be saved. `difference` is the text of
    /// a new kind of unexplained difference.
    pub(crate) fn step<M: Memory + ?Sized>(
        &mut self,
        judge: &mut StepJudge,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        context: &StepContext<'_>,
        difference: Option<String>,
    ) -> io::Result<()> {
        let Some(directory) = &self.options.save else {
            return Ok(());
        };
        let Some((why, notes)) = self.reason_to_save(judge, process, memory, context, difference)
        else {
            return Ok(());
        };
        let StepContext {
            program,
            step,
            thread,
            ..
        } = context;
        let saved_by = format!("steps, instruction {step}, thread {thread}");
        let name = format!("{}-{step}-{why}", file_name(program));
        let is_difference = why == DIFFERENCE;
        let mut snapshot = match judge.record(process, registers, memory, program, &saved_by) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                eprintln!("steps: {name}: not saved: {error}");
                return Ok(());
            }
        };
        let found = judge.found();
        let is_same = snapshot.chain.len() == found.len()
            && (snapshot.chain.iter().zip(found)).all(|(stored, found)| {
                (stored.pc.0, stored.sp.0) == (found.frame.pc, found.frame.sp)
            });
        if !is_same {
            // The walk that was judged had other regions: those that it has met are searched after
            // it.
            eprintln!("steps: {name}: not saved: another walk finds other frames");
            return Ok(());
        }
        if is_difference {
            for found in found {
                let range = found.at.saturating_sub(AROUND)..found.at.saturating_add(AROUND);
                snapshot.add(process, memory, range);
            }
            let sp = registers.sp();
            let last = found.last().map_or(sp, |last| last.frame.sp);
            let end = last
                .saturating_add(AROUND)
                .min(sp.saturating_add(MOST_STACK));
            snapshot.add(process, memory, sp..end);
        }
        snapshot.origin.notes = notes;
        fs::create_dir_all(directory)?;
        let path = directory.join(name).with_extension("json");
        fs::write(&path, snapshot.to_text())
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    }

    /// Why the stack is to be saved, as a word and as lines of text.
    fn reason_to_save<M: Memory + ?Sized>(
        &mut self,
        judge: &StepJudge,
        process: &Process,
        memory: &M,
        context: &StepContext<'_>,
        difference: Option<String>,
    ) -> Option<(&'static str, Vec<String>)> {
        if let Some(text) = difference {
            return Some((DIFFERENCE, text.lines().map(str::to_owned).collect()));
        }
        let options = self.options;
        let found = judge.found();
        for text in &options.save_at {
            let has_text = |index: usize| {
                let place = judge::place(process, memory, found, index);
                text.split("&&").all(|part| place.contains(part))
            };
            if !self.found.contains(text) && (0..found.len()).any(has_text) {
                self.found.insert(text.clone());
                return Some(("at", vec![format!("--save-at {text:?}")]));
            }
        }
        if options.save_kinds {
            let kind = kind(process, found, judge.ended_by());
            if self.kinds.insert(format!("{}: {kind}", context.program)) {
                return Some(("kind", vec![kind]));
            }
        }
        let is_chosen = (options.save_each).is_some_and(|each| context.step % each == 0);
        is_chosen.then(|| ("chosen", Vec::new()))
    }
}

const DIFFERENCE: &str = "difference";

/// The kind of a stack: the way from the innermost frame, the other ways, and the stop reason.
fn kind(process: &Process, found: &[WalkedFrame], ended_by: &str) -> String {
    let ways = (0..found.len()).filter_map(|index| way(process, found, index));
    let ways: Vec<&str> = ways.collect();
    let others: BTreeSet<&str> = ways.iter().skip(1).copied().collect();
    let others: Vec<&str> = others.into_iter().collect();
    let first = ways.first().copied().unwrap_or("none");
    format!("{first}; {}; {ended_by}", others.join(" "))
}

/// The way from a frame to its caller; `None` if the frame is the last one.
fn way(process: &Process, found: &[WalkedFrame], index: usize) -> Option<&'static str> {
    let caller = found.get(index + 1)?;
    let found = &found[index];
    Some(match (found.rule, process.layout_at(found.at)) {
        (Some((_, origin)), _) => origin.as_str(),
        (None, Some(Region::CodeHeap(_))) if process.is_interpreter(found.at) => "interpreter",
        (None, Some(Region::CodeHeap(_))) => "hotspot",
        (None, Some(Region::TaggedStack(_))) => "erlang",
        (None, Some(_)) => "fixed",
        (None, None) if caller.source == FrameSource::FramePointer => "code",
        (None, None) => "other",
    })
}

/// A part of a file's name for a program and its arguments.
fn file_name(program: &str) -> String {
    let base = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let words: Vec<String> = program.split(' ').map(base).collect();
    let text = words.join("-");
    let is_plain = |letter: char| letter.is_ascii_alphanumeric();
    let letters = text.chars().map(|it| if is_plain(it) { it } else { '-' });
    letters.take(40).collect()
}
