// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The parts of the format that depend on the ABI ("ABI/arch-specific Definition").

use crate::sframe::{
    format::{
        bytes::Order,
        error::{
            Error,
            Unsupported, //
        },
        version::Version, //
    },
    rule::{
        Base,
        Location, //
    }, //
};

/// An ABI that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// AArch64, big-endian.
    Aarch64Big,
    /// AArch64, little-endian.
    Aarch64,
    /// AMD64, little-endian.
    Amd64,
    /// s390x, big-endian.
    S390x,
}

/// The distance of s390x's CFA above the caller's stack pointer, in bytes: the register save area
/// that each function provides for the functions it calls.
const S390X_SAVE_AREA: i32 = 160;

impl Abi {
    pub(super) fn decode(number: u8) -> Result<Abi, Error> {
        match number {
            1 => Ok(Abi::Aarch64Big),
            2 => Ok(Abi::Aarch64),
            3 => Ok(Abi::Amd64),
            4 => Ok(Abi::S390x),
            other => Err(Error::Unsupported {
                what: Unsupported::Abi(other),
            }),
        }
    }

    /// The same ABI, as a constant if only sections of one ABI can be read. Then the compiler
    /// leaves out code for others.
    #[inline(always)]
    pub(super) const fn known(self) -> Abi {
        match crate::ONLY_ABI {
            Some(only) => only,
            None => self,
        }
    }

    /// The ABI's number, as in the section.
    pub const fn number(self) -> u8 {
        match self {
            Abi::Aarch64Big => 1,
            Abi::Aarch64 => 2,
            Abi::Amd64 => 3,
            Abi::S390x => 4,
        }
    }

    /// The byte order.
    pub const fn order(self) -> Order {
        match self {
            Abi::Aarch64Big | Abi::S390x => Order::Big,
            Abi::Aarch64 | Abi::Amd64 => Order::Little,
        }
    }

    /// The DWARF number of the stack pointer.
    pub const fn sp(self) -> u8 {
        match self {
            Abi::Aarch64Big | Abi::Aarch64 => 31,
            Abi::Amd64 => 7,
            Abi::S390x => 15,
        }
    }

    /// The DWARF number of the frame pointer.
    pub const fn fp(self) -> u8 {
        match self {
            Abi::Aarch64Big | Abi::Aarch64 => 29,
            Abi::Amd64 => 6,
            Abi::S390x => 11,
        }
    }

    /// The DWARF number of the register in which a call leaves the return address; `None` if a call
    /// pushes the return address.
    pub const fn ra(self) -> Option<u8> {
        match self {
            Abi::Aarch64Big | Abi::Aarch64 => Some(30),
            Abi::Amd64 => None,
            Abi::S390x => Some(14),
        }
    }

    /// The alignment of each CFA, in bytes.
    pub(in crate::sframe) const fn alignment(self) -> u64 {
        match self {
            Abi::Aarch64Big | Abi::Aarch64 => 16,
            Abi::Amd64 | Abi::S390x => 8,
        }
    }

    /// The distance of the caller's stack pointer below the CFA, in bytes.
    pub(in crate::sframe) const fn sp_below_cfa(self) -> i32 {
        match self {
            Abi::S390x => S390X_SAVE_AREA,
            _ => 0,
        }
    }

    /// Whether a row may mark the return address as mangled, by pointer authentication. Then a step
    /// removes the code from each return address.
    pub const fn may_mangle(self) -> bool {
        matches!(self, Abi::Aarch64Big | Abi::Aarch64)
    }

    /// The register with this DWARF number, as a base.
    pub(super) const fn base(self, register: u8) -> Base {
        if register == self.sp() {
            Base::Sp
        } else if register == self.fp() {
            Base::Fp
        } else {
            Base::Register(register)
        }
    }

    /// Decodes the word that encodes the CFA's offset from its base register. Returns the offset in
    /// bytes; `None` if the offset is out of range.
    #[inline]
    pub(super) const fn cfa_offset(self, word: i32) -> Option<i32> {
        match self {
            // The word counts slots of eight bytes, above the save area.
            Abi::S390x => match word.checked_mul(8) {
                Some(bytes) => bytes.checked_add(S390X_SAVE_AREA),
                None => None,
            },
            _ => Some(word),
        }
    }

    /// Decodes the word that encodes the location of the caller's value of a register. Not for rows
    /// of flexible functions.
    #[inline]
    pub(super) const fn saved(self, version: Version, word: i32) -> Location {
        match self {
            // The offset of a stack slot is never odd. An odd word is two times the DWARF number of
            // the register that holds the value, plus one.
            Abi::S390x if word & 1 != 0 && !matches!(version, Version::V3) => {
                Location::Of(self.base((word >> 1) as u8), 0)
            }
            _ => Location::AtCfa(word),
        }
    }

    /// Like [`Abi::saved`], for the return address.
    #[inline]
    pub(super) const fn saved_ra(self, version: Version, word: i32) -> Location {
        match self {
            // A zero is only a placeholder before the word for the frame pointer.
            Abi::S390x if word == 0 => Location::Unchanged,
            _ => self.saved(version, word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_section() {
        for number in 1..=4 {
            assert_eq!(Abi::decode(number).unwrap().number(), number);
        }
        for number in [0, 5, 255] {
            assert_eq!(
                Abi::decode(number),
                Err(Error::Unsupported {
                    what: Unsupported::Abi(number)
                })
            );
        }
    }

    #[test]
    fn s390x_counts_the_cfa_in_slots_above_the_save_area() {
        assert_eq!(Abi::S390x.cfa_offset(0), Some(160));
        assert_eq!(Abi::S390x.cfa_offset(0x14), Some(320));
        assert_eq!(Abi::S390x.cfa_offset(i32::MAX), None);
        assert_eq!(Abi::Amd64.cfa_offset(i32::MAX), Some(i32::MAX));
    }

    #[test]
    fn s390x_may_save_in_registers() {
        // DWARF register 16 is f0, and 11 is the frame pointer.
        let saved = |version, word| Abi::S390x.saved_ra(version, word);
        assert_eq!(saved(Version::V2, 33), Location::Of(Base::Register(16), 0));
        assert_eq!(saved(Version::V2, 23), Location::Of(Base::Fp, 0));
        assert_eq!(saved(Version::V2, -48), Location::AtCfa(-48));
        assert_eq!(saved(Version::V2, 0), Location::Unchanged);
        assert_eq!(saved(Version::V3, 33), Location::AtCfa(33));
        assert_eq!(Abi::Amd64.saved(Version::V2, 33), Location::AtCfa(33));
        assert_eq!(Abi::Aarch64.saved_ra(Version::V2, 0), Location::AtCfa(0));
    }
}
