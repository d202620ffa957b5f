// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Fuzz target: walks by hostile code, and by a hostile description of a region.

#![no_main]

#[path = "../../tests/support/fuzzed.rs"]
#[expect(dead_code, reason = "each target takes one of them")]
mod fuzzed;
#[path = "../../tests/support/source.rs"]
#[allow(dead_code, reason = "tests take the rest")]
mod source;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::code_walk(data));
