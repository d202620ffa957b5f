// SPDX-License-Identifier: GPL-2.0-only

//! Lists the rows of .eh_frame that `convert` drops, for all ELF files below directories; and the
//! rows that count from a register which is not known after the function has called
//! (`calls-only-innermost`).
//!
//! usage: dropped DIRECTORY|FILE...
//!
//! Prints the number of files, and the bytes of their sections with code; for each reason and rule,
//! the number of rows, the bytes of code that they cover, the number of files, and one of the files
//! with an address; then the files that cannot be converted, by reason.

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    env,
    fs,
    path::{
        Path,
        PathBuf, //
    }, //
};

use convert::DropReason;
use object::{
    Object,
    ObjectSection,
    SectionKind, //
};

#[derive(Default)]
struct DroppedGroup {
    rows: u64,
    bytes: u64,
    files: BTreeSet<PathBuf>,
    example: Option<(PathBuf, u64)>,
}

fn main() {
    let mut paths: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let mut groups: BTreeMap<(Option<DropReason>, String), DroppedGroup> = BTreeMap::new();
    let mut failed: BTreeMap<String, (u64, PathBuf)> = BTreeMap::new();
    let (mut files, mut code) = (0u64, 0u64);
    while let Some(path) = paths.pop() {
        let Ok(kind) = fs::symlink_metadata(&path) else {
            continue;
        };
        if kind.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            paths.extend(entries.map(|entry| entry.path()));
            continue;
        }
        if !kind.is_file() || !is_elf(&path) {
            continue;
        }
        let Ok(bytes) = fs::read(&path) else {
            continue;
        };
        match convert::dropped_rows(&bytes) {
            Ok(rows) => {
                files += 1;
                code += bytes_of_code(&bytes);
                for row in rows {
                    let group = groups.entry((row.reason, row.rule)).or_default();
                    group.rows += 1;
                    group.bytes += row.end - row.start;
                    group.files.insert(path.clone());
                    group.example.get_or_insert((path.clone(), row.start));
                }
            }
            Err(error) => failed.entry(error.to_string()).or_insert((0, path)).0 += 1,
        }
    }
    println!("{files} files converted, {code} bytes of code");
    for ((reason, rule), group) in &groups {
        let (path, address) = group.example.as_ref().expect("each group has a row");
        println!(
            "{}: {} rows, {} bytes, {} files: {rule} ({} {address:#x})",
            reason.map_or("calls-only-innermost", DropReason::name),
            group.rows,
            group.bytes,
            group.files.len(),
            path.display(),
        );
    }
    for (error, (count, path)) in &failed {
        println!("not converted: {count} files: {error} ({})", path.display());
    }
}

/// The size of a file's sections with code, in bytes.
fn bytes_of_code(bytes: &[u8]) -> u64 {
    let file = object::File::parse(bytes).expect("the file has been converted");
    file.sections()
        .filter(|section| section.kind() == SectionKind::Text)
        .map(|section| section.size())
        .sum()
}

/// Whether a file has the header of an ELF file that can be mapped (a program or a shared object).
fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut head = [0; 18];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    // ET_EXEC or ET_DYN
    read.is_ok() && head.starts_with(b"\x7fELF") && matches!(head[16], 2 | 3)
}
