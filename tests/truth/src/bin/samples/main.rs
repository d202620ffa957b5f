// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Judges samples: whether the stack that the kernel reported is the one that .eh_frame tells of
//! that very sample's registers and stack.
//!
//! The recordings are those of tests/truth/recorder.c. It ends with a line
//! `truth: P programs, N samples, identical X %, false frames F, complete Y %`, and with status 0
//! only if the goals hold: 99.9 % identical as far as .sframe covers, and no sample with a false
//! frame. It is 2 if a recording cannot be read.

mod function_code;
mod judge;
mod recording;
mod report;
mod stack;

use std::{
    fs,
    path::PathBuf,
    process::ExitCode, //
};

use clap::Parser;

use judge::Judge;
use recording::Recording;
use report::Report;
use walk::walker::Walker;

/// Judges recorded samples: is the kernel's stack the one that .eh_frame tells?
#[derive(Parser)]
struct Arguments {
    /// What tests/truth/recorder has recorded.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where the programs and libraries are that were recorded.
    #[arg(long, default_value = "/")]
    root: PathBuf,
    /// FROM=TO: files whose names begin with FROM are at TO instead.
    #[arg(long, value_parser = translation)]
    map: Vec<(String, String)>,
    /// Of recordings whose names begin so, files that had no rows had been given some, as `sframectl
    /// watch` does.
    #[arg(long, value_name = "NAME")]
    converted: Option<String>,
    /// Where all figures go, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// How many stacks that are not true are shown of each program, context and kind.
    #[arg(long, default_value_t = 2)]
    show: usize,
    /// How many samples each program is to have in each context.
    #[arg(long, default_value_t = 1)]
    at_least: u64,
}

fn translation(text: &str) -> Result<(String, String), String> {
    let (from, to) = text
        .split_once('=')
        .ok_or("it has to be FROM=TO, two beginnings of paths")?;
    Ok((from.to_owned(), to.to_owned()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut judge = Judge::new(Walker::new());
    let mut judge_converted = Judge::new(Walker::with(truth::files::made));
    let mut report = Report::new(arguments.show);
    let mut unread = false;
    for path in &arguments.files {
        let judged = fs::read(path).map_err(|error| error.to_string());
        let judged = judged.and_then(|bytes| {
            let recording = Recording::parse(&bytes).map_err(|error| error.to_string())?;
            report.begin(path, &recording);
            let name = recording.name.as_deref().unwrap_or_default();
            let converted = arguments.converted.as_ref();
            let judge = match converted.is_some_and(|start| name.starts_with(start)) {
                true => &mut judge_converted,
                false => &mut judge,
            };
            judge.judge(
                &recording,
                &arguments.root,
                &arguments.map,
                |sample, finding| report.add(sample, finding),
            );
            Ok(())
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
