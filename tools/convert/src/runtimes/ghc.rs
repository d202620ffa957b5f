// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Derives rules for the Haskell code of programs that GHC's native code generator made. GHC writes
//! no .eh_frame for Haskell code.
//!
//! Haskell code uses the frame pointer register as the pointer of its own stack, which lies on its
//! heap. The runtime's function `StgRun` (`rts/StgCRun.c` in GHC's source) saves the callee-saved
//! registers, moves the stack pointer down by a constant, and jumps to Haskell code. Haskell
//! procedures only jump to each other, and with that stack pointer: a procedure moves it down for
//! its own spilled values and for calls of C functions, and back before each jump to another
//! procedure. So the caller of all Haskell code is `StgRun`'s caller, and its frame is at a
//! distance from the stack pointer that follows from the instructions.
//!
//! A procedure begins after its info table, which describes it to the garbage collector. The
//! analysis begins at procedures whose addresses occur as words in the program's data, follows all
//! paths, and continues at the procedures whose addresses the code contains. Last it tries the rest
//! of the code: after info tables, at other addresses in data, and after other Haskell code. There
//! a path must end as only Haskell code does. A procedure is dropped if two paths to an instruction
//! have different stack pointers, if the stack pointer is not moved back at a jump to another
//! procedure, or if an instruction uses the stack otherwise than GHC does.

use std::{
    collections::HashSet,
    mem,
    ops::Range, //
};

use iced_x86::{
    Decoder,
    DecoderOptions,
    FlowControl,
    Instruction,
    Mnemonic,
    OpKind,
    Register, //
};
use memchr::memmem;
use object::{
    elf,
    read::elf::{
        ElfFile64,
        ProgramHeader, //
    },
    Endianness,
    Object, //
};
use sframe::rule::{
    Base,
    Location,
    Rule,
    SavedRbx, //
};

use crate::{
    code::CodeBytes,
    eh_frame::extend,
    function::ConvertedFunction,
    runtimes::RuntimeRows,
    work::ConversionWork, //
};

/// The alignment of procedures, and the size of a word, in bytes.
const WORD: u64 = 8;
/// The size of the part of an info table that all have, in bytes: the layout, the type, and the
/// offset of the table of static references.
const INFO_TABLE: u64 = 16;
/// The sizes of info tables, in bytes: with no more than the common part; with a function's arity
/// or a constructor's name; with a function's bitmap and slow entry.
const INFO_TABLES: [u64; 3] = [INFO_TABLE, 24, FUNCTION_TABLE as u64];
/// The closure types of info tables (`rts/include/rts/storage/ClosureTypes.h` in GHC's source); 0
/// is invalid, and the number of types grows slowly.
const CLOSURE_TYPES: Range<u32> = 1..80;
/// Those of constructors, and those of functions and thunks.
const CONSTRUCTORS: Range<u32> = 1..8;
const CLOSURES: Range<u32> = 8..22;
/// Those of functions.
const FUNCTIONS: Range<u32> = 8..15;
/// The size of a function's info table if it states the arguments by a bitmap, in bytes; and the
/// kinds of such lists of arguments (`rts/include/rts/storage/FunTypes.h`).
const FUNCTION_TABLE: usize = 40;
const ARGUMENTS: Range<i32> = 0..2;
/// More than the number of words of any closure that the compiler makes.
const MAX_CLOSURE: u32 = 1 << 16;
/// The maximum number of entries of a jump table.
const MAX_JUMP_TABLE: usize = 4096;
/// The maximum number of instructions that are followed from one place.
const MAX_PATH: usize = 1 << 16;
/// The maximum number of instructions that are decoded for each byte of code. Each is decoded once
/// if no path is wrong.
const WORK: usize = 4;
/// The maximum number of segments that are loaded. Linkers make up to six.
const MAX_SEGMENTS: usize = 64;
/// The number of instructions before a jump that may load its target from a jump table.
const JUMP_TABLE_LOADS: usize = 4;
/// The maximum size of the analysed code, in bytes: more would not fit into one table of rows.
const MAX_CODE: u64 = 1 << 30;
/// The maximum size of a function of the result, in bytes: the offsets of its rows then need 16
/// bits.
const MAX_FUNCTION: u64 = 0xffff;

/// The end of the part of `StgRun` that saves registers, and the jump to Haskell code: `mov
/// %r15,40(%rax); mov %rsi,%r13; mov %rdi,%rax; jmp *%rax`.
const STG_RUN: &[u8] = b"\x4c\x89\x78\x28\x49\x89\xf5\x48\x89\xf8\xff\xe0";
/// The size of the code of `StgRun` before that, in bytes.
const STG_RUN_HEAD: u64 = 33;
/// The maximum size of the code of `StgRun`, in bytes.
const STG_RUN_SIZE: u64 = 96;

/// What is known of `StgRun`. Sizes and offsets are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StgRun {
    /// The link-time address of the function.
    start: u64,
    /// The link-time address of `StgReturn`.
    returns: u64,
    /// The rows of the function, by offset.
    rows: Vec<(u32, Rule)>,
    /// The size of the function.
    size: u32,
    /// The distance from the stack pointer in Haskell code to the end of the frame.
    cfa: i32,
    /// The offset of the saved frame pointer from the end of the frame.
    fp: i32,
}

impl StgRun {
    /// The only function with the code of `StgRun`.
    fn find(code: &CodeBytes<'_>) -> Option<StgRun> {
        let mut found = code.segments.iter().flat_map(|(start, _, bytes)| {
            let places = memmem::find_iter(bytes, STG_RUN);
            places.filter_map(|at| {
                let at = start.checked_add(at as u64)?.checked_sub(STG_RUN_HEAD)?;
                StgRun::at(code, at)
            })
        });
        found.next().filter(|_| found.next().is_none())
    }

    /// Reads the function at a link-time address. The instructions must be those of `StgRun`, apart
    /// from the sizes.
    fn at(code: &CodeBytes<'_>, start: u64) -> Option<StgRun> {
        const SAVED: [Register; 6] = [
            Register::RBX,
            Register::RBP,
            Register::R12,
            Register::R13,
            Register::R14,
            Register::R15,
        ];
        let row = |cfa, fp| Rule::amd64(Base::Sp, cfa, fp);
        let mut instructions = code.instructions(start, start.checked_add(STG_RUN_SIZE)?);
        let mut next = || instructions.next().filter(|it| !it.is_invalid());
        let offset = |instruction: &Instruction| (instruction.next_ip() - start) as u32;
        let mut rows = vec![(0, row(8, Location::Unchanged))];

        let instruction = next()?;
        let frame = i32::try_from(moved_down(&instruction)?).ok()?;
        rows.push((offset(&instruction), row(8 + frame, Location::Unchanged)));
        is_move(&next()?, Register::RAX, Register::RSP).then_some(())?;
        let instruction = next()?;
        let reserved = i32::try_from(moved_down(&instruction)?).ok()?;
        let is_frame = |size: i32, least| size % 8 == 0 && (least..1 << 20).contains(&size);
        (is_frame(frame, 8 * SAVED.len() as i32) && is_frame(reserved, 8)).then_some(())?;
        let cfa = 8 + frame + reserved;
        rows.push((offset(&instruction), row(cfa, Location::Unchanged)));
        for (index, register) in SAVED.into_iter().enumerate() {
            let instruction = next()?;
            let is_save = instruction.mnemonic() == Mnemonic::Mov
                && instruction.op1_register() == register
                && is_slot(&instruction, 0, Register::RAX, 8 * index as u64);
            is_save.then_some(())?;
            if register == Register::R15 {
                rows.push((offset(&instruction), row(cfa, Location::AtCfa(-frame))));
            }
        }
        // The slot of rbp is the second one from the frame's lower end.
        let fp = -frame;
        rows.last_mut()?.1 = row(cfa, Location::AtCfa(fp));
        is_move(&next()?, Register::R13, Register::RSI).then_some(())?;
        is_move(&next()?, Register::RAX, Register::RDI).then_some(())?;
        (next()?.flow_control() == FlowControl::IndirectBranch).then_some(())?;

        // `StgReturn`: Haskell code jumps to it to return.
        let instruction = next()?;
        is_move(&instruction, Register::RAX, Register::RBX).then_some(())?;
        let returns = instruction.ip();
        let instruction = next()?;
        (moved_up(&instruction)? == i64::from(reserved)).then_some(())?;
        rows.push((offset(&instruction), row(8 + frame, Location::AtCfa(fp))));
        for (index, register) in SAVED.into_iter().enumerate() {
            let instruction = next()?;
            let is_load = instruction.mnemonic() == Mnemonic::Mov
                && instruction.op0_register() == register
                && is_slot(&instruction, 1, Register::RSP, 8 * index as u64);
            is_load.then_some(())?;
            if register == Register::RBP {
                rows.push((offset(&instruction), row(8 + frame, Location::Unchanged)));
            }
        }
        let instruction = next()?;
        (moved_up(&instruction)? == i64::from(frame)).then_some(())?;
        rows.push((offset(&instruction), row(8, Location::Unchanged)));
        let instruction = next()?;
        (instruction.mnemonic() == Mnemonic::Ret && instruction.op_count() == 0).then_some(())?;
        Some(StgRun {
            start,
            returns,
            rows,
            size: offset(&instruction),
            cfa,
            fp,
        })
    }
}

/// Whether an instruction copies a register to another.
fn is_move(instruction: &Instruction, to: Register, from: Register) -> bool {
    let registers = (instruction.op0_register(), instruction.op1_register());
    instruction.mnemonic() == Mnemonic::Mov && registers == (to, from)
}

/// Whether an operand of an instruction is the memory at a distance from a register.
fn is_slot(instruction: &Instruction, operand: u32, base: Register, distance: u64) -> bool {
    instruction.op_kind(operand) == OpKind::Memory
        && instruction.memory_base() == base
        && instruction.memory_index() == Register::None
        && !instruction.has_segment_prefix()
        && instruction.memory_displacement64() == distance
}

/// The number of bytes by which an instruction moves the stack pointer down, if it subtracts a
/// constant.
fn moved_down(instruction: &Instruction) -> Option<i64> {
    let is_sub = instruction.mnemonic() == Mnemonic::Sub;
    (is_sub && instruction.op0_register() == Register::RSP)
        .then(|| instruction.try_immediate(1).ok().map(|by| by as i64))?
}

/// The number of bytes by which an instruction moves the stack pointer up, if it adds a constant.
fn moved_up(instruction: &Instruction) -> Option<i64> {
    let is_add = instruction.mnemonic() == Mnemonic::Add;
    (is_add && instruction.op0_register() == Register::RSP)
        .then(|| instruction.try_immediate(1).ok().map(|by| by as i64))?
}

/// The rows of the Haskell code in `gaps`, which are sorted ranges of link-time addresses without
/// unwind information, and those of `StgRun`; none if the program does not contain `StgRun`.
pub(super) fn functions(
    file: &ElfFile64<'_, Endianness>,
    gaps: &[Range<u64>],
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
) -> Option<RuntimeRows> {
    let run = StgRun::find(code)?;
    let mut haskell = HaskellCode::new(gaps, code, run, segments(file)?)?;
    haskell.follow_data(file, true, work);
    haskell.follow_rest();
    haskell.follow_data(file, false, work);
    haskell.follow_holes();
    Some(haskell.rows(gaps))
}

/// A byte that no path has reached.
const UNKNOWN: u8 = 0;
/// A byte of an instruction, not the first.
const INSIDE: u8 = 1;
/// The first byte of an instruction: this value plus the distance in words by which the stack
/// pointer was moved down.
const INSTRUCTION: u8 = 2;
/// The maximum of such a distance, in words.
const MAX_DEPTH: u8 = u8::MAX - 1 - INSTRUCTION;
/// A byte that is not in a gap.
const COVERED: u8 = u8::MAX;

/// The code contradicts the assumptions about Haskell code.
struct HaskellContradiction;

/// Why an address is taken for that of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HaskellEvidence {
    /// An instruction that was confirmed jumps there.
    Jump,
    /// An info table is before it, and the address is in data or in an instruction that was
    /// confirmed.
    Reference,
    /// An info table is before it, or the address is in data. The path must end as only Haskell
    /// code does.
    Guess,
}

/// An address to continue at. The depth is in words.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    depth: u8,
    why: HaskellEvidence,
}

/// A jump table that code uses. Addresses are link-time addresses; the depth is in words.
#[derive(Clone, Copy, Debug)]
struct JumpTable {
    at: u64,
    /// Whether the entries are relative to the table.
    is_relative: bool,
    depth: u8,
}

/// What one procedure, or a part of one, has shown.
#[derive(Default)]
struct HaskellPath {
    /// The instructions: the offset and the length, in bytes.
    reached: Vec<(usize, u8)>,
    /// The addresses of other procedures.
    others: Vec<Place>,
    tables: Vec<JumpTable>,
    /// Whether the path ends as only Haskell code does.
    is_haskell: bool,
}

/// The code of the segment that contains `StgRun`.
struct HaskellCode<'a> {
    /// The link-time address of the first gap.
    start: u64,
    bytes: &'a [u8],
    /// What is known of each byte.
    state: Vec<u8>,
    decoder: Decoder<'a>,
    run: StgRun,
    segments: Vec<Segment<'a>>,
    todo: Vec<Place>,
    tables: Vec<JumpTable>,
    /// The jump tables that were found: address and depth.
    known_tables: HashSet<(u64, u8)>,
    /// Places that are no procedures.
    wrong: HashSet<u64>,
    /// How many more instructions may be decoded. A wrong path is decoded in vain, and may be long.
    work_left: usize,
}

impl<'a> HaskellCode<'a> {
    fn new(
        gaps: &[Range<u64>],
        code: &CodeBytes<'a>,
        run: StgRun,
        segments: Vec<Segment<'a>>,
    ) -> Option<HaskellCode<'a>> {
        let (first, end, _) = code
            .segments
            .iter()
            .find(|(start, end, _)| (*start..*end).contains(&run.start))?;
        let gaps = gaps
            .iter()
            .filter(|gap| *first <= gap.start && gap.start < gap.end && gap.end <= *end);
        let start = gaps.clone().map(|gap| gap.start).min()?;
        let size = gaps.clone().map(|gap| gap.end).max()? - start;
        let bytes = code.at(start);
        let bytes = bytes.get(..usize::try_from(size).ok()?)?;
        // The end is so far from the last address that sums of addresses and of sizes do not
        // overflow.
        if size > MAX_CODE || start.checked_add(2 * MAX_CODE).is_none() {
            return None;
        }
        let mut state = vec![COVERED; bytes.len()];
        for gap in gaps {
            let (from, to) = ((gap.start - start) as usize, (gap.end - start) as usize);
            state.get_mut(from..to)?.fill(UNKNOWN);
        }
        Some(HaskellCode {
            start,
            bytes,
            state,
            decoder: Decoder::with_ip(64, bytes, start, DecoderOptions::NONE),
            run,
            segments,
            todo: Vec::new(),
            tables: Vec::new(),
            known_tables: HashSet::new(),
            work_left: bytes.len().saturating_mul(WORK),
            wrong: HashSet::new(),
        })
    }

    /// The offset of a link-time address, if it is in the code.
    fn offset(&self, at: u64) -> Option<usize> {
        let offset = usize::try_from(at.checked_sub(self.start)?).ok()?;
        (offset < self.state.len()).then_some(offset)
    }

    /// What is known of the byte at an address; outside of the code, that it is covered.
    fn state(&self, at: u64) -> u8 {
        self.offset(at).map_or(COVERED, |offset| self.state[offset])
    }

    /// The closure type in the info table before an address, if there may be one. An info table has
    /// the layout, the closure type, and the offset of the table of static references, or a
    /// constructor's number.
    fn info_table(&self, at: u64) -> Option<u32> {
        let offset = self.offset(at).filter(|_| at % WORD == 0)?;
        let table = offset.checked_sub(INFO_TABLE as usize)?..offset;
        let states = self.state.get(table.clone())?;
        let (layout, rest) = self.bytes.get(table)?.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (layout, kind) = (u64::from_le_bytes(*layout), u32::from_le_bytes(*kind));
        let last = u32::from_le_bytes(*rest.first_chunk()?);
        let is_reference = || {
            let to = at.wrapping_add_signed(i64::from(last as i32));
            let mut data = self.segments.iter().filter(|segment| !segment.is_code);
            to % WORD == 0 && data.any(|segment| segment.range.contains(&to))
        };
        // The layout of a closure is the numbers of its pointers and of its other words.
        let is_small = (layout as u32) < MAX_CLOSURE && layout >> 32 < u64::from(MAX_CLOSURE);
        let is_table = match kind {
            _ if CONSTRUCTORS.contains(&kind) => is_small && last < 1 << 16,
            _ if CLOSURES.contains(&kind) => is_small && (last == 0 || is_reference()),
            _ => CLOSURE_TYPES.contains(&kind) && (last == 0 || is_reference()),
        };
        let is_unknown = states.iter().all(|state| *state == UNKNOWN);
        (is_table && is_unknown).then_some(kind)
    }

    /// The address of the code that takes the arguments of a function from the Haskell stack, and
    /// jumps to the function. The info table of a function with an unusual list of arguments states
    /// the address.
    fn slow_entry(&self, at: u64) -> Option<u64> {
        let kind = self.info_table(at)?;
        let table = self.offset(at)?.checked_sub(FUNCTION_TABLE)?;
        let table = self.bytes.get(table..)?.first_chunk::<20>()?;
        let word = |at: usize| Some(i32::from_le_bytes(*table.get(at..)?.first_chunk()?));
        let has_slow_entry = FUNCTIONS.contains(&kind) && ARGUMENTS.contains(&word(16)?);
        let slow = at.checked_add_signed(i64::from(word(0)?))?;
        (has_slow_entry && slow < at && slow % WORD == 0).then_some(slow)
    }

    /// The instruction at an offset.
    fn decode(&mut self, offset: usize) -> Instruction {
        let is_set = self.decoder.set_position(offset);
        debug_assert!(is_set.is_ok());
        self.decoder.set_ip(self.start + offset as u64);
        self.decoder.decode()
    }

    /// Begins at the procedures whose addresses are words in the program's data, and follows all
    /// others that these lead to: if `is_known`, procedures after info tables; else the other code,
    /// of which the runtime's own data has addresses. Takes a step for each word; without work,
    /// the words that are left begin nothing.
    fn follow_data(
        &mut self,
        file: &ElfFile64<'_, Endianness>,
        is_known: bool,
        work: &mut ConversionWork,
    ) {
        for index in 0..self.segments.len() {
            let segment = &self.segments[index];
            // Words are aligned; so is the address.
            let skipped = (segment.range.start.wrapping_neg() % WORD) as usize;
            let words = match segment.is_code {
                true => &[],
                false => segment.bytes.get(skipped..).unwrap_or_default(),
            };
            for word in words.chunks_exact(WORD as usize) {
                if !work.take(1) {
                    return;
                }
                let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                self.follow_word(word, is_known);
            }
        }
        for (_, relocation) in file.dynamic_relocations().into_iter().flatten() {
            if !work.take(1) {
                return;
            }
            self.follow_word(relocation.addend() as u64, is_known);
        }
    }

    /// Follows the code at an address in data. `is_known` is as in [`HaskellCode::follow_data`].
    fn follow_word(&mut self, word: u64, is_known: bool) {
        if is_known {
            self.follow_info_table(word, HaskellEvidence::Reference);
        } else if word % WORD == 0 && self.state(word) == UNKNOWN {
            self.todo.push(Place {
                at: word,
                depth: 0,
                why: HaskellEvidence::Guess,
            });
            self.follow();
        }
    }

    /// Tries all info tables in code that was not reached.
    fn follow_rest(&mut self) {
        let mut at = self.start.next_multiple_of(WORD);
        let end = self.start + self.bytes.len() as u64;
        while at < end {
            self.follow_info_table(at, HaskellEvidence::Guess);
            at += WORD;
        }
    }

    /// Tries the code after other Haskell code. Code of C gives some addresses to `StgRun`.
    fn follow_holes(&mut self) {
        let mut last = COVERED;
        for offset in 0..self.state.len() {
            let before = mem::replace(&mut last, self.state[offset]);
            if self.state[offset] != UNKNOWN || !(INSIDE..COVERED).contains(&before) {
                continue;
            }
            let at = (self.start + offset as u64).next_multiple_of(WORD);
            let is_padding = self
                .offset(at)
                .is_some_and(|to| self.is_only_data(offset, to));
            if is_padding {
                for table in INFO_TABLES {
                    self.follow_info_table(at.saturating_add(table), HaskellEvidence::Guess);
                }
                self.follow_word(at, false);
            }
            last = self.state[offset];
        }
    }

    /// Follows the procedure at an address if an info table is before it.
    fn follow_info_table(&mut self, at: u64, why: HaskellEvidence) {
        if self.state(at) == UNKNOWN && self.info_table(at).is_some() {
            self.todo.push(Place { at, depth: 0, why });
            self.follow();
        }
    }

    /// Follows all places to do.
    fn follow(&mut self) {
        loop {
            if let Some(place) = self.todo.pop() {
                self.path(place);
            } else if let Some(table) = self.tables.pop() {
                self.follow_jump_table(table);
            } else {
                break;
            }
        }
    }

    /// Follows the entries of a jump table.
    fn follow_jump_table(&mut self, table: JumpTable) {
        let mut segments = self.segments.iter();
        let bytes = segments.find_map(|segment| {
            let at = table.at.checked_sub(segment.range.start)?;
            segment.bytes.get(usize::try_from(at).ok()?..)
        });
        let entries = bytes.unwrap_or_default().chunks_exact(WORD as usize);
        for entry in entries.take(MAX_JUMP_TABLE) {
            let Some(work_left) = self.work_left.checked_sub(1) else {
                break;
            };
            self.work_left = work_left;
            let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
            // No value of the type leads there.
            if entry == 0 {
                continue;
            }
            let at = match table.is_relative {
                true => table.at.wrapping_add(entry),
                false => entry,
            };
            let place = Place {
                at,
                depth: table.depth,
                why: HaskellEvidence::Jump,
            };
            // The end of the table is not known: an address that cannot be one of its entries ends
            // it.
            if self.state(at) != INSTRUCTION + table.depth && !self.path(place) {
                break;
            }
        }
    }

    /// Follows the paths from a place. Records them if nothing contradicts; returns whether nothing
    /// does.
    fn path(&mut self, place: Place) -> bool {
        let is_new = self.state(place.at) == UNKNOWN && !self.wrong.contains(&place.at);
        if !is_new || self.work_left == 0 {
            return false;
        }
        let mut path = HaskellPath::default();
        let followed = self.try_path(place, &mut path);
        let is_proved = place.why != HaskellEvidence::Guess || path.is_haskell;
        if followed.is_err() || !is_proved {
            for (offset, len) in path.reached {
                self.state[offset..offset + usize::from(len)].fill(UNKNOWN);
            }
            if place.depth == 0 && followed.is_err() {
                self.wrong.insert(place.at);
            }
            return false;
        }
        self.todo.append(&mut path.others);
        if let Some(at) = self.slow_entry(place.at).filter(|_| place.depth == 0) {
            self.todo.push(Place {
                at,
                depth: 0,
                why: HaskellEvidence::Reference,
            });
        }
        for table in path.tables {
            if self.known_tables.insert((table.at, table.depth)) {
                self.tables.push(table);
            }
        }
        true
    }

    /// Follows the paths from a place, and marks their instructions.
    fn try_path(
        &mut self,
        place: Place,
        path: &mut HaskellPath,
    ) -> Result<(), HaskellContradiction> {
        let mut branches = vec![(place.at, place.depth)];
        while let Some((mut at, mut depth)) = branches.pop() {
            let mut last = [Instruction::default(); JUMP_TABLE_LOADS];
            loop {
                let offset = self.offset(at).ok_or(HaskellContradiction)?;
                match self.state[offset] {
                    UNKNOWN => {}
                    state if state == INSTRUCTION + depth => break,
                    _ => return Err(HaskellContradiction),
                }
                let instruction = self.decode(offset);
                let len = instruction.len();
                let bytes = self.state.get_mut(offset..offset + len);
                let bytes = bytes.filter(|bytes| bytes.iter().all(|byte| *byte == UNKNOWN));
                let bytes = bytes.ok_or(HaskellContradiction)?;
                if instruction.is_invalid() {
                    return Err(HaskellContradiction);
                }
                self.work_left = self.work_left.checked_sub(1).ok_or(HaskellContradiction)?;
                if path.reached.len() == MAX_PATH {
                    return Err(HaskellContradiction);
                }
                bytes.fill(INSIDE);
                bytes[0] = INSTRUCTION + depth;
                path.reached.push((offset, len as u8));

                depth = self.step(&instruction, depth)?;
                self.find_procedures(&instruction, path);
                path.is_haskell |= is_stack_check(&instruction);
                let is_leaving = depth == 0;
                match instruction.flow_control() {
                    FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {}
                    FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                        let target = instruction.near_branch_target();
                        let is_conditional =
                            instruction.flow_control() == FlowControl::ConditionalBranch;
                        // A conditional jump stays in the procedure, or leads to the next one.
                        let is_inside = is_conditional && self.state(target) != COVERED;
                        if !is_leaving || is_inside {
                            branches.push((target, depth));
                        } else if self.state(target) == UNKNOWN {
                            path.others.push(Place {
                                at: target,
                                depth,
                                why: HaskellEvidence::Jump,
                            });
                        } else if ![INSTRUCTION, COVERED].contains(&self.state(target)) {
                            return Err(HaskellContradiction);
                        }
                        path.is_haskell |= is_leaving
                            && (self.state(target) == INSTRUCTION || target == self.run.returns);
                        if !is_conditional {
                            break;
                        }
                    }
                    FlowControl::IndirectBranch => {
                        match jump_table(&instruction, &last, depth) {
                            Some(table) => path.tables.push(table),
                            None if !is_leaving => return Err(HaskellContradiction),
                            None => path.is_haskell |= is_haskell_jump(&instruction),
                        }
                        break;
                    }
                    _ => return Err(HaskellContradiction),
                }
                last.rotate_left(1);
                last[JUMP_TABLE_LOADS - 1] = instruction;
                at = instruction.next_ip();
            }
        }
        Ok(())
    }

    /// The depth after an instruction, in words. An instruction may only move the stack pointer by
    /// a constant, and only use the part of the stack that is not `StgRun`'s.
    fn step(&self, instruction: &Instruction, depth: u8) -> Result<u8, HaskellContradiction> {
        if instruction.memory_base() == Register::RSP {
            // Haskell code uses the part of the frame that is reserved for it, and its own.
            let reserved = i64::from(self.run.cfa + self.run.fp) - WORD as i64;
            let usable = i64::from(depth) * WORD as i64 + reserved;
            let size = instruction.memory_size().size() as i64;
            let end = (instruction.memory_displacement64() as i64).checked_add(size);
            if instruction.memory_index() != Register::None || end.is_none_or(|end| end > usable) {
                return Err(HaskellContradiction);
            }
        }
        let is_sp = |operand: u32| {
            instruction.op_kind(operand) == OpKind::Register
                && instruction.op_register(operand).full_register() == Register::RSP
        };
        let names_sp = (0..instruction.op_count()).any(is_sp);
        let is_read = match instruction.mnemonic() {
            Mnemonic::Cmp | Mnemonic::Test => true,
            Mnemonic::Mov | Mnemonic::Push => instruction.op0_register() != Register::RSP,
            _ => false,
        };
        let is_call = instruction.is_call_near() || instruction.is_call_near_indirect();
        let down = match instruction.flow_control() {
            FlowControl::Next => match (moved_down(instruction), moved_up(instruction)) {
                (Some(down), _) => down,
                (_, Some(up)) => up.checked_neg().ok_or(HaskellContradiction)?,
                _ if names_sp && !is_read => return Err(HaskellContradiction),
                _ => match (
                    instruction.mnemonic(),
                    instruction.stack_pointer_increment(),
                ) {
                    (Mnemonic::Enter | Mnemonic::Leave, _) => return Err(HaskellContradiction),
                    (_, 0) => 0,
                    (Mnemonic::Push, -8) => WORD as i64,
                    _ => return Err(HaskellContradiction),
                },
            },
            // A system call is none, nor is a call of the next instruction, to learn its address.
            FlowControl::Call | FlowControl::IndirectCall
                if !is_call || instruction.near_branch_target() == instruction.next_ip() =>
            {
                return Err(HaskellContradiction);
            }
            FlowControl::IndirectBranch if !instruction.is_jmp_near_indirect() => {
                return Err(HaskellContradiction);
            }
            _ => 0,
        };
        if down % WORD as i64 != 0 {
            return Err(HaskellContradiction);
        }
        let depth = i64::from(depth).checked_add(down / WORD as i64);
        depth
            .and_then(|depth| u8::try_from(depth).ok())
            .filter(|depth| *depth <= MAX_DEPTH)
            .ok_or(HaskellContradiction)
    }

    /// Finds the addresses of procedures in an instruction.
    fn find_procedures(&self, instruction: &Instruction, path: &mut HaskellPath) {
        let address = if instruction.is_ip_rel_memory_operand() {
            instruction.ip_rel_memory_address()
        } else {
            match instruction.op_count() {
                2 => instruction.try_immediate(1).unwrap_or(0),
                _ => 0,
            }
        };
        if self.state(address) == UNKNOWN && self.info_table(address).is_some() {
            path.others.push(Place {
                at: address,
                depth: 0,
                why: HaskellEvidence::Reference,
            });
        }
    }

    /// The rows of all that was reached.
    fn rows(self, gaps: &[Range<u64>]) -> RuntimeRows {
        let mut functions = Vec::new();
        let mut unused = Vec::new();
        for gap in gaps {
            let (Some(mut at), Some(_)) = (self.offset(gap.start), self.offset(gap.end - 1)) else {
                unused.push(gap.clone());
                continue;
            };
            let end = at + (gap.end - gap.start) as usize;
            let mut open = None;
            let mut behind = None;
            while at < end {
                let from = at;
                let state = self.state[at];
                at += 1;
                if !(INSTRUCTION..COVERED).contains(&state) {
                    continue;
                }
                while at < end && self.state[at] == INSIDE {
                    at += 1;
                }
                let depth = i32::from(state - INSTRUCTION);
                let rule = Rule::amd64(
                    Base::Sp,
                    self.run.cfa + WORD as i32 * depth,
                    Location::AtCfa(self.run.fp),
                );
                let start = match behind {
                    Some(behind) if behind < from && self.is_only_data(behind, from) => behind,
                    _ => from,
                };
                let (start, end) = (self.start + start as u64, self.start + at as u64);
                let is_full = |open: &ConvertedFunction| end - open.start > MAX_FUNCTION;
                if open.as_ref().is_some_and(is_full) {
                    functions.extend(open.take());
                }
                extend(&mut open, &mut functions, start, end, false, rule);
                behind = Some(at);
            }
            if open.is_none() {
                unused.push(gap.clone());
            }
            functions.extend(open);
        }
        RuntimeRows {
            run: ConvertedFunction {
                start: self.run.start,
                size: self.run.size,
                repeat: None,
                signal: false,
                // Haskell code uses rbx as any other register.
                rbx: SavedRbx::UNKNOWN,
                rows: self.run.rows,
            },
            functions,
            unused,
        }
    }

    /// Whether there is nothing but padding, or padding and an info table, between two offsets.
    fn is_only_data(&self, from: usize, to: usize) -> bool {
        let padded = (self.start + from as u64).next_multiple_of(WORD) - self.start;
        let padding = self.bytes.get(from..padded as usize).unwrap_or_default();
        let mut padding = Decoder::with_ip(64, padding, 0, DecoderOptions::NONE).into_iter();
        let is_padded = padding.all(|instruction| instruction.mnemonic() == Mnemonic::Nop);
        let is_data = match (to as u64).checked_sub(padded) {
            Some(0) => true,
            Some(size) => {
                INFO_TABLES.contains(&size) && self.info_table(self.start + to as u64).is_some()
            }
            None => false,
        };
        is_padded && is_data
    }
}

/// Whether an indirect jump is one that Haskell code makes: to the procedure on top of its stack,
/// to the code of a closure, or to a function of the runtime by the table of registers.
fn is_haskell_jump(instruction: &Instruction) -> bool {
    let is_indexed = instruction.memory_index() != Register::None;
    let base = match instruction.op0_kind() {
        OpKind::Memory if !is_indexed => instruction.memory_base(),
        _ => Register::None,
    };
    [Register::RBP, Register::RBX, Register::R13].contains(&base)
        || (base == Register::RAX && instruction.memory_displacement64() == 0)
}

/// Whether an instruction compares with the limit of the Haskell stack.
fn is_stack_check(instruction: &Instruction) -> bool {
    let registers = (instruction.op0_register(), instruction.op1_register());
    instruction.mnemonic() == Mnemonic::Cmp
        && (registers.1 == Register::R15 || registers == (Register::R15, Register::RBP))
}

/// The jump table that a jump to an address in a register or in memory uses; `last` are the
/// instructions before it.
fn jump_table(jump: &Instruction, last: &[Instruction], depth: u8) -> Option<JumpTable> {
    let is_entry = |instruction: &Instruction| {
        instruction.memory_index() != Register::None
            && instruction.memory_index_scale() == WORD as u32
    };
    let mut is_relative = false;
    let mut target = Register::None;
    let mut base = match jump.op0_kind() {
        OpKind::Memory => {
            is_entry(jump).then_some(())?;
            if jump.memory_base() == Register::None {
                return Some(JumpTable {
                    at: jump.memory_displacement64(),
                    is_relative,
                    depth,
                });
            }
            jump.memory_base()
        }
        _ => {
            target = jump.op0_register();
            Register::None
        }
    };
    for instruction in last.iter().rev() {
        let (to, from) = (instruction.op0_register(), instruction.op1_register());
        match instruction.mnemonic() {
            Mnemonic::Add if base == Register::None && to == target && from.is_gpr64() => {
                is_relative = true;
            }
            Mnemonic::Mov if base == Register::None && to == target && is_entry(instruction) => {
                if instruction.memory_base() == Register::None {
                    return Some(JumpTable {
                        at: instruction.memory_displacement64(),
                        is_relative,
                        depth,
                    });
                }
                base = instruction.memory_base();
            }
            Mnemonic::Lea if base != Register::None && to == base => {
                let at = instruction.ip_rel_memory_address();
                return instruction.is_ip_rel_memory_operand().then_some(JumpTable {
                    at,
                    is_relative,
                    depth,
                });
            }
            Mnemonic::Mov if base != Register::None && to == base => {
                return instruction.try_immediate(1).ok().map(|at| JumpTable {
                    at,
                    is_relative,
                    depth,
                });
            }
            _ => {}
        }
    }
    None
}

/// A segment that is loaded.
struct Segment<'a> {
    /// The link-time addresses.
    range: Range<u64>,
    /// The bytes in the file, from the start of the range on.
    bytes: &'a [u8],
    is_code: bool,
}

/// The segments of a file; `None` if it has more than a linker makes.
fn segments<'a>(file: &ElfFile64<'a, Endianness>) -> Option<Vec<Segment<'a>>> {
    let endian = file.endian();
    let headers = file.elf_program_headers().iter();
    let loaded = headers.filter(|header| header.p_type(endian) == elf::PT_LOAD);
    let segments: Vec<_> = loaded
        .take(MAX_SEGMENTS + 1)
        .map(|header| {
            let start = header.p_vaddr(endian);
            Segment {
                range: start..start.saturating_add(header.p_memsz(endian)),
                bytes: header.data(endian, file.data()).unwrap_or_default(),
                is_code: header.p_flags(endian) & elf::PF_X != 0,
            }
        })
        .collect();
    (segments.len() <= MAX_SEGMENTS).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `StgRun` of Debian 13's shellcheck, at 0x2156720 there.
    const CODE: &[u8] = b"\x48\x83\xec\x30\x48\x89\xe0\x48\x81\xec\x00\x40\x00\x00\
        \x48\x89\x18\x48\x89\x68\x08\x4c\x89\x60\x10\x4c\x89\x68\x18\x4c\x89\x70\x20\x4c\x89\x78\x28\
        \x49\x89\xf5\x48\x89\xf8\xff\xe0\x48\x89\xd8\x48\x81\xc4\x00\x40\x00\x00\x48\x8b\x1c\x24\
        \x48\x8b\x6c\x24\x08\x4c\x8b\x64\x24\x10\x4c\x8b\x6c\x24\x18\x4c\x8b\x74\x24\x20\
        \x4c\x8b\x7c\x24\x28\x48\x83\xc4\x30\xc3";
    const START: u64 = 0x2156720;

    fn found(bytes: &[u8]) -> Option<StgRun> {
        let code = CodeBytes {
            segments: vec![(START - 16, START - 16 + bytes.len() as u64, bytes)],
        };
        StgRun::find(&code)
    }

    fn text(code: &[u8]) -> Vec<u8> {
        [&[0x90; 16], code, &[0xcc; 16]].concat()
    }

    #[test]
    fn stg_run_is_found_by_its_code() {
        let run = found(&text(CODE)).unwrap();
        assert_eq!((run.start, run.size), (START, CODE.len() as u32));
        assert_eq!((run.cfa, run.fp, run.returns), (16440, -48, START + 0x2d));
        let row = |cfa, fp| Rule::amd64(Base::Sp, cfa, fp);
        let rows = [
            (0, row(8, Location::Unchanged)),
            (4, row(56, Location::Unchanged)),
            (14, row(16440, Location::Unchanged)),
            (0x25, row(16440, Location::AtCfa(-48))),
            (0x37, row(56, Location::AtCfa(-48))),
            (0x40, row(56, Location::Unchanged)),
            (0x58, row(8, Location::Unchanged)),
        ];
        assert_eq!(run.rows, rows);
        // The sizes of the frame and of the reserved part may be others.
        let mut other = CODE.to_vec();
        (other[3], other[0x57]) = (0x38, 0x38);
        (other[0x0b], other[0x34]) = (0x20, 0x20);
        let run = found(&text(&other)).unwrap();
        assert_eq!((run.cfa, run.fp), (8 + 0x38 + 0x2000, -0x38));
    }

    #[test]
    fn similar_code_is_not_stg_run() {
        // A change changes an instruction, one of two sizes that must be equal, or a bit of a
        // prefix that has no meaning there.
        let run = found(&text(CODE));
        let mut same = 0;
        for (at, bit) in (0..CODE.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut other = CODE.to_vec();
            other[at] ^= 1 << bit;
            let other = found(&text(&other));
            assert!(other.is_none() || other == run, "{at:#x}, bit {bit}");
            same += usize::from(other.is_some());
        }
        assert!(same < 32, "{same}");
        for len in 0..CODE.len() {
            let cut = [&[0x90; 16], &CODE[..len]].concat();
            assert_eq!(found(&cut), None, "{len}");
        }
        // Of two, neither is known to be the one.
        assert_eq!(found(&text(&[CODE, CODE].concat())), None);
    }
}
