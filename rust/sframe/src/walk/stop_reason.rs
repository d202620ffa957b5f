// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Why a walk ends: the one list that feeds counters, the tracepoint, `sframectl explain` and
//! `Documentation/stop-reasons.rst`.
//!
//! A new reason is one entry here; `tools/sframectl/tests/documents.rs` then tells how the document
//! is written anew.

use crate::sframe::{
    format::error::Error,
    unwind::step::Stop, //
};
use core::ffi::CStr;

/// Declares [`StopReason`] with a name, a meaning and advice for each reason, so that no reason
/// lacks one.
macro_rules! stop_reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal, $meaning:literal, $advice:literal;)*) => {
        /// Why a walk has ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum StopReason {
            $($(#[$doc])* $reason,)*
        }

        impl StopReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [StopReason] = &[$(StopReason::$reason,)*];

            /// The name in counters (`stop_NAME`), in the tracepoint and in `sframectl explain`.
            /// Names stay as they are.
            pub const fn name(self) -> &'static CStr {
                const NAMES: &[&CStr] = &[$($name,)*];
                // Not a `match`, which would compile to a comparison for each reason.
                let number = self as usize;
                if number < NAMES.len() {
                    NAMES[number]
                } else {
                    c""
                }
            }

            /// Whether the code of the last frame cut the stack, and not a limit.
            pub const fn is_cut(self) -> bool {
                !matches!(
                    self,
                    StopReason::Outermost | StopReason::Full | StopReason::Budget
                )
            }

            /// The meaning: a clause for people, without a full stop.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(StopReason::$reason => $meaning,)*
                }
            }

            /// Advice for people: sentences, or nothing.
            pub const fn advice(self) -> &'static str {
                match self {
                    $(StopReason::$reason => $advice,)*
                }
            }
        }
    };
}

stop_reasons! {
    /// The walk reached the outermost frame: the stack is complete.
    Outermost = c"outermost",
        "the stack is complete: nothing called the last frame",
        "";
    /// The buffer has no space for another frame.
    Full = c"full",
        "the stack has more frames than the buffer has space for",
        "Raise the sysctl kernel.perf_event_max_stack while no event is open, or record deferred stacks.";
    /// The walk used up the work or the time that one sample may take.
    Budget = c"budget",
        "the walk used up the work of one sample, or its time",
        "Run `sframectl watch`: tables need fewer reads. Deferred stacks have a larger budget.";
    /// No row covers the PC, and the frame pointer did not pass the checks.
    NoRows = c"no_rows",
        "no row covers the code of the last frame, and nothing proves that the code keeps a frame pointer",
        "Run `sframectl watch`, or build the file with -Wa,--gsframe or with frame pointers.";
    /// The PC is in code that a runtime made. Its region proves no step, or there is no region of
    /// this code yet.
    RegionUnknown = c"region_unknown",
        "the last frame is in code that a runtime made, and no region of this code proves a caller",
        "Such samples are rare: a function was setting up or removing its frame, or the code is new.";
    /// Anonymous memory replaced the code of a file, as huge pages for text do.
    TextReplaced = c"text_replaced",
        "anonymous memory replaced the code of a file, so its rows do not apply",
        "Run the program without copying its code to huge pages.";
    /// Signals interrupted more signal handlers, or steps changed stacks more often, than a walk
    /// follows.
    Signals = c"signals",
        "more signal handlers are nested, or more steps change the stack, than a walk follows (16)",
        "Nested handlers or many stack switches cause it; record another event if the top of the stack suffices.";
    /// The stack pointer of a signal trampoline does not point to a `struct ucontext`.
    NoContext = c"no_context",
        "the stack pointer of a signal trampoline does not point to saved registers",
        "Such samples are rare: the kernel was restoring the registers.";
    /// The kernel is in the middle of handling a uprobe of the task.
    Uprobe = c"uprobe",
        "the kernel was in the middle of handling a uprobe",
        "Such samples are rare.";
    /// Nothing is mapped at the PC.
    NotMapped = c"not_mapped",
        "nothing is mapped at the return address",
        "If there are many, a program overwrote its stack, or a row is wrong: `sframectl check` the file.";
    /// The mappings changed while the walk read them.
    MappingMoved = c"mapping_moved",
        "the mappings of the task changed during the walk",
        "Such samples are rare.";
    /// The return address lies in memory that is not executable.
    NotExecutable = c"not_executable",
        "the return address lies in memory that is not executable",
        "If there are many, a program overwrote its stack, or a row is wrong: `sframectl check` the file.";
    /// The stack could not be read.
    StackFault = c"stack_fault",
        "the stack cannot be read there",
        "A page of the stack is swapped out, or the stack pointer does not point to a stack.";
    /// Rows could not be read. The module asked for the page.
    SectionFault = c"section_fault",
        "the rows cannot be read: their page is not in memory, or the section is cut short",
        "Usual for the first samples of a program. If it stays, the file system does not answer, or has no pages in memory (DAX): run `sframectl watch`, record deferred stacks, or copy the program.";
    /// The section contradicts itself.
    Malformed = c"malformed",
        "the section of the file contradicts itself",
        "`sframectl check` the file, and build the file again.";
    /// The section is of a version, ABI or kind that is not supported.
    Unsupported = c"unsupported",
        "the section of the file is of a version, ABI or kind that is not supported",
        "`sframectl check` the file.";
    /// The section is not sorted, or a function has too many rows for a search in an interrupt.
    SearchTooLong = c"search_too_long",
        "the section is not sorted, or the function has too many rows to search in an interrupt",
        "Link with binutils' ld, which sorts. Deferred stacks are searched further.";
    /// The canonical frame address is not above the stack pointer.
    CfaNotRising = c"cfa_not_rising",
        "the caller's frame would lie below its callee's",
        "The row is wrong, a program overwrote its stack, or code runs on a stack that no row describes.";
    /// The canonical frame address is not aligned as the ABI demands.
    CfaMisaligned = c"cfa_misaligned",
        "the caller's stack pointer would not be aligned",
        "The row is wrong, a program overwrote its stack, or code runs on a stack that no row describes.";
    /// The canonical frame address lies outside of the address space.
    CfaOverflow = c"cfa_overflow",
        "the caller's stack pointer would lie outside of the address space",
        "The row is wrong, a program overwrote its stack, or code runs on a stack that no row describes.";
    /// The rule needs a register, or a word below the stack in use, whose value is not known in
    /// this frame.
    RegisterUnknown = c"register_unknown",
        "the rule needs a register, or a word below the stack in use, whose value is not known in this frame",
        "Usual for frames that realign their stack, and for extra rows of saved registers.";
}

impl StopReason {
    /// [`StopReason::name`] as a string.
    pub fn as_str(self) -> &'static str {
        self.name().to_str().unwrap_or_default()
    }

    /// The reason of a walk that ends at this step. `is_spent`: reads failed because the walk used
    /// up its reads.
    pub const fn of_step(stop: Stop, is_spent: bool) -> Self {
        match stop {
            Stop::CfaNotRising => StopReason::CfaNotRising,
            Stop::CfaMisaligned => StopReason::CfaMisaligned,
            Stop::CfaOverflow => StopReason::CfaOverflow,
            Stop::RegisterUnknown => StopReason::RegisterUnknown,
            Stop::Fault { .. } => StopReason::of_stack_fault(is_spent),
            // Steps by the frame pointer alone fail so.
            Stop::FpZero | Stop::FpBelowSp | Stop::FpMisaligned => StopReason::NoRows,
        }
    }

    /// Why the stack could not be read. `is_spent` says that reads failed because there were too
    /// many.
    pub const fn of_stack_fault(is_spent: bool) -> Self {
        if is_spent {
            StopReason::Budget
        } else {
            StopReason::StackFault
        }
    }

    /// This reason of a step; or [`StopReason::Budget`], if the step failed in a region after the
    /// walk had used up its reads (`is_spent`).
    pub(super) const fn or_budget(self, is_spent: bool) -> Self {
        match self {
            StopReason::RegionUnknown if is_spent => StopReason::Budget,
            reason => reason,
        }
    }

    /// Why a section could not be used. `is_spent` says that reads failed because there were too
    /// many.
    pub(super) const fn of_section(error: Error, is_spent: bool) -> Self {
        match error {
            Error::Fault { .. } if is_spent => StopReason::Budget,
            Error::Fault { .. } => StopReason::SectionFault,
            Error::Malformed { .. } => StopReason::Malformed,
            Error::Unsupported { .. } => StopReason::Unsupported,
            Error::TooLong => StopReason::SearchTooLong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StopReason;
    use std::collections::HashSet;

    #[test]
    fn each_reason_has_a_name_of_its_own_and_a_meaning() {
        let names: HashSet<_> = StopReason::ALL.iter().map(|one| one.as_str()).collect();
        assert_eq!(names.len(), StopReason::ALL.len());
        for (number, reason) in StopReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number);
            assert!(!reason.as_str().is_empty() && !reason.meaning().is_empty());
        }
    }
}
