// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Makes a snapshot: walks a stopped process, and keeps all that the walk asks for.

use std::{
    cell::RefCell,
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    ops::Range, //
};

use object::Object;
use sframe::{
    abi::Abi,
    bytes::{
        Fault,
        Source, //
    },
    runtimes::{
        self,
        Region, //
    },
    section::{
        Search,
        Section, //
    },
    stop_reason::StopReason,
    unwind::{
        Frame,
        Memory,
        Words, //
    },
    walk::{
        FramePointerUse,
        FrameSource,
        MappedRows,
        MappingOf,
        RuleOrigin,
        TableAnswer,
        Task, //
    }, //
};

use super::{
    format::{
        digits,
        Architecture,
        ByteOrder,
        Hex,
        NamedRegisters,
        Snapshot,
        SparseBytes,
        StackOrigin,
        StoredFrame,
        StoredGuard,
        StoredMapping,
        StoredOrigin,
        StoredRow,
        StoredRows,
        StoredSection,
        StoredStack,
        StoredTable,
        FORMAT, //
    },
    rule_text, //
};
use crate::{
    process::{
        CodeLayout,
        Process,
        ProcessMapping, //
    },
    registers::RegisterFile,
    walker::{
        walk_from,
        All,
        Frames,
        HostSection,
        HostTable,
        MappedCode,
        ProcessTask,
        SectionPlace,
        WalkedFrame,
        Walker,
        MOST_FRAMES, //
    }, //
};

/// The most letters of a program and its arguments that are kept.
const MOST_PROGRAM: usize = 300;

/// Walks a stopped process, and makes a snapshot of the stack. A person adds [`Snapshot::about`]
/// and the version; `program` and `saved_by` are as in [`StackOrigin`].
///
/// # Errors
///
/// The walk asked for something that the form of a snapshot has no place for.
pub fn record<M: Memory + ?Sized>(
    walker: &mut Walker,
    process: &Process,
    registers: &RegisterFile,
    memory: &M,
    program: &str,
    saved_by: &str,
) -> Result<Snapshot, String> {
    let log = RefCell::default();
    let (mut frames, mut fast_frames) = (Vec::new(), Vec::new());
    let architecture = Architecture::Amd64;
    let value = |number| registers.get(number).unwrap_or(0);
    let [pc, sp, fp] = architecture.frame_registers().map(value);
    let mut recorder = Recorder {
        task: ProcessTask {
            registers,
            memory: All::new(process, memory),
            walker: RefCell::new(walker),
        },
        memory: Recorded {
            all: All::new(process, memory),
            log: &log,
        },
        process,
        is_fast: false,
    };
    let reason = walk_from(&recorder, Frame { pc, sp, fp }, &mut frames);
    // The fast path may read other bytes. What it finds is compared when the snapshot is replayed.
    recorder.is_fast = true;
    walk_from(&recorder, Frame { pc, sp, fp }, &mut fast_frames);

    let log = log.into_inner();
    if let Some(problem) = log.problem {
        return Err(problem);
    }
    let place = |found: &WalkedFrame| process.describe(found.frame.pc);
    let names = architecture.registers().iter().zip(0..);
    let known =
        names.filter_map(|(name, number)| Some(((*name).to_owned(), Hex(registers.get(number)?))));
    let mut mappings = log.mappings;
    mappings.sort_by_key(|mapping| mapping.start);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(Snapshot {
        format: FORMAT,
        about: Vec::new(),
        origin: StackOrigin {
            program: program.chars().take(MOST_PROGRAM).collect(),
            version: String::new(),
            kernel: kernel.trim_end().to_owned(),
            saved_by: saved_by.to_owned(),
            notes: Vec::new(),
        },
        architecture,
        byte_order: ByteOrder::of(Abi::Amd64),
        registers: NamedRegisters(known.collect()),
        chain: (frames.iter())
            .map(|found| StoredFrame::new(found, place(found)))
            .collect(),
        stop_reason: reason.as_str().to_owned(),
        mappings,
        stacks: log.stacks,
        unmapped: log.unmapped,
        memory: log.memory,
        unreadable: log.unreadable,
    })
}

impl Snapshot {
    /// Adds bytes of memory that the walk has not read, as far as they can be read. So a walk that
    /// goes further can be replayed, after a defect in the core was corrected.
    pub fn add<M: Memory + ?Sized>(&mut self, process: &Process, memory: &M, range: Range<u64>) {
        let all = All::new(process, memory);
        for address in range {
            if let Ok([byte]) = all.read(address) {
                // The byte may be there, with the value that the walk has read.
                let _ = self.memory.put(address, &[byte]);
            }
        }
    }
}

/// What a walk has asked for.
#[derive(Default)]
struct Log {
    memory: SparseBytes,
    unreadable: BTreeMap<Hex, usize>,
    mappings: Vec<StoredMapping>,
    /// The index of the mapping that the walk is in.
    current: usize,
    stacks: Vec<StoredStack>,
    unmapped: BTreeSet<Hex>,
    /// Why there can be no snapshot.
    problem: Option<String>,
}

impl Log {
    fn fail(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    fn has_read<const N: usize>(
        &mut self,
        address: u64,
        bytes: Result<[u8; N], Fault>,
    ) -> Result<[u8; N], Fault> {
        match bytes {
            Ok(bytes) => {
                if let Err(at) = self.memory.put(address, &bytes) {
                    self.fail(format!("the byte at {at:#x} has two values"));
                }
            }
            Err(Fault) => {
                self.unreadable.insert(Hex(address), N);
            }
        }
        bytes
    }

    /// Whether the mapping is known. The walk is in it from now on.
    fn enter(&mut self, range: Range<u64>) -> bool {
        let mut known = self.mappings.iter().map(|it| it.start.0..it.end.0);
        let known = known.position(|known| known == range);
        self.current = known.unwrap_or(self.current);
        known.is_some()
    }

    fn rows(&mut self) -> Option<&mut StoredRows> {
        Some(&mut self.mappings.get_mut(self.current)?.rows)
    }
}

/// A walk whose questions are kept.
struct Recorder<'a, M: ?Sized> {
    task: ProcessTask<'a, M>,
    memory: Recorded<'a, M>,
    process: &'a Process,
    /// Whether the walk takes the fast path in regions.
    is_fast: bool,
}

/// Memory whose reads are kept.
struct Recorded<'a, M: ?Sized> {
    all: All<'a, M>,
    log: &'a RefCell<Log>,
}

impl<M: Memory + ?Sized> Source for Recorded<'_, M> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let bytes = self.all.read(offset);
        self.log.borrow_mut().has_read(offset, bytes)
    }
}

impl<M: Memory + ?Sized> Memory for Recorded<'_, M> {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let word = self.all.read_word(address).map(u64::to_le_bytes);
        let word = self.log.borrow_mut().has_read(address, word);
        word.map(u64::from_le_bytes)
    }
}

/// The bytes of a section. Reads are kept.
struct RecordedSection<'b> {
    bytes: &'static [u8],
    log: &'b RefCell<Log>,
}

impl Source for RecordedSection<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let bytes = self.bytes.read(offset);
        let mut log = self.log.borrow_mut();
        match (bytes, log.rows()) {
            (Ok(bytes), Some(StoredRows::Section(section))) => {
                if section.bytes.put(offset, &bytes).is_err() {
                    log.fail(format!("the section changes at {offset:#x}"));
                }
            }
            _ => log.fail(format!("the section cannot be read at {offset:#x}")),
        }
        bytes
    }
}

impl<'a, M: Memory + ?Sized> Recorder<'a, M> {
    /// Keeps a mapping that the walk has asked for, by a run-time address in it.
    fn keep(&self, mapping: &MappingOf<Self>, address: u64) -> Result<(), String> {
        if self
            .memory
            .log
            .borrow_mut()
            .enter(mapping.start..mapping.end)
        {
            return Ok(());
        }
        let found = self.process.at(address).ok_or("nothing is mapped")?;
        let region = self.process.region_at(address);
        let guard = region.and_then(|region| region.guard);
        if let Some((guard, _)) = guard {
            // A guard that cannot be read does not hold.
            let _ = self.memory.read_word(guard);
        }
        // The mapping from which the rows are.
        let source = match region.map(|region| &region.layout) {
            Some(CodeLayout::Rows(code)) => code,
            _ => found,
        };
        let build_id = source
            .file
            .and_then(|file| Some(file.elf().build_id().ok()??.to_vec()));
        let stored = StoredMapping {
            start: Hex(mapping.start),
            end: Hex(mapping.end),
            executable: mapping.executable,
            image: mapping.frame_pointer != FramePointerUse::MayKeep,
            keeps_frame_pointer: mapping.frame_pointer == FramePointerUse::Keeps,
            name: found.name.clone(),
            offset: (found.file).map(|_| Hex(found.offset + (mapping.start - found.start))),
            build_id: build_id.as_deref().map(digits),
            guard: guard.map(|(address, value)| StoredGuard {
                address: Hex(address),
                value: Hex(value),
            }),
            rows: self.rows(mapping, source, address)?,
        };
        {
            let mut log = self.memory.log.borrow_mut();
            log.current = log.mappings.len();
            log.mappings.push(stored);
        }
        // A replay opens the section anew.
        if matches!(mapping.rows, MappedRows::Section(_) | MappedRows::Bad(_)) {
            let (_, place, bytes) = place_of(source, address)?;
            let log = self.memory.log;
            let _ = place.open(&RecordedSection { bytes, log }, Abi::Amd64);
        }
        Ok(())
    }

    fn rows(
        &self,
        mapping: &MappingOf<Self>,
        source: &ProcessMapping,
        address: u64,
    ) -> Result<StoredRows, String> {
        Ok(match &mapping.rows {
            MappedRows::None(functions) => StoredRows::None {
                functions: Hex(functions.address),
                len: functions.len,
            },
            MappedRows::Section(_) | MappedRows::Bad(_) => {
                let (bias, place, _) = place_of(source, address)?;
                StoredRows::Section(StoredSection {
                    address: Hex(place.address),
                    len: place.len,
                    bias: Hex(bias),
                    code: Hex(place.code),
                    code_len: Hex(place.code_len),
                    bytes: SparseBytes::default(),
                })
            }
            MappedRows::Table(table) => StoredRows::Table(StoredTable {
                bias: Hex(table.bias),
                rows: BTreeMap::new(),
            }),
            MappedRows::Region(region) => StoredRows::Region((*region).into()),
            MappedRows::Replaced => StoredRows::Replaced,
            MappedRows::Unknown => {
                return Err("the rows of a mapping are not known".to_owned());
            }
        })
    }
}

/// The run-time address minus the link-time address, the place and the bytes of the section for the
/// code at a run-time address.
fn place_of(
    mapping: &ProcessMapping,
    address: u64,
) -> Result<(u64, SectionPlace, &'static [u8]), String> {
    let place = MappedCode::find(mapping, address).and_then(|code| {
        let (place, bytes) = code.section().ok()?;
        Some((code.bias, place, bytes))
    });
    place.ok_or_else(|| format!("the rows of {} are of no section", mapping.name))
}

impl<'a, M: Memory + ?Sized> Task for Recorder<'a, M> {
    const ABI: Abi = ProcessTask::<M>::ABI;
    const KNOWS_SYSTEM_CALL: bool = ProcessTask::<M>::KNOWS_SYSTEM_CALL;

    type Memory = Recorded<'a, M>;
    type Registers = RegisterFile;
    type Section = HostSection;
    type SectionBytes<'b>
        = RecordedSection<'b>
    where
        Self: 'b;
    type Table = HostTable;
    type Sink = Frames<'a>;

    fn memory(&self) -> &Recorded<'a, M> {
        &self.memory
    }

    fn registers(&self) -> &RegisterFile {
        self.task.registers()
    }

    fn in_sigreturn(&self) -> bool {
        self.task.in_sigreturn()
    }

    fn is_spent(&self) -> bool {
        self.task.is_spent()
    }

    fn search(&self) -> Search {
        self.task.search()
    }

    fn find_mapping(&self, mapping: &mut MappingOf<Self>, address: u64) -> Result<(), StopReason> {
        let mut found = MappingOf::<Self>::NOWHERE;
        let result = self.task.find_mapping(&mut found, address);
        let kept = match result {
            Ok(()) => self.keep(&found, address),
            Err(StopReason::NotMapped) => {
                self.memory.log.borrow_mut().unmapped.insert(Hex(address));
                Ok(())
            }
            Err(reason) => Err(format!("the mapping at {address:#x}: {reason}")),
        };
        if let Err(problem) = kept {
            self.memory.log.borrow_mut().fail(problem);
        }
        *mapping = found;
        result
    }

    fn end_of_stack(&self, sp: u64) -> u64 {
        let mut log = self.memory.log.borrow_mut();
        match self.process.at(sp) {
            Some(found) => {
                let stack = StoredStack {
                    start: Hex(found.start),
                    end: Hex(found.end),
                    name: found.name.clone(),
                };
                if !log.stacks.contains(&stack) {
                    log.stacks.push(stack);
                }
            }
            None => {
                log.unmapped.insert(Hex(sp));
            }
        }
        self.task.end_of_stack(sp)
    }

    fn section<'b>(&'b self, section: &'b HostSection) -> (&'b Section, RecordedSection<'b>) {
        let (section, bytes) = self.task.section(section);
        let log = self.memory.log;
        (section, RecordedSection { bytes, log })
    }

    fn look_up(&self, table: &HostTable, lookup_address: u64) -> TableAnswer<RuleOrigin> {
        let answer = self.task.look_up(table, lookup_address);
        let row = match answer {
            TableAnswer::Rule(rule, origin) => {
                let from = match origin {
                    RuleOrigin::ExtraRow => StoredOrigin::ExtraRow,
                    RuleOrigin::PltStub => StoredOrigin::PltStub,
                    _ => StoredOrigin::Table,
                };
                Some(StoredRow {
                    rule: rule_text::write(&rule),
                    from,
                })
            }
            TableAnswer::NoRow => None,
            TableAnswer::Gone => {
                let problem = format!("the table has no answer for {lookup_address:#x}");
                self.memory.log.borrow_mut().fail(problem);
                return answer;
            }
        };
        let mut log = self.memory.log.borrow_mut();
        match log.rows() {
            Some(StoredRows::Table(stored)) => {
                let link = Hex(lookup_address.wrapping_sub(table.bias));
                stored.rows.insert(link, row);
            }
            _ => log.fail("a row is of another mapping".to_owned()),
        }
        answer
    }

    fn run_region(
        &self,
        region: &Region,
        code: Range<u64>,
        frame: &mut Frame,
        sink: &mut Frames<'a>,
    ) {
        if self.is_fast {
            walk_region(region, code, frame, &self.memory, sink);
        }
    }
}

/// The fast path in a region, as the module takes it. The stack pointers and the frame pointers of
/// the frames that it finds are not known, except for those of the last one.
pub(super) fn walk_region<M: Memory + Source>(
    region: &Region,
    code: Range<u64>,
    frame: &mut Frame,
    memory: &M,
    sink: &mut Frames<'_>,
) {
    let mut buffer = [0; MOST_FRAMES];
    let left = MOST_FRAMES - sink.0.len();
    let (words, buffer_left) = (Words(memory), &mut buffer[..left]);
    let found = runtimes::run_fast(region, code, frame, memory, &words, buffer_left);
    for (index, pc) in buffer[..found].iter().enumerate() {
        let (sp, fp) = match index + 1 == found {
            true => (frame.sp, frame.fp),
            false => (0, 0),
        };
        sink.0.push(WalkedFrame {
            frame: Frame { pc: *pc, sp, fp },
            source: FrameSource::FramePointer,
            at: pc.wrapping_sub(1),
            rule: None,
        });
    }
}
