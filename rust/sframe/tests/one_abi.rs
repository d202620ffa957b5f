// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The core as the kernel module has it: a module that reads only sections of one ABI. For the test
//! vectors of that ABI, its answers equal those of the crate. It refuses the test vectors of other
//! ABIs.

#[allow(
    dead_code,
    unreachable_pub,
    unused,
    reason = "the vectors use a part of the core"
)]
#[path = "../src/mod.rs"]
mod sframe;

#[path = "support/requirement.rs"]
mod requirement;

const ONLY_ABI: Option<sframe::abi::Abi> = Some(sframe::abi::Abi::Amd64);

fn main() {
    let compared = sframe::test_vectors::check_all();
    assert!(
        compared.is_ok_and(|compared| compared > 1000),
        "{compared:?}"
    );
    println!("test result: ok. {} answers", compared.unwrap_or_default());
}
