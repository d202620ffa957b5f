// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl watch`: converts the files that the module requests, and describes the code that
//! processes make. Confined child processes parse the files, and read the memory of the processes.

mod file;
mod jobs;
mod made_code;
mod manager;

use std::{
    fmt,
    io::{
        self,
        Write, //
    },
    panic,
    process,
    sync::Arc,
    thread,
    time::{
        Duration,
        Instant, //
    }, //
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
        JobEnd,
        Queue,
        IDLE, //
    },
    made_code::LoadedObjects,
    manager::ServiceManager, //
};
use crate::{
    add,
    device::Device,
    urgency, //
};

/// The time between two looks for processes that have ended, whose objects take memory.
const SWEEP: Duration = Duration::from_secs(10);

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
///
/// # Errors
///
/// The device cannot be opened or read. Then the caller ends the process: threads may be busy, and
/// nobody waits for them.
pub(crate) fn run(json: bool) -> Result<(), String> {
    let device = Device::open()?;
    if let Err(error) = add::add_vdso(&device) {
        add::complain("[vdso]", &error);
    }
    abort_on_panic();
    Err(Arc::new(Watch::new(device, json)).serve())
}

/// From now on a panic of any thread ends the process, with its message. The others would go on
/// without that thread, and with the job that it was busy with.
fn abort_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        process::abort();
    }));
}

impl Watch {
    fn new(device: Device, json: bool) -> Watch {
        // One more than there are CPUs, because some workers wait for disks.
        let workers = 1 + thread::available_parallelism().map_or(1, usize::from);
        Watch {
            device,
            queue: Queue::new(workers),
            objects: LoadedObjects::default(),
            json,
        }
    }

    /// Serves requests. Returns the error that ends this; threads may be busy then.
    fn serve(self: &Arc<Self>) -> String {
        // A thread of its own, because one of the names may lie on a file system that never
        // responds.
        if let Err(error) = self.start(Watch::add_cached) {
            add::complain("the cache", &error);
            self.queue.finish_cached(&[]);
        }
        let mut manager = ServiceManager::default();
        let (mut started, mut lacks) = (0, false);
        let mut swept = Instant::now();
        loop {
            while started < self.queue.threads() {
                urgency::end();
                match self.start(Watch::work) {
                    Ok(()) => (started, lacks) = (started + 1, false),
                    Err(error) => {
                        // It is tried again after each request, and printed once.
                        if !lacks {
                            add::complain("watch", &error);
                        }
                        lacks = true;
                        break;
                    }
                }
            }
            urgency::begin();
            if let Err(error) = self.read_requests() {
                return error;
            }
            manager.tell(&self.queue.health());
            if swept.elapsed() > SWEEP {
                self.objects.drop_ended(&self.device);
                swept = Instant::now();
            }
        }
    }

    /// Starts a thread.
    fn start(self: &Arc<Self>, work: fn(&Watch)) -> Result<(), String> {
        let watch = Arc::clone(self);
        let started = thread::Builder::new().spawn(move || work(&watch));
        started
            .map(drop)
            .map_err(|error| format!("cannot start a thread: {error}"))
    }

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
        let end = match is_answered {
            true => JobEnd::Done,
            false => {
                let (end, answer) = file::answer(&self.device, job, || self.queue.opened(job));
                self.print_any(answer);
                end
            }
        };
        let more = match self.queue.is_last(request) {
            true => mapped(request, &maps_of(request)),
            false => Vec::new(),
        };
        self.queue.finish(job, end, more);
    }

    /// Answers a request for code that a process makes. The process may make more code later, so it
    /// is never done.
    fn answer_code(&self, job: &Job) {
        // The process decides how long this takes.
        urgency::end();
        let request = &job.request;
        let opened = runtimes::open(request.pid);
        self.queue.opened(job);
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
        self.queue
            .finish(job, JobEnd::Undone, mapped(request, &maps));
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
    use std::{
        env,
        fs::{
            self,
            File, //
        },
        os::unix::{
            net::UnixDatagram,
            process::ExitStatusExt, //
        },
        process::{
            Command,
            Stdio, //
        },
        sync::mpsc,
        time::Duration, //
    };

    #[test]
    fn names_forge_no_lines() {
        assert_eq!(
            printable("a\n<0>b\u{1b}[1m\u{7f} \u{e4}"),
            "a?<0>b?[1m? \u{e4}"
        );
    }

    #[test]
    fn a_device_that_cannot_be_read_ends_the_command() {
        // A directory is always ready, and cannot be read.
        let device = Device::of(File::open("/").unwrap());
        let (send, ended) = mpsc::channel();
        thread::spawn(move || send.send(Arc::new(Watch::new(device, false)).serve()));
        let error = ended.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(error.contains("directory"), "{error}");
    }

    /// A command that runs an ignored test of this module in a process of its own.
    fn process_of(test: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "--nocapture"])
            .arg(format!("watch::tests::{test}"))
            .env("WATCH_TEST", test);
        command
    }

    /// Whether this process was made by [`process_of`]; all ignored tests may have been asked for.
    fn is_process_of(test: &str) -> bool {
        env::var("WATCH_TEST").is_ok_and(|name| name == test)
    }

    #[test]
    fn a_panic_of_a_thread_ends_the_process_with_its_message() {
        let ended = process_of("panics").output().unwrap();
        let message = String::from_utf8_lossy(&ended.stderr);
        let signal = nix::libc::SIGABRT;
        assert_eq!(ended.status.signal(), Some(signal), "{}", ended.status);
        assert!(message.contains("a worker's panic"), "{message}");
    }

    #[test]
    #[ignore = "runs in a process of its own"]
    fn panics() {
        if is_process_of("panics") {
            abort_on_panic();
            let ended = thread::spawn(|| panic!("a worker's panic")).join();
            assert!(ended.is_err());
        }
    }

    #[test]
    fn the_service_manager_is_told_of_the_start_and_of_progress() {
        let path = env::temp_dir().join(format!("notified-{}", process::id()));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut watch = process_of("serves_nothing")
            .env("NOTIFY_SOCKET", &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let told = || {
            let mut bytes = [0; 1000];
            let received = socket.recv(&mut bytes);
            received.map(|len| String::from_utf8_lossy(&bytes[..len]).into_owned())
        };
        let (first, second) = (told(), told());
        watch.kill().unwrap();
        watch.wait().unwrap();
        fs::remove_file(&path).unwrap();
        let status = "STATUS=0 waiting, 0 stuck, 0 answers, 0 failures";
        assert_eq!(first.unwrap(), format!("READY=1\nWATCHDOG=1\n{status}\n"));
        assert_eq!(second.unwrap(), format!("WATCHDOG=1\n{status}\n"));
    }

    #[test]
    #[ignore = "runs in a process of its own"]
    fn serves_nothing() {
        if is_process_of("serves_nothing") {
            // The parent process never writes to it.
            let device = Device::of(File::open("/proc/self/fd/0").unwrap());
            panic!("{}", Arc::new(Watch::new(device, false)).serve());
        }
    }
}
