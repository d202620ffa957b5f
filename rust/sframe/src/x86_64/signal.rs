// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Signals on Linux: the trampoline that a handler returns to, and the registers of the interrupted
//! frame in `struct ucontext`. Also the code after the system call that starts a thread: bytes
//! around the PC show it, like a trampoline.

use crate::sframe::{
    format::bytes::Fault,
    rule::{
        Base,
        Cfa,
        Extra,
        Location,
        Rule, //
    },
    unwind::step::{
        Memory,
        RegisterSource, //
    },
    x86_64::registers, //
};

/// The number of bytes around the PC that are examined for a signal trampoline:
/// [`TRAMPOLINE_BEFORE`] bytes before the PC, and the rest from the PC on.
pub const TRAMPOLINE: usize = 18;

/// The number of examined bytes before the PC.
pub const TRAMPOLINE_BEFORE: u64 = 9;

/// `mov $15, %rax; syscall`: the system call rt_sigreturn in `__restore_rt` of glibc and musl.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];

/// `mov $15, %eax; syscall`: the system call rt_sigreturn, in a shorter encoding.
const SIGRETURN_SHORT: [u8; 7] = [0xb8, 15, 0, 0, 0, 0x0f, 0x05];

/// The rule of a signal trampoline. A signal handler returns to the trampoline, and the trampoline
/// returns to the interrupted code.
///
/// The trampoline's stack pointer points to Linux's `struct ucontext`, which holds the registers of
/// the interrupted frame: rbp at 120 bytes, rsp at 160 bytes, rip at 168 bytes.
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
    extra: Extra::NONE,
};

/// The offset of the interrupted frame's code segment in `struct ucontext`, in bytes.
const CODE_SEGMENT: u64 = 184;

/// Whether a `struct ucontext` may lie at `context`, a run-time address: its code segment has to be
/// the segment of 64-bit programs, 0x33, or 0xe033 in a guest of Xen.
///
/// `rt_sigreturn` restores the interrupted registers one after the other. In between, the stack
/// pointer is already the interrupted frame's, while the PC is still in the trampoline. The memory
/// at that stack pointer is no `struct ucontext`, and does not hold such a segment.
///
/// # Errors
///
/// [`Fault`] if the memory cannot be read.
pub fn is_context<M: Memory + ?Sized>(context: u64, memory: &M) -> Result<bool, Fault> {
    let at = context.checked_add(CODE_SEGMENT).ok_or(Fault)?;
    Ok(matches!(memory.read_word(at)? as u16, 0x33 | 0xe033))
}

/// Whether the PC is in a signal trampoline, before its system call or at it. If true,
/// [`INTERRUPTED`] is the rule.
///
/// `code` holds the bytes around the PC itself, not around the PC minus one: the handler returns to
/// the start of the trampoline without a call before it, and the byte before the PC need not belong
/// to the trampoline. The check is necessary because a section of version 2 cannot encode a
/// trampoline's rule, and some files have no rows.
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

/// Whether [`is_signal_trampoline`] may be true; `word` is the first eight bytes of the code from
/// the PC on, little-endian.
#[inline(always)]
pub(in crate::sframe) fn may_be_trampoline(word: u64) -> bool {
    let code = word.to_le_bytes();
    let [.., o, f] = SIGRETURN;
    SIGRETURN.starts_with(&code) || code.starts_with(&SIGRETURN_SHORT) || code.starts_with(&[o, f])
}

/// Whether the PC is right after the system call of a signal trampoline, where the PC is during
/// that system call. If true, [`INTERRUPTED`] is the rule, but only if the thread is in the system
/// call: another function may begin there, such as `__sigsetjmp` in musl.
pub fn is_behind_signal_trampoline(code: &[u8; TRAMPOLINE]) -> bool {
    let (before, _) = code.split_at(const { TRAMPOLINE_BEFORE as usize });
    before.ends_with(&SIGRETURN) || before.ends_with(&SIGRETURN_SHORT)
}

/// The rule after a system call that starts a process or a thread, in the calling thread.
pub const BEHIND_CLONE: Rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);

/// Whether the PC is at one of the instructions after the system call in `syscall; test %rax, %rax;
/// jl ...; jz ...; ret`. If true, [`BEHIND_CLONE`] is the rule: this code returns at once if the
/// result of the system call is neither an error nor zero, and no instruction before `ret` changes
/// the stack.
///
/// `clone` and `clone3` of glibc contain this code, and have no rows for it, because the new thread
/// begins there too, with a result of zero. This function does not examine the result.
pub fn is_behind_clone(code: &[u8; TRAMPOLINE]) -> bool {
    // The PC may be at 0, 3, 5 or 7 bytes after the system call.
    [7usize, 4, 2, 0].iter().any(|start| {
        matches!(
            code.get(*start..),
            Some([0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, _, 0x74, _, 0xc3, ..])
        )
    })
}

/// The greatest distance of the PC after the start of the system call for which [`is_behind_clone`]
/// is true, in bytes.
pub const CLONE_BEHIND: u64 = 9;

/// A cheap check that rules out [`is_signal_trampoline`], [`is_behind_signal_trampoline`] and
/// [`is_behind_clone`]: if true, all three are false. `before` holds the eight bytes from
/// [`CLONE_BEHIND`] bytes before the PC on, and `at` the eight bytes from the PC on. For most code
/// the result is true, and the other checks are not necessary.
#[inline(always)]
pub fn is_ordinary(before: u64, at: u64) -> bool {
    const SYSCALL: u16 = 0x050f;
    const MOVE: u32 = 0x0fc0_c748;
    const MOVE_SHORT: u16 = 0x0fb8;

    // The system call of clone starts two, five, seven or nine bytes before the PC. The system call
    // of a trampoline starts two bytes before the PC. At two bytes, `before` holds only its first
    // byte. The four are compared at once: a part of 16 bits is zero if it is one of them.
    let parts = (before ^ 0x0f00_050f_050f_050f) & 0xff00_ffff_ffff_ffff;
    let is_part_zero =
        parts.wrapping_sub(0x0001_0001_0001_0001) & !parts & 0x8000_8000_8000_8000 != 0;
    !(is_part_zero || at as u16 == SYSCALL || at as u16 == MOVE_SHORT || at as u32 == MOVE)
}

/// The registers of a frame that a signal interrupted, on AMD64. Linux has saved all of them on the
/// handler's stack.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted<'a, M: ?Sized> {
    /// The run-time address of Linux's `struct ucontext`: the stack pointer in the trampoline's
    /// frame.
    pub context: u64,
    /// The memory of the process.
    pub memory: &'a M,
}

/// The offset of each register in `struct ucontext`, in bytes, by DWARF number. `uc_mcontext`
/// begins at 40 with r8 to r15.
const CONTEXT: [u8; registers::COUNT as usize] = [
    144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96,
];

impl<M: Memory + ?Sized> RegisterSource for Interrupted<'_, M> {
    fn register(&self, number: u8) -> Option<u64> {
        let offset = *CONTEXT.get(usize::from(number))?;
        let address = self.context.checked_add(u64::from(offset))?;
        self.memory.read_word(address).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::{
        format::{
            abi::Abi,
            bytes::Fault, //
        },
        unwind::step::{
            step,
            Frame,
            NoRegisters,
            Step,
            Stop, //
        }, //
    };

    const FRAME: Frame = Frame {
        pc: 1,
        sp: 0x8000,
        fp: 0x9000,
    };

    fn to(pc: u64, sp: u64, fp: u64) -> Result<Step, Stop> {
        Ok(Step::Caller(Frame { pc, sp, fp }))
    }

    #[test]
    fn clone_returns_to_its_caller() {
        // The code of Debian 13's libc, with `syscall` at offset 7.
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
    fn ordinary_code_is_no_trampoline() {
        // Each recognised code, at each offset, among nops.
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
                // Some code is ordinary: code whose first bytes alone are in the window.
                assert!(from < 16 || ordinary, "{code:x?}");
            }
        }
        assert_eq!(known, 10);
    }

    #[test]
    fn four_system_calls_are_compared_at_once() {
        const AT: u64 = 0x9090_9090_9090_9090;
        // Bytes of system calls, bytes next to them, and the ends of their range.
        let bytes = [0, 1, 4, 5, 6, 0x0e, 0x0f, 0x10, 0x7f, 0x80, 0xff];
        let mut ordinary = 0;
        let mut state = 1u64;
        for _ in 0..1_000_000 {
            let before = u64::from_le_bytes([(); 8].map(|()| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                bytes[(state >> 40) as usize % bytes.len()]
            }));
            let expected = [0, 16, 32].map(|shift| (before >> shift) as u16 != 0x050f) == [true; 3]
                && before >> 56 != 0x0f;
            assert_eq!(is_ordinary(before, AT), expected, "{before:x}");
            ordinary += u32::from(expected);
        }
        assert!((700_000..950_000).contains(&ordinary), "{ordinary}");
    }

    #[test]
    fn handlers_return_to_trampolines() {
        // nop; mov $15, %rax; syscall; nopl 0(%rax): the code of glibc and musl.
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
        // Another number; other instructions in place of `syscall` or `mov`.
        for (at, byte) in [(12, 16), (16, 0xc3), (17, 0x0b), (9, 0x4c)] {
            let mut other = long;
            other[at] = byte;
            assert!(!is(&other) && !is(&other[7..]) && !behind(&other[9..]));
        }
    }

    /// The stack of a handler's frame: each word holds its distance from 0x8000.
    struct MockContext;

    impl Memory for MockContext {
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
            step(Abi::Amd64, &INTERRUPTED, &FRAME, &NoRegisters, &MockContext),
            to(168, 160, 120)
        );
        // The interrupted stack pointer need not be aligned.
        let odd = Frame {
            sp: FRAME.sp + 1,
            ..FRAME
        };
        assert_eq!(
            step(Abi::Amd64, &INTERRUPTED, &odd, &NoRegisters, &MockContext),
            to(169, 161, 121)
        );
        // Without the mark for signals, the rule has to rise: it could repeat one step forever.
        let rule = Rule {
            signal: false,
            ..INTERRUPTED
        };
        assert_eq!(
            step(Abi::Amd64, &rule, &FRAME, &NoRegisters, &MockContext),
            Err(Stop::CfaNotRising)
        );
        let high = Frame {
            sp: FRAME.sp + 900,
            ..FRAME
        };
        assert_eq!(
            step(Abi::Amd64, &INTERRUPTED, &high, &NoRegisters, &MockContext),
            Err(Stop::Fault {
                address: FRAME.sp + 900 + 160
            })
        );
    }

    #[test]
    fn a_context_has_a_code_segment() {
        struct CodeSegment(u64);
        impl Memory for CodeSegment {
            fn read_word(&self, address: u64) -> Result<u64, Fault> {
                if address == 0x1000 + 184 {
                    Ok(self.0)
                } else {
                    Err(Fault)
                }
            }
        }
        for (word, is) in [
            (0x33, true),
            (0x002b_0000_0000_0033, true),
            (0xe033, true),
            (0, false),
            (0x23, false),
            (0x7fff_f7dd_1033, false),
            (0x1_0034, false),
        ] {
            assert_eq!(is_context(0x1000, &CodeSegment(word)), Ok(is), "{word:#x}");
        }
        assert_eq!(is_context(0x2000, &CodeSegment(0x33)), Err(Fault));
        assert_eq!(is_context(u64::MAX - 100, &CodeSegment(0x33)), Err(Fault));
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
            step(Abi::Amd64, &INTERRUPTED, &FRAME, &NoRegisters, &Zeros),
            to(0, 0, 0)
        );
    }

    #[test]
    fn all_interrupted_registers_are_known() {
        let registers = Interrupted {
            context: FRAME.sp,
            memory: &MockContext,
        };
        // rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 and r15, in the layout of <asm/sigcontext.h>.
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7, 8, 15];
        let offsets = [144, 136, 152, 128, 112, 104, 120, 160, 40, 96];
        for (number, offset) in numbers.into_iter().zip(offsets) {
            assert_eq!(registers.register(number), Some(offset));
        }
        assert_eq!(registers.register(16), None);
        for context in [FRAME.sp + 2000, u64::MAX] {
            let registers = Interrupted {
                context,
                memory: &MockContext,
            };
            assert_eq!(registers.register(0), None);
        }

        // A signal may interrupt code on a stack that gcc realigns: its CFA is in r10.
        let mut rule = Rule::amd64(Base::Sp, 0x100, Location::AtCfa(-0x40));
        rule.cfa.base = Base::Register(10);
        rule.cfa.offset = 0x9000;
        rule.ra = Location::At(Base::Sp, 8);
        rule.fp = Location::Unchanged;
        assert_eq!(
            step(Abi::Amd64, &rule, &FRAME, &registers, &MockContext),
            to(8, 0x9000 + 56, FRAME.fp)
        );
    }
}
