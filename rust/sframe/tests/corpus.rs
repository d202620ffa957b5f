// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Runs the fuzzer's targets over the fuzzer's corpus.

mod support;

use std::fs;

use support::{
    build::here,
    fuzzed, //
};

/// Runs a target over each file of the target's corpus, in the order of the files' names.
fn replay(target: &str, run: fn(&[u8])) {
    let dir = here().join("fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.expect("a file of the corpus").path())
        .collect();
    files.sort();
    assert!(
        files.len() >= 10,
        "{}: {} files",
        dir.display(),
        files.len()
    );
    for file in files {
        let bytes = fs::read(&file).expect("a file of the corpus can be read");
        // libtest shows this line only if the target fails.
        println!("{}", file.display());
        run(&bytes);
    }
}

#[test]
fn corpus_of_section() {
    replay("section", fuzzed::section);
}

#[test]
fn corpus_of_elf() {
    replay("elf", fuzzed::elf);
}

#[test]
fn corpus_of_step() {
    replay("step", fuzzed::walk);
}

#[test]
fn corpus_of_code() {
    replay("code", fuzzed::code_walk);
}
