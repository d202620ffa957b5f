// SPDX-License-Identifier: GPL-2.0-only

//! Rows for open files: converted by a confined child process, and cached on disk.
//!
//! Packed rows are the length of the section (four bytes, little-endian), whether code that no row
//! covers keeps frame pointers (a byte, 0 or 1), the section, and the extra rows. In a cache file a
//! checksum follows them.
//!
//! The name of a cache file tells all that the rows depend on: the build ID, the size and the time
//! of modification of the file that they are of, and the converter's sources. The kernel keeps rows
//! by the same identity ("Identity" in Documentation/device.rst): copies of a file have it, as in
//! containers, but no two states of a file that is being written.

use std::{
    collections::BTreeSet,
    env,
    fs::{
        self,
        File,
        Metadata, //
    },
    hash::{
        DefaultHasher,
        Hasher, //
    },
    io::{
        self,
        ErrorKind,
        Seek,
        Write, //
    },
    os::{
        fd::{
            AsFd,
            AsRawFd, //
        },
        unix::fs::{
            symlink,
            FileExt,
            MetadataExt,
            OpenOptionsExt, //
        }, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process::{
        self,
        Command, //
    },
    sync::atomic::{
        AtomicU32,
        AtomicU64,
        Ordering, //
    },
    thread,
    time::{
        Duration,
        Instant,
        SystemTime, //
    }, //
};

use convert::{
    Converted,
    SOURCES, //
};
use memmap2::Mmap;
use rustix::{
    fs::{
        fstat,
        open,
        FileType,
        Mode,
        OFlags, //
    },
    process::geteuid, //
};
use sframe::{
    bytes::{
        Fault,
        Source, //
    },
    elf::{
        self,
        ElfError,
        MAX_PROGRAM_HEADERS, //
    }, //
};

use crate::{
    child::{
        self,
        Ended,
        Limits, //
    },
    config,
    confine::{
        confine,
        Confinement,
        CONVERSION_SECONDS, //
    },
    device::{
        hexadecimal,
        ChangeTime,
        Refusal,
        RowsToAdd, //
    },
    urgency, //
};

/// The time after its last change during which a file may be one that is being written.
const YOUNG: Duration = Duration::from_secs(2);
/// The limits for a conversion. Its time is longer than a child lives. The module takes no section
/// of more than 64 MiB.
const LIMITS: Limits = Limits {
    time: Duration::from_secs(CONVERSION_SECONDS as u64 + 10),
    answer: 64 << 20,
};
/// The size limit for an input file, in bytes.
const MAX_FILE: u64 = 64 << 30;

/// The extension of a cache file, of a cache file that is being written, and of the symbolic links
/// beside a cache file: each link names a file that the rows are of.
const ROWS: &str = "rows";
const NEW: &str = "new";
const LINK: &str = "file";
/// The most links of a cache file. Copies of a file have the same build ID, size and time.
const MAX_LINKS: usize = 4;

/// Packed rows.
pub(crate) struct ConvertedRows {
    bytes: Vec<u8>,
    /// Where the section ends in `bytes`; not after their end.
    end: usize,
}

impl ConvertedRows {
    /// The rows, in the module's format.
    pub(crate) fn to_add(&self) -> RowsToAdd<'_> {
        RowsToAdd {
            section: self.bytes.get(HEAD..self.end).unwrap_or_default(),
            extra_rows: self.bytes.get(self.end..).unwrap_or_default(),
            keeps_frame_pointers: self.bytes.get(HEAD - 1) == Some(&1),
        }
    }
}

/// The length of what is in front of the section in packed rows, in bytes.
const HEAD: usize = 5;

/// Why a file has no rows.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) text: String,
    /// Whether the conversion could not be started, or did not end by itself: it may succeed later.
    /// Otherwise no rows can be made from the file, or the kernel refuses them.
    pub(crate) is_passing: bool,
}

impl Failure {
    fn passing(text: impl Into<String>) -> Failure {
        let (text, is_passing) = (text.into(), true);
        Failure { text, is_passing }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        let is_passing = false;
        Failure { text, is_passing }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::from(refusal.text)
    }
}

/// The exit status of a confined process that cannot make rows from its file. Any other status but
/// success says nothing about the file.
const NO_ROWS: i32 = 3;

/// Ends a confined process that cannot make rows from its file.
pub(crate) fn exit_without_rows(error: &str) -> ! {
    // If stderr cannot be written to, only the exit code reports it.
    let _ = writeln!(io::stderr(), "{error}");
    process::exit(NO_ROWS)
}

/// The packed rows that a confined process has made.
fn packed_rows(ended: Ended) -> Result<Vec<u8>, Failure> {
    if ended.status.success() {
        return Ok(ended.answer);
    }
    let message = String::from_utf8_lossy(&ended.message);
    let message = message.trim().trim_start_matches("sframectl: -: ");
    let text = match message {
        "" => format!("the conversion failed with {}", ended.status),
        _ => message.to_owned(),
    };
    match ended.status.code() {
        Some(NO_ROWS) => Err(Failure::from(text)),
        _ => Err(Failure::passing(text)),
    }
}

/// A file to convert, with all that this process reads of it. The file system may never respond:
/// the conversion is a child's, with a limit of time.
pub(crate) struct Input<'a> {
    pub(crate) file: &'a File,
    /// The state of the file before all else was read of it.
    before: Metadata,
    /// Whether the file was older than [`YOUNG`] then.
    is_settled: bool,
    /// The cache file, if there may be one.
    cached: Option<PathBuf>,
    /// Whether the conversion takes a moment.
    is_short: bool,
}

impl Input<'_> {
    /// Reads what is needed of a file.
    ///
    /// # Errors
    ///
    /// The state of the file cannot be read.
    pub(crate) fn of(file: &File) -> Result<Input<'_>, Failure> {
        /// The conversion of a file of this size takes less than a tenth of a second.
        const SHORT: u64 = 16 << 20;
        let before = file
            .metadata()
            .map_err(|error| Failure::passing(format!("cannot read the file's state: {error}")))?;
        Ok(Input {
            file,
            is_settled: age(&before).is_some_and(|age| age >= YOUNG),
            cached: cache_path(file, &before),
            is_short: is_of_root(&before) && before.len() <= SHORT,
            before,
        })
    }

    /// The time of the file's last change then.
    pub(crate) fn changed(&self) -> ChangeTime {
        ChangeTime::from(&self.before)
    }

    /// Whether the file was not written to since its state was read.
    fn is_unchanged(&self) -> bool {
        let state = |metadata: &Metadata| {
            (
                (metadata.ctime(), metadata.ctime_nsec()),
                (metadata.mtime(), metadata.mtime_nsec()),
                metadata.len(),
            )
        };
        let now = self.file.metadata();
        now.is_ok_and(|now| state(&now) == state(&self.before))
    }

    /// Whether the rows that were made of the file are those of its state: it is no file that is
    /// being written.
    fn is_whole(&self) -> bool {
        self.is_settled && self.is_unchanged()
    }

    /// The rows of the file in the cache.
    pub(crate) fn cached_rows(&self) -> Option<ConvertedRows> {
        read(self.cached.as_ref()?)
    }

    /// Removes the rows from the cache. Returns whether they were there.
    pub(crate) fn forget(&self) -> bool {
        let cached = self.cached.as_ref();
        cached.is_some_and(|cached| fs::remove_file(cached).is_ok())
    }

    /// Converts the file, or reads its rows from the cache. Once the rows are in use,
    /// [`CacheUse::keep`] tells the cache, so that nobody waits for that.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or no rows can be made from it; or the conversion has not ended by
    /// itself. The text says which.
    pub(crate) fn rows(&self) -> Result<(ConvertedRows, CacheUse<'_>), Failure> {
        if let Some(rows) = self.cached_rows() {
            let (input, is_new) = (self, false);
            return Ok((rows, CacheUse { input, is_new }));
        }
        let rows = unpack(self.convert()?)
            .ok_or_else(|| Failure::passing("the conversion's output is truncated"))?;
        let (input, is_new) = (self, true);
        Ok((rows, CacheUse { input, is_new }))
    }

    /// Converts the file in a child process whose only input is the file.
    fn convert(&self) -> Result<Vec<u8>, Failure> {
        // The child process has the priority of this thread.
        if !self.is_short {
            urgency::end();
        }
        let started = Instant::now();
        let with = |what: &'static str| {
            move |error: io::Error| Failure::passing(format!("{what}: {error}"))
        };
        let mut file = self
            .file
            .try_clone()
            .map_err(with("cannot duplicate the file descriptor"))?;
        // The caller may have moved the file offset.
        file.rewind()
            .map_err(with("cannot seek to the file's start"))?;
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["convert", "--confined", "-", "-o", "-"])
            .env_clear()
            .env(
                config::CONVERSION_MIB,
                config::get().conversion_mib.to_string(),
            )
            .current_dir("/")
            .stdin(file);
        let ended = child::run(command, &[], &LIMITS).map_err(Failure::passing)?;
        urgency::charge(started.elapsed());
        packed_rows(ended)
    }
}

/// A use of rows that the cache has, or may keep.
pub(crate) struct CacheUse<'a> {
    input: &'a Input<'a>,
    /// Whether the rows were made, and do not come from the cache.
    is_new: bool,
}

impl CacheUse<'_> {
    /// Whether the rows come from the cache.
    pub(crate) fn is_hit(&self) -> bool {
        !self.is_new
    }

    /// Keeps the rows in the cache, with the time, and with the name `path` of the file that they
    /// are of. Rows of a file that is being written are not kept.
    pub(crate) fn keep(&self, rows: &ConvertedRows, path: &Path) {
        let Some(cached) = &self.input.cached else {
            return;
        };
        if self.is_new && !(is_installed(self.input.file) && self.input.is_whole()) {
            return;
        }
        // If the cache cannot be written to, the file is converted again next time.
        if self.is_new {
            let _ = write(cached, &rows.bytes, SystemTime::now());
        } else if let Ok(file) = File::options().append(true).open(cached) {
            // The time of modification records the last use.
            let _ = file.set_modified(SystemTime::now());
        }
        keep_path(cached, path);
        if self.is_new {
            let _ = evict(cached);
        }
    }

    /// Removes the rows from the cache. Returns whether they came from there.
    pub(crate) fn discard(&self) -> bool {
        !self.is_new && self.input.forget()
    }
}

/// The number of the form of packed rows.
const FORM: u8 = 2;

/// The checksum of packed rows in this form. A new compiler may compute another one: then the rows
/// are made anew.
fn checksum(packed: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    hasher.write_u8(FORM);
    hasher.write(packed);
    hasher.finish().to_le_bytes()
}

/// Reads a cache file. `None` if there is none, or if it is not as it was written.
fn read(cached: &Path) -> Option<ConvertedRows> {
    let mut packed = fs::read(cached).ok()?;
    let sum = packed.split_off(packed.len().checked_sub(checksum(&[]).len())?);
    match sum == checksum(&packed) {
        true => unpack(packed),
        false => None,
    }
}

/// Writes a cache file whose rows were last used at a time. Renaming is atomic: another thread may
/// write rows for the same file.
fn write(cached: &Path, packed: &[u8], used: SystemTime) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = cached.with_extension(format!("{}.{number}.{NEW}", process::id()));
    let write_new = || {
        let mut file = File::create(&new)?;
        file.write_all(packed)?;
        file.write_all(&checksum(packed))?;
        file.set_modified(used)?;
        file.sync_data()
    };
    write_new()
        .and_then(|()| fs::rename(&new, cached))
        .inspect_err(|_| drop(fs::remove_file(&new)))
}

/// The result of [`prepare`], with the path of the cache file.
pub(crate) enum Prepared {
    /// The rows were made, and the cache has them now.
    Made(PathBuf),
    /// The cache had the rows.
    Known(PathBuf),
    /// The file is no program or library, or no rows can be made from it; or the cache has no room,
    /// or keeps no rows of such a file.
    Unsuited,
}

/// The time of the last use of rows that were never used. So they are the first that are evicted.
const NEVER: SystemTime = SystemTime::UNIX_EPOCH;

/// The room in the cache for rows that may never be used, in bytes.
pub(crate) fn room() -> AtomicU64 {
    AtomicU64::new(config::get().cache_bytes().saturating_sub(cache_size().1))
}

/// The number of files in the cache, and their size in bytes.
pub(crate) fn cache_size() -> (u64, u64) {
    let cached = read_cache(&cache_directory()).unwrap_or_default();
    let total = cached.iter().map(|(_, len, _)| len).sum();
    (cached.len() as u64, total)
}

/// A file with its cache file, if there may be one. A package manager may have written the file
/// just now: waits until the file is no longer young.
fn settled(file: &File) -> Option<(Input<'_>, PathBuf)> {
    let mut input = Input::of(file).ok()?;
    if input.cached.is_some() && !input.is_settled {
        thread::sleep(YOUNG.saturating_sub(age(&input.before)?));
        input = Input::of(file).ok()?;
    }
    let cached = input.cached.clone()?;
    Some((input, cached))
}

/// Makes the rows of a file before its first use, and keeps them in the cache, if they fit into
/// `room`.
pub(crate) fn prepare(file: &File, room: &AtomicU64) -> Prepared {
    let Some((input, cached)) = settled(file).filter(|_| is_elf(file)) else {
        return Prepared::Unsuited;
    };
    if cached.exists() {
        return Prepared::Known(cached);
    }
    if room.load(Ordering::Relaxed) == 0 {
        return Prepared::Unsuited;
    }
    let Ok(packed) = input.convert() else {
        return Prepared::Unsuited;
    };
    if !input.is_whole() {
        return Prepared::Unsuited;
    }
    let fits = |room: u64| room.checked_sub(packed.len() as u64);
    if room
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
        .is_err()
    {
        // The other files are not converted in vain.
        room.store(0, Ordering::Relaxed);
        return Prepared::Unsuited;
    }
    match write(&cached, &packed, NEVER) {
        Ok(()) => Prepared::Made(cached),
        Err(_) => Prepared::Unsuited,
    }
}

/// Removes the rows that another converter has made.
pub(crate) fn remove_outdated() -> io::Result<()> {
    let ending = format!("-{SOURCES}.{ROWS}");
    for (_, _, path) in read_cache(&cache_directory())? {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if !name.ends_with(ending.as_bytes()) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a cache file and its links.
fn remove(cached: &Path) -> io::Result<()> {
    remove_file(cached)?;
    for link in links(cached) {
        let _ = fs::remove_file(link);
    }
    Ok(())
}

/// Removes the rows that were never used, except those of `known` cache files.
pub(crate) fn remove_unused(known: &BTreeSet<PathBuf>) -> io::Result<()> {
    for (used, _, path) in read_cache(&cache_directory())? {
        if used == NEVER && !known.contains(&path) {
            remove_file(&path)?;
        }
    }
    Ok(())
}

/// The paths of the links beside a cache file, which need not exist.
fn links(cached: &Path) -> impl Iterator<Item = PathBuf> + '_ {
    (0..MAX_LINKS).map(|number| match number {
        0 => cached.with_extension(LINK),
        _ => cached.with_extension(format!("{number}.{LINK}")),
    })
}

/// Makes a link beside a cache file lead to `path`, the oldest link if there are [`MAX_LINKS`].
/// Errors are ignored: without a link, [`cached_files`] does not find the file.
fn keep_path(cached: &Path, path: &Path) {
    let leads_there = |link: PathBuf| fs::read_link(link).ok().as_deref() == Some(path);
    if !path.is_absolute() || links(cached).any(leads_there) {
        return;
    }
    // A link that does not exist is older than all that do.
    let made = |link: &PathBuf| fs::symlink_metadata(link).ok()?.modified().ok();
    if let Some(link) = links(cached).min_by_key(made) {
        let _ = fs::remove_file(&link);
        let _ = symlink(path, &link);
    }
}

/// The names of files whose rows are in the cache, with the most recently used file first. The rows
/// of all of them have at most `most` bytes. A name comes from a process's mappings: another file
/// may have that name now.
pub(crate) fn cached_files(most: u64) -> Vec<PathBuf> {
    cached_in(&cache_directory(), most)
}

fn cached_in(directory: &Path, most: u64) -> Vec<PathBuf> {
    let cached = read_cache(directory).unwrap_or_default();
    let named = cached.iter().rev().flat_map(|(_, len, path)| {
        let names = links(path).filter_map(|link| fs::read_link(link).ok());
        names.map(|name| (*len, name))
    });
    let mut left = most;
    let fits = |(len, name)| {
        left = left.checked_sub(len)?;
        Some(name)
    };
    named.map_while(fits).collect()
}

/// Opens a regular file, whose name a process may have chosen: no FIFO is waited for, and no device
/// is opened.
///
/// # Errors
///
/// The file cannot be opened, or is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let found = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // `found` is not opened for reading yet, and stays the same file.
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no regular file"));
    }
    File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(descriptor_path(&found))
}

/// The path at which the file of a descriptor can be opened anew.
fn descriptor_path(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether this is a program or library with a section of its own, which the module uses.
pub(crate) fn has_section(file: &File) -> bool {
    matches!(elf::section_of_file(&FileSource(file)), Ok(Some(_)))
}

/// Whether this is a program or library that can be read.
pub(crate) fn is_elf(file: &File) -> bool {
    elf::section_of_file(&FileSource(file)).is_ok()
}

/// Checks that the module takes a table of a file with these bytes, as far as its program headers
/// decide.
///
/// # Errors
///
/// The file has more program headers than the module reads.
pub(crate) fn check_headers(bytes: &[u8]) -> Result<(), String> {
    match elf::executables(bytes, &mut []) {
        Err(ElfError::TooManyHeaders) => Err(format!(
            "has more than {MAX_PROGRAM_HEADERS} program headers, which the module does not support"
        )),
        _ => Ok(()),
    }
}

/// Makes the rows of an image of the vDSO. The image comes from the kernel itself, so this process
/// may read it.
///
/// # Errors
///
/// No rows can be made from the image.
pub(crate) fn rows_of_image(image: &[u8]) -> Result<ConvertedRows, String> {
    let converted = convert::convert(image).map_err(|error| error.to_string())?;
    unpack(pack(&converted)).ok_or_else(|| "the rows are larger than 4 GiB".to_owned())
}

/// Whether a file is of one of these kinds, which are extensions. The directory of the cache may
/// have other files: scripts/prepare-kernel uses it, too.
fn is_of(path: &Path, kinds: &[&str]) -> bool {
    let extension = path.extension().unwrap_or_default();
    kinds.iter().any(|kind| extension == *kind)
}

/// Removes a file, which another thread or process may have removed.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The cache files of a directory, the least recently used file first: time of the last use, length
/// in bytes, and path. None if there is no such directory.
fn read_cache(directory: &Path) -> io::Result<Vec<(SystemTime, u64, PathBuf)>> {
    let mut cached = Vec::new();
    if !directory.exists() {
        return Ok(cached);
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if !is_of(&path, &[ROWS, NEW]) {
            continue;
        }
        match entry.metadata() {
            // It was removed since, or has got its name.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            metadata => {
                let metadata = metadata?;
                cached.push((metadata.modified()?, metadata.len(), path));
            }
        }
    }
    cached.sort();
    Ok(cached)
}

/// Empties the cache. Returns a line for the user.
pub(crate) fn clear() -> Result<String, String> {
    let (count, size) = clear_in(&cache_directory()).map_err(|error| error.to_string())?;
    Ok(format!(
        "the rows of {count} files are removed, {size} bytes\n"
    ))
}

/// Empties a cache, and returns the number of cache files and their size in bytes.
fn clear_in(directory: &Path) -> io::Result<(usize, u64)> {
    let (mut count, mut size) = (0, 0);
    if !directory.exists() {
        return Ok((count, size));
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if is_of(&path, &[ROWS]) {
            count += 1;
            size += fs::symlink_metadata(&path).map_or(0, |found| found.len());
        }
        if is_of(&path, &[ROWS, NEW, LINK]) {
            remove_file(&path)?;
        }
    }
    Ok((count, size))
}

/// Removes the least recently used files while the cache is over its limit.
fn evict(path: &Path) -> io::Result<()> {
    let cached = read_cache(path.parent().unwrap_or(path))?;
    let mut total: u64 = cached.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in cached {
        if total <= config::get().cache_bytes() {
            break;
        }
        remove(&path)?;
        total -= len;
    }
    Ok(())
}

/// Packed rows, in parts. If code keeps frame pointers and the file has no rows, the section is
/// empty.
pub(crate) fn packed_parts(converted: &Converted) -> ([u8; HEAD], &[u8], &[u8]) {
    let Converted {
        section,
        extra_rows,
        report,
    } = converted;
    let keeps = report.keeps_frame_pointers();
    let section = match keeps && report.section_rows == 0 && extra_rows.is_empty() {
        true => &[],
        false => &section[..],
    };
    let [a, b, c, d] = (section.len() as u32).to_le_bytes();
    ([a, b, c, d, u8::from(keeps)], section, extra_rows)
}

/// Packs rows.
pub(crate) fn pack(converted: &Converted) -> Vec<u8> {
    let (head, section, extra_rows) = packed_parts(converted);
    [&head, section, extra_rows].concat()
}

/// Takes packed rows; `None` if they are truncated, or empty.
pub(crate) fn unpack(packed: Vec<u8>) -> Option<ConvertedRows> {
    let len = u32::from_le_bytes(*packed.first_chunk()?);
    let end = HEAD.checked_add(len as usize)?;
    (end <= packed.len()).then_some(ConvertedRows { bytes: packed, end })
}

/// The directories in which packages have programs and libraries, programs first.
pub(crate) const DIRECTORIES: [&str; 5] =
    ["usr/bin", "usr/sbin", "usr/libexec", "usr/lib", "usr/local"];

/// Whether a file is in one of [`DIRECTORIES`], as this process sees them. Root's files in a
/// container, or in an image that a user has mounted, are not: the maker of such a file chooses its
/// build ID.
fn is_installed(file: &File) -> bool {
    let path = fs::read_link(descriptor_path(file)).unwrap_or_default();
    let is_below = |directory| path.starts_with(Path::new("/").join(directory));
    // In another mount namespace the path may lead to another file.
    let (Ok(there), Ok(this)) = (fs::metadata(&path), file.metadata()) else {
        return false;
    };
    DIRECTORIES.into_iter().any(is_below) && (there.dev(), there.ino()) == (this.dev(), this.ino())
}

/// The cache path for a file in a state. Anyone can give any build ID to a file, so only files that
/// root alone can write are cached.
fn cache_path(file: &File, state: &Metadata) -> Option<PathBuf> {
    if !is_of_root(state) || !geteuid().is_root() {
        return None;
    }
    let (id, len) = elf::build_id(&FileSource(file)).ok()?;
    if len == 0 {
        return None;
    }
    let directory = cache_directory();
    fs::create_dir_all(&directory).ok()?;
    let id = hexadecimal(id.get(..len)?);
    let (size, time, part) = (state.len(), state.mtime(), state.mtime_nsec());
    Some(directory.join(format!("{id}-{size}-{time}.{part:09}-{SOURCES}.{ROWS}")))
}

/// The time since the last change of a file; `None` if its clock is ahead of this one.
fn age(state: &Metadata) -> Option<Duration> {
    let seconds = u64::try_from(state.ctime()).ok()?;
    let changed = Duration::new(seconds, u32::try_from(state.ctime_nsec()).ok()?);
    let now = SystemTime::now();
    now.duration_since(SystemTime::UNIX_EPOCH)
        .ok()?
        .checked_sub(changed)
}

/// Whether root alone can write a file.
pub(crate) fn is_of_root(metadata: &Metadata) -> bool {
    metadata.uid() == 0 && metadata.mode() & 0o022 == 0
}

fn cache_directory() -> PathBuf {
    let directory = env::var_os("CACHE_DIRECTORY").unwrap_or("/var/cache/sframe_unwind".into());
    PathBuf::from(directory)
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

/// In the child process: maps standard input and drops all privileges that the conversion does not
/// need.
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
    // validates every value that it reads, and a truncation ends only this process (SIGBUS), which
    // does nothing but this conversion.
    #[expect(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }.map_err(with("cannot map standard input"))?;
    confine(&Confinement {
        memory: metadata.len().saturating_add(config::conversion_bytes()),
        reads: None,
        alarm: CONVERSION_SECONDS,
    })?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::add::{
        add_by,
        Added, //
    };
    use std::{
        cell::Cell,
        os::unix::process::ExitStatusExt,
        process::ExitStatus, //
    };

    #[test]
    fn only_its_own_answer_says_that_a_file_has_no_rows() {
        let ended = |status, message: &[u8]| {
            packed_rows(Ended {
                status: ExitStatus::from_raw(status),
                answer: vec![1],
                message: message.to_vec(),
            })
        };
        assert_eq!(ended(0, b"").unwrap(), [1]);
        let own = ended(NO_ROWS << 8, b"the file has none\n").unwrap_err();
        assert_eq!(
            (own.text.as_str(), own.is_passing),
            ("the file has none", false)
        );
        // Killed; aborted; a limit could not be set; a panic.
        for (status, expected) in [
            (9, "signal: 9"),
            (6, "signal: 6"),
            (1 << 8, "1"),
            (101 << 8, "101"),
        ] {
            let failure = ended(status, b"").unwrap_err();
            assert!(
                failure.is_passing && failure.text.contains(expected),
                "{failure:?}"
            );
        }
        assert!(
            ended(1 << 8, b"sframectl: -: setrlimit")
                .unwrap_err()
                .is_passing
        );
    }

    #[test]
    fn a_file_of_root_is_installed_only_if_it_is_where_packages_have_files() {
        let is_installed = |path: &Path| is_installed(&File::open(path).unwrap());
        assert!(is_installed(Path::new("/usr/bin/env")));
        assert!(is_installed(Path::new("/bin/../bin/env")));
        let elsewhere = env::temp_dir().join(format!("env-{}", process::id()));
        fs::copy("/usr/bin/env", &elsewhere).unwrap();
        assert!(!is_installed(&elsewhere));
        // A file that is removed has the name "... (deleted)".
        let file = File::open(&elsewhere).unwrap();
        fs::remove_file(&elsewhere).unwrap();
        assert!(!super::is_installed(&file));
    }

    #[test]
    fn the_most_recently_used_files_are_named_first() {
        let directory = env::temp_dir().join(format!("cached-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let now = SystemTime::now();
        for (name, age, len) in [("perl", 2, 10), ("node", 0, 30), ("bash", 1, 20)] {
            let path = directory.join(name).with_extension(ROWS);
            let file = File::create(&path).unwrap();
            file.set_len(len).unwrap();
            file.set_modified(now - Duration::from_secs(age)).unwrap();
            keep_path(&path, &Path::new("/usr/bin").join(name));
            // A name that is no absolute path is not kept.
            keep_path(&path, Path::new("memfd:other"));
        }
        let named = |most| cached_in(&directory, most);
        assert!(named(29).is_empty());
        assert_eq!(
            named(59),
            ["/usr/bin/node", "/usr/bin/bash"].map(PathBuf::from)
        );
        fs::remove_file(directory.join("bash.file")).unwrap();
        assert_eq!(
            named(60),
            ["/usr/bin/node", "/usr/bin/perl"].map(PathBuf::from)
        );
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn copies_of_a_file_have_the_same_rows() {
        let directory = env::temp_dir().join(format!("copies-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let rows = directory.join("id-100-0.1.0.rows");
        fs::write(&rows, [0; 10]).unwrap();
        let named = |most| {
            let mut names = cached_in(&directory, most);
            names.sort();
            names
        };
        let copy = |number: usize| PathBuf::from(format!("/tmp/copy{number}"));
        for number in 0..MAX_LINKS {
            keep_path(&rows, &copy(number));
            keep_path(&rows, &copy(0));
        }
        assert_eq!(named(100), (0..MAX_LINKS).map(copy).collect::<Vec<_>>());
        // Each copy takes memory for rows of its own.
        assert_eq!(named(25).len(), 2);
        // One more replaces the first.
        keep_path(&rows, &copy(MAX_LINKS));
        assert_eq!(named(100), (1..=MAX_LINKS).map(copy).collect::<Vec<_>>());
        fs::remove_dir_all(&directory).unwrap();
    }

    /// A directory of this test.
    fn directory(name: &str) -> PathBuf {
        let directory = env::temp_dir().join(format!("{name}-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    /// Rows with one byte of a section, for code that keeps frame pointers.
    fn some_rows() -> ConvertedRows {
        unpack(vec![1, 0, 0, 0, 1, 7, 8, 9]).unwrap()
    }

    #[test]
    fn packed_rows_tell_whether_code_keeps_frame_pointers() {
        let rows = |section: &'static [u8], extra_rows: &'static [u8], keeps| RowsToAdd {
            section,
            extra_rows,
            keeps_frame_pointers: keeps,
        };
        let unpacked = |packed: &[u8]| unpack(packed.to_vec());
        let packed = some_rows();
        assert_eq!(packed.to_add(), rows(&[7], &[8, 9], true));
        let empty = unpacked(&[0, 0, 0, 0, 1]).unwrap();
        assert_eq!(empty.to_add(), rows(&[], &[], true));
        let other = unpacked(&[2, 0, 0, 0, 0, 7, 8]).unwrap();
        assert_eq!(other.to_add(), rows(&[7, 8], &[], false));
        for truncated in [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 1], &[255; 100]] {
            assert!(unpacked(truncated).is_none(), "{truncated:?}");
        }
    }

    /// An installed file, whose rows may be at `cached`.
    fn installed(file: &File, cached: PathBuf) -> Input<'_> {
        let cached = Some(cached);
        Input {
            cached,
            ..Input::of(file).unwrap()
        }
    }

    #[test]
    fn a_damaged_cache_file_has_no_rows() {
        let directory = directory("damaged");
        let cached = directory.join("id.rows");
        let rows = some_rows();
        write(&cached, &rows.bytes, SystemTime::now()).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert_eq!(read(&cached).unwrap().bytes, rows.bytes);
        let written = fs::read(&cached).unwrap();
        for len in 0..written.len() {
            fs::write(&cached, &written[..len]).unwrap();
            assert!(read(&cached).is_none(), "{len}");
            let mut flipped = written.clone();
            flipped[len] ^= 1;
            fs::write(&cached, &flipped).unwrap();
            assert!(read(&cached).is_none(), "{len}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn rows_of_a_file_that_is_being_written_are_not_kept() {
        let directory = directory("written");
        let (path, cached) = (directory.join("program"), directory.join("id.rows"));
        let file = File::open("/usr/bin/env").unwrap();
        let input = installed(&file, cached.clone());
        let (input, is_new) = (&input, true);
        CacheUse { input, is_new }.keep(&some_rows(), &path);
        assert!(cached.exists());
        assert!(input.forget() && !input.forget());
        // It has just been written.
        fs::write(&path, "x").unwrap();
        let file = File::open(&path).unwrap();
        let young = Input::of(&file).unwrap();
        assert!(young.is_unchanged() && !young.is_whole());
        // It is written to while it is converted.
        let written = Input {
            is_settled: true,
            ..young
        };
        assert!(written.is_whole());
        fs::write(&path, "xy").unwrap();
        assert!(!written.is_whole());
        // A file with these times is another state than one whose rows are in the cache.
        let file = File::options().append(true).open(&path).unwrap();
        let mut names = BTreeSet::new();
        for seconds in [1, 2, 1] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            file.set_modified(time).unwrap();
            let state = file.metadata().unwrap();
            let env = File::open("/usr/bin/env").unwrap();
            names.insert(cache_path(&env, &state));
        }
        // Others than root have no cache.
        let expected = if geteuid().is_root() { 2 } else { 1 };
        assert_eq!(names.len(), expected);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn refused_rows_of_the_cache_are_made_anew() {
        let directory = directory("refused");
        let cached = directory.join("id.rows");
        write(&cached, &some_rows().bytes, SystemTime::now()).unwrap();
        let file = File::open("/usr/bin/env").unwrap();
        let input = installed(&file, cached.clone());
        let path = Path::new("env");
        let taken = add_by(&input, path, |_| Ok(())).unwrap();
        assert!(matches!(taken, Added::Cached(_)), "{taken:?}");
        // For want of memory.
        let full = |_: RowsToAdd<'_>| Err(Refusal::from("full".to_owned()));
        assert_eq!(add_by(&input, path, full).unwrap_err().text, "full");
        assert!(cached.exists());
        let refused = Cell::new(0);
        let failure = add_by(&input, path, |rows| {
            assert_eq!(rows, some_rows().to_add());
            refused.set(refused.get() + 1);
            Err(Refusal {
                text: "refused".to_owned(),
                is_of_rows: true,
            })
        });
        // The next try is a conversion, which the program of this test cannot do.
        assert!(failure.unwrap_err().is_passing);
        assert_eq!((refused.get(), cached.exists()), (1, false));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn files_of_others_are_no_rows() {
        let directory = directory("others");
        // As of scripts/prepare-kernel.
        fs::create_dir(directory.join("linux-6.12")).unwrap();
        for name in ["linux-6.12.lock", "a.rows", "b.1.0.new", "a.file"] {
            fs::write(directory.join(name), "rows").unwrap();
        }
        let cached = read_cache(&directory).unwrap();
        let names = cached.iter().filter_map(|(_, _, path)| path.file_name());
        let expected = ["a.rows", "b.1.0.new"].map(AsRef::as_ref);
        assert_eq!(BTreeSet::from_iter(names), BTreeSet::from(expected));
        // Another process may have removed it.
        remove(&directory.join("c.rows")).unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_cleared_cache_has_no_files() {
        let directory = directory("cleared");
        for name in [
            "a.rows",
            "b.rows",
            "a.file",
            "a.1.file",
            "a.12.0.new",
            "other",
        ] {
            fs::write(directory.join(name), [0; 10]).unwrap();
        }
        assert_eq!(clear_in(&directory).unwrap(), (2, 20));
        let left = fs::read_dir(&directory).unwrap();
        let left = left.map(|entry| entry.unwrap().file_name());
        assert_eq!(Vec::from_iter(left), ["other"]);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(clear_in(&directory).unwrap(), (0, 0));
    }

    #[test]
    fn the_least_recently_used_files_are_evicted() {
        let directory = env::temp_dir().join(format!("kept-{}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let now = SystemTime::now();
        for (name, age) in [("new", 0), ("old", 2), ("older", 3), ("newer", 1)] {
            let path = directory.join(name).with_extension(ROWS);
            let file = File::create(&path).unwrap();
            // A sparse file.
            file.set_len(config::get().cache_bytes() / 3).unwrap();
            file.set_modified(now - Duration::from_secs(age)).unwrap();
            keep_path(&path, Path::new("/usr/bin/true"));
        }
        evict(&directory.join("new.rows")).unwrap();
        let mut remaining: Vec<_> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        remaining.sort();
        fs::remove_dir_all(&directory).unwrap();
        let kept = [
            "new.file",
            "new.rows",
            "newer.file",
            "newer.rows",
            "old.file",
            "old.rows",
        ];
        assert_eq!(remaining, kept);
    }
}
