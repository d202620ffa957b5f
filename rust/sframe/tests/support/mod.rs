// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Code that the integration tests share.
#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod build;
pub(crate) mod encode;
pub(crate) mod fuzzed;
pub(crate) mod requirement;
pub(crate) mod source;
