// SPDX-License-Identifier: GPL-2.0-only

//! `sframectl prepare`: makes the rows of installed programs and libraries before they run.

use std::{
    collections::BTreeSet,
    fs::{
        self,
        File, //
    },
    path::{
        Path,
        PathBuf, //
    },
    sync::Mutex, //
};

use crate::{
    config,
    parallel,
    rows::{
        self,
        Prepared, //
    }, //
};

/// Directories in `usr/lib` without code of programs that run.
const LEFT_OUT: [&str; 3] = ["usr/lib/debug", "usr/lib/firmware", "usr/lib/modules"];

/// Makes the missing rows of all programs and libraries under `root`, and removes rows of another
/// converter, and rows that were never used of files that are not there. Returns a line for the
/// user.
pub(crate) fn run(root: &Path) -> Result<String, String> {
    let of_cache = |error| format!("the cache: {error}");
    rows::remove_outdated().map_err(of_cache)?;
    let left_out = LEFT_OUT.map(|directory| root.join(directory));
    let mut files = Vec::new();
    for directory in rows::DIRECTORIES {
        collect(&root.join(directory), &left_out, &mut files);
    }
    let exclude = &config::get().exclude;
    files.retain(|file| {
        let name = file.strip_prefix(root).unwrap_or(file);
        !exclude.has_path(&Path::new("/").join(name))
    });
    let room = rows::room();
    let done = Mutex::new((0, BTreeSet::new()));
    parallel::for_each(files, |path| {
        let prepared =
            File::open(path).map_or(Prepared::Unsuited, |file| rows::prepare(&file, &room));
        let Ok(mut done) = done.lock() else { return };
        match prepared {
            // Two files may have one build ID.
            Prepared::Made(cached) => done.0 += usize::from(done.1.insert(cached)),
            Prepared::Known(cached) => drop(done.1.insert(cached)),
            Prepared::Unsuited => {}
        }
    });
    let (made, known) = done.into_inner().unwrap_or_default();
    rows::remove_unused(&known).map_err(of_cache)?;
    let all = known.len();
    Ok(format!(
        "{all} programs and libraries have rows in the cache; {made} are new\n"
    ))
}

/// Collects the regular files under a directory. Follows no link. A directory that cannot be read
/// has no files.
fn collect(directory: &Path, left_out: &[PathBuf], files: &mut Vec<PathBuf>) {
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        if left_out.contains(&directory) {
            continue;
        }
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
}
