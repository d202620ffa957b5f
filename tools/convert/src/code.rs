// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What code itself tells, as rules, where nothing else does: assembly that was written without entries
//! for .eh_frame, and functions that a program has compiled when it was built, as V8's built-in ones.
//!
//! Each instruction says what it does to the stack pointer and to the frame pointer. So from where a
//! function begins, and the return address is on top of the stack, all that can be reached is gone
//! through. Where functions begin is told by symbols and calls, or guessed: behind the end of another
//! one, and what fills up to a multiple of sixteen. What does not work out is dropped: where two ways to
//! an instruction do not agree, or what a function returns to is not the return address. So are guesses
//! for which nothing speaks, and what calls the kernel, which may do anything to registers.

use iced_x86::{
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
use sframe::rule::{
    Base,
    Location,
    Rule, //
};
use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    mem,
    ops::Range, //
};

use crate::{
    dwarf::extend,
    Code,
    Function, //
};

/// Where functions are aligned to, in bytes.
const ALIGNMENT: u64 = 16;
/// Where V8 aligns them to.
const TRAPPED_ALIGNMENT: u64 = 64;
/// The most code of which nothing tells that is gone through, in bytes. V8 has a tenth of it.
const MAX_GAP: u64 = 16 << 20;
/// How often guesses are dropped and all is gone through again.
const MAX_ROUNDS: usize = 32;

/// The functions that are found in `gaps`, ranges of link-time addresses of which nothing tells.
/// `symbols` are where some begin; at `entry` the program does, and nothing has called that.
pub(crate) fn functions(
    gaps: &[Range<u64>],
    symbols: &BTreeSet<u64>,
    entry: u64,
    code: &Code<'_>,
) -> Vec<Function> {
    let mut functions = Vec::new();
    for gap in gaps {
        let len = gap.end - gap.start;
        let bytes = code.at(gap.start);
        if let Some(bytes) = bytes.get(..len as usize).filter(|_| len <= MAX_GAP) {
            let mut gap = Gap::new(gap.start, bytes, entry);
            gap.begin(symbols);
            gap.settle();
            gap.said(&mut functions);
        }
    }
    functions
}

/// What the frame pointer's register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePointer {
    /// What the caller had in it.
    Callers,
    /// An address this many bytes below the CFA.
    Frame(i32),
    /// Anything.
    Other,
}

/// Where the return address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReturnAddress {
    /// Right below the CFA.
    Kept,
    /// There, and in a register.
    Loaded(Register),
    /// There, and in memory, this many bytes below the CFA. So it is moved by who calls another
    /// function in place of its own end, with other arguments.
    Copied(i32),
    /// In a register only, as with who takes arguments off the stack.
    Popped(Register),
    /// Taken off the stack, for good. Where a frame begins on top of what is there now, that is the
    /// return address of who has called, which had pushed nothing.
    Dropped,
    /// Anywhere.
    Gone,
}

/// What is known in front of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    /// How far the stack pointer is below the CFA, in bytes, if that is known.
    sp: Option<i32>,
    fp: FramePointer,
    /// How far below the CFA the caller's frame pointer is saved, if it is.
    saved: Option<i32>,
    ra: ReturnAddress,
    /// Whether what is on top has just been pushed from a register: a return would go there.
    pushed: bool,
}

/// It cannot be as it was believed to be.
struct Broken;

impl State {
    /// Where a function begins.
    const ENTRY: State = State {
        sp: Some(8),
        fp: FramePointer::Callers,
        saved: None,
        ra: ReturnAddress::Kept,
        pushed: false,
    };

    fn rule(&self) -> Option<Rule> {
        if self.is_lost() {
            return None;
        }
        let saved = self.saved.map(|below| Location::AtCfa(-below));
        match (self.fp, self.sp, saved) {
            (FramePointer::Frame(below), _, Some(fp)) => Some(Rule::amd64(Base::Fp, below, fp)),
            (_, Some(below), Some(fp)) => Some(Rule::amd64(Base::Sp, below, fp)),
            (FramePointer::Callers, Some(below), None) => {
                Some(Rule::amd64(Base::Sp, below, Location::Unchanged))
            }
            _ => None,
        }
    }

    /// Whether the return address is not on the stack.
    fn is_lost(&self) -> bool {
        use ReturnAddress::{
            Dropped,
            Gone,
            Popped, //
        };
        matches!(self.ra, Popped(_) | Dropped | Gone)
    }

    /// Whether all is as it was where the function began, so that it may return, or go on as another
    /// one.
    fn is_left(&self) -> bool {
        let is_on_top = !self.is_lost() && matches!(self.sp, Some(8) | None);
        is_on_top && self.fp == FramePointer::Callers
    }

    /// Whether a return is none, but goes on as another function.
    fn is_jump(&self) -> bool {
        let is_below = !self.is_lost() || self.ra == ReturnAddress::Dropped;
        self.pushed && is_below && self.sp == Some(16) && self.fp == FramePointer::Callers
    }

    /// What is known if either holds; `None` if the two cannot be of one function.
    fn join(self, other: State) -> Option<State> {
        use FramePointer::{
            Callers,
            Frame,
            Other, //
        };
        use ReturnAddress::{
            Dropped,
            Gone,
            Kept, //
        };
        let is_lost = self.is_lost() || other.is_lost();
        let saved = match (self.saved, other.saved) {
            (a, b) if a == b => a,
            _ if self.fp == Callers && other.fp == Callers => None,
            _ => return None,
        };
        let fp = match (self.fp, other.fp) {
            (a, b) if a == b => a,
            (Callers, Other) | (Other, Callers) if saved.is_some() => Other,
            _ => return None,
        };
        let sp = match (self.sp, other.sp) {
            (a, b) if a == b => a,
            (Some(_), Some(_)) if !is_lost && !matches!(fp, Frame(_)) => return None,
            _ => None,
        };
        let ra = match (self.ra, other.ra) {
            (a, b) if a == b => a,
            (Dropped, _) | (_, Dropped) => return None,
            _ if is_lost => (fp == Callers && sp.is_none()).then_some(Gone)?,
            _ => Kept,
        };
        let pushed = self.pushed && other.pushed;
        Some(State {
            sp,
            fp,
            saved,
            ra,
            pushed,
        })
    }

    /// Has the stack pointer be this far below the CFA. What is below it is gone.
    fn set_sp(&mut self, below: Option<i32>) -> Result<(), Broken> {
        self.sp = below;
        match (below, self.ra) {
            // What called has pushed is gone, too.
            (Some(below), ReturnAddress::Copied(at)) if below == at => {
                *self = self.at_entry();
            }
            (Some(0), ReturnAddress::Kept) if self.fp == FramePointer::Callers => {
                *self = State {
                    ra: ReturnAddress::Dropped,
                    ..State::ENTRY
                };
            }
            (Some(below), ReturnAddress::Popped(_)) if below < 8 => {
                (self.sp, self.saved) = (None, None);
            }
            (Some(below), _) if below < 8 => return Err(Broken),
            (Some(below), _) if self.saved.is_some_and(|saved| saved > below) => self.saved = None,
            _ => {}
        }
        Ok(())
    }

    /// As where a function begins, but for what the frame pointer holds.
    fn at_entry(self) -> State {
        State {
            fp: self.fp,
            ..State::ENTRY
        }
    }

    fn move_sp(&mut self, down: i64) -> Result<(), Broken> {
        let moved = self.sp.and_then(|sp| i64::from(sp).checked_add(down));
        self.set_sp(moved.and_then(|sp| i32::try_from(sp).ok()))
    }

    /// Whether it is as behind `push %rbp; mov %rsp,%rbp` where a function begins.
    fn is_new_frame(&self) -> bool {
        let frame = (FramePointer::Frame(16), Some(16), Some(16));
        (self.fp, self.saved, self.sp) == frame
    }

    fn point_fp(&mut self, below: Option<i32>) {
        self.fp = match below {
            Some(below) if self.saved.is_some() => FramePointer::Frame(below),
            _ => FramePointer::Other,
        };
    }

    /// Which place in the frame an instruction names, in bytes below the CFA.
    fn place(&self, instruction: &Instruction) -> Option<i32> {
        let from = match (instruction.memory_base(), self.fp) {
            (Register::RSP, _) => self.sp?,
            (Register::RBP, FramePointer::Frame(below)) => below,
            _ => return None,
        };
        if instruction.memory_index() != Register::None || instruction.has_segment_prefix() {
            return None;
        }
        let displacement = instruction.memory_displacement64() as i64;
        i32::try_from(i64::from(from).checked_sub(displacement)?).ok()
    }

    /// What holds behind an instruction that goes on to the next one.
    fn step(
        &mut self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), Broken> {
        use Register::{
            RBP,
            RSP, //
        };
        let kind = |operand: u32| instruction.try_op_kind(operand).ok();
        let register = |operand: u32| match kind(operand) {
            Some(OpKind::Register) => instruction.op_register(operand),
            _ => Register::None,
        };
        let is_memory = |operand: u32| kind(operand) == Some(OpKind::Memory);
        let is_popped = matches!(self.ra, ReturnAddress::Popped(_));
        self.pushed = false;
        match (instruction.mnemonic(), register(0), register(1)) {
            (Mnemonic::Push, RBP, _) => {
                // Where its caller is given a frame, it is one of a function that has just begun.
                if is_popped && self.sp.is_none() {
                    self.sp = Some(8);
                }
                self.move_sp(8)?;
                if self.fp == FramePointer::Callers && self.saved.is_none() {
                    self.saved = self.sp;
                }
            }
            (Mnemonic::Push, from, _) if self.ra == ReturnAddress::Popped(from) => {
                // The frame is its caller's, who finds all by it from now on.
                if matches!(self.fp, FramePointer::Frame(_)) {
                    self.fp = FramePointer::Callers;
                }
                *self = self.at_entry();
            }
            (Mnemonic::Push, from, _) if from.is_gpr64() => {
                self.move_sp(8)?;
                self.pushed = true;
            }
            // A copy of the return address: the other one is a place for arguments now.
            (Mnemonic::Push, ..) if is_memory(0) && self.place(instruction) == Some(8) => {
                if self.fp != FramePointer::Callers {
                    return Err(Broken);
                }
                *self = State::ENTRY;
            }
            (Mnemonic::Pop, RBP, _) => {
                let (fp, below) = match (self.fp, self.sp, self.saved) {
                    (_, Some(sp), Some(saved)) if sp == saved => {
                        (FramePointer::Callers, Some(sp - 8))
                    }
                    // What is called may take its arguments off the stack. But nothing else than
                    // this one is taken back by one who has kept a frame pointer.
                    (FramePointer::Frame(_), None, Some(saved)) => {
                        (FramePointer::Callers, Some(saved - 8))
                    }
                    (_, sp, _) => (FramePointer::Other, sp.map(|sp| sp - 8)),
                };
                self.fp = fp;
                self.set_sp(below)?;
            }
            (Mnemonic::Pop, to, _) if self.sp == Some(8) && !is_popped => {
                if self.is_lost() || matches!(self.fp, FramePointer::Frame(_)) {
                    return Err(Broken);
                }
                self.sp = None;
                self.ra = match to.is_gpr64() {
                    true => ReturnAddress::Popped(to),
                    false => ReturnAddress::Gone,
                };
            }
            (Mnemonic::Leave, ..) => match (self.fp, self.saved) {
                (FramePointer::Frame(below), Some(saved)) if below == saved => {
                    self.fp = FramePointer::Callers;
                    self.set_sp(Some(below - 8))?;
                }
                _ => return Err(Broken),
            },
            (Mnemonic::Mov, RBP, RSP) => {
                self.point_fp(self.sp);
                if self.ra == ReturnAddress::Dropped && self.is_new_frame() {
                    self.ra = ReturnAddress::Kept;
                }
            }
            (Mnemonic::Lea, RBP, _) => self.point_fp(self.place(instruction)),
            (Mnemonic::Mov, RSP, RBP) => match self.fp {
                FramePointer::Frame(below) => self.set_sp(Some(below))?,
                _ => self.sp = None,
            },
            (Mnemonic::Lea, RSP, _) => self.set_sp(self.place(instruction))?,
            (Mnemonic::Add, RSP, Register::None) => match instruction.try_immediate(1) {
                Ok(up) => self.move_sp((up as i64).wrapping_neg())?,
                Err(_) => self.sp = None,
            },
            (Mnemonic::Sub, RSP, Register::None) => match instruction.try_immediate(1) {
                Ok(down) => self.move_sp(down as i64)?,
                Err(_) => self.sp = None,
            },
            (Mnemonic::Mov, RBP, _) if is_memory(1) => {
                self.fp = match (self.place(instruction), self.saved) {
                    (Some(at), Some(saved)) if at == saved => FramePointer::Callers,
                    _ => FramePointer::Other,
                };
            }
            (Mnemonic::Mov, to, from) => {
                let at = self.place(instruction);
                match (at, self.ra) {
                    (Some(8), ReturnAddress::Kept) if is_memory(1) && to.is_gpr64() => {
                        self.ra = ReturnAddress::Loaded(to);
                        return Ok(());
                    }
                    (Some(at), ReturnAddress::Loaded(copy)) if copy == from && at <= 0 => {
                        self.ra = ReturnAddress::Copied(at);
                        return Ok(());
                    }
                    // Below the stack pointer it may go with the next call.
                    (Some(at), _)
                        if from == RBP
                            && (self.fp, self.saved) == (FramePointer::Callers, None)
                            && at >= 16
                            && self.sp >= Some(at) =>
                    {
                        self.saved = Some(at);
                        return Ok(());
                    }
                    _ => self.other(instruction, factory)?,
                }
            }
            _ => self.other(instruction, factory)?,
        }
        Ok(())
    }

    /// The same, of an instruction that is nothing special.
    fn other(
        &mut self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), Broken> {
        let at = self.place(instruction);
        let up = instruction.stack_pointer_increment();
        // All but a few name none of the registers, and no place, that matter here.
        let is_near =
            |register: Register| matches!(register.full_register(), Register::RSP | Register::RBP);
        let named = (0..instruction.op_count())
            .filter(|operand| instruction.op_kind(*operand) == OpKind::Register)
            .any(|operand| is_near(instruction.op_register(operand)));
        let is_kept = matches!(self.ra, ReturnAddress::Kept | ReturnAddress::Gone);
        let is_common = !named && at.is_none() && is_kept;
        if is_common && instruction.mnemonic() != Mnemonic::Enter {
            return self.move_sp(-i64::from(up));
        }
        let info = factory.info(instruction);
        let is_read = |access| {
            matches!(
                access,
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            )
        };
        for used in info.used_registers() {
            let register = used.register().full_register();
            if is_read(used.access()) {
                continue;
            }
            match (register, self.ra) {
                (Register::RSP, _) if up == 0 => self.sp = None,
                (Register::RBP, _) => self.fp = FramePointer::Other,
                (_, ReturnAddress::Loaded(copy)) if copy == register => {
                    self.ra = ReturnAddress::Kept;
                }
                (_, ReturnAddress::Popped(popped)) if popped == register => {
                    self.ra = ReturnAddress::Gone;
                }
                _ => {}
            }
        }
        if let Some(at) = at {
            let len = instruction.memory_size().size() as i32;
            let is_over = |slot: i32| at > slot - 8 && at.saturating_sub(len) < slot;
            let is_over_ra = is_over(8);
            let writes = (is_over_ra || self.saved.is_some_and(is_over))
                && info
                    .used_memory()
                    .iter()
                    .any(|used| !is_read(used.access()));
            match self.fp {
                _ if !writes => {}
                FramePointer::Callers if is_over_ra => {
                    (self.sp, self.ra) = (None, ReturnAddress::Gone);
                }
                FramePointer::Callers => self.saved = None,
                _ => return Err(Broken),
            }
        }
        self.move_sp(-i64::from(up))
    }
}

/// How much speaks for a function to begin somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Guessed,
    /// What fills up in front of it would trap: no code of a function goes on behind that.
    Trapped,
    Called,
    Symbol,
}

/// An instruction that was reached.
#[derive(Clone, Copy, Debug)]
struct Reached {
    at: u64,
    len: u8,
    state: State,
    /// From which start, by its number.
    from: usize,
}

/// How an instruction is come to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Start,
    Flow,
    /// It is behind a call, which may not return.
    Return,
}

/// Where to go on.
#[derive(Clone, Copy)]
struct Way {
    at: u64,
    state: State,
    by: By,
    /// Whether a return that works out proves all from the start on. Behind a call that finds the stack
    /// as it was, another function may begin.
    proves: bool,
}

/// What was found out, of each start by its number.
struct Findings {
    starts: Vec<(u64, Strength)>,
    /// Which share code: the number of another one, or its own.
    same: Vec<usize>,
    bad: Vec<bool>,
    proved: Vec<bool>,
    /// Two that cannot both be right.
    conflicts: Vec<(usize, usize)>,
    /// What is called, and from which start.
    called: BTreeMap<u64, usize>,
}

impl Findings {
    fn group(&self, mut of: usize) -> usize {
        while self.same[of] != of {
            of = self.same[of];
        }
        of
    }

    /// Of two that cannot both be right that one is bad for which less speaks.
    fn decide(&mut self) {
        for (a, b) in mem::take(&mut self.conflicts) {
            let strength = |number: usize| (self.starts[number].1, self.proved[number]);
            let (of_a, of_b) = (strength(a), strength(b));
            self.bad[a] |= of_a <= of_b;
            self.bad[b] |= of_b <= of_a;
        }
    }

    /// Of each start, by its number, whether it or any that it shares code with is what `is` tells.
    fn any_of_group(&self, is: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut groups = vec![false; self.starts.len()];
        for number in (0..groups.len()).filter(|number| is(*number)) {
            groups[self.group(number)] = true;
        }
        (0..groups.len())
            .map(|number| groups[self.group(number)])
            .collect()
    }
}

/// Code of which nothing tells.
struct Gap<'a> {
    address: u64,
    bytes: &'a [u8],
    /// Where functions begin.
    starts: BTreeMap<u64, Strength>,
    /// Where none does.
    never: BTreeSet<u64>,
    reached: Vec<Reached>,
    /// Which one of them is at each byte, if any, plus one; and whether a function begins there.
    index: Vec<u32>,
    decoder: Decoder<'a>,
}

/// In `index`, that a function begins there.
const IS_START: u32 = 1 << 31;

impl<'a> Gap<'a> {
    fn new(address: u64, bytes: &'a [u8], entry: u64) -> Gap<'a> {
        Gap {
            address,
            bytes,
            starts: BTreeMap::new(),
            never: BTreeSet::from([entry]),
            reached: Vec::new(),
            index: vec![0; bytes.len()],
            decoder: Decoder::with_ip(64, bytes, address, DecoderOptions::NONE),
        }
    }

    fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }

    fn holds(&self, address: u64) -> bool {
        (self.address..self.end()).contains(&address)
    }

    /// The instruction at an address, which the gap holds.
    fn decode(&mut self, at: u64) -> Instruction {
        let there = self.decoder.set_position((at - self.address) as usize);
        debug_assert!(there.is_ok());
        self.decoder.set_ip(at);
        self.decoder.decode()
    }

    fn start(&mut self, at: u64, why: Strength) {
        if !self.never.contains(&at) {
            let known = self.starts.entry(at).or_insert(why);
            *known = why.max(*known);
        }
    }

    /// Finds where functions may begin.
    fn begin(&mut self, symbols: &BTreeSet<u64>) {
        for symbol in symbols.range(self.address..self.end()) {
            self.start(*symbol, Strength::Symbol);
        }
        let mut has_ended = true;
        let mut trapped = false;
        let all = Decoder::with_ip(64, self.bytes, self.address, DecoderOptions::NONE);
        for instruction in all {
            let at = instruction.ip();
            let traps = instruction.mnemonic() == Mnemonic::Int3;
            if has_ended && (traps || instruction.mnemonic() == Mnemonic::Nop) {
                trapped = traps;
                continue;
            }
            if has_ended && at % ALIGNMENT == 0 {
                let why = match trapped && at % TRAPPED_ALIGNMENT == 0 {
                    true => Strength::Trapped,
                    false => Strength::Guessed,
                };
                self.start(at, why);
            }
            trapped = traps;
            has_ended = matches!(
                instruction.flow_control(),
                FlowControl::Return
                    | FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Interrupt
                    | FlowControl::Exception
            );
        }
    }

    /// Goes through all until what is left works out, and leaves that.
    fn settle(&mut self) {
        for rounds_left in (0..MAX_ROUNDS).rev() {
            let findings = self.round();
            let is_bad = findings.any_of_group(|number| findings.bad[number]);
            let is_proved = findings.any_of_group(|number| {
                findings.proved[number] || findings.starts[number].1 > Strength::Guessed
            });
            if rounds_left > 0 && (self.add_called(&findings) || self.drop_bad(&findings, &is_bad))
            {
                continue;
            }
            self.reached
                .retain(|reached| is_proved[reached.from] && !is_bad[reached.from]);
            self.reached.sort_by_key(|reached| reached.at);
            return;
        }
    }

    /// Adds what is called, unless by a guess, and tells whether there was any that is new.
    fn add_called(&mut self, findings: &Findings) -> bool {
        let mut is_new = false;
        for (call, from) in &findings.called {
            let is_known = self.starts.get(call) >= Some(&Strength::Called);
            let is_guess = findings.starts[*from].1 == Strength::Guessed;
            if !is_known && !is_guess && !self.never.contains(call) {
                self.start(*call, Strength::Called);
                is_new = true;
            }
        }
        is_new
    }

    /// Drops what is bad, and of those that share code with it those for which the least speaks. Tells
    /// whether there was any.
    fn drop_bad(&mut self, findings: &Findings, is_bad: &[bool]) -> bool {
        let mut weakest = BTreeMap::new();
        for (number, (_, strength)) in findings.starts.iter().enumerate() {
            let least = weakest.entry(findings.group(number)).or_insert(*strength);
            *least = (*least).min(*strength);
        }
        for (number, (start, strength)) in findings.starts.iter().enumerate() {
            let is_weakest = weakest[&findings.group(number)] == *strength;
            if findings.bad[number] || (is_bad[number] && is_weakest) {
                self.starts.remove(start);
                self.never.insert(*start);
            }
        }
        is_bad.contains(&true)
    }

    /// Goes through all that is reached from the starts.
    fn round(&mut self) -> Findings {
        let starts: Vec<_> = self.starts.iter().map(|(at, why)| (*at, *why)).collect();
        let mut findings = Findings {
            same: (0..starts.len()).collect(),
            bad: vec![false; starts.len()],
            proved: vec![false; starts.len()],
            conflicts: Vec::new(),
            called: BTreeMap::new(),
            starts,
        };
        self.reached.clear();
        self.index.fill(0);
        for (start, _) in &findings.starts {
            self.index[(start - self.address) as usize] = IS_START;
        }
        let mut factory = InstructionInfoFactory::new();
        let mut todo = Vec::new();
        // What is behind calls comes last: it may not be reached that way.
        let mut later = Vec::new();
        for number in 0..findings.starts.len() {
            todo.push(Way {
                at: findings.starts[number].0,
                state: State::ENTRY,
                by: By::Start,
                proves: true,
            });
            while let Some(way) = todo.pop().or_else(|| later.pop()) {
                for way in self
                    .reach(way, number, &mut findings, &mut factory)
                    .into_iter()
                    .flatten()
                {
                    match way.by {
                        By::Return => later.push(way),
                        _ => todo.push(way),
                    }
                }
            }
        }
        findings.decide();
        findings
    }

    /// Goes through the instruction at `way`, from a start, and returns where it goes on.
    fn reach(
        &mut self,
        way: Way,
        from: usize,
        findings: &mut Findings,
        factory: &mut InstructionInfoFactory,
    ) -> [Option<Way>; 2] {
        const NOWHERE: [Option<Way>; 2] = [None; 2];
        let Way {
            at,
            mut state,
            by,
            mut proves,
        } = way;
        let index = at.wrapping_sub(self.address) as usize;
        let mark = self.index.get(index).copied();
        let is_start = by != By::Start && mark.is_some_and(|mark| mark & IS_START != 0);
        if is_start || mark.is_none() {
            // It goes on as another function, and what it finds is that one's.
            let is_dropped = state.ra == ReturnAddress::Dropped && state.sp == Some(8);
            let goes_on = state.is_left() || is_dropped || state.ra == ReturnAddress::Gone;
            if by == By::Return || goes_on {
                return NOWHERE;
            }
            let other = findings.starts.partition_point(|(start, _)| *start < at);
            match state.fp {
                _ if !is_start => findings.bad[from] = true,
                // It is within the function that has set up that frame.
                FramePointer::Frame(_) => findings.bad[other] = true,
                _ => findings.conflicts.push((from, other)),
            }
            return NOWHERE;
        }
        let known = mark.unwrap_or(0) & !IS_START;
        let known = known.checked_sub(1).map(|known| known as usize);
        if let Some(known) = known {
            let Reached {
                state: other,
                from: other_from,
                ..
            } = self.reached[known];
            let Some(joined) = other.join(state) else {
                if by != By::Return {
                    findings.conflicts.push((from, other_from));
                }
                return NOWHERE;
            };
            let (a, b) = (findings.group(from), findings.group(other_from));
            findings.same[a] = b;
            // What is looked up again is found sooner.
            (findings.same[from], findings.same[other_from]) = (b, b);
            if joined == other {
                return NOWHERE;
            }
            state = joined;
        }
        let instruction = self.decode(at);
        let flow = instruction.flow_control();
        // What fills up behind a call that does not return.
        let fills = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        if by == By::Return && fills {
            return NOWHERE;
        }
        if instruction.is_invalid() {
            findings.bad[from] = true;
            return NOWHERE;
        }
        // Wherever the stack pointer has been, it points to the return address now.
        if flow == FlowControl::Return && state.is_left() {
            state.sp = Some(8);
        }
        let reached = Reached {
            at,
            len: instruction.len() as u8,
            state,
            from,
        };
        match known {
            Some(known) => self.reached[known].state = state,
            None => {
                self.reached.push(reached);
                self.index[index] |= self.reached.len() as u32;
            }
        }
        let go = |at, state, by, proves| {
            Some(Way {
                at,
                state,
                by,
                proves,
            })
        };
        let next = instruction.next_ip();
        let target = instruction.near_branch_target();
        match flow {
            FlowControl::Next if instruction.mnemonic() == Mnemonic::Hlt => NOWHERE,
            FlowControl::Next => {
                let was = state;
                let is_broken = state.step(&instruction, factory).is_err();
                // No guess may begin with the end of a function.
                let is_dropped = state.ra == ReturnAddress::Dropped;
                if is_broken || is_dropped && findings.starts[from].1 == Strength::Guessed {
                    findings.bad[from] = true;
                    return NOWHERE;
                }
                // As functions begin.
                findings.proved[from] |= state.is_new_frame()
                    && !was.is_lost()
                    && !matches!(was.fp, FramePointer::Frame(_));
                [go(next, state, By::Flow, proves), None]
            }
            FlowControl::ConditionalBranch => [
                go(next, state, By::Flow, proves),
                go(target, state, By::Flow, proves),
            ],
            FlowControl::UnconditionalBranch => [go(target, state, By::Flow, proves), None],
            FlowControl::Return => {
                findings.proved[from] |= proves && state.is_left();
                findings.bad[from] |=
                    !state.is_left() && !state.is_jump() && state.ra != ReturnAddress::Gone;
                NOWHERE
            }
            FlowControl::Call | FlowControl::IndirectCall
                if instruction.mnemonic() == Mnemonic::Call =>
            {
                if flow == FlowControl::Call && self.holds(target) {
                    findings.called.insert(target, from);
                }
                proves &= state != State::ENTRY;
                // Some take their arguments off the stack, and are called by who keeps a frame pointer.
                if matches!(state.fp, FramePointer::Frame(_)) {
                    state.sp = None;
                }
                state.pushed = false;
                [go(next, state, By::Return, proves), None]
            }
            FlowControl::IndirectBranch | FlowControl::Interrupt | FlowControl::Exception => {
                NOWHERE
            }
            // System calls, and what is like them.
            _ => {
                findings.bad[from] = true;
                NOWHERE
            }
        }
    }

    /// Says what was found.
    fn said(&self, functions: &mut Vec<Function>) {
        let mut open = None;
        for reached in &self.reached {
            if let Some(rule) = reached.state.rule() {
                let end = reached.at + u64::from(reached.len);
                extend(&mut open, functions, reached.at, end, false, rule);
            }
        }
        functions.extend(open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x1000;

    /// What is said of each of `offsets`: the CFA, and where the caller's frame pointer is from there.
    fn said(text: &[u8], symbols: &[u64], offsets: &[u64]) -> Vec<String> {
        let end = START + text.len() as u64;
        let code = Code {
            segments: vec![(START, end, text)],
        };
        let symbols = symbols.iter().map(|offset| START + offset).collect();
        let functions = functions(std::slice::from_ref(&(START..end)), &symbols, 0, &code);
        let rule_at = |at: u64| {
            let function = functions
                .iter()
                .find(|function| (function.start..function.end()).contains(&at))?;
            let rows = function.rows.iter().rev();
            rows.map(|(start, rule)| (function.start + u64::from(*start), rule))
                .find_map(|(start, rule)| (start <= at).then_some(*rule))
        };
        let text = |rule: Rule| {
            let Rule { cfa, fp, .. } = rule;
            assert_eq!(rule, Rule::amd64(cfa.base, cfa.offset, fp));
            let base = if cfa.base == Base::Sp { "sp" } else { "fp" };
            match fp {
                Location::AtCfa(saved) => format!("{base}+{} {saved}", cfa.offset),
                _ => format!("{base}+{}", cfa.offset),
            }
        };
        offsets
            .iter()
            .map(|offset| rule_at(START + offset).map_or("-".to_owned(), text))
            .collect()
    }

    /// The same of a function at the start, which is known to be one.
    fn of(text: &[u8], offsets: &[u64]) -> Vec<String> {
        said(text, &[0], offsets)
    }

    // The bytes are those of GNU as, quoted with what was assembled.
    #[test]
    fn the_stack_pointer_is_followed() {
        // push %rbx; sub $16,%rsp; call; add $16,%rsp; pop %rbx; ret
        let text = b"\x53\x48\x83\xec\x10\xe8\xfb\0\0\0\x48\x83\xc4\x10\x5b\xc3";
        assert_eq!(
            of(text, &[0, 1, 5, 10, 14, 15, 16]),
            ["sp+8", "sp+16", "sp+32", "sp+32", "sp+16", "sp+8", "-"]
        );
    }

    #[test]
    fn a_frame_pointer_is_followed() {
        // push %rbp; mov %rsp,%rbp; push %rbx; and $-32,%rsp; call; lea -8(%rbp),%rsp; pop %rbx;
        // pop %rbp; ret
        let text =
            b"\x55\x48\x89\xe5\x53\x48\x83\xe4\xe0\xe8\xfb\0\0\0\x48\x8d\x65\xf8\x5b\x5d\xc3";
        let frame = "fp+16 -16";
        assert_eq!(
            of(text, &[0, 1, 4, 5, 9, 14, 18, 19, 20]),
            [
                "sp+8",
                "sp+16 -16",
                frame,
                frame,
                frame,
                frame,
                frame,
                frame,
                "sp+8"
            ]
        );
        // What is called may take its arguments off the stack; and V8 itself does:
        // push %rbp; mov %rsp,%rbp; call; leave; pop %rcx; lea 8(%rsp,%rax,8),%rsp; push %rcx; ret
        let text = b"\x55\x48\x89\xe5\xe8\xfb\0\0\0\xc9\x59\x48\x8d\x64\xc4\x08\x51\xc3";
        assert_eq!(
            of(text, &[4, 9, 10, 11, 16, 17]),
            [frame, frame, "sp+8", "-", "-", "sp+8"]
        );
    }

    #[test]
    fn the_register_may_be_used_for_anything() {
        // push %rbp; mov $7,%ebp; pop %rbp; ret
        let text = b"\x55\xbd\x07\0\0\0\x5d\xc3";
        assert_eq!(of(text, &[1, 6, 7]), ["sp+16 -16", "sp+16 -16", "sp+8"]);
        // sub $24,%rsp; mov %rbp,8(%rsp); mov $7,%ebp; mov 8(%rsp),%rbp; add $24,%rsp; ret
        let text = b"\x48\x83\xec\x18\x48\x89\x6c\x24\x08\xbd\x07\0\0\0\x48\x8b\x6c\x24\x08\
            \x48\x83\xc4\x18\xc3";
        assert_eq!(
            of(text, &[4, 9, 14, 19, 23]),
            ["sp+32", "sp+32 -24", "sp+32 -24", "sp+32 -24", "sp+8"]
        );
        // Without having saved it: mov $7,%ebp; ret
        assert_eq!(of(b"\xbd\x07\0\0\0\xc3", &[0, 5]), ["-", "-"]);
    }

    #[test]
    fn the_return_address_may_be_moved() {
        // push %rdx; push 8(%rsp); mov %rdi,16(%rsp); jmp: one argument more
        let text = b"\x52\xff\x74\x24\x08\x48\x89\x7c\x24\x10\xe9\xfb\x0f\0\0";
        assert_eq!(of(text, &[0, 1, 5, 10]), ["sp+8", "sp+16", "sp+8", "sp+8"]);
        // push %rdx; mov 8(%rsp),%r10; mov %r10,16(%rsp); add $16,%rsp; jmp: one less
        let text = b"\x52\x4c\x8b\x54\x24\x08\x4c\x89\x54\x24\x10\x48\x83\xc4\x10\xe9\xfb\x0f\0\0";
        assert_eq!(
            of(text, &[1, 6, 11, 15]),
            ["sp+16", "sp+16", "sp+16", "sp+8"]
        );
        // mov %rax,(%rsp); ret: that is no return.
        assert_eq!(of(b"\x48\x89\x04\x24\xc3", &[0, 4]), ["sp+8", "-"]);
        // push %rbx; movups %xmm0,(%rsp); ret
        let text = b"\x53\x0f\x11\x04\x24\xc3";
        assert_eq!(of(text, &[1, 5]), ["sp+16", "-"]);
    }

    /// As V8 enters what is to be interpreted: it sets up its caller's frame, or leaves for its caller's
    /// caller.
    #[test]
    fn a_caller_is_given_its_frame_or_left_out() {
        // test $0x3e,%cl; jne 1f; pop %r15; push %rbp; mov %rsp,%rbp; push %rsi; cmp %rax,%rsp; jb 2f;
        // push %r15; nop; ret
        let mut text = b"\xf6\xc1\x3e\x75\x10\x41\x5f\x55\x48\x89\xe5\x56\x48\x39\xc4\x72\x19\
            \x41\x57\x90\xc3"
            .to_vec();
        // 1: add $8,%rsp; push %rbp; mov %rsp,%rbp; push %rdi; call; pop %rdi; mov %rbp,%rsp; pop %rbp;
        // push %rcx; ret
        text.extend_from_slice(
            b"\x48\x83\xc4\x08\x55\x48\x89\xe5\x57\xe8\xfb\x0f\0\0\x5f\x48\x89\xec\x5d\x51\xc3",
        );
        // 2: push %r15; push %rbp; mov %rsp,%rbp; call; mov %rbp,%rsp; pop %rbp; ret
        text.extend_from_slice(b"\x41\x57\x55\x48\x89\xe5\xe8\xfb\x0f\0\0\x48\x89\xec\x5d\xc3");
        let (entry, nothing, frame) = ("sp+8", "-", "fp+16 -16");
        assert_eq!(
            of(&text, &[5, 7, 8, 0xb, 0xc, 0x11, 0x13, 0x14]),
            [entry, nothing, nothing, nothing, nothing, nothing, entry, entry]
        );
        assert_eq!(
            of(&text, &[0x15, 0x19, 0x1a, 0x1d, 0x23, 0x27, 0x28, 0x29]),
            [entry, nothing, nothing, frame, frame, frame, entry, "sp+16"]
        );
        assert_eq!(
            of(&text, &[0x2a, 0x2c, 0x2d, 0x30, 0x35, 0x39]),
            [nothing, entry, "sp+16 -16", frame, frame, entry]
        );
        // Where nothing tells of a function it is the end of one: add $8,%rsp; push %rbp;
        // mov %rsp,%rbp; leave; ret
        let text = b"\x48\x83\xc4\x08\x55\x48\x89\xe5\xc9\xc3";
        assert_eq!(of(text, &[0, 4, 8]), [entry, nothing, frame]);
        assert_eq!(said(text, &[], &[0, 4, 8]), [nothing; 3]);
        // Onto the stack in the place of the return address: push %rbx; push %rcx; ret
        assert_eq!(of(b"\x53\x51\xc3", &[0, 1, 2]), [nothing; 3]);
    }

    #[test]
    fn what_does_not_work_out_is_not_said() {
        // xor %eax,%eax; pop %rbx; ret: the end of another function.
        assert_eq!(of(b"\x31\xc0\x5b\xc3", &[0, 2, 3]), ["-", "-", "-"]);
        // test %edi,%edi; je over it; push %rax; pop %rax; ret
        assert_eq!(of(b"\x85\xff\x74\x01\x50\x58\xc3", &[0, 5]), ["-", "-"]);
        // mov $15,%eax; syscall; ret
        assert_eq!(of(b"\xb8\x0f\0\0\0\x0f\x05\xc3", &[0, 7]), ["-", "-"]);
        // leave; ret. And what is no instruction.
        assert_eq!(of(b"\xc9\xc3", &[0, 1]), ["-", "-"]);
        assert_eq!(of(b"\x06\xc3", &[0]), ["-"]);
        // mov (%rdi),%rsp; ret: another stack, and what is on top of it is returned to.
        assert_eq!(of(b"\x48\x8b\x27\xc3", &[0, 3]), ["sp+8", "sp+8"]);
    }

    /// Functions one behind the other at multiples of `align`, with `fill` in between.
    fn text_of(functions: &[&[u8]], align: usize, fill: u8) -> Vec<u8> {
        let mut text = Vec::new();
        for function in functions {
            text.extend_from_slice(function);
            text.resize(text.len().next_multiple_of(align), fill);
        }
        text
    }

    #[test]
    fn functions_are_guessed() {
        const PUSHES: &[u8] = b"\x53\xe8\xfb\x0f\0\0\x5b\xc3"; // push %rbx; call; pop %rbx; ret
        let text = text_of(&[PUSHES, PUSHES], 16, 0x90);
        assert_eq!(said(&text, &[], &[1, 17, 8]), ["sp+16", "sp+16", "-"]);
        // jmp *%rax proves nothing: so a table of jumps may be used. Behind what would trap it is
        // the end of a function.
        const JUMPS: &[u8] = b"\x31\xc0\xff\xe0"; // xor %eax,%eax; jmp *%rax
        let text = text_of(&[PUSHES, JUMPS], 64, 0x90);
        assert_eq!(said(&text, &[], &[1, 64]), ["sp+16", "-"]);
        assert_eq!(said(&text, &[64], &[64]), ["sp+8"]);
        let text = text_of(&[PUSHES, JUMPS], 64, 0xcc);
        assert_eq!(said(&text, &[], &[1, 64]), ["sp+16", "sp+8"]);
        // The end of another function, behind its jump: pop %rbx; ret
        let text = text_of(&[JUMPS, b"\x5b\xc3"], 16, 0x90);
        assert_eq!(said(&text, &[0], &[0, 16]), ["sp+8", "-"]);
    }

    #[test]
    fn what_is_within_a_function_is_not_guessed_to_be_one() {
        // push %rbp; mov %rsp,%rbp; jmp to behind what would trap; there: leave; ret
        let text = text_of(&[b"\x55\x48\x89\xe5\xeb\x3a", b"\xc9\xc3"], 64, 0xcc);
        assert_eq!(
            said(&text, &[], &[4, 64, 65]),
            ["fp+16 -16", "fp+16 -16", "sp+8"]
        );
        // Behind a call that does not return, another one begins: push %rbx; call; and push %rax;
        // pop %rax; ret
        let text = text_of(&[b"\x53\xe8\xfb\x0f\0\0", b"\x50\x58\xc3"], 16, 0x90);
        assert_eq!(said(&text, &[0, 16], &[1, 6, 17]), ["sp+16", "-", "sp+16"]);
        // The same if nobody knows it: then the first is not believed.
        assert_eq!(said(&text, &[], &[1, 6, 17]), ["-", "-", "-"]);
    }

    #[test]
    fn what_a_program_begins_with_is_not_guessed() {
        // mov %rsp,%rdi; call; ret
        let text = b"\x48\x89\xe7\xe8\xfb\x0f\0\0\xc3";
        let code = Code {
            segments: vec![(START, START + 9, text)],
        };
        let gap = START..START + 9;
        for (entry, found) in [(START, 0), (0, 1)] {
            let gaps = std::slice::from_ref(&gap);
            let symbols = BTreeSet::from([START]);
            assert_eq!(functions(gaps, &symbols, entry, &code).len(), found);
        }
    }
}
