// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The core's walk on the host, for a stopped process or a copy of a process.
//!
//! Sections and code are read from the files, not from the memory that they are mapped to. So no
//! page is missing, and reads are not counted.

use std::{
    cell::RefCell,
    ops::Range, //
};

use sframe::{
    abi::Abi,
    bytes::{
        Fault,
        Source, //
    },
    elf::{
        self,
        LoadedSegment, //
    },
    error::Error,
    fallback,
    fde::Function,
    rule::Rule,
    runtimes,
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
        locate::RowsLocation,
        FramePointerUse,
        FrameSource,
        FunctionTable,
        MappedRows,
        MappingOf,
        RuleOrigin,
        Sink,
        TableAnswer,
        Task, //
    },
    x86_64, //
};

use crate::{
    address_map::AddressMap, //
    process::{
        CodeLayout,
        MappedFile,
        Process, //
        ProcessMapping,
    },
    registers::{
        RegisterFile,
        RBP, //
    },
};

/// The maximum number of frames of a stack: the default of `kernel.perf_event_max_stack`.
pub const MOST_FRAMES: usize = 127;

/// Rows made for a file.
#[derive(Clone, Copy, Debug)]
pub struct MadeSection {
    /// The section, made for address 0.
    pub section: &'static [u8],
    /// Rows that a section cannot encode: a sequence of [`ExtraRow`].
    pub extra_rows: &'static [u8],
    /// Whether code that no row covers keeps a frame pointer.
    pub keeps_frame_pointer: bool,
}

/// A function that makes rows for a file; `None` if it makes none. Such rows replace those of the
/// file's own section.
pub type Make = Box<dyn Fn(&'static MappedFile) -> Option<MadeSection>>;

/// A frame of a stack.
#[derive(Clone, Copy, Debug)]
pub struct WalkedFrame {
    /// The frame.
    pub frame: Frame,
    /// How the walk found it.
    pub source: FrameSource,
    /// The run-time lookup address: the frame's PC, or the PC minus one.
    pub at: u64,
    /// The rule for the step to the caller, and the rule's origin; `None` if no row covers the
    /// address.
    pub rule: Option<(Rule, RuleOrigin)>,
}

/// The rows for one mapping of a file.
#[derive(Clone, Copy)]
enum FileRows {
    /// No rows. The file's table of functions is at its link-time address.
    None(FunctionTable),
    /// The section, at its link-time address.
    Section(HostSection),
    /// The rows made for the file.
    Made(MadeRows),
    /// The section cannot be used.
    Bad(Error),
}

/// A section and its bytes.
#[derive(Clone, Copy)]
pub(crate) struct HostSection {
    section: Section,
    pub(crate) bytes: &'static [u8],
}

/// Rows made for a file, at the file's link-time addresses.
#[derive(Clone, Copy)]
struct MadeRows {
    file: &'static MappedFile,
    /// `None` if the file has no rows.
    made: Option<HostSection>,
    extra_rows: &'static [ExtraRow],
    keeps_frame_pointer: bool,
}

impl MadeRows {
    /// Looks up a link-time address in the way that the module looks up a table.
    fn look_up(&self, at: u64) -> Result<Option<(Rule, RuleOrigin)>, Error> {
        let found = self.made.map(|HostSection { section, bytes }| {
            let function = section.find_function(bytes, at, Search::Thorough)?;
            Ok(function.map(|function| (section, bytes, function)))
        });
        let Some((section, bytes, function)) = found.transpose()?.flatten() else {
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

/// The rule for a link-time address in a stub of the PLT, derived from the stub's instructions;
/// `None` if there is no stub.
fn rule_of_stub(file: &MappedFile, function: &Function, at: u64) -> Option<(Rule, RuleOrigin)> {
    let (stub, offset) = function.stub(at)?;
    let rule = x86_64::rule_of_stub(&file.bytes_at(stub).read(0).ok()?, offset)?;
    Some((rule, RuleOrigin::PltStub))
}

/// A table of a file that a process has mapped.
#[derive(Clone, Copy)]
pub(crate) struct HostTable {
    rows: MadeRows,
    /// The run-time address minus the link-time address, in bytes.
    pub(crate) bias: u64,
}

/// The answer of a file's rows for an address.
type RowAnswer = Result<Option<(Rule, RuleOrigin)>, Error>;

/// Walks like the module, and keeps the results of lookups in files.
#[derive(Default)]
pub struct Walker {
    /// The rows by file, by the mapping's offset in the file, and by the segment's link-time
    /// address.
    rows: AddressMap<(usize, u64, u64), FileRows>,
    /// The answers by file and link-time address.
    answers: AddressMap<(usize, u64), RowAnswer>,
    /// Makes rows for files; `None` if no file gets any.
    make: Option<Make>,
}

/// The process of one walk.
pub(crate) struct ProcessTask<'a, M: ?Sized> {
    pub(crate) registers: &'a RegisterFile,
    pub(crate) memory: All<'a, M>,
    pub(crate) walker: RefCell<&'a mut Walker>,
}

impl<'a, M: Memory + ?Sized> Task for ProcessTask<'a, M> {
    const ABI: Abi = Abi::Amd64;
    const KNOWS_SYSTEM_CALL: bool = false;

    type Memory = All<'a, M>;
    type Registers = RegisterFile;
    type Section = HostSection;
    type SectionBytes<'b>
        = &'static [u8]
    where
        Self: 'b;
    type Table = HostTable;
    type Sink = Frames<'a>;

    fn memory(&self) -> &All<'a, M> {
        &self.memory
    }

    fn registers(&self) -> &RegisterFile {
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
            frame_pointer: FramePointerUse::MayKeep,
            executable: found.executable,
            rows: MappedRows::None(FunctionTable::NONE),
        };
        let process = self.memory.process;
        if process.made_code_at(address).is_some() {
            let part = process.part_at(address);
            mapping.start = mapping.start.max(part.start);
            mapping.end = mapping.end.min(part.end);
        }
        let holds = |(guard, value)| self.memory.memory.read_word(guard) == Ok(value);
        let region = process.region_at(address);
        mapping.rows = match region {
            Some(region) if region.guard.is_none_or(holds) => match &region.layout {
                CodeLayout::Frames(region) => MappedRows::Region(*region),
                CodeLayout::Rows(code) => self.walker.borrow_mut().mapped_rows(code, address),
            },
            _ => match self.rows_without_region(found, address) {
                rows if rows.are_none() && (region.is_some() || process.is_unknown(address)) => {
                    MappedRows::Region(runtimes::Region::Stop)
                }
                rows => rows,
            },
        };
        mapping.frame_pointer = match &mapping.rows {
            MappedRows::Table(table) if table.rows.keeps_frame_pointer => FramePointerUse::Keeps,
            rows => rows.frame_pointer_use(found.is_file),
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

    fn look_up(&self, table: &HostTable, lookup_address: u64) -> TableAnswer<RuleOrigin> {
        let mut walker = self.walker.borrow_mut();
        match walker.look_up(table.rows, lookup_address.wrapping_sub(table.bias)) {
            Ok(Some((rule, origin))) => TableAnswer::Rule(rule, origin),
            Ok(None) => TableAnswer::NoRow,
            // The core cannot read the converter's output. The test that compares the two fails in
            // this case too.
            Err(_) => TableAnswer::Gone,
        }
    }
}

impl<M: Memory + ?Sized> ProcessTask<'_, M> {
    /// The rows for the code at a run-time address in `found`, apart from those of a region.
    fn rows_without_region(
        &self,
        found: &ProcessMapping,
        address: u64,
    ) -> MappedRows<HostSection, HostTable> {
        let rows = self.walker.borrow_mut().mapped_rows(found, address);
        if found.is_file || !found.executable || !rows.are_none() {
            return rows;
        }
        let image = ImageInMemory {
            memory: &self.memory,
            start: found.start,
        };
        match RowsLocation::find(&image, address.wrapping_sub(found.start), address) {
            Err(Fault) => MappedRows::Unknown,
            Ok(RowsLocation::Section { address, len }) => {
                let code = found.start..found.end;
                match section_in_memory(&self.memory, address, len, code) {
                    Ok(section) => MappedRows::Section(section),
                    Err(error) => MappedRows::Bad(error),
                }
            }
            Ok(RowsLocation::None(_)) if self.is_replaced(found) => MappedRows::Replaced,
            Ok(RowsLocation::None(functions)) => MappedRows::None(functions),
        }
    }

    /// Whether the mapping is code that belongs to no file, at the address of a file's code.
    fn is_replaced(&self, found: &ProcessMapping) -> bool {
        let Some(head) = self.memory.process.lower_file(found) else {
            return false;
        };
        let bytes = head.file.map_or(&[][..], |file| file.bytes);
        elf::loads_code(bytes, found.start.wrapping_sub(head.start)).unwrap_or(false)
    }
}

/// Memory as bytes from a run-time address on.
struct ImageInMemory<'a, S> {
    memory: &'a S,
    start: u64,
}

impl<S: Source> Source for ImageInMemory<'_, S> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.memory.read(self.start.wrapping_add(offset))
    }
}

/// Opens a section of an image in memory, which has the code at the addresses of `code`.
fn section_in_memory<S: Source>(
    memory: &S,
    address: u64,
    len: u64,
    code: Range<u64>,
) -> Result<HostSection, Error> {
    /// The most bytes of a section that are read.
    const MOST: u64 = 1 << 20;
    let bytes = (0..len.min(MOST)).map_while(|at| {
        let [byte] = memory.read(address.wrapping_add(at)).ok()?;
        Some(byte)
    });
    let bytes = bytes.collect::<Vec<u8>>().leak();
    let place = SectionPlace {
        address,
        len,
        code: code.start,
        code_len: code.end - code.start,
    };
    place
        .open(&bytes[..], Abi::Amd64)
        .map(|section| HostSection { section, bytes })
}

/// The frames of a stack.
pub(crate) struct Frames<'a>(pub(crate) &'a mut Vec<WalkedFrame>);

impl Sink for Frames<'_> {
    type Origin = RuleOrigin;

    fn store(&mut self, frame: &Frame, lookup_address: u64, source: FrameSource) -> bool {
        let has_space = self.0.len() < MOST_FRAMES;
        if has_space {
            self.0.push(WalkedFrame {
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
    /// A walker without any kept results.
    pub fn new() -> Walker {
        Walker::default()
    }

    /// A walker for which `make` makes rows for files, as if those rows had been added to the
    /// module.
    pub fn with(make: impl Fn(&'static MappedFile) -> Option<MadeSection> + 'static) -> Walker {
        Walker {
            make: Some(Box::new(make)),
            ..Walker::default()
        }
    }

    /// Walks from the registers outwards. `frames` is emptied first.
    pub fn walk<M: Memory + ?Sized>(
        &mut self,
        process: &Process,
        registers: &RegisterFile,
        memory: &M,
        frames: &mut Vec<WalkedFrame>,
    ) -> StopReason {
        let frame = Frame {
            pc: registers.pc(),
            sp: registers.sp(),
            fp: registers.get(RBP).unwrap_or(0),
        };
        let task = ProcessTask {
            registers,
            memory: All { process, memory },
            walker: RefCell::new(self),
        };
        walk_from(&task, frame, frames)
    }

    /// The rows of a mapping, at the run-time address `address` in it.
    fn mapped_rows(
        &mut self,
        mapping: &ProcessMapping,
        address: u64,
    ) -> MappedRows<HostSection, HostTable> {
        let Some(code) = MappedCode::find(mapping, address) else {
            return MappedRows::None(FunctionTable::NONE);
        };
        let bias = code.bias;
        match self.rows_of(&code) {
            FileRows::None(functions) => MappedRows::None(functions.moved_by(bias)),
            FileRows::Section(HostSection { section, bytes }) => MappedRows::Section(HostSection {
                section: section.moved_by(bias),
                bytes,
            }),
            FileRows::Made(rows) => MappedRows::Table(HostTable { rows, bias }),
            FileRows::Bad(error) => MappedRows::Bad(error),
        }
    }

    /// Looks up a link-time address, and keeps the answer.
    fn look_up(&mut self, rows: MadeRows, link: u64) -> RowAnswer {
        let known = self.answers.entry((rows.file.number, link));
        *known.or_insert_with(|| rows.look_up(link))
    }

    /// The rule at a run-time address in `mapping` by the rows of its file; `None` if no row covers
    /// it.
    ///
    /// # Errors
    ///
    /// The section cannot be used.
    pub fn rule_at(&mut self, at: u64, mapping: &ProcessMapping) -> RowAnswer {
        let Some(code) = MappedCode::find(mapping, at) else {
            return Ok(None);
        };
        let (file, link) = (code.file, code.link_address(at));
        match self.rows_of(&code) {
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

    /// The row that covers a run-time address in `mapping`: the link-time addresses of the starts
    /// of its function and of the row; `None` if no row of a section covers the address.
    pub fn row_at(&mut self, at: u64, mapping: &ProcessMapping) -> Option<(u64, u64)> {
        let code = MappedCode::find(mapping, at)?;
        let link = code.link_address(at);
        let HostSection { section, bytes } = match self.rows_of(&code) {
            FileRows::Section(rows) => rows,
            FileRows::Made(rows) => rows.made?,
            FileRows::None(_) | FileRows::Bad(_) => return None,
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

    /// Whether the file has rows for any code of the segment at a run-time address in `mapping`.
    pub fn has_rows(&mut self, at: u64, mapping: &ProcessMapping) -> bool {
        MappedCode::find(mapping, at)
            .is_some_and(|code| !matches!(self.rows_of(&code), FileRows::None(_)))
    }

    fn rows_of(&mut self, code: &MappedCode<'_>) -> FileRows {
        let key = (
            code.file.number,
            code.mapping.offset,
            code.segment.load_vaddr,
        );
        *self.rows.entry(key).or_insert_with(|| {
            let made = self.make.as_ref().and_then(|make| open_made(code, make));
            made.unwrap_or_else(|| open(code))
        })
    }
}

/// Walks from the innermost frame outwards, as the core walks. `frames` is emptied first.
pub(crate) fn walk_from<'a, T: Task<Sink = Frames<'a>>>(
    task: &T,
    mut frame: Frame,
    frames: &'a mut Vec<WalkedFrame>,
) -> StopReason {
    frames.clear();
    let mut frames = Frames(frames);
    frames.store(&frame, frame.pc, FrameSource::Registers);
    walk::walk(task, &mut frame, &mut frames)
}

/// Memory for a walk: code of files is read from the files; everything else, including anonymous
/// code, from memory.
pub struct All<'a, M: ?Sized> {
    process: &'a Process,
    memory: &'a M,
}

impl<'a, M: ?Sized> All<'a, M> {
    /// The memory of a process.
    pub fn new(process: &'a Process, memory: &'a M) -> Self {
        All { process, memory }
    }
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

/// Code of a file, and the segment that it belongs to.
pub(crate) struct MappedCode<'a> {
    file: &'static MappedFile,
    mapping: &'a ProcessMapping,
    segment: LoadedSegment,
    /// The run-time address minus the link-time address, in bytes.
    pub(crate) bias: u64,
}

impl MappedCode<'_> {
    /// The code at a run-time address in `mapping`. `None` if no segment of a file is there.
    pub(crate) fn find(mapping: &ProcessMapping, address: u64) -> Option<MappedCode<'_>> {
        let file = mapping.file?;
        let offset = address
            .wrapping_sub(mapping.start)
            .wrapping_add(mapping.offset);
        let segment = elf::find_sframe(file.bytes, offset).ok()?;
        let bias = address.wrapping_sub(segment.link_address(offset));
        Some(MappedCode {
            file,
            mapping,
            segment,
            bias,
        })
    }

    fn link_address(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }

    /// The place and the bytes of the section that the walk uses for the code.
    ///
    /// # Errors
    ///
    /// The file has no such section. The value is the file's table of functions.
    pub(crate) fn section(&self) -> Result<(SectionPlace, &'static [u8]), FunctionTable> {
        match RowsLocation::of(&self.segment, 0) {
            RowsLocation::None(functions) => Err(functions),
            // The vDSO is no file, and rows are made for it.
            _ if !self.mapping.name.starts_with('/') => Err(FunctionTable::NONE),
            RowsLocation::Section { address, len } => {
                let bytes = self.file.bytes_at(address);
                let most = usize::try_from(len).unwrap_or(usize::MAX);
                let place = SectionPlace {
                    address,
                    len,
                    code: self.link_address(self.mapping.start),
                    code_len: self.mapping.end - self.mapping.start,
                };
                Ok((place, &bytes[..most.min(bytes.len())]))
            }
        }
    }
}

/// The section of a file, if it has one for the mapped code.
fn open(code: &MappedCode<'_>) -> FileRows {
    let (place, bytes) = match code.section() {
        Ok(found) => found,
        Err(functions) => return FileRows::None(functions),
    };
    match place.open(bytes, Abi::Amd64) {
        Ok(section) => FileRows::Section(HostSection { section, bytes }),
        Err(error) => FileRows::Bad(error),
    }
}

/// Where a section and the code of its mapping are, at link-time addresses. Lengths are in bytes.
pub(crate) struct SectionPlace {
    /// The address of the section.
    pub(crate) address: u64,
    /// Its length.
    pub(crate) len: u64,
    /// The start of the mapping's code.
    pub(crate) code: u64,
    /// The length of that code.
    pub(crate) code_len: u64,
}

impl SectionPlace {
    /// Opens the section.
    ///
    /// # Errors
    ///
    /// The section cannot be used, or is for another ABI.
    pub(crate) fn open<S: Source + ?Sized>(&self, bytes: &S, abi: Abi) -> Result<Section, Error> {
        let mut section = Section::open_for(bytes, self.address, self.len, abi)?;
        section.settle_starts(bytes, |at| at.wrapping_sub(self.code) < self.code_len)?;
        Ok(section)
    }
}

/// Makes rows for a file, and opens them at address 0, for which they are made.
/// `None` if this is no code, if no rows can be made, or if the module has no tables of such files.
fn open_made(code: &MappedCode<'_>, make: &Make) -> Option<FileRows> {
    let file = code.file;
    if !code.segment.executable {
        return None;
    }
    let made = make(file).filter(|_| elf::executables(file.bytes, &mut []).is_ok());
    let MadeSection {
        section: bytes,
        extra_rows,
        keeps_frame_pointer,
    } = made?;
    let extra_rows: Vec<ExtraRow> = extra_rows
        .chunks_exact(EXTRA_ROW_SIZE)
        .filter_map(|row| ExtraRow::read(row.try_into().ok()?).ok())
        .collect();
    // As for the module, an empty section has no rows.
    let section = (!bytes.is_empty()).then(|| Section::open(bytes, 0, bytes.len() as u64));
    Some(match section.transpose() {
        Ok(section) => FileRows::Made(MadeRows {
            file,
            made: section.map(|section| HostSection { section, bytes }),
            extra_rows: extra_rows.leak(),
            keeps_frame_pointer,
        }),
        Err(error) => FileRows::Bad(error),
    })
}

/// Whether a run-time address is in a signal trampoline.
pub fn is_trampoline(process: &Process, pc: u64) -> bool {
    code_at(process, pc.wrapping_sub(x86_64::TRAMPOLINE_BEFORE))
        .is_some_and(|bytes| x86_64::is_signal_trampoline(&bytes))
}

/// Whether a run-time address is directly after the system call of a signal trampoline.
pub fn is_behind_trampoline(process: &Process, pc: u64) -> bool {
    code_at(process, pc.wrapping_sub(x86_64::TRAMPOLINE_BEFORE))
        .is_some_and(|bytes| x86_64::is_behind_signal_trampoline(&bytes))
}

/// The code bytes at a run-time address.
pub fn code_at<const N: usize>(process: &Process, address: u64) -> Option<[u8; N]> {
    let (file, link) = process.at(address)?.link_address(address)?;
    file.bytes_at(link).read(0).ok()
}

/// Whether a run-time address may be after a call. Anonymous code is read from `memory`.
pub fn is_behind_call<M: Memory + ?Sized>(process: &Process, pc: u64, memory: &M) -> bool {
    fallback::is_behind_call(pc, &All { process, memory })
}
