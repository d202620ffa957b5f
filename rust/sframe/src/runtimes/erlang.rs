// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step from code of Erlang's virtual machine. AMD64 only.
//!
//! A process of Erlang has a stack on its heap, and compiled code has the pointer to it in rsp. The
//! two low bits of a word on that stack are 0 only if the word is a return address: the compiler
//! aligns the code after each call of an Erlang function, and the words of all data have other low
//! bits. A call of a routine of the virtual machine is not aligned; its return address is on top of
//! the stack as long as the routine runs. The virtual machine compiles its routines first, so they
//! are at lower addresses than all modules and than the code where processes end.
//!
//! Compiled code calls C functions on the stack of the scheduler's thread. It leaves its own stack
//! pointer in rbp or in the structure `Process`, whose address is in r13, and takes it back after
//! the call. The function `process_main`, which is compiled code, too, runs on the thread's stack
//! and never returns (`beam_asm.hpp` and `process_main.cpp` in Erlang's source).

use crate::sframe::{
    format::bytes::Source,
    runtimes::unknown::{
        ahead,
        Ahead, //
    },
    unwind::step::{
        Frame,
        Memory,
        RegisterSource,
        Step, //
    },
    x86_64::{
        decode::{
            instruction,
            Effect,
            DECODING,
            LONGEST_INSTRUCTION, //
        },
        fallback::is_behind_call,
        insn::{
            CALL_RELATIVE,
            JMP_RELATIVE,
            LEAVE, //
        },
        prologue::FixedRule,
        registers::{
            R13,
            RBX, //
        }, //
    }, //
};
use core::ops::Range;

/// The most words of a frame.
const MAX_FRAME: u64 = 1024;
/// The most schedulers of a virtual machine.
const MAX_SCHEDULERS: u32 = 1024;
/// The most bytes between a call of a C function and the instruction that takes the stack pointer
/// of compiled code back.
const TAKEN_BACK: u64 = 9;
/// The same after a call that is known to be one of a C function, because the code may first look
/// at the result; and from other code on the thread's stack on.
const FAR: u64 = 122;
/// The work of a search in one word of code, in instructions.
const SEARCH_WORD: u32 = 100;
/// The bytes of code that make a frame and store its words, at most. A multiple of six.
const NEW_FRAME: u64 = 132;
/// The most instructions that are decoded after those that may make a frame.
const MAX_DECODED: u32 = 48;
/// The first bytes of call *offset(%rip).
const CALL_BY_PC: u16 = u16::from_le_bytes([0xff, 0x15]);
/// The instruction by which a call of a function written in C passes the address where the code of
/// this call begins: lea -27(%rip),%rdx. Its offset in that code, and the offsets of the return
/// address, in bytes.
const PASSES_ITSELF: u64 = u64::from_le_bytes([0, 0x48, 0x8d, 0x15, 0xe5, 0xff, 0xff, 0xff]);
const PASSES_ITSELF_AT: u64 = 20;
const RETURNS_AT: Range<u64> = 32..37;
/// The length in bytes of the code of `process_main`, at most.
const MAIN_LEN: u64 = 512;
/// The alignment of the stack pointer in `process_main`, in bytes.
const MAIN_ALIGNMENT: u64 = 64;

/// The code of a virtual machine of Erlang. Addresses are run-time addresses; sizes and offsets are
/// in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaggedStack {
    /// The code that the first function of each process returns to.
    pub exit: u64,
    /// The start of `process_main`.
    pub main: u64,
    /// The return address of `process_main`.
    pub main_return: u64,
    /// The size of the frame of `process_main`, without the bytes that align it.
    pub main_frame: u32,
    /// The distance from the stack pointer in `process_main` to the address in rbx.
    pub registers_offset: u32,
    /// The structures of the schedulers; the first field of each is the stack pointer of its
    /// `process_main`.
    pub schedulers: u64,
    /// The number of these structures.
    pub scheduler_count: u32,
    /// The size of one of them.
    pub scheduler_size: u32,
    /// The offset in such a structure of the address of the running `Process`.
    pub process_offset: u32,
}

/// Where compiled code has the pointer to the stack of its process, while it calls a C function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SavedStack {
    Rbp,
    /// At this offset in the structure `Process`.
    InProcess(u8),
}

impl TaggedStack {
    /// Takes a step from a frame in compiled code, as [`caller`](Self::caller). A process ends at
    /// the exit code: its frame is the outermost one.
    // The only function with a stack frame from here to the callees of `caller`.
    #[inline(never)]
    pub(super) fn step<M: Memory + Source + ?Sized, R: RegisterSource + ?Sized>(
        &self,
        code: Range<u64>,
        frame: &Frame,
        registers: Option<&R>,
        memory: &M,
    ) -> Option<Step> {
        match self.is_exit(frame.pc) {
            true => Some(Step::Outermost),
            false => self
                .caller(code, frame, registers, memory)
                .map(Step::Caller),
        }
    }

    /// Whether the code at this run-time address is where a process ends.
    #[inline]
    pub const fn is_exit(&self, pc: u64) -> bool {
        pc == self.exit
    }

    /// Whether the code at this run-time address is that of `process_main`, or right after it.
    #[inline]
    pub const fn is_main(&self, pc: u64) -> bool {
        pc.wrapping_sub(self.main) <= MAIN_LEN
    }

    /// The caller of a frame in compiled code; `None` if it cannot be proved. `code` is the range
    /// of compiled code. `registers` are those of the innermost frame, or of a frame that a signal
    /// interrupted.
    #[inline(always)]
    fn caller<M: Memory + Source + ?Sized, R: RegisterSource + ?Sized>(
        &self,
        code: Range<u64>,
        frame: &Frame,
        registers: Option<&R>,
        memory: &M,
    ) -> Option<Frame> {
        let is_behind_call = |pc| is_behind_call(pc, memory);
        let routines = code.start..self.exit;
        let is_routine = frame.pc < self.exit;
        if is_routine && code_at(frame.pc, memory) as u8 == LEAVE {
            // The routine was called on the thread's stack.
            let rule = FixedRule {
                from_fp: true,
                ..FixedRule::new(16, -16)
            };
            return (rule.caller(frame, memory)).filter(|caller| is_behind_call(caller.pc));
        }
        let is_main = self.is_main(frame.pc);
        let (searched, is_elsewhere) = match registers {
            // After a call: of a C function, if the code takes the stack pointer back.
            None if !is_main && self.is_on_thread(&routines, frame, memory) => (FAR, true),
            None => (TAKEN_BACK, true),
            Some(registers) => {
                let distance = registers.register(RBX)?.wrapping_sub(frame.sp);
                (FAR, distance == self.registers_offset.into())
            }
        };
        let mut stack = frame.sp;
        let mut next = frame.pc;
        if is_elsewhere {
            stack = match taken_back(&mut next, searched, memory) {
                _ if is_main && registers.is_some() => return self.thread(frame, memory),
                Some(SavedStack::Rbp) => frame.fp,
                Some(SavedStack::InProcess(offset)) => {
                    let process = match registers {
                        Some(registers) => registers.register(R13),
                        None => self.process(frame.sp, memory),
                    };
                    memory
                        .read_word(process?.wrapping_add(offset.into()))
                        .ok()?
                }
                None if is_main => return self.thread(frame, memory),
                None if registers.is_some() => return None,
                None => stack,
            };
        }
        let word_at = |index: u64| memory.read_word(stack.wrapping_add(index.wrapping_mul(8)));
        let caller = |pc, index: u64| {
            Some(Frame {
                pc,
                sp: stack.wrapping_add(index.wrapping_add(1).wrapping_mul(8)),
                ..*frame
            })
        };
        let top = word_at(0).ok()?;
        if is_routine {
            // The routines come first. Some push words that have any low bits, or remove their
            // return address. Those that raise an exception clear the low bits of the return
            // address, or replace it: for a function written in C, by the address of the code that
            // passes this same address.
            let begins = top.wrapping_add(PASSES_ITSELF_AT);
            let offsets = match code_at(begins, memory) << 8 == PASSES_ITSELF {
                _ if top & 3 != 0 => 0..1,
                true => RETURNS_AT,
                false => 0..8,
            };
            let called = offsets
                .map(|offset| top.wrapping_add(offset))
                .find(|pc| calls_routine(*pc, &routines, memory));
            if let Some(pc) = called {
                return caller(pc, 0);
            }
            // Or a function has jumped to the routine, which returns to the function's caller.
            let Ahead::Rule(rule) = ahead(next, memory) else {
                return None;
            };
            let frame = Frame {
                sp: stack,
                ..*frame
            };
            return rule
                .caller(&frame, memory)
                .filter(|caller| is_behind_call(caller.pc));
        }
        let mut words = 0..MAX_FRAME;
        match registers.and_then(|_| new_frame(frame.pc, memory)) {
            // Words of a new frame may be what another frame left there. The return address is
            // right above them.
            Some(size) => words = size..size.saturating_add(1),
            None if code.contains(&top) && is_behind_call(top) => return caller(top, 0),
            None => {}
        }
        for index in words {
            let word = word_at(index).ok()?;
            if word & 3 == 0 {
                return match word == self.exit || is_behind_call(word) {
                    true => caller(word, index),
                    false => None,
                };
            }
        }
        None
    }

    /// Whether the code of a frame runs on the thread's stack; the PC is after a call. Compiled
    /// code calls C functions by the instruction call *offset(%rip), and nothing else.
    fn is_on_thread<M: Memory + Source + ?Sized>(
        &self,
        routines: &Range<u64>,
        frame: &Frame,
        memory: &M,
    ) -> bool {
        code_at(frame.pc.wrapping_sub(6), memory) as u16 == CALL_BY_PC
            || (calls_routine(frame.pc, routines, memory)
                && self.process(frame.sp, memory).is_some())
    }

    /// The caller of `process_main`, on the stack of the thread.
    #[inline(never)]
    fn thread<M: Memory + ?Sized>(&self, frame: &Frame, memory: &M) -> Option<Frame> {
        let bottom = frame.sp.wrapping_add(self.main_frame.into());
        (0..const { MAIN_ALIGNMENT / 8 }).find_map(|word| {
            let slot = bottom.wrapping_add(word.wrapping_mul(8));
            let sp = slot.wrapping_add(8);
            (memory.read_word(slot) == Ok(self.main_return)).then_some(Frame {
                pc: self.main_return,
                sp,
                ..*frame
            })
        })
    }

    /// The structure of the process that the scheduler runs whose `process_main` has the stack
    /// pointer `sp`.
    #[inline(never)]
    fn process<M: Memory + ?Sized>(&self, sp: u64, memory: &M) -> Option<u64> {
        let mut scheduler = self.schedulers;
        for _ in 0..self.scheduler_count.min(MAX_SCHEDULERS) {
            let field = scheduler.wrapping_add(self.process_offset.into());
            let (of, process) = memory.read_two(scheduler, field).ok()?;
            if of == sp {
                return Some(process);
            }
            scheduler = scheduler.wrapping_add(self.scheduler_size.into());
        }
        None
    }
}

/// Eight bytes of code at a run-time address; zeros if they cannot be read.
#[inline(never)]
fn code_at<M: Memory + ?Sized>(pc: u64, memory: &M) -> u64 {
    memory.read_word(pc).unwrap_or(0)
}

/// Where the code from the run-time address `pc` on takes the stack pointer from, if an instruction
/// does so that begins within `len` bytes. Then `pc` becomes the address of the next instruction.
#[inline(never)]
fn taken_back<M: Memory + Source + ?Sized>(
    pc: &mut u64,
    len: u64,
    memory: &M,
) -> Option<SavedStack> {
    let mut word = 0;
    for behind in 0..len {
        let at = pc.wrapping_add(behind);
        // Each word shows the beginnings of four instructions.
        word >>= 8;
        if behind % 4 == 0 {
            memory.spend(SEARCH_WORD).ok()?;
            word = code_at(at, memory);
        }
        let (len, saved) = match word.to_le_bytes() {
            // mov %rbp,%rsp
            [0x48, 0x89, 0xec, ..] => (3, SavedStack::Rbp),
            // mov offset(%r13),%rsp
            [0x49, 0x8b, 0x65, offset, ..] => (4, SavedStack::InProcess(offset)),
            _ => continue,
        };
        *pc = at.wrapping_add(len);
        return Some(saved);
    }
    None
}

/// Whether a call of a routine is before the run-time address `pc`: directly, or through a jump in
/// the caller's module.
#[inline(never)]
fn calls_routine<M: Memory + ?Sized>(pc: u64, routines: &Range<u64>, memory: &M) -> bool {
    let to =
        |from: u64, offset: [u8; 4]| from.wrapping_add_signed(i32::from_le_bytes(offset).into());
    let [CALL_RELATIVE, a, b, c, d, ..] = code_at(pc.wrapping_sub(5), memory).to_le_bytes() else {
        return false;
    };
    let target = to(pc, [a, b, c, d]);
    routines.contains(&match code_at(target, memory).to_le_bytes() {
        [0x40, JMP_RELATIVE, a, b, c, d, ..] => to(target.wrapping_add(6), [a, b, c, d]),
        _ => target,
    })
}

/// The size in words of the frame that was made right before the run-time address `pc`: by an
/// instruction that is followed up to the PC by instructions that leave the stack pointer and go
/// on.
#[inline(never)]
fn new_frame<M: Memory + Source + ?Sized>(pc: u64, memory: &M) -> Option<u64> {
    let mut left = MAX_DECODED;
    // Each word begins with the last two bytes of the one before.
    (0..const { NEW_FRAME / 6 }).find_map(|word| {
        memory.spend(SEARCH_WORD).ok()?;
        let at = pc
            .wrapping_sub(NEW_FRAME)
            .wrapping_add(word.wrapping_mul(6));
        let code = code_at(at, memory).to_le_bytes();
        // sub $size,%rsp
        let makes = |code: &[u8]| matches!(*code, [0x48, 0x81 | 0x83, 0xec]);
        let start = code.windows(3).position(makes)?;
        size_of_frame(at.wrapping_add(start as u64), pc, &mut left, memory)
    })
}

/// The size in words of the frame that the instruction at the run-time address `at` makes, if the
/// instructions from there up to `pc` leave the stack pointer otherwise and go on.
#[inline(never)]
fn size_of_frame<S: Source + ?Sized>(
    mut at: u64,
    pc: u64,
    left: &mut u32,
    memory: &S,
) -> Option<u64> {
    let mut size = None;
    while at < pc {
        *left = left.checked_sub(1)?;
        memory.spend(DECODING).ok()?;
        let code: [u8; LONGEST_INSTRUCTION] = memory.read(at).ok()?;
        let (len, effect) = instruction(&code)?;
        match effect {
            Effect::AddSp(bytes) if size.is_none() => size = Some(bytes.wrapping_neg()),
            Effect::Other | Effect::Local => {}
            _ => return None,
        }
        at = at.wrapping_add(len);
    }
    let size = size.filter(|_| at == pc)?;
    u64::try_from(size).ok().map(|size| size / 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::{
        runtimes::code::tests::Memories,
        unwind::step::LOST_FP, //
    };
    use std::vec;

    const CODE: u64 = 0x7f00_0000;
    const MAIN: u64 = CODE + 0x400;
    const EXIT: u64 = CODE + 0x700;
    /// A caller in compiled code; and one of a routine, which is not aligned.
    const CALLER: u64 = CODE + 0x800;
    const UNALIGNED: u64 = CODE + 0x905;
    /// Code of a function, and of a routine.
    const FUNCTION: u64 = CODE + 0xa00;
    const ROUTINE: u64 = CODE + 0x100;
    /// The stacks of a process, and of the thread of a scheduler.
    const STACK: u64 = 0x6000_0000;
    const THREAD: u64 = 0x8000_0100;
    const SCHEDULERS: u64 = 0x5000_0000;
    const PROCESS: u64 = 0x5000_1000;
    const MAIN_RETURN: u64 = 0x40_0100;
    /// The tags of a small integer and of a list.
    const DATA: [u64; 2] = [0x3f, 0x7001];

    struct Registers {
        rbx: u64,
        r13: u64,
    }

    impl RegisterSource for Registers {
        fn register(&self, number: u8) -> Option<u64> {
            match number {
                RBX => Some(self.rbx),
                R13 => Some(self.r13),
                _ => None,
            }
        }
    }

    const ERLANG: TaggedStack = TaggedStack {
        exit: EXIT,
        main: MAIN,
        main_return: MAIN_RETURN,
        main_frame: 0x200,
        registers_offset: 0x40,
        schedulers: SCHEDULERS,
        scheduler_count: 3,
        scheduler_size: 0x100,
        process_offset: 0xa8,
    };

    /// The registers while the process runs on its own stack, and on that of the thread.
    const RUNNING: Registers = Registers {
        rbx: THREAD + 0x40,
        r13: PROCESS,
    };

    fn process() -> Memories {
        let parts = [
            CODE,
            STACK,
            THREAD & !0xfff,
            SCHEDULERS,
            MAIN_RETURN & !0xfff,
        ];
        let mut parts = Memories(parts.map(|start| (start, vec![0x90; 0x2000])).into());
        // call *%rax; call ROUTINE
        parts.write(CALLER - 2, &[0xff, 0xd0]);
        parts.write(UNALIGNED - 5, &[0xe8]);
        let distance = ROUTINE.wrapping_sub(UNALIGNED) as u32;
        parts.write(UNALIGNED - 4, &distance.to_le_bytes());
        parts.words(STACK, &[DATA[0]; 0x40]);
        parts.words(PROCESS + 0x58, &[STACK + 0x80]);
        parts.words(SCHEDULERS + 0x200, &[THREAD]);
        parts.words(SCHEDULERS + 0x2a8, &[PROCESS]);
        parts
    }

    fn at(pc: u64, sp: u64) -> Frame {
        Frame {
            pc,
            sp,
            fp: STACK + 0x100,
        }
    }

    fn caller_in(
        memory: &Memories,
        frame: Frame,
        registers: Option<&Registers>,
    ) -> Option<(u64, u64)> {
        ERLANG
            .caller(CODE..CODE + 0x2000, &frame, registers, memory)
            .map(|caller| (caller.pc, caller.sp))
    }

    #[test]
    fn the_first_word_without_a_tag_is_the_return_address() {
        for words in 0..8 {
            let mut memory = process();
            let mut stack = vec![DATA[words % 2]; words];
            stack.push(CALLER);
            memory.words(STACK, &stack);
            let expected = Some((CALLER, STACK + 8 * words as u64 + 8));
            for registers in [None, Some(&RUNNING)] {
                assert_eq!(caller_in(&memory, at(FUNCTION, STACK), registers), expected);
            }
            // Where processes end is after no call.
            stack[words] = EXIT;
            memory.words(STACK, &stack);
            let expected = Some((EXIT, STACK + 8 * words as u64 + 8));
            assert_eq!(caller_in(&memory, at(FUNCTION, STACK), None), expected);
            // A word that is no return address.
            for word in [0, CODE + 0x400, 0x1000] {
                stack[words] = word;
                memory.words(STACK, &stack);
                memory.words(STACK + 0x100, &[CALLER]);
                assert_eq!(caller_in(&memory, at(FUNCTION, STACK), None), None);
            }
        }
        // No return address at all: the frame ends with the memory.
        let mut memory = process();
        memory.words(STACK, &[DATA[0]; 0x400]);
        assert_eq!(caller_in(&memory, at(FUNCTION, STACK), None), None);
    }

    #[test]
    fn return_addresses_of_routines_are_on_top() {
        let mut memory = process();
        memory.words(STACK, &[UNALIGNED, DATA[0], CALLER]);
        let found = caller_in(&memory, at(FUNCTION, STACK), Some(&RUNNING));
        assert_eq!(found, Some((UNALIGNED, STACK + 8)));
        // A routine has nothing else on the stack: it has pushed data, or is about to leave for
        // another place.
        for stack in [
            [UNALIGNED, CALLER],
            [DATA[0], UNALIGNED],
            [CALLER, UNALIGNED],
        ] {
            memory.words(STACK, &stack);
            let expected = (stack[0] == UNALIGNED).then_some((UNALIGNED, STACK + 8));
            for registers in [None, Some(&RUNNING)] {
                assert_eq!(caller_in(&memory, at(ROUTINE, STACK), registers), expected);
            }
        }
        // The call leads to a jump to the routine.
        let (jump, distance) = (CODE + 0xc00, ROUTINE.wrapping_sub(CODE + 0xc06) as u32);
        memory.write(jump, &[0x40, 0xe9]);
        memory.write(jump + 2, &distance.to_le_bytes());
        memory.write(
            UNALIGNED - 4,
            &(jump.wrapping_sub(UNALIGNED) as u32).to_le_bytes(),
        );
        memory.words(STACK, &[UNALIGNED]);
        let expected = Some((UNALIGNED, STACK + 8));
        assert_eq!(caller_in(&memory, at(ROUTINE, STACK), None), expected);
        // The routine has cleared the low bits.
        memory.words(STACK, &[UNALIGNED & !3]);
        assert_eq!(caller_in(&memory, at(ROUTINE, STACK), None), expected);
        // Further below such a word is data.
        memory.words(STACK, &[DATA[0], UNALIGNED, CALLER]);
        let found = caller_in(&memory, at(FUNCTION, STACK), Some(&RUNNING));
        assert_eq!(found, Some((CALLER, STACK + 24)));
    }

    #[test]
    fn a_function_written_in_c_that_raises_an_exception_has_a_caller() {
        const START: u64 = CODE + 0x980;
        for returns_at in [32, 36] {
            let mut memory = process();
            let pc = START + returns_at;
            let distance = ROUTINE.wrapping_sub(pc) as u32;
            memory.write(START + 20, &[0x48, 0x8d, 0x15, 0xe5, 0xff, 0xff, 0xff]);
            memory.write(pc - 5, &[0xe8]);
            memory.write(pc - 4, &distance.to_le_bytes());
            memory.words(STACK, &[START, DATA[0], CALLER]);
            let found = caller_in(&memory, at(ROUTINE, STACK), None);
            assert_eq!(found, Some((pc, STACK + 8)));
            // The code passes another address, or calls no routine.
            for (at_offset, byte) in [(23, 0xe4), (returns_at - 5, 0xe9)] {
                let mut memory = memory.clone();
                memory.write(START + at_offset, &[byte]);
                assert_eq!(caller_in(&memory, at(ROUTINE, STACK), None), None);
            }
        }
    }

    #[test]
    fn words_of_a_new_frame_are_not_trusted() {
        // sub $16,%rsp; mov %rdi,(%rsp). The second word is what another frame left.
        const MAKES: [u8; 8] = [0x48, 0x83, 0xec, 0x10, 0x48, 0x89, 0x3c, 0x24];
        let mut memory = process();
        memory.write(FUNCTION, &MAKES);
        memory.words(STACK, &[UNALIGNED, CALLER, EXIT]);
        for behind in [4, 8] {
            let frame = at(FUNCTION + behind, STACK);
            let found = caller_in(&memory, frame, Some(&RUNNING));
            assert_eq!(found, Some((EXIT, STACK + 24)), "{behind}");
        }
        memory.words(STACK + 16, &[DATA[0], EXIT]);
        assert_eq!(
            caller_in(&memory, at(FUNCTION + 8, STACK), Some(&RUNNING)),
            None
        );
        memory.words(STACK + 16, &[EXIT]);
        // Many words are stored before.
        memory.write(FUNCTION + 8, &[0x48, 0x89, 0x3c, 0x24].repeat(31));
        for behind in (4..=132).step_by(4) {
            let found = caller_in(&memory, at(FUNCTION + behind, STACK), Some(&RUNNING));
            assert_eq!(found, Some((EXIT, STACK + 24)), "{behind}");
        }
        // The frame is older: a call is in between.
        memory.write(FUNCTION + 8, &[0xe8, 0, 0, 0, 0]);
        let found = caller_in(&memory, at(FUNCTION + 13, STACK), Some(&RUNNING));
        assert_eq!(found, Some((UNALIGNED, STACK + 8)));
    }

    #[test]
    fn the_stack_pointer_is_found_behind_calls_of_c_functions() {
        // mov %eax,%r14d; mov %rbp,%rsp, and mov 0x58(%r13),%rsp
        const FROM_RBP: [u8; 6] = [0x41, 0x89, 0xc6, 0x48, 0x89, 0xec];
        const FROM_PROCESS: [u8; 4] = [0x49, 0x8b, 0x65, 0x58];
        for (code, stack) in [
            (&FROM_RBP[..], STACK + 0x100),
            (&FROM_PROCESS, STACK + 0x80),
        ] {
            let mut memory = process();
            memory.write(FUNCTION, code);
            memory.words(stack + 8, &[CALLER]);
            let expected = Some((CALLER, stack + 16));
            let frame = at(FUNCTION, THREAD);
            assert_eq!(caller_in(&memory, frame, None), expected);
            assert_eq!(caller_in(&memory, frame, Some(&RUNNING)), expected);
            // Before the call, on the thread's stack.
            let frame = at(FUNCTION - 16, THREAD);
            assert_eq!(caller_in(&memory, frame, Some(&RUNNING)), expected);
            // On the stack of the process the code does not count.
            memory.words(STACK, &[CALLER]);
            let frame = at(FUNCTION - 16, STACK);
            let expected = Some((CALLER, STACK + 8));
            assert_eq!(caller_in(&memory, frame, Some(&RUNNING)), expected);
        }
        // The frame pointer with the stack pointer of the process is lost.
        let mut memory = process();
        memory.write(FUNCTION, &FROM_RBP);
        memory.words(STACK + 0x108, &[CALLER]);
        let lost = Frame {
            fp: LOST_FP,
            ..at(FUNCTION, THREAD)
        };
        assert_eq!(caller_in(&memory, lost, None), None);
        // No scheduler has this stack.
        let mut memory = process();
        memory.write(FUNCTION, &FROM_PROCESS);
        memory.words(STACK + 0x80, &[CALLER]);
        assert_eq!(caller_in(&memory, at(FUNCTION, THREAD + 0x40), None), None);
        // The code on the thread's stack does not show where the stack pointer is.
        let memory = process();
        assert_eq!(
            caller_in(&memory, at(FUNCTION, THREAD), Some(&RUNNING)),
            None
        );
    }

    #[test]
    fn the_stack_pointer_is_taken_back_far_behind_calls_of_c_functions() {
        // call *0x100(%rip); and, later, mov 0x58(%r13),%rsp
        const CALLS_C: [u8; 6] = [0xff, 0x15, 0x00, 0x01, 0x00, 0x00];
        const TAKES_BACK: [u8; 4] = [0x49, 0x8b, 0x65, 0x58];
        for far in [13, 61, 121, 122] {
            let mut memory = process();
            memory.write(FUNCTION + far, &TAKES_BACK);
            memory.words(STACK + 0x88, &[CALLER]);
            let frame = at(FUNCTION, THREAD);
            assert_eq!(caller_in(&memory, frame, None), None, "{far}");
            memory.write(FUNCTION - 6, &CALLS_C);
            let expected = (far <= 121).then_some((CALLER, STACK + 0x90));
            assert_eq!(caller_in(&memory, frame, None), expected, "{far}");
            // After a call of a routine the stack may be that of the process.
            let mut memory = process();
            memory.write(UNALIGNED + far, &TAKES_BACK);
            memory.words(STACK + 0x88, &[CALLER]);
            for (sp, expected) in [(THREAD, expected), (THREAD + 0x40, None)] {
                assert_eq!(
                    caller_in(&memory, at(UNALIGNED, sp), None),
                    expected,
                    "{far}"
                );
            }
        }
    }

    #[test]
    fn a_routine_that_a_function_has_jumped_to_returns_to_the_functions_caller() {
        let mut memory = process();
        // mov 0x58(%r13),%rsp; pop %rdi; ret
        memory.write(ROUTINE, &[0x49, 0x8b, 0x65, 0x58, 0x5f, 0xc3]);
        memory.words(STACK + 0x88, &[CALLER]);
        let expected = Some((CALLER, STACK + 0x90));
        assert_eq!(caller_in(&memory, at(ROUTINE, THREAD), None), expected);
        let frame = at(ROUTINE + 4, STACK + 0x80);
        assert_eq!(caller_in(&memory, frame, Some(&RUNNING)), expected);
        // The word is no return address, or the routine does not return.
        memory.words(STACK + 0x88, &[CALLER + 8]);
        assert_eq!(caller_in(&memory, frame, Some(&RUNNING)), None);
        memory.words(STACK + 0x88, &[CALLER]);
        memory.write(ROUTINE + 5, &[0xff, 0xe0]);
        assert_eq!(caller_in(&memory, frame, Some(&RUNNING)), None);
    }

    #[test]
    fn a_routine_on_the_threads_stack_has_a_frame_pointer() {
        let mut memory = process();
        // leave
        memory.write(ROUTINE, &[0xc9]);
        memory.words(THREAD - 0x10, &[STACK + 0x40, UNALIGNED]);
        let mut frame = at(ROUTINE, THREAD - 0x40);
        frame.fp = THREAD - 0x10;
        let expected = Some((UNALIGNED, THREAD));
        assert_eq!(caller_in(&memory, frame, None), expected);
        let lost = Frame {
            fp: LOST_FP,
            ..frame
        };
        assert_eq!(caller_in(&memory, lost, None), None);
        memory.words(THREAD - 8, &[UNALIGNED + 8]);
        assert_eq!(caller_in(&memory, frame, None), None);
    }

    #[test]
    fn process_main_returns_to_the_thread() {
        for aligned in 0..8 {
            let mut memory = process();
            let slot = THREAD + 0x200 + 8 * aligned;
            memory.words(slot, &[MAIN_RETURN]);
            for registers in [None, Some(&RUNNING)] {
                let found = caller_in(&memory, at(MAIN + 0x80, THREAD), registers);
                assert_eq!(found, Some((MAIN_RETURN, slot + 8)));
            }
        }
        // Another return address is there.
        let memory = process();
        assert_eq!(caller_in(&memory, at(MAIN + 0x80, THREAD), None), None);
    }
}
