// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The source of a section's bytes, and reads that do not trust the bytes.

use crate::sframe::format::error::Error;

/// The bytes are not available now: the page is not present or not mapped, or the reader's budget
/// is spent. The error makes no statement about the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// The byte order of a section: the byte order of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

impl Order {
    /// The same order, as a constant if only sections of one ABI can be read.
    #[inline(always)]
    pub(super) const fn known(self) -> Order {
        match crate::ONLY_ABI {
            Some(only) => only.order(),
            None => self,
        }
    }

    #[inline]
    pub(super) const fn u16(self, raw: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(raw),
            Order::Big => u16::from_be_bytes(raw),
        }
    }

    #[inline]
    pub(super) const fn u32(self, raw: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(raw),
            Order::Big => u32::from_be_bytes(raw),
        }
    }

    #[inline]
    pub(super) const fn u64(self, raw: [u8; 8]) -> u64 {
        match self {
            Order::Little => u64::from_le_bytes(raw),
            Order::Big => u64::from_be_bytes(raw),
        }
    }
}

/// The length of the longest read that this code requests from a [`Source`], in bytes.
///
/// A caller that brings in the missing memory after a fault has to bring in this many bytes from
/// the offset in [`Error::Fault`], because a read may cross into a second page.
pub const MAX_READ: usize = 64;

/// Random access to the bytes of one section, ELF file or image, at offsets from its start.
///
/// A read may fail at any time, and may return different bytes each time.
pub trait Source {
    /// Reads `N` bytes (at most [`MAX_READ`]) at `offset` bytes from the start.
    ///
    /// # Errors
    ///
    /// [`Fault`] if any of the bytes is not available.
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault>;

    /// Takes the work of `instructions` from a budget that reads and other work share. The default
    /// has no budget.
    ///
    /// # Errors
    ///
    /// [`Fault`] if less is left. Then reads fail, too.
    #[inline]
    fn spend(&self, instructions: u32) -> Result<(), Fault> {
        let _ = instructions;
        Ok(())
    }
}

impl Source for [u8] {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        usize::try_from(offset)
            .ok()
            .and_then(|at| self.get(at..))
            .and_then(|rest| rest.first_chunk())
            .copied()
            .ok_or(Fault)
    }
}

impl<S: Source + ?Sized> Source for &S {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        (**self).read(offset)
    }

    #[inline]
    fn spend(&self, instructions: u32) -> Result<(), Fault> {
        (**self).spend(instructions)
    }
}

/// A source that contains the part of `bytes` from `start` on: a section within a larger piece, or
/// one of several complete sections that a linker without SFrame support has concatenated.
#[derive(Clone, Copy, Debug)]
pub struct Tail<'a, S: ?Sized> {
    /// The larger piece.
    pub bytes: &'a S,
    /// The offset in the larger piece at which this source begins, in bytes.
    pub start: u64,
}

impl<S: Source + ?Sized> Source for Tail<'_, S> {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.bytes
            .read(self.start.checked_add(offset).ok_or(Fault)?)
    }
}

/// Reads like [`Source::read`]. The error holds the offset of the read.
#[inline]
pub(super) fn read_at<const N: usize, S: Source + ?Sized>(
    bytes: &S,
    offset: u64,
) -> Result<[u8; N], Error> {
    bytes.read(offset).map_err(|Fault| Error::Fault {
        offset: offset as u32,
    })
}

/// Reads up to eight bytes at `at` as one number. The first byte is the least significant byte,
/// whatever the section's byte order. Zeros stand for the bytes from `end` on.
///
/// The function makes one read of eight bytes, which is the cheapest read. The read never goes
/// beyond `end`: near the end, the function reads the last eight bytes and shifts out the bytes
/// before `at`. `end` has to be 8 or more.
#[inline]
pub(super) fn window<S: Source + ?Sized>(bytes: &S, at: u32, end: u32) -> Result<u64, Error> {
    let last = end.saturating_sub(8);
    // The common case, which is by far the cheaper case.
    if at <= last {
        return match bytes.read(at.into()) {
            Ok(raw) => Ok(u64::from_le_bytes(raw)),
            Err(Fault) => Err(Error::Fault { offset: at }),
        };
    }
    let surplus = at.wrapping_sub(last);
    let word = u64::from_le_bytes(read_at(bytes, u64::from(last))?);

    // A shift by 64 bits or more leaves nothing. It occurs where `at` is at or after `end`.
    Ok(surplus
        .checked_mul(8)
        .and_then(|bits| word.checked_shr(bits))
        .unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

    #[test]
    fn slices_are_not_read_past_their_end() {
        assert_eq!(BYTES.read(0), Ok([0, 1]));
        assert_eq!(BYTES.read(8), Ok([8, 9]));
        assert_eq!(BYTES.read(10), Ok([]));
        assert_eq!(BYTES.read::<2>(9), Err(Fault));
        assert_eq!(BYTES.read::<0>(11), Err(Fault));
        assert_eq!(BYTES.read::<1>(u64::MAX), Err(Fault));
        assert_eq!((&BYTES).read(3), Ok([3]));
    }

    #[test]
    fn tails_are_read_from_their_start() {
        let tail = Tail {
            bytes: BYTES,
            start: 8,
        };
        assert_eq!(tail.read(0), Ok([8, 9]));
        assert_eq!(tail.read::<1>(2), Err(Fault));
        assert_eq!(tail.read::<1>(u64::MAX), Err(Fault));
    }

    #[test]
    fn windows_are_cut_at_the_end() {
        let read = |at, end| window(BYTES, at, end);
        assert_eq!(read(0, 10), Ok(0x0706_0504_0302_0100));
        assert_eq!(read(2, 10), Ok(0x0908_0706_0504_0302));
        assert_eq!(read(3, 10), Ok(0x0009_0807_0605_0403));
        assert_eq!(read(9, 10), Ok(9));
        assert_eq!(read(10, 10), Ok(0));
        assert_eq!(read(11, 10), Ok(0));
        assert_eq!(read(u32::MAX, 10), Ok(0));
        assert_eq!(read(7, 9), Ok(0x0807));
        // Bytes after `end` are not read, so they may be missing.
        assert_eq!(read(3, 11), Err(Error::Fault { offset: 3 }));
        assert_eq!(read(8, 12), Err(Error::Fault { offset: 4 }));
    }
}
