// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compares the core with independent SFrame readers (oracles) on real files: each function, each
//! row and each address.
//!
//! usage: oracles sections DIRECTORY
//!        oracles compare DIRECTORY DOCUMENT
//!
//! DIRECTORY is that of tests/oracles/run. `sections` writes the section of each file, relocated,
//! and its address to the directory of answers. `compare` prints a TAP line for each file and
//! oracle, and a table. It fails if there are too many disagreements, or a disagreement of a kind
//! that DOCUMENT does not list.

mod answers;
mod compare;
mod gimli_oracle;
mod image;
mod kinds;
mod simple_frame_rs;

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

/// The files in a directory, each with the name of the toolchain that wrote it.
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

/// The path of the answers for a file, without the oracle's name.
fn answers_path(file: &Path) -> String {
    let answers = file
        .parent()
        .expect("a directory")
        .with_file_name("answers");
    fs::create_dir_all(&answers).unwrap_or_else(|error| panic!("{}: {error}", answers.display()));
    let name = file.file_name().expect("a name").to_string_lossy();
    format!("{}/{name}", answers.display())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["sections", directory] => {
            for (_, file) in files(Path::new(directory)) {
                let Some(image) = Image::load(&file) else {
                    panic!("{} has no .sframe: rebuild it", file.display());
                };
                let path = answers_path(&file);
                fs::write(format!("{path}.section"), &image.sframe.bytes).expect("cannot write");
                fs::write(format!("{path}.address"), image.sframe.address.to_string())
                    .expect("cannot write");
            }
            ExitCode::SUCCESS
        }
        ["compare", directory, document] => {
            let document =
                fs::read_to_string(document).unwrap_or_else(|error| panic!("{document}: {error}"));
            let mut totals = Totals::default();
            for (writer, file) in files(Path::new(directory)) {
                totals.file(&writer, &file, &answers_path(&file), &document);
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
