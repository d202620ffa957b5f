// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! A sample's stack by .eh_frame, and the part of it that .sframe covers.

use std::path::Path;

use sframe::{
    bytes::Fault,
    unwind::{
        self,
        Memory, //
    }, //
};
use truth::{
    dwarf::{
        self,
        CfiStep,
        UnwindError, //
        Unwinder,
    },
    files::CfiTables, //
};
use walk::{
    process::Process,
    registers::{
        RegisterFile,
        COUNT,
        PC,
        RAX,
        RBP,
        RSP, //
    },
    walker::{
        self,
        Walker, //
    }, //
};

use crate::function_code;

/// Addresses further than this above the copy, in bytes, belong to another stack.
const FAR: u64 = 1 << 24;

/// The value of rax until a system call has a result: -ENOSYS.
const IN_SYSTEM_CALL: u64 = -38i64 as u64;

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The maximum number of frames of a true stack.
const MAX_FRAMES: usize = 4096;

/// Functions in which a new thread starts. A frame of one, other than the innermost, is the
/// outermost frame of the new thread; the function's rows describe the thread that called it. (Go's
/// last two call at the base of a thread's own stack; their caller has another stack.)
const THREAD_STARTS: [&str; 7] = [
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "runtime.clone.abi0",
    "runtime.mcall",
    "runtime.morestack.abi0",
];

/// Go's functions without a caller: a program's entry point, and the function that goroutines
/// return to.
const GO_STARTS: [&str; 3] = [
    "_rt0_amd64_linux",
    "runtime.rt0_go.abi0",
    "runtime.goexit.abi0",
];

/// The maximum size of the code at a program's entry point, in bytes, for files without symbols.
const START_CODE: u64 = 64;

/// A sample's copy of memory: the stack, and words below the stack pointer that are in registers.
pub(crate) struct StackCopy<'a> {
    sp: u64,
    stack: &'a [u8],
    /// The words below the stack pointer that the code has popped into registers.
    popped: Vec<(u64, u64)>,
}

impl<'a> StackCopy<'a> {
    pub(crate) fn new(sp: u64, stack: &'a [u8]) -> StackCopy<'a> {
        StackCopy {
            sp,
            stack,
            popped: Vec::new(),
        }
    }

    /// A copy of only the first `len` bytes.
    pub(crate) fn shortened(&self, len: usize) -> StackCopy<'a> {
        StackCopy {
            sp: self.sp,
            stack: &self.stack[..len.min(self.stack.len())],
            popped: self.popped.clone(),
        }
    }
}

impl Memory for StackCopy<'_> {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        if let Some((_, word)) = self.popped.iter().find(|(at, _)| *at == address) {
            return Ok(*word);
        }
        address
            .checked_sub(self.sp)
            .and_then(|offset| {
                self.stack
                    .get(usize::try_from(offset).ok()?..)?
                    .first_chunk()
            })
            .map(|word| u64::from_le_bytes(*word))
            .ok_or(Fault)
    }
}

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TruthFrame {
    /// The PC, or the return address.
    pub(crate) pc: u64,
    /// The lookup address: the PC for the innermost frame and for frames that a signal interrupted;
    /// else PC - 1, in the call.
    pub(crate) at: u64,
}

/// The reason why a true stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// There is no caller.
    Outermost,
    /// The caller's data lies above the end of the copy.
    Copy,
    /// The caller's data lies outside of the stack or below the stack pointer, which is not copied.
    NotCopied,
    /// The reference unwinder cannot step.
    Unknown(UnwindError),
}

impl End {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            End::Outermost => "outermost",
            End::Copy => "end-of-copy",
            End::NotCopied => "not-copied",
            End::Unknown(why) => why.name(),
        }
    }
}

/// A true stack: at least the innermost frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TruthStack {
    pub(crate) frames: Vec<TruthFrame>,
    pub(crate) end: End,
}

/// A sample's copy of memory, with the words that the innermost function has popped.
pub(crate) fn memory<'a>(
    process: &Process,
    registers: &RegisterFile,
    stack: &'a [u8],
) -> StackCopy<'a> {
    let mut copy = StackCopy::new(registers.sp(), stack);
    if let Some(function) = function_code::function(process, registers.pc()) {
        copy.popped = function.popped(registers);
    }
    copy
}

/// The stack by .eh_frame.
pub(crate) fn truth(
    unwinder: &mut Unwinder,
    process: &Process,
    innermost: &RegisterFile,
    copy: &StackCopy<'_>,
) -> TruthStack {
    let registers = *innermost;
    let pc = registers.pc();
    let mut first = TruthFrame { pc, at: pc };
    // In a system call, the rule is that at its instruction, which may be the last of its function,
    // as in a signal trampoline. (After it, a new thread is on another stack.)
    let in_system_call = registers.get(RAX) == Some(IN_SYSTEM_CALL)
        && walker::code_at(process, pc.wrapping_sub(2)) == Some(SYSCALL);
    if in_system_call {
        // Or the rule before it: glibc's clone3 has no entry from there on, because of the new
        // thread.
        let before = [1, 3].map(|back| pc.wrapping_sub(back));
        let has_row = |at: &u64| unwinder.row_at(process, *at).is_ok();
        first.at = before.into_iter().find(has_row).unwrap_or(before[0]);
    } else if registers.get(RAX) != Some(0) && unwinder.row_at(process, pc).is_err() {
        // That gap includes the code that tests the result.
        let called = function_code::system_call_before(process, pc).map(|at| at.wrapping_sub(1));
        if let Some(at) = called.filter(|at| unwinder.row_at(process, *at).is_ok()) {
            first.at = at;
        }
    }
    walked(unwinder, process, registers, first, in_system_call, copy)
}

/// The stack from a caller on that was not found by .eh_frame.
pub(crate) fn behind(
    unwinder: &mut Unwinder,
    process: &Process,
    caller: unwind::Frame,
    copy: &StackCopy<'_>,
) -> TruthStack {
    let mut registers = RegisterFile::default();
    for (number, value) in [(PC, caller.pc), (RSP, caller.sp), (RBP, caller.fp)] {
        registers.set(number, value);
    }
    let first = TruthFrame {
        pc: caller.pc,
        at: caller.pc.wrapping_sub(1),
    };
    walked(unwinder, process, registers, first, false, copy)
}

/// The stack from a frame and its registers on.
fn walked(
    unwinder: &mut Unwinder,
    process: &Process,
    mut registers: RegisterFile,
    first: TruthFrame,
    in_system_call: bool,
    copy: &StackCopy<'_>,
) -> TruthStack {
    let mut frames = vec![first];
    let end = loop {
        let frame = frames[frames.len() - 1];
        let exact = frame.at == frame.pc;
        let is_new = frames.len() > 1 || is_new_thread(process, &registers);
        if is_new && is_thread_start(process, frame.at) {
            break End::Outermost;
        }
        // Some C libraries have no row for it, and musl has that of an ordinary function.
        let in_its_call =
            frames.len() == 1 && in_system_call && walker::is_behind_trampoline(process, frame.pc);
        let step = if in_its_call || walker::is_trampoline(process, frame.pc) {
            behind_signal(&registers, copy)
        } else if let Some(depth) = function_code::depth_in_init(process, frame.at) {
            called(&registers, depth, copy)
        } else {
            let row = unwinder.row_at(process, frame.at);
            row.and_then(|row| dwarf::step_by_row(&row, &registers, copy))
        };
        match step {
            Ok(CfiStep::Caller {
                registers: caller,
                signal,
            }) => {
                let pc = caller.pc();
                let at = if signal { pc } else { pc.wrapping_sub(1) };
                // The caller's PC is not code: the tables are wrong here.
                match process.at(at) {
                    Some(mapping) if mapping.executable => {}
                    Some(_) => break End::Unknown(UnwindError::NoFile),
                    None => break End::Unknown(UnwindError::NotMapped),
                }
                registers = caller;
                frames.push(TruthFrame { pc, at });
                if frames.len() == MAX_FRAMES {
                    break End::Copy;
                }
            }
            Ok(CfiStep::Outermost) => break End::Outermost,
            Err(UnwindError::NoEntry | UnwindError::NoTable) if is_start(process, frame.at) => {
                break End::Outermost;
            }
            // The thread has just started; its stack has no frames.
            Err(UnwindError::NoEntry)
                if frames.len() == 1 && is_new_thread(process, &registers) =>
            {
                break End::Outermost;
            }
            Err(UnwindError::NoEntry) if !exact && begins_function(process, frame.pc) => {
                break End::Outermost;
            }
            Err(UnwindError::Fault(address)) => {
                let beyond = address
                    .wrapping_sub(copy.sp)
                    .wrapping_sub(copy.stack.len() as u64);
                break if beyond.wrapping_add(8) < FAR {
                    End::Copy
                } else {
                    End::NotCopied
                };
            }
            Err(why) => break End::Unknown(why),
        }
    };
    TruthStack { frames, end }
}

/// Whether a return address without an entry is a function's first address. No call returns there:
/// the address was written to the base of a new stack (makecontext).
fn begins_function(process: &Process, pc: u64) -> bool {
    process
        .at(pc)
        .and_then(|mapping| mapping.link_address(pc))
        .and_then(|(file, link)| Some(file.cfi().ok()?.function_at(link)?.0 == link))
        .unwrap_or(false)
}

/// The interrupted registers, from those at a signal trampoline: the stack pointer points to a
/// `struct ucontext`, which has the registers at offset 40 (arch/x86's asm/ucontext.h,
/// asm/sigcontext.h).
fn behind_signal(at: &RegisterFile, copy: &StackCopy<'_>) -> Result<CfiStep, UnwindError> {
    // r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, by their DWARF numbers.
    const SAVED: [u8; COUNT] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, RSP, PC];
    let mut registers = *at;
    for (number, offset) in SAVED.into_iter().zip((40..).step_by(8)) {
        let address = at.sp().wrapping_add(offset);
        let word = copy.read_word(address);
        registers.set(number, word.map_err(|Fault| UnwindError::Fault(address))?);
    }
    Ok(CfiStep::Caller {
        registers,
        signal: true,
    })
}

/// The caller whose return address is `depth` bytes above the stack pointer. No other register
/// changes.
fn called(at: &RegisterFile, depth: i64, copy: &StackCopy<'_>) -> Result<CfiStep, UnwindError> {
    let address = at.sp().wrapping_add_signed(depth);
    let pc = copy.read_word(address);
    let mut registers = *at;
    registers.set(PC, pc.map_err(|Fault| UnwindError::Fault(address))?);
    registers.set(RSP, address.wrapping_add(8));
    Ok(CfiStep::Caller {
        registers,
        signal: false,
    })
}

/// The name of the function at a run-time address.
fn function_name(process: &Process, address: u64) -> Option<&'static str> {
    let (file, link) = process.at(address)?.link_address(address)?;
    Some(file.function_at(link)?.0)
}

fn is_thread_start(process: &Process, address: u64) -> bool {
    function_name(process, address).is_some_and(|name| THREAD_STARTS.contains(&name))
}

/// Whether a frame has no caller, by the name of its function: the start of a program, a thread or
/// a goroutine.
pub(crate) fn is_beginning(process: &Process, address: u64) -> bool {
    is_start(process, address)
        || is_thread_start(process, address)
        || function_name(process, address).is_some_and(|name| GO_STARTS.contains(&name))
}

/// Whether the registers are those of a new thread. (Those of a forked process look alike, but its
/// code has an entry.) Code that ends with a system call may lie before another function, as
/// in musl's clone.
fn is_new_thread(process: &Process, registers: &RegisterFile) -> bool {
    registers.get(RAX) == Some(0)
        && walker::code_at(process, registers.pc().wrapping_sub(2)) == Some(SYSCALL)
        && !begins_function(process, registers.pc())
}

/// Whether an address lies in a program's entry point, which has no caller.
fn is_start(process: &Process, address: u64) -> bool {
    if let Some(name) = function_name(process, address) {
        return name == "_start";
    }
    let Some((file, link)) = process
        .at(address)
        .and_then(|mapping| mapping.link_address(address))
    else {
        return false;
    };
    // The entry point in the ELF header.
    let entry = file.bytes.get(24..).and_then(|bytes| bytes.first_chunk());
    entry.is_some_and(|entry| {
        let entry = u64::from_le_bytes(*entry);
        entry != 0 && link.wrapping_sub(entry) < START_CODE
    })
}

/// The number of frames that .sframe covers: frames whose inner frames all have rows. Frames in
/// files with an unreadable section count as covered.
pub(crate) fn covered(walker: &mut Walker, process: &Process, frames: &[TruthFrame]) -> usize {
    let has_row = |frame: &TruthFrame| {
        process
            .at(frame.at)
            .is_some_and(|mapping| !matches!(walker.rule_at(frame.at, mapping), Ok(None)))
    };
    let rows = frames.iter().map(has_row);
    let covered = rows.take_while(|has_row| *has_row).count();
    frames.len().min(covered + 1)
}

/// The number of frames up to main or a thread's function: all but the outermost ones in the C
/// library and in start code; all frames, if there are no others. `None` if the truth ends before
/// main.
pub(crate) fn to_main(process: &Process, stack: &TruthStack) -> Option<usize> {
    let is_runtime = |frame: &TruthFrame| {
        let file = process.at(frame.at).and_then(|mapping| mapping.file);
        let name = file.and_then(|file| file.path.file_name()?.to_str());
        is_start(process, frame.at)
            || is_thread_start(process, frame.at)
            || name.is_some_and(|name| {
                ["libc.so", "ld-linux", "ld-musl", "libpthread"]
                    .iter()
                    .any(|runtime| name.starts_with(runtime))
            })
    };
    let is_main = |frame: &TruthFrame| function_name(process, frame.at) == Some("main");
    let frames = &stack.frames;
    if let Some(index) = frames.iter().position(is_main) {
        return Some(index + 1);
    }
    let last = frames.iter().rposition(|frame| !is_runtime(frame));
    (stack.end == End::Outermost).then(|| last.map_or(frames.len(), |index| index + 1))
}

/// The path of a file that had the name `name` in the recording.
pub(crate) fn translated(name: &str, translations: &[(String, String)], root: &Path) -> String {
    for (from, to) in translations {
        if let Some(rest) = name.strip_prefix(from.as_str()) {
            return format!("{to}{rest}");
        }
    }
    root.join(name.trim_start_matches('/'))
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn copies_contain_the_copied_words() {
        let bytes: Vec<u8> = (0..24).collect();
        let mut copy = StackCopy::new(0x1000, &bytes[..20]);
        assert_eq!(copy.read_word(0x1000), Ok(0x0706_0504_0302_0100));
        assert_eq!(copy.read_word(0x100c), Ok(0x1312_1110_0f0e_0d0c));
        assert_eq!(copy.read_word(0x100d), Err(Fault));
        assert_eq!(copy.read_word(0xff8), Err(Fault));
        assert_eq!(copy.read_word(u64::MAX), Err(Fault));
        copy.popped.push((0xff8, 5));
        assert_eq!(copy.read_word(0xff8), Ok(5));
        assert_eq!(copy.shortened(8).read_word(0x1008), Err(Fault));
        assert_eq!(copy.shortened(8).read_word(0xff8), Ok(5));
    }

    #[test]
    fn a_signal_frame_restores_the_interrupted_registers() {
        let words: Vec<u8> = (0..32u64)
            .flat_map(|word| (0x100 + word).to_le_bytes())
            .collect();
        let mut at = RegisterFile::default();
        at.set(RSP, 0x1000);
        let outcome = behind_signal(&at, &StackCopy::new(0x1000, &words));
        let Ok(CfiStep::Caller {
            registers,
            signal: true,
        }) = outcome
        else {
            panic!("{outcome:?}");
        };
        assert_eq!(registers.get(8), Some(0x105));
        assert_eq!(registers.get(walk::registers::RBP), Some(0x10f));
        // At 160 and 168 bytes, as in glibc's table.
        assert_eq!((registers.sp(), registers.pc()), (0x114, 0x115));
        let outcome = behind_signal(&at, &StackCopy::new(0x1000, &words[..168]));
        assert_eq!(outcome, Err(UnwindError::Fault(0x10a8)));
    }

    /// A process that has mapped the assembled source, and the address of the mapping.
    pub(crate) fn assembled(name: &str, source: &str) -> (Process, u64) {
        let dir = std::env::temp_dir().join(format!("samples-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (from, out) = (dir.join("code.s"), dir.join("code.so"));
        std::fs::write(&from, source).unwrap();
        let status = std::process::Command::new("gcc")
            .args(["-shared", "-nostdlib", "-o"])
            .args([&out, &from])
            .status();
        assert!(status.unwrap().success());

        let file = walk::process::Files::new().open(&out).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let code = file.segments.iter().find(|segment| segment.executable);
        let code = code.unwrap();
        let mut process = Process::new();
        process.map(walk::process::ProcessMapping {
            start: code.address,
            end: code.address + 0x1000,
            offset: code.offset,
            executable: true,
            writable: false,
            is_file: true,
            name: "/code.so".to_owned(),
            file: Some(file),
        });
        (process, code.address)
    }

    #[test]
    fn a_thread_is_new_behind_its_system_call_alone() {
        const SOURCE: &str = ".text\n\
            .type last,@function\nlast: .cfi_startproc\n xor %eax,%eax\n syscall\n .cfi_endproc\n\
            .size last,.-last\n\
            .globl __clone\n.type __clone,@function\n__clone: .cfi_startproc\n syscall\n ret\n\
            .cfi_endproc\n.size __clone,.-__clone\n";
        let (process, start) = assembled("clone", SOURCE);
        // xor, syscall; and then clone, with a syscall.
        let clone = start + 4;
        assert_eq!(function_name(&process, clone), Some("__clone"));
        let is_new = |pc| {
            let mut registers = RegisterFile::default();
            registers.set(RAX, 0);
            registers.set(PC, pc);
            is_new_thread(&process, &registers)
        };
        assert!(!is_new(clone));
        assert!(is_new(clone + 2));
        assert!(!is_new(clone + 3));
    }

    #[test]
    fn names_are_translated() {
        let translations = [("/tmp/x".to_owned(), "/src/build".to_owned())];
        let root = Path::new("/root-of-it");
        assert_eq!(translated("/tmp/x/a", &translations, root), "/src/build/a");
        assert_eq!(
            translated("/usr/lib/a", &translations, root),
            "/root-of-it/usr/lib/a"
        );
    }
}
