// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The reference unwinder: steps from a frame to its caller by .eh_frame, with all general
//! registers.
//!
//! Rows are cached by address. Only DWARF rules are used; no frame pointer is guessed.

use std::{
    collections::{
        BTreeMap,
        HashMap, //
    },
    fmt,
    rc::Rc, //
};

use gimli::{
    BaseAddresses,
    CallFrameInstruction,
    CfaRule,
    CieOrFde,
    DebugFrame,
    EhFrame,
    EndianSlice,
    EvaluationResult,
    Expression,
    FrameDescriptionEntry,
    LittleEndian,
    Location,
    Register,
    RegisterRule,
    UnwindExpression,
    UnwindOffset,
    UnwindSection,
    Value, //
};
use sframe::{
    bytes::Fault,
    unwind::Memory, //
};
use walk::{
    address_map::AddressMap, //
    process::{
        MappedFile,
        Process, //
    },
    registers::{
        RegisterFile,
        COUNT,
        PC,
        RAX,
        RBP,
        RDX,
        RSP, //
    },
};

use crate::{
    files::CfiTables,
    handler_truth,
    limits, //
};

/// The callee-saved registers, as a bit mask by DWARF number: rbx, rbp, r12 to r15.
const CALLEE_SAVED: u32 = (1 << 3) | (1 << RBP) | (0b1111 << 12);

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CfiStep {
    /// To the caller.
    Caller {
        /// Its registers.
        registers: RegisterFile,
        /// Whether the step went through a signal trampoline: the caller's PC is not a return
        /// address, so its lookup address is the PC itself.
        signal: bool,
    },
    /// There is no caller: the table says so, or the return address is zero.
    Outermost,
}

/// The reason why the reference unwinder cannot step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnwindError {
    /// Nothing is mapped at the PC.
    NotMapped,
    /// The mapping at the PC is not of a readable file.
    NoFile,
    /// The file has no readable .eh_frame.
    NoTable,
    /// .eh_frame does not cover the PC.
    NoEntry,
    /// The entry for the PC cannot be read.
    BadEntry,
    /// The value of a needed register is unknown.
    Register(u8),
    /// An expression that cannot be evaluated.
    Expression,
    /// The caller's PC is not code: .eh_frame is wrong. The caller of [`Unwinder::step`] checks
    /// this.
    NotCode,
    /// The caller's frame is below its callee's: .eh_frame is wrong. The caller of
    /// [`Unwinder::step`] checks this.
    NotRising,
    /// Memory could not be read at this address.
    Fault(u64),
}

/// The size in bytes of the code from which on an entry may be of many functions.
const MANY_FUNCTIONS: u64 = 64 << 10;

impl UnwindError {
    /// Whether the code at the PC has no unwind information.
    pub const fn has_no_unwind_info(self) -> bool {
        matches!(
            self,
            UnwindError::NoFile | UnwindError::NoTable | UnwindError::NoEntry
        )
    }

    /// A short name, for tables.
    pub const fn name(self) -> &'static str {
        match self {
            UnwindError::NotMapped => "not-mapped",
            UnwindError::NoFile => "no-file",
            UnwindError::NoTable => "no-table",
            UnwindError::NoEntry => "no-entry",
            UnwindError::BadEntry => "bad-entry",
            UnwindError::Register(_) => "register",
            UnwindError::Expression => "expression",
            UnwindError::NotCode => "not-code",
            UnwindError::NotRising => "not-rising",
            UnwindError::Fault(_) => "fault",
        }
    }
}

impl fmt::Display for UnwindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnwindError::NotMapped => f.write_str("nothing is mapped at the PC"),
            UnwindError::NoFile => f.write_str("the PC is not in a readable file"),
            UnwindError::NoTable => f.write_str("the file has no readable .eh_frame"),
            UnwindError::NoEntry => f.write_str(".eh_frame does not cover the PC"),
            UnwindError::BadEntry => f.write_str(".eh_frame's entry for the PC cannot be read"),
            UnwindError::Register(number) => {
                write!(f, "the value of register {number} (DWARF) is unknown")
            }
            UnwindError::Expression => {
                f.write_str("an expression of .eh_frame cannot be evaluated")
            }
            UnwindError::NotCode => f.write_str("the caller's PC is not code"),
            UnwindError::NotRising => f.write_str("the caller's frame is below its callee's"),
            UnwindError::Fault(address) => write!(f, "memory at {address:#x} cannot be read"),
        }
    }
}

/// The bytes of a section.
pub type StaticSlice = EndianSlice<'static, LittleEndian>;

/// One .eh_frame, or one .debug_frame. Addresses are link-time addresses.
pub struct Cfi<S = EhFrame<StaticSlice>> {
    section: S,
    bases: BaseAddresses,
    /// The start and end address of each entry, and its offset in the section; sorted by start.
    entries: Vec<(u64, u64, usize)>,
}

/// One .debug_frame.
pub type DebugCfi = Cfi<DebugFrame<StaticSlice>>;

impl Cfi {
    /// Reads an .eh_frame.
    ///
    /// `address` is the section's; entries may be relative to `text` and `got`. All are link-time
    /// addresses.
    ///
    /// # Errors
    ///
    /// An entry cannot be read.
    pub fn new(bytes: &'static [u8], address: u64, text: u64, got: u64) -> gimli::Result<Cfi> {
        let mut section = EhFrame::new(bytes, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default()
            .set_eh_frame(address)
            .set_text(text)
            .set_got(got);
        Cfi::read(section, bases)
    }
}

impl DebugCfi {
    /// Reads a .debug_frame. musl describes its assembly only there.
    ///
    /// # Errors
    ///
    /// An entry cannot be read.
    pub fn debug(bytes: &'static [u8]) -> gimli::Result<Self> {
        let mut section = DebugFrame::new(bytes, LittleEndian);
        section.set_address_size(8);
        Cfi::read(section, BaseAddresses::default())
    }
}

impl<S: UnwindSection<StaticSlice>> Cfi<S> {
    /// Reads the range of each entry. (.eh_frame_hdr would give only the starts.)
    fn read(section: S, bases: BaseAddresses) -> gimli::Result<Self> {
        let mut found = Vec::new();
        let mut cies = HashMap::<usize, _>::new();
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next()? {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial.parse(|section, bases, at| {
                let number = UnwindOffset::into(at);
                let cie = match cies.get(&number) {
                    Some(cie) => Clone::clone(cie),
                    None => section.cie_from_offset(bases, at)?,
                };
                cies.insert(number, cie.clone());
                Ok(cie)
            })?;
            // Entries of discarded code have the start address zero.
            if fde.len() != 0 && fde.initial_address() != 0 {
                let start = fde.initial_address();
                let end = start.wrapping_add(fde.len());
                found.push((start, end, fde.offset()));
            }
        }
        found.sort_by_key(|(start, _, _)| *start);
        Ok(Cfi {
            section,
            bases,
            entries: found,
        })
    }

    /// The start and end address of the function whose entry covers an address.
    pub fn function_at(&self, address: u64) -> Option<(u64, u64)> {
        self.entry_at(address).map(|(start, end, _)| (start, end))
    }

    fn entry_at(&self, address: u64) -> Option<(u64, u64, usize)> {
        let index = self
            .entries
            .partition_point(|(start, _, _)| *start <= address);
        let entry = *self.entries.get(index.checked_sub(1)?)?;
        (address < entry.1).then_some(entry)
    }

    fn row_at(&self, address: u64) -> Result<CfiRow, UnwindError> {
        let (start, end, at) = self.entry_at(address).ok_or(UnwindError::NoEntry)?;
        // No function begins with a set-up frame. Dart has one entry for all code of a file.
        let is_of_functions = end - start >= MANY_FUNCTIONS
            && (self.row(start, at))
                .is_ok_and(|row| matches!(row.cfa, CfaLocation::Register(RBP, 16)));
        if is_of_functions {
            return Err(UnwindError::NoEntry);
        }
        self.row(address, at).map_err(|_| UnwindError::BadEntry)
    }

    fn row(&self, address: u64, at: usize) -> gimli::Result<CfiRow> {
        let fde = self
            .section
            .fde_from_offset(&self.bases, at.into(), S::cie_from_offset)?;
        let state = self.state_at(&fde, address)?;
        let expression = |expression: &UnwindExpression<usize>| expression.get(&self.section);
        let cfa = match state.cfa.ok_or(gimli::Error::NoUnwindInfoForAddress)? {
            CfaRule::RegisterAndOffset { register, offset } => {
                CfaLocation::Register(number(register)?, offset)
            }
            CfaRule::Expression(found) => CfaLocation::Expression(expression(&found)?),
        };
        let mut rules = Vec::new();
        for (register, rule) in state.rules {
            let register = Register(register);
            let Ok(register) = number(register) else {
                // A vector register, or a flag.
                continue;
            };
            let location = match rule {
                RegisterRule::Undefined => RegisterLocation::Lost,
                RegisterRule::SameValue => RegisterLocation::Register(register, 0),
                RegisterRule::Offset(offset) => RegisterLocation::At(offset),
                RegisterRule::ValOffset(offset) => RegisterLocation::OfCfa(offset),
                RegisterRule::Register(other) => RegisterLocation::Register(number(other)?, 0),
                RegisterRule::Expression(found) => {
                    RegisterLocation::AtExpression(expression(&found)?)
                }
                RegisterRule::ValExpression(found) => {
                    RegisterLocation::Expression(expression(&found)?)
                }
                _ => return Err(gimli::Error::UnsupportedRegister(register.into())),
            };
            rules.push((register, location));
        }
        Ok(CfiRow {
            cfa,
            rules,
            kept: CALLEE_SAVED,
            signal: fde.is_signal_trampoline(),
        })
    }

    /// Executes the instructions of an entry up to an address (DWARF 5, section 6.4.3). Of gimli
    /// only the decoder is used: its rows omit undefined registers, and the converter uses them.
    fn state_at(
        &self,
        fde: &FrameDescriptionEntry<StaticSlice>,
        address: u64,
    ) -> gimli::Result<RuleState> {
        let cie = fde.cie();
        let factor = cie.data_alignment_factor();
        let mut state = RuleState::default();
        let mut instructions = cie.instructions(&self.section, &self.bases);
        while let Some(instruction) = instructions.next()? {
            state.execute(instruction, factor)?;
        }
        let initial = state.clone();
        let mut remembered = Vec::new();
        let mut at = fde.initial_address();
        let mut instructions = fde.instructions(&self.section, &self.bases);
        while let Some(instruction) = instructions.next()? {
            match instruction {
                CallFrameInstruction::SetLoc { address } => at = address,
                CallFrameInstruction::AdvanceLoc { delta } => {
                    let delta = u64::from(delta).wrapping_mul(cie.code_alignment_factor());
                    at = at.wrapping_add(delta);
                }
                CallFrameInstruction::RememberState => remembered.push(state.clone()),
                CallFrameInstruction::RestoreState => {
                    state = remembered.pop().ok_or(gimli::Error::PopWithEmptyStack)?;
                }
                CallFrameInstruction::Restore { register } => {
                    match initial.rules.get(&register.0) {
                        Some(rule) => state.rules.insert(register.0, rule.clone()),
                        None => state.rules.remove(&register.0),
                    };
                }
                other => state.execute(other, factor)?,
            }
            if at > address {
                break;
            }
        }
        Ok(state)
    }
}

/// The rules of an entry at one of its instructions.
#[derive(Clone, Default)]
struct RuleState {
    cfa: Option<CfaRule<usize>>,
    /// The rules that are given, by DWARF number.
    rules: BTreeMap<u16, RegisterRule<usize>>,
}

impl RuleState {
    /// Executes an instruction that gives a rule. Offsets count in units of `factor` bytes.
    fn execute(
        &mut self,
        instruction: CallFrameInstruction<usize>,
        factor: i64,
    ) -> gimli::Result<()> {
        use CallFrameInstruction as I;
        let unsigned = |offset: u64| (offset as i64).wrapping_mul(factor);
        let signed = |offset: i64| offset.wrapping_mul(factor);
        let wrong = || gimli::Error::CfiInstructionInInvalidContext;
        let (register, rule) = match instruction {
            I::DefCfa { register, offset } => return self.set_cfa(register, offset as i64),
            I::DefCfaSf {
                register,
                factored_offset,
            } => return self.set_cfa(register, signed(factored_offset)),
            I::DefCfaRegister { register } => {
                let (_, offset) = self.cfa().ok_or_else(wrong)?;
                return self.set_cfa(register, offset);
            }
            I::DefCfaOffset { offset } => {
                let (register, _) = self.cfa().ok_or_else(wrong)?;
                return self.set_cfa(register, offset as i64);
            }
            I::DefCfaOffsetSf { factored_offset } => {
                let (register, _) = self.cfa().ok_or_else(wrong)?;
                return self.set_cfa(register, signed(factored_offset));
            }
            I::DefCfaExpression { expression } => {
                self.cfa = Some(CfaRule::Expression(expression));
                return Ok(());
            }
            I::ArgsSize { .. } | I::Nop => return Ok(()),
            I::Undefined { register } => (register, RegisterRule::Undefined),
            I::SameValue { register } => (register, RegisterRule::SameValue),
            I::Offset {
                register,
                factored_offset,
            } => (register, RegisterRule::Offset(unsigned(factored_offset))),
            I::OffsetExtendedSf {
                register,
                factored_offset,
            } => (register, RegisterRule::Offset(signed(factored_offset))),
            I::ValOffset {
                register,
                factored_offset,
            } => (register, RegisterRule::ValOffset(unsigned(factored_offset))),
            I::ValOffsetSf {
                register,
                factored_offset,
            } => (register, RegisterRule::ValOffset(signed(factored_offset))),
            I::Register {
                dest_register,
                src_register,
            } => (dest_register, RegisterRule::Register(src_register)),
            I::Expression {
                register,
                expression,
            } => (register, RegisterRule::Expression(expression)),
            I::ValExpression {
                register,
                expression,
            } => (register, RegisterRule::ValExpression(expression)),
            _ => return Err(wrong()),
        };
        self.rules.insert(register.0, rule);
        Ok(())
    }

    fn cfa(&self) -> Option<(Register, i64)> {
        match self.cfa {
            Some(CfaRule::RegisterAndOffset { register, offset }) => Some((register, offset)),
            _ => None,
        }
    }

    fn set_cfa(&mut self, register: Register, offset: i64) -> gimli::Result<()> {
        self.cfa = Some(CfaRule::RegisterAndOffset { register, offset });
        Ok(())
    }
}

/// The DWARF number of a general register or of the return address.
fn number(register: Register) -> gimli::Result<u8> {
    u8::try_from(register.0)
        .ok()
        .filter(|number| usize::from(*number) < COUNT)
        .ok_or(gimli::Error::UnsupportedRegister(register.0.into()))
}

/// The unwind rules of .eh_frame for one address.
#[derive(Clone, Debug, PartialEq)]
pub struct CfiRow {
    /// The canonical frame address, which is the caller's stack pointer unless a rule gives another
    /// one.
    pub cfa: CfaLocation,
    /// The locations of the caller's registers, by DWARF number.
    pub rules: Vec<(u8, RegisterLocation)>,
    /// The registers that are unchanged unless a rule exists, as a bit mask by DWARF number.
    pub kept: u32,
    /// Whether this is a signal trampoline.
    pub signal: bool,
}

/// The canonical frame address.
#[derive(Clone, Debug, PartialEq)]
pub enum CfaLocation {
    /// A register plus an offset in bytes.
    Register(u8, i64),
    /// The value of an expression.
    Expression(Expression<StaticSlice>),
}

/// The location of a register of the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum RegisterLocation {
    /// In memory, at this offset from the CFA in bytes.
    At(i64),
    /// The value is the CFA plus an offset in bytes.
    OfCfa(i64),
    /// The value is that of a register plus an offset in bytes.
    Register(u8, i64),
    /// In memory, at the address that an expression gives.
    AtExpression(Expression<StaticSlice>),
    /// The value is that of an expression.
    Expression(Expression<StaticSlice>),
    /// Nowhere: the register is declared undefined.
    Lost,
}

/// The notation of readelf.
impl fmt::Display for CfiRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cfa {
            CfaLocation::Register(register, offset) => {
                write!(f, "cfa={}{offset:+}", name_of(*register))?
            }
            CfaLocation::Expression(expression) => {
                write!(f, "cfa=exp {:02x?}", expression.0.slice())?
            }
        }
        for (register, location) in &self.rules {
            write!(f, " {}=", name_of(*register))?;
            match location {
                RegisterLocation::At(offset) => write!(f, "c{offset:+}")?,
                RegisterLocation::OfCfa(offset) => write!(f, "v{offset:+}")?,
                RegisterLocation::Register(other, offset) => {
                    write!(f, "{}{offset:+}", name_of(*other))?
                }
                RegisterLocation::AtExpression(expression) => {
                    write!(f, "exp {:02x?}", expression.0.slice())?
                }
                RegisterLocation::Expression(expression) => {
                    write!(f, "vexp {:02x?}", expression.0.slice())?
                }
                RegisterLocation::Lost => f.write_str("u")?,
            }
        }
        f.write_str(if self.signal { " signal" } else { "" })
    }
}

impl CfiRow {
    /// Whether the function saves the registers with an exception handler's arguments, as only
    /// functions with `__builtin_eh_return` do.
    pub(crate) fn is_eh_return(&self) -> bool {
        let saves = |number| self.rules.iter().any(|(saved, _)| *saved == number);
        saves(RAX) && saves(RDX)
    }
}

/// The DWARF number of a general register of 64 bits.
pub fn dwarf_number(register: iced_x86::Register) -> Option<u8> {
    use iced_x86::Register as R;

    const REGISTERS: [R; PC as usize] = [
        R::RAX,
        R::RDX,
        R::RCX,
        R::RBX,
        R::RSI,
        R::RDI,
        R::RBP,
        R::RSP,
        R::R8,
        R::R9,
        R::R10,
        R::R11,
        R::R12,
        R::R13,
        R::R14,
        R::R15,
    ];
    let number = REGISTERS.iter().position(|known| *known == register)?;
    u8::try_from(number).ok()
}

/// The name of the register with this DWARF number.
pub fn name_of(register: u8) -> &'static str {
    const NAMES: [&str; COUNT] = [
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15", "ra",
    ];
    NAMES.get(usize::from(register)).unwrap_or(&"?")
}

/// Takes steps by .eh_frame, and caches rows.
#[derive(Default)]
pub struct Unwinder {
    rows: AddressMap<(usize, u64), Result<Rc<CfiRow>, UnwindError>>,
}

impl Unwinder {
    /// An unwinder with an empty cache.
    pub fn new() -> Unwinder {
        Unwinder::default()
    }

    /// The row for a link-time address.
    ///
    /// # Errors
    ///
    /// There is no row; see [`UnwindError`].
    pub fn row(&mut self, file: &MappedFile, address: u64) -> Result<Rc<CfiRow>, UnwindError> {
        if let Some(known) = self.rows.get(&(file.number, address)) {
            return known.clone();
        }
        let row = file
            .cfi()
            .map_err(|_| UnwindError::NoTable)
            .and_then(|cfi| {
                let row = cfi.row_at(address)?;
                let row_at = |at| cfi.row_at(at).ok();
                Ok(handler_truth::correct_row(file, cfi, address, row, row_at))
            })
            .or_else(|why| match file.debug_cfi() {
                Some(cfi) if matches!(why, UnwindError::NoEntry | UnwindError::NoTable) => {
                    let mut row = cfi.row_at(address).map_err(|_| why)?;
                    if is_go_program(file) {
                        row.kept &= !(1 << RBP);
                    }
                    Ok(row)
                }
                _ => Err(why),
            })
            .and_then(
                |row| match limits::is_moved_by_interpreter(file, address, &row) {
                    true => Err(UnwindError::NoEntry),
                    false => Ok(row),
                },
            )
            .map(Rc::new);
        self.rows.insert((file.number, address), row.clone());
        row
    }

    /// The row for a run-time address.
    ///
    /// # Errors
    ///
    /// There is no row; see [`UnwindError`].
    pub fn row_at(&mut self, process: &Process, address: u64) -> Result<Rc<CfiRow>, UnwindError> {
        let mapping = process.at(address).ok_or(UnwindError::NotMapped)?;
        let (file, link) = mapping.link_address(address).ok_or(UnwindError::NoFile)?;
        self.row(file, link)
    }

    /// Takes one step. `exact` must be true for the innermost frame and for frames that a signal
    /// interrupted. For all others the lookup address is PC - 1, in the call.
    ///
    /// # Errors
    ///
    /// See [`UnwindError`].
    pub fn step<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        exact: bool,
    ) -> Result<CfiStep, UnwindError> {
        let pc = registers.pc();
        let at = if exact { pc } else { pc.wrapping_sub(1) };
        let row = self.row_at(process, at);
        // A trampoline may have the row of an ordinary function.
        if !row.as_ref().is_ok_and(|row| row.signal) && limits::is_restorer(process, pc) {
            return interrupted(registers, memory);
        }
        step_by_row(&*row?, registers, memory)
    }
}

/// Whether a file is a Go program. It has no .eh_frame, and its .debug_frame describes only the
/// stack pointer, although functions save the frame pointer.
fn is_go_program(file: &MappedFile) -> bool {
    file.cfi().is_err() && file.sections.iter().any(|it| it.name == ".gopclntab")
}

/// Takes one step by a row.
///
/// # Errors
///
/// See [`UnwindError`].
pub fn step_by_row<M: Memory + ?Sized>(
    row: &CfiRow,
    registers: &RegisterFile,
    memory: &M,
) -> Result<CfiStep, UnwindError> {
    let value = |number| registers.get(number).ok_or(UnwindError::Register(number));
    let cfa = match row.cfa {
        CfaLocation::Register(register, offset) => value(register)?.wrapping_add_signed(offset),
        CfaLocation::Expression(expression) => evaluate(expression, None, registers, memory)?,
    };

    let mut caller = *registers;
    caller.keep(row.kept);
    caller.set(RSP, cfa);
    for (register, location) in &row.rules {
        let found = match *location {
            RegisterLocation::At(offset) => read(memory, cfa.wrapping_add_signed(offset))?,
            RegisterLocation::OfCfa(offset) => cfa.wrapping_add_signed(offset),
            RegisterLocation::Register(other, offset) => match registers.get(other) {
                Some(value) => value.wrapping_add_signed(offset),
                None => continue,
            },
            RegisterLocation::AtExpression(expression) => {
                read(memory, evaluate(expression, Some(cfa), registers, memory)?)?
            }
            RegisterLocation::Expression(expression) => {
                evaluate(expression, Some(cfa), registers, memory)?
            }
            RegisterLocation::Lost => {
                caller.keep(!(1 << *register));
                continue;
            }
        };
        caller.set(*register, found);
    }
    match caller.get(PC) {
        None | Some(0) => Ok(CfiStep::Outermost),
        Some(_) => Ok(CfiStep::Caller {
            registers: caller,
            signal: row.signal,
        }),
    }
}

/// The registers that a signal interrupted, from the kernel's `struct ucontext` on the handler's
/// stack: see <asm/ucontext.h> and <asm/sigcontext.h>.
fn interrupted<M: Memory + ?Sized>(
    registers: &RegisterFile,
    memory: &M,
) -> Result<CfiStep, UnwindError> {
    const CONTEXT: u64 = 40;
    // The DWARF numbers in the order of the structure.
    const ORDER: [u8; COUNT] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, RBP, 3, 1, 0, 2, RSP, PC];

    let mut found = RegisterFile::default();
    for (place, number) in (0..).zip(ORDER) {
        let address = registers.sp().wrapping_add(CONTEXT + 8 * place);
        found.set(number, read(memory, address)?);
    }
    Ok(CfiStep::Caller {
        registers: found,
        signal: true,
    })
}

fn read<M: Memory + ?Sized>(memory: &M, address: u64) -> Result<u64, UnwindError> {
    memory
        .read_word(address)
        .map_err(|Fault| UnwindError::Fault(address))
}

fn evaluate<M: Memory + ?Sized>(
    expression: Expression<StaticSlice>,
    initial: Option<u64>,
    registers: &RegisterFile,
    memory: &M,
) -> Result<u64, UnwindError> {
    let encoding = gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 4,
    };
    let bad = |_| UnwindError::Expression;
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(1000);
    if let Some(initial) = initial {
        evaluation.set_initial_value(initial);
    }
    let mut state = evaluation.evaluate().map_err(bad)?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let number = number(register).map_err(bad)?;
                let value = registers.get(number).ok_or(UnwindError::Register(number))?;
                evaluation.resume_with_register(Value::Generic(value))
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = read(memory, address)?;
                let value = match size {
                    8 => word,
                    1..8 => word & ((1 << (8 * size)) - 1),
                    _ => return Err(UnwindError::Expression),
                };
                evaluation.resume_with_memory(Value::Generic(value))
            }
            _ => return Err(UnwindError::Expression),
        }
        .map_err(bad)?;
    }
    match evaluation.as_result() {
        [piece] => match piece.location {
            Location::Address { address } => Ok(address),
            _ => Err(UnwindError::Expression),
        },
        _ => Err(UnwindError::Expression),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of [`TABLE`].
    const AT: u64 = 0x4000;

    /// Where rows are for: 0x1000 to 0x1020 a function, 0x1020 to 0x1030 the start, 0x1030 to
    /// 0x1040 a trampoline.
    const TABLE: &[u8] = &[
        // A CIE: version 1, "zR", code 1, data -8, return address 16, pointers of four bytes from
        // here; cfa=rsp+8, ra=c-8.
        20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
        // 24: an FDE for 0x20 bytes at 0x1000. From 1 on cfa=rsp+16, rbp=c-16; from 4 on
        // cfa=rbp+16; from 8 on the CFA is in memory, where r10 points to: DW_OP_breg10 0,
        // DW_OP_deref; from 12 on rbx is what rax was.
        40, 0, 0, 0, 28, 0, 0, 0, 0xe0, 0xcf, 0xff, 0xff, 0x20, 0, 0, 0, 0, // The header.
        0x41, 0x0e, 16, 0x86, 2, // DW_CFA_advance_loc, def_cfa_offset, offset
        0x43, 0x0d, 6, // DW_CFA_advance_loc, def_cfa_register
        0x44, 0x0f, 3, 0x7a, 0, 6, // DW_CFA_advance_loc, def_cfa_expression
        0x44, 0x09, 3, 0, // DW_CFA_advance_loc, register
        0, 0, 0, 0, 0, 0, 0, 0, 0,
        // 68: an FDE for 0x10 bytes at 0x1020, where ra is undefined.
        16, 0, 0, 0, 72, 0, 0, 0, 0xd4, 0xcf, 0xff, 0xff, 0x10, 0, 0, 0, 0, 0x07, 16, 0,
        // 88: a CIE with "zRS".
        20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', b'S', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1,
        0,
        // 112: an FDE for 0x10 bytes at 0x1030: rsp is in memory, at rsp+160, rip at rsp+168, and
        // rax is the CFA: DW_CFA_expression with DW_OP_breg7, DW_CFA_val_expression of nothing.
        28, 0, 0, 0, 28, 0, 0, 0, 0xb8, 0xcf, 0xff, 0xff, 0x10, 0, 0, 0, 0, //
        0x10, 7, 3, 0x77, 0xa0, 1, 0x10, 16, 3, 0x77, 0xa8, 1, 0x16, 0, 0, //
        0, 0, 0, 0,
    ];

    /// Memory in which each word holds twice its address.
    struct Doubles;
    impl Memory for Doubles {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            if address < 0x100 {
                return Err(Fault);
            }
            Ok(address * 2)
        }
    }

    fn registers() -> RegisterFile {
        let mut values = [0; COUNT];
        for (number, value) in values.iter_mut().enumerate() {
            *value = 0x1_0000 * (1 + number as u64);
        }
        RegisterFile::new(values)
    }

    fn row(address: u64) -> Result<CfiRow, UnwindError> {
        let cfi = Cfi::new(TABLE, AT, 0, 0).unwrap();
        cfi.row_at(address)
    }

    fn caller(address: u64) -> RegisterFile {
        match step_by_row(&row(address).unwrap(), &registers(), &Doubles) {
            Ok(CfiStep::Caller { registers, .. }) => registers,
            other => panic!("{address:#x}: {other:?}"),
        }
    }

    #[test]
    fn rows_are_those_of_the_table() {
        let text = |address| row(address).unwrap().to_string();
        assert_eq!(text(0x1000), "cfa=rsp+8 ra=c-8");
        assert_eq!(text(0x1001), "cfa=rsp+16 rbp=c-16 ra=c-8");
        assert_eq!(text(0x1003), "cfa=rsp+16 rbp=c-16 ra=c-8");
        assert_eq!(text(0x1004), "cfa=rbp+16 rbp=c-16 ra=c-8");
        assert_eq!(text(0x1008), "cfa=exp [7a, 00, 06] rbp=c-16 ra=c-8");
        assert_eq!(text(0x1020), "cfa=rsp+8 ra=u");
        assert_eq!(
            text(0x1030),
            "cfa=rsp+8 rax=vexp [] rsp=exp [77, a0, 01] ra=exp [77, a8, 01] signal"
        );
        assert_eq!(row(0xfff), Err(UnwindError::NoEntry));
        assert_eq!(row(0x1040), Err(UnwindError::NoEntry));
    }

    #[test]
    fn debug_frame_is_read_like_eh_frame() {
        const TABLE: &[u8] = &[
            // A CIE: version 1, "", code 1, data -8, return address 16; cfa=rsp+8, ra=c-8.
            16, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0,
            // An FDE for 0x20 bytes at 0x1000. From 1 on cfa=rsp+16.
            24, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, //
            0x41, 0x0e, 16, 0,
        ];
        let cfi = DebugCfi::debug(TABLE).unwrap();
        let text = |address| {
            let row = cfi.row_at(address);
            row.map(|row| row.to_string())
        };
        assert_eq!(text(0x1000).unwrap(), "cfa=rsp+8 ra=c-8");
        assert_eq!(text(0x101f).unwrap(), "cfa=rsp+16 ra=c-8");
        assert_eq!(text(0x1020), Err(UnwindError::NoEntry));
        assert_eq!(text(0xfff), Err(UnwindError::NoEntry));
    }

    #[test]
    fn undefined_registers_are_lost() {
        const TABLE: &[u8] = &[
            // A CIE: version 1, "", code 2, data -8, return address 16; cfa=rsp+8, ra=c-8, rbx=u.
            20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 2, 0x78, 16, //
            0x0c, 7, 8, 0x90, 1, 0x07, 3, 0, 0, 0, 0,
            // An FDE for 0x20 bytes at 0x1000: from 2 on rbp=u, rbx=c-24; from 4 on as before.
            36, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, //
            0x0a, 0x41, 0x07, 6, 0x83, 3, 0x41, 0x0b, 0x41, 0x83, 4, 0x41, 0xc3, 0x0d, 6, 0,
        ];
        let cfi = DebugCfi::debug(TABLE).unwrap();
        let text = |address| cfi.row_at(address).unwrap().to_string();
        assert_eq!(text(0x1000), "cfa=rsp+8 rbx=u ra=c-8");
        assert_eq!(text(0x1003), "cfa=rsp+8 rbx=c-24 rbp=u ra=c-8");
        assert_eq!(text(0x1004), "cfa=rsp+8 rbx=u ra=c-8");
        assert_eq!(text(0x1006), "cfa=rsp+8 rbx=c-32 ra=c-8");
        assert_eq!(text(0x1008), "cfa=rbp+8 rbx=u ra=c-8");
        let row = cfi.row_at(0x1002).unwrap();
        let Ok(CfiStep::Caller { registers, .. }) = step_by_row(&row, &registers(), &Doubles)
        else {
            panic!("no caller");
        };
        assert_eq!(registers.get(RBP), None);
        assert_eq!(registers.get(3), Some((0x8_0008 - 24) * 2));
    }

    #[test]
    fn all_registers_are_restored() {
        let found = caller(0x1000);
        assert_eq!(found.pc(), 0x8_0000 * 2);
        assert_eq!(found.sp(), 0x8_0008);
        // rbx and rbp as they were; rax is lost.
        assert_eq!(found.get(3), Some(0x4_0000));
        assert_eq!(found.get(RBP), Some(0x7_0000));
        assert_eq!(found.get(0), None);

        let found = caller(0x1004);
        assert_eq!(found.sp(), 0x7_0010);
        assert_eq!(found.get(RBP), Some(0x7_0000 * 2));

        let found = caller(0x100c);
        assert_eq!(found.sp(), 0xb_0000 * 2);
        assert_eq!(found.get(3), Some(0x1_0000));
    }

    #[test]
    fn a_signal_trampoline_restores_the_interrupted_registers() {
        let row = row(0x1030).unwrap();
        assert!(row.signal);
        let found = caller(0x1030);
        assert_eq!(found.sp(), (0x8_0000 + 160) * 2);
        assert_eq!(found.pc(), (0x8_0000 + 168) * 2);
        assert_eq!(found.get(0), Some(0x8_0008));
    }

    #[test]
    fn registers_of_a_context() {
        let Ok(CfiStep::Caller { registers, signal }) = interrupted(&registers(), &Doubles) else {
            panic!("all of it can be read");
        };
        assert!(signal);
        // r8, rbp, rsp and rip are 40, 120, 160 and 168 bytes in.
        for (number, offset) in [(8, 40), (RBP, 120), (RSP, 160), (PC, 168)] {
            assert_eq!(registers.get(number), Some((0x8_0000 + offset) * 2));
        }
        // r15 and rdi are neighbours there, and so are rcx and rsp.
        for (number, offset) in [
            (15, 96),
            (5, 104),
            (4, 112),
            (3, 128),
            (1, 136),
            (0, 144),
            (2, 152),
        ] {
            assert_eq!(registers.get(number), Some((0x8_0000 + offset) * 2));
        }
    }

    #[test]
    fn the_outermost_frame_and_errors_are_reported() {
        assert_eq!(
            step_by_row(&row(0x1020).unwrap(), &registers(), &Doubles),
            Ok(CfiStep::Outermost)
        );
        let mut lost = registers();
        lost.keep(!(1 << 10));
        let why = step_by_row(&row(0x1008).unwrap(), &lost, &Doubles).unwrap_err();
        assert_eq!((why, why.name()), (UnwindError::Register(10), "register"));
        lost.set(RSP, 0x10);
        let why = step_by_row(&row(0x1000).unwrap(), &lost, &Doubles).unwrap_err();
        assert_eq!(why, UnwindError::Fault(0x10));
    }

    /// The memory of this process.
    struct OwnMemory(std::fs::File);
    impl Memory for OwnMemory {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            let mut word = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(&self.0, &mut word, address)
                .map_err(|_| Fault)?;
            Ok(u64::from_le_bytes(word))
        }
    }

    /// The functions on this thread's stack, and how the walk ends.
    #[inline(never)]
    fn walk() -> (Vec<String>, Result<(), UnwindError>) {
        let mut registers = RegisterFile::default();
        let mut kept = [0u64; 8];
        // SAFETY: Registers are stored to `kept`, which is large enough; nothing else is changed.
        unsafe {
            std::arch::asm!(
                "lea 2f(%rip), {scratch}",
                "mov {scratch}, 0({kept})",
                "mov %rbx, 8({kept})",
                "mov %rbp, 16({kept})",
                "mov %rsp, 24({kept})",
                "mov %r12, 32({kept})",
                "mov %r13, 40({kept})",
                "mov %r14, 48({kept})",
                "mov %r15, 56({kept})",
                "2:",
                scratch = out(reg) _,
                kept = in(reg) kept.as_mut_ptr(),
                options(att_syntax, nostack),
            );
        }
        for (number, value) in [PC, 3, RBP, RSP, 12, 13, 14, 15].into_iter().zip(kept) {
            registers.set(number, value);
        }
        let process = Process::read(std::process::id(), &mut walk::process::Files::new()).unwrap();
        let memory = OwnMemory(std::fs::File::open("/proc/self/mem").unwrap());
        let mut unwinder = Unwinder::new();
        let mut functions = vec![process.describe(registers.pc())];
        let mut exact = true;
        loop {
            match unwinder.step(&process, &registers, &memory, exact) {
                Ok(CfiStep::Caller {
                    registers: caller,
                    signal,
                }) => {
                    registers = caller;
                    exact = signal;
                    functions.push(process.describe(caller.pc()));
                }
                Ok(CfiStep::Outermost) => return (functions, Ok(())),
                Err(why) => return (functions, Err(why)),
            }
        }
    }

    #[test]
    fn this_very_stack() {
        let (functions, end) = walk();
        assert!(functions[0].contains("walk"), "{functions:#?}");
        assert!(functions[1].contains("this_very_stack"), "{functions:#?}");
        // To the very end, through the test's harness and libc.
        assert!(functions.len() > 6, "{functions:#?}");
        assert_eq!(end, Ok(()));
    }
}
