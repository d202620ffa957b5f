// SPDX-License-Identifier: GPL-2.0-only

//! The bounds of a table build: its deadline, its memory, and the random key of its hash.
//!
//! C side: `rust/c/builds.c`.

use super::bindings;
use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*, //
};

/// The deadline of a table build, as CPU time of the current task in nanoseconds.
pub(crate) struct Deadline(u64);

impl Deadline {
    /// The deadline of a table build that begins now. Task. See `sfu_build_deadline` in
    /// `c/helpers.h`.
    pub(crate) fn of_build() -> Self {
        // SAFETY: `sfu_build_deadline` reads only the current task; the caller runs in a task.
        Self(unsafe { bindings::sfu_build_deadline() })
    }

    /// Lets other tasks run, and checks the deadline. Task; sleeps. See `sfu_build_pause` in
    /// `c/helpers.h`.
    pub(crate) fn check(&self) -> Result {
        // SAFETY: The C function takes any number; the caller may sleep.
        to_result(unsafe { bindings::sfu_build_pause(self.0) })
    }
}

/// A key that nobody can guess. Any context.
pub(crate) fn random_key() -> [u64; 2] {
    let mut key = [0; 2];
    // SAFETY: `key` has space for two numbers, which `sfu_random_key` writes before it returns.
    unsafe { bindings::sfu_random_key(key.as_mut_ptr()) };
    key
}

/// The memory of one table build. The memory of all builds together is limited.
pub(crate) struct BuildMemory(c_int);

impl BuildMemory {
    /// Begins a build for a user. Task; sleeps. See `sfu_build_begin` in `c/helpers.h`.
    pub(crate) fn of_build(user: u32, added: bool) -> Result<Self> {
        // SAFETY: `sfu_build_begin` takes any numbers and locks by itself; the caller runs in a
        // task that may sleep.
        let build = unsafe { bindings::sfu_build_begin(user, added) };
        to_result(build)?;
        Ok(Self(build))
    }

    /// Reserves memory for `count` elements of a type. Task; sleeps. See `sfu_build_take` in
    /// `c/helpers.h`.
    pub(crate) fn take<T>(&self, count: usize) -> Result {
        let bytes = const { size_of::<T>() }.saturating_mul(count);
        // SAFETY: The number comes from `sfu_build_begin`, and the build has not ended.
        to_result(unsafe { bindings::sfu_build_take(self.0, bytes as u64) })
    }

    /// Gives back the reserved memory of `count` elements of a type, which the caller has freed.
    /// Task; sleeps.
    pub(crate) fn give<T>(&self, count: usize) {
        let bytes = const { size_of::<T>() }.saturating_mul(count);
        // SAFETY: The number comes from `sfu_build_begin`, and the build has not ended.
        unsafe { bindings::sfu_build_give(self.0, bytes as u64) };
    }
}

impl Drop for BuildMemory {
    fn drop(&mut self) {
        // SAFETY: The number comes from `sfu_build_begin`, and the build ends once.
        unsafe { bindings::sfu_build_end(self.0) };
    }
}
