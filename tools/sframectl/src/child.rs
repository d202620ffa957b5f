// SPDX-License-Identifier: GPL-2.0-only

//! Child processes that read hostile data: the parent limits their time and their output, and kills
//! a child that exceeds a limit. A child has limits of its own, too ([`crate::confine`]).

use std::{
    io::{
        self,
        Read,
        Write, //
    },
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::net::UnixStream, //
    },
    process::{
        Child,
        ChildStderr,
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

use rustix::{
    event::{
        poll,
        PollFd,
        PollFlags,
        Timespec, //
    },
    io::Errno, //
};

/// The limit for what a child writes to standard error, in bytes; more is not read.
const MAX_MESSAGE: usize = 4096;
/// The least time for a child to end after its answer, or after it was killed.
const END: Duration = Duration::from_secs(1);

/// Children that were killed and have not ended yet.
static ENDING: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// The limits for a child.
pub(crate) struct Limits {
    /// The time up to its end.
    pub(crate) time: Duration,
    /// The number of bytes of its answer.
    pub(crate) answer: u64,
}

/// A child that has ended by itself, or was killed by somebody else.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) answer: Vec<u8>,
    /// The first [`MAX_MESSAGE`] bytes of standard error.
    pub(crate) message: Vec<u8>,
}

/// Runs a command whose standard output is a socket: from it the command may read `request`, up to
/// the end, and to it the command writes its answer.
///
/// # Errors
///
/// The command cannot be started, or exceeds a limit. Then it is killed.
pub(crate) fn run(mut command: Command, request: &[u8], limits: &Limits) -> Result<Ended, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    reap();
    let (socket, of_child) = UnixStream::pair().map_err(failed("cannot make a socket"))?;
    socket
        .set_nonblocking(true)
        .map_err(failed("cannot make a socket"))?;
    command.stdout(OwnedFd::from(of_child));
    command.stderr(Stdio::piped());
    let until = Instant::now() + limits.time;
    let mut child = command
        .spawn()
        .map_err(failed("cannot run the confined process"))?;
    // The end of the answer is seen when the child alone has the other end of the socket.
    drop(command);
    let exchange = Exchange {
        socket: Some(socket),
        stderr: child.stderr.take(),
        request,
        answer: Vec::new(),
        message: Vec::new(),
    };
    let ended = exchange.run(until, limits.answer).and_then(|exchange| {
        let status = wait(&mut child, until.max(Instant::now() + END));
        Ok(Ended {
            status: status.ok_or("the confined process does not end")?,
            answer: exchange.answer,
            message: exchange.message,
        })
    });
    if ended.is_err() {
        kill(child);
    }
    ended
}

/// What passes between a child and its parent. An error of a socket or pipe counts as its end: the
/// child's status says more.
struct Exchange<'a> {
    /// `None` after the end.
    socket: Option<UnixStream>,
    stderr: Option<ChildStderr>,
    /// The rest that is not sent yet.
    request: &'a [u8],
    answer: Vec<u8>,
    message: Vec<u8>,
}

impl Exchange<'_> {
    /// Sends the request, and receives up to the end of the answer and of standard error.
    fn run(mut self, until: Instant, most: u64) -> Result<Self, String> {
        self.shut_down();
        while self.socket.is_some() || self.stderr.is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the confined process does not answer in time".to_owned());
            }
            let (of_socket, of_stderr) =
                self.wait(left).map_err(|error| format!("poll: {error}"))?;
            if of_socket.intersects(PollFlags::OUT) && !self.request.is_empty() {
                self.send();
            }
            if of_socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.receive();
            }
            if !of_stderr.is_empty() {
                self.receive_message();
            }
            if self.answer.len() as u64 > most {
                return Err("the answer of the confined process is too long".to_owned());
            }
        }
        Ok(self)
    }

    /// Waits until the socket or standard error is ready, or has ended.
    fn wait(&self, left: Duration) -> Result<(PollFlags, PollFlags), Errno> {
        let sends = match self.request {
            [] => PollFlags::empty(),
            _ => PollFlags::OUT,
        };
        let socket = self.socket.iter();
        let stderr = self.stderr.iter();
        let mut polled: Vec<PollFd<'_>> = socket
            .map(|socket| PollFd::new(socket, PollFlags::IN | sends))
            .chain(stderr.map(|stderr| PollFd::new(stderr, PollFlags::IN)))
            .collect();
        let time = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut polled, Some(&time)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok((PollFlags::empty(), PollFlags::empty())),
            Err(error) => return Err(error),
        }
        let mut ready = polled.iter().map(PollFd::revents);
        let mut of = |is_open| match is_open {
            true => ready.next().unwrap_or(PollFlags::empty()),
            false => PollFlags::empty(),
        };
        Ok((of(self.socket.is_some()), of(self.stderr.is_some())))
    }

    /// Tells the child the end of the request, if all is sent.
    fn shut_down(&self) {
        if let (Some(socket), []) = (&self.socket, self.request) {
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    fn send(&mut self) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        match socket.write(self.request) {
            Ok(len) => self.request = self.request.get(len..).unwrap_or_default(),
            Err(error) if is_of_a_moment(&error) => {}
            Err(_) => self.request = &[],
        }
        self.shut_down();
    }

    fn receive(&mut self) {
        let mut part = [0; 1 << 14];
        let received = self.socket.as_mut().map(|socket| socket.read(&mut part));
        match received {
            Some(Ok(len @ 1..)) => self.answer.extend_from_slice(&part[..len]),
            Some(Err(error)) if is_of_a_moment(&error) => {}
            _ => self.socket = None,
        }
    }

    fn receive_message(&mut self) {
        let mut part = [0; MAX_MESSAGE];
        let part = &mut part[..MAX_MESSAGE - self.message.len()];
        let received = self.stderr.as_mut().map(|stderr| stderr.read(part));
        match received {
            Some(Ok(len @ 1..)) => self.message.extend_from_slice(&part[..len]),
            Some(Err(error)) if is_of_a_moment(&error) => return,
            _ => self.stderr = None,
        }
        // The child's next write to it fails.
        if self.message.len() == MAX_MESSAGE {
            self.stderr = None;
        }
    }
}

fn is_of_a_moment(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Waits for the end of a child.
fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
            ended => return ended.ok().flatten(),
        }
    }
}

/// Kills a child, and waits for its end for a moment.
fn kill(mut child: Child) {
    // This fails without CAP_KILL; but the child has a limit of time.
    let _ = child.kill();
    if wait(&mut child, Instant::now() + END).is_none() {
        let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
        ending.push(child);
    }
}

/// Forgets the killed children that have ended since.
fn reap() {
    let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time that no test takes.
    const LONG: Duration = Duration::from_secs(600);

    /// The end of a shell script, within this time.
    fn end_of(script: &str, request: &[u8], time: Duration) -> Result<Ended, String> {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).stdin(Stdio::null());
        let answer = 1 << 20;
        run(command, request, &Limits { time, answer })
    }

    #[test]
    fn a_request_is_answered() {
        let request: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
        let script = "head -c 1048576 <&1 >/dev/null; printf done; printf why >&2";
        let ended = end_of(script, &request, LONG).unwrap();
        assert!(ended.status.success());
        assert_eq!(
            (&ended.answer[..], &ended.message[..]),
            (&b"done"[..], &b"why"[..])
        );
        assert_eq!(end_of("cat <&1", b"", LONG).unwrap().answer, b"");
    }

    #[test]
    fn a_child_that_fails_has_a_status() {
        for (script, expected) in [
            ("kill -9 $$", "signal: 9"),
            ("cat <&1 >/dev/null; printf part; kill -9 $$", "signal: 9"),
            ("cat <&1 >/dev/null; printf whole; exit 3", "exit status: 3"),
        ] {
            let ended = end_of(script, b"maps", LONG).unwrap();
            let status = ended.status.to_string();
            assert!(status.contains(expected), "{script}: {status}");
        }
        let limits = Limits {
            time: LONG,
            answer: 1,
        };
        assert!(run(Command::new("/does/not/exist"), b"", &limits).is_err());
    }

    #[test]
    fn the_message_of_a_child_is_cut() {
        let ended = end_of("yes >&2; printf done", b"", LONG).unwrap();
        assert_eq!(ended.message.len(), MAX_MESSAGE);
        assert_eq!(ended.answer, b"done");
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
            ("exec >/dev/null 2>/dev/null; exec sleep 100", b""),
        ] {
            let ended = end_of(script, request, Duration::from_millis(500));
            assert!(ended.is_err(), "{script}: {ended:?}");
        }
        let ending = ENDING.lock().unwrap();
        assert!(ending.is_empty(), "{ending:?}");
    }
}
