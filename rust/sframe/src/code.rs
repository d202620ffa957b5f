// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! What a few bytes of AMD64 code tell, where there are no rows: how far a function that keeps a
//! frame pointer has got with it, whether code may have called, and whether a signal's handler has
//! returned to it.
//!
//! The instructions are those of the AMD64 Architecture Programmer's Manual, volume 3.

use super::rule::{
    Base,
    Cfa,
    Location,
    Rule, //
};

/// The length in bytes of the longest call instruction that is recognised.
pub const LONGEST: usize = 7;

/// The size of what is looked at of a function's beginning, in bytes.
pub const BEGINNING: usize = 64;

const PUSH_RBP: u8 = 0x55;
/// What a uprobe, or a debugger, has put in place of an instruction's first byte.
const INT3: u8 = 0xcc;
const POP_RBP: u8 = 0x5d;
const LEAVE: u8 = 0xc9;
const RET: u8 = 0xc3;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `mov %rsp, %rbp`, in its two encodings.
const MOV_RSP_RBP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];

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

/// The size of what is looked at for [`clears_and_returns`] and others, in bytes.
pub const ENDING: usize = 32;

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

const XOR: u8 = 0x31;

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

const NOP: u8 = 0x90;

/// Where the code at a PC jumps to, if it is a jump: what has its own beginning at its end, as V8's
/// regular expressions have, begins with one.
pub fn jumps_to(code: &[u8; ENDING], pc: u64) -> Option<u64> {
    let [JMP_RELATIVE, a, b, c, d, ..] = *code else {
        return None;
    };
    let distance = i32::from_le_bytes([a, b, c, d]);
    Some(pc.wrapping_add(5).wrapping_add_signed(distance.into()))
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

/// Whether `code` is `endbr64`; there may be a uprobe at its start.
fn is_endbr64(code: [u8; 4]) -> bool {
    let ([first, rest @ ..], [endbr64, others @ ..]) = (code, ENDBR64);
    (first == endbr64 || first == INT3) && rest == others
}

/// The size of what is looked at of a trampoline of uprobes, in bytes.
pub const UPROBE_TRAMPOLINE: usize = 20;
/// The size of what replaces the instruction under an optimised uprobe, in bytes.
pub const OPTIMISED: usize = 10;
/// How far the call of an optimised uprobe has moved the stack pointer down, in bytes.
pub const RED_ZONE: u64 = 128;

/// Where in one of the two trampolines of uprobes a PC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UprobeTrampoline {
    /// A function that has returned came here, for a uretprobe took its return address.
    Returned {
        /// From the stack pointer to where it was when that function had returned, in bytes.
        sp: u64,
        /// Whether the kernel has put the return address back, into the word below that.
        resolved: bool,
    },
    /// A uprobe was made a call, and called.
    Called {
        /// From the stack pointer to the return address, in bytes.
        ra: u64,
        /// From there to where the stack pointer was at the probe, in bytes.
        sp: u64,
    },
}

/// Tells where in a trampoline of uprobes the PC is, from the trampoline's first bytes and the PC's
/// offset from there; `None` if it is not one.
///
/// The kernel writes them, in `arch/x86/kernel/uprobes.c`: pushes, a system call, pops, and a
/// return. The one for uretprobes saves %rax first, as that word takes the return address in the
/// end; the other one does not.
pub fn uprobe_trampoline(code: &[u8; UPROBE_TRAMPOLINE], offset: u64) -> Option<UprobeTrampoline> {
    let uretprobe = match *code {
        [0x50, 0x51, 0x41, 0x53, ..] => true,
        [0x51, 0x41, 0x53, 0x50, ..] => false,
        _ => return None,
    };
    let mut at = 0_usize;
    let mut pushed = 0_u64;
    let mut pushed_at_pc = None;
    let mut called_at = None;
    let popped = loop {
        if u64::try_from(at).ok()? == offset {
            pushed_at_pc = Some(pushed);
        }
        let length = match *code.get(at..)? {
            [0x50..=0x57, ..] => {
                pushed = pushed.checked_add(8)?;
                1
            }
            [0x58..=0x5f, ..] => {
                pushed = pushed.checked_sub(8)?;
                1
            }
            [0x41, 0x50..=0x57, ..] => {
                pushed = pushed.checked_add(8)?;
                2
            }
            [0x41, 0x58..=0x5f, ..] => {
                pushed = pushed.checked_sub(8)?;
                2
            }
            // mov $number, %rax
            [0x48, 0xc7, 0xc0, ..] => 7,
            [0x0f, 0x05, ..] => {
                called_at = Some(u64::try_from(at).ok()?);
                2
            }
            [RET, ..] => break None,
            [RET_AND_POP, low, high, ..] => break Some(u16::from_le_bytes([low, high])),
            _ => return None,
        };
        at = at.checked_add(length)?;
    };
    match (uretprobe, popped) {
        (true, None) => Some(UprobeTrampoline::Returned {
            sp: pushed_at_pc?,
            resolved: offset > called_at?,
        }),
        (true, Some(_)) => None,
        (false, popped) => Some(UprobeTrampoline::Called {
            ra: pushed_at_pc?,
            sp: u64::from(popped.unwrap_or(0)).checked_add(8)?,
        }),
    }
}

/// The size of what the trampolines of uprobes save of registers before they call the kernel, in
/// bytes.
pub const UPROBE_SAVED: usize = 24;

/// Whether `saved` is what a trampoline of uprobes has saved of these registers: the one for
/// uretprobes %r11, %rcx and %rax, from the stack pointer upwards, the other one %rax, %r11 and
/// %rcx.
///
/// In its system call the kernel gives a program's registers the values of the probe's place, calls
/// who wants to know of the probe, and takes them back: `sys_uretprobe` and `sys_uprobe` in
/// `arch/x86/kernel/uprobes.c`. It does so one by one. So an interrupt may see a PC, a stack pointer
/// and these three of which not all belong together.
pub fn is_saved_by_uprobe(saved: &[u8; UPROBE_SAVED], rax: u64, rcx: u64, r11: u64) -> bool {
    let are = |words: [u64; 3]| {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.eq(saved.iter().copied())
    };
    are([r11, rcx, rax]) || are([rax, r11, rcx])
}

/// The address that is called next, if the PC is between the two instructions of an optimised
/// uprobe, the first of which has moved the stack pointer; `code` are the five bytes on each side.
pub fn shifted_by_uprobe(code: &[u8; OPTIMISED], pc: u64) -> Option<u64> {
    match *code {
        // lea -128(%rsp),%rsp; call
        [0x48, 0x8d, 0x64, 0x24, 0x80, CALL_RELATIVE, a, b, c, d] => Some(
            pc.wrapping_add(5)
                .wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d]))),
        ),
        _ => None,
    }
}

const RET_AND_POP: u8 = 0xc2;

/// The size of what is looked at of a stub of a PLT, in bytes.
pub const STUB: usize = 16;

const PUSH_IMMEDIATE: u8 = 0x68;
const JMP_RELATIVE: u8 = 0xe9;
const JMP_SHORT: u8 = 0xeb;
const PREFIX_NOTRACK: u8 = 0x3e;
/// Of GOT[1]: `push x(%rip)`.
const PUSH_RIP: [u8; 2] = [0xff, 0x35];
const JMP_RIP: [u8; 2] = [0xff, 0x25];
const BND: u8 = 0xf2;

/// The rule at `offset` bytes from the start of a stub of a PLT, by what its instructions do;
/// `None` if they are none of a PLT.
///
/// `code` is the stub, and what follows if it is shorter. GNU ld up to 2.47 writes wrong rows for
/// some of them: for .plt.got "sp+16", as if something had been pushed; and version 2.40 for
/// .plt.sec the rows of .plt, and for stubs that begin with `endbr64` that the push is two bytes
/// further on than it is.
pub fn rule_of_stub(code: &[u8; STUB], offset: u32) -> Option<Rule> {
    let pushes = |before: i32, at: u32| {
        let pushed = if offset < at { 0 } else { 8 };
        let cfa = before.wrapping_add(pushed);
        Some(Rule::amd64(Base::Sp, cfa, Location::Unchanged))
    };
    match *code {
        // The first stub of .plt: what the others have pushed, and one more.
        [a, b, _, _, _, _, c, d, ..] if [a, b] == PUSH_RIP && [c, d] == JMP_RIP => pushes(16, 6),
        [a, b, _, _, _, _, BND, c, d, ..] if [a, b] == PUSH_RIP && [c, d] == JMP_RIP => {
            pushes(16, 6)
        }
        // A lazy stub: jump, or push and jump to the first.
        [a, b, _, _, _, _, PUSH_IMMEDIATE, _, _, _, _, JMP_RELATIVE, ..] if [a, b] == JMP_RIP => {
            pushes(8, 11)
        }
        [PUSH_IMMEDIATE, _, _, _, _, JMP_RELATIVE, ..]
        | [PUSH_IMMEDIATE, _, _, _, _, BND, JMP_RELATIVE, ..] => pushes(8, 5),
        [a, b, c, d, PUSH_IMMEDIATE, _, _, _, _, JMP_RELATIVE, ..]
        | [a, b, c, d, PUSH_IMMEDIATE, _, _, _, _, BND, JMP_RELATIVE, ..]
            if [a, b, c, d] == ENDBR64 =>
        {
            pushes(8, 9)
        }
        // Nothing but a jump.
        [a, b, ..] | [BND, a, b, ..] if [a, b] == JMP_RIP => pushes(8, u32::MAX),
        [a, b, c, d, e, f, ..] | [a, b, c, d, BND, e, f, ..]
            if [a, b, c, d] == ENDBR64 && [e, f] == JMP_RIP =>
        {
            pushes(8, u32::MAX)
        }
        _ => None,
    }
}

/// What is looked at around the PC for a signal's trampoline, in bytes: [`TRAMPOLINE_BEFORE`] in
/// front of it, the others from it on.
pub const TRAMPOLINE: usize = 18;
/// How many of them are in front of the PC.
pub const TRAMPOLINE_BEFORE: u64 = 9;

/// `mov $15, %rax; syscall`: rt_sigreturn, as glibc's and musl's `__restore_rt` have it.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
/// The same with `mov $15, %eax`.
const SIGRETURN_SHORT: [u8; 7] = [0xb8, 15, 0, 0, 0, 0x0f, 0x05];

/// The rule of a signal's trampoline: what the handler returns to, to go back to what the signal
/// interrupted.
///
/// Its stack pointer points to Linux's `struct ucontext`, which holds the registers that were
/// interrupted: rbp at 120 bytes, rsp at 160, rip at 168.
pub const INTERRUPTED: Rule = Rule {
    cfa: Cfa {
        base: Base::Sp,
        offset: 160,
        deref: true,
        plus: 0,
    },
    ra: Location::At(Base::Sp, 168),
    fp: Location::At(Base::Sp, 120),
    mangled: false,
    signal: true,
};

/// Whether a signal's trampoline runs at the PC, before its system call; then [`INTERRUPTED`] is
/// its rule.
///
/// `code` is what is around the PC itself. A trampoline is returned to, but nothing has called from
/// it: the byte before the PC need not belong to it. No table is at hand for it in version 2, nor
/// where its file has none.
pub fn is_signal_trampoline(code: &[u8; TRAMPOLINE]) -> bool {
    let (before, at) = code.split_at(const { TRAMPOLINE_BEFORE as usize });
    let in_front_of_syscall = |instruction: &[u8], syscall: &[u8]| {
        before.ends_with(instruction) && at.starts_with(syscall)
    };
    let [long @ .., _, _] = SIGRETURN;
    let [short @ .., o, f] = SIGRETURN_SHORT;
    at.starts_with(&SIGRETURN)
        || at.starts_with(&SIGRETURN_SHORT)
        || in_front_of_syscall(&long, &[o, f])
        || in_front_of_syscall(&short, &[o, f])
}

/// Whether the PC is right behind a signal's trampoline, as it is in its system call. Then
/// [`INTERRUPTED`] is the rule; but only if the thread is in that system call, for another function
/// may begin there: `__sigsetjmp` does in musl.
pub fn is_behind_signal_trampoline(code: &[u8; TRAMPOLINE]) -> bool {
    let (before, _) = code.split_at(const { TRAMPOLINE_BEFORE as usize });
    before.ends_with(&SIGRETURN) || before.ends_with(&SIGRETURN_SHORT)
}

/// The rule behind a system call that starts a process or a thread, in the one that has called it.
pub const BEHIND_CLONE: Rule = Rule::amd64(Base::Sp, 8, Location::Unchanged);

/// Whether the code behind a system call returns at once if its result is neither an error nor zero:
/// `syscall; test %rax, %rax; jl ...; jz ...; ret`, at any of these instructions but the first. Then
/// [`BEHIND_CLONE`] is the rule: nothing between it and `ret` touches the stack.
///
/// glibc's `clone` and `clone3` are so, and have no rows there, since the new thread begins there too:
/// with a result of zero, of which this says nothing.
pub fn is_behind_clone(code: &[u8; TRAMPOLINE]) -> bool {
    // Of what is behind the system call the PC may be at 0, 3, 5 or 7.
    [7usize, 4, 2, 0].iter().any(|start| {
        matches!(
            code.get(*start..),
            Some([0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, _, 0x74, _, 0xc3, ..])
        )
    })
}

/// How far behind its system call [`is_behind_clone`] holds, in bytes.
pub const CLONE_BEHIND: u64 = 9;

/// Whether neither [`is_signal_trampoline`] nor [`is_behind_signal_trampoline`] nor [`is_behind_clone`]
/// can hold, as far as eight bytes each tell: those from [`CLONE_BEHIND`] in front of the PC on, and those
/// from the PC on. For most code that is told so, and the rest need not be looked at.
#[inline(always)]
pub fn is_ordinary(before: u64, at: u64) -> bool {
    const SYSCALL: u16 = 0x050f;
    const MOVE: u32 = 0x0fc0_c748;
    const MOVE_SHORT: u16 = 0x0fb8;

    // The system call of clone is two bytes before the PC, or five, seven or nine; that of a trampoline
    // is two. Of what is two before it the first byte alone is here.
    !(before >> 56 == 0x0f
        || (before >> 32) as u16 == SYSCALL
        || (before >> 16) as u16 == SYSCALL
        || before as u16 == SYSCALL
        || at as u16 == SYSCALL
        || at as u16 == MOVE_SHORT
        || at as u32 == MOVE)
}

/// How many bytes in front of a PC or return address [`takes_stack`] looks at.
pub const TAKES_STACK: usize = 48;

/// Whether a function may have taken another stack than its own: whether there is, in `code`, which is
/// what lies in front of the PC or return address, `mov N(%REGISTER), %rsp`, or `mov %REGISTER, %rsp` of
/// any register but rbp.
///
/// Its frame is where its frame pointer points to, and that may be below the stack pointer. Go's
/// runtime.systemstack is such a function.
pub fn takes_stack(code: &[u8; TAKES_STACK]) -> bool {
    const RSP: u8 = 4;
    const RBP: u8 = 5;

    code.windows(3).any(|bytes| {
        let [prefix, opcode, operands] = *bytes else {
            return false;
        };
        let (mode, first, second) = (operands >> 6, (operands >> 3) & 7, operands & 7);
        match (prefix, opcode, mode) {
            (0x48 | 0x49, 0x8b, 1) => first == RSP && second != RSP,
            (0x48, 0x8b, 3) => first == RSP && second != RBP,
            (0x49, 0x8b, 3) => first == RSP,
            (0x48, 0x89, 3) => second == RSP && first != RBP,
            (0x4c, 0x89, 3) => second == RSP,
            _ => false,
        }
    })
}

const CALL_RELATIVE: u8 = 0xe8;
const GROUP_5: u8 = 0xff;
const CALL_NEAR: u8 = 2;

/// Whether `code`, the AMD64 code before a return address, may end with a near call.
///
/// Prefixes go before all that is looked at. Code that is no call may look like one; a call never
/// looks like none. See "CALL" in volume 3 of the AMD64 Architecture Programmer's Manual.
pub fn ends_with_call(code: &[u8; LONGEST]) -> bool {
    let [b7, b6, b5, b4, b3, b2, b1] = *code;

    // E8 with an offset of four bytes, or FF /2 with a ModRM byte that asks for as many bytes
    // more as there are.
    b5 == CALL_RELATIVE
        || (b2 == GROUP_5 && length(b1, 0) == Some(2))
        || (b3 == GROUP_5 && length(b2, b1) == Some(3))
        || (b4 == GROUP_5 && length(b3, b2) == Some(4))
        || (b6 == GROUP_5 && length(b5, b4) == Some(6))
        || (b7 == GROUP_5 && length(b6, b5) == Some(7))
}

/// The length in bytes of FF with this ModRM byte, if that is a near call. `sib` is the byte
/// behind it.
fn length(modrm: u8, sib: u8) -> Option<usize> {
    if (modrm >> 3) & 7 != CALL_NEAR {
        return None;
    }
    let has_sib = modrm & 7 == 4;
    Some(match modrm >> 6 {
        0 if modrm & 7 == 5 => 6,
        0 if has_sib && sib & 7 == 5 => 7,
        0 if has_sib => 3,
        0 => 2,
        1 if has_sib => 4,
        1 => 3,
        2 if has_sib => 7,
        2 => 6,
        _ => 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_taken_from_elsewhere() {
        let takes = |code: &[u8]| {
            let mut before = [0x90; TAKES_STACK];
            before[TAKES_STACK - code.len()..].copy_from_slice(code);
            takes_stack(&before)
        };
        // runtime.systemstack: mov 0x38(%rdx),%rsp; mov %rdi,%rdx; mov (%rdi),%rdi; call *%rdi
        assert!(takes(b"\x48\x8b\x62\x38\x48\x89\xfa\x48\x8b\x3f\xff\xd7"));
        // mov 0x38(%r14),%rsp; mov %rdx,%rsp; mov %r12,%rsp; the last two once more, as Go writes them.
        for code in [
            b"\x49\x8b\x66\x38",
            b"\x48\x89\xd4\x90",
            b"\x4c\x89\xe4\x90",
            b"\x48\x8b\xe2\x90",
            b"\x49\x8b\xe4\x90",
        ] {
            assert!(takes(code), "{code:x?}");
        }
        // mov 0x38(%rdx),%rdi; mov %rsp,0x38(%rdx); mov 0x38(%rsp),%rdx; mov %rbp,%rsp, both ways; mov
        // %rsp,%rbp; sub $16,%rsp; lea 0x38(%rdx),%rsp, which is no stack that anyone has kept.
        for code in [
            b"\x48\x8b\x7a\x38",
            b"\x48\x89\x62\x38",
            b"\x48\x8b\x54\x24",
            b"\x48\x89\xec\x90",
            b"\x48\x8b\xe5\x90",
            b"\x48\x89\xe5\x90",
            b"\x48\x83\xec\x10",
            b"\x48\x8d\x62\x38",
        ] {
            assert!(!takes(code), "{code:x?}");
        }
    }

    #[test]
    fn who_has_called_clone_returns() {
        // As in Debian 13's libc, from four bytes in front of `syscall`.
        let text = [
            0x44, 0x0f, 0x05, 0x00, 0x90, 0x90, 0x90, 0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, 0x10,
            0x74, 0x01, 0xc3, 0x31, 0xed, 0x58, 0x5f, 0xff, 0xd0, 0x89, 0xc7, 0xb8,
        ];
        let behind = text.len() - 17;
        assert_eq!(behind, 9);
        let at = |offset: usize| -> [u8; TRAMPOLINE] {
            let mut code = [0x90; TRAMPOLINE];
            let from = behind + offset - TRAMPOLINE_BEFORE as usize;
            let bytes = &text[from..];
            let len = bytes.len().min(TRAMPOLINE);
            code[..len].copy_from_slice(&bytes[..len]);
            code
        };
        for offset in 0..9 {
            let expected = matches!(offset, 0 | 3 | 5 | 7);
            assert_eq!(is_behind_clone(&at(offset)), expected, "{offset}");
        }
        assert!(!is_behind_clone(&[0x90; TRAMPOLINE]));
    }

    #[test]
    fn what_is_ordinary_is_no_trampoline() {
        // Each of the codes that are known, in each place, among bytes that are not.
        let clone = [0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, 1, 0x74, 1, 0xc3];
        let codes: [&[u8]; 3] = [&SIGRETURN, &SIGRETURN_SHORT, &clone];
        let mut known = 0;
        for text in codes {
            for from in 0..=TRAMPOLINE {
                let mut code = [0x90; TRAMPOLINE];
                for (to, byte) in code[from..].iter_mut().zip(text) {
                    *to = *byte;
                }
                let is_known = is_signal_trampoline(&code)
                    || is_behind_signal_trampoline(&code)
                    || is_behind_clone(&code);
                let at = TRAMPOLINE_BEFORE as usize;
                let word = |at: usize| u64::from_le_bytes(*code[at..].first_chunk().unwrap());
                let ordinary = is_ordinary(word(at - CLONE_BEHIND as usize), word(at));
                assert!(!(is_known && ordinary), "{code:x?}");
                known += u32::from(is_known);
                // Not all is taken for one.
                assert!(from < 16 || ordinary, "{code:x?}");
            }
        }
        assert_eq!(known, 10);
    }

    fn ends(instruction: &[u8]) -> bool {
        let mut code = [0x90; LONGEST];
        code[LONGEST - instruction.len()..].copy_from_slice(instruction);
        ends_with_call(&code)
    }

    // The bytes are those of GNU as, quoted with what was assembled.
    #[test]
    fn calls_are_calls() {
        assert!(ends(&[0xe8, 1, 2, 3, 4])); // call f
        assert!(ends(&[0xff, 0xd0])); // call *%rax
        assert!(ends(&[0x41, 0xff, 0xd4])); // call *%r12
        assert!(ends(&[0xff, 0x13])); // call *(%rbx)
        assert!(ends(&[0xff, 0x53, 0x18])); // call *0x18(%rbx)
        assert!(ends(&[0xff, 0x93, 1, 2, 0, 0])); // call *0x201(%rbx)
        assert!(ends(&[0xff, 0x15, 1, 2, 3, 4])); // call *f@GOTPCREL(%rip)
        assert!(ends(&[0x41, 0xff, 0x14, 0x24])); // call *(%r12)
        assert!(ends(&[0xff, 0x54, 0x24, 0x08])); // call *8(%rsp)
        assert!(ends(&[0xff, 0x94, 0x24, 0, 1, 0, 0])); // call *0x100(%rsp)
        assert!(ends(&[0xff, 0x14, 0xc5, 1, 2, 3, 4])); // call *0x4030201(,%rax,8)
        assert!(ends(&[0x3e, 0xff, 0xd0])); // notrack call *%rax
    }

    /// The CFA less the stack pointer, at each offset.
    fn stub(code: &[u8], offsets: &[u32]) -> std::vec::Vec<Option<i32>> {
        let mut stub = [0x90; STUB];
        stub[..code.len()].copy_from_slice(code);
        offsets
            .iter()
            .map(|offset| rule_of_stub(&stub, *offset).map(|rule| rule.cfa.offset))
            .collect()
    }

    // The bytes are those that GNU ld 2.40 and 2.44 write.
    #[test]
    fn stubs_of_plts() {
        // push GOT+8(%rip); jmp *GOT+16(%rip)
        let first = [0xff, 0x35, 0xca, 0x2f, 0, 0, 0xff, 0x25, 0xcc, 0x2f, 0, 0];
        assert_eq!(stub(&first, &[0, 6]), [Some(16), Some(24)]);
        // The same with bnd jmp.
        let first = [0xff, 0x35, 1, 0, 0, 0, 0xf2, 0xff, 0x25, 1, 0, 0, 0];
        assert_eq!(stub(&first, &[0, 6]), [Some(16), Some(24)]);
        // jmp *GOT+24(%rip); push $0; jmp .plt
        let lazy = [
            0xff, 0x25, 0xca, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff,
        ];
        assert_eq!(stub(&lazy, &[0, 6, 11]), [Some(8), Some(8), Some(16)]);
        // endbr64; push $0; jmp .plt: 2.40 has "sp+16" from 11 on only.
        let ibt = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x68, 0, 0, 0, 0, 0xe9, 0xe2, 0xff, 0xff, 0xff, 0x66, 0x90,
        ];
        assert_eq!(stub(&ibt, &[0, 4, 9]), [Some(8), Some(8), Some(16)]);
        // endbr64; jmp *GOT(%rip), in .plt.sec: 2.40 has "sp+16" and "sp+24".
        let second = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0x2e, 0x2f, 0, 0];
        assert_eq!(stub(&second, &[0, 4]), [Some(8), Some(8)]);
        // jmp *GOT(%rip); xchg %ax,%ax, in .plt.got: up to 2.47 "sp+16".
        let got = [0xff, 0x25, 0x12, 0x2f, 0, 0, 0x66, 0x90];
        assert_eq!(stub(&got, &[0]), [Some(8)]);
        // push %rbp; mov %rsp,%rbp
        assert_eq!(stub(&[0x55, 0x48, 0x89, 0xe5], &[0, 1]), [None, None]);
        assert_eq!(stub(&[0xff; STUB], &[0]), [None]);
    }

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

    // Those of Linux 7.3, arch/x86/kernel/uprobes.c.
    #[test]
    fn trampolines_of_uprobes() {
        let returned =
            |code: &[u8; UPROBE_TRAMPOLINE], offset| match uprobe_trampoline(code, offset) {
                Some(UprobeTrampoline::Returned { sp, resolved }) => Some((sp, resolved)),
                _ => None,
            };
        // push %rax; push %rcx; push %r11; mov $335,%rax; syscall; pop %r11; pop %rcx; ret; int3
        let code = [
            0x50, 0x51, 0x41, 0x53, 0x48, 0xc7, 0xc0, 0x4f, 1, 0, 0, 0x0f, 0x05, 0x41, 0x5b, 0x59,
            0xc3, 0xcc, 0, 0,
        ];
        for (offset, found) in [
            (0, Some((0, false))),
            (1, Some((8, false))),
            (2, Some((16, false))),
            (3, None),
            (4, Some((24, false))),
            (11, Some((24, false))),
            (13, Some((24, true))),
            (15, Some((16, true))),
            (16, Some((8, true))),
            (17, None),
        ] {
            assert_eq!(returned(&code, offset), found, "{offset}");
        }

        let called = |code: &[u8; UPROBE_TRAMPOLINE], offset| match uprobe_trampoline(code, offset)
        {
            Some(UprobeTrampoline::Called { ra, sp }) => Some((ra, sp)),
            _ => None,
        };
        // push %rcx; push %r11; push %rax; mov $336,%rax; syscall; pop %rax; pop %r11; pop %rcx;
        // ret $128
        let mut code = [
            0x51, 0x41, 0x53, 0x50, 0x48, 0xc7, 0xc0, 0x50, 1, 0, 0, 0x0f, 0x05, 0x58, 0x41, 0x5b,
            0x59, 0xc2, 0x80, 0,
        ];
        for (offset, ra) in [
            (0, Some(0)),
            (1, Some(8)),
            (2, None),
            (3, Some(16)),
            (4, Some(24)),
            (11, Some(24)),
            (13, Some(24)),
            (14, Some(16)),
            (16, Some(8)),
            (17, Some(0)),
            (18, None),
        ] {
            assert_eq!(called(&code, offset), ra.map(|ra| (ra, 136)), "{offset}");
        }
        // As it was before the red zone was spared.
        code[17..].copy_from_slice(&[0xc3, 0xcc, 0]);
        assert_eq!(called(&code, 17), Some((0, 8)));

        code[11] = 0x0e;
        assert_eq!(uprobe_trampoline(&code, 0), None);
        assert_eq!(uprobe_trampoline(&[0x50; UPROBE_TRAMPOLINE], 0), None);
        assert_eq!(uprobe_trampoline(&[0; UPROBE_TRAMPOLINE], 0), None);
    }

    #[test]
    fn what_trampolines_of_uprobes_save() {
        let saved = |words: [u64; 3]| {
            let mut bytes = [0; UPROBE_SAVED];
            for (to, word) in bytes.chunks_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            is_saved_by_uprobe(&bytes, 1, 2, 3)
        };
        assert!(saved([3, 2, 1]));
        assert!(saved([1, 3, 2]));
        assert!(!saved([1, 2, 3]));
        assert!(!saved([3, 2, 0]));
        assert!(!saved([0, 3, 2]));
    }

    #[test]
    fn the_call_of_a_uprobe_moves_the_stack_pointer_first() {
        let mut code = [0x48, 0x8d, 0x64, 0x24, 0x80, 0xe8, 0xfb, 0x0f, 0, 0];
        assert_eq!(shifted_by_uprobe(&code, 0x1000), Some(0x2000));
        code[4] = 0x70;
        assert_eq!(shifted_by_uprobe(&code, 0x1000), None);
    }

    #[test]
    fn handlers_return_to_trampolines() {
        // nop; mov $15, %rax; syscall; nopl 0(%rax), as in glibc and musl.
        let long = [
            0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x48, 0xc7, 0xc0, 15, 0, 0, 0,
            0x0f, 0x05, 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0xcc, 0xcc, 0xcc,
        ];
        let is = |code: &[u8]| is_signal_trampoline(code.first_chunk().unwrap());
        let behind = |code: &[u8]| is_behind_signal_trampoline(code.first_chunk().unwrap());
        for at in 0..=9 {
            assert_eq!(is(&long[at..]), [0, 7].contains(&at), "{at}");
            assert_eq!(behind(&long[at..]), at == 9, "{at}");
        }
        // mov $15, %eax; syscall
        let mut short = [0xcc; 27];
        short[9..16].copy_from_slice(&[0xb8, 15, 0, 0, 0, 0x0f, 0x05]);
        for at in 0..=9 {
            assert_eq!(is(&short[at..]), [0, 5].contains(&at), "{at}");
            assert_eq!(behind(&short[at..]), at == 7, "{at}");
        }
        // Another system call, and rt_sigreturn's number for something else.
        for (at, byte) in [(12, 16), (16, 0xc3), (17, 0x0b), (9, 0x4c)] {
            let mut other = long;
            other[at] = byte;
            assert!(!is(&other) && !is(&other[7..]) && !behind(&other[9..]));
        }
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

    #[test]
    fn others_are_not() {
        assert!(!ends(&[0x90; LONGEST]));
        assert!(!ends(&[0xff, 0xe0])); // jmp *%rax
        assert!(!ends(&[0xff, 0x25, 1, 2, 3, 4])); // jmp *f@GOTPCREL(%rip)
        assert!(!ends(&[0xff, 0x33])); // push (%rbx)
        assert!(!ends(&[0x0f, 0x05])); // syscall
        assert!(!ends(&[0xc3])); // ret
        assert!(!ends(&[0x48, 0x89, 0xe5])); // mov %rsp,%rbp
    }
}
