// SPDX-License-Identifier: GPL-2.0-only

//! Where the addresses of a stack go.

/// Room for addresses, which is filled from its start on.
pub(crate) struct Sink<'a> {
    room: &'a mut [u64],
    used: usize,
}

impl<'a> Sink<'a> {
    /// All of it is free.
    pub(crate) fn new(room: &'a mut [u64]) -> Self {
        Self { room, used: 0 }
    }

    /// Takes one run-time address; false if there was no room for it.
    #[inline]
    pub(crate) fn store(&mut self, address: u64) -> bool {
        let Some(place) = self.room.get_mut(self.used) else {
            return false;
        };
        *place = address;
        self.stored(1);
        true
    }

    /// What is free.
    #[inline]
    pub(crate) fn left(&mut self) -> &mut [u64] {
        self.room.get_mut(self.used..).unwrap_or_default()
    }

    /// So many addresses have been put into that, from its start on.
    #[inline]
    pub(crate) fn stored(&mut self, count: usize) {
        self.used = self.used.wrapping_add(count);
    }

    /// How many addresses there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.used
    }
}
