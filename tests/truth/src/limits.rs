// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The known limits of the comparison: code for which .eh_frame or a row is wrong, each with its
//! proof.
//!
//! A limit is recognised from the instructions at the address or from the rules of both tables,
//! never from a name or an address alone. So no limit hides other differences.

use sframe::{
    rule::{
        Base,
        Location,
        Rule, //
    },
    stop_reason::StopReason,
    walk::FrameSource,
    x86_64, //
};

use crate::dwarf::{
    CfaLocation,
    CfiRow,
    UnwindError, //
};
use walk::{
    process::{
        MappedFile,
        Process, //
    },
    registers::{
        RBP,
        RSP, //
    },
    walker, //
};

/// The class of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Frames are skipped: the reported caller is a frame further out.
    Skip,
    /// The caller's PC differs, and is that of no frame of the stack.
    Pc,
    /// The caller's stack pointer differs, its PC does not.
    Sp,
    /// Only the caller's frame pointer differs.
    Fp,
    /// A caller is reported where the truth has none.
    Longer,
    /// The end of the stack is reported where the truth has a caller.
    FalseEnd,
    /// There is a rule, but it cannot be applied.
    Stop,
}

impl Class {
    /// A short name, for reports.
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

/// A difference, at the frame whose caller differs.
#[derive(Clone, Copy)]
pub struct FrameDifference<'a> {
    /// Its class.
    pub class: Class,
    /// The source of the caller.
    pub by: FrameSource,
    /// The file of the code.
    pub file: &'a MappedFile,
    /// The frame's lookup address, as a link-time address.
    pub address: u64,
    /// The rule, if there is a row.
    pub rule: Option<Rule>,
    /// The row of .eh_frame.
    pub truth: Result<&'a CfiRow, UnwindError>,
    /// Whether it is anonymous code, with .eh_frame in memory.
    pub is_loaded: bool,
    /// Why the walk ended, if that is known.
    pub end: Option<StopReason>,
}

impl FrameDifference<'_> {
    /// The code from the lookup address on.
    pub fn code(&self) -> &[u8] {
        self.file.bytes_at(self.address)
    }
}

/// A known limit.
pub struct Limit {
    /// A short name.
    pub name: &'static str,
    /// The fault, and the proof for it.
    pub what: &'static str,
    /// Whether a difference comes from this limit.
    is: fn(&FrameDifference<'_>) -> bool,
}

/// The limits.
pub const LIMITS: &[Limit] = &[
    Limit {
        name: "cfa-of-saved-register",
        what: "SFrame describes no saved register but the frame pointer: the loader's resolver keeps its \
               caller's stack pointer in %rbx, which its callees save; an extra row refers to the \
               saved value, but the callee has not saved %rbx yet, or has restored it",
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
        what: "a script generates the directives of musl's assembly, and ignores that longjmp switches \
               the stack: at `jmp *56(%rdi)`, directly after `mov 48(%rdi), %rsp`, both tables \
               still have rsp+8",
        is: |case| {
            let code = case.file.bytes_at(case.address.wrapping_sub(4));
            code.starts_with(&[0x48, 0x8b, 0x67, 0x30, 0xff, 0x67, 0x38])
        },
    },
    Limit {
        name: "stg-run",
        what: "the directives of the assembly in GHC's StgRun ignore that its first instructions, `sub $n, %rsp; \
               mov %rsp, %rax; sub $m, %rsp`, and its last ones, `add $m, %rsp` to `add $n, %rsp; ret`, move the stack \
               pointer",
        is: is_stg_run,
    },
    Limit {
        name: "cfa-at-ret",
        what: "at `ret` the return address is at rsp, so the CFA is rsp+8, but both tables have another \
               one: musl's script ignores that `ret` in clone is not reached through the `pop` \
               in front of it",
        is: |case| {
            let is_ret = case.file.bytes_at(case.address).starts_with(&[0xc3]);
            let wrong = |row: &CfiRow| row.cfa != CfaLocation::Register(RSP, 8);
            is_ret && case.by == FrameSource::Rows && case.truth.is_ok_and(wrong)
        },
    },
    Limit {
        name: "no-entry-at-ret",
        what: "crt files and some assembly have no entry in .eh_frame; at their `ret` the return address \
               is at rsp nevertheless",
        is: |case| {
            let is_ret = case.file.bytes_at(case.address).starts_with(&[0xc3]);
            is_ret && case.class == Class::Longer && matches!(case.truth, Err(UnwindError::NoEntry))
        },
    },
    Limit {
        name: "popped-return-address",
        what: "a function has popped its return address, as musl's vfork into rdx: both tables have it \
               directly below the stack pointer, where a child that shares the stack has \
               overwritten it; stopping is correct",
        is: |case| {
            let popped = Rule::amd64(Base::Sp, 0, Location::Unchanged);
            let row = CfaLocation::Register(RSP, 0);
            case.class == Class::Stop
                && case.rule.is_some_and(|rule| (rule.cfa, rule.ra) == (popped.cfa, popped.ra))
                && case.truth.is_ok_and(|truth| truth.cfa == row)
        },
    },
    Limit {
        name: "as-other-register",
        what: "GNU as up to 2.40 encodes every CFA register but the frame pointer as the stack pointer: \
               the row has the directive's offset, but from rsp; later versions drop the function",
        is: |case| {
            let Some(Rule { cfa, .. }) = case.rule else {
                return false;
            };
            let Ok(CfiRow {
                cfa: CfaLocation::Register(register, offset),
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
        what: "Go's .debug_frame gives the return address relative to the stack pointer even after a \
               function has switched to another stack, as runtime.systemstack; its frame is at the \
               frame pointer, and a function that has switched to a scheduler's stack has no caller",
        is: |case| {
            let rule = Rule::amd64(Base::Fp, 16, Location::AtCfa(-16));
            let by_sp = |row: &CfiRow| matches!(row.cfa, CfaLocation::Register(RSP, _));
            case.by == FrameSource::Rows
                && [Some(rule), Some(Rule::OUTERMOST)].contains(&case.rule)
                && case.truth.is_ok_and(by_sp)
                && case
                    .file
                    .bytes_at(case.address.wrapping_sub(x86_64::TAKES_STACK as u64))
                    .first_chunk()
                    .is_some_and(x86_64::takes_stack)
        },
    },
    Limit {
        name: "no-region-yet",
        what: "a program that has no regions has loaded anonymous code a moment ago; the walk that meets the code \
               first, and makes the module ask for its region, takes the step by the frame pointer, as in all \
               anonymous code",
        // Where a region has rows, no step is by the frame pointer.
        is: |case| case.is_loaded && case.by == FrameSource::FramePointer && case.rule.is_none(),
    },
    Limit {
        name: "search-too-long",
        what: "without a table, as until the module has made one, a search passes over at most 1,024 rows of a \
               function; stopping is correct",
        is: |case| case.class == Class::Stop && case.end == Some(StopReason::SearchTooLong),
    },
];

/// Whether a difference is at an instruction of GHC's `StgRun` whose effect on the stack pointer
/// the directives ignore, and the rule has that effect.
fn is_stg_run(case: &FrameDifference<'_>) -> bool {
    (0..STG_RUN_SIZE).any(|distance| {
        let code = case.file.bytes_at(case.address.wrapping_sub(distance));
        let Some(
            // sub $n, %rsp; mov %rsp, %rax; sub $m, %rsp; mov %rbx, (%rax)
            [0x48, 0x83, 0xec, frame, 0x48, 0x89, 0xe0, 0x48, 0x81, 0xec, a, b, c, d, 0x48, 0x89, 0x18],
        ) = code.first_chunk()
        else {
            return false;
        };
        let (frame, reserved) = (i32::from(*frame), i32::from_le_bytes([*a, *b, *c, *d]));
        let moved = match distance {
            4..14 | 0x37..0x58 => frame,
            14..0x25 => frame + reserved,
            0x58 => 0,
            _ => return false,
        };
        let is_moved = |rule: Rule| {
            (rule.cfa.base, rule.cfa.offset, rule.cfa.deref) == (Base::Sp, 8 + moved, false)
        };
        case.by == FrameSource::Rows && case.rule.is_some_and(is_moved)
    })
}

/// The size of `StgRun` up to its `ret`, in bytes.
const STG_RUN_SIZE: u64 = 0x59;

/// Whether a run-time address is the start of a signal trampoline, `mov $15, %rax; syscall`, for
/// which musl has no .eh_frame. The kernel's signal frame on the stack then holds all registers.
pub fn is_restorer(process: &Process, pc: u64) -> bool {
    const CODE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    walker::code_at(process, pc) == Some(CODE)
        || walker::code_at(process, pc.wrapping_sub(7)) == Some(CODE)
}

/// Whether a link-time address is an instruction of LuaJIT's interpreter at which the stack pointer
/// is not where the only row of the interpreter's .eh_frame has it: the interpreter makes or leaves
/// its frame, enters or leaves a trace, or handles the exit of a trace, whose frame has another
/// size. There the calls that were seen are the truth.
pub fn is_moved_by_interpreter(file: &MappedFile, address: u64, row: &CfiRow) -> bool {
    // push %rbp; push %rbx; push %r15; push %r14; sub $40,%rsp
    const ENTRY: &[u8] = &[0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x48, 0x83, 0xec, 0x28];
    // add $40,%rsp; pop %r14; pop %r15; pop %rbx; pop %rbp; ret
    const EXIT: &[u8] = &[
        0x48, 0x83, 0xc4, 0x28, 0x41, 0x5e, 0x41, 0x5f, 0x5b, 0x5d, 0xc3,
    ];
    // sub $16,%rsp; mov %r12,16(%rsp); mov %r13,8(%rsp); jmp *%rax
    const TRACE_ENTRY: &[u8] = &[
        0x48, 0x83, 0xec, 0x10, 0x4c, 0x89, 0x64, 0x24, 0x10, 0x4c, 0x89, 0x6c, 0x24, 0x08, 0xff,
        0xe0,
    ];
    // push %r13; push %r12; push %r11; push %r10; push %r9; push %r8; push %rdi; push %rsi; push
    // %rbp
    const TRACE_EXIT: &[u8] = &[
        0x41, 0x55, 0x41, 0x54, 0x41, 0x53, 0x41, 0x52, 0x41, 0x51, 0x41, 0x50, 0x57, 0x56, 0x55,
    ];
    // mov %eax,%esi; mov %rbp,%rdi; neg %esi; call: functions without a frame follow, and an entry
    // for callbacks
    const CALL: &[u8] = &[0x89, 0xc6, 0x48, 0x89, 0xef, 0xf7, 0xde, 0xe8];
    // push %rbx; push %r15; push %r14; sub $40,%rsp
    const CALLBACK: &[u8] = &[0x53, 0x41, 0x57, 0x41, 0x56, 0x48, 0x83, 0xec, 0x28];
    // pop %rbp; mov %rbp,(%rsp); and mov (%rsp),%rbp; push %rbp; ret
    const POP: &[u8] = &[0x5d, 0x48, 0x89, 0x2c, 0x24];
    const PUSH: &[u8] = &[0x48, 0x8b, 0x2c, 0x24, 0x55, 0xc3];
    // mov %rcx,%rsp
    const RESTORES: &[u8] = &[0x48, 0x89, 0xcc];
    row.cfa == CfaLocation::Register(RSP, 80)
        && (0..1024).any(|distance| {
            let code = file.bytes_at(address.wrapping_sub(distance as u64));
            let passes = |code: &[u8], other: &[u8]| {
                let passed = code.get(..distance).unwrap_or_default();
                passed.windows(other.len()).any(|part| part == other)
            };
            code.starts_with(ENTRY) && distance < ENTRY.len()
                || code.starts_with(EXIT) && (4..EXIT.len()).contains(&distance)
                || code.starts_with(TRACE_ENTRY) && (4..TRACE_ENTRY.len()).contains(&distance)
                || code.starts_with(TRACE_EXIT) && !passes(code, RESTORES)
                || code.starts_with(CALL) && distance >= 12 && !passes(code, CALLBACK)
                || code.starts_with(POP) && distance == 0
                || code.starts_with(PUSH) && distance == 5
        })
}

/// The known limit that a difference comes from, if any.
pub fn explain(case: &FrameDifference<'_>) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| (limit.is)(case))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dwarf::RegisterLocation;
    use walk::process::Files;

    fn row(register: u8, offset: i64) -> CfiRow {
        CfiRow {
            cfa: CfaLocation::Register(register, offset),
            rules: vec![(16, RegisterLocation::At(-8))],
            kept: 0,
            signal: false,
        }
    }

    /// The file of this program.
    fn own_file() -> &'static MappedFile {
        let path = std::env::current_exe().unwrap();
        Files::new().open(&path).unwrap()
    }

    /// The file of this program, which contains `code` as data, and the link-time address of this
    /// data.
    fn own(code: &[u8]) -> (&'static MappedFile, u64) {
        let file = own_file();
        let start = file.segments.iter().find_map(|segment| {
            let bytes = file.bytes_at(segment.address);
            let at = bytes.windows(code.len()).position(|bytes| bytes == code)?;
            Some(segment.address + at as u64)
        });
        (file, start.unwrap())
    }

    fn name(
        class: Class,
        by: FrameSource,
        rule: Option<Rule>,
        truth: Result<&CfiRow, UnwindError>,
    ) -> Option<&'static str> {
        name_in(class, by, rule, truth, false)
    }

    /// As [`name`], in code that may be loaded.
    fn name_in(
        class: Class,
        by: FrameSource,
        rule: Option<Rule>,
        truth: Result<&CfiRow, UnwindError>,
        is_loaded: bool,
    ) -> Option<&'static str> {
        let case = FrameDifference {
            class,
            by,
            file: own_file(),
            address: 0,
            rule,
            truth,
            is_loaded,
            end: None,
        };
        explain(&case).map(|limit| limit.name)
    }

    #[test]
    fn other_registers_encoded_as_the_stack_pointer() {
        let rule = |base, offset| Some(Rule::amd64(base, offset, Location::AtCfa(-16)));
        fn stop(rule: Option<Rule>, truth: Result<&CfiRow, UnwindError>) -> Option<&'static str> {
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
        assert_eq!(stop(rule(Base::Sp, 98328), Err(UnwindError::NoEntry)), None);
        assert_eq!(stop(None, Ok(&r11)), None);
    }

    #[test]
    fn the_cfa_at_a_ret() {
        let file = own_file();
        let text = file
            .segments
            .iter()
            .find(|segment| segment.executable)
            .unwrap();
        let code = file.bytes_at(text.address);
        let ret = code.iter().position(|byte| *byte == 0xc3).unwrap();
        let other = code.iter().position(|byte| *byte != 0xc3).unwrap();
        let name = |at: usize, row: &CfiRow| {
            let case = FrameDifference {
                class: Class::Stop,
                by: FrameSource::Rows,
                file,
                address: text.address + at as u64,
                rule: Some(Rule::amd64(Base::Sp, 0, Location::Unchanged)),
                truth: Ok(row),
                is_loaded: false,
                end: None,
            };
            explain(&case).map(|limit| limit.name)
        };
        assert_eq!(name(ret, &row(RSP, 0)), Some("cfa-at-ret"));
        let without = |at: usize, class| {
            let case = FrameDifference {
                class,
                by: FrameSource::FramePointer,
                file,
                address: text.address + at as u64,
                rule: None,
                truth: Err(UnwindError::NoEntry),
                is_loaded: false,
                end: None,
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
    fn the_moves_of_an_interpreter() {
        // The instructions of LuaJIT's interpreter, between others.
        static CODE: [u8; 108] = *b"\x90\x55\x53\x41\x57\x41\x56\x48\x83\xec\x28\
            \x90\x48\x83\xc4\x28\x41\x5e\x41\x5f\x5b\x5d\xc3\
            \x90\x48\x83\xec\x10\x4c\x89\x64\x24\x10\x4c\x89\x6c\x24\x08\xff\xe0\
            \x90\x41\x55\x41\x54\x41\x53\x41\x52\x41\x51\x41\x50\x57\x56\x55\
            \xe8\x01\x02\x03\x04\x48\x8b\x4d\x50\x48\x89\xcc\x90\x90\
            \x5d\x48\x89\x2c\x24\x90\x48\x8b\x2c\x24\x55\xc3\
            \x89\xc6\x48\x89\xef\xf7\xde\xe8\x01\x02\x03\x04\xc3\x90\xc3\
            \x53\x41\x57\x41\x56\x48\x83\xec\x28\x90\x90";
        let (file, start) = own(&CODE);
        let moved = [1..11, 16..23, 28..40, 41..68, 70..71, 81..82, 94..106];
        for offset in 0..CODE.len() as u64 {
            let is_moved = moved.iter().any(|range| range.contains(&offset));
            let is = |row| is_moved_by_interpreter(file, start + offset, &row);
            assert_eq!(is(row(RSP, 80)), is_moved, "{offset}");
            // An entry that follows the moves.
            assert!(!is(row(RSP, 40)) && !is(row(RBP, 80)));
        }
    }

    #[test]
    fn the_moves_of_stg_run() {
        // The code of Debian 13's shellcheck.
        static CODE: [u8; STG_RUN_SIZE as usize] = *b"\x48\x83\xec\x30\x48\x89\xe0\x48\x81\xec\x00\x40\x00\x00\
            \x48\x89\x18\x48\x89\x68\x08\x4c\x89\x60\x10\x4c\x89\x68\x18\x4c\x89\x70\x20\x4c\x89\x78\x28\
            \x49\x89\xf5\x48\x89\xf8\xff\xe0\x48\x89\xd8\x48\x81\xc4\x00\x40\x00\x00\x48\x8b\x1c\x24\
            \x48\x8b\x6c\x24\x08\x4c\x8b\x64\x24\x10\x4c\x8b\x6c\x24\x18\x4c\x8b\x74\x24\x20\
            \x4c\x8b\x7c\x24\x28\x48\x83\xc4\x30\xc3";
        let (file, start) = own(&CODE);
        let row = row(RSP, 8);
        let name = |offset: u64, cfa| {
            let case = FrameDifference {
                class: Class::Longer,
                by: FrameSource::Rows,
                file,
                address: start + offset,
                rule: Some(Rule::amd64(Base::Sp, cfa, Location::Unchanged)),
                truth: Ok(&row),
                is_loaded: false,
                end: None,
            };
            explain(&case).map(|limit| limit.name)
        };
        for (offset, cfa) in [(4, 56), (14, 16440), (0x24, 16440), (0x37, 56), (0x57, 56)] {
            assert_eq!(name(offset, cfa), Some("stg-run"), "{offset:#x}");
            assert_eq!(name(offset, cfa + 8), None, "{offset:#x}");
        }
        // Here the directives are right, or no instruction of StgRun is.
        for offset in [0, 0x25, 0x36, 0x59] {
            assert_eq!(name(offset, 16440), None, "{offset:#x}");
        }
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
    fn frame_pointers_of_code_that_was_loaded_a_moment_ago() {
        let row = row(RSP, 8);
        let name = |is_loaded, by, rule| name_in(Class::Skip, by, rule, Ok(&row), is_loaded);
        let rule = Rule::amd64(Base::Sp, 16, Location::Unchanged);
        let by_fp = FrameSource::FramePointer;
        assert_eq!(name(true, by_fp, None), Some("no-region-yet"));
        assert_eq!(name(false, by_fp, None), None);
        assert_eq!(name(true, FrameSource::Rows, Some(rule)), None);
        assert_eq!(name(true, by_fp, Some(rule)), None);
    }

    #[test]
    fn searches_of_many_rows() {
        let row = row(RSP, 8);
        let name = |class, end| {
            let (file, address) = own(&[0x90]);
            let case = FrameDifference {
                class,
                by: FrameSource::Rows,
                file,
                address,
                rule: None,
                truth: Ok(&row),
                is_loaded: false,
                end: Some(end),
            };
            explain(&case).map(|limit| limit.name)
        };
        let found = name(Class::Stop, StopReason::SearchTooLong);
        assert_eq!(found, Some("search-too-long"));
        assert_eq!(name(Class::Stop, StopReason::NoRows), None);
        assert_eq!(name(Class::Pc, StopReason::SearchTooLong), None);
    }

    #[test]
    fn names_are_different() {
        for (index, limit) in LIMITS.iter().enumerate() {
            assert!(LIMITS[..index].iter().all(|other| other.name != limit.name));
            assert!(!limit.what.is_empty());
        }
    }
}
