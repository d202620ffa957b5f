// SPDX-License-Identifier: GPL-2.0-only

//! Where the frames of a walk go.

use crate::sys::{
    DeferredCall,
    ImmediateCall, //
};

/// Takes the addresses of a stack, from the innermost outwards.
pub(crate) trait Sink {
    /// Takes one run-time address; false if there was no room for it.
    fn store(&mut self, address: u64) -> bool;

    /// Where the next addresses go, as far as there is room.
    fn room(&mut self) -> &mut [u64];

    /// So many have been put there, from its start on.
    fn stored(&mut self, count: usize);
}

impl Sink for ImmediateCall<'_> {
    fn store(&mut self, address: u64) -> bool {
        ImmediateCall::store(self, address)
    }

    fn room(&mut self) -> &mut [u64] {
        ImmediateCall::room(self)
    }

    fn stored(&mut self, count: usize) {
        ImmediateCall::stored(self, count)
    }
}

impl Sink for DeferredCall<'_> {
    fn store(&mut self, address: u64) -> bool {
        DeferredCall::store(self, address)
    }

    fn room(&mut self) -> &mut [u64] {
        DeferredCall::room(self)
    }

    fn stored(&mut self, count: usize) {
        DeferredCall::stored(self, count)
    }
}
