// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Where functions keep their caller's value of rbx. A caller whose CFA counts from rbx can be
//! walked if each function between it and the innermost frame tells this: a runtime may keep the
//! stack pointer in rbx while it calls C.
//!
//! .eh_frame says where a function saves rbx. It does not say that code without such a rule leaves
//! rbx alone: the functions of such a runtime do not. So the instructions have to agree with
//! .eh_frame.

use gimli::{
    CfaRule,
    RegisterRule, //
};
use iced_x86::{
    FlowControl,
    Instruction,
    Mnemonic,
    OpKind,
    Register, //
};
use sframe::rule::SavedRbx;

use crate::{
    code::CodeBytes,
    eh_frame::{
        self,
        EhFrameRow, //
    }, //
};

/// The size of a slot, in bytes.
const SLOT: i64 = 8;
/// The distances in bytes from the CFA down to the slot of rbx that [`SavedRbx`] can encode.
const DISTANCES: std::ops::RangeInclusive<i64> = 16..=56;

/// The part of a function that a row of .eh_frame covers, in link-time addresses.
struct RowSpan {
    start: u64,
    end: u64,
    /// The distance from the stack pointer up to the CFA, in bytes; `None` if the CFA counts from
    /// rbp.
    depth: Option<i64>,
    /// Whether rbx is saved, by .eh_frame. It says so after the instruction that restores rbx, too.
    is_saved: bool,
}

/// What the rows of an entry say of rbx.
#[derive(Default)]
pub(crate) struct RbxRows {
    rows: Vec<RowSpan>,
    /// The distance in bytes from the CFA down to the slot of rbx; `None` if the function does not
    /// save rbx.
    slot: Option<i64>,
    /// Whether a row has a form with which nothing can be proved.
    is_unusual: bool,
}

impl RbxRows {
    /// Adds the next row of the entry, which ends at the link-time address `end`.
    pub(crate) fn add(&mut self, row: &EhFrameRow, end: u64) {
        let is_saved = match row.register(eh_frame::RBX) {
            RegisterRule::Offset(offset) => {
                let distance = offset.checked_neg();
                self.is_unusual |=
                    distance.is_none() || self.slot.is_some() && self.slot != distance;
                self.slot = distance;
                true
            }
            RegisterRule::Undefined | RegisterRule::SameValue => false,
            _ => return self.give_up(),
        };
        let depth = match *row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } if register == eh_frame::RSP => {
                Some(offset)
            }
            CfaRule::RegisterAndOffset { register, .. } if register == eh_frame::RBP => None,
            _ => return self.give_up(),
        };
        self.rows.push(RowSpan {
            start: row.start_address(),
            end,
            depth,
            is_saved,
        });
    }

    /// Nothing can be proved of this entry.
    pub(crate) fn give_up(&mut self) {
        self.is_unusual = true;
    }

    /// Where the function of the entry keeps its caller's value of rbx: proved for each of its
    /// instructions. The next row is another entry's.
    pub(crate) fn take(&mut self, code: &CodeBytes<'_>) -> SavedRbx {
        let is_encodable = |slot: i64| DISTANCES.contains(&slot) && slot % SLOT == 0;
        let is_proved = !self.is_unusual
            && self.slot.is_none_or(is_encodable)
            && agrees(&self.rows, self.slot, code);
        let rbx = match self.slot {
            _ if !is_proved => SavedRbx::UNKNOWN,
            // DISTANCES has only multiples of eight that fit.
            Some(slot) => SavedRbx((slot / SLOT) as u8),
            None => SavedRbx::KEPT,
        };
        self.rows.clear();
        (self.slot, self.is_unusual) = (None, false);
        rbx
    }
}

/// Whether at each instruction the caller's value is in the slot if the stack pointer is not above
/// the slot, and in rbx otherwise.
fn agrees(rows: &[RowSpan], slot: Option<i64>, code: &CodeBytes<'_>) -> bool {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return false;
    };
    let Some(slot) = slot else {
        return all_instructions(code, first.start, last.end, |instruction| {
            pushes_rbx(instruction) || !may_write_rbx(instruction)
        });
    };
    // Where .eh_frame says that the value is in the slot, no instruction can contradict: most code
    // of most functions.
    let is_in_slot = |row: &RowSpan| row.is_saved && row.depth.is_some_and(|depth| depth >= slot);
    let mut known = KnownState {
        pushed: Some(SLOT),
        is_restored: false,
    };
    let mut rest = rows;
    while let Some(first) = rest.first() {
        if is_in_slot(first) {
            known = KnownState::default();
            rest = &rest[1..];
            continue;
        }
        let len = rest.iter().take_while(|row| !is_in_slot(row)).count();
        if !known.agrees(rest, len, slot, code) {
            return false;
        }
        rest = &rest[len..];
    }
    true
}

/// What the instructions of a function up to some place tell.
#[derive(Default)]
struct KnownState {
    /// The distance from the stack pointer up to the CFA, in bytes, while nothing but pushes
    /// changes it, from the entry on.
    pushed: Option<i64>,
    /// Whether the instruction before has restored rbx, in rows that do not tell where the stack
    /// pointer is.
    is_restored: bool,
}

impl KnownState {
    /// Whether the instructions of the first `len` of these rows agree.
    fn agrees(&mut self, rows: &[RowSpan], len: usize, slot: i64, code: &CodeBytes<'_>) -> bool {
        let (Some(first), Some(last)) = (rows.first(), rows[..len].last()) else {
            return false;
        };
        let mut at = 0;
        all_instructions(code, first.start, last.end, |instruction| {
            while rows.get(at).is_some_and(|row| row.end <= instruction.ip()) {
                at += 1;
            }
            let Some(row) = rows.get(at).filter(|row| row.start <= instruction.ip()) else {
                return false;
            };
            let next = rows.get(at + 1);
            let saves =
                next.is_some_and(|next| next.start == instruction.next_ip() && next.is_saved);
            self.agrees_at(instruction, row, saves, slot)
        })
    }

    /// Whether an instruction agrees. `saves`: by .eh_frame, rbx is saved after the instruction.
    fn agrees_at(
        &mut self,
        instruction: &Instruction,
        row: &RowSpan,
        saves: bool,
        slot: i64,
    ) -> bool {
        let is_push = instruction.mnemonic() == Mnemonic::Push;
        let pushes_rbx = pushes_rbx(instruction);
        // Whether the caller's value has to be in rbx.
        let is_in_register = match row.depth {
            Some(depth) if depth < slot => {
                // A push that saves rbx has to fill the slot; any other instruction must not reach
                // the slot.
                let reached = depth.saturating_add(SLOT) == slot;
                if is_push && reached && saves != pushes_rbx {
                    return false;
                }
                true
            }
            // At or below the slot, .eh_frame has to say that rbx is saved.
            Some(_) => return false,
            None if row.is_saved => self.is_restored,
            // Only the pushes at the function's entry show where the stack pointer is.
            None => match self.pushed {
                Some(depth) if depth < slot => {
                    if is_push && pushes_rbx != (depth + SLOT == slot) {
                        return false;
                    }
                    true
                }
                Some(_) => false,
                None => return false,
            },
        };
        if is_in_register && !pushes_rbx && may_write_rbx(instruction) {
            return false;
        }
        self.pushed = match self.pushed {
            _ if instruction.flow_control() != FlowControl::Next => None,
            Some(depth) if is_push => depth.checked_add(SLOT),
            Some(_) if may_write_rsp(instruction) => None,
            other => other,
        };
        self.is_restored = match instruction.flow_control() {
            FlowControl::Return | FlowControl::UnconditionalBranch => false,
            _ if row.depth.is_some() => false,
            _ => {
                self.is_restored
                    || (instruction.mnemonic() == Mnemonic::Pop
                        && instruction.op0_register() == Register::RBX)
            }
        };
        true
    }
}

/// Whether the code between two link-time addresses can be read, and all of its instructions meet a
/// condition.
fn all_instructions(
    code: &CodeBytes<'_>,
    start: u64,
    end: u64,
    mut is_met: impl FnMut(&Instruction) -> bool,
) -> bool {
    let mut at = start;
    code.instructions(start, end).all(|instruction| {
        at = instruction.next_ip();
        !instruction.is_invalid() && is_met(&instruction)
    }) && at >= end
}

/// Whether an instruction pushes rbx.
fn pushes_rbx(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Push && instruction.op0_register() == Register::RBX
}

/// Whether an instruction may write rbx or a part of rbx. Calls do not count: the called function
/// restores rbx.
fn may_write_rbx(instruction: &Instruction) -> bool {
    let is_rbx = |register| {
        use Register::*;
        matches!(register, RBX | EBX | BX | BL | BH)
    };
    // Only the first two operands can be written. The other instructions write rbx without an
    // operand.
    is_rbx(instruction.op0_register()) && instruction.op0_kind() == OpKind::Register
        || is_rbx(instruction.op1_register()) && instruction.op1_kind() == OpKind::Register
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Cpuid | Mnemonic::Enclu | Mnemonic::Getsec
        )
}

/// Whether an instruction may change the stack pointer in another way than a push.
fn may_write_rsp(instruction: &Instruction) -> bool {
    instruction.is_stack_instruction()
        || (instruction.op_count() > 0 && instruction.op0_register() == Register::RSP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The depth of the stack, and whether rbx is saved, from an offset on.
    type Rows<'a> = &'a [(u64, Option<i64>, bool)];

    fn is_right(bytes: &[u8], rows: Rows<'_>, slot: Option<i64>) -> bool {
        const START: u64 = 0x1000;
        let end = START + bytes.len() as u64;
        let code = CodeBytes {
            segments: vec![(START, end, bytes)],
        };
        let starts = rows.iter().map(|(offset, ..)| START + offset);
        let ends = starts.skip(1).chain([end]);
        let rows: Vec<_> = (rows.iter().zip(ends))
            .map(|(&(offset, depth, is_saved), end)| RowSpan {
                start: START + offset,
                end,
                depth,
                is_saved,
            })
            .collect();
        agrees(&rows, slot, &code)
    }

    #[test]
    fn functions_that_do_not_save_rbx_do_not_write_it() {
        let rows = &[(0, Some(8), false)];
        for (bytes, keeps) in [
            (&b"\x48\x89\xf8\xc3"[..], true),     // mov %rdi,%rax; ret
            (b"\x48\x8b\x03\xc3", true),          // mov (%rbx),%rax
            (b"\xe8\x00\x00\x00\x00\xc3", true),  // call; the called function restores rbx
            (b"\x48\x89\xfb\xc3", false),         // mov %rdi,%rbx
            (b"\xb3\x01\xc3", false),             // mov $1,%bl
            (b"\xb7\x01\xc3", false),             // mov $1,%bh
            (b"\x31\xdb\xc3", false),             // xor %ebx,%ebx
            (b"\x48\x93\xc3", false),             // xchg %rax,%rbx
            (b"\x48\x0f\xc1\xd8\xc3", false),     // xadd %rbx,%rax
            (b"\xc4\xe2\xe3\xf6\xc6\xc3", false), // mulx %rsi,%rbx,%rax
            (b"\x5b\xc3", false),                 // pop %rbx
            (b"\x0f\xa2\xc3", false),             // cpuid
            (b"\x06\xc3", false),                 // no instruction
        ] {
            assert_eq!(is_right(bytes, rows, None), keeps, "{bytes:x?}");
        }
    }

    /// push %rbp; push %rbx; sub $8,%rsp; mov %rdi,%rbx; add $8,%rsp; pop %rbx; pop %rbp; ret
    const SAVES: &[u8] = b"\x55\x53\x48\x83\xec\x08\x48\x89\xfb\x48\x83\xc4\x08\x5b\x5d\xc3";

    #[test]
    fn rbx_is_saved_by_a_push_into_its_slot() {
        let rows = &[
            (0, Some(8), false),
            (1, Some(16), false),
            (2, Some(24), true),
            (6, Some(32), true),
            (13, Some(24), true),
            (14, Some(16), true),
            (15, Some(8), true),
        ];
        assert!(is_right(SAVES, rows, Some(24)));
        // Where rbx is in its slot, the code is not read.
        let mut unreadable = SAVES.to_vec();
        unreadable[6] = 0x06;
        assert!(is_right(&unreadable, rows, Some(24)));
        // .eh_frame names another slot.
        assert!(!is_right(SAVES, rows, Some(16)));
        assert!(!is_right(SAVES, rows, Some(32)));
        // .eh_frame says too late that rbx is saved.
        let mut late = rows.to_vec();
        late[2].2 = false;
        assert!(!is_right(SAVES, &late, Some(24)));
        // Another register is pushed into the slot.
        let mut other = SAVES.to_vec();
        other[1] = 0x55;
        assert!(!is_right(&other, rows, Some(24)));
        // rbx changes before the push, and after the pop.
        for at in [0, 14] {
            let mut changed = SAVES.to_vec();
            changed.splice(at..at, [0x31, 0xdb]);
            let moved: Vec<_> = (rows.iter())
                .map(|&(offset, depth, is_saved)| match offset > at as u64 {
                    true => (offset + 2, depth, is_saved),
                    false => (offset, depth, is_saved),
                })
                .collect();
            assert!(!is_right(&changed, &moved, Some(24)), "{at}");
        }
        // rbx is saved in the red zone, so it is not in its register although the stack pointer is
        // above the slot. mov %rbx,-16(%rsp); mov %rdi,%rbx; mov -16(%rsp),%rbx; ret
        let red = b"\x48\x89\x5c\x24\xf0\x48\x89\xfb\x48\x8b\x5c\x24\xf0\xc3";
        let rows = &[(0, Some(8), false), (5, Some(8), true)];
        assert!(!is_right(red, rows, Some(16)));
    }

    #[test]
    fn frame_pointers_hide_the_stack_pointer() {
        // push %rbp; mov %rsp,%rbp; push %r12; push %rbx; mov %rdi,%rbx; pop %rbx; pop %r12; pop
        // %rbp; ret
        let code = b"\x55\x48\x89\xe5\x41\x54\x53\x48\x89\xfb\x5b\x41\x5c\x5d\xc3";
        let rows = &[
            (0, Some(8), false),
            (1, Some(16), false),
            (4, None, false),
            (7, None, true),
            (14, Some(8), true),
        ];
        assert!(is_right(code, rows, Some(32)));
        assert!(!is_right(code, rows, Some(24)));
        // sub $8,%rsp in place of the push of r12: the slot is not the third word by pushes.
        let mut code = code.to_vec();
        code.splice(4..6, [0x48, 0x83, 0xec, 0x08]);
        let rows = &[
            (0, Some(8), false),
            (1, Some(16), false),
            (4, None, false),
            (9, None, true),
            (16, Some(8), true),
        ];
        assert!(!is_right(&code, rows, Some(32)));
        // rbx changes after the pop.
        let code = b"\x55\x48\x89\xe5\x53\x5b\x31\xdb\x5d\xc3";
        let rows = &[
            (0, Some(8), false),
            (1, Some(16), false),
            (4, None, false),
            (5, None, true),
            (9, Some(8), true),
        ];
        assert!(!is_right(code, rows, Some(24)));
        assert!(is_right(
            b"\x55\x48\x89\xe5\x53\x5b\x89\xd0\x5d\xc3",
            rows,
            Some(24)
        ));
    }
}
