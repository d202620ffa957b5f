// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The limits of the truth: where .eh_frame or a row is known to be wrong, each with what proves
//! it.
//!
//! A limit is found by the instructions at the address or by what both tables say there, never by
//! a name or an address alone. So none hides more than it says.

use sframe::rule::Rule;

use crate::{
    dwarf::{
        Row,
        Why, //
    },
    policy::{
        self,
        By, //
    },
    process::{
        File,
        Process, //
    }, //
};

/// What kind of difference it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Frames are left out: what is said to be the caller is a frame further out.
    Skip,
    /// The caller's PC is another one, which is nowhere on the stack.
    Pc,
    /// The caller's stack pointer is another one, and its PC the same.
    Sp,
    /// The caller's frame pointer is another one, and the rest the same.
    Fp,
    /// There is a caller where the truth has none.
    Longer,
    /// There is no caller, it says, where the truth has one.
    FalseEnd,
    /// There is a rule, but it could not be followed.
    Stop,
}

impl Class {
    /// A short name, for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Skip => "skip",
            Class::Pc => "pc",
            Class::Sp => "sp",
            Class::Fp => "fp",
            Class::Longer => "longer",
            Class::FalseEnd => "false-end",
            Class::Stop => "stop",
        }
    }
}

/// A difference, at the frame whose caller was looked for.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// What kind it is.
    pub class: Class,
    /// What told where the caller is.
    pub by: By,
    /// The file of the code.
    pub file: &'a File,
    /// The link-time address at which the frame's rule was looked up.
    pub address: u64,
    /// The rule, if there is a row.
    pub rule: Option<Rule>,
    /// What .eh_frame says.
    pub truth: Result<&'a Row, Why>,
}

impl Case<'_> {
    /// The code from the address on.
    pub fn code(&self) -> &[u8] {
        self.file.bytes_at(self.address)
    }
}

/// A limit that is known.
pub struct Limit {
    /// A short name.
    pub name: &'static str,
    /// What is wrong, and how that is seen.
    pub what: &'static str,
    /// Whether a difference is one of it.
    is: fn(&Case<'_>) -> bool,
}

/// The name of the limit that is none of the truth, but of frame pointers.
pub const SKIP: &str = "frame-pointer-skip";

/// The limits.
pub const LIMITS: &[Limit] = &[Limit {
    name: SKIP,
    what: "in code that has no rows the frame pointer is that of a function further out, wherever \
           a function has not set it yet or never does: the CFA of the function's row is not \
           counted from it",
    is: |case| case.class == Class::Skip && case.by == By::FramePointer && case.rule.is_none(),
}];

/// Whether the code at a run-time address is that by which a handler returns to the kernel, which
/// musl has no .eh_frame for: `mov $15, %rax; syscall`, with its call still to come. What Linux has
/// put on the stack then tells all registers, with no need for a table.
pub fn is_restorer(process: &Process, pc: u64) -> bool {
    const CODE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    policy::code_at(process, pc) == Some(CODE)
        || policy::code_at(process, pc.wrapping_sub(7)) == Some(CODE)
}

/// The limit that a difference comes from, if it is a known one.
pub fn explain(case: &Case<'_>) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| (limit.is)(case))
}
