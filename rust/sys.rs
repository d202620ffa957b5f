// SPDX-License-Identifier: GPL-2.0-only

//! The safe face of `helpers.c`: what the `kernel` crate does not offer.
//!
//! The only room with calls into C. Everything here works on the current task.

use crate::{
    sframe::{
        plain,
        unwind, //
    },
    tables::Rows, //
};
use core::{
    arch::asm,
    ffi::CStr,
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*,
    sync::rcu::Guard,
    transmute::{
        AsBytes,
        FromBytes, //
    }, //
};

/// Generated from `helpers.h`.
mod bindings {
    #![expect(unreachable_pub, dead_code, non_camel_case_types, clippy::all)]
    include!(env!("SFRAME_UNWIND_BINDINGS"));
}

pub(crate) use bindings::{
    sframe_unwind_add as AddRequest,
    sframe_unwind_counter as Counter,
    sframe_unwind_table as TableInfo,
    sfu_amount as Amount,
    sfu_mapping as Mapping,
    sfu_table_state as TableState,
    SFRAME_UNWIND_ADD as COMMAND_ADD,
    SFRAME_UNWIND_LIST as COMMAND_LIST,
    SFRAME_UNWIND_REMOVE as COMMAND_REMOVE,
    SFRAME_UNWIND_STATS as COMMAND_STATS,
    SFRAME_UNWIND_VDSO as FLAG_VDSO,
    SFU_COUNTERS, //
};

/// Errors that the `kernel` crate has names for since 7.3.
pub(crate) enum Errno {
    /// What was given contradicts itself.
    Malformed,
    /// The file is shorter than it says.
    NoData,
    /// What was given is of a kind that is not known.
    NotSupported,
    /// The file is another one by now.
    Stale,
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        let number = match errno {
            Errno::Malformed => kernel::bindings::EBADMSG,
            Errno::NoData => kernel::bindings::ENODATA,
            Errno::NotSupported => kernel::bindings::EOPNOTSUPP,
            Errno::Stale => kernel::bindings::ESTALE,
        };
        Self::from_errno((number as c_int).wrapping_neg())
    }
}

/// The registers of a user task that a walk starts from.
pub(crate) struct Registers<'a> {
    /// The program counter.
    pub(crate) pc: u64,
    /// The stack pointer.
    pub(crate) sp: u64,
    /// The frame pointer, whatever the code uses that register for.
    pub(crate) fp: u64,
    /// A `struct pt_regs` with all of them; null if only those above are known.
    all: *const c_void,
    _call: PhantomData<&'a ()>,
}

impl Registers<'_> {
    fn new(some: &bindings::sfu_registers, all: *const c_void) -> Self {
        Self {
            pc: some.pc,
            sp: some.sp,
            fp: some.fp,
            all,
            _call: PhantomData,
        }
    }

    /// These, and no others.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn only(pc: u64, sp: u64, fp: u64) -> Self {
        Self::new(&bindings::sfu_registers { pc, sp, fp }, core::ptr::null())
    }

    /// Whether the task is in the system call that ends a signal's handler. Any context.
    pub(crate) fn in_sigreturn(&self) -> bool {
        // SAFETY: As in `register`.
        !self.all.is_null() && unsafe { bindings::sfu_in_sigreturn(self.all) }
    }
}

impl unwind::Registers for Registers<'_> {
    fn register(&self, number: u8) -> Option<u64> {
        if self.all.is_null() {
            return None;
        }
        let mut value = 0;
        // SAFETY: `all` is not null, so it points to a `struct pt_regs` that is there as long as
        // the call that gave it.
        unsafe { bindings::sfu_register(self.all, number.into(), &mut value) }.then_some(value)
    }
}

/// A context that the kernel runs in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// A task, which may hold any lock.
    Task,
    /// An interrupt.
    Irq,
    /// A non-maskable interrupt.
    Nmi,
}

type Wanted = unsafe extern "C" fn() -> bool;
type Immediate = unsafe extern "C" fn(*mut c_void, *const c_void);
type Deferred = unsafe extern "C" fn(*mut c_void, c_uint) -> c_int;

/// What perf gives to `perf_callchain_user`: registers to start from and room for a chain.
pub(crate) struct ImmediateCall<'a> {
    entry: *mut c_void,
    regs: *const c_void,
    _call: PhantomData<&'a mut ()>,
}

impl<'a> ImmediateCall<'a> {
    /// # Safety
    ///
    /// The pointers are those that `perf_callchain_user` was called with, and are used for no
    /// longer than that call lasts.
    unsafe fn new(entry: *mut c_void, regs: *const c_void) -> Self {
        Self {
            entry,
            regs,
            _call: PhantomData,
        }
    }

    /// The user registers. Any context.
    pub(crate) fn registers(&self) -> Registers<'a> {
        let mut registers = Default::default();
        // SAFETY: `regs` points to a `struct pt_regs` by the contract of `new`.
        unsafe { bindings::sfu_registers_of(self.regs, &mut registers) };
        Registers::new(&registers, self.regs)
    }

    /// Adds an address to the chain; false if it is full. Any context.
    pub(crate) fn store(&mut self, address: u64) -> bool {
        // SAFETY: `entry` points to a `struct perf_callchain_entry_ctx` by the contract of `new`.
        unsafe { bindings::sfu_store_immediate(self.entry, address) }
    }

    /// Where the next addresses of the chain go. Any context.
    pub(crate) fn room(&mut self) -> &mut [u64] {
        let mut left = 0;
        // SAFETY: As in `store`; what comes back has room for `left` addresses, and is this call's.
        unsafe {
            let room = bindings::sfu_room_immediate(self.entry, &mut left);
            core::slice::from_raw_parts_mut(room, left as usize)
        }
    }

    /// So many have been put there. Any context.
    pub(crate) fn stored(&mut self, count: usize) {
        // SAFETY: As in `store`. There are no more than there was room for.
        unsafe { bindings::sfu_stored_immediate(self.entry, count as c_uint) };
    }
}

/// What the kernel gives to `unwind_user`: room for a trace.
///
/// While it lives the module cannot go away, although the task may sleep.
pub(crate) struct DeferredCall<'a> {
    trace: *mut c_void,
    max_entries: c_uint,
    token: c_int,
    _call: PhantomData<&'a mut ()>,
}

impl<'a> DeferredCall<'a> {
    /// # Safety
    ///
    /// `trace` and `max_entries` are those that `unwind_user` was called with, and are used for no
    /// longer than that call lasts.
    unsafe fn new(trace: *mut c_void, max_entries: c_uint) -> Self {
        Self {
            trace,
            max_entries,
            // SAFETY: The hooks were installed, or nothing would have called; `trace` points to a
            // `struct unwind_stacktrace`.
            token: unsafe { bindings::sfu_deferred_enter(trace) },
            _call: PhantomData,
        }
    }

    /// The user registers.
    pub(crate) fn registers(&self) -> Registers<'a> {
        let mut registers = Default::default();
        // SAFETY: The current task is a user task, or it would have been left alone.
        let all = unsafe { bindings::sfu_registers_of_current(&mut registers) };
        Registers::new(&registers, all)
    }

    /// Adds an address to the trace; false if it is full.
    pub(crate) fn store(&mut self, address: u64) -> bool {
        // SAFETY: `trace` points to a `struct unwind_stacktrace` with room for `max_entries`, by
        // the contract of `new`.
        unsafe { bindings::sfu_store_deferred(self.trace, self.max_entries, address) }
    }

    /// Where the next addresses of the trace go.
    pub(crate) fn room(&mut self) -> &mut [u64] {
        let mut left = 0;
        // SAFETY: As in `store`; what comes back has room for `left` addresses, and is this call's.
        unsafe {
            let room = bindings::sfu_room_deferred(self.trace, self.max_entries, &mut left);
            core::slice::from_raw_parts_mut(room, left as usize)
        }
    }

    /// So many have been put there.
    pub(crate) fn stored(&mut self, count: usize) {
        // SAFETY: As in `store`. There are no more than there was room for.
        unsafe { bindings::sfu_stored_deferred(self.trace, count as c_uint) };
    }
}

impl Drop for DeferredCall<'_> {
    fn drop(&mut self) {
        // SAFETY: `token` comes from `sfu_deferred_enter` in this task, and is used once.
        unsafe { bindings::sfu_deferred_leave(self.token) };
    }
}

/// Says whether this task's stack is ours to walk. NMI, IRQ or task, preemption off.
#[no_mangle]
extern "C" fn sframe_unwind_wanted() -> bool {
    super::hook::wanted()
}

/// Replaces `perf_callchain_user`. NMI, IRQ or task; never sleeps.
///
/// # Safety
///
/// To be called as `perf_callchain_user` is, by the redirection in `helpers.c` alone.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_immediate(entry: *mut c_void, regs: *const c_void) {
    // SAFETY: The redirection leaves the arguments of `perf_callchain_user` as they are.
    super::hook::immediate(unsafe { ImmediateCall::new(entry, regs) });
}

/// Replaces `unwind_user`. Task; may sleep.
///
/// # Safety
///
/// To be called as `unwind_user` is, by the redirection in `helpers.c` alone.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_deferred(trace: *mut c_void, max_entries: c_uint) -> c_int {
    if max_entries == 0 {
        // As the kernel's own does.
        return EINVAL.to_errno();
    }
    // SAFETY: The redirection leaves the arguments of `unwind_user` as they are.
    super::hook::deferred(unsafe { DeferredCall::new(trace, max_entries) });
    0
}

/// Hooks that are in. Dropping it takes them out and waits until none is running.
pub(crate) struct Hooks(());

impl Hooks {
    /// Puts the chosen hooks in. Task; may sleep. The reason of a failure is in the kernel log.
    pub(crate) fn install(immediate: bool, deferred: bool) -> Result<Self> {
        // What `helpers.h` declares and what is defined here are of the same types.
        let _: [Wanted; 2] = [bindings::sframe_unwind_wanted, sframe_unwind_wanted];
        let _: [Immediate; 2] = [bindings::sframe_unwind_immediate, sframe_unwind_immediate];
        let _: [Deferred; 2] = [bindings::sframe_unwind_deferred, sframe_unwind_deferred];

        // SAFETY: The functions that it will call are in this file, and stay while `Self` lives.
        to_result(unsafe { bindings::sfu_hook_install(immediate, deferred) })?;
        Ok(Self(()))
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        // SAFETY: They were installed once, by `install`.
        unsafe { bindings::sfu_hook_remove() };
    }
}

// SAFETY: Plain numbers without gaps between them, of which all values are allowed.
unsafe impl FromBytes for AddRequest {}
// SAFETY: The same.
unsafe impl FromBytes for TableInfo {}
// SAFETY: The same.
unsafe impl AsBytes for TableInfo {}
// SAFETY: The same.
unsafe impl FromBytes for Counter {}
// SAFETY: The same.
unsafe impl AsBytes for Counter {}

/// The worker that faults in pages which an interrupt missed, and looks at files that were met. To
/// be dropped after [`Hooks`], and before [`Tables`].
pub(crate) struct Worker(());

impl Worker {
    /// Starts it. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: Called once, before anything can queue.
        to_result(unsafe { bindings::sfu_faults_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: It was started once, and nothing queues any more: the hooks are out.
        unsafe { bindings::sfu_faults_stop() };
    }
}

/// An open file, for no longer than a call of the task that has it open, or of the worker. Task;
/// may sleep.
pub(crate) struct File {
    file: *mut c_void,
    is_borrowed: bool,
}

impl File {
    /// The regular file of a descriptor.
    pub(crate) fn open(descriptor: i32) -> Result<Self> {
        let mut file = core::ptr::null_mut();
        // SAFETY: `file` has room for a pointer.
        to_result(unsafe { bindings::sfu_file_open(descriptor, &mut file) })?;
        Ok(Self {
            file,
            is_borrowed: false,
        })
    }

    /// Reads bytes at an offset, in bytes: all, or none.
    pub(crate) fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result {
        let len = c_uint::try_from(bytes.len())?;
        // SAFETY: `self.file` is an open file, and `bytes` has room for `len`.
        to_result(unsafe {
            bindings::sfu_file_read(self.file, offset, bytes.as_mut_ptr().cast(), len)
        })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.is_borrowed {
            // SAFETY: It was opened once, by `open`.
            unsafe { bindings::sfu_file_close(self.file) };
        }
    }
}

/// What tells a file, as it is now, from all others.
#[derive(Clone, Copy)]
pub(crate) struct FileKey(bindings::sfu_file_key);

impl FileKey {
    /// That of a file. Task; may sleep. Whatever is written to the file later makes it another one.
    pub(crate) fn of(file: &File) -> Self {
        let mut key = Self::vdso();
        // SAFETY: `file.file` is an open file.
        unsafe { bindings::sfu_file_key_of(file.file, &mut key.0) };
        key
    }

    /// That of the vDSO, which is no file.
    pub(crate) fn vdso() -> Self {
        Self(Default::default())
    }

    /// Whether anything is known of it. Any context.
    pub(crate) fn is_known(&self) -> bool {
        // SAFETY: The key is one.
        unsafe { bindings::sfu_is_known(&self.0) }
    }
}

impl PartialEq for FileKey {
    fn eq(&self, other: &Self) -> bool {
        let parts = |key: &bindings::sfu_file_key| {
            (
                (key.number, key.device, key.generation),
                (key.size, key.modified, key.modified_nsec),
            )
        };
        parts(&self.0) == parts(&other.0)
    }
}

/// What is known of a file; those of [`TableState::origin`].
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
    // SAFETY: The rows are given away, to be given back by `sframe_unwind_free_rows`.
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
    // SAFETY: The key is one.
    to_result(unsafe { bindings::sfu_table_remove(&key.0, user) })
}

/// What is known of the file with the next number after `number`. Task; sleeps.
///
/// # Errors
///
/// `ENOENT`: there is none.
pub(crate) fn next_table(number: u64, table: &mut TableInfo) -> Result {
    // SAFETY: `table` is there to be written to.
    to_result(unsafe { bindings::sfu_table_next(number, table) })
}

/// The rows of this number, if they are there. Any context.
pub(crate) fn table_rows<'a>(number: u64, _reader: &'a Guard) -> Option<&'a Rows> {
    // SAFETY: What is published are `Rows`, and they stay as long as there is a reader.
    unsafe { bindings::sfu_table_rows(number).cast::<Rows>().as_ref() }
}

/// The code of the current task that this CPU has met last and that has rows. As long as it lives
/// nothing may sleep.
pub(crate) struct Places(NonNull<bindings::sfu_places>);

impl Places {
    /// `None` if it is not to be had here. `address` is one that the task can read. Any context.
    pub(crate) fn enter(address: u64) -> Option<Self> {
        // SAFETY: Any address will do.
        NonNull::new(unsafe { bindings::sfu_places_enter(address) }).map(Self)
    }

    fn all(&mut self) -> &mut bindings::sfu_places {
        // SAFETY: They are of this CPU, and of nobody else until `drop`.
        unsafe { self.0.as_mut() }
    }

    /// The code, and the task's memory.
    pub(crate) fn parts(&mut self) -> (Codes<'_>, Peek<'_>) {
        (Codes(self.all()), Peek(PhantomData))
    }

    /// Takes in the code of a table, of `size` bytes, that `mapping` has from the run-time address `start`
    /// on, if that is still so.
    pub(crate) fn put(&mut self, start: u64, size: u64, mapping: &Mapping) {
        let all = self.all();
        if all.sequence as u32 != mapping.sequence {
            return;
        }
        let mut new = bindings::sfu_place {
            end: start.wrapping_add(size),
            start,
            table: mapping.table,
            inode: mapping.inode,
            rows: core::ptr::null(),
            // No walk has it.
            walk: 0,
        };
        // All of them are there by address, so it goes in front of the first one that is further up; and if
        // there are too many that one is forgotten which is up furthest.
        for place in &mut all.places {
            if place.start == start {
                return;
            }
            if new.end <= place.start {
                core::mem::swap(place, &mut new);
            }
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        // SAFETY: They come from `enter`.
        unsafe { bindings::sfu_places_leave(self.0.as_ptr()) };
    }
}

/// The code of [`Places`].
pub(crate) struct Codes<'a>(&'a mut bindings::sfu_places);

impl<'a> plain::Codes<'a> for Codes<'a> {
    type Rows = Rows;

    #[inline(always)]
    fn at(&mut self, address: u64) -> Option<plain::Code<'a, Rows>> {
        let mut places = self.0.places.iter_mut();
        let place = places.find(|place| address < place.end)?;
        if address < place.start {
            return None;
        }
        if place.walk != self.0.walk {
            look_at(place, self.0.walk);
        }
        Some(plain::Code {
            to_rows: place.start.wrapping_neg(),
            // SAFETY: What is published are `Rows`, and they stay as long as there are `Places`.
            rows: unsafe { place.rows.cast::<Rows>().as_ref() }?,
        })
    }
}

/// Finds the rows of a place, for a walk: once in each, as file and table may have changed since the last
/// one.
#[cold]
#[inline(never)]
fn look_at(place: &mut bindings::sfu_place, walk: u64) {
    // SAFETY: The place is one of `Places` that are there.
    place.rows = unsafe { bindings::sfu_place_rows(place) };
    place.walk = walk;
}

/// User memory while there are [`Places`]. Never faults in.
pub(crate) struct Peek<'a>(PhantomData<&'a ()>);

impl plain::Words for Peek<'_> {
    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        let word;
        // SAFETY: That is how `get_user` calls it, with page faults off. It checks the address, changes
        // these registers alone, and leaves 0 where nothing can be read.
        unsafe {
            asm!(
                "call __get_user_8",
                inout("rax") address => _,
                out("rdx") word,
                options(nomem),
            );
        }
        word
    }
}

/// Frees what `publish` gave away.
///
/// # Safety
///
/// `rows` come from `publish`, and no reader can have them any more.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_free_rows(rows: *mut c_void) {
    // SAFETY: By the contract of this function.
    drop(unsafe { KBox::<Rows>::from_raw(rows.cast()) });
}

/// The worker has met a file. Task; sleeps.
///
/// # Safety
///
/// `file` is an open file, and `met` points to where it was met, as long as the call lasts.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_meet(file: *mut c_void, met: *const TableState, may_read: bool) {
    let file = File {
        file,
        is_borrowed: true,
    };
    // SAFETY: By the contract of this function.
    super::tables::meet(&file, unsafe { &*met }, may_read);
}

/// The device was told something. Task; sleeps.
#[no_mangle]
extern "C" fn sframe_unwind_control(command: c_uint, argument: u64, user: u32) -> c_int {
    let result = usize::try_from(argument)
        .map_err(Error::from)
        .and_then(|argument| super::control::control(command, argument, user));
    match result {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// All tables. Dropping it frees them. To be dropped after [`Hooks`] and [`Worker`].
pub(crate) struct Tables(());

impl Tables {
    /// There are none yet. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: Called once, before anything can be published.
        to_result(unsafe { bindings::sfu_tables_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        // SAFETY: Nobody finds or adds any more: hooks, worker and device are gone.
        unsafe { bindings::sfu_tables_stop() };
    }
}

/// `/dev/sframe_unwind`. To be dropped before all else.
pub(crate) struct Device(());

impl Device {
    /// From now on it can be opened. Task; may sleep.
    pub(crate) fn start() -> Result<Self> {
        // SAFETY: Called once, when all else is there.
        to_result(unsafe { bindings::sfu_device_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: It was started once, and nobody has it open: that holds the module.
        unsafe { bindings::sfu_device_stop() };
    }
}

/// The run-time address of the vDSO of the current task, if it has one.
pub(crate) fn vdso() -> Option<u64> {
    // SAFETY: The current task has a mm: it calls from user space.
    match unsafe { bindings::sfu_vdso() } {
        0 => None,
        address => Some(address),
    }
}

/// The context that this runs in.
pub(crate) fn level() -> Level {
    // SAFETY: May be called anywhere.
    match unsafe { bindings::sfu_current_context() } {
        bindings::sfu_context::SFU_NMI => Level::Nmi,
        bindings::sfu_context::SFU_IRQ => Level::Irq,
        _ => Level::Task,
    }
}

/// Reads user memory at a run-time address, any value of it; false if it cannot. Any context; never
/// faults in.
#[inline]
pub(crate) fn read_user<const N: usize>(bytes: &mut [u8; N], address: u64) -> bool {
    // SAFETY: `bytes` has room for `N` bytes, and the C side checks the user address.
    unsafe {
        bindings::sfu_read_user(bytes.as_mut_ptr().cast(), address, const { N as c_uint }) == 0
    }
}

/// Faults user memory in. Only in a task that may sleep, and may sleep for ever; fails where there
/// is no memory, or where the module is about to go.
pub(crate) fn fault_in(address: u64, len: u32) -> bool {
    // SAFETY: The C side checks the address. The caller may sleep.
    unsafe { bindings::sfu_fault_in(address, len) == 0 }
}

/// Asks the worker to fault in the page at a run-time address of this task. Any context. It is a
/// wish: it is lost if there are too many.
pub(crate) fn queue_fault_in(address: u64) -> bool {
    // SAFETY: The C side checks the address, and that there is a mm.
    unsafe { bindings::sfu_queue_fault_in(address) }
}

/// Asks the worker to look at the file that this task has mapped at a run-time address. Any context.
/// It is a wish: it is lost, and false, if there are too many.
pub(crate) fn queue_file(address: u64) -> bool {
    // SAFETY: The C side checks the address, and that there is a mm.
    unsafe { bindings::sfu_queue_file(address) }
}

/// Whether there may be uprobes in the current task's code. Any context.
pub(crate) fn is_probed() -> bool {
    // SAFETY: The current task is a user task, or it would have been left alone; a test's thread
    // has a mm too.
    unsafe { bindings::sfu_is_probed() }
}

/// The address of the instruction that the task is at with a user's PC of `pc`: another one if
/// there is a uprobe on it, and it runs out of line or is about to be. Any context.
pub(crate) fn in_line(pc: u64) -> u64 {
    // SAFETY: It works on the current task alone.
    unsafe { bindings::sfu_in_line(pc) }
}

/// The return address that a uretprobe took from the stack at `slot`, if one did. Any context.
pub(crate) fn taken_by_uretprobe(slot: u64) -> Option<u64> {
    let mut address = 0;
    // SAFETY: `address` is there to be written to.
    unsafe { bindings::sfu_taken_by_uretprobe(slot, &mut address) }.then_some(address)
}

/// Finds what is mapped at a run-time address. Any context; takes no lock.
///
/// # Errors
///
/// `ENOENT` if nothing is, `EAGAIN` if the mappings were changing.
pub(crate) fn find_mapping(address: u64, mapping: &mut Mapping) -> Result {
    // SAFETY: `mapping` is there to be written to.
    to_result(unsafe { bindings::sfu_find_mapping(address, mapping) })
}

/// Finds the next mapping that is executable, of a file, and ends above the run-time address
/// `address`; looks at no more than `limit`. Any context; takes no lock.
///
/// # Errors
///
/// `ENOENT` if there is none, `EAGAIN` if it is not known.
pub(crate) fn next_executable(address: u64, limit: u32) -> Result<Mapping> {
    let mut mapping = Mapping::default();
    // SAFETY: `mapping` is there to be written to, and the current task has a mm.
    to_result(unsafe { bindings::sfu_next_executable(address, limit, &mut mapping) })?;
    Ok(mapping)
}

/// What tells two states of the current task's mappings apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappingsVersion {
    id: u64,
    sequence: u64,
}

impl MappingsVersion {
    /// The state now. Any context.
    pub(crate) fn now() -> Self {
        let (mut id, mut sequence) = (0, 0);
        // SAFETY: Both are there to be written to, and the current task has a mm.
        unsafe { bindings::sfu_mappings_version(&mut id, &mut sequence) };
        Self { id, sequence }
    }

    /// Whether the mappings are being changed now.
    pub(crate) const fn is_moving(self) -> bool {
        self.sequence & 1 != 0
    }

    /// The state before the change that is under way, or this one if none is.
    pub(crate) const fn settled(self) -> Self {
        Self {
            id: self.id,
            sequence: self.sequence & !1,
        }
    }

    /// The verdict that was kept for this state, if this CPU has it. Preemption off.
    pub(crate) fn verdict(self) -> Option<bool> {
        // SAFETY: Preemption is off in the handler that asks.
        match unsafe { bindings::sfu_recall_verdict(self.id, self.sequence) } {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Keeps a verdict for this state, on this CPU. Preemption off.
    pub(crate) fn keep_verdict(self, verdict: bool) {
        // SAFETY: Preemption is off in the handler that tells.
        unsafe { bindings::sfu_keep_verdict(self.id, self.sequence, verdict) };
    }
}

/// Adds to counters of this CPU. Any context. Counters beyond [`SFU_COUNTERS`] are not there.
pub(crate) fn count<const N: usize>(amounts: &[Amount; N]) {
    // SAFETY: They are `N`, and the C side checks their numbers.
    unsafe { bindings::sfu_count(amounts.as_ptr(), const { N as c_uint }) };
}

/// The sum of a counter over all CPUs.
pub(crate) fn counted(counter: u32) -> u64 {
    // SAFETY: The C side checks the number.
    unsafe { bindings::sfu_counted(counter) }
}

/// Fires the tracepoint `sframe_unwind:walk`. Any context.
pub(crate) fn trace_walk(context: &CStr, frames: u32, reason: &CStr) {
    // SAFETY: Both strings end with NUL and live through the call.
    unsafe { bindings::sfu_trace_walk(context.as_ptr().cast(), frames, reason.as_ptr().cast()) };
}

/// User memory for KUnit tests.
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) mod test {
    use super::*;

    /// Maps `len` bytes of user memory for the running test, and returns their run-time address.
    pub(crate) fn map(len: u64, executable: bool) -> Result<u64> {
        // SAFETY: Called from a KUnit test, in a task.
        let address = unsafe { bindings::sfu_test_map(len, executable) };
        match u64::try_from(address) {
            Ok(address) if address != 0 => Ok(address),
            _ => Err(ENOMEM),
        }
    }

    /// Takes user memory of the running test away.
    pub(crate) fn unmap(address: u64, len: u64) -> Result {
        // SAFETY: It only unmaps user memory of the test's own.
        to_result(unsafe { bindings::sfu_test_unmap(address, len) })
    }

    /// Writes to user memory of the running test.
    pub(crate) fn write(address: u64, bytes: &[u8]) -> Result {
        let len = c_uint::try_from(bytes.len())?;
        // SAFETY: `bytes` are `len` bytes; the C side checks the user address.
        to_result(unsafe { bindings::sfu_test_write(address, bytes.as_ptr().cast(), len) })
    }
}
