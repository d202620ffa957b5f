// SPDX-License-Identifier: GPL-2.0-only

//! Compares the instructions that functions of the core take with the units that they charge: see
//! "Units" in Documentation/testing.rst.
//!
//! usage: units FILE
//!        units run
//!
//! The second form calls the functions, and prints a line for each call. The first form runs the
//! second one under callgrind, which writes the counts of each call into FILE.

// The module's files name the kernel's crate and the core by these names.
extern crate self as kernel;
#[allow(unused_extern_crates, reason = "the crate's root has the name, too")]
extern crate sframe;

#[expect(dead_code, reason = "the core's tests use all of it")]
#[path = "../../../rust/sframe/tests/support/encode.rs"]
mod encode;
#[expect(dead_code, reason = "the core's tests use all of it")]
#[path = "../../../rust/sframe/tests/support/fuzzed.rs"]
mod fuzzed;
#[allow(dead_code, reason = "the core's tests use all of it")]
#[path = "../../../rust/sframe/tests/support/source.rs"]
mod source;

#[allow(dead_code, unreachable_pub, reason = "the core's tests use all of it")]
#[path = "../../../rust/sframe/src/test_vectors.rs"]
mod test_vectors;

#[cfg(test)]
#[path = "../../../rust/sframe/tests/support/requirement.rs"]
mod requirement;

/// The test vectors are of all ABIs.
const ONLY_ABI: Option<sframe::abi::Abi> = None;

mod inputs;
mod memory;
mod profile;
mod sys;
mod task;
#[expect(dead_code, reason = "the module uses all of it")]
#[path = "../../../rust/user_memory.rs"]
mod user_memory;

/// What the module's files import besides.
mod arch {
    pub(crate) mod asm {
        pub(crate) use crate::{
            get_user::get_user,
            memory::CountedAccess as UserAccess, //
        };

        pub(crate) const fn code_mask() -> u64 {
            u64::MAX
        }
    }
}

#[path = "../../../rust/x86_64/asm/get_user.rs"]
mod get_user;

mod ffi {
    pub(crate) use std::ffi::c_uint;
}

mod page {
    pub(crate) const PAGE_SIZE: usize = 4096;
}

mod stats {
    pub(crate) const fn fault_queued() {}
    pub(crate) const fn fault_taken() {}
}

use std::{
    env,
    process::ExitCode, //
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run"] => inputs::run(),
        [file] => return profile::judge(file),
        _ => {
            eprintln!("usage: units FILE, or units run");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
