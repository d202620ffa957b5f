// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Compares each stack that the module reported with the stack that the kernel's own walk makes
//! from the sample's registers and stack copy. This needs no unwind information.
//!
//! The stacks tell by themselves that the module is not worse, if each frame of the kernel's is in
//! the module's, in the same order: then the module has all true frames of the kernel's. If the
//! module's stack is complete, frames of the kernel's alone are false ones. So are the kernel's
//! frames from the first one on that is not above its callee, as all are on one stack, of which the
//! sample has a copy; or whose PC is not in code.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt, //
};

use truth::kernel_walk;
use walk::registers::{
    PC,
    RSP, //
};

use crate::{
    recording::{
        Event,
        RecordedSample,
        Recording, //
    },
    stack::StackCopy, //
};

/// The number of ends that are shown.
const SHOWN: usize = 12;

/// The code that is mapped at a run-time address: the name of its file, and the offset in the file,
/// in bytes. `before` is what has happened before.
fn code_at<'a>(address: u64, pid: u32, before: &'a [Event<'_>]) -> Option<(&'a str, u64)> {
    let mut pid = pid;
    for event in before.iter().rev() {
        match event {
            Event::Map {
                pid: its,
                start,
                end,
                offset,
                executable: true,
                name,
            } if *its == pid && (*start..*end).contains(&address) => {
                return Some((name, address - start + offset));
            }
            Event::Fork { pid: its, parent } if *its == pid => pid = *parent,
            Event::Exec { pid: its } if *its == pid => return None,
            _ => {}
        }
    }
    None
}

/// The name of the place of a run-time address.
fn place(address: u64, pid: u32, before: &[Event<'_>]) -> String {
    match code_at(address, pid, before) {
        Some((name, offset)) => {
            let name = name.rsplit('/').next().unwrap_or_default();
            format!("{name}+{offset:#x}")
        }
        None => format!("{address:#x}"),
    }
}

/// How the module's stack compares with the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// Both have the same frames.
    Same,
    /// The module's has all frames of the kernel's, and more; or it is complete, and the kernel's
    /// is another one.
    Better,
    /// All others. Some of the kernel's frames that the module does not have may be false.
    Worse,
}

/// Compares two stacks without their innermost frames. `is_complete`: the module's stack is
/// complete.
fn compare(module: &[u64], kernel: &[u64], is_complete: bool) -> Beside {
    if module == kernel {
        return Beside::Same;
    }
    let mut left = module.iter();
    let has_all = kernel.iter().all(|pc| left.any(|other| other == pc));
    if has_all || is_complete {
        Beside::Better
    } else {
        Beside::Worse
    }
}

/// The number of frames in front of the first one that is not above its callee on the stack.
/// `frames` are PCs and stack pointers.
fn rising(frames: &[(u64, u64)]) -> usize {
    let falls = |pair: &[(u64, u64)]| pair[1].1 <= pair[0].1;
    let fall = frames.windows(2).position(falls);
    fall.map_or(frames.len(), |last| last + 1)
}

/// The comparisons of a recording's samples.
#[derive(Default)]
pub(crate) struct BesideKernel {
    name: String,
    same: u64,
    better: u64,
    worse: u64,
    /// Samples with a complete stack of the module.
    complete: u64,
    /// Samples without registers, without a stack of the module, or whose innermost frame is
    /// elsewhere than the registers say.
    not_compared: u64,
    frames: u64,
    kernel_frames: u64,
    /// Those of the kernel's frames that do not rise; and of stacks that seemed worse, those that
    /// are behind a PC outside of code.
    kernel_false: u64,
    /// Of the worse samples: how and where the module's walks ended, and their numbers.
    ends: BTreeMap<String, u64>,
}

impl BesideKernel {
    /// Compares the samples of a recording.
    pub(crate) fn of(recording: &Recording<'_>) -> BesideKernel {
        let mut all = BesideKernel {
            name: recording.name.clone().unwrap_or_default(),
            ..BesideKernel::default()
        };
        for (index, event) in recording.events.iter().enumerate() {
            if let Event::Sample(sample) = event {
                let most = recording.most_frames(sample.chain.context);
                all.add(sample, most, &recording.events[..index]);
            }
        }
        all
    }

    /// Adds a sample. The kernel's walk stores at most `most` frames. `before` are the events in
    /// front of the sample.
    fn add(&mut self, sample: &RecordedSample<'_>, most: usize, before: &[Event<'_>]) {
        let comparable = || {
            let registers = sample.registers.as_ref()?;
            let (innermost, module) = sample.chain.frames.as_ref()?.split_first()?;
            let (pc, sp) = (registers.get(PC)?, registers.get(RSP)?);
            (*innermost == pc).then_some((registers, pc, sp, module))
        };
        let Some((registers, pc, sp, module)) = comparable() else {
            self.not_compared += 1;
            return;
        };
        let copy = StackCopy::new(sp, sample.stack);
        let callers = kernel_walk::callers(registers, &copy, most);
        let kernel: Vec<u64> = callers[..rising(&callers)]
            .iter()
            .map(|(pc, _)| *pc)
            .collect();
        let reason = sample.chain.walk.as_ref().map(|walk| walk.reason.as_str());
        let is_complete = reason == Some("outermost");
        self.complete += u64::from(is_complete);
        self.frames += module.len() as u64;
        self.kernel_frames += callers.len() as u64;
        self.kernel_false += (callers.len() - kernel.len()) as u64;
        let mut found = compare(module, &kernel, is_complete);
        // The mappings of a process are known if that of the innermost frame is.
        if found == Beside::Worse && code_at(pc, sample.pid, before).is_some() {
            let is_code = |pc: &&u64| code_at(**pc, sample.pid, before).is_some();
            let in_code = kernel.iter().take_while(is_code).count();
            self.kernel_false += (kernel.len() - in_code) as u64;
            found = compare(module, &kernel[..in_code], is_complete);
        }
        match found {
            Beside::Same => self.same += 1,
            Beside::Better => self.better += 1,
            Beside::Worse => {
                self.worse += 1;
                let last = module.last().copied().unwrap_or(pc);
                let end = format!(
                    "{} at {}",
                    reason.unwrap_or("not walked"),
                    place(last, sample.pid, before)
                );
                *self.ends.entry(end).or_default() += 1;
            }
        }
    }

    /// The number of compared samples.
    pub(crate) fn compared(&self) -> u64 {
        self.same + self.better + self.worse
    }

    /// Whether the module is worse in at most one in `share` samples, of at least `least`.
    pub(crate) fn holds(&self, share: u64, least: u64) -> bool {
        self.compared() >= least && self.worse * share <= self.compared()
    }
}

impl fmt::Display for BesideKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compared = self.compared().max(1) as f64;
        write!(
            f,
            "{}: {} samples compared, {} not; same {}, better {}, worse {} ({:.2} %); \
             complete {:.2} %; frames a sample: {:.1}, the kernel's own {:.1} ({:.1} false)",
            self.name,
            self.compared(),
            self.not_compared,
            self.same,
            self.better,
            self.worse,
            100.0 * self.worse as f64 / compared,
            100.0 * self.complete as f64 / compared,
            self.frames as f64 / compared,
            self.kernel_frames as f64 / compared,
            self.kernel_false as f64 / compared
        )?;
        let mut ends: Vec<_> = self.ends.iter().collect();
        ends.sort_by_key(|(_, count)| Reverse(**count));
        for (end, count) in ends.iter().take(SHOWN) {
            write!(f, "\n  worse: {count} {end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_no_frame_that_the_module_lacks() {
        assert_eq!(compare(&[1, 2, 3], &[1, 2, 3], false), Beside::Same);
        assert_eq!(compare(&[1, 2, 3], &[1, 3], false), Beside::Better);
        assert_eq!(compare(&[1, 2, 3], &[], false), Beside::Better);
        assert_eq!(compare(&[1, 2], &[1, 2, 3], false), Beside::Worse);
        assert_eq!(compare(&[1, 2, 3], &[3, 2], false), Beside::Worse);
        assert_eq!(compare(&[], &[9], false), Beside::Worse);
        // Complete: the other frame is a false one.
        assert_eq!(compare(&[1, 2, 3], &[1, 9], true), Beside::Better);
    }

    #[test]
    fn a_process_has_the_mappings_of_its_parent() {
        let map = |pid, start, executable| Event::Map {
            pid,
            start,
            end: start + 16,
            offset: 32,
            executable,
            name: String::from("/bin/a"),
        };
        let fork = Event::Fork { pid: 2, parent: 1 };
        let events = [map(1, 16, true), map(1, 48, false), fork, map(1, 64, true)];
        for pid in [1, 2] {
            assert_eq!(code_at(17, pid, &events), Some(("/bin/a", 33)));
            assert_eq!(code_at(32, pid, &events), None);
            assert_eq!(code_at(48, pid, &events), None);
        }
        assert_eq!(place(65, 1, &events), "a+0x21");
        assert_eq!(place(65, 2, &events), "0x41");
        assert_eq!(
            code_at(17, 2, &[map(2, 16, true), Event::Exec { pid: 2 }]),
            None
        );
    }

    #[test]
    fn frames_that_do_not_rise_are_false() {
        assert_eq!(rising(&[]), 0);
        assert_eq!(rising(&[(1, 16)]), 1);
        assert_eq!(rising(&[(1, 16), (2, 32), (3, 64)]), 3);
        // A frame pointer that leads to itself.
        assert_eq!(rising(&[(1, 16), (2, 32), (2, 32), (2, 32)]), 2);
        assert_eq!(rising(&[(1, 32), (2, 16), (3, 48)]), 1);
    }
}
