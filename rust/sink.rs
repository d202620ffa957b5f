// SPDX-License-Identifier: GPL-2.0-only

//! The sink of a walk: it stores the addresses of the stack and counts frames by their source.

use crate::{
    sframe::{
        stop_reason::StopReason,
        unwind::Frame,
        walk::{
            self,
            FrameSource, //
        }, //
    },
    stats::{
        self,
        Walked, //
    },
    sys::WalkContext, //
};

/// A buffer of addresses, filled from its start on.
pub(crate) struct ChainBuffer<'a> {
    buffer: &'a mut [u64],
    used: usize,
    by_frame_pointer: u32,
    /// The context of the walk that fills the buffer.
    context: WalkContext,
}

impl<'a> ChainBuffer<'a> {
    /// A sink with an unused buffer.
    #[inline(always)]
    pub(crate) fn new(buffer: &'a mut [u64], context: WalkContext) -> Self {
        Self {
            buffer,
            used: 0,
            by_frame_pointer: 0,
            context,
        }
    }

    /// Stores one run-time address; false if the buffer is full.
    #[inline(always)]
    pub(crate) fn push(&mut self, address: u64) -> bool {
        let Some(place) = self.buffer.get_mut(self.used) else {
            return false;
        };
        *place = address;
        self.used = self.used.wrapping_add(1);
        true
    }

    /// The unused part of the buffer.
    #[inline]
    pub(crate) fn left(&mut self) -> &mut [u64] {
        self.buffer.get_mut(self.used..).unwrap_or_default()
    }

    /// The last stored address.
    #[inline]
    pub(crate) fn last(&self) -> Option<u64> {
        self.buffer.get(self.used.checked_sub(1)?).copied()
    }

    /// Notes that the walk put `count` addresses into [`left`](Self::left), from its start on.
    /// `source` says how their frames were found.
    #[inline]
    pub(crate) fn stored(&mut self, count: usize, source: FrameSource) {
        self.used = self.used.wrapping_add(count);
        if source == FrameSource::FramePointer {
            self.by_frame_pointer = self.by_frame_pointer.wrapping_add(count as u32);
        }
    }

    /// Takes back the last address, of a frame that was not found by [`FrameSource::FramePointer`].
    #[inline]
    pub(crate) fn take_back(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// Counts the frames that were found by [`FrameSource::FramePointer`], and describes the end of
    /// the walk.
    #[inline(always)]
    pub(crate) fn ended(&self, reason: StopReason) -> Walked {
        stats::by_frame_pointer(self.by_frame_pointer);
        Walked {
            stored: self.used,
            // The innermost frame counts without space for its address.
            frames: (self.used as u32).max(1),
            context: self.context,
            reason,
        }
    }
}

impl walk::Sink for ChainBuffer<'_> {
    type Origin = ();

    #[inline(always)]
    fn store(&mut self, frame: &Frame, _lookup_address: u64, source: FrameSource) -> bool {
        let stored = self.push(frame.pc);
        if stored && source == FrameSource::FramePointer {
            self.by_frame_pointer = self.by_frame_pointer.wrapping_add(1);
        }
        stored
    }
}
