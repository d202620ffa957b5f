// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl`: shows, searches and checks the SFrame sections of files, makes such sections, and
//! gives them to the kernel.
//!
//! What a section says is decoded by the crate `sframe`, the very files that run in the kernel
//! module. This program finds sections in files, applies relocations, and prints. What .eh_frame says
//! is turned into a section by the crate `convert`, and given to the module by its device. The stack of
//! a task is walked by the crate `walk`.

mod add;
mod check;
mod convert;
mod device;
mod dump;
mod explain;
mod file;
mod lookup;
mod raw;
mod rows;
mod watch;
mod words;

use std::{
    io::{
        self,
        ErrorKind,
        Write, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process::ExitCode, //
};

use clap::{
    CommandFactory,
    Parser,
    Subcommand, //
};

use file::File;

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 the file cannot be read or is broken; 2 wrong use.

A section that is missing or of size zero is no error: there is nothing to show.";

const EXIT_CODES_LOOKUP: &str = "\
Exit codes: 0 there is a rule for each PC; 1 there is none for some, or the file cannot be read or
is broken; 2 wrong use.

A PC is a link-time address. A return address is to be asked for as the address before it, for the
call may be the last instruction of its function. In relocatable files (.o, ld -r) a number is an
offset in each section of code; SECTION+OFFSET tells them apart.";

const EXIT_CODES_CHECK: &str = "\
Exit codes: 0 nothing was found; 1 something was, or the file cannot be read; 2 wrong use.

Each line names the file, where it is (.sframe+OFFSET in the section, or an offset in the file), and
what is wrong. The last line is a summary.";

const EXIT_CODES_CONVERT: &str = "\
Exit codes: 0 the section was written; 1 the file cannot be read, or has nothing to make rows of, or
the section cannot be written; 2 wrong use.

Nothing is said otherwise than .eh_frame, or Go's own table, says it. Where a row cannot be said the section has no
function, and what is left out is counted by reason. Code without an entry is gone through by its
instructions, and said where all ways through it agree. What a program begins with, by hand and
without an entry, is said to have no caller.";

const EXIT_CODES_ADD: &str = "\
Exit codes: 0 success; 1 a file could not be added or removed, or the module is not loaded, or the
right to use it (CAP_PERFMON) is missing; 2 wrong use.

With --all, files of which there is nothing to add are no failure.";

const EXIT_CODES_EXPLAIN: &str = "\
Exit codes: 0 the stack is shown, whole or not; 1 the task cannot be stopped or read; 2 wrong use.

Addresses in parentheses are link-time addresses, which `lookup` and `dump` take.";

/// Shows, searches and checks the SFrame sections of files, makes such sections, and gives them to
/// the kernel module.
///
/// FILE is an ELF file (object file, program, shared library) or a bare section, of SFrame version
/// 1, 2 or 3, for AMD64, AArch64 or s390x.
#[derive(Parser)]
#[command(version, max_term_width = 100, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints all functions and rows, much as readelf does.
    ///
    /// Addresses are link-time addresses. In relocatable files (.o, ld -r) relocations are applied,
    /// and addresses are offsets in the section of code that the function is in. Of a bare section,
    /// and of an object file without relocations, addresses are counted from the section's start.
    #[command(after_help = EXIT_CODES)]
    Dump {
        /// The file to read.
        file: PathBuf,
        /// One line of JSON: addresses are numbers; a row's "pc" is an address for "pcinc", and an
        /// offset in the repeated block for "pcmask"; "cfa" and "fp" are null in the row of an
        /// outermost frame.
        #[arg(long)]
        json: bool,
    },
    /// Tells which rule holds at each PC, and where it comes from.
    #[command(after_help = EXIT_CODES_LOOKUP)]
    Lookup {
        /// The file to read.
        file: PathBuf,
        /// 0xHEX, a decimal number, SYMBOL or SYMBOL+OFFSET.
        #[arg(required = true, value_name = "PC")]
        pcs: Vec<String>,
    },
    /// Lists all that contradicts the format, itself, or the code of the file.
    #[command(after_help = EXIT_CODES_CHECK)]
    Check {
        /// The file to read.
        file: PathBuf,
    },
    /// Makes a bare section, version 3, of a file's .eh_frame, or of Go's own table. AMD64 only.
    ///
    /// It is as if it lay at address 0: `dump`, `lookup` and `check` take it, by link-time
    /// addresses. A row of .eh_frame that says the same as the one before, but for registers of
    /// which SFrame does not speak, counts as a row.
    #[command(after_help = EXIT_CODES_CONVERT)]
    Convert {
        /// The file to read: a program, a shared library, an image of the vDSO; - is standard input.
        file: PathBuf,
        /// Where to write the section; - is standard output, and nothing else is printed.
        #[arg(short, long, value_name = "OUT")]
        output: PathBuf,
        /// Where to write rows that a section cannot say, in the form that the module takes.
        #[arg(long, value_name = "ROWS")]
        extra_rows: Option<PathBuf>,
        /// Give up all rights that are not needed, as `add` and `watch` have it done.
        #[arg(long, hide = true)]
        confined: bool,
        /// One line of JSON: sizes in bytes, and what was not said, by reason.
        #[arg(long)]
        json: bool,
    },
    /// Gives the kernel rows made of .eh_frame, or of Go's own table, for files that have no section of their own.
    #[command(after_help = EXIT_CODES_ADD)]
    Add {
        /// The files to add.
        #[arg(required_unless_present_any = ["pid", "all", "vdso"])]
        files: Vec<PathBuf>,
        /// All files whose code this process has mapped.
        #[arg(long)]
        pid: Option<u32>,
        /// All files whose code any process has mapped.
        #[arg(long)]
        all: bool,
        /// The vDSO.
        #[arg(long)]
        vdso: bool,
        /// One line of JSON: file, and rows or error, of each.
        #[arg(long)]
        json: bool,
    },
    /// Takes rows away that were added, or that the kernel has made of a file's own section.
    #[command(after_help = EXIT_CODES_ADD)]
    Remove {
        /// The files whose rows are taken away.
        #[arg(required_unless_present = "vdso")]
        files: Vec<PathBuf>,
        /// The vDSO's.
        #[arg(long)]
        vdso: bool,
    },
    /// Shows one stack of a task as the module walks it: each frame, and the rule for it, and where that
    /// is from.
    ///
    /// The task is stopped for a moment, as by a debugger. The module need not be loaded: rows that a
    /// file lacks are made as `watch` makes them.
    #[command(after_help = EXIT_CODES_EXPLAIN)]
    Explain {
        /// A process, or one of its threads.
        pid: u32,
        /// One line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the files that the kernel has rows of, or knows to have none.
    #[command(after_help = EXIT_CODES_ADD)]
    List {
        /// One line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows the module's counters.
    #[command(after_help = EXIT_CODES_ADD)]
    Stats {
        /// One line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Writes manual pages, as `make tools` has it done.
    #[command(hide = true)]
    Man {
        /// Where they go.
        directory: PathBuf,
    },
    /// Adds rows of each file that the kernel meets in a stack and has none of, until it is ended.
    ///
    /// Says what it has added, and `idle` when nothing is left to do.
    #[command(after_help = EXIT_CODES_ADD)]
    Watch {
        /// A line of JSON for each file.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let (path, result) = match Arguments::parse().command {
        Command::Dump { file, json } => {
            let result = File::read(&file).and_then(|read| dump::run(&read, json));
            (file, result.map(|text| (text, true)))
        }
        Command::Lookup { file, pcs } => {
            let result = File::read(&file).and_then(|read| lookup::run(&read, &pcs));
            (file, result)
        }
        Command::Check { file } => {
            let result = File::read(&file).map(|read| check::run(&read, &file));
            (file, result)
        }
        Command::Convert {
            file,
            output,
            extra_rows,
            confined,
            json,
        } => {
            let result = convert::run(&file, &output, extra_rows.as_deref(), confined, json);
            (file, result.map(|text| (text, true)))
        }
        Command::Add {
            files,
            pid,
            all,
            vdso,
            json,
        } => {
            let which = add::Which {
                files: &files,
                pid,
                all,
                vdso,
            };
            ("add".into(), add::run(&which, json))
        }
        Command::Remove { files, vdso } => ("remove".into(), add::remove(&files, vdso)),
        Command::Explain { pid, json } => (
            format!("task {pid}").into(),
            explain::run(pid, json).map(|text| (text, true)),
        ),
        Command::List { json } => ("list".into(), add::list(json).map(|text| (text, true))),
        Command::Stats { json } => ("stats".into(), add::stats(json).map(|text| (text, true))),
        Command::Man { directory } => {
            let result = clap_mangen::generate_to(Arguments::command(), &directory)
                .map(|()| (String::new(), true))
                .map_err(|error| error.to_string());
            (directory, result)
        }
        Command::Watch { json } => (
            "watch".into(),
            watch::run(json).map(|()| (String::new(), true)),
        ),
    };
    match result {
        Ok((text, good)) => print(&text, good),
        Err(what) => fail(&path, &what),
    }
}

/// Prints `text`; the exit code tells whether all was good.
fn print(text: &str, good: bool) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // Who reads no further, as head does, has what was wanted.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            fail(Path::new("standard output"), &error.to_string())
        }
        _ if good => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn fail(path: &Path, what: &str) -> ExitCode {
    // Where not even that can be said, the exit code has to do.
    let _ = writeln!(io::stderr(), "sframectl: {}: {what}", path.display());
    ExitCode::FAILURE
}
