// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The core's walk on the host: of a process that is stopped, or of a copy of one.
//!
//! Sections and code are read from the files instead of the memory that they are mapped to. So no page
//! is missing, and reads are not counted.

use std::cell::RefCell;

use sframe::{
    abi::Abi,
    bytes::{
        Fault,
        Source, //
    },
    code,
    elf,
    error::Error,
    fallback,
    fde::Function,
    rule::Rule,
    section::{
        Search,
        Section, //
    },
    stop_reason::StopReason,
    table::{
        ExtraRow,
        EXTRA_ROW_SIZE, //
    },
    unwind::{
        Frame,
        Memory, //
    },
    walk::{
        self,
        FrameSource,
        FunctionTable,
        MappedRows,
        MappingOf,
        RuleOrigin,
        Sink,
        TableAnswer,
        Task, //
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
        RBP, //
    },
    table::Table, //
};

/// The most frames of a stack, as `kernel.perf_event_max_stack` has it by default.
pub const MOST_FRAMES: usize = 127;

/// Rows that were made for a file that has no section.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// A section, as if at address 0.
    pub section: &'static [u8],
    /// Rows that a section cannot encode: [`ExtraRow`], one behind the other.
    pub extra_rows: &'static [u8],
}

/// What makes such rows; `None` if there is nothing to make them of.
pub type Make = Box<dyn Fn(&'static File) -> Option<Made>>;

/// A frame that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The frame.
    pub frame: Frame,
    /// How the walk found it.
    pub source: FrameSource,
    /// The run-time address whose rule holds: its PC, or one less.
    pub at: u64,
    /// The rule by which its caller was looked for, and where the rule comes from; `None` if no row covers
    /// the address.
    pub rule: Option<(Rule, RuleOrigin)>,
}

/// The rows of a part of a file.
#[derive(Clone, Copy)]
enum FileRows {
    /// None; and the link-time address and the length of its table of functions.
    None(Option<(u64, u64)>),
    /// The section, at its link-time address.
    Section(HostSection),
    /// The rows that were made for it.
    Made(MadeRows),
    /// The section cannot be used.
    Bad(Error),
}

/// A section and its bytes.
#[derive(Clone, Copy)]
struct HostSection {
    section: Section,
    bytes: &'static [u8],
}

/// Rows that were made for a file, as if it were at its link-time address.
#[derive(Clone, Copy)]
struct MadeRows {
    file: &'static File,
    made: HostSection,
    extra_rows: &'static [ExtraRow],
}

impl MadeRows {
    /// Looks a link-time address up, as a table of the module is looked up.
    fn look_up(&self, at: u64) -> Result<Option<(Rule, RuleOrigin)>, Error> {
        let HostSection { section, bytes } = self.made;
        let Some(function) = section.find_function(bytes, at, Search::Thorough)? else {
            let next = self.extra_rows.partition_point(|row| row.start <= at);
            let row = next
                .checked_sub(1)
                .and_then(|index| self.extra_rows.get(index));
            let row = row.filter(|row| at - row.start < row.size.into());
            return Ok(row.map(|row| (row.rule, RuleOrigin::ExtraRow)));
        };
        if let Some(found) = rule_of_stub(self.file, &function, at) {
            return Ok(Some(found));
        }
        let rule = section.find_rule(bytes, &function, at, Search::Thorough)?;
        Ok(rule.map(|rule| (rule, RuleOrigin::Table)))
    }
}

/// The rule that the instructions of a stub of the PLT give at a link-time address, if there is a stub.
fn rule_of_stub(file: &File, function: &Function, at: u64) -> Option<(Rule, RuleOrigin)> {
    let (stub, offset) = function.stub(at)?;
    let rule = code::rule_of_stub(&file.bytes_at(stub).read(0).ok()?, offset)?;
    Some((rule, RuleOrigin::PltStub))
}

/// A table of a file that a process has mapped.
#[derive(Clone, Copy)]
struct MappedTable {
    rows: MadeRows,
    /// From a link-time address to the run-time address, in bytes.
    bias: u64,
}

/// What the rows of a file say of an address.
type RowAnswer = Result<Option<(Rule, RuleOrigin)>, Error>;

/// Walks as the module does, and keeps what it has found of files.
#[derive(Default)]
pub struct Walker {
    /// By file and offset of the mapping in it.
    rows: Table<(usize, u64), FileRows>,
    /// By file and link-time address.
    answers: Table<(usize, u64), RowAnswer>,
    /// What makes rows for files that have none, if they are to have some.
    make: Option<Make>,
}

/// A process that is walked.
struct Walked<'a, M: ?Sized> {
    registers: &'a Registers,
    memory: All<'a, M>,
    walker: RefCell<&'a mut Walker>,
}

impl<'a, M: Memory + ?Sized> Task for Walked<'a, M> {
    const ABI: Abi = Abi::Amd64;
    const KNOWS_SYSTEM_CALL: bool = false;

    type Memory = All<'a, M>;
    type Registers = Registers;
    type Section = HostSection;
    type SectionBytes<'b>
        = &'static [u8]
    where
        Self: 'b;
    type Table = MappedTable;
    type Sink = Frames<'a>;

    fn memory(&self) -> &All<'a, M> {
        &self.memory
    }

    fn registers(&self) -> &Registers {
        self.registers
    }

    fn in_sigreturn(&self) -> bool {
        false
    }

    fn is_spent(&self) -> bool {
        false
    }

    fn search(&self) -> Search {
        Search::Bounded
    }

    fn find_mapping(&self, mapping: &mut MappingOf<Self>, address: u64) -> Result<(), StopReason> {
        let found = self.memory.process.at(address);
        let found = found.ok_or(StopReason::NotMapped)?;
        *mapping = walk::Mapping {
            start: found.start,
            end: found.end,
            is_image: found.file.is_some(),
            executable: found.executable,
            rows: self.walker.borrow_mut().mapped_rows(found, address),
        };
        Ok(())
    }

    fn end_of_stack(&self, sp: u64) -> u64 {
        let mapping = self.memory.process.at(sp);
        mapping.map_or(0, |mapping| mapping.end)
    }

    fn section<'b>(&'b self, section: &'b HostSection) -> (&'b Section, &'static [u8]) {
        (&section.section, section.bytes)
    }

    fn look_up(&self, table: &MappedTable, lookup_address: u64) -> TableAnswer<RuleOrigin> {
        let mut walker = self.walker.borrow_mut();
        match walker.look_up(table.rows, lookup_address.wrapping_sub(table.bias)) {
            Ok(Some((rule, origin))) => TableAnswer::Rule(rule, origin),
            Ok(None) => TableAnswer::NoRow,
            // The converter wrote what the core cannot read: the test that compares them fails, too.
            Err(_) => TableAnswer::Gone,
        }
    }
}

/// The frames of a stack.
struct Frames<'a>(&'a mut Vec<Found>);

impl Sink for Frames<'_> {
    type Origin = RuleOrigin;

    fn store(&mut self, frame: &Frame, lookup_address: u64, source: FrameSource) -> bool {
        let has_space = self.0.len() < MOST_FRAMES;
        if has_space {
            self.0.push(Found {
                frame: *frame,
                source,
                at: lookup_address,
                rule: None,
            });
        }
        has_space
    }

    fn rule(&mut self, rule: &Rule, origin: RuleOrigin) {
        if let Some(last) = self.0.last_mut() {
            last.rule = Some((*rule, origin));
        }
    }
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
    ) -> StopReason {
        let frame = Frame {
            pc: registers.pc(),
            sp: registers.sp(),
            fp: registers.get(RBP).unwrap_or(0),
        };
        frames.clear();
        let mut frames = Frames(frames);
        frames.store(&frame, frame.pc, FrameSource::Registers);
        let task = Walked {
            registers,
            memory: All { process, memory },
            walker: RefCell::new(self),
        };
        walk::walk(&task, frame, &mut frames)
    }

    /// The rows of a mapping, at the run-time address `address` in it.
    fn mapped_rows(
        &mut self,
        mapping: &Mapping,
        address: u64,
    ) -> MappedRows<HostSection, MappedTable> {
        let Some((file, link)) = mapping.link_address(address) else {
            return MappedRows::None(FunctionTable::NONE);
        };
        let bias = address.wrapping_sub(link);
        match self.rows_of(file, mapping) {
            FileRows::None(functions) => {
                MappedRows::None(functions.map_or(FunctionTable::NONE, |(address, len)| {
                    FunctionTable {
                        address: address.wrapping_add(bias),
                        len,
                    }
                }))
            }
            FileRows::Section(HostSection { section, bytes }) => MappedRows::Section(HostSection {
                section: section.moved_by(bias),
                bytes,
            }),
            FileRows::Made(rows) => MappedRows::Table(MappedTable { rows, bias }),
            FileRows::Bad(error) => MappedRows::Bad(error),
        }
    }

    /// Looks a link-time address up, once.
    fn look_up(&mut self, rows: MadeRows, link: u64) -> RowAnswer {
        let known = self.answers.entry((rows.file.number, link));
        *known.or_insert_with(|| rows.look_up(link))
    }

    /// The rule at a run-time address in `mapping` by the rows of its file; `None` if no row covers it.
    ///
    /// # Errors
    ///
    /// The section cannot be used.
    pub fn rule_at(&mut self, at: u64, mapping: &Mapping) -> RowAnswer {
        let Some((file, link)) = mapping.link_address(at) else {
            return Ok(None);
        };
        match self.rows_of(file, mapping) {
            FileRows::None(_) => Ok(None),
            FileRows::Section(HostSection { section, bytes }) => {
                let Some(function) = section.find_function(bytes, link, Search::Bounded)? else {
                    return Ok(None);
                };
                if let Some(found) = rule_of_stub(file, &function, link) {
                    return Ok(Some(found));
                }
                let rule = section.find_rule(bytes, &function, link, Search::Bounded)?;
                Ok(rule.map(|rule| (rule, RuleOrigin::Section)))
            }
            FileRows::Made(rows) => self.look_up(rows, link),
            FileRows::Bad(error) => Err(error),
        }
    }

    /// The row that covers a run-time address in `mapping`: the link-time addresses at which its function
    /// begins, and at which the row begins; `None` if it is of no section.
    pub fn row_at(&mut self, at: u64, mapping: &Mapping) -> Option<(u64, u64)> {
        let (file, link) = mapping.link_address(at)?;
        let (FileRows::Section(rows) | FileRows::Made(MadeRows { made: rows, .. })) =
            self.rows_of(file, mapping)
        else {
            return None;
        };
        let HostSection { section, bytes } = rows;
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
            .is_some_and(|file| !matches!(self.rows_of(file, mapping), FileRows::None(_)))
    }

    fn rows_of(&mut self, file: &'static File, mapping: &Mapping) -> FileRows {
        *self
            .rows
            .entry((file.number, mapping.offset))
            .or_insert_with(|| match (open(file, mapping), &self.make) {
                (none @ FileRows::None(_), Some(make)) => {
                    open_made(file, mapping, make).unwrap_or(none)
                }
                (rows, _) => rows,
            })
    }
}

/// Code from the files, and all else from memory, code that is in no file included.
pub struct All<'a, M: ?Sized> {
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
fn open(file: &'static File, mapping: &Mapping) -> FileRows {
    let Ok(found) = elf::find_sframe(file.bytes, mapping.offset) else {
        return FileRows::None(None);
    };
    // The vDSO is no file, and its section is not believed.
    let (Some(place), true, true) = (
        found.sframe,
        found.executable,
        mapping.name.starts_with('/'),
    ) else {
        return FileRows::None(found.functions);
    };
    let bytes = section_bytes(file, place);
    let mut section = match Section::open(bytes, place.vaddr, place.memsz) {
        Ok(section) if section.abi() == Abi::Amd64 => section,
        Ok(_) => return FileRows::None(found.functions),
        Err(error) => return FileRows::Bad(error),
    };
    let start = found.link_address(mapping.offset);
    let len = mapping.end - mapping.start;
    match section.settle_starts(bytes, |at| at.wrapping_sub(start) < len) {
        Ok(()) => FileRows::Section(HostSection { section, bytes }),
        Err(error) => FileRows::Bad(error),
    }
}

/// The rows that are made for a file that has no section; `None` if the mapping is none of its code, or
/// nothing can be made. They are opened at address 0, for which they were made.
fn open_made(file: &'static File, mapping: &Mapping, make: &Make) -> Option<FileRows> {
    if !elf::find_sframe(file.bytes, mapping.offset).is_ok_and(|found| found.executable) {
        return None;
    }
    let Made {
        section: bytes,
        extra_rows,
    } = make(file)?;
    let extra_rows: Vec<ExtraRow> = extra_rows
        .chunks_exact(EXTRA_ROW_SIZE)
        .filter_map(|row| ExtraRow::read(row.try_into().ok()?).ok())
        .collect();
    Some(match Section::open(bytes, 0, bytes.len() as u64) {
        Ok(section) => FileRows::Made(MadeRows {
            file,
            made: HostSection { section, bytes },
            extra_rows: extra_rows.leak(),
        }),
        Err(error) => FileRows::Bad(error),
    })
}

fn section_bytes(file: &File, place: elf::Place) -> &'static [u8] {
    let bytes = file.bytes_at(place.vaddr);
    let len = usize::try_from(place.memsz).unwrap_or(usize::MAX);
    &bytes[..len.min(bytes.len())]
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

/// Code at a run-time address.
pub fn code_at<const N: usize>(process: &Process, address: u64) -> Option<[u8; N]> {
    let (file, link) = process.at(address)?.link_address(address)?;
    file.bytes_at(link).read(0).ok()
}

/// Whether a run-time address may be behind a call. What is in no file is read from `memory`.
pub fn is_behind_call<M: Memory + ?Sized>(process: &Process, pc: u64, memory: &M) -> bool {
    fallback::is_behind_call(pc, &All { process, memory })
}
