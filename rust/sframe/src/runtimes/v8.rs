// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Instructions of code that V8, a compiler of JavaScript, makes at run time. AMD64 only.
//!
//! V8's code calls C functions only where it has a frame. It aligns the stack pointer, and keeps
//! the old one on top of the stack. It stores the frame pointer in a field of the structure that
//! r13 points to, and clears the field after the call (`MacroAssembler::CallCFunction`), before or
//! after it restores the stack pointer. A function that is called with more arguments than it has
//! parameters takes its return address off the stack, removes all arguments, and pushes the return
//! address again (`MacroAssembler::DropArguments`). A call with fewer arguments than parameters
//! makes space for the others: it copies the stack, with the return address, to lower addresses
//! (`MacroAssembler::InvokePrologue`). A call of a bound function makes space for
//! the bound arguments in the same way (`Generate_PushBoundArguments`).
//!
//! The code that calls a function jumps to it at the end, with the return address on top of the
//! stack. The first instructions of code of the baseline compiler call a routine, which takes its
//! return address off the stack, and sets up the frame of the calling function.
//!
//! Built-in functions without a frame call the write barrier of the garbage collector, and may save
//! registers around this call. A tail call restores the frame pointer from the frame
//! (`CodeGenerator::AssemblePrepareTailCall`).
//!
//! `word` is the first eight bytes of the code, little-endian.

/// Whether the instructions are `and $-16,%rsp; mov %r10,N(%rsp)`.
pub(super) fn aligns_sp(word: u64) -> bool {
    word & 0xffbf_ffff_ffff_ffff == 0x2414_894c_f0e4_8348
}

/// Whether `code` begins with `movq $0,N(%r13); mov N(%rsp),%rsp`.
pub(super) fn clears_and_restores_sp(code: &[u8]) -> bool {
    let restores_sp = |code: &[u8]| matches!(code, [0x48, 0x8b, 0x24 | 0x64, 0x24, ..]);
    matches!(code, [0x49, 0xc7, 0x45, _, 0, 0, 0, 0, rest @ ..] if restores_sp(rest))
}

/// Whether the instructions are `mov (%rsp),%rsp; movq $N,N(%r13)`.
pub(super) fn restores_sp_and_clears(word: u64) -> bool {
    let code = word & 0xff_ffff_ffff_ffff;
    code == 0x45_c749_2424_8b48 || code == 0x85_c749_2424_8b48
}

/// Whether the return address is taken off the stack to remove arguments: `pop %REGISTER; lea
/// (%rsp,%OTHER,8),%rsp; push %REGISTER`, with a register from r8 on.
pub(super) fn returns_by_register(word: u64) -> bool {
    // lea has one of two prefixes, by the number of OTHER. push differs from pop in one bit.
    let is_same = (word >> 48) ^ (word & 0xffff) == 0x0800;
    is_same && word & 0xff_fffd_f8ff == 0x24_8d48_5841
}

/// Whether the instruction is `mov %r10,(%rsp,%r11,8)` or `mov %r10,(%rsp,%r12,8)`, which copies
/// the stack, or `lea 8(%rsp,%rax,8),%r8`, which follows a copy.
pub(super) fn moves_stack(word: u64) -> bool {
    matches!(word as u32, 0xdc14_894e | 0xe414_894e) || word & 0xff_ffff_ffff == 0x08_c444_8d4c
}

/// Whether the instruction is `sub %r10,%rsp`, which makes space for the copy.
pub(super) fn makes_space(word: u64) -> bool {
    word & 0xff_ffff == 0xe2_2b49
}

/// Whether the instructions are `push N(%rbx,%rcx,8)` and a jump back, which push the arguments of
/// a generator. The return address is in a register.
pub(super) fn pushes_arguments(word: u64) -> bool {
    word & 0xff_00ff_ffff == 0xeb_00cb_74ff
}

/// Whether the instructions are `mov N(%rcx),%rcx` or `mov (%r10,%rcx),%rcx`, and `jmp *%rcx`, or
/// `mov N(%r8),%r8` and `jmp *%r8`, by which the called function's code is entered.
pub(super) fn enters_code(word: u64) -> bool {
    word & 0xffff_00ff_ffff == 0xe1ff_0049_8b48
        || word & 0xffff_ffff_ffff == 0xe1ff_0a0c_8b49
        || word & 0xff_ffff_00ff_ffff == 0xe0_ff41_0040_8b4d
}

/// Whether the instructions are `pop %REGISTER; push %rbp; mov %rsp,%rbp`, with a register from r8
/// on: the caller's frame is set up.
pub(super) fn sets_up_for_caller(word: u64) -> bool {
    word & 0xffff_ffff_f8ff == 0xe589_4855_5841
}

/// Whether the instruction is `cmp N(%r13),%rsp`: a function that has set up its frame compares the
/// stack pointer with its limit, at its beginning and in loops.
pub(super) fn checks_stack(word: u64) -> bool {
    word & 0xff_ffff == 0x65_3b49
}

/// Whether the instruction is `mov 0(%rbp),%rbp`.
pub(super) fn restores_fp(word: u64) -> bool {
    word & 0xffff_ffff == 0x006d_8b48
}
