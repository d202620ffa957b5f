// SPDX-License-Identifier: GPL-2.0-only

//! A task whose code is one mapping.

use std::ops::Range;

use sframe::{
    abi::Abi,
    rule::Rule,
    runtimes::{
        self,
        unknown,
        Region, //
    },
    section::{
        Search,
        Section, //
    },
    stop_reason::StopReason,
    table::Table,
    unwind::{
        Frame,
        RegisterSource, //
    },
    walk::{
        run_loop,
        FramePointerUse,
        FrameSource,
        FunctionTable,
        KeptOrigin,
        MappedRows,
        Mapping,
        MappingOf,
        RuleOrigin,
        Sink,
        TableAnswer,
        Task, //
    },
};

use crate::{
    memory::{
        Counted,
        CountedPart, //
    },
    user_memory::work_of_look_up, //
};

/// The most frames of a sample, by default.
const MOST_FRAMES: usize = 127;

/// The registers of the innermost frame, by DWARF number.
pub(crate) struct RegisterValues(pub(crate) [u64; 17]);

impl RegisterSource for RegisterValues {
    fn register(&self, number: u8) -> Option<u64> {
        self.0.get(usize::from(number)).copied()
    }
}

/// The task of a walk.
pub(crate) struct MadeTask<'a> {
    pub(crate) memory: &'a Counted,
    pub(crate) registers: &'a RegisterValues,
    pub(crate) code: Range<u64>,
    pub(crate) stack_end: u64,
    pub(crate) rows: &'a CodeRows<'a>,
}

/// The rows of all code of a task.
pub(crate) enum CodeRows<'a> {
    /// A section at its run-time address.
    Section(Section),
    /// A table, whose link-time addresses are run-time addresses.
    Table(Table<'a>),
    /// A table with one rule for all code.
    Rule(Rule),
    /// A region.
    Region(Region),
    /// No rows.
    None(FunctionTable, FramePointerUse),
}

/// Counts frames.
pub(crate) struct FrameCount(usize);

/// No origin.
#[derive(Clone, Copy)]
pub(crate) struct NoOrigin;

impl KeptOrigin for NoOrigin {
    fn keep(_origin: RuleOrigin) -> NoOrigin {
        NoOrigin
    }
}

impl Sink for FrameCount {
    type Origin = NoOrigin;

    #[inline(always)]
    fn store(&mut self, _frame: &Frame, _lookup_address: u64, _source: FrameSource) -> bool {
        self.0 += 1;
        self.0 < MOST_FRAMES
    }
}

impl MadeTask<'_> {
    /// Walks from the innermost frame.
    pub(crate) fn walk(&self, mut frame: Frame) -> StopReason {
        sframe::walk::walk(self, &mut frame, &mut FrameCount(1))
    }

    /// Takes one step from a frame, as a walk does. `has_called`: it is not the innermost frame.
    pub(crate) fn step(&self, mut frame: Frame, has_called: bool) -> Option<Frame> {
        let mut last = FrameCount(MOST_FRAMES - 1);
        let reason = run_loop(self, frame.sp, has_called, &mut frame, &mut last);
        (reason == StopReason::Full).then_some(frame)
    }

    /// The mapping at an address. Not counted: the search is the kernel's.
    #[inline(never)]
    #[no_mangle]
    extern "C" fn uncounted_mapping(&self, mapping: &mut MappingOf<Self>) {
        *mapping = Mapping {
            start: self.code.start,
            end: self.code.end,
            frame_pointer: match *self.rows {
                CodeRows::None(_, known) => known,
                CodeRows::Region(_) => FramePointerUse::MayKeep,
                _ => FramePointerUse::Unknown,
            },
            executable: true,
            rows: match self.rows {
                CodeRows::Section(section) => MappedRows::Section(*section),
                CodeRows::Table(_) | CodeRows::Rule(_) => MappedRows::Table(()),
                CodeRows::Region(region) => MappedRows::Region(*region),
                CodeRows::None(functions, _) => MappedRows::None(*functions),
            },
        };
    }
}

impl Task for MadeTask<'_> {
    const ABI: Abi = Abi::Amd64;
    const KNOWS_SYSTEM_CALL: bool = true;

    type Memory = Counted;
    type Registers = RegisterValues;
    type Section = Section;
    type SectionBytes<'b>
        = CountedPart<'b>
    where
        Self: 'b;
    type Table = ();
    type Sink = FrameCount;

    fn memory(&self) -> &Counted {
        self.memory
    }

    fn registers(&self) -> &RegisterValues {
        self.registers
    }

    fn in_sigreturn(&self) -> bool {
        false
    }

    fn is_spent(&self) -> bool {
        self.memory.is_spent()
    }

    fn search(&self) -> Search {
        Search::Bounded
    }

    fn find_mapping(&self, mapping: &mut MappingOf<Self>, address: u64) -> Result<(), StopReason> {
        if !self.code.contains(&address) {
            return Err(StopReason::NotMapped);
        }
        self.uncounted_mapping(mapping);
        Ok(())
    }

    fn end_of_stack(&self, _sp: u64) -> u64 {
        self.stack_end
    }

    fn section<'b>(&'b self, section: &'b Section) -> (&'b Section, CountedPart<'b>) {
        let len = section.opened_len().into();
        (section, self.memory.part(section.address(), len))
    }

    /// As `Current::look_up` in `rust/walk.rs`.
    fn look_up(&self, _table: &(), lookup_address: u64) -> TableAnswer<NoOrigin> {
        let (rule, rows) = match self.rows {
            CodeRows::Table(table) => table.search(lookup_address),
            CodeRows::Rule(rule) => (Some(*rule), 0),
            _ => (None, 0),
        };
        let _ = self.memory.take(work_of_look_up(rows, rule.is_some()));
        rule.map_or(TableAnswer::NoRow, |rule| TableAnswer::Rule(rule, NoOrigin))
    }

    /// As `store_by_region` there.
    fn run_region(
        &self,
        region: &Region,
        code: Range<u64>,
        frame: &mut Frame,
        sink: &mut FrameCount,
    ) {
        let mut buffer = [0; MOST_FRAMES];
        let left = buffer.get_mut(sink.0..).unwrap_or_default();
        let (memory, words) = (self.memory, self.memory.words());
        sink.0 += runtimes::run_fast(region, code, frame, memory, &words, left);
    }

    /// As `Current::run_frame_pointers` there.
    fn run_frame_pointers(
        &self,
        table: Option<&()>,
        code: (Range<u64>, u64),
        frame: &mut Frame,
        sink: &mut FrameCount,
    ) {
        let mut buffer = [0; MOST_FRAMES];
        let left = buffer.get_mut(sink.0..).unwrap_or_default();
        let (memory, words) = (self.memory, self.memory.words());
        let has_other_rule = |lookup_address| match self.rows {
            CodeRows::Table(rows) if table.is_some() => {
                let (rule, rows) = rows.search(lookup_address);
                let _ = self.memory.take(work_of_look_up(rows, false));
                rule.is_some_and(|rule| !rule.follows_frame_pointer())
            }
            _ => false,
        };
        sink.0 += unknown::run_fast(code, has_other_rule, frame, memory, &words, left);
    }
}
