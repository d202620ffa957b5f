// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The texts of errors, for people. Only the host builds this module: the kernel module prints
//! names and numbers itself, and keeps formatting code out of walks.

use core::fmt::{
    self,
    Display,
    Formatter, //
};

use crate::sframe::{
    bytes::Fault,
    elf::ElfError,
    error::{
        Error,
        Malformed,
        Unsupported, //
    },
    stop_reason::StopReason,
    unwind::Stop, //
};

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are not there")
    }
}

impl Display for Malformed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Display for Unsupported {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.value() {
            Some(value) => write!(f, " ({value:#x})"),
            None => Ok(()),
        }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Error::Fault { offset } => write!(f, "offset {offset:#x} cannot be read"),
            Error::Malformed { what, offset } => write!(f, "malformed: {what} at {offset:#x}"),
            Error::Unsupported { what } => write!(f, "unsupported: {what}"),
            Error::TooLong => f.write_str("the search would take too long"),
        }
    }
}

impl Display for ElfError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ElfError::Fault { offset } => write!(f, "offset {offset:#x} cannot be read"),
            other => f.write_str(other.name()),
        }
    }
}

impl Display for Stop {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Fault { address } => write!(f, "address {address:#x} cannot be read"),
            Stop::FpZero => f.write_str("the frame pointer is zero"),
            Stop::FpBelowSp => f.write_str("the frame pointer is below the stack pointer"),
            Stop::FpMisaligned => f.write_str("the frame pointer is misaligned"),
            other => f.write_str(StopReason::of_step(*other, false).as_str()),
        }
    }
}

impl Display for StopReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl core::error::Error for Fault {}
impl core::error::Error for Error {}
impl core::error::Error for ElfError {}
impl core::error::Error for Stop {}
