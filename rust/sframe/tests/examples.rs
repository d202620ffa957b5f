// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The crate's examples run, and print the output that the crate's README describes.

use std::{
    env,
    process::Command, //
};

/// The output of an example, which cargo has built beside the tests.
fn example(name: &str, argument: &str) -> String {
    let test = env::current_exe().expect("a test has a path");
    let target = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("target/debug");
    let output = Command::new(target.join("examples").join(name))
        .arg(argument)
        .output()
        .expect("cargo test builds examples");
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// `rows.elf` is `push %rbp; call; pop %rbp; ret` with its CFI, by Debian 13's `gcc -nostdlib
/// -static -Wa,--gsframe -Wl,-z,noseparate-code -s`.
#[test]
fn rows_of_a_file_are_dumped() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/rows.elf");
    let text = example("dump_rows", file);
    assert!(text.starts_with("version 2\n"), "{text}");
    assert!(text.contains("cfa: Cfa { base: Sp, offset: 8,"), "{text}");
}

#[test]
fn a_file_without_a_section_is_no_error() {
    let itself = env::current_exe().expect("a test has a path");
    let text = example("dump_rows", itself.to_str().expect("text"));
    assert_eq!(text, "no SFrame section\n");
}

#[test]
fn a_frame_is_unwound() {
    assert!(example("unwind_frame", "").contains("was called by Frame { pc: 401234"));
}
