// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What proves a guess of the analysis, and what one round finds.

use std::{
    collections::BTreeSet,
    mem, //
};

use super::state::*;

/// The evidence for a function start, from weak to strong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evidence {
    /// Called from a guess that nothing proves yet.
    Presumed,
    Guessed,
    /// The padding before the start traps, so no function continues across the padding.
    Trapped,
    Called,
    Symbol,
}

/// An instruction that the analysis has reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    pub(super) at: u64,
    pub(super) len: u8,
    pub(super) state: FrameState,
    /// The number of the start from which the instruction was reached.
    pub(super) from: usize,
}

/// How an instruction is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReachedBy {
    Start,
    Flow,
    /// By the return of a call. The call may not return.
    Return,
}

/// An address to continue the analysis at.
#[derive(Clone, Copy)]
pub(super) struct Path {
    pub(super) at: u64,
    pub(super) state: FrameState,
    pub(super) by: ReachedBy,
    /// Whether a valid return confirms the start. It does not after a call in the initial state,
    /// because another function may begin there.
    pub(super) proves: bool,
}

/// The findings of a round. Vectors are indexed by the number of the start.
pub(super) struct RoundFindings {
    pub(super) starts: Vec<(u64, Evidence)>,
    /// Disjoint sets of starts that share code: the number of each start's parent, or the start's
    /// own number.
    pub(super) parent: Vec<usize>,
    pub(super) bad: Vec<bool>,
    pub(super) proved: Vec<bool>,
    /// Pairs of starts that contradict each other.
    pub(super) conflicts: Vec<(usize, usize)>,
    /// The called addresses, each with the numbers of the calling starts.
    pub(super) called: BTreeSet<(u64, usize)>,
    /// Whether the function returns to its caller.
    pub(super) returns: Vec<bool>,
    /// Whether the function may return: it does, or goes on where the analysis does not follow.
    pub(super) may_return: Vec<bool>,
    /// Whether the function returns with another frame pointer than its caller's.
    pub(super) clobbers: Vec<bool>,
    /// Whether the function sets up the frame of its caller, or discards its caller.
    pub(super) frames_caller: Vec<bool>,
    /// Pairs of starts: the code of the first goes on in code of the second.
    pub(super) goes_on: Vec<(usize, usize)>,
    /// As `goes_on`, but only after a call that may not return.
    pub(super) may_go_on: Vec<(usize, usize)>,
    /// Pairs of starts: the first jumps to the second, with the return address on top of the stack.
    /// If that is so at the second start, the first start was right.
    pub(super) jumps: Vec<(usize, usize)>,
}

impl RoundFindings {
    /// The group of a start, after [`resolve_conflicts`](Self::resolve_conflicts).
    pub(super) fn group(&self, of: usize) -> usize {
        self.parent[of]
    }

    /// Makes one set of the sets of two starts: that of the second.
    pub(super) fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a] = b;
    }

    /// The group of a start. Shortens the path to it.
    fn root(&mut self, mut of: usize) -> usize {
        while self.parent[of] != of {
            let above = self.parent[self.parent[of]];
            self.parent[of] = above;
            of = above;
        }
        of
    }

    /// Settles the groups. Marks as bad the start with the weaker evidence of each conflict; both
    /// if the evidence is equal.
    pub(super) fn resolve_conflicts(&mut self) {
        for number in 0..self.parent.len() {
            self.parent[number] = self.root(number);
        }
        for (a, b) in mem::take(&mut self.conflicts) {
            let evidence = |number: usize| (self.starts[number].1, self.proved[number]);
            let (of_a, of_b) = (evidence(a), evidence(b));
            self.bad[a] |= of_a <= of_b;
            self.bad[b] |= of_b <= of_a;
        }
    }

    /// The starts for which `is` holds, and those whose code goes on in code of such a start, as
    /// addresses.
    pub(super) fn with_those_that<'a>(
        &self,
        go_on: impl IntoIterator<Item = &'a (usize, usize)>,
        is: &[bool],
    ) -> BTreeSet<u64> {
        let mut before = vec![Vec::new(); self.starts.len()];
        for (from, to) in go_on {
            before[*to].push(*from);
        }
        let mut found = is.to_vec();
        let mut todo: Vec<usize> = (0..is.len()).filter(|number| is[*number]).collect();
        while let Some(number) = todo.pop() {
            for from in &before[number] {
                if !mem::replace(&mut found[*from], true) {
                    todo.push(*from);
                }
            }
        }
        let starts = self.starts.iter().zip(found);
        starts
            .filter(|(_, is)| *is)
            .map(|((at, _), _)| *at)
            .collect()
    }

    /// For each start, whether a start that shares code with it is proved, by itself or by a start
    /// that it jumps to.
    pub(super) fn are_proved(&self) -> Vec<bool> {
        let numbers = 0..self.starts.len();
        let groups: Vec<usize> = numbers.clone().map(|number| self.group(number)).collect();
        let mut before = vec![Vec::new(); groups.len()];
        for (from, to) in &self.jumps {
            before[groups[*to]].push(groups[*from]);
        }
        let mut proved = vec![false; groups.len()];
        let is_proved =
            |number: &usize| self.proved[*number] || self.starts[*number].1 > Evidence::Guessed;
        let mut todo: Vec<usize> = numbers
            .filter(is_proved)
            .map(|number| groups[number])
            .collect();
        while let Some(group) = todo.pop() {
            if !mem::replace(&mut proved[group], true) {
                todo.extend(&before[group]);
            }
        }
        groups.into_iter().map(|group| proved[group]).collect()
    }

    /// For each start, whether `is` holds for any start that shares code with it.
    pub(super) fn any_of_group(&self, is: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut groups = vec![false; self.starts.len()];
        for number in (0..groups.len()).filter(|number| is(*number)) {
            groups[self.group(number)] = true;
        }
        (0..groups.len())
            .map(|number| groups[self.group(number)])
            .collect()
    }
}
