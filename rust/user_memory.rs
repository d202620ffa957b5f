// SPDX-License-Identifier: GPL-2.0-only

//! Reads of user memory that may fail, behind the core's traits.
//!
//! In IRQ and NMI a read of a missing page fails, and a worker is asked to fault the page in for
//! later samples. In a deferred walk the task waits for the page itself. Neither this module nor
//! its callers hold anything that forbids sleep at that point.

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
        PeekWords, //
    }, //
};
use core::{
    cell::Cell,
    mem::ManuallyDrop, //
};
use kernel::page::PAGE_SIZE;

/// The unit of the budget, in instructions.
pub(crate) const UNIT: u32 = 20;
/// The budget of one walk in a context that cannot be interrupted, in units of [`UNIT`]
/// instructions. `worst` of `tools/bench/run` measures the cost of programs made to be slow.
pub(crate) const WORK: u32 = 8_000;
/// The budget of one walk in a task that can be scheduled away, in the units of [`WORK`]: about two
/// milliseconds. The walk of a task that is killed waits for no more pages, and ends then at the
/// latest.
const WORK_DEFERRED: u32 = 450_000;
/// The work of a read, without the work of its words.
const READ: u32 = 3;
/// The additional work of a read while the memory may be another task's.
const READ_UNSURE: u32 = 5;
/// The work of a missing page: the exception, and a search of the worker's queue.
const FAULT: u32 = 280;
/// The work of reading one mapping, and of one step of a scan of the mappings.
pub(crate) const VISIT: u32 = sys::SFU_VISIT;
/// The work of taking the code cache again in a walk: all its ranges are checked.
pub(crate) const CODE_CACHE: u32 = 28;
/// The work of a frame in a file with a table, if not the fast path finds its caller; without the
/// reads, and without the search for the row.
const TABLE_FRAME: u32 = 24;
/// The work of a search in a table, without that of the rows in front.
const TABLE_SEARCH: u32 = 6;
/// The rows of a table that are searched for one unit of work: in a search, and before it by the
/// fast path, which ends at a rule that is not compact.
const ROWS_OF_UNIT: u32 = 2;
/// The number of pages that a task may wait for in one walk.
const FAULTS_DEFERRED: u32 = 256;

/// The work of [`UserMemory::read`] of `len` bytes.
pub(crate) const fn work_of_read(len: usize) -> u32 {
    READ.wrapping_add(len as u32 / 8)
        .wrapping_add((len as u32 % 8).count_ones())
}

/// The work of `UserMemory::read_into` of `len` bytes.
pub(crate) const fn work_of_read_into(len: usize) -> u32 {
    READ.wrapping_add(len.div_ceil(8) as u32)
}

/// The work of looking up an address in a table, and of the frame if its caller is found by a rule
/// of the table. `rows` is the number of rows in front of the address, in the same page.
pub(crate) const fn work_of_look_up(rows: u32, is_by_rule: bool) -> u32 {
    let work = if is_by_rule {
        TABLE_FRAME
    } else {
        TABLE_SEARCH
    };
    work.wrapping_add(rows / ROWS_OF_UNIT)
}

/// The memory of the current task, with a budget for one walk.
pub(crate) struct UserMemory {
    peek: Peek,
    /// The work that is left. Negative if a read was refused.
    work: Cell<i64>,
    /// The number of pages that the task may still wait for, if it may sleep.
    faults: Cell<u32>,
    may_sleep: bool,
}

impl UserMemory {
    /// Memory for a walk in any context. Never sleeps. `near` is a run-time address that is known
    /// to be readable, or any other address: then all reads may take the slower path. `spent` is
    /// the work that this sample has already taken.
    pub(crate) fn atomic(near: u64, spent: u32) -> Self {
        Self::new(Peek::enter(near), spent, false)
    }

    /// Memory for a walk in a task that may sleep. `near` is as for [`atomic`](Self::atomic).
    pub(crate) fn sleeping(near: u64) -> Self {
        Self::new(Peek::enter(near), 0, true)
    }

    /// Memory for a walk: as [`atomic`](Self::atomic), or as [`sleeping`](Self::sleeping).
    ///
    /// # Safety
    ///
    /// `limit` is as for [`Peek::of_walk`].
    #[inline(always)]
    pub(crate) unsafe fn of_walk(limit: u64, spent: u32, may_sleep: bool) -> ManuallyDrop<Self> {
        // SAFETY: By the contract of this function.
        let peek = ManuallyDrop::into_inner(unsafe { Peek::of_walk(limit) });
        ManuallyDrop::new(Self::new(peek, spent, may_sleep))
    }

    /// Memory with an unused budget; for a walk that may not sleep, without the work that was spent
    /// before.
    #[inline(always)]
    fn new(peek: Peek, spent: u32, may_sleep: bool) -> Self {
        let work = WORK.saturating_sub(spent).into();
        Self {
            peek,
            work: Cell::new(if may_sleep {
                WORK_DEFERRED.into()
            } else {
                work
            }),
            faults: Cell::new(FAULTS_DEFERRED),
            may_sleep,
        }
    }

    /// Whether the walk may sleep, so that long searches are acceptable.
    pub(crate) fn may_sleep(&self) -> bool {
        self.may_sleep
    }

    /// The work that is left.
    pub(crate) fn left(&self) -> u32 {
        u32::try_from(self.work.get()).unwrap_or(0)
    }

    /// The work that was taken, of a budget for a walk that may not sleep; at most the budget.
    pub(crate) fn spent(&self) -> u32 {
        WORK.saturating_sub(self.left())
    }

    /// Whether reads fail because the walk's budget is used up.
    pub(crate) fn is_spent(&self) -> bool {
        self.work.get() <= 0
    }

    /// Takes work from the walk's budget.
    ///
    /// # Errors
    ///
    /// [`Fault`]: the budget has less left. It is used up from now on.
    #[inline(always)]
    pub(crate) fn take(&self, work: u32) -> Result<(), Fault> {
        // Two instructions. The number has 64 bits, so no walk is long enough to make it wrap
        // around.
        let left = self.work.get().wrapping_sub(work.into());
        self.work.set(left);
        if left < 0 {
            return Err(Fault);
        }
        Ok(())
    }

    /// The words of the memory, without a budget, if the memory is surely the current task's.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<PeekWords<'_>> {
        self.peek.words()
    }

    /// Reads bytes at a run-time address. The address may have any value.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(&self, address: u64) -> Result<[u8; N], Fault> {
        self.take(const { work_of_read(N) })?;
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

    /// Reads all of `bytes` at a run-time address, of any value. Slower and smaller than
    /// [`read`](Self::read).
    #[inline(never)]
    fn read_into(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.take(work_of_read_into(bytes.len()))?;
        let is_read = self.peek.read_into(address, bytes) || self.read_otherwise(bytes, address);
        is_read.then_some(()).ok_or(Fault)
    }

    /// The slower path of [`read`](Self::read). It is a separate call, so that the fast path needs
    /// no stack for it.
    #[cold]
    #[inline(never)]
    fn read_otherwise(&self, bytes: &mut [u8], address: u64) -> bool {
        // If the memory is surely the task's, the page is missing, and a second read is pointless.
        (!self.peek.is_own() && self.take(READ_UNSURE).is_ok() && self.peek.copy(bytes, address))
            || (self.bring_in(address, bytes.len() as u32) && self.peek.copy(bytes, address))
    }

    /// Brings missing bytes in, or asks the worker to do so. True if they may be present now.
    fn bring_in(&self, address: u64, len: u32) -> bool {
        if !self.may_sleep {
            // The worker is asked for the page, even if the walk ends here.
            let _ = self.take(FAULT);
            let last = address.wrapping_add(u64::from(len)).wrapping_sub(1);
            // Either page may be the missing one. The worker finds out which.
            if sys::queue_fault_in(address) {
                stats::fault_queued();
            }
            if (address ^ last) >= PAGE_SIZE as u64 {
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
        self.read(address).map(u64::from_ne_bytes)
    }

    #[inline(always)]
    fn code_mask(&self) -> u64 {
        sys::code_mask()
    }
}

/// All user memory; offsets are run-time addresses.
impl Source for UserMemory {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        UserMemory::read(self, offset)
    }

    fn spend(&self, instructions: u32) -> Result<(), Fault> {
        self.take(instructions / UNIT)
    }
}

/// A range of user memory as bytes from 0 to its length, for the parsers.
pub(crate) struct Part<'a> {
    /// The memory that contains the range.
    pub(crate) memory: &'a UserMemory,
    /// The run-time address of the range.
    pub(crate) address: u64,
    /// The length of the range in bytes.
    pub(crate) len: u64,
}

impl Part<'_> {
    /// Reads all of `bytes` at `offset`, in bytes. Slower and smaller than
    /// [`read_number`](Self::read_number).
    #[inline(never)]
    pub(crate) fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.memory
            .read_into(self.place(offset, bytes.len() as u64)?, bytes)
    }

    /// Reads `N` bytes at `offset`, in bytes.
    #[inline(never)]
    fn read_number<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.memory.read(self.place(offset, const { N as u64 })?)
    }

    /// The run-time address of `len` bytes at `offset`, if they are in the range.
    #[inline(always)]
    fn place(&self, offset: u64, len: u64) -> Result<u64, Fault> {
        let end = offset.checked_add(len).ok_or(Fault)?;
        if end > self.len {
            return Err(Fault);
        }
        self.address.checked_add(offset).ok_or(Fault)
    }
}

impl Source for Part<'_> {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        // Searches of functions and rows make reads of four and eight bytes. One function makes all
        // other reads.
        if matches!(N, 4 | 8) {
            return self.read_number(offset);
        }
        let mut bytes = [0; N];
        self.read_into(offset, &mut bytes)?;
        Ok(bytes)
    }

    fn spend(&self, instructions: u32) -> Result<(), Fault> {
        self.memory.spend(instructions)
    }
}
