// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The limits of the truth: where .eh_frame or a row is known to be wrong, each with what proves
//! it.
//!
//! A limit is found by the instructions at the address or by what both tables say there, never by
//! a name or an address alone. So none hides more than it says.

use sframe::{
    code,
    rule::{
        Base,
        Location,
        Rule, //
    },
    walk::FrameSource, //
};

use crate::dwarf::{
    Cfa,
    Row,
    Why, //
};
use walk::{
    process::{
        File,
        Process, //
    },
    registers::{
        RBP,
        RSP, //
    },
    walker, //
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
    pub by: FrameSource,
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

/// The limits.
pub const LIMITS: &[Limit] = &[
    Limit {
        name: "cfa-of-saved-register",
        what: "SFrame knows of no register but the frame pointer where it was saved: the loader's \
               resolver keeps the stack pointer of its caller in %rbx, and what it calls saves that; \
               where a row extra_rows tells of that place, the called function has not come there yet, \
               or has left it",
        is: |case| {
            let of_register = |rule: Rule| match rule.cfa.base {
                Base::Register(_) => true,
                Base::Sp => rule.cfa.deref && rule.cfa.offset < 0,
                Base::Fp => false,
            };
            case.class == Class::Stop && case.rule.is_some_and(of_register)
        },
    },
    Limit {
        name: "musl-longjmp",
        what: "musl makes the directives of its assembly by a script, which does not see that \
               longjmp takes another stack: at `jmp *56(%rdi)`, right behind `mov 48(%rdi), %rsp`, \
               both tables still say rsp+8",
        is: |case| {
            let code = case.file.bytes_at(case.address.wrapping_sub(4));
            code.starts_with(&[0x48, 0x8b, 0x67, 0x30, 0xff, 0x67, 0x38])
        },
    },
    Limit {
        name: "cfa-at-ret",
        what: "`ret` takes the return address from where rsp points to, so the CFA is rsp+8 there, \
               and both tables say otherwise: musl's script does not see that `ret` in clone is \
               not reached through the `pop` in front of it",
        is: |case| {
            let is_ret = case.file.bytes_at(case.address).starts_with(&[0xc3]);
            let wrong = |row: &Row| row.cfa != Cfa::Register(RSP, 8);
            is_ret && case.by == FrameSource::Rows && case.truth.is_ok_and(wrong)
        },
    },
    Limit {
        name: "no-entry-at-ret",
        what: "crt files and some assembly have no entry in .eh_frame; at their `ret`, the return \
               address is where rsp points to all the same",
        is: |case| {
            let is_ret = case.file.bytes_at(case.address).starts_with(&[0xc3]);
            is_ret && case.class == Class::Longer && matches!(case.truth, Err(Why::NoEntry))
        },
    },
    Limit {
        name: "popped-return-address",
        what: "a function that has popped its return address, as musl's vfork into rdx: both tables \
               say that it is right below the stack pointer, where a child that shares the stack \
               has overwritten it; not to go there is right",
        is: |case| {
            let popped = Rule::amd64(Base::Sp, 0, Location::Unchanged);
            let row = Cfa::Register(RSP, 0);
            case.class == Class::Stop
                && case.rule.is_some_and(|rule| (rule.cfa, rule.ra) == (popped.cfa, popped.ra))
                && case.truth.is_ok_and(|truth| truth.cfa == row)
        },
    },
    Limit {
        name: "as-other-register",
        what: "GNU as up to 2.40 takes every register that the CFA is counted from for the stack \
               pointer if it is not the frame pointer: the row has the directive's offset, but from \
               rsp; later ones leave the function out",
        is: |case| {
            let Some(Rule { cfa, .. }) = case.rule else {
                return false;
            };
            let Ok(Row {
                cfa: Cfa::Register(register, offset),
                ..
            }) = case.truth
            else {
                return false;
            };
            case.by == FrameSource::Rows
                && cfa.base == Base::Sp
                && !cfa.deref
                && ![RSP, RBP].contains(register)
                && i64::from(cfa.offset) == *offset
        },
    },
    Limit {
        name: "go-other-stack",
        what: "Go tells debuggers where the return address is from the stack pointer on, also where a \
               function has just taken another stack, as runtime.systemstack; its frame is where the \
               frame pointer points to, and of who has taken a scheduler's there is no caller",
        is: |case| {
            let rule = Rule::amd64(Base::Fp, 16, Location::AtCfa(-16));
            let by_sp = |row: &Row| matches!(row.cfa, Cfa::Register(RSP, _));
            case.by == FrameSource::Rows
                && [Some(rule), Some(Rule::OUTERMOST)].contains(&case.rule)
                && case.truth.is_ok_and(by_sp)
                && case
                    .file
                    .bytes_at(case.address.wrapping_sub(code::TAKES_STACK as u64))
                    .first_chunk()
                    .is_some_and(code::takes_stack)
        },
    },
];

/// Whether the code at a run-time address is that by which a handler returns to the kernel, which
/// musl has no .eh_frame for: `mov $15, %rax; syscall`, with its call still to come. What Linux has
/// put on the stack then tells all registers, with no need for a table.
pub fn is_restorer(process: &Process, pc: u64) -> bool {
    const CODE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    walker::code_at(process, pc) == Some(CODE)
        || walker::code_at(process, pc.wrapping_sub(7)) == Some(CODE)
}

/// The limit that a difference comes from, if it is a known one.
pub fn explain(case: &Case<'_>) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| (limit.is)(case))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dwarf::Place;
    use walk::process::Files;

    fn row(register: u8, offset: i64) -> Row {
        Row {
            cfa: Cfa::Register(register, offset),
            rules: vec![(16, Place::At(-8))],
            kept: 0,
            signal: false,
        }
    }

    fn name(
        class: Class,
        by: FrameSource,
        rule: Option<Rule>,
        truth: Result<&Row, Why>,
    ) -> Option<&'static str> {
        let file = Files::new().open(&std::env::current_exe().unwrap());
        let case = Case {
            class,
            by,
            file: file.unwrap(),
            address: 0,
            rule,
            truth,
        };
        explain(&case).map(|limit| limit.name)
    }

    #[test]
    fn other_registers_taken_for_the_stack_pointer() {
        let rule = |base, offset| Some(Rule::amd64(base, offset, Location::AtCfa(-16)));
        fn stop(rule: Option<Rule>, truth: Result<&Row, Why>) -> Option<&'static str> {
            name(Class::Stop, FrameSource::Rows, rule, truth)
        }
        let r11 = row(11, 98328);
        let limit = Some("as-other-register");
        assert_eq!(stop(rule(Base::Sp, 98328), Ok(&r11)), limit);
        assert_eq!(
            name(
                Class::Pc,
                FrameSource::Rows,
                rule(Base::Sp, 98328),
                Ok(&r11)
            ),
            limit
        );
        assert_eq!(stop(rule(Base::Sp, 98320), Ok(&r11)), None);
        assert_eq!(stop(rule(Base::Fp, 98328), Ok(&r11)), None);
        for register in [RBP, RSP] {
            let row = row(register, 98328);
            assert_eq!(stop(rule(Base::Sp, 98328), Ok(&row)), None);
        }
        assert_eq!(stop(rule(Base::Sp, 98328), Err(Why::NoEntry)), None);
        assert_eq!(stop(None, Ok(&r11)), None);
    }

    #[test]
    fn a_ret_tells_where_the_cfa_is() {
        let file = Files::new()
            .open(&std::env::current_exe().unwrap())
            .unwrap();
        let text = file
            .segments
            .iter()
            .find(|segment| segment.executable)
            .unwrap();
        let code = file.bytes_at(text.address);
        let ret = code.iter().position(|byte| *byte == 0xc3).unwrap();
        let other = code.iter().position(|byte| *byte != 0xc3).unwrap();
        let name = |at: usize, row: &Row| {
            let case = Case {
                class: Class::Stop,
                by: FrameSource::Rows,
                file,
                address: text.address + at as u64,
                rule: Some(Rule::amd64(Base::Sp, 0, Location::Unchanged)),
                truth: Ok(row),
            };
            explain(&case).map(|limit| limit.name)
        };
        assert_eq!(name(ret, &row(RSP, 0)), Some("cfa-at-ret"));
        let without = |at: usize, class| {
            let case = Case {
                class,
                by: FrameSource::FramePointer,
                file,
                address: text.address + at as u64,
                rule: None,
                truth: Err(Why::NoEntry),
            };
            explain(&case).map(|limit| limit.name)
        };
        assert_eq!(without(ret, Class::Longer), Some("no-entry-at-ret"));
        assert_eq!(without(ret, Class::Pc), None);
        assert_eq!(without(other, Class::Longer), None);
        assert_eq!(name(ret, &row(RSP, 8)), None);
        assert_ne!(name(other, &row(RSP, 0)), Some("cfa-at-ret"));
    }

    #[test]
    fn return_addresses_below_the_stack_pointer() {
        let rule = |offset| Some(Rule::amd64(Base::Sp, offset, Location::Unchanged));
        let (popped, pushed) = (row(7, 0), row(7, 8));
        let stop = |rule, truth| name(Class::Stop, FrameSource::Rows, rule, Ok(truth));
        assert_eq!(stop(rule(0), &popped), Some("popped-return-address"));
        assert_eq!(stop(rule(8), &pushed), None);
        assert_eq!(stop(rule(0), &pushed), None);
        assert_eq!(stop(None, &popped), None);
        assert_eq!(
            name(Class::Pc, FrameSource::Rows, rule(0), Ok(&popped)),
            None
        );
    }

    #[test]
    fn names_are_different() {
        for (index, limit) in LIMITS.iter().enumerate() {
            assert!(LIMITS[..index].iter().all(|other| other.name != limit.name));
            assert!(!limit.what.is_empty());
        }
    }
}
