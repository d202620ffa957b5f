// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compares what the core says of real files with what others say of them: for each function, each
//! row and each address.
//!
//! usage: oracles sections DIRECTORY
//!        oracles compare DIRECTORY DOCUMENT
//!
//! DIRECTORY holds what tests/oracles/run has made. `sections` puts the section of each file beside
//! it, relocated, with its address. `compare` prints a TAP line for each file and oracle, and a
//! table. It fails if there are too many disagreements, or one whose kind DOCUMENT does not name.

mod compare;
mod eh_frame;
mod image;
mod kinds;
mod said;
mod simple;

use std::{
    env,
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::ExitCode, //
};

use compare::Totals;
use image::Image;

/// The files, each with the name of its writer.
fn files(directory: &Path) -> Vec<(String, PathBuf)> {
    let list = |directory: &Path| {
        let mut paths: Vec<PathBuf> = fs::read_dir(directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
            .map(|entry| entry.expect("cannot read a directory").path())
            .collect();
        paths.sort();
        paths
    };
    let mut files = Vec::new();
    for writer in list(directory).iter().filter(|path| path.is_dir()) {
        let name = writer.file_name().expect("a name").to_string_lossy();
        for file in list(&writer.join("files")) {
            files.push((name.clone().into_owned(), file));
        }
    }
    files
}

/// The path of what was said of a file, but for the oracle's name.
fn said_of(file: &Path) -> String {
    let said = file.parent().expect("a directory").with_file_name("said");
    fs::create_dir_all(&said).unwrap_or_else(|error| panic!("{}: {error}", said.display()));
    let name = file.file_name().expect("a name").to_string_lossy();
    format!("{}/{name}", said.display())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["sections", directory] => {
            for (_, file) in files(Path::new(directory)) {
                let Some(image) = Image::load(&file) else {
                    panic!("{} has no .sframe: build it anew", file.display());
                };
                let said = said_of(&file);
                fs::write(format!("{said}.section"), &image.sframe.bytes).expect("cannot write");
                fs::write(format!("{said}.address"), image.sframe.address.to_string())
                    .expect("cannot write");
            }
            ExitCode::SUCCESS
        }
        ["compare", directory, document] => {
            let document =
                fs::read_to_string(document).unwrap_or_else(|error| panic!("{document}: {error}"));
            let mut totals = Totals::default();
            for (writer, file) in files(Path::new(directory)) {
                totals.file(&writer, &file, &said_of(&file), &document);
            }
            if totals.judge() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        _ => {
            eprintln!("usage: oracles sections DIRECTORY | oracles compare DIRECTORY DOCUMENT");
            ExitCode::from(2)
        }
    }
}
