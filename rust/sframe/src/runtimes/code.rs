// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Reads of code and of a runtime's structures, by the walk of the task that has them.

use crate::sframe::format::bytes::Source;

/// The work of looking for instructions in eight bytes of code, in instructions.
const SEARCH: u32 = 200;

/// The eight bytes at `base + offset`. A field that is shorter is in the low bytes.
#[inline(never)]
pub(super) fn field<S: Source + ?Sized>(base: u64, offset: u8, memory: &S) -> Option<u64> {
    let bytes = memory.read(base.wrapping_add(offset.into())).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// Reads code from `address` on, eight bytes at a time, and takes the work of looking for
/// instructions in it. The length of `code` is a multiple of eight.
// Inlined: the callers have the deepest stacks of a step in a code heap.
#[inline(always)]
pub(super) fn read_code<S: Source + ?Sized>(
    address: u64,
    code: &mut [u8],
    memory: &S,
) -> Option<()> {
    let mut at = address;
    for part in code.chunks_exact_mut(8) {
        memory.spend(SEARCH).ok()?;
        let word: [u8; 8] = memory.read(at).ok()?;
        for (to, from) in part.iter_mut().zip(word) {
            *to = from;
        }
        at = at.wrapping_add(8);
    }
    Some(())
}

/// The offset of `pattern` in `code`. `pattern` has one to eight bytes, the first of which is not
/// 0. Each byte of code takes the same few instructions, whatever it is.
#[inline(never)]
pub(super) fn find(code: &[u8], pattern: &[u8]) -> Option<usize> {
    let push = |word: u64, byte: &u8| word.wrapping_shr(8) | u64::from(*byte).wrapping_shl(56);
    let unused = (pattern.len() as u32).wrapping_mul(8).wrapping_neg();
    let wanted = pattern.iter().fold(0, push).wrapping_shr(unused);
    let mut word = 0;
    let last = code.iter().position(|byte| {
        word = push(word, byte);
        word.wrapping_shr(unused) == wanted
    })?;
    last.wrapping_add(1).checked_sub(pattern.len())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sframe::{
        format::bytes::Fault,
        unwind::step::Memory, //
    };
    use std::vec::Vec;

    #[test]
    fn patterns_are_found() {
        let code = [0, 0x55, 0x48, 0x48, 0x89, 0xe5, 0xc3, 1, 2, 3];
        assert_eq!(find(&code, &[0x48, 0x89, 0xe5]), Some(3));
        assert_eq!(find(&code, &[0xc3]), Some(6));
        assert_eq!(
            find(&code, &[0x48, 0x48, 0x89, 0xe5, 0xc3, 1, 2, 3]),
            Some(2)
        );
        assert_eq!(find(&code, &[0x55]), Some(1));
        assert_eq!(find(&code, &[0x48, 0x89, 0xe4]), None);
        assert_eq!(find(&code, &[3, 0]), None);
        assert_eq!(find(&[], &[3]), None);
    }

    /// Parts of memory, by start.
    #[derive(Clone)]
    pub(in crate::sframe::runtimes) struct Memories(
        pub(in crate::sframe::runtimes) Vec<(u64, Vec<u8>)>,
    );

    impl Memories {
        pub(in crate::sframe::runtimes) fn write(&mut self, address: u64, bytes: &[u8]) {
            for (start, part) in &mut self.0 {
                if let Some(at) = (address.checked_sub(*start)).filter(|at| *at < part.len() as u64)
                {
                    part[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            }
        }

        pub(in crate::sframe::runtimes) fn word(&mut self, address: u64, word: u64) {
            self.words(address, &[word]);
        }

        pub(in crate::sframe::runtimes) fn words(&mut self, address: u64, words: &[u64]) {
            for (address, word) in (address..).step_by(8).zip(words) {
                self.write(address, &word.to_le_bytes());
            }
        }
    }

    impl Source for Memories {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            self.0
                .iter()
                .filter_map(|(start, part)| part.get(offset.checked_sub(*start)? as usize..))
                .find_map(|rest| rest.first_chunk().copied())
                .ok_or(Fault)
        }
    }

    impl Memory for Memories {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            self.read(address).map(u64::from_le_bytes)
        }
    }
}
