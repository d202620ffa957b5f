// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The entries of .eh_frame, each with the code for which it counts.

use std::ops::Range;

use gimli::EhFrameOffset;

use crate::{
    eh_frame::FdeEntry,
    report::ConvertError, //
};

/// An entry. Addresses are link-time addresses.
pub(crate) struct EhFrameEntry<'a> {
    /// The entry as it is in the file.
    pub(crate) fde: FdeEntry<'a>,
    end: u64,
}

impl<'a> EhFrameEntry<'a> {
    pub(crate) fn new(fde: FdeEntry<'a>) -> EhFrameEntry<'a> {
        let end = fde.end_address();
        EhFrameEntry { fde, end }
    }

    pub(crate) fn start(&self) -> u64 {
        self.fde.initial_address()
    }

    /// The end of the entry's code; or the start of the next entry, if that is before it.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether the next entry begins in the code of this one.
    pub(crate) fn is_cut(&self) -> bool {
        self.end < self.fde.end_address()
    }

    /// The code for which the entry was written.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start()..self.fde.end_address()
    }

    /// The most steps of work that reading the entry takes: one for each byte. The instructions of
    /// the CIE are read again for each of its entries.
    pub(crate) fn steps(&self) -> u64 {
        let cie = self.fde.cie().entry_len();
        self.fde.entry_len().saturating_add(cie) as u64
    }

    /// The most steps of work that reading the entry and its code takes.
    pub(crate) fn steps_with_code(&self) -> u64 {
        (self.end - self.start()).saturating_add(self.steps())
    }
}

/// The offsets of the FDEs in .eh_frame. gimli's own iterator ends at the first CIE that it cannot
/// read.
///
/// # Errors
///
/// [`ConvertError::InvalidEhFrame`] if an entry is longer than the section, or has no place for a
/// pointer to its CIE.
pub(crate) fn fde_offsets(section: &[u8]) -> Result<Vec<EhFrameOffset>, ConvertError> {
    const ERROR: ConvertError =
        ConvertError::InvalidEhFrame(gimli::Error::UnexpectedEof(gimli::ReaderOffsetId(0)));
    let mut found = Vec::new();
    let mut at = 0;
    let mut rest = section;
    while !rest.is_empty() {
        let (len, entry) = rest.split_first_chunk().ok_or(ERROR)?;
        let (len, entry) = match u32::from_le_bytes(*len) {
            0 => break,
            u32::MAX => {
                let (len, entry) = entry.split_first_chunk().ok_or(ERROR)?;
                (u64::from_le_bytes(*len), entry)
            }
            len => (len.into(), entry),
        };
        let len = usize::try_from(len).map_err(|_| ERROR)?;
        let (entry, behind) = entry.split_at_checked(len).ok_or(ERROR)?;
        // A CIE has no pointer, but 0.
        if *entry.first_chunk().ok_or(ERROR)? != [0; 4] {
            found.push(EhFrameOffset(at));
        }
        rest = behind;
        at = section.len() - rest.len();
    }
    Ok(found)
}

/// Sorts entries, and ends each at the start of the next one. If entries overlap, the entry that
/// starts last covers the code; if they have the same start, the last entry in the section.
pub(crate) fn sort_and_trim(entries: &mut Vec<EhFrameEntry<'_>>) {
    entries.sort_by_key(EhFrameEntry::start);
    let mut next = u64::MAX;
    for entry in entries.iter_mut().rev() {
        entry.end = entry.end.min(next);
        next = entry.start();
    }
    entries.retain(|entry| entry.start() < entry.end);
}
