// SPDX-License-Identifier: GPL-2.0-only

//! Rules in readelf's words, and errors in a person's.
//!
//! | words | meaning |
//! |---|---|
//! | `sp+16`, `r10+0` | the register plus so many bytes |
//! | `(fp-16)` | what is in memory at that address |
//! | `c-8` | saved in memory, so many bytes from the CFA |
//! | `=c+16` | it is the CFA plus so many bytes (readelf does not tell it from the one before) |
//! | `r16` | kept in that register (s390x, version 2) |
//! | `f` | saved where the header says for all functions |
//! | `u` | unchanged, or in the register that a call leaves the return address in |
//! | `U` | as if there were no word for it: there is a zero, since there is one for the FP |
//! | `[s]` behind it | signed by pointer authentication |
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
        Rule, //
    },
    section::Section, //
};

use crate::raw::RawRow;

/// What a row says, in readelf's words.
pub(crate) struct Words {
    /// `None` for an outermost frame, as the next.
    pub(crate) cfa: Option<String>,
    pub(crate) fp: Option<String>,
    pub(crate) ra: String,
}

impl Words {
    /// Of a rule without a row: an outermost frame's, or what instructions say.
    pub(crate) fn of_rule(abi: Abi, rule: &Rule) -> Words {
        if rule.is_outermost() {
            return Words {
                cfa: None,
                fp: None,
                ra: "RA undefined".into(),
            };
        }
        Words {
            cfa: Some(cfa(&rule.cfa)),
            fp: Some(location(abi, rule.fp, true)),
            ra: location(abi, rule.ra, true),
        }
    }

    /// Of a row of `function` of `section`.
    pub(crate) fn of_row(
        section: &Section,
        function: &Function,
        row: &RawRow<'_>,
        rule: &Rule,
    ) -> Words {
        let (abi, flexible) = (section.abi(), function.is_flexible());
        let mut words = Words::of_rule(abi, rule);
        if rule.is_outermost() {
            return words;
        }
        let fixed = section.fixed_ra_offset() != 0;
        let unsaid = if fixed { "f" } else { "u" };
        words.fp = Some(match rule.fp {
            Location::AtCfa(_) if !flexible && section.fixed_fp_offset() != 0 => "f".into(),
            other => location(abi, other, flexible),
        });
        words.ra = match rule.ra {
            _ if flexible && row.count() <= 2 => unsaid.into(),
            _ if flexible && row.word(2) == Some(0) => "U".into(),
            _ if !flexible && fixed => unsaid.into(),
            Location::Unchanged if row.count() >= 2 => "U".into(),
            other => location(abi, other, flexible),
        };
        if rule.mangled {
            words.ra.push_str("[s]");
        }
        words
    }
}

/// The CFA.
pub(crate) fn cfa(cfa: &Cfa) -> String {
    let place = at(cfa.base, cfa.offset, cfa.deref);
    match cfa.plus {
        0 => place,
        plus => format!("{place}{plus:+}"),
    }
}

fn at(base: Base, offset: i32, deref: bool) -> String {
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
        Location::At(base, offset) => at(base, offset, true),
        Location::Of(base, offset) if flexible => at(base, offset, false),
        Location::Of(Base::Sp, _) => format!("r{}", abi.sp()),
        Location::Of(Base::Fp, _) => format!("r{}", abi.fp()),
        Location::Of(Base::Register(number), _) => format!("r{number}"),
    }
}

/// A flag's name, without the specification's SFRAME_F_ and FDE_.
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

/// What is wrong, and where, in bytes from the section's start. `about` is where that lies of which
/// the error does not say it: the header's start if that was being read, else the entry's.
pub(crate) fn explain(error: Error, about: u32) -> (u64, String) {
    let about = u64::from(about);
    match error {
        Error::Fault { offset } => (offset, "the section ends here, in the middle".into()),
        Error::Malformed { what, offset } => (offset, malformed(what).into()),
        Error::Unsupported { what } => match what {
            Unsupported::Version(value) => (
                about + 2,
                format!("version {value} is not known, only 1 to 3"),
            ),
            Unsupported::Flags(value) => (
                about + 3,
                format!("flags {value:#x} are not known in this version"),
            ),
            Unsupported::Abi(value) => {
                (about + 4, format!("ABI {value} is not known, only 1 to 4"))
            }
            Unsupported::FunctionType(value) => (
                about,
                format!("the function is of type {value}, and only 0 and 1 are known"),
            ),
            Unsupported::Size => (about, "the section is larger than 4 GiB".into()),
        },
        Error::TooLong => (about, "the search would take too long".into()),
    }
}

const fn malformed(what: Malformed) -> &'static str {
    match what {
        Malformed::HeaderShort => "the section is shorter than a header of 28 bytes",
        Malformed::Magic => "no SFrame magic, 0xdee2",
        Malformed::AuxHeader => "the auxiliary header does not fit into the section",
        Malformed::Functions => "the functions do not fit in front of the rows",
        Malformed::Rows => "the rows do not fit into the section",
        Malformed::AbiOrder => "the ABI is one of the other byte order",
        Malformed::Unsorted => "the flags say SORTED, but the function starts before the last one",
        Malformed::RowType => "the function's rows are of an undefined type",
        Malformed::RepeatZero => "the function is pcmask, but its block size is zero",
        Malformed::RowsStart => "the function's rows begin behind the end of all rows",
        Malformed::RowPastEnd => "the row does not fit into the section",
        Malformed::RowsNotRising => "the row does not start behind the one before it",
        Malformed::WordSize => "the row's words are of an undefined size",
        Malformed::WordCount => "the row has another number of words than there are uses for",
        Malformed::CfaOffset => "the row's CFA offset is out of range",
        Malformed::FlexCfa => "the flexible row does not count the CFA from a register",
        Malformed::RowTotal => "the functions have another number of rows than the header says",
    }
}
