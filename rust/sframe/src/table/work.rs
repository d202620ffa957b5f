// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The work of a table build. The length of the input bounds the work, and the caller may end it at
//! any time.

use crate::sframe::table::error::TableError;

/// The number of steps that a build may take for any input. A section of 100 bytes may describe a
/// PLT of 30,000 stubs with 16 rows for each stub.
const MIN_STEPS: u64 = 1 << 20;
/// The number of further steps for each byte of the section and of the extra rows. The longest
/// sections of compilers need fewer than three steps for each byte: a row has at least two bytes,
/// and a function has twenty bytes.
const STEPS_PER_BYTE: u64 = 8;
/// The largest number of steps of a build. A section of 64 MiB has up to 2^24 rows.
const MAX_STEPS: u64 = 1 << 26;
/// The number of steps between two calls of the caller's function.
const STRIDE: u32 = 4096;

/// The number of steps to the next of these calls, after a read of the code.
const SOON: u32 = 16;

/// The rest of the work that a table build may do, in steps. One step handles a function, a row, a
/// page of code, a comparison of a sort, or a probe of the hash table of rules. A step takes some
/// hundred instructions at most.
pub struct Work<A> {
    /// The steps until the next call of `ask`, and the steps after that call.
    until_ask: u32,
    behind: u64,
    ask: A,
}

/// The caller's function, which decides whether the build continues.
pub trait Ask: FnMut() -> Result<(), TableError> {}

impl<F: FnMut() -> Result<(), TableError>> Ask for F {}

impl<A: Ask> Work<A> {
    /// The work for an input of `len` bytes: the section and the extra rows. The build calls `ask`
    /// every 4,096 steps, and ends with the error of `ask`. `ask` may sleep if the build runs in a
    /// context that may sleep.
    pub fn new(len: usize, ask: A) -> Self {
        let steps = STEPS_PER_BYTE.saturating_mul(len as u64);
        let steps = MIN_STEPS.saturating_add(steps).min(MAX_STEPS);
        Self {
            until_ask: STRIDE,
            behind: steps.saturating_sub(STRIDE.into()),
            ask,
        }
    }

    /// Takes one step. After an error, the next step asks the caller's function again.
    ///
    /// # Errors
    ///
    /// [`TableError::TooLong`] if no step is left, and the errors of the caller's function.
    #[inline]
    pub fn step(&mut self) -> Result<(), TableError> {
        match self.until_ask.checked_sub(1) {
            Some(until_ask) => {
                self.until_ask = until_ask;
                Ok(())
            }
            None => self.ask(),
        }
    }

    /// Calls the caller's function, and takes one step. Not inlined, because [`step`](Self::step)
    /// is inlined in many places.
    #[cold]
    #[inline(never)]
    fn ask(&mut self) -> Result<(), TableError> {
        (self.ask)()?;
        let stride = self.behind.min(STRIDE.into());
        self.behind = self.behind.wrapping_sub(stride);
        self.until_ask = (stride as u32).checked_sub(1).ok_or(TableError::TooLong)?;
        Ok(())
    }

    /// Moves the next call of the caller's function to within 16 steps, because a read of code may
    /// have taken long, or may have shown that the build cannot end now. Takes no step.
    pub fn ask_soon(&mut self) {
        let later = self.until_ask.saturating_sub(SOON);
        self.until_ask = self.until_ask.wrapping_sub(later);
        self.behind = self.behind.saturating_add(later.into());
    }

    /// The number of steps that are left.
    pub fn left(&self) -> u64 {
        self.behind.saturating_add(self.until_ask.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of calls of the caller's function in the steps that an input without bytes may
    /// take, if each `period`-th step waits for a disk.
    fn calls(period: u64) -> (u64, u64) {
        let mut calls = 0;
        let mut work = Work::new(0, || {
            calls += 1;
            Ok(())
        });
        let mut steps = 0;
        while work.step().is_ok() {
            steps += 1;
            if steps % period == 0 {
                work.ask_soon();
            }
        }
        (steps, calls)
    }

    #[test]
    fn a_read_of_code_asks_soon_and_takes_no_steps() {
        let stride = u64::from(STRIDE);
        assert_eq!(calls(u64::MAX), (MIN_STEPS, MIN_STEPS / stride));
        let (steps, often) = calls(10_000);
        assert_eq!(steps, MIN_STEPS);
        assert!(often > MIN_STEPS / 10_000 && often < MIN_STEPS / stride + MIN_STEPS / 10_000 + 2);
        let (steps, often) = calls(16);
        assert_eq!(steps, MIN_STEPS);
        assert!(often >= MIN_STEPS / 34);
    }
}
