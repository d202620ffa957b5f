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
}

impl Rule {
    /// The rule of a frame that has no caller.
    pub const OUTERMOST: Rule = Rule {
        cfa: Cfa {
            base: Base::Sp,
            offset: 0,
        },
        ra: Location::Undefined,
        fp: Location::Undefined,
    };

    /// Whether a frame under this rule has no caller.
    #[inline]
    pub const fn is_outermost(&self) -> bool {
        matches!(self.ra, Location::Undefined)
    }
}

/// The canonical frame address (CFA): the value of a register plus an offset.
///
/// On AMD64 it is the stack pointer's value in the caller, once the call has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfa {
    /// The register.
    pub base: Base,
    /// What to add to it, in bytes.
    pub offset: i32,
}

/// The register that a CFA is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The stack pointer.
    Sp,
    /// The frame pointer.
    Fp,
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_is_known_by_its_return_address() {
        assert!(Rule::OUTERMOST.is_outermost());
        let inner = Rule {
            ra: Location::AtCfa(-8),
            ..Rule::OUTERMOST
        };
        assert!(!inner.is_outermost());
    }

    #[test]
    fn rules_are_small() {
        assert!(size_of::<Rule>() <= 24);
        assert!(size_of::<Option<Rule>>() <= 24);
    }
}
