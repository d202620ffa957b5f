// SPDX-License-Identifier: GPL-2.0-only

//! `/dev/sframe_unwind`: the only room that asks the kernel for what `std` does not.
#![expect(unsafe_code)]

use std::{
    fmt::Write,
    fs::{
        File,
        OpenOptions, //
    },
    io::{
        self,
        Read, //
    },
    mem::size_of,
    os::fd::{
        AsFd,
        AsRawFd, //
    },
    time::Duration,
};

use rustix::{
    event::{
        poll,
        PollFd,
        PollFlags,
        Timespec, //
    },
    io::Errno,
    ioctl::{
        ioctl,
        opcode,
        Opcode,
        Updater, //
    },
};

mod uapi {
    #![allow(
        dead_code,
        missing_docs,
        non_camel_case_types,
        unreachable_pub,
        clippy::all
    )]
    include!(concat!(env!("OUT_DIR"), "/uapi.rs"));
}

pub(crate) use uapi::sframe_unwind_table as Table;

const PATH: &str = "/dev/sframe_unwind";
const ADD: Opcode =
    opcode::write::<uapi::sframe_unwind_add>(TYPE, uapi::SFRAME_UNWIND_NR_ADD as u8);
const REMOVE: Opcode =
    opcode::write::<uapi::sframe_unwind_add>(TYPE, uapi::SFRAME_UNWIND_NR_REMOVE as u8);
const LIST: Opcode =
    opcode::read_write::<uapi::sframe_unwind_table>(TYPE, uapi::SFRAME_UNWIND_NR_LIST as u8);
const STATS: Opcode =
    opcode::read_write::<uapi::sframe_unwind_counter>(TYPE, uapi::SFRAME_UNWIND_NR_STATS as u8);
/// `SFRAME_UNWIND_TYPE`.
const TYPE: u8 = uapi::SFRAME_UNWIND_TYPE;

/// What rows are for.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// This file.
    File(&'a File),
    /// The vDSO of all tasks.
    Vdso,
}

/// A file of which the kernel has no rows.
pub(crate) struct Request {
    /// The process that has it mapped, and where.
    pub(crate) pid: i32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The file system's device, its major number and its minor one.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    /// In hexadecimal digits; empty if it is not known.
    pub(crate) build_id: String,
    /// Whose process it is.
    pub(crate) user: u32,
    /// Where it may be, too; empty if that is not known.
    pub(crate) path: String,
}

/// The device, open.
pub(crate) struct Device(File);

impl Device {
    /// Opens it.
    pub(crate) fn open() -> Result<Device, String> {
        let opened = OpenOptions::new().read(true).write(true).open(PATH);
        opened.map(Device).map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::NotFound => ": is the module loaded (modprobe sframe_unwind)?",
                io::ErrorKind::PermissionDenied => ": that takes CAP_PERFMON, or root",
                _ => "",
            };
            format!("{PATH}: {error}{advice}")
        })
    }

    /// Adds a section, which is as if at address 0, and the rows beside it. Of an empty section:
    /// there are no rows. If root adds it counts to `user`.
    pub(crate) fn add(
        &self,
        target: Target<'_>,
        user: u32,
        section: &[u8],
        extra_rows: &[u8],
    ) -> Result<(), String> {
        let len = |bytes: &[u8]| {
            u32::try_from(bytes.len()).map_err(|_| "more than the kernel takes".to_owned())
        };
        let mut request = request(target);
        request.section = section.as_ptr() as u64;
        request.section_len = len(section)?;
        request.extra_rows = extra_rows.as_ptr() as u64;
        request.extra_rows_len = len(extra_rows)?;
        request.user = user;
        // SAFETY: The kernel takes a `struct sframe_unwind_add` here, and reads section and rows,
        // which are there while the call lasts.
        unsafe { ioctl(&self.0, Updater::<ADD, _>::new(&mut request)) }.map_err(|error| match error
        {
            Errno::NOSPC => "no room in the kernel (parameter tables_mib)".to_owned(),
            Errno::STALE => "the file was written to meanwhile".to_owned(),
            Errno::EXIST => "another user has added rows for it".to_owned(),
            Errno::NOEXEC => "no program or library for this machine".to_owned(),
            _ => format!("the kernel does not take the section: {error}"),
        })
    }

    /// Takes the rows of a file away; false if there are none.
    pub(crate) fn remove(&self, target: Target<'_>) -> Result<bool, String> {
        let mut request = request(target);
        // SAFETY: The kernel takes a `struct sframe_unwind_add` here.
        match unsafe { ioctl(&self.0, Updater::<REMOVE, _>::new(&mut request)) } {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(Errno::ACCESS) => Err("another user has added them".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// All that the kernel knows of files.
    pub(crate) fn list(&self) -> Result<Vec<Table>, String> {
        let mut tables = Vec::new();
        let mut table = Table::default();
        loop {
            table.size = size(&table);
            // SAFETY: The kernel takes and gives a `struct sframe_unwind_table` here.
            match unsafe { ioctl(&self.0, Updater::<LIST, _>::new(&mut table)) } {
                Ok(()) => tables.push(table),
                Err(Errno::NOENT) => return Ok(tables),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// All counters.
    pub(crate) fn stats(&self) -> Result<Vec<(String, u64)>, String> {
        let mut counters = Vec::new();
        for index in 0.. {
            let mut counter = uapi::sframe_unwind_counter {
                index,
                ..Default::default()
            };
            counter.size = size(&counter);
            // SAFETY: The kernel takes and gives a `struct sframe_unwind_counter` here.
            match unsafe { ioctl(&self.0, Updater::<STATS, _>::new(&mut counter)) } {
                Ok(()) => counters.push((text(&counter.name), counter.value)),
                Err(Errno::NOENT) => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(counters)
    }

    /// Waits for something to be wanted; false if nothing was for as long.
    pub(crate) fn wait(&self, how_long: Duration) -> Result<bool, String> {
        let time = Timespec::try_from(how_long).map_err(|error| error.to_string())?;
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut polled, Some(&time)) {
            Ok(count) => Ok(count != 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(format!("{PATH}: {error}")),
        }
    }

    /// What is wanted; waits if nothing is.
    pub(crate) fn wants(&self) -> Result<Vec<Request>, String> {
        const SIZE: usize = size_of::<uapi::sframe_unwind_request>();

        let mut bytes = [0; 64 * SIZE];
        let len = (&self.0)
            .read(&mut bytes)
            .map_err(|error| format!("{PATH}: {error}"))?;
        Ok(bytes[..len].chunks_exact(SIZE).map(want).collect())
    }
}

fn want(bytes: &[u8]) -> Request {
    // SAFETY: There are as many bytes, and any are such numbers.
    let want: uapi::sframe_unwind_request = unsafe {
        bytes
            .as_ptr()
            .cast::<uapi::sframe_unwind_request>()
            .read_unaligned()
    };
    let id = want.build_id.get(..want.build_id_len as usize);
    Request {
        pid: want.pid,
        start: want.start,
        end: want.end,
        device: (want.device_major, want.device_minor),
        inode: want.inode,
        build_id: hexadecimal(id.unwrap_or_default()),
        user: want.user,
        path: text(&want.path),
    }
}

/// Bytes in hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes it");
        text
    })
}

fn request(target: Target<'_>) -> uapi::sframe_unwind_add {
    let mut request = match target {
        Target::File(file) => uapi::sframe_unwind_add {
            file: file.as_fd().as_raw_fd(),
            ..Default::default()
        },
        Target::Vdso => uapi::sframe_unwind_add {
            flags: uapi::SFRAME_UNWIND_VDSO,
            ..Default::default()
        },
    };
    request.size = size(&request);
    request
}

fn size<T>(_: &T) -> u32 {
    size_of::<T>() as u32
}

/// What comes before the first 0.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// What a table has rows of, or why it has none.
pub(crate) fn origin(table: &Table) -> &'static str {
    match table.origin {
        uapi::sframe_unwind_origin::SFRAME_UNWIND_ADDED if table.rows == 0 => "none",
        uapi::sframe_unwind_origin::SFRAME_UNWIND_ADDED => "added",
        uapi::sframe_unwind_origin::SFRAME_UNWIND_SECTION => "section",
        uapi::sframe_unwind_origin::SFRAME_UNWIND_UNREADABLE => "unreadable",
        _ if table.error != 0 => "bad",
        _ => "wanted",
    }
}
