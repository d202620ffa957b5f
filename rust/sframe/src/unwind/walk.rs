// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The walk: from the innermost frame, frame by frame, to the outermost frame or to a reason to stop.
//!
//! The kernel module and the host run this one loop. [`Task`] is what they implement: how memory is
//! read, what is mapped where, and which rows a file has.
//!
//! Each step goes by the row that covers the PC. Where a file has no rows, the walk tries the code and
//! the frame pointer, and believes them only if they prove the step: a wrong frame is worse than a
//! missing one.
//!
//! The walk ends: each step rises on the stack, but for steps to another stack, and these are counted.

use super::{
    super::{
        elf::eh_frame_hdr,
        format::{
            abi::Abi,
            bytes::Source,
            error::Error,
            fde::Function,
            section::{
                Search,
                Section, //
            }, //
        },
        x86_64::{
            fallback::{
                self,
                FramePointer, //
            },
            insn,
            plt,
            registers::RAX,
            signal, //
        }, //
    },
    rule::{
        Base,
        Rule, //
    },
    step::{
        self,
        Frame,
        Memory,
        Registers,
        Step,
        MAX_SIGNALS, //
    },
    stop_reason::StopReason, //
};
use core::ffi::CStr;

/// How the walk found a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FrameSource {
    /// From the registers: the innermost frame.
    Registers,
    /// By a row, or by instructions that take the place of one.
    Rows,
    /// By the frame pointer, or by the code, where there are no rows.
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

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOrigin {
    /// A row of the file's own section, as the task has it mapped.
    Section,
    /// A row of the file's table.
    Table,
    /// An extra row of the file's table: one that a section cannot encode.
    ExtraRow,
    /// The instructions of a stub of the PLT.
    PltStub,
    /// The instructions of the trampoline that a signal's handler returns to.
    SignalTrampoline,
    /// The instructions after the system call that starts a thread.
    Clone,
}

/// What a [`Sink`] keeps of a [`RuleOrigin`]. The kernel keeps nothing: then the walk carries nothing.
pub trait KeptOrigin {
    /// Keeps it.
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

/// What a table says of an address.
#[derive(Clone, Copy, Debug)]
pub enum TableAnswer<O> {
    /// This rule holds.
    Rule(Rule, O),
    /// No row covers the address.
    NoRow,
    /// The table was removed.
    Gone,
}

/// The table of a file's functions, `.eh_frame_hdr`; of length 0 if there is none.
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

    /// The run-time address at which the function begins that covers a run-time address; `None` if the
    /// table does not tell.
    #[inline(never)]
    pub fn start_at<S: Source + ?Sized>(&self, address: u64, memory: &S) -> Option<u64> {
        eh_frame_hdr::function_start(memory, self.address, self.len, address)
    }
}

/// The rows of a mapping: `S` is a section at its run-time address, `T` a table.
#[derive(Clone, Copy, Debug)]
pub enum MappedRows<S, T> {
    /// The file has none, or no file is mapped.
    None(FunctionTable),
    /// The headers of the file could not be read: whether it has rows is not known.
    Unknown,
    /// A file's code was here, and now memory of no file is.
    Replaced,
    /// The file's own section.
    Section(S),
    /// The file's table.
    Table(T),
    /// The file has a section, and it cannot be used.
    Bad(Error),
}

/// A mapping of the task. Addresses are run-time addresses.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<S, T> {
    /// The first address.
    pub start: u64,
    /// The address after the last one; 0 for a mapping that covers nothing.
    pub end: u64,
    /// Whether a file is mapped, or an image that has a table of functions.
    pub is_image: bool,
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
        is_image: false,
        executable: false,
        rows: MappedRows::None(FunctionTable::NONE),
    };

    /// Whether the mapping covers a run-time address.
    #[inline]
    pub const fn covers(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// Whether the mapping covers a run-time address and its file has no table.
    #[inline]
    const fn lacks_table(&self, address: u64) -> bool {
        self.covers(address) && !matches!(self.rows, MappedRows::Table(_))
    }
}

/// What the sink of a task keeps of a rule's origin.
type Origin<T> = <<T as Task>::Sink as Sink>::Origin;

/// The mapping type of a task.
pub type MappingOf<T> = Mapping<<T as Task>::Section, <T as Task>::Table>;

/// Where the walk puts frames.
pub trait Sink {
    /// What it keeps of where rules come from.
    type Origin: KeptOrigin;

    /// Takes a frame. `lookup_address` is the run-time address whose rule holds there. False if there is
    /// no space for it.
    fn store(&mut self, frame: &Frame, lookup_address: u64, source: FrameSource) -> bool;

    /// Is told which rule leads from the frame that was stored last to its caller, and where the rule
    /// comes from.
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
    type Registers: Registers;
    /// A section of a file, at its run-time address.
    type Section;
    /// The bytes of a section.
    type SectionBytes<'a>: Source
    where
        Self: 'a;
    /// A table of a file.
    type Table;
    /// Where frames go.
    type Sink: Sink;

    /// The memory of the task.
    fn memory(&self) -> &Self::Memory;

    /// The registers of the innermost frame.
    fn registers(&self) -> &Self::Registers;

    /// Whether the task is in the system call that ends a signal's handler. False where that is not known.
    fn in_sigreturn(&self) -> bool;

    /// Whether reads fail because the walk has used up its reads.
    fn is_spent(&self) -> bool;

    /// How long a search in a section may take.
    fn search(&self) -> Search;

    /// Makes `mapping` the one at a run-time address that it does not cover.
    ///
    /// # Errors
    ///
    /// [`StopReason::NotMapped`], [`StopReason::MappingMoved`].
    fn find_mapping(&self, mapping: &mut MappingOf<Self>, address: u64) -> Result<(), StopReason>
    where
        Self: Sized;

    /// The run-time address at which the mapping of the stack at `sp` ends; 0 if nothing is mapped there.
    fn end_of_stack(&self, sp: u64) -> u64;

    /// A section and its bytes.
    fn section<'a>(&'a self, section: &'a Self::Section) -> (&'a Section, Self::SectionBytes<'a>);

    /// Looks a run-time address up in a table.
    fn look_up(
        &self,
        table: &Self::Table,
        lookup_address: u64,
    ) -> TableAnswer<<Self::Sink as Sink>::Origin>;

    /// Walks on by rules that are cheap to follow, and stores the frames that it finds. True if it found a
    /// frame. `is_innermost` says that `frame` is the innermost one, which has not called.
    ///
    /// # Errors
    ///
    /// The walk has ended.
    #[inline(always)]
    fn walk_fast(
        &self,
        frame: &mut Frame,
        is_innermost: bool,
        sink: &mut Self::Sink,
    ) -> Result<bool, StopReason> {
        let _ = (frame, is_innermost, sink);
        Ok(false)
    }

    /// Whether the task's code may have uprobes. If not, neither of the next two methods is called.
    #[inline(always)]
    fn is_probed(&self) -> bool {
        false
    }

    /// Puts back the return address of `frame` that a uretprobe took. False if that cannot be told.
    #[inline(always)]
    fn undo_uretprobe(&self, frame: &mut Frame) -> bool {
        let _ = frame;
        true
    }

    /// If `frame` is in a trampoline of uprobes, makes it the program's frame there. False if that cannot
    /// be told.
    #[inline(always)]
    fn leave_uprobe(&self, frame: &mut Frame) -> bool {
        let _ = frame;
        true
    }
}

/// Walks on from the innermost frame, which the caller has stored, and returns why the walk ended. Any
/// context that fits `task`.
#[inline(always)]
pub fn walk<T: Task>(task: &T, mut frame: Frame, sink: &mut T::Sink) -> StopReason {
    let probed = task.is_probed();
    let mut registers = CallerRegisters::All(task.registers());
    // The run-time address from which on the stack is in use.
    let mut lowest = frame.sp;
    // A uretprobe may have taken a return address.
    if !probed {
        match task.walk_fast(&mut frame, true, sink) {
            Ok(true) => registers = CallerRegisters::Lost(lowest),
            Ok(false) => {}
            Err(reason) => return reason,
        }
    }
    let mut stack_changes = MAX_SIGNALS;
    let mut mapping = Mapping::NOWHERE;

    loop {
        if let Err(reason) = find(task, &mut mapping, registers.lookup_address(frame.pc)) {
            return reason;
        }
        let context = frame.sp;
        let (signal, source) = match rule_at(task, frame.pc, &registers, &mapping) {
            Ok(Some((rule, origin))) => {
                sink.rule(&rule, origin);
                let mut stepped = step_by_rule(task, &rule, &mut frame, &registers);
                if stepped == Err(StopReason::CfaNotRising) && has_left_stack(task, &rule, &frame) {
                    stack_changes = match stack_changes.checked_sub(1) {
                        Some(left) => left,
                        None => return StopReason::Signals,
                    };
                    frame.sp = frame.fp;
                    lowest = frame.sp;
                    stepped = step_by_rule(task, &rule, &mut frame, &registers);
                }
                match stepped {
                    Ok(()) => (rule.signal, FrameSource::Rows),
                    Err(reason) => return reason,
                }
            }
            Ok(None) => {
                match step_without_rows(task, &mut frame, !registers.are_lost(), &mapping) {
                    Ok(()) => (false, FrameSource::FramePointer),
                    Err(reason) => return reason,
                }
            }
            Err(reason) => return reason,
        };
        if probed && !task.undo_uretprobe(&mut frame) {
            return StopReason::Uprobe;
        }
        registers = CallerRegisters::Lost(lowest);
        if signal {
            // Other steps rise on the stack. This one may lead to any stack.
            stack_changes = match stack_changes.checked_sub(1) {
                Some(left) => left,
                None => return StopReason::Signals,
            };
            registers = CallerRegisters::Interrupted(context);
            lowest = frame.sp;
            if probed && !task.leave_uprobe(&mut frame) {
                return StopReason::Uprobe;
            }
        }

        let lookup_address = registers.lookup_address(frame.pc);
        match find(task, &mut mapping, lookup_address) {
            Ok(()) if mapping.executable => {}
            Ok(()) => return StopReason::NotExecutable,
            Err(reason) => return reason,
        }
        if !sink.store(&frame, lookup_address, source) {
            return StopReason::Full;
        }
        // A frame that a signal interrupted is rare: the fast path need not know of it.
        if !probed && !signal && !mapping.lacks_table(lookup_address) {
            if let Err(reason) = task.walk_fast(&mut frame, false, sink) {
                return reason;
            }
        }
    }
}

/// What is known of the registers of a frame, besides those that each [`Frame`] has.
enum CallerRegisters<'a, R> {
    /// All registers: it is the innermost frame.
    All(&'a R),
    /// All registers, in the `struct ucontext` at this run-time address: a signal interrupted the frame.
    Interrupted(u64),
    /// None: the frame has called, and its stack is in use from this run-time address on.
    Lost(u64),
}

impl<R> CallerRegisters<'_, R> {
    fn are_lost(&self) -> bool {
        matches!(self, CallerRegisters::Lost(_))
    }

    /// The address whose rule holds. A return address is behind its call, which may be the last
    /// instruction of its function.
    fn lookup_address(&self, pc: u64) -> u64 {
        if self.are_lost() {
            pc.wrapping_sub(1)
        } else {
            pc
        }
    }
}

/// The registers of a frame, with the memory that holds some of them.
struct RegistersIn<'a, R, M>(&'a CallerRegisters<'a, R>, &'a M);

impl<R: Registers, M: Memory> Registers for RegistersIn<'_, R, M> {
    #[inline(never)]
    fn register(&self, number: u8) -> Option<u64> {
        match *self.0 {
            CallerRegisters::All(registers) => registers.register(number),
            CallerRegisters::Interrupted(context) => signal::Interrupted {
                context,
                memory: self.1,
            }
            .register(number),
            CallerRegisters::Lost(_) => None,
        }
    }

    fn lowest(&self) -> u64 {
        match *self.0 {
            CallerRegisters::Lost(lowest) => lowest,
            _ => 0,
        }
    }
}

/// Makes `mapping` the one at a run-time address.
#[inline(never)]
fn find<T: Task>(task: &T, mapping: &mut MappingOf<T>, address: u64) -> Result<(), StopReason> {
    if mapping.covers(address) {
        return Ok(());
    }
    task.find_mapping(mapping, address)
}

/// The rule for a frame at a run-time address; `None` if no row covers it.
#[inline(never)]
fn rule_at<T: Task>(
    task: &T,
    pc: u64,
    registers: &CallerRegisters<'_, T::Registers>,
    mapping: &MappingOf<T>,
) -> Result<Option<(Rule, Origin<T>)>, StopReason> {
    match mapping.rows {
        MappedRows::None(_) | MappedRows::Unknown => {
            Ok(rule_of_system_call(task, pc, registers, false))
        }
        MappedRows::Replaced => Err(StopReason::TextReplaced),
        MappedRows::Bad(error) => Err(StopReason::of_section(error, task.is_spent())),
        MappedRows::Section(ref section) => rule_of_section(task, section, pc, registers),
        MappedRows::Table(ref table) => rule_of_table(task, table, pc, registers),
    }
}

/// The rule for a frame in a file with a section of its own.
#[inline(always)]
fn rule_of_section<T: Task>(
    task: &T,
    section: &T::Section,
    pc: u64,
    registers: &CallerRegisters<'_, T::Registers>,
) -> Result<Option<(Rule, Origin<T>)>, StopReason> {
    let (section, bytes) = task.section(section);
    let search = task.search();
    let reason = |error| StopReason::of_section(error, task.is_spent());
    let lookup_address = registers.lookup_address(pc);
    let Some(function) = section
        .find_function(&bytes, lookup_address, search)
        .map_err(reason)?
    else {
        return Ok(rule_of_system_call(task, pc, registers, false));
    };
    if let Some(found) = rule_of_code(task, &function, pc, registers) {
        return Ok(Some(found));
    }
    let rule = section
        .find_rule(&bytes, &function, lookup_address, search)
        .map_err(reason)?;
    Ok(rule.map(|rule| (rule, Origin::<T>::keep(RuleOrigin::Section))))
}

/// The rule for a frame in a file with a table.
#[inline(never)]
fn rule_of_table<T: Task>(
    task: &T,
    table: &T::Table,
    pc: u64,
    registers: &CallerRegisters<'_, T::Registers>,
) -> Result<Option<(Rule, Origin<T>)>, StopReason> {
    // A trampoline may end at its system call, and the rows of another function begin there.
    if !registers.are_lost() {
        if let Some(found) = rule_of_system_call(task, pc, registers, true) {
            return Ok(Some(found));
        }
    }
    match task.look_up(table, registers.lookup_address(pc)) {
        TableAnswer::Rule(rule, origin) => Ok(Some((rule, origin))),
        TableAnswer::NoRow if registers.are_lost() || !T::KNOWS_SYSTEM_CALL => {
            Ok(rule_of_system_call(task, pc, registers, false))
        }
        TableAnswer::NoRow => Ok(None),
        TableAnswer::Gone => Err(StopReason::MappingMoved),
    }
}

/// The rule that instructions give where the rows of a function are wrong, or another function's.
#[inline(never)]
fn rule_of_code<T: Task>(
    task: &T,
    function: &Function,
    pc: u64,
    registers: &CallerRegisters<'_, T::Registers>,
) -> Option<(Rule, Origin<T>)> {
    if registers.are_lost() {
        // A return address behind the end of the function follows a call at its end, or is none.
        if function.covers(pc) {
            return None;
        }
    } else if let Some((stub, offset)) = function.stub(pc) {
        // Nothing is called from a PLT.
        let rule = plt::rule_of_stub(&task.memory().read(stub).ok()?, offset)?;
        return Some((rule, Origin::<T>::keep(RuleOrigin::PltStub)));
    }
    // musl has rows for its trampoline, as for any function, and they are wrong.
    rule_of_system_call(task, pc, registers, true)
}

/// The rule for a frame at the system call that ends a signal's handler, or behind the one that starts a
/// thread. Rows seldom cover the first, and are wrong for the second.
///
/// `is_covered` says that a row may cover the PC.
#[inline(never)]
fn rule_of_system_call<T: Task>(
    task: &T,
    pc: u64,
    registers: &CallerRegisters<'_, T::Registers>,
    is_covered: bool,
) -> Option<(Rule, Origin<T>)> {
    let bytes = task
        .memory()
        .read(pc.wrapping_sub(signal::TRAMPOLINE_BEFORE))
        .ok()?;
    // Behind the system call another function may begin: the system call itself tells.
    let is_returning = match registers {
        CallerRegisters::All(_) if task.in_sigreturn() || !(T::KNOWS_SYSTEM_CALL || is_covered) => {
            signal::is_behind_signal_trampoline(&bytes)
        }
        _ => false,
    };
    if is_returning || signal::is_signal_trampoline(&bytes) {
        return Some((
            signal::INTERRUPTED,
            Origin::<T>::keep(RuleOrigin::SignalTrampoline),
        ));
    }
    // A thread that begins here has a result of zero.
    match registers {
        CallerRegisters::All(registers)
            if signal::is_behind_clone(&bytes)
                && registers.register(RAX).is_some_and(|result| result != 0) =>
        {
            Some((signal::BEHIND_CLONE, Origin::<T>::keep(RuleOrigin::Clone)))
        }
        _ => None,
    }
}

/// Makes `frame` its caller by a rule. The end of the stack is a reason to stop, too.
#[inline(never)]
fn step_by_rule<T: Task>(
    task: &T,
    rule: &Rule,
    frame: &mut Frame,
    registers: &CallerRegisters<'_, T::Registers>,
) -> Result<(), StopReason> {
    let registers = RegistersIn(registers, task.memory());
    let step = step::step(T::ABI, rule, frame, &registers, task.memory())
        .map_err(|stop| StopReason::of_step(stop, task.is_spent()))?;
    take(step, frame)
}

/// Whether a frame is on another stack than its stack pointer, and its frame pointer points to it.
#[inline(never)]
fn has_left_stack<T: Task>(task: &T, rule: &Rule, frame: &Frame) -> bool {
    let address = frame.pc.wrapping_sub(const { insn::TAKES_STACK as u64 });
    rule.cfa.base == Base::Fp
        && task
            .memory()
            .read(address)
            .is_ok_and(|bytes| insn::takes_stack(&bytes))
}

fn take(step: Step, frame: &mut Frame) -> Result<(), StopReason> {
    match step {
        Step::Caller(caller) => {
            *frame = caller;
            Ok(())
        }
        Step::Outermost => Err(StopReason::Outermost),
    }
}

/// Makes `frame` its caller where no row covers the PC.
#[inline(never)]
fn step_without_rows<T: Task>(
    task: &T,
    frame: &mut Frame,
    is_innermost: bool,
    mapping: &MappingOf<T>,
) -> Result<(), StopReason> {
    let frame_pointer = match mapping.rows {
        MappedRows::Section(ref section) if task.section(section).0.frame_pointer() => {
            FramePointer::Kept
        }
        // A file with a section was made without a frame pointer, or says so. Code that its rows leave
        // out may use that register for anything, a caller's frame included.
        MappedRows::Section(_) | MappedRows::Table(_) => return Err(StopReason::NoRows),
        _ if mapping.is_image => FramePointer::Unknown,
        _ => FramePointer::Likely,
    };
    let step = fallback::step(
        frame,
        is_innermost,
        frame_pointer,
        |at| match mapping.rows {
            MappedRows::None(ref functions) => functions.start_at(at, task.memory()),
            _ => None,
        },
        task.end_of_stack(frame.sp),
        task.memory(),
    );
    take(step.ok_or(StopReason::NoRows)?, frame)
}
