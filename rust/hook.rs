// SPDX-License-Identifier: GPL-2.0-only

//! The two entries of a walk: immediate and deferred.
//!
//! `c/hook.c` has already left these tasks to the kernel: tasks that cannot be walked (kernel threads, 32-bit
//! tasks, guests), tasks without rows, and all tasks while the module is switched off.

use crate::{
    sframe::fast_path::FastPathState,
    stats::Walked,
    sys::WalkContext,
    user_memory::UserMemory,
    walk::{
        self,
        Begin, //
    }, //
};

/// Walks on where [`walk::walk_first`] has ended, at `first`, with `stored` addresses. A deferred walk runs in a task
/// that is about to return to user space, and may sleep. Any other walk is for a sample of perf or BPF, in an NMI, an
/// IRQ or a task.
///
/// # Safety
///
/// The limit of `begin` is as for [`Peek::of_walk`](crate::sys::Peek::of_walk).
#[inline(always)]
pub(crate) unsafe fn walk(begin: Begin<'_>, first: &FastPathState, stored: usize) -> Walked {
    let may_sleep = begin.context == WalkContext::Deferred;
    // SAFETY: By the contract of this function.
    let memory = unsafe { UserMemory::of_walk(begin.limit, begin.spent, may_sleep) };
    walk::walk(begin, first, stored, &memory)
}
