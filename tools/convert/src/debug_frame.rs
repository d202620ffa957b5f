// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! .debug_frame, which debuggers read, written anew as .eh_frame: "Call Frame Information" in the
//! DWARF standard, version 5, section 6.4.
//!
//! Files that were built with debug information and without tables for unwinding have it, as the
//! images that Mono compiles ahead of time. The two sections differ in the identifiers of CIEs, and
//! in how an FDE names its CIE.

use object::{
    read::elf::ElfFile64,
    Endianness,
    Object,
    ObjectSection, //
};
use std::collections::HashMap;

/// The identifier of a CIE, in the 32-bit format.
const CIE: u32 = u32::MAX;
/// The size of an address, in bytes.
const ADDRESS: u8 = 8;

/// The contents of .eh_frame that say what the file's .debug_frame says. Empty if there is none.
pub(crate) fn as_eh_frame(file: &ElfFile64<'_, Endianness>) -> Vec<u8> {
    file.section_by_name(".debug_frame")
        .and_then(|section| section.uncompressed_data().ok())
        .map(|bytes| rewritten(&bytes))
        .unwrap_or_default()
}

/// The entries that can be written as entries of .eh_frame, up to the first one whose length is not
/// known. An entry keeps its length or becomes shorter.
fn rewritten(section: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(section.len());
    // The places of the CIEs, before and now.
    let mut places = HashMap::new();
    let mut rest = section;
    while let Some((len, tail)) = rest.split_first_chunk() {
        let at = section.len() - rest.len();
        let Some((entry, tail)) = tail.split_at_checked(u32::from_le_bytes(*len) as usize) else {
            break;
        };
        rest = tail;
        let Some((id, body)) = entry.split_first_chunk() else {
            continue;
        };
        let now = out.len();
        match u32::from_le_bytes(*id) {
            CIE => {
                if let Some(fields) = cie(body) {
                    places.insert(at, now);
                    put(&mut out, 0, &fields);
                }
            }
            pointer => {
                // From the field to the CIE.
                let pointed = places.get(&(pointer as usize));
                if let Some(distance) =
                    pointed.and_then(|place| u32::try_from(now + 4 - place).ok())
                {
                    put(&mut out, distance, body);
                }
            }
        }
    }
    out
}

/// Adds an entry, whose first field is `id`.
fn put(out: &mut Vec<u8>, id: u32, body: &[u8]) {
    let len = (body.len() + 4) as u32;
    out.extend(len.to_le_bytes());
    out.extend(id.to_le_bytes());
    out.extend(body);
}

/// The fields of a CIE as .eh_frame has them. `body` has the fields behind the identifier. `None`
/// if the CIE has an augmentation, or if its addresses do not have eight bytes.
fn cie(body: &[u8]) -> Option<Vec<u8>> {
    /// The version of a CIE in .eh_frame.
    const VERSION: u8 = 1;
    let fields = match body {
        [1 | 3, 0, fields @ ..] => fields,
        [4, 0, ADDRESS, 0, fields @ ..] => fields,
        _ => return None,
    };
    Some([&[VERSION, 0], fields].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of .debug_frame.
    fn entry(id: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, id, body);
        out
    }

    #[test]
    fn entries_are_written_anew() {
        let fields = [1, 0x78, 16, 12, 7, 8, 0x90, 1, 0];
        let function = [[0x11; 8], [0x22; 8]].concat();
        let unknown = entry(CIE, &[&[1, b'z', 0][..], &fields].concat());
        let first = entry(CIE, &[&[3, 0][..], &fields].concat());
        let second = entry(CIE, &[&[4, 0, 8, 0][..], &fields].concat());
        let places = [0, unknown.len(), unknown.len() + first.len()].map(|at| at as u32);
        let functions = places.map(|place| entry(place, &function));
        let all = [vec![unknown, first, second], functions.to_vec()].concat();
        let plain = entry(0, &[&[1, 0][..], &fields].concat());
        // The function of the CIE that cannot be written is left out.
        let len = plain.len() as u32;
        let to_first = entry(2 * len + 4, &function);
        let to_second = entry(len + to_first.len() as u32 + 4, &function);
        let expected = [plain.clone(), plain, to_first, to_second].concat();
        assert_eq!(rewritten(&all.concat()), expected);
        // A length beyond the end, and the 64-bit format.
        for last in [[0xff, 0, 0, 0], [0xff; 4]] {
            let bytes = [&all.concat()[..], &last].concat();
            assert_eq!(rewritten(&bytes), expected);
        }
        for bytes in [&[][..], &[1, 2], &[0; 4], &[2, 0, 0, 0, 1, 1]] {
            assert_eq!(rewritten(bytes), [0u8; 0], "{bytes:x?}");
        }
    }
}
