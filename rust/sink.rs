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
}

impl Sink for ImmediateCall<'_> {
    fn store(&mut self, address: u64) -> bool {
        ImmediateCall::store(self, address)
    }
}

impl Sink for DeferredCall<'_> {
    fn store(&mut self, address: u64) -> bool {
        DeferredCall::store(self, address)
    }
}
