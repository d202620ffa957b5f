// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step from code without rows that keeps a frame pointer, at a place whose function is not
//! known.
//!
//! A frame record has the caller's frame pointer and the return address, but the caller's stack
//! pointer may be at any distance from the record. A row of the caller may count from the stack
//! pointer. So a step needs the function's beginning ([`fallback`](super::fallback)), and there is
//! none here.

use crate::sframe::{
    format::bytes::Source,
    unwind::step::{
        Frame,
        Memory,
        Step,
        WordReader, //
    }, //
};
use core::ops::Range;

/// Takes no step: `None`.
pub fn step<M: Memory + Source + ?Sized>(
    _frame: &Frame,
    _innermost: bool,
    _is_examined: bool,
    _stack_end: u64,
    _memory: &M,
) -> Option<Step> {
    None
}

/// Finds no frame: 0.
#[inline]
pub fn run_fast<S: Source + ?Sized, W: WordReader>(
    _code: (Range<u64>, u64),
    _has_other_rule: impl Fn(u64) -> bool,
    _frame: &mut Frame,
    _memory: &S,
    _words: &W,
    _buffer: &mut [u64],
) -> usize {
    0
}
