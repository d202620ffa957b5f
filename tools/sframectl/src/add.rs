// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl add`, `remove`, `list` and `stats`: manages the module's tables.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{
        self,
        File, //
    },
    io::{
        self,
        IsTerminal,
        Write, //
    },
    ops::Not,
    os::unix::fs::MetadataExt,
    path::{
        Path,
        PathBuf, //
    },
    sync::Mutex, //
};

use runtimes::answer::printable;
use rustix::fs::{
    major,
    minor, //
};
use serde::Serialize;
use sframe::{
    section::Section,
    table::EXTRA_ROW_SIZE, //
};
use walk::process::{
    self,
    FileId, //
};

use crate::{
    config,
    device::{
        self,
        ChangeTime,
        Device,
        Refusal,
        RowsToAdd,
        Table,
        Target, //
    },
    exit::CommandError,
    parallel,
    rows::{
        self,
        ConvertedRows,
        Failure, //
    }, //
};

/// A file to add: its name for messages, and the paths to try to open.
struct Item {
    name: String,
    open: Vec<PathBuf>,
}

/// The result for one file.
#[derive(Serialize)]
struct Outcome {
    file: String,
    #[serde(flatten)]
    rows: Option<RowCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The files to add.
pub(crate) struct Which<'a> {
    pub(crate) files: &'a [PathBuf],
    pub(crate) pid: Option<u32>,
    pub(crate) all: bool,
    pub(crate) vdso: bool,
}

/// Adds rows. Returns the results as text, and whether there was no error.
pub(crate) fn run(which: &Which<'_>, json: bool) -> Result<(String, bool), CommandError> {
    let device = Device::open()?;
    let mut items: Vec<Item> = which
        .files
        .iter()
        .map(|path| Item {
            name: path.display().to_string(),
            open: vec![path.clone()],
        })
        .collect();
    if let Some(pid) = which.pid {
        items.extend(mapped(&[pid])?.into_values());
    }
    if which.all {
        items.extend(mapped(&processes()?)?.into_values());
    }
    let mut outcomes = Vec::new();
    if which.vdso {
        outcomes.push(outcome("[vdso]".to_owned(), add_vdso(&device)));
    }
    // Files of processes that have rows already are skipped.
    let known = if which.files.is_empty() {
        device.list()?
    } else {
        Vec::new()
    };
    outcomes.extend(add_items(&device, items, &known));
    let good = outcomes.iter().all(|outcome| outcome.error.is_none());
    Ok((print(&outcomes, json)?, good || which.all))
}

fn print(outcomes: &[Outcome], json: bool) -> Result<String, String> {
    if json {
        let text = serde_json::to_string(outcomes).map_err(|error| error.to_string())?;
        return Ok(text + "\n");
    }
    let mut text = String::new();
    for Outcome { file, rows, error } in outcomes {
        match (error, rows) {
            (Some(error), _) => complain(file, error),
            (None, Some(rows)) => text += &format!("{file}: {rows}\n"),
            (None, None) => text += &format!("{file}: has rows already\n"),
        }
    }
    Ok(text)
}

/// Prints an error about `file`. If stderr cannot be written to, only the exit code reports it.
pub(crate) fn complain(file: &str, error: &str) {
    let _ = writeln!(io::stderr(), "sframectl: {file}: {error}");
}

fn outcome(file: String, result: Result<Option<RowCount>, String>) -> Outcome {
    let (rows, error) = match result {
        Ok(rows) => (rows, None),
        Err(error) => (None, Some(error)),
    };
    Outcome { file, rows, error }
}

fn add_items(device: &Device, items: Vec<Item>, known: &[Table]) -> Vec<Outcome> {
    let count = items.len();
    let shows = io::stderr().is_terminal() && count > 1;
    let done = Mutex::new(Vec::new());
    parallel::for_each(items, |item: Item| {
        let result = item.open().and_then(|file| {
            match known.iter().any(|table| is_table_of(table, &file)) {
                true => Ok(None),
                false => rows::Input::of(&file)
                    .and_then(|input| add(device, &input, Path::new(&item.name), ROOT))
                    .map_err(|failure| failure.text)
                    .and_then(Added::rows)
                    .map(Some),
            }
        });
        if let Ok(mut done) = done.lock() {
            done.push(outcome(item.name, result));
            if shows {
                let _ = write!(io::stderr(), "\r{} of {count} files", done.len());
            }
        }
    });
    if shows {
        let _ = writeln!(io::stderr());
    }
    let mut outcomes = done.into_inner().unwrap_or_default();
    outcomes.sort_by(|one: &Outcome, other| one.file.cmp(&other.file));
    outcomes
}

impl Item {
    fn open(&self) -> Result<File, String> {
        let mut message = "there is no such file".to_owned();
        for path in &self.open {
            match File::open(path) {
                Ok(file) => return Ok(file),
                Err(error) => message = error.to_string(),
            }
        }
        Err(message)
    }
}

/// The user charged for files that root adds by name.
const ROOT: u32 = 0;

/// The number of a file's rows.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RowCount {
    rows: u32,
    /// Whether code that no row covers keeps frame pointers.
    #[serde(skip_serializing_if = "Not::not")]
    keeps_frame_pointers: bool,
}

impl fmt::Display for RowCount {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rows, self.keeps_frame_pointers) {
            (0, true) => to.write_str("no rows, but frame pointers"),
            (rows, true) => write!(to, "{rows} rows, and frame pointers elsewhere"),
            (rows, false) => write!(to, "{rows} rows"),
        }
    }
}

/// What was added for a file.
#[derive(Debug)]
pub(crate) enum Added {
    /// Rows that were made.
    Converted(RowCount),
    /// Rows of the cache.
    Cached(RowCount),
    /// An empty table, because no rows can be made, for this reason; or nothing, if the file has a
    /// section of its own.
    Empty(String),
}

impl Added {
    /// The number of rows.
    ///
    /// # Errors
    ///
    /// No rows can be made.
    pub(crate) fn rows(self) -> Result<RowCount, String> {
        match self {
            Added::Converted(rows) | Added::Cached(rows) => Ok(rows),
            Added::Empty(reason) => Err(reason),
        }
    }
}

/// Converts an open file, whose name is `path`, and adds its rows. If the caller is root, the table
/// is charged to `user`.
///
/// # Errors
///
/// The conversion has not ended by itself, or the kernel refuses the rows: those of the cache are
/// made anew.
pub(crate) fn add(
    device: &Device,
    input: &rows::Input<'_>,
    path: &Path,
    user: u32,
) -> Result<Added, Failure> {
    add_by(input, path, |rows| {
        let file = Target::File(input.file);
        device.add(file, input.changed(), user, rows)
    })
}

/// Converts an open file, whose name is `path`, and adds its rows by `add`.
///
/// # Errors
///
/// As those of [`add`].
pub(crate) fn add_by(
    input: &rows::Input<'_>,
    path: &Path,
    add: impl Fn(RowsToAdd<'_>) -> Result<(), Refusal>,
) -> Result<Added, Failure> {
    loop {
        let (rows, cache) = match input.rows() {
            Err(failure) if !failure.is_passing => {
                if !rows::has_section(input.file) {
                    add(RowsToAdd::default())?;
                }
                return Ok(Added::Empty(failure.text));
            }
            rows => rows?,
        };
        match add(rows.to_add()) {
            Err(refusal) if refusal.is_of_rows && cache.discard() => {}
            Err(refusal) if refusal.is_of_rows => return Err(refusal.into()),
            added => {
                cache.keep(&rows, path);
                added?;
                let count = count(rows.to_add());
                return Ok(match cache.is_hit() {
                    true => Added::Cached(count),
                    false => Added::Converted(count),
                });
            }
        }
    }
}

/// Adds the rows of a file, which are of its state at `changed`. If the caller is root, the table
/// is charged to `user`.
///
/// # Errors
///
/// The kernel refuses the rows.
pub(crate) fn add_rows(
    device: &Device,
    file: &File,
    changed: ChangeTime,
    rows: &ConvertedRows,
    user: u32,
) -> Result<(), Refusal> {
    device.add(Target::File(file), changed, user, rows.to_add())
}

/// Adds the rows of files that are in the cache, the most recently used files first, until their
/// rows take half of the memory that the module allows for tables. Returns the files.
pub(crate) fn add_cached(device: &Device) -> Vec<FileId> {
    let mib: u64 = device::module_file("parameters/tables_mib")
        .parse()
        .unwrap_or(0);
    let mut added = Vec::new();
    let exclude = &config::get().exclude;
    for path in rows::cached_files((mib << 20) / 2) {
        if exclude.has_path(&path) {
            continue;
        }
        let Ok(file) = rows::open_regular(&path) else {
            continue;
        };
        let Ok(input) = rows::Input::of(&file) else {
            continue;
        };
        let Some(rows) = input.cached_rows() else {
            continue;
        };
        match (
            add_rows(device, &file, input.changed(), &rows, ROOT),
            file.metadata(),
        ) {
            (Ok(()), Ok(metadata)) => added.push(FileId {
                device: (major(metadata.dev()), minor(metadata.dev())),
                inode: metadata.ino(),
            }),
            (Err(refusal), _) if refusal.is_of_rows => drop(input.forget()),
            _ => {}
        }
    }
    added
}

/// The number of rows, from the section's header and the length of the extra rows.
fn count(rows: RowsToAdd<'_>) -> RowCount {
    let RowsToAdd {
        section,
        extra_rows,
        keeps_frame_pointers,
    } = rows;
    let in_section =
        Section::open(section, 0, section.len() as u64).map_or(0, |section| section.num_fres());
    RowCount {
        rows: in_section.saturating_add((extra_rows.len() / EXTRA_ROW_SIZE) as u32),
        keeps_frame_pointers,
    }
}

/// Adds the rows of the vDSO, converted from this process's image of it.
pub(crate) fn add_vdso(device: &Device) -> Result<Option<RowCount>, String> {
    let read = |error: io::Error| format!("cannot read this process's memory: {error}");
    let maps = process::maps(std::process::id()).map_err(read)?;
    let (vdso, _) = maps
        .iter()
        .find(|(mapping, _)| mapping.name == "[vdso]")
        .ok_or("this process has no vDSO")?;
    let len = (vdso.end - vdso.start) as usize;
    let image = process::read_memory(std::process::id(), vdso.start, len).map_err(read)?;
    let rows = rows::rows_of_image(&image)?;
    device.add(Target::Vdso, ChangeTime::default(), ROOT, rows.to_add())?;
    Ok(Some(count(rows.to_add())))
}

fn processes() -> Result<Vec<u32>, String> {
    let entries = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

/// The files that processes have mapped executable, by device and inode.
fn mapped(pids: &[u32]) -> Result<BTreeMap<FileId, Item>, String> {
    let mut files = BTreeMap::new();
    for pid in pids {
        let maps = match process::maps(*pid) {
            Ok(maps) => maps,
            Err(error) if pids.len() == 1 => return Err(format!("/proc/{pid}/maps: {error}")),
            // The process has exited.
            Err(_) => continue,
        };
        for (mapping, file) in maps {
            if !mapping.executable || file.inode == 0 {
                continue;
            }
            files.entry(file).or_insert_with(|| Item {
                open: vec![
                    process::map_file(*pid, mapping.start, mapping.end),
                    mapping.name.clone().into(),
                ],
                name: mapping.name,
            });
        }
    }
    Ok(files)
}

/// Whether a table has rows for this file, at its present size and time of modification.
fn is_table_of(table: &Table, file: &File) -> bool {
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    table.rows != 0
        && table.inode == metadata.ino()
        && u64::try_from(table.file_size) == Ok(metadata.len())
        && (table.device_major, table.device_minor)
            == (major(metadata.dev()), minor(metadata.dev()))
        && table.modified == metadata.mtime()
        && i64::from(table.modified_nsec) == metadata.mtime_nsec()
}

/// Removes rows.
pub(crate) fn remove(files: &[PathBuf], vdso: bool) -> Result<(String, bool), CommandError> {
    let device = Device::open()?;
    let mut good = true;
    let mut text = String::new();
    let mut report = |name: &Path, result: Result<bool, String>| {
        let name = name.display().to_string();
        match result {
            Ok(true) => text += &format!("{name}: removed\n"),
            Ok(false) => complain(&name, "the kernel has no rows for it"),
            Err(ref error) => complain(&name, error),
        }
        good &= result == Ok(true);
    };
    for path in files {
        let result = File::open(path)
            .map_err(|error| error.to_string())
            .and_then(|file| device.remove(Target::File(&file)));
        report(path, result);
    }
    if vdso {
        report(Path::new("[vdso]"), device.remove(Target::Vdso));
    }
    Ok((text, good))
}

#[derive(Serialize)]
struct Listed {
    origin: &'static str,
    rows: u64,
    bytes: u64,
    device: String,
    inode: u64,
    user: u32,
    cuts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

/// Lists the module's tables.
pub(crate) fn list(json: bool) -> Result<String, CommandError> {
    let tables = Device::open()?.list()?;
    let listed: Vec<Listed> = tables
        .iter()
        .map(|table| Listed {
            origin: device::origin(table),
            rows: table.rows,
            bytes: table.bytes,
            inode: table.inode,
            user: table.user,
            cuts: table.cuts,
            file: device::path(table),
            device: device::device_of(table),
        })
        .collect();
    if json {
        let text = serde_json::to_string(&listed).map_err(|error| error.to_string())?;
        return Ok(text + "\n");
    }
    let mut text =
        "origin          rows      bytes   user     cuts  device:inode  file\n".to_owned();
    for (table, listed) in tables.iter().zip(&listed) {
        text += &format!(
            "{:<10} {:>9} {:>10} {:>6} {:>8}  {}  {}\n",
            listed.origin,
            listed.rows,
            listed.bytes,
            listed.user,
            listed.cuts,
            device::file_id(table),
            printable(listed.file.as_deref().unwrap_or("-")),
        );
    }
    Ok(text)
}

/// Prints the module's counters.
pub(crate) fn stats(json: bool) -> Result<String, CommandError> {
    let counters = Device::open()?.stats()?;
    if json {
        let counters: BTreeMap<_, _> = counters.into_iter().collect();
        let text = serde_json::to_string(&counters).map_err(|error| error.to_string())?;
        return Ok(text + "\n");
    }
    let line = |(name, value): &(String, u64)| format!("{name} {value}\n");
    Ok(counters.iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_pointers_are_told_of() {
        let outcomes = |keeps_frame_pointers, extra_rows: usize| {
            let rows = count(RowsToAdd {
                extra_rows: &vec![0; extra_rows * EXTRA_ROW_SIZE],
                keeps_frame_pointers,
                ..RowsToAdd::default()
            });
            let outcomes = [outcome("file".to_owned(), Ok(Some(rows)))];
            [false, true].map(|json| print(&outcomes, json).unwrap())
        };
        assert_eq!(
            outcomes(false, 3),
            ["file: 3 rows\n", "[{\"file\":\"file\",\"rows\":3}]\n",]
        );
        assert_eq!(
            outcomes(true, 3),
            [
                "file: 3 rows, and frame pointers elsewhere\n",
                "[{\"file\":\"file\",\"rows\":3,\"keeps_frame_pointers\":true}]\n",
            ]
        );
        assert_eq!(
            outcomes(true, 0),
            [
                "file: no rows, but frame pointers\n",
                "[{\"file\":\"file\",\"rows\":0,\"keeps_frame_pointers\":true}]\n",
            ]
        );
        let known = [outcome("file".to_owned(), Ok(None))];
        assert_eq!(print(&known, false).unwrap(), "file: has rows already\n");
        assert_eq!(print(&known, true).unwrap(), "[{\"file\":\"file\"}]\n");
    }
}
