// SPDX-License-Identifier: GPL-2.0-only

//! What `watch` counts. All counters are in one structure, below the lock of the queue.

use std::time::SystemTime;

use serde::{
    Deserialize,
    Serialize, //
};

use crate::{
    add::Added,
    rows::Failure, //
};

/// The counters of `watch`, from its start on.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct WatchCounters {
    /// Requests of the module that were read.
    pub(crate) requests: u64,
    /// Jobs that a worker took, that have ended, and whose conversion was killed or could not be
    /// started.
    pub(crate) taken: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// Jobs that no worker does.
    pub(crate) dropped: DroppedJobs,
    /// Answers about files.
    pub(crate) files: FileAnswers,
    /// Answers about code that processes make.
    pub(crate) code: CodeAnswers,
    /// Seconds since 1970 of the last turn of the main loop, which turns twice a second at least.
    pub(crate) turned: u64,
    /// Seconds since 1970 of the last request; 0 before the first.
    pub(crate) requested: u64,
    pub(crate) last_error: Option<LastError>,
}

/// Jobs that were dropped. The module requests such a file anew when it sees the file again.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct DroppedJobs {
    /// The queue of the job's user was full.
    pub(crate) full: u64,
    /// A worker is stuck with a file of the same user.
    pub(crate) stuck: u64,
    /// The conversion has failed before, and is not tried yet.
    pub(crate) paused: u64,
}

impl DroppedJobs {
    /// Each reason, and its number of jobs.
    pub(crate) fn by_reason(&self) -> [(&'static str, u64); 3] {
        [
            ("full", self.full),
            ("stuck", self.stuck),
            ("paused", self.paused),
        ]
    }

    /// The number of all dropped jobs.
    pub(crate) fn all(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }
}

/// Selects the counter of a result.
pub(super) type FileCounter = fn(&mut FileAnswers) -> &mut u64;

/// Answers about files, by result.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct FileAnswers {
    /// Rows were made and added.
    pub(crate) converted: u64,
    /// Rows of the cache were added.
    pub(crate) cached: u64,
    /// No rows can be made from the file. The module knows that.
    pub(crate) without_rows: u64,
    /// The conversion was killed, or could not be started.
    pub(crate) failed: u64,
    /// The file could not be opened, or the module refused the rows.
    pub(crate) refused: u64,
    /// The configuration leaves the file or the process out.
    pub(crate) excluded: u64,
}

impl FileAnswers {
    /// The counter of a result.
    pub(super) fn of(result: &Result<Added, Failure>) -> FileCounter {
        match result {
            Ok(Added::Converted(_)) => |files| &mut files.converted,
            Ok(Added::Cached(_)) => |files| &mut files.cached,
            Ok(Added::Empty(_)) => |files| &mut files.without_rows,
            Err(failure) if failure.is_passing => |files| &mut files.failed,
            Err(_) => |files| &mut files.refused,
        }
    }

    /// Each result, and its number of answers.
    pub(crate) fn by_result(&self) -> [(&'static str, u64); 6] {
        [
            ("converted", self.converted),
            ("cached", self.cached),
            ("without_rows", self.without_rows),
            ("failed", self.failed),
            ("refused", self.refused),
            ("excluded", self.excluded),
        ]
    }
}

/// Answers about code that processes make, by result.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct CodeAnswers {
    /// The module was told how the code is laid out.
    pub(crate) described: u64,
    /// No runtime is known, it has just started, or nothing is new.
    pub(crate) nothing: u64,
    /// The process could not be read, code has no rows, or the module refused the answer.
    pub(crate) failed: u64,
    /// The configuration leaves the process out.
    pub(crate) excluded: u64,
}

impl CodeAnswers {
    /// Each result, and its number of answers.
    pub(crate) fn by_result(&self) -> [(&'static str, u64); 4] {
        [
            ("described", self.described),
            ("nothing", self.nothing),
            ("failed", self.failed),
            ("excluded", self.excluded),
        ]
    }
}

/// The last error that was printed.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct LastError {
    /// Seconds since 1970.
    pub(crate) time: u64,
    pub(crate) text: String,
}

/// The time now, in seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
