// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl explain`: the stack of a task, frame by frame, as the module walks it, and by what.
//!
//! The task stands still for as long as it takes to read its registers, its mappings and some words
//! of its stack. What a file's rows have to be made of first is made while it runs, and then the
//! task is asked again.

use std::{
    cell::RefCell,
    collections::HashMap,
    fmt::Write as _,
    fs,
    io::ErrorKind,
    os::unix::fs::FileExt,
    rc::Rc, //
};

use nix::{
    errno::Errno,
    sys::{
        ptrace,
        signal::Signal,
        wait::{
            waitpid,
            WaitPidFlag,
            WaitStatus, //
        }, //
    },
    unistd::Pid, //
};
use serde::Serialize;
use sframe::{
    abi::Abi,
    bytes::Fault,
    stop_reason::StopReason,
    unwind::Memory,
    walk::{
        FrameSource,
        RuleOrigin, //
    }, //
};
use walk::{
    process::{
        File,
        Files,
        Process, //
    },
    registers::Registers,
    walker::{
        Found,
        Made,
        Walker, //
    }, //
};

use crate::{
    add,
    rows,
    words::Words, //
};

/// The segment of 64-bit code.
const CODE_64: u64 = 0x33;
/// How often a task is asked again because it has come to other files.
const MAX_ASKED: usize = 50;

/// Rows that were made, by the number of the file.
type Known = Rc<RefCell<HashMap<usize, Option<Made>>>>;

/// A task that stands still. It goes on when this is dropped.
struct Stopped {
    task: Pid,
    /// What was about to be delivered to it.
    signal: Option<Signal>,
}

impl Stopped {
    fn new(number: u32) -> Result<Stopped, String> {
        let task = Pid::from_raw(i32::try_from(number).map_err(|_| "there is no such task")?);
        ptrace::seize(task, ptrace::Options::empty()).map_err(|error| match error {
            Errno::ESRCH => "there is no such task".to_owned(),
            Errno::EPERM => {
                "it may not be stopped: that takes root (CAP_SYS_PTRACE), and no debugger \
                             may have it already"
                    .to_owned()
            }
            error => format!("cannot be stopped: {error}"),
        })?;
        ptrace::interrupt(task).map_err(|error| format!("cannot be stopped: {error}"))?;
        match waitpid(task, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Stopped(_, signal)) => Ok(Stopped {
                task,
                signal: Some(signal),
            }),
            Ok(WaitStatus::PtraceEvent(..)) => Ok(Stopped { task, signal: None }),
            Ok(_) => Err("it has ended meanwhile".to_owned()),
            Err(error) => Err(format!("cannot be waited for: {error}")),
        }
    }

    fn registers(&self) -> Result<Registers, String> {
        let all = ptrace::getregs(self.task).map_err(|error| format!("registers: {error}"))?;
        if all.cs != CODE_64 {
            return Err("it runs 32-bit code, of which nothing is known".to_owned());
        }
        Ok(Registers::new([
            all.rax, all.rdx, all.rcx, all.rbx, all.rsi, all.rdi, all.rbp, all.rsp, all.r8, all.r9,
            all.r10, all.r11, all.r12, all.r13, all.r14, all.r15, all.rip,
        ]))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Where it has ended meanwhile there is nothing to let go.
        let _ = ptrace::detach(self.task, self.signal);
    }
}

/// The memory of a task.
struct Live(fs::File);

impl Memory for Live {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let mut word = [0; 8];
        match self.0.read_exact_at(&mut word, address) {
            Ok(()) => Ok(u64::from_le_bytes(word)),
            Err(_) => Err(Fault),
        }
    }
}

/// A stack, and what it was taken from.
struct Stack {
    process: Process,
    walker: Walker,
    frames: Vec<Found>,
    end: StopReason,
}

#[derive(Serialize)]
struct Explained {
    task: u32,
    name: String,
    frames: Vec<Frame>,
    end: &'static str,
    complete: bool,
}

#[derive(Serialize)]
struct Frame {
    pc: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// Link-time address.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    /// By what its caller was found.
    by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// Link-time addresses: where the row begins, and its function.
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row_function: Option<u64>,
}

/// Explains the stack of the task of this number, a process or one of its threads.
pub(crate) fn run(task: u32, json: bool) -> Result<String, String> {
    let mut stack = walked(task)?;
    let frames = (0..stack.frames.len()).map(|index| frame(&mut stack, index));
    let frames = frames.collect();
    let name = fs::read_to_string(format!("/proc/{task}/comm")).unwrap_or_default();
    let explained = Explained {
        task,
        name: name.trim_end().to_owned(),
        frames,
        end: stack.end.as_str(),
        complete: stack.end == StopReason::Outermost,
    };
    if json {
        let text = serde_json::to_string(&explained).map_err(|error| error.to_string())?;
        return Ok(text + "\n");
    }
    Ok(told(&explained, stack.end))
}

fn walked(task: u32) -> Result<Stack, String> {
    let read = |files: &mut Files| {
        Process::read(task, files).map_err(|error| match error.kind() {
            ErrorKind::NotFound => "there is no such task".to_owned(),
            _ => format!("/proc/{task}/maps: {error}"),
        })
    };
    let mut files = Files::new();
    // What is read once need not be read while the task waits.
    if read(&mut files)?.mappings().is_empty() {
        return Err("it has no user stack: it is a kernel thread, or has ended".to_owned());
    }
    let known = Known::default();
    for _ in 0..MAX_ASKED {
        let missing = Rc::new(RefCell::new(Vec::new()));
        let (its_known, its_missing) = (known.clone(), missing.clone());
        let mut walker = Walker::with(move |file| match its_known.borrow().get(&file.number) {
            Some(made) => *made,
            None => {
                its_missing.borrow_mut().push(file);
                None
            }
        });
        let mut frames = Vec::new();
        let stopped = Stopped::new(task)?;
        let process = read(&mut files)?;
        let memory = fs::File::open(format!("/proc/{task}/mem"))
            .map_err(|error| format!("/proc/{task}/mem: {error}"))?;
        let registers = stopped.registers()?;
        let end = walker.walk(&process, &registers, &Live(memory), &mut frames);
        drop(stopped);
        if missing.borrow().is_empty() {
            return Ok(Stack {
                process,
                walker,
                frames,
                end,
            });
        }
        for file in missing.take() {
            let made = made(file);
            if let Err(error) = &made {
                add::complain(&file.path.display().to_string(), error);
            }
            known.borrow_mut().insert(file.number, made.ok());
        }
    }
    Err(format!(
        "it came to files that were not known {MAX_ASKED} times"
    ))
}

/// The rows that `watch` would give the module.
fn made(file: &File) -> Result<Made, String> {
    let rows = match &file.open {
        Some(open) => rows::rows_of(open)?,
        None => rows::rows_of_image(file.bytes)?,
    };
    Ok(Made {
        section: rows.section.leak(),
        extra_rows: rows.extra_rows.leak(),
    })
}

fn frame(stack: &mut Stack, index: usize) -> Frame {
    let found = stack.frames[index];
    let mapping = stack.process.at(found.at);
    let place = mapping.and_then(|mapping| mapping.link_address(found.at));
    let by = match (found.rule, stack.frames.get(index + 1)) {
        (Some((_, RuleOrigin::Section)), _) => "section",
        (Some((_, RuleOrigin::Table)), _) => "made",
        (Some((_, RuleOrigin::ExtraRow)), _) => "extra row",
        (Some((_, RuleOrigin::PltStub)), _) => "plt-stub",
        (Some((_, RuleOrigin::SignalTrampoline)), _) => "signal-trampoline",
        (Some((_, RuleOrigin::Clone)), _) => "clone",
        (None, Some(next)) if next.source == FrameSource::FramePointer => "frame-pointer",
        (None, _) => "nothing",
    };
    let row = match found.rule {
        Some((_, RuleOrigin::Section | RuleOrigin::Table)) => {
            mapping.and_then(|mapping| stack.walker.row_at(found.at, mapping))
        }
        _ => None,
    };
    Frame {
        pc: found.frame.pc,
        file: mapping.map(|mapping| match &*mapping.name {
            "" => "[anonymous]".to_owned(),
            name => name.to_owned(),
        }),
        address: place.map(|(_, link)| link + (found.frame.pc - found.at)),
        function: place.and_then(|(file, link)| {
            let (name, offset) = file.function_at(link)?;
            Some(format!(
                "{name}+{:#x}",
                offset + (found.frame.pc - found.at)
            ))
        }),
        by,
        rule: found.rule.map(|(rule, _)| {
            let words = Words::of_rule(Abi::Amd64, &rule);
            match (words.cfa, words.fp) {
                (Some(cfa), Some(fp)) => format!("cfa {cfa}, fp {fp}, ra {}", words.ra),
                _ => words.ra,
            }
        }),
        row: row.map(|(_, row)| row),
        row_function: row.map(|(function, _)| function),
    }
}

fn told(explained: &Explained, end: StopReason) -> String {
    let Explained { task, name, .. } = explained;
    let mut text = format!("task {task} ({name}):\n");
    for (index, frame) in explained.frames.iter().enumerate() {
        let file = frame.file.as_deref().unwrap_or("?");
        let base = file.rsplit('/').next().unwrap_or(file);
        let _ = write!(text, "{index:>3}  {:#018x}  {base}", frame.pc);
        let _ = match (&frame.function, frame.address) {
            (Some(function), Some(address)) => writeln!(text, ":{function} ({address:#x})"),
            (None, Some(address)) => writeln!(text, " {address:#x}"),
            _ => writeln!(text),
        };
        let by = match frame.by {
            "section" => "of the file's .sframe",
            "made" => "made of .eh_frame, or of what the file has instead",
            "extra row" => "made of .eh_frame; no section can say it",
            "plt-stub" => "by the instructions of a PLT's stub",
            "signal-trampoline" => "by the instructions of a signal's trampoline",
            "clone" => "by the instructions behind the system call",
            "frame-pointer" => "no row: by the frame pointer, which the code around it proves",
            _ => "no row",
        };
        let _ = match (&frame.rule, frame.row, frame.row_function) {
            (Some(rule), Some(row), Some(function)) => writeln!(
                text,
                "     {rule}: row from {row:#x} of the function at {function:#x}, {by}"
            ),
            (Some(rule), ..) => writeln!(text, "     {rule}: {by}"),
            (None, ..) => writeln!(text, "     {by}"),
        };
    }
    let _ = writeln!(text, "{end}: {}", end.meaning());
    if !end.advice().is_empty() {
        let _ = writeln!(text, "{}", end.advice());
    }
    text
}
