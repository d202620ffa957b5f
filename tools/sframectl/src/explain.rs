// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl explain`: the stack of a task as the module walks it, with each frame's rule and the
//! rule's source.
//!
//! The task is stopped while its registers, its mappings and some words of its stack are read. A
//! file without rows is converted while the task runs; then the task is stopped and walked anew.

use std::{
    cell::RefCell,
    collections::HashMap,
    fmt::Write as _,
    fs,
    io::ErrorKind,
    mem,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    rc::Rc,
    thread,
    time::{
        Duration,
        Instant, //
    }, //
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
use runtimes::{
    Code,
    CodeObject, //
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
        CodeLayout,
        CodeRegion,
        Files,
        MappedFile,
        Process, //
    },
    registers::RegisterFile,
    snapshot::{
        self,
        Snapshot, //
    },
    walker::{
        MadeSection,
        WalkedFrame,
        Walker, //
    }, //
};

use crate::{
    add,
    code,
    readelf_notation::RuleText,
    rows::{
        self,
        ConvertedRows, //
    }, //
};

/// The segment of 64-bit code.
const CODE_64: u64 = 0x33;
/// The time that a task has to stop. A task in an uninterruptible system call does not stop before
/// the end of the call. When this program ends, the kernel detaches it from that task.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// The maximum number of walks of one task. Each walk but the last ends at a file without a table.
const MAX_ATTEMPTS: usize = 50;

/// Converted rows by file number; `None` for a file that cannot be converted.
type ConvertedFiles = Rc<RefCell<HashMap<usize, Option<MadeSection>>>>;

/// A stopped task. Dropping this resumes the task.
struct Stopped {
    task: Pid,
    /// The signal that was about to be delivered to the task. The resume delivers it.
    signal: Option<Signal>,
}

impl Stopped {
    fn new(number: u32) -> Result<Stopped, String> {
        let task = Pid::from_raw(i32::try_from(number).map_err(|_| "there is no such task")?);
        ptrace::seize(task, ptrace::Options::empty()).map_err(|error| match error {
            Errno::ESRCH => "there is no such task".to_owned(),
            Errno::EPERM => {
                "cannot be stopped: run as root (CAP_SYS_PTRACE), and detach any debugger \
                             from it"
                    .to_owned()
            }
            error => format!("cannot be stopped: {error}"),
        })?;
        ptrace::interrupt(task).map_err(|error| format!("cannot be stopped: {error}"))?;
        match wait_for_stop(task)? {
            WaitStatus::Stopped(_, signal) => Ok(Stopped {
                task,
                signal: Some(signal),
            }),
            WaitStatus::PtraceEvent(..) => Ok(Stopped { task, signal: None }),
            WaitStatus::StillAlive => Err(format!(
                "has not stopped within {} seconds: it is in a system call that the kernel does \
                 not interrupt, such as vfork before the child ends or runs another program",
                STOP_LIMIT.as_secs()
            )),
            _ => Err("the task has exited".to_owned()),
        }
    }

    fn registers(&self) -> Result<RegisterFile, String> {
        let all = ptrace::getregs(self.task)
            .map_err(|error| format!("cannot read the registers: {error}"))?;
        if all.cs != CODE_64 {
            return Err("the task runs 32-bit code, which is not supported".to_owned());
        }
        Ok(RegisterFile::new([
            all.rax, all.rdx, all.rcx, all.rbx, all.rsi, all.rdi, all.rbp, all.rsp, all.r8, all.r9,
            all.r10, all.r11, all.r12, all.r13, all.r14, all.r15, all.rip,
        ]))
    }
}

/// Waits until a task has stopped or exited, for [`STOP_LIMIT`] at most.
fn wait_for_stop(task: Pid) -> Result<WaitStatus, String> {
    let begun = Instant::now();
    loop {
        let status = waitpid(task, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG))
            .map_err(|error| format!("cannot be waited for: {error}"))?;
        if status != WaitStatus::StillAlive || begun.elapsed() >= STOP_LIMIT {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Detaching fails only if the task has exited.
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

/// A walked stack, with the process and the walker of the walk.
struct StoppedStack {
    process: Process,
    walker: Walker,
    frames: Vec<WalkedFrame>,
    stop_reason: StopReason,
    /// The snapshot of the stack, or why there is none; `None` if nobody has asked for one.
    snapshot: Option<Result<Snapshot, String>>,
}

#[derive(Serialize)]
struct Explained {
    task: u32,
    name: String,
    frames: Vec<ExplainedFrame>,
    stop_reason: &'static str,
    complete: bool,
}

#[derive(Serialize)]
struct ExplainedFrame {
    pc: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// The PC's link-time address.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    /// The source of the rule by which the frame's caller was found.
    rule_source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// The link-time address at which the row begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<u64>,
    /// The link-time address at which the row's function begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    row_function: Option<u64>,
}

/// Explains the stack of the task with this number: a process or one of its threads. `save` is the
/// file to which a snapshot of the stack is written.
pub(crate) fn run(task: u32, json: bool, save: Option<&Path>) -> Result<String, String> {
    let mut stack = walk_task(task, save.is_some())?;
    if let (Some(path), Some(snapshot)) = (save, stack.snapshot.take()) {
        let written = snapshot.and_then(|snapshot| {
            fs::write(path, snapshot.to_text()).map_err(|error| error.to_string())
        });
        written.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let frames = (0..stack.frames.len()).map(|index| frame(&mut stack, index));
    let frames = frames.collect();
    let name = fs::read_to_string(format!("/proc/{task}/comm")).unwrap_or_default();
    let explained = Explained {
        task,
        name: name.trim_end().to_owned(),
        frames,
        stop_reason: stack.stop_reason.as_str(),
        complete: stack.stop_reason == StopReason::Outermost,
    };
    if json {
        let text = serde_json::to_string(&explained).map_err(|error| error.to_string())?;
        return Ok(text + "\n");
    }
    Ok(as_text(&explained, stack.stop_reason))
}

fn walk_task(task: u32, is_saved: bool) -> Result<StoppedStack, String> {
    let read = |files: &mut Files| {
        Process::read(task, files).map_err(|error| match error.kind() {
            ErrorKind::NotFound => "there is no such task".to_owned(),
            _ => format!("/proc/{task}/maps: {error}"),
        })
    };
    let mut files = Files::new();
    // Files are read here, so that they are not read while the task is stopped.
    if read(&mut files)?.mappings().is_empty() {
        return Err("the task has no user stack: it is a kernel thread, or has exited".to_owned());
    }
    let mut regions = runtimes::regions(task).unwrap_or_default();
    let converted = ConvertedFiles::default();
    let mut searched = Vec::new();
    for _ in 0..MAX_ATTEMPTS {
        let missing = Rc::new(RefCell::new(Vec::new()));
        let (its_converted, its_missing) = (converted.clone(), missing.clone());
        let mut walker = Walker::with(move |file| match its_converted.borrow().get(&file.number) {
            Some(made) => *made,
            None => {
                its_missing.borrow_mut().push(file);
                None
            }
        });
        let mut frames = Vec::new();
        let stopped = Stopped::new(task)?;
        let mut process = read(&mut files)?;
        process.set_regions(regions.clone());
        let memory = fs::File::open(format!("/proc/{task}/mem"))
            .map_err(|error| format!("/proc/{task}/mem: {error}"))?;
        let memory = Live(memory);
        let registers = stopped.registers()?;
        let stop_reason = walker.walk(&process, &registers, &memory, &mut frames);
        let snapshot = is_saved.then(|| {
            let saved_by = concat!("sframectl explain, version ", env!("CARGO_PKG_VERSION"));
            let program = command_line(task);
            snapshot::record(
                &mut walker,
                &process,
                &registers,
                &memory,
                &program,
                saved_by,
            )
        });
        drop(stopped);
        let made = frames.iter().find_map(|frame| {
            let mapping = process.made_code_at(frame.at)?;
            let is_new =
                process.region_at(frame.at).is_none() && !searched.contains(&mapping.start);
            is_new.then_some(mapping.start..mapping.end)
        });
        if let Some(range) = &made {
            searched.push(range.start);
            let found = loaded_regions(task, range, &mut files, &converted);
            regions.extend(found.unwrap_or_default());
        }
        if missing.borrow().is_empty() && made.is_none() {
            let last = frames.last().and_then(|frame| process.at(frame.at)?.file);
            if let Some((file, Err(error))) =
                last.map(|file| (file, rows::check_headers(file.bytes)))
            {
                add::complain(&file.path.display().to_string(), &error);
            }
            return Ok(StoppedStack {
                process,
                walker,
                frames,
                stop_reason,
                snapshot,
            });
        }
        for file in missing.take() {
            let made = convert(file);
            if let Err(error) = &made {
                add::complain(&file.path.display().to_string(), error);
            }
            converted.borrow_mut().insert(file.number, made.ok());
        }
    }
    Err(format!(
        "gave up after {MAX_ATTEMPTS} attempts: each found files without tables"
    ))
}

/// The regions of the code with rows that a task has loaded into a mapping, as `watch` registers
/// them. The rows are added to `converted`.
fn loaded_regions(
    task: u32,
    range: &Range<u64>,
    files: &mut Files,
    converted: &ConvertedFiles,
) -> Result<Vec<CodeRegion>, String> {
    let pid = i32::try_from(task).map_err(|_| "there is no such task")?;
    let (memory, maps) = runtimes::open(pid)?;
    let (found, _) = code::find(pid, (range.start, range.end), memory, &maps, &[]);
    let Code::Objects(found) = found? else {
        return Ok(Vec::new());
    };
    let region = |mut object: CodeObject| {
        let rows = rows::unpack(mem::take(&mut object.rows));
        let region = object.region(files)?;
        if let CodeLayout::Rows(code) = &region.layout {
            let number = code.file.map_or(0, |file| file.number);
            let made = rows.as_ref().map(made_section);
            converted.borrow_mut().insert(number, made);
        }
        Ok(region)
    };
    found.objects.into_iter().map(region).collect()
}

/// Rows for the rest of the program.
fn made_section(rows: &ConvertedRows) -> MadeSection {
    let rows = rows.to_add();
    MadeSection {
        section: rows.section.to_vec().leak(),
        extra_rows: rows.extra_rows.to_vec().leak(),
        keeps_frame_pointer: rows.keeps_frame_pointers,
    }
}

/// The program and its arguments, or its name in brackets if it has hidden them.
fn command_line(task: u32) -> String {
    let read = |name| fs::read(format!("/proc/{task}/{name}")).unwrap_or_default();
    let words = read("cmdline");
    let words = String::from_utf8_lossy(&words);
    match words.trim_end_matches('\0') {
        "" => format!("[{}]", String::from_utf8_lossy(&read("comm")).trim_end()),
        words => words.replace('\0', " "),
    }
}

/// Converts a file as `watch` does.
fn convert(file: &MappedFile) -> Result<MadeSection, String> {
    let rows = match &file.open {
        Some(open) => {
            let input = rows::Input::of(open).map_err(|failure| failure.text)?;
            let (rows, cache) = input.rows().map_err(|failure| failure.text)?;
            cache.keep(&rows, &file.path);
            rows
        }
        None => rows::rows_of_image(file.bytes)?,
    };
    Ok(made_section(&rows))
}

fn frame(stack: &mut StoppedStack, index: usize) -> ExplainedFrame {
    let found = stack.frames[index];
    let mapping = stack.process.at(found.at);
    let located = mapping.and_then(|mapping| mapping.link_address(found.at));
    let rule_source = match (found.rule, stack.frames.get(index + 1)) {
        (Some((_, origin)), _) => origin.as_str(),
        (None, Some(_)) if stack.process.region_at(found.at).is_some() => "region",
        (None, Some(next)) if next.source == FrameSource::FramePointer => "frame-pointer",
        (None, _) => "none",
    };
    let row = match found.rule {
        Some((_, RuleOrigin::Section | RuleOrigin::Table)) => {
            mapping.and_then(|mapping| stack.walker.row_at(found.at, mapping))
        }
        _ => None,
    };
    ExplainedFrame {
        pc: found.frame.pc,
        file: mapping.map(|mapping| match &*mapping.name {
            "" => "[anonymous]".to_owned(),
            name => name.to_owned(),
        }),
        address: located.map(|(_, link)| link + (found.frame.pc - found.at)),
        function: located.and_then(|(file, link)| {
            let (name, offset) = file.function_at(link)?;
            Some(format!(
                "{name}+{:#x}",
                offset + (found.frame.pc - found.at)
            ))
        }),
        rule_source,
        rule: found.rule.map(|(rule, _)| {
            let text = RuleText::of_rule(Abi::Amd64, &rule);
            match (text.cfa, text.fp) {
                (Some(cfa), Some(fp)) => format!("cfa {cfa}, fp {fp}, ra {}", text.ra),
                _ => text.ra,
            }
        }),
        row: row.map(|(_, row)| row),
        row_function: row.map(|(function, _)| function),
    }
}

fn as_text(explained: &Explained, stop_reason: StopReason) -> String {
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
        let source = match frame.rule_source {
            "section" => "from the file's .sframe",
            "converted" => "converted from .eh_frame, .debug_frame, pclntab or instructions",
            "extra-row" => "extra row, converted from .eh_frame",
            "plt-stub" => "from the instructions of a PLT stub",
            "signal-trampoline" => "from the instructions of a signal trampoline",
            "clone" => "from the instructions after the clone system call",
            "region" => "by the region of the code that the process makes",
            "frame-pointer" => "no row: by the frame pointer, verified from the code",
            _ => "no row",
        };
        let _ = match (&frame.rule, frame.row, frame.row_function) {
            (Some(rule), Some(row), Some(function)) => writeln!(
                text,
                "     {rule}: row from {row:#x} of the function at {function:#x}, {source}"
            ),
            (Some(rule), ..) => writeln!(text, "     {rule}: {source}"),
            (None, ..) => writeln!(text, "     {source}"),
        };
    }
    let _ = writeln!(text, "{stop_reason}: {}", stop_reason.meaning());
    if !stop_reason.advice().is_empty() {
        let _ = writeln!(text, "{}", stop_reason.advice());
    }
    text
}
