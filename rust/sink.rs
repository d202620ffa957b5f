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
    stats::Tally, //
};

/// A buffer of addresses, filled from its start on, and the tally of the walk that fills it.
pub(crate) struct ChainBuffer<'a> {
    buffer: &'a mut [u64],
    used: usize,
    tally: Tally,
}

impl<'a> ChainBuffer<'a> {
    /// A sink with an unused buffer.
    #[inline(always)]
    pub(crate) fn new(buffer: &'a mut [u64], tally: Tally) -> Self {
        Self {
            buffer,
            used: 0,
            tally,
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

    /// Notes that the walk put `count` addresses into [`left`](Self::left), from its start on. `source` says
    /// how their frames were found.
    #[inline]
    pub(crate) fn stored(&mut self, count: usize, source: FrameSource) {
        self.used = self.used.wrapping_add(count);
        self.tally.frames(source, count as u32);
    }

    /// Ends the sink: counts the walk and its stop reason, and returns the number of stored addresses. Any
    /// context.
    #[inline(always)]
    pub(crate) fn end(self, reason: StopReason) -> usize {
        self.tally.end(reason);
        self.used
    }
}

impl walk::Sink for ChainBuffer<'_> {
    type Origin = ();

    #[inline(always)]
    fn store(&mut self, frame: &Frame, _lookup_address: u64, source: FrameSource) -> bool {
        let stored = self.push(frame.pc);
        if stored {
            self.tally.frames(source, 1);
        }
        stored
    }
}
