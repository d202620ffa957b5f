// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Nearly all rules of AMD64 are plain: the CFA is a register plus something, the return address is
//! right below it, and the frame pointer is saved on the stack or has not been touched. Walks by them
//! alone take a fraction of what others take.
//!
//! All that is not as plain as that ends such a walk where it is, for others to go on: nothing is
//! decided here that [`unwind::step`](super::unwind::step) would decide otherwise.

use super::{
    rule::{
        Base,
        Location,
        Rule, //
    },
    unwind::Frame, //
};

/// A plain rule in a word; or that there is no rule, or no caller; or the number of some other rule.
///
/// From the lowest bit on: in 16 bits and signed, where the frame pointer is saved, from the CFA on, or
/// the number of another rule; the flags below; from bit 32 on, what is to be added for the CFA, which
/// is 0 for all that is not plain. Both are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain(u64);

/// The CFA counts from the frame pointer, not from the stack pointer.
const BY_FP: u64 = 1 << 16;
/// The frame pointer is saved.
const SAVES_FP: u64 = 1 << 17;
/// There is no caller.
const IS_OUTERMOST: u64 = 1 << 18;
/// It is another rule.
const IS_OTHER: u64 = 1 << 19;

impl Plain {
    /// There is no rule.
    pub const NONE: Plain = Plain(0);

    /// A rule as a plain one; `None` if it is another one.
    pub fn of(rule: &Rule) -> Option<Plain> {
        if *rule == Rule::OUTERMOST {
            return Some(Plain(IS_OUTERMOST));
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
        let is_plain = cfa != 0
            && cfa % 8 == 0
            && *rule == Rule::amd64(rule.cfa.base, rule.cfa.offset, rule.fp);
        is_plain.then_some(Plain((u64::from(cfa) << 32) | base | fp))
    }

    /// The other rule of this number.
    pub const fn other(number: u16) -> Plain {
        Plain(IS_OTHER | number as u64)
    }

    /// The rule, if there is one, where `others` has those that are not plain, by number.
    pub fn rule(self, others: &[Rule]) -> Option<Rule> {
        if self.has(IS_OTHER) {
            return others.get(usize::from(self.0 as u16)).copied();
        }
        if self.has(IS_OUTERMOST) {
            return Some(Rule::OUTERMOST);
        }
        let base = if self.has(BY_FP) { Base::Fp } else { Base::Sp };
        let fp = if self.has(SAVES_FP) {
            Location::AtCfa(i32::from(self.0 as i16))
        } else {
            Location::Unchanged
        };
        (self != Plain::NONE).then(|| Rule::amd64(base, self.cfa() as i32, fp))
    }

    /// The word: rules that differ have words that differ.
    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// What is to be added for the CFA, in bytes.
    #[inline(always)]
    const fn cfa(self) -> u64 {
        self.0 >> 32
    }

    /// What is to be added to the CFA for where the frame pointer is saved, in bytes.
    #[inline(always)]
    const fn fp(self) -> i64 {
        self.0 as i16 as i64
    }

    #[inline(always)]
    const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
}

/// Rows of code.
pub trait Rows {
    /// Those of a part of the code.
    type Block<'a>: Block
    where
        Self: 'a;

    /// Those for the code at a distance in bytes from where the rows begin; `None` if that is none of
    /// their code.
    fn block(&self, distance: u64) -> Option<Self::Block<'_>>;
}

/// Rows of a part of code.
pub trait Block {
    /// What they say of the code at that distance.
    fn plain(&self, distance: u64) -> Plain;
}

/// Code and its rows.
#[derive(Debug)]
pub struct Code<'a, R> {
    /// What is to be added to a run-time address for its distance from where the rows begin.
    pub to_rows: u64,
    /// The rows. All that they have a block for has to be code at hand.
    pub rows: &'a R,
}

/// The memory of a process, as far as it is at hand.
pub trait Words {
    /// The eight bytes at a run-time address, which may have any value and alignment; 0 if they are zero, or
    /// cannot be read.
    fn word(&self, address: u64) -> u64;
}

/// The code of a process, as far as its rows are at hand.
pub trait Codes<'a> {
    /// Its rows.
    type Rows: Rows + 'a;

    /// What there is at a run-time address.
    fn at(&mut self, address: u64) -> Option<Code<'a, Self::Rows>>;
}

/// How far a walk by plain rules has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// The last frame.
    pub frame: Frame,
    /// Where its frame pointer is, at a run-time address, and has not been read; 0 if the frame has it.
    pub fp_at: u64,
    /// Whether it is the outermost frame.
    pub is_outermost: bool,
}

impl Walked {
    /// To this frame.
    pub const fn to(frame: Frame) -> Walked {
        Walked {
            frame,
            fp_at: 0,
            is_outermost: false,
        }
    }
}

/// Walks on from a frame by plain rules alone, as far as that goes and there is room. The return addresses
/// of all frames that are found are in `room`, from its start on; returns how many they are.
///
/// `is_exact` says that the first frame has not called, but is to be looked up at its very PC. Any context
/// that `memory` and `codes` are for.
#[inline]
pub fn walk<'a, C: Codes<'a>, M: Words>(
    walked: &mut Walked,
    is_exact: bool,
    codes: &mut C,
    memory: &M,
    room: &mut [u64],
) -> usize {
    let Frame { pc, mut sp, mut fp } = walked.frame;
    // What is added to it is a multiple of eight.
    if sp % 8 != 0 {
        return 0;
    }
    let at = pc.wrapping_sub(u64::from(!is_exact));
    let Some((mut code, mut distance, mut block)) = find(codes, at) else {
        return 0;
    };
    // Where it is saved, if it has not been read yet: few rules need it.
    let mut fp_at = walked.fp_at;
    let len = room.len();
    let mut slots = room.iter_mut();
    loop {
        let rule = block.plain(distance);
        let base = if rule.has(BY_FP) {
            if fp_at != 0 {
                match memory.word(fp_at) {
                    0 => break,
                    word => fp = word,
                }
                fp_at = 0;
            }
            // What is added has 31 bits.
            if fp > i64::MAX as u64 || fp % 8 != 0 {
                break;
            }
            fp
        } else {
            sp
        };
        let cfa = base.wrapping_add(rule.cfa());
        // Where the rule is not plain it is so.
        if cfa <= sp {
            walked.is_outermost = rule.has(IS_OUTERMOST);
            break;
        }
        // Where that is zero, or cannot be read, there is no code.
        let ra = memory.word(cfa.wrapping_sub(8));
        distance = ra.wrapping_add(code.to_rows).wrapping_sub(1);
        match code.rows.block(distance) {
            Some(next) => block = next,
            None => match find(codes, ra.wrapping_sub(1)) {
                Some(next) => (code, distance, block) = next,
                None => break,
            },
        }
        let Some(slot) = slots.next() else {
            break;
        };
        *slot = ra;
        if rule.has(SAVES_FP) {
            fp_at = cfa.wrapping_add_signed(rule.fp());
        }
        sp = cfa;
    }
    walked.frame.sp = sp;
    walked.frame.fp = fp;
    walked.fp_at = fp_at;
    let frames = len.wrapping_sub(slots.len());
    if let Some(pc) = frames.checked_sub(1).and_then(|last| room.get(last)) {
        walked.frame.pc = *pc;
    }
    frames
}

/// Code, a distance in it, and the rows there.
type Found<'a, R> = (Code<'a, R>, u64, <R as Rows>::Block<'a>);

/// What there is at a run-time address.
#[inline(always)]
fn find<'a, C: Codes<'a>>(codes: &mut C, at: u64) -> Option<Found<'a, C::Rows>> {
    let code = codes.at(at)?;
    let distance = at.wrapping_add(code.to_rows);
    let block = code.rows.block(distance)?;
    Some((code, distance, block))
}

#[cfg(test)]
mod tests {
    use super::super::{
        abi::Abi,
        bytes::Fault,
        rule::Cfa,
        unwind::{
            self,
            Lost,
            Memory,
            Step, //
        }, //
    };
    use super::*;
    use std::vec::Vec;

    const CODE: u64 = 0x40_0000;
    const SIZE: u64 = 0x1000;
    const STACK: u64 = 0x7ffd_0000_0000;

    fn drawn(state: &mut u64) -> u64 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A rule; most of them are plain.
    fn rule(state: &mut u64) -> Rule {
        let offset = 8 * (1 + drawn(state) % 16) as i32;
        let fp = match drawn(state) % 8 {
            0..4 => Location::Unchanged,
            4..7 => Location::AtCfa(-16 - 8 * (drawn(state) % 4) as i32),
            _ => Location::AtCfa(drawn(state) as i32 % 100_000),
        };
        let mut rule = Rule::amd64(Base::Sp, offset, fp);
        match drawn(state) % 32 {
            0 => return Rule::OUTERMOST,
            1 => rule.cfa.offset = drawn(state) as i32,
            2 => rule.cfa.base = Base::Register(3),
            3 => rule.cfa.deref = true,
            4 => rule.ra = Location::AtCfa(-16),
            5 => rule.fp = Location::Undefined,
            6 => rule.signal = true,
            7..12 => rule.cfa.base = Base::Fp,
            _ => {}
        }
        rule
    }

    #[test]
    fn a_plain_rule_is_the_rule() {
        let mut state = 1;
        let mut plain = 0;
        for _ in 0..100_000 {
            let rule = rule(&mut state);
            if let Some(word) = Plain::of(&rule) {
                assert_eq!(word.rule(&[]), Some(rule));
                plain += 1;
            }
            assert_eq!(Plain::other(1).rule(&[Rule::OUTERMOST, rule]), Some(rule));
        }
        assert!(plain > 70_000, "{plain}");
        assert_eq!(Plain::NONE.rule(&[]), None);
        let zero = Cfa {
            base: Base::Sp,
            offset: 0,
            deref: false,
            plus: 0,
        };
        let mut rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);
        rule.cfa = zero;
        assert_eq!(Plain::of(&rule), None);
    }

    /// A rule for each 16 bytes of code, and memory that is random, too.
    struct World {
        rules: Vec<Rule>,
        seed: u64,
    }

    impl World {
        fn rule_at(&self, pc: u64) -> Option<Rule> {
            let distance = pc.wrapping_sub(CODE);
            self.rules.get((distance / 16) as usize).copied()
        }
    }

    impl Rows for World {
        type Block<'a> = (&'a World, u64);

        fn block(&self, distance: u64) -> Option<(&World, u64)> {
            (distance < SIZE).then_some((self, distance / 16))
        }
    }

    impl Block for (&World, u64) {
        fn plain(&self, distance: u64) -> Plain {
            assert_eq!(self.1, distance / 16);
            Plain::of(&self.0.rules[self.1 as usize]).unwrap_or(Plain::other(0))
        }
    }

    impl<'a> Codes<'a> for &'a World {
        type Rows = World;

        fn at(&mut self, address: u64) -> Option<Code<'a, World>> {
            (address.wrapping_sub(CODE) < SIZE).then_some(Code {
                to_rows: CODE.wrapping_neg(),
                rows: *self,
            })
        }
    }

    impl Words for World {
        fn word(&self, address: u64) -> u64 {
            self.read_word(address).unwrap_or_default()
        }
    }

    impl Memory for World {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            let mut state = address ^ self.seed;
            drawn(&mut state);
            match drawn(&mut state) % 64 {
                0 => Err(Fault),
                1 => Ok(0),
                2 => Ok(drawn(&mut state)),
                // Of the frame pointer, and of what is used as that.
                3..16 => Ok((address & !7) + 8 * (drawn(&mut state) % 64)),
                _ => Ok(CODE + drawn(&mut state) % SIZE),
            }
        }
    }

    #[test]
    fn it_leads_where_each_step_leads() {
        let mut state = 88_172_645_463_325_252;
        let (mut frames, mut longest, mut outermost) = (0, 0, 0);
        for _ in 0..20_000 {
            let world = World {
                rules: (0..SIZE / 16).map(|_| rule(&mut state)).collect(),
                seed: drawn(&mut state) | 1,
            };
            let start = Frame {
                pc: CODE + drawn(&mut state) % SIZE,
                sp: STACK + 8 * (drawn(&mut state) % 64),
                fp: STACK + 8 * (drawn(&mut state) % 128),
            };
            let is_exact = drawn(&mut state) % 2 == 0;
            let most = (drawn(&mut state) % 24) as usize;

            let mut room = [0; 24];
            let mut walked = Walked::to(start);
            let found = walk(
                &mut walked,
                is_exact,
                &mut &world,
                &world,
                &mut room[..most],
            );
            frames += found;
            longest = longest.max(found);
            outermost += usize::from(walked.is_outermost);

            // The same by steps. What it did not need it has not read.
            let mut frame = start;
            let mut exact = is_exact;
            for pc in &room[..found] {
                let rule = world.rule_at(frame.pc - u64::from(!exact)).unwrap();
                let step = unwind::step(Abi::Amd64, &rule, &frame, &Lost, &world);
                match step {
                    Ok(Step::Caller(caller)) => frame = caller,
                    // Of two words that a step reads this one may be missing.
                    Err(unwind::Stop::Fault { .. }) => {
                        let mut plain = rule;
                        plain.fp = Location::Unchanged;
                        let step = unwind::step(Abi::Amd64, &plain, &frame, &Lost, &world);
                        let Ok(Step::Caller(caller)) = step else {
                            panic!("{step:?}");
                        };
                        frame = Frame { fp: 0, ..caller };
                    }
                    other => panic!("{other:?} in {rule:?} {frame:x?}"),
                }
                assert_eq!(frame.pc, *pc);
                exact = false;
            }
            assert_eq!((walked.frame.pc, walked.frame.sp), (frame.pc, frame.sp));
            let fp = match walked.fp_at {
                0 => walked.frame.fp,
                at => world.word(at),
            };
            assert_eq!(fp, frame.fp);

            // And it ends where it has to.
            let Some(rule) = world.rule_at(frame.pc - u64::from(!exact)) else {
                assert_eq!((found, frame.pc), (0, CODE));
                continue;
            };
            assert!(!walked.is_outermost || rule.is_outermost());
            if found == most || Plain::of(&rule).is_none() || rule.is_outermost() {
                continue;
            }
            let step = unwind::step(Abi::Amd64, &rule, &frame, &Lost, &world);
            let goes_on = match step {
                Ok(Step::Caller(caller)) => world.rule_at(caller.pc - 1).is_some(),
                _ => false,
            };
            assert!(!goes_on, "{rule:?} {frame:x?} {step:?}");
        }
        assert!(
            longest > 10 && frames > 15_000 && outermost > 500,
            "{longest} {frames} {outermost}"
        );
    }
}
