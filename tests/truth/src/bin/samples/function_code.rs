// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Analyses the innermost function's instructions: the registers that it has just popped; and its
//! caller, as a frame-pointer unwinder finds it that recognises prologues and epilogues.

use iced_x86::{
    Code,
    Decoder,
    DecoderOptions,
    FlowControl,
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    OpAccess,
    OpKind,
    Register, //
};
use sframe::{
    unwind::{
        Frame,
        Memory, //
    },
    x86_64::rule_without_frame_pointer, //
};
use truth::{
    dwarf::dwarf_number,
    files::CfiTables, //
};
use walk::{
    process::Process,
    registers::RegisterFile, //
};

/// The maximum number of bytes that are decoded of a function.
const MAX_DECODED: usize = 1 << 16;

/// The maximum number of instructions of an epilogue.
const MAX_EPILOGUE: usize = 32;

/// The function that contains the PC. Addresses are link-time addresses.
pub(crate) struct FunctionCode {
    /// Its range from .eh_frame or the symbol table; only its end if the start is unknown.
    start: Option<u64>,
    pc: u64,
    end: u64,
    /// From `start`, or else from the byte before the PC on.
    bytes: &'static [u8],
}

/// The maximum distance from a system call to the PC, in bytes.
const MAX_RESULT: u64 = 16;

/// The run-time address of the system call that precedes the PC, if no instruction in between
/// changes the stack or branches.
pub(crate) fn system_call_before(process: &Process, pc: u64) -> Option<u64> {
    let (file, link) = process.at(pc)?.link_address(pc)?;
    let mut factory = InstructionInfoFactory::new();
    let mut is_between = |instruction: &Instruction| {
        matches!(
            instruction.flow_control(),
            FlowControl::Next | FlowControl::ConditionalBranch
        ) && factory.info(instruction).used_memory().is_empty()
            && !factory
                .info(instruction)
                .used_registers()
                .iter()
                .any(|used| {
                    used.register().full_register() == Register::RSP
                        && used.access() != OpAccess::Read
                })
    };
    (2..=MAX_RESULT).find_map(|back| {
        let bytes = file.bytes_at(link.wrapping_sub(back));
        let bytes = bytes.get(..back as usize)?;
        let decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
        let mut decoded = decoder.into_iter();
        let begins = decoded.next()?.mnemonic() == Mnemonic::Syscall;
        (begins && decoded.all(|instruction| !instruction.is_invalid() && is_between(&instruction)))
            .then(|| pc.wrapping_sub(back))
    })
}

/// The distance in bytes from the stack pointer to the return address in `_init` and `_fini`, whose
/// sections no table covers.
pub(crate) fn depth_in_init(process: &Process, pc: u64) -> Option<i64> {
    let (file, link) = process.at(pc)?.link_address(pc)?;
    let section = file.section(link)?;
    if ![".init", ".fini"].contains(&section.name.as_str()) {
        return None;
    }
    let bytes = file.bytes_at(section.address);
    let decoder = Decoder::with_ip(64, bytes, section.address, DecoderOptions::NONE);
    let before = decoder
        .into_iter()
        .take_while(|instruction| instruction.ip() < link);
    Some(
        -before
            .filter_map(|instruction| change_of_sp(&instruction))
            .sum::<i64>(),
    )
}

/// The function at a run-time address; `None` if no file is mapped there.
pub(crate) fn function(process: &Process, pc: u64) -> Option<FunctionCode> {
    let (file, link) = process.at(pc)?.link_address(pc)?;
    let range = file
        .cfi()
        .ok()
        .and_then(|cfi| cfi.function_at(link))
        .or_else(|| {
            let (_, offset) = file.function_at(link)?;
            Some((link - offset, u64::MAX))
        })
        // The entry of a PLT covers many stubs, and is not a function.
        .filter(|_| !file.section_at(link).starts_with(".plt"));
    let (start, end) = match range {
        Some((start, end)) => (Some(start), end),
        None => (None, u64::MAX),
    };
    Some(FunctionCode {
        start,
        pc: link,
        end,
        bytes: file.bytes_at(start.unwrap_or(link.wrapping_sub(1))),
    })
}

impl FunctionCode {
    /// The instructions from `from` on; invalid ones past the end of the code.
    fn decode(&self, from: u64) -> impl Iterator<Item = Instruction> {
        let base = self.start.unwrap_or(self.pc.wrapping_sub(1));
        let skipped = from.wrapping_sub(base) as usize;
        let bytes = self.bytes.get(skipped..).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(MAX_DECODED)];
        let mut decoder = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE);
        std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode()))
    }

    /// The instructions before the PC; none if decoding does not arrive at the PC.
    fn before(&self) -> Vec<Instruction> {
        let Some(start) = self.start else {
            return Vec::new();
        };
        let found: Vec<Instruction> = self
            .decode(start)
            .take_while(|instruction| instruction.ip() < self.pc)
            .collect();
        match found.last() {
            Some(last) if last.next_ip() != self.pc => Vec::new(),
            _ => found,
        }
    }

    /// The words below the stack pointer, with their addresses, that the code before the PC
    /// has popped, and that are still in registers.
    ///
    /// .eh_frame does not describe most pops: it refers to the word below the stack pointer, which
    /// perf does not copy.
    pub(crate) fn popped(&self, registers: &RegisterFile) -> Vec<(u64, u64)> {
        let mut words = Vec::new();
        let mut sp = registers.sp();
        let mut changed: Vec<Register> = Vec::new();
        let mut factory = InstructionInfoFactory::new();
        for instruction in self.before().iter().rev() {
            if instruction.mnemonic() == Mnemonic::Syscall {
                changed.extend([Register::RAX, Register::RCX, Register::R11]);
                continue;
            }
            if instruction.flow_control() != FlowControl::Next {
                break;
            }
            let mut pop = |register: Register, sp: &mut u64| {
                *sp = sp.wrapping_sub(8);
                if !changed.contains(&register) {
                    let value = dwarf_number(register).and_then(|number| registers.get(number));
                    words.extend(value.map(|value| (*sp, value)));
                }
            };
            match instruction.code() {
                Code::Pop_r64 => {
                    pop(instruction.op0_register(), &mut sp);
                    changed.push(instruction.op0_register());
                    continue;
                }
                Code::Leaveq => {
                    pop(Register::RBP, &mut sp);
                    break;
                }
                _ => {}
            }
            if let Some(change) = change_of_sp(instruction) {
                sp = sp.wrapping_sub(change as u64);
                continue;
            }
            let info = factory.info(instruction);
            for used in info.used_registers() {
                if matches!(
                    used.access(),
                    OpAccess::Write
                        | OpAccess::ReadWrite
                        | OpAccess::CondWrite
                        | OpAccess::ReadCondWrite
                ) {
                    changed.push(used.register().full_register());
                }
            }
            if changed.contains(&Register::RSP) {
                break;
            }
        }
        words
    }

    /// The caller, from the prologue or epilogue; `None` where the frame pointer is, or is assumed
    /// to be, this function's.
    pub(crate) fn caller<M: Memory + ?Sized>(&self, frame: &Frame, memory: &M) -> Option<Frame> {
        if let Some(caller) = self.by_epilogue(frame, memory) {
            return Some(caller);
        }
        let Some(start) = self.start else {
            // The start is unknown: only the bytes at the PC can be used.
            let code = self.bytes.first_chunk()?;
            let rule = rule_without_frame_pointer(code)?;
            return rule.caller(frame, memory).filter(|caller| caller.pc != 0);
        };

        // From the start on, tracks the stack pointer until a frame pointer is set up.
        let mut depth = 0i64;
        let mut deepest = 0i64;
        let mut rbp_at = None;
        for instruction in self.decode(start) {
            if instruction.ip() >= self.pc {
                break;
            }
            match instruction.code() {
                Code::Pushq_imm8 | Code::Pushq_imm32 => depth += 8,
                Code::Push_r64 => {
                    depth += 8;
                    if instruction.op0_register() == Register::RBP {
                        rbp_at.get_or_insert(depth);
                    }
                }
                Code::Pop_r64 => depth -= 8,
                Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                    if instruction.op0_register() == Register::RBP
                        && instruction.op1_register() == Register::RSP =>
                {
                    return None;
                }
                _ => match instruction.flow_control() {
                    // The code after it is reached by a jump, most likely from the body.
                    FlowControl::Return | FlowControl::UnconditionalBranch => depth = deepest,
                    _ => depth -= change_of_sp(&instruction).unwrap_or(0),
                },
            }
            deepest = deepest.max(depth);
        }
        let at = |depth: i64| frame.sp.wrapping_add_signed(depth);
        let pc = memory.read_word(at(depth)).ok()?;
        let fp = match rbp_at {
            Some(pushed) if pushed <= depth => memory.read_word(at(depth - pushed)).ok()?,
            _ => frame.fp,
        };
        Some(Frame {
            pc,
            sp: at(depth + 8),
            fp,
        })
    }

    /// The caller, if straight-line code leads from the PC out of the function.
    fn by_epilogue<M: Memory + ?Sized>(&self, frame: &Frame, memory: &M) -> Option<Frame> {
        let mut sp = frame.sp;
        let mut fp = frame.fp;
        for instruction in self.decode(self.pc).take(MAX_EPILOGUE) {
            match instruction.code() {
                Code::Pop_r64 => {
                    if instruction.op0_register() == Register::RBP {
                        fp = memory.read_word(sp).ok()?;
                    }
                    sp = sp.wrapping_add(8);
                    continue;
                }
                Code::Leaveq => {
                    sp = fp.wrapping_add(8);
                    fp = memory.read_word(fp).ok()?;
                    continue;
                }
                _ => {}
            }
            if let Some(change) = change_of_sp(&instruction) {
                sp = sp.wrapping_add_signed(change);
                continue;
            }
            let leaves = match instruction.flow_control() {
                FlowControl::Next => {
                    let writes = instruction.op0_register().full_register();
                    if instruction.is_invalid()
                        || instruction.is_stack_instruction()
                        || instruction.op0_kind() == OpKind::Register
                            && matches!(writes, Register::RSP | Register::RBP)
                    {
                        return None;
                    }
                    continue;
                }
                FlowControl::Return => true,
                // To another function: a tail call.
                FlowControl::UnconditionalBranch => self.start.is_some_and(|start| {
                    let target = instruction.near_branch_target();
                    target < start || target >= self.end
                }),
                _ => false,
            };
            return leaves
                .then(|| {
                    Some(Frame {
                        pc: memory.read_word(sp).ok()?,
                        sp: sp.wrapping_add(8),
                        fp,
                    })
                })
                .flatten();
        }
        None
    }
}

/// By how many bytes an `add`, `sub` or `lea` raises the stack pointer.
fn change_of_sp(instruction: &Instruction) -> Option<i64> {
    if instruction.op0_kind() != OpKind::Register || instruction.op0_register() != Register::RSP {
        return None;
    }
    match instruction.mnemonic() {
        Mnemonic::Add if instruction.op1_kind() != OpKind::Register => immediate(instruction),
        Mnemonic::Sub if instruction.op1_kind() != OpKind::Register => {
            immediate(instruction).map(i64::wrapping_neg)
        }
        Mnemonic::Lea
            if instruction.memory_base() == Register::RSP
                && instruction.memory_index() == Register::None =>
        {
            Some(instruction.memory_displacement64() as i64)
        }
        _ => None,
    }
}

fn immediate(instruction: &Instruction) -> Option<i64> {
    (instruction.op1_kind() != OpKind::Memory).then(|| instruction.immediate(1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::StackCopy;
    use walk::registers::COUNT;

    const START: u64 = 0x1000;
    const SP: u64 = 0x8000;

    fn at(code: &'static [u8], offset: u64) -> FunctionCode {
        FunctionCode {
            start: Some(START),
            pc: START + offset,
            end: START + code.len() as u64,
            bytes: code,
        }
    }

    /// A stack in which each word holds its address.
    fn stack() -> Vec<u8> {
        (0..32u64)
            .flat_map(|i| (SP + 8 * i).to_le_bytes())
            .collect()
    }

    fn caller(code: &'static [u8], offset: u64) -> Option<(u64, u64, u64)> {
        let stack = stack();
        let frame = Frame {
            pc: START + offset,
            sp: SP,
            fp: SP + 0x40,
        };
        let found = at(code, offset).caller(&frame, &StackCopy::new(SP, &stack))?;
        Some((found.pc, found.sp, found.fp))
    }

    // From objdump.
    const FRAMED: &[u8] = &[
        0xf3, 0x0f, 0x1e, 0xfa, // 0: endbr64
        0x55, // 4: push %rbp
        0x48, 0x89, 0xe5, // 5: mov %rsp,%rbp
        0x53, // 8: push %rbx
        0x48, 0x83, 0xec, 0x18, // 9: sub $0x18,%rsp
        0xe8, 0, 0, 0, 0, // 13: call
        0x48, 0x8b, 0x5d, 0xf8, // 18: mov -8(%rbp),%rbx
        0xc9, // 22: leave
        0xc3, // 23: ret
    ];

    #[test]
    fn prologues_and_epilogues_with_a_frame_pointer() {
        assert_eq!(caller(FRAMED, 0), Some((SP, SP + 8, SP + 0x40)));
        assert_eq!(caller(FRAMED, 4), Some((SP, SP + 8, SP + 0x40)));
        // The caller's frame pointer was pushed.
        assert_eq!(caller(FRAMED, 5), Some((SP + 8, SP + 16, SP)));
        assert_eq!(caller(FRAMED, 8), None);
        assert_eq!(caller(FRAMED, 13), None);
        let by_leave = Some((SP + 0x48, SP + 0x50, SP + 0x40));
        assert_eq!(caller(FRAMED, 18), by_leave);
        assert_eq!(caller(FRAMED, 22), by_leave);
        assert_eq!(caller(FRAMED, 23), Some((SP, SP + 8, SP + 0x40)));
    }

    const LEAF: &[u8] = &[
        0x55, // 0: push %rbp
        0x53, // 1: push %rbx
        0x48, 0x83, 0xec, 0x08, // 2: sub $8,%rsp
        0x85, 0xff, // 6: test %edi,%edi
        0x74, 0x07, // 8: je 17
        0x48, 0x83, 0xc4, 0x08, // 10: add $8,%rsp
        0x5b, // 14: pop %rbx
        0x5d, // 15: pop %rbp
        0xc3, // 16: ret
        0xe8, 0, 0, 0, 0, // 17: call
        0xeb, 0xf2, // 22: jmp 10
    ];

    #[test]
    fn functions_without_a_frame_pointer() {
        assert_eq!(caller(LEAF, 0), Some((SP, SP + 8, SP + 0x40)));
        assert_eq!(caller(LEAF, 1), Some((SP + 8, SP + 16, SP)));
        let body = Some((SP + 24, SP + 32, SP + 16));
        assert_eq!(caller(LEAF, 6), body);
        assert_eq!(caller(LEAF, 8), body);
        assert_eq!(caller(LEAF, 10), body);
        assert_eq!(caller(LEAF, 15), Some((SP + 8, SP + 16, SP)));
        assert_eq!(caller(LEAF, 16), Some((SP, SP + 8, SP + 0x40)));
        // After the return the body's depth holds again.
        assert_eq!(caller(LEAF, 17), body);
    }

    #[test]
    fn a_jump_elsewhere_ends_a_function() {
        const TAIL: &[u8] = &[0x5b, 0xe9, 0, 1, 0, 0];
        assert_eq!(caller(TAIL, 0), Some((SP + 8, SP + 16, SP + 0x40)));
    }

    #[test]
    fn popped_words_are_known() {
        let registers = RegisterFile::new(std::array::from_fn::<u64, COUNT, _>(|i| {
            if i == 7 {
                SP
            } else {
                i as u64
            }
        }));
        let popped = |code, offset| at(code, offset).popped(&registers);
        assert_eq!(popped(LEAF, 14), []);
        assert_eq!(popped(LEAF, 15), [(SP - 8, 3)]);
        assert_eq!(popped(LEAF, 16), [(SP - 8, 6), (SP - 16, 3)]);
        assert_eq!(popped(FRAMED, 23), [(SP - 8, 6)]);
        assert_eq!(popped(FRAMED, 18), []);
        // pop %rbx; xor %ebx,%ebx; pop %rbp: what was in rbx is lost.
        const CHANGED: &[u8] = &[0x5b, 0x31, 0xdb, 0x5d, 0xc3];
        assert_eq!(popped(CHANGED, 4), [(SP - 8, 6)]);
        // pop %rdx; mov $58,%eax; syscall: where vfork keeps its return address.
        const VFORK: &[u8] = &[0x5a, 0xb8, 58, 0, 0, 0, 0x0f, 0x05, 0x52];
        assert_eq!(popped(VFORK, 8), [(SP - 8, 1)]);
        // A PC within an instruction tells nothing.
        assert_eq!(popped(FRAMED, 2), []);
    }
}
