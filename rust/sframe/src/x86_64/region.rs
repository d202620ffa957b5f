// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step from code that a runtime made, by a region that somebody has registered for the process.
//!
//! A region tells how its frames are laid out. Its description and the memory of the process are not trusted. A
//! step is accepted only if it leads behind a call, or into HotSpot's interpreter.
//!
//! Words are eight bytes. HotSpot's names are those of the OpenJDK source: a code heap consists of segments; a
//! block is some segments with a `HeapBlock` at its start, and a `CodeBlob` behind the `HeapBlock`.

use super::{
    super::{
        format::{
            abi::Abi,
            bytes::Source, //
        },
        unwind::{
            rule::{
                Base,
                Location,
                Rule, //
            },
            step::{
                self as unwind,
                Frame,
                Memory,
                NoRegisters,
                RegisterSource,
                Step, //
            }, //
        }, //
    },
    fallback::is_behind_call,
    insn::{
        POP_RBP,
        PUSH_RBP,
        RET, //
    },
    prologue::{
        ON_TOP,
        PUSHED, //
    },
};

/// The most hops in a code heap's segment map. Each hop passes at most 254 segments.
const HOPS: u32 = 64;
/// The maximum size of a compiled frame, in bytes.
const MAX_FRAME: i32 = 1 << 20;
/// The bytes in front of the end of a prologue in which the prologue is searched.
const PROLOGUE: usize = 64;
/// The DWARF number of the register in which HotSpot's interpreter keeps the address of the local variables.
const LOCALS: u8 = 14;

/// The layout of the frames in a region.
#[derive(Clone, Copy, Debug)]
pub enum Region {
    /// No step is taken.
    Stop,
    /// All frames have this rule.
    Fixed(Rule),
    /// A code heap of HotSpot.
    HotSpot(CodeHeap),
}

/// A code heap of HotSpot. Offsets and sizes are in bytes; addresses are run-time addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct CodeHeap {
    /// The start of the heap.
    pub start: u64,
    /// The segment map: one byte for each segment from `start` on.
    pub segment_map: u64,
    /// The code of the interpreter, up to but excluding `interpreter_end`.
    pub interpreter_start: u64,
    /// The end of the interpreter.
    pub interpreter_end: u64,
    /// The mask of the word at `kind_offset`.
    pub kind_mask: u64,
    /// The two values of that word, masked, in blobs whose code has no frame.
    pub frameless_kinds: [u64; 2],
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

/// How a frame in a region leads to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionStep {
    /// The caller's frame.
    Caller(Frame),
    /// The code probably keeps a frame pointer.
    FramePointer,
}

/// Takes a step from a frame in a region; `None` if no step can be trusted.
///
/// `registers` are the registers of the innermost frame, or of a frame that a signal interrupted; `None` for other
/// frames.
#[inline(never)]
pub fn step<M: Memory + Source + ?Sized, R: RegisterSource + ?Sized>(
    region: &Region,
    frame: &Frame,
    registers: Option<&R>,
    memory: &M,
) -> Option<RegionStep> {
    let is_interpreter = |pc| match region {
        Region::HotSpot(heap) => heap.interpreter_start <= pc && pc < heap.interpreter_end,
        _ => false,
    };
    let caller = if is_interpreter(frame.pc) {
        interpreted(frame, registers, memory)?
    } else {
        let rule = match region {
            Region::Stop => return None,
            Region::Fixed(rule) => *rule,
            Region::HotSpot(heap) => match heap.rule(frame.pc, registers.is_some(), memory)? {
                Some(rule) => rule,
                None => return Some(RegionStep::FramePointer),
            },
        };
        match unwind::step(Abi::Amd64, &rule, frame, &NoRegisters, memory).ok()? {
            Step::Caller(caller) => caller,
            Step::Outermost => return None,
        }
    };
    (is_interpreter(caller.pc) || is_behind_call(caller.pc, memory))
        .then_some(RegionStep::Caller(caller))
}

/// The eight bytes at `base + offset`. A field that is shorter is in the low bytes.
#[inline(never)]
fn field<S: Source + ?Sized>(base: u64, offset: u8, memory: &S) -> Option<u64> {
    let bytes = memory.read(base.wrapping_add(offset.into())).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// The rule of a frame of this size in bytes. The code pushes the caller's frame pointer first.
fn whole_frame(size: i32) -> Rule {
    Rule::amd64(Base::Sp, size, Location::AtCfa(-16))
}

impl CodeHeap {
    /// The rule of a frame in compiled code or in a stub; `Some(None)` if the stub probably keeps a frame pointer.
    #[inline(never)]
    fn rule<S: Source + ?Sized>(
        &self,
        pc: u64,
        is_innermost: bool,
        memory: &S,
    ) -> Option<Option<Rule>> {
        let blob = self.blob_at(pc.wrapping_sub((!is_innermost).into()), memory)?;
        let size = (field(blob, self.frame_size_offset, memory)? as i32).checked_mul(8)?;
        match size {
            1..=MAX_FRAME if is_innermost => self.innermost(pc, blob, size, memory).map(Some),
            1..=MAX_FRAME => Some(Some(whole_frame(size))),
            0 => {
                let kind = field(blob, self.kind_offset, memory)? & self.kind_mask;
                // Adapters and stubs of virtual calls have no frame, and call nothing.
                match self.frameless_kinds.contains(&kind) {
                    true => is_innermost.then_some(Some(ON_TOP)),
                    false => Some(None),
                }
            }
            _ => None,
        }
    }

    /// The run-time address of the `CodeBlob` whose block contains `address`; `None` if the block is free.
    fn blob_at<S: Source + ?Sized>(&self, address: u64, memory: &S) -> Option<u64> {
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

    /// The rule of the innermost frame, whose function has a frame of `size` bytes.
    #[inline(never)]
    fn innermost<S: Source + ?Sized>(
        &self,
        pc: u64,
        blob: u64,
        size: i32,
        memory: &S,
    ) -> Option<Rule> {
        if let Some(rule) = rule_of_epilogue(&memory.read(pc).ok()?) {
            return Some(rule);
        }
        let mut code = field(blob, self.code_offset, memory)?;
        if !self.code_is_address {
            code = blob.wrapping_add_signed((code as i32).into());
        }
        let complete = field(blob, self.frame_complete_offset, memory)?;
        let complete = match self.frame_complete_is_short {
            true => (complete as i16).into(),
            false => complete as i32,
        };
        // -1: the code sets up no frame of its own.
        let end = code.wrapping_add(u64::try_from(complete).ok()?);
        if pc >= end {
            return Some(whole_frame(size));
        }
        let beginning = end.wrapping_sub(const { PROLOGUE as u64 });
        let bytes: [u8; PROLOGUE] = memory.read(beginning).ok()?;
        let setup = FrameSetup::find(&bytes, size)?;
        Some(setup.rule(pc.saturating_sub(beginning), size))
    }
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
    fn find(code: &[u8; PROLOGUE], size: i32) -> Option<FrameSetup> {
        let mut rest = &code[..];
        let mut first = 0;
        while let [_, behind @ ..] = rest {
            let found = match rest {
                // push %rbp
                [PUSH_RBP, behind @ ..] => {
                    // mov %rsp,%rbp
                    let (mov, behind) = match behind {
                        [0x48, 0x8b, 0xec, behind @ ..] | [0x48, 0x89, 0xe5, behind @ ..] => {
                            (3, behind)
                        }
                        _ => (0, behind),
                    };
                    match subtracted(behind) {
                        Some((len, by)) if by.checked_add(16) == Some(size) => {
                            Some((len + mov + 1, true))
                        }
                        _ if size == 16 => Some((mov + 1, true)),
                        _ => None,
                    }
                }
                // sub $size - 8,%rsp; mov %rbp,offset(%rsp)
                _ => match subtracted(rest) {
                    Some((len, by)) if by.checked_add(8) == Some(size) => {
                        match rest.get(usize::from(len)..) {
                            Some([0x48, 0x89, 0x6c, 0x24, ..]) => Some((len + 5, false)),
                            Some([0x48, 0x89, 0xac, 0x24, ..]) => Some((len + 8, false)),
                            _ => None,
                        }
                    }
                    _ => None,
                },
            };
            if let Some((len, pushes)) = found {
                let end = u64::from(len).wrapping_add(first);
                return Some(FrameSetup { first, end, pushes });
            }
            rest = behind;
            first = first.wrapping_add(1);
        }
        None
    }

    /// The rule at an offset, in front of the end of the prologue.
    fn rule(&self, at: u64, size: i32) -> Rule {
        match self.pushes {
            _ if at <= self.first => ON_TOP,
            _ if at >= self.end => whole_frame(size),
            true => PUSHED,
            false => Rule::amd64(Base::Sp, size, Location::Unchanged),
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

/// The rule at the end of a compiled function, from the instructions at the PC on; `None` if the frame is still
/// there, as far as these instructions show.
fn rule_of_epilogue(code: &[u8; 8]) -> Option<Rule> {
    match code {
        [RET, ..] => Some(ON_TOP),
        [POP_RBP, ..] => Some(PUSHED),
        // cmp offset(%r15),%rsp; ja. Only the poll at a return compares the stack pointer.
        [0x49, 0x3b, 0x67 | 0xa7, ..] => Some(ON_TOP),
        // ja; ret
        [0x0f, 0x87, _, _, _, _, RET, _] => Some(ON_TOP),
        _ => None,
    }
}

/// The caller of an interpreted frame. The word below the saved frame pointer is the caller's stack pointer.
#[inline(never)]
fn interpreted<M: Source + ?Sized, R: RegisterSource + ?Sized>(
    frame: &Frame,
    registers: Option<&R>,
    memory: &M,
) -> Option<Frame> {
    let fp = frame.fp;
    let end = fp.checked_add(16)?;
    let word = |offset: i64| field(fp.wrapping_add_signed(offset), 0, memory);
    let sp = word(-8)?;
    if fp < frame.sp || sp < end || (fp | sp) % 8 != 0 {
        return None;
    }
    if let Some(registers) = registers {
        // Where a method begins and ends, the frame pointer is the caller's, but the register of the local
        // variables is the method's. The frame holds their address, or since JDK 21 their distance in words.
        let locals = word(-56)?;
        let register = registers.register(LOCALS)?;
        if locals != register && fp.wrapping_add(locals.wrapping_mul(8)) != register {
            return None;
        }
    }
    Some(Frame {
        pc: word(8)?,
        sp,
        fp: word(0)?,
    })
}
