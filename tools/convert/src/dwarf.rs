// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What .eh_frame says, as rules.

use gimli::{
    BaseAddresses,
    CfaRule,
    CieOrFde,
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
    UnwindExpression,
    UnwindSection,
    UnwindTableRow, //
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
use sframe::rule::{
    Base,
    Cfa,
    Location,
    Rule, //
};
use std::collections::HashMap;

use crate::{
    write,
    Code,
    Error,
    Function,
    Report,
    Unsaid, //
};

type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(crate) type Entry<'a> = FrameDescriptionEntry<Slice<'a>>;

/// DWARF's numbers.
const RBP: Register = Register(6);
const RSP: Register = Register(7);
const PC: Register = Register(16);
const GENERAL: u16 = 16;

/// The size of a PLT's stub, in bytes.
const STUB_SIZE: u8 = 16;

/// An .eh_frame. Addresses are link-time addresses.
pub(crate) struct Table<'a> {
    section: EhFrame<Slice<'a>>,
    bases: BaseAddresses,
    len: u64,
}

impl<'a> Table<'a> {
    /// Finds it: by the section's name, or by .eh_frame_hdr where there are no section headers.
    pub(crate) fn find(file: &ElfFile64<'a, Endianness>) -> Result<Table<'a>, Error> {
        let address_of = |name| {
            file.section_by_name(name)
                .map_or(0, |found| found.address())
        };
        let bases = BaseAddresses::default()
            .set_text(address_of(".text"))
            .set_got(address_of(".got"));
        let (bytes, address) = match file.section_by_name(".eh_frame") {
            Some(section) => (section.data().map_err(Error::NotElf)?, section.address()),
            None => behind_header(file)?,
        };
        if bytes.is_empty() {
            return Err(Error::NoTable);
        }
        let mut section = EhFrame::new(bytes, LittleEndian);
        section.set_address_size(8);
        Ok(Table {
            section,
            bases: bases.set_eh_frame(address),
            len: bytes.len() as u64,
        })
    }

    /// Its size, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The entries of functions that lie in `code`. Linkers leave those of discarded ones.
    pub(crate) fn entries(&self, code: &Code<'_>) -> Result<Vec<Entry<'a>>, Error> {
        let mut found = Vec::new();
        let mut cies = HashMap::new();
        let mut entries = self.section.entries(&self.bases);
        while let Some(entry) = entries.next().map_err(Error::Broken)? {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial.parse(|section, bases, at| {
                if let Some(cie) = cies.get(&at.0) {
                    return Ok(Clone::clone(cie));
                }
                let cie = section.cie_from_offset(bases, at)?;
                cies.insert(at.0, cie.clone());
                Ok(cie)
            });
            let fde = fde.map_err(Error::Broken)?;
            let (start, end) = (fde.initial_address(), fde.end_address());
            if start < end && code.holds(start, end - 1) {
                found.push(fde);
            }
        }
        Ok(found)
    }

    /// What the entries say.
    pub(crate) fn functions(&self, entries: &[Entry<'a>]) -> (Vec<Function>, Report) {
        let mut functions = Vec::new();
        let mut report = Report::default();
        let mut context = UnwindContext::new();
        for entry in entries {
            self.function(entry, &mut context, &mut functions, &mut report);
        }
        (functions, report)
    }

    fn function(
        &self,
        entry: &Entry<'a>,
        context: &mut UnwindContext<usize>,
        functions: &mut Vec<Function>,
        report: &mut Report,
    ) {
        let signal = entry.is_signal_trampoline();
        let mut open: Option<Function> = None;
        let mut at = entry.initial_address();
        let mut broken = false;
        match entry.rows(&self.section, &self.bases, context) {
            Ok(mut rows) => loop {
                let row = match rows.next_row() {
                    Ok(Some(row)) => row,
                    Ok(None) => break,
                    Err(_) => {
                        broken = true;
                        break;
                    }
                };
                let (start, end) = (row.start_address(), row.end_address());
                if start >= end {
                    continue;
                }
                at = end;
                report.rows += 1;
                match self.said(row, signal, start) {
                    Ok(Said::Rule(rule)) => {
                        report.said += 1;
                        extend(&mut open, functions, start, end, signal, rule);
                    }
                    Ok(Said::ExtraRow(rule)) => {
                        report.said += 1;
                        functions.extend(open.take());
                        extend(&mut open, functions, start, end, signal, rule);
                        functions.extend(open.take());
                    }
                    Ok(Said::Stubs(rows)) => {
                        report.said += 1;
                        functions.extend(open.take());
                        functions.push(Function {
                            start,
                            size: u32::try_from(end - start).unwrap_or(u32::MAX),
                            repeat: Some(STUB_SIZE),
                            signal,
                            rows,
                        });
                    }
                    Err(why) => {
                        report.leave_out(why, end - start);
                        functions.extend(open.take());
                    }
                }
            },
            Err(_) => broken = true,
        }
        if broken {
            report.rows += 1;
            report.leave_out(Unsaid::Entry, entry.end_address().saturating_sub(at));
        }
        functions.extend(open);
    }

    /// Where the function of an entry saves a register, if that is the same place wherever it does.
    pub(crate) fn saves(&self, entry: &Entry<'a>, register: u8) -> Option<Saves> {
        let mut context = UnwindContext::new();
        let mut rows = entry.rows(&self.section, &self.bases, &mut context).ok()?;
        let mut saves = Saves {
            at: None,
            deepest: 0,
        };
        while let Some(row) = rows.next_row().ok()? {
            match row.register(Register(register.into())) {
                RegisterRule::Offset(at) => {
                    if saves.at.is_some_and(|other| other != at) {
                        return None;
                    }
                    saves.at = Some(at);
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

    fn said(&self, row: &UnwindTableRow<usize>, signal: bool, start: u64) -> Result<Said, Unsaid> {
        let mut rule = Rule {
            signal,
            ..Rule::amd64(Base::Sp, 8, Location::Unchanged)
        };
        let mut return_address = None;
        let mut stack_pointer = None;
        for (register, place) in row.registers() {
            match *register {
                PC => return_address = Some(place),
                RSP => stack_pointer = Some(place),
                RBP => {
                    rule.fp = match place {
                        RegisterRule::SameValue => Location::Unchanged,
                        _ => self.location(place).ok_or(Unsaid::FramePointer)?,
                    }
                }
                _ => {}
            }
        }
        // An entry that says "undefined" has no rule: there is no caller.
        let Some(place) = return_address else {
            return Ok(Said::Rule(Rule {
                signal,
                ..Rule::OUTERMOST
            }));
        };
        rule.ra = self.location(place).ok_or(Unsaid::ReturnAddress)?;
        match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                rule.cfa = Cfa {
                    base: base(*register).ok_or(Unsaid::CfaExpression)?,
                    offset: i32::try_from(*offset).map_err(|_| Unsaid::Offset)?,
                    deref: false,
                    plus: 0,
                };
            }
            CfaRule::Expression(expression) => {
                let operations = self.operations(expression).ok_or(Unsaid::CfaExpression)?;
                if let Some(behind) = behind_push(&operations) {
                    return match start % u64::from(STUB_SIZE) {
                        0 => Ok(Said::Stubs(stub(&rule, behind))),
                        _ => Err(Unsaid::CfaExpression),
                    };
                }
                rule.cfa = cfa(&operations)?;
            }
        }
        // A row's caller has the CFA for a stack pointer.
        if let Some(place) = stack_pointer {
            let Cfa { base, offset, .. } = rule.cfa;
            let cfa = match (rule.cfa.deref, rule.cfa.plus) {
                (true, 0) => Location::At(base, offset),
                (true, _) => Location::OfCfa(0),
                (false, _) => Location::Of(base, offset),
            };
            let place = self.location(place);
            if place != Some(cfa) && place != Some(Location::OfCfa(0)) {
                return Err(Unsaid::StackPointer);
            }
        }
        if rule.cfa.plus != 0 {
            let said = !signal && write::extra_rows(start, 1, &rule).is_some();
            return said
                .then_some(Said::ExtraRow(rule))
                .ok_or(Unsaid::CfaOfMemory);
        }
        let said = write::can_say(&rule);
        said.then_some(Said::Rule(rule)).ok_or(match rule.ra {
            Location::OfCfa(_) => Unsaid::ReturnAddress,
            _ => Unsaid::FramePointer,
        })
    }

    /// Where a register is in the caller's frame.
    fn location(&self, place: &RegisterRule<usize>) -> Option<Location> {
        let narrow = |offset: i64| i32::try_from(offset).ok();
        Some(match place {
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

    fn operations(
        &self,
        expression: &UnwindExpression<usize>,
    ) -> Option<Vec<Operation<Slice<'a>>>> {
        const ENCODING: gimli::Encoding = gimli::Encoding {
            address_size: 8,
            format: gimli::Format::Dwarf32,
            version: 4,
        };
        let expression = expression.get(&self.section).ok()?;
        let mut operations = expression.operations(ENCODING);
        let mut found = Vec::new();
        while let Some(operation) = operations.next().ok()? {
            found.push(operation);
        }
        Some(found)
    }
}

/// What a function does with a register that it has to leave as it was.
pub(crate) struct Saves {
    /// Where it saves it, from its CFA on, in bytes; `None` if it does not.
    pub(crate) at: Option<i64>,
    /// How far its stack pointer is below its CFA, in bytes, while it has not saved it.
    pub(crate) deepest: i64,
}

/// What SFrame can say of a row.
enum Said {
    Rule(Rule),
    /// Not SFrame, but a row beside it.
    ExtraRow(Rule),
    /// Of the blocks of a PLT.
    Stubs(Vec<(u32, Rule)>),
}

/// Appends what holds from `start` to `end` to the function that is being made, or begins one.
pub(crate) fn extend(
    open: &mut Option<Function>,
    functions: &mut Vec<Function>,
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
    functions.extend(open.replace(Function {
        start,
        size: len,
        repeat: None,
        signal,
        rows: vec![(0, rule)],
    }));
}

/// Where .eh_frame is by .eh_frame_hdr, with all that is behind it; it ends by itself.
fn behind_header<'a>(file: &ElfFile64<'a, Endianness>) -> Result<(&'a [u8], u64), Error> {
    let endian = file.endian();
    let headers = file.elf_program_headers();
    let header = headers
        .iter()
        .find(|header| header.p_type(endian) == elf::PT_GNU_EH_FRAME)
        .ok_or(Error::NoTable)?;
    let bytes = header
        .data(endian, file.data())
        .map_err(|()| Error::NoTable)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.p_vaddr(endian));
    let parsed = EhFrameHdr::new(bytes, LittleEndian)
        .parse(&bases, 8)
        .map_err(Error::Broken)?;
    let Pointer::Direct(address) = parsed.eh_frame_ptr() else {
        return Err(Error::NoTable);
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
        .ok_or(Error::NoTable)
}

fn base(register: Register) -> Option<Base> {
    Some(match register {
        RSP => Base::Sp,
        RBP => Base::Fp,
        Register(number) if number < GENERAL => Base::Register(number as u8),
        _ => return None,
    })
}

/// A register plus an offset.
fn sum(operations: &[Operation<Slice<'_>>]) -> Option<(Base, i32)> {
    match *operations {
        [Operation::RegisterOffset {
            register, offset, ..
        }] => Some((base(register)?, i32::try_from(offset).ok()?)),
        _ => None,
    }
}

/// A CFA that is an expression: a register plus an offset, or what is in memory there.
fn cfa(operations: &[Operation<Slice<'_>>]) -> Result<Cfa, Unsaid> {
    let (address, rest) = operations.split_at(operations.len().min(1));
    let (base, offset) = sum(address).ok_or(Unsaid::CfaExpression)?;
    let (deref, plus) = match *rest {
        [] => (false, 0),
        [Operation::Deref { size: 8, .. }] => (true, 0),
        [Operation::Deref { size: 8, .. }, Operation::PlusConstant { value }] => {
            (true, i8::try_from(value).map_err(|_| Unsaid::CfaOfMemory)?)
        }
        [Operation::Deref { size: 8, .. }, ..] => return Err(Unsaid::CfaOfMemory),
        _ => return Err(Unsaid::CfaExpression),
    };
    Ok(Cfa {
        base,
        offset,
        deref,
        plus,
    })
}

/// How far into a block of a PLT the push is done, if this is what linkers write for one:
/// `rsp + 8 + ((rip & 15) >= N) * 8`.
fn behind_push(operations: &[Operation<Slice<'_>>]) -> Option<u32> {
    match *operations {
        [Operation::RegisterOffset {
            register: RSP,
            offset: 8,
            ..
        }, Operation::RegisterOffset {
            register: PC,
            offset: 0,
            ..
        }, Operation::UnsignedConstant { value: 15 }, Operation::And, Operation::UnsignedConstant { value }, Operation::Ge, Operation::UnsignedConstant { value: 3 }, Operation::Shl, Operation::Plus { .. }]
            if (1..16).contains(&value) =>
        {
            Some(value as u32)
        }
        _ => None,
    }
}

/// The rows of a block of which the push ends at `behind`.
fn stub(rule: &Rule, behind: u32) -> Vec<(u32, Rule)> {
    let with = |offset| Rule {
        cfa: Cfa {
            base: Base::Sp,
            offset,
            deref: false,
            plus: 0,
        },
        ..*rule
    };
    vec![(0, with(8)), (behind, with(16))]
}
