// SPDX-License-Identifier: GPL-2.0-only

//! For tests: walks by kept rules are walked again by the tables alone, and compared. In kernels
//! with KUnit, and with `RUST=compare`.

use crate::{
    sframe::{
        fast_path::{
            self,
            FastPathState, //
        },
        unwind::WordReader, //
    },
    stats,
    sys::PeekWords,
    tables::Ranges, //
};

/// What a walk has found.
#[derive(PartialEq, Eq)]
struct WalkOutcome {
    /// The number of unused words of the buffer.
    unused: usize,
    /// A hash of the return addresses.
    hash: u64,
    sp: u64,
    fp: u64,
    is_outermost: bool,
    is_outside: bool,
}

impl WalkOutcome {
    fn of(ended: &FastPathState, buffer: &[u64], unused: usize, words: &PeekWords<'_>) -> Self {
        let found = buffer.len().wrapping_sub(unused);
        let hash = |hash: u64, ra: &u64| hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ra;
        Self {
            unused,
            hash: buffer.iter().take(found).fold(0, hash),
            sp: ended.sp,
            fp: match ended.fp_at {
                0 => ended.fp,
                at => words.word(at),
            },
            is_outermost: ended.is_outermost(),
            is_outside: ended.is_outside,
        }
    }
}

/// The walk [`fast_path::walk`] with these arguments, and a comparison with a walk that uses no
/// kept rules. Any context in which `words` and `ranges` may be used.
#[inline(never)]
pub(crate) fn walk(
    state: &mut FastPathState,
    ra: u64,
    buffer: &mut [u64],
    ranges: &mut Ranges<'_>,
    words: &PeekWords<'_>,
) -> usize {
    let begun = *state;
    // Another thread may change the stack between two walks, but hardly each time.
    for _ in 0..3 {
        let mut whole = begun;
        let unused = ranges
            .without_kept_rules(|ranges| fast_path::walk(&mut whole, ra, buffer, ranges, words));
        let expected = WalkOutcome::of(&whole, buffer, unused, words);
        *state = begun;
        let unused = fast_path::walk(state, ra, buffer, ranges, words);
        if WalkOutcome::of(state, buffer, unused, words) == expected {
            stats::compared(true);
            return unused;
        }
    }
    stats::compared(false);
    *state = begun;
    buffer.len()
}
