// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Beginnings and ends of functions that keep a frame pointer: whether the frame pointer is set up
//! at a PC, and whether it is restored.

use crate::sframe::{
    unwind::step::{
        Frame,
        Memory,
        WordReader, //
    },
    x86_64::insn::*, //
};

/// The number of bytes of a function's beginning that are examined.
pub const BEGINNING: usize = 64;

/// The rule of a frame of which little is known but its size: a CFA at a fixed distance from one of
/// two registers, with the return address right below it. The fast path of regions takes steps by
/// it in a few instructions, which a [`Rule`](crate::sframe::rule::Rule) would not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedRule {
    /// The CFA's distance from the stack pointer or the frame pointer, in bytes.
    pub cfa: i32,
    /// Where the caller's frame pointer is saved, in bytes from the CFA; 0 if it is unchanged.
    pub fp: i32,
    /// Whether the CFA counts from the frame pointer.
    pub from_fp: bool,
}

impl FixedRule {
    /// The rule of a frame whose CFA is `cfa` bytes above the stack pointer. The caller's frame
    /// pointer is saved at the CFA plus `fp`; 0: it is unchanged.
    pub const fn new(cfa: i32, fp: i32) -> FixedRule {
        FixedRule {
            cfa,
            fp,
            from_fp: false,
        }
    }

    /// The caller of a frame; `None` if its stack pointer would not be above the frame's, or if the
    /// stack cannot be read. Whether the caller's PC is code, and after a call, is not checked.
    #[inline(never)]
    pub fn caller<M: Memory + ?Sized>(self, frame: &Frame, memory: &M) -> Option<Frame> {
        let base = match self.from_fp {
            true => frame.fp,
            false => frame.sp,
        };
        let sp = base.checked_add_signed(self.cfa.into())?;
        if sp <= frame.sp || sp % 8 != 0 {
            return None;
        }
        let fp = match self.fp {
            0 => frame.fp,
            offset => {
                let at = sp.checked_add_signed(offset.into())?;
                memory.read_word(at).ok()?
            }
        };
        let pc = memory.read_word(sp.wrapping_sub(8)).ok()?;
        Some(Frame { pc, sp, fp })
    }

    /// Whether the caller's stack pointer is above the frame's, and a multiple of eight if the
    /// frame's is.
    #[inline(always)]
    pub fn keeps_aligned(self) -> bool {
        self.cfa >= 8 && self.cfa % 8 == 0 && !self.from_fp
    }

    /// The caller of a frame whose stack pointer is a multiple of eight, like
    /// [`caller`](Self::caller), by a rule that [`keeps_aligned`](Self::keeps_aligned). `None` also
    /// if the saved frame pointer is 0, because reads that fail give 0.
    #[inline(always)]
    pub fn caller_of_aligned<W: WordReader>(self, frame: &Frame, words: &W) -> Option<Frame> {
        let sp = frame.sp.checked_add_signed(self.cfa.into())?;
        let fp = match self.fp {
            0 => frame.fp,
            offset => match words.word(sp.checked_add_signed(offset.into())?) {
                0 => return None,
                fp => fp,
            },
        };
        let pc = words.word(sp.wrapping_sub(8));
        Some(Frame { pc, sp, fp })
    }
}

/// The rule if the return address is on top of the stack.
pub(in crate::sframe) const ON_TOP: FixedRule = FixedRule::new(8, 0);

/// The rule if the caller's frame pointer is on top of the stack, and the return address above it.
pub(in crate::sframe) const PUSHED: FixedRule = FixedRule::new(16, -16);

/// The rule of an innermost frame whose function has not yet set up a frame pointer, or has already
/// restored the caller's; `None` if the code does not show either.
///
/// `code` holds the byte before the PC and the four bytes from the PC on. A `push %rbp` may also
/// stand in the middle of a function, and the byte before the PC may be the end of another
/// instruction, as of `push %r13`. Therefore the caller has to check the resulting return address.
pub fn rule_without_frame_pointer(code: &[u8; 5]) -> Option<FixedRule> {
    let [before, at @ ..] = *code;
    let [first, second, third, fourth] = at;

    if matches!(first, RET | PUSH_RBP)
        || is_endbr64(at)
        || is_prologue(&[first, second, third, fourth])
    {
        Some(ON_TOP)
    } else if is_prologue(&[before, first, second, third]) {
        Some(PUSHED)
    } else {
        None
    }
}

/// Whether a function with the beginning `code` has executed no instruction, except `endbr64`, at
/// `distance` bytes from its start.
pub fn is_entry(code: &[u8; BEGINNING], distance: u64) -> bool {
    let [a, b, c, d, ..] = *code;
    distance == 0 || (distance == 4 && is_endbr64([a, b, c, d]))
}

/// Whether `code`, from the PC on, only clears registers and returns, which is the end of functions
/// that leave no values behind in registers; or only compares the number of arguments, returns and
/// removes the arguments from the stack, which some code does that is made at run time. If true,
/// the return address is on top of the stack.
pub fn clears_and_returns(code: &[u8; ENDING]) -> bool {
    let mut rest = &code[..];
    loop {
        rest = match rest {
            [RET | RET_AND_POP, ..] => return true,
            // cmp $number,%register; a conditional jump.
            [0x48 | 0x49, 0x83, 0xf8..=0xff, _, rest @ ..] | [0x70..=0x7f, _, rest @ ..] => rest,
            // xor of two registers, neither of them %rsp.
            [XOR, 0xc0..=0xdf | 0xe8..=0xff, rest @ ..] | [0x45, XOR, 0xc0..=0xff, rest @ ..] => {
                rest
            }
            _ => return false,
        };
    }
}

/// Whether `mov %rsp, %rbp` is at the PC. `code` is as for [`rule_without_frame_pointer`].
pub fn is_set_up_at(code: &[u8; 5]) -> bool {
    let [_, mov @ .., _] = *code;
    MOV_RSP_RBP.contains(&mov)
}

/// Whether `code` is `push %rbp`, `mov %rsp, %rbp`. A uprobe may have replaced the push.
pub fn is_prologue(code: &[u8; 4]) -> bool {
    let [first, mov @ ..] = *code;
    matches!(first, PUSH_RBP | INT3) && MOV_RSP_RBP.contains(&mov)
}

/// The instructions of a function that set up its frame pointer, as offsets from its start in
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prologue {
    /// The offset of the push of the caller's frame pointer.
    pub push: u64,
    /// The offset from which on the function's own frame pointer is set up.
    pub end: u64,
}

/// The prologue of a function with the beginning `code`; `None` if the function sets up no frame
/// pointer, or if its return address would not be in the word right above the saved frame pointer.
///
/// Compilers put other instructions between `push %rbp` and `mov %rsp, %rbp`. A uprobe may have
/// replaced the push.
pub fn prologue(code: &[u8; BEGINNING]) -> Option<Prologue> {
    let [a, b, c, d, behind, ..] = *code;
    let push = if is_endbr64([a, b, c, d]) {
        (behind == PUSH_RBP).then_some(4)
    } else {
        matches!(a, PUSH_RBP | INT3).then_some(0)
    }?;
    let (_, end) = code
        .windows(3)
        .zip(3_u64..)
        .find(|(window, end)| *end > push + 3 && MOV_RSP_RBP.iter().any(|mov| window == mov))?;
    Some(Prologue { push, end })
}

/// The greatest distance from the end of a function at which it may already have begun to leave for
/// a handler, in bytes. In libgcc 14 the distance is 206.
pub const LEAVING: u64 = 256;

/// A cheap check that rules out [`serves_handlers`] for nearly all functions.
pub fn may_serve_handlers(code: &[u8; BEGINNING]) -> bool {
    has_byte(code, PUSH_RDX)
}

const PUSH_RDX: u8 = 0x52;

/// Whether a function with the beginning `code` may leave for an exception handler. The functions
/// of libgcc that throw save rdx and rax for the handler by `push %rdx; push %rax`. No other
/// function does.
pub fn serves_handlers(code: &[u8; BEGINNING]) -> bool {
    const PUSH_RAX: u8 = 0x50;
    code.windows(2)
        .any(|pushes| *pushes == [PUSH_RDX, PUSH_RAX])
}

/// Whether `code`, of a multiple of eight bytes, has a byte. Eight bytes are compared at once.
fn has_byte(code: &[u8], byte: u8) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    code.chunks_exact(8).any(|word| {
        let word = word
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        let zero = word ^ ONES.wrapping_mul(byte.into());
        zero.wrapping_sub(ONES) & !zero & (ONES << 7) != 0
    })
}

/// A cheap check that rules out [`leaves_for_handler`] for nearly all code.
pub fn may_leave_for_handler(code: &[u8; ENDING]) -> bool {
    let [_, _, to_rsp] = MOV_RCX_RSP;
    has_byte(code, to_rsp)
}

const MOV_RCX_RSP: [u8; 3] = [0x48, 0x89, 0xcc];

/// Whether a function leaves for a handler within `code`: by `mov %rcx,%rsp` and a jump to the
/// address on top of the new stack. Shortly before these instructions, its frame no longer leads to
/// its caller.
pub fn leaves_for_handler(code: &[u8; ENDING]) -> bool {
    const POP_AND_JMP_RCX: [u8; 3] = [0x59, 0xff, 0xe1];
    code.windows(6).any(|end| {
        end.strip_prefix(&MOV_RCX_RSP)
            .is_some_and(|rest| *rest == POP_AND_JMP_RCX || rest.first() == Some(&RET))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_functions_have_their_return_address_on_top() {
        let top = Some(FixedRule::new(8, 0));
        assert_eq!(
            rule_without_frame_pointer(&[0x90, 0x55, 0x48, 0x89, 0xe5]),
            top
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x90, 0xf3, 0x0f, 0x1e, 0xfa]),
            top
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x5d, 0xc3, 0x66, 0x90, 0x90]),
            top
        );

        let pushed = Some(FixedRule::new(16, -16));
        assert_eq!(
            rule_without_frame_pointer(&[0x55, 0x48, 0x89, 0xe5, 0x53]),
            pushed
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x55, 0x48, 0x8b, 0xec, 0x53]),
            pushed
        );

        // mov %rsp,%rbp is at the PC; or it is behind the push there.
        assert!(is_set_up_at(&[0x55, 0x48, 0x89, 0xe5, 0x53]));
        assert!(is_set_up_at(&[0x90, 0x48, 0x8b, 0xec, 0x53]));
        assert!(!is_set_up_at(&[0x90, 0x55, 0x48, 0x89, 0xe5]));

        // A uprobe on each of the first instructions.
        assert_eq!(
            rule_without_frame_pointer(&[0x90, 0xcc, 0x48, 0x89, 0xe5]),
            top
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x90, 0xcc, 0x0f, 0x1e, 0xfa]),
            top
        );
        assert_eq!(
            rule_without_frame_pointer(&[0xcc, 0x48, 0x89, 0xe5, 0x53]),
            pushed
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x90, 0xcc, 0x90, 0x90, 0x90]),
            None
        );

        // mov %rsp, %rbp after another instruction; the middle of a function; pop %rbp.
        assert_eq!(
            rule_without_frame_pointer(&[0x53, 0x48, 0x89, 0xe5, 0x53]),
            None
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x55, 0x48, 0x83, 0xec, 0x18]),
            None
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x5b, 0x5d, 0xc3, 0x90, 0x90]),
            None
        );
    }

    #[test]
    fn registers_are_cleared_before_a_return() {
        let clears = |instructions: &[u8]| {
            let mut code = [0x90; ENDING];
            code[..instructions.len()].copy_from_slice(instructions);
            clears_and_returns(&code)
        };
        // xor %edx,%edx; xor %ecx,%ecx; xor %r8d,%r8d; ret
        assert!(clears(&[0x31, 0xd2, 0x31, 0xc9, 0x45, 0x31, 0xc0, 0xc3]));
        assert!(clears(&[0xc3]));
        // cmp $3,%rcx; jg; ret $24. cmp $3,%r9; ret $8.
        assert!(clears(&[0x48, 0x83, 0xf9, 3, 0x7f, 3, 0xc2, 24, 0]));
        assert!(clears(&[0x49, 0x83, 0xf9, 3, 0xc2, 8, 0]));
        // add $8,%rsp; ret. cmpq $3,(%rcx); ret
        assert!(!clears(&[0x48, 0x83, 0xc4, 8, 0xc3]));
        assert!(!clears(&[0x48, 0x83, 0x39, 3, 0xc3]));
        // xor %edx,%edx; pop %rbp; ret. xor %esp,%esp. xor (%rax),%edx.
        assert!(!clears(&[0x31, 0xd2, 0x5d, 0xc3]));
        assert!(!clears(&[0x31, 0xe4, 0xc3]));
        assert!(!clears(&[0x31, 0x10, 0xc3]));
        assert!(!clears(&[0x31; 32]) && !clears_and_returns(&[0x45; 32]));
    }

    #[test]
    fn beginnings_of_functions() {
        let found = |instructions: &[u8]| {
            let mut code = [0x90; BEGINNING];
            code[..instructions.len()].copy_from_slice(instructions);
            prologue(&code).map(|prologue| (prologue.push, prologue.end))
        };
        assert_eq!(found(&[0x55, 0x48, 0x89, 0xe5, 0x53]), Some((0, 4)));
        assert_eq!(found(&[0x55, 0x48, 0x8b, 0xec]), Some((0, 4)));
        // A uprobe on the push.
        assert_eq!(found(&[0xcc, 0x48, 0x89, 0xe5]), Some((0, 4)));
        // endbr64; push %rbp; movzwl %r12w, %eax; mov %rsi, %rdi; mov %rsp, %rbp
        let later = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x41, 0x0f, 0xb7, 0xc4, 0x48, 0x89, 0xf7, 0x48, 0x89,
            0xe5,
        ];
        assert_eq!(found(&later), Some((4, 15)));
        // push %rbp; mov %rdi, %rbp
        assert_eq!(found(&[0x55, 0x48, 0x89, 0xfd]), None);
        // push %r14; push %rbp; mov %rsp, %rbp: the return address is not right above the saved
        // frame pointer.
        assert_eq!(found(&[0x41, 0x56, 0x55, 0x48, 0x89, 0xe5]), None);
        // lea 8(%rsp), %r10; and $-32, %rsp; push -8(%r10); push %rbp; mov %rsp, %rbp
        let realigned = [
            0x4c, 0x8d, 0x54, 0x24, 0x08, 0x48, 0x83, 0xe4, 0xe0, 0x41, 0xff, 0x72, 0xf8, 0x55,
            0x48, 0x89, 0xe5,
        ];
        assert_eq!(found(&realigned), None);
        let mut last = [0x90; BEGINNING];
        last[0] = 0x55;
        last[61..].copy_from_slice(&[0x48, 0x89, 0xe5]);
        assert_eq!(found(&last), Some((0, 64)));
    }

    #[test]
    fn functions_that_throw_save_two_registers() {
        for fill in [0, 0x50, 0x51, 0x53, 0xd2, 0xff] {
            assert!(!serves_handlers(&[fill; BEGINNING]));
            for at in 0..BEGINNING {
                let mut code = [fill; BEGINNING];
                code[at] = 0x52;
                let is_followed = fill == 0x50 && at + 1 < BEGINNING;
                assert_eq!(serves_handlers(&code), is_followed, "{fill:#x} {at}");
            }
        }
    }
}
