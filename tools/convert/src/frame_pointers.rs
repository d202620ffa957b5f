// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Whether code that no row covers keeps frame pointers: the share of its calls that are made while
//! the frame pointer is set up.
//!
//! An option of a compiler decides this for all of its code, so a sample of the code is enough.
//! Calls are counted, and not functions: a function that calls nothing needs no frame.
//!
//! Assembly in such a program may use the frame pointer as a register like others. It is found as
//! islands of instructions that write the register.

use std::{
    collections::BTreeSet,
    ops::Range, //
};

use iced_x86::{
    Decoder,
    DecoderOptions,
    FlowControl,
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    OpAccess,
    Register, //
};

use crate::{
    code::CodeBytes,
    merge,
    work::ConversionWork, //
};

/// The size of the smallest gap that is looked at, in bytes. Smaller ones are padding.
const MIN_GAP: usize = 48;
/// The size of the least code that is looked at, in bytes.
const MIN_CODE: u64 = 4 << 10;
/// The number of windows, which are searched for calls, and the size of each in bytes.
const MAX_WINDOWS: u64 = 512;
const WINDOW: usize = 4 << 10;
/// The number of bytes at the start of a window that may be read from the middle of an instruction.
const UNCERTAIN: u64 = 64;
/// The number of functions that are read.
const MAX_FUNCTIONS: usize = 4096;
/// The number of instructions that are read of each function.
const MAX_INSTRUCTIONS: usize = 200;
/// The furthest forward jump within a function, in bytes. Further ones are tail calls.
const MAX_JUMP: u64 = 512;
/// The least number of calls that tell anything; and the least number in a small program, in bytes
/// of code, all of which is read.
const MIN_CALLS: u64 = 200;
const MIN_CALLS_IN_SMALL: u64 = 16;
const SMALL: u64 = 64 << 10;
/// The least percentage of calls in frames of code that keeps frame pointers, and of code that may
/// do so. Of the code in between a part does: some of its files, or its library.
const KEPT: u64 = 95;
const UNSURE: u64 = 60;

/// The least number of writes of the frame pointer in an island, and the largest distance of a
/// write from the next one, in bytes.
const MIN_WRITES: u32 = 4;
const MAX_DISTANCE: u64 = 16 << 10;
/// The size of the code around an island that belongs to it, in bytes: its functions may begin and
/// end there.
const MARGIN: u64 = 16 << 10;

/// Whether code keeps frame pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePointers {
    /// Its functions set up the frame pointer before they call.
    Kept,
    /// Some functions do; or the code has too few calls.
    Unsure,
    /// The frame pointer is a register like others.
    NotKept,
}

/// The sampled calls in the code that no row covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledCalls {
    /// The size of all of this code, in bytes.
    pub code: u64,
    /// The number of calls.
    pub calls: u64,
    /// The number of calls that are made while the frame pointer is set up.
    pub in_frames: u64,
}

impl SampledCalls {
    /// What the calls tell.
    pub fn frame_pointers(&self) -> FramePointers {
        let is_at_least = |percent| self.in_frames * 100 >= self.calls * percent;
        let least = match self.code < SMALL {
            true => MIN_CALLS_IN_SMALL,
            false => MIN_CALLS,
        };
        match self.calls >= least {
            true if is_at_least(KEPT) => FramePointers::Kept,
            true if !is_at_least(UNSURE) => FramePointers::NotKept,
            _ => FramePointers::Unsure,
        }
    }
}

/// The code that no row covers, as far as it is in the file.
pub(crate) struct UncoveredCode<'a> {
    gaps: Vec<UncoveredGap<'a>>,
    len: u64,
}

/// A range of such code.
struct UncoveredGap<'a> {
    /// The size of the gaps in front of this one, in bytes.
    before: u64,
    /// The link-time address.
    address: u64,
    bytes: &'a [u8],
}

impl<'a> UncoveredCode<'a> {
    /// The code in `gaps`, which are sorted ranges of link-time addresses.
    pub(crate) fn of(gaps: &[Range<u64>], code: &CodeBytes<'a>) -> UncoveredCode<'a> {
        let mut len = 0;
        let mut found = Vec::new();
        for gap in gaps {
            let bytes = code.at(gap.start);
            let end = usize::try_from(gap.end - gap.start).unwrap_or(usize::MAX);
            let bytes = bytes.get(..end).unwrap_or(bytes);
            if bytes.len() >= MIN_GAP {
                found.push(UncoveredGap {
                    before: len,
                    address: gap.start,
                    bytes,
                });
                len += bytes.len() as u64;
            }
        }
        UncoveredCode { gaps: found, len }
    }

    /// The size of the code, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The parts of the code, as link-time addresses, in which the frame pointer is written but not
    /// set up; `None` if too little work is left.
    pub(crate) fn islands(&self, work: &mut ConversionWork) -> Option<Vec<Range<u64>>> {
        let mut islands = Vec::new();
        let mut add = |written: &Range<u64>, writes| {
            if writes >= MIN_WRITES {
                let start = written.start.saturating_sub(MARGIN);
                islands.push(start..written.end.saturating_add(MARGIN));
            }
        };
        let mut factory = InstructionInfoFactory::new();
        // Writes that are near each other.
        let (mut written, mut writes) = (0_u64..0, 0);
        for gap in &self.gaps {
            if !work.take(gap.bytes.len() as u64) {
                return None;
            }
            for instruction in instructions(gap.bytes, gap.address) {
                if !is_write(&instruction, &mut factory) {
                    continue;
                }
                let at = instruction.ip();
                if writes == 0 || at > written.end.saturating_add(MAX_DISTANCE) {
                    add(&written, writes);
                    (written.start, writes) = (at, 0);
                }
                written.end = at;
                writes += 1;
            }
        }
        add(&written, writes);
        merge(&mut islands);
        let parts = self.gaps.iter().flat_map(|gap| {
            let end = gap.address + gap.bytes.len() as u64;
            let first = islands.partition_point(|island| island.end <= gap.address);
            let islands = islands[first..].iter();
            let within = islands.take_while(move |island| island.start < end);
            within.map(move |island| island.start.max(gap.address)..island.end.min(end))
        });
        Some(parts.collect())
    }

    /// The called functions in sorted parts of the code that save the frame pointer first; `None`
    /// if too little work is left. These are certainly functions: a function that is called from
    /// far away may follow a call that does not return.
    pub(crate) fn functions_in(
        &self,
        islands: &[Range<u64>],
        work: &mut ConversionWork,
    ) -> Option<BTreeSet<u64>> {
        let mut found = BTreeSet::new();
        for gap in &self.gaps {
            if !work.take(gap.bytes.len() as u64) {
                return None;
            }
            let all = instructions(gap.bytes, gap.address);
            let calls = all.filter(|instruction| instruction.is_call_near());
            let targets = calls.map(|call| call.near_branch_target());
            found.extend(targets.filter(|target| {
                let island = islands.partition_point(|island| island.end <= *target);
                let is_within = islands.get(island).is_some_and(|at| at.start <= *target);
                is_within
                    && instructions(self.at(*target), *target)
                        .next()
                        .is_some_and(is_push)
            }));
        }
        Some(found)
    }

    /// Samples the calls; `None` if there is little code. Without calls if too little work is left.
    pub(crate) fn calls(&self, work: &mut ConversionWork) -> Option<SampledCalls> {
        if self.len < MIN_CODE {
            return None;
        }
        let counted = self.count_calls(work);
        Some(SampledCalls {
            code: self.len,
            ..counted.unwrap_or_default()
        })
    }

    /// Counts the calls of functions; `None` if no work is left.
    fn count_calls(&self, work: &mut ConversionWork) -> Option<SampledCalls> {
        let functions: Vec<u64> = self.called(work)?.into_iter().collect();
        let mut counted = SampledCalls::default();
        let each = functions.len().div_ceil(MAX_FUNCTIONS).max(1);
        for index in (0..functions.len()).step_by(each) {
            let next = functions.get(index + 1).copied().unwrap_or(u64::MAX);
            let (calls, in_frames) = self.calls_of(functions[index], next, work)?;
            counted.calls += calls;
            counted.in_frames += in_frames;
        }
        Some(counted)
    }

    /// The functions in this code that are called in windows, which are spread over the code;
    /// `None` if no work is left.
    fn called(&self, work: &mut ConversionWork) -> Option<BTreeSet<u64>> {
        let mut called = BTreeSet::new();
        let windows = MAX_WINDOWS.min(self.len.div_ceil(WINDOW as u64));
        for window in 0..windows {
            let at = (u128::from(self.len) * u128::from(window) / u128::from(windows)) as u64;
            let first = self.gaps.partition_point(|gap| gap.before <= at) - 1;
            let mut skip = (at - self.gaps[first].before) as usize;
            let mut left = WINDOW;
            for gap in &self.gaps[first..] {
                let bytes = &gap.bytes[skip..];
                let bytes = &bytes[..bytes.len().min(left)];
                let start = gap.address + skip as u64;
                let certain = start.saturating_add(if skip == 0 { 0 } else { UNCERTAIN });
                if !work.take(bytes.len() as u64) {
                    return None;
                }
                let calls = instructions(bytes, start)
                    .filter(|instruction| instruction.ip() >= certain && instruction.is_call_near())
                    .map(|call| call.near_branch_target());
                called.extend(calls.filter(|target| !self.at(*target).is_empty()));
                left -= bytes.len();
                if left == 0 {
                    break;
                }
                skip = 0;
            }
        }
        Some(called)
    }

    /// The number of calls in the function at `start`, and of those in its frame; `None` if no work
    /// is left. Another function starts at `next`.
    fn calls_of(&self, start: u64, next: u64, work: &mut ConversionWork) -> Option<(u64, u64)> {
        let (mut calls, mut in_frames) = (0, 0);
        let (mut has_pushed, mut has_frame) = (false, false);
        // The furthest target of a forward jump. Code up to there belongs to the function.
        let mut furthest = start;
        let all = instructions(self.at(start), start);
        for instruction in all.take(MAX_INSTRUCTIONS) {
            let end = instruction.next_ip();
            if instruction.ip() >= next || instruction.is_invalid() {
                break;
            }
            if !work.take(1) {
                return None;
            }
            has_pushed |= is_push(instruction);
            has_frame |= match set_up(&instruction) {
                Some(FrameSetUp::Push) => has_pushed,
                // Later, this may be an address on the stack.
                Some(FrameSetUp::Lea) => calls == 0,
                None => false,
            };
            let target = instruction.near_branch_target();
            let is_within = match instruction.flow_control() {
                FlowControl::ConditionalBranch => target < next,
                FlowControl::UnconditionalBranch => target < next.min(end.saturating_add(MAX_JUMP)),
                _ => false,
            };
            if is_within {
                furthest = furthest.max(target);
            }
            if instruction.is_call_near() || instruction.is_call_near_indirect() {
                calls += 1;
                in_frames += u64::from(has_frame);
            }
            if is_end(&instruction) && end > furthest {
                break;
            }
        }
        Some((calls, in_frames))
    }

    /// The bytes from a link-time address in a gap to the gap's end.
    fn at(&self, address: u64) -> &'a [u8] {
        let behind = self.gaps.partition_point(|gap| gap.address <= address);
        let gap = behind.checked_sub(1).and_then(|index| self.gaps.get(index));
        let bytes = gap.and_then(|gap| {
            let at = usize::try_from(address - gap.address).ok()?;
            gap.bytes.get(at..)
        });
        bytes.unwrap_or_default()
    }
}

fn instructions(bytes: &[u8], start: u64) -> impl Iterator<Item = Instruction> + '_ {
    Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter()
}

/// Whether the next instruction runs only if there is a jump to it.
fn is_end(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Interrupt
            | FlowControl::Exception
    )
}

/// `push %rbp`
fn is_push(instruction: Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Push && instruction.op0_register() == Register::RBP
}

/// Whether an instruction writes the frame pointer, but neither sets it up nor takes the caller's
/// from the stack.
fn is_write(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    const RESTORES: [Mnemonic; 4] = [
        Mnemonic::Push,
        Mnemonic::Pop,
        Mnemonic::Enter,
        Mnemonic::Leave,
    ];
    if instruction.op0_register().full_register() != Register::RBP
        || RESTORES.contains(&instruction.mnemonic())
        || set_up(instruction).is_some()
    {
        return false;
    }
    let is_read = |access| matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::None);
    !is_read(factory.info(instruction).op0_access())
}

/// How a function sets up its frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameSetUp {
    /// `mov %rsp,%rbp`, behind `push %rbp`
    Push,
    /// `lea N(%rsp),%rbp`: Go up to version 1.20
    Lea,
}

fn set_up(instruction: &Instruction) -> Option<FrameSetUp> {
    if instruction.op0_register() != Register::RBP {
        return None;
    }
    let is_lea =
        instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None;
    match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op1_register() == Register::RSP => Some(FrameSetUp::Push),
        Mnemonic::Lea if is_lea => Some(FrameSetUp::Lea),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

    /// The link-time address of the code.
    const TEXT: u64 = 0x40_0000;
    /// The size of a function, in bytes.
    const SIZE: usize = 64;
    /// The place of a call of the next function.
    const CALL: &[u8] = b"\xe8\0\0\0\0";

    const FRAMED: [&[u8]; 3] = [b"\x55\x48\x89\xe5", CALL, b"\x5d\xc3"];
    /// push %rbx; call; pop %rbx; ret
    const UNFRAMED: [&[u8]; 3] = [b"\x53", CALL, b"\x5b\xc3"];

    /// Code of `count` functions, of which each calls the next one, if it calls one.
    fn code(count: usize, function: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
        let mut text = Vec::new();
        for number in 0..count {
            let start = text.len();
            text.extend(function(number));
            text.resize(start + SIZE, 0xcc);
            let mut places = text[start..].windows(CALL.len());
            if let Some(at) = places.position(|bytes| bytes == CALL) {
                let distance = SIZE - at - CALL.len();
                text[start + at + 1] = distance as u8;
            }
        }
        text
    }

    fn calls_with(text: &[u8], work: &mut ConversionWork) -> Option<SampledCalls> {
        let end = TEXT + text.len() as u64;
        let code = CodeBytes {
            segments: vec![(TEXT, end, text)],
        };
        UncoveredCode::of(slice::from_ref(&(TEXT..end)), &code).calls(work)
    }

    fn calls(text: &[u8]) -> Option<SampledCalls> {
        calls_with(text, &mut ConversionWork::new(text))
    }

    /// The verdict about 1,200 functions.
    fn verdict(function: impl Fn(usize) -> Vec<u8>) -> FramePointers {
        let text = code(1200, function);
        calls(&text).unwrap().frame_pointers()
    }

    #[test]
    fn functions_that_set_up_frames_keep_frame_pointers() {
        let framed: [&[&[u8]]; 4] = [
            &FRAMED,
            // A late prologue: test %edi,%edi; je 1f; ...; 1: ret
            &[b"\x85\xff\x74\x0a", b"\x55\x48\x89\xe5", CALL, b"\x5d\xc3"],
            // Go: cmp 16(%r14),%rsp; jbe 1f; push %rbp; mov %rsp,%rbp; sub $16,%rsp; call; add
            // $16,%rsp; pop %rbp; ret; 1: call; jmp
            &[
                b"\x49\x3b\x66\x10\x76\x13\x55\x48\x89\xe5\x48\x83\xec\x10",
                CALL,
                b"\x48\x83\xc4\x10\x5d\xc3\xe8\x01\0\0\0\xeb\xde",
            ],
            // Go up to 1.20: sub $24,%rsp; mov %rbp,16(%rsp); lea 16(%rsp),%rbp; call; mov
            // 16(%rsp),%rbp; add $24,%rsp; ret
            &[
                b"\x48\x83\xec\x18\x48\x89\x6c\x24\x10\x48\x8d\x6c\x24\x10",
                CALL,
                b"\x48\x8b\x6c\x24\x10\x48\x83\xc4\x18\xc3",
            ],
        ];
        for parts in framed {
            let counted = calls(&code(1200, |_| parts.concat())).unwrap();
            assert!(
                counted.calls > 1100 && counted.in_frames == counted.calls,
                "{counted:?}"
            );
            assert_eq!(counted.frame_pointers(), FramePointers::Kept);
        }
    }

    #[test]
    fn other_functions_do_not() {
        let unframed: [&[&[u8]]; 4] = [
            &UNFRAMED,
            // push %rbp; mov %rdi,%rbp; call; pop %rbp; ret
            &[b"\x55\x48\x89\xfd", CALL, b"\x5d\xc3"],
            // mov %rsp,%rbp; call; ret
            &[b"\x48\x89\xe5", CALL, b"\xc3"],
            // sub $8,%rsp; call; lea 8(%rsp),%rbp; call *%rax; ret
            &[
                b"\x48\x83\xec\x08",
                CALL,
                b"\x48\x8d\x6c\x24\x08\xff\xd0\xc3",
            ],
        ];
        for parts in unframed {
            let counted = calls(&code(1200, |_| parts.concat())).unwrap();
            assert!(
                counted.calls > 1100 && counted.in_frames == 0,
                "{counted:?}"
            );
            assert_eq!(counted.frame_pointers(), FramePointers::NotKept);
        }
    }

    #[test]
    fn functions_that_call_nothing_tell_nothing() {
        // mov %edi,%eax; ret. It is called by the function in front of it.
        let leaf = b"\x89\xf8\xc3";
        let alternating = |number: usize| match number % 2 {
            0 => FRAMED.concat(),
            _ => leaf.to_vec(),
        };
        // No call leads to the functions that call.
        assert_eq!(verdict(alternating), FramePointers::Unsure);
        let mut text = code(2400, alternating);
        // call; call; ...: of each function.
        let count = text.len() / SIZE;
        let all = text.len();
        for number in 0..count {
            let distance = (number * SIZE) as i32 - (text.len() + 5) as i32;
            text.push(0xe8);
            text.extend(distance.to_le_bytes());
        }
        let counted = calls(&text).unwrap();
        assert_eq!(counted.code, (all + 5 * count) as u64);
        assert!(counted.calls > 1000, "{counted:?}");
        assert_eq!(counted.frame_pointers(), FramePointers::Kept);
    }

    #[test]
    fn a_part_of_the_code_is_not_enough() {
        let mixed = |framed| {
            verdict(|number| match number % 100 < framed {
                true => FRAMED.concat(),
                false => UNFRAMED.concat(),
            })
        };
        assert_eq!(mixed(97), FramePointers::Kept);
        assert_eq!(mixed(80), FramePointers::Unsure);
        assert_eq!(mixed(40), FramePointers::NotKept);
        let counted = |calls, in_frames| SampledCalls {
            code: SMALL,
            calls,
            in_frames,
        };
        let at_limits = [
            ((1000, 950), FramePointers::Kept),
            ((1000, 949), FramePointers::Unsure),
            ((1000, 600), FramePointers::Unsure),
            ((1000, 599), FramePointers::NotKept),
            ((200, 200), FramePointers::Kept),
            ((200, 0), FramePointers::NotKept),
            ((199, 199), FramePointers::Unsure),
            ((199, 0), FramePointers::Unsure),
            ((0, 0), FramePointers::Unsure),
        ];
        for ((calls, in_frames), expected) in at_limits {
            assert_eq!(counted(calls, in_frames).frame_pointers(), expected);
        }
    }

    #[test]
    fn in_little_code_fewer_calls_are_enough() {
        let counted = |code, calls, in_frames| {
            let counted = SampledCalls {
                code,
                calls,
                in_frames,
            };
            counted.frame_pointers()
        };
        assert_eq!(counted(SMALL - 1, 20, 19), FramePointers::Kept);
        assert_eq!(counted(SMALL - 1, 20, 18), FramePointers::Unsure);
        assert_eq!(counted(SMALL - 1, 15, 15), FramePointers::Unsure);
        assert_eq!(counted(SMALL - 1, 16, 9), FramePointers::NotKept);
        assert_eq!(counted(SMALL, 30, 30), FramePointers::Unsure);
    }

    #[test]
    fn very_little_code_is_not_looked_at() {
        let text = code(64, |_| FRAMED.concat());
        assert_eq!(calls(&text).unwrap().frame_pointers(), FramePointers::Kept);
        assert_eq!(calls(&text[1..]), None);
        // Padding between functions is no code.
        let code = CodeBytes {
            segments: vec![(TEXT, TEXT + text.len() as u64, &text)],
        };
        let gaps = |size: u64| {
            let starts = (TEXT..TEXT + text.len() as u64).step_by(SIZE);
            let gaps: Vec<_> = starts.map(|start| start..start + size).collect();
            UncoveredCode::of(&gaps, &code).len
        };
        assert_eq!(gaps(MIN_GAP as u64 - 1), 0);
        assert_eq!(gaps(MIN_GAP as u64), 64 * MIN_GAP as u64);
    }

    #[test]
    fn the_code_of_small_gaps_is_sampled() {
        let text = code(2400, |_| FRAMED.concat());
        let end = TEXT + text.len() as u64;
        let code = CodeBytes {
            segments: vec![(TEXT, end, &text)],
        };
        let starts = (TEXT..end).step_by(SIZE);
        let gaps: Vec<_> = starts.map(|start| start..start + 48).collect();
        let counted = UncoveredCode::of(&gaps, &code)
            .calls(&mut ConversionWork::new(&text))
            .unwrap();
        assert_eq!(counted.code, 2400 * 48);
        assert!(counted.calls >= 2300, "{counted:?}");
        assert_eq!(counted.frame_pointers(), FramePointers::Kept);
    }

    /// Islands of code that consists of `nop` but for instructions at offsets; as offsets.
    fn islands(gaps: &[Range<u64>], written: &[(usize, &[u8])]) -> Vec<Range<u64>> {
        let mut text = vec![0x90; 1 << 18];
        for (at, bytes) in written {
            text[*at..][..bytes.len()].copy_from_slice(bytes);
        }
        let code = CodeBytes {
            segments: vec![(TEXT, TEXT + text.len() as u64, &text)],
        };
        let with = |add: u64, ranges: &[Range<u64>]| -> Vec<_> {
            let ranges = ranges.iter();
            let add = |at: u64| at.wrapping_add(add);
            ranges
                .map(|range| add(range.start)..add(range.end))
                .collect()
        };
        let found = UncoveredCode::of(&with(TEXT, gaps), &code)
            .islands(&mut ConversionWork::new(&text))
            .unwrap();
        with(0_u64.wrapping_sub(TEXT), &found)
    }

    #[test]
    fn four_writes_near_each_other_are_an_island() {
        const KIB: usize = 1 << 10;
        // xor %ebp,%ebp
        let written = |places: &[usize]| {
            let written: Vec<_> = places.iter().map(|at| (*at, &b"\x31\xed"[..])).collect();
            islands(slice::from_ref(&(0..1 << 18)), &written)
        };
        let kib = |start: usize, end: usize| (start * KIB) as u64..(end * KIB) as u64;
        let at = |numbers: &[usize]| -> Vec<_> { numbers.iter().map(|at| at * KIB).collect() };
        assert_eq!(written(&at(&[20, 36, 52, 68])), [kib(4, 84)]);
        assert_eq!(written(&at(&[20, 36, 52])), []);
        assert_eq!(written(&[20 * KIB, 36 * KIB, 52 * KIB, 68 * KIB + 1]), []);
        // The margins are within the code, and islands do not overlap.
        let two = [8, 9, 10, 11, 40, 41, 42, 43, 100, 200, 246, 247, 248, 249];
        assert_eq!(written(&at(&two)), [kib(0, 59), kib(230, 256)]);
        assert_eq!(written(&[]), []);
    }

    #[test]
    fn islands_are_in_the_gaps() {
        let written = [0x1000, 0x2000, 0x5000, 0x8000].map(|at| (at, &b"\x31\xed"[..]));
        let gaps = [0..0x1800, 0x1f00..0x3000, 0x4800..0x9000, 0xf000..0x2_0000];
        let expected = [
            0..0x1800,
            0x1f00..0x3000,
            0x4800..0x9000,
            0xf000..0xc000 + 0x4000,
        ];
        assert_eq!(islands(&gaps, &written)[..3], expected[..3]);
        assert_eq!(islands(&gaps, &written).len(), 3);
        assert_eq!(islands(&gaps[1..], &written), []);
    }

    #[test]
    fn frames_are_no_islands() {
        let island = |bytes: &[u8]| {
            let written: Vec<_> = (0..10).map(|number| (0x100 * number, bytes)).collect();
            !islands(slice::from_ref(&(0..1 << 18)), &written).is_empty()
        };
        let frames: [&[u8]; 9] = [
            b"\x55\x48\x89\xe5\x5d", // push %rbp; mov %rsp,%rbp; pop %rbp
            b"\x48\x8d\x6c\x24\x10", // lea 16(%rsp),%rbp
            b"\xc8\x10\0\0\xc9",     // enter $16,$0; leave
            b"\x48\x39\xc5",         // cmp %rax,%rbp
            b"\x48\x85\xed",         // test %rbp,%rbp
            b"\x48\x89\xe8",         // mov %rbp,%rax
            b"\x48\x89\x45\x08",     // mov %rax,8(%rbp)
            b"\xff\xd5",             // call *%rbp
            b"\x48\x01\xd8",         // add %rbx,%rax
        ];
        for bytes in frames {
            assert!(!island(bytes), "{bytes:x?}");
        }
        let others: [&[u8]; 5] = [
            b"\x48\x8b\x6f\x08",     // mov 8(%rdi),%rbp
            b"\x48\x83\xc5\x01",     // add $1,%rbp
            b"\x40\xb5\x01",         // mov $1,%bpl
            b"\x48\x0f\x44\xe8",     // cmove %rax,%rbp
            b"\x48\x8d\x6c\x04\x10", // lea 16(%rsp,%rax),%rbp
        ];
        for bytes in others {
            assert!(island(bytes), "{bytes:x?}");
        }
    }

    #[test]
    fn called_functions_in_islands_are_known() {
        let count = 1200;
        let text = code(count, |number| match number % 2 {
            0 => FRAMED.concat(),
            _ => UNFRAMED.concat(),
        });
        let end = TEXT + text.len() as u64;
        let code = CodeBytes {
            segments: vec![(TEXT, end, &text)],
        };
        let uncovered = UncoveredCode::of(slice::from_ref(&(TEXT..end)), &code);
        let at = |number: usize| TEXT + (number * SIZE) as u64;
        let islands = [at(2)..at(5), at(7) + 1..at(9), at(1000)..at(1000) + 1];
        let mut work = ConversionWork::new(&text);
        let found = uncovered.functions_in(&islands, &mut work).unwrap();
        assert_eq!(found, [2, 4, 8, 1000].map(at).into());
        assert_eq!(work.taken(), text.len() as u64);
        assert_eq!(
            uncovered.functions_in(&[], &mut work),
            Some(BTreeSet::new())
        );
    }

    #[test]
    fn the_work_is_bounded() {
        let most = MAX_WINDOWS * WINDOW as u64 + (MAX_FUNCTIONS * MAX_INSTRUCTIONS) as u64;
        let large = 64 << 20;
        let texts = [
            // A call in each byte.
            vec![0xe8; large],
            [0xe8, 0xff].repeat(large / 2),
            // call of the call itself; jump forward
            [0xe8, 0xfb, 0xff, 0xff, 0xff, 0xeb, 0x00].repeat(large / 7),
            code(large / SIZE, |_| FRAMED.concat()),
        ];
        for text in texts {
            let mut work = ConversionWork::new(&text);
            let counted = calls_with(&text, &mut work).unwrap();
            assert_eq!(counted.code, text.len() as u64);
            assert!(work.taken() <= most, "{}", work.taken());
        }
    }

    #[test]
    fn without_work_nothing_is_told() {
        let text = code(1200, |_| FRAMED.concat());
        let mut work = ConversionWork::new(&text);
        assert!(calls_with(&text, &mut work).unwrap().calls > 0);
        let needed = work.taken();
        for left in [0, 1, needed / 2, needed - 1] {
            let mut work = ConversionWork::new(&text);
            let all = crate::max_steps(text.len() as u64);
            assert!(work.take(all - left));
            let counted = calls_with(&text, &mut work).unwrap();
            assert_eq!(counted.frame_pointers(), FramePointers::Unsure, "{left}");
        }
        let code = CodeBytes {
            segments: vec![(TEXT, TEXT + text.len() as u64, &text)],
        };
        let gap = TEXT..TEXT + text.len() as u64;
        let mut work = ConversionWork::new(&text);
        let uncovered = UncoveredCode::of(slice::from_ref(&gap), &code);
        assert!(uncovered.islands(&mut work).is_some());
        assert_eq!(work.taken(), text.len() as u64);
        assert!(work.take(crate::max_steps(text.len() as u64) - 2 * text.len() as u64 + 1));
        assert!(uncovered.islands(&mut work).is_none());
    }
}
