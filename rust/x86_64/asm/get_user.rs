// SPDX-License-Identifier: GPL-2.0-only

//! Calls of the kernel's functions for `get_user`.

/// Reads a number of a type from a run-time address: whether the address can be read, and the
/// number in a `u64`. Page faults must be off.
macro_rules! get_user {
    ($address:expr, u8) => {
        $crate::arch::asm::get_user!(@ $address, "__get_user_1")
    };
    ($address:expr, u16) => {
        $crate::arch::asm::get_user!(@ $address, "__get_user_2")
    };
    ($address:expr, u32) => {
        $crate::arch::asm::get_user!(@ $address, "__get_user_4")
    };
    ($address:expr, u64) => {
        $crate::arch::asm::get_user!(@ $address, "__get_user_8")
    };
    (@ $address:expr, $function:literal) => {{
        let (error, word): (u64, u64);
        // SAFETY: This is the calling convention that `get_user` uses, and page faults are off. The
        // function checks the address, changes no other registers, and leaves 0 in the word if the
        // address cannot be read.
        unsafe {
            core::arch::asm!(
                concat!("call ", $function),
                inout("rax") $address => error,
                out("rdx") word,
                options(nomem),
            );
        }
        (error == 0, word)
    }};
}

pub(crate) use get_user;
