// SPDX-License-Identifier: GPL-2.0-only

//! The lines that `watch` prints. In the journal they have a priority, and their number is limited.

use std::{
    env,
    fmt,
    io::{
        self,
        Write, //
    },
    os::fd::AsFd,
    path::Path,
    sync::{
        Mutex,
        PoisonError, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

use runtimes::answer::printable;
use rustix::fs::fstat;
use serde::Serialize;

use super::counters::now;

/// The version of the lines of JSON. It rises if a field is removed, or means something else.
const LINES_VERSION: u32 = 1;
/// The most lines of one priority in the journal, in each [`INTERVAL`].
const MAX_LINES: u32 = 200;
const INTERVAL: Duration = Duration::from_secs(30);

/// The priority of a line, as in syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    /// `watch` itself has failed.
    Error = 3,
    /// A file or process has no rows for a reason that an administrator may remove.
    Warning = 4,
    /// Lines were left out.
    Notice = 5,
    Info = 6,
    Debug = 7,
}

impl Priority {
    /// The priority of a failure that concerns a process. Processes end at any time: that is no
    /// fault.
    pub(super) fn of_failure(pid: i32) -> Priority {
        match Path::new(&format!("/proc/{pid}")).exists() {
            true => Priority::Warning,
            false => Priority::Debug,
        }
    }
}

/// A line that `watch` prints to standard output.
pub(super) trait WatchLine: Serialize + fmt::Display {
    /// The type of the line in JSON.
    const TYPE: &'static str;

    fn priority(&self) -> Priority {
        Priority::Info
    }
}

/// A line of JSON.
#[derive(Serialize)]
struct JsonLine<'a, L> {
    version: u32,
    r#type: &'static str,
    /// Seconds since 1970.
    time: u64,
    #[serde(flatten)]
    line: &'a L,
}

/// The number of lines of one priority in an interval.
#[derive(Clone, Copy, Default)]
struct LineCount {
    since: Option<Instant>,
    count: u32,
}

impl LineCount {
    /// Counts a line. `None` if it is to be left out; otherwise the number of lines that were left
    /// out before it.
    fn count(&mut self, now: Instant) -> Option<u32> {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= INTERVAL;
        let mut left_out = 0;
        if self.since.is_none_or(is_over) {
            left_out = self.count.saturating_sub(MAX_LINES);
            (self.since, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(1);
        (self.count <= MAX_LINES).then_some(left_out)
    }
}

/// Prints lines.
pub(super) struct WatchLog {
    json: bool,
    /// Whether standard output and standard error are the journal.
    journal: (bool, bool),
    /// By priority.
    counts: Mutex<[LineCount; 8]>,
}

impl WatchLog {
    pub(super) fn new(json: bool) -> WatchLog {
        let journal = env::var("JOURNAL_STREAM").unwrap_or_default();
        let journal = (
            is_journal(&journal, io::stdout()),
            is_journal(&journal, io::stderr()),
        );
        let counts = Mutex::default();
        WatchLog {
            json,
            journal,
            counts,
        }
    }

    /// Prints a line to standard output.
    pub(super) fn print<L: WatchLine>(&self, line: &L) {
        let text = match self.json {
            true => serde_json::to_string(&JsonLine {
                version: LINES_VERSION,
                r#type: L::TYPE,
                time: now(),
                line,
            }),
            false => Ok(line.to_string()),
        };
        if let Ok(text) = text {
            self.write(line.priority(), &text, self.journal.0, &mut io::stdout());
        }
    }

    /// Prints an error of `watch` itself to standard error.
    pub(super) fn error(&self, what: &str, error: &str) {
        let text = format!("sframectl: {what}: {error}");
        self.write(Priority::Error, &text, self.journal.1, &mut io::stderr());
    }

    /// Writes a line, in which users choose the names of files. Errors are ignored: there may be no
    /// reader.
    fn write(&self, priority: Priority, text: &str, is_journal: bool, to: &mut impl Write) {
        let mut lines = String::new();
        if is_journal {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(left_out) = counts[priority as usize].count(Instant::now()) else {
                return;
            };
            if left_out != 0 {
                lines = format!(
                    "<{}>sframectl: {left_out} lines of priority {} were left out\n",
                    Priority::Notice as u8,
                    priority as u8
                );
            }
            lines += &format!("<{}>", priority as u8);
        }
        lines += &printable(text);
        lines.push('\n');
        // One call for each line: those of threads do not mix.
        let _ = to.write_all(lines.as_bytes()).and_then(|()| to.flush());
    }
}

/// Whether a stream is the one that the service manager has connected to the journal:
/// `JOURNAL_STREAM` is its device and inode.
fn is_journal(journal: &str, stream: impl AsFd) -> bool {
    let of_stream = fstat(stream).map(|found| format!("{}:{}", found.st_dev, found.st_ino));
    of_stream.is_ok_and(|of_stream| of_stream == journal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_left_out_and_counted() {
        let start = Instant::now();
        let mut count = LineCount::default();
        for _ in 0..MAX_LINES {
            assert_eq!(count.count(start), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(count.count(start + INTERVAL / 2), None);
        }
        assert_eq!(count.count(start + INTERVAL), Some(3));
        assert_eq!(count.count(start + INTERVAL), Some(0));
    }

    #[test]
    fn lines_have_a_priority_in_the_journal_alone() {
        let log = WatchLog::new(false);
        let written = |is_journal| {
            let mut written = Vec::new();
            let text = "a\n<0>b\u{1b}[1m\u{7f} \u{e4}";
            log.write(Priority::Warning, text, is_journal, &mut written);
            String::from_utf8(written).unwrap()
        };
        assert_eq!(written(false), "a?<0>b?[1m? \u{e4}\n");
        assert_eq!(written(true), "<4>a?<0>b?[1m? \u{e4}\n");
        let file = fstat(io::stdin()).unwrap();
        let stream = format!("{}:{}", file.st_dev, file.st_ino);
        assert!(is_journal(&stream, io::stdin()));
        assert!(!is_journal("", io::stdin()));
        assert!(!is_journal(&format!("{stream}0"), io::stdin()));
    }
}
