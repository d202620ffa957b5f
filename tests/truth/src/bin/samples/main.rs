// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compares the stack that the kernel reported for each sample with the stack by .eh_frame from the
//! sample's registers and stack copy.
//!
//! The recordings are those of tests/truth/recorder.c. The last line of output is `truth: P
//! programs, N samples, identical X %, false frames F, complete Y %`, and the exit status is 0 only
//! if the goals hold: 99.9 % identical as far as .sframe covers, and no sample with a false frame.
//! It is 2 if a recording cannot be read.

mod beside;
mod function_code;
mod judge;
mod recording;
mod report;
mod stack;

use std::{
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::ExitCode, //
};

use clap::Parser;

use beside::BesideKernel;
use judge::SampleJudge;
use recording::Recording;
use report::SampleReport;
use walk::walker::Walker;

/// Compares the kernel's stacks in recordings with the stacks by .eh_frame
#[derive(Parser)]
struct SamplesArguments {
    /// Recordings of tests/truth/recorder
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The directory with the recorded programs and libraries
    #[arg(long, default_value = "/")]
    root: PathBuf,
    /// FROM=TO: reads files whose names begin with FROM at TO instead
    #[arg(long, value_parser = translation)]
    map: Vec<(String, String)>,
    /// In recordings whose names begin so, files without rows were converted, as by `sframectl
    /// watch`
    #[arg(long, value_name = "NAME")]
    converted: Option<String>,
    /// The file to write all figures to, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// The maximum number of false stacks that are shown for each program, context and kind
    #[arg(long, default_value_t = 2)]
    show: usize,
    /// Only compares each stack with the kernel's own walk of the stack copy. In each recording the
    /// module may be worse in one of this many samples
    #[arg(long, value_name = "SAMPLES")]
    beside_kernel: Option<u64>,
    /// The minimum number of samples of each program in each context
    #[arg(long, default_value_t = 1)]
    at_least: u64,
}

fn translation(text: &str) -> Result<(String, String), String> {
    let (from, to) = text
        .split_once('=')
        .ok_or("it has to be FROM=TO, two beginnings of paths")?;
    Ok((from.to_owned(), to.to_owned()))
}

/// Calls `judge` with the recording in a file.
///
/// # Errors
///
/// The file cannot be read, or is no recording.
fn with_recording<T>(path: &Path, judge: impl FnOnce(&Recording<'_>) -> T) -> Result<T, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let recording = Recording::parse(&bytes).map_err(|error| error.to_string())?;
    Ok(judge(&recording))
}

/// Compares the stacks of recordings with the kernel's own.
fn compare_with_kernel(arguments: &SamplesArguments, share: u64) -> ExitCode {
    let mut all_hold = true;
    for path in &arguments.files {
        match with_recording(path, BesideKernel::of) {
            Ok(compared) => {
                println!("{compared}");
                all_hold &= compared.holds(share, arguments.at_least);
            }
            Err(error) => {
                eprintln!("samples: {}: {error}", path.display());
                return ExitCode::from(2);
            }
        }
    }
    match all_hold {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn main() -> ExitCode {
    let arguments = SamplesArguments::parse();
    if let Some(share) = arguments.beside_kernel {
        return compare_with_kernel(&arguments, share);
    }
    let mut judge = SampleJudge::new(Walker::new());
    let mut judge_converted = SampleJudge::new(Walker::with(truth::files::made));
    let mut report = SampleReport::new(arguments.show);
    let mut unread = false;
    for path in &arguments.files {
        let judged = with_recording(path, |recording| {
            report.begin(path, recording);
            let name = recording.name.as_deref().unwrap_or_default();
            let converted = arguments.converted.as_ref();
            let judge = match converted.is_some_and(|start| name.starts_with(start)) {
                true => &mut judge_converted,
                false => &mut judge,
            };
            judge.judge(
                recording,
                &arguments.root,
                &arguments.map,
                |sample, finding| report.add(sample, finding),
            );
        });
        if let Err(error) = judged {
            eprintln!("samples: {}: {error}", path.display());
            unread = true;
        }
    }
    print!("{}", report.text());
    if let Some(path) = &arguments.json {
        if let Err(error) = fs::write(path, format!("{:#}\n", report.json())) {
            eprintln!("samples: {}: {error}", path.display());
            return ExitCode::from(2);
        }
    }
    let missed = report.missed(arguments.at_least);
    for goal in &missed {
        println!("missed: {goal}");
    }
    println!("{}", report.line());
    if unread {
        ExitCode::from(2)
    } else if missed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
