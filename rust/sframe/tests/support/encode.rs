// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Writes sections of all versions and ABIs, right or wrong, by the specification and without the
//! reader's code.

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

/// The sizes of version 2's function descriptor entry and of the header, in bytes.
pub(crate) const ENTRY: usize = 20;
pub(crate) const HEADER: usize = 28;

/// Bits of a function's info byte: the key of pointer authentication is B; and, in version 3, the
/// function is a signal trampoline.
pub(crate) const KEY_B: u8 = 0x20;
pub(crate) const SIGNAL: u8 = 0x80;
/// The second info byte of a flexible function of version 3.
pub(crate) const FLEX: u8 = 1;

/// The bit of a row's info byte that marks a mangled return address.
const MANGLED: u8 = 0x80;

/// ABIs by their numbers in the header.
pub(crate) const AARCH64_BIG: u8 = 1;
pub(crate) const AARCH64: u8 = 2;
pub(crate) const AMD64: u8 = 3;
pub(crate) const S390X: u8 = 4;

/// Whether the ABI of this number is big-endian.
pub(crate) fn is_big(abi: u8) -> bool {
    matches!(abi, AARCH64_BIG | S390X)
}

/// Appends the lower `width` bytes of a number, in the byte order of the ABI.
fn put(out: &mut Vec<u8>, abi: u8, width: usize, value: i64) {
    if is_big(abi) {
        out.extend(&value.to_be_bytes()[8 - width..]);
    } else {
        out.extend(&value.to_le_bytes()[..width]);
    }
}

/// A section.
#[derive(Clone, Debug)]
pub(crate) struct EncodedSection {
    pub(crate) version: u8,
    pub(crate) abi: u8,
    pub(crate) flags: u8,
    pub(crate) fixed_fp: i8,
    pub(crate) fixed_ra: i8,
    pub(crate) aux: Vec<u8>,
    pub(crate) functions: Vec<EncodedFunction>,
    /// Bytes in front of the functions, and again between them and the rows.
    pub(crate) gap: usize,
    /// Whether rows are stored in the opposite order of functions: a linker sorts functions alone.
    pub(crate) rows_reversed: bool,
    /// Bytes behind the rows.
    pub(crate) tail: usize,
}

/// A function, with its rows already encoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedFunction {
    /// The start address minus the section's address, in bytes. If starts count from their own
    /// fields, [`EncodedSection::bytes_at`] converts it.
    pub(crate) start: i64,
    pub(crate) size: u32,
    pub(crate) info: u8,
    /// Written in version 3 only.
    pub(crate) info2: u8,
    /// The size of a repeated block, in bytes. Not written in version 1.
    pub(crate) rep: u8,
    pub(crate) num_rows: u32,
    pub(crate) rows: Vec<u8>,
}

impl Default for EncodedSection {
    fn default() -> EncodedSection {
        EncodedSection {
            version: 2,
            abi: AMD64,
            flags: SORTED,
            fixed_fp: 0,
            fixed_ra: -8,
            aux: Vec::new(),
            functions: Vec::new(),
            gap: 0,
            rows_reversed: false,
            tail: 0,
        }
    }
}

impl EncodedSection {
    pub(crate) fn of(functions: Vec<EncodedFunction>) -> EncodedSection {
        EncodedSection {
            functions,
            ..EncodedSection::default()
        }
    }

    /// The size of a function descriptor entry, in bytes.
    fn entry_size(&self) -> usize {
        match self.version {
            1 => 17,
            2 => ENTRY,
            _ => 16,
        }
    }

    /// The offset of function descriptor entry `index` in the section, in bytes.
    pub(crate) fn entry(&self, index: usize) -> usize {
        HEADER + self.aux.len() + self.gap + index * self.entry_size()
    }

    /// The offset of the rows in the section, in bytes.
    pub(crate) fn rows(&self) -> usize {
        self.entry(self.functions.len()) + self.gap
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes_at(0)
    }

    /// The bytes of a section that lies `at` bytes behind the address that each function's `start`
    /// counts from, because other sections precede it.
    pub(crate) fn bytes_at(&self, at: usize) -> Vec<u8> {
        let abi = self.abi;
        let mut rows: Vec<u8> = Vec::new();
        let mut rows_at = vec![0; self.functions.len()];
        let mut order: Vec<usize> = (0..self.functions.len()).collect();
        if self.rows_reversed {
            order.reverse();
        }
        for index in order {
            let f = &self.functions[index];
            rows_at[index] = rows.len() as i64;
            if self.version == 3 {
                put(&mut rows, abi, 2, f.num_rows.into());
                rows.extend([f.info, f.info2, f.rep]);
            }
            rows.extend(&f.rows);
        }

        let field = self.flags & PCREL != 0 || self.flags & SORTED == 0;
        let mut entries: Vec<u8> = Vec::new();
        let mut num_rows = 0i64;
        for (index, f) in self.functions.iter().enumerate() {
            let from = at + if field { self.entry(index) } else { 0 };
            let start = f.start.wrapping_sub(from as i64);
            let width = if self.version == 3 { 8 } else { 4 };
            put(&mut entries, abi, width, start);
            put(&mut entries, abi, 4, f.size.into());
            put(&mut entries, abi, 4, rows_at[index]);
            if self.version < 3 {
                put(&mut entries, abi, 4, f.num_rows.into());
                entries.push(f.info);
            }
            if self.version == 2 {
                entries.extend([f.rep, 0, 0]);
            }
            num_rows += i64::from(f.num_rows);
        }

        let mut bytes = Vec::new();
        put(&mut bytes, abi, 2, 0xdee2);
        bytes.extend([self.version, self.flags, abi]);
        bytes.extend([
            self.fixed_fp as u8,
            self.fixed_ra as u8,
            self.aux.len() as u8,
        ]);
        let fdes_at = self.gap as i64;
        put(&mut bytes, abi, 4, self.functions.len() as i64);
        put(&mut bytes, abi, 4, num_rows);
        put(&mut bytes, abi, 4, rows.len() as i64);
        put(&mut bytes, abi, 4, fdes_at);
        put(&mut bytes, abi, 4, 2 * fdes_at + entries.len() as i64);
        bytes.extend(&self.aux);
        bytes.resize(bytes.len() + self.gap, 0xa5);
        bytes.extend(entries);
        bytes.resize(bytes.len() + self.gap, 0xa5);
        bytes.extend(rows);
        bytes.resize(bytes.len() + self.tail, 0);
        bytes
    }
}

/// Concatenated sections, as a linker that does not know SFrame leaves them, and the offset of each
/// section, in bytes.
pub(crate) fn concatenated(sections: &[EncodedSection]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes: Vec<u8> = Vec::new();
    let mut at = Vec::new();
    for section in sections {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        at.push(bytes.len());
        bytes.extend(section.bytes_at(bytes.len()));
    }
    (bytes, at)
}

impl EncodedFunction {
    /// A function with rows of one-byte words, each `(start, base, words)`.
    pub(crate) fn new(
        start: impl Into<i64>,
        size: u32,
        rows: &[(u32, u8, &[i32])],
    ) -> EncodedFunction {
        EncodedFunction::typed(start, size, ADDR1, 0, rows)
    }

    /// A function of AMD64 with start offsets as `info` says and words of `1 << size_log2` bytes.
    pub(crate) fn typed(
        start: impl Into<i64>,
        size: u32,
        info: u8,
        size_log2: u8,
        rows: &[(u32, u8, &[i32])],
    ) -> EncodedFunction {
        let mut bytes = Vec::new();
        for (at, base, words) in rows {
            let words: Vec<i64> = words.iter().copied().map(i64::from).collect();
            bytes.extend(row(AMD64, info, *at, *base, size_log2, &words));
        }
        EncodedFunction {
            start: start.into(),
            size,
            info,
            num_rows: rows.len() as u32,
            rows: bytes,
            ..EncodedFunction::default()
        }
    }
}

/// A row of a function with the info byte `info`. `bits` are the bits of the row's info byte that
/// do not follow from `words` and `size_log2`.
pub(crate) fn row(
    abi: u8,
    info: u8,
    start: u32,
    bits: u8,
    size_log2: u8,
    words: &[i64],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, abi, 1 << (info & 3), start.into());
    bytes.push(bits | ((words.len() as u8) << 1) | (size_log2 << 5));
    for &word in words {
        put(&mut bytes, abi, 1 << size_log2, word);
    }
    bytes
}

/// The contents of a row.
#[derive(Clone, Debug)]
pub(crate) enum EncodedRow {
    /// The outermost frame: the return address is undefined.
    Outermost,
    /// A row of a function that is not flexible.
    Default {
        /// [`FP`] or [`SP`].
        base: u8,
        cfa: i32,
        ra: Option<Saved>,
        fp: Option<Saved>,
        mangled: bool,
    },
    /// A row of a flexible function.
    Flex {
        cfa: Value,
        ra: Option<Value>,
        fp: Option<Value>,
    },
}

/// The place where a function that is not flexible saves a register.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Saved {
    /// In memory, at this offset from the CFA, in bytes.
    At(i32),
    /// In the register with this DWARF number (s390x, version 2).
    In(u8),
}

/// A value in a flexible function: a register plus `offset`, or the CFA plus `offset` if `register`
/// is `None`. With `deref`, the value is the word in memory at that address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) register: Option<u8>,
    pub(crate) deref: bool,
    pub(crate) offset: i32,
}

impl EncodedRow {
    /// The row's bytes, with words of at least `1 << least_log2` bytes, at offset `start` in a
    /// function with the info byte `info`.
    pub(crate) fn bytes(
        &self,
        section: &EncodedSection,
        info: u8,
        start: u32,
        least_log2: u8,
    ) -> Vec<u8> {
        let abi = section.abi;
        let mut words: Vec<i64> = Vec::new();
        // Whether each word is a control word.
        let mut controls = [false; 6];
        let mut bits = 0;
        // On s390x the word counts units of eight bytes, from the end of the register save area.
        let cfa_word = |offset: i32| match abi {
            S390X => (i64::from(offset) - 160) / 8,
            _ => i64::from(offset),
        };
        match *self {
            EncodedRow::Outermost => {}
            EncodedRow::Default {
                base,
                cfa,
                ra,
                fp,
                mangled,
            } => {
                bits = base | if mangled { MANGLED } else { 0 };
                let saved = |saved| match saved {
                    Saved::At(offset) => i64::from(offset),
                    Saved::In(register) => 2 * i64::from(register) + 1,
                };
                words.push(cfa_word(cfa));
                match (section.fixed_ra, ra) {
                    (0, Some(ra)) => words.push(saved(ra)),
                    // A placeholder for RA, which only s390x has.
                    (0, None) if fp.is_some() && section.fixed_fp == 0 => {
                        assert_eq!(abi, S390X, "no row of this ABI has FP alone");
                        words.push(0);
                    }
                    _ => {}
                }
                if section.fixed_fp == 0 {
                    words.extend(fp.map(saved));
                }
            }
            EncodedRow::Flex { cfa, ra, fp } => {
                let control = |value: Value| {
                    let register = value.register.map_or(0, |number| 8 * i64::from(number) + 1);
                    register + if value.deref { 2 } else { 0 }
                };
                let cfa_offset = cfa_word(cfa.offset);
                let from = |value: Option<Value>| {
                    (value, value.map_or(0, |value| i64::from(value.offset)))
                };
                for (value, offset) in [(Some(cfa), cfa_offset), from(ra), from(fp)] {
                    match value {
                        Some(value) => {
                            controls[words.len()] = true;
                            words.extend([control(value), offset]);
                        }
                        // A placeholder, in case another value follows.
                        None => words.push(0),
                    }
                }
                while words.last() == Some(&0) && words.len() > 2 && !controls[words.len() - 2] {
                    words.pop();
                }
            }
        }
        // Offsets are signed. Control words are unsigned, and none takes more than one byte.
        let fits = |log2: u8| {
            let most = (1i64 << ((8 << log2) - 1)) - 1;
            words
                .iter()
                .enumerate()
                .all(|(index, word)| controls[index] || (-most - 1..=most).contains(word))
        };
        let size_log2 = (least_log2..2).find(|&log2| fits(log2)).unwrap_or(2);
        row(abi, info, start, bits, size_log2, &words)
    }
}

/// Overwrites the bytes at offset `at` with `value`.
pub(crate) fn patch<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// Converts a section of version 2 from the form of binutils 2.44 to the form of binutils 2.45:
/// start addresses count from their fields, and the flag `FUNC_START_PCREL` is set ("errata 1").
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
