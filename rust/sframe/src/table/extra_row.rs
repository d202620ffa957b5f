// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Extra rows: rows that SFrame cannot encode. They are added with a section.

use crate::sframe::{
    arch::{
        machine::usual_rule,
        registers::{
            COUNT,
            FP,
            SP, //
        }, //
    },
    rule::{
        Base,
        Extra,
        Location,
        Rule,
        SavedRbx, //
    },
    table::error::TableError, //
};

/// A row that SFrame cannot encode. Its CFA is a value in memory plus a constant, or a register
/// plus a constant, and may be on another stack. The return address is where a [`usual_rule`] has
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraRow {
    /// The link-time address of the first byte of code that the row covers.
    pub start: u64,
    /// The size of the covered code, in bytes.
    pub size: u32,
    /// The rule of the covered code.
    pub rule: Rule,
}

/// The size of an encoded extra row, in bytes.
pub const EXTRA_ROW_SIZE: usize = 24;

/// The flags of a row: see [`Rule::signal`], [`Extra::changes_stack`], [`Extra::deref_twice`]; and
/// the opposite of [`Cfa::deref`](crate::sframe::rule::Cfa::deref).
const SIGNAL: u8 = 1;
const CHANGES_STACK: u8 = 2;
const DEREF_TWICE: u8 = 4;
const NO_DEREF: u8 = 8;

impl ExtraRow {
    /// Decodes a row. All fields are little-endian. `start` has 8 bytes, and `size` has 4 bytes.
    /// Two offsets in bytes follow, with 4 bytes each: the offset from a register to the address of
    /// the CFA's value, and the offset to the saved frame pointer. Four fields of one byte follow:
    /// the DWARF number of the register; the constant to add to the CFA's value, in bytes; the
    /// origin of the offset to the saved frame pointer (0: none, the frame pointer is unchanged; 1:
    /// the CFA; 2: the register); and the flags.
    ///
    /// # Errors
    ///
    /// [`TableError::ExtraRow`] if the register does not exist, or if a field has an invalid value.
    pub fn read(bytes: &[u8; EXTRA_ROW_SIZE]) -> Result<ExtraRow, TableError> {
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, rest @ ..] = *bytes;
        let [c0, c1, c2, c3, f0, f1, f2, f3, register, plus, saved, flags] = rest;
        let base = match register {
            FP => Base::Fp,
            SP => Base::Sp,
            0..COUNT => Base::Register(register),
            _ => return Err(TableError::ExtraRow),
        };
        let fp = match (saved, i32::from_le_bytes([f0, f1, f2, f3])) {
            (0, 0) => Location::Unchanged,
            (1, offset) => Location::AtCfa(offset),
            (2, offset) => Location::At(base, offset),
            _ => return Err(TableError::ExtraRow),
        };
        let in_memory = plus | (flags & DEREF_TWICE);
        if flags & !(SIGNAL | CHANGES_STACK | DEREF_TWICE | NO_DEREF) != 0
            || flags & NO_DEREF != 0 && in_memory != 0
        {
            return Err(TableError::ExtraRow);
        }
        let mut rule = usual_rule(base, i32::from_le_bytes([c0, c1, c2, c3]), fp);
        rule.cfa.deref = flags & NO_DEREF == 0;
        rule.cfa.plus = i8::from_le_bytes([plus]);
        rule.signal = flags & SIGNAL != 0;
        rule.extra = Extra {
            rbx: SavedRbx::UNKNOWN,
            deref_twice: flags & DEREF_TWICE != 0,
            changes_stack: flags & CHANGES_STACK != 0,
        };
        Ok(ExtraRow {
            start: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            size: u32::from_le_bytes([n0, n1, n2, n3]),
            rule,
        })
    }

    /// Encodes the row for [`ExtraRow::read`]; `None` if an extra row cannot hold the rule.
    pub fn write(&self) -> Option<[u8; EXTRA_ROW_SIZE]> {
        let cfa = self.rule.cfa;
        let (saved, fp_offset) = match self.rule.fp {
            Location::Unchanged => (0, 0),
            Location::AtCfa(offset) => (1, offset),
            Location::At(base, offset) if base == cfa.base => (2, offset),
            _ => return None,
        };
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.rule.signal, SIGNAL)
            | flag(self.rule.extra.changes_stack, CHANGES_STACK)
            | flag(self.rule.extra.deref_twice, DEREF_TWICE)
            | flag(!cfa.deref, NO_DEREF);
        let register = match cfa.base {
            Base::Fp => FP,
            Base::Sp => SP,
            Base::Register(number) => number,
        };
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.start.to_le_bytes();
        let [n0, n1, n2, n3] = self.size.to_le_bytes();
        let [c0, c1, c2, c3] = cfa.offset.to_le_bytes();
        let [f0, f1, f2, f3] = fp_offset.to_le_bytes();
        let [plus] = cfa.plus.to_le_bytes();
        let bytes = [
            s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, c0, c1, c2, c3, f0, f1, f2, f3,
            register, plus, saved, flags,
        ];
        (ExtraRow::read(&bytes) == Ok(*self)).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra_row(base: Base, plus: i8, fp: Location) -> ExtraRow {
        let mut rule = Rule::amd64(base, -64, fp);
        rule.cfa.deref = true;
        rule.cfa.plus = plus;
        ExtraRow {
            start: 0x1234_5678_9abc,
            size: 0x10_0001,
            rule,
        }
    }

    #[test]
    fn extra_rows_are_read_as_written() {
        for base in [Base::Sp, Base::Fp, Base::Register(0), Base::Register(15)] {
            for plus in [0, 8, 127, -128] {
                for fp in [
                    Location::Unchanged,
                    Location::AtCfa(0),
                    Location::AtCfa(-16),
                    Location::At(base, 160),
                ] {
                    for flags in 0..8 {
                        let mut row = extra_row(base, plus, fp);
                        row.rule.signal = flags & 1 != 0;
                        row.rule.extra.changes_stack = flags & 2 != 0;
                        row.rule.extra.deref_twice = flags & 4 != 0;
                        let bytes = row.write().unwrap();
                        assert_eq!(bytes[23], flags);
                        assert_eq!(ExtraRow::read(&bytes), Ok(row));
                    }
                }
            }
        }
        // The layout of `struct sframe_unwind_extra_row` in rust/uapi/sframe_unwind.h.
        let bytes = extra_row(Base::Sp, 8, Location::AtCfa(-16))
            .write()
            .unwrap();
        let mut expected = 0x1234_5678_9abc_u64.to_le_bytes().to_vec();
        expected.extend(0x10_0001_u32.to_le_bytes());
        expected.extend((-64_i32).to_le_bytes());
        expected.extend((-16_i32).to_le_bytes());
        expected.extend([7, 8, 1, 0]);
        assert_eq!(bytes.to_vec(), expected);
    }

    #[test]
    fn the_cfa_may_be_a_register_plus_a_constant() {
        let mut row = extra_row(Base::Fp, 0, Location::AtCfa(-24));
        row.rule.cfa.deref = false;
        row.rule.extra.changes_stack = true;
        let bytes = row.write().unwrap();
        assert_eq!(bytes[23], 10);
        assert_eq!(ExtraRow::read(&bytes), Ok(row));
        // Such a CFA has neither a second word nor a constant for a word.
        for (at, value) in [(21, 8), (23, 14)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(ExtraRow::read(&bytes), Err(TableError::ExtraRow), "{at}");
        }
    }

    #[test]
    fn invalid_rows_are_refused() {
        let good = extra_row(Base::Sp, 8, Location::Unchanged).write().unwrap();
        for (at, value) in [
            (20, 16),
            (20, 255),
            (22, 3),
            (23, 8),
            (23, 16),
            (23, 128),
            (16, 1),
        ] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(ExtraRow::read(&bytes), Err(TableError::ExtraRow), "{at}");
        }
        let no_rows = [
            extra_row(Base::Sp, 8, Location::Undefined),
            extra_row(Base::Sp, 8, Location::At(Base::Fp, 8)),
            extra_row(Base::Register(6), 8, Location::Unchanged),
            extra_row(Base::Register(16), 8, Location::Unchanged),
            ExtraRow {
                rule: Rule::OUTERMOST,
                ..extra_row(Base::Sp, 8, Location::Unchanged)
            },
        ];
        for row in no_rows {
            assert_eq!(row.write(), None, "{row:?}");
        }
    }
}
