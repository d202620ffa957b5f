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
    mem::MaybeUninit,
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
    sfu_mapping as Mapping,
    sfu_table_state as TableState,
    SFRAME_UNWIND_ADD as COMMAND_ADD,
    SFRAME_UNWIND_LIST as COMMAND_LIST,
    SFRAME_UNWIND_REMOVE as COMMAND_REMOVE,
    SFRAME_UNWIND_STATS as COMMAND_STATS,
    SFRAME_UNWIND_VDSO as FLAG_VDSO,
    SFU_COUNTERS,
    SFU_DEFERRED,
    SFU_IN_EXEC,
    SFU_IRQ,
    SFU_LEFT_TO_KERNEL,
    SFU_NMI, //
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

/// All registers of the user task that is walked.
#[derive(Clone, Copy)]
pub(crate) struct Registers<'a> {
    /// A `struct pt_regs`, or null if none is known.
    all: *const c_void,
    _call: PhantomData<&'a ()>,
}

impl Registers<'_> {
    /// None is known.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) const NONE: Self = Self {
        all: core::ptr::null(),
        _call: PhantomData,
    };

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

/// Where a walk runs, as far as it matters for what it may do.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Context {
    /// In a task that may hold any lock: tracepoints, kprobes, BPF.
    Task,
    /// In an interrupt.
    Irq,
    /// In a non-maskable interrupt.
    Nmi,
    /// In the task on its way back to user space, where it may sleep.
    Deferred,
}

type Wanted = unsafe extern "C" fn() -> bool;
type Immediate = unsafe extern "C" fn(*mut c_void, *const c_void);
type Deferred = unsafe extern "C" fn(*mut c_void, c_uint) -> c_int;

/// Says whether this task's stack is ours to walk, where no verdict was kept. NMI, IRQ or task,
/// preemption off.
#[no_mangle]
extern "C" fn sframe_unwind_wanted() -> bool {
    super::hook::wanted()
}

/// What a walk begins with.
pub(crate) struct Begin<'a> {
    /// The innermost frame.
    pub(crate) frame: unwind::Frame,
    /// All registers there.
    pub(crate) registers: Registers<'a>,
    /// Whether there may be uprobes in the task's code.
    pub(crate) is_probed: bool,
    /// Where it runs.
    pub(crate) context: Context,
    /// Where the addresses of the stack go.
    pub(crate) room: &'a mut [u64],
}

impl<'a> Begin<'a> {
    /// # Safety
    ///
    /// `call` is what `helpers.c` has made of one that is there for `'a`, and this is called once for it.
    #[inline(always)]
    unsafe fn of(call: &bindings::sfu_call) -> Self {
        Self {
            frame: unwind::Frame {
                pc: call.pc,
                sp: call.sp,
                fp: call.fp,
            },
            registers: Registers {
                all: call.registers,
                _call: PhantomData,
            },
            is_probed: call.is_probed,
            context: match call.context {
                SFU_NMI => Context::Nmi,
                SFU_IRQ => Context::Irq,
                SFU_DEFERRED => Context::Deferred,
                _ => Context::Task,
            },
            // SAFETY: There is that room, and it is this call's.
            room: unsafe { core::slice::from_raw_parts_mut(call.room, call.left as usize) },
        }
    }
}

/// Replaces `perf_callchain_user`. NMI, IRQ or task; never sleeps.
///
/// # Safety
///
/// To be called as `perf_callchain_user` is, by the redirection in `helpers.c` alone.
#[no_mangle]
unsafe extern "C" fn sframe_unwind_immediate(entry: *mut c_void, regs: *const c_void) {
    let begin = {
        let mut call = MaybeUninit::uninit();
        // SAFETY: The redirection leaves the arguments of `perf_callchain_user` as they are. All of `call`
        // is written.
        unsafe {
            bindings::sfu_immediate_enter(entry, regs, call.as_mut_ptr());
            Begin::of(call.assume_init_ref())
        }
    };
    let count = super::hook::immediate(begin);
    // SAFETY: There are no more than there was room for.
    unsafe { bindings::sfu_immediate_leave(entry, count as c_uint) };
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
    let (begin, token) = {
        let mut call = MaybeUninit::uninit();
        // SAFETY: The redirection leaves the arguments of `unwind_user` as they are, and the current task
        // is a user task, or it would have been left alone. All of `call` is written.
        unsafe {
            let token = bindings::sfu_deferred_enter(trace, max_entries, call.as_mut_ptr());
            (Begin::of(call.assume_init_ref()), token)
        }
    };
    let count = super::hook::deferred(begin);
    // SAFETY: `token` is of this call, and there are no more addresses than there was room for.
    unsafe { bindings::sfu_deferred_leave(trace, count as c_uint, token) };
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
    /// `None` if it is not to be had here. Any context.
    pub(crate) fn enter() -> Option<Self> {
        // SAFETY: It may be called anywhere, for a task that has a mm.
        NonNull::new(unsafe { bindings::sfu_places_enter() }).map(Self)
    }

    fn all(&mut self) -> &mut bindings::sfu_places {
        // SAFETY: They are of this CPU, and of nobody else until `drop`.
        unsafe { self.0.as_mut() }
    }

    /// The code.
    pub(crate) fn codes(&mut self) -> Codes<'_> {
        Codes(self.all())
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
            rows: core::ptr::null(),
            // No walk has it.
            walk: 0,
            inode: mapping.inode,
            table: core::ptr::null_mut(),
        };
        // SAFETY: There are `Places`.
        if !unsafe { bindings::sfu_place_put_in(&mut new, mapping.table) } {
            return;
        }
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

    // Not inlined, which would have the address of each place be at hand in a walk.
    #[inline(never)]
    fn at(&mut self, address: u64) -> Option<plain::Code<'a, Rows>> {
        let walk = self.0.walk;
        let mut places = self.0.places.iter_mut();
        let place = places.find(|place| address < place.end)?;
        if place.walk != walk {
            // SAFETY: There are `Places` for `'a`.
            return unsafe { look_at(place, walk) };
        }
        // SAFETY: It is of this walk.
        Some(unsafe { code_of(place) })
    }
}

/// Looks whether there is anything, and whether the file has been written to: once in a walk.
///
/// # Safety
///
/// There are `Places` for `'a`, and the place is one of theirs.
#[cold]
#[inline(never)]
unsafe fn look_at<'a>(place: &mut bindings::sfu_place, walk: u64) -> Option<plain::Code<'a, Rows>> {
    // SAFETY: `put` has put something in, or it would begin at the end of all addresses.
    if place.start == u64::MAX || !unsafe { bindings::sfu_place_is_current(place) } {
        return None;
    }
    place.walk = walk;
    // SAFETY: Now it is of this walk.
    Some(unsafe { code_of(place) })
}

/// What lies in front of the place is far behind its end.
///
/// # Safety
///
/// The place is of this walk, and there are `Places` for `'a`.
#[inline(always)]
unsafe fn code_of<'a>(place: &bindings::sfu_place) -> plain::Code<'a, Rows> {
    plain::Code {
        to_rows: place.start.wrapping_neg(),
        // SAFETY: What is published are `Rows`, and they stay as long as there are `Places`.
        rows: unsafe { &*place.rows.cast::<Rows>() },
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
            // SAFETY: Any address will do.
            is_own: unsafe { bindings::sfu_peek_enter(address) },
        }
    }

    /// Its words, if it is sure whose they are.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<Words<'_>> {
        self.is_own.then_some(Words(PhantomData))
    }

    /// Whether it is sure whose they are.
    #[inline(always)]
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Reads bytes at a run-time address, any value of it, if it is sure whose they are.
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

    /// Reads bytes at a run-time address, any value of it, whosever they are; false if it cannot.
    pub(crate) fn copy(&self, bytes: &mut [u8], address: u64) -> bool {
        let len = bytes.len() as c_uint;
        // SAFETY: `bytes` has room for them, and the C side checks the user address.
        unsafe { bindings::sfu_read_user(bytes.as_mut_ptr().cast(), address, len) == 0 }
    }

    /// Faults memory in. Only in a task that may sleep, and may sleep for ever; fails where there is no
    /// memory, or where the module is about to go.
    pub(crate) fn fault_in(&self, address: u64, len: u32) -> bool {
        // SAFETY: The C side checks the address. The caller may sleep, and there is a `Peek`.
        unsafe { bindings::sfu_fault_in(address, len) == 0 }
    }
}

impl Drop for Peek {
    fn drop(&mut self) {
        // SAFETY: It was entered, by `enter`.
        unsafe { bindings::sfu_peek_leave() };
    }
}

/// Those of [`Peek`].
pub(crate) struct Words<'a>(PhantomData<&'a Peek>);

impl plain::Words for Words<'_> {
    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        get_user!(address, "__get_user_8").1
    }
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

    /// Keeps a verdict for this state, on this CPU. Preemption off.
    pub(crate) fn keep_verdict(self, verdict: bool) {
        // SAFETY: Preemption is off in the handler that tells.
        unsafe { bindings::sfu_keep_verdict(self.id, self.sequence, verdict) };
    }
}

/// Adds to a counter of this CPU. Any context. Counters beyond [`SFU_COUNTERS`] are not there.
#[inline(always)]
pub(crate) fn count(counter: u32, amount: u32) {
    if counter >= SFU_COUNTERS {
        return;
    }
    // SAFETY: Each CPU has that many numbers there, from where its %gs points on, and this is one
    // instruction. The flags are all else that it changes.
    unsafe {
        asm!(
            "add qword ptr gs:[{place}], {amount}",
            place = in(reg) bindings::sfu_counters.wrapping_add(counter as usize),
            amount = in(reg) u64::from(amount),
            options(nostack),
        );
    }
}

/// The sum of a counter over all CPUs.
pub(crate) fn counted(counter: u32) -> u64 {
    // SAFETY: The C side checks the number.
    unsafe { bindings::sfu_counted(counter) }
}

/// Fires the tracepoint `sframe_unwind:sframe_unwind_walk`. Any context.
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
