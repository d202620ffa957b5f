// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step from HotSpot's compiled code and stubs.
//!
//! A step is accepted only if it leads after a call; to a poll, a handler of deoptimisation or the
//! return barrier of HotSpot's; or into HotSpot's interpreter.
//!
//! Words are eight bytes. Names are those of the OpenJDK source: a code heap consists of segments;
//! a block is some segments with a `HeapBlock` at its start, and a `CodeBlob` after the
//! `HeapBlock`.

use crate::sframe::{
    format::bytes::Source,
    runtimes::{
        code::{
            field,
            find,
            read_code, //
        },
        hotspot_interpreter::{
            interpreted,
            SENDER_SP, //
        }, //
    },
    unwind::step::{
        Frame,
        Memory,
        RegisterSource,
        Step,
        WordReader, //
    },
    x86_64::{
        decode::{
            instruction,
            Effect,
            DECODING, //
        },
        fallback::is_behind_call,
        insn::{
            CALL_RELATIVE,
            JMP_RELATIVE,
            JMP_SHORT,
            PUSH_RBP,
            RET, //
        },
        pattern::{
            shown,
            Pattern,
            ANY, //
        },
        prologue::{
            FixedRule,
            ON_TOP,
            PUSHED, //
        },
        registers::RAX, //
    }, //
};
use core::ops::Range;

/// The most hops in a code heap's segment map. Each hop passes at most 254 segments.
const HOPS: u32 = 64;
/// The largest number of instructions that save registers, call, and restore the registers; and of
/// those among them that move arguments and the result.
const MOST_SAVES: usize = 100;
const MOST_OTHERS: u32 = 6;
/// The number of bytes of code that are read for one instruction.
const DECODED: usize = 24;
/// The maximum size of a compiled frame, in bytes.
const MAX_FRAME: i32 = 1 << 20;
/// The bytes before the end of a prologue in which the prologue is searched.
const WINDOW: usize = 64;
/// The bytes before the PC, and the bytes before it and after it, that show a prologue or an
/// epilogue.
const BEFORE: usize = 16;
const NEAR: usize = BEFORE + 24;
/// The size of the frame of a stub that keeps a frame pointer, in bytes, at most.
const MAX_STUB_FRAME: u64 = 1 << 16;
/// The size of the arguments of a virtual thread's last frame on the stack, in bytes, at most.
const MAX_ARGUMENTS: u64 = 256;
/// The size of the arguments of a call of HotSpot's interpreter, in bytes, at most.
const MAX_ARGUMENT_SPACE: u64 = 256 * 8;

/// A code heap of HotSpot. Offsets and sizes are in bytes; addresses are run-time addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct CodeHeap {
    /// The start of the heap.
    pub start: u64,
    /// The segment map: one byte for each segment from `start` on.
    pub segment_map: u64,
    /// The start of the interpreter's code.
    pub interpreter_start: u64,
    /// The length of the interpreter's code.
    pub interpreter_len: u32,
    /// The mask of the low half of the word at `kind_offset`.
    pub kind_mask: u32,
    /// The values of that half, masked, in blobs whose code has no frame if the blob's frame size
    /// is 0.
    pub frameless_kinds: [u32; 4],
    /// The binary logarithm of the size of a segment; at most 63.
    pub segment_log2: u8,
    /// The offset of `_used` in a `HeapBlock`.
    pub used_offset: u8,
    /// The offset of the `CodeBlob` in a block.
    pub blob_offset: u8,
    /// The offset of `_frame_size`.
    pub frame_size_offset: u8,
    /// The offset of `_frame_complete_offset`.
    pub frame_complete_offset: u8,
    /// Whether `_frame_complete_offset` has two bytes, else four.
    pub frame_complete_is_short: bool,
    /// The offset of the field with the start of the code.
    pub code_offset: u8,
    /// Whether that field is an address, else an offset from the `CodeBlob`.
    pub code_is_address: bool,
    /// The offset of the word with the blob's kind.
    pub kind_offset: u8,
}

/// Whether the code at `pc` is HotSpot's poll in a loop: test %eax,(%register). If it faults, its
/// own address becomes the return address.
#[inline(never)]
pub fn is_poll<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    field(pc, 0, memory).is_some_and(|code| {
        let without_prefix = if code as u8 == 0x41 { code >> 8 } else { code };
        without_prefix & 0xf8ff == 0x0085 && without_prefix & 0x0600 != 0x0400
    })
}

/// Whether the code at `pc` is HotSpot's return barrier: mov offset(%r15),%rsp; push %rax. A
/// virtual thread that continues has only its last frames on the stack. They return to the barrier,
/// which copies the next ones from the heap of objects.
#[inline(never)]
pub fn is_barrier<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    field(pc, 0, memory).is_some_and(|code| code & 0xffff_ff00_00ff_ffff == 0x5000_0000_00a7_8b49)
}

/// Whether the code at `pc` is the handler with which HotSpot replaces the return address to a
/// compiled method that it deoptimises. The handler is at the end of the method's code, and the
/// method's frame stays until the call returns. The handler pushes its own address: mov
/// $address,%r10 (push %r10); or call to the next instruction; subl $5,(%rsp).
#[inline(never)]
pub fn is_deopt_handler<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    match field(pc, 0, memory) {
        Some(0x2c83_4800_0000_00e8) => true,
        Some(code) if code as u16 == 0xba49 => field(pc, 2, memory) == Some(pc),
        _ => false,
    }
}

/// The rule of a frame that its frame pointer leads to.
const FRAME_POINTER: FixedRule = FixedRule {
    from_fp: true,
    ..PUSHED
};

/// The same, if the code has pushed [`COOKIE`] before it pushed the caller's frame pointer.
const BEHIND_COOKIE: FixedRule = FixedRule {
    from_fp: true,
    ..FixedRule::new(24, -24)
};

/// The word that HotSpot's stub for the barrier at the beginning of a method pushes.
const COOKIE: u64 = u64::MAX;

/// The rule of a frame of this size in bytes. The code pushes the caller's frame pointer first.
const fn whole_frame(size: i32) -> FixedRule {
    FixedRule::new(size, -16)
}

/// The rule of a frame of a stub that keeps a frame pointer, and the return address. `None` if the
/// frame pointer is far: the return barrier keeps none, and a virtual thread's old one may lead to
/// the stack of another thread.
fn in_stub<S: Source + ?Sized>(frame: &Frame, memory: &S) -> Option<(FixedRule, u64)> {
    if frame.fp.wrapping_sub(frame.sp) > MAX_STUB_FRAME {
        return None;
    }
    Some(match field(frame.fp.wrapping_add(8), 0, memory)? {
        COOKIE => (BEHIND_COOKIE, field(frame.fp.wrapping_add(16), 0, memory)?),
        caller => (FRAME_POINTER, caller),
    })
}

impl CodeHeap {
    /// Takes a step from a frame in the code heap; `None` if it cannot be proved. `registers` are
    /// those of the innermost frame, or of a frame that a signal interrupted; `None` for other
    /// frames.
    #[inline(never)]
    pub(super) fn step<M: Memory + Source + ?Sized, R: RegisterSource + ?Sized>(
        &self,
        frame: &Frame,
        registers: Option<&R>,
        memory: &M,
    ) -> Option<Step> {
        let is_interpreter = |pc: u64| self.is_interpreter(pc);
        let mut caller = if is_interpreter(frame.pc) {
            interpreted(frame, registers, memory, is_interpreter)?
        } else {
            let rule = self.rule(frame, registers.is_some(), memory)?;
            rule.caller(frame, memory)?
        };
        // An adapter makes space for arguments below its return address, pushes the address again,
        // and still has it in rax.
        if let Some(registers) = registers {
            let sp = registers.register(SENDER_SP).unwrap_or(0);
            if registers.register(RAX) == Some(caller.pc)
                && (1..=MAX_ARGUMENT_SPACE).contains(&sp.wrapping_sub(caller.sp))
            {
                caller.sp = sp;
            }
        }
        let is_innermost = registers.is_some();
        if !self.may_be_caller(is_innermost, caller.pc, memory) {
            if !is_innermost || !is_in_comparison(frame.pc, memory) {
                return None;
            }
            caller = Frame {
                pc: memory.read_word(caller.sp).ok()?,
                sp: caller.sp.checked_add(8)?,
                fp: memory.read_word(caller.sp.wrapping_sub(8)).ok()?,
            };
            if !self.may_be_caller(is_innermost, caller.pc, memory) {
                return None;
            }
        }
        Some(Step::Caller(caller))
    }

    /// Whether a frame may have the return address `pc`.
    #[inline(never)]
    fn may_be_caller<S: Source + ?Sized>(&self, is_innermost: bool, pc: u64, memory: &S) -> bool {
        self.is_interpreter(pc)
            || is_behind_call(pc, memory)
            || !is_innermost && is_poll(pc, memory)
            || is_barrier(pc, memory)
            || is_deopt_handler(pc, memory)
    }

    /// The part of `code` that may be compiled code, before the interpreter or after it, as `pc`
    /// is.
    #[inline(always)]
    pub(super) fn compiled_part(&self, code: Range<u64>, pc: u64) -> Range<u64> {
        let interpreter_end = self
            .interpreter_start
            .saturating_add(self.interpreter_len.into());
        let (start, end) = match pc < self.interpreter_start {
            true => (
                code.start,
                code.end.min(self.interpreter_start.wrapping_sub(1)),
            ),
            false => (code.start.max(interpreter_end), code.end),
        };
        start.max(self.start)..end
    }

    /// The caller of a frame of compiled code that has made a call; the code before the caller's PC
    /// has to end with a call. The frame is above the start of the heap. `None` also if a word that
    /// is read is 0, because reads that fail give 0. Calls no function.
    #[inline(always)]
    pub(super) fn compiled_caller<W: WordReader>(&self, frame: &Frame, words: &W) -> Option<Frame> {
        let log2 = u32::from(self.segment_log2);
        // An aligned word lies in the page of the byte.
        let hop_at = |segment: u64| {
            let at = self.segment_map.wrapping_add(segment);
            let hops = words.word(at & !7);
            let hop = hops.wrapping_shr(8 * (at & 7) as u32) as u8;
            (hops, hop)
        };
        let distance = frame.pc.wrapping_sub(1).wrapping_sub(self.start);
        let mut segment = distance.wrapping_shr(log2);
        let (mut hops, hop) = hop_at(segment);
        if hop != 0 {
            // The segment map of a block of up to 254 segments leads to the start of the block at
            // once.
            if hop == u8::MAX {
                return None;
            }
            segment = segment.checked_sub(hop.into())?;
            match hop_at(segment) {
                (other, 0) => hops = other,
                _ => return None,
            }
        }
        if hops == 0 {
            return None;
        }
        let block = self.start.wrapping_add(segment.wrapping_shl(log2));
        if words.word(block.wrapping_add(self.used_offset.into())) as u8 != 1 {
            return None;
        }
        let blob = block.wrapping_add(self.blob_offset.into());
        let size = words.word(blob.wrapping_add(self.frame_size_offset.into())) as u32;
        if !(2..=const { MAX_FRAME as u32 / 8 }).contains(&size) {
            return None;
        }
        let sp = frame.sp.checked_add(u64::from(size) * 8)?;
        let pc = words.word(sp.wrapping_sub(8));
        let fp = words.word(sp.wrapping_sub(16));
        if fp == 0 {
            return None;
        }
        Some(Frame { pc, sp, fp })
    }

    /// The rule of a frame in compiled code or in a stub.
    #[inline(never)]
    fn rule<S: Source + ?Sized>(
        &self,
        frame: &Frame,
        is_innermost: bool,
        memory: &S,
    ) -> Option<FixedRule> {
        let pc = frame.pc;
        let blob = self.blob_at(pc.wrapping_sub((!is_innermost).into()), memory)?;
        let size = (field(blob, self.frame_size_offset, memory)? as i32).checked_mul(8)?;
        match size {
            16..=MAX_FRAME => {
                let rule = match is_innermost {
                    true => match rule_around(pc, size, memory)? {
                        Some(rule) => rule,
                        None => self.rule_of_prologue(pc, blob, size, memory)?,
                    },
                    false => whole_frame(size),
                };
                let cfa = rule.cfa.checked_add(lowered_for_call(pc, memory))?;
                Some(FixedRule { cfa, ..rule })
            }
            0 => {
                let kind = field(blob, self.kind_offset, memory)? as u32 & self.kind_mask;
                let is_frameless = self.frameless_kinds.contains(&kind);
                match is_innermost {
                    true if is_frameless => Some(ON_TOP),
                    true => self.innermost_in_stub(frame, blob, memory),
                    // Code without a frame calls nothing.
                    false if is_frameless => None,
                    false if is_barrier(pc, memory) => self.rule_of_barrier(frame, memory),
                    false => Some(in_stub(frame, memory)?.0),
                }
            }
            _ => None,
        }
    }

    /// The rule of the return barrier, which takes over the frame that a virtual thread starts in:
    /// a `ContinuationEntry` of 64 bytes, the saved frame pointer, and the return address.
    /// Arguments of the last frame may lie below.
    #[inline(never)]
    fn rule_of_barrier<S: Source + ?Sized>(&self, frame: &Frame, memory: &S) -> Option<FixedRule> {
        let aligned = |sp: u64| sp.wrapping_add(15) & !15;
        let first = aligned(frame.sp);
        let mut entry = first;
        while entry.wrapping_sub(first) < MAX_ARGUMENTS {
            // `_flags` is 0 or 1. `_argsize` is the number of words of arguments; 0 if an
            // interpreted frame has them.
            let flags = field(entry, 32, memory)?;
            let arguments = flags.wrapping_shr(32);
            if flags & 0xffff_fffe == 0
                && (arguments == 0
                    || aligned(frame.sp.wrapping_add(arguments.wrapping_mul(8))) == entry)
            {
                let caller = field(entry, 72, memory)?;
                if self.is_interpreter(caller) || is_behind_call(caller, memory) {
                    let size = entry.wrapping_sub(frame.sp) as i32;
                    return Some(whole_frame(size.wrapping_add(80)));
                }
            }
            entry = entry.wrapping_add(16);
        }
        None
    }

    /// Whether a run-time address is in the interpreter.
    fn is_interpreter(&self, pc: u64) -> bool {
        pc.wrapping_sub(self.interpreter_start) < u64::from(self.interpreter_len)
    }

    /// The rule of the innermost frame in a stub of HotSpot's runtime. Many stubs keep a frame
    /// pointer.
    #[inline(never)]
    fn innermost_in_stub<S: Source + ?Sized>(
        &self,
        frame: &Frame,
        blob: u64,
        memory: &S,
    ) -> Option<FixedRule> {
        let code = field(frame.pc.wrapping_sub(1), 0, memory)?;
        let at_pc = code >> 8;
        // ret; or push %rbp; mov %rsp,%rbp
        if at_pc as u8 == RET || at_pc as u32 == 0xec8b_4855 {
            return Some(ON_TOP);
        }
        // mov %rsp,%rbp after push %rbp; or pop %rbp; ret
        if code as u32 == 0xec8b_4855 || at_pc as u16 == 0xc35d {
            return Some(PUSHED);
        }
        // If the stub keeps no frame pointer, the register leads to a frame further out, whose
        // return address is after a call of other code.
        let (rule, caller) = in_stub(frame, memory)?;
        let call = field(caller.wrapping_sub(8), 0, memory)?;
        // mov $address,%r10; call *%r10
        let target = if call >> 40 == 0xd2_ff41
            && field(caller.wrapping_sub(13), 0, memory)? as u16 == 0xba49
        {
            field(caller.wrapping_sub(11), 0, memory)?
        } else if (call >> 24) as u8 == CALL_RELATIVE {
            caller.wrapping_add_signed(((call >> 32) as i32).into())
        } else {
            return None;
        };
        (self.blob_at(target, memory)? == blob).then_some(rule)
    }

    /// The run-time address of the `CodeBlob` whose block contains `address`; `None` if the block
    /// is free.
    pub fn blob_at<S: Source + ?Sized>(&self, address: u64, memory: &S) -> Option<u64> {
        let log2 = u32::from(self.segment_log2);
        let mut segment = address.checked_sub(self.start)?.checked_shr(log2)?;
        let mut left = HOPS;
        loop {
            let [hop] = memory.read(self.segment_map.wrapping_add(segment)).ok()?;
            match hop {
                0 => break,
                // A segment that was never allocated.
                u8::MAX => return None,
                _ => segment = segment.checked_sub(hop.into())?,
            }
            left = left.checked_sub(1)?;
        }
        let block = self.start.wrapping_add(segment.checked_shl(log2)?);
        let is_used = field(block, self.used_offset, memory)? as u8;
        (is_used == 1).then(|| block.wrapping_add(self.blob_offset.into()))
    }

    /// The rule of the innermost frame, whose function has a frame of `size` bytes, by the end of
    /// its prologue.
    #[inline(never)]
    fn rule_of_prologue<S: Source + ?Sized>(
        &self,
        pc: u64,
        blob: u64,
        size: i32,
        memory: &S,
    ) -> Option<FixedRule> {
        let mut code = field(blob, self.code_offset, memory)?;
        if !self.code_is_address {
            code = blob.wrapping_add_signed((code as i32).into());
        }
        let complete = field(blob, self.frame_complete_offset, memory)?;
        let complete = match self.frame_complete_is_short {
            true => (complete as i16).into(),
            false => complete as i32,
        };
        // -1: the blob is a stub of HotSpot's and no method.
        let is_stub = complete == -1;
        let mut beginning = code;
        if !is_stub {
            let end = code.wrapping_add(u64::try_from(complete).ok()?);
            if pc >= end {
                return Some(whole_frame(size));
            }
            beginning = end.wrapping_sub(const { WINDOW as u64 });
        }
        let mut bytes = [0; WINDOW];
        read_code(beginning, &mut bytes, memory)?;
        let setup = FrameSetup::find(&bytes, size)?;
        if is_stub {
            // Only the stubs that the compiler for servers has made begin with their set-up, and
            // nothing else in them moves the stack pointer. A stub jumps to the handler of an
            // exception (jmp *%r8 to *%r15) with the return address in a register.
            let is_left = field(pc, 0, memory)? & 0xf8_ffff == 0xe0_ff41;
            if is_left || setup.first != 0 || setup.pushes {
                return None;
            }
        }
        Some(setup.rule(pc.saturating_sub(beginning), size))
    }
}

/// The rule of the innermost frame, whose function has a frame of `size` bytes, by the instructions
/// around the PC; else `Some(None)`.
#[inline(never)]
fn rule_around<S: Source + ?Sized>(pc: u64, size: i32, memory: &S) -> Option<Option<FixedRule>> {
    let mut around = [0; NEAR];
    read_code(
        pc.wrapping_sub(const { BEFORE as u64 }),
        &mut around,
        memory,
    )?;
    if is_extended(&around) || replaces_frames(&around) {
        return None;
    }
    if let Some(rule) = rule_of_epilogue(&around) {
        return Some(Some(rule));
    }
    // Before the jump is pop %rbp, or an instruction that ends with this byte.
    let popped = around.get(const { BEFORE - 1 }..)?;
    if popped.starts_with(&[0x5d, JMP_RELATIVE]) {
        return None;
    }
    // The entry from the interpreter into a loop has a prologue of its own, which may lie anywhere.
    Some(match FrameSetup::find(&around, size) {
        Some(setup) if (BEFORE as u64) < setup.end => Some(setup.rule(BEFORE as u64, size)),
        _ => None,
    })
}

/// Whether the frame is larger than its size by arguments: push; push; call; pop %register; pop
/// %register, with which a method that has been compiled for a fast start searches for a class.
/// `code` begins [`BEFORE`] bytes before the PC.
fn is_extended(code: &[u8; NEAR]) -> bool {
    // From the second push up to the last pop.
    code.get(const { BEFORE - 6 }..).is_some_and(|code| {
        code.windows(7).take(8).any(|code| match *code {
            [CALL_RELATIVE, _, _, _, _, first, second] => {
                first == second && matches!(first, 0x58..=0x5f)
            }
            _ => false,
        })
    })
}

/// Whether the code around the PC is that by which HotSpot's stubs for deoptimisation put
/// interpreted frames in the place of a compiled one: add %rcx,%rsp removes it, and push (%rcx)
/// pushes a return address in a loop.
fn replaces_frames(code: &[u8; NEAR]) -> bool {
    find(code, &[0x48, 0x03, 0xe1])
        .or(find(code, &[0x48, 0xff, 0x31]))
        .is_some()
}

/// The instructions that set up a compiled frame. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameSetup {
    /// The offset of the first of the instructions.
    first: u64,
    /// The offset from which on the frame is set up.
    end: u64,
    /// Whether the first instruction pushes the frame pointer, else it subtracts the whole size.
    pushes: bool,
}

impl FrameSetup {
    /// Finds the set-up of a frame of `size` bytes.
    fn find(code: &[u8], size: i32) -> Option<FrameSetup> {
        let mut rest = code;
        let mut first = 0;
        while let [_, next @ ..] = rest {
            // push %rbp, perhaps with mov %rsp,%rbp
            let (pushed, behind) = match rest {
                [PUSH_RBP, 0x48, 0x8b, 0xec, behind @ ..]
                | [PUSH_RBP, 0x48, 0x89, 0xe5, behind @ ..] => (4, behind),
                [PUSH_RBP, behind @ ..] => (1, behind),
                _ => (0, rest),
            };
            let pushes = pushed != 0;
            let found = match subtracted(behind) {
                Some((len, by)) if pushes && by.checked_add(16) == Some(size) => {
                    Some(len.wrapping_add(pushed))
                }
                _ if pushes => (size == 16).then_some(pushed),
                // sub $size - 8,%rsp; mov %rbp,offset(%rsp)
                Some((len, by)) if by.checked_add(8) == Some(size) => {
                    match behind.get(usize::from(len)..) {
                        Some([0x48, 0x89, 0x2c, 0x24, ..]) if size == 16 => {
                            Some(len.wrapping_add(4))
                        }
                        Some([0x48, 0x89, 0x6c, 0x24, ..]) => Some(len.wrapping_add(5)),
                        Some([0x48, 0x89, 0xac, 0x24, ..]) => Some(len.wrapping_add(8)),
                        _ => None,
                    }
                }
                _ => None,
            };
            if let Some(len) = found {
                let end = u64::from(len).wrapping_add(first);
                return Some(FrameSetup { first, end, pushes });
            }
            rest = next;
            first = first.wrapping_add(1);
        }
        None
    }

    /// The rule at an offset, before the end of the prologue.
    fn rule(&self, at: u64, size: i32) -> FixedRule {
        match self.pushes {
            _ if at <= self.first => ON_TOP,
            _ if at >= self.end => whole_frame(size),
            true => PUSHED,
            false => FixedRule::new(size, 0),
        }
    }
}

/// The length of the instruction at the start of `code`, and the number that it subtracts from
/// %rsp; `None` if it is another instruction.
fn subtracted(code: &[u8]) -> Option<(u8, i32)> {
    match *code {
        [0x48, 0x83, 0xec, by, ..] => Some((4, by.into())),
        [0x48, 0x81, 0xec, a, b, c, d, ..] => Some((7, i32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

/// The bytes before the PC that [`ENDS`] look at, which is the byte number of the PC in their word.
const PC: usize = 8;

/// The ends of compiled functions, and the rules there. Patterns that begin before the PC have at
/// least three known bytes there: a shorter one may be the end of another instruction.
static ENDS: [Pattern<FixedRule>; 13] = [
    // ret
    Pattern::new(PC, [0xc3], ON_TOP),
    // pop %rbp
    Pattern::new(PC, [0x5d], PUSHED),
    // cmp N(%r15),%rsp; ja. Only the poll at a return compares the stack pointer.
    Pattern::new(PC, [0x49, 0x3b, 0x67], ON_TOP),
    Pattern::new(PC, [0x49, 0x3b, 0xa7], ON_TOP),
    // ja; ret
    Pattern::new(PC, [0x0f, 0x87, ANY, ANY, ANY, ANY, 0xc3], ON_TOP),
    // jne; ret: the wrapper of a native method tests for an exception.
    Pattern::new(PC, [0x0f, 0x85, ANY, ANY, ANY, ANY, 0xc3], ON_TOP),
    // testb $1,N(%r15); je over the rest of a poll: the poll at the end of such a wrapper
    Pattern::new(PC, [0x41, 0xf6, 0x47, ANY, 1, 0x74, 0x16, 0x49], ON_TOP),
    // je over the rest of a poll; mov $address,%r10
    Pattern::new(PC, [0x74, 0x16, 0x49, 0xba], ON_TOP),
    // mov %r10,N(%r15); jmp: the end of the rest of a poll
    Pattern::new(PC, [0x4d, 0x89, 0x97, ANY, ANY, ANY, ANY, 0xe9], ON_TOP),
    // The same, at the jmp
    Pattern::new(PC - 7, [0x4d, 0x89, 0x97, ANY, ANY, ANY, ANY, 0xe9], ON_TOP),
    // add $N,%rsp; pop %rbp; jmp, at the jmp
    Pattern::new(PC - 5, [0x48, 0x83, 0xc4, ANY, 0x5d, 0xe9], ON_TOP),
    Pattern::new(
        PC - 8,
        [0x48, 0x81, 0xc4, ANY, ANY, ANY, ANY, 0x5d, 0xe9],
        ON_TOP,
    ),
    // pop %rdx; jmp *%r10
    Pattern::new(PC, [0x5a, 0x41, 0xff, 0xe2], ON_TOP),
];

/// The rule at the end of a compiled function, from the instructions around the PC; `None` if the
/// frame is still there, as far as these instructions show. `code` begins [`BEFORE`] bytes before
/// the PC.
fn rule_of_epilogue(code: &[u8; NEAR]) -> Option<FixedRule> {
    let word = u128::from_le_bytes(*code.get(const { BEFORE - PC }..)?.first_chunk()?);
    // Three ends are longer than a word.
    shown(&ENDS, word).or(match code.split_at(BEFORE).1 {
        // cmpq $0,N(%r15); jne; ret
        [0x49, 0x83, 0x7f, _, 0, 0x0f, 0x85, _, _, _, _, RET, ..] => Some(ON_TOP),
        // jb; mov %r15,%rdi; test $15,%spl: a function that may use the reserved part of the stack
        // compares the stack pointer, before the poll.
        [0x0f, 0x82, _, _, _, _, 0x49, 0x8b, 0xff, 0x40, 0xf6, 0xc4, 0x0f, ..] => Some(ON_TOP),
        // mov $address,%r10; mov %r10,N(%r15); jmp: the rest of the poll
        [0x49, 0xba, _, _, _, _, _, _, _, _, 0x4d, 0x89, 0x97, _, _, _, _, JMP_RELATIVE, ..] => {
            Some(ON_TOP)
        }
        _ => None,
    })
}

/// The number of bytes of code in which [`is_in_comparison`] looks for an end at once, and how
/// often it does. The comparison of strings with AVX2 has 284 bytes from the push on.
const PART: usize = 32;
const PARTS: u32 = 11;

/// Whether the run-time address `pc` may be in a comparison of strings, which the compiler for
/// servers makes in the middle of a function, between a push and a pop: pop %rax; jmp over pop %rcx
/// (`C2_MacroAssembler::string_compare` in the OpenJDK source). The frame is eight bytes larger
/// there.
#[inline(never)]
fn is_in_comparison<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    const END: [u8; 4] = [0x58, JMP_SHORT, 1, 0x59];
    let mut at = pc;
    for _ in 0..PARTS {
        let mut part = [0; PART];
        if read_code(at, &mut part, memory).is_none() {
            break;
        }
        if find(&part, &END).is_some() {
            return true;
        }
        at = at.wrapping_add(const { (PART - (END.len() - 1)) as u64 });
    }
    false
}

/// The bytes by which the code at the run-time address `pc` has lowered the stack pointer for a
/// call, if it raises it again and jumps back. 0 if other code is there: an instruction without an
/// operand at the stack pointer that is no mov and no lea, or more than `MOST_OTHERS` of these.
///
/// The compiler for servers makes such code apart from the function's other code, for the barriers
/// of garbage collectors (`SaveLiveRegisters` in the OpenJDK source). It saves up to 15 registers
/// of 8 bytes and 32 larger ones.
#[inline(never)]
pub fn lowered_for_call<S: Source + ?Sized>(pc: u64, memory: &S) -> i32 {
    let mut pc = pc;
    let mut raised = 0i32;
    let mut others = MOST_OTHERS;
    for _ in 0..MOST_SAVES {
        let read = memory.spend(DECODING).and_then(|()| memory.read(pc));
        let Ok::<[u8; DECODED], _>(code) = read else {
            break;
        };
        let Some((len, effect)) = instruction(&code) else {
            break;
        };
        match (effect, code) {
            (Effect::AddSp(bytes), _) => raised = raised.wrapping_add(bytes),
            (Effect::Jump(_), _) => return raised.max(0),
            (Effect::Call, _) => {}
            // The SIB byte of (%rsp), after prefixes, opcode and ModRM byte; and vzeroupper
            (
                Effect::Other,
                [_, _, _, 0x24, ..]
                | [_, _, _, _, 0x24, ..]
                | [_, _, _, _, _, 0x24, ..]
                | [0xc5, 0xf8, 0x77, ..],
            ) => {}
            // mov and lea after a prefix
            (Effect::Other | Effect::Local, [_, 0x89 | 0x8b | 0x8d | 0xb8..=0xbf, ..])
                if others != 0 =>
            {
                others = others.wrapping_sub(1);
            }
            _ => break,
        }
        pc = pc.wrapping_add(len);
    }
    0
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sframe::{
        runtimes::{
            self,
            code::tests::Memories,
            hotspot_interpreter::LOCALS,
            Region, //
        },
        unwind::step::{
            Words,
            LOST_FP, //
        }, //
    };
    use std::vec;

    const HEAP: u64 = 0x7f00_0000;
    const MAP: u64 = 0x7e00_0000;
    pub(in crate::sframe::runtimes) const STACK: u64 = 0x8000_0000;
    const PROGRAM: u64 = 0x40_0000;
    /// Segments of 128 bytes. A block of 12 segments starts at segment 4.
    const BLOCK: u64 = HEAP + 4 * 128;
    const BLOB: u64 = BLOCK + 16;
    pub(in crate::sframe::runtimes) const CODE: u64 = BLOB + 256;
    /// The end of the prologue, from the start of the code.
    const COMPLETE: u64 = 64;
    /// The return address in the program, and one in the interpreter.
    pub(in crate::sframe::runtimes) const CALLER: u64 = PROGRAM + 0x100;
    pub(in crate::sframe::runtimes) const INTERPRETER: u64 = HEAP + 0x3000;

    /// The register of the local variables.
    pub(in crate::sframe::runtimes) struct Locals(pub(in crate::sframe::runtimes) u64);

    impl RegisterSource for Locals {
        fn register(&self, number: u8) -> Option<u64> {
            (number == LOCALS).then_some(self.0)
        }
    }

    fn heap() -> CodeHeap {
        CodeHeap {
            start: HEAP,
            segment_map: MAP,
            interpreter_start: INTERPRETER,
            interpreter_len: 0x1000,
            kind_mask: 0xff,
            frameless_kinds: [3, 4, 4, 4],
            segment_log2: 7,
            used_offset: 8,
            blob_offset: 16,
            frame_size_offset: 24,
            frame_complete_offset: 32,
            frame_complete_is_short: false,
            code_offset: 40,
            code_is_address: true,
            kind_offset: 48,
        }
    }

    /// A process with one compiled function, whose frame has `words` words.
    pub(in crate::sframe::runtimes) fn process(words: u32, prologue: &[u8]) -> Memories {
        let parts = [HEAP, MAP, STACK, PROGRAM];
        let mut memory = Memories(parts.map(|start| (start, vec![0; 0x4000])).into());
        memory.write(MAP, &[u8::MAX; 32]);
        for segment in 0..12 {
            memory.write(MAP + 4 + segment, &[segment as u8]);
        }
        memory.write(BLOCK + 8, &[1]);
        memory.write(BLOB + 24, &words.to_le_bytes());
        memory.write(BLOB + 32, &(COMPLETE as u32).to_le_bytes());
        memory.word(BLOB + 40, CODE);
        memory.word(BLOB + 48, 0xffff_ff01);
        memory.write(CODE, &[0x90; 0x200]);
        memory.write(CODE + COMPLETE - prologue.len() as u64, prologue);
        // call *%rax
        memory.write(CALLER - 2, &[0xff, 0xd0]);
        memory
    }

    pub(in crate::sframe::runtimes) fn step<R: RegisterSource>(
        region: &Region,
        frame: &Frame,
        registers: Option<&R>,
        memory: &Memories,
    ) -> Option<Frame> {
        match runtimes::step(region, 0..u64::MAX, frame, registers, memory)? {
            Step::Caller(caller) => Some(caller),
            Step::Outermost => None,
        }
    }

    pub(in crate::sframe::runtimes) fn frame(pc: u64) -> Frame {
        Frame {
            pc,
            sp: STACK + 0x100,
            fp: STACK + 0x180,
        }
    }

    pub(in crate::sframe::runtimes) fn step_in(
        pc: u64,
        innermost: bool,
        memory: &Memories,
    ) -> Option<Frame> {
        let registers = innermost.then_some(&Locals(STACK + 0x150));
        step(&Region::CodeHeap(heap()), &frame(pc), registers, memory)
    }

    pub(in crate::sframe::runtimes) fn to(step: Option<Frame>) -> Option<(u64, u64)> {
        step.map(|frame| (frame.sp - STACK, frame.fp))
    }

    /// push %rbp; sub $0x30,%rsp; cmpl $1,0x20(%r15); jne
    pub(in crate::sframe::runtimes) const PUSHES: [u8; 19] = [
        0x55, 0x48, 0x83, 0xec, 0x30, 0x41, 0x81, 0x7f, 0x20, 1, 0, 0, 0, 0x0f, 0x85, 0, 1, 0, 0,
    ];
    /// sub $0x38,%rsp; mov %rbp,0x30(%rsp)
    const SUBTRACTS: [u8; 12] = [
        0x48, 0x81, 0xec, 0x38, 0, 0, 0, 0x48, 0x89, 0x6c, 0x24, 0x30,
    ];

    #[test]
    fn a_compiled_frame_has_the_size_that_its_blob_tells() {
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x138, CALLER);
        memory.word(STACK + 0x130, 0x77);
        let whole = Some((0x140, 0x77));
        for pc in [CODE + 0x50, CODE + 0x100, CODE + 0x180] {
            assert_eq!(to(step_in(pc, false, &memory)), whole);
            assert_eq!(to(step_in(pc, true, &memory)), whole);
        }
        // The call is the last instruction of the block.
        assert_eq!(to(step_in(BLOCK + 12 * 128, false, &memory)), whole);
        assert_eq!(step_in(BLOCK + 12 * 128, true, &memory), None);
        // Not after a call.
        memory.word(STACK + 0x138, CALLER + 1);
        assert_eq!(step_in(CODE + 0x100, false, &memory), None);
        // A poll: test %eax,(%rcx); test %eax,(%r10)
        memory.write(CALLER + 1, &[0x85, 0x01]);
        assert_eq!(to(step_in(CODE + 0x100, false, &memory)), whole);
        memory.write(CALLER + 1, &[0x41, 0x85, 0x02]);
        assert_eq!(to(step_in(CODE + 0x100, false, &memory)), whole);
        assert_eq!(step_in(CODE + 0x100, true, &memory), None);
        // A handler of deoptimisation of either compiler, and the same instructions with another
        // address.
        memory.write(CALLER + 1, &[CALL_RELATIVE, 0, 0, 0, 0, 0x48, 0x83, 0x2c]);
        assert_eq!(to(step_in(CODE + 0x100, false, &memory)), whole);
        assert_eq!(to(step_in(CODE + 0x100, true, &memory)), whole);
        memory.write(CALLER + 1, &[CALL_RELATIVE, 1]);
        assert_eq!(step_in(CODE + 0x100, false, &memory), None);
        memory.write(CALLER + 1, &[0x49, 0xba]);
        memory.word(CALLER + 3, CALLER + 1);
        assert_eq!(to(step_in(CODE + 0x100, false, &memory)), whole);
        memory.word(CALLER + 3, CALLER);
        assert_eq!(step_in(CODE + 0x100, false, &memory), None);
        memory.word(STACK + 0x138, INTERPRETER + 8);
        assert_eq!(to(step_in(CODE + 0x100, false, &memory)), whole);
        // The block is free, or was never allocated.
        memory.write(BLOCK + 8, &[0]);
        assert_eq!(step_in(CODE + 0x100, false, &memory), None);
        assert_eq!(step_in(HEAP + 0x50, false, &memory), None);
    }

    #[test]
    fn the_fast_path_takes_the_steps_of_compiled_code_and_of_a_fixed_rule() {
        const WORDS: u64 = 6;
        const RETURN: u64 = CODE + 0x110;
        let mut memory = process(WORDS as u32, &PUSHES);
        // call *%rax
        memory.write(RETURN - 2, &[0xff, 0xd0]);
        for count in 1..=5 {
            let sp = STACK + 0x100 + count * 8 * WORDS;
            let caller = if count == 5 { CALLER } else { RETURN };
            memory.word(sp - 8, caller);
            memory.word(sp - 16, STACK + count);
        }
        let walked = |region: Region, memory: &Memories, most: usize| {
            let mut buffer = [0; 8];
            let mut last = frame(RETURN);
            let code = HEAP..HEAP + 0x4000;
            let buffer = &mut buffer[..most];
            let found =
                runtimes::run_fast(&region, code, &mut last, memory, &Words(memory), buffer);
            assert!(buffer[..found].iter().all(|pc| *pc == RETURN));
            (found, last.sp - STACK - 0x100, last.fp)
        };
        let hotspot = Region::CodeHeap(heap());
        let fixed = |cfa, fp| Region::Fixed(FixedRule::new(cfa, fp));
        let size = 8 * WORDS as i32;
        // The caller of the last frame is outside of the heap, and is left to `step`.
        for region in [hotspot, fixed(size, -16)] {
            assert_eq!(walked(region, &memory, 8), (4, 4 * 8 * WORDS, STACK + 4));
            assert_eq!(walked(region, &memory, 3), (3, 3 * 8 * WORDS, STACK + 3));
        }
        let unchanged = (4, 4 * 8 * WORDS, frame(RETURN).fp);
        assert_eq!(walked(fixed(size, 0), &memory, 8), unchanged);
        // Such a step is left to `step`, or proves nothing.
        for cfa in [0, -8, 4, size + 4, i32::MIN] {
            assert_eq!(walked(fixed(cfa, 0), &memory, 8).0, 0);
        }
        assert_eq!(walked(Region::Stop, &memory, 8).0, 0);
        // A saved frame pointer of 0 looks like a read that failed.
        memory.word(STACK + 0x100 + 3 * 8 * WORDS - 16, 0);
        // call *%rax; call *(%rbx); call *0x18(%rbx), which is left to `step`; no call.
        for (code, found) in [
            ([0x90, 0xff, 0xd0], 2),
            ([0x90, 0xff, 0x13], 2),
            ([0xff, 0x53, 0x18], 0),
            ([0x90; 3], 0),
        ] {
            memory.write(RETURN - 3, &code);
            for region in [hotspot, fixed(size, -16)] {
                assert_eq!(walked(region, &memory, 8).0, found);
            }
        }
        // A free block.
        memory.write(RETURN - 2, &[0xff, 0xd0]);
        memory.write(BLOCK + 8, &[0]);
        assert_eq!(walked(hotspot, &memory, 8).0, 0);
    }

    #[test]
    fn the_prologue_tells_how_much_of_the_frame_exists() {
        let on_top = Some((0x108, STACK + 0x180));
        let pushed = Some((0x110, 0x66));
        let whole = Some((0x140, 0x77));
        let stack = |memory: &mut Memories| {
            memory.word(STACK + 0x138, CALLER);
            memory.word(STACK + 0x130, 0x77);
            memory.word(STACK + 0x100, CALLER);
        };
        let mut memory = process(8, &PUSHES);
        stack(&mut memory);
        let first = CODE + COMPLETE - PUSHES.len() as u64;
        assert_eq!(to(step_in(CODE, true, &memory)), on_top);
        assert_eq!(to(step_in(first, true, &memory)), on_top);
        assert_eq!(to(step_in(first + 5, true, &memory)), whole);
        assert_eq!(to(step_in(first + 13, true, &memory)), whole);
        memory.word(STACK + 0x100, 0x66);
        memory.word(STACK + 0x108, CALLER);
        assert_eq!(to(step_in(first + 1, true, &memory)), pushed);

        // The second entry, after the end of the first prologue.
        let osr = CODE + 0x100;
        memory.write(osr, &[0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff]);
        memory.write(osr + 7, &PUSHES);
        assert_eq!(to(step_in(osr + 8, true, &memory)), pushed);
        assert_eq!(to(step_in(osr + 12, true, &memory)), whole);
        memory.word(STACK + 0x100, CALLER);
        assert_eq!(to(step_in(osr, true, &memory)), on_top);
        assert_eq!(to(step_in(osr + 7, true, &memory)), on_top);

        let mut memory = process(8, &SUBTRACTS);
        stack(&mut memory);
        let first = CODE + COMPLETE - SUBTRACTS.len() as u64;
        assert_eq!(to(step_in(first, true, &memory)), on_top);
        let unsaved = Some((0x140, STACK + 0x180));
        assert_eq!(to(step_in(first + 7, true, &memory)), unsaved);
        assert_eq!(to(step_in(first + 12, true, &memory)), whole);
        // A stub without an end of the prologue: sub $8,%rsp; mov %rbp,(%rsp)
        let mut memory = process(2, &SUBTRACTS);
        memory.write(BLOB + 32, &(-1i32).to_le_bytes());
        memory.word(STACK + 0x100, 0x77);
        memory.word(STACK + 0x108, CALLER);
        assert_eq!(step_in(CODE + 0x50, true, &memory), None);
        memory.write(
            CODE,
            &[0x48, 0x81, 0xec, 8, 0, 0, 0, 0x48, 0x89, 0x2c, 0x24],
        );
        assert_eq!(to(step_in(CODE + 0x50, true, &memory)), Some((0x110, 0x77)));
        assert_eq!(to(step_in(CODE + 11, true, &memory)), Some((0x110, 0x77)));
        let unsaved = Some((0x110, STACK + 0x180));
        assert_eq!(to(step_in(CODE + 7, true, &memory)), unsaved);
        // pop %rbp; pop %rdx; jmp *%r10. The return address is on top of the stack, and then in a
        // register.
        memory.write(CODE + 0x60, &[0x5d, 0x5a, 0x41, 0xff, 0xe2]);
        assert_eq!(step_in(CODE + 0x62, true, &memory), None);
        memory.word(STACK + 0x100, CALLER);
        assert_eq!(to(step_in(CODE + 0x61, true, &memory)), on_top);
        assert_eq!(to(step_in(CODE, true, &memory)), on_top);
        // Without the instructions that belong to a frame of this size, the step cannot be trusted.
        let memory = process(9, &PUSHES);
        assert_eq!(step_in(CODE, true, &memory), None);
    }

    /// mov 0x538(%r15),%rsp; push %rax
    const BARRIER: [u8; 8] = [0x49, 0x8b, 0xa7, 0x38, 5, 0, 0, 0x50];

    #[test]
    fn a_virtual_thread_returns_to_a_barrier() {
        // The last frame on the stack.
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x138, PROGRAM + 0x200);
        memory.word(STACK + 0x130, 0x77);
        assert_eq!(step_in(CODE + 0x100, false, &memory), None);
        memory.write(PROGRAM + 0x200, &BARRIER);
        let found = Some((0x140, 0x77));
        assert_eq!(to(step_in(CODE + 0x100, false, &memory)), found);
        assert_eq!(to(step_in(CODE + 0x100, true, &memory)), found);

        // The barrier, with the frame of the thread's start directly above, or after arguments.
        for (arguments, words, distance) in
            [(0, 0, 0), (0, 1, 16), (0, 30, 240), (1, 1, 16), (3, 4, 32)]
        {
            let mut memory = process(0, &PUSHES);
            memory.write(CODE + 0x40, &BARRIER);
            for word in 0..words {
                memory.word(STACK + 0x100 + 8 * word, 0x1234_5678_0001);
            }
            let entry = STACK + 0x100 + distance;
            memory.word(entry + 32, (arguments << 32) | 1);
            memory.word(entry + 64, 0x77);
            assert_eq!(step_in(CODE + 0x40, false, &memory), None);
            memory.word(entry + 72, CALLER);
            let found = Some((0x100 + distance + 80, 0x77));
            assert_eq!(to(step_in(CODE + 0x40, false, &memory)), found);
            // The innermost frame has returned to the barrier.
            assert_eq!(step_in(CODE + 0x40, true, &memory), None);
            // An interpreted method started the thread.
            memory.word(entry + 72, INTERPRETER + 8);
            assert_eq!(to(step_in(CODE + 0x40, false, &memory)), found);
            // The number of arguments, or the flags, are of something else.
            for other in [2, (9 << 32) | 1] {
                memory.word(entry + 32, other);
                assert_eq!(step_in(CODE + 0x40, false, &memory), None);
            }
        }
        let mut memory = process(0, &PUSHES);
        memory.write(CODE + 0x40, &BARRIER);
        memory.word(STACK + 0x200 + 72, CALLER);
        assert_eq!(step_in(CODE + 0x40, false, &memory), None);
    }

    /// The registers of an adapter.
    struct Adapter {
        rax: u64,
        sender_sp: u64,
    }

    impl RegisterSource for Adapter {
        fn register(&self, number: u8) -> Option<u64> {
            match number {
                RAX => Some(self.rax),
                SENDER_SP => Some(self.sender_sp),
                _ => None,
            }
        }
    }

    #[test]
    fn no_step_is_taken_while_frames_are_replaced() {
        // add $8,%rsp; mov (%rdi),%ecx; add %rcx,%rsp; mov 48(%rdi),%rbp; mov 24(%rdi),%rcx; add
        // $8,%rsp; mov 16(%rdi),%rsi; mov 8(%rdi),%edx; mov %rsp,%r8; mov 4(%rdi),%ebx; sub
        // %rbx,%rsp; mov (%rsi),%rbx; sub $16,%rbx; push (%rcx); push %rbp; mov %rsp,%rbp; sub
        // %rbx,%rsp; mov %r8,-8(%rbp); movq $0,-16(%rbp); mov %rsp,%r8; add $8,%rsi; add $8,%rcx;
        // dec %edx; jne; push (%rcx); push %rbp; mov %rsp,%rbp; sub $0,%rsp; vzeroupper
        const CODE_OF_STUB: [u8; 95] = [
            0x48, 0x83, 0xc4, 8, 0x8b, 0x0f, 0x48, 0x03, 0xe1, 0x48, 0x8b, 0x6f, 0x30, 0x48, 0x8b,
            0x4f, 0x18, 0x48, 0x83, 0xc4, 8, 0x48, 0x8b, 0x77, 0x10, 0x8b, 0x57, 8, 0x4c, 0x8b,
            0xc4, 0x8b, 0x5f, 4, 0x48, 0x2b, 0xe3, 0x48, 0x8b, 0x1e, 0x48, 0x83, 0xeb, 0x10, 0x48,
            0xff, 0x31, 0x55, 0x48, 0x8b, 0xec, 0x48, 0x2b, 0xe3, 0x4c, 0x89, 0x45, 0xf8, 0x48,
            0xc7, 0x45, 0xf0, 0, 0, 0, 0, 0x4c, 0x8b, 0xc4, 0x48, 0x83, 0xc6, 8, 0x48, 0x83, 0xc1,
            8, 0xff, 0xca, 0x75, 0xd4, 0x48, 0xff, 0x31, 0x55, 0x48, 0x8b, 0xec, 0x48, 0x83, 0xec,
            0, 0xc5, 0xf8, 0x77,
        ];
        let mut memory = process(2, &PUSHES);
        let at = CODE + 0x100;
        memory.write(at, &CODE_OF_STUB);
        for word in 0..4 {
            memory.word(STACK + 0x100 + 8 * word, CALLER);
        }
        for offset in 0..CODE_OF_STUB.len() as u64 {
            assert_eq!(step_in(at + offset, true, &memory), None, "{offset}");
        }
        // After it, the last of the new frames is the caller.
        let found = to(step_in(at + 0x70, true, &memory));
        assert_eq!(found, Some((0x110, CALLER)));
    }

    #[test]
    fn an_adapter_makes_space_for_arguments() {
        let mut memory = process(0, &PUSHES);
        memory.word(BLOB + 48, 3);
        memory.word(STACK + 0x100, CALLER);
        // The registers are set: lea 8(%rsp),%r13; pop %rax; sub $0x50,%rsp; push %rax. Otherwise
        // they have other values.
        for (rax, sender_sp, expected) in [
            (CALLER, 0x158, 0x158),
            (CALLER, 0x108, 0x108),
            (CALLER, 0xf0, 0x108),
            (CALLER, 0x908, 0x908),
            (CALLER, 0x910, 0x108),
            (CALLER + 1, 0x158, 0x108),
        ] {
            let sender_sp = STACK + sender_sp;
            let registers = Adapter { rax, sender_sp };
            let region = Region::CodeHeap(heap());
            let found = step(&region, &frame(CODE), Some(&registers), &memory);
            assert_eq!(to(found), Some((expected, STACK + 0x180)));
        }
    }

    #[test]
    fn the_epilogue_removes_the_frame() {
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x100, CALLER);
        let on_top = Some((0x108, STACK + 0x180));
        let pc = CODE + 0x100;
        for code in [
            &[RET][..],
            &[0x49, 0x3b, 0x67, 0x28],
            &[0x0f, 0x87, 1, 2, 3, 4, RET],
            &[0x0f, 0x85, 1, 2, 3, 4, RET],
            &[0x49, 0x83, 0x7f, 8, 0, 0x0f, 0x85, 1, 2, 3, 4, RET],
            &[
                0x0f, 0x82, 0x3d, 0, 0, 0, 0x49, 0x8b, 0xff, 0x40, 0xf6, 0xc4, 0x0f,
            ],
            &[0x41, 0xf6, 0x47, 0x28, 1, 0x74, 22, 0x49, 0xba],
            &[0x74, 22, 0x49, 0xba],
            &[
                0x49,
                0xba,
                1,
                2,
                3,
                4,
                5,
                6,
                7,
                8,
                0x4d,
                0x89,
                0x97,
                1,
                2,
                3,
                4,
                JMP_RELATIVE,
            ],
            &[0x4d, 0x89, 0x97, 1, 2, 3, 4, JMP_RELATIVE],
        ] {
            memory.write(pc, code);
            assert_eq!(to(step_in(pc, true, &memory)), on_top);
        }
        // mov $address,%r10; mov %r10,offset(%r15); mov %rsp,offset(%r15): the wrapper of a native
        // method stores its place.
        memory.word(STACK + 0x138, CALLER);
        memory.word(STACK + 0x130, 0x77);
        memory.write(
            pc,
            &[
                0x49, 0xba, 1, 2, 3, 4, 5, 6, 7, 8, 0x4d, 0x89, 0x97, 1, 2, 3, 4, 0x49, 0x89, 0xa7,
            ],
        );
        assert_eq!(to(step_in(pc, true, &memory)), Some((0x140, 0x77)));
        // pop %rbp; jmp; or mov 0x5d(%rdx),%eax; jmp
        memory.write(pc - 1, &[0x5d, JMP_RELATIVE]);
        assert_eq!(step_in(pc, true, &memory), None);
        // add $48,%rsp; pop %rbp; jmp
        memory.write(pc - 5, &[0x48, 0x83, 0xc4, 48]);
        assert_eq!(to(step_in(pc, true, &memory)), on_top);
        memory.write(pc - 8, &[0x48, 0x81, 0xc4, 48, 0, 0, 0]);
        assert_eq!(to(step_in(pc, true, &memory)), on_top);
        memory.write(pc, &[0x5d]);
        memory.word(STACK + 0x100, 0x66);
        memory.word(STACK + 0x108, CALLER);
        assert_eq!(to(step_in(pc, true, &memory)), Some((0x110, 0x66)));
    }

    #[test]
    fn arguments_on_the_stack_make_the_frame_larger() {
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x138, CALLER);
        memory.word(STACK + 0x130, 0x77);
        let pc = CODE + 0x100;
        // push %rsi; push %rdi; call; pop %rsi; pop %rsi
        memory.write(pc, &[0x56, 0x57, CALL_RELATIVE, 1, 2, 3, 4, 0x5e, 0x5e]);
        let whole = Some((0x140, 0x77));
        for offset in [0, 9] {
            assert_eq!(to(step_in(pc + offset, true, &memory)), whole, "{offset}");
        }
        for offset in [1, 2, 7, 8] {
            assert_eq!(step_in(pc + offset, true, &memory), None, "{offset}");
        }
    }

    #[test]
    fn a_comparison_of_strings_has_pushed_a_word() {
        // pop %rax; jmp over pop %rcx; pop %rcx
        const END: [u8; 4] = [0x58, JMP_SHORT, 1, 0x59];
        let mut memory = process(8, &PUSHES);
        memory.words(STACK + 0x130, &[0x66, 0x77, CALLER]);
        let pc = CODE + 0x60;
        let pushed = Some((0x148, 0x77));
        for distance in [0, 1, 28, 29, 57, 283, 318] {
            let mut memory = memory.clone();
            assert_eq!(step_in(pc, true, &memory), None, "{distance}");
            memory.write(pc + distance, &END);
            assert_eq!(to(step_in(pc, true, &memory)), pushed, "{distance}");
            // The end is behind the PC.
            assert_eq!(step_in(pc + distance + 1, true, &memory), None);
        }
        // Ahead of the push.
        let mut other = memory.clone();
        other.write(pc + 100, &END);
        other.words(STACK + 0x130, &[0x66, CALLER, CALLER]);
        assert_eq!(to(step_in(pc, true, &other)), Some((0x140, 0x66)));
        memory.write(pc + 319, &END);
        assert_eq!(step_in(pc, true, &memory), None);
        memory.write(pc + 100, &END);
        memory.word(STACK + 0x140, CALLER + 1);
        assert_eq!(step_in(pc, true, &memory), None);
    }

    #[test]
    fn registers_are_saved_below_the_frame_for_a_call() {
        // A barrier of a garbage collector: sub $0x50,%rsp; vmovq %xmm0,0x48(%rsp); mov
        // %rsi,(%rsp); mov %r15,%rsi; call; mov (%rsp),%rsi; vmovq 0x48(%rsp),%xmm0; add
        // $0x50,%rsp; jmp
        const CODE_OF_BARRIER: [&[u8]; 9] = [
            &[0x48, 0x83, 0xec, 0x50],
            &[0xc5, 0xf9, 0xd6, 0x44, 0x24, 0x48],
            &[0x48, 0x89, 0x34, 0x24],
            &[0x49, 0x8b, 0xf7],
            &[CALL_RELATIVE, 0, 0, 0, 0x10],
            &[0x48, 0x8b, 0x34, 0x24],
            &[0xc5, 0xfa, 0x7e, 0x44, 0x24, 0x48],
            &[0x48, 0x83, 0xc4, 0x50],
            &[JMP_RELATIVE, 0, 0xff, 0xff, 0xff],
        ];
        let mut memory = process(8, &PUSHES);
        memory.write(CODE + 0x100, &CODE_OF_BARRIER.concat());
        // A word that the function has left in its frame looks like a return address.
        memory.words(STACK + 0x130, &[0x66, CALLER]);
        memory.words(STACK + 0x180, &[0x77, CALLER]);
        let (whole, larger) = (Some((0x140, 0x66)), Some((0x190, 0x77)));
        let mut pc = CODE + 0x100;
        for (number, instruction) in CODE_OF_BARRIER.iter().enumerate() {
            let expected = if matches!(number, 1..=7) {
                larger
            } else {
                whole
            };
            assert_eq!(to(step_in(pc, true, &memory)), expected, "{number}");
            // It has called.
            if number == 5 {
                assert_eq!(to(step_in(pc, false, &memory)), larger);
                // pop %rbp in place of jmp: the function frees its own frame.
                let mut other = memory.clone();
                other.write(CODE + 0x100 + 36, &[0x5d]);
                assert_eq!(to(step_in(pc, false, &other)), whole);
                // vzeroupper, which HotSpot makes on some CPUs, and kmovq 0x40(%rsp),%k1
                let mut restores = std::vec![0xc5, 0xf8, 0x77];
                restores.extend([0xc4, 0xe1, 0xf8, 0x90, 0x4c, 0x24, 0x40]);
                restores.extend(CODE_OF_BARRIER[5..].concat());
                other.write(pc, &restores);
                assert_eq!(to(step_in(pc, false, &other)), larger);
                other = memory.clone();
                // Six times mov %r15,%rsi, seven times, and another instruction: nop
                for (others, last, expected) in [(6, 0, larger), (7, 0, whole), (0, 1, whole)] {
                    let mut code = [0x49, 0x8b, 0xf7].repeat(others);
                    code.extend([0x90].repeat(last));
                    code.push(JMP_RELATIVE);
                    other.write(CODE + 0x100 + 36, &code);
                    assert_eq!(to(step_in(pc, false, &other)), expected, "{others}");
                }
            }
            pc += instruction.len() as u64;
        }
    }

    #[test]
    fn stubs_have_no_frame_or_a_frame_pointer() {
        let mut memory = process(0, &PUSHES);
        // The frame pointer is believed if the return address is after a call of this stub.
        memory.word(STACK + 0x180, 0x99);
        memory.word(STACK + 0x188, CALLER);
        assert_eq!(step_in(CODE, true, &memory), None);
        assert_eq!(to(step_in(CODE, false, &memory)), Some((0x190, 0x99)));
        // A frame pointer of another stack, and one of a frame that is gone.
        for sp in [STACK + 0x180 - 0x1_0008, STACK + 0x188] {
            let frame = Frame { sp, ..frame(CODE) };
            let region = Region::CodeHeap(heap());
            assert_eq!(step(&region, &frame, None::<&Locals>, &memory), None);
        }
        let call = |memory: &mut Memories, from: u64, to: u64| {
            memory.write(from - 5, &[CALL_RELATIVE]);
            memory.write(from - 4, &(to.wrapping_sub(from) as u32).to_le_bytes());
        };
        memory.word(STACK + 0x188, HEAP + 0x2000);
        call(&mut memory, HEAP + 0x2000, CODE + 0x20);
        assert_eq!(to(step_in(CODE, true, &memory)), Some((0x190, 0x99)));
        call(&mut memory, HEAP + 0x2000, HEAP + 0x1000);
        assert_eq!(step_in(CODE, true, &memory), None);
        // The stub has pushed a word before the frame pointer.
        memory.word(STACK + 0x188, u64::MAX);
        memory.word(STACK + 0x190, CALLER);
        assert_eq!(to(step_in(CODE, false, &memory)), Some((0x198, 0x99)));
        assert_eq!(step_in(CODE, true, &memory), None);
        memory.word(STACK + 0x190, HEAP + 0x2000);
        assert_eq!(step_in(CODE, true, &memory), None);
        call(&mut memory, HEAP + 0x2000, CODE + 0x20);
        assert_eq!(to(step_in(CODE, true, &memory)), Some((0x198, 0x99)));
        memory.word(STACK + 0x188, HEAP + 0x2000);
        // A call by register.
        let call_r10 = |memory: &mut Memories, from: u64, to: u64| {
            memory.write(from - 13, &[0x49, 0xba]);
            memory.word(from - 11, to);
            memory.write(from - 3, &[0x41, 0xff, 0xd2]);
        };
        call_r10(&mut memory, HEAP + 0x2000, CODE + 0x20);
        assert_eq!(to(step_in(CODE, true, &memory)), Some((0x190, 0x99)));
        call_r10(&mut memory, HEAP + 0x2000, HEAP + 0x1000);
        assert_eq!(step_in(CODE, true, &memory), None);
        memory.write(CODE, &[PUSH_RBP, 0x48, 0x8b, 0xec]);
        memory.word(STACK + 0x100, CALLER);
        assert_eq!(
            to(step_in(CODE, true, &memory)),
            Some((0x108, STACK + 0x180))
        );
        memory.word(STACK + 0x100, 0x88);
        memory.word(STACK + 0x108, CALLER);
        assert_eq!(to(step_in(CODE + 1, true, &memory)), Some((0x110, 0x88)));
        memory.word(BLOB + 48, 0x5503);
        memory.word(STACK + 0x100, CALLER);
        assert_eq!(
            to(step_in(CODE, true, &memory)),
            Some((0x108, STACK + 0x180))
        );
        assert_eq!(step_in(CODE, false, &memory), None);
    }

    #[test]
    fn the_interpreter_keeps_the_stack_pointer_of_the_caller() {
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x180, 0x99);
        memory.word(STACK + 0x188, CALLER);
        memory.word(STACK + 0x178, STACK + 0x1a0);
        let found = Some((0x1a0, 0x99));
        let pc = INTERPRETER + 0x20;
        assert_eq!(to(step_in(pc, false, &memory)), found);
        // The frame is of another method than the one that runs.
        assert_eq!(step_in(pc, true, &memory), None);
        memory.word(STACK + 0x180 - 56, STACK + 0x150);
        assert_eq!(to(step_in(pc, true, &memory)), found);
        memory.word(STACK + 0x180 - 56, (-6i64) as u64);
        assert_eq!(to(step_in(pc, true, &memory)), found);
        // The code of an intrinsic has no frame: the return address is on top of the stack, and the
        // registers are the caller's.
        memory.word(STACK + 0x100, INTERPRETER + 0x200);
        memory.word(STACK + 0x180 - 16, STACK + 0x108);
        assert_eq!(step_in(pc, true, &memory), None);
        // The frame has called nothing: an old return address, or one that has just been pushed for
        // a call.
        memory.word(STACK + 0x180 - 16, 0);
        assert_eq!(to(step_in(pc, true, &memory)), found);
        memory.word(STACK + 0x100, 0);
        // The caller's stack pointer would lie in the frame.
        memory.word(STACK + 0x178, STACK + 0x180);
        assert_eq!(step_in(pc, false, &memory), None);
    }

    #[test]
    fn the_interpreter_calls_code_of_its_own() {
        let mut memory = process(8, &PUSHES);
        let caller = INTERPRETER + 0x200;
        memory.word(STACK + 0x100, caller);
        memory.word(STACK + 0x180, 0x99);
        memory.word(STACK + 0x188, CALLER);
        memory.word(STACK + 0x178, STACK + 0x1a0);
        let pc = INTERPRETER + 0x100;
        // and $0xff,%eax; setne %al; ret
        memory.write(pc, &[0x25, 0xff, 0, 0, 0, 0x0f, 0x95, 0xc0, RET]);
        // call *%r11
        memory.write(caller - 3, &[0x41, 0xff, 0xd3]);
        for offset in [0, 5, 8] {
            let found = step_in(pc + offset, true, &memory).unwrap();
            assert_eq!((found.pc, found.sp - STACK), (caller, 0x108));
            assert_eq!(found.fp, STACK + 0x180);
        }
        memory.write(pc, &[0x0f, 0xbe, 0xc0, RET]);
        assert_eq!(to(step_in(pc, true, &memory)), Some((0x108, STACK + 0x180)));
        // The return from a call of the next instructions: the method's caller is found.
        memory.write(caller - 5, &[CALL_RELATIVE, 5, 0, 0, 0]);
        assert_eq!(to(step_in(pc + 3, true, &memory)), Some((0x1a0, 0x99)));
    }

    #[test]
    fn a_lost_frame_pointer_leads_nowhere() {
        let mut memory = process(0, &PUSHES);
        memory.word(STACK + 0x180, 0x99);
        memory.word(STACK + 0x188, CALLER);
        memory.word(STACK + 0x178, STACK + 0x1a0);
        let from = |memory: &Memories, pc, fp| {
            let frame = Frame { fp, ..frame(pc) };
            to(step(
                &Region::CodeHeap(heap()),
                &frame,
                None::<&Locals>,
                memory,
            ))
        };
        // A stub, and the interpreter.
        for (pc, sp) in [(CODE, 0x190), (INTERPRETER + 0x20, 0x1a0)] {
            assert_eq!(from(&memory, pc, STACK + 0x180), Some((sp, 0x99)));
            assert_eq!(from(&memory, pc, LOST_FP), None);
        }
        // The frame of a compiled function does not need the frame pointer, and its caller saved
        // its own.
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x138, CALLER);
        memory.word(STACK + 0x130, 0x77);
        let pc = CODE + 0x100;
        let found = from(&memory, pc, STACK + 0x180);
        assert!(found.is_some());
        assert_eq!(from(&memory, pc, LOST_FP), found);
        // A rule that leaves the register alone.
        let fixed = Region::Fixed(FixedRule::new(0x40, 0));
        let frame = Frame {
            fp: LOST_FP,
            ..frame(CODE)
        };
        let found = step(&fixed, &frame, None::<&Locals>, &memory);
        assert_eq!(to(found), Some((0x140, LOST_FP)));
    }

    #[test]
    fn hostile_heaps_end_the_search() {
        let mut memory = process(8, &PUSHES);
        // Each hop leads one segment down, and never to a start.
        memory.write(MAP, &[1; 0x4000]);
        assert_eq!(step_in(HEAP + 0x3000 - 1, true, &memory), None);
        for byte in 0..=255 {
            memory.write(MAP, &[byte; 0x4000]);
            for log2 in [0, 3, 7, 63] {
                let mut heap = heap();
                heap.segment_log2 = log2;
                heap.interpreter_len = 0;
                for address in [HEAP, HEAP + 0x2fff, u64::MAX, 0] {
                    let frame = frame(address);
                    let region = Region::CodeHeap(heap);
                    let step = step(&region, &frame, None::<&Locals>, &memory);
                    assert_eq!(step, None);
                }
            }
        }
        // Sizes of frames that cannot be.
        for words in [-1i32, 1, i32::MAX, i32::MIN, 1 << 28] {
            let memory = process(words as u32, &PUSHES);
            assert_eq!(step_in(CODE + 0x100, false, &memory), None);
            assert_eq!(step_in(CODE + 0x100, true, &memory), None);
        }
    }
}
