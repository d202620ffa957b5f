// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Patterns: the bytes of known instructions, and what they show, as data.

use core::hint;

/// The bytes of a word in which patterns are looked for.
const WORD: usize = 16;

/// Any byte, in the bytes of a pattern.
pub(in crate::sframe) const ANY: u16 = 0x100;

/// Bytes of code, and what they show.
#[derive(Clone, Copy, Debug)]
pub(in crate::sframe) struct Pattern<T> {
    /// The bits that count, in a word of code. The first byte is the least significant byte.
    mask: u128,
    /// The values of these bits.
    value: u128,
    /// What the bytes show.
    then: T,
}

impl<T: Copy> Pattern<T> {
    /// The pattern of bytes that begin `at` bytes after the start of the word.
    pub(in crate::sframe) const fn new<const N: usize>(
        at: usize,
        bytes: [u16; N],
        then: T,
    ) -> Pattern<T> {
        assert!(at + N <= WORD);
        let (mut mask, mut value) = (0, 0);
        let mut number = N;
        while number > 0 {
            number -= 1;
            let is_known = bytes[number] != ANY;
            mask = (mask << 8) | if is_known { 0xff } else { 0 };
            let byte = if is_known { bytes[number] as u128 } else { 0 };
            value = (value << 8) | byte;
        }
        Pattern {
            mask: mask << (8 * at),
            value: value << (8 * at),
            then,
        }
    }
}

/// What the first of the patterns shows that a word of code has. The word's first byte is the least
/// significant byte.
#[inline(never)]
pub(in crate::sframe) fn shown<T: Copy>(patterns: &[Pattern<T>], word: u128) -> Option<T> {
    // If the compiler knew the number of patterns, it would repeat the comparison for each: 542
    // bytes for twelve, not 140.
    let mut patterns = hint::black_box(patterns).iter();
    let found = patterns.find(|pattern| word & pattern.mask == pattern.value)?;
    Some(found.then)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pattern_counts() {
        const PATTERNS: [Pattern<u8>; 4] = [
            Pattern::new(1, [1, ANY, 3], 1),
            Pattern::new(12, [0, 0, 7, 0], 2),
            Pattern::new(0, [0x5f], 3),
            Pattern::new(0, [0x5f, 0x90], 4),
        ];
        let found = |bytes: &[(usize, u8)]| {
            let mut code = [0x90; WORD];
            bytes.iter().for_each(|(at, byte)| code[*at] = *byte);
            shown(&PATTERNS, u128::from_le_bytes(code))
        };
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[(1, 1), (3, 3)]), Some(1));
        assert_eq!(found(&[(0, 0x5f), (1, 1), (3, 3)]), Some(1));
        assert_eq!(found(&[(1, 1), (3, 4)]), None);
        assert_eq!(found(&[(12, 0), (13, 0), (14, 7), (15, 0)]), Some(2));
        assert_eq!(found(&[(12, 0), (13, 0), (14, 7)]), None);
        assert_eq!(found(&[(0, 0x5f)]), Some(3));
        assert_eq!(found(&[(0, 0x60)]), None);
    }
}
