// SPDX-License-Identifier: GPL-2.0-only

//! Answers about anonymous code: `watch` describes the code that a process makes to the module.

use std::{
    collections::VecDeque,
    fmt,
    fs::File,
    io::{
        self,
        Write, //
    },
    path::Path,
    sync::{
        Mutex,
        MutexGuard,
        PoisonError, //
    },
    time::Instant, //
};

use runtimes::{
    Code,
    CodeObject,
    Objects, //
};
use rustix::fs::{
    memfd_create,
    MemfdFlags, //
};
use serde::Serialize;

use crate::{
    add,
    code,
    device::{
        Device,
        Region,
        Request,
        Target, //
    },
    rows, //
};

/// The maximum number of objects whose rows the module has.
const MAX_OBJECTS: usize = 128;

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

/// An object that a process has loaded without a file, and the file in memory that its rows were
/// added for. The module keeps the rows while the file exists.
struct LoadedObject {
    pid: i32,
    start: u64,
    end: u64,
    /// The number of its contents ([`code::content`]).
    content: u64,
    file: File,
}

/// The last [`MAX_OBJECTS`] objects of all processes, for all threads, by the time at
/// which they were loaded.
#[derive(Default)]
pub(super) struct LoadedObjects(Mutex<VecDeque<LoadedObject>>);

/// What a request has led to, if it is to be printed.
struct Registered {
    /// The runtime's name, and the number of its regions; `None` if no runtime is known.
    runtime: Option<(&'static str, usize)>,
    error: Option<String>,
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
            Ok(Code::Unknown) => register_none(device, request, None),
            Ok(Code::Regions(name, regions)) => Some(register_all(device, request, name, regions)),
            Ok(Code::Objects(found)) => match self.add(device, request, &found) {
                // Other code may follow at these addresses: nothing is said of it.
                Ok(false) => None,
                Ok(true) => Some(Registered {
                    runtime: Some((found.runtime, found.objects.len() + found.regions.len())),
                    error: None,
                }),
                Err(error) => register_none(device, request, Some(error)),
            },
            Err(error) => register_none(device, request, Some(error)),
        }
    }

    fn objects(&self) -> MutexGuard<'_, VecDeque<LoadedObject>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of the contents of the objects of a process whose rows were added.
    fn known(&self, pid: i32) -> Vec<u64> {
        let objects = self.objects();
        let of_process = objects.iter().filter(|object| object.pid == pid);
        of_process.map(|object| object.content).collect()
    }

    /// Adds the rows of the objects in anonymous code, and registers their regions. Returns
    /// whether any of the code is new.
    fn add(&self, device: &Device, request: &Request, found: &Objects) -> Result<bool, String> {
        let mut objects = self.objects();
        let mut is_new = false;
        for region in &found.regions {
            device.add_region(region)?;
        }
        for object in &found.objects {
            let content = code::content(object);
            let is_this = |other: &LoadedObject| {
                (other.pid, other.start, other.content) == (request.pid, object.start, content)
            };
            if !objects.iter().any(is_this) {
                objects.push_back(load(device, request, object, content)?);
                is_new = true;
            }
            if let Some(known) = objects.iter().find(|other| is_this(other)) {
                device.add_region(&runtimes::object_region(request.pid, object, &known.file))?;
            }
            // The new region has replaced these objects' regions. Objects that do not grow may come
            // back.
            let is_replaced = |other: &LoadedObject| {
                let overlaps = other.start < object.end && object.start < other.end;
                found.grow && other.pid == request.pid && overlaps && !is_this(other)
            };
            while let Some(index) = objects.iter().position(is_replaced) {
                unload(device, objects.remove(index))?;
            }
            if objects.len() > MAX_OBJECTS {
                unload(device, objects.pop_front())?;
            }
        }
        Ok(is_new)
    }
}

/// Registers that the requested code has no region, so that it is not requested again and again.
/// Most processes with such code have no known runtime, and are requested every ten seconds: that
/// is not printed.
fn register_none(device: &Device, request: &Request, error: Option<String>) -> Option<Registered> {
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
    device: &Device,
    request: &Request,
    object: &CodeObject,
    content: u64,
) -> Result<LoadedObject, String> {
    let name = format!("code of process {} at {:#x}", request.pid, object.start);
    let file = memory_file(&name, &object.file)
        .map_err(|error| format!("cannot make a file in memory: {error}"))?;
    match rows::unpack(object.rows.clone()) {
        Some(rows) => add::add_rows(device, &file, &rows, request.user)?,
        // It cannot be converted; or it was known, but is not any more.
        None => {
            let input = rows::Input::of(&file);
            let added = add::add(device, &input, Path::new(&name), request.user);
            added.map_err(|failure| failure.text)?
        }
    };
    Ok(LoadedObject {
        pid: request.pid,
        start: object.start,
        end: object.end,
        content,
        file,
    })
}

/// Removes the rows of an object.
fn unload(device: &Device, object: Option<LoadedObject>) -> Result<(), String> {
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
