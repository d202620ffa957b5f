// SPDX-License-Identifier: GPL-2.0-only

//! The entry of a walk, immediate or deferred.
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

/// Walks, and returns the number of addresses that the walk stored. If `may_sleep` is true, the context is a task that
/// is about to return to user space. Otherwise the walk is for a sample of perf or BPF: NMI, IRQ or task; never sleeps.
#[inline(always)]
pub(crate) fn walk(begin: Begin<'_>, may_sleep: bool) -> usize {
    let memory = match may_sleep {
        true => UserMemory::sleeping(begin.frame.sp),
        false => UserMemory::atomic(begin.frame.sp, begin.spent),
    };
    walk::walk(begin, &memory)
}
