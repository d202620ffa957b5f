// SPDX-License-Identifier: GPL-2.0-only

//! Reads of a process's memory, which is hostile, and of its mappings.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt, //
};

use walk::process::{
    maps_text,
    FileId,
    ProcessMapping, //
};

/// The size of a page of memory, in bytes. A string is read page by page.
pub(crate) const PAGE: u64 = 4096;
/// The limit for the length of a string in a process's memory, in bytes.
const MAX_STRING: usize = 256;

/// The memory of a process.
pub(crate) trait ProcessMemory {
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

/// The address `offset` bytes after `address`.
pub(crate) fn offset(address: u64, offset: u64) -> Result<u64, String> {
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
pub(crate) struct Library<'a> {
    /// The run-time address of the file's first byte.
    pub(crate) base: u64,
    /// All mappings of the file.
    pub(crate) mappings: Vec<&'a ProcessMapping>,
}

/// The first mapped library with this file name. The file may have been deleted since.
pub(crate) fn library<'a>(maps: &'a [(ProcessMapping, FileId)], name: &str) -> Option<Library<'a>> {
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
pub(crate) fn file_name(mapping: &ProcessMapping) -> &str {
    let path = mapping.name.strip_suffix(" (deleted)");
    let path = path.unwrap_or(&mapping.name);
    path.rsplit('/').next().unwrap_or(path)
}

/// Opens the memory of the process with this ID, and reads its mappings, as text ([`maps_text`]).
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
    Ok((memory, maps_text(number).map_err(failed)?))
}
