// SPDX-License-Identifier: GPL-2.0-only

//! Many reads of user memory between one `stac` and one `clac`, as by the kernel's
//! `user_access_begin` and `unsafe_get_user`.

use core::{
    arch::asm,
    marker::PhantomData, //
};

/// The number of the CPU feature SMAP, as `struct alt_instr` has it: 32 bits since Linux 6.3.
/// `rust/c/x86_64/machine.c` checks the sizes and numbers of this file.
#[cfg(not(sfu_short_alternatives))]
macro_rules! feature {
    () => {
        ".long 9 * 32 + 20"
    };
}
#[cfg(sfu_short_alternatives)]
macro_rules! feature {
    () => {
        ".word 9 * 32 + 20"
    };
}

/// An instruction on CPUs with SMAP, and three bytes of `nop` on others: the kernel's
/// `ALTERNATIVE("", INSTRUCTION, X86_FEATURE_SMAP)`.
macro_rules! with_smap {
    ($instruction:literal) => {
        asm!(
            "2: .byte 0x90, 0x90, 0x90",
            ".pushsection .altinstructions, \"a\"",
            ".long 2b - .",
            ".long 3f - .",
            feature!(),
            ".byte 3, 3",
            ".popsection",
            ".pushsection .altinstr_replacement, \"ax\"",
            concat!("3: ", $instruction),
            ".popsection",
            options(nostack, preserves_flags),
        )
    };
}

/// The bits of a return address that are bits of the address: all.
#[inline(always)]
pub(crate) const fn code_mask() -> u64 {
    u64::MAX
}

/// User memory between `stac` and `clac`. The owner must not call a function before it drops the
/// value; objtool checks this in each build.
pub(crate) struct UserAccess<'a> {
    /// The end of user addresses.
    limit: u64,
    _faults_are_off: PhantomData<&'a ()>,
}

impl UserAccess<'_> {
    /// Permits reads of user memory. Any context.
    ///
    /// # Safety
    ///
    /// Page faults are off for the lifetime of the result, the memory is the current task's, and
    /// `limit` is `TASK_SIZE_MAX`.
    #[inline(always)]
    pub(crate) unsafe fn begin(limit: u64) -> Self {
        // SAFETY: `stac` changes no register and no memory. `drop` does the opposite.
        unsafe { with_smap!("stac") };
        Self {
            limit,
            _faults_are_off: PhantomData,
        }
    }

    /// The eight bytes at a run-time address of any value; 0 if they cannot be read.
    #[inline(always)]
    pub(crate) fn word(&self, address: u64) -> u64 {
        let word;
        // SAFETY: The address that is read is at most `TASK_SIZE_MAX`, also in a speculative
        // execution, because `cmov` is not predicted. Nothing is ever mapped at `TASK_SIZE_MAX`. By
        // the contract of `begin` page faults are off, so a fault continues at the label 3, with 0
        // in `word`.
        unsafe {
            asm!(
                "cmp {address}, {limit}",
                "cmovae {address}, {limit}",
                "xor {word:e}, {word:e}",
                "2: mov {word}, qword ptr [{address}]",
                "3:",
                ".pushsection __ex_table, \"a\"",
                ".balign 4",
                ".long 2b - .",
                ".long 3b - .",
                // EX_TYPE_UACCESS
                ".long 3",
                ".popsection",
                address = inout(reg) address => _,
                limit = in(reg) self.limit,
                word = out(reg) word,
                options(nostack, readonly),
            );
        }
        word
    }

    /// As [`word`](Self::word), for an address below 2^63. Ignores the top bit of `address`, and
    /// returns the address without it.
    #[inline(always)]
    pub(crate) fn lower_word(&self, address: u64) -> (u64, u64) {
        let (word, lower);
        // SAFETY: No address of the kernel is below 2^63, and `btr` clears the top bit also in a
        // speculative execution. Addresses from `TASK_SIZE_MAX` to 2^63 are not canonical. By the
        // contract of `begin` page faults are off, so a fault, also that of such an address,
        // continues at the label 3, with 0 in `word`.
        unsafe {
            asm!(
                "btr {address}, 63",
                "xor {word:e}, {word:e}",
                "2: mov {word}, qword ptr [{address}]",
                "3:",
                ".pushsection __ex_table, \"a\"",
                ".balign 4",
                ".long 2b - .",
                ".long 3b - .",
                // EX_TYPE_DEFAULT_MCE_SAFE: EX_TYPE_UACCESS warns of addresses that are not
                // canonical.
                ".long 14",
                ".popsection",
                address = inout(reg) address => lower,
                word = out(reg) word,
                options(nostack, readonly),
            );
        }
        (word, lower)
    }
}

impl Drop for UserAccess<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `clac` changes no register and no memory.
        unsafe { with_smap!("clac") };
    }
}
