// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Converts the rows of .eh_frame to rules.

use iced_x86::{
    Instruction,
    Mnemonic, //
};

use gimli::{
    BaseAddresses,
    CfaRule,
    EhFrame,
    EhFrameHdr,
    EndianSlice,
    FrameDescriptionEntry,
    LittleEndian,
    Operation,
    Pointer,
    Register,
    RegisterRule,
    UnwindContext,
    UnwindContextStorage,
    UnwindExpression,
    UnwindSection,
    UnwindTableRow,
    X86_64, //
};
use object::{
    elf,
    read::elf::{
        ElfFile64,
        ProgramHeader, //
    },
    Endianness,
    Object,
    ObjectSection, //
};
use sframe::{
    rule::{
        Base,
        Cfa,
        Location,
        Rule,
        SavedRbx, //
    },
    x86_64::registers, //
};
use std::{
    collections::HashMap,
    ops::Range, //
};

use crate::{
    code::CodeBytes,
    encode,
    entries::{
        fde_offsets,
        sort_and_trim,
        EhFrameEntry, //
    },
    function::ConvertedFunction,
    plt::STUB_SIZE,
    report::{
        ConvertError,
        DropReason,
        DroppedRow,
        Report, //
    },
    saved_rbx::RbxRows,
    undefined::UndefinedRegisters,
    work::ConversionWork, //
};

type CfiSlice<'a> = EndianSlice<'a, LittleEndian>;
pub(crate) type FdeEntry<'a> = FrameDescriptionEntry<CfiSlice<'a>>;

/// A row of .eh_frame. The registers of AMD64 with rules are 17 at most in what compilers write, 27
/// with the vector registers that functions of Windows save. gimli's own rows have room for 192
/// rules, and are copied for each `remember_state`.
pub(crate) type EhFrameRow = UnwindTableRow<usize, RowStorage>;

/// The memory for [`EhFrameRow`]s.
pub(crate) struct RowStorage;

impl UnwindContextStorage<usize> for RowStorage {
    type Rules = [(Register, RegisterRule<usize>); 32];
    /// The current row, the rules of the CIE, and sixteen remembered states. Compilers nest two.
    type Stack = Box<[EhFrameRow; 18]>;
}

/// DWARF register numbers, as gimli's type.
pub(crate) const RBX: Register = register(registers::RBX);
pub(crate) const RBP: Register = register(registers::RBP);
pub(crate) const RSP: Register = register(registers::RSP);
const PC: Register = register(registers::RETURN_ADDRESS);

const fn register(number: u8) -> Register {
    Register(number as u16)
}

/// The maximum number of operations of an expression. That of a PLT has nine.
const MAX_OPERATIONS: usize = 16;

/// The size in bytes of the code from which on an entry may be a claim.
const MIN_CLAIM: u64 = 64 << 10;

/// An .eh_frame section. Addresses are link-time addresses.
pub(crate) struct EhFrameTable<'a> {
    section: EhFrame<CfiSlice<'a>>,
    bases: BaseAddresses,
    bytes: &'a [u8],
}

impl<'a> EhFrameTable<'a> {
    /// Finds .eh_frame by the section's name, or by .eh_frame_hdr if there are no section headers.
    pub(crate) fn find(file: &ElfFile64<'a, Endianness>) -> Result<EhFrameTable<'a>, ConvertError> {
        let address_of = |name| {
            file.section_by_name(name)
                .map_or(0, |found| found.address())
        };
        let bases = BaseAddresses::default()
            .set_text(address_of(".text"))
            .set_got(address_of(".got"));
        let (bytes, address) = match file.section_by_name(".eh_frame") {
            Some(section) => (
                section.data().map_err(ConvertError::NotElf)?,
                section.address(),
            ),
            None => find_by_header(file)?,
        };
        if bytes.is_empty() {
            return Err(ConvertError::NoUnwindInfo);
        }
        Ok(EhFrameTable::new(bytes, bases.set_eh_frame(address)))
    }

    /// The contents of .eh_frame whose addresses count from nothing.
    pub(crate) fn of_absolute(bytes: &'a [u8]) -> EhFrameTable<'a> {
        EhFrameTable::new(bytes, BaseAddresses::default().set_eh_frame(0))
    }

    fn new(bytes: &'a [u8], bases: BaseAddresses) -> EhFrameTable<'a> {
        let mut section = EhFrame::new(bytes, LittleEndian);
        section.set_address_size(8);
        EhFrameTable {
            section,
            bases,
            bytes,
        }
    }

    /// The size of .eh_frame, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The entries of functions in `code`, sorted and without overlaps; and the code of these
    /// functions. Entries of discarded functions, which linkers leave behind, are skipped, as are
    /// claims, entries that cannot be read, and entries for which no work is left.
    pub(crate) fn entries(
        &self,
        code: &CodeBytes<'_>,
        work: &mut ConversionWork,
        report: &mut Report,
    ) -> Result<(Vec<EhFrameEntry<'a>>, Vec<Range<u64>>), ConvertError> {
        let mut found = Vec::new();
        let mut cies = HashMap::new();
        let mut context = UnwindContext::new_in();
        for at in fde_offsets(self.bytes)? {
            let fde = self
                .section
                .fde_from_offset(&self.bases, at, |section, bases, at| {
                    let read = || section.cie_from_offset(bases, at);
                    cies.entry(at.0).or_insert_with(read).clone()
                });
            // Its function is not known.
            let Ok(fde) = fde else {
                report.rows += 1;
                report.count_dropped(DropReason::InvalidEntry, 0);
                continue;
            };
            let (start, end) = (fde.initial_address(), fde.end_address());
            if start < end && code.holds(start, end - 1) {
                let entry = EhFrameEntry::new(fde);
                let may_be_claim = end - start >= MIN_CLAIM && work.take(entry.steps());
                if !(may_be_claim && self.is_claim(&entry, &mut context)) {
                    found.push(entry);
                }
            }
        }
        let covered = found.iter().map(EhFrameEntry::range).collect();
        sort_and_trim(&mut found);
        found.retain(|entry| {
            let is_left = work.take(entry.steps_with_code());
            if !is_left {
                report.rows += 1;
                report.count_dropped(DropReason::WorkLimit, entry.end() - entry.start());
            }
            is_left
        });
        Ok((found, covered))
    }

    /// Whether an entry only claims that its code keeps frame pointers, as the one entry of a file
    /// that Dart's compiler made: its only row, CFA = rbp+16, is wrong where a function begins. An
    /// entry of a function has a row for that.
    fn is_claim(
        &self,
        entry: &EhFrameEntry<'a>,
        context: &mut UnwindContext<usize, RowStorage>,
    ) -> bool {
        const FRAME: CfaRule<usize> = CfaRule::RegisterAndOffset {
            register: RBP,
            offset: 16,
        };
        let Ok(mut rows) = entry.fde.rows(&self.section, &self.bases, context) else {
            return false;
        };
        let is_frame = matches!(rows.next_row(), Ok(Some(row)) if *row.cfa() == FRAME);
        is_frame && matches!(rows.next_row(), Ok(None))
    }

    /// Converts entries.
    pub(crate) fn functions(
        &self,
        entries: &[EhFrameEntry<'a>],
        code: &CodeBytes<'_>,
    ) -> (Vec<ConvertedFunction>, Report) {
        let mut functions = Vec::new();
        let mut report = Report::default();
        let mut context = UnwindContext::new_in();
        let mut rbx_rows = RbxRows::default();
        for entry in entries {
            let first = functions.len();
            self.function(
                entry,
                code,
                &mut context,
                &mut functions,
                &mut rbx_rows,
                &mut report,
            );
            let rbx = rbx_rows.take(code);
            for function in functions.iter_mut().skip(first) {
                // With rbx, such a row would tell that what the function calls keeps the register.
                let is_marked = |rule: &Rule| matches!(rule.ra, Location::At(Base::Register(_), _));
                if !function.rows.iter().any(|(_, rule)| is_marked(rule)) {
                    function.rbx = rbx;
                }
            }
        }
        (functions, report)
    }

    fn function(
        &self,
        entry: &EhFrameEntry<'a>,
        code: &CodeBytes<'_>,
        context: &mut UnwindContext<usize, RowStorage>,
        functions: &mut Vec<ConvertedFunction>,
        rbx_rows: &mut RbxRows,
        report: &mut Report,
    ) {
        let fde = &entry.fde;
        let signal = fde.is_signal_trampoline();
        let undefined = UndefinedRegisters::of(fde, &self.section, &self.bases);
        let mut open: Option<ConvertedFunction> = None;
        let mut at = entry.start();
        let mut is_invalid = false;
        // The address of the first instruction that may change stacks; `u64::MAX` if there is none.
        let mut stack_taken = None;
        match fde.rows(&self.section, &self.bases, context) {
            Ok(mut rows) => loop {
                let row = match rows.next_row() {
                    Ok(Some(row)) => row,
                    Ok(None) => break,
                    Err(_) => {
                        is_invalid = true;
                        break;
                    }
                };
                let (start, end) = (row.start_address(), row.end_address().min(entry.end()));
                if start >= end {
                    continue;
                }
                at = end;
                report.rows += 1;
                match undefined.has(start, RBX) {
                    true => rbx_rows.give_up(),
                    false => rbx_rows.add(row, end),
                }
                match self.encoding_of(row, &undefined, signal) {
                    Ok(Encoding::Rule(rule)) => {
                        report.encoded += 1;
                        extend(&mut open, functions, start, end, signal, rule);
                    }
                    Ok(Encoding::ExtraRow(mut rule)) => {
                        report.encoded += 1;
                        let stack_taken = stack_taken.get_or_insert_with(|| {
                            code.instructions(entry.start(), entry.end())
                                .find(takes_stack)
                                .map_or(u64::MAX, |instruction| instruction.ip())
                        });
                        rule.extra.changes_stack = *stack_taken < start;
                        functions.extend(open.take());
                        extend(&mut open, functions, start, end, signal, rule);
                        functions.extend(open.take());
                    }
                    Ok(Encoding::Stubs(rows)) => {
                        report.encoded += 1;
                        functions.extend(open.take());
                        functions.push(ConvertedFunction {
                            start,
                            size: u32::try_from(end - start).unwrap_or(u32::MAX),
                            repeat: Some(STUB_SIZE),
                            rbx: SavedRbx::UNKNOWN,
                            signal,
                            rows,
                        });
                    }
                    Err(reason) => {
                        report.count_dropped(reason, end - start);
                        functions.extend(open.take());
                    }
                }
            },
            Err(_) => is_invalid = true,
        }
        if is_invalid || signal || entry.is_cut() {
            rbx_rows.give_up();
        }
        if is_invalid {
            report.rows += 1;
            report.count_dropped(DropReason::InvalidEntry, entry.end().saturating_sub(at));
        }
        functions.extend(open);
    }

    /// The rows of an entry that SFrame cannot encode, and the rows whose CFA counts from a
    /// register other than the stack pointer and the frame pointer.
    pub(crate) fn dropped(&self, entry: &EhFrameEntry<'a>) -> Vec<DroppedRow> {
        let mut found = Vec::new();
        let mut context = UnwindContext::new_in();
        let mut at = entry.start();
        let end = entry.end();
        let fde = &entry.fde;
        let undefined = UndefinedRegisters::of(fde, &self.section, &self.bases);
        let signal = fde.is_signal_trampoline();
        let mut rows = fde.rows(&self.section, &self.bases, &mut context);
        loop {
            match rows.as_mut().map(|rows| rows.next_row()) {
                Ok(Ok(Some(row))) => {
                    let (start, end) = (row.start_address(), row.end_address().min(end));
                    at = at.max(end);
                    let reason = match self.encoding_of(row, &undefined, signal) {
                        Err(reason) => Some(reason),
                        Ok(Encoding::Rule(rule) | Encoding::ExtraRow(rule))
                            if matches!(rule.cfa.base, Base::Register(_)) =>
                        {
                            None
                        }
                        Ok(_) => continue,
                    };
                    if start < end {
                        let rule = self.notation(row, &undefined);
                        found.push(DroppedRow {
                            start,
                            end,
                            reason,
                            rule,
                        });
                    }
                }
                Ok(Ok(None)) => break,
                Ok(Err(error)) | Err(&mut error) => {
                    found.push(DroppedRow {
                        start: at,
                        end,
                        reason: Some(DropReason::InvalidEntry),
                        rule: error.to_string(),
                    });
                    break;
                }
            }
        }
        found
    }

    /// A row as text: the CFA, and the rules of the frame pointer, the stack pointer and the return
    /// address where they are unusual.
    fn notation(&self, row: &EhFrameRow, undefined: &UndefinedRegisters) -> String {
        let expression = |expression: &UnwindExpression<usize>| match self.operations(expression) {
            Some(operations) => operations
                .iter()
                .map(operation)
                .collect::<Vec<_>>()
                .join(" "),
            None => "?".to_owned(),
        };
        let mut text = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                format!("CFA = {}{offset:+}", register_name(*register))
            }
            CfaRule::Expression(cfa) => format!("CFA = [{}]", expression(cfa)),
        };
        for (register, rule) in row.registers() {
            let rule = match rule {
                RegisterRule::Offset(-8) if *register == PC => continue,
                RegisterRule::Offset(_) if *register == RBP => "c+n".to_owned(),
                RegisterRule::Offset(offset) => format!("c{offset:+}"),
                RegisterRule::ValOffset(offset) => format!("CFA{offset:+}"),
                RegisterRule::Register(register) => register_name(*register),
                RegisterRule::Expression(at) => format!("*[{}]", expression(at)),
                RegisterRule::ValExpression(value) => format!("[{}]", expression(value)),
                RegisterRule::SameValue => continue,
                _ => "?".to_owned(),
            };
            if [RBP, RSP, PC].contains(register) {
                text += &format!(", {} = {rule}", register_name(*register));
            }
        }
        for register in [RBP, RSP, PC] {
            if undefined.has(row.start_address(), register) {
                text += &format!(", {} = undefined", register_name(register));
            }
        }
        text
    }

    /// How an entry's function saves a register; `None` if the function uses several slots or an
    /// unsupported rule.
    pub(crate) fn saves(&self, entry: &EhFrameEntry<'a>, register: u8) -> Option<RegisterSaves> {
        let mut context = UnwindContext::<_, RowStorage>::new_in();
        let entry = &entry.fde;
        let undefined = UndefinedRegisters::of(entry, &self.section, &self.bases);
        let mut rows = entry.rows(&self.section, &self.bases, &mut context).ok()?;
        let mut saves = RegisterSaves {
            slot: None,
            deepest: 0,
        };
        while let Some(row) = rows.next_row().ok()? {
            if undefined.has(row.start_address(), self::register(register)) {
                return None;
            }
            match row.register(self::register(register)) {
                RegisterRule::Offset(slot) => {
                    if saves.slot.is_some_and(|other| other != slot) {
                        return None;
                    }
                    saves.slot = Some(slot);
                }
                RegisterRule::Undefined | RegisterRule::SameValue => match *row.cfa() {
                    CfaRule::RegisterAndOffset {
                        register: RSP,
                        offset,
                    } => saves.deepest = saves.deepest.max(offset),
                    _ => return None,
                },
                _ => return None,
            }
        }
        Some(saves)
    }

    /// How to encode a row.
    fn encoding_of(
        &self,
        row: &EhFrameRow,
        undefined: &UndefinedRegisters,
        signal: bool,
    ) -> Result<Encoding, DropReason> {
        let start = row.start_address();
        let mut rule = Rule {
            signal,
            ..Rule::amd64(Base::Sp, 8, Location::Unchanged)
        };
        let mut return_address = None;
        let mut stack_pointer = None;
        for (register, register_rule) in row.registers() {
            match *register {
                PC => return_address = Some(register_rule),
                RSP => stack_pointer = Some(register_rule),
                RBP => {
                    rule.fp = match register_rule {
                        RegisterRule::SameValue => Location::Unchanged,
                        _ => self
                            .location(register_rule)
                            .ok_or(DropReason::FramePointer)?,
                    }
                }
                _ => {}
            }
        }
        // gimli reports no rule for an undefined return address: the frame has no caller.
        let Some(register_rule) = return_address else {
            return Ok(Encoding::Rule(Rule {
                signal,
                ..Rule::OUTERMOST
            }));
        };
        rule.ra = self
            .location(register_rule)
            .ok_or(DropReason::ReturnAddress)?;
        if undefined.has(start, RBP) {
            rule.fp = Location::LOST;
        }
        if undefined.has(start, RSP) {
            return Err(DropReason::StackPointer);
        }
        match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                rule.cfa = Cfa {
                    base: base(*register).ok_or(DropReason::CfaExpression)?,
                    offset: i32::try_from(*offset).map_err(|_| DropReason::OffsetTooLarge)?,
                    deref: false,
                    plus: 0,
                };
            }
            CfaRule::Expression(expression) => {
                let operations = self
                    .operations(expression)
                    .ok_or(DropReason::CfaExpression)?;
                if let Some(pushed_at) = plt_push_end(&operations) {
                    return match start % u64::from(STUB_SIZE) {
                        0 => Ok(Encoding::Stubs(stub(&rule, pushed_at))),
                        _ => Err(DropReason::CfaExpression),
                    };
                }
                (rule.cfa, rule.extra.deref_twice) = cfa(&operations)?;
            }
        }
        // SFrame's rows imply that the caller's stack pointer is the CFA.
        if let Some(register_rule) = stack_pointer {
            let Cfa { base, offset, .. } = rule.cfa;
            let cfa = match (rule.cfa.deref, rule.cfa.plus) {
                (true, 0) => Location::At(base, offset),
                (true, _) => Location::OfCfa(0),
                (false, _) => Location::Of(base, offset),
            };
            let location = self.location(register_rule);
            if location != Some(cfa) && location != Some(Location::OfCfa(0)) {
                rule = location
                    .and_then(|location| from_stack_pointer(&rule, location))
                    .ok_or(DropReason::StackPointer)?;
            }
        }
        if encode::needs_extra_row(&rule) {
            let can_encode = encode::extra_row(start, 1, &rule).is_some();
            return can_encode
                .then_some(Encoding::ExtraRow(rule))
                .ok_or(DropReason::CfaFromMemory);
        }
        let can_encode = encode::can_encode(&rule);
        can_encode
            .then_some(Encoding::Rule(rule))
            .ok_or(match rule.ra {
                Location::OfCfa(_) => DropReason::ReturnAddress,
                _ => DropReason::FramePointer,
            })
    }

    /// The location of the caller's value of a register.
    fn location(&self, rule: &RegisterRule<usize>) -> Option<Location> {
        let narrow = |offset: i64| i32::try_from(offset).ok();
        Some(match rule {
            RegisterRule::Offset(offset) => Location::AtCfa(narrow(*offset)?),
            RegisterRule::ValOffset(offset) => Location::OfCfa(narrow(*offset)?),
            RegisterRule::Register(register) => Location::Of(base(*register)?, 0),
            RegisterRule::Expression(expression) => {
                let (base, offset) = sum(&self.operations(expression)?)?;
                Location::At(base, offset)
            }
            RegisterRule::ValExpression(expression) => {
                let (base, offset) = sum(&self.operations(expression)?)?;
                Location::Of(base, offset)
            }
            _ => return None,
        })
    }

    /// The operations of an expression; `None` if it is longer than any that is supported. A long
    /// one would be read again for each row.
    fn operations(
        &self,
        expression: &UnwindExpression<usize>,
    ) -> Option<Vec<Operation<CfiSlice<'a>>>> {
        const ENCODING: gimli::Encoding = gimli::Encoding {
            address_size: 8,
            format: gimli::Format::Dwarf32,
            version: 4,
        };
        let expression = expression.get(&self.section).ok()?;
        let mut operations = expression.operations(ENCODING);
        let mut found = Vec::new();
        while let Some(operation) = operations.next().ok()? {
            if found.len() == MAX_OPERATIONS {
                return None;
            }
            found.push(operation);
        }
        Some(found)
    }
}

/// How a function saves a callee-saved register.
pub(crate) struct RegisterSaves {
    /// The offset of the register's slot from the CFA, in bytes; `None` if the register is not
    /// saved.
    pub(crate) slot: Option<i64>,
    /// The maximum distance from the stack pointer to the CFA, in bytes, while the register is not
    /// saved.
    pub(crate) deepest: i64,
}

fn register_name(register: Register) -> String {
    X86_64::register_name(register).map_or_else(|| format!("r{}", register.0), str::to_owned)
}

/// An operation as text.
fn operation(operation: &Operation<CfiSlice<'_>>) -> String {
    match operation {
        Operation::RegisterOffset {
            register, offset, ..
        } => format!("{}{offset:+}", register_name(*register)),
        Operation::Deref { size, .. } => format!("*{size}"),
        Operation::PlusConstant { value } => format!("+{value}"),
        Operation::UnsignedConstant { value } => value.to_string(),
        Operation::SignedConstant { value } => value.to_string(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// The form in which a row is encoded.
enum Encoding {
    Rule(Rule),
    /// As an extra row.
    ExtraRow(Rule),
    /// As the rows of a PLT's blocks.
    Stubs(Vec<(u32, Rule)>),
}

/// Appends a rule for `start` to `end` to the open function; or closes the open function and opens
/// another function.
pub(crate) fn extend(
    open: &mut Option<ConvertedFunction>,
    functions: &mut Vec<ConvertedFunction>,
    start: u64,
    end: u64,
    signal: bool,
    rule: Rule,
) {
    let Ok(len) = u32::try_from(end - start) else {
        functions.extend(open.take());
        return;
    };
    if let Some(function) = open {
        if let (true, Some(size)) = (function.end() == start, function.size.checked_add(len)) {
            if function.rows.last().is_none_or(|(_, last)| *last != rule) {
                function.rows.push((function.size, rule));
            }
            function.size = size;
            return;
        }
    }
    functions.extend(open.replace(ConvertedFunction {
        start,
        size: len,
        repeat: None,
        rbx: SavedRbx::UNKNOWN,
        signal,
        rows: vec![(0, rule)],
    }));
}

/// Finds .eh_frame by .eh_frame_hdr. The bytes extend to the end of the segment; .eh_frame has a
/// terminator.
fn find_by_header<'a>(file: &ElfFile64<'a, Endianness>) -> Result<(&'a [u8], u64), ConvertError> {
    let endian = file.endian();
    let headers = file.elf_program_headers();
    let header = headers
        .iter()
        .find(|header| header.p_type(endian) == elf::PT_GNU_EH_FRAME)
        .ok_or(ConvertError::NoUnwindInfo)?;
    let bytes = header
        .data(endian, file.data())
        .map_err(|()| ConvertError::NoUnwindInfo)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.p_vaddr(endian));
    let parsed = EhFrameHdr::new(bytes, LittleEndian)
        .parse(&bases, 8)
        .map_err(ConvertError::InvalidEhFrame)?;
    let Pointer::Direct(address) = parsed.eh_frame_ptr() else {
        return Err(ConvertError::NoUnwindInfo);
    };
    headers
        .iter()
        .filter(|header| header.p_type(endian) == elf::PT_LOAD)
        .find_map(|header| {
            let at = address.checked_sub(header.p_vaddr(endian))?;
            let bytes = header.data(endian, file.data()).ok()?;
            bytes.get(usize::try_from(at).ok()?..)
        })
        .map(|bytes| (bytes, address))
        .ok_or(ConvertError::NoUnwindInfo)
}

fn base(register: Register) -> Option<Base> {
    Some(match register {
        RSP => Base::Sp,
        RBP => Base::Fp,
        Register(number) if number < registers::COUNT.into() => Base::Register(number as u8),
        _ => return None,
    })
}

/// An expression that is a register plus an offset, which may be a sum of constants.
fn sum(operations: &[Operation<CfiSlice<'_>>]) -> Option<(Base, i32)> {
    // Each value is a register, if there is one, plus an offset.
    let mut values: Vec<(Option<Register>, i64)> = Vec::new();
    for operation in operations {
        let value = match *operation {
            Operation::RegisterOffset {
                register, offset, ..
            } => (Some(register), offset),
            Operation::UnsignedConstant { value } => (None, value as i64),
            Operation::SignedConstant { value } => (None, value),
            // DWARF calculates modulo 2^64.
            Operation::PlusConstant { value } => {
                let (register, offset) = values.pop()?;
                (register, offset.wrapping_add(value as i64))
            }
            Operation::Plus => match (values.pop()?, values.pop()?) {
                ((register, a), (None, b)) | ((None, a), (register, b)) => {
                    (register, a.wrapping_add(b))
                }
                _ => return None,
            },
            Operation::Minus => match (values.pop()?, values.pop()?) {
                ((None, less), (register, offset)) => (register, offset.wrapping_sub(less)),
                _ => return None,
            },
            _ => return None,
        };
        values.push(value);
    }
    match values[..] {
        [(Some(register), offset)] => Some((base(register)?, i32::try_from(offset).ok()?)),
        _ => None,
    }
}

/// The CFA from an expression: a register plus an offset, or the value in memory at that address
/// plus an addend. The flag is true if the expression reads memory twice: the value is itself the
/// address of the CFA's value.
fn cfa(operations: &[Operation<CfiSlice<'_>>]) -> Result<(Cfa, bool), DropReason> {
    const DEREF: Operation<CfiSlice<'static>> = Operation::Deref {
        base_type: gimli::UnitOffset(0),
        size: 8,
        space: false,
    };
    let is_read = |operation: &Operation<_>| matches!(operation, Operation::Deref { .. });
    let reads = operations.iter().position(is_read);
    let (address, rest) = operations.split_at(reads.unwrap_or(operations.len()));
    let (base, offset) = sum(address).ok_or(DropReason::CfaExpression)?;
    let (rest, plus) = match rest {
        [rest @ .., Operation::PlusConstant { value }] => (
            rest,
            i8::try_from(*value).map_err(|_| DropReason::CfaFromMemory)?,
        ),
        _ => (rest, 0),
    };
    let (deref, twice) = match rest {
        [] => (false, false),
        [once] if *once == DEREF => (true, false),
        [once, again] | [once, Operation::PlusConstant { value: 0 }, again]
            if *once == DEREF && *again == DEREF =>
        {
            (true, true)
        }
        [Operation::Deref { .. }, ..] => return Err(DropReason::CfaFromMemory),
        _ => return Err(DropReason::CfaExpression),
    };
    let cfa = Cfa {
        base,
        offset,
        deref,
        plus,
    };
    Ok((cfa, twice))
}

/// Changes a rule so that its CFA is the caller's stack pointer. The two differ in `longjmp`, and
/// in a function whose .eh_frame states the change of the stack pointer as a rule for RSP instead
/// of the CFA.
fn from_stack_pointer(rule: &Rule, stack_pointer: Location) -> Option<Rule> {
    let Cfa { base, offset, .. } = rule.cfa;
    if rule.cfa.deref {
        return None;
    }
    let from_register = |location| {
        Some(match location {
            Location::AtCfa(distance) => Location::At(base, offset.checked_add(distance)?),
            Location::OfCfa(distance) => Location::Of(base, offset.checked_add(distance)?),
            other => other,
        })
    };
    let (base, offset, deref) = match from_register(stack_pointer)? {
        Location::Of(base, offset) => (base, offset, false),
        Location::At(base, offset) => (base, offset, true),
        _ => return None,
    };
    let from_cfa = |location| {
        Some(match from_register(location)? {
            Location::At(other, distance) if other == base && !deref => {
                Location::AtCfa(distance.checked_sub(offset)?)
            }
            other => other,
        })
    };
    Some(Rule {
        cfa: Cfa {
            base,
            offset,
            deref,
            plus: 0,
        },
        ra: from_cfa(rule.ra)?,
        fp: from_cfa(rule.fp)?,
        ..*rule
    })
}

/// Whether an instruction may change stacks: it loads the stack pointer from memory, or from a
/// register other than the frame pointer.
pub(crate) fn takes_stack(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register() == iced_x86::Register::RSP
        && instruction.op1_register() != iced_x86::Register::RBP
}

/// The offset in a PLT block after the block's push, in bytes, if the operations are the linkers'
/// expression `rsp + 8 + ((rip & 15) >= N) * 8`. The offset is N.
fn plt_push_end(operations: &[Operation<CfiSlice<'_>>]) -> Option<u32> {
    match *operations {
        [Operation::RegisterOffset {
            register: RSP,
            offset: 8,
            ..
        }, Operation::RegisterOffset {
            register: PC,
            offset: 0,
            ..
        }, Operation::UnsignedConstant { value: 15 }, Operation::And, Operation::UnsignedConstant { value }, Operation::Ge, Operation::UnsignedConstant { value: 3 }, Operation::Shl, Operation::Plus]
            if (1..16).contains(&value) =>
        {
            Some(value as u32)
        }
        _ => None,
    }
}

/// The rows of a PLT block whose push ends at offset `pushed_at`.
fn stub(rule: &Rule, pushed_at: u32) -> Vec<(u32, Rule)> {
    let with = |offset| Rule {
        cfa: Cfa {
            base: Base::Sp,
            offset,
            deref: false,
            plus: 0,
        },
        ..*rule
    };
    vec![(0, with(8)), (pushed_at, with(16))]
}
