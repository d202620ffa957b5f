// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The checks of the fuzzer's targets (`fuzz/fuzz_targets/`), which the tests also run over the
//! fuzzer's corpus: no bytes do harm, and the answers of different lookups agree.

use std::cell::Cell;

use sframe::{
    abi::Abi,
    bytes::{
        Fault,
        Source, //
    },
    elf::{
        find_sframe,
        has_sframe,
        ElfError, //
    },
    error::Error,
    fde::Function,
    header::Version,
    rule::{
        Base,
        Cfa,
        Extra,
        Location,
        Rule, //
    },
    runtimes::{
        self,
        hotspot,
        unknown,
        CodeHeap,
        Region,
        TaggedStack, //
    },
    section::{
        Search,
        Section,
        MAX_EMPTY_BOUNDED,
        MAX_ROWS_BOUNDED, //
    },
    unwind::{
        step,
        step_by_frame_pointer,
        Frame,
        Memory,
        RegisterSource,
        Step,
        Words, //
    },
    x86_64::{
        ends_with_call,
        fallback::{
            self,
            FramePointer, //
        },
        rule_of_stub,
        rule_without_frame_pointer,
        FixedRule,
        STUB, //
    }, //
};

use super::source::Watched;

/// The most reads of a bounded search: the bisection of 32 bits, the functions at its end (up to
/// three reads each), the rows, and the words of the chosen row.
const MOST_READS: u64 = 32 + 3 * (2 + MAX_EMPTY_BOUNDED as u64) + MAX_ROWS_BOUNDED as u64 + 3;

/// The most functions of a section for which every address near the start and the end is looked up.
const MOST_FUNCTIONS: usize = 16;

/// Reads `data` as a section, at three addresses. At two of them, code addresses wrap around.
pub(crate) fn section(data: &[u8]) {
    for address in [0x10_0000, 0, u64::MAX - 0x80] {
        sections(data, address);
    }
    if let Some(stub) = data.last_chunk::<STUB>() {
        code(stub);
    }
}

fn sections(data: &[u8], address: u64) {
    let bytes = Watched::new(data);
    let len = data.len() as u64;
    let mut next = Section::open(&bytes, address, len).ok();
    let mut end = 0;
    while let Some(section) = next {
        assert!(section.offset() >= end, "sections have to rise");
        assert!(section.offset() < section.end() && u64::from(section.end()) <= len);
        end = section.end();
        one_section(&section, &bytes, len);
        next = section.next(&bytes).ok().flatten();
    }
}

fn one_section(section: &Section, bytes: &Watched<'_>, len: u64) {
    bytes.reads();
    let good = section.verify(bytes).is_ok();
    // A function takes up to four reads. A row takes at least two bytes and up to four reads.
    let functions = u64::from(section.num_fdes()).min(len);
    assert!(bytes.reads() <= (functions + 1) * (4 + 2 * len));

    let mut pcs: Vec<u64> = (0..64)
        .map(|at| section.address().wrapping_add(at))
        .collect();
    for function in section.functions(bytes).flatten().take(MOST_FUNCTIONS) {
        let end = function.start().wrapping_add(function.size().into());
        for at in 0..20 {
            pcs.push(function.start().wrapping_sub(1).wrapping_add(at));
            pcs.push(end.wrapping_sub(18).wrapping_add(at));
        }
        let mut rows = section.rows(bytes, &function);
        let mut last = None;
        for row in rows.by_ref().map_while(Result::ok) {
            assert!(last < Some(row.start), "rows have to rise");
            last = Some(row.start);
            pcs.push(function.start().wrapping_add(row.start.into()));
        }
        assert!(
            rows.next().is_none(),
            "nothing comes after an error or the end"
        );
    }
    pcs.truncate(1000);

    for &pc in &pcs {
        look_up(section, bytes, pc, good);
    }
    let mut settled = *section;
    // As if all addresses below the middle one of `pcs` were code.
    let middle = pcs[pcs.len() / 2];
    if settled.settle_starts(bytes, |at| at < middle).is_ok() {
        for &pc in pcs.iter().take(64) {
            look_up(&settled, bytes, pc, false);
        }
    }
}

/// Looks one address up by all searches. The results must agree; in a `good` section, also with a
/// simple linear search.
fn look_up(section: &Section, bytes: &Watched<'_>, pc: u64, good: bool) {
    bytes.reads();
    let bounded = section.find(bytes, pc, Search::Bounded);
    let reads = bytes.reads();
    assert!(reads <= MOST_READS, "{reads} reads");
    let thorough = section.find(bytes, pc, Search::Thorough);
    if !section.is_sorted() {
        assert_eq!(bounded, Err(Error::TooLong));
    } else if bounded != Err(Error::TooLong) {
        assert_eq!(bounded, thorough);
    }
    if good {
        assert_eq!(thorough, Ok(by_hand(section, bytes, pc)));
    }
}

/// The rule at `pc` in a correct section, found by a simple linear search.
fn by_hand(section: &Section, bytes: &Watched<'_>, pc: u64) -> Option<Rule> {
    let distance = |at: u64| at.wrapping_sub(section.address()) as i64;
    let functions: Vec<Function> = section.functions(bytes).map(Result::unwrap).collect();
    let function = if section.is_sorted() {
        // The last function that starts at or before `pc` and is not empty.
        let before = functions.iter().rev();
        let mut before = before.skip_while(|function| distance(function.start()) > distance(pc));
        before.find(|function| function.covers(pc) || function.size() != 0)?
    } else {
        // Among the functions that cover `pc`, the one with the highest start; among equal starts,
        // the first function.
        let covering = functions.iter().rev();
        let covering = covering.filter(|function| function.covers(pc));
        covering.max_by_key(|function| function.start())?
    };
    if !function.covers(pc) {
        return None;
    }
    let mut offset = pc.wrapping_sub(function.start()) as u32;
    if let Some(block) = function.repeat() {
        offset %= u32::from(block.get());
    }
    if function.num_rows() == 0
        && section.version() == Version::V3
        && !function.is_flexible()
        && !function.is_signal()
    {
        return Some(Rule::OUTERMOST);
    }
    let rows = section.rows(bytes, function).map(Result::unwrap);
    let row = rows.take_while(|row| row.start <= offset).last()?;
    Some(row.rule)
}

fn code(stub: &[u8; STUB]) {
    for offset in 0..=STUB as u32 {
        if let Some(rule) = rule_of_stub(stub, offset) {
            assert_eq!(rule.cfa.base, Base::Sp);
            assert!([8, 16, 24].contains(&rule.cfa.offset));
        }
    }
    if let Some(rule) = stub.first_chunk().and_then(rule_without_frame_pointer) {
        assert!([8, 16].contains(&rule.cfa));
    }
    stub.first_chunk().map(ends_with_call);
}

/// Reads `data` as an ELF file, and looks up each offset that a program header may name.
pub(crate) fn elf(data: &[u8]) {
    let bytes = Watched::lenient(data);
    let has = has_sframe(&bytes);
    let mut offsets = vec![0, 0x1000, u64::MAX];
    for word in data.chunks_exact(8).take(200) {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        offsets.extend([word, word.wrapping_sub(1), word.wrapping_add(1)]);
    }
    for offset in offsets {
        bytes.reads();
        let found = find_sframe(&bytes, offset);
        // The file header takes three reads, and each program header two.
        assert!(bytes.reads() <= 3 + 2 * 64);
        match found {
            Ok(found) => {
                assert!(offset.wrapping_sub(found.load_offset) < found.load_filesz);
                assert_eq!(has, Ok(found.sframe.is_some()));
                let _ = found.link_address(offset);
            }
            // Any other error concerns the whole file, so both functions report it. For these two
            // errors, `has_sframe` may have ended before the place of the error.
            Err(ElfError::NotLoaded) => assert!(has.is_ok()),
            Err(ElfError::Fault { .. } | ElfError::HeaderOffset) => {}
            Err(error) => assert_eq!(has, Err(error)),
        }
    }
}

/// Takes bytes from the front of a slice, and zeros after the slice's end.
struct Taker<'a>(&'a [u8]);

impl Taker<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let (front, rest) = self.0.split_at(N.min(self.0.len()));
        taken[..front.len()].copy_from_slice(front);
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    fn offset(&mut self) -> i32 {
        match self.byte() {
            // Small values mostly, any value sometimes.
            0xff => i32::from_le_bytes(self.take()),
            small => i32::from(small as i8) * 8,
        }
    }

    fn address(&mut self) -> u64 {
        match self.byte() {
            0xff => u64::from_le_bytes(self.take()),
            near => STACK + 8 * u64::from(near),
        }
    }

    fn base(&mut self) -> Base {
        match self.byte() {
            0 => Base::Sp,
            1 => Base::Fp,
            number => Base::Register(number),
        }
    }

    fn location(&mut self) -> Location {
        match self.byte() % 6 {
            0 => Location::Unchanged,
            1 => Location::Undefined,
            2 => Location::AtCfa(self.offset()),
            3 => Location::OfCfa(self.offset()),
            4 => Location::At(self.base(), self.offset()),
            _ => Location::Of(self.base(), self.offset()),
        }
    }
}

const STACK: u64 = 0x7ffe_0000;

/// Words with arbitrary contents, some of them unreadable.
pub(crate) struct HostileWords<'a>(&'a [u8]);

impl HostileWords<'_> {
    pub(crate) fn word(&self, index: u64) -> Option<u64> {
        let count = self.0.len() as u64 / 9;
        let at = 9 * usize::try_from(index.checked_rem(count)?).ok()?;
        let word = self.0[at + 1..at + 9].try_into().ok()?;
        // The byte in front of each word decides: the word is unreadable, or is an address in the
        // stack, or has the value that follows.
        match self.0[at] {
            0 => None,
            byte if byte % 2 == 0 => Some(STACK + 8 * u64::from(byte)),
            _ => Some(u64::from_le_bytes(word)),
        }
    }
}

/// The memory and the registers of a process: hostile words.
struct Hostile<'a> {
    words: &'a HostileWords<'a>,
    reads: Cell<u32>,
}

impl Memory for Hostile<'_> {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        self.reads.set(self.reads.get() + 1);
        self.words.word(address / 8).ok_or(Fault)
    }
}

impl RegisterSource for Hostile<'_> {
    fn register(&self, number: u8) -> Option<u64> {
        self.words.word(number.into())
    }
}

/// An input of [`walk()`].
pub(crate) struct StepInput<'a> {
    pub(crate) abi: Abi,
    /// The alignment of the CFA, and the bytes between it and the stack pointer.
    alignment: u64,
    save_area: u64,
    flags: u8,
    pub(crate) rule: Rule,
    /// The innermost frame.
    pub(crate) frame: Frame,
    pub(crate) memory: HostileWords<'a>,
}

impl StepInput<'_> {
    pub(crate) fn new(data: &[u8]) -> StepInput<'_> {
        let mut taker = Taker(data);
        let (abi, alignment, save_area) = match taker.byte() % 4 {
            0 => (Abi::Amd64, 8, 0),
            1 => (Abi::Aarch64, 16, 0),
            2 => (Abi::Aarch64Big, 16, 0),
            _ => (Abi::S390x, 8, 160),
        };
        let flags = taker.byte();
        StepInput {
            abi,
            alignment,
            save_area,
            flags,
            rule: Rule {
                cfa: Cfa {
                    base: taker.base(),
                    offset: taker.offset(),
                    deref: flags & 1 != 0,
                    plus: if flags & 1 != 0 { flags as i8 } else { 0 },
                },
                ra: taker.location(),
                fp: taker.location(),
                mangled: flags & 2 != 0 && abi.may_mangle(),
                signal: flags & 4 != 0,
                extra: Extra::NONE,
            },
            frame: Frame {
                pc: taker.address(),
                sp: taker.address(),
                fp: taker.address(),
            },
            memory: HostileWords(taker.0),
        }
    }

    /// Whether step number `count` is by the rule, and not by the frame pointer.
    pub(crate) fn is_by_rule(&self, count: u32) -> bool {
        self.flags & 8 == 0 || (self.flags >> (4 + count % 4)) & 1 == 0
    }
}

/// Walks by a hostile rule over hostile memory: each step rises, or the walk ends. Only a frame
/// that a signal interrupted may be at any address.
pub(crate) fn walk(data: &[u8]) {
    let input = StepInput::new(data);
    let rule = &input.rule;
    let mut frame = input.frame;
    let memory = Hostile {
        words: &input.memory,
        reads: Cell::new(0),
    };
    for count in 0..32 {
        let by_rule = input.is_by_rule(count);
        let registers = (count == 0).then_some(&memory);
        let stepped = if by_rule {
            step(input.abi, rule, &frame, &registers, &memory)
        } else {
            step_by_frame_pointer(&frame, &memory)
        };
        // CFA, return address and frame pointer. The last two are read once more if the read of
        // both fails.
        assert!(memory.reads.take() <= 5);
        let Ok(Step::Caller(caller)) = stepped else {
            return;
        };
        if by_rule {
            let saved = matches!(rule.ra, Location::AtCfa(_) | Location::At(..));
            if !rule.signal {
                assert_ne!(caller.pc, 0);
                assert!(caller.sp > frame.sp || (caller.sp == frame.sp && !saved));
                assert_eq!((caller.sp + input.save_area) % input.alignment, 0);
            }
            assert!(!rule.mangled || caller.pc < 1 << 48);
            assert!(!rule.is_outermost());
            // Registers other than SP and FP are known only in the innermost frame.
            if count > 0 {
                assert!(!matches!(rule.cfa.base, Base::Register(_)));
                assert_ne!(rule.ra, Location::Unchanged);
            }
        } else {
            assert_ne!(caller.pc, 0);
            assert!(caller.sp > frame.sp);
        }
        frame = caller;
    }
}

/// The memory of a process. The byte at an address is the input's byte at this address modulo the
/// input's length. One page in 256 cannot be read.
#[derive(Clone, Copy)]
pub(crate) struct RepeatingBytes<'a> {
    pub(crate) bytes: &'a [u8],
    missing: u8,
}

impl RepeatingBytes<'_> {
    pub(crate) fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let last = address.wrapping_add(N as u64 - 1);
        let is_missing = |address: u64| (address >> 12) as u8 == self.missing;
        if self.bytes.is_empty() || is_missing(address) || is_missing(last) {
            return None;
        }
        let start = (address % self.bytes.len() as u64) as usize;
        let mut bytes = self.bytes[start..].iter().chain(self.bytes.iter().cycle());
        Some([0; N].map(|_: u8| *bytes.next().unwrap()))
    }
}

/// The memory and the registers of a process.
struct Repeating<'a> {
    bytes: RepeatingBytes<'a>,
    reads: Cell<u32>,
    spent: Cell<u32>,
}

impl Source for Repeating<'_> {
    fn read<const N: usize>(&self, address: u64) -> Result<[u8; N], Fault> {
        self.reads.set(self.reads.get() + 1);
        self.bytes.read(address).ok_or(Fault)
    }

    fn spend(&self, instructions: u32) -> Result<(), Fault> {
        self.spent.set(self.spent.get() + instructions);
        Ok(())
    }
}

impl Memory for Repeating<'_> {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        self.read(address).map(u64::from_le_bytes)
    }
}

impl RegisterSource for Repeating<'_> {
    fn register(&self, number: u8) -> Option<u64> {
        self.read_word(8 * u64::from(number)).ok()
    }
}

/// The most reads of a step without rows: two searches in a segment map, code, and a search for the
/// end of a comparison.
const MOST_READS_OF_CODE: u32 = 2 * 64 + 40 + 11 * 4;
/// The most reads of a step in code of Erlang: the data of all schedulers, and a frame whose words
/// are checked.
const MOST_READS_OF_ERLANG: u32 = 2 * 1024 + 1024 + 20;
/// The most work that a step without rows takes from the budget besides its reads, in instructions:
/// a search for a call of SBCL, three searches for a function's start, and the decoding of twice 40
/// instructions ahead of the PC, of two stubs with three instructions, and of 25 instructions from
/// the function's start on.
const MOST_WORK_OF_CODE: u32 = 700 + 3 * 100 + (2 * 40 + 2 * 3 + 25) * 400;

/// A fast path finds the frames that single steps find. `fast` stores the PCs that it finds.
/// `may_take`: whether a walk would begin a fast path at this frame, or lead to it by one.
fn fast_walk(
    start: Frame,
    memory: &Repeating<'_>,
    may_take: impl Fn(&Frame) -> bool,
    fast: impl Fn(&mut Frame, &mut [u64]) -> usize,
    step: impl Fn(&Frame) -> Option<Step>,
) {
    let forget = || {
        memory.reads.take();
        memory.spent.take();
    };
    let mut buffer = [0; 16];
    let mut walked = start;
    let found = fast(&mut walked, &mut buffer);
    let mut frame = start;
    for pc in &buffer[..found] {
        if !may_take(&frame) {
            forget();
            return;
        }
        frame = match step(&frame) {
            Some(Step::Caller(caller)) => caller,
            _ => panic!("a step that the fast path has taken"),
        };
        assert_eq!(frame.pc, *pc);
    }
    assert_eq!(walked, frame);
    forget();
}

/// An input of [`code_walk`].
pub(crate) struct CodeInput<'a> {
    flags: u8,
    pub(crate) region: Region,
    /// What is known of code without rows; `None` if a process has made the code.
    pub(crate) frame_pointer: Option<FramePointer>,
    /// The distance of each PC from the start of its function.
    beginning: u64,
    /// The innermost frame.
    pub(crate) frame: Frame,
    pub(crate) memory: RepeatingBytes<'a>,
}

impl CodeInput<'_> {
    pub(crate) fn new(data: &[u8]) -> CodeInput<'_> {
        let mut taker = Taker(data);
        let flags = taker.byte();
        let region = match flags % 4 {
            0 if flags & 4 != 0 => Region::TaggedStack(TaggedStack {
                exit: taker.address(),
                main: taker.address(),
                main_return: taker.address(),
                main_frame: taker.byte().into(),
                registers_offset: taker.byte().into(),
                schedulers: taker.address(),
                scheduler_count: taker.byte().into(),
                scheduler_size: taker.byte().into(),
                process_offset: taker.byte().into(),
            }),
            0 => Region::Stop,
            1 => Region::Fixed(FixedRule {
                cfa: taker.offset(),
                fp: taker.offset(),
                from_fp: flags & 4 != 0,
            }),
            _ => Region::CodeHeap(CodeHeap {
                start: taker.address(),
                segment_map: taker.address(),
                interpreter_start: taker.address(),
                interpreter_len: taker.byte().into(),
                kind_mask: taker.byte().into(),
                frameless_kinds: [taker.byte().into(); 4],
                segment_log2: taker.byte() % 64,
                used_offset: taker.byte(),
                blob_offset: taker.byte(),
                frame_size_offset: taker.byte(),
                frame_complete_offset: taker.byte(),
                frame_complete_is_short: flags & 4 != 0,
                code_offset: taker.byte(),
                code_is_address: flags & 8 != 0,
                kind_offset: taker.byte(),
            }),
        };
        CodeInput {
            flags,
            region,
            frame_pointer: match flags / 16 % 4 {
                0 => Some(FramePointer::Kept),
                1 => Some(FramePointer::Unknown),
                _ => None,
            },
            beginning: taker.byte().into(),
            frame: Frame {
                pc: taker.address(),
                sp: taker.address(),
                fp: taker.address(),
            },
            memory: RepeatingBytes {
                missing: taker.byte(),
                bytes: taker.0,
            },
        }
    }

    /// Whether the code is known to keep a frame pointer.
    pub(crate) fn is_examined(&self) -> bool {
        self.flags & 16 != 0
    }

    /// Whether step number `count` is one without a region.
    pub(crate) fn is_without_region(&self, count: u32) -> bool {
        self.flags & 64 != 0 || self.flags & 128 != 0 && count % 2 == 0
    }

    /// Step number `count`, from `frame`. `registers` are those of the innermost frame.
    pub(crate) fn step<M: Memory + Source, R: RegisterSource>(
        &self,
        count: u32,
        frame: &Frame,
        registers: &R,
        memory: &M,
    ) -> Option<Frame> {
        let is_innermost = count == 0;
        let step = if self.is_without_region(count) {
            let function = |pc: u64| pc.checked_sub(self.beginning);
            let end = frame.sp.saturating_add(1 << 20);
            match self.frame_pointer {
                Some(known) => fallback::step(
                    frame,
                    is_innermost,
                    known,
                    function,
                    end,
                    Some(registers),
                    memory,
                ),
                None => unknown::step(frame, is_innermost, self.is_examined(), end, memory),
            }
        } else {
            let registers = is_innermost.then_some(registers);
            runtimes::step(&self.region, 0..u64::MAX, frame, registers, memory)
        };
        match step {
            Some(Step::Caller(caller)) => Some(caller),
            _ => None,
        }
    }
}

/// Walks by hostile code, and by a hostile description of a region, in hostile memory.
pub(crate) fn code_walk(data: &[u8]) {
    let input = CodeInput::new(data);
    let region = &input.region;
    let memory = Repeating {
        bytes: input.memory,
        reads: Cell::new(0),
        spent: Cell::new(0),
    };
    let mut frame = input.frame;
    let (all, words) = (0..u64::MAX, Words(&memory));
    if let Region::CodeHeap(_) | Region::Fixed(_) = region {
        // Compiled code saves registers below its frame only for calls of code with rows, and a
        // walk begins no fast path there.
        let is_code_heap = matches!(region, Region::CodeHeap(_));
        fast_walk(
            frame,
            &memory,
            |last| !is_code_heap || hotspot::lowered_for_call(last.pc, &memory) == 0,
            |last, buffer| runtimes::run_fast(region, all.clone(), last, &memory, &words, buffer),
            |last| runtimes::step(region, all.clone(), last, None::<&Repeating<'_>>, &memory),
        );
    }
    let stack_end = frame.sp.saturating_add(1 << 20);
    let code = (all, stack_end);
    // Every 8th byte of the code is covered.
    let is_covered = |address: u64| address % 8 == 0;
    fast_walk(
        frame,
        &memory,
        |_| true,
        |last, buffer| unknown::run_fast(code.clone(), is_covered, last, &memory, &words, buffer),
        |last| {
            assert!(!is_covered(last.pc.wrapping_sub(1)));
            unknown::step(last, false, input.is_examined(), stack_end, &memory)
        },
    );
    for count in 0..16 {
        let is_innermost = count == 0;
        let caller = input.step(count, &frame, &memory, &memory);
        let most = match region {
            Region::TaggedStack(_) => MOST_READS_OF_ERLANG,
            _ => MOST_READS_OF_CODE,
        };
        assert!(memory.reads.take() <= most);
        assert!(memory.spent.take() <= MOST_WORK_OF_CODE);
        let Some(caller) = caller else {
            return;
        };
        // The return address of the innermost frame may be in a register. Code of Erlang leads to
        // another stack, and the walk counts such steps.
        assert!(
            caller.sp > frame.sp
                || caller.sp == frame.sp && is_innermost
                || matches!(region, Region::TaggedStack(_)),
            "the stack pointer has to rise"
        );
        frame = caller;
    }
}
