// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rows ("SFrame Frame Row Entries"): found, and decoded into a [`Rule`].
//!
//! Rows are of different lengths and carry no index, so to find one is to scan. Scanning looks at
//! no more of a row than where it starts and how long it is; only the row that is chosen is
//! decoded.

use super::{
    bytes::{
        window,
        Source, //
    },
    error::{
        Error,
        Malformed, //
    },
    fde::{
        Function,
        RowStart, //
    },
    header::Header,
    rule::{
        Base,
        Rule, //
    }, //
};

/// One row of a function, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// From where on the row holds, in bytes from the function's start, or from the start of each
    /// block of a function that [repeats](Function::repeat). It holds up to the start of the next
    /// row, or up to the end of the function or block.
    pub start: u32,
    /// What holds there.
    pub rule: Rule,
}

/// The first eight bytes of a row, in which all is found that is needed to skip it, and mostly its
/// words too.
///
/// # Invariants
///
/// The row ends at or before the end of the section's rows.
#[derive(Clone, Copy)]
struct Head {
    /// Where the row is, in bytes from the section's start.
    at: u32,
    raw: u64,
}

impl Head {
    /// Reads the row at `at`. Returns where the next one is, too.
    #[inline]
    fn read<S: Source + ?Sized>(
        header: &Header,
        bytes: &S,
        row_start: RowStart,
        at: u32,
    ) -> Result<(Head, u32), Error> {
        let head = Head {
            at,
            raw: window(bytes, at, header.end)?,
        };
        let words = head.words(row_start);
        // Zeros stand for bytes behind the end. So a row whose info byte is there has the words that
        // it says; one whose info byte is not has none, but ends behind the end nevertheless.
        let next = at
            .checked_add(row_start.width().wrapping_add(1))
            .and_then(|words_at| words_at.checked_add(words.len()))
            .ok_or(Malformed::RowPastEnd.at(at))?;
        if words.size_log2() == 3 {
            return Err(Malformed::WordSize.at(at));
        }
        if next > header.end {
            return Err(Malformed::RowPastEnd.at(at));
        }
        Ok((head, next))
    }

    /// From where on the row holds, in bytes.
    #[inline]
    fn start(self, row_start: RowStart) -> u32 {
        match row_start {
            RowStart::Addr1 => (self.raw & 0xff) as u32,
            RowStart::Addr2 => (self.raw & 0xffff) as u32,
            RowStart::Addr4 => self.raw as u32,
        }
    }

    /// The info byte and those words that came along.
    #[inline]
    fn words(self, row_start: RowStart) -> Words {
        let rest = self.raw.wrapping_shr(row_start.width().wrapping_mul(8));
        Words {
            info: rest as u8,
            raw: rest >> 8,
        }
    }

    /// Decodes the row.
    #[inline]
    fn rule<S: Source + ?Sized>(
        self,
        header: &Header,
        bytes: &S,
        row_start: RowStart,
    ) -> Result<Rule, Error> {
        let mut words = self.words(row_start);
        let in_front = row_start.width().wrapping_add(1);
        if in_front.wrapping_add(words.len()) > 8 {
            words.raw = window(bytes, self.at.wrapping_add(in_front), header.end)?;
        }
        header
            .abi
            .rule(header, &words)
            .map_err(|what| what.at(self.at))
    }
}

/// The info byte of a row, and the words that follow it ("The SFrame FRE Info Word").
#[derive(Clone, Copy)]
pub(super) struct Words {
    info: u8,
    /// The first words, in little-endian order: up to eight bytes of them.
    raw: u64,
}

impl Words {
    /// The number of words.
    #[inline]
    pub(super) const fn count(self) -> u32 {
        (self.info as u32 >> 1) & 0xf
    }

    /// The size of a word in bytes, as a power of two. 3 is undefined.
    #[inline]
    const fn size_log2(self) -> u32 {
        (self.info as u32 >> 5) & 3
    }

    /// The size of all words, in bytes.
    #[inline]
    const fn len(self) -> u32 {
        self.count() << self.size_log2()
    }

    /// The register that the CFA is counted from.
    #[inline]
    pub(super) const fn base(self) -> Base {
        if self.info & 1 != 0 {
            Base::Sp
        } else {
            Base::Fp
        }
    }

    /// Whether the return address is mangled, as pointer authentication does.
    #[inline]
    pub(super) const fn is_mangled(self) -> bool {
        self.info & 0x80 != 0
    }

    /// Word 0, sign-extended.
    #[inline]
    pub(super) const fn first(self) -> i32 {
        self.extend(self.raw)
    }

    /// Word 1, sign-extended.
    #[inline]
    pub(super) const fn second(self) -> i32 {
        self.extend(match self.size_log2() {
            0 => self.raw >> 8,
            1 => self.raw >> 16,
            _ => self.raw >> 32,
        })
    }

    #[inline]
    const fn extend(self, word: u64) -> i32 {
        match self.size_log2() {
            0 => word as i8 as i32,
            1 => word as i16 as i32,
            _ => word as i32,
        }
    }
}

/// Finds the rule for the bytes at `offset` of `function`, looking at `limit` rows at most.
///
/// `offset` is as [`Function::row_offset`] has it.
#[inline]
pub(super) fn find<S: Source + ?Sized>(
    header: &Header,
    bytes: &S,
    function: &Function,
    offset: u32,
    limit: u32,
) -> Result<Option<Rule>, Error> {
    let row_start = function.row_start();
    let mut at = function.rows_at();
    let mut left = function.num_rows();
    let mut chosen: Option<Head> = None;

    for _ in 0..left.min(limit) {
        let (head, next) = Head::read(header, bytes, row_start, at)?;
        let start = head.start(row_start);
        if chosen.is_some_and(|before| before.start(row_start) >= start) {
            return Err(Malformed::RowsNotRising.at(at));
        }
        if start > offset {
            left = 0;
            break;
        }
        left = left.wrapping_sub(1);
        at = next;
        chosen = Some(head);
    }
    if left != 0 {
        return Err(Error::TooLong);
    }
    match chosen {
        Some(head) => head.rule(header, bytes, row_start).map(Some),
        None => Ok(None),
    }
}

/// Goes through the rows of one function, in order.
///
/// It ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, S: ?Sized> {
    header: Header,
    bytes: &'a S,
    row_start: RowStart,
    at: u32,
    left: u32,
    before: Option<u32>,
}

impl<'a, S: Source + ?Sized> Rows<'a, S> {
    pub(super) fn new(header: &Header, bytes: &'a S, function: &Function) -> Rows<'a, S> {
        Rows {
            header: *header,
            bytes,
            row_start: function.row_start(),
            at: function.rows_at(),
            left: function.num_rows(),
            before: None,
        }
    }

    fn read(&mut self) -> Result<Row, Error> {
        let (head, next) = Head::read(&self.header, self.bytes, self.row_start, self.at)?;
        let start = head.start(self.row_start);
        if self.before.is_some_and(|before| before >= start) {
            return Err(Malformed::RowsNotRising.at(self.at));
        }
        self.before = Some(start);
        self.at = next;
        Ok(Row {
            start,
            rule: head.rule(&self.header, self.bytes, self.row_start)?,
        })
    }
}

impl<S: Source + ?Sized> Iterator for Rows<'_, S> {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let row = self.read();
        if row.is_err() {
            self.left = 0;
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(info: u8, raw: u64) -> Words {
        Words { info, raw }
    }

    #[test]
    fn words_have_signs() {
        let raw = 0x8000_0001_7fff_ff80;
        // Two words of one byte, two bytes, four bytes.
        assert_eq!(words(0x04, raw).first(), -128);
        assert_eq!(words(0x04, raw).second(), -1);
        assert_eq!(words(0x24, raw).first(), -128);
        assert_eq!(words(0x24, raw).second(), 0x7fff);
        assert_eq!(words(0x44, raw).first(), 0x7fff_ff80);
        assert_eq!(words(0x44, raw).second(), i32::MIN + 1);
    }

    #[test]
    fn info_bytes() {
        for info in 0..=255u8 {
            let words = words(info, 0);
            assert_eq!(words.base() == Base::Sp, info & 1 != 0);
            assert_eq!(words.count(), u32::from((info >> 1) & 15));
            assert_eq!(
                words.len(),
                words.count() * [1, 2, 4, 8][usize::from((info >> 5) & 3)]
            );
            assert_eq!(words.is_mangled(), info & 0x80 != 0);
        }
    }

    #[test]
    fn starts_are_as_wide_as_the_function_says() {
        let head = Head {
            at: 0,
            raw: 0xffee_ddcc_bbaa_9988,
        };
        assert_eq!(head.start(RowStart::Addr1), 0x88);
        assert_eq!(head.words(RowStart::Addr1).info, 0x99);
        assert_eq!(head.start(RowStart::Addr2), 0x9988);
        assert_eq!(head.words(RowStart::Addr2).info, 0xaa);
        assert_eq!(head.start(RowStart::Addr4), 0xbbaa_9988);
        assert_eq!(head.words(RowStart::Addr4).info, 0xcc);
        assert_eq!(head.words(RowStart::Addr4).raw, 0xff_eedd);
    }
}
