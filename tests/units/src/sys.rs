// SPDX-License-Identifier: GPL-2.0-only

//! The module's reads of user memory, over stand-ins for C.

#[expect(dead_code, reason = "the module uses all of it")]
#[path = "../../../rust/sys/memory.rs"]
mod memory;

pub(crate) use self::{
    bindings::SFU_VISIT,
    memory::*, //
};

mod bindings {
    use std::ffi::{
        c_int,
        c_uint,
        c_void, //
    };

    /// As in `rust/c/helpers.h`.
    pub(crate) const SFU_VISIT: u32 = 18;

    /// The memory surely is the task's. The stand-ins have no end of user addresses.
    pub(crate) unsafe fn sfu_peek_enter(_address: u64) -> u64 {
        u64::MAX
    }

    pub(crate) unsafe fn sfu_peek_leave() {}

    pub(crate) unsafe fn sfu_read_user(_to: *mut c_void, _address: u64, _len: c_uint) -> c_int {
        -1
    }

    pub(crate) unsafe fn sfu_fault_in(_address: u64, _len: c_uint) -> c_int {
        -1
    }

    pub(crate) unsafe fn sfu_queue_fault_in(_address: u64) -> bool {
        false
    }

    pub(crate) unsafe fn sfu_queue_file(_address: u64) -> bool {
        false
    }
}
