// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Steps a program, one instruction at a time, and checks its stack at each.
//!
//! See Documentation/accuracy.rst.

#![deny(missing_docs)]

mod calls;
mod judge;
mod kernel;
mod loaded;
mod ptrace;
mod save;
mod tracer;

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    env,
    ffi::CString,
    fs,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    process::ExitCode,
    time::{
        Duration,
        Instant, //
    }, //
};

use clap::Parser;
use serde_json::{
    json,
    Value, //
};
use walk::process::Files;

use crate::{
    judge::{
        StepContext,
        StepCounts,
        StepJudge, //
    },
    save::{
        SaveOptions,
        Saver, //
    },
    tracer::{
        Stepped,
        Tracer, //
    }, //
};

/// Steps programs and compares, at each instruction, the stack by .sframe, as the kernel module
/// walks it, with the stack by .eh_frame
#[derive(Parser)]
#[command(name = "steps")]
struct Options {
    /// How many instructions of each program to step
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    steps: u64,

    /// How many instructions to step at a time
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    window: u64,

    /// Time for which the program runs between two windows, in microseconds; 0 steps all of it
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 3_000)]
    pause: u64,

    /// Time for which each program runs before the first window
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    warm_up: u64,

    /// Seed of the random lengths of the pauses
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Time limit for each program
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u64,

    /// Convert files without rows, as `sframectl convert` does
    #[arg(long)]
    convert: bool,

    /// Compare with the kernel's own walk, too, and fail if the module is worse in more than so
    /// many steps of a million
    #[arg(long, value_name = "N")]
    kernel: Option<u64>,

    /// Write the report as JSON to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Step the programs of a table made by tests/truth/programs/build, in the table's directory:
    /// each line has a name, a short command, and an endless command, separated by tabs
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,

    /// Step only the programs of these names from the table
    #[arg(long, value_name = "NAME", requires = "table")]
    only: Vec<String>,

    #[command(flatten)]
    save: SaveOptions,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match judge_all(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("steps: {error}");
            ExitCode::from(2)
        }
    }
}

/// Compares all programs. Returns the number of unexplained differences, and one more if the module
/// is worse than the kernel's own walk.
fn judge_all(options: &Options) -> Result<u64, String> {
    let programs = programs(options)?;
    ptrace::never_wait_long().map_err(|error| error.to_string())?;
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null");
    let null = OwnedFd::from(null.map_err(|error| format!("/dev/null: {error}"))?);
    let mut run = Run {
        options,
        files: Files::new(),
        judge: if options.convert {
            StepJudge::with_converted()
        } else {
            StepJudge::default()
        },
        null,
        threads: BTreeSet::new(),
        saver: Saver::new(&options.save),
    };
    let mut counts = Vec::new();
    print_head();
    for program in &programs {
        let name = &program.name;
        let started = Instant::now();
        let count = run
            .program(program)
            .map_err(|error| format!("{name}: {error}"))?;
        print_line(name, &count, started.elapsed());
        if count.presumed != 0 {
            let presumed = run.judge.presumed();
            println!(
                "  {} frames are equal to presumed calls; {} such calls returned, after {} frames; {} returns to \
                 unknown addresses",
                count.presumed, presumed.confirmed, presumed.frames, presumed.unknown
            );
        }
        print_kinds(&count);
        count.kernel.print();
        counts.push((name, count));
    }
    if let Some(path) = &options.json {
        let programs: Vec<Value> = counts
            .iter()
            .map(|(name, count)| to_json(name, count))
            .collect();
        let text = serde_json::to_string_pretty(&json!({ "programs": programs }))
            .map_err(|error| error.to_string())?;
        fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let steps: u64 = counts.iter().map(|(_, count)| count.steps).sum();
    let kinds = counts.iter().flat_map(|(_, count)| count.kinds.values());
    let unexplained = kinds.filter(|kind| kind.limit.is_none()).count() as u64;
    let mut explained = BTreeMap::<&str, u64>::new();
    for kind in counts.iter().flat_map(|(_, count)| count.kinds.values()) {
        if let Some(limit) = kind.limit {
            *explained.entry(limit.name).or_default() += kind.steps;
        }
    }
    println!();
    for (limit, steps) in explained {
        println!("explained: {steps} by {limit}");
    }
    println!("steps: {steps} instructions, {unexplained} unexplained differences");
    let worse: u64 = counts.iter().map(|(_, count)| count.kernel.worse()).sum();
    if let Some(most) = options.kernel {
        println!("worse than the kernel's walk: {worse} steps");
        if worse > steps * most / 1_000_000 {
            return Ok(unexplained + 1);
        }
    }
    Ok(unexplained)
}

/// A program to step.
struct SteppedProgram {
    name: String,
    words: Vec<CString>,
}

fn programs(options: &Options) -> Result<Vec<SteppedProgram>, String> {
    let words = |words: &[&str]| -> Result<Vec<CString>, String> {
        let words = words.iter().map(|word| CString::new(*word));
        words
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())
    };
    let mut programs = Vec::new();
    if let Some(path) = &options.table {
        let in_table = |error| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| in_table(error.to_string()))?;
        let place = path
            .canonicalize()
            .map_err(|error| in_table(error.to_string()))?;
        let place = place.parent().unwrap_or(&place);
        env::set_current_dir(place).map_err(|error| in_table(error.to_string()))?;
        for line in text.lines() {
            let [name, _, endless] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(in_table(format!("{line:?} has not three fields")));
            };
            if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
                continue;
            }
            programs.push(SteppedProgram {
                name: name.to_owned(),
                words: words(&["sh", "-c", &format!("exec {endless}")])?,
            });
        }
    }
    if !options.program.is_empty() {
        let given: Vec<&str> = options.program.iter().map(|word| &**word).collect();
        programs.push(SteppedProgram {
            name: options.program.join(" "),
            words: words(&given)?,
        });
    }
    if programs.is_empty() {
        return Err("no program is given; try: steps -- PROGRAM ARGUMENT...".to_owned());
    }
    Ok(programs)
}

/// The number of places at which walks end that are printed.
const MOST_PLACES: usize = 10;

/// The number of starts in succession after which a program is given up that ends before its first
/// window.
const MOST_IDLE_STARTS: u32 = 3;

struct Run<'a> {
    options: &'a Options,
    files: Files,
    judge: StepJudge,
    null: OwnedFd,
    /// The threads that were stepped since the program's last start.
    threads: BTreeSet<i32>,
    saver: Saver<'a>,
}

impl Run<'_> {
    /// Steps one program, which is restarted if it ends too early.
    fn program(&mut self, program: &SteppedProgram) -> io::Result<StepCounts> {
        let SteppedProgram { name, words } = program;
        let deadline = Instant::now() + Duration::from_secs(self.options.seconds);
        let mut count = StepCounts::default();
        let mut random = Random(self.options.seed);
        let mut pause = self.options.pause;
        let mut idle_starts = 0;
        while count.steps < self.options.steps && Instant::now() < deadline {
            let before = count.steps;
            let mut tracer = Tracer::start(words, &self.null, deadline)?;
            count.starts += 1;
            self.threads.clear();
            if self.options.warm_up != 0 {
                tracer.run(Duration::from_secs(self.options.warm_up))?;
            }
            let mut first = true;
            while tracer.ended().is_none()
                && count.steps < self.options.steps
                && Instant::now() < deadline
            {
                if pause != 0 && !(first && pause < 50) {
                    tracer.run(Duration::from_micros(random.below(pause)))?;
                }
                first = false;
                self.window(name, &mut tracer, &mut count)?;
            }
            if let Some(code @ (127 | ..0)) = tracer.ended() {
                eprintln!("steps: {name}: ended by status {code}");
            }
            count.threads = count.threads.max(self.threads.len() as u64);
            idle_starts = if count.steps == before {
                idle_starts + 1
            } else {
                0
            };
            if let (MOST_IDLE_STARTS, Some(code)) = (idle_starts, tracer.ended()) {
                let text =
                    format!("ended by status {code} before its first window, {idle_starts} times");
                return Err(io::Error::other(text));
            }
            if self.options.pause == 0 {
                break;
            }
            // Short programs get shorter pauses.
            if count.steps < before + self.options.window {
                pause /= 2;
            }
        }
        Ok(count)
    }

    fn window(
        &mut self,
        name: &str,
        tracer: &mut Tracer,
        count: &mut StepCounts,
    ) -> io::Result<()> {
        self.judge.begin_window();
        for _ in 0..self.options.window {
            let (thread, registers) = match tracer.step(&mut self.files)? {
                Stepped::Step { thread, registers } => (thread, registers),
                Stepped::Over => break,
            };
            let memory = tracer.memory(registers.sp());
            tracer.process_with(registers.sp(), &mut self.files)?;
            (self.judge).walk(tracer.processes().0, &registers, &memory);
            let made_code = self.judge.made_code(tracer.processes().0);
            tracer.find_loaded(made_code.into_iter(), &mut self.files)?;
            let (process, truth) = tracer.processes();
            self.threads.insert(thread);
            let context = StepContext {
                program: name,
                step: count.steps + 1,
                thread,
                truth,
            };
            self.judge
                .step(process, &registers, &memory, &context, count);
            if self.options.kernel.is_some() {
                let judge = &mut self.judge;
                judge.beside_kernel(process, &registers, &memory, &context, count);
            }
            let difference = count.new_difference.take();
            let judge = &mut self.judge;
            (self.saver).step(judge, process, &registers, &memory, &context, difference)?;
            if count.steps == self.options.steps {
                break;
            }
        }
        Ok(())
    }
}

/// Pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

fn print_head() {
    println!(
        "{:>9} {:>9} {:>9} {:>10} {:>9} {:>7} {:>7}  program",
        "steps", "covered", "complete", "frames", "explained", "unexpl.", "steps/s"
    );
}

fn print_line(name: &str, count: &StepCounts, time: Duration) {
    println!(
        "{:9} {:9} {:9} {:10} {:9} {:7} {:7.0}  {name}",
        count.steps,
        count.covered,
        count.complete,
        count.frames,
        count.explained,
        count.unexplained,
        count.steps as f64 / time.as_secs_f64()
    );
}

fn print_kinds(count: &StepCounts) {
    if count.in_regions != 0 || !count.region_ends.is_empty() {
        println!(
            "  code made at run time: {} instructions and {} frames judged by calls, {} frames not judged; {} frame \
             pointers were objects that moved",
            count.steps_in_regions, count.in_regions, count.not_judged, count.objects
        );
        print_ends("ended in such code", &count.region_ends);
    }
    if count.in_loaded != 0 {
        println!(
            "  code with .eh_frame in memory: {} instructions and {} frames judged by .eh_frame, {} of them by calls, too",
            count.steps_in_loaded, count.in_loaded, count.loaded_by_calls
        );
    }
    if count.lost_fp != 0 {
        println!(
            "  frames whose frame pointer the walk knows to be lost: {}",
            count.lost_fp
        );
    }
    print_ends("ended early", &count.early_ends);
    for kind in count.kinds.values() {
        match kind.limit {
            Some(limit) => println!(
                "  explained, {} steps: {} at {}: {}",
                kind.steps,
                kind.class.name(),
                kind.place,
                limit.name
            ),
            None => print!("  UNEXPLAINED, {} steps: {}", kind.steps, kind.example),
        }
    }
}

/// Prints the places at which most walks ended.
fn print_ends(what: &str, places: &BTreeMap<String, u64>) {
    let mut ends: Vec<_> = places.iter().collect();
    ends.sort_by_key(|(_, steps)| std::cmp::Reverse(**steps));
    let all: u64 = places.values().sum();
    println!("  {all} walks {what}:");
    for (place, steps) in ends.iter().take(MOST_PLACES) {
        println!("{steps:9} {place}");
    }
}

fn to_json(name: &str, count: &StepCounts) -> Value {
    let kinds = count.kinds.values().map(|kind| {
        json!({
            "class": kind.class.name(),
            "place": kind.place,
            "steps": kind.steps,
            "limit": kind.limit.map(|limit| limit.name),
            "example": kind.example,
        })
    });
    let gaps = count
        .gaps
        .iter()
        .map(|((why, place), steps)| json!({ "why": why, "place": place, "steps": steps }));
    json!({
        "program": name,
        "steps": count.steps,
        "starts": count.starts,
        "threads": count.threads,
        "covered": count.covered,
        "complete": count.complete,
        "frames": count.frames,
        "frames_by": count.by,
        "frames_by_calls": count.called,
        "frames_in_regions": count.in_regions,
        "steps_in_regions": count.steps_in_regions,
        "presumed": count.presumed,
        "not_judged_in_regions": count.not_judged,
        "objects_in_regions": count.objects,
        "lost_frame_pointers": count.lost_fp,
        "frames_in_loaded": count.in_loaded,
        "frames_in_loaded_by_calls": count.loaded_by_calls,
        "steps_in_loaded": count.steps_in_loaded,
        "region_ends": count.region_ends,
        "early_ends": count.early_ends,
        "signals": count.signals,
        "ends": count.ends,
        "truth_unknown": gaps.collect::<Vec<_>>(),
        "without_rows": count.without_rows,
        "explained": count.explained,
        "unexplained": count.unexplained,
        "kinds": kinds.collect::<Vec<_>>(),
        "kernel": count.kernel.to_json(),
    })
}
