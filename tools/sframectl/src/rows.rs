// SPDX-License-Identifier: GPL-2.0-only

//! Rows for files that are open: made by a process of its own that may do nothing else, and kept.
//!
//! Where both a section and what is beside it are in one place, the length of the section comes
//! first, in four bytes, little-endian.

use std::{
    env,
    fs::{
        self,
        File, //
    },
    io::{
        self,
        Seek, //
    },
    os::{
        fd::AsFd,
        unix::{
            fs::{
                FileExt,
                MetadataExt, //
            },
            process::CommandExt, //
        }, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process::{
        self,
        Command,
        Stdio, //
    },
    sync::atomic::{
        AtomicU32,
        Ordering, //
    },
    time::SystemTime, //
};

use convert::Converted;
use memmap2::Mmap;
use rustix::process::{
    geteuid,
    set_parent_process_death_signal,
    setrlimit,
    Resource,
    Rlimit,
    Signal, //
};
use sframe::{
    bytes::{
        Fault,
        Source, //
    },
    elf, //
};

use crate::device::hexadecimal;

/// Made by another version, what is kept may be another section.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const NOBODY: u32 = 65534;
/// The most memory for a conversion, in bytes, beside the file itself, of which pages are in memory as
/// they are read: it takes ten times its .eh_frame.
const MEMORY: u64 = 2 << 30;
/// The most that is kept, in bytes: all programs and libraries of a large system.
const MAX_KEPT: u64 = 1 << 30;
/// The largest file, in bytes.
const MAX_FILE: u64 = 64 << 30;
/// The most time for a conversion, in seconds of a CPU. Programs of 100 MB take one.
const SECONDS: u64 = 120;

/// A section and the rows beside it, as the kernel takes them.
pub(crate) struct Rows {
    pub(crate) section: Vec<u8>,
    pub(crate) extra_rows: Vec<u8>,
}

/// Makes the rows of a file, or finds them where they were kept.
///
/// # Errors
///
/// The file has nothing to make rows of: that is what it says.
pub(crate) fn rows_of(file: &File) -> Result<Rows, String> {
    let kept = place(file);
    let packed = kept.as_ref().and_then(|place| fs::read(place).ok());
    if let Some(rows) = packed.as_deref().and_then(unpack) {
        // Used of late.
        let touched = kept.map(|place| File::options().append(true).open(place));
        if let Some(Ok(file)) = touched {
            let _ = file.set_modified(SystemTime::now());
        }
        return Ok(rows);
    }
    let packed = convert(file)?;
    if let Some(place) = kept {
        // Whole or not at all, though another thread may have another file of that ID. Where it
        // cannot be kept it is made again.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let new = place.with_extension(format!("{}.{number}", process::id()));
        let _ = fs::write(&new, &packed).and_then(|()| fs::rename(&new, &place));
        let _ = tidy(&place);
    }
    unpack(&packed).ok_or("the conversion printed something else".to_owned())
}

/// Whether this is a file for programs that has no section of its own.
pub(crate) fn are_missing(file: &File) -> bool {
    matches!(elf::section_of_file(&Bytes(file)), Ok(None))
}

/// Makes the rows of an image of the vDSO, which is of the kernel itself and can be read here.
///
/// # Errors
///
/// There is nothing to make rows of.
pub(crate) fn rows_of_image(image: &[u8]) -> Result<Rows, String> {
    let Converted {
        section,
        extra_rows,
        ..
    } = convert::convert(image).map_err(|error| error.to_string())?;
    Ok(Rows {
        section,
        extra_rows,
    })
}

/// Removes what was used least of late where more is kept than there is room for.
fn tidy(place: &Path) -> io::Result<()> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(place.parent().unwrap_or(place))? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        kept.push((metadata.modified()?, metadata.len(), entry.path()));
    }
    kept.sort();
    let mut all: u64 = kept.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in kept {
        if all <= MAX_KEPT {
            break;
        }
        fs::remove_file(path)?;
        all -= len;
    }
    Ok(())
}

/// Both in one place.
pub(crate) fn pack(converted: &Converted) -> Vec<u8> {
    let len = converted.section.len() as u32;
    [
        &len.to_le_bytes(),
        &converted.section[..],
        &converted.extra_rows,
    ]
    .concat()
}

fn unpack(packed: &[u8]) -> Option<Rows> {
    let (len, rest) = packed.split_first_chunk()?;
    let (section, extra_rows) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some(Rows {
        section: section.to_vec(),
        extra_rows: extra_rows.to_vec(),
    })
}

/// Where the section of a file is kept. By its build ID, which anyone may give to any file: only
/// for files that root alone can have made.
fn place(file: &File) -> Option<PathBuf> {
    let metadata = file.metadata().ok()?;
    if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 || !geteuid().is_root() {
        return None;
    }
    let (id, len) = elf::build_id(&Bytes(file)).ok()?;
    if len == 0 {
        return None;
    }
    let directory = env::var_os("CACHE_DIRECTORY").unwrap_or("/var/cache/sframe_unwind".into());
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory).ok()?;
    let id = hexadecimal(id.get(..len)?);
    Some(directory.join(format!("{id}-{}-{VERSION}.rows", metadata.len())))
}

/// A file as bytes from its start.
struct Bytes<'a>(&'a File);

impl Source for Bytes<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        match self.0.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(_) => Err(Fault),
        }
    }
}

/// Has a process convert it that is given the file, and nothing else.
fn convert(file: &File) -> Result<Vec<u8>, String> {
    let with = |what: &'static str| move |error| format!("{what}: {error}");
    let mut file = file.try_clone().map_err(with("cannot hand the file on"))?;
    // Whoever opened it may have read it.
    file.rewind()
        .map_err(with("cannot be read from its start"))?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["convert", "--confined", "-", "-o", "-"])
        .env_clear()
        .current_dir("/")
        .stdin(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if geteuid().is_root() {
        command.gid(NOBODY).uid(NOBODY);
    }
    let done = command.output().map_err(with("cannot convert"))?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.trim().trim_start_matches("sframectl: -: ");
    Err(if said.is_empty() {
        format!("the conversion ended with {}", done.status)
    } else {
        said.to_owned()
    })
}

/// In that process: maps the file that is its standard input, and gives up what is not needed any more.
pub(crate) fn map_confined() -> Result<Mmap, String> {
    let with = |what: &'static str| move |error| format!("{what}: {error}");
    let file = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map_err(with("standard input"))?;
    let metadata = file.metadata().map_err(with("standard input"))?;
    if !metadata.is_file() || metadata.len() > MAX_FILE {
        return Err(format!("no file of at most {} GiB", MAX_FILE >> 30));
    }
    // SAFETY: Whoever may write to the file can change it meanwhile. What reads it believes nothing of
    // it, and ends with this process if a part of it is gone: there is nothing else in here, and
    // from here on nothing else that it could do.
    #[expect(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }.map_err(with("cannot be mapped"))?;
    let limit = |most| Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    // No file and no socket can be opened any more; what is open stays.
    for (resource, most) in [
        (Resource::As, metadata.len().saturating_add(MEMORY)),
        (Resource::Cpu, SECONDS),
        (Resource::Core, 0),
        (Resource::Fsize, MEMORY),
        (Resource::Nofile, 0),
    ] {
        setrlimit(resource, limit(most)).map_err(|error| format!("setrlimit: {error}"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(|error| format!("prctl: {error}"))?;
    // It may wait for ever for a file system that does not answer.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("prctl: {error}"))?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_was_used_least_goes_first() {
        let directory = env::temp_dir().join(format!("kept-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let now = SystemTime::now();
        for (name, age) in [("new", 0), ("old", 2), ("older", 3), ("newer", 1)] {
            let file = File::create(directory.join(name)).unwrap();
            // Of holes.
            file.set_len(MAX_KEPT / 3).unwrap();
            file.set_modified(now - Duration::from_secs(age)).unwrap();
        }
        tidy(&directory.join("new")).unwrap();
        let mut left: Vec<_> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(left, ["new", "newer", "old"]);
    }
}
