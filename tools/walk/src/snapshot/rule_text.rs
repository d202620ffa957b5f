// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rules as text: `cfa sp+24, fp [cfa-16], ra [cfa-8]`.
//!
//! `[...]` is the word in memory at an address. `unchanged` and `undefined` are the locations of
//! these names; `regN` is the register with the DWARF number N. After the three parts may follow
//! `signal`, `mangled`, `twice`, `changes-stack` and `rbx N`, for the fields of these names in the
//! core.

use sframe::rule::{
    Base,
    Cfa,
    Extra,
    Location,
    Rule,
    SavedRbx, //
};

/// The text of a rule.
pub(super) fn write(rule: &Rule) -> String {
    let cfa = &rule.cfa;
    let sum = base_plus(cfa.base, cfa.offset);
    let mut text = match (cfa.deref, cfa.plus) {
        (false, _) => format!("cfa {sum}"),
        (true, 0) => format!("cfa [{sum}]"),
        (true, plus) => format!("cfa [{sum}]{plus:+}"),
    };
    text.push_str(&format!(
        ", fp {}, ra {}",
        location(rule.fp),
        location(rule.ra)
    ));
    let flags = [
        (rule.signal, ", signal"),
        (rule.mangled, ", mangled"),
        (rule.extra.deref_twice, ", twice"),
        (rule.extra.changes_stack, ", changes-stack"),
    ];
    for (is_set, name) in flags {
        if is_set {
            text.push_str(name);
        }
    }
    let SavedRbx(rbx) = rule.extra.rbx;
    if rbx != 0 {
        text.push_str(&format!(", rbx {rbx}"));
    }
    text
}

fn base_plus(base: Base, offset: i32) -> String {
    match base {
        Base::Sp => format!("sp{offset:+}"),
        Base::Fp => format!("fp{offset:+}"),
        Base::Register(number) => format!("reg{number}{offset:+}"),
    }
}

fn location(location: Location) -> String {
    match location {
        Location::Unchanged => "unchanged".to_owned(),
        Location::Undefined => "undefined".to_owned(),
        Location::AtCfa(offset) => format!("[cfa{offset:+}]"),
        Location::OfCfa(offset) => format!("cfa{offset:+}"),
        Location::At(base, offset) => format!("[{}]", base_plus(base, offset)),
        Location::Of(base, offset) => base_plus(base, offset),
    }
}

/// The rule that [`write()`] has written.
///
/// # Errors
///
/// The text is no rule. The error has the part that is not understood.
pub(super) fn parse(text: &str) -> Result<Rule, String> {
    let mut parts = text.split(", ");
    let mut part = |name: &str| {
        let part = parts.next().unwrap_or_default();
        part.strip_prefix(name)
            .ok_or_else(|| format!("{text:?} is no rule: {part:?} does not begin with {name:?}"))
    };
    let wrong = |part: &str| format!("{text:?} is no rule: {part:?} is not understood");
    let (cfa, fp, ra) = (part("cfa ")?, part("fp ")?, part("ra ")?);
    let mut rule = Rule {
        cfa: parse_cfa(cfa).ok_or_else(|| wrong(cfa))?,
        fp: parse_location(fp).ok_or_else(|| wrong(fp))?,
        ra: parse_location(ra).ok_or_else(|| wrong(ra))?,
        mangled: false,
        signal: false,
        extra: Extra::NONE,
    };
    for part in parts {
        match part.strip_prefix("rbx ").map(str::parse) {
            Some(Ok(rbx)) => {
                rule.extra.rbx = SavedRbx(rbx);
                continue;
            }
            Some(Err(_)) => return Err(wrong(part)),
            None => {}
        }
        match part {
            "signal" => rule.signal = true,
            "mangled" => rule.mangled = true,
            "twice" => rule.extra.deref_twice = true,
            "changes-stack" => rule.extra.changes_stack = true,
            _ => return Err(wrong(part)),
        }
    }
    Ok(rule)
}

/// The word in brackets, and the text after them.
fn in_brackets(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('[')?.split_once(']')
}

fn parse_cfa(text: &str) -> Option<Cfa> {
    let (sum, deref, plus) = match in_brackets(text) {
        Some((sum, "")) => (sum, true, 0),
        Some((sum, plus)) => (sum, true, parse_offset(plus)?),
        None => (text, false, 0),
    };
    let (base, offset) = parse_base(sum)?;
    Some(Cfa {
        base,
        offset,
        deref,
        plus: plus.try_into().ok()?,
    })
}

fn parse_location(text: &str) -> Option<Location> {
    let (inside, is_at) = match in_brackets(text) {
        Some((inside, "")) => (inside, true),
        Some(_) => return None,
        None => (text, false),
    };
    Some(match (inside.strip_prefix("cfa"), is_at) {
        (Some(offset), true) => Location::AtCfa(parse_offset(offset)?),
        (Some(offset), false) => Location::OfCfa(parse_offset(offset)?),
        (None, true) => parse_base(inside).map(|(base, offset)| Location::At(base, offset))?,
        (None, false) => match inside {
            "unchanged" => Location::Unchanged,
            "undefined" => Location::Undefined,
            _ => parse_base(inside).map(|(base, offset)| Location::Of(base, offset))?,
        },
    })
}

fn parse_base(text: &str) -> Option<(Base, i32)> {
    let sign = text.find(['+', '-'])?;
    let (name, offset) = text.split_at(sign);
    let base = match name {
        "sp" => Base::Sp,
        "fp" => Base::Fp,
        _ => Base::Register(name.strip_prefix("reg")?.parse().ok()?),
    };
    Some((base, parse_offset(offset)?))
}

/// A number with a sign.
fn parse_offset(text: &str) -> Option<i32> {
    text.starts_with(['+', '-']).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_a_text() {
        let mut signal = Rule::amd64(Base::Register(4), 40, Location::At(Base::Register(4), 120));
        signal.ra = Location::At(Base::Register(3), -168);
        signal.signal = true;
        let mut lost = Rule::amd64(Base::Fp, 16, Location::LOST);
        lost.extra.rbx = SavedRbx(5);
        let mut other = Rule::amd64(Base::Sp, -8, Location::OfCfa(-16));
        other.cfa.deref = true;
        other.cfa.plus = -8;
        other.mangled = true;
        other.extra.deref_twice = true;
        other.extra.changes_stack = true;
        let mut plain = Rule::amd64(Base::Sp, 8, Location::Unchanged);
        plain.cfa.deref = true;
        let rules = [
            (
                Rule::amd64(Base::Sp, 24, Location::AtCfa(-16)),
                "cfa sp+24, fp [cfa-16], ra [cfa-8]",
            ),
            (Rule::OUTERMOST, "cfa sp+0, fp undefined, ra undefined"),
            (signal, "cfa reg4+40, fp [reg4+120], ra [reg3-168], signal"),
            (lost, "cfa fp+16, fp reg31+0, ra [cfa-8], rbx 5"),
            (
                other,
                "cfa [sp-8]-8, fp cfa-16, ra [cfa-8], mangled, twice, changes-stack",
            ),
            (plain, "cfa [sp+8], fp unchanged, ra [cfa-8]"),
        ];
        for (rule, text) in rules {
            assert_eq!(write(&rule), text);
            assert_eq!(parse(text), Ok(rule));
        }
    }

    #[test]
    fn a_wrong_rule_is_named() {
        for (text, part) in [
            ("", "\"\" does not begin with \"cfa \""),
            (
                "cfa sp+8, ra [cfa-8]",
                "\"ra [cfa-8]\" does not begin with \"fp \"",
            ),
            (
                "cfa sp8, fp unchanged, ra [cfa-8]",
                "\"sp8\" is not understood",
            ),
            (
                "cfa [sp+8]+200, fp unchanged, ra [cfa-8]",
                "\"[sp+8]+200\" is not understood",
            ),
            (
                "cfa sp+8, fp [cfa-8]+8, ra [cfa-8]",
                "\"[cfa-8]+8\" is not understood",
            ),
            (
                "cfa reg+8, fp unchanged, ra [cfa-8]",
                "\"reg+8\" is not understood",
            ),
            (
                "cfa sp+8, fp unchanged, ra [cfa-8], rbx x",
                "\"rbx x\" is not understood",
            ),
            (
                "cfa sp+8, fp unchanged, ra [cfa-8], late",
                "\"late\" is not understood",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.ends_with(part), "{error}");
        }
    }
}
