// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What depends on the ABI ("ABI/arch-specific Definition"): one room for each.

mod amd64;

use super::{
    error::{
        Error,
        Malformed,
        Unsupported, //
    },
    fre::Words,
    header::Header,
    rule::Rule, //
};

/// An ABI that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// AMD64, little-endian.
    Amd64,
}

impl Abi {
    pub(super) fn decode(number: u8) -> Result<Abi, Error> {
        match number {
            3 => Ok(Abi::Amd64),
            other => Err(Error::Unsupported {
                what: Unsupported::Abi(other),
            }),
        }
    }

    /// The ABI's number, as in the section.
    pub const fn number(self) -> u8 {
        match self {
            Abi::Amd64 => 3,
        }
    }

    /// Whether a call itself stores the return address, so that rows do not tell where.
    pub(super) const fn has_fixed_ra(self) -> bool {
        match self {
            Abi::Amd64 => true,
        }
    }

    /// Makes a rule of the words of one row.
    #[inline]
    pub(super) fn rule(self, header: &Header, words: &Words) -> Result<Rule, Malformed> {
        match self {
            Abi::Amd64 => amd64::rule(header, words),
        }
    }
}
