// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step by a rule from a frame to its caller.

pub mod step;

pub use self::step::*;
