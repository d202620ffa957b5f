// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rules into bytes: a section of version 3 ("The SFrame Format").

use sframe::{
    header::{
        FUNC_START_PCREL,
        HEADER_SIZE,
        SORTED, //
    },
    rule::{
        Base,
        Location,
        Rule, //
    },
    table::{
        ExtraRow,
        EXTRA_ROW_SIZE, //
    },
};

use crate::{
    Error,
    Function,
    Report, //
};

const MAGIC: u16 = 0xdee2;
const VERSION: u8 = 3;
const ABI_AMD64: u8 = 3;
/// Where the return address is, in bytes from the CFA.
const FIXED_RA: i8 = -8;
/// The size of a function's entry, in bytes.
const ENTRY_SIZE: usize = 16;
/// DWARF's numbers of frame pointer and stack pointer.
const RBP: u8 = 6;
const RSP: u8 = 7;

const MASK: u8 = 0x10;
const SIGNAL: u8 = 0x80;
const FLEXIBLE: u8 = 1;

/// The bits of a control word: whether a register is named, whether memory is meant.
const CONTROL_REGISTER: u32 = 1;
const CONTROL_DEREF: u32 = 2;

/// Whether rules can be said at all: each either way is one that a row has.
pub(crate) fn can_say(rule: &Rule) -> bool {
    Row::plain(rule).is_some() || Row::flexible(rule).is_some()
}

/// A row beside the section; `None` if it is none that can be there.
pub(crate) fn extra_rows(start: u64, size: u32, rule: &Rule) -> Option<[u8; EXTRA_ROW_SIZE]> {
    let rule = *rule;
    ExtraRow { start, size, rule }.write()
}

/// The section with these functions, which are to be in order and apart from each other.
///
/// # Errors
///
/// [`Error::TooLarge`].
pub(crate) fn section(functions: &[Function], report: &mut Report) -> Result<Vec<u8>, Error> {
    let mut entries = Vec::new();
    let mut rows = Vec::new();
    for function in functions {
        // No more than an entry can count.
        for part in parts(function) {
            entries.push((
                part.start,
                part.size,
                u32::try_from(rows.len()).map_err(|_| Error::TooLarge)?,
            ));
            report.flexible += u32::from(put_function(&part, &mut rows));
            report.section_rows = part
                .rows
                .len()
                .try_into()
                .ok()
                .and_then(|count| report.section_rows.checked_add(count))
                .ok_or(Error::TooLarge)?;
        }
    }
    report.functions = u32::try_from(entries.len()).map_err(|_| Error::TooLarge)?;
    let rows_len = u32::try_from(rows.len()).map_err(|_| Error::TooLarge)?;
    let entries_len = u32::try_from(entries.len() * ENTRY_SIZE).map_err(|_| Error::TooLarge)?;
    // A reader counts in 32 bits from the section's start.
    HEADER_SIZE
        .checked_add(entries_len)
        .and_then(|len| len.checked_add(rows_len))
        .ok_or(Error::TooLarge)?;

    let mut out = Vec::new();
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
        out.extend(start.wrapping_sub(out.len() as u64).to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend(rows_at.to_le_bytes());
    }
    out.extend(rows);
    Ok(out)
}

/// A function in parts of no more rows than an entry can count.
fn parts(function: &Function) -> Vec<Function> {
    let most = usize::from(u16::MAX);
    let chunks: Vec<_> = function.rows.chunks(most).collect();
    let mut parts = Vec::new();
    for (index, rows) in chunks.iter().enumerate() {
        let first = if index == 0 { 0 } else { rows[0].0 };
        let end = chunks
            .get(index + 1)
            .map_or(function.size, |following| following[0].0);
        parts.push(Function {
            start: function.start + u64::from(first),
            size: end - first,
            repeat: function.repeat,
            signal: function.signal,
            rows: rows.iter().map(|(at, rule)| (at - first, *rule)).collect(),
        });
    }
    parts
}

/// Appends a function's attribute and rows. Whether it is flexible comes back.
fn put_function(function: &Function, out: &mut Vec<u8>) -> bool {
    let plain: Option<Vec<Row>> = (function.rows.iter())
        .map(|(_, rule)| Row::plain(rule))
        .collect();
    let flexible = plain.is_none();
    let rows = plain.unwrap_or_else(|| {
        let rows = function.rows.iter().map(|(_, rule)| Row::flexible(rule));
        rows.map(|row| row.expect("a rule that cannot be said was left out"))
            .collect()
    });

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
    out.extend((rows.len() as u16).to_le_bytes());
    out.extend([
        info,
        u8::from(flexible) * FLEXIBLE,
        function.repeat.unwrap_or(0),
    ]);
    for ((start, _), row) in function.rows.iter().zip(rows) {
        out.extend(&start.to_le_bytes()[..1 << width]);
        row.put(out);
    }
    flexible
}

/// A row's words, of which some count as unsigned.
struct Row {
    /// Whether the CFA is counted from the stack pointer; of a flexible row never.
    sp: bool,
    words: Vec<Word>,
}

#[derive(Clone, Copy)]
enum Word {
    Offset(i32),
    Control(u32),
}

impl Row {
    /// As a row that is not flexible.
    fn plain(rule: &Rule) -> Option<Row> {
        if rule.is_outermost() {
            return Some(Row::OUTERMOST);
        }
        let sp = match rule.cfa.base {
            Base::Sp => true,
            Base::Fp => false,
            Base::Register(_) => return None,
        };
        if rule.cfa.deref || rule.ra != Location::AtCfa(FIXED_RA.into()) {
            return None;
        }
        let mut words = vec![Word::Offset(rule.cfa.offset)];
        match rule.fp {
            Location::Unchanged => {}
            Location::AtCfa(offset) => words.push(Word::Offset(offset)),
            _ => return None,
        }
        Some(Row { sp, words })
    }

    /// As a flexible row.
    fn flexible(rule: &Rule) -> Option<Row> {
        if rule.is_outermost() {
            return Some(Row::OUTERMOST);
        }
        let mut control = register(rule.cfa.base) | CONTROL_REGISTER;
        if rule.cfa.deref {
            control |= CONTROL_DEREF;
        }
        let mut words = vec![Word::Control(control), Word::Offset(rule.cfa.offset)];
        let has_fp = rule.fp != Location::Unchanged;
        if rule.ra != Location::AtCfa(FIXED_RA.into()) {
            words.extend(pair(rule.ra)?);
        } else if has_fp {
            words.push(Word::Control(0));
        }
        if has_fp {
            words.extend(pair(rule.fp)?);
        }
        Some(Row { sp: false, words })
    }

    const OUTERMOST: Row = Row {
        sp: false,
        words: Vec::new(),
    };

    /// Appends the info byte and the words, as narrow as they all can be.
    fn put(&self, out: &mut Vec<u8>) {
        let size = self.words.iter().map(|word| word.size()).max().unwrap_or(0);
        let info = u8::from(self.sp) | ((self.words.len() as u8) << 1) | (size << 5);
        out.push(info);
        for word in &self.words {
            let raw = match *word {
                Word::Offset(offset) => offset.to_le_bytes(),
                Word::Control(control) => control.to_le_bytes(),
            };
            out.extend(&raw[..1 << size]);
        }
    }
}

impl Word {
    /// The width it needs in bytes, as a power of two.
    fn size(self) -> u8 {
        let fits = |bits: u32| match self {
            Word::Offset(offset) => {
                let most = 1i64 << (bits - 1);
                (-most..most).contains(&offset.into())
            }
            Word::Control(control) => u64::from(control) < 1 << bits,
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

/// Control word and offset for a register's place in the caller.
fn pair(location: Location) -> Option<[Word; 2]> {
    let (control, offset) = match location {
        Location::AtCfa(offset) => (CONTROL_DEREF, offset),
        Location::At(base, offset) => (register(base) | CONTROL_REGISTER | CONTROL_DEREF, offset),
        Location::Of(base, offset) => (register(base) | CONTROL_REGISTER, offset),
        // A control word of zero stands for no pair at all.
        Location::OfCfa(_) | Location::Unchanged | Location::Undefined => return None,
    };
    Some([Word::Control(control), Word::Offset(offset)])
}
