// SPDX-License-Identifier: GPL-2.0-only

//! The safe interface to the C files, for functions that the `kernel` crate does not offer.
//!
//! These are the lowest modules: they call C, and import nothing of the kernel module but the
//! core's types. All functions work on the current task.

pub(crate) mod bindings;
mod build;
mod counters;
mod file;
mod mapping;
mod memory;
mod registers;
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) mod test;

use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*,
    transmute::{
        AsBytes,
        FromBytes, //
    }, //
};

pub(crate) use self::{
    build::*,
    counters::*,
    file::*,
    mapping::*,
    memory::*,
    registers::*, //
};

pub(crate) use crate::uapi::{
    sframe_unwind_add as AddCommand,
    sframe_unwind_counter as Counter,
    sframe_unwind_region as RegionDescription,
    sframe_unwind_table as TableInfo,
    SFRAME_UNWIND_KEEPS_FP as FLAG_KEEPS_FP,
    SFRAME_UNWIND_NR_ADD as COMMAND_ADD,
    SFRAME_UNWIND_NR_LIST as COMMAND_LIST,
    SFRAME_UNWIND_NR_REGION as COMMAND_REGION,
    SFRAME_UNWIND_NR_REMOVE as COMMAND_REMOVE,
    SFRAME_UNWIND_NR_STATS as COMMAND_STATS,
    SFRAME_UNWIND_REGION_NONE as REGION_NONE,
    SFRAME_UNWIND_REGION_ROWS as REGION_ROWS,
    SFRAME_UNWIND_VDSO as FLAG_VDSO,
    SFRAME_UNWIND_VERSION as INTERFACE_VERSION, //
};
pub(crate) use bindings::{
    sfu_table_state as TableState,
    SFU_BEFORE_ANSWER,
    SFU_IN_ENTRY,
    SFU_IN_EXEC,
    SFU_LEFT_TO_KERNEL,
    SFU_LOCKED,
    SFU_NO_ROWS,
    SFU_REGIONS_FULL,
    SFU_ROWS,
    SFU_UNFINISHED,
    SFU_UNSURE,
    SFU_VISIT, //
};

/// Errors for which the `kernel` crate has names since Linux 7.3.
pub(crate) enum Errno {
    /// The input contradicts itself.
    Malformed,
    /// The file is shorter than its headers say.
    NoData,
    /// The input is of an unknown kind.
    NotSupported,
    /// The program was written for another version of the interface.
    OtherVersion,
    /// The file has changed, or is another file now.
    Stale,
}

impl From<Errno> for Error {
    #[inline]
    fn from(errno: Errno) -> Self {
        let number = match errno {
            Errno::Malformed => kernel::bindings::EBADMSG,
            Errno::NoData => kernel::bindings::ENODATA,
            Errno::NotSupported => kernel::bindings::EOPNOTSUPP,
            Errno::OtherVersion => kernel::bindings::EPROTONOSUPPORT,
            Errno::Stale => kernel::bindings::ESTALE,
        };
        Self::from_errno((number as c_int).wrapping_neg())
    }
}

/// The context of a walk, which determines whether the walk may sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WalkContext {
    /// In a task that may hold any lock: tracepoints, kprobes, BPF.
    Task,
    /// In an interrupt.
    Irq,
    /// In a non-maskable interrupt.
    Nmi,
    /// In the task on its way back to user space, where it may sleep.
    Deferred,
}

/// The installed hooks. Dropping this removes the hooks and waits until none is running.
pub(crate) struct Hooks(());

impl Hooks {
    /// Installs the hooks that the module's parameters name. Task; may sleep. The kernel log has
    /// the reason for a failure.
    pub(crate) fn install() -> Result<Self> {
        // SAFETY: `entry.rs` defines the functions that the hooks call. They exist as long as the
        // module is loaded, and `drop` waits until none of them runs.
        to_result(unsafe { bindings::sfu_hook_install() })?;
        Ok(Self(()))
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        // SAFETY: `Hooks` can be made only by `install`, so the hooks were installed, once.
        unsafe { bindings::sfu_hook_remove() };
    }
}

/// The end of a walk that has no limit of time.
pub(crate) const NO_END: u32 = bindings::SFU_NO_END;

/// The time of this CPU's clock at which a walk that begins now has to end, in units of 1,024 ns,
/// modulo 2³². [`NO_END`] if the parameter `walk_us` sets no limit; never 0. IRQ and NMI.
pub(crate) fn walk_end() -> u32 {
    // SAFETY: `sfu_walk_end` reads a number and the clock, which it may in each context.
    unsafe { bindings::sfu_walk_end() }
}

/// Whether the time `end` of this CPU's clock is over. IRQ and NMI.
pub(crate) fn is_past(end: u32) -> bool {
    // SAFETY: `sfu_is_past` reads the clock, which it may in each context; it takes any number.
    unsafe { bindings::sfu_is_past(end) }
}

// SAFETY: The structure has only integer fields, without padding between them (`c/device.c` asserts
// the sizes), and all values are valid.
unsafe impl FromBytes for AddCommand {}
// SAFETY: The structure has only integer fields, without padding, and all values are valid.
unsafe impl FromBytes for TableInfo {}
// SAFETY: The structure has only integer fields, without padding, so all its bytes are initialised.
unsafe impl AsBytes for TableInfo {}
// SAFETY: The structure has only integer fields, without padding, and all values are valid.
unsafe impl FromBytes for RegionDescription {}
// SAFETY: The structure has only integer fields, without padding, and all values are valid.
unsafe impl FromBytes for Counter {}
// SAFETY: The structure has only integer fields, without padding, so all its bytes are initialised.
unsafe impl AsBytes for Counter {}

/// The worker, which faults in pages that a walk missed, and examines seen files. It must be
/// dropped after [`Hooks`] and before [`Tables`].
pub(crate) struct Worker(());

impl Worker {
    /// Starts the worker. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: The module's `init` calls this once, before it installs the hooks. Only hooks
        // queue work.
        to_result(unsafe { bindings::sfu_worker_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: A `Worker` can be made only by `start`, so the worker was started. `Hooks`, which
        // alone queue work, are dropped before: see the order of fields in `main.rs`.
        unsafe { bindings::sfu_worker_stop() };
    }
}

/// All tables and regions. Dropping this frees them. It must be dropped after [`Hooks`], [`Worker`]
/// and [`RegisteredDevice`].
pub(crate) struct Tables(());

impl Tables {
    /// Starts without tables. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: The module's `init` calls this once, before the worker and the device, which
        // alone publish tables.
        to_result(unsafe { bindings::sfu_tables_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        // SAFETY: `Tables` can be made only by `start`, so they were started. Hooks, worker and
        // device, which alone find and publish tables and regions, are dropped before: see the
        // order of fields in `main.rs`.
        unsafe {
            bindings::sfu_regions_stop();
            bindings::sfu_tables_stop();
        }
    }
}

/// `/dev/sframe_unwind`. It must be dropped before all others.
pub(crate) struct RegisteredDevice(());

impl RegisteredDevice {
    /// Registers the device; from then on it can be opened. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: The module's `init` calls this once, after everything that the device uses has
        // started.
        to_result(unsafe { bindings::sfu_device_start() })?;
        Ok(Self(()))
    }
}

impl Drop for RegisteredDevice {
    fn drop(&mut self) {
        // SAFETY: A `RegisteredDevice` can be made only by `start`, so the device was registered.
        // No file of the device is open: an open file holds a reference to the module, which then
        // cannot be unloaded.
        unsafe { bindings::sfu_device_stop() };
    }
}
