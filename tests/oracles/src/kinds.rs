// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The oracles, and the known kinds of disagreements with them. Documentation/oracles.rst describes
//! each kind, with the bytes and the instructions.

use std::fmt::{
    self,
    Display,
    Formatter, //
};

use sframe::{
    abi::Abi,
    header::{
        Version,
        FUNC_START_PCREL, //
    },
    rule::{
        Base,
        Cfa,
        Location,
        Rule, //
    },
    section::Section, //
};

use crate::{
    compare::Ours,
    gimli_oracle::Range,
    image::Image, //
};

/// The oracles that are programs. Each name is the suffix of the file with the oracle's answers.
pub(crate) const ORACLES: &[&str] = &[
    "readelf-2.40",
    "objdump-2.40",
    "readelf-2.44",
    "objdump-2.44",
    "readelf-2.47",
    "objdump-2.47",
    "libsframe-2.47",
    "llvm-22",
];

/// Whether an oracle applies the relocations of function starts in object files. readelf 2.47 does,
/// but takes the result as relative to the section unless a flag is set.
pub(crate) fn relocates(oracle: &str, section: &Section) -> bool {
    match oracle {
        "llvm-22" => true,
        "readelf-2.47" => section.flags() & FUNC_START_PCREL != 0,
        _ => false,
    }
}

/// The kind of disagreements that have no known kind.
pub(crate) const UNKNOWN: &str = "unknown";

/// One disagreement.
pub(crate) struct Disagreement<'a> {
    pub(crate) writer: &'a str,
    pub(crate) oracle: &'a str,
    pub(crate) image: &'a Image,
    pub(crate) section: &'a Section,
    pub(crate) ours: &'a Ours,
    pub(crate) address: u64,
    /// Whether the disagreement is about a row; else it is about an address.
    pub(crate) row: bool,
    pub(crate) our_rule: Option<Rule>,
    pub(crate) oracle_rule: Option<Rule>,
}

impl Display for Disagreement<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let part = self.image.code_at(self.address);
        let name = part.map_or("", |part| &part.name);
        write!(
            f,
            "{} {:#x} in {name}, {} bytes into a function of {}: \
             our rule {:?}, the oracle's {:?}; code {:02x?}",
            if self.row { "row" } else { "address" },
            self.address,
            self.address - self.ours.function.start(),
            self.ours.function.size(),
            self.our_rule,
            self.oracle_rule,
            self.image.bytes_at(self.address, 16),
        )
    }
}

/// The kind of rows that an oracle does not read at all. They are counted, but are no failure.
pub(crate) const UNREAD: &str = "simple-frame-rs-flexible-s390x";

/// The kind of a disagreement.
pub(crate) fn kind(case: &Disagreement<'_>) -> &'static str {
    let function = &case.ours.function;
    match case.oracle {
        "simple-frame-rs" if function.is_flexible() && case.section.abi() == Abi::S390x => UNREAD,
        "simple-frame-rs" if !case.row && function.repeat().is_some() => "simple-frame-rs-repeat",
        "libsframe-2.47" if !case.row && case.oracle_rule.is_none() && is_behind_empty(case) => {
            "libsframe-empty"
        }
        "eh_frame" if case.section.version() != Version::V3 => limitation_of_v2(case),
        _ => UNKNOWN,
    }
}

/// Whether an empty function starts at the same address.
fn is_behind_empty(case: &Disagreement<'_>) -> bool {
    case.section
        .functions(&*case.image.sframe.bytes)
        .flatten()
        .any(|function| function.size() == 0 && function.start() == case.address)
}

/// The kind of disagreements with .eh_frame from limitations of versions 1 and 2, or from wrong
/// rows of their assemblers.
fn limitation_of_v2(case: &Disagreement<'_>) -> &'static str {
    let (Some(our_rule), Some(oracle_rule)) = (case.our_rule, case.oracle_rule) else {
        return UNKNOWN;
    };
    if oracle_rule.is_outermost() {
        return "outermost-not-marked";
    }
    if oracle_rule.signal
        && oracle_rule
            == (Rule {
                signal: true,
                ..our_rule
            })
    {
        return "signal-not-marked";
    }
    let restored = Rule {
        cfa: Cfa {
            base: Base::Fp,
            ..our_rule.cfa
        },
        ..our_rule
    };
    if oracle_rule == restored && case.writer != "v2e1-clang" && is_corner(case) {
        return "restored-state";
    }
    UNKNOWN
}

/// Whether the function is corner_frame of corners.S.
fn is_corner(case: &Disagreement<'_>) -> bool {
    const CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0xc9, 0xc3, 0x0f, 0x0b];
    case.image.bytes_at(case.ours.function.start(), 8) == CODE
}

/// The kind of a range of .eh_frame that has no row.
pub(crate) fn gap(
    image: &Image,
    section: &Section,
    range: &Range,
    ranges: &[Range],
) -> &'static str {
    let part = image.code_at(range.first).map_or("", |part| &part.name);
    let is_encodable = |range: &Range| {
        range.rule.is_some_and(|rule| {
            matches!(rule.cfa.base, Base::Sp | Base::Fp)
                && !rule.cfa.deref
                && !matches!(rule.fp, Location::At(..) | Location::Of(..))
        })
    };
    match part {
        ".plt.got" if section.version() == Version::V1 => "no-rows-plt-got",
        ".plt" if section.abi() == Abi::S390x => "no-rows-plt-s390x",
        _ if image.is_of_crt(range.function) => "no-rows-crt",
        // The assembler drops a whole function if it cannot encode one range.
        _ if section.version() != Version::V3
            && ranges
                .iter()
                .any(|other| other.function == range.function && !is_encodable(other)) =>
        {
            "no-rows-register"
        }
        _ => UNKNOWN,
    }
}
