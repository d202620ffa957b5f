// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Signals on Linux: the trampoline that a handler returns to, and the registers of the
//! interrupted frame in `struct ucontext`. And the code behind the system call that starts a thread,
//! which is recognised by bytes around the PC like a trampoline.

use super::{
    super::unwind::{
        rule::{
            Base,
            Cfa,
            Location,
            Rule, //
        },
        step::{
            Memory,
            Registers, //
        }, //
    },
    registers, //
};

/// What is looked at around the PC for a signal's trampoline, in bytes: [`TRAMPOLINE_BEFORE`] in
/// front of it, the others from it on.
pub const TRAMPOLINE: usize = 18;

/// How many of them are in front of the PC.
pub const TRAMPOLINE_BEFORE: u64 = 9;

/// `mov $15, %rax; syscall`: rt_sigreturn, as glibc's and musl's `__restore_rt` have it.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];

/// The same with `mov $15, %eax`.
const SIGRETURN_SHORT: [u8; 7] = [0xb8, 15, 0, 0, 0, 0x0f, 0x05];

/// The rule of a signal's trampoline: what the handler returns to, to go back to what the signal
/// interrupted.
///
/// Its stack pointer points to Linux's `struct ucontext`, which holds the registers that were
/// interrupted: rbp at 120 bytes, rsp at 160, rip at 168.
pub const INTERRUPTED: Rule = Rule {
    cfa: Cfa {
        base: Base::Sp,
        offset: 160,
        deref: true,
        plus: 0,
    },
    ra: Location::At(Base::Sp, 168),
    fp: Location::At(Base::Sp, 120),
    mangled: false,
    signal: true,
};

/// Whether a signal's trampoline runs at the PC, before its system call; then [`INTERRUPTED`] is
/// its rule.
///
/// `code` is what is around the PC itself. A trampoline is returned to, but nothing has called from
/// it: the byte before the PC need not belong to it. No table is at hand for it in version 2, nor
/// where its file has none.
pub fn is_signal_trampoline(code: &[u8; TRAMPOLINE]) -> bool {
    let (before, at) = code.split_at(const { TRAMPOLINE_BEFORE as usize });
    let in_front_of_syscall = |instruction: &[u8], syscall: &[u8]| {
        before.ends_with(instruction) && at.starts_with(syscall)
    };
    let [long @ .., _, _] = SIGRETURN;
    let [short @ .., o, f] = SIGRETURN_SHORT;
    at.starts_with(&SIGRETURN)
        || at.starts_with(&SIGRETURN_SHORT)
        || in_front_of_syscall(&long, &[o, f])
        || in_front_of_syscall(&short, &[o, f])
}

/// Whether the PC is right behind a signal's trampoline, as it is in its system call. Then
/// [`INTERRUPTED`] is the rule; but only if the thread is in that system call, for another function
/// may begin there: `__sigsetjmp` does in musl.
pub fn is_behind_signal_trampoline(code: &[u8; TRAMPOLINE]) -> bool {
    let (before, _) = code.split_at(const { TRAMPOLINE_BEFORE as usize });
    before.ends_with(&SIGRETURN) || before.ends_with(&SIGRETURN_SHORT)
}

/// The rule behind a system call that starts a process or a thread, in the one that has called it.
pub const BEHIND_CLONE: Rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);

/// Whether the code behind a system call returns at once if its result is neither an error nor zero:
/// `syscall; test %rax, %rax; jl ...; jz ...; ret`, at any of these instructions but the first. Then
/// [`BEHIND_CLONE`] is the rule: nothing between it and `ret` touches the stack.
///
/// glibc's `clone` and `clone3` are so, and have no rows there, since the new thread begins there too:
/// with a result of zero, of which this says nothing.
pub fn is_behind_clone(code: &[u8; TRAMPOLINE]) -> bool {
    // Of what is behind the system call the PC may be at 0, 3, 5 or 7.
    [7usize, 4, 2, 0].iter().any(|start| {
        matches!(
            code.get(*start..),
            Some([0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, _, 0x74, _, 0xc3, ..])
        )
    })
}

/// How far behind its system call [`is_behind_clone`] holds, in bytes.
pub const CLONE_BEHIND: u64 = 9;

/// Whether neither [`is_signal_trampoline`] nor [`is_behind_signal_trampoline`] nor [`is_behind_clone`]
/// can hold, as far as eight bytes each tell: those from [`CLONE_BEHIND`] in front of the PC on, and those
/// from the PC on. For most code that is told so, and the rest need not be looked at.
#[inline(always)]
pub fn is_ordinary(before: u64, at: u64) -> bool {
    const SYSCALL: u16 = 0x050f;
    const MOVE: u32 = 0x0fc0_c748;
    const MOVE_SHORT: u16 = 0x0fb8;

    // The system call of clone is two bytes before the PC, or five, seven or nine; that of a trampoline
    // is two. Of what is two before it the first byte alone is here.
    !(before >> 56 == 0x0f
        || (before >> 32) as u16 == SYSCALL
        || (before >> 16) as u16 == SYSCALL
        || before as u16 == SYSCALL
        || at as u16 == SYSCALL
        || at as u16 == MOVE_SHORT
        || at as u32 == MOVE)
}

/// The registers of a frame that a signal interrupted, on AMD64: Linux has put all of them on the
/// stack of the handler.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted<'a, M: ?Sized> {
    /// The stack pointer in the frame of the trampoline, which is where Linux's `struct ucontext`
    /// is.
    pub context: u64,
    /// The memory it is in.
    pub memory: &'a M,
}

/// Where a register of this DWARF number is in `struct ucontext`, in bytes: "uc_mcontext" begins at
/// 40 with r8 to r15.
const CONTEXT: [u8; registers::COUNT as usize] = [
    144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96,
];

impl<M: Memory + ?Sized> Registers for Interrupted<'_, M> {
    fn register(&self, number: u8) -> Option<u64> {
        let offset = *CONTEXT.get(usize::from(number))?;
        let address = self.context.checked_add(u64::from(offset))?;
        self.memory.read_word(address).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{
        format::{
            abi::Abi,
            bytes::Fault, //
        },
        unwind::step::{
            step,
            Frame,
            Lost,
            Step,
            Stop, //
        }, //
    };
    use super::*;

    const FRAME: Frame = Frame {
        pc: 1,
        sp: 0x8000,
        fp: 0x9000,
    };

    fn to(pc: u64, sp: u64, fp: u64) -> Result<Step, Stop> {
        Ok(Step::Caller(Frame { pc, sp, fp }))
    }

    #[test]
    fn who_has_called_clone_returns() {
        // As in Debian 13's libc, from four bytes in front of `syscall`.
        let text = [
            0x44, 0x0f, 0x05, 0x00, 0x90, 0x90, 0x90, 0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, 0x10,
            0x74, 0x01, 0xc3, 0x31, 0xed, 0x58, 0x5f, 0xff, 0xd0, 0x89, 0xc7, 0xb8,
        ];
        let behind = text.len() - 17;
        assert_eq!(behind, 9);
        let at = |offset: usize| -> [u8; TRAMPOLINE] {
            let mut code = [0x90; TRAMPOLINE];
            let from = behind + offset - TRAMPOLINE_BEFORE as usize;
            let bytes = &text[from..];
            let len = bytes.len().min(TRAMPOLINE);
            code[..len].copy_from_slice(&bytes[..len]);
            code
        };
        for offset in 0..9 {
            let expected = matches!(offset, 0 | 3 | 5 | 7);
            assert_eq!(is_behind_clone(&at(offset)), expected, "{offset}");
        }
        assert!(!is_behind_clone(&[0x90; TRAMPOLINE]));
    }

    #[test]
    fn what_is_ordinary_is_no_trampoline() {
        // Each of the codes that are known, in each place, among bytes that are not.
        let clone = [0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, 1, 0x74, 1, 0xc3];
        let codes: [&[u8]; 3] = [&SIGRETURN, &SIGRETURN_SHORT, &clone];
        let mut known = 0;
        for text in codes {
            for from in 0..=TRAMPOLINE {
                let mut code = [0x90; TRAMPOLINE];
                for (to, byte) in code[from..].iter_mut().zip(text) {
                    *to = *byte;
                }
                let is_known = is_signal_trampoline(&code)
                    || is_behind_signal_trampoline(&code)
                    || is_behind_clone(&code);
                let at = TRAMPOLINE_BEFORE as usize;
                let word = |at: usize| u64::from_le_bytes(*code[at..].first_chunk().unwrap());
                let ordinary = is_ordinary(word(at - CLONE_BEHIND as usize), word(at));
                assert!(!(is_known && ordinary), "{code:x?}");
                known += u32::from(is_known);
                // Not all is taken for one.
                assert!(from < 16 || ordinary, "{code:x?}");
            }
        }
        assert_eq!(known, 10);
    }

    #[test]
    fn handlers_return_to_trampolines() {
        // nop; mov $15, %rax; syscall; nopl 0(%rax), as in glibc and musl.
        let long = [
            0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x48, 0xc7, 0xc0, 15, 0, 0, 0,
            0x0f, 0x05, 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0xcc, 0xcc, 0xcc,
        ];
        let is = |code: &[u8]| is_signal_trampoline(code.first_chunk().unwrap());
        let behind = |code: &[u8]| is_behind_signal_trampoline(code.first_chunk().unwrap());
        for at in 0..=9 {
            assert_eq!(is(&long[at..]), [0, 7].contains(&at), "{at}");
            assert_eq!(behind(&long[at..]), at == 9, "{at}");
        }
        // mov $15, %eax; syscall
        let mut short = [0xcc; 27];
        short[9..16].copy_from_slice(&[0xb8, 15, 0, 0, 0, 0x0f, 0x05]);
        for at in 0..=9 {
            assert_eq!(is(&short[at..]), [0, 5].contains(&at), "{at}");
            assert_eq!(behind(&short[at..]), at == 7, "{at}");
        }
        // Another system call, and rt_sigreturn's number for something else.
        for (at, byte) in [(12, 16), (16, 0xc3), (17, 0x0b), (9, 0x4c)] {
            let mut other = long;
            other[at] = byte;
            assert!(!is(&other) && !is(&other[7..]) && !behind(&other[9..]));
        }
    }

    /// What a handler's frame has on its stack: each word tells how far from 0x8000 it is.
    struct Context;

    impl Memory for Context {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            match address.wrapping_sub(FRAME.sp) {
                offset @ 0..1000 => Ok(offset),
                _ => Err(Fault),
            }
        }
    }

    #[test]
    fn a_signal_may_have_interrupted_another_stack() {
        // The stack pointer comes out as 160, which is far below, the PC as 168, rbp as 120.
        assert_eq!(
            step(Abi::Amd64, &INTERRUPTED, &FRAME, &Lost, &Context),
            to(168, 160, 120)
        );
        // Nor is it aligned.
        let odd = Frame {
            sp: FRAME.sp + 1,
            ..FRAME
        };
        assert_eq!(
            step(Abi::Amd64, &INTERRUPTED, &odd, &Lost, &Context),
            to(169, 161, 121)
        );
        // The same rule of no signal could be the same step for ever.
        let rule = Rule {
            signal: false,
            ..INTERRUPTED
        };
        assert_eq!(
            step(Abi::Amd64, &rule, &FRAME, &Lost, &Context),
            Err(Stop::CfaNotRising)
        );
        let high = Frame {
            sp: FRAME.sp + 900,
            ..FRAME
        };
        assert_eq!(
            step(Abi::Amd64, &INTERRUPTED, &high, &Lost, &Context),
            Err(Stop::Fault {
                address: FRAME.sp + 900 + 160
            })
        );
    }

    #[test]
    fn a_call_of_a_null_pointer_can_be_interrupted() {
        struct Zeros;
        impl Memory for Zeros {
            fn read_word(&self, _address: u64) -> Result<u64, Fault> {
                Ok(0)
            }
        }
        assert_eq!(
            step(Abi::Amd64, &INTERRUPTED, &FRAME, &Lost, &Zeros),
            to(0, 0, 0)
        );
    }

    #[test]
    fn all_registers_of_what_was_interrupted_are_known() {
        let registers = Interrupted {
            context: FRAME.sp,
            memory: &Context,
        };
        // rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 and r15, as <asm/sigcontext.h> has them.
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7, 8, 15];
        let offsets = [144, 136, 152, 128, 112, 104, 120, 160, 40, 96];
        for (number, offset) in numbers.into_iter().zip(offsets) {
            assert_eq!(registers.register(number), Some(offset));
        }
        assert_eq!(registers.register(16), None);
        for context in [FRAME.sp + 2000, u64::MAX] {
            let registers = Interrupted {
                context,
                memory: &Context,
            };
            assert_eq!(registers.register(0), None);
        }

        // A stack that gcc realigns can be interrupted, too.
        let mut rule = Rule::amd64(Base::Sp, 0x100, Location::AtCfa(-0x40));
        rule.cfa.base = Base::Register(10);
        rule.cfa.offset = 0x9000;
        rule.ra = Location::At(Base::Sp, 8);
        rule.fp = Location::Unchanged;
        assert_eq!(
            step(Abi::Amd64, &rule, &FRAME, &registers, &Context),
            to(8, 0x9000 + 56, FRAME.fp)
        );
    }
}
