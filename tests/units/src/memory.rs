// SPDX-License-Identifier: GPL-2.0-only

//! The memory of a process that charges as the module's memory, and counts.
//!
//! The module's own code (`rust/user_memory.rs`, `rust/sys/memory.rs`, `get_user.rs`) makes each
//! read and takes the work. Below it, `__get_user` here takes the bytes from the input: that is not
//! counted, and instructions without an effect stand for the kernel's. A read that fails takes no
//! page fault here, and its units are not counted.

use std::{
    arch::{
        asm,
        global_asm, //
    },
    cell::Cell,
    hint,
    marker::PhantomData, //
};

use sframe::{
    bytes::{
        Fault,
        Source, //
    },
    unwind::Memory, //
};

use crate::{
    sys::PeekWords,
    user_memory::{
        work_of_read,
        work_of_read_into,
        Part,
        UserMemory,
        UNIT, //
    }, //
};

/// The bytes of a process.
pub(crate) trait InputBytes {
    /// Reads bytes at a run-time address; false if one of them is not there.
    fn read(&self, address: u64, to: &mut [u8]) -> bool;
}

/// No bytes.
struct NoInput;

impl InputBytes for NoInput {
    fn read(&self, _address: u64, _to: &mut [u8]) -> bool {
        false
    }
}

thread_local! {
    /// The bytes of the process whose stack is walked.
    static CURRENT: Cell<&'static dyn InputBytes> = const { Cell::new(&NoInput) };
}

/// An error, or 0 and a number.
#[repr(C)]
struct NumberRead {
    error: u64,
    number: u64,
}

/// Reads a number of `len` bytes.
extern "C" fn read_current(address: u64, len: usize) -> NumberRead {
    let mut bytes = [0; 8];
    match CURRENT.get().read(address, &mut bytes[..len]) {
        true => NumberRead {
            error: 0,
            number: u64::from_le_bytes(bytes),
        },
        false => NumberRead {
            error: 1,
            number: 0,
        },
    }
}

// The kernel's `__get_user_8` has nine instructions: three check the address; then `stac`, `mov`,
// `xor`, `clac`, and a return by a jump to `ret`. It changes rax and rdx only.
global_asm!(
    ".macro get_user size",
    "__get_user_\\size:",
    ".rept 6",
    "nop",
    ".endr",
    "call uncounted_\\size",
    "nop",
    "ret",
    ".type __get_user_\\size, @function",
    ".size __get_user_\\size, . - __get_user_\\size",
    "uncounted_\\size:",
    "push rbp",
    "mov rbp, rsp",
    "push rcx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "sub rsp, 528",
    "and rsp, -16",
    "fxsave64 [rsp]",
    "mov rdi, rax",
    "mov esi, \\size",
    "call {read}",
    "fxrstor64 [rsp]",
    "lea rsp, [rbp - 56]",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rcx",
    "pop rbp",
    "ret",
    ".type uncounted_\\size, @function",
    ".size uncounted_\\size, . - uncounted_\\size",
    ".endm",
    ".globl __get_user_1, __get_user_2, __get_user_4, __get_user_8, uncounted_8",
    "get_user 1",
    "get_user 2",
    "get_user 4",
    "get_user 8",
    read = sym read_current,
);

/// As the module's `UserAccess`, whose reads have four instructions, or three below 2^63.
pub(crate) struct CountedAccess<'a>(PhantomData<&'a ()>);

impl CountedAccess<'_> {
    /// # Safety
    ///
    /// None.
    pub(crate) const unsafe fn begin(_limit: u64) -> Self {
        CountedAccess(PhantomData)
    }

    #[inline(always)]
    pub(crate) fn word(&self, address: u64) -> u64 {
        let word;
        // SAFETY: The function changes these two registers only.
        unsafe {
            asm!(
                "nop",
                "nop",
                "nop",
                "call uncounted_8",
                inout("rax") address => _,
                out("rdx") word,
                options(nomem),
            );
        }
        word
    }

    #[inline(always)]
    pub(crate) fn lower_word(&self, address: u64) -> (u64, u64) {
        let (word, lower);
        // SAFETY: The function changes these two registers only.
        unsafe {
            asm!(
                "btr rax, 63",
                "mov {lower}, rax",
                "call uncounted_8",
                lower = out(reg) lower,
                inout("rax") address => _,
                out("rdx") word,
                options(nomem),
            );
        }
        (word, lower)
    }
}

/// What locked instructions count up.
static mut COUNTED_UNITS: u32 = 0;

/// The instructions for each unit that [`charge`] counts.
pub(crate) const OF_CHARGE: u64 = 3;

/// Makes a locked instruction for each unit. callgrind counts them for each function, as it counts
/// instructions.
#[inline(always)]
fn charge<const UNITS: u32>() {
    // SAFETY: Nobody reads the number.
    unsafe {
        asm!(
            ".rept {units}",
            "lock inc dword ptr [rip + {number}]",
            "nop",
            "nop",
            ".endr",
            units = const UNITS,
            number = sym COUNTED_UNITS,
            options(nomem, nostack),
        );
    }
}

/// As [`charge`].
#[inline(always)]
fn charge_number(units: u32) {
    if units != 0 {
        // SAFETY: Nobody reads the number.
        unsafe {
            asm!(
                "2: lock inc dword ptr [rip + {number}]",
                "dec {left:e}",
                "jnz 2b",
                number = sym COUNTED_UNITS,
                left = inout(reg) units => _,
                options(nomem, nostack),
            );
        }
    }
}

/// Charges a read of `N` bytes.
#[inline(always)]
fn charge_read<const N: usize>() {
    const {
        assert!(work_of_read(1) == 4 && work_of_read(4) == 4 && work_of_read(8) == 4);
    }
    match const { work_of_read(N) } {
        4 => charge::<4>(),
        units => charge_number(units),
    }
}

/// The memory of a process, with the budget of one walk.
pub(crate) struct Counted(UserMemory);

impl Counted {
    /// Memory with these bytes, until the next call of this function.
    pub(crate) fn new(bytes: &'static dyn InputBytes) -> Counted {
        CURRENT.set(bytes);
        Counted(UserMemory::atomic(0, 0))
    }

    /// The words of the memory, as the module's fast paths read them.
    pub(crate) fn words(&self) -> PeekWords<'_> {
        self.0.words().expect("the memory is the task's")
    }

    /// Whether the budget is used up.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.is_spent()
    }

    /// A part of the memory: `len` bytes from `address` on.
    pub(crate) fn part(&self, address: u64, len: u64) -> CountedPart<'_> {
        CountedPart(Part {
            memory: &self.0,
            address,
            len,
        })
    }

    /// Takes units of work.
    #[inline(always)]
    pub(crate) fn take(&self, units: u32) -> Result<(), Fault> {
        self.0.take(units)?;
        charge_number(units);
        Ok(())
    }
}

impl Source for Counted {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let read = self.0.read(offset)?;
        charge_read::<N>();
        Ok(read)
    }

    fn spend(&self, instructions: u32) -> Result<(), Fault> {
        self.0.spend(instructions)?;
        charge_number(instructions / UNIT);
        Ok(())
    }
}

impl Memory for Counted {
    #[inline]
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let read = self.0.read_word(address)?;
        charge_read::<8>();
        Ok(read)
    }
}

/// A part of the memory.
pub(crate) struct CountedPart<'a>(Part<'a>);

impl Source for CountedPart<'_> {
    #[inline]
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let read = self.0.read(offset)?;
        match N {
            4 | 8 => charge_read::<N>(),
            _ => charge_number(const { work_of_read_into(N) }),
        }
        Ok(read)
    }

    fn spend(&self, instructions: u32) -> Result<(), Fault> {
        self.0.spend(instructions)?;
        charge_number(instructions / UNIT);
        Ok(())
    }
}

/// A call that callgrind counts.
struct CountedCall<'a>(&'a mut dyn FnMut());

#[inline(never)]
#[no_mangle]
extern "C" fn measured(call: &mut CountedCall<'_>) {
    (call.0)();
    hint::black_box(call);
}

/// Calls `work`, a step that is named `name`, over the memory of an input, and notes the call.
/// `work` returns the step's result. A step without a result ends a walk.
pub(crate) fn measure<T>(
    name: &str,
    input: &str,
    bytes: &'static dyn InputBytes,
    mut work: impl FnMut(&Counted) -> Option<T>,
) -> Option<T> {
    let memory = Counted::new(bytes);
    let mut result = None;
    measured(&mut CountedCall(&mut || result = work(&memory)));
    let end = match result {
        Some(_) => "",
        None => "end",
    };
    println!("{name}\t{end}\t{input}");
    result
}
