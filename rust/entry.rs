// SPDX-License-Identifier: GPL-2.0-only

//! All entry points: what C calls in Rust.
//!
//! The topmost module but `main.rs`. Each function checks nothing and decides nothing: it gives what C passes
//! a type, and calls the module below.

use crate::{
    device,
    hook,
    sframe::unwind,
    sys::{
        bindings,
        Context,
        File,
        Registers,
        TableState, //
    },
    tables::{
        self,
        Rows, //
    },
    walk::Begin, //
};
use core::mem::MaybeUninit;
use kernel::{
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*, //
};

/// The declarations in `c/helpers.h` and the definitions here have the same types.
const _: () = {
    let _: [unsafe extern "C" fn() -> bool; 2] =
        [bindings::sframe_unwind_wanted, sframe_unwind_wanted];
    let _: [unsafe extern "C" fn(*mut c_void, *const c_void); 2] =
        [bindings::sframe_unwind_immediate, sframe_unwind_immediate];
    let _: [unsafe extern "C" fn(*mut c_void, c_uint) -> c_int; 2] =
        [bindings::sframe_unwind_deferred, sframe_unwind_deferred];
    let _: [unsafe extern "C" fn(*mut c_void); 2] =
        [bindings::sframe_unwind_free_rows, sframe_unwind_free_rows];
    let _: [unsafe extern "C" fn(*mut c_void, *const TableState, bool); 2] =
        [bindings::sframe_unwind_index_file, sframe_unwind_index_file];
    let _: [unsafe extern "C" fn(c_uint, u64, u32) -> c_int; 2] =
        [bindings::sframe_unwind_control, sframe_unwind_control];
};

/// Whether the current task's stack is walked here, where the decision cache does not know. NMI, IRQ or task,
/// preemption off.
#[no_mangle]
extern "C" fn sframe_unwind_wanted() -> bool {
    hook::wanted()
}

/// What a walk begins with.
///
/// # Safety
///
/// A function of `c/hook.c` has filled `call` in for a call that lasts for `'a`, and this is called once for it.
#[inline(always)]
unsafe fn begin<'a>(call: &bindings::sfu_call) -> Begin<'a> {
    Begin {
        frame: unwind::Frame {
            pc: call.pc,
            sp: call.sp,
            fp: call.fp,
        },
        // SAFETY: The call's `struct pt_regs` stays as long as the call.
        registers: unsafe { Registers::new(call.registers) },
        is_probed: call.is_probed,
        context: match call.context {
            bindings::SFU_NMI => Context::Nmi,
            bindings::SFU_IRQ => Context::Irq,
            bindings::SFU_DEFERRED => Context::Deferred,
            _ => Context::Task,
        },
        // SAFETY: The buffer has space for `left` addresses, belongs to this call, and stays as long as it.
        buffer: unsafe { core::slice::from_raw_parts_mut(call.buffer, call.left as usize) },
    }
}

/// Replaces `perf_callchain_user`. NMI, IRQ or task; never sleeps.
///
/// # Safety
///
/// To be called as `perf_callchain_user` is, by the redirection in `c/hook.c` alone.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_immediate(chain: *mut c_void, regs: *const c_void) {
    let begun = {
        let mut call = MaybeUninit::uninit();
        // SAFETY: The redirection leaves the arguments of `perf_callchain_user` as they are. All of `call`
        // is written.
        unsafe {
            bindings::sfu_immediate_enter(chain, regs, call.as_mut_ptr());
            begin(call.assume_init_ref())
        }
    };
    let count = hook::immediate(begun);
    // SAFETY: `chain` is that of this call, and the walk stored `count` addresses in its buffer.
    unsafe { bindings::sfu_immediate_leave(chain, count as c_uint) };
}

/// Replaces `unwind_user`. Task; may sleep.
///
/// # Safety
///
/// To be called as `unwind_user` is, by the redirection in `c/hook.c` alone.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_deferred(trace: *mut c_void, max_entries: c_uint) -> c_int {
    if max_entries == 0 {
        // The kernel's own function does so.
        return EINVAL.to_errno();
    }
    let (begun, token) = {
        let mut call = MaybeUninit::uninit();
        // SAFETY: The redirection leaves the arguments of `unwind_user` as they are, and the current task
        // is a user task, or it would have been left alone. All of `call` is written.
        unsafe {
            let token = bindings::sfu_deferred_enter(trace, max_entries, call.as_mut_ptr());
            (begin(call.assume_init_ref()), token)
        }
    };
    let count = hook::deferred(begun);
    // SAFETY: `token` is of this call, and the walk stored `count` addresses in its buffer.
    unsafe { bindings::sfu_deferred_leave(trace, count as c_uint, token) };
    0
}

/// Frees rows that [`tables::publish`] gave to C.
///
/// # Safety
///
/// `rows` come from `publish`, and no reader can have them any more.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_free_rows(rows: *mut c_void) {
    // SAFETY: By the contract of this function, `rows` come from `KBox::into_raw` and are freed once.
    drop(unsafe { KBox::<Rows>::from_raw(rows.cast()) });
}

/// The worker looks at a file that was seen in a stack. Task; sleeps.
///
/// # Safety
///
/// `file` is an open file, and `seen` points to where it was seen, as long as the call lasts.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_index_file(
    file: *mut c_void,
    seen: *const TableState,
    may_read: bool,
) {
    // SAFETY: By the contract of this function.
    let (file, seen) = unsafe { (File::borrowed(file), &*seen) };
    tables::index_file(&file, seen, may_read);
}

/// A program told the device something. Task; sleeps.
#[no_mangle]
extern "C" fn sframe_unwind_control(command: c_uint, argument: u64, user: u32) -> c_int {
    let result = usize::try_from(argument)
        .map_err(Error::from)
        .and_then(|argument| device::control(command, argument, user));
    match result {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}
