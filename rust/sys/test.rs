// SPDX-License-Identifier: GPL-2.0-only

//! User memory for KUnit tests.
//!
//! C side: `rust/c/kunit.c`.

use super::{
    bindings,
    FileKey,
    RegionDescription, //
};
use kernel::{
    error::to_result,
    ffi::c_uint,
    prelude::*, //
};

/// Maps `len` bytes of user memory for the running test, and returns their run-time address.
pub(crate) fn map(len: u64, executable: bool) -> Result<u64> {
    // SAFETY: KUnit calls this in its own task, whose mm `kunit_vm_mmap` makes.
    mapped(unsafe { bindings::sfu_test_map(len, executable) })
}

/// As [`map`], the code of a new file with these bytes, and the file's key.
pub(crate) fn map_file(code: &[u8]) -> Result<(u64, FileKey)> {
    let mut key = FileKey::vdso();
    let (from, len) = (code.as_ptr().cast(), code.len() as u64);
    // SAFETY: KUnit calls this in its own task, whose mm `kunit_vm_mmap` makes. `code` has `len`
    // bytes, and `key` is a local variable.
    let address = mapped(unsafe { bindings::sfu_test_map_file(0, from, len, &mut key.0) })?;
    Ok((address, key))
}

fn mapped(address: i64) -> Result<u64> {
    match u64::try_from(address) {
        Ok(address) if address != 0 => Ok(address),
        _ => Err(ENOMEM),
    }
}

/// Makes a new entry of a file: no rows, and code that keeps a frame pointer.
pub(crate) fn publish(key: &FileKey) -> Result {
    // SAFETY: `key.0` is a valid key for the whole call. KUnit calls this in a task that may sleep.
    to_result(unsafe { bindings::sfu_test_publish(&key.0) })
}

/// The walks that were cut in a file that has an entry.
pub(crate) fn cuts(key: &FileKey) -> u64 {
    // SAFETY: `key.0` is a valid key for the whole call. KUnit calls this in a task that may sleep.
    unsafe { bindings::sfu_test_cuts(&key.0) }
}

/// Calls a function while somebody reads requests, as far as walks can tell.
pub(crate) fn with_reader<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: The C function changes a counter.
    unsafe { bindings::sfu_test_count_reader(true) };
    let result = call();
    // SAFETY: As above.
    unsafe { bindings::sfu_test_count_reader(false) };
    result
}

/// The state of the running test's mappings.
pub(crate) fn mappings_sequence() -> u64 {
    // SAFETY: Called from a KUnit test, in a task. The test has mapped memory, so the task has a
    // mm.
    unsafe { bindings::sfu_test_mappings_sequence() }
}

/// Adds a region of the running test, as its process would, for root.
pub(crate) fn add_region(description: &RegionDescription) -> Result {
    add_region_of(0, 0, description)
}

/// As [`add_region`], for `user`, of another process: `other` is its number, or 0.
pub(crate) fn add_region_of(other: u64, user: u32, description: &RegionDescription) -> Result {
    // SAFETY: The C function copies the description. KUnit calls this in a task that may sleep, and
    // the test has mapped memory, so the task has a mm.
    to_result(unsafe { bindings::sfu_test_add_region(description, other, user) })
}

/// Whether the running test has a region from a run-time address on. A walk need not find it: it
/// looks at 64 regions with one hash.
pub(crate) fn has_region(start: u64) -> bool {
    // SAFETY: The C function takes any number, and locks by itself. KUnit calls this in a task that
    // may sleep, and the test has mapped memory, so the task has a mm.
    unsafe { bindings::sfu_test_has_region(start) }
}

/// Removes all regions.
pub(crate) fn remove_regions() {
    // SAFETY: The C function takes no argument, and locks by itself. KUnit calls this in a task
    // that may sleep.
    unsafe { bindings::sfu_regions_stop() };
}

/// Whether the code cache of the running test, which was forgotten, can be taken while the mappings
/// are being changed.
pub(crate) fn enters_in_change() -> bool {
    // SAFETY: KUnit calls this in a task that holds no lock. The test has mapped memory, so the
    // task has a mm.
    unsafe { bindings::sfu_test_enters_in_change() }
}

/// Whether the code cache of the running test has a new generation where another file is mapped at
/// the place of the second of two ranges, and the same one where other memory is mapped. The test
/// has mapped the file of the first range, with this key, at `address`.
pub(crate) fn renews_generation(key: &FileKey, address: u64) -> bool {
    // SAFETY: KUnit calls this in a task that may sleep. The test has mapped memory, so the task
    // has a mm. `key.0` is a valid key for the whole call.
    unsafe { bindings::sfu_test_renews_generation(&key.0, address) }
}

/// Whether a new generation has no rules, and is that of no other code cache.
pub(crate) fn generations_differ() -> bool {
    // SAFETY: As above.
    unsafe { bindings::sfu_test_generations_differ() }
}

/// Whether a range of a file in the code cache of the running test is dropped when the file is
/// changed. The test has mapped the file, with this key, at `address`.
pub(crate) fn checks_files(key: &FileKey, address: u64) -> bool {
    // SAFETY: As for `renews_generation`.
    unsafe { bindings::sfu_test_checks_files(&key.0, address) }
}

/// Unmaps user memory of the running test.
pub(crate) fn unmap(address: u64, len: u64) -> Result {
    // SAFETY: The C function only unmaps user memory of the running test.
    to_result(unsafe { bindings::sfu_test_unmap(address, len) })
}

/// Writes to user memory of the running test.
pub(crate) fn write(address: u64, bytes: &[u8]) -> Result {
    let len = c_uint::try_from(bytes.len())?;
    // SAFETY: `bytes` are `len` bytes; the C side checks the user address.
    to_result(unsafe { bindings::sfu_test_write(address, bytes.as_ptr().cast(), len) })
}

/// Whether interrupts of code that saves registers are told from others.
pub(crate) fn tells_saving_registers() -> bool {
    // SAFETY: The C function takes no argument, and compares numbers.
    unsafe { bindings::sfu_test_saving_registers() }
}
