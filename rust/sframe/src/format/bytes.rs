// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Where bytes come from, and how they are read without trusting them.

use super::error::Error;

/// The bytes are not there now: the page is not present or not mapped, or the reader's budget is
/// spent. It says nothing about the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// The byte order of a section: its machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

impl Order {
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

/// The longest read that this code ever asks of a [`Source`], in bytes.
///
/// Who wants to make a failed read succeed has to bring in this many bytes from the offset that
/// [`Error::Fault`] names, for a read may cross into a second page.
pub const MAX_READ: usize = 64;

/// Random access to the bytes of one section, ELF file or image, at offsets from its start.
///
/// A read may fail at any time, and may return different bytes each time.
pub trait Source {
    /// Reads `N` bytes (at most [`MAX_READ`]) at `offset` bytes from the start.
    ///
    /// # Errors
    ///
    /// [`Fault`] if any of the bytes cannot be had.
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault>;
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
}

/// What lies in `bytes` from `start` on, as bytes of its own. So a section within a larger piece is
/// read, or one of those that a linker which does not know SFrame has put one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Tail<'a, S: ?Sized> {
    /// The larger piece.
    pub bytes: &'a S,
    /// Where offset 0 is in it, in bytes.
    pub start: u64,
}

impl<S: Source + ?Sized> Source for Tail<'_, S> {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.bytes
            .read(self.start.checked_add(offset).ok_or(Fault)?)
    }
}

/// Reads as [`Source::read`], and tells in the error which offset it was.
#[inline]
pub(super) fn read_at<const N: usize, S: Source + ?Sized>(
    bytes: &S,
    offset: u64,
) -> Result<[u8; N], Error> {
    bytes.read(offset).map_err(|Fault| Error::Fault { offset })
}

/// Reads up to eight bytes at `at` as one number, of which the first byte is the least significant
/// one whatever the section's order, and in which zeros stand for the bytes from `end` on.
///
/// It is one read of eight bytes in any case, and so the cheapest there is, yet never one beyond
/// `end`: near the end it reads the last eight bytes and shifts away what lies before `at`. `end`
/// is to be 8 or more.
#[inline]
pub(super) fn window<S: Source + ?Sized>(bytes: &S, at: u32, end: u32) -> Result<u64, Error> {
    let last = end.saturating_sub(8);
    // Nearly always, and by far the cheaper way.
    if at <= last {
        return read_at(bytes, u64::from(at)).map(u64::from_le_bytes);
    }
    let surplus = at.wrapping_sub(last);
    let word = u64::from_le_bytes(read_at(bytes, u64::from(last))?);

    // A shift by all 64 bits or more, which happens from `end` on, leaves nothing.
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
    fn slices_end_where_they_end() {
        assert_eq!(BYTES.read(0), Ok([0, 1]));
        assert_eq!(BYTES.read(8), Ok([8, 9]));
        assert_eq!(BYTES.read(10), Ok([]));
        assert_eq!(BYTES.read::<2>(9), Err(Fault));
        assert_eq!(BYTES.read::<0>(11), Err(Fault));
        assert_eq!(BYTES.read::<1>(u64::MAX), Err(Fault));
        assert_eq!((&BYTES).read(3), Ok([3]));
    }

    #[test]
    fn tails_begin_where_they_begin() {
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
        // What lies behind the end is not looked at, and so cannot be missed.
        assert_eq!(read(3, 11), Err(Error::Fault { offset: 3 }));
        assert_eq!(read(8, 12), Err(Error::Fault { offset: 4 }));
    }
}
