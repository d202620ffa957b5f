// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Programs, versions and files that a test needs and that a host may lack.
//!
//! A test without them ends early and reports why. If the environment has
//! `SFRAME_REQUIRE_TOOLCHAIN=1`, as in `tests/run host`, it fails instead.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{
        self,
        Write, //
    },
    path::Path,
    process::{
        self,
        Command,
        Stdio, //
    },
    sync::OnceLock,
    thread, //
};

/// Whether a requirement is met. If not, reports on stderr that the running test is skipped.
///
/// # Panics
///
/// If the requirement is not met and `SFRAME_REQUIRE_TOOLCHAIN` is 1.
pub(crate) fn is_met(met: bool, requirement: &str) -> bool {
    if !met {
        assert!(
            env::var_os("SFRAME_REQUIRE_TOOLCHAIN").is_none_or(|value| value != OsStr::new("1")),
            "SFRAME_REQUIRE_TOOLCHAIN is 1, and the test needs {requirement}"
        );
        skipped(requirement);
    }
    met
}

/// Reports on stderr that the running test is skipped because the host lacks a requirement.
pub(crate) fn skipped(requirement: &str) {
    // libtest runs each test in a thread with the test's name.
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    // libtest would capture the output of `eprintln!`, and discard it because the test passes.
    writeln!(io::stderr(), "skipped: {test} needs {requirement}").expect("stderr");
}

/// Whether gcc's assembler knows `--gsframe` (binutils 2.40 and later).
pub(crate) fn gsframe() -> bool {
    is_met(assembler_version().is_some(), "an assembler with --gsframe")
}

/// Whether gcc's assembler knows `--gsframe` and writes SFrame version 2 (binutils 2.41 to 2.45).
pub(crate) fn gsframe_version_2() -> bool {
    is_met(
        assembler_version() == Some(2),
        "an assembler with --gsframe that writes SFrame version 2",
    )
}

/// Whether a program is in `PATH`.
pub(crate) fn program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    is_met(
        env::split_paths(&path).any(|directory| directory.join(name).is_file()),
        name,
    )
}

/// Whether a file exists.
pub(crate) fn file(path: &str) -> bool {
    is_met(Path::new(path).is_file(), path)
}

/// Whether the host is Debian 13, whose files the test has expectations about.
pub(crate) fn debian_13() -> bool {
    let version = fs::read_to_string("/etc/debian_version").unwrap_or_default();
    is_met(version.starts_with("13."), "the files of Debian 13")
}

/// The version of the sections that gcc's assembler writes; `None` if it writes none.
fn assembler_version() -> Option<u8> {
    static VERSION: OnceLock<Option<u8>> = OnceLock::new();
    *VERSION.get_or_init(assemble)
}

fn assemble() -> Option<u8> {
    const SOURCE: &[u8] = b"f:\n.cfi_startproc\nnop\n.cfi_endproc\n";
    let object = env::temp_dir().join(std::format!("sframe-version-{}.o", process::id()));
    let mut gcc = Command::new("gcc")
        .args(["-x", "assembler", "-c", "-Wa,--gsframe", "-", "-o"])
        .arg(&object)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // A gcc that fails early may not read its input.
    let _ = gcc.stdin.take()?.write_all(SOURCE);
    let assembled = gcc.wait().ok()?.success();
    let bytes = fs::read(&object);
    let _ = fs::remove_file(&object);
    let bytes = bytes.ok().filter(|_| assembled)?;
    // The magic number, then the version.
    bytes
        .windows(3)
        .find(|window| window.starts_with(&[0xe2, 0xde]))
        .map(|window| window[2])
}
