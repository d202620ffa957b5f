// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Reads sections with the crate simple-frame-rs.

use fallible_iterator::FallibleIterator;
use sframe::{
    abi::Abi,
    rule::{
        Base,
        Cfa,
        Extra,
        Location,
        Rule, //
    },
    section::Section, //
};
use simple_frame_rs::{
    v3::{
        SFrameFDEType,
        SFrameFlexRecoveryRule, //
    },
    SFrameFDE,
    SFrameFRE,
    SFrameSection, //
};

use crate::{
    answers::{
        base,
        AnsweredFunction,
        Answers, //
    },
    image::ImagePart,
};

/// All answers for a section. In unsorted sections addresses are not looked up: the crate would
/// read all functions for each address.
pub(crate) fn answers(part: &ImagePart, section: &Section) -> Answers {
    let parsed =
        SFrameSection::from(&part.bytes, part.address).expect("simple-frame-rs: a section");
    let mut answers = Answers {
        found: section.is_sorted().then(Vec::new),
        ..Answers::default()
    };
    let functions: Vec<SFrameFDE> = match &parsed {
        SFrameSection::V1(v1) => v1.iter_fde().map(|fde| Ok(SFrameFDE::V1(fde))).collect(),
        SFrameSection::V2(v2) => v2.iter_fde().map(|fde| Ok(SFrameFDE::V2(fde))).collect(),
        SFrameSection::V3(v3) => v3.iter_fde().map(|fde| Ok(SFrameFDE::V3(fde))).collect(),
    }
    .expect("simple-frame-rs: functions");
    for fde in &functions {
        let (start, size, masked, signal) = match (fde, &parsed) {
            (SFrameFDE::V1(fde), SFrameSection::V1(section)) => (
                fde.get_pc(section),
                fde.func_size,
                matches!(
                    fde.func_info.get_fde_type(),
                    Ok(simple_frame_rs::v1::SFrameFDEType::PCMask)
                ),
                false,
            ),
            (SFrameFDE::V2(fde), SFrameSection::V2(section)) => (
                fde.get_pc(section),
                fde.func_size,
                matches!(
                    fde.func_info.get_fde_type(),
                    Ok(simple_frame_rs::v2::SFrameFDEType::PCMask)
                ),
                false,
            ),
            (SFrameFDE::V3(fde), SFrameSection::V3(section)) => (
                fde.get_pc(section),
                fde.func_size,
                matches!(
                    fde.func_info.get_fde_pctype(),
                    Ok(simple_frame_rs::v3::SFrameFDEPCType::PCMask)
                ),
                fde.func_info.is_signal_frame().unwrap_or(false),
            ),
            _ => unreachable!("a function of another version than its section"),
        };
        let rows: Vec<SFrameFRE> = match (fde, &parsed) {
            (SFrameFDE::V1(fde), SFrameSection::V1(section)) => fde
                .iter_fre(section)
                .map(|row| Ok(SFrameFRE::V1(row)))
                .collect(),
            (SFrameFDE::V2(fde), SFrameSection::V2(section)) => fde
                .iter_fre(section)
                .map(|row| Ok(SFrameFRE::V2(row)))
                .collect(),
            (SFrameFDE::V3(fde), SFrameSection::V3(section)) => fde
                .iter_fre(section)
                .map(|row| Ok(SFrameFRE::V3(row)))
                .collect(),
            _ => unreachable!("a function of another version than its section"),
        }
        .expect("simple-frame-rs: rows");
        answers.functions.push(AnsweredFunction {
            start,
            size: size.into(),
            masked,
            signal,
            rows: rows
                .iter()
                .map(|row| (start_of(row), rule(&parsed, section, fde, row, signal)))
                .collect(),
        });
        if let Some(found) = &mut answers.found {
            for pc in start..start + u64::from(size) {
                let function = parsed.find_fde(pc).expect("simple-frame-rs: a function");
                let rule = function.and_then(|function| {
                    let row = function
                        .find_fre(&parsed, pc)
                        .expect("simple-frame-rs: a row")?;
                    Some(rule(&parsed, section, &function, &row, signal))
                });
                match found.last_mut() {
                    Some((_, last, before)) if *last + 1 == pc && *before == rule => *last = pc,
                    _ => found.push((pc, pc, rule)),
                }
            }
        }
    }
    answers
}

fn start_of(row: &SFrameFRE) -> u64 {
    match row {
        SFrameFRE::V1(row) => row.start_address.get().into(),
        SFrameFRE::V2(row) => row.start_address.get().into(),
        SFrameFRE::V3(row) => row.start_address.get().into(),
    }
}

fn rule(
    parsed: &SFrameSection<'_>,
    section: &Section,
    fde: &SFrameFDE,
    row: &SFrameFRE,
    signal: bool,
) -> Rule {
    let abi = section.abi();
    let mangled = match row {
        SFrameFRE::V1(row) => row.info.get_mangled_ra_p(),
        SFrameFRE::V2(row) => row.info.get_mangled_ra_p(),
        SFrameFRE::V3(row) => row.info.get_mangled_ra_p(),
    };
    let fixed = match section.fixed_ra_offset() {
        0 => Location::Unchanged,
        offset => Location::AtCfa(offset.into()),
    };
    if let (SFrameFDE::V3(fde), SFrameFRE::V3(row)) = (fde, row) {
        if matches!(fde.func_info2.get_fde_type(), Ok(SFrameFDEType::Flex)) {
            let Some(rules) = row.get_flex_recovery_rules() else {
                return Rule {
                    signal,
                    ..Rule::OUTERMOST
                };
            };
            let or = |rule: Option<SFrameFlexRecoveryRule>, default| match rule {
                Some(rule) if !rule.control.is_padding() => flexible(abi, &rule),
                _ => default,
            };
            let (base, deref) = match flexible(abi, &rules.cfa) {
                Location::At(base, _) => (base, true),
                Location::Of(base, _) => (base, false),
                other => panic!("simple-frame-rs: a CFA {other:?}"),
            };
            return Rule {
                cfa: Cfa {
                    base,
                    offset: rules.cfa.offset,
                    deref,
                    plus: 0,
                },
                ra: or(rules.ra, fixed),
                fp: or(rules.fp, Location::Unchanged),
                mangled,
                signal,
                extra: Extra::NONE,
            };
        }
    }
    let Some(offset) = row.get_cfa_offset(parsed).expect("simple-frame-rs: a CFA") else {
        return Rule {
            signal,
            ..Rule::OUTERMOST
        };
    };
    // The crate returns the word for a saved register. On s390x the word is not always an offset.
    let saved = |word: Option<i32>, default: Location| match word {
        None => default,
        Some(0) if abi == Abi::S390x => Location::Unchanged,
        Some(offset) => Location::AtCfa(offset),
    };
    let ra = row
        .get_ra_offset(parsed)
        .expect("simple-frame-rs: a return address");
    let fp = row
        .get_fp_offset(parsed)
        .expect("simple-frame-rs: a frame pointer");
    Rule {
        cfa: Cfa {
            base: if row.get_cfa_base_reg_id() == 0 {
                Base::Fp
            } else {
                Base::Sp
            },
            offset,
            deref: false,
            plus: 0,
        },
        ra: saved(ra, Location::Unchanged),
        fp: saved(fp, Location::Unchanged),
        mangled,
        signal,
        extra: Extra::NONE,
    }
}

fn flexible(abi: Abi, rule: &SFrameFlexRecoveryRule) -> Location {
    let register = base(abi, rule.control.regnum() as u8);
    match (rule.control.reg_p(), rule.control.deref_p()) {
        (true, true) => Location::At(register, rule.offset),
        (true, false) => Location::Of(register, rule.offset),
        (false, true) => Location::AtCfa(rule.offset),
        (false, false) => Location::OfCfa(rule.offset),
    }
}
