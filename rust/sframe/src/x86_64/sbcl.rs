// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The frame pointer around a call of SBCL, a compiler of Common Lisp. AMD64 only.
//!
//! The caller makes the callee's frame: it saves its own frame pointer in the new frame, sets the frame pointer to the
//! new frame, and calls. The callee's first instruction moves the return address from the stack to the frame. So the
//! frame pointer is the callee's already in the last instructions of the caller, and the new frame has no return address
//! until the first instruction of the callee is over (`src/compiler/x86-64/call.lisp` in SBCL's source).

use super::{
    super::format::bytes::Source,
    insn::{
        CALL_RELATIVE,
        GROUP_5,
        PUSH_RBP, //
    }, //
};

/// `pop 8(%rbp)`
const POP_RETURN_ADDRESS: [u8; 3] = [0x8f, 0x45, 0x08];

/// The bytes in front of a PC that are looked at.
const IN_FRONT: usize = 18;
/// The bytes from a PC on that are looked at.
const BEHIND: usize = 3;

/// Where a PC is in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallState {
    /// In the caller. The frame pointer is the callee's, and leads to the caller's frame pointer.
    Calling,
    /// At the first instruction of the callee. The return address is on top of the stack, and the frame pointer leads to
    /// the caller's frame pointer.
    Called,
}

/// Where the run-time address `pc` is in a call of SBCL's; `None` if it is outside of the instructions around a call, or
/// if the code cannot be read.
#[inline(never)]
pub(super) fn call_state<S: Source + ?Sized>(pc: u64, memory: &S) -> Option<CallState> {
    let code: [u8; IN_FRONT + BEHIND] =
        memory.read_seldom(pc.wrapping_sub(IN_FRONT as u64)).ok()?;
    let (before, at) = code.split_at(IN_FRONT);
    if at == POP_RETURN_ADDRESS {
        return Some(CallState::Called);
    }
    let is_call = matches!(*at, [CALL_RELATIVE, ..])
        || matches!(*at, [GROUP_5, operand, _] if operand & 0x38 == 0x10);
    // What may follow the change of the frame pointer: lea -11(%rax),%ebx; test $15,%bl; je over a call.
    let is_calling =
        [0, 3, 6, 8].into_iter().any(
            |len: usize| match before.get(..IN_FRONT.wrapping_sub(len)) {
                Some([.., last, 0x48 | 0x49, 0x8b, 0xe8..=0xef]) if is_call && len == 0 => {
                    *last != PUSH_RBP
                }
                Some([.., prefix, 0x89, slot @ 0x28..=0x2f, other, 0x8b, to @ 0xe8..=0xef]) => {
                    matches!(prefix, 0x48 | 0x49) && prefix == other && slot & 7 == to & 7
                }
                Some([.., 0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec]) => true,
                _ => false,
            },
        );
    is_calling.then_some(CallState::Calling)
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::format::bytes::Fault,
        *, //
    };
    use std::vec::Vec;

    /// Code of SBCL 2.5: sub $16,%rsp; mov $2,%ecx; mov %rbp,(%rsp); mov %rsp,%rbp; call *-3(%rax)
    const CALL: [u8; 19] = [
        0x48, 0x83, 0xec, 0x10, 0xb9, 2, 0, 0, 0, 0x48, 0x89, 0x2c, 0x24, 0x48, 0x8b, 0xec, 0xff,
        0x50, 0xfd,
    ];
    /// mov %rbp,(%r9); mov %r9,%rbp; lea -11(%rax),%ebx; test $15,%bl; je; call; jmp; call *-3(%rax)
    const UNKNOWN_CALL: [u8; 26] = [
        0x49, 0x89, 0x29, 0x49, 0x8b, 0xe9, 0x8d, 0x58, 0xf5, 0xf6, 0xc3, 0x0f, 0x74, 0x07, 0xe8,
        1, 2, 3, 4, 0xeb, 3, 0xff, 0x50, 0xfd, 0x90, 0x90,
    ];
    /// mov %r10,(%r9); mov %r9,%rbp; call
    const LOCAL_CALL: [u8; 11] = [0x4d, 0x89, 0x11, 0x49, 0x8b, 0xe9, 0xe8, 1, 2, 3, 4];
    /// push %rbp; mov %rsp,%rbp; call
    const PROLOGUE: [u8; 9] = [PUSH_RBP, 0x48, 0x8b, 0xec, 0xe8, 1, 2, 3, 4];

    /// The address of the code.
    const START: u64 = 0x1000;

    struct Code<'a>(&'a [u8]);

    impl Source for Code<'_> {
        fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], Fault> {
            let byte = |at: u64| {
                let at = at
                    .checked_sub(START)
                    .and_then(|at| usize::try_from(at).ok());
                at.and_then(|at| self.0.get(at)).copied().unwrap_or(0x90)
            };
            Ok(std::array::from_fn(|at| byte(offset + at as u64)))
        }
    }

    fn states(code: &[u8]) -> Vec<(u64, CallState)> {
        (0..code.len() as u64)
            .filter_map(|at| Some((at, call_state(START + at, &Code(code))?)))
            .collect()
    }

    #[test]
    fn the_frame_pointer_is_the_callees_in_front_of_a_call() {
        assert_eq!(states(&CALL), [(16, CallState::Calling)]);
        assert_eq!(states(&LOCAL_CALL), [(6, CallState::Calling)]);
        let calling = [6, 9, 12, 14].map(|at| (at, CallState::Calling));
        assert_eq!(states(&UNKNOWN_CALL), calling);
        // The frame pointer is saved in another place than in the new frame.
        let mut code = UNKNOWN_CALL;
        code[2] = 0x28;
        assert_eq!(states(&code), []);
        assert_eq!(states(&PROLOGUE), []);
    }

    #[test]
    fn a_callee_moves_its_return_address_first() {
        assert_eq!(
            states(&[0x90, 0x8f, 0x45, 0x08, 0x90]),
            [(1, CallState::Called)]
        );
        assert_eq!(states(&[0x8f, 0x45, 0x10]), []);
    }
}
