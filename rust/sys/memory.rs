// SPDX-License-Identifier: GPL-2.0-only

//! Memory of the current task.
//!
//! C side: `rust/c/user_memory.c`, and `rust/c/worker.c` for work that may sleep.

use super::bindings;
use crate::sframe::fast_path;
use core::{
    arch::asm,
    marker::PhantomData, //
};
use kernel::ffi::c_uint;

/// The current task's user memory. Page faults are disabled while a `Peek` lives. Any context.
pub(crate) struct Peek {
    /// Whether the memory is surely the task's: an NMI may have interrupted a change of address spaces.
    is_own: bool,
}

/// Reads a number of the macro's size from a run-time address.
macro_rules! get_user {
    ($address:expr, $function:literal) => {{
        let (error, word): (u64, u64);
        // SAFETY: This is the calling convention that `get_user` uses, and page faults are off. The function
        // checks the address, changes no other registers, and leaves 0 in the word if the address cannot be
        // read.
        unsafe {
            asm!(
                concat!("call ", $function),
                inout("rax") $address => error,
                out("rdx") word,
                options(nomem),
            );
        }
        (error == 0, word)
    }};
}

impl Peek {
    /// Disables page faults. `address` is a run-time address on the task's stack or in its code; reads are
    /// fastest if it is known to be readable.
    #[inline(always)]
    pub(crate) fn enter(address: u64) -> Self {
        Self {
            // SAFETY: The C function takes any number as an address and checks it.
            is_own: unsafe { bindings::sfu_peek_enter(address) },
        }
    }

    /// The words of the memory, if the memory is surely the task's.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<Words<'_>> {
        self.is_own.then_some(Words(PhantomData))
    }

    /// Whether the memory is surely the task's.
    #[inline(always)]
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Reads bytes at a run-time address, of any value, if the memory is surely the task's.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        if !self.is_own {
            return None;
        }
        let mut bytes = [0; N];
        let mut done = 0;
        let mut is_read = true;
        macro_rules! next {
            ($number:ty, $function:literal) => {
                if let Some(to) = bytes
                    .get_mut(done..)
                    .and_then(|rest| rest.first_chunk_mut())
                {
                    let at = address.wrapping_add(done as u64);
                    let (is_there, word) = get_user!(at, $function);
                    *to = (word as $number).to_le_bytes();
                    is_read &= is_there;
                    done = done.wrapping_add(const { size_of::<$number>() });
                }
            };
        }
        for _ in 0..const { N / 8 } {
            next!(u64, "__get_user_8");
        }
        next!(u32, "__get_user_4");
        next!(u16, "__get_user_2");
        next!(u8, "__get_user_1");
        (is_read && done == N).then_some(bytes)
    }

    /// Reads bytes at a run-time address, of any value, and checks that the memory is the task's. False if the
    /// read fails.
    pub(crate) fn copy(&self, bytes: &mut [u8], address: u64) -> bool {
        let len = bytes.len() as c_uint;
        // SAFETY: `bytes` has room for them, and the C side checks the user address.
        unsafe { bindings::sfu_read_user(bytes.as_mut_ptr().cast(), address, len) == 0 }
    }

    /// Faults memory in. Only in a task that may sleep, possibly for ever. Fails if nothing is mapped there, if
    /// the task is exiting, or if the module is being unloaded.
    pub(crate) fn fault_in(&self, address: u64, len: u32) -> bool {
        // SAFETY: The C function checks the address. The caller may sleep, and `self` is a `Peek`.
        unsafe { bindings::sfu_fault_in(address, len) == 0 }
    }
}

impl Drop for Peek {
    fn drop(&mut self) {
        // SAFETY: Only `enter` makes a `Peek`, and it has called `sfu_peek_enter`.
        unsafe { bindings::sfu_peek_leave() };
    }
}

/// The words of the memory of a [`Peek`].
pub(crate) struct Words<'a>(PhantomData<&'a Peek>);

impl fast_path::WordReader for Words<'_> {
    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        get_user!(address, "__get_user_8").1
    }
}

/// Asks the worker to fault in the page at a run-time address of this task. Any context. False if too many
/// pages are queued: then the worker is not asked.
pub(crate) fn queue_fault_in(address: u64) -> bool {
    // SAFETY: The C function takes any number as an address, and checks it and that the task has a mm.
    unsafe { bindings::sfu_queue_fault_in(address) }
}

/// Asks the worker to look for rows in the file that this task has mapped at a run-time address. Any context.
/// False if too many files are queued: then the worker is not asked.
pub(crate) fn queue_file(address: u64) -> bool {
    // SAFETY: The C function takes any number as an address, and checks it and that the task has a mm.
    unsafe { bindings::sfu_queue_file(address) }
}
