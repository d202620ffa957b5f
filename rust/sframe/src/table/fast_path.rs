// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The fast path: a walk that takes steps by compact rules only, in a fraction of the instructions
//! of other walks.
//!
//! The fast path ends at any other rule, and its caller continues the walk from there. A step of
//! the fast path has the result of [`unwind::step`](crate::sframe::unwind::step::step).

use crate::sframe::{
    arch::machine::RA_BELOW_CFA,
    table::compact_rule::{
        CompactRule,
        BY_FP,
        IS_OUTERMOST,
        SAVES_FP, //
    },
    unwind::step::WordReader, //
};
use core::{
    hint,
    slice, //
};

/// The rows of a range of code.
pub trait RowSource {
    /// The rows of a part of the range: a page in a table.
    type Block<'a>: Block
    where
        Self: 'a;

    /// The block for the code at `distance`: the distance from the start of the range to the
    /// address after the code, in bytes. `None` if there is no block. There may be blocks for a
    /// distance 0 and for distances after the range, without a rule.
    fn block(&self, distance: u64) -> Option<Self::Block<'_>>;

    /// Whether the code at `distance` is in the range: `distance` is not 0, and not greater than
    /// the range's size.
    fn holds(&self, distance: u64) -> bool;
}

/// The rows of a part of a range of code.
pub trait Block {
    /// The compact rule for the code before the run-time address `ra`. [`RowSource::block`] has to
    /// have returned this block for the distance of `ra`. No rule if the range does not hold the
    /// distance.
    fn compact_rule(&self, ra: u64) -> CompactRule;
}

/// A range of code of a process, and its rows.
#[derive(Debug)]
pub struct CodeRange<'a, R> {
    /// The difference between a distance and a return address: the return address plus this value,
    /// modulo 2^64, is the distance of the call's last byte, for [`RowSource::block`].
    pub to_distance: u64,
    /// The rows. All code that `rows` holds has to be mapped.
    pub rows: &'a R,
}

/// The code of a process: the ranges with rows.
pub trait Codes<'a> {
    /// The rows of a range.
    type Rows: RowSource + 'a;

    /// The range that contains the byte before a return address; `None` if no range with rows
    /// contains the byte.
    fn at(&mut self, ra: u64) -> Option<CodeRange<'a, Self::Rows>>;

    /// A range that needs no check any more in this walk, probably for this return address. `None`
    /// if there is probably no such range. Calls no function.
    fn recent(&self, ra: u64) -> Option<CodeRange<'a, Self::Rows>>;
}

/// The state of a walk by compact rules.
#[derive(Clone, Copy, Debug)]
pub struct FastPathState {
    /// The stack pointer of the last frame.
    pub sp: u64,
    /// The frame pointer that the walk read last.
    pub fp: u64,
    /// The run-time address of the last frame's saved frame pointer, if the walk has not read the
    /// frame pointer yet; 0 if `fp` is the frame pointer.
    pub fp_at: u64,
    /// The flags of the last frame's rule, if the walk looked for its caller. The flag of an
    /// outermost frame alone would take more code.
    last_flags: u32,
    /// Whether the byte before the return address of the last frame is in no range that is known to
    /// be code: the byte is before a range, or after it. The caller has to check that byte.
    pub is_outside: bool,
}

impl FastPathState {
    /// The state of a walk whose last frame has these registers.
    #[inline(always)]
    pub const fn to(sp: u64, fp: u64) -> FastPathState {
        FastPathState {
            sp,
            fp,
            fp_at: 0,
            last_flags: 0,
            is_outside: false,
        }
    }

    /// Whether the last frame is the outermost frame.
    #[inline(always)]
    pub const fn is_outermost(&self) -> bool {
        self.last_flags & IS_OUTERMOST as u32 != 0
    }

    /// Whether [`walk`] can walk on: the stack pointer is a multiple of eight. Each step adds a
    /// multiple of eight, so this check is valid for all frames.
    #[inline(always)]
    pub const fn is_aligned(&self) -> bool {
        self.sp % 8 == 0
    }
}

/// Walks on from `state`, which has to be aligned, by compact rules, until a frame needs another
/// rule or is the outermost frame, a read fails, or `slots` are used up. Stores the return
/// addresses of the found frames in `slots`, and returns the unused part.
///
/// `ra`: the PC of the last frame if the frame has made a call. The innermost frame has not, and
/// its lookup address is its PC: `ra` is the PC plus one. Context: any context in which `memory`
/// and `codes` may be used.
#[inline(always)]
pub fn walk<'a, 'b, C: Codes<'a>, M: WordReader>(
    state: &mut FastPathState,
    mut ra: u64,
    slots: UnusedSlots<'b>,
    codes: &mut C,
    memory: &M,
) -> UnusedSlots<'b> {
    // The byte before `ra` selects the row.
    let found = block_of(codes.recent(ra), ra);
    let Some(mut code) = found.or_else(|| block_of(codes.at(ra), ra)) else {
        return slots;
    };
    let mut unused = slots;
    let mut place = StatePlace(state);
    loop {
        let NextFrame {
            ra: next,
            cfa,
            rule,
            is_outside,
            mut slots,
        } = walk_recent(&mut place, ra, code, unused, codes, memory);
        ra = next;
        if ra == 0 {
            place.0.last_flags = rule.flags();
            place.0.is_outside = is_outside;
            return slots;
        }
        // In memory during the call of `at`. A value that stayed in a register would take that
        // register from the loop, which has none to spare.
        hint::black_box(&mut slots);
        let Some(next) = block_of(codes.at(ra), ra) else {
            return slots;
        };
        code = next;
        let Some(slot) = slots.next() else {
            return slots;
        };
        *slot = ra;
        if rule.has(SAVES_FP) {
            place.0.fp_at = cfa.wrapping_add_signed(rule.fp());
        }
        place.0.sp = cfa;
        unused = slots;
    }
}

/// Where the state is. The loop has no register to spare for this address, so the address itself is
/// in memory.
struct StatePlace<'s>(&'s mut FastPathState);

/// The unused part of the buffer of a walk.
pub type UnusedSlots<'b> = slice::IterMut<'b, u64>;

/// The caller of the last frame, in a range that was not found in this walk yet.
struct NextFrame<'b> {
    /// The return address into the caller; 0 if the walk has ended.
    ra: u64,
    /// The CFA of the last frame.
    cfa: u64,
    /// The rule of the last frame.
    rule: CompactRule,
    /// See [`FastPathState`].
    is_outside: bool,
    slots: UnusedSlots<'b>,
}

/// Walks on, as far as the ranges go that were found in this walk. `ra` is the address after the
/// code at which the walk begins, and has the given block. Calls no function.
#[inline(always)]
fn walk_recent<'a, 'b, C: Codes<'a>, M: WordReader>(
    place: &mut StatePlace<'_>,
    mut ra: u64,
    (mut code, mut block): FoundBlock<'a, C::Rows>,
    mut slots: UnusedSlots<'b>,
    codes: &C,
    memory: &M,
) -> NextFrame<'b> {
    let FastPathState {
        mut sp,
        mut fp,
        mut fp_at,
        ..
    } = *place.0;
    // No function is called while the memory is open.
    let open = memory.open();
    let mut is_outside = false;
    let (next, cfa, rule) = loop {
        let rule = block.compact_rule(ra);
        let base = if rule.has(BY_FP) {
            seldom();
            if fp_at != 0 {
                match open.word(fp_at) {
                    0 => break (0, 0, rule),
                    word => fp = word,
                }
                fp_at = 0;
            }
            // The top bit has to be clear: the CFA's offset has 31 bits, so the sum cannot wrap
            // around. The three low bits have to be clear, too. A mask of all four would take a
            // register.
            if fp.rotate_left(1) % 16 != 0 {
                break (0, 0, rule);
            }
            fp
        } else {
            sp
        };
        let cfa = base.wrapping_add(rule.cfa());
        // A word that is not a compact rule has offset 0.
        if cfa <= sp {
            is_outside = !code.rows.holds(ra.wrapping_add(code.to_distance));
            break (0, 0, rule);
        }
        // 0 stands for a failed read. No code lies there, so the lookup finds no range.
        ra = open.word(cfa.wrapping_sub(RA_BELOW_CFA));
        match code.rows.block(ra.wrapping_add(code.to_distance)) {
            Some(next) => block = next,
            None => match block_of(codes.recent(ra), ra) {
                Some(next) => (code, block) = next,
                None => break (ra, cfa, rule),
            },
        }
        let Some(slot) = slots.next() else {
            break (0, 0, rule);
        };
        *slot = ra;
        if rule.has(SAVES_FP) {
            fp_at = cfa.wrapping_add_signed(rule.fp());
        }
        sp = cfa;
    };
    drop(open);
    // This forces the address into memory, until here.
    let state = &mut *hint::black_box(place).0;
    state.sp = sp;
    state.fp = fp;
    state.fp_at = fp_at;
    NextFrame {
        ra: next,
        cfa,
        rule,
        is_outside,
        slots,
    }
}

/// Tells the compiler that the code that calls this function runs seldom.
#[cold]
#[inline]
const fn seldom() {}

/// A range of code, a distance from its start, and the block for that distance.
type FoundBlock<'a, R> = (CodeRange<'a, R>, <R as RowSource>::Block<'a>);

/// The block of a range for the byte before `ra`.
#[inline(always)]
fn block_of<'a, R: RowSource>(
    code: Option<CodeRange<'a, R>>,
    ra: u64,
) -> Option<FoundBlock<'a, R>> {
    let code = code?;
    let block = code.rows.block(ra.wrapping_add(code.to_distance))?;
    Some((code, block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sframe::{
        format::{
            abi::Abi,
            bytes::Fault, //
        },
        rule::{
            Location,
            Rule, //
        },
        table::compact_rule::tests::{
            drawn,
            rule, //
        },
        unwind::{
            self,
            Frame,
            Memory,
            NoRegisters,
            Step, //
        }, //
    };
    use std::{
        cell::Cell,
        vec::Vec, //
    };

    const CODE: u64 = 0x40_0000;

    const SIZE: u64 = 0x1000;

    /// The number of distances after a range that have a block.
    const BEHIND: u64 = 32;

    const STACK: u64 = 0x7ffd_0000_0000;

    /// A rule for each 16 bytes of code, and random memory.
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

    /// The rows of a quarter of the world's code.
    struct Quarter<'w> {
        rules: &'w [Rule],
        start: u64,
    }

    impl<'w> RowSource for Quarter<'w> {
        type Block<'a>
            = (&'a Quarter<'w>, u64)
        where
            Self: 'a;

        fn block(&self, distance: u64) -> Option<(&Quarter<'w>, u64)> {
            // Also, without a rule, for the byte before the range, and for the bytes after it.
            (distance < SIZE / 4 + BEHIND).then_some((self, distance.saturating_sub(1) / 16))
        }

        fn holds(&self, distance: u64) -> bool {
            (1..=SIZE / 4).contains(&distance)
        }
    }

    impl Block for (&Quarter<'_>, u64) {
        fn compact_rule(&self, ra: u64) -> CompactRule {
            if !self.0.holds(ra - self.0.start) {
                return CompactRule::NONE;
            }
            assert_eq!(self.1, (ra - 1 - self.0.start) / 16);
            CompactRule::of(&self.0.rules[self.1 as usize]).unwrap_or(CompactRule::other(0))
        }
    }

    /// Four ranges.
    struct Quarters<'w> {
        all: &'w [Quarter<'w>],
        /// The numbers of the ranges that were found, the last one at the end.
        found: Vec<usize>,
        /// How often a recent range was the right one.
        hits: &'w Cell<u32>,
    }

    impl<'w> Quarters<'w> {
        fn range(&self, number: usize) -> CodeRange<'w, Quarter<'w>> {
            let rows = &self.all[number];
            CodeRange {
                to_distance: rows.start.wrapping_neg(),
                rows,
            }
        }
    }

    impl<'w> Codes<'w> for Quarters<'w> {
        type Rows = Quarter<'w>;

        fn at(&mut self, ra: u64) -> Option<CodeRange<'w, Quarter<'w>>> {
            let distance = ra.wrapping_sub(CODE + 1);
            let number = (distance < SIZE).then_some((distance / (SIZE / 4)) as usize)?;
            self.found.push(number);
            Some(self.range(number))
        }

        fn recent(&self, ra: u64) -> Option<CodeRange<'w, Quarter<'w>>> {
            let is_right =
                |number: &usize| ra.wrapping_sub(CODE + 1) / (SIZE / 4) == *number as u64;
            let right = self.found.iter().copied().find(is_right);
            self.hits.set(self.hits.get() + u32::from(right.is_some()));
            // Another range, as where two addresses have one hash.
            right
                .or(self.found.last().copied())
                .map(|number| self.range(number))
        }
    }

    impl WordReader for World {
        type Open<'a> = &'a Self;

        fn word(&self, address: u64) -> u64 {
            self.read_word(address).unwrap_or_default()
        }

        fn open(&self) -> &Self {
            self
        }
    }

    impl Memory for World {
        fn read_word(&self, address: u64) -> Result<u64, Fault> {
            // The upper half of the addresses is the kernel's.
            if address >> 63 != 0 {
                return Err(Fault);
            }
            let mut state = address ^ self.seed;
            drawn(&mut state);
            match drawn(&mut state) % 64 {
                0 => Err(Fault),
                1 => Ok(0),
                2 => Ok(drawn(&mut state)),
                // A value near the word's own address. The rules use such values as frame pointers.
                3..16 => Ok((address & !7) + 8 * (drawn(&mut state) % 64)),
                // Sometimes the byte before the address is before the code, or after it.
                _ => Ok(CODE + drawn(&mut state) % (SIZE + BEHIND)),
            }
        }
    }

    #[test]
    fn the_fast_path_equals_single_steps() {
        let mut state = 88_172_645_463_325_252;
        let (mut frames, mut longest, mut outermost, mut outside) = (0, 0, 0, 0);
        let hits = Cell::new(0);
        for _ in 0..20_000 {
            let world = World {
                rules: (0..SIZE / 16).map(|_| rule(&mut state)).collect(),
                seed: drawn(&mut state) | 1,
            };
            let start = Frame {
                pc: CODE + drawn(&mut state) % SIZE,
                sp: STACK + 8 * (drawn(&mut state) % 64),
                fp: match drawn(&mut state) % 64 {
                    0 => unwind::LOST_FP,
                    _ => STACK + 8 * (drawn(&mut state) % 128),
                },
            };
            let is_innermost = drawn(&mut state) % 2 == 0;
            let most = (drawn(&mut state) % 24) as usize;

            let mut buffer = [0; 24];
            let quarter = world.rules.len() / 4;
            let quarters: Vec<_> = (0..4)
                .map(|number| Quarter {
                    rules: &world.rules[number * quarter..][..quarter],
                    start: CODE + number as u64 * (SIZE / 4),
                })
                .collect();
            let mut walked = FastPathState::to(start.sp, start.fp);
            assert!(walked.is_aligned());
            let slots = walk(
                &mut walked,
                start.pc + u64::from(is_innermost),
                buffer[..most].iter_mut(),
                &mut Quarters {
                    all: &quarters,
                    found: Vec::new(),
                    hits: &hits,
                },
                &world,
            );
            let found = most - slots.len();
            let FastPathState {
                sp,
                fp,
                fp_at,
                is_outside,
                ..
            } = walked;
            let is_outermost = walked.is_outermost();
            let pc = found.checked_sub(1).map_or(start.pc, |last| buffer[last]);
            if is_outside && found > 0 {
                outside += 1;
                let distance = (pc - CODE) % (SIZE / 4);
                assert!(distance == 0 || distance - 1 < BEHIND, "{distance}");
                assert!(!is_outermost);
            }
            // Without this a return address outside of the code would be a frame.
            let last = pc.wrapping_sub(1);
            assert!(found == 0 || is_outside || world.rule_at(last).is_some());
            frames += found;
            longest = longest.max(found);
            outermost += usize::from(is_outermost);

            // A walk by `unwind::step` comes to an equal frame, except for words that the fast path
            // did not need and did not read.
            let mut frame = start;
            let mut is_innermost = is_innermost;
            for pc in &buffer[..found] {
                let rule = world.rule_at(frame.pc - u64::from(!is_innermost)).unwrap();
                let step = unwind::step(Abi::Amd64, &rule, &frame, &NoRegisters, &world);
                match step {
                    Ok(Step::Caller(caller)) => frame = caller,
                    // A step reads the return address and the saved frame pointer. The fast path
                    // may not have read the saved frame pointer.
                    Err(unwind::Stop::Fault { .. }) => {
                        let mut unchanged = rule;
                        unchanged.fp = Location::Unchanged;
                        let step =
                            unwind::step(Abi::Amd64, &unchanged, &frame, &NoRegisters, &world);
                        let Ok(Step::Caller(caller)) = step else {
                            panic!("{step:?}");
                        };
                        frame = Frame { fp: 0, ..caller };
                    }
                    other => panic!("{other:?} in {rule:?} {frame:x?}"),
                }
                assert_eq!(frame.pc, *pc);
                is_innermost = false;
            }
            assert_eq!((pc, sp), (frame.pc, frame.sp));
            let fp = match fp_at {
                0 => fp,
                at => world.word(at),
            };
            assert_eq!(fp, frame.fp);

            if is_outside {
                continue;
            }
            // The fast path ends only where no compact rule leads to a caller with rows.
            let Some(rule) = world.rule_at(frame.pc - u64::from(!is_innermost)) else {
                assert_eq!((found, frame.pc), (0, CODE));
                continue;
            };
            assert!(!is_outermost || rule.is_outermost());
            if found == most || CompactRule::of(&rule).is_none() || rule.is_outermost() {
                continue;
            }
            let step = unwind::step(Abi::Amd64, &rule, &frame, &NoRegisters, &world);
            let goes_on = match step {
                Ok(Step::Caller(caller)) => world.rule_at(caller.pc - 1).is_some(),
                _ => false,
            };
            assert!(!goes_on, "{rule:?} {frame:x?} {step:?}");
        }
        assert!(
            longest > 10 && frames > 15_000 && outermost > 500 && hits.get() > 500 && outside > 3,
            "{longest} {frames} {outermost} {hits:?} {outside}"
        );
    }
}
