// SPDX-License-Identifier: GPL-2.0-only

//! Code that processes make at run time: which runtime makes it, and what the kernel needs to walk it.
//!
//! A runtime is found by a library that the process has mapped. All else is read from the process's memory, whose
//! content is hostile: each runtime limits what it reads, and a process that lies misleads only walks of itself.

mod hotspot;

use std::{
    fmt::Write as _,
    fs::File,
    io,
    os::unix::fs::FileExt, //
};

use walk::process::{
    self,
    FileId,
    ProcessMapping, //
};

use crate::{
    device::Region,
    uapi, //
};

/// The size of a page of memory, in bytes. A string is read page by page.
const PAGE: u64 = 4096;
/// The limit for the length of a string in a process's memory, in bytes.
const MAX_STRING: usize = 256;

/// The memory of a process.
trait Memory {
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

impl Memory for File {
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
pub(crate) enum Code {
    /// The runtime's name, and the regions of its code.
    Regions(&'static str, Vec<Region>),
    /// The runtime with this name is starting, and has no code yet.
    Starting(&'static str),
    /// No runtime is known.
    Unknown,
}

/// Finds the code that the process with this ID makes at run time.
///
/// # Errors
///
/// The process has exited or may not be read, or its memory does not have the contents that its runtime has.
pub(crate) fn find(pid: i32) -> Result<Code, String> {
    let number = u32::try_from(pid).map_err(|_| "there is no such process")?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such process".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "cannot be read: run as root (CAP_SYS_PTRACE)".to_owned()
        }
        _ => error.to_string(),
    };
    let memory = File::open(format!("/proc/{number}/mem")).map_err(failed)?;
    let maps = process::maps(number).map_err(failed)?;
    let Some(library) = library(&maps, "libjvm.so") else {
        return Ok(Code::Unknown);
    };
    Ok(match hotspot::regions(&memory, &library)? {
        Some(regions) => {
            let of_process = |region| Region { pid, ..region };
            Code::Regions(hotspot::NAME, regions.into_iter().map(of_process).collect())
        }
        None => Code::Starting(hotspot::NAME),
    })
}

/// The region that says that a process has no known code from `start` up to `end`.
pub(crate) fn none(pid: i32, start: u64, end: u64) -> Region {
    Region {
        pid,
        start,
        end,
        kind: uapi::SFRAME_UNWIND_REGION_NONE as u8,
        ..Region::default()
    }
}

/// The first mapped library with this file name. The file may have been deleted since.
fn library<'a>(maps: &'a [(ProcessMapping, FileId)], name: &str) -> Option<Library<'a>> {
    let is_named = |mapping: &ProcessMapping| {
        let path = mapping.name.strip_suffix(" (deleted)");
        path.unwrap_or(&mapping.name).rsplit('/').next() == Some(name)
    };
    let (first, file) = maps
        .iter()
        .find(|(mapping, file)| file.inode != 0 && mapping.offset == 0 && is_named(mapping))?;
    let of_file = maps.iter().filter(|(_, other)| other == file);
    Some(Library {
        base: first.start,
        mappings: of_file.map(|(mapping, _)| mapping).collect(),
    })
}

/// `sframectl runtime`: the runtime of a process, and one line for each region.
pub(crate) fn run(pid: u32) -> Result<String, String> {
    let pid = i32::try_from(pid).map_err(|_| "there is no such process")?;
    let mut text = String::new();
    match find(pid)? {
        Code::Unknown => text.push_str("no known runtime\n"),
        Code::Starting(name) => writeln!(text, "{name}: starting").expect("a string takes it"),
        Code::Regions(name, regions) => {
            for region in regions {
                writeln!(text, "{name}: {}", describe(&region)).expect("a string takes it");
            }
        }
    }
    Ok(text)
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
