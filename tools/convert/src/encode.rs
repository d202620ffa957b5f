// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Encodes rules as a section of version 3 ("The SFrame Format").

use std::{
    borrow::Cow,
    slice, //
};

use sframe::{
    header::{
        FUNC_START_PCREL,
        HEADER_SIZE,
        SORTED, //
    },
    rule::{
        Base,
        Extra,
        Location,
        Rule, //
    },
    table::{
        ExtraRow,
        EXTRA_ROW_SIZE, //
    },
    x86_64::registers::{
        RBP,
        RSP, //
    }, //
};

use crate::{
    function::ConvertedFunction,
    report::{
        ConvertError,
        Report, //
    }, //
};

const MAGIC: u16 = 0xdee2;
const VERSION: u8 = 3;
const ABI_AMD64: u8 = 3;
/// The return address's offset from the CFA, in bytes.
const FIXED_RA: i8 = -8;
/// The size of a function descriptor entry, in bytes.
const ENTRY_SIZE: usize = 16;

const MASK: u8 = 0x10;
const SIGNAL: u8 = 0x80;
const FLEXIBLE: u8 = 1;
/// The place of [`SavedRbx`](sframe::rule::SavedRbx) in a function's second info word.
const RBX_SHIFT: u32 = 5;

/// Bits of a control word: the base is a register; the value is in memory.
const CONTROL_REGISTER: u32 = 1;
const CONTROL_DEREF: u32 = 2;

/// Whether a row, of the default or the flexible type, can encode a rule.
pub(crate) fn can_encode(rule: &Rule) -> bool {
    is_of_default_type(rule) || DataRow::flexible(rule).is_some()
}

/// Whether only an extra row may encode a rule.
pub(crate) fn needs_extra_row(rule: &Rule) -> bool {
    rule.cfa.plus != 0 || rule.extra != Extra::NONE
}

/// Encodes an extra row; `None` if an extra row cannot encode the rule.
pub(crate) fn extra_row(start: u64, size: u32, rule: &Rule) -> Option<[u8; EXTRA_ROW_SIZE]> {
    let rule = *rule;
    ExtraRow { start, size, rule }.write()
}

/// Encodes functions, which must be sorted and must not overlap.
///
/// # Errors
///
/// [`ConvertError::TooLarge`].
pub(crate) fn section(
    functions: &[ConvertedFunction],
    report: &mut Report,
) -> Result<Vec<u8>, ConvertError> {
    /// Most rows have three or four bytes.
    const ROW: usize = 4;
    let mut entries = Vec::with_capacity(functions.len());
    let most = functions
        .iter()
        .map(|function| ROW * function.rows.len() + 8);
    let mut rows = Vec::with_capacity(most.sum());
    for function in functions {
        // An entry counts its rows in 16 bits.
        // An entry without rows would stand for outermost frames.
        let parts = match function.rows.len() {
            1..=MOST_ROWS => Cow::Borrowed(slice::from_ref(function)),
            _ => Cow::Owned(parts(function)),
        };
        for part in parts.iter() {
            entries.push((
                part.start,
                part.size,
                u32::try_from(rows.len()).map_err(|_| ConvertError::TooLarge)?,
            ));
            report.flexible += u32::from(put_function(part, &mut rows));
            report.section_rows = part
                .rows
                .len()
                .try_into()
                .ok()
                .and_then(|count| report.section_rows.checked_add(count))
                .ok_or(ConvertError::TooLarge)?;
        }
    }
    report.functions = u32::try_from(entries.len()).map_err(|_| ConvertError::TooLarge)?;
    let rows_len = u32::try_from(rows.len()).map_err(|_| ConvertError::TooLarge)?;
    let entries_len =
        u32::try_from(entries.len() * ENTRY_SIZE).map_err(|_| ConvertError::TooLarge)?;
    // Readers use 32-bit offsets from the section's start.
    HEADER_SIZE
        .checked_add(entries_len)
        .and_then(|len| len.checked_add(rows_len))
        .ok_or(ConvertError::TooLarge)?;

    let mut out =
        Vec::with_capacity(HEADER_SIZE as usize + entries.len() * ENTRY_SIZE + rows.len());
    out.extend(MAGIC.to_le_bytes());
    out.extend([
        VERSION,
        SORTED | FUNC_START_PCREL,
        ABI_AMD64,
        0,
        FIXED_RA as u8,
        0,
    ]);
    for word in [
        report.functions,
        report.section_rows,
        rows_len,
        0,
        entries_len,
    ] {
        out.extend(word.to_le_bytes());
    }
    for (start, size, rows_at) in entries {
        let mut entry = [0; ENTRY_SIZE];
        let start = start.wrapping_sub(out.len() as u64);
        entry[..8].copy_from_slice(&start.to_le_bytes());
        entry[8..12].copy_from_slice(&size.to_le_bytes());
        entry[12..].copy_from_slice(&rows_at.to_le_bytes());
        out.extend_from_slice(&entry);
    }
    out.extend(rows);
    Ok(out)
}

/// The most rows that an entry can count.
const MOST_ROWS: usize = u16::MAX as usize;

/// Splits a function into parts that have at most as many rows as an entry can count.
fn parts(function: &ConvertedFunction) -> Vec<ConvertedFunction> {
    let chunks: Vec<_> = function.rows.chunks(MOST_ROWS).collect();
    let mut parts = Vec::new();
    for (index, rows) in chunks.iter().enumerate() {
        let first = if index == 0 { 0 } else { rows[0].0 };
        let end = chunks
            .get(index + 1)
            .map_or(function.size, |following| following[0].0);
        parts.push(ConvertedFunction {
            start: function.start + u64::from(first),
            size: end - first,
            repeat: function.repeat,
            signal: function.signal,
            rbx: function.rbx,
            rows: rows.iter().map(|(at, rule)| (at - first, *rule)).collect(),
        });
    }
    parts
}

/// Appends a function's attribute and rows. Returns whether the function is flexible.
fn put_function(function: &ConvertedFunction, out: &mut Vec<u8>) -> bool {
    let flexible = !(function.rows.iter()).all(|(_, rule)| is_of_default_type(rule));
    let width: u8 = match function.size {
        0..=0xff => 0,
        0x100..=0xffff => 1,
        _ => 2,
    };
    let mut info = width;
    if function.repeat.is_some() {
        info |= MASK;
    }
    if function.signal {
        info |= SIGNAL;
    }
    out.extend((function.rows.len() as u16).to_le_bytes());
    out.extend([
        info,
        (u8::from(flexible) * FLEXIBLE) | (function.rbx.0 << RBX_SHIFT),
        function.repeat.unwrap_or(0),
    ]);
    if flexible {
        for (start, rule) in &function.rows {
            let row = DataRow::flexible(rule).expect("rules that cannot be encoded were dropped");
            out.extend(&start.to_le_bytes()[..1 << width]);
            row.put(out);
        }
    } else {
        put_default_rows(&function.rows, width, out);
    }
    flexible
}

/// Appends rows of the default type, whose starts have a size of two to the power of `width`.
fn put_default_rows(rows: &[(u32, Rule)], width: u8, out: &mut Vec<u8>) {
    /// The most bytes of a row: its start, the info byte, and two offsets.
    const MOST: usize = 4 + 1 + 8;
    let first = out.len();
    // A row is written as a word, of which the next row may overwrite a part.
    out.resize(first + rows.len() * MOST + size_of::<u128>(), 0);
    let mut left = &mut out[first..];
    for (start, rule) in rows {
        let (row, len) = default_row(*start, rule, width);
        let Some((place, _)) = left.split_first_chunk_mut() else {
            break;
        };
        if len <= size_of::<u64>() {
            let (low, _) = place.split_at_mut(size_of::<u64>());
            low.copy_from_slice(&(row as u64).to_le_bytes());
        } else {
            *place = row.to_le_bytes();
        }
        left = &mut left[len..];
    }
    let unused = left.len();
    out.truncate(out.len() - unused);
}

/// A row of the default type as a little-endian number, and its size in bytes.
#[inline]
fn default_row(start: u32, rule: &Rule, width: u8) -> (u128, usize) {
    let width = 1usize << width;
    if rule.is_outermost() {
        return (start.into(), width + 1);
    }
    let sp = u8::from(rule.cfa.base == Base::Sp);
    let cfa = rule.cfa.offset;
    let (fp, offsets) = match rule.fp {
        Location::AtCfa(fp) => (fp, 2u8),
        _ => (0, 1),
    };
    // The bits without the sign.
    let bits = (cfa ^ (cfa >> 31)) | (fp ^ (fp >> 31));
    let size = match bits {
        0..=0x7f => 0,
        0x80..=0x7fff => 1,
        _ => 2u8,
    };
    let info = sp | (offsets << 1) | (size << 5);
    let bytes = 1usize << size;
    let len = width + 1 + bytes * usize::from(offsets);
    let mask = u32::MAX >> (32 - 8 * bytes);
    let (cfa, fp) = (cfa as u32 & mask, fp as u32 & mask);
    if len <= size_of::<u64>() {
        let offsets = u64::from(info) | (u64::from(cfa) << 8) | (u64::from(fp) << (8 + 8 * bytes));
        return ((u64::from(start) | (offsets << (8 * width))).into(), len);
    }
    let offsets = u128::from(info) | (u128::from(cfa) << 8) | (u128::from(fp) << (8 + 8 * bytes));
    (u128::from(start) | (offsets << (8 * width)), len)
}

/// Whether a row of the default type can encode a rule.
fn is_of_default_type(rule: &Rule) -> bool {
    rule.is_outermost()
        || (matches!(rule.cfa.base, Base::Sp | Base::Fp)
            && !rule.cfa.deref
            && rule.ra == Location::AtCfa(FIXED_RA.into())
            && matches!(rule.fp, Location::Unchanged | Location::AtCfa(_)))
}

/// The most words of a row: a control word and an offset for each of the CFA, the return address
/// and the frame pointer.
const MOST_WORDS: usize = 6;

/// An encoded row of a flexible function.
#[derive(Clone, Copy)]
struct DataRow {
    /// The words; the first `len` are in use.
    words: [DataWord; MOST_WORDS],
    len: usize,
}

/// A word of a row. Control words are unsigned.
#[derive(Clone, Copy)]
enum DataWord {
    Offset(i32),
    Control(u32),
}

impl DataRow {
    /// The rule as a flexible row.
    fn flexible(rule: &Rule) -> Option<DataRow> {
        if rule.is_outermost() {
            return Some(DataRow::OUTERMOST);
        }
        let mut control = register(rule.cfa.base) | CONTROL_REGISTER;
        if rule.cfa.deref {
            control |= CONTROL_DEREF;
        }
        let mut row = DataRow::OUTERMOST.with([
            DataWord::Control(control),
            DataWord::Offset(rule.cfa.offset),
        ]);
        let has_fp = rule.fp != Location::Unchanged;
        if rule.ra != Location::AtCfa(FIXED_RA.into()) {
            row = row.with(pair(rule.ra)?);
        } else if has_fp {
            row = row.with([DataWord::Control(0)]);
        }
        if has_fp {
            row = row.with(pair(rule.fp)?);
        }
        Some(row)
    }

    const OUTERMOST: DataRow = DataRow {
        words: [DataWord::Control(0); MOST_WORDS],
        len: 0,
    };

    /// The row with further words.
    fn with<const N: usize>(mut self, words: [DataWord; N]) -> DataRow {
        self.words[self.len..][..N].copy_from_slice(&words);
        self.len += N;
        self
    }

    /// Appends the info byte and the words, in the smallest size that all words fit in.
    fn put(&self, out: &mut Vec<u8>) {
        let words = &self.words[..self.len];
        let size = words.iter().map(|word| word.size()).max().unwrap_or(0);
        let info = ((words.len() as u8) << 1) | (size << 5);
        out.push(info);
        for word in words {
            let raw = match *word {
                DataWord::Offset(offset) => offset.to_le_bytes(),
                DataWord::Control(control) => control.to_le_bytes(),
            };
            out.extend(&raw[..1 << size]);
        }
    }
}

impl DataWord {
    /// The base-2 logarithm of the bytes that the word needs.
    fn size(self) -> u8 {
        let fits = |bits: u32| match self {
            DataWord::Offset(offset) => {
                let most = 1i64 << (bits - 1);
                (-most..most).contains(&offset.into())
            }
            DataWord::Control(control) => u64::from(control) < 1 << bits,
        };
        match () {
            () if fits(8) => 0,
            () if fits(16) => 1,
            () => 2,
        }
    }
}

fn register(base: Base) -> u32 {
    let number = match base {
        Base::Sp => RSP,
        Base::Fp => RBP,
        Base::Register(number) => number,
    };
    u32::from(number) << 3
}

/// Control word and offset for the location of a caller's register.
fn pair(location: Location) -> Option<[DataWord; 2]> {
    let (control, offset) = match location {
        Location::AtCfa(offset) => (CONTROL_DEREF, offset),
        Location::At(base, offset) => (register(base) | CONTROL_REGISTER | CONTROL_DEREF, offset),
        Location::Of(base, offset) => (register(base) | CONTROL_REGISTER, offset),
        // A control word of zero means that there is no pair.
        Location::OfCfa(_) | Location::Unchanged | Location::Undefined => return None,
    };
    Some([DataWord::Control(control), DataWord::Offset(offset)])
}
