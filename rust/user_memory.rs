// SPDX-License-Identifier: GPL-2.0-only

//! Reads of user memory that may fail, behind the core's traits.
//!
//! In IRQ and NMI a page that is not there ends the read, and a worker is asked to bring it in for
//! later samples. On the way back to user space the task waits for the page itself. Nothing that
//! would have to be given up before sleeping is held here or by the callers.

use crate::{
    sframe::{
        bytes::{
            Fault,
            Source, //
        },
        unwind::Memory, //
    },
    stats,
    sys::{
        self,
        Peek,
        Words, //
    }, //
};
use core::cell::Cell;

/// How often user memory may be read in one walk that cannot be interrupted. A walk of 127 frames
/// through large files needs about 4,000.
const READS: u32 = 16 << 10;
/// The same where the task can be scheduled away.
const READS_DEFERRED: u32 = 1 << 20;
/// How many pages a task may wait for in one walk.
const FAULTS_DEFERRED: u32 = 256;

/// The memory of the current task, with a budget for one walk.
pub(crate) struct UserMemory {
    peek: Peek,
    reads: Cell<u32>,
    faults: Cell<u32>,
    may_sleep: bool,
}

impl UserMemory {
    /// For a walk in any context. Never sleeps. `near` is an address that can be read, if one is known,
    /// or any: then all may be read the longer way.
    pub(crate) fn atomic(near: u64) -> Self {
        Self {
            peek: Peek::enter(near),
            reads: Cell::new(READS),
            faults: Cell::new(0),
            may_sleep: false,
        }
    }

    /// For a walk in a task that may sleep.
    pub(crate) fn sleeping(near: u64) -> Self {
        Self {
            peek: Peek::enter(near),
            reads: Cell::new(READS_DEFERRED),
            faults: Cell::new(FAULTS_DEFERRED),
            may_sleep: true,
        }
    }

    /// Whether long searches are acceptable here.
    pub(crate) fn may_sleep(&self) -> bool {
        self.may_sleep
    }

    /// Whether reads fail because there were too many.
    pub(crate) fn is_spent(&self) -> bool {
        self.reads.get() == 0
    }

    /// Its words, without a budget, if it is sure whose they are.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<Words<'_>> {
        self.peek.words()
    }

    /// Reads bytes at a run-time address, any value of it.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(&self, address: u64) -> Result<[u8; N], Fault> {
        let left = self.reads.get().checked_sub(1).ok_or(Fault)?;
        self.reads.set(left);
        if let Some(bytes) = self.peek.read(address) {
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        if self.read_otherwise(&mut bytes, address) {
            Ok(bytes)
        } else {
            Err(Fault)
        }
    }

    /// Where bytes cannot be read at once. It is a call, so that what can needs no stack for it.
    #[cold]
    #[inline(never)]
    fn read_otherwise(&self, bytes: &mut [u8], address: u64) -> bool {
        // If it was sure whose they are, they are missing.
        (!self.peek.is_own() && self.peek.copy(bytes, address))
            || (self.bring_in(address, bytes.len() as u32) && self.peek.copy(bytes, address))
    }

    /// Whether bytes that were missing may be there now.
    fn bring_in(&self, address: u64, len: u32) -> bool {
        if !self.may_sleep {
            let last = address.wrapping_add(u64::from(len)).wrapping_sub(1);
            // Either page may be the missing one; the worker sees which.
            if sys::queue_fault_in(address) {
                stats::fault_queued();
            }
            if (address ^ last) >> 12 != 0 {
                sys::queue_fault_in(last);
            }
            return false;
        }
        let Some(left) = self.faults.get().checked_sub(1) else {
            return false;
        };
        self.faults.set(left);
        stats::fault_taken();
        self.peek.fault_in(address, len)
    }
}

impl Memory for UserMemory {
    #[inline]
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        self.read(address).map(u64::from_le_bytes)
    }
}

/// All of it, at run-time addresses.
impl Source for UserMemory {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        UserMemory::read(self, offset)
    }
}

/// A part of user memory as bytes from 0 to its length, for what is parsed.
pub(crate) struct Part<'a> {
    /// Reads it.
    pub(crate) memory: &'a UserMemory,
    /// Its run-time address.
    pub(crate) address: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
}

impl Source for Part<'_> {
    #[inline(never)]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let end = offset.checked_add(const { N as u64 }).ok_or(Fault)?;
        if end > self.len {
            return Err(Fault);
        }
        self.memory
            .read(self.address.checked_add(offset).ok_or(Fault)?)
    }
}
