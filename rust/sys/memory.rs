// SPDX-License-Identifier: GPL-2.0-only

//! Memory of the current task.
//!
//! C side: `rust/c/user_memory.c`, and `rust/c/worker.c` for what cannot wait.

use super::bindings;
use crate::sframe::fast_path;
use core::{
    arch::asm,
    marker::PhantomData, //
};
use kernel::ffi::c_uint;

/// The current task's user memory. While it lives no fault is served. Any context.
pub(crate) struct Peek {
    /// Whether the memory that is there is the task's, for sure.
    is_own: bool,
}

/// Reads a number of so many bytes from a run-time address.
macro_rules! get_user {
    ($address:expr, $function:literal) => {{
        let (error, word): (u64, u64);
        // SAFETY: That is how `get_user` calls it, with page faults off. It checks the address, changes
        // these registers alone, and leaves 0 where nothing can be read.
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
    /// Reads best where it is known that `address` can be read, of the task's stack or code.
    #[inline(always)]
    pub(crate) fn enter(address: u64) -> Self {
        Self {
            // SAFETY: The C function takes any number as an address and checks it.
            is_own: unsafe { bindings::sfu_peek_enter(address) },
        }
    }

    /// Its words, if the memory that is there is the task's for sure.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<Words<'_>> {
        self.is_own.then_some(Words(PhantomData))
    }

    /// Whether the memory that is there is the task's, for sure.
    #[inline(always)]
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Reads bytes at a run-time address, any value of it, if the memory that is there is the task's for sure.
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

    /// Reads bytes at a run-time address, any value of it, and checks whose memory is there; false if it cannot.
    pub(crate) fn copy(&self, bytes: &mut [u8], address: u64) -> bool {
        let len = bytes.len() as c_uint;
        // SAFETY: `bytes` has room for them, and the C side checks the user address.
        unsafe { bindings::sfu_read_user(bytes.as_mut_ptr().cast(), address, len) == 0 }
    }

    /// Faults memory in. Only in a task that may sleep, and may sleep for ever; fails where there is no
    /// memory, or where the module is about to go.
    pub(crate) fn fault_in(&self, address: u64, len: u32) -> bool {
        // SAFETY: The C function checks the address. The caller may sleep, and `self` is a `Peek`.
        unsafe { bindings::sfu_fault_in(address, len) == 0 }
    }
}

impl Drop for Peek {
    fn drop(&mut self) {
        // SAFETY: `enter` is the only way to a `Peek`, and has entered.
        unsafe { bindings::sfu_peek_leave() };
    }
}

/// The words of the memory of a [`Peek`].
pub(crate) struct Words<'a>(PhantomData<&'a Peek>);

impl fast_path::Words for Words<'_> {
    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        get_user!(address, "__get_user_8").1
    }
}

/// Asks the worker to fault in the page at a run-time address of this task. Any context. False, and not asked, if
/// too many pages are waiting.
pub(crate) fn queue_fault_in(address: u64) -> bool {
    // SAFETY: The C function takes any number as an address, and checks it and that the task has a mm.
    unsafe { bindings::sfu_queue_fault_in(address) }
}

/// Asks the worker to look at the file that this task has mapped at a run-time address. Any context.
/// False, and not asked, if too many files are waiting.
pub(crate) fn queue_file(address: u64) -> bool {
    // SAFETY: The C function takes any number as an address, and checks it and that the task has a mm.
    unsafe { bindings::sfu_queue_file(address) }
}
