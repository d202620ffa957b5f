// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step by a rule from a frame to its caller, and the walk.

pub mod step;
pub mod stop_reason;
pub mod walk;

pub use self::step::*;
