// SPDX-License-Identifier: GPL-2.0-only

//! Rules in the notation of `readelf --sframe`, and the texts of decoding errors.
//!
//! | notation | meaning |
//! |---|---|
//! | `sp+16`, `r10+0` | the register plus that many bytes |
//! | `(fp-16)` | the value in memory at that address |
//! | `c-8` | saved in memory, that many bytes from the CFA |
//! | `=c+16` | the value is the CFA plus that many bytes (readelf prints `c+16` for this, too) |
//! | `r16` | kept in that register (s390x, version 2) |
//! | `f` | saved at the fixed offset from the header |
//! | `u` | unchanged; for the RA: in the link register |
//! | `U` | as `u`; the row has a zero word for the RA, because a word for the FP follows |
//! | `[s]` as a suffix | signed by pointer authentication |
//! | `RA undefined` | the outermost frame |

use sframe::{
    abi::Abi,
    error::{
        Error,
        Malformed,
        Unsupported, //
    },
    fde::Function,
    rule::{
        Base,
        Cfa,
        Location,
        Rule,
        SavedRbx, //
    },
    section::Section, //
};

use crate::raw::RawRow;

/// A rule in readelf's notation.
pub(crate) struct RuleText {
    /// `None` for an outermost frame.
    pub(crate) cfa: Option<String>,
    /// `None` for an outermost frame.
    pub(crate) fp: Option<String>,
    pub(crate) ra: String,
}

impl RuleText {
    /// The text of a rule without a row: the rule of an outermost frame, or of analysed
    /// instructions.
    pub(crate) fn of_rule(abi: Abi, rule: &Rule) -> RuleText {
        if rule.is_outermost() {
            return RuleText {
                cfa: None,
                fp: None,
                ra: "RA undefined".into(),
            };
        }
        RuleText {
            cfa: Some(cfa(&rule.cfa)),
            fp: Some(location(abi, rule.fp, true)),
            ra: location(abi, rule.ra, true),
        }
    }

    /// The text of a row of `function` in `section`.
    pub(crate) fn of_row(
        section: &Section,
        function: &Function,
        row: &RawRow<'_>,
        rule: &Rule,
    ) -> RuleText {
        let (abi, flexible) = (section.abi(), function.is_flexible());
        let mut text = RuleText::of_rule(abi, rule);
        if rule.is_outermost() {
            return text;
        }
        let fixed = section.fixed_ra_offset() != 0;
        let implicit = if fixed { "f" } else { "u" };
        text.fp = Some(match rule.fp {
            Location::AtCfa(_) if !flexible && section.fixed_fp_offset() != 0 => "f".into(),
            other => location(abi, other, flexible),
        });
        text.ra = match rule.ra {
            _ if flexible && row.count() <= 2 => implicit.into(),
            _ if flexible && row.word(2) == Some(0) => "U".into(),
            _ if !flexible && fixed => implicit.into(),
            Location::Unchanged if row.count() >= 2 => "U".into(),
            other => location(abi, other, flexible),
        };
        if rule.mangled {
            text.ra.push_str("[s]");
        }
        text
    }
}

/// The parts in which the rule of a row contradicts the rule of the code, as text: those of the
/// row, and those of the code. `None` if there are none: a row need not tell where rbx is, and rows
/// of assemblers do not.
pub(crate) fn contradiction(abi: Abi, row: &Rule, code: &Rule) -> Option<(String, String)> {
    let mut told = *code;
    if row.extra.rbx == SavedRbx::UNKNOWN {
        told.extra.rbx = SavedRbx::UNKNOWN;
    }
    if *row == told {
        return None;
    }
    let parts = parts(abi, row).into_iter().zip(parts(abi, &told));
    let (row, code): (Vec<_>, Vec<_>) = parts.filter(|(row, code)| row != code).unzip();
    Some((row.join(", "), code.join(", ")))
}

/// The parts of a rule that a section can encode, as text.
fn parts(abi: Abi, rule: &Rule) -> [String; 5] {
    let rbx = match rule.extra.rbx {
        SavedRbx::UNKNOWN => "unknown".into(),
        SavedRbx::KEPT => "u".into(),
        SavedRbx(slot) => format!("c-{}", 8 * u32::from(slot)),
    };
    let ra = match rule.ra {
        Location::Undefined => "RA undefined".into(),
        ra => format!("ra {}", location(abi, ra, true)),
    };
    let signal = if rule.signal { "a" } else { "no" };
    [
        format!("cfa {}", cfa(&rule.cfa)),
        format!("fp {}", location(abi, rule.fp, true)),
        ra,
        format!("rbx {rbx}"),
        format!("{signal} signal trampoline"),
    ]
}

/// A CFA rule in readelf's notation.
fn cfa(cfa: &Cfa) -> String {
    let address = sum(cfa.base, cfa.offset, cfa.deref);
    match cfa.plus {
        0 => address,
        plus => format!("{address}{plus:+}"),
    }
}

fn sum(base: Base, offset: i32, deref: bool) -> String {
    let register = match base {
        Base::Sp => "sp".into(),
        Base::Fp => "fp".into(),
        Base::Register(number) => format!("r{number}"),
    };
    if deref {
        format!("({register}{offset:+})")
    } else {
        format!("{register}{offset:+}")
    }
}

fn location(abi: Abi, location: Location, flexible: bool) -> String {
    match location {
        Location::Unchanged => "u".into(),
        Location::Undefined => "RA undefined".into(),
        Location::AtCfa(offset) => format!("c{offset:+}"),
        Location::OfCfa(offset) => format!("=c{offset:+}"),
        Location::At(base, offset) => sum(base, offset, true),
        Location::Of(base, offset) if flexible => sum(base, offset, false),
        Location::Of(Base::Sp, _) => format!("r{}", abi.sp()),
        Location::Of(Base::Fp, _) => format!("r{}", abi.fp()),
        Location::Of(Base::Register(number), _) => format!("r{number}"),
    }
}

/// The names of flags, without the specification's SFRAME_F_ and FDE_.
pub(crate) fn flags(flags: u8) -> Vec<&'static str> {
    use sframe::header::{
        FRAME_POINTER,
        FUNC_START_PCREL,
        SORTED, //
    };
    [
        (SORTED, "SORTED"),
        (FRAME_POINTER, "FRAME_POINTER"),
        (FUNC_START_PCREL, "FUNC_START_PCREL"),
    ]
    .into_iter()
    .filter(|&(flag, _)| flags & flag != 0)
    .map(|(_, name)| name)
    .collect()
}

/// The specification's name of the ABI, without SFRAME_ABI_, and its byte order if there are two.
pub(crate) fn abi(abi: Abi) -> &'static str {
    match abi {
        Abi::Aarch64Big => "aarch64-be",
        Abi::Aarch64 => "aarch64-le",
        Abi::Amd64 => "amd64",
        Abi::S390x => "s390x",
    }
}

/// The position of an error, in bytes from the section's start, and the error's text. `about` is
/// the position for errors that carry none: the start of the header, or of the function descriptor
/// entry that was read.
pub(crate) fn explain(error: Error, about: u32) -> (u64, String) {
    let about = u64::from(about);
    match error {
        Error::Fault { offset } => (
            offset.into(),
            "the section ends here, within a header, function or row".into(),
        ),
        Error::Malformed { what, offset } => (offset.into(), malformed(what).into()),
        Error::Unsupported { what } => match what {
            Unsupported::Version(value) => (
                about + 2,
                format!("unknown version {value}; versions 1 to 3 are supported"),
            ),
            Unsupported::Flags(value) => (
                about + 3,
                format!("unknown flags {value:#x} for this version"),
            ),
            Unsupported::Abi(value) => (
                about + 4,
                format!("unknown ABI {value}; ABIs 1 to 4 are supported"),
            ),
            Unsupported::FunctionType(value) => (
                about,
                format!("unknown function type {value}; types 0 and 1 are supported"),
            ),
            Unsupported::Size => (about, "the section is larger than 4 GiB".into()),
        },
        Error::TooLong => (
            about,
            "the function has too many rows for a bounded search".into(),
        ),
    }
}

const fn malformed(what: Malformed) -> &'static str {
    match what {
        Malformed::HeaderShort => "the section is shorter than the header, 28 bytes",
        Malformed::Magic => "the SFrame magic 0xdee2 is missing",
        Malformed::AuxHeader => "the auxiliary header does not fit into the section",
        Malformed::Functions => "the functions overlap the rows",
        Malformed::Rows => "the rows do not fit into the section",
        Malformed::AbiOrder => "the ABI's byte order differs from the section's",
        Malformed::Unsorted => {
            "the flag SORTED is set, but the function starts before the one in front of it"
        }
        Malformed::RowType => "the function's row type is undefined",
        Malformed::RepeatZero => "the function is pcmask, but its block size is zero",
        Malformed::RowsStart => "the function's first row lies behind the end of the rows",
        Malformed::RowPastEnd => "the row does not fit into the section",
        Malformed::RowsNotRising => "the row does not start after the row in front of it",
        Malformed::WordSize => "the size of the row's words is undefined",
        Malformed::WordCount => "the row has an invalid number of words",
        Malformed::CfaOffset => "the row's CFA offset is out of range",
        Malformed::FlexCfa => "the flexible row's CFA has no base register",
        Malformed::RowTotal => {
            "the sum of the functions' rows differs from the header's number of rows"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_contradicts_only_in_what_it_says() {
        let mut code = Rule::amd64(Base::Sp, 16, Location::Unchanged);
        code.extra.rbx = SavedRbx::KEPT;
        let changed = |change: fn(&mut Rule)| {
            let mut row = code;
            change(&mut row);
            contradiction(Abi::Amd64, &row, &code)
        };
        let texts = |row: &str, code: &str| Some((row.to_owned(), code.to_owned()));
        assert_eq!(changed(|_| {}), None);
        assert_eq!(changed(|row| row.extra.rbx = SavedRbx::UNKNOWN), None);
        assert_eq!(
            changed(|row| row.extra.rbx = SavedRbx(3)),
            texts("rbx c-24", "rbx u")
        );
        assert_eq!(
            changed(|row| {
                row.extra.rbx = SavedRbx::UNKNOWN;
                row.cfa.offset = 24;
            }),
            texts("cfa sp+24", "cfa sp+16")
        );
        assert_eq!(
            changed(|row| {
                row.fp = Location::AtCfa(-16);
                row.signal = true;
            }),
            texts("fp c-16, a signal trampoline", "fp u, no signal trampoline")
        );
        assert_eq!(
            changed(|row| row.ra = Location::Undefined),
            texts("RA undefined", "ra c-8")
        );
    }
}
