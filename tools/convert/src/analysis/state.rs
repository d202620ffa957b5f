// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The state of a frame at an instruction, followed from an earlier one.

use iced_x86::{
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
use std::mem;

/// The value of the frame pointer register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FpState {
    /// The caller's value.
    Callers,
    /// An address this many bytes below the CFA.
    Frame(i32),
    /// The address of the callee's frame, if the caller makes it. The function's own frame pointer
    /// is saved there; it is this many bytes below the CFA. The callee restores it.
    Callees(i32),
    /// An unknown value.
    Other,
}

/// The location of the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReturnAddress {
    /// Right below the CFA.
    Kept,
    /// Right below the CFA, and in a register.
    Loaded(Register),
    /// Right below the CFA, and also in memory at this distance below the CFA, in bytes. A tail
    /// call with another size of stack arguments moves the return address in this way.
    Copied(i32),
    /// Only in memory at this distance below the CFA, in bytes: a tail call with more stack
    /// arguments has put an argument in its place.
    Moved(i32),
    /// Only in a register, as in a function that pops its arguments.
    Popped(Register),
    /// As `Popped`, but since then a function has been called, which may have changed the register,
    /// or the stack pointer has been changed otherwise than upwards over arguments.
    PoppedEarlier(Register),
    /// Popped and discarded. If the function sets up a frame now, the word on top of the stack is
    /// the caller's return address, because the caller has pushed nothing.
    Dropped,
    /// Unknown.
    Unknown,
}

/// The state before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameState {
    /// The distance from the stack pointer up to the CFA, in bytes, if known.
    pub(super) sp: Option<i32>,
    pub(super) fp: FpState,
    /// The slot of the saved frame pointer, in bytes below the CFA, if it is saved.
    pub(super) saved: Option<i32>,
    pub(super) ra: ReturnAddress,
    /// Whether the word on top of the stack has just been pushed from a register: a return would
    /// jump to that address.
    pub(super) pushed: bool,
    /// Whether the word on top of the stack has just been pushed from the frame pointer of the
    /// function's own frame.
    pub(super) pushed_fp: bool,
    /// A register to which the stack pointer was copied, and the distance of its value below the
    /// CFA, in bytes.
    pub(super) copy: Option<(Register, i32)>,
    /// Whether the function has set up its caller's frame, or has discarded its caller and set up
    /// its own frame.
    pub(super) has_framed_caller: bool,
}

/// The code contradicts the assumptions about the function.
pub(super) struct Contradiction;

impl FrameState {
    /// The state at a function's start.
    pub(super) const ENTRY: FrameState = FrameState {
        sp: Some(8),
        fp: FpState::Callers,
        saved: None,
        ra: ReturnAddress::Kept,
        pushed: false,
        pushed_fp: false,
        copy: None,
        has_framed_caller: false,
    };

    pub(super) fn rule(&self) -> Option<Rule> {
        if self.is_lost() {
            return self.rule_by_register();
        }
        let saved = self.saved.map(|below| Location::AtCfa(-below));
        if let ReturnAddress::Moved(below) = self.ra {
            let base = self.sp.filter(|_| self.fp == FpState::Callers)?;
            let mut rule = Rule::amd64(Base::Sp, base, Location::Unchanged);
            rule.ra = Location::AtCfa(-below);
            return Some(rule);
        }
        match (self.fp, self.sp, saved) {
            (FpState::Frame(below), _, Some(fp)) => Some(Rule::amd64(Base::Fp, below, fp)),
            (_, Some(below), Some(fp)) => Some(Rule::amd64(Base::Sp, below, fp)),
            (FpState::Callers, Some(below), None) => {
                Some(Rule::amd64(Base::Sp, below, Location::Unchanged))
            }
            // The function restores nothing: its caller knows that, and has saved its own caller's
            // value.
            (FpState::Other, Some(below), None) => {
                Some(Rule::amd64(Base::Sp, below, Location::LOST))
            }
            // The stack pointer was aligned.
            (FpState::Callers, None, None) => self.rule_by_copy(Location::Unchanged),
            (_, None, Some(fp)) => self.rule_by_copy(fp),
            _ => None,
        }
    }

    /// The rule whose CFA counts from the register that has a copy of the stack pointer.
    pub(super) fn rule_by_copy(&self, fp: Location) -> Option<Rule> {
        let (register, below) = self.copy?;
        let base = Base::Register(dwarf_number(register)?);
        Some(Rule::amd64(base, below, fp))
    }

    /// The rule while only a register has the return address. The stack pointer is then the
    /// caller's, but for arguments.
    pub(super) fn rule_by_register(&self) -> Option<Rule> {
        let ReturnAddress::Popped(register) = self.ra else {
            return None;
        };
        let is_empty = (self.fp, self.sp, self.saved) == (FpState::Callers, None, None);
        let base = Base::Register(dwarf_number(register).filter(|_| is_empty)?);
        let mut rule = Rule::amd64(Base::Sp, 0, Location::Unchanged);
        rule.ra = Location::Of(base, 0);
        Some(rule)
    }

    /// Whether the return address is not on the stack.
    pub(super) fn is_lost(&self) -> bool {
        use ReturnAddress::{
            Dropped,
            Popped,
            PoppedEarlier,
            Unknown, //
        };
        matches!(self.ra, Popped(_) | PoppedEarlier(_) | Dropped | Unknown)
    }

    /// The register that has the return address, or had it earlier.
    pub(super) fn popped(&self) -> Option<Register> {
        match self.ra {
            ReturnAddress::Popped(register) | ReturnAddress::PoppedEarlier(register) => {
                Some(register)
            }
            _ => None,
        }
    }

    /// Whether the function has left its frame, and may have things on the stack of unknown size.
    pub(super) fn has_left_frame(&self) -> bool {
        let left = (FpState::Callers, None, ReturnAddress::Kept);
        (self.fp, self.sp, self.ra) == left && self.rule().is_none()
    }

    /// Whether stack and frame pointer are as at the function's start, so that the function may
    /// return or make a tail call.
    pub(super) fn is_restored(&self) -> bool {
        let is_on_top = !self.is_lost() && matches!(self.sp, Some(8) | None);
        is_on_top && self.fp == FpState::Callers
    }

    /// Whether the stack is as at the function's start, but the frame pointer's value is lost.
    pub(super) fn clobbers_fp(&self) -> bool {
        !self.is_lost() && self.sp == Some(8) && self.fp == FpState::Other
    }

    /// Whether a return instruction jumps to another function, whose address has just been pushed.
    pub(super) fn is_jump(&self) -> bool {
        let is_below = !self.is_lost() || self.ra == ReturnAddress::Dropped;
        self.pushed && is_below && self.sp == Some(16) && self.fp == FpState::Callers
    }

    /// The state that holds if either of two states may apply; `None` if both cannot occur in one
    /// function.
    pub(super) fn join(self, other: FrameState) -> Option<FrameState> {
        use FpState::{
            Callers,
            Frame,
            Other, //
        };
        use ReturnAddress::{
            Dropped,
            Kept,
            Moved,
            Unknown, //
        };
        let is_lost = self.is_lost() || other.is_lost();
        let saved = match (self.saved, other.saved) {
            (a, b) if a == b => a,
            _ if self.fp == Callers && other.fp == Callers => None,
            _ => return None,
        };
        let fp = match (self.fp, other.fp) {
            (a, b) if a == b => a,
            (Callers, Other) | (Other, Callers) => Other,
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
            (Moved(_), _) | (_, Moved(_)) if sp.is_some() => return None,
            _ if is_lost => (fp == Callers && sp.is_none()).then_some(Unknown)?,
            _ => Kept,
        };
        let pushed = self.pushed && other.pushed;
        Some(FrameState {
            sp,
            fp,
            saved,
            ra,
            pushed,
            pushed_fp: false,
            copy: self.copy.filter(|_| self.copy == other.copy),
            has_framed_caller: self.has_framed_caller && other.has_framed_caller,
        })
    }

    /// The state after a call.
    pub(super) fn behind_call(mut self) -> FrameState {
        if let FpState::Callees(below) = self.fp {
            self.fp = FpState::Frame(below);
        }
        // A callee may pop its arguments if the caller has a frame pointer.
        if matches!(self.fp, FpState::Frame(_)) {
            self.sp = None;
        }
        if let ReturnAddress::Popped(register) = self.ra {
            self.ra = ReturnAddress::PoppedEarlier(register);
        }
        self.pushed = false;
        self.pushed_fp = false;
        self
    }

    /// Sets the distance from the stack pointer to the CFA. Values below the stack pointer are
    /// lost.
    pub(super) fn set_sp(&mut self, below: Option<i32>) -> Result<(), Contradiction> {
        self.sp = below;
        match (below, self.ra) {
            // The caller's stack arguments have been popped, too.
            (Some(below), ReturnAddress::Copied(at) | ReturnAddress::Moved(at)) if below == at => {
                *self = self.at_entry();
            }
            (Some(0), ReturnAddress::Kept) if self.fp == FpState::Callers => {
                *self = FrameState {
                    ra: ReturnAddress::Dropped,
                    ..self.at_entry()
                };
            }
            (Some(below), _) if below < 8 && self.popped().is_some() => {
                (self.sp, self.saved) = (None, None);
            }
            (Some(below), _) if below < 8 => return Err(Contradiction),
            (Some(below), _) if self.saved.is_some_and(|saved| saved > below) => self.saved = None,
            _ => {}
        }
        Ok(())
    }

    /// The state at a function's start, with the present frame pointer.
    pub(super) fn at_entry(self) -> FrameState {
        FrameState {
            fp: self.fp,
            has_framed_caller: self.has_framed_caller,
            ..FrameState::ENTRY
        }
    }

    /// In a function that sets up its caller's frame: makes the frame pointer an unknown one, up to
    /// there.
    pub(super) fn lose_fp_of_caller(&mut self) {
        if self.fp == FpState::Callers && !self.has_framed_caller {
            (self.fp, self.saved) = (FpState::Other, None);
        }
    }

    pub(super) fn move_sp(&mut self, down: i64) -> Result<(), Contradiction> {
        let moved = self.sp.and_then(|sp| i64::from(sp).checked_add(down));
        self.set_sp(moved.and_then(|sp| i32::try_from(sp).ok()))
    }

    /// Whether the state is the state after a prologue of `push %rbp; mov %rsp,%rbp`.
    pub(super) fn is_new_frame(&self) -> bool {
        let frame = (FpState::Frame(16), Some(16), Some(16));
        (self.fp, self.saved, self.sp) == frame
    }

    pub(super) fn point_fp(&mut self, below: Option<i32>) {
        self.fp = match below {
            Some(below) if self.saved.is_some() => FpState::Frame(below),
            _ => FpState::Other,
        };
    }

    /// Whether a slot, in bytes below the CFA, is one on the stack to which a function that has
    /// left its frame may move its return address down.
    pub(super) fn may_move_to(&self, below: i32) -> bool {
        let is_in_frame = below > 8 && below % 8 == 0 && self.sp >= Some(below);
        is_in_frame && self.fp == FpState::Callers
    }

    /// The slot in the frame that an instruction's memory operand refers to, in bytes below the
    /// CFA.
    pub(super) fn slot(&self, instruction: &Instruction) -> Option<i32> {
        let from = match (instruction.memory_base(), self.fp) {
            (Register::RSP, _) => self.sp?,
            (Register::RBP, FpState::Frame(below)) => below,
            _ => return None,
        };
        if instruction.memory_index() != Register::None || instruction.has_segment_prefix() {
            return None;
        }
        let displacement = instruction.memory_displacement64() as i64;
        i32::try_from(i64::from(from).checked_sub(displacement)?).ok()
    }

    /// Applies an instruction that continues at the next instruction.
    pub(super) fn step(
        &mut self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), Contradiction> {
        let copy = self.copy;
        let sp = self.sp;
        let ra = self.ra;
        self.step_sp(instruction, factory)?;
        if let (ReturnAddress::Popped(register), true) = (self.ra, self.ra == ra) {
            if writes(instruction, Register::RSP, factory) && !drops_arguments(instruction) {
                self.ra = ReturnAddress::PoppedEarlier(register);
            }
        }
        if let Some((register, _)) = copy {
            if writes(instruction, register, factory) {
                self.copy = None;
            }
        }
        let is_copy = instruction.mnemonic() == Mnemonic::Mov
            && instruction.op1_register() == Register::RSP
            && dwarf_number(instruction.op0_register()).is_some();
        if let (true, Some(below)) = (is_copy, sp) {
            self.copy = Some((instruction.op0_register(), below));
        }
        Ok(())
    }

    /// Applies an instruction, but for [`FrameState::copy`].
    pub(super) fn step_sp(
        &mut self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), Contradiction> {
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
        let is_popped = self.popped().is_some();
        self.pushed = false;
        let has_pushed_fp = mem::take(&mut self.pushed_fp);
        match (instruction.mnemonic(), register(0), register(1)) {
            (Mnemonic::Push, RBP, _) => {
                // A helper that sets up its caller's frame is called at the caller's start.
                if is_popped && self.sp.is_none() {
                    self.sp = Some(8);
                }
                self.move_sp(8)?;
                if self.fp == FpState::Callers && self.saved.is_none() {
                    self.saved = self.sp;
                }
                self.pushed_fp = matches!(self.fp, FpState::Frame(_));
            }
            (Mnemonic::Push, from, _) if self.popped() == Some(from) => {
                // From here on, the frame that was set up belongs to the caller.
                if matches!(self.fp, FpState::Frame(_)) {
                    self.fp = FpState::Callers;
                    self.has_framed_caller = true;
                }
                *self = self.at_entry();
            }
            (Mnemonic::Push, from, _) if from.is_gpr64() => {
                self.move_sp(8)?;
                self.pushed = true;
            }
            // A copy of the return address: the original's slot becomes an argument.
            (Mnemonic::Push, ..)
                if is_memory(0)
                    && self.slot(instruction) == Some(8)
                    && !matches!(self.ra, ReturnAddress::Moved(_)) =>
            {
                if self.fp != FpState::Callers {
                    return Err(Contradiction);
                }
                *self = self.at_entry();
            }
            (Mnemonic::Pop, RBP, _) => {
                let (fp, below) = match (self.fp, self.sp, self.saved) {
                    (_, Some(sp), Some(saved)) if sp == saved => (FpState::Callers, Some(sp - 8)),
                    // A callee may have popped its arguments. But a function with a frame pointer
                    // pops only the saved value into the frame pointer.
                    (FpState::Frame(_), None, Some(saved)) => (FpState::Callers, Some(saved - 8)),
                    (_, sp, _) => (FpState::Other, sp.map(|sp| sp - 8)),
                };
                self.fp = fp;
                self.set_sp(below)?;
            }
            (Mnemonic::Pop, to, _) if self.sp == Some(8) && !is_popped => {
                if self.is_lost() || matches!(self.fp, FpState::Frame(_)) {
                    return Err(Contradiction);
                }
                self.sp = None;
                self.ra = match to.is_gpr64() {
                    true => ReturnAddress::Popped(to),
                    false => ReturnAddress::Unknown,
                };
            }
            (Mnemonic::Leave, ..) => match (self.fp, self.saved) {
                (FpState::Frame(below), Some(saved)) if below == saved => {
                    self.fp = FpState::Callers;
                    self.set_sp(Some(below - 8))?;
                }
                _ => return Err(Contradiction),
            },
            (Mnemonic::Mov, RBP, RSP) => {
                match self.fp {
                    FpState::Frame(below) if has_pushed_fp => self.fp = FpState::Callees(below),
                    _ => self.point_fp(self.sp),
                }
                if self.ra == ReturnAddress::Dropped && self.is_new_frame() {
                    self.ra = ReturnAddress::Kept;
                    self.has_framed_caller = true;
                }
            }
            (Mnemonic::Lea, RBP, _) => self.point_fp(self.slot(instruction)),
            (Mnemonic::Mov, RSP, RBP) => match self.fp {
                FpState::Frame(below) => self.set_sp(Some(below))?,
                _ => self.sp = None,
            },
            (Mnemonic::Mov, RSP, from) if self.copy.is_some_and(|(copy, _)| copy == from) => {
                self.set_sp(self.copy.map(|(_, below)| below))?;
            }
            (Mnemonic::Lea, RSP, _) => self.set_sp(self.slot(instruction))?,
            (Mnemonic::Add, RSP, Register::None) => match instruction.try_immediate(1) {
                Ok(up) => self.move_sp((up as i64).wrapping_neg())?,
                Err(_) => self.sp = None,
            },
            (Mnemonic::Sub, RSP, Register::None) => match instruction.try_immediate(1) {
                Ok(down) => self.move_sp(down as i64)?,
                Err(_) => self.sp = None,
            },
            (Mnemonic::Mov, RBP, _) if is_memory(1) => {
                self.fp = match (self.slot(instruction), self.saved) {
                    (Some(at), Some(saved)) if at == saved => FpState::Callers,
                    _ => FpState::Other,
                };
            }
            (Mnemonic::Mov, to, from) => {
                let at = self.slot(instruction);
                match (at, self.ra) {
                    (Some(8), ReturnAddress::Kept) if is_memory(1) && to.is_gpr64() => {
                        self.ra = ReturnAddress::Loaded(to);
                        return Ok(());
                    }
                    (Some(at), ReturnAddress::Loaded(copy))
                        if copy == from && (at <= 0 || self.may_move_to(at)) =>
                    {
                        self.ra = ReturnAddress::Copied(at);
                        return Ok(());
                    }
                    // A slot below the stack pointer does not count: the next call may overwrite
                    // it.
                    (Some(at), _)
                        if from == RBP
                            && (self.fp, self.saved) == (FpState::Callers, None)
                            && at >= 16
                            && self.sp >= Some(at) =>
                    {
                        self.saved = Some(at);
                        return Ok(());
                    }
                    _ => self.step_generic(instruction, factory)?,
                }
            }
            _ => self.step_generic(instruction, factory)?,
        }
        Ok(())
    }

    /// Applies an instruction that `step` has no case for.
    pub(super) fn step_generic(
        &mut self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), Contradiction> {
        let at = self.slot(instruction);
        let up = instruction.stack_pointer_increment();
        // Fast path: most instructions use no stack pointer, no frame pointer and no slot of the
        // frame.
        let is_near =
            |register: Register| matches!(register.full_register(), Register::RSP | Register::RBP);
        let named = (0..instruction.op_count())
            .filter(|operand| instruction.op_kind(*operand) == OpKind::Register)
            .any(|operand| is_near(instruction.op_register(operand)));
        let is_kept = matches!(self.ra, ReturnAddress::Kept | ReturnAddress::Unknown);
        let is_common = !named && at.is_none() && is_kept;
        if is_common && instruction.mnemonic() != Mnemonic::Enter {
            return self.move_sp(-i64::from(up));
        }
        let info = factory.info(instruction);
        for used in info.used_registers() {
            let register = used.register().full_register();
            if only_reads(used.access()) {
                continue;
            }
            match (register, self.ra) {
                (Register::RSP, _) if up == 0 => self.sp = None,
                (Register::RBP, _) => self.fp = FpState::Other,
                (_, ReturnAddress::Loaded(copy)) if copy == register => {
                    self.ra = ReturnAddress::Kept;
                }
                _ if self.popped() == Some(register) => {
                    self.ra = ReturnAddress::Unknown;
                }
                _ => {}
            }
        }
        if let Some(at) = at {
            let len = instruction.memory_size().size() as i32;
            let is_over = |slot: i32| at > slot - 8 && at.saturating_sub(len) < slot;
            let is_over_ra = is_over(8) && !matches!(self.ra, ReturnAddress::Moved(_));
            let is_over_copy = match self.ra {
                ReturnAddress::Copied(copy) | ReturnAddress::Moved(copy) => is_over(copy),
                _ => false,
            };
            let writes = (is_over_ra || is_over_copy || self.saved.is_some_and(is_over))
                && writes_memory(instruction, factory);
            match self.fp {
                _ if !writes => {}
                FpState::Callers if is_over_copy => {
                    self.ra = match self.ra {
                        ReturnAddress::Copied(_) => ReturnAddress::Kept,
                        _ => ReturnAddress::Unknown,
                    };
                    if is_over_ra || self.is_lost() {
                        (self.sp, self.ra) = (None, ReturnAddress::Unknown);
                    }
                }
                FpState::Callers
                    if is_over_ra
                        && matches!(self.ra, ReturnAddress::Copied(to) if self.may_move_to(to)) =>
                {
                    if let ReturnAddress::Copied(to) = self.ra {
                        self.ra = ReturnAddress::Moved(to);
                    }
                }
                FpState::Callers if is_over_ra => {
                    (self.sp, self.ra) = (None, ReturnAddress::Unknown);
                }
                FpState::Callers => self.saved = None,
                _ => return Err(Contradiction),
            }
        }
        self.move_sp(-i64::from(up))
    }
}

/// Where the return address is ahead of an instruction of a function's end, found from the end
/// backwards.
#[derive(Default)]
pub(super) struct FunctionEnd {
    /// The distance from the stack pointer up to the return address, in bytes.
    pub(super) at: i64,
    /// The register that holds the return address instead, while it is moved to another place on
    /// the stack.
    pub(super) moved_by: Option<Register>,
    /// The places that the instructions from the move on write, in bytes from the stack pointer,
    /// each with its size; and the addresses of the instructions in between.
    pub(super) written: Vec<(i64, i64)>,
    pub(super) between: Vec<u64>,
}

impl FunctionEnd {
    /// Goes back over an instruction.
    pub(super) fn go_back(
        &mut self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), Contradiction> {
        if instruction.flow_control() != FlowControl::Next {
            return Err(Contradiction);
        }
        let moves_sp = writes(instruction, Register::RSP, factory);
        let is_on_stack = instruction.memory_base() == Register::RSP
            && instruction.memory_index() == Register::None
            && !instruction.has_segment_prefix();
        let place = instruction.memory_displacement64() as i64;
        let is_word = instruction.mnemonic() == Mnemonic::Mov && is_on_stack;
        let stores = writes_memory(instruction, factory);
        if stores && instruction.memory_base() == Register::RSP && !is_on_stack {
            return Err(Contradiction);
        }
        let size = instruction.memory_size().size() as i64;
        // While the return address is in a register. The load from the old place is the start of
        // the move.
        if let Some(register) = self.moved_by {
            if is_word && instruction.op0_register() == register {
                let is_over = |(at, size): &(i64, i64)| place < at + size && *at < place + 8;
                if self.written.iter().any(is_over) {
                    return Err(Contradiction);
                }
                (self.at, self.moved_by) = (place, None);
                return Ok(());
            }
            if moves_sp || writes(instruction, register, factory) {
                return Err(Contradiction);
            }
            if stores && is_on_stack {
                self.written.push((place, size));
            }
            self.between.push(instruction.ip());
            return Ok(());
        }
        // The stack pointer rises, by add, lea or pop.
        if moves_sp {
            let is_pop = instruction.mnemonic() == Mnemonic::Pop;
            let up = match (instruction.mnemonic(), instruction.try_immediate(1)) {
                (Mnemonic::Add, Ok(up)) => up as i64,
                (Mnemonic::Lea, _) if is_on_stack => place,
                _ if is_pop && instruction.op0_register().is_gpr64() => 8,
                _ => return Err(Contradiction),
            };
            let is_sp = instruction.op0_register() == Register::RSP;
            self.at = self.at.checked_add(up).ok_or(Contradiction)?;
            return (is_sp != is_pop).then_some(()).ok_or(Contradiction);
        }
        let is_apart = place >= self.at + 8 || place + size <= self.at;
        if !stores || !is_on_stack || is_apart {
            return Ok(());
        }
        // The store of the return address to the new place is the end of the move.
        let register = instruction.op1_register();
        if !is_word || place != self.at || !register.is_gpr64() {
            return Err(Contradiction);
        }
        self.moved_by = Some(register);
        self.written = vec![(place, size)];
        self.between = vec![instruction.ip()];
        Ok(())
    }

    /// The rules that are known now: of the instruction at an address, over which was just gone
    /// back, and of instructions after it.
    pub(super) fn rules(&mut self, address: u64) -> Vec<(u64, Rule)> {
        let cfa = self
            .at
            .checked_add(8)
            .and_then(|cfa| i32::try_from(cfa).ok());
        let cfa = cfa.filter(|cfa| *cfa > 0 && self.moved_by.is_none());
        let Some(cfa) = cfa else {
            return Vec::new();
        };
        let rule = Rule::amd64(Base::Sp, cfa, Location::Unchanged);
        let addresses = mem::take(&mut self.between).into_iter().chain([address]);
        addresses.map(|at| (at, rule)).collect()
    }
}

/// The DWARF number of a general register of 64 bits that is neither the stack pointer nor the
/// frame pointer.
pub(super) fn dwarf_number(register: Register) -> Option<u8> {
    const NUMBERS: [Register; 16] = [
        Register::RAX,
        Register::RDX,
        Register::RCX,
        Register::RBX,
        Register::RSI,
        Register::RDI,
        Register::RBP,
        Register::RSP,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    let number = NUMBERS.iter().position(|other| *other == register)?;
    (!matches!(register, Register::RBP | Register::RSP)).then_some(number as u8)
}

/// Whether an instruction moves the stack pointer by a distance from its present value, as `lea
/// 8(%rsp,%rax,8),%rsp`. Code that has popped its return address does that to remove its arguments.
pub(super) fn drops_arguments(instruction: &Instruction) -> bool {
    let is_from_sp = match instruction.mnemonic() {
        Mnemonic::Lea => instruction.memory_base() == Register::RSP,
        mnemonic => mnemonic == Mnemonic::Add,
    };
    is_from_sp && instruction.op0_register() == Register::RSP
}

/// Whether an instruction is mov %rbp,%rsp.
pub(super) fn leaves_frame(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register() == Register::RSP
        && instruction.op1_register() == Register::RBP
}

/// Whether functions preserve a register by the ABI.
pub(super) fn is_preserved(register: Register) -> bool {
    use Register::{
        R12,
        R13,
        R14,
        R15,
        RBX, //
    };
    matches!(register, RBX | R12 | R13 | R14 | R15)
}

/// Whether an access only reads.
pub(super) fn only_reads(access: OpAccess) -> bool {
    use OpAccess::{
        CondRead,
        NoMemAccess,
        None,
        Read, //
    };
    matches!(access, None | Read | CondRead | NoMemAccess)
}

/// Whether an instruction may write a general register of 64 bits, or a part of it.
pub(super) fn writes(
    instruction: &Instruction,
    register: Register,
    factory: &mut InstructionInfoFactory,
) -> bool {
    let used = factory.info(instruction).used_registers().iter();
    used.filter(|used| !only_reads(used.access()))
        .any(|used| used.register().full_register() == register)
}

/// Whether an instruction may write memory.
pub(super) fn writes_memory(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> bool {
    let mut used = factory.info(instruction).used_memory().iter();
    used.any(|used| !only_reads(used.access()))
}
