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
    net::Shutdown,
    os::{
        fd::{
            AsFd,
            OwnedFd, //
        },
        unix::net::UnixStream, //
    },
    process::{
        Child,
        Command,
        ExitStatus,
        Stdio, //
    },
    sync::{
        Mutex,
        PoisonError, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use runtimes::{
    answer,
    Code,
    CodeObject,
    OpenProcess, //
};
use walk::process;

use crate::{
    confine::{
        confine_reader,
        READER_SECONDS, //
    },
    rows, //
};

/// The time for a child's answer. It is longer than a child lives.
const TIME: Duration = Duration::from_secs(READER_SECONDS as u64 + 10);
/// The time for a child to end after its answer, or after it was killed.
const END: Duration = Duration::from_secs(1);

/// Children that were killed and have not ended yet.
static ENDING: Mutex<Vec<Child>> = Mutex::new(Vec::new());

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
        .current_dir("/")
        .stdin(memory)
        .stderr(Stdio::null());
    let answer = ask(command, maps.as_bytes(), TIME);
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

/// Runs a command that reads the request from its standard output, and writes its answer to it,
/// within this time.
fn ask(mut command: Command, request: &[u8], time: Duration) -> Result<Vec<u8>, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let (mut socket, of_child) = UnixStream::pair().map_err(failed("cannot make a socket"))?;
    command.stdout(OwnedFd::from(of_child));
    let child = command
        .spawn()
        .map_err(failed("cannot run the confined process"))?;
    // The end of the answer is seen when the child alone has the other end of the socket.
    drop(command);
    let exchanged = exchange(&mut socket, request, Instant::now() + time);
    match (exchanged, end(child)) {
        (Ok(bytes), Some(status)) if status.success() => Ok(bytes),
        (_, Some(status)) if !status.success() => {
            Err(format!("the confined process ended with {status}"))
        }
        (Err(error), _) => Err(error),
        (Ok(_), _) => Err("the confined process does not end".to_owned()),
    }
}

/// Sends the request, and receives the answer up to its end.
fn exchange(socket: &mut UnixStream, request: &[u8], until: Instant) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the confined process does not answer".to_owned()
        }
        _ => format!("cannot reach the confined process: {error}"),
    };
    // A timeout of 0 would be none.
    let left =
        || Some((until.saturating_duration_since(Instant::now())).max(Duration::from_millis(1)));
    for part in request.chunks(1 << 16) {
        socket.set_write_timeout(left()).map_err(failed)?;
        socket.write_all(part).map_err(failed)?;
    }
    socket.shutdown(Shutdown::Write).map_err(failed)?;
    let mut answer = Vec::new();
    let mut part = [0; 1 << 14];
    loop {
        socket.set_read_timeout(left()).map_err(failed)?;
        match socket.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(len) => answer.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
        if answer.len() as u64 > answer::MAX_ANSWER {
            return Err("the answer of the confined process is too long".to_owned());
        }
        if Instant::now() >= until {
            return Err("the confined process does not answer in time".to_owned());
        }
    }
}

/// Waits for the end of a child, and kills it if it does not end soon: then there is no status.
fn end(mut child: Child) -> Option<ExitStatus> {
    let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    drop(ending);
    let status = wait(&mut child);
    if status.is_none() {
        // This fails without CAP_KILL; but the child has a limit of time.
        let _ = child.kill();
        if wait(&mut child).is_none() {
            let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
            ending.push(child);
        }
    }
    status
}

/// Waits for the end of a child, for a moment.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + END;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
            ended => return ended.ok().flatten(),
        }
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
        for object in &mut found.objects {
            if known.contains(&content(object)) {
                continue;
            }
            if let Ok(converted) = convert::convert(&object.file) {
                object.rows = rows::pack(&converted);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of a shell script in place of the confined process, and the time that it took.
    fn answer_of(script: &str, request: &[u8]) -> (Result<Vec<u8>, String>, Duration) {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).stderr(Stdio::null());
        let started = Instant::now();
        let answer = ask(command, request, Duration::from_millis(500));
        (answer, started.elapsed())
    }

    #[test]
    fn a_request_is_answered() {
        let request: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
        let (answer, _) = answer_of("head -c 1048576 <&1 >/dev/null; printf done", &request);
        assert_eq!(answer.as_deref(), Ok(&b"done"[..]));
        assert_eq!(answer_of("cat <&1", b"").0.as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn a_child_that_fails_is_an_error() {
        for (script, expected) in [
            ("kill -9 $$", "signal: 9"),
            ("cat <&1 >/dev/null; printf part; kill -9 $$", "signal: 9"),
            ("cat <&1 >/dev/null; printf whole; exit 3", "exit status: 3"),
        ] {
            let error = answer_of(script, b"maps").0.unwrap_err();
            assert!(error.contains(expected), "{script}: {error}");
        }
        let missing = Command::new("/does/not/exist");
        assert!(ask(missing, b"", TIME).is_err());
    }

    #[test]
    fn a_child_that_hangs_or_says_too_much_is_killed() {
        let large = vec![0; 1 << 22];
        for (script, request) in [
            ("exec sleep 100", &b"maps"[..]),
            // The request is never read.
            ("exec sleep 100", &large),
            // The answer never ends.
            ("exec yes", b""),
            ("while :; do printf .; sleep 0.01; done", b""),
            // The answer ends, the child does not.
            ("exec >/dev/null; exec sleep 100", b""),
        ] {
            let (answer, time) = answer_of(script, request);
            assert!(answer.is_err(), "{script}");
            assert!(time < Duration::from_secs(20), "{script}: {time:?}");
        }
        let ending = ENDING.lock().unwrap();
        assert!(ending.is_empty(), "{ending:?}");
    }
}
