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

/// Walks, and returns the number of addresses that the walk stored. `may_sleep`: the walk is deferred, and runs in a task
/// that is about to return to user space. Else the walk is for a sample of perf or BPF, in an NMI, an IRQ or a task.
#[inline(always)]
pub(crate) fn walk(begin: Begin<'_>, may_sleep: bool) -> usize {
    let sp = begin.frame.sp;
    let memory = if may_sleep {
        UserMemory::sleeping(sp)
    } else {
        UserMemory::atomic(sp, begin.spent)
    };
    walk::walk(begin, &memory)
}
