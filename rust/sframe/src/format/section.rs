// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! A section, and the search for the rule that holds at a program counter.

use super::{
    super::unwind::rule::Rule,
    abi::Abi,
    bytes::{
        read_at,
        Source, //
    },
    error::{
        Error,
        Malformed, //
    },
    fde::{
        self,
        Function, //
    },
    fre::{
        self,
        Rows, //
    },
    header::{
        Header,
        Starts,
        HEADER_SIZE, //
    },
    version::Version, //
};

/// How many rows of a function [`Search::Bounded`] looks at.
pub const MAX_ROWS_BOUNDED: u32 = 1024;

/// About how many functions [`Section::settle_starts`] looks at.
const PROBES: u32 = 8;

/// How many functions of size zero [`Search::Bounded`] steps over.
pub const MAX_EMPTY_BOUNDED: u32 = 8;

/// How long a search may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// For interrupts and NMIs: functions by bisection only, and no more rows than
    /// [`MAX_ROWS_BOUNDED`]. What would take longer is [`Error::TooLong`].
    Bounded,
    /// As long as the section is. A section that is not sorted takes a read for each function. Who
    /// has no time for that either has to end it by a [`Fault`](super::bytes::Fault).
    Thorough,
}

/// One section whose header was read and checked.
///
/// It holds nothing of the section but the header, and goes back to the bytes for all else. So it
/// is small, and has to be given the same bytes each time.
///
/// A linker that does not know SFrame makes one section of several complete ones, one behind the
/// other. Each is a `Section` of its own: see [`Section::next`].
#[derive(Clone, Copy, Debug)]
pub struct Section {
    address: u64,
    len: u32,
    header: Header,
}

impl Section {
    /// Reads and checks the header of a section.
    ///
    /// `address` is the section's address in the address space in which PCs will be asked:
    /// the run-time address in the kernel, the link-time address on the host. `len` is the number
    /// of bytes that there are; it may include a tail that is not part of the section, as the
    /// program header's size does.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a version, an ABI or a flag that is not known,
    /// [`Error::Malformed`] if the parts of the section do not fit into each other,
    /// [`Error::Fault`].
    pub fn open<S: Source + ?Sized>(bytes: &S, address: u64, len: u64) -> Result<Section, Error> {
        // A section that does not fit into 32 bits is either nonsense or none that anyone has made.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if len < HEADER_SIZE {
            return Err(Malformed::HeaderShort.at(0));
        }
        Section::at(bytes, address, 0, len)
    }

    fn at<S: Source + ?Sized>(
        bytes: &S,
        address: u64,
        at: u32,
        len: u32,
    ) -> Result<Section, Error> {
        let header = Header::decode(&read_at(bytes, u64::from(at))?, at, len)?;
        Ok(Section {
            address,
            len,
            header,
        })
    }

    /// The section that a linker which does not know SFrame has put behind this one, if there is
    /// one. Its offsets and addresses, too, are counted from where the first one begins.
    ///
    /// There are no more of them than a 28th of the length, for each has a header.
    ///
    /// # Errors
    ///
    /// As [`Section::open`].
    pub fn next<S: Source + ?Sized>(&self, bytes: &S) -> Result<Option<Section>, Error> {
        let at = self.next_offset();
        match at.checked_add(HEADER_SIZE) {
            Some(end) if end <= self.len => {}
            _ => return Ok(None),
        }
        // A tail of zeros is no section.
        if read_at(bytes, u64::from(at))? == [0u8; 2] {
            return Ok(None);
        }
        Section::at(bytes, self.address, at, self.len).map(Some)
    }

    /// The section in an address space in which its address is greater by `bias`, in bytes, modulo 2^64: at
    /// its run-time address, say, if it was opened at its link-time address.
    #[must_use]
    pub const fn moved_by(mut self, bias: u64) -> Section {
        self.address = self.address.wrapping_add(bias);
        self
    }

    /// Finds the rule that holds at `pc`, an address in the address space that the section was
    /// opened in. `None`: no function covers it, or the function has no row for it.
    ///
    /// A return address is to be asked for as the address before it, for the call may be the
    /// function's last instruction.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] and [`Error::Fault`] on what the search came across, which is not all
    /// of the section; [`Error::TooLong`] only with [`Search::Bounded`].
    pub fn find<S: Source + ?Sized>(
        &self,
        bytes: &S,
        pc: u64,
        search: Search,
    ) -> Result<Option<Rule>, Error> {
        match self.find_function(bytes, pc, search)? {
            Some(function) => self.find_rule(bytes, &function, pc, search),
            None => Ok(None),
        }
    }

    /// Finds the function that covers `pc`: the first half of [`Section::find`].
    ///
    /// # Errors
    ///
    /// As [`Section::find`].
    #[inline]
    pub fn find_function<S: Source + ?Sized>(
        &self,
        bytes: &S,
        pc: u64,
        search: Search,
    ) -> Result<Option<Function>, Error> {
        match search {
            _ if self.header.sorted => self.find_sorted(bytes, pc, search),
            Search::Bounded => Err(Error::TooLong),
            Search::Thorough => self.find_linear(bytes, pc),
        }
    }

    // Not inlined, as what follows: what one needs of the stack is free again for the next.
    #[inline(never)]
    fn find_sorted<S: Source + ?Sized>(
        &self,
        bytes: &S,
        pc: u64,
        search: Search,
    ) -> Result<Option<Function>, Error> {
        let mut behind = self.bisect(bytes, pc)?;
        let mut empty = 0u32;
        while let Some(index) = behind.checked_sub(1) {
            let function = self.function(bytes, index)?;
            if function.covers(pc) {
                return Ok(Some(function));
            }
            // Functions of size zero cover nothing, and may lie in front of, behind and within the
            // one that is looked for.
            if function.size() != 0 {
                break;
            }
            empty = empty.saturating_add(1);
            if empty > MAX_EMPTY_BOUNDED && search == Search::Bounded {
                return Err(Error::TooLong);
            }
            behind = index;
        }
        Ok(None)
    }

    /// Finds the rule that holds at `pc` in `function`: the second half of [`Section::find`].
    ///
    /// # Errors
    ///
    /// As [`Section::find`].
    pub fn find_rule<S: Source + ?Sized>(
        &self,
        bytes: &S,
        function: &Function,
        pc: u64,
        search: Search,
    ) -> Result<Option<Rule>, Error> {
        let limit = match search {
            Search::Bounded => MAX_ROWS_BOUNDED,
            Search::Thorough => u32::MAX,
        };
        let Some(offset) = function.row_offset(pc) else {
            return Ok(None);
        };
        match self.rule_without_rows(function) {
            Some(rule) => Ok(Some(rule)),
            None => fre::find(&self.header, bytes, function, offset, limit),
        }
    }

    /// What holds in all of a function that has no rows: "A function without rows" of version 3,
    /// unless it is a trampoline whose rows could not be said.
    #[inline]
    pub(in super::super) fn rule_without_rows(&self, function: &Function) -> Option<Rule> {
        (function.num_rows() == 0
            && self.header.version == Version::V3
            && !function.is_flexible()
            && !function.is_signal())
        .then_some(Rule::OUTERMOST)
    }

    /// Counts the functions that start at or before `pc`.
    #[inline(never)]
    fn bisect<S: Source + ?Sized>(&self, bytes: &S, pc: u64) -> Result<u32, Error> {
        let wanted = pc.wrapping_sub(self.address) as i64;
        let (mut low, mut high) = (0, self.header.num_fdes);
        let (mut least, mut most) = (i64::MIN, i64::MAX);

        // In each turn the distance of low and high becomes less than half.
        while low < high {
            let middle = low.midpoint(high);
            let start = fde::read_start(&self.header, bytes, middle)?;
            if start < least || start > most {
                return Err(Malformed::Unsorted.at(fde::entry_at(&self.header, middle)));
            }
            if start <= wanted {
                low = middle.wrapping_add(1);
                least = start;
            } else {
                high = middle;
                most = start;
            }
        }
        Ok(low)
    }

    #[inline(never)]
    fn find_linear<S: Source + ?Sized>(
        &self,
        bytes: &S,
        pc: u64,
    ) -> Result<Option<Function>, Error> {
        // Where functions overlap, the one that starts last, as bisection has it. Discarded code
        // leaves such ones behind.
        let mut found: Option<Function> = None;
        for index in 0..self.header.num_fdes {
            let function = self.function(bytes, index)?;
            if function.covers(pc) && found.is_none_or(|other| other.start() < function.start()) {
                found = Some(function);
            }
        }
        Ok(found)
    }

    /// Reads entry `index`, counted from zero, whatever it covers.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the entry is, or if there are not so many; [`Error::Fault`].
    pub fn function<S: Source + ?Sized>(&self, bytes: &S, index: u32) -> Result<Function, Error> {
        if index >= self.header.num_fdes {
            return Err(Malformed::Functions.at(self.header.fdes_at));
        }
        fde::read(&self.header, self.address, bytes, index)
    }

    /// Goes through all functions, in the section's order.
    pub fn functions<'a, S: Source + ?Sized>(
        &self,
        bytes: &'a S,
    ) -> impl Iterator<Item = Result<Function, Error>> + use<'a, S> {
        let section = *self;
        (0..section.header.num_fdes).map(move |index| section.function(bytes, index))
    }

    /// Goes through the rows of `function`, which is to be one of this section.
    pub fn rows<'a, S: Source + ?Sized>(&self, bytes: &'a S, function: &Function) -> Rows<'a, S> {
        Rows::new(&self.header, bytes, function)
    }

    /// Checks all of the section: every function and every row decodes, the order is what the
    /// header says, and so is the number of rows. It takes as long as the section is.
    ///
    /// Neither overlapping functions nor rows behind a function's end are held against it: linkers
    /// make both, and both are harmless.
    ///
    /// # Errors
    ///
    /// What is found first, as [`Error::Malformed`]; or [`Error::Fault`].
    pub fn verify<S: Source + ?Sized>(&self, bytes: &S) -> Result<(), Error> {
        let mut before = i64::MIN;
        let mut rows = 0u32;
        for index in 0..self.header.num_fdes {
            let start = fde::read_start(&self.header, bytes, index)?;
            if self.header.sorted && start < before {
                return Err(Malformed::Unsorted.at(fde::entry_at(&self.header, index)));
            }
            before = start;
            let function = self.function(bytes, index)?;
            for row in self.rows(bytes, &function) {
                row?;
            }
            rows = rows
                .checked_add(function.num_rows())
                .ok_or(Malformed::RowTotal.at(self.header.at.saturating_add(12)))?;
        }
        if rows != self.header.num_fres {
            return Err(Malformed::RowTotal.at(self.header.at.saturating_add(12)));
        }
        Ok(())
    }

    /// Decides what start addresses are counted from where the flags leave it open, by whether
    /// functions then start where `is_code` says that code is.
    ///
    /// Binutils up to 2.44 claim for an object file that they made by `ld -r` what is only true of
    /// a program. A linker that does not know SFrame leaves that claim as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`].
    pub fn settle_starts<S: Source + ?Sized>(
        &mut self,
        bytes: &S,
        is_code: impl Fn(u64) -> bool,
    ) -> Result<(), Error> {
        if self.header.starts == Starts::Field {
            return Ok(());
        }
        let other = self.with_starts(Starts::Field);
        let mut by_flags = 0u32;
        let mut by_other = 0u32;
        // The first, the last, and some between.
        let last = self.header.num_fdes.saturating_sub(1);
        let step = (last / PROBES).max(1);
        let mut index = 0u32;
        while index < self.header.num_fdes {
            let lies_in_code = |section: &Section| -> Result<bool, Error> {
                let start = fde::read_start(&section.header, bytes, index)?;
                Ok(is_code(self.address.wrapping_add_signed(start)))
            };
            by_flags = by_flags.wrapping_add(lies_in_code(self)?.into());
            by_other = by_other.wrapping_add(lies_in_code(&other)?.into());
            // Mostly the first one tells.
            if by_flags != by_other && index == 0 && by_flags != 0 {
                return Ok(());
            }
            index = match index.checked_add(step) {
                Some(next) => next,
                None => break,
            };
        }
        if by_other > by_flags {
            *self = other;
        }
        Ok(())
    }

    /// The same section, but with start addresses counted from `starts`. If its flags say
    /// otherwise, they are not believed to be sorted either.
    ///
    /// Some linkers leave sections whose flags are wrong: an object file that binutils up to 2.44
    /// made by `ld -r` claims to be sorted, and keeps that claim when a linker that does not know
    /// SFrame copies it into a program. All starts lying in code tells which reading is right.
    #[must_use]
    pub fn with_starts(mut self, starts: Starts) -> Section {
        if starts != self.header.starts {
            self.header.starts = starts;
            self.header.sorted = false;
        }
        self
    }

    /// The address that the section was opened at.
    #[inline]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The length that the section was opened with, in bytes; with everything behind it.
    #[inline]
    pub const fn opened_len(&self) -> u32 {
        self.len
    }

    /// Where its header is, in bytes from where the first section begins: 0 but for what
    /// [`Section::next`] has found.
    #[inline]
    pub const fn offset(&self) -> u32 {
        self.header.at
    }

    /// Where it ends, in bytes from where the first section begins. A tail is not part of it.
    #[inline]
    pub const fn end(&self) -> u32 {
        self.header.end
    }

    /// Where the header of a section behind it would be, in bytes from where the first section
    /// begins: up to seven zeros align it.
    #[inline]
    pub const fn next_offset(&self) -> u32 {
        match self.header.end.checked_next_multiple_of(8) {
            Some(at) => at,
            None => u32::MAX,
        }
    }

    /// Where function descriptor entry `index` is, in bytes from where the first section begins.
    #[inline]
    pub fn entry_offset(&self, index: u32) -> u32 {
        fde::entry_at(&self.header, index)
    }

    /// Where the rows of all functions begin, in bytes from where the first section begins. They
    /// end at [`Section::end`].
    #[inline]
    pub const fn rows_offset(&self) -> u32 {
        self.header.fres_at
    }

    /// The version of the format.
    #[inline]
    pub const fn version(&self) -> Version {
        self.header.version
    }

    /// The ABI.
    #[inline]
    pub const fn abi(&self) -> Abi {
        self.header.abi
    }

    /// The flags, as in the header.
    #[inline]
    pub const fn flags(&self) -> u8 {
        self.header.flags
    }

    /// Whether functions are sorted by address, so that they can be searched by bisection.
    #[inline]
    pub const fn is_sorted(&self) -> bool {
        self.header.sorted
    }

    /// Whether all functions keep a frame pointer, those without rows included.
    #[inline]
    pub const fn frame_pointer(&self) -> bool {
        self.header.has_frame_pointer()
    }

    /// What start addresses are counted from.
    #[inline]
    pub const fn starts(&self) -> Starts {
        self.header.starts
    }

    /// The number of functions.
    #[inline]
    pub const fn num_fdes(&self) -> u32 {
        self.header.num_fdes
    }

    /// The number of rows of all functions together, as in the header.
    #[inline]
    pub const fn num_fres(&self) -> u32 {
        self.header.num_fres
    }

    /// Where the return address is saved in each frame, in bytes from the CFA; 0 if rows tell it.
    #[inline]
    pub const fn fixed_ra_offset(&self) -> i8 {
        self.header.fixed_ra
    }

    /// Where the frame pointer is saved in each frame, in bytes from the CFA; 0 if rows tell it.
    #[inline]
    pub const fn fixed_fp_offset(&self) -> i8 {
        self.header.fixed_fp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = &[
        0xe2, 0xde, 2, 3, 3, 0, 0xf8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn sections_are_small() {
        assert!(size_of::<Section>() <= 48);
    }

    #[test]
    fn a_header_alone_is_a_section() {
        let section = Section::open(EMPTY, 0x1000, 28).unwrap();
        assert_eq!(section.address(), 0x1000);
        assert_eq!(section.end(), 28);
        assert_eq!(section.next_offset(), 32);
        assert_eq!((section.entry_offset(0), section.rows_offset()), (28, 28));
        assert_eq!(section.version(), Version::V2);
        assert_eq!(section.abi(), Abi::Amd64);
        assert_eq!(section.flags(), 3);
        assert!(section.is_sorted());
        assert!(section.frame_pointer());
        assert_eq!(section.starts(), Starts::Section);
        assert_eq!(section.num_fdes(), 0);
        assert_eq!(section.num_fres(), 0);
        assert_eq!(section.fixed_ra_offset(), -8);
        assert_eq!(section.fixed_fp_offset(), 0);
        assert_eq!(section.verify(EMPTY), Ok(()));
        assert_eq!(section.find(EMPTY, 0x1000, Search::Bounded), Ok(None));
        assert_eq!(section.functions(EMPTY).count(), 0);
        assert_eq!(section.function(EMPTY, 0), Err(Malformed::Functions.at(28)));
    }

    #[test]
    fn the_length_counts_not_what_can_be_read() {
        assert_eq!(
            Section::open(EMPTY, 0, 27).unwrap_err(),
            Malformed::HeaderShort.at(0)
        );
        assert_eq!(
            Section::open(&EMPTY[..27], 0, 28).unwrap_err(),
            Error::Fault { offset: 0 }
        );
    }
}
