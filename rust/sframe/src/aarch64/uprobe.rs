// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The trampoline that Linux maps for uretprobes.
//!
//! `arch_uretprobe_hijack_return_addr` in `arch/arm64/kernel/probes/uprobes.c` replaces x30 at the
//! entry of a function. The function itself stores the trampoline's address, and may sign it. The
//! trampoline is one breakpoint, at the beginning of a page, and changes no register. So the stack
//! pointer there is the CFA of the function that has returned.

/// The distance from the stack pointer of the frame that a probed function returns to, down to the
/// key of the kernel's list of uretprobes, in bytes: the key is the stack pointer at the function's
/// entry, which is the CFA.
pub const KEY_BELOW_SP: u64 = 0;
