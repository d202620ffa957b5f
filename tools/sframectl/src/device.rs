// SPDX-License-Identifier: GPL-2.0-only

//! `/dev/sframe_unwind`, by system calls that `std` does not offer.
#![expect(unsafe_code)]

use std::{
    fmt::Write,
    fs::{
        self,
        File,
        Metadata,
        OpenOptions, //
    },
    io::{
        self,
        Read, //
    },
    mem::{
        size_of,
        MaybeUninit, //
    },
    os::{
        fd::{
            AsFd,
            AsRawFd, //
        },
        unix::fs::MetadataExt, //
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

use runtimes::uapi;

use crate::exit::{
    CommandError,
    ExitReason, //
};

pub(crate) use runtimes::uapi::{
    sframe_unwind_region as Region,
    sframe_unwind_table as Table, //
};

const PATH: &str = "/dev/sframe_unwind";
const ADD: Opcode =
    opcode::read_write::<uapi::sframe_unwind_add>(TYPE, uapi::SFRAME_UNWIND_NR_ADD as u8);
const REMOVE: Opcode =
    opcode::read_write::<uapi::sframe_unwind_add>(TYPE, uapi::SFRAME_UNWIND_NR_REMOVE as u8);
const LIST: Opcode =
    opcode::read_write::<uapi::sframe_unwind_table>(TYPE, uapi::SFRAME_UNWIND_NR_LIST as u8);
const STATS: Opcode =
    opcode::read_write::<uapi::sframe_unwind_counter>(TYPE, uapi::SFRAME_UNWIND_NR_STATS as u8);
const REGION: Opcode =
    opcode::read_write::<uapi::sframe_unwind_region>(TYPE, uapi::SFRAME_UNWIND_NR_REGION as u8);
/// `SFRAME_UNWIND_TYPE`.
const TYPE: u8 = uapi::SFRAME_UNWIND_TYPE;
/// The version of the interface that this program was written for.
pub(crate) const VERSION: u16 = uapi::SFRAME_UNWIND_VERSION as u16;

/// A file of the loaded module below /sys, without white space at its ends; empty if it cannot be
/// read.
pub(crate) fn module_file(name: &str) -> String {
    let text = fs::read_to_string(format!("/sys/module/sframe_unwind/{name}"));
    text.unwrap_or_default().trim().to_owned()
}

/// Whether a parameter of the module is on, by the text of its file.
pub(crate) fn is_on(parameter: &str) -> bool {
    parameter == "Y"
}

/// The target of a table.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// A file.
    File(&'a File),
    /// The vDSO of all tasks.
    Vdso,
}

/// The time of a file's last change (ctime), as it was before anything else was read of the file.
#[derive(Clone, Copy, Default)]
pub(crate) struct ChangeTime {
    seconds: i64,
    nanoseconds: u32,
}

impl From<&Metadata> for ChangeTime {
    fn from(state: &Metadata) -> ChangeTime {
        ChangeTime {
            seconds: state.ctime(),
            nanoseconds: state.ctime_nsec() as u32,
        }
    }
}

/// A file without rows that the kernel has seen in a stack, or anonymous code.
pub(crate) struct Request {
    /// The process that has the file mapped, in the initial PID namespace.
    pub(crate) pid: i32,
    /// The mapping's run-time addresses, from `start` up to but excluding `end`.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The major and minor number of the file system's device.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    /// In hexadecimal digits; empty if unknown.
    pub(crate) build_id: String,
    /// The charged user of the process; see `struct sframe_unwind_request`.
    pub(crate) user: u32,
    /// The path as the kernel sees it, which may name another file for this program; empty if
    /// unknown.
    pub(crate) path: String,
}

/// The rows of a file, as the kernel takes them. By default, the file has no rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowsToAdd<'a> {
    /// A section for the link-time address 0.
    pub(crate) section: &'a [u8],
    pub(crate) extra_rows: &'a [u8],
    /// Whether code that no row covers keeps frame pointers.
    pub(crate) keeps_frame_pointers: bool,
}

/// Why the kernel has not taken rows.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) text: String,
    /// Whether the rows contradict themselves or the file. Otherwise the kernel may take them
    /// later.
    pub(crate) is_of_rows: bool,
}

impl From<String> for Refusal {
    fn from(text: String) -> Refusal {
        let is_of_rows = false;
        Refusal { text, is_of_rows }
    }
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> String {
        refusal.text
    }
}

impl Request {
    /// Whether the request is about anonymous code: the process has made it.
    pub(crate) fn is_made_code(&self) -> bool {
        self.inode == 0 && self.device == (0, 0) && self.build_id.is_empty() && self.start != 0
    }
}

/// The device, open.
pub(crate) struct Device(File);

impl Device {
    /// A file in place of the device.
    #[cfg(test)]
    pub(crate) fn of(file: File) -> Device {
        Device(file)
    }

    /// Opens the device, and checks that the module has this program's version of the interface.
    ///
    /// # Errors
    ///
    /// The module is not loaded, or has another version; or the caller has no right.
    pub(crate) fn open() -> Result<Device, CommandError> {
        let opened = OpenOptions::new().read(true).write(true).open(PATH);
        let device = opened.map(Device).map_err(|error| {
            let (reason, advice) = match error.kind() {
                io::ErrorKind::NotFound => (
                    ExitReason::NoModule,
                    ": is the module loaded (modprobe sframe_unwind)?",
                ),
                io::ErrorKind::PermissionDenied => {
                    (ExitReason::NoRight, ": run as root, or with CAP_PERFMON")
                }
                _ => (ExitReason::Failure, ""),
            };
            CommandError::new(reason, format!("{PATH}: {error}{advice}"))
        })?;
        device.check_version()?;
        Ok(device)
    }

    /// Reads a counter, because the module refuses each command of another version. The file stays
    /// open, so the module cannot be exchanged for another one later.
    fn check_version(&self) -> Result<(), CommandError> {
        let mut counter = uapi::sframe_unwind_counter::default();
        (counter.size, counter.version) = head(&counter);
        // SAFETY: The argument is the `struct sframe_unwind_counter` that the command reads and
        // writes.
        let answer = unsafe { ioctl(&self.0, Updater::<STATS, _>::new(&mut counter)) };
        answer.map_err(|error| match error {
            Errno::PROTONOSUPPORT => other_version(counter.version),
            // Before version 1, both fields were one number: the size.
            Errno::TOOBIG => other_version(0),
            _ => CommandError::from(format!("{PATH}: {error}")),
        })
    }

    /// Adds rows. An empty section records that the file has no rows. The kernel refuses rows of a
    /// file that was changed since; `changed` is of no meaning for the vDSO. If the caller is root,
    /// the table is charged to `user`.
    pub(crate) fn add(
        &self,
        target: Target<'_>,
        changed: ChangeTime,
        user: u32,
        rows: RowsToAdd<'_>,
    ) -> Result<(), Refusal> {
        let mut request = request_with(target, rows)?;
        request.user = user;
        (request.changed, request.changed_nsec) = (changed.seconds, changed.nanoseconds);
        let add = |request: &mut uapi::sframe_unwind_add| {
            // SAFETY: The argument is the `struct sframe_unwind_add` that the command expects. Its
            // addresses and lengths are those of `rows`, which outlive the call.
            unsafe { ioctl(&self.0, Updater::<ADD, _>::new(request)) }
        };
        let mut added = add(&mut request);
        if rows.keeps_frame_pointers && added == Err(Errno::INVAL) {
            // The module may be older than the flag.
            request.flags &= !uapi::SFRAME_UNWIND_KEEPS_FP;
            added = add(&mut request);
        }
        added.map_err(|error| Refusal {
            text: match error {
                Errno::NOSPC => {
                    "the module's memory limit is reached: raise its parameter tables_mib"
                        .to_owned()
                }
                Errno::STALE => "the file was modified during the conversion".to_owned(),
                Errno::FBIG => {
                    "the table is too large, or its build takes longer than 2 s of CPU time"
                        .to_owned()
                }
                Errno::EXIST => "another user has added rows for the file".to_owned(),
                Errno::NOEXEC => "not a program or library for this machine".to_owned(),
                _ => format!("the kernel refuses the section: {error}"),
            },
            is_of_rows: matches!(error, Errno::BADMSG | Errno::INVAL | Errno::NOEXEC),
        })
    }

    /// Removes the rows of a file. Returns false if there are none.
    pub(crate) fn remove(&self, target: Target<'_>) -> Result<bool, String> {
        let mut request = add_request(target);
        // SAFETY: The argument is the `struct sframe_unwind_add` that the command expects.
        match unsafe { ioctl(&self.0, Updater::<REMOVE, _>::new(&mut request)) } {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(Errno::ACCESS) => Err("another user has added the rows".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Registers a region of a process; its size and version are set here.
    pub(crate) fn add_region(&self, region: &Region) -> Result<(), String> {
        let mut region = *region;
        (region.size, region.version) = head(&region);
        // SAFETY: The argument is the `struct sframe_unwind_region` that the command expects.
        unsafe { ioctl(&self.0, Updater::<REGION, _>::new(&mut region)) }.map_err(|error| {
            match error {
                Errno::SRCH => "the process has exited".to_owned(),
                _ => format!("the kernel refuses the region: {error}"),
            }
        })
    }

    /// All tables of the module.
    pub(crate) fn list(&self) -> Result<Vec<Table>, String> {
        let mut tables = Vec::new();
        let mut table = zeroed_table();
        loop {
            (table.size, table.version) = head(&table);
            // SAFETY: The argument is the `struct sframe_unwind_table` that the command reads and
            // writes.
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
            (counter.size, counter.version) = head(&counter);
            // SAFETY: The argument is the `struct sframe_unwind_counter` that the command reads and
            // writes.
            match unsafe { ioctl(&self.0, Updater::<STATS, _>::new(&mut counter)) } {
                Ok(()) => counters.push((text(&counter.name), counter.value)),
                Err(Errno::NOENT) => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(counters)
    }

    /// Waits for a request. Returns false if there was none within `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<bool, String> {
        let time = Timespec::try_from(timeout).map_err(|error| error.to_string())?;
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut polled, Some(&time)) {
            Ok(count) => Ok(count != 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(format!("{PATH}: {error}")),
        }
    }

    /// Reads requests; waits if there are none.
    pub(crate) fn requests(&self) -> Result<Vec<Request>, String> {
        const SIZE: usize = size_of::<uapi::sframe_unwind_request>();

        let mut bytes = [0; 64 * SIZE];
        let len = (&self.0)
            .read(&mut bytes)
            .map_err(|error| format!("{PATH}: {error}"))?;
        Ok(parse_requests(&bytes[..len]))
    }
}

/// The requests. The module's structure may have grown: the first field is its size.
fn parse_requests(mut bytes: &[u8]) -> Vec<Request> {
    let mut requests = Vec::new();
    while let Some(known) = bytes.first_chunk() {
        requests.push(parse_request(known));
        let size = usize::from(u16::from_ne_bytes([known[0], known[1]]));
        bytes = bytes.get(size.max(known.len())..).unwrap_or_default();
    }
    requests
}

fn parse_request(bytes: &[u8; size_of::<uapi::sframe_unwind_request>()]) -> Request {
    // SAFETY: The array has the size of the structure, and all bit patterns are valid for its
    // integer fields.
    let request: uapi::sframe_unwind_request = unsafe {
        bytes
            .as_ptr()
            .cast::<uapi::sframe_unwind_request>()
            .read_unaligned()
    };
    let id = request.build_id.get(..request.build_id_len as usize);
    Request {
        pid: request.pid,
        start: request.start,
        end: request.end,
        device: (request.device_major, request.device_minor),
        inode: request.inode,
        build_id: hexadecimal(id.unwrap_or_default()),
        user: request.user,
        path: text(&request.path),
    }
}

/// Bytes in hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes it");
        text
    })
}

fn add_request(target: Target<'_>) -> uapi::sframe_unwind_add {
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
    (request.size, request.version) = head(&request);
    request
}

/// A request that adds rows.
fn request_with(
    target: Target<'_>,
    rows: RowsToAdd<'_>,
) -> Result<uapi::sframe_unwind_add, String> {
    let len = |bytes: &[u8]| {
        u32::try_from(bytes.len()).map_err(|_| "the rows are larger than 4 GiB".to_owned())
    };
    let mut request = add_request(target);
    request.section = rows.section.as_ptr() as u64;
    request.section_len = len(rows.section)?;
    request.extra_rows = rows.extra_rows.as_ptr() as u64;
    request.extra_rows_len = len(rows.extra_rows)?;
    if rows.keeps_frame_pointers {
        request.flags |= uapi::SFRAME_UNWIND_KEEPS_FP;
    }
    Ok(request)
}

/// The first two fields of each structure: its size in bytes, and the version of the interface.
fn head<T>(_: &T) -> (u16, u16) {
    (size_of::<T>() as u16, VERSION)
}

/// The error if the loaded module has another version of the interface.
fn other_version(of_module: u16) -> CommandError {
    let text = format!(
        "the loaded module speaks version {of_module} of the interface, and this sframectl version \
         {VERSION}: install sframe-unwind-dkms and sframectl of the same version, then reload the module \
         (systemctl stop sframectl; rmmod sframe_unwind; modprobe sframe_unwind; \
         systemctl start sframectl)"
    );
    CommandError::new(ExitReason::OtherVersion, text)
}

/// The text before the first 0 byte.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn zeroed_table() -> Table {
    // SAFETY: All bit patterns are valid for the integer fields.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The path of a table's file, in the initial mount namespace, if it is known.
pub(crate) fn path(table: &Table) -> Option<String> {
    match text(&table.path) {
        _ if table.inode == 0 => Some("[vdso]".to_owned()),
        path => (!path.is_empty()).then_some(path),
    }
}

/// The device of a table's file, in the form of /proc/PID/maps.
pub(crate) fn device_of(table: &Table) -> String {
    format!("{:02x}:{:02x}", table.device_major, table.device_minor)
}

/// Device and inode of a table's file.
pub(crate) fn file_id(table: &Table) -> String {
    format!("{}:{}", device_of(table), table.inode)
}

/// The origin of a table's rows, or the reason why the table has none.
pub(crate) fn origin(table: &Table) -> &'static str {
    match table.origin {
        _ if table.rows == 0 && table.flags & uapi::SFRAME_UNWIND_KEEPS_FP != 0 => "keeps-fp",
        uapi::sframe_unwind_origin::SFRAME_UNWIND_ADDED if table.rows == 0 => "none",
        uapi::sframe_unwind_origin::SFRAME_UNWIND_ADDED => "added",
        uapi::sframe_unwind_origin::SFRAME_UNWIND_SECTION => "section",
        uapi::sframe_unwind_origin::SFRAME_UNWIND_UNREADABLE => "unreadable",
        _ if table.error != 0 => "invalid",
        _ => "requested",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_an_error_that_says_what_to_do() {
        let error = other_version(VERSION + 1).text;
        assert!(error.starts_with(
            "the loaded module speaks version 3 of the interface, and this sframectl version 2: install "
        ));
        assert!(error.contains("modprobe sframe_unwind"));
    }

    #[test]
    fn rows_tell_the_module_whether_code_keeps_frame_pointers() {
        let file = File::open("/proc/self/exe").unwrap();
        let request = |target, keeps_frame_pointers| {
            let rows = RowsToAdd {
                section: &[1, 2, 3],
                keeps_frame_pointers,
                ..RowsToAdd::default()
            };
            let request = request_with(target, rows).unwrap();
            (request.section_len, request.extra_rows_len, request.flags)
        };
        assert_eq!(request(Target::File(&file), false), (3, 0, 0));
        assert_eq!(request(Target::File(&file), true), (3, 0, 2));
        assert_eq!(request(Target::Vdso, false), (3, 0, 1));
        assert_eq!(request(Target::Vdso, true), (3, 0, 3));
    }

    #[test]
    fn a_file_is_named_by_device_and_inode() {
        let table = Table {
            device_major: 254,
            device_minor: 1,
            inode: 42,
            ..zeroed_table()
        };
        assert_eq!(file_id(&table), "fe:01:42");
        assert_eq!(device_of(&table), "fe:01");
    }

    #[test]
    fn requests_may_have_grown() {
        const SIZE: usize = size_of::<uapi::sframe_unwind_request>();
        for grown in [0, 8, 24] {
            let mut bytes = Vec::new();
            for pid in 1..4_i32 {
                let mut request = [0xff; SIZE + 24];
                request[..2].copy_from_slice(&((SIZE + grown) as u16).to_ne_bytes());
                request[4..8].copy_from_slice(&pid.to_ne_bytes());
                bytes.extend(&request[..SIZE + grown]);
            }
            let pids = |bytes| {
                let requests = parse_requests(bytes).into_iter();
                requests.map(|request| request.pid).collect::<Vec<_>>()
            };
            assert_eq!(pids(&bytes), [1, 2, 3]);
            assert_eq!(pids(&bytes[..SIZE + grown + 1]), [1]);
            assert!(pids(&[]).is_empty());
        }
    }
}
