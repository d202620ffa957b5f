// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Sources that count and check their reads, and sources that fail or change.

use std::cell::Cell;

use sframe::bytes::{
    Fault,
    Source,
    MAX_READ, //
};

/// Bytes that count their reads. A read beyond their end fails the test.
pub(crate) struct Watched<'a> {
    bytes: &'a [u8],
    /// Whether a read beyond the end is a fault instead of a failure of the test.
    lenient: bool,
    reads: Cell<u64>,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Watched<'a> {
        Watched {
            bytes,
            lenient: false,
            reads: Cell::new(0),
        }
    }

    /// Like [`Watched::new`], but a read beyond the end is a fault: a file whose length is not
    /// known.
    pub(crate) fn lenient(bytes: &'a [u8]) -> Watched<'a> {
        Watched {
            lenient: true,
            ..Watched::new(bytes)
        }
    }

    /// The number of reads since the last call.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.take()
    }
}

impl Source for Watched<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        self.reads.set(self.reads.get() + 1);
        assert!(N <= MAX_READ, "{N} bytes at once");
        let read = self.bytes.read(offset);
        assert!(
            self.lenient || read.is_ok(),
            "{N} bytes at {offset:#x} of {:#x}",
            self.bytes.len()
        );
        read
    }
}

/// Bytes with a range that cannot be read: each read that touches the range is a fault.
pub(crate) struct Missing<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) range: std::ops::Range<u64>,
}

impl Source for Missing<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        if offset < self.range.end && offset + N as u64 > self.range.start {
            return Err(Fault);
        }
        self.bytes.read(offset)
    }
}

/// Bytes with bits that change from read to read. Some reads fail.
pub(crate) struct Changing<'a> {
    pub(crate) bytes: Watched<'a>,
    /// The state of the random number generator. Not 0.
    pub(crate) state: Cell<u64>,
    /// About this many of 256 bytes have a changed bit, and a sixteenth as many of 256 reads fail.
    pub(crate) unrest: u8,
}

impl Changing<'_> {
    /// Marsaglia's xorshift.
    fn random(&self) -> u64 {
        let mut x = self.state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.state.set(x);
        x
    }
}

impl Source for Changing<'_> {
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
        let mut bytes = self.bytes.read(offset)?;
        if self.random() as u8 <= self.unrest / 16 {
            return Err(Fault);
        }
        for byte in &mut bytes {
            let random = self.random();
            if random as u8 <= self.unrest {
                *byte ^= 1 << ((random >> 8) & 7);
            }
        }
        Ok(bytes)
    }
}
