// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Parses the output of the oracles that are programs.

use sframe::{
    abi::Abi,
    rule::{
        Base,
        Cfa,
        Location,
        Rule, //
    },
    section::Section, //
};

/// An oracle's answers for a section.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The functions, in the section's order.
    pub(crate) functions: Vec<AnsweredFunction>,
    /// The results of the oracle's own search, if it has one: ranges of addresses (first and last),
    /// in ascending order, with the rule found there.
    pub(crate) found: Option<Vec<(u64, u64, Option<Rule>)>>,
}

/// A function as an oracle reads it.
#[derive(Debug)]
pub(crate) struct AnsweredFunction {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) masked: bool,
    pub(crate) signal: bool,
    /// Each row's start, in bytes from the start of the function, and its rule.
    pub(crate) rows: Vec<(u64, Rule)>,
}

impl Answers {
    /// The rule that the oracle's search finds for `pc`.
    pub(crate) fn find(&self, pc: u64) -> Option<Rule> {
        let found = self.found.as_ref()?;
        let index = found.partition_point(|(first, ..)| *first <= pc);
        let (_, last, rule) = found.get(index.checked_sub(1)?)?;
        rule.filter(|_| pc <= *last)
    }
}

impl AnsweredFunction {
    /// The rule at `offset` bytes from the start of the function, or of a block of it.
    pub(crate) fn rule(&self, offset: u64) -> Option<Rule> {
        let index = self.rows.partition_point(|(start, _)| *start <= offset);
        Some(self.rows[index.checked_sub(1)?].1)
    }
}

fn hexadecimal(text: &str) -> u64 {
    let text = text.trim_end_matches([',', ' ']);
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .unwrap_or_else(|_| panic!("`{text}` is not a hexadecimal number"))
}

fn decimal<N: std::str::FromStr>(text: &str) -> N {
    text.parse()
        .unwrap_or_else(|_| panic!("`{text}` is not a number"))
}

/// Parses the output of `readelf --sframe` and `objdump --sframe`.
pub(crate) fn binutils(text: &str, section: &Section) -> Answers {
    let mut answers = Answers::default();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once(": pc = ") {
            let (start, rest) = rest.split_once(", size = ").expect("a size");
            let (size, rest) = rest.split_once(" bytes").expect("bytes");
            answers.functions.push(AnsweredFunction {
                start: hexadecimal(start),
                size: decimal(size),
                masked: false,
                signal: rest.split_once("attr = ").is_some_and(|(_, attributes)| {
                    attributes
                        .split(',')
                        .next()
                        .unwrap_or_default()
                        .contains('S')
                }),
                rows: Vec::new(),
            });
            continue;
        }
        let Some(function) = answers.functions.last_mut() else {
            continue;
        };
        let line = line.trim();
        if line.starts_with("STARTPC[m]") {
            function.masked = true;
        } else if let Some((start, rest)) = line.split_at_checked(16) {
            if start.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let base = if function.masked { 0 } else { function.start };
                let rule = Text(rest).rule(section, function.signal);
                function.rows.push((hexadecimal(start) - base, rule));
            }
        }
    }
    answers
}

/// Parses the output of tests/oracles/libsframe.c.
pub(crate) fn libsframe(text: &str, section: &Section) -> Answers {
    let mut answers = Answers::default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().expect("a word");
        match word() {
            "function" => {
                let start = hexadecimal(word());
                let (size, rest) = word().split_once(' ').expect("flags");
                answers.functions.push(AnsweredFunction {
                    start,
                    size: decimal(size),
                    masked: rest.contains("repeats"),
                    signal: rest.contains("signal"),
                    rows: Vec::new(),
                });
            }
            "row" => {
                let function = answers.functions.last_mut().expect("a function");
                let (start, mut text) = (decimal(word()), Text(word()));
                let rule = text.rule(section, function.signal);
                function.rows.push((start, rule));
            }
            "pc" => {
                let signal = answers.functions.last().expect("a function").signal;
                let first = hexadecimal(word());
                let (last, rule) = word().split_once(' ').expect("a rule");
                let rule = (rule != "none").then(|| Text(rule).rule(section, signal));
                found.push((first, hexadecimal(last), rule));
            }
            _ => panic!("{line}"),
        }
    }
    if section.is_sorted() {
        found.sort_by_key(|(first, ..)| *first);
        answers.found = Some(found);
    }
    answers
}

/// Parses the output of `llvm-readobj --sframe`.
pub(crate) fn llvm(text: &str) -> Answers {
    let mut answers = Answers::default();
    let mut in_row = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("FuncDescEntry") {
            in_row = false;
            answers.functions.push(AnsweredFunction {
                start: 0,
                size: 0,
                masked: false,
                signal: false,
                rows: Vec::new(),
            });
            continue;
        }
        let Some(function) = answers.functions.last_mut() else {
            continue;
        };
        if line.starts_with("Frame Row Entry") {
            in_row = true;
            function.rows.push((0, Rule::OUTERMOST));
            continue;
        }
        let Some((key, value)) = line.split_once(": ") else {
            continue;
        };
        if !in_row {
            match key {
                "PC" | "Start Address" => function.start = hexadecimal(value),
                "Size" => function.size = hexadecimal(value),
                "FDE Type" => function.masked = value.starts_with("PCMask"),
                _ => {}
            }
            continue;
        }
        let base = if function.masked { 0 } else { function.start };
        let (start, rule) = function.rows.last_mut().expect("a row");
        match key {
            "Start Address" => *start = hexadecimal(value) - base,
            "Return Address Signed" => rule.mangled = value == "Yes",
            "Base Register" if value.starts_with("FP") => rule.cfa.base = Base::Fp,
            "CFA Offset" => {
                rule.cfa.offset = decimal(value);
                (rule.ra, rule.fp) = (Location::Unchanged, Location::Unchanged);
            }
            "RA Offset" => rule.ra = Location::AtCfa(decimal(value)),
            "FP Offset" => rule.fp = Location::AtCfa(decimal(value)),
            _ => {}
        }
    }
    answers
}

/// The rest of a text that is being parsed.
struct Text<'a>(&'a str);

impl Text<'_> {
    /// Parses a rule in binutils' notation: CFA, frame pointer and return address, not always
    /// separated.
    fn rule(&mut self, section: &Section, signal: bool) -> Rule {
        let whole = self.0;
        self.0 = self.0.trim_start();
        let mut rule = Rule {
            signal,
            ..Rule::OUTERMOST
        };
        if self.0.starts_with("RA undefined") {
            return rule;
        }
        let fixed = match section.fixed_ra_offset() {
            0 => Location::Unchanged,
            offset => Location::AtCfa(offset.into()),
        };
        let abi = section.abi();
        rule.cfa = match self.location(abi, fixed) {
            Some(Location::Of(base, offset)) => Cfa {
                base,
                offset,
                deref: false,
                plus: 0,
            },
            Some(Location::At(base, offset)) => Cfa {
                base,
                offset,
                deref: true,
                plus: 0,
            },
            other => panic!("`{whole}`: {other:?}"),
        };
        rule.fp = self
            .location(abi, fixed)
            .unwrap_or_else(|| panic!("`{whole}`"));
        rule.ra = self
            .location(abi, fixed)
            .unwrap_or_else(|| panic!("`{whole}`"));
        // Version 2.40 prints `u` for the header's fixed offset.
        if rule.ra == Location::Unchanged {
            rule.ra = fixed;
        }
        rule.mangled = self.eat("[s]");
        assert_eq!(self.0.trim(), "", "`{whole}`");
        rule
    }

    fn eat(&mut self, prefix: &str) -> bool {
        match self.0.strip_prefix(prefix) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn location(&mut self, abi: Abi, fixed: Location) -> Option<Location> {
        self.0 = self.0.trim_start();
        if self.eat("u") {
            return Some(Location::Unchanged);
        }
        // A zero word in place of a pair is printed as `U`.
        if !self.0.starts_with("fp") && self.eat("f") || self.eat("U") {
            return Some(fixed);
        }
        if self.eat("=c") {
            return Some(Location::OfCfa(self.number()?));
        }
        if self.eat("c") {
            return Some(Location::AtCfa(self.number()?));
        }
        let deref = self.eat("(");
        let base = if self.eat("sp") {
            Base::Sp
        } else if self.eat("fp") {
            Base::Fp
        } else if self.eat("r") {
            let end = self.0.find(|c: char| !c.is_ascii_digit())?;
            let register = self.0[..end].parse().ok()?;
            self.0 = &self.0[end..];
            base(abi, register)
        } else {
            return None;
        };
        let offset = self.number()?;
        if !deref {
            return Some(Location::Of(base, offset));
        }
        self.eat(")").then_some(Location::At(base, offset))
    }

    fn number(&mut self) -> Option<i32> {
        let end = self.0[1..]
            .find(|c: char| !c.is_ascii_digit())
            .map_or(self.0.len(), |end| end + 1);
        let value = self.0[..end].parse().ok();
        self.0 = &self.0[end..];
        value
    }
}

/// The register of this DWARF number.
pub(crate) fn base(abi: Abi, register: u8) -> Base {
    if register == abi.sp() {
        Base::Sp
    } else if register == abi.fp() {
        Base::Fp
    } else {
        Base::Register(register)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section for AMD64 without functions: the parsers use only its header.
    const EMPTY: &[u8] = &[
        0xe2, 0xde, 3, 5, 3, 0, 0xf8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    fn section() -> Section {
        Section::open(EMPTY, 0, EMPTY.len() as u64).unwrap()
    }

    fn sp(offset: i32, fp: Location) -> Rule {
        Rule::amd64(Base::Sp, offset, fp)
    }

    #[test]
    fn rules_of_binutils_are_parsed() {
        let rule = |text| Text(text).rule(&section(), false);
        assert_eq!(
            rule("  sp+8      u         f   "),
            sp(8, Location::Unchanged)
        );
        // Version 2.40 has no `f`, and no column is wide enough for all numbers.
        assert_eq!(
            rule("  sp+70000c-70000 u"),
            sp(70000, Location::AtCfa(-70000))
        );
        let flexible = rule("  (fp-16)   (fp+0)    U");
        assert_eq!(
            (flexible.cfa.base, flexible.cfa.offset, flexible.cfa.deref),
            (Base::Fp, -16, true)
        );
        assert_eq!(flexible.fp, Location::At(Base::Fp, 0));
        assert_eq!(flexible.ra, Location::AtCfa(-8));
        assert_eq!(rule("  r10+0 r17+0 =c-4").cfa.base, Base::Register(10));
        assert_eq!(rule("  r10+0 r17+0 =c-4").ra, Location::OfCfa(-4));
        assert!(rule("  sp+16 c-16 c-8[s]").mangled);
        assert!(rule("  RA undefined").is_outermost());
    }

    #[test]
    fn functions_of_binutils_are_parsed() {
        let text = "
    func idx [0]: pc = 0x1030, size = 32 bytes
    STARTPC[m]      CFA       FP        RA
    0000000000000000  sp+8      u         f
    000000000000000b  sp+16     u         f

    func idx [12]: pc = 0x2000, size = 3 bytes, attr = \"S,F\"
    STARTPC         CFA       FP        RA
    0000000000002001  sp+8      u         f
";
        let answers = binutils(text, &section());
        let [plt, signal] = &answers.functions[..] else {
            panic!("{answers:?}");
        };
        assert_eq!(
            (plt.start, plt.size, plt.masked, plt.signal),
            (0x1030, 32, true, false)
        );
        assert_eq!(plt.rule(10), Some(sp(8, Location::Unchanged)));
        assert_eq!(plt.rule(11), Some(sp(16, Location::Unchanged)));
        assert_eq!(
            (signal.start, signal.masked, signal.signal),
            (0x2000, false, true)
        );
        assert_eq!(signal.rule(0), None);
        assert!(signal.rule(1).is_some_and(|rule| rule.signal));
    }

    #[test]
    fn failed_searches_of_libsframe_are_none() {
        let text =
            "function 0x10 4 repeats\nrow 0 sp+8 u f\npc 0x10 0x10 none\npc 0x11 0x13 sp+8 u f";
        let answers = libsframe(text, &section());
        assert!(answers.functions[0].masked);
        assert_eq!(answers.find(0xf), None);
        assert_eq!(answers.find(0x10), None);
        assert_eq!(answers.find(0x13), Some(sp(8, Location::Unchanged)));
        assert_eq!(answers.find(0x14), None);
    }

    #[test]
    fn rows_of_llvm_are_parsed() {
        let text = "
    FuncDescEntry [0] {
      PC {
        Relocation: R_X86_64_PC32
        Start Address: 0x10
      }
      Size: 0x3B
      FDE Type: PCInc (0x0)
      FREs [
        Frame Row Entry {
          Start Address: 0x14
          Return Address Signed: No
          Base Register: FP (0x0)
          CFA Offset: 16
          RA Offset: -8
          FP Offset: -16
";
        let answers = llvm(text);
        let function = &answers.functions[0];
        assert_eq!((function.start, function.size), (0x10, 0x3b));
        assert_eq!(
            function.rows,
            [(4, Rule::amd64(Base::Fp, 16, Location::AtCfa(-16)))]
        );
    }
}
