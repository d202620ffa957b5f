// SPDX-License-Identifier: GPL-2.0-only

//! Rows for open files: converted by a confined child process, and cached on disk.
//!
//! Packed rows are the length of the section (four bytes, little-endian), the section, and the extra
//! rows.

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

/// Part of a cache file's name: another version may convert differently.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const NOBODY: u32 = 65534;
/// The address space limit for a conversion, in bytes, in addition to the mapped file. A conversion
/// takes about ten times the size of .eh_frame.
const MEMORY: u64 = 2 << 30;
/// The limit for the cache, in bytes. All programs and libraries of a large system fit.
const MAX_CACHED: u64 = 1 << 30;
/// The size limit for an input file, in bytes.
const MAX_FILE: u64 = 64 << 30;
/// The CPU time limit for a conversion, in seconds. A program of 100 MB takes one second.
const SECONDS: u64 = 120;

/// A section and its extra rows, in the module's format.
pub(crate) struct ConvertedRows {
    pub(crate) section: Vec<u8>,
    pub(crate) extra_rows: Vec<u8>,
}

/// Converts a file, or reads its rows from the cache.
///
/// # Errors
///
/// The file cannot be read or has no unwind information; the text says which.
pub(crate) fn rows_of(file: &File) -> Result<ConvertedRows, String> {
    let cached = cache_path(file);
    let packed = cached.as_ref().and_then(|path| fs::read(path).ok());
    if let Some(rows) = packed.as_deref().and_then(unpack) {
        // The time of modification records the last use.
        let touched = cached.map(|path| File::options().append(true).open(path));
        if let Some(Ok(file)) = touched {
            let _ = file.set_modified(SystemTime::now());
        }
        return Ok(rows);
    }
    let packed = convert(file)?;
    if let Some(path) = cached {
        // Renaming is atomic: another thread may write rows for the same build ID. If the cache cannot
        // be written to, the file is converted again next time.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let new = path.with_extension(format!("{}.{number}", process::id()));
        let _ = fs::write(&new, &packed).and_then(|()| fs::rename(&new, &path));
        let _ = evict(&path);
    }
    unpack(&packed).ok_or("the conversion's output is truncated".to_owned())
}

/// Whether this is a program or library without a section of its own.
pub(crate) fn are_missing(file: &File) -> bool {
    matches!(elf::section_of_file(&FileSource(file)), Ok(None))
}

/// Makes the rows of an image of the vDSO. The image comes from the kernel itself, so this process may read it.
///
/// # Errors
///
/// No rows can be made from the image.
pub(crate) fn rows_of_image(image: &[u8]) -> Result<ConvertedRows, String> {
    let Converted {
        section,
        extra_rows,
        ..
    } = convert::convert(image).map_err(|error| error.to_string())?;
    Ok(ConvertedRows {
        section,
        extra_rows,
    })
}

/// Removes the least recently used files while the cache is over its limit.
fn evict(path: &Path) -> io::Result<()> {
    let mut cached = Vec::new();
    for entry in fs::read_dir(path.parent().unwrap_or(path))? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        cached.push((metadata.modified()?, metadata.len(), entry.path()));
    }
    cached.sort();
    let mut total: u64 = cached.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in cached {
        if total <= MAX_CACHED {
            break;
        }
        fs::remove_file(path)?;
        total -= len;
    }
    Ok(())
}

/// Packs a section and its extra rows.
pub(crate) fn pack(converted: &Converted) -> Vec<u8> {
    let len = converted.section.len() as u32;
    [
        &len.to_le_bytes(),
        &converted.section[..],
        &converted.extra_rows,
    ]
    .concat()
}

fn unpack(packed: &[u8]) -> Option<ConvertedRows> {
    let (len, rest) = packed.split_first_chunk()?;
    let (section, extra_rows) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some(ConvertedRows {
        section: section.to_vec(),
        extra_rows: extra_rows.to_vec(),
    })
}

/// The cache path for a file, by build ID. Anyone can give any build ID to a file, so only files that
/// root alone can write are cached.
fn cache_path(file: &File) -> Option<PathBuf> {
    let metadata = file.metadata().ok()?;
    if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 || !geteuid().is_root() {
        return None;
    }
    let (id, len) = elf::build_id(&FileSource(file)).ok()?;
    if len == 0 {
        return None;
    }
    let directory = env::var_os("CACHE_DIRECTORY").unwrap_or("/var/cache/sframe_unwind".into());
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory).ok()?;
    let id = hexadecimal(id.get(..len)?);
    Some(directory.join(format!("{id}-{}-{VERSION}.rows", metadata.len())))
}

/// A file as a [`Source`], by file offset.
struct FileSource<'a>(&'a File);

impl Source for FileSource<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        match self.0.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(_) => Err(Fault),
        }
    }
}

/// Converts a file in a child process whose only input is the file.
fn convert(file: &File) -> Result<Vec<u8>, String> {
    let with = |what: &'static str| move |error| format!("{what}: {error}");
    let mut file = file
        .try_clone()
        .map_err(with("cannot duplicate the file descriptor"))?;
    // The caller may have moved the file offset.
    file.rewind()
        .map_err(with("cannot seek to the file's start"))?;
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
    let done = command
        .output()
        .map_err(with("cannot run the conversion"))?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let message = String::from_utf8_lossy(&done.stderr);
    let message = message.trim().trim_start_matches("sframectl: -: ");
    Err(if message.is_empty() {
        format!("the conversion failed with {}", done.status)
    } else {
        message.to_owned()
    })
}

/// In the child process: maps standard input and drops all privileges that the conversion does not need.
pub(crate) fn map_confined() -> Result<Mmap, String> {
    let with = |what: &'static str| move |error| format!("{what}: {error}");
    let file = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map_err(with("cannot read standard input"))?;
    let metadata = file
        .metadata()
        .map_err(with("cannot read standard input"))?;
    if !metadata.is_file() || metadata.len() > MAX_FILE {
        return Err(format!(
            "standard input is not a regular file of at most {} GiB",
            MAX_FILE >> 30
        ));
    }
    // SAFETY: Other processes may write to or truncate the file while it is mapped. The conversion
    // validates every value that it reads, and a truncation ends only this process (SIGBUS), which does
    // nothing but this conversion.
    #[expect(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }.map_err(with("cannot map standard input"))?;
    let limit = |value| Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    // With a limit of 0 no further file or socket can be opened; open ones stay open.
    for (resource, value) in [
        (Resource::As, metadata.len().saturating_add(MEMORY)),
        (Resource::Cpu, SECONDS),
        (Resource::Core, 0),
        (Resource::Fsize, MEMORY),
        (Resource::Nofile, 0),
    ] {
        setrlimit(resource, limit(value)).map_err(|error| format!("setrlimit: {error}"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(|error| format!("prctl: {error}"))?;
    // The conversion may block for ever on a file system that does not respond.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("prctl: {error}"))?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_least_recently_used_files_are_evicted() {
        let directory = env::temp_dir().join(format!("kept-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let now = SystemTime::now();
        for (name, age) in [("new", 0), ("old", 2), ("older", 3), ("newer", 1)] {
            let file = File::create(directory.join(name)).unwrap();
            // A sparse file.
            file.set_len(MAX_CACHED / 3).unwrap();
            file.set_modified(now - Duration::from_secs(age)).unwrap();
        }
        evict(&directory.join("new")).unwrap();
        let mut remaining: Vec<_> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        remaining.sort();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(remaining, ["new", "newer", "old"]);
    }
}
