// SPDX-License-Identifier: GPL-2.0-only

//! All entry points: the Rust functions that C calls.
//!
//! Only `main.rs` and `kunit.rs` are above this module. The functions contain no checks and no
//! policy: each gives C's arguments Rust types and calls the module below.

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
use core::mem::MaybeUninit;
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
    // SAFETY: The caller upholds this function's contract: `scan` is valid, and nobody else uses
    // it.
    mapping::scan(unsafe { &mut *scan }) as u32
}

/// The buffer of a hooked call.
///
/// # Safety
///
/// A function of `c/hook.c` has filled in `call` for a hooked call that lasts for `'a`. Nobody uses
/// the buffer that an earlier call of this function has returned for `call`.
#[inline(always)]
unsafe fn buffer<'a>(call: &bindings::sfu_call) -> &'a mut [u64] {
    // SAFETY: `c/hook.c` gives a buffer with space for `left` addresses. The buffer belongs to the
    // hooked call alone, and stays until that call ends.
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
        // SAFETY: `call.registers` is the `struct pt_regs` of the hooked call, which stays until
        // that call ends.
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
    // SAFETY: The redirection leaves the arguments of `perf_callchain_user` unchanged. The first C
    // function describes the call, and the second one ends it.
    unsafe {
        let walked = enter(|call| bindings::sfu_immediate_enter(chain, regs, call));
        bindings::sfu_immediate_leave(chain, walked.count() as c_uint);
    }
}

/// Replaces `unwind_user`. Task; may sleep.
///
/// # Safety
///
/// Only the redirection in `c/hook.c` calls this function, in the way that the kernel calls
/// `unwind_user`.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_deferred(trace: *mut c_void, max_entries: c_uint) -> c_int {
    if max_entries == 0 {
        // The kernel's `unwind_user` returns this error too.
        return EINVAL.to_errno();
    }
    // SAFETY: The redirection leaves the arguments of `unwind_user` unchanged. The current task is
    // a user task: the redirection leaves all others to the kernel. The first C function describes
    // the call, and the second one ends it.
    unsafe {
        let walked = enter(|call| bindings::sfu_deferred_enter(trace, max_entries, call));
        bindings::sfu_deferred_leave(trace, walked.count() as c_uint);
    }
    0
}

/// Walks for a hooked call. The whole walk is compiled into each of the two entries: one walk for
/// both takes 8 instructions a sample more.
///
/// # Safety
///
/// `begin_call` is a function of `c/hook.c` with the arguments of a hooked call, which the caller
/// ends afterwards.
#[inline(always)]
unsafe fn enter(
    begin_call: impl FnOnce(*mut bindings::sfu_call) -> *mut bindings::sfu_code_cache,
) -> Walked {
    // What the walk needs after the fast path is taken out of `call`, whose place on the stack is
    // used again.
    let (begin, first, stored) = {
        let mut call = MaybeUninit::uninit();
        let cache = begin_call(call.as_mut_ptr());
        // SAFETY: By the contract of this function, a C function has written the whole of `call`.
        let call = unsafe { call.assume_init_ref() };
        let mut first = FastPathState::to(call.sp, call.fp);
        let mut stored = 0;
        // SAFETY: The C function returns the code cache if it has taken it.
        if let Some(cache) = unsafe { CodeCache::taken(cache) } {
            // SAFETY: Then the limit is not 0. The walk ends in front of the call that ends it for
            // C. Nobody has used the buffer.
            let (words, buffer) = unsafe { (PeekWords::of_walk(call.limit), buffer(call)) };
            stored = walk::run_first(&mut first, call.pc, buffer, cache, words);
        }
        if first.is_outermost() {
            return Walked {
                stored,
                frames: stored as u32,
                context: context(call),
                reason: StopReason::Outermost,
            };
        }
        // SAFETY: The buffer from above is not used any more.
        (unsafe { begin(call) }, first, stored)
    };
    // SAFETY: The walk ends in front of the call that ends it for C.
    unsafe { walk::walk(begin, &{ first }, stored) }
}

/// Frees rows that [`tables::publish`] gave to C.
///
/// # Safety
///
/// `rows` come from `publish`. No reader has a reference to `rows`, and none can get one.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_free_rows(rows: *mut c_void) {
    // SAFETY: By the contract of this function, `rows` come from `KBox::into_raw`. C calls this
    // function once for them.
    drop(unsafe { KBox::<FileTable>::from_raw(rows.cast()) });
}

/// The worker looks for rows in a file that was seen. Task; sleeps.
///
/// # Safety
///
/// `file` is an open file, and `seen` says where it was seen. Both stay valid until this function
/// returns.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_index_file(
    file: *mut c_void,
    seen: *const TableState,
    may_read: bool,
) {
    // SAFETY: By the contract of this function, `file` is open and `seen` is valid until this
    // function returns.
    let (file, seen) = unsafe { (OpenFile::borrowed(file), &*seen) };
    tables::index_file(&file, seen, may_read);
}

/// A command that a program gave to the device. `user` opened the device. `own_only`: the command
/// is to add a region of the current process. Task; sleeps.
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
