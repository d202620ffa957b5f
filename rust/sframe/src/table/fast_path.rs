// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The fast path: a walk that takes steps by compact rules only, in a fraction of the instructions
//! of other walks.
//!
//! The fast path ends at any other rule, and its caller continues the walk from there. A step of
//! the fast path has the result of [`unwind::step`](crate::sframe::unwind::step::step).

use crate::sframe::{
    arch::machine::RA_BELOW_CFA,
    table::{
        compact_rule::{
            CompactRule,
            RuleFlags,
            BY_FP,
            IS_OUTERMOST,
            SAVES_FP, //
        },
        kept_rules::KeptRules, //
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
    /// Whether the rules of the range may be kept for later walks: the range is of use as long as
    /// the generation of [`Codes::kept_rules`] is the same.
    pub may_keep: bool,
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

    /// The rules that walks have kept for the present state of the code, if this walk is to use
    /// any. Called once in each walk.
    fn kept_rules(&mut self) -> Option<KeptRules<'a>>;
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
    last_flags: RuleFlags,
    /// Whether the byte before the return address of the last frame is in no range that is known to
    /// be code: the byte is before a range, or after it. The caller has to check that byte.
    pub is_outside: bool,
    /// The number of frames whose rules were found in a table, and then kept, modulo 2^16.
    pub misses: u16,
}

impl FastPathState {
    /// The state of a walk whose last frame has these registers.
    #[inline(always)]
    pub const fn to(sp: u64, fp: u64) -> FastPathState {
        FastPathState {
            sp,
            fp,
            fp_at: 0,
            last_flags: RuleFlags::NONE,
            is_outside: false,
            misses: 0,
        }
    }

    /// Whether the last frame is the outermost frame.
    #[inline(always)]
    pub const fn is_outermost(&self) -> bool {
        self.last_flags.has(IS_OUTERMOST)
    }

    /// Whether [`walk`] can walk on: the two top bits and the three low bits of the stack pointer
    /// are clear. Each step adds a multiple of eight, and reads a word below the new stack pointer,
    /// so this check is valid for all frames.
    #[inline(always)]
    pub const fn is_aligned(&self) -> bool {
        is_of_stack(self.sp)
    }
}

/// Walks on from `state`, which has to be aligned, by compact rules, until a frame needs another
/// rule or is the outermost frame, a read fails, or `buffer` is used up. Stores the return
/// addresses of the found frames in `buffer`, from its start on, and returns the number of its
/// unused words. The first unused word may have been written to.
///
/// `ra`: the PC of the last frame if the frame has made a call. The innermost frame has not, and
/// its lookup address is its PC: `ra` is the PC plus one. Context: any context in which `memory`
/// and `codes` may be used.
#[inline(always)]
pub fn walk<'a, C: Codes<'a>, M: WordReader>(
    state: &mut FastPathState,
    mut ra: u64,
    buffer: &mut [u64],
    codes: &mut C,
    memory: &M,
) -> usize {
    // The byte before `ra` selects the row.
    let found = block_of(codes.recent(ra), ra);
    let Some(mut code) = found.or_else(|| block_of(codes.at(ra), ra)) else {
        return buffer.len();
    };
    let mut unused = buffer.iter_mut();
    let mut place = StatePlace(state);
    let kept = codes.kept_rules();
    loop {
        let NextFrame {
            ra: next,
            cfa,
            flags,
            is_outside,
            spare,
            mut slots,
        } = match kept {
            Some(kept) => walk_kept(&mut place, ra, code, unused, codes, kept, memory),
            None => walk_recent(&mut place, ra, code, unused, codes, memory),
        };
        ra = next;
        if ra == 0 {
            place.0.last_flags = flags;
            place.0.is_outside = is_outside;
            return slots.len().wrapping_add(spare);
        }
        // In memory during the call of `at`. A value that stayed in a register would take that
        // register from the loop, which has none to spare.
        hint::black_box(&mut slots);
        let Some(next) = block_of(codes.at(ra), ra) else {
            return slots.len().wrapping_add(1);
        };
        code = next;
        if flags.has(SAVES_FP) {
            place.0.fp_at = cfa.wrapping_add_signed(flags.fp());
        }
        place.0.sp = cfa;
        unused = slots;
    }
}

/// Whether a value can be a stack pointer or a frame pointer: the two top bits and the three low
/// bits are clear. The offset of a CFA has 31 bits, so the CFA is below 2^63: see
/// [`WordReader::lower_word`].
#[inline(always)]
const fn is_of_stack(value: u64) -> bool {
    // A mask of all five bits would take a register.
    value.rotate_left(2) % 32 == 0
}

/// Where the state is. The loop has no register to spare for this address, so the address itself is
/// in memory.
struct StatePlace<'s>(&'s mut FastPathState);

/// The caller of the last frame, in a range that was not found in this walk yet.
struct NextFrame<'b> {
    /// The return address into the caller, which is stored in front of `slots`; 0 if the walk has
    /// ended.
    ra: u64,
    /// The CFA of the last frame.
    cfa: u64,
    /// The flags of the last frame's rule.
    flags: RuleFlags,
    /// See [`FastPathState`].
    is_outside: bool,
    /// If the walk has ended: 1 if the word in front of `slots` contains no frame, else 0.
    spare: usize,
    slots: slice::IterMut<'b, u64>,
}

/// Walks on, as far as the ranges go that were found in this walk. `ra` is the address after the
/// code at which the walk begins, and has the given block. Calls no function.
#[inline(always)]
fn walk_recent<'a, 'b, C: Codes<'a>, M: WordReader>(
    place: &mut StatePlace<'_>,
    mut ra: u64,
    (mut code, mut block): FoundBlock<'a, C::Rows>,
    mut slots: slice::IterMut<'b, u64>,
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
                match open.lower_word(fp_at) {
                    (0, _) => break (0, 0, rule),
                    (word, _) => fp = word,
                }
                fp_at = 0;
            }
            if !is_of_stack(fp) {
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
        (ra, _) = open.lower_word(cfa.wrapping_sub(RA_BELOW_CFA));
        match code.rows.block(ra.wrapping_add(code.to_distance)) {
            Some(next) => block = next,
            None => match block_of(codes.recent(ra), ra) {
                Some(next) => (code, block) = next,
                None => match slots.next() {
                    Some(slot) => {
                        *slot = ra;
                        break (ra, cfa, rule);
                    }
                    None => break (0, 0, rule),
                },
            },
        }
        let Some(slot) = slots.next() else {
            break (0, 0, rule);
        };
        *slot = ra;
        if rule.has(SAVES_FP) {
            fp_at = cfa.wrapping_add_signed(rule.flags().fp());
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
        flags: rule.flags(),
        is_outside,
        // A failed read has given the address 0.
        spare: usize::from(cfa != 0),
        slots,
    }
}

/// As [`walk_recent`], with the rules that earlier walks have kept. A frame with a kept rule costs
/// half as many instructions. A frame without one costs more, because its rule is kept.
///
/// The search of a table is behind the loops over kept rules, and the state of the last frame is
/// computed again where a loop ends. So all values of a loop are in registers.
#[inline(always)]
fn walk_kept<'a, 'b, C: Codes<'a>, M: WordReader>(
    place: &mut StatePlace<'_>,
    mut ra: u64,
    (code, block): FoundBlock<'a, C::Rows>,
    mut slots: slice::IterMut<'b, u64>,
    codes: &C,
    kept: KeptRules<'a>,
    memory: &M,
) -> NextFrame<'b> {
    let FastPathState {
        sp,
        mut fp,
        mut fp_at,
        ..
    } = *place.0;
    let rule = block.compact_rule(ra);
    // The rule of the last frame.
    let (mut flags, mut offset) = (rule.flags(), rule.cfa());
    if offset == 0 {
        return NextFrame {
            ra: 0,
            cfa: 0,
            flags,
            is_outside: !code.rows.holds(ra.wrapping_add(code.to_distance)),
            spare: 0,
            slots,
        };
    }
    let mut is_outside = false;
    // Where the last return address was found, if the walk has found one.
    let mut ra_at = sp.wrapping_sub(RA_BELOW_CFA);
    // The same for the frame before, if its rule goes by the frame pointer.
    let mut ra_at_before = 0;
    let mut misses = 0u16;
    // In memory from here on, so that the loop has the register.
    hint::black_box(&mut misses);
    // No function is called while the memory is open.
    let open = memory.open();
    let (next, cfa, spare) = 'ended: loop {
        'missed: loop {
            while flags.has(BY_FP) {
                // The mark of the outermost frame has this flag, too: see `KeptRules::keep`. Then
                // the offset is 0.
                if offset == 0 || slots.len() == 0 {
                    break 'ended (0, 0, 0);
                }
                if fp_at != 0 {
                    match open.lower_word(fp_at) {
                        (0, _) => break 'ended (0, 0, 0),
                        (word, _) => fp = word,
                    }
                    fp_at = 0;
                }
                let at = fp.wrapping_add(offset).wrapping_sub(RA_BELOW_CFA);
                if !is_of_stack(fp) || at <= ra_at {
                    break 'ended (0, 0, 0);
                }
                ra_at_before = ra_at;
                (ra, ra_at) = open.lower_word(at);
                let Some(slot) = slots.next() else {
                    break 'ended (0, 0, 0);
                };
                *slot = ra;
                let Some(rule) = kept.rule(ra) else {
                    break 'missed;
                };
                if flags.has(SAVES_FP) {
                    fp_at = fp_place(ra_at, flags);
                }
                (flags, offset) = rule.parts();
            }
            // Frames with kept rules by the stack pointer.
            loop {
                if slots.len() == 0 {
                    break 'ended (0, 0, 0);
                }
                // 0 stands for a failed read. No code lies there: it has no rule, and is in no
                // range.
                (ra, ra_at) = open.lower_word(ra_at.wrapping_add(offset));
                // Not before the read: this takes an instruction less.
                let Some(slot) = slots.next() else {
                    break 'ended (0, 0, 0);
                };
                *slot = ra;
                let Some(rule) = kept.rule(ra) else {
                    break 'missed;
                };
                if flags.has(SAVES_FP) {
                    fp_at = fp_place(ra_at, flags);
                }
                (flags, offset) = rule.parts();
                if flags.has(BY_FP) {
                    break;
                }
            }
        }
        let Some((code, block)) = block_of(codes.recent(ra), ra) else {
            let at = hint::black_box(ra_at);
            ra_at = match flags.has(BY_FP) {
                true => ra_at_before,
                false => at.wrapping_sub(offset),
            };
            break (ra, at.wrapping_add(RA_BELOW_CFA), 1);
        };
        if flags.has(SAVES_FP) {
            fp_at = fp_place(ra_at, flags);
        }
        let rule = block.compact_rule(ra);
        (flags, offset) = (rule.flags(), rule.cfa());
        if offset == 0 {
            // The walk ends at this frame.
            if code.may_keep && flags.has(IS_OUTERMOST) {
                kept.keep(ra, rule);
            }
            is_outside = !code.rows.holds(ra.wrapping_add(code.to_distance));
            break (0, 0, 0);
        }
        if code.may_keep {
            kept.keep(ra, rule);
            misses = misses.wrapping_add(1);
        }
    };
    drop(open);
    // This forces the address into memory, until here.
    let state = &mut *hint::black_box(place).0;
    state.sp = ra_at.wrapping_add(RA_BELOW_CFA);
    state.fp = fp;
    state.fp_at = fp_at;
    state.misses = state.misses.wrapping_add(misses);
    NextFrame {
        ra: next,
        cfa,
        flags,
        is_outside,
        spare,
        slots,
    }
}

/// Where a frame has saved the frame pointer: `ra_at` is where its return address is.
#[inline(always)]
const fn fp_place(ra_at: u64, flags: RuleFlags) -> u64 {
    ra_at
        .wrapping_add_signed(flags.fp())
        .wrapping_add(RA_BELOW_CFA)
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
        table::{
            compact_rule::tests::{
                drawn,
                rule, //
            },
            kept_rules::{
                tests::empty_places,
                PLACES, //
            }, //
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
        kept: Option<KeptRules<'w>>,
    }

    impl<'w> Quarters<'w> {
        fn range(&self, number: usize) -> CodeRange<'w, Quarter<'w>> {
            let rows = &self.all[number];
            CodeRange {
                to_distance: rows.start.wrapping_neg(),
                rows,
                may_keep: number != 3,
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

        fn kept_rules(&mut self) -> Option<KeptRules<'w>> {
            self.kept
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

    /// Which rules are kept.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Kept {
        None,
        /// Those of a world.
        OfWorld,
        /// Those of all worlds: a mistake.
        Stale,
    }

    /// What was found in many walks.
    #[derive(Debug, Default)]
    struct ComparedWalks {
        frames: usize,
        longest: usize,
        outermost: usize,
        outside: usize,
        /// How often a recent range was the right one.
        hits: u32,
        misses: u32,
    }

    /// Compares walks with single steps, in 5,000 worlds. Between two walks in a world, the memory
    /// changes.
    fn compare(kept: Kept) -> ComparedWalks {
        let mut state = 88_172_645_463_325_252;
        let mut all = ComparedWalks::default();
        let hits = Cell::new(0);
        let mut places = empty_places();
        let mut generation = 0;
        let mut world = World {
            rules: Vec::new(),
            seed: 0,
        };
        for number in 0..20_000 {
            if number % 4 == 0 {
                world.rules = (0..SIZE / 16).map(|_| rule(&mut state)).collect();
                generation += 1;
                if generation == PLACES as u32 {
                    places = empty_places();
                    generation = 1;
                }
            }
            world.seed = drawn(&mut state) | 1;
            let rules = match kept {
                Kept::None => None,
                Kept::OfWorld => Some(KeptRules::new(&places, generation)),
                Kept::Stale => Some(KeptRules::new(&places, 1)),
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
            let unused = walk(
                &mut walked,
                start.pc + u64::from(is_innermost),
                &mut buffer[..most],
                &mut Quarters {
                    all: &quarters,
                    found: Vec::new(),
                    hits: &hits,
                    kept: rules,
                },
                &world,
            );
            let found = most - unused;
            let FastPathState {
                sp,
                fp,
                fp_at,
                is_outside,
                misses,
                ..
            } = walked;
            all.misses += u32::from(misses);
            let is_outermost = walked.is_outermost();
            let pc = found.checked_sub(1).map_or(start.pc, |last| buffer[last]);
            if is_outside && found > 0 {
                all.outside += 1;
                let distance = (pc - CODE) % (SIZE / 4);
                assert!(distance == 0 || distance - 1 < BEHIND, "{distance}");
                assert!(!is_outermost);
            }
            // Without this a return address outside of the code would be a frame.
            let last = pc.wrapping_sub(1);
            assert!(found == 0 || is_outside || world.rule_at(last).is_some());
            all.frames += found;
            all.longest = all.longest.max(found);
            all.outermost += usize::from(is_outermost);

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
        all.hits = hits.get();
        assert!(
            all.longest > 10 && all.frames > 15_000 && all.outermost > 500 && all.outside > 3,
            "{all:?}"
        );
        all
    }

    #[test]
    fn the_fast_path_equals_single_steps() {
        let found = compare(Kept::None);
        assert!(found.hits > 500 && found.misses == 0, "{found:?}");
    }

    #[test]
    fn the_fast_path_with_kept_rules_equals_single_steps() {
        let found = compare(Kept::OfWorld);
        // Of the frames found by rows, some had a kept rule, and some had none.
        let rows = 2_000..found.frames as u32 * 3 / 4;
        assert!(rows.contains(&found.misses), "{found:?}");
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_rule_that_is_kept_for_too_long_is_found() {
        compare(Kept::Stale);
    }
}
