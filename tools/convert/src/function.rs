// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Functions with rules, as all sources of rows make them.

use sframe::rule::{
    Rule,
    SavedRbx, //
};
use std::ops::Range;

/// A function, or an encodable part of a function. Addresses are link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConvertedFunction {
    pub(crate) start: u64,
    pub(crate) size: u32,
    /// For a PLT, the size in bytes of the blocks that share the rows.
    pub(crate) repeat: Option<u8>,
    pub(crate) signal: bool,
    /// Where the function keeps its caller's value of rbx.
    pub(crate) rbx: SavedRbx,
    /// The offset in bytes from which each rule applies, in ascending order.
    pub(crate) rows: Vec<(u32, Rule)>,
}

impl ConvertedFunction {
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.size.into())
    }

    /// The rules, each with the range in which it applies, in bytes from the function's start.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Range<u32>, Rule)> + '_ {
        let starts = self.rows.iter().map(|(start, _)| *start);
        let ends = starts.skip(1).chain([self.size]);
        (self.rows.iter().zip(ends)).map(|((start, rule), end)| (*start..end, *rule))
    }

    /// Truncates the function at `end`.
    pub(crate) fn truncate(&mut self, end: u64) {
        if end < self.end() {
            self.size = end.saturating_sub(self.start) as u32;
            let size = self.size;
            if self.repeat.is_none() {
                self.rows.retain(|(start, _)| *start < size);
            }
        }
    }

    /// Truncates the function at `at`, and returns the rest. `at` lies in the function or is its
    /// end; the function is not a PLT.
    pub(crate) fn split_off(&mut self, at: u64) -> ConvertedFunction {
        let offset = (at - self.start) as u32;
        let current = self.rows.iter().rev().find(|(start, _)| *start <= offset);
        let following = self.rows.iter().filter(|(start, _)| *start > offset);
        let rows = current.map(|(_, rule)| (0, *rule)).into_iter();
        let rest = ConvertedFunction {
            start: at,
            size: self.size - offset,
            repeat: None,
            signal: self.signal,
            rbx: self.rbx,
            rows: rows
                .chain(following.map(|(start, rule)| (start - offset, *rule)))
                .collect(),
        };
        self.truncate(at);
        rest
    }
}

/// Inserts a function, truncated at the next one, unless another function covers its start.
pub(crate) fn insert(
    functions: &mut Vec<ConvertedFunction>,
    start: u64,
    size: u32,
    rows: Vec<(u32, Rule)>,
) {
    let next = functions.partition_point(|function| function.start <= start);
    if next > 0 && functions[next - 1].end() > start {
        return;
    }
    let mut function = ConvertedFunction {
        start,
        size,
        repeat: None,
        signal: false,
        rbx: SavedRbx::UNKNOWN,
        rows,
    };
    if let Some(next) = functions.get(next) {
        function.truncate(next.start);
    }
    functions.insert(next, function);
}

/// The size of functions together, in bytes.
pub(crate) fn size_of_all(functions: &[ConvertedFunction]) -> u64 {
    let sizes = functions.iter().map(|function| u64::from(function.size));
    sizes.sum()
}

/// Sorts functions, and truncates each at the start of the next one. Of overlapping functions the
/// one that starts last covers the code.
pub(crate) fn sort_and_trim(functions: &mut Vec<ConvertedFunction>) {
    functions.retain(|function| function.size != 0);
    functions.sort_by_key(|function| function.start);
    let mut next = u64::MAX;
    for function in functions.iter_mut().rev() {
        function.truncate(next);
        next = function.start;
    }
    functions.retain(|function| function.size != 0);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sframe::rule::{
        Base,
        Location, //
    };

    /// A function without anything special.
    pub(crate) fn function(start: u64, size: u32, rows: &[(u32, Rule)]) -> ConvertedFunction {
        ConvertedFunction {
            start,
            size,
            repeat: None,
            signal: false,
            rbx: SavedRbx::UNKNOWN,
            rows: rows.to_vec(),
        }
    }

    pub(crate) fn plain(offset: i32) -> Rule {
        Rule::amd64(Base::Sp, offset, Location::Unchanged)
    }
}
