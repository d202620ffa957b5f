// SPDX-License-Identifier: GPL-2.0-only

//! Mappings of the current task.
//!
//! C side: `rust/c/mappings.c`.

use super::bindings;
use kernel::{
    error::to_result,
    prelude::*, //
};

pub(crate) use bindings::sfu_mapping as Mapping;

/// Finds what is mapped at a run-time address. Any context; takes no lock.
///
/// # Errors
///
/// `ENOENT` if nothing is, `EAGAIN` if the mappings were changing.
pub(crate) fn find_mapping(address: u64, mapping: &mut Mapping) -> Result {
    // SAFETY: `mapping` is a valid `struct sfu_mapping` for the whole call.
    to_result(unsafe { bindings::sfu_find_mapping(address, mapping) })
}

/// Finds the next mapping that is executable, of a file, and ends above the run-time address
/// `address`; looks at no more than `limit`. Any context; takes no lock.
///
/// # Errors
///
/// `ENOENT` if there is none, `EAGAIN` if it is not known.
pub(crate) fn next_executable(address: u64, limit: u32) -> Result<Mapping> {
    let mut mapping = Mapping::default();
    // SAFETY: `mapping` is a local variable. Walks and decisions run for tasks that have a mm: the hook's
    // handler has looked.
    to_result(unsafe { bindings::sfu_next_executable(address, limit, &mut mapping) })?;
    Ok(mapping)
}

/// What tells two states of the current task's mappings apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappingsVersion {
    id: u64,
    sequence: u64,
}

impl MappingsVersion {
    /// The state now. Any context.
    pub(crate) fn now() -> Self {
        let (mut id, mut sequence) = (0, 0);
        // SAFETY: `id` and `sequence` are local variables. Walks and decisions run for tasks that have a mm:
        // the hook's handler has looked.
        unsafe { bindings::sfu_mappings_version(&mut id, &mut sequence) };
        Self { id, sequence }
    }

    /// Whether the mappings are being changed now.
    pub(crate) const fn is_moving(self) -> bool {
        self.sequence & 1 != 0
    }

    /// Keeps a decision for this state, on this CPU. Preemption off.
    pub(crate) fn keep_decision(self, decision: bool) {
        // SAFETY: The caller has preemption off, as the handler of the hook has.
        unsafe { bindings::sfu_keep_decision(self.id, self.sequence, decision) };
    }
}

/// The run-time address of the vDSO of the current task, if it has one.
pub(crate) fn vdso() -> Option<u64> {
    // SAFETY: The current task has a mm, as it calls from user space.
    match unsafe { bindings::sfu_vdso() } {
        0 => None,
        address => Some(address),
    }
}
