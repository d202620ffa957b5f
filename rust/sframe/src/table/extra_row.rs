// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Extra rows: rows that SFrame cannot encode, given with a section.

use super::{
    super::{
        unwind::rule::{
            Base,
            Location,
            Rule, //
        },
        x86_64::registers::{
            COUNT,
            RBP,
            RSP, //
        }, //
    },
    error::TableError, //
};

/// A row that SFrame cannot say, beside a section: its CFA is what is in memory, plus something. The
/// return address is right below the CFA, as AMD64 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraRow {
    /// The address of the first byte of code that it holds for.
    pub start: u64,
    /// For how much code it holds, in bytes.
    pub size: u32,
    /// What holds there.
    pub rule: Rule,
}

/// The size of such a row as it is written, in bytes.
pub const EXTRA_ROW_SIZE: usize = 24;

impl ExtraRow {
    /// Reads one. All is little-endian: `start` in 8 bytes, `size` in 4, then in 4 each what is to
    /// be added to a register for where the CFA is, and to the CFA for where the frame pointer is;
    /// in a byte each the register's DWARF number, what is to be added to what is in memory there,
    /// 1 if the frame pointer is saved and 0 if it is unchanged; and a zero.
    ///
    /// # Errors
    ///
    /// [`TableError::ExtraRow`]: there is no such register, or a field has none of its values.
    pub fn read(bytes: &[u8; EXTRA_ROW_SIZE]) -> Result<ExtraRow, TableError> {
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, rest @ ..] = *bytes;
        let [c0, c1, c2, c3, f0, f1, f2, f3, register, plus, is_saved, zero] = rest;
        let fp = match (is_saved, i32::from_le_bytes([f0, f1, f2, f3]), zero) {
            (0, 0, 0) => Location::Unchanged,
            (1, offset, 0) => Location::AtCfa(offset),
            _ => return Err(TableError::ExtraRow),
        };
        let base = match register {
            RBP => Base::Fp,
            RSP => Base::Sp,
            0..COUNT => Base::Register(register),
            _ => return Err(TableError::ExtraRow),
        };
        let mut rule = Rule::amd64(base, i32::from_le_bytes([c0, c1, c2, c3]), fp);
        rule.cfa.deref = true;
        rule.cfa.plus = i8::from_le_bytes([plus]);
        Ok(ExtraRow {
            start: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            size: u32::from_le_bytes([n0, n1, n2, n3]),
            rule,
        })
    }

    /// Writes it as [`ExtraRow::read`] reads it; `None` if it is no such row.
    pub fn write(&self) -> Option<[u8; EXTRA_ROW_SIZE]> {
        let cfa = self.rule.cfa;
        let (is_saved, fp_offset) = match self.rule.fp {
            Location::Unchanged => (0, 0),
            Location::AtCfa(offset) => (1, offset),
            _ => return None,
        };
        let register = match cfa.base {
            Base::Fp => RBP,
            Base::Sp => RSP,
            Base::Register(number) => number,
        };
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.start.to_le_bytes();
        let [n0, n1, n2, n3] = self.size.to_le_bytes();
        let [c0, c1, c2, c3] = cfa.offset.to_le_bytes();
        let [f0, f1, f2, f3] = fp_offset.to_le_bytes();
        let [plus] = cfa.plus.to_le_bytes();
        let bytes = [
            s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, c0, c1, c2, c3, f0, f1, f2, f3,
            register, plus, is_saved, 0,
        ];
        (ExtraRow::read(&bytes) == Ok(*self)).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra_rows(base: Base, plus: i8, fp: Location) -> ExtraRow {
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
    fn rows_beside_a_section_are_read_as_they_were_written() {
        for base in [Base::Sp, Base::Fp, Base::Register(0), Base::Register(15)] {
            for plus in [0, 8, 127, -128] {
                for fp in [
                    Location::Unchanged,
                    Location::AtCfa(0),
                    Location::AtCfa(-16),
                ] {
                    let row = extra_rows(base, plus, fp);
                    let bytes = row.write().unwrap();
                    assert_eq!(ExtraRow::read(&bytes), Ok(row));
                }
            }
        }
        // As Documentation/device.rst has it.
        let bytes = extra_rows(Base::Sp, 8, Location::AtCfa(-16))
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
    fn what_is_no_row_is_refused() {
        let good = extra_rows(Base::Sp, 8, Location::Unchanged)
            .write()
            .unwrap();
        for (at, value) in [(20, 16), (20, 255), (22, 2), (23, 1), (16, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(ExtraRow::read(&bytes), Err(TableError::ExtraRow), "{at}");
        }
        let no_rows = [
            extra_rows(Base::Sp, 8, Location::Undefined),
            extra_rows(Base::Register(6), 8, Location::Unchanged),
            extra_rows(Base::Register(16), 8, Location::Unchanged),
            ExtraRow {
                rule: Rule::OUTERMOST,
                ..extra_rows(Base::Sp, 8, Location::Unchanged)
            },
        ];
        for row in no_rows {
            assert_eq!(row.write(), None, "{row:?}");
        }
    }
}
