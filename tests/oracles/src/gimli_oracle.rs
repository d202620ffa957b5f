// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The oracle .eh_frame: the assembler made it from the same directives as .sframe, and programs
//! rely on it.

use gimli::{
    BaseAddresses,
    CfaRule,
    CieOrFde,
    EhFrame,
    EndianSlice,
    EvaluationResult,
    Location as Piece,
    Operation,
    Register,
    RegisterRule,
    RunTimeEndian,
    UnwindContext,
    UnwindSection,
    Value,
    Vendor, //
};
use object::Architecture;
use sframe::{
    abi::Abi,
    rule::{
        Cfa,
        Extra,
        Location,
        Rule, //
    },
};

use crate::{
    answers::base,
    image::Image, //
};

type Bytes<'a> = EndianSlice<'a, RunTimeEndian>;

/// A range of code with one rule.
pub(crate) struct Range {
    /// The address of the function.
    pub(crate) function: u64,
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// `None` if a [`Rule`] cannot express it.
    pub(crate) rule: Option<Rule>,
}

/// All ranges, in ascending order. CFAs that depend on the address, as in PLTs, give ranges of one
/// byte.
pub(crate) fn ranges(image: &Image, abi: Abi) -> Vec<Range> {
    let Some(part) = &image.eh_frame else {
        return Vec::new();
    };
    let endian = if image.little {
        RunTimeEndian::Little
    } else {
        RunTimeEndian::Big
    };
    let mut eh_frame = EhFrame::new(&part.bytes, endian);
    if image.architecture == Architecture::Aarch64 {
        eh_frame.set_vendor(Vendor::AArch64);
    }
    eh_frame.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(part.address);
    let mut context = UnwindContext::new();
    let mut ranges = Vec::new();
    let mut entries = eh_frame.entries(&bases);
    loop {
        let entry = match entries.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            // The augmentation for key B, which gimli does not support.
            Err(gimli::Error::UnknownAugmentation) => return Vec::new(),
            Err(error) => panic!(".eh_frame: {error}"),
        };
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial
            .parse(EhFrame::cie_from_offset)
            .expect(".eh_frame: a function");
        let signal = fde.is_signal_trampoline();
        let mut table = fde
            .rows(&eh_frame, &bases, &mut context)
            .expect(".eh_frame: rows");
        while let Some(row) = table.next_row().expect(".eh_frame: a row") {
            let of = |register: u8| {
                location(
                    abi,
                    &eh_frame,
                    fde.cie(),
                    row.register(Register(register.into())),
                )
            };
            let ra = match abi.ra() {
                Some(register) => of(register),
                None => match row.register(fde.cie().return_address_register()) {
                    // On this machine the return address is never unchanged.
                    RegisterRule::Undefined => Some(Location::Undefined),
                    _ => of(fde.cie().return_address_register().0 as u8),
                },
            };
            let (ra, fp) = (ra, of(abi.fp()));
            let mangled = abi.may_mangle()
                && matches!(
                    row.register(gimli::AArch64::RA_SIGN_STATE),
                    RegisterRule::Constant(1)
                );
            let with = |cfa: Option<Cfa>| match (cfa, ra, fp) {
                (_, Some(Location::Undefined), _) => Some(Rule {
                    signal,
                    ..Rule::OUTERMOST
                }),
                (Some(cfa), Some(ra), Some(fp)) => Some(Rule {
                    cfa,
                    ra,
                    fp,
                    mangled,
                    signal,
                    extra: Extra::NONE,
                }),
                _ => None,
            };
            let (first, end) = (row.start_address(), row.end_address());
            match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => ranges.push(Range {
                    function: fde.initial_address(),
                    first,
                    end,
                    rule: with(Some(Cfa {
                        base: base(abi, register.0 as u8),
                        offset: *offset as i32,
                        deref: false,
                        plus: 0,
                    })),
                }),
                CfaRule::Expression(expression) => {
                    let expression = expression.get(&eh_frame).expect(".eh_frame: an expression");
                    if let Some(Location::At(base, offset)) = simple(abi, expression, fde.cie()) {
                        ranges.push(Range {
                            function: fde.initial_address(),
                            first,
                            end,
                            rule: with(Some(Cfa {
                                base,
                                offset,
                                deref: true,
                                plus: 0,
                            })),
                        });
                        continue;
                    }
                    for pc in first..end {
                        let cfa =
                            evaluate(expression, fde.cie().encoding(), pc).map(|offset| Cfa {
                                base: base(abi, abi.sp()),
                                offset,
                                deref: false,
                                plus: 0,
                            });
                        ranges.push(Range {
                            function: fde.initial_address(),
                            first: pc,
                            end: pc + 1,
                            rule: with(cfa),
                        });
                    }
                }
            }
        }
    }
    // Empty functions give empty ranges.
    ranges.retain(|range| range.first < range.end);
    ranges.sort_by_key(|range| range.first);
    ranges
}

/// The location of a register; `None` if a [`Location`] cannot express it.
fn location<'a>(
    abi: Abi,
    eh_frame: &EhFrame<Bytes<'a>>,
    cie: &gimli::CommonInformationEntry<Bytes<'a>>,
    rule: RegisterRule<usize>,
) -> Option<Location> {
    match rule {
        RegisterRule::Undefined | RegisterRule::SameValue => Some(Location::Unchanged),
        RegisterRule::Offset(offset) => Some(Location::AtCfa(i32::try_from(offset).ok()?)),
        RegisterRule::ValOffset(offset) => Some(Location::OfCfa(i32::try_from(offset).ok()?)),
        RegisterRule::Register(Register(register)) => {
            Some(Location::Of(base(abi, u8::try_from(register).ok()?), 0))
        }
        RegisterRule::Expression(expression) => {
            let expression = expression.get(eh_frame).expect(".eh_frame: an expression");
            match address(abi, expression, cie)? {
                (base, offset, false) => Some(Location::At(base, offset)),
                _ => None,
            }
        }
        RegisterRule::ValExpression(expression) => {
            let expression = expression.get(eh_frame).expect(".eh_frame: an expression");
            simple(abi, expression, cie)
        }
        _ => None,
    }
}

/// The location from an expression of a register and an offset, with an optional dereference.
fn simple(
    abi: Abi,
    expression: gimli::Expression<Bytes<'_>>,
    cie: &gimli::CommonInformationEntry<Bytes<'_>>,
) -> Option<Location> {
    Some(match address(abi, expression, cie)? {
        (base, offset, true) => Location::At(base, offset),
        (base, offset, false) => Location::Of(base, offset),
    })
}

fn address(
    abi: Abi,
    expression: gimli::Expression<Bytes<'_>>,
    cie: &gimli::CommonInformationEntry<Bytes<'_>>,
) -> Option<(sframe::rule::Base, i32, bool)> {
    let mut operations = expression.operations(cie.encoding());
    let Operation::RegisterOffset {
        register, offset, ..
    } = operations.next().ok()??
    else {
        return None;
    };
    let deref = match operations.next().ok()? {
        None => false,
        Some(Operation::Deref { size: 8, .. }) if operations.next().ok()?.is_none() => true,
        Some(_) => return None,
    };
    let register = u8::try_from(register.0).ok()?;
    Some((base(abi, register), i32::try_from(offset).ok()?, deref))
}

/// The value of an expression of AMD64's PLTs, relative to the stack pointer.
fn evaluate(
    expression: gimli::Expression<Bytes<'_>>,
    encoding: gimli::Encoding,
    pc: u64,
) -> Option<i32> {
    const SP: u64 = 0x7fff_0000;
    let mut evaluation = expression.evaluation(encoding);
    let mut result = evaluation.evaluate().ok()?;
    loop {
        let value = match result {
            EvaluationResult::RequiresRegister {
                register: Register(7),
                ..
            } => SP,
            EvaluationResult::RequiresRegister {
                register: Register(16),
                ..
            } => pc,
            EvaluationResult::Complete => break,
            _ => return None,
        };
        result = evaluation
            .resume_with_register(Value::Generic(value))
            .ok()?;
    }
    match evaluation.result()[0].location {
        Piece::Address { address } => i32::try_from(address.wrapping_sub(SP) as i64).ok(),
        _ => None,
    }
}
