// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl`: shows, searches and checks the SFrame sections of files, makes such sections, and
//! gives them to the kernel.
//!
//! The crate `sframe` decodes sections; the kernel module is built from its files, too. This
//! program finds sections in files, applies relocations, and prints. The crate `convert` makes a
//! section from .eh_frame; the module's device takes it. The crate `walk` walks the stack of a
//! task.

#![deny(unsafe_code)]

mod add;
mod check;
mod child;
mod code;
mod config;
mod confine;
mod convert;
mod device;
mod doctor;
mod dump;
mod exit;
mod explain;
mod file;
mod judge;
mod lookup;
mod metrics;
mod parallel;
mod prepare;
mod raw;
mod readelf_notation;
mod rows;
mod selftest;
mod state;
mod status;
mod urgency;
mod watch;

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
use clap_complete::Shell;

use exit::CommandError;
use file::InputFile;

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 the file cannot be read or is invalid; 2 wrong usage.

A missing or empty section is not an error: the command prints nothing.";

const EXIT_CODES_LOOKUP: &str = "\
Exit codes: 0 every PC has a rule; 1 a PC has no rule, or the file cannot be read or is invalid;
2 wrong usage.

A PC is a link-time address. To look up a return address, give the address one byte before it: the
call may be the last instruction of its function. In relocatable files (.o, ld -r) a number is an
offset in every section of code; SECTION+OFFSET selects one section.";

const EXIT_CODES_CHECK: &str = "\
Exit codes: 0 no findings; 1 findings, or the file cannot be read; 2 wrong usage.

Each line names the file, the position (.sframe+OFFSET in the section, or an offset in the file), and
the fault. The last line is a summary.";

const EXIT_CODES_CONVERT: &str = "\
Exit codes: 0 the section was written; 1 the file cannot be read, or no rows can be made from it, or
the section cannot be written; 2 wrong usage.

Each row encodes exactly the rule of .eh_frame, or of Go's pclntab. A row that SFrame cannot encode is
dropped: the section has no function there, and dropped rows are counted by reason. For code without an
.eh_frame entry the instructions are analysed; rows are made where all paths through the code agree. A
program's entry point that is written in assembly, without an entry, gets an outermost row.";

const EXIT_CODES_ADD: &str = "\
Exit codes: 0 success; 1 a file could not be added or removed, or the module does not answer;
2 wrong usage; 3 the module is not loaded; 4 CAP_PERFMON is missing; 5 the module is of another
version; 7 the configuration file is invalid.

With --all, a file from which no rows can be made is not a failure.";

const EXIT_CODES_WATCH: &str = "\
Exit codes: 0 never, the command ends by a signal or an error; 1 the device cannot be read; 2 wrong
usage; 3 the module is not loaded; 4 CAP_PERFMON is missing; 5 the module is of another version;
7 the configuration file is invalid.
A panic ends the command by SIGABRT.";

const EXIT_CODES_STATUS: &str = "\
Exit codes: 0 the state is shown; 1 it cannot be printed; 2 wrong usage; 4 the caller is not root;
6 `sframectl watch` does not run, or does not answer.";

const EXIT_CODES_PREPARE: &str = "\
Exit codes: 0 success; 1 the cache cannot be read or written; 2 wrong usage; 7 the configuration
file is invalid.";

const EXIT_CODES_CACHE: &str = "\
Exit codes: 0 success; 1 a file cannot be removed; 2 wrong usage.";

const EXIT_CODES_DOCTOR: &str = "\
Exit codes: 0 no requirement is missing; 1 a requirement is missing; 2 wrong usage.";

const EXIT_CODES_SELFTEST: &str = "\
Exit codes: 0 all modes passed; 1 a mode failed, the kernel warned, or the test cannot be run here;
2 wrong usage.";

const EXIT_CODES_RUNTIME: &str = "\
Exit codes: 0 the code is shown, or no runtime is known; 1 the process cannot be read, or is not what it
seems to be; 2 wrong usage.";

const EXIT_CODES_EXPLAIN: &str = "\
Exit codes: 0 the stack is shown, complete or not; 1 the task cannot be stopped or read; 2 wrong
usage; 7 the configuration file is invalid.

Addresses in parentheses are link-time addresses, as in `lookup` and `dump`.";

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
    /// The configuration file; for tests.
    #[arg(long, global = true, default_value = config::PATH, hide = true)]
    config: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Prints all functions and rows, in readelf's notation.
    ///
    /// Addresses are link-time addresses. In relocatable files (.o, ld -r) relocations are applied,
    /// and addresses are offsets in the section of code that the function is in. For a bare
    /// section, and for an object file without relocations, addresses are relative to the section's
    /// start.
    #[command(after_help = EXIT_CODES)]
    Dump {
        /// The file to read.
        file: PathBuf,
        /// Prints one line of JSON: addresses are numbers; a row's "pc" is an address for "pcinc",
        /// and an offset in the repeated block for "pcmask"; "cfa" and "fp" are null in the row of
        /// an outermost frame.
        #[arg(long)]
        json: bool,
    },
    /// Shows the rule for each PC, and the row that the rule comes from.
    #[command(after_help = EXIT_CODES_LOOKUP)]
    Lookup {
        /// The file to read.
        file: PathBuf,
        /// 0xHEX, a decimal number, SYMBOL or SYMBOL+OFFSET.
        #[arg(required = true, value_name = "PC")]
        pcs: Vec<String>,
    },
    /// Lists violations of the format, contradictions in the section, and rows that contradict the
    /// code.
    #[command(after_help = EXIT_CODES_CHECK)]
    Check {
        /// The file to read.
        file: PathBuf,
    },
    /// Makes a bare section, version 3, from a file's .eh_frame or Go's pclntab. AMD64 only.
    ///
    /// The section's address is 0, so `dump`, `lookup` and `check` take the file's link-time
    /// addresses. An .eh_frame row counts as a row even if it differs from the row before it only
    /// in registers that SFrame does not describe.
    #[command(after_help = EXIT_CODES_CONVERT)]
    Convert {
        /// The file to read: a program, a shared library, or an image of the vDSO; - is standard
        /// input.
        file: PathBuf,
        /// The file to write the section to; - is standard output, and then no report is printed.
        #[arg(short, long, value_name = "OUT")]
        output: PathBuf,
        /// The file to write extra rows to: rows that a section cannot encode, in the module's
        /// format.
        #[arg(long, value_name = "ROWS")]
        extra_rows: Option<PathBuf>,
        /// Drops all privileges that are not needed; `add` and `watch` call it so.
        #[arg(long, hide = true)]
        confined: bool,
        /// Prints one line of JSON: sizes in bytes, and the dropped rows by reason.
        #[arg(long)]
        json: bool,
    },
    /// Gives the kernel rows made from .eh_frame or Go's pclntab, for files without an SFrame
    /// section.
    #[command(after_help = EXIT_CODES_ADD)]
    Add {
        /// The files to add.
        #[arg(required_unless_present_any = ["pid", "all", "vdso"])]
        files: Vec<PathBuf>,
        /// Adds all files that this process has mapped executable.
        #[arg(long)]
        pid: Option<u32>,
        /// Adds all files that any process has mapped executable.
        #[arg(long)]
        all: bool,
        /// Adds the vDSO.
        #[arg(long)]
        vdso: bool,
        /// Prints one line of JSON: for each file its name, and its number of rows or an error.
        #[arg(long)]
        json: bool,
    },
    /// Removes rows that were added, or that the kernel has read from a file's own section.
    #[command(after_help = EXIT_CODES_ADD)]
    Remove {
        /// The files whose rows are removed.
        #[arg(required_unless_present = "vdso")]
        files: Vec<PathBuf>,
        /// Removes the vDSO's rows.
        #[arg(long)]
        vdso: bool,
    },
    /// Manages the rows that `watch` and `prepare` keep in /var/cache/sframe_unwind.
    #[command(after_help = EXIT_CODES_CACHE)]
    Cache {
        #[command(subcommand)]
        command: CacheCommand,
    },
    /// Lists missing requirements for complete stacks, and a command for each.
    ///
    /// `ok`: the requirement is met. `note`: root's stacks are complete all the same. `MISSING`:
    /// stacks are not complete. Root also sees other users of the module's hook, and the state of
    /// the running `watch`.
    #[command(after_help = EXIT_CODES_DOCTOR)]
    Doctor {
        /// Prints one line of JSON: for each finding its state (good, note or missing), what was
        /// found, and what to do.
        #[arg(long)]
        json: bool,
        /// The directory that the machine's files lie in; for tests.
        #[arg(long, default_value = "/", hide = true)]
        root: PathBuf,
    },
    /// Shows one stack of a task as the module walks it: each frame, its rule, and the rule's
    /// source.
    ///
    /// The task is stopped for a moment, as by a debugger. The module need not be loaded: files
    /// without rows are converted as by `watch`.
    #[command(after_help = EXIT_CODES_EXPLAIN)]
    Explain {
        /// A process, or one of its threads.
        pid: u32,
        /// Prints one line of JSON.
        #[arg(long)]
        json: bool,
        /// Writes the stack to a file, with all that the walk has read, for a report of a wrong
        /// stack. The file contains words of the task's stack: look at it before you publish it.
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
    },
    /// Lists the files that the kernel has rows for, or has recorded as having none.
    #[command(after_help = EXIT_CODES_ADD)]
    List {
        /// Prints one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes the rows of all installed programs and libraries, for `watch`. The packages call it.
    ///
    /// The first stacks of a program are complete sooner if its files were converted before. The
    /// rows are in /var/cache/sframe_unwind; the kernel gets them when the files are seen in a
    /// stack. Converts only files that are new since the last call.
    #[command(after_help = EXIT_CODES_PREPARE)]
    Prepare {
        /// The directory that the machine's files lie in; for tests.
        #[arg(long, default_value = "/", hide = true)]
        root: PathBuf,
    },
    /// Shows the code that a process makes at run time, as `watch` tells it to the kernel.
    ///
    /// Prints a line for each region of the code. Known runtimes are HotSpot (the Java virtual
    /// machine of OpenJDK), Erlang, LuaJIT, QEMU's user-mode emulation, PyPy, Guile and Ruby's
    /// RJIT; and all that have `.eh_frame` beside their code.
    #[command(after_help = EXIT_CODES_RUNTIME)]
    Runtime {
        /// The process.
        pid: u32,
        /// Answers `watch` about the mapping with these addresses, by standard input and output,
        /// without privileges. The code with rows whose contents have one of the other numbers is
        /// not converted.
        #[arg(long, hide = true, num_args = 2.., value_names = ["START", "END"])]
        confined: Option<Vec<u64>>,
    },
    /// Records a demo program on this machine in all modes that it has, and checks every stack.
    ///
    /// Prints a report for the maintainers: kernel, CPU, compiler, figures, and properties that
    /// only hardware can confirm. If the module is not loaded, `selftest` loads the module, and
    /// unloads it at the end. Needs root and perf.
    #[command(after_help = EXIT_CODES_SELFTEST)]
    Selftest,
    /// Shows the state of the running `sframectl watch`.
    ///
    /// Shows versions, hooks, tables, memory, jobs that wait, are stuck or were dropped, answers,
    /// the cache, and the last error. Only root may ask.
    #[command(after_help = EXIT_CODES_STATUS)]
    Status {
        /// Prints one line of JSON.
        #[arg(long)]
        json: bool,
        /// The directory that the machine's files lie in; for tests.
        #[arg(long, default_value = "/", hide = true)]
        root: PathBuf,
    },
    /// Shows the module's counters.
    #[command(after_help = EXIT_CODES_ADD)]
    Stats {
        /// Prints one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Writes manual pages; `make tools` calls it.
    #[command(hide = true)]
    Man {
        /// The directory to write to.
        directory: PathBuf,
    },
    /// Writes completions for bash, zsh and fish; the packages have them.
    #[command(hide = true)]
    Completions {
        /// The directory to write to.
        directory: PathBuf,
    },
    /// Adds rows for each file that the kernel has seen in a stack and has no rows for. Runs until
    /// killed.
    ///
    /// Prints each file that it has added, and `idle` when no file is left to convert. In the
    /// journal, lines have priorities: 3 errors of the command itself, 4 failures of files and
    /// processes, 5 files without rows, 6 answers, 7 `idle`.
    #[command(after_help = EXIT_CODES_WATCH)]
    Watch {
        /// Prints lines of JSON. Their fields `version` and `type` say which other fields there
        /// are.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
enum CacheCommand {
    /// Removes all rows. `watch` and `prepare` make them again; the kernel keeps those that it has.
    #[command(after_help = EXIT_CODES_CACHE)]
    Clear,
}

impl Command {
    /// Whether the command converts files for the module or for the cache.
    fn needs_configuration(&self) -> bool {
        matches!(
            self,
            Command::Add { .. }
                | Command::Explain { .. }
                | Command::Prepare { .. }
                | Command::Watch { .. }
        )
    }
}

fn main() -> ExitCode {
    let Arguments { command, config } = Arguments::parse();
    let (path, result) = match command.needs_configuration().then(|| config::load(&config)) {
        Some(Err(error)) => ("configuration".into(), Err(error)),
        _ => run(command),
    };
    match result {
        Ok((text, good)) => print(&text, good),
        Err(error) => fail(&path, &error),
    }
}

/// Runs a command. Returns what messages name, and the text to print, and whether the exit code is
/// success.
fn run(command: Command) -> (PathBuf, Result<(String, bool), CommandError>) {
    let (path, result) = match command {
        Command::Dump { file, json } => {
            let result = InputFile::read(&file).and_then(|read| dump::run(&read, json));
            (file, result.map(|text| (text, true)))
        }
        Command::Lookup { file, pcs } => {
            let result = InputFile::read(&file).and_then(|read| lookup::run(&read, &pcs));
            (file, result)
        }
        Command::Check { file } => {
            let result = InputFile::read(&file).map(|read| check::run(&read, &file));
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
            return ("add".into(), add::run(&which, json));
        }
        Command::Cache {
            command: CacheCommand::Clear,
        } => ("the cache".into(), rows::clear().map(|text| (text, true))),
        Command::Remove { files, vdso } => return ("remove".into(), add::remove(&files, vdso)),
        Command::Doctor { json, root } => ("doctor".into(), doctor::run(&root, json)),
        Command::Explain { pid, json, save } => (
            format!("task {pid}").into(),
            explain::run(pid, json, save.as_deref()).map(|text| (text, true)),
        ),
        Command::List { json } => {
            return ("list".into(), add::list(json).map(|text| (text, true)));
        }
        Command::Prepare { root } => (
            "prepare".into(),
            prepare::run(&root).map(|text| (text, true)),
        ),
        Command::Runtime { pid, confined } => {
            let result = match confined.as_deref() {
                Some([start, end, known @ ..]) => code::answer_confined(pid, *start, *end, known),
                _ => code::show(pid),
            };
            (
                format!("process {pid}").into(),
                result.map(|text| (text, true)),
            )
        }
        Command::Selftest => ("selftest".into(), selftest::selftest()),
        Command::Status { json, root } => return ("status".into(), status::run(&root, json)),
        Command::Stats { json } => {
            return ("stats".into(), add::stats(json).map(|text| (text, true)));
        }
        Command::Man { directory } => {
            let result = clap_mangen::generate_to(Arguments::command(), &directory)
                .map(|()| (String::new(), true))
                .map_err(|error| error.to_string());
            (directory, result)
        }
        Command::Completions { directory } => {
            let result = completions(&directory)
                .map(|()| (String::new(), true))
                .map_err(|error| error.to_string());
            (directory, result)
        }
        Command::Watch { json } => {
            let ended = watch::run(json).map(|()| (String::new(), true));
            return ("watch".into(), ended);
        }
    };
    (path, result.map_err(CommandError::from))
}

fn completions(directory: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Arguments::command(), "sframectl", directory)?;
    }
    Ok(())
}

/// Prints `text`. The exit code is success if `good`.
fn print(text: &str, good: bool) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // A reader that closes the pipe early, like head, is not an error.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            fail(Path::new("standard output"), &error.to_string().into())
        }
        _ if good => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn fail(path: &Path, CommandError { reason, text }: &CommandError) -> ExitCode {
    // If stderr cannot be written to, only the exit code reports the failure.
    let _ = writeln!(io::stderr(), "sframectl: {}: {text}", path.display());
    ExitCode::from(*reason)
}
