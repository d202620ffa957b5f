// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What a row says, once decoded: how to get from a frame to its caller.

/// How to get from a frame to its caller.
///
/// It holds no addresses, so the same rule serves at many places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The canonical frame address, from which the rest is found. Without meaning in a rule that
    /// [`Rule::is_outermost`].
    pub cfa: Cfa,
    /// Where the return address is. [`Location::Undefined`] marks the outermost frame.
    pub ra: Location,
    /// Where the caller's frame pointer is.
    pub fp: Location,
    /// Whether the return address carries a code of pointer authentication.
    pub mangled: bool,
    /// Whether a signal's trampoline runs here. What it returns to is not behind a call: it is the
    /// very instruction that the signal interrupted.
    pub signal: bool,
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
    };

    /// The rule of a frame whose CFA is `offset` bytes above `base`, with the return address right
    /// below the CFA, as AMD64 has it.
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
        }
    }

    /// Whether a frame under this rule has no caller.
    #[inline]
    pub const fn is_outermost(&self) -> bool {
        matches!(self.ra, Location::Undefined)
    }
}

/// The canonical frame address (CFA): the value of a register plus an offset, or what is in memory
/// there, plus something.
///
/// It is the stack pointer's value in the caller, once the call has returned; on s390x 160 bytes
/// above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfa {
    /// The register.
    pub base: Base,
    /// What to add to it, in bytes.
    pub offset: i32,
    /// Whether the CFA is not that sum, but in memory at that address.
    pub deref: bool,
    /// What is to be added to what is in memory there, in bytes; 0 if `deref` is not. SFrame cannot
    /// say it: it is of a row beside a section ([`ExtraRow`](super::super::table::ExtraRow)).
    pub plus: i8,
}

/// A register that others are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The stack pointer.
    Sp,
    /// The frame pointer.
    Fp,
    /// Another one, of this DWARF number. It is only known in the innermost frame.
    Register(u8),
}

/// Where a register's value in the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In that same register: the function has not changed it.
    Unchanged,
    /// Nowhere.
    Undefined,
    /// In memory, this many bytes from the CFA.
    AtCfa(i32),
    /// It is the CFA itself, plus this many bytes.
    OfCfa(i32),
    /// In memory, this many bytes from where a register points to.
    At(Base, i32),
    /// It is the value of a register, plus this many bytes.
    Of(Base, i32),
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
    fn rules_are_small() {
        assert!(size_of::<Rule>() <= 28);
        assert!(size_of::<Option<Rule>>() <= 28);
    }
}
