// SPDX-License-Identifier: GPL-2.0-only

//! The code that processes make at run time, as a confined child process reads it.
//!
//! The child gets the memory of the process as its standard input, and a socket as its standard
//! output. From the socket it reads the text of the mappings, up to the end; then it writes its
//! answer to it ([`runtimes::answer`]). The parent checks the answer as hostile input.

use std::{
    fs::File,
    hash::{
        DefaultHasher,
        Hasher, //
    },
    io::{
        self,
        Read,
        Write, //
    },
    os::fd::AsFd,
    process::Command,
    time::Duration, //
};

use runtimes::{
    answer,
    Code,
    CodeObject,
    OpenProcess, //
};
use walk::process;

use crate::{
    child::{
        self,
        Limits, //
    },
    config,
    confine::{
        confine_reader,
        READER_SECONDS, //
    },
    rows, //
};

/// The limits for a child. Its time is longer than a child lives.
const LIMITS: Limits = Limits {
    time: Duration::from_secs(READER_SECONDS as u64 + 10),
    answer: answer::MAX_ANSWER,
};

/// Finds the code that a process makes, in a confined child process, from its memory and the text
/// of its mappings ([`runtimes::open`]). If no runtime is known, searches for code with rows in the
/// mapping from `start` to `end`, run-time addresses. The code that is found lies in anonymous
/// memory of that process; all else that the answer says is hostile. An object has packed rows
/// unless its [`content`] is one of `known`, or cannot be converted.
///
/// Returns the text of the mappings after the answer, too; it is empty if they cannot be read.
///
/// # Errors
///
/// The process has exited, or is not what it seems to be; or the child has failed or is refused.
pub(crate) fn find(
    pid: i32,
    (start, end): (u64, u64),
    memory: File,
    maps: &str,
    known: &[u64],
) -> (Result<Code, String>, String) {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("runtime")
        .arg(pid.to_string())
        .arg("--confined")
        .args([start, end].map(|address| address.to_string()))
        .args(known.iter().map(u64::to_string))
        .env_clear()
        .env(
            config::CONVERSION_MIB,
            config::get().conversion_mib.to_string(),
        )
        .current_dir("/")
        .stdin(memory);
    let answer = ask(command, maps.as_bytes());
    // The process may have mapped more memory for code since.
    let maps = process::maps_text(pid.unsigned_abs())
        .map_err(|error| format!("cannot read its mappings: {error}"));
    let found = match (answer, &maps) {
        (Ok(bytes), Ok(maps)) => answer::accept(&bytes, pid, &process::anonymous_memory(maps)),
        (Err(error), _) => Err(error),
        (_, Err(error)) => Err(error.clone()),
    };
    (found, maps.unwrap_or_default())
}

/// The number of the code and the `.eh_frame` of an object. Other code may have an equal guard.
pub(crate) fn content(object: &CodeObject) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&object.file);
    hasher.finish()
}

/// Runs the confined process, and returns its answer.
fn ask(command: Command, request: &[u8]) -> Result<Vec<u8>, String> {
    let ended = child::run(command, request, &LIMITS)?;
    match ended.status.success() {
        true => Ok(ended.answer),
        false => Err(format!("the confined process ended with {}", ended.status)),
    }
}

/// In the child process: reads the mappings, drops all privileges, and writes the answer for
/// [`find`].
pub(crate) fn answer_confined(
    pid: u32,
    start: u64,
    end: u64,
    known: &[u64],
) -> Result<String, String> {
    let pid = i32::try_from(pid).map_err(|_| "there is no such process")?;
    let io = |error: io::Error| error.to_string();
    let memory = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(io)?);
    let mut socket = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(io)?);
    let mut maps = Vec::new();
    socket.read_to_end(&mut maps).map_err(io)?;
    confine_reader(&memory)?;
    let maps = String::from_utf8_lossy(&maps);
    let mut found =
        OpenProcess::new(pid, memory, &maps).and_then(|process| process.find_at(start, end));
    if let Ok(Code::Objects(found)) = &mut found {
        // Another process for each conversion would take longer than most conversions.
        found.objects.retain_mut(|object| {
            if known.contains(&content(object)) {
                return true;
            }
            let converted = convert::convert(&object.file);
            if let Ok(converted) = &converted {
                object.rows = rows::pack(converted);
            }
            // Code without entries may have no rows.
            let has_rows = |report: &convert::Report| {
                report.functions != 0 || report.extra_rows != 0 || report.keeps_frame_pointers()
            };
            converted.map_or(true, |converted| has_rows(&converted.report))
        });
    }
    socket.write_all(&answer::encode(&found)).map_err(io)?;
    Ok(String::new())
}

/// `sframectl runtime`: shows the code of a process. This process confines itself before it reads
/// the memory.
///
/// # Errors
///
/// The process has exited or may not be read, or is not what it seems to be.
pub(crate) fn show(pid: u32) -> Result<String, String> {
    let pid = i32::try_from(pid).map_err(|_| "there is no such process")?;
    let (memory, maps) = runtimes::open(pid)?;
    confine_reader(&memory)?;
    OpenProcess::new(pid, memory, &maps)?.describe()
}
