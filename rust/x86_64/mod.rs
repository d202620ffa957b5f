// SPDX-License-Identifier: GPL-2.0-only

//! The module's Rust code for x86-64.

pub(crate) mod asm;
pub(crate) mod uprobes;

use crate::sframe::{
    unwind::WordReader,
    x86_64, //
};

/// Whether the code at the PC and directly before it is surely no part of a signal trampoline, and
/// does not follow a system call that starts a thread.
#[inline(always)]
pub(crate) fn is_ordinary(pc: u64, words: &impl WordReader) -> bool {
    let open = words.open();
    let before = open.word(pc.wrapping_sub(x86_64::CLONE_BEHIND));
    let at = open.word(pc);
    drop(open);
    before != 0 && at != 0 && x86_64::is_ordinary(before, at)
}
