// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Counts the judge's findings, and prints them as text and JSON.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::Path, //
};

use serde_json::{
    json,
    Value, //
};
use walk::process::Process;

use crate::{
    judge::{
        Finding,
        Judged,
        JudgedChain, //
    },
    recording::{
        RecordedSample, //
        Recording,
        SampleContext,
    },
    stack::End, //
};

/// The required share of stacks that are identical as far as .sframe covers, in percent.
const GOAL: f64 = 99.9;

/// The maximum number of places that are shown at which the truth ends early.
const MOST_GAPS: usize = 12;

/// The counts for the stacks of one unwinding method.
#[derive(Default)]
struct Way {
    /// Stacks without a false frame, up to main at least.
    to_main: u64,
    /// Complete stacks: all frames as far as the truth is known, up to a frame without a caller.
    complete: u64,
    /// Stacks with a false frame.
    false_frames: u64,
}

impl Way {
    fn count(&mut self, walked: &JudgedChain, judged: &Judged<'_>) {
        let JudgedChain { chain, verdict } = walked;
        let is_false = verdict.is_false();
        self.false_frames += u64::from(is_false);
        self.to_main += u64::from(!is_false && judged.reaches_main(chain.len()));
        self.complete += u64::from(judged.is_whole(walked));
    }

    fn json(&self, judged: u64) -> Value {
        json!({
            "to_main": percent(self.to_main, judged),
            "complete": percent(self.complete, judged),
            "false": percent(self.false_frames, judged),
        })
    }
}

/// Samples with one kind of fault.
#[derive(Default)]
struct FaultKind {
    samples: u64,
    /// The first samples, with both stacks, as text.
    example: String,
}

/// The samples of one program in one context.
#[derive(Default)]
struct SampleGroup {
    samples: u64,
    judged: u64,
    /// The samples that were not judged, by reason.
    unjudged: BTreeMap<&'static str, u64>,
    verdicts: BTreeMap<&'static str, u64>,
    /// The samples by stop reason and verdict.
    reasons: BTreeMap<(String, &'static str), u64>,
    /// The samples by the end of the truth.
    ends: BTreeMap<&'static str, u64>,
    identical: u64,
    /// The known true frames, and those that .sframe covers.
    frames: u64,
    covered: u64,
    /// The reported frames, and those that perf would find in a copy of 8 KiB.
    reported_frames: u64,
    dwarf_frames: u64,
    /// As `identical`, for the module's walk offline.
    offline_identical: u64,
    reported: Way,
    offline: Way,
    fp: Way,
    prologues: Way,
    dwarf: Way,
    /// The places at which the truth ended before the outermost frame, with the reason.
    gaps: BTreeMap<String, u64>,
    /// The faults.
    kinds: BTreeMap<String, FaultKind>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    program: String,
    module: bool,
    context: SampleContext,
}

impl GroupKey {
    fn by(&self) -> &'static str {
        if self.module {
            "module"
        } else {
            "kernel"
        }
    }
}

/// The report over all recordings.
pub(crate) struct SampleReport {
    show: usize,
    program: String,
    module: bool,
    lost: u64,
    walks_that_differ: u64,
    groups: BTreeMap<GroupKey, SampleGroup>,
}

impl SampleReport {
    pub(crate) fn new(show: usize) -> SampleReport {
        SampleReport {
            show,
            program: String::new(),
            module: false,
            lost: 0,
            walks_that_differ: 0,
            groups: BTreeMap::new(),
        }
    }

    /// Starts a recording.
    pub(crate) fn begin(&mut self, path: &Path, recording: &Recording<'_>) {
        let command = recording.command.first().map_or("", |word| &**word);
        let file = Path::new(command).file_name().or(path.file_stem());
        self.program = recording.name.clone().unwrap_or_else(|| {
            file.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        });
        self.module = recording.module;
        self.lost += recording.lost;
        self.walks_that_differ += recording.walks_that_differ;
    }

    pub(crate) fn add(&mut self, sample: &RecordedSample<'_>, finding: Finding<'_>) {
        let key = GroupKey {
            program: self.program.clone(),
            module: self.module,
            context: sample.chain.context,
        };
        let group = self.groups.entry(key).or_default();
        group.samples += 1;
        let judged = match finding {
            Finding::NoRegisters => {
                *group.unjudged.entry("no user registers").or_default() += 1;
                return;
            }
            Finding::NoChain => {
                *group.unjudged.entry("no deferred stack").or_default() += 1;
                return;
            }
            Finding::OtherRegisters => {
                *group
                    .unjudged
                    .entry("deferred, of other registers")
                    .or_default() += 1;
                return;
            }
            Finding::Limit(limit) => {
                *group.unjudged.entry(limit.name).or_default() += 1;
                return;
            }
            Finding::NoTruth(end, process, frame) => {
                *group.unjudged.entry("no truth").or_default() += 1;
                *group.ends.entry(end.name()).or_default() += 1;
                let what = format!("{} at {}", end.name(), process.describe(frame.pc));
                *group.gaps.entry(what).or_default() += 1;
                return;
            }
            Finding::Judged(judged) => judged,
        };

        group.judged += 1;
        let verdict = judged.reported.verdict;
        *group.verdicts.entry(verdict.name()).or_default() += 1;
        *group.ends.entry(judged.truth.end.name()).or_default() += 1;
        if let End::Unknown(why) = judged.truth.end {
            let last = judged.truth.frames[judged.truth.frames.len() - 1];
            let what = format!("{} at {}", why.name(), judged.process.describe(last.at));
            *group.gaps.entry(what).or_default() += 1;
        }
        group.frames += judged.truth.frames.len() as u64;
        group.covered += judged.covered as u64;
        group.reported_frames += judged.reported.chain.len() as u64;
        group.dwarf_frames += judged.dwarf_len as u64;
        group.identical += u64::from(verdict.is_identical());
        let walk = sample.chain.walk.as_ref();
        let reason = walk.map_or("(no walk)", |walk| &*walk.reason);
        *group
            .reasons
            .entry((reason.to_owned(), verdict.name()))
            .or_default() += 1;
        group.offline_identical += u64::from(judged.offline.verdict.is_identical());
        for (way, walked) in [
            (&mut group.reported, &judged.reported),
            (&mut group.offline, &judged.offline),
            (&mut group.fp, &judged.fp),
            (&mut group.prologues, &judged.prologues),
        ] {
            way.count(walked, &judged);
        }
        group.dwarf.to_main += u64::from(judged.reaches_main(judged.dwarf_len));
        group.dwarf.complete += u64::from(judged.dwarf_end == End::Outermost);

        // The chain that is compared for the module: the kernel's, or without the module the
        // offline walk's.
        let (walked, reason) = if self.module {
            (&judged.reported, reason)
        } else {
            (&judged.offline, "offline")
        };
        if let Some(wrong) = walked.verdict.wrong(walked.chain.len()) {
            // The wrong step is that from the last true frame.
            let from = judged.truth.frames[wrong.saturating_sub(1)];
            let place = judged.process.describe(from.at);
            let what = format!("{} ({reason}) behind {place}", walked.verdict.name());
            let kind = group.kinds.entry(what).or_default();
            kind.samples += 1;
            if kind.samples == 1 {
                kind.example = example(sample, &judged, walked, wrong);
            }
        }
    }

    /// The tables.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let out = &mut text;
        let width = self.groups.keys().map(|key| key.program.len()).max();
        let width = width.unwrap_or(0).max(7);

        line(
            out,
            format_args!(
                "{:width$}  {:6}  {:9}  {:>7} {:>7}  {:>9} {:>9} {:>9} {:>9} {:>9} \
                 {:>6} {:>6} {:>7}",
                "program",
                "by",
                "context",
                "samples",
                "judged",
                "covered",
                "identical",
                "offline",
                "to main",
                "complete",
                "false",
                "skips",
                "shorter",
            ),
        );
        for (key, group) in &self.groups {
            line(
                out,
                format_args!(
                    "{:width$}  {:6}  {:9}  {:7} {:7}  {:7.2} % {:7.2} % {:7.2} % {:7.2} % \
                     {:7.2} % {:6} {:6} {:7}",
                    key.program,
                    key.by(),
                    key.context.name(),
                    group.samples,
                    group.judged,
                    percent(group.covered, group.frames),
                    percent(group.identical, group.judged),
                    percent(group.offline_identical, group.judged),
                    percent(group.reported.to_main, group.judged),
                    percent(group.reported.complete, group.judged),
                    group.reported.false_frames,
                    group.verdicts.get("skips").copied().unwrap_or(0),
                    group.verdicts.get("shorter").copied().unwrap_or(0),
                ),
            );
        }

        line(
            out,
            format_args!(
                "\nOn the same samples, offline: to main / complete / false, in % of those judged\n\
                 {:width$}  {:6}  {:9}  {:^20}  {:^20}  {:^20}  {:^20}  {:^13}",
                "program",
                "by",
                "context",
                "as reported",
                "the module's walk",
                "frame pointers",
                "fp and prologues",
                "dwarf, 8 KiB",
            ),
        );
        for (key, group) in &self.groups {
            let way = |way: &Way| {
                format!(
                    "{:6.2} {:6.2} {:6.2}",
                    percent(way.to_main, group.judged),
                    percent(way.complete, group.judged),
                    percent(way.false_frames, group.judged)
                )
            };
            line(
                out,
                format_args!(
                    "{:width$}  {:6}  {:9}  {}  {}  {}  {}  {:6.2} {:6.2}",
                    key.program,
                    key.by(),
                    key.context.name(),
                    way(&group.reported),
                    way(&group.offline),
                    way(&group.fp),
                    way(&group.prologues),
                    percent(group.dwarf.to_main, group.judged),
                    percent(group.dwarf.complete, group.judged),
                ),
            );
        }

        self.reasons(out);
        self.kinds(out);
        line(
            out,
            format_args!(
                "\nlost records: {}; walks whose number of frames is not the sample's: {}",
                self.lost, self.walks_that_differ
            ),
        );
        text
    }

    /// The verdicts by the module's stop reason, over all programs; the samples that were not
    /// judged; and the ends of the truth.
    fn reasons(&self, out: &mut String) {
        let mut reasons = BTreeMap::<(SampleContext, &str, &str), u64>::new();
        let mut others = BTreeMap::<(&str, &str), u64>::new();
        for (key, group) in &self.groups {
            if key.module {
                for ((reason, verdict), samples) in &group.reasons {
                    *reasons.entry((key.context, reason, verdict)).or_default() += samples;
                }
            }
            for (why, samples) in &group.unjudged {
                *others.entry(("not judged", why)).or_default() += samples;
            }
            for (why, samples) in &group.ends {
                *others.entry(("truth ends", why)).or_default() += samples;
            }
        }
        if !reasons.is_empty() {
            line(out, format_args!("\nBy the reason why the walk ended"));
        }
        for ((context, reason, verdict), samples) in reasons {
            line(
                out,
                format_args!("{:9}  {reason:18} {verdict:12} {samples:8}", context.name()),
            );
        }
        line(out, format_args!("\nAll programs"));
        for ((what, why), samples) in others {
            line(out, format_args!("{what:10}  {why:30} {samples:8}"));
        }
        let mut gaps = BTreeMap::<&str, u64>::new();
        for (what, samples) in self.groups.values().flat_map(|group| &group.gaps) {
            *gaps.entry(what).or_default() += samples;
        }
        let mut gaps: Vec<_> = gaps.into_iter().collect();
        gaps.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
        if !gaps.is_empty() {
            line(
                out,
                format_args!("\nWhere the truth ends too early, the most frequent"),
            );
        }
        for (what, samples) in gaps.into_iter().take(MOST_GAPS) {
            line(out, format_args!("{samples:8}  {what}"));
        }
    }

    fn kinds(&self, out: &mut String) {
        for (key, group) in &self.groups {
            let mut kinds: Vec<_> = group.kinds.iter().collect();
            kinds.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.samples));
            for (what, kind) in kinds.iter().take(self.show) {
                line(
                    out,
                    format_args!(
                        "\n{}, {}, {}: {} x {what}\n{}",
                        key.program,
                        key.by(),
                        key.context.name(),
                        kind.samples,
                        kind.example.trim_end()
                    ),
                );
            }
            let rest = kinds.len().saturating_sub(self.show);
            if rest != 0 && self.show != 0 {
                let samples: u64 = kinds[self.show..]
                    .iter()
                    .map(|(_, kind)| kind.samples)
                    .sum();
                line(
                    out,
                    format_args!("and {rest} kinds more, {samples} samples"),
                );
            }
        }
    }

    /// All figures.
    pub(crate) fn json(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|(key, group)| {
                let reasons: Vec<Value> = group
                    .reasons
                    .iter()
                    .map(|((reason, verdict), samples)| {
                        json!({ "reason": reason, "verdict": verdict, "samples": samples })
                    })
                    .collect();
                let kinds: BTreeMap<&str, u64> = group
                    .kinds
                    .iter()
                    .map(|(what, kind)| (&**what, kind.samples))
                    .collect();
                json!({
                    "program": key.program,
                    "by": key.by(),
                    "context": key.context.name(),
                    "samples": group.samples,
                    "judged": group.judged,
                    "unjudged": group.unjudged,
                    "frames": group.frames,
                    "frames_covered": group.covered,
                    "frames_reported": group.reported_frames,
                    "frames_dwarf_8_kib": group.dwarf_frames,
                    "identical": percent(group.identical, group.judged),
                    "identical_offline": percent(group.offline_identical, group.judged),
                    "verdicts": group.verdicts,
                    "reasons": reasons,
                    "truth_ends": group.ends,
                    "truth_gaps": group.gaps,
                    "reported": group.reported.json(group.judged),
                    "offline": group.offline.json(group.judged),
                    "frame_pointers": group.fp.json(group.judged),
                    "frame_pointers_and_prologues": group.prologues.json(group.judged),
                    "dwarf_8_kib": group.dwarf.json(group.judged),
                    "kinds": kinds,
                })
            })
            .collect();
        let total = self.total();
        json!({
            "programs": total.programs,
            "samples": total.samples,
            "identical": percent(total.identical, total.judged),
            "false": total.false_frames,
            "complete": percent(total.complete, total.judged),
            "lost": self.lost,
            "walks_that_differ": self.walks_that_differ,
            "groups": groups,
        })
    }

    fn total(&self) -> Total {
        let mut total = Total::default();
        let mut programs: Vec<&str> = Vec::new();
        for (key, group) in self.groups.iter().filter(|(key, _)| key.module) {
            programs.push(&key.program);
            total.samples += group.samples;
            total.judged += group.judged;
            total.identical += group.identical;
            total.false_frames += group.reported.false_frames;
            total.complete += group.reported.complete;
        }
        programs.dedup();
        total.programs = programs.len();
        total
    }

    /// The last line, for the kernel's chains only.
    pub(crate) fn line(&self) -> String {
        let total = self.total();
        format!(
            "truth: {} programs, {} samples, identical {:.2} %, false frames {}, complete {:.2} %",
            total.programs,
            total.samples,
            percent(total.identical, total.judged),
            total.false_frames,
            percent(total.complete, total.judged)
        )
    }

    /// One line for each goal that is missed.
    pub(crate) fn missed(&self, at_least: u64) -> Vec<String> {
        let total = self.total();
        let mut missed = Vec::new();
        if total.judged == 0 {
            missed.push("no sample was judged".to_owned());
        }
        let identical = percent(total.identical, total.judged);
        if identical < GOAL {
            missed.push(format!("identical {identical:.3} %, at least {GOAL} %"));
        }
        if total.false_frames != 0 {
            missed.push(format!("{} samples with a false frame", total.false_frames));
        }
        for (key, group) in self.groups.iter().filter(|(key, _)| key.module) {
            if group.judged < at_least {
                missed.push(format!(
                    "{}, {}: {} samples judged, at least {at_least}",
                    key.program,
                    key.context.name(),
                    group.judged
                ));
            }
        }
        missed
    }
}

#[derive(Default)]
struct Total {
    programs: usize,
    samples: u64,
    judged: u64,
    identical: u64,
    false_frames: u64,
    complete: u64,
}

/// Both stacks, frame by frame, and the rows of the step that went wrong.
fn example(
    sample: &RecordedSample<'_>,
    judged: &Judged<'_>,
    walked: &JudgedChain,
    wrong: usize,
) -> String {
    const AROUND: usize = 6;

    let mut text = String::new();
    let out = &mut text;
    let process: &Process = judged.process;
    let truth = &judged.truth;
    line(
        out,
        format_args!(
            "    thread {}, {} frames are true and end so: {}; {} are covered; {} were found",
            sample.tid,
            truth.frames.len(),
            truth.end.name(),
            judged.covered,
            walked.chain.len()
        ),
    );
    let last = truth.frames.len().max(walked.chain.len());
    let first = wrong.saturating_sub(AROUND);
    for index in first..last.min(wrong + AROUND) {
        let frame = truth.frames.get(index);
        let found = walked.chain.get(index).copied();
        let is_wrong = frame.map(|frame| frame.pc) != found;
        line(
            out,
            format_args!(
                "    {:3} {} {:60} {}",
                index,
                if is_wrong { '*' } else { ' ' },
                frame.map_or("-".to_owned(), |frame| process.describe(frame.pc)),
                match found {
                    None => "-".to_owned(),
                    Some(_) if !is_wrong => "=".to_owned(),
                    Some(found) => process.describe(found),
                }
            ),
        );
    }
    for rows in judged.rows.iter().flat_map(|rows| rows.lines()) {
        line(out, format_args!("    {rows}"));
    }
    text
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("strings take all");
}

/// A share in percent; 0 if `whole` is 0.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        100.0 * part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        judge::SampleJudge,
        recording::tests::Writer, //
    };
    use walk::{
        process::Files,
        registers::{
            COUNT,
            PC,
            RSP, //
        }, //
    };

    const CONTEXT_USER: u64 = -512i64 as u64;

    /// The report for chains at the entry point of a program, which has no caller: this test
    /// program.
    fn report(chains: &[&[u64]]) -> SampleReport {
        const BASE: u64 = 0x7000_0000_0000;
        let path = std::env::current_exe().unwrap();
        let file = Files::new().open(&path).unwrap();
        let entry = u64::from_le_bytes(*file.bytes[24..].first_chunk().unwrap());
        let code = file.segments.iter().find(|segment| segment.executable);
        let code = code.unwrap();
        let mut registers = [0; COUNT];
        registers[usize::from(PC)] = BASE + entry;
        registers[usize::from(RSP)] = 0x8000;

        let mut writer = Writer::new("module=1\nmax_stack=127\nargument=a/b\n");
        writer.map(
            1,
            BASE + code.address - code.offset % 4096,
            code.size + code.offset % 4096,
            code.offset - code.offset % 4096,
            path.to_str().unwrap(),
        );
        for chain in chains {
            // Frames further out are false.
            let chain: Vec<u64> = std::iter::once(CONTEXT_USER)
                .chain(chain.iter().map(|pc| BASE + entry + pc))
                .collect();
            writer.walk(1, 2, "irq", chain.len() as u32 - 1, "outermost");
            writer.sample(1, 2, &chain, &registers, &[0; 64]);
        }
        let file = writer.end();
        let recording = Recording::parse(&file).unwrap();
        let mut report = SampleReport::new(2);
        report.begin(Path::new("x"), &recording);
        SampleJudge::new(walk::walker::Walker::new()).judge(
            &recording,
            Path::new("/"),
            &[],
            |sample, finding| {
                report.add(sample, finding);
            },
        );
        report
    }

    #[test]
    fn true_stacks_reach_the_goal() {
        let report = report(&[&[0], &[0]]);
        assert_eq!(
            report.line(),
            "truth: 1 programs, 2 samples, identical 100.00 %, false frames 0, complete 100.00 %"
        );
        assert!(report.missed(2).is_empty());
        assert_eq!(
            report.missed(3),
            ["b, immediate: 2 samples judged, at least 3"]
        );
        let json = report.json();
        assert_eq!(json["groups"][0]["program"], "b");
        assert_eq!(json["groups"][0]["by"], "module");
        assert_eq!(json["groups"][0]["reasons"][0]["reason"], "outermost");
        assert_eq!(json["walks_that_differ"], 0);
    }

    #[test]
    fn one_false_frame_is_too_many() {
        let mut chains: Vec<&[u64]> = vec![&[0]; 999];
        chains.push(&[0, 0x40]);
        let report = report(&chains);
        assert_eq!(
            report.line(),
            "truth: 1 programs, 1000 samples, identical 99.90 %, false frames 1, complete 99.90 %"
        );
        assert_eq!(report.missed(1), ["1 samples with a false frame"]);
        let text = report.text();
        assert!(text.contains("1 x longer (outermost) behind "), "{text}");
    }

    #[test]
    fn a_missing_stack_is_not_identical() {
        let report = report(&[&[0], &[]]);
        assert_eq!(report.missed(1), ["identical 50.000 %, at least 99.9 %"]);
        assert_eq!(report.json()["groups"][0]["verdicts"]["shorter"], 1);
        assert!(report.text().contains("1 x shorter (outermost) behind "));
    }

    #[test]
    fn nothing_reaches_no_goal() {
        assert!(!report(&[]).missed(1).is_empty());
        assert_eq!(SampleReport::new(0).missed(0)[0], "no sample was judged");
    }
}
