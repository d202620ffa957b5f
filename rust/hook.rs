// SPDX-License-Identifier: GPL-2.0-only

//! When a stack is walked here and when it is left to the kernel.
//!
//! `helpers.c` has already left alone what cannot be ours (kernel threads, 32-bit tasks, guests)
//! and what is switched off.

use crate::{
    mapping,
    stats::{
        self,
        Context, //
    },
    sys::{
        self,
        DeferredCall,
        ImmediateCall,
        Level, //
    },
    user_memory::UserMemory,
    walk, //
};

/// Whether the current task's stack is walked here. NMI, IRQ or task, preemption off.
pub(crate) fn wanted() -> bool {
    let wanted = mapping::has_rows();
    if !wanted {
        stats::left_alone();
    }
    wanted
}

/// Walks for perf or BPF, now. NMI, IRQ or task; never sleeps.
pub(crate) fn immediate(mut call: ImmediateCall<'_>) {
    let context = match sys::level() {
        Level::Task => Context::Task,
        Level::Irq => Context::Irq,
        Level::Nmi => Context::Nmi,
    };
    let registers = call.registers();
    walk::walk(context, &registers, &UserMemory::atomic(), &mut call);
}

/// Walks on the way back to user space. Task; may sleep.
pub(crate) fn deferred(mut call: DeferredCall<'_>) {
    let registers = call.registers();
    walk::walk(
        Context::Deferred,
        &registers,
        &UserMemory::sleeping(),
        &mut call,
    );
}
