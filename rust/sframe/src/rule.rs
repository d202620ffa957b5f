// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rules: decoded rows.

/// A decoded row: how the caller's registers are found from a frame.
///
/// A rule holds no addresses. One rule can therefore serve many code addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The canonical frame address. The other locations may count from it. It has no meaning if
    /// [`Rule::is_outermost`] is true.
    pub cfa: Cfa,
    /// The location of the return address. [`Location::Undefined`] marks the outermost frame.
    pub ra: Location,
    /// The location of the caller's frame pointer.
    pub fp: Location,
    /// Whether the return address carries a pointer authentication code.
    pub mangled: bool,
    /// Whether the frame is a signal trampoline. Its return address is not after a call: it is the
    /// address of the instruction that the signal interrupted.
    pub signal: bool,
    /// The parts that SFrame does not define.
    pub extra: Extra,
}

/// The parts of a rule that SFrame cannot encode. All but `rbx` come from an extra row
/// ([`ExtraRow`](crate::sframe::table::ExtraRow)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// Where the caller's value of rbx is. From sections that `sframectl` makes.
    pub rbx: SavedRbx,
    /// Whether the word that [`Cfa::deref`] reads is the address of a second word. The CFA is the
    /// second word plus [`Cfa::plus`].
    pub deref_twice: bool,
    /// Whether the caller runs on another stack. The CFA may then be below the stack pointer.
    pub changes_stack: bool,
}

impl Extra {
    /// No extra parts: SFrame can encode the rule.
    pub const NONE: Extra = Extra {
        rbx: SavedRbx::UNKNOWN,
        deref_twice: false,
        changes_stack: false,
    };
}

/// Where a function keeps its caller's value of rbx: three bits.
///
/// 0: not known. 1: in rbx, at each instruction of the function. 2 to 7: the function saves rbx in
/// the slot that is eight times this number of bytes below the CFA. While the stack pointer is
/// above that slot, the value is in rbx, and in the slot otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedRbx(pub u8);

impl SavedRbx {
    /// Not known.
    pub const UNKNOWN: SavedRbx = SavedRbx(0);
    /// In rbx, at each instruction of the function.
    pub const KEPT: SavedRbx = SavedRbx(1);
    /// The number of bits.
    pub const BITS: u32 = 3;
}

impl Rule {
    /// The rule of a frame that has no caller.
    pub const OUTERMOST: Rule = Rule {
        cfa: Cfa {
            base: Base::Sp,
            offset: 0,
            deref: false,
            plus: 0,
        },
        ra: Location::Undefined,
        fp: Location::Undefined,
        mangled: false,
        signal: false,
        extra: Extra::NONE,
    };

    /// The rule of a frame on AMD64 whose CFA is `offset` bytes above `base`. The return address is
    /// in the eight bytes right below the CFA.
    #[inline]
    pub const fn amd64(base: Base, offset: i32, fp: Location) -> Rule {
        Rule {
            cfa: Cfa {
                base,
                offset,
                deref: false,
                plus: 0,
            },
            ra: Location::AtCfa(-8),
            fp,
            mangled: false,
            signal: false,
            extra: Extra::NONE,
        }
    }

    /// Whether the rule is that of a frame on AMD64 whose frame pointer leads to the caller's frame
    /// pointer and to the return address.
    #[inline]
    pub const fn follows_frame_pointer(&self) -> bool {
        matches!(
            self,
            Rule {
                cfa: Cfa {
                    base: Base::Fp,
                    offset: 16,
                    deref: false,
                    plus: 0
                },
                ra: Location::AtCfa(-8),
                fp: Location::AtCfa(-16),
                mangled: false,
                signal: false,
                extra: Extra {
                    changes_stack: false,
                    ..
                },
            }
        )
    }

    /// Whether a frame under this rule has no caller.
    #[inline]
    pub const fn is_outermost(&self) -> bool {
        matches!(self.ra, Location::Undefined)
    }
}

/// The canonical frame address (CFA): the value of a register plus an offset, or the word in memory
/// at that address, plus a constant.
///
/// The CFA is the value of the stack pointer in the caller after the return. On s390x the CFA is
/// 160 bytes above that value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfa {
    /// The base register.
    pub base: Base,
    /// The offset from the base register, in bytes.
    pub offset: i32,
    /// Whether the CFA is in memory, at the sum of base register and offset. If false, the sum
    /// itself is the CFA.
    pub deref: bool,
    /// The constant that is added to the word in memory, in bytes; 0 if `deref` is false. SFrame
    /// cannot encode it: other values than 0 come from an extra row
    /// ([`ExtraRow`](crate::sframe::table::ExtraRow)).
    pub plus: i8,
}

impl Cfa {
    /// Whether the two low bits of the word in memory may be a tag, and count as 0. A runtime may
    /// keep such a tag in its pointers to frames. An extra row has no flag of its own for it: each
    /// word with a constant counts as tagged. All other words have to be multiples of eight.
    #[inline]
    pub const fn is_tagged(&self) -> bool {
        self.plus != 0
    }
}

/// A base register: the CFA, or another address, counts from its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The stack pointer.
    Sp,
    /// The frame pointer.
    Fp,
    /// The register with this DWARF number. Its value is known only in the innermost frame and in a
    /// frame that a signal interrupted.
    Register(u8),
}

/// The location of the value that a register has in the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the register itself: the function has not changed it.
    Unchanged,
    /// Nowhere: the value is lost. For the return address: the frame has no caller.
    Undefined,
    /// In memory, at the CFA plus this offset in bytes.
    AtCfa(i32),
    /// The value is the CFA plus this offset in bytes.
    OfCfa(i32),
    /// In memory, at the value of a base register plus this offset in bytes.
    At(Base, i32),
    /// The value is the value of a base register plus this offset in bytes.
    Of(Base, i32),
}

impl Location {
    /// The location of a frame pointer that the code has overwritten, in sections that `sframectl`
    /// makes: the value of a register that is never known. SFrame has no form for a lost value. The
    /// control word of a row has space for this register number in one byte. The caller's frame
    /// pointer becomes [`LOST_FP`](crate::sframe::unwind::step::LOST_FP).
    pub const LOST: Location = Location::Of(Base::Register(31), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_is_known_by_its_return_address() {
        assert!(Rule::OUTERMOST.is_outermost());
        assert!(!Rule::amd64(Base::Sp, 8, Location::Unchanged).is_outermost());
    }

    #[test]
    fn the_rule_of_a_frame_pointer_is_known() {
        let mut rule = Rule::amd64(Base::Fp, 16, Location::AtCfa(-16));
        assert!(rule.follows_frame_pointer());
        rule.extra.rbx = SavedRbx::KEPT;
        assert!(rule.follows_frame_pointer());
        rule.extra.changes_stack = true;
        assert!(!rule.follows_frame_pointer());
        for (base, offset, fp) in [
            (Base::Sp, 16, Location::AtCfa(-16)),
            (Base::Fp, 24, Location::AtCfa(-16)),
            (Base::Fp, 16, Location::AtCfa(-24)),
            (Base::Fp, 16, Location::Unchanged),
        ] {
            assert!(!Rule::amd64(base, offset, fp).follows_frame_pointer());
        }
    }

    #[test]
    fn rules_are_small() {
        assert!(size_of::<Rule>() <= 32);
        assert!(size_of::<Option<Rule>>() <= 32);
    }
}
