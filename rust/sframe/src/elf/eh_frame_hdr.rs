// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Finds the function that covers an address, for code without rows, in `.eh_frame_hdr`: the table
//! of the starts of all functions in `.eh_frame`.
//!
//! The search reads only the start and the size of an entry in `.eh_frame`, and only the encodings
//! that GNU ld and LLD write. See "Exception Frame Header" and "DWARF Extensions" in the Linux
//! Standard Base, core.

use crate::sframe::format::bytes::Source;

const VERSION: u8 = 1;
/// The encoding of the pointer to `.eh_frame`: DW_EH_PE_pcrel | DW_EH_PE_sdata4.
const PC_RELATIVE: u8 = 0x1b;
/// The encoding of the number of entries: DW_EH_PE_udata4.
const NUMBER: u8 = 0x03;
/// The encoding of the entries: DW_EH_PE_datarel | DW_EH_PE_sdata4.
const DATA_RELATIVE: u8 = 0x3b;
/// The size of the header, in bytes. The entries follow the header.
const HEADER: u64 = 12;
/// The size of an entry, in bytes.
const ENTRY: u64 = 8;

/// Finds the start of the function that covers `pc`; both are run-time addresses. `None` if no
/// function covers `pc`, or if the table cannot be read.
///
/// `memory` is the memory of the process, by run-time addresses. `address` is the run-time address
/// of `.eh_frame_hdr`, and `len` its length in bytes.
pub fn function_start<S: Source + ?Sized>(
    memory: &S,
    address: u64,
    len: u64,
    pc: u64,
) -> Option<u64> {
    let header: [u8; 12] = memory.read(address).ok()?;
    let [VERSION, PC_RELATIVE, NUMBER, DATA_RELATIVE, _, _, _, _, count @ ..] = header else {
        return None;
    };
    let count = u32::from_le_bytes(count);
    if len.checked_sub(HEADER)? / ENTRY < u64::from(count) {
        return None;
    }

    // Finds the last entry whose function does not start after the PC.
    let (mut first, mut end) = (0, count);
    while first < end {
        let middle = first.midpoint(end);
        if start_of(memory, address, middle)? <= pc {
            first = middle.wrapping_add(1);
        } else {
            end = middle;
        }
    }
    let entry = first.checked_sub(1)?;
    let start = start_of(memory, address, entry)?;
    let fde = word(memory, address, entry, 4)?;

    // The fields of an FDE: length, pointer to the CIE, start, size. Each field has four bytes. In
    // an FDE with fields of other widths, the start does not match the start in the table.
    let raw: [u8; 16] = memory.read(fde).ok()?;
    let [_, _, _, _, _, _, _, _, s0, s1, s2, s3, size @ ..] = raw;
    let same = fde
        .wrapping_add(8)
        .wrapping_add_signed(i64::from(i32::from_le_bytes([s0, s1, s2, s3])));
    let covers = pc.wrapping_sub(start) < u64::from(u32::from_le_bytes(size));
    (same == start && covers).then_some(start)
}

fn start_of<S: Source + ?Sized>(memory: &S, address: u64, entry: u32) -> Option<u64> {
    word(memory, address, entry, 0)
}

/// The run-time address that one of the two words of an entry encodes. `offset` is 0 for the
/// function's start, and 4 for the function's FDE. Both words count from the table's own address.
#[inline(never)]
fn word<S: Source + ?Sized>(memory: &S, address: u64, entry: u32, offset: u64) -> Option<u64> {
    let at = address
        .checked_add(HEADER)?
        .checked_add(u64::from(entry).checked_mul(ENTRY)?)?
        .checked_add(offset)?;
    let word = i32::from_le_bytes(memory.read(at).ok()?);
    Some(address.wrapping_add_signed(i64::from(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::format::bytes::Fault;
    use std::vec::Vec;

    const ADDRESS: u64 = 0x7000_0000;
    /// The address of the FDEs.
    const EH_FRAME: u64 = ADDRESS + 0x1000;

    struct MockImage(Vec<u8>);

    impl Source for MockImage {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            self.0[..].read(offset.checked_sub(ADDRESS).ok_or(Fault)?)
        }
    }

    /// An image with these functions, each given by start and size.
    fn image(functions: &[(u64, u32)]) -> MockImage {
        let mut bytes = Vec::from([1, 0x1b, 3, 0x3b, 0, 0, 0, 0]);
        bytes.extend((functions.len() as u32).to_le_bytes());
        for (number, (start, _)) in functions.iter().enumerate() {
            bytes.extend((start.wrapping_sub(ADDRESS) as u32).to_le_bytes());
            bytes.extend(((EH_FRAME - ADDRESS) as u32 + 32 * number as u32).to_le_bytes());
        }
        bytes.resize(0x1000, 0);
        for (number, (start, size)) in functions.iter().enumerate() {
            let at = EH_FRAME + 32 * number as u64 + 8;
            bytes.extend([0; 8]);
            bytes.extend((start.wrapping_sub(at) as u32).to_le_bytes());
            bytes.extend(size.to_le_bytes());
            bytes.extend([0; 16]);
        }
        MockImage(bytes)
    }

    fn found(image: &MockImage, pc: u64) -> Option<u64> {
        let count = u32::from_le_bytes(image.0[8..12].try_into().unwrap());
        function_start(image, ADDRESS, 12 + 8 * u64::from(count), pc)
    }

    #[test]
    fn each_function_covers_its_bytes() {
        for count in 0..9 {
            let functions: Vec<(u64, u32)> = (0..count)
                .map(|number| (ADDRESS - 0x8000 + 64 * number, 48))
                .collect();
            let image = image(&functions);
            for (start, _) in &functions {
                assert_eq!(found(&image, *start), Some(*start));
                assert_eq!(found(&image, start + 47), Some(*start));
                assert_eq!(found(&image, start + 48), None);
            }
            assert_eq!(found(&image, ADDRESS - 0x8001), None);
            assert_eq!(found(&image, u64::MAX), None);
        }
    }

    #[test]
    fn other_encodings_are_ignored() {
        let start = ADDRESS - 0x8000;
        for (at, byte) in [(0, 2), (1, 0x1c), (2, 0x04), (3, 0x1b), (0x1008, 0)] {
            let mut image = image(&[(start, 48)]);
            assert_eq!(found(&image, start), Some(start));
            image.0[at] ^= byte ^ 0x55;
            assert_eq!(found(&image, start), None, "{at:#x}");
        }
        let image = image(&[(start, 48), (start + 64, 48)]);
        for len in [0, 11, 12, 27] {
            assert_eq!(function_start(&image, ADDRESS, len, start), None);
        }
        assert!(function_start(&image, ADDRESS, 28, start).is_some());
        assert_eq!(function_start(&image, 0, 28, start), None);
        assert_eq!(function_start(&image, u64::MAX - 5, 28, start), None);
    }

    #[test]
    fn truncated_tables_are_not_read_past_their_end() {
        let start = ADDRESS - 0x8000;
        let whole = image(&[(start, 48), (start + 64, 48)]);
        for len in [0, 11, 12, 19, 0x1000, 0x100f] {
            let image = MockImage(whole.0[..len].to_vec());
            assert_eq!(function_start(&image, ADDRESS, 28, start), None, "{len}");
        }
    }
}
