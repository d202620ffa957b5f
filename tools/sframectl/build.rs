// SPDX-License-Identifier: GPL-2.0-only

//! Declares what `rust/uapi/sframe_unwind.h` declares, by the same program that does it for the module.

use std::{
    env,
    path::PathBuf,
    process::Command, //
};

const HEADER: &str = "../../rust/uapi/sframe_unwind.h";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("uapi.rs");
    let status = Command::new("bindgen")
        .args([HEADER, "--with-derive-default", "--no-doc-comments"])
        .args(["--allowlist-item", "sframe_unwind_.*"])
        .args(["--allowlist-item", "SFRAME_UNWIND_.*"])
        .args(["--default-enum-style", "moduleconsts", "--output"])
        .arg(out)
        .args(["--", "-D__BINDGEN__"])
        .status()
        .expect("bindgen can be run");
    assert!(status.success(), "bindgen fails: {status}");
    println!("cargo::rerun-if-changed={HEADER}");
}
