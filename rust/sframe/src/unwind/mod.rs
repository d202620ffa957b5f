// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rules, one step by a rule, and the walk.

pub mod rule;
pub mod step;
pub mod stop_reason;
pub mod walk;

pub use self::step::*;
