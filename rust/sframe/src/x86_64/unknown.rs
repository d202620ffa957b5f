// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The step from code without rows that keeps a frame pointer, at a place whose function is not
//! known.

pub use crate::sframe::runtimes::unknown::{
    run_fast,
    step, //
};
