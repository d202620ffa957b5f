// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The truth: from a frame to its caller by .eh_frame, with all general registers.
//!
//! What a row says is kept by address, so that a program counter that comes again costs a look-up
//! in a table. Only what DWARF can say is believed: no frame pointer is guessed.

use std::{
    collections::HashMap,
    fmt,
    rc::Rc, //
};

use gimli::{
    BaseAddresses,
    CfaRule,
    CieOrFde,
    DebugFrame,
    EhFrame,
    EndianSlice,
    EvaluationResult,
    Expression,
    LittleEndian,
    Location,
    Register,
    RegisterRule,
    UnwindContext,
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
    process::{
        File,
        Process, //
    },
    registers::{
        Registers,
        COUNT,
        PC,
        RAX,
        RBP,
        RDX,
        RSP, //
    },
    table::Table, //
};

use crate::{
    files::Tables,
    leaving,
    limits, //
};

/// The registers that a function leaves to its caller as they were: rbx, rbp, r12 to r15.
const KEPT_BY_CALLEES: u32 = (1 << 3) | (1 << RBP) | (0b1111 << 12);

/// Where a step has led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To the caller.
    Caller {
        /// Its registers.
        registers: Registers,
        /// Whether the step went through a signal's trampoline: the caller's PC is not behind a
        /// call, and is to be looked up as it is.
        signal: bool,
    },
    /// Nowhere: the table says that there is no caller, or the return address is zero.
    Outermost,
}

/// Why the truth is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// Nothing is mapped at the PC.
    NotMapped,
    /// What is mapped at the PC is no file, or none that can be read.
    NoFile,
    /// The file has no .eh_frame, or none that can be read.
    NoTable,
    /// .eh_frame does not cover the PC.
    NoEntry,
    /// The entry for the PC cannot be read.
    BadEntry,
    /// A register that is needed is not known.
    Register(u8),
    /// An expression that cannot be evaluated.
    Expression,
    /// The caller would be where no code is: .eh_frame was wrong. Who takes steps has to find out.
    NotCode,
    /// A frame that has called would lie below what it has called: .eh_frame was wrong. Who takes
    /// steps has to find out.
    NotRising,
    /// Memory could not be read at this address.
    Fault(u64),
}

impl Why {
    /// Whether nothing tells of the code at the PC.
    pub const fn is_untold(self) -> bool {
        matches!(self, Why::NoFile | Why::NoTable | Why::NoEntry)
    }

    /// A short name, for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Why::NotMapped => "not-mapped",
            Why::NoFile => "no-file",
            Why::NoTable => "no-table",
            Why::NoEntry => "no-entry",
            Why::BadEntry => "bad-entry",
            Why::Register(_) => "register",
            Why::Expression => "expression",
            Why::NotCode => "not-code",
            Why::NotRising => "not-rising",
            Why::Fault(_) => "fault",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NotMapped => f.write_str("nothing is mapped at the PC"),
            Why::NoFile => f.write_str("the PC is in no file that can be read"),
            Why::NoTable => f.write_str("the file has no .eh_frame that can be read"),
            Why::NoEntry => f.write_str(".eh_frame does not cover the PC"),
            Why::BadEntry => f.write_str(".eh_frame's entry for the PC cannot be read"),
            Why::Register(number) => write!(f, "register {number} (DWARF) is not known"),
            Why::Expression => f.write_str("an expression of .eh_frame cannot be evaluated"),
            Why::NotCode => f.write_str("it leads to where no code is"),
            Why::NotRising => f.write_str("it leads down the stack"),
            Why::Fault(address) => write!(f, "memory at {address:#x} cannot be read"),
        }
    }
}

/// The bytes of a section.
pub type Slice = EndianSlice<'static, LittleEndian>;

/// One .eh_frame, or one .debug_frame. Addresses are link-time addresses.
pub struct Cfi<S = EhFrame<Slice>> {
    section: S,
    bases: BaseAddresses,
    /// Start, end, and where the entry is in the section, sorted.
    entries: Vec<(u64, u64, usize)>,
}

/// One .debug_frame.
pub type DebugCfi = Cfi<DebugFrame<Slice>>;

impl Cfi {
    /// Reads an .eh_frame.
    ///
    /// `address` is that of the section, `text` and `got` are what entries may be relative to.
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
    /// Reads a .debug_frame: musl has there, and nowhere else, what its assembly does.
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

impl<S: UnwindSection<Slice>> Cfi<S> {
    /// Reads which entry covers which addresses. (.eh_frame_hdr, where there is one, says the same
    /// for the starts alone.)
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
            // Code that the linker has dropped was at zero.
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

    /// First address, and the one behind the last, of the function whose entry covers an address.
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

    fn row_at(&self, address: u64, context: &mut UnwindContext<usize>) -> Result<Row, Why> {
        let (_, _, at) = self.entry_at(address).ok_or(Why::NoEntry)?;
        self.row(address, at, context).map_err(|_| Why::BadEntry)
    }

    fn row(
        &self,
        address: u64,
        at: usize,
        context: &mut UnwindContext<usize>,
    ) -> gimli::Result<Row> {
        let fde = self
            .section
            .fde_from_offset(&self.bases, at.into(), S::cie_from_offset)?;
        let row = fde.unwind_info_for_address(&self.section, &self.bases, context, address)?;
        let expression = |expression: &UnwindExpression<usize>| expression.get(&self.section);
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Cfa::Register(number(*register)?, *offset)
            }
            CfaRule::Expression(found) => Cfa::Expression(expression(found)?),
        };
        let mut rules = Vec::new();
        for (register, rule) in row.registers() {
            let Ok(register) = number(*register) else {
                // A vector register, or a flag.
                continue;
            };
            let place = match rule {
                RegisterRule::Undefined => continue,
                RegisterRule::SameValue => Place::Register(register, 0),
                RegisterRule::Offset(offset) => Place::At(*offset),
                RegisterRule::ValOffset(offset) => Place::OfCfa(*offset),
                RegisterRule::Register(other) => Place::Register(number(*other)?, 0),
                RegisterRule::Expression(found) => Place::AtExpression(expression(found)?),
                RegisterRule::ValExpression(found) => Place::Expression(expression(found)?),
                _ => return Err(gimli::Error::UnsupportedRegister(register.into())),
            };
            rules.push((register, place));
        }
        rules.sort_by_key(|(register, _)| *register);
        Ok(Row {
            cfa,
            rules,
            kept: KEPT_BY_CALLEES,
            signal: fde.is_signal_trampoline(),
        })
    }
}

/// The number of a general register, or of the return address.
fn number(register: Register) -> gimli::Result<u8> {
    u8::try_from(register.0)
        .ok()
        .filter(|number| usize::from(*number) < COUNT)
        .ok_or(gimli::Error::UnsupportedRegister(register.0.into()))
}

/// How to get from a frame to its caller, as .eh_frame says it for one address.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The canonical frame address, which is the caller's stack pointer if nothing else is said.
    pub cfa: Cfa,
    /// Where the caller's registers are.
    pub rules: Vec<(u8, Place)>,
    /// Those that are unchanged where no rule speaks of them: the bit of their number.
    pub kept: u32,
    /// Whether this is a signal's trampoline.
    pub signal: bool,
}

/// The canonical frame address.
#[derive(Clone, Debug, PartialEq)]
pub enum Cfa {
    /// A register, plus so many bytes.
    Register(u8, i64),
    /// What an expression comes to.
    Expression(Expression<Slice>),
}

/// Where a register of the caller is.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In memory, so many bytes from the CFA.
    At(i64),
    /// It is the CFA plus so many bytes.
    OfCfa(i64),
    /// It is a register's value, plus so many bytes.
    Register(u8, i64),
    /// In memory, where an expression says.
    AtExpression(Expression<Slice>),
    /// It is what an expression comes to.
    Expression(Expression<Slice>),
}

/// As readelf shows rows.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cfa {
            Cfa::Register(register, offset) => write!(f, "cfa={}{offset:+}", name_of(*register))?,
            Cfa::Expression(expression) => write!(f, "cfa=exp {:02x?}", expression.0.slice())?,
        }
        for (register, place) in &self.rules {
            write!(f, " {}=", name_of(*register))?;
            match place {
                Place::At(offset) => write!(f, "c{offset:+}")?,
                Place::OfCfa(offset) => write!(f, "v{offset:+}")?,
                Place::Register(other, offset) => write!(f, "{}{offset:+}", name_of(*other))?,
                Place::AtExpression(expression) => write!(f, "exp {:02x?}", expression.0.slice())?,
                Place::Expression(expression) => write!(f, "vexp {:02x?}", expression.0.slice())?,
            }
        }
        f.write_str(if self.signal { " signal" } else { "" })
    }
}

impl Row {
    /// Whether its function saves what an exception's handler is given, as only those do that go on in
    /// another frame.
    pub(crate) fn serves_handlers(&self) -> bool {
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

/// What a register of this DWARF number is called.
pub fn name_of(register: u8) -> &'static str {
    const NAMES: [&str; COUNT] = [
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15", "ra",
    ];
    NAMES.get(usize::from(register)).unwrap_or(&"?")
}

/// Takes steps by .eh_frame, and keeps the rows it has met.
#[derive(Default)]
pub struct Unwinder {
    context: Option<Box<UnwindContext<usize>>>,
    rows: Table<(usize, u64), Result<Rc<Row>, Why>>,
}

impl Unwinder {
    /// One that has met no row.
    pub fn new() -> Unwinder {
        Unwinder::default()
    }

    /// The row that holds at a link-time address.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn row(&mut self, file: &File, address: u64) -> Result<Rc<Row>, Why> {
        if let Some(known) = self.rows.get(&(file.number, address)) {
            return known.clone();
        }
        let context = self.context.get_or_insert_default();
        let row = file
            .cfi()
            .map_err(|_| Why::NoTable)
            .and_then(|cfi| {
                let row = cfi.row_at(address, context)?;
                let row_at = |at| cfi.row_at(at, context).ok();
                Ok(leaving::truth(file, cfi, address, row, row_at))
            })
            .or_else(|why| match file.debug_cfi() {
                Some(cfi) if matches!(why, Why::NoEntry | Why::NoTable) => {
                    let mut row = cfi.row_at(address, context).map_err(|_| why)?;
                    if is_of_go(file) {
                        row.kept &= !(1 << RBP);
                    }
                    Ok(row)
                }
                _ => Err(why),
            })
            .map(Rc::new);
        self.rows.insert((file.number, address), row.clone());
        row
    }

    /// The row that holds at a run-time address.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn row_at(&mut self, process: &Process, address: u64) -> Result<Rc<Row>, Why> {
        let mapping = process.at(address).ok_or(Why::NotMapped)?;
        let (file, link) = mapping.link_address(address).ok_or(Why::NoFile)?;
        self.row(file, link)
    }

    /// Takes one step. `exact` is to be true of the innermost frame, and of one that a signal
    /// interrupted: all others are looked up at the byte before their PC, in the call.
    ///
    /// # Errors
    ///
    /// See [`Why`].
    pub fn step<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &Registers,
        memory: &M,
        exact: bool,
    ) -> Result<Outcome, Why> {
        let pc = registers.pc();
        let at = if exact { pc } else { pc.wrapping_sub(1) };
        let row = self.row_at(process, at);
        // A row that there is may be that of a plain function.
        if !row.as_ref().is_ok_and(|row| row.signal) && limits::is_restorer(process, pc) {
            return interrupted(registers, memory);
        }
        step_by_row(&*row?, registers, memory)
    }
}

/// Whether Go has made a file. It has no .eh_frame, and its .debug_frame speaks of no register but the
/// stack pointer, though functions save the frame pointer.
fn is_of_go(file: &File) -> bool {
    file.cfi().is_err() && file.sections.iter().any(|it| it.name == ".gopclntab")
}

/// Takes one step by a row.
///
/// # Errors
///
/// See [`Why`].
pub fn step_by_row<M: Memory + ?Sized>(
    row: &Row,
    registers: &Registers,
    memory: &M,
) -> Result<Outcome, Why> {
    let value = |number| registers.get(number).ok_or(Why::Register(number));
    let cfa = match row.cfa {
        Cfa::Register(register, offset) => value(register)?.wrapping_add_signed(offset),
        Cfa::Expression(expression) => evaluate(expression, None, registers, memory)?,
    };

    let mut caller = *registers;
    caller.keep(row.kept);
    caller.set(RSP, cfa);
    for (register, place) in &row.rules {
        let found = match *place {
            Place::At(offset) => read(memory, cfa.wrapping_add_signed(offset))?,
            Place::OfCfa(offset) => cfa.wrapping_add_signed(offset),
            Place::Register(other, offset) => match registers.get(other) {
                Some(value) => value.wrapping_add_signed(offset),
                None => continue,
            },
            Place::AtExpression(expression) => {
                read(memory, evaluate(expression, Some(cfa), registers, memory)?)?
            }
            Place::Expression(expression) => evaluate(expression, Some(cfa), registers, memory)?,
        };
        caller.set(*register, found);
    }
    match caller.get(PC) {
        None | Some(0) => Ok(Outcome::Outermost),
        Some(_) => Ok(Outcome::Caller {
            registers: caller,
            signal: row.signal,
        }),
    }
}

/// What a signal interrupted, from the `struct ucontext` that Linux has put on the handler's stack:
/// see <asm/ucontext.h> and <asm/sigcontext.h>.
fn interrupted<M: Memory + ?Sized>(registers: &Registers, memory: &M) -> Result<Outcome, Why> {
    const CONTEXT: u64 = 40;
    // In the order in which they are there, by DWARF number.
    const ORDER: [u8; COUNT] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, RBP, 3, 1, 0, 2, RSP, PC];

    let mut found = Registers::default();
    for (place, number) in (0..).zip(ORDER) {
        let address = registers.sp().wrapping_add(CONTEXT + 8 * place);
        found.set(number, read(memory, address)?);
    }
    Ok(Outcome::Caller {
        registers: found,
        signal: true,
    })
}

fn read<M: Memory + ?Sized>(memory: &M, address: u64) -> Result<u64, Why> {
    memory
        .read_word(address)
        .map_err(|Fault| Why::Fault(address))
}

fn evaluate<M: Memory + ?Sized>(
    expression: Expression<Slice>,
    initial: Option<u64>,
    registers: &Registers,
    memory: &M,
) -> Result<u64, Why> {
    let encoding = gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 4,
    };
    let bad = |_| Why::Expression;
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
                let value = registers.get(number).ok_or(Why::Register(number))?;
                evaluation.resume_with_register(Value::Generic(value))
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = read(memory, address)?;
                let value = match size {
                    8 => word,
                    1..8 => word & ((1 << (8 * size)) - 1),
                    _ => return Err(Why::Expression),
                };
                evaluation.resume_with_memory(Value::Generic(value))
            }
            _ => return Err(Why::Expression),
        }
        .map_err(bad)?;
    }
    match evaluation.as_result() {
        [piece] => match piece.location {
            Location::Address { address } => Ok(address),
            _ => Err(Why::Expression),
        },
        _ => Err(Why::Expression),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the .eh_frame of [`TABLE`] is.
    const AT: u64 = 0x4000;

    /// Where rows are for: 0x1000 to 0x1020 a function, 0x1020 to 0x1030 the start, 0x1030 to
    /// 0x1040 a trampoline.
    const TABLE: &[u8] = &[
        // A CIE: version 1, "zR", code 1, data -8, return address 16, pointers of four bytes from
        // here; cfa=rsp+8, ra=c-8.
        20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
        // 24: an FDE for 0x20 bytes at 0x1000. From 1 on cfa=rsp+16, rbp=c-16; from 4 on cfa=rbp+16;
        // from 8 on the CFA is in memory, where r10 points to: DW_OP_breg10 0, DW_OP_deref; from 12
        // on rbx is what rax was.
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

    /// Each word holds its address times two.
    struct Doubles;
    impl Memory for Doubles {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            if address < 0x100 {
                return Err(Fault);
            }
            Ok(address * 2)
        }
    }

    fn registers() -> Registers {
        let mut values = [0; COUNT];
        for (number, value) in values.iter_mut().enumerate() {
            *value = 0x1_0000 * (1 + number as u64);
        }
        Registers::new(values)
    }

    fn row(address: u64) -> Result<Row, Why> {
        let cfi = Cfi::new(TABLE, AT, 0, 0).unwrap();
        cfi.row_at(address, &mut UnwindContext::new())
    }

    fn caller(address: u64) -> Registers {
        match step_by_row(&row(address).unwrap(), &registers(), &Doubles) {
            Ok(Outcome::Caller { registers, .. }) => registers,
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
        assert_eq!(text(0x1020), "cfa=rsp+8");
        assert_eq!(
            text(0x1030),
            "cfa=rsp+8 rax=vexp [] rsp=exp [77, a0, 01] ra=exp [77, a8, 01] signal"
        );
        assert_eq!(row(0xfff), Err(Why::NoEntry));
        assert_eq!(row(0x1040), Err(Why::NoEntry));
    }

    #[test]
    fn debug_frame_says_the_same_in_other_words() {
        const TABLE: &[u8] = &[
            // A CIE: version 1, "", code 1, data -8, return address 16; cfa=rsp+8, ra=c-8.
            16, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0,
            // An FDE for 0x20 bytes at 0x1000. From 1 on cfa=rsp+16.
            24, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, //
            0x41, 0x0e, 16, 0,
        ];
        let cfi = DebugCfi::debug(TABLE).unwrap();
        let text = |address| {
            let row = cfi.row_at(address, &mut UnwindContext::new());
            row.map(|row| row.to_string())
        };
        assert_eq!(text(0x1000).unwrap(), "cfa=rsp+8 ra=c-8");
        assert_eq!(text(0x101f).unwrap(), "cfa=rsp+16 ra=c-8");
        assert_eq!(text(0x1020), Err(Why::NoEntry));
        assert_eq!(text(0xfff), Err(Why::NoEntry));
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
    fn a_signal_gives_back_what_it_interrupted() {
        let row = row(0x1030).unwrap();
        assert!(row.signal);
        let found = caller(0x1030);
        assert_eq!(found.sp(), (0x8_0000 + 160) * 2);
        assert_eq!(found.pc(), (0x8_0000 + 168) * 2);
        assert_eq!(found.get(0), Some(0x8_0008));
    }

    #[test]
    fn registers_of_a_context() {
        let Ok(Outcome::Caller { registers, signal }) = interrupted(&registers(), &Doubles) else {
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
    fn ends_and_gaps_have_names() {
        assert_eq!(
            step_by_row(&row(0x1020).unwrap(), &registers(), &Doubles),
            Ok(Outcome::Outermost)
        );
        let mut lost = registers();
        lost.keep(!(1 << 10));
        let why = step_by_row(&row(0x1008).unwrap(), &lost, &Doubles).unwrap_err();
        assert_eq!((why, why.name()), (Why::Register(10), "register"));
        lost.set(RSP, 0x10);
        let why = step_by_row(&row(0x1000).unwrap(), &lost, &Doubles).unwrap_err();
        assert_eq!(why, Why::Fault(0x10));
    }

    /// The memory of this process.
    struct Own(std::fs::File);
    impl Memory for Own {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            let mut word = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(&self.0, &mut word, address)
                .map_err(|_| Fault)?;
            Ok(u64::from_le_bytes(word))
        }
    }

    /// The functions on this thread's stack, and how the walk ends.
    #[inline(never)]
    fn walk() -> (Vec<String>, Result<(), Why>) {
        let mut registers = Registers::default();
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
        let memory = Own(std::fs::File::open("/proc/self/mem").unwrap());
        let mut unwinder = Unwinder::new();
        let mut functions = vec![process.describe(registers.pc())];
        let mut exact = true;
        loop {
            match unwinder.step(&process, &registers, &memory, exact) {
                Ok(Outcome::Caller {
                    registers: caller,
                    signal,
                }) => {
                    registers = caller;
                    exact = signal;
                    functions.push(process.describe(caller.pc()));
                }
                Ok(Outcome::Outermost) => return (functions, Ok(())),
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
