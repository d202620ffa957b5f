// SPDX-License-Identifier: GPL-2.0-only

//! Code that processes make at run time: which runtime makes it, and what the kernel needs to walk
//! it.
//!
//! A runtime is found by a library that the process has mapped. All else is read from the process's
//! memory, whose content is hostile: each runtime limits what it reads, and a process that lies
//! misleads only walks of itself. `sframectl` reads it in a confined process; an [`answer`] is what
//! this process says.

#![deny(missing_docs)]

pub mod answer;
mod description;
mod eh_frame;
mod erlang;
#[cfg(test)]
mod fake;
mod fixed;
mod gdb_jit;
mod hotspot;
mod luajit;
mod process;
mod symbols;
#[path = "../../../rust/uapi/mod.rs"]
pub mod uapi;

#[allow(
    clippy::single_component_path_imports,
    reason = "the path of the core in rust/uapi/ is crate::sframe"
)]
use sframe;

use std::fs::File;

use walk::process::{
    parse_maps,
    CodeRegion,
    FileId,
    ProcessMapping, //
};

use self::description::region_of;

pub use self::{
    description::{
        none,
        object_region, //
    },
    process::open, //
};
pub use eh_frame::CodeObject;
pub use uapi::sframe_unwind_region as Region;

/// The name of a runtime, and the regions of its code, with `pid` 0; no regions if the runtime is
/// starting, and has no code yet. `None` if the process has no such runtime.
type Found = Option<(&'static str, Vec<Region>)>;

/// Finds a runtime in the memory and the mappings of a process: a function of each runtime's file.
type Finder = fn(&File, &[(ProcessMapping, FileId)]) -> Result<Found, String>;

/// The runtimes that a file tells which the process has mapped, in the order of the search.
const FINDERS: [Finder; 3] = [hotspot::find, erlang::find, fixed::find];

/// The names of all runtimes.
const NAMES: [&str; 9] = [
    hotspot::NAME,
    erlang::NAME,
    luajit::NAME,
    eh_frame::NAME,
    gdb_jit::NAME,
    fixed::RUNTIMES[0].name,
    fixed::RUNTIMES[1].name,
    fixed::RUNTIMES[2].name,
    fixed::RUNTIMES[3].name,
];

/// The most mappings of code whose objects are described.
const MAX_DESCRIBED: usize = 256;

/// The code of a process.
pub enum Code {
    /// The runtime's name, and the regions of its code.
    Regions(&'static str, Vec<Region>),
    /// The runtime with this name is starting, and has no code yet.
    Starting(&'static str),
    /// Code that is described by rows.
    Objects(Objects),
    /// No runtime is known.
    Unknown,
}

/// A process whose memory and mappings were opened.
pub struct OpenProcess {
    pid: i32,
    memory: File,
    maps: Vec<(ProcessMapping, FileId)>,
}

impl OpenProcess {
    /// Opens the process with this ID, and reads its mappings.
    ///
    /// # Errors
    ///
    /// The process has exited or may not be read.
    pub fn open(pid: i32) -> Result<OpenProcess, String> {
        let (memory, maps) = open(pid)?;
        OpenProcess::new(pid, memory, &maps)
    }

    /// The process with this ID, whose memory and mappings another process has opened and read, by
    /// [`open`].
    ///
    /// # Errors
    ///
    /// The text describes no mappings.
    pub fn new(pid: i32, memory: File, maps: &str) -> Result<OpenProcess, String> {
        let maps = parse_maps(maps).map_err(|error| error.to_string())?;
        Ok(OpenProcess { pid, memory, maps })
    }

    /// The file with the memory of the process.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Finds the code that the process makes at run time.
    ///
    /// # Errors
    ///
    /// The process has exited, or its memory does not have the contents that its runtime has.
    pub fn find(&self) -> Result<Code, String> {
        for find in FINDERS {
            if let Some((name, regions)) = find(&self.memory, &self.maps)? {
                return Ok(match regions.is_empty() {
                    true => Code::Starting(name),
                    false => Code::Regions(name, self.own(regions)),
                });
            }
        }
        Ok(Code::Unknown)
    }

    /// Finds the code that the process makes at run time: as [`find`](Self::find), and if no
    /// runtime is known, as [`objects`](Self::objects) in the mapping from `start` to `end`,
    /// run-time addresses.
    ///
    /// # Errors
    ///
    /// As those of [`find`](Self::find).
    pub fn find_at(&self, start: u64, end: u64) -> Result<Code, String> {
        let found = self.find()?;
        if !matches!(found, Code::Unknown) {
            return Ok(found);
        }
        let found = self.objects(start, end);
        Ok(match found.objects.is_empty() && found.regions.is_empty() {
            true => Code::Unknown,
            false => Code::Objects(found),
        })
    }

    /// As [`find`](Self::find), but the traces of LuaJIT are regions, too, of any number.
    fn find_all(&self) -> Result<Code, String> {
        let found = self.find()?;
        if !matches!(found, Code::Unknown) {
            return Ok(found);
        }
        let regions = luajit::regions(&self.memory, &self.maps);
        Ok(match regions.is_empty() {
            true => Code::Unknown,
            false => Code::Regions(luajit::NAME, regions),
        })
    }

    /// As [`find_all`](Self::find_all), and if no runtime is known, the objects in all mappings of
    /// code of no file.
    fn find_all_objects(&self) -> Result<Code, String> {
        let mut found = self.find_all()?;
        let code = self.maps.iter().map(|(mapping, _)| mapping);
        let code = code.filter(|mapping| mapping.executable && !mapping.is_file);
        for mapping in code.take(MAX_DESCRIBED) {
            let (start, end) = (mapping.start, mapping.end);
            let is_known = match &found {
                Code::Objects(found) => found.has_code_in(start, end),
                Code::Unknown => false,
                _ => break,
            };
            if is_known {
                continue;
            }
            let new = self.objects(start, end);
            match &mut found {
                Code::Objects(found) => eh_frame::add_new(&mut found.objects, new.objects),
                _ if !new.objects.is_empty() => found = Code::Objects(new),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Finds the code with rows in the mapping of code from `start` to `end`, run-time addresses:
    /// LuaJIT's traces, or objects with `.eh_frame`, by GDB's interface and by a search. All areas
    /// of LuaJIT's code are found if the mapping has any. The search finds other mappings' objects,
    /// too.
    pub fn objects(&self, start: u64, end: u64) -> Objects {
        let OpenProcess { memory, maps, .. } = self;
        if luajit::is_code(memory, maps, start, end) {
            let (objects, regions) = luajit::objects(memory, maps);
            return Objects {
                runtime: luajit::NAME,
                objects,
                grow: true,
                regions: self.own(regions),
            };
        }
        let mut objects = gdb_jit::objects(memory, maps, start, end);
        let runtime = match objects.is_empty() {
            true => eh_frame::NAME,
            false => gdb_jit::NAME,
        };
        // Other code may have `.eh_frame` that no debugger is told about.
        eh_frame::add_objects(memory, maps, start, end, &mut objects);
        Objects {
            runtime,
            objects,
            grow: false,
            regions: Vec::new(),
        }
    }

    /// Regions of this process.
    fn own(&self, regions: Vec<Region>) -> Vec<Region> {
        let own = |region| Region {
            pid: self.pid,
            ..region
        };
        regions.into_iter().map(own).collect()
    }
}

/// Code of a process that is described by rows.
pub struct Objects {
    /// The runtime's name.
    pub runtime: &'static str,
    /// Code with rows.
    pub objects: Vec<CodeObject>,
    /// Whether the code of an object grows: an object takes the place of those that it overlaps for
    /// good. Other code may be loaded, freed and loaded again.
    pub grow: bool,
    /// Regions of other kinds.
    pub regions: Vec<Region>,
}

impl Objects {
    /// Whether any of the code is in the range from `start` to `end`, run-time addresses.
    pub fn has_code_in(&self, start: u64, end: u64) -> bool {
        let is_there = |region: &Region| region.start < end && start < region.end;
        let mut objects = self.objects.iter();
        objects.any(|object| object.overlaps(start, end)) || self.regions.iter().any(is_there)
    }
}

/// The regions of the code of the process with this ID, for a walk on the host; none if no runtime
/// is known, or if the runtime is starting.
///
/// # Errors
///
/// As those of [`OpenProcess::open`] and [`OpenProcess::find`].
pub fn regions(pid: u32) -> Result<Vec<CodeRegion>, String> {
    let pid = i32::try_from(pid).map_err(|_| "there is no such process")?;
    Ok(match OpenProcess::open(pid)?.find_all()? {
        Code::Regions(_, regions) => regions.iter().map(region_of).collect(),
        Code::Starting(_) | Code::Objects(_) | Code::Unknown => Vec::new(),
    })
}
