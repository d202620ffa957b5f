// SPDX-License-Identifier: GPL-2.0-only

//! The walk of the current task, in all contexts: the kernel's side of the core's
//! [`walk`](crate::sframe::walk).

use crate::{
    arch::{
        self,
        uprobes, //
    },
    mapping::{
        self,
        PlainCode,
        TableRef,
        TaskMapping, //
    },
    sframe::{
        abi::Abi,
        arch::{
            fallback::is_call_before,
            machine::NATIVE,
            unknown, //
        },
        bytes::Fault,
        fast_path::FastPathState,
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
            self,
            Frame,
            Memory,
            Step, //
        },
        walk::{
            self,
            FrameSource,
            Sink,
            TableAnswer,
            Task, //
        }, //
    },
    sink::ChainBuffer,
    stats::{
        self,
        Walked, //
    },
    sys::{
        self,
        PeekWords,
        PtRegs,
        WalkContext, //
    },
    tables::{
        self,
        CodeCache, //
    },
    uretprobes,
    user_memory::{
        work_of_look_up,
        Part,
        UserMemory,
        CODE_CACHE,
        WORK, //
    }, //
};
use core::{
    cell::Cell,
    ops::Range, //
};

#[cfg(any(sfu_compare, CONFIG_KUNIT = "y"))]
use crate::compare::walk as walk_ranges;
#[cfg(not(any(sfu_compare, CONFIG_KUNIT = "y")))]
use crate::sframe::fast_path::walk as walk_ranges;

/// The work of a frame of the fast path at most: a search of
/// [`MOST_ROWS`](crate::sframe::table::MOST_ROWS) rows.
const FAST_FRAME: u32 = 8;

/// The start of a walk.
pub(crate) struct Begin<'a> {
    /// The innermost frame.
    pub(crate) frame: Frame,
    /// All registers of the innermost frame.
    pub(crate) registers: PtRegs<'a>,
    /// Whether the task's code may contain uprobes.
    pub(crate) is_probed: bool,
    /// The context in which the walk runs.
    pub(crate) context: WalkContext,
    /// The work that this sample has taken before the walk, in the units of [`UserMemory`].
    pub(crate) spent: u32,
    /// The limit of [`Peek::of_walk`](sys::Peek::of_walk).
    pub(crate) limit: u64,
    /// The buffer for the addresses of the stack.
    pub(crate) buffer: &'a mut [u64],
}

/// The fast path from the innermost frame on, with the PC `pc`. Stores the addresses of the
/// innermost frame and of the found frames in `buffer`, and returns their number; 0 if not even the
/// innermost frame is for the fast path.
#[inline(always)]
pub(crate) fn run_first(
    state: &mut FastPathState,
    pc: u64,
    buffer: &mut [u64],
    cache: CodeCache,
    words: PeekWords<'_>,
) -> usize {
    let space = buffer.len().min(const { (WORK / FAST_FRAME) as usize });
    let buffer = buffer.get_mut(..space).unwrap_or_default();
    // The walk has to look at code that tells more than its rows.
    if !state.is_aligned() || !arch::is_ordinary(pc, &words) {
        return 0;
    }
    let Some((first, callers)) = buffer.split_first_mut() else {
        return 0;
    };
    *first = pc;
    let unused = run_ranges(state, pc.wrapping_add(1), callers, cache, words);
    space.wrapping_sub(unused)
}

/// Walks the current task's user stack, and stores run-time addresses in the buffer of `begin`,
/// from its start on. [`run_first`] has led to `first`, and has stored `stored` addresses there. A
/// deferred walk runs in a task that is about to return to user space, and may sleep. Any other
/// walk is for a sample of perf or BPF, in an NMI, an IRQ or a task.
///
/// `c/hook.c` has already left these tasks to the kernel: tasks that cannot be walked (kernel
/// threads, 32-bit tasks, guests), tasks without rows, and all tasks while the module is switched
/// off.
///
/// # Safety
///
/// The limit of `begin` is as for [`Peek::of_walk`](sys::Peek::of_walk).
#[inline(always)]
pub(crate) unsafe fn walk(begin: Begin<'_>, first: &FastPathState, stored: usize) -> Walked {
    let may_sleep = begin.context == WalkContext::Deferred;
    let of_fast_path = (stored as u32).wrapping_mul(FAST_FRAME);
    let spent = begin.spent.wrapping_add(of_fast_path);
    // SAFETY: By the contract of this function.
    let memory = unsafe { UserMemory::of_walk(begin.limit, spent, may_sleep) };
    store_stack(begin, first, stored, &memory)
}

/// As [`walk`], over `memory`. Any context that `memory` is made for.
#[inline(always)]
pub(crate) fn store_stack(
    begin: Begin<'_>,
    first: &FastPathState,
    stored: usize,
    memory: &UserMemory,
) -> Walked {
    let Begin {
        mut frame,
        registers,
        is_probed,
        context,
        buffer,
        ..
    } = begin;
    let mut sink = ChainBuffer::new(buffer, context);
    let task = Current {
        memory,
        registers,
        is_probed,
        plain_code: Cell::new(PlainCode::NONE),
        end: Cell::new(match context {
            WalkContext::Irq | WalkContext::Nmi => NOT_BEGUN,
            WalkContext::Task | WalkContext::Deferred => NEVER,
        }),
    };
    let reason = 'ended: {
        let mut is_certain = true;
        if is_probed {
            is_certain = !uprobes::is_changing(&frame, &task.registers, memory);
            frame.pc = sys::uprobe_orig_pc(frame.pc);
            is_certain = is_certain && uprobes::leave(&mut frame, memory);
        }
        if !sink.push(frame.pc) {
            break 'ended StopReason::Full;
        }
        if !is_certain {
            break 'ended StopReason::Uprobe;
        }
        let lowest = frame.sp;
        // The first address is that of the innermost frame.
        let has_found = stored > 1;
        if has_found {
            let ended = end_fast_path(&mut frame, first, stored.wrapping_sub(1), memory, &mut sink);
            if let Err(reason) = ended {
                break 'ended reason;
            }
        }
        walk::run_loop(&task, lowest, has_found, &mut frame, &mut sink)
    };
    if reason.is_cut() {
        // Not `frame`, which may be a caller that is no code, or behind the last stored frame.
        let last = sink.last().unwrap_or_default();
        if mapping::count_cut(last, memory)
            && reason == StopReason::NoRows
            && last == frame.pc
            && !is_probed
        {
            store_as_kernel(&mut frame, memory, &mut sink);
        }
    }
    sink.ended(reason)
}

/// The current task, as the core's walk sees it.
struct Current<'a> {
    memory: &'a UserMemory,
    registers: PtRegs<'a>,
    is_probed: bool,
    /// The last found plain code. Code that a program makes, and the code of files that it calls,
    /// alternate on its stacks.
    plain_code: Cell<PlainCode>,
    /// The time of this CPU's clock at which the walk has to end, in units of 1,024 ns.
    end: Cell<u32>,
}

/// The end of a walk that has taken no step outside of the fast path.
const NOT_BEGUN: u32 = 0;
/// The end of a walk without a limit of time. Other tasks may run in the midst of a walk that does
/// not run in an interrupt.
const NEVER: u32 = sys::NO_END;

impl<'a> Task for Current<'a> {
    const ABI: Abi = NATIVE;
    const KNOWS_SYSTEM_CALL: bool = true;

    type Memory = UserMemory;
    type Registers = PtRegs<'a>;
    type Section = Section;
    type SectionBytes<'b>
        = Part<'b>
    where
        Self: 'b;
    type Table = TableRef;
    type Sink = ChainBuffer<'a>;

    #[inline(always)]
    fn memory(&self) -> &UserMemory {
        self.memory
    }

    #[inline(always)]
    fn registers(&self) -> &PtRegs<'a> {
        &self.registers
    }

    #[inline(always)]
    fn in_sigreturn(&self) -> bool {
        self.registers.in_sigreturn()
    }

    #[inline(always)]
    fn is_spent(&self) -> bool {
        self.memory.is_spent()
    }

    // Not inlined, so that its registers are free for the loop, whose stack is the deepest.
    #[inline(never)]
    fn is_late(&self) -> bool {
        match self.end.get() {
            NEVER => false,
            NOT_BEGUN => {
                self.end.set(sys::walk_end());
                false
            }
            end => sys::is_past(end),
        }
    }

    #[inline(always)]
    fn search(&self) -> Search {
        if self.memory.may_sleep() {
            Search::Thorough
        } else {
            Search::Bounded
        }
    }

    #[inline(always)]
    fn find_mapping(&self, mapping: &mut TaskMapping, address: u64) -> Result<(), StopReason> {
        mapping::find(mapping, address, self.memory, &self.plain_code)
    }

    #[inline(always)]
    fn end_of_stack(&self, sp: u64) -> u64 {
        mapping::end_of(sp, self.memory)
    }

    #[inline(always)]
    fn section<'b>(&'b self, section: &'b Section) -> (&'b Section, Part<'b>) {
        stats::section_search();
        let bytes = Part {
            memory: self.memory,
            address: section.address(),
            len: section.opened_len().into(),
        };
        (section, bytes)
    }

    #[inline(always)]
    fn look_up(&self, table: &TableRef, lookup_address: u64) -> TableAnswer<()> {
        let offset = lookup_address.wrapping_add(table.to_offset);
        let (answer, rows) = tables::rule_at(table.number, offset);
        let work = work_of_look_up(rows, matches!(answer, TableAnswer::Rule(..)));
        // If nothing is left, the step that follows fails.
        let _ = self.memory.take(work);
        answer
    }

    #[inline(always)]
    fn run_fast_path(
        &self,
        frame: &mut Frame,
        sink: &mut ChainBuffer<'a>,
    ) -> Result<(), StopReason> {
        let mut state = FastPathState::to(frame.sp, frame.fp);
        let found = store_by_rows(&mut state, frame.pc, self.memory, sink);
        if found == 0 && !state.is_outermost() {
            return Ok(());
        }
        end_fast_path(frame, &state, found, self.memory, sink)
    }

    #[inline(always)]
    fn run_region(
        &self,
        region: &Region,
        code: Range<u64>,
        frame: &mut Frame,
        sink: &mut ChainBuffer<'a>,
    ) {
        store_by_region(region, code, frame, self.memory, sink);
    }

    // Not inlined, so that its stack is free for the next step.
    #[inline(never)]
    fn run_frame_pointers(
        &self,
        table: Option<&TableRef>,
        code: (Range<u64>, u64),
        frame: &mut Frame,
        sink: &mut ChainBuffer<'a>,
    ) {
        let Some(words) = self.memory.words() else {
            return;
        };
        let has_other_rule = |lookup_address: u64| {
            let Some(table) = table else {
                return false;
            };
            let offset = lookup_address.wrapping_add(table.to_offset);
            let (answer, rows) = tables::rule_at(table.number, offset);
            // If nothing is left, the next step is not taken.
            let _ = self.memory.take(work_of_look_up(rows, false));
            match answer {
                TableAnswer::Rule(rule, ()) => !rule.follows_frame_pointer(),
                TableAnswer::NoRow => false,
                TableAnswer::Gone => true,
            }
        };
        let left = sink.left();
        let found = unknown::run_fast(code, has_other_rule, frame, self.memory, &words, left);
        sink.stored(found, FrameSource::FramePointer);
    }

    #[inline(always)]
    fn is_probed(&self) -> bool {
        self.is_probed
    }

    #[inline(always)]
    fn undo_uretprobe(&self, frame: &mut Frame) -> bool {
        uretprobes::put_back(frame, self.memory)
    }

    #[inline(always)]
    fn leave_uprobe(&self, frame: &mut Frame) -> bool {
        uprobes::leave(frame, self.memory)
    }
}

/// Walks by compact rules, as far as the ranges in this CPU's code cache go: see
/// [`fast_path::walk`](crate::sframe::fast_path::walk).
#[inline(never)]
fn run_ranges(
    state: &mut FastPathState,
    ra: u64,
    buffer: &mut [u64],
    mut cache: CodeCache,
    words: PeekWords<'_>,
) -> usize {
    let space = buffer.len();
    let mut ranges = cache.ranges(&words);
    let unused = walk_ranges(state, ra, buffer, &mut ranges, &words);
    if state.misses != 0 {
        ranges.record_misses(space.wrapping_sub(unused), state.misses.into());
    }
    unused
}

/// The fast path from a frame with the PC `pc` that has made a call. Stores the addresses of the
/// found frames in the unused part of the sink's buffer, and returns their number.
#[inline(never)]
fn store_by_rows(
    state: &mut FastPathState,
    pc: u64,
    memory: &UserMemory,
    sink: &mut ChainBuffer<'_>,
) -> usize {
    let Some(words) = memory.words() else {
        return 0;
    };
    if !state.is_aligned() || memory.take(CODE_CACHE).is_err() {
        return 0;
    }
    let Some(cache) = CodeCache::enter() else {
        return 0;
    };
    let left = sink.left();
    // As many frames as the budget can pay for.
    let space = left.len().min((memory.left() / FAST_FRAME) as usize);
    let buffer = left.get_mut(..space).unwrap_or_default();
    let unused = run_ranges(state, pc, buffer, cache, words);
    let found = space.wrapping_sub(unused);
    let _ = memory.take((found as u32).wrapping_mul(FAST_FRAME));
    found
}

/// Ends the fast path, which has stored the addresses of `found` frames in the unused part of the
/// sink's buffer, and replaces `frame` by the last one.
#[inline(never)]
fn end_fast_path(
    frame: &mut Frame,
    ended: &FastPathState,
    found: usize,
    memory: &UserMemory,
    sink: &mut ChainBuffer<'_>,
) -> Result<(), StopReason> {
    sink.stored(found, FrameSource::Rows);
    let last = sink.last().unwrap_or(frame.pc);
    if ended.is_outside && found != 0 {
        if let Err(reason) = mapping::check_code(last.wrapping_sub(1), memory) {
            sink.take_back();
            return Err(reason);
        }
    }
    if ended.is_outermost() {
        return Err(StopReason::Outermost);
    }
    *frame = Frame {
        pc: last,
        sp: ended.sp,
        fp: ended.fp,
    };
    if ended.fp_at != 0 {
        let read = memory.read_word(ended.fp_at);
        frame.fp = read.map_err(|Fault| StopReason::of_stack_fault(memory.is_spent()))?;
    }
    Ok(())
}

/// Stores the return addresses to which the frame pointers lead from `frame` on, as the kernel's
/// own walk would. Unlike that walk, it stores no address that is not after a call, as far as the
/// code can be read, and each frame pointer has to be above the last one.
#[cold]
#[inline(never)]
fn store_as_kernel(frame: &mut Frame, memory: &UserMemory, sink: &mut ChainBuffer<'_>) {
    stats::before_answer();
    let mut code = 0..0;
    while let Ok(Step::Caller(mut caller)) = unwind::step_by_frame_pointer(frame, memory) {
        caller.pc &= memory.code_mask();
        let lookup_address = caller.pc.wrapping_sub(1);
        if !code.contains(&lookup_address) {
            let Ok(mapped) = mapping::check_code(lookup_address, memory) else {
                break;
            };
            code = mapped;
        }
        if is_call_before(caller.pc, memory) == Some(false)
            || !sink.store(&caller, lookup_address, FrameSource::FramePointer)
        {
            break;
        }
        *frame = caller;
    }
}

/// The fast path in a region: see [`runtimes::run_fast`].
#[inline(never)]
fn store_by_region(
    region: &Region,
    code: Range<u64>,
    frame: &mut Frame,
    memory: &UserMemory,
    sink: &mut ChainBuffer<'_>,
) {
    let Some(words) = memory.words() else {
        return;
    };
    let found = runtimes::run_fast(region, code, frame, memory, &words, sink.left());
    sink.stored(found, FrameSource::FramePointer);
}
