// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl watch`: converts the files that the module requests, and describes the code that
//! processes make. Confined child processes parse the files, and read the memory of the processes.

pub(crate) mod counters;
mod file;
mod jobs;
mod log;
mod made_code;
mod manager;
mod monitor;

use std::{
    fmt,
    panic,
    path::PathBuf,
    process,
    sync::Arc,
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use serde::Serialize;

use self::{
    counters::{
        now,
        LastError, //
    },
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
    log::{
        Priority,
        WatchLine,
        WatchLog, //
    },
    made_code::LoadedObjects,
    manager::ServiceManager,
    monitor::Monitor, //
};
use crate::{
    add,
    device::Device,
    exit::CommandError,
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

impl WatchLine for CachedFiles {
    const TYPE: &'static str = "cache";
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

impl WatchLine for Idle {
    const TYPE: &'static str = "idle";

    fn priority(&self) -> Priority {
        Priority::Debug
    }
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
    log: WatchLog,
    /// The directory in which the state is shown, if any.
    shown: Option<PathBuf>,
}

/// Serves requests until the process is killed.
///
/// # Errors
///
/// The device cannot be opened or read. Then the caller ends the process: threads may be busy, and
/// nobody waits for them.
pub(crate) fn run(json: bool) -> Result<(), CommandError> {
    let device = Device::open()?;
    let mut watch = Watch::new(device, json);
    watch.shown = Some(monitor::directory());
    if let Err(error) = add::add_vdso(&watch.device) {
        watch.fail("[vdso]", &error);
    }
    abort_on_panic();
    Err(Arc::new(watch).serve().into())
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
            log: WatchLog::new(json),
            shown: None,
        }
    }

    /// Prints an error of the command itself, and remembers it.
    fn fail(&self, what: &str, error: &str) {
        self.log.error(what, error);
        self.remember(format!("{what}: {error}"));
    }

    /// Remembers an error as the last one.
    fn remember(&self, text: String) {
        let time = now();
        self.queue
            .count(|counters| counters.last_error = Some(LastError { time, text }));
    }

    /// Serves requests. Returns the error that ends this; threads may be busy then.
    fn serve(self: &Arc<Self>) -> String {
        // A thread of its own, because one of the names may lie on a file system that never
        // responds.
        if let Err(error) = self.start(Watch::add_cached) {
            self.fail("the cache", &error);
            self.queue.finish_cached(&[]);
        }
        self.queue.count(|counters| counters.turned = now());
        if let Err(error) = self.start(Watch::show) {
            self.fail("status", &error);
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
                            self.fail("watch", &error);
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
            self.queue.count(|counters| counters.turned = now());
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

    /// Shows the state, for ever.
    fn show(&self) {
        let Some(directory) = &self.shown else {
            return;
        };
        let error = match Monitor::open(directory, now()) {
            Ok(monitor) => monitor.run(self),
            Err(error) => error,
        };
        self.fail("status", &error);
    }

    fn add_cached(&self) {
        let started = Instant::now();
        let files = add::add_cached(&self.device);
        self.log.print(&CachedFiles {
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
            self.log.print(&Idle { idle: true });
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
                let opened = || self.queue.opened(job);
                let (end, answer) = file::answer(&self.device, job, opened, |result| {
                    self.queue.count(|counters| counters.files.count(result));
                });
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
        self.queue.count(|counters| {
            *match &answer {
                None => &mut counters.code.nothing,
                Some(answer) if answer.is_failure() => &mut counters.code.failed,
                Some(_) => &mut counters.code.described,
            } += 1;
        });
        self.print_any(answer);
        self.queue
            .finish(job, JobEnd::Undone, mapped(request, &maps));
    }

    fn print_any(&self, answer: Option<impl WatchLine>) {
        if let Some(answer) = answer {
            self.log.print(&answer);
            if answer.priority() <= Priority::Warning {
                self.remember(answer.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        exit::ExitReason,
        status, //
    };
    use std::{
        env,
        fs::{
            self,
            File, //
        },
        io::{
            Read,
            Write, //
        },
        os::unix::{
            fs::PermissionsExt,
            net::{
                UnixDatagram,
                UnixStream, //
            },
            process::ExitStatusExt, //
        },
        path::Path,
        process::{
            Command,
            Stdio, //
        },
        sync::mpsc,
        time::Duration, //
    };

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
        let status = "STATUS=0 waiting, 0 stuck, 0 answers, 0 failures, 0 dropped";
        assert_eq!(first.unwrap(), format!("READY=1\nWATCHDOG=1\n{status}\n"));
        assert_eq!(second.unwrap(), format!("WATCHDOG=1\n{status}\n"));
    }

    #[test]
    #[ignore = "runs in a process of its own"]
    fn serves_nothing() {
        if is_process_of("serves_nothing") {
            // The parent process never writes to it.
            let device = Device::of(File::open("/proc/self/fd/0").unwrap());
            let mut watch = Watch::new(device, false);
            watch.shown = env::var_os("RUNTIME_DIRECTORY").map(PathBuf::from);
            panic!("{}", Arc::new(watch).serve());
        }
    }

    /// What the socket answers to a request.
    fn answered(socket: &Path, request: &str) -> String {
        let mut client = UnixStream::connect(socket).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_state_is_shown_on_a_socket_and_in_a_file() {
        let directory = env::temp_dir().join(format!("shown-{}", process::id()));
        let mut watch = process_of("serves_nothing")
            .env("RUNTIME_DIRECTORY", &directory)
            .env("CACHE_DIRECTORY", "/does/not/exist")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (socket, metrics) = (directory.join("socket"), directory.join("metrics.prom"));
        let until = Instant::now() + Duration::from_secs(120);
        while !metrics.exists() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        let state = status::state(&socket).unwrap();
        assert_eq!(state.daemon.pid, watch.id());
        assert!(state.daemon.memory_bytes > 1 << 20);
        assert!(now() - state.daemon.started < 120);
        assert!(state.queue.workers > 1);
        // The pipe in place of the device answers nothing, and the cache is empty.
        assert!(state.module.is_none());
        assert_eq!((state.cache.files, state.counters.requests), (0, 0));
        let text = fs::read_to_string(&metrics).unwrap();
        assert!(
            text.contains("\nsframectl_jobs{state=\"waiting\"} 0\n"),
            "{text}"
        );
        let answer = answered(&socket, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(answered(&socket, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404 "));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&socket), mode(&metrics)), (0o600, 0o644));
        // There is one socket, for the first `watch`.
        let other = Monitor::open(&directory, 0).err().unwrap();
        assert!(other.contains("another `watch` runs"), "{other}");
        watch.kill().unwrap();
        watch.wait().unwrap();
        let gone = status::state(&socket).err().unwrap();
        assert_eq!(gone.reason, ExitReason::NoDaemon);
        // The next one takes the socket over.
        assert!(Monitor::open(&directory, 0).is_ok());
        fs::remove_dir_all(&directory).unwrap();
    }
}
