// SPDX-License-Identifier: GPL-2.0-only

//! The walk of the current task, in all contexts: the kernel's side of the core's
//! [`walk`](crate::sframe::walk).

use crate::{
    mapping::{
        self,
        TableRef,
        TaskMapping, //
    },
    sframe::{
        abi::Abi,
        bytes::Fault,
        fast_path::{
            self,
            FastPathState, //
        },
        region::{
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
            Memory, //
        },
        walk::{
            self,
            FrameSource,
            TableAnswer,
            Task, //
        }, //
    },
    sink::ChainBuffer,
    stats::Tally,
    sys::{
        self,
        PtRegs,
        WalkContext, //
    },
    tables::{
        self,
        CodeCache, //
    },
    user_memory::{
        Part,
        UserMemory, //
    },
    x86_64::{
        self,
        uprobes,
        NATIVE, //
    }, //
};
use core::ops::Range;

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
    /// The buffer for the addresses of the stack.
    pub(crate) buffer: &'a mut [u64],
}

/// Walks the current task's user stack, stores run-time addresses in the buffer of `begin`, from its start on,
/// and returns their number. Any context that `memory` is made for.
#[inline(always)]
pub(crate) fn walk(begin: Begin<'_>, memory: &UserMemory) -> usize {
    let Begin {
        mut frame,
        registers,
        is_probed,
        context,
        spent: _,
        buffer,
    } = begin;
    let mut sink = ChainBuffer::new(buffer, Tally::new(context));
    let task = Current {
        memory,
        registers,
        is_probed,
    };
    let mut is_certain = true;
    if is_probed {
        is_certain = !uprobes::is_changing(&frame, &task.registers, memory);
        frame.pc = sys::uprobe_orig_pc(frame.pc);
        is_certain = is_certain && uprobes::leave(&mut frame, memory);
    }
    let reason = if !sink.push(frame.pc) {
        StopReason::Full
    } else if is_certain {
        walk::walk(&task, &mut frame, &mut sink)
    } else {
        StopReason::Uprobe
    };
    sink.end(reason)
}

/// The current task, as the core's walk sees it.
struct Current<'a> {
    memory: &'a UserMemory,
    registers: PtRegs<'a>,
    is_probed: bool,
}

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
        mapping::find(mapping, address, self.memory)
    }

    #[inline(always)]
    fn end_of_stack(&self, sp: u64) -> u64 {
        mapping::end_of(sp, self.memory)
    }

    #[inline(always)]
    fn section<'b>(&'b self, section: &'b Section) -> (&'b Section, Part<'b>) {
        let bytes = Part {
            memory: self.memory,
            address: section.address(),
            len: section.opened_len().into(),
        };
        (section, bytes)
    }

    #[inline(always)]
    fn look_up(&self, table: &TableRef, lookup_address: u64) -> TableAnswer<()> {
        tables::rule_at(table.number, lookup_address.wrapping_add(table.to_offset))
    }

    #[inline(always)]
    fn walk_fast(
        &self,
        frame: &mut Frame,
        is_innermost: bool,
        sink: &mut ChainBuffer<'a>,
    ) -> Result<bool, StopReason> {
        walk_fast(frame, is_innermost, self.memory, sink)
    }

    #[inline(always)]
    fn walk_region(
        &self,
        region: &Region,
        code: Range<u64>,
        frame: &mut Frame,
        sink: &mut ChainBuffer<'a>,
    ) {
        walk_region(region, code, frame, self.memory, sink);
    }

    #[inline(always)]
    fn is_probed(&self) -> bool {
        self.is_probed
    }

    #[inline(always)]
    fn undo_uretprobe(&self, frame: &mut Frame) -> bool {
        uprobes::put_back(frame)
    }

    #[inline(always)]
    fn leave_uprobe(&self, frame: &mut Frame) -> bool {
        uprobes::leave(frame, self.memory)
    }
}

/// Walks by compact rules, as far as the ranges in this CPU's code cache go.
#[inline(never)]
fn walk_fast(
    frame: &mut Frame,
    is_innermost: bool,
    memory: &UserMemory,
    sink: &mut ChainBuffer<'_>,
) -> Result<bool, StopReason> {
    let Some(words) = memory.words() else {
        return Ok(false);
    };
    // The walk has to look at code that tells more than its rows.
    if is_innermost && !x86_64::is_ordinary(frame.pc, &words) {
        return Ok(false);
    }
    let Some(mut cache) = CodeCache::enter(is_innermost) else {
        return Ok(false);
    };
    let mut walked = FastPathState::to(*frame);
    let found = fast_path::walk(
        &mut walked,
        is_innermost,
        &mut cache.ranges(&words),
        &words,
        sink.left(),
    );
    drop(cache);
    let (mut stored, mut checked) = (found, Ok(()));
    if let (true, Some(before)) = (walked.is_outside, found.checked_sub(1)) {
        let ra = sink.left().get(before).copied().unwrap_or(0);
        checked = mapping::check_code(ra.wrapping_sub(1), memory);
        if checked.is_err() {
            stored = before;
        }
    }
    sink.stored(stored, FrameSource::Rows);
    checked?;
    if found != 0 {
        walked.frame.pc = sink.last().unwrap_or(frame.pc);
    }
    if walked.is_outermost {
        return Err(StopReason::Outermost);
    }
    *frame = walked.frame;
    if walked.fp_at != 0 {
        let read = memory.read_word(walked.fp_at);
        frame.fp = read.map_err(|Fault| StopReason::of_stack_fault(memory.is_spent()))?;
    }
    Ok(found != 0)
}

/// The fast path in a code heap of HotSpot, and in a region with a fixed rule. Other regions have none.
#[inline(never)]
fn walk_region(
    region: &Region,
    code: Range<u64>,
    frame: &mut Frame,
    memory: &UserMemory,
    sink: &mut ChainBuffer<'_>,
) {
    let Some(words) = memory.words() else {
        return;
    };
    let found = region::walk(region, code, frame, memory, &words, sink.left());
    sink.stored(found, FrameSource::FramePointer);
}
