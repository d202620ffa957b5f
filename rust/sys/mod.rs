// SPDX-License-Identifier: GPL-2.0-only

//! The safe face of the C files: what the `kernel` crate does not offer.
//!
//! The lowest modules: they call C and import nothing of the kernel module but the core's types. Everything
//! here works on the current task.

pub(crate) mod bindings;
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
    counters::*,
    file::*,
    mapping::*,
    memory::*,
    registers::*, //
};

pub(crate) use bindings::{
    sframe_unwind_add as AddRequest,
    sframe_unwind_counter as Counter,
    sframe_unwind_table as TableInfo,
    sfu_table_state as TableState,
    SFRAME_UNWIND_NR_ADD as COMMAND_ADD,
    SFRAME_UNWIND_NR_LIST as COMMAND_LIST,
    SFRAME_UNWIND_NR_REMOVE as COMMAND_REMOVE,
    SFRAME_UNWIND_NR_STATS as COMMAND_STATS,
    SFRAME_UNWIND_VDSO as FLAG_VDSO,
    SFU_IN_EXEC,
    SFU_LEFT_TO_KERNEL, //
};

/// Errors that the `kernel` crate has names for since 7.3.
pub(crate) enum Errno {
    /// What was given contradicts itself.
    Malformed,
    /// The file is shorter than it says.
    NoData,
    /// What was given is of a kind that is not known.
    NotSupported,
    /// The file is another one by now.
    Stale,
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        let number = match errno {
            Errno::Malformed => kernel::bindings::EBADMSG,
            Errno::NoData => kernel::bindings::ENODATA,
            Errno::NotSupported => kernel::bindings::EOPNOTSUPP,
            Errno::Stale => kernel::bindings::ESTALE,
        };
        Self::from_errno((number as c_int).wrapping_neg())
    }
}

/// Where a walk runs, as far as it matters for what it may do.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Context {
    /// In a task that may hold any lock: tracepoints, kprobes, BPF.
    Task,
    /// In an interrupt.
    Irq,
    /// In a non-maskable interrupt.
    Nmi,
    /// In the task on its way back to user space, where it may sleep.
    Deferred,
}

/// Hooks that are in. Dropping it takes them out and waits until none is running.
pub(crate) struct Hooks(());

impl Hooks {
    /// Puts the chosen hooks in. Task; may sleep. The reason of a failure is in the kernel log.
    pub(crate) fn install(immediate: bool, deferred: bool) -> Result<Self> {
        // SAFETY: `entry.rs` defines the functions that the hook calls, and they stay while the module does:
        // `drop` waits until none of them runs.
        to_result(unsafe { bindings::sfu_hook_install(immediate, deferred) })?;
        Ok(Self(()))
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        // SAFETY: `install` is the only way to `Hooks`, so they were installed once.
        unsafe { bindings::sfu_hook_remove() };
    }
}

// SAFETY: The structure has numbers alone, without padding between them (the sizes are asserted in
// `c/device.c`), and all values of them are allowed.
unsafe impl FromBytes for AddRequest {}
// SAFETY: The structure has numbers alone, without padding, and all values of them are allowed.
unsafe impl FromBytes for TableInfo {}
// SAFETY: The structure has numbers alone, without padding, so all its bytes are initialised.
unsafe impl AsBytes for TableInfo {}
// SAFETY: The structure has numbers alone, without padding, and all values of them are allowed.
unsafe impl FromBytes for Counter {}
// SAFETY: The structure has numbers alone, without padding, so all its bytes are initialised.
unsafe impl AsBytes for Counter {}

/// The worker that faults in pages which an interrupt missed, and looks at files that were seen. To
/// be dropped after [`Hooks`], and before [`Tables`].
pub(crate) struct Worker(());

impl Worker {
    /// Starts it. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: `init` calls it once, before it installs the hooks, which alone queue.
        to_result(unsafe { bindings::sfu_worker_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: `start` is the only way to a `Worker`, and `Hooks`, which alone queue, are dropped before.
        unsafe { bindings::sfu_worker_stop() };
    }
}

/// All tables. Dropping it frees them. To be dropped after [`Hooks`] and [`Worker`].
pub(crate) struct Tables(());

impl Tables {
    /// There are none yet. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: `init` calls it once, before the worker and the device, which alone publish.
        to_result(unsafe { bindings::sfu_tables_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        // SAFETY: `start` is the only way to `Tables`, and hooks, worker and device, which find and publish,
        // are dropped before.
        unsafe { bindings::sfu_tables_stop() };
    }
}

/// `/dev/sframe_unwind`. To be dropped before all else.
pub(crate) struct Device(());

impl Device {
    /// From now on it can be opened. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: `init` calls it once, last.
        to_result(unsafe { bindings::sfu_device_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: `start` is the only way to a `Device`. An open file holds the module, so none is open.
        unsafe { bindings::sfu_device_stop() };
    }
}
