// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compares the module's walk with the kernel's own walk, which follows the frame pointer: which of
//! the two has more true frames, and which has false ones.
//!
//! The truth is the calls that were seen, and `.eh_frame` where no call was seen. It ends where
//! neither is known. Frames further out are not judged.

use std::collections::BTreeMap;

use serde_json::{
    json,
    Value, //
};
use sframe::unwind::Memory;
use truth::kernel_walk;
use walk::{
    registers::RegisterFile,
    walker::{
        WalkedFrame,
        MOST_FRAMES, //
    },
};

/// The caller of a frame, by the truth.
#[derive(Clone, Copy)]
pub(crate) struct TrueCaller {
    pub(crate) pc: u64,
    /// The stack pointers that the caller may have.
    pub(crate) sps: [u64; 2],
}

/// A frame of a walk, as far as it is judged.
#[derive(Clone, Copy)]
struct JudgedFrame {
    pc: u64,
    sp: u64,
}

/// What a walk has in place of one true caller.
#[derive(Clone, Copy, Default)]
struct CallerCounts {
    /// The true caller.
    right: u64,
    /// A caller further out.
    skipped: u64,
    /// Nothing: the walk ends there.
    none: u64,
    /// A frame that is none of the true callers.
    other: u64,
}

impl CallerCounts {
    fn add(&mut self, found: Option<&JudgedFrame>, truth: &[TrueCaller]) {
        let count = match (found, truth) {
            (None, _) => &mut self.none,
            (Some(frame), _) if which(frame, truth) == Some(0) => &mut self.right,
            (Some(frame), _) if which(frame, truth).is_some() => &mut self.skipped,
            // The frame is further out than the last known caller.
            (Some(frame), _) if is_beyond(frame, truth) => &mut self.skipped,
            _ => &mut self.other,
        };
        *count += 1;
    }

    fn to_json(self) -> Value {
        json!({
            "right": self.right,
            "skipped": self.skipped,
            "none": self.none,
            "other": self.other,
        })
    }
}

/// The counts of one of the two walks.
#[derive(Clone, Copy, Default)]
struct WalkCounts {
    true_frames: u64,
    false_frames: u64,
    /// The caller of the innermost frame.
    innermost: CallerCounts,
    /// The caller of the second frame, where the second frame is right.
    second: CallerCounts,
}

impl WalkCounts {
    /// Adds a walk, without its innermost frame, and returns its true and its false frames.
    fn add(&mut self, frames: &[JudgedFrame], truth: &[TrueCaller]) -> (u64, u64) {
        self.innermost.add(frames.first(), truth);
        if let ([first, rest @ ..], [_, callers @ ..]) = (frames, truth) {
            if which(first, truth) == Some(0) && !callers.is_empty() {
                self.second.add(rest.first(), callers);
            }
        }
        let is_true = |frame: &&JudgedFrame| which(frame, truth).is_some();
        let is_false = |frame: &&JudgedFrame| !is_true(frame) && !is_beyond(frame, truth);
        // The frames after the last true caller may be on another stack, at lower addresses.
        let is_last = |frame| which(frame, truth).is_some_and(|it| it + 1 == truth.len());
        let known = frames.iter().position(is_last);
        let judged = &frames[..known.map_or(frames.len(), |at| at + 1)];
        let counted = (
            judged.iter().filter(is_true).count() as u64,
            judged.iter().filter(is_false).count() as u64,
        );
        self.true_frames += counted.0;
        self.false_frames += counted.1;
        counted
    }

    fn to_json(self) -> Value {
        json!({
            "true": self.true_frames,
            "false": self.false_frames,
            "innermost": self.innermost.to_json(),
            "second": self.second.to_json(),
        })
    }
}

/// Which of the true callers the frame is. A function may remove its arguments before it returns,
/// as V8's do: then its caller's stack pointer is higher, within the caller's own frame.
fn which(frame: &JudgedFrame, truth: &[TrueCaller]) -> Option<usize> {
    let is_within = |number: usize, sps: &[u64; 2]| {
        let next = truth.get(number + 1);
        sps.iter().all(|sp| frame.sp > *sp)
            && next.is_some_and(|next| next.sps.iter().all(|sp| frame.sp < *sp))
    };
    truth.iter().enumerate().position(|(number, caller)| {
        caller.pc == frame.pc && (caller.sps.contains(&frame.sp) || is_within(number, &caller.sps))
    })
}

/// Whether a frame is further out than the truth is known.
fn is_beyond(frame: &JudgedFrame, truth: &[TrueCaller]) -> bool {
    truth
        .last()
        .is_none_or(|last| last.sps.iter().all(|sp| frame.sp > *sp))
}

/// The results for one program.
#[derive(Default)]
pub(crate) struct KernelCounts {
    /// Steps whose innermost frame has a known caller.
    steps: u64,
    /// The frames of the truth.
    frames: u64,
    module: WalkCounts,
    kernel: WalkCounts,
    /// Steps in which the module has fewer true frames than the kernel, or more false ones.
    worse: u64,
    /// Steps in which it is the other way round.
    better: u64,
    /// The places of the last frame that the module got right where it is worse, and how the walk
    /// ended, as text.
    places: BTreeMap<String, u64>,
}

impl KernelCounts {
    /// Judges one step. `found` is the module's walk; `place` tells where it goes wrong or ends,
    /// after so many right frames.
    pub(crate) fn step<M: Memory + ?Sized>(
        &mut self,
        registers: &RegisterFile,
        memory: &M,
        found: &[WalkedFrame],
        truth: &[TrueCaller],
        place: impl FnOnce(usize) -> String,
    ) {
        if truth.is_empty() {
            return;
        }
        self.steps += 1;
        self.frames += truth.len() as u64;
        let module: Vec<_> = found
            .iter()
            .skip(1)
            .map(|it| JudgedFrame {
                pc: it.frame.pc,
                sp: it.frame.sp,
            })
            .collect();
        let (of_module, false_of_module) = self.module.add(&module, truth);
        let kernel: Vec<_> = kernel_walk::callers(registers, memory, MOST_FRAMES)
            .into_iter()
            .map(|(pc, sp)| JudgedFrame { pc, sp })
            .collect();
        let (of_kernel, false_of_kernel) = self.kernel.add(&kernel, truth);
        if of_module < of_kernel || false_of_module > false_of_kernel {
            self.worse += 1;
            let right = module.iter().enumerate();
            let right = right
                .take_while(|(n, frame)| which(frame, truth) == Some(*n))
                .count();
            *self.places.entry(place(right)).or_default() += 1;
        } else if of_module > of_kernel || false_of_module < false_of_kernel {
            self.better += 1;
        }
    }

    /// The results, for people; nothing if no step was judged.
    pub(crate) fn print(&self) {
        if self.steps == 0 {
            return;
        }
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        println!(
            "  beside the kernel's own walk: {} steps with {} true callers; the module is worse in {} steps \
             ({:.3} %) and better in {} ({:.3} %)",
            self.steps,
            self.frames,
            self.worse,
            percent(self.worse, self.steps),
            self.better,
            percent(self.better, self.steps)
        );
        for (name, walk) in [("module", self.module), ("kernel", self.kernel)] {
            print!(
                "  {name}: {:.2} % of the true callers, {} false frames",
                percent(walk.true_frames, self.frames),
                walk.false_frames
            );
            for (which, counts) in [("innermost", walk.innermost), ("second", walk.second)] {
                let CallerCounts {
                    right,
                    skipped,
                    none,
                    other,
                } = counts;
                let all = right + skipped + none + other;
                print!(
                    "; {which}: {:.3} % right, {:.3} % skipped, {:.3} % none, {:.3} % other of {all}",
                    percent(right, all),
                    percent(skipped, all),
                    percent(none, all),
                    percent(other, all)
                );
            }
            println!();
        }
        crate::print_ends("are worse than the kernel's", &self.places);
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "steps": self.steps,
            "frames": self.frames,
            "module": self.module.to_json(),
            "kernel": self.kernel.to_json(),
            "worse": self.worse,
            "better": self.better,
            "places": self.places,
        })
    }

    /// Steps in which the module is worse.
    pub(crate) fn worse(&self) -> u64 {
        self.worse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUTH: [TrueCaller; 3] = [
        TrueCaller {
            pc: 1,
            sps: [0x110; 2],
        },
        TrueCaller {
            pc: 2,
            sps: [0x210, 0x220],
        },
        TrueCaller {
            pc: 3,
            sps: [0x310; 2],
        },
    ];

    fn frames(frames: &[(u64, u64)]) -> Vec<JudgedFrame> {
        let frame = |(pc, sp): &(u64, u64)| JudgedFrame { pc: *pc, sp: *sp };
        frames.iter().map(frame).collect()
    }

    #[test]
    fn frames_are_true_false_or_not_judged() {
        let mut counts = WalkCounts::default();
        let whole = frames(&[(1, 0x110), (2, 0x220), (3, 0x310), (9, 0x999)]);
        assert_eq!(counts.add(&whole, &TRUTH), (3, 0));
        assert_eq!(
            counts.add(&frames(&[(2, 0x210), (5, 0x300)]), &TRUTH),
            (1, 1)
        );
        assert_eq!(counts.add(&[], &TRUTH), (0, 0));
        let CallerCounts {
            right,
            skipped,
            none,
            other,
        } = counts.innermost;
        assert_eq!((right, skipped, none, other), (1, 1, 1, 0));
        assert_eq!(counts.second.right, 1);
        for sp in [0x108, 0x210] {
            assert_eq!(counts.add(&frames(&[(1, sp)]), &TRUTH), (0, 1));
        }
        assert_eq!((counts.innermost.right, counts.innermost.other), (1, 2));
        // Its callee has removed the arguments.
        assert_eq!(counts.add(&frames(&[(1, 0x118)]), &TRUTH), (1, 0));
        assert_eq!(counts.innermost.right, 2);
    }
}
