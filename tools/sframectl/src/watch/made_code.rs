// SPDX-License-Identifier: GPL-2.0-only

//! Answers about anonymous code: `watch` describes the code that a process makes to the module.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{
        self,
        Write, //
    },
    mem,
    os::fd::OwnedFd,
    sync::{
        Arc,
        Mutex,
        MutexGuard,
        PoisonError, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

use runtimes::{
    Code,
    CodeObject,
    Objects, //
};
use rustix::{
    event::{
        poll,
        PollFd,
        PollFlags,
        Timespec, //
    },
    fs::{
        memfd_create,
        MemfdFlags, //
    },
    process::{
        pidfd_open,
        Pid,
        PidfdFlags, //
    },
};
use serde::Serialize;

use super::log::{
    Priority,
    WatchLine, //
};
use crate::{
    add,
    code,
    device::{
        ChangeTime,
        Device,
        Region,
        Request,
        Target, //
    },
    rows::{
        self,
        ConvertedRows, //
    }, //
};

/// The limits for the objects of one user: their number, and the size of their files in bytes. A
/// process may have 24.
const MAX_OBJECTS: usize = 128;
const MAX_BYTES: usize = 64 << 20;
/// The maximum number of objects of all users. Each takes two file descriptors.
const MAX_OF_ALL: usize = 256;
/// The time after a search in vain, during which the process is not searched again.
const PAUSE: Duration = Duration::from_secs(2);

/// What is printed for each process with anonymous code.
#[derive(Serialize)]
pub(super) struct CodeAnswer {
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    regions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    milliseconds: u128,
}

impl CodeAnswer {
    /// Whether the module was not told of the code.
    pub(super) fn is_failure(&self) -> bool {
        self.error.is_some()
    }
}

impl WatchLine for CodeAnswer {
    const TYPE: &'static str = "code";

    fn priority(&self) -> Priority {
        match self.is_failure() {
            true => Priority::of_failure(self.pid),
            false => Priority::Info,
        }
    }
}

impl fmt::Display for CodeAnswer {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "code of process {}: ", self.pid)?;
        match &self.error {
            Some(error) => to.write_str(error),
            None => write!(
                to,
                "{}, {} regions, {} ms",
                self.runtime.unwrap_or_default(),
                self.regions.unwrap_or_default(),
                self.milliseconds
            ),
        }
    }
}

/// What the module does for objects.
pub(super) trait Module {
    /// Adds the rows of an object, which are charged to `user`, for a file in memory.
    fn add_rows(&self, file: &File, rows: &ConvertedRows, user: u32) -> Result<(), String>;
    /// Removes the rows of an object. If that fails, the module evicts them some day.
    fn remove_rows(&self, file: &File);
    fn add_region(&self, region: &Region) -> Result<(), String>;
}

impl Module for Device {
    fn add_rows(&self, file: &File, rows: &ConvertedRows, user: u32) -> Result<(), String> {
        let state = file.metadata().map_err(|error| error.to_string())?;
        let changed = ChangeTime::from(&state);
        Ok(add::add_rows(self, file, changed, rows, user)?)
    }

    fn remove_rows(&self, file: &File) {
        let _ = self.remove(Target::File(file));
    }

    fn add_region(&self, region: &Region) -> Result<(), String> {
        Device::add_region(self, region)
    }
}

/// An object that a process has loaded without a file, and the file in memory that its rows were
/// added for. The module keeps the rows while the file exists.
struct LoadedObject {
    user: u32,
    pid: i32,
    /// A descriptor of the process.
    process: OwnedFd,
    start: u64,
    end: u64,
    /// The number of its contents ([`code::content`]).
    content: u64,
    /// The size of the file in bytes.
    size: usize,
    file: Arc<File>,
}

impl LoadedObject {
    fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.process, PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1))
    }
}

/// The objects of all running processes, for all threads, by the time at which they were loaded.
/// The lock is held for a look at the list only, never while the module or a child works: one
/// worker answers the requests of a process, so nobody else loads the objects of that process.
#[derive(Default)]
pub(super) struct LoadedObjects {
    objects: Mutex<Vec<LoadedObject>>,
    /// The processes that were searched in vain, and when.
    searched: Mutex<BTreeMap<i32, Instant>>,
}

/// What a request has led to, if it is to be printed.
pub(super) struct Registered {
    /// The runtime's name, and the number of its regions; `None` if no runtime is known.
    runtime: Option<(&'static str, usize)>,
    pub(super) error: Option<String>,
}

impl LoadedObjects {
    /// Finds the code that a process has made, and registers its regions. Returns what to print, if
    /// there is a runtime or an error; and the text of the mappings after the code was found, which
    /// is empty if they cannot be read. `opened` are the memory and the mappings of the process.
    pub(super) fn answer(
        &self,
        device: &Device,
        request: &Request,
        opened: Result<(File, String), String>,
    ) -> (Option<CodeAnswer>, String) {
        let started = Instant::now();
        let range = (request.start, request.end);
        self.drop_ended(device);
        // The module requests the code again.
        if self.searched().contains_key(&request.pid) {
            return (None, String::new());
        }
        let known = self.known(request.pid);
        let (found, maps) = match opened {
            Ok((memory, maps)) => code::find(request.pid, range, memory, &maps, &known),
            Err(error) => (Err(error), String::new()),
        };
        let registered = self.register(device, request, found);
        let answer = registered.map(|Registered { runtime, error }| CodeAnswer {
            pid: request.pid,
            runtime: runtime.map(|(name, _)| name),
            regions: runtime.map(|(_, count)| count),
            error,
            milliseconds: started.elapsed().as_millis(),
        });
        (answer, maps)
    }

    /// Registers the regions of code that was found. While the runtime is starting, nothing is
    /// done: the module requests the code again.
    fn register(
        &self,
        device: &Device,
        request: &Request,
        found: Result<Code, String>,
    ) -> Option<Registered> {
        match found {
            Ok(Code::Starting(_)) => None,
            Ok(Code::Unknown) => self.searched_in_vain(device, request, None),
            Ok(Code::Regions(name, regions)) => Some(register_all(device, request, name, regions)),
            Ok(Code::Objects(found)) => {
                let added = self.add(device, request, &found);
                // Other code may follow at the addresses of an object: nothing is said of it.
                let is_there = found.has_code_in(request.start, request.end);
                let vain = match &added {
                    Ok(_) if is_there => None,
                    _ => self.searched_in_vain(device, request, added.as_ref().err().cloned()),
                };
                match added {
                    Ok(true) => Some(Registered {
                        runtime: Some((found.runtime, found.objects.len() + found.regions.len())),
                        error: vain.and_then(|registered| registered.error),
                    }),
                    _ => vain,
                }
            }
            Err(error) => register_none(device, request, Some(error)),
        }
    }

    /// Registers that the requested code has no region, and remembers that the process was
    /// searched, if it has no objects. Otherwise it may make more, and walks wait for the answer.
    fn searched_in_vain(
        &self,
        device: &Device,
        request: &Request,
        error: Option<String>,
    ) -> Option<Registered> {
        if self.known(request.pid).is_empty() {
            self.searched().insert(request.pid, Instant::now());
        }
        register_none(device, request, error)
    }

    /// The number of objects.
    pub(super) fn count(&self) -> usize {
        self.objects().len()
    }

    /// Removes the rows of the objects of processes that have ended.
    pub(super) fn drop_ended(&self, module: &impl Module) {
        remove(module, &self.take(LoadedObject::has_ended));
    }

    fn objects(&self) -> MutexGuard<'_, Vec<LoadedObject>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn searched(&self) -> MutexGuard<'_, BTreeMap<i32, Instant>> {
        let mut searched = self.searched.lock().unwrap_or_else(PoisonError::into_inner);
        searched.retain(|_, when| when.elapsed() < PAUSE);
        searched
    }

    /// The numbers of the contents of the objects of a process whose rows were added.
    fn known(&self, pid: i32) -> Vec<u64> {
        let objects = self.objects();
        let of_process = objects.iter().filter(|object| object.pid == pid);
        of_process.map(|object| object.content).collect()
    }

    /// The file of an object of a process whose rows were added.
    fn file_of(&self, pid: i32, start: u64, content: u64) -> Option<Arc<File>> {
        let key = (pid, start, content);
        let is_this = |other: &&LoadedObject| (other.pid, other.start, other.content) == key;
        let found = self.objects();
        let found = found.iter().find(is_this)?;
        Some(Arc::clone(&found.file))
    }

    /// Takes the objects of which this is true out of the list.
    fn take(&self, is_taken: impl Fn(&LoadedObject) -> bool) -> Vec<LoadedObject> {
        let mut objects = self.objects();
        let (taken, left) = mem::take(&mut *objects).into_iter().partition(is_taken);
        *objects = left;
        taken
    }

    /// Puts an object into the list, and takes those out that exceed the limits.
    fn put(&self, object: LoadedObject) -> Vec<LoadedObject> {
        let mut objects = self.objects();
        objects.push(object);
        let mut taken = Vec::new();
        while let Some(index) = excess(&objects) {
            taken.push(objects.remove(index));
        }
        taken
    }

    /// Adds the rows of the objects in anonymous code, and registers their regions. Returns
    /// whether any of the code is new.
    ///
    /// # Errors
    ///
    /// The module refuses rows or a region, or the process has ended. Or an object has no rows: its
    /// reader could make none, or did not because the object was known, and it is not any more. The
    /// next request tells.
    fn add(
        &self,
        module: &impl Module,
        request: &Request,
        found: &Objects,
    ) -> Result<bool, String> {
        let mut is_new = false;
        let mut without_rows = None;
        for region in &found.regions {
            module.add_region(region)?;
        }
        for object in &found.objects {
            let content = code::content(object);
            let file = match self.file_of(request.pid, object.start, content) {
                Some(file) => file,
                None => {
                    let Some(rows) = rows::unpack(object.rows.clone()) else {
                        without_rows = Some(object.start);
                        continue;
                    };
                    let loaded = load(module, request, object, &rows, content)?;
                    let file = Arc::clone(&loaded.file);
                    remove(module, &self.put(loaded));
                    is_new = true;
                    file
                }
            };
            module.add_region(&runtimes::object_region(request.pid, object, &file))?;
            // The new region has replaced these objects' regions. Objects that do not grow may come
            // back at their addresses.
            let is_replaced = |other: &LoadedObject| {
                let is_this = (other.start, other.content) == (object.start, content);
                let may_be_back = (other.start, other.end) == (object.start, object.end);
                other.pid == request.pid
                    && object.overlaps(other.start, other.end)
                    && !(is_this || may_be_back && !found.grow)
            };
            remove(module, &self.take(is_replaced));
        }
        match without_rows {
            Some(start) => Err(format!("no rows can be made from the code at {start:#x}")),
            None => Ok(is_new),
        }
    }
}

/// The index of an object that exceeds a limit: the oldest one of a user who has too many, or the
/// oldest one of the user who has most if there are too many of all users.
fn excess(objects: &[LoadedObject]) -> Option<usize> {
    let mut users = BTreeMap::<u32, (usize, usize)>::new();
    for object in objects {
        let (count, size) = users.entry(object.user).or_default();
        (*count, *size) = (*count + 1, *size + object.size);
    }
    let exceeds = |(count, size): &(usize, usize)| *count > MAX_OBJECTS || *size > MAX_BYTES;
    let user = match users.iter().find(|(_, shares)| exceeds(shares)) {
        Some((user, _)) => *user,
        None if objects.len() > MAX_OF_ALL => *users.iter().max_by_key(|(_, shares)| **shares)?.0,
        None => return None,
    };
    objects.iter().position(|object| object.user == user)
}

/// Registers that the requested code has no region, so that it is not requested again and again.
/// Most processes with such code have no known runtime, and are requested every ten seconds: that
/// is not printed.
pub(super) fn register_none(
    device: &Device,
    request: &Request,
    error: Option<String>,
) -> Option<Registered> {
    let none = runtimes::none(request.pid, request.start, request.end);
    let added = device.add_region(&none);
    let error = error.or(added.err())?;
    Some(Registered {
        runtime: None,
        error: Some(error),
    })
}

/// Registers the regions of a runtime's code.
fn register_all(
    device: &Device,
    request: &Request,
    name: &'static str,
    mut regions: Vec<Region>,
) -> Registered {
    let is_there = |region: &Region| region.start < request.end && request.start < region.end;
    // Other code of the process is not requested again and again.
    if !regions.iter().any(is_there) {
        regions.push(runtimes::none(request.pid, request.start, request.end));
    }
    let added = regions
        .iter()
        .try_for_each(|region| device.add_region(region));
    Registered {
        runtime: Some((name, regions.len())),
        error: added.err(),
    }
}

/// Adds the rows of an object, for a file in memory.
fn load(
    module: &impl Module,
    request: &Request,
    object: &CodeObject,
    rows: &ConvertedRows,
    content: u64,
) -> Result<LoadedObject, String> {
    let process = Pid::from_raw(request.pid)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .ok_or("the process has exited")?;
    let name = format!("code of process {} at {:#x}", request.pid, object.start);
    let file = memory_file(&name, &object.file)
        .map_err(|error| format!("cannot make a file in memory: {error}"))?;
    module.add_rows(&file, rows, request.user)?;
    Ok(LoadedObject {
        user: request.user,
        pid: request.pid,
        process,
        start: object.start,
        end: object.end,
        content,
        size: object.file.len(),
        file: Arc::new(file),
    })
}

/// Removes the rows of objects.
fn remove(module: &impl Module, objects: &[LoadedObject]) {
    for object in objects {
        module.remove_rows(&object.file);
    }
}

/// A file in memory with this content.
fn memory_file(name: &str, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        process::{
            self,
            Command,
            Stdio, //
        },
        sync::{
            mpsc::{
                channel,
                Receiver,
                Sender, //
            },
            Arc, //
        },
        thread,
        time::Duration, //
    };

    /// A time that no test takes.
    const LONG: Duration = Duration::from_secs(60);

    /// What the module was told of rows and regions.
    #[derive(Default)]
    struct Told {
        /// The users who were charged for rows.
        added: Vec<u32>,
        removed: usize,
        /// The starts of regions.
        regions: Vec<u64>,
    }

    /// A module that takes everything.
    #[derive(Default)]
    struct Fake(Mutex<Told>);

    impl Module for Fake {
        fn add_rows(&self, _: &File, _: &ConvertedRows, user: u32) -> Result<(), String> {
            self.0.lock().unwrap().added.push(user);
            Ok(())
        }

        fn remove_rows(&self, _: &File) {
            self.0.lock().unwrap().removed += 1;
        }

        fn add_region(&self, region: &Region) -> Result<(), String> {
            self.0.lock().unwrap().regions.push(region.start);
            Ok(())
        }
    }

    /// A module that tells when it begins to add rows, and ends when it is told to.
    struct Slow(Sender<()>, Receiver<()>);

    impl Module for Slow {
        fn add_rows(&self, _: &File, _: &ConvertedRows, _: u32) -> Result<(), String> {
            self.0.send(()).unwrap();
            self.1.recv_timeout(LONG).map_err(|error| error.to_string())
        }

        fn remove_rows(&self, _: &File) {}

        fn add_region(&self, _: &Region) -> Result<(), String> {
            Ok(())
        }
    }

    fn request(pid: u32, user: u32) -> Request {
        Request {
            pid: pid as i32,
            start: 0,
            end: u64::MAX,
            device: (0, 0),
            inode: 0,
            build_id: String::new(),
            user,
            path: String::new(),
        }
    }

    /// An object at an address, with a file of this size.
    fn object(start: u64, size: usize) -> CodeObject {
        CodeObject {
            start,
            end: start + 1,
            guard: 0,
            guard_value: 0,
            file: vec![1; size],
            offset: 0,
            rows: vec![0; 5],
        }
    }

    fn found(objects: Vec<CodeObject>, grow: bool) -> Objects {
        Objects {
            runtime: "eh_frame",
            objects,
            grow,
            regions: Vec::new(),
        }
    }

    fn starts(objects: &LoadedObjects, user: u32) -> Vec<u64> {
        let objects = objects.objects();
        let of_user = objects.iter().filter(|object| object.user == user);
        of_user.map(|object| object.start & 0xffff).collect()
    }

    #[test]
    fn no_user_waits_for_the_object_of_another_one() {
        let objects = Arc::new(LoadedObjects::default());
        let (begins, begun) = channel();
        let (go_on, told) = channel();
        let slow = thread::spawn({
            let objects = Arc::clone(&objects);
            let slow = Slow(begins, told);
            let request = request(process::id(), 1000);
            move || objects.add(&slow, &request, &found(vec![object(1, 8)], true))
        });
        begun.recv_timeout(LONG).unwrap();
        let (answer, answered) = channel();
        thread::spawn({
            let objects = Arc::clone(&objects);
            let request = request(1, 1001);
            move || {
                let known = objects.known(request.pid);
                let found = found(vec![object(2, 8)], true);
                let added = objects.add(&Fake::default(), &request, &found);
                let _ = answer.send((known, added));
            }
        });
        let answered = answered.recv_timeout(LONG);
        go_on.send(()).unwrap();
        assert_eq!(answered, Ok((vec![], Ok(true))));
        assert_eq!(slow.join().unwrap(), Ok(true));
        assert_eq!(
            (starts(&objects, 1000), starts(&objects, 1001)),
            (vec![1], vec![2])
        );
    }

    #[test]
    fn an_object_is_added_once_and_one_without_rows_never() {
        let (objects, module) = (LoadedObjects::default(), Fake::default());
        let request = request(process::id(), 1000);
        let add = |found| objects.add(&module, &request, &found);
        assert_eq!(add(found(vec![object(1, 8)], true)), Ok(true));
        assert_eq!(add(found(vec![object(1, 8)], true)), Ok(false));
        let mut bare = object(2, 8);
        bare.rows = Vec::new();
        let error = add(found(vec![bare, object(3, 8)], true)).unwrap_err();
        assert!(error.contains("0x2"), "{error}");
        assert_eq!(starts(&objects, 1000), [1, 3]);
        // It has grown.
        assert_eq!(add(found(vec![object(1, 16)], true)), Ok(true));
        let told = module.0.lock().unwrap();
        assert_eq!(told.added, [1000; 3]);
        assert_eq!((told.removed, &told.regions[..]), (1, &[1, 1, 3, 1][..]));
    }

    #[test]
    fn an_object_that_has_become_a_part_is_removed() {
        let (objects, module) = (LoadedObjects::default(), Fake::default());
        let request = request(process::id(), 1000);
        let add = |found| objects.add(&module, &request, &found);
        assert_eq!(
            add(found(vec![object(1, 8), object(4, 8)], false)),
            Ok(true)
        );
        // Other code at the same addresses, which may be there again.
        assert_eq!(add(found(vec![object(4, 16)], false)), Ok(true));
        assert_eq!(add(found(vec![object(4, 8)], false)), Ok(false));
        assert_eq!(starts(&objects, 1000), [1, 4, 4]);
        let mut all = object(3, 8);
        all.end = 9;
        assert_eq!(add(found(vec![all], false)), Ok(true));
        assert_eq!(starts(&objects, 1000), [1, 3]);
        assert_eq!(module.0.lock().unwrap().removed, 2);
    }

    #[test]
    fn a_process_that_was_searched_in_vain_is_left_alone_for_a_while() {
        let objects = LoadedObjects::default();
        // It takes no regions.
        let device = Device::of(File::open("/").unwrap());
        let of = |pid| Request {
            start: 0x1000,
            end: 0x2000,
            ..request(pid, 1000)
        };
        let is_left_alone = |pid| {
            let (answer, _) = objects.answer(&device, &of(pid), Err("it was asked".to_owned()));
            answer.is_none()
        };
        let none = || Ok(Code::Objects(found(Vec::new(), false)));
        assert!(objects.register(&device, &of(7), none()).is_some());
        assert!(objects
            .register(&device, &of(8), Ok(Code::Unknown))
            .is_some());
        assert!(objects
            .register(&device, &of(10), Ok(Code::Starting("hotspot")))
            .is_none());
        assert_eq!([7, 8, 10].map(is_left_alone), [true, true, false]);
        // It has made code, and may make more.
        let own = process::id();
        let loaded = found(vec![object(1, 8)], false);
        objects.add(&Fake::default(), &of(own), &loaded).unwrap();
        assert!(objects
            .register(&device, &of(own), Ok(Code::Unknown))
            .is_some());
        assert!(!is_left_alone(own));
        let mut searched = objects.searched();
        let long_ago = Instant::now().checked_sub(PAUSE);
        searched
            .values_mut()
            .for_each(|when| *when = long_ago.unwrap());
        drop(searched);
        assert!(!is_left_alone(7));
    }

    #[test]
    fn the_objects_of_a_user_are_limited_and_so_are_all() {
        let (objects, module) = (LoadedObjects::default(), Fake::default());
        let add = |user, start| {
            let request = request(process::id(), user);
            // The users share a process here, but no address.
            let found = found(vec![object((u64::from(user) << 16) | start, 8)], false);
            assert_eq!(objects.add(&module, &request, &found), Ok(true));
        };
        let most = MAX_OBJECTS as u64;
        add(1, 0);
        for start in 0..most + 2 {
            add(1000, start);
        }
        assert_eq!(starts(&objects, 1000), Vec::from_iter(2..most + 2));
        // The last object is as large as all of a user may be.
        objects.objects().last_mut().unwrap().size = MAX_BYTES;
        add(1000, 5000);
        assert_eq!(starts(&objects, 1000), [5000]);
        // The user who has most loses an object.
        for user in 2..2 + MAX_OF_ALL as u32 {
            add(1000 + user % 4, u64::from(user) + 1000);
            add(user, 0);
        }
        assert_eq!(objects.objects().len(), MAX_OF_ALL);
        assert_eq!(starts(&objects, 1), [0]);
    }

    #[test]
    fn the_objects_of_a_process_end_with_it() {
        let (objects, module) = (LoadedObjects::default(), Fake::default());
        let mut child = Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        for (pid, user) in [(child.id(), 1000), (process::id(), 1001)] {
            let found = found(vec![object(1, 8)], true);
            objects.add(&module, &request(pid, user), &found).unwrap();
        }
        objects.drop_ended(&module);
        assert_eq!(starts(&objects, 1000), [1]);
        child.kill().unwrap();
        child.wait().unwrap();
        objects.drop_ended(&module);
        assert_eq!(starts(&objects, 1000), [0; 0]);
        assert_eq!(starts(&objects, 1001), [1]);
        assert_eq!(module.0.lock().unwrap().removed, 1);
        let found = found(vec![object(1, 8)], true);
        let error = objects.add(&module, &request(child.id(), 1000), &found);
        assert!(error.unwrap_err().contains("exited"));
    }
}
