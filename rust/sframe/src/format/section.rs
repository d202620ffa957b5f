// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! A section, and the search for the rule that is valid at a program counter.

use crate::sframe::{
    format::{
        abi::Abi,
        bytes::{
            read_at,
            Source, //
        },
        error::{
            Error,
            Malformed,
            Unsupported, //
        },
        fde::{
            self,
            Function, //
        },
        fre::{
            self,
            RowIter, //
        },
        header::{
            Header,
            Starts,
            HEADER_SIZE, //
        },
        version::Version, //
    },
    rule::Rule, //
};

/// The most rows of a function that [`Search::Bounded`] reads.
pub const MAX_ROWS_BOUNDED: u32 = 1024;

/// The approximate number of functions that [`Section::settle_starts`] reads.
const PROBES: u32 = 8;

/// The most functions of size zero that [`Search::Bounded`] steps over.
pub const MAX_EMPTY_BOUNDED: u32 = 8;

/// The work of stepping over a function of size zero, without the reads, in instructions.
const EMPTY: u32 = 100;

/// The bound on the time of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// For interrupts and NMIs: functions are searched only by bisection, and at most
    /// [`MAX_ROWS_BOUNDED`] rows are read. A search that would take longer ends with
    /// [`Error::TooLong`].
    Bounded,
    /// The time grows with the length of the section. In a section that is not sorted, the search
    /// reads every function. To end a long search, a caller's source returns a
    /// [`Fault`](crate::sframe::format::bytes::Fault).
    Thorough,
}

/// One section whose header was read and checked.
///
/// A `Section` holds only the header, so it is small. Each call reads all other parts from `bytes`,
/// which have to be the bytes that the section was opened over.
///
/// A linker without SFrame support concatenates the complete sections of its inputs into one
/// section. Each of the input sections is a `Section` of its own: see [`Section::next`].
#[derive(Clone, Copy, Debug)]
pub struct Section {
    address: u64,
    len: u32,
    header: Header,
}

impl Section {
    /// Reads and checks the header of a section.
    ///
    /// `address` is the section's address in the address space of the PCs that are searched for:
    /// the run-time address in the kernel, the link-time address on the host. `len` is the number
    /// of available bytes. Like the size in the program header, `len` may include a tail that is
    /// not part of the section.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for an unknown version, ABI or flag; [`Error::Malformed`] if the
    /// parts of the section contradict each other; [`Error::Fault`].
    pub fn open<S: Source + ?Sized>(bytes: &S, address: u64, len: u64) -> Result<Section, Error> {
        // No tool is known to make a section that does not fit into 32 bits; such a section is
        // probably garbage.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if len < HEADER_SIZE {
            return Err(Malformed::HeaderShort.at(0));
        }
        Section::at(bytes, address, 0, len)
    }

    /// As [`Section::open`], for code of `abi`.
    ///
    /// # Errors
    ///
    /// The errors of [`Section::open`]; [`Error::Unsupported`] if the section is for another ABI.
    #[inline(always)]
    pub fn open_for<S: Source + ?Sized>(
        bytes: &S,
        address: u64,
        len: u64,
        abi: Abi,
    ) -> Result<Section, Error> {
        match Section::open(bytes, address, len) {
            Ok(section) if section.abi() != abi => Err(Error::Unsupported {
                what: Unsupported::Abi(section.abi().number()),
            }),
            opened => opened,
        }
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

    /// Opens the section that a linker without SFrame support has put after this section; `None` if
    /// this section is the last one. The offsets and addresses of the new section also count from
    /// the start of the first section. Such a linker has relocated each start address relative to
    /// its field, whatever the flags claim.
    ///
    /// The number of concatenated sections is at most the length divided by [`HEADER_SIZE`],
    /// because each section has a header.
    ///
    /// # Errors
    ///
    /// The errors of [`Section::open`].
    pub fn next<S: Source + ?Sized>(&self, bytes: &S) -> Result<Option<Section>, Error> {
        let at = self.next_offset();
        match at.checked_add(HEADER_SIZE) {
            Some(end) if end <= self.len => {}
            _ => return Ok(None),
        }
        // A tail of zeros is not a section.
        if read_at(bytes, u64::from(at))? == [0u8; 2] {
            return Ok(None);
        }
        let section = Section::at(bytes, self.address, at, self.len)?;
        Ok(Some(section.with_starts(Starts::Field)))
    }

    /// Moves the section to an address that is greater by `bias` bytes, modulo 2^64. Example: moves
    /// a section that was opened at its link-time address to its run-time address.
    #[must_use]
    pub const fn moved_by(mut self, bias: u64) -> Section {
        self.address = self.address.wrapping_add(bias);
        self
    }

    /// Finds the rule that is valid at `pc`, an address in the address space that the section was
    /// opened in. `None`: no function covers `pc`, or the function has no row for it.
    ///
    /// For a return address, `pc` has to be the return address minus one, because the call may be
    /// the last instruction of its function.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`], [`Error::Unsupported`] and [`Error::Fault`]: the search reads only
    /// some parts of the section, and reports only errors in those parts. [`Error::TooLong`] only
    /// with [`Search::Bounded`].
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
    /// The errors of [`Section::find`].
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

    // Not inlined, like the functions below, so that the next function can use the stack space of
    // this function again.
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
            // Functions of size zero cover no address. They may lie before, after and within
            // the function that covers `pc`.
            if function.size() != 0 {
                break;
            }
            empty = empty.saturating_add(1);
            if empty > MAX_EMPTY_BOUNDED && search == Search::Bounded {
                return Err(Error::TooLong);
            }
            // If nothing is left, the next read fails.
            let _ = bytes.spend(EMPTY);
            behind = index;
        }
        Ok(None)
    }

    /// Finds the rule that is valid at `pc` in `function`: the second half of [`Section::find`].
    ///
    /// # Errors
    ///
    /// The errors of [`Section::find`].
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

    /// The rule for all addresses of a function without rows ("A function without rows" of version
    /// 3): the frame is outermost. `None` for functions with rows, and in versions 1 and 2. Also
    /// `None` for flexible functions and signal trampolines: if these have no rows, SFrame could
    /// not encode their rows.
    #[inline]
    pub(in crate::sframe) fn rule_without_rows(&self, function: &Function) -> Option<Rule> {
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

        // Each iteration at least halves the distance between `low` and `high`.
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
        // Where functions overlap, the search chooses the function with the highest start address,
        // as bisection does. Linkers leave overlapping entries of discarded code.
        let mut found: Option<Function> = None;
        for index in 0..self.header.num_fdes {
            let function = self.function(bytes, index)?;
            if function.covers(pc) && found.is_none_or(|other| other.start() < function.start()) {
                found = Some(function);
            }
        }
        Ok(found)
    }

    /// Reads function descriptor entry `index`, counted from zero. The function may cover no code.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the entry is malformed or `index` is too large;
    /// [`Error::Unsupported`] for an unknown type of function; [`Error::Fault`].
    pub fn function<S: Source + ?Sized>(&self, bytes: &S, index: u32) -> Result<Function, Error> {
        if index >= self.header.num_fdes {
            return Err(Malformed::Functions.at(self.header.fdes_at));
        }
        fde::read(&self.header, self.address, bytes, index)
    }

    /// Iterates over all functions, in the section's order.
    pub fn functions<'a, S: Source + ?Sized>(
        &self,
        bytes: &'a S,
    ) -> impl Iterator<Item = Result<Function, Error>> + use<'a, S> {
        let section = *self;
        (0..section.header.num_fdes).map(move |index| section.function(bytes, index))
    }

    /// Iterates over the rows of `function`, which has to be a function of this section.
    pub fn rows<'a, S: Source + ?Sized>(
        &self,
        bytes: &'a S,
        function: &Function,
    ) -> RowIter<'a, S> {
        RowIter::new(&self.header, bytes, function)
    }

    /// Whether rows of both sections with equal [words](RowIter::words) have equal rules.
    pub(in crate::sframe) fn decodes_like(&self, other: &Section) -> bool {
        let parts = |of: &Section| {
            let Header {
                version,
                fixed_ra,
                fixed_fp,
                ..
            } = of.header;
            // The ABI decides the byte order.
            (version, of.abi(), fixed_ra, fixed_fp)
        };
        parts(self) == parts(other)
    }

    /// Checks the whole section: every function and every row decodes, the functions are in the
    /// order that the header claims, and the number of rows is the number in the header. The time
    /// grows with the length of the section.
    ///
    /// Overlapping functions, and rows after a function's end, are no errors: linkers make both,
    /// and both are harmless.
    ///
    /// # Errors
    ///
    /// The first error: [`Error::Malformed`], [`Error::Unsupported`] or [`Error::Fault`].
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

    /// Decides the origin of start addresses if the flags give [`Starts::Section`], which may be
    /// wrong. If another section follows, start addresses count from their fields. Otherwise some
    /// functions decide: with the right origin, more of these functions start in code. If both
    /// origins are equally good, the flags decide. `is_code` decides whether an address lies in
    /// code, in the address space that the section was opened in.
    ///
    /// The flags may be wrong because binutils up to 2.44 set
    /// [`SORTED`](crate::sframe::format::version::SORTED) in object files made by `ld -r`, where
    /// the flag is not true. A linker without SFrame support copies that flag into a program.
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
        if matches!(self.next(bytes), Ok(Some(_))) {
            *self = self.with_starts(Starts::Field);
            return Ok(());
        }
        let mut by_flags = 0u32;
        let mut by_other = 0u32;
        // Reads the first function and some later functions, at equal distances.
        let last = self.header.num_fdes.saturating_sub(1);
        let step = (last / PROBES).max(1);
        let mut index = 0u32;
        while index < self.header.num_fdes {
            let at = fde::entry_at(&self.header, index);
            let value = fde::read_value(&self.header, bytes, at)?;
            let lies_in_code = |starts: Starts| -> u32 {
                let start = fde::start_from(&self.header, starts, at, value);
                is_code(self.address.wrapping_add_signed(start)).into()
            };
            by_flags = by_flags.wrapping_add(lies_in_code(Starts::Section));
            by_other = by_other.wrapping_add(lies_in_code(Starts::Field));
            // The first function usually decides: it starts in code only with the flags' origin.
            if by_flags != by_other && index == 0 && by_flags != 0 {
                return Ok(());
            }
            index = match index.checked_add(step) {
                Some(next) => next,
                None => break,
            };
        }
        if by_other > by_flags {
            *self = self.with_starts(Starts::Field);
        }
        Ok(())
    }

    /// This section, with start addresses that count from `starts`. If `starts` differs from the
    /// present origin, the section no longer counts as sorted either.
    ///
    /// Some linkers leave sections with wrong flags: an object file made by `ld -r` of binutils up
    /// to 2.44 claims that its functions are sorted, and a linker without SFrame support copies the
    /// claim into a program. With the right origin, all functions start in code.
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

    /// The length that the section was opened with, in bytes, including all bytes after the
    /// section.
    #[inline]
    pub const fn opened_len(&self) -> u32 {
        self.len
    }

    /// The offset of the section's header, in bytes from the start of the first section. It is 0
    /// except in sections found by [`Section::next`].
    #[inline]
    pub const fn offset(&self) -> u32 {
        self.header.at
    }

    /// The end of the section, in bytes from the start of the first section. A tail is not part of
    /// the section.
    #[inline]
    pub const fn end(&self) -> u32 {
        self.header.end
    }

    /// The offset at which the header of a following section would be, in bytes from the start of
    /// the first section. The offset is a multiple of eight; up to seven zeros precede the header.
    #[inline]
    pub const fn next_offset(&self) -> u32 {
        match self.header.end.checked_next_multiple_of(8) {
            Some(at) => at,
            None => u32::MAX,
        }
    }

    /// The offset of function descriptor entry `index`, in bytes from the start of the first
    /// section.
    #[inline]
    pub fn entry_offset(&self, index: u32) -> u32 {
        fde::entry_at(&self.header, index)
    }

    /// The offset of the rows of all functions, in bytes from the start of the first section. The
    /// rows end at [`Section::end`].
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
        self.header.abi()
    }

    /// The flags, as in the header.
    #[inline]
    pub const fn flags(&self) -> u8 {
        self.header.flags
    }

    /// Whether the functions are sorted by address, which bisection needs.
    #[inline]
    pub const fn is_sorted(&self) -> bool {
        self.header.sorted
    }

    /// Whether all functions keep a frame pointer, including functions without rows.
    #[inline]
    pub const fn frame_pointer(&self) -> bool {
        self.header.has_frame_pointer()
    }

    /// The origin of start addresses.
    #[inline]
    pub const fn starts(&self) -> Starts {
        self.header.starts
    }

    /// The number of functions.
    #[inline]
    pub const fn num_fdes(&self) -> u32 {
        self.header.num_fdes
    }

    /// The number of rows of all functions together, according to the header.
    #[inline]
    pub const fn num_fres(&self) -> u32 {
        self.header.num_fres
    }

    /// The offset from the CFA at which every frame saves the return address, in bytes; 0 if rows
    /// give the offset.
    #[inline]
    pub const fn fixed_ra_offset(&self) -> i8 {
        self.header.fixed_ra
    }

    /// The offset from the CFA at which every frame saves the frame pointer, in bytes; 0 if rows
    /// give the offset.
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
    fn the_length_bounds_a_section() {
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
