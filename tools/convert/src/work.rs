// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The work of a conversion, which the size of the file bounds.

/// The number of steps that the conversion of any file may take.
const MIN_STEPS: u64 = 1 << 20;
/// The number of further steps for each byte of the file. Compilers' files need less than one; code
/// that is followed by its instructions needs up to two for each byte of the code.
const STEPS_PER_BYTE: u64 = 8;

/// The largest number of steps that the conversion of a file of `len` bytes takes. What would need
/// more is dropped, as [`DropReason::WorkLimit`](crate::DropReason::WorkLimit).
///
/// A step reads a byte of an .eh_frame entry or of a function's code, or an instruction of code
/// without an entry.
pub const fn max_steps(len: u64) -> u64 {
    MIN_STEPS.saturating_add(STEPS_PER_BYTE.saturating_mul(len))
}

/// The rest of the work that a conversion may do, in steps.
pub(crate) struct ConversionWork {
    left: u64,
    taken: u64,
}

impl ConversionWork {
    /// The work for a file.
    pub(crate) fn new(file: &[u8]) -> ConversionWork {
        ConversionWork {
            left: max_steps(file.len() as u64),
            taken: 0,
        }
    }

    /// Takes steps, all or none. Returns whether they were left.
    #[must_use]
    pub(crate) fn take(&mut self, steps: u64) -> bool {
        let left = self.left.checked_sub(steps);
        if let Some(left) = left {
            self.left = left;
            self.taken += steps;
        }
        left.is_some()
    }

    /// The number of steps that were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }
}
