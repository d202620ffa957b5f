// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl watch`: gives the kernel the rows that it misses.

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

use serde::Serialize;
use walk::process::{
    self,
    FileId,
    Mapping, //
};

use crate::{
    add,
    device::{
        Device,
        Request, //
    },
    rows, //
};

/// For how long nothing has to be wanted before it says that it is idle.
const IDLE: Duration = Duration::from_millis(500);
/// How long a file may take. Programs of 100 MB take a second, under an emulator a minute.
const STUCK: Duration = Duration::from_secs(120);
/// How many files may take longer before nothing is done any more. Whoever mounts file systems that
/// never answer has 64 threads of this process, and no more.
const MOST_STUCK: usize = 64;
/// How many files of a user may wait.
const MOST_WAITING: usize = 1024;
/// How many files of a process are looked at beside the one that was met.
const MOST_MAPPED: usize = 256;
/// Of how many files it is remembered that they are done.
const MOST_DONE: usize = 1 << 16;

/// What is told of each file.
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

/// What tells a file from others: its device and inode.
type Key = ((u32, u32), u64);

fn key(want: &Request) -> Key {
    (want.device, want.inode)
}

/// A file that waits for its turn.
struct Job {
    want: Request,
    /// Whether the kernel has met its code. If not, a process that has met some other file's has mapped
    /// it, and will be there soon.
    met: bool,
    /// Whether it is at work already, as one that was mapped. What else the process that has met it has
    /// mapped is to be looked at all the same: the loader was not done when that was looked at first.
    at_work: bool,
    /// When it was asked for.
    since: Instant,
}

impl Job {
    fn new(want: Request, met: bool) -> Job {
        Job {
            want,
            met,
            at_work: false,
            since: Instant::now(),
        }
    }
}

/// A file that is at work.
struct Busy {
    user: u32,
    since: Instant,
}

impl Busy {
    /// A file system need never answer.
    fn is_stuck(&self) -> bool {
        self.since.elapsed() > STUCK
    }
}

/// What is to be done, by the user whose process has the file, and what is at work.
#[derive(Default)]
struct Jobs {
    waiting: BTreeMap<u32, VecDeque<Job>>,
    busy: BTreeMap<Key, Busy>,
    /// And since when.
    done: BTreeMap<Key, Instant>,
    /// Whose turn it was last.
    last: u32,
}

impl Jobs {
    /// Takes a file in, unless it is known, is of a file system that does not answer, or its user has
    /// too many: what is left out is wanted again if it is met again. What was met goes first.
    fn put(&mut self, job: Job) {
        let file = key(&job.want);
        let stuck = |(key, busy): (&Key, &Busy)| key.0 == file.0 && busy.is_stuck();
        let same = |other: &Job| key(&other.want) == file;
        let is_known = self.busy.contains_key(&file) || self.done.contains_key(&file);
        if self.busy.iter().any(stuck) || !job.met && is_known {
            return;
        }
        let waiting = self.waiting.entry(job.want.user).or_default();
        if waiting
            .iter()
            .any(|other| same(other) && other.met >= job.met)
        {
            return;
        }
        waiting.retain(|other| !same(other));
        if waiting.len() >= MOST_WAITING {
            match waiting.back() {
                Some(last) if job.met && !last.met => drop(waiting.pop_back()),
                _ => return,
            }
        }
        let behind = waiting.partition_point(|other| other.met >= job.met);
        waiting.insert(behind, job);
    }

    /// The next one, user by user in turn. No user but root has all of the `workers`.
    fn take(&mut self, workers: usize) -> Option<Job> {
        let most = workers.saturating_sub(1).max(1);
        loop {
            let busy = &self.busy;
            let may = |(user, waiting): (&u32, &VecDeque<Job>)| {
                let its = busy
                    .values()
                    .filter(|busy| busy.user == *user && !busy.is_stuck());
                (!waiting.is_empty() && (*user == 0 || its.count() < most)).then_some(*user)
            };
            let behind = (Bound::Excluded(self.last), Bound::Unbounded);
            let user = self.waiting.range(behind).find_map(may);
            let user = user.or_else(|| self.waiting.range(..=self.last).find_map(may))?;
            let waiting = self.waiting.get_mut(&user)?;
            let mut job = waiting.pop_front()?;
            if waiting.is_empty() {
                self.waiting.remove(&user);
            }
            // Meanwhile it may have been met by another name.
            if !job.met && self.done.contains_key(&key(&job.want)) {
                continue;
            }
            self.last = user;
            job.at_work = self.busy.contains_key(&key(&job.want));
            if !job.at_work {
                let since = Instant::now();
                self.busy.insert(key(&job.want), Busy { user, since });
            }
            return Some(job);
        }
    }

    /// It is at work no more. One that could not even be looked at is not done.
    fn finish(&mut self, want: &Request, is_done: bool) {
        self.busy.remove(&key(want));
        if is_done {
            self.remember(want);
        }
    }

    /// It need not be done again unless it is met.
    fn remember(&mut self, want: &Request) {
        if self.done.len() >= MOST_DONE {
            self.done.clear();
        }
        self.done.insert(key(want), Instant::now());
    }

    /// What is met is of an overlay's file below; what is mapped, of the overlay. Of a file that was met
    /// and is mapped as `mapped`, tells whether it is at work or done by that name since it was asked for.
    fn is_answered(&self, met: &Job, mapped: &Request) -> bool {
        let name = key(mapped);
        name != key(&met.want)
            && (self.busy.contains_key(&name)
                || self.done.get(&name).is_some_and(|when| *when >= met.since))
    }

    fn stuck(&self) -> usize {
        self.busy.values().filter(|busy| busy.is_stuck()).count()
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.busy.values().all(Busy::is_stuck)
    }
}

/// Answers wants until it is ended.
pub(crate) fn run(json: bool) -> Result<(), String> {
    let device = Device::open()?;
    if let Err(error) = add::add_vdso(&device) {
        add::complain("[vdso]", &error);
    }
    // One more than there are CPUs: some wait for disks.
    let workers = 1 + thread::available_parallelism().map_or(1, usize::from);
    let jobs = Mutex::new(Jobs::default());
    let changed = Condvar::new();
    let lock = || jobs.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        let mut open = lock();
        loop {
            let Some(job) = open.take(workers) else {
                open = changed.wait(open).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(open);
            let extra_rows = if job.met {
                mapped(&job.want)
            } else {
                Vec::new()
            };
            let mut is_answered = false;
            if !extra_rows.is_empty() {
                let mut open = lock();
                for want in extra_rows {
                    if want.start == job.want.start {
                        is_answered = open.is_answered(&job, &want);
                        open.remember(&want);
                    } else {
                        open.put(Job::new(want, false));
                    }
                }
                drop(open);
                changed.notify_all();
            }
            if job.at_work {
                open = lock();
                continue;
            }
            let is_done = is_answered || answer(&device, &job, json);
            // By now the loader may have mapped more, of which nothing need ever be met.
            let more = mapped(&job.want);
            open = lock();
            for want in more {
                open.put(Job::new(want, false));
            }
            open.finish(&job.want, is_done);
            // Another of its user's may be done now.
            changed.notify_all();
        }
    };
    thread::scope(|scope| {
        let mut started = 0;
        let mut is_idle = false;
        loop {
            // In place of those that wait for a file system that does not answer.
            while started < workers + lock().stuck().min(MOST_STUCK) {
                scope.spawn(work);
                started += 1;
            }
            if device.wait(IDLE)? {
                for want in device.wants()? {
                    is_idle = false;
                    lock().put(Job::new(want, true));
                    changed.notify_one();
                }
            } else if !is_idle && lock().is_idle() {
                is_idle = true;
                say(if json { "{\"idle\":true}" } else { "idle" });
            }
        }
    })
}

/// Where nobody reads it, it is not said.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The files whose code the process has mapped that has what was met, the first of them.
fn mapped(met: &Request) -> Vec<Request> {
    let is_code = |(mapping, file): &(Mapping, FileId)| mapping.executable && file.inode != 0;
    let want = |(mapping, file): (Mapping, FileId)| Request {
        pid: met.pid,
        start: mapping.start,
        end: mapping.end,
        device: file.device,
        inode: file.inode,
        build_id: String::new(),
        user: met.user,
        path: mapping.name,
    };
    // Where it has ended there are none any more.
    let maps = process::maps(met.pid.unsigned_abs()).unwrap_or_default();
    let code = maps.into_iter().filter(is_code).map(want);
    code.take(MOST_MAPPED).collect()
}

/// Gives the kernel what it lacks of a file, or says why not. False for a file that was not met and cannot be
/// opened, as its process has ended: whoever meets it asks again.
fn answer(device: &Device, job: &Job, json: bool) -> bool {
    let want = &job.want;
    let started = Instant::now();
    let result = match open(want) {
        // The kernel reads their sections by itself, when it meets them.
        Ok(file) if !job.met && !rows::are_missing(&file) => return true,
        Err(_) if !job.met => return false,
        opened => opened.and_then(|file| add::add(device, &file, want.user)),
    };
    let (rows, error) = match result {
        Ok(rows) => (Some(rows), None),
        Err(error) => (None, Some(error)),
    };
    let answer = Answer {
        pid: want.pid,
        file: &want.path,
        build_id: &want.build_id,
        rows,
        error,
        milliseconds: started.elapsed().as_millis(),
    };
    if json {
        if let Ok(line) = serde_json::to_string(&answer) {
            say(&line);
        }
        return true;
    }
    let name = match want.path.is_empty() {
        true => format!("{:#x} of process {}", want.start, want.pid),
        false => want.path.clone(),
    };
    match (&answer.error, rows) {
        (Some(error), _) => say(&format!("{name}: {error}")),
        (None, rows) => say(&format!(
            "{name}: {} rows, {} ms",
            rows.unwrap_or_default(),
            answer.milliseconds,
        )),
    }
    true
}

/// Opens the file that the process has mapped, whatever its name is by now; and where the process
/// has ended, by that name.
fn open(want: &Request) -> Result<File, String> {
    let link = process::map_file(want.pid.unsigned_abs(), want.start, want.end);
    let same = |file: &File| file.metadata().is_ok_and(|found| found.ino() == want.inode);
    match File::open(&link) {
        // Another file may be mapped there by now: its rows will do no harm.
        Ok(file) => Ok(file),
        Err(error) => match File::open(&want.path) {
            Ok(file) if same(&file) => Ok(file),
            _ => Err(format!(
                "the process has it no more ({}: {error})",
                link.display()
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(device: u32, inode: u64) -> Request {
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

    fn met(device: u32, inode: u64) -> Job {
        Job::new(want(device, inode), true)
    }

    fn of(user: u32, mut job: Job) -> Job {
        job.want.user = user;
        job
    }

    fn only_mapped(device: u32, inode: u64) -> Job {
        Job::new(want(device, inode), false)
    }

    /// Which inodes come next, until there is none.
    fn taken(jobs: &mut Jobs, workers: usize) -> Vec<u64> {
        std::iter::from_fn(|| jobs.take(workers))
            .map(|job| job.want.inode)
            .collect()
    }

    #[test]
    fn users_take_turns_and_none_has_all_workers() {
        let mut jobs = Jobs::default();
        for inode in 0..10 {
            jobs.put(of(1000, met(1, inode)));
        }
        jobs.put(of(1001, met(1, 20)));
        jobs.put(met(1, 30));
        jobs.put(met(1, 31));
        jobs.put(met(1, 32));
        // The same once more.
        jobs.put(of(1001, met(1, 20)));
        assert_eq!(taken(&mut jobs, 3), [0, 20, 30, 1, 31, 32]);
        assert!(!jobs.is_idle());
        jobs.put(of(1000, met(1, 0)));
        assert!(taken(&mut jobs, 3).is_empty());
        jobs.busy.remove(&key(&want(1, 0)));
        assert_eq!(taken(&mut jobs, 3), [2]);
    }

    #[test]
    fn one_user_has_no_more_waiting_than_others_bear() {
        let mut jobs = Jobs::default();
        for inode in 0..100_000 {
            jobs.put(of(1000, met(1, inode)));
        }
        jobs.put(met(1, 1 << 20));
        assert_eq!(jobs.waiting[&1000].len(), MOST_WAITING);
        assert_eq!(jobs.waiting[&0].len(), 1);
    }

    #[test]
    fn what_is_met_goes_before_what_is_mapped() {
        let mut jobs = Jobs::default();
        jobs.put(only_mapped(1, 1));
        jobs.put(only_mapped(1, 2));
        jobs.put(met(1, 3));
        jobs.put(met(1, 2));
        jobs.put(met(1, 4));
        // It is waiting already.
        jobs.put(only_mapped(1, 3));
        assert_eq!(taken(&mut jobs, 2), [3, 2, 4, 1]);
        for inode in 1..5 {
            jobs.finish(&want(1, inode), true);
        }
        // Is done; but the kernel may have lost it.
        jobs.put(only_mapped(1, 1));
        jobs.put(met(1, 2));
        assert_eq!(taken(&mut jobs, 2), [2]);
        // What is met has room where what is mapped had it all.
        for inode in 0..2000 {
            jobs.put(only_mapped(2, inode));
        }
        jobs.put(met(1, 5));
        assert_eq!(jobs.waiting[&0].len(), MOST_WAITING);
        assert_eq!(taken(&mut jobs, 2)[..2], [5, 0]);
    }

    #[test]
    fn what_is_met_while_at_work_is_looked_at_but_not_done_twice() {
        let mut jobs = Jobs::default();
        jobs.put(only_mapped(1, 1));
        assert!(jobs.take(2).is_some_and(|job| !job.at_work));
        jobs.put(only_mapped(1, 1));
        assert!(jobs.take(2).is_none());
        jobs.put(met(1, 1));
        assert!(jobs.take(2).is_some_and(|job| job.at_work));
        jobs.finish(&want(1, 1), true);
        assert!(jobs.is_idle());
    }

    #[test]
    fn a_file_of_an_overlay_is_added_once() {
        let (below, overlay) = (1, 2);
        let mut jobs = Jobs::default();
        // Mapped, and then met.
        jobs.put(only_mapped(overlay, 1));
        assert_eq!(taken(&mut jobs, 2), [1]);
        let job = met(below, 1);
        assert!(jobs.is_answered(&job, &want(overlay, 1)));
        jobs.finish(&want(overlay, 1), false);
        assert!(!jobs.is_answered(&job, &want(overlay, 1)));
        jobs.finish(&want(overlay, 1), true);
        assert!(jobs.is_answered(&job, &want(overlay, 1)));
        // The kernel has lost it since.
        assert!(!jobs.is_answered(&met(below, 1), &want(overlay, 1)));
        // Met, when it waits as mapped.
        jobs.put(only_mapped(overlay, 2));
        jobs.put(met(below, 2));
        let job = jobs.take(2).unwrap();
        assert!(!jobs.is_answered(&job, &want(overlay, 2)));
        jobs.remember(&want(overlay, 2));
        assert_eq!(taken(&mut jobs, 2), [0; 0]);
        // Where there is no overlay it is at work itself.
        assert!(!jobs.is_answered(&job, &job.want));
    }

    #[test]
    fn a_file_system_that_does_not_answer_is_left_alone() {
        let mut jobs = Jobs::default();
        jobs.put(of(1000, met(7, 1)));
        jobs.put(of(1000, met(7, 2)));
        assert_eq!(taken(&mut jobs, 2), [1]);
        let Some(long_ago) = Instant::now().checked_sub(2 * STUCK) else {
            // The machine has just been started, and its clock with it.
            return;
        };
        let busy = jobs.busy.values_mut().next().unwrap();
        busy.since = long_ago;
        assert_eq!(jobs.stuck(), 1);
        // What waits already has its chance, with a worker in place of the one that is stuck.
        assert_eq!(taken(&mut jobs, 2), [2]);
        jobs.busy.remove(&key(&want(7, 2)));
        assert!(jobs.is_idle());
        jobs.put(of(1000, met(7, 3)));
        jobs.put(of(1000, met(8, 4)));
        assert_eq!(taken(&mut jobs, 2), [4]);
    }
}
