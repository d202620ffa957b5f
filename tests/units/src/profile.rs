// SPDX-License-Identifier: GPL-2.0-only

//! Runs the calls under callgrind, and judges the counts.

use std::{
    collections::BTreeMap,
    env,
    fs,
    process::{
        Command,
        ExitCode, //
    }, //
};

use crate::memory::OF_CHARGE;

/// The most instructions that a unit may pay for.
const UNIT: u64 = 25;
/// The instructions of a walk's last step that no unit pays for. The same for what is done once for
/// each mapping: the search for the mapping, in C, pays for it.
const END: i64 = 200;
/// The number of functions that are shown.
const SHOWN: usize = 20;

/// Counts of instructions and units.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    instructions: u64,
    units: u64,
    calls: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.instructions += other.instructions;
        self.units += other.units;
    }

    /// The instructions, without those that count units.
    fn net(self) -> u64 {
        self.instructions.saturating_sub(OF_CHARGE * self.units)
    }

    /// The instructions that no unit pays for; negative if the units would pay for more.
    fn unpaid(self) -> i64 {
        self.net() as i64 - (UNIT * self.units) as i64
    }
}

/// The profile of one call: the counts of each function, with its callees.
type CallProfile<'a> = BTreeMap<&'a str, Counts>;

/// Reads a profile of callgrind.
fn parts(text: &str) -> Vec<CallProfile<'_>> {
    let mut parts = Vec::new();
    let (mut function, mut callee) = ("", None);
    for line in text.lines() {
        if line.starts_with("part: ") {
            parts.push(CallProfile::new());
        }
        let Some(part) = parts.last_mut() else {
            continue;
        };
        if let Some(name) = line.strip_prefix("fn=") {
            function = name;
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = Some(name);
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let calls = calls.split(' ').next().and_then(|calls| calls.parse().ok());
            let callee = callee.take().expect("a callee");
            part.entry(callee).or_default().calls += calls.unwrap_or(0);
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let mut numbers = line
                .split(' ')
                .skip(1)
                .map(|number| number.parse().unwrap_or(0));
            part.entry(function).or_default().add(Counts {
                instructions: numbers.next().unwrap_or(0),
                units: numbers.next().unwrap_or(0),
                calls: 0,
            });
        }
    }
    parts
}

/// The call of a step for which the units pay least.
struct Worst {
    calls: u64,
    counts: Counts,
    unpaid: i64,
    input: String,
}

/// The calls of steps or functions, by name.
#[derive(Default)]
struct CallsByName<'a>(BTreeMap<&'a str, Worst>);

impl<'a> CallsByName<'a> {
    fn note(&mut self, name: &'a str, counts: Counts, unpaid: i64, input: &str) {
        let worst = self.0.entry(name).or_insert(Worst {
            calls: 0,
            counts,
            unpaid: i64::MIN,
            input: String::new(),
        });
        worst.calls += counts.calls;
        if unpaid > worst.unpaid {
            worst.counts = counts;
            worst.unpaid = unpaid;
            worst.input = input.to_owned();
        }
    }

    /// Prints them, those first for which the units pay least; at most `most`.
    fn print(&self, title: &str, most: usize) {
        println!(
            "{title:40} {:>8} {:>8} {:>6} {:>7}  input",
            "calls", "instr.", "units", "unpaid"
        );
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(_, worst)| -worst.unpaid);
        for (name, worst) in all.into_iter().take(most) {
            let Counts { units, .. } = worst.counts;
            let (net, unpaid) = (worst.counts.net(), worst.unpaid);
            println!(
                "{name:40} {:8} {net:8} {units:6} {unpaid:7}  {}",
                worst.calls, worst.input
            );
        }
    }
}

/// Counts, prints what was found, and fails if the units of a call do not pay for it.
pub(crate) fn judge(file: &str) -> ExitCode {
    // A part for each call, one line for each function, and the locked instructions.
    let options = "--tool=callgrind --collect-atstart=no --toggle-collect=measured \
                   --toggle-collect=uncounted_* --dump-after=measured --combine-dumps=yes \
                   --collect-bus=yes --compress-strings=no --compress-pos=no --dump-line=no";
    let output = Command::new("valgrind")
        .args(options.split_ascii_whitespace())
        .arg(format!("--callgrind-out-file={file}"))
        .arg(env::current_exe().expect("a program knows its own path"))
        .arg("run")
        .output()
        .expect("valgrind runs");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "callgrind: {messages}");
    let calls = String::from_utf8(output.stdout).expect("the calls are text");
    let text = fs::read_to_string(file).expect("callgrind writes its counts");
    // The last part is what follows the last call.
    let parts = parts(&text);
    let calls: Vec<Vec<&str>> = calls
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    let (called, counted) = (calls.len(), parts.len());
    assert!(called > 10_000, "{called} calls");
    assert!(
        (called..=called + 1).contains(&counted),
        "{called} calls, {counted} parts"
    );

    let (mut steps, mut functions) = (CallsByName::default(), CallsByName::default());
    for (call, part) in calls.iter().zip(&parts) {
        let [name, end, input] = call[..] else {
            panic!("not a call: {call:?}");
        };
        let mut counts = part.get("measured").copied().expect("the call");
        assert!(
            counts.instructions != 0,
            "{name}, {input}: nothing was counted"
        );
        counts.calls = 1;
        let is_once = name.starts_with("mapping: ") || end == "end";
        let free = if is_once { END } else { 0 };
        steps.note(name, counts, counts.unpaid() - free, input);
        for (function, counts) in part {
            let name = function
                .rsplit("sframe::sframe::")
                .next()
                .unwrap_or(function);
            if name.len() != function.len() && counts.calls != 0 {
                functions.note(name, *counts, counts.unpaid() / counts.calls as i64, input);
            }
        }
    }
    // Their callers may pay for them.
    functions.print("function", SHOWN);
    steps.print("step", usize::MAX);
    match steps.0.values().any(|worst| worst.unpaid > 0) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
