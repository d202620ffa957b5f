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
    /// The deadline of a table build that begins now. Task.
    pub(crate) fn of_build() -> Self {
        // SAFETY: The C function has no preconditions in a task.
        Self(unsafe { bindings::sfu_build_deadline() })
    }

    /// Lets other tasks run, and RCU-tasks end its grace periods. Task; sleeps.
    ///
    /// # Errors
    ///
    /// `EINTR`: the task was killed, or the module is being unloaded. `ETIME`: the deadline has passed.
    pub(crate) fn check(&self) -> Result {
        // SAFETY: The C function takes any number; the caller may sleep.
        to_result(unsafe { bindings::sfu_build_pause(self.0) })
    }
}

/// A key that nobody can guess. Any context.
pub(crate) fn random_key() -> [u64; 2] {
    let mut key = [0; 2];
    // SAFETY: `key` is a local variable of two numbers.
    unsafe { bindings::sfu_random_key(key.as_mut_ptr()) };
    key
}

/// The memory of one table build. The memory of all builds together is limited.
pub(crate) struct BuildMemory(c_int);

impl BuildMemory {
    /// Begins a build for a user. `added`: a program adds the rows. Task; sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY`: too many builds are running.
    pub(crate) fn of_build(user: u32, added: bool) -> Result<Self> {
        // SAFETY: The C function has no preconditions in a task.
        let build = unsafe { bindings::sfu_build_begin(user, added) };
        to_result(build)?;
        Ok(Self(build))
    }

    /// Reserves memory for `count` elements of a type. The caller allocates it afterwards. Task; sleeps.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the limit of all builds would be exceeded.
    pub(crate) fn take<T>(&self, count: usize) -> Result {
        let bytes = const { size_of::<T>() }.saturating_mul(count);
        // SAFETY: The number comes from `sfu_build_begin`, and the build has not ended.
        to_result(unsafe { bindings::sfu_build_take(self.0, bytes as u64) })
    }

    /// Gives back the reserved memory of `count` elements of a type, which the caller has freed. Task; sleeps.
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
