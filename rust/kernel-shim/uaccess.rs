// SPDX-License-Identifier: GPL-2.0-only

//! Memory of the current task. All functions that read or write it sleep: task only.

use crate::{
    alloc::{
        Flags,
        KVVec, //
    },
    error::{
        code::EFAULT,
        Result, //
    },
    glue,
    transmute::{
        AsBytes,
        FromBytes, //
    },
};
use core::mem::MaybeUninit;

/// An address in user space, of any value.
#[derive(Clone, Copy)]
pub struct UserPtr(usize);

impl UserPtr {
    /// The pointer to this address.
    pub const fn from_addr(address: usize) -> Self {
        Self(address)
    }

    /// The pointer that lies `bytes` bytes behind this one.
    pub const fn wrapping_byte_add(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

/// A range of user memory, which need not be mapped. Its bytes may change at any time.
pub struct UserSlice {
    start: UserPtr,
    len: usize,
}

impl UserSlice {
    /// The range of `len` bytes from `start` on.
    pub fn new(start: UserPtr, len: usize) -> Self {
        Self { start, len }
    }

    /// A reader that reads each byte once, from the first to the last.
    pub fn reader(self) -> UserSliceReader {
        UserSliceReader(self)
    }

    /// A writer that writes each byte once, from the first to the last.
    pub fn writer(self) -> UserSliceWriter {
        UserSliceWriter(self)
    }

    /// Appends all bytes to a vector.
    ///
    /// # Errors
    ///
    /// `EFAULT`: some bytes cannot be read. `ENOMEM`.
    pub fn read_all(self, to: &mut KVVec<u8>, flags: Flags) -> Result {
        to.append_by(self.len, flags, |to| {
            // SAFETY: `append_by` has reserved space for `self.len` bytes at `to`.
            if unsafe { glue::sfk_copy_from_user(to.cast(), self.start.0, self.len) } {
                Ok(())
            } else {
                Err(EFAULT)
            }
        })
    }

    /// Removes the first bytes from the range, and returns their address.
    fn take(&mut self, bytes: usize) -> Result<usize> {
        let UserPtr(address) = self.start;
        self.len = self.len.checked_sub(bytes).ok_or(EFAULT)?;
        self.start = self.start.wrapping_byte_add(bytes);
        Ok(address)
    }
}

/// Reads bytes in user space.
pub struct UserSliceReader(UserSlice);

impl UserSliceReader {
    /// Whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Reads the next value.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the value cannot be read, or fewer bytes are left. A value that cannot be read
    /// counts as read.
    pub fn read<T: FromBytes>(&mut self) -> Result<T> {
        let len = const { size_of::<T>() };
        let from = self.0.take(len)?;
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: `value` is a local variable of `len` bytes, and C checks the user address `from`.
        if !unsafe { glue::sfk_copy_from_user(value.as_mut_ptr().cast(), from, len) } {
            return Err(EFAULT);
        }
        // SAFETY: All bytes were written, and any bytes are a valid `FromBytes` value.
        Ok(unsafe { value.assume_init() })
    }
}

/// Writes bytes in user space.
pub struct UserSliceWriter(UserSlice);

impl UserSliceWriter {
    /// Writes the next value.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the value cannot be written, or fewer bytes are left. A value that cannot be
    /// written counts as written.
    pub fn write<T: AsBytes>(&mut self, value: &T) -> Result {
        let len = const { size_of::<T>() };
        let to = self.0.take(len)?;
        // SAFETY: `value` has `len` bytes. All bytes of an `AsBytes` are initialised.
        if unsafe { glue::sfk_copy_to_user(to, core::ptr::from_ref(value).cast(), len) } {
            Ok(())
        } else {
            Err(EFAULT)
        }
    }
}
