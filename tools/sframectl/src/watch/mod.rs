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
    config,
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
        let workers = config::get()
            .workers
            .and_then(|workers| usize::try_from(workers).ok());
        let workers =
            workers.unwrap_or_else(|| 1 + thread::available_parallelism().map_or(1, usize::from));
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
            if config::get().excludes(&job.request) {
                self.leave_out(&job);
            } else if job.request.is_made_code() {
                self.answer_code(&job);
            } else {
                self.answer_file(&job);
            }
        }
    }

    /// Ends a job whose file or process the configuration leaves out. The module is told that there
    /// are no regions, so that it does not request the code again and again. It is told nothing of
    /// a file, which other processes may have mapped.
    fn leave_out(&self, job: &Job) {
        if job.in_progress {
            return;
        }
        if job.request.is_made_code() {
            self.queue.count(|counters| counters.code.excluded += 1);
            // The process may have ended.
            made_code::register_none(&self.device, &job.request, None);
        } else {
            self.queue.count(|counters| counters.files.excluded += 1);
        }
        self.queue.finish(job, JobEnd::Undone, Vec::new());
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
                let (end, answer) = file::answer(&self.device, job, opened, |counter| {
                    self.queue
                        .count(|counters| *counter(&mut counters.files) += 1);
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
        state::WatchState,
        status, //
    };
    use runtimes::uapi;
    use rustix::process::geteuid;
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
        mem::offset_of,
        os::unix::{
            fs::{
                MetadataExt,
                PermissionsExt, //
            },
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
            if let Some(path) = env::var_os("WATCH_CONFIG") {
                config::load(Path::new(&path)).unwrap();
            }
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

    /// A request of the module for this file, or, without a name, for code that a process has made.
    fn request_of(path: &str, inode: u64, user: u32) -> Vec<u8> {
        type Raw = uapi::sframe_unwind_request;
        let mut bytes = vec![0; size_of::<Raw>()];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &(size_of::<Raw>() as u16).to_ne_bytes());
        // No process has this number.
        put(offset_of!(Raw, pid), &i32::MAX.to_ne_bytes());
        put(offset_of!(Raw, start), &0x1000_u64.to_ne_bytes());
        put(offset_of!(Raw, end), &0x2000_u64.to_ne_bytes());
        put(offset_of!(Raw, inode), &inode.to_ne_bytes());
        put(offset_of!(Raw, user), &user.to_ne_bytes());
        put(offset_of!(Raw, path), path.as_bytes());
        bytes
    }

    #[test]
    fn answers_are_counted_by_result_and_what_is_excluded_is_left_out() {
        // Otherwise no file is root's.
        if !geteuid().is_root() {
            return;
        }
        let directory = env::temp_dir().join(format!("counted-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = |name: &str, mode| {
            let path = directory.join(name);
            fs::copy("/bin/true", &path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let inode = fs::metadata(&path).unwrap().ino();
            (path.to_str().unwrap().to_owned(), inode)
        };
        let (left_out, of_all, good) = (file("a", 0o755), file("b", 0o777), file("c", 0o755));
        let config = directory.join("config");
        let text = format!(
            "root_only = true\n[exclude]\npaths = [\"{}\"]\nusers = [1000]\n",
            left_out.0
        );
        fs::write(&config, text).unwrap();
        let mut watch = process_of("serves_nothing")
            .env("RUNTIME_DIRECTORY", &directory)
            .env("CACHE_DIRECTORY", directory.join("cache"))
            .env("WATCH_CONFIG", &config)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let requests = [
            request_of(&left_out.0, left_out.1, 0),
            request_of(&of_all.0, of_all.1, 0),
            request_of(&good.0, good.1, 1000),
            // This is no sframectl, so it cannot run one that converts.
            request_of(&good.0, good.1, 0),
            request_of("/does/not/exist", 7, 0),
            request_of("", 0, 1001),
            request_of("", 0, 0),
        ];
        let device = watch.stdin.as_mut().unwrap();
        let mut state = None;
        for (nth, request) in requests.iter().enumerate() {
            device.write_all(request).unwrap();
            let until = Instant::now() + Duration::from_secs(120);
            let is_answered = |state: &WatchState| state.counters.answered == nth as u64 + 1;
            while !state.as_ref().is_some_and(is_answered) && Instant::now() < until {
                thread::sleep(Duration::from_millis(10));
                state = status::state(&directory.join("socket")).ok();
            }
        }
        watch.kill().unwrap();
        watch.wait().unwrap();
        let counters = state.unwrap().counters;
        assert_eq!((counters.requests, counters.answered), (7, 7));
        assert!(now() - counters.requested < 120);
        assert_eq!(counters.dropped.all(), 0);
        let files = counters.files.by_result();
        let code = counters.code.by_result();
        // An ended process of another user is left out; root's cannot be read.
        assert_eq!(
            files.map(|(_, count)| count),
            [0, 0, 0, 1, 1, 3],
            "{files:?}"
        );
        assert_eq!(code.map(|(_, count)| count), [0, 0, 1, 1], "{code:?}");
        assert_eq!(counters.failed, 1);
        fs::remove_dir_all(&directory).unwrap();
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
