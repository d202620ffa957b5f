// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The trampolines that Linux maps for uprobes and uretprobes: the position of a PC in a
//! trampoline, and the distance by which the trampoline has moved the stack pointer.

use crate::sframe::x86_64::insn::{
    CALL_RELATIVE,
    RET,
    RET_AND_POP, //
};

/// The number of bytes of a trampoline of uprobes that [`uprobe_trampoline`] examines.
pub const UPROBE_TRAMPOLINE: usize = 20;

/// The distance from the stack pointer of the frame that a probed function returns to, down to the
/// key of the kernel's list of uretprobes, in bytes: the key is the place of the return address.
pub const KEY_BELOW_SP: u64 = 8;

/// The size of the code that replaces the instruction under an optimised uprobe, in bytes.
pub const OPTIMISED: usize = 10;

/// The distance by which an optimised uprobe moves the stack pointer down before its call, in
/// bytes.
pub const RED_ZONE: u64 = 128;

/// The position of a PC in one of the two trampolines of uprobes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UprobeTrampoline {
    /// In the trampoline of uretprobes: a function returned to it, because a uretprobe replaced the
    /// function's return address.
    Returned {
        /// The distance from the stack pointer up to its value right after the function's return,
        /// in bytes.
        sp: u64,
        /// Whether the kernel has restored the return address, into the word below that value.
        resolved: bool,
    },
    /// In the trampoline of optimised uprobes: the call at a probe led to it.
    Called {
        /// The distance from the stack pointer up to the return address, in bytes.
        ra: u64,
        /// The distance from the return address up to the stack pointer's value at the probe, in
        /// bytes.
        sp: u64,
    },
}

/// The position of a PC in a trampoline of uprobes. `code` is the start of the trampoline, and
/// `offset` the PC's distance from the start, in bytes. `None` if `code` is not a trampoline of
/// uprobes, or if no instruction starts at `offset`.
///
/// The kernel writes both trampolines, in `arch/x86/kernel/uprobes.c`: pushes, a system call, pops,
/// and a return. The trampoline of uretprobes pushes %rax first, because the kernel later writes
/// the return address to that word. The trampoline of optimised uprobes pushes %rcx first.
pub fn uprobe_trampoline(code: &[u8; UPROBE_TRAMPOLINE], offset: u64) -> Option<UprobeTrampoline> {
    let uretprobe = match *code {
        [0x50, 0x51, 0x41, 0x53, ..] => true,
        [0x51, 0x41, 0x53, 0x50, ..] => false,
        _ => return None,
    };
    let mut at = 0_usize;
    let mut pushed = 0_u64;
    let mut pushed_at_pc = None;
    let mut called_at = None;
    let popped = loop {
        if u64::try_from(at).ok()? == offset {
            pushed_at_pc = Some(pushed);
        }
        let length = match *code.get(at..)? {
            [0x50..=0x57, ..] => {
                pushed = pushed.checked_add(8)?;
                1
            }
            [0x58..=0x5f, ..] => {
                pushed = pushed.checked_sub(8)?;
                1
            }
            [0x41, 0x50..=0x57, ..] => {
                pushed = pushed.checked_add(8)?;
                2
            }
            [0x41, 0x58..=0x5f, ..] => {
                pushed = pushed.checked_sub(8)?;
                2
            }
            // mov $number, %rax
            [0x48, 0xc7, 0xc0, ..] => 7,
            [0x0f, 0x05, ..] => {
                called_at = Some(u64::try_from(at).ok()?);
                2
            }
            [RET, ..] => break None,
            [RET_AND_POP, low, high, ..] => break Some(u16::from_le_bytes([low, high])),
            _ => return None,
        };
        at = at.checked_add(length)?;
    };
    match (uretprobe, popped) {
        (true, None) => Some(UprobeTrampoline::Returned {
            sp: pushed_at_pc?,
            resolved: offset > called_at?,
        }),
        (true, Some(_)) => None,
        (false, popped) => Some(UprobeTrampoline::Called {
            ra: pushed_at_pc?,
            sp: u64::from(popped.unwrap_or(0)).checked_add(8)?,
        }),
    }
}

/// The size of the registers that a trampoline of uprobes saves before its system call, in bytes.
pub const UPROBE_SAVED: usize = 24;

/// Whether `saved`, the words from the stack pointer upwards, are the registers that a trampoline
/// of uprobes has saved, with these values. The trampoline of uretprobes saves %r11, %rcx and %rax,
/// in this order from the stack pointer upwards. The trampoline of optimised uprobes saves %rax,
/// %r11 and %rcx.
///
/// In the system call the kernel sets the task's registers to their values at the probe, calls the
/// consumers of the probe, and sets the registers back: `sys_uretprobe` and `sys_uprobe` in
/// `arch/x86/kernel/uprobes.c`. The kernel sets one register after the other. An interrupt may
/// therefore see a PC, a stack pointer and values of these three registers that do not belong
/// together.
pub fn is_saved_by_uprobe(saved: &[u8; UPROBE_SAVED], rax: u64, rcx: u64, r11: u64) -> bool {
    let are = |words: [u64; 3]| *words.map(u64::to_le_bytes).as_flattened() == *saved;
    are([r11, rcx, rax]) || are([rax, r11, rcx])
}

/// The target of the call, a run-time address, if `pc` is between the two instructions of an
/// optimised uprobe; else `None`. The first instruction has moved the stack pointer down by
/// [`RED_ZONE`], and the second is the call. `code` holds the five bytes before `pc` and the five
/// bytes from `pc` on.
pub fn shifted_by_uprobe(code: &[u8; OPTIMISED], pc: u64) -> Option<u64> {
    match *code {
        // lea -128(%rsp),%rsp; call
        [0x48, 0x8d, 0x64, 0x24, 0x80, CALL_RELATIVE, a, b, c, d] => Some(
            pc.wrapping_add(5)
                .wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d]))),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The trampolines of Linux 7.3, arch/x86/kernel/uprobes.c.
    #[test]
    fn trampolines_of_uprobes() {
        let returned =
            |code: &[u8; UPROBE_TRAMPOLINE], offset| match uprobe_trampoline(code, offset) {
                Some(UprobeTrampoline::Returned { sp, resolved }) => Some((sp, resolved)),
                _ => None,
            };
        // push %rax; push %rcx; push %r11; mov $335,%rax; syscall; pop %r11; pop %rcx; ret; int3
        let code = [
            0x50, 0x51, 0x41, 0x53, 0x48, 0xc7, 0xc0, 0x4f, 1, 0, 0, 0x0f, 0x05, 0x41, 0x5b, 0x59,
            0xc3, 0xcc, 0, 0,
        ];
        for (offset, found) in [
            (0, Some((0, false))),
            (1, Some((8, false))),
            (2, Some((16, false))),
            (3, None),
            (4, Some((24, false))),
            (11, Some((24, false))),
            (13, Some((24, true))),
            (15, Some((16, true))),
            (16, Some((8, true))),
            (17, None),
        ] {
            assert_eq!(returned(&code, offset), found, "{offset}");
        }

        let called = |code: &[u8; UPROBE_TRAMPOLINE], offset| match uprobe_trampoline(code, offset)
        {
            Some(UprobeTrampoline::Called { ra, sp }) => Some((ra, sp)),
            _ => None,
        };
        // push %rcx; push %r11; push %rax; mov $336,%rax; syscall; pop %rax; pop %r11; pop %rcx;
        // ret $128
        let mut code = [
            0x51, 0x41, 0x53, 0x50, 0x48, 0xc7, 0xc0, 0x50, 1, 0, 0, 0x0f, 0x05, 0x58, 0x41, 0x5b,
            0x59, 0xc2, 0x80, 0,
        ];
        for (offset, ra) in [
            (0, Some(0)),
            (1, Some(8)),
            (2, None),
            (3, Some(16)),
            (4, Some(24)),
            (11, Some(24)),
            (13, Some(24)),
            (14, Some(16)),
            (16, Some(8)),
            (17, Some(0)),
            (18, None),
        ] {
            assert_eq!(called(&code, offset), ra.map(|ra| (ra, 136)), "{offset}");
        }
        // The trampoline of older kernels, which did not skip the red zone.
        code[17..].copy_from_slice(&[0xc3, 0xcc, 0]);
        assert_eq!(called(&code, 17), Some((0, 8)));

        code[11] = 0x0e;
        assert_eq!(uprobe_trampoline(&code, 0), None);
        assert_eq!(uprobe_trampoline(&[0x50; UPROBE_TRAMPOLINE], 0), None);
        assert_eq!(uprobe_trampoline(&[0; UPROBE_TRAMPOLINE], 0), None);
    }

    #[test]
    fn uprobe_trampolines_save_registers() {
        let saved = |words: [u64; 3]| {
            let mut bytes = [0; UPROBE_SAVED];
            for (to, word) in bytes.chunks_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            is_saved_by_uprobe(&bytes, 1, 2, 3)
        };
        assert!(saved([3, 2, 1]));
        assert!(saved([1, 3, 2]));
        assert!(!saved([1, 2, 3]));
        assert!(!saved([3, 2, 0]));
        assert!(!saved([0, 3, 2]));
    }

    #[test]
    fn the_call_of_a_uprobe_moves_the_stack_pointer_first() {
        let mut code = [0x48, 0x8d, 0x64, 0x24, 0x80, 0xe8, 0xfb, 0x0f, 0, 0];
        assert_eq!(shifted_by_uprobe(&code, 0x1000), Some(0x2000));
        code[4] = 0x70;
        assert_eq!(shifted_by_uprobe(&code, 0x1000), None);
    }
}
