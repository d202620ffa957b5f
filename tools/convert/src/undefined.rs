// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The registers that .eh_frame declares undefined (`DW_CFA_undefined`): their values are lost. The
//! rows of gimli 0.32 omit such a register, like a register without a rule, whose value is kept.
//! (gimli 0.33 tells the two apart, and needs a newer Rust than Debian 13 has.)

use gimli::{
    BaseAddresses,
    CallFrameInstruction,
    EhFrame,
    EndianSlice,
    LittleEndian,
    Register, //
};

use crate::eh_frame::FdeEntry;

/// A set of general registers, by DWARF number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RegisterSet(u32);

impl RegisterSet {
    fn set(&mut self, register: Register, is_in: bool) {
        let bit = 1_u32.checked_shl(register.0.into()).unwrap_or(0);
        if is_in {
            self.0 |= bit;
        } else {
            self.0 &= !bit;
        }
    }

    fn has(self, register: Register) -> bool {
        self.0 & 1_u32.checked_shl(register.0.into()).unwrap_or(0) != 0
    }
}

/// The registers that the rows of one entry declare undefined.
#[derive(Debug, Default)]
pub(crate) struct UndefinedRegisters {
    /// Each set holds from its link-time address to the next one's; sorted by address.
    changes: Vec<(u64, RegisterSet)>,
}

impl UndefinedRegisters {
    /// Follows the instructions of an entry, up to the first one that cannot be read: there gimli's
    /// rows end, too.
    pub(crate) fn of(
        entry: &FdeEntry<'_>,
        section: &EhFrame<EndianSlice<'_, LittleEndian>>,
        bases: &BaseAddresses,
    ) -> UndefinedRegisters {
        let mut found = UndefinedRegisters::default();
        let mut initial = RegisterSet::default();
        let mut instructions = entry.cie().instructions(section, bases);
        while let Ok(Some(instruction)) = instructions.next() {
            if let Some((register, is_undefined)) = ruled(&instruction) {
                initial.set(register, is_undefined);
            }
        }
        let mut at = entry.initial_address();
        let mut now = initial;
        found.add(at, now);
        let mut remembered = Vec::new();
        let mut instructions = entry.instructions(section, bases);
        while let Ok(Some(instruction)) = instructions.next() {
            match instruction {
                CallFrameInstruction::SetLoc { address } => at = address,
                CallFrameInstruction::AdvanceLoc { delta } => {
                    let factor = entry.cie().code_alignment_factor();
                    at = at.wrapping_add(factor.wrapping_mul(delta.into()));
                }
                CallFrameInstruction::RememberState => remembered.push(now),
                CallFrameInstruction::RestoreState => now = remembered.pop().unwrap_or(now),
                CallFrameInstruction::Restore { register } => {
                    now.set(register, initial.has(register));
                }
                other => {
                    if let Some((register, is_undefined)) = ruled(&other) {
                        now.set(register, is_undefined);
                    }
                }
            }
            found.add(at, now);
        }
        found
    }

    fn add(&mut self, at: u64, set: RegisterSet) {
        match self.changes.last_mut() {
            Some((last, changed)) if *last == at => *changed = set,
            Some((_, same)) if *same == set => {}
            _ => self.changes.push((at, set)),
        }
    }

    /// Whether a register is undefined in the row that begins at a link-time address.
    pub(crate) fn has(&self, start: u64, register: Register) -> bool {
        let next = self.changes.partition_point(|(at, _)| *at <= start);
        next.checked_sub(1)
            .and_then(|last| self.changes.get(last))
            .is_some_and(|(_, set)| set.has(register))
    }
}

/// The register that an instruction gives a rule, and whether the rule is that it is undefined.
fn ruled(instruction: &CallFrameInstruction<usize>) -> Option<(Register, bool)> {
    use CallFrameInstruction as I;
    match *instruction {
        I::Undefined { register } => Some((register, true)),
        I::SameValue { register }
        | I::Offset { register, .. }
        | I::OffsetExtendedSf { register, .. }
        | I::ValOffset { register, .. }
        | I::ValOffsetSf { register, .. }
        | I::Register {
            dest_register: register,
            ..
        }
        | I::Expression { register, .. }
        | I::ValExpression { register, .. } => Some((register, false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gimli::{
        CieOrFde,
        UnwindSection, //
    };

    const RBX: Register = Register(3);
    const RBP: Register = Register(6);

    /// The undefined registers of a function at 0x1000, whose entry has these instructions, with a
    /// CIE that declares rbx undefined.
    fn undefined(instructions: &[u8]) -> UndefinedRegisters {
        // Version 1, "zR", code 1, data -8, return address 16, pointers of eight bytes; cfa=rsp+8,
        // ra=c-8, rbx=u.
        let mut bytes = vec![
            20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x04,
        ];
        bytes.extend([0x0c, 7, 8, 0x90, 1, 0x07, 3]);
        let len = 4 + 8 + 8 + 1 + instructions.len() as u32;
        bytes.extend(len.to_le_bytes());
        bytes.extend([28, 0, 0, 0]);
        bytes.extend(0x1000_u64.to_le_bytes());
        bytes.extend(0x100_u64.to_le_bytes());
        bytes.push(0);
        bytes.extend(instructions);
        bytes.extend([0; 4]);
        let mut section = EhFrame::new(&bytes, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default().set_eh_frame(0x4000);
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            if let CieOrFde::Fde(entry) = entry {
                let entry = entry.parse(EhFrame::cie_from_offset).unwrap();
                return UndefinedRegisters::of(&entry, &section, &bases);
            }
        }
        panic!("no entry");
    }

    #[test]
    fn a_register_is_undefined_until_it_has_another_rule() {
        // From 2 on rbp=u; from 5 on rbp=c-16.
        let found = undefined(&[0x42, 0x07, 6, 0x43, 0x86, 2]);
        let rbp = |at| found.has(at, RBP);
        assert_eq!(
            [0xfff, 0x1000, 0x1001, 0x1002, 0x1004, 0x1005].map(rbp),
            [false, false, false, true, true, false]
        );
        assert!(found.has(0x1000, RBX) && found.has(0x10ff, RBX));
        assert!(!found.has(0x1000, Register(7)) && !found.has(0x1000, Register(200)));
    }

    #[test]
    fn states_and_initial_rules_come_back() {
        // remember; from 1 on rbp=u, rbx same; from 2 on restore_state; from 3 on rbx=c-24; from 4
        // on rbx as in the CIE.
        let found = undefined(&[
            0x0a, 0x41, 0x07, 6, 0x08, 3, 0x41, 0x0b, 0x41, 0x83, 3, 0x41, 0xc3,
        ]);
        let both = |at| (found.has(at, RBP), found.has(at, RBX));
        assert_eq!(both(0x1000), (false, true));
        assert_eq!(both(0x1001), (true, false));
        assert_eq!(both(0x1002), (false, true));
        assert_eq!(both(0x1003), (false, false));
        assert_eq!(both(0x1004), (false, true));
    }
}
