// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl watch`: converts the files that the module requests, and describes the code that processes make. Confined
//! child processes parse the files, and read the memory of the processes.

use std::{
    collections::{
        BTreeMap,
        VecDeque, //
    },
    fs::File,
    io::{
        self,
        Write, //
    },
    ops::Bound,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Condvar,
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
    answer::printable,
    Code,
    Objects, //
};
use rustix::fs::{
    memfd_create,
    MemfdFlags, //
};
use serde::Serialize;
use walk::process::{
    self,
    FileId,
    ProcessMapping, //
};

use crate::{
    add,
    code,
    device::{
        Device,
        Region,
        Request,
        Target, //
    },
    rows,
    urgency, //
};

/// The time without a request after which `idle` is printed.
const IDLE: Duration = Duration::from_millis(500);
/// The time after which a conversion counts as stuck. Programs of 100 MB take a second; a minute in an
/// emulator.
const STUCK: Duration = Duration::from_secs(120);
/// The maximum number of workers that are started to replace stuck ones. A user who mounts file systems
/// that never respond can block that many threads, and no more.
const MAX_STUCK: usize = 64;
/// The maximum number of waiting files of one user.
const MAX_WAITING: usize = 1024;
/// The maximum number of a process's mapped files that are taken for one seen file.
const MAX_MAPPED: usize = 256;
/// The maximum number of files that are remembered as done.
const MAX_DONE: usize = 1 << 16;

/// The line that `--json` prints for each file.
#[derive(Serialize)]
struct Answer<'a> {
    pid: i32,
    file: &'a str,
    build_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    milliseconds: u128,
}

/// The line that `--json` prints for each process whose code belongs to no file.
#[derive(Serialize)]
struct CodeAnswer {
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    regions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    milliseconds: u128,
}

/// What a worker is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// The files in the cache, while their rows are added.
    Cached,
    /// A file, by its device and inode.
    File((u32, u32), u64),
    /// The code that a process has made, by the process's number.
    Code(i32),
}

impl Key {
    /// Whether both are files of one file system.
    fn shares_device(self, other: Key) -> bool {
        matches!((self, other), (Key::File(device, _), Key::File(other, _)) if device == other)
    }
}

fn key(request: &Request) -> Key {
    match request.is_made_code() {
        true => Key::Code(request.pid),
        false => Key::File(request.device, request.inode),
    }
}

/// A file to convert, or a process whose code belongs to no file.
struct Job {
    request: Request,
    /// Whether the kernel has seen the file in a stack. If not, the file was found among the mappings of
    /// a process in whose stack another file was seen.
    seen: bool,
    /// Whether a worker is converting the file already. The process's other mappings are read even
    /// then: the loader may have added mappings since they were read first.
    in_progress: bool,
    /// The time of the request.
    since: Instant,
}

impl Job {
    fn new(request: Request, seen: bool) -> Job {
        Job {
            request,
            seen,
            in_progress: false,
            since: Instant::now(),
        }
    }

    /// The place in the order in which the files of one user are converted: seen files first. Of these, and of the
    /// others, first those that nearly each stack of a process leads through: the program, and the C library.
    fn rank(&self) -> (bool, bool) {
        let name = self.request.path.rsplit('/').next().unwrap_or_default();
        let is_library = name.ends_with(".so") || name.contains(".so.");
        let is_in_each_stack = !is_library || name.starts_with("libc.");
        (!self.seen, !is_in_each_stack)
    }
}

/// A file that a worker is converting.
struct Busy {
    user: u32,
    since: Instant,
}

impl Busy {
    /// Whether the conversion has taken too long. A file system may never respond.
    fn is_stuck(&self) -> bool {
        self.since.elapsed() > STUCK
    }
}

/// The queues of files to convert, by the user whose process has the file mapped, and the files that are
/// being converted.
#[derive(Default)]
struct Jobs {
    waiting: BTreeMap<u32, VecDeque<Job>>,
    busy: BTreeMap<Key, Busy>,
    /// The converted files, with the time of completion.
    done: BTreeMap<Key, Instant>,
    /// The user whose file was taken last.
    last: u32,
    /// Whether `idle` was printed after the last request and the last end of a conversion.
    is_idle_said: bool,
}

impl Jobs {
    /// Queues a file, in the order of [`Job::rank`]. A file is dropped if it is queued already, if a
    /// file of its file system is stuck, or if its user's queue is full; a mapped file also if it is in
    /// progress or done. The module requests a dropped file anew when it sees the file again.
    fn put(&mut self, job: Job) {
        self.is_idle_said = false;
        let file = key(&job.request);
        let stuck = |(key, busy): (&Key, &Busy)| {
            (*key == file || key.shares_device(file)) && busy.is_stuck()
        };
        let same = |other: &Job| key(&other.request) == file;
        let is_known = self.busy.contains_key(&file) || self.done.contains_key(&file);
        if self.busy.iter().any(stuck) || !job.seen && is_known {
            return;
        }
        let waiting = self.waiting.entry(job.request.user).or_default();
        if waiting
            .iter()
            .any(|other| same(other) && other.seen >= job.seen)
        {
            return;
        }
        waiting.retain(|other| !same(other));
        if waiting.len() >= MAX_WAITING {
            match waiting.back() {
                Some(last) if job.seen && !last.seen => drop(waiting.pop_back()),
                _ => return,
            }
        }
        let behind = waiting.partition_point(|other| other.rank() <= job.rank());
        waiting.insert(behind, job);
    }

    /// Takes the next file, from each user in turn. No user but root occupies all `workers`.
    fn take(&mut self, workers: usize) -> Option<Job> {
        let most = workers.saturating_sub(1).max(1);
        loop {
            let busy = &self.busy;
            let can_run = |(user, waiting): (&u32, &VecDeque<Job>)| {
                let in_use = busy
                    .values()
                    .filter(|busy| busy.user == *user && !busy.is_stuck());
                (!waiting.is_empty() && (*user == 0 || in_use.count() < most)).then_some(*user)
            };
            let after_last = (Bound::Excluded(self.last), Bound::Unbounded);
            let user = self.waiting.range(after_last).find_map(can_run);
            let user = user.or_else(|| self.waiting.range(..=self.last).find_map(can_run))?;
            let waiting = self.waiting.get_mut(&user)?;
            let mut job = waiting.pop_front()?;
            if waiting.is_empty() {
                self.waiting.remove(&user);
            }
            // An overlay's file may have been converted under its other identity since it was queued.
            if !job.seen && self.done.contains_key(&key(&job.request)) {
                continue;
            }
            self.last = user;
            job.in_progress = self.busy.contains_key(&key(&job.request));
            if !job.in_progress {
                let since = Instant::now();
                self.busy.insert(key(&job.request), Busy { user, since });
            }
            return Some(job);
        }
    }

    /// Whether another file of the process of this request is queued.
    fn is_waiting(&self, request: &Request) -> bool {
        let waiting = self.waiting.get(&request.user);
        waiting.is_some_and(|waiting| {
            let mut processes = waiting.iter().map(|job| job.request.pid);
            processes.any(|pid| pid == request.pid)
        })
    }

    /// Records the end of a conversion. A file that could not be opened is not done.
    fn finish(&mut self, request: &Request, is_done: bool) {
        self.busy.remove(&key(request));
        // A conversion that counted as stuck may end.
        self.is_idle_said = false;
        if is_done {
            self.remember(key(request));
        }
    }

    /// Records a file as done: it is not converted again unless it is seen.
    fn remember(&mut self, file: Key) {
        if self.done.len() >= MAX_DONE {
            self.done.clear();
        }
        self.done.insert(file, Instant::now());
    }

    /// For an overlay's file the kernel reports the identity of the underlying file in a stack, and the
    /// overlay's identity in a mapping. Whether the file that was seen, and is mapped as `mapped`, is in
    /// progress under its mapped identity, or was converted under it after the request.
    fn is_answered(&self, seen: &Job, mapped: &Request) -> bool {
        let name = key(mapped);
        name != key(&seen.request)
            && (self.busy.contains_key(&name)
                || self.done.get(&name).is_some_and(|when| *when >= seen.since))
    }

    fn stuck(&self) -> usize {
        self.busy.values().filter(|busy| busy.is_stuck()).count()
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.busy.values().all(Busy::is_stuck)
    }

    /// Whether `idle` is to be printed now, which happens once until there is news.
    fn says_idle(&mut self) -> bool {
        let says = !self.is_idle_said && self.is_idle();
        self.is_idle_said |= says;
        says
    }
}

/// Serves requests until the process is killed.
pub(crate) fn run(json: bool) -> Result<(), String> {
    let device = Device::open()?;
    if let Err(error) = add::add_vdso(&device) {
        add::complain("[vdso]", &error);
    }
    // One more than there are CPUs, because some workers wait for disks.
    let workers = 1 + thread::available_parallelism().map_or(1, usize::from);
    let jobs = Mutex::new(Jobs::default());
    let changed = Condvar::new();
    let lock = || jobs.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        let mut queue = lock();
        loop {
            let is_prepared = urgency::begin();
            let Some(job) = queue.take(workers) else {
                queue = if is_prepared {
                    changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
                } else {
                    // Until the allowance is paid back: with a low priority the next answer would begin late.
                    let woken = changed.wait_timeout(queue, IDLE);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                };
                continue;
            };
            drop(queue);
            let request = &job.request;
            if request.is_made_code() {
                // The process decides how long this takes.
                urgency::end();
            }
            // The mappings are read once before the answer, and once after it.
            let opened = (request.is_made_code()).then(|| runtimes::open(request.pid));
            let others = match &opened {
                Some(Ok((_, maps))) => mapped(request, maps),
                None if job.seen => mapped(request, &maps_of(request)),
                _ => Vec::new(),
            };
            let mut is_answered = false;
            if !others.is_empty() {
                let mut queue = lock();
                for request in others {
                    if request.start == job.request.start {
                        is_answered = queue.is_answered(&job, &request);
                        queue.remember(key(&request));
                    } else {
                        queue.put(Job::new(request, false));
                    }
                }
                drop(queue);
                changed.notify_all();
            }
            if job.in_progress {
                queue = lock();
                continue;
            }
            let (is_done, maps) = match opened {
                // The process may make more code.
                Some(opened) => (false, answer_code(&device, request, opened, json)),
                None => {
                    let is_done = is_answered || answer(&device, &job, json);
                    // The mappings are read after the answer for the process's last file.
                    let is_last = !lock().is_waiting(request);
                    let maps = is_last.then(|| maps_of(request));
                    (is_done, maps.unwrap_or_default())
                }
            };
            // The loader may have mapped more files since, which may never be seen in a stack.
            let more = mapped(request, &maps);
            queue = lock();
            for request in more {
                queue.put(Job::new(request, false));
            }
            queue.finish(&job.request, is_done);
            // A further file of this user may be taken now.
            changed.notify_all();
        }
    };
    let now = Busy {
        user: 0,
        since: Instant::now(),
    };
    lock().busy.insert(Key::Cached, now);
    thread::scope(|scope| {
        // A thread of its own, because one of the names may lie on a file system that never responds.
        scope.spawn(|| {
            let started = Instant::now();
            let files = add::add_cached(&device);
            print_cached(files.len(), started.elapsed(), json);
            let mut queue = lock();
            // The mappings of a process name these files, too.
            for file in files {
                queue.remember(Key::File(file.device, file.inode));
            }
            queue.busy.remove(&Key::Cached);
            drop(queue);
            changed.notify_all();
        });
        let mut started = 0;
        loop {
            // Replaces workers that are stuck in a file system.
            while started < workers + lock().stuck().min(MAX_STUCK) {
                urgency::end();
                scope.spawn(work);
                started += 1;
            }
            urgency::begin();
            if device.wait(IDLE)? {
                for request in device.requests()? {
                    lock().put(Job::new(request, true));
                    changed.notify_one();
                }
            } else if lock().says_idle() {
                print_line(if json { "{\"idle\":true}" } else { "idle" });
            }
        }
    })
}

/// Prints the number of files whose rows were added from the cache.
fn print_cached(files: usize, time: Duration, json: bool) {
    let milliseconds = time.as_millis();
    print_line(&match json {
        true => format!("{{\"cached_files\":{files},\"milliseconds\":{milliseconds}}}"),
        false => format!("cache: {files} files, {milliseconds} ms"),
    });
}

/// Prints a line, in which users choose the names of files. Errors are ignored: there may be no reader.
fn print_line(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{}", printable(line)).and_then(|()| out.flush());
}

/// Prints an answer as one line of JSON.
fn print_json(answer: &impl Serialize) {
    if let Ok(line) = serde_json::to_string(answer) {
        print_line(&line);
    }
}

/// The text of the mappings of the process. A process that has exited has no mappings.
fn maps_of(request: &Request) -> String {
    process::maps_text(request.pid.unsigned_abs()).unwrap_or_default()
}

/// The first [`MAX_MAPPED`] files that the process of a seen file has mapped executable; `maps` is the text of its
/// mappings.
fn mapped(seen: &Request, maps: &str) -> Vec<Request> {
    let is_code = |(_, file): &(ProcessMapping, FileId)| file.inode != 0;
    let request = |(mapping, file): (ProcessMapping, FileId)| Request {
        pid: seen.pid,
        start: mapping.start,
        end: mapping.end,
        device: file.device,
        inode: file.inode,
        build_id: String::new(),
        user: seen.user,
        path: mapping.name,
    };
    let maps = process::parse_executable(maps).unwrap_or_default();
    let code = maps.into_iter().filter(is_code).map(request);
    code.take(MAX_MAPPED).collect()
}

/// Converts a file and adds its rows, and prints the result. Returns false for a file that was not seen
/// and cannot be opened because its process has exited: the module requests it once it is seen.
fn answer(device: &Device, job: &Job, json: bool) -> bool {
    let request = &job.request;
    let started = Instant::now();
    let result = match open(request) {
        // The module reads a file's own section when it sees the file.
        Ok(file) if !job.seen && !rows::are_missing(&file) => return true,
        Err(_) if !job.seen => return false,
        Ok(file) => {
            let added = add::add(device, &file, Path::new(&request.path), request.user);
            // A runtime may have its code in a file in memory. The module asks for the code, too, and that answer
            // counts.
            if added.is_err() && !rows::is_elf(&file) && is_memory_of_no_file(request) {
                return true;
            }
            added
        }
        Err(error) => Err(error),
    };
    let (rows, error) = match result {
        Ok(rows) => (Some(rows), None),
        Err(error) => (None, Some(error)),
    };
    let answer = Answer {
        pid: request.pid,
        file: &request.path,
        build_id: &request.build_id,
        rows,
        error,
        milliseconds: started.elapsed().as_millis(),
    };
    if json {
        print_json(&answer);
        return true;
    }
    let name = match request.path.is_empty() {
        true => format!("{:#x} of process {}", request.start, request.pid),
        false => request.path.clone(),
    };
    match (&answer.error, rows) {
        (Some(error), _) => print_line(&format!("{name}: {error}")),
        (None, rows) => print_line(&format!(
            "{name}: {} rows, {} ms",
            rows.unwrap_or_default(),
            answer.milliseconds,
        )),
    }
    true
}

/// Whether the module takes the requested mapping for memory of no file.
fn is_memory_of_no_file(request: &Request) -> bool {
    let mut memory = process::memory_of_no_file(&maps_of(request)).into_iter();
    memory.any(|part| part.contains(&request.start))
}

/// Finds the code that a process has made, registers its regions, and prints the result if there is a runtime or an error.
/// While the runtime is starting, nothing is done: the module requests the code again. `opened` are the memory and the
/// mappings of the process. Returns the text of the mappings after the code was found; it is empty if they cannot be
/// read.
fn answer_code(
    device: &Device,
    request: &Request,
    opened: Result<(File, String), String>,
    json: bool,
) -> String {
    let started = Instant::now();
    let range = (request.start, request.end);
    let (found, maps) = match opened {
        Ok((memory, maps)) => code::find(request.pid, range, memory, &maps, &known(request.pid)),
        Err(error) => (Err(error), String::new()),
    };
    answer_found(device, request, found, started, json);
    maps
}

/// Registers the regions of code that was found, and prints the result.
fn answer_found(
    device: &Device,
    request: &Request,
    found: Result<Code, String>,
    started: Instant,
    json: bool,
) {
    let none = || vec![runtimes::none(request.pid, request.start, request.end)];
    // The regions that are left to register, and the number of all.
    let (runtime, regions, count, error) = match found {
        Ok(Code::Starting(_)) => return,
        Ok(Code::Regions(name, mut regions)) => {
            let is_there =
                |region: &Region| region.start < request.end && request.start < region.end;
            // Other code of the process is not requested again and again.
            if !regions.iter().any(is_there) {
                regions.extend(none());
            }
            let count = regions.len();
            (Some(name), regions, count, None)
        }
        Ok(Code::Unknown) => (None, none(), 0, None),
        Ok(Code::Objects(found)) => match add_objects(device, request, &found) {
            // Other code may follow at these addresses: nothing is said of it.
            Ok(found) if !found.is_new => return,
            Ok(found) => (Some(found.runtime), Vec::new(), found.count, None),
            Err(error) => (None, none(), 0, Some(error)),
        },
        Err(error) => (None, none(), 0, Some(error)),
    };
    let added = regions
        .iter()
        .try_for_each(|region| device.add_region(region));
    let error = error.or(added.err());
    // Most processes with such code have no known runtime, and are requested every ten seconds.
    if runtime.is_none() && error.is_none() {
        return;
    }
    let answer = CodeAnswer {
        pid: request.pid,
        runtime,
        regions: runtime.map(|_| count),
        error,
        milliseconds: started.elapsed().as_millis(),
    };
    if json {
        print_json(&answer);
        return;
    }
    let name = format!("code of process {}", request.pid);
    print_line(&match (answer.error, runtime) {
        (Some(error), _) => format!("{name}: {error}"),
        (None, runtime) => {
            let milliseconds = answer.milliseconds;
            let runtime = runtime.unwrap_or_default();
            format!("{name}: {runtime}, {count} regions, {milliseconds} ms")
        }
    });
}

/// An object that a process has loaded without a file, and the file in memory that its rows were added for. The module
/// keeps the rows while the file exists.
struct LoadedObject {
    pid: i32,
    start: u64,
    end: u64,
    /// The number of its contents ([`code::content`]).
    content: u64,
    file: File,
}

/// The last [`MAX_OBJECTS`] objects, by the time at which they were loaded.
static OBJECTS: Mutex<VecDeque<LoadedObject>> = Mutex::new(VecDeque::new());
const MAX_OBJECTS: usize = 128;

/// The numbers of the contents of the objects of a process whose rows were added.
fn known(pid: i32) -> Vec<u64> {
    let objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let of_process = objects.iter().filter(|object| object.pid == pid);
    of_process.map(|object| object.content).collect()
}

/// The code with rows that was found for a request.
struct FoundObjects {
    /// The runtime's name.
    runtime: &'static str,
    /// The number of regions that were registered.
    count: usize,
    /// Whether any of the code is new.
    is_new: bool,
}

/// Adds the rows of the objects in code of no file, and registers their regions.
fn add_objects(
    device: &Device,
    request: &Request,
    found: &Objects,
) -> Result<FoundObjects, String> {
    let pid = request.pid;
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut is_new = false;
    for region in &found.regions {
        device.add_region(region)?;
    }
    for object in &found.objects {
        let content = code::content(object);
        let is_known = |other: &LoadedObject| {
            (other.pid, other.start, other.content) == (pid, object.start, content)
        };
        if !objects.iter().any(is_known) {
            let name = format!("code of process {pid} at {:#x}", object.start);
            let file = memory_file(&name, &object.file)
                .map_err(|error| format!("cannot make a file in memory: {error}"))?;
            match rows::unpack(object.rows.clone()) {
                Some(rows) => add::add_rows(device, &file, &rows, request.user)?,
                // It cannot be converted; or it was known, but is not any more.
                None => add::add(device, &file, Path::new(&name), request.user)?,
            };
            is_new = true;
            objects.push_back(LoadedObject {
                pid,
                start: object.start,
                end: object.end,
                content,
                file,
            });
        }
        if let Some(known) = objects.iter().find(|other| is_known(other)) {
            device.add_region(&runtimes::object_region(pid, object, &known.file))?;
        }
        // The new region has replaced these objects' regions. Objects that do not grow may come back.
        let is_replaced = |other: &LoadedObject| {
            let overlaps = other.start < object.end && object.start < other.end;
            found.grow && other.pid == pid && overlaps && !is_known(other)
        };
        while let Some(index) = objects.iter().position(is_replaced) {
            remove_object(device, objects.remove(index))?;
        }
        if objects.len() > MAX_OBJECTS {
            remove_object(device, objects.pop_front())?;
        }
    }
    Ok(FoundObjects {
        runtime: found.runtime,
        count: found.objects.len() + found.regions.len(),
        is_new,
    })
}

/// Removes the rows of an object.
fn remove_object(device: &Device, object: Option<LoadedObject>) -> Result<(), String> {
    object.map_or(Ok(()), |object| {
        device.remove(Target::File(&object.file)).map(|_| ())
    })
}

/// A file in memory with this content.
fn memory_file(name: &str, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Opens the file by the process's mapping, so that a renamed or deleted file is found, too. If the
/// process has exited, opens the file by its path.
fn open(request: &Request) -> Result<File, String> {
    let link = process::map_file(request.pid.unsigned_abs(), request.start, request.end);
    let same = |file: &File| {
        file.metadata()
            .is_ok_and(|found| found.ino() == request.inode)
    };
    match rows::open_regular(&link) {
        // Another file may be mapped there by now. Converting that one does no harm.
        Ok(file) => Ok(file),
        Err(error) => match rows::open_regular(Path::new(&request.path)) {
            Ok(file) if same(&file) => Ok(file),
            _ => Err(format!(
                "the process has unmapped the file ({}: {error})",
                link.display()
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{
        mknodat,
        FileType,
        Mode,
        CWD, //
    };
    use std::{
        env,
        fs,
        process, //
    };

    #[test]
    fn a_file_is_opened_by_name_if_it_is_the_seen_file() {
        let directory = env::temp_dir().join(format!("opened-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let seen = |name: &str| {
            let path = directory.join(name);
            let inode = fs::metadata(&path).unwrap().ino();
            // The process has ended.
            let request = Request {
                pid: i32::MAX,
                path: path.to_str().unwrap().into(),
                ..request(1, inode)
            };
            open(&request)
        };
        fs::write(directory.join("file"), "x").unwrap();
        assert!(seen("file").is_ok());
        // Nobody writes to this FIFO, so it would never be open.
        mknodat(CWD, directory.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let error = seen("fifo").unwrap_err();
        assert!(error.contains("has unmapped the file"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn names_forge_no_lines() {
        assert_eq!(
            printable("a\n<0>b\u{1b}[1m\u{7f} \u{e4}"),
            "a?<0>b?[1m? \u{e4}"
        );
    }

    fn request(device: u32, inode: u64) -> Request {
        Request {
            pid: 1,
            start: 0,
            end: 0,
            device: (0, device),
            inode,
            build_id: String::new(),
            user: 0,
            path: String::new(),
        }
    }

    fn seen(device: u32, inode: u64) -> Job {
        Job::new(request(device, inode), true)
    }

    fn of(user: u32, mut job: Job) -> Job {
        job.request.user = user;
        job
    }

    fn only_mapped(device: u32, inode: u64) -> Job {
        Job::new(request(device, inode), false)
    }

    /// Takes files until none is left, and returns their inodes.
    fn taken(jobs: &mut Jobs, workers: usize) -> Vec<u64> {
        std::iter::from_fn(|| jobs.take(workers))
            .map(|job| job.request.inode)
            .collect()
    }

    #[test]
    fn users_take_turns_and_none_has_all_workers() {
        let mut jobs = Jobs::default();
        for inode in 0..10 {
            jobs.put(of(1000, seen(1, inode)));
        }
        jobs.put(of(1001, seen(1, 20)));
        jobs.put(seen(1, 30));
        jobs.put(seen(1, 31));
        jobs.put(seen(1, 32));
        // A duplicate.
        jobs.put(of(1001, seen(1, 20)));
        assert_eq!(taken(&mut jobs, 3), [0, 20, 30, 1, 31, 32]);
        assert!(!jobs.is_idle());
        jobs.put(of(1000, seen(1, 0)));
        assert!(taken(&mut jobs, 3).is_empty());
        jobs.busy.remove(&key(&request(1, 0)));
        assert_eq!(taken(&mut jobs, 3), [2]);
    }

    #[test]
    fn the_queue_of_one_user_is_limited() {
        let mut jobs = Jobs::default();
        for inode in 0..100_000 {
            jobs.put(of(1000, seen(1, inode)));
        }
        jobs.put(seen(1, 1 << 20));
        assert_eq!(jobs.waiting[&1000].len(), MAX_WAITING);
        assert_eq!(jobs.waiting[&0].len(), 1);
    }

    #[test]
    fn seen_files_precede_mapped_files() {
        let mut jobs = Jobs::default();
        jobs.put(only_mapped(1, 1));
        jobs.put(only_mapped(1, 2));
        jobs.put(seen(1, 3));
        jobs.put(seen(1, 2));
        jobs.put(seen(1, 4));
        // It is queued already.
        jobs.put(only_mapped(1, 3));
        assert_eq!(taken(&mut jobs, 2), [3, 2, 4, 1]);
        for inode in 1..5 {
            jobs.finish(&request(1, inode), true);
        }
        // It is done, but the kernel may have evicted its table.
        jobs.put(only_mapped(1, 1));
        jobs.put(seen(1, 2));
        assert_eq!(taken(&mut jobs, 2), [2]);
        // A seen file replaces a mapped one in a full queue.
        for inode in 0..2000 {
            jobs.put(only_mapped(2, inode));
        }
        jobs.put(seen(1, 5));
        assert_eq!(jobs.waiting[&0].len(), MAX_WAITING);
        assert_eq!(taken(&mut jobs, 2)[..2], [5, 0]);
    }

    #[test]
    fn the_program_and_the_c_library_precede_other_files() {
        let mut jobs = Jobs::default();
        let named = |inode, path: &str, seen| {
            let path = path.to_owned();
            let request = Request {
                path,
                ..request(1, inode)
            };
            Job::new(request, seen)
        };
        jobs.put(named(1, "/usr/lib/ld-linux-x86-64.so.2", true));
        jobs.put(named(2, "/usr/lib/libm.so.6", true));
        jobs.put(named(3, "/usr/bin/perl", true));
        jobs.put(named(4, "/usr/lib/libcrypt.so.1.1.0", false));
        jobs.put(named(5, "/usr/lib/libc.so.6", true));
        jobs.put(named(6, "/usr/lib/libc.so.6", false));
        jobs.put(named(7, "/opt/libcurl.so", true));
        assert!(jobs.is_waiting(&request(1, 8)));
        let of_another = Request {
            pid: 2,
            ..request(1, 1)
        };
        assert!(!jobs.is_waiting(&of_another));
        assert_eq!(taken(&mut jobs, 2), [3, 5, 1, 2, 7, 6, 4]);
        assert!(!jobs.is_waiting(&request(1, 8)));
    }

    #[test]
    fn a_file_seen_while_in_progress_is_taken_but_not_converted_twice() {
        let mut jobs = Jobs::default();
        jobs.put(only_mapped(1, 1));
        assert!(jobs.take(2).is_some_and(|job| !job.in_progress));
        jobs.put(only_mapped(1, 1));
        assert!(jobs.take(2).is_none());
        jobs.put(seen(1, 1));
        assert!(jobs.take(2).is_some_and(|job| job.in_progress));
        jobs.finish(&request(1, 1), true);
        assert!(jobs.is_idle());
    }

    #[test]
    fn a_file_of_an_overlay_is_added_once() {
        let (below, overlay) = (1, 2);
        let mut jobs = Jobs::default();
        // Mapped, and then seen.
        jobs.put(only_mapped(overlay, 1));
        assert_eq!(taken(&mut jobs, 2), [1]);
        let job = seen(below, 1);
        assert!(jobs.is_answered(&job, &request(overlay, 1)));
        jobs.finish(&request(overlay, 1), false);
        assert!(!jobs.is_answered(&job, &request(overlay, 1)));
        jobs.finish(&request(overlay, 1), true);
        assert!(jobs.is_answered(&job, &request(overlay, 1)));
        // The kernel has evicted its table since.
        assert!(!jobs.is_answered(&seen(below, 1), &request(overlay, 1)));
        // Seen while it is queued as mapped.
        jobs.put(only_mapped(overlay, 2));
        jobs.put(seen(below, 2));
        let job = jobs.take(2).unwrap();
        assert!(!jobs.is_answered(&job, &request(overlay, 2)));
        jobs.remember(key(&request(overlay, 2)));
        assert_eq!(taken(&mut jobs, 2), [0; 0]);
        // Without an overlay both identities are equal, and the file itself is in progress.
        assert!(!jobs.is_answered(&job, &job.request));
    }

    #[test]
    fn code_of_no_file_is_one_job_for_each_process() {
        let code = |pid, start| {
            let mut job = seen(0, 0);
            (job.request.pid, job.request.start) = (pid, start);
            job
        };
        let mut jobs = Jobs::default();
        let now = Busy {
            user: 0,
            since: Instant::now(),
        };
        jobs.busy.insert(Key::Cached, now);
        jobs.put(code(7, 0x1000));
        jobs.put(code(7, 0x2000));
        jobs.put(code(8, 0x1000));
        // A file with the inode 0.
        jobs.put(seen(3, 0));
        let taken: Vec<_> = std::iter::from_fn(|| jobs.take(9)).collect();
        let places = taken
            .iter()
            .map(|job| (job.request.pid, job.request.start, job.in_progress));
        let places: Vec<_> = places.collect();
        assert_eq!(
            places,
            [(7, 0x1000, false), (8, 0x1000, false), (1, 0, false)]
        );
        // The process is asked about again, also when it was answered.
        jobs.put(code(7, 0x2000));
        assert!(jobs.take(9).is_some_and(|job| job.in_progress));
        jobs.finish(&taken[0].request, false);
        jobs.put(code(7, 0x2000));
        assert!(jobs.take(9).is_some_and(|job| !job.in_progress));
    }

    #[test]
    fn a_file_system_that_does_not_respond_is_skipped() {
        let mut jobs = Jobs::default();
        jobs.put(of(1000, seen(7, 1)));
        jobs.put(of(1000, seen(7, 2)));
        assert_eq!(taken(&mut jobs, 2), [1]);
        let Some(long_ago) = Instant::now().checked_sub(2 * STUCK) else {
            // The machine's clock has just started.
            return;
        };
        assert!(!jobs.says_idle());
        let busy = jobs.busy.values_mut().next().unwrap();
        busy.since = long_ago;
        assert_eq!(jobs.stuck(), 1);
        // Files that are queued already are tried, with a worker that replaces the stuck one.
        assert_eq!(taken(&mut jobs, 2), [2]);
        jobs.busy.remove(&key(&request(7, 2)));
        assert!(jobs.says_idle());
        assert!(!jobs.says_idle());
        jobs.put(of(1000, seen(7, 3)));
        jobs.put(of(1000, seen(8, 4)));
        assert_eq!(taken(&mut jobs, 2), [4]);
        jobs.finish(&request(8, 4), true);
        assert!(jobs.says_idle());
        // It responds at last.
        jobs.finish(&request(7, 1), true);
        assert!(jobs.says_idle());
    }
}
