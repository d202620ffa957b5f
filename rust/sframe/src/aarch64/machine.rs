// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The ABI of the machine.

use crate::sframe::{
    format::abi::Abi,
    rule::{
        Base,
        Cfa,
        Extra,
        Location,
        Rule, //
    }, //
};

/// The ABI. The kernel module refuses sections of other ABIs.
pub const NATIVE: Abi = Abi::Aarch64;

/// The machine in the header of an ELF file: EM_AARCH64.
pub const ELF_MACHINE: u16 = 183;

/// Whether walks step through regions: `runtimes` decodes code of AMD64. So a walk stops there.
pub const HAS_REGIONS: bool = false;

/// Whether compact rules hold rules of [`usual_rule`]. The fast path reads a return address at a
/// constant distance from the CFA, where AArch64 seldom has it, and removes no pointer
/// authentication code. So each rule is found in its table.
pub const HAS_COMPACT_RULES: bool = false;

/// The distance from the return address on the stack to the CFA, in bytes, for compact rules. There
/// are none.
pub const RA_BELOW_CFA: u64 = 8;

/// The rule of most frames: the CFA is `offset` bytes above `base`, and the return address is right
/// above the saved frame pointer, or else in x30.
#[inline]
pub const fn usual_rule(base: Base, offset: i32, fp: Location) -> Rule {
    Rule {
        cfa: Cfa {
            base,
            offset,
            deref: false,
            plus: 0,
        },
        ra: match fp {
            Location::AtCfa(at) => Location::AtCfa(at.wrapping_add(8)),
            Location::At(base, at) => Location::At(base, at.wrapping_add(8)),
            _ => Location::Unchanged,
        },
        fp,
        mangled: true,
        signal: false,
        extra: Extra::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_return_address_is_above_the_frame_pointer() {
        let ra = |fp| usual_rule(Base::Sp, 32, fp).ra;
        assert_eq!(ra(Location::AtCfa(-32)), Location::AtCfa(-24));
        assert_eq!(ra(Location::At(Base::Fp, 0)), Location::At(Base::Fp, 8));
        assert_eq!(ra(Location::Unchanged), Location::Unchanged);
    }
}
