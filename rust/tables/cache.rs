// SPDX-License-Identifier: GPL-2.0-only

//! Published tables, which readers find in any context under RCU, and the code cache of each CPU.
//!
//! C side: `rust/c/tables.c` for the list, `rust/c/code_cache.c` for the code cache.

use super::build::FileTable;
use crate::{
    sframe::{
        fast_path,
        kept_rules::{
            self,
            Balance,
            KeptRule,
            KeptRules, //
        },
        table::PAGE,
        unwind::WordReader,
        walk::TableAnswer, //
    },
    sys::{
        bindings,
        FileKey,
        Mapping,
        PeekWords,
        TableInfo,
        TableState, //
    },
    uapi, //
};
use core::{
    hint,
    mem::size_of,
    ops::Range,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::rcu::{
        self,
        Guard, //
    }, //
};

/// The origin of a file's entry: the values of [`TableState::origin`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum TableOrigin {
    /// A program added its rows.
    Added = uapi::sframe_unwind_origin::SFRAME_UNWIND_ADDED,
    /// The rows come from the file's own section.
    Section = uapi::sframe_unwind_origin::SFRAME_UNWIND_SECTION,
    /// No rows of the file are known.
    NoRows = uapi::sframe_unwind_origin::SFRAME_UNWIND_NO_ROWS,
    /// The file could not be read.
    Unreadable = uapi::sframe_unwind_origin::SFRAME_UNWIND_UNREADABLE,
}

/// Publishes an entry for a file: its state and its rows, if any. The entry before it is freed
/// after its last reader. Task; sleeps.
///
/// # Errors
///
/// `ENOSPC`: the limits of tables are reached. `EEXIST`: the file keeps its added rows, because
/// another user owns them or `state` does not come from a program. `ENOMEM`.
pub(crate) fn publish(key: &FileKey, state: &TableState, rows: Option<KBox<FileTable>>) -> Result {
    let rows = rows.map_or(core::ptr::null_mut(), KBox::into_raw);
    // SAFETY: `rows` come from `into_raw` and now belong to C. C returns them once, to
    // `sframe_unwind_free_rows` in `entry.rs`.
    let result = to_result(unsafe { bindings::sfu_table_publish(&key.0, state, rows.cast()) });
    if result.is_err() && !rows.is_null() {
        // SAFETY: C did not take `rows`, because the call failed, and `rows` come from `into_raw`.
        drop(unsafe { KBox::from_raw(rows) });
    }
    result
}

/// Removes the rows of a file from the published tables. Task; sleeps.
///
/// # Errors
///
/// `ENOENT`: the file has no rows. `EACCES`: the rows are another user's.
pub(crate) fn withdraw(key: &FileKey, user: u32) -> Result {
    // SAFETY: `key.0` is a valid `struct sfu_file_key` for the whole call.
    to_result(unsafe { bindings::sfu_table_remove(&key.0, user) })
}

/// Describes the entry with the lowest number above `number`. Task; sleeps.
///
/// # Errors
///
/// `ENOENT`: no entry has a higher number.
pub(crate) fn next_table(number: u64, table: &mut TableInfo) -> Result {
    // SAFETY: The caller's `&mut` keeps `table` exclusive and valid while C writes it.
    to_result(unsafe { bindings::sfu_table_next(number, table) })
}

/// The rows of the table with this number, if the table is still published. Any context.
pub(crate) fn table_rows<'a>(number: u64, _reader: &'a Guard) -> Option<&'a FileTable> {
    // SAFETY: Only `publish` publishes rows, and they are `FileTable`. C frees them after all RCU
    // readers of that time have ended; the guard is such a reader.
    unsafe {
        bindings::sfu_table_rows(number)
            .cast::<FileTable>()
            .as_ref()
    }
}

/// The guard of a region, as in `struct sframe_unwind_region`: a run-time address, 0 if there is no
/// guard, and a value.
#[derive(Clone, Copy, Default)]
pub(crate) struct RegionGuard {
    pub(crate) address: u64,
    pub(crate) value: u64,
}

/// The code cache of this CPU: the ranges of the current task's code that its walks used last. The
/// holder must not sleep.
pub(crate) struct CodeCache(NonNull<bindings::sfu_code_cache>);

impl CodeCache {
    /// Takes the cache. `None` if the mappings are changing, or if this code interrupted a walk
    /// that has taken the cache. Any context.
    pub(crate) fn enter() -> Option<Self> {
        // SAFETY: Walks run only for tasks with a mm; the hook's handler has checked this.
        NonNull::new(unsafe { bindings::sfu_code_cache_enter() }).map(Self)
    }

    /// The cache that a function of C has taken, if it has.
    ///
    /// # Safety
    ///
    /// `cache` is null, or `sfu_code_cache_enter` has returned it, and nobody else uses it or gives
    /// it back.
    #[inline(always)]
    pub(crate) const unsafe fn taken(cache: *mut bindings::sfu_code_cache) -> Option<Self> {
        match NonNull::new(cache) {
            Some(cache) => Some(Self(cache)),
            None => None,
        }
    }

    fn all(&mut self) -> &mut bindings::sfu_code_cache {
        // SAFETY: `enter` gave this CPU's cache to `self` alone, until `drop`. Preemption is off
        // until then.
        unsafe { self.0.as_mut() }
    }

    /// The ranges of code in the cache.
    pub(crate) fn ranges<'a>(&'a mut self, words: &'a PeekWords<'a>) -> Ranges<'a> {
        Ranges {
            all: self.all(),
            words,
        }
    }

    /// Inserts a range: the code of the table of `mapping`, `size` bytes from the run-time address
    /// `start` on. Does nothing if the mappings have changed since `mapping` was read.
    pub(crate) fn put(&mut self, start: u64, size: u64, mapping: &Mapping, guard: RegionGuard) {
        let all = self.all();
        if all.sequence as u32 != mapping.sequence {
            return;
        }
        let mut new = bindings::sfu_code_range {
            end: start.wrapping_add(size),
            start,
            to_distance: start.wrapping_neg(),
            to_offset: mapping.offset.wrapping_sub(mapping.start),
            rows: core::ptr::null(),
            walk: 0,
            inode: mapping.inode,
            key: core::ptr::null(),
            checked: core::ptr::null(),
            changed: 0,
            changed_nsec: 0,
            guard: guard.address,
            guard_value: guard.value,
        };
        // SAFETY: `self` is a `CodeCache`, so the call lies between `sfu_code_cache_enter` and
        // `sfu_code_cache_leave`. The state of the mappings is that of `mapping`.
        if !unsafe { bindings::sfu_code_range_find_table(&mut new, mapping.table) } {
            return;
        }
        // Ranges are sorted by address: the new range goes in front of the first range above it. If
        // all are used, the topmost range is dropped.
        let mut is_in = false;
        for range in all
            .ranges
            .iter_mut()
            .take(bindings::SFU_CODE_RANGES as usize)
        {
            if new.end <= range.start {
                core::mem::swap(range, &mut new);
                is_in = true;
            } else if new.start < range.end {
                // The same range; or other code was there before, or a region that was replaced.
                // Then the next walk begins without ranges.
                if range.inode == new.inode | u64::from(bindings::SFU_DOUBTFUL)
                    && (range.start, range.end) == (new.start, new.end)
                {
                    *range = new;
                } else if range.inode != new.inode {
                    all.id = 0;
                }
                return;
            }
        }
        if is_in && new.start != u64::MAX {
            // Nobody checks the dropped range any more, so its rules must not be used. SAFETY: As
            // above.
            unsafe { bindings::sfu_code_cache_renew(all) };
        }
    }
}

impl Drop for CodeCache {
    fn drop(&mut self) {
        // SAFETY: `enter` returned the cache to this value alone; `drop` gives it back once.
        unsafe { bindings::sfu_code_cache_leave(self.0.as_ptr()) };
    }
}

/// The place of a return address in `places` of a code cache.
#[inline(always)]
const fn place_of(ra: u64) -> usize {
    (ra >> 16) as usize % bindings::SFU_CODE_PLACES as usize
}

/// The ranges of code of a [`CodeCache`], and the words of the current task, for guards.
pub(crate) struct Ranges<'a> {
    all: &'a mut bindings::sfu_code_cache,
    words: &'a PeekWords<'a>,
}

impl Ranges<'_> {
    /// Calls `walk` with ranges that have no kept rules.
    #[cfg(any(sfu_compare, CONFIG_KUNIT = "y"))]
    pub(crate) fn without_kept_rules<T>(&mut self, walk: impl FnOnce(&mut Self) -> T) -> T {
        let rules = core::mem::replace(&mut self.all.rules, core::ptr::null_mut());
        let result = walk(self);
        self.all.rules = rules;
        result
    }

    /// Records that a walk has found `frames` frames, and has missed the kept rules of `misses` of
    /// them.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_misses(&mut self, frames: usize, misses: u32) {
        let balance = Balance::of(self.all.balance).after(frames as u32, misses);
        self.all.balance = balance.number();
    }
}

impl<'a> fast_path::Codes<'a> for Ranges<'a> {
    type Rows = FileTable;

    #[inline(always)]
    fn at(&mut self, ra: u64) -> Option<fast_path::CodeRange<'a, FileTable>> {
        // SAFETY: `self` borrows a `CodeCache` for `'a`.
        unsafe { range_at(self.all, self.words, ra) }
    }

    #[inline(always)]
    fn recent(&self, ra: u64) -> Option<fast_path::CodeRange<'a, FileTable>> {
        let place = self.all.places.get(place_of(ra))?;
        // SAFETY: A place is the distance of one of the ranges from the first: `at` has written it,
        // or it is 0.
        let range = unsafe { &*self.all.ranges.as_ptr().byte_add(usize::from(*place)) };
        // The range may be of another address. All that matters here is whether this walk has
        // checked the range. SAFETY: This walk has checked the range, and `self` borrows a
        // `CodeCache` for `'a`.
        (range.walk >= self.all.walk).then(|| unsafe { code_of(range) })
    }

    #[inline(always)]
    fn kept_rules(&mut self) -> Option<KeptRules<'a>> {
        let balance = Balance::of(self.all.balance);
        if !balance.is_good() {
            self.all.balance = balance.after_pause().number();
            return None;
        }
        let places = NonNull::new(self.all.rules)?;
        // SAFETY: The places are this CPU's, and live as long as the hooks do. `self` borrows a
        // `CodeCache` for `'a`: nobody else uses them until then. C has made each of them a
        // `KeptRule`: see the assertions below.
        let places = unsafe { places.cast::<[KeptRule; kept_rules::PLACES]>().as_ref() };
        Some(KeptRules::new(places, self.all.generation))
    }
}

const _: () = assert!(size_of::<KeptRule>() == size_of::<bindings::sfu_kept_rule>());
const _: () = assert!(kept_rules::PLACES == bindings::SFU_KEPT_RULES as usize);

/// The range that contains the byte in front of a return address, if the range is of use. The range
/// may also be one behind the byte: then no block holds the byte.
///
/// # Safety
///
/// A `CodeCache` exists for `'a`, and `cache` is its cache.
#[inline(never)]
unsafe fn range_at<'a>(
    cache: &mut bindings::sfu_code_cache,
    words: &PeekWords<'_>,
    ra: u64,
) -> Option<fast_path::CodeRange<'a, FileTable>> {
    let walk = cache.walk;
    // SAFETY: By this function's contract, `cache` is the cache of a `CodeCache`. The result is one
    // of its ranges.
    let range = unsafe { &mut *bindings::sfu_code_range_at(cache, ra) };
    // C has checked the files.
    if range.walk < walk {
        let is_region = range.inode as u32 & bindings::SFU_REGION != 0;
        if !is_region || !region_holds(range, words) {
            return None;
        }
        range.walk = walk;
    }
    // SAFETY: This walk has checked the range, and by this function's contract a `CodeCache` exists
    // for `'a`.
    Some(unsafe { code_of(range) })
}

/// Whether the region of a used range exists, and its guard holds. A read that fails gives 0, so
/// the value 0 never holds.
#[cold]
#[inline(never)]
fn region_holds(range: &bindings::sfu_code_range, words: &PeekWords<'_>) -> bool {
    let holds = || range.guard_value != 0 && words.word(range.guard) == range.guard_value;
    // SAFETY: C compares a field of the range, which the reference keeps valid, and follows no
    // pointer in it.
    (range.guard == 0 || holds()) && unsafe { bindings::sfu_code_range_has_region(range) }
}

/// A range in the form of the fast path. The distance of an address below the range wraps around,
/// so it is far beyond the range's end.
///
/// # Safety
///
/// This walk has checked the range, and a `CodeCache` exists for `'a`.
#[inline(always)]
unsafe fn code_of<'a>(range: &bindings::sfu_code_range) -> fast_path::CodeRange<'a, FileTable> {
    // SAFETY: `put` has set the rows of a range that a walk has checked.
    unsafe { hint::assert_unchecked(!range.rows.is_null()) };
    fast_path::CodeRange {
        to_distance: range.to_distance,
        may_keep: range.inode as u32 & bindings::SFU_REGION == 0,
        // SAFETY: Only `publish` publishes rows, and they are `FileTable`. C frees them after all
        // RCU readers of that time have ended; the holder of a `CodeCache` is such a reader,
        // because preemption is off.
        rows: unsafe { &*range.rows.cast::<FileTable>() },
    }
}

/// Code of a file that has a table.
pub(crate) struct KnownCode {
    /// The run-time addresses.
    pub(crate) code: Range<u64>,
    /// The number of the table.
    pub(crate) table: u64,
    /// The value to add to a run-time address to get an offset in the file, in bytes.
    pub(crate) to_offset: u64,
    /// Whether the code is that of a file, and not the vDSO.
    pub(crate) is_file: bool,
    /// Whether the code that no row covers is known to keep a frame pointer.
    pub(crate) keeps_frame_pointer: bool,
}

/// The code at a run-time address, if this CPU's code cache has it as the code of a file. This is
/// cheaper than a search of the mappings and tables. Any context.
#[inline(never)]
pub(crate) fn known_code(address: u64) -> Option<KnownCode> {
    let ra = address.wrapping_add(1);
    // To enter costs ten instructions for each file. SAFETY: C reads ranges of this CPU, which live
    // as long as the hooks do, up to the last one, which no address is behind.
    if !unsafe { bindings::sfu_code_cache_may_have(ra) } {
        return None;
    }
    let mut cache = CodeCache::enter()?;
    let all = cache.all();
    let walk = all.walk;
    // SAFETY: `cache` is a `CodeCache`, so the calls lie between `sfu_code_cache_enter` and
    // `sfu_code_cache_leave`. The result is one of the cache's ranges.
    let range = unsafe { &*bindings::sfu_code_range_at(all, ra) };
    let is_usable = range.walk >= walk && range.inode as u32 & bindings::SFU_REGION == 0;
    if !is_usable || !(range.start..range.end).contains(&address) {
        return None;
    }
    let mut keeps_frame_pointer = false;
    // SAFETY: As above. This walk has checked the range, which is that of a file, so its key is
    // that of a published table.
    let table = unsafe { bindings::sfu_code_range_table(range, &mut keeps_frame_pointer) };
    Some(KnownCode {
        code: range.start..range.end,
        table,
        to_offset: range.to_offset,
        is_file: range.inode != u64::from(bindings::SFU_NO_FILE),
        keeps_frame_pointer,
    })
}

/// Inserts the code at a run-time address into this CPU's code cache. `mapping` is a mapping of the
/// current task that has a table. `guard` is that of the mapping's region, if it is one. Any
/// context.
#[inline(never)]
pub(crate) fn keep_range(address: u64, mapping: &Mapping, guard: RegionGuard) {
    let reader = rcu::read_lock();
    let to_offset = mapping.offset.wrapping_sub(mapping.start);
    let code = table_rows(mapping.table, &reader)
        .and_then(|rows| rows.code(address.wrapping_add(to_offset)));
    let Some((offset, size)) = code else {
        return;
    };
    let start = offset.wrapping_sub(to_offset);
    // Blocks are searched by the low bytes of addresses. Files are mapped at multiples of a page of
    // memory.
    if start % PAGE != 0 {
        return;
    }
    let distance = start.wrapping_sub(mapping.start);
    let len = mapping.end.wrapping_sub(mapping.start);
    if distance > len || size > len.wrapping_sub(distance) {
        return;
    }
    if let Some(mut cache) = CodeCache::enter() {
        cache.put(start, size, mapping, guard);
    }
}

/// The rule of the table with this number for the code at an offset in its file, in bytes; and the
/// number of rows that were searched. Any context.
#[inline(never)]
pub(crate) fn rule_at(number: u64, offset: u64) -> (TableAnswer<()>, u32) {
    let guard = rcu::read_lock();
    match table_rows(number, &guard) {
        None => (TableAnswer::Gone, 0),
        Some(rows) => {
            let (rule, searched) = rows.search(offset);
            let answer = rule.map_or(TableAnswer::NoRow, |rule| TableAnswer::Rule(rule, ()));
            (answer, searched)
        }
    }
}
