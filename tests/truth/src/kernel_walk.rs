// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The kernel's own walk of a user stack, by frame pointers: `perf_callchain_user()` of x86.

use sframe::unwind::Memory;
use walk::registers::{
    RegisterFile,
    RBP, //
};

/// The frames of the walk without the innermost frame: each PC and stack pointer. With the
/// innermost frame they are at most `most`.
pub fn callers<M: Memory + ?Sized>(
    registers: &RegisterFile,
    memory: &M,
    most: usize,
) -> Vec<(u64, u64)> {
    let mut frames = Vec::new();
    let mut fp = registers.get(RBP).unwrap_or(0);
    while frames.len() + 1 < most {
        let (Ok(next), Ok(pc)) = (memory.read_word(fp), memory.read_word(fp.wrapping_add(8)))
        else {
            break;
        };
        frames.push((pc, fp.wrapping_add(16)));
        fp = next;
    }
    frames
}
