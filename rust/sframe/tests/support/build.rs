// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Runs the toolchain of the root in which the tests run.

use std::{
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::Command, //
};

/// The directory of this crate.
pub(crate) fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A directory for the files of one test.
pub(crate) fn workdir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&dir).expect("cannot make a directory");
    dir
}

/// Runs a command and returns what it prints.
pub(crate) fn run(command: &mut Command) -> String {
    command.env("LC_ALL", "C");
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs gcc with `--gsframe`, in `tests/programs`. Returns the path of the output file.
pub(crate) fn gcc(dir: &Path, out: &str, args: &[&str]) -> PathBuf {
    let out = dir.join(out);
    let programs = here().join("tests/programs");
    run(Command::new("gcc")
        .current_dir(programs)
        .args(["-O2", "-Wa,--gsframe", "-o"])
        .arg(&out)
        .args(args));
    out
}
