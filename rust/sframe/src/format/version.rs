// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Versions of the format, and the flags that each defines.

use crate::sframe::format::error::{
    Error,
    Unsupported, //
};

/// "SFrame Flags": functions are sorted by their start addresses.
pub const SORTED: u8 = 0x1;
/// "SFrame Flags": all functions keep a frame pointer, including functions without rows.
pub const FRAME_POINTER: u8 = 0x2;
/// "SFrame Flags": start addresses count from their own fields (errata 1).
pub const FUNC_START_PCREL: u8 = 0x4;

/// A version of the format that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1.
    V1,
    /// Version 2, with any errata.
    V2,
    /// Version 3.
    V3,
}

impl Version {
    pub(super) fn decode(number: u8) -> Result<Version, Error> {
        match number {
            1 => Ok(Version::V1),
            2 => Ok(Version::V2),
            3 => Ok(Version::V3),
            other => Err(Error::Unsupported {
                what: Unsupported::Version(other),
            }),
        }
    }

    /// The version's number, as in the section.
    pub const fn number(self) -> u8 {
        match self {
            Version::V1 => 1,
            Version::V2 => 2,
            Version::V3 => 3,
        }
    }

    /// The flags that the version defines.
    pub const fn known_flags(self) -> u8 {
        match self {
            Version::V1 => SORTED | FRAME_POINTER,
            Version::V2 => SORTED | FRAME_POINTER | FUNC_START_PCREL,
            Version::V3 => SORTED | FUNC_START_PCREL,
        }
    }

    /// The size of one function descriptor entry, in bytes.
    pub(super) const fn fde_size(self) -> u32 {
        match self {
            Version::V1 => 17,
            Version::V2 => 20,
            Version::V3 => 16,
        }
    }
}
