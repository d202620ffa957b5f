// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Searches a table for the rule at a PC. [`crate::sframe::table::build`] describes the layout.

use crate::sframe::{
    rule::Rule,
    table::compact_rule::CompactRule, //
};

/// The size of a page of code, in bytes.
pub const PAGE: u64 = 256;

/// The number of pages of a chunk. The blocks of so many pages lie within 64 KiB, also if each byte
/// of the code has a rule of its own.
pub const CHUNK: usize = 64;

/// The size of a row, in bytes. A row is the number of a rule, and the last low byte that the rule
/// covers.
pub const ROW: usize = 3;

/// The size of a rule's number, in bytes.
pub const NUMBER: usize = 2;

/// Marks the end of a block, after its last row.
pub(super) const LAST: u8 = 0xff;

/// A table. A search is safe with any contents. The result of a search is true only if
/// [`fill`](crate::sframe::table::build::fill) made the contents.
///
/// The distance of a byte is its address + 1 - `base`. So a return address `ra` minus `base` is the
/// distance of the last byte of the call, at `ra - 1`, and the loop needs no subtraction. A page is
/// the bytes with equal distances / [`PAGE`].
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// The link-time address from which distances count, a multiple of [`PAGE`].
    pub base: u64,
    /// The chunk index: for each [`CHUNK`] pages, an offset before their blocks, in bytes from
    /// `-origin`.
    pub chunks: &'a [u64],
    /// The number in `chunks` that stands for the start of `blocks`.
    pub origin: u64,
    /// The page index: for each page, the offset of the first low byte of the page's block, in
    /// bytes from the offset of the page's chunk.
    pub pages: &'a [u16],
    /// The blocks.
    pub blocks: &'a [u8],
    /// The rules, by number. Rule 0 stands for no rule.
    pub compact: &'a [CompactRule],
    /// The rules that are not compact.
    pub others: &'a [Rule],
}

impl Table<'_> {
    /// Whether a search without checks stays within the table: for each page, `chunks` has an entry
    /// for the page's chunk; that entry plus the page's entry, minus `origin`, modulo 2^64, is the
    /// offset of a byte in `blocks`, with a number before it; the block that begins with that
    /// number ends within `blocks`; and each number in the block is the number of a rule. A caller
    /// that has made this check need not check each lookup, for as long as nothing changes the
    /// table.
    pub fn is_sound(&self) -> bool {
        (0..self.pages.len()).all(|page| {
            let block = self
                .block_of_page(page)
                .and_then(|at| at.checked_sub(NUMBER))
                .and_then(|from| self.blocks.get(from..));
            // Reads the block up to LAST. A table with a block without LAST is not sound.
            for row in block.unwrap_or_default().chunks_exact(ROW) {
                match *row {
                    [a, b, low] if usize::from(u16::from_le_bytes([a, b])) < self.compact.len() => {
                        if low == LAST {
                            return true;
                        }
                    }
                    _ => return false,
                }
            }
            false
        })
    }

    /// The rule at the link-time address `pc`; `None` if no row covers `pc`. Any context.
    #[inline]
    pub fn find(&self, pc: u64) -> Option<Rule> {
        let distance = pc.wrapping_sub(self.base).wrapping_add(1);
        let block = self.block(distance)?;
        self.compact_rule(block, distance).rule(self.others)
    }

    /// The offset of the first low byte of the block for `distance`, in bytes from the start of
    /// `blocks`. `None` if the table has no page for `distance`. Any context.
    #[inline(always)]
    pub fn block(&self, distance: u64) -> Option<usize> {
        self.block_of_page((distance / PAGE) as usize)
    }

    /// The offset of the first low byte of the block of page `page`, like [`Table::block`].
    #[inline(always)]
    fn block_of_page(&self, page: usize) -> Option<usize> {
        let at = *self.pages.get(page)?;
        let chunk = *self.chunks.get(page / CHUNK)?;
        usize::try_from(chunk.wrapping_sub(self.origin).wrapping_add(at.into())).ok()
    }

    /// The rule at `distance`. `block` is the result of [`Table::block`] for that distance. Any
    /// context.
    #[inline(always)]
    pub fn compact_rule(&self, block: usize, distance: u64) -> CompactRule {
        let rule = |number: u16| self.compact.get(usize::from(number)).copied();
        let number = self.row(block, distance).and_then(|at| {
            let number = self.blocks.get(at.checked_sub(NUMBER)?..)?;
            number.first_chunk().copied().map(u16::from_le_bytes)
        });
        number.and_then(rule).unwrap_or(CompactRule::NONE)
    }

    /// The offset of the low byte of the row that covers `distance`, in bytes from the start of
    /// `blocks`. `block` is the result of [`Table::block`] for that distance. The number of the
    /// rule is before the low byte.
    #[inline]
    pub fn row(&self, block: usize, distance: u64) -> Option<usize> {
        let lows = self.blocks.get(block..)?.iter().step_by(ROW);
        let before = lows.take_while(|last| **last < distance as u8).count();
        let at = block.wrapping_add(before.wrapping_mul(ROW));
        (at < self.blocks.len()).then_some(at)
    }
}
