// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The fast path: a walk by compact rules alone, which takes a fraction of the time of other walks.
//!
//! Any other rule ends the walk where it is, for the caller to go on: nothing is decided here that
//! [`unwind::step`](super::super::unwind::step::step) would decide otherwise.

use super::{
    super::unwind::step::Frame,
    compact_rule::{
        CompactRule,
        BY_FP,
        IS_OUTERMOST,
        SAVES_FP, //
    }, //
};

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
    fn compact_rule(&self, distance: u64) -> CompactRule;
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

/// How far a walk by compact rules has come.
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

/// Walks on from a frame by compact rules alone, as far as that goes and there is room. The return addresses
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
        let rule = block.compact_rule(distance);
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
        // Where the rule is not compact it is so.
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
    use super::{
        super::{
            super::{
                format::{
                    abi::Abi,
                    bytes::Fault, //
                },
                unwind::{
                    self,
                    rule::{
                        Location,
                        Rule, //
                    },
                    Lost,
                    Memory,
                    Step, //
                }, //
            },
            compact_rule::tests::{
                drawn,
                rule, //
            }, //
        },
        *, //
    };
    use std::vec::Vec;

    const CODE: u64 = 0x40_0000;

    const SIZE: u64 = 0x1000;

    const STACK: u64 = 0x7ffd_0000_0000;

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
        fn compact_rule(&self, distance: u64) -> CompactRule {
            assert_eq!(self.1, distance / 16);
            CompactRule::of(&self.0.rules[self.1 as usize]).unwrap_or(CompactRule::other(0))
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
                        let mut unchanged = rule;
                        unchanged.fp = Location::Unchanged;
                        let step = unwind::step(Abi::Amd64, &unchanged, &frame, &Lost, &world);
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
            if found == most || CompactRule::of(&rule).is_none() || rule.is_outermost() {
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
