// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Function descriptor entries ("SFrame Function Descriptor Entries"), which are decoded from every
//! version into one [`Function`].
//!
//! Only this module knows how the entries differ between the versions of the format.

use core::num::NonZeroU8;

use crate::sframe::{
    format::{
        bytes::{
            read_at,
            Source, //
        },
        error::{
            Error,
            Malformed,
            Unsupported, //
        },
        header::{
            Header,
            Starts, //
        },
        version::Version, //
    },
    rule::SavedRbx, //
};

/// The size of the attributes that version 3 keeps before a function's rows, in bytes. In the
/// other versions the attributes are part of the entry.
const ATTRIBUTE_SIZE: u32 = 5;

/// The size of a repeated block in version 1, in bytes: the section does not contain the size. The
/// linker of version 1 repeats rows only for PLTs of AMD64. (The specification of version 1 uses
/// the start offset of a row as a mask of the address. At the start of each instruction in those
/// PLTs, both methods give equal results.)
const BLOCK_V1: u8 = 16;

/// The size of the first stub of a PLT, in bytes. The first stub is a function of its own, without
/// repeated blocks.
const STUB_SIZE: u32 = 16;

/// The fields of "The SFrame FDE Info Word", and of the second info word of version 3.
const ROW_TYPE: u8 = 0x0f;
const MASK: u8 = 0x10;
const PAC_KEY_B: u8 = 0x20;
const SIGNAL: u8 = 0x80;
const FUNCTION_TYPE: u8 = 0x1f;
const FLEXIBLE: u8 = 1;
/// The number of bits below those for rbx, which SFrame leaves unused.
const RBX_SHIFT: u32 = 5;

/// The width of a row's start offset ("FRE types").
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
        // Not a `match`: the compiler would turn a `match` into a table in memory, and each row
        // would read that table.
        1u32.wrapping_shl(self as u32)
    }
}

/// One function: a range of addresses, and the place of its rows.
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
    info: u8,
    info2: u8,
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

    /// The offset of the first row, in bytes from the section's start.
    #[inline]
    pub const fn rows_at(&self) -> u32 {
        self.rows_at
    }

    /// The width of each row's start offset.
    #[inline]
    pub const fn row_start(&self) -> RowStart {
        self.row_start
    }

    /// The size of a block in bytes ("PCMASK"), if the function consists of blocks that share their
    /// rows, like a PLT.
    #[inline]
    pub const fn repeat(&self) -> Option<NonZeroU8> {
        self.repeat
    }

    /// Whether the function is flexible ("SFRAME_FDE_TYPE_FLEX"): the words of its rows name
    /// registers.
    #[inline]
    pub const fn is_flexible(&self) -> bool {
        self.info2 & FUNCTION_TYPE == FLEXIBLE
    }

    /// Where the function keeps its caller's value of rbx. Only sections that `sframectl` makes
    /// have it, in bits of the second info word that the specification leaves unused.
    #[inline]
    pub const fn saved_rbx(&self) -> SavedRbx {
        SavedRbx(self.info2 >> RBX_SHIFT)
    }

    /// Whether the function is a signal trampoline. Only version 3 has a flag for it.
    #[inline]
    pub const fn is_signal(&self) -> bool {
        self.info & SIGNAL != 0
    }

    /// Whether the function signs return addresses with key B of AArch64; otherwise with key A.
    #[inline]
    pub const fn has_key_b(&self) -> bool {
        self.info & PAC_KEY_B != 0
    }

    /// Whether `pc` lies in the function.
    #[inline]
    pub const fn covers(&self, pc: u64) -> bool {
        pc.wrapping_sub(self.start) < self.size as u64
    }

    /// The start of the PLT stub that `pc` may lie in, and the distance of `pc` from that start, in
    /// bytes. `None` if the function is not part of a PLT.
    #[inline]
    pub fn stub(&self, pc: u64) -> Option<(u64, u32)> {
        let offset = self.row_offset(pc)?;
        match self.repeat {
            None if self.size != STUB_SIZE => None,
            _ => Some((pc.wrapping_sub(u64::from(offset)), offset)),
        }
    }

    /// The offset by which rows are looked up, in bytes; `None` if the function does not cover
    /// `pc`.
    ///
    /// For repeated blocks, the result is the offset in the block: the offset from the function's
    /// start, modulo the size of a block. Linkers write rows for that offset, although the
    /// specification defines the PC modulo the size of a block.
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

/// The offset of entry `index`, in bytes from the section's start.
///
/// The offset cannot wrap for an index below `num_fdes`, by the invariants of [`Header`].
#[inline]
pub(super) fn entry_at(header: &Header, index: u32) -> u32 {
    index
        .wrapping_mul(header.version.fde_size())
        .wrapping_add(header.fdes_at)
}

/// Reads only the start address of entry `index`, in bytes from the section's address.
///
/// Searches compare addresses as signed distances from the section. So a comparison of a function
/// before the section with a function after the section cannot wrap around.
#[inline]
pub(super) fn read_start<S: Source + ?Sized>(
    header: &Header,
    bytes: &S,
    index: u32,
) -> Result<i64, Error> {
    let at = entry_at(header, index);
    let value = read_value(header, bytes, at)?;
    Ok(start(header, at, value))
}

/// Reads only the start address of the entry at `at`, as the entry has it: for [`start`].
#[inline]
pub(super) fn read_value<S: Source + ?Sized>(
    header: &Header,
    bytes: &S,
    at: u32,
) -> Result<i64, Error> {
    Ok(match header.version {
        Version::V1 | Version::V2 => near(header, read_at(bytes, u64::from(at))?),
        Version::V3 => far(header, read_at(bytes, u64::from(at))?),
    })
}

#[inline]
fn near(header: &Header, field: [u8; 4]) -> i64 {
    i64::from(header.order().u32(field) as i32)
}

#[inline]
fn far(header: &Header, field: [u8; 8]) -> i64 {
    header.order().u64(field) as i64
}

/// Decodes the start `value` of the entry at `at`, to bytes from the section's address.
#[inline]
pub(super) fn start(header: &Header, at: u32, value: i64) -> i64 {
    start_from(header, header.starts, at, value)
}

/// Decodes a start like [`start`], counted from `starts`.
#[inline]
pub(super) fn start_from(header: &Header, starts: Starts, at: u32, value: i64) -> i64 {
    value.wrapping_add(i64::from(match starts {
        Starts::Field => at,
        Starts::Section => header.at,
    }))
}

/// Reads and checks entry `index` of a section at `address`.
// Not inlined, so that the code that follows can use this function's stack space again.
#[inline(never)]
pub(super) fn read<S: Source + ?Sized>(
    header: &Header,
    address: u64,
    bytes: &S,
    index: u32,
) -> Result<Function, Error> {
    let order = header.order();
    let at = entry_at(header, index);
    // The offsets of the info byte and of the byte for the block size.
    let (info_at, block_at);
    let value;
    let mut function = Function {
        start: 0,
        size: 0,
        num_rows: 0,
        rows_at: 0,
        row_start: RowStart::Addr1,
        repeat: None,
        info: 0,
        info2: 0,
    };
    match header.version {
        Version::V1 | Version::V2 => {
            let Ok(raw) = bytes.read::<17>(at.into()) else {
                return Err(Error::Fault { offset: at });
            };
            value = near(header, [raw[0], raw[1], raw[2], raw[3]]);
            function.size = order.u32([raw[4], raw[5], raw[6], raw[7]]);
            let rows = order.u32([raw[8], raw[9], raw[10], raw[11]]);
            function.rows_at =
                rows_at(header, rows, 0).ok_or(Malformed::RowsStart.at(at.wrapping_add(8)))?;
            function.num_rows = order.u32([raw[12], raw[13], raw[14], raw[15]]);
            function.info = raw[16] & (ROW_TYPE | MASK | PAC_KEY_B);
            info_at = at.wrapping_add(16);
            block_at = at.wrapping_add(17);
        }
        Version::V3 => {
            let Ok(raw) = bytes.read::<16>(at.into()) else {
                return Err(Error::Fault { offset: at });
            };
            value = far(
                header,
                [
                    raw[0], raw[1], raw[2], raw[3], raw[4], raw[5], raw[6], raw[7],
                ],
            );
            function.size = order.u32([raw[8], raw[9], raw[10], raw[11]]);
            let rows = order.u32([raw[12], raw[13], raw[14], raw[15]]);
            function.rows_at = rows_at(header, rows, ATTRIBUTE_SIZE)
                .ok_or(Malformed::RowsStart.at(at.wrapping_add(12)))?;
            let attribute_at = function.rows_at.wrapping_sub(ATTRIBUTE_SIZE);
            let Ok(raw) = bytes.read::<4>(attribute_at.into()) else {
                return Err(Error::Fault {
                    offset: attribute_at,
                });
            };
            function.num_rows = u32::from(order.u16([raw[0], raw[1]]));
            function.info = raw[2];
            function.info2 = raw[3];
            info_at = attribute_at.wrapping_add(2);
            block_at = attribute_at.wrapping_add(4);
        }
    }

    function.start = address.wrapping_add_signed(start(header, at, value));
    function.row_start = match function.info & ROW_TYPE {
        0 => RowStart::Addr1,
        1 => RowStart::Addr2,
        2 => RowStart::Addr4,
        _ => return Err(Malformed::RowType.at(info_at)),
    };
    let function_type = function.info2 & FUNCTION_TYPE;
    if function_type > FLEXIBLE {
        return Err(Error::Unsupported {
            what: Unsupported::FunctionType(function_type),
        });
    }
    // Linkers also write a block size into entries without repeated blocks, where the size has no
    // meaning.
    if function.info & MASK != 0 {
        let block = match header.version {
            Version::V1 => BLOCK_V1,
            Version::V2 | Version::V3 => {
                let [block] = read_at(bytes, u64::from(block_at))?;
                block
            }
        };
        function.repeat = Some(NonZeroU8::new(block).ok_or(Malformed::RepeatZero.at(block_at))?);
    }
    Ok(function)
}

/// The offset of a function's rows, in bytes from the section's start. `offset` counts from the
/// start of all rows; the function's rows begin `in_front` bytes after `offset`. `None` if the
/// result lies after the end of all rows.
#[inline]
fn rows_at(header: &Header, offset: u32, in_front: u32) -> Option<u32> {
    header
        .fres_at
        .checked_add(offset)
        .and_then(|at| at.checked_add(in_front))
        .filter(|&at| at <= header.end)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A function at 0x1008.
    pub(crate) fn function(size: u32, repeat: u8) -> Function {
        Function {
            start: 0x1008,
            size,
            num_rows: 1,
            rows_at: 0,
            row_start: RowStart::Addr1,
            repeat: NonZeroU8::new(repeat),
            info: 0,
            info2: 0,
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
        // The address modulo the block size would be 8.
        assert_eq!(function.row_offset(0x1008), Some(0));
        assert_eq!(function.row_offset(0x1017), Some(15));
        assert_eq!(function.row_offset(0x1018), Some(0));
        assert_eq!(function.row_offset(0x1048), None);
    }

    #[test]
    fn functions_are_small() {
        assert!(size_of::<Function>() <= 32);
    }
}
