// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Beginnings and ends of functions: how far a function that keeps a frame pointer has got with the
//! frame pointer.

use super::{
    super::unwind::rule::{
        Base,
        Location,
        Rule, //
    },
    insn::*, //
};

/// The size of what is looked at of a function's beginning, in bytes.
pub const BEGINNING: usize = 64;

/// The rule where the return address is on top of the stack.
pub(super) const ON_TOP: Rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);

/// The rule where the caller's frame pointer is, and the return address above it.
pub(super) const PUSHED: Rule = Rule::amd64(Base::Sp, 16, Location::AtCfa(-16));

/// The rule of an innermost frame whose function has not yet set up a frame pointer, or has
/// already put it back; `None` if the code does not look like that.
///
/// `code` are the byte before the PC and the four from the PC on. A `push %rbp` may also stand
/// further on in a function, so the return address that comes out has to be checked.
pub fn rule_without_frame_pointer(code: &[u8; 5]) -> Option<Rule> {
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

/// Whether a function that begins like this has done nothing yet, `distance` bytes from its start.
pub fn is_entry(code: &[u8; BEGINNING], distance: u64) -> bool {
    let [a, b, c, d, ..] = *code;
    distance == 0 || (distance == 4 && is_endbr64([a, b, c, d]))
}

/// Whether nothing is left to do but to clear registers and to return, as functions end that leave
/// nothing behind in registers; or to compare how many arguments there are, and to return and take them
/// off the stack, as V8's do. Then the return address is on top of the stack.
pub fn clears_and_returns(code: &[u8; ENDING]) -> bool {
    let mut rest = &code[..];
    loop {
        rest = match rest {
            [RET | RET_AND_POP, ..] => return true,
            // cmp $number,%register; and a jump if it is so or not.
            [0x48 | 0x49, 0x83, 0xf8..=0xff, _, rest @ ..] | [0x70..=0x7f, _, rest @ ..] => rest,
            // xor of two registers, of which neither is %rsp.
            [XOR, 0xc0..=0xdf | 0xe8..=0xff, rest @ ..] | [0x45, XOR, 0xc0..=0xff, rest @ ..] => {
                rest
            }
            _ => return false,
        };
    }
}

/// Whether a function that keeps a frame pointer has yet to set it up: it does so within what is looked
/// at, and no byte before can be of a call or of an end. So begins what compilers make at run time, if
/// it checks first whether it still holds. Then the return address is on top of the stack.
pub fn sets_up_later(code: &[u8; ENDING]) -> bool {
    let mut rest = &code[..];
    loop {
        rest = match rest {
            [PUSH_RBP, a, b, c, ..] if MOV_RSP_RBP.contains(&[*a, *b, *c]) => return true,
            [RET | RET_AND_POP | LEAVE | POP_RBP | INT3 | CALL_RELATIVE | GROUP_5 | NOP, ..]
            | [JMP_RELATIVE | JMP_SHORT, ..]
            | [] => return false,
            [_, rest @ ..] => rest,
        };
    }
}

/// Whether the innermost frame's function is about to return, or may have put the frame pointer
/// back and be about to jump to another one; `code` as for [`rule_without_frame_pointer`]. Then the
/// return address is on top.
pub fn may_be_left(code: &[u8; 5]) -> bool {
    let [before, first, ..] = *code;
    first == RET
        || (matches!(before, POP_RBP | LEAVE)
            && matches!(
                first,
                JMP_RELATIVE | JMP_SHORT | GROUP_5 | BND | PREFIX_NOTRACK
            ))
}

/// Whether `code` is `push %rbp`, `mov %rsp, %rbp`; there may be a uprobe at its start.
pub fn is_prologue(code: &[u8; 4]) -> bool {
    let [first, mov @ ..] = *code;
    matches!(first, PUSH_RBP | INT3) && MOV_RSP_RBP.contains(&mov)
}

/// Where a function sets up its frame pointer, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prologue {
    /// Where it pushes its caller's.
    pub push: u64,
    /// Where it has set up its own.
    pub end: u64,
}

/// Where a function that begins like this sets up its frame pointer; `None` if it does not, or not
/// so that its return address is right above what the frame pointer points to.
///
/// Compilers put other instructions between `push %rbp` and `mov %rsp, %rbp`. There may be a uprobe
/// on the first.
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

/// How far in front of its end a function may have begun to leave for a handler, in bytes: libgcc 14 has 206.
pub const LEAVING: u64 = 256;

/// Whether a function that begins like this may leave for a handler of exceptions: those of libgcc that
/// throw save rax and rdx for it, which no other function does: `push %rdx; push %rax`.
pub fn serves_handlers(code: &[u8; BEGINNING]) -> bool {
    const PUSH_RDX: u8 = 0x52;
    const PUSH_RAX: u8 = 0x50;
    // Nearly all are told by the first, which is quick.
    code.contains(&PUSH_RDX)
        && code
            .windows(2)
            .any(|pushes| *pushes == [PUSH_RDX, PUSH_RAX])
}

/// Whether a function ends within `code` by leaving for a handler: `mov %rcx,%rsp`, and on to what is on
/// top there. Shortly before, its frame is no longer its own.
pub fn leaves_for_handler(code: &[u8; ENDING]) -> bool {
    const MOV_RCX_RSP: [u8; 3] = [0x48, 0x89, 0xcc];
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
        let top = Some(Rule::amd64(Base::Sp, 8, Location::Unchanged));
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

        let pushed = Some(Rule::amd64(Base::Sp, 16, Location::AtCfa(-16)));
        assert_eq!(
            rule_without_frame_pointer(&[0x55, 0x48, 0x89, 0xe5, 0x53]),
            pushed
        );
        assert_eq!(
            rule_without_frame_pointer(&[0x55, 0x48, 0x8b, 0xec, 0x53]),
            pushed
        );

        // pop %rbp or leave; jmp. And xor %ecx,%ecx; mov.
        for restored in [0x5d, 0xc9] {
            assert!(may_be_left(&[restored, 0xe9, 1, 2, 3]));
            assert!(may_be_left(&[restored, 0xff, 0xe0, 2, 3]));
        }
        assert!(!may_be_left(&[0xc9, 0x48, 0x89, 0xc8, 0xc3]));
        assert!(!may_be_left(&[0xc0, 0xe9, 1, 2, 3]));

        // A uprobe on each of them.
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

        // mov %rsp, %rbp after something else; the middle of a function; pop %rbp.
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
    fn a_frame_pointer_may_be_set_up_later() {
        let later = |instructions: &[u8]| {
            let mut code = [0x66; ENDING];
            code[..instructions.len()].copy_from_slice(instructions);
            sets_up_later(&code)
        };
        // mov -0x40(%rcx),%rbx; testb $1,15(%rbx); jne; push %rbp; mov %rsp,%rbp
        let checks = [
            0x48, 0x8b, 0x59, 0xbf, 0xf6, 0x43, 0x0f, 1, 0x0f, 0x85, 1, 2, 3, 4, 0x55, 0x48, 0x89,
            0xe5,
        ];
        for at in 0..=14 {
            assert!(later(&checks[at..]), "{at}");
        }
        assert!(!later(&checks[15..]) && !later(&checks[..17]));
        // An end, and another function: ret; leave; pop %rbp; jmp; call; call *; int3; nop.
        for end in [0xc3, 0xc2, 0xc9, 0x5d, 0xe9, 0xeb, 0xe8, 0xff, 0xcc, 0x90] {
            for at in 0..14 {
                let mut other = checks;
                other[at] = end;
                assert!(!later(&other), "{at} {end:x}");
            }
        }
        // It has to be seen whole.
        let mut code = [0x66; ENDING];
        code[28..].copy_from_slice(&checks[14..]);
        assert!(sets_up_later(&code));
        code.rotate_left(31);
        assert!(!sets_up_later(&code));
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
        // A uprobe on it.
        assert_eq!(found(&[0xcc, 0x48, 0x89, 0xe5]), Some((0, 4)));
        // endbr64; push %rbp; movzwl %r12w, %eax; mov %rsi, %rdi; mov %rsp, %rbp
        let later = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x41, 0x0f, 0xb7, 0xc4, 0x48, 0x89, 0xf7, 0x48, 0x89,
            0xe5,
        ];
        assert_eq!(found(&later), Some((4, 15)));
        // push %rbp; mov %rdi, %rbp
        assert_eq!(found(&[0x55, 0x48, 0x89, 0xfd]), None);
        // push %r14; push %rbp; mov %rsp, %rbp: the return address is not where it would be.
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
}
