// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Signals on Linux: the trampoline that a handler returns to, and the registers of the interrupted
//! frame in `struct rt_sigframe`. Also the code after the system call that starts a thread.

use super::{
    insn::{
        effect,
        InsnEffect,
        MOV_CLONE,
        MOV_RT_SIGRETURN,
        SVC, //
    },
    plt::UNTOUCHED,
    registers, //
};
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
    }, //
};

/// The number of bytes around the PC that are examined for a signal trampoline:
/// [`TRAMPOLINE_BEFORE`] bytes before the PC, and the rest from the PC on.
pub const TRAMPOLINE: usize = 16;

/// The number of examined bytes before the PC.
pub const TRAMPOLINE_BEFORE: u64 = 8;

/// The place of x0 in `struct rt_sigframe`, in bytes: `struct siginfo` has 128 bytes, `uc_mcontext`
/// is at 176 bytes in `struct ucontext`, and begins with the fault address. The other general
/// registers follow, then the stack pointer, the PC and PSTATE.
const X0: i32 = 128 + 176 + 8;
const SP: i32 = X0 + 8 * registers::SP as i32;
const PC: i32 = SP + 8;
const PSTATE: i32 = PC + 8;
/// The first record of the other registers, which are aligned to 16 bytes.
const RECORD: i32 = PSTATE + 16;
/// The mark of the record of floating-point registers, which the kernel writes first.
const FPSIMD_MAGIC: u32 = 0x4650_8001;
/// The bits of PSTATE that are 0 in user space of AArch64: the exception level and the state of
/// execution.
const MODE: u64 = 0x1f;

/// The rule of a signal trampoline. A signal handler returns to the trampoline, and the trampoline
/// returns to the interrupted code.
///
/// The trampoline's stack pointer points to Linux's `struct rt_sigframe`.
pub const INTERRUPTED: Rule = Rule {
    cfa: Cfa {
        base: Base::Sp,
        offset: SP,
        deref: true,
        plus: 0,
    },
    ra: Location::At(Base::Sp, PC),
    fp: Location::At(Base::Sp, X0 + 8 * registers::FP as i32),
    mangled: false,
    signal: true,
    extra: Extra::NONE,
};

/// Whether a `struct rt_sigframe` may lie at `context`, a run-time address: its PSTATE has to be
/// that of a program of AArch64, and its first record that of the floating-point registers.
///
/// # Errors
///
/// [`Fault`] if the memory cannot be read.
pub fn is_context<M: Memory + ?Sized>(context: u64, memory: &M) -> Result<bool, Fault> {
    let word = |offset: i32| {
        let at = context.checked_add_signed(offset.into()).ok_or(Fault)?;
        memory.read_word(at)
    };
    Ok(word(PSTATE)? & MODE == 0 && word(RECORD)? as u32 == FPSIMD_MAGIC)
}

/// The instructions of such code. The PC is at the third.
fn words(code: &[u8; TRAMPOLINE]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(code.chunks_exact(4)) {
        *word = bytes.try_into().map_or(0, u32::from_le_bytes);
    }
    words
}

/// Whether the PC is in a signal trampoline, before its system call or at it. If true,
/// [`INTERRUPTED`] is the rule. The trampoline is `mov x8, #139; svc #0`: the vDSO's
/// `__kernel_rt_sigreturn` has no rows, on purpose.
pub fn is_signal_trampoline(code: &[u8; TRAMPOLINE]) -> bool {
    let [_, before, at, behind] = words(code);
    [at, behind] == [MOV_RT_SIGRETURN, SVC] || [before, at] == [MOV_RT_SIGRETURN, SVC]
}

/// Whether the PC is right after the system call of a signal trampoline, where the PC is during
/// that system call. If true, [`INTERRUPTED`] is the rule, but only if the thread is in the system
/// call.
pub fn is_behind_signal_trampoline(code: &[u8; TRAMPOLINE]) -> bool {
    let [first, before, ..] = words(code);
    [first, before] == [MOV_RT_SIGRETURN, SVC]
}

/// The rule after a system call that starts a process or a thread, in the calling thread.
pub const BEHIND_CLONE: Rule = UNTOUCHED;

/// Whether the PC is right after the system call in `mov x8, #NUMBER; svc #0; cmp x0, #0`, with the
/// number of `clone` or `clone3`. If true, [`BEHIND_CLONE`] is the rule in the calling thread:
/// glibc's code has not touched the stack until then.
///
/// The new thread begins there too, with a result of zero. This function does not examine the
/// result. `fork` has another comparison after its system call, because its function has a frame.
pub fn is_behind_clone(code: &[u8; TRAMPOLINE]) -> bool {
    const CMP_X0_0: u32 = 0xf100_001f;
    const CBZ_X0: u32 = 0xb400_0000;

    let [first, before, at, _] = words(code);
    MOV_CLONE.contains(&first)
        && before == SVC
        && (at == CMP_X0_0
            || matches!(effect(at), InsnEffect::Branches(_)) && at & 0xff00_001f == CBZ_X0)
}

/// A cheap check that rules out [`is_signal_trampoline`], [`is_behind_signal_trampoline`] and
/// [`is_behind_clone`]: if true, all three are false. `before` and `at` are the instructions before
/// the PC and at the PC.
#[inline(always)]
pub fn is_ordinary(before: u32, at: u32) -> bool {
    before != SVC && at != SVC && at != MOV_RT_SIGRETURN
}

/// The registers of a frame that a signal interrupted. Linux has saved all of them on the handler's
/// stack.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted<'a, M: ?Sized> {
    /// The run-time address of Linux's `struct rt_sigframe`: the stack pointer in the trampoline's
    /// frame.
    pub context: u64,
    /// The memory of the process.
    pub memory: &'a M,
}

impl<M: Memory + ?Sized> RegisterSource for Interrupted<'_, M> {
    fn register(&self, number: u8) -> Option<u64> {
        if number >= registers::COUNT {
            return None;
        }
        let offset = i64::from(X0).wrapping_add(i64::from(number).wrapping_mul(8));
        let address = self.context.checked_add_signed(offset)?;
        self.memory.read_word(address).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::{
        aarch64::fallback::tests::MockCode,
        format::abi::Abi,
        unwind::step::{
            step,
            Frame,
            NoRegisters,
            Step, //
        }, //
    };

    const STACK: u64 = 0x8000_0000;

    /// `struct rt_sigframe` at [`STACK`]: each general register has its number times 16.
    fn frame() -> MockCode {
        let mut process = MockCode::new();
        for number in 0..31 {
            process.word(STACK + 312 + 8 * number, number << 4);
        }
        process
            .word(STACK + 560, 0x9000)
            .word(STACK + 568, 0x40_0001)
            .word(STACK + 576, 0x6000_1000)
            .word(STACK + 592, (528 << 32) | 0x4650_8001);
        process
    }

    #[test]
    fn the_interrupted_frame_is_in_the_signal_frame() {
        let process = frame();
        let trampoline = Frame {
            pc: 1,
            sp: STACK,
            fp: 2,
        };
        let interrupted = Frame {
            pc: 0x40_0001,
            sp: 0x9000,
            fp: 29 << 4,
        };
        assert_eq!(
            step(
                Abi::Aarch64,
                &INTERRUPTED,
                &trampoline,
                &NoRegisters,
                &process
            ),
            Ok(Step::Caller(interrupted))
        );
        let registers = Interrupted {
            context: STACK,
            memory: &process,
        };
        assert_eq!(registers.register(registers::LINK), Some(30 << 4));
        assert_eq!(registers.register(registers::SP), Some(0x9000));
        assert_eq!(registers.register(registers::RETURN_ADDRESS), None);
        let at_the_end = Interrupted {
            context: u64::MAX - 8,
            memory: &process,
        };
        assert_eq!(at_the_end.register(0), None);
    }

    #[test]
    fn a_signal_frame_is_that_of_a_program() {
        let is = |process: &MockCode| is_context(STACK, process);
        assert_eq!(is(&frame()), Ok(true));
        // EL1, AArch32, no record.
        for (offset, word) in [(576, 0x6000_0005), (576, 0x6000_0010), (592, 0)] {
            assert_eq!(is(frame().word(STACK + offset, word)), Ok(false));
        }
        assert_eq!(is_context(0x10, &frame()), Err(Fault));
        assert_eq!(is_context(u64::MAX, &frame()), Err(Fault));
    }

    #[test]
    fn handlers_return_to_the_trampoline() {
        // nop; nop; mov x8, #139; svc #0; nop; nop
        let code = [
            0xd503_201f,
            0xd503_201f,
            0xd280_1168,
            0xd400_0001,
            0xd503_201f,
            0xd503_201f,
        ];
        let at = |index: usize| -> [u8; TRAMPOLINE] {
            let mut bytes = [0; TRAMPOLINE];
            for (to, word) in bytes.chunks_exact_mut(4).zip(&code[index - 2..]) {
                to.copy_from_slice(&u32::to_le_bytes(*word));
            }
            bytes
        };
        let found = [2, 3, 4].map(|index| {
            let code = at(index);
            (
                is_signal_trampoline(&code),
                is_behind_signal_trampoline(&code),
            )
        });
        assert_eq!(found, [(true, false), (true, false), (false, true)]);
        for index in [2, 3, 4] {
            assert!(!is_ordinary(code[index - 1], code[index]));
        }
        assert!(is_ordinary(code[0], code[1]));
    }

    #[test]
    fn clone_returns_to_its_caller() {
        let is = |words: [u32; 4]| {
            let mut bytes = [0; TRAMPOLINE];
            for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            is_behind_clone(&bytes)
        };
        // mov x8, #220; svc #0; cmp x0, #0; b.eq
        assert!(is([0xd280_1b88, 0xd400_0001, 0xf100_001f, 0x5400_0080]));
        // mov x8, #435; svc #0; cbz x0
        assert!(is([0xd280_3668, 0xd400_0001, 0xb400_0080, 0]));
        // Another number, and what `fork` does: cmn x0, #4095.
        assert!(!is([0xd280_1168, 0xd400_0001, 0xf100_001f, 0]));
        assert!(!is([0xd280_1b88, 0xd400_0001, 0xb140_041f, 0]));
    }
}
