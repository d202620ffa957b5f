// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! A table as it is searched: which rule holds at a PC. See [`super::build`] for how it is laid out.

use super::{
    super::unwind::rule::Rule,
    compact_rule::CompactRule, //
};

/// The size of a page of code, in bytes.
pub const PAGE: u64 = 256;

/// The size of a row, in bytes: the number of a rule, and up to which low byte it holds.
pub const ROW: usize = 3;

/// The size of a rule's number, in bytes.
pub const NUMBER: usize = 2;

/// What is behind the last row of a block.
pub(super) const LAST: u8 = 0xff;

/// A table. It is safe to search whatever it holds, but true only as [`fill`](super::build::fill) has made it.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// The address that the first page begins at.
    pub base: u64,
    /// Where in the blocks the first low byte of each page is.
    pub pages: &'a [u32],
    /// The blocks.
    pub blocks: &'a [u8],
    /// The rules, by number; the first one stands for none.
    pub compact: &'a [CompactRule],
    /// Those of them that are not compact.
    pub others: &'a [Rule],
}

impl Table<'_> {
    /// For how much code it has rows, or knows that there are none, in bytes from the base on.
    pub fn span(&self) -> u64 {
        (self.pages.len() as u64).wrapping_mul(PAGE)
    }

    /// Whether each page has a block that ends within the blocks, and each number in it is of a rule. Who
    /// knows that need not check it at each look-up.
    pub fn is_sound(&self) -> bool {
        self.pages.iter().all(|at| {
            let block = (*at as usize)
                .checked_sub(NUMBER)
                .and_then(|from| self.blocks.get(from..));
            // Up to LAST, which has to be there.
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

    /// The rule that holds at `pc`; `None` if there is none. Any context.
    #[inline]
    pub fn find(&self, pc: u64) -> Option<Rule> {
        let distance = pc.wrapping_sub(self.base);
        let block = self.block(distance)?;
        self.compact_rule(block, distance).rule(self.others)
    }

    /// Where the rows are for the page at a distance in bytes from the base. Any context.
    #[inline(always)]
    pub fn block(&self, distance: u64) -> Option<u32> {
        self.pages.get((distance / PAGE) as usize).copied()
    }

    /// What holds at a distance in bytes from the base, of which the page's rows are at `block`. Any
    /// context.
    #[inline(always)]
    pub fn compact_rule(&self, block: u32, distance: u64) -> CompactRule {
        let rule = |number: u16| self.compact.get(usize::from(number)).copied();
        let number = self.row(block, distance).and_then(|at| {
            let number = self.blocks.get(at.checked_sub(NUMBER)?..)?;
            number.first_chunk().copied().map(u16::from_le_bytes)
        });
        number.and_then(rule).unwrap_or(CompactRule::NONE)
    }

    /// The same, but where in the blocks that is: the low byte up to which it holds. The number of the
    /// rule is right in front.
    #[inline]
    pub fn row(&self, block: u32, distance: u64) -> Option<usize> {
        let lows = self.blocks.get(block as usize..)?.iter().step_by(ROW);
        let before = lows.take_while(|last| **last < distance as u8).count();
        let at = (block as usize).wrapping_add(before.wrapping_mul(ROW));
        (at < self.blocks.len()).then_some(at)
    }
}
