// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The kernel's own walk of a user stack, by frame pointers: `perf_callchain_user()` of x86.

use sframe::unwind::Memory;
use walk::{
    registers::{
        RegisterFile,
        RBP, //
    },
    walker::MOST_FRAMES, //
};

/// The frames of the walk without the innermost frame: each PC and stack pointer.
pub fn callers<M: Memory + ?Sized>(registers: &RegisterFile, memory: &M) -> Vec<(u64, u64)> {
    let mut frames = Vec::new();
    let mut fp = registers.get(RBP).unwrap_or(0);
    while frames.len() + 1 < MOST_FRAMES {
        let (Ok(next), Ok(pc)) = (memory.read_word(fp), memory.read_word(fp.wrapping_add(8)))
        else {
            break;
        };
        frames.push((pc, fp.wrapping_add(16)));
        fp = next;
    }
    frames
}
