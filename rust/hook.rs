// SPDX-License-Identifier: GPL-2.0-only

//! When a stack is walked here and when it is left to the kernel.
//!
//! `c/hook.c` has already left to the kernel what cannot be ours (kernel threads, 32-bit tasks, guests)
//! and what is switched off.

use crate::{
    mapping,
    user_memory::UserMemory,
    walk::{
        self,
        Begin, //
    }, //
};

/// Whether the current task's stack is walked here, where that is not known yet. NMI, IRQ or task,
/// preemption off.
pub(crate) fn wanted() -> bool {
    mapping::has_rows()
}

/// Walks for perf or BPF, now, and returns how many addresses there are. NMI, IRQ or task; never
/// sleeps.
#[inline(always)]
pub(crate) fn immediate(begin: Begin<'_>) -> usize {
    let memory = UserMemory::atomic(begin.frame.sp);
    walk::walk(begin, &memory)
}

/// Walks on the way back to user space: the same. Task; may sleep.
#[inline(always)]
pub(crate) fn deferred(begin: Begin<'_>) -> usize {
    let memory = UserMemory::sleeping(begin.frame.sp);
    walk::walk(begin, &memory)
}
