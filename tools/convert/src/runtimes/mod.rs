// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Rows of runtimes and languages that .eh_frame does not describe, or describes wrongly: one file
//! for each, and here the only calls of them.

mod ghc;
mod go;
mod luajit;

use std::ops::Range;

use object::{
    read::elf::ElfFile64,
    Endianness, //
};

use crate::{
    code::CodeBytes,
    function::ConvertedFunction,
    report::Report,
    work::ConversionWork, //
};

/// Code without .eh_frame that a runtime has made in its own way.
pub(crate) struct RuntimeRows {
    /// The function that calls this code. It has an .eh_frame entry, which is wrong in a part of
    /// it.
    pub(crate) run: ConvertedFunction,
    /// The code. A function here may be many procedures.
    pub(crate) functions: Vec<ConvertedFunction>,
    /// The gaps without such code.
    pub(crate) unused: Vec<Range<u64>>,
}

/// The functions of a file that has a list of all of its functions, with the rows that this list
/// tells; none if there is no such list.
pub(crate) fn listed(
    file: &ElfFile64<'_, Endianness>,
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
) -> (Vec<ConvertedFunction>, Report) {
    go::functions(file, code, work)
}

/// Whether a file has a list of all of its functions, perhaps of a version that [`listed`] does not
/// read. No other code of such a file is analysed: what the list leaves out switches stacks.
pub(crate) fn has_list(file: &ElfFile64<'_, Endianness>) -> bool {
    go::has_table(file)
}

/// Corrects rows of .eh_frame that are wrong.
pub(crate) fn correct(functions: &mut Vec<ConvertedFunction>, code: &CodeBytes<'_>) {
    luajit::correct(functions, code);
}

/// The rows of a runtime's code in `gaps`, which are sorted ranges of link-time addresses without
/// unwind information; `None` if the file has no such runtime.
pub(crate) fn in_gaps(
    file: &ElfFile64<'_, Endianness>,
    gaps: &[Range<u64>],
    code: &CodeBytes<'_>,
    work: &mut ConversionWork,
) -> Option<RuntimeRows> {
    ghc::functions(file, gaps, code, work)
}
