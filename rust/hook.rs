// SPDX-License-Identifier: GPL-2.0-only

//! The two entries of a walk: immediate and deferred.
//!
//! `c/hook.c` has already left these tasks to the kernel: tasks that cannot be walked (kernel threads, 32-bit
//! tasks, guests), tasks without rows, and all tasks while the module is switched off.

use crate::{
    user_memory::UserMemory,
    walk::{
        self,
        Begin, //
    }, //
};

/// Walks at a sample of perf or BPF, and returns the number of addresses that the walk stored. NMI, IRQ or
/// task; never sleeps.
#[inline(always)]
pub(crate) fn immediate(begin: Begin<'_>) -> usize {
    let memory = UserMemory::atomic(begin.frame.sp, begin.spent);
    walk::walk(begin, &memory)
}

/// Walks when the task is about to return to user space, and returns the number of addresses that the walk
/// stored. Task; may sleep.
#[inline(always)]
pub(crate) fn deferred(begin: Begin<'_>) -> usize {
    let memory = UserMemory::sleeping(begin.frame.sp);
    walk::walk(begin, &memory)
}
