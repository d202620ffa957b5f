// SPDX-License-Identifier: GPL-2.0-only

//! The jobs of `watch`: which file or process is next, and which ones a thread is busy with.

use std::{
    collections::{
        BTreeMap,
        VecDeque, //
    },
    mem,
    ops::Bound,
    sync::{
        Condvar,
        Mutex,
        MutexGuard,
        PoisonError, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

use walk::process::FileId;

use super::counters::{
    now,
    WatchCounters, //
};
use crate::{
    device::Request,
    urgency, //
};

/// The time without a request after which `idle` is printed.
pub(super) const IDLE: Duration = Duration::from_millis(500);
/// The time after which a worker that waits for a file system counts as stuck.
const STUCK: Duration = Duration::from_secs(30);
/// The maximum number of workers that wait for file systems, for the files of one user but root. A
/// user who mounts file systems that never respond can block that many threads, and no more.
const MAX_STUCK: usize = 2;
/// The maximum number of waiting files of one user.
pub(super) const MAX_WAITING: usize = 1024;
/// The maximum number of files that are remembered as done.
const MAX_DONE: usize = 1 << 16;

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

/// Whether two requests name one mapping of a file. For an overlay's file the names of the devices
/// differ: see [`Jobs::is_answered`].
fn is_same_mapping(a: &Request, b: &Request) -> bool {
    let mapping = |request: &Request| (request.pid, request.start, request.inode);
    a.inode != 0 && mapping(a) == mapping(b)
}

/// How a job ends.
#[derive(Clone, Copy)]
pub(super) enum JobEnd {
    /// The file is not converted again unless it is seen.
    Done,
    /// The file could not be opened; or the process may make more code.
    Undone,
    /// The conversion was killed, or could not be started. It is tried again later.
    Failed,
}

/// Conversions of a file that have failed.
struct Failures {
    count: u32,
    /// The time from which the file may be tried again.
    until: Instant,
}

impl Failures {
    /// The time after so many failures during which the file is not tried: a minute at first, and
    /// 17 hours at last.
    fn pause(count: u32) -> Duration {
        const MOST: u32 = 10;
        Duration::from_secs(60) * (1 << count.saturating_sub(1).min(MOST))
    }
}

/// A file to convert, or a process with anonymous code.
pub(super) struct Job {
    pub(super) request: Request,
    /// Whether the kernel has seen the file in a stack. If not, the file was found among the
    /// mappings of a process in whose stack another file was seen.
    pub(super) seen: bool,
    /// Whether a worker is converting the file already, or has converted it since the request. The
    /// process's other mappings are read even then: the loader may have added mappings since they
    /// were read first.
    pub(super) in_progress: bool,
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

    /// The place in the order in which the files of one user are converted: seen files first. Of
    /// these, and of the others, first those that nearly each stack of a process leads through: the
    /// program, and the C library.
    fn rank(&self) -> (bool, bool) {
        let name = self.request.path.rsplit('/').next().unwrap_or_default();
        let is_library = name.ends_with(".so") || name.contains(".so.");
        let is_in_each_stack = !is_library || name.starts_with("libc.");
        (!self.seen, !is_in_each_stack)
    }
}

/// A job that a worker is busy with.
struct Busy {
    user: u32,
    /// The time since which the worker waits for a file system, which may never respond. `None`
    /// once the file is open and was read: what follows is a child's work, which has a limit of
    /// time.
    waits: Option<Instant>,
}

impl Busy {
    /// A job that begins.
    fn new(user: u32) -> Busy {
        let waits = Some(Instant::now());
        Busy { user, waits }
    }

    /// Whether the file system has not responded for too long.
    fn is_stuck(&self) -> bool {
        self.waits.is_some_and(|since| since.elapsed() > STUCK)
    }
}

/// The queues of files to convert, by the user whose process has the file mapped, and the files
/// that are being converted.
#[derive(Default)]
struct Jobs {
    waiting: BTreeMap<u32, VecDeque<Job>>,
    busy: BTreeMap<Key, Busy>,
    /// The converted files, with the time of completion.
    done: BTreeMap<Key, Instant>,
    /// The files that were converted in vain, and may be tried again later.
    failures: BTreeMap<Key, Failures>,
    /// The user whose file was taken last.
    last: u32,
    /// Whether `idle` was printed after the last request and the last end of a conversion.
    is_idle_said: bool,
    counters: WatchCounters,
}

impl Jobs {
    /// Whether a worker is stuck with this file, or with another file of the same file system and
    /// user, or whether [`MAX_STUCK`] workers are stuck with files of its user.
    fn is_refused(&self, request: &Request) -> bool {
        let file = key(request);
        let mut of_user = 0;
        for (key, busy) in self.busy.iter().filter(|(_, busy)| busy.is_stuck()) {
            let is_of_user = busy.user == request.user;
            of_user += usize::from(is_of_user);
            if *key == file || is_of_user && key.shares_device(file) {
                return true;
            }
        }
        request.user != 0 && of_user >= MAX_STUCK
    }

    /// Whether the conversion of a file has failed, and is not tried yet.
    fn pauses(&self, file: Key) -> bool {
        let failures = self.failures.get(&file);
        failures.is_some_and(|failures| Instant::now() < failures.until)
    }

    /// Drops the queued files that are refused by now.
    fn drop_refused(&mut self) {
        if self.stuck() == 0 {
            return;
        }
        let mut waiting = mem::take(&mut self.waiting);
        let count = |waiting: &BTreeMap<u32, VecDeque<Job>>| -> usize {
            waiting.values().map(VecDeque::len).sum()
        };
        let before = count(&waiting);
        waiting.retain(|_, jobs| {
            jobs.retain(|job| !self.is_refused(&job.request));
            !jobs.is_empty()
        });
        self.counters.dropped.stuck += (before - count(&waiting)) as u64;
        self.waiting = waiting;
    }

    /// Queues a file, in the order of [`Job::rank`]. A file is dropped if it is queued already, if
    /// it is refused or was converted in vain, or if its user's queue is full; a mapped file also
    /// if it is in progress or done. The module requests a dropped file anew when it sees the file
    /// again.
    fn put(&mut self, job: Job) {
        self.is_idle_said = false;
        let file = key(&job.request);
        let same = |other: &Job| {
            key(&other.request) == file || is_same_mapping(&other.request, &job.request)
        };
        let is_known = self.busy.contains_key(&file) || self.done.contains_key(&file);
        if self.is_refused(&job.request) {
            self.counters.dropped.stuck += 1;
            return;
        }
        if self.pauses(file) {
            self.counters.dropped.paused += 1;
            return;
        }
        if !job.seen && is_known {
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
            self.counters.dropped.full += 1;
            match waiting.back() {
                Some(last) if job.seen && !last.seen => drop(waiting.pop_back()),
                _ => return,
            }
        }
        let behind = waiting.partition_point(|other| other.rank() <= job.rank());
        waiting.insert(behind, job);
    }

    /// The user whose file is next: each in turn. No user but root occupies all `workers`, or more
    /// than [`MAX_STUCK`] that wait for file systems.
    fn next_user(&self, workers: usize) -> Option<u32> {
        let most = workers.saturating_sub(1).max(1);
        let can_run = |(user, waiting): (&u32, &VecDeque<Job>)| {
            let of_user = || self.busy.values().filter(|busy| busy.user == *user);
            let in_use = of_user().filter(|busy| !busy.is_stuck()).count();
            let waits = of_user().filter(|busy| busy.waits.is_some()).count();
            let may_run = *user == 0 || in_use < most && waits < MAX_STUCK;
            (!waiting.is_empty() && may_run).then_some(*user)
        };
        let after_last = (Bound::Excluded(self.last), Bound::Unbounded);
        let user = self.waiting.range(after_last).find_map(can_run);
        user.or_else(|| self.waiting.range(..=self.last).find_map(can_run))
    }

    /// Takes the next file.
    fn take(&mut self, workers: usize) -> Option<Job> {
        self.drop_refused();
        loop {
            let user = self.next_user(workers)?;
            let waiting = self.waiting.get_mut(&user)?;
            let mut job = waiting.pop_front()?;
            if waiting.is_empty() {
                self.waiting.remove(&user);
            }
            // An overlay's file may have been converted under its other identity since it was
            // queued.
            if !job.seen && self.done.contains_key(&key(&job.request)) {
                continue;
            }
            // It may have been queued when the conversion was in progress, which has failed since.
            if self.pauses(key(&job.request)) {
                self.counters.dropped.paused += 1;
                continue;
            }
            self.last = user;
            self.counters.taken += 1;
            job.in_progress |= self.busy.contains_key(&key(&job.request));
            if !job.in_progress {
                self.busy.insert(key(&job.request), Busy::new(user));
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

    /// Records that the worker of this job waits for the file system no longer.
    fn opened(&mut self, request: &Request) {
        if let Some(busy) = self.busy.get_mut(&key(request)) {
            busy.waits = None;
        }
    }

    /// Records the end of a job.
    fn finish(&mut self, request: &Request, end: JobEnd) {
        self.busy.remove(&key(request));
        self.counters.answered += 1;
        // A conversion that counted as stuck may end.
        self.is_idle_said = false;
        match end {
            JobEnd::Done => {
                self.failures.remove(&key(request));
                self.remember(key(request));
                self.answer_queued(request);
            }
            JobEnd::Undone => {}
            JobEnd::Failed => {
                self.counters.failed += 1;
                self.pause(key(request));
            }
        }
    }

    /// Marks the queued requests for a file that has been converted. A conversion may take longer
    /// than the module waits for the answer, so that the module requests the file again.
    fn answer_queued(&mut self, request: &Request) {
        // The code that a process makes may be other code by now.
        if request.is_made_code() {
            return;
        }
        for job in self.waiting.values_mut().flatten() {
            job.in_progress |= key(&job.request) == key(request);
        }
    }

    /// Records a failed conversion of a file.
    fn pause(&mut self, file: Key) {
        if self.failures.len() >= MAX_DONE {
            self.failures.clear();
        }
        let now = Instant::now();
        let failures = self.failures.entry(file).or_insert(Failures {
            count: 0,
            until: now,
        });
        failures.count = failures.count.saturating_add(1);
        failures.until = now + Failures::pause(failures.count);
    }

    /// Records a file as done: it is not converted again unless it is seen.
    fn remember(&mut self, file: Key) {
        if self.done.len() >= MAX_DONE {
            self.done.clear();
        }
        self.done.insert(file, Instant::now());
    }

    /// For an overlay's file the kernel reports the identity of the underlying file in a stack, and
    /// the overlay's identity in a mapping. Whether the file that was seen, and is mapped as
    /// `mapped`, is in progress under its mapped identity, or was converted under it after the
    /// request.
    fn is_answered(&self, seen: &Job, mapped: &Request) -> bool {
        let name = key(mapped);
        name != key(&seen.request)
            && (self.busy.contains_key(&name)
                || self.done.get(&name).is_some_and(|when| *when >= seen.since))
    }

    fn stuck(&self) -> usize {
        self.busy.values().filter(|busy| busy.is_stuck()).count()
    }

    fn health(&self, workers: usize) -> Health {
        let waiting = || self.waiting.values().map(VecDeque::len);
        let stuck = self.stuck();
        Health {
            waiting: waiting().sum(),
            waiting_of_one_user: waiting().max().unwrap_or(0),
            busy: self.busy.len() - stuck,
            stuck,
            workers,
            counters: self.counters.clone(),
            lacks_workers: self.busy.len() - stuck < workers && self.next_user(workers).is_some(),
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.busy.values().all(Busy::is_stuck)
    }

    /// Whether `idle` is to be printed now, which happens once until there is news.
    fn says_idle(&mut self) -> bool {
        self.drop_refused();
        let says = !self.is_idle_said && self.is_idle();
        self.is_idle_said |= says;
        says
    }
}

/// The state of the jobs in numbers.
pub(super) struct Health {
    /// The number of jobs that wait for a worker.
    pub(super) waiting: usize,
    /// The number of waiting jobs of the user who has most.
    pub(super) waiting_of_one_user: usize,
    /// The number of jobs that are being done, without those of workers that are stuck.
    pub(super) busy: usize,
    /// The number of workers that are stuck.
    pub(super) stuck: usize,
    /// The number of threads that are not stuck.
    pub(super) workers: usize,
    pub(super) counters: WatchCounters,
    /// Whether a job could be done now, and fewer workers are busy than there should be. This is
    /// so for a moment before a worker takes the job.
    pub(super) lacks_workers: bool,
}

/// The jobs, for all threads.
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    /// Notified when a thread may find a job.
    changed: Condvar,
    /// The number of threads that are not stuck.
    workers: usize,
}

impl Queue {
    /// A queue for this number of threads. The files in the cache are being added.
    pub(super) fn new(workers: usize) -> Queue {
        let mut jobs = Jobs::default();
        jobs.busy.insert(Key::Cached, Busy::new(0));
        Queue {
            jobs: Mutex::new(jobs),
            changed: Condvar::new(),
            workers,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of threads that are needed: some replace those that are stuck in a file system.
    pub(super) fn threads(&self) -> usize {
        self.workers + self.lock().stuck()
    }

    /// The state of the jobs in numbers.
    pub(super) fn health(&self) -> Health {
        self.lock().health(self.workers)
    }

    /// Takes the next job; waits until there is one. The thread's work is urgent then.
    pub(super) fn next(&self) -> Job {
        let mut jobs = self.lock();
        loop {
            let is_prepared = urgency::begin();
            if let Some(job) = jobs.take(self.workers) {
                return job;
            }
            jobs = if is_prepared {
                let woken = self.changed.wait(jobs);
                woken.unwrap_or_else(PoisonError::into_inner)
            } else {
                // Until the allowance is paid back: with a low priority the next answer would begin
                // late.
                let woken = self.changed.wait_timeout(jobs, IDLE);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Queues what the module has requested.
    pub(super) fn put(&self, request: Request) {
        let mut jobs = self.lock();
        jobs.counters.requests += 1;
        jobs.counters.requested = now();
        jobs.put(Job::new(request, true));
        drop(jobs);
        self.changed.notify_one();
    }

    /// Changes the counters.
    pub(super) fn count(&self, count: impl FnOnce(&mut WatchCounters)) {
        count(&mut self.lock().counters);
    }

    /// Queues the mapped files of the process of a job that is to be done. Returns whether the file
    /// of the job is answered under the identity that it has in its mapping.
    pub(super) fn put_mapped(&self, job: &Job, mapped: Vec<Request>) -> bool {
        if mapped.is_empty() {
            return false;
        }
        let mut is_answered = false;
        let mut jobs = self.lock();
        for request in mapped {
            if request.start == job.request.start {
                is_answered = jobs.is_answered(job, &request);
                jobs.remember(key(&request));
            } else {
                jobs.put(Job::new(request, false));
            }
        }
        drop(jobs);
        self.changed.notify_all();
        is_answered
    }

    /// Records that the worker of this job waits for the file system no longer.
    pub(super) fn opened(&self, job: &Job) {
        self.lock().opened(&job.request);
        // A further file of this user may be taken now.
        self.changed.notify_all();
    }

    /// Whether no other file of the process of this request is queued.
    pub(super) fn is_last(&self, request: &Request) -> bool {
        !self.lock().is_waiting(request)
    }

    /// Records the end of a job, and queues the files that its process has mapped.
    pub(super) fn finish(&self, job: &Job, end: JobEnd, mapped: Vec<Request>) {
        let mut jobs = self.lock();
        for request in mapped {
            jobs.put(Job::new(request, false));
        }
        jobs.finish(&job.request, end);
        drop(jobs);
        // A further file of this user may be taken now.
        self.changed.notify_all();
    }

    /// Records that the rows of these files were added from the cache. The mappings of a process
    /// name these files, too.
    pub(super) fn finish_cached(&self, files: &[FileId]) {
        let mut jobs = self.lock();
        for file in files {
            jobs.remember(Key::File(file.device, file.inode));
        }
        jobs.busy.remove(&Key::Cached);
        drop(jobs);
        self.changed.notify_all();
    }

    /// Whether `idle` is to be printed now, which happens once until there is news.
    pub(super) fn says_idle(&self) -> bool {
        self.lock().says_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Also when none of its workers waits for a file system.
        jobs.opened(&request(1, 0));
        jobs.opened(&request(1, 1));
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
        let health = jobs.health(2);
        assert_eq!(health.waiting_of_one_user, MAX_WAITING);
        assert_eq!(health.counters.dropped.full, 100_000 - MAX_WAITING as u64);
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
            jobs.finish(&request(1, inode), JobEnd::Done);
        }
        // It was requested again while it was converted; and then its process's mappings alone are
        // read.
        jobs.put(seen(1, 2));
        assert_eq!(jobs.take(2).map(|job| job.in_progress), Some(false));
        jobs.put(seen(1, 2));
        jobs.finish(&request(1, 2), JobEnd::Done);
        assert_eq!(jobs.take(2).map(|job| job.in_progress), Some(true));
        assert!(jobs.take(2).is_none());
        // It was requested again, and could not be opened for the first request, whose process has
        // it mapped.
        jobs.put(seen(1, 2));
        assert_eq!(jobs.take(2).map(|job| job.in_progress), Some(false));
        jobs.put(seen(1, 2));
        jobs.remember(key(&request(1, 2)));
        jobs.finish(&request(1, 2), JobEnd::Undone);
        assert_eq!(jobs.take(2).map(|job| job.in_progress), Some(false));
        jobs.finish(&request(1, 2), JobEnd::Done);
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
        jobs.finish(&request(1, 1), JobEnd::Done);
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
        jobs.finish(&request(overlay, 1), JobEnd::Undone);
        assert!(!jobs.is_answered(&job, &request(overlay, 1)));
        jobs.finish(&request(overlay, 1), JobEnd::Done);
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
        // Seen while it is queued as mapped, by a process that exits before its mappings are read.
        jobs.put(only_mapped(overlay, 3));
        jobs.put(seen(below, 3));
        jobs.put(only_mapped(overlay, 3));
        assert_eq!(taken(&mut jobs, 2), [3]);
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
        jobs.busy.insert(Key::Cached, Busy::new(0));
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
        jobs.finish(&taken[0].request, JobEnd::Undone);
        jobs.put(code(7, 0x2000));
        assert!(jobs.take(9).is_some_and(|job| !job.in_progress));
    }

    #[test]
    fn jobs_that_no_worker_takes_are_no_progress() {
        let mut jobs = Jobs::default();
        assert!(!jobs.health(2).lacks_workers);
        jobs.put(seen(1, 1));
        jobs.put(seen(1, 2));
        jobs.put(seen(1, 3));
        assert!(jobs.health(2).lacks_workers);
        jobs.take(2);
        assert!(jobs.health(2).lacks_workers);
        jobs.take(2);
        // Both workers are busy.
        let health = jobs.health(2);
        assert!(!health.lacks_workers);
        let WatchCounters {
            taken, answered, ..
        } = health.counters;
        assert_eq!((health.waiting, taken, answered), (1, 2, 0));
        jobs.finish(&request(1, 1), JobEnd::Done);
        assert!(jobs.health(2).lacks_workers);
        jobs.take(2);
        assert!(!jobs.health(2).lacks_workers);
        assert_eq!(jobs.health(2).counters.answered, 1);
        // A user may not occupy the other worker.
        jobs.finish(&request(1, 2), JobEnd::Done);
        jobs.finish(&request(1, 3), JobEnd::Done);
        jobs.put(of(1000, seen(1, 4)));
        jobs.put(of(1000, seen(1, 5)));
        jobs.take(2);
        assert!(!jobs.health(2).lacks_workers);
    }

    #[test]
    fn a_conversion_that_failed_is_tried_again_later() {
        let mut jobs = Jobs::default();
        let file = key(&request(1, 1));
        for count in 1..4 {
            jobs.put(seen(1, 1));
            assert_eq!(taken(&mut jobs, 2), [1]);
            // Seen while it is in progress.
            jobs.put(seen(1, 1));
            jobs.finish(&request(1, 1), JobEnd::Failed);
            assert!(taken(&mut jobs, 2).is_empty());
            assert!(jobs.is_idle());
            jobs.put(seen(1, 1));
            jobs.put(only_mapped(1, 1));
            assert!(jobs.waiting.is_empty());
            // The one that was seen while it was in progress, and these two.
            assert_eq!(jobs.counters.dropped.paused, 3 * u64::from(count));
            // Others of the file system are not held up.
            jobs.put(seen(1, 2));
            assert_eq!(taken(&mut jobs, 2), [2]);
            jobs.finish(&request(1, 2), JobEnd::Done);
            let failures = jobs.failures.get_mut(&file).unwrap();
            assert_eq!(failures.count, count);
            failures.until = Instant::now();
        }
        assert_eq!(jobs.health(2).counters.failed, 3);
        let minutes = [1, 2, 3, 11, u32::MAX].map(|count| Failures::pause(count).as_secs() / 60);
        assert_eq!(minutes, [1, 2, 4, 1024, 1024]);
        jobs.put(seen(1, 1));
        assert_eq!(taken(&mut jobs, 2), [1]);
        jobs.finish(&request(1, 1), JobEnd::Done);
        assert!(jobs.failures.is_empty());
    }

    /// Makes all workers wait for more than [`STUCK`]. `None` if the machine's clock has just
    /// started.
    fn much_later(jobs: &mut Jobs) -> Option<()> {
        let long_ago = Instant::now().checked_sub(2 * STUCK)?;
        for busy in jobs.busy.values_mut() {
            busy.waits = busy.waits.and(Some(long_ago));
        }
        Some(())
    }

    #[test]
    fn a_file_system_that_does_not_respond_is_skipped() {
        let mut jobs = Jobs::default();
        jobs.put(of(1000, seen(7, 1)));
        assert_eq!(taken(&mut jobs, 2), [1]);
        jobs.put(of(1000, seen(7, 2)));
        assert!(!jobs.says_idle());
        let Some(()) = much_later(&mut jobs) else {
            return;
        };
        assert_eq!(jobs.stuck(), 1);
        // Neither files that are queued already nor others are tried.
        assert!(jobs.says_idle());
        assert_eq!(jobs.counters.dropped.stuck, 1);
        assert!(!jobs.says_idle());
        jobs.put(of(1000, seen(7, 3)));
        // Nor is this very file, for anybody.
        jobs.put(of(1001, seen(7, 1)));
        jobs.put(of(1000, seen(8, 4)));
        // It may respond to others.
        jobs.put(of(1001, seen(7, 5)));
        jobs.put(seen(7, 6));
        assert_eq!(taken(&mut jobs, 2), [5, 6, 4]);
        for (device, inode) in [(8, 4), (7, 5), (7, 6)] {
            jobs.finish(&request(device, inode), JobEnd::Done);
        }
        assert!(jobs.says_idle());
        // It responds at last.
        jobs.finish(&request(7, 1), JobEnd::Done);
        assert!(jobs.says_idle());
    }

    #[test]
    fn a_long_conversion_is_not_stuck() {
        let mut jobs = Jobs::default();
        jobs.put(of(1000, seen(1, 1)));
        assert_eq!(taken(&mut jobs, 2), [1]);
        jobs.opened(&request(1, 1));
        let Some(()) = much_later(&mut jobs) else {
            return;
        };
        assert_eq!(jobs.stuck(), 0);
        assert!(!jobs.is_idle());
        // Others' files of the file system are converted meanwhile, and the user's own later.
        jobs.put(of(1000, seen(1, 2)));
        jobs.put(of(1001, seen(1, 3)));
        jobs.put(seen(1, 4));
        assert_eq!(taken(&mut jobs, 2), [3, 4]);
        jobs.finish(&request(1, 1), JobEnd::Done);
        assert_eq!(taken(&mut jobs, 2), [2]);
    }

    #[test]
    fn a_user_blocks_at_most_two_workers_by_file_systems() {
        let mut jobs = Jobs::default();
        for device in 10..80 {
            jobs.put(of(1000, seen(device, device.into())));
        }
        assert_eq!(taken(&mut jobs, 9).len(), MAX_STUCK);
        assert!(!jobs.health(9).lacks_workers);
        // One responds, and the next is tried.
        jobs.opened(&request(10, 10));
        assert_eq!(taken(&mut jobs, 9).len(), 1);
        let Some(()) = much_later(&mut jobs) else {
            return;
        };
        assert_eq!(jobs.stuck(), MAX_STUCK);
        assert!(taken(&mut jobs, 9).is_empty());
        assert!(jobs.waiting.is_empty());
        jobs.put(of(1000, seen(90, 90)));
        assert!(jobs.waiting.is_empty());
        // Others are served, and root has no such limit.
        jobs.put(of(1001, seen(90, 90)));
        for device in 20..24 {
            jobs.put(seen(device, 100 + u64::from(device)));
        }
        assert_eq!(taken(&mut jobs, 9).len(), 5);
        // The file systems respond at last.
        jobs.finish(&request(11, 11), JobEnd::Done);
        jobs.put(of(1000, seen(91, 91)));
        assert_eq!(taken(&mut jobs, 9).len(), 1);
    }
}
