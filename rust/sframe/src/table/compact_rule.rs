// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compact rules: rules in one word. Nearly all rules fit into one word: the CFA is a register plus
//! an offset, the return address is where a [`usual_rule`] has it, and the frame pointer is saved
//! on the stack or unchanged.

use crate::sframe::{
    arch::machine::{
        usual_rule,
        HAS_COMPACT_RULES, //
    },
    rule::{
        Base,
        Extra,
        Location,
        Rule,
        SavedRbx, //
    }, //
};

/// One word: a compact rule, no rule, the mark of the outermost frame, or the number of a rule that
/// is not compact.
///
/// Bits 0 to 15, signed: the offset from the CFA to the saved frame pointer, in bytes; or the
/// number of a rule that is not compact. Bits 16 to 19: the flags below. Bits 20 to 22:
/// [`SavedRbx`]. Bits 32 to 63: the CFA's offset from its base register, in bytes; 0 if the rule is
/// not compact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactRule(u64);

/// Flag: the CFA's base register is the frame pointer. Without this flag the base register is the
/// stack pointer.
pub(super) const BY_FP: u64 = 1 << 16;

/// Flag: the frame pointer is saved. Without this flag the frame pointer is unchanged.
pub(super) const SAVES_FP: u64 = 1 << 17;

/// Flag: the frame is the outermost frame.
pub(super) const IS_OUTERMOST: u64 = 1 << 18;

/// Flag: the rule is not compact, and the word contains the rule's number.
const IS_OTHER: u64 = 1 << 19;

/// The place of [`SavedRbx`].
const RBX_SHIFT: u32 = 20;

/// [`usual_rule`] with the bits of [`SavedRbx`].
#[inline]
const fn usual_with(base: Base, offset: i32, fp: Location, rbx: u8) -> Rule {
    Rule {
        extra: Extra {
            rbx: SavedRbx(rbx),
            ..Extra::NONE
        },
        ..usual_rule(base, offset, fp)
    }
}

impl CompactRule {
    /// The word that stands for no rule.
    pub const NONE: CompactRule = CompactRule(0);

    /// The compact form of a rule; `None` if the rule has none.
    pub fn of(rule: &Rule) -> Option<CompactRule> {
        if *rule == Rule::OUTERMOST {
            return Some(CompactRule(IS_OUTERMOST));
        }
        let base = match rule.cfa.base {
            Base::Sp => 0,
            Base::Fp => BY_FP,
            Base::Register(_) => return None,
        };
        let fp = match rule.fp {
            Location::Unchanged => 0,
            Location::AtCfa(offset) => SAVES_FP | u64::from(i16::try_from(offset).ok()? as u16),
            _ => return None,
        };
        let cfa = u32::try_from(rule.cfa.offset).ok()?;
        let SavedRbx(rbx) = rule.extra.rbx;
        let is_compact = HAS_COMPACT_RULES
            && cfa != 0
            && cfa % 8 == 0
            && *rule == usual_with(rule.cfa.base, rule.cfa.offset, rule.fp, rbx);
        let rbx = u64::from(rbx) << RBX_SHIFT;
        is_compact.then_some(CompactRule((u64::from(cfa) << 32) | base | fp | rbx))
    }

    /// The word that stands for a rule of each byte of a page: see
    /// [`MOST_ROWS`](crate::sframe::table::lookup::MOST_ROWS). No rule that is not compact has this
    /// number. The fast path ends at this word.
    pub(super) const DENSE: CompactRule = CompactRule::other(u16::MAX);

    /// The word for rule `number` of the rules that are not compact.
    pub const fn other(number: u16) -> CompactRule {
        CompactRule(IS_OTHER | number as u64)
    }

    /// The rule that is not compact for which the word stands, if there is one. `others` contains
    /// these rules, by number.
    pub(super) fn other_rule(self, others: &[Rule]) -> Option<&Rule> {
        self.has(IS_OTHER)
            .then(|| others.get(usize::from(self.0 as u16)))?
    }

    /// The rule for which the word stands, if there is one. `others` contains the rules that are
    /// not compact, by number.
    pub fn rule(self, others: &[Rule]) -> Option<Rule> {
        if self.has(IS_OTHER) {
            return self.other_rule(others).copied();
        }
        if self.has(IS_OUTERMOST) {
            return Some(Rule::OUTERMOST);
        }
        let base = if self.has(BY_FP) { Base::Fp } else { Base::Sp };
        let fp = if self.has(SAVES_FP) {
            Location::AtCfa(self.flags().fp() as i32)
        } else {
            Location::Unchanged
        };
        let rbx = (self.0 >> RBX_SHIFT) as u8 & const { (1 << SavedRbx::BITS) - 1 };
        (self != CompactRule::NONE).then(|| usual_with(base, self.cfa() as i32, fp, rbx))
    }

    /// The word as a number. Different compact rules have different words.
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// The CFA's offset from its base register, in bytes.
    #[inline(always)]
    pub(super) const fn cfa(self) -> u64 {
        self.0 >> 32
    }

    /// The half of the word that has the flags.
    #[inline(always)]
    pub(super) const fn flags(self) -> RuleFlags {
        RuleFlags(self.0 as u32)
    }

    #[inline(always)]
    pub(super) const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
}

/// Bits 0 to 31 of a compact rule: all but the CFA's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct RuleFlags(u32);

impl RuleFlags {
    /// No flag.
    pub(super) const NONE: Self = Self(0);

    #[inline(always)]
    pub(super) const fn has(self, flag: u64) -> bool {
        self.0 & flag as u32 != 0
    }

    #[inline(always)]
    pub(super) const fn with(self, flag: u64) -> Self {
        Self(self.0 | flag as u32)
    }

    /// The offset from the CFA to the saved frame pointer, in bytes.
    #[inline(always)]
    pub(super) const fn fp(self) -> i64 {
        self.0 as i16 as i64
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sframe::rule::Cfa;

    pub(in crate::sframe::table) fn drawn(state: &mut u64) -> u64 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A random rule. Most rules are compact.
    pub(in crate::sframe::table) fn rule(state: &mut u64) -> Rule {
        let offset = 8 * (1 + drawn(state) % 16) as i32;
        let fp = match drawn(state) % 8 {
            0..4 => Location::Unchanged,
            4..7 => Location::AtCfa(-16 - 8 * (drawn(state) % 4) as i32),
            _ => Location::AtCfa(drawn(state) as i32 % 100_000),
        };
        let mut rule = Rule::amd64(Base::Sp, offset, fp);
        rule.extra.rbx = SavedRbx(drawn(state) as u8 & 7);
        match drawn(state) % 32 {
            0 => return Rule::OUTERMOST,
            1 => rule.cfa.offset = drawn(state) as i32,
            2 => rule.cfa.base = Base::Register(3),
            3 => rule.cfa.deref = true,
            4 => rule.ra = Location::AtCfa(-16),
            5 => rule.fp = Location::LOST,
            6 => rule.signal = true,
            7..12 => rule.cfa.base = Base::Fp,
            _ => {}
        }
        rule
    }

    #[test]
    fn a_compact_rule_is_the_rule() {
        let mut state = 1;
        let mut compact = 0;
        for _ in 0..100_000 {
            let rule = rule(&mut state);
            if let Some(word) = CompactRule::of(&rule) {
                assert_eq!(word.rule(&[]), Some(rule));
                compact += 1;
            }
            assert_eq!(
                CompactRule::other(1).rule(&[Rule::OUTERMOST, rule]),
                Some(rule)
            );
        }
        assert!(compact > 70_000, "{compact}");
        assert_eq!(CompactRule::NONE.rule(&[]), None);
        let zero = Cfa {
            base: Base::Sp,
            offset: 0,
            deref: false,
            plus: 0,
        };
        let mut rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);
        rule.cfa = zero;
        assert_eq!(CompactRule::of(&rule), None);
    }
}
