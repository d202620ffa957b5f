// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What the walk asks of the task, and what it tells the receiver of its frames.

use crate::sframe::{
    elf::eh_frame_hdr,
    format::{
        abi::Abi,
        bytes::Source,
        error::Error,
        section::{
            Search,
            Section, //
        }, //
    },
    rule::Rule,
    runtimes::Region,
    unwind::step::{
        Frame,
        Memory,
        RegisterSource, //
    },
    walk::stop_reason::StopReason, //
};
use core::{
    ffi::CStr,
    ops::Range, //
};

/// How the walk found a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FrameSource {
    /// From the registers: the innermost frame.
    Registers,
    /// By a row, or by a rule from instructions.
    Rows,
    /// By the frame pointer, the code or a region, because no row covers the lookup address.
    FramePointer,
}

impl FrameSource {
    /// All sources, in the order of their numbers.
    pub const ALL: [FrameSource; 3] = [
        FrameSource::Registers,
        FrameSource::Rows,
        FrameSource::FramePointer,
    ];

    /// The name in counters (`frames_by_NAME`).
    pub const fn name(self) -> &'static CStr {
        match self {
            FrameSource::Registers => c"registers",
            FrameSource::Rows => c"rows",
            FrameSource::FramePointer => c"frame_pointer",
        }
    }

    /// [`FrameSource::name`] as a string.
    pub fn as_str(self) -> &'static str {
        self.name().to_str().unwrap_or_default()
    }
}

/// The origin of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOrigin {
    /// A row of the file's own section, which the task has mapped.
    Section,
    /// A row of the file's table.
    Table,
    /// An extra row of the file's table: a row that a section cannot encode.
    ExtraRow,
    /// The instructions of a PLT stub.
    PltStub,
    /// The instructions of the trampoline that a signal handler returns to.
    SignalTrampoline,
    /// The instructions after the system call that starts a thread.
    Clone,
}

impl RuleOrigin {
    /// A short name of the origin, for tools. It never changes.
    pub const fn as_str(self) -> &'static str {
        match self {
            RuleOrigin::Section => "section",
            RuleOrigin::Table => "converted",
            RuleOrigin::ExtraRow => "extra-row",
            RuleOrigin::PltStub => "plt-stub",
            RuleOrigin::SignalTrampoline => "signal-trampoline",
            RuleOrigin::Clone => "clone",
        }
    }
}

/// The type in which a [`Sink`] keeps a [`RuleOrigin`]. The kernel uses `()`: the walk then carries
/// no origins, at no cost.
pub trait KeptOrigin {
    /// Converts `origin` to the kept form.
    fn keep(origin: RuleOrigin) -> Self;
}

impl KeptOrigin for RuleOrigin {
    #[inline(always)]
    fn keep(origin: RuleOrigin) -> Self {
        origin
    }
}

impl KeptOrigin for () {
    #[inline(always)]
    fn keep(_origin: RuleOrigin) -> Self {}
}

/// The result of a lookup of an address in a table.
#[derive(Clone, Copy, Debug)]
pub enum TableAnswer<O> {
    /// The rule of the row that covers the address, and the rule's origin.
    Rule(Rule, O),
    /// No row covers the address.
    NoRow,
    /// The table was removed.
    Gone,
}

/// The table of a file's functions, `.eh_frame_hdr`. Its length is 0 if the file has none.
#[derive(Clone, Copy, Debug)]
pub struct FunctionTable {
    /// The run-time address.
    pub address: u64,
    /// The length in bytes.
    pub len: u64,
}

impl FunctionTable {
    /// No table.
    pub const NONE: Self = Self { address: 0, len: 0 };

    /// The table at an address that is greater by `bias` bytes, modulo 2^64; no table stays none.
    #[must_use]
    pub const fn moved_by(self, bias: u64) -> Self {
        match self.len {
            0 => self,
            len => Self {
                address: self.address.wrapping_add(bias),
                len,
            },
        }
    }

    /// The run-time address of the start of the function that covers `address`, a run-time address;
    /// `None` if the table has no such function or cannot be read.
    #[inline(never)]
    pub fn start_at<S: Source + ?Sized>(&self, address: u64, memory: &S) -> Option<u64> {
        eh_frame_hdr::function_start(memory, self.address, self.len, address)
    }
}

/// The rows of a mapping: `S` is a section at its run-time address, `T` a table.
#[derive(Clone, Copy, Debug)]
pub enum MappedRows<S, T> {
    /// The file has no rows, or no file is mapped. The table of its functions may still give their
    /// starts.
    None(FunctionTable),
    /// The headers of the file could not be read. Whether the file has rows is not known.
    Unknown,
    /// Anonymous memory has replaced the code of a file at this place.
    Replaced,
    /// The file's own section.
    Section(S),
    /// The file's table.
    Table(T),
    /// The file has a section that cannot be used.
    Bad(Error),
    /// A region of code that the process made.
    Region(Region),
}

impl<S, T> MappedRows<S, T> {
    /// Whether there are neither rows nor a table of functions.
    #[inline(always)]
    pub const fn are_none(&self) -> bool {
        matches!(self, Self::None(FunctionTable { len: 0, .. }))
    }

    /// What is known of the frame pointer in code that these rows do not cover. `is_file`: they are
    /// the rows of a file.
    #[inline(always)]
    pub const fn frame_pointer_use(&self, is_file: bool) -> FramePointerUse {
        match self {
            Self::None(FunctionTable { len: 1.., .. }) => FramePointerUse::Unknown,
            _ if is_file => FramePointerUse::Unknown,
            _ => FramePointerUse::MayKeep,
        }
    }
}

/// What is known of the frame pointer in code that no row covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePointerUse {
    /// Nothing: code of files, and of ELF images that have a table of functions. Each function has
    /// to prove that it keeps a frame pointer.
    Unknown,
    /// A process has made the code. Most such code keeps a frame pointer.
    MayKeep,
    /// The code is a file's, and user space has found that it keeps a frame pointer.
    Keeps,
}

/// A mapping of the task. Addresses are run-time addresses.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<S, T> {
    /// The first address.
    pub start: u64,
    /// The address after the last address; 0 for a mapping that covers nothing.
    pub end: u64,
    /// What is known of the frame pointer in code that no row covers.
    pub frame_pointer: FramePointerUse,
    /// Whether the memory is executable.
    pub executable: bool,
    /// The rows of the file.
    pub rows: MappedRows<S, T>,
}

impl<S, T> Mapping<S, T> {
    /// A mapping that covers nothing.
    pub const NOWHERE: Self = Self {
        start: 0,
        end: 0,
        frame_pointer: FramePointerUse::MayKeep,
        executable: false,
        rows: MappedRows::None(FunctionTable::NONE),
    };

    /// Whether the mapping covers a run-time address.
    #[inline]
    pub const fn covers(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// The type in which the sink of a task keeps a rule's origin.
pub(super) type Origin<T> = <<T as Task>::Sink as Sink>::Origin;

/// The mapping type of a task.
pub type MappingOf<T> = Mapping<<T as Task>::Section, <T as Task>::Table>;

/// The receiver of the frames of a walk.
pub trait Sink {
    /// The type in which the sink keeps a rule's origin.
    type Origin: KeptOrigin + Copy;

    /// Stores a frame. `lookup_address` is the frame's lookup address, a run-time address. False if
    /// the sink has no space for another frame.
    fn store(&mut self, frame: &Frame, lookup_address: u64, source: FrameSource) -> bool;

    /// Receives the rule that leads from the last stored frame to its caller, and the rule's
    /// origin. The walk calls this method before the step. The default ignores both.
    #[inline(always)]
    fn rule(&mut self, rule: &Rule, origin: Self::Origin) {
        let _ = (rule, origin);
    }
}

/// The task whose stack is walked.
pub trait Task {
    /// The ABI of the task's code.
    const ABI: Abi;
    /// Whether [`Task::in_sigreturn`] is known.
    const KNOWS_SYSTEM_CALL: bool;

    /// The memory of the task, at run-time addresses.
    type Memory: Memory + Source;
    /// The registers of the innermost frame.
    type Registers: RegisterSource;
    /// A section of a file, at its run-time address.
    type Section;
    /// The bytes of a section.
    type SectionBytes<'a>: Source
    where
        Self: 'a;
    /// A table of a file.
    type Table;
    /// The receiver of frames.
    type Sink: Sink;

    /// The memory of the task.
    fn memory(&self) -> &Self::Memory;

    /// The registers of the innermost frame.
    fn registers(&self) -> &Self::Registers;

    /// Whether the task is in `rt_sigreturn`, the system call that ends a signal handler. False if
    /// that is not known.
    fn in_sigreturn(&self) -> bool;

    /// Whether reads fail because the walk has spent its budget of reads.
    fn is_spent(&self) -> bool;

    /// Whether the walk has taken too much time. [`walk`](super::walk) asks before each step, but
    /// not in the fast paths.
    fn is_late(&self) -> bool {
        false
    }

    /// The bound on the time of a search in a section.
    fn search(&self) -> Search;

    /// Replaces `mapping` by the mapping that covers `address`, a run-time address. The old mapping
    /// does not cover `address`.
    ///
    /// # Errors
    ///
    /// [`StopReason::NotMapped`], [`StopReason::MappingMoved`].
    fn find_mapping(&self, mapping: &mut MappingOf<Self>, address: u64) -> Result<(), StopReason>
    where
        Self: Sized;

    /// The end, a run-time address, of the mapping that contains the stack pointer `sp`; 0 if
    /// nothing is mapped at `sp`.
    fn end_of_stack(&self, sp: u64) -> u64;

    /// The section and its bytes.
    fn section<'a>(&'a self, section: &'a Self::Section) -> (&'a Section, Self::SectionBytes<'a>);

    /// Looks up a run-time address in a table.
    fn look_up(
        &self,
        table: &Self::Table,
        lookup_address: u64,
    ) -> TableAnswer<<Self::Sink as Sink>::Origin>;

    /// The fast path: takes steps by compact rules from a frame that has made a call, and stores
    /// the frames that it finds. `frame` becomes the last one. Not called for frames with uprobes:
    /// a uretprobe may have replaced a return address, and the fast path does not restore it.
    ///
    /// # Errors
    ///
    /// The stop reason, if the walk has ended.
    #[inline(always)]
    fn run_fast_path(&self, frame: &mut Frame, sink: &mut Self::Sink) -> Result<(), StopReason> {
        let _ = (frame, sink);
        Ok(())
    }

    /// The fast path in a region: takes steps as long as they lead to run-time addresses in `code`,
    /// a part of the region, and stores the frames. `frame` has made a call.
    #[inline(always)]
    fn run_region(
        &self,
        region: &Region,
        code: Range<u64>,
        frame: &mut Frame,
        sink: &mut Self::Sink,
    ) {
        let _ = (region, code, frame, sink);
    }

    /// The fast path in code that keeps its frame pointer: takes steps by the frame pointer as long
    /// as they lead to run-time addresses in `code`, up to a frame for which `table` has another
    /// rule, and stores the frames. The stack ends at the run-time address `stack_end`. `frame` has
    /// made a call.
    #[inline(always)]
    fn run_frame_pointers(
        &self,
        table: Option<&Self::Table>,
        (code, stack_end): (Range<u64>, u64),
        frame: &mut Frame,
        sink: &mut Self::Sink,
    ) {
        let _ = (table, code, stack_end, frame, sink);
    }

    /// Whether the task's code may have uprobes. If false, the walk does not call
    /// [`Task::undo_uretprobe`] and [`Task::leave_uprobe`].
    #[inline(always)]
    fn is_probed(&self) -> bool {
        false
    }

    /// If a uretprobe replaced the return address that became the PC of `frame`, restores the
    /// original address. False if the original address cannot be determined.
    #[inline(always)]
    fn undo_uretprobe(&self, frame: &mut Frame) -> bool {
        let _ = frame;
        true
    }

    /// If `frame` is in a trampoline of uprobes, replaces it by the program's frame at the probe.
    /// False if the program's frame cannot be determined.
    #[inline(always)]
    fn leave_uprobe(&self, frame: &mut Frame) -> bool {
        let _ = frame;
        true
    }
}
