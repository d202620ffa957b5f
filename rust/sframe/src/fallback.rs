// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step where there are no rows: by the code at the PC, or by the frame pointer.
//!
//! Most code keeps no frame pointer, and then that register may hold anything: also the frame of a
//! function further up, which looks right and would hide all callers in between. So a step is
//! taken where the code shows that it is one, and else none. AMD64 alone.

use super::{
    abi::Abi,
    bytes::Source,
    code::{
        self,
        Target, //
    },
    unwind::{
        self,
        Frame,
        Lost,
        Memory,
        Step, //
    }, //
};

/// How far behind its function's start a PC may be, in bytes.
const LONGEST_FUNCTION: u64 = 1 << 20;
/// How far in front of a PC the start of its function is looked for, in bytes.
const LOOKED_BACK: u64 = 1 << 10;
/// How far in front of that the caller's frame pointer may be pushed, in bytes.
const PUSHED_BEFORE: usize = 32;

/// What is known of code that has no rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePointer {
    /// Its section says that all functions keep one.
    Kept,
    /// It was made at run time, or by the kernel, and such code keeps one.
    Likely,
    /// Nothing.
    Unknown,
}

/// The code that is mapped around the PC, in run-time addresses.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// Where it begins.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
    /// What is known of its frame pointer.
    pub frame_pointer: FramePointer,
}

/// Takes the step where no row covers the PC; `None` if there is none that can be believed.
///
/// `memory` is that of the process, at run-time addresses; `stack` tells where the mapping of the
/// stack ends, in which a frame pointer has to point to two words.
pub fn step<M: Memory + Source + ?Sized>(
    frame: &Frame,
    innermost: bool,
    code: &Code,
    stack_end: u64,
    memory: &M,
) -> Option<Step> {
    if innermost {
        let bytes = memory.read(frame.pc.wrapping_sub(1)).ok()?;
        if let Some(step) = by_code(&bytes, frame, memory) {
            return Some(step);
        }
        if code::may_be_left(&bytes) {
            return by_top(frame, code, memory);
        }
    }
    let end = frame.fp.checked_add(16)?;
    if frame.fp < frame.sp || end > stack_end {
        return None;
    }
    let step = unwind::step_by_frame_pointer(frame, memory).ok()?;
    if code.frame_pointer == FramePointer::Kept {
        return Some(step);
    }
    // A zero where the return address would be is no more the end than any other number: code that
    // uses the register otherwise has it point to zeros all the time.
    let Step::Caller(caller) = step else {
        return None;
    };

    let call = call_before(caller.pc, memory)?;
    if code.frame_pointer == FramePointer::Likely {
        return Some(step);
    }
    let at = if innermost {
        frame.pc
    } else {
        frame.pc.wrapping_sub(1)
    };
    (was_called_by(call, caller.pc, at, code, memory) || is_behind_prologue(at, code, memory))
        .then_some(step)
}

/// What the innermost frame's code shows.
#[inline(never)]
fn by_code<M: Memory + Source + ?Sized>(
    bytes: &[u8; 5],
    frame: &Frame,
    memory: &M,
) -> Option<Step> {
    let rule = code::rule_without_frame_pointer(bytes)?;
    let step = unwind::step(Abi::Amd64, &rule, frame, &Lost, memory).ok()?;
    match step {
        Step::Caller(caller) => call_before(caller.pc, memory).map(|_| step),
        Step::Outermost => None,
    }
}

/// The return address on top of the stack, if what called leads here.
fn by_top<M: Memory + Source + ?Sized>(frame: &Frame, code: &Code, memory: &M) -> Option<Step> {
    let pc = memory.read_word(frame.sp).ok()?;
    let sp = frame.sp.checked_add(8)?;
    let call = call_before(pc, memory)?;
    was_called_by(call, pc, frame.pc, code, memory).then_some(Step::Caller(Frame {
        pc,
        sp,
        fp: frame.fp,
    }))
}

/// The code in front of a return address, if it may be a call.
fn call_before<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<[u8; code::LONGEST]> {
    let bytes = memory
        .read(pc.wrapping_sub(const { code::LONGEST as u64 }))
        .ok()?;
    code::ends_with_call(&bytes).then_some(bytes)
}

/// Whether that call leads to a function that `at` may lie in, and that has set up a frame pointer
/// before it gets there.
#[inline(never)]
fn was_called_by<M: Memory + Source + ?Sized>(
    call: [u8; code::LONGEST],
    return_address: u64,
    at: u64,
    code: &Code,
    memory: &M,
) -> bool {
    let function = match code::target(&call, return_address) {
        Target::At(function) => function,
        Target::In(slot) => match memory.read_word(slot) {
            Ok(function) => function,
            Err(_) => return false,
        },
        Target::Unknown => return false,
    };
    let function = behind_stub(function, memory).unwrap_or(function);
    if function < code.start || function > at || at >= code.end {
        return false;
    }
    let distance = at.wrapping_sub(function);
    if distance > LONGEST_FUNCTION {
        return false;
    }
    memory
        .read(function)
        .is_ok_and(|head| code::head_sets_up_frame_pointer(&head, distance))
}

/// The function that a stub of a PLT jumps to.
#[inline(never)]
fn behind_stub<M: Memory + Source + ?Sized>(at: u64, memory: &M) -> Option<u64> {
    let slot = code::slot_of_stub(&memory.read(at).ok()?, at)?;
    memory.read_word(slot).ok()
}

/// Whether a frame pointer is set up near by in front of `at`, with no return in between: where
/// the call tells nothing, for a register held its target, or another function has jumped here.
#[inline(never)]
fn is_behind_prologue<S: Source + ?Sized>(at: u64, code: &Code, memory: &S) -> bool {
    /// How many bytes are read at once.
    const PIECE: usize = 64;

    // The piece ends at `end`; what lies behind it has been seen.
    let mut end = at;
    let mut looked = 0_u64;
    while looked < LOOKED_BACK {
        let Some(start) = end.checked_sub(const { PIECE as u64 }) else {
            return false;
        };
        if start < code.start {
            return false;
        }
        let Ok(bytes) = memory.read::<PIECE>(start) else {
            return false;
        };
        for offset in (0..=const { PIECE - code::SET_UP }).rev() {
            let Some(window) = bytes.get(offset..).and_then(|rest| rest.first_chunk()) else {
                return false;
            };
            if code::sets_up_frame_pointer(window) {
                let before = start
                    .wrapping_add(offset as u64)
                    .wrapping_sub(const { PUSHED_BEFORE as u64 });
                return memory
                    .read::<PUSHED_BEFORE>(before)
                    .is_ok_and(|bytes| code::may_push_frame_pointer(&bytes));
            }
            let [_, _, last] = *window;
            if code::may_return(last) {
                return false;
            }
        }
        // The first bytes are looked at once more, with those in front of them.
        let step = const { (PIECE - code::SET_UP + 1) as u64 };
        end = end.wrapping_sub(step);
        looked = looked.wrapping_add(step);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::bytes::Fault;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// Where a program, a library and a stack are.
    const PROGRAM: u64 = 0x40_0000;
    const LIBRARY: u64 = 0x7f00_0000;
    const STACK: u64 = 0x8000_0000;

    /// Code that is nothing but nops, and an empty stack.
    struct Process {
        parts: Vec<(u64, Vec<u8>)>,
    }

    impl Process {
        fn new() -> Process {
            Process {
                parts: [(PROGRAM, 0x90), (LIBRARY, 0x90), (STACK, 0)]
                    .map(|(start, byte)| (start, vec![byte; 0x1000]))
                    .into(),
            }
        }

        fn write(&mut self, address: u64, bytes: &[u8]) -> &mut Process {
            for (start, part) in &mut self.parts {
                if let Some(at) = address.checked_sub(*start).filter(|at| *at < 0x1000) {
                    part[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            self
        }

        fn word(&mut self, address: u64, word: u64) -> &mut Process {
            self.write(address, &word.to_le_bytes())
        }

        /// A direct call in front of a return address.
        fn call(&mut self, return_address: u64, function: u64) -> &mut Process {
            let displacement = function.wrapping_sub(return_address) as u32;
            self.write(return_address - 5, &[0xe8])
                .write(return_address - 4, &displacement.to_le_bytes())
        }

        fn step_in(&self, pc: u64, innermost: bool, frame_pointer: FramePointer) -> Option<u64> {
            let start = pc & !0xfff;
            let code = Code {
                start,
                end: start + 0x1000,
                frame_pointer,
            };
            let frame = Frame {
                pc,
                sp: STACK + 0x100,
                fp: STACK + 0x200,
            };
            match step(&frame, innermost, &code, STACK + 0x1000, self)? {
                Step::Caller(caller) => Some(caller.pc),
                Step::Outermost => Some(0),
            }
        }

        fn step(&self, pc: u64) -> Option<u64> {
            self.step_in(pc, false, FramePointer::Unknown)
        }
    }

    impl Source for Process {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            self.parts
                .iter()
                .filter_map(|(start, part)| part.get(offset.checked_sub(*start)? as usize..))
                .find_map(|rest| rest.first_chunk().copied())
                .ok_or(Fault)
        }
    }

    impl Memory for Process {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            self.read(address).map(u64::from_le_bytes)
        }
    }

    /// push %rbp; mov %rsp,%rbp
    const SETS_UP: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
    const CALLER: u64 = PROGRAM + 0x800;
    const FUNCTION: u64 = LIBRARY + 0x400;
    const PC: u64 = FUNCTION + 0x80;

    fn called() -> Process {
        let mut process = Process::new();
        process.word(STACK + 0x208, CALLER);
        process
    }

    #[test]
    fn the_call_leads_to_a_function_that_sets_up_a_frame_pointer() {
        let mut process = called();
        process.call(CALLER, FUNCTION).write(FUNCTION, &SETS_UP);
        assert_eq!(process.step(PC), Some(CALLER));
        assert_eq!(
            process.step_in(PC, true, FramePointer::Unknown),
            Some(CALLER)
        );

        // Not yet where the PC is.
        for (offset, found) in [(2, None), (4, Some(CALLER))] {
            let at = process.step_in(FUNCTION + offset, true, FramePointer::Unknown);
            assert_eq!(at, found, "{offset}");
        }
        // With more in front of it; and too far in.
        for (offset, found) in [(4, Some(CALLER)), (60, Some(CALLER)), (61, None)] {
            let mut process = called();
            process
                .call(CALLER, FUNCTION)
                .write(FUNCTION + offset, &SETS_UP)
                .write(FUNCTION + offset + 4, &[0xc3]);
            assert_eq!(process.step(PC), found, "{offset}");
        }
        // With more in between, as gcc has it: only if the push is the first instruction.
        for (first, found) in [(0x55, Some(CALLER)), (0xcc, Some(CALLER)), (0x53, None)] {
            let mut process = called();
            process
                .call(CALLER, FUNCTION)
                .write(FUNCTION, &[first])
                .write(FUNCTION + 22, &SETS_UP[1..])
                .write(FUNCTION + 30, &[0xc3]);
            assert_eq!(process.step(PC), found, "{first:x}");
        }
    }

    #[test]
    fn the_frame_of_a_function_further_up_hides_no_caller() {
        // The PC is in a library that keeps no frame pointer. It was called by a function of the
        // program that has one, for alloca's sake: this one was called from CALLER.
        let mut process = called();
        process
            .call(CALLER, PROGRAM + 0x100)
            .write(PROGRAM + 0x100, &SETS_UP);
        assert_eq!(process.step(PC), None);
        assert_eq!(process.step_in(PC, true, FramePointer::Unknown), None);
        // Whoever knows that it is kept may go on.
        for known in [FramePointer::Kept, FramePointer::Likely] {
            assert_eq!(process.step_in(PC, false, known), Some(CALLER));
        }
    }

    #[test]
    fn calls_by_way_of_the_got() {
        let slot = PROGRAM + 0xf00;
        let mut process = called();
        process.word(slot, FUNCTION).write(FUNCTION, &SETS_UP);
        // jmp *slot(%rip)
        let stub = PROGRAM + 0x20;
        let displacement = ((slot - stub - 6) as u32).to_le_bytes();
        process
            .call(CALLER, stub)
            .write(stub, &[0xff, 0x25])
            .write(stub + 2, &displacement);
        assert_eq!(process.step(PC), Some(CALLER));

        // call *slot(%rip)
        let displacement = ((slot - CALLER) as u32).to_le_bytes();
        process
            .write(CALLER - 6, &[0xff, 0x15])
            .write(CALLER - 4, &displacement);
        assert_eq!(process.step(PC), Some(CALLER));
        // It leads elsewhere, and the function in front of the PC has returned.
        process
            .word(slot, FUNCTION + 0x200)
            .write(FUNCTION + 0x40, &[0xc3]);
        assert_eq!(process.step(PC), None);
    }

    #[test]
    fn where_the_call_tells_nothing_the_code_in_front_does() {
        for back in [4, 60, 61, 62, 63, 64, 65, 66, 67, 200, 1000] {
            let mut process = called();
            // call *%rax
            process.write(CALLER - 2, &[0xff, 0xd0]);
            assert_eq!(process.step(PC), None);
            let at = PC - 1 - back;
            process.write(at, &SETS_UP);
            assert_eq!(process.step(PC), Some(CALLER), "{back}");
            // Nothing that it pushes.
            process.write(at, &[0x90]);
            assert_eq!(process.step(PC), None);
            process.write(at, &[0x55]);
            // A return in between, right behind it or right in front of the PC.
            for ret in [at + 4, PC - 2] {
                if ret < PC - 1 && ret >= at + 4 {
                    process.write(ret, &[0xc3]);
                    assert_eq!(process.step(PC), None, "{back}");
                    process.write(ret, &[0x90]);
                }
            }
        }
    }

    #[test]
    fn what_is_no_return_address_is_never_taken() {
        let mut process = Process::new();
        process
            .word(STACK + 0x208, CALLER)
            .write(FUNCTION, &SETS_UP);
        assert_eq!(process.step(PC), None);
        assert_eq!(process.step_in(PC, false, FramePointer::Likely), None);
        // The section vouches for it.
        assert_eq!(process.step_in(PC, false, FramePointer::Kept), Some(CALLER));
    }

    #[test]
    fn a_zero_is_no_end_unless_the_section_vouches_for_it() {
        let process = Process::new();
        for (known, found) in [
            (FramePointer::Kept, Some(0)),
            (FramePointer::Likely, None),
            (FramePointer::Unknown, None),
        ] {
            assert_eq!(process.step_in(PC, false, known), found);
        }
    }

    #[test]
    fn a_frame_pointer_points_into_the_stack() {
        let code = Code {
            start: LIBRARY,
            end: LIBRARY + 0x1000,
            frame_pointer: FramePointer::Kept,
        };
        let mut process = Process::new();
        for fp in (STACK..STACK + 0x1000).step_by(8) {
            process.word(fp, CALLER);
        }
        let step = |fp, stack_end| {
            let frame = Frame {
                pc: PC,
                sp: STACK + 0x100,
                fp,
            };
            step(&frame, false, &code, stack_end, &process).is_some()
        };
        let end = STACK + 0x1000;
        assert!(step(STACK + 0x100, end) && step(end - 16, end));
        assert!(!step(STACK + 0xf8, end) && !step(end - 8, end) && !step(STACK + 0x104, end));
        assert!(!step(u64::MAX - 15, u64::MAX) && !step(0, end) && !step(STACK + 0x200, 0));
    }

    #[test]
    fn the_innermost_may_have_put_it_back() {
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        // pop %rbp; jmp
        process
            .write(CALLER - 2, &[0xff, 0xd0])
            .write(FUNCTION, &SETS_UP)
            .write(PC - 1, &[0x5d, 0xe9]);
        let innermost = |process: &Process| process.step_in(PC, true, FramePointer::Unknown);
        assert_eq!(innermost(&process), None);
        process.call(on_top, FUNCTION).word(STACK + 0x100, on_top);
        assert_eq!(innermost(&process), Some(on_top));
        process.call(on_top, PROGRAM + 0x100);
        assert_eq!(innermost(&process), None);
        // add; jmp
        process.write(PC - 1, &[0xc0]);
        assert_eq!(innermost(&process), Some(CALLER));
    }

    #[test]
    fn the_innermost_may_not_have_set_it_up_yet() {
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        process
            .call(on_top, FUNCTION)
            .word(STACK + 0x100, on_top)
            .write(FUNCTION, &SETS_UP);
        let innermost = |process: &Process, pc| process.step_in(pc, true, FramePointer::Unknown);
        assert_eq!(innermost(&process, FUNCTION), Some(on_top));
        // Behind the push it is one further up.
        process.word(STACK + 0x100, 1).word(STACK + 0x108, on_top);
        assert_eq!(innermost(&process, FUNCTION + 1), Some(on_top));
    }
}
