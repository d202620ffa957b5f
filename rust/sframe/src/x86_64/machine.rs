// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The ABI of the machine.

use crate::sframe::{
    format::abi::Abi,
    rule::{
        Base,
        Location,
        Rule, //
    }, //
};

/// The ABI. The kernel module refuses sections of other ABIs.
pub const NATIVE: Abi = Abi::Amd64;

/// The machine in the header of an ELF file: EM_X86_64.
pub const ELF_MACHINE: u16 = 62;

/// Whether walks step through regions: `runtimes` decodes code of AMD64.
pub const HAS_REGIONS: bool = true;

/// Whether compact rules hold rules of [`usual_rule`].
pub const HAS_COMPACT_RULES: bool = true;

/// The distance from the return address on the stack to the CFA under a [`usual_rule`], in bytes.
pub const RA_BELOW_CFA: u64 = 8;

/// The rule of nearly all frames, which a compact rule can hold: the CFA is `offset` bytes above
/// `base`, and the return address is right below the CFA.
#[inline]
pub const fn usual_rule(base: Base, offset: i32, fp: Location) -> Rule {
    Rule::amd64(base, offset, fp)
}
