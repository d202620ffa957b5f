// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step from a frame of HotSpot's interpreter: its state, from the instructions around the PC.

use crate::sframe::{
    format::bytes::Source,
    runtimes::code::{
        field,
        find,
        read_code, //
    },
    unwind::step::{
        Frame,
        RegisterSource, //
    },
    x86_64::{
        insn::{
            CALL_RELATIVE,
            GROUP_5,
            LEAVE,
            PUSH_RBP,
            RET, //
        },
        registers::{
            R11,
            R13,
            R14,
            RAX,
            RBP,
            RBX,
            RCX,
            RDI,
            RDX,
            RSI,
            RSP, //
        }, //
    }, //
};

/// The bytes before the PC that show the state of the interpreter. Between two parts of its code
/// are more bytes.
const IN_FRONT: usize = 32;
/// The bytes from the removal of an interpreted frame to the jump to the caller; at most.
const MAX_END: usize = 48;
/// The bytes from the beginning of an interpreted method to the end of [`POP`], at most.
const MAX_BEGINNING: usize = 72;
/// The distance in bytes from the stack pointer to the frame pointer of an interpreted frame that
/// is being set up.
const MAX_INCOMPLETE: u64 = 64;
/// The register in which HotSpot's interpreter has the caller's stack pointer at the beginning of a
/// method, and the return address at its end.
pub(super) const SENDER_SP: u8 = R13;
/// The register in which HotSpot's interpreter has the address of the local variables.
pub(super) const LOCALS: u8 = R14;

/// The caller of an interpreted frame. `registers` are those of the innermost frame.
/// `is_interpreter` returns true for run-time addresses in the interpreter.
#[inline(never)]
pub(super) fn interpreted<M: Source + ?Sized, R: RegisterSource + ?Sized>(
    frame: &Frame,
    registers: Option<&R>,
    memory: &M,
    is_interpreter: impl Fn(u64) -> bool,
) -> Option<Frame> {
    let register = |number| registers?.register(number);
    let on_top = |sp| field(sp, 0, memory);
    // The frame is not complete: it has fewer words than every frame that has been set up.
    if registers.is_some() && frame.fp.wrapping_sub(frame.sp) <= MAX_INCOMPLETE {
        let caller = match frame.fp == frame.sp {
            true => register(SENDER_SP).and_then(|sp| framed(frame, sp, memory)),
            false => complete(frame, memory),
        };
        if caller.is_some() {
            return caller;
        }
    }
    let state = match registers {
        Some(_) => state_at(frame.pc, memory)?,
        None => state_of_call(frame.pc, memory)?,
    };
    let (pc, sp, fp) = match state {
        State::Framed => {
            return complete(frame, memory);
        }
        State::Lost => return None,
        State::Saved(distance) => {
            let sp = frame.sp.wrapping_add(distance.into());
            (on_top(sp)?, sp.wrapping_add(16), frame.fp)
        }
        State::Unknown => {
            // The frame holds the address of the local variables, or since JDK 21 their distance in
            // words.
            let locals = on_top(frame.fp.wrapping_sub(56))?;
            let expected = register(LOCALS)?;
            if locals != expected && frame.fp.wrapping_add(locals.wrapping_mul(8)) != expected {
                return None;
            }
            // Code of an intrinsic has no frame, and the registers are still the caller's. The
            // caller's frame holds the stack pointer at the call; 0 if the frame's method has
            // called nothing.
            if is_interpreter(on_top(frame.sp)?) && on_top(frame.fp.wrapping_sub(16))? != 0 {
                return None;
            }
            return complete(frame, memory);
        }
        State::AtSp(sp) => (on_top(frame.sp)?, register(sp)?, frame.fp),
        State::Pushed => (
            on_top(frame.sp.wrapping_add(8))?,
            register(SENDER_SP)?,
            on_top(frame.sp)?,
        ),
        State::InRegister(pc, Some(sp)) => (register(pc)?, register(sp)?, frame.fp),
        State::InRegister(pc, None) => (register(pc)?, frame.sp, frame.fp),
        State::Called => {
            let pc = on_top(frame.sp)?;
            let call = field(pc.wrapping_sub(8), 0, memory)?;
            if (call >> 24) & 0xff_ffff_00ff == u64::from(CALL_RELATIVE) {
                // The interpreter calls the next instructions, to have a return address on the
                // stack.
                return complete(frame, memory);
            }
            (pc, frame.sp.checked_add(8)?, frame.fp)
        }
    };
    (sp >= frame.sp).then_some(Frame { pc, sp, fp })
}

/// The caller of a complete interpreted frame: its stack pointer is in the word below the saved
/// frame pointer.
#[inline(never)]
fn complete<S: Source + ?Sized>(frame: &Frame, memory: &S) -> Option<Frame> {
    framed(frame, field(frame.fp.wrapping_sub(8), 0, memory)?, memory)
}

/// The caller of the interpreted frame that the frame pointer leads to. `sp` is the caller's stack
/// pointer.
#[inline(never)]
fn framed<S: Source + ?Sized>(frame: &Frame, sp: u64, memory: &S) -> Option<Frame> {
    let fp = frame.fp;
    // A method handle removes its last argument, and moves the return address up.
    if fp < frame.sp || sp <= fp || (fp | sp) % 8 != 0 {
        return None;
    }
    Some(Frame {
        pc: field(fp.wrapping_add(8), 0, memory)?,
        sp,
        fp: field(fp, 0, memory)?,
    })
}

/// The state of the innermost frame in the interpreter. Numbers are those of registers in DWARF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The frame is set up.
    Framed,
    /// The code does not show the state.
    Unknown,
    /// The return address is in an unknown register.
    Lost,
    /// The interpreter has called a few instructions. The return address is on top of the stack.
    Called,
    /// The return address is on top of the stack, and the caller's stack pointer in a register.
    AtSp(u8),
    /// The same, below the saved frame pointer. The caller's stack pointer is in [`SENDER_SP`].
    Pushed,
    /// An exception has left the frame. This many bytes are on the stack, then the return address
    /// and the exception.
    Saved(u8),
    /// The return address is in a register, and the caller's stack pointer in another one, or is
    /// the stack pointer.
    InRegister(u8, Option<u8>),
}

/// The instructions around which the return address of a method that begins is in %rax.
const POP: [u8; 4] = [0x58, 0x4c, 0x8d, 0x74];
const PUSH: [u8; 5] = [0x50, PUSH_RBP, 0x48, 0x8b, 0xec];
/// Accesses to the interpreter's own frame: mov -56(%rbp),%r14; mov -64(%rbp),%r13; mov
/// %r13,-16(%rbp); mov %rcx,-16(%rbp); little-endian
const OWN_FRAME: [u32; 4] = [0xc875_8b4c, 0xc06d_8b4c, 0xf06d_894c, 0xf04d_8948];

/// The state of the interpreter where it has called. `pc` is the return address. If an exception
/// has left the frame, the interpreter has called the search for a handler. The code after that
/// call is mov %rax,%rbx; pop %rdx; pop %rax; jmp *%rbx. Before that may be add $8,%rsp, and a jump
/// over a second call.
fn state_of_call<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<State> {
    let (code, distance) = match field(pc, 0, memory)? {
        0x05e9_08c4_8348 => (field(pc, 14, memory)?, 8),
        code => (code, 0),
    };
    Some(match code & 0xff_ffff_ffff_ffff {
        0xe3_ff58_5ad8_8b48 => State::Saved(distance),
        _ => State::Framed,
    })
}

/// The most work of searching the code around a PC, in addition to that of reading it, in
/// instructions.
const SEARCH: u32 = 3200;

/// The state of the interpreter, from the instructions around the PC.
#[inline(never)]
fn state_at<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<State> {
    memory.spend(SEARCH).ok()?;
    let mut code = [0; IN_FRONT + MAX_BEGINNING];
    read_code(
        pc.wrapping_sub(const { IN_FRONT as u64 }),
        &mut code,
        memory,
    )?;
    Some(state(&code))
}

/// The state of the interpreter. `code` begins [`IN_FRONT`] bytes before the PC.
fn state(code: &[u8; IN_FRONT + MAX_BEGINNING]) -> State {
    let all = code;
    let (before, code) = all.split_at(IN_FRONT);
    // The interpreter calls a few instructions to convert the result of a native method, which do
    // not touch the stack: and $0xff,%eax; setne %al; ret. movzwl; ret. movsbl; ret. movswl; ret.
    // mov 16(%rbp),%rax; ret
    let word = code
        .first_chunk()
        .map_or(0, |code| u64::from_le_bytes(*code));
    let last = before
        .last_chunk()
        .map_or(0, |code| u32::from_le_bytes(*code));
    let is_conversion = match word {
        0xc095_0f00_0000_ff25 => code.get(8) == Some(&RET),
        _ => {
            word & 0xffff_00ff == 0xc3c0_000f
                && matches!(word.to_le_bytes()[1], 0x95 | 0xb7 | 0xbe | 0xbf)
                || word & 0xff_ffff_ffff == 0xc3_1045_8b48
        }
    };
    if is_conversion || word as u8 == RET {
        return State::Called;
    }
    if let Some(state) = thrown(last, word, code) {
        return state;
    }
    // The end of a method: leave; pop %r13; mov %rbx,%rsp; a poll; jmp *%r13
    if let Some(jump) = find(code, &[0x41, 0xff, 0xe5]) {
        let rest = code.get(..jump).unwrap_or_default();
        if jump < MAX_END && find(rest, &[LEAVE]).is_none() {
            let moves = find(rest, &[0x48, 0x8b, 0xe3]);
            return match find(rest, &[0x41, 0x5d]) {
                Some(_) => State::AtSp(RBX),
                None => State::InRegister(SENDER_SP, moves.map(|_| RBX)),
            };
        }
    }
    // The end of a method without a frame: pop register; mov %r13,%rsp; jmp *register
    if let Some(mov) = find(code, &[0x49, 0x8b, 0xe5, 0xff]) {
        return match (mov, code.get(4).and_then(|operand| target(*operand))) {
            (0, Some(register)) => State::InRegister(register, Some(SENDER_SP)),
            (0, None) => State::Lost,
            _ => State::AtSp(SENDER_SP),
        };
    }
    if word as u8 == GROUP_5 && last >> 8 == 0xe5_8b49 {
        let register = target((word >> 8) as u8);
        return register.map_or(State::Lost, |register| State::InRegister(register, None));
    }
    // The end of a native method: mov -8(%rbp),%r11; leave; pop %rdi; mov %r11,%rsp; jmp *%rdi
    if let Some(pop) = find(code, &[0x5f, 0x49, 0x8b, 0xe3, 0xff, 0xe7]) {
        let rest = code.get(..pop).unwrap_or_default();
        return match find(rest, &[0x4c, 0x8b, 0x5d, 0xf8, LEAVE]) {
            Some(_) => State::Framed,
            None if rest.first() == Some(&LEAVE) => State::Framed,
            None if pop < MAX_END => State::AtSp(R11),
            None => State::Unknown,
        };
    }
    if word & 0xff_ffff_ffff == 0xe7_ffe3_8b49 {
        return State::InRegister(RDI, Some(R11));
    }
    if word as u16 == 0xe7ff && last >> 8 == 0xe3_8b49 {
        return State::InRegister(RDI, None);
    }
    // The beginning: pop %rax; lea -8(%rsp,%rcx,8),%r14; pushes; push %rax; push %rbp; mov
    // %rsp,%rbp
    if find(code, &POP).is_some() {
        return State::AtSp(SENDER_SP);
    }
    if word as u32 == 0xec8b_4855 {
        return State::AtSp(SENDER_SP);
    }
    if word & 0xff_ffff == 0xec_8b48 && (last >> 24) as u8 == PUSH_RBP {
        return State::Pushed;
    }
    if find(code, &PUSH).is_some() {
        return State::InRegister(RAX, Some(SENDER_SP));
    }
    // The return from a call loads the register of the local variables. The last part of a call,
    // which uses this register for other values, stores the stack pointer. A search for the method
    // of an interface, which uses it and the pointer to the bytecode, loads that pointer.
    let mut word = 0u32;
    let is_own = all.iter().any(|byte| {
        word = (word >> 8) | (u32::from(*byte) << 24);
        OWN_FRAME.contains(&word)
    });
    match is_own {
        true => State::Framed,
        false => State::Unknown,
    }
}

/// The state of the interpreter where an exception leaves a frame: leave; pop %rdx; mov %rbx,%rsp;
/// a poll; push %rax; push %rdx; mov %rdx,%rsi; a call; mov %rax,%rbx; pop %rdx; pop %rax; jmp
/// *%rbx. `None` if this is other code. `last` has the four bytes before the PC, and `word` the
/// first eight bytes of `code`, both little-endian.
fn thrown(last: u32, word: u64, code: &[u8]) -> Option<State> {
    let near = |pattern: &[u8]| find(code, pattern).filter(|at| *at < MAX_END);
    if let Some(pop) = near(&[0x5a, 0x48, 0x8b, 0xe3]) {
        let is_left = find(code.get(..pop)?, &[LEAVE]).is_none();
        return is_left.then_some(State::AtSp(RBX));
    }
    if near(&[0x50, 0x52, 0x48, 0x8b, 0xf2]).is_some() {
        let is_moved = word & 0xff_ffff != 0xe3_8b48;
        return Some(State::InRegister(RDX, (!is_moved).then_some(RBX)));
    }
    if near(&[0x5a, 0x58, 0xff, 0xe3]).is_some() {
        // push %rdx; sub $8,%rsp before the call; and add $8,%rsp after it
        return Some(match (last, word as u32) {
            (_, word) if word as u8 == 0x52 => State::Lost,
            (0x08ec_8348, _) | (_, 0x08c4_8348) => State::Saved(8),
            _ => State::Saved(0),
        });
    }
    // pop %rax; jmp *%rbx
    match (last >> 24, word & 0xff_ffff) {
        (0x5a, 0xe3_ff58) => Some(State::Lost),
        (0x58, jump) if jump as u16 == 0xe3ff => Some(State::InRegister(RDX, None)),
        _ => None,
    }
}

/// The register of an indirect jump whose operand byte is `operand`.
fn target(operand: u8) -> Option<u8> {
    let registers = [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI];
    registers
        .get(usize::from(operand.wrapping_sub(0xe0)))
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::runtimes::hotspot::tests::{
        process,
        step_in,
        to,
        CALLER,
        INTERPRETER,
        PUSHES,
        STACK, //
    };
    use std::vec;

    /// The code of JDK 25 by which an exception leaves an interpreted frame: leave; movb; pop %rdx;
    /// mov %rbx,%rsp; cmp; jb; movq; mov; movq; push %rax; push %rdx; mov %rdx,%rsi; mov %r15,%rdi;
    /// test; je; sub $8,%rsp; call; add $8,%rsp; jmp; call; mov %rax,%rbx; pop %rdx; pop %rax; jmp
    /// *%rbx
    const THROWN: [u8; 99] = [
        0xc9, 0x41, 0xc6, 0x87, 0xbe, 3, 0, 0, 0, 0x5a, 0x48, 0x8b, 0xe3, 0x49, 0x3b, 0xa7, 0x20,
        6, 0, 0, 0x72, 0x0b, 0x49, 0xc7, 0x87, 0x20, 6, 0, 0, 0, 0, 0, 0, 0x49, 0x8b, 0x87, 0xd8,
        4, 0, 0, 0x49, 0xc7, 0x87, 0xd8, 4, 0, 0, 0, 0, 0, 0, 0x50, 0x52, 0x48, 0x8b, 0xf2, 0x49,
        0x8b, 0xff, 0x40, 0xf6, 0xc4, 0x0f, 0x0f, 0x84, 0x12, 0, 0, 0, 0x48, 0x83, 0xec, 8, 0xe8,
        0x26, 0x17, 0xee, 0x12, 0x48, 0x83, 0xc4, 8, 0xe9, 5, 0, 0, 0, 0xe8, 0x18, 0x17, 0xee,
        0x12, 0x48, 0x8b, 0xd8, 0x5a, 0x58, 0xff, 0xe3,
    ];

    #[test]
    fn an_exception_leaves_an_interpreted_frame() {
        let moved = State::InRegister(RDX, None);
        for (offset, expected) in [
            (0, State::Unknown),
            (1, State::AtSp(RBX)),
            (9, State::AtSp(RBX)),
            (10, State::InRegister(RDX, Some(RBX))),
            (13, moved),
            (20, moved),
            (22, moved),
            (33, moved),
            (40, moved),
            (51, moved),
            (52, State::Lost),
            (53, State::Saved(0)),
            (56, State::Saved(0)),
            (59, State::Saved(0)),
            (63, State::Saved(0)),
            (69, State::Saved(0)),
            (73, State::Saved(8)),
            (78, State::Saved(8)),
            (82, State::Saved(0)),
            (87, State::Saved(0)),
            (92, State::Saved(0)),
            (95, State::Saved(0)),
            (96, State::Lost),
            (97, moved),
        ] {
            assert_eq!(state_of(&THROWN, offset), expected, "{offset}");
        }
        // The same in a process, where it has called: the frame pointer is the caller's.
        let mut memory = process(8, &PUSHES);
        memory.write(INTERPRETER + 0x100, &THROWN);
        for (offset, top) in [(78, 0x108), (92, 0x100)] {
            memory.word(STACK + 0x108, 0);
            memory.word(STACK + top, CALLER);
            for innermost in [false, true] {
                let pc = INTERPRETER + 0x100 + offset;
                let found = to(step_in(pc, innermost, &memory));
                assert_eq!(found, Some((top + 16, STACK + 0x180)));
            }
        }
    }

    /// A process whose interpreter has `code` at [`INTERPRETER`], and the state at an offset in
    /// that code.
    fn state_of(code: &[u8], offset: u64) -> State {
        let mut memory = process(8, &PUSHES);
        memory.write(INTERPRETER, &[0x90; 0x800]);
        memory.write(INTERPRETER + 0x100, code);
        let pc = INTERPRETER + 0x100 + offset;
        state(&memory.read(pc - IN_FRONT as u64).unwrap())
    }

    #[test]
    fn the_code_of_the_interpreter_tells_where_the_frame_is() {
        // The beginning of a method, of JDK 21: 68 bytes that check the stack, and the set-up.
        let mut beginning = vec![0x90; 68];
        beginning.extend([
            0x58, 0x4c, 0x8d, 0x74, 0xcc, 0xf8, 0x85, 0xd2, 0x0f, 0x8e, 9, 0, 0, 0,
        ]);
        beginning.extend([0x68, 0, 0, 0, 0, 0xff, 0xca, 0x7f, 0xf7]);
        let push = beginning.len() as u64;
        beginning.extend([0x50, 0x55, 0x48, 0x8b, 0xec, 0x41, 0x55, 0x68, 0, 0, 0, 0]);
        let in_rax = State::InRegister(RAX, Some(SENDER_SP));
        for offset in 0..=68 {
            assert_eq!(state_of(&beginning, offset), State::AtSp(SENDER_SP));
        }
        for (offset, expected) in [
            (69, in_rax),
            (74, in_rax),
            (push, in_rax),
            (push + 1, State::AtSp(SENDER_SP)),
            (push + 2, State::Pushed),
            (push + 5, State::Unknown),
        ] {
            assert_eq!(state_of(&beginning, offset), expected, "{offset}");
        }
        // The end of a method: leave; pop %r13; mov %rbx,%rsp; cmp; jb; movq; jmp *%r13
        let end = [
            0xc9, 0x41, 0x5d, 0x48, 0x8b, 0xe3, 0x49, 0x3b, 0xa7, 0x40, 5, 0, 0, 0x72, 0x0b, 0x49,
            0xc7, 0x87, 0x40, 5, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe5,
        ];
        let left = State::InRegister(SENDER_SP, None);
        for (offset, expected) in [
            (0, State::Unknown),
            (1, State::AtSp(RBX)),
            (3, State::InRegister(SENDER_SP, Some(RBX))),
            (6, left),
            (15, left),
            (26, left),
        ] {
            assert_eq!(state_of(&end, offset), expected, "{offset}");
        }
        // pop %rax; mov %r13,%rsp; jmp *%rax
        let intrinsic = [0x90, 0x58, 0x49, 0x8b, 0xe5, 0xff, 0xe0];
        assert_eq!(state_of(&intrinsic, 0), State::AtSp(SENDER_SP));
        assert_eq!(state_of(&intrinsic, 2), in_rax);
        assert_eq!(state_of(&intrinsic, 5), State::InRegister(RAX, None));
        // pop %rcx; mov %r13,%rsp; jmp *%rcx
        let intrinsic = [0x90, 0x59, 0x49, 0x8b, 0xe5, 0xff, 0xe1];
        assert_eq!(state_of(&intrinsic, 1), State::AtSp(SENDER_SP));
        assert_eq!(
            state_of(&intrinsic, 2),
            State::InRegister(RCX, Some(SENDER_SP))
        );
        assert_eq!(state_of(&intrinsic, 5), State::InRegister(RCX, None));
        // mov %r13,%rsp; jmp *16(%rbp)
        assert_eq!(
            state_of(&[0x49, 0x8b, 0xe5, 0xff, 0x65, 0x10], 0),
            State::Lost
        );
        // The end of a native method: call *%r11; mov -8(%rbp),%r11; leave; movb $0,958(%r15); pop
        // %rdi; mov %r11,%rsp; jmp *%rdi
        let end = [
            0x41, 0xff, 0xd3, 0x4c, 0x8b, 0x5d, 0xf8, 0xc9, 0x41, 0xc6, 0x87, 0xbe, 3, 0, 0, 0,
            0x5f, 0x49, 0x8b, 0xe3, 0xff, 0xe7,
        ];
        for (offset, expected) in [
            (0, State::Framed),
            (3, State::Framed),
            (7, State::Framed),
            (8, State::AtSp(R11)),
            (16, State::AtSp(R11)),
            (17, State::InRegister(RDI, Some(R11))),
            (20, State::InRegister(RDI, None)),
        ] {
            assert_eq!(state_of(&end, offset), expected, "{offset}");
        }
        // The return from a call: mov -16(%rbp),%rsp; movq $0,-16(%rbp); mov -64(%rbp),%r13; mov
        // -56(%rbp),%r14
        let returns = [
            0x48, 0x8b, 0x65, 0xf0, 0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0, 0x4c, 0x8b, 0x6d, 0xc0,
            0x4c, 0x8b, 0x75, 0xc8,
        ];
        for offset in [0, 4, 12, 16, 20] {
            assert_eq!(state_of(&returns, offset), State::Framed);
        }
        // The search for a method of an interface, of JDK 21: mov (%r14),%r13; cmp %rsi,%r13; je;
        // test %r13,%r13; je; add $16,%r14; mov (%r14),%r13; cmp; jne; mov -64(%rbp),%r13
        let search = [
            0x4d, 0x8b, 0x2e, 0x49, 0x3b, 0xc5, 0x74, 0x15, 0x4d, 0x85, 0xed, 0x0f, 0x84, 0x3c, 1,
            0, 0, 0x49, 0x83, 0xc6, 0x10, 0x4d, 0x8b, 0x2e, 0x49, 0x3b, 0xc5, 0x75, 0xeb, 0x4c,
            0x8b, 0x6d, 0xc0,
        ];
        for offset in (0..=29).chain(33..=61) {
            assert_eq!(state_of(&search, offset), State::Framed, "{offset}");
        }
    }
}
