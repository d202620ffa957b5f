// SPDX-License-Identifier: GPL-2.0-only

//! Answers about files: `watch` converts a file that the module requests, and adds its rows.

use std::{
    fmt,
    fs::{
        self,
        File, //
    },
    os::unix::fs::MetadataExt,
    path::Path,
    time::Instant, //
};

use rustix::thread::CapabilitySet;
use serde::Serialize;
use walk::process::{
    self,
    FileId,
    ProcessMapping, //
};

use super::{
    counters::{
        FileAnswers,
        FileCounter, //
    },
    jobs::{
        Job,
        JobEnd, //
    },
    log::{
        Priority,
        WatchLine, //
    }, //
};
use crate::{
    add::{
        self,
        Added,
        RowCount, //
    },
    config,
    device::{
        Device,
        Request, //
    },
    rows, //
};

/// The maximum number of a process's mapped files that are taken for one seen file.
const MAX_MAPPED: usize = 256;

/// What is printed for each file.
#[derive(Serialize)]
pub(super) struct FileAnswer<'a> {
    pid: i32,
    file: &'a str,
    build_id: &'a str,
    #[serde(flatten)]
    rows: Option<RowCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    milliseconds: u128,
    /// Whether the error says that no rows can be made from the file.
    #[serde(skip)]
    is_without_rows: bool,
    /// The start of the mapping.
    #[serde(skip)]
    start: u64,
}

impl WatchLine for FileAnswer<'_> {
    const TYPE: &'static str = "file";

    fn priority(&self) -> Priority {
        match (&self.error, self.is_without_rows) {
            (None, _) => Priority::Info,
            (Some(_), true) => Priority::Notice,
            (Some(_), false) => Priority::of_failure(self.pid),
        }
    }
}

impl fmt::Display for FileAnswer<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file {
            "" => write!(to, "{:#x} of process {}", self.start, self.pid)?,
            name => to.write_str(name)?,
        }
        match (&self.error, self.rows) {
            (Some(error), _) => write!(to, ": {error}"),
            (None, Some(rows)) => write!(to, ": {rows}, {} ms", self.milliseconds),
            (None, None) => Ok(()),
        }
    }
}

/// The text of the mappings of the process. A process that has exited has no mappings.
pub(super) fn maps_of(request: &Request) -> String {
    process::maps_text(request.pid.unsigned_abs()).unwrap_or_default()
}

/// The first [`MAX_MAPPED`] files that the process of a seen file has mapped executable; `maps` is
/// the text of its mappings.
///
/// None if the file was seen while the process was an administrator's, which has no quota, and the
/// process is not any more: it may be in a container now, and its files are requested when they are
/// seen.
pub(super) fn mapped(seen: &Request, maps: &str) -> Vec<Request> {
    if seen.user == 0 {
        let of_process = |name: &str| Path::new("/proc").join(seen.pid.to_string()).join(name);
        let status = fs::read_to_string(of_process("status")).unwrap_or_default();
        // A kernel without user namespaces has no such link, not even of this process.
        let has_namespaces = fs::read_link("/proc/self/ns/user").is_ok();
        let user_namespace =
            has_namespaces.then(|| fs::read_link(of_process("ns/user")).unwrap_or_default());
        if !is_administrator(&status, user_namespace.as_deref()) {
            return Vec::new();
        }
    }
    let is_code = |(_, file): &(ProcessMapping, FileId)| file.inode != 0;
    let request = |(mapping, file): (ProcessMapping, FileId)| Request {
        pid: seen.pid,
        start: mapping.start,
        end: mapping.end,
        device: file.device,
        inode: file.inode,
        build_id: String::new(),
        user: seen.user,
        path: mapping.name,
    };
    let maps = process::parse_executable(maps).unwrap_or_default();
    let code = maps.into_iter().filter(is_code).map(request);
    code.take(MAX_MAPPED).collect()
}

/// The link to the initial user namespace, whose number is fixed (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// Whether a process is an administrator's, by the text of /proc/PID/status and the link
/// /proc/PID/ns/user (`None`: the kernel has no user namespaces): in the initial user namespace,
/// its real user is root, and it has CAP_SYS_MODULE or CAP_SYS_ADMIN. `is_administrator` of
/// `rust/c/users.c` is the same rule.
fn is_administrator(status: &str, user_namespace: Option<&Path>) -> bool {
    let field = |name: &str| {
        let mut words = status
            .lines()
            .find_map(|line| line.strip_prefix(name))?
            .split_whitespace();
        words.next()
    };
    let capabilities = field("CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    let capabilities = CapabilitySet::from_bits_retain(capabilities.unwrap_or(0));
    user_namespace.is_none_or(|link| link == Path::new(INITIAL_USER_NAMESPACE))
        && field("Uid:") == Some("0")
        && capabilities.intersects(CapabilitySet::SYS_MODULE | CapabilitySet::SYS_ADMIN)
}

/// Converts a file and adds its rows. Returns how the job ends, and what to print. A file is not
/// done if it was not seen and cannot be opened because its process has exited: the module
/// requests it once it is seen. Calls `opened` once nothing waits for the file system any more, and
/// `count` with the result.
pub(super) fn answer<'a>(
    device: &Device,
    job: &'a Job,
    opened: impl FnOnce(),
    count: impl FnOnce(FileCounter),
) -> (JobEnd, Option<FileAnswer<'a>>) {
    let request = &job.request;
    let started = Instant::now();
    let result = match open(request) {
        Ok(file) if !job.seen && !rows::is_elf(&file) => return (JobEnd::Done, None),
        Err(_) if !job.seen => return (JobEnd::Undone, None),
        Ok(file) if config::get().root_only && !is_of_root(&file) => {
            count(|files| &mut files.excluded);
            return (JobEnd::Undone, None);
        }
        Ok(file) => {
            let is_elf = rows::is_elf(&file);
            let input = rows::Input::of(&file);
            opened();
            let path = Path::new(&request.path);
            let added = input.and_then(|input| add::add(device, &input, path, request.user));
            // A runtime may have its code in a file in memory. The module asks for the code, too,
            // and that answer counts.
            if !matches!(added, Ok(Added::Converted(_) | Added::Cached(_)))
                && !is_elf
                && is_anonymous_memory(request)
            {
                return (JobEnd::Done, None);
            }
            added
        }
        Err(error) => Err(error.into()),
    };
    let is_without_rows = matches!(result, Ok(Added::Empty(_)));
    count(FileAnswers::of(&result));
    let (end, rows, error) = match result.map(Added::rows) {
        Ok(Ok(rows)) => (JobEnd::Done, Some(rows), None),
        Ok(Err(text)) => (JobEnd::Done, None, Some(text)),
        Err(failure) if failure.is_passing => (JobEnd::Failed, None, Some(failure.text)),
        Err(failure) => (JobEnd::Done, None, Some(failure.text)),
    };
    let answer = FileAnswer {
        pid: request.pid,
        file: &request.path,
        build_id: &request.build_id,
        rows,
        error,
        milliseconds: started.elapsed().as_millis(),
        is_without_rows,
        start: request.start,
    };
    (end, Some(answer))
}

/// Whether root alone can write a file.
fn is_of_root(file: &File) -> bool {
    let metadata = file.metadata();
    metadata.is_ok_and(|metadata| rows::is_of_root(&metadata))
}

/// Whether the module takes the requested mapping for anonymous memory.
fn is_anonymous_memory(request: &Request) -> bool {
    let mut memory = process::anonymous_memory(&maps_of(request)).into_iter();
    memory.any(|part| part.contains(&request.start))
}

/// Opens the file by the process's mapping, so that a renamed or deleted file is found, too. If the
/// process has exited, opens the file by its path.
fn open(request: &Request) -> Result<File, String> {
    let link = process::map_file(request.pid.unsigned_abs(), request.start, request.end);
    let same = |file: &File| {
        file.metadata()
            .is_ok_and(|found| found.ino() == request.inode)
    };
    match rows::open_regular(&link) {
        // Another file may be mapped there by now. Converting that one does no harm.
        Ok(file) => Ok(file),
        Err(error) => match rows::open_regular(Path::new(&request.path)) {
            Ok(file) if same(&file) => Ok(file),
            _ => Err(format!(
                "the process has unmapped the file ({}: {error})",
                link.display()
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{
        mknodat,
        FileType,
        Mode,
        CWD, //
    };
    use std::{
        env,
        process, //
    };

    #[test]
    fn files_of_a_process_that_gave_up_its_rights_are_not_charged_to_root() {
        let status = |uid, capabilities| {
            format!("Name:\tperl\nUid:\t{uid}\t0\t0\t0\nCapEff:\t{capabilities}\n")
        };
        let initial = Some(Path::new(INITIAL_USER_NAMESPACE));
        assert!(is_administrator(&status("0", "000001ffffffffff"), initial));
        assert!(is_administrator(&status("0", "000001ffffffffff"), None));
        assert!(is_administrator(&status("0", "0000000000010000"), initial));
        assert!(is_administrator(&status("0", "0000000000200000"), initial));
        // Root of a container, and of a container with a user namespace, where it has all rights.
        assert!(!is_administrator(&status("0", "00000000a80425fb"), initial));
        assert!(!is_administrator(&status("0", "00000000a80425fb"), None));
        let other = Some(Path::new("user:[4026532456]"));
        assert!(!is_administrator(&status("0", "000001ffffffffff"), other));
        assert!(!is_administrator(
            &status("65534", "000001ffffffffff"),
            initial
        ));
        assert!(!is_administrator("", initial));

        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let own = |user| Request {
            pid: process::id().try_into().unwrap(),
            path: String::new(),
            start: 0,
            end: 0,
            device: (0, 0),
            inode: 0,
            build_id: String::new(),
            user,
        };
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let user_namespace = fs::read_link("/proc/self/ns/user").ok();
        assert_eq!(
            mapped(&own(0), &maps).is_empty(),
            !is_administrator(&status, user_namespace.as_deref())
        );
        assert!(!mapped(&own(1000), &maps).is_empty());
        let ended = Request {
            pid: i32::MAX,
            ..own(0)
        };
        assert!(mapped(&ended, &maps).is_empty());
    }

    #[test]
    fn a_file_is_opened_by_name_if_it_is_the_seen_file() {
        let directory = env::temp_dir().join(format!("opened-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let seen = |name: &str| {
            let path = directory.join(name);
            let inode = fs::metadata(&path).unwrap().ino();
            // The process has ended.
            let request = Request {
                pid: i32::MAX,
                path: path.to_str().unwrap().into(),
                start: 0,
                end: 0,
                device: (0, 1),
                inode,
                build_id: String::new(),
                user: 0,
            };
            open(&request)
        };
        fs::write(directory.join("file"), "x").unwrap();
        assert!(seen("file").is_ok());
        // Nobody writes to this FIFO, so it would never be open.
        mknodat(CWD, directory.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let error = seen("fifo").unwrap_err();
        assert!(error.contains("has unmapped the file"), "{error}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
