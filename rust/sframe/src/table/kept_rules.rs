// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Kept rules: the compact rules that the walks of one CPU have found for return addresses.
//!
//! A kept rule is the rule of the table for its return address. A rule is a function of the return
//! address, of the mapping there, and of the table of the mapped file:
//!
//! * The whole return address is compared, together with a generation: see [`KeptRule`].
//! * A generation belongs to one process, in one state of the tables, and to the mappings of its
//!   kept rules. Whoever gives the generation to [`KeptRules::new`] takes a new one when the tables
//!   change, when a mapping of kept rules is not found again after a change, when a file has been
//!   written to, and when the code of a kept rule is checked for writes no more.
//! * Only rules of code that each walk checks are kept: see
//!   [`CodeRange::may_keep`](super::fast_path::CodeRange::may_keep).

use crate::sframe::table::compact_rule::{
    CompactRule,
    RuleFlags,
    BY_FP,
    IS_OUTERMOST, //
};
use core::cell::Cell;

/// The number of places for kept rules.
pub const PLACES: usize = 4096;

/// A place for a rule. Its key is the return address plus 16 times the generation, modulo 2^64. The
/// kernel module allocates places as `struct sfu_kept_rule`.
///
/// The rule is in the place of bits 4 to 15 of the return address plus 32 times the generation. So
/// the rules of processes with equal addresses, as after `fork`, have different places.
///
/// No two rules have an equal key and one place. For them, the address plus 16 times the generation
/// and the address plus 32 times the generation would be equal in bits 4 to 15. So 16 times the
/// generation would be, too. Generations are smaller than [`PLACES`], so the generations would be
/// equal, and the addresses. 0 is no generation of a walk: it is that of an empty place.
#[derive(Debug)]
#[repr(C)]
pub struct KeptRule {
    key: Cell<u64>,
    // The halves of a compact rule.
    flags: Cell<RuleFlags>,
    cfa: Cell<u32>,
}

impl KeptRule {
    /// The empty place with this number.
    pub const fn empty(place: usize) -> Self {
        Self {
            key: Cell::new((place as u64) << 4),
            flags: Cell::new(RuleFlags::NONE),
            cfa: Cell::new(0),
        }
    }

    /// The flags of the rule, and the CFA's offset from its base register, in bytes: 0 only for the
    /// mark of the outermost frame, see [`KeptRules::keep`].
    #[inline(always)]
    pub(super) fn parts(&self) -> (RuleFlags, u64) {
        (self.flags.get(), self.cfa.get().into())
    }
}

/// The kept rules of one CPU, for a walk.
#[derive(Clone, Copy, Debug)]
pub struct KeptRules<'a> {
    places: &'a [KeptRule; PLACES],
    /// 16 times the generation.
    step: u64,
}

impl<'a> KeptRules<'a> {
    /// The rules of this generation, from 1 to [`PLACES`] - 1.
    #[inline(always)]
    pub const fn new(places: &'a [KeptRule; PLACES], generation: u32) -> Self {
        Self {
            places,
            step: (generation as u64) << 4,
        }
    }

    /// The place of the rule for the code before the run-time address `ra`.
    #[inline(always)]
    fn place(self, ra: u64) -> Option<&'a KeptRule> {
        let key = ra.wrapping_add(self.step);
        self.places
            .get((key.wrapping_add(self.step) >> 4) as usize % PLACES)
    }

    /// The kept rule for the code before the run-time address `ra`, if there is one.
    #[inline(always)]
    pub(super) fn rule(self, ra: u64) -> Option<&'a KeptRule> {
        let place = self.place(ra)?;
        (place.key.get() == ra.wrapping_add(self.step)).then_some(place)
    }

    /// Keeps a rule with a CFA, or the mark of the outermost frame, for the code before the
    /// run-time address `ra`. The mark gets the flag of a rule by the frame pointer, so that loops
    /// over other rules end at it.
    #[inline(always)]
    pub(super) fn keep(self, ra: u64, rule: CompactRule) {
        if let Some(place) = self.place(ra) {
            place.key.set(ra.wrapping_add(self.step));
            let is_outermost = rule.flags().has(IS_OUTERMOST);
            let added = if is_outermost { BY_FP } else { 0 };
            place.flags.set(rule.flags().with(added));
            place.cfa.set(rule.cfa() as u32);
        }
    }
}

/// Whether walks of a process find two thirds of their rules kept. Where they do not, as in a
/// program that has more return addresses than there are places, kept rules cost more than they
/// save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance(u32);

impl Balance {
    /// The balance from which on walks keep no rules. A process that begins may miss each of its
    /// rules once.
    const MOST: u32 = 4096;
    /// What a walk without kept rules takes from the balance: few of a hundred walks try again.
    const RETRY: u32 = 1;

    /// The balance with this number.
    #[inline(always)]
    pub const fn of(number: u32) -> Self {
        Self(number)
    }

    /// The number, which is 0 at first.
    #[inline(always)]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether the next walk is to use kept rules.
    #[inline(always)]
    pub const fn is_good(self) -> bool {
        self.0 < Self::MOST
    }

    /// The balance after a walk that found `frames` frames and missed the kept rules of `misses` of
    /// them. Two hits save what one miss costs.
    #[inline(always)]
    #[must_use]
    pub const fn after(self, frames: u32, misses: u32) -> Self {
        Self(
            self.0
                .wrapping_add(misses.wrapping_mul(3))
                .saturating_sub(frames),
        )
    }

    /// The balance after a walk that used no kept rules.
    #[inline(always)]
    #[must_use]
    pub const fn after_pause(self) -> Self {
        Self(self.0.saturating_sub(Self::RETRY))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sframe::rule::{
        Base,
        Location,
        Rule, //
    };
    use std::{
        boxed::Box,
        vec::Vec, //
    };

    /// Places without a rule.
    pub(in crate::sframe::table) fn empty_places() -> Box<[KeptRule; PLACES]> {
        let places: Vec<_> = (0..PLACES).map(KeptRule::empty).collect();
        places.into_boxed_slice().try_into().unwrap()
    }

    fn has(rules: KeptRules<'_>, ra: u64) -> bool {
        rules.rule(ra).is_some()
    }

    #[test]
    fn no_address_has_a_rule_in_an_empty_place() {
        let places = empty_places();
        for generation in 1..PLACES as u32 {
            let rules = KeptRules::new(&places, generation);
            let step = u64::from(generation) << 4;
            // The key of the address is that of an empty place, or 0.
            for key in [0, 1, 15, 16, 1 << 4, 0xfff0, 1 << 16, step] {
                let ra = u64::wrapping_sub(key, step);
                assert!(!has(rules, ra), "{generation} {ra:x}");
            }
            assert!(!has(rules, 0));
        }
    }

    #[test]
    fn walks_that_miss_most_rules_use_none_for_a_while() {
        let mut balance = Balance::default();
        let mut tries = 0;
        for _ in 0..10_000 {
            tries += u32::from(balance.is_good());
            balance = match balance.is_good() {
                true => balance.after(125, 80),
                false => balance.after_pause(),
            };
        }
        assert!((50..250).contains(&tries), "{tries}");
        // Most rules are found again: soon, all walks use kept rules.
        for _ in 0..300 {
            balance = match balance.is_good() {
                true => balance.after(125, 10),
                false => balance.after_pause(),
            };
        }
        assert_eq!(balance.number(), 0);
        // A process that begins.
        for misses in (0..60).rev() {
            assert!(balance.is_good());
            balance = balance.after(60, misses);
        }
    }

    #[test]
    fn a_rule_is_found_for_its_address_and_generation_only() {
        let places = empty_places();
        let rule = Rule::amd64(Base::Sp, 40, Location::AtCfa(-16));
        let rule = CompactRule::of(&rule).unwrap();
        let ra = 0x7f12_3456_789a;
        KeptRules::new(&places, 5).keep(ra, rule);
        for generation in 1..PLACES as u32 {
            let rules = KeptRules::new(&places, generation);
            assert_eq!(has(rules, ra), generation == 5, "{generation}");
            // The address that has the same key in this generation has another place.
            let same_key = ra
                .wrapping_add(5 << 4)
                .wrapping_sub(u64::from(generation) << 4);
            assert_eq!(has(rules, same_key), generation == 5, "{generation}");
        }
        let rules = KeptRules::new(&places, 5);
        let found = rules.rule(ra).unwrap();
        assert_eq!(found.parts(), (rule.flags(), rule.cfa()));
        for bit in 0..64 {
            assert!(!has(rules, ra ^ (1 << bit)), "{bit}");
        }
    }
}
