// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl watch`: converts the files that the module requests, and describes the code that
//! processes make. Confined child processes parse the files, and read the memory of the processes.

mod file;
mod jobs;
mod made_code;

use std::{
    fmt,
    io::{
        self,
        Write, //
    },
    thread,
    time::Instant, //
};

use runtimes::answer::printable;
use serde::Serialize;

use self::{
    file::{
        mapped,
        maps_of, //
    },
    jobs::{
        Job,
        Queue,
        IDLE, //
    },
    made_code::LoadedObjects, //
};
use crate::{
    add,
    device::Device,
    urgency, //
};

/// The line that is printed when the rows of the files in the cache were added.
#[derive(Serialize)]
struct CachedFiles {
    cached_files: usize,
    milliseconds: u128,
}

impl fmt::Display for CachedFiles {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, time) = (self.cached_files, self.milliseconds);
        write!(to, "cache: {files} files, {time} ms")
    }
}

/// The line that is printed when nothing is left to do.
#[derive(Serialize)]
struct Idle {
    idle: bool,
}

impl fmt::Display for Idle {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("idle")
    }
}

/// The state of the command, for all threads.
struct Watch {
    device: Device,
    queue: Queue,
    objects: LoadedObjects,
    /// Whether lines are printed as JSON.
    json: bool,
}

/// Serves requests until the process is killed.
pub(crate) fn run(json: bool) -> Result<(), String> {
    let device = Device::open()?;
    if let Err(error) = add::add_vdso(&device) {
        add::complain("[vdso]", &error);
    }
    // One more than there are CPUs, because some workers wait for disks.
    let workers = 1 + thread::available_parallelism().map_or(1, usize::from);
    let watch = Watch {
        device,
        queue: Queue::new(workers),
        objects: LoadedObjects::default(),
        json,
    };
    thread::scope(|scope| {
        // A thread of its own, because one of the names may lie on a file system that never
        // responds.
        scope.spawn(|| watch.add_cached());
        let mut started = 0;
        loop {
            while started < watch.queue.threads() {
                urgency::end();
                scope.spawn(|| watch.work());
                started += 1;
            }
            urgency::begin();
            watch.read_requests()?;
        }
    })
}

impl Watch {
    fn add_cached(&self) {
        let started = Instant::now();
        let files = add::add_cached(&self.device);
        self.print(&CachedFiles {
            cached_files: files.len(),
            milliseconds: started.elapsed().as_millis(),
        });
        self.queue.finish_cached(&files);
    }

    /// Waits for requests, and queues them. Without any for a while, prints that nothing is left to
    /// do.
    fn read_requests(&self) -> Result<(), String> {
        if self.device.wait(IDLE)? {
            for request in self.device.requests()? {
                self.queue.put(request);
            }
        } else if self.queue.says_idle() {
            self.print(&Idle { idle: true });
        }
        Ok(())
    }

    /// Does jobs, for ever.
    fn work(&self) {
        loop {
            let job = self.queue.next();
            if job.request.is_made_code() {
                self.answer_code(&job);
            } else {
                self.answer_file(&job);
            }
        }
    }

    /// Answers a request for a file. The mappings of its process are read once before the answer,
    /// and once after the answer for the process's last file: the loader may have mapped more files
    /// since, which may never be seen in a stack.
    fn answer_file(&self, job: &Job) {
        let request = &job.request;
        let others = match job.seen {
            true => mapped(request, &maps_of(request)),
            false => Vec::new(),
        };
        let is_answered = self.queue.put_mapped(job, others);
        if job.in_progress {
            return;
        }
        let is_done = is_answered || {
            let (is_done, answer) = file::answer(&self.device, job);
            self.print_any(answer);
            is_done
        };
        let more = match self.queue.is_last(request) {
            true => mapped(request, &maps_of(request)),
            false => Vec::new(),
        };
        self.queue.finish(job, is_done, more);
    }

    /// Answers a request for code that a process makes. The process may make more code later, so it
    /// is never done.
    fn answer_code(&self, job: &Job) {
        // The process decides how long this takes.
        urgency::end();
        let request = &job.request;
        let opened = runtimes::open(request.pid);
        let others = match &opened {
            Ok((_, maps)) => mapped(request, maps),
            Err(_) => Vec::new(),
        };
        self.queue.put_mapped(job, others);
        if job.in_progress {
            return;
        }
        let (answer, maps) = self.objects.answer(&self.device, request, opened);
        self.print_any(answer);
        self.queue.finish(job, false, mapped(request, &maps));
    }

    fn print_any(&self, answer: Option<impl Serialize + fmt::Display>) {
        if let Some(answer) = answer {
            self.print(&answer);
        }
    }

    /// Prints an answer as a line, of text or of JSON.
    fn print(&self, answer: &(impl Serialize + fmt::Display)) {
        match self.json {
            true => {
                if let Ok(line) = serde_json::to_string(answer) {
                    print_line(&line);
                }
            }
            false => print_line(&answer.to_string()),
        }
    }
}

/// Prints a line, in which users choose the names of files. Errors are ignored: there may be no
/// reader.
fn print_line(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{}", printable(line)).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_forge_no_lines() {
        assert_eq!(
            printable("a\n<0>b\u{1b}[1m\u{7f} \u{e4}"),
            "a?<0>b?[1m? \u{e4}"
        );
    }
}
