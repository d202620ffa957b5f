// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Tells the crate a hash of all that decides which rows it makes: its sources, those of the core,
//! and the versions of other crates.

use std::{
    env,
    fs,
    hash::{
        DefaultHasher,
        Hasher, //
    },
    io,
    path::{
        Path,
        PathBuf, //
    }, //
};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let mut hasher = DefaultHasher::new();
    for place in ["tools/convert/src", "rust/sframe/src", "Cargo.lock"] {
        let place = root.join(place);
        println!("cargo::rerun-if-changed={}", place.display());
        hash(&place, &mut hasher)?;
    }
    println!("cargo::rustc-env=CONVERT_SOURCES={:016x}", hasher.finish());
    Ok(())
}

/// Hashes a file, or all files of a directory by their names.
fn hash(path: &Path, hasher: &mut DefaultHasher) -> io::Result<()> {
    if !path.is_dir() {
        let bytes = fs::read(path)?;
        hasher.write_usize(bytes.len());
        hasher.write(&bytes);
        return Ok(());
    }
    let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    paths.iter().try_for_each(|path| hash(path, hasher))
}
