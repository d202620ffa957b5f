// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Searches a table for the rule at a PC. [`crate::sframe::table::build`] describes the layout.

use crate::sframe::{
    rule::Rule,
    table::compact_rule::CompactRule, //
};
use core::{
    hint,
    ops::Range, //
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

/// The most rows of a block. Pages of perl, bash and libc have up to 50 rows. A page with more rows
/// than a block has a dense block: one row up to the page's end, with a rule number that stands for
/// no rule, and then the number of the rule of each byte. So no search takes long, whatever the
/// rows are.
pub const MOST_ROWS: usize = 48;

/// The rule number in the one row of a dense block.
pub(super) const DENSE: u16 = 1;

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

/// `index`, or 0 if it is not below `len`, without a branch: also in a speculative execution behind
/// a wrong guess of a branch that has compared the two. As the kernel's `array_index_mask_nospec`.
#[inline(always)]
fn masked(index: usize, len: usize) -> usize {
    // The compiler must not use that the index was compared before.
    let index = hint::black_box(index);
    let is_not_below = (index | len.wrapping_sub(1).wrapping_sub(index)) as isize;
    index & !(is_not_below >> (usize::BITS - 1)) as usize
}

impl Table<'_> {
    /// Whether a search without checks stays within the table: for each page, `chunks` has an entry
    /// for the page's chunk; that entry plus the page's entry, minus `origin`, modulo 2^64, is the
    /// offset of a byte in `blocks`, with a number before it; the block that begins with that
    /// number ends within `blocks`, after at most [`MOST_ROWS`] rows; and each number in the block
    /// is the number of a rule. A caller that has made this check need not check each lookup, for
    /// as long as nothing changes the table. Of these pages only: the caller may rest between parts
    /// of a long table.
    pub fn is_sound(&self, mut pages: Range<usize>) -> bool {
        pages.all(|page| {
            let block = self
                .block_of_page(page)
                .and_then(|at| at.checked_sub(NUMBER))
                .and_then(|from| self.blocks.get(from..));
            // Reads the block up to LAST. A table with a block without LAST is not sound.
            for row in block.unwrap_or_default().chunks_exact(ROW).take(MOST_ROWS) {
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
        self.search(pc).0
    }

    /// As [`find`](Self::find), and the number of rows in front of the row that covers `pc`: the
    /// search looks at each of them. They are fewer than [`MOST_ROWS`] in a sound table.
    #[inline]
    pub fn search(&self, pc: u64) -> (Option<Rule>, u32) {
        let distance = pc.wrapping_sub(self.base).wrapping_add(1);
        let Some(block) = self.block(distance) else {
            return (None, 0);
        };
        let at = self.row(block, distance);
        let rows = at.unwrap_or(block).wrapping_sub(block) / ROW;
        let mut rule = at.and_then(|at| self.rule_of_row(at));
        if rule == Some(CompactRule::DENSE) {
            let number = usize::from(distance as u8).wrapping_mul(NUMBER);
            rule = self.rule_at(block.wrapping_add(1).wrapping_add(number));
        }
        (
            rule.unwrap_or(CompactRule::NONE).rule(self.others),
            u32::try_from(rows).unwrap_or(u32::MAX),
        )
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
        if page >= self.pages.len() {
            return None;
        }
        let page = masked(page, self.pages.len());
        let at = *self.pages.get(page)?;
        let chunk = *self.chunks.get(page / CHUNK)?;
        usize::try_from(chunk.wrapping_sub(self.origin).wrapping_add(at.into())).ok()
    }

    /// The rule at `distance` in the form of the fast path, which ends at a rule that is not
    /// compact, and at a dense block. `block` is the result of [`Table::block`] for that distance.
    /// Any context.
    #[inline(always)]
    pub fn compact_rule(&self, block: usize, distance: u64) -> CompactRule {
        self.row(block, distance)
            .and_then(|at| self.rule_of_row(at))
            .unwrap_or(CompactRule::NONE)
    }

    /// The rule of the row whose low byte has this offset in `blocks`.
    #[inline(always)]
    fn rule_of_row(&self, at: usize) -> Option<CompactRule> {
        self.rule_at(at.checked_sub(NUMBER)?)
    }

    /// The rule whose number is at this offset in `blocks`.
    #[inline(always)]
    fn rule_at(&self, at: usize) -> Option<CompactRule> {
        let number = self.blocks.get(at..)?;
        let number = number.first_chunk().copied().map(u16::from_le_bytes)?;
        self.compact.get(usize::from(number)).copied()
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

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn an_index_that_is_not_below_the_length_becomes_0() {
        const MOST: usize = isize::MAX as usize;
        for (index, len, result) in [
            (0, 1, 0),
            (6, 7, 6),
            (7, 7, 0),
            (8, 7, 0),
            (MOST - 1, MOST, MOST - 1),
            (usize::MAX, 7, 0),
            (usize::MAX, MOST, 0),
        ] {
            assert_eq!(masked(index, len), result, "{index} of {len}");
        }
    }
}
