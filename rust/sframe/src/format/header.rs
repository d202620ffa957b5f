// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The header of a section ("SFrame Header"), read and checked.
//!
//! All later arithmetic on offsets relies on the checks in `Header::decode`, the only constructor
//! of a `Header`.

pub use crate::sframe::format::version::{
    Version,
    FRAME_POINTER,
    FUNC_START_PCREL,
    SORTED, //
};
use crate::sframe::format::{
    abi::Abi,
    bytes::Order,
    error::{
        Error,
        Malformed,
        Unsupported, //
    }, //
};

/// The size of a header without its auxiliary part, in bytes. All versions have this size.
pub const HEADER_SIZE: u32 = 28;

const MAGIC: u16 = 0xdee2;

/// The origin of the start address in a function descriptor entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starts {
    /// The address of the field itself.
    Field,
    /// The address of the section.
    Section,
}

/// A header that was read and checked.
///
/// # Invariants
///
/// `abi` is `ONLY_ABI` if that is not `None`. `at + HEADER_SIZE <= fdes_at`, `fdes_at + num_fdes *
/// version.fde_size() <= fres_at`, `fres_at <= end`, and `end` is not more than the length of the
/// section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) version: Version,
    abi: Abi,
    order: Order,
    pub(super) flags: u8,
    pub(super) starts: Starts,
    /// Whether searches rely on the order of the functions: the flag [`SORTED`] is set, and the
    /// origin of start addresses is the origin that the flags give.
    pub(super) sorted: bool,
    /// The offset from the CFA at which all functions save the frame pointer, in bytes; 0 if the
    /// offset is not fixed.
    pub(super) fixed_fp: i8,
    /// The offset from the CFA at which all functions save the return address, in bytes; 0 if the
    /// offset is not fixed.
    pub(super) fixed_ra: i8,
    pub(super) num_fdes: u32,
    pub(super) num_fres: u32,
    /// The offset of this header, in bytes from the section's start.
    pub(super) at: u32,
    /// The offset of the function descriptor entries, in bytes from the section's start.
    pub(super) fdes_at: u32,
    /// The offset of the rows, in bytes from the section's start.
    pub(super) fres_at: u32,
    /// The offset of the end of the rows, in bytes from the section's start.
    pub(super) end: u32,
}

impl Header {
    /// Decodes and checks the header at `at`, in a section of `len` bytes.
    pub(super) fn decode(
        raw: &[u8; HEADER_SIZE as usize],
        at: u32,
        len: u32,
    ) -> Result<Header, Error> {
        let malformed = |what: Malformed, field: u32| what.at(at.saturating_add(field));
        let unsupported = |what| Error::Unsupported { what };

        // Only the first four bytes keep their meaning in all future versions.
        let order = match u16::from_le_bytes([raw[0], raw[1]]) {
            MAGIC => Order::Little,
            magic if magic == MAGIC.swap_bytes() => Order::Big,
            _ => return Err(malformed(Malformed::Magic, 0)),
        };
        let version = Version::decode(raw[2])?;

        let flags = raw[3];
        let unknown = flags & !version.known_flags();
        if unknown != 0 {
            return Err(unsupported(Unsupported::Flags(unknown)));
        }

        // Version 1, and binutils up to 2.44, have no flag for the origin of start addresses. Their
        // linker counts start addresses from the section, and sorts the functions. If the functions
        // are not sorted, no such linker made the section: the section comes from an object file,
        // or is a concatenation of the sections of object files. In these sections, relocation
        // makes each start address the distance from its own field.
        let starts = if flags & FUNC_START_PCREL == 0 && flags & SORTED != 0 {
            Starts::Section
        } else {
            Starts::Field
        };

        let abi = Abi::decode(raw[4])?;
        if abi.order() != order {
            return Err(malformed(Malformed::AbiOrder, 4));
        }
        if crate::ONLY_ABI.is_some_and(|only| only != abi) {
            return Err(unsupported(Unsupported::Abi(abi.number())));
        }

        let num_fdes = order.u32([raw[8], raw[9], raw[10], raw[11]]);
        let num_fres = order.u32([raw[12], raw[13], raw[14], raw[15]]);
        let fre_len = order.u32([raw[16], raw[17], raw[18], raw[19]]);
        let fdeoff = order.u32([raw[20], raw[21], raw[22], raw[23]]);
        let freoff = order.u32([raw[24], raw[25], raw[26], raw[27]]);

        // Both offsets count from the end of the auxiliary header. No tool is known to make a
        // section that does not fit into 32 bits; such a section is probably garbage.
        let base = at
            .saturating_add(HEADER_SIZE)
            .saturating_add(u32::from(raw[7]));
        if base > len {
            return Err(malformed(Malformed::AuxHeader, 7));
        }
        let fres_at = base.checked_add(freoff);
        let end = fres_at.and_then(|at| at.checked_add(fre_len));
        let (Some(fres_at), Some(end)) = (fres_at, end) else {
            return Err(if len == u32::MAX {
                unsupported(Unsupported::Size)
            } else {
                malformed(Malformed::Rows, 24)
            });
        };
        if end > len {
            return Err(malformed(Malformed::Rows, 24));
        }
        let fdes_at = base.checked_add(fdeoff);
        let fdes_end = num_fdes
            .checked_mul(version.fde_size())
            .and_then(|size| fdes_at?.checked_add(size));
        let (Some(fdes_at), Some(fdes_end)) = (fdes_at, fdes_end) else {
            return Err(malformed(Malformed::Functions, 20));
        };
        if fdes_end > fres_at {
            return Err(malformed(Malformed::Functions, 20));
        }

        Ok(Header {
            version,
            abi,
            order,
            flags,
            starts,
            sorted: flags & SORTED != 0,
            fixed_fp: i8::from_le_bytes([raw[5]]),
            fixed_ra: i8::from_le_bytes([raw[6]]),
            num_fdes,
            num_fres,
            at,
            fdes_at,
            fres_at,
            end,
        })
    }

    /// The ABI.
    #[inline(always)]
    pub(super) const fn abi(&self) -> Abi {
        self.abi.known()
    }

    /// The byte order.
    #[inline(always)]
    pub(super) const fn order(&self) -> Order {
        self.order.known()
    }

    #[inline]
    pub(super) const fn has_frame_pointer(&self) -> bool {
        self.flags & FRAME_POINTER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [u8; 28] = [
        0xe2, 0xde, 2, 1, 3, 0, 0xf8, 4, // up to the length of the auxiliary header
        2, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, // two functions, three rows in nine bytes
        8, 0, 0, 0, 52, 0, 0,
        0, // functions eight bytes after the header, rows four after them
    ];

    #[test]
    fn offsets_are_counted_from_the_end_of_the_header() {
        let header = Header::decode(&GOOD, 0, 93).unwrap();
        assert_eq!(header.version, Version::V2);
        assert_eq!(header.version.number(), 2);
        assert_eq!(header.abi, Abi::Amd64);
        assert_eq!((header.fixed_ra, header.fixed_fp), (-8, 0));
        assert_eq!((header.num_fdes, header.num_fres), (2, 3));
        assert_eq!(header.fdes_at, 28 + 4 + 8);
        assert_eq!(header.fres_at, 28 + 4 + 52);
        assert_eq!(header.end, 93);
        assert!(header.sorted);
        assert!(!header.has_frame_pointer());
    }

    #[test]
    fn a_tail_is_not_part_of_the_section() {
        for len in [94, 4096, u32::MAX] {
            assert_eq!(Header::decode(&GOOD, 0, len).unwrap().end, 93);
        }
        assert_eq!(
            Header::decode(&GOOD, 0, 92).unwrap_err(),
            Malformed::Rows.at(24)
        );
    }

    #[test]
    fn flags_select_the_base_of_start_addresses() {
        for (flags, starts, sorted, frame_pointer) in [
            (0, Starts::Field, false, false),
            (1, Starts::Section, true, false),
            (2, Starts::Field, false, true),
            (3, Starts::Section, true, true),
            (4, Starts::Field, false, false),
            (5, Starts::Field, true, false),
            (7, Starts::Field, true, true),
        ] {
            let mut raw = GOOD;
            raw[3] = flags;
            let header = Header::decode(&raw, 0, 93).unwrap();
            assert_eq!(header.starts, starts, "{flags}");
            assert_eq!(header.sorted, sorted, "{flags}");
            assert_eq!(header.has_frame_pointer(), frame_pointer, "{flags}");
        }
    }

    #[test]
    fn offsets_of_a_later_header_are_the_section_s() {
        let header = Header::decode(&GOOD, 0x100, 0x100 + 93).unwrap();
        assert_eq!(header.at, 0x100);
        assert_eq!(header.fdes_at, 0x100 + 28 + 4 + 8);
        assert_eq!(header.end, 0x100 + 93);
        assert_eq!(
            Header::decode(&GOOD, 0x100, 93).unwrap_err(),
            Malformed::AuxHeader.at(0x107)
        );
        assert_eq!(
            Header::decode(&GOOD, u32::MAX - 8, u32::MAX).unwrap_err(),
            Error::Unsupported {
                what: Unsupported::Size
            }
        );
    }

    #[test]
    fn the_order_is_the_machine_s() {
        // A header like `GOOD`, for AArch64, big-endian.
        let mut raw = GOOD;
        raw[..2].reverse();
        for field in raw[8..].chunks_exact_mut(4) {
            field.reverse();
        }
        assert_eq!(
            Header::decode(&raw, 0, 93).unwrap_err(),
            Malformed::AbiOrder.at(4)
        );
        raw[4] = 1;
        let header = Header::decode(&raw, 0, 93).unwrap();
        assert_eq!(header.order, Order::Big);
        assert_eq!((header.num_fdes, header.num_fres), (2, 3));
        assert_eq!(header.end, 93);
    }

    #[test]
    fn each_version_knows_its_flags() {
        for (version, flags) in [(1, 3), (2, 7), (3, 5)] {
            for given in 0..=255u8 {
                let mut raw = GOOD;
                (raw[2], raw[3]) = (version, given);
                let unknown = given & !flags;
                match Header::decode(&raw, 0, 93) {
                    Ok(header) => assert_eq!((unknown, header.flags), (0, given)),
                    Err(Error::Unsupported { what }) => {
                        assert_eq!(what, Unsupported::Flags(unknown));
                    }
                    // The entries of versions 1 and 3 have another size, and fit too.
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn the_version_is_checked_first() {
        let mut raw = [0xff; 28];
        raw[..3].copy_from_slice(&[0xe2, 0xde, 9]);
        assert_eq!(
            Header::decode(&raw, 0, 28).unwrap_err(),
            Error::Unsupported {
                what: Unsupported::Version(9)
            }
        );
    }
}
