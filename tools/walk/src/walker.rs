// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What rust/walk.rs does with the core, step by step, and by the same names.
//!
//! It reads sections and code from the files instead of the memory that they are mapped to, and so
//! knows nothing of pages that are not there, nor of budgets. All else is as in the module; what is
//! changed there has to be changed here.

use sframe::{
    abi::Abi,
    bytes::{
        Fault,
        Source, //
    },
    code,
    eh_frame_hdr,
    elf,
    error::Error,
    fallback::{
        self,
        FramePointer, //
    },
    rule::{
        Base,
        Rule, //
    },
    section::{
        Search,
        Section, //
    },
    table::{
        ExtraRow,
        EXTRA_ROW_SIZE, //
    },
    unwind::{
        self,
        Called,
        Frame,
        Interrupted,
        Memory,
        Step,
        Stop,
        MAX_SIGNALS, //
    }, //
};

use crate::{
    process::{
        File,
        Mapping,
        Process, //
    },
    registers::{
        Registers,
        RAX,
        RBP, //
    },
    table::Table, //
};

/// The most frames of a stack, as `kernel.perf_event_max_stack` has it.
pub const MOST_FRAMES: usize = 127;

/// From where a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A row of the file's own section.
    Section,
    /// A row that was made of what else the file has.
    Made,
    /// A row beside those.
    ExtraRow,
    /// The instructions of a PLT's stub.
    Stub,
    /// The instructions of a signal's trampoline.
    Trampoline,
    /// The instructions behind a system call that starts a thread.
    Clone,
}

/// What was made of a file that has no section.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// A section, as if at address 0.
    pub section: &'static [u8],
    /// Rows that it cannot say: [`ExtraRow`], one behind the other.
    pub extra_rows: &'static [u8],
}

/// What makes it; `None` if there is nothing to make it of.
pub type Make = Box<dyn Fn(&'static File) -> Option<Made>>;

/// What told where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The registers: it is the innermost.
    Registers,
    /// A row of SFrame, or the instructions of a PLT.
    Rows,
    /// The code, and the frame pointer where that proves it, where there are no rows.
    FramePointer,
}

impl By {
    /// A short name, for tables.
    pub const fn name(self) -> &'static str {
        match self {
            By::Registers => "registers",
            By::Rows => "rows",
            By::FramePointer => "frame-pointer",
        }
    }
}

/// A frame that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The frame.
    pub frame: Frame,
    /// What told where it is.
    pub by: By,
    /// At which address its own rule is looked up: its PC, or one less.
    pub at: u64,
    /// Its own rule, by which its caller was looked for, and where that is from; `None` if there is
    /// none.
    pub rule: Option<(Rule, Origin)>,
}

/// Why a walk has ended, as the module's counters name it.
pub type Reason = &'static str;

/// The stack is complete.
pub const OUTERMOST: Reason = "outermost";
/// There are more than [`MOST_FRAMES`].
pub const FULL: Reason = "full";
/// There are no rows, and the frame pointer did not pass the checks.
pub const NO_ROWS: Reason = "no_rows";

/// What is known of rows for a part of a file.
#[derive(Clone, Copy)]
enum Rows {
    None,
    /// The section, in link-time addresses, and its bytes.
    Section(Section, &'static [u8]),
    /// The same, made of what else the file has, and what is beside it.
    Made(Section, &'static [u8], &'static [ExtraRow]),
    Bad(Error),
}

/// What is known of the registers of a frame, beside those that each [`Frame`] has.
#[derive(Clone, Copy)]
enum Known {
    /// All of the innermost.
    All,
    /// All that a signal interrupted, in the `struct ucontext` at this run-time address.
    Interrupted(u64),
    /// Nothing. The frame has called, and its stack is in use from this run-time address on.
    Called(u64),
}

/// What the rows of a file say of an address.
type Said = Result<Option<(Rule, Origin)>, Error>;

/// Walks as the module does, and keeps the rules it has found.
#[derive(Default)]
pub struct Walker {
    /// By file and offset of the mapping in it.
    rows: Table<(usize, u64), Rows>,
    /// By file and link-time address, for the innermost frame or others.
    rules: Table<(usize, u64), [Option<Said>; 2]>,
    /// What makes rows for files that have none, if they are to have some.
    make: Option<Make>,
}

impl Walker {
    /// One that has found nothing yet.
    pub fn new() -> Walker {
        Walker::default()
    }

    /// One for which files without rows have those that `make` makes of them, as if the module had
    /// been given them.
    pub fn with(make: impl Fn(&'static File) -> Option<Made> + 'static) -> Walker {
        Walker {
            make: Some(Box::new(make)),
            ..Walker::default()
        }
    }

    /// Walks from the registers outwards. `frames` is emptied first.
    pub fn walk<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &Registers,
        memory: &M,
        frames: &mut Vec<Found>,
    ) -> Reason {
        let mut frame = Frame {
            pc: registers.pc(),
            sp: registers.sp(),
            fp: registers.get(RBP).unwrap_or(0),
        };
        frames.clear();
        frames.push(Found {
            frame,
            by: By::Registers,
            at: frame.pc,
            rule: None,
        });
        let mut known = Known::All;
        // From where on the stack is in use.
        let mut lowest = frame.sp;
        let mut at = frame.pc;
        let mut signals = MAX_SIGNALS;

        loop {
            let Some(mapping) = process.at(at) else {
                return "not_mapped";
            };
            let exact = !matches!(known, Known::Called(_));
            let mut rule = match self.rule_at(at, exact, mapping) {
                Ok(rule) => rule,
                Err(error) => return error_name(error),
            };
            // A row that there is may be wrong: musl's is that of a plain function. But one for what
            // is behind the system call may be that of another function, which runs there. (The
            // module knows which system call it is.)
            let innermost = matches!(known, Known::All);
            if (exact || rule.is_none()) && is_trampoline(process, frame.pc)
                || innermost && rule.is_none() && is_behind_trampoline(process, frame.pc)
            {
                rule = Some((code::INTERRUPTED, Origin::Trampoline));
            } else if innermost
                && registers.get(RAX).is_some_and(|result| result != 0)
                && is_behind_clone(process, frame.pc)
            {
                rule = Some((code::BEHIND_CLONE, Origin::Clone));
            }
            if let Some(last) = frames.last_mut() {
                last.rule = rule;
            }
            let context = frame.sp;
            let (step, by) = match rule {
                Some((rule, _)) => {
                    let step_from = |frame: &Frame| match known {
                        Known::All => unwind::step(Abi::Amd64, &rule, frame, registers, memory),
                        Known::Interrupted(context) => {
                            let registers = Interrupted { context, memory };
                            unwind::step(Abi::Amd64, &rule, frame, &registers, memory)
                        }
                        Known::Called(lowest) => {
                            unwind::step(Abi::Amd64, &rule, frame, &Called(lowest), memory)
                        }
                    };
                    let mut step = step_from(&frame);
                    if step == Err(Stop::CfaNotRising) && has_left_a_stack(process, &rule, &frame) {
                        signals = match signals.checked_sub(1) {
                            Some(left) => left,
                            None => return "signals",
                        };
                        frame.sp = frame.fp;
                        lowest = frame.sp;
                        step = step_from(&frame);
                    }
                    (step.map_err(stop_name), By::Rows)
                }
                None => (
                    self.without_rows(&frame, exact, mapping, process, memory),
                    By::FramePointer,
                ),
            };
            match step {
                Ok(Step::Caller(caller)) => frame = caller,
                Ok(Step::Outermost) => return OUTERMOST,
                Err(reason) => return reason,
            }

            at = frame.pc;
            if rule.is_some_and(|(rule, _)| rule.signal) {
                known = Known::Interrupted(context);
                lowest = frame.sp;
                signals = match signals.checked_sub(1) {
                    Some(left) => left,
                    None => return "signals",
                };
            } else {
                known = Known::Called(lowest);
                at = at.wrapping_sub(1);
            }
            match process.at(at) {
                Some(mapping) if mapping.executable => {}
                Some(_) => return "not_executable",
                None => return "not_mapped",
            }
            if frames.len() == MOST_FRAMES {
                return FULL;
            }
            frames.push(Found {
                frame,
                by,
                at,
                rule: None,
            });
        }
    }

    /// The rule at a run-time address in `mapping`; `None` if there are no rows for it.
    ///
    /// # Errors
    ///
    /// The section cannot be used.
    pub fn rule_at(&mut self, at: u64, innermost: bool, mapping: &Mapping) -> Said {
        let Some((file, link)) = mapping.link_address(at) else {
            return Ok(None);
        };
        let rows = self.rows_of(file, mapping);
        let known = self.rules.entry((file.number, link)).or_default();
        *known[usize::from(innermost)]
            .get_or_insert_with(|| rule_of_rows(rows, file, link, innermost))
    }

    /// Which row holds at a run-time address in `mapping`: the link-time addresses at which its function
    /// begins, and at which it does; `None` if it is of no section.
    pub fn row_at(&mut self, at: u64, mapping: &Mapping) -> Option<(u64, u64)> {
        let (file, link) = mapping.link_address(at)?;
        let (Rows::Section(section, bytes) | Rows::Made(section, bytes, _)) =
            self.rows_of(file, mapping)
        else {
            return None;
        };
        let function = section.find_function(bytes, link, Search::Bounded).ok()??;
        let begins = |start: u32| function.start().wrapping_add(start.into());
        let row = section
            .rows(bytes, &function)
            .map_while(Result::ok)
            .map(|row| begins(row.start))
            .take_while(|start| function.repeat().is_some() || *start <= link)
            .last()?;
        let row = match function.repeat() {
            Some(_) => function.start(),
            None => row,
        };
        Some((function.start(), row))
    }

    /// Whether the file that is mapped has rows for any code.
    pub fn has_rows(&mut self, mapping: &Mapping) -> bool {
        mapping
            .file
            .is_some_and(|file| !matches!(self.rows_of(file, mapping), Rows::None))
    }

    fn rows_of(&mut self, file: &'static File, mapping: &Mapping) -> Rows {
        *self
            .rows
            .entry((file.number, mapping.offset))
            .or_insert_with(|| match (open(file, mapping), &self.make) {
                (Rows::None, Some(make)) => open_made(file, mapping, make),
                (rows, _) => rows,
            })
    }

    /// The step where there are no rows.
    fn without_rows<M: Memory + ?Sized>(
        &mut self,
        frame: &Frame,
        innermost: bool,
        mapping: &Mapping,
        process: &Process,
        memory: &M,
    ) -> Result<Step, Reason> {
        let rows = match mapping.file {
            Some(file) => self.rows_of(file, mapping),
            None => Rows::None,
        };
        let frame_pointer = match rows {
            Rows::Section(section, _) if section.frame_pointer() => FramePointer::Kept,
            Rows::Section(..) | Rows::Made(..) => return Err(NO_ROWS),
            _ if mapping.file.is_some() => FramePointer::Unknown,
            _ => FramePointer::Likely,
        };
        let stack_end = process.at(frame.sp).map_or(0, |mapping| mapping.end);
        let memory = All { process, memory };
        let function = |at| function_at(process, at, &memory);
        fallback::step(
            frame,
            innermost,
            frame_pointer,
            function,
            stack_end,
            &memory,
        )
        .ok_or(NO_ROWS)
    }
}

/// Where the function begins that covers a run-time address.
fn function_at<S: Source>(process: &Process, at: u64, memory: &S) -> Option<u64> {
    let mapping = process.at(at)?;
    let (file, link) = mapping.link_address(at)?;
    let (table, len) = elf::find_sframe(file.bytes, mapping.offset)
        .ok()?
        .functions?;
    let table = table.wrapping_add(at.wrapping_sub(link));
    eh_frame_hdr::function_start(memory, table, len, at)
}

/// Code from the files, and all else from memory, code that is in no file included.
struct All<'a, M: ?Sized> {
    process: &'a Process,
    memory: &'a M,
}

impl<M: Memory + ?Sized> Source for All<'_, M> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        if let Some(bytes) = code_at(self.process, offset) {
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        for (index, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = self
                .memory
                .read_word(offset.wrapping_add(8 * index as u64))?;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
        Ok(bytes)
    }
}

impl<M: Memory + ?Sized> Memory for All<'_, M> {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        self.memory.read_word(address)
    }
}

/// The section of a file, if it has one for the code that is mapped.
fn open(file: &'static File, mapping: &Mapping) -> Rows {
    // The vDSO is no file.
    if !mapping.name.starts_with('/') {
        return Rows::None;
    }
    let Ok(found) = elf::find_sframe(file.bytes, mapping.offset) else {
        return Rows::None;
    };
    let (Some(place), true) = (found.sframe, found.executable) else {
        return Rows::None;
    };
    let bytes = section_bytes(file, place);
    let mut section = match Section::open(bytes, place.vaddr, place.memsz) {
        Ok(section) if section.abi() == Abi::Amd64 => section,
        Ok(_) => return Rows::None,
        Err(error) => return Rows::Bad(error),
    };
    let start = found.link_address(mapping.offset);
    let len = mapping.end - mapping.start;
    match section.settle_starts(bytes, |at| at.wrapping_sub(start) < len) {
        Ok(()) => Rows::Section(section, bytes),
        Err(error) => Rows::Bad(error),
    }
}

/// What can be made of a file that has no section, if the mapping is one of its code. It is opened at
/// address 0, where it was made for.
fn open_made(file: &'static File, mapping: &Mapping, make: &Make) -> Rows {
    if !elf::find_sframe(file.bytes, mapping.offset).is_ok_and(|found| found.executable) {
        return Rows::None;
    }
    let Some(Made {
        section,
        extra_rows,
    }) = make(file)
    else {
        return Rows::None;
    };
    let extra_rows: Vec<ExtraRow> = extra_rows
        .chunks_exact(EXTRA_ROW_SIZE)
        .filter_map(|row| ExtraRow::read(row.try_into().ok()?).ok())
        .collect();
    match Section::open(section, 0, section.len() as u64) {
        Ok(opened) => Rows::Made(opened, section, extra_rows.leak()),
        Err(error) => Rows::Bad(error),
    }
}

fn section_bytes(file: &File, place: elf::Place) -> &'static [u8] {
    let bytes = file.bytes_at(place.vaddr);
    let len = usize::try_from(place.memsz).unwrap_or(usize::MAX);
    &bytes[..len.min(bytes.len())]
}

fn rule_of_rows(rows: Rows, file: &File, at: u64, innermost: bool) -> Said {
    let (section, bytes, extra_rows, origin) = match rows {
        Rows::None => return Ok(None),
        Rows::Section(section, bytes) => (section, bytes, &[][..], Origin::Section),
        Rows::Made(section, bytes, extra_rows) => (section, bytes, extra_rows, Origin::Made),
        Rows::Bad(error) => return Err(error),
    };
    let Some(function) = section.find_function(bytes, at, Search::Bounded)? else {
        let next = extra_rows.partition_point(|row| row.start <= at);
        let row = next.checked_sub(1).and_then(|index| extra_rows.get(index));
        let row = row.filter(|row| at - row.start < row.size.into());
        return Ok(row.map(|row| (row.rule, Origin::ExtraRow)));
    };
    if !innermost {
        // What is behind the end of a function is called from its end, or is no return address.
        let pc = at.wrapping_add(1);
        let around = pc.wrapping_sub(code::TRAMPOLINE_BEFORE);
        if !function.covers(pc)
            && file
                .bytes_at(around)
                .read(0)
                .is_ok_and(|bytes| code::is_signal_trampoline(&bytes))
        {
            return Ok(Some((code::INTERRUPTED, Origin::Trampoline)));
        }
    } else {
        // Nothing is called from a PLT.
        let rule = function.stub(at).and_then(|(stub, offset)| {
            code::rule_of_stub(&file.bytes_at(stub).read(0).ok()?, offset)
        });
        if let Some(rule) = rule {
            return Ok(Some((rule, Origin::Stub)));
        }
    }
    let rule = section.find_rule(bytes, &function, at, Search::Bounded)?;
    Ok(rule.map(|rule| (rule, origin)))
}

/// Whether a signal's trampoline runs at a run-time address.
pub fn is_trampoline(process: &Process, pc: u64) -> bool {
    code_at(process, pc.wrapping_sub(code::TRAMPOLINE_BEFORE))
        .is_some_and(|bytes| code::is_signal_trampoline(&bytes))
}

/// Whether a run-time address is behind the system call of a signal's trampoline.
pub fn is_behind_trampoline(process: &Process, pc: u64) -> bool {
    code_at(process, pc.wrapping_sub(code::TRAMPOLINE_BEFORE))
        .is_some_and(|bytes| code::is_behind_signal_trampoline(&bytes))
}

/// Whether a run-time address is behind the system call that starts a thread.
fn is_behind_clone(process: &Process, pc: u64) -> bool {
    code_at(process, pc.wrapping_sub(code::TRAMPOLINE_BEFORE))
        .is_some_and(|bytes| code::is_behind_clone(&bytes))
}

/// Code at a run-time address.
pub fn code_at<const N: usize>(process: &Process, address: u64) -> Option<[u8; N]> {
    let (file, link) = process.at(address)?.link_address(address)?;
    file.bytes_at(link).read(0).ok()
}

/// Whether a run-time address may be behind a call. What is in no file is read from `memory`.
pub fn is_behind_call<M: Memory + ?Sized>(process: &Process, pc: u64, memory: &M) -> bool {
    fallback::is_behind_call(pc, &All { process, memory })
}

/// Whether a frame is on another stack than its stack pointer, and its frame pointer points to it.
fn has_left_a_stack(process: &Process, rule: &Rule, frame: &Frame) -> bool {
    let code = frame.pc.wrapping_sub(code::TAKES_STACK as u64);
    rule.cfa.base == Base::Fp && code_at(process, code).is_some_and(|code| code::takes_stack(&code))
}

fn stop_name(stop: Stop) -> Reason {
    match stop {
        Stop::CfaNotRising => "cfa_not_rising",
        Stop::CfaMisaligned => "cfa_misaligned",
        Stop::CfaOverflow => "cfa_overflow",
        Stop::RegisterUnknown => "register_unknown",
        Stop::Fault { .. } => "stack_fault",
        Stop::FpZero | Stop::FpBelowSp | Stop::FpMisaligned => NO_ROWS,
    }
}

fn error_name(error: Error) -> Reason {
    match error {
        Error::Fault { .. } => "section_fault",
        Error::Malformed { .. } => "malformed",
        Error::Unsupported { .. } => "unsupported",
        Error::TooLong => "search_too_long",
    }
}
