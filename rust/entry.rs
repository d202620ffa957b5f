// SPDX-License-Identifier: GPL-2.0-only

//! All entry points: the Rust functions that C calls.
//!
//! Only `main.rs` and `kunit.rs` are above this module. The functions contain no checks and no policy: each
//! gives C's arguments Rust types and calls the module below.

use crate::{
    device,
    mapping,
    sframe::{
        fast_path::FastPathState,
        stop_reason::StopReason,
        unwind, //
    },
    stats::Walked,
    sys::{
        bindings,
        OpenFile,
        PeekWords,
        PtRegs,
        Scan,
        TableState,
        WalkContext, //
    },
    tables::{
        self,
        CodeCache,
        FileTable, //
    },
    walk::{
        self,
        Begin, //
    }, //
};
use core::{
    arch::asm,
    mem::MaybeUninit, //
};
use kernel::{
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*, //
};

/// Asserts that each declaration in `c/helpers.h` has the type of its definition here.
const _: () = {
    let _: [unsafe extern "C" fn(*mut Scan) -> u32; 2] =
        [bindings::sframe_unwind_scan, sframe_unwind_scan];
    let _: [unsafe extern "C" fn(*mut c_void, *const c_void); 2] =
        [bindings::sframe_unwind_immediate, sframe_unwind_immediate];
    let _: [unsafe extern "C" fn(*mut c_void, c_uint) -> c_int; 2] =
        [bindings::sframe_unwind_deferred, sframe_unwind_deferred];
    let _: [unsafe extern "C" fn(*mut c_void); 2] =
        [bindings::sframe_unwind_free_rows, sframe_unwind_free_rows];
    let _: [unsafe extern "C" fn(*mut c_void, *const TableState, bool); 2] =
        [bindings::sframe_unwind_index_file, sframe_unwind_index_file];
    let _: [unsafe extern "C" fn(c_uint, u64, u32, bool) -> c_int; 2] =
        [bindings::sframe_unwind_control, sframe_unwind_control];
};

/// Continues a scan of the current task's mappings for rows. Any context; never sleeps.
///
/// # Safety
///
/// `scan` points to a scan of the current task that nobody else uses.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_scan(scan: *mut Scan) -> u32 {
    // SAFETY: The caller upholds this function's contract: `scan` is valid, and nobody else uses it.
    mapping::scan(unsafe { &mut *scan }) as u32
}

/// The buffer of a hooked call.
///
/// # Safety
///
/// A function of `c/hook.c` has filled in `call` for a hooked call that lasts for `'a`. Nobody uses the buffer that an
/// earlier call of this function has returned for `call`.
#[inline(always)]
unsafe fn buffer<'a>(call: &bindings::sfu_call) -> &'a mut [u64] {
    // SAFETY: `c/hook.c` gives a buffer with space for `left` addresses. The buffer belongs to the hooked call alone,
    // and stays until that call ends.
    unsafe { core::slice::from_raw_parts_mut(call.buffer, call.left as usize) }
}

/// The context of a hooked call.
#[inline(always)]
fn context(call: &bindings::sfu_call) -> WalkContext {
    // In this form, the compiler sees that the numbers are the same.
    match call.context % 4 {
        bindings::SFU_NMI => WalkContext::Nmi,
        bindings::SFU_IRQ => WalkContext::Irq,
        bindings::SFU_DEFERRED => WalkContext::Deferred,
        _ => WalkContext::Task,
    }
}

/// The start of a walk, from C's description of the hooked call.
///
/// # Safety
///
/// As for [`buffer`].
#[inline(always)]
unsafe fn begin<'a>(call: &bindings::sfu_call) -> Begin<'a> {
    Begin {
        frame: unwind::Frame {
            pc: call.pc,
            sp: call.sp,
            fp: call.fp,
        },
        // SAFETY: `call.registers` is the `struct pt_regs` of the hooked call, which stays until that call
        // ends.
        registers: unsafe { PtRegs::new(call.registers) },
        is_probed: call.is_probed,
        context: context(call),
        spent: call.spent,
        limit: call.limit,
        // SAFETY: By the contract of this function.
        buffer: unsafe { buffer(call) },
    }
}

/// Replaces `perf_callchain_user`. NMI, IRQ or task; never sleeps.
///
/// # Safety
///
/// Only the redirection in `c/hook.c` calls this function, in the way that the kernel calls
/// `perf_callchain_user`.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_immediate(chain: *mut c_void, regs: *const c_void) {
    // SAFETY: The redirection leaves the arguments of `perf_callchain_user` unchanged.
    unsafe { enter(chain, regs, 0) };
}

/// Replaces `unwind_user`. Task; may sleep.
///
/// # Safety
///
/// Only the redirection in `c/hook.c` calls this function, in the way that the kernel calls `unwind_user`.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_deferred(trace: *mut c_void, max_entries: c_uint) -> c_int {
    let none = hidden(0) as *const c_void;
    // SAFETY: The redirection leaves the arguments of `unwind_user` unchanged. The current task is a user task: the
    // redirection leaves all others to the kernel.
    unsafe { enter(trace, none, max_entries) }
}

/// `number`, as a value that the compiler does not know. It would make a copy of the whole walk for each value that it
/// knows.
#[inline(always)]
fn hidden(mut number: usize) -> usize {
    // SAFETY: No instruction, and `number` stays as it is.
    unsafe {
        asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    }
    number
}

/// Walks for a hooked call, and returns 0 or an error. The two entries share this function, because the whole walk is
/// compiled into it. They jump here and need no stack.
///
/// # Safety
///
/// `chain` and `regs`, which is not null, are the arguments of a call of `perf_callchain_user`; or `regs` is null, and
/// `chain` and `max_entries` are the arguments of a call of `unwind_user` for a user task.
#[inline(never)]
unsafe fn enter(chain: *mut c_void, regs: *const c_void, max_entries: c_uint) -> c_int {
    let walked = 'walk: {
        // What the walk needs after the fast path is taken out of `call`, whose place on the stack is used again.
        let (begin, first, stored) = {
            let mut call = MaybeUninit::uninit();
            // SAFETY: The caller passes the arguments of the kernel's function, by the contract above.
            let cache = unsafe {
                if !regs.is_null() {
                    bindings::sfu_immediate_enter(chain, regs, call.as_mut_ptr())
                } else if max_entries == 0 {
                    // The kernel's `unwind_user` returns this error too.
                    return EINVAL.to_errno();
                } else {
                    bindings::sfu_deferred_enter(chain, max_entries, call.as_mut_ptr())
                }
            };
            // SAFETY: Both C functions write the whole of `call`.
            let call = unsafe { call.assume_init_ref() };
            let mut first = FastPathState::to(call.sp, call.fp);
            let mut stored = 0;
            // SAFETY: The C functions return the code cache if they have taken it.
            if let Some(cache) = unsafe { CodeCache::taken(cache) } {
                // SAFETY: Then the limit is not 0. The walk ends in front of the calls that end it for C. Nobody has
                // used the buffer.
                let (words, buffer) = unsafe { (PeekWords::of_walk(call.limit), buffer(call)) };
                stored = walk::run_first(&mut first, call.pc, buffer, cache, words);
            }
            if first.is_outermost {
                break 'walk Walked {
                    stored,
                    frames: stored as u32,
                    context: context(call),
                    reason: StopReason::Outermost,
                };
            }
            // SAFETY: The buffer from above is not used any more.
            (unsafe { begin(call) }, first, stored)
        };
        // SAFETY: The walk ends in front of the calls that end it for C.
        unsafe { walk::walk(begin, &{ first }, stored) }
    };
    let context = walked.context;
    let count = walked.count() as c_uint;
    // SAFETY: `chain` is the argument of this call, and the walk stored `count` addresses in its buffer.
    unsafe {
        if context == WalkContext::Deferred {
            bindings::sfu_deferred_leave(chain, count);
        } else {
            bindings::sfu_immediate_leave(chain, count);
        }
    }
    0
}

/// Frees rows that [`tables::publish`] gave to C.
///
/// # Safety
///
/// `rows` come from `publish`. No reader has a reference to `rows`, and none can get one.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_free_rows(rows: *mut c_void) {
    // SAFETY: By the contract of this function, `rows` come from `KBox::into_raw`. C calls this function once
    // for them.
    drop(unsafe { KBox::<FileTable>::from_raw(rows.cast()) });
}

/// The worker looks for rows in a file that was seen. Task; sleeps.
///
/// # Safety
///
/// `file` is an open file, and `seen` says where it was seen. Both stay valid until this function returns.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_index_file(
    file: *mut c_void,
    seen: *const TableState,
    may_read: bool,
) {
    // SAFETY: By the contract of this function, `file` is open and `seen` is valid until this function returns.
    let (file, seen) = unsafe { (OpenFile::borrowed(file), &*seen) };
    tables::index_file(&file, seen, may_read);
}

/// A command that a program gave to the device. `user` opened the device. `own_only`: the command is to add a region of the
/// current process. Task; sleeps.
#[no_mangle]
extern "C" fn sframe_unwind_control(
    command: c_uint,
    argument: u64,
    user: u32,
    own_only: bool,
) -> c_int {
    let result = usize::try_from(argument)
        .map_err(Error::from)
        .and_then(|argument| device::control(command, argument, user, own_only));
    match result {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}
