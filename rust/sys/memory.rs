// SPDX-License-Identifier: GPL-2.0-only

//! Memory of the current task.
//!
//! C side: `rust/c/user_memory.c`, and `rust/c/queue.c` for work that may sleep.

use super::bindings;
use crate::{
    arch::asm::{
        self,
        get_user,
        UserAccess, //
    },
    sframe::unwind::WordReader, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop, //
};
use kernel::ffi::c_uint;

/// The current task's user memory. Page faults are disabled while a `Peek` lives. Any context.
pub(crate) struct Peek {
    /// The end of user addresses if the memory is surely the task's; 0 if not: an NMI may have
    /// interrupted a change of address spaces.
    limit: u64,
}

impl Peek {
    /// Disables page faults; reads are fastest if `address` is known to be readable. See
    /// `sfu_peek_enter` in `c/helpers.h`.
    #[inline(always)]
    pub(crate) fn enter(address: u64) -> Self {
        Self {
            // SAFETY: The C function takes any number as an address and checks it.
            limit: unsafe { bindings::sfu_peek_enter(address) },
        }
    }

    /// The memory of a walk. C has disabled page faults, and enables them when the walk ends.
    ///
    /// # Safety
    ///
    /// `limit` is that of a `struct sfu_call`, and the result is not used after the call's
    /// `sfu_immediate_leave` or `sfu_deferred_leave`.
    #[inline(always)]
    pub(crate) const unsafe fn of_walk(limit: u64) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self { limit })
    }

    /// The words of the memory, if the memory is surely the task's.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<PeekWords<'_>> {
        self.is_own().then_some(PeekWords {
            limit: self.limit,
            _peek: PhantomData,
        })
    }

    /// Whether the memory is surely the task's.
    #[inline(always)]
    pub(crate) fn is_own(&self) -> bool {
        self.limit != 0
    }

    /// Reads bytes at a run-time address, of any value, if the memory is surely the task's.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        if !self.is_own() {
            return None;
        }
        let mut bytes = [0; N];
        let mut done = 0;
        let mut is_read = true;
        macro_rules! next {
            ($number:ident) => {
                if let Some(to) = bytes
                    .get_mut(done..)
                    .and_then(|rest| rest.first_chunk_mut())
                {
                    let at = address.wrapping_add(done as u64);
                    let (is_there, word) = get_user!(at, $number);
                    *to = (word as $number).to_ne_bytes();
                    is_read &= is_there;
                    done = done.wrapping_add(const { size_of::<$number>() });
                }
            };
        }
        for _ in 0..const { N / 8 } {
            next!(u64);
        }
        next!(u32);
        next!(u16);
        next!(u8);
        (is_read && done == N).then_some(bytes)
    }

    /// Reads like [`read`](Self::read), in one function for all lengths. False if the read fails.
    pub(crate) fn read_into(&self, address: u64, bytes: &mut [u8]) -> bool {
        if !self.is_own() {
            return false;
        }
        let mut at = address;
        macro_rules! next {
            ($to:expr, $number:ident) => {
                let (is_there, word) = get_user!(at, $number);
                if !is_there {
                    return false;
                }
                $to.copy_from_slice(&(word as $number).to_ne_bytes());
                at = at.wrapping_add(const { size_of::<$number>() as u64 });
            };
        }
        let mut words = bytes.chunks_exact_mut(8);
        for to in &mut words {
            next!(to, u64);
        }
        let mut halves = words.into_remainder().chunks_exact_mut(4);
        for to in &mut halves {
            next!(to, u32);
        }
        for to in halves.into_remainder().chunks_exact_mut(1) {
            next!(to, u8);
        }
        true
    }

    /// Reads bytes at a run-time address; false if the read fails. See `sfu_read_user` in
    /// `c/helpers.h`.
    pub(crate) fn copy(&self, bytes: &mut [u8], address: u64) -> bool {
        let len = bytes.len() as c_uint;
        // SAFETY: `bytes` has room for them, and the C side checks the user address.
        unsafe { bindings::sfu_read_user(bytes.as_mut_ptr().cast(), address, len) == 0 }
    }

    /// Faults memory in; false if that fails. Task that may sleep. See `sfu_fault_in` in
    /// `c/helpers.h`.
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
pub(crate) struct PeekWords<'a> {
    limit: u64,
    _peek: PhantomData<&'a Peek>,
}

impl PeekWords<'_> {
    /// The words of the memory of a walk.
    ///
    /// # Safety
    ///
    /// `limit` is as for [`Peek::of_walk`], and is not 0.
    #[inline(always)]
    pub(crate) const unsafe fn of_walk(limit: u64) -> Self {
        Self {
            limit,
            _peek: PhantomData,
        }
    }

    /// Begins many reads.
    #[inline(always)]
    pub(crate) fn access(&self) -> UserAccess<'_> {
        // SAFETY: Only `Peek::words` makes `PeekWords`. So a `Peek` lives as long as the result,
        // page faults are off, the memory is surely the task's, and `sfu_peek_enter` has returned
        // the limit.
        unsafe { UserAccess::begin(self.limit) }
    }
}

impl WordReader for PeekWords<'_> {
    type Open<'a>
        = OpenWords<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        get_user!(address, u64).1
    }

    // With debug assertions, Rust's checks of unsafe code are calls of functions that panic.
    #[inline(always)]
    fn open(&self) -> OpenWords<'_> {
        OpenWords((!cfg!(debug_assertions)).then(|| self.access()))
    }
}

/// The words of the memory of a [`Peek`], by a [`UserAccess`] if there is one.
pub(crate) struct OpenWords<'a>(Option<UserAccess<'a>>);

impl WordReader for OpenWords<'_> {
    type Open<'a>
        = &'a Self
    where
        Self: 'a;

    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        match &self.0 {
            Some(access) => access.word(address),
            None => get_user!(address, u64).1,
        }
    }

    #[inline(always)]
    fn lower_word(&self, address: u64) -> (u64, u64) {
        match &self.0 {
            Some(access) => access.lower_word(address),
            None => {
                let address = address & const { u64::MAX >> 1 };
                (get_user!(address, u64).1, address)
            }
        }
    }

    #[inline(always)]
    fn open(&self) -> &Self {
        self
    }
}

/// The bits of a return address that are bits of the address. Any context.
#[inline(always)]
pub(crate) fn code_mask() -> u64 {
    asm::code_mask()
}

/// Asks the worker to fault in a page of this task. Any context. See `sfu_queue_fault_in` in
/// `c/helpers.h`.
pub(crate) fn queue_fault_in(address: u64) -> bool {
    // SAFETY: The C function takes any number as an address, and checks it and that the task has a
    // mm.
    unsafe { bindings::sfu_queue_fault_in(address) }
}

/// Asks the worker to look for rows in a mapped file. Any context. See `sfu_queue_file` in
/// `c/helpers.h`.
pub(crate) fn queue_file(address: u64) -> bool {
    // SAFETY: The C function takes any number as an address, and checks it and that the task has a
    // mm.
    unsafe { bindings::sfu_queue_file(address) }
}
