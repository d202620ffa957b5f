// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Which oracles there are, and in what they are known to disagree. Each kind is described in
//! Documentation/oracles.rst, with the bytes and the instructions.

use std::fmt::{
    self,
    Display,
    Formatter, //
};

use sframe::{
    rule::Rule,
    section::Section, //
};

use crate::{
    compare::Ours,
    image::Image, //
};

/// The oracles that are programs. Each leaves a file of this suffix.
pub(crate) const ORACLES: &[&str] = &[
    "readelf-2.40",
    "objdump-2.40",
    "readelf-2.44",
    "objdump-2.44",
    "readelf-2.47",
    "objdump-2.47",
    "libsframe-2.47",
    "llvm-22",
];

/// Whether an oracle knows where the functions of an object file start.
pub(crate) fn relocates(oracle: &str) -> bool {
    matches!(oracle, "readelf-2.47" | "llvm-22")
}

/// A disagreement that is of no known kind.
pub(crate) const UNKNOWN: &str = "unknown";

/// One disagreement.
pub(crate) struct Case<'a> {
    pub(crate) writer: &'a str,
    pub(crate) oracle: &'a str,
    pub(crate) image: &'a Image,
    pub(crate) section: &'a Section,
    pub(crate) ours: &'a Ours,
    pub(crate) address: u64,
    /// Whether it is about a row, and not about an address.
    pub(crate) row: bool,
    pub(crate) we_say: Option<Rule>,
    pub(crate) it_says: Option<Rule>,
}

impl Display for Case<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let part = self.image.code_at(self.address);
        let name = part.map_or("", |part| &part.name);
        write!(
            f,
            "{} {:#x} in {name}, {} bytes into a function of {}: we say {:?}, it says {:?}; code {:02x?}",
            if self.row { "row" } else { "address" },
            self.address,
            self.address - self.ours.function.start(),
            self.ours.function.size(),
            self.we_say,
            self.it_says,
            self.image.bytes_at(self.address, 16),
        )
    }
}

/// The kind of a disagreement.
pub(crate) fn kind(_case: &Case<'_>) -> &'static str {
    UNKNOWN
}
