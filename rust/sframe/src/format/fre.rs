// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Finds rows ("SFrame Frame Row Entries") and decodes them into a [`Rule`].
//!
//! Rows have different lengths and no index, so a search for a row is a scan. The scan reads only
//! the start and the length of each row. Only the chosen row is decoded.

use crate::sframe::{
    format::{
        abi::Abi,
        bytes::{
            read_at,
            window,
            Order,
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
        version::Version, //
    },
    rule::{
        Base,
        Cfa,
        Extra,
        Location,
        Rule, //
    }, //
};

/// One row of a function, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The start of the row's validity, in bytes. This offset counts from the function's start or,
    /// in a function that [repeats](Function::repeat), from the start of each block. The row is
    /// valid up to the start of the next row, or up to the end of the function or block.
    pub start: u32,
    /// The rule of this row.
    pub rule: Rule,
}

/// One row of a function, not decoded.
#[derive(Clone, Copy)]
pub(in crate::sframe) struct UndecodedRow {
    /// See [`Row::start`].
    pub(in crate::sframe) start: u32,
    head: Head,
}

/// The first eight bytes of a row. These bytes suffice to skip the row, and usually contain the
/// row's words, too.
///
/// # Invariants
///
/// The row ends at or before the end of the section's rows.
#[derive(Clone, Copy)]
struct Head {
    /// The row's offset, in bytes from the section's start.
    at: u32,
    /// The eight bytes. The first byte is the least significant byte.
    raw: u64,
}

impl Head {
    /// Reads the row at `at`. Also returns the offset of the next row.
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
        let info = head.info(row_start);
        // Zeros in `raw` stand for bytes after the end of all rows. If the info byte is before
        // that end, `info` is the true info byte. If the info byte is after that end, `info` is 0
        // and counts no words, but `next` lies after the end, too. The sum has 64 bits, so it
        // cannot wrap around.
        let in_front = u64::from(row_start.width()).wrapping_add(1);
        let next = u64::from(at)
            .wrapping_add(in_front)
            .wrapping_add(u64::from(info.len()));
        if info.size_log2() == 3 {
            return Err(Malformed::WordSize.at(at));
        }
        if next > u64::from(header.end) {
            return Err(Malformed::RowPastEnd.at(at));
        }
        let next = next as u32;
        Ok((head, next))
    }

    /// The row's start offset, in bytes.
    #[inline]
    fn start(self, order: Order, row_start: RowStart) -> u32 {
        // No branch on the width, because this code runs for each row of a scan.
        let behind = 64u32.wrapping_sub(row_start.width().wrapping_mul(8));
        let raw = match order {
            Order::Little => self.raw.wrapping_shl(behind),
            Order::Big => self.raw.swap_bytes(),
        };
        raw.wrapping_shr(behind) as u32
    }

    #[inline]
    fn info(self, row_start: RowStart) -> Info {
        Info(self.raw.wrapping_shr(row_start.width().wrapping_mul(8)) as u8)
    }

    /// Decodes the row, which has to be a row of `function`.
    #[inline(never)]
    fn rule<S: Source + ?Sized>(
        self,
        header: &Header,
        bytes: &S,
        function: &Function,
    ) -> Result<Rule, Error> {
        let row_start = function.row_start();
        let info = self.info(row_start);
        let in_front = row_start.width().wrapping_add(1);
        let mut words = RowWords {
            order: header.order(),
            info,
            at: self.at,
            raw: [self.raw.wrapping_shr(in_front.wrapping_mul(8)), 0, 0],
        };
        if in_front.wrapping_add(info.len()) > 8 {
            words.read(bytes, self.at.wrapping_add(in_front), header.end)?;
        }
        words.rule(header, function)
    }
}

/// The info byte of a row ("The SFrame FRE Info Word").
#[derive(Clone, Copy)]
struct Info(u8);

impl Info {
    /// The number of words.
    #[inline]
    const fn count(self) -> u32 {
        (self.0 as u32 >> 1) & 0xf
    }

    /// The size of a word in bytes, as a power of two. 3 is undefined.
    #[inline]
    const fn size_log2(self) -> u32 {
        (self.0 as u32 >> 5) & 3
    }

    /// The size of all words, in bytes.
    #[inline]
    const fn len(self) -> u32 {
        self.count() << self.size_log2()
    }

    /// The base register of the CFA. Not for flexible functions.
    #[inline]
    const fn base(self) -> Base {
        if self.0 & 1 != 0 {
            Base::Sp
        } else {
            Base::Fp
        }
    }

    /// Whether the return address is mangled, by pointer authentication.
    #[inline]
    const fn is_mangled(self) -> bool {
        self.0 & 0x80 != 0
    }
}

/// The info byte of a row, and the words that follow it.
struct RowWords {
    order: Order,
    info: Info,
    /// The row's offset, in bytes from the section's start.
    at: u32,
    /// The first 24 bytes of the words: a rule uses at most six words of four bytes. In each
    /// element, the first byte is the least significant byte.
    raw: [u64; 3],
}

impl RowWords {
    /// Reads the words anew, at `at` bytes from the section's start. The rows end at `end`.
    // Not inlined: few rows are longer than their first eight bytes.
    #[inline(never)]
    fn read<S: Source + ?Sized>(&mut self, bytes: &S, at: u32, end: u32) -> Result<(), Error> {
        let mut at = at;
        let behind = at.wrapping_add(self.info.len());
        for raw in &mut self.raw {
            if at >= behind {
                break;
            }
            *raw = window_of_words(bytes, at, end)?;
            at = at.wrapping_add(8);
        }
        Ok(())
    }

    /// The bytes of word `index`, in the section's byte order.
    #[inline]
    fn word(&self, index: u32) -> [u8; 4] {
        let start = index << self.info.size_log2();
        // No word spans two elements of `raw`.
        let raw = match start / 8 {
            0 => self.raw[0],
            1 => self.raw[1],
            2 => self.raw[2],
            _ => 0,
        };
        (raw.wrapping_shr((start % 8).wrapping_mul(8)) as u32).to_le_bytes()
    }

    /// Word `index`, sign-extended. Not inlined: rows are seldom decoded.
    #[inline(never)]
    fn signed(&self, index: u32) -> i32 {
        let word = self.word(index);
        match self.info.size_log2() {
            0 => i32::from(word[0] as i8),
            1 => i32::from(self.order.known().u16([word[0], word[1]]) as i16),
            _ => self.order.known().u32(word) as i32,
        }
    }

    /// Word `index`, zero-extended.
    #[inline]
    fn unsigned(&self, index: u32) -> u32 {
        let word = self.signed(index) as u32;
        match self.info.size_log2() {
            0 => word & 0xff,
            1 => word & 0xffff,
            _ => word,
        }
    }

    /// Decodes the row. Not inlined, because all sources share this function.
    #[inline(never)]
    fn rule(&self, header: &Header, function: &Function) -> Result<Rule, Error> {
        let signal = function.is_signal();
        if self.info.count() == 0 {
            // Version 1 does not define rows without words.
            if header.version == Version::V1 {
                return Err(Malformed::WordCount.at(self.at));
            }
            return Ok(Rule {
                signal,
                ..Rule::OUTERMOST
            });
        }
        let mut rule = Rule {
            cfa: Cfa {
                base: self.info.base(),
                offset: 0,
                deref: false,
                plus: 0,
            },
            ra: at_fixed(header.fixed_ra),
            fp: at_fixed(header.fixed_fp),
            mangled: self.info.is_mangled() && header.abi().may_mangle(),
            signal,
            extra: Extra {
                rbx: function.saved_rbx(),
                ..Extra::NONE
            },
        };
        let decoded = if function.is_flexible() {
            self.flexible(header, &mut rule)
        } else {
            self.by_offsets(header, &mut rule)
        };
        match decoded {
            Ok(()) => Ok(rule),
            Err(what) => Err(what.at(self.at)),
        }
    }

    /// Decodes the words of a row of a function that is not flexible: the offset of the CFA, then
    /// the offsets of the return address and of the frame pointer. If the header fixes one of the
    /// last two offsets, its word is absent. A register without a fixed offset and without a word
    /// is unchanged.
    #[inline]
    fn by_offsets(&self, header: &Header, rule: &mut Rule) -> Result<(), Malformed> {
        let (abi, version) = (header.abi(), header.version);
        let count = self.info.count();
        rule.cfa.offset = abi.cfa_offset(self.signed(0)).ok_or(Malformed::CfaOffset)?;
        let mut next = 1;
        if header.fixed_ra == 0 && next < count {
            rule.ra = abi.saved_ra(version, self.signed(next));
            next = 2;
        }
        if header.fixed_fp == 0 && next < count {
            rule.fp = abi.saved(version, self.signed(next));
            next = next.wrapping_add(1);
        }
        if next == count {
            Ok(())
        } else {
            Err(Malformed::WordCount)
        }
    }

    /// Decodes the words of a row of a flexible function ("Flexible FDE"): a pair of words, control
    /// and offset, for each of CFA, return address and frame pointer. A single zero word stands for
    /// a missing pair. At the end of the row, pairs may be absent.
    #[inline(never)]
    fn flexible(&self, header: &Header, rule: &mut Rule) -> Result<(), Malformed> {
        let abi = header.abi();
        let count = self.info.count();
        if count < 2 {
            return Err(Malformed::WordCount);
        }
        let control = Control(self.unsigned(0));
        rule.cfa = Cfa {
            base: control.base(abi).ok_or(Malformed::FlexCfa)?,
            offset: abi.cfa_offset(self.signed(1)).ok_or(Malformed::CfaOffset)?,
            deref: control.deref(),
            plus: 0,
        };
        let mut next = 2;
        for location in [&mut rule.ra, &mut rule.fp] {
            if next >= count {
                break;
            }
            let control = Control(self.unsigned(next));
            next = next.wrapping_add(1);
            if control.0 == 0 {
                continue;
            }
            if next >= count {
                return Err(Malformed::WordCount);
            }
            *location = control.location(abi, self.signed(next));
            next = next.wrapping_add(1);
        }
        if next == count {
            Ok(())
        } else {
            Err(Malformed::WordCount)
        }
    }
}

/// [`window`], in less code. Not inlined, or the compiler would repeat it.
#[inline(never)]
fn window_of_words<S: Source + ?Sized>(bytes: &S, at: u32, end: u32) -> Result<u64, Error> {
    let from = at.min(end.saturating_sub(8));
    let word = u64::from_le_bytes(read_at(bytes, u64::from(from))?);
    Ok(word
        .checked_shr(at.wrapping_sub(from).saturating_mul(8))
        .unwrap_or(0))
}

/// The location of a register that the header saves at a fixed offset; unchanged if the offset is
/// 0.
#[inline]
fn at_fixed(offset: i8) -> Location {
    match offset {
        0 => Location::Unchanged,
        fixed => Location::AtCfa(i32::from(fixed)),
    }
}

/// A control word in a row of a flexible function.
#[derive(Clone, Copy)]
struct Control(u32);

impl Control {
    /// The register; `None` stands for the CFA. Register numbers above 255, which no ABI has,
    /// become 255.
    #[inline]
    fn base(self, abi: Abi) -> Option<Base> {
        if self.0 & 1 == 0 {
            return None;
        }
        Some(abi.base(u8::try_from(self.0 >> 3).unwrap_or(u8::MAX)))
    }

    #[inline]
    const fn deref(self) -> bool {
        self.0 & 2 != 0
    }

    #[inline]
    fn location(self, abi: Abi, offset: i32) -> Location {
        match (self.base(abi), self.deref()) {
            (None, true) => Location::AtCfa(offset),
            (None, false) => Location::OfCfa(offset),
            (Some(base), true) => Location::At(base, offset),
            (Some(base), false) => Location::Of(base, offset),
        }
    }
}

/// Finds the rule at `offset` of `function`. Scans at most `limit` rows.
///
/// `offset` is the result of [`Function::row_offset`]. The result is [`Error::TooLong`] if the row
/// may lie after the first `limit` rows.
#[inline]
pub(super) fn find<S: Source + ?Sized>(
    header: &Header,
    bytes: &S,
    function: &Function,
    offset: u32,
    limit: u32,
) -> Result<Option<Rule>, Error> {
    match find_row(header, bytes, function, offset, limit)? {
        Some(head) => head.rule(header, bytes, function).map(Some),
        None => Ok(None),
    }
}

// Not inlined, so that the decoder of the row's words can use this function's stack space again.
#[inline(never)]
fn find_row<S: Source + ?Sized>(
    header: &Header,
    bytes: &S,
    function: &Function,
    offset: u32,
    limit: u32,
) -> Result<Option<Head>, Error> {
    let (order, row_start) = (header.order(), function.row_start());
    let most = function.num_rows().min(limit);
    let mut at = function.rows_at();
    let mut passed = 0u32;
    let mut chosen = Head { at, raw: 0 };
    let mut least = 0u64;

    while passed < most {
        let (head, next) = Head::read(header, bytes, row_start, at)?;
        let start = head.start(order, row_start);
        if u64::from(start) < least {
            return Err(Malformed::RowsNotRising.at(at));
        }
        if start > offset {
            return Ok((passed != 0).then_some(chosen));
        }
        least = u64::from(start).wrapping_add(1);
        passed = passed.wrapping_add(1);
        at = next;
        chosen = head;
    }
    if most < function.num_rows() {
        return Err(Error::TooLong);
    }
    Ok((passed != 0).then_some(chosen))
}

/// Iterates over the rows of one function, in order.
///
/// The iteration ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct RowIter<'a, S: ?Sized> {
    header: Header,
    bytes: &'a S,
    function: Function,
    at: u32,
    left: u32,
    before: Option<u32>,
}

impl<'a, S: Source + ?Sized> RowIter<'a, S> {
    pub(super) fn new(header: &Header, bytes: &'a S, function: &Function) -> RowIter<'a, S> {
        RowIter {
            header: *header,
            bytes,
            function: *function,
            at: function.rows_at(),
            left: function.num_rows(),
            before: None,
        }
    }

    /// The next row, not decoded. The iteration ends after the first error.
    #[inline]
    pub(in crate::sframe) fn next_undecoded(&mut self) -> Option<Result<UndecodedRow, Error>> {
        self.left = self.left.checked_sub(1)?;
        let row = self.read();
        if row.is_err() {
            self.left = 0;
        }
        Some(row)
    }

    #[inline]
    fn read(&mut self) -> Result<UndecodedRow, Error> {
        let row_start = self.function.row_start();
        let (head, next) = Head::read(&self.header, self.bytes, row_start, self.at)?;
        let start = head.start(self.header.order(), row_start);
        if self.before.is_some_and(|before| before >= start) {
            return Err(Malformed::RowsNotRising.at(self.at));
        }
        self.before = Some(start);
        self.at = next;
        Ok(UndecodedRow { start, head })
    }

    /// Decodes a row of this iteration.
    pub(in crate::sframe) fn decode(&self, row: &UndecodedRow) -> Result<Rule, Error> {
        row.head.rule(&self.header, self.bytes, &self.function)
    }

    /// The words of a row of this iteration as one number that is not 0: rows of functions of one
    /// section with equal numbers have equal rules. `None` if the words do not fit into a number.
    #[inline]
    pub(in crate::sframe) fn words(&self, row: &UndecodedRow) -> Option<u64> {
        let row_start = self.function.row_start();
        let info = row.head.info(row_start);
        let width = row_start.width();
        // The info byte and the words: up to seven bytes.
        let len = info.len().wrapping_add(1);
        let unused = 8u32.checked_sub(width)?.checked_sub(len)?;
        let bits = row.head.raw.wrapping_shl(unused.wrapping_mul(8));
        let words = bits.wrapping_shr(unused.wrapping_add(width).wrapping_mul(8));
        let kind = 4
            | (u64::from(self.function.is_flexible()) << 1)
            | u64::from(self.function.is_signal())
            | (u64::from(self.function.saved_rbx().0) << 3);
        Some(words | (kind << 56))
    }
}

impl<S: Source + ?Sized> Iterator for RowIter<'_, S> {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.next_undecoded()?;
        let row = row.and_then(|row| {
            let rule = self.decode(&row)?;
            let start = row.start;
            Ok(Row { start, rule })
        });
        if row.is_err() {
            self.left = 0;
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_bytes() {
        for byte in 0..=255u8 {
            let info = Info(byte);
            assert_eq!(info.base() == Base::Sp, byte & 1 != 0);
            assert_eq!(info.count(), u32::from((byte >> 1) & 15));
            assert_eq!(
                info.len(),
                info.count() * [1, 2, 4, 8][usize::from((byte >> 5) & 3)]
            );
            assert_eq!(info.is_mangled(), byte & 0x80 != 0);
        }
    }

    #[test]
    fn starts_are_as_wide_as_the_function_says() {
        let head = Head {
            at: 0,
            raw: 0xffee_ddcc_bbaa_9988,
        };
        for (row_start, little, big, info) in [
            (RowStart::Addr1, 0x88, 0x88, 0x99),
            (RowStart::Addr2, 0x9988, 0x8899, 0xaa),
            (RowStart::Addr4, 0xbbaa_9988, 0x8899_aabb, 0xcc),
        ] {
            assert_eq!(head.start(Order::Little, row_start), little);
            assert_eq!(head.start(Order::Big, row_start), big);
            assert_eq!(head.info(row_start).0, info);
        }
    }

    #[test]
    fn control_words() {
        let base = |word| Control(word).base(Abi::Amd64);
        assert_eq!(base(0x33), Some(Base::Fp));
        assert_eq!(base(0x39), Some(Base::Sp));
        assert_eq!(base(0x51), Some(Base::Register(10)));
        assert_eq!(base(0x02), None);
        assert_eq!(base(u32::MAX), Some(Base::Register(u8::MAX)));
        assert!(Control(0x33).deref());
        assert!(!Control(0x51).deref());
    }
}
