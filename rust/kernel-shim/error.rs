// SPDX-License-Identifier: GPL-2.0-only

//! Errors with the kernel's numbers.

use crate::{
    alloc::AllocError,
    ffi::c_int, //
};
use core::num::NonZeroI32;

/// The lowest number of an error; the highest is -1.
const LAST: c_int = -4095;

/// An error of the kernel.
///
/// # Invariants
///
/// The number is an error's number: negative, and at least -4095.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(NonZeroI32);

/// A result, by default without a value, or an [`Error`].
pub type Result<T = (), E = Error> = core::result::Result<T, E>;

impl Error {
    /// The error with a number; `None` if no error has the number.
    const fn try_from_errno(errno: c_int) -> Option<Self> {
        if errno < LAST || errno >= 0 {
            return None;
        }
        match NonZeroI32::new(errno) {
            // INVARIANT: The number is an error's number.
            Some(errno) => Some(Self(errno)),
            None => None,
        }
    }

    /// The error with a number; `EINVAL` if no error has the number, which is a bug of the caller.
    pub fn from_errno(errno: c_int) -> Self {
        Self::try_from_errno(errno).unwrap_or(code::EINVAL)
    }

    /// The number of the error, which is negative.
    pub fn to_errno(self) -> c_int {
        self.0.get()
    }
}

/// The result of a C function: an error if its return value is negative.
///
/// # Errors
///
/// The error with the number `errno`.
pub fn to_result(errno: c_int) -> Result {
    if errno < 0 {
        Err(Error::from_errno(errno))
    } else {
        Ok(())
    }
}

impl From<AllocError> for Error {
    fn from(_: AllocError) -> Self {
        code::ENOMEM
    }
}

impl From<core::num::TryFromIntError> for Error {
    fn from(_: core::num::TryFromIntError) -> Self {
        code::EINVAL
    }
}

impl From<core::fmt::Error> for Error {
    fn from(_: core::fmt::Error) -> Self {
        code::EINVAL
    }
}

impl From<core::convert::Infallible> for Error {
    fn from(error: core::convert::Infallible) -> Self {
        match error {}
    }
}

/// Errors by their names in C.
pub mod code {
    use super::Error;

    macro_rules! errors {
        ($($name:ident $number:literal)*) => {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Error = match Error::try_from_errno(-$number) {
                    Some(error) => error,
                    None => panic!("no number of an error"),
                };
            )*
        };
    }

    errors! {
        ENOENT 2
        EINTR 4
        EIO 5
        E2BIG 7
        ENOEXEC 8
        EAGAIN 11
        ENOMEM 12
        EACCES 13
        EFAULT 14
        EBUSY 16
        EEXIST 17
        EINVAL 22
        ENOTTY 25
        EFBIG 27
        ENOSPC 28
    }
}
