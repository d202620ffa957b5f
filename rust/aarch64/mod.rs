// SPDX-License-Identifier: GPL-2.0-only

//! The module's Rust code for AArch64.

pub(crate) mod asm;
pub(crate) mod uprobes;

use crate::sframe::{
    aarch64::{
        self,
        SIZE, //
    },
    unwind::WordReader, //
};

/// Whether the code at the PC and directly before it is surely no part of a signal trampoline, and
/// does not follow a system call that starts a thread.
#[inline(always)]
pub(crate) fn is_ordinary(pc: u64, words: &impl WordReader) -> bool {
    let open = words.open();
    // Two instructions: the one before the PC, and the one at the PC.
    let both = open.word(pc.wrapping_sub(SIZE));
    drop(open);
    both != 0 && aarch64::is_ordinary(both as u32, (both >> 32) as u32)
}
