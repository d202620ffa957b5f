// SPDX-License-Identifier: GPL-2.0-only

//! Registers and uprobes of the current task.
//!
//! C side: `rust/c/uprobes.c`, and `machine.c` of the architecture.

use super::bindings;
use crate::sframe::unwind;
use core::marker::PhantomData;
use kernel::ffi::c_void;

/// All registers of the walked user task.
///
/// # Invariants
///
/// `all` is null, or points to a `struct pt_regs` that stays for `'a`. The caller of
/// [`PtRegs::new`] upholds this.
#[derive(Clone, Copy)]
pub(crate) struct PtRegs<'a> {
    /// A `struct pt_regs`, or null if none is known.
    all: *const c_void,
    _call: PhantomData<&'a ()>,
}

impl PtRegs<'_> {
    /// The registers of the hooked call.
    ///
    /// # Safety
    ///
    /// `all` is null, or points to a `struct pt_regs` that stays for the lifetime of the result.
    #[inline(always)]
    pub(crate) const unsafe fn new(all: *const c_void) -> Self {
        Self {
            all,
            _call: PhantomData,
        }
    }

    /// No register is known.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) const NONE: Self = Self {
        all: core::ptr::null(),
        _call: PhantomData,
    };

    /// Whether the task is in the system call `rt_sigreturn`. Any context. See `sfu_in_sigreturn`
    /// in `c/helpers.h`.
    #[inline]
    pub(crate) fn in_sigreturn(&self) -> bool {
        // SAFETY: `all` is not null, so by the invariant of `Self` it points to a `struct pt_regs`.
        !self.all.is_null() && unsafe { bindings::sfu_in_sigreturn(self.all) }
    }
}

impl unwind::RegisterSource for PtRegs<'_> {
    #[inline]
    fn register(&self, number: u8) -> Option<u64> {
        if self.all.is_null() {
            return None;
        }
        let mut value = 0;
        // SAFETY: `all` is not null, so by the invariant of `Self` it points to a `struct pt_regs`;
        // `value` is a local variable.
        unsafe { bindings::sfu_register(self.all, number.into(), &mut value) }.then_some(value)
    }
}

/// The address of the task's current instruction. Any context. See `sfu_uprobe_orig_pc` in
/// `c/helpers.h`.
pub(crate) fn uprobe_orig_pc(pc: u64) -> u64 {
    // SAFETY: The C function takes any number, and reads the current task's own uprobe state.
    unsafe { bindings::sfu_uprobe_orig_pc(pc) }
}

/// The original return address at `slot`, if a uretprobe replaced it. Any context. See
/// `sfu_uretprobe_orig_ra` in `c/helpers.h`.
pub(crate) fn uretprobe_orig_ra(slot: u64) -> Option<u64> {
    let mut address = 0;
    // SAFETY: `address` is a local variable; the C function reads the current task's own uprobe
    // state.
    unsafe { bindings::sfu_uretprobe_orig_ra(slot, &mut address) }.then_some(address)
}
