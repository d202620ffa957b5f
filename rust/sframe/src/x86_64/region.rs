// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step from code that a runtime made, by a region that somebody has registered for the process.
//!
//! A region tells how its frames are laid out. Its description and the memory of the process are not trusted. A
//! step is accepted only if it leads behind a call; to a poll, a handler of deoptimisation or the return barrier of
//! HotSpot's; into HotSpot's interpreter; or to where processes of Erlang end.
//!
//! Words are eight bytes. HotSpot's names are those of the OpenJDK source: a code heap consists of segments; a
//! block is some segments with a `HeapBlock` at its start, and a `CodeBlob` behind the `HeapBlock`.

use crate::sframe::{
    format::bytes::Source,
    unwind::step::{
        Frame,
        Memory,
        RegisterSource,
        Step,
        WordReader, //
    },
    x86_64::{
        ahead::lowered_for_call,
        erlang::ErlangCode,
        fallback::{
            behind_call,
            is_behind_call, //
        },
        insn::{
            CALL_RELATIVE,
            GROUP_5,
            JMP_RELATIVE,
            LEAVE,
            POP_RBP,
            PUSH_RBP,
            RET, //
        },
        prologue::{
            FrameRule,
            ON_TOP,
            PUSHED, //
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
use core::ops::Range;

/// The most hops in a code heap's segment map. Each hop passes at most 254 segments.
const HOPS: u32 = 64;
/// The most work of a step of [`walk`], in instructions.
const STEP: u32 = 240;
/// The maximum size of a compiled frame, in bytes.
const MAX_FRAME: i32 = 1 << 20;
/// The work of looking for instructions in eight bytes of code, in instructions.
const SEARCH: u32 = 200;
/// The bytes in front of the end of a prologue in which the prologue is searched.
const WINDOW: usize = 64;
/// The bytes in front of the PC, and the bytes in front of it and behind it, that show a prologue or an epilogue.
const BEFORE: usize = 16;
const NEAR: usize = BEFORE + 24;
/// The bytes in front of the PC that show the state of the interpreter. Between two parts of its code are more bytes.
const IN_FRONT: usize = 32;
/// The bytes from the removal of an interpreted frame to the jump to the caller; at most.
const MAX_END: usize = 48;
/// The bytes from the beginning of an interpreted method to the end of [`POP`], at most.
const MAX_BEGINNING: usize = 72;
/// The size of the frame of a stub that keeps a frame pointer, in bytes, at most.
const MAX_STUB_FRAME: u64 = 1 << 16;
/// The size of the arguments of a virtual thread's last frame on the stack, in bytes, at most.
const MAX_ARGUMENTS: u64 = 256;
/// The size of the arguments of a call of HotSpot's interpreter, in bytes, at most.
const MAX_ARGUMENT_SPACE: u64 = 256 * 8;
/// The distance in bytes from the stack pointer to the frame pointer of an interpreted frame that is being set up.
const MAX_INCOMPLETE: u64 = 64;
/// The register in which HotSpot's interpreter has the caller's stack pointer at the beginning of a method, and the
/// return address at its end.
const SENDER_SP: u8 = R13;
/// The register in which HotSpot's interpreter has the address of the local variables.
const LOCALS: u8 = R14;

/// The layout of the frames in a region.
#[derive(Clone, Copy, Debug)]
pub enum Region {
    /// No step is taken.
    Stop,
    /// All frames have this rule.
    Fixed(FrameRule),
    /// A code heap of HotSpot.
    HotSpot(CodeHeap),
    /// The code of Erlang's virtual machine.
    Erlang(ErlangCode),
}

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
    /// The values of that half, masked, in blobs whose code has no frame if the blob's frame size is 0.
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

/// The [`CodeHeap`] of a valid `struct sframe_unwind_region` of kind HOTSPOT. This is a macro, because the kernel module
/// and the tools each have a generated type for this structure. `CodeHeap` has to be in scope.
#[macro_export]
macro_rules! code_heap_of {
    ($description:expr) => {{
        let description = $description;
        let interpreter_len = description
            .interpreter_end
            .wrapping_sub(description.interpreter_start);
        CodeHeap {
            start: description.start,
            segment_map: description.segment_map,
            interpreter_start: description.interpreter_start,
            interpreter_len: interpreter_len as u32,
            // The low halves tell the kinds apart.
            kind_mask: description.kind_mask as u32,
            frameless_kinds: description.frameless_kinds.map(|kind| kind as u32),
            segment_log2: description.segment_log2,
            used_offset: description.used_offset,
            blob_offset: description.blob_offset,
            frame_size_offset: description.frame_size_offset,
            frame_complete_offset: description.frame_complete_offset,
            frame_complete_is_short: description.frame_complete_size == 2,
            code_offset: description.code_offset,
            code_is_address: description.code_size == 8,
            kind_offset: description.kind_offset,
        }
    }};
}

impl Region {
    /// Whether the fast path may begin at a frame of the region that a step by rows has led to. HotSpot's compiled code
    /// may have saved registers below its frame for a call of other code, and the fast path does not look for this.
    pub const fn is_fast_after_rows(&self) -> bool {
        !matches!(self, Region::HotSpot(_))
    }
}

/// Takes a step from a frame in a region; `None` if no step can be trusted. `code` is the part of the region around the
/// PC.
///
/// `registers` are the registers of the innermost frame, or of a frame that a signal interrupted; `None` for other
/// frames.
#[inline(always)]
pub fn step<M: Memory + Source + ?Sized, R: RegisterSource + ?Sized>(
    region: &Region,
    code: Range<u64>,
    frame: &Frame,
    registers: Option<&R>,
    memory: &M,
) -> Option<Step> {
    match region {
        Region::Stop => None,
        Region::Fixed(rule) => behind_call(*rule, frame, memory),
        Region::HotSpot(heap) => heap.step(frame, registers, memory),
        Region::Erlang(erlang) => erlang.step(code, frame, registers, memory),
    }
}

/// The fast path in a region: takes steps from `frame`, which has made a call, until a frame is neither one of HotSpot's
/// compiled code nor one of a fixed rule, or its caller is outside of `code`, a range of run-time addresses. Stores the
/// return addresses of the found frames in `buffer`, from its start on, and returns their number; `frame` becomes the
/// last one. Each step has the result of [`step`], and is left to [`step`] where this function is too simple for it.
///
/// `memory` has the budget, and `words` the same memory. Context: any in which both may be used.
#[inline]
pub fn walk<S: Source + ?Sized, W: WordReader>(
    region: &Region,
    code: Range<u64>,
    frame: &mut Frame,
    memory: &S,
    words: &W,
    buffer: &mut [u64],
) -> usize {
    let Range { start, end } = match region {
        Region::HotSpot(heap) => heap.compiled_part(code, frame.pc),
        Region::Fixed(rule) if rule.keeps_aligned() => code,
        _ => return 0,
    };
    if frame.sp % 8 != 0 || !(start..end).contains(&frame.pc.wrapping_sub(1)) {
        return 0;
    }
    let code_len = end.wrapping_sub(start);
    let len = buffer.len();
    let mut slots = buffer.iter_mut();
    let mut last = *frame;
    while memory.spend(STEP).is_ok() {
        let open = words.open();
        let found = match region {
            Region::HotSpot(heap) => heap.compiled_caller(&last, &open),
            Region::Fixed(rule) => rule.caller_of_aligned(&last, &open),
            _ => None,
        };
        let Some(caller) = found else {
            break;
        };
        let call = open.word(caller.pc.wrapping_sub(8)).to_le_bytes();
        drop(open);
        if caller.pc.wrapping_sub(1).wrapping_sub(start) >= code_len {
            break;
        }
        // Most calls are relative, or by a register. All others are left to `step`.
        if !matches!(
            call,
            [_, _, _, CALL_RELATIVE, ..] | [.., GROUP_5, 0x10..=0x13 | 0xd0..=0xd7]
        ) {
            break;
        }
        let Some(slot) = slots.next() else {
            break;
        };
        *slot = caller.pc;
        last = caller;
    }
    *frame = last;
    len.wrapping_sub(slots.len())
}

/// Whether the code at `pc` is HotSpot's poll in a loop: test %eax,(%register). If it faults, its own address becomes
/// the return address.
#[inline(never)]
pub fn is_poll<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    field(pc, 0, memory).is_some_and(|code| {
        let without_prefix = if code as u8 == 0x41 { code >> 8 } else { code };
        without_prefix & 0xf8ff == 0x0085 && without_prefix & 0x0600 != 0x0400
    })
}

/// Whether the code at `pc` is HotSpot's return barrier: mov offset(%r15),%rsp; push %rax. A virtual thread that
/// continues has only its last frames on the stack. They return to the barrier, which copies the next ones from the
/// heap of objects.
#[inline(never)]
pub fn is_barrier<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    field(pc, 0, memory).is_some_and(|code| code & 0xffff_ff00_00ff_ffff == 0x5000_0000_00a7_8b49)
}

/// Whether the code at `pc` is the handler with which HotSpot replaces the return address to a compiled method that it
/// deoptimises. The handler is at the end of the method's code, and the method's frame stays until the call returns. The
/// handler pushes its own address: mov $address,%r10 (push %r10); or call to the next instruction; subl $5,(%rsp).
#[inline(never)]
pub fn is_deopt_handler<S: Source + ?Sized>(pc: u64, memory: &S) -> bool {
    match field(pc, 0, memory) {
        Some(0x2c83_4800_0000_00e8) => true,
        Some(code) if code as u16 == 0xba49 => field(pc, 2, memory) == Some(pc),
        _ => false,
    }
}

/// The eight bytes at `base + offset`. A field that is shorter is in the low bytes.
#[inline(never)]
fn field<S: Source + ?Sized>(base: u64, offset: u8, memory: &S) -> Option<u64> {
    let bytes = memory.read(base.wrapping_add(offset.into())).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// The rule of a frame that its frame pointer leads to.
const FRAME_POINTER: FrameRule = FrameRule {
    from_fp: true,
    ..PUSHED
};

/// The same, if the code has pushed [`COOKIE`] before it pushed the caller's frame pointer.
const BEHIND_COOKIE: FrameRule = FrameRule {
    from_fp: true,
    ..FrameRule::new(24, -24)
};

/// The word that HotSpot's stub for the barrier at the beginning of a method pushes.
const COOKIE: u64 = u64::MAX;

/// The rule of a frame of this size in bytes. The code pushes the caller's frame pointer first.
const fn whole_frame(size: i32) -> FrameRule {
    FrameRule::new(size, -16)
}

/// The rule of a frame of a stub that keeps a frame pointer, and the return address. `None` if the frame pointer is
/// far: the return barrier keeps none, and a virtual thread's old one may lead to the stack of another thread.
fn in_stub<S: Source + ?Sized>(frame: &Frame, memory: &S) -> Option<(FrameRule, u64)> {
    if frame.fp.wrapping_sub(frame.sp) > MAX_STUB_FRAME {
        return None;
    }
    Some(match field(frame.fp.wrapping_add(8), 0, memory)? {
        COOKIE => (BEHIND_COOKIE, field(frame.fp.wrapping_add(16), 0, memory)?),
        caller => (FRAME_POINTER, caller),
    })
}

/// Reads code from `address` on, eight bytes at a time, and takes the work of looking for instructions in it. The length
/// of `code` is a multiple of eight.
// Inlined: the callers have the deepest stacks of a step in a code heap.
#[inline(always)]
fn read_code<S: Source + ?Sized>(address: u64, code: &mut [u8], memory: &S) -> Option<()> {
    let mut at = address;
    for part in code.chunks_exact_mut(8) {
        memory.spend(SEARCH).ok()?;
        let word: [u8; 8] = memory.read(at).ok()?;
        for (to, from) in part.iter_mut().zip(word) {
            *to = from;
        }
        at = at.wrapping_add(8);
    }
    Some(())
}

impl CodeHeap {
    /// Takes a step from a frame in the code heap; `None` if it cannot be proved. `registers` are those
    /// of the innermost frame, or of a frame that a signal interrupted; `None` for other frames.
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
        // An adapter makes space for arguments below its return address, pushes the address again, and still has it in rax.
        if let Some(registers) = registers {
            let sp = registers.register(SENDER_SP).unwrap_or(0);
            if registers.register(RAX) == Some(caller.pc)
                && (1..=MAX_ARGUMENT_SPACE).contains(&sp.wrapping_sub(caller.sp))
            {
                caller.sp = sp;
            }
        }
        let is_caller = is_interpreter(caller.pc)
            || is_behind_call(caller.pc, memory)
            || registers.is_none() && is_poll(caller.pc, memory)
            || is_barrier(caller.pc, memory)
            || is_deopt_handler(caller.pc, memory);
        is_caller.then_some(Step::Caller(caller))
    }

    /// The part of `code` that may be compiled code, in front of the interpreter or behind it, as `pc` is.
    #[inline(always)]
    fn compiled_part(&self, code: Range<u64>, pc: u64) -> Range<u64> {
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

    /// The caller of a frame of compiled code that has made a call; the code in front of the caller's PC has to end with a
    /// call. The frame is above the start of the heap. `None` also if a word that is read is 0, because reads that fail
    /// give 0. Calls no function.
    #[inline(always)]
    fn compiled_caller<W: WordReader>(&self, frame: &Frame, words: &W) -> Option<Frame> {
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
            // The segment map of a block of up to 254 segments leads to the start of the block at once.
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
    ) -> Option<FrameRule> {
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
                Some(FrameRule { cfa, ..rule })
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

    /// The rule of the return barrier, which takes over the frame that a virtual thread starts in: a
    /// `ContinuationEntry` of 64 bytes, the saved frame pointer, and the return address. Arguments of the last frame
    /// may lie below.
    #[inline(never)]
    fn rule_of_barrier<S: Source + ?Sized>(&self, frame: &Frame, memory: &S) -> Option<FrameRule> {
        let aligned = |sp: u64| sp.wrapping_add(15) & !15;
        let first = aligned(frame.sp);
        let mut entry = first;
        while entry.wrapping_sub(first) < MAX_ARGUMENTS {
            // `_flags` is 0 or 1. `_argsize` is the number of words of arguments; 0 if an interpreted frame has them.
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

    /// The rule of the innermost frame in a stub of HotSpot's runtime. Many stubs keep a frame pointer.
    #[inline(never)]
    fn innermost_in_stub<S: Source + ?Sized>(
        &self,
        frame: &Frame,
        blob: u64,
        memory: &S,
    ) -> Option<FrameRule> {
        let code = field(frame.pc.wrapping_sub(1), 0, memory)?;
        let at_pc = code >> 8;
        // ret; or push %rbp; mov %rsp,%rbp
        if at_pc as u8 == RET || at_pc as u32 == 0xec8b_4855 {
            return Some(ON_TOP);
        }
        // mov %rsp,%rbp behind push %rbp; or pop %rbp; ret
        if code as u32 == 0xec8b_4855 || at_pc as u16 == 0xc35d {
            return Some(PUSHED);
        }
        // If the stub keeps no frame pointer, the register leads to a frame further out, whose return address is
        // behind a call of other code.
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

    /// The run-time address of the `CodeBlob` whose block contains `address`; `None` if the block is free.
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

    /// The rule of the innermost frame, whose function has a frame of `size` bytes, by the end of its prologue.
    #[inline(never)]
    fn rule_of_prologue<S: Source + ?Sized>(
        &self,
        pc: u64,
        blob: u64,
        size: i32,
        memory: &S,
    ) -> Option<FrameRule> {
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
            // Only the stubs that the compiler for servers has made begin with their set-up, and nothing else in them moves
            // the stack pointer. A stub jumps to the handler of an exception (jmp *%r8 to *%r15) with the return address in a
            // register.
            let is_left = field(pc, 0, memory)? & 0xf8_ffff == 0xe0_ff41;
            if is_left || setup.first != 0 || setup.pushes {
                return None;
            }
        }
        Some(setup.rule(pc.saturating_sub(beginning), size))
    }
}

/// The rule of the innermost frame, whose function has a frame of `size` bytes, by the instructions around the PC; else
/// `Some(None)`.
#[inline(never)]
fn rule_around<S: Source + ?Sized>(pc: u64, size: i32, memory: &S) -> Option<Option<FrameRule>> {
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
    // The entry from the interpreter into a loop has a prologue of its own, which may lie anywhere.
    Some(match FrameSetup::find(&around, size) {
        Some(setup) if (BEFORE as u64) < setup.end => Some(setup.rule(BEFORE as u64, size)),
        _ => None,
    })
}

/// Whether the frame is larger than its size by arguments: push; push; call; pop %register; pop %register, with which
/// a method that has been compiled for a fast start searches for a class. `code` begins [`BEFORE`] bytes in front of
/// the PC.
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

/// Whether the code around the PC is that by which HotSpot's stubs for deoptimisation put interpreted frames in the place
/// of a compiled one: add %rcx,%rsp removes it, and push (%rcx) pushes a return address in a loop.
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

    /// The rule at an offset, in front of the end of the prologue.
    fn rule(&self, at: u64, size: i32) -> FrameRule {
        match self.pushes {
            _ if at <= self.first => ON_TOP,
            _ if at >= self.end => whole_frame(size),
            true => PUSHED,
            false => FrameRule::new(size, 0),
        }
    }
}

/// The length of the instruction at the start of `code`, and the number that it subtracts from %rsp; `None` if
/// it is another instruction.
fn subtracted(code: &[u8]) -> Option<(u8, i32)> {
    match *code {
        [0x48, 0x83, 0xec, by, ..] => Some((4, by.into())),
        [0x48, 0x81, 0xec, a, b, c, d, ..] => Some((7, i32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

/// Masks and bytes, little-endian, of ends of compiled functions at which the return address is on top of the stack.
const ENDS: [(u64, u64); 7] = [
    // cmp offset(%r15),%rsp; ja. Only the poll at a return compares the stack pointer.
    (0xff_ffff, 0x67_3b49),
    (0xff_ffff, 0xa7_3b49),
    // ja; ret. jne; ret: the wrapper of a native method tests for an exception.
    (0x00ff_0000_0000_ffff, 0x00c3_0000_0000_870f),
    (0x00ff_0000_0000_ffff, 0x00c3_0000_0000_850f),
    // The poll at the end of such a wrapper: testb $1,offset(%r15); je over the rest of a poll
    (0xffff_ffff_00ff_ffff, 0x4916_7401_0047_f641),
    (0xffff_ffff, 0xba49_1674),
    // The end of the rest of a poll: mov %r10,offset(%r15); jmp
    (0xff00_0000_00ff_ffff, 0xe900_0000_0097_894d),
];

/// The rule at the end of a compiled function, from the instructions around the PC; `None` if the frame is still
/// there, as far as these instructions show. `code` begins [`BEFORE`] bytes in front of the PC.
fn rule_of_epilogue(code: &[u8; NEAR]) -> Option<FrameRule> {
    let (before, at) = code.split_at(BEFORE);
    let word = u64::from_le_bytes(*at.first_chunk()?);
    // The compiler would repeat the comparison if it knew the number of ends.
    let mut ends = core::hint::black_box(&ENDS[..]).iter();
    if ends.any(|(mask, end)| word & mask == *end) {
        return Some(ON_TOP);
    }
    match at {
        [RET, ..] => Some(ON_TOP),
        [POP_RBP, ..] => Some(PUSHED),
        // pop %rdx; jmp *%r10
        [0x5a, 0x41, 0xff, 0xe2, ..] if matches!(before, [.., POP_RBP]) => Some(ON_TOP),
        // cmpq $0,offset(%r15); jne; ret
        [0x49, 0x83, 0x7f, _, 0, 0x0f, 0x85, _, _, _, _, RET, ..] => Some(ON_TOP),
        // The rest of the poll: mov $address,%r10; mov %r10,offset(%r15); jmp
        [0x49, 0xba, _, _, _, _, _, _, _, _, 0x4d, 0x89, 0x97, _, _, _, _, JMP_RELATIVE, ..] => {
            Some(ON_TOP)
        }
        [JMP_RELATIVE, ..]
            if matches!(before, [.., POP_RBP] | [.., 0x4d, 0x89, 0x97, _, _, _, _]) =>
        {
            Some(ON_TOP)
        }
        _ => None,
    }
}

/// The caller of an interpreted frame. `registers` are those of the innermost frame. `is_interpreter` returns true for
/// run-time addresses in the interpreter.
#[inline(never)]
fn interpreted<M: Source + ?Sized, R: RegisterSource + ?Sized>(
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
            // The frame holds the address of the local variables, or since JDK 21 their distance in words.
            let locals = on_top(frame.fp.wrapping_sub(56))?;
            let expected = register(LOCALS)?;
            if locals != expected && frame.fp.wrapping_add(locals.wrapping_mul(8)) != expected {
                return None;
            }
            // Code of an intrinsic has no frame, and the registers are still the caller's. The caller's frame holds the
            // stack pointer at the call; 0 if the frame's method has called nothing.
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
                // The interpreter calls the next instructions, to have a return address on the stack.
                return complete(frame, memory);
            }
            (pc, frame.sp.checked_add(8)?, frame.fp)
        }
    };
    (sp >= frame.sp).then_some(Frame { pc, sp, fp })
}

/// The caller of a complete interpreted frame: its stack pointer is in the word below the saved frame pointer.
#[inline(never)]
fn complete<S: Source + ?Sized>(frame: &Frame, memory: &S) -> Option<Frame> {
    framed(frame, field(frame.fp.wrapping_sub(8), 0, memory)?, memory)
}

/// The caller of the interpreted frame that the frame pointer leads to. `sp` is the caller's stack pointer.
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
    /// An exception has left the frame. This many bytes are on the stack, then the return address and the exception.
    Saved(u8),
    /// The return address is in a register, and the caller's stack pointer in another one, or is the stack pointer.
    InRegister(u8, Option<u8>),
}

/// The instructions around which the return address of a method that begins is in %rax.
const POP: [u8; 4] = [0x58, 0x4c, 0x8d, 0x74];
const PUSH: [u8; 5] = [0x50, PUSH_RBP, 0x48, 0x8b, 0xec];
/// Accesses to the interpreter's own frame: mov -56(%rbp),%r14; mov -64(%rbp),%r13; mov %r13,-16(%rbp);
/// mov %rcx,-16(%rbp); little-endian
const OWN_FRAME: [u32; 4] = [0xc875_8b4c, 0xc06d_8b4c, 0xf06d_894c, 0xf04d_8948];

/// The state of the interpreter where it has called. `pc` is the return address. If an exception has left the frame, the
/// interpreter has called the search for a handler. The code behind that call is mov %rax,%rbx; pop %rdx; pop %rax;
/// jmp *%rbx. In front of that may be add $8,%rsp, and a jump over a second call.
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

/// The state of the interpreter, from the instructions around the PC.
#[inline(never)]
fn state_at<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<State> {
    let mut code = [0; IN_FRONT + MAX_BEGINNING];
    read_code(
        pc.wrapping_sub(const { IN_FRONT as u64 }),
        &mut code,
        memory,
    )?;
    Some(state(&code))
}

/// The state of the interpreter. `code` begins [`IN_FRONT`] bytes in front of the PC.
fn state(code: &[u8; IN_FRONT + MAX_BEGINNING]) -> State {
    let all = code;
    let (before, code) = all.split_at(IN_FRONT);
    // The interpreter calls a few instructions to convert the result of a native method, which do not touch the stack:
    // and $0xff,%eax; setne %al; ret. movzwl; ret. movsbl; ret. movswl; ret. mov 16(%rbp),%rax; ret
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
    // The beginning: pop %rax; lea -8(%rsp,%rcx,8),%r14; pushes; push %rax; push %rbp; mov %rsp,%rbp
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
    // The return from a call loads the register of the local variables. The last part of a call, which uses this
    // register for other values, stores the stack pointer. A search for the method of an interface, which uses it and
    // the pointer to the bytecode, loads that pointer.
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

/// The state of the interpreter where an exception leaves a frame: leave; pop %rdx; mov %rbx,%rsp; a poll; push %rax;
/// push %rdx; mov %rdx,%rsi; a call; mov %rax,%rbx; pop %rdx; pop %rax; jmp *%rbx. `None` if this is other code. `last`
/// has the four bytes in front of the PC, and `word` the first eight bytes of `code`, both little-endian.
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
        // push %rdx; sub $8,%rsp in front of the call; and add $8,%rsp behind it
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

/// The offset of `pattern` in `code`.
#[inline(never)]
fn find(code: &[u8], pattern: &[u8]) -> Option<usize> {
    let mut rest = code;
    let mut at = 0usize;
    while !rest.starts_with(pattern) {
        rest = rest.get(1..)?;
        at = at.wrapping_add(1);
    }
    Some(at)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sframe::{
        format::bytes::Fault,
        unwind::step::LOST_FP, //
    };
    use std::vec;
    use std::vec::Vec;

    const HEAP: u64 = 0x7f00_0000;
    const MAP: u64 = 0x7e00_0000;
    const STACK: u64 = 0x8000_0000;
    const PROGRAM: u64 = 0x40_0000;
    /// Segments of 128 bytes. A block of 12 segments starts at segment 4.
    const BLOCK: u64 = HEAP + 4 * 128;
    const BLOB: u64 = BLOCK + 16;
    const CODE: u64 = BLOB + 256;
    /// The end of the prologue, from the start of the code.
    const COMPLETE: u64 = 64;
    /// The return address in the program, and one in the interpreter.
    const CALLER: u64 = PROGRAM + 0x100;
    const INTERPRETER: u64 = HEAP + 0x3000;

    /// Parts of memory, by start.
    #[derive(Clone)]
    pub(in crate::sframe::x86_64) struct Memories(
        pub(in crate::sframe::x86_64) Vec<(u64, Vec<u8>)>,
    );

    impl Memories {
        pub(in crate::sframe::x86_64) fn write(&mut self, address: u64, bytes: &[u8]) {
            for (start, part) in &mut self.0 {
                if let Some(at) = (address.checked_sub(*start)).filter(|at| *at < part.len() as u64)
                {
                    part[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            }
        }

        fn word(&mut self, address: u64, word: u64) {
            self.words(address, &[word]);
        }

        pub(in crate::sframe::x86_64) fn words(&mut self, address: u64, words: &[u64]) {
            for (address, word) in (address..).step_by(8).zip(words) {
                self.write(address, &word.to_le_bytes());
            }
        }
    }

    impl Source for Memories {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            self.0
                .iter()
                .filter_map(|(start, part)| part.get(offset.checked_sub(*start)? as usize..))
                .find_map(|rest| rest.first_chunk().copied())
                .ok_or(Fault)
        }
    }

    impl Memory for Memories {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            self.read(address).map(u64::from_le_bytes)
        }
    }

    struct Words<'a>(&'a Memories);

    impl WordReader for Words<'_> {
        type Open<'a>
            = &'a Self
        where
            Self: 'a;

        fn word(&self, address: u64) -> u64 {
            self.0.read_word(address).unwrap_or_default()
        }

        fn open(&self) -> &Self {
            self
        }
    }

    /// The register of the local variables.
    struct Locals(u64);

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
    fn process(words: u32, prologue: &[u8]) -> Memories {
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

    fn step<R: RegisterSource>(
        region: &Region,
        frame: &Frame,
        registers: Option<&R>,
        memory: &Memories,
    ) -> Option<Frame> {
        match super::step(region, 0..u64::MAX, frame, registers, memory)? {
            Step::Caller(caller) => Some(caller),
            Step::Outermost => None,
        }
    }

    fn frame(pc: u64) -> Frame {
        Frame {
            pc,
            sp: STACK + 0x100,
            fp: STACK + 0x180,
        }
    }

    fn step_in(pc: u64, innermost: bool, memory: &Memories) -> Option<Frame> {
        let registers = innermost.then_some(&Locals(STACK + 0x150));
        step(&Region::HotSpot(heap()), &frame(pc), registers, memory)
    }

    fn to(step: Option<Frame>) -> Option<(u64, u64)> {
        step.map(|frame| (frame.sp - STACK, frame.fp))
    }

    /// push %rbp; sub $0x30,%rsp; cmpl $1,0x20(%r15); jne
    const PUSHES: [u8; 19] = [
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
        // Not behind a call.
        memory.word(STACK + 0x138, CALLER + 1);
        assert_eq!(step_in(CODE + 0x100, false, &memory), None);
        // A poll: test %eax,(%rcx); test %eax,(%r10)
        memory.write(CALLER + 1, &[0x85, 0x01]);
        assert_eq!(to(step_in(CODE + 0x100, false, &memory)), whole);
        memory.write(CALLER + 1, &[0x41, 0x85, 0x02]);
        assert_eq!(to(step_in(CODE + 0x100, false, &memory)), whole);
        assert_eq!(step_in(CODE + 0x100, true, &memory), None);
        // A handler of deoptimisation of either compiler, and the same instructions with another address.
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
            let found = walk(&region, code, &mut last, memory, &Words(memory), buffer);
            assert!(buffer[..found].iter().all(|pc| *pc == RETURN));
            (found, last.sp - STACK - 0x100, last.fp)
        };
        let hotspot = Region::HotSpot(heap());
        let fixed = |cfa, fp| Region::Fixed(FrameRule::new(cfa, fp));
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

        // The second entry, behind the end of the first prologue.
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
        // pop %rbp; pop %rdx; jmp *%r10. The return address is on top of the stack, and then in a register.
        memory.write(CODE + 0x60, &[POP_RBP, 0x5a, 0x41, 0xff, 0xe2]);
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

        // The barrier, with the frame of the thread's start directly above, or behind arguments.
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
        // add $8,%rsp; mov (%rdi),%ecx; add %rcx,%rsp; mov 48(%rdi),%rbp; mov 24(%rdi),%rcx; add $8,%rsp;
        // mov 16(%rdi),%rsi; mov 8(%rdi),%edx; mov %rsp,%r8; mov 4(%rdi),%ebx; sub %rbx,%rsp; mov (%rsi),%rbx;
        // sub $16,%rbx; push (%rcx); push %rbp; mov %rsp,%rbp; sub %rbx,%rsp; mov %r8,-8(%rbp); movq $0,-16(%rbp);
        // mov %rsp,%r8; add $8,%rsi; add $8,%rcx; dec %edx; jne; push (%rcx); push %rbp; mov %rsp,%rbp; sub $0,%rsp;
        // vzeroupper
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
        // Behind it, the last of the new frames is the caller.
        let found = to(step_in(at + 0x70, true, &memory));
        assert_eq!(found, Some((0x110, CALLER)));
    }

    #[test]
    fn an_adapter_makes_space_for_arguments() {
        let mut memory = process(0, &PUSHES);
        memory.word(BLOB + 48, 3);
        memory.word(STACK + 0x100, CALLER);
        // The registers are set: lea 8(%rsp),%r13; pop %rax; sub $0x50,%rsp; push %rax. Otherwise they have other values.
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
            let region = Region::HotSpot(heap());
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
        // mov $address,%r10; mov %r10,offset(%r15); mov %rsp,offset(%r15): the wrapper of a native method stores its place.
        memory.word(STACK + 0x138, CALLER);
        memory.word(STACK + 0x130, 0x77);
        memory.write(
            pc,
            &[
                0x49, 0xba, 1, 2, 3, 4, 5, 6, 7, 8, 0x4d, 0x89, 0x97, 1, 2, 3, 4, 0x49, 0x89, 0xa7,
            ],
        );
        assert_eq!(to(step_in(pc, true, &memory)), Some((0x140, 0x77)));
        memory.write(pc - 1, &[POP_RBP, JMP_RELATIVE]);
        assert_eq!(to(step_in(pc, true, &memory)), on_top);
        memory.write(pc, &[POP_RBP]);
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
    fn registers_are_saved_below_the_frame_for_a_call() {
        // A barrier of a garbage collector: sub $0x50,%rsp; vmovq %xmm0,0x48(%rsp); mov %rsi,(%rsp); mov %r15,%rsi; call;
        // mov (%rsp),%rsi; vmovq 0x48(%rsp),%xmm0; add $0x50,%rsp; jmp
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
                other.write(CODE + 0x100 + 36, &[POP_RBP]);
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
        // The frame pointer is believed if the return address is behind a call of this stub.
        memory.word(STACK + 0x180, 0x99);
        memory.word(STACK + 0x188, CALLER);
        assert_eq!(step_in(CODE, true, &memory), None);
        assert_eq!(to(step_in(CODE, false, &memory)), Some((0x190, 0x99)));
        // A frame pointer of another stack, and one of a frame that is gone.
        for sp in [STACK + 0x180 - 0x1_0008, STACK + 0x188] {
            let frame = Frame { sp, ..frame(CODE) };
            let region = Region::HotSpot(heap());
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
        // The code of an intrinsic has no frame: the return address is on top of the stack, and the registers are the
        // caller's.
        memory.word(STACK + 0x100, INTERPRETER + 0x200);
        memory.word(STACK + 0x180 - 16, STACK + 0x108);
        assert_eq!(step_in(pc, true, &memory), None);
        // The frame has called nothing: an old return address, or one that has just been pushed for a call.
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

    /// The code of JDK 25 by which an exception leaves an interpreted frame: leave; movb; pop %rdx; mov %rbx,%rsp; cmp;
    /// jb; movq; mov; movq; push %rax; push %rdx; mov %rdx,%rsi; mov %r15,%rdi; test; je; sub $8,%rsp; call;
    /// add $8,%rsp; jmp; call; mov %rax,%rbx; pop %rdx; pop %rax; jmp *%rbx
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

    /// A process whose interpreter has `code` at [`INTERPRETER`], and the state at an offset in that code.
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
        // The end of a native method: call *%r11; mov -8(%rbp),%r11; leave; movb $0,958(%r15); pop %rdi;
        // mov %r11,%rsp; jmp *%rdi
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
        // The return from a call: mov -16(%rbp),%rsp; movq $0,-16(%rbp); mov -64(%rbp),%r13; mov -56(%rbp),%r14
        let returns = [
            0x48, 0x8b, 0x65, 0xf0, 0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0, 0x4c, 0x8b, 0x6d, 0xc0,
            0x4c, 0x8b, 0x75, 0xc8,
        ];
        for offset in [0, 4, 12, 16, 20] {
            assert_eq!(state_of(&returns, offset), State::Framed);
        }
        // The search for a method of an interface, of JDK 21: mov (%r14),%r13; cmp %rsi,%r13; je; test %r13,%r13; je;
        // add $16,%r14; mov (%r14),%r13; cmp; jne; mov -64(%rbp),%r13
        let search = [
            0x4d, 0x8b, 0x2e, 0x49, 0x3b, 0xc5, 0x74, 0x15, 0x4d, 0x85, 0xed, 0x0f, 0x84, 0x3c, 1,
            0, 0, 0x49, 0x83, 0xc6, 0x10, 0x4d, 0x8b, 0x2e, 0x49, 0x3b, 0xc5, 0x75, 0xeb, 0x4c,
            0x8b, 0x6d, 0xc0,
        ];
        for offset in (0..=29).chain(33..=61) {
            assert_eq!(state_of(&search, offset), State::Framed, "{offset}");
        }
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
                &Region::HotSpot(heap()),
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
        // The frame of a compiled function does not need the frame pointer, and its caller saved its own.
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x138, CALLER);
        memory.word(STACK + 0x130, 0x77);
        let pc = CODE + 0x100;
        let found = from(&memory, pc, STACK + 0x180);
        assert!(found.is_some());
        assert_eq!(from(&memory, pc, LOST_FP), found);
        // A rule that leaves the register alone.
        let fixed = Region::Fixed(FrameRule::new(0x40, 0));
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
                    let region = Region::HotSpot(heap);
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

    #[test]
    fn a_fixed_rule_holds_everywhere_in_its_region() {
        let mut memory = process(8, &PUSHES);
        memory.word(STACK + 0x1f8, CALLER);
        memory.word(STACK + 0x1e0, 0x44);
        let region = Region::Fixed(FrameRule::new(0x100, -32));
        let found = step(&region, &frame(CODE), None::<&Locals>, &memory);
        assert_eq!(to(found), Some((0x200, 0x44)));
        memory.word(STACK + 0x1f8, CALLER + 1);
        assert_eq!(step(&region, &frame(CODE), None::<&Locals>, &memory), None);
        let stop = step(&Region::Stop, &frame(CODE), None::<&Locals>, &memory);
        assert_eq!(stop, None);
    }
}
