// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Walks all snapshots in `tests/snapshots`, by the core's walk. Each is a test, with the name of
//! its file.
//!
//! This program has no harness, because the tests are the files that are there. It takes parts of
//! names, `--exact` and `--list`, like other tests of cargo. The variable SNAPSHOTS names another
//! directory, of files that nobody has looked at yet. With UPDATE_SNAPSHOTS=1, files that were
//! edited are laid out anew; nothing in them changes.

use std::{
    env,
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::ExitCode, //
};

use walk::snapshot::Snapshot;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/snapshots");

/// Where the files are, and whether somebody has looked at them.
struct SnapshotDirectory {
    directory: PathBuf,
    is_reviewed: bool,
}

fn main() -> ExitCode {
    let other = env::var_os("SNAPSHOTS");
    let place = SnapshotDirectory {
        is_reviewed: other.is_none(),
        directory: other.map_or(DIRECTORY.into(), PathBuf::from),
    };
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (options, parts): (Vec<_>, Vec<_>) =
        (arguments.iter()).partition(|argument| argument.starts_with('-'));
    let has = |option: &str| options.iter().any(|given| *given == option);
    let is_asked = |name: &String| {
        let mut parts = parts.iter();
        parts.len() == 0
            || match has("--exact") {
                true => parts.any(|part| *part == name),
                false => parts.any(|part| name.contains(&**part)),
            }
    };
    let names = match place.names() {
        Ok(names) => names,
        Err(error) => {
            eprintln!("{}: {error}", place.directory.display());
            return ExitCode::FAILURE;
        }
    };
    let asked: Vec<&String> = names.iter().filter(|name| is_asked(name)).collect();
    if has("--list") {
        for name in asked {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", asked.len());
    let mut failures = Vec::new();
    for name in &asked {
        let differences = place.check(name);
        let result = match differences.is_empty() {
            true => "ok",
            false => "FAILED",
        };
        println!("test {name} ... {result}");
        if !differences.is_empty() {
            failures.push((name, differences));
        }
    }
    for (name, differences) in &failures {
        println!("\n---- {name}");
        for line in differences {
            println!("{line}");
        }
    }
    let result = match failures.is_empty() {
        true => "ok",
        false => "FAILED",
    };
    println!(
        "\ntest result: {result}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out\n",
        asked.len() - failures.len(),
        failures.len(),
        names.len() - asked.len()
    );
    ExitCode::from(u8::from(!failures.is_empty()))
}

impl SnapshotDirectory {
    /// The names of all tests: `snapshots::` and the name of a file without its extension.
    fn names(&self) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(|error| error.to_string())? {
            let name = entry.map_err(|error| error.to_string())?.file_name();
            let name = name.to_string_lossy();
            let Some(stem) = name.strip_suffix(".json") else {
                return Err(format!("{name} is no snapshot"));
            };
            names.push(format!("snapshots::{stem}"));
        }
        names.sort();
        Ok(names)
    }

    /// The differences between a snapshot and its walk, as lines of text.
    fn check(&self, name: &str) -> Vec<String> {
        let stem = name.strip_prefix("snapshots::").unwrap_or(name);
        let path = self.directory.join(stem).with_extension("json");
        let text = fs::read_to_string(&path).map_err(|error| error.to_string());
        let differences = text.and_then(|text| self.differences(&path, &text));
        (differences.unwrap_or_else(|error| vec![error]).into_iter())
            .map(|line| format!("{stem}.json: {line}"))
            .collect()
    }

    fn differences(&self, path: &Path, text: &str) -> Result<Vec<String>, String> {
        let snapshot = Snapshot::parse(text)?;
        let mut differences = snapshot.check()?;
        if !self.is_reviewed {
            return Ok(differences);
        }
        for (field, is_empty) in [
            ("about", snapshot.about.is_empty()),
            ("origin.version", snapshot.origin.version.is_empty()),
        ] {
            if is_empty {
                differences.push(format!("{field}: empty; a person has to fill it in"));
            }
        }
        // So a change of a file shows as few lines as possible.
        let laid_out = snapshot.to_text();
        if laid_out != text {
            match env::var_os("UPDATE_SNAPSHOTS") {
                Some(_) => fs::write(path, laid_out).map_err(|error| error.to_string())?,
                None => differences.push(
                    "the layout is not that of a saved file; UPDATE_SNAPSHOTS=1 makes it so"
                        .to_owned(),
                ),
            }
        }
        Ok(differences)
    }
}
