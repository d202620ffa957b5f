// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Writes sections, right or wrong, straight from the specification and without the reader's help.

/// "SFrame Flags".
pub(crate) const SORTED: u8 = 1;
pub(crate) const FRAME_POINTER: u8 = 2;
pub(crate) const PCREL: u8 = 4;

/// "The SFrame FDE Info Word".
pub(crate) const ADDR1: u8 = 0;
pub(crate) const ADDR2: u8 = 1;
pub(crate) const ADDR4: u8 = 2;
pub(crate) const MASK: u8 = 0x10;

/// The CFA's base in a row's info byte.
pub(crate) const FP: u8 = 0;
pub(crate) const SP: u8 = 1;

/// The size of version 2's function descriptor entry, and of the header, in bytes.
pub(crate) const ENTRY: usize = 20;
pub(crate) const HEADER: usize = 28;

/// A section of version 2.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) flags: u8,
    pub(crate) fixed_fp: i8,
    pub(crate) fixed_ra: i8,
    pub(crate) aux: Vec<u8>,
    pub(crate) functions: Vec<Function>,
    /// Bytes behind the rows.
    pub(crate) tail: usize,
}

/// A function, with its rows already encoded.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// The value that the section shall hold if it counts from itself; if it counts from the
    /// field, this is made of it.
    pub(crate) start: i32,
    pub(crate) size: u32,
    pub(crate) info: u8,
    pub(crate) rep: u8,
    pub(crate) num_rows: u32,
    pub(crate) rows: Vec<u8>,
}

impl Default for Section {
    fn default() -> Section {
        Section {
            flags: SORTED,
            fixed_fp: 0,
            fixed_ra: -8,
            aux: Vec::new(),
            functions: Vec::new(),
            tail: 0,
        }
    }
}

impl Section {
    pub(crate) fn of(functions: Vec<Function>) -> Section {
        Section {
            functions,
            ..Section::default()
        }
    }

    /// Where entry `index` is.
    pub(crate) fn entry(&self, index: usize) -> usize {
        HEADER + self.aux.len() + index * ENTRY
    }

    /// Where the rows are.
    pub(crate) fn rows(&self) -> usize {
        self.entry(self.functions.len())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let field = self.flags & PCREL != 0 || self.flags & SORTED == 0;
        let mut entries: Vec<u8> = Vec::new();
        let mut rows: Vec<u8> = Vec::new();
        let mut num_rows = 0u32;
        for (index, f) in self.functions.iter().enumerate() {
            let at = if field { self.entry(index) as i32 } else { 0 };
            entries.extend(f.start.wrapping_sub(at).to_le_bytes());
            entries.extend(f.size.to_le_bytes());
            entries.extend((rows.len() as u32).to_le_bytes());
            entries.extend(f.num_rows.to_le_bytes());
            entries.extend([f.info, f.rep, 0, 0]);
            rows.extend(&f.rows);
            num_rows = num_rows.wrapping_add(f.num_rows);
        }

        let mut bytes = vec![0xe2, 0xde, 2, self.flags, 3];
        bytes.extend([
            self.fixed_fp as u8,
            self.fixed_ra as u8,
            self.aux.len() as u8,
        ]);
        bytes.extend((self.functions.len() as u32).to_le_bytes());
        bytes.extend(num_rows.to_le_bytes());
        bytes.extend((rows.len() as u32).to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend((entries.len() as u32).to_le_bytes());
        bytes.extend(&self.aux);
        bytes.extend(entries);
        bytes.extend(rows);
        bytes.resize(bytes.len() + self.tail, 0);
        bytes
    }
}

impl Function {
    /// A function with rows of one-byte words, each `(start, base, words)`.
    pub(crate) fn new(start: i32, size: u32, rows: &[(u32, u8, &[i32])]) -> Function {
        Function::typed(start, size, ADDR1, 0, rows)
    }

    /// A function with start offsets as `info` says and words of `1 << size_log2` bytes.
    pub(crate) fn typed(
        start: i32,
        size: u32,
        info: u8,
        size_log2: u8,
        rows: &[(u32, u8, &[i32])],
    ) -> Function {
        let mut bytes = Vec::new();
        for (at, base, words) in rows {
            bytes.extend(&at.to_le_bytes()[..1 << (info & 3)]);
            bytes.push(base | ((words.len() as u8) << 1) | (size_log2 << 5));
            for word in *words {
                bytes.extend(&word.to_le_bytes()[..1 << size_log2]);
            }
        }
        Function {
            start,
            size,
            info,
            rep: 0,
            num_rows: rows.len() as u32,
            rows: bytes,
        }
    }
}

/// Puts `value` at `at`.
pub(crate) fn patch<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// What binutils 2.45 would have written where 2.44 has: the same section of version 2, with start
/// addresses counted from their fields and the flag that says so ("errata 1").
pub(crate) fn errata_1(old: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    let word = |at: usize| u32::from_le_bytes(old[at..at + 4].try_into().unwrap());
    assert_eq!(old[..3], [0xe2, 0xde, 2]);
    assert_eq!(old[3] & (SORTED | PCREL), SORTED);
    new[3] |= PCREL;
    let first = HEADER + usize::from(old[7]) + word(20) as usize;
    for index in 0..word(8) as usize {
        let at = first + index * ENTRY;
        patch(&mut new, at, word(at).wrapping_sub(at as u32).to_le_bytes());
    }
    new
}
