// SPDX-License-Identifier: GPL-2.0-only

//! The walk of the current task, for all contexts: what the core's [`walk`](crate::sframe::walk) needs of
//! the kernel.

use crate::{
    mapping::{
        self,
        MappedTable,
        Mapping, //
    },
    sframe::{
        abi::Abi,
        bytes::Fault,
        code,
        fast_path::{
            self,
            Walked,
            Words, //
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
    sink::Sink,
    stats::Tally,
    sys::{
        self,
        Context,
        Registers, //
    },
    tables::{
        self,
        CodeCache,
        NATIVE, //
    },
    uprobes,
    user_memory::{
        Part,
        UserMemory, //
    }, //
};

/// What a walk begins with.
pub(crate) struct Begin<'a> {
    /// The innermost frame.
    pub(crate) frame: Frame,
    /// All registers there.
    pub(crate) registers: Registers<'a>,
    /// Whether there may be uprobes in the task's code.
    pub(crate) is_probed: bool,
    /// Where the walk runs.
    pub(crate) context: Context,
    /// Where the addresses of the stack go.
    pub(crate) buffer: &'a mut [u64],
}

/// Walks the current task's user stack, puts the run-time addresses into the buffer of `begin`, from its
/// start on, and returns how many they are. Any context that fits `memory`.
#[inline(always)]
pub(crate) fn walk(begin: Begin<'_>, memory: &UserMemory) -> usize {
    let Begin {
        mut frame,
        registers,
        is_probed,
        context,
        buffer,
    } = begin;
    let mut sink = Sink::new(buffer, Tally::new(context));
    let mut is_certain = true;
    if is_probed {
        is_certain = !uprobes::is_changing(&frame, &registers, memory);
        frame.pc = sys::uprobe_orig_pc(frame.pc);
        is_certain = is_certain && uprobes::leave(&mut frame, memory);
    }
    let reason = if !sink.push(frame.pc) {
        StopReason::Full
    } else if is_certain {
        let task = Current {
            memory,
            registers,
            is_probed,
        };
        walk::walk(&task, frame, &mut sink)
    } else {
        StopReason::Uprobe
    };
    sink.end(reason)
}

/// The current task.
struct Current<'a> {
    memory: &'a UserMemory,
    registers: Registers<'a>,
    is_probed: bool,
}

impl<'a> Task for Current<'a> {
    const ABI: Abi = NATIVE;
    const KNOWS_SYSTEM_CALL: bool = true;

    type Memory = UserMemory;
    type Registers = Registers<'a>;
    type Section = Section;
    type SectionBytes<'b>
        = Part<'b>
    where
        Self: 'b;
    type Table = MappedTable;
    type Sink = Sink<'a>;

    #[inline(always)]
    fn memory(&self) -> &UserMemory {
        self.memory
    }

    #[inline(always)]
    fn registers(&self) -> &Registers<'a> {
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
    fn find_mapping(&self, mapping: &mut Mapping, address: u64) -> Result<(), StopReason> {
        mapping::find(mapping, address, self.memory)
    }

    #[inline(always)]
    fn end_of_stack(&self, sp: u64) -> u64 {
        mapping::end_of(sp)
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
    fn look_up(&self, table: &MappedTable, lookup_address: u64) -> TableAnswer<()> {
        tables::rule_at(table.number, lookup_address.wrapping_add(table.to_offset))
    }

    #[inline(always)]
    fn walk_fast(
        &self,
        frame: &mut Frame,
        is_innermost: bool,
        sink: &mut Sink<'a>,
    ) -> Result<bool, StopReason> {
        walk_fast(frame, is_innermost, self.memory, sink)
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

/// Walks on by compact rules of the ranges in this CPU's code cache, as far as they go.
#[inline(never)]
fn walk_fast(
    frame: &mut Frame,
    is_innermost: bool,
    memory: &UserMemory,
    sink: &mut Sink<'_>,
) -> Result<bool, StopReason> {
    let Some(words) = memory.words() else {
        return Ok(false);
    };
    // Where the code tells more than rows do, the walk has to look at the code.
    if is_innermost && !is_ordinary(frame.pc, &words) {
        return Ok(false);
    }
    let Some(mut cache) = CodeCache::enter() else {
        return Ok(false);
    };
    let mut walked = Walked::to(*frame);
    let found = fast_path::walk(
        &mut walked,
        is_innermost,
        &mut cache.ranges(),
        &words,
        sink.left(),
    );
    drop(cache);
    sink.stored(found, FrameSource::Rows);
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

/// Whether the code at a PC and right in front of it can be no part of a signal's trampoline, and is
/// not behind a system call that starts a thread.
#[inline(always)]
fn is_ordinary(pc: u64, words: &impl Words) -> bool {
    let before = words.word(pc.wrapping_sub(code::CLONE_BEHIND));
    let at = words.word(pc);
    before != 0 && at != 0 && code::is_ordinary(before, at)
}
