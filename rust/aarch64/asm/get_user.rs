// SPDX-License-Identifier: GPL-2.0-only

//! Single reads of user memory, by LDTR: a load with the rights of user space. So nothing has to be
//! switched on and off around a load.

/// Reads a number of a type from a run-time address: whether the address can be read, and the
/// number in a `u64`; 0 if the address cannot be read. Page faults must be off.
///
/// An address with bit 55 set would be translated by the kernel's page tables. Address 0, where
/// user space maps nothing, takes its place, also in a speculative execution, as the kernel's own
/// reads do it. In the kernel's page tables LDTR could read nothing, either.
macro_rules! get_user {
    ($address:expr, u8) => {
        $crate::arch::asm::get_user!(@ $address, "ldtrb {word:w}, [{masked}]")
    };
    ($address:expr, u16) => {
        $crate::arch::asm::get_user!(@ $address, "ldtrh {word:w}, [{masked}]")
    };
    ($address:expr, u32) => {
        $crate::arch::asm::get_user!(@ $address, "ldtr {word:w}, [{masked}]")
    };
    ($address:expr, u64) => {
        $crate::arch::asm::get_user!(@ $address, "ldtr {word}, [{masked}]")
    };
    (@ $address:expr, $instruction:literal) => {{
        let (error, word): (u64, u64);
        // SAFETY: Page faults are off, so a fault continues at the label 3, with the numbers that
        // are set in front of the load: an entry of the type EX_TYPE_UACCESS_ERR_ZERO, whose two
        // registers are xzr. `rust/c/aarch64/machine.c` checks the numbers. The load is of user
        // memory, with the rights of user space.
        unsafe {
            core::arch::asm!(
                "and {masked}, {address}, #0xff7fffffffffffff",
                "cmp {masked}, {address}",
                "csel {masked}, {masked}, xzr, eq",
                "mov {error}, #1",
                "mov {word}, #0",
                concat!("2: ", $instruction),
                "mov {error}, #0",
                "3:",
                ".pushsection __ex_table, \"a\"",
                ".balign 4",
                ".long 2b - .",
                ".long 3b - .",
                ".short 2",
                ".short 31 | 31 << 5",
                ".popsection",
                address = in(reg) $address,
                masked = out(reg) _,
                error = out(reg) error,
                word = out(reg) word,
                options(nostack, readonly),
            );
        }
        (error == 0, word)
    }};
}

pub(crate) use get_user;
