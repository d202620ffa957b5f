// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Function descriptor entries ("SFrame Function Descriptor Entries"): decoded, whatever the
//! version, into one [`Function`].
//!
//! This is the only room that knows how the versions of the format differ in them.

use core::num::NonZeroU8;

use super::{
    bytes::{
        read_at,
        Source, //
    },
    error::{
        Error,
        Malformed, //
    },
    header::{
        Header,
        Starts,
        Version, //
    }, //
};

/// The size of one entry, in bytes.
pub(super) const fn size(version: Version) -> u32 {
    match version {
        Version::V2 => 20,
    }
}

/// How wide the start offset of a row is ("FRE types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStart {
    /// One byte.
    Addr1,
    /// Two bytes.
    Addr2,
    /// Four bytes.
    Addr4,
}

impl RowStart {
    /// The width, in bytes.
    #[inline]
    pub const fn width(self) -> u32 {
        match self {
            RowStart::Addr1 => 1,
            RowStart::Addr2 => 2,
            RowStart::Addr4 => 4,
        }
    }
}

/// One function: a range of addresses, and where its rows are.
///
/// # Invariants
///
/// `rows_at` lies within the rows of the section, or at their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    start: u64,
    size: u32,
    num_rows: u32,
    rows_at: u32,
    row_start: RowStart,
    repeat: Option<NonZeroU8>,
}

impl Function {
    /// The address of the first byte, in the address space that the section was opened in.
    #[inline]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// The size, in bytes. It may be zero.
    #[inline]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The number of rows.
    #[inline]
    pub const fn num_rows(&self) -> u32 {
        self.num_rows
    }

    /// Where the first row is, in bytes from the section's start.
    #[inline]
    pub const fn rows_at(&self) -> u32 {
        self.rows_at
    }

    /// How wide the start offset of each row is.
    #[inline]
    pub const fn row_start(&self) -> RowStart {
        self.row_start
    }

    /// If the function consists of blocks that all follow the same rows, as a PLT does, the size of
    /// a block in bytes ("PCMASK").
    #[inline]
    pub const fn repeat(&self) -> Option<NonZeroU8> {
        self.repeat
    }

    /// Whether `pc` lies in the function.
    #[inline]
    pub const fn covers(&self, pc: u64) -> bool {
        pc.wrapping_sub(self.start) < self.size as u64
    }

    /// The offset by which rows are looked up, in bytes, of a `pc` that the function covers.
    ///
    /// For repeated blocks it is the offset in the block. The specification speaks of the PC modulo
    /// the size of a block, but what is meant, and written, is the offset from the function's start
    /// modulo that size.
    #[inline]
    pub(super) fn row_offset(&self, pc: u64) -> Option<u32> {
        let offset = u32::try_from(pc.wrapping_sub(self.start)).ok()?;
        if offset >= self.size {
            return None;
        }
        Some(match self.repeat {
            Some(block) => offset % u32::from(block.get()),
            None => offset,
        })
    }
}

/// Where entry `index` is, in bytes from the section's start.
///
/// It cannot wrap for an index below `num_fdes`, by the invariants of [`Header`].
#[inline]
pub(super) fn entry_at(header: &Header, index: u32) -> u32 {
    index
        .wrapping_mul(size(header.version))
        .wrapping_add(header.fdes_at)
}

/// Reads the start address alone of entry `index`, in bytes from the section's address.
///
/// Addresses are compared in this form, as signed distances, so that nothing can wrap around
/// between a function in front of the section and one behind it.
#[inline]
pub(super) fn read_start<S: Source + ?Sized>(
    header: &Header,
    bytes: &S,
    index: u32,
) -> Result<i64, Error> {
    let at = entry_at(header, index);
    match header.version {
        Version::V2 => Ok(start_v2(header, at, read_at(bytes, u64::from(at))?)),
    }
}

#[inline]
fn start_v2(header: &Header, at: u32, field: [u8; 4]) -> i64 {
    let value = i64::from(i32::from_le_bytes(field));
    match header.starts {
        Starts::Field => value.wrapping_add(i64::from(at)),
        Starts::Section => value,
    }
}

/// Reads and checks entry `index` of a section at `address`.
#[inline]
pub(super) fn read<S: Source + ?Sized>(
    header: &Header,
    address: u64,
    bytes: &S,
    index: u32,
) -> Result<Function, Error> {
    let at = entry_at(header, index);
    match header.version {
        Version::V2 => decode_v2(header, address, at, &read_at(bytes, u64::from(at))?),
    }
}

fn decode_v2(header: &Header, address: u64, at: u32, raw: &[u8; 20]) -> Result<Function, Error> {
    let start = start_v2(header, at, [raw[0], raw[1], raw[2], raw[3]]);
    let rows = u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]]);
    let info = Info::decode(raw[16]).ok_or(Malformed::RowType.at(at.wrapping_add(16)))?;

    // Linkers leave a block size in entries that have no use for it.
    let repeat = if info.repeats {
        Some(NonZeroU8::new(raw[17]).ok_or(Malformed::RepeatZero.at(at.wrapping_add(17)))?)
    } else {
        None
    };

    Ok(Function {
        start: address.wrapping_add_signed(start),
        size: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
        num_rows: u32::from_le_bytes([raw[12], raw[13], raw[14], raw[15]]),
        rows_at: rows_at(header, rows).ok_or(Malformed::RowsStart.at(at.wrapping_add(8)))?,
        row_start: info.row_start,
        repeat,
    })
}

/// Where rows are that begin `offset` bytes behind the start of all rows, in bytes from the
/// section's start.
#[inline]
fn rows_at(header: &Header, offset: u32) -> Option<u32> {
    header
        .fres_at
        .checked_add(offset)
        .filter(|&at| at <= header.end)
}

/// "The SFrame FDE Info Word".
struct Info {
    row_start: RowStart,
    repeats: bool,
}

impl Info {
    #[inline]
    fn decode(byte: u8) -> Option<Info> {
        let row_start = match byte & 0xf {
            0 => RowStart::Addr1,
            1 => RowStart::Addr2,
            2 => RowStart::Addr4,
            _ => return None,
        };
        Some(Info {
            row_start,
            repeats: byte & 0x10 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(size: u32, repeat: u8) -> Function {
        Function {
            start: 0x1008,
            size,
            num_rows: 1,
            rows_at: 0,
            row_start: RowStart::Addr1,
            repeat: NonZeroU8::new(repeat),
        }
    }

    #[test]
    fn functions_end_before_their_end() {
        let function = function(16, 0);
        assert!(!function.covers(0x1007));
        assert!(function.covers(0x1008));
        assert!(function.covers(0x1017));
        assert!(!function.covers(0x1018));
        assert!(!function.covers(0));
        assert!(!function.covers(u64::MAX));
        assert_eq!(function.row_offset(0x1017), Some(15));
        assert_eq!(function.row_offset(0x1018), None);
        assert_eq!(function.row_offset(0x1007), None);
        assert_eq!(function.row_offset(0x1_0000_1008), None);
    }

    #[test]
    fn nothing_lies_in_a_function_of_size_zero() {
        assert!(!function(0, 0).covers(0x1008));
        assert_eq!(function(0, 7).row_offset(0x1008), None);
    }

    #[test]
    fn blocks_are_counted_from_the_function() {
        let function = function(0x40, 0x10);
        // The address modulo the size would be 8.
        assert_eq!(function.row_offset(0x1008), Some(0));
        assert_eq!(function.row_offset(0x1017), Some(15));
        assert_eq!(function.row_offset(0x1018), Some(0));
        assert_eq!(function.row_offset(0x1048), None);
    }

    #[test]
    fn info_bytes() {
        for byte in 0..=255u8 {
            let info = Info::decode(byte);
            let width = info.as_ref().map(|info| info.row_start.width());
            assert_eq!(width, [1, 2, 4].get(usize::from(byte & 0xf)).copied());
            if let Some(info) = info {
                assert_eq!(info.repeats, byte & 0x10 != 0);
            }
        }
    }

    #[test]
    fn functions_are_small() {
        assert!(size_of::<Function>() <= 24);
    }
}
