// SPDX-License-Identifier: GPL-2.0-only

//! The raw bytes of a section: the positions of rows, and fields that the crate `sframe` skips.

use sframe::{
    bytes::Order,
    fde::{
        Function,
        RowStart, //
    },
    section::Section, //
};

/// Bytes of a section in its byte order, at offsets from the section's start.
#[derive(Clone, Copy)]
pub(crate) struct Raw<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) order: Order,
}

impl<'a> Raw<'a> {
    pub(crate) fn of(bytes: &'a [u8], section: &Section) -> Raw<'a> {
        Raw {
            bytes,
            order: section.abi().order(),
        }
    }

    /// The number of `width` bytes (1, 2 or 4) at offset `at`; `None` past the section's end.
    pub(crate) fn number(self, at: u32, width: u32) -> Option<u32> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(usize::try_from(width).ok()?)?;
        let add = |value: u32, &byte: &u8| (value << 8) | u32::from(byte);
        let bytes = self.bytes.get(at..end)?;
        Some(match self.order {
            Order::Big => bytes.iter().fold(0, add),
            Order::Little => bytes.iter().rev().fold(0, add),
        })
    }

    pub(crate) fn byte(self, at: u32) -> Option<u8> {
        self.bytes.get(usize::try_from(at).ok()?).copied()
    }
}

/// A row, undecoded.
#[derive(Clone, Copy)]
pub(crate) struct RawRow<'a> {
    raw: Raw<'a>,
    /// The row's position, in bytes from the section's start.
    pub(crate) at: u32,
    /// The info byte ("The SFrame FRE Info Word").
    pub(crate) info: u8,
    words_at: u32,
}

impl<'a> RawRow<'a> {
    pub(crate) fn read(raw: Raw<'a>, row_start: RowStart, at: u32) -> Option<RawRow<'a>> {
        let info_at = at.checked_add(row_start.width())?;
        Some(RawRow {
            raw,
            at,
            info: raw.byte(info_at)?,
            words_at: info_at.checked_add(1)?,
        })
    }

    /// The number of words.
    pub(crate) fn count(&self) -> u32 {
        u32::from(self.info >> 1) & 0xf
    }

    /// Word `index`, zero-extended; `None` if there is none.
    pub(crate) fn word(&self, index: u32) -> Option<u32> {
        let width = self.width()?;
        let at = self.words_at.checked_add(index.checked_mul(width)?)?;
        (index < self.count())
            .then(|| self.raw.number(at, width))
            .flatten()
    }

    /// The position of the next row; `None` if the size of the words is undefined.
    pub(crate) fn next(&self) -> Option<u32> {
        self.words_at
            .checked_add(self.count().checked_mul(self.width()?)?)
    }

    fn width(&self) -> Option<u32> {
        match (self.info >> 5) & 3 {
            3 => None,
            log2 => Some(1 << log2),
        }
    }
}

/// Iterates over the rows of `function`, up to the end of the section's bytes.
pub(crate) fn rows<'a>(
    raw: Raw<'a>,
    function: &Function,
) -> impl Iterator<Item = RawRow<'a>> + use<'a> {
    let row_start = function.row_start();
    let first = RawRow::read(raw, row_start, function.rows_at());
    let count = usize::try_from(function.num_rows()).unwrap_or(usize::MAX);
    std::iter::successors(first, move |row| RawRow::read(raw, row_start, row.next()?)).take(count)
}
