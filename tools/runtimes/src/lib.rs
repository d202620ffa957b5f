// SPDX-License-Identifier: GPL-2.0-only

//! Code that processes make at run time: which runtime makes it, and what the kernel needs to walk it.
//!
//! A runtime is found by a library that the process has mapped. All else is read from the process's memory, whose
//! content is hostile: each runtime limits what it reads, and a process that lies misleads only walks of itself.
//! `sframectl` reads it in a confined process; an [`answer`] is what this process says.

#![deny(missing_docs)]

pub mod answer;
mod eh_frame;
mod erlang;
#[cfg(test)]
mod fake;
mod fixed;
mod gdb_jit;
mod hotspot;
mod luajit;
mod symbols;
#[path = "../../../rust/uapi/mod.rs"]
pub mod uapi;

#[allow(
    clippy::single_component_path_imports,
    reason = "the path of the core in rust/uapi/ is crate::sframe"
)]
use sframe;

use std::{
    fmt::Write as _,
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::fs::FileExt, //
    }, //
};

use walk::process::{
    self,
    CodeLayout,
    CodeRegion,
    FileId,
    ProcessMapping, //
};

pub use eh_frame::CodeObject;
pub use uapi::sframe_unwind_region as Region;

/// The size of a page of memory, in bytes. A string is read page by page.
const PAGE: u64 = 4096;
/// The limit for the length of a string in a process's memory, in bytes.
const MAX_STRING: usize = 256;

/// The memory of a process.
trait ProcessMemory {
    /// Fills `bytes` with the bytes at the run-time address `address`.
    fn fill(&self, address: u64, bytes: &mut [u8]) -> Result<(), String>;

    /// `N` bytes.
    fn bytes<const N: usize>(&self, address: u64) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(address, &mut bytes)?;
        Ok(bytes)
    }

    /// An integer of 64 bits, which may be an address.
    fn u64(&self, address: u64) -> Result<u64, String> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    /// An unsigned integer of 32 bits.
    fn u32(&self, address: u64) -> Result<u32, String> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    /// The string at `address`, without its final 0 byte.
    fn string(&self, address: u64) -> Result<Vec<u8>, String> {
        let mut string = Vec::new();
        while string.len() < MAX_STRING {
            let at = offset(address, string.len() as u64)?;
            let mut chunk = [0; 64];
            let len = chunk.len().min((PAGE - at % PAGE) as usize);
            self.fill(at, &mut chunk[..len])?;
            if let Some(end) = chunk[..len].iter().position(|byte| *byte == 0) {
                string.extend_from_slice(&chunk[..end]);
                return Ok(string);
            }
            string.extend_from_slice(&chunk[..len]);
        }
        Err(format!(
            "the string at {address:#x} has more than {MAX_STRING} bytes"
        ))
    }
}

/// The address `offset` bytes behind `address`.
fn offset(address: u64, offset: u64) -> Result<u64, String> {
    let sum = address.checked_add(offset);
    sum.ok_or_else(|| format!("{address:#x} + {offset:#x} is no address"))
}

impl ProcessMemory for File {
    fn fill(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        self.read_exact_at(bytes, address)
            .map_err(|error| format!("cannot read memory at {address:#x}: {error}"))
    }
}

/// A library that a process has mapped.
struct Library<'a> {
    /// The run-time address of the file's first byte.
    base: u64,
    /// All mappings of the file.
    mappings: Vec<&'a ProcessMapping>,
}

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

    /// The process with this ID, whose memory and mappings another process has opened and read, by [`open`].
    ///
    /// # Errors
    ///
    /// The text describes no mappings.
    pub fn new(pid: i32, memory: File, maps: &str) -> Result<OpenProcess, String> {
        let maps = process::parse_maps(maps).map_err(|error| error.to_string())?;
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
        let OpenProcess { memory, maps, .. } = self;
        let (name, regions) = if let Some(library) = library(maps, "libjvm.so") {
            let regions = hotspot::regions(memory, &library)?;
            (hotspot::NAME, regions.unwrap_or_default())
        } else if let Some(program) = library(maps, erlang::PROGRAM) {
            let regions = erlang::regions(memory, &program, maps)?;
            (erlang::NAME, regions.unwrap_or_default())
        } else if let Some(found) = fixed::regions(memory, maps) {
            found
        } else {
            return Ok(Code::Unknown);
        };
        if regions.is_empty() {
            return Ok(Code::Starting(name));
        }
        Ok(Code::Regions(name, self.own(regions)))
    }

    /// Finds the code that the process makes at run time: as [`find`](Self::find), and if no runtime is known, as
    /// [`objects`](Self::objects) in the mapping from `start` to `end`, run-time addresses.
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

    /// Finds the code with rows in the mapping of code from `start` to `end`, run-time addresses: LuaJIT's traces, or
    /// objects with `.eh_frame`, by GDB's interface and by a search. All areas of LuaJIT's code are found if the
    /// mapping has any.
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
        // Other code of the mapping may have `.eh_frame` that no debugger is told about.
        let others = eh_frame::objects(memory, maps, start, end);
        eh_frame::add_new(&mut objects, others);
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

/// Opens the memory of the process with this ID, and reads its mappings, as text ([`process::maps_text`]).
///
/// # Errors
///
/// The process has exited or may not be read.
pub fn open(pid: i32) -> Result<(File, String), String> {
    let number = u32::try_from(pid).map_err(|_| "there is no such process")?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such process".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "cannot be read: run as root (CAP_SYS_PTRACE)".to_owned()
        }
        _ => error.to_string(),
    };
    let memory = File::open(format!("/proc/{number}/mem")).map_err(failed)?;
    Ok((memory, process::maps_text(number).map_err(failed)?))
}

/// The region that says that a process has no known code from `start` up to `end`.
pub fn none(pid: i32, start: u64, end: u64) -> Region {
    Region {
        pid,
        start,
        end,
        kind: uapi::SFRAME_UNWIND_REGION_NONE as u8,
        ..Region::default()
    }
}

/// Code of a process that is described by rows.
pub struct Objects {
    /// The runtime's name.
    pub runtime: &'static str,
    /// Code with rows.
    pub objects: Vec<CodeObject>,
    /// Whether the code of an object grows: an object takes the place of those that it overlaps for good. Other code may
    /// be loaded, freed and loaded again.
    pub grow: bool,
    /// Regions of other kinds.
    pub regions: Vec<Region>,
}

/// The region of an object of the process with this ID, whose rows were added for `file`.
pub fn object_region(pid: i32, object: &CodeObject, file: &File) -> Region {
    Region {
        pid,
        start: object.start,
        end: object.end,
        guard: object.guard,
        guard_value: object.guard_value,
        kind: uapi::SFRAME_UNWIND_REGION_ROWS as u8,
        rows_file: file.as_raw_fd(),
        rows_offset: object.offset,
        ..Region::default()
    }
}

/// The first mapped library with this file name. The file may have been deleted since.
fn library<'a>(maps: &'a [(ProcessMapping, FileId)], name: &str) -> Option<Library<'a>> {
    let is_named = |mapping: &ProcessMapping| file_name(mapping) == name;
    let (first, file) = maps
        .iter()
        .find(|(mapping, file)| file.inode != 0 && mapping.offset == 0 && is_named(mapping))?;
    let of_file = maps.iter().filter(|(_, other)| other == file);
    Some(Library {
        base: first.start,
        mappings: of_file.map(|(mapping, _)| mapping).collect(),
    })
}

/// The name of a mapping's file, without its directory.
fn file_name(mapping: &ProcessMapping) -> &str {
    let path = mapping.name.strip_suffix(" (deleted)");
    let path = path.unwrap_or(&mapping.name);
    path.rsplit('/').next().unwrap_or(path)
}

/// The regions of the code of the process with this ID, for a walk on the host; none if no runtime is known, or if the
/// runtime is starting.
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

/// The region of a description, as the kernel makes it.
fn region_of(description: &Region) -> CodeRegion {
    CodeRegion {
        start: description.start,
        end: description.end,
        guard: (description.guard != 0).then_some((description.guard, description.guard_value)),
        layout: CodeLayout::Frames(description.region()),
    }
}

impl OpenProcess {
    /// `sframectl runtime`: the runtime of the process, and one line for each region.
    ///
    /// # Errors
    ///
    /// As those of [`find`](Self::find).
    pub fn describe(&self) -> Result<String, String> {
        let mut text = String::new();
        match self.find_all()? {
            Code::Objects(_) | Code::Unknown => text.push_str("no known runtime\n"),
            Code::Starting(name) => writeln!(text, "{name}: starting").expect("a string takes it"),
            Code::Regions(name, regions) => {
                for region in regions {
                    writeln!(text, "{name}: {}", describe(&region)).expect("a string takes it");
                }
            }
        }
        Ok(text)
    }
}

/// All that a region of a runtime says.
fn describe(region: &Region) -> String {
    let mut text = format!("{:#x}-{:#x}", region.start, region.end);
    if region.guard != 0 {
        write!(
            text,
            ", guard {:#x}={:#x}",
            region.guard, region.guard_value
        )
        .expect("a string takes it");
    }
    if u32::from(region.kind) == uapi::SFRAME_UNWIND_REGION_FIXED {
        write!(text, ", CFA = sp + {}", region.cfa_offset).expect("a string takes it");
        if u32::from(region.fp_saved) == uapi::SFRAME_UNWIND_FP_AT_CFA {
            write!(text, ", frame pointer at CFA{:+}", region.fp_offset)
                .expect("a string takes it");
        }
    }
    if u32::from(region.kind) == uapi::SFRAME_UNWIND_REGION_ERLANG {
        write!(
            text,
            ", processes end at {:#x}, process_main {:#x} with {} bytes returns to {:#x}, rbx +{}, {} schedulers of {} bytes \
             at {:#x}, process +{}",
            region.exit_code,
            region.main_code,
            region.main_frame,
            region.main_return,
            region.registers_offset,
            region.scheduler_count,
            region.scheduler_size,
            region.schedulers,
            region.process_offset,
        )
        .expect("a string takes it");
    }
    if u32::from(region.kind) == uapi::SFRAME_UNWIND_REGION_HOTSPOT {
        write!(
            text,
            ", segments of {} bytes, map {:#x}, used +{}, blob +{}: frame size +{}, complete +{} ({} bytes), \
             code +{} ({} bytes), kind +{} & {:#x}, frameless {:x?}; interpreter {:#x}-{:#x}",
            1u64.checked_shl(region.segment_log2.into()).unwrap_or_default(),
            region.segment_map,
            region.used_offset,
            region.blob_offset,
            region.frame_size_offset,
            region.frame_complete_offset,
            region.frame_complete_size,
            region.code_offset,
            region.code_size,
            region.kind_offset,
            region.kind_mask,
            region.frameless_kinds,
            region.interpreter_start,
            region.interpreter_end,
        )
        .expect("a string takes it");
    }
    text
}
