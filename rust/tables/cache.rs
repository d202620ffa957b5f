// SPDX-License-Identifier: GPL-2.0-only

//! What is published: found in any context, under RCU; and the code cache of each CPU.
//!
//! C side: `rust/c/tables.c` for the list, `rust/c/mappings.c` for the code cache.

use super::build::Rows;
use crate::{
    sframe::{
        fast_path,
        walk::TableAnswer, //
    },
    sys::{
        bindings,
        FileKey,
        Mapping,
        TableInfo,
        TableState, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    prelude::*,
    sync::rcu::{
        self,
        Guard, //
    }, //
};

/// What is known of a file: the values of [`TableState::origin`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Origin {
    /// Its rows were added.
    Added = bindings::sframe_unwind_origin::SFRAME_UNWIND_ADDED,
    /// It has rows of its own.
    Section = bindings::sframe_unwind_origin::SFRAME_UNWIND_SECTION,
    /// It has none that are known of.
    NoRows = bindings::sframe_unwind_origin::SFRAME_UNWIND_NO_ROWS,
    /// It could not be read.
    Unreadable = bindings::sframe_unwind_origin::SFRAME_UNWIND_UNREADABLE,
}

/// Has readers find what is known of a file. What they found before is freed. Task; sleeps.
///
/// # Errors
///
/// `ENOSPC`: there is no room. `EEXIST`: there are rows of another user's. `ENOMEM`.
pub(crate) fn publish(key: &FileKey, state: &TableState, rows: Option<KBox<Rows>>) -> Result {
    let rows = rows.map_or(core::ptr::null_mut(), KBox::into_raw);
    // SAFETY: The rows are given away, to be given back by `sframe_unwind_free_rows` in `entry.rs`.
    let result = to_result(unsafe { bindings::sfu_table_publish(&key.0, state, rows.cast()) });
    if result.is_err() && !rows.is_null() {
        // SAFETY: They were not taken, and come from `into_raw`.
        drop(unsafe { KBox::from_raw(rows) });
    }
    result
}

/// Has readers find nothing of a file any more. Task; sleeps.
///
/// # Errors
///
/// `ENOENT`: it has no rows. `EACCES`: they are another user's.
pub(crate) fn withdraw(key: &FileKey, user: u32) -> Result {
    // SAFETY: `key.0` is a valid `struct sfu_file_key` for the whole call.
    to_result(unsafe { bindings::sfu_table_remove(&key.0, user) })
}

/// What is known of the file with the next number after `number`. Task; sleeps.
///
/// # Errors
///
/// `ENOENT`: there is none.
pub(crate) fn next_table(number: u64, table: &mut TableInfo) -> Result {
    // SAFETY: `table` is a valid structure for the whole call.
    to_result(unsafe { bindings::sfu_table_next(number, table) })
}

/// The rows of this number, if they are there. Any context.
pub(crate) fn table_rows<'a>(number: u64, _reader: &'a Guard) -> Option<&'a Rows> {
    // SAFETY: `publish` publishes `Rows` alone, and they stay as long as there is an RCU reader, which the
    // guard shows.
    unsafe { bindings::sfu_table_rows(number).cast::<Rows>().as_ref() }
}

/// The code cache of this CPU: the ranges of the current task's code that its walks used last. As long as it
/// lives nothing may sleep.
pub(crate) struct CodeCache(NonNull<bindings::sfu_code_cache>);

impl CodeCache {
    /// `None` if the mappings are changing, or a walk was interrupted that has it. Any context.
    pub(crate) fn enter() -> Option<Self> {
        // SAFETY: Walks run for tasks that have a mm: the hook's handler has looked.
        NonNull::new(unsafe { bindings::sfu_code_cache_enter() }).map(Self)
    }

    fn all(&mut self) -> &mut bindings::sfu_code_cache {
        // SAFETY: The cache is of this CPU, `enter` gave it to `self` alone until `drop`, and preemption is off.
        unsafe { self.0.as_mut() }
    }

    /// The ranges.
    pub(crate) fn ranges(&mut self) -> Ranges<'_> {
        Ranges(self.all())
    }

    /// Takes in the code of a table, of `size` bytes, that `mapping` has from the run-time address `start`
    /// on, if that is still so.
    pub(crate) fn put(&mut self, start: u64, size: u64, mapping: &Mapping) {
        let all = self.all();
        if all.sequence as u32 != mapping.sequence {
            return;
        }
        let mut new = bindings::sfu_code_range {
            end: start.wrapping_add(size),
            start,
            rows: core::ptr::null(),
            // No walk has it.
            walk: 0,
            inode: mapping.inode,
            table: core::ptr::null_mut(),
        };
        // SAFETY: `self` is a `CodeCache`, so the call lies between enter and leave.
        if !unsafe { bindings::sfu_code_range_find_table(&mut new, mapping.table) } {
            return;
        }
        // Ranges are sorted by address: the new one goes in front of the first range above it. If all are used,
        // the topmost range is dropped.
        for range in &mut all.ranges {
            if range.start == start {
                return;
            }
            if new.end <= range.start {
                core::mem::swap(range, &mut new);
            }
        }
    }
}

impl Drop for CodeCache {
    fn drop(&mut self) {
        // SAFETY: The pointer comes from `enter`, and is left once.
        unsafe { bindings::sfu_code_cache_leave(self.0.as_ptr()) };
    }
}

/// The ranges of a [`CodeCache`].
pub(crate) struct Ranges<'a>(&'a mut bindings::sfu_code_cache);

impl<'a> fast_path::Codes<'a> for Ranges<'a> {
    type Rows = Rows;

    // Not inlined: inlined, a walk would keep the address of each range in a register or on the stack.
    #[inline(never)]
    fn at(&mut self, address: u64) -> Option<fast_path::Code<'a, Rows>> {
        let walk = self.0.walk;
        let mut ranges = self.0.ranges.iter_mut();
        let range = ranges.find(|range| address < range.end)?;
        if range.walk != walk {
            // SAFETY: `self` borrows a `CodeCache` for `'a`, and the range is one of its ranges.
            return unsafe { look_at(range, walk) };
        }
        // SAFETY: The range was looked at in this walk, and `self` borrows a `CodeCache` for `'a`.
        Some(unsafe { code_of(range) })
    }
}

/// Looks whether there is anything, and whether the file has been written to: once in a walk.
///
/// # Safety
///
/// There is a `CodeCache` for `'a`, and `range` is one of its ranges.
#[cold]
#[inline(never)]
unsafe fn look_at<'a>(
    range: &mut bindings::sfu_code_range,
    walk: u64,
) -> Option<fast_path::Code<'a, Rows>> {
    // SAFETY: A range that does not begin at the end of all addresses has a table: `put` has found it.
    if range.start == u64::MAX || !unsafe { bindings::sfu_code_range_is_current(range) } {
        return None;
    }
    range.walk = walk;
    // SAFETY: The range was looked at in this walk, and by the contract there is a `CodeCache` for `'a`.
    Some(unsafe { code_of(range) })
}

/// A range as the fast path takes it. An address in front of the range is, as a distance, far behind its end.
///
/// # Safety
///
/// The range was looked at in this walk, and there is a `CodeCache` for `'a`.
#[inline(always)]
unsafe fn code_of<'a>(range: &bindings::sfu_code_range) -> fast_path::Code<'a, Rows> {
    fast_path::Code {
        to_rows: range.start.wrapping_neg(),
        // SAFETY: `publish` publishes `Rows` alone, and they stay as long as there is an RCU reader, which a
        // `CodeCache` is.
        rows: unsafe { &*range.rows.cast::<Rows>() },
    }
}

/// Has walks of this CPU find the code at a run-time address in a mapping of the current task that has
/// a table. Any context.
#[inline(never)]
pub(crate) fn keep_range(address: u64, mapping: &Mapping) {
    let guard = rcu::read_lock();
    let to_offset = mapping.offset.wrapping_sub(mapping.start);
    let code = table_rows(mapping.table, &guard)
        .and_then(|rows| rows.code(address.wrapping_add(to_offset)));
    let Some((offset, size)) = code else {
        return;
    };
    let start = offset.wrapping_sub(to_offset);
    let distance = start.wrapping_sub(mapping.start);
    let len = mapping.end.wrapping_sub(mapping.start);
    if distance > len || size > len.wrapping_sub(distance) {
        return;
    }
    if let Some(mut cache) = CodeCache::enter() {
        cache.put(start, size, mapping);
    }
}

/// What the table of this number says of the code at an offset in its file, in bytes. Any context.
#[inline(never)]
pub(crate) fn rule_at(number: u64, offset: u64) -> TableAnswer<()> {
    let guard = rcu::read_lock();
    match table_rows(number, &guard) {
        None => TableAnswer::Gone,
        Some(rows) => match rows.find(offset) {
            Some(rule) => TableAnswer::Rule(rule, ()),
            None => TableAnswer::NoRow,
        },
    }
}
