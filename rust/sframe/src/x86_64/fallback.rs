// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step without rows: by the code at the PC, or by the frame pointer. AMD64 only.
//!
//! Most code keeps no frame pointer. The register may then hold any value: even the frame of a
//! function further out, which looks right and would hide all callers in between. Therefore, in a
//! file without information on frame pointers, a step is taken only if the function's own code
//! shows that it has set up a frame pointer.

use crate::sframe::{
    format::bytes::{
        Fault,
        Source, //
    },
    unwind::step::{
        self as unwind,
        Frame,
        Memory,
        RegisterSource,
        Step, //
    },
    x86_64::{
        insn,
        prologue::{
            self,
            FixedRule,
            BEGINNING,
            ON_TOP,
            PUSHED, //
        },
    }, //
};

/// The most work of a search of a function's beginning, in instructions. One search looks for the
/// instructions that set up the frame pointer, another for the pushes for a handler.
pub(in crate::sframe) const BEGINNING_SEARCH: u32 = 700;
/// The work of searching one window of code for the jump to a handler, in instructions.
const ENDING_SEARCH: u32 = 280;

/// Whether [`step`] reads registers.
pub const NEEDS_REGISTERS: bool = false;

/// Whether code without rows keeps a frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePointer {
    /// Yes: the section's flag states that all functions keep a frame pointer.
    Kept,
    /// Not known. Only the starts of functions are known.
    Unknown,
}

/// Takes a step from a frame whose lookup address no row covers; `None` if no step can be trusted.
///
/// `innermost` is true for the innermost frame. `function` returns the start of the function that
/// covers an address. `stack_end` is the end of the mapping of the stack: the two words at the
/// frame pointer have to lie below it. `memory` is the memory of the process. All addresses are
/// run-time addresses.
pub fn step<M: Memory + Source + ?Sized, R: RegisterSource>(
    frame: &Frame,
    innermost: bool,
    frame_pointer: FramePointer,
    function: impl FnOnce(u64) -> Option<u64>,
    stack_end: u64,
    _registers: Option<&R>,
    memory: &M,
) -> Option<Step> {
    match frame_pointer {
        // A push may also stand in the middle of a function. With `Unknown`, the start of the
        // function is known, and the code below uses it.
        FramePointer::Kept if innermost => {
            let bytes = memory.read(frame.pc.wrapping_sub(1)).ok()?;
            let rule = prologue::rule_without_frame_pointer(&bytes);
            if let Some(step) = rule.and_then(|rule| behind_call(rule, frame, memory)) {
                return Some(step);
            }
            // Until then the frame pointer is the caller's.
            if prologue::is_set_up_at(&bytes) {
                return None;
            }
        }
        FramePointer::Unknown if innermost => {
            if is_returning(frame.pc, memory)? {
                return behind_call(ON_TOP, frame, memory);
            }
        }
        FramePointer::Kept | FramePointer::Unknown => {}
    }

    let end = frame.fp.checked_add(16)?;
    let on_stack = frame.fp >= frame.sp && end <= stack_end;
    if frame_pointer == FramePointer::Unknown {
        // A cheap test rules out code that does not use the register as a frame pointer. It does
        // not apply to the innermost frame, which may not have set up its frame pointer yet.
        if !innermost && !on_stack {
            return None;
        }
        let at = if innermost {
            frame.pc
        } else {
            frame.pc.wrapping_sub(1)
        };
        match set_up(frame.pc, at, function(at)?, memory) {
            // A function that has restored the caller's frame pointer, and is about to jump to
            // another function, has its return address on top of the stack.
            SetUp::Done | SetUp::ForHandlers
                if innermost && behind_call(ON_TOP, frame, memory).is_some() =>
            {
                return None;
            }
            SetUp::Done => {}
            SetUp::ForHandlers if !may_leave_for_handler(frame.pc, memory) => {}
            SetUp::Pushed if innermost => return behind_call(PUSHED, frame, memory),
            SetUp::Begun if innermost => return behind_call(ON_TOP, frame, memory),
            _ => return None,
        }
    }
    if !on_stack {
        return None;
    }
    let step = unwind::step_by_frame_pointer(frame, memory).ok()?;
    match step {
        _ if frame_pointer == FramePointer::Kept => Some(step),
        Step::Caller(caller) if is_behind_call(caller.pc, memory) => Some(step),
        // A zero in place of the return address does not prove that the frame is the outermost
        // frame: in code that uses the register for other values, the register often points to
        // zeros.
        _ => None,
    }
}

/// How far a function has set up its frame pointer.
enum SetUp {
    /// The return address is on top of the stack.
    Begun,
    /// The caller's frame pointer has been pushed.
    Pushed,
    /// The frame pointer leads to the caller's.
    Done,
    /// The same, unless the function is leaving for a handler: [`may_leave_for_handler`].
    ForHandlers,
    /// The function's code does not show it.
    Unknown,
}

/// How far the function that begins at `start` has set up its frame pointer at `pc`, whose lookup
/// address is `at`: the same address in the innermost frame. All are run-time addresses.
// Not inlined, so that its stack is free afterwards.
#[inline(never)]
fn set_up<S: Source + ?Sized>(pc: u64, at: u64, start: u64, memory: &S) -> SetUp {
    let Some(distance) = at.checked_sub(start) else {
        return SetUp::Unknown;
    };
    let Ok(beginning) = memory.read(start) else {
        return SetUp::Unknown;
    };
    if pc == at && prologue::is_entry(&beginning, distance) {
        return SetUp::Begun;
    }
    let prologue = prologue::prologue(&beginning);
    // The search ends with the instruction that it looks for.
    let searched = prologue.map_or(BEGINNING as u64, |prologue| prologue.end);
    let work = const { BEGINNING_SEARCH / BEGINNING as u32 }.wrapping_mul(searched as u32);
    if memory.spend(work).is_err() {
        return SetUp::Unknown;
    }
    match prologue {
        None => SetUp::Unknown,
        Some(prologue) if distance <= prologue.push => SetUp::Begun,
        Some(prologue) if distance < prologue.end => SetUp::Pushed,
        Some(_) if prologue::may_serve_handlers(&beginning) => {
            match memory.spend(BEGINNING_SEARCH) {
                Ok(()) if prologue::serves_handlers(&beginning) => SetUp::ForHandlers,
                Ok(()) => SetUp::Done,
                Err(Fault) => SetUp::Unknown,
            }
        }
        Some(_) => SetUp::Done,
    }
}

/// The step by `rule`, if the resulting PC is after a call; else `None`.
#[inline(never)]
pub(in crate::sframe) fn behind_call<M: Memory + Source + ?Sized>(
    rule: FixedRule,
    frame: &Frame,
    memory: &M,
) -> Option<Step> {
    let caller = rule.caller(frame, memory)?;
    is_behind_call(caller.pc, memory).then_some(Step::Caller(caller))
}

/// Whether the innermost frame's function is about to return, with its return address on top of the
/// stack; `None` if the code cannot be read. Only the code from the PC on is read: where the
/// instruction before the PC begins is not known.
#[inline(never)]
pub(in crate::sframe) fn is_returning<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<bool> {
    let [first] = memory.read(pc).ok()?;
    let is_clearing = || {
        let bytes = memory.read(pc);
        bytes.is_ok_and(|bytes| prologue::clears_and_returns(&bytes))
    };
    Some(first == insn::RET || is_clearing())
}

/// Whether a function for which [`serves_handlers`](prologue::serves_handlers) is true may already
/// be leaving for a handler at `pc`, a run-time address: its frame then no longer leads to its
/// caller. True if the code cannot be read.
#[inline(never)]
fn may_leave_for_handler<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    // The windows overlap by half. Each instruction sequence lies completely within one window. The
    // first one begins with what is before the PC: mov %rcx,%rsp; pop %rcx
    let step = const { insn::ENDING / 2 };
    let start = pc.wrapping_sub(4);
    (0..prologue::LEAVING).step_by(step).any(|ahead| {
        let Ok(code) = memory.read(start.wrapping_add(ahead)) else {
            return true;
        };
        prologue::may_leave_for_handler(&code)
            && (memory.spend(ENDING_SEARCH).is_err() || prologue::leaves_for_handler(&code))
    })
}

/// Whether the code before `pc`, a return address, may be a call. False if the code cannot be read.
pub fn is_behind_call<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    is_call_before(pc, memory) == Some(true)
}

/// As [`is_behind_call`]; `None` if the code cannot be read.
pub fn is_call_before<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<bool> {
    memory
        .read(pc.wrapping_sub(const { insn::CALL_WINDOW as u64 }))
        .ok()
        .map(|bytes| insn::ends_with_call(&bytes))
}

#[cfg(test)]
pub(in crate::sframe) mod tests {
    use super::*;
    use crate::sframe::unwind::step::NoRegisters;
    use std::vec;
    use std::vec::Vec;

    /// The run-time addresses of a program, a library and a stack.
    pub(in crate::sframe) const PROGRAM: u64 = 0x40_0000;
    pub(in crate::sframe) const LIBRARY: u64 = 0x7f00_0000;
    pub(in crate::sframe) const STACK: u64 = 0x8000_0000;

    /// A process whose code is nops, with zeros on its stack.
    pub(in crate::sframe) struct MockProcess {
        parts: Vec<(u64, Vec<u8>)>,
    }

    impl MockProcess {
        pub(in crate::sframe) fn new() -> MockProcess {
            MockProcess {
                parts: [(PROGRAM, 0x90), (LIBRARY, 0x90), (STACK, 0)]
                    .map(|(start, byte)| (start, vec![byte; 0x1000]))
                    .into(),
            }
        }

        pub(in crate::sframe) fn write(&mut self, address: u64, bytes: &[u8]) -> &mut MockProcess {
            for (start, part) in &mut self.parts {
                if let Some(at) = address.checked_sub(*start).filter(|at| *at < 0x1000) {
                    part[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            self
        }

        pub(in crate::sframe) fn word(&mut self, address: u64, word: u64) -> &mut MockProcess {
            self.write(address, &word.to_le_bytes())
        }

        /// Writes call *%rax before a return address.
        pub(in crate::sframe) fn call(&mut self, return_address: u64) -> &mut MockProcess {
            self.write(return_address - 2, &[0xff, 0xd0])
        }

        pub(in crate::sframe) fn step_in(
            &self,
            pc: u64,
            innermost: bool,
            frame_pointer: FramePointer,
        ) -> Option<u64> {
            let frame = Frame {
                pc,
                sp: STACK + 0x100,
                fp: STACK + 0x200,
            };
            // One function covers all code from FUNCTION on.
            let function = |at| {
                (FUNCTION..LIBRARY + 0x1000)
                    .contains(&at)
                    .then_some(FUNCTION)
            };
            let end = STACK + 0x1000;
            match step(
                &frame,
                innermost,
                frame_pointer,
                function,
                end,
                Some(&NoRegisters),
                self,
            )? {
                Step::Caller(caller) => Some(caller.pc),
                Step::Outermost => Some(0),
            }
        }

        fn step(&self, pc: u64) -> Option<u64> {
            self.step_in(pc, false, FramePointer::Unknown)
        }

        pub(in crate::sframe) fn innermost(&self, pc: u64) -> Option<u64> {
            self.step_in(pc, true, FramePointer::Unknown)
        }
    }

    impl Source for MockProcess {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            self.parts
                .iter()
                .filter_map(|(start, part)| part.get(offset.checked_sub(*start)? as usize..))
                .find_map(|rest| rest.first_chunk().copied())
                .ok_or(Fault)
        }
    }

    impl Memory for MockProcess {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            self.read(address).map(u64::from_le_bytes)
        }
    }

    /// push %rbp; mov %rsp,%rbp
    pub(in crate::sframe) const SETS_UP: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
    pub(in crate::sframe) const CALLER: u64 = PROGRAM + 0x800;
    pub(in crate::sframe) const FUNCTION: u64 = LIBRARY + 0x400;
    pub(in crate::sframe) const PC: u64 = FUNCTION + 0x80;

    /// A process with a frame pointer that leads to CALLER.
    pub(in crate::sframe) fn called() -> MockProcess {
        let mut process = MockProcess::new();
        process.word(STACK + 0x208, CALLER).call(CALLER);
        process
    }

    #[test]
    fn a_function_that_sets_up_a_frame_pointer_has_one() {
        let mut process = called();
        // The frame pointer may be the frame of a function further out.
        assert_eq!(process.step(PC), None);
        assert_eq!(process.innermost(PC), None);
        process.write(FUNCTION, &SETS_UP);
        assert_eq!(process.step(PC), Some(CALLER));
        assert_eq!(process.innermost(PC), Some(CALLER));
        // A function makes no call before it has set up its frame pointer.
        assert_eq!(process.step(FUNCTION + 4), None);
        assert_eq!(process.step(FUNCTION + 5), Some(CALLER));
        // No function covers these lookup addresses.
        assert_eq!(process.step(FUNCTION), None);
        assert_eq!(process.innermost(FUNCTION - 1), None);
        // gcc puts other instructions in between.
        let mut process = called();
        process
            .write(FUNCTION, &[0x55])
            .write(FUNCTION + 22, &SETS_UP[1..]);
        assert_eq!(process.step(PC), Some(CALLER));
        assert_eq!(process.step(FUNCTION + 25), None);
    }

    #[test]
    fn the_innermost_frame_may_not_have_set_up_its_frame_pointer() {
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        // push %rbp; other instructions; mov %rsp,%rbp
        process
            .call(on_top)
            .word(STACK + 0x100, on_top)
            .write(FUNCTION, &[0x55])
            .write(FUNCTION + 22, &SETS_UP[1..]);
        assert_eq!(process.innermost(FUNCTION), Some(on_top));
        // After the push, the return address is one word further up.
        process.word(STACK + 0x100, 1).word(STACK + 0x108, on_top);
        for offset in [1, 10, 22] {
            assert_eq!(process.innermost(FUNCTION + offset), Some(on_top));
        }
        assert_eq!(process.innermost(FUNCTION + 25), Some(CALLER));
    }

    #[test]
    fn a_function_begins_where_the_table_says() {
        let on_top = PROGRAM + 0x600;
        let mut process = MockProcess::new();
        process.call(on_top).word(STACK + 0x100, on_top);
        assert_eq!(process.innermost(FUNCTION), Some(on_top));
        assert_eq!(process.innermost(FUNCTION + 4), None);
        process.write(FUNCTION, &[0xf3, 0x0f, 0x1e, 0xfa]);
        assert_eq!(process.innermost(FUNCTION + 4), Some(on_top));
        // A push in the middle of a function proves nothing: the word on top of the stack may be
        // any pushed value.
        process.write(PC, &SETS_UP);
        assert_eq!(process.innermost(PC), None);
    }

    #[test]
    fn the_innermost_frame_may_have_restored_the_frame_pointer() {
        let on_top = PROGRAM + 0x600;
        let mut process = called();
        // pop %rbp; jmp. The byte before the jump may also be the end of another instruction, as a
        // displacement is: where the word on top of the stack may be the return address, and may be
        // what a called function left there, neither it nor the frame pointer proves a step.
        process.write(FUNCTION, &SETS_UP);
        for before in [0x5d, 0xc9, 0xc0] {
            process.write(PC - 1, &[before, 0xe9]);
            process.word(STACK + 0x100, 1);
            assert_eq!(process.innermost(PC), Some(CALLER));
            process.call(on_top).word(STACK + 0x100, on_top);
            assert_eq!(process.innermost(PC), None);
        }
        // After a call, the frame is the function's.
        assert_eq!(process.step(PC), Some(CALLER));
        // ret
        process.write(PC, &[0xc3]);
        assert_eq!(process.innermost(PC), Some(on_top));
        // xor %edx,%edx; ret
        process.write(PC, &[0x31, 0xd2, 0xc3]);
        assert_eq!(process.innermost(PC), Some(on_top));
    }

    #[test]
    fn code_that_jumps_to_a_handler_has_no_frame() {
        const END: u64 = PC + 250;
        let mut process = called();
        // push %rdx; push %rax; and far after mov %rcx,%rsp; pop %rcx; jmp *%rcx
        process
            .write(FUNCTION, &SETS_UP)
            .write(FUNCTION + 55, &[0x52, 0x50])
            .write(END, &[0x48, 0x89, 0xcc, 0x59, 0xff, 0xe1]);
        assert!((PC..=END).all(|pc| process.step(pc).is_none()));
        assert_eq!(process.innermost(END), None);
        // After mov %rcx,%rsp the frame pointer is the handler's.
        assert_eq!(process.innermost(END + 3), None);
        assert_eq!(process.step(PC - 40), Some(CALLER));
        // Without `push %rdx; push %rax` the function does not leave for handlers.
        process.write(FUNCTION + 55, &[0x52, 0x90]);
        assert_eq!(process.step(PC), Some(CALLER));
        // mov %rcx,%rsp; ret
        process
            .write(FUNCTION + 55, &[0x52, 0x50])
            .write(END, &[0x48, 0x89, 0xcc, 0xc3, 0x90, 0x90]);
        assert_eq!(process.step(PC), None);
        // Code that cannot be read does not prove that the frame still leads to the caller.
        process.parts[1].1.truncate((END - LIBRARY) as usize);
        assert_eq!(process.step(PC), None);
    }

    #[test]
    fn kept_frame_pointers_are_followed() {
        let process = called();
        assert_eq!(process.step_in(PC, false, FramePointer::Kept), Some(CALLER));
    }

    #[test]
    fn other_words_are_never_return_addresses() {
        let mut process = MockProcess::new();
        process
            .word(STACK + 0x208, CALLER)
            .write(FUNCTION, &SETS_UP);
        assert_eq!(process.step(PC), None);
        // The section's flag proves the step.
        assert_eq!(process.step_in(PC, false, FramePointer::Kept), Some(CALLER));
    }

    #[test]
    fn a_zero_ends_the_stack_only_with_rows() {
        let mut process = MockProcess::new();
        process.write(FUNCTION, &SETS_UP);
        for (known, found) in [(FramePointer::Kept, Some(0)), (FramePointer::Unknown, None)] {
            assert_eq!(process.step_in(PC, false, known), found);
        }
    }

    #[test]
    fn a_frame_pointer_points_into_the_stack() {
        let mut process = MockProcess::new();
        for fp in (STACK..STACK + 0x1000).step_by(8) {
            process.word(fp, CALLER);
        }
        let step = |fp, stack_end| {
            let frame = Frame {
                pc: PC,
                sp: STACK + 0x100,
                fp,
            };
            let kept = FramePointer::Kept;
            step(
                &frame,
                false,
                kept,
                |_| None,
                stack_end,
                Some(&NoRegisters),
                &process,
            )
            .is_some()
        };
        let end = STACK + 0x1000;
        assert!(step(STACK + 0x100, end) && step(end - 16, end));
        assert!(!step(STACK + 0xf8, end) && !step(end - 8, end) && !step(STACK + 0x104, end));
        assert!(!step(u64::MAX - 15, u64::MAX) && !step(0, end) && !step(STACK + 0x200, 0));
    }

    #[test]
    fn a_lost_frame_pointer_leads_nowhere() {
        let mut process = called();
        process.write(FUNCTION, &SETS_UP);
        for known in [FramePointer::Kept, FramePointer::Unknown] {
            for (fp, found) in [(STACK + 0x200, true), (unwind::LOST_FP, false)] {
                for end in [STACK + 0x1000, u64::MAX] {
                    let frame = Frame {
                        pc: PC,
                        sp: STACK + 0x100,
                        fp,
                    };
                    let step = step(
                        &frame,
                        false,
                        known,
                        |_| Some(FUNCTION),
                        end,
                        Some(&NoRegisters),
                        &process,
                    );
                    assert_eq!(step.is_some(), found, "{known:?} {fp:#x}");
                }
            }
        }
    }
}
