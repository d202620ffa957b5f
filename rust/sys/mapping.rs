// SPDX-License-Identifier: GPL-2.0-only

//! Mappings of the current task.
//!
//! C side: `rust/c/mappings.c`.

use super::{
    bindings,
    RegionDescription, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

pub(crate) use bindings::{
    sfu_mapping as Mapping,
    sfu_scan as Scan, //
};

impl Mapping {
    /// The value for C to fill in. Not inlined, because it writes a dozen words in several places.
    #[inline(never)]
    pub(crate) fn none() -> Self {
        Self::default()
    }
}

/// Finds the mapping at a run-time address. Any context. See `sfu_find_mapping` in `c/helpers.h`.
pub(crate) fn find_mapping(address: u64, mapping: &mut Mapping) -> Result {
    // SAFETY: `mapping` is a valid `struct sfu_mapping` for the whole call.
    to_result(unsafe { bindings::sfu_find_mapping(address, mapping) })
}

/// Finds the next file that is mapped below a mapping. Any context. See `sfu_find_lower_file` in
/// `c/helpers.h`.
pub(crate) fn find_lower_file(mapping: &mut Mapping) -> Result {
    // SAFETY: `mapping` is a valid `struct sfu_mapping` for the whole call. The current task has a
    // mm, as one of its mappings was found.
    to_result(unsafe { bindings::sfu_find_lower_file(mapping) })
}

/// Counts a walk that was cut in the file of a table. Any context.
pub(crate) fn count_cut(table: u64) {
    // SAFETY: The function takes any number.
    unsafe { bindings::sfu_count_cut(table) }
}

/// What is known of code beside its region. See `sfu_find_region` in `c/helpers.h`.
#[derive(Clone, Copy)]
pub(crate) struct RegionAnswer(kernel::ffi::c_int);

impl RegionAnswer {
    /// Whether user space was asked for this code not long ago.
    pub(crate) fn is_asked(self) -> bool {
        self.0 & bindings::SFU_CODE_ASKED as kernel::ffi::c_int != 0
    }

    /// Whether a walk may take a frame pointer where there is no region.
    pub(crate) fn is_plain(self) -> bool {
        self.0 & bindings::SFU_CODE_PLAIN as kernel::ffi::c_int != 0
    }
}

/// Finds the region that contains a run-time address. Any context. See `sfu_find_region` in
/// `c/helpers.h`.
pub(crate) fn find_region(
    address: u64,
    mapping: &mut Mapping,
    region: &mut RegionDescription,
) -> RegionAnswer {
    // SAFETY: `mapping` and `region` are valid for the whole call. The current task has a mm: the
    // hook's handler, which alone starts walks, has checked it.
    RegionAnswer(unsafe { bindings::sfu_find_region(address, mapping, region) })
}

/// Adds a region. Task; may sleep. See `sfu_region_add` in `c/helpers.h`.
pub(crate) fn add_region(region: &mut RegionDescription, own_only: bool) -> Result {
    // SAFETY: `region` is valid for the whole call.
    to_result(unsafe { bindings::sfu_region_add(region, own_only) })
}

/// Finds the next mapping of a scan. Any context. See `sfu_scan_next` in `c/helpers.h`.
pub(crate) fn next_of_scan(scan: &mut Scan) -> Result<Mapping> {
    let mut mapping = Mapping::none();
    // SAFETY: `scan` and `mapping` are valid for the whole call. The current task has a mm: the
    // hook's handler or the worker, which alone start scans, has checked it.
    to_result(unsafe { bindings::sfu_scan_next(scan, &mut mapping) })?;
    Ok(mapping)
}

/// The run-time address of the current task's vDSO, if the task has one. Task; may sleep. See
/// `sfu_vdso` in `c/helpers.h`.
pub(crate) fn vdso() -> Option<u64> {
    // SAFETY: The current task has a mm, because it is in a system call from user space.
    match unsafe { bindings::sfu_vdso() } {
        0 => None,
        address => Some(address),
    }
}
