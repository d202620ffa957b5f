// SPDX-License-Identifier: GPL-2.0-only

//! Open files, and the keys that identify files.
//!
//! C side: `rust/c/files.c`.

use super::bindings;
use kernel::{
    error::to_result,
    ffi::{
        c_uint,
        c_void, //
    },
    prelude::*, //
};

/// An open file, for the duration of one call by the task that has it open, or by the worker. Task;
/// may sleep.
pub(crate) struct OpenFile {
    file: *mut c_void,
    is_borrowed: bool,
}

impl OpenFile {
    /// A file that the caller keeps open.
    ///
    /// # Safety
    ///
    /// `file` points to an open `struct file`, and stays open for as long as the result lives.
    pub(crate) const unsafe fn borrowed(file: *mut c_void) -> Self {
        Self {
            file,
            is_borrowed: true,
        }
    }

    /// The regular file of a descriptor. See `sfu_file_open` in `c/helpers.h`.
    pub(crate) fn open(descriptor: i32) -> Result<Self> {
        let mut file = core::ptr::null_mut();
        // SAFETY: `file` is a local pointer; `sfu_file_open` writes it before it returns 0.
        to_result(unsafe { bindings::sfu_file_open(descriptor, &mut file) })?;
        Ok(Self {
            file,
            is_borrowed: false,
        })
    }

    /// The `struct file`, which lives as long as `self`.
    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.file
    }

    /// The time of the last change (ctime), in seconds and nanoseconds, as programs read it. Task;
    /// may sleep. See `sfu_file_changed` in `c/helpers.h`.
    pub(crate) fn changed(&self) -> Result<(i64, u32)> {
        let (mut seconds, mut nanoseconds) = (0, 0);
        // SAFETY: `self.file` is an open file as long as `self` lives, and the C function writes
        // two local variables.
        to_result(unsafe {
            bindings::sfu_file_changed(self.file, &mut seconds, &mut nanoseconds)
        })?;
        Ok((seconds, nanoseconds))
    }

    /// Whether the file contains `len` bytes from `offset` on, in bytes.
    pub(crate) fn has(&self, offset: u64, len: u64) -> bool {
        // SAFETY: `self.file` is an open file as long as `self` lives.
        let size = unsafe { bindings::sfu_file_size(self.file) };
        offset.checked_add(len).is_some_and(|end| end <= size)
    }

    /// Whether a read of `len` bytes from `offset` on, in bytes, need not wait for the file system,
    /// if this task is the worker. See `sfu_file_is_at_hand` in `c/helpers.h`.
    pub(crate) fn is_at_hand(&self, offset: u64, len: u64) -> bool {
        // SAFETY: `self.file` is an open file as long as `self` lives.
        unsafe { bindings::sfu_file_is_at_hand(self.file, offset, len) }
    }

    /// Whether the worker found that bytes of the file are not in memory. The worker only.
    pub(crate) fn lacks_bytes(&self) -> bool {
        // SAFETY: The function reads a variable that only this task, the worker, changes.
        unsafe { bindings::sfu_lacks_bytes() }
    }

    /// Reads all of `bytes` at `offset`, in bytes. See `sfu_file_read` in `c/helpers.h`.
    pub(crate) fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result {
        let len = c_uint::try_from(bytes.len())?;
        // SAFETY: `self.file` is an open file as long as `self` lives, and `bytes` are `len` bytes.
        to_result(unsafe {
            bindings::sfu_file_read(self.file, offset, bytes.as_mut_ptr().cast(), len)
        })
    }
}

impl Drop for OpenFile {
    #[inline]
    fn drop(&mut self) {
        if !self.is_borrowed {
            // SAFETY: The file is not borrowed, so `open` opened it. Nobody else closes it.
            unsafe { bindings::sfu_file_close(self.file) };
        }
    }
}

/// The key of a file: identifies the file with its present contents.
#[derive(Clone, Copy)]
pub(crate) struct FileKey(pub(crate) bindings::sfu_file_key);

impl FileKey {
    /// The key of a file. Task; sleeps. See `sfu_file_key_of` in `c/helpers.h`.
    #[inline(never)]
    pub(crate) fn of(file: &OpenFile) -> Result<Self> {
        let mut key = Self::vdso();
        // SAFETY: `file.file` is an open file as long as `file` lives, and `key` is a local
        // variable.
        to_result(unsafe { bindings::sfu_file_key_of(file.file, &mut key.0) })?;
        Ok(key)
    }

    /// The key of the vDSO, which is no file.
    pub(crate) fn vdso() -> Self {
        Self(Default::default())
    }

    /// Whether a table, or an answer "no rows", exists for the file. Any context.
    pub(crate) fn is_known(&self) -> bool {
        // SAFETY: `self.0` is a valid `struct sfu_file_key` for the whole call.
        unsafe { bindings::sfu_is_known(&self.0) }
    }
}

impl PartialEq for FileKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let parts = |key: &bindings::sfu_file_key| {
            (
                (key.number, key.inode_generation),
                (key.device, key.unmounts, key.file_system),
                (key.size, key.changed, key.changed_nsec),
            )
        };
        parts(&self.0) == parts(&other.0)
    }
}
