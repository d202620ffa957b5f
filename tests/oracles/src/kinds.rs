// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Which oracles there are, and in what they are known to disagree. Each kind is described in
//! Documentation/oracles.rst, with the bytes and the instructions.

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
    eh_frame::Range,
    image::Image, //
};

/// The oracles that are programs. Each leaves a file of this suffix.
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

/// Whether an oracle knows where the functions of an object file start. readelf 2.47 relocates, but
/// then counts from the section, unless a flag says otherwise.
pub(crate) fn relocates(oracle: &str, section: &Section) -> bool {
    match oracle {
        "llvm-22" => true,
        "readelf-2.47" => section.flags() & FUNC_START_PCREL != 0,
        _ => false,
    }
}

/// A disagreement that is of no known kind.
pub(crate) const UNKNOWN: &str = "unknown";

/// One disagreement.
pub(crate) struct Case<'a> {
    pub(crate) writer: &'a str,
    pub(crate) oracle: &'a str,
    pub(crate) image: &'a Image,
    pub(crate) section: &'a Section,
    pub(crate) ours: &'a Ours,
    pub(crate) address: u64,
    /// Whether it is about a row, and not about an address.
    pub(crate) row: bool,
    pub(crate) we_say: Option<Rule>,
    pub(crate) it_says: Option<Rule>,
}

impl Display for Case<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let part = self.image.code_at(self.address);
        let name = part.map_or("", |part| &part.name);
        write!(
            f,
            "{} {:#x} in {name}, {} bytes into a function of {}: \
             we say {:?}, it says {:?}; code {:02x?}",
            if self.row { "row" } else { "address" },
            self.address,
            self.address - self.ours.function.start(),
            self.ours.function.size(),
            self.we_say,
            self.it_says,
            self.image.bytes_at(self.address, 16),
        )
    }
}

/// What an oracle does not read at all. It is counted, but not held against anyone.
pub(crate) const UNREAD: &str = "simple-frame-rs-flexible-s390x";

/// The kind of a disagreement.
pub(crate) fn kind(case: &Case<'_>) -> &'static str {
    let function = &case.ours.function;
    match case.oracle {
        "simple-frame-rs" if function.is_flexible() && case.section.abi() == Abi::S390x => UNREAD,
        "simple-frame-rs" if !case.row && function.repeat().is_some() => "simple-frame-rs-repeat",
        "libsframe-2.47" if !case.row && case.it_says.is_none() && is_behind_empty(case) => {
            "libsframe-empty"
        }
        "eh_frame" if case.section.version() != Version::V3 => unsaid(case),
        _ => UNKNOWN,
    }
}

/// Whether an empty function starts at the same address.
fn is_behind_empty(case: &Case<'_>) -> bool {
    case.section
        .functions(&*case.image.sframe.bytes)
        .flatten()
        .any(|function| function.size() == 0 && function.start() == case.address)
}

/// What versions 1 and 2 cannot say, or what their assemblers say wrongly.
fn unsaid(case: &Case<'_>) -> &'static str {
    let (Some(we_say), Some(it_says)) = (case.we_say, case.it_says) else {
        return UNKNOWN;
    };
    if it_says.is_outermost() {
        return "outermost-unsaid";
    }
    if it_says.signal
        && it_says
            == (Rule {
                signal: true,
                ..we_say
            })
    {
        return "signal-unsaid";
    }
    let restored = Rule {
        cfa: Cfa {
            base: Base::Fp,
            ..we_say.cfa
        },
        ..we_say
    };
    if it_says == restored && case.writer != "v2e1-clang" && is_corner(case) {
        return "restored-state";
    }
    UNKNOWN
}

/// Whether the function is corner_frame of corners.S.
fn is_corner(case: &Case<'_>) -> bool {
    const CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0xc9, 0xc3, 0x0f, 0x0b];
    case.image.bytes_at(case.ours.function.start(), 8) == CODE
}

/// Why there is no row for a range of .eh_frame.
pub(crate) fn gap(
    image: &Image,
    section: &Section,
    range: &Range,
    ranges: &[Range],
) -> &'static str {
    let part = image.code_at(range.first).map_or("", |part| &part.name);
    let is_plain = |range: &Range| {
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
        // One range that cannot be said takes the whole function with it.
        _ if section.version() != Version::V3
            && ranges
                .iter()
                .any(|other| other.function == range.function && !is_plain(other)) =>
        {
            "no-rows-register"
        }
        _ => UNKNOWN,
    }
}
