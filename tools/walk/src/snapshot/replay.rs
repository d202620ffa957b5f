// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Walks a snapshot by the core's walk.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    marker::PhantomData,
    ops::Range, //
};

use sframe::{
    abi::Abi,
    bytes::{
        Fault,
        Source, //
    },
    error::Error,
    rule::Rule,
    runtimes::Region,
    section::{
        Search,
        Section, //
    },
    stop_reason::StopReason,
    unwind::{
        Frame,
        Memory,
        RegisterSource, //
    },
    walk::{
        FramePointerUse,
        FunctionTable,
        MappedRows,
        Mapping,
        MappingOf,
        RuleOrigin,
        TableAnswer,
        Task, //
    }, //
};

use super::{
    format::{
        Architecture,
        ByteOrder,
        Hex,
        Snapshot,
        SparseBytes,
        StoredMapping,
        StoredOrigin,
        StoredRows, //
    },
    record::walk_region,
    rule_text, //
};
use crate::walker::{
    walk_from,
    Frames,
    SectionPlace,
    WalkedFrame, //
};

/// The result of a walk of a snapshot.
#[derive(Debug)]
pub struct Replayed {
    /// The frames.
    pub frames: Vec<WalkedFrame>,
    /// Why the walk ended.
    pub stop_reason: StopReason,
    /// What the walk asked for and the snapshot does not have, as text. Such a read or question has
    /// failed.
    pub missing: Vec<String>,
}

/// Walks a snapshot. With `is_fast`, by the fast path in regions, which does not tell the stack
/// pointers of its frames.
///
/// # Errors
///
/// A part of the snapshot has no meaning. The error names the part.
pub fn replay(snapshot: &Snapshot, is_fast: bool) -> Result<Replayed, String> {
    match snapshot.architecture {
        Architecture::Amd64 => replay_as::<Amd64>(snapshot, is_fast),
    }
}

impl Snapshot {
    /// Walks the snapshot, and compares the result with what the snapshot expects. Returns the
    /// differences, as lines of text.
    ///
    /// # Errors
    ///
    /// As of [`replay`].
    pub fn check(&self) -> Result<Vec<String>, String> {
        let Replayed {
            frames,
            stop_reason,
            missing,
        } = replay(self, false)?;
        let mut differences = missing;
        let mut differs = |line: String| differences.push(line);
        for index in 0..frames.len().max(self.chain.len()) {
            let expected = self.chain.get(index);
            let found = frames.get(index);
            let is_equal = expected
                .zip(found)
                .is_some_and(|(expected, found)| expected.is(found));
            if !is_equal {
                let expected = expected.map_or("no frame".to_owned(), |it| {
                    format!(
                        "pc {} sp {} fp {} by {}: {}",
                        it.pc, it.sp, it.fp, it.by, it.place
                    )
                });
                let found = found.map_or("no frame".to_owned(), |it| {
                    let Frame { pc, sp, fp } = it.frame;
                    let by = it.source.as_str();
                    format!("pc {pc:#x} sp {sp:#x} fp {fp:#x} by {by}")
                });
                differs(format!("frame {index}: expected {expected}; found {found}"));
                break;
            }
        }
        if stop_reason.as_str() != self.stop_reason {
            let expected = &self.stop_reason;
            differs(format!(
                "the stop reason: expected {expected}; found {stop_reason}"
            ));
        }
        if differences.is_empty() {
            let fast = replay(self, true)?;
            let pcs = |frames: &[WalkedFrame]| -> Vec<u64> {
                frames.iter().map(|found| found.frame.pc).collect()
            };
            let (slow_pcs, fast_pcs) = (pcs(&frames), pcs(&fast.frames));
            let in_fast = |line: String| format!("with the fast path in regions: {line}");
            differences.extend(fast.missing.into_iter().map(in_fast));
            if (slow_pcs, stop_reason) != (fast_pcs, fast.stop_reason) {
                differences.push(in_fast(format!(
                    "{} frames, {}; without: {} frames, {stop_reason}",
                    fast.frames.len(),
                    fast.stop_reason,
                    frames.len()
                )));
            }
        }
        Ok(differences)
    }
}

/// An architecture, as a type.
trait KnownAbi {
    const ABI: Abi;
}

struct Amd64;

impl KnownAbi for Amd64 {
    const ABI: Abi = Abi::Amd64;
}

fn replay_as<A: KnownAbi>(snapshot: &Snapshot, is_fast: bool) -> Result<Replayed, String> {
    let missing = RefCell::default();
    let registers = StoredRegisters::new(snapshot)?;
    if snapshot.byte_order != ByteOrder::of(A::ABI) {
        return Err("byte_order: the architecture has the other one".to_owned());
    }
    let mut names = StopReason::ALL.iter().map(|reason| reason.as_str());
    if !names.any(|name| name == snapshot.stop_reason) {
        return Err(format!(
            "stop_reason: there is no {:?}",
            snapshot.stop_reason
        ));
    }
    for (index, frame) in snapshot.chain.iter().enumerate() {
        if !frame.source_is_known() {
            return Err(format!("chain[{index}].by: there is no {:?}", frame.by));
        }
    }
    let mappings = snapshot.mappings.iter().enumerate();
    let mappings = mappings.map(|(index, mapping)| {
        OpenMapping::new::<A>(mapping, &missing)
            .map_err(|error| format!("mappings[{index}], {}: {error}", mapping.name))
    });
    let mappings = mappings.collect::<Result<Vec<_>, String>>()?;
    let value = |number| registers.register(number).unwrap_or(0);
    let [pc, sp, fp] = snapshot.architecture.frame_registers().map(value);
    let task = SnapshotTask {
        machine: PhantomData::<A>,
        registers,
        mappings,
        snapshot,
        memory: StoredMemory {
            snapshot,
            missing: &missing,
        },
        is_fast,
    };
    let mut frames = Vec::new();
    let stop_reason = walk_from(&task, Frame { pc, sp, fp }, &mut frames);
    drop(task);
    Ok(Replayed {
        frames,
        stop_reason,
        missing: missing.into_inner(),
    })
}

/// Registers by DWARF number.
struct StoredRegisters(BTreeMap<u8, u64>);

impl StoredRegisters {
    fn new(snapshot: &Snapshot) -> Result<StoredRegisters, String> {
        let names = snapshot.architecture.registers();
        let number = |(name, value): &(String, Hex)| {
            let number = names.iter().zip(0..).find(|(known, _)| **known == name);
            let (_, number) = number.ok_or_else(|| format!("registers: there is no {name:?}"))?;
            Ok((number, value.0))
        };
        let registers: BTreeMap<u8, u64> = (snapshot.registers.0.iter())
            .map(number)
            .collect::<Result<_, String>>()?;
        for number in snapshot.architecture.frame_registers() {
            if !registers.contains_key(&number) {
                return Err(format!(
                    "registers: {} is missing",
                    names[usize::from(number)]
                ));
            }
        }
        Ok(StoredRegisters(registers))
    }
}

impl RegisterSource for StoredRegisters {
    fn register(&self, number: u8) -> Option<u64> {
        self.0.get(&number).copied()
    }
}

/// What the walk asked for and the snapshot does not have.
type Unanswered = RefCell<Vec<String>>;

/// The memory of a snapshot.
struct StoredMemory<'a> {
    snapshot: &'a Snapshot,
    missing: &'a Unanswered,
}

impl Source for StoredMemory<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        if let Some(bytes) = self.snapshot.memory.get(offset) {
            return Ok(bytes);
        }
        // A read fails if a part of it has failed.
        let has_failed = |(start, len): (&Hex, &usize)| {
            let distance = start.0.wrapping_sub(offset);
            distance.saturating_add(*len as u64) <= N as u64
        };
        if !self.snapshot.unreadable.iter().any(has_failed) {
            let text = format!("memory: no {N} bytes at {offset:#x}, which the walk reads");
            self.missing.borrow_mut().push(text);
        }
        Err(Fault)
    }
}

impl Memory for StoredMemory<'_> {
    fn read_word(&self, address: u64) -> Result<u64, Fault> {
        let order = self.snapshot.byte_order;
        self.read(address).map(|bytes| order.word(bytes))
    }
}

/// The bytes of a section, of which a snapshot has parts.
struct SectionParts<'a> {
    bytes: &'a SparseBytes,
    missing: &'a Unanswered,
}

impl Source for SectionParts<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.bytes.get(offset).ok_or_else(|| {
            let text =
                format!("a section: no {N} bytes at offset {offset:#x}, which the walk reads");
            self.missing.borrow_mut().push(text);
            Fault
        })
    }
}

/// The rows of a mapping, with the rules decoded.
enum OpenRows<'a> {
    None(FunctionTable),
    Section(OpenSection<'a>),
    Bad(Error),
    Table(OpenTable),
    Region(Region),
    Replaced,
}

/// A section at its run-time address.
#[derive(Clone, Copy)]
struct OpenSection<'a> {
    section: Section,
    bytes: &'a SparseBytes,
}

/// The rows of a table.
struct OpenTable {
    bias: u64,
    rows: BTreeMap<u64, Option<(Rule, RuleOrigin)>>,
}

/// A mapping with its rows.
struct OpenMapping<'a> {
    stored: &'a StoredMapping,
    rows: OpenRows<'a>,
}

impl<'a> OpenMapping<'a> {
    fn new<A: KnownAbi>(
        stored: &'a StoredMapping,
        missing: &'a Unanswered,
    ) -> Result<OpenMapping<'a>, String> {
        let rows = match &stored.rows {
            StoredRows::None { functions, len } => OpenRows::None(FunctionTable {
                address: functions.0,
                len: *len,
            }),
            StoredRows::Section(section) => {
                let bytes = &section.bytes;
                let place = SectionPlace {
                    address: section.address.0,
                    len: section.len,
                    code: section.code.0,
                    code_len: section.code_len.0,
                };
                match place.open(&SectionParts { bytes, missing }, A::ABI) {
                    Ok(section_at) => OpenRows::Section(OpenSection {
                        section: section_at.moved_by(section.bias.0),
                        bytes,
                    }),
                    Err(error) => OpenRows::Bad(error),
                }
            }
            StoredRows::Table(table) => {
                let rows = table.rows.iter().map(|(link, row)| {
                    let Some(row) = row else {
                        return Ok((link.0, None));
                    };
                    let origin = match row.from {
                        StoredOrigin::Table => RuleOrigin::Table,
                        StoredOrigin::ExtraRow => RuleOrigin::ExtraRow,
                        StoredOrigin::PltStub => RuleOrigin::PltStub,
                    };
                    Ok((link.0, Some((rule_text::parse(&row.rule)?, origin))))
                });
                OpenRows::Table(OpenTable {
                    bias: table.bias.0,
                    rows: rows.collect::<Result<_, String>>()?,
                })
            }
            StoredRows::Region(region) => OpenRows::Region((*region).into()),
            StoredRows::Replaced => OpenRows::Replaced,
        };
        Ok(OpenMapping { stored, rows })
    }

    fn covers(&self, address: u64) -> bool {
        (self.stored.start.0..self.stored.end.0).contains(&address)
    }
}

/// The task of a snapshot.
struct SnapshotTask<'a, A> {
    machine: PhantomData<A>,
    registers: StoredRegisters,
    mappings: Vec<OpenMapping<'a>>,
    snapshot: &'a Snapshot,
    memory: StoredMemory<'a>,
    is_fast: bool,
}

impl<A> SnapshotTask<'_, A> {
    fn misses(&self, text: String) {
        self.memory.missing.borrow_mut().push(text);
    }
}

impl<'a, A: KnownAbi> Task for SnapshotTask<'a, A> {
    const ABI: Abi = A::ABI;
    const KNOWS_SYSTEM_CALL: bool = false;

    type Memory = StoredMemory<'a>;
    type Registers = StoredRegisters;
    type Section = OpenSection<'a>;
    type SectionBytes<'b>
        = SectionParts<'b>
    where
        Self: 'b;
    /// The index of the mapping.
    type Table = usize;
    type Sink = Frames<'a>;

    fn memory(&self) -> &StoredMemory<'a> {
        &self.memory
    }

    fn registers(&self) -> &StoredRegisters {
        &self.registers
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
        let index = (self.mappings.iter()).position(|mapping| mapping.covers(address));
        let Some((index, found)) = index.and_then(|index| Some((index, self.mappings.get(index)?)))
        else {
            if !self.snapshot.unmapped.contains(&Hex(address)) {
                self.misses(format!(
                    "mappings: none at {address:#x}, which the walk asks for"
                ));
            }
            return Err(StopReason::NotMapped);
        };
        let stored = found.stored;
        let guard = stored.guard.as_ref();
        let is_valid =
            guard.is_none_or(|guard| self.memory.read_word(guard.address.0) == Ok(guard.value.0));
        *mapping = Mapping {
            start: stored.start.0,
            end: stored.end.0,
            frame_pointer: match stored.image {
                true if stored.keeps_frame_pointer => FramePointerUse::Keeps,
                true => FramePointerUse::Unknown,
                false => FramePointerUse::MayKeep,
            },
            executable: stored.executable,
            rows: match &found.rows {
                _ if !is_valid => MappedRows::Region(Region::Stop),
                OpenRows::None(functions) => MappedRows::None(*functions),
                OpenRows::Section(section) => MappedRows::Section(*section),
                OpenRows::Bad(error) => MappedRows::Bad(*error),
                OpenRows::Table(_) => MappedRows::Table(index),
                OpenRows::Region(region) => MappedRows::Region(*region),
                OpenRows::Replaced => MappedRows::Replaced,
            },
        };
        Ok(())
    }

    fn end_of_stack(&self, sp: u64) -> u64 {
        let mut stacks = self.snapshot.stacks.iter();
        match stacks.find(|stack| (stack.start.0..stack.end.0).contains(&sp)) {
            Some(stack) => stack.end.0,
            None => {
                if !self.snapshot.unmapped.contains(&Hex(sp)) {
                    self.misses(format!("stacks: none at {sp:#x}, which the walk asks for"));
                }
                0
            }
        }
    }

    fn section<'b>(&'b self, section: &'b OpenSection<'a>) -> (&'b Section, SectionParts<'b>) {
        let parts = SectionParts {
            bytes: section.bytes,
            missing: self.memory.missing,
        };
        (&section.section, parts)
    }

    fn look_up(&self, table: &usize, lookup_address: u64) -> TableAnswer<RuleOrigin> {
        let Some(OpenRows::Table(table)) = self.mappings.get(*table).map(|found| &found.rows)
        else {
            return TableAnswer::Gone;
        };
        let link = lookup_address.wrapping_sub(table.bias);
        match table.rows.get(&link) {
            Some(Some((rule, origin))) => TableAnswer::Rule(*rule, *origin),
            Some(None) => TableAnswer::NoRow,
            None => {
                let text = format!(
                    "a table: no row at {link:#x} (run-time address {lookup_address:#x}), which the walk asks for"
                );
                self.misses(text);
                TableAnswer::Gone
            }
        }
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
